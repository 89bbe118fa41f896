/* int16.c - see int16.h: memory of the activations, and the choice of the version. */
#include "kernels/cpu/int16.h"

#include "kernels/cpu/features.h"
#include "kernels/cpu/int16_layout.h"

#include <stdlib.h>
#include <string.h>

#define BIT(f) ((uint64_t)1 << (f))

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t line(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

void pe_int16_place(const pe_int16 *isa, int32_t rows, int64_t cols, int32_t act, void *room,
                    pe_int16_rows *out) {
  while (rows < isa->least) isa = isa->fewer;
  pe_int16_rows x = {.rows = rows,
                     .tiles = (rows + isa->tile - 1) / isa->tile,
                     .act = act,
                     .layout = isa->layout,
                     .cols = cols,
                     .step = (cols + 63) / 64 * 64,
                     .groups = cols / act};
  const uint64_t codes = line((uint64_t)rows * (uint64_t)x.step * sizeof *x.codes);
  const uint64_t scales = line((uint64_t)rows * (uint64_t)x.groups * sizeof *x.scale);
  uint8_t *at = room;
  x.codes = (int16_t *)(void *)at;
  x.scale = (float *)(void *)(at + codes);
  x.scaled = (float *)(void *)(at + codes + scales);
  x.sum = (int32_t *)(void *)(at + codes + 2 * scales);
  *out = x;
}

uint64_t pe_int16_bytes(int32_t rows, int64_t cols, int32_t act) {
  const uint64_t step = (uint64_t)(cols + 63) / 64 * 64;
  return line((uint64_t)rows * step * sizeof(int16_t)) +
         3 * line((uint64_t)rows * (uint64_t)(cols / act) * sizeof(float));
}

/* Sums of all rows, those of biases of a tile, and the biases of all groups of whole chunks. */
uint64_t pe_int16_scratch(const pe_pack *w, int32_t rows) {
  const uint64_t groups = w->bias ? (uint64_t)(w->cols / w->act) + PE_INT16_GROUPS : 0;
  const uint64_t lines = (uint64_t)rows + PE_INT16_TILE + groups;
  return sizeof(pe_int16_block) + lines * PE_INT16_PANELS * PE_PACK_ROWS * 4;
}

/* Half of a second-level cache of 1 MB; the other half is for sums, results and weights. Versions
 * that multiply pairs request the codes of the next tile early enough for the third-level cache,
 * and gain more by unpacking weights less often: 1.15 times the speed with 9728 columns. With AMX
 * 1 MB and 2 MB are 2 % slower. */
enum { CACHED = 1 << 19, CACHED_PAIRS = 1 << 21 };

int32_t pe_int16_cached(const pe_int16_rows *x) {
  const int64_t rows = (x->rows + x->tiles - 1) / x->tiles;
  const int64_t bytes = x->layout == PE_INT16_PAIRS ? CACHED_PAIRS : CACHED;
  const int64_t tiles = bytes / (rows * x->step * (int64_t)sizeof *x->codes);
  return tiles < 2 ? 2 : tiles < x->tiles ? (int32_t)tiles : x->tiles;
}

int32_t pe_int16_code(const pe_int16_rows *x, int32_t row, int64_t col) {
  static const uint8_t pairs[8] = {0, 2, 4, 6, 1, 3, 5, 7}, bytes[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  const pe_int16_tile t = pe_int16_tile_at(x, pe_int16_tile_of(x, row));
  const int64_t r = row - t.from, n = t.rows;
  const int16_t *codes = x->codes + t.from * x->step;
  if (x->layout == PE_INT16_PAIRS) return codes[(col / 8 * n + r) * 8 + pairs[col % 8]];
  const uint8_t *at = (const uint8_t *)codes, *low;
  if (x->layout == PE_INT16_TILES)
    at += (col / 64 * 2 * n + r) * 64 + col % 64 / 8 * 8 + bytes[col % 8], low = at + n * 64;
  else
    at += (col / 8 * n + r) * 16 + bytes[col % 8], low = at + 8;
  const int32_t high = x->layout == PE_INT16_BIASED ? *at - 128 : (int8_t)*at;
  const bool is_signed = x->layout == PE_INT16_SIGNED || x->layout == PE_INT16_TILES;
  return 256 * high + (is_signed ? (int8_t)*low : *low);
}

/* ---- choice ---------------------------------------------------------------------------------- */

#define AVX2 (BIT(PE_CPU_AVX2) | BIT(PE_CPU_FMA) | BIT(PE_CPU_F16C))
#define AVX512                                                                                     \
  (AVX2 | BIT(PE_CPU_AVX512F) | BIT(PE_CPU_AVX512BW) | BIT(PE_CPU_AVX512VL) | BIT(PE_CPU_AVX512DQ))

static const struct {
  const pe_int16 *isa;
  uint64_t needs;
} versions[] = {
/* best first */
#if defined __x86_64__
    {&pe_int16_amx, AVX512 | BIT(PE_CPU_AVX512_VNNI) | BIT(PE_CPU_GFNI) | BIT(PE_CPU_AMX_TILE) |
                        BIT(PE_CPU_AMX_INT8)},
    {&pe_int16_vnni, AVX512 | BIT(PE_CPU_AVX512_VNNI)},
    {&pe_int16_avx512, AVX512},
    {&pe_int16_avx2, AVX2},
#elif defined __aarch64__
    {&pe_int16_i8mm, BIT(PE_CPU_DOTPROD) | BIT(PE_CPU_I8MM)},
    {&pe_int16_dotprod, BIT(PE_CPU_DOTPROD)},
    {&pe_int16_neon, 0}, /* part of every aarch64 */
#endif
    {&pe_int16_scalar, 0},
};

static bool runs(size_t i) { return !(versions[i].needs & ~pe_cpu_features()); }

const pe_int16 *pe_int16_named(const char *name) {
  for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
    if (!strcmp(versions[i].isa->name, name)) return runs(i) ? versions[i].isa : NULL;
  return NULL;
}

const pe_int16 *pe_int16_next(int *at) {
  while ((size_t)*at < sizeof versions / sizeof *versions) {
    const size_t i = (size_t)(*at)++;
    if (runs(i)) return versions[i].isa;
  }
  return NULL;
}

const pe_int16 *pe_int16_best(void) {
  const char *wanted = getenv("PERIGEE_ISA");
  const pe_int16 *named = wanted ? pe_int16_named(wanted) : NULL;
  return named ? named : pe_int16_next(&(int){0});
}
