/* metal_walk.h - the dispatches of a step, in order, with the barriers between them.
 *
 * The walk lowers the units of a program (metal_units.h) with the table of kernels
 * (kernels/metal/table.h). Who encodes the step, and who only counts what it costs, see the same
 * dispatches:
 *
 *     unit      [norm q k v]  [rope store]  attention: two passes   o ...
 *     dispatch   joined      | rope_store  | first | second        | o      |: a barrier before it
 *
 * Units between two barriers may overlap. A unit gets a barrier if its order says that it must wait
 * for one since the last barrier, or if both use scratch, of which there is one.
 *
 * Ownership: borrows everything. Threads: none of its own. */
#ifndef PE_METAL_WALK_H
#define PE_METAL_WALK_H

#include "kernels/metal/table.h"
#include "runtime/cache/recur.h"
#include "runtime/cache/kv.h"
#include "runtime/device/metal_units.h"

typedef struct pe_metal_walk {
  const pe_metal_units *units;
  const pe_step *step;
  const pe_metal_tiles *tiles;
  pe_kv_type kv_type;
  int32_t kv_block;
  const pe_kv *kv;       /* NULL: its addresses do not matter */
  const pe_recur *recur; /* the same */
} pe_metal_walk;

typedef struct pe_metal_bound { /* what a slot of a dispatch holds: an operand of an instruction */
  const pe_instr *instr;        /* NULL: nothing */
  int32_t slot;                 /* that it would have if this instruction were alone */
} pe_metal_bound;

typedef struct pe_metal_dispatch {
  pe_metal_job job; /* points to the next two */
  pe_metal_call call;
  union {
    pe_op_args op;
    pe_rope_store_args rope_store;
    pe_expert_routed_args routed;
  } args;
  union {
    pe_metal_before delta;
    pe_concat_args concat;
  } before;
  pe_metal_after after;
  const pe_metal_order *order;
  const pe_metal_unit *unit;
  const pe_instr *instr[PE_METAL_JOINED]; /* of the unit; NULL: none */
  const pe_instr *main;                   /* the one that gives the kernel its name */
  pe_metal_bound bound[PE_SLOTS];
  const pe_metal_pass *pass;
  pe_metal_grid grid;
  bool barrier; /* before it */
} pe_metal_dispatch;

/* Returns an error to end the walk. */
typedef pe_status (*pe_metal_visit)(void *ctx, const pe_metal_dispatch *d, pe_error *err);

/* PE_EUNSUPPORTED: an op or a layout has no kernel; the error names it. */
pe_status pe_metal_walk_run(const pe_metal_walk *w, pe_metal_visit visit, void *ctx, pe_error *err);
/* Every pass of every unit, whatever its grid: what must be compiled. */
pe_status pe_metal_walk_all(const pe_metal_walk *w, pe_metal_visit visit, void *ctx, pe_error *err);
/* Bytes of scratch that the step needs. */
uint64_t pe_metal_walk_scratch(const pe_metal_walk *w);

#endif
