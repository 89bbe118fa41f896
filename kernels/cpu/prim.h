/* prim.h - the inner loops that all CPU kernels use, in one version per instruction set.
 *
 * There is one source, prim_impl.h, in C over the compilers' vector types. It is compiled once for
 * the baseline of the machine, with fmaf for every product (prim_scalar.c: the reference), and once
 * for each instruction set (AVX2, AVX-512, NEON). All versions do the same arithmetic in the same
 * order, so their results are equal bit for bit, which the tests check:
 *
 * - A sum over n values runs in sixteen lanes, lane j taking the values j, j+16, j+32, ... in
 *   order, each by one fused multiply-add. A tail is padded with zeros. The lanes are added as a
 *   tree (i with i+8, then +4, +2, +1). The order depends on n alone: not on other rows, not on
 *   threads.
 * - exp and the functions built on it are our own polynomials, with every operation spelled out.
 *
 * Inputs need no alignment (weights are used where the file has them); outputs are aligned as
 * floats are. Nothing here allocates or knows about tasks. */
#ifndef PE_PRIM_H
#define PE_PRIM_H

#include "kernels/cpu/plain.h"
#include "kernels/cpu/passes.h"
#include "kernels/op.h"
#include "kernels/quant.h"
#include "kernels/scan.h"

typedef struct pe_prim {
  const char *name; /* "scalar", "avx2", "avx512", "neon" */

  /* out[r * out_step + c] = x row r . w row c, for all rows and cols; n values each. */
  void (*dots)(const float *x, int64_t x_step, int rows, const float *w, int64_t w_step, int cols,
               int64_t n, float *out, int64_t out_step);
  /* y row r += the sum over c of a[r * a_step + c] * v row c; n values each, by fused multiply-adds
   * in order of c. */
  void (*mix)(const float *a, int64_t a_step, int rows, const float *v, int64_t v_step, int cols,
              int64_t n, float *y, int64_t y_step);
  /* The same for lines of float16. */
  void (*mix_halves)(const float *a, int64_t a_step, int rows, const uint16_t *v, int64_t v_step,
                     int cols, int64_t n, float *y, int64_t y_step);
  /* A step of a linear recurrence: for each row of s, n values each, s = s * g + d[row] * k (the
   * product s * g is rounded, the rest fused), then y[row] = s . q. */
  void (*recur)(float *s, int rows, int64_t n, const float *g, const float *d, const float *k,
                const float *q, float *y);
  float (*sum)(const float *x, int64_t n);
  float (*sum_squares)(const float *x, int64_t n);
  float (*max)(const float *x, int64_t n);            /* n >= 1; a NaN may be missed */
  float (*exp_sum)(float *x, float minus, int64_t n); /* x = exp(x - minus); returns the sum */
  void (*unary)(pe_map_op op, const float *x, int64_t n, float *y); /* y may be x */
  void (*binary)(pe_map_op op, const float *x, const float *z, int64_t n, float *y); /* or z */
  /* y = x * by * (w + offset), or without w y = x * by; y may be x. */
  void (*rescale)(const float *x, float by, const float *w, float offset, int64_t n, float *y);
  /* y = x * a + z * b, both products rounded, or without z y = x * a + 0; y may be x or z. */
  void (*combine)(const float *x, float a, const float *z, float b, int64_t n, float *y);
  /* A whole row of a matrix to float32, equal to pe_quant_row. */
  void (*decode)(const pe_quant_matrix *m, int64_t row, float *out);
  /* The inverse of `decode` for n values: halves (PE_QUANT_NONE), or blocks of PE_QUANT_Q8_0 or
   * PE_QUANT_Q4_1. The last block is written whole even if n ends inside it. */
  void (*encode)(pe_quant_kind kind, const float *x, int64_t n, uint8_t *out);
  const pe_plain *plain;   /* products with weights as they are stored */
  const pe_scan *scan;     /* passes of the sampler */
  const pe_passes *passes; /* of recurrences and convolutions */
} pe_prim;

/* Only the scalar version and those of this machine's family are built. */
extern const pe_prim pe_prim_scalar, pe_prim_avx2, pe_prim_avx512, pe_prim_neon;

/* The best version for this machine; PERIGEE_ISA=scalar|avx2|... in the environment overrides it if
 * this machine can run that one. */
const pe_prim *pe_prim_best(void);
const pe_prim *pe_prim_named(const char *name); /* NULL: not built, or cannot run here */

#endif
