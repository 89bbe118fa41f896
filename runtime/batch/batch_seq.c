/* batch_seq.c - see batch_seq.h: the life of a sequence, from its allocation to its last event. */
#include "runtime/batch/batch_seq.h"

#include <string.h>

/* ---- allocation ---------------------------------------------------------------------------- */

void pe_batch_seq_free(pe_batch_seq *seq) {
  if (!seq) return;
  pe_detokenizer_free(seq->detokenizer);
  pe_stop_close(seq->stop);
  pe_constraint_close(seq->constraint);
  pe_ids_free(&seq->run);
  pe_buf_free(&seq->piece);
  pe_buf_free(&seq->text);
  pe_free(seq->token);
  pe_free(seq->word);
  pe_free(seq->forced);
  pe_free(seq->bias);
  pe_free(seq->kept);
  pe_batch_request_release(seq->request);
  pe_free(seq);
}

static pe_status open_text(const pe_batch *b, pe_batch_seq *seq, pe_error *err) {
  const pe_request *q = &seq->request->r;
  pe_status rc = PE_OK;
  if (b->o.tokenizer)
    rc = pe_detokenizer_new(b->o.tokenizer, q->skip_special, &seq->detokenizer, err);
  if (seq->detokenizer)
    pe_detokenizer_keep(seq->detokenizer, q->keep_special.id, q->keep_special.count);
  if (!rc && q->stop_count) rc = pe_stop_open(q->stop, (size_t)q->stop_count, &seq->stop, err);
  return rc;
}

static pe_status open_constraint(const pe_batch *b, pe_batch_seq *seq, pe_error *err) {
  const pe_request *q = &seq->request->r;
  const pe_constraint_options o = {.tokenizer = b->o.tokenizer,
                                   .tokens = b->tokens,
                                   .vocabulary = b->plan->drawable,
                                   .phase = q->phase,
                                   .phases = q->phase_count,
                                   .stop_id = q->stop_ids.id,
                                   .stop_ids = q->stop_ids.count,
                                   .ignore_end = q->ignore_eos};
  return q->phase_count ? pe_constraint_open(&o, &seq->constraint, err) : PE_OK;
}

/* The words of all tokens of a new sequence. */
static pe_status write_words(pe_batch_seq *seq, pe_error *err) {
  const pe_media *media = seq->request->r.media;
  if (!media) return PE_OK;
  pe_status rc = pe_grow(&seq->word, &seq->word_cap, (size_t)seq->count, sizeof *seq->word, err);
  if (rc) return rc;
  memcpy(seq->word, seq->token, (size_t)seq->count * sizeof *seq->word);
  pe_media_words(media, seq->request->name, 0, seq->count, seq->word);
  return PE_OK;
}

pe_status pe_batch_seq_new(const pe_batch *b, pe_batch_request *q, const int32_t *token,
                           int32_t count, pe_batch_seq **out, pe_error *err) {
  pe_batch_seq *seq = pe_calloc(1, sizeof *seq);
  if (!seq) return pe_nomem(err, "sequence");
  q->refs++;
  seq->request = q, seq->sampling = q->r.sampling;
  seq->output = -1, seq->added_ns = pe_clock_ns();
  pe_status rc = pe_grow(&seq->token, &seq->cap, (size_t)count, sizeof *seq->token, err);
  if (!rc) {
    memcpy(seq->token, token, (size_t)count * sizeof *token);
    seq->count = count;
    rc = write_words(seq, err);
  }
  size_t logits = (size_t)b->plan->vocabulary * sizeof *seq->kept;
  if (!rc && (q->r.hold || q->r.keep_logits) && !(seq->kept = pe_alloc(logits)))
    rc = pe_nomem(err, "logits of a sequence");
  if (!rc) rc = open_text(b, seq, err);
  if (!rc) rc = open_constraint(b, seq, err);
  if (rc) {
    pe_batch_seq_free(seq);
    return rc;
  }
  *out = seq;
  return PE_OK;
}

pe_status pe_batch_seq_append(pe_batch_seq *seq, int32_t id, pe_error *err) {
  pe_status rc = pe_grow(&seq->token, &seq->cap, (size_t)seq->count + 1, sizeof *seq->token, err);
  if (!rc && seq->word)
    rc = pe_grow(&seq->word, &seq->word_cap, (size_t)seq->count + 1, sizeof *seq->word, err);
  if (!rc && seq->cache.kv) rc = pe_seq_append(&seq->cache, &id, 1, err);
  if (rc) return rc;
  if (seq->word) seq->word[seq->count] = id;
  seq->token[seq->count++] = id;
  return rc;
}

pe_status pe_batch_seq_force(pe_batch_seq *seq, pe_ids_view ids, pe_error *err) {
  int32_t left = seq->forced_count - seq->forced_at;
  pe_status rc = pe_grow(&seq->forced, &seq->forced_cap, (size_t)left + (size_t)ids.count,
                         sizeof *seq->forced, err);
  if (rc) return rc;
  if (left) memmove(seq->forced, seq->forced + seq->forced_at, (size_t)left * sizeof *ids.id);
  if (ids.count) memcpy(seq->forced + left, ids.id, (size_t)ids.count * sizeof *ids.id);
  seq->forced_at = 0, seq->forced_count = left + ids.count;
  return PE_OK;
}

/* ---- text ---------------------------------------------------------------------------------- */

/* Before min_tokens, stop strings are not looked for. */
static pe_status pass_on(pe_batch_seq *seq, int32_t generated, int *hit, pe_error *err) {
  if (seq->stop && generated > seq->request->r.min_tokens)
    return pe_stop_push(seq->stop, pe_str_of(seq->piece.data, seq->piece.len), &seq->text, hit,
                        err);
  return seq->piece.len ? pe_buf_put(&seq->text, seq->piece.data, seq->piece.len, err) : PE_OK;
}

pe_status pe_batch_seq_emit(pe_batch_seq *seq, int32_t id, int32_t generated, int *hit,
                            pe_error *err) {
  *hit = -1;
  if (!seq->detokenizer) return PE_OK;
  seq->piece.len = 0;
  pe_status rc = pe_detokenizer_push(seq->detokenizer, id, &seq->piece, err);
  return rc ? rc : pass_on(seq, generated, hit, err);
}

pe_status pe_batch_seq_emit_rest(pe_batch_seq *seq, int *hit, pe_error *err) {
  *hit = -1;
  if (!seq->detokenizer) return PE_OK;
  seq->piece.len = 0;
  pe_status rc = pe_detokenizer_finish(seq->detokenizer, &seq->piece, err);
  if (!rc) rc = pass_on(seq, pe_batch_seq_generated(seq), hit, err);
  if (!rc && seq->stop && *hit < 0) rc = pe_stop_finish(seq->stop, &seq->text, err);
  return rc;
}

pe_status pe_batch_seq_replay(const pe_batch *b, pe_batch_seq *seq, pe_error *err) {
  pe_detokenizer *detokenizer = seq->detokenizer;
  pe_stop *stop = seq->stop;
  pe_buf text = seq->text; /* an event may have borrowed it */
  int32_t prompt = pe_batch_seq_prompt(seq);
  int hit;
  seq->detokenizer = NULL, seq->stop = NULL, seq->text = (pe_buf){0};
  pe_status rc = open_text(b, seq, err);
  for (int32_t i = prompt; !rc && i < seq->count; i++)
    rc = pe_batch_seq_emit(seq, seq->token[i], i - prompt + 1, &hit, err);
  pe_buf_free(&seq->text); /* all of it was emitted before */
  seq->text = text;
  if (rc) { /* as it was */
    pe_detokenizer_free(seq->detokenizer);
    pe_stop_close(seq->stop);
    seq->detokenizer = detokenizer, seq->stop = stop;
    return rc;
  }
  pe_detokenizer_free(detokenizer);
  pe_stop_close(stop);
  return PE_OK;
}

/* ---- the table ----------------------------------------------------------------------------- */

size_t pe_batch_index(const pe_batch *b, pe_seq_id id) {
  size_t low = 0, high = b->seq_count;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (b->seq[mid]->id < id)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

pe_batch_seq *pe_batch_find(const pe_batch *b, pe_seq_id id) {
  size_t i = pe_batch_index(b, id);
  return i < b->seq_count && b->seq[i]->id == id ? b->seq[i] : NULL;
}

pe_status pe_batch_reserve(pe_batch *b, int32_t more, pe_error *err) {
  pe_status rc = pe_grow(&b->seq, &b->seq_cap, b->seq_count + (size_t)more, sizeof *b->seq, err);
  size_t events = b->event_count + 3 * (b->alive + (size_t)more);
  size_t all = b->seq_count + (size_t)more, unseen = b->watched ? b->unseen_count + all : 0;
  if (!rc) rc = pe_grow(&b->event, &b->event_cap, events, sizeof *b->event, err);
  if (!rc) rc = pe_grow(&b->touched, &b->touched_cap, all, sizeof *b->touched, err);
  if (!rc) rc = pe_grow(&b->unseen, &b->unseen_cap, unseen, sizeof *b->unseen, err);
  return rc;
}

pe_status pe_batch_reserve_events(pe_batch *b, size_t more, pe_error *err) {
  return pe_grow(&b->event, &b->event_cap, b->event_count + more + 3 * b->alive, sizeof *b->event,
                 err);
}

void pe_batch_enter(pe_batch *b, pe_batch_seq *seq) {
  seq->id = b->next++;
  b->seq[b->seq_count++] = seq;
  b->alive++, seq->request->alive++;
  b->stats.added++;
  pe_batch_touch(b, seq);
}

void pe_batch_touch(pe_batch *b, pe_batch_seq *seq) {
  if (!seq->touched) b->touched[b->touched_count++] = seq;
  seq->touched = true;
  if (b->watched && !seq->unseen) {
    b->unseen[b->unseen_count++] = seq->id;
    seq->unseen = true;
  }
}

void pe_batch_opened(pe_batch *b, pe_batch_seq *seq) {
  seq->place = b->running;
  b->active[b->running++] = seq;
}

void pe_batch_push(pe_batch *b, const pe_event *e) { b->event[b->event_count++] = *e; }

/* ---- the prefix cache ---------------------------------------------------------------------- */

int32_t pe_batch_rope_variant(const pe_plan *p, int32_t length) {
  if (length > p->rope_scales) return length;
  return length > p->rope_varies ? -1 : 0;
}

pe_prefix_key pe_batch_key(const pe_batch *b, const pe_batch_seq *seq) {
  return (pe_prefix_key){.salt = seq->request->r.salt,
                         .rope_variant = pe_batch_rope_variant(b->plan, pe_batch_seq_prompt(seq))};
}

bool pe_batch_fetching(const pe_batch *b, const pe_batch_seq *seq) {
  return seq->fetch && !pe_prefix_fetched(b->prefix, seq->fetch);
}

void pe_batch_end_fetch(pe_batch *b, pe_batch_seq *seq) {
  if (seq->fetch) pe_prefix_fetch_end(b->prefix);
  seq->fetch = 0;
}

bool pe_batch_uses_prefix(const pe_batch *b, const pe_batch_seq *seq) {
  return b->caching && !seq->request->r.no_cache;
}

int32_t pe_batch_probe(const pe_batch *b, const pe_batch_seq *seq) {
  if (!pe_batch_uses_prefix(b, seq)) return 0;
  pe_prefix_key key = pe_batch_key(b, seq);
  return pe_prefix_probe(b->prefix, &key, pe_batch_seq_words(seq), seq->count);
}

void pe_batch_remember(pe_batch *b, pe_batch_seq *seq) {
  if (!pe_batch_uses_prefix(b, seq) || seq->cache.past < 1) return;
  pe_prefix_key key = pe_batch_key(b, seq);
  pe_prefix_insert(b->prefix, &key, &seq->cache, NULL); /* out of memory: it is not remembered */
}

/* ---- leaving ------------------------------------------------------------------------------- */

void pe_batch_release(pe_batch *b, pe_batch_seq *seq) {
  if (!seq->cache.kv) return;
  pe_seq_close(&seq->cache);
  b->active[seq->place] = b->active[--b->running];
  b->active[seq->place]->place = seq->place;
  pe_batch_touch(b, seq);
}

void pe_batch_yield(pe_batch *b, pe_batch_seq *seq) {
  pe_batch_remember(b, seq);
  pe_batch_release(b, seq);
  if (seq->state != PE_SEQ_HELD) seq->state = PE_SEQ_WAITING; /* a held one still has its logits */
  b->stats.preempted++;
  pe_batch_touch(b, seq);
}

/* If a leader leaves before its prompt is computed, the next choice becomes the leader. */
static void hand_on(pe_batch *b, const pe_batch_seq *leader) {
  pe_seq_id next = 0;
  for (size_t i = 0; i < b->seq_count; i++) {
    pe_batch_seq *follower = b->seq[i];
    if (follower->leader != leader->id || follower->state == PE_SEQ_DONE) continue;
    follower->leader = next;
    if (!next) next = follower->id;
    pe_batch_touch(b, follower);
  }
}

void pe_batch_finish(pe_batch *b, pe_batch_seq *seq, pe_finish why, pe_event *e) {
  e->finish = why;
  pe_batch_end_fetch(b, seq);
  e->prompt = pe_batch_seq_prompt(seq), e->generated = pe_batch_seq_generated(seq);
  e->cached = seq->cached, e->forced_tokens = seq->runs;
  if (why == PE_FINISH_ERROR)
    e->error = &seq->error;
  else if (seq->cache.kv)
    pe_batch_remember(b, seq);
  pe_batch_release(b, seq);
  seq->state = PE_SEQ_DONE, seq->cache.past = 0;
  pe_batch_touch(b, seq);
  b->alive--;
  if (!--seq->request->alive) pe_batch_request_drop_media(seq->request);
  if (seq->request->r.n > 1) hand_on(b, seq);
  uint64_t *count = why == PE_FINISH_ERROR    ? &b->stats.failed
                    : why == PE_FINISH_CANCEL ? &b->stats.cancelled
                                              : &b->stats.finished;
  ++*count;
  pe_batch_push(b, e);
}

void pe_batch_fail(pe_batch *b, pe_batch_seq *seq) {
  pe_event e = {.seq = seq->id, .stop_index = -1};
  pe_batch_finish(b, seq, PE_FINISH_ERROR, &e);
}
