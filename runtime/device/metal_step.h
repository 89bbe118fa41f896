/* metal_step.h - the arrays of a step in buffers of the GPU.
 *
 * The words are a pe_metal_step (kernels/metal/args.h) and the arrays that it points to; the lines
 * are the features of pictures, or the patches of a tower. Both grow to the largest step seen.
 *
 * Ownership: borrows the device of Metal. Threads: one at a time; must not be filled while the GPU
 * reads it. */
#ifndef PE_METAL_STEP_H
#define PE_METAL_STEP_H

#include "kernels/metal/gpu.h"
#include "runtime/base.h"

#include "kernels/op.h"

typedef struct pe_metal_arrays { /* {0} is empty */
  pe_gpu_buffer words, lines;
} pe_metal_arrays;

pe_status pe_metal_arrays_fill(pe_metal_arrays *a, pe_gpu *gpu, const pe_step *step, pe_error *err);
void pe_metal_arrays_free(pe_metal_arrays *a, pe_gpu *gpu);

/* What output i of the step asked for. */
pe_wanted pe_metal_arrays_wanted(const pe_metal_arrays *a, int32_t i);

/* Room for `bytes` in b, and half as much again if it must grow; what it held is lost. */
pe_status pe_metal_room(pe_gpu *gpu, pe_gpu_buffer *b, uint64_t bytes, pe_error *err);

#endif
