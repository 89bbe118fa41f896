/* worker.c - see worker.h.
 *
 * The engine thread owns the batch; everything else in pe_worker is under the lock. It looks into the batch (batch_row.h)
 * for two things only: the next row id, so that ids can be given before a request reaches the batch, and the checks and
 * copies of requests, which read what never changes. */
#include "runtime/worker.h"

#include "runtime/batch_row.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

typedef enum command_kind { ADD, CANCEL, PREEMPT, FORCE, BIAS, TRIM, FORK } command_kind;

typedef struct command {
  command_kind kind;
  pe_row_id row, first; /* what it is about; the ids it was promised */
  pe_row_request *request;
  int32_t *id;
  pe_logit_bias *bias;
  int32_t count;
  uint64_t seed;
  int64_t at_ns;
} command;

typedef struct chunk { /* the events of one step */
  struct chunk *next;
  pe_worker_events events;
} chunk;

struct pe_worker {
  pe_batch *batch; /* the engine thread's */
  pe_worker_wake *wake;
  void *ctx;
  pthread_t thread;
  bool running; /* there is a thread to join */
  int32_t published; /* events of the batch that were copied; the engine thread's */
  pe_row_info *seen; /* rows on their way into the view; the engine thread's */
  size_t seen_cap;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool stop, working, has_step;
  command *queue;
  size_t queued, queue_cap;
  pe_grant *grant;
  size_t grant_cap;
  int32_t grant_count;
  pe_row_id next;
  chunk *first, **last;
  int32_t undrained;
  pe_error failure; /* of a step, or code 0 */
  pe_row_info *view;
  size_t view_count, view_cap;
  pe_batch_stats stats;
  int64_t free_tokens, all_tokens;
  pe_trace trace[PE_TRACE_STEPS];
  uint64_t traced, completed;
};

/* ---- commands ------------------------------------------------------------------------------------------------ */

static void free_command(command *c) {
  pe_row_request_release(c->request);
  pe_free(c->id);
  pe_free(c->bias);
}

static int32_t new_rows(const command *c) { return c->kind == ADD ? c->count : c->kind == FORK; }

/* The rows that a queued command will make: those of a request as they will be, a fork as its parent is. */
static void show_added(pe_worker *w, const command *c) {
  for (size_t i = 0; c->kind == FORK && i < w->view_count; i++) {
    if (w->view[i].row != c->row) continue;
    w->view[w->view_count] = w->view[i];
    w->view[w->view_count++].row = c->first;
    return;
  }
  for (int32_t i = 0; c->kind == ADD && i < c->count; i++) {
    int32_t prompt = c->request->r.prompt.count;
    w->view[w->view_count++] = (pe_row_info){.row = c->first + i, .state = PE_ROW_WAITING, .prompt = prompt, .left = i ? 0 : prompt,
                                             .choice = i, .follows = i > 0, .age_ns = pe_clock_ns() - c->at_ns};
  }
}

/* Queues a command (takes what it holds, also when it fails). Rows of an ADD get their ids. */
static pe_status push(pe_worker *w, command *c, pe_error *err) {
  pe_status rc = PE_OK;
  c->at_ns = pe_clock_ns();
  pthread_mutex_lock(&w->lock);
  if (w->stop) rc = pe_fail(err, PE_ECANCEL, "the engine thread has ended");
  else if (w->queued >= PE_WORKER_QUEUE)
    rc = pe_fail(err, PE_ELIMIT, "%zu commands wait for the engine, at most %d may", w->queued, PE_WORKER_QUEUE);
  if (!rc) rc = pe_grow(&w->queue, &w->queue_cap, w->queued + 1, sizeof *w->queue, err);
  if (!rc) rc = pe_grow(&w->view, &w->view_cap, w->view_count + (size_t)new_rows(c) + 1, sizeof *w->view, err);
  if (!rc) {
    c->first = w->next;
    w->next += new_rows(c);
    show_added(w, c);
    w->queue[w->queued++] = *c;
    pthread_cond_signal(&w->changed);
  }
  pthread_mutex_unlock(&w->lock);
  if (rc) free_command(c);
  return rc;
}

pe_status pe_worker_add(pe_worker *w, const pe_request *r, pe_row_id *first, pe_error *err) {
  int32_t limit;
  command c = {.kind = ADD, .count = r->n > 0 ? r->n : 1};
  pe_status rc = pe_row_request_check(w->batch, r, &limit, err);
  if (!rc) rc = pe_row_request_copy(r, &c.request, err);
  if (rc) return rc;
  size_t bytes = (size_t)r->prompt.count * sizeof *r->prompt.id;
  c.request->r.prompt = (pe_ids_view){(const int32_t *)(const void *)pe_arena_dup(&c.request->arena, r->prompt.id, bytes), r->prompt.count};
  if (!c.request->r.prompt.id) return free_command(&c), pe_nomem(err, "prompt");
  if (!(rc = push(w, &c, err))) *first = c.first;
  return rc;
}

pe_status pe_worker_cancel(pe_worker *w, pe_row_id row, pe_error *err) { return push(w, &(command){.kind = CANCEL, .row = row}, err); }
pe_status pe_worker_preempt(pe_worker *w, pe_row_id row, pe_error *err) { return push(w, &(command){.kind = PREEMPT, .row = row}, err); }

pe_status pe_worker_trim(pe_worker *w, pe_row_id row, int32_t tokens, pe_error *err) {
  return push(w, &(command){.kind = TRIM, .row = row, .count = tokens}, err);
}

pe_status pe_worker_fork(pe_worker *w, pe_row_id row, uint64_t seed, pe_row_id *out, pe_error *err) {
  command c = {.kind = FORK, .row = row, .seed = seed};
  pe_status rc = push(w, &c, err);
  if (!rc) *out = c.first;
  return rc;
}

static pe_status copy_list(const void *from, int32_t count, size_t size, void *out, pe_error *err) {
  if (count < 0) return pe_fail(err, PE_EARG, "a list of %d entries", count);
  void *p = pe_calloc((size_t)count + 1, size);
  if (!p) return pe_nomem(err, "command to the engine");
  if (count) memcpy(p, from, (size_t)count * size);
  *(void **)out = p;
  return PE_OK;
}

pe_status pe_worker_force(pe_worker *w, pe_row_id row, const int32_t *id, int32_t count, pe_error *err) {
  command c = {.kind = FORCE, .row = row, .count = count};
  pe_status rc = copy_list(id, count, sizeof *id, &c.id, err);
  return rc ? rc : push(w, &c, err);
}

pe_status pe_worker_bias(pe_worker *w, pe_row_id row, const pe_logit_bias *bias, int32_t count, pe_error *err) {
  command c = {.kind = BIAS, .row = row, .count = count};
  pe_status rc = copy_list(bias, count, sizeof *bias, &c.bias, err);
  return rc ? rc : push(w, &c, err);
}

pe_status pe_worker_step(pe_worker *w, const pe_grant *grants, int32_t count, pe_error *err) {
  pe_status rc = PE_OK;
  if (count < 0) return pe_fail(err, PE_EARG, "a step with %d grants", count);
  pthread_mutex_lock(&w->lock);
  if (w->stop) rc = pe_fail(err, PE_ECANCEL, "the engine thread has ended");
  else if (w->has_step) rc = pe_fail(err, PE_ELIMIT, "a step waits already, at most 1 may");
  else if (w->undrained > PE_WORKER_EVENTS)
    rc = pe_fail(err, PE_ELIMIT, "%d events wait to be drained, at most %d may", w->undrained, PE_WORKER_EVENTS);
  if (!rc) rc = pe_grow(&w->grant, &w->grant_cap, (size_t)count + 1, sizeof *w->grant, err);
  if (!rc) {
    if (count) memcpy(w->grant, grants, (size_t)count * sizeof *grants);
    w->grant_count = count, w->has_step = true;
    pthread_cond_signal(&w->changed);
  }
  pthread_mutex_unlock(&w->lock);
  return rc;
}

/* ---- events, out of the batch -------------------------------------------------------------------------------- */

static pe_status copy_event(pe_worker_events *to, const pe_event *e) {
  pe_event *copy = &to->event[to->count];
  *copy = *e;
  copy->text.at = pe_arena_dup(&to->text, e->text.at ? e->text.at : "", e->text.len);
  if (e->error) copy->error = pe_arena_dup(&to->text, e->error, strlen(e->error));
  if (!copy->text.at || (e->error && !copy->error)) return PE_ENOMEM;
  to->count++;
  return PE_OK;
}

static void free_chunk(chunk *c) {
  if (!c) return;
  pe_worker_free_events(&c->events);
  pe_free(c);
}

/* Copies n events; NULL: out of memory. */
static chunk *copy_events(const pe_event *event, int32_t n) {
  chunk *c = pe_calloc(1, sizeof *c);
  if (!c || !(c->events.event = pe_calloc((size_t)n, sizeof *event))) return free_chunk(c), NULL;
  for (int32_t i = 0; i < n; i++)
    if (copy_event(&c->events, &event[i])) return free_chunk(c), NULL;
  return c;
}

/* Events are never lost: when there is no memory for the copy, the engine waits for some. */
static chunk *copy_events_surely(const pe_event *event, int32_t n) {
  chunk *c;
  while (!(c = copy_events(event, n))) nanosleep(&(struct timespec){0, 10 * 1000000}, NULL);
  return c;
}

static void enqueue(pe_worker *w, chunk *c) { /* under the lock */
  *w->last = c;
  w->last = &c->next;
  w->undrained += c->events.count;
}

/* An event of the worker itself: a command that failed. */
static void tell(pe_worker *w, pe_row_id row, pe_finish finish, const pe_error *why) {
  pe_event e = {.row = row, .finish = finish, .stop_index = -1, .error = why->text};
  chunk *c = copy_events_surely(&e, 1);
  pthread_mutex_lock(&w->lock);
  enqueue(w, c);
  pthread_mutex_unlock(&w->lock);
}

/* What the batch says that was not copied yet. */
static void publish_events(pe_worker *w) {
  const pe_event *event;
  int32_t n = pe_batch_events(w->batch, &event);
  if (n <= w->published) return;
  chunk *c = copy_events_surely(event + w->published, n - w->published);
  w->published = n;
  pthread_mutex_lock(&w->lock);
  enqueue(w, c);
  pthread_mutex_unlock(&w->lock);
}

/* The rows of the batch, and those that wait in the queue. When memory is out the old view stays. */
static void publish_view(pe_worker *w, bool step) {
  size_t n = (size_t)pe_batch_rows(w->batch, NULL, 0);
  bool ok = !pe_grow(&w->seen, &w->seen_cap, n + 1, sizeof *w->seen, NULL);
  if (ok) pe_batch_rows(w->batch, w->seen, (int32_t)n);
  pe_batch_stats stats;
  pe_batch_stat(w->batch, &stats);
  pthread_mutex_lock(&w->lock);
  size_t more = 0;
  for (size_t i = 0; i < w->queued; i++) more += (size_t)new_rows(&w->queue[i]);
  if (ok && !pe_grow(&w->view, &w->view_cap, n + more + 1, sizeof *w->view, NULL)) {
    memcpy(w->view, w->seen, n * sizeof *w->view);
    w->view_count = n;
    for (size_t i = 0; i < w->queued; i++) show_added(w, &w->queue[i]);
  }
  w->stats = stats;
  w->completed += step;
  pe_batch_room(w->batch, &w->free_tokens, &w->all_tokens);
  pthread_mutex_unlock(&w->lock);
}

/* ---- the engine thread --------------------------------------------------------------------------------------- */

/* Row ids were promised when the command was queued; those of an earlier one that failed are not used again. */
static void apply_new(pe_worker *w, command *c) {
  pe_error err = {0};
  pe_row_id got;
  w->batch->next = c->first;
  pe_status rc = c->kind == ADD ? pe_batch_add(w->batch, &c->request->r, &got, &err) : pe_batch_fork(w->batch, c->row, c->seed, &got, &err);
  if (!rc) return;
  for (int32_t i = 0; i < new_rows(c); i++) tell(w, c->first + i, PE_FINISH_ERROR, &err);
}

static void apply(pe_worker *w, command *c) {
  pe_error err = {0};
  pe_status rc = PE_OK;
  pe_row_info info;
  if (c->kind == ADD || c->kind == FORK) {
    apply_new(w, c);
    return;
  }
  if (!pe_batch_info(w->batch, c->row, &info) || info.state == PE_ROW_DONE) return;
  switch (c->kind) {
    case CANCEL: pe_batch_cancel(w->batch, c->row); break;
    case PREEMPT: pe_batch_preempt(w->batch, c->row); break;
    case FORCE: rc = pe_batch_force(w->batch, c->row, c->id, c->count, &err); break;
    case BIAS: rc = pe_batch_bias(w->batch, c->row, c->bias, c->count, &err); break;
    default: rc = pe_batch_trim(w->batch, c->row, c->count, &err); break;
  }
  if (rc) tell(w, c->row, PE_FINISH_NONE, &err);
}

static void run_step(pe_worker *w, const pe_grant *grants, int32_t count) {
  pe_error err = {0};
  int32_t ran;
  pe_trace trace;
  w->published = 0;
  pe_status rc = pe_batch_step(w->batch, grants, count, &ran, &err);
  bool traced = !rc && ran > 0 && pe_batch_trace(w->batch, &trace, 1) > 0;
  pthread_mutex_lock(&w->lock);
  if (rc && !w->failure.code) w->failure = err;
  if (traced) w->trace[w->traced++ % PE_TRACE_STEPS] = trace;
  pthread_mutex_unlock(&w->lock);
}

/* Takes what waits, runs it without the lock, publishes. `step`: a step is among it. */
static void work(pe_worker *w, bool step) {
  command *queue = w->queue;
  size_t queued = w->queued;
  pe_grant *grant = w->grant;
  int32_t grants = w->grant_count;
  w->queue = NULL, w->queued = w->queue_cap = 0;
  if (step) w->grant = NULL, w->grant_cap = 0, w->has_step = false;
  w->working = true;
  pthread_mutex_unlock(&w->lock);
  for (size_t i = 0; i < queued; i++) {
    apply(w, &queue[i]);
    free_command(&queue[i]);
  }
  pe_free(queue);
  publish_events(w); /* of cancels: the step begins a new list */
  if (step) {
    run_step(w, grant, grants);
    pe_free(grant);
    publish_events(w);
  }
  publish_view(w, step);
  pthread_mutex_lock(&w->lock);
  w->working = false;
  pthread_mutex_unlock(&w->lock);
  w->wake(w->ctx);
  pthread_mutex_lock(&w->lock);
}

static void *engine(void *arg) {
  pe_worker *w = arg;
  pthread_mutex_lock(&w->lock);
  while (!w->stop || w->queued) {
    if (!w->queued && !w->has_step) pthread_cond_wait(&w->changed, &w->lock);
    else work(w, w->has_step && !w->stop);
  }
  w->has_step = false;
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

static int start_thread(pe_worker *w) { /* signals are the loop thread's */
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = pthread_create(&w->thread, NULL, engine, w);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return rc;
}

pe_status pe_worker_open(pe_batch *batch, pe_worker_wake *wake, void *ctx, pe_worker **out, pe_error *err) {
  *out = NULL;
  pe_worker *w = pe_calloc(1, sizeof *w);
  if (!w) return pe_batch_close(batch), pe_nomem(err, "engine thread");
  *w = (pe_worker){.batch = batch, .wake = wake, .ctx = ctx, .next = batch->next};
  w->last = &w->first;
  const pe_event *event;
  w->published = pe_batch_events(batch, &event); /* those of the foreground were its own */
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->changed, NULL);
  publish_view(w, false);
  int rc = start_thread(w);
  if (rc) return pe_worker_close(w), pe_fail(err, PE_EIO, "engine thread: %s", strerror(rc));
  w->running = true;
  *out = w;
  return PE_OK;
}

void pe_worker_halt(pe_worker *w) {
  pthread_mutex_lock(&w->lock);
  w->stop = true;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
  if (w->running) pthread_join(w->thread, NULL);
  w->running = false;
}

pe_batch *pe_worker_release(pe_worker *w) {
  pe_worker_halt(w);
  pe_batch *batch = w->batch;
  batch->next = w->next > batch->next ? w->next : batch->next;
  for (chunk *c = w->first, *next; c; c = next) next = c->next, free_chunk(c);
  pe_free(w->queue);
  pe_free(w->grant);
  pe_free(w->view);
  pe_free(w->seen);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  pe_free(w);
  return batch;
}

void pe_worker_close(pe_worker *w) {
  if (w) pe_batch_close(pe_worker_release(w));
}

/* ---- looking ------------------------------------------------------------------------------------------------- */

bool pe_worker_pending(pe_worker *w) {
  pthread_mutex_lock(&w->lock);
  bool pending = w->has_step;
  pthread_mutex_unlock(&w->lock);
  return pending;
}

uint64_t pe_worker_completed(pe_worker *w) {
  pthread_mutex_lock(&w->lock);
  uint64_t completed = w->completed;
  pthread_mutex_unlock(&w->lock);
  return completed;
}

bool pe_worker_busy(pe_worker *w) {
  pthread_mutex_lock(&w->lock);
  bool busy = w->working || w->has_step || w->queued;
  pthread_mutex_unlock(&w->lock);
  return busy;
}

void pe_worker_free_events(pe_worker_events *e) {
  pe_free(e->event);
  pe_arena_free(&e->text);
  *e = (pe_worker_events){0};
}

static pe_status join(chunk *list, int32_t count, pe_worker_events *out, pe_error *err) {
  out->event = pe_calloc((size_t)count, sizeof *out->event);
  if (!out->event) return pe_nomem(err, "events");
  for (chunk *c = list; c; c = c->next)
    for (int32_t i = 0; i < c->events.count; i++)
      if (copy_event(out, &c->events.event[i])) return pe_worker_free_events(out), pe_nomem(err, "events");
  return PE_OK;
}

pe_status pe_worker_drain(pe_worker *w, pe_worker_events *out, pe_error *err) {
  *out = (pe_worker_events){0};
  pthread_mutex_lock(&w->lock);
  chunk *list = w->first;
  int32_t count = w->undrained;
  pe_error failure = w->failure;
  w->first = NULL, w->last = &w->first, w->undrained = 0;
  w->failure = (pe_error){0};
  pthread_mutex_unlock(&w->lock);
  if (list && !list->next) *out = list->events, list->events = (pe_worker_events){0};
  else if (list && join(list, count, out, err)) { /* back to the front of the queue: nothing is lost */
    chunk **tail = &list;
    while (*tail) tail = &(*tail)->next;
    pthread_mutex_lock(&w->lock);
    *tail = w->first;
    if (!w->first) w->last = tail;
    w->first = list, w->undrained += count;
    if (!w->failure.code) w->failure = failure;
    pthread_mutex_unlock(&w->lock);
    return PE_ENOMEM;
  }
  for (chunk *next; list; list = next) next = list->next, free_chunk(list);
  return failure.code ? pe_fail(err, failure.code, "%s", failure.text) : PE_OK;
}

int32_t pe_worker_rows(pe_worker *w, pe_row_info *out, int32_t most) {
  pthread_mutex_lock(&w->lock);
  int32_t n = (int32_t)w->view_count, copied = n < most ? n : most;
  if (copied > 0) memcpy(out, w->view, (size_t)copied * sizeof *out);
  pthread_mutex_unlock(&w->lock);
  return n;
}

void pe_worker_stat(pe_worker *w, pe_batch_stats *out) {
  pthread_mutex_lock(&w->lock);
  *out = w->stats;
  pthread_mutex_unlock(&w->lock);
}

void pe_worker_room(pe_worker *w, int64_t *free_tokens, int64_t *all_tokens) {
  pthread_mutex_lock(&w->lock);
  *free_tokens = w->free_tokens, *all_tokens = w->all_tokens;
  pthread_mutex_unlock(&w->lock);
}

int32_t pe_worker_trace(pe_worker *w, pe_trace *out, int32_t most) {
  pthread_mutex_lock(&w->lock);
  uint64_t n = w->traced < PE_TRACE_STEPS ? w->traced : PE_TRACE_STEPS;
  if (n > (uint64_t)(most > 0 ? most : 0)) n = (uint64_t)(most > 0 ? most : 0);
  for (uint64_t i = 0; i < n; i++) out[i] = w->trace[(w->traced - n + i) % PE_TRACE_STEPS];
  pthread_mutex_unlock(&w->lock);
  return (int32_t)n;
}
