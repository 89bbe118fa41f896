/* batch_step.c - see batch.h: who runs, with how many tokens, and what happens when blocks run out. */
#include "runtime/batch/batch_seq.h"

/* ---- caches of a row ------------------------------------------------------------------------------------------- */

int32_t pe_batch_rope_variant(const pe_graph *g, int32_t length) {
  int32_t variant = 0;
  for (size_t i = 0; i < g->node_count; i++) {
    const pe_rope_table_args *a = &g->node[i].args.rope_table;
    if (g->node[i].op != PE_OP_ROPE_TABLE || length <= a->threshold) continue;
    if (a->dynamic) return length; /* every length has frequencies of its own */
    if (a->variants > 1) variant = -1;
  }
  return variant;
}

pe_prefix_key pe_batch_key(const pe_batch *b, const pe_batch_seq *r) {
  return (pe_prefix_key){.salt = r->request->r.salt,
                         .rope_variant = pe_batch_rope_variant(b->graph, pe_batch_seq_prompt(r))};
}

static bool uses_prefix(const pe_batch *b, const pe_batch_seq *r) {
  return b->caching && !r->request->r.no_cache;
}

int32_t pe_batch_probe(const pe_batch *b, const pe_batch_seq *r) {
  pe_prefix_key key = pe_batch_key(b, r);
  return uses_prefix(b, r) ? pe_prefix_probe(b->prefix, &key, r->token, r->count) : 0;
}

void pe_batch_remember(pe_batch *b, pe_batch_seq *r) {
  if (!uses_prefix(b, r) || r->seq.past < 1) return;
  pe_prefix_key key = pe_batch_key(b, r);
  pe_prefix_insert(b->prefix, &key, &r->seq, NULL); /* no memory: then it is not remembered */
}

void pe_batch_release(pe_batch *b, pe_batch_seq *r) {
  if (!r->seq.kv) return;
  pe_seq_close(&r->seq);
  b->running--;
}

void pe_batch_yield(pe_batch *b, pe_batch_seq *r) {
  pe_batch_remember(b, r);
  pe_batch_release(b, r);
  if (r->state != PE_SEQ_HELD)
    r->state = PE_SEQ_WAITING; /* it has its logits, and waits for the caller anyway */
  b->stats.preempted++;
}

/* ---- room ------------------------------------------------------------------------------------------------------ */

int32_t pe_batch_held(const pe_batch *b, int32_t group) {
  int32_t held = 0;
  for (int32_t i = 0; i < b->kv->blocks; i++) b->mark[i] = 0;
  for (size_t i = 0; i < b->row_count; i++) {
    const pe_kv_seq *t = &b->row[i]->seq.tables;
    for (int32_t k = 0; k < t->count[group]; k++) {
      int32_t block = t->table[group][k];
      if (block < 0 || b->mark[block]) continue;
      b->mark[block] = 1, held++;
    }
  }
  return held + pe_prefix_pinned(b->prefix, group, b->mark);
}

/* How far a row will surely go: to the end of what is known; where a window gives blocks back, one step at a time. */
static int32_t reach(const pe_batch *b, const pe_batch_seq *r, int32_t group) {
  int32_t left = r->count - r->seq.past;
  return r->seq.past +
         (b->graph->group[group].window && left > b->o.step_tokens ? b->o.step_tokens : left);
}

/* Blocks that the running rows, but r, are going to need soon. */
static int64_t promised(const pe_batch *b, const pe_batch_seq *r, int32_t group) {
  int64_t n = 0;
  for (size_t i = 0; i < b->row_count; i++) {
    const pe_batch_seq *other = b->row[i];
    if (other == r || !pe_batch_seq_runs(other)) continue;
    int32_t need =
        pe_kv_needed(b->kv, &other->seq.tables, group, other->seq.past, reach(b, other, group));
    n += need > 1 ? need : 1;
  }
  return n;
}

/* Can all that r has to read be had, if everything that only the prefix cache holds goes? r's sequence is open. */
static bool fits(const pe_batch *b, const pe_batch_seq *r) {
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    int64_t need = pe_kv_needed(b->kv, &r->seq.tables, g, r->seq.past, reach(b, r, g));
    if (need + promised(b, r, g) > b->kv->blocks - pe_batch_held(b, g)) return false;
  }
  return true;
}

/* The same before anything is looked up: false only if fits would say so, too. */
static bool could_fit(const pe_batch *b, const pe_batch_seq *r) {
  int32_t found = pe_batch_probe(b, r), size = b->kv->block;
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    if (b->graph->group[g].window) continue;
    int64_t need = (r->count + size - 1) / size - found / size;
    if (need + promised(b, r, g) > b->kv->blocks - pe_batch_held(b, g)) return false;
  }
  return true;
}

/* Evicts what the next `count` tokens of r lack. */
static void make_room(pe_batch *b, const pe_batch_seq *r, int32_t count) {
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    int64_t need = pe_kv_needed(b->kv, &r->seq.tables, g, r->seq.past, r->seq.past + count);
    int64_t missing = need - (b->kv->blocks - b->kv->used[g]);
    if (missing > 0) pe_prefix_evict(b->prefix, g, (int32_t)missing);
  }
}

/* ---- admission ------------------------------------------------------------------------------------------------- */

static pe_status open_seq(pe_batch *b, pe_batch_seq *r, bool cold, pe_error *err) {
  int32_t found = 0;
  pe_prefix_key key = pe_batch_key(b, r);
  pe_status rc = pe_seq_open(&r->seq, b->kv, b->recur, err);
  if (rc) return rc;
  b->running++;
  if (uses_prefix(b, r) && !cold)
    rc = pe_prefix_match(b->prefix, &key, r->token, r->count, &r->seq, &found, err);
  if (!rc) rc = pe_seq_append(&r->seq, r->token + found, r->count - found, err);
  if (rc) {
    pe_batch_release(b, r);
    return rc;
  }
  r->seq.rope_length = pe_batch_seq_prompt(r);
  return PE_OK;
}

/* A WAITING row becomes a READING one, or stays, or fails. alone: it has everything for itself, so nothing is asked. */
static bool admit(pe_batch *b, pe_batch_seq *r, bool alone) {
  if (b->running >= b->o.rows || (!alone && !could_fit(b, r))) return false;
  pe_status rc = open_seq(b, r, alone && r->restarted, &r->error);
  if (rc == PE_ELIMIT) return false;
  if (rc) {
    pe_batch_fail(b, r);
    return false;
  }
  if (!alone && !fits(b, r)) {
    pe_batch_release(b, r);
    return false;
  }
  r->state = PE_SEQ_PREFILL;
  if (!pe_batch_seq_made(r)) r->cached = r->seq.past;
  b->stats.cached_tokens += (uint64_t)r->seq.past;
  return true;
}

/* ---- the runs of a step ---------------------------------------------------------------------------------------- */

/* Where reading has to stop next, because the prefix cache wants to be told there. A model that can resume anywhere tells
 * it once, when the prompt is read; one with states or windows at every place where a later request may want to resume. */
static int32_t next_cut(const pe_batch *b, const pe_batch_seq *r) {
  const pe_ids_view *mark = &r->request->r.boundary;
  int32_t past = r->seq.past, prompt = pe_batch_seq_prompt(r), cut = prompt;
  if (!uses_prefix(b, r) || past >= prompt) return INT32_MAX;
  if (!b->stopping) return cut;
  if (past < prompt - 1) cut = prompt - 1;
  for (int32_t i = 0; i < mark->count && mark->id[i] < cut; i++)
    if (mark->id[i] > past) cut = mark->id[i];
  if (b->graph->state_floats && cut / b->o.stride > past / b->o.stride) {
    int32_t at = (past / b->o.stride + 1) * b->o.stride;
    if (at < cut) cut = at;
  }
  return cut;
}

/* Puts the next tokens of a running row into the step. false: there is no room, or the row has failed. */
static bool take_in(pe_batch *b, pe_batch_seq *r, int32_t tokens) {
  bool last = r->seq.past + tokens == r->count;
  make_room(b, r, tokens);
  pe_status rc = pe_seq_run(&r->seq, tokens, last, &b->run[b->run_count], &r->error);
  if (rc && rc != PE_ELIMIT) pe_batch_fail(b, r);
  if (rc) return false;
  r->chunk = tokens;
  b->ran[b->run_count++] = r;
  return true;
}

static int32_t chunk_of(const pe_batch *b, pe_batch_seq *r, int32_t tokens) {
  r->cut = next_cut(b, r);
  int32_t left = r->count - r->seq.past;
  if (left > r->cut - r->seq.past) left = r->cut - r->seq.past;
  return tokens < left ? tokens : left;
}

/* A row that a grant means something to. */
static pe_batch_seq *usable(const pe_batch *b, const pe_grant *g) {
  pe_batch_seq *r = g->tokens > 0 ? pe_batch_find(b, g->row) : NULL;
  return r && r->state < PE_SEQ_HELD && !r->leader && !r->yielded ? r : NULL;
}

/* Once a row had to stay outside for want of memory, nobody overtakes it in this step. */
static void plan(pe_batch *b, const pe_grant *grants, int32_t count) {
  int32_t budget = b->o.step_tokens;
  bool closed = false;
  b->run_count = 0;
  for (int32_t i = 0; i < count && budget > 0 && b->run_count < b->o.rows; i++) {
    pe_batch_seq *r = usable(b, &grants[i]);
    if (!r || r->chunk || (r->state == PE_SEQ_WAITING && closed)) continue;
    if (r->state == PE_SEQ_WAITING && !admit(b, r, false)) {
      closed = r->state == PE_SEQ_WAITING;
      continue;
    }
    int32_t tokens = chunk_of(b, r, grants[i].tokens < budget ? grants[i].tokens : budget);
    if (take_in(b, r, tokens)) budget -= tokens;
  }
}

/* ---- nobody can run -------------------------------------------------------------------------------------------- */

static pe_batch_seq *first_usable(const pe_batch *b, const pe_grant *grants, int32_t count,
                                  const pe_batch_seq *but, int32_t *tokens) {
  for (int32_t i = 0; i < count; i++) {
    pe_batch_seq *r = usable(b, &grants[i]);
    if (!r || r == but) continue;
    *tokens = grants[i].tokens;
    return r;
  }
  return NULL;
}

/* The youngest running row, if some granted row is left to profit from its leaving. */
static pe_batch_seq *victim(const pe_batch *b, const pe_grant *grants, int32_t count) {
  int32_t tokens;
  for (size_t i = b->row_count; i-- > 0;)
    if (pe_batch_seq_runs(b->row[i]) && first_usable(b, grants, count, b->row[i], &tokens))
      return b->row[i];
  return NULL;
}

/* As many tokens as there is room for; false: not even one. */
static bool try_alone(pe_batch *b, pe_batch_seq *r, int32_t tokens) {
  if (r->state == PE_SEQ_WAITING && !admit(b, r, true)) return r->state == PE_SEQ_DONE;
  tokens = chunk_of(b, r, tokens < b->o.step_tokens ? tokens : b->o.step_tokens);
  while (!take_in(b, r, tokens)) {
    if (r->state == PE_SEQ_DONE) return true;
    if (tokens == 1) return false;
    tokens /= 2;
  }
  return true;
}

/* The row has everything for itself. What it shares with the prefix cache it cannot write to, and there may be no room for
 * a copy: then the cache goes and, where something is pinned, the row begins anew without it, once. */
static void run_alone(pe_batch *b, pe_batch_seq *r, int32_t tokens) {
  if (try_alone(b, r, tokens)) return;
  pe_prefix_clear(b->prefix);
  if (try_alone(b, r, tokens)) return;
  if (!r->restarted) {
    pe_batch_release(b, r);
    r->state = PE_SEQ_WAITING, r->restarted = true;
    if (try_alone(b, r, tokens)) return;
  }
  pe_error_prefix(&r->error, "token %d of row %lld has no room, even alone", r->seq.past + 1,
                  (long long)r->id);
  pe_batch_fail(b, r);
}

/* Every turn but the last one takes one running row away, so it ends. */
static void choose(pe_batch *b, const pe_grant *grants, int32_t count) {
  for (;;) {
    pe_batch_seq *r;
    int32_t tokens = 0;
    plan(b, grants, count);
    if (b->run_count || !(r = first_usable(b, grants, count, NULL, &tokens))) return;
    pe_batch_seq *young = victim(b, grants, count);
    if (!young) {
      run_alone(b, r, tokens);
      return;
    }
    pe_batch_yield(b, young);
    young->yielded = true;
  }
}

/* ---- a step ---------------------------------------------------------------------------------------------------- */

/* Rows that are done leave, and the events of the last step with them. */
static void sweep(pe_batch *b) {
  size_t n = 0;
  b->event_count = 0, b->run_count = 0;
  for (size_t i = 0; i < b->row_count; i++) {
    pe_batch_seq *r = b->row[i];
    if (r->state == PE_SEQ_DONE) {
      pe_batch_seq_free(r);
      continue;
    }
    r->chunk = 0, r->line = -1, r->yielded = false, r->text.len = 0;
    b->row[n++] = r;
  }
  b->row_count = n;
}

/* The choices that waited for r's prompt: each gets r's caches and draws from the same logits. One that finds no slot
 * reads for itself later. */
static void fork_followers(pe_batch *b, const pe_batch_seq *r) {
  for (size_t i = 0; i < b->row_count; i++) {
    pe_batch_seq *f = b->row[i];
    if (f->leader != r->id || f->state == PE_SEQ_DONE) continue;
    f->leader = 0;
    if (b->running >= b->o.rows) continue;
    if (pe_seq_fork(&r->seq, &f->seq, &f->error)) {
      pe_batch_fail(b, f);
      continue;
    }
    b->running++;
    f->state = PE_SEQ_PREFILL, f->line = r->line, f->cached = r->cached;
  }
}

static void advance(pe_batch *b, pe_trace *t) {
  int32_t line = 0;
  for (int32_t i = 0; i < b->run_count; i++) {
    pe_batch_seq *r = b->ran[i];
    bool reading = r->state == PE_SEQ_PREFILL;
    pe_seq_advance(&r->seq, r->chunk);
    t->rows += r->chunk, t->reading += reading, t->writing += !reading;
    if (reading) b->stats.read_tokens += (uint64_t)r->chunk;
    if (r->seq.past == r->cut) pe_batch_remember(b, r);
    if (b->run[i].outputs) r->line = line++;
    if (r->line >= 0 && r->request->r.n > 1 && !pe_batch_seq_made(r)) fork_followers(b, r);
  }
}

/* A step that failed may have left states half way: its rows begin anew, from their tokens. */
static void undo(pe_batch *b) {
  for (int32_t i = 0; i < b->run_count; i++) {
    pe_batch_release(b, b->ran[i]);
    b->ran[i]->state = PE_SEQ_WAITING;
    b->stats.preempted++;
  }
}

static void note(pe_batch *b, const pe_trace *t) {
  b->stats.schedule_ns += (uint64_t)t->schedule_ns, b->stats.compute_ns += (uint64_t)t->compute_ns,
      b->stats.sample_ns += (uint64_t)t->sample_ns;
  b->trace[b->stats.steps++ % PE_TRACE_STEPS] = *t;
}

pe_status pe_batch_step(pe_batch *b, const pe_grant *grants, int32_t count, int32_t *ran,
                        pe_error *err) {
  pe_trace t = {.at_ns = pe_clock_ns()};
  *ran = 0;
  sweep(b);
  choose(b, grants, count);
  if (!b->run_count) return PE_OK;
  int64_t planned = pe_clock_ns();
  pe_status rc = pe_device_step(b->exec, b->run, b->run_count, err);
  if (rc) {
    undo(b);
    return rc;
  }
  int64_t computed = pe_clock_ns();
  advance(b, &t);
  pe_batch_draw(b);
  *ran = b->run_count;
  t.schedule_ns = planned - t.at_ns, t.compute_ns = computed - planned,
  t.sample_ns = pe_clock_ns() - computed;
  note(b, &t);
  return PE_OK;
}
