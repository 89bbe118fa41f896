/* op.h - the op table: the instructions of a plan, shared by every backend.
 *
 * A plan is a list of instructions, each one op over the rows of a step. A row is one token of one
 * sequence. The rows of a step are flat and ragged, never padded: all rows of the first sequence,
 * then all rows of the second, prefill chunks and single decode tokens mixed:
 *
 *     row      0   1   2   3   4   5   6   7
 *     token   [a   b   c   d] [e] [f] [g   h]
 *     segment  0   0   0   0   1   2   3   3     0 and 3 prefill, 1 and 2 decode
 *
 * A row of a picture has no token: its embedding is a feature, a line that a vision tower computed.
 * The features of a step are gathered in one array, and such a row names its line there.
 *
 * A value is a float32 matrix with one line per row. Ops with memory (attention, convolution,
 * recurrences) find the past of their sequence through the segments of the step, and its storage
 * through block tables and slots.
 *
 * The arguments of the ops are in op_args.h, which a GPU reads as well. This header knows no
 * backend; the CPU's side is kernels/cpu/cpu.h.
 *
 * Invariant: the result of a row depends on that row, the past of its sequence and the weights
 * alone, bit for bit; not on the other rows of the step, the number of threads, or how a prompt was
 * split into steps. */
#ifndef PE_OP_H
#define PE_OP_H

#include "kernels/op_args.h"

/* `exact` computes with float32 values; `fast` may round them for the matrix instructions. */
typedef enum pe_precision { PE_EXACT, PE_FAST } pe_precision;

/* ---- the rows of a step ---------------------------------------------------------------------- */

/* Row r is the sum of weight[j] * line index[j] of a table, for at[r] <= j < at[r + 1]. */
typedef struct pe_lookup {
  const int32_t *at; /* [rows + 1] */
  const int32_t *index;
  const float *weight;
} pe_lookup;

typedef struct pe_regions { /* every row is in exactly one of them */
  const pe_region *list;
  int32_t count, longest;
} pe_regions;

/* Of towers only: plans without caches whose rows are patches of pictures. */
typedef struct pe_tower_step {
  const float *patch;            /* [rows][patch_width] */
  int32_t patch_width;           /* floats */
  pe_lookup lookup;              /* the lines of a table that each row is made of */
  const int32_t *merge;          /* [outputs][merge_count]: the rows that become one output */
  int32_t merge_count;           /* the same for all outputs */
  pe_regions region[PE_REGIONS]; /* rows that see each other */
} pe_tower_step;

typedef struct pe_step {
  int32_t rows, segments, outputs, groups;
  const int32_t *token;      /* [rows]; 0 for rows with a feature */
  const int32_t *position;   /* [3][rows]: the axes of multi-axis ropes; equal for text */
  const int32_t *segment_of; /* [rows] */
  const pe_segment *segment; /* [segments] */
  pe_tower_step tower;       /* of steps of a tower */
  const int32_t *output;     /* [outputs]: the rows whose logits are wanted */
  const pe_wanted *wanted;   /* [outputs]: of its logits. NULL: all of every one */
  const int32_t *tables;     /* block ids: the tables of all segments, each as long as it is */
  int32_t table_count;       /* of them */
  const int32_t *table_at;   /* [segments][groups]: where a table begins in `tables` */
  /* Features: [lines][planes][width]. Plane 0 takes the place of the embedding, plane j is added
   * after text layer j - 1 (deepstack). NULL: no row has one. */
  const float *features;
  int32_t feature_planes, feature_width;
  const int32_t *feature; /* [rows]: its line, or -1; NULL without features */
  /* The last token that a row sees where attention follows spans: the end of the picture that the
   * row belongs to, otherwise the row itself. Counts from the start of the sequence, like `past`.
   * NULL: no row sees a later one. */
  const int32_t *last; /* [rows] */
  int32_t ahead;       /* the most tokens that a row sees after itself */
} pe_step;

const char *pe_map_name(pe_map_op op);

typedef union pe_op_args {
  pe_embed_args embed;
  pe_deepstack_args deepstack;
  pe_linear_args linear;
  pe_gated_args gated;
  pe_expert_args expert;
  pe_expert_gated_args expert_gated;
  pe_head_args head;
  pe_norm_args norm;
  pe_map_args map;
  pe_rope_table_args rope_table;
  pe_rope_args rope;
  pe_store_args store;
  pe_attention_args attention;
  pe_route_args route;
  pe_expert_sum_args expert_sum;
  pe_conv_args conv;
  pe_delta_args delta;
  pe_ssm_args ssm;
  pe_concat_args concat;
  pe_slice_args slice;
  pe_output_args output;
  pe_patches_args patches;
  pe_merge_args merge;
  pe_region_attention_args region_attention;
} pe_op_args;

/* ---- the table ------------------------------------------------------------------------------- */

#define PE_OPS(X)                                                                                  \
  X(EMBED, "embed")                                                                                \
  X(DEEPSTACK, "deepstack")                                                                        \
  X(LINEAR, "linear") /* out = in[0] mat' + vec[0] (+ in[1]) */                                    \
  X(GATED, "gated")                                                                                \
  X(EXPERT_LINEAR, "expert_linear")                                                                \
  X(EXPERT_GATED, "expert_gated")                                                                  \
  X(HEAD_LINEAR, "head_linear")                                                                    \
  X(NORM, "norm")                                                                                  \
  X(MAP, "map")                                                                                    \
  X(ROPE_TABLE, "rope_table")                                                                      \
  X(ROPE, "rope")                                                                                  \
  X(STORE, "store")                                                                                \
  X(ATTENTION, "attention")                                                                        \
  X(ROUTE, "route")                                                                                \
  X(EXPERT_SUM, "expert_sum")                                                                      \
  X(CONV, "conv")                                                                                  \
  X(DELTA, "delta")                                                                                \
  X(SSM, "ssm")                                                                                    \
  X(CONCAT, "concat")                                                                              \
  X(SLICE, "slice")                                                                                \
  X(OUTPUT, "output")   /* row i of out = row step->output[i] of in[0]: the rows with logits */    \
  X(PATCHES, "patches") /* row r of out = row r of step->tower.patch */                            \
  X(LOOKUP, "lookup")   /* row r of out = the lines of mat in step->tower.lookup, summed */        \
  X(MERGE, "merge")                                                                                \
  X(REGION_ATTENTION, "region_attention")

typedef enum pe_op {
#define PE_OP_ENUM(id, name) PE_OP_##id,
  PE_OPS(PE_OP_ENUM)
#undef PE_OP_ENUM
      PE_OP_COUNT
} pe_op;

const char *pe_op_name(pe_op op);

#endif
