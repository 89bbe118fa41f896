/* op.h - the op table: what a plan is made of, shared by every back end.
 *
 * A plan is a list of instructions, each one op over the rows of a step. A row is one token of one sequence; a step's
 * rows are flat and ragged: all rows of sequence 0, then all of sequence 1, prefill chunks and single decode tokens
 * mixed. A value is a float32 matrix with one line per row. Ops with memory (attention, convolution, recurrences) find
 * their sequence's past through the step's segments, and its storage through block tables and slots.
 *
 * An instruction names buffers by handle, with offsets, row strides and an argument struct whose fields all take four
 * bytes, so that the same instruction can be encoded for a GPU. The CPU back end resolves the handles to pointers for
 * one run and hands its kernels a pe_cpu_call; nothing keeps a pointer across steps.
 *
 * A kernel is a function of (call, task, tasks): it does its share of the work, without locks, and never sees the pool.
 * What always holds: a row's result depends on that row, its sequence's past and the weights alone, bit for bit; not on
 * the other rows of the step, the number of tasks, or how a prompt was cut into steps. */
#ifndef PE_OP_H
#define PE_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/prim.h"

/* ---- the rows of a step -------------------------------------------------------------------------------------- */

typedef struct pe_segment { /* the rows of one sequence in this step; all fields four bytes */
  int32_t first, count;     /* its rows are first .. first + count - 1 */
  int32_t past;             /* tokens of the sequence before this step */
  int32_t slot;             /* of its recurrent states */
  int32_t rope_length; /* the length that length-dependent ropes are chosen by (the prompt's) */
  int32_t table; /* where its block tables begin in `tables`: one after another, per cache group */
} pe_segment;

typedef struct pe_step {
  int32_t rows, segments, outputs, groups;
  const int32_t *token;      /* [rows] */
  const int32_t *position;   /* [3][rows]: the axes of multi-axis ropes; equal for text */
  const int32_t *segment_of; /* [rows] */
  const pe_segment *segment; /* [segments] */
  const int32_t *output;     /* [outputs]: the rows whose logits are wanted */
  const int32_t *tables;     /* block ids */
  const int32_t *table_size; /* [groups]: entries of one sequence's table in each cache group */
} pe_step;

/* ---- arguments ----------------------------------------------------------------------------------------------- */

enum { PE_MAP_INPUTS = 4, PE_MAP_STEPS = 12, PE_MAP_REGISTERS = 8 };

typedef struct pe_embed_args {
  float scale;
} pe_embed_args;

typedef struct pe_linear_args {
  int32_t in, out;  /* widths */
  int32_t residual; /* 1: in[1] is added to the result; out may be in[1] itself */
} pe_linear_args;

/* Two products of one input, and what a gated MLP makes of them: out = activation(in[0] mat[0]' + vec[0]) * (in[0] mat2[0]' +
 * vec[1]). activation: pe_map_op, one of the unary ones. */
typedef struct pe_gated_args {
  int32_t in, out, activation;
} pe_gated_args;

/* One matrix per expert. in[0]: [rows, in] shared by the chosen experts, or [rows, chosen, in] when `spread`;
 * in[1]: expert numbers [rows, chosen] as int32. out: [rows, chosen, out]. vec[0]: biases [experts, out] or NULL.
 * `transposed`: the matrices are [in, out], and not quantised. */
typedef struct pe_expert_args {
  int32_t in, out, experts, chosen, spread, transposed;
} pe_expert_args;

/* As gated, of the experts that a route chose: in[0], in[1] and out as of an expert_linear, mat and mat2 one matrix per expert,
 * vec[0] and vec[1] biases [experts, out] or NULL. */
typedef struct pe_expert_gated_args {
  pe_expert_args expert;
  int32_t activation;
} pe_expert_gated_args;

/* One matrix per head. in[0]: [heads, in], out: [heads, out]. `transposed`: the matrices are [in, out]. */
typedef struct pe_head_args {
  int32_t heads, in, out, transposed;
} pe_head_args;

/* Groups of `width` values, `count` of them in a row. vec[0]: weight, `weights` values long (0: none; width: shared by
 * the groups; width*count: one each). y = x * rsqrt(mean(x^2) + eps) * (weight + offset); l2: x * rsqrt(sum(x^2) + eps);
 * then times scale. layer: minus the mean first (vec[1]: its bias, or NULL; as long as the weight). out may be in[0]. */
typedef struct pe_norm_args {
  int32_t width, count, weights;
  float eps, offset, scale;
  int32_t l2, layer;
} pe_norm_args;

/* A chain of elementwise operations as one pass. Registers hold blocks of a row; input i is loaded to register i first
 * (`repeat` r > 1: each of its values stands for r neighbours; `width` < the row's: it is repeated as a whole; both: the
 * value of column j is (j / repeat) % width). out may be an input that is as wide as the row. */
typedef struct pe_map_step {
  int32_t op, a, b, to;
} pe_map_step; /* op: pe_map_op; a or b = -1 - i: constant i */
typedef struct pe_map_args {
  int32_t width, inputs, steps, result; /* result: the register that is stored */
  struct {
    int32_t width, repeat, constant;
  } input[PE_MAP_INPUTS]; /* constant: from vec[i], no row of its own */
  pe_map_step step[PE_MAP_STEPS];
  float value[PE_MAP_STEPS]; /* the constants */
} pe_map_args;

/* cos and sin of every rotation of a row, computed once per step and shared by all layers: out: `half` cosines, then `half`
 * sines, of position * frequency rounded to float32. vec[0]: inverse frequencies [half]; with `variants` 2, [2][half], the
 * second where rope_length > threshold (longrope; vec[1], or NULL: a factor of cos and sin for each variant, beside scale).
 * dynamic: the base grows with rope_length beyond `threshold` (NTK-aware); theta, factor and dims as in the config.
 * section: of the rotations, how many follow each axis of the position, one after another or, with interleaved_axes, in
 * turns (rotation i follows axis i % 3 while i < 3 * section[i % 3], else the first); all 0: the first axis alone. */
typedef struct pe_rope_table_args {
  int32_t half, variants, threshold, dynamic, dims, interleaved_axes, section[3];
  float scale, theta, factor; /* scale: of cos and sin */
} pe_rope_table_args;

/* Rotates 2*half values of every head, from value `skip` on; the others are copied. in[0]: [heads, dim], in[1]: the table.
 * pairs: elements 2i and 2i+1 belong together (else i and i + half). out may be in[0]. */
typedef struct pe_rope_args {
  int32_t heads, dim, half, pairs, skip;
} pe_rope_args;

/* How a row of a cache (one token, one head) is stored: float32, float16, or groups of 32 values (the last one may be filled
 * in part) as the blocks PE_QUANT_Q8_0 (a scale, 8 bits) and PE_QUANT_Q4_1 (a scale, a minimum, 4 bits). A row carries its own
 * scales, so it can be written and read alone. */
typedef enum pe_kv_type { PE_KV_F32, PE_KV_F16, PE_KV_Q8, PE_KV_Q4 } pe_kv_type;
int32_t pe_kv_row_bytes(pe_kv_type type, int32_t width); /* of a row of so many values */

/* Cache of one layer, in blocks of `block` tokens. A block holds its heads one after the other, each `block` rows of `key`
 * values (and in the other pool of `value` values). The entries of a table that no row of the step sees may be -1. */
typedef struct pe_cache_args {
  int32_t group, heads, key, value, block, type;
} pe_cache_args; /* type: pe_kv_type */

/* in[0]: keys [heads, key]; in[1]: values [heads, value]; in[2]: rope table when rope.half > 0, and the keys are rotated
 * on the way. cache[0]: keys, cache[1]: values (NULL where value is 0: they are a part of the keys). */
typedef struct pe_store_args {
  pe_cache_args cache;
  pe_rope_args rope;
} pe_store_args;

/* in[0]: queries [heads, cache.key]; vec[0]: sinks [heads] or NULL. Query i sees key j when j <= i and i - j < window
 * (window 0: all). Values are the cached values or, where cache.value is 0, the first `value` floats of the keys.
 * softcap > 0: scores = softcap * tanh(scores / softcap). A sink takes part in the maximum and the denominator only. Key
 * head of query head h: h / (heads / cache.heads). i and j count from the sequence's beginning: past + (row - first).
 * out: [heads, value]. */
typedef struct pe_attention_args {
  pe_cache_args cache;
  int32_t heads, value, window;
  float scale, softcap;
} pe_attention_args;

typedef enum pe_route_kind {
  PE_ROUTE_SOFTMAX, /* softmax over all, then the best */
  PE_ROUTE_TOPK,    /* the best of the logits, softmax over them (normalize is not needed) */
  PE_ROUTE_SIGMOID, /* sigmoid; vec[0] (may be NULL) is added for choosing only; groups, see below */
  PE_ROUTE_SOFTMAX_BIASED /* softmax over all; vec[0] is added for choosing only */
} pe_route_kind;

/* in[0]: logits [experts]. out: int32 numbers [chosen] and then float weights [chosen], in order of rank; ties go to the
 * lowest number. groups > 1: a group's score is the sum of its best two (`group_max`: its best); only the best
 * `groups_kept` groups are looked at, the others score -infinity. normalize: weights are divided by their sum (+ eps).
 * Then times scale. vec[1]: a factor per expert, or NULL. NaN ranks last; the numbers are always different and exist. */
typedef struct pe_route_args {
  int32_t kind, experts, chosen, groups, groups_kept, group_max, normalize;
  float scale, eps;
} pe_route_args;

/* in[0]: [chosen, width], in[1]: the route's output. out: sum in order of rank. */
typedef struct pe_expert_sum_args {
  int32_t chosen, width;
} pe_expert_sum_args;

/* Causal depthwise convolution: in[0]: [channels]; vec[0]: weights [channels, taps]; vec[1]: bias or NULL. state[0]: the
 * last taps - 1 inputs of each sequence, [channels, taps - 1], oldest first. The last tap sees the row itself.
 * activation: pe_map_op or -1. out is not in[0]. */
typedef struct pe_conv_args {
  int32_t channels, taps, activation;
} pe_conv_args;

/* Gated delta rule, per value head: S *= g; d = (v - S k) * beta; S += d k'; y = S q. in[0]: queries [key_heads, key];
 * in[1]: keys; in[2]: values [heads, value]; in[3]: decay as a factor (already exponentiated), [heads] or with `channel`
 * [heads, key]; in[4]: beta [heads]. state[0]: S [heads, value, key]. Key head of value head h: h / (heads / key_heads). */
typedef struct pe_delta_args {
  int32_t heads, key_heads, key, value, channel;
} pe_delta_args;

/* Mamba 2: dt = clip(softplus(dt + dt_bias)); S = exp(-exp(A_log) dt) S + dt x B'; y = S C + D x. in[0]: x [heads, dim];
 * in[1]: B [groups, state]; in[2]: C [groups, state]; in[3]: dt [heads]. vec[0]: A_log, vec[1]: dt_bias or NULL, vec[2]: D
 * or NULL. Group of head h: h / (heads / groups). state[0]: S [heads, dim, state]. */
typedef struct pe_ssm_args {
  int32_t heads, dim, groups, state;
  float dt_min, dt_max;
} pe_ssm_args;

/* Joins the inputs head by head: out head h is in[0] head h, in[1] head h, ... width[i]: of one head; shared[i]: the input
 * has one head, which all get. */
typedef struct pe_concat_args {
  int32_t inputs, heads, width[6], shared[6];
} pe_concat_args;

/* Copies a part of each head: out head h is `count` values of in[0] head h from `from` on. */
typedef struct pe_slice_args {
  int32_t heads, dim, from, count;
} pe_slice_args;

typedef struct pe_output_args {
  int32_t width;
} pe_output_args;

typedef union pe_op_args {
  pe_embed_args embed;
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
} pe_op_args;

/* ---- the table ----------------------------------------------------------------------------------------------- */

/*      enum               name           what the kernel splits */
#define PE_OPS(X)                                                                                  \
  X(EMBED, "embed")   /* token -> row of mat[0], times scale */                                    \
  X(LINEAR, "linear") /* out = in[0] mat[0]' + vec[0] (+ in[1]) */                                 \
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
  X(OUTPUT, "output") /* out row i = in[0] row step->output[i]: the rows that want logits */

typedef enum pe_op {
#define PE_OP_ENUM(id, name) PE_OP_##id,
  PE_OPS(PE_OP_ENUM)
#undef PE_OP_ENUM
      PE_OP_COUNT
} pe_op;

const char *pe_op_name(pe_op op);

/* ---- the CPU back end ---------------------------------------------------------------------------------------- */

enum { PE_OP_VIEWS = 6, PE_OP_VECS = 4 };

/* Rows and scratch that begin with a cache line are fastest; nothing else depends on it. */
typedef struct pe_cpu_view { /* row r begins at at + r * step */
  float *at;
  int64_t step;
} pe_cpu_view;

typedef struct pe_cpu_call {
  const pe_step *step;
  const pe_prim *prim;
  int32_t rows; /* of out */
  pe_cpu_view out, in[PE_OP_VIEWS];
  const float *vec[PE_OP_VECS];
  const pe_quant_matrix *mat,
      *mat2;         /* weights, of experts and heads one each; mat2: of a second product */
  uint8_t *cache[2]; /* of this layer: keys, values */
  float *state;      /* of this layer: slot s begins at state + s * state_step */
  int64_t state_step;
  pe_op_args args;
  float *scratch; /* pe_cpu_scratch floats for each task: task t owns scratch + t * scratch_step */
  int64_t scratch_step;
} pe_cpu_call;

void pe_cpu_run(pe_op op, const pe_cpu_call *c, int task, int tasks);
/* Into how many tasks this call is worth splitting (1 .. most). */
int pe_cpu_tasks(pe_op op, const pe_cpu_call *c, int most);
/* Floats of scratch one task of this call needs. */
int64_t pe_cpu_scratch(pe_op op, const pe_cpu_call *c);

#endif
