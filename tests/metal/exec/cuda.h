/* cuda.h - what the runner and the kernels on an NVIDIA GPU agree on. */
#ifndef MSL_CUDA_H
#define MSL_CUDA_H

#include <stdint.h>

typedef struct msl_cuda_arguments { /* of every kernel */
  uint64_t buffer[31];              /* addresses on the GPU; 0: not bound */
} msl_cuda_arguments;

#endif
