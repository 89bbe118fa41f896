/* fast_attention_amx.c - fast_attention_tiles_impl.h with the instructions of AMX; empty on other
 * machines. */
#include "kernels/cpu/fast_attention_tiles.h"
#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* clang 14 */

#include <immintrin.h>

/* Not the compilers' intrinsics; int16_tmul.h says why. */
typedef struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_config;

static void configure(int rows) {
  tile_config c = {.palette = 1};
  for (int t = 0; t < 8; t++) c.row_bytes[t] = 64, c.rows[t] = (uint8_t)(t < 6 ? rows : 16);
  __asm__ volatile("ldtilecfg %0" ::"m"(c));
}

#define PE_WIDTH 16
#define PE_FMA(a, b, c) ((vf)_mm512_fmadd_ps(a, b, c))
#define PE_HIGHER(a, b) ((vf)_mm512_max_ps(a, b))
#define PE_LOWER(a, b) ((vf)_mm512_min_ps(a, b))
#define PE_TIMES_2(p, n) ((vf)_mm512_scalef_ps(p, n))
#define PE_TILES pe_attention_tiles
#define TILES_BEGIN(rows) configure(rows)
#define TILES_END __asm__ volatile("tilerelease")
#define TILE_LOAD(t, p, step)                                                                      \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(step)) : "memory")
#define TILE_STORE(t, p, step)                                                                     \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(step)) : "memory")
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define HALVES(p) ((vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p))))
#define NOT_BELOW(a, b) ((vf)_mm512_max_ps(b, a)) /* the second one where it is NaN */
#define KEPT_NAN(y, x) (y)
#define HERE(v) __asm__ volatile("" : "+v"(v))
/* One instruction where a shift and an or are two. */
#define PAIRS(a, b)                                                                                \
  ((vu)_mm512_mask_shuffle_epi8(                                                                   \
      (__m512i)(b), 0x3333333333333333u, (__m512i)(a),                                             \
      _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302)))

#include "kernels/cpu/fast_attention_tiles_impl.h"

#endif
