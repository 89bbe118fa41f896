/* amx16.c - see amx16.h: memory, and the choice of the version. */
#include "kernels/cpu/amx16.h"

#include "kernels/cpu/features.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------- */

enum {
  ROWS = 16,
  BLOCK = 32,
  GROUP = 2 * ROWS,
  LINE = 16, /* floats */
  /* Of a second-level cache of 2 MB. The rest is for two tiles of rows, 384 KB with 3072 columns,
   * and the next strip, which is requested meanwhile. */
  STRIP_BYTES = 768 << 10,
  MOST_STRIP = 512
};

static int64_t blocks_of(int64_t cols) { return (cols + BLOCK - 1) / BLOCK; }
static int64_t tiles_of(int64_t rows) { return (rows + ROWS - 1) / ROWS; }

uint64_t pe_amx16_bytes(int64_t rows, int64_t cols) {
  return (uint64_t)(tiles_of(rows) * ROWS * blocks_of(cols) * BLOCK) * 4;
}

int64_t pe_amx16_parts(int64_t rows, int64_t cols) { return tiles_of(rows) * blocks_of(cols); }

int64_t pe_amx16_strip(int64_t cols, int matrices) {
  const int64_t fit = STRIP_BYTES / (blocks_of(cols) * BLOCK * 2 * matrices) / GROUP * GROUP;
  return fit < GROUP ? GROUP : fit > MOST_STRIP ? MOST_STRIP : fit;
}

/* A tile of sums, the second matrix's results of two tiles of rows, and the strips. */
int64_t pe_amx16_room(int64_t cols) {
  const int64_t fit = STRIP_BYTES / 4, least = 2 * GROUP * blocks_of(cols) * BLOCK / 2;
  return LINE + ROWS * ROWS + 2 * ROWS * MOST_STRIP + (fit > least ? fit : least);
}

int64_t pe_amx16_scratch(int64_t rows, int64_t cols) {
  return LINE + (int64_t)(pe_amx16_bytes(rows, cols) / 4) + pe_amx16_room(cols);
}

/* ---- choice ---------------------------------------------------------------------------------- */

#ifdef __x86_64__
/* A product that has every kind of tile: do the instructions round as the emulation does? */
static bool agrees(void) {
  enum { OUTS = 48, COLS = 80, MOST = 40, SCRATCH = 512 << 10 };
  static float scratch[SCRATCH]; /* of pe_amx16_scratch(MOST, COLS); look runs once */
  uint16_t w[OUTS * COLS];
  float x[MOST * COLS], got[MOST * OUTS], want[MOST * OUTS];
  uint32_t bits = 1;
  bool same = pe_amx16_scratch(MOST, COLS) <= SCRATCH;
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
  for (p.rows = 1; same && p.rows <= MOST; p.rows += 13) {
    p.out = got, pe_amx16.plain.arrange(&p, scratch), pe_amx16.plain.product(&p, 0, OUTS, scratch);
    p.out = want, pe_amx16_emulated.plain.arrange(&p, scratch);
    pe_amx16_emulated.plain.product(&p, 0, OUTS, scratch);
    same = !memcmp(got, want, (size_t)p.rows * OUTS * sizeof *got);
  }
  return same;
}

static bool runs(void) {
  return pe_cpu_has(PE_CPU_AMX_TILE) && pe_cpu_has(PE_CPU_AMX_BF16) && pe_cpu_has(PE_CPU_AVX512F) &&
         pe_cpu_has(PE_CPU_AVX512BW) && agrees();
}
static const pe_amx16_version *const tiles = &pe_amx16;
#else
static bool runs(void) { return false; }
static const pe_amx16_version *const tiles = NULL;
#endif

static const pe_amx16_version *found; /* written once, by look */
static void look(void) { found = runs() ? tiles : NULL; }

const pe_amx16_version *pe_amx16_best(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const char *wanted = getenv("PERIGEE_ISA");
  if (wanted) return !strcmp(wanted, "emulated") ? &pe_amx16_emulated : NULL;
  pthread_once(&once, look);
  return found;
}

bool pe_amx16_takes(const pe_quant_matrix *w) {
  return w->quant.kind == PE_QUANT_NONE && w->dtype == PE_BF16 && pe_amx16_best();
}
