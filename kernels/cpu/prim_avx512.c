/* prim_avx512.c - prim_impl.h over registers of sixteen floats; empty on other machines. */
#include "kernels/cpu/prim.h"
#ifdef __AVX512F__

#include <immintrin.h>

#define PE_ISA avx512
#define PE_ISA_NAME "avx512"
#define PE_WIDTH 16
#define PE_FMA(a, b, c) ((vf)_mm512_fmadd_ps(a, b, c))
#define PE_HALVES(p) ((vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p))))
#define PE_SHORTS(p) ((vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))))
#define PE_HALF(h) _cvtsh_ss(h)
#define PE_LOOKUP(table, index) ((v16b)_mm_shuffle_epi8((__m128i)(table), (__m128i)(index)))
#define PE_WIDEN(bytes, part) ((void)(part), (vi)_mm512_cvtepu8_epi32((__m128i)(bytes)))
#define PE_WIDEN_SIGNED(bytes, part) ((void)(part), (vi)_mm512_cvtepi8_epi32((__m128i)(bytes)))
#define PE_SPREAD(bytes, index)                                                                    \
  ((vu)_mm512_shuffle_epi8(_mm512_broadcast_i32x4((__m128i)(bytes)), _mm512_loadu_si512(index)))
#define PE_CHOOSE(table, index) ((vf)_mm512_permutexvar_ps((__m512i)(index), (__m512)(table)))
#define PE_HIGHER(a, b) ((vf)_mm512_max_ps(a, b))
#define PE_LOWER(a, b) ((vf)_mm512_min_ps(a, b))
#define PE_TIMES_2(p, n) ((vf)_mm512_scalef_ps(p, n))
#define PE_BITS(mask) _mm512_movepi32_mask((__m512i)(mask))
#define PE_MASK __mmask16
#define PE_EITHER_NAN(a, b) _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q)
#define PE_AT_LEAST(a, b) _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ)
#define PE_ALSO(mask, a, b) _mm512_mask_cmp_ps_mask(mask, a, b, _CMP_GE_OQ)
#define PE_MASKED(mask, v) ((vf)_mm512_maskz_mov_ps(mask, v))
#define PE_SUM_MASKED(mask, a, b) ((vf)_mm512_maskz_add_epi32(mask, (__m512i)(a), (__m512i)(b)))
#define PE_ADD_MASKED(mask, sum, w) ((vf)_mm512_mask_add_ps(sum, mask, sum, w))
#define PE_HIGHEST(v) _mm512_reduce_max_ps(v)
#define PE_PACK(v, bits) _mm512_maskz_compress_epi32((__mmask16)(bits), (__m512i)(v))
/* Thirty-two registers: 4x4 accumulators, 4 columns and a row take 21, and sixteen sums are just
 * what finish16 adds up at once. One row alone needs 8 independent sums to hide the 4 cycles of a
 * multiply-add on two ports. 6x4 sums of `mix`, 4 lines and a factor take 29. */
#define PE_TILE_ROWS 4
#define PE_TILE_COLS 4
#define PE_ROW_COLS 8
#define PE_MIX_ROWS 4
#define PE_MIX_VECS 4
#define PE_MIX_MANY 6
#define PE_MIX_WIDE 4
/* Products with stored weights: 4x4 sums in registers for few rows, from which on 14x2 sums, 2
 * columns and a row win (16 rows: the same, 12: 1.2 times slower). */
#define PE_FEW 16
#define PE_FEW_ROWS 4
#define PE_PANEL_ROWS 14
#define PE_PANEL_PARTS 2

#include "kernels/cpu/prim_impl.h"

#endif
