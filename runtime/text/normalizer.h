/* normalizer.h - the `normalizer` of a tokenizer.json: text to text, before anything is split.
 *
 * All kinds of the `tokenizers` library are read: NFC NFD NFKC NFKD, Lowercase, StripAccents,
 * Strip, Replace (string or regex), Prepend, Nmt, ByteLevel, BertNormalizer, Precompiled
 * (SentencePiece character maps), Sequence. An unknown kind is an error that names it. The tables
 * are those of the library's own, older Unicode (see unicode.h), so the result is the same on every
 * machine.
 *
 * Origins. To find special tokens in trusted text only, the caller needs to know where a normalized
 * byte came from. If `origin` is given, one uint32_t is appended per output byte: the offset in the
 * input of its character (or combining cluster). Inserted bytes take the offset of the character
 * they were inserted before.
 *
 * Threads: immutable after reading; any number of threads may apply it at once. */
#ifndef PE_NORMALIZER_H
#define PE_NORMALIZER_H

#include "runtime/json.h"

typedef struct pe_normalizer pe_normalizer;

/* v NULL or JSON null: gives NULL, the identity. The tree may be freed afterwards. */
pe_status pe_normalizer_read(const pe_json_value *v, pe_normalizer **out, pe_error *err);
void pe_normalizer_free(pe_normalizer *n); /* takes; NULL is fine */

/* A cheap test whether the text comes out unchanged: true is certain, false is not. */
bool pe_normalizer_unchanged(const pe_normalizer *n, pe_str text);

/* Appends the normalized text to out, and origins as uint32_t to origin unless it is NULL. Input
 * and output are valid UTF-8. */
pe_status pe_normalizer_apply(const pe_normalizer *n, pe_str text, pe_buf *out, pe_buf *origin,
                              pe_error *err);

#endif
