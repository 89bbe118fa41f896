/* crew.c - see crew.h. */
#include "runtime/batch/crew.h"
#include "runtime/thread.h"

#include <string.h>

struct pe_crew {
  pe_pool *pool;
  pthread_t thread;
  pthread_mutex_t lock;             /* of everything below and the seats */
  pthread_cond_t called, turn_over; /* a seat has work; the turn has ended */
  pe_crew_seat *first;              /* the one that has waited longest comes first */
  const pe_crew_seat *at_work;      /* the seat that has its turn */
  int32_t shares;
  bool started, stop;
};

/* ---- the engine thread --------------------------------------------------------------------- */

static void unlink_seat(pe_crew *c, const pe_crew_seat *seat) {
  pe_crew_seat **at = &c->first;
  while (*at && *at != seat) at = &(*at)->next;
  if (*at) *at = seat->next;
}

static void put_last(pe_crew *c, pe_crew_seat *seat) {
  pe_crew_seat **at = &c->first;
  while (*at) at = &(*at)->next;
  *at = seat, seat->next = NULL;
}

/* The first of the seats with the most urgent work; NULL: none has any. */
static pe_crew_seat *next_seat(const pe_crew *c) {
  pe_crew_seat *best = NULL;
  for (pe_crew_seat *s = c->first; s; s = s->next)
    if (s->rest > (best ? best->rest : PE_CREW_NONE)) best = s;
  return best;
}

/* Under the lock except for the turn itself. A seat that is left meanwhile is out of the list, and
 * its owner waits for the end of the turn. */
static void give_turn(pe_crew *c, pe_crew_seat *seat) {
  unlink_seat(c, seat);
  put_last(c, seat);
  seat->rest = PE_CREW_NONE, c->at_work = seat;
  pthread_mutex_unlock(&c->lock);
  pe_crew_rest rest = seat->turn(seat->ctx);
  pthread_mutex_lock(&c->lock);
  if (rest > seat->rest) seat->rest = rest; /* it may have been called during its turn */
  c->at_work = NULL;
  pthread_cond_broadcast(&c->turn_over);
}

static void *engine(void *arg) {
  pe_crew *c = arg;
  pthread_mutex_lock(&c->lock);
  while (!c->stop) {
    pe_crew_seat *seat = next_seat(c);
    if (seat)
      give_turn(c, seat);
    else
      pthread_cond_wait(&c->called, &c->lock);
  }
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

static pe_status start(pe_crew *c, pe_error *err) {
  if (c->started) return PE_OK;
  int rc = pe_thread_start(&c->thread, engine, c);
  c->started = !rc;
  return rc ? pe_fail(err, PE_EIO, "engine thread: %s", strerror(rc)) : PE_OK;
}

/* ---- seats --------------------------------------------------------------------------------- */

pe_status pe_crew_join(pe_crew *c, pe_crew_seat *seat, pe_crew_turn *turn, void *ctx,
                       pe_error *err) {
  pthread_mutex_lock(&c->lock);
  pe_status rc = start(c, err);
  if (!rc) {
    *seat = (pe_crew_seat){.crew = c, .turn = turn, .ctx = ctx};
    put_last(c, seat);
  }
  pthread_mutex_unlock(&c->lock);
  return rc;
}

void pe_crew_call(pe_crew_seat *seat) {
  pe_crew *c = seat->crew;
  pthread_mutex_lock(&c->lock);
  seat->rest = PE_CREW_MORE;
  pthread_cond_signal(&c->called);
  pthread_mutex_unlock(&c->lock);
}

bool pe_crew_wanted(const pe_crew_seat *seat) {
  pe_crew *c = seat->crew;
  bool wanted = false;
  pthread_mutex_lock(&c->lock);
  for (const pe_crew_seat *s = c->first; s; s = s->next)
    wanted |= s != seat && s->rest == PE_CREW_MORE;
  pthread_mutex_unlock(&c->lock);
  return wanted;
}

void pe_crew_leave(pe_crew_seat *seat) {
  pe_crew *c = seat->crew;
  if (!c) return;
  pthread_mutex_lock(&c->lock);
  unlink_seat(c, seat);
  while (c->at_work == seat) pthread_cond_wait(&c->turn_over, &c->lock);
  pthread_mutex_unlock(&c->lock);
  seat->crew = NULL;
}

/* ---- life ---------------------------------------------------------------------------------- */

pe_status pe_crew_open(int threads, pe_crew **out, pe_error *err) {
  pe_crew *c = pe_calloc(1, sizeof *c);
  if (!c) return pe_nomem(err, "crew");
  pe_status rc = pe_pool_open(threads, false, &c->pool, err);
  if (rc) {
    pe_free(c);
    return rc;
  }
  c->shares = 1;
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->called, NULL);
  pthread_cond_init(&c->turn_over, NULL);
  *out = c;
  return PE_OK;
}

pe_crew *pe_crew_retain(pe_crew *c) {
  pthread_mutex_lock(&c->lock);
  c->shares++;
  pthread_mutex_unlock(&c->lock);
  return c;
}

void pe_crew_release(pe_crew *c) {
  if (!c) return;
  pthread_mutex_lock(&c->lock);
  bool last = --c->shares == 0;
  c->stop = last;
  pthread_cond_signal(&c->called);
  pthread_mutex_unlock(&c->lock);
  if (!last) return;
  if (c->started) pthread_join(c->thread, NULL);
  pe_pool_close(c->pool);
  pthread_cond_destroy(&c->turn_over);
  pthread_cond_destroy(&c->called);
  pthread_mutex_destroy(&c->lock);
  pe_free(c);
}

pe_pool *pe_crew_pool(const pe_crew *c) { return c->pool; }
