/* int16_lanes.h - a part of the versions of int16.h, which include in this order:
 *
 *   int16_lanes.h     registers, unpacked scales and codes, results
 *   int16_pairs.h     how products are summed: pairs of 16-bit values,
 *   int16_planes.h    or bytes on NEON,
 *   int16_bytes.h     or bytes of one or two rows with VNNI,
 *   int16_tmul.h      or bytes in the tiles of AMX,
 *   int16_tmul_few.h  and in one tile of at most 16 rows
 *   int16_impl.h      activations and products
 *
 * A version defines these macros before:
 *
 *   PE_ISA, PE_ISA_NAME    name of the version
 *   PE_WIDTH               32-bit lanes of a register: 4, 8 or 16
 *   PE_FMA(a, b, c)        a * b + c of registers of floats, rounded once
 *   PE_HALVES(p)           PE_WIDTH halves as floats
 *   PE_SHORTS(p)           PE_WIDTH values of 16 bits as unsigned 32-bit integers
 *   PE_BYTES(p)            the same of 8 bits
 *   PE_LOOKUP(table, v)    each byte (0 to 15) of v replaced by its entry of 16
 *   PE_TILE, PE_PANELS     rows and panels of a tile: 16 and 2, 8 and 2, 4 and 1, or 2 and 1
 *   PE_COLS                columns of a block, at most 512
 *   PE_FUSED               rows up to which `fused` is used: 2, or 0
 *
 * and may define
 *
 *   PE_HIGHER(a, b)        the larger ones of two registers of integers, and
 *   PE_HIGHEST(v)          the largest one of a register: compilers do not see that REDUCE is this
 *   PE_FIELD(v, at, n, to) moves the n bits of each byte of v that begin at bit `at` to bit `to`;
 *                          else they are shifted and masked
 *   PE_LEAST, PE_FEWER     fewer rows than PE_LEAST are left to the version PE_FEWER
 *   PE_FEW                 rows of a tile of `few`: 8. Only with 16 lanes and PE_DOT
 *   PE_CONFIGURE           a product calls `configure` and, at its end, tile_release, and a single
 *                          tile of rows is left to `few`
 *   PE_RUNS                `tiles` is defined, which takes all tiles of a run; else `tile` is */
#include "kernels/cpu/int16_layout.h"

#include <math.h>
#include <string.h>

#define PE_PASTE2(a, b) a##b
#define PE_PASTE(a, b) PE_PASTE2(a, b)
#define ALWAYS static inline __attribute__((always_inline))
#define NEVER __attribute__((noinline))

enum {
  W = PE_WIDTH,
  LANES = PE_INT16_LANES,
  PARTS = LANES / W,
  P = PE_PANELS,
  COLS = PE_COLS,
  MOST_GROUPS = COLS / 16, /* of activations, in a block */
  MOST_ROWS = 8            /* of a tile that is summed in registers */
};
typedef float vf __attribute__((vector_size(4 * PE_WIDTH)));
typedef int32_t vi __attribute__((vector_size(4 * PE_WIDTH)));
typedef uint32_t vu __attribute__((vector_size(4 * PE_WIDTH)));
typedef uint16_t vh __attribute__((vector_size(4 * PE_WIDTH)));

ALWAYS vf load(const float *p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}
ALWAYS vu load_words(const void *p) {
  vu v;
  memcpy(&v, p, sizeof v);
  return v;
}
ALWAYS void store(void *p, vf v) { memcpy(p, &v, sizeof v); }
ALWAYS vf splat(float x) { return x - (vf){0}; } /* not x + 0: that would turn -0 into 0 */
ALWAYS vi splat_int(int32_t x) { return x + (vi){0}; }
ALWAYS vi splat_pair(const int16_t *p) {
  int32_t x;
  memcpy(&x, p, sizeof x);
  return splat_int(x);
}
enum { UNIT = PE_INT16_UNIT };

ALWAYS vf fma_(vf a, vf b, vf c) { return PE_FMA(a, b, c); }
ALWAYS vf select_(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

#include "kernels/cpu/int16_unpack.h"

/* ---- results --------------------------------------------------------------------------------- */

/* Writes the results of one panel for `rows` rows from `row` on, whose sums are `step` apart. */
static NEVER void finish(const pe_int16_product *o, const float *acc, const float *b, int step,
                         int64_t panel, int64_t row, int rows) {
  const int64_t first = panel * LANES, left = o->w->rows - first;
  const bool has_b = o->w->bias, whole = left >= LANES;
  float bias[LANES] = {0};
  if (o->bias) memcpy(bias, o->bias + first, (size_t)(left < LANES ? left : LANES) * sizeof *bias);
  for (int r = 0; r < rows; r++, acc += step, b += step) {
    float *out = o->out + (row + r) * o->out_step + first;
    const float *more = o->residual ? o->residual + (row + r) * o->residual_step + first : NULL;
    float y[LANES], rest[LANES];
    if (more && !whole) {
      memset(rest, 0, sizeof rest);
      memcpy(rest, more, (size_t)left * sizeof *rest), more = rest;
    }
    for (int p = 0; p < PARTS; p++) {
      vf v = load(acc + p * W);
      if (has_b) v += load(b + p * W);
      if (o->bias) v += load(bias + p * W);
      if (more) v += load(more + p * W);
      store((whole ? out : y) + p * W, v);
    }
    if (!whole) memcpy(out, y, (size_t)left * sizeof *y);
  }
}

/* ---- operands -------------------------------------------------------------------------------- */

/* Cache lines are requested this many bytes ahead in each stream, or a little more. */
enum { AHEAD = 2048, STREAMS = 4 };

ALWAYS void prefetch(const uint8_t *p, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

/* The activations of a tile from some column on. */
typedef struct operand {
  const int16_t *codes;
  const float *scale, *scaled;
  const int32_t *sum;
} operand;

ALWAYS operand operand_at(const pe_int16_rows *x, pe_int16_tile t, int64_t col, int64_t group) {
  const int64_t g = t.from * x->groups + group * t.rows;
  return (operand){x->codes + t.from * x->step + col * t.rows, x->scale + g, x->scaled + g,
                   x->sum + g};
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* A tile of rows and a block of unpacked columns. */
typedef struct task {
  const pe_int16_block *block;
  operand x;
  float *acc;                           /* R rows of P panels of 16; without a value if `first` */
  const uint8_t *next[PE_INT16_PANELS]; /* the panels' next bytes, to be requested; or NULL */
  int next_bytes;                       /* per group */
  int groups, act;
  int tiles;                       /* of R rows each, one after the other */
  int64_t next_codes, next_scales; /* from tile to tile */
  int32_t offset;
  bool narrow;                /* codes without their offset fit into a signed byte */
  bool first;                 /* no block came before this one */
  const pe_int16_product *of; /* whose results these are once the block is added, or NULL: from */
  int64_t panel, row;         /* these on */
  int64_t apart;              /* the second panel comes so much later; 0: it is the first again */
  const float *b;             /* biases of `all` groups of each panel; NULL, 0: none */
  int all, lines;             /* lines: from the first panel's biases to the second's */
  float *sum;                 /* room for their sums of a tile */
} task;

ALWAYS void prefetch_next(const task *t, int g, const int C) {
  if (t->next[0])
    for (int c = 0; c < C; c++) prefetch(t->next[c] + g * t->next_bytes, t->next_bytes);
}

ALWAYS vf scale_of(const task *t, int g, int c, int p) {
  return load(t->block->s[c] + g * LANES + p * W);
}

/* Adds the integers d of group g, whose scales are s, to sums of R x C. */
ALWAYS void add_group(const task *t, int g, vf s, vi d, int r, int c, int p, const int R,
                      const int C) {
  float *to = t->acc + (r * C + c) * LANES + p * W;
  store(to, fma_(s * splat(t->x.scale[g * R + r]), to_floats(d), load(to)));
}

/* The biases of all groups, of part p of the results; zeros without them. */
ALWAYS void sum_biases(const task *t, int p, vf sum[MOST_ROWS][PE_INT16_PANELS], const int R,
                       const int C) {
  for (int i = 0; i < R * C; i++) sum[i / C][i % C] = (vf){0};
  for (int g = 0; g < t->all; g++) {
    vf b[PE_INT16_PANELS];
    for (int c = 0; c < C; c++) b[c] = load(t->b + (c * t->lines + g) * LANES + p * W);
    for (int i = 0; i < R * C; i++)
      sum[i / C][i % C] = fma_(b[i % C], splat(t->x.scaled[g * R + i / C]), sum[i / C][i % C]);
  }
}

/* Results of whole panels, without a way through memory; the sums are added in the order of
 * `finish`. */
ALWAYS void end_whole(const task *t, const int R, const int C) {
  const pe_int16_product *o = t->of;
  const int64_t first = t->panel * LANES;
  const float *more = o->residual ? o->residual + t->row * o->residual_step + first : NULL;
  float *out = o->out + t->row * o->out_step + first;
  for (int p = 0; p < PARTS; p++) {
    vf sum[MOST_ROWS][PE_INT16_PANELS];
    sum_biases(t, p, sum, R, C);
    for (int i = 0; i < R * C; i++) {
      const int r = i / C, c = i % C;
      const int64_t at = c * t->apart * LANES + p * W;
      vf v = load(t->acc + i * LANES + p * W);
      if (t->b) v += sum[r][c];
      if (o->bias) v += load(o->bias + first + at);
      if (more) v += load(more + r * o->residual_step + at);
      store(out + r * o->out_step + at, v);
    }
  }
}

/* The results of a tile, whose groups have all been added. */
ALWAYS void end_tile(const task *t, const int R, const int C) {
  const int step = C * LANES, panels = t->apart ? C : 1;
  if ((t->panel + (C - 1) * t->apart + 1) * LANES <= t->of->w->rows && panels == C) {
    end_whole(t, R, C);
    return;
  }
  for (int p = 0; t->b && p < PARTS; p++) {
    vf sum[MOST_ROWS][PE_INT16_PANELS];
    sum_biases(t, p, sum, R, C);
    for (int i = 0; i < R * C; i++) store(t->sum + i * LANES + p * W, sum[i / C][i % C]);
  }
  for (int c = 0; c < panels; c++)
    finish(t->of, t->acc + c * LANES, t->sum + c * LANES, step, t->panel + c * t->apart, t->row, R);
}
