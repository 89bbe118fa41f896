/* worker_command.c - see worker.h: commands on their way to the engine thread. */
#include "runtime/batch/worker_parts.h"

#include <string.h>

typedef pe_worker_command command;

void pe_worker_command_free(command *q) {
  pe_worker_chunk_free(q->events);
  if (q->request) pe_request_disown(q->request);
  pe_media_release(q->media);
  pe_arena_free(&q->arena);
}

/* ---- the view ------------------------------------------------------------------------------ */

/* The view is in the order of ids. */
static pe_seq_info *shown(pe_worker *w, pe_seq_id id) {
  size_t low = 0, high = w->view_count;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (w->view[mid].id < id)
      low = mid + 1;
    else
      high = mid;
  }
  bool found = low < w->view_count && w->view[low].id == id && w->view[low].state != PE_SEQ_DONE;
  return found ? &w->view[low] : NULL;
}

static void show_added(pe_worker *w, const command *q) {
  int32_t prompt = q->c.request->prompt.count;
  for (int32_t i = 0; i < q->reply.count; i++)
    w->view[w->view_count++] = (pe_seq_info){.id = q->reply.first + i,
                                             .state = PE_SEQ_WAITING,
                                             .prompt = prompt,
                                             .left = i ? 0 : prompt,
                                             .choice = i,
                                             .follows = i > 0,
                                             .added_ns = q->at_ns};
}

/* The next token of a held sequence can be granted together with its sample. */
static void show_sampled(pe_seq_info *seq) {
  if (seq->state != PE_SEQ_HELD) return;
  seq->generated++;
  seq->state = seq->past ? PE_SEQ_DECODE : PE_SEQ_WAITING;
  seq->left = seq->prompt + seq->generated - seq->past;
}

void pe_worker_show_sequence(pe_worker *w, const pe_seq_info *info) {
  pe_seq_info *seq = shown(w, info->id);
  if (!seq) return; /* it ended before */
  *seq = *info;
  w->view_gone += info->state == PE_SEQ_DONE;
}

void pe_worker_show(pe_worker *w, const command *q) {
  pe_seq_info *seq = shown(w, q->c.seq);
  bool is_new =
      q->reply.count && (!w->view_count || w->view[w->view_count - 1].id < q->reply.first);
  if (q->c.verb == PE_DO_ADD && is_new) show_added(w, q);
  if (q->c.verb == PE_DO_CANCEL && seq) seq->cancelled = true;
  if (q->c.verb == PE_DO_SAMPLE && seq) show_sampled(seq);
  if (q->c.verb == PE_DO_FORK && seq && is_new) {
    w->view[w->view_count] = *seq; /* as its parent is */
    w->view[w->view_count++].id = q->reply.first;
  }
}

/* ---- queueing ------------------------------------------------------------------------------ */

/* With one entry more than there are, so that an empty list is a list. */
static bool own(pe_arena *a, const void **list, int32_t count, size_t size) {
  char *p = pe_arena_calloc(a, (size_t)count + 1, size);
  if (p && count) memcpy(p, *list, (size_t)count * size);
  *list = p;
  return p != NULL;
}

static bool own_ids(pe_arena *a, pe_ids_view *v) {
  const void *p = v->id;
  bool ok = own(a, &p, v->count, sizeof *v->id);
  v->id = p;
  return ok;
}

static bool own_bias(pe_arena *a, pe_bias_view *v) {
  const void *p = v->bias;
  bool ok = own(a, &p, v->count, sizeof *v->bias);
  v->bias = p;
  return ok;
}

/* Copies everything that the command borrows. */
static bool own_argument(command *q) {
  pe_command *c = &q->c;
  pe_request *r;
  switch (pe_verb_describe(c->verb)->argument) {
  case PE_ARG_REQUEST:
    if (!(r = pe_arena_alloc(&q->arena, sizeof *r))) return false;
    *r = *c->request;
    c->request = r;
    if (!pe_request_own(r, &q->arena)) return false;
    q->request = r;
    return true;
  case PE_ARG_IDS: return own_ids(&q->arena, &c->ids);
  case PE_ARG_BIAS: return own_bias(&q->arena, &c->bias);
  case PE_ARG_DRAW:
    return own_bias(&q->arena, &c->draw.bias) && own_ids(&q->arena, &c->draw.banned) &&
           own_ids(&q->arena, &c->draw.forced);
  case PE_ARG_PIN:
    if (!own_ids(&q->arena, &c->pin.prompt)) return false;
    q->media = pe_media_retain(c->pin.media);
    return true;
  case PE_ARG_PATH: return (c->path = pe_arena_dup(&q->arena, c->path, strlen(c->path))) != NULL;
  default: return true;
  }
}

static int32_t new_sequences(const pe_command *c) {
  if (c->verb == PE_DO_ADD) return c->request->n > 0 ? c->request->n : 1;
  return c->verb == PE_DO_FORK;
}

/* Everything that can fail: copies the command, reserves what its failure will need. */
static pe_status prepare(const pe_command *c, command *q, pe_error *err) {
  *q = (command){.c = *c, .at_ns = pe_clock_ns(), .reply = {.count = new_sequences(c)}};
  bool ok = own_argument(q);
  if (ok) q->events = pe_worker_chunk_new(q->reply.count > 1 ? q->reply.count : 1);
  if (q->events) q->error = pe_arena_calloc(&q->events->events.text, 1, sizeof *q->error);
  if (q->error) return PE_OK;
  pe_worker_command_free(q);
  return pe_nomem(err, "command");
}

/* Cancels are never refused: a client that leaves must not go on computing. One per sequence is
 * queued, so there are never more of them than sequences. */
static bool always_fits(pe_worker *w, const pe_command *c) {
  const pe_seq_info *seq = c->verb == PE_DO_CANCEL ? shown(w, c->seq) : NULL;
  return seq && !seq->cancelled;
}

/* Under the lock: a second cancel of the same sequence. */
static bool is_repeated(pe_worker *w, const pe_command *c) {
  const pe_seq_info *seq = c->verb == PE_DO_CANCEL ? shown(w, c->seq) : NULL;
  return seq && seq->cancelled;
}

/* Under the lock: gives ids and ticket, and takes the command. */
static pe_status push(pe_worker *w, command *q, pe_error *err) {
  size_t view = w->view_count + (size_t)q->reply.count + 1;
  if (w->stop) return pe_fail(err, PE_ECANCEL, "the engine thread has ended");
  if (w->queued >= PE_WORKER_QUEUE && !always_fits(w, &q->c))
    return pe_fail(err, PE_ELIMIT, "queue is full: %zu commands waiting, limit %d", w->queued,
                   PE_WORKER_QUEUE);
  pe_status rc = pe_grow(&w->queue, &w->queue_cap, w->queued + 1, sizeof *w->queue, err);
  if (!rc) rc = pe_grow(&w->view, &w->view_cap, view, sizeof *w->view, err);
  if (rc) return rc;
  if (q->reply.count) {
    q->reply.first = w->next;
    w->next += q->reply.count;
  }
  if (pe_verb_describe(q->c.verb)->argument == PE_ARG_PATH) q->reply.ticket = ++w->tickets;
  pe_worker_show(w, q);
  w->queue[w->queued++] = *q;
  pe_crew_call(&w->seat);
  return PE_OK;
}

pe_status pe_worker_do(pe_worker *w, const pe_command *c, pe_reply *reply, pe_error *err) {
  command q;
  pe_status rc = pe_batch_command_check(w->batch, c, err);
  if (!rc) rc = prepare(c, &q, err);
  if (rc) return rc;
  pthread_mutex_lock(&w->lock);
  bool repeated = is_repeated(w, &q.c) && !w->stop;
  if (!repeated) rc = push(w, &q, err);
  if (!rc && reply) *reply = q.reply;
  pthread_mutex_unlock(&w->lock);
  if (rc || repeated) pe_worker_command_free(&q);
  return rc;
}

/* ---- on the engine thread ------------------------------------------------------------------ */

void pe_worker_answer(pe_worker *w, command *q, pe_status rc) {
  pe_worker_events *e = &q->events->events;
  e->count = q->reply.count > 1 ? q->reply.count : 1;
  for (int32_t i = 0; i < e->count; i++)
    e->event[i] = (pe_event){.seq = q->reply.count ? q->reply.first + i : q->c.seq,
                             .finish = q->reply.count ? PE_FINISH_ERROR : PE_FINISH_NONE,
                             .stop_index = -1,
                             .text = {"", 0},
                             .ticket = q->reply.ticket,
                             .error = rc ? q->error : NULL};
  pthread_mutex_lock(&w->lock);
  for (int32_t i = 0; i < q->reply.count; i++) /* promised, and never there */
    pe_worker_show_sequence(w, &(pe_seq_info){.id = q->reply.first + i, .state = PE_SEQ_DONE});
  pthread_mutex_unlock(&w->lock);
  pe_worker_chunk_publish(w, q->events);
  q->events = NULL;
}

/* Ids of an earlier command that failed are not used again. A command for a sequence that is done
 * is dropped. Commands with a ticket are about files. */
void pe_worker_apply(pe_worker *w, command *q) {
  if (q->reply.ticket) {
    pe_worker_file_begin(w, q);
    return;
  }
  if (q->reply.count) w->batch->next = q->reply.first;
  pe_status rc = pe_batch_do(w->batch, &q->c, NULL, q->error);
  if (rc && (q->reply.count || rc != PE_ENOTFOUND)) pe_worker_answer(w, q, rc);
  pe_worker_command_free(q);
}
