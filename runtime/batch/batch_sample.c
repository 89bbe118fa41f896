/* batch_sample.c - see batch.h: from logits to a token, from a token to text, and how a row ends. */
#include "runtime/batch/batch_seq.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* ---- the end of a row ------------------------------------------------------------------------------------------ */

static void push(pe_batch *b, const pe_event *e) { b->event[b->event_count++] = *e; }

/* A first choice that leaves before its prompt is read is followed by the next one. */
static void hand_on(pe_batch *b, const pe_batch_seq *r) {
  pe_seq_id next = 0;
  for (size_t i = 0; i < b->row_count; i++) {
    pe_batch_seq *f = b->row[i];
    if (f->leader != r->id || f->state == PE_SEQ_DONE) continue;
    f->leader = next;
    if (!next) next = f->id;
  }
}

void pe_batch_finish(pe_batch *b, pe_batch_seq *r, pe_finish why, pe_event *e) {
  e->finish = why;
  e->prompt = pe_batch_seq_prompt(r), e->generated = pe_batch_seq_made(r), e->cached = r->cached;
  if (why == PE_FINISH_ERROR)
    e->error = r->error.text;
  else if (r->seq.kv)
    pe_batch_remember(b, r);
  pe_batch_release(b, r);
  r->state = PE_SEQ_DONE, r->seq.past = 0;
  b->alive--;
  if (r->request->r.n > 1) hand_on(b, r);
  uint64_t *count = why == PE_FINISH_ERROR    ? &b->stats.failed
                    : why == PE_FINISH_CANCEL ? &b->stats.cancelled
                                              : &b->stats.finished;
  ++*count;
  push(b, e);
}

void pe_batch_fail(pe_batch *b, pe_batch_seq *r) {
  pe_event e = {.row = r->id, .stop_index = -1};
  pe_batch_finish(b, r, PE_FINISH_ERROR, &e);
}

/* ---- what may not come ----------------------------------------------------------------------------------------- */

static bool has_id(const int32_t *id, int32_t count, int32_t what) {
  for (int32_t i = 0; i < count; i++)
    if (id[i] == what) return true;
  return false;
}

static bool ends(const pe_batch *b, const pe_batch_seq *r, int32_t id) {
  const pe_request *q = &r->request->r;
  return (!q->ignore_eos && has_id(b->o.end_ids, b->o.end_count, id)) ||
         has_id(q->stop_ids.id, q->stop_ids.count, id);
}

/* Fills ban, which has had room for all of it since the request came. */
static int32_t bans(const pe_batch *b, const pe_batch_seq *r, int32_t *ban) {
  const pe_request *q = &r->request->r;
  int32_t n = 0, made = pe_batch_seq_made(r);
  if (made < q->min_tokens) {
    for (int32_t i = 0; !q->ignore_eos && i < b->o.end_count; i++) ban[n++] = b->o.end_ids[i];
    for (int32_t i = 0; i < q->stop_ids.count; i++) ban[n++] = q->stop_ids.id[i];
  }
  for (int32_t i = 0; i < q->bad_count; i++) {
    pe_ids_view w = q->bad_words[i];
    int32_t before = w.count - 1;
    if (before > made || memcmp(r->token + r->count - before, w.id, (size_t)before * sizeof *w.id))
      continue;
    ban[n++] = w.id[before];
  }
  return n;
}

/* ---- tokens, each row on some thread ----------------------------------------------------------------------------- */

/* A forced token is what a greedy choice with an overwhelming bias gives: its logprobs are those of the raw logits. */
static pe_status pick_forced(pe_sampler *sampler, pe_batch_seq *r, const float *logits) {
  int32_t id = r->forced[r->forced_at];
  pe_logit_bias bias = {id, 1e30f};
  pe_sampling s = pe_sampling_defaults();
  s.temperature = 0, s.bias = &bias, s.bias_count = 1, s.top_logprobs = r->sampling.top_logprobs;
  pe_history h = {r->token, r->count, pe_batch_seq_prompt(r)};
  pe_status rc = pe_sampler_pick(sampler, &s, logits, &h, r->count, NULL, 0, &r->drawn, &r->error);
  if (rc) return rc;
  if (r->drawn.id != id)
    r->drawn.id = id, r->drawn.logprob = -INFINITY; /* a token of no probability at all */
  r->forced_at++;
  return PE_OK;
}

/* Touches nothing but the row and the drawer. */
static void pick(const pe_batch *b, const pe_drawer *d, pe_batch_seq *r, const pe_sampling *s,
                 const float *logits) {
  pe_history h = {r->token, r->count, pe_batch_seq_prompt(r)};
  r->draw = r->forced_at < r->forced_count
                ? pick_forced(d->sampler, r, logits)
                : pe_sampler_pick(d->sampler, s, logits, &h, r->count, d->ban, bans(b, r, d->ban),
                                  &r->drawn, &r->error);
}

/* Was nothing asked for but reading? Does the caller draw? */
static bool only_reads(const pe_batch_seq *r) { return pe_batch_seq_made(r) >= r->request->limit; }
static bool holds(const pe_batch_seq *r) {
  return r->request->r.hold && r->forced_at == r->forced_count;
}

typedef struct drawing {
  pe_batch *batch;
  int32_t count;
  _Atomic int32_t next;
} drawing;

/* Rows cost differently, so each task takes the next one. A sampler remembers nothing: whose turn it is makes no difference. */
static void pick_some(void *ctx, int task, int tasks) {
  drawing *d = ctx;
  (void)tasks;
  for (int32_t i; (i = atomic_fetch_add(&d->next, 1)) < d->count;) {
    const pe_batch *b = d->batch;
    pe_batch_seq *r = b->drawing[i];
    const float *logits = pe_device_logits(b->exec, r->line);
    if (r->kept)
      memcpy(r->kept, logits, (size_t)b->plan->vocabulary * sizeof *logits),
          r->has_kept = r->news = true;
    if (only_reads(r)) continue;
    if (holds(r))
      r->state = PE_SEQ_HELD;
    else
      pick(b, &b->drawer[task], r, &r->sampling, logits);
  }
}

/* ---- what comes of them, in the order of the rows ---------------------------------------------------------------- */

/* The text that a token brings, and why the row ends with it, if it does. An end token has no text. */
static pe_status settle(pe_batch *b, pe_batch_seq *r, int32_t id, pe_event *e, pe_finish *why) {
  int hit = -1;
  pe_status rc = PE_OK;
  *why = ends(b, r, id)                              ? PE_FINISH_STOP
         : pe_batch_seq_made(r) >= r->request->limit ? PE_FINISH_LENGTH
                                                     : PE_FINISH_NONE;
  if (*why != PE_FINISH_STOP) rc = pe_batch_seq_say(r, id, pe_batch_seq_made(r), &hit, &r->error);
  if (!rc && *why && hit < 0) rc = pe_batch_seq_say_rest(r, &hit, &r->error);
  if (hit >= 0) *why = PE_FINISH_STOP;
  e->stop_index = hit;
  e->text = pe_str_of(r->text.data, r->text.len);
  return rc;
}

static void take_drawn(pe_batch *b, pe_batch_seq *r) {
  pe_event e = {.row = r->id, .stop_index = -1};
  pe_finish why = PE_FINISH_NONE;
  pe_status rc = r->draw;
  if (!rc) rc = pe_batch_seq_append(r, r->drawn.id, &r->error);
  if (!rc) {
    e.token = true, e.choice = r->drawn;
    r->state = pe_batch_seq_runs(r) ? PE_SEQ_DECODE
                                    : PE_SEQ_WAITING; /* a held row may have lost its caches */
    b->stats.written_tokens++;
    rc = settle(b, r, r->drawn.id, &e, &why);
  }
  if (rc) why = PE_FINISH_ERROR;
  if (why)
    pe_batch_finish(b, r, why, &e);
  else
    push(b, &e);
}

void pe_batch_pick(pe_batch *b, pe_batch_seq *r, const pe_sampling *s, const float *logits) {
  pick(b, &b->drawer[0], r, s, logits);
  take_drawn(b, r);
}

static void go_on(pe_batch *b, pe_batch_seq *r) {
  pe_event e = {.row = r->id, .stop_index = -1};
  if (only_reads(r)) {
    pe_batch_finish(b, r, PE_FINISH_LENGTH, &e);
  } else if (r->state == PE_SEQ_HELD) {
    e.held = true;
    push(b, &e);
  } else {
    take_drawn(b, r);
  }
}

void pe_batch_draw(pe_batch *b) {
  drawing d = {.batch = b};
  for (size_t i = 0; i < b->row_count; i++)
    if (b->row[i]->line >= 0 && b->row[i]->state != PE_SEQ_DONE) b->drawing[d.count++] = b->row[i];
  pe_pool_run(b->pool, pick_some, &d, d.count < b->drawers ? d.count : b->drawers);
  for (int32_t i = 0; i < d.count; i++) go_on(b, b->drawing[i]);
}
