/* amx16_emulated.c - amx16_impl.h with the tiles of AMX emulated in plain C, for tests. */
#include "kernels/dtype.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* A tile is sixteen rows of 64 bytes. */
static _Thread_local struct {
  uint8_t row[8][16][64];
  int64_t width; /* activation rows: bytes / 4 of a row of sums and of activations */
} tiles;

static size_t tile_bytes(int t) { return t == 4 || t == 5 ? 64 : (size_t)tiles.width * 4; }

static void tile_load(int t, const uint8_t *p, size_t step) {
  for (size_t r = 0; r < 16; r++) memcpy(tiles.row[t][r], p + r * step, tile_bytes(t));
}

static void tile_store(int t, uint8_t *p, size_t step) {
  for (size_t r = 0; r < 16; r++) memcpy(p + r * step, tiles.row[t][r], tile_bytes(t));
}

static float flushed(float f) { return fpclassify(f) == FP_SUBNORMAL ? copysignf(0, f) : f; }

static float element(int t, int row, int i) {
  uint16_t h;
  memcpy(&h, tiles.row[t][row] + 2 * i, sizeof h);
  return flushed(pe_bf16_to_f32(h));
}

static void tile_dot(int c, int a, int b) {
  for (int m = 0; m < 16; m++)
    for (int n = 0; n < tiles.width; n++) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < 16; k++) {
        even = flushed(fmaf(element(a, m, 2 * k), element(b, k, 2 * n), even));
        odd = flushed(fmaf(element(a, m, 2 * k + 1), element(b, k, 2 * n + 1), odd));
      }
      memcpy(&sum, tiles.row[c][m] + 4 * n, sizeof sum);
      sum = flushed(flushed(sum) + flushed(even + odd));
      memcpy(tiles.row[c][m] + 4 * n, &sum, sizeof sum);
    }
}

#define PE_TILES pe_amx16_emulated
#define TILES_BEGIN(wide) (tiles.width = (wide))
#define TILES_END (void)0
#define TILE_ZERO(t) memset(tiles.row[t], 0, sizeof tiles.row[t])
#define TILE_LOAD(t, p, step) tile_load(t, p, step)
#define TILE_DOT(c, a, b) tile_dot(c, a, b)
#define TILE_STORE(t, p, step) tile_store(t, p, step)

#include "kernels/cpu/amx16_impl.h"
