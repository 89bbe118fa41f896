/* amx16.h - products with bf16 weights on the tiles of AMX, of `fast` precision.
 *
 * A tile product (TDPBF16PS) is defined as chains of fused multiply-adds over 32 columns, one for
 * the even and one for the odd ones, which are then added to the sum. Subnormal inputs and results
 * are zeros, rounding is to nearest. Activations are split into two bf16 numbers, so the result is
 * nearly that of float32 (2^-17 of each activation; one of them alone would be 2^-9):
 *
 *   hi = bf16(x), lo = bf16(x - hi), both to nearest, ties to even
 *   for blocks of 32 columns in order, for plane = hi, lo:
 *     e = fma(w[2 i], plane[2 i], e), o = fma(w[2 i + 1], plane[2 i + 1], o), i = 0 .. 15, from 0
 *     sum = sum + (e + o)
 *   y = sum, then + bias, then + residual
 *
 * The last block is filled with zeros. An activation that is infinite, NaN or beyond the largest
 * bf16 makes its row NaN. One source, amx16_impl.h, is compiled with the instructions and with an
 * emulation in plain C, which tests compare; they must give the same bits. A machine with AMX uses
 * this arithmetic for every number of rows, others that of plain.h.
 *
 * Weights are the left operand, so that their tiles can be loaded where the rows are stored. Values
 * are arranged once for all products that read them, as pairs of columns by rows:
 *
 *   arranged   | tile of rows 0 | tile 1 | ...
 *   tile       | block 0: hi, lo | block 1: hi, lo | ...
 *   plane      | columns 0, 1 of rows 0 .. width - 1 | columns 2, 3 of rows 0 .. width - 1 | ...
 *
 * `width` is 4 or 8 for as few rows, else 16. Up to two tiles of rows read the weights where they
 * are. More rows copy a strip of weight rows, tile by tile, to the second-level cache and go over
 * it two tiles of rows at a time: rows of a power of two bytes would evict each other. */
#ifndef PE_AMX16_H
#define PE_AMX16_H

#include "kernels/cpu/plain.h"

typedef struct pe_amx16_rows { /* arranged values */
  int64_t rows, cols;
  uint8_t *planes; /* pe_amx16_bytes, on a cache line */
} pe_amx16_rows;

/* Products of one or two matrices of as many rows and columns with the same values. */
typedef struct pe_amx16_product {
  const pe_quant_matrix *w[2]; /* w[1]: or NULL */
  const float *bias[2];        /* or NULL */
  const pe_amx16_rows *x;
  const float *residual; /* as in plain.h; of one matrix */
  float *out;
  int64_t out_step, residual_step;
  /* Of two matrices: makes the result, in y, of n results of both. */
  void (*join)(const void *ctx, float *y, const float *other, int64_t n);
  const void *ctx;
} pe_amx16_product;

typedef struct pe_amx16_version {
  /* Parts from .. to - 1 of pe_amx16_parts. */
  void (*arrange)(const pe_amx16_rows *out, const float *x, int64_t x_step, int64_t from,
                  int64_t to);
  /* Results from .. to - 1; from is a multiple of PE_PLAIN_PANEL. Scratch: pe_amx16_room floats. */
  void (*product)(const pe_amx16_product *p, int64_t from, int64_t to, float *scratch);
  pe_plain plain; /* both for callers that share nothing; scratch: pe_amx16_scratch floats */
} pe_amx16_version;

extern const pe_amx16_version pe_amx16, pe_amx16_emulated;

/* The version for bf16 weights on this machine, checked once against the emulation; NULL: none.
 * PERIGEE_ISA=emulated is the emulation, other names none. */
const pe_amx16_version *pe_amx16_best(void);
/* Are these weights multiplied on tiles here? */
bool pe_amx16_takes(const pe_quant_matrix *w);

uint64_t pe_amx16_bytes(int64_t rows, int64_t cols);
int64_t pe_amx16_parts(int64_t rows, int64_t cols);
int64_t pe_amx16_room(int64_t cols);
int64_t pe_amx16_scratch(int64_t rows, int64_t cols);
/* Weight rows of a strip. */
int64_t pe_amx16_strip(int64_t cols, int matrices);

#endif
