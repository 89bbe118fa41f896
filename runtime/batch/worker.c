/* worker.c - see worker.h: turns on the engine thread, and what they publish. */
#include "runtime/batch/worker_parts.h"

#include <string.h>

/* ---- publishing ---------------------------------------------------------------------------- */

/* Copies the events of the batch that were not copied yet to *out; NULL: there are none. False: no
 * memory; they stay in the batch. */
static bool take_events(pe_worker *w, pe_worker_chunk **out) {
  const pe_event *event;
  int32_t n = pe_batch_events(w->batch, &event);
  bool blocked = false;
  *out = NULL;
  if (n > w->published) {
    *out = pe_worker_chunk_copy(event + w->published, n - w->published);
    blocked = !*out;
    if (!blocked) w->published = n;
  }
  pthread_mutex_lock(&w->lock);
  w->blocked = blocked;
  pthread_mutex_unlock(&w->lock);
  return !blocked;
}

static pe_worker_kept *kept_of(const pe_worker *w, pe_seq_id id) {
  for (size_t i = 0; i < w->kept_count; i++)
    if (w->kept[i].seq == id) return &w->kept[i];
  return NULL;
}

/* Under the lock: swaps the spare copy with the published one. Out of memory: none is published. */
static void show_logits(pe_worker *w, pe_seq_id id) {
  pe_worker_kept *k = kept_of(w, id);
  if (!k && pe_grow(&w->kept, &w->kept_cap, w->kept_count + 1, sizeof *w->kept, NULL)) return;
  if (!k) {
    k = &w->kept[w->kept_count++];
    *k = (pe_worker_kept){.seq = id};
  }
  float *old = k->logits;
  k->logits = w->spare, w->spare = old;
}

/* Drops those of sequences that are gone or no longer keep them. */
static void forget_logits(pe_worker *w) {
  size_t n = 0;
  pthread_mutex_lock(&w->lock);
  for (size_t i = 0; i < w->kept_count; i++) {
    if (pe_batch_logits(w->batch, w->kept[i].seq))
      w->kept[n++] = w->kept[i];
    else
      pe_free(w->kept[i].logits);
  }
  w->kept_count = n;
  pthread_mutex_unlock(&w->lock);
}

/* Before the events, so that the logits are there when the loop hears of them. */
static void publish_logits(pe_worker *w) {
  pe_batch *b = w->batch;
  size_t bytes = (size_t)b->plan->vocabulary * sizeof(float);
  forget_logits(w);
  for (size_t i = 0; i < b->unseen_count; i++) {
    pe_batch_seq *seq = pe_batch_find(b, b->unseen[i]);
    if (!seq || !seq->has_kept || !seq->news) continue;
    if (!w->spare && !(w->spare = pe_alloc(bytes))) return;
    memcpy(w->spare, seq->kept, bytes);
    seq->news = false;
    pthread_mutex_lock(&w->lock);
    show_logits(w, seq->id);
    pthread_mutex_unlock(&w->lock);
  }
}

/* Under the lock. Entries of sequences that are gone stay until there are many. */
static void tidy_view(pe_worker *w) {
  size_t n = 0;
  if (w->view_gone <= w->view_count / 2) return;
  for (size_t i = 0; i < w->view_count; i++)
    if (w->view[i].state != PE_SEQ_DONE) w->view[n++] = w->view[i];
  w->view_count = n, w->view_gone = 0;
}

/* What has changed since the last time, and what queued commands will change. Out of memory: the
 * old view stays, and the next time comes. */
static void publish_view(pe_worker *w) {
  pe_batch *b = w->batch;
  if (b->caching) pe_batch_peek(b);
  bool ok = !pe_grow(&w->seen, &w->seen_cap, b->unseen_count + 1, sizeof *w->seen, NULL);
  size_t n = ok ? pe_batch_see(b, w->seen) : 0;
  pe_batch_stats stats;
  int64_t free_tokens, all_tokens;
  pe_batch_stat(b, &stats);
  pe_batch_room(b, &free_tokens, &all_tokens);
  pthread_mutex_lock(&w->lock);
  for (size_t i = 0; i < n; i++) pe_worker_show_sequence(w, &w->seen[i]);
  tidy_view(w);
  for (size_t i = 0; i < w->queued; i++) pe_worker_show(w, &w->queue[i]);
  w->stats = stats;
  w->free_tokens = free_tokens, w->all_tokens = all_tokens;
  w->completed += w->unshown;
  pthread_mutex_unlock(&w->lock);
  w->unshown = false;
}

/* The logits are there already when the loop hears of these events. */
static void publish(pe_worker *w, pe_worker_chunk *events) { /* takes; NULL is fine */
  if (events) pe_worker_chunk_publish(w, events);
  publish_view(w);
  w->wake(w->ctx);
}

/* From now on the batch notes what changes; everything counts as changed. */
static pe_status watch(pe_worker *w, pe_error *err) {
  pe_batch *b = w->batch;
  b->watched = true;
  pe_status rc = pe_batch_reserve(b, 0, err);
  if (!rc) rc = pe_grow(&w->view, &w->view_cap, b->seq_count + 1, sizeof *w->view, err);
  for (size_t i = 0; !rc && i < b->seq_count; i++) {
    pe_batch_seq *seq = b->seq[i];
    seq->news = seq->has_kept;
    pe_batch_touch(b, seq);
    if (seq->state != PE_SEQ_DONE) w->view[w->view_count++] = (pe_seq_info){.id = seq->id};
  }
  b->watched = !rc;
  return rc;
}

static void unwatch(pe_batch *b) {
  for (size_t i = 0; i < b->seq_count; i++) b->seq[i]->unseen = false;
  b->watched = false, b->unseen_count = 0;
}

/* ---- turns on the engine thread ------------------------------------------------------------ */

static pe_status refuse_step(const pe_worker *w, pe_error *err) {
  if (w->stop) return pe_fail(err, PE_ECANCEL, "the engine thread has ended");
  if (w->has_step) return pe_fail(err, PE_ELIMIT, "a step is queued already");
  if (w->undrained > PE_WORKER_EVENTS)
    return pe_fail(err, PE_ELIMIT, "%d events are not drained, limit %d", w->undrained,
                   PE_WORKER_EVENTS);
  return PE_OK;
}

pe_status pe_worker_submit(pe_worker *w, const pe_grant *grants, int32_t count, pe_error *err) {
  if (count < 0) return pe_fail(err, PE_EARG, "a step needs 0 or more grants, got %d", count);
  pthread_mutex_lock(&w->lock);
  pe_status rc = refuse_step(w, err);
  if (!rc) rc = pe_grow(&w->grant, &w->grant_cap, (size_t)count + 1, sizeof *w->grant, err);
  if (!rc) {
    if (count) memcpy(w->grant, grants, (size_t)count * sizeof *grants);
    w->grant_count = count, w->has_step = true;
    pe_crew_call(&w->seat);
  }
  pthread_mutex_unlock(&w->lock);
  return rc;
}

/* Keeps the error of a step that failed as a whole for the next drain. */
static void note_failure(pe_worker *w, pe_status rc, const pe_error *err) {
  if (!rc) return;
  pthread_mutex_lock(&w->lock);
  if (!w->failure.code) w->failure = *err;
  pthread_mutex_unlock(&w->lock);
}

/* Starts the queued step. The loop may queue the next one from here on. */
static void begin_step(pe_worker *w) {
  pe_error err = {0};
  pthread_mutex_lock(&w->lock);
  pe_grant *grant = w->grant;
  int32_t count = w->grant_count;
  w->grant = NULL, w->grant_cap = 0, w->has_step = false;
  pthread_mutex_unlock(&w->lock);
  w->published = 0; /* the step begins a new list */
  note_failure(w, pe_batch_submit(w->batch, grant, count, &err), &err);
  pe_free(grant);
}

static void end_step(pe_worker *w) {
  pe_error err = {0};
  int32_t ran;
  pe_trace trace;
  pe_status rc = pe_batch_wait(w->batch, &ran, &err);
  note_failure(w, rc, &err);
  w->unshown = true;
  if (rc || !ran || !pe_batch_trace(w->batch, &trace, 1)) return;
  pthread_mutex_lock(&w->lock);
  w->trace[w->traced++ % PE_TRACE_STEPS] = trace;
  pthread_mutex_unlock(&w->lock);
}

static void apply_all(pe_worker *w, pe_worker_command *queue, size_t queued) {
  for (size_t i = 0; i < queued; i++) pe_worker_apply(w, &queue[i]);
  pe_free(queue);
}

static bool wants_step(const pe_worker *w) { return w->has_step && !w->stop; }

/* Called and left with the lock: tells the loop about a step that is done, unless the next one can
 * begin at once and this can be done meanwhile. */
static void show_step(pe_worker *w) {
  pe_worker_chunk *events;
  if (wants_step(w) && !pe_crew_wanted(&w->seat)) return;
  pthread_mutex_unlock(&w->lock);
  publish_logits(w);
  take_events(w, &events);
  publish(w, events);
  pthread_mutex_lock(&w->lock);
}

/* Called and left with the lock: applies the queued commands and runs the queued step, unless
 * events are left that could not be copied. Commands and step are taken together, since a step must
 * see the commands that were queued before it. What happened before the step is published while it
 * computes; the loop hears of every step that begins, so that it chooses the next one meanwhile. */
static void work(pe_worker *w) {
  pe_worker_command *queue = w->queue;
  pe_worker_file *arrived = w->arrived;
  pe_worker_chunk *events;
  size_t queued = w->queued;
  bool step = wants_step(w), news = queued || arrived || w->unshown;
  w->queue = NULL, w->queued = w->queue_cap = 0, w->arrived = NULL;
  w->working = true;
  pthread_mutex_unlock(&w->lock);
  pe_worker_file_arrived(w, arrived);
  apply_all(w, queue, queued);
  publish_logits(w);
  step = take_events(w, &events) && step;
  if (step) begin_step(w);
  if (news || events || !step)
    publish(w, events);
  else
    w->wake(w->ctx);
  if (step) end_step(w);
  pthread_mutex_lock(&w->lock);
  if (step) show_step(w);
  w->working = false;
}

static bool has_work(const pe_worker *w) {
  return w->queued || w->arrived || wants_step(w) || w->blocked;
}

/* Files are written between two answers, never between two tokens: a file takes longer than the way
 * to the loop and back. */
static bool idle(pe_worker *w) {
  if (w->batch->running || !pe_batch_idle(w->batch)) return false;
  publish_view(w);
  return true;
}

/* On the thread of the disk tier. */
static void disk_news(void *ctx) {
  pe_worker *w = ctx;
  pe_crew_call(&w->seat);
}

/* Sequences whose prefix has been read can be granted now. */
static bool show_arrived(pe_worker *w) {
  pe_batch *b = w->batch;
  if (!pe_prefix_arrived(b->prefix)) return false;
  for (size_t i = 0; i < b->seq_count; i++)
    if (b->seq[i]->fetch) pe_batch_touch(b, b->seq[i]);
  publish_view(w);
  w->wake(w->ctx);
  return true;
}

/* While events are blocked for lack of memory, the next turn comes from the loop's drain. */
static pe_crew_rest turn(void *ctx) {
  pe_worker *w = ctx;
  pthread_mutex_lock(&w->lock);
  bool worked = has_work(w);
  if (worked) work(w);
  while (w->unshown) work(w);
  bool blocked = w->blocked, more = has_work(w);
  pthread_mutex_unlock(&w->lock);
  if (blocked) return PE_CREW_NONE;
  bool arrived = show_arrived(w);
  return more ? PE_CREW_MORE : worked || arrived || idle(w) ? PE_CREW_SPARE : PE_CREW_NONE;
}

/* ---- life ---------------------------------------------------------------------------------- */

pe_status pe_worker_open(pe_crew *crew, pe_batch *batch, pe_worker_wake *wake, void *ctx,
                         pe_worker **out, pe_error *err) {
  *out = NULL;
  pe_worker *w = pe_calloc(1, sizeof *w);
  if (!w) {
    pe_batch_close(batch);
    return pe_nomem(err, "worker");
  }
  *w = (pe_worker){
      .batch = batch, .crew = pe_crew_retain(crew), .wake = wake, .ctx = ctx, .next = batch->next};
  w->last = &w->first;
  const pe_event *event;
  w->published = pe_batch_events(batch, &event); /* the foreground has these */
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->file_called, NULL);
  pe_status rc = watch(w, err);
  if (!rc) {
    publish_logits(w);
    publish_view(w);
    rc = pe_crew_join(crew, &w->seat, turn, w, err);
  }
  if (!rc) rc = pe_prefix_background(batch->prefix, disk_news, w, err);
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
  pe_prefix_mute(w->batch->prefix);
  pe_crew_leave(&w->seat);
  pthread_mutex_lock(&w->lock); /* the batch is this thread's now */
  if (has_work(w)) work(w);
  pthread_mutex_unlock(&w->lock);
  pe_worker_file_end(w);
  pthread_mutex_lock(&w->lock);
  if (has_work(w)) work(w); /* files that were read */
  w->has_step = false;
  pthread_mutex_unlock(&w->lock);
}

pe_batch *pe_worker_detach(pe_worker *w, int32_t *published) {
  pe_worker_halt(w);
  pe_batch *batch = w->batch;
  pe_prefix_foreground(batch->prefix);
  unwatch(batch);
  for (size_t i = 0; i < batch->seq_count; i++) pe_batch_end_fetch(batch, batch->seq[i]);
  batch->next = w->next > batch->next ? w->next : batch->next;
  if (published) *published = w->published;
  for (pe_worker_chunk *c = w->first, *next; c; c = next) {
    next = c->next;
    pe_worker_chunk_free(c);
  }
  for (size_t i = 0; i < w->kept_count; i++) pe_free(w->kept[i].logits);
  pe_free(w->kept);
  pe_free(w->spare);
  pe_free(w->queue);
  pe_free(w->grant);
  pe_free(w->view);
  pe_free(w->seen);
  pthread_cond_destroy(&w->file_called);
  pthread_mutex_destroy(&w->lock);
  pe_crew_release(w->crew);
  pe_free(w);
  return batch;
}

void pe_worker_close(pe_worker *w) {
  if (w) pe_batch_close(pe_worker_detach(w, NULL));
}

/* ---- the view ------------------------------------------------------------------------------ */

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

int32_t pe_worker_sequences(pe_worker *w, pe_seq_info *out, int32_t most) {
  int64_t now = pe_clock_ns();
  int32_t copied = 0;
  pthread_mutex_lock(&w->lock);
  for (size_t i = 0; i < w->view_count && copied < most; i++) {
    if (w->view[i].state == PE_SEQ_DONE) continue;
    out[copied] = w->view[i];
    out[copied].age_ns = now - out[copied].added_ns;
    copied++;
  }
  int32_t n = (int32_t)(w->view_count - w->view_gone);
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

bool pe_worker_logits(pe_worker *w, pe_seq_id id, float *out) {
  pthread_mutex_lock(&w->lock);
  const pe_worker_kept *k = kept_of(w, id);
  if (k) memcpy(out, k->logits, (size_t)w->batch->plan->vocabulary * sizeof *out);
  pthread_mutex_unlock(&w->lock);
  return k != NULL;
}
