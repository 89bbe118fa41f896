/* fast_attention_tiles_impl.h - the one source of fast_attention_tiles.h. The files that include it
 * define
 *
 *   PE_TILES                  name of the version
 *   TILES_BEGIN(rows), _END   set up the tiles for `rows` rows of left operands, release them
 *   TILE_LOAD(t, p, step), TILE_DOT(c, a, b), TILE_STORE(t, p, step)
 *   HALVES(p)                 sixteen float16 numbers as floats
 *
 * with tiles numbered by constants: 0 to 3 sums, 4 and 5 left operands, 6 and 7 right ones. */
#include "kernels/cpu/fast_attention_tiles.h"
#include "kernels/cpu/transpose.h"

#define ALWAYS static inline __attribute__((always_inline))

enum {
  ROWS = 16,         /* queries of a tile */
  COLS = 16,         /* results of a tile */
  BLOCK = 32,        /* numbers that a tile adds up */
  BLOCK_BYTES = 128, /* of a left line: both planes */
  PLANE = 1024,      /* bytes of a right tile */
  KEYS = 64,         /* tokens whose keys are unpacked at a time: 32 KB for 128 values each */
  PIECE = 128        /* tokens whose values are: 64 KB */
};
typedef uint32_t vu16 __attribute__((vector_size(64)));
typedef uint16_t vh32 __attribute__((vector_size(64)));

static int64_t queries_of(const pe_gathering *g) { return g->rows * g->heads; }
static int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }
static int64_t tiles_of(int64_t n) { return (n + COLS - 1) / COLS; }

ALWAYS pe_vec16 load16(const float *p) {
  pe_vec16 v;
  memcpy(&v, p, sizeof v);
  return v;
}
/* The nearest bf16 number, as a float. */
ALWAYS pe_vec16 nearest(pe_vec16 x) { return (pe_vec16)(((vu16)x + 0x8000u) & 0xffff0000u); }

/* ---- left operands --------------------------------------------------------------------------- */

/* The upper halves of 32 words. */
ALWAYS vh32 uppers(pe_vec16 a, pe_vec16 b) {
  return __builtin_shufflevector((vh32)a, (vh32)b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25,
                                 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59,
                                 61, 63);
}

/* 32 floats to both planes, in place. */
ALWAYS void split(float *x) {
  const pe_vec16 a = load16(x), b = load16(x + 16), ha = nearest(a), hb = nearest(b);
  const vh32 hi = uppers(ha, hb), lo = uppers(nearest(a - ha), nearest(b - hb));
  memcpy(x, &hi, sizeof hi);
  memcpy(x + 16, &lo, sizeof lo);
}

static void prepare(float *query, int64_t queries, int64_t n) {
  for (int64_t q = 0; q < queries; q++, query += pe_query_step(n)) {
    for (int64_t i = 0; i < n; i++)
      if (query[i] != query[i]) query[i] = __builtin_nanf(""); /* others might round to zero */
    memset(query + n, 0, (size_t)(blocks_of(n) * BLOCK - n) * sizeof *query);
    for (int64_t i = 0; i < n; i += BLOCK) split(query + i);
  }
}

/* ---- right operands -------------------------------------------------------------------------- */

/* Words of sixteen columns of two lines: both planes. */
ALWAYS void put_words(pe_vec16 a, pe_vec16 b, uint8_t *out, const int exact) {
  const pe_vec16 ha = nearest(a), hb = nearest(b);
  const pe_vec16 la = exact ? a - ha : nearest(a - ha), lb = exact ? b - hb : nearest(b - hb);
  const vu16 hi = PAIRS((vu16)ha, (vu16)hb), lo = PAIRS((vu16)la, (vu16)lb);
  memcpy(out, &hi, sizeof hi);
  memcpy(out + PLANE, &lo, sizeof lo);
}

/* The lines of a block, line i at `at` + i * step; those outside of from .. to - 1 are zeros. */
typedef struct lines {
  const uint8_t *at;
  int64_t step, from, to;
  const uint8_t *ahead; /* memory that is read soon, with the same step; or NULL */
} lines;

/* Sixteen numbers of a line from `col` on. */
ALWAYS pe_vec16 whole(const void *line, int64_t col, const int halves) {
  const uint8_t *p = (const uint8_t *)line + col * (halves ? 2 : 4);
  return halves ? HALVES(p) : load16((const float *)(const void *)p);
}
/* The same with zeros after the n numbers of the line. */
static pe_vec16 numbers(const void *line, int64_t col, int64_t n, bool halves) {
  const int64_t bytes = halves ? 2 : 4, count = n - col < COLS ? n - col : COLS;
  float copy[COLS] = {0};
  if (line) memcpy(copy, (const uint8_t *)line + col * bytes, (size_t)(count * bytes));
  return halves ? HALVES((const uint8_t *)copy) : load16(copy);
}

ALWAYS void unpack_all(const lines *l, int64_t n, uint8_t *out, const int halves) {
  for (int64_t i = 0; i < BLOCK; i += 2, out += 64) {
    const uint8_t *x = i >= l->from && i < l->to ? l->at + i * l->step : NULL;
    const uint8_t *y = i + 1 >= l->from && i + 1 < l->to ? l->at + (i + 1) * l->step : NULL;
    if (l->ahead)
      for (int64_t at = 0; at < 2 * n; at += 64) {
        __builtin_prefetch(l->ahead + i * l->step + at, 0, 2);
        __builtin_prefetch(l->ahead + (i + 1) * l->step + at, 0, 2);
      }
    int64_t col = 0;
    uint8_t *to = out;
    if (x && y)
      for (; col + COLS <= n; col += COLS, to += 2 * PLANE)
        put_words(whole(x, col, halves), whole(y, col, halves), to, halves);
    for (; col < n; col += COLS, to += 2 * PLANE)
      put_words(numbers(x, col, n, halves), numbers(y, col, n, halves), to, halves);
  }
}

static void unpack(const lines *l, int64_t n, bool halves, uint8_t *out) {
  if (halves && n == 4 * COLS)
    unpack_all(l, 4 * COLS, out, 1);
  else if (halves)
    unpack_all(l, n, out, 1);
  else
    unpack_all(l, n, out, 0);
}

/* No bf16 number of this many bytes is infinite or NaN. */
static bool finite_words(const uint8_t *at, int64_t bytes) {
  uint32_t found = 0;
  for (int64_t i = 0; i < bytes; i += 4) {
    uint32_t w;
    memcpy(&w, at + i, sizeof w);
    found |= ((w & 0x7f800000u) + 0x00800000u) | ((w << 16 & 0x7f800000u) + 0x00800000u);
  }
  return !(found & 0x80000000u);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct product { /* sums of `left` lines times `right` blocks; steps in bytes */
  const uint8_t *left, *right;
  int64_t left_step, blocks, tiles; /* tiles: of a right block */
  uint8_t *sums;
  int64_t sums_step;
  bool add; /* to the sums that are there */
} product;

/* Tiles 0 .. n - 1. TILEZERO would make the first product of a tile wait three times as long as a
 * load of zeros does. */
ALWAYS void clear(const int n) {
  static const uint8_t zeros[64];
  TILE_LOAD(0, zeros, 0);
  if (n > 1) TILE_LOAD(1, zeros, 0);
  if (n > 2) TILE_LOAD(2, zeros, 0);
  if (n > 3) TILE_LOAD(3, zeros, 0);
}

ALWAYS void store_sums(uint8_t *to, size_t step, const int n) {
  TILE_STORE(0, to, step);
  if (n > 1) TILE_STORE(1, to + 64, step);
  if (n > 2) TILE_STORE(2, to + 128, step);
  if (n > 3) TILE_STORE(3, to + 192, step);
}

ALWAYS void load_sums(const uint8_t *from, size_t step, const int n) {
  TILE_LOAD(0, from, step);
  if (n > 1) TILE_LOAD(1, from + 64, step);
  if (n > 2) TILE_LOAD(2, from + 128, step);
  if (n > 3) TILE_LOAD(3, from + 192, step);
}

/* 2 x 2 tiles from query q and tile t on. */
static void four(const product *p, int64_t q, int64_t t) {
  const size_t step = (size_t)p->left_step, to = (size_t)p->sums_step;
  const uint8_t *a0 = p->left + q * p->left_step, *a1 = a0 + ROWS * p->left_step;
  const uint8_t *b = p->right + t * 2 * PLANE;
  uint8_t *c0 = p->sums + q * p->sums_step + t * COLS * 4, *c1 = c0 + ROWS * p->sums_step;
  if (p->add) {
    TILE_LOAD(0, c0, to);
    TILE_LOAD(1, c0 + 64, to);
    TILE_LOAD(2, c1, to);
    TILE_LOAD(3, c1 + 64, to);
  } else {
    clear(4);
  }
  for (int64_t k = 0; k < p->blocks; k++) {
    TILE_LOAD(4, a0 + 64, step);
    TILE_LOAD(6, b, 64);
    TILE_DOT(0, 4, 6);
    TILE_LOAD(7, b + 2 * PLANE, 64);
    TILE_DOT(1, 4, 7);
    TILE_LOAD(5, a1 + 64, step);
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
    TILE_LOAD(4, a0, step);
    TILE_DOT(0, 4, 6);
    TILE_DOT(1, 4, 7);
    TILE_LOAD(5, a1, step);
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
    TILE_LOAD(6, b + PLANE, 64);
    TILE_DOT(0, 4, 6);
    TILE_LOAD(7, b + 3 * PLANE, 64);
    TILE_DOT(1, 4, 7);
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
    a0 += BLOCK_BYTES, a1 += BLOCK_BYTES, b += p->tiles * 2 * PLANE;
  }
  TILE_STORE(0, c0, to);
  TILE_STORE(1, c0 + 64, to);
  TILE_STORE(2, c1, to);
  TILE_STORE(3, c1 + 64, to);
}

/* The products of a right tile with the left one that is loaded. */
#define ONE(c, b)                                                                                  \
  do {                                                                                             \
    TILE_LOAD(6, b, 64);                                                                           \
    TILE_DOT(c, 4, 6);                                                                             \
    TILE_DOT(c, 5, 6);                                                                             \
    TILE_LOAD(7, (b) + PLANE, 64);                                                                 \
    TILE_DOT(c, 5, 7);                                                                             \
  } while (0)

/* A block of one left tile by n right ones, 1 to 4. */
ALWAYS void step_some(const uint8_t *left, size_t step, const uint8_t *right, const int n) {
  TILE_LOAD(4, left + 64, step);
  TILE_LOAD(5, left, step);
  ONE(0, right);
  if (n > 1) ONE(1, right + 2 * PLANE);
  if (n > 2) ONE(2, right + 4 * PLANE);
  if (n > 3) ONE(3, right + 6 * PLANE);
}

/* One tile of queries by n tiles, 1 to 4, from t on. */
static void some(const product *p, int64_t q, int64_t t, const int n) {
  const size_t step = (size_t)p->left_step, to = (size_t)p->sums_step;
  uint8_t *c = p->sums + q * p->sums_step + t * COLS * 4;
  if (p->add)
    load_sums(c, to, n);
  else
    clear(n);
  for (int64_t k = 0; k < p->blocks; k++)
    step_some(p->left + q * p->left_step + k * BLOCK_BYTES, step,
              p->right + (k * p->tiles + t) * 2 * PLANE, n);
  store_sums(c, to, n);
}

/* Queries from .. to - 1, whole tiles of them, by tiles 0 .. tiles - 1. */
static void multiply(const product *p, int64_t from, int64_t to, int64_t tiles) {
  int64_t q = from, t;
  for (; q + ROWS < to; q += 2 * ROWS) {
    for (t = 0; t + 2 <= tiles; t += 2) four(p, q, t);
    if (t == tiles) continue;
    some(p, q, t, 1);
    some(p, q + ROWS, t, 1);
  }
  for (t = 0; q < to && t < tiles; t += 4) some(p, q, t, (int)pe_cpu_least(tiles - t, 4));
}

/* The queries that see at least one of the keys t .. to - 1: whole tiles. */
static void seeing(const pe_gathering *g, int64_t t, int64_t to, int64_t *from, int64_t *end) {
  int64_t row = 0, last = g->rows;
  while (row < g->rows && pe_row_end(g, row) <= t) row++;
  while (last > row && pe_row_low(g, last - 1) >= to) last--;
  *from = row * g->heads / ROWS * ROWS, *end = last * g->heads;
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Parts of g->room, in floats: the right operand, lines of keys, decoded rows. */
typedef struct parts {
  int64_t right, lines, decoded;
} parts;
static parts parts_of(const pe_attention_args *a) {
  const int64_t keys = blocks_of(a->cache.key) * BLOCK * KEYS;
  const int64_t values = tiles_of(a->value) * COLS * PIECE;
  const int64_t row = 2 * 4 * 2 * PLANE / 4 + BLOCK * a->value; /* scores_of_row, values_of_row */
  const int64_t most = keys > values ? keys : values;
  return (parts){most > row ? most : row, pe_kv_panel(&a->cache) ? 0 : keys,
                 pe_cpu_kv_room(&a->cache) + COLS};
}

/* Keys t .. to - 1, stored as rows, to lines of numbers. */
static void turn_rows(const pe_gathering *g, int64_t t, int64_t to, float *out, float *room) {
  const int64_t base = t - t % KEYS;
  const float *rows;
  for (int64_t run, step; t < to; t += run) {
    /* whole columns of the transposition, except at the ends */
    run = pe_cpu_least(to, t - t % COLS + COLS) - t;
    run = pe_cpu_kv_rows(&g->kv, PE_CPU_KEYS, t, run, room, &rows, &step);
    const int64_t first = t % COLS;
    for (int64_t k = 0; k < g->kv.args->key; k += COLS) {
      pe_vec16 v[COLS];
      memset(v, 0, sizeof v);
      for (int64_t i = 0; i < run; i++) v[first + i] = load16(rows + i * step + k);
      pe_transpose16(v);
      for (int64_t i = 0; i < COLS; i++)
        memcpy(out + (k + i) * KEYS + (t - base), (const float *)&v[i] + first,
               (size_t)run * sizeof *out);
    }
  }
}

/* Unpacks `count` lines of n numbers; line i + 1 is `step` bytes after line i. */
static void unpack_lines(const uint8_t *at, int64_t step, int64_t count, int64_t n, bool halves,
                         const uint8_t *ahead, uint8_t *out) {
  for (int64_t i = 0; i < count; i += BLOCK, out += tiles_of(n) * 2 * PLANE)
    unpack(&(lines){at + i * step, step, 0, count - i, ahead ? ahead + i * step : NULL}, n, halves,
           out);
}

/* The panel of token t. */
static const uint8_t *panel_at(const pe_gathering *g, int64_t t) {
  const pe_cache_args *a = g->kv.args;
  const int64_t panel = pe_kv_panel(a);
  return pe_cpu_kv_block(&g->kv, PE_CPU_KEYS, t) + t % a->block / panel * panel * a->key * 2;
}
/* What is read after the panel of token t: the next one, or the first values. */
static const uint8_t *after_panel(const pe_gathering *g, const pe_stretch *s, int64_t t) {
  const pe_cache_args *a = g->kv.args;
  if (t + pe_kv_panel(a) < s->end) return panel_at(g, t + pe_kv_panel(a));
  return pe_cpu_kv_block(&g->kv, PE_CPU_VALUES, s->low) + s->low % a->block * a->value * 2;
}

/* One row of the step. The products of a block of lines follow after the next one is unpacked: by
 * then it is in the first-level cache, and they take place while the one after it is unpacked. */
typedef struct pending {
  const uint8_t *left, *right;
  size_t left_step, sums_step;
  uint8_t *sums;       /* stored here after the products, or NULL */
  const uint8_t *from; /* loaded from here before them, or NULL */
  bool clear;
  int n; /* tiles, 1 to 4; 0: nothing */
} pending;

ALWAYS void begin_products(const pending *p) {
  if (!p->n) return;
  if (p->clear) clear(p->n);
  if (p->from) load_sums(p->from, p->sums_step, p->n);
  TILE_LOAD(4, p->left + 64, p->left_step);
  TILE_LOAD(5, p->left, p->left_step);
}
ALWAYS void end_products(const pending *p) {
  if (p->n && p->sums) store_sums(p->sums, p->sums_step, p->n);
}
static void catch_up(const pending *p) {
  begin_products(p);
  if (p->n > 0) ONE(0, p->right);
  if (p->n > 1) ONE(1, p->right + 2 * PLANE);
  if (p->n > 2) ONE(2, p->right + 4 * PLANE);
  if (p->n > 3) ONE(3, p->right + 6 * PLANE);
  end_products(p);
}

ALWAYS void unpack_eight(const lines *l, int64_t from, uint8_t *out) {
  for (int64_t i = from; i < from + 8; i += 2) {
    const uint8_t *x = l->at + i * l->step, *y = x + l->step;
    if (l->ahead) {
      const uint8_t *next = l->ahead + i * l->step;
      __builtin_prefetch(next, 0, 2);
      __builtin_prefetch(next + 64, 0, 2);
      __builtin_prefetch(next + l->step, 0, 2);
      __builtin_prefetch(next + l->step + 64, 0, 2);
    }
    for (int64_t c = 0; c < 4; c++)
      put_words(HALVES(x + c * 32), HALVES(y + c * 32), out + c * 2 * PLANE + i * 32, 1);
  }
}

/* Unpacks a block of n columns and makes the products of the one before it. */
static void unpack_next(const lines *l, int64_t n, uint8_t *out, const pending *p) {
  if (n != 4 * COLS || p->n != 4 || l->from > 0 || l->to < BLOCK) {
    unpack(l, n, true, out);
    catch_up(p);
    return;
  }
  begin_products(p);
  unpack_eight(l, 0, out);
  ONE(0, p->right);
  unpack_eight(l, 8, out);
  ONE(1, p->right + 2 * PLANE);
  unpack_eight(l, 16, out);
  ONE(2, p->right + 4 * PLANE);
  unpack_eight(l, 24, out);
  ONE(3, p->right + 6 * PLANE);
  end_products(p);
}

static void scores_of_row(const pe_gathering *g, const pe_stretch *s) {
  const int64_t key = g->kv.args->key, panel = pe_kv_panel(g->kv.args);
  uint8_t *room = (uint8_t *)(void *)g->room, *right = room;
  pending p = {.left_step = (size_t)pe_query_step(key) * 4, .sums_step = PE_SCORE_STEP * 4};
  TILES_BEGIN(g->heads);
  for (int64_t t = s->low - s->low % panel; t < s->end; t += panel) {
    const uint8_t *at = panel_at(g, t), *ahead = after_panel(g, s, t);
    for (int64_t i = 0; i < key; i += BLOCK) {
      right = right == room ? room + 4 * 2 * PLANE : room;
      unpack_next(&(lines){at + i * panel * 2, panel * 2, 0, key - i, ahead + i * panel * 2}, panel,
                  right, &p);
      p.left = (const uint8_t *)g->query + i / BLOCK * BLOCK_BYTES, p.right = right;
      p.n = (int)tiles_of(panel), p.clear = i == 0;
      p.sums = i + BLOCK < key ? NULL : (uint8_t *)(g->score + (t - s->base));
    }
  }
  catch_up(&p);
  TILES_END;
}

static void scores(const pe_gathering *g, const pe_stretch *s) {
  const pe_attention_args *a = &g->c->args.attention;
  const parts size = parts_of(a);
  const int64_t panel = pe_kv_panel(&a->cache), many = panel ? panel : KEYS;
  const int64_t queries = queries_of(g);
  uint8_t *right = (uint8_t *)(void *)g->room;
  float *turned = g->room + size.right;
  if (panel && g->rows == 1) {
    scores_of_row(g, s);
    return;
  }
  TILES_BEGIN(queries < ROWS ? (int)queries : ROWS);
  for (int64_t t = s->low - s->low % many; t < s->end; t += many) {
    int64_t from, to;
    if (panel) {
      unpack_lines(panel_at(g, t), panel * 2, a->cache.key, panel, true, after_panel(g, s, t),
                   right);
    } else {
      turn_rows(g, t > s->low ? t : s->low, pe_cpu_least(t + KEYS, s->end), turned,
                turned + size.lines);
      unpack_lines((const uint8_t *)turned, KEYS * 4, a->cache.key, KEYS, false, NULL, right);
    }
    seeing(g, t, t + many, &from, &to);
    const product p = {.left = (const uint8_t *)g->query,
                       .right = right,
                       .left_step = pe_query_step(a->cache.key) * 4,
                       .blocks = blocks_of(a->cache.key),
                       .tiles = tiles_of(many),
                       .sums = (uint8_t *)(g->score + (t - s->base)),
                       .sums_step = PE_SCORE_STEP * 4};
    multiply(&p, from, to, tiles_of(pe_cpu_least(many, s->end - t)));
  }
  TILES_END;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Values are read as they are stored. */
static bool halves_of(const pe_attention_args *a) {
  return a->cache.value && a->cache.type == PE_KV_F16;
}

/* Lines of the values of tokens t .. t + BLOCK - 1; those outside of low .. end - 1 are zeros. They
 * are where they are stored, or in `room`. */
static lines value_lines(const pe_gathering *g, int64_t t, int64_t low, int64_t end, float *room) {
  const pe_attention_args *a = &g->c->args.attention;
  const int which = a->cache.value ? PE_CPU_VALUES : PE_CPU_KEYS;
  const int64_t from = t > low ? t : low, to = pe_cpu_least(t + BLOCK, end);
  const int64_t bytes = pe_kv_row_bytes((pe_kv_type)a->cache.type, a->value);
  const bool halves = halves_of(a);
  lines l = {(const uint8_t *)room, bytes, from - t, to - t, NULL};
  if (halves && a->cache.block >= BLOCK) {
    if (from < to) l.at = pe_cpu_kv_block(&g->kv, which, from) + t % a->cache.block * bytes;
    if (t + 2 * BLOCK < end)
      l.ahead =
          pe_cpu_kv_block(&g->kv, which, t + 2 * BLOCK) + (t + 2 * BLOCK) % a->cache.block * bytes;
    return l;
  }
  if (!halves)
    l.step = pe_kv_row_values((pe_kv_type)a->cache.type,
                              a->cache.value ? a->cache.value : a->cache.key) *
             4;
  uint8_t *out = (uint8_t *)(void *)room + (from - t) * l.step;
  for (int64_t i = from, run, step; i < to; i += run, out += run * l.step) {
    const float *rows;
    run = pe_cpu_least(to - i, a->cache.block - i % a->cache.block);
    if (halves)
      memcpy(out, pe_cpu_kv_block(&g->kv, which, i) + i % a->cache.block * bytes,
             (size_t)(run * bytes));
    else
      run = pe_cpu_kv_rows(&g->kv, which, i, run, (float *)(void *)out, &rows, &step);
  }
  return l;
}

/* One row of the step, as in scores_of_row, 64 columns at a time. Memory is read in its order; the
 * sums of so few queries are soon loaded and stored. */
static void values_of_row(const pe_gathering *g, const pe_stretch *s, float *result) {
  const int64_t value = g->c->args.attention.value, wide = 4 * COLS;
  uint8_t *room = (uint8_t *)(void *)g->room, *right = room;
  pending p = {.left_step = PE_SCORE_STEP * 4, .sums_step = (size_t)pe_result_step(value) * 4};
  TILES_BEGIN(g->heads);
  for (int64_t t = s->low - s->low % BLOCK; t < s->end; t += BLOCK) {
    lines l = value_lines(g, t, s->low, s->end, g->room + 2 * 4 * 2 * PLANE / 4);
    for (int64_t c = 0; c < value; c += wide, l.at += wide * 2) {
      right = right == room ? room + 4 * 2 * PLANE : room;
      unpack_next(&l, pe_cpu_least(value - c, wide), right, &p);
      if (l.ahead) l.ahead += wide * 2;
      p.left = (const uint8_t *)(g->score + (t - s->base)), p.right = right;
      p.n = (int)tiles_of(pe_cpu_least(value - c, wide));
      p.from = p.sums = (uint8_t *)(result + c);
    }
  }
  catch_up(&p);
  TILES_END;
}

/* Adds the unpacked values of tokens t .. to - 1 to the results of queries first .. last - 1. */
static void add_piece(const pe_gathering *g, const pe_stretch *s, int64_t t, int64_t to,
                      int64_t first, int64_t last, float *result) {
  const pe_attention_args *a = &g->c->args.attention;
  const product p = {.left = (const uint8_t *)(g->score + (t - s->base)),
                     .right = (const uint8_t *)g->room,
                     .left_step = PE_SCORE_STEP * 4,
                     .blocks = blocks_of(to - t),
                     .tiles = tiles_of(a->value),
                     .sums = (uint8_t *)result,
                     .sums_step = pe_result_step(a->value) * 4,
                     .add = true};
  multiply(&p, first, last, p.tiles);
}

static void unpack_piece(const pe_gathering *g, int64_t t, int64_t to, int64_t low, int64_t end) {
  const pe_attention_args *a = &g->c->args.attention;
  const parts size = parts_of(a);
  uint8_t *out = (uint8_t *)(void *)g->room;
  for (; t < to; t += BLOCK, out += tiles_of(a->value) * 2 * PLANE) {
    const lines l = value_lines(g, t, low, end, g->room + size.right + size.lines);
    unpack(&l, a->value, halves_of(a), out);
  }
}

/* Infinities and NaN among the values: a row must not multiply those that it does not see. */
static void values_apart(const pe_gathering *g, const pe_stretch *s, int64_t t, int64_t to,
                         float *result) {
  TILES_BEGIN(g->heads);
  for (int64_t r = 0; r < g->rows; r++) {
    const int64_t low = pe_row_low(g, r), end = pe_row_end(g, r), q = r * g->heads;
    unpack_piece(g, t, to, low > s->low ? low : s->low, pe_cpu_least(end, s->end));
    add_piece(g, s, t, to, q, q + 1, result);
  }
}

static void values(const pe_gathering *g, const pe_stretch *s, float *result) {
  /* All rows see the keys from `shared` to `least`. */
  const int64_t shared = pe_row_low(g, g->rows - 1), least = pe_row_end(g, 0);
  const int64_t queries = queries_of(g), start = s->low - s->low % BLOCK;
  const int64_t stop = (s->end + BLOCK - 1) / BLOCK * BLOCK;
  for (int64_t q = 0; q < queries; q++)
    for (int64_t t = start; t < stop; t += BLOCK)
      split(g->score + q * PE_SCORE_STEP + (t - s->base));
  if (g->rows == 1 && halves_of(&g->c->args.attention)) {
    values_of_row(g, s, result);
    return;
  }
  const int rows = queries < ROWS ? (int)queries : ROWS;
  TILES_BEGIN(rows);
  for (int64_t t = start, to; t < stop; t = to) {
    int64_t first, last;
    to = pe_cpu_least(t - t % PIECE + PIECE, stop);
    unpack_piece(g, t, to, s->low, s->end);
    seeing(g, t, to, &first, &last);
    const int64_t bytes = blocks_of(to - t) * tiles_of(g->c->args.attention.value) * 2 * PLANE;
    if ((t < shared || to > least) && g->rows > 1 &&
        !finite_words((const uint8_t *)g->room, bytes)) {
      values_apart(g, s, t, to, result);
      TILES_BEGIN(rows);
      continue;
    }
    add_piece(g, s, t, to, first, last, result);
  }
  TILES_END;
}

static int64_t room(const pe_attention_args *a) {
  const parts size = parts_of(a);
  return size.right + size.lines + size.decoded;
}

const pe_attention_version PE_TILES = {
    .queries = 256, .prepare = prepare, .scores = scores, .values = values, .room = room};
