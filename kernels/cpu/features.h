/* features.h - the instruction sets of this processor, detected once at run time.
 *
 * A bit is set only if the processor has the instructions *and* the operating system saves their
 * registers, so a kernel may use every feature listed here. `doctor` prints the names. The table
 * has the features of both families of processors, so that code can name any of them anywhere.
 * Thread safe. */
#ifndef PE_FEATURES_H
#define PE_FEATURES_H

#include <stdint.h>

#define PE_CPU_FEATURES(X)                                                                         \
  X(PE_CPU_SSE42, "sse4.2")                                                                        \
  X(PE_CPU_AVX, "avx")                                                                             \
  X(PE_CPU_F16C, "f16c")                                                                           \
  X(PE_CPU_FMA, "fma")                                                                             \
  X(PE_CPU_AVX2, "avx2")                                                                           \
  X(PE_CPU_AVX_VNNI, "avx_vnni")                                                                   \
  X(PE_CPU_AVX512F, "avx512f")                                                                     \
  X(PE_CPU_AVX512BW, "avx512bw")                                                                   \
  X(PE_CPU_AVX512DQ, "avx512dq")                                                                   \
  X(PE_CPU_AVX512VL, "avx512vl")                                                                   \
  X(PE_CPU_AVX512_VBMI, "avx512vbmi")                                                              \
  X(PE_CPU_AVX512_VNNI, "avx512_vnni")                                                             \
  X(PE_CPU_AVX512_BF16, "avx512_bf16")                                                             \
  X(PE_CPU_AVX512_FP16, "avx512_fp16")                                                             \
  X(PE_CPU_GFNI, "gfni")                                                                           \
  X(PE_CPU_AMX_TILE, "amx_tile")                                                                   \
  X(PE_CPU_AMX_INT8, "amx_int8")                                                                   \
  X(PE_CPU_AMX_BF16, "amx_bf16")                                                                   \
  X(PE_CPU_NEON, "neon")                                                                           \
  X(PE_CPU_FP16, "fp16")                                                                           \
  X(PE_CPU_DOTPROD, "dotprod")                                                                     \
  X(PE_CPU_I8MM, "i8mm")                                                                           \
  X(PE_CPU_BF16, "bf16")                                                                           \
  X(PE_CPU_SVE, "sve")                                                                             \
  X(PE_CPU_SVE2, "sve2")                                                                           \
  X(PE_CPU_SME, "sme")

typedef enum pe_cpu_feature {
#define PE_CPU_ENUM(id, name) id,
  PE_CPU_FEATURES(PE_CPU_ENUM)
#undef PE_CPU_ENUM
      PE_CPU_FEATURE_COUNT
} pe_cpu_feature;

const char *pe_cpu_feature_name(pe_cpu_feature f);
uint64_t pe_cpu_features(void); /* bit 1 << PE_CPU_... */
static inline int pe_cpu_has(pe_cpu_feature f) { return pe_cpu_features() >> f & 1; }

#endif
