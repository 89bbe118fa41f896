/* args.h - what host and kernels of Metal agree on: slots, argument structs, function constants.
 *
 * C and Metal's compiler both read this file; all fields have four bytes. Every kernel uses the
 * same slots for its buffers: an operand of an instruction is always found at the same number.
 *
 *     0        pe_metal_call: rows, distances between lines, matrices
 *     1        the arguments of the op (op_args.h)
 *     2        out                           line r at out + r * call.out_step
 *     3 ..  8  in[0] .. in[5]                line r at in + r * call.in_step[i]
 *     9 .. 11  mat: data, scales, biases     12 .. 14  mat2
 *     15 .. 18 vec[0] .. vec[3]              there if bit i of call.vecs is set
 *     19, 20   KV cache: keys, values        block b at + b * call.cache_step bytes
 *     21       states                        slot s at + s * call.state_step floats
 *     22       the step: pe_metal_step, then its arrays
 *     23       features; for towers: patches
 *     24       where the matrices of experts and heads are: bytes from slots 9 .. 14,
 *              [count][3] for mat, then [count][3] for mat2
 *     25       scratch between the passes of one op
 *
 * A dispatch may compute several instructions at once (metal_units.h). Of products of one input the
 * second has mat2, slot 29 for its result and vec[1] for its bias, and the third
 *
 *     26 .. 28 mat3                          29, 30    their results
 *
 * and vec[2]; a fourth, without a bias, has mat4 in 19 .. 21 and its result in 23. Beside the gate
 * and up projections of experts those of a shared expert are mat3 and mat4, their result in 29; if
 * they choose, in[2] has the logits, vec[2] the bias of the choice, and 23 is the result of the
 * route. A product that normalizes its input has the weight of the norm in vec[3]. A rope with
 * a store has the store's operands, and its own in in[3] and vec[1].
 *
 * A kernel may do a map before it stores: then it has the result of the map, the inputs of the map
 * in in[2] .. in[5] (a recurrence: 9 .. 12), and pe_metal_after at 30. Products of experts do their
 * sum so; a product of one more matrix, mat2 with its bias in vec[1], may be an input of the map.
 *
 * Inputs may be parts of other values (call.part). What else a recurrence computes of its inputs is
 * at 29: a convolution joins them (pe_concat_args), the delta rule has pe_metal_before, the vectors
 * of its map of decays in vec[0] ... and call.norm, with its weight in slot 13, if each head is
 * normalized before the map.
 *
 * Alignment: data of matrices 4 bytes, scales and biases their element; caches, the step, features
 * and scratch 16; everything else 4. */
#ifndef PE_METAL_ARGS_H
#define PE_METAL_ARGS_H

#include "kernels/op_args.h"
#include "kernels/quant.h"

enum pe_metal_slot {
  PE_SLOT_CALL,
  PE_SLOT_ARGS,
  PE_SLOT_OUT,
  PE_SLOT_IN0,
  PE_SLOT_IN1,
  PE_SLOT_IN2,
  PE_SLOT_IN3,
  PE_SLOT_IN4,
  PE_SLOT_IN5,
  PE_SLOT_DATA,
  PE_SLOT_SCALES,
  PE_SLOT_BIASES,
  PE_SLOT_DATA2,
  PE_SLOT_SCALES2,
  PE_SLOT_BIASES2,
  PE_SLOT_VEC0,
  PE_SLOT_VEC1,
  PE_SLOT_VEC2,
  PE_SLOT_VEC3,
  PE_SLOT_KEYS,
  PE_SLOT_VALUES,
  PE_SLOT_STATE,
  PE_SLOT_STEP,
  PE_SLOT_FEATURES,
  PE_SLOT_EXPERTS,
  PE_SLOT_SCRATCH,
  PE_SLOT_DATA3,
  PE_SLOT_SCALES3,
  PE_SLOT_BIASES3,
  PE_SLOT_OUT2,
  PE_SLOT_OUT3,
  PE_SLOTS,
  PE_SLOT_DATA4 = PE_SLOT_KEYS,
  PE_SLOT_OUT4 = PE_SLOT_FEATURES,
  PE_SLOT_BEFORE = PE_SLOT_OUT2,
  PE_SLOT_AFTER = PE_SLOT_OUT3
};

/* Function constants, all uint. The layout of mat, then of mat2, mat3 and mat4 (equal to that of
 * mat in ops without one). GATE: the activation of gated ops. KV: pe_kv_type. NORM: 1 if a product
 * normalizes its input. ROUTE: 1 if products of experts choose them. */
enum pe_metal_constant {
  PE_CONSTANT_KIND, /* pe_quant_kind */
  PE_CONSTANT_BITS,
  PE_CONSTANT_GROUP,
  PE_CONSTANT_DTYPE, /* pe_dtype of plain elements or of scales */
  PE_CONSTANT_KIND2,
  PE_CONSTANT_BITS2,
  PE_CONSTANT_GROUP2,
  PE_CONSTANT_DTYPE2,
  PE_CONSTANT_KIND3,
  PE_CONSTANT_BITS3,
  PE_CONSTANT_GROUP3,
  PE_CONSTANT_DTYPE3,
  PE_CONSTANT_KIND4,
  PE_CONSTANT_BITS4,
  PE_CONSTANT_GROUP4,
  PE_CONSTANT_DTYPE4,
  PE_CONSTANT_GATE,
  PE_CONSTANT_KV,
  PE_CONSTANT_NORM,
  PE_CONSTANT_ROUTE,
  PE_CONSTANTS
};

/* Sizes that kernels have built in and grids follow. */
enum {
  PE_PRODUCT_SETS = 4, /* of eight lanes in a simdgroup */
  PE_WIDE_ROWS = 8,    /* of a simdgroup where weights are decoded for several, */
  PE_WIDE_COLUMNS = 4, /* and columns of each set */
  PE_EXPERT_TILE = 8,  /* pairs that are multiplied at once */
  PE_SORT_EXPERTS = 1024,
  PE_SORT_THREADS = 256,
  PE_ROUTE_EXPERTS = 1024,
  PE_ROUTE_FEW = 512, /* of products that choose: more would leave room for too few groups */
  PE_ROUTE_GROUPS = 64,
  PE_ROUTE_CHOSEN = 64,
  PE_ATTENTION_PART = 128, /* keys */
  PE_STORE_WIDTH = 1024,   /* the widest row of a head */
  PE_CONV_TAPS = 16,
  PE_STATE_WIDTH = 256,   /* the widest row of a state: 8 values for each lane */
  PE_STATE_ROWS = 8,      /* of a state, for one group, */
  PE_STATE_CHUNK = 4,     /* and rows of the step that it reads at once; */
  PE_HEAD_SIMDGROUPS = 16 /* of a group that has all rows of a head's state */
};
/* A norm has one simdgroup per PE_NORM_VALUES values, at most PE_NORM_SIMDGROUPS. The order of its
 * sums depends on both, so a norm inside of a rope or a product uses them as well. */
enum { PE_NORM_VALUES = 128, PE_NORM_SIMDGROUPS = 8 };

/* Shortlists (shortlist.metal). */
enum {
  PE_SHORTLIST_STRETCH = 256, /* logits that share a peak, and threads of a group */
  PE_SHORTLIST_WORDS = 1 + 2 * PE_WANTED_ROOM, /* count, ids, logits */
  PE_SHORTLIST_BLOCK = 512,                    /* logits whose weights are summed */
};

typedef struct pe_metal_mat {
  int32_t rows, cols;
  uint32_t row_bytes, scale_bytes; /* from one row to the next in data, in scales and biases */
  float global;                    /* nvfp4: the factor of the whole matrix */
} pe_metal_mat;

/* Where an op slice finds its values, or concat puts them: number j at from + j / count * dim + j %
 * count of the line. count 0: at j, the line is not sliced. */
typedef struct pe_metal_part {
  int32_t from, count, dim;
} pe_metal_part;

typedef struct pe_metal_call {
  int32_t rows, out_step, in_step[PE_OP_VIEWS]; /* rows: of out; steps: floats */
  uint32_t vecs, cache_step, state_step;        /* cache_step: bytes; state_step: floats */
  pe_metal_mat mat, mat2, mat3, mat4;
  int32_t out2_step, out3_step, out4_step;
  pe_norm_args norm; /* of a product's input, a store's values, a delta's heads; width 0: none */
  pe_metal_part part[PE_OP_VIEWS], out_part; /* out_part: the result is a part of a wider line */
} pe_metal_call;

/* A rope of queries and the store of keys that are turned by the same table. */
typedef struct pe_rope_store_args {
  pe_store_args store;
  pe_rope_args rope;
} pe_rope_store_args;

/* Gate and up projections of experts, and how they are chosen. */
typedef struct pe_expert_routed_args {
  pe_expert_gated_args gated;
  pe_route_args route;
} pe_expert_routed_args;

/* A map of the result of a kernel, which is its input number `self`. */
typedef struct pe_metal_after {
  pe_map_args map; /* inputs 0: none, the result is stored as it is */
  int32_t self;
  int32_t product;                 /* the input that is a product; -1: none */
  int32_t function[PE_MAP_INPUTS]; /* a unary pe_map_op of an input; -1: none */
  int32_t step[PE_MAP_INPUTS];     /* floats from line to line */
  pe_metal_part part[PE_MAP_INPUTS];
} pe_metal_after;

/* What the delta rule does to its inputs. norm: of queries and of keys, without weights; map: of
 * decays and betas. A map has one input that is not fixed. */
typedef struct pe_metal_before {
  int32_t norms[2], maps[2]; /* 1: it does this */
  pe_norm_args norm[2];
  pe_map_args map[2];
} pe_metal_before;

/* The head of slot 22. Fields from `token` on are word offsets from its start; -1: none. */
typedef struct pe_metal_step {
  int32_t rows, segments, outputs, groups, ahead, feature_planes, feature_width, patch_width,
      merge_count, region_count[PE_REGIONS], region_longest[PE_REGIONS];
  int32_t token, position, segment_of, segment, output, tables, table_at, feature, last, lookup_at,
      lookup_index, lookup_weight, merge, wanted, region[PE_REGIONS];
} pe_metal_step;

typedef struct pe_metal_shortlist_args { /* arguments */
  int32_t vocabulary, step;  /* logits of a line that count; from one line to the next */
  int32_t stretches, blocks; /* of a line */
} pe_metal_shortlist_args;

#ifdef __METAL_VERSION__
static_assert(sizeof(pe_metal_call) == 252 && sizeof(pe_metal_step) == 116, "sizes as in C");
#else
_Static_assert(sizeof(pe_metal_call) == 252 && sizeof(pe_metal_step) == 116, "sizes as in Metal");
_Static_assert(PE_SLOT_SCRATCH == 25 && PE_SLOTS == 31, "as drawn above; Metal has 31 slots");
#endif

#endif
