/* sampler.c - see sampler.h. */
#include "runtime/batch/sampler.h"

#include "runtime/batch/sampler_draw.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

struct pe_sampler {
  int32_t n;      /* vocabulary size; both arrays have n entries */
  float *x;       /* logits after bias, bans and penalties, if there are any */
  uint32_t *seen; /* by id: 1 + its count in the penalty window; all 0 between two picks */
  pe_draw_space space;
};

/* ---- parameters ---------------------------------------------------------------------------- */

#define NUMBER(n) .name = #n, .type = PE_FIELD_NUMBER, .offset = offsetof(pe_sampling, n)
#define INTEGER(n) .name = #n, .type = PE_FIELD_INTEGER, .offset = offsetof(pe_sampling, n)

static const pe_field fields[] = {
    {NUMBER(temperature), .max = INFINITY, .absent = 1,
     .help = "Randomness of the draw; 0 always takes the best token."},
    {NUMBER(top_p), .above = true, .max = 1, .absent = 1,
     .help = "Samples from the best tokens whose probabilities reach this sum; 1 is off."},
    {INTEGER(top_k), .max = INFINITY, .help = "Samples from this many best tokens; 0 is off."},
    {NUMBER(min_p), .max = 1,
     .help = "Drops tokens below this fraction of the best token's probability; 0 is off."},
    {NUMBER(typical_p), .above = true, .max = 1, .absent = 1,
     .help = "Samples from the tokens of most typical surprise that reach this sum; 1 is off."},
    {NUMBER(xtc_probability), .max = 1,
     .help =
         "How often all tokens above xtc_threshold but the least likely are dropped; 0 is off."},
    {NUMBER(xtc_threshold), .max = 1, .absent = 0.1, .help = "The probability that xtc looks for."},
    {NUMBER(repetition_penalty), .above = true, .max = INFINITY, .absent = 1,
     .help = "Divides the logits of tokens in prompt and answer; 1 is off."},
    {NUMBER(presence_penalty), .min = -INFINITY, .max = INFINITY,
     .help = "Subtracted from the logits of tokens that the answer contains; 0 is off."},
    {NUMBER(frequency_penalty), .min = -INFINITY, .max = INFINITY,
     .help = "Subtracted once for each time the answer contains the token; 0 is off."},
    {INTEGER(penalty_window), .max = INFINITY,
     .help = "Penalties count this many last tokens; 0 counts all."},
    {.name = "seed",
     .type = PE_FIELD_LONG,
     .offset = offsetof(pe_sampling, seed),
     .help = "Seed of the draw; choice i draws with seed + i."},
    {INTEGER(top_logprobs), .max = PE_MAX_TOP_LOGPROBS, .absent = -1,
     .help = "Reports logprobs, and this many alternatives for each token."},
};
#undef NUMBER
#undef INTEGER

pe_field_list pe_sampling_fields(void) {
  return (pe_field_list){fields, sizeof fields / sizeof *fields};
}

pe_sampling pe_sampling_defaults(void) {
  pe_sampling p = {0};
  pe_field_set_defaults(pe_sampling_fields(), &p);
  return p;
}

static pe_status check_bias(const pe_sampling *p, int32_t vocabulary, pe_error *err) {
  static const char field[] = "logit_bias";
  if (p->bias_count < 0 || (p->bias_count && !p->bias))
    return pe_fail_field(err, PE_EARG, field, "logit_bias has %d entries", p->bias_count);
  for (int32_t i = 0; i < p->bias_count; i++) {
    pe_logit_bias b = p->bias[i];
    if (b.id < 0 || b.id >= vocabulary)
      return pe_fail_field(err, PE_EARG, field,
                           "logit_bias: token id must be between 0 and %d, got %d", vocabulary - 1,
                           b.id);
    if (!isfinite(b.bias))
      return pe_fail_field(err, PE_EARG, field, "logit_bias of token %d must be finite, got %g",
                           b.id, (double)b.bias);
  }
  return PE_OK;
}

static pe_status check_banned(const pe_sampling *p, int32_t vocabulary, pe_error *err) {
  static const char field[] = "banned";
  if (p->banned_count < 0 || (p->banned_count && !p->banned))
    return pe_fail_field(err, PE_EARG, field, "banned has %d entries", p->banned_count);
  for (int32_t i = 0; i < p->banned_count; i++)
    if (p->banned[i] < 0 || p->banned[i] >= vocabulary)
      return pe_fail_field(err, PE_EARG, field, "banned: token id must be between 0 and %d, got %d",
                           vocabulary - 1, p->banned[i]);
  return PE_OK;
}

pe_status pe_sampling_check(const pe_sampling *p, int32_t vocabulary, pe_error *err) {
  pe_status rc = pe_field_check_all(pe_sampling_fields(), p, err);
  if (!rc) rc = check_bias(p, vocabulary, err);
  return rc ? rc : check_banned(p, vocabulary, err);
}

static uint64_t mix(uint64_t x) { /* the finalizer of splitmix64 */
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

double pe_sampler_uniform(uint64_t seed, int64_t position, uint32_t salt) {
  uint64_t x = mix(mix(mix(seed) ^ (uint64_t)position) ^ salt);
  return (double)(x >> 11) * 0x1p-53;
}

/* ---- life ---------------------------------------------------------------------------------- */

void pe_sampler_close(pe_sampler *s) {
  if (!s) return;
  pe_draw_space_close(&s->space);
  pe_free(s->seen);
  pe_free(s->x);
  pe_free(s);
}

pe_status pe_sampler_open(int32_t vocabulary, pe_sampler **out, pe_error *err) {
  *out = NULL;
  if (vocabulary < 1)
    return pe_fail(err, PE_EARG, "vocabulary must be 1 or more, got %d", vocabulary);
  pe_sampler *s = pe_calloc(1, sizeof *s);
  if (!s) return pe_nomem(err, "sampler");
  size_t n = (size_t)(s->n = vocabulary);
  s->x = pe_calloc(n, sizeof *s->x);
  s->seen = pe_calloc(n, sizeof *s->seen);
  pe_status rc =
      s->x && s->seen ? pe_draw_space_open(&s->space, vocabulary, err) : pe_nomem(err, "sampler");
  if (rc)
    pe_sampler_close(s);
  else
    *out = s;
  return rc;
}

/* ---- bias, bans, penalties ----------------------------------------------------------------- */

static bool penalizes(const pe_sampling *p) {
  return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static float penalized(const pe_sampling *p, float x, uint32_t outputs) {
  if (x == -INFINITY) return x; /* banned; a negative penalty must not revive it */
  /* Both, since the signs of logits cannot be predicted. */
  double less = (double)x / (double)p->repetition_penalty;
  double more = (double)x * (double)p->repetition_penalty, y = x > 0 ? less : more;
  if (outputs) y -= (double)p->presence_penalty + (double)p->frequency_penalty * outputs;
  return (float)y;
}

static void penalize(pe_sampler *s, const pe_sampling *p, const pe_history *h) {
  int32_t from =
      p->penalty_window && p->penalty_window < h->count ? h->count - p->penalty_window : 0;
  for (int32_t i = from; i < h->count; i++) {
    int32_t id = h->token[i];
    if (id < 0 || id >= s->n) continue;
    if (!s->seen[id]) s->seen[id] = 1;
    if (i >= h->prompt) s->seen[id]++;
  }
  for (int32_t i = from; i < h->count; i++) {
    int32_t id = h->token[i];
    if (id < 0 || id >= s->n || !s->seen[id]) continue;
    s->x[id] = penalized(p, s->x[id], s->seen[id] - 1);
    s->seen[id] = 0;
  }
}

static void ban(pe_sampler *s, const int32_t *id, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    if (id[i] >= 0 && id[i] < s->n) s->x[id[i]] = -INFINITY;
}

static bool adjusts(const pe_sampling *p, const pe_history *h, int32_t ban_count) {
  return p->bias_count || p->banned_count || ban_count || (h && h->count > 0 && penalizes(p));
}

/* s->x has the raw logits. */
static void adjust(pe_sampler *s, const pe_sampling *p, const pe_history *h, const int32_t *ban_ids,
                   int32_t ban_count) {
  for (int32_t i = 0; i < p->bias_count; i++)
    if (p->bias[i].id >= 0 && p->bias[i].id < s->n) s->x[p->bias[i].id] += p->bias[i].bias;
  ban(s, p->banned, p->banned_count);
  ban(s, ban_ids, ban_count);
  if (h && h->count > 0 && penalizes(p)) penalize(s, p, h);
}

/* The lowest id of the highest logit; -1 if one is NaN or the highest is not finite. Also copies
 * the logits, unless `copy` is NULL. */
static int32_t best_of(const pe_sampler *s, const float *x, float *lowest, float *copy) {
  const pe_scan *scan = s->space.scan;
  float top = scan->range(x, s->n, lowest, copy);
  return isfinite(top) ? (int32_t)scan->find(x, s->n, top) : -1;
}

/* ---- the choice ---------------------------------------------------------------------------- */

static void report(pe_sampler *s, const float *logits, int32_t best, int32_t most, pe_choice *out) {
  double all = (double)logits[best] + log(pe_draw_total(&s->space, logits, logits[best]));
  out->logprob = (float)((double)logits[out->id] - all);
  if (most <= 0) return;
  int32_t count =
      pe_draw_best(&s->space, logits, most < PE_MAX_TOP_LOGPROBS ? most : PE_MAX_TOP_LOGPROBS);
  out->top_count = count;
  while (count) {
    pe_draw_candidate c = pe_draw_pop(&s->space, &count); /* the worst first */
    out->top_id[count] = c.id;
    out->top_logprob[count] = (float)((double)c.logit - all);
  }
}

pe_status pe_sampler_pick(pe_sampler *s, const pe_sampling *p, const float *logits,
                          const pe_history *history, int64_t position, const int32_t *ban_ids,
                          int32_t ban_count, pe_choice *out, pe_error *err) {
  *out = (pe_choice){.id = -1};
  float lowest;
  bool changes = adjusts(p, history, ban_count);
  int32_t raw = best_of(s, logits, &lowest, changes ? s->x : NULL), best = raw;
  if (raw < 0)
    return pe_fail(err, PE_EFORMAT, "logits at position %lld are NaN or all -inf",
                   (long long)position);
  if (changes) {
    adjust(s, p, history, ban_ids, ban_count);
    best = best_of(s, s->x, &lowest, NULL);
  }
  if (best < 0)
    return pe_fail(err, PE_ENOTOKEN, "bias, bans and penalties leave no token at position %lld",
                   (long long)position);
  out->id = p->temperature == 0
                ? best
                : pe_draw(&s->space, p, changes ? s->x : logits, best, lowest, position);
  if (p->top_logprobs >= 0) report(s, logits, raw, p->top_logprobs, out);
  return PE_OK;
}
