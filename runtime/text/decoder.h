/* decoder.h - the `decoder` of a tokenizer.json: token texts back to text, one token at a time.
 *
 * A decoder is a chain of stages (ByteLevel, Metaspace, WordPiece, BPEDecoder, CTC, ByteFallback, Fuse, Strip, Replace,
 * Sequence; none: tokens joined by single spaces). Every stage streams: it passes on what no later token can change and
 * keeps the rest, so whole and streamed decoding are the same code and cannot disagree. An unknown kind is an error
 * that names it.
 *
 * Between stages travel chunks of whole characters, marked where a token begins and ends; after Fuse there is one
 * endless token. Bytes are read as UTF-8, with one U+FFFD for each maximal broken part.
 *
 * A run of byte-fallback tokens is read so, too, where it goes straight into Fuse (SentencePiece models): the library
 * turns every byte of a run into U+FFFD as soon as one is broken, which cannot be streamed without holding the whole
 * run back. Elsewhere (Metaspace or Strip after ByteFallback) later stages look at single tokens, and each broken byte
 * is one; there the run is held back and the library's way is followed. Which of the two is fixed by the decoder alone.
 *
 * Threads: a pe_decoder is immutable; a pe_decoding belongs to one thread. */
#ifndef PE_DECODER_H
#define PE_DECODER_H

#include "runtime/json.h"

typedef struct pe_decoder pe_decoder;
typedef struct pe_decoding pe_decoding; /* one text on its way through the stages */

/* v NULL or JSON null: joins tokens by spaces. The tree may be freed afterwards. */
pe_status pe_decoder_read(const pe_json_value *v, pe_decoder **out, pe_error *err); /* gives */
void pe_decoder_free(pe_decoder *d); /* takes; NULL is fine */

pe_status pe_decoding_new(const pe_decoder *d, pe_decoding **out,
                          pe_error *err); /* gives; borrows d */
void pe_decoding_free(pe_decoding *s);    /* takes; NULL is fine */

/* Appends to out what the next token makes certain; whole characters only. */
pe_status pe_decoding_push(pe_decoding *s, pe_str token, pe_buf *out, pe_error *err);
/* Appends what was kept back; afterwards s is ready for another text. */
pe_status pe_decoding_finish(pe_decoding *s, pe_buf *out, pe_error *err);

#endif
