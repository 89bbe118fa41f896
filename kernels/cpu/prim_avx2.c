/* prim_avx2.c - prim_impl.h over registers of eight floats; empty on other machines. */
#include "kernels/cpu/prim.h"
#ifdef __AVX2__

#include <immintrin.h>

#define PE_ISA avx2
#define PE_ISA_NAME "avx2"
#define PE_WIDTH 8
#define PE_FMA(a, b, c) ((vf)_mm256_fmadd_ps(a, b, c))
#define PE_HALVES(p) ((vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p))))
#define PE_SHORTS(p) ((vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))))
#define PE_HALF(h) _cvtsh_ss(h)
#define PE_LOOKUP(table, index) ((v16b)_mm_shuffle_epi8((__m128i)(table), (__m128i)(index)))
#define PE_WIDEN(bytes, part)                                                                      \
  ((vi)_mm256_cvtepu8_epi32((part) ? _mm_srli_si128((__m128i)(bytes), 8) : (__m128i)(bytes)))
#define PE_WIDEN_SIGNED(bytes, part)                                                               \
  ((vi)_mm256_cvtepi8_epi32((part) ? _mm_srli_si128((__m128i)(bytes), 8) : (__m128i)(bytes)))
#define PE_SPREAD(bytes, index)                                                                    \
  ((vu)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256((__m128i)(bytes)),                          \
                           _mm256_loadu_si256((const __m256i *)(index))))
#define PE_HIGHER(a, b) ((vf)_mm256_max_ps(a, b))
#define PE_LOWER(a, b) ((vf)_mm256_min_ps(a, b))
#define PE_BITS(mask) _mm256_movemask_ps((__m256)(mask))
/* Sixteen registers: a tile of 3x2 sums takes 12 accumulators (16 lanes are two registers) and
 * leaves 2 for columns and 1 for a row. One row alone needs 8 independent sums to hide the 4 cycles
 * of a multiply-add on two ports. 2x4 accumulators, 4 columns and a factor take 13,
 * 6x2 of them for many rows 15. */
#define PE_TILE_ROWS 3
#define PE_TILE_COLS 2
#define PE_ROW_COLS 4
#define PE_MIX_ROWS 2
#define PE_MIX_VECS 4
#define PE_MIX_MANY 6
#define PE_MIX_WIDE 2
/* Products with stored weights: 1x4 sums for few rows, 6x1 sums of 16 results for more. */
#define PE_FEW 3
#define PE_FEW_ROWS 1
#define PE_PANEL_ROWS 6
#define PE_PANEL_PARTS 1

#include "kernels/cpu/prim_impl.h"

#endif
