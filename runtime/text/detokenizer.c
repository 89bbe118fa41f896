/* detokenizer.c - see detokenizer.h. */
#include "runtime/text/detokenizer.h"

#include "runtime/text/tokenizer_parts.h"

struct pe_detokenizer {
  const pe_tokenizer *tokenizer;
  pe_decoding *decoding;
  bool skip_special;
  const int32_t *keep; /* but not these */
  int32_t keep_count;
};

pe_status pe_detokenizer_new(const pe_tokenizer *t, bool skip_special, pe_detokenizer **out,
                             pe_error *err) {
  pe_detokenizer *d = pe_calloc(1, sizeof *d);
  if (!d) return pe_nomem(err, "detokenizer");
  d->tokenizer = pe_tokenizer_retain(t), d->skip_special = skip_special;
  pe_status rc = pe_decoding_new(t->decoder, &d->decoding, err);
  if (rc)
    pe_detokenizer_free(d);
  else
    *out = d;
  return rc;
}

void pe_detokenizer_free(pe_detokenizer *d) {
  if (!d) return;
  pe_decoding_free(d->decoding);
  pe_tokenizer_release(d->tokenizer);
  pe_free(d);
}

void pe_detokenizer_keep(pe_detokenizer *d, const int32_t *id, int32_t count) {
  d->keep = id, d->keep_count = count;
}

static bool skips(const pe_detokenizer *d, int32_t id) {
  for (int32_t i = 0; i < d->keep_count; i++)
    if (d->keep[i] == id) return false;
  return d->skip_special;
}

pe_status pe_detokenizer_push(pe_detokenizer *d, int32_t id, pe_buf *out, pe_error *err) {
  const pe_added_token *a = pe_added_by_id(&d->tokenizer->added, id);
  pe_str text = a ? a->decoded : pe_vocab_text(&d->tokenizer->vocab, id);
  if (!text.at || (a && a->special && skips(d, id))) return PE_OK;
  return pe_decoding_push(d->decoding, text, out, err);
}

pe_status pe_detokenizer_finish(pe_detokenizer *d, pe_buf *out, pe_error *err) {
  return pe_decoding_finish(d->decoding, out, err);
}

pe_status pe_tokenizer_decode(const pe_tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                              pe_buf *out, pe_error *err) {
  pe_detokenizer *d = NULL;
  pe_status rc = pe_detokenizer_new(t, skip_special, &d, err);
  for (size_t i = 0; !rc && i < n; i++) rc = pe_detokenizer_push(d, id[i], out, err);
  if (!rc) rc = pe_detokenizer_finish(d, out, err);
  pe_detokenizer_free(d);
  return rc;
}
