/* detokenizer.c - see detokenizer.h. */
#include "runtime/text/detokenizer.h"

#include "runtime/text/decoding.h"
#include "runtime/text/tokenizer_parts.h"

struct pe_detokenizer {
  pe_tokenizer *tokenizer;
  pe_decoding *decoding;
  bool skip_special;
  const int32_t *keep; /* not skipped */
  int32_t keep_count;
};

pe_status pe_detokenizer_new(pe_tokenizer *t, bool skip_special, pe_detokenizer **out,
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
  bool special;
  pe_str text = pe_tokenizer_decoded(d->tokenizer, id, &special);
  if (!text.at || (special && skips(d, id))) return PE_OK;
  return pe_decoding_push(d->decoding, text, out, err);
}

pe_status pe_detokenizer_finish(pe_detokenizer *d, pe_buf *out, pe_error *err) {
  return pe_decoding_finish(d->decoding, out, err);
}
