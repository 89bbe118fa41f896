/* batch_sample.c - see batch_seq.h: from logits to a token, from a token to its event. */
#include "runtime/batch/batch_seq.h"

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

/* Fills `ban`, which was made large enough when the request came. */
static int32_t collect_bans(const pe_batch *b, const pe_batch_seq *seq, int32_t *ban) {
  const pe_request *q = &seq->request->r;
  int32_t n = 0, generated = pe_batch_seq_generated(seq);
  if (generated < q->min_tokens) {
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

/* A forced token is a greedy choice with an overwhelming bias, so that its logprobs are reported
 * like those of any other. */
static pe_status pick_forced(pe_sampler *sampler, pe_batch_seq *seq, const float *logits) {
  int32_t id = seq->forced[seq->forced_at];
  pe_logit_bias bias = {id, 1e30f};
  pe_sampling s = pe_sampling_defaults();
  s.temperature = 0, s.top_logprobs = seq->sampling.top_logprobs;
  s.bias = &bias, s.bias_count = 1;
  pe_history history = {seq->token, seq->count, pe_batch_seq_prompt(seq)};
  pe_status rc =
      pe_sampler_pick(sampler, &s, logits, &history, seq->count, NULL, 0, &seq->drawn, &seq->error);
  if (rc) return rc;
  if (seq->drawn.id != id) /* its logit is -infinity */
    seq->drawn.id = id, seq->drawn.logprob = -INFINITY;
  seq->forced_at++;
  return PE_OK;
}

/* From the shortlist of its output, if that has all that it depends on. */
static bool pick_listed(const pe_batch *b, pe_sampler *sampler, pe_batch_seq *seq) {
  pe_shortlist list;
  const int32_t best = pe_batch_seq_best(b, seq);
  if (!best || !pe_device_shortlist(b->device, seq->output, &list) || list.best < best)
    return false;
  seq->draw = pe_sampler_pick_listed(sampler, &seq->sampling, list.logit, list.id, list.count,
                                     seq->count, &seq->drawn, &seq->error);
  return true;
}

static void pick(const pe_batch *b, const pe_drawer *d, pe_batch_seq *seq, const pe_sampling *s,
                 float *logits) {
  if (seq->forced_at < seq->forced_count) {
    seq->draw = pick_forced(d->sampler, seq, logits);
    return;
  }
  pe_history history = {seq->token, seq->count, pe_batch_seq_prompt(seq)};
  int32_t bans = collect_bans(b, seq, d->ban);
  seq->draw = seq->shares ? pe_sampler_pick(d->sampler, s, logits, &history, seq->count, d->ban,
                                            bans, &seq->drawn, &seq->error)
                          : pe_sampler_pick_own(d->sampler, s, logits, &history, seq->count, d->ban,
                                                bans, &seq->drawn, &seq->error);
}

int32_t pe_batch_seq_best(const pe_batch *b, const pe_batch_seq *seq) {
  const pe_request *q = &seq->request->r;
  const bool ends_banned = pe_batch_seq_generated(seq) < q->min_tokens;
  const bool reads = q->hold || seq->kept || seq->forced_at < seq->forced_count;
  if (reads || ends_banned || q->bad_count) return 0;
  pe_history history = {seq->token, seq->count, pe_batch_seq_prompt(seq)};
  const int32_t best = pe_sampler_best(&seq->sampling, &history);
  return best < b->plan->drawable ? best : 0;
}

/* max_tokens is 0: only the prompt was wanted. */
static bool prefill_only(const pe_batch_seq *seq) {
  return pe_batch_seq_generated(seq) >= seq->request->limit;
}

static bool holds(const pe_batch_seq *seq) {
  return seq->request->r.hold && seq->forced_at == seq->forced_count;
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
    if (prefill_only(seq)) continue;
    if (holds(seq))
      seq->state = PE_SEQ_HELD;
    else if (!(seq->listed = pick_listed(b, b->drawer[task].sampler, seq)))
      pick(b, &b->drawer[task], seq, &seq->sampling, logits);
  }
}

/* ---- events, in the order of the sequences ------------------------------------------------- */

/* The text that a token makes certain, and whether the sequence ends with it. */
static pe_status settle(pe_batch *b, pe_batch_seq *seq, int32_t id, pe_event *e, pe_finish *why) {
  int hit = -1;
  int32_t generated = pe_batch_seq_generated(seq);
  pe_status rc = PE_OK;
  *why = ends(b, seq, id)                   ? PE_FINISH_STOP
         : generated >= seq->request->limit ? PE_FINISH_LENGTH
                                            : PE_FINISH_NONE;
  if (*why != PE_FINISH_STOP) rc = pe_batch_seq_emit(seq, id, generated, &hit, &seq->error);
  if (!rc && *why && hit < 0) rc = pe_batch_seq_emit_rest(seq, &hit, &seq->error);
  if (hit >= 0) *why = PE_FINISH_STOP;
  e->stop_index = hit;
  e->text = pe_str_of(seq->text.data, seq->text.len);
  return rc;
}

static void take_drawn(pe_batch *b, pe_batch_seq *seq) {
  pe_event e = {.seq = seq->id, .stop_index = -1};
  pe_finish why = PE_FINISH_NONE;
  pe_status rc = seq->draw;
  if (!rc) rc = pe_batch_seq_append(seq, seq->drawn.id, &seq->error);
  if (!rc) {
    e.token = true, e.choice = seq->drawn;
    seq->state =
        pe_batch_seq_runs(seq) ? PE_SEQ_DECODE : PE_SEQ_WAITING; /* preempted while it was held */
    b->stats.decode_tokens++, b->stats.listed_tokens += seq->listed;
    rc = settle(b, seq, seq->drawn.id, &e, &why);
  }
  if (rc) why = PE_FINISH_ERROR;
  if (why)
    pe_batch_finish(b, seq, why, &e);
  else
    pe_batch_push(b, &e);
}

void pe_batch_sample_one(pe_batch *b, pe_batch_seq *seq, const pe_sampling *s, float *logits) {
  pick(b, &b->drawer[0], seq, s, logits);
  take_drawn(b, seq);
}

static void report(pe_batch *b, pe_batch_seq *seq) {
  pe_event e = {.seq = seq->id, .stop_index = -1};
  if (prefill_only(seq)) {
    pe_batch_finish(b, seq, PE_FINISH_LENGTH, &e);
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
