/* sampler_search.h - which token completes a given weight, in an order of the tokens?
 *
 * top_k, top_p, typical_p and the draw ask this. Nothing is sorted to answer it. The order is by
 * logit or by the distance to a centre; of equal tokens those at or above the centre come first, if
 * there is one, and then the lower index.
 *
 * A packed list has weights; passes over it give the weights above four thresholds, the tokens
 * between the two around the answer are packed, and so on until few are left, which are sorted.
 *
 * A wide list has none. A sample of about 2,000 tokens and all heavy ones, taken once in a pick,
 * tells where the answer most likely is: a band of keys with a few percent of the tokens in it. One
 * pass gives the exact sum above the band and marks the tokens in it, which are packed and
 * searched. A cut and the draw after it share this pass: two bands. So the sample decides about
 * time only; when it misleads, more tokens are packed.
 *
 * Threads: as pe_list_space. */
#ifndef PE_SAMPLER_SEARCH_H
#define PE_SAMPLER_SEARCH_H

#include "runtime/batch/sampler_list.h"

/* Index of the token that completes `target` in a packed list. weight NULL: every token counts 1.
 * reached, unless it is NULL: the weight up to the token. */
int32_t pe_search_packed(pe_list_space *s, const pe_list *l, const float *key, const float *weight,
                         double target, double *reached);

typedef struct pe_search_cut { /* a question about a wide list */
  /* Keep the first tokens whose weights reach this part of all; 1: all tokens. */
  double reach;
  int32_t count;  /* instead, unless 0: keep this many first tokens */
  float low;      /* and of these only logits from this one on; -INFINITY: all */
  int32_t always; /* the index of a token that stays, with weight 1; -1: none */
  bool moments;   /* also the sum of weights times exponents */
  bool draws;     /* the number u draws one of those kept, with weights of this scale */
  float scale;
  double u;
} pe_search_cut;

typedef struct pe_search_kept { /* the answer */
  int32_t last;         /* the last of the first tokens; -1: all of them, or all from `low` on */
  bool apart;           /* `always` is not among the first */
  double total, moment; /* sums over those kept */
  int32_t drawn;        /* -1 without `draws` */
  double expected;      /* about how many tokens are kept */
} pe_search_kept;

pe_search_kept pe_search_wide(pe_list_space *s, const pe_list *l, const pe_search_cut *cut);

/* The band of logits in which the last of the `count` best tokens of a wide list most likely is. */
pe_scan_band pe_search_band(pe_list_space *s, const pe_list *l, int32_t count);
/* The index of the k-th best token of a packed list of k or more, most likely below `high`. */
int32_t pe_search_kth(pe_list_space *s, const pe_list *l, int32_t k, float high);

/* A logit with at least the `count` best tokens of a row at or above it, unless they are fewer: as
 * many peaks are. */
float pe_search_peak(pe_list_space *s, const float *peak, int32_t count);

/* The list up to `last` in its order: logits up to the index of `last` and after it. */
void pe_search_first(const pe_list *l, int32_t last, pe_list_part part[2]);

#endif
