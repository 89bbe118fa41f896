/* decoding.h - one text on its way through the stages of a decoder, token by token.
 *
 * Every stage streams: it passes on what no later token can change and keeps the rest. Whole and
 * streamed decoding are therefore the same code and cannot disagree.
 *
 *     token --> stage 0 --> stage 1 --> ... --> out        chunks of whole characters, marked where
 *                 hold        hold                         a token begins and ends
 *
 * After Fuse or ByteLevel there is a single token that never ends. Bytes are read as UTF-8, with
 * one U+FFFD for each maximal broken part.
 *
 * Broken runs of byte-fallback tokens. The library turns every byte of such a run into U+FFFD as
 * soon as one of them is broken, which cannot be streamed without holding back the whole run. If
 * ByteFallback feeds straight into Fuse (SentencePiece models), only the broken part becomes U+FFFD
 * here, as for other bytes. If another stage follows (Metaspace, Strip), that stage sees single
 * tokens, so the run is held back and the library's rule applies. The decoder alone decides which.
 *
 * Threads: belongs to one thread. */
#ifndef PE_DECODING_H
#define PE_DECODING_H

#include "runtime/text/decoder.h"

typedef struct pe_decoding pe_decoding;

/* Gives; borrows d. */
pe_status pe_decoding_new(const pe_decoder *d, pe_decoding **out, pe_error *err);
void pe_decoding_free(pe_decoding *s); /* takes; NULL is fine */

/* Appends to out the text that the next token makes certain, in whole characters. */
pe_status pe_decoding_push(pe_decoding *s, pe_str token, pe_buf *out, pe_error *err);
/* Appends the rest; afterwards s is ready for another text. */
pe_status pe_decoding_finish(pe_decoding *s, pe_buf *out, pe_error *err);

#endif
