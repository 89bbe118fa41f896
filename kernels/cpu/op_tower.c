/* op_tower.c - the ops of vision towers: patches in, rows looked up in a table of positions, rows
 * merged into outputs, and attention over regions of rows. */
#include "kernels/cpu/op_tower.h"

/* ---- patches, lookup, merge ------------------------------------------------------------------ */

static void patches_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const int64_t width = c->args.patches.width;
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t r = from; r < to; r++)
    memcpy(pe_cpu_row(&c->out, r), c->step->tower.patch + r * c->step->tower.patch_width,
           (size_t)width * sizeof(float));
}

static pe_cpu_work patches_work(const pe_cpu_call *c) {
  return (pe_cpu_work){c->rows, (double)c->rows * c->args.patches.width};
}

const pe_cpu_op pe_cpu_patches = {.run = patches_run, .work = patches_work};

static void lookup_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_lookup *l = &c->step->tower.lookup;
  const int64_t width = c->mat->cols;
  float *line = share->scratch;
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t r = from; r < to; r++) {
    float *out = pe_cpu_row(&c->out, r);
    memset(out, 0, (size_t)width * sizeof *out);
    for (int32_t j = l->at[r]; j < l->at[r + 1]; j++) {
      c->prim->decode(c->mat, l->index[j], line);
      c->prim->mix(&l->weight[j], 1, 1, line, width, 1, width, out, width);
    }
  }
}

static pe_cpu_work lookup_work(const pe_cpu_call *c) {
  const double lines = c->rows ? c->step->tower.lookup.at[c->rows] : 0;
  return (pe_cpu_work){c->rows, 2 * lines * (double)c->mat->cols};
}

static int64_t lookup_scratch(const pe_cpu_call *c) { return c->mat->cols; }

const pe_cpu_op pe_cpu_lookup = {.run = lookup_run, .work = lookup_work, .scratch = lookup_scratch};

static void join_rows(const pe_cpu_call *c, const int32_t *row, float *out) {
  const pe_merge_args *a = &c->args.merge;
  for (int32_t j = 0; j < a->count; j++, out += a->width)
    memcpy(out, pe_cpu_row(&c->in[0], row[j]), (size_t)a->width * sizeof *out);
}

static void average_rows(const pe_cpu_call *c, const int32_t *row, float *out) {
  const pe_merge_args *a = &c->args.merge;
  memcpy(out, pe_cpu_row(&c->in[0], row[0]), (size_t)a->width * sizeof *out);
  for (int32_t j = 1; j < a->count; j++)
    c->prim->binary(PE_MAP_ADD, out, pe_cpu_row(&c->in[0], row[j]), a->width, out);
  for (int32_t i = 0; i < a->width; i++) out[i] /= (float)a->count;
}

static void merge_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_merge_args *a = &c->args.merge;
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t i = from; i < to; i++)
    (a->mean ? average_rows : join_rows)(c, c->step->tower.merge + i * a->count,
                                         pe_cpu_row(&c->out, i));
}

static pe_cpu_work merge_work(const pe_cpu_call *c) {
  const pe_merge_args *a = &c->args.merge;
  return (pe_cpu_work){c->rows, (double)c->rows * a->count * a->width};
}

const pe_cpu_op pe_cpu_merge = {.run = merge_run, .work = merge_work};

/* ---- attention ------------------------------------------------------------------------------- */

/* Keys and values of a region and head are packed once for all its rows: values line by line, keys
 * turned, in blocks that stay in the first cache (128 keys of 64 values are 32 KB):
 *
 *     keys     [block 0: value 0 of 128 keys, value 1 of 128 keys, ...][block 1: ...]
 *     values   [key 0: all its values][key 1: ...] ...
 *
 * So the scores of a row are sums of whole vectors of keys: heads are too short (32 to 80 values)
 * for dot products, whose lanes must be added at the end. QUERIES rows share each block. Their
 * sums run over values and keys in order, so neither number changes the result.
 *
 * Measured with 1024 rows and heads of 64: 2.0e9 multiply-adds of sixteen floats per second, where
 * registers alone do 4.8e9. `fast` differs only where there are matrix instructions: on the tiles
 * of AMX (amx16.h) keys and values are weights, two bf16 matrices each, the numbers rounded and
 * what is left of them,
 *
 *     keys     [high][low]: [key][its values]
 *     values   [high][low]: [value][all keys]
 *
 * and the products with the low parts are added to those with the high ones: 2^-16 of each key and
 * value, nearly float32. */
enum { QUERIES = 16, TILE_QUERIES = 32, KEYS = 128, PLANES = 2 };

typedef struct tile {
  const pe_cpu_call *c;
  const pe_plain *amx; /* NULL: without */
  pe_region region;
  int64_t first, rows; /* queries */
  int32_t head;
  int64_t stride; /* from the scores of one query to those of the next */
  float *keys, *values, *query, *score, *mixed, *rest;
} tile;

static int64_t queries_of(const pe_plain *amx) { return amx ? TILE_QUERIES : QUERIES; }

/* ---- with multiply-adds ---------------------------------------------------------------------- */

static void pack(const tile *t) {
  const pe_cpu_call *c = t->c;
  const pe_region_attention_args *a = &c->args.region_attention;
  const int64_t head = t->head / (a->heads / a->key_heads);
  for (int64_t k = 0; k < t->region.count; k++) {
    const float *key = pe_cpu_row(&c->in[1], t->region.first + k) + head * a->key;
    float *to = t->keys + k / KEYS * KEYS * a->key + k % KEYS;
    for (int64_t i = 0; i < a->key; i++) to[i * KEYS] = key[i];
    memcpy(t->values + k * a->value, pe_cpu_row(&c->in[2], t->region.first + k) + head * a->value,
           (size_t)a->value * sizeof(float));
  }
}

static void score_keys(const tile *t) {
  const pe_region_attention_args *a = &t->c->args.region_attention;
  for (int64_t r = 0; r < t->rows; r++)
    memset(t->score + r * t->stride, 0, (size_t)t->region.count * sizeof(float));
  for (int64_t k = 0; k < t->region.count; k += KEYS)
    t->c->prim->mix(t->query, a->key, (int)t->rows, t->keys + k * a->key, KEYS, a->key,
                    pe_cpu_least(KEYS, t->region.count - k), t->score + k, t->stride);
}

static void mix_values(const tile *t) {
  const pe_region_attention_args *a = &t->c->args.region_attention;
  memset(t->mixed, 0, (size_t)(t->rows * a->value) * sizeof(float));
  for (int64_t k = 0; k < t->region.count; k += KEYS)
    t->c->prim->mix(t->score + k, t->stride, (int)t->rows, t->values + k * a->value, a->value,
                    (int)pe_cpu_least(KEYS, t->region.count - k), a->value, t->mixed, a->value);
}

/* ---- on tiles -------------------------------------------------------------------------------- */

/* x as bf16, and what is left of it; `at`: its place in a plane of n values. */
static void split(float x, uint16_t *high, int64_t n, int64_t at) {
  high[at] = pe_f32_to_bf16(x);
  high[n + at] = pe_f32_to_bf16(x - pe_bf16_to_f32(high[at]));
}

static void pack_planes(const tile *t) {
  const pe_cpu_call *c = t->c;
  const pe_region_attention_args *a = &c->args.region_attention;
  const int64_t head = t->head / (a->heads / a->key_heads);
  uint16_t *keys = (uint16_t *)(void *)t->keys, *values = (uint16_t *)(void *)t->values;
  for (int64_t k = 0; k < t->region.count; k++) {
    const float *key = pe_cpu_row(&c->in[1], t->region.first + k) + head * a->key;
    const float *value = pe_cpu_row(&c->in[2], t->region.first + k) + head * a->value;
    for (int64_t i = 0; i < a->key; i++) split(key[i], keys, t->stride * a->key, k * a->key + i);
    for (int64_t i = 0; i < a->value; i++)
      split(value[i], values, t->stride * a->value, i * t->stride + k);
  }
}

/* out = x . rows of both planes of a matrix of `rows` x `cols`, `step` apart. */
static void plane_product(const tile *t, const float *planes, int64_t rows, int64_t cols,
                          int64_t step, int64_t plane, pe_plain_product *p) {
  pe_quant_matrix m = {.dtype = PE_BF16, .rows = rows, .cols = cols};
  m.data = (const uint8_t *)planes, m.row_bytes = (uint64_t)step * sizeof(uint16_t);
  p->w = &m, p->rows = t->rows;
  t->amx->arrange(p, t->rest);
  t->amx->product(p, 0, rows, t->rest);
  m.data += (uint64_t)plane * sizeof(uint16_t);
  p->residual = p->out, p->residual_step = p->out_step;
  t->amx->product(p, 0, rows, t->rest);
}

static void score_planes(const tile *t) {
  const pe_region_attention_args *a = &t->c->args.region_attention;
  pe_plain_product p = {.x = t->query, .x_step = a->key, .out = t->score, .out_step = t->stride};
  plane_product(t, t->keys, t->region.count, a->key, a->key, t->stride * a->key, &p);
}

static void mix_planes(const tile *t) {
  const pe_region_attention_args *a = &t->c->args.region_attention;
  pe_plain_product p = {.x = t->score, .x_step = t->stride, .out = t->mixed, .out_step = a->value};
  plane_product(t, t->values, a->value, t->region.count, t->stride, t->stride * a->value, &p);
}

/* ---- sharing the work ------------------------------------------------------------------------ */

static void attend(const tile *t) {
  const pe_region_attention_args *a = &t->c->args.region_attention;
  const pe_prim *prim = t->c->prim;
  const int64_t keys = t->region.count;
  float sum[TILE_QUERIES];
  for (int64_t r = 0; r < t->rows; r++) {
    const float *q = pe_cpu_row(&t->c->in[0], t->first + r) + (int64_t)t->head * a->key;
    for (int64_t i = 0; i < a->key; i++) t->query[r * a->key + i] = q[i] * a->scale;
  }
  (t->amx ? score_planes : score_keys)(t);
  for (int64_t r = 0; r < t->rows; r++) {
    float *s = t->score + r * t->stride;
    sum[r] = prim->exp_sum(s, prim->max(s, keys), keys);
  }
  (t->amx ? mix_planes : mix_values)(t);
  for (int64_t r = 0; r < t->rows; r++) {
    float *out = pe_cpu_row(&t->c->out, t->first + r) + (int64_t)t->head * a->value;
    for (int64_t i = 0; i < a->value; i++) out[i] = t->mixed[r * a->value + i] / sum[r];
  }
}

static const pe_regions *regions_of(const pe_cpu_call *c) {
  return &c->step->tower.region[c->args.region_attention.regions];
}

static int64_t tiles_in(pe_region r, int64_t queries) { return (r.count + queries - 1) / queries; }

static int64_t tiles_of(const pe_regions *regions, int64_t queries) {
  int64_t tiles = 0;
  for (int32_t i = 0; i < regions->count; i++) tiles += tiles_in(regions->list[i], queries);
  return tiles;
}

/* Whole blocks. */
static int64_t stride_of(const pe_regions *regions) {
  return ((int64_t)regions->longest + KEYS - 1) / KEYS * KEYS;
}

/* The tiles from .. to - 1 of a region, if there are any. */
static void attend_region(tile *t, int64_t from, int64_t to) {
  const int64_t queries = queries_of(t->amx), tiles = tiles_in(t->region, queries);
  if (from < 0) from = 0;
  if (to > tiles) to = tiles;
  if (from < to) (t->amx ? pack_planes : pack)(t);
  for (int64_t i = from; i < to; i++) {
    t->first = t->region.first + i * queries;
    t->rows = pe_cpu_least(queries, t->region.count - i * queries);
    attend(t);
  }
}

void pe_region_attention_run(const pe_cpu_call *c, const pe_cpu_share *share, const pe_plain *amx) {
  const pe_region_attention_args *a = &c->args.region_attention;
  const pe_regions *regions = regions_of(c);
  const int64_t queries = queries_of(amx);
  tile t = {.c = c, .amx = amx, .stride = stride_of(regions)};
  t.keys = share->scratch;
  t.values = t.keys + t.stride * a->key;
  t.score = t.values + t.stride * a->value;
  t.query = t.score + queries * t.stride;
  t.mixed = t.query + queries * a->key;
  t.rest = t.mixed + queries * a->value;
  int64_t from, to, item = 0;
  pe_cpu_range(share, tiles_of(regions, queries) * a->heads, &from, &to);
  for (t.head = 0; t.head < a->heads; t.head++)
    for (int32_t i = 0; i < regions->count; i++) {
      t.region = regions->list[i];
      attend_region(&t, from - item, to - item);
      item += tiles_in(t.region, queries);
    }
}

static pe_cpu_work attention_work(const pe_cpu_call *c, const pe_plain *amx) {
  const pe_region_attention_args *a = &c->args.region_attention;
  const pe_regions *regions = regions_of(c);
  double pairs = 0;
  for (int32_t i = 0; i < regions->count; i++)
    pairs += (double)regions->list[i].count * regions->list[i].count;
  return (pe_cpu_work){tiles_of(regions, queries_of(amx)) * a->heads,
                       pairs * a->heads * (a->key + a->value)};
}

/* Both planes of bf16 take as much as the floats. */
int64_t pe_region_attention_scratch(const pe_cpu_call *c, const pe_plain *amx) {
  const pe_region_attention_args *a = &c->args.region_attention;
  const int64_t stride = stride_of(regions_of(c)), queries = queries_of(amx);
  const int64_t widest = stride > a->key ? stride : a->key;
  return (queries + stride) * (a->key + a->value) + queries * stride +
         (amx ? pe_amx16_scratch(queries, widest) : 0);
}

static void exact_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  pe_region_attention_run(c, share, NULL);
}
static pe_cpu_work exact_work(const pe_cpu_call *c) { return attention_work(c, NULL); }
static int64_t exact_scratch(const pe_cpu_call *c) { return pe_region_attention_scratch(c, NULL); }

/* The tiles of AMX, or NULL. */
static const pe_plain *tiles(void) {
  const pe_amx16_version *best = pe_amx16_best();
  return best ? &best->plain : NULL;
}
static void fast_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  pe_region_attention_run(c, share, tiles());
}
static pe_cpu_work fast_work(const pe_cpu_call *c) { return attention_work(c, tiles()); }
static int64_t fast_scratch(const pe_cpu_call *c) {
  return pe_region_attention_scratch(c, tiles());
}

const pe_cpu_op pe_cpu_region_attention = {
    .run = exact_run, .work = exact_work, .scratch = exact_scratch};
const pe_cpu_op pe_cpu_fast_region_attention = {
    .run = fast_run, .work = fast_work, .scratch = fast_scratch};
