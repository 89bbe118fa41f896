/* host.c - see kernels/host.h. */
#include "kernels/host.h"

#include "kernels/cpu/cpu.h"

void pe_host_map(const pe_map_args *a, const float *const vec[PE_OP_VECS], float *out) {
  pe_cpu_call c = {.prim = pe_prim_best(), .rows = 1, .out = {out, 0}, .args.map = *a};
  memcpy(c.vec, vec, sizeof c.vec);
  pe_cpu_map.run(&c, &(pe_cpu_share){.tasks = 1});
}

#ifndef PE_BUILD
#define PE_BUILD "?" /* not built by the Makefile */
#endif

const char *pe_host_build(void) { return PE_BUILD " " __VERSION__; }

const char *pe_host_isa(void) {
  return pe_amx16_best() ? "avx512 with tiles" : pe_prim_best()->name;
}
