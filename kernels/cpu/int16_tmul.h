/* int16_tmul.h - a part of int16_amx.c (see int16_lanes.h): products in the tiles of AMX.
 *
 * The left operand is a plane of the activations of 16 rows and one group, the right one the bytes
 * of a panel, whose words lie as the instructions want them. Each plane has its own sum of 16 x 16:
 *
 *   rows x group (high) . group x 16 = rows x 16 integers   256 * high + low
 *   rows x group (low)  . group x 16 = rows x 16 integers   -> float, scaled, added
 *
 * Codes minus their offset fit into a signed byte; only affine codes of 8 bits, whose offset is 0,
 * are taken as unsigned. So no sum needs a correction. The bytes of both planes are signed: the
 * sums are at most 64 * 128 * 255.
 *
 * Sums leave the tile registers through memory. The three stages of a group, its products, storing
 * and scaling, run one group apart, so that the core overlaps them: each uses a unit of its own.
 * They go on from one job to the next, a job being one tile of rows and one panel, or half a tile
 * and two:
 *
 *   products   a0 a1 a2 a3 a4 a5 b0 b1 b2 b3 ...        jobs a and b of six groups each
 *   storing          a0 a1 a2 a3 a4 a5 b0 b1 ...
 *   scaling             a0 a1 a2 a3 a4 a5 b0 ...        between a5 and b0 acc changes */

#include "kernels/cpu/tile_ops.h"

/* gcc keeps acc in registers only if it unrolls all loops over rows early. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The same address, whose origin compilers do not see: otherwise they keep its sums with constants
 * in memory from turn to turn of a loop, instead of in the instructions that use them. */
ALWAYS void *here(const void *p) {
  __asm__("" : "+r"(p));
  return (void *)(uintptr_t)p;
}

/* ---- activations ----------------------------------------------------------------------------- */

enum { LAYOUT = PE_INT16_TILES, ROW_CODES = UNIT / 2 };

/* Low bytes of 16 lanes, each eight in the order 0 2 4 6 1 3 5 7. */
ALWAYS void put_bytes(vi v, uint8_t *out) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  const __m128i b = _mm_shuffle_epi8(_mm512_cvtepi32_epi8((__m512i)v), order);
  memcpy(out, &b, sizeof b);
}

/* The codes of 64 columns of a row that is one of n of its tile. */
ALWAYS void put_unit(const vi *v, int n, int16_t *codes) {
  uint8_t *high = (uint8_t *)codes, *low = high + n * UNIT;
  for (int i = 0; i < UNIT / W; i++) {
    put_bytes((v[i] + 128) >> 8, high + i * W);
    put_bytes(v[i], low + i * W);
  }
}

/* ---- weights --------------------------------------------------------------------------------- */

typedef uint8_t bytes64 __attribute__((vector_size(64)));

/* UNIT columns of a chunk from `col` on. Many kinds have no offset to subtract. */
ALWAYS void unpack_words(const pe_pack *w, const uint8_t *chunk, int col, uint8_t *out,
                         const form f, const bool subtract) {
  const vu levels = f.levels ? level_table(w) : (vu){0};
  const uint8_t *base = chunk + col * 2 * f.base, *upper = chunk + w->upper_at + col * 2 * f.upper;
  const uint8_t offset = (uint8_t)w->offset;
  UNROLL for (int j = 0; j < UNIT / 4; j++) {
    bytes64 v = (bytes64)bytes_of(base, upper, levels, j / 2, j % 2, 0, f);
    if (subtract) v -= offset;
    memcpy(out + 64 * j, &v, sizeof v);
  }
}
ALWAYS void unpack_unit(const pe_pack *w, const uint8_t *chunk, int col, uint8_t *out,
                        const form f) {
  if (w->offset)
    unpack_words(w, chunk, col, out, f, true);
  else
    unpack_words(w, chunk, col, out, f, false);
}

ALWAYS void unpack(const pe_pack *w, const uint8_t *chunk, uint8_t *out, const form f) {
  for (int col = 0; col < w->chunk; col += UNIT) unpack_unit(w, chunk, col, out + col * LANES, f);
}

#define DEFINE_UNPACK(name)                                                                        \
  static void unpack_##name(const pe_pack *w, const uint8_t *chunk, uint8_t *out) {                \
    unpack(w, chunk, out, FORM_##name);                                                            \
  }
EACH_FORM(DEFINE_UNPACK)
#undef DEFINE_UNPACK

static void (*const unpackers[FORMS])(const pe_pack *, const uint8_t *, uint8_t *) = {
#define UNPACKER(name) unpack_##name,
    EACH_FORM(UNPACKER)
#undef UNPACKER
};

static void unpack_codes(const pe_pack *w, const uint8_t *chunk, int64_t cols,
                         pe_int16_block *block, int c) {
  void (*const unpack_chunk)(const pe_pack *, const uint8_t *, uint8_t *) =
      unpackers[form_index(w)];
  uint8_t *bytes = (uint8_t *)block->codes[c];
  for (int64_t k = 0; k < cols; k += w->chunk, chunk += w->chunk_bytes, bytes += w->chunk * LANES)
    unpack_chunk(w, chunk, bytes);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* A step makes two products of a group. Of up to HALF rows both planes lie in one tile, and it is
 * multiplied by the weights of two panels; of more, each plane by those of one panel. */
enum { HALF = PE_TILE / 2 };

/* Registers: two times the sums of both products, so that one pair is stored while the other one is
 * computed; the operands. */
enum { SUMS = 0, ROWS = 4, OTHER_ROWS = 5, OTHER_WEIGHTS = 5, WEIGHTS = 6 };

typedef struct stored_sums { /* of one group: the two products */
  int32_t of[2][PE_TILE][LANES];
} __attribute__((aligned(64))) stored_sums;

typedef struct job {
  const uint8_t *x, *w[2];   /* codes of the tile of rows, and of one panel or two */
  const float *scale, *s[2]; /* their scales */
  int groups, rows;
  uint32_t col, line;   /* where it begins in the weights' codes and scales, which may be rings */
  uint32_t cols, lines; /* how many these are: powers of two */
} job;

/* Steps of a job. An even number lets the sums of even groups always be in the first pair of tiles;
 * a step without a group repeats the last one, and its sums are not used. */
ALWAYS int steps_of(const job *j) { return j->groups < 4 ? 4 : (j->groups + 1) / 2 * 2; }

/* Where the operands of a group are: from the first codes of the rows and of the weights. Unsigned,
 * so that no division is left of / and %. */
typedef struct place {
  size_t rows, weights;
} place;
ALWAYS place place_of(const task *t, const job *j, int g) {
  const uint32_t col = (uint32_t)(g * t->act);
  return (place){(size_t)(col / UNIT) * (size_t)(2 * UNIT * j->rows) + col % UNIT,
                 ((j->col + col) & (j->cols - 1)) * (size_t)LANES};
}
ALWAYS size_t place_of_line(const job *j, int g) {
  return ((j->line + (uint32_t)g) & (j->lines - 1)) * (size_t)LANES;
}

/* The operands of product k of a group that the product before it did not have, and the product. */
ALWAYS void load_weights(const job *j, place at, const int k) {
  tile_load(k ? OTHER_WEIGHTS : WEIGHTS, j->w[k] + at.weights, 64);
}
ALWAYS void load_rows(const job *j, place at, const int plane) {
  tile_load(plane ? OTHER_ROWS : ROWS, j->x + at.rows + plane * UNIT * j->rows, UNIT);
}
ALWAYS void multiply(const task *t, const int to, const int k, const bool half) {
  tile_clear(to + k);
  const int rows = half || !k ? ROWS : OTHER_ROWS, weights = half && k ? OTHER_WEIGHTS : WEIGHTS;
  if (t->narrow)
    tile_dot_ss(to + k, rows, weights);
  else
    tile_dot_su(to + k, rows, weights);
}

/* Scales and adds sums of group g: of R those from first / 16 to end / 16. */
ALWAYS void add_some(const job *j, int g, const stored_sums *from, vf acc[PE_TILE], const int first,
                     const int end, const int R, const bool half) {
  const float *scale = j->scale + g * j->rows;
  const size_t line = place_of_line(j, g);
  /* of half a tile of rows, the low planes follow the high ones */
  const int32_t *lows[2] = {here(half ? from->of[0] + j->rows : from->of[1]),
                            here(from->of[1] + j->rows)};
  UNROLL for (int r = first * R / 16; r < end * R / 16; r++) {
    const int c = half ? r / HALF : 0, row = half ? r % HALF : r;
    const vu high = load_words(from->of[c][row]);
    const vu low = load_words(lows[c] + row * LANES);
    const vf s = load(j->s[c] + line);
    acc[r] = fma_(s * splat(scale[row]), to_floats((vi)((high << 8) + low)), acc[r]);
  }
}

/* One step: products of group g of job j into the pair of tiles `to`, which hold the sums of the
 * group two steps ago until they are stored to `put`; and group h of job `past`, which was stored
 * to `get` a step ago, is scaled in between. Measured from the first- and second-level cache: 0.80
 * of the time that the same work takes stage by stage. */
ALWAYS void step(const task *t, const job *j, int g, const job *past, int h, const int to,
                 stored_sums *put, const stored_sums *get, vf acc[PE_TILE], const int R,
                 const bool half) {
  const place at = place_of(t, j, g);
  load_weights(j, at, 0);
  add_some(past, h, get, acc, 0, 3, R, half);
  load_rows(j, at, 0);
  add_some(past, h, get, acc, 3, 5, R, half);
  tile_store(to, put->of[0], 64), multiply(t, to, 0, half);
  add_some(past, h, get, acc, 5, 9, R, half);
  if (half)
    load_weights(j, at, 1);
  else
    load_rows(j, at, 1);
  add_some(past, h, get, acc, 9, 12, R, half);
  tile_store(to + 1, put->of[1], 64), multiply(t, to, 1, half);
  add_some(past, h, get, acc, 12, 16, R, half);
}

enum { EVEN = SUMS, ODD = SUMS + 2 };

ALWAYS void keep(stored_sums *s, const int from) {
  tile_store(from, s->of[0], 64), tile_store(from + 1, s->of[1], 64);
}

/* A step at one end of a job: g may be past the last group, and `past` may have no group h. */
ALWAYS void edge_step(const task *t, const job *j, int g, const job *past, int h, const int to,
                      stored_sums *put, const stored_sums *get, vf acc[PE_TILE], const int R,
                      const bool half) {
  g = g < j->groups ? g : j->groups - 1;
  if (h < past->groups) {
    step(t, j, g, past, h, to, put, get, acc, R, half);
    return;
  }
  const place at = place_of(t, j, g);
  load_weights(j, at, 0), load_rows(j, at, 0);
  if (half)
    load_weights(j, at, 1);
  else
    load_rows(j, at, 1);
  keep(put, to), multiply(t, to, 0, half), multiply(t, to, 1, half);
}

/* The last three steps of a job after which there is none. */
ALWAYS void drain(const job *j, stored_sums s[2], vf acc[PE_TILE], const int R, const bool half) {
  const int n = steps_of(j);
  if (n - 3 < j->groups) add_some(j, n - 3, &s[1], acc, 0, 16, R, half);
  keep(&s[0], EVEN), keep(&s[1], ODD);
  if (n - 2 < j->groups) add_some(j, n - 2, &s[0], acc, 0, 16, R, half);
  if (n - 1 < j->groups) add_some(j, n - 1, &s[1], acc, 0, 16, R, half);
}

ALWAYS void load_acc(const float *from, int step, vf acc[PE_TILE], const int R) {
  UNROLL for (int r = 0; r < R; r++) acc[r] = load(from + r * step);
}
ALWAYS void store_acc(float *to, int step, const vf acc[PE_TILE], const int R) {
  UNROLL for (int r = 0; r < R; r++) store(to + r * step, acc[r]);
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* Job i is tile i / C and panel i % C. */
ALWAYS job job_at(const task *t, int i, const int R, const int C) {
  return (job){.x = (const uint8_t *)(t->x.codes + i / C * t->next_codes),
               .w = {(const uint8_t *)t->block->codes[i % C]},
               .scale = t->x.scale + i / C * t->next_scales,
               .s = {t->block->s[i % C]},
               .groups = t->groups,
               .rows = R,
               .cols = COLS,
               .lines = PE_INT16_GROUPS};
}
ALWAYS float *sums_of(float *sums, int i, const int R, const int C) {
  return sums + i / C * R * C * LANES + i % C * LANES;
}

ALWAYS void begin_job(const task *t, int i, vf acc[PE_TILE], const int R, const int C) {
  if (!t->first) {
    load_acc(sums_of(t->acc, i, R, C), C * LANES, acc, R);
    return;
  }
  UNROLL for (int r = 0; r < R; r++) acc[r] = (vf){0};
}

/* The biases of all groups: outside of the steps, whose scaling is what they wait for. */
ALWAYS void sum_job(const task *t, int i, vf sum[PE_TILE], const int R, const int C) {
  const float *scaled = t->x.scaled + i / C * t->next_scales, *b = t->b + i % C * t->all * LANES;
  for (int r = 0; r < R; r++) sum[r] = (vf){0};
  for (int g = 0; g < t->all; g++, b += LANES, scaled += R)
    UNROLL for (int r = 0; r < R; r++) sum[r] = fma_(load(b), splat(scaled[r]), sum[r]);
}

/* Sums that are complete go to the results without a way through memory. */
ALWAYS void end_job(const task *t, int i, const vf acc[PE_TILE], const int R, const int C) {
  float *const sums = sums_of(t->acc, i, R, C);
  const pe_int16_product *o = t->of;
  if (!o) {
    store_acc(sums, C * LANES, acc, R);
    return;
  }
  const int64_t panel = t->panel + i % C, row = t->row + i / C * R, first = panel * LANES;
  vf sum[PE_TILE];
  sum_job(t, i, sum, R, C);
  if (first + LANES > o->w->rows) {
    store_acc(sums, C * LANES, acc, R);
    if (t->b) store_acc(t->sum, C * LANES, sum, R);
    finish(o, sums, t->sum, C * LANES, panel, row, R);
    return;
  }
  const vf bias = o->bias ? load(o->bias + first) : (vf){0};
  float *out = o->out + row * o->out_step + first;
  const float *more = o->residual ? o->residual + row * o->residual_step + first : NULL;
  UNROLL for (int r = 0; r < R; r++) {
    vf v = acc[r];
    if (t->b) v += sum[r];
    if (o->bias) v += bias;
    if (more) v += load(more + r * o->residual_step);
    store(out + r * o->out_step, v);
  }
}

ALWAYS void run_jobs(const task *t, const int R, const int C) {
  stored_sums s[2];
  vf acc[PE_TILE] = {{0}};
  job past = {.groups = 0}, j;
  for (int i = 0; i < t->tiles * C; i++, past = j) {
    j = job_at(t, i, R, C);
    const int n = steps_of(&j);
    edge_step(t, &j, 0, &past, n - 3, EVEN, &s[0], &s[1], acc, R, false);
    edge_step(t, &j, 1, &past, n - 2, ODD, &s[1], &s[0], acc, R, false);
    edge_step(t, &j, 2, &past, n - 1, EVEN, &s[0], &s[1], acc, R, false);
    if (i) end_job(t, i - 1, acc, R, C);
    begin_job(t, i, acc, R, C);
    int g = 3;
    for (; g + 1 < n; g += 2) {
      step(t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R, false);
      step(t, &j, g + 1, &j, g - 2, EVEN, &s[0], &s[1], acc, R, false);
    }
    edge_step(t, &j, g, &j, g - 3, ODD, &s[1], &s[0], acc, R, false);
  }
  drain(&past, s, acc, R, false);
  end_job(t, t->tiles * C - 1, acc, R, C);
}

ALWAYS void tiles(const task *t, const int R, const int C) {
  for (int g = 0; g < t->groups; g++) prefetch_next(t, g, C);
  run_jobs(t, R, C);
}

/* All tiles are configured for the largest number of rows: smaller ones read a row of the codes or
 * scales after them and ignore its sums. */
static void configure(const pe_int16_product *o) {
  const int rows = pe_int16_tile_at(o->x, 0).rows;
  const bool half = o->x->rows <= HALF;
  const uint16_t act = (uint16_t)o->x->act;
  const uint8_t words = (uint8_t)(act / 4), lines = (uint8_t)(half ? 2 * rows : rows);
  tile_config c = {.palette = 1};
  for (int i = 0; i < 4; i++) c.rows[SUMS + i] = lines, c.row_bytes[SUMS + i] = 64;
  c.rows[ROWS] = lines, c.row_bytes[ROWS] = act;
  c.rows[WEIGHTS] = words, c.row_bytes[WEIGHTS] = 64;
  c.rows[OTHER_ROWS] = half ? words : lines, c.row_bytes[OTHER_ROWS] = half ? 64 : act;
  tile_configure(&c);
}
