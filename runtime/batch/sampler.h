/* sampler.h - chooses one token from one row of logits, with the parameters of one request.
 *
 *   mask -> logit_bias -> bans -> penalties -> (temperature 0: the best token, ties to the lowest
 *   id) -> top_k -> top_p -> min_p -> typical_p -> xtc -> draw at the temperature
 *
 * A mask (of a grammar) says which tokens may be drawn at all: everything after it sees the
 * distribution of those alone. Where bias, bans and penalties leave none of them, the mask alone
 * counts.
 *
 * Bans are bad words, end tokens before min_tokens and the banned list. The repetition penalty
 * counts prompt and output, presence and frequency penalties the output only, each over the last
 * `penalty_window` tokens. Every filter sees the untempered distribution over the tokens that the
 * filters before it kept, normalized to 1. The best token always stays, except under xtc, which
 * exists to drop it.
 *
 * top_p: the smallest set of best tokens whose probabilities reach p. min_p: tokens with at least p
 * times the best probability. typical_p: the tokens whose surprise is nearest to the entropy, until
 * their probabilities reach p. xtc: with xtc_probability, drops all tokens at or above
 * xtc_threshold except the least likely of them.
 *
 * Of two equal tokens the lower id wins. Weights are floats, 2e-7 from exact; blocks of
 * them are summed in float lanes and blocks in double precision, so rounding decides only where a
 * probability is within 3e-6 of a threshold. Bits are equal on all instruction sets. Logprobs are
 * those of the raw logits.
 *
 * The draw is a function of (seed, position) and the logits, without other state, so a recomputed
 * sequence draws the same tokens. A number between 0 and 1 walks over the tokens that are left:
 * from the worst to the best after top_p or min_p, from the least to the most typical after
 * typical_p, else in order of ids.
 *
 * Most picks need not read the whole row, if a device found the best logits and some sums
 * (sampler_listed.h). Masks, typical_p and xtc read it all.
 *
 * Threads: a pe_sampler is scratch memory of one thread; parameters are only read. The threads of a
 * pool may share the passes of one pick (pe_sampler_share). */
#ifndef PE_SAMPLER_H
#define PE_SAMPLER_H

#include "runtime/batch/field.h"
#include "runtime/pool.h"

typedef struct pe_logit_bias {
  int32_t id;
  float bias;
} pe_logit_bias;

/* Ranges, defaults and meanings of the scalar fields: the table in sampler.c. */
typedef struct pe_sampling {
  float temperature, top_p, min_p, typical_p;
  int32_t top_k;
  float xtc_probability, xtc_threshold;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t penalty_window;
  uint64_t seed;
  int32_t top_logprobs;      /* -1: no logprobs at all */
  const pe_logit_bias *bias; /* borrowed, like the list below */
  int32_t bias_count;
  const int32_t *banned; /* ids that are never sampled */
  int32_t banned_count;
  const uint32_t *allow; /* borrowed: bit id % 32 of word id / 32, of all ids; NULL: no mask */
} pe_sampling;

pe_field_list pe_sampling_fields(void); /* offsets are those in pe_sampling */
pe_sampling pe_sampling_defaults(void);
/* Checks ranges, and ids against the vocabulary. The error names the field. */
pe_status pe_sampling_check(const pe_sampling *p, int32_t vocabulary, pe_error *err);

typedef struct pe_sampler pe_sampler;
/* Gives. vocabulary: ids that may be drawn; logits after them, of a padded head, are not read. */
pe_status pe_sampler_open(int32_t vocabulary, pe_sampler **out, pe_error *err);
void pe_sampler_close(pe_sampler *s);
/* Threads of the pool, which is borrowed, help with passes over long rows, unless it is crowded. No
 * result depends on it. NULL: none helps, as after opening. */
void pe_sampler_share(pe_sampler *s, pe_pool *pool);

typedef struct pe_history { /* the tokens that penalties count */
  const int32_t *token;
  int32_t count, prompt; /* all tokens so far; how many of them are the prompt's */
} pe_history;

enum {
  PE_MAX_TOP_LOGPROBS = 20, /* the limit of OpenAI's API */
};

typedef struct pe_choice {
  int32_t id;
  float logprob; /* of the raw logits; 0 unless top_logprobs was given */
  int32_t top_count;
  int32_t top_id[PE_MAX_TOP_LOGPROBS];
  float top_logprob[PE_MAX_TOP_LOGPROBS];
} pe_choice;

/* ban_ids: ids that cannot be chosen this time (end tokens before min_tokens, the next token of a
 * bad word). PE_EFORMAT when the logits are NaN or all -infinity, PE_ENOTOKEN when bias, bans and
 * penalties exclude every token, or the mask every one that is not -infinity. `logits` is not
 * changed: bias, bans and penalties change a copy. */
pe_status pe_sampler_pick(pe_sampler *s, const pe_sampling *p, const float *logits,
                          const pe_history *history, int64_t position, const int32_t *ban_ids,
                          int32_t ban_count, pe_choice *out, pe_error *err);

/* The same from a row that nobody else reads meanwhile: it is changed, and restored at the end.
 * That saves the copy, a tenth of the longest pick. */
pe_status pe_sampler_pick_own(pe_sampler *s, const pe_sampling *p, float *logits,
                              const pe_history *history, int64_t position, const int32_t *ban_ids,
                              int32_t ban_count, pe_choice *out, pe_error *err);

/* A number in [0, 1) for this seed and position; `salt` distinguishes several draws at one
 * position. */
double pe_sampler_uniform(uint64_t seed, int64_t position, uint32_t salt);

#endif
