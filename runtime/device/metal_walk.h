/* metal_walk.h - the dispatches of a step, in order, with the barriers between them.
 *
 * The walk lowers the codes of a program with the table of kernels (kernels/metal/table.h). Who
 * encodes the step, and who only counts what it costs, see the same dispatches:
 *
 *     code      norm  q  k  v  rope  attention: two passes  o ...
 *     dispatch  norm |q  k  v |rope |first |second         |o      |: a barrier before it
 *
 * Codes between two barriers may overlap. A code gets a barrier if the program says that it must
 * wait for one since the last barrier, or if both use scratch, of which there is one.
 *
 * Ownership: borrows everything. Threads: none of its own. */
#ifndef PE_METAL_WALK_H
#define PE_METAL_WALK_H

#include "kernels/metal/table.h"
#include "runtime/cache/recur.h"
#include "runtime/cache/kv.h"
#include "runtime/device/program.h"

typedef struct pe_metal_walk {
  const pe_program *program;
  const pe_step *step;
  pe_kv_type kv_type;
  int32_t kv_block;
  const pe_kv *kv;       /* NULL: its addresses do not matter */
  const pe_recur *recur; /* the same */
} pe_metal_walk;

typedef struct pe_metal_dispatch {
  pe_metal_job job; /* points to the next two */
  pe_metal_call call;
  pe_op_args args;
  const pe_instr *instr;
  int32_t code;
  const pe_metal_pass *pass;
  pe_metal_grid grid;
  bool barrier; /* before it */
} pe_metal_dispatch;

/* Returns an error to end the walk. */
typedef pe_status (*pe_metal_visit)(void *ctx, const pe_metal_dispatch *d, pe_error *err);

/* PE_EUNSUPPORTED: an op or a layout has no kernel; the error names it. */
pe_status pe_metal_walk_run(const pe_metal_walk *w, pe_metal_visit visit, void *ctx, pe_error *err);
/* Every pass of every code, whatever its grid: what must be compiled. */
pe_status pe_metal_walk_all(const pe_metal_walk *w, pe_metal_visit visit, void *ctx, pe_error *err);
/* Bytes of scratch that the step needs. */
uint64_t pe_metal_walk_scratch(const pe_metal_walk *w);

#endif
