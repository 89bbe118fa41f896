/* batch_hand.c - see batch.h: rows by hand. */
#include "runtime/batch/batch_seq.h"

#include <string.h>

static pe_status check_forced(const pe_batch *b, const int32_t *ids, int32_t count, pe_error *err) {
  if (count < 0) return pe_fail(err, PE_EARG, "force: %d ids", count);
  for (int32_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= b->plan->vocabulary)
      return pe_fail(err, PE_EARG, "force: id %d is not within 0 and %d", ids[i],
                     b->plan->vocabulary - 1);
  return PE_OK;
}

pe_status pe_batch_force(pe_batch *b, pe_seq_id id, const int32_t *ids, int32_t count,
                         pe_error *err) {
  pe_batch_seq *r;
  pe_status rc = pe_batch_living(b, id, &r, err);
  if (!rc) rc = check_forced(b, ids, count, err);
  return rc ? rc : pe_batch_seq_force(r, ids, count, err);
}

/* ---- forks ----------------------------------------------------------------------------------------------------- */

static pe_status copy_bias(pe_batch_seq *r, const pe_logit_bias *bias, int32_t count,
                           pe_error *err) {
  pe_logit_bias *own = pe_alloc((size_t)count * sizeof *own);
  if (!own) return pe_nomem(err, "logit_bias");
  if (count) memcpy(own, bias, (size_t)count * sizeof *own);
  pe_free(r->bias);
  r->bias = own, r->sampling.bias = own, r->sampling.bias_count = count;
  return PE_OK;
}

/* Everything of the parent but its caches. */
static pe_status copy_row(const pe_batch *b, const pe_batch_seq *r, uint64_t seed,
                          pe_batch_seq **out, pe_error *err) {
  pe_batch_seq *c = NULL;
  pe_status rc = pe_batch_seq_new(b, r->request, r->token, r->count, &c, err);
  if (rc) return rc;
  c->sampling = r->sampling, c->sampling.seed = seed;
  c->choice = r->choice, c->cached = r->cached, c->state = r->state;
  if (r->state == PE_SEQ_HELD)
    memcpy(c->kept, r->kept, (size_t)b->plan->vocabulary * sizeof *c->kept),
        c->has_kept = c->news = true;
  if (r->bias) rc = copy_bias(c, r->bias, r->sampling.bias_count, err);
  if (!rc && r->forced_at < r->forced_count)
    rc = pe_batch_seq_force(c, r->forced + r->forced_at, r->forced_count - r->forced_at, err);
  if (!rc) rc = pe_batch_seq_say_again(b, c, err);
  if (rc)
    pe_batch_seq_free(c);
  else
    *out = c;
  return rc;
}

pe_status pe_batch_fork(pe_batch *b, pe_seq_id id, uint64_t seed, pe_seq_id *out, pe_error *err) {
  pe_batch_seq *r, *c = NULL;
  pe_status rc = pe_batch_living(b, id, &r, err);
  if (rc) return rc;
  if (r->state != PE_SEQ_DECODE && r->state != PE_SEQ_HELD)
    return pe_fail(err, PE_EARG, "row %lld is not writing, only writing rows can be forked",
                   (long long)id);
  if (pe_batch_seq_runs(r) && b->running >= b->o.rows)
    return pe_fail(err, PE_ELIMIT, "%d rows are running, and %d may", b->running, b->o.rows);
  if ((rc = pe_batch_reserve(b, 1, err)) || (rc = copy_row(b, r, seed, &c, err))) return rc;
  if (pe_batch_seq_runs(r) && (rc = pe_seq_fork(&r->seq, &c->seq, err))) {
    pe_batch_seq_free(c);
    return rc;
  }
  b->running += pe_batch_seq_runs(c);
  pe_batch_enter(b, c);
  *out = c->id;
  return PE_OK;
}

/* ---- trims ----------------------------------------------------------------------------------------------------- */

/* The last of the kept tokens is computed again, for its logits. A sequence that cannot go back is given up: the row
 * waits, and reads again from what the prefix cache has. */
static void trim_caches(pe_batch *b, pe_batch_seq *r, int32_t tokens) {
  int32_t past = r->seq.past < tokens - 1 ? r->seq.past : tokens - 1;
  bool ok = pe_seq_can_trim(&r->seq, past, NULL) && !pe_seq_trim(&r->seq, past, NULL, NULL);
  if (ok) ok = !pe_seq_append(&r->seq, r->token + past, tokens - past, NULL);
  if (!ok)
    pe_batch_release(b, r), r->state = PE_SEQ_WAITING;
  else if (tokens == pe_batch_seq_prompt(r))
    r->state = PE_SEQ_PREFILL;
}

pe_status pe_batch_trim(pe_batch *b, pe_seq_id id, int32_t tokens, pe_error *err) {
  pe_batch_seq *r;
  pe_status rc = pe_batch_living(b, id, &r, err);
  if (rc) return rc;
  int32_t prompt = pe_batch_seq_prompt(r), count = r->count;
  if (tokens < prompt || tokens > count)
    return pe_fail(err, PE_EARG, "trim: row %lld can keep %d to %d tokens, not %d", (long long)id,
                   prompt, count, tokens);
  r->count = tokens;
  if (tokens < count && (rc = pe_batch_seq_say_again(b, r, err))) {
    r->count = count;
    return rc;
  }
  r->forced_at = r->forced_count = 0;
  if (tokens < count && r->state == PE_SEQ_HELD)
    r->state = pe_batch_seq_runs(r) ? PE_SEQ_DECODE : PE_SEQ_WAITING;
  if (tokens < count && pe_batch_seq_runs(r)) trim_caches(b, r, tokens);
  return PE_OK;
}

/* ---- bias and logits ------------------------------------------------------------------------------------------- */

pe_status pe_batch_bias(pe_batch *b, pe_seq_id id, const pe_logit_bias *bias, int32_t count,
                        pe_error *err) {
  pe_batch_seq *r;
  pe_status rc = pe_batch_living(b, id, &r, err);
  if (rc) return rc;
  if (count < 0) return pe_fail(err, PE_EARG, "logit_bias: %d of them", count);
  pe_sampling s = r->sampling;
  s.bias = bias, s.bias_count = count;
  rc = pe_sampling_check(&s, b->plan->vocabulary, err);
  return rc ? rc : copy_bias(r, bias, count, err);
}

const float *pe_batch_logits(const pe_batch *b, pe_seq_id id) {
  const pe_batch_seq *r = pe_batch_find(b, id);
  return r && r->has_kept ? r->kept : NULL;
}

void pe_batch_keep_logits(pe_batch *b, pe_seq_id id, bool keep) {
  pe_batch_seq *r = pe_batch_find(b, id);
  if (!r || keep == (r->kept != NULL) || r->request->r.hold)
    return; /* a row that holds keeps them anyway */
  pe_free(r->kept);
  r->kept = keep ? pe_alloc((size_t)b->plan->vocabulary * sizeof *r->kept)
                 : NULL; /* no memory: none are kept */
  r->has_kept = false;
}

/* ---- held rows ------------------------------------------------------------------------------------------------- */

pe_status pe_batch_seq_draw_check(const pe_batch *b, const pe_draw *d, pe_error *err) {
  pe_sampling s = pe_sampling_defaults();
  s.bias = d->bias, s.bias_count = d->bias_count, s.banned = d->banned.id,
  s.banned_count = d->banned.count;
  pe_status rc = pe_sampling_check(&s, b->plan->vocabulary, err);
  return rc ? rc : check_forced(b, d->forced.id, d->forced.count, err);
}

/* A list behind another one, in one piece of memory; NULL: out of it. */
static void *joined(const void *a, int32_t n, const void *b, int32_t m, size_t size) {
  char *p = pe_calloc((size_t)n + (size_t)m + 1, size);
  if (p && n) memcpy(p, a, (size_t)n * size);
  if (p && m) memcpy(p + (size_t)n * size, b, (size_t)m * size);
  return p;
}

pe_status pe_batch_sample(pe_batch *b, pe_seq_id id, const pe_draw *d, pe_error *err) {
  pe_batch_seq *r;
  pe_status rc = pe_batch_living(b, id, &r, err);
  if (!rc && r->state != PE_SEQ_HELD)
    rc = pe_fail(err, PE_EARG, "row %lld is not held, it draws by itself", (long long)id);
  if (!rc) rc = pe_batch_seq_draw_check(b, d, err);
  if (rc) return rc;
  pe_sampling s = r->sampling;
  pe_logit_bias *bias = joined(s.bias, s.bias_count, d->bias, d->bias_count, sizeof *bias);
  int32_t *banned = joined(s.banned, s.banned_count, d->banned.id, d->banned.count, sizeof *banned);
  s.bias = bias, s.bias_count += d->bias_count, s.banned = banned,
  s.banned_count += d->banned.count;
  rc = bias && banned ? pe_batch_seq_force(r, d->forced.id, d->forced.count, err)
                      : pe_nomem(err, "draw of a held row");
  if (!rc) pe_batch_pick(b, r, &s, r->kept);
  pe_free(bias);
  pe_free(banned);
  return rc;
}

/* ---- pins ------------------------------------------------------------------------------------------------------ */

int32_t pe_batch_pin(pe_batch *b, pe_ids_view prompt, uint64_t salt, bool pin) {
  int32_t found;
  pe_prefix_key key = {.salt = salt, .rope_variant = pe_batch_rope_variant(b->graph, prompt.count)};
  pe_prefix_pin(b->prefix, &key, prompt.id, prompt.count, pin, &found);
  return found;
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

pe_status pe_batch_save(pe_batch *b, pe_seq_id id, const char *path, pe_error *err) {
  pe_batch_seq *r;
  pe_status rc = pe_batch_living(b, id, &r, err);
  if (rc) return rc;
  if (!r->seq.kv || !r->seq.past)
    return pe_fail(err, PE_EARG, "row %lld has computed nothing that could be saved",
                   (long long)id);
  return pe_seq_save_file(&r->seq, b->o.prefix.identity, path, err);
}

/* A quarter of the pool at a time, as long as that gives anything. */
static bool evict_some(pe_batch *b) {
  int32_t some = b->kv->blocks / 4 + 1, got = 0;
  for (int32_t g = 0; g < b->graph->group_count; g++) got += pe_prefix_evict(b->prefix, g, some);
  return got > 0;
}

pe_status pe_batch_load(pe_batch *b, const char *path, pe_error *err) {
  pe_seq s;
  if (!b->caching)
    return pe_fail(err, PE_EUNSUPPORTED, "%s: there is no prefix cache to load it into", path);
  pe_status rc = pe_seq_open(&s, b->kv, b->recur, err);
  if (rc) return rc;
  do rc = pe_seq_load_file(&s, b->o.prefix.identity, path, err);
  while (rc == PE_ELIMIT && evict_some(b));
  pe_prefix_key key = {.rope_variant = pe_batch_rope_variant(b->graph, s.rope_length)};
  if (!rc && s.ragged)
    rc = pe_fail(err, PE_EUNSUPPORTED,
                 "%s: saved in smaller blocks than those of %d tokens here, which cannot be shared",
                 path, b->kv->block);
  if (!rc) rc = pe_prefix_insert(b->prefix, &key, &s, err);
  pe_seq_close(&s);
  return rc;
}
