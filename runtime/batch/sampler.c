/* sampler.c - see sampler.h. */
#include "runtime/batch/sampler.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct candidate {
  float logit;
  int32_t id;
} candidate;

struct pe_sampler {
  int32_t n;       /* vocabulary size; all arrays have n entries */
  float *x;        /* logits after bias, bans and penalties, if there are any */
  uint32_t *seen;  /* by id: 1 + its count in the penalty window; all 0 between two picks */
  candidate *kept; /* heaps and lists of candidates */
  double *weight;  /* parallel to kept: probabilities, distances */
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
  pe_free(s->weight);
  pe_free(s->kept);
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
  s->kept = pe_calloc(n, sizeof *s->kept);
  s->weight = pe_calloc(n, sizeof *s->weight);
  if (!s->x || !s->seen || !s->kept || !s->weight) {
    pe_sampler_close(s);
    return pe_nomem(err, "sampler");
  }
  *out = s;
  return PE_OK;
}

/* ---- bias, bans, penalties ----------------------------------------------------------------- */

static bool penalizes(const pe_sampling *p) {
  return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static float penalized(const pe_sampling *p, float x, uint32_t outputs) {
  if (x == -INFINITY) return x; /* banned; a negative penalty must not revive it */
  double y =
      x > 0 ? (double)x / (double)p->repetition_penalty : (double)x * (double)p->repetition_penalty;
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

/* The logits to choose from: the raw ones if nothing changes them. */
static const float *adjust(pe_sampler *s, const pe_sampling *p, const float *logits,
                           const pe_history *h, const int32_t *ban_ids, int32_t ban_count) {
  bool history = h && h->count > 0 && penalizes(p);
  if (!p->bias_count && !p->banned_count && !ban_count && !history) return logits;
  memcpy(s->x, logits, (size_t)s->n * sizeof *logits);
  for (int32_t i = 0; i < p->bias_count; i++)
    if (p->bias[i].id >= 0 && p->bias[i].id < s->n) s->x[p->bias[i].id] += p->bias[i].bias;
  ban(s, p->banned, p->banned_count);
  ban(s, ban_ids, ban_count);
  if (history) penalize(s, p, h);
  return s->x;
}

/* The highest of n numbers; *bad: one is NaN. 16 independent lanes, so that compilers vectorize
 * it. */
static float highest(const float *x, int32_t n, bool *bad) {
  float top[16];
  uint32_t odd[16] = {0};
  int32_t i = 0;
  for (int j = 0; j < 16; j++) top[j] = -INFINITY;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; j++) {
      float v = x[i + j];
      odd[j] |= v != v;
      top[j] = v > top[j] ? v : top[j];
    }
  for (; i < n; i++) odd[0] |= x[i] != x[i], top[0] = x[i] > top[0] ? x[i] : top[0];
  for (int j = 1; j < 16; j++) odd[0] |= odd[j], top[0] = top[j] > top[0] ? top[j] : top[0];
  *bad = odd[0];
  return top[0];
}

/* The lowest id of the highest logit; -1 if one is NaN or the highest is not finite. */
static int32_t best_of(const float *x, int32_t n) {
  bool bad;
  float top = highest(x, n, &bad);
  if (bad || !isfinite(top)) return -1;
  int32_t best = 0;
  while (x[best] != top) best++;
  return best;
}

/* ---- heaps of candidates, with the worst or the best on top -------------------------------- */

static bool before(candidate a, candidate b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift(candidate *h, size_t n, size_t i, bool best_first) {
  candidate x = h[i];
  for (size_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && before(h[child + 1], h[child]) == best_first) child++;
    if (before(h[child], x) != best_first) break;
    h[i] = h[child];
  }
  h[i] = x;
}

static void make_heap(candidate *h, size_t n, bool best_first) {
  for (size_t i = n / 2; i-- > 0;) sift(h, n, i, best_first);
}

/* The k best of x, as a heap with the worst on top; -infinity is not a candidate. Returns the
 * count. */
static size_t select_best(const float *x, int32_t n, size_t k, candidate *h) {
  size_t count = 0;
  int32_t i = 0;
  for (; i < n && count < k; i++)
    if (x[i] > -INFINITY) h[count++] = (candidate){x[i], i};
  make_heap(h, count, false);
  for (; i < n && count; i++) { /* ids grow, so an equal logit never wins */
    if (!(x[i] > h[0].logit)) continue;
    h[0] = (candidate){x[i], i};
    sift(h, count, 0, false);
  }
  return count;
}

/* Pops the top. Popped candidates collect at the end of the array, the last popped first. */
static candidate pop(candidate *h, size_t *n, bool best_first) {
  candidate top = h[0];
  h[0] = h[--*n];
  h[*n] = top;
  sift(h, *n, 0, best_first);
  return top;
}

/* ---- filters ------------------------------------------------------------------------------- */

static size_t gather(const float *x, int32_t n, double least, candidate *out) {
  size_t count = 0;
  for (int32_t i = 0; i < n; i++)
    if (x[i] > -INFINITY && (double)x[i] >= least) out[count++] = (candidate){x[i], i};
  return count;
}

/* The candidates that can survive top_k, top_p and min_p, and the total weight after top_k. Of n
 * tokens, all below (1 - p) / n together weigh less than 1 - p, so top_p is reached without them
 * and the heap stays small. */
static size_t candidates(pe_sampler *s, const pe_sampling *p, const float *x, float top,
                         double *total) {
  *total = 0;
  if (p->top_k && p->top_k < s->n) {
    size_t count = select_best(x, s->n, (size_t)p->top_k, s->kept);
    for (size_t i = 0; i < count; i++) *total += exp((double)s->kept[i].logit - (double)top);
    return count;
  }
  double least = p->min_p > 0 ? (double)top + log((double)p->min_p) : -INFINITY;
  if (p->top_p < 1) {
    for (int32_t i = 0; i < s->n; i++) *total += exp((double)x[i] - (double)top);
    double needed = (double)top + log((1 - (double)p->top_p) * *total / s->n) - 1e-6;
    least = needed > least ? needed : least;
  }
  least = least < (double)top ? least : (double)top;
  return gather(x, s->n, least, s->kept);
}

/* top_p and min_p: pops the best while they are wanted. They end up in front, in no order. */
static size_t cut(candidate *h, size_t count, const pe_sampling *p, float top, double total) {
  if (p->top_p >= 1 && p->min_p <= 0) return count;
  make_heap(h, count, true);
  double least = p->min_p > 0 ? (double)top + log((double)p->min_p) : -INFINITY, reached = 0;
  size_t left = count, taken = 0;
  while (left) {
    if (taken &&
        ((double)h[0].logit < least || (p->top_p < 1 && reached >= (double)p->top_p * total)))
      break;
    reached += exp((double)pop(h, &left, true).logit - (double)top);
    taken++;
  }
  memmove(h, h + left, taken * sizeof *h);
  return taken;
}

static double total_weight(const candidate *c, size_t count, float top) {
  double total = 0;
  for (size_t i = 0; i < count; i++) total += exp((double)c[i].logit - (double)top);
  return total;
}

typedef struct spread { /* a heap by distance to the entropy, nearest on top; ties: better token */
  candidate *c;
  double *far;
} spread;

static bool nearer(spread h, size_t a, size_t b) {
  return h.far[a] < h.far[b] || (h.far[a] == h.far[b] && before(h.c[a], h.c[b]));
}

static void swap(spread h, size_t a, size_t b) {
  candidate c = h.c[a];
  double far = h.far[a];
  h.c[a] = h.c[b], h.far[a] = h.far[b];
  h.c[b] = c, h.far[b] = far;
}

static void sift_near(spread h, size_t n, size_t i) {
  for (size_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && nearer(h, child + 1, child)) child++;
    if (!nearer(h, child, i)) break;
    swap(h, child, i);
  }
}

/* typical_p: the tokens whose surprise is nearest to the entropy until p is reached, and the
 * best. */
static size_t typical(pe_sampler *s, size_t count, const pe_sampling *p, float top) {
  if (p->typical_p >= 1) return count;
  spread h = {s->kept, s->weight};
  double all = log(total_weight(h.c, count, top)), entropy = 0, reached = 0;
  for (size_t i = 0; i < count; i++) {
    double logp = (double)h.c[i].logit - (double)top - all;
    entropy -= exp(logp) * logp;
    h.far[i] = -logp;
  }
  for (size_t i = 0; i < count; i++) h.far[i] = fabs(h.far[i] - entropy);
  for (size_t i = count / 2; i-- > 0;) sift_near(h, count, i);
  size_t left = count;
  while (left && (left == count || reached < (double)p->typical_p)) {
    reached += exp((double)h.c[0].logit - (double)top - all);
    swap(h, 0, --left);
    sift_near(h, left, 0);
  }
  for (size_t i = 1; i < left; i++) /* the best of the dropped tokens goes to the front */
    if (before(h.c[i], h.c[0])) swap(h, i, 0);
  bool best_out = left > 0;
  for (size_t i = left; i < count && best_out; i++) best_out = before(h.c[0], h.c[i]);
  if (best_out) swap(h, 0, --left);
  memmove(h.c, h.c + left, (count - left) * sizeof *h.c);
  return count - left;
}

/* xtc: of the tokens at or above the threshold, only the least likely stays. */
static size_t exclude_top(candidate *c, size_t count, const pe_sampling *p, float top, double u) {
  if (!(u < (double)p->xtc_probability)) return count;
  double least = (double)p->xtc_threshold * total_weight(c, count, top);
  size_t above = 0, last = 0, out = 0;
  for (size_t i = 0; i < count; i++) {
    if (exp((double)c[i].logit - (double)top) < least) continue;
    if (!above++ || before(c[last], c[i])) last = i;
  }
  if (above < 2) return count;
  candidate stays = c[last];
  for (size_t i = 0; i < count; i++)
    if (c[i].id == stays.id || exp((double)c[i].logit - (double)top) < least) c[out++] = c[i];
  return out;
}

/* ---- drawing ------------------------------------------------------------------------------- */

static int32_t draw_kept(pe_sampler *s, size_t count, double temperature, double u) {
  float top = -INFINITY;
  for (size_t i = 0; i < count; i++) top = s->kept[i].logit > top ? s->kept[i].logit : top;
  double total = 0, at;
  for (size_t i = 0; i < count; i++)
    total += s->weight[i] = exp(((double)s->kept[i].logit - (double)top) / temperature);
  size_t chosen = 0;
  for (size_t i = 0; i < count; i++) /* a rest left by rounding goes to the heaviest */
    if (s->weight[i] > s->weight[chosen]) chosen = i;
  at = u * total;
  for (size_t i = 0; i < count; i++)
    if ((at -= s->weight[i]) < 0) return s->kept[i].id;
  return s->kept[chosen].id;
}

static int32_t draw_all(pe_sampler *s, const float *x, int32_t best, double temperature, double u) {
  double total = 0;
  for (int32_t i = 0; i < s->n; i++)
    total += s->weight[i] = exp(((double)x[i] - (double)x[best]) / temperature);
  double at = u * total;
  for (int32_t i = 0; i < s->n; i++)
    if ((at -= s->weight[i]) < 0) return i;
  return best;
}

static int32_t draw(pe_sampler *s, const pe_sampling *p, const float *x, int32_t best,
                    int64_t position) {
  double u = pe_sampler_uniform(p->seed, position, 0), temperature = (double)p->temperature, total;
  if (p->top_k == 0 && p->top_p >= 1 && p->min_p <= 0 && p->typical_p >= 1 &&
      p->xtc_probability <= 0)
    return draw_all(s, x, best, temperature, u);
  size_t count = candidates(s, p, x, x[best], &total);
  count = cut(s->kept, count, p, x[best], total);
  count = typical(s, count, p, x[best]);
  count = exclude_top(s->kept, count, p, x[best], pe_sampler_uniform(p->seed, position, 1));
  return draw_kept(s, count, temperature, u);
}

/* ---- the choice ---------------------------------------------------------------------------- */

static void report(pe_sampler *s, const float *logits, int32_t best, int32_t most, pe_choice *out) {
  double top = (double)logits[best], total = 0;
  for (int32_t i = 0; i < s->n; i++) total += exp((double)logits[i] - top);
  double all = top + log(total);
  out->logprob = (float)((double)logits[out->id] - all);
  if (most <= 0) return;
  if (most > PE_MAX_TOP_LOGPROBS) most = PE_MAX_TOP_LOGPROBS;
  size_t count = select_best(logits, s->n, (size_t)most, s->kept);
  out->top_count = (int32_t)count;
  while (count) {
    candidate c = pop(s->kept, &count, false); /* the worst first */
    out->top_id[count] = c.id;
    out->top_logprob[count] = (float)((double)c.logit - all);
  }
}

pe_status pe_sampler_pick(pe_sampler *s, const pe_sampling *p, const float *logits,
                          const pe_history *history, int64_t position, const int32_t *ban_ids,
                          int32_t ban_count, pe_choice *out, pe_error *err) {
  *out = (pe_choice){.id = -1};
  int32_t raw = best_of(logits, s->n), best = raw;
  if (raw < 0)
    return pe_fail(err, PE_EFORMAT, "logits at position %lld are NaN or all -inf",
                   (long long)position);
  const float *x = adjust(s, p, logits, history, ban_ids, ban_count);
  if (x != logits) best = best_of(x, s->n);
  if (best < 0)
    return pe_fail(err, PE_ENOTOKEN, "bias, bans and penalties leave no token at position %lld",
                   (long long)position);
  out->id = p->temperature == 0 ? best : draw(s, p, x, best, position);
  if (p->top_logprobs >= 0) report(s, logits, raw, p->top_logprobs, out);
  return PE_OK;
}
