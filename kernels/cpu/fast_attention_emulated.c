/* fast_attention_emulated.c - fast_attention_tiles_impl.h with the tiles of AMX emulated in plain
 * C, for tests. */
#include "kernels/dtype.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* A tile is sixteen rows of 64 bytes. */
static _Thread_local struct {
  uint8_t row[8][16][64];
  int rows; /* of sums and left operands */
} tiles;

static int tile_rows(int t) { return t < 6 ? tiles.rows : 16; }

static void tile_load(int t, const uint8_t *p, size_t step) {
  for (int r = 0; r < tile_rows(t); r++) memcpy(tiles.row[t][r], p + (size_t)r * step, 64);
}

static void tile_store(int t, uint8_t *p, size_t step) {
  for (int r = 0; r < tile_rows(t); r++) memcpy(p + (size_t)r * step, tiles.row[t][r], 64);
}

static float flushed(float f) { return fabsf(f) < FLT_MIN ? copysignf(0, f) : f; }

/* bf16 numbers as floats: 32 columns of a left operand, or 32 lines of a right one. */
static void widen(int t, int rows, float out[16][32]) {
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < 32; i++) {
      uint16_t h;
      memcpy(&h, tiles.row[t][r] + 2 * i, sizeof h);
      out[r][i] = flushed(pe_bf16_to_f32(h));
    }
}

static void tile_dot(int c, int a, int b) {
  float left[16][32], right[16][32];
  widen(a, tiles.rows, left);
  widen(b, 16, right);
  for (int m = 0; m < tiles.rows; m++)
    for (int n = 0; n < 16; n++) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < 16; k++) {
        even = flushed(fmaf(left[m][2 * k], right[k][2 * n], even));
        odd = flushed(fmaf(left[m][2 * k + 1], right[k][2 * n + 1], odd));
      }
      memcpy(&sum, tiles.row[c][m] + 4 * n, sizeof sum);
      sum = flushed(flushed(sum) + flushed(even + odd));
      memcpy(tiles.row[c][m] + 4 * n, &sum, sizeof sum);
    }
}

typedef float floats16 __attribute__((vector_size(64)));
static floats16 from_halves(const uint8_t *p) {
  floats16 v;
  for (int i = 0; i < 16; i++) {
    uint16_t h;
    memcpy(&h, p + 2 * i, sizeof h);
    v[i] = pe_f16_to_f32(h);
  }
  return v;
}

static floats16 lanes_apart(floats16 a, floats16 b, floats16 c) {
  for (int j = 0; j < 16; j++) c[j] = fmaf(a[j], b[j], c[j]);
  return c;
}

#define PE_WIDTH 16
#define PE_FMA(a, b, c) lanes_apart(a, b, c)
#define PE_TILES pe_attention_tiles_emulated
#define TILES_BEGIN(n) (tiles.rows = (n))
#define TILES_END (void)0
#define TILE_LOAD(t, p, step) tile_load(t, p, step)
#define TILE_DOT(c, a, b) tile_dot(c, a, b)
#define TILE_STORE(t, p, step) tile_store(t, p, step)
#define HALVES(p) from_halves(p)
#define NOT_BELOW(a, b) higher(a, b) /* the second one where the first one is NaN */
#define KEPT_NAN(y, x) select_(x == x, y, x)
#define HERE(v) (void)(v)
#define PAIRS(a, b) ((a) >> 16 | (b))

#include "kernels/cpu/fast_attention_tiles_impl.h"
