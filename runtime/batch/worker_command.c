/* worker_command.c - see worker.h: commands on their way to the engine thread. */
#include "runtime/batch/worker_parts.h"

#include <string.h>

typedef pe_worker_command command;

void pe_worker_free_command(command *c) {
  pe_batch_request_release(c->request);
  pe_free((void *)c->draw.bias);
  pe_free((void *)c->draw.banned.id);
  pe_free((void *)c->draw.forced.id);
  pe_free(c->path);
}

int32_t pe_worker_new_rows(const command *c) {
  return c->verb == PE_WORKER_ADD ? c->count : c->verb == PE_WORKER_FORK;
}

/* ---- what they will do --------------------------------------------------------------------------------------- */

static pe_seq_info *shown(pe_worker *w, pe_seq_id row) {
  for (size_t i = 0; i < w->view_count; i++)
    if (w->view[i].row == row) return &w->view[i];
  return NULL;
}

static void show_added(pe_worker *w, const command *c) {
  int32_t prompt = c->request->r.prompt.count;
  for (int32_t i = 0; i < c->count; i++)
    w->view[w->view_count++] = (pe_seq_info){.row = c->first + i,
                                             .state = PE_SEQ_WAITING,
                                             .prompt = prompt,
                                             .left = i ? 0 : prompt,
                                             .choice = i,
                                             .follows = i > 0,
                                             .age_ns = pe_clock_ns() - c->at_ns};
}

/* A held row that was told to go on can be granted its next token together with that. */
static void show_sampled(pe_seq_info *row) {
  if (row->state != PE_SEQ_HELD) return;
  row->generated++;
  row->state = row->past ? PE_SEQ_DECODE : PE_SEQ_WAITING;
  row->left = row->prompt + row->generated - row->past;
}

void pe_worker_show(pe_worker *w, const command *c) {
  pe_seq_info *row = shown(w, c->row);
  if (c->verb == PE_WORKER_ADD) show_added(w, c);
  if (c->verb == PE_WORKER_SAMPLE && row) show_sampled(row);
  if (c->verb == PE_WORKER_FORK && row) {
    w->view[w->view_count] = *row; /* as its parent is */
    w->view[w->view_count++].row = c->first;
  }
}

/* ---- queueing ------------------------------------------------------------------------------------------------ */

/* Queues a command (takes what it holds, also when it fails). Rows to come get their ids, files their tickets. */
static pe_status push(pe_worker *w, command *c, pe_error *err) {
  pe_status rc = PE_OK;
  c->at_ns = pe_clock_ns();
  pthread_mutex_lock(&w->lock);
  if (w->stop)
    rc = pe_fail(err, PE_ECANCEL, "the engine thread has ended");
  else if (w->queued >= PE_WORKER_QUEUE)
    rc = pe_fail(err, PE_ELIMIT, "%zu commands wait for the engine, at most %d may", w->queued,
                 PE_WORKER_QUEUE);
  if (!rc) rc = pe_grow(&w->queue, &w->queue_cap, w->queued + 1, sizeof *w->queue, err);
  if (!rc)
    rc = pe_grow(&w->view, &w->view_cap, w->view_count + (size_t)pe_worker_new_rows(c) + 1,
                 sizeof *w->view, err);
  if (!rc) {
    c->first = w->next;
    w->next += pe_worker_new_rows(c);
    if (c->path) c->ticket = ++w->tickets;
    pe_worker_show(w, c);
    w->queue[w->queued++] = *c;
    pe_crew_call(&w->seat);
  }
  pthread_mutex_unlock(&w->lock);
  if (rc) pe_worker_free_command(c);
  return rc;
}

pe_status pe_worker_add(pe_worker *w, const pe_request *r, pe_seq_id *first, pe_error *err) {
  int32_t limit;
  command c = {.verb = PE_WORKER_ADD, .count = r->n > 0 ? r->n : 1};
  pe_status rc = pe_batch_request_check(w->batch, r, &limit, err);
  if (!rc) rc = pe_batch_request_copy(r, &c.request, err);
  if (rc) return rc;
  size_t bytes = (size_t)r->prompt.count * sizeof *r->prompt.id;
  c.request->r.prompt = (pe_ids_view){
      (const int32_t *)(const void *)pe_arena_dup(&c.request->arena, r->prompt.id, bytes),
      r->prompt.count};
  if (!c.request->r.prompt.id) return pe_worker_free_command(&c), pe_nomem(err, "prompt");
  if (!(rc = push(w, &c, err))) *first = c.first;
  return rc;
}

pe_status pe_worker_cancel(pe_worker *w, pe_seq_id row, pe_error *err) {
  return push(w, &(command){.verb = PE_WORKER_CANCEL, .row = row}, err);
}

pe_status pe_worker_preempt(pe_worker *w, pe_seq_id row, pe_error *err) {
  return push(w, &(command){.verb = PE_WORKER_PREEMPT, .row = row}, err);
}

pe_status pe_worker_keep_logits(pe_worker *w, pe_seq_id row, bool keep, pe_error *err) {
  return push(w, &(command){.verb = PE_WORKER_KEEP, .row = row, .keep = keep}, err);
}

pe_status pe_worker_trim(pe_worker *w, pe_seq_id row, int32_t tokens, pe_error *err) {
  return push(w, &(command){.verb = PE_WORKER_TRIM, .row = row, .count = tokens}, err);
}

pe_status pe_worker_fork(pe_worker *w, pe_seq_id row, uint64_t seed, pe_seq_id *out,
                         pe_error *err) {
  command c = {.verb = PE_WORKER_FORK, .row = row, .seed = seed};
  pe_status rc = push(w, &c, err);
  if (!rc) *out = c.first;
  return rc;
}

/* Copies with one entry more than there are, so that an empty list is a list. */
static pe_status copy_list(const void *from, int32_t count, size_t size, const void **out,
                           pe_error *err) {
  if (count < 0) return pe_fail(err, PE_EARG, "a list of %d entries", count);
  void *p = pe_calloc((size_t)count + 1, size);
  if (!p) return pe_nomem(err, "command to the engine");
  if (count) memcpy(p, from, (size_t)count * size);
  *out = p;
  return PE_OK;
}

/* Queues a command with a copy of a draw. */
static pe_status push_draw(pe_worker *w, command c, const pe_draw *d, pe_error *err) {
  const void *bias = NULL, *banned = NULL, *forced = NULL;
  pe_status rc = copy_list(d->bias, d->bias_count, sizeof *d->bias, &bias, err);
  if (!rc) rc = copy_list(d->banned.id, d->banned.count, sizeof *d->banned.id, &banned, err);
  if (!rc) rc = copy_list(d->forced.id, d->forced.count, sizeof *d->forced.id, &forced, err);
  c.draw = (pe_draw){bias, d->bias_count, {banned, d->banned.count}, {forced, d->forced.count}};
  if (!rc) return push(w, &c, err);
  pe_worker_free_command(&c);
  return rc;
}

pe_status pe_worker_force(pe_worker *w, pe_seq_id row, const int32_t *id, int32_t count,
                          pe_error *err) {
  return push_draw(w, (command){.verb = PE_WORKER_FORCE, .row = row},
                   &(pe_draw){.forced = {id, count}}, err);
}

pe_status pe_worker_bias(pe_worker *w, pe_seq_id row, const pe_logit_bias *bias, int32_t count,
                         pe_error *err) {
  return push_draw(w, (command){.verb = PE_WORKER_BIAS, .row = row},
                   &(pe_draw){.bias = bias, .bias_count = count}, err);
}

pe_status pe_worker_sample(pe_worker *w, pe_seq_id row, const pe_draw *d, pe_error *err) {
  pe_status rc = pe_batch_seq_draw_check(w->batch, d, err);
  return rc ? rc : push_draw(w, (command){.verb = PE_WORKER_SAMPLE, .row = row}, d, err);
}

pe_status pe_worker_pin(pe_worker *w, pe_ids_view prompt, uint64_t salt, bool pin, pe_error *err) {
  return push_draw(w, (command){.verb = PE_WORKER_PIN, .seed = salt, .keep = pin},
                   &(pe_draw){.forced = prompt}, err);
}

static pe_status push_file(pe_worker *w, command c, const char *path, uint64_t *ticket,
                           pe_error *err) {
  size_t size = strlen(path) + 1;
  if (!(c.path = pe_alloc(size))) return pe_nomem(err, "path");
  memcpy(c.path, path, size);
  pe_status rc = push(w, &c, err);
  if (!rc) *ticket = c.ticket;
  return rc;
}

pe_status pe_worker_save(pe_worker *w, pe_seq_id row, const char *path, uint64_t *ticket,
                         pe_error *err) {
  return push_file(w, (command){.verb = PE_WORKER_SAVE, .row = row}, path, ticket, err);
}

pe_status pe_worker_load(pe_worker *w, const char *path, uint64_t *ticket, pe_error *err) {
  return push_file(w, (command){.verb = PE_WORKER_LOAD}, path, ticket, err);
}

/* ---- on the engine thread ------------------------------------------------------------------------------------ */

/* Row ids were promised when the command was queued; those of an earlier one that failed are not used again. */
static void apply_new(pe_worker *w, const command *c) {
  pe_error err = {0};
  pe_seq_id got;
  pe_batch *b = w->batch;
  b->next = c->first;
  pe_status rc = c->verb == PE_WORKER_ADD ? pe_batch_add(b, &c->request->r, &got, &err)
                                          : pe_batch_fork(b, c->row, c->seed, &got, &err);
  for (int32_t i = 0; rc && i < pe_worker_new_rows(c); i++)
    pe_worker_tell(w, &(pe_event){.row = c->first + i,
                                  .finish = PE_FINISH_ERROR,
                                  .stop_index = -1,
                                  .error = err.text,
                                  .code = rc});
}

/* Files are always answered for. */
static void apply_file(pe_worker *w, const command *c) {
  pe_error err = {0};
  pe_status rc = c->verb == PE_WORKER_SAVE ? pe_batch_save(w->batch, c->row, c->path, &err)
                                           : pe_batch_load(w->batch, c->path, &err);
  pe_worker_tell(w, &(pe_event){.row = c->row,
                                .stop_index = -1,
                                .ticket = c->ticket,
                                .error = rc ? err.text : NULL,
                                .code = rc});
}

static pe_status apply_to_row(pe_batch *b, const command *c, pe_error *err) {
  const pe_draw *d = &c->draw;
  switch (c->verb) {
  case PE_WORKER_CANCEL: return pe_batch_cancel(b, c->row), PE_OK;
  case PE_WORKER_PREEMPT: return pe_batch_preempt(b, c->row), PE_OK;
  case PE_WORKER_KEEP: return pe_batch_keep_logits(b, c->row, c->keep), PE_OK;
  case PE_WORKER_FORCE: return pe_batch_force(b, c->row, d->forced.id, d->forced.count, err);
  case PE_WORKER_BIAS: return pe_batch_bias(b, c->row, d->bias, d->bias_count, err);
  case PE_WORKER_SAMPLE: return pe_batch_sample(b, c->row, d, err);
  default: return pe_batch_trim(b, c->row, c->count, err);
  }
}

void pe_worker_apply(pe_worker *w, const command *c) {
  pe_error err = {0};
  pe_seq_info info;
  if (c->verb == PE_WORKER_ADD || c->verb == PE_WORKER_FORK) {
    apply_new(w, c);
  } else if (c->path) {
    apply_file(w, c);
  } else if (c->verb == PE_WORKER_PIN) {
    pe_batch_pin(w->batch, c->draw.forced, c->seed, c->keep);
  } else if (pe_batch_info(w->batch, c->row, &info) && info.state != PE_SEQ_DONE) {
    pe_status rc = apply_to_row(w->batch, c, &err);
    if (rc)
      pe_worker_tell(w,
                     &(pe_event){.row = c->row, .stop_index = -1, .error = err.text, .code = rc});
  }
}
