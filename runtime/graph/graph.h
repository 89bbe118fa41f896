/* graph.h - a model as a graph: what an architecture script builds, once, when a model is loaded.
 *
 * A value is what one op computes for every row of a step: a small shape of up to three dimensions (heads x width, say),
 * flat in memory, one line per row. A param is a tensor of the weights seen as one matrix, or as one matrix per expert or
 * head, or as a vector. Both are numbers that index into the graph. Every value has a name: the script's, or one made
 * from the op and a count; taps find values by it.
 *
 * Every function checks what it is given and says which tensor or value, what was expected and what was found. Matrices
 * stay where the file has them; vectors (norms, biases, frequencies) are decoded to float32 once, here.
 *
 * The graph knows the caches: each attention belongs to a cache group (same window, heads and widths), each recurrent op
 * to a slot area of so many floats. The plan (plan.h) turns the graph into instructions.
 *
 * Ownership: holds the weights, and is held by its plans: a script may close them in any order. Threads: built by one, immutable once planned. */
#ifndef PE_GRAPH_H
#define PE_GRAPH_H

#include "kernels/op.h"
#include "runtime/weights/weights.h"

enum { PE_GRAPH_DIMS = 3, PE_NODE_INPUTS = PE_OP_VIEWS, PE_GRAPH_GROUPS = 16 };

typedef int32_t pe_value; /* -1: none */
typedef int32_t pe_param; /* -1: none */

typedef struct pe_param_info {
  const char *name;
  const pe_weight *weight; /* the first of them */
  int32_t count;           /* matrices */
  int64_t rows, cols;      /* of each */
  pe_quant_matrix *mat;
  const float *vec; /* decoded on demand: all values of all rows */
} pe_param_info;

typedef enum pe_extent {
  PE_EXTENT_ALL,
  PE_EXTENT_OUTPUT,
  PE_EXTENT_CONST
} pe_extent; /* one line per row, per wanted row, one in all */

typedef struct pe_node {
  const char *name;
  int op; /* pe_op; -1: a view of in[0], `offset` floats into its line; -2: a constant vector */
  pe_extent rows;
  int32_t rank, dim[PE_GRAPH_DIMS], width;
  int32_t inputs;
  pe_value in[PE_NODE_INPUTS];
  int64_t offset;
  pe_param mat, mat2; /* mat2: of what the plan fuses */
  const float *vec[PE_OP_VECS];
  int32_t cache;    /* index of a pe_cache_layer, or -1 */
  int64_t state_at; /* where its state lies in a slot, in floats; -1: none */
  pe_op_args args;
} pe_node;

typedef struct pe_cache_group {
  int32_t window, heads, key, value; /* window 0: unlimited */
  int32_t layers;
} pe_cache_group;

typedef struct pe_cache_layer {
  int32_t group, index;
} pe_cache_layer; /* index inside its group */

typedef struct pe_graph {
  const pe_weights *weights;
  pe_arena arena;
  pe_node *node;
  size_t node_count, node_cap;
  pe_param_info *param;
  size_t param_count, param_cap;
  bool *used; /* by weight: some param names it */
  pe_cache_group group[PE_GRAPH_GROUPS];
  int32_t group_count;
  pe_cache_layer *layer;
  size_t layer_count, layer_cap;
  int64_t state_floats; /* of one slot */
  pe_value output;      /* the logits */
  int held;             /* private: by others than whoever opened it */
} pe_graph;

pe_status pe_graph_open(const pe_weights *weights, pe_graph **out, pe_error *err); /* gives */
const pe_graph *pe_graph_retain(const pe_graph *g); /* gives: one more close before it is gone */
void pe_graph_release(const pe_graph *g);

/* ---- params -------------------------------------------------------------------------------------------------- */

/* PE_ENOTFOUND when there is no such tensor. A tensor of rank 3 is one matrix per first index. */
pe_status pe_graph_param(pe_graph *g, const char *name, pe_param *out, pe_error *err);
/* Rows from, from + step, ... of every matrix. */
pe_status pe_graph_rows(pe_graph *g, pe_param p, int64_t from, int64_t count, int64_t step,
                        pe_param *out, pe_error *err);
/* One matrix with all rows becomes `count` matrices of equal height (heads of a projection). */
pe_status pe_graph_split(pe_graph *g, pe_param p, int64_t count, pe_param *out, pe_error *err);
/* Several params of one matrix each as one param (experts stored one by one). */
pe_status pe_graph_stack(pe_graph *g, const pe_param *list, int32_t count, pe_param *out,
                         pe_error *err);
/* All values as float32, decoded once. */
pe_status pe_graph_vector(pe_graph *g, pe_param p, const float **out, pe_error *err);
/* A vector made of the caller's numbers, kept as long as the graph. */
pe_status pe_graph_numbers(pe_graph *g, const float *numbers, size_t count, const float **out,
                           pe_error *err);

/* ---- values -------------------------------------------------------------------------------------------------- */

/* Appends a node of this op, shape and inputs; its args are filled by the caller through pe_graph_node. */
pe_status pe_graph_add(pe_graph *g, const pe_node *node, pe_value *out, pe_error *err);
pe_node *pe_graph_node(const pe_graph *g, pe_value v); /* NULL: no such value */
pe_status pe_graph_name(pe_graph *g, pe_value v, const char *name, pe_error *err);

typedef struct pe_expert_spec {
  pe_value route;
  pe_param weight, bias; /* bias -1: none */
  bool transposed;
} pe_expert_spec;

pe_status pe_graph_embed(pe_graph *g, pe_param table, float scale, pe_value *out, pe_error *err);
pe_status pe_graph_linear(pe_graph *g, pe_value x, pe_param weight, pe_param bias, pe_value *out,
                          pe_error *err);
/* transposed, here and below: matrices are stored as [in, out]. Of experts, only where they are not quantised. */
pe_status pe_graph_expert_linear(pe_graph *g, pe_value x, const pe_expert_spec *s, pe_value *out,
                                 pe_error *err);
pe_status pe_graph_head_linear(pe_graph *g, pe_value x, pe_param weight, bool transposed,
                               pe_value *out, pe_error *err);
/* width 0: the last dimension. args: eps, offset, scale, l2, layer are the caller's. */
pe_status pe_graph_norm(pe_graph *g, pe_value x, pe_param weight, const pe_norm_args *args,
                        pe_value *out, pe_error *err);
pe_status pe_graph_unary(pe_graph *g, pe_map_op op, pe_value x, pe_value *out, pe_error *err);
/* Shapes must be equal, or one a repetition of the other: [h] with [h, w], or a constant vector [w] with [h, w] (where
 * h = w, by heads). What is made of constants alone is computed at once and is a constant again. */
pe_status pe_graph_binary(pe_graph *g, pe_map_op op, pe_value a, pe_value b, pe_value *out,
                          pe_error *err);
pe_status pe_graph_binary_number(pe_graph *g, pe_map_op op, pe_value a, float b, bool swapped,
                                 pe_value *out, pe_error *err);
pe_status pe_graph_constant(pe_graph *g, pe_param p, pe_value *out,
                            pe_error *err); /* a vector as a value */
pe_status pe_graph_reshape(pe_graph *g, pe_value x, int rank, const int32_t *dim, pe_value *out,
                           pe_error *err);
/* Along the first dimension: no copy. Along the last one of several: an op. */
pe_status pe_graph_slice(pe_graph *g, pe_value x, bool last, int32_t from, int32_t count,
                         pe_value *out, pe_error *err);
pe_status pe_graph_concat(pe_graph *g, const pe_value *list, int32_t count, pe_value *out,
                          pe_error *err);
pe_status pe_graph_rope_table(pe_graph *g, const float *frequencies, const float *factors,
                              const pe_rope_table_args *args, pe_value *out, pe_error *err);
pe_status pe_graph_rope(pe_graph *g, pe_value x, pe_value table, bool pairs, int32_t skip,
                        pe_value *out, pe_error *err);

/* v -1: values are the first `value` floats of the keys. */
typedef struct pe_attention_spec {
  pe_value q, k, v;
  pe_param sinks; /* -1: none */
  int32_t window, value;
  float scale, softcap;
  int32_t share; /* a cache layer whose keys and values are read instead of storing own ones; -1 */
} pe_attention_spec;
pe_status pe_graph_attention(pe_graph *g, const pe_attention_spec *s, pe_value *out, int32_t *layer,
                             pe_error *err);

pe_status pe_graph_route(pe_graph *g, pe_value logits, pe_param bias, pe_param factor,
                         const pe_route_args *args, pe_value *out, pe_error *err);
pe_status pe_graph_expert_sum(pe_graph *g, pe_value x, pe_value route, pe_value *out,
                              pe_error *err);
pe_status pe_graph_conv(pe_graph *g, pe_value x, pe_param weight, pe_param bias, int32_t activation,
                        pe_value *out, pe_error *err);
pe_status pe_graph_delta(pe_graph *g, const pe_value in[5], pe_value *out,
                         pe_error *err); /* q, k, v, decay, beta */
pe_status pe_graph_ssm(pe_graph *g, const pe_value in[4], const pe_param vec[3], float dt_min,
                       float dt_max, pe_value *out, pe_error *err);
/* From here on only the rows whose logits are wanted. */
pe_status pe_graph_output(pe_graph *g, pe_value x, pe_value *out, pe_error *err);

/* ---- between the graph_*.c files ----------------------------------------------------------------------------- */

/* A node of this op over x's rows (x -1: over all), one dimension; the caller goes on. */
pe_node pe_graph_draft(const pe_graph *g, int op, pe_value x, int32_t width);
/* The values of p, which must be `want` many; p -1: NULL. */
pe_status pe_graph_sized_vector(pe_graph *g, pe_param p, int64_t want, const float **out,
                                pe_error *err);

/* "[4, 64]" of a value; into a buffer of the caller's. */
void pe_graph_shape_text(const pe_graph *g, pe_value v, char *out, size_t size);

#endif
