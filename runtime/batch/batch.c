/* batch.c - see batch.h: opening and closing, the state of the sequences, counters. */
#include "runtime/batch/batch_seq.h"

#include <string.h>

/* ---- opening ------------------------------------------------------------------------------- */

static pe_status check_options(const pe_batch_options *o, pe_error *err) {
  enum { SEQUENCES = 1 << 16, STEP = 1 << 20, CONTEXT = INT32_MAX / 2 }; /* counts fit into int32 */
  if (o->sequences < 0 || o->sequences > SEQUENCES)
    return pe_fail_field(err, PE_EARG, "sequences", "sequences must be between 1 and %d, got %d",
                         SEQUENCES, o->sequences);
  if (o->step_tokens < 0 || o->step_tokens > STEP)
    return pe_fail_field(err, PE_EARG, "step_tokens",
                         "step_tokens must be between 1 and %d, got %d", STEP, o->step_tokens);
  if (o->context < 0 || o->context == 1 || o->context > CONTEXT)
    return pe_fail_field(err, PE_EARG, "context", "context must be between 2 and %d, got %lld",
                         CONTEXT, (long long)o->context);
  if (o->cache_tokens < 1)
    return pe_fail_field(err, PE_EARG, "cache_tokens", "cache_tokens must be 1 or more, got %lld",
                         (long long)o->cache_tokens);
  if (o->stride < 0)
    return pe_fail_field(err, PE_EARG, "stride", "stride must be 1 or more, got %d", o->stride);
  return PE_OK;
}

static void fill_defaults(pe_batch_options *o) {
  if (!o->sequences) o->sequences = 64;
  if (!o->step_tokens) o->step_tokens = 512;
  if (!o->context) o->context = 4096;
  if (!o->stride) o->stride = 512;
}

/* Config files list end ids that the head has no logit for: they are left out. */
static pe_status copy_end_ids(pe_batch *b, const pe_batch_options *o, pe_error *err) {
  int32_t *ids = pe_alloc((size_t)o->end_count * sizeof *ids), n = 0;
  if (!ids) return pe_nomem(err, "end ids");
  for (int32_t i = 0; i < o->end_count; i++)
    if (o->end_ids[i] >= 0 && o->end_ids[i] < b->plan->vocabulary) ids[n++] = o->end_ids[i];
  b->o.end_ids = ids, b->o.end_count = n;
  return PE_OK;
}

/* They are built for the first request with phases. */
static pe_status open_tokens(pe_batch *b, pe_error *err) {
  if (!b->o.tokenizer) return PE_OK;
  return pe_tokmask_open(b->o.tokenizer, b->o.end_ids, (size_t)b->o.end_count, &b->tokens, err);
}

pe_tokmask *pe_batch_tokens(const pe_batch *b) { return b->tokens; }

static pe_status open_drawers(pe_batch *b, pe_error *err) {
  int32_t threads = pe_pool_threads(b->pool);
  int32_t n = threads < b->o.sequences ? threads : b->o.sequences;
  if (!(b->drawer = pe_calloc((size_t)n, sizeof *b->drawer))) return pe_nomem(err, "samplers");
  pe_status rc = PE_OK;
  while (!rc && b->drawers < n) {
    pe_sampler **s = &b->drawer[b->drawers++].sampler;
    rc = pe_sampler_open(b->plan->drawable, s, err);
    if (!rc) pe_sampler_share(*s, b->pool);
  }
  return rc;
}

const uint8_t *pe_batch_identity(pe_batch *b) {
  static const uint8_t none[sizeof b->o.prefix.identity];
  uint8_t *id = b->o.prefix.identity;
  if (!memcmp(id, none, sizeof none)) pe_seq_identity(b->kv, id);
  return id;
}

static pe_status open_device(pe_batch *b, pe_error *err) {
  const pe_device_options o = {.backend = b->o.backend,
                               .plan = b->plan,
                               .pool = b->pool,
                               .kv = b->kv,
                               .recur = b->recur,
                               .precision = b->o.precision,
                               .progress = b->o.progress};
  return pe_device_open(&o, &b->device, err);
}

static pe_status open_caches(pe_batch *b, pe_error *err) {
  const pe_batch_options *o = &b->o;
  int32_t slots = o->sequences + 1; /* one for loading files */
  pe_kv_options kv = {.backend = o->backend ? o->backend->name : NULL,
                      .precision = o->precision,
                      .bits = o->kv_bits,
                      .block = o->kv_block,
                      .tokens = o->cache_tokens,
                      .sequences = slots};
  pe_status rc = pe_kv_open(b->graph, &kv, &b->kv, err);
  if (!rc) rc = pe_recur_open(b->graph, slots, &b->recur, err);
  if (!rc) rc = open_device(b, err);
  if (!rc && o->prefix.folder) pe_batch_identity(b);
  if (!rc) rc = pe_prefix_open(b->kv, b->recur, &o->prefix, &b->prefix, err);
  return rc;
}

static pe_status open_scratch(pe_batch *b, pe_error *err) {
  size_t n = (size_t)b->o.sequences, blocks = (size_t)b->kv->blocks;
  b->active = pe_calloc(n, sizeof(pe_batch_seq *));
  b->run = pe_calloc(n, sizeof *b->run);
  b->ran = pe_calloc(n, sizeof(pe_batch_seq *));
  b->drawing = pe_calloc(n, sizeof(pe_batch_seq *));
  b->room.mark = pe_calloc(blocks + 1, 1);
  b->room.holders = pe_calloc(blocks * (size_t)b->graph->group_count + 1, sizeof(int32_t));
  bool ok = b->active && b->run && b->ran && b->drawing && b->room.mark && b->room.holders;
  return ok ? open_drawers(b, err) : pe_nomem(err, "batch");
}

pe_status pe_batch_open(const pe_plan *plan, pe_pool *pool, const pe_batch_options *o,
                        pe_batch **out, pe_error *err) {
  pe_status rc = check_options(o, err);
  if (rc) return rc;
  pe_batch *b = pe_calloc(1, sizeof *b);
  if (!b) return pe_nomem(err, "batch");
  b->plan = plan, b->graph = plan->graph, b->pool = pool, b->next = 1;
  b->o = *o, b->o.end_ids = NULL;
  fill_defaults(&b->o);
  pe_tokenizer_retain(b->o.tokenizer);
  rc = copy_end_ids(b, o, err);
  if (!rc) rc = open_tokens(b, err);
  if (!rc) rc = open_caches(b, err);
  if (!rc) rc = open_scratch(b, err);
  if (!rc) rc = pe_weights_intact(b->graph->weights, err); /* constants were read from them */
  if (rc) {
    pe_batch_close(b);
    return rc;
  }
  b->o.prefix.folder = NULL, b->o.progress = NULL; /* borrowed until here */
  b->caching = o->prefix.budget > 0, b->stopping = b->graph->state_floats > 0;
  for (int32_t g = 0; g < b->graph->group_count; g++) b->stopping |= b->graph->group[g].window > 0;
  *out = b;
  return PE_OK;
}

/* What was computed from files that are lost meanwhile is not written. */
bool pe_batch_idle(pe_batch *b) {
  if (!b->prefix || pe_weights_intact(b->graph->weights, NULL)) return false;
  return pe_prefix_write(b->prefix);
}

void pe_batch_close(pe_batch *b) {
  if (!b) return;
  while (pe_batch_idle(b)) continue;
  for (size_t i = 0; i < b->seq_count; i++) {
    pe_seq_close(&b->seq[i]->cache);
    pe_batch_seq_free(b->seq[i]);
  }
  for (int32_t i = 0; i < b->drawers; i++) {
    pe_sampler_close(b->drawer[i].sampler);
    pe_free(b->drawer[i].ban);
    pe_tokenizer_scratch_free(b->drawer[i].scratch);
  }
  pe_free(b->drawer);
  pe_free(b->seq);
  pe_free(b->active);
  pe_free(b->touched);
  pe_free(b->unseen);
  pe_free(b->event);
  pe_free(b->run);
  pe_free(b->ran);
  pe_free(b->drawing);
  pe_free(b->room.mark);
  pe_free(b->room.holders);
  pe_free((void *)b->o.end_ids);
  pe_tokmask_release(b->tokens);
  pe_tokenizer_release(b->o.tokenizer);
  pe_prefix_close(b->prefix);
  pe_device_close(b->device);
  pe_recur_close(b->recur);
  pe_kv_close(b->kv);
  pe_free(b);
}

/* ---- state --------------------------------------------------------------------------------- */

/* In turn, and few at a time, so that a long queue does not delay the step. A lookup compares
 * tokens; 65536 of them take well below a millisecond. */
void pe_batch_peek(pe_batch *b) {
  enum { MOST = 64, MOST_COMPARED = 1 << 16 };
  uint64_t now = pe_prefix_changes(b->prefix);
  int64_t compared = 0;
  if (b->peek_at != now) b->peek_at = now, b->peek_left = b->seq_count;
  if (b->peek_left > b->seq_count) b->peek_left = b->seq_count;
  size_t at = pe_batch_index(b, b->peek);
  for (int i = 0; i < MOST && b->peek_left && compared < MOST_COMPARED; i++, b->peek_left--) {
    pe_batch_seq *seq = b->seq[at++ % b->seq_count];
    b->visits++;
    b->peek = seq->id + 1;
    if (seq->state != PE_SEQ_WAITING || seq->leader || seq->peeked_at == now) continue;
    int32_t before = seq->peeked;
    seq->peeked = pe_batch_probe(b, seq), seq->peeked_at = now;
    compared += seq->peeked + b->kv->block;
    if (seq->peeked != before) pe_batch_touch(b, seq);
  }
}

static void describe(const pe_batch *b, const pe_batch_seq *seq, int64_t now, pe_seq_info *out) {
  bool idle = seq->state >= PE_SEQ_HELD || seq->leader || pe_batch_fetching(b, seq);
  *out = (pe_seq_info){.id = seq->id,
                       .state = seq->state,
                       .prompt = pe_batch_seq_prompt(seq),
                       .past = seq->cache.past,
                       .generated = pe_batch_seq_generated(seq),
                       .cached = seq->state == PE_SEQ_WAITING ? seq->peeked : seq->cached,
                       .left = idle ? 0 : seq->count - seq->cache.past,
                       .choice = seq->choice,
                       .follows = seq->leader != 0,
                       .age_ns = now - seq->added_ns,
                       .added_ns = seq->added_ns,
                       .bytes = seq->cache.kv ? pe_seq_bytes(&seq->cache) : 0};
}

int32_t pe_batch_sequences(pe_batch *b, pe_seq_info *out, int32_t most) {
  int32_t n = 0;
  int64_t now = pe_clock_ns();
  if (most <= 0) return (int32_t)b->alive;
  if (b->caching) pe_batch_peek(b);
  for (size_t i = 0; i < b->seq_count; i++) {
    if (b->seq[i]->state == PE_SEQ_DONE) continue;
    if (n < most) describe(b, b->seq[i], now, &out[n]);
    n++;
  }
  return n;
}

size_t pe_batch_see(pe_batch *b, pe_seq_info *out) {
  size_t n = b->unseen_count;
  int64_t now = pe_clock_ns();
  for (size_t i = 0; i < n; i++) {
    pe_batch_seq *seq = pe_batch_find(b, b->unseen[i]);
    out[i] = (pe_seq_info){.id = b->unseen[i], .state = PE_SEQ_DONE};
    if (seq) seq->unseen = false;
    if (seq && seq->state != PE_SEQ_DONE) describe(b, seq, now, &out[i]);
  }
  b->visits += n;
  b->unseen_count = 0;
  return n;
}

bool pe_batch_info(const pe_batch *b, pe_seq_id id, pe_seq_info *out) {
  const pe_batch_seq *seq = pe_batch_find(b, id);
  if (seq) describe(b, seq, pe_clock_ns(), out);
  return seq != NULL;
}

const float *pe_batch_logits(const pe_batch *b, pe_seq_id id) {
  const pe_batch_seq *seq = pe_batch_find(b, id);
  return seq && seq->has_kept ? seq->kept : NULL;
}

int32_t pe_batch_events(const pe_batch *b, const pe_event **out) {
  *out = b->event;
  return (int32_t)b->event_count;
}

const char *pe_finish_name(pe_finish f) {
  static const char *const names[] = {"none", "stop", "length", "cancel", "error"};
  return (unsigned)f < sizeof names / sizeof *names ? names[f] : "none";
}

/* ---- counters ------------------------------------------------------------------------------ */

void pe_batch_stat(const pe_batch *b, pe_batch_stats *out) {
  *out = b->stats;
  out->media_bytes = b->media_bytes;
  out->running = b->running, out->waiting = (int32_t)b->alive - b->running;
  pe_prefix_stat(b->prefix, &out->prefix);
}

int32_t pe_batch_trace(const pe_batch *b, pe_trace *out, int32_t most) {
  uint64_t have = b->stats.steps < PE_TRACE_STEPS ? b->stats.steps : PE_TRACE_STEPS;
  if (most < 0) most = 0;
  if (have > (uint64_t)most) have = (uint64_t)most;
  for (uint64_t i = 0; i < have; i++)
    out[i] = b->trace[(b->stats.steps - have + i) % PE_TRACE_STEPS];
  return (int32_t)have;
}
