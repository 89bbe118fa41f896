/* int16_vnni.c - int16_impl.h over sixteen lanes with VNNI; empty on other machines. */
#include "kernels/cpu/int16.h"
#ifdef __AVX512VNNI__

#include <immintrin.h>

#define PE_ISA vnni
#define PE_ISA_NAME "avx512_vnni"
#define PE_DOT(acc, w, x) ((vi)_mm512_dpwssd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(x)))
#include "kernels/cpu/int16_512.h"

#endif
