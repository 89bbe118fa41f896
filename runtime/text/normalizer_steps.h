/* normalizer_steps.h - inside of normalizer: where the steps write, and the two large ones.
 *
 * A sink is the output of one step: bytes, and where origins are wanted one offset per byte into the step's own input.
 * normalizer.c chains the offsets of several steps. */
#ifndef PE_NORMALIZER_STEPS_H
#define PE_NORMALIZER_STEPS_H

#include "runtime/base.h"

typedef struct pe_sink {
  pe_buf *out;
  pe_buf *origin; /* uint32_t per byte of out; NULL: not wanted */
  pe_error *err;
} pe_sink;

pe_status pe_sink_put(pe_sink *s, const char *bytes, size_t n,
                      size_t from); /* all of them from one place */
pe_status pe_sink_char(pe_sink *s, int32_t cp, size_t from);
pe_status pe_sink_copy(pe_sink *s, pe_str text, size_t from,
                       size_t to); /* text[from, to) as it is */

/* NFC, NFD, NFKC, NFKD (normalizer_form.c). */
typedef struct pe_form {
  bool compose, compat;
} pe_form;
bool pe_form_unchanged(pe_form f, pe_str text);
pe_status pe_form_apply(pe_form f, pe_str text, pe_sink *s);

/* SentencePiece character maps (normalizer_map.c). */
typedef struct pe_charmap pe_charmap;
pe_status pe_charmap_read(pe_str base64, pe_charmap **out, pe_error *err); /* gives */
void pe_charmap_free(pe_charmap *m);
pe_status pe_charmap_apply(const pe_charmap *m, pe_str text, pe_sink *s);

#endif
