/* worker_events.c - see worker.h: events on their way from the batch to the loop. */
#include "runtime/batch/worker_parts.h"

typedef pe_worker_chunk chunk;

void pe_worker_free_events(pe_worker_events *e) {
  pe_free(e->event);
  pe_arena_free(&e->text);
  *e = (pe_worker_events){0};
}

void pe_worker_chunk_free(chunk *c) {
  if (!c) return;
  pe_worker_free_events(&c->events);
  pe_free(c);
}

chunk *pe_worker_chunk_new(int32_t events) {
  chunk *c = pe_calloc(1, sizeof *c);
  if (c && !(c->events.event = pe_calloc((size_t)events, sizeof *c->events.event))) {
    pe_free(c);
    c = NULL;
  }
  return c;
}

/* To the end of a list that has room. False: out of memory. */
static bool copy_event(pe_worker_events *to, const pe_event *e) {
  pe_event *copy = &to->event[to->count];
  *copy = *e;
  copy->text.at = pe_arena_dup(&to->text, e->text.at ? e->text.at : "", e->text.len);
  if (!copy->text.at) return false;
  if (e->error) {
    pe_error *error = pe_arena_alloc(&to->text, sizeof *error);
    if (!error) return false;
    *error = *e->error;
    copy->error = error;
  }
  to->count++;
  return true;
}

chunk *pe_worker_chunk_copy(const pe_event *event, int32_t count) {
  chunk *c = pe_worker_chunk_new(count);
  for (int32_t i = 0; c && i < count; i++) {
    if (copy_event(&c->events, &event[i])) continue;
    pe_worker_chunk_free(c);
    c = NULL;
  }
  return c;
}

void pe_worker_chunk_publish(pe_worker *w, chunk *c) {
  pthread_mutex_lock(&w->lock);
  *w->last = c;
  w->last = &c->next;
  w->undrained += c->events.count;
  pthread_mutex_unlock(&w->lock);
}

static bool join(const chunk *list, int32_t count, pe_worker_events *out) {
  out->event = pe_calloc((size_t)count, sizeof *out->event);
  bool ok = out->event != NULL;
  for (const chunk *c = list; ok && c; c = c->next)
    for (int32_t i = 0; ok && i < c->events.count; i++) ok = copy_event(out, &c->events.event[i]);
  if (!ok) pe_worker_free_events(out);
  return ok;
}

/* Back to the front of the queue, so that nothing is lost. */
static void put_back(pe_worker *w, chunk *list, int32_t count, const pe_error *failure) {
  chunk **tail = &list;
  while (*tail) tail = &(*tail)->next;
  pthread_mutex_lock(&w->lock);
  *tail = w->first;
  if (!w->first) w->last = tail;
  w->first = list, w->undrained += count;
  if (!w->failure.code) w->failure = *failure;
  pthread_mutex_unlock(&w->lock);
}

pe_status pe_worker_drain(pe_worker *w, pe_worker_events *out, pe_error *err) {
  *out = (pe_worker_events){0};
  pthread_mutex_lock(&w->lock);
  chunk *list = w->first;
  int32_t count = w->undrained;
  pe_error failure = w->failure;
  w->first = NULL, w->last = &w->first, w->undrained = 0;
  w->failure = (pe_error){0};
  if (w->blocked && !w->stop) pe_crew_call(&w->seat); /* there may be memory now */
  pthread_mutex_unlock(&w->lock);
  if (list && !list->next) { /* the usual case: nothing is copied */
    *out = list->events;
    list->events = (pe_worker_events){0};
  } else if (list && !join(list, count, out)) {
    put_back(w, list, count, &failure);
    return pe_nomem(err, "events");
  }
  for (chunk *next; list; list = next) {
    next = list->next;
    pe_worker_chunk_free(list);
  }
  if (failure.code && err) *err = failure;
  return failure.code;
}
