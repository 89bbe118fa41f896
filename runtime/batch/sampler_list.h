/* sampler_list.h - the tokens that are left of a row of logits, and the sampler's scratch memory.
 *
 * A filter keeps tokens by their logits, and of equal ones those up to an index, so what it keeps
 * is a few parts of the row, each with a span of logits. While many tokens are left, a list is that
 * description and no more: copying half of a row costs as much as two passes over it. When few are
 * left, or from the start if the row is short, they are packed, and further work depends on their
 * number and not on the vocabulary.
 *
 * Threads: the space belongs to one sampler; a list lives during one pick and borrows the row. */
#ifndef PE_SAMPLER_LIST_H
#define PE_SAMPLER_LIST_H

#include <string.h>

#include "runtime/base.h"
#include "runtime/batch/sampler_pass.h"

enum {
  PE_LIST_PARTS = 8,   /* top_k, top_p, typical_p and xtc add 1, 1, 3 and 2 borders */
  PE_LIST_WIDE = 8192, /* longer rows are searched by samples; a sample never is as long */
};

typedef struct pe_list_row { /* a row of logits; borrowed */
  const float *x;
  const float *peak; /* of each PE_SCAN_PEAK logits the highest: most searches skip most of them */
  int32_t best;      /* the lowest id of the highest logit, which is finite */
} pe_list_row;

typedef struct pe_list_part { /* of a list up to `end`: the logits in it */
  int32_t end;
  pe_scan_span span;
} pe_list_part;

typedef struct pe_list {
  const float *x;
  const int32_t *id; /* NULL: ids are indices */
  int32_t n;
  bool wide;         /* x is a long row and `part` says what of it is left; else all of x is */
  bool whole;        /* a wide list that no filter has shortened */
  const float *peak; /* of a wide list */
  pe_list_part part[PE_LIST_PARTS];
  int parts;
  pe_scan_span span; /* most of its tokens are in it: for estimates */
  float top;         /* its highest logit */
  bool by_rank;      /* the draw follows the order of the tokens, else that of the ids */
  bool by_centre;    /* that order is by the distance to `centre`, else by logit */
  float centre;
} pe_list;

typedef struct pe_list_space { /* scratch */
  const pe_scan *scan;
  pe_pool *pool; /* borrowed: its threads help with long rows; NULL: none does */
  int32_t n;
  /* As many entries as the vocabulary: */
  float *x;                             /* a packed list */
  int32_t *id;                          /* its ids */
  float *weight, *key;                  /* of the list */
  float *band, *band_key, *band_weight; /* a search's stretch of a wide list */
  int32_t *band_index;                  /* where it is in the row */
  float *part_weight, *part_key;        /* what is left of it, or of a packed list */
  int32_t *part_index, *index;
  /* As many as blocks in the vocabulary: */
  float *sum;
  pe_scan_sums *sums;
  pe_pass_found found[2]; /* the tokens in the bands of a query */
  /* PE_LIST_WIDE entries: a sample of a wide list, and its keys and weights in a search. */
  float *sample, *sample_key, *sample_first, *sample_second, *sample_square;
  int32_t drawn, samples; /* the first `drawn` stand for `times` tokens each; all of them */
  float times;
  float heavy;  /* tokens from this logit on are all in the sample */
  double total; /* the sum of e^(x - top) over the row, if a search found it; else 0 */
} pe_list_space;

/* Also after a failure the space must be closed. */
pe_status pe_list_space_open(pe_list_space *s, int32_t vocabulary, pe_error *err);
void pe_list_space_close(pe_list_space *s);

/* All finite logits of a row without NaN. */
pe_list pe_list_of(pe_list_space *s, const pe_list_row *row);
/* Those above -infinity of `count` tokens, whose logits and ids, in ascending order, are in s->x
 * and s->id. Its top is not set if there are none. */
pe_list pe_list_few(pe_list_space *s, int32_t count);
/* Keeps what is in these parts as well. The last of them ends at l->n. */
void pe_list_keep(pe_list_space *s, pe_list *l, const pe_list_part *part, int parts);
/* Packs a wide list. */
void pe_list_pack(pe_list_space *s, pe_list *l);
/* The tokens whose logits are in one of two spans: logits to `value`, indices to `index`. */
int32_t pe_list_gather(const pe_list_space *s, const pe_list *l, const pe_scan_span span[2],
                       int32_t *index, float *value);
/* Sums of blocks to s->sum and, unless it is NULL, weights to `weight`. Returns the total. */
double pe_list_weigh(pe_list_space *s, const pe_list *l, float scale, float *weight);
/* The tokens in a band of the query that was answered last, in the same way. */
int32_t pe_list_band(const pe_list_space *s, const pe_list *l, int band, int32_t *index,
                     float *value);
/* The sums of a query over the list. The query's span is set for each part. */
pe_scan_tally pe_list_tally(const pe_list_space *s, const pe_list *l, pe_scan_query q);
/* Adds the sums of a query over n values. */
void pe_list_add(const pe_list_space *s, const float *x, int32_t n, const pe_scan_query *q,
                 pe_scan_tally *sums);

static inline pe_pass pe_list_pass(const pe_list_space *s) { return (pe_pass){s->scan, s->pool}; }
static inline int32_t pe_list_peaks(int32_t n) { return (n + PE_SCAN_PEAK - 1) / PE_SCAN_PEAK; }
static inline int32_t pe_list_id(const pe_list *l, int32_t i) { return l->id ? l->id[i] : i; }

/* ---- the order of floats as integers --------------------------------------------------------- */

static inline int32_t pe_list_rank(float x) {
  int32_t i;
  memcpy(&i, &x, sizeof i);
  return i < 0 ? INT32_MIN - i : i;
}

static inline float pe_list_of_rank(int32_t i) {
  float x;
  i = i < 0 ? INT32_MIN - i : i;
  memcpy(&x, &i, sizeof x);
  return x;
}

#endif
