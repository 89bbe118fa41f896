/* int16_vnni.c - int16_impl.h over sixteen lanes with VNNI; one or two rows are left to
 * int16_vnni_row.c. Empty on other machines. */
#include "kernels/cpu/int16.h"
#ifdef __AVX512VNNI__

#include <immintrin.h>

#define PE_ISA vnni
#define PE_ISA_NAME "avx512_vnni"
#define PE_DOT(acc, w, x) ((vi)_mm512_dpwssd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(x)))
#define PE_DOT_AT(acc, w, p) dot_at(acc, w, p)
#define PE_FUSED 0
#define PE_LEAST 3
#define PE_FEWER &pe_int16_vnni_row

typedef int32_t lanes __attribute__((vector_size(64)));
typedef struct pair_at {
  int16_t code[2];
} pair_at;

/* gcc loads the pair with an instruction of its own, and moves sums between registers. */
static inline __attribute__((always_inline)) lanes dot_at(lanes acc, lanes w, const int16_t *p) {
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const pair_at *)p));
  return acc;
}

#include "kernels/cpu/int16_512.h"

#endif
