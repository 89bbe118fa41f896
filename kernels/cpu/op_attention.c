/* op_attention.c - the KV cache, written (store) and read (attention).
 *
 * Token t of a sequence is in block table[t / block], at row t % block of each head:
 *
 *     tables of a segment   [group 0 ...][group 1 ...]
 *                              |
 *     layer in a block      [head 0: row 0 .. block-1][head 1: row 0 .. block-1] ...
 *
 * The rows of a head are adjacent because they are read together. Attention gathers up to QUERIES
 * queries that share a key head (the query heads of its group, and neighbouring rows if the group
 * is small), so that keys and values are read once for all of them. The sums of each query run over
 * its keys in order of position, so gathering does not change the result.
 *
 * Rows of float32 are used in place; rows of other types are decoded, PE_CPU_KV_ROWS at a time, and
 * then go through the same arithmetic. */
#include "kernels/cpu/cpu.h"

enum { QUERIES = 16 }; /* whole tiles of `dots`; scratch has a line of scores for each of them */

/* ---- store ----------------------------------------------------------------------------------- */

/* Neighbouring rows of a segment that are stored together, in one block of the cache: a panel of
 * keys, so that its lines are written whole. */
typedef struct store_rows {
  pe_cpu_kv kv;
  int64_t first, token, count;
} store_rows;
enum {
  STORE_ROWS = 64,
  WHOLE = 8 /* of so many rows, most of a line is written */
};

static int64_t rows_together(const pe_cache_args *a) {
  return pe_kv_panel(a) ? pe_kv_panel(a) : pe_cpu_least(a->block, STORE_ROWS);
}

/* A few keys of a panel go to a cache line per value. The lines are requested before the keys are
 * made: a core that writes to them waits for fewer at a time. */
static void ask_for_lines(const store_rows *s, const uint8_t *block) {
  const pe_cache_args *a = s->kv.args;
  const int64_t panel = pe_kv_panel(a), within = s->token % a->block;
  const uint8_t *at = block + (within / panel * panel * a->key + within % panel) * 2;
  for (int32_t i = 0; i < a->key; i++) __builtin_prefetch(at + i * panel * 2, 1, 3);
}

/* Keys, normalized and rotated if the store does that. room: a rotated key, then stored ones. */
static void store_keys(const store_rows *s, float *room) {
  const pe_store_args *a = &s->kv.call->args.store;
  const pe_kv_type type = (pe_kv_type)a->cache.type;
  const int64_t bytes = pe_kv_row_bytes(type, a->cache.key), within = s->token % a->cache.block;
  uint8_t *block = pe_cpu_kv_block(&s->kv, PE_CPU_KEYS, s->token);
  const bool across = pe_kv_panel(&a->cache) > 0;
  uint8_t *rows = across ? (uint8_t *)(void *)(room + a->cache.key) : block + within * bytes;
  if (across && s->count < WHOLE) ask_for_lines(s, block);
  for (int64_t i = 0; i < s->count; i++) {
    const float *x = pe_cpu_row(&s->kv.call->in[0], s->first + i) + s->kv.head * a->cache.key;
    float *turned = type == PE_KV_F32 ? (float *)(void *)(rows + i * bytes) : room;
    if (a->rope.turns > 0) {
      pe_cpu_head(s->kv.call->prim, &a->rope, s->kv.call->vec[0],
                  pe_cpu_row(&s->kv.call->in[2], s->first + i), x, turned);
      if (type == PE_KV_F32) continue;
      x = turned;
    }
    pe_cpu_kv_encode(s->kv.call->prim, type, x, a->cache.key, rows + i * bytes);
  }
  if (across) pe_kv_put_keys(&a->cache, block, (int32_t)within, (int32_t)s->count, rows);
}

static void store_values(const store_rows *s) {
  const pe_cache_args *a = s->kv.args;
  const pe_kv_type type = (pe_kv_type)a->type;
  const int64_t bytes = pe_kv_row_bytes(type, a->value);
  uint8_t *rows = pe_cpu_kv_block(&s->kv, PE_CPU_VALUES, s->token) + s->token % a->block * bytes;
  for (int64_t i = 0; i < s->count; i++)
    pe_cpu_kv_encode(s->kv.call->prim, type,
                     pe_cpu_row(&s->kv.call->in[1], s->first + i) + s->kv.head * a->value, a->value,
                     rows + i * bytes);
}

static void store_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_cache_args *cache = &c->args.store.cache;
  const int64_t together = rows_together(cache);
  for (int64_t i = 0, item = 0; i < c->step->segments; i++) {
    const pe_segment *segment = &c->step->segment[i];
    const int64_t end = (int64_t)segment->past + segment->count;
    store_rows s = {.kv = pe_cpu_kv_of(c, cache, segment), .token = segment->past};
    for (; s.token < end; s.token += s.count) {
      s.first = segment->first + (s.token - segment->past);
      s.count = pe_cpu_least(end - s.token, together - s.token % together);
      for (s.kv.head = 0; s.kv.head < cache->heads; s.kv.head++) {
        if (!pe_cpu_takes(share, item++)) continue;
        store_keys(&s, share->scratch);
        if (cache->value) store_values(&s);
      }
    }
  }
}

/* A panel of keys has a cache line per value, and a row writes to each of them: a miss of 10 ns, in
 * which a core does this many multiply-adds. */
static const double LINE_COST = 320;

static pe_cpu_work store_work(const pe_cpu_call *c) {
  const pe_cache_args *cache = &c->args.store.cache;
  const int64_t together = rows_together(cache);
  int64_t items = 0;
  for (int32_t i = 0; i < c->step->segments; i++) {
    const int64_t past = c->step->segment[i].past, end = past + c->step->segment[i].count;
    items += ((end + together - 1) / together - past / together) * cache->heads;
  }
  const double lines = pe_kv_panel(cache) ? (double)items * cache->key : 0;
  return (pe_cpu_work){items, (double)c->rows * cache->heads * (2.0 * cache->key + cache->value) +
                                  LINE_COST * lines};
}

static int64_t store_scratch(const pe_cpu_call *c) {
  const pe_cache_args *a = &c->args.store.cache;
  if (a->type == PE_KV_F32) return 0;
  return a->key + pe_kv_panel(a) * ((pe_kv_row_bytes((pe_kv_type)a->type, a->key) + 3) / 4 + 1);
}

const pe_cpu_op pe_cpu_store = {.run = store_run, .work = store_work, .scratch = store_scratch};

/* ---- attention ------------------------------------------------------------------------------- */

/* Neighbouring rows of a segment, with query heads that share a key head. */
typedef struct gathering {
  const pe_cpu_call *c;
  const pe_segment *segment;
  pe_cpu_kv kv;
  int64_t first, rows; /* rows of the step */
  int32_t head, heads; /* query heads head .. head + heads - 1 */
  int64_t base, end;   /* the keys that at least one of the rows sees */
  int64_t span;        /* from the scores of one query to those of the next */
  float *query, *score, *sum, *mixed, *decoded;
} gathering;

static int64_t index_of(const gathering *g, int64_t row) {
  return g->segment->past + (g->first + row - g->segment->first);
}

/* The last key that a row sees. */
static int64_t last_of(const gathering *g, int64_t row) {
  const pe_step *step = g->c->step;
  if (!g->c->args.attention.spans || !step->last) return index_of(g, row);
  return step->last[g->first + row];
}

static int64_t lowest(const gathering *g, int64_t index) {
  int32_t window = g->c->args.attention.window;
  return window > 0 && index >= window ? index - window + 1 : 0;
}

static void gather_queries(const gathering *g) {
  const pe_attention_args *a = &g->c->args.attention;
  const int64_t key = a->cache.key;
  float *to = g->query;
  for (int64_t r = 0; r < g->rows; r++) {
    const float *x = pe_cpu_row(&g->c->in[0], g->first + r) + (int64_t)g->head * key;
    for (int64_t i = 0; i < g->heads * key; i++) *to++ = x[i] * a->scale;
  }
}

static void score_keys(const gathering *g) {
  const int64_t key = g->c->args.attention.cache.key;
  const float *keys;
  int64_t run, step;
  for (int64_t t = g->base; t < g->end; t += run) {
    run = pe_cpu_kv_rows(&g->kv, PE_CPU_KEYS, t, g->end - t, g->decoded, &keys, &step);
    g->c->prim->dots(g->query, key, (int)(g->rows * g->heads), keys, step, (int)run, key,
                     g->score + (t - g->base), g->span);
  }
}

/* Turns the scores of one query into exponentials and returns their sum. */
static float soften(const gathering *g, float *s, int64_t n, int32_t head) {
  const pe_attention_args *a = &g->c->args.attention;
  const pe_prim *prim = g->c->prim;
  if (a->softcap > 0) {
    for (int64_t i = 0; i < n; i++) s[i] /= a->softcap;
    prim->unary(PE_MAP_TANH, s, n, s);
    for (int64_t i = 0; i < n; i++) s[i] *= a->softcap;
  }
  float most = prim->max(s, n);
  if (!g->c->vec[0]) return prim->exp_sum(s, most, n);
  float sink = g->c->vec[0][head];
  if (sink > most) most = sink;
  float sum = prim->exp_sum(s, most, n);
  return sum + prim->exp_sum(&sink, most, 1);
}

/* Adds the values of keys from .. to - 1 for `count` queries, starting with query q. */
static void mix_values(const gathering *g, int64_t q, int64_t count, int64_t from, int64_t to) {
  const pe_attention_args *a = &g->c->args.attention;
  const int which = a->cache.value ? PE_CPU_VALUES : PE_CPU_KEYS;
  const float *values;
  int64_t run, step;
  for (int64_t t = from; t < to; t += run) {
    run = pe_cpu_kv_rows(&g->kv, which, t, to - t, g->decoded, &values, &step);
    g->c->prim->mix(g->score + q * g->span + (t - g->base), g->span, (int)count, values, step,
                    (int)run, a->value, g->mixed + q * a->value, a->value);
  }
}

static void attend(gathering *g) {
  const pe_attention_args *a = &g->c->args.attention;
  const int64_t queries = g->rows * g->heads;
  const int64_t least = last_of(g, 0); /* a later row sees no fewer of the later keys */
  const int64_t shared = lowest(g, index_of(g, g->rows - 1)); /* all see shared .. least */
  g->base = lowest(g, index_of(g, 0)), g->end = last_of(g, g->rows - 1) + 1;
  gather_queries(g);
  score_keys(g);
  memset(g->mixed, 0, (size_t)(queries * a->value) * sizeof(float));
  for (int64_t r = 0; r < g->rows; r++) {
    int64_t end = last_of(g, r) + 1, low = lowest(g, index_of(g, r));
    for (int64_t q = r * g->heads; q < (r + 1) * g->heads; q++)
      g->sum[q] = soften(g, g->score + q * g->span + (low - g->base), end - low,
                         g->head + (int32_t)(q - r * g->heads));
    mix_values(g, r * g->heads, g->heads, low, pe_cpu_least(shared, end));
  }
  mix_values(g, 0, queries, shared, least + 1);
  for (int64_t r = 0; r < g->rows; r++)
    mix_values(g, r * g->heads, g->heads, least + 1 > shared ? least + 1 : shared,
               last_of(g, r) + 1);
  for (int64_t q = 0; q < queries; q++) {
    float *out =
        pe_cpu_row(&g->c->out, g->first + q / g->heads) + (g->head + q % g->heads) * a->value;
    for (int64_t i = 0; i < a->value; i++) out[i] = g->mixed[q * a->value + i] / g->sum[q];
  }
}

/* Query heads of a gathering; attention_run takes fewer if there are too few gatherings for all
 * tasks. */
static int64_t heads_of(const pe_attention_args *a) {
  return pe_cpu_least(a->heads / a->cache.heads, QUERIES);
}

static int64_t tiles_of(const pe_cpu_call *c) {
  int64_t rows = QUERIES / heads_of(&c->args.attention), tiles = 0;
  for (int32_t s = 0; s < c->step->segments; s++)
    tiles += (c->step->segment[s].count + rows - 1) / rows;
  return tiles;
}

static int64_t span_of(const pe_cpu_call *c) {
  const pe_attention_args *a = &c->args.attention;
  int64_t span = 0;
  for (int32_t s = 0; s < c->step->segments; s++) {
    int64_t n = (int64_t)c->step->segment[s].past + c->step->segment[s].count;
    if (n > span) span = n;
  }
  const int64_t ahead = a->spans && c->step->last ? c->step->ahead : 0;
  if (a->window > 0) span = pe_cpu_least(span, (int64_t)a->window + QUERIES + ahead);
  return (span + 15) & ~(int64_t)15; /* so that the scores of a query start on a cache line */
}

static void attention_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_attention_args *a = &c->args.attention;
  const int64_t group = a->heads / a->cache.heads, tiles = tiles_of(c),
                rows = QUERIES / heads_of(a);
  int64_t heads = heads_of(a);
  while (heads > 1 && tiles * a->cache.heads * ((group + heads - 1) / heads) < share->tasks)
    heads = (heads + 1) / 2;
  const int64_t parts = (group + heads - 1) / heads;
  gathering g = {.c = c, .span = span_of(c)};
  g.query = share->scratch;
  g.score = g.query + (int64_t)QUERIES * a->cache.key;
  g.sum = g.score + QUERIES * g.span;
  g.mixed = g.sum + QUERIES;
  g.decoded = g.mixed + QUERIES * a->value;
  /* Later rows see more keys, so neighbouring tiles go to different tasks. */
  for (int64_t part = 0, item = 0; part < a->cache.heads * parts; part++) {
    g.head = (int32_t)(part / parts * group + part % parts * heads);
    g.heads = (int32_t)pe_cpu_least(heads, group - part % parts * heads);
    for (int32_t s = 0; s < c->step->segments; s++) {
      g.segment = &c->step->segment[s];
      g.kv = pe_cpu_kv_of(c, &a->cache, g.segment), g.kv.head = part / parts;
      for (int64_t r = 0; r < g.segment->count; r += rows, item++) {
        if (item % share->tasks != share->task) continue;
        g.first = g.segment->first + r, g.rows = pe_cpu_least(rows, g.segment->count - r);
        attend(&g);
      }
    }
  }
}

static pe_cpu_work attention_work(const pe_cpu_call *c) {
  const pe_attention_args *a = &c->args.attention;
  return (pe_cpu_work){tiles_of(c) * a->heads,
                       (double)c->rows * a->heads * (double)span_of(c) * (a->cache.key + a->value)};
}

static int64_t attention_scratch(const pe_cpu_call *c) {
  const pe_attention_args *a = &c->args.attention;
  return QUERIES * (a->cache.key + span_of(c) + 1 + a->value) + pe_cpu_kv_room(&a->cache);
}

const pe_cpu_op pe_cpu_attention = {
    .run = attention_run, .work = attention_work, .scratch = attention_scratch};
