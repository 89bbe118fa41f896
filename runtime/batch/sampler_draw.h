/* sampler_draw.h - the part of the sampler that filters and draws; sampler.h has the definition.
 *
 * Candidates are a list of logits with their ids. A filter computes a range of logits and packs the
 * list to it, so work after the first filter depends on what it kept, not on the vocabulary. No
 * list is sorted. top_p, typical_p, a large top_k and the draw itself ask one question: in an order
 * of the tokens, which one completes a given weight? `pe_draw` finds it by a search over
 * thresholds: one pass over the list gives the weights above four of them, the tokens between the
 * two around the answer are packed, and so on until few are left, which are sorted.
 *
 * Weights are floats with sums in double precision (kernels/scan.h): 1e-7 of a probability. */
#ifndef PE_SAMPLER_DRAW_H
#define PE_SAMPLER_DRAW_H

#include "kernels/scan.h"
#include "runtime/batch/sampler.h"

typedef struct pe_draw_candidate {
  float logit;
  int32_t id;
} pe_draw_candidate;

/* Heaps of the best k: up to this size they are faster than a search. */
enum { PE_DRAW_HEAP = 256 };

typedef struct pe_draw_space { /* scratch; arrays have as many entries as the vocabulary */
  const pe_scan *scan;
  int32_t n;
  float *x;                      /* the list */
  int32_t *id;                   /* its ids */
  float *weight, *key;           /* of the list */
  float *part_weight, *part_key; /* a search's part of the list */
  int32_t *part_index, *index;
  float *sample_key, *sample_weight;
  float *sum, *part_sum, *moment; /* of blocks */
  pe_draw_candidate heap[PE_DRAW_HEAP];
} pe_draw_space;

/* Also after a failure the space must be closed. */
pe_status pe_draw_space_open(pe_draw_space *s, int32_t vocabulary, pe_error *err);
void pe_draw_space_close(pe_draw_space *s);

/* The k best logits, at most PE_DRAW_HEAP, to s->heap, with the worst first as in a heap;
 * -infinity is not a candidate. Returns their number. */
int32_t pe_draw_best(pe_draw_space *s, const float *x, int32_t k);
/* Removes the worst of `count` candidates from s->heap. */
pe_draw_candidate pe_draw_pop(pe_draw_space *s, int32_t *count);

/* The sum of e^(x - top) over the vocabulary. */
double pe_draw_total(pe_draw_space *s, const float *x, float top);

/* The token that seed and position draw. best: the lowest id of the highest logit, which is finite;
 * no logit is NaN. lowest: the lowest logit. */
int32_t pe_draw(pe_draw_space *s, const pe_sampling *p, const float *x, int32_t best, float lowest,
                int64_t position);

#endif
