/* metal_store.h - the weights of a plan in buffers of the GPU.
 *
 * Matrices stay where they are: ranges of whole pages around neighbouring tensors become buffers
 * without a copy, as large as the device takes. Only a matrix that is not in pages of its own file,
 * or not at an address that kernels can read, is copied, and so are the vectors (norms, biases),
 * which the graph has decoded, and a stack of experts that lies in several buffers.
 *
 *     file      ....|tensor|tensor|..unused..|tensor|tensor|tensor|...
 *     pages     |     |     |     |     |     |     |     |     |
 *     buffers       [-----------------]    [------------------]          copies: [ ] [  ]
 *
 * Ownership: borrows the plan and the device of Metal. Threads: immutable after opening. */
#ifndef PE_METAL_STORE_H
#define PE_METAL_STORE_H

#include "kernels/metal/gpu.h"
#include "runtime/graph/plan.h"

typedef struct pe_metal_operand { /* {0}: none */
  const pe_gpu_buffer *buffer;
  uint64_t at;
} pe_metal_operand;

/* The constant operands of an instruction. */
typedef struct pe_metal_operands {
  pe_metal_operand mat[2][3]; /* data, scales, biases of mat and mat2 */
  pe_metal_operand vec[PE_OP_VECS];
  pe_metal_operand stack; /* where the matrices of experts and heads are: [mat, mat2][count][3] */
} pe_metal_operands;

typedef struct pe_metal_range { /* addresses of the host that a buffer holds */
  const uint8_t *from, *to;
  pe_gpu_buffer buffer;
} pe_metal_range;

typedef struct pe_metal_store {
  pe_metal_operands *of;    /* parallel to the instructions of the plan */
  uint64_t wrapped, copied; /* bytes */
  /* ---- private ---- */
  pe_gpu *gpu;
  pe_metal_range *range; /* never moves: operands point to its buffers */
  size_t ranges, cap;
  pe_gpu_buffer vectors, stacks;
} pe_metal_store;

/* {0} is empty. After a failure it must be closed also. */
pe_status pe_metal_store_open(pe_metal_store *s, pe_gpu *gpu, const pe_plan *plan, pe_error *err);
void pe_metal_store_close(pe_metal_store *s);

/* How many matrices an instruction has of each kind: experts, heads, 1 or 0. */
int32_t pe_metal_matrices(const pe_instr *x);
/* The error of a call of kernels/metal. */
pe_status pe_metal_status(const pe_metal_error *e, pe_error *err);

#endif
