/* amx16.c - see amx16.h: memory, and the choice of the version. */
#include "kernels/cpu/amx16.h"

#include "kernels/cpu/features.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Two tiles, a cache line to align them, and both planes of whole tiles and blocks. */
int64_t pe_amx16_scratch(int64_t rows, int64_t cols) {
  return 2 * 256 + 16 + (rows + 15) / 16 * 16 * ((cols + 31) / 32 * 32);
}

#ifdef __x86_64__
/* A product that has every kind of tile: do the instructions round as the emulation does? */
static bool agrees(void) {
  enum { OUTS = 48, COLS = 80, MOST = 40 };
  uint16_t w[OUTS * COLS];
  float x[MOST * COLS], got[MOST * OUTS], want[MOST * OUTS];
  float scratch[2 * 256 + 16 + 48 * 96];
  uint32_t bits = 1;
  for (int i = 0; i < OUTS * COLS; i++)
    bits = bits * 1664525 + 1013904223, w[i] = (uint16_t)(0x3c00 | (bits >> 16 & 0x83ff));
  for (int i = 0; i < MOST * COLS; i++)
    bits = bits * 1664525 + 1013904223, x[i] = (float)(int32_t)bits * 0x1p-31f;
  const pe_quant_matrix m = {.dtype = PE_BF16,
                             .rows = OUTS,
                             .cols = COLS,
                             .data = (const uint8_t *)w,
                             .row_bytes = COLS * 2};
  pe_plain_product p = {.w = &m, .x = x, .x_step = COLS, .out_step = OUTS};
  for (p.rows = 1; p.rows <= MOST; p.rows += 13) {
    p.out = got, pe_amx16.arrange(&p, scratch), pe_amx16.product(&p, 0, OUTS, scratch);
    p.out = want, pe_amx16_emulated.arrange(&p, scratch);
    pe_amx16_emulated.product(&p, 0, OUTS, scratch);
    if (memcmp(got, want, (size_t)p.rows * OUTS * sizeof *got)) return false;
  }
  return true;
}

const pe_plain *pe_amx16_best(void) {
  enum { UNKNOWN, NONE, TILES };
  static _Atomic int known;
  int found = atomic_load_explicit(&known, memory_order_relaxed);
  if (found == UNKNOWN) { /* two threads may both look: they find the same */
    const bool has = pe_cpu_has(PE_CPU_AMX_TILE) && pe_cpu_has(PE_CPU_AMX_BF16) &&
                     pe_cpu_has(PE_CPU_AVX512F) && pe_cpu_has(PE_CPU_AVX512BW);
    found = has && !getenv("PERIGEE_ISA") && agrees() ? TILES : NONE;
    atomic_store_explicit(&known, found, memory_order_relaxed);
  }
  return found == TILES ? &pe_amx16 : NULL;
}
#else
const pe_plain *pe_amx16_best(void) { return NULL; }
#endif
