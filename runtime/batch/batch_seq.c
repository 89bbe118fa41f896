/* batch_seq.c - see batch_seq.h: checking and copying requests, making rows, their text. */
#include "runtime/batch/batch_seq.h"

#include <stdlib.h>
#include <string.h>

/* ---- is it possible at all? ------------------------------------------------------------------------------------ */

static pe_status check_ids(const pe_batch *b, const char *what, pe_ids_view v, pe_error *err) {
  if (v.count < 0 || (v.count && !v.id))
    return pe_fail(err, PE_EARG, "%s: a list of %d ids", what, v.count);
  for (int32_t i = 0; i < v.count; i++)
    if (v.id[i] < 0 || v.id[i] >= b->plan->vocabulary)
      return pe_fail(err, PE_EARG, "%s: id %d is not within 0 and %d", what, v.id[i],
                     b->plan->vocabulary - 1);
  return PE_OK;
}

static pe_status check_lists(const pe_batch *b, const pe_request *r, pe_error *err) {
  pe_status rc = check_ids(b, "prompt", r->prompt, err);
  if (!rc) rc = check_ids(b, "stop_ids", r->stop_ids, err);
  if (!rc && r->keep_special.count < 0)
    rc = pe_fail(err, PE_EARG, "keep_special: a list of %d ids", r->keep_special.count);
  if (!rc && r->bad_count < 0) rc = pe_fail(err, PE_EARG, "%d bad words", r->bad_count);
  for (int32_t i = 0; !rc && i < r->bad_count; i++) {
    rc = check_ids(b, "bad_words", r->bad_words[i], err);
    if (!rc && !r->bad_words[i].count)
      rc = pe_fail(err, PE_EARG, "bad_words: number %d is empty", i + 1);
  }
  for (int32_t i = 0; !rc && i < r->boundary.count; i++)
    if (r->boundary.id[i] < 0 || r->boundary.id[i] > r->prompt.count)
      rc = pe_fail(err, PE_EARG, "boundary %d is not within the prompt of %d tokens",
                   r->boundary.id[i], r->prompt.count);
  if (!rc && r->boundary.count < 0) rc = pe_fail(err, PE_EARG, "%d boundaries", r->boundary.count);
  if (!rc && r->stop_count < 0) rc = pe_fail(err, PE_EARG, "%d stop strings", r->stop_count);
  if (!rc && r->stop_count && !b->o.tokenizer)
    rc = pe_fail(err, PE_EARG, "%d stop strings, but there is no tokenizer to make text",
                 r->stop_count);
  for (int32_t i = 0; !rc && i < r->stop_count; i++)
    if (!r->stop[i].len) rc = pe_fail(err, PE_EARG, "stop: string %d is empty", i + 1);
  return rc;
}

static pe_status check_numbers(const pe_batch *b, const pe_request *r, pe_error *err) {
  if (!r->prompt.count) return pe_fail(err, PE_EARG, "the prompt is empty");
  if (r->n < 0 || r->n > PE_BATCH_CHOICES)
    return pe_fail(err, PE_EARG, "n is %d, it must be within 1 and %d", r->n, PE_BATCH_CHOICES);
  if (r->min_tokens < 0)
    return pe_fail(err, PE_EARG, "min_tokens is %d, it must be 0 or more", r->min_tokens);
  if (r->max_tokens >= 0 && r->min_tokens > r->max_tokens)
    return pe_fail(err, PE_EARG, "min_tokens is %d, more than max_tokens, which is %d",
                   r->min_tokens, r->max_tokens);
  if (r->prompt.count >= b->o.context)
    return pe_fail(
        err, PE_ELIMIT,
        "the prompt has %d tokens, and with one more it must be within the context of %lld",
        r->prompt.count, (long long)b->o.context);
  return PE_OK;
}

/* Tokens that one sequence can have in the caches; windows need no more than they see, wherever blocks begin. */
static int64_t capacity(const pe_batch *b) {
  for (int32_t g = 0; g < b->graph->group_count; g++) {
    int64_t window = b->graph->group[g].window, size = b->kv->block;
    if (!window || (window + size - 2) / size + 1 > b->kv->blocks) return b->kv->blocks * size;
  }
  return b->o.context;
}

/* The last token that is made is never computed. */
static pe_status check_room(const pe_batch *b, const pe_request *r, int32_t *limit, pe_error *err) {
  int64_t room = capacity(b), most = b->o.context - r->prompt.count, n = r->max_tokens;
  if (n < 0) n = room - r->prompt.count + 1 > 1 ? room - r->prompt.count + 1 : 1;
  if (n > most) n = most;
  int64_t needed = r->prompt.count + (n > 0 ? n - 1 : 0);
  if (needed > room)
    return pe_fail(err, PE_ELIMIT,
                   "the request needs room for %lld tokens, and the cache has room for %lld in all",
                   (long long)needed, (long long)room);
  *limit = (int32_t)n;
  return PE_OK;
}

pe_status pe_batch_request_check(const pe_batch *b, const pe_request *r, int32_t *limit,
                                 pe_error *err) {
  pe_status rc = check_numbers(b, r, err);
  if (!rc) rc = check_lists(b, r, err);
  if (!rc) rc = pe_sampling_check(&r->sampling, b->plan->vocabulary, err);
  if (!rc) rc = check_room(b, r, limit, err);
  return rc;
}

/* ---- copying --------------------------------------------------------------------------------------------------- */

static bool copy(pe_arena *a, const void *from, size_t count, size_t size, const void **out) {
  *out = NULL;
  if (!count) return true;
  char *to = pe_arena_alloc(a, count * size);
  if (!to) return false;
  *out = memcpy(to, from, count * size);
  return true;
}

static bool copy_ids(pe_arena *a, pe_ids_view *v) {
  const void *p;
  bool ok = copy(a, v->id, (size_t)v->count, sizeof *v->id, &p);
  v->id = p;
  return ok;
}

static bool copy_bad_words(pe_arena *a, pe_request *r) {
  pe_ids_view *to = pe_arena_alloc(a, (size_t)r->bad_count * sizeof *to + 1);
  bool ok = to != NULL;
  for (int32_t i = 0; ok && i < r->bad_count; i++)
    to[i] = r->bad_words[i], ok = copy_ids(a, &to[i]);
  r->bad_words = to;
  return ok;
}

static bool copy_stop(pe_arena *a, pe_request *r) {
  pe_str *to = pe_arena_alloc(a, (size_t)r->stop_count * sizeof *to + 1);
  bool ok = to != NULL;
  for (int32_t i = 0; ok && i < r->stop_count; i++) {
    to[i] = r->stop[i];
    ok = (to[i].at = pe_arena_dup(a, r->stop[i].at, r->stop[i].len)) != NULL;
  }
  r->stop = to;
  return ok;
}

static int by_number(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

static bool copy_boundaries(pe_arena *a, pe_ids_view *v) {
  int32_t *to = pe_arena_alloc(a, (size_t)v->count * sizeof *to + 1);
  if (!to) return false;
  if (v->count)
    memcpy(to, v->id, (size_t)v->count * sizeof *to),
        qsort(to, (size_t)v->count, sizeof *to, by_number);
  v->id = to;
  return true;
}

void pe_batch_request_release(pe_batch_request *q) {
  if (!q || --q->refs > 0) return;
  pe_arena_free(&q->arena);
  pe_free(q);
}

pe_status pe_batch_request_copy(const pe_request *r, pe_batch_request **out, pe_error *err) {
  pe_batch_request *q = pe_calloc(1, sizeof *q);
  if (!q) return pe_nomem(err, "request");
  q->refs = 1, q->r = *r;
  q->r.n = r->n ? r->n : 1, q->r.prompt.id = NULL;
  pe_sampling *s = &q->r.sampling;
  const void *bias = NULL, *banned = NULL;
  bool ok = copy_ids(&q->arena, &q->r.stop_ids) && copy_ids(&q->arena, &q->r.keep_special) &&
            copy_boundaries(&q->arena, &q->r.boundary) && copy_bad_words(&q->arena, &q->r) &&
            copy_stop(&q->arena, &q->r) &&
            copy(&q->arena, s->bias, (size_t)s->bias_count, sizeof *s->bias, &bias) &&
            copy(&q->arena, s->banned, (size_t)s->banned_count, sizeof *s->banned, &banned);
  if (!ok) {
    pe_batch_request_release(q);
    return pe_nomem(err, "request");
  }
  s->bias = bias, s->banned = banned;
  *out = q;
  return PE_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

void pe_batch_seq_free(pe_batch_seq *r) {
  if (!r) return;
  pe_detokenizer_free(r->detokenizer);
  pe_stop_close(r->stop);
  pe_buf_free(&r->piece), pe_buf_free(&r->text);
  pe_free(r->token), pe_free(r->forced), pe_free(r->bias), pe_free(r->kept);
  pe_batch_request_release(r->request);
  pe_free(r);
}

static pe_status open_text(const pe_batch *b, pe_batch_seq *r, pe_error *err) {
  const pe_request *q = &r->request->r;
  pe_status rc = PE_OK;
  if (b->o.tokenizer)
    rc = pe_detokenizer_new(b->o.tokenizer, q->skip_special, &r->detokenizer, err);
  if (r->detokenizer)
    pe_detokenizer_keep(r->detokenizer, q->keep_special.id, q->keep_special.count);
  if (!rc && q->stop_count) rc = pe_stop_open(q->stop, (size_t)q->stop_count, &r->stop, err);
  return rc;
}

pe_status pe_batch_seq_new(const pe_batch *b, pe_batch_request *q, const int32_t *token,
                           int32_t count, pe_batch_seq **out, pe_error *err) {
  pe_batch_seq *r = pe_calloc(1, sizeof *r);
  if (!r) return pe_nomem(err, "row");
  q->refs++;
  r->request = q, r->sampling = q->r.sampling, r->line = -1, r->added_ns = pe_clock_ns();
  pe_status rc = pe_grow(&r->token, &r->cap, (size_t)count, sizeof *r->token, err);
  if (!rc) memcpy(r->token, token, (size_t)count * sizeof *token), r->count = count;
  size_t logits = (size_t)b->plan->vocabulary * sizeof *r->kept;
  if (!rc && (q->r.hold || q->r.keep_logits) && !(r->kept = pe_alloc(logits)))
    rc = pe_nomem(err, "logits of a row");
  if (!rc) rc = open_text(b, r, err);
  if (rc) {
    pe_batch_seq_free(r);
    return rc;
  }
  *out = r;
  return PE_OK;
}

pe_status pe_batch_seq_append(pe_batch_seq *r, int32_t id, pe_error *err) {
  pe_status rc = pe_grow(&r->token, &r->cap, (size_t)r->count + 1, sizeof *r->token, err);
  if (!rc && r->seq.kv) rc = pe_seq_append(&r->seq, &id, 1, err);
  if (!rc) r->token[r->count++] = id;
  return rc;
}

pe_status pe_batch_seq_force(pe_batch_seq *r, const int32_t *id, int32_t count, pe_error *err) {
  int32_t left = r->forced_count - r->forced_at;
  pe_status rc =
      pe_grow(&r->forced, &r->forced_cap, (size_t)left + (size_t)count, sizeof *r->forced, err);
  if (rc) return rc;
  if (left) memmove(r->forced, r->forced + r->forced_at, (size_t)left * sizeof *id);
  if (count) memcpy(r->forced + left, id, (size_t)count * sizeof *id);
  r->forced_at = 0, r->forced_count = left + count;
  return PE_OK;
}

/* ---- text ------------------------------------------------------------------------------------------------------ */

/* Until min_tokens are there, nothing looks for stop strings. */
static pe_status pass_on(pe_batch_seq *r, int32_t made, int *hit, pe_error *err) {
  if (r->stop && made > r->request->r.min_tokens)
    return pe_stop_push(r->stop, pe_str_of(r->piece.data, r->piece.len), &r->text, hit, err);
  return r->piece.len ? pe_buf_put(&r->text, r->piece.data, r->piece.len, err) : PE_OK;
}

pe_status pe_batch_seq_say(pe_batch_seq *r, int32_t id, int32_t made, int *hit, pe_error *err) {
  *hit = -1;
  if (!r->detokenizer) return PE_OK;
  r->piece.len = 0;
  pe_status rc = pe_detokenizer_push(r->detokenizer, id, &r->piece, err);
  return rc ? rc : pass_on(r, made, hit, err);
}

pe_status pe_batch_seq_say_rest(pe_batch_seq *r, int *hit, pe_error *err) {
  *hit = -1;
  if (!r->detokenizer) return PE_OK;
  r->piece.len = 0;
  pe_status rc = pe_detokenizer_finish(r->detokenizer, &r->piece, err);
  if (!rc) rc = pass_on(r, pe_batch_seq_made(r), hit, err);
  if (!rc && r->stop && *hit < 0) rc = pe_stop_finish(r->stop, &r->text, err);
  return rc;
}

pe_status pe_batch_seq_say_again(const pe_batch *b, pe_batch_seq *r, pe_error *err) {
  pe_detokenizer *d = r->detokenizer;
  pe_stop *s = r->stop;
  pe_buf text = r->text; /* an event may have borrowed it */
  r->detokenizer = NULL, r->stop = NULL, r->text = (pe_buf){0};
  int hit;
  pe_status rc = open_text(b, r, err);
  for (int32_t i = pe_batch_seq_prompt(r); !rc && i < r->count; i++)
    rc = pe_batch_seq_say(r, r->token[i], i - pe_batch_seq_prompt(r) + 1, &hit, err);
  pe_buf_free(&r->text); /* all of it was said before */
  r->text = text;
  if (rc) { /* as it was */
    pe_detokenizer_free(r->detokenizer), pe_stop_close(r->stop);
    r->detokenizer = d, r->stop = s;
    return rc;
  }
  pe_detokenizer_free(d), pe_stop_close(s);
  return PE_OK;
}
