/* fast_attention.c - attention of `fast` precision.
 *
 * Keys are taken in stretches of PE_STRETCH tokens, counted from the start of the sequence. A
 * stretch gives a partial result for each query, which needs no other stretch: the largest score,
 * the sum of exponentials, and the sum of values. The partial results are joined in order of
 * position:
 *
 *     tokens    0 .. 511        512 .. 1023      1024 .. 1300
 *               (m, l, v)  join   (m, l, v)  join   (m, l, v)   ->  v / l
 *
 * So it does not matter who computes them: one task goes through all stretches of its queries, or,
 * when there are few queries and a long past, many tasks take a stretch each, and a second op
 * joins. The bits are the same.
 *
 * A task gathers queries that share a key head: the query heads of its group, and neighbouring
 * rows; the more there are, the fewer times keys and values are widened. Keys that a row does not
 * see have the weight zero, which adds nothing to its sums, so the rows around it make no
 * difference. The products themselves are in fast_attention_*.c. */
#include "kernels/cpu/amx16.h"
#include "kernels/cpu/fast_attention_tiles.h"

#include <math.h>

enum {
  FEW = 64,              /* gatherings; with fewer of them each stretch is a task of its own */
  PER_TASK = 2,          /* gatherings of a task at least, or they become smaller */
  MOST_PARTIAL = 1 << 22 /* floats of partial results, 16 MB; more are not worth their memory */
};

static const pe_attention_version *chosen; /* by a test */
void pe_attention_choose(const pe_attention_version *version) { chosen = version; }

/* Tiles need two bf16 numbers for each key and value. From float16 these are made as fast as memory
 * is read: with groups of 1 and 2 decode has 0.9 of the speed of vectors, with larger ones up to
 * 1.3, and prefill three times their speed. Rows of 8 and 4 bits take longer: decode has half
 * the speed of vectors. A model has one arithmetic for both, so that the cache decides, and the
 * size of the group. A cache of float32 would need three numbers and stays with vectors. */
enum { TILES_FROM = 8 };

const pe_attention_version *pe_attention_version_for(const pe_attention_args *a) {
  const bool panels = pe_kv_panel(&a->cache) > 0;
  if (a->cache.type == PE_KV_F32) return &pe_attention_vectors;
  if (chosen) return chosen;
  const pe_amx16_version *best = pe_amx16_best();
  if (!best || (!panels && a->heads / a->cache.heads < TILES_FROM)) return &pe_attention_vectors;
#ifdef __x86_64__
  if (best != &pe_amx16_emulated) return &pe_attention_tiles;
#endif
  return &pe_attention_tiles_emulated;
}

static const pe_attention_version *version_of(const pe_cpu_call *c) {
  return pe_attention_version_for(&c->args.attention);
}

bool pe_attention_finite(const float *x, int64_t n) {
  uint32_t found = 0;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    found |= (bits & 0x7f800000u) + 0x00800000u; /* an exponent of ones becomes the top bit */
  }
  return !(found & 0x80000000u);
}

/* ---- one stretch ----------------------------------------------------------------------------- */

static int64_t first_stretch(const pe_gathering *g) { return pe_row_low(g, 0) / PE_STRETCH; }
static int64_t end_stretch(const pe_gathering *g) {
  return (pe_row_end(g, g->rows - 1) - 1) / PE_STRETCH + 1;
}

/* The heads of the next row are far from these: no processor foresees that. */
static void ask_for(const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(x + i);
}

static void gather_queries(const pe_gathering *g) {
  const pe_attention_args *a = &g->c->args.attention;
  const int64_t key = a->cache.key;
  float *to = g->query;
  for (int64_t r = 0; r < g->rows; r++) {
    const float *x = pe_cpu_row(&g->c->in[0], g->first + r) + (int64_t)g->head * key;
    if (r + 1 < g->rows)
      ask_for(pe_cpu_row(&g->c->in[0], g->first + r + 1) + (int64_t)g->head * key, g->heads * key);
    for (int64_t h = 0; h < g->heads; h++, x += key, to += pe_query_step(key))
      g->c->prim->rescale(x, a->scale, NULL, 0, key, to);
  }
  g->version->prepare(g->query, g->rows * g->heads, key);
}

/* The partial results of stretch j. A row that sees no key of it gets -infinity. */
static void attend(const pe_gathering *g, int64_t j, float *result) {
  pe_stretch s = {.base = j * PE_STRETCH, .low = pe_row_low(g, 0)};
  if (s.low < s.base) s.low = s.base;
  s.end = pe_cpu_least(pe_row_end(g, g->rows - 1), s.base + PE_STRETCH);
  g->version->attend(g, &s, result);
}

/* ---- joining --------------------------------------------------------------------------------- */

/* Joins the results of a later stretch to those of the earlier ones; n queries. */
static void join(const pe_prim *prim, int64_t n, float *all, const float *next, int64_t value) {
  enum { TOGETHER = 32 };
  const int64_t at = pe_result_most(value), each = pe_result_step(value);
  for (; n > 0; n -= TOGETHER, all += TOGETHER * each, next += TOGETHER * each) {
    const int64_t queries = pe_cpu_least(n, TOGETHER);
    float scale[2][TOGETHER] = {{0}};
    for (int64_t q = 0; q < queries; q++) {
      const float a = all[q * each + at], b = next[q * each + at], most = b > a ? b : a;
      if (a != most) scale[0][q] = a - most;
      if (b != most) scale[1][q] = b - most;
    }
    prim->unary(PE_MAP_EXP, scale[0], 2 * TOGETHER, scale[0]);
    for (int64_t q = 0; q < queries; q++) {
      float *x = all + q * each;
      const float *y = next + q * each, a = scale[0][q], b = scale[1][q];
      if (y[at] == -INFINITY) continue;
      if (x[at] == -INFINITY) {
        memcpy(x, y, (size_t)(at + 2) * sizeof *x);
        continue;
      }
      prim->combine(x, a, y, b, value, x);
      x[at + 1] = x[at + 1] * a + y[at + 1] * b;
      x[at] = y[at] > x[at] ? y[at] : x[at];
    }
  }
}

static float exp1(const pe_prim *prim, float x) {
  prim->unary(PE_MAP_EXP, &x, 1, &x);
  return x;
}

/* The result of a query: where it belongs, or in place if it will be rounded. A sum that vanished
 * may have either sign, depending on the keys of weight zero: `combine` adds 0, which gives one. */
static void finish(const pe_cpu_call *c, int64_t row, int64_t head, float *all) {
  const pe_attention_args *a = &c->args.attention;
  const float most = all[pe_result_most(a->value)];
  float *out = c->result ? all : pe_cpu_row(&c->out, row) + head * a->value;
  float sum = all[pe_result_most(a->value) + 1];
  if (c->vec[0]) { /* a sink counts in the maximum and the denominator only */
    const float sink = c->vec[0][head], highest = sink > most ? sink : most;
    const float scale = exp1(c->prim, most - highest);
    sum = sum * scale + exp1(c->prim, sink - highest);
    c->prim->rescale(all, scale, NULL, 0, a->value, all);
  }
  c->prim->combine(all, 1 / sum, NULL, 0, a->value, out);
}

/* Rounds the results of a head for n rows, `step` apart. */
static void round_head(const pe_cpu_call *c, int64_t row, int64_t n, int64_t head, const float *all,
                       int64_t step) {
  const int64_t value = c->args.attention.value, col = head * value;
  const pe_int16_part part = {(int32_t)row, (int32_t)(row + n), col, col + value};
  if (c->result) c->int16->quantize(c->result, all - row * step - col, step, part);
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
  split s = {.heads = pe_cpu_least(group, PE_QUERY_GROUP)};
  s.parts = (group + s.heads - 1) / s.heads, s.rows = PE_QUERY_GROUP / s.heads;
  for (int32_t i = 0; i < c->step->segments; i++) {
    const pe_segment *segment = &c->step->segment[i];
    int64_t end = (int64_t)segment->past + segment->count;
    int64_t seen = a->window > 0 ? pe_cpu_least(end, a->window + s.rows) : end;
    if (a->spans && c->step->last) seen += c->step->ahead;
    s.tiles += (segment->count + s.rows - 1) / s.rows;
    if (seen / PE_STRETCH + 2 > s.stretches) s.stretches = seen / PE_STRETCH + 2;
  }
  s.apart = s.stretches > 2 && s.tiles * a->cache.heads * s.parts < FEW &&
            s.stretches * c->rows * a->heads * pe_result_step(a->value) <= MOST_PARTIAL;
  return s;
}

/* The partial result of a query in shared memory, by its place in the fold. */
static float *partial_at(const pe_cpu_call *c, int64_t row, int64_t head, int64_t j) {
  const pe_attention_args *a = &c->args.attention;
  return c->shared + ((j * c->rows + row) * a->heads + head) * pe_result_step(a->value);
}

/* All stretches of a gathering, joined as they come. */
static void attend_all(const pe_gathering *g, float *all, float *partial) {
  const pe_attention_args *a = &g->c->args.attention;
  const int64_t each = pe_result_step(a->value), queries = g->rows * g->heads;
  const int64_t first = first_stretch(g), end = end_stretch(g);
  gather_queries(g);
  attend(g, first, all);
  for (int64_t j = first + 1; j < end; j++) {
    attend(g, j, partial);
    join(g->c->prim, queries, all, partial, a->value);
  }
  for (int64_t q = 0; q < queries; q++)
    finish(g->c, g->first + q / g->heads, g->head + q % g->heads, all + q * each);
  for (int64_t h = 0; h < g->heads; h++)
    round_head(g->c, g->first, g->rows, g->head + h, all + h * each, g->heads * each);
}

/* The stretches of a gathering that this share takes, into shared memory. *item counts them all. */
static void attend_some(const pe_gathering *g, const pe_cpu_share *share, int64_t *item,
                        float *partial) {
  const int64_t each = pe_result_step(g->c->args.attention.value), first = first_stretch(g);
  bool gathered = false;
  for (int64_t j = first, end = end_stretch(g); j < end; j++) {
    if (!pe_cpu_takes(share, (*item)++)) continue;
    if (!gathered) gather_queries(g);
    gathered = true;
    attend(g, j, partial);
    for (int64_t q = 0; q < g->rows * g->heads; q++)
      memcpy(partial_at(g->c, g->first + q / g->heads, g->head + q % g->heads, j - first),
             partial + q * each, (size_t)each * sizeof *partial);
  }
}

/* Gatherings of all segments with this many rows each. */
static int64_t gatherings(const pe_cpu_call *c, const split *s, int64_t rows) {
  int64_t n = 0;
  for (int32_t i = 0; i < c->step->segments; i++)
    n += (c->step->segment[i].count + rows - 1) / rows;
  return n * c->args.attention.cache.heads * s->parts;
}

/* The rows of a gathering that goes through all its stretches. */
static int64_t rows_of(const pe_cpu_call *c, const split *s, int tasks) {
  int64_t rows = version_of(c)->queries / s->heads;
  while (rows > s->rows && gatherings(c, s, rows) < (int64_t)PER_TASK * tasks)
    rows = (rows + 1) / 2;
  return rows < s->rows ? s->rows : rows;
}

/* The most queries of a gathering: whole groups. */
static int64_t most_queries(const pe_cpu_call *c, const split *s) {
  int64_t longest = 1;
  for (int32_t i = 0; i < c->step->segments; i++)
    if (c->step->segment[i].count > longest) longest = c->step->segment[i].count;
  const int64_t queries = pe_cpu_least(longest * s->heads, version_of(c)->queries);
  return (queries + PE_QUERY_GROUP - 1) / PE_QUERY_GROUP * PE_QUERY_GROUP;
}

/* Later rows of a segment see more keys. Heads of a segment come one after the other as in `store`,
 * so that a core reads the keys that it has just stored. */
static void attention_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_attention_args *a = &c->args.attention;
  const split s = split_of(c);
  const int64_t group = a->heads / a->cache.heads, queries = most_queries(c, &s);
  const int64_t rows = s.apart ? s.rows : rows_of(c, &s, share->tasks);
  pe_gathering g = {.c = c, .version = version_of(c)};
  g.query = (float *)(((uintptr_t)share->scratch + 63) & ~(uintptr_t)63);
  g.score = g.query + queries * pe_query_step(a->cache.key);
  float *all = g.score + queries * PE_SCORE_STEP;
  float *partial = all + queries * pe_result_step(a->value);
  g.room = partial + queries * pe_result_step(a->value);
  for (int64_t i = 0, item = 0; i < c->step->segments; i++) {
    g.segment = &c->step->segment[i];
    g.kv = pe_cpu_kv_of(c, &a->cache, g.segment);
    for (int64_t part = 0; part < a->cache.heads * s.parts; part++) {
      g.head = (int32_t)(part / s.parts * group + part % s.parts * s.heads);
      g.heads = (int32_t)pe_cpu_least(s.heads, group - part % s.parts * s.heads);
      g.kv.head = part / s.parts;
      for (int64_t r = 0; r < g.segment->count; r += rows) {
        g.first = g.segment->first + r, g.rows = pe_cpu_least(rows, g.segment->count - r);
        if (s.apart)
          attend_some(&g, share, &item, partial);
        else if (pe_cpu_takes(share, item++))
          attend_all(&g, all, partial);
      }
    }
  }
}

/* Of a gathering with few keys. */
static const double GATHERING_COST = 4 * PE_CPU_US;

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
                       keys * a->heads * (a->cache.key + a->value) +
                           GATHERING_COST * (double)items};
}

static int64_t attention_scratch(const pe_cpu_call *c) {
  const pe_attention_args *a = &c->args.attention;
  const split s = split_of(c);
  const int64_t each = pe_query_step(a->cache.key) + PE_SCORE_STEP + 2 * pe_result_step(a->value);
  return 16 + most_queries(c, &s) * each + version_of(c)->room(a);
}

static int64_t attention_shared(const pe_cpu_call *c) {
  const pe_attention_args *a = &c->args.attention;
  const split s = split_of(c);
  return s.apart ? s.stretches * c->rows * a->heads * pe_result_step(a->value) : 0;
}

/* ---- the second op --------------------------------------------------------------------------- */

/* The stretches that a row sees, counted from the first of its tile. */
static void join_row(const pe_cpu_call *c, const split *s, int64_t row, int64_t head) {
  const pe_attention_args *a = &c->args.attention;
  const pe_segment *segment = &c->step->segment[c->step->segment_of[row]];
  const int64_t tile = (row - segment->first) / s->rows * s->rows;
  pe_gathering g = {.c = c, .segment = segment, .first = segment->first + tile};
  g.rows = pe_cpu_least(s->rows, segment->count - tile);
  const int64_t stretches = end_stretch(&g) - first_stretch(&g);
  float *all = partial_at(c, row, head, 0);
  for (int64_t j = 1; j < stretches; j++)
    join(c->prim, 1, all, partial_at(c, row, head, j), a->value);
  finish(c, row, head, all), round_head(c, row, 1, head, all, 0);
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
