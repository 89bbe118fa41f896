/* tile_emulated.h - the functions of tile_ops.h that bf16 needs, in plain C, for tests. */
#ifndef PE_TILE_OPS_H
#define PE_TILE_OPS_H

#include "kernels/dtype.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_config;

/* A tile is sixteen rows of 64 bytes; what the configuration leaves out is zero. */
static _Thread_local struct {
  uint8_t row[8][16][64];
  tile_config config;
} tiles;

static inline void tile_configure(const tile_config *c) {
  memset(&tiles, 0, sizeof tiles), tiles.config = *c;
}
static inline void tile_release(void) { memset(&tiles.config, 0, sizeof tiles.config); }

static inline void tile_clear(int t) { memset(tiles.row[t], 0, sizeof tiles.row[t]); }

static inline void tile_load(int t, const void *p, int64_t step) {
  tile_clear(t);
  for (int r = 0; r < tiles.config.rows[t]; r++)
    memcpy(tiles.row[t][r], (const uint8_t *)p + r * step, tiles.config.row_bytes[t]);
}

static inline void tile_store(int t, void *p, int64_t step) {
  for (int r = 0; r < tiles.config.rows[t]; r++)
    memcpy((uint8_t *)p + r * step, tiles.row[t][r], tiles.config.row_bytes[t]);
}

static inline float tile_flushed(float f) {
  return fpclassify(f) == FP_SUBNORMAL ? copysignf(0, f) : f;
}

static inline float tile_element(int t, int row, int i) {
  uint16_t h;
  memcpy(&h, tiles.row[t][row] + 2 * i, sizeof h);
  return tile_flushed(pe_bf16_to_f32(h));
}

static inline void tile_dot(int to, int a, int b) {
  const int pairs = tiles.config.row_bytes[a] / 4;
  for (int m = 0; m < tiles.config.rows[to]; m++)
    for (int n = 0; n < tiles.config.row_bytes[to] / 4; n++) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < pairs; k++) {
        even = fmaf(tile_element(a, m, 2 * k), tile_element(b, k, 2 * n), even);
        odd = fmaf(tile_element(a, m, 2 * k + 1), tile_element(b, k, 2 * n + 1), odd);
        even = tile_flushed(even), odd = tile_flushed(odd);
      }
      memcpy(&sum, tiles.row[to][m] + 4 * n, sizeof sum);
      sum = tile_flushed(tile_flushed(sum) + tile_flushed(even + odd));
      memcpy(tiles.row[to][m] + 4 * n, &sum, sizeof sum);
    }
}

#endif
