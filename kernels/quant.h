/* quant.h - how weights are laid out in memory: one description for every format.
 *
 * A weight is a matrix of rows (all leading dimensions flattened) of `cols` values. Three families:
 *
 * - Plain elements of a dtype (PE_QUANT_NONE).
 * - MLX layouts: a row is a little-endian stream of codes, value i at bit i * bits. Each `group` of
 *   values along the row has a scale in a second matrix and, if affine, a bias in a third.
 *     affine  scale * code + bias; code unsigned; 2, 3, 4, 5, 6 or 8 bits; group 32, 64 or 128;
 *             scales are f16, bf16 or f32 and may be negative
 *     mxfp4   E2M1 codes, group 32, one E8M0 byte; gpt-oss publishes the same bytes as `_blocks`
 *             and `_scales`
 *     mxfp8   E4M3 codes, group 32, one E8M0 byte
 *     nvfp4   E2M1 codes, group 16, one E4M3 byte, times one f32 for the whole matrix (1 if the
 *             file has none)
 * - GGUF blocks: a row is a sequence of blocks that hold codes and scales together.
 *
 * The decoders here are the reference for every faster kernel: float32, one multiplication and at
 * most one addition, in the order of the reference code of each format, so results are equal bit
 * for bit to those of the Python packages `gguf` and `mlx`. Nothing here allocates or fails: a
 * pe_quant_matrix is checked where it is filled. Pointers need no alignment. */
#ifndef PE_QUANT_H
#define PE_QUANT_H

#include "kernels/dtype.h"

#ifndef __METAL_VERSION__
#include <stdbool.h>
#endif

/* The sizes of all blocks, written once. id, name, values and bytes of a block; bytes 0: scales are
 * stored separately; values 0: the group varies. */
#define PE_QUANTS(X)                                                                               \
  X(PE_QUANT_NONE, "none", 1, 0)                                                                   \
  X(PE_QUANT_AFFINE, "affine", 0, 0)                                                               \
  X(PE_QUANT_MXFP4, "mxfp4", 32, 0)                                                                \
  X(PE_QUANT_MXFP8, "mxfp8", 32, 0)                                                                \
  X(PE_QUANT_NVFP4, "nvfp4", 16, 0)                                                                \
  X(PE_QUANT_Q4_0, "Q4_0", 32, 18)                                                                 \
  X(PE_QUANT_Q4_1, "Q4_1", 32, 20)                                                                 \
  X(PE_QUANT_Q5_0, "Q5_0", 32, 22)                                                                 \
  X(PE_QUANT_Q5_1, "Q5_1", 32, 24)                                                                 \
  X(PE_QUANT_Q8_0, "Q8_0", 32, 34)                                                                 \
  X(PE_QUANT_Q2_K, "Q2_K", 256, 84)                                                                \
  X(PE_QUANT_Q3_K, "Q3_K", 256, 110)                                                               \
  X(PE_QUANT_Q4_K, "Q4_K", 256, 144)                                                               \
  X(PE_QUANT_Q5_K, "Q5_K", 256, 176)                                                               \
  X(PE_QUANT_Q6_K, "Q6_K", 256, 210)                                                               \
  X(PE_QUANT_IQ4_NL, "IQ4_NL", 32, 18)                                                             \
  X(PE_QUANT_IQ4_XS, "IQ4_XS", 256, 136)                                                           \
  X(PE_QUANT_GGUF_MXFP4, "MXFP4", 32, 17)

typedef enum pe_quant_kind {
#define PE_QUANT_ENUM(id, name, values, bytes) id,
  PE_QUANTS(PE_QUANT_ENUM)
#undef PE_QUANT_ENUM
      PE_QUANT_COUNT
} pe_quant_kind;

/* PE_QUANT_Q4_0_VALUES, PE_QUANT_Q4_0_BYTES and so on. */
enum {
#define PE_QUANT_SIZES(id, name, values, bytes) id##_VALUES = values, id##_BYTES = bytes,
  PE_QUANTS(PE_QUANT_SIZES)
#undef PE_QUANT_SIZES
      PE_QUANT_MAX_BLOCK = 256 /* values in the largest block */
};

#ifndef __METAL_VERSION__ /* kernels of Metal need the numbers alone */
const char *pe_quant_name(pe_quant_kind kind);
int pe_quant_find(const char *name, size_t len); /* by name; -1: unknown */
int pe_quant_block_values(pe_quant_kind kind);   /* of a block or a fixed group */
int pe_quant_block_bytes(pe_quant_kind kind);    /* of a GGUF block; 0 for the other families */

typedef struct pe_quant {
  pe_quant_kind kind;
  int bits, group;      /* MLX layouts: of a code; values that share a scale */
  pe_dtype scale_dtype; /* MLX layouts: of the scales and biases as stored (float formats: PE_U8) */
} pe_quant;

/* Whether this is one of the combinations listed above; for readers of configs. */
bool pe_quant_valid(const pe_quant *q);

typedef struct pe_quant_matrix {
  pe_quant quant;
  pe_dtype dtype; /* of plain elements */
  int64_t rows, cols;
  const uint8_t *data, *scales, *biases; /* scales, biases: NULL if the layout has none */
  uint64_t row_bytes;                    /* from one row to the next in data */
  uint64_t scale_bytes;                  /* the same in scales and biases */
  float global;                          /* nvfp4: the factor of the whole matrix */
} pe_quant_matrix;

/* Bytes of a row of cols values in `data` and in `scales`; 0 if cols is not a whole number of
 * blocks or groups, or on overflow. */
uint64_t pe_quant_row_bytes(const pe_quant *q, pe_dtype dtype, int64_t cols);
uint64_t pe_quant_scale_bytes(const pe_quant *q, int64_t cols);

/* Decodes `count` values of a row, starting at any column. */
void pe_quant_row(const pe_quant_matrix *m, int64_t row, int64_t from, int64_t count, float *out);
/* Decodes whole rows, adjacent in out. */
void pe_quant_rows(const pe_quant_matrix *m, int64_t from, int64_t count, float *out);

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Decodes one GGUF block. */
void pe_quant_block(pe_quant_kind kind, const uint8_t *block, float *out);
/* pe_quant_row of the MLX layouts. */
void pe_quant_mlx_row(const pe_quant_matrix *m, int64_t row, int64_t from, int64_t count,
                      float *out);
/* The code of value i of a stream; bits: 1 to 8. */
uint32_t pe_quant_code(const uint8_t *stream, int bits, uint64_t i);
/* Converts `count` plain elements. Integers above 2^24 are rounded. */
void pe_quant_plain(pe_dtype dtype, const uint8_t *data, int64_t count, float *out);

float pe_e2m1_to_f32(uint8_t code); /* the low four bits */
float pe_e4m3_to_f32(uint8_t code); /* no infinities; 0x7f and 0xff are NaN */
float pe_e5m2_to_f32(uint8_t code);
float pe_e8m0_to_f32(uint8_t code); /* 2^(code-127); 255 is NaN */

/* ---- the type numbers of GGUF ---------------------------------------------------------------- */

/* Every type of the format, including those that we can name and measure but not decode. */
typedef struct pe_ggml_type {
  uint32_t number;
  const char *name;
  int values, bytes; /* of a block */
  int kind;          /* pe_quant_kind, or -1: cannot be decoded */
  pe_dtype dtype;    /* when kind is PE_QUANT_NONE */
} pe_ggml_type;

const pe_ggml_type *pe_ggml_type_find(uint32_t number); /* NULL: no such number */
#endif

#endif
