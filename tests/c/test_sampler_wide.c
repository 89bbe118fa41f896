/* test_sampler_wide.c - the sampler over large vocabularies against a slow one in double precision:
 * it sorts everything, applies the filters one by one and walks to the drawn token. Both must
 * agree, except where rounding decides; every instruction set must agree with every other bit for
 * bit. */
#include "check.h"
#include "kernels/cpu/prim.h"
#include "runtime/batch/sampler.h"

#include <float.h>

enum { MOST = 151936 };
static const double CLOSE = 1e-6;

static uint64_t state = 11;
static double unit(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (double)(state >> 11) * 0x1p-53;
}
static int32_t below(int32_t n) { return (int32_t)(unit() * n); }
static double normal(void) { return sqrt(-2 * log(1 - unit())) * cos(6.283185307179586 * unit()); }

static pe_sampler *open_as(const char *isa, int32_t n) {
  pe_sampler *s = NULL;
  pe_error err = {0};
  if (isa) setenv("PERIGEE_ISA", isa, 1);
  CHECK_OK(pe_sampler_open(n, &s, &err), err);
  unsetenv("PERIGEE_ISA");
  return s;
}

/* ---- the slow one ---------------------------------------------------------------------------- */

typedef struct item {
  double logit, w, key;
  int32_t id;
} item;

typedef struct slow {
  item it[MOST];
  int32_t n;
  bool close; /* a threshold or the draw is decided by less than CLOSE */
} slow;

static int by_id(const void *a, const void *b) {
  return ((const item *)a)->id - ((const item *)b)->id;
}
static int by_key(const void *a, const void *b) {
  const item *x = a, *y = b;
  if (x->key != y->key) return x->key > y->key ? -1 : 1;
  if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
  return x->id - y->id;
}

static double weights(slow *r, double temperature) {
  double top = -INFINITY, total = 0;
  for (int32_t i = 0; i < r->n; i++) top = fmax(top, r->it[i].logit);
  for (int32_t i = 0; i < r->n; i++)
    total += r->it[i].w =
        top - r->it[i].logit > (double)FLT_MAX ? 0 : exp((r->it[i].logit - top) / temperature);
  for (int32_t i = 0; i < r->n; i++) r->it[i].w /= total;
  return top;
}

static void sort(slow *r) { qsort(r->it, (size_t)r->n, sizeof *r->it, by_key); }

/* The number of first items whose weights reach p. */
static int32_t reach(slow *r, double p) {
  double reached = 0;
  int32_t i = 0;
  while (i < r->n) {
    reached += r->it[i++].w;
    if (fabs(reached - p) < CLOSE) r->close = true;
    if (reached >= p) break;
  }
  return i;
}

static void slow_typical(slow *r, double p) {
  item best = r->it[0];
  double centre = 0, top = weights(r, 1);
  for (int32_t i = 0; i < r->n; i++)
    if (r->it[i].w > 0) centre += r->it[i].w * (r->it[i].logit - top);
  for (int32_t i = 0; i < r->n; i++) r->it[i].key = -fabs(r->it[i].logit - top - centre);
  sort(r);
  int32_t kept = reach(r, p);
  if (kept < r->n && r->it[kept - 1].key - r->it[kept].key < 1e-5 &&
      r->it[kept - 1].logit != r->it[kept].logit)
    r->close = true; /* of two tokens at the same distance, rounding chooses */
  bool has = false;
  for (int32_t i = 0; i < kept; i++) has |= r->it[i].id == best.id;
  for (int32_t i = kept; i < r->n && !has; i++)
    if (r->it[i].id == best.id) best = r->it[i];
  r->n = kept;
  if (!has) r->it[r->n++] = best;
}

static void slow_xtc(slow *r, double threshold) {
  int32_t above = 0, out = 0, stays = -1;
  weights(r, 1);
  for (int32_t i = 0; i < r->n; i++) {
    const item *a = &r->it[i], *b = stays < 0 ? NULL : &r->it[stays];
    if (threshold > 0 && fabs(a->w / threshold - 1) < CLOSE) r->close = true;
    if (a->w < threshold) continue;
    if (!above++ || a->logit < b->logit || (a->logit == b->logit && a->id > b->id)) stays = i;
  }
  if (above < 2) return;
  int32_t id = r->it[stays].id;
  for (int32_t i = 0; i < r->n; i++)
    if (r->it[i].w < threshold || r->it[i].id == id) r->it[out++] = r->it[i];
  r->n = out;
}

static int32_t slow_draw(slow *r, const pe_sampling *p, const float *x, int32_t n,
                         int64_t position) {
  bool ranks = p->top_p < 1 || p->min_p > 0 || p->typical_p < 1;
  double u = pe_sampler_uniform(p->seed, position, 0);
  r->n = 0, r->close = false;
  for (int32_t i = 0; i < n; i++)
    if (x[i] > -INFINITY) r->it[r->n++] = (item){(double)x[i], 0, (double)x[i], i};
  sort(r);
  if (p->top_k && p->top_k < r->n) r->n = p->top_k;
  double top = weights(r, 1), least = log((double)p->min_p);
  if (p->top_p < 1) r->n = reach(r, (double)p->top_p);
  while (p->min_p > 0 && r->n > 1 && r->it[r->n - 1].logit - top < least) r->n--;
  if (p->typical_p < 1) slow_typical(r, (double)p->typical_p);
  if (pe_sampler_uniform(p->seed, position, 1) < (double)p->xtc_probability)
    slow_xtc(r, (double)p->xtc_threshold);
  if (!ranks) qsort(r->it, (size_t)r->n, sizeof *r->it, by_id);
  weights(r, (double)p->temperature);
  double reached = 0;
  for (int32_t i = 0; i < r->n; i++) { /* ranks count from the worst */
    const item *a = &r->it[ranks ? r->n - 1 - i : i];
    reached += a->w;
    if (fabs(reached - u) < CLOSE) r->close = true;
    if (reached > u) return a->id;
  }
  return r->it[0].id;
}

/* ---- random requests ------------------------------------------------------------------------- */

static void random_logits(float *x, int32_t n) {
  static const double scales[] = {0, 0.1, 1, 2.5, 8, 40};
  double scale = scales[below(6)];
  int32_t few = below(3) ? 0 : 1 + below(8);
  for (int32_t i = 0; i < n; i++) x[i] = few ? (float)below(few) : (float)(scale * normal());
  if (below(3) == 0)
    for (int32_t i = 0; i < 5; i++) x[below(n)] = (float)(scale * (3 + 2 * unit()));
  if (below(4) == 0)
    for (int32_t i = 0; i < n / 2; i++) x[below(n)] = -INFINITY;
  if (below(6) == 0)
    for (int32_t i = 0; i < n / 2; i++) x[below(n)] = -1e30f;
  if (below(9) == 0) x[below(n)] = FLT_MAX;
  if (below(9) == 0) x[below(n)] = -FLT_MAX;
  if (below(12) == 0) /* all but one are masked */
    for (int32_t i = 1; i < n; i++) x[i] = -INFINITY;
  if (x[0] == -INFINITY) x[0] = 0;
}

static pe_sampling random_sampling(int32_t n) {
  static const float temperatures[] = {1e-30f, 1e-3f, 0.1f, 5, 3e38f};
  pe_sampling p = pe_sampling_defaults();
  p.seed = (uint64_t)below(1 << 30);
  p.temperature = below(3) ? (float)(0.2 + 1.5 * unit()) : below(2) ? 1 : temperatures[below(5)];
  if (below(3) == 0) p.top_k = 1 + below(below(2) ? 60 : n);
  if (below(2) == 0) p.top_p = (float)(1 - unit() * unit());
  if (below(3) == 0) p.min_p = (float)(unit() * unit() * unit());
  if (below(3) == 0) p.typical_p = (float)(1 - unit() * 0.999);
  if (below(3) == 0) {
    p.xtc_probability = (float)unit();
    p.xtc_threshold = below(4) ? (float)(0.5 * unit() * unit() * unit()) : below(2) ? 0 : 1e-6f;
  }
  return p;
}

static const int32_t sizes[] = {1, 15, 16, 17, 300, 2047, 8193, 20000, 70000, MOST};
enum { SIZES = sizeof sizes / sizeof *sizes };
static float logits[MOST];
static slow ref;

static uint32_t allow[MOST / 32 + 1];
static float masked[MOST];

/* Some ids, few or many of them, the first one among them; `masked` is the row of those alone. */
static void random_mask(int32_t n) {
  static const double share[] = {0, 0.001, 0.05, 0.5, 0.95, 1};
  double of = share[below(6)];
  memset(allow, 0, sizeof allow);
  for (int32_t i = 0; i < n; i++) {
    bool in = i == 0 || unit() < of;
    if (in) allow[i / 32] |= UINT32_C(1) << i % 32;
    masked[i] = in ? logits[i] : -INFINITY;
  }
  for (int32_t i = n; i < n / 32 * 32 + 32; i++) /* ids beyond the vocabulary */
    allow[i / 32] |= UINT32_C(1) << i % 32;
}

static void draws_as_the_slow_one(void) {
  pe_sampler *s[SIZES];
  pe_error err = {0};
  pe_choice got;
  int rounds = 400, close = 0;
  for (int i = 0; i < SIZES; i++) s[i] = open_as(NULL, sizes[i]);
  for (int round = 0; round < rounds && !check_failures; round++) {
    int k = below(round % 8 ? SIZES - 2 : SIZES);
    int32_t n = sizes[k];
    random_logits(logits, n);
    pe_sampling p = random_sampling(n);
    CHECK_OK(pe_sampling_check(&p, n, &err), err);
    CHECK_OK(pe_sampler_pick(s[k], &p, logits, NULL, round, NULL, 0, &got, &err), err);
    int32_t want = slow_draw(&ref, &p, logits, n, round);
    close += ref.close;
    if (got.id == want || ref.close) continue;
    check_failures++;
    printf("    round %d: of %d tokens %d (%g) was drawn, not %d (%g)\n", round, n, got.id,
           (double)logits[got.id], want, (double)logits[want]);
    printf("    temperature %g top_k %d top_p %g min_p %g typical_p %g xtc %g %g\n",
           (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, (double)p.typical_p,
           (double)p.xtc_probability, (double)p.xtc_threshold);
  }
  CHECK(close < rounds / 4); /* the comparison was sharp often enough */
  for (int i = 0; i < SIZES; i++) pe_sampler_close(s[i]);
}

/* Also with logprobs, which must be those of the slow sum. */
static void instruction_sets_agree(void) {
  static const char *const isa[] = {"scalar", "avx2", "avx512", "neon"};
  pe_error err = {0};
  for (int k = 0; k < SIZES; k++) {
    pe_sampler *s[4] = {NULL};
    for (int i = 0; i < 4; i++)
      if (pe_prim_named(isa[i])) s[i] = open_as(isa[i], sizes[k]);
    for (int round = 0; round < 25 && !check_failures; round++) {
      random_logits(logits, sizes[k]);
      pe_sampling p = random_sampling(sizes[k]);
      p.top_logprobs = below(21);
      random_mask(sizes[k]);
      if (round % 2) p.allow = allow;
      pe_choice want, got;
      CHECK_OK(pe_sampler_pick(s[0], &p, logits, NULL, round, NULL, 0, &want, &err), err);
      for (int i = 1; i < 4; i++) {
        if (!s[i]) continue;
        CHECK_OK(pe_sampler_pick(s[i], &p, logits, NULL, round, NULL, 0, &got, &err), err);
        if (memcmp(&got, &want, sizeof got)) {
          check_failures++;
          printf("    round %d of %d: %s draws %d, %s %d\n", round, sizes[k], isa[i], got.id,
                 isa[0], want.id);
        }
      }
      double top = -INFINITY, total = 0;
      for (int32_t i = 0; i < sizes[k]; i++) top = fmax(top, (double)logits[i]);
      for (int32_t i = 0; i < sizes[k]; i++) total += exp((double)logits[i] - top);
      double exact = (double)logits[want.id] - top - log(total);
      CHECK_NEAR(want.logprob, exact, 1e-5 + 1e-6 * fabs(exact));
      for (int32_t i = 1; i < want.top_count; i++) {
        int32_t a = want.top_id[i - 1], b = want.top_id[i];
        CHECK(logits[a] > logits[b] || (logits[a] == logits[b] && a < b));
      }
    }
    for (int i = 0; i < 4; i++) pe_sampler_close(s[i]);
  }
}

/* A pick whose passes several threads share: the choice of one thread, and its error. */
static void threads_agree(void) {
  pe_error err = {0};
  pe_pool *pool = NULL;
  CHECK_OK(pe_pool_open(3, false, &pool, &err), err);
  for (int k = 0; k < SIZES; k++) {
    const int32_t n = sizes[k];
    pe_sampler *alone = open_as(NULL, n), *shared = open_as(NULL, n);
    pe_sampler_share(shared, pool);
    for (int round = 0; round < 60 && !check_failures; round++) {
      random_logits(logits, n);
      random_mask(n);
      pe_sampling p = random_sampling(n);
      p.top_logprobs = round % 4 - 1;
      if (round % 3 == 0) p.allow = allow;
      pe_choice want, got;
      CHECK_OK(pe_sampler_pick(alone, &p, logits, NULL, round, NULL, 0, &want, &err), err);
      CHECK_OK(pe_sampler_pick(shared, &p, logits, NULL, round, NULL, 0, &got, &err), err);
      CHECK(!memcmp(&got, &want, sizeof got));
      p.allow = NULL, logits[below(n)] = NAN;
      CHECK_FAILS(pe_sampler_pick(shared, &p, logits, NULL, 3, NULL, 0, &got, &err), PE_EFORMAT,
                  err, "at position 3");
    }
    pe_sampler_close(alone);
    pe_sampler_close(shared);
  }
  pe_pool_close(pool);
}

/* Chi-square over 16 classes of tokens: with 15 degrees of freedom a value above 44.3 comes once in
 * 10,000 times. Seeds are fixed. */
static void frequencies(void) {
  enum { DRAWS = 3000, N = 20000 };
  const pe_sampling none = pe_sampling_defaults();
  pe_sampling cases[6] = {none, none, none, none, none, none};
  cases[1].top_p = 0.8f;
  cases[2].min_p = 0.1f, cases[2].temperature = 1.5f;
  cases[3].top_k = 5000, cases[3].temperature = 0.7f;
  cases[4].typical_p = 0.7f;
  cases[5].xtc_probability = 1, cases[5].xtc_threshold = 1e-3f;
  pe_sampler *s = open_as(NULL, N);
  for (int32_t i = 0; i < N; i++) logits[i] = (float)(1.5 * normal());
  for (int c = 0; c < 6; c++) {
    double want[16] = {0}, chi = 0;
    int32_t seen[16] = {0};
    slow_draw(&ref, &cases[c], logits, N, 0);
    for (int32_t i = 0; i < ref.n; i++) want[ref.it[i].id % 16] += ref.it[i].w * DRAWS;
    for (int64_t at = 0; at < DRAWS; at++) {
      pe_choice got;
      pe_error err = {0};
      CHECK_OK(pe_sampler_pick(s, &cases[c], logits, NULL, at, NULL, 0, &got, &err), err);
      seen[got.id % 16]++;
    }
    for (int i = 0; i < 16; i++) chi += (seen[i] - want[i]) * (seen[i] - want[i]) / want[i];
    if (chi > 44.3) check_failures++, printf("    case %d: chi-square is %g\n", c, chi);
  }
  pe_sampler_close(s);
}

/* Equal tokens: the lowest ids are kept, at every size of the search. */
static void ties(void) {
  pe_sampler *s = open_as(NULL, MOST);
  for (int32_t i = 0; i < MOST; i++) logits[i] = i % 7 ? -3 : 2;
  int32_t most = 0, best = (MOST + 6) / 7;
  pe_sampling p = pe_sampling_defaults();
  p.top_k = 1000;
  for (int64_t at = 0; at < 300; at++) {
    pe_choice got;
    pe_error err = {0};
    CHECK_OK(pe_sampler_pick(s, &p, logits, NULL, at, NULL, 0, &got, &err), err);
    CHECK(got.id % 7 == 0 && got.id < 7000);
    most = got.id > most ? got.id : most;
  }
  CHECK(most > 6500);
  p.top_k = best + 10, p.top_p = 0.5f, most = 0;
  for (int64_t at = 0; at < 300; at++) {
    pe_choice got;
    pe_error err = {0};
    CHECK_OK(pe_sampler_pick(s, &p, logits, NULL, at, NULL, 0, &got, &err), err);
    CHECK(got.id % 7 == 0 && got.id < MOST / 2 + 14);
    most = got.id > most ? got.id : most;
  }
  CHECK(most > MOST / 2 - 2000);
  pe_sampler_close(s);
}

/* Bias, bans and penalties draw like a row that was changed by hand; the row itself comes out as it
 * was, and so do its logprobs, whichever filter has summed it up. */
static void adjusted_rows(void) {
  enum { N = 20000, TOKENS = 200 };
  static float changed[N], own[N];
  pe_sampler *s = open_as(NULL, N);
  pe_error err = {0};
  pe_choice want, got, greedy;
  for (int round = 0; round < 40 && !check_failures; round++) {
    random_logits(logits, N);
    memcpy(changed, logits, sizeof changed);
    int32_t token[TOKENS], ban[3], best = 0;
    for (int32_t i = 1; i < N; i++)
      if (logits[i] > logits[best]) best = i;
    for (int i = 0; i < TOKENS; i++) token[i] = i * 97;
    token[0] = best; /* a peak that changes */
    for (int i = 0; i < 3; i++) ban[i] = 97 * TOKENS + i;
    pe_logit_bias bias = {N - 1, round % 2 ? 3.5f : -2};
    pe_sampling p = random_sampling(N), plain = p;
    p.repetition_penalty = 1.5f, p.bias = &bias, p.bias_count = 1;
    changed[N - 1] += bias.bias;
    for (int i = 0; i < TOKENS; i++) {
      double x = (double)changed[token[i]];
      if (i && token[i] == best) continue;
      changed[token[i]] = (float)(x > 0 ? x / 1.5 : x * 1.5);
    }
    for (int i = 0; i < 3; i++) changed[ban[i]] = -INFINITY;
    pe_history h = {token, TOKENS, TOKENS};
    p.top_logprobs = 20;
    CHECK_OK(pe_sampler_pick(s, &p, logits, &h, round, ban, 3, &got, &err), err);
    CHECK_OK(pe_sampler_pick(s, &plain, changed, NULL, round, NULL, 0, &want, &err), err);
    CHECK_INT(got.id, want.id);
    memcpy(own, logits, sizeof own);
    CHECK_OK(pe_sampler_pick_own(s, &p, own, &h, round, ban, 3, &want, &err), err);
    CHECK(!memcmp(&got, &want, sizeof got) && !memcmp(own, logits, sizeof own));
    plain.top_logprobs = 20;
    CHECK_OK(pe_sampler_pick(s, &plain, logits, NULL, round, NULL, 0, &want, &err), err);
    plain.temperature = 0;
    CHECK_OK(pe_sampler_pick(s, &plain, logits, NULL, round, NULL, 0, &greedy, &err), err);
    CHECK_INT(greedy.id, best);
    CHECK(!memcmp(greedy.top_logprob, want.top_logprob, sizeof want.top_logprob));
    CHECK(!memcmp(greedy.top_logprob, got.top_logprob, sizeof got.top_logprob));
  }
  pe_sampler_close(s);
}

/* Under a mask everything sees the allowed tokens; logprobs are those of the whole row. */
static void masks(void) {
  pe_sampler *s[SIZES];
  pe_error err = {0};
  pe_choice got, raw;
  int rounds = 300, close = 0;
  for (int i = 0; i < SIZES; i++) s[i] = open_as(NULL, sizes[i]);
  for (int round = 0; round < rounds && !check_failures; round++) {
    int k = below(round % 8 ? SIZES - 2 : SIZES);
    int32_t n = sizes[k];
    random_logits(logits, n);
    random_mask(n);
    pe_sampling p = random_sampling(n), plain = pe_sampling_defaults();
    p.allow = allow, p.top_logprobs = plain.top_logprobs = round % 4 - 1;
    plain.temperature = 0;
    CHECK_OK(pe_sampler_pick(s[k], &p, logits, NULL, round, NULL, 0, &got, &err), err);
    int32_t want = slow_draw(&ref, &p, masked, n, round);
    close += ref.close;
    if (got.id != want && !ref.close)
      check_failures++, printf("    round %d: of %d tokens %d (%g) was drawn, not %d (%g)\n", round,
                               n, got.id, (double)masked[got.id], want, (double)masked[want]);
    CHECK(masked[got.id] > -INFINITY);
    CHECK_OK(pe_sampler_pick(s[k], &plain, logits, NULL, round, NULL, 0, &raw, &err), err);
    CHECK_INT(got.top_count, raw.top_count);
    CHECK(!memcmp(got.top_id, raw.top_id, sizeof got.top_id));
    CHECK(!memcmp(got.top_logprob, raw.top_logprob, sizeof got.top_logprob));
    if (p.top_logprobs >= 0)
      CHECK_NEAR((double)got.logprob,
                 (double)raw.logprob + (double)logits[got.id] - (double)logits[raw.id],
                 1e-5 * (fabs((double)logits[got.id]) + fabs((double)logits[raw.id])) + 1e-4);
    p.temperature = 0;
    CHECK_OK(pe_sampler_pick_own(s[k], &p, logits, NULL, round, NULL, 0, &got, &err), err);
    for (int32_t i = 0; i < n; i++)
      if (masked[i] > masked[want] || (masked[i] == masked[want] && i < want)) want = i;
    CHECK_INT(got.id, want);
  }
  CHECK(close < rounds / 4);
  for (int i = 0; i < SIZES; i++) pe_sampler_close(s[i]);
}

/* Bias, bans and penalties under a mask, as `adjusted_rows`; and that the mask alone counts where
 * they leave nothing. */
static void adjusted_masks(void) {
  enum { N = 20000, TOKENS = 200 };
  static float own[N];
  static int32_t all[N];
  pe_sampler *s = open_as(NULL, N);
  pe_error err = {0};
  pe_choice got;
  for (int32_t i = 0; i < N; i++) all[i] = i;
  for (int round = 0; round < 60 && !check_failures; round++) {
    random_logits(logits, N);
    random_mask(N);
    memcpy(own, logits, sizeof own);
    pe_sampling p = random_sampling(N), plain = p;
    int32_t token[TOKENS], ban[3];
    for (int i = 0; i < TOKENS; i++) token[i] = i * 97 + 1;
    for (int i = 0; i < 3; i++) ban[i] = 97 * TOKENS + 5 + i;
    pe_logit_bias bias = {N - 1, round % 2 ? 3.5f : -2};
    p.allow = allow, p.repetition_penalty = 1.5f, p.bias = &bias, p.bias_count = 1;
    pe_history h = {token, TOKENS, TOKENS};
    CHECK_OK(pe_sampler_pick_own(s, &p, own, &h, round, ban, 3, &got, &err), err);
    CHECK(!memcmp(own, logits, sizeof own));
    masked[N - 1] += bias.bias;
    for (int i = 0; i < TOKENS; i++) {
      double x = (double)masked[token[i]];
      if (x > -INFINITY) masked[token[i]] = (float)(x > 0 ? x / 1.5 : x * 1.5);
    }
    for (int i = 0; i < 3; i++) masked[ban[i]] = -INFINITY;
    int32_t want = slow_draw(&ref, &plain, masked, N, round);
    CHECK(got.id == want || ref.close);
    CHECK_OK(pe_sampler_pick(s, &p, logits, &h, round, all, N, &got, &err), err);
    for (int32_t i = 0; i < N; i++) masked[i] = allow[i / 32] >> i % 32 & 1 ? logits[i] : -INFINITY;
    want = slow_draw(&ref, &plain, masked, N, round);
    CHECK(got.id == want || ref.close);
  }
  pe_sampler_close(s);
}

static void bad_masks(void) {
  enum { N = 20000 };
  static const float odd[] = {NAN, -INFINITY};
  pe_sampler *s = open_as(NULL, N);
  pe_error err = {0};
  pe_choice got;
  for (int round = 0; round < 40; round++) {
    random_logits(logits, N);
    memset(allow, 0, sizeof allow);
    for (int32_t i = 0; i < (round % 4 < 2 ? 30 : 6000); i++) {
      int32_t id = 64 + i; /* few are gathered, many are not */
      allow[id / 32] |= UINT32_C(1) << id % 32;
      logits[id] = odd[round % 2];
    }
    pe_sampling p = random_sampling(N);
    p.allow = allow;
    pe_status rc = pe_sampler_pick(s, &p, logits, NULL, 3, NULL, 0, &got, &err);
    CHECK(rc == PE_ENOTOKEN || rc == PE_EFORMAT);
    CHECK(strstr(err.text, "at position 3"));
  }
  memset(allow, 0, sizeof allow);
  pe_sampling p = random_sampling(N);
  p.allow = allow;
  CHECK_FAILS(pe_sampler_pick(s, &p, logits, NULL, 3, NULL, 0, &got, &err), PE_ENOTOKEN, err,
              "at position 3");
  pe_sampler_close(s);
}

/* Temperatures and logits at the ends of their ranges. The lowest temperature draws the best token
 * however close the next one is. A logit that is more than FLT_MAX below the best counts as masked,
 * even at the highest temperature. */
static void extremes(void) {
  enum { N = 20000 };
  static const float temperatures[] = {1e-45f, 1e-38f, 1e-30f, 1, 1e30f, FLT_MAX};
  static const float tops[] = {1e-30f, 1, FLT_MAX};
  pe_sampler *s = open_as(NULL, N);
  pe_error err = {0};
  pe_choice got;
  for (int i = 0; i < 6 * 3 * 16; i++) {
    int filters = i / 18;
    float top = tops[i / 6 % 3], rest = top > 1 ? -FLT_MAX : top > 1e-3f ? nextafterf(1, 0) : 0;
    pe_sampling p = pe_sampling_defaults();
    p.temperature = temperatures[i % 6];
    if (filters & 1) p.top_k = 15000;
    if (filters & 2) p.top_p = 0.99f;
    if (filters & 4) p.typical_p = 0.99f;
    if (filters & 8) p.min_p = 1e-3f;
    for (int32_t k = 0; k < N; k++) logits[k] = rest;
    logits[N / 2] = logits[N - 1] = top;
    CHECK_OK(pe_sampler_pick(s, &p, logits, NULL, i, NULL, 0, &got, &err), err);
    bool best = got.id == N - 1 || got.id == N / 2;
    if (top > 1 || i % 6 < 2) CHECK(best);
    CHECK(got.id >= 0 && got.id < N);
  }
  pe_sampler_close(s);
}

static void bad_rows(void) {
  static const float odd[] = {NAN, INFINITY};
  pe_sampler *s = open_as(NULL, 5000);
  pe_error err = {0};
  pe_choice got;
  for (int round = 0; round < 50; round++) {
    random_logits(logits, 5000);
    logits[below(5000)] = odd[round % 2];
    pe_sampling p = random_sampling(5000);
    CHECK_FAILS(pe_sampler_pick(s, &p, logits, NULL, 3, NULL, 0, &got, &err), PE_EFORMAT, err,
                "at position 3");
  }
  for (int32_t i = 0; i < 5000; i++) logits[i] = -INFINITY;
  pe_sampling p = random_sampling(5000);
  CHECK_FAILS(pe_sampler_pick(s, &p, logits, NULL, 3, NULL, 0, &got, &err), PE_EFORMAT, err,
              "at position 3");
  pe_sampler_close(s);
}

static const check_test tests[] = {
    {"draws_as_the_slow_one", draws_as_the_slow_one},
    {"instruction_sets_agree", instruction_sets_agree},
    {"threads_agree", threads_agree},
    {"frequencies", frequencies},
    {"ties", ties},
    {"adjusted_rows", adjusted_rows},
    {"masks", masks},
    {"adjusted_masks", adjusted_masks},
    {"bad_masks", bad_masks},
    {"extremes", extremes},
    {"bad_rows", bad_rows},
};
CHECK_MAIN("sampler_wide", tests)
