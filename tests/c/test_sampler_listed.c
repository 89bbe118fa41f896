/* test_sampler_listed.c - picks from lists against picks from whole rows, bit for bit, and with
 * top_p and min_p against their definition in double precision. What a pick may not read is NaN. */
#include "runtime/batch/sampler_listed.h"
#include "sampler_help.h"

#include "kernels/scan.h"

#include <math.h>

enum { MOST = 40000, HISTORY = 600, BANS = 6 };
static const int32_t sizes[] = {3, 300, 1000, 6000, 8192, 8193, 20000, 32001, MOST};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* A row of a wide head: a few high logits, sometimes neighbours, ties, and tokens that are out. */
static void fill_line(float *x, int32_t n) {
  const float step = below(2) ? 0.25f : 0; /* of ties */
  const int32_t low = below(n), masked = below(3) ? 0 : n / 3;
  const float heat = below(3) ? 9 : 3;
  for (int32_t i = 0; i < n; i++) {
    x[i] = (float)(unit() * 12 - 6) + (below(50) ? 0 : (float)unit() * heat);
    if (step > 0) x[i] = roundf(x[i] / step) * step;
  }
  for (int32_t i = 0; i < masked; i++) x[below(n)] = -INFINITY;
  for (int32_t i = low; i < n && i < low + 40; i++) x[i] += 5;
  /* The highest are where the sampler takes its samples, which then promise too many of them. */
  const int32_t stride = below(4) ? 0 : n / 2048 * 16;
  for (int32_t i = 0; stride && i < n; i++)
    if (i % stride < 16) x[i] += 20;
}

/* ---- one pick, in both ways ------------------------------------------------------------------ */

typedef struct pick {
  pe_sampler *s;
  pe_sampling p;
  pe_history history;
  int32_t token[HISTORY], ban[BANS], banned[BANS], bans, n;
  pe_logit_bias bias[BANS];
  float x[MOST], hidden[MOST];
} pick;

static pick k;

static void show(float *to, const float *from, int32_t id) {
  if (id >= 0 && id < k.n) to[id] = from[id];
}

/* The row with NaN where the pick must not look; id: the choice. */
static const float *hide(const pe_shortlist *list, int32_t id) {
  const bool plain = k.p.temperature > 0 && !k.p.top_k && k.p.top_p >= 1 && k.p.min_p <= 0;
  for (int32_t i = 0; i < k.n; i++)
    k.hidden[i] = plain && i / PE_SCAN_BLOCK == id / PE_SCAN_BLOCK ? k.x[i] : NAN;
  for (int32_t i = 0; i < list->count; i++) show(k.hidden, k.x, list->id[i]);
  for (int32_t i = 0; i < k.p.bias_count; i++) show(k.hidden, k.x, k.bias[i].id);
  for (int32_t i = 0; i < k.p.banned_count; i++) show(k.hidden, k.x, k.banned[i]);
  for (int32_t i = 0; i < k.bans; i++) show(k.hidden, k.x, k.ban[i]);
  for (int32_t i = 0; i < k.history.count; i++) show(k.hidden, k.x, k.token[i]);
  return k.hidden;
}

static bool same_choice(const pe_choice *a, const pe_choice *b) {
  const size_t count = (size_t)b->top_count;
  return a->id == b->id && !memcmp(&a->logprob, &b->logprob, 4) && a->top_count == b->top_count &&
         !memcmp(a->top_id, b->top_id, count * 4) &&
         !memcmp(a->top_logprob, b->top_logprob, count * 4);
}

/* From the row. */
static pe_status whole(int64_t position, pe_choice *out) {
  pe_error err;
  return pe_sampler_pick(k.s, &k.p, k.x, &k.history, position, k.ban, k.bans, out, &err);
}

/* From its list. False: the row must be read. */
static bool listed(int64_t position, int32_t id, pe_choice *out, pe_status *rc) {
  const pe_wanted w = pe_sampler_wants(&k.p, k.n, &k.history, k.bans);
  pe_shortlist list;
  pe_error err;
  if (!w.best || !pe_sampler_list(k.s, k.x, &w, &list)) return false;
  *rc = pe_sampler_pick_listed(k.s, &k.p, &list, hide(&list, id), &k.history, position, k.ban,
                               k.bans, out, &err);
  return *rc || out->id >= 0;
}

static void begin(int32_t n) {
  k.n = n, k.p = pe_sampling_defaults(), k.bans = 0, k.history = (pe_history){k.token, 0, 0};
  k.s = open_sampler(n);
  fill_line(k.x, n);
}

/* Changes, some of them of the best tokens, some of tokens that are not there. */
static void change(void) {
  pe_shortlist list = {0};
  const pe_wanted w = {.best = 8};
  pe_sampler_list(k.s, k.x, &w, &list);
  for (int i = 0; i < BANS; i++) {
    const int32_t near = list.count ? list.id[below(list.count)] : 0;
    k.bias[i] = (pe_logit_bias){below(2) ? near : below(k.n), (float)(unit() * 16 - 8)};
    k.banned[i] = below(3) ? below(k.n) : near;
    k.ban[i] = below(3) ? below(k.n + 4) : near;
  }
  if (below(2)) k.p.bias = k.bias, k.p.bias_count = 1 + below(BANS);
  if (below(3) == 0) k.p.banned = k.banned, k.p.banned_count = 1 + below(BANS);
  if (below(3) == 0) k.bans = 1 + below(BANS);
  if (below(2)) return;
  k.history.count = 1 + below(HISTORY), k.history.prompt = below(k.history.count);
  for (int32_t i = 0; i < k.history.count; i++)
    k.token[i] = list.count && below(3) == 0 ? list.id[below(list.count)] : below(k.n + 2);
  k.p.repetition_penalty = below(2) ? 1 : 0.7f + (float)unit();
  k.p.presence_penalty = below(2) ? 0 : (float)unit() * 2 - 0.5f;
  k.p.frequency_penalty = below(2) ? 0 : (float)unit();
  k.p.penalty_window = below(2) ? 0 : below(HISTORY);
}

/* Whatever follows top_k, whatever changes the logits, a list decides as the whole row does. */
static void same_bits(void) {
  int32_t lists = 0, rows = 0;
  for (int round = 0; round < 1800; round++) {
    begin(sizes[round % SIZES]);
    pe_sampling *p = &k.p;
    const int kind = below(4); /* 0: greedy, 1: no filter, else top_k */
    p->temperature = kind ? (float)unit() * 2 + 0.01f : 0, p->seed = (uint64_t)round;
    if (kind == 1 && below(3) == 0) p->temperature = 1;
    if (kind == 1 && below(8) == 0) p->temperature = below(2) ? 1e-3f : 1e4f;
    if (kind > 1 || below(2)) p->top_k = kind == 1 ? 0 : 1 + below(PE_SAMPLER_BEST);
    if (p->top_k) {
      p->top_p = below(2) ? (float)unit() * 0.99f + 0.01f : 1;
      p->min_p = below(2) ? (float)unit() * 0.3f : 0;
      p->typical_p = below(3) ? 1 : (float)unit() * 0.99f + 0.01f;
      p->xtc_probability = below(3) ? 0 : 0.5f;
    }
    p->top_logprobs = below(2) ? -1 : below(PE_MAX_TOP_LOGPROBS + 1);
    if (kind != 1 && below(2)) change();
    for (int64_t position = 0; position < 8; position++) {
      pe_choice got, want;
      pe_status rc, wanted = whole(position, &want);
      const bool is = listed(position, want.id, &got, &rc);
      lists += is, rows += !is;
      if (!is) continue;
      CHECK_INT(rc, wanted);
      CHECK(rc || same_choice(&got, &want));
    }
    pe_sampler_close(k.s);
  }
  CHECK(lists > 4 * rows);
}

/* ---- top_p and min_p ------------------------------------------------------------------------- */

typedef struct item {
  double logit, weight;
  int32_t id;
} item;

static int by_logit(const void *a, const void *b) {
  const item *x = a, *y = b;
  if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
  return x->id - y->id;
}

/* The definition. *close: rounding may decide. */
static int32_t exact_nucleus(int64_t position, bool *close) {
  static item it[MOST];
  static const double CLOSE = 3e-6;
  int32_t n = 0, kept = 0, i = 0;
  double total = 0, reached = 0, drawn = 0;
  *close = false;
  for (int32_t id = 0; id < k.n; id++)
    if (k.x[id] > -INFINITY) it[n++] = (item){(double)k.x[id], 0, id};
  qsort(it, (size_t)n, sizeof *it, by_logit);
  for (i = 0; i < n; i++) total += it[i].weight = exp(it[i].logit - it[0].logit);
  const double least = it[0].logit + log((double)k.p.min_p);
  for (; kept < n && reached < (double)k.p.top_p * total; kept++) {
    reached += it[kept].weight;
    *close |= k.p.top_p < 1 && fabs(reached / total - (double)k.p.top_p) < CLOSE;
  }
  for (i = 1; i < kept; i++) {
    *close |= k.p.min_p > 0 && fabs(it[i].logit - least) < CLOSE;
    if (it[i].logit < least) kept = i;
  }
  for (total = 0, i = 0; i < kept; i++)
    total += it[i].weight = exp((it[i].logit - it[0].logit) / (double)k.p.temperature);
  const double target = (1 - pe_sampler_uniform(k.p.seed, position, 0)) * total;
  for (i = 0; i < kept - 1; i++) {
    drawn += it[i].weight;
    *close |= fabs(drawn - target) < CLOSE * total;
    if (drawn >= target) break;
  }
  return it[i].id;
}

static void nucleus(void) {
  int32_t lists = 0, rows = 0, near = 0, differ = 0;
  for (int round = 0; round < 600; round++) {
    begin(sizes[round % SIZES]);
    k.p.temperature = below(3) ? (float)unit() * 2 + 0.05f : 1, k.p.seed = (uint64_t)round;
    k.p.top_p = below(4) ? (float)unit() * 0.98f + 0.01f : 1;
    k.p.min_p = k.p.top_p >= 1 || below(2) ? (float)pow(10, -3 * unit()) : 0;
    k.p.top_logprobs = below(2) ? -1 : below(PE_MAX_TOP_LOGPROBS + 1);
    for (int64_t position = 0; position < 8; position++) {
      pe_choice got, want;
      pe_status rc;
      bool close;
      CHECK(!whole(position, &want));
      const bool is = listed(position, -1, &got, &rc);
      lists += is, rows += !is;
      if (!is) continue;
      CHECK(!rc);
      const int32_t id = exact_nucleus(position, &close);
      near += close, differ += got.id != want.id;
      CHECK(close || got.id == id);
      CHECK(got.id != want.id || same_choice(&got, &want)); /* logprobs have the same bits */
    }
    pe_sampler_close(k.s);
  }
  CHECK(lists > rows && near * 20 < lists && differ <= near);
}

/* ---- what is wanted, and what is not there --------------------------------------------------- */

static int32_t best_for(const pe_sampling *p, int32_t n, const pe_history *h) {
  return pe_sampler_wants(p, n, h, 0).best;
}

static void wants(void) {
  enum { N = 150000 };
  const int32_t token = 1;
  const pe_history none = {0}, some = {&token, 1, 1};
  pe_sampling p = pe_sampling_defaults();
  pe_wanted w = pe_sampler_wants(&p, N, &none, 0);
  CHECK(w.best == 1 && w.sums[0].scale == 1.f && w.sums[1].scale == 0.f);
  p.temperature = 0.5f, w = pe_sampler_wants(&p, N, &none, 0);
  CHECK(w.best == 1 && w.sums[0].scale == 0.f && w.sums[1].scale == 2.f);
  p.top_logprobs = 20, w = pe_sampler_wants(&p, N, &none, 0);
  CHECK(w.best == 20 && w.sums[0].scale == 1.f && w.sums[1].scale == 2.f);
  CHECK_INT(best_for(&p, 1024, &none), 20); /* all of it */
  CHECK_INT(best_for(&p, 1025, &none), 0);  /* five stretches have five peaks */
  p.top_logprobs = -1, p.top_p = 0.9f, w = pe_sampler_wants(&p, N, &none, 0);
  CHECK(w.best == PE_SAMPLER_BEST && w.sums[0].scale == 1.f && w.sums[1].scale == 0.f);
  CHECK_INT(best_for(&p, 32000, &none), 125);
  CHECK_INT(pe_sampler_wants(&p, N, &none, 1).best, 0);
  p.typical_p = 0.9f;
  CHECK_INT(best_for(&p, N, &none), 0);
  p.typical_p = 1, p.xtc_probability = 0.1f;
  CHECK_INT(best_for(&p, N, &none), 0);
  p.top_k = 20, w = pe_sampler_wants(&p, N, &some, 0);
  CHECK(w.best == 20 && w.sums[0].scale == 0.f && w.sums[1].scale == 0.f);
  CHECK_INT(pe_sampler_wants(&p, N, &some, 3).best, 23);
  p.repetition_penalty = 1.1f;
  CHECK_INT(best_for(&p, N, &none), 20);
  CHECK_INT(best_for(&p, N, &some), 21);
  CHECK_INT(best_for(&p, N, &(pe_history){&token, 100000, 1}), 20 + PE_SAMPLER_BEST);
  CHECK_INT(best_for(&p, 20 * 256, &(pe_history){&token, 100000, 1}), 20);
  CHECK_INT(best_for(&p, 19 * 256, &some), 0);
  p.penalty_window = 7;
  CHECK_INT(best_for(&p, N, &(pe_history){&token, 100000, 1}), 27);
  p.allow = (const uint32_t *)&token;
  CHECK_INT(best_for(&p, N, &none), 0);
  p.allow = NULL, p.top_k = PE_SAMPLER_BEST + 1;
  CHECK_INT(best_for(&p, N, &none), 0);
  p.temperature = 0;
  CHECK_INT(best_for(&p, N, &none), 1);
}

static bool lists_now(void) {
  pe_choice got;
  pe_status rc = PE_OK;
  const bool is = listed(0, 0, &got, &rc);
  CHECK(!is || !rc);
  return is;
}

/* A list that does not have all that a pick depends on says so. */
static void too_short(void) {
  enum { FAR = 7919 }; /* neighbours are not the next best */
  begin(MOST);
  for (int32_t i = 0; i < k.n; i++) k.x[(int64_t)i * FAR % k.n] = (float)i * 1e-6f;
  k.p.top_p = 0.5f; /* the tokens are about equal: 20,000 of them are kept */
  CHECK(!lists_now());
  k.p.top_p = 0.001f;
  CHECK(lists_now());
  k.p.top_p = 1, k.p.min_p = 0.5f;
  CHECK(!lists_now());
  k.p.min_p = 0.9999999f;
  CHECK(lists_now());
  k.p.min_p = 0, k.p.top_k = 5, k.p.bias = k.bias, k.p.bias_count = 1; /* as many as are wanted */
  k.bias[0] = (pe_logit_bias){(int32_t)((int64_t)(k.n - 1) * FAR % k.n), -1};
  CHECK(lists_now());
  k.p.bias_count = 0, k.p.repetition_penalty = 2, k.history.count = HISTORY;
  k.p.top_k = PE_SAMPLER_BEST;
  for (int32_t i = 0; i < HISTORY; i++) k.token[i] = (int32_t)((int64_t)(k.n - 1 - i) * FAR % k.n);
  CHECK(!lists_now());
  pe_sampler_close(k.s);
}

/* In a row of twenty stretches, lists have twenty logits: bans may leave too few of them. */
static void too_many_bans(void) {
  for (int bans = 0; bans <= BANS; bans++) {
    begin(20 * PE_SCAN_PEAK);
    for (int32_t i = 0; i < k.n; i++) k.x[i] = i % PE_SCAN_PEAK == 9 ? 5 - (float)i * 1e-4f : 0;
    for (int32_t i = 0; i < bans; i++) k.ban[k.bans++] = i * PE_SCAN_PEAK + 9;
    k.p.top_k = 18;
    CHECK_INT(lists_now(), bans <= 2);
    pe_sampler_close(k.s);
  }
}

/* A token that is not listed is raised by its bias, and then penalized. */
static void raised(void) {
  for (int penalized = 0; penalized < 2; penalized++) {
    pe_choice got, want;
    pe_status rc;
    begin(20000);
    for (int32_t i = 0; i < k.n; i++) k.x[i] = i == 7000 ? 10 : i % PE_SCAN_PEAK ? 1 : 2;
    k.bias[0] = (pe_logit_bias){5, 11}, k.p.bias = k.bias, k.p.bias_count = 1;
    k.token[0] = penalized ? 5 : 6, k.history.count = 1, k.p.repetition_penalty = 2;
    k.p.temperature = 0;
    CHECK(!whole(0, &want) && listed(0, 0, &got, &rc) && !rc);
    CHECK_INT(want.id, penalized ? 7000 : 5);
    CHECK_INT(got.id, want.id);
    pe_sampler_close(k.s);
  }
}

/* Refused as from the row: nothing is left, or a change makes what is not a number. */
static void refused(void) {
  static const float bias[] = {-3e38f, 3e38f, 0, 0};
  for (int i = 0; i < 4; i++)
    for (int greedy = 0; greedy < 2; greedy++) {
      pe_choice got, want;
      pe_status rc = PE_OK;
      begin(i == 2 ? 5 : 20000);
      if (i < 2) k.x[777] = bias[i]; /* becomes infinite: the worst of all, or the best */
      k.bias[0] = (pe_logit_bias){777, bias[i]};
      k.p.temperature = greedy ? 0 : 1, k.p.top_k = 3;
      if (i < 2) k.p.bias = k.bias, k.p.bias_count = 1;
      if (i == 3) /* 0 times infinity */
        k.x[777] = 0, k.token[0] = 777, k.history.count = 1, k.p.repetition_penalty = INFINITY;
      for (int32_t id = 0; i == 2 && id < 5; id++) k.ban[k.bans++] = id;
      const pe_status wanted = whole(0, &want);
      CHECK(listed(0, 0, &got, &rc));
      CHECK_INT(rc, wanted);
      CHECK_INT(wanted, i ? PE_ENOTOKEN : PE_OK);
      CHECK_INT(got.id, i ? -1 : want.id);
      pe_sampler_close(k.s);
    }
}

/* No list of a row that has to be looked at. */
static void no_list(void) {
  const pe_wanted w = {.best = 2};
  const float bad[] = {NAN, INFINITY, -INFINITY, 1};
  for (int i = 0; i < 4; i++) {
    pe_shortlist list;
    begin(5000);
    for (int32_t id = 0; i > 1 && id < k.n; id++) k.x[id] = bad[i]; /* too many are equal */
    k.x[4321] = bad[i];
    CHECK(!pe_sampler_list(k.s, k.x, &w, &list));
    pe_sampler_close(k.s);
  }
}

static const check_test tests[] = {
    {"same_bits", same_bits},
    {"nucleus", nucleus},
    {"wants", wants},
    {"too_short", too_short},
    {"too_many_bans", too_many_bans},
    {"raised", raised},
    {"refused", refused},
    {"no_list", no_list},
};
CHECK_MAIN("sampler_listed", tests)
