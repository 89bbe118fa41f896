/* batch_command.c - see batch.h: commands. A new one is a member of pe_verb, a line of the table at
 * the end of this file, and its function. Lua sees it as batch.core:command(name, ...), and as a
 * method of sequences if it is about one. */
#include "runtime/batch/batch_seq.h"

#include <assert.h>
#include <string.h>

/* Carries a checked command out. seq: its sequence, which is not done; NULL where it is about none.
 * A function that fails changes nothing. */
typedef pe_status apply(pe_batch *b, pe_batch_seq *seq, const pe_command *c, pe_reply *reply,
                        pe_error *err);

/* ---- joining and leaving ------------------------------------------------------------------- */

static pe_status make_choices(pe_batch *b, pe_batch_request *q, const int32_t *token,
                              pe_batch_seq **out, pe_error *err) {
  pe_status rc = PE_OK;
  int32_t n = 0;
  for (; !rc && n < q->r.n; n++) {
    out[n] = NULL;
    if ((rc = pe_batch_seq_new(b, q, token, q->r.prompt.count, &out[n], err))) break;
    out[n]->choice = n, out[n]->leader = n ? b->next : 0;
    out[n]->sampling.seed += (uint64_t)n;
  }
  while (rc && n-- > 0) pe_batch_seq_free(out[n]);
  return rc;
}

/* Grows every drawer's ban list now, so that sampling without a constraint never allocates. */
static pe_status reserve_draws(pe_batch *b, const pe_request *r, pe_error *err) {
  size_t most = (size_t)b->o.end_count + (size_t)r->stop_ids.count + (size_t)r->bad_count;
  bool runs = r->phase_count && r->fast_forward;
  pe_status rc = PE_OK;
  for (int32_t i = 0; !rc && i < b->drawers; i++) {
    pe_drawer *d = &b->drawer[i];
    rc = pe_grow(&d->ban, &d->ban_cap, most, sizeof(int32_t), err);
    if (!rc && runs && !d->scratch) rc = pe_tokenizer_scratch_new(b->o.tokenizer, &d->scratch, err);
  }
  return rc;
}

/* Features are held until the request is done: a preempted sequence computes its pictures again. */
static pe_status hold_features(pe_batch *b, pe_batch_request *q, pe_error *err) {
  const uint64_t bytes = q->r.media ? q->r.media->bytes : 0, most = b->o.media_bytes;
  if (most && bytes > most - (b->media_bytes < most ? b->media_bytes : most))
    return pe_fail_field(err, PE_ELIMIT, "media",
                         "the pictures have %llu bytes of features, which do not fit: %llu of %llu "
                         "are in use",
                         (unsigned long long)bytes, (unsigned long long)b->media_bytes,
                         (unsigned long long)most);
  b->media_bytes += bytes, q->held = &b->media_bytes;
  return PE_OK;
}

static pe_status do_add(pe_batch *b, pe_batch_seq *none, const pe_command *c, pe_reply *reply,
                        pe_error *err) {
  const pe_request *r = c->request;
  pe_batch_request *q = NULL;
  pe_batch_seq *choice[PE_BATCH_CHOICES];
  (void)none;
  pe_status rc = pe_batch_request_copy(b, r, &q, err);
  if (rc) return rc;
  q->limit = pe_batch_request_limit(b, r);
  rc = hold_features(b, q, err);
  if (!rc) rc = pe_batch_reserve(b, q->r.n, err);
  if (!rc) rc = reserve_draws(b, r, err);
  if (!rc) rc = make_choices(b, q, r->prompt.id, choice, err);
  if (!rc) {
    reply->first = b->next, reply->count = q->r.n;
    for (int32_t i = 0; i < q->r.n; i++) pe_batch_enter(b, choice[i]);
    choice[0]->peeked = pe_batch_probe(b, choice[0]);
    choice[0]->peeked_at = pe_prefix_changes(b->prefix);
  }
  pe_batch_request_release(q);
  return rc;
}

static pe_status do_cancel(pe_batch *b, pe_batch_seq *seq, const pe_command *c, pe_reply *reply,
                           pe_error *err) {
  (void)c, (void)reply, (void)err;
  pe_event e = {.seq = seq->id, .stop_index = -1};
  pe_batch_finish(b, seq, PE_FINISH_CANCEL, &e);
  return PE_OK;
}

static pe_status do_preempt(pe_batch *b, pe_batch_seq *seq, const pe_command *c, pe_reply *reply,
                            pe_error *err) {
  (void)c, (void)reply, (void)err;
  if (pe_batch_seq_runs(seq)) pe_batch_yield(b, seq);
  return PE_OK;
}

/* ---- forks --------------------------------------------------------------------------------- */

static pe_status copy_bias(pe_batch_seq *seq, pe_bias_view bias, pe_error *err) {
  pe_logit_bias *own = pe_alloc((size_t)bias.count * sizeof *own);
  if (!own) return pe_nomem(err, "logit_bias");
  if (bias.count) memcpy(own, bias.bias, (size_t)bias.count * sizeof *own);
  pe_free(seq->bias);
  seq->bias = own, seq->sampling.bias = own, seq->sampling.bias_count = bias.count;
  return PE_OK;
}

static pe_status fork_constraint(const pe_batch_seq *parent, pe_batch_seq *child, pe_error *err) {
  pe_constraint *fresh = child->constraint;
  if (!parent->constraint) return PE_OK;
  pe_status rc = pe_constraint_fork(parent->constraint, &child->constraint, err);
  if (!rc) pe_constraint_close(fresh);
  return rc;
}

/* Everything of the parent except its cache. */
static pe_status copy_sequence(const pe_batch *b, const pe_batch_seq *parent, uint64_t seed,
                               pe_batch_seq **out, pe_error *err) {
  pe_batch_seq *child = NULL;
  pe_status rc = pe_batch_seq_new(b, parent->request, parent->token, parent->count, &child, err);
  if (rc) return rc;
  child->sampling = parent->sampling, child->sampling.seed = seed;
  child->choice = parent->choice, child->cached = parent->cached, child->state = parent->state;
  child->runs = parent->runs;
  if (parent->state == PE_SEQ_HELD) {
    memcpy(child->kept, parent->kept, (size_t)b->plan->vocabulary * sizeof *child->kept);
    child->has_kept = child->news = true;
  }
  pe_bias_view bias = {parent->bias, parent->sampling.bias_count};
  if (parent->bias) rc = copy_bias(child, bias, err);
  if (!rc && parent->forced_at < parent->forced_count) {
    const pe_ids_view forced = {parent->forced + parent->forced_at,
                                parent->forced_count - parent->forced_at};
    rc = pe_batch_seq_force(child, forced, err);
  }
  if (!rc) rc = fork_constraint(parent, child, err);
  if (!rc) rc = pe_batch_seq_replay(b, child, err);
  if (rc)
    pe_batch_seq_free(child);
  else
    *out = child;
  return rc;
}

static pe_status do_fork(pe_batch *b, pe_batch_seq *seq, const pe_command *c, pe_reply *reply,
                         pe_error *err) {
  pe_batch_seq *child = NULL;
  if (seq->state != PE_SEQ_DECODE && seq->state != PE_SEQ_HELD)
    return pe_fail(err, PE_EARG, "cannot fork: sequence %lld has not computed its prompt yet",
                   (long long)seq->id);
  if (pe_batch_seq_runs(seq) && b->running >= b->o.sequences)
    return pe_fail(err, PE_ELIMIT, "cannot fork: %d of %d sequences are already running",
                   b->running, b->o.sequences);
  pe_status rc = pe_batch_reserve(b, 1, err);
  if (!rc) rc = copy_sequence(b, seq, c->seed, &child, err);
  if (rc) return rc;
  if (pe_batch_seq_runs(seq) && (rc = pe_seq_fork(&seq->cache, &child->cache, err))) {
    pe_batch_seq_free(child);
    return rc;
  }
  if (pe_batch_seq_runs(child)) pe_batch_opened(b, child);
  pe_batch_enter(b, child);
  reply->first = child->id, reply->count = 1;
  return PE_OK;
}

/* ---- trims --------------------------------------------------------------------------------- */

/* The last kept token is computed again, for its logits. A cache that cannot be trimmed, or only
 * inside a picture that must stay whole, is dropped: the sequence waits, and resumes from what the
 * prefix cache has. */
static void trim_cache(pe_batch *b, pe_batch_seq *seq, int32_t tokens) {
  pe_seq *cache = &seq->cache;
  int32_t past = cache->past < tokens - 1 ? cache->past : tokens - 1;
  bool ok = !pe_media_cut(cache->media, past) && pe_seq_can_trim(cache, past, NULL) &&
            !pe_seq_trim(cache, past, NULL, NULL);
  if (ok) ok = !pe_seq_append(cache, seq->token + past, tokens - past, NULL);
  if (!ok) {
    pe_batch_release(b, seq);
    seq->state = PE_SEQ_WAITING;
  } else if (tokens == pe_batch_seq_prompt(seq)) {
    seq->state = PE_SEQ_PREFILL;
  }
}

static pe_status do_trim(pe_batch *b, pe_batch_seq *seq, const pe_command *c, pe_reply *reply,
                         pe_error *err) {
  int32_t prompt = pe_batch_seq_prompt(seq), count = seq->count, tokens = c->tokens;
  pe_status rc;
  (void)reply;
  if (tokens < prompt || tokens > count)
    return pe_fail_field(err, PE_EARG, "tokens",
                         "trim: sequence %lld can keep between %d and %d tokens, got %d",
                         (long long)seq->id, prompt, count, tokens);
  seq->count = tokens;
  if (tokens < count && (rc = pe_batch_seq_replay(b, seq, err))) {
    seq->count = count;
    return rc;
  }
  seq->forced_at = seq->forced_count = 0;
  if (tokens == count) return PE_OK;
  if (seq->constraint) pe_constraint_trim(seq->constraint, tokens - prompt);
  if (seq->state == PE_SEQ_HELD)
    seq->state = pe_batch_seq_runs(seq) ? PE_SEQ_DECODE : PE_SEQ_WAITING;
  if (pe_batch_seq_runs(seq)) trim_cache(b, seq, tokens);
  return PE_OK;
}

/* ---- sampling ------------------------------------------------------------------------------ */

static pe_status do_force(pe_batch *b, pe_batch_seq *seq, const pe_command *c, pe_reply *reply,
                          pe_error *err) {
  (void)b, (void)reply;
  return pe_batch_seq_force(seq, c->ids, err);
}

static pe_status do_bias(pe_batch *b, pe_batch_seq *seq, const pe_command *c, pe_reply *reply,
                         pe_error *err) {
  (void)b, (void)reply;
  return copy_bias(seq, c->bias, err);
}

static pe_status do_keep_logits(pe_batch *b, pe_batch_seq *seq, const pe_command *c,
                                pe_reply *reply, pe_error *err) {
  (void)reply, (void)err;
  if (c->on == (seq->kept != NULL) || seq->request->r.hold) return PE_OK; /* held ones always do */
  pe_free(seq->kept);
  seq->kept = c->on ? pe_alloc((size_t)b->plan->vocabulary * sizeof *seq->kept) : NULL;
  seq->has_kept = false; /* out of memory: none are kept */
  return PE_OK;
}

/* Two lists in one piece of memory; NULL: out of memory. */
static void *joined(const void *a, int32_t n, const void *b, int32_t m, size_t size) {
  char *p = pe_calloc((size_t)n + (size_t)m + 1, size);
  if (p && n) memcpy(p, a, (size_t)n * size);
  if (p && m) memcpy(p + (size_t)n * size, b, (size_t)m * size);
  return p;
}

static pe_status do_sample(pe_batch *b, pe_batch_seq *seq, const pe_command *c, pe_reply *reply,
                           pe_error *err) {
  const pe_draw *d = &c->draw;
  (void)reply;
  if (seq->state != PE_SEQ_HELD)
    return pe_fail(err, PE_EARG, "sample: sequence %lld is not held", (long long)seq->id);
  pe_sampling s = seq->sampling;
  pe_logit_bias *bias = joined(s.bias, s.bias_count, d->bias.bias, d->bias.count, sizeof *bias);
  int32_t *banned = joined(s.banned, s.banned_count, d->banned.id, d->banned.count, sizeof *banned);
  s.bias = bias, s.bias_count += d->bias.count;
  s.banned = banned, s.banned_count += d->banned.count;
  pe_status rc = bias && banned ? pe_batch_seq_force(seq, d->forced, err)
                                : pe_nomem(err, "draw of a held sequence");
  if (!rc) pe_batch_sample_one(b, seq, &s, seq->kept);
  pe_free(bias);
  pe_free(banned);
  return rc;
}

/* ---- the prefix cache and files ------------------------------------------------------------ */

static pe_status do_pin(pe_batch *b, pe_batch_seq *none, const pe_command *c, pe_reply *reply,
                        pe_error *err) {
  const pe_request r = {.prompt = c->pin.prompt, .media = c->pin.media};
  pe_prefix_key key = {.salt = c->pin.salt,
                       .rope_variant = pe_batch_rope_variant(b->plan, r.prompt.count)};
  pe_batch_request *q = NULL;
  (void)none;
  pe_status rc = pe_batch_media_check(b, &r, err);
  if (!rc) rc = pe_batch_request_copy(b, &r, &q, err); /* it holds the names of the pictures */
  if (rc) return rc;
  int32_t *word = pe_alloc((size_t)r.prompt.count * sizeof *word);
  if (word) {
    memcpy(word, r.prompt.id, (size_t)r.prompt.count * sizeof *word);
    if (r.media) pe_media_words(r.media, q->name, 0, r.prompt.count, word);
    rc = pe_prefix_pin(b->prefix, &key, word, r.prompt.count, !c->pin.off, &reply->found, err);
  } else {
    rc = pe_nomem(err, "pin");
  }
  pe_free(word);
  pe_batch_request_release(q);
  return rc;
}

static pe_status save(pe_batch *b, const pe_batch_seq *seq, pe_buf *out, pe_error *err) {
  if (!seq->cache.kv || !seq->cache.past)
    return pe_fail(err, PE_EARG, "save: sequence %lld has computed nothing yet",
                   (long long)seq->id);
  pe_status rc = pe_weights_intact(b->graph->weights, err);
  return rc ? rc : pe_seq_save(&seq->cache, pe_batch_identity(b), out, err);
}

static pe_status do_save(pe_batch *b, pe_batch_seq *seq, const pe_command *c, pe_reply *reply,
                         pe_error *err) {
  pe_buf bytes = {0};
  (void)reply;
  pe_status rc = save(b, seq, &bytes, err);
  if (!rc) rc = pe_seq_write_file(&bytes, c->path, err);
  pe_buf_free(&bytes);
  return rc;
}

pe_status pe_batch_load(pe_batch *b, const pe_buf *bytes, const char *path, pe_error *err) {
  pe_seq cache;
  if (!b->caching)
    return pe_fail(err, PE_EUNSUPPORTED, "%s: there is no prefix cache to load it into", path);
  pe_status rc = pe_seq_open(&cache, b->kv, b->recur, err);
  if (rc) return rc;
  do rc = pe_seq_load(&cache, pe_batch_identity(b), bytes->data, bytes->len, err);
  while (rc == PE_ELIMIT && pe_room_evict_some(b));
  if (rc) pe_error_prefix(err, "%s", path);
  pe_prefix_key key = {.rope_variant = pe_batch_rope_variant(b->plan, cache.rope_length)};
  if (!rc && cache.ragged)
    rc = pe_fail(err, PE_EUNSUPPORTED,
                 "%s: saved in smaller blocks than the %d tokens here, which cannot be shared",
                 path, b->kv->block);
  if (!rc) rc = pe_prefix_insert(b->prefix, &key, &cache, err);
  pe_seq_close(&cache);
  return rc;
}

static pe_status do_load(pe_batch *b, pe_batch_seq *none, const pe_command *c, pe_reply *reply,
                         pe_error *err) {
  pe_buf bytes = {0};
  (void)none, (void)reply;
  pe_status rc = pe_seq_read_file(c->path, &bytes, err);
  if (!rc) rc = pe_batch_load(b, &bytes, c->path, err);
  pe_buf_free(&bytes);
  return rc;
}

static pe_status do_relax(pe_batch *b, pe_batch_seq *none, const pe_command *c, pe_reply *reply,
                          pe_error *err) {
  (void)none, (void)c, (void)err;
  reply->found = (int32_t)pe_kv_discard(b->kv);
  return PE_OK;
}

/* ---- the table ----------------------------------------------------------------------------- */

static const struct {
  pe_verb_info info;
  apply *apply;
} verbs[PE_VERBS] = {
    [PE_DO_ADD] = {{"add", PE_ARG_REQUEST, PE_ON_BATCH}, do_add},
    [PE_DO_FORK] = {{"fork", PE_ARG_SEED, PE_ON_SEQUENCE}, do_fork},
    [PE_DO_CANCEL] = {{"cancel", PE_ARG_NONE, PE_ON_LIVING}, do_cancel},
    [PE_DO_PREEMPT] = {{"preempt", PE_ARG_NONE, PE_ON_LIVING}, do_preempt},
    [PE_DO_FORCE] = {{"force", PE_ARG_IDS, PE_ON_SEQUENCE}, do_force},
    [PE_DO_BIAS] = {{"bias", PE_ARG_BIAS, PE_ON_SEQUENCE}, do_bias},
    [PE_DO_TRIM] = {{"trim", PE_ARG_TOKENS, PE_ON_SEQUENCE}, do_trim},
    [PE_DO_SAMPLE] = {{"sample", PE_ARG_DRAW, PE_ON_SEQUENCE}, do_sample},
    [PE_DO_KEEP_LOGITS] = {{"keep_logits", PE_ARG_ON, PE_ON_LIVING}, do_keep_logits},
    [PE_DO_PIN] = {{"pin", PE_ARG_PIN, PE_ON_BATCH}, do_pin},
    [PE_DO_SAVE] = {{"save", PE_ARG_PATH, PE_ON_SEQUENCE}, do_save},
    [PE_DO_LOAD] = {{"load", PE_ARG_PATH, PE_ON_BATCH}, do_load},
    [PE_DO_RELAX] = {{"relax", PE_ARG_NONE, PE_ON_BATCH}, do_relax},
};

const pe_verb_info *pe_verb_describe(pe_verb verb) { return &verbs[verb].info; }

pe_verb pe_verb_named(const char *name) {
  int verb = 0;
  while (verb < PE_VERBS && strcmp(verbs[verb].info.name, name)) verb++;
  return (pe_verb)verb;
}

static pe_status check_bias(const pe_batch *b, pe_bias_view bias, pe_ids_view banned,
                            pe_error *err) {
  pe_sampling s = pe_sampling_defaults();
  s.bias = bias.bias, s.bias_count = bias.count;
  s.banned = banned.id, s.banned_count = banned.count;
  return pe_sampling_check(&s, b->plan->vocabulary, err);
}

pe_status pe_batch_command_check(const pe_batch *b, const pe_command *c, pe_error *err) {
  pe_status rc;
  switch (verbs[c->verb].info.argument) {
  case PE_ARG_REQUEST: return pe_batch_request_check(b, c->request, err);
  case PE_ARG_IDS: return pe_batch_ids_check(b, verbs[c->verb].info.name, c->ids, err);
  case PE_ARG_BIAS: return check_bias(b, c->bias, (pe_ids_view){0}, err);
  case PE_ARG_DRAW:
    rc = check_bias(b, c->draw.bias, c->draw.banned, err);
    return rc ? rc : pe_batch_ids_check(b, "force", c->draw.forced, err);
  default: return PE_OK;
  }
}

static pe_status fail_gone(const pe_batch *b, pe_seq_id id, pe_error *err) {
  return pe_fail(err, PE_ENOTFOUND, "sequence %lld %s", (long long)id,
                 id >= 1 && id < b->next ? "is done" : "does not exist");
}

pe_status pe_batch_save(pe_batch *b, pe_seq_id id, pe_buf *out, pe_error *err) {
  const pe_batch_seq *seq = pe_batch_find(b, id);
  return seq && seq->state != PE_SEQ_DONE ? save(b, seq, out, err) : fail_gone(b, id, err);
}

pe_status pe_batch_do(pe_batch *b, const pe_command *c, pe_reply *reply, pe_error *err) {
  assert(!b->submitted);
  pe_reply unused;
  pe_subject subject = verbs[c->verb].info.subject;
  pe_batch_seq *seq = subject == PE_ON_BATCH ? NULL : pe_batch_find(b, c->seq);
  if (seq && seq->state == PE_SEQ_DONE) seq = NULL;
  if (!reply) reply = &unused;
  *reply = (pe_reply){0};
  if (!seq && subject == PE_ON_LIVING) return PE_OK;
  if (!seq && subject == PE_ON_SEQUENCE) return fail_gone(b, c->seq, err);
  pe_status rc = pe_batch_command_check(b, c, err);
  if (rc) return rc;
  if (seq) pe_batch_touch(b, seq);
  return verbs[c->verb].apply(b, seq, c, reply, err);
}
