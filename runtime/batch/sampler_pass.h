/* sampler_pass.h - passes over a long row of logits, shared by the threads of a pool.
 *
 *   row:  | piece 0 | piece 1 | piece 2 | ... |      sums of blocks, peaks, weights, tokens: each
 *         thread A    thread B   thread A            piece has its own places in the output
 *
 * A pass of kernels/scan.h over 150,000 logits takes 12 to 110 us on one thread, and a pick makes
 * up to ten of them. Whole blocks belong to a piece, and what is added over several pieces is added
 * afterwards in their order. So results do not depend on the number of threads.
 *
 * Threads: called by the sampler's thread. Without a pool, or inside one of its tasks, where other
 * picks occupy the other threads, the pieces run one after the other. */
#ifndef PE_SAMPLER_PASS_H
#define PE_SAMPLER_PASS_H

#include "kernels/scan.h"
#include "runtime/pool.h"

enum {
  PE_PASS_PIECE = 8192, /* 0.6 to 6 us: a pool hands one out in 0.2 us; shorter rows are not cut */
};

typedef struct pe_pass {
  const pe_scan *scan;
  pe_pool *pool; /* borrowed; NULL: none */
} pe_pass;

static inline int32_t pe_pass_pieces(int32_t n) {
  return n / PE_PASS_PIECE + (n % PE_PASS_PIECE != 0);
}

/* The functions of the same names in pe_scan. */
float pe_pass_peaks(pe_pass p, const float *x, int32_t n, float *peak, float *copy);
void pe_pass_allow(pe_pass p, const float *x, int32_t n, const uint32_t *bits, float *copy);
void pe_pass_weigh(pe_pass p, const float *x, int32_t n, pe_scan_span span, float top, float scale,
                   float *weight, float *sum);

typedef struct pe_pass_found { /* what a pass found in n values, piece by piece */
  int32_t *index;              /* n entries: those of a piece begin where it does */
  float *value;
  int32_t *count; /* by piece */
} pe_pass_found;

/* Answers the query. The values of band i, and their indices plus `base`, go to found[i]; found
 * NULL: nowhere. The query's bits are not used. */
void pe_pass_tally(pe_pass p, const float *x, int32_t n, const pe_scan_query *q, pe_scan_sums *sums,
                   int32_t base, const pe_pass_found found[2]);
/* Puts what was found in n values side by side. Returns how many they are. */
int32_t pe_pass_join(const pe_pass_found *found, int32_t n, int32_t *index, float *value);

#endif
