/* scan.h - passes over a row of logits for the sampler: its highest value, weights and their sums,
 * the values in a range. The host samples on every backend, so this is not an op.
 *
 * There is one version per instruction set (kernels/cpu/scan_impl.h). Results are equal bit for bit
 * on all of them: a sum runs in sixteen lanes over blocks of PE_SCAN_BLOCK values, lane j taking
 * the values j, j+16, ... of the block in order; the lanes are added as a tree. A tail is padded
 * with values of no weight. */
#ifndef PE_SCAN_H
#define PE_SCAN_H

#include <stdint.h>

enum {
  PE_SCAN_BLOCK = 256, /* sixteen additions per lane: the error of a sum stays below 1.2e-6 */
  PE_SCAN_STEPS = 4,   /* thresholds of one pass: as many sums fit into the registers of AVX2 */
};

typedef struct pe_scan {
  /* The highest and the lowest value; the highest is NaN if any value is. n >= 1. Also copies the
   * values to `copy`, unless it is NULL. */
  float (*range)(const float *x, int64_t n, float *lowest, float *copy);
  /* The first index whose value is at least `least`, or n. */
  int64_t (*find)(const float *x, int64_t n, float least);
  /* The values between low and high, in order, to `value`, and their indices plus `base` to
   * `index`. Returns their number. Both outputs have room for n values; `value` may start at x or
   * before it. */
  int64_t (*gather)(const float *x, int64_t n, float low, float high, int32_t base, int32_t *index,
                    float *value);
  /* Weights e^((x - top) * scale) of values at or below top; below e^-87 they are 0. Stores them
   * to `weight`, unless it is NULL, and the sum of each block to `sum`. `moment` may be given if
   * weights are stored: the sums of the weights times their exponents. */
  void (*weigh)(const float *x, int64_t n, float top, float scale, float *weight, float *sum,
                float *moment);
  /* mass[j]: the sum of the weights whose key is at least least[j], or their number if weight is
   * NULL. */
  void (*mass)(const float *key, const float *weight, int64_t n, const float least[PE_SCAN_STEPS],
               double mass[PE_SCAN_STEPS]);
  /* key = -|x - centre| */
  void (*nearness)(const float *x, int64_t n, float centre, float *key);
} pe_scan;

const pe_scan *pe_scan_best(void); /* the version of pe_prim_best */

#endif
