/* prim.c - choosing the version of the inner loops for this machine. */
#include "kernels/cpu/prim.h"

#include "kernels/cpu/features.h"

#include <stdlib.h>
#include <string.h>

#define BIT(f) ((uint64_t)1 << (f))

static const struct {
  const pe_prim *prim;
  uint64_t needs;
} versions[] = {
/* best first */
#if defined __x86_64__
    {&pe_prim_avx512, BIT(PE_CPU_AVX512F) | BIT(PE_CPU_AVX512BW) | BIT(PE_CPU_AVX512VL) |
                          BIT(PE_CPU_AVX512DQ) | BIT(PE_CPU_AVX2) | BIT(PE_CPU_FMA) |
                          BIT(PE_CPU_F16C)},
    {&pe_prim_avx2, BIT(PE_CPU_AVX2) | BIT(PE_CPU_FMA) | BIT(PE_CPU_F16C)},
#elif defined __aarch64__
    {&pe_prim_neon, 0}, /* part of every aarch64 */
#endif
    {&pe_prim_scalar, 0},
};

static bool runs(size_t i) { return !(versions[i].needs & ~pe_cpu_features()); }

const pe_prim *pe_prim_named(const char *name) {
  for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
    if (!strcmp(versions[i].prim->name, name)) return runs(i) ? versions[i].prim : NULL;
  return NULL;
}

const pe_prim *pe_prim_best(void) {
  const char *wanted = getenv("PERIGEE_ISA");
  const pe_prim *named = wanted ? pe_prim_named(wanted) : NULL;
  if (named) return named;
  size_t i = 0;
  while (!runs(i)) i++;
  return versions[i].prim;
}

const pe_scan *pe_scan_best(void) { return pe_prim_best()->scan; }
