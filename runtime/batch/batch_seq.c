/* batch_seq.c - see batch_seq.h: making rows, their text. */
#include "runtime/batch/batch_seq.h"

#include <string.h>

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
