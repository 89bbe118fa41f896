/* sampler_parts.h - what sampler.c and sampler_listed.c share: the scratch of a pick and its parts.
 * Private to both. */
#ifndef PE_SAMPLER_PARTS_H
#define PE_SAMPLER_PARTS_H

#include "runtime/batch/sampler_draw.h"

typedef struct pe_sampler_change { /* of a logit */
  int32_t id;
  float raw;
} pe_sampler_change;

struct pe_sampler {
  int32_t n;      /* vocabulary size */
  float *copy;    /* by id: logits after bias, bans and penalties, unless they are the row's own */
  uint32_t *seen; /* by id: see pe_sampler_seen; all 0 between two picks */
  uint32_t *mark; /* a bit per id; all 0 between two picks */
  /* By place among the different tokens of the penalty window: */
  int32_t *seen_id;
  uint32_t *outputs;          /* how often the answer has it */
  float *penalized;           /* its logit */
  pe_sampler_change *changes; /* what bias, bans and penalties did to the row, in order */
  int32_t change_count;
  bool nan;        /* they made one */
  float *raw_peak; /* peaks of the raw logits (scan.h) */
  float *peak;     /* and of the changed ones */
  uint8_t *stale;  /* by peak: its highest logit has changed; all 0 between two picks */
  /* A list made from a row: PE_WANTED_ROOM entries, and the sums of blocks at two scales. */
  int32_t *listed_id;
  float *listed, *listed_sum;
  pe_draw_space space;
};

/* How many of n logits bias, bans and penalties change, or more. */
int64_t pe_sampler_changes(int32_t n, const pe_sampling *p, const pe_history *h, int32_t ban_count);
/* The different tokens that penalties count to s->seen_id, and their counts to s->outputs. Returns
 * how many they are. */
int32_t pe_sampler_seen(const pe_sampler *s, const pe_sampling *p, const pe_history *h);
/* Bias, bans and the penalties of these tokens, on the logits in s->copy. */
void pe_sampler_change_copy(const pe_sampler *s, const pe_sampling *p, const int32_t *ban_ids,
                            int32_t ban_count, int32_t seen);
/* The choice from `count` tokens, whose logits and ids are in the space's x and id; -1: none has a
 * finite logit, or the best is infinite. */
int32_t pe_sampler_choose_few(pe_sampler *s, const pe_sampling *p, int32_t count, int64_t position);
/* Logprobs of the chosen token, which has this raw logit, and of `count` candidates in the space's
 * heap. all: the top and the logarithm of the sum of weights. */
void pe_sampler_report(pe_sampler *s, double all, float logit, int32_t count, pe_choice *out);
/* Bias, bans and penalties leave none. */
pe_status pe_sampler_no_token(int64_t position, pe_error *err);

#endif
