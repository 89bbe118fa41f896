/* int16_avx512.c - int16_impl.h over registers of sixteen lanes; empty on other machines. */
#include "kernels/cpu/int16.h"
#ifdef __AVX512BW__

#include <immintrin.h>

#define PE_ISA avx512
#define PE_ISA_NAME "avx512"
#define PE_DOT(acc, w, x) ((acc) + (vi)_mm512_madd_epi16((__m512i)(w), (__m512i)(x)))
#define PE_FUSED 2
#include "kernels/cpu/int16_512.h"

#endif
