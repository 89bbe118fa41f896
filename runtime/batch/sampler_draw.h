/* sampler_draw.h - the part of the sampler that filters and draws; sampler.h has the definition.
 *
 * Filters work on a list of the tokens that are left (sampler_list.h), and find where to cut it by
 * searches (sampler_search.h). The last one on a long list also finds the drawn token in its pass.
 * So one pick reads the row for its peaks, once for each of top_k, top_p and typical_p, and packs a
 * few percent of it for each; where few tokens are near the best, it reads little more than
 * them. */
#ifndef PE_SAMPLER_DRAW_H
#define PE_SAMPLER_DRAW_H

#include "runtime/batch/sampler.h"
#include "runtime/batch/sampler_list.h"

typedef struct pe_draw_candidate {
  float logit;
  int32_t id;
} pe_draw_candidate;

typedef struct pe_draw_space { /* scratch */
  pe_list_space list;
  pe_draw_candidate heap[PE_MAX_TOP_LOGPROBS];
} pe_draw_space;

/* Also after a failure the space must be closed. */
pe_status pe_draw_space_open(pe_draw_space *s, int32_t vocabulary, pe_error *err);
void pe_draw_space_close(pe_draw_space *s);

/* The k best logits, at most PE_MAX_TOP_LOGPROBS, to s->heap, with the worst first as in a heap;
 * -infinity is not a candidate. Returns their number. */
int32_t pe_draw_best(pe_draw_space *s, const pe_list_row *row, int32_t k);
/* Removes the worst of `count` candidates from s->heap. */
pe_draw_candidate pe_draw_pop(pe_draw_space *s, int32_t *count);

/* The same of n tokens, in ascending order of ids. */
int32_t pe_draw_best_of(pe_draw_space *s, const float *x, const int32_t *id, int32_t n, int32_t k);

/* The sum of e^(x - top) over the row. */
double pe_draw_total(pe_draw_space *s, const pe_list_row *row);
/* Of the weights that draw; the temperature is not 0. */
float pe_draw_scale(const pe_sampling *p);
/* Whether tokens are dropped before the draw. */
bool pe_draw_filters(const pe_sampling *p);

/* The token that seed and position draw from a row without NaN. */
int32_t pe_draw(pe_draw_space *s, const pe_sampling *p, const pe_list_row *row, int64_t position);
/* The same without filters, where the sums of its blocks at the draw's scale are known: reads one
 * block, and the best logit. */
int32_t pe_draw_summed(const pe_draw_space *s, const pe_sampling *p, const pe_list_row *row,
                       const float *sum, int64_t position);
/* The same with top_p or min_p and no other filter, from a packed list of the best tokens of a row.
 * total: that of the row. all: they are all. -1: some that must be kept may not be listed. */
int32_t pe_draw_nucleus(pe_draw_space *s, const pe_sampling *p, const pe_list *l, double total,
                        bool all, int64_t position);
/* The same from a packed list that has tokens. */
int32_t pe_draw_few(pe_draw_space *s, const pe_sampling *p, const pe_list *l, int64_t position);

#endif
