/* batch_sample.c - see batch_seq.h: from logits to a token, from a token to its event. */
#include "runtime/batch/batch_seq.h"
#include "runtime/batch/sampler_listed.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- bans ---------------------------------------------------------------------------------- */

static bool has_id(pe_ids_view ids, int32_t id) {
  for (int32_t i = 0; i < ids.count; i++)
    if (ids.id[i] == id) return true;
  return false;
}

static bool ends(const pe_batch *b, const pe_batch_seq *seq, int32_t id) {
  const pe_request *q = &seq->request->r;
  pe_ids_view end = {b->o.end_ids, b->o.end_count};
  return (!q->ignore_eos && has_id(end, id)) || has_id(q->stop_ids, id);
}

/* As many as there will be at most: end tokens before min_tokens, and one of each bad word. */
static int32_t most_bans(const pe_batch *b, const pe_batch_seq *seq) {
  const pe_request *q = &seq->request->r;
  const bool ends_banned = pe_batch_seq_generated(seq) < q->min_tokens;
  return q->bad_count + (ends_banned ? b->o.end_count + q->stop_ids.count : 0);
}

/* Fills `ban`, which was made large enough when the request came. */
static int32_t collect_bans(const pe_batch *b, const pe_batch_seq *seq, int32_t *ban) {
  const pe_request *q = &seq->request->r;
  int32_t n = 0, generated = pe_batch_seq_generated(seq);
  bool free = seq->constraint && pe_constraint_bans_ends(seq->constraint);
  if (generated < q->min_tokens || free) {
    for (int32_t i = 0; !q->ignore_eos && i < b->o.end_count; i++) ban[n++] = b->o.end_ids[i];
    for (int32_t i = 0; i < q->stop_ids.count; i++) ban[n++] = q->stop_ids.id[i];
  }
  for (int32_t i = 0; i < q->bad_count; i++) {
    pe_ids_view word = q->bad_words[i];
    int32_t before = word.count - 1;
    const int32_t *last = seq->token + seq->count - before;
    if (before > generated || memcmp(last, word.id, (size_t)before * sizeof *last)) continue;
    ban[n++] = word.id[before];
  }
  return n;
}

/* ---- choosing a token: on the pool, touches only the sequence and the drawer --------------- */

static pe_history history_of(const pe_batch_seq *seq) {
  return (pe_history){seq->token, seq->count, pe_batch_seq_prompt(seq)};
}

/* A forced token is a greedy choice with an overwhelming bias, so that its logprobs are reported
 * like those of any other. */
static pe_status pick_forced(pe_sampler *sampler, pe_batch_seq *seq, const float *logits) {
  int32_t id = seq->forced[seq->forced_at];
  pe_logit_bias bias = {id, 1e30f};
  pe_sampling s = pe_sampling_defaults();
  s.temperature = 0, s.top_logprobs = seq->sampling.top_logprobs;
  s.bias = &bias, s.bias_count = 1;
  const pe_history history = history_of(seq);
  pe_status rc =
      pe_sampler_pick(sampler, &s, logits, &history, seq->count, NULL, 0, &seq->drawn, &seq->error);
  if (rc) return rc;
  if (seq->drawn.id != id) /* its logit is -infinity */
    seq->drawn.id = id, seq->drawn.logprob = -INFINITY;
  seq->forced_at++;
  return PE_OK;
}

/* What its next token depends on; the same before and after its step. */
static pe_wanted wanted_of(const pe_batch *b, const pe_batch_seq *seq, const pe_sampling *s) {
  const pe_history history = history_of(seq);
  if (!pe_device_lists(b->device)) return (pe_wanted){0};
  return pe_sampler_wants(s, b->plan->drawable, &history, most_bans(b, seq));
}

/* The list of its row: the device's, if that is what it wants, or one made from the row where it
 * must have one. False: none. */
static bool find_list(const pe_batch *b, const pe_drawer *d, pe_batch_seq *seq,
                      const pe_sampling *s, const float *logits, pe_shortlist *out) {
  const pe_wanted w = wanted_of(b, seq, s);
  if (!w.best) return false;
  seq->listed = seq->output >= 0 && pe_device_shortlist(b->device, seq->output, out) &&
                !memcmp(&out->wanted, &w, sizeof w);
  return seq->listed || (pe_sampler_needs_list(s) && pe_sampler_list(d->sampler, logits, &w, out));
}

static bool waits_for_forced(const pe_batch_seq *seq) { return seq->forced_at < seq->forced_count; }

static pe_status pick_free(const pe_batch *b, const pe_drawer *d, pe_batch_seq *seq,
                           const pe_sampling *s, float *logits) {
  const pe_history history = history_of(seq);
  const int32_t bans = collect_bans(b, seq, d->ban);
  pe_shortlist list;
  if (find_list(b, d, seq, s, logits, &list)) {
    pe_status rc = pe_sampler_pick_listed(d->sampler, s, &list, logits, &history, seq->count,
                                          d->ban, bans, &seq->drawn, &seq->error);
    if (rc || seq->drawn.id >= 0) return rc;
    seq->listed = false;
  }
  return seq->shares ? pe_sampler_pick(d->sampler, s, logits, &history, seq->count, d->ban, bans,
                                       &seq->drawn, &seq->error)
                     : pe_sampler_pick_own(d->sampler, s, logits, &history, seq->count, d->ban,
                                           bans, &seq->drawn, &seq->error);
}

/* The mask was made while the step computed; if not, it is made now. */
static pe_status pick_masked(const pe_batch *b, const pe_drawer *d, pe_batch_seq *seq,
                             const pe_sampling *s, float *logits) {
  pe_sampling masked = *s;
  pe_status rc = pe_constraint_mask(seq->constraint, &masked.allow, &seq->error);
  return rc ? rc : pick_free(b, d, seq, &masked, logits);
}

/* Not where every token has logprobs, which need its logits, nor where bad words must be looked for
 * at every token, nor before tokens that were forced by hand. */
static bool may_run(const pe_batch_seq *seq) {
  const pe_request *q = &seq->request->r;
  return q->fast_forward && seq->sampling.top_logprobs < 0 && !q->bad_count &&
         !seq->sampling.banned_count && !waits_for_forced(seq);
}

/* The constraint takes the drawn token, and says what must come after it. */
static pe_status follow(const pe_drawer *d, pe_batch_seq *seq) {
  enum { LAST = PE_CONSTRAINT_LOOKBACK };
  int32_t made[LAST], generated = pe_batch_seq_generated(seq);
  int32_t n = generated < LAST - 1 ? generated : LAST - 1;
  bool ok;
  pe_status rc = pe_constraint_take(seq->constraint, seq->drawn.id, &ok, &seq->error);
  if (!rc && !ok)
    rc = pe_fail(&seq->error, PE_EARG, "token %d at position %d does not fit the grammar",
                 seq->drawn.id, seq->count);
  seq->run.count = 0;
  if (rc || !may_run(seq)) return rc;
  memcpy(made, seq->token + seq->count - n, (size_t)n * sizeof *made);
  made[n] = seq->drawn.id;
  return pe_constraint_run(seq->constraint, d->scratch, made, n + 1,
                           seq->request->limit - generated - 1, &seq->run, &seq->error);
}

static void pick(const pe_batch *b, const pe_drawer *d, pe_batch_seq *seq, const pe_sampling *s,
                 float *logits) {
  seq->draw = waits_for_forced(seq) ? pick_forced(d->sampler, seq, logits)
              : seq->constraint     ? pick_masked(b, d, seq, s, logits)
                                    : pick_free(b, d, seq, s, logits);
  if (!seq->draw && seq->constraint) seq->draw = follow(d, seq);
}

pe_wanted pe_batch_seq_wanted(const pe_batch *b, const pe_batch_seq *seq) {
  const bool reads = seq->request->r.hold || seq->kept || seq->constraint || waits_for_forced(seq);
  return reads ? (pe_wanted){0} : wanted_of(b, seq, &seq->sampling);
}

/* max_tokens is 0: only the prompt was wanted. */
static bool prefill_only(const pe_batch_seq *seq) {
  return pe_batch_seq_generated(seq) >= seq->request->limit;
}

/* After a token, or before the first one: then the empty text is the only answer. A draw is taken
 * before its token is appended. */
static bool is_over(const pe_batch_seq *seq) {
  return seq->constraint && pe_constraint_over(seq->constraint) &&
         pe_constraint_count(seq->constraint) == pe_batch_seq_generated(seq);
}

static bool holds(const pe_batch_seq *seq) {
  return seq->request->r.hold && !waits_for_forced(seq);
}

/* A mask that fails is made again by the draw, which then has its error. */
static void make_mask(void *ctx, int task, int tasks) {
  const pe_batch *b = ctx;
  const uint32_t *allow;
  (void)tasks;
  pe_constraint_mask(b->drawing[task]->constraint, &allow, NULL);
}

void pe_batch_make_masks(pe_batch *b) {
  int32_t count = 0;
  for (int32_t i = 0; i < b->run_count; i++) {
    pe_batch_seq *seq = b->ran[i];
    if (b->run[i].outputs && seq->constraint && !waits_for_forced(seq)) b->drawing[count++] = seq;
  }
  if (count) pe_pool_run(b->pool, make_mask, b, count);
}

typedef struct drawing {
  pe_batch *batch;
  int32_t count;
  _Atomic int32_t next;
} drawing;

/* Sequences cost differently, so each task takes the next one. A sampler keeps no state, so it does
 * not matter which task draws for which sequence. */
static void pick_some(void *ctx, int task, int tasks) {
  drawing *d = ctx;
  (void)tasks;
  for (int32_t i; (i = atomic_fetch_add(&d->next, 1)) < d->count;) {
    const pe_batch *b = d->batch;
    pe_batch_seq *seq = b->drawing[i];
    float *logits = pe_device_logits(b->device, seq->output);
    seq->listed = false;
    if (seq->kept) {
      memcpy(seq->kept, logits, (size_t)b->plan->vocabulary * sizeof *logits);
      seq->has_kept = seq->news = true;
    }
    if (prefill_only(seq) || is_over(seq)) continue;
    if (holds(seq))
      seq->state = PE_SEQ_HELD;
    else
      pick(b, &b->drawer[task], seq, &seq->sampling, logits);
  }
}

/* ---- events, in the order of the sequences ------------------------------------------------- */

/* The text that a token makes certain, and whether the sequence ends with it. */
static pe_status settle(pe_batch *b, pe_batch_seq *seq, int32_t id, pe_event *e, pe_finish *why) {
  int hit = -1;
  int32_t generated = pe_batch_seq_generated(seq);
  const size_t from = seq->text.len;
  const bool end = ends(b, seq, id);
  pe_status rc = PE_OK;
  *why = end || is_over(seq)                ? PE_FINISH_STOP
         : generated >= seq->request->limit ? PE_FINISH_LENGTH
                                            : PE_FINISH_NONE;
  if (!end) rc = pe_batch_seq_emit(seq, id, generated, &hit, &seq->error);
  if (!rc && *why && hit < 0) rc = pe_batch_seq_emit_rest(seq, &hit, &seq->error);
  if (hit >= 0) *why = PE_FINISH_STOP;
  e->stop_index = hit;
  e->text.len = seq->text.len - from; /* take_drawn knows where it is */
  return rc;
}

/* Appends a token and pushes its event. rc: the status so far. */
static void take_token(pe_batch *b, pe_batch_seq *seq, pe_status rc, const pe_choice *choice,
                       bool forced) {
  pe_event e = {.seq = seq->id, .stop_index = -1};
  pe_finish why = PE_FINISH_NONE;
  if (!rc) rc = pe_batch_seq_append(seq, choice->id, &seq->error);
  if (!rc) {
    e.token = true, e.choice = *choice, e.forced = forced;
    seq->state =
        pe_batch_seq_runs(seq) ? PE_SEQ_DECODE : PE_SEQ_WAITING; /* preempted while it was held */
    seq->runs += forced;
    b->stats.decode_tokens++, b->stats.forced_tokens += forced;
    b->stats.listed_tokens += seq->listed;
    rc = settle(b, seq, choice->id, &e, &why);
  }
  if (rc) why = PE_FINISH_ERROR;
  if (why)
    pe_batch_finish(b, seq, why, &e);
  else
    pe_batch_push(b, &e);
}

/* The tokens after the drawn one that need no step. */
static void take_run(pe_batch *b, pe_batch_seq *seq) {
  if (!seq->run.count) return;
  if (pe_batch_reserve_events(b, seq->run.count, &seq->error)) {
    pe_batch_fail(b, seq);
    return;
  }
  for (size_t i = 0; i < seq->run.count && seq->state != PE_SEQ_DONE; i++) {
    const pe_choice choice = {.id = seq->run.id[i]};
    bool ok;
    pe_status rc = pe_constraint_take(seq->constraint, choice.id, &ok, &seq->error);
    if (!rc && !ok) break;
    take_token(b, seq, rc, &choice, true);
  }
}

/* The text of a step is in one buffer, which moves while it grows. */
static void take_drawn(pe_batch *b, pe_batch_seq *seq) {
  const size_t first = b->event_count;
  size_t from = seq->text.len;
  take_token(b, seq, seq->draw, &seq->drawn, false);
  if (seq->state != PE_SEQ_DONE) take_run(b, seq);
  for (size_t i = first; i < b->event_count; i++) {
    pe_str *text = &b->event[i].text;
    text->at = seq->text.data ? seq->text.data + from : NULL;
    from += text->len;
  }
}

void pe_batch_sample_one(pe_batch *b, pe_batch_seq *seq, const pe_sampling *s, float *logits) {
  seq->listed = false;
  pick(b, &b->drawer[0], seq, s, logits);
  take_drawn(b, seq);
}

static void report(pe_batch *b, pe_batch_seq *seq) {
  pe_event e = {.seq = seq->id, .stop_index = -1};
  if (prefill_only(seq) || is_over(seq)) {
    pe_batch_finish(b, seq, is_over(seq) ? PE_FINISH_STOP : PE_FINISH_LENGTH, &e);
  } else if (seq->state == PE_SEQ_HELD) {
    e.held = true;
    pe_batch_push(b, &e);
  } else {
    take_drawn(b, seq);
  }
}

static int by_id(const void *a, const void *b) {
  pe_seq_id x = (*(pe_batch_seq *const *)a)->id, y = (*(pe_batch_seq *const *)b)->id;
  return (x > y) - (x < y);
}

void pe_batch_sample_all(pe_batch *b) {
  drawing d = {.batch = b};
  for (size_t i = 0; i < b->touched_count; i++)
    if (b->touched[i]->output >= 0 && b->touched[i]->state != PE_SEQ_DONE)
      b->drawing[d.count++] = b->touched[i];
  qsort(b->drawing, (size_t)d.count, sizeof(pe_batch_seq *), by_id);
  pe_pool_run(b->pool, pick_some, &d, d.count < b->drawers ? d.count : b->drawers);
  for (int32_t i = 0; i < d.count; i++) report(b, b->drawing[i]);
}
