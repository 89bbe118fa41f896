/* fast_attention.h - the products of attention in `fast` precision, which have a version over the
 * vectors of prim.h and one over the tiles of AMX.
 *
 * A gathering is a number of neighbouring rows of a segment, with the query heads that share a key
 * head. Its keys are taken a stretch at a time. Lines of queries and of scores are padded: the
 * versions take whole groups of queries and of values, and lines whose distance is a power of two
 * would share a few places of the first-level cache.
 *
 *     query   | query 0 | query 1 | ...           query_step floats apart
 *     score   | query 0: tokens base .. base + STRETCH - 1 | query 1: ...       score_step
 *     result  | query 0: values, largest score, sum | query 1: ...              result_step */
#ifndef PE_FAST_ATTENTION_H
#define PE_FAST_ATTENTION_H

#include "kernels/cpu/cpu.h"

enum {
  PE_STRETCH = 512,                /* tokens */
  PE_SCORE_STEP = PE_STRETCH + 16, /* floats from the scores of one query to those of the next */
  PE_QUERY_GROUP = 16 /* queries that exist in memory at least, and those of smaller gatherings */
};

typedef struct pe_attention_version pe_attention_version;
typedef struct pe_gathering {
  const pe_cpu_call *c;
  const pe_attention_version *version;
  const pe_segment *segment;
  pe_cpu_kv kv;
  int64_t first, rows; /* rows of the step */
  int32_t head, heads; /* query heads head .. head + heads - 1 */
  float *query, *score, *room;
} pe_gathering;

/* Floats from one query, or one result, to the next. */
static inline int64_t pe_query_step(int64_t key) { return (key + 31) / 32 * 32 + 16; }
static inline int64_t pe_result_step(int64_t value) { return (value + 15) / 16 * 16 + 16; }
static inline int64_t pe_result_most(int64_t value) { return (value + 15) / 16 * 16; }

static inline int64_t pe_row_index(const pe_gathering *g, int64_t row) {
  return g->segment->past + (g->first + row - g->segment->first);
}
/* The first key that a row sees, and the one after the last. Neither decreases with the row. */
static inline int64_t pe_row_low(const pe_gathering *g, int64_t row) {
  const int32_t window = g->c->args.attention.window;
  const int64_t index = pe_row_index(g, row);
  return window > 0 && index >= window ? index - window + 1 : 0;
}
static inline int64_t pe_row_end(const pe_gathering *g, int64_t row) {
  const pe_step *step = g->c->step;
  if (!g->c->args.attention.spans || !step->last) return pe_row_index(g, row) + 1;
  return (int64_t)step->last[g->first + row] + 1;
}

/* A part of a stretch: the keys low .. end - 1. */
typedef struct pe_stretch {
  int64_t base, low, end;
} pe_stretch;

struct pe_attention_version {
  int32_t queries; /* of a gathering, at most; a multiple of PE_QUERY_GROUP */
  /* Queries, n values each, become what `attend` wants. */
  void (*prepare)(float *query, int64_t queries, int64_t n);
  /* The partial results of a stretch; -infinity is the largest score where a row sees no key of it.
   * Keys that a row does not see have no effect, whatever is stored there. */
  void (*attend)(const pe_gathering *g, const pe_stretch *s, float *result);
  int64_t (*room)(const pe_attention_args *a); /* floats of g->room */
};

extern const pe_attention_version pe_attention_vectors;
/* The version for a layer on this machine. */
const pe_attention_version *pe_attention_version_for(const pe_attention_args *a);
void pe_attention_choose(const pe_attention_version *version); /* for tests; NULL: the best */

/* True if every number of n floats is finite. */
bool pe_attention_finite(const float *x, int64_t n);

#endif
