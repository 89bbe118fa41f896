/* int16_avx2.c - int16_impl.h over registers of eight lanes; empty on other machines. */
#include "kernels/cpu/int16.h"
#ifdef __AVX2__

#include <immintrin.h>

#define PE_ISA avx2
#define PE_ISA_NAME "avx2"
#define PE_WIDTH 8
#define PE_FMA(a, b, c) ((vf)_mm256_fmadd_ps(a, b, c))
#define PE_DOT(acc, w, x) ((acc) + (vi)_mm256_madd_epi16((__m256i)(w), (__m256i)(x)))
#define PE_HALVES(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define PE_SHORTS(p) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define PE_BYTES(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p)))
#define PE_LOOKUP(table, v) _mm256_shuffle_epi8((__m256i)(table), (__m256i)(v))
/* Sixteen registers: 4x1 sums (16 lanes are two registers), 2 of a column, a row and a product. */
#define PE_TILE 4
#define PE_PANELS 1
#define PE_COLS 256
#define PE_CHAINS 4
#define PE_FUSED 2

#include "kernels/cpu/int16_lanes.h"

#include "kernels/cpu/int16_pairs.h"

#include "kernels/cpu/int16_impl.h"

#endif
