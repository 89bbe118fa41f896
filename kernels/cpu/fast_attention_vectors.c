/* fast_attention_vectors.c - the products of attention over the vectors of prim.h.
 *
 * Scores are sums over the values of a key in order, results are sums over the keys in order, each
 * by fused multiply-adds; keys that are stored as rows go through `dots`. Many queries share keys
 * and values that are widened to float32 once; few queries widen float16 in registers. The bits are
 * the same. */
#include "kernels/cpu/fast_attention.h"

#include <math.h>

enum {
  FEW = 8,     /* queries; with more of them it pays to widen first */
  PIECE = 128, /* tokens whose values are widened at a time: 64 KB for 128 values each */
  PART = 4096, /* bytes that few queries go through before they ask for as many, further on */
  LINE = 32,   /* tokens of a panel in a cache line */
  AHEAD = 64   /* tokens between the two: 16 KB for 128 values each */
};

static int64_t queries_of(const pe_gathering *g) { return g->rows * g->heads; }

static void prepare(float *query, int64_t queries, int64_t n) {
  (void)query, (void)queries, (void)n;
}

/* The queries that see at least one of the keys t .. to - 1. */
static void seeing(const pe_gathering *g, int64_t t, int64_t to, int64_t *from, int64_t *count) {
  int64_t row = 0, end = g->rows;
  while (row < g->rows && pe_row_end(g, row) <= t) row++;
  while (end > row && pe_row_low(g, end - 1) >= to) end--;
  *from = row * g->heads, *count = (end - row) * g->heads;
}

/* Requests memory that is read soon. The requests of a processor end with each page of 4 KB, and a
 * single stream of them is not all that memory has to give. */
static void ask_for(const uint8_t *at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* The values of token t. */
static const uint8_t *value_at(const pe_gathering *g, int64_t t) {
  const pe_cache_args *a = g->kv.args;
  return pe_cpu_kv_block(&g->kv, PE_CPU_VALUES, t) + t % a->block * a->value * 2;
}

/* The panel of token t. */
static const uint16_t *panel_at(const pe_gathering *g, int64_t t) {
  const pe_cache_args *a = g->kv.args;
  const int64_t panel = pe_kv_panel(a);
  const uint16_t *block = (const uint16_t *)(const void *)pe_cpu_kv_block(&g->kv, PE_CPU_KEYS, t);
  return block + t % a->block / panel * panel * a->key;
}

/* Memory that is read after something else. */
typedef struct later {
  const uint8_t *at;
  int64_t bytes;
} later;

/* What is read after panel `at` of a stretch: the next one, or the values, which are adjacent in a
 * block. */
static later after_panel(const pe_gathering *g, const pe_stretch *s, int64_t at) {
  const pe_cache_args *a = g->kv.args;
  const int64_t panel = pe_kv_panel(a);
  if (at + panel < s->end)
    return (later){(const uint8_t *)panel_at(g, at + panel), panel * a->key * 2};
  const int64_t rows = pe_cpu_least(s->end - s->low, a->block - s->low % a->block);
  return (later){value_at(g, s->low), rows * a->value * 2};
}

/* The first `tokens` of a panel for few queries, in parts. Each of them requests as much of what is
 * read next. */
static void score_few(const pe_gathering *g, const float *query, int64_t n, const uint16_t *keys,
                      int64_t tokens, later next, float *score) {
  const int64_t key = g->kv.args->key, panel = pe_kv_panel(g->kv.args), each = PART / 2 / panel;
  for (int64_t i = 0; i < key; i += each) {
    const int64_t lines = pe_cpu_least(each, key - i), part = lines * panel * 2;
    ask_for(next.at, pe_cpu_least(part, next.bytes));
    next.at += part, next.bytes -= part;
    g->c->prim->mix_halves(query + i, pe_query_step(key), (int)n, keys + i * panel, panel,
                           (int)lines, tokens, score, PE_SCORE_STEP);
  }
}

static void score_panels(const pe_gathering *g, const pe_stretch *s) {
  const pe_cache_args *a = g->kv.args;
  const int32_t panel = pe_kv_panel(a);
  const int64_t step = pe_query_step(a->key), low = s->low - s->low % panel;
  const int64_t tokens = (s->end - low + panel - 1) / panel * panel;
  for (int64_t q = 0; q < queries_of(g); q++)
    memset(g->score + q * PE_SCORE_STEP + (low - s->base), 0, (size_t)tokens * sizeof *g->score);
  for (int64_t at = low; at < s->end; at += panel) {
    int64_t from, n;
    seeing(g, at, at + panel, &from, &n);
    float *score = g->score + from * PE_SCORE_STEP + (at - s->base);
    const float *query = g->query + from * step;
    const uint16_t *keys = panel_at(g, at);
    if (n <= FEW) {
      const int64_t some = pe_cpu_least((s->end - at + LINE - 1) / LINE * LINE, panel);
      score_few(g, query, n, keys, some, after_panel(g, s, at), score);
      continue;
    }
    pe_cpu_kv_decode(g->c->prim, PE_KV_F16, (const uint8_t *)keys, a->key, panel, g->room);
    g->c->prim->mix(query, step, (int)n, g->room, panel, a->key, panel, score, PE_SCORE_STEP);
  }
}

static void score_rows(const pe_gathering *g, const pe_stretch *s) {
  const int64_t key = g->kv.args->key;
  const float *keys;
  int64_t run, step, from, n;
  for (int64_t t = s->low; t < s->end; t += run) {
    run = pe_cpu_kv_rows(&g->kv, PE_CPU_KEYS, t, s->end - t, g->room, &keys, &step);
    seeing(g, t, t + run, &from, &n);
    g->c->prim->dots(g->query + from * pe_query_step(key), pe_query_step(key), (int)n, keys, step,
                     (int)run, key, g->score + from * PE_SCORE_STEP + (t - s->base), PE_SCORE_STEP);
  }
}

static void scores(const pe_gathering *g, const pe_stretch *s) {
  if (pe_kv_panel(g->kv.args))
    score_panels(g, s);
  else
    score_rows(g, s);
}

/* ---- weights -------------------------------------------------------------------------------- */

/* The scores of n keys of one query to exponentials; returns their sum and the largest score. */
static float soften(const pe_gathering *g, float *s, int64_t n, float *most) {
  const pe_attention_args *a = &g->c->args.attention;
  const pe_prim *prim = g->c->prim;
  if (a->softcap > 0) {
    for (int64_t i = 0; i < n; i++) s[i] /= a->softcap;
    prim->unary(PE_MAP_TANH, s, n, s);
    for (int64_t i = 0; i < n; i++) s[i] *= a->softcap;
  }
  *most = prim->max(s, n);
  return prim->exp_sum(s, *most, n);
}

/* The scores of a query to weights, zero for keys that its row does not see. */
static void weigh(const pe_gathering *g, const pe_stretch *s, int64_t row, float *score,
                  float *most) {
  int64_t from = pe_row_low(g, row) - s->base, to = pe_row_end(g, row) - s->base;
  from = from < 0 ? 0 : pe_cpu_least(from, PE_STRETCH);
  to = to < from ? from : pe_cpu_least(to, PE_STRETCH);
  if (from >= to)
    most[0] = -INFINITY;
  else
    most[1] = soften(g, score + from, to - from, most);
  memset(score, 0, (size_t)from * sizeof *score);
  memset(score + to, 0, (size_t)(PE_STRETCH - to) * sizeof *score);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Adds the values of keys from .. to - 1 for `count` queries, starting with query q. */
static void mix_few(const pe_gathering *g, const pe_stretch *s, int64_t q, int64_t count,
                    int64_t from, int64_t to, float *result) {
  const pe_attention_args *a = &g->c->args.attention;
  const int64_t each = pe_result_step(a->value);
  const float *p = g->score + q * PE_SCORE_STEP - s->base, *values;
  int64_t run, step;
  result += q * each;
  for (int64_t t = from; t < to; t += run) {
    if (a->cache.value && a->cache.type == PE_KV_F16) {
      run = pe_cpu_least(to - t, a->cache.block - t % a->cache.block);
      run = pe_cpu_least(run, (PART / 2 + a->value - 1) / a->value);
      if (t + AHEAD < to) ask_for(value_at(g, t + AHEAD), run * a->value * 2);
      g->c->prim->mix_halves(p + t, PE_SCORE_STEP, (int)count,
                             (const uint16_t *)(const void *)value_at(g, t), a->value, (int)run,
                             a->value, result, each);
      continue;
    }
    run = pe_cpu_kv_rows(&g->kv, a->cache.value ? PE_CPU_VALUES : PE_CPU_KEYS, t, to - t, g->room,
                         &values, &step);
    g->c->prim->mix(p + t, PE_SCORE_STEP, (int)count, values, step, (int)run, a->value, result,
                    each);
  }
}

/* The same, where rows see different keys. */
static void mix_apart(const pe_gathering *g, const pe_stretch *s, int64_t from, int64_t to,
                      float *result) {
  for (int64_t r = 0; r < g->rows; r++) {
    const int64_t low = pe_row_low(g, r), end = pe_row_end(g, r);
    mix_few(g, s, r * g->heads, g->heads, low > from ? low : from, end < to ? end : to, result);
  }
}

/* Widens rows t .. to - 1 to lines of float32 in g->room; returns their distance. */
static int64_t widen(const pe_gathering *g, int64_t t, int64_t to) {
  const pe_attention_args *a = &g->c->args.attention;
  const pe_kv_type type = (pe_kv_type)a->cache.type;
  const int which = a->cache.value ? PE_CPU_VALUES : PE_CPU_KEYS;
  const int32_t width = a->cache.value ? a->cache.value : a->cache.key;
  const int64_t step = pe_kv_row_values(type, width), bytes = pe_kv_row_bytes(type, width);
  float *out = g->room;
  for (int64_t run; t < to; t += run, out += run * step) {
    run = pe_cpu_least(to - t, a->cache.block - t % a->cache.block);
    const uint8_t *rows = pe_cpu_kv_block(&g->kv, which, t) + t % a->cache.block * bytes;
    if (type == PE_KV_F32)
      memcpy(out, rows, (size_t)(run * bytes));
    else
      pe_cpu_kv_decode(g->c->prim, type, rows, run, width, out);
  }
  return step;
}

static void values(const pe_gathering *g, const pe_stretch *s, float *result) {
  const pe_attention_args *a = &g->c->args.attention;
  /* All rows see the keys from `shared` to `least`. */
  const int64_t shared = pe_row_low(g, g->rows - 1), least = pe_row_end(g, 0);
  const int64_t each = pe_result_step(a->value), queries = queries_of(g);
  if (queries <= FEW) {
    const int64_t from = shared > s->low ? pe_cpu_least(shared, s->end) : s->low;
    const int64_t to = least < s->end ? (least > from ? least : from) : s->end;
    mix_apart(g, s, s->low, from, result);
    mix_few(g, s, 0, queries, from, to, result);
    mix_apart(g, s, to, s->end, result);
    return;
  }
  for (int64_t t = s->low, to; t < s->end; t = to) {
    to = pe_cpu_least(t - t % PIECE + PIECE, s->end);
    const int64_t step = widen(g, t, to);
    int64_t from, n;
    seeing(g, t, to, &from, &n);
    if ((t < shared || to > least) && !pe_attention_finite(g->room, (to - t) * step)) {
      mix_apart(g, s, t, to, result);
      continue;
    }
    g->c->prim->mix(g->score + from * PE_SCORE_STEP + (t - s->base), PE_SCORE_STEP, (int)n, g->room,
                    step, (int)(to - t), a->value, result + from * each, each);
  }
}

static void attend(const pe_gathering *g, const pe_stretch *s, float *result) {
  const int64_t value = g->c->args.attention.value, each = pe_result_step(value);
  scores(g, s);
  memset(result, 0, (size_t)(queries_of(g) * each) * sizeof *result);
  for (int64_t q = 0; q < queries_of(g); q++)
    weigh(g, s, q / g->heads, g->score + q * PE_SCORE_STEP,
          result + q * each + pe_result_most(value));
  values(g, s, result);
}

static int64_t room(const pe_attention_args *a) {
  const pe_kv_type type = (pe_kv_type)a->cache.type;
  const int64_t key = pe_kv_row_values(type, a->cache.key);
  const int64_t value = pe_kv_row_values(type, a->value);
  const int64_t most = PIECE * (a->cache.value && value > key / 2 ? value : key);
  const int64_t decoded = pe_cpu_kv_room(&a->cache);
  return most > decoded ? most : decoded;
}

const pe_attention_version pe_attention_vectors = {
    .queries = 96, .prepare = prepare, .attend = attend, .room = room};
