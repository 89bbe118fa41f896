/* pack_stored.h - the codes and scales of stored blocks as bytes: what pack.c reads.
 *
 * Codes are unsigned, in order of columns, one byte each; see pack.h for what is subtracted from
 * them. Scales of six bits become whole bytes. */
#ifndef PE_PACK_STORED_H
#define PE_PACK_STORED_H

#include "kernels/quant.h"

typedef struct pe_stored { /* at most 256 columns of a row */
  uint8_t codes[256];
  uint8_t scales[16], biases[16]; /* of groups in order: bytes or halves */
  uint8_t supers[4];              /* d and dmin of the K kinds */
} pe_stored;

/* `count` blocks of a GGUF kind. */
void pe_stored_blocks(pe_quant_kind kind, const uint8_t *block, int count, pe_stored *to);
/* `count` codes, a multiple of 8, of an MLX stream. */
void pe_stored_stream(const uint8_t *stream, int bits, int count, uint8_t *codes);

#endif
