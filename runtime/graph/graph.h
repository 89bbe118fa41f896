/* graph.h - a model as a graph. An architecture script builds it once, when the model is loaded.
 *
 * A value is the result of one op for every row of a step: up to three dimensions (say heads x
 * width), stored as one flat line of floats per row. A param is a tensor of the weights, seen as
 * one matrix, as one matrix per expert or head, or as a vector. Values and params are indices into
 * the graph. Every value has a name, which taps use to find it: the script's, or the op and a
 * number.
 *
 * Every function checks its arguments; errors name the tensor or value, the expected and the actual
 * shape. Matrices stay in the mapped file; vectors (norms, biases, frequencies) are decoded to
 * float32 once, here.
 *
 * The graph also describes the caches: each attention belongs to a cache group (same window, heads
 * and widths), each recurrent op to a fixed number of floats of a state slot. The plan (plan.h)
 * turns the graph into instructions.
 *
 * Ownership: counted. A graph retains its weights and every plan retains its graph, so scripts may
 * close them in any order. Threads: built and extended by one thread. Everything that runs uses a
 * frozen copy (pe_graph_freeze), so a script may extend the graph of an open model; what it adds
 * takes part in plans that are made afterwards. */
#ifndef PE_GRAPH_H
#define PE_GRAPH_H

#include "kernels/op.h"
#include "runtime/weights/weights.h"

enum { PE_GRAPH_DIMS = 3, PE_NODE_INPUTS = PE_OP_VIEWS, PE_GRAPH_GROUPS = 16 };

typedef int32_t pe_value; /* -1: none */
typedef int32_t pe_param; /* -1: none */

typedef struct pe_param_info {
  const char *name;
  const pe_weight *weight; /* of a stack: the first one's */
  int32_t count;           /* matrices */
  int64_t rows, cols;      /* of each matrix */
  pe_quant_matrix *mat;
  const float *vec; /* all values of all matrices, decoded on first use; NULL before */
} pe_param_info;

typedef enum pe_extent {                   /* how many lines a value has */
                         PE_EXTENT_ALL,    /* one per row of the step */
                         PE_EXTENT_OUTPUT, /* one per row whose logits are wanted */
                         PE_EXTENT_CONST   /* a single one */
} pe_extent;

/* Nodes that compute nothing. Not pe_op: kernels never see them. */
enum {
  PE_NODE_VIEW = -1,    /* in[0] from `offset` floats into its line */
  PE_NODE_CONSTANT = -2 /* vec[0] */
};

typedef struct pe_node {
  const char *name;
  int op; /* a pe_op, or one of the two above */
  pe_extent rows;
  int32_t rank, dim[PE_GRAPH_DIMS], width;
  int32_t inputs;
  pe_value in[PE_NODE_INPUTS];
  int64_t offset;
  pe_param mat, mat2; /* mat2: second matrix of a gated product, created by the plan */
  const float *vec[PE_OP_VECS];
  int32_t cache;    /* index of a pe_cache_layer, or -1 */
  int64_t state_at; /* offset of its state in a slot, in floats; -1: none */
  pe_op_args args;
} pe_node;

typedef struct pe_cache_group {
  int32_t window, heads, key, value; /* window 0: unlimited */
  int32_t layers;
} pe_cache_group;

typedef struct pe_cache_layer {
  int32_t group, index; /* index: within the group */
  pe_value store;       /* what fills it; every attention that reads it depends on this */
} pe_cache_layer;

typedef struct pe_graph {
  pe_weights *weights; /* retained */
  pe_arena arena;
  pe_node *node;
  size_t node_count, node_cap;
  pe_param_info *param;
  size_t param_count, param_cap;
  bool *used; /* by weight: a param refers to it */
  pe_cache_group group[PE_GRAPH_GROUPS];
  int32_t group_count;
  pe_cache_layer *layer;
  size_t layer_count, layer_cap;
  int64_t state_floats; /* of one slot */
  pe_value output;      /* the logits */
  int refs;             /* private, like the next one */
  struct pe_graph *of;  /* frozen: the graph that owns the arena and the weights; retained */
} pe_graph;

/* gives; retains the weights */
pe_status pe_graph_open(pe_weights *weights, pe_graph **out, pe_error *err);
pe_graph *pe_graph_retain(pe_graph *g); /* gives one more reference */
void pe_graph_release(pe_graph *g);     /* takes; NULL is fine */
/* Gives a copy of the graph as it is now, which nobody changes: any thread may read it, whatever
 * happens to g. It shares names, numbers and matrices, which are only ever added to. */
pe_status pe_graph_freeze(pe_graph *g, pe_graph **out, pe_error *err);

/* ---- params ---------------------------------------------------------------------------------- */

/* PE_ENOTFOUND if no tensor has this name. A tensor of rank 3 is one matrix per first index. */
pe_status pe_graph_param(pe_graph *g, const char *name, pe_param *out, pe_error *err);
/* Rows from, from + step, ... of every matrix. */
pe_status pe_graph_rows(pe_graph *g, pe_param p, int64_t from, int64_t count, int64_t step,
                        pe_param *out, pe_error *err);
/* Splits one matrix into `count` matrices of equal height (the heads of a projection). */
pe_status pe_graph_split(pe_graph *g, pe_param p, int64_t count, pe_param *out, pe_error *err);
/* Joins params of one matrix each into one param (experts stored as separate tensors). */
pe_status pe_graph_stack(pe_graph *g, const pe_param *list, int32_t count, pe_param *out,
                         pe_error *err);
/* The tensor seen as `rank` dimensions, in the order `order` (0: the first one): the first one
 * gives the rows, the others the columns of one matrix. The convolution of a patch is a matrix in
 * this way. Copies the values unless the order is 0, 1, 2, ...; quantised ones as float32. For
 * graphs without caches: the identity of a cache knows nothing of copies. */
pe_status pe_graph_permute(pe_graph *g, pe_param p, int rank, const int64_t *dim, const int *order,
                           pe_param *out, pe_error *err);
/* All values as float32, decoded once. */
pe_status pe_graph_vector(pe_graph *g, pe_param p, const float **out, pe_error *err);
/* Copies the caller's numbers; the copy lives as long as the graph. */
pe_status pe_graph_numbers(pe_graph *g, const float *numbers, size_t count, const float **out,
                           pe_error *err);

/* ---- values ---------------------------------------------------------------------------------- */

/* Appends a copy of the node; fills in its width and, if it has none, its name. Refuses a node
 * whose inputs have no lines, or not as many as each other: no plan could run it. */
pe_status pe_graph_add(pe_graph *g, const pe_node *node, pe_value *out, pe_error *err);
pe_node *pe_graph_node(const pe_graph *g, pe_value v); /* NULL: no such value */
const char *pe_node_op_name(const pe_node *n);         /* "linear", "view", "constant" */
pe_status pe_graph_name(pe_graph *g, pe_value v, const char *name, pe_error *err);

typedef struct pe_expert_spec {
  pe_value route;
  pe_param weight, bias; /* bias -1: none */
  bool transposed;
} pe_expert_spec;

pe_status pe_graph_embed(pe_graph *g, pe_param table, float scale, pe_value *out, pe_error *err);
/* A second table: rows of pictures take row `instead` of it. */
pe_status pe_graph_embed_instead(pe_graph *g, pe_param table, float scale, int32_t instead,
                                 pe_value *out, pe_error *err);
/* Adds plane `plane` (from 1) of the features to the rows of pictures. */
pe_status pe_graph_deepstack(pe_graph *g, pe_value x, int32_t plane, pe_value *out, pe_error *err);
pe_status pe_graph_linear(pe_graph *g, pe_value x, pe_param weight, pe_param bias, pe_value *out,
                          pe_error *err);
/* transposed, here and below: matrices are stored as [in, out]. Quantised experts cannot be. */
pe_status pe_graph_expert_linear(pe_graph *g, pe_value x, const pe_expert_spec *s, pe_value *out,
                                 pe_error *err);
pe_status pe_graph_head_linear(pe_graph *g, pe_value x, pe_param weight, bool transposed,
                               pe_value *out, pe_error *err);
/* args: the caller sets eps, offset, scale, l2, layer and width (0: the last dimension). */
pe_status pe_graph_norm(pe_graph *g, pe_value x, pe_param weight, const pe_norm_args *args,
                        pe_value *out, pe_error *err);
/* A layer norm: subtracts the mean, and adds the bias if it is not -1. */
pe_status pe_graph_layer_norm(pe_graph *g, pe_value x, pe_param weight, pe_param bias, float eps,
                              pe_value *out, pe_error *err);
pe_status pe_graph_unary(pe_graph *g, pe_map_op op, pe_value x, pe_value *out, pe_error *err);
/* Shapes must be equal, or the smaller one repeats: [h] with [h, w], or a constant vector [w] with
 * [h, w] (if h = w, it counts as [h]). An op on constants is computed at once and gives a
 * constant. */
pe_status pe_graph_binary(pe_graph *g, pe_map_op op, pe_value a, pe_value b, pe_value *out,
                          pe_error *err);
pe_status pe_graph_binary_number(pe_graph *g, pe_map_op op, pe_value a, float b, bool swapped,
                                 pe_value *out, pe_error *err);
/* A vector as a value. */
pe_status pe_graph_constant(pe_graph *g, pe_param p, pe_value *out, pe_error *err);
pe_status pe_graph_reshape(pe_graph *g, pe_value x, int rank, const int32_t *dim, pe_value *out,
                           pe_error *err);
/* Along the first dimension, a view; along the last of several, an op that copies. */
pe_status pe_graph_slice(pe_graph *g, pe_value x, bool last, int32_t from, int32_t count,
                         pe_value *out, pe_error *err);
/* Joins along the last dimension; an operand with a single head is repeated for every head. */
pe_status pe_graph_concat(pe_graph *g, const pe_value *list, int32_t count, pe_value *out,
                          pe_error *err);
pe_status pe_graph_rope_table(pe_graph *g, const float *frequencies, const float *factors,
                              const pe_rope_table_args *args, pe_value *out, pe_error *err);
pe_status pe_graph_rope(pe_graph *g, pe_value x, pe_value table, bool pairs, int32_t skip,
                        pe_value *out, pe_error *err);

/* v -1: the values are the first `value` floats of the keys. */
typedef struct pe_attention_spec {
  pe_value q, k, v;
  pe_param sinks; /* -1: none */
  int32_t window, value;
  float scale, softcap;
  bool spans;    /* rows of a picture see all of it (op.h: step->last) */
  int32_t share; /* read keys and values of this cache layer instead of storing them; -1: store */
} pe_attention_spec;
pe_status pe_graph_attention(pe_graph *g, const pe_attention_spec *s, pe_value *out, int32_t *layer,
                             pe_error *err);

pe_status pe_graph_route(pe_graph *g, pe_value logits, pe_param bias, pe_param factor,
                         const pe_route_args *args, pe_value *out, pe_error *err);
pe_status pe_graph_expert_sum(pe_graph *g, pe_value x, pe_value route, pe_value *out,
                              pe_error *err);
pe_status pe_graph_conv(pe_graph *g, pe_value x, pe_param weight, pe_param bias, int32_t activation,
                        pe_value *out, pe_error *err);
/* in: q, k, v, decay, beta */
pe_status pe_graph_delta(pe_graph *g, const pe_value in[5], pe_value *out, pe_error *err);
/* in: x, B, C, dt; vec: A_log, dt_bias, D */
pe_status pe_graph_ssm(pe_graph *g, const pe_value in[4], const pe_param vec[3], float dt_min,
                       float dt_max, pe_value *out, pe_error *err);
/* Keeps only the rows whose logits are wanted; everything after it has one line per such row. */
pe_status pe_graph_output(pe_graph *g, pe_value x, pe_value *out, pe_error *err);

/* ---- towers (graph_tower.c) ------------------------------------------------------------------ */

/* The patches of the step, `width` floats each. */
pe_status pe_graph_patches(pe_graph *g, int32_t width, pe_value *out, pe_error *err);
/* Lines of a table of positions, summed for each row as the step says. */
pe_status pe_graph_lookup(pe_graph *g, pe_param table, pe_value *out, pe_error *err);
/* Rows to outputs: `count` rows are joined, or with `mean` averaged. Everything after it has one
 * line per output. */
pe_status pe_graph_merge(pe_graph *g, pe_value x, int32_t count, bool mean, pe_value *out,
                         pe_error *err);
/* Attention of every row to all rows of its region. q: [heads, key], k: [key heads, key], v: [key
 * heads, value]. regions: PE_REGION_FRAME or PE_REGION_WINDOW. */
pe_status pe_graph_region_attention(pe_graph *g, const pe_value qkv[3], int32_t regions,
                                    float scale, pe_value *out, pe_error *err);

/* ---- between the graph_*.c files ------------------------------------------------------------- */

/* Appends a param of `count` matrices, whose shape and memory the caller fills in. */
pe_status pe_graph_add_param(pe_graph *g, const char *name, const pe_weight *w, int32_t count,
                             pe_param *out, pe_error *err);
/* A node with one dimension and the extent of x (x -1: all rows); the caller fills in the rest. */
pe_node pe_graph_draft(const pe_graph *g, int op, pe_value x, int32_t width);
/* The values of p; PE_ESHAPE unless there are `want` of them. p -1: *out is NULL. */
pe_status pe_graph_sized_vector(pe_graph *g, pe_param p, int64_t want, const float **out,
                                pe_error *err);

/* Writes the shape of a value, "[4, 64]", for messages. */
void pe_graph_shape_text(const pe_graph *g, pe_value v, char *out, size_t size);

#endif
