/* plan.h - a graph made ready to run: what is not needed left out, neighbours fused, memory shared.
 *
 * Fusions, each of which gives the same bits as the ops apart:
 *   elementwise chains          become one map
 *   x + linear(...)             the product adds its residual
 *   act(linear(x)) * linear(x)  the gate, the other half and the activation of an MLP are one instruction
 *   rope(k) then store          keys are rotated on their way into the cache
 *   norm then products          is noted: `folds` marks a norm that nobody reads but products, and `norm` of each of them
 *                               leads to it; what the norm reads stays in its place as long as they need it. A back end
 *                               for which an instruction is dear leaves the norm out and lets the products normalise what
 *                               they read. On the CPU that would be done by every task and for every product again, for
 *                               about a thousandth of a step's time: there the norm stays an instruction.
 *
 * Memory: every value has a place in one of two areas, that of all rows and that of the output rows. Places are given in
 * floats per row, so one plan serves steps of any number of rows: a value's lines begin at place * capacity, where capacity
 * is the number of rows the areas were made for. Values that never live at the same time share places. A tapped value
 * keeps its place to the end of the step and is not fused away.
 *
 * Ownership: holds the graph. Threads: immutable. */
#ifndef PE_PLAN_H
#define PE_PLAN_H

#include "runtime/graph/graph.h"

typedef struct pe_place { /* where a value's lines are */
  pe_extent rows;         /* which area; PE_EXTENT_CONST: nowhere */
  int64_t at, offset;     /* floats per row; floats into the line (views) */
  int32_t step;           /* floats from line to line */
} pe_place;

typedef struct pe_instr { /* values are the graph's: their names */
  pe_op op;
  pe_value value;
  pe_value *fused; /* what was fused into it, besides */
  int32_t fused_count;
  int32_t norm; /* the instruction whose output in[0] is, when that is a norm that folds; -1 */
  bool folds;
  pe_extent rows;
  pe_place out, in[PE_NODE_INPUTS];
  const float *vec[PE_OP_VECS];
  const pe_quant_matrix *mat, *mat2;
  int32_t cache;
  int64_t state_at;
  pe_op_args args;
} pe_instr;

typedef struct pe_plan {
  const pe_graph *graph;
  pe_instr *instr;
  size_t count;
  int64_t row_floats, output_floats; /* of the two areas, per row */
  int64_t unshared_floats;           /* what the rows would take without sharing: for inspect */
  pe_place logits;
  int32_t vocabulary; /* width of the logits */
  int32_t tokens;     /* ids below this are in every embedding table */
  pe_place *tap;      /* of each value that was asked for */
  size_t tap_count;
  /* ---- private ---- */
  pe_arena arena;
} pe_plan;

typedef struct pe_plan_options {
  const pe_value *taps; /* borrowed while planning */
  size_t tap_count;
  bool apart; /* no fusion: the same bits, more instructions */
} pe_plan_options;

/* Plans the values that the graph's output and the taps need. options NULL: none. */
pe_status pe_plan_open(const pe_graph *g, const pe_plan_options *options, pe_plan **out,
                       pe_error *err); /* gives */
void pe_plan_close(pe_plan *p);

#endif
