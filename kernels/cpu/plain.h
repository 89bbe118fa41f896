/* plain.h - products with weights that are read where they are stored: f32, f16, bf16 and mxfp8.
 *
 * Every weight of these kinds is exactly a float32 (mxfp8: the product of its value and its scale,
 * rounded once), and activations stay float32: `fast` has the arithmetic of `exact` (prim.h),
 *
 *   lane l = 0 .. 15:  s[l] = fma(x[l + 16 i], w[l + 16 i], s[l])  for i = 0, 1, ...
 *   y = the lanes added as a tree (i with i+8, then +4, +2, +1), then + bias, then + residual
 *
 * Every version, number of rows, range of columns and block gives these bits. They take
 * multiply-adds of float32 only, which every machine has. Instructions for bf16 round otherwise:
 * vdpbf16ps flushes subnormals and has half the rate of plain multiply-adds, and BFDOT and BFMMLA
 * round the sums of pairs to odd. A tile of AMX (TDPBF16PS) is a chain of multiply-adds over the
 * even and one over the odd columns of 32; only it is fast enough to be worth other bits, and
 * amx16.h uses it for bf16 weights in `fast`.
 *
 * Nothing is packed: an embedding that is also the head stays in memory once, and a model is ready
 * when its file is mapped. Two paths give the same bits:
 *
 *   few rows    four weight rows a quarter of the range apart are read at once with prefetching,
 *               widened in registers: bound by memory. Lanes of a register are columns.
 *   more rows   PE_PLAIN_PANEL weight rows are widened and transposed into the second-level cache,
 *               so that lanes of a register are results. The sixteen sums of a result are computed
 *               one after another, each over every sixteenth column; the tree adds them up.
 *
 *   panel   | lane 0: columns 0 16 32 ... | lane 8: columns 8 24 ... | lane 4 | lane 12 | ...
 *   column  | weight row 0 .. PE_PLAIN_PANEL - 1 |          lanes in the order of the tree's leaves
 *
 * The activations of a tile of rows are arranged in the same order. Measured on a core of 150
 * GFLOP/s, 1024 x 1024 in bf16: 10 to 12 GB/s at one and two rows, where a prefetched read gets 10;
 * 100 GFLOP/s at 64 rows, 110 at 112. Nothing here allocates, fails or knows about tasks. */
#ifndef PE_PLAIN_H
#define PE_PLAIN_H

#include "kernels/quant.h"

enum {
  PE_PLAIN_PANEL = 32, /* weight rows of a panel, at most: a good multiple for ranges */
  /* Rows of a product, at most: between blocks of columns their sums take 2 KB each, and 256 rows
   * make widening a panel a part of a hundred. */
  PE_PLAIN_ROWS = 256
};

typedef struct pe_plain_product { /* out[r * out_step + j] for 0 <= r < rows */
  const pe_quant_matrix *w;       /* supported; j is a row of it */
  const float *x;                 /* row r, w->cols values, at x + r * x_step */
  const float *bias;              /* w->rows values, or NULL */
  const float *residual; /* row r, result j at r * residual_step + j; or NULL; may be out */
  float *out;
  int64_t rows, x_step, out_step, residual_step;
} pe_plain_product;

static inline bool pe_plain_supported(const pe_quant_matrix *m) {
  return m->quant.kind == PE_QUANT_MXFP8 ||
         (m->quant.kind == PE_QUANT_NONE &&
          (m->dtype == PE_F32 || m->dtype == PE_F16 || m->dtype == PE_BF16));
}

typedef struct pe_plain {
  /* Arranges the activations in scratch, pe_plain_scratch floats. Products with any weights of as
   * many columns may follow. */
  void (*arrange)(const pe_plain_product *p, float *scratch);
  /* Results from .. to - 1. */
  void (*product)(const pe_plain_product *p, int64_t from, int64_t to, float *scratch);
} pe_plain;

int64_t pe_plain_scratch(int64_t rows, int64_t cols);

#endif
