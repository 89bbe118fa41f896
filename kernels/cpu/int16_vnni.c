/* int16_vnni.c - int16_impl.h over sixteen lanes with VNNI; one or two rows are left to
 * int16_vnni_row.c. Empty on other machines. */
#include "kernels/cpu/int16.h"
#ifdef __AVX512VNNI__

#include <immintrin.h>

#define PE_ISA vnni
#define PE_ISA_NAME "avx512_vnni"
#define PE_DOT(acc, w, x) dot(acc, w, x)
#define PE_DOT_AT(acc, w, p) dot_at(acc, w, p)
#define PE_FUSED 0
#define PE_LEAST 3
#define PE_FEWER &pe_int16_vnni_row

typedef int32_t lanes __attribute__((vector_size(64)));

typedef struct pair_at {
  int16_t code[2];
} pair_at;

/* gcc moves sums between registers around the intrinsic, and loads a pair with an instruction of
 * its own. */
static inline __attribute__((always_inline)) lanes dot(lanes acc, lanes w, lanes x) {
  __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
  return acc;
}
static inline __attribute__((always_inline)) lanes dot_at(lanes acc, lanes w, const int16_t *p) {
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const pair_at *)p));
  return acc;
}

#include "kernels/cpu/int16_512.h"

#endif
