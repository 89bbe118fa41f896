/* test_sampler.c - the sampler against a naive one that sorts everything, and its draws against the
 * distribution. */
#include "sampler_help.h"

enum { MOST = 700 };

static int32_t pick_at(pe_sampler *s, const pe_sampling *p, const float *x, int64_t position) {
  pe_choice c;
  pe_error err = {0};
  CHECK_OK(pe_sampler_pick(s, p, x, NULL, position, NULL, 0, &c, &err), err);
  return c.id;
}

/* ---- the naive one: everything sorted, every filter a pass over the whole list ------------- */

typedef struct item {
  double logit, p, key;
  int32_t id;
} item;

static int by_logit(const void *a, const void *b) {
  const item *x = a, *y = b;
  return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : x->id - y->id;
}
static int by_key(const void *a, const void *b) {
  const item *x = a, *y = b;
  return x->key != y->key ? (x->key < y->key ? -1 : 1) : by_logit(a, b);
}

static void normalize(item *it, int32_t n) {
  double total = 0, top = it[0].logit;
  for (int32_t i = 0; i < n; i++) top = it[i].logit > top ? it[i].logit : top;
  for (int32_t i = 0; i < n; i++) total += it[i].p = exp(it[i].logit - top);
  for (int32_t i = 0; i < n; i++) it[i].p /= total;
}

static int32_t naive_top_p(item *it, int32_t n, double p) {
  double reached = 0;
  normalize(it, n);
  for (int32_t i = 0; i < n; i++)
    if ((reached += it[i].p) >= p) return i + 1;
  return n;
}

static int32_t naive_typical(item *it, int32_t n, double p) {
  double entropy = 0, reached = 0;
  int32_t best = it[0].id, count = 0, i;
  normalize(it, n);
  for (i = 0; i < n; i++) entropy -= it[i].p * log(it[i].p);
  for (i = 0; i < n; i++) it[i].key = fabs(-log(it[i].p) - entropy);
  qsort(it, (size_t)n, sizeof *it, by_key);
  do reached += it[count++].p;
  while (count < n && reached < p);
  for (i = 0; it[i].id != best; i++) {}
  if (i >= count) it[count++] = it[i];
  qsort(it, (size_t)count, sizeof *it, by_logit);
  return count;
}

static int32_t naive_xtc(item *it, int32_t n, double threshold) {
  int32_t above = 0;
  normalize(it, n);
  while (above < n && it[above].p >= threshold) above++;
  if (above < 2) return n;
  memmove(it, it + above - 1, (size_t)(n - above + 1) * sizeof *it);
  return n - above + 1;
}

/* What is left of x[n] (already biased and penalized), best first. */
static int32_t naive_kept(const pe_sampling *p, const double *x, int32_t n, double xtc_draw,
                          item *it) {
  int32_t count = 0;
  for (int32_t i = 0; i < n; i++)
    if (x[i] > -INFINITY) it[count++] = (item){.logit = x[i], .id = i};
  qsort(it, (size_t)count, sizeof *it, by_logit);
  if (p->top_k && p->top_k < count) count = p->top_k;
  if (p->top_p < 1) count = naive_top_p(it, count, (double)p->top_p);
  if (p->min_p > 0)
    while (count > 1 && it[count - 1].logit - it[0].logit < log((double)p->min_p)) count--;
  if (p->typical_p < 1) count = naive_typical(it, count, (double)p->typical_p);
  if (xtc_draw < (double)p->xtc_probability) count = naive_xtc(it, count, (double)p->xtc_threshold);
  return count;
}

static void naive_adjust(const pe_sampling *p, const float *logits, const pe_history *h, int32_t n,
                         double *x) {
  for (int32_t i = 0; i < n; i++) x[i] = (double)logits[i];
  for (int32_t i = 0; i < p->bias_count; i++)
    x[p->bias[i].id] = (double)(float)(x[p->bias[i].id] + (double)p->bias[i].bias);
  for (int32_t i = 0; i < p->banned_count; i++) x[p->banned[i]] = -INFINITY;
  int32_t from =
      p->penalty_window && h->count > p->penalty_window ? h->count - p->penalty_window : 0;
  for (int32_t id = 0; id < n; id++) {
    int32_t all = 0, made = 0;
    for (int32_t i = from; i < h->count; i++)
      all += h->token[i] == id, made += h->token[i] == id && i >= h->prompt;
    if (all)
      x[id] =
          x[id] > 0 ? x[id] / (double)p->repetition_penalty : x[id] * (double)p->repetition_penalty;
    if (made) x[id] -= (double)p->presence_penalty + (double)p->frequency_penalty * made;
    x[id] = (double)(float)x[id];
  }
}

/* ---- random requests ----------------------------------------------------------------------- */

typedef struct scene {
  int32_t n;
  float logits[MOST];
  pe_sampling p;
  pe_logit_bias bias[4];
  int32_t banned[4], token[60];
  pe_history history;
} scene;

static void random_scene(scene *c) {
  c->n = 2 + below(MOST - 2);
  double scale = 0.5 + 5 * unit();
  for (int32_t i = 0; i < c->n; i++)
    c->logits[i] =
        (float)(floor(scale * 16 * (unit() + unit() + unit() - 1.5)) / 16); /* with ties */
  if (below(4) == 0) c->logits[below(c->n)] = -INFINITY;
  c->p = pe_sampling_defaults();
  c->p.seed = (uint64_t)below(1 << 30);
  c->p.temperature = below(5) ? (float)(0.1 + 2 * unit()) : 0;
  if (below(2)) c->p.top_k = 1 + below(below(2) ? 10 : 2 * c->n);
  if (below(2)) c->p.top_p = (float)(1e-6 + 0.99 * unit());
  if (below(3) == 0) c->p.min_p = (float)(unit() * unit());
  if (below(3) == 0) c->p.typical_p = (float)(1e-6 + 0.9 * unit());
  if (below(3) == 0)
    c->p.xtc_probability = (float)unit(), c->p.xtc_threshold = (float)(0.5 * unit() * unit());
  if (below(3) == 0) c->p.repetition_penalty = (float)(0.5 + 1.5 * unit());
  if (below(3) == 0)
    c->p.presence_penalty = (float)(4 * unit() - 2),
    c->p.frequency_penalty = (float)(unit() - 0.25);
  if (below(2)) c->p.penalty_window = below(50);
  c->p.bias = c->bias, c->p.bias_count = below(5), c->p.banned = c->banned,
  c->p.banned_count = below(c->n > 8 ? 5 : 2);
  for (int32_t i = 0; i < 4; i++)
    c->bias[i] = (pe_logit_bias){below(c->n), (float)(8 * unit() - 4)}, c->banned[i] = below(c->n);
  for (int32_t i = 0; i < 60; i++) c->token[i] = below(c->n);
  c->history = (pe_history){c->token, below(61), below(30)};
  if (c->history.prompt > c->history.count) c->history.prompt = c->history.count;
}

/* The draw is checked by what it may be: the naive order need not be ours, so the token must be
 * among those kept, and over many positions every token of some weight must come. Greedy and single
 * choices are exact. */
static void against_naive(void) {
  static scene c;
  static item it[MOST];
  static double x[MOST];
  int exact = 0;
  for (int round = 0; round < 3000 && !check_failures; round++) {
    random_scene(&c);
    pe_sampler *s = open_sampler(c.n);
    pe_choice got;
    pe_error err = {0};
    CHECK_OK(pe_sampling_check(&c.p, c.n, &err), err);
    CHECK_OK(pe_sampler_pick(s, &c.p, c.logits, &c.history, round, NULL, 0, &got, &err), err);
    naive_adjust(&c.p, c.logits, &c.history, c.n, x);
    int32_t count = c.p.temperature == 0
                        ? 1
                        : naive_kept(&c.p, x, c.n, pe_sampler_uniform(c.p.seed, round, 1), it);
    if (c.p.temperature == 0) {
      for (int32_t i = it[0].id = 0; i < c.n; i++)
        if (x[i] > x[it[0].id]) it[0].id = i;
    }
    bool found = false;
    for (int32_t i = 0; i < count; i++) found |= it[i].id == got.id;
    if (!found)
      check_failures++,
          printf("    round %d: token %d is not among the %d kept\n", round, got.id, count);
    exact += count == 1;
    pe_sampler_close(s);
  }
  CHECK(exact > 300); /* the comparison was sharp often enough */
}

/* The set that comes over many draws is exactly the set that the filters keep. */
static void kept_sets(void) {
  static item it[MOST];
  static double x[MOST];
  for (int round = 0; round < 60 && !check_failures; round++) {
    int32_t n = 12;
    float logits[12];
    bool came[12] = {false}, want[12] = {false};
    for (int32_t i = 0; i < n; i++) x[i] = (double)(logits[i] = (float)(floor(unit() * 24) / 8));
    pe_sampling p = pe_sampling_defaults();
    p.temperature = 2;
    if (below(2)) p.top_k = 1 + below(12);
    if (below(2)) p.top_p = (float)unit();
    if (below(2)) p.min_p = (float)unit();
    if (below(2)) p.typical_p = (float)unit();
    if (below(2)) p.xtc_probability = 1, p.xtc_threshold = 0.1f;
    pe_sampler *s = open_sampler(n);
    for (int64_t at = 0; at < 3000; at++) came[pick_at(s, &p, logits, at)] = true;
    int32_t count = naive_kept(&p, x, n, 0, it);
    for (int32_t i = 0; i < count; i++) want[it[i].id] = true;
    for (int32_t i = 0; i < n; i++) CHECK_INT(came[i], want[i]);
    pe_sampler_close(s);
  }
}

/* Chi-square of the draws against the distribution that should be drawn from; with 9 degrees of
 * freedom a value above 33.7 comes once in 10,000 times. Seeds are fixed. */
static void follows(const pe_sampling *p, const float *x, int32_t n, const double *want) {
  enum { DRAWS = 40000 };
  int32_t seen[16] = {0};
  double chi = 0;
  pe_sampler *s = open_sampler(n);
  for (int64_t at = 0; at < DRAWS; at++) seen[pick_at(s, p, x, at)]++;
  for (int32_t i = 0; i < n; i++) {
    double e = want[i] * DRAWS;
    if (e > 0)
      chi += (seen[i] - e) * (seen[i] - e) / e;
    else
      CHECK_INT(seen[i], 0);
  }
  if (chi > 33.7) check_failures++, printf("    chi-square is %g over %d tokens\n", chi, n);
  pe_sampler_close(s);
}

static void distribution(void) {
  const float x[10] = {1, 0.5f, -1, 2, 0, 1.5f, -0.5f, 0.25f, 1.75f, -2};
  const struct {
    float temperature, min_p;
    int32_t top_k;
    uint64_t seed;
  } cases[] = {{1, 0, 0, 1}, {0.5f, 0, 0, 2}, {3, 0, 0, 3}, {1, 0, 4, 4}, {2, 0.2f, 0, 5}};
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    pe_sampling p = pe_sampling_defaults();
    p.temperature = cases[k].temperature, p.min_p = cases[k].min_p, p.top_k = cases[k].top_k,
    p.seed = cases[k].seed;
    double want[10], total = 0;
    item it[10];
    double wide[10];
    for (int i = 0; i < 10; i++) wide[i] = (double)x[i], want[i] = 0;
    int32_t count = naive_kept(&p, wide, 10, 1, it);
    for (int32_t i = 0; i < count; i++)
      total += want[it[i].id] = exp(it[i].logit / (double)p.temperature);
    for (int i = 0; i < 10; i++) want[i] /= total;
    follows(&p, x, 10, want);
  }
}

/* Neighbouring seeds and positions are independent: pairs are uniform over a 4 x 4 table. */
static void uniform(void) {
  enum { DRAWS = 64000 };
  int seeds[16] = {0}, positions[16] = {0}, salts[16] = {0};
  for (int i = 0; i < DRAWS; i++) {
    double a = pe_sampler_uniform((uint64_t)i, 5, 0);
    CHECK(a >= 0 && a < 1);
    seeds[(int)(a * 4) * 4 + (int)(pe_sampler_uniform((uint64_t)i + 1, 5, 0) * 4)]++;
    positions[(int)(pe_sampler_uniform(9, i, 0) * 4) * 4 +
              (int)(pe_sampler_uniform(9, i + 1, 0) * 4)]++;
    salts[(int)(a * 4) * 4 + (int)(pe_sampler_uniform((uint64_t)i, 5, 1) * 4)]++;
  }
  for (int i = 0; i < 16; i++) {
    CHECK_NEAR(seeds[i], DRAWS / 16, 300);
    CHECK_NEAR(positions[i], DRAWS / 16, 300);
    CHECK_NEAR(salts[i], DRAWS / 16, 300);
  }
}

static void ties_and_greedy(void) {
  const float x[6] = {1, 3, 3, 2, 3, -INFINITY};
  pe_sampler *s = open_sampler(6);
  pe_sampling p = pe_sampling_defaults();
  p.temperature = 0;
  CHECK_INT(pick_at(s, &p, x, 0), 1);
  p.temperature = 1, p.top_k = 2; /* of three equal ones the two lowest ids */
  for (int64_t at = 0; at < 200; at++)
    CHECK(pick_at(s, &p, x, at) == 1 || pick_at(s, &p, x, at) == 2);
  p.top_k = 0, p.top_p = 0; /* the best one alone */
  for (int64_t at = 0; at < 50; at++) CHECK_INT(pick_at(s, &p, x, at), 1);
  p.top_p = 1, p.min_p = 1;
  for (int64_t at = 0; at < 200; at++) CHECK_NEAR(x[pick_at(s, &p, x, at)], 3, 0);
  p.min_p = 0, p.temperature = 1e-30f;
  for (int64_t at = 0; at < 200; at++) CHECK_NEAR(x[pick_at(s, &p, x, at)], 3, 0);
  p.temperature = 3e38f;
  for (int64_t at = 0; at < 200; at++) CHECK(pick_at(s, &p, x, at) != 5);
  pe_sampler_close(s);
}

static void bans_and_bias(void) {
  const float x[4] = {4, 3, 2, 1};
  pe_sampler *s = open_sampler(4);
  pe_sampling p = pe_sampling_defaults();
  pe_logit_bias bias[] = {{3, 2}, {3, 3}};
  const int32_t first[] = {0}, all[] = {0, 1, 2, 3};
  pe_choice c;
  pe_error err = {0};
  p.temperature = 0, p.bias = bias, p.bias_count = 2;
  CHECK_INT(pick_at(s, &p, x, 0), 3); /* both count */
  p.bias_count = 0;
  CHECK_OK(pe_sampler_pick(s, &p, x, NULL, 0, first, 1, &c, &err), err);
  CHECK_INT(c.id, 1);
  p.banned = all + 1, p.banned_count = 1;
  CHECK_OK(pe_sampler_pick(s, &p, x, NULL, 0, first, 1, &c, &err), err);
  CHECK_INT(c.id, 2);
  CHECK_FAILS(pe_sampler_pick(s, &p, x, NULL, 17, all, 4, &c, &err), PE_ENOTOKEN, err,
              "leave no token at position 17");
  CHECK_INT(pick_at(s, &p, x, 0), 0); /* the scratch is clean */
  pe_sampler_close(s);
}

static void penalties(void) {
  const float x[4] = {2, 1.9f, -1, 0};
  const int32_t token[] = {0, 2, 1, 1};
  pe_sampler *s = open_sampler(4);
  pe_sampling p = pe_sampling_defaults();
  pe_choice c;
  pe_error err = {0};
  pe_history h = {token, 4, 2};
  p.temperature = 0, p.repetition_penalty = 2;
  CHECK_OK(pe_sampler_pick(s, &p, x, &h, 0, NULL, 0, &c, &err), err);
  CHECK_INT(c.id, 0); /* 1, 0.95, -2, 0 */
  p.penalty_window = 2;
  CHECK_OK(pe_sampler_pick(s, &p, x, &h, 0, NULL, 0, &c, &err), err);
  CHECK_INT(c.id, 0);
  p.repetition_penalty = 1, p.penalty_window = 0,
  p.presence_penalty = -1; /* the prompt's tokens do not count */
  CHECK_OK(pe_sampler_pick(s, &p, x, &h, 0, NULL, 0, &c, &err), err);
  CHECK_INT(c.id, 1);
  p.presence_penalty = 1.5f, p.frequency_penalty = -0.75f; /* 1.9 - 1.5 + 2 * 0.75 */
  CHECK_OK(pe_sampler_pick(s, &p, x, &h, 0, NULL, 0, &c, &err), err);
  CHECK_INT(c.id, 0);
  p.penalty_window = 1, p.presence_penalty = 0, p.frequency_penalty = -0.09f;
  CHECK_OK(pe_sampler_pick(s, &p, x, &h, 0, NULL, 0, &c, &err), err);
  CHECK_INT(c.id, 0);
  p.penalty_window = 2;
  CHECK_OK(pe_sampler_pick(s, &p, x, &h, 0, NULL, 0, &c, &err), err);
  CHECK_INT(c.id, 1);
  pe_sampler_close(s);
}

static void logprobs(void) {
  float x[50];
  for (int i = 0; i < 50; i++) x[i] = (float)((i * 7) % 25) / 4; /* every value twice */
  pe_sampler *s = open_sampler(50);
  pe_sampling p = pe_sampling_defaults();
  pe_logit_bias bias = {13, 100};
  pe_choice c;
  pe_error err = {0};
  double total = 0;
  for (int i = 0; i < 50; i++) total += exp((double)x[i]);
  p.bias = &bias, p.bias_count = 1, p.top_logprobs = 20;
  CHECK_OK(pe_sampler_pick(s, &p, x, NULL, 0, NULL, 0, &c, &err), err);
  CHECK_INT(c.id, 13);
  CHECK_NEAR(c.logprob, (double)x[13] - log(total),
             1e-6); /* of the raw logits, whatever the bias */
  CHECK_INT(c.top_count, 20);
  for (int i = 0; i < 20; i++) {
    CHECK_NEAR(c.top_logprob[i], (24 - i / 2) / 4.0 - log(total), 1e-6);
    CHECK_NEAR(x[c.top_id[i]], (24 - i / 2) / 4.0, 0);
    if (i % 2) CHECK(c.top_id[i] > c.top_id[i - 1]);
  }
  p.top_logprobs = 0;
  CHECK_OK(pe_sampler_pick(s, &p, x, NULL, 0, NULL, 0, &c, &err), err);
  CHECK_INT(c.top_count, 0);
  CHECK_NEAR(c.logprob, (double)x[13] - log(total), 1e-6);
  p.top_logprobs = -1;
  CHECK_OK(pe_sampler_pick(s, &p, x, NULL, 0, NULL, 0, &c, &err), err);
  CHECK_NEAR(c.logprob, 0, 0);
  pe_sampler_close(s);
  s = open_sampler(3);
  p = pe_sampling_defaults(), p.top_logprobs = 5;
  const float few[3] = {0, -INFINITY, 0};
  CHECK_OK(pe_sampler_pick(s, &p, few, NULL, 0, NULL, 0, &c, &err), err);
  CHECK_INT(c.top_count, 2);
  CHECK_NEAR(c.logprob, -log(2), 1e-6);
  pe_sampler_close(s);
}

static void bad_logits(void) {
  pe_sampler *s = open_sampler(3);
  pe_sampling p = pe_sampling_defaults();
  pe_choice c;
  pe_error err = {0};
  const float rows[3][3] = {{0, NAN, 1}, {-INFINITY, -INFINITY, -INFINITY}, {0, INFINITY, 0}};
  for (int i = 0; i < 3; i++)
    for (int t = 0; t < 2; t++) {
      p.temperature = (float)t;
      CHECK_FAILS(pe_sampler_pick(s, &p, rows[i], NULL, 12, NULL, 0, &c, &err), PE_EFORMAT, err,
                  "at position 12 are NaN or all -inf");
    }
  pe_sampler_close(s);
}

typedef struct refusal {
  const char *field, *part;
  size_t at; /* a float of pe_sampling */
  float value;
} refusal;

static void refusals(void) {
#define FIELD(f) offsetof(pe_sampling, f)
  const refusal bad[] = {
      {"temperature", "got -0.5", FIELD(temperature), -0.5f},
      {"temperature", "got nan", FIELD(temperature), NAN},
      {"temperature", "got inf", FIELD(temperature), INFINITY},
      {"top_p", "got 1.5", FIELD(top_p), 1.5f},
      {"top_p", "got -0.25", FIELD(top_p), -0.25f},
      {"top_p", "got nan", FIELD(top_p), NAN},
      {"top_p", "got 0", FIELD(top_p), 0},
      {"min_p", "got -1", FIELD(min_p), -1},
      {"min_p", "got inf", FIELD(min_p), INFINITY},
      {"typical_p", "got 2", FIELD(typical_p), 2},
      {"xtc_probability", "got -1", FIELD(xtc_probability), -1},
      {"xtc_threshold", "got nan", FIELD(xtc_threshold), NAN},
      {"repetition_penalty", "got 0", FIELD(repetition_penalty), 0},
      {"repetition_penalty", "got -1", FIELD(repetition_penalty), -1},
      {"repetition_penalty", "got inf", FIELD(repetition_penalty), INFINITY},
      {"presence_penalty", "got -inf", FIELD(presence_penalty), -INFINITY},
      {"frequency_penalty", "got nan", FIELD(frequency_penalty), NAN},
  };
  pe_error err = {0};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    pe_sampling p = pe_sampling_defaults();
    CHECK_OK(pe_sampling_check(&p, 10, &err), err);
    memcpy((char *)&p + bad[i].at, &bad[i].value, sizeof(float));
    CHECK_FAILS(pe_sampling_check(&p, 10, &err), PE_EARG, err, bad[i].part);
    CHECK_STR(err.field ? err.field : "", bad[i].field);
  }
  pe_sampling p = pe_sampling_defaults();
  p.top_k = -1;
  CHECK_FAILS(pe_sampling_check(&p, 10, &err), PE_EARG, err, "top_k must be 0 or more, got -1");
  p.top_k = 0, p.penalty_window = -3;
  CHECK_FAILS(pe_sampling_check(&p, 10, &err), PE_EARG, err,
              "penalty_window must be 0 or more, got -3");
  p.penalty_window = 0, p.top_logprobs = 21;
  CHECK_FAILS(pe_sampling_check(&p, 10, &err), PE_EARG, err,
              "top_logprobs must be between 0 and 20, got 21");
  p.top_logprobs = 20;
  pe_logit_bias bias = {10, 1};
  const int32_t banned = -1;
  p.bias = &bias, p.bias_count = 1;
  CHECK_FAILS(pe_sampling_check(&p, 10, &err), PE_EARG, err,
              "logit_bias: token id must be between 0 and 9, got 10");
  bias = (pe_logit_bias){9, INFINITY};
  CHECK_FAILS(pe_sampling_check(&p, 10, &err), PE_EARG, err,
              "logit_bias of token 9 must be finite, got inf");
  p.bias_count = 0, p.banned = &banned, p.banned_count = 1;
  CHECK_FAILS(pe_sampling_check(&p, 10, &err), PE_EARG, err,
              "banned: token id must be between 0 and 9, got -1");
  pe_sampler *s;
  CHECK_FAILS(pe_sampler_open(0, &s, &err), PE_EARG, err, "vocabulary must be 1 or more, got 0");
}

static void memory_runs_out(void) {
  for (int64_t n = 1; n <= 5; n++) {
    pe_sampler *s = NULL;
    pe_error err = {0};
    pe_alloc_fail_at(n);
    CHECK_FAILS(pe_sampler_open(100, &s, &err), PE_ENOMEM, err, "sampler");
    pe_alloc_fail_at(0);
    CHECK(s == NULL);
  }
}

/* The last token is found wherever the vocabulary ends in the blocks that searches skip. */
static void last_token(void) {
  static const int32_t sizes[] = {1, 2, 255, 256, 257, 258, 511, 512, 513, 514};
  static float x[MOST];
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const int32_t n = sizes[i], last = n - 1;
    pe_sampler *s = open_sampler(n);
    for (int32_t k = 0; k < n; k++) x[k] = k == last ? 40 : -0.001f * (float)k;
    pe_sampling p = pe_sampling_defaults();
    CHECK_INT(pick_at(s, &p, x, 0), last);
    p.top_k = 2, p.min_p = 0.1f;
    CHECK_INT(pick_at(s, &p, x, 0), last);
    p.temperature = 0;
    CHECK_INT(pick_at(s, &p, x, 0), last);
    p.bias = &(pe_logit_bias){last, -90}, p.bias_count = 1;
    CHECK_INT(pick_at(s, &p, x, 0), 0);
    x[last] = -40, p.bias = &(pe_logit_bias){last, 90};
    CHECK_INT(pick_at(s, &p, x, 0), last);
    pe_sampler_close(s);
  }
}

static const check_test tests[] = {
    {"against_naive", against_naive},
    {"kept_sets", kept_sets},
    {"distribution", distribution},
    {"uniform", uniform},
    {"ties_and_greedy", ties_and_greedy},
    {"bans_and_bias", bans_and_bias},
    {"penalties", penalties},
    {"logprobs", logprobs},
    {"bad_logits", bad_logits},
    {"refusals", refusals},
    {"memory_runs_out", memory_runs_out},
    {"last_token", last_token},
};
CHECK_MAIN("sampler", tests)
