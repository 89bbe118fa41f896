/* amx16_impl.h - the one source of the products of amx16.h. The files that include it define
 * PE_TILES, the name of the version, and include tile_ops.h or tile_emulated.h before. */
#include "kernels/cpu/amx16.h"
#include "kernels/cpu/transpose.h"

#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))

enum {
  ROWS = 16,         /* weight rows of a tile */
  BLOCK = 32,        /* columns of a tile */
  GROUP = 2 * ROWS,  /* weight rows at a time */
  TILE_BYTES = 1024, /* of a tile of sixteen rows, also of sums */
  AHEAD = 1024,      /* bytes from the tile in use to the one that is requested, in each row */
  SUMS = 0,          /* registers: four, */
  WEIGHTS = 4,       /* two, */
  VALUES = 6         /* and two */
};
typedef uint32_t vu16 __attribute__((vector_size(64)));

static int64_t width_of(int64_t rows) { return rows <= 4 ? 4 : rows <= 8 ? 8 : 16; }
static int64_t blocks_of(int64_t cols) { return (cols + BLOCK - 1) / BLOCK; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static uint8_t *on_line(float *p) { return (uint8_t *)(((uintptr_t)p + 63) & ~(uintptr_t)63); }

/* ---- activations ----------------------------------------------------------------------------- */

/* bf16 bits in the upper half, to nearest even; NaN stays NaN. */
ALWAYS void round_bits(const vu16 *x, vu16 *out) {
  const vu16 nan = (vu16)((*x & 0x7fffffffu) > 0x7f800000u);
  const vu16 rounded = *x + 0x7fffu + (*x >> 16 & 1u);
  *out = ((nan & (*x | 0x400000u)) | (~nan & rounded)) & 0xffff0000u;
}

/* Words of two bf16 of 32 columns: both planes. */
ALWAYS void split(const float *x, pe_vec16 *hi, pe_vec16 *lo) {
  vu16 word[2][2];
  for (int half = 0; half < 2; half++) {
    pe_vec16 v;
    vu16 high, low;
    memcpy(&v, x + half * 16, sizeof v);
    round_bits((const vu16 *)&v, &high);
    const pe_vec16 rest = v - (pe_vec16)high;
    round_bits((const vu16 *)&rest, &low);
    word[0][half] = high, word[1][half] = low;
  }
  for (int plane = 0; plane < 2; plane++) {
    const vu16 even = __builtin_shufflevector(word[plane][0], word[plane][1], 0, 2, 4, 6, 8, 10, 12,
                                              14, 16, 18, 20, 22, 24, 26, 28, 30);
    const vu16 odd = __builtin_shufflevector(word[plane][0], word[plane][1], 1, 3, 5, 7, 9, 11, 13,
                                             15, 17, 19, 21, 23, 25, 27, 29, 31);
    *(plane ? lo : hi) = (pe_vec16)(even >> 16 | odd);
  }
}

/* One block of `rows` rows of a tile. */
ALWAYS void arrange_rows(const float *x, int64_t step, int64_t rows, int64_t cols, int64_t width,
                         uint8_t *out) {
  pe_vec16 plane[2][ROWS];
  memset(plane, 0, sizeof plane);
  for (int64_t r = 0; r < rows; r++) {
    if (cols < BLOCK) {
      float tail[BLOCK] = {0};
      memcpy(tail, x + r * step, (size_t)cols * sizeof *x);
      split(tail, &plane[0][r], &plane[1][r]);
    } else {
      split(x + r * step, &plane[0][r], &plane[1][r]);
    }
  }
  for (int p = 0; p < 2; p++) {
    pe_transpose16(plane[p]);
    for (int i = 0; i < ROWS; i++, out += width * 4) memcpy(out, &plane[p][i], (size_t)width * 4);
  }
}

/* Most blocks are whole: their sizes are constants, not arguments of a call for each row. */
static void arrange_block(const float *x, int64_t step, int64_t rows, int64_t cols, int64_t width,
                          uint8_t *out) {
  if (rows == ROWS && cols == BLOCK)
    arrange_rows(x, step, ROWS, BLOCK, ROWS, out);
  else
    arrange_rows(x, step, rows, cols, width, out);
}

static void arrange(const pe_amx16_rows *out, const float *x, int64_t x_step, int64_t from,
                    int64_t to) {
  const int64_t width = width_of(out->rows), blocks = blocks_of(out->cols);
  for (int64_t i = from; i < to; i++) {
    const int64_t row = i / blocks * width, col = i % blocks * BLOCK;
    arrange_block(x + row * x_step + col, x_step, least(out->rows - row, width),
                  least(out->cols - col, BLOCK), width, out->planes + i * 2 * ROWS * width * 4);
  }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Copies up to 32 weight rows from `row` on to tiles: block 0 of both, block 1 of both, ... They
 * are filled with zeros at the ends of the matrix. */
static void copy_group(const pe_quant_matrix *w, int64_t row, uint8_t *to) {
  const int64_t blocks = blocks_of(w->cols), rows = least(w->rows - row, GROUP);
  if (rows < GROUP || w->cols % BLOCK) memset(to, 0, (size_t)blocks * 2 * TILE_BYTES);
  for (int64_t r = 0; r < rows; r++) {
    const uint8_t *at = w->data + (uint64_t)(row + r) * w->row_bytes;
    uint8_t *out = to + r * BLOCK * 2;
    for (int64_t k = 0; k < w->cols; k += BLOCK, at += BLOCK * 2, out += 2 * TILE_BYTES) {
      __builtin_prefetch(at + 2 * AHEAD, 0, 2);
      if (w->cols - k >= BLOCK)
        memcpy(out, at, BLOCK * 2);
      else
        memcpy(out, at, (size_t)(w->cols - k) * 2);
    }
  }
}

/* ---- products -------------------------------------------------------------------------------- */

/* 32 weight rows, one or two tiles of activation rows. */
typedef struct operands {
  const uint8_t *w[2], *x[2];
  int64_t w_row, w_block; /* bytes from row to row, and from block to block */
  int64_t width, blocks;
  const uint8_t *next; /* lines to request, or NULL; */
  int64_t next_lines;  /* for each block */
} operands;

/* Weights where they are stored: the lines AHEAD of block k of 32 rows, or those of the next 32. */
ALWAYS void ask_rows(const operands *b, int64_t k) {
  int64_t at = k * b->w_block + AHEAD;
  if (at >= b->w_row) at += (GROUP - 1) * b->w_row;
  for (int r = 0; r < GROUP; r++) __builtin_prefetch(b->w[0] + r * b->w_row + at, 0, 2);
}

/* Sums of 2 x N tiles. */
ALWAYS void multiply(const operands *b, const int N, const bool stored) {
  const int64_t step = b->width * 4, plane = ROWS * step;
  tile_clear(SUMS), tile_clear(SUMS + 2);
  if (N > 1) tile_clear(SUMS + 1), tile_clear(SUMS + 3);
  const uint8_t *next = b->next;
  for (int64_t k = 0, at = 0; k < b->blocks; k++, at += 2 * plane) {
    if (stored) ask_rows(b, k);
    for (int64_t i = 0; next && i < b->next_lines; i++, next += 64) __builtin_prefetch(next, 0, 2);
    tile_load(WEIGHTS, b->w[0] + k * b->w_block, b->w_row);
    tile_load(WEIGHTS + 1, b->w[1] + k * b->w_block, b->w_row);
    for (int p = 0; p < 2; p++) {
      tile_load(VALUES, b->x[0] + at + p * plane, step);
      tile_dot(SUMS, WEIGHTS, VALUES);
      tile_dot(SUMS + 2, WEIGHTS + 1, VALUES);
      if (N > 1) {
        tile_load(VALUES + 1, b->x[1] + at + p * plane, step);
        tile_dot(SUMS + 1, WEIGHTS, VALUES + 1);
        tile_dot(SUMS + 3, WEIGHTS + 1, VALUES + 1);
      }
    }
  }
}

/* Where results go: row r, result j at out + r * step + j. */
typedef struct results {
  float *out;
  const float *bias, *residual;
  int64_t step, residual_step, rows;
} results;

/* A tile of sums, [weight row][activation row], as rows of results. */
ALWAYS void turn(const uint8_t *tile, int64_t width, pe_vec16 v[ROWS]) {
  for (int j = 0; j < ROWS; j++) {
    memset(&v[j], 0, sizeof v[j]);
    if (width == ROWS)
      memcpy(&v[j], tile + j * ROWS * 4, sizeof v[j]);
    else
      memcpy(&v[j], tile + j * width * 4, (size_t)width * 4);
  }
  pe_transpose16(v);
}

/* Adds bias and residual to a tile of sums and writes `bytes` of each row, which are a constant
 * for all tiles but those at the edge: as a variable they would be a call for each row. */
ALWAYS void finish_tile(const results *o, const uint8_t *tile, int64_t width, int64_t row,
                        int64_t from, size_t bytes) {
  const int64_t rows = least(o->rows - row, width);
  pe_vec16 v[ROWS], bias, add;
  turn(tile, width, v);
  memset(&bias, 0, sizeof bias), memset(&add, 0, sizeof add);
  if (o->bias) memcpy(&bias, o->bias + from, bytes);
  for (int64_t r = 0; r < rows; r++) {
    pe_vec16 y = v[r];
    if (o->bias) y += bias;
    if (o->residual)
      memcpy(&add, o->residual + (row + r) * o->residual_step + from, bytes), y += add;
    memcpy(o->out + (row + r) * o->step + from, &y, bytes);
  }
}

static void finish(const results *o, const uint8_t *tile, int64_t width, int64_t row, int64_t from,
                   int64_t to) {
  if (to - from >= ROWS)
    finish_tile(o, tile, width, row, from, sizeof(pe_vec16));
  else
    finish_tile(o, tile, width, row, from, (size_t)(to - from) * sizeof(float));
}

typedef struct room {
  uint8_t *sums;     /* a tile */
  float *other;      /* results of the second matrix: two tiles of rows by a strip */
  uint8_t *strip[2]; /* of both matrices */
} room;

/* Results from .. to - 1, at most 32, of two tiles of rows from `row` on. */
static void group(const results *o, operands *b, uint8_t *sums, int64_t row, int64_t from,
                  int64_t to, bool stored) {
  const int64_t width = b->width, step = width * 4;
  const bool two = row + width < o->rows;
  if (two && stored)
    multiply(b, 2, true);
  else if (two)
    multiply(b, 2, false);
  else if (stored)
    multiply(b, 1, true);
  else
    multiply(b, 1, false);
  tile_store(SUMS, sums, step), finish(o, sums, width, row, from, to);
  if (two) tile_store(SUMS + 1, sums, step), finish(o, sums, width, row + width, from, to);
  if (from + ROWS >= to) return;
  tile_store(SUMS + 2, sums, step), finish(o, sums, width, row, from + ROWS, to);
  if (two) tile_store(SUMS + 3, sums, step), finish(o, sums, width, row + width, from + ROWS, to);
}

/* A strip of one matrix. */
typedef struct part {
  results y;
  const pe_quant_matrix *w;
  const pe_amx16_rows *x;
  uint8_t *strip;      /* the strip as tiles if it is `copied`, else room for a group */
  const uint8_t *next; /* to be requested meanwhile, or NULL; */
  int64_t lines;       /* for each block of columns */
  bool copied;
} part;

/* Results from .. to - 1 of two tiles of rows from `row` on. */
static void part_rows(const part *p, int64_t row, int64_t from, int64_t to, uint8_t *sums) {
  const pe_quant_matrix *w = p->w;
  operands b = {.width = width_of(p->x->rows), .blocks = blocks_of(w->cols)};
  const int64_t tile = b.blocks * 2 * ROWS * b.width * 4, bytes = b.blocks * 2 * TILE_BYTES;
  b.x[0] = p->x->planes + row / b.width * tile, b.x[1] = b.x[0] + tile;
  b.next = p->next, b.next_lines = p->lines;
  for (int64_t j = from; j < to; j += GROUP) {
    const bool stored = !p->copied && w->cols % BLOCK == 0 && j + GROUP <= w->rows;
    if (stored) {
      b.w[0] = w->data + (uint64_t)j * w->row_bytes, b.w[1] = b.w[0] + ROWS * w->row_bytes;
      b.w_row = (int64_t)w->row_bytes, b.w_block = BLOCK * 2;
    } else {
      if (!p->copied) copy_group(w, j, p->strip);
      b.w[0] = p->strip + (p->copied ? (j - from) / GROUP * bytes : 0);
      b.w[1] = b.w[0] + TILE_BYTES;
      b.w_row = BLOCK * 2, b.w_block = 2 * TILE_BYTES;
    }
    group(&p->y, &b, sums, row, j, least(j + GROUP, to), stored);
    if (b.next) b.next += b.blocks * p->lines * 64;
  }
}

/* The lines of the next strip are requested in equal parts by all pairs of tiles of rows: `lines`
 * of the 32 of a group and block by each. */
static const uint8_t *next_part(const pe_quant_matrix *w, int64_t to, int64_t strip, int64_t pair,
                                int64_t lines) {
  if (pair * lines >= GROUP) return NULL;
  return w->data + (uint64_t)to * w->row_bytes +
         (uint64_t)(pair * lines * (strip / GROUP) * blocks_of(w->cols) * 64);
}

/* Results from .. to - 1, a strip, of all rows; `end`: of the last strip. */
static void strip_run(const pe_amx16_product *o, int64_t from, int64_t to, int64_t end,
                      const room *m) {
  const int64_t width = width_of(o->x->rows), pair = 2 * width, strip = to - from;
  const int64_t bytes = blocks_of(o->w[0]->cols) * 2 * TILE_BYTES; /* of a group */
  const int64_t rows = o->x->rows, pairs = (rows + pair - 1) / pair;
  const int matrices = o->w[1] ? 2 : 1;
  part p = {.x = o->x, .copied = pairs > 1, .lines = (GROUP + pairs - 1) / pairs};
  for (int k = 0; p.copied && k < matrices; k++)
    for (int64_t j = from; j < to; j += GROUP)
      copy_group(o->w[k], j, m->strip[k] + (j - from) / GROUP * bytes);
  for (int64_t row = 0; row < rows; row += pair) {
    for (int k = 0; k < matrices; k++) {
      p.w = o->w[k], p.strip = m->strip[k];
      p.y = (results){o->out, o->bias[0], o->residual, o->out_step, o->residual_step, rows};
      if (k) p.y = (results){m->other - row * strip - from, o->bias[1], NULL, strip, 0, rows};
      p.next = p.copied && to < end ? next_part(p.w, to, strip, row / pair, p.lines) : NULL;
      part_rows(&p, row, from, to, m->sums);
    }
    for (int64_t r = 0; matrices > 1 && r < least(rows - row, pair); r++)
      o->join(o->ctx, o->out + (row + r) * o->out_step + from, m->other + r * strip, strip);
  }
}

/* Sums and activations are as wide as there are activation rows, weights 64 bytes. */
static void configure(int64_t width) {
  tile_config c = {.palette = 1};
  for (int t = 0; t < 8; t++) {
    c.rows[t] = 16;
    c.row_bytes[t] = (uint16_t)(t == WEIGHTS || t == WEIGHTS + 1 ? 64 : width * 4);
  }
  tile_configure(&c);
}

static void product(const pe_amx16_product *o, int64_t from, int64_t to, float *scratch) {
  const int64_t strip = pe_amx16_strip(o->w[0]->cols, o->w[1] ? 2 : 1);
  room m = {.sums = on_line(scratch)};
  m.other = (float *)(void *)(m.sums + TILE_BYTES);
  m.strip[0] = (uint8_t *)(m.other + 2 * ROWS * strip);
  m.strip[1] = m.strip[0] + strip / GROUP * blocks_of(o->w[0]->cols) * 2 * TILE_BYTES;
  configure(width_of(o->x->rows));
  for (int64_t j = from; j < to; j += strip) strip_run(o, j, least(j + strip, to), to, &m);
  tile_release();
}

/* ---- alone ----------------------------------------------------------------------------------- */

static pe_amx16_rows rows_in(const pe_plain_product *o, float *scratch) {
  return (pe_amx16_rows){o->rows, o->w->cols, on_line(scratch)};
}

static void plain_arrange(const pe_plain_product *o, float *scratch) {
  const pe_amx16_rows x = rows_in(o, scratch);
  arrange(&x, o->x, o->x_step, 0, pe_amx16_parts(x.rows, x.cols));
}

static void plain_product(const pe_plain_product *o, int64_t from, int64_t to, float *scratch) {
  const pe_amx16_rows x = rows_in(o, scratch);
  const pe_amx16_product p = {.w = {o->w},
                              .bias = {o->bias},
                              .x = &x,
                              .residual = o->residual,
                              .out = o->out,
                              .out_step = o->out_step,
                              .residual_step = o->residual_step};
  product(&p, from, to, (float *)(void *)(x.planes + pe_amx16_bytes(x.rows, x.cols)));
}

const pe_amx16_version PE_TILES = {arrange, product, {plain_arrange, plain_product}};
