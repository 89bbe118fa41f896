/* detokenizer.h - ids back to text while they are generated.
 *
 * Push an id, get the text it makes certain; finish returns the rest. Always true: every piece is
 * whole UTF-8 characters; the joined pieces equal pe_tokenizer_decode of the whole list (both run
 * the same stages, see decoding.h); nothing is held back that a later id could not change.
 *
 * Threads: a detokenizer belongs to one thread; the tokenizer is shared. */
#ifndef PE_DETOKENIZER_H
#define PE_DETOKENIZER_H

#include "runtime/text/tokenizer.h"

typedef struct pe_detokenizer pe_detokenizer;

/* Gives; retains t. */
pe_status pe_detokenizer_new(pe_tokenizer *t, bool skip_special, pe_detokenizer **out,
                             pe_error *err);
void pe_detokenizer_free(pe_detokenizer *d); /* takes; NULL is fine */

/* Special tokens to write although others are skipped. Borrows the list. */
void pe_detokenizer_keep(pe_detokenizer *d, const int32_t *id, int32_t count);

/* Appends the text that id makes certain, which may be empty. Unknown ids are dropped. */
pe_status pe_detokenizer_push(pe_detokenizer *d, int32_t id, pe_buf *out, pe_error *err);
/* Appends the rest; afterwards d is ready for another text. */
pe_status pe_detokenizer_finish(pe_detokenizer *d, pe_buf *out, pe_error *err);

#endif
