/* tower_queue.c - see tower_queue.h. */
#include "runtime/batch/tower_queue.h"

#include <pthread.h>
#include <string.h>

typedef pe_tower_job job;

struct pe_tower_queue {
  pe_tower *tower; /* the engine thread's, like the next one */
  bool begun;      /* the tower works on the first job */
  size_t results;
  pe_crew *crew; /* a share */
  pe_crew_seat seat;
  pe_tower_wake *wake;
  void *ctx;
  pthread_mutex_t lock; /* of everything below */
  job *first, **last;   /* queued; the first one may be running */
  int32_t queued;
  job *done, **done_last;
  uint64_t tickets;
};

void pe_tower_job_free(job *j) {
  if (!j) return;
  for (size_t i = 0; j->result && i < j->results; i++) pe_buffer_release(j->result[i].data);
  for (int32_t i = 0; j->buffer && i < j->pictures; i++) pe_buffer_release(j->buffer[i]);
  pe_free(j->result), pe_free(j->buffer), pe_free(j->picture);
  pe_free(j);
}

static void free_list(job *list) {
  for (job *next; list; list = next) {
    next = list->next;
    pe_tower_job_free(list);
  }
}

/* ---- on the engine thread ------------------------------------------------------------------ */

/* Works on a job; true: it is finished, well or not. */
static bool work(pe_tower_queue *q, job *j, bool cancelled) {
  int64_t start = pe_clock_ns();
  pe_status rc = PE_OK;
  bool done = false;
  if (cancelled) rc = pe_fail(&j->error, PE_ECANCEL, "the request was cancelled");
  if (!rc && !q->begun) rc = pe_tower_begin(q->tower, j->picture, j->pictures, &j->error);
  if (!rc) rc = pe_tower_proceed(q->tower, start + PE_TOWER_TURN_NS, &done, &j->error);
  for (size_t i = 0; !rc && done && i < j->results; i++) j->result[i] = pe_tower_take(q->tower, i);
  q->begun = !rc && !done;
  j->busy_ns += pe_clock_ns() - start;
  return rc || done;
}

static pe_crew_rest turn(void *ctx) {
  pe_tower_queue *q = ctx;
  pthread_mutex_lock(&q->lock);
  job *j = q->first;
  bool cancelled = j && j->cancelled;
  pthread_mutex_unlock(&q->lock);
  if (!j) return PE_CREW_NONE;
  bool finished = work(q, j, cancelled);
  pthread_mutex_lock(&q->lock);
  if (finished) {
    if (!(q->first = j->next)) q->last = &q->first;
    q->queued--;
    j->next = NULL, *q->done_last = j, q->done_last = &j->next;
  }
  bool more = q->first != NULL;
  pthread_mutex_unlock(&q->lock);
  if (!more) pe_tower_rest(q->tower);
  if (finished) q->wake(q->ctx);
  return more ? PE_CREW_MORE : PE_CREW_NONE;
}

/* ---- on the loop thread -------------------------------------------------------------------- */

pe_status pe_tower_queue_open(pe_crew *crew, pe_tower *tower, size_t results, pe_tower_wake *wake,
                              void *ctx, pe_tower_queue **out, pe_error *err) {
  pe_tower_queue *q = pe_calloc(1, sizeof *q);
  if (!q) return pe_nomem(err, "tower queue");
  q->tower = tower, q->results = results, q->wake = wake, q->ctx = ctx;
  q->last = &q->first, q->done_last = &q->done;
  pthread_mutex_init(&q->lock, NULL);
  pe_status rc = pe_crew_join(crew, &q->seat, turn, q, err);
  if (rc) {
    pthread_mutex_destroy(&q->lock);
    pe_free(q);
    return rc;
  }
  q->crew = pe_crew_retain(crew);
  *out = q;
  return PE_OK;
}

void pe_tower_queue_close(pe_tower_queue *q) {
  if (!q) return;
  pe_crew_leave(&q->seat);
  free_list(q->first), free_list(q->done);
  pe_crew_release(q->crew);
  pthread_mutex_destroy(&q->lock);
  pe_free(q);
}

static job *new_job(const pe_tower_queue *q, const pe_picture *list, pe_buffer *const *buffer,
                    int32_t count) {
  job *j = pe_calloc(1, sizeof *j);
  if (!j) return NULL;
  j->results = q->results;
  j->result = pe_calloc(j->results, sizeof *j->result);
  j->picture = pe_calloc((size_t)count + 1, sizeof *j->picture);
  j->buffer = pe_calloc((size_t)count + 1, sizeof(pe_buffer *));
  if (!j->result || !j->picture || !j->buffer) {
    pe_tower_job_free(j);
    return NULL;
  }
  for (; j->pictures < count; j->pictures++) {
    j->picture[j->pictures] = list[j->pictures];
    j->buffer[j->pictures] = pe_buffer_retain(buffer[j->pictures]);
  }
  return j;
}

pe_status pe_tower_queue_push(pe_tower_queue *q, const pe_picture *list, pe_buffer *const *buffer,
                              int32_t count, uint64_t *ticket, pe_error *err) {
  job *j = new_job(q, list, buffer, count);
  if (!j) return pe_nomem(err, "pictures");
  pe_status rc = PE_OK;
  pthread_mutex_lock(&q->lock);
  if (q->queued >= PE_TOWER_QUEUED) {
    rc = pe_fail(err, PE_ELIMIT, "queue is full: %d requests wait for the vision tower, limit %d",
                 q->queued, PE_TOWER_QUEUED);
  } else {
    *ticket = j->ticket = ++q->tickets;
    *q->last = j, q->last = &j->next;
    q->queued++;
    pe_crew_call(&q->seat);
  }
  pthread_mutex_unlock(&q->lock);
  if (rc) pe_tower_job_free(j);
  return rc;
}

void pe_tower_queue_cancel(pe_tower_queue *q, uint64_t ticket) {
  pthread_mutex_lock(&q->lock);
  for (job *j = q->first; j; j = j->next)
    if (j->ticket == ticket) j->cancelled = true;
  pthread_mutex_unlock(&q->lock);
}

job *pe_tower_queue_drain(pe_tower_queue *q) {
  pthread_mutex_lock(&q->lock);
  job *list = q->done;
  q->done = NULL, q->done_last = &q->done;
  pthread_mutex_unlock(&q->lock);
  return list;
}
