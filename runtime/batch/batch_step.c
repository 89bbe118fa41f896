/* batch_step.c - see batch.h: admission, the runs of a step, and what happens when blocks run
 * out. */
#include "runtime/batch/batch_seq.h"

#include <assert.h>

/* ---- admission ----------------------------------------------------------------------------- */

static pe_status open_cache(pe_batch *b, pe_batch_seq *seq, bool cold, pe_error *err) {
  int32_t found = 0;
  pe_prefix_key key = pe_batch_key(b, seq);
  pe_status rc = pe_seq_open(&seq->cache, b->kv, b->recur, err);
  if (rc) return rc;
  pe_batch_opened(b, seq);
  rc = pe_seq_set_media(&seq->cache, seq->request->r.media, err);
  if (!rc && pe_batch_uses_prefix(b, seq) && !cold)
    rc = pe_prefix_match(b->prefix, &key, pe_batch_seq_words(seq), seq->count, &seq->cache, &found,
                         err);
  pe_batch_end_fetch(b, seq);
  if (!rc) rc = pe_seq_append(&seq->cache, seq->token + found, seq->count - found, err);
  if (rc) {
    pe_batch_release(b, seq);
    return rc;
  }
  seq->cache.rope_length = pe_batch_seq_prompt(seq);
  return PE_OK;
}

/* Its prefix is on disk: it is read while others compute, and then copied in pieces, one per step.
 * 4 MiB of fresh memory take about 5 ms. */
static bool must_fetch(pe_batch *b, pe_batch_seq *seq) {
  enum { PIECE = 4 << 20 };
  if (!pe_batch_uses_prefix(b, seq)) return false;
  pe_prefix_key key = pe_batch_key(b, seq);
  pe_batch_touch(b, seq);
  if (seq->fetch) {
    seq->yielded = !pe_prefix_bring(b->prefix, &key, pe_batch_seq_words(seq), seq->count, PIECE);
    return seq->yielded; /* nothing more for it in this step */
  }
  seq->fetch = pe_prefix_fetch(b->prefix, &key, pe_batch_seq_words(seq), seq->count);
  return seq->fetch != 0;
}

/* A WAITING sequence goes to PREFILL, or stays, or fails. alone: it has all memory, so do not
 * count. */
static bool admit(pe_batch *b, pe_batch_seq *seq, bool alone) {
  if (b->running >= b->o.sequences || (!alone && !pe_room_could_fit(b, seq))) return false;
  if (!alone && must_fetch(b, seq)) return false;
  pe_status rc = open_cache(b, seq, alone && seq->restarted, &seq->error);
  if (rc == PE_ELIMIT) return false;
  if (rc) {
    pe_batch_fail(b, seq);
    return false;
  }
  pe_room_put_back(b, seq);
  if (!alone && !pe_room_fits(b, seq)) {
    pe_room_take_out(b, seq);
    if (pe_batch_uses_prefix(b, seq)) pe_prefix_unmatch(b->prefix, seq->count, seq->cache.past);
    pe_batch_release(b, seq);
    return false;
  }
  seq->state = PE_SEQ_PREFILL;
  pe_batch_touch(b, seq);
  if (!pe_batch_seq_generated(seq)) seq->cached = seq->cache.past;
  b->stats.cached_tokens += (uint64_t)seq->cache.past;
  return true;
}

/* ---- the runs of a step -------------------------------------------------------------------- */

/* The end of a chunk that does not cut a picture which must stay whole: before it, or, if the chunk
 * begins with it, after it, whatever was granted. Then the step is larger than step_tokens by less
 * than one picture. */
static int32_t whole_end(const pe_batch_seq *seq, int32_t end) {
  const pe_media_run *cut = pe_media_cut(seq->request->r.media, end);
  if (!cut) return end;
  return cut->at > seq->cache.past ? cut->at : cut->at + cut->count;
}

/* Where prefill stops next because the prefix cache takes a copy there. A model that can resume
 * anywhere is remembered once, at the end of the prompt; one with states or windows at every place
 * where a later request may want to resume. */
static int32_t next_cut(const pe_batch *b, const pe_batch_seq *seq) {
  const pe_ids_view *mark = &seq->request->r.boundary;
  int32_t past = seq->cache.past, prompt = pe_batch_seq_prompt(seq), cut = prompt;
  if (!pe_batch_uses_prefix(b, seq) || past >= prompt) return INT32_MAX;
  if (!b->stopping) return cut;
  if (past < prompt - 1) cut = prompt - 1;
  for (int32_t i = 0; i < mark->count && mark->id[i] < cut; i++)
    if (mark->id[i] > past) cut = mark->id[i];
  if (b->graph->state_floats && cut / b->o.stride > past / b->o.stride) {
    int32_t at = (past / b->o.stride + 1) * b->o.stride;
    if (at < cut) cut = at;
  }
  return whole_end(seq, cut); /* no later request resumes inside a picture */
}

/* Puts the next tokens of a running sequence into the step. False: no room, or it has failed. */
static bool take_in(pe_batch *b, pe_batch_seq *seq, int32_t tokens) {
  bool last = seq->cache.past + tokens == seq->count;
  pe_room_take_out(b, seq);
  pe_room_make(b, seq, tokens);
  pe_status rc = pe_seq_run(&seq->cache, tokens, last, &b->run[b->run_count], &seq->error);
  if (rc && rc != PE_ELIMIT) pe_batch_fail(b, seq);
  pe_room_put_back(b, seq);
  if (rc) return false;
  if (last) b->run[b->run_count].wanted = pe_batch_seq_wanted(b, seq);
  seq->chunk = tokens;
  pe_batch_touch(b, seq);
  b->ran[b->run_count++] = seq;
  return true;
}

/* A grant to a sequence in DECODE generates one token. After a run of forced tokens that means to
 * compute several, which the caller did not know of when it chose the grants. */
static int32_t chunk_of(const pe_batch *b, pe_batch_seq *seq, int32_t tokens, int32_t most) {
  const int32_t past = seq->cache.past;
  seq->cut = next_cut(b, seq);
  int32_t left = seq->count - past;
  if (seq->state == PE_SEQ_DECODE) tokens = left;
  if (tokens > most) tokens = most;
  if (left > seq->cut - past) left = seq->cut - past;
  if (tokens > left) tokens = left;
  return whole_end(seq, past + tokens) - past;
}

/* The sequence of a grant, if it can use one. */
static pe_batch_seq *usable(const pe_batch *b, const pe_grant *g) {
  pe_batch_seq *seq = g->tokens > 0 ? pe_batch_find(b, g->seq) : NULL;
  bool able = seq && seq->state < PE_SEQ_HELD && !seq->leader && !seq->yielded;
  return able && !pe_batch_fetching(b, seq) ? seq : NULL;
}

/* Once a sequence had to stay outside for lack of memory, none overtakes it in this step. */
static void schedule(pe_batch *b, const pe_grant *grants, int32_t count) {
  int32_t budget = b->o.step_tokens;
  bool closed = false;
  b->run_count = 0;
  pe_room_forget(b);
  for (int32_t i = 0; i < count && budget > 0 && b->run_count < b->o.sequences; i++) {
    pe_batch_seq *seq = usable(b, &grants[i]);
    if (!seq || seq->chunk || (seq->state == PE_SEQ_WAITING && closed)) continue;
    if (seq->state == PE_SEQ_WAITING && !admit(b, seq, false)) {
      closed |= seq->state == PE_SEQ_WAITING && !seq->fetch;
      continue;
    }
    int32_t tokens = chunk_of(b, seq, grants[i].tokens, budget);
    if (take_in(b, seq, tokens)) budget -= tokens;
  }
  pe_room_forget(b);
}

/* ---- no sequence can run ------------------------------------------------------------------- */

static pe_batch_seq *first_usable(const pe_batch *b, const pe_grant *grants, int32_t count,
                                  const pe_batch_seq *except, int32_t *tokens) {
  for (int32_t i = 0; i < count; i++) {
    pe_batch_seq *seq = usable(b, &grants[i]);
    if (!seq || seq == except) continue;
    *tokens = grants[i].tokens;
    return seq;
  }
  return NULL;
}

/* The youngest running sequence, if another granted one profits from its preemption. */
static pe_batch_seq *victim(const pe_batch *b, const pe_grant *grants, int32_t count) {
  int32_t tokens;
  pe_batch_seq *young = NULL;
  for (int32_t i = 0; i < b->running; i++)
    if ((!young || b->active[i]->id > young->id) &&
        first_usable(b, grants, count, b->active[i], &tokens))
      young = b->active[i];
  return young;
}

/* As many tokens as there is room for. False: not even one. */
static bool try_alone(pe_batch *b, pe_batch_seq *seq, int32_t tokens) {
  if (seq->state == PE_SEQ_WAITING && !admit(b, seq, true)) return seq->state == PE_SEQ_DONE;
  tokens = chunk_of(b, seq, tokens, b->o.step_tokens);
  while (!take_in(b, seq, tokens)) {
    if (seq->state == PE_SEQ_DONE) return true;
    int32_t fewer = tokens > 1 ? chunk_of(b, seq, tokens, tokens / 2) : tokens;
    if (fewer >= tokens) return false; /* one token, or a picture that must stay whole */
    tokens = fewer;
  }
  return true;
}

/* The sequence has all memory. It cannot write to blocks that it shares with the prefix cache, and
 * there may be no room for copies: then the cache gives up its memory and, if something is pinned,
 * the sequence starts again without it, once. */
static void run_alone(pe_batch *b, pe_batch_seq *seq, int32_t tokens) {
  if (try_alone(b, seq, tokens)) return;
  pe_prefix_vacate(b->prefix);
  if (try_alone(b, seq, tokens)) return;
  if (!seq->restarted) {
    pe_batch_release(b, seq);
    seq->state = PE_SEQ_WAITING, seq->restarted = true;
    if (try_alone(b, seq, tokens)) return;
  }
  pe_error_prefix(&seq->error, "no room for token %d of sequence %lld, even alone",
                  seq->cache.past + 1, (long long)seq->id);
  pe_batch_fail(b, seq);
}

/* Every round but the last one preempts a running sequence, so it ends. */
static void choose(pe_batch *b, const pe_grant *grants, int32_t count) {
  for (;;) {
    pe_batch_seq *seq;
    int32_t tokens = 0;
    schedule(b, grants, count);
    if (b->run_count || !(seq = first_usable(b, grants, count, NULL, &tokens))) return;
    pe_batch_seq *young = victim(b, grants, count);
    if (!young) {
      run_alone(b, seq, tokens);
      return;
    }
    pe_batch_yield(b, young);
    young->yielded = true;
  }
}

/* ---- a step -------------------------------------------------------------------------------- */

/* Takes sequences that are done out of the table. Only pointers are moved: 4000 of them take a
 * microsecond. */
static void remove_all(pe_batch *b, pe_batch_seq **done, size_t count) {
  size_t n = 0;
  for (size_t i = 0; i < count; i++) done[i]->place = (int32_t)pe_batch_index(b, done[i]->id);
  for (size_t i = 0; i < count; i++) {
    b->seq[done[i]->place] = NULL;
    pe_batch_seq_free(done[i]);
  }
  for (size_t i = 0; i < b->seq_count; i++)
    if (b->seq[i]) b->seq[n++] = b->seq[i];
  b->seq_count = n;
}

/* Frees the sequences that are done, with the events of the last step. */
static void sweep(pe_batch *b) {
  size_t done = 0;
  b->event_count = 0, b->run_count = 0;
  for (size_t i = 0; i < b->touched_count; i++) {
    pe_batch_seq *seq = b->touched[i];
    b->visits++;
    seq->chunk = 0, seq->output = -1, seq->yielded = false, seq->text.len = 0;
    seq->touched = seq->shares = false;
    if (seq->state == PE_SEQ_DONE) b->touched[done++] = seq;
  }
  b->touched_count = 0;
  if (done) remove_all(b, b->touched, done);
}

/* The choices that waited for this prompt get a fork of its cache and draw from the same logits.
 * One that finds no slot computes the prompt itself later. */
static void fork_followers(pe_batch *b, pe_batch_seq *leader) {
  for (size_t i = 0; i < b->seq_count; i++) {
    pe_batch_seq *follower = b->seq[i];
    if (follower->leader != leader->id || follower->state == PE_SEQ_DONE) continue;
    follower->leader = 0;
    pe_batch_touch(b, follower);
    if (b->running >= b->o.sequences) continue;
    if (pe_seq_fork(&leader->cache, &follower->cache, &follower->error)) {
      pe_batch_fail(b, follower);
      continue;
    }
    pe_batch_opened(b, follower);
    follower->state = PE_SEQ_PREFILL;
    follower->output = leader->output, follower->cached = leader->cached;
    follower->shares = leader->shares = true;
  }
}

static void advance(pe_batch *b, pe_trace *t) {
  int32_t outputs = 0;
  for (int32_t i = 0; i < b->run_count; i++) {
    pe_batch_seq *seq = b->ran[i];
    bool prefill = seq->state == PE_SEQ_PREFILL;
    pe_batch_touch(b, seq); /* it may have been looked at while the step computed */
    pe_seq_advance(&seq->cache, seq->chunk);
    t->rows += seq->chunk, t->prefill += prefill, t->decode += !prefill;
    if (prefill) b->stats.prefill_tokens += (uint64_t)seq->chunk;
    if (seq->cache.past == seq->cut) pe_batch_remember(b, seq);
    if (b->run[i].outputs) seq->output = outputs++;
    if (seq->output >= 0 && seq->request->r.n > 1 && !pe_batch_seq_generated(seq))
      fork_followers(b, seq);
  }
}

/* A step for which there was no memory may have left states half way: its sequences start again
 * from their tokens. After FAILURES steps in a row that failed, each further one costs the sequence
 * that was granted last: so fewer and fewer are tried, and a lack of memory that lasts ends
 * requests instead of trying them forever. */
static void undo(pe_batch *b, const pe_error *why) {
  enum { FAILURES = 3 };
  if (b->failures < FAILURES) {
    b->failures++;
  } else if (b->run_count > 0) {
    pe_batch_seq *last = b->ran[--b->run_count];
    last->error = *why;
    pe_batch_fail(b, last);
  }
  for (int32_t i = 0; i < b->run_count; i++) {
    pe_batch_release(b, b->ran[i]);
    b->ran[i]->state = PE_SEQ_WAITING;
    b->stats.preempted++;
  }
}

/* A file of the weights is lost: no sequence can go on, and no cached prefix is certain to have
 * been computed from what the file was. */
static void lose_all(pe_batch *b, const pe_error *why) {
  pe_prefix_abandon(b->prefix);
  for (size_t i = 0; i < b->seq_count; i++) {
    if (b->seq[i]->state == PE_SEQ_DONE) continue;
    b->seq[i]->error = *why;
    pe_batch_fail(b, b->seq[i]);
  }
}

/* The step failed. The files of the weights, or memory, or else the backend: that hits the requests
 * of the step and no other. Nothing of what it wrote is used again. */
static pe_status fail_step(pe_batch *b, pe_status rc, const pe_error *why) {
  pe_error lost;
  if (pe_weights_intact(b->graph->weights, &lost)) {
    lose_all(b, &lost);
    return PE_OK;
  }
  if (rc == PE_ENOMEM) {
    undo(b, why);
    return rc;
  }
  for (int32_t i = 0; i < b->run_count; i++) {
    b->ran[i]->error = *why;
    pe_batch_fail(b, b->ran[i]);
  }
  return PE_OK;
}

static void note(pe_batch *b, const pe_trace *t) {
  b->stats.schedule_ns += (uint64_t)t->schedule_ns;
  b->stats.compute_ns += (uint64_t)t->compute_ns;
  b->stats.sample_ns += (uint64_t)t->sample_ns;
  b->trace[b->stats.steps++ % PE_TRACE_STEPS] = *t;
}

static void choose_runs(pe_batch *b, const pe_grant *grants, int32_t count) {
  pe_error lost;
  sweep(b);
  if (pe_weights_intact(b->graph->weights, &lost))
    lose_all(b, &lost);
  else
    choose(b, grants, count);
}

pe_status pe_batch_submit(pe_batch *b, const pe_grant *grants, int32_t count, pe_error *err) {
  assert(!b->submitted);
  b->step = (pe_trace){.at_ns = pe_clock_ns()};
  choose_runs(b, grants, count);
  if (!b->run_count) return PE_OK;
  b->step.schedule_ns = pe_clock_ns() - b->step.at_ns;
  pe_status rc = pe_device_submit(b->device, b->run, b->run_count, err);
  b->submitted = !rc;
  return rc ? fail_step(b, rc, err) : PE_OK;
}

pe_status pe_batch_wait(pe_batch *b, int32_t *ran, pe_error *err) {
  pe_trace *t = &b->step;
  *ran = 0;
  if (!b->submitted) return PE_OK;
  pe_batch_make_masks(b);
  pe_status rc = pe_device_wait(b->device, err);
  b->submitted = false;
  if (rc) return fail_step(b, rc, err);
  b->failures = 0;
  int64_t computed = pe_clock_ns();
  advance(b, t);
  pe_batch_sample_all(b);
  *ran = b->run_count;
  t->compute_ns = computed - t->at_ns - t->schedule_ns;
  t->sample_ns = pe_clock_ns() - computed;
  note(b, t);
  return PE_OK;
}

pe_status pe_batch_step(pe_batch *b, const pe_grant *grants, int32_t count, int32_t *ran,
                        pe_error *err) {
  pe_status rc = pe_batch_submit(b, grants, count, err);
  pe_status waited = pe_batch_wait(b, ran, rc ? NULL : err);
  return rc ? rc : waited;
}
