/* int16_tmul.h - a part of int16_amx.c (see int16_lanes.h): products in the tiles of AMX.
 *
 * The left operand is a plane of the activations of 16 rows and one group, the right one the bytes
 * of a panel, whose words lie as the instructions want them. Each plane has its own sum of 16 x 16:
 *
 *   rows x group (high) . group x 16 = rows x 16 integers   256 * high + low
 *   rows x group (low)  . group x 16 = rows x 16 integers   -> float, scaled, added
 *
 * Codes minus their offset fit into a signed byte; only affine codes of 8 bits, whose offset is 0,
 * are taken as unsigned. So no sum needs a correction. High bytes are signed, low ones unsigned:
 * the sums are at most 64 * 128 * 255 and 64 * 255 * 255.
 *
 * Sums leave the tile registers through memory. The three stages of a group, its products, storing
 * and scaling, run one group apart, so that the core overlaps them: each uses a unit of its own. */

#include "kernels/cpu/tile_ops.h"

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
    put_bytes(v[i] >> 8, high + i * W);
    put_bytes(v[i], low + i * W);
  }
}

/* ---- weights --------------------------------------------------------------------------------- */

typedef uint8_t bytes64 __attribute__((vector_size(64)));

ALWAYS void unpack(const pe_pack *w, const uint8_t *chunk, uint8_t *out, const form f) {
  const vu levels = level_table(w);
  const uint8_t *upper = chunk + w->upper_at;
  const uint8_t offset = (uint8_t)w->offset;
  for (int i = 0; i < w->chunk / 8; i += 4)
    for (int j = 2 * i; j < 2 * i + 8; j++) {
      bytes64 v = (bytes64)bytes_of(chunk, upper, levels, j / 2, j % 2, 0, f) - offset;
      memcpy(out + j * 64, &v, sizeof v);
    }
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

/* Registers: two times the sums of both planes, so that one pair is stored while the other one is
 * computed; both planes of the activations; the weights. */
enum { SUMS = 0, HIGH = 4, LOW = 5, WEIGHTS = 6 };

/* The sums of one group. */
typedef struct stored_sums {
  int32_t high[PE_TILE][LANES], low[PE_TILE][LANES];
} __attribute__((aligned(64))) stored_sums;

/* The operands of group g, and a product with one plane of them. */
ALWAYS void load_weights(const task *t, int g, int c) {
  tile_load(WEIGHTS, (const uint8_t *)t->block->codes[c] + g * t->act * LANES, 64);
}
ALWAYS void load_plane(const task *t, int g, const int plane, const int R) {
  const int col = g * t->act;
  const uint8_t *x = (const uint8_t *)t->x.codes + col / UNIT * UNIT * 2 * R + col % UNIT;
  tile_load(plane, x + (plane == LOW ? R * UNIT : 0), UNIT);
}
ALWAYS void multiply_plane(const task *t, const int to, const int plane) {
  tile_clear(to);
  if (t->narrow && plane == HIGH) tile_dot_ss(to, plane, WEIGHTS);
  if (t->narrow && plane == LOW) tile_dot_us(to, plane, WEIGHTS);
  if (!t->narrow && plane == HIGH) tile_dot_su(to, plane, WEIGHTS);
  if (!t->narrow && plane == LOW) tile_dot_uu(to, plane, WEIGHTS);
}

ALWAYS void multiply(const task *t, int g, int c, const int to, const int R) {
  load_weights(t, g, c);
  load_plane(t, g, HIGH, R), multiply_plane(t, to, HIGH);
  load_plane(t, g, LOW, R), multiply_plane(t, to + 1, LOW);
}

ALWAYS void keep(stored_sums *s, const int from) {
  tile_store(from, s->high, 64), tile_store(from + 1, s->low, 64);
}

/* gcc keeps acc in registers only if it unrolls all loops over rows early. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Scales and adds the sums of group g: of R rows those from first / 16 to end / 16. */
ALWAYS void add_some(const task *t, int g, int c, const stored_sums *from, vf acc[PE_TILE],
                     const int first, const int end, const int R) {
  const vf s = scale_of(t, g, c, 0);
  UNROLL for (int r = first * R / 16; r < end * R / 16; r++) {
    const vi d = (vi)(load_words(from->high[r]) << 8) + (vi)load_words(from->low[r]);
    acc[r] = fma_(s * splat(t->x.scale[g * R + r]), to_floats(d), acc[r]);
  }
}
ALWAYS void add_sums(const task *t, int g, int c, const stored_sums *from, vf acc[PE_TILE],
                     const int R) {
  add_some(t, g, c, from, acc, 0, 16, R);
}

/* One step: products of group g into the pair of tiles `to`, which hold the sums of group g - 2
 * until they are stored to `put`; and group g - 3, which was stored to `get`, is scaled in between.
 * Measured from the first- and second-level cache: 0.80 and 0.80 of the time that the same work
 * takes stage by stage. */
ALWAYS void step(const task *t, int g, int c, const int to, stored_sums *put,
                 const stored_sums *get, vf acc[PE_TILE], const int R) {
  load_weights(t, g, c);
  add_some(t, g - 3, c, get, acc, 0, 3, R);
  load_plane(t, g, HIGH, R);
  add_some(t, g - 3, c, get, acc, 3, 5, R);
  tile_store(to, put->high, 64), multiply_plane(t, to, HIGH);
  add_some(t, g - 3, c, get, acc, 5, 9, R);
  load_plane(t, g, LOW, R);
  add_some(t, g - 3, c, get, acc, 9, 12, R);
  tile_store(to + 1, put->low, 64), multiply_plane(t, to + 1, LOW);
  add_some(t, g - 3, c, get, acc, 12, 16, R);
}

/* Sums of even groups are in the first pair of tiles and the first of `s`, of odd ones in the
 * second. */
ALWAYS void add_groups(const task *t, int c, vf acc[PE_TILE], const int R) {
  enum { EVEN = SUMS, ODD = SUMS + 2 };
  const int n = t->groups;
  stored_sums s[2];
  multiply(t, 0, c, EVEN, R);
  if (n > 1) multiply(t, 1, c, ODD, R);
  if (n > 2) {
    int g = 3;
    keep(&s[0], EVEN), multiply(t, 2, c, EVEN, R);
    for (; g + 1 < n; g += 2) {
      step(t, g, c, ODD, &s[1], &s[0], acc, R);
      step(t, g + 1, c, EVEN, &s[0], &s[1], acc, R);
    }
    if (g < n) step(t, g, c, ODD, &s[1], &s[0], acc, R);
    add_sums(t, n - 3, c, &s[(n - 3) % 2], acc, R);
  }
  keep(&s[0], EVEN);
  if (n > 1) {
    keep(&s[1], ODD);
    add_sums(t, n - 2, c, &s[n % 2], acc, R);
  }
  add_sums(t, n - 1, c, &s[(n - 1) % 2], acc, R);
}

/* All groups of one panel; `step` floats from row to row of the sums. */
ALWAYS void panel_groups(const task *t, int c, float *to, int step, const int R) {
  vf acc[PE_TILE];
  UNROLL for (int r = 0; r < R; r++) acc[r] = load(to + r * step);
  add_groups(t, c, acc, R);
  UNROLL for (int r = 0; r < R; r++) store(to + r * step, acc[r]);
}

ALWAYS void panel_biases(const task *t, int c, float *to, int step, const int R) {
  vf sum[PE_TILE];
  UNROLL for (int r = 0; r < R; r++) sum[r] = load(to + r * step);
  for (int g = 0; g < t->groups; g++) {
    const vf b = load(t->block->b[c] + g * LANES);
    UNROLL for (int r = 0; r < R; r++) sum[r] = fma_(b, splat(t->x.scaled[g * R + r]), sum[r]);
  }
  UNROLL for (int r = 0; r < R; r++) store(to + r * step, sum[r]);
}

ALWAYS void tile(const task *t, const int R, const int C) {
  for (int g = 0; g < t->groups; g++) prefetch_next(t, g, C);
  for (int c = 0; c < C; c++) {
    panel_groups(t, c, t->acc + c * LANES, C * LANES, R);
    if (t->bias) panel_biases(t, c, t->sum + c * LANES, C * LANES, R);
  }
}

/* All tiles are configured for the largest number of rows: smaller ones read a row of the codes or
 * scales behind them and ignore its sums. */
static void configure(const pe_int16_product *o) {
  const uint8_t rows = (uint8_t)pe_int16_tile_at(o->x, 0).rows;
  const uint16_t act = (uint16_t)o->x->act;
  tile_config c = {.palette = 1};
  for (int i = 0; i < 4; i++) c.rows[SUMS + i] = rows, c.row_bytes[SUMS + i] = 64;
  c.rows[HIGH] = c.rows[LOW] = rows, c.row_bytes[HIGH] = c.row_bytes[LOW] = act;
  c.rows[WEIGHTS] = (uint8_t)(act / 4), c.row_bytes[WEIGHTS] = 64;
  tile_configure(&c);
}
