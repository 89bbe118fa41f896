/* host.h - the few things that the host computes, on whichever backend steps run. */
#ifndef PE_HOST_H
#define PE_HOST_H

#include "kernels/op.h"

/* A map whose inputs are all constant, vec[i] each: a->width values to out. */
void pe_host_map(const pe_map_args *a, const float *const vec[PE_OP_VECS], float *out);

/* The instruction set, part of the identity of every cache: "scalar", "avx2", "avx512",
 * "avx512 with tiles", "neon". */
const char *pe_host_isa(void);
/* Names the sources and the compiler that the numbers depend on; also a part of that identity. */
const char *pe_host_build(void);

#endif
