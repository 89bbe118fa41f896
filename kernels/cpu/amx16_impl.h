/* amx16_impl.h - the one source of the products of amx16.h. The files that include it define
 *
 *   PE_TILES                     name of the version
 *   TILES_BEGIN(width), _END     set up the tiles for `width` activation rows, release them
 *   TILE_ZERO(t), TILE_LOAD(t, p, step), TILE_DOT(c, a, b), TILE_STORE(t, p, step)
 *
 * with tiles numbered by constants: 0 to 3 sums, 4 and 5 weights, 6 and 7 activations. */
#include "kernels/cpu/amx16.h"
#include "kernels/cpu/transpose.h"

#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))

enum {
  ROWS = 16,         /* weight rows of a tile */
  BLOCK = 32,        /* columns of a tile */
  GROUP = 2 * ROWS,  /* weight rows at a time */
  TILE_BYTES = 1024, /* of a tile of sixteen rows, also of sums */
  AHEAD = 1024       /* bytes from the tile in use to the one that is requested, in each row */
};
typedef uint32_t vu16 __attribute__((vector_size(64)));

static int64_t width_of(int64_t rows) { return rows <= 4 ? 4 : rows <= 8 ? 8 : 16; }
static int64_t blocks_of(int64_t cols) { return (cols + BLOCK - 1) / BLOCK; }

/* Parts of the scratch, on cache lines. */
typedef struct room {
  uint8_t *tile;     /* weights that are copied, or sums: two tiles */
  uint8_t *arranged; /* activations */
} room;
static room room_of(float *scratch) {
  uint8_t *at = (uint8_t *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
  return (room){at, at + 2 * TILE_BYTES};
}

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
static void arrange_block(const float *x, int64_t step, int64_t rows, int64_t cols, int64_t width,
                          uint8_t *out) {
  pe_vec16 plane[2][ROWS];
  memset(plane, 0, sizeof plane);
  for (int64_t r = 0; r < rows; r++) {
    float tail[BLOCK] = {0};
    if (cols < BLOCK) memcpy(tail, x + r * step, (size_t)cols * sizeof *x);
    split(cols < BLOCK ? tail : x + r * step, &plane[0][r], &plane[1][r]);
  }
  for (int p = 0; p < 2; p++) {
    pe_transpose16(plane[p]);
    for (int i = 0; i < ROWS; i++, out += width * 4) memcpy(out, &plane[p][i], (size_t)width * 4);
  }
}

static void arrange(const pe_plain_product *o, float *scratch) {
  const int64_t width = width_of(o->rows), cols = o->w->cols;
  uint8_t *out = room_of(scratch).arranged;
  for (int64_t r = 0; r < o->rows; r += width)
    for (int64_t k = 0; k < cols; k += BLOCK, out += 2 * ROWS * width * 4)
      arrange_block(o->x + r * o->x_step + k, o->x_step, o->rows - r < width ? o->rows - r : width,
                    cols - k < BLOCK ? cols - k : BLOCK, width, out);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Sixteen weight rows from `row` on. */
typedef struct weights {
  const pe_quant_matrix *m;
  int64_t row;
} weights;

/* A tile of weights: where it is stored, or a copy filled with zeros at the ends of the matrix. */
static const uint8_t *weights_at(const weights *w, int64_t k, uint8_t *copy, size_t *step) {
  const uint8_t *at = w->m->data + (uint64_t)w->row * w->m->row_bytes + (uint64_t)k * 2;
  const int64_t left = w->m->rows - w->row, rows = left < ROWS ? left : ROWS;
  const int64_t cols = w->m->cols - k < BLOCK ? w->m->cols - k : BLOCK;
  *step = w->m->row_bytes;
  if (rows == ROWS && cols == BLOCK) return at;
  memset(copy, 0, TILE_BYTES);
  for (int64_t r = 0; r < rows; r++)
    memcpy(copy + r * BLOCK * 2, at + (uint64_t)r * w->m->row_bytes, (size_t)cols * 2);
  *step = BLOCK * 2;
  return copy;
}

static void ask_for(const uint8_t *at, size_t step) {
  for (int r = 0; r < ROWS; r++) __builtin_prefetch(at + (size_t)r * step + AHEAD, 0, 2);
}

/* Adds bias and residual to a tile of sums, [weight row][activation row], and writes it. */
static void finish(const pe_plain_product *o, const uint8_t *tile, int64_t width, int64_t row,
                   int64_t from, int64_t to) {
  const int64_t rows = o->rows - row < width ? o->rows - row : width;
  const int64_t count = to - from < ROWS ? to - from : ROWS;
  pe_vec16 v[ROWS];
  memset(v, 0, sizeof v);
  for (int j = 0; j < ROWS; j++) memcpy(&v[j], tile + j * width * 4, (size_t)width * 4);
  pe_transpose16(v);
  for (int64_t r = 0; r < rows; r++) {
    float *out = o->out + (row + r) * o->out_step + from;
    const float *y = (const float *)&v[r];
    const float *more = o->residual ? o->residual + (row + r) * o->residual_step + from : NULL;
    for (int64_t j = 0; j < count; j++) {
      float s = y[j];
      if (o->bias) s += o->bias[from + j];
      if (more) s += more[j];
      out[j] = s;
    }
  }
}

typedef struct job { /* 32 weight rows, one or two tiles of activation rows */
  const pe_plain_product *o;
  weights w[2];
  const uint8_t *x[2];
  uint8_t *copy;
  int64_t width;
  bool ask;
} job;

/* Sums of 2 x N tiles. */
ALWAYS void multiply(const job *b, const int N) {
  const size_t width = (size_t)b->width * 4, plane = ROWS * width;
  TILE_ZERO(0);
  TILE_ZERO(2);
  if (N > 1) {
    TILE_ZERO(1);
    TILE_ZERO(3);
  }
  for (int64_t k = 0, at = 0; k < b->o->w->cols; k += BLOCK, at += 2 * (int64_t)plane) {
    size_t step[2];
    const uint8_t *w0 = weights_at(&b->w[0], k, b->copy, &step[0]);
    const uint8_t *w1 = weights_at(&b->w[1], k, b->copy + TILE_BYTES, &step[1]);
    if (b->ask) {
      ask_for(w0, step[0]);
      ask_for(w1, step[1]);
    }
    TILE_LOAD(4, w0, step[0]);
    TILE_LOAD(5, w1, step[1]);
    for (int p = 0; p < 2; p++) {
      TILE_LOAD(6, b->x[0] + at + p * (int64_t)plane, width);
      TILE_DOT(0, 4, 6);
      TILE_DOT(2, 5, 6);
      if (N > 1) {
        TILE_LOAD(7, b->x[1] + at + p * (int64_t)plane, width);
        TILE_DOT(1, 4, 7);
        TILE_DOT(3, 5, 7);
      }
    }
  }
}

static void group(const pe_plain_product *o, int64_t from, int64_t to, const room *r) {
  const int64_t width = width_of(o->rows), tile = blocks_of(o->w->cols) * 2 * ROWS * width * 4;
  job b = {.o = o, .copy = r->tile, .width = width, .ask = true};
  const int64_t second = from + ROWS < to ? from + ROWS : from; /* again if there is no other */
  b.w[0] = (weights){o->w, from}, b.w[1] = (weights){o->w, second};
  for (int64_t row = 0; row < o->rows; row += 2 * width, b.ask = false) {
    const bool two = row + width < o->rows;
    b.x[0] = r->arranged + row / width * tile, b.x[1] = b.x[0] + tile;
    if (two)
      multiply(&b, 2);
    else
      multiply(&b, 1);
    TILE_STORE(0, r->tile, (size_t)width * 4);
    finish(o, r->tile, width, row, from, to);
    if (two) {
      TILE_STORE(1, r->tile, (size_t)width * 4);
      finish(o, r->tile, width, row + width, from, to);
    }
    if (second == from) continue;
    TILE_STORE(2, r->tile, (size_t)width * 4);
    finish(o, r->tile, width, row, second, to);
    if (two) {
      TILE_STORE(3, r->tile, (size_t)width * 4);
      finish(o, r->tile, width, row + width, second, to);
    }
  }
}

static void product(const pe_plain_product *o, int64_t from, int64_t to, float *scratch) {
  const room r = room_of(scratch);
  TILES_BEGIN(width_of(o->rows));
  for (int64_t j = from; j < to; j += GROUP) group(o, j, to, &r);
  TILES_END;
}

const pe_plain PE_TILES = {.arrange = arrange, .product = product};
