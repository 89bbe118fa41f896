/* normalizer_parts.h - the parts of a normalizer: where its stages write, and the two large stages.
 *
 * A sink is the output of one stage: bytes and, when origins are wanted, one offset per byte into
 * the stage's own input. normalizer.c chains the offsets of several stages. */
#ifndef PE_NORMALIZER_PARTS_H
#define PE_NORMALIZER_PARTS_H

#include "runtime/base.h"

/* ---- normalizer_sink.c ---- */

typedef struct pe_sink {
  pe_buf *out;
  pe_buf *origin; /* uint32_t per byte of out; NULL: not wanted */
  pe_error *err;
} pe_sink;

/* n bytes that all come from the character at `from`. */
pe_status pe_sink_put(pe_sink *s, const char *bytes, size_t n, size_t from);
pe_status pe_sink_char(pe_sink *s, int32_t cp, size_t from);
/* text[from, to) unchanged. */
pe_status pe_sink_copy(pe_sink *s, pe_str text, size_t from, size_t to);

/* ---- normalizer_form.c: NFC, NFD, NFKC, NFKD ---- */

typedef struct pe_form {
  bool compose, compat;
} pe_form;

bool pe_form_unchanged(pe_form f, pe_str text);
pe_status pe_form_apply(pe_form f, pe_str text, pe_sink *s);

/* ---- normalizer_charmap.c: SentencePiece's precompiled character maps ---- */

typedef struct pe_charmap pe_charmap;

pe_status pe_charmap_read(pe_str base64, pe_charmap **out, pe_error *err); /* gives */
void pe_charmap_free(pe_charmap *m);                                       /* NULL is fine */
pe_status pe_charmap_apply(const pe_charmap *m, pe_str text, pe_sink *s);

#endif
