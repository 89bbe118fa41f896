/* prim.h - the few inner loops that all CPU kernels are made of, in one version per instruction set.
 *
 * There is one text, prim_impl.h, in C over the compilers' vector types. It is compiled once for the
 * machine's baseline, with fmaf for every product (prim_scalar.c: the truth), and once for each instruction
 * set (AVX2, AVX-512, NEON). All versions do the same arithmetic in the same order, so their results are
 * equal bit for bit, which the tests check:
 *
 * - A sum over n values runs in sixteen lanes, lane j taking the values j, j+16, j+32, ... in order, each by
 *   one fused multiply-add; a tail is padded with zeros; the lanes are added as a tree (i with i+8, then +4,
 *   +2, +1). The order depends on n alone: not on the other rows of a step, not on threads.
 * - exp and what is built on it are our own polynomials with the operations spelled out.
 *
 * What is read needs no alignment (weights are used where the file has them); what is written is aligned as
 * floats are. Nothing here allocates or knows about tasks. */
#ifndef PE_PRIM_H
#define PE_PRIM_H

#include "kernels/quant.h"

/* Elementwise operations of the map op. UNARY: y = f(x). BINARY: y = f(x, z). */
#define PE_MAP_UNARY(X)                                                                            \
  X(NEG)                                                                                           \
  X(ABS) X(EXP) X(SIGMOID) X(SILU) X(TANH) X(RELU) X(RELU2) X(GELU) X(GELU_TANH) X(SOFTPLUS)       \
      X(SQRT) X(RSQRT) X(LOG)
#define PE_MAP_BINARY(X) X(ADD) X(SUB) X(MUL) X(DIV) X(MIN) X(MAX)

typedef enum pe_map_op {
#define PE_MAP_ENUM(n) PE_MAP_##n,
  PE_MAP_UNARY(PE_MAP_ENUM) PE_MAP_BINARY(PE_MAP_ENUM)
#undef PE_MAP_ENUM
      PE_MAP_COUNT
} pe_map_op;

typedef struct pe_prim {
  const char *name; /* "scalar", "avx2", "avx512", "neon" */

  /* out[r * out_step + c] = x row r . w row c, for all rows and cols; n values each. */
  void (*dots)(const float *x, int64_t x_step, int rows, const float *w, int64_t w_step, int cols,
               int64_t n, float *out, int64_t out_step);
  /* y row r += the sum over c of a[r * a_step + c] * v row c; n values each, one fused multiply-add after the
   * other in order of c. */
  void (*mix)(const float *a, int64_t a_step, int rows, const float *v, int64_t v_step, int cols,
              int64_t n, float *y, int64_t y_step);
  /* A step of a linear recurrence: for each of the rows of s, n values each, s = s * g + d[row] * k (the
   * product s * g is rounded, the rest fused), then y[row] = s . q. */
  void (*recur)(float *s, int rows, int64_t n, const float *g, const float *d, const float *k,
                const float *q, float *y);
  float (*sum)(const float *x, int64_t n);
  float (*sum_squares)(const float *x, int64_t n);
  float (*max)(const float *x, int64_t n);                    /* n >= 1; NaN is not looked for */
  void (*axpy)(float *y, float a, const float *x, int64_t n); /* y += a * x */
  float (*exp_sum)(float *x, float minus, int64_t n); /* x = exp(x - minus), in place; their sum */
  void (*unary)(pe_map_op op, const float *x, int64_t n, float *y); /* y may be x */
  void (*binary)(pe_map_op op, const float *x, const float *z, int64_t n, float *y);
  /* A whole row of a matrix to float32, values equal to pe_quant_row's. */
  void (*decode)(const pe_quant_matrix *m, int64_t row, float *out);
  /* n values to what `decode` reads: halves (PE_QUANT_NONE), or groups of 32 as PE_QUANT_Q8_0 or PE_QUANT_Q4_1. The last
   * group is written whole also where n ends before it. */
  void (*encode)(pe_quant_kind kind, const float *x, int64_t n, uint8_t *out);
} pe_prim;

/* The scalar one is always there, of the others those of this machine's family. */
extern const pe_prim pe_prim_scalar, pe_prim_avx2, pe_prim_avx512, pe_prim_neon;

/* For this machine; PERIGEE_ISA=scalar|avx2|... in the environment overrides, where it is one that runs. */
const pe_prim *pe_prim_best(void);
const pe_prim *pe_prim_named(const char *name); /* NULL: not built in, or this machine lacks it */

#endif
