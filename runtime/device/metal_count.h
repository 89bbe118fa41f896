/* metal_count.h - what a step costs on Metal, counted without a GPU.
 *
 * Bytes and multiply-adds come from the operands (profile.h), dispatches and barriers from the walk
 * that also encodes steps, so a kernel or a fusion that is lost shows here. Weights count as often
 * as the kernels read them.
 *
 * Ownership: borrows the plan. Threads: none of its own. */
#ifndef PE_METAL_COUNT_H
#define PE_METAL_COUNT_H

#include "kernels/metal/table.h"
#include "runtime/device/profile.h"

typedef struct pe_metal_load { /* a step */
  int32_t sequences, rows;     /* rows of each sequence */
  int32_t past;                /* tokens before them; only the last row wants logits */
  pe_kv_type kv_type;
  int32_t kv_block;
  const pe_metal_tiles *tiles;
} pe_metal_load;

typedef struct pe_metal_cost {  /* of an instruction; 0 everywhere: the step does not run it */
  int32_t dispatches, barriers; /* of joined instructions the first one has them */
  pe_cost cost;                 /* as the kernels read and write */
  double once;                  /* bytes of weights and caches, if each is read once */
} pe_metal_cost;

/* out: one per instruction of the plan. PE_EUNSUPPORTED: an op has no kernel. */
pe_status pe_metal_count(const pe_plan *plan, const pe_metal_load *load, pe_metal_cost *out,
                         pe_error *err);

#endif
