/* plan.h - a graph made ready to run: unused values dropped, neighbours fused, memory shared.
 *
 * Fusions. Each gives the same bits as the separate ops:
 *   elementwise chains          one map
 *   x + linear(...)             the product adds its residual
 *   act(linear(x)) * linear(x)  gate, up projection and activation of an MLP: one gated product
 *   rope(norm(x))               heads are normalized as they are rotated
 *   rope(k), then store         keys are rotated on their way into the cache
 *
 * Outputs. Few rows of a prompt want logits. A value that is needed for them alone, and whose op
 * works row by row, is computed for them alone: ops `output` move up from the head to the last op
 * with memory (attention, a recurrence), where they pick the lines of all values that are read
 * below:
 *
 *     x ---------------------------+            one line per row of the step
 *     a = attention ...            |
 *   - a' = output a - - - - - - - x' = output x - - - - - - - - - - - - - - - - - - - - - - -
 *     y = x' + linear a'                        one line per row whose logits are wanted
 *     z = y + down (gated (norm y))
 *     logits = head (norm z)
 *
 * Tapped values stay above, with what they are made of. A step without outputs (a chunk of a
 * prompt) runs nothing below and, above, only what caches and states need: not even the attention
 * of the last layer.
 *
 * Order. Nodes run in the order of the graph, but products of one input (q, k and v) follow each
 * other: a backend may compute them at once.
 *
 * Memory. A value has a place in one of two areas: the rows area holds one line for every row of
 * the step, the outputs area one line for every row whose logits are wanted. Values that are never
 * alive at the same time share a place. A value is alive from its instruction to its last reader;
 * what it is made of too, where a device may compute it only when it is read (may_pull in plan.c).
 * A tapped value and the logits stay to the end of the step, and a tapped value is never fused
 * away.
 *
 *                     rows area       outputs area
 *   floats per row    0       64      0       64      128         224                 352
 *   x = embed         |   x   |       |       |       |           |                   |
 *   o = output x      |   x   |       |   o   |       |           |                   |
 *   h = norm o        |       |       |   o   |   h   |           |                   |
 *   g = gated h       |       |       |   o   |   h   |     g     |                   |
 *   y = o + down g    |       |       |   o   |   y   |     g     |                   |  h is dead
 *   logits = head y   |       |       |       |   y   |           |      logits       |
 *                     row_floats = 64 output_floats = 352
 *
 * Places are given in floats per row, so one plan serves steps of any size. An area made for
 * `capacity` rows holds the lines of a value consecutively, from `at` * capacity on:
 *
 *   line of row r of value v  =  area + at(v) * capacity + r * step(v) + offset(v)
 *
 * where offset is not 0 for a view, and step is the width of the value that the view shows.
 *
 * Ownership: retains a frozen copy of the graph. Threads: immutable. */
#ifndef PE_PLAN_H
#define PE_PLAN_H

#include "runtime/graph/graph.h"

typedef struct pe_place { /* where a value's lines are */
  pe_extent rows;         /* which area; PE_EXTENT_CONST: none */
  int64_t at, offset;     /* floats per row; floats into the line (views) */
  int32_t step;           /* floats from line to line */
} pe_place;

typedef struct pe_instr { /* values are numbered and named as in the graph */
  pe_op op;
  pe_value value;  /* of an output that the plan has added: the value whose lines it picks */
  pe_value *fused; /* other values that this instruction computes on the way */
  int32_t fused_count;
  pe_extent rows;
  bool outputs_only; /* has lines for all rows, but a step without outputs need not run it */
  pe_place out, in[PE_NODE_INPUTS];
  const float *vec[PE_OP_VECS];
  const pe_quant_matrix *mat, *mat2;
  int32_t cache;
  int64_t state_at;
  pe_op_args args;
} pe_instr;

typedef struct pe_plan {
  const pe_graph *graph; /* the graph as it was planned; what is added later is not in it */
  pe_instr *instr;
  size_t count;
  int64_t row_floats, output_floats; /* sizes of the two areas, per row */
  int64_t unshared_floats;           /* of both without sharing, for inspect */
  pe_place logits;
  int32_t vocabulary;  /* width of the logits */
  int32_t tokens;      /* ids below this are in every embedding table: prompts may have them */
  int32_t drawable;    /* ids below this have a logit and are in every table: samplers draw them */
  int32_t rope_varies; /* prompts longer than this have another rope; INT32_MAX: never */
  int32_t rope_scales; /* longer than this: every length has its own; INT32_MAX: never */
  int32_t feature_width;  /* of the rows of pictures; 0: the model takes none */
  int32_t feature_planes; /* 1, and those that layers add (deepstack) */
  bool apart;             /* nothing was fused, and backends join nothing either */
  bool spans;             /* some layer lets the rows of a picture see all of it */
  pe_place *tap;          /* one per value of pe_plan_options.taps */
  size_t tap_count;
  pe_value *tap_value; /* the tapped values */
  /* ---- private ------------------------------------------------------------------------------- */
  pe_arena arena;
} pe_plan;

typedef struct pe_plan_options {
  const pe_value *taps; /* borrowed while planning */
  size_t tap_count;
  bool apart; /* no fusion, and outputs are picked last: the same bits, more work */
} pe_plan_options;

/* Plans the values that the output and the taps depend on. options NULL: no taps. gives */
pe_status pe_plan_open(pe_graph *g, const pe_plan_options *options, pe_plan **out, pe_error *err);
void pe_plan_close(pe_plan *p); /* takes; NULL is fine */

#endif
