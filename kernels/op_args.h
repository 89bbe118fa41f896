/* op_args.h - the arguments of every op, a part of op.h that the kernels of a GPU read as well.
 *
 * Fields have four bytes and structs no pointers, so that the bytes of an instruction mean the same
 * in C and in Metal's language. Nothing here may need more than both have. */
#ifndef PE_OP_ARGS_H
#define PE_OP_ARGS_H

#ifndef __METAL_VERSION__ /* there, these types are built in */
#include <stdbool.h>
#include <stdint.h>
#endif

/* ---- the rows of a step ---------------------------------------------------------------------- */

typedef struct pe_segment { /* the rows of one sequence in this step; all fields four bytes */
  int32_t first, count;     /* its rows are first .. first + count - 1 */
  int32_t past;             /* tokens of the sequence before this step */
  int32_t slot;             /* of its recurrent states */
  int32_t rope_length;      /* chooses among length-dependent ropes: the length of the prompt */
  int32_t table;            /* its first entry in `table_at`: one per cache group in order */
} pe_segment;

typedef struct pe_region { /* rows first .. first + count - 1 */
  int32_t first, count;
} pe_region;
/* A frame is all patches of one picture; a window is a part of a frame. */
enum { PE_REGION_FRAME, PE_REGION_WINDOW, PE_REGIONS };

/* Logits x become weights e^((x - top) * scale) = 2^((x - top) * factor); those of logits that are
 * more than `far` below the top are 0. Of a scale: pe_scan_scale_of (scan.h). */
typedef struct pe_scan_scale {
  float scale, far, factor; /* scale 0: none */
} pe_scan_scale;

/* What will be read of an output instead of all its logits. */
typedef struct pe_wanted {
  int32_t best;          /* a list with this many of the best logits; 0: all logits are read */
  pe_scan_scale sums[2]; /* and the sums of the weights of each block of logits, at these scales */
} pe_wanted;
enum { PE_WANTED_ROOM = 1024 }; /* entries: more than the best where they are neighbours */

/* ---- elementwise operations ------------------------------------------------------------------ */

/* The operations of a map. Unary: y = f(x). Binary: y = f(x, z). All unary ones come first. */
#define PE_MAP_UNARY(X)                                                                            \
  X(NEG, "neg")                                                                                    \
  X(ABS, "abs")                                                                                    \
  X(EXP, "exp")                                                                                    \
  X(SIGMOID, "sigmoid")                                                                            \
  X(SILU, "silu")                                                                                  \
  X(TANH, "tanh")                                                                                  \
  X(RELU, "relu")                                                                                  \
  X(RELU2, "relu2")                                                                                \
  X(GELU, "gelu")                                                                                  \
  X(GELU_TANH, "gelu_tanh")                                                                        \
  X(SOFTPLUS, "softplus")                                                                          \
  X(SQRT, "sqrt")                                                                                  \
  X(RSQRT, "rsqrt")                                                                                \
  X(LOG, "log")
#define PE_MAP_BINARY(X)                                                                           \
  X(ADD, "add")                                                                                    \
  X(SUB, "sub")                                                                                    \
  X(MUL, "mul")                                                                                    \
  X(DIV, "div")                                                                                    \
  X(MIN, "min")                                                                                    \
  X(MAX, "max")

typedef enum pe_map_op {
#define PE_MAP_ENUM(id, name) PE_MAP_##id,
  PE_MAP_UNARY(PE_MAP_ENUM) PE_MAP_BINARY(PE_MAP_ENUM)
#undef PE_MAP_ENUM
      PE_MAP_COUNT
} pe_map_op;

#define PE_MAP_ONE(id, name) +1
enum { PE_MAP_UNARY_COUNT = 0 PE_MAP_UNARY(PE_MAP_ONE) };
#undef PE_MAP_ONE

static inline bool pe_map_is_unary(int32_t op) { return op < PE_MAP_UNARY_COUNT; }

/* ---- arguments ------------------------------------------------------------------------------- */

/* in[i], mat, mat2, vec[i], cache[i] and state below are the operands of the instruction. Inputs
 * and the result have one line per row of the step; [heads, dim] is the shape of a line. */
enum { PE_OP_VIEWS = 6, PE_OP_VECS = 4 }; /* inputs, vectors */
enum { PE_FEATURE_PLANES = 16 };          /* of a feature: Qwen3-VL has 4 */
enum { PE_MAP_INPUTS = 4, PE_MAP_STEPS = 12, PE_MAP_REGISTERS = 8 };

/* Row `token` of mat, times scale. A row with a feature gets its plane 0 instead, unscaled, or, if
 * `instead` is 1 or more, row instead - 1 of mat like a token: a second table (Gemma 4) has a row
 * for pictures. */
typedef struct pe_embed_args {
  float scale;
  int32_t instead;
} pe_embed_args;

/* out = in[0], plus plane `plane` of the feature where the row has one. */
typedef struct pe_deepstack_args {
  int32_t width, plane;
} pe_deepstack_args;

typedef struct pe_linear_args {
  int32_t in, out;  /* widths */
  int32_t residual; /* 1: in[1] is added to the result; out may be in[1] itself */
} pe_linear_args;

/* The first half of a gated MLP: out = activation(in[0] mat' + vec[0]) * (in[0] mat2' + vec[1]).
 * activation: a unary pe_map_op. */
typedef struct pe_gated_args {
  int32_t in, out, activation;
} pe_gated_args;

/* One matrix per expert. in[0]: [in], shared by the chosen experts, or [chosen, in] with `spread`;
 * in[1]: expert numbers [chosen] as int32. out: [chosen, out]. vec[0]: biases [experts, out] or
 * NULL. `transposed`: the matrices are [in, out] and not quantized. */
typedef struct pe_expert_args {
  int32_t in, out, experts, chosen, spread, transposed;
} pe_expert_args;

/* pe_gated_args for the experts of a route: in[0], in[1] and out as above, mat and mat2 one matrix
 * per expert, vec[0] and vec[1] biases [experts, out] or NULL. */
typedef struct pe_expert_gated_args {
  pe_expert_args expert;
  int32_t activation;
} pe_expert_gated_args;

/* One matrix per head. in[0]: [heads, in], out: [heads, out]. `transposed`: they are [in, out]. */
typedef struct pe_head_args {
  int32_t heads, in, out, transposed;
} pe_head_args;

/* Each line is `count` groups of `width` values, each normalized alone:
 *     y = x * rsqrt(mean(x^2) + eps) * (weight + offset) * scale
 * l2: sum instead of mean. layer: the mean is subtracted first, and vec[1] (as long as the weight,
 * or NULL) is added before the scale. vec[0]: the weight, `weights` values: 0 none, width shared by
 * the groups, width * count one per value of the line. out may be in[0]. */
typedef struct pe_norm_args {
  int32_t width, count, weights;
  float eps, offset, scale;
  int32_t l2, layer;
} pe_norm_args;

/* A chain of elementwise operations as one pass. Registers hold blocks of a line; input i is loaded
 * into register i first. Column j reads value (j / repeat) % width of an input: `repeat` > 1 makes
 * each value stand for neighbours, `width` below the line's repeats the input as a whole. out may
 * be an input that is as wide as the line. */
typedef struct pe_map_step {
  int32_t op, a, b, to; /* op: pe_map_op; a, b: registers or constants; to: a register */
} pe_map_step;
typedef struct pe_map_args {
  int32_t width, inputs, steps, result; /* result: the register that is stored */
  struct {
    int32_t width, repeat, fixed; /* fixed: read from vec[i], the same for all rows */
  } input[PE_MAP_INPUTS];
  pe_map_step step[PE_MAP_STEPS];
  float value[PE_MAP_STEPS]; /* the constants */
} pe_map_args;
/* Operands of a step: registers count from 0, constants (indices of `value`) from -1 downwards. */
static inline int32_t pe_map_constant(int32_t i) { return -1 - i; }
static inline bool pe_map_is_constant(int32_t operand) { return operand < 0; }
static inline int32_t pe_map_constant_index(int32_t operand) { return -1 - operand; }

/* cos and sin of every rotation, computed once per step and shared by all layers.
 * out: `turns` cosines, then `turns` sines, of position * frequency rounded to float32.
 * vec[0]: inverse frequencies [turns]; with `variants` 2, [2][turns], the second variant where
 * rope_length > threshold (longrope). vec[1] or NULL: a factor of cos and sin per variant, in
 * addition to scale. dynamic: the base grows with rope_length above `threshold` (NTK-aware); theta,
 * factor and dims as in the config. section: how many rotations follow each axis of the position,
 * in order, or with interleaved_axes in turns (rotation i follows axis i % 3 while
 * i < 3 * section[i % 3], else the first). All 0: the first axis only. growth > 0: cos and sin, and
 * with them the queries, are larger at later positions, by the factor
 * 1 + growth * log(1 + floor(position / every)). */
typedef struct pe_rope_table_args {
  int32_t turns, variants, threshold, dynamic, dims, interleaved_axes, section[3], every;
  float scale, theta, factor, growth; /* scale: of cos and sin */
} pe_rope_table_args;

/* Rotates 2 * turns values of every head, starting at value `skip`; the others are copied.
 * in[0]: [heads, dim], in[1]: the table. pairs: elements 2i and 2i+1 belong together, otherwise i
 * and i + turns. norm.width > 0: each head is normalized first, with the weight in vec[0]
 * (norm.weights 0: none). out may be in[0]. */
typedef struct pe_rope_args {
  int32_t heads, dim, turns, pairs, skip;
  pe_norm_args norm; /* width 0: none */
} pe_rope_args;

/* How a row of the KV cache (one token, one head) is stored; sizes are in kernels/kv_row.h. */
typedef enum pe_kv_type { PE_KV_F32, PE_KV_F16, PE_KV_Q8, PE_KV_Q4, PE_KV_TYPES } pe_kv_type;
/* The most tokens of a panel of keys. Why 64: four registers of sixteen tokens, with four queries,
 * are as many sums as registers hold, and a line of a panel is two cache lines. */
enum { PE_KV_PANEL = 64 };

/* The KV cache of one layer, in blocks of `block` tokens. A block holds its heads in order, each
 * with `block` rows of `key` values, and in the pool of values `block` rows of `value` values.
 * Entries of a block table that no row of the step sees may be -1. */
typedef struct pe_cache_args {
  int32_t group, heads, key, value, block, type; /* type: pe_kv_type */
} pe_cache_args;

/* Writes the rows of the step to the KV cache. in[0]: keys [heads, key]; in[1]: values [heads,
 * value]; in[2]: the rope table if rope.turns > 0: then keys are rotated on the way, and normalized
 * before, as by rope. cache[0]: keys,
 * cache[1]: values (NULL if value is 0: values are then a part of the keys). */
typedef struct pe_store_args {
  pe_cache_args cache;
  pe_rope_args rope;
} pe_store_args;

/* in[0]: queries [heads, cache.key]; vec[0]: sinks [heads] or NULL. out: [heads, value].
 * Query i sees key j if j <= i and i - j < window (window 0: all); both count from the start of the
 * sequence: past + (row - first). With `spans` query i also sees the keys up to step->last, which
 * the same step has stored before. Key head of query head h: h / (heads / cache.heads). Values are
 * the cached values or, if cache.value is 0, the first `value` floats of the keys. softcap > 0:
 * scores = softcap * tanh(scores / softcap). A sink counts in the maximum and the denominator
 * only. */
typedef struct pe_attention_args {
  pe_cache_args cache;
  int32_t heads, value, window, spans;
  float scale, softcap;
} pe_attention_args;

typedef enum pe_route_kind {
  PE_ROUTE_SOFTMAX,       /* softmax over all, then the best */
  PE_ROUTE_TOPK,          /* the best logits, softmax over them; normalize is not needed */
  PE_ROUTE_SIGMOID,       /* sigmoid; vec[0] or NULL is added for choosing only */
  PE_ROUTE_SOFTMAX_BIASED /* softmax over all; vec[0] is added for choosing only */
} pe_route_kind;

/* in[0]: logits [experts]. out: int32 numbers [chosen], then float weights [chosen], in order of
 * rank; ties go to the lowest number. groups > 1: the score of a group is the sum of its best two
 * (`group_max`: its best), and experts outside the best `groups_kept` groups score -infinity.
 * normalize: weights are divided by their sum (+ eps). Then times scale, and times vec[1] (a factor
 * per expert, or NULL). NaN ranks last; numbers are always distinct and valid. */
typedef struct pe_route_args {
  int32_t kind, experts, chosen, groups, groups_kept, group_max, normalize;
  float scale, eps;
} pe_route_args;

/* in[0]: [chosen, width], in[1]: output of the route. out: the weighted sum in order of rank. */
typedef struct pe_expert_sum_args {
  int32_t chosen, width;
} pe_expert_sum_args;

/* Causal depthwise convolution. in[0]: [channels]; vec[0]: weights [channels, taps]; vec[1]: bias
 * or NULL. state: the last taps - 1 inputs of each sequence, [channels, taps - 1], oldest first.
 * The last tap sees the row itself. activation: pe_map_op or -1. out is not in[0]. */
typedef struct pe_conv_args {
  int32_t channels, taps, activation;
} pe_conv_args;

/* Gated delta rule, per value head: S *= g; d = (v - S k) * beta; S += d k'; y = S q.
 * in[0]: queries [key_heads, key]; in[1]: keys; in[2]: values [heads, value]; in[3]: decay as a
 * factor (already exponentiated), [heads] or with `channel` [heads, key]; in[4]: beta [heads].
 * state: S [heads, value, key]. Key head of value head h: h / (heads / key_heads). */
typedef struct pe_delta_args {
  int32_t heads, key_heads, key, value, channel;
} pe_delta_args;

/* Mamba 2: dt = clip(softplus(dt + dt_bias)); S = exp(-exp(A_log) dt) S + dt x B'; y = S C + D x.
 * in[0]: x [heads, dim]; in[1]: B [groups, state]; in[2]: C [groups, state]; in[3]: dt [heads].
 * vec[0]: A_log, vec[1]: dt_bias or NULL, vec[2]: D or NULL. Group of head h: h / (heads / groups).
 * state: S [heads, dim, state]. */
typedef struct pe_ssm_args {
  int32_t heads, dim, groups, state;
  float dt_min, dt_max;
} pe_ssm_args;

/* Joins the inputs head by head: head h of out is head h of in[0], head h of in[1], ... width[i]:
 * of one head of in[i]; shared[i]: in[i] has a single head, used for all. */
typedef struct pe_concat_args {
  int32_t inputs, heads, width[6], shared[6];
} pe_concat_args;

/* Copies a part of each head: `count` values of each head of in[0], starting at `from`. */
typedef struct pe_slice_args {
  int32_t heads, dim, from, count;
} pe_slice_args;

typedef struct pe_output_args {
  int32_t width;
} pe_output_args;

typedef struct pe_patches_args {
  int32_t width; /* of a patch, equal to the step's patch_width */
} pe_patches_args;

/* Output i is made of rows merge[i][0 .. count - 1] of in[0]: joined in this order, or with `mean`
 * their mean, summed in this order. */
typedef struct pe_merge_args {
  int32_t width, count, mean;
} pe_merge_args;

/* Attention without a cache and without a mask: a row sees all rows of its region, in order.
 * in[0]: queries [heads, key]; in[1]: keys [key_heads, key]; in[2]: values [key_heads, value].
 * out: [heads, value]. Key head of query head h: h / (heads / key_heads). */
typedef struct pe_region_attention_args {
  int32_t heads, key_heads, key, value, regions; /* regions: PE_REGION_FRAME or PE_REGION_WINDOW */
  float scale;
} pe_region_attention_args;

#endif
