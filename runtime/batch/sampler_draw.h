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

/* The sum of e^(x - top) over the row. */
double pe_draw_total(pe_draw_space *s, const pe_list_row *row);

/* The token that seed and position draw from a row without NaN. */
int32_t pe_draw(pe_draw_space *s, const pe_sampling *p, const pe_list_row *row, int64_t position);
/* The same from a packed list that has tokens. */
int32_t pe_draw_few(pe_draw_space *s, const pe_sampling *p, const pe_list *l, int64_t position);

#endif
