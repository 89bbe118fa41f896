/* scan.h - passes over a row of logits for the sampler: its highest value, weights and their sums,
 * the values in a range. The host samples on every backend, so this is not an op.
 *
 * There is one version per instruction set (kernels/cpu/scan_impl.h). Results are equal bit for bit
 * on all of them: a sum runs in sixteen lanes over blocks of PE_SCAN_BLOCK values, lane j taking
 * the values j, j+16, ... of the block in order; the lanes are added as a tree. A tail is padded
 * with values of no weight. */
#ifndef PE_SCAN_H
#define PE_SCAN_H

#include "kernels/op_args.h"

#include <float.h>
#include <math.h>

enum {
  PE_SCAN_BLOCK = 512, /* 32 additions per lane: the error of a sum stays below 2.1e-6 */
  PE_SCAN_STEPS = 4,   /* thresholds of one pass: as many sums fit into the registers of AVX2 */
  PE_SCAN_PEAK = 256,  /* values that share a peak: with more, fewer are skipped */
  PE_SCAN_LANES = 16,  /* values of one word of bits */
};

typedef struct pe_scan_span { /* low <= value <= high; none if low is above high */
  float low, high;
} pe_scan_span;

typedef enum pe_scan_kind {
  PE_SCAN_COUNT,  /* every value counts 1 */
  PE_SCAN_WEIGHT, /* weights */
  PE_SCAN_MOMENT, /* weights; second: weights times their exponents */
  PE_SCAN_TWICE,  /* weights; second: weights of another scale */
} pe_scan_kind;

typedef struct pe_scan_band { /* low <= key < high */
  float low, high;
} pe_scan_band;

/* A question about the values in `span`. Keys are the values or, if `centred`, -|value - centre|.
 * For each band: how much is above it, and which values are in it. PE_SCAN_COUNT has one band,
 * PE_SCAN_WEIGHT one or two, PE_SCAN_MOMENT none or one, PE_SCAN_TWICE two. */
typedef struct pe_scan_query {
  pe_scan_kind kind;
  pe_scan_span span;
  float top, scale, other; /* other: the second scale */
  bool centred;
  float centre;
  int bands;
  pe_scan_band band[2];
  uint16_t *bits[2]; /* of each band: bit j of word i is set if value 16 i + j is in it */
} pe_scan_query;

/* Sums above each band, and of the whole span. PE_SCAN_TWICE has no first sum above the second
 * band; what a kind has no sums of is 0. */
typedef struct pe_scan_sums { /* of a block */
  struct {
    float above[2], all;
  } first, second;
} pe_scan_sums;

typedef struct pe_scan_tally { /* of all blocks, added in order */
  struct {
    double above[2], all;
  } first, second;
} pe_scan_tally;

static inline int64_t pe_scan_blocks(int64_t n) { return (n + PE_SCAN_BLOCK - 1) / PE_SCAN_BLOCK; }

static inline void pe_scan_add(const pe_scan_sums *block, int64_t count, pe_scan_tally *all) {
  for (int64_t i = 0; i < count; i++, block++) {
    for (int j = 0; j < 2; j++) {
      all->first.above[j] += (double)block->first.above[j];
      all->second.above[j] += (double)block->second.above[j];
    }
    all->first.all += (double)block->first.all;
    all->second.all += (double)block->second.all;
  }
}

typedef struct pe_scan {
  /* The highest and the lowest value. n >= 1; no value is NaN. */
  float (*range)(const float *x, int64_t n, float *lowest);
  /* The highest value, NaN if any value is, and to `peak` that of each PE_SCAN_PEAK values (NaNs
   * aside). Also copies the values to `copy`, unless it is NULL. */
  float (*peaks)(const float *x, int64_t n, float *peak, float *copy);
  /* The first index whose value is at least `least`, or n. */
  int64_t (*find)(const float *x, int64_t n, float least);
  /* The values in either span, in order, to `value`, and their indices plus `base` to `index`.
   * Returns their number. Both outputs have room for n values; `value` may start at x or before
   * it. */
  int64_t (*gather)(const float *x, int64_t n, const pe_scan_span span[2], int32_t base,
                    int32_t *index, float *value);
  /* Weights e^((x - top) * scale) of values at or below top; below e^-86.9 they are 0, as outside
   * of the span and more than FLT_MAX below the top. Stores them to `weight`, unless it is NULL,
   * and the sum of each block to `sum`. */
  void (*weigh)(const float *x, int64_t n, pe_scan_span span, float top, float scale, float *weight,
                float *sum);
  /* mass[j]: the sum of the weights whose key is at least least[j], or their number if weight is
   * NULL. */
  void (*mass)(const float *key, const float *weight, int64_t n, const float least[PE_SCAN_STEPS],
               double mass[PE_SCAN_STEPS]);
  /* Answers a query, with the sums of each block. */
  void (*tally)(const float *x, int64_t n, const pe_scan_query *q, pe_scan_sums *sums);
  /* The values whose bits are set, of word i / 16 bit i % 16, to `value`, and their indices plus
   * `base` to `index`. Both have room for n values, rounded up to PE_SCAN_LANES. Returns their
   * number. */
  int64_t (*unpack)(const uint16_t *bits, const float *x, int64_t n, int32_t base, int32_t *index,
                    float *value);
  /* Copies the values whose bits are set, of word i / 32 bit i % 32, and -infinity for others. */
  void (*allow)(const float *x, int64_t n, const uint32_t *bits, float *copy);
  /* key = -|x - centre| */
  void (*nearness)(const float *x, int64_t n, float centre, float *key);
} pe_scan;

/* Weights below e^-86.9 are 0: those above are normal floats, also in powers of two. */
static inline pe_scan_scale pe_scan_scale_of(float scale) {
  return (pe_scan_scale){scale, (float)fmin(86.9 / (double)scale, (double)FLT_MAX),
                         (float)((double)scale * 1.4426950408889634)};
}

const pe_scan *pe_scan_best(void); /* the version of pe_prim_best */

#endif
