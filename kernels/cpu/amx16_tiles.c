/* amx16_tiles.c - amx16_impl.h with the instructions of AMX; empty on other machines. */
#include "kernels/cpu/amx16.h"
#ifdef __AMX_BF16__

#include <immintrin.h>
#include <string.h>

/* Sums and activations are as wide as there are activation rows, weights 64 bytes. */
static void configure(int64_t width) {
  struct {
    uint8_t palette, start, rest[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } config = {.palette = 1};
  for (int t = 0; t < 8; t++) {
    config.bytes[t] = (uint16_t)(t == 4 || t == 5 ? 64 : width * 4);
    config.rows[t] = 16;
  }
  /* gcc 12 believes that eight bytes are read, and would drop the other stores */
  __asm__ volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

#define PE_TILES pe_amx16
#define TILES_BEGIN(width) configure(width)
#define TILES_END _tile_release()
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, p, step) _tile_loadd(t, p, step)
#define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
#define TILE_STORE(t, p, step) _tile_stored(t, p, step)

#include "kernels/cpu/amx16_impl.h"

#endif
