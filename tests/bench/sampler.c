/* sampler.c - microseconds of one draw: the median of several, for the vocabularies of common
 * models and two shapes of logits.
 *
 *   sampler [THREADS]     1, the default: in CPU time; more share the passes of a draw
 *
 * Peaked: normal with a deviation of 2.5 and three tokens that carry most of the weight. Flat: even
 * between 0 and 1, the worst case, since filters keep most of the vocabulary. Then all combinations
 * of parameters, and the slowest. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/batch/sampler.h"

enum { MOST = 262144, HISTORY = 4096, RUNS = 41, FEW_RUNS = 9 };

static uint64_t state = 88172645463325252u;
static double unit(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (double)(state >> 11) * 0x1p-53;
}

static pe_pool *pool;

static double now_us(void) {
  struct timespec t;
  clock_gettime(pe_pool_threads(pool) > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void peaked(float *x, int32_t n) {
  for (int32_t i = 0; i < n; i++)
    x[i] = (float)(2.5 * sqrt(-2 * log(1 - unit())) * cos(6.283185307179586 * unit()));
  x[777] = 14, x[778] = 13, x[779] = 12.5f;
}

static void flat(float *x, int32_t n) {
  for (int32_t i = 0; i < n; i++) x[i] = (float)unit();
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(pe_sampler *s, const pe_sampling *p, float *x, const pe_history *h, int runs) {
  double took[RUNS];
  pe_choice choice;
  pe_error err;
  for (int i = 0; i < runs; i++) {
    double start = now_us();
    if (pe_sampler_pick_own(s, p, x, h, i, NULL, 0, &choice, &err)) exit(1);
    took[i] = now_us() - start;
  }
  qsort(took, (size_t)runs, sizeof *took, by_value);
  return took[runs / 2];
}

static const pe_logit_bias bias[] = {{5, 1}, {500, -1}, {5000, 2}};
static const int32_t banned[] = {7, 70, 700, 7000};

typedef struct setting {
  const char *name;
  float temperature, top_p, min_p, typical_p, xtc;
  int32_t top_k;
  float repetition, presence, frequency;
  int32_t logprobs; /* alternatives, and 1 */
  bool changes;     /* logit_bias and banned tokens */
  int32_t allowed;  /* of 1024 tokens, evenly; 0: no mask */
} setting;

static const setting settings[] = {
    {.name = "greedy"},
    {"greedy, logprobs", .logprobs = 1},
    {"greedy, top_logprobs 20", .logprobs = 21},
    {"greedy, bias, bans", .changes = true},
    {"greedy, repetition 1.1", .repetition = 1.1f},
    {"greedy, presence, frequency", .presence = 0.5f, .frequency = 0.1f},
    {"temperature 1", .temperature = 1},
    {"temperature 0.7", .temperature = 0.7f},
    {"top_k 20", 1, .top_k = 20},
    {"top_k 200", 1, .top_k = 200},
    {"top_k 10000", 1, .top_k = 10000},
    {"top_p 0.5", 1, .top_p = 0.5f},
    {"top_p 0.95", 1, .top_p = 0.95f},
    {"top_p 0.95, t 0.7", 0.7f, .top_p = 0.95f},
    {"top_p 0.999", 1, .top_p = 0.999f},
    {"min_p 0.05", 1, .min_p = 0.05f},
    {"min_p 0.05, t 1.5", 1.5f, .min_p = 0.05f},
    {"typical_p 0.9", 1, .typical_p = 0.9f},
    {"xtc", 1, .xtc = 1},
    {"top_k 20, top_p 0.95, t 0.6", 0.6f, .top_p = 0.95f, .top_k = 20},
    {"top_k 10000, top_p 0.9", 1, 0.9f, .top_k = 10000},
    {"top_p 0.95, min_p 0.05", 1, .top_p = 0.95f, .min_p = 0.05f},
    {"top_p 0.95, typical_p 0.9", 1, 0.95f, .typical_p = 0.9f},
    {"greedy, mask of 0.1 %", .allowed = 1},
    {"greedy, mask of 90 %", .allowed = 922},
    {"top_p 0.95, t 0.7, mask of 0.1 %", 0.7f, .top_p = 0.95f, .allowed = 1},
    {"top_p 0.95, t 0.7, mask of 2.5 %", 0.7f, .top_p = 0.95f, .allowed = 26},
    {"top_p 0.95, t 0.7, mask of 90 %", 0.7f, .top_p = 0.95f, .allowed = 922},
    {"top_k, top_p, min_p, penalties", 0.7f, 0.8f, 0.05f, .top_k = 20, .repetition = 1.05f,
     .presence = 1.5f},
    {"all filters, t 0.7", 0.7f, 0.95f, 0.01f, 0.9f, 0.5f, .top_k = 10000},
    {"everything, top_logprobs 20", 0.7f, 0.95f, 0.01f, 0.9f, 0.5f, 10000, 1.1f, 0.5f, 0.1f, 21,
     true, 0},
};

/* The best tokens are in it. */
static const uint32_t *mask_of(int32_t allowed) {
  static uint32_t allow[MOST / 32];
  for (int32_t i = 0; i < MOST; i++) {
    bool in = i * 389 % 1024 < allowed || (i >= 777 && i < 780);
    uint32_t bit = UINT32_C(1) << i % 32;
    allow[i / 32] = in ? allow[i / 32] | bit : allow[i / 32] & ~bit;
  }
  return allow;
}

static pe_sampling sampling(const setting *c) {
  pe_sampling p = pe_sampling_defaults();
  if (c->allowed) p.allow = mask_of(c->allowed);
  p.temperature = c->temperature, p.min_p = c->min_p, p.top_k = c->top_k;
  if (c->top_p > 0) p.top_p = c->top_p;
  if (c->typical_p > 0) p.typical_p = c->typical_p;
  if (c->repetition > 0) p.repetition_penalty = c->repetition;
  p.xtc_probability = c->xtc, p.xtc_threshold = 1e-3f;
  p.presence_penalty = c->presence, p.frequency_penalty = c->frequency;
  p.top_logprobs = c->logprobs - 1;
  if (c->changes) {
    p.bias = bias, p.bias_count = sizeof bias / sizeof *bias;
    p.banned = banned, p.banned_count = sizeof banned / sizeof *banned;
  }
  return p;
}

/* One value of each parameter, off if its bit is not set. */
static pe_sampling combination(int bits) {
  setting c = {.temperature = bits & 1 ? 0.7f : 1};
  if (bits & 2) c.top_p = 0.95f;
  if (bits & 4) c.min_p = 0.01f;
  if (bits & 8) c.typical_p = 0.9f;
  if (bits & 16) c.xtc = 1;
  if (bits & 32) c.repetition = 1.1f, c.presence = 0.5f, c.frequency = 0.1f;
  if (bits & 64) c.logprobs = 21;
  c.changes = bits & 128;
  return sampling(&c);
}

/* Prints how many combinations are within the aim, and the slowest. */
static void combinations(pe_sampler *s, float *x, const char *shape, const pe_history *h) {
  static const char *const names[] = {"t 0.7", "top_p 0.95", "min_p 0.01", "typical_p 0.9",
                                      "xtc",   "penalties",  "logprobs",   "bias, bans"};
  static const int32_t limits[] = {0, 20, 10000, 100000};
  enum { ALL = 256, LIMITS = sizeof limits / sizeof *limits, AIM = 200 };
  int slowest = 0, within = 0;
  double most = 0;
  for (int i = 0; i < ALL * LIMITS; i++) {
    pe_sampling p = combination(i % ALL);
    p.top_k = limits[i / ALL];
    double took = median(s, &p, x, h, FEW_RUNS);
    within += took < AIM;
    if (took > most) most = took, slowest = i;
  }
  printf("%s: %d of %d combinations below %d us; %.0f us for top_k %d", shape, within, ALL * LIMITS,
         AIM, most, limits[slowest / ALL]);
  for (int b = 0; b < 8; b++)
    if (slowest >> b & 1) printf(", %s", names[b]);
  printf("\n");
}

int main(int argc, char **argv) {
  static const int32_t sizes[] = {32000, 151936, 262144};
  enum { SIZES = sizeof sizes / sizeof *sizes };
  static float x[2 * SIZES][MOST];
  static int32_t token[HISTORY];
  pe_sampler *s[SIZES];
  pe_error err;
  if (pe_pool_open(argc > 1 ? atoi(argv[1]) : 1, false, &pool, &err)) return 1;
  for (int i = 0; i < SIZES; i++) {
    if (pe_sampler_open(sizes[i], &s[i], &err)) return 1;
    pe_sampler_share(s[i], pool);
    peaked(x[2 * i], sizes[i]);
    flat(x[2 * i + 1], sizes[i]);
  }
  for (int32_t i = 0; i < HISTORY; i++) token[i] = i * 37 % sizes[0];
  const pe_history history = {token, HISTORY, HISTORY / 4};
  printf("%-32s", "sampling, microseconds a draw");
  for (int i = 0; i < SIZES; i++) printf(" %5dk %8s", sizes[i] / 1000, "");
  printf("\n%-32s", "");
  for (int i = 0; i < SIZES; i++) printf(" %6s %8s", "peaked", "flat");
  printf("\n");
  for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
    pe_sampling p = sampling(&settings[k]);
    printf("%-32s", settings[k].name);
    for (int i = 0; i < 2 * SIZES; i++)
      printf(i % 2 ? " %8.0f" : " %6.0f", median(s[i / 2], &p, x[i], &history, RUNS));
    printf("\n");
  }
  combinations(s[1], x[2], "peaked", &history);
  combinations(s[1], x[3], "flat", &history);
  for (int i = 0; i < SIZES; i++) pe_sampler_close(s[i]);
  pe_pool_close(pool);
  return 0;
}
