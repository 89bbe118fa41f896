/* sampler.h - one token from one row of logits, with the parameters of one request.
 *
 * In this order: logit_bias, bans (bad words, end tokens before min_tokens, an allowed list), penalties (repetition over
 * prompt and output, presence and frequency over the output, each over the last `penalty_window` tokens); then, at
 * temperature 0, the best token, ties to the lowest id. Otherwise top_k, top_p, min_p, typical_p and xtc, in this order,
 * each look at the distribution as it is then: untempered, over what those before them left, summing to 1. What is left at
 * the end is drawn from at the temperature; the best token is always kept (but by xtc, which exists to drop it).
 *
 * top_p: the smallest set of best tokens whose probabilities reach p. min_p: at least p times the best one's probability.
 * typical_p: the tokens whose surprise is nearest to the entropy, until their probabilities reach p. xtc: with
 * xtc_probability, of the tokens at or above xtc_threshold all but the least likely are dropped. Probabilities are in double
 * precision; the better of two equal tokens is the one with the lower id. Nothing sorts the vocabulary: top_k keeps a heap of
 * k, top_p one of the tokens that can matter.
 *
 * Logprobs are those of the raw logits. The draw is a function of (seed, position) and the numbers above: no state, so a
 * sequence that is recomputed draws the same. Threads: a pe_sampler is scratch of one thread; parameters are only read. */
#ifndef PE_SAMPLER_H
#define PE_SAMPLER_H

#include "runtime/base.h"

typedef struct pe_logit_bias {
  int32_t id;
  float bias;
} pe_logit_bias;

typedef struct
    pe_sampling { /* pe_sampling_defaults gives what a request without parameters means */
  float temperature, top_p, min_p, typical_p; /* top_p 1, min_p 0, typical_p 1: off */
  int32_t top_k;                              /* 0: off */
  float xtc_probability, xtc_threshold;       /* probability 0: off */
  float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
  int32_t penalty_window; /* last tokens that count; 0: all */
  uint64_t seed;
  int32_t top_logprobs;      /* how many alternatives to report; -1: no logprobs at all */
  const pe_logit_bias *bias; /* borrowed, as the lists below */
  int32_t bias_count;
  const int32_t *banned; /* ids that never come */
  int32_t banned_count;
} pe_sampling;

pe_sampling pe_sampling_defaults(void);
/* Are the numbers possible (finite, in range, ids within the vocabulary)? The error names the one that is not. */
pe_status pe_sampling_check(const pe_sampling *p, int32_t vocabulary, pe_error *err);

typedef struct pe_sampler pe_sampler;
pe_status pe_sampler_open(int32_t vocabulary, pe_sampler **out, pe_error *err); /* gives */
void pe_sampler_close(pe_sampler *s);

typedef struct pe_history { /* what the penalties look at */
  const int32_t *token;
  int32_t count, prompt; /* all tokens so far; how many of them are the prompt */
} pe_history;

typedef struct pe_choice {
  int32_t id;
  float logprob; /* of the raw logits; 0 when not asked for */
  int32_t top_count;
  int32_t top_id[20];
  float top_logprob[20];
} pe_choice;

enum { PE_MAX_TOP_LOGPROBS = 20 };

/* ban_ids: ids that may not come this time (end tokens before min_tokens, the next token of a bad word). PE_EFORMAT when the
 * logits hold no finite best (NaN, or nothing but -infinity): that ends the row, not the batch. `logits` is not changed. */
pe_status pe_sampler_pick(pe_sampler *s, const pe_sampling *p, const float *logits,
                          const pe_history *history, int64_t position, const int32_t *ban_ids,
                          int32_t ban_count, pe_choice *out, pe_error *err);

/* A number in [0, 1) for this seed and position; `salt` tells apart several at one position. */
double pe_sampler_uniform(uint64_t seed, int64_t position, uint32_t salt);

#endif
