/* pack_stored.h - the planes and scales of one stored row: what pack.c lays side by side.
 *
 * Codes are unsigned; see pack.h for what is subtracted from them, and for the order of bits in a
 * plane. Scales of six bits become whole bytes. */
#ifndef PE_PACK_STORED_H
#define PE_PACK_STORED_H

#include "kernels/quant.h"

typedef struct pe_stored {        /* at most 256 columns of a row */
  uint32_t base[64], upper[16];   /* the words of the planes, as many as their bits need */
  uint8_t scales[16], biases[16]; /* of groups in order: bytes or halves */
  uint8_t supers[4];              /* d and dmin of the K kinds */
} pe_stored;

/* Both fill whole words: with zeros where there are no columns, if `to` was cleared before. */

/* `count` blocks of a GGUF kind. */
void pe_stored_blocks(pe_quant_kind kind, const uint8_t *block, int count, pe_stored *to);
/* `count` codes, a multiple of 8, of an MLX stream; its scales are not in it. Not for 4 bits, whose
 * words are stored as a plane has them. */
void pe_stored_stream(const uint8_t *stream, int bits, int count, pe_stored *to);

#endif
