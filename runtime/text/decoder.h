/* decoder.h - the `decoder` of a tokenizer.json: a chain of stages that turns token texts back into
 * text. decoding.h runs it.
 *
 * Stages: ByteLevel, Metaspace, WordPiece, BPEDecoder, CTC, ByteFallback, Fuse, Strip, Replace,
 * Sequence (flattened). Without a decoder, tokens are joined by single spaces. An unknown kind is
 * an error that names it.
 *
 * Threads: immutable after reading. */
#ifndef PE_DECODER_H
#define PE_DECODER_H

#include "runtime/json.h"

typedef struct pe_decoder pe_decoder;

/* v NULL or JSON null: joins tokens by spaces. Gives. The tree may be freed afterwards. */
pe_status pe_decoder_read(const pe_json_value *v, pe_decoder **out, pe_error *err);
void pe_decoder_free(pe_decoder *d); /* takes; NULL is fine */

/* Whether tokens are written in GPT-2's byte alphabet: some stage is ByteLevel. */
bool pe_decoder_byte_level(const pe_decoder *d);

#endif
