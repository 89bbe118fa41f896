/* detokenizer.h - ids back to text while they are generated.
 *
 * Push one id, get what it makes certain; at the end, finish gives the rest. Always true: every piece is whole UTF-8
 * characters; the pieces joined are exactly pe_tokenizer_decode of the whole list (both run the same stages, see
 * decoder.h); nothing is kept back that a later id could not change.
 *
 * Threads: a detokenizer belongs to one thread; the tokenizer is shared. */
#ifndef PE_DETOKENIZER_H
#define PE_DETOKENIZER_H

#include "runtime/text/tokenizer.h"

typedef struct pe_detokenizer pe_detokenizer;

pe_status pe_detokenizer_new(const pe_tokenizer *t, bool skip_special, pe_detokenizer **out,
                             pe_error *err); /* gives; retains t */
void pe_detokenizer_free(pe_detokenizer *d); /* takes; NULL is fine */

/* These special tokens are in the text although others are skipped. Borrows the list. */
void pe_detokenizer_keep(pe_detokenizer *d, const int32_t *id, int32_t count);

/* Appends the piece that id makes certain (may be nothing). Ids that do not exist are dropped. */
pe_status pe_detokenizer_push(pe_detokenizer *d, int32_t id, pe_buf *out, pe_error *err);
/* Appends the last piece; afterwards d is ready for another text. */
pe_status pe_detokenizer_finish(pe_detokenizer *d, pe_buf *out, pe_error *err);

#endif
