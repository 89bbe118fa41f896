/* passes.h - passes over the states of recurrences and over the rows of convolutions, the inner
 * loops of fast_recur.c in one version per instruction set (prim.h).
 *
 * A panel is a part of the state of a head: `lines` lines, one per key, of `lanes` values, one per
 * value of the head. Results are sums over lines, so the lanes of a register never meet, and a
 * panel of 128 lines of 32 lanes (16 KB) stays in the first cache while many rows pass over it:
 *
 *              value 0 .. 31
 *     key 0   | s  s  s  s |   d[value] = (v[value] - common * seen[value]) * beta
 *     key 1   | s  s  s  s |   s = s * decay + d[value] * k[key]   (the product s * decay is
 *     ...                          rounded, the rest fused)
 *                              y[value] = sum over keys of s * q[key]
 *
 * A sum over lines is the sum of the even lines plus the sum of the odd ones, each in order by
 * fused multiply-adds. Every version gives these bits. */
#ifndef PE_PASSES_H
#define PE_PASSES_H

#include <stdbool.h>
#include <stdint.h>

enum {
  PE_PASS_LANES = 32, /* of a panel, at most */
  PE_PASS_UNIT = 16   /* lanes are a multiple of it */
};

typedef struct pe_panel_pass { /* one row over one panel */
  float *s;                    /* [lines][lanes] */
  int64_t lines, lanes;
  const float *decay; /* one factor, or with `each` one per line */
  bool each;
  const float *v;     /* [lanes]; NULL: s stays as it is, and there is no y */
  float beta, common; /* common 0: `seen` is not read */
  const float *k, *q; /* [lines] */
  float *y;           /* [lanes] */
  const float *next;  /* [lines]; NULL: no `seen` */
  float *seen;        /* [lanes], of the pass before; then the sum over lines of s * next */
  const float *ahead; /* without `next`: memory of the size of s that is fetched on the way */
} pe_panel_pass;

typedef struct pe_conv_pass { /* one row of n channels */
  const float *const *x;      /* [taps]: the inputs of n channels, oldest first */
  const float *w;             /* [taps][step] */
  int64_t taps, n, step;
  const float *bias;  /* [n] or NULL */
  int32_t activation; /* pe_map_op or -1 */
  float *y; /* activation(w[0] * x[0] + w[1] * x[1] + ... + bias); products fused, in order */
} pe_conv_pass;

typedef struct pe_passes {
  void (*pass)(const pe_panel_pass *p);
  void (*conv)(const pe_conv_pass *p);
  /* Weights [n][taps] to [taps][step]. */
  void (*turn)(const float *w, int64_t taps, int64_t n, float *out, int64_t step);
} pe_passes;

#endif
