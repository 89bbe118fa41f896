/* worker.c - see worker.h: turns on the engine thread, events and what is published. */
#include "runtime/batch/worker_parts.h"

#include <string.h>
#include <time.h>

typedef pe_worker_chunk chunk;

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

void pe_worker_tell(pe_worker *w, const pe_event *e) {
  chunk *c = copy_events_surely(e, 1);
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

/* ---- logits, out of the batch -------------------------------------------------------------------------------- */

static pe_worker_kept *kept_of(const pe_worker *w, pe_seq_id row) {
  for (size_t i = 0; i < w->kept_count; i++)
    if (w->kept[i].row == row) return &w->kept[i];
  return NULL;
}

/* Swaps the spare copy with the one that is shown. */
static void show_logits(pe_worker *w, pe_seq_id row) { /* under the lock */
  pe_worker_kept *k = kept_of(w, row);
  if (!k && pe_grow(&w->kept, &w->kept_cap, w->kept_count + 1, sizeof *w->kept, NULL))
    return; /* no memory: none are shown */
  if (!k) *(k = &w->kept[w->kept_count++]) = (pe_worker_kept){.row = row};
  float *old = k->logits;
  k->logits = w->spare, w->spare = old;
}

/* Forgets those of rows that are gone, or do not keep them any more. */
static void forget_logits(pe_worker *w) {
  size_t n = 0;
  pthread_mutex_lock(&w->lock);
  for (size_t i = 0; i < w->kept_count; i++) {
    if (pe_batch_logits(w->batch, w->kept[i].row))
      w->kept[n++] = w->kept[i];
    else
      pe_free(w->kept[i].logits);
  }
  w->kept_count = n;
  pthread_mutex_unlock(&w->lock);
}

/* Before the events: whoever hears of a row finds its logits. */
static void publish_logits(pe_worker *w) {
  pe_batch *b = w->batch;
  size_t bytes = (size_t)b->plan->vocabulary * sizeof(float);
  forget_logits(w);
  for (size_t i = 0; i < b->row_count; i++) {
    pe_batch_seq *r = b->row[i];
    if (!r->has_kept || !r->news || (!w->spare && !(w->spare = pe_alloc(bytes)))) continue;
    memcpy(w->spare, r->kept, bytes);
    r->news = false;
    pthread_mutex_lock(&w->lock);
    show_logits(w, r->id);
    pthread_mutex_unlock(&w->lock);
  }
}

/* ---- the view ------------------------------------------------------------------------------------------------ */

/* The rows of the batch, and those that wait in the queue. When memory is out the old view stays. */
static void publish_view(pe_worker *w, bool step) {
  size_t n = (size_t)pe_batch_rows(w->batch, NULL, 0);
  bool ok = !pe_grow(&w->seen, &w->seen_cap, n + 1, sizeof *w->seen, NULL);
  if (ok) pe_batch_rows(w->batch, w->seen, (int32_t)n);
  pe_batch_stats stats;
  pe_batch_stat(w->batch, &stats);
  pthread_mutex_lock(&w->lock);
  size_t more = 0;
  for (size_t i = 0; i < w->queued; i++) more += (size_t)pe_worker_new_rows(&w->queue[i]);
  if (ok && !pe_grow(&w->view, &w->view_cap, n + more + 1, sizeof *w->view, NULL)) {
    memcpy(w->view, w->seen, n * sizeof *w->view);
    w->view_count = n;
    for (size_t i = 0; i < w->queued; i++) pe_worker_show(w, &w->queue[i]);
  }
  w->stats = stats;
  w->completed += step;
  pe_batch_room(w->batch, &w->free_tokens, &w->all_tokens);
  pthread_mutex_unlock(&w->lock);
}

/* ---- turns on the engine thread ------------------------------------------------------------------------------ */

pe_status pe_worker_step(pe_worker *w, const pe_grant *grants, int32_t count, pe_error *err) {
  pe_status rc = PE_OK;
  if (count < 0) return pe_fail(err, PE_EARG, "a step with %d grants", count);
  pthread_mutex_lock(&w->lock);
  if (w->stop)
    rc = pe_fail(err, PE_ECANCEL, "the engine thread has ended");
  else if (w->has_step)
    rc = pe_fail(err, PE_ELIMIT, "a step waits already, at most 1 may");
  else if (w->undrained > PE_WORKER_EVENTS)
    rc = pe_fail(err, PE_ELIMIT, "%d events wait to be drained, at most %d may", w->undrained,
                 PE_WORKER_EVENTS);
  if (!rc) rc = pe_grow(&w->grant, &w->grant_cap, (size_t)count + 1, sizeof *w->grant, err);
  if (!rc) {
    if (count) memcpy(w->grant, grants, (size_t)count * sizeof *grants);
    w->grant_count = count, w->has_step = true;
    pe_crew_call(&w->seat);
  }
  pthread_mutex_unlock(&w->lock);
  return rc;
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

static void apply_all(pe_worker *w, pe_worker_command *queue, size_t queued) {
  for (size_t i = 0; i < queued; i++) {
    pe_worker_apply(w, &queue[i]);
    pe_worker_free_command(&queue[i]);
  }
  pe_free(queue);
  publish_logits(w);
  publish_events(w); /* of cancels and draws: the step begins a new list */
}

static bool undrained(pe_worker *w) {
  pthread_mutex_lock(&w->lock);
  bool some = w->undrained > 0;
  pthread_mutex_unlock(&w->lock);
  return some;
}

/* Takes what waits, runs it without the lock, publishes; called and left with the lock. `step`: a step is among it. */
static void work(pe_worker *w, bool step) {
  pe_worker_command *queue = w->queue;
  size_t queued = w->queued;
  pe_grant *grant = w->grant;
  int32_t grants = w->grant_count;
  w->queue = NULL, w->queued = w->queue_cap = 0;
  if (step) w->grant = NULL, w->grant_cap = 0, w->has_step = false;
  w->working = true;
  pthread_mutex_unlock(&w->lock);
  apply_all(w, queue, queued);
  if (step) {
    if (undrained(w)) w->wake(w->ctx); /* nobody waits for a step to hear what came before it */
    run_step(w, grant, grants);
    pe_free(grant);
    publish_logits(w);
    publish_events(w);
  }
  publish_view(w, step);
  pthread_mutex_lock(&w->lock);
  w->working = false;
  pthread_mutex_unlock(&w->lock);
  w->wake(w->ctx);
  pthread_mutex_lock(&w->lock);
}

static bool has_work(const pe_worker *w) {
  return w->queued || (w->has_step && !w->stop);
} /* under the lock */

/* Between two answers, never between two tokens: a file takes longer than the way to the loop and back. */
static bool idle(pe_worker *w) {
  if (w->batch->running || !pe_batch_idle(w->batch)) return false;
  publish_view(w, false);
  return true;
}

static pe_crew_rest turn(void *ctx) {
  pe_worker *w = ctx;
  pthread_mutex_lock(&w->lock);
  bool worked = has_work(w);
  if (worked) work(w, w->has_step && !w->stop);
  bool more = has_work(w);
  pthread_mutex_unlock(&w->lock);
  return more ? PE_CREW_MORE : worked || idle(w) ? PE_CREW_SPARE : PE_CREW_NONE;
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

pe_status pe_worker_open(pe_crew *crew, pe_batch *batch, pe_worker_wake *wake, void *ctx,
                         pe_worker **out, pe_error *err) {
  *out = NULL;
  pe_worker *w = pe_calloc(1, sizeof *w);
  if (!w) return pe_batch_close(batch), pe_nomem(err, "worker");
  *w = (pe_worker){
      .batch = batch, .crew = pe_crew_retain(crew), .wake = wake, .ctx = ctx, .next = batch->next};
  w->last = &w->first;
  const pe_event *event;
  w->published = pe_batch_events(batch, &event); /* those of the foreground were its own */
  for (size_t i = 0; i < batch->row_count; i++) batch->row[i]->news = batch->row[i]->has_kept;
  pthread_mutex_init(&w->lock, NULL);
  publish_logits(w);
  publish_view(w, false);
  pe_status rc = pe_crew_join(crew, &w->seat, turn, w, err);
  if (rc)
    pe_worker_close(w);
  else
    *out = w;
  return rc;
}

void pe_worker_halt(pe_worker *w) {
  pthread_mutex_lock(&w->lock);
  w->stop = true;
  pthread_mutex_unlock(&w->lock);
  pe_crew_leave(&w->seat);
  pthread_mutex_lock(&w->lock); /* the batch is this thread's now */
  if (w->queued) work(w, false);
  w->has_step = false;
  pthread_mutex_unlock(&w->lock);
}

pe_batch *pe_worker_detach(pe_worker *w) {
  pe_worker_halt(w);
  pe_batch *batch = w->batch;
  batch->next = w->next > batch->next ? w->next : batch->next;
  for (chunk *c = w->first, *next; c; c = next) next = c->next, free_chunk(c);
  for (size_t i = 0; i < w->kept_count; i++) pe_free(w->kept[i].logits);
  pe_free(w->kept);
  pe_free(w->spare);
  pe_free(w->queue);
  pe_free(w->grant);
  pe_free(w->view);
  pe_free(w->seen);
  pthread_mutex_destroy(&w->lock);
  pe_crew_release(w->crew);
  pe_free(w);
  return batch;
}

void pe_worker_close(pe_worker *w) {
  if (w) pe_batch_close(pe_worker_detach(w));
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
      if (copy_event(out, &c->events.event[i]))
        return pe_worker_free_events(out), pe_nomem(err, "events");
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
  if (list && !list->next)
    *out = list->events, list->events = (pe_worker_events){0};
  else if (list &&
           join(list, count, out, err)) { /* back to the front of the queue: nothing is lost */
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

int32_t pe_worker_rows(pe_worker *w, pe_seq_info *out, int32_t most) {
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

bool pe_worker_logits(pe_worker *w, pe_seq_id row, float *out) {
  pthread_mutex_lock(&w->lock);
  const pe_worker_kept *k = kept_of(w, row);
  if (k) memcpy(out, k->logits, (size_t)w->batch->plan->vocabulary * sizeof *out);
  pthread_mutex_unlock(&w->lock);
  return k != NULL;
}
