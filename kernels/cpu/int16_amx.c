/* int16_amx.c - products of many rows in the tiles of AMX; those of few rows are left to the
 * version with VNNI. Empty on other machines. */
#include "kernels/cpu/int16.h"
#if defined(__AMX_INT8__) || defined(__AMXINT8__) /* clang 14 */

#include <immintrin.h>

#define PE_ISA amx
#define PE_ISA_NAME "amx"
#define PE_TILE 16
#define PE_PANELS 2
#define PE_COLS 512
#define PE_FUSED 0
#define PE_CONFIGURE
#define PE_RUNS
/* Measured against VNNI, in turns: 0.87 times its speed with 5 rows, 0.9 with 6 and 7, 1.1 with 8,
 * 1.2 to 1.4 with 12, 1.5 with 16, 2 with 64. */
#define PE_LEAST 8
#define PE_FEWER &pe_int16_vnni

/* A product with a matrix of bits, whose row for bit i of the result is byte 7 - i. */
static inline long long bit_rows(int at, int n, int to) {
  unsigned long long m = 0;
  for (int i = 0; i < n; i++) m |= 1ull << (at + i) << 8 * (7 - to - i);
  return (long long)m;
}
#define PE_FIELD(v, at, n, to)                                                                     \
  ((vu)_mm512_gf2p8affine_epi64_epi8((__m512i)(v), _mm512_set1_epi64(bit_rows(at, n, to)), 0))

#include "kernels/cpu/int16_512.h"

#include "kernels/cpu/int16_lanes.h"

#include "kernels/cpu/int16_tmul.h"

#include "kernels/cpu/int16_tmul_few.h"

#include "kernels/cpu/int16_impl.h"

#endif
