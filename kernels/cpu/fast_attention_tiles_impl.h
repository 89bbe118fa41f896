/* fast_attention_tiles_impl.h - the one source of fast_attention_tiles.h. The files that include it
 * define
 *
 *   PE_TILES                  name of the version
 *   TILES_BEGIN(rows), _END   set up the tiles for `rows` rows of left operands, release them
 *   TILE_LOAD(t, p, step), TILE_DOT(c, a, b), TILE_STORE(t, p, step)
 *   HALVES(p)                 sixteen float16 numbers as floats
 *   PAIRS(a, b)               words of the upper halves of those of a and b
 *   NOT_BELOW(a, b)           a < b ? b : a
 *   KEPT_NAN(y, x)            y, or x where that is NaN and y has not become NaN by it
 *   HERE(v)                   compute the vector v at this place
 *
 * with tiles numbered by constants: 0 to 3 sums, 4 and 5 left operands, 6 and 7 right ones. */
#include "kernels/cpu/fast_attention_tiles.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vector_impl.h"

#include <math.h>

enum {
  ROWS = 16,         /* queries of a tile */
  COLS = 16,         /* results of a tile */
  BLOCK = 32,        /* numbers that a tile adds up */
  BLOCK_BYTES = 128, /* of a left line: both planes */
  PLANE = 1024,      /* bytes of a right tile */
  ROOM = 8 * PLANE,  /* of four right tiles, both planes: what few queries unpack at a time */
  KEYS = 64,         /* tokens whose keys are unpacked at a time: 32 KB for 128 values each */
  PIECE = 128,       /* tokens whose weights are made at a time */
  PART = 2 * ROWS    /* queries that go through a stretch together */
};
typedef uint16_t vh32 __attribute__((vector_size(64)));

static int64_t queries_of(const pe_gathering *g) { return g->rows * g->heads; }
static int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }
static int64_t tiles_of(int64_t n) { return (n + COLS - 1) / COLS; }

/* The nearest bf16 number, as a float. */
ALWAYS vf nearest(vf x) { return (vf)(((vu)x + 0x8000u) & 0xffff0000u); }

/* ---- left operands --------------------------------------------------------------------------- */

/* The upper halves of 32 words. */
ALWAYS vh32 uppers(vu a, vu b) {
  return __builtin_shufflevector((vh32)a, (vh32)b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25,
                                 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59,
                                 61, 63);
}

/* 32 floats to both planes. */
ALWAYS void split(vf a, vf b, float *x) {
  const vf ha = nearest(a), hb = nearest(b);
  const vh32 hi = uppers((vu)ha, (vu)hb);
  const vh32 lo = uppers((vu)(a - ha) + 0x8000u, (vu)(b - hb) + 0x8000u);
  memcpy(x, &hi, sizeof hi);
  memcpy(x + 16, &lo, sizeof lo);
}

static void prepare(float *query, int64_t queries, int64_t n) {
  for (int64_t q = 0; q < queries; q++, query += pe_query_step(n)) {
    for (int64_t i = 0; i < n; i++)
      if (query[i] != query[i]) query[i] = __builtin_nanf(""); /* others might round to zero */
    memset(query + n, 0, (size_t)(blocks_of(n) * BLOCK - n) * sizeof *query);
    for (int64_t i = 0; i < n; i += BLOCK)
      split(load(query + i), load(query + i + LANES), query + i);
  }
}

/* ---- right operands -------------------------------------------------------------------------- */

/* Words of sixteen columns of two lines: both planes. */
ALWAYS void put_words(vf a, vf b, uint8_t *out, const int exact) {
  const vf ha = nearest(a), hb = nearest(b);
  const vf la = exact ? a - ha : nearest(a - ha), lb = exact ? b - hb : nearest(b - hb);
  const vu hi = PAIRS((vu)ha, (vu)hb), lo = PAIRS((vu)la, (vu)lb);
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
ALWAYS vf whole(const void *line, int64_t col, const int halves) {
  const uint8_t *p = (const uint8_t *)line + col * (halves ? 2 : 4);
  return halves ? HALVES(p) : load((const float *)(const void *)p);
}
/* The same with zeros after the n numbers of the line. */
static vf numbers(const void *line, int64_t col, int64_t n, bool halves) {
  const int64_t bytes = halves ? 2 : 4, count = n - col < COLS ? n - col : COLS;
  float copy[COLS] = {0};
  if (line) memcpy(copy, (const uint8_t *)line + col * bytes, (size_t)(count * bytes));
  return halves ? HALVES((const uint8_t *)copy) : load(copy);
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
    for (; col + COLS <= n; col += COLS, to += 2 * PLANE)
      put_words(x ? whole(x, col, halves) : splat(0), y ? whole(y, col, halves) : splat(0), to,
                halves);
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

/* ---- weights --------------------------------------------------------------------------------- */

/* Queries that go through a stretch together. */
typedef struct part {
  const pe_gathering *g;
  pe_stretch s;                 /* what they see of it */
  int64_t first, queries;       /* in the gathering */
  float *score, *result;        /* of the first one */
  int64_t from[PART], to[PART]; /* the keys that each sees, from s.base on */
  float most[PART];
  vf sum[PART]; /* key t is in lane t % LANES */
} part;

/* slot: the place of its scores, in parts */
static part part_of(const pe_gathering *g, const pe_stretch *s, int64_t first, int64_t slot,
                    float *result) {
  const int64_t each = pe_result_step(g->c->args.attention.value);
  part p = {.g = g, .s = *s, .first = first};
  p.queries = pe_cpu_least(PART, queries_of(g) - first);
  p.score = g->score + slot * PART * PE_SCORE_STEP, p.result = result + first * each;
  for (int64_t q = 0; q < p.queries; q++) {
    const int64_t row = (first + q) / g->heads, low = pe_row_low(g, row), end = pe_row_end(g, row);
    p.from[q] = low > s->low ? low - s->base : s->low - s->base;
    p.to[q] = pe_cpu_least(end, s->end) - s->base;
    p.most[q] = -INFINITY;
  }
  /* Neither decreases with the row. */
  p.s.low = s->base + p.from[0], p.s.end = s->base + p.to[p.queries - 1];
  return p;
}

/* The largest score of query q; a softcap changes all of them. */
static void find_most(part *p, int64_t q) {
  const float cap = p->g->c->args.attention.softcap;
  const pe_prim *prim = p->g->c->prim;
  const int64_t n = p->to[q] - p->from[q];
  float *s = p->score + q * PE_SCORE_STEP + p->from[q];
  if (n <= 0) return;
  if (cap > 0) {
    for (int64_t i = 0; i < n; i++) s[i] /= cap;
    prim->unary(PE_MAP_TANH, s, n, s);
    for (int64_t i = 0; i < n; i++) s[i] *= cap;
  }
  p->most[q] = prim->max(s, n);
}

/* v where from <= lane < to, else 0. */
ALWAYS vf within(vf v, int64_t from, int64_t to) {
  const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (vf)((vi)v & (lane >= (int32_t)from) & (lane < (int32_t)to));
}

/* The scores of a block of tokens of a query to weights, as a left operand, in three steps. */
typedef struct weighing {
  float *at;
  vf most, sum;
  vf x[2];
  exp_parts e[2];
} weighing;

ALWAYS void weigh_begin(weighing *w) {
  for (int i = 0; i < 2; i++) {
    w->x[i] = load(w->at + i * LANES) - w->most;
    w->e[i] = exp_begin(NOT_BELOW(w->x[i], splat(-104.f))); /* never above zero */
    HERE(w->e[i].r);
  }
}
ALWAYS void weigh_middle(weighing *w) {
  for (int i = 0; i < 2; i++) {
    w->e[i] = exp_middle(w->e[i]);
    HERE(w->e[i].r);
  }
}
ALWAYS vf weight(const weighing *w, const int i) { return KEPT_NAN(exp_end(w->e[i]), w->x[i]); }
ALWAYS void weigh_end(weighing *w, vf a, vf b) {
  w->sum = w->sum + a;
  w->sum = w->sum + b;
  split(a, b, w->at);
  w->at += BLOCK;
}
/* Step i of 3 for each block. */
ALWAYS void weigh_step(weighing *w, const int i) {
  if (i % 3 == 0) weigh_begin(w);
  if (i % 3 == 1) weigh_middle(w);
  if (i % 3 == 2) weigh_end(w, weight(w, 0), weight(w, 1));
}

ALWAYS weighing weighing_of(const part *p, int64_t q, int64_t t) {
  return (weighing){.at = p->score + q * PE_SCORE_STEP + (t - p->s.base),
                    .most = splat(p->most[q]),
                    .sum = p->sum[q]};
}

/* Tokens t .. t + n - 1 of query q, whole blocks. Weights are zero for keys that the query does not
 * see. */
static void weigh(part *p, int64_t q, int64_t t, int64_t n) {
  const int64_t from = p->from[q] - (t - p->s.base), to = p->to[q] - (t - p->s.base);
  weighing w = weighing_of(p, q, t);
  for (int64_t i = 0; i < n; i += BLOCK) {
    weigh_begin(&w);
    weigh_middle(&w);
    vf a = weight(&w, 0), b = weight(&w, 1);
    if (from > i || to < i + BLOCK)
      a = within(a, from - i, to - i), b = within(b, from - i - LANES, to - i - LANES);
    weigh_end(&w, a, b);
  }
  p->sum[q] = w.sum;
}

static void put_sums(const part *p) {
  const int64_t value = p->g->c->args.attention.value, at = pe_result_most(value);
  for (int64_t q = 0; q < p->queries; q++) {
    float *result = p->result + q * pe_result_step(value) + at;
    result[0] = p->most[q], result[1] = lanes_sum(&p->sum[q]);
  }
}

/* Weights that are made between the tile products of other parts, PIECE tokens of a query for each
 * 2 x 2 tiles of 32 numbers. A tile product keeps one of the two ports of vectors busy for sixteen
 * cycles, and the other one is used alone only as long as few instructions wait for it: a step of
 * weighing follows each product. */
typedef struct aside {
  part *p;
  int64_t q, t;                /* what is next; q: p->queries at the end */
  int64_t pieces, steps, done; /* all pieces, in so many steps; those of the next one, by steps */
} aside;

static int64_t first_token(const part *p) { return p->s.low - p->s.low % BLOCK; }
static int64_t end_token(const part *p) { return (p->s.end + BLOCK - 1) / BLOCK * BLOCK; }
static int64_t piece_end(const part *p, int64_t t) {
  return pe_cpu_least(t - t % PIECE + PIECE, end_token(p));
}

static aside aside_of(part *p, int64_t steps) {
  const int64_t first = first_token(p), end = end_token(p);
  aside a = {.p = p, .t = first, .steps = steps};
  if (first < end)
    a.pieces = p->queries * ((end - 1) / PIECE - first / PIECE + 1);
  else
    a.q = p->queries;
  return a;
}

static void next_piece(aside *a, int64_t to) {
  a->t = to;
  if (to == end_token(a->p)) a->q++, a->t = first_token(a->p);
}
static void weigh_piece(aside *a) {
  const int64_t to = piece_end(a->p, a->t);
  if (a->t == first_token(a->p)) find_most(a->p, a->q);
  weigh(a->p, a->q, a->t, to - a->t);
  next_piece(a, to);
}
static void weigh_rest(aside *a) {
  while (a->q < a->p->queries) weigh_piece(a);
}

/* Is there something to do in this step? */
ALWAYS bool is_due(const aside *a) { return a->done >= a->steps && a->q < a->p->queries; }
/* True: it is a whole piece that the query sees wholly. */
static bool begin_step(aside *a) {
  const part *p = a->p;
  const int64_t from = a->t - p->s.base;
  a->done += a->pieces;
  if (!is_due(a) || a->t % PIECE || from < p->from[a->q] || from + PIECE > p->to[a->q])
    return false;
  if (a->t == first_token(p)) find_most(a->p, a->q);
  return true;
}
static void end_step(aside *a, bool done) {
  if (done) {
    next_piece(a, a->t + PIECE);
    a->done -= a->steps;
  }
  for (; is_due(a); a->done -= a->steps) weigh_piece(a);
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
static const uint8_t zeros[64];
ALWAYS void clear(const int n) {
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

/* 2 x 2 tiles of sums that are still to be stored, or NULL, and those that follow. Stored right
 * before other sums take their place, they need not wait for products. */
typedef struct change {
  uint8_t *old, *next; /* tiles 0 and 1 */
  int64_t step;
  bool add; /* to the sums that are there */
} change;

/* Tile t of four. */
#define CHANGE(t, c)                                                                               \
  do {                                                                                             \
    const int64_t at = (t) / 2 * ROWS * (c)->step + (t) % 2 * 64;                                  \
    if ((c)->old) TILE_STORE(t, (c)->old + at, (c)->step);                                         \
    if ((c)->add)                                                                                  \
      TILE_LOAD(t, (c)->next + at, (c)->step);                                                     \
    else                                                                                           \
      TILE_LOAD(t, zeros, 0);                                                                      \
  } while (0)

static void store_last(change *c) {
  if (!c->old) return;
  TILE_STORE(0, c->old, c->step);
  TILE_STORE(1, c->old + 64, c->step);
  TILE_STORE(2, c->old + ROWS * c->step, c->step);
  TILE_STORE(3, c->old + ROWS * c->step + 64, c->step);
  c->old = NULL;
}

/* A block of two left tiles by two right ones. c: for the first block, else NULL; w: weights that
 * are made meanwhile, or NULL */
ALWAYS void step_four(const uint8_t *a0, const uint8_t *a1, size_t step, const uint8_t *b,
                      const change *c, weighing *w) {
  TILE_LOAD(4, a0 + 64, step);
  TILE_LOAD(6, b, 64);
  if (c) CHANGE(0, c);
  TILE_DOT(0, 4, 6);
  if (w) weigh_step(w, 0);
  TILE_LOAD(7, b + 2 * PLANE, 64);
  if (c) CHANGE(1, c);
  TILE_DOT(1, 4, 7);
  if (w) weigh_step(w, 1);
  TILE_LOAD(5, a1 + 64, step);
  if (c) CHANGE(2, c);
  TILE_DOT(2, 5, 6);
  if (w) weigh_step(w, 2);
  if (c) CHANGE(3, c);
  TILE_DOT(3, 5, 7);
  if (w) weigh_step(w, 3);
  TILE_LOAD(4, a0, step);
  TILE_DOT(0, 4, 6);
  if (w) weigh_step(w, 4);
  TILE_DOT(1, 4, 7);
  if (w) weigh_step(w, 5);
  TILE_LOAD(5, a1, step);
  TILE_DOT(2, 5, 6);
  if (w) weigh_step(w, 6);
  TILE_DOT(3, 5, 7);
  if (w) weigh_step(w, 7);
  TILE_LOAD(6, b + PLANE, 64);
  TILE_DOT(0, 4, 6);
  if (w) weigh_step(w, 8);
  TILE_LOAD(7, b + 3 * PLANE, 64);
  TILE_DOT(1, 4, 7);
  if (w) weigh_step(w, 9);
  TILE_DOT(2, 5, 6);
  if (w) weigh_step(w, 10);
  TILE_DOT(3, 5, 7);
  if (w) weigh_step(w, 11);
}

/* The same, with what an aside has to do. a: or NULL */
ALWAYS void step_aside(const uint8_t *left, size_t step, const uint8_t *b, const change *c,
                       aside *a) {
  const uint8_t *left1 = left + ROWS * step;
  if (a && begin_step(a)) {
    weighing w = weighing_of(a->p, a->q, a->t); /* in registers: nobody else has its address */
    step_four(left, left1, step, b, c, &w);
    a->p->sum[a->q] = w.sum;
    end_step(a, true);
    return;
  }
  step_four(left, left1, step, b, c, NULL);
  if (a) end_step(a, false);
}

/* 2 x 2 tiles of two tiles of queries, from tile t on. They are stored later, by `c`. a: or NULL */
ALWAYS void four(const product *p, int64_t t, change *c, aside *a) {
  const size_t step = (size_t)p->left_step;
  const uint8_t *left = p->left, *b = p->right + t * 2 * PLANE;
  c->next = p->sums + t * COLS * 4, c->step = p->sums_step, c->add = p->add;
  step_aside(left, step, b, c, a);
  for (int64_t k = 1; k < p->blocks; k++) {
    left += BLOCK_BYTES, b += p->tiles * 2 * PLANE;
    step_aside(left, step, b, NULL, a);
  }
  c->old = c->next;
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

/* ---- rows of the cache ----------------------------------------------------------------------- */

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
      vf v[COLS];
      memset(v, 0, sizeof v);
      for (int64_t i = 0; i < run; i++) v[first + i] = load(rows + i * step + k);
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

#include "kernels/cpu/fast_attention_few_impl.h"
#include "kernels/cpu/fast_attention_many_impl.h"

static void attend(const pe_gathering *g, const pe_stretch *s, float *result) {
  if (queries_of(g) <= ROWS && pe_kv_panel(g->kv.args) && !any_wild(g, s))
    attend_few(g, s, result);
  else
    attend_many(g, s, result);
}

static int64_t room(const pe_attention_args *a) {
  const int64_t row = 2 * ROOM / 4 + BLOCK * a->value; /* of attend_few */
  const int64_t many = places_of(a).all;
  return many > row ? many : row;
}

const pe_attention_version PE_TILES = {
    .queries = 512, .prepare = prepare, .attend = attend, .room = room};
