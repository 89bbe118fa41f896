/* pack.h - quantized weights packed for integer matrix instructions.
 *
 * A pack holds the codes and scales of a matrix exactly as stored, in another order. It is a
 * sequence of panels, one per 16 rows of the matrix (16 results of a product); the last one is
 * filled with rows of zeros. A panel is a sequence of chunks in order of columns, 64 columns or the
 * few that the kind's groups and whole cache lines need:
 *
 *   panel   | chunk | chunk | chunk | ...            every chunk starts on a cache line
 *   chunk   | base plane | upper plane | scales | biases | supers |
 *   plane   | word 0 of rows 0 .. 15 | word 1 of rows 0 .. 15 | ...      32-bit words
 *   scales  | group 0 of rows 0 .. 15 | group 1 of rows 0 .. 15 | ...    as stored
 *
 * A plane of `bits` bits keeps columns in blocks of eight; column 8 i + 2 b + h is in byte b:
 *
 *   8 bits  word 2 i + h, byte b
 *   4 bits  word i, bits 8 b + 4 h            (nibble j is column 8 i + j, as MLX stores it)
 *   2 bits  word i / 2, bits 8 b + 2 (2 (i % 2) + h)
 *   1 bit   word i / 4, bit 8 b + 2 (i % 4) + h
 *
 * Codes of 3, 5 and 6 bits are two planes (2+1, 4+1, 4+2). Shifting and masking a word of any plane
 * gives bytes of columns (0,2,4,6) and (1,3,5,7) of a block, for dot products of bytes; the even
 * and odd bytes of those are the pairs (0,4), (1,5), (2,6), (3,7), for dot products of 16-bit
 * values. So one order of the activations fits every kind, and two planes meet without shuffling.
 *
 * The value of a code is s * (code - offset) + b, or s * (levels[code] - offset) for the kinds with
 * a table; s and b are float32 by a fixed formula (pe_pack_scale).
 *
 * Packing a panel depends on nothing else, so threads may share the panels of a matrix. A pack
 * whose rows are a multiple of 16 can be followed in memory by another of the same kind and
 * columns: together they are one pack. Nothing here allocates or fails. */
#ifndef PE_PACK_H
#define PE_PACK_H

#include "kernels/quant.h"

enum {
  PE_PACK_ROWS = 16,   /* of a panel */
  PE_PACK_CHUNK = 256, /* columns of the largest chunk */
  PE_PACK_ALIGN = 64   /* of data: a cache line, and the widest vector */
};

/* How scales are stored and s and b computed; each product below is one float32 operation. */
typedef enum pe_pack_scale {
  PE_PACK_F16,        /* s and, if the kind has biases, b as halves */
  PE_PACK_BF16,       /* the same in other types */
  PE_PACK_F32,        /* */
  PE_PACK_E8M0,       /* s = 2^(byte - 128): levels are doubled; 255 is infinity, as in MLX */
  PE_PACK_E8M0_GGUF,  /* the same; 255 is 2^127 */
  PE_PACK_E4M3,       /* s = (byte * global) * 0.5 */
  PE_PACK_SUB_I8,     /* super d (half): s = d * signed byte */
  PE_PACK_SUB_U8,     /* supers d, dmin: s = d * byte, b = -(dmin * byte) */
  PE_PACK_SUB_NIBBLES /* the same with s in the low and b in the high nibble of one byte */
} pe_pack_scale;

typedef struct pe_pack {
  pe_quant quant;
  int64_t rows, cols;
  uint8_t base, upper;   /* bits of the planes; upper is 0 if there is one plane */
  uint8_t scale;         /* pe_pack_scale */
  bool bias;             /* the kind has b */
  int32_t offset;        /* subtracted from a code or level */
  const uint8_t *levels; /* 16 entries, or NULL: codes are values */
  int32_t group;         /* columns that share a scale */
  int32_t act;           /* columns that share a scale of the activations: at most 64 */
  int32_t chunk;         /* columns of a chunk */
  int32_t groups, times; /* scales in a chunk; each is that of `times` groups of activations */
  int32_t upper_at, scale_at, bias_at, super_at, chunk_bytes; /* inside a chunk */
  uint64_t panel_bytes;
  float global;  /* nvfp4 */
  uint8_t *data; /* pe_pack_bytes, aligned to PE_PACK_ALIGN; borrowed */
} pe_pack;

/* Whether the kind can be packed: all but plain elements and mxfp8. */
bool pe_pack_supported(const pe_quant_matrix *m);
/* Describes the pack of a supported matrix; data is NULL. */
void pe_pack_describe(const pe_quant_matrix *m, pe_pack *out);
uint64_t pe_pack_bytes(const pe_quant_matrix *m);
static inline int64_t pe_pack_panels(const pe_pack *p) {
  return (p->rows + PE_PACK_ROWS - 1) / PE_PACK_ROWS;
}
static inline const uint8_t *pe_pack_panel(const pe_pack *p, int64_t panel) {
  return p->data + (uint64_t)panel * p->panel_bytes;
}

/* Fills panels from .. to - 1 of the pack of m, whose data is set. */
void pe_pack_fill(const pe_pack *p, const pe_quant_matrix *m, int64_t from, int64_t to);

/* The integers (code or level - offset), s and b (0 if the kind has none) of one group of a row. */
void pe_pack_group(const pe_pack *p, int64_t row, int64_t group, int16_t *values, float *s,
                   float *b);
/* A whole row as float32, equal to pe_quant_row of the packed matrix (but -0 of mxfp4 and nvfp4
 * may be 0). */
void pe_pack_row(const pe_pack *p, int64_t row, float *out);

#endif
