/* sampler.c - see sampler.h. */
#include "runtime/batch/sampler.h"

#include "runtime/batch/sampler_parts.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* Allowed tokens that are gathered instead of banning all others: the draw then costs what they
 * cost, whatever the vocabulary. At 4,096 it still is cheaper than one from the whole row. */
enum { FEW = 4096 };

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
  pe_free(s->listed_sum);
  pe_free(s->listed);
  pe_free(s->listed_id);
  pe_free(s->stale);
  pe_free(s->peak);
  pe_free(s->raw_peak);
  pe_free(s->changes);
  pe_free(s->penalized);
  pe_free(s->outputs);
  pe_free(s->seen_id);
  pe_free(s->mark);
  pe_free(s->seen);
  pe_free(s->copy);
  pe_free(s);
}

pe_status pe_sampler_open(int32_t vocabulary, pe_sampler **out, pe_error *err) {
  *out = NULL;
  if (vocabulary < 1)
    return pe_fail(err, PE_EARG, "vocabulary must be 1 or more, got %d", vocabulary);
  pe_sampler *s = pe_calloc(1, sizeof *s);
  if (!s) return pe_nomem(err, "sampler");
  size_t n = (size_t)(s->n = vocabulary);
  s->copy = pe_calloc(n, sizeof *s->copy);
  s->seen = pe_calloc(n, sizeof *s->seen);
  s->mark = pe_calloc(n / 32 + 1, sizeof *s->mark);
  s->seen_id = pe_calloc(n + 1, sizeof *s->seen_id); /* a place is written before it counts */
  s->outputs = pe_calloc(n + 1, sizeof *s->outputs);
  s->penalized = pe_calloc(n, sizeof *s->penalized);
  s->changes = pe_calloc(n, sizeof *s->changes);
  size_t peaks = (size_t)pe_list_peaks(vocabulary);
  s->raw_peak = pe_calloc(peaks, sizeof *s->raw_peak);
  s->peak = pe_calloc(peaks, sizeof *s->peak);
  s->stale = pe_calloc(peaks, 1);
  s->listed_id = pe_calloc(PE_WANTED_ROOM, sizeof *s->listed_id);
  s->listed = pe_calloc(PE_WANTED_ROOM, sizeof *s->listed);
  s->listed_sum = pe_calloc(2 * (n / PE_SCAN_BLOCK + 1), sizeof *s->listed_sum);
  bool all = s->copy && s->seen && s->mark && s->seen_id && s->outputs && s->penalized &&
             s->changes && s->raw_peak && s->peak && s->stale && s->listed_id && s->listed &&
             s->listed_sum;
  pe_status rc = all ? pe_draw_space_open(&s->space, vocabulary, err) : pe_nomem(err, "sampler");
  if (rc)
    pe_sampler_close(s);
  else
    *out = s;
  return rc;
}

/* Threads that may not spin would sleep and wake up in each pass, which takes longer than it. */
void pe_sampler_share(pe_sampler *s, pe_pool *pool) {
  s->space.list.pool = pool && !pe_pool_crowded(pool) ? pool : NULL;
}

/* ---- bias, bans, penalties ----------------------------------------------------------------- */

static bool penalizes(const pe_sampling *p) {
  return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

/* Factors of a penalty by sign of the logit, and what it subtracts: tables, because neither signs
 * nor counts can be predicted, and a compiler makes branches of conditions. */
typedef struct penalty {
  double up[2], down[2], once[2], each;
} penalty;

static penalty penalty_of(const pe_sampling *p) {
  const double r = (double)p->repetition_penalty;
  return (penalty){.up = {r, 1},
                   .down = {1, r},
                   .once = {0, (double)p->presence_penalty},
                   .each = (double)p->frequency_penalty};
}

static inline float penalized(const penalty *p, float x, uint32_t outputs) {
  const double scaled = (double)x * p->up[x > 0] / p->down[x > 0];
  const double y = scaled - (p->once[outputs > 0] + p->each * (double)(int32_t)outputs);
  return x == -INFINITY ? x : (float)y; /* banned; a negative penalty must not revive it */
}

/* How many of the last tokens penalties count. */
static int32_t window_of(const pe_sampling *p, const pe_history *h) {
  if (!h || h->count <= 0 || !penalizes(p)) return 0;
  return p->penalty_window && p->penalty_window < h->count ? p->penalty_window : h->count;
}

/* s->seen: 1 for a token of the prompt, 2 for each time that the answer has it. */
int32_t pe_sampler_seen(const pe_sampler *s, const pe_sampling *p, const pe_history *h) {
  const int32_t window = window_of(p, h);
  if (!window) return 0;
  const int32_t from = h->count - window;
  const int32_t *token = h->token, end = h->count, prompt = h->prompt < end ? h->prompt : end;
  int32_t i = from, count = 0, *id = s->seen_id;
  uint32_t n = (uint32_t)s->n, *restrict seen = s->seen, *restrict outputs = s->outputs;
  for (; i < prompt; i++)
    if ((uint32_t)token[i] < n) seen[token[i]] = 1;
  for (; i < end; i++)
    if ((uint32_t)token[i] < n) seen[token[i]] += 2;
  for (i = from; i < end; i++) {
    int32_t t = token[i];
    if ((uint32_t)t >= n) continue;
    uint32_t times = seen[t];
    seen[t] = 0, id[count] = t, outputs[count] = times / 2;
    count += times != 0; /* not a branch, as above */
  }
  return count;
}

/* Changes logits of the row x, and s->peak. */
static void put(pe_sampler *s, float *restrict x, const int32_t *id, const float *value,
                int32_t count) {
  pe_sampler_change *changes = s->changes + s->change_count;
  float *restrict peak = s->peak;
  bool nan = false;
  for (int32_t i = 0; i < count; i++) {
    int32_t at = id[i], b = at / PE_SCAN_PEAK;
    float raw = x[at], v = value[i];
    changes[i] = (pe_sampler_change){at, raw};
    x[at] = v;
    nan |= v != v;
    if (v > peak[b])
      peak[b] = v;
    else if (raw >= peak[b])
      s->stale[b] = 1;
  }
  s->nan |= nan;
  if (x != s->copy) s->change_count += count;
}

static void put_one(pe_sampler *s, float *x, int32_t id, float value) {
  if (id >= 0 && id < s->n) put(s, x, &id, &value, 1);
}

static void penalize(pe_sampler *s, const pe_sampling *p, const pe_history *h, float *x) {
  int32_t count = pe_sampler_seen(s, p, h);
  const int32_t *id = s->seen_id;
  const uint32_t *outputs = s->outputs;
  const penalty k = penalty_of(p);
  float *restrict value = s->penalized;
  for (int32_t i = 0; i < count; i++) value[i] = penalized(&k, x[id[i]], outputs[i]);
  put(s, x, id, value, count);
}

static void ban(pe_sampler *s, const int32_t *id, int32_t count, float *x) {
  for (int32_t i = 0; i < count; i++) put_one(s, x, id[i], -INFINITY);
}

int64_t pe_sampler_changes(int32_t n, const pe_sampling *p, const pe_history *h,
                           int32_t ban_count) {
  const int32_t tokens = window_of(p, h);
  return (int64_t)p->bias_count + p->banned_count + ban_count + (tokens < n ? tokens : n);
}

static void ban_copy(const pe_sampler *s, const int32_t *id, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    if (id[i] >= 0 && id[i] < s->n) s->copy[id[i]] = -INFINITY;
}

/* Without the books that `put` keeps: few of the logits there mean anything. */
void pe_sampler_change_copy(const pe_sampler *s, const pe_sampling *p, const int32_t *ban_ids,
                            int32_t ban_count, int32_t seen) {
  float *x = s->copy;
  for (int32_t i = 0; i < p->bias_count; i++) {
    const int32_t id = p->bias[i].id;
    if (id >= 0 && id < s->n) x[id] += p->bias[i].bias;
  }
  ban_copy(s, p->banned, p->banned_count);
  ban_copy(s, ban_ids, ban_count);
  const penalty k = penalty_of(p);
  for (int32_t i = 0; i < seen; i++)
    x[s->seen_id[i]] = penalized(&k, x[s->seen_id[i]], s->outputs[i]);
}

/* The row x and s->peak before any change: as they are, or under a mask. */
static void begin_row(pe_sampler *s, const uint32_t *allow, const float *logits, float *x) {
  s->change_count = 0, s->nan = false;
  const pe_pass pass = pe_list_pass(&s->space.list);
  if (allow) {
    pe_pass_allow(pass, logits, s->n, allow, x);
    pe_pass_peaks(pass, x, s->n, s->peak, NULL);
  } else {
    memcpy(s->peak, s->raw_peak, (size_t)pe_list_peaks(s->n) * sizeof *s->peak);
  }
}

static void adjust(pe_sampler *s, const pe_sampling *p, const pe_history *h, const int32_t *ban_ids,
                   int32_t ban_count, float *x) {
  for (int32_t i = 0; i < p->bias_count; i++) {
    int32_t id = p->bias[i].id;
    if (id >= 0 && id < s->n) put_one(s, x, id, x[id] + p->bias[i].bias);
  }
  ban(s, p->banned, p->banned_count, x);
  ban(s, ban_ids, ban_count, x);
  penalize(s, p, h, x);
}

static void restore(pe_sampler *s, float *restrict x) {
  const pe_sampler_change *c = s->changes;
  for (int32_t i = s->change_count; i-- > 0;) x[c[i].id] = c[i].raw;
  s->change_count = 0;
}

/* Completes the peaks of a row that `adjust` changed. Returns the highest; NaN if a logit is. */
static float adjusted_peaks(pe_sampler *s, const float *x) {
  const pe_scan *scan = s->space.list.scan;
  int32_t n = pe_list_peaks(s->n);
  float lowest;
  for (int32_t b = 0, from = 0; b < n; b++, from += PE_SCAN_PEAK) {
    int32_t count = s->n - from < PE_SCAN_PEAK ? s->n - from : PE_SCAN_PEAK;
    if (s->stale[b]) scan->peaks(x + from, count, &s->peak[b], NULL);
    s->stale[b] = 0;
  }
  return s->nan ? NAN : scan->range(s->peak, n, &lowest);
}

/* The lowest id of the highest logit; -1 if that is not finite. */
static int32_t best_of(const pe_sampler *s, const float *x, const float *peak, float top) {
  const pe_scan *scan = s->space.list.scan;
  if (!isfinite(top)) return -1;
  int32_t from = (int32_t)scan->find(peak, pe_list_peaks(s->n), top) * PE_SCAN_PEAK;
  return from + (int32_t)scan->find(x + from, s->n - from, top);
}

/* ---- the choice ---------------------------------------------------------------------------- */

void pe_sampler_report(pe_sampler *s, double all, float logit, int32_t count, pe_choice *out) {
  out->logprob = (float)((double)logit - all);
  out->top_count = count;
  while (count) {
    pe_draw_candidate c = pe_draw_pop(&s->space, &count); /* the worst first */
    out->top_id[count] = c.id;
    out->top_logprob[count] = (float)((double)c.logit - all);
  }
}

/* The choice from a row as bias, bans and penalties left it; -1: there is none. */
static int32_t choose(pe_sampler *s, const pe_sampling *p, const pe_list_row *row,
                      int64_t position) {
  if (row->best < 0 || p->temperature == 0) return row->best;
  return pe_draw(&s->space, p, row, position);
}

/* ---- few allowed tokens -------------------------------------------------------------------- */

/* The allowed ids, in order, to the list's. Returns how many they are; -1: more than FEW. */
static int32_t gather_allowed(const pe_sampler *s, const uint32_t *allow) {
  int32_t count = 0, *id = s->space.list.id;
  for (int32_t from = 0; from < s->n; from += 32)
    for (uint32_t bits = allow[from / 32]; bits; bits &= bits - 1) {
      int32_t at = from + __builtin_ctz(bits);
      if (at >= s->n) break;
      if (count == FEW) return -1;
      id[count++] = at;
    }
  return count;
}

/* As `adjust`, on the tokens that were gathered. */
static void adjust_few(const pe_sampler *s, const pe_sampling *p, const pe_history *h,
                       const int32_t *ban_ids, int32_t ban_count, int32_t count) {
  const int32_t *id = s->space.list.id;
  float *x = s->space.list.x;
  if (!pe_sampler_changes(s->n, p, h, ban_count)) return;
  for (int32_t i = 0; i < count; i++) s->copy[id[i]] = x[i];
  pe_sampler_change_copy(s, p, ban_ids, ban_count, pe_sampler_seen(s, p, h));
  for (int32_t i = 0; i < count; i++) x[i] = s->copy[id[i]];
}

int32_t pe_sampler_choose_few(pe_sampler *s, const pe_sampling *p, int32_t count,
                              int64_t position) {
  const pe_list l = pe_list_few(&s->space.list, count);
  if (!l.n || !isfinite(l.top)) return -1;
  if (p->temperature == 0) return l.id[s->space.list.scan->find(l.x, l.n, l.top)];
  return pe_draw_few(&s->space, p, &l, position);
}

/* Their logits. False: one is NaN. */
static bool read_few(const pe_sampler *s, const float *logits, int32_t count) {
  float *x = s->space.list.x;
  bool nan = false;
  for (int32_t i = 0; i < count; i++) {
    x[i] = logits[s->space.list.id[i]];
    nan |= x[i] != x[i];
  }
  return !nan;
}

static int32_t draw_allowed(pe_sampler *s, const pe_sampling *p, const float *logits,
                            const pe_history *history, int64_t position, const int32_t *ban_ids,
                            int32_t ban_count, int32_t count) {
  if (!read_few(s, logits, count)) return -1;
  adjust_few(s, p, history, ban_ids, ban_count, count);
  int32_t id = pe_sampler_choose_few(s, p, count, position);
  if (id >= 0) return id;
  count = gather_allowed(s, p->allow); /* packing has moved them */
  read_few(s, logits, count);
  return pe_sampler_choose_few(s, p, count, position);
}

/* ---- a pick -------------------------------------------------------------------------------- */

static pe_status fail_masked(int64_t position, pe_error *err) {
  return pe_fail(err, PE_ENOTOKEN,
                 "the logits of all tokens that the mask allows at position %lld are NaN or -inf",
                 (long long)position);
}

pe_status pe_sampler_no_token(int64_t position, pe_error *err) {
  return pe_fail(err, PE_ENOTOKEN, "bias, bans and penalties leave no token at position %lld",
                 (long long)position);
}

/* Changes the row x, which is `logits` itself or s->copy, and draws from it. */
static int32_t draw_changed(pe_sampler *s, const pe_sampling *p, const float *logits, float *x,
                            const pe_history *history, int64_t position, const int32_t *ban_ids,
                            int32_t ban_count) {
  begin_row(s, p->allow, logits, x);
  adjust(s, p, history, ban_ids, ban_count, x);
  float top = adjusted_peaks(s, x);
  int32_t id = choose(s, p, &(pe_list_row){x, s->peak, best_of(s, x, s->peak, top)}, position);
  restore(s, x);
  if (id >= 0 || !p->allow) return id;
  begin_row(s, p->allow, logits, x);
  top = adjusted_peaks(s, x);
  return choose(s, p, &(pe_list_row){x, s->peak, best_of(s, x, s->peak, top)}, position);
}

/* x: where the changed logits go, `logits` itself or s->copy. */
static pe_status pick(pe_sampler *s, const pe_sampling *p, const float *logits, float *x,
                      const pe_history *history, int64_t position, const int32_t *ban_ids,
                      int32_t ban_count, pe_choice *out, pe_error *err) {
  *out = (pe_choice){.id = -1};
  int32_t few = p->allow ? gather_allowed(s, p->allow) : -1;
  bool changes = !p->allow && pe_sampler_changes(s->n, p, history, ban_count) > 0;
  if (few >= 0) out->id = draw_allowed(s, p, logits, history, position, ban_ids, ban_count, few);
  if (few >= 0 && out->id < 0) return fail_masked(position, err);
  if (few >= 0 && p->top_logprobs < 0) return PE_OK;
  float top = pe_pass_peaks(pe_list_pass(&s->space.list), logits, s->n, s->raw_peak,
                            changes && x != logits ? x : NULL);
  const pe_list_row raw = {logits, s->raw_peak, best_of(s, logits, s->raw_peak, top)};
  if (raw.best < 0)
    return pe_fail(err, PE_EFORMAT, "logits at position %lld are NaN or all -inf",
                   (long long)position);
  s->space.list.total = 0;
  if (few < 0 && (changes || p->allow)) {
    out->id = draw_changed(s, p, logits, x, history, position, ban_ids, ban_count);
    s->space.list.total = 0; /* that of other logits */
  } else if (few < 0) {
    out->id = choose(s, p, &raw, position);
  }
  if (out->id < 0 && p->allow) return fail_masked(position, err);
  if (out->id < 0) return pe_sampler_no_token(position, err);
  if (p->top_logprobs < 0) return PE_OK;
  double total = s->space.list.total; /* the draw may have summed it up */
  if (total <= 0) total = pe_draw_total(&s->space, &raw);
  pe_sampler_report(s, (double)logits[raw.best] + log(total), logits[out->id],
                    pe_draw_best(&s->space, &raw, p->top_logprobs), out);
  return PE_OK;
}

pe_status pe_sampler_pick(pe_sampler *s, const pe_sampling *p, const float *logits,
                          const pe_history *history, int64_t position, const int32_t *ban_ids,
                          int32_t ban_count, pe_choice *out, pe_error *err) {
  return pick(s, p, logits, s->copy, history, position, ban_ids, ban_count, out, err);
}

pe_status pe_sampler_pick_own(pe_sampler *s, const pe_sampling *p, float *logits,
                              const pe_history *history, int64_t position, const int32_t *ban_ids,
                              int32_t ban_count, pe_choice *out, pe_error *err) {
  bool fits = !p->allow && pe_sampler_changes(s->n, p, history, ban_count) <= s->n;
  float *x = fits ? logits : s->copy;
  return pick(s, p, logits, x, history, position, ban_ids, ban_count, out, err);
}
