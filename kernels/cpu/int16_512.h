/* int16_512.h - what the versions of AVX-512 have in common, and those that define PE_DOT (see
 * int16_pairs.h) all the rest. */
#define PE_WIDTH 16
#define PE_FMA(a, b, c) ((vf)_mm512_fmadd_ps(a, b, c))
#define PE_HALVES(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define PE_SHORTS(p) _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define PE_BYTES(p) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define PE_HIGHER(a, b) ((vi)_mm512_max_epi32((__m512i)(a), (__m512i)(b)))
#define PE_HIGHEST(v) _mm512_reduce_max_epi32((__m512i)(v))
#define PE_LOOKUP(table, v) _mm512_shuffle_epi8((__m512i)(table), (__m512i)(v))

#ifdef PE_DOT
/* Thirty-two registers: 8x2 sums, 2 columns and a row. Per pair of columns that is 16 products for
 * 10 loads, and both ports of products are busy. */
#define PE_TILE 8
#define PE_PANELS 2
#define PE_FEW 8
#define PE_COLS 256
#define PE_CHAINS 4

#include "kernels/cpu/int16_lanes.h"

#include "kernels/cpu/int16_pairs.h"

#include "kernels/cpu/int16_impl.h"
#endif
