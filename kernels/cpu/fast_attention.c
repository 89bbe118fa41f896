/* fast_attention.c - attention of `fast` precision.
 *
 * Keys are taken in stretches of STRETCH tokens, counted from the start of the sequence. A stretch
 * gives a partial result for each query, which needs no other stretch: the largest score, the sum
 * of exponentials, and the sum of values. The partial results are joined in order of position:
 *
 *     tokens    0 .. 511        512 .. 1023      1024 .. 1300
 *               (m, l, v)  join   (m, l, v)  join   (m, l, v)   ->  v / l
 *
 * So it does not matter who computes them: one task goes through all stretches of its queries, or,
 * when there are few queries and a long past, many tasks take a stretch each, and a second op
 * joins. The bits are the same.
 *
 * A task gathers up to QUERIES queries that share a key head: the query heads of its group, and
 * neighbouring rows. Keys and values in float16 are read as they are (kernels/kv_row.h); other
 * types are decoded, PE_CPU_KV_ROWS rows at a time. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum {
  STRETCH = 512, /* scores of QUERIES queries are 32 KB: they stay in the second-level cache, and
                     the keys of a stretch, 128 KB in float16, are long enough for the prefetcher */
  QUERIES = 16,  /* whole tiles of `mix` on every machine */
  FEW = 64,      /* gatherings; with fewer of them each stretch is a task of its own */
  MOST_PARTIAL = 1 << 22 /* floats of partial results, 16 MB; more are not worth their memory */
};

/* ---- what a task computes -------------------------------------------------------------------- */

/* Neighbouring rows of a segment, with query heads that share a key head. */
typedef struct gathering {
  const pe_cpu_call *c;
  const pe_segment *segment;
  pe_cpu_kv kv;
  int64_t first, rows; /* rows of the step */
  int32_t head, heads; /* query heads head .. head + heads - 1 */
  float *query, *score, *room;
} gathering;

/* Partial results of the queries of a gathering, query after query: the largest score, the sum,
 * and the values. */
static int64_t partial_floats(const pe_attention_args *a) { return a->value + 2; }

static int64_t index_of(const gathering *g, int64_t row) {
  return g->segment->past + (g->first + row - g->segment->first);
}

/* The last key that a row sees. */
static int64_t last_of(const gathering *g, int64_t row) {
  const pe_step *step = g->c->step;
  if (!g->c->args.attention.spans || !step->last) return index_of(g, row);
  return step->last[g->first + row];
}

static int64_t lowest(const gathering *g, int64_t row) {
  const int32_t window = g->c->args.attention.window;
  const int64_t index = index_of(g, row);
  return window > 0 && index >= window ? index - window + 1 : 0;
}

static int64_t first_stretch(const gathering *g) { return lowest(g, 0) / STRETCH; }
static int64_t end_stretch(const gathering *g) { return last_of(g, g->rows - 1) / STRETCH + 1; }

static void gather_queries(const gathering *g) {
  const pe_attention_args *a = &g->c->args.attention;
  const int64_t key = a->cache.key;
  float *to = g->query;
  for (int64_t r = 0; r < g->rows; r++) {
    const float *x = pe_cpu_row(&g->c->in[0], g->first + r) + (int64_t)g->head * key;
    for (int64_t i = 0; i < g->heads * key; i++) *to++ = x[i] * a->scale;
  }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Scores of whole panels: from the panel of token t to the one before token `end`. */
static void score_panels(const gathering *g, int64_t base, int64_t t, int64_t end) {
  const pe_cache_args *a = g->kv.args;
  const int32_t panel = pe_kv_panel(a);
  const int64_t queries = g->rows * g->heads;
  for (int64_t at = t; at < end; at += panel) {
    float *score = g->score + (at - base);
    for (int64_t q = 0; q < queries; q++)
      memset(score + q * STRETCH, 0, (size_t)panel * sizeof *score);
    const uint16_t *keys = (const uint16_t *)(const void *)pe_cpu_kv_block(&g->kv, PE_CPU_KEYS, at);
    g->c->prim->mix_halves(g->query, a->key, (int)queries,
                           keys + at % a->block / panel * panel * a->key, panel, a->key, panel,
                           score, STRETCH);
  }
}

static void score_rows(const gathering *g, int64_t base, int64_t from, int64_t end) {
  const int64_t key = g->kv.args->key;
  const float *keys;
  int64_t run, step;
  for (int64_t t = from; t < end; t += run) {
    run = pe_cpu_kv_rows(&g->kv, PE_CPU_KEYS, t, end - t, g->room, &keys, &step);
    g->c->prim->dots(g->query, key, (int)(g->rows * g->heads), keys, step, (int)run, key,
                     g->score + (t - base), STRETCH);
  }
}

/* The scores of n keys of one query to exponentials; returns their sum and the largest score. */
static float soften(const gathering *g, float *s, int64_t n, float *most) {
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

/* ---- values ---------------------------------------------------------------------------------- */

/* Adds the values of keys from .. to - 1 for `count` queries, starting with query q. */
static void mix_values(const gathering *g, int64_t base, int64_t q, int64_t count, int64_t from,
                       int64_t to, float *partial) {
  const pe_attention_args *a = &g->c->args.attention;
  const int64_t each = partial_floats(a);
  const float *p = g->score + q * STRETCH - base, *values;
  float *out = partial + q * each + 2;
  int64_t run, step;
  for (int64_t t = from; t < to; t += run) {
    if (a->cache.value && a->cache.type == PE_KV_F16) {
      run = pe_cpu_least(to - t, a->cache.block - t % a->cache.block);
      const uint16_t *rows =
          (const uint16_t *)(const void *)pe_cpu_kv_block(&g->kv, PE_CPU_VALUES, t);
      g->c->prim->mix_halves(p + t, STRETCH, (int)count, rows + t % a->cache.block * a->value,
                             a->value, (int)run, a->value, out, each);
      continue;
    }
    run = pe_cpu_kv_rows(&g->kv, a->cache.value ? PE_CPU_VALUES : PE_CPU_KEYS, t, to - t, g->room,
                         &values, &step);
    g->c->prim->mix(p + t, STRETCH, (int)count, values, step, (int)run, a->value, out, each);
  }
}

/* The partial results of stretch j. A row that sees no key of it gets -infinity. */
static void attend(const gathering *g, int64_t j, float *partial) {
  const pe_attention_args *a = &g->c->args.attention;
  const int64_t base = j * STRETCH, each = partial_floats(a);
  int64_t low = lowest(g, 0), end = last_of(g, g->rows - 1) + 1;
  if (low < base) low = base;
  if (end > base + STRETCH) end = base + STRETCH;
  if (pe_kv_panel(&a->cache))
    score_panels(g, base, low - low % pe_kv_panel(&a->cache), end);
  else
    score_rows(g, base, low, end);
  /* All rows see the keys from `shared` to `least`. */
  int64_t shared = lowest(g, g->rows - 1), least = last_of(g, 0) + 1;
  if (shared < low) shared = low;
  if (least > end) least = end;
  memset(partial, 0, (size_t)(g->rows * g->heads * each) * sizeof *partial);
  for (int64_t r = 0; r < g->rows; r++) {
    int64_t from = lowest(g, r), to = last_of(g, r) + 1;
    if (from < base) from = base;
    if (to > end) to = end;
    for (int64_t q = r * g->heads; q < (r + 1) * g->heads; q++) {
      float *own = partial + q * each;
      if (from >= to)
        own[0] = -INFINITY;
      else
        own[1] = soften(g, g->score + q * STRETCH + (from - base), to - from, own);
    }
    mix_values(g, base, r * g->heads, g->heads, from, pe_cpu_least(shared, to), partial);
  }
  if (shared < least) mix_values(g, base, 0, g->rows * g->heads, shared, least, partial);
  for (int64_t r = 0; r < g->rows; r++) {
    int64_t from = lowest(g, r) > least ? lowest(g, r) : least, to = last_of(g, r) + 1;
    if (from < shared) from = shared;
    mix_values(g, base, r * g->heads, g->heads, from, pe_cpu_least(to, end), partial);
  }
}

/* ---- joining --------------------------------------------------------------------------------- */

static float exp1(const pe_prim *prim, float x) {
  prim->unary(PE_MAP_EXP, &x, 1, &x);
  return x;
}

/* Joins the result of a later stretch to that of the earlier ones. */
static void join(const pe_prim *prim, float *all, const float *next, int64_t value) {
  if (next[0] == -INFINITY) return;
  if (all[0] == -INFINITY) {
    memcpy(all, next, (size_t)(value + 2) * sizeof *all);
    return;
  }
  const float most = next[0] > all[0] ? next[0] : all[0];
  const float a = exp1(prim, all[0] - most), b = exp1(prim, next[0] - most);
  all[0] = most;
  for (int64_t i = 1; i < value + 2; i++) all[i] = all[i] * a + next[i] * b;
}

static void finish(const pe_cpu_call *c, int64_t row, int64_t head, float *all) {
  const pe_attention_args *a = &c->args.attention;
  float *out = pe_cpu_row(&c->out, row) + head * a->value, sum = all[1];
  if (c->vec[0]) { /* a sink counts in the maximum and the denominator only */
    const float sink = c->vec[0][head], most = sink > all[0] ? sink : all[0];
    const float scale = exp1(c->prim, all[0] - most);
    sum = sum * scale + exp1(c->prim, sink - most);
    for (int64_t i = 2; i < a->value + 2; i++) all[i] *= scale;
  }
  for (int64_t i = 0; i < a->value; i++) out[i] = all[2 + i] / sum;
}

/* ---- sharing the work ------------------------------------------------------------------------ */

typedef struct split {
  int64_t heads, parts, rows; /* query heads of a gathering, parts of a group, rows of a tile */
  int64_t tiles, stretches;   /* of all segments; the most of a tile */
  bool apart;                 /* each stretch is an item */
} split;

static split split_of(const pe_cpu_call *c) {
  const pe_attention_args *a = &c->args.attention;
  const int64_t group = a->heads / a->cache.heads;
  split s = {.heads = pe_cpu_least(group, QUERIES)};
  s.parts = (group + s.heads - 1) / s.heads, s.rows = QUERIES / s.heads;
  for (int32_t i = 0; i < c->step->segments; i++) {
    const pe_segment *segment = &c->step->segment[i];
    int64_t end = (int64_t)segment->past + segment->count;
    int64_t seen = a->window > 0 ? pe_cpu_least(end, a->window + s.rows) : end;
    if (a->spans && c->step->last) seen += c->step->ahead;
    s.tiles += (segment->count + s.rows - 1) / s.rows;
    if (seen / STRETCH + 2 > s.stretches) s.stretches = seen / STRETCH + 2;
  }
  s.apart = s.stretches > 2 && s.tiles * a->cache.heads * s.parts < FEW &&
            s.stretches * c->rows * a->heads * partial_floats(a) <= MOST_PARTIAL;
  return s;
}

/* The partial result of a query in shared memory, by its place in the fold. */
static float *partial_at(const pe_cpu_call *c, int64_t row, int64_t head, int64_t j) {
  const pe_attention_args *a = &c->args.attention;
  return c->shared + ((j * c->rows + row) * a->heads + head) * partial_floats(a);
}

/* All stretches of a gathering, joined as they come. */
static void attend_all(const gathering *g, float *all, float *partial) {
  const pe_attention_args *a = &g->c->args.attention;
  const int64_t each = partial_floats(a), queries = g->rows * g->heads;
  gather_queries(g);
  for (int64_t q = 0; q < queries; q++) all[q * each] = -INFINITY;
  for (int64_t j = first_stretch(g), end = end_stretch(g); j < end; j++) {
    attend(g, j, partial);
    for (int64_t q = 0; q < queries; q++)
      join(g->c->prim, all + q * each, partial + q * each, a->value);
  }
  for (int64_t q = 0; q < queries; q++)
    finish(g->c, g->first + q / g->heads, g->head + q % g->heads, all + q * each);
}

/* Every `tasks`-th stretch of a gathering, into shared memory. *item counts stretches. */
static void attend_some(const gathering *g, const pe_cpu_share *share, int64_t *item,
                        float *partial) {
  const int64_t each = partial_floats(&g->c->args.attention), first = first_stretch(g);
  bool gathered = false;
  for (int64_t j = first, end = end_stretch(g); j < end; j++) {
    if ((*item)++ % share->tasks != share->task) continue;
    if (!gathered) gather_queries(g);
    gathered = true;
    attend(g, j, partial);
    for (int64_t q = 0; q < g->rows * g->heads; q++)
      memcpy(partial_at(g->c, g->first + q / g->heads, g->head + q % g->heads, j - first),
             partial + q * each, (size_t)each * sizeof *partial);
  }
}

static void attention_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_attention_args *a = &c->args.attention;
  const split s = split_of(c);
  const int64_t group = a->heads / a->cache.heads;
  gathering g = {.c = c, .query = share->scratch};
  g.score = g.query + (int64_t)QUERIES * a->cache.key;
  float *all = g.score + (int64_t)QUERIES * STRETCH;
  float *partial = all + QUERIES * partial_floats(a);
  g.room = partial + QUERIES * partial_floats(a);
  /* Later rows see more keys, so neighbouring tiles go to different tasks. */
  for (int64_t part = 0, item = 0; part < a->cache.heads * s.parts; part++) {
    g.head = (int32_t)(part / s.parts * group + part % s.parts * s.heads);
    g.heads = (int32_t)pe_cpu_least(s.heads, group - part % s.parts * s.heads);
    for (int32_t i = 0; i < c->step->segments; i++) {
      g.segment = &c->step->segment[i];
      g.kv = pe_cpu_kv_of(c, &a->cache, g.segment), g.kv.head = part / s.parts;
      for (int64_t r = 0; r < g.segment->count; r += s.rows) {
        g.first = g.segment->first + r, g.rows = pe_cpu_least(s.rows, g.segment->count - r);
        if (s.apart)
          attend_some(&g, share, &item, partial);
        else if (item++ % share->tasks == share->task)
          attend_all(&g, all, partial);
      }
    }
  }
}

static pe_cpu_work attention_work(const pe_cpu_call *c) {
  const pe_attention_args *a = &c->args.attention;
  const split s = split_of(c);
  const int64_t items = s.tiles * a->cache.heads * s.parts;
  double keys = 0;
  for (int32_t i = 0; i < c->step->segments; i++) {
    const pe_segment *segment = &c->step->segment[i];
    double seen = (double)segment->past + segment->count;
    if (a->window > 0 && seen > a->window) seen = a->window;
    keys += seen * segment->count;
  }
  return (pe_cpu_work){s.apart ? items * (s.stretches - 1) : items,
                       keys * a->heads * (a->cache.key + a->value)};
}

static int64_t attention_scratch(const pe_cpu_call *c) {
  const pe_attention_args *a = &c->args.attention;
  return QUERIES * (a->cache.key + STRETCH + 2 * partial_floats(a)) + pe_cpu_kv_room(&a->cache);
}

static int64_t attention_shared(const pe_cpu_call *c) {
  const split s = split_of(c);
  return s.apart
             ? s.stretches * c->rows * c->args.attention.heads * partial_floats(&c->args.attention)
             : 0;
}

/* ---- the second op --------------------------------------------------------------------------- */

/* The stretches that a row sees, counted from the first of its tile. */
static void join_row(const pe_cpu_call *c, const split *s, int64_t row, int64_t head) {
  const pe_attention_args *a = &c->args.attention;
  const pe_segment *segment = &c->step->segment[c->step->segment_of[row]];
  const int64_t tile = (row - segment->first) / s->rows * s->rows;
  gathering g = {.c = c, .segment = segment, .first = segment->first + tile};
  g.rows = pe_cpu_least(s->rows, segment->count - tile);
  const int64_t stretches = end_stretch(&g) - first_stretch(&g);
  float *all = partial_at(c, row, head, 0);
  for (int64_t j = 1; j < stretches; j++) join(c->prim, all, partial_at(c, row, head, j), a->value);
  finish(c, row, head, all);
}

static void join_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const split s = split_of(c);
  const int64_t heads = c->args.attention.heads;
  int64_t from, to;
  pe_cpu_range(share, s.apart ? c->rows * heads : 0, &from, &to);
  for (int64_t i = from; i < to; i++) join_row(c, &s, i / heads, i % heads);
}

static pe_cpu_work join_work(const pe_cpu_call *c) {
  const split s = split_of(c);
  const int64_t queries = c->rows * c->args.attention.heads;
  if (!s.apart) return (pe_cpu_work){0, 0};
  return (pe_cpu_work){queries, (double)queries * (double)s.stretches * c->args.attention.value};
}

static const pe_cpu_op attention_join = {.run = join_run, .work = join_work};
const pe_cpu_op pe_cpu_fast_attention = {.run = attention_run,
                                         .work = attention_work,
                                         .scratch = attention_scratch,
                                         .shared = attention_shared,
                                         .then = &attention_join};
