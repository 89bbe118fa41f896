/* graph.c - params and the simple values of graph.h; ops with memory are in graph_memory.c. */
#include "runtime/graph/graph.h"

#include "kernels/host.h"

#include <stdio.h>
#include <string.h>

pe_status pe_graph_open(pe_weights *weights, pe_graph **out, pe_error *err) {
  pe_graph *g = pe_calloc(1, sizeof *g);
  if (!g || !(g->used = pe_calloc(weights->count + 1, sizeof *g->used))) {
    pe_free(g);
    return pe_nomem(err, "graph");
  }
  g->weights = pe_weights_retain(weights), g->output = -1, g->refs = 1;
  *out = g;
  return PE_OK;
}

pe_graph *pe_graph_retain(pe_graph *g) {
  __atomic_fetch_add(&g->refs, 1, __ATOMIC_RELAXED);
  return g;
}

void pe_graph_release(pe_graph *g) {
  if (!g || __atomic_sub_fetch(&g->refs, 1, __ATOMIC_ACQ_REL)) return;
  pe_weights_release(g->weights);
  pe_free(g->node), pe_free(g->param), pe_free(g->layer), pe_free(g->used);
  pe_arena_free(&g->arena);
  pe_graph_release(g->of);
  pe_free(g);
}

static bool copy_list(const void *from, size_t count, size_t size, void **out) {
  *out = pe_calloc(count + 1, size);
  if (*out && count) memcpy(*out, from, count * size);
  return *out != NULL;
}

pe_status pe_graph_freeze(pe_graph *g, pe_graph **out, pe_error *err) {
  pe_graph *f = pe_calloc(1, sizeof *f);
  if (!f) return pe_nomem(err, "graph");
  void *node = NULL, *param = NULL, *layer = NULL, *used = NULL;
  bool ok = copy_list(g->node, g->node_count, sizeof *g->node, &node) &&
            copy_list(g->param, g->param_count, sizeof *g->param, &param) &&
            copy_list(g->layer, g->layer_count, sizeof *g->layer, &layer) &&
            copy_list(g->used, g->weights->count, sizeof *g->used, &used);
  *f = *g;
  f->arena = (pe_arena){0}, f->refs = 1;
  f->node = node, f->param = param, f->layer = layer, f->used = used;
  f->of = pe_graph_retain(g), f->weights = pe_weights_retain(g->weights);
  if (!ok) {
    pe_graph_release(f);
    return pe_nomem(err, "graph");
  }
  *out = f;
  return PE_OK;
}

/* ---- params ---------------------------------------------------------------------------------- */

pe_status pe_graph_add_param(pe_graph *g, const char *name, const pe_weight *w, int32_t count,
                             pe_param *out, pe_error *err) {
  pe_status rc = pe_grow(&g->param, &g->param_cap, g->param_count + 1, sizeof *g->param, err);
  if (rc) return rc;
  pe_param_info *p = &g->param[g->param_count];
  *p = (pe_param_info){.weight = w, .count = count};
  p->mat = pe_arena_calloc(&g->arena, (size_t)count, sizeof *p->mat);
  p->name = pe_arena_dup(&g->arena, name, strlen(name));
  if (!p->mat || !p->name) return pe_nomem(err, "graph param");
  *out = (pe_param)g->param_count++;
  return PE_OK;
}

/* Points p's matrices, all of the same height, to consecutive rows of `whole`. */
static void cut(pe_param_info *p, const pe_quant_matrix *whole) {
  for (int32_t i = 0; i < p->count; i++) {
    pe_quant_matrix *m = &p->mat[i];
    *m = *whole;
    m->rows = p->rows;
    m->data += (uint64_t)i * (uint64_t)p->rows * whole->row_bytes;
    if (m->scales) m->scales += (uint64_t)i * (uint64_t)p->rows * whole->scale_bytes;
    if (m->biases) m->biases += (uint64_t)i * (uint64_t)p->rows * whole->scale_bytes;
  }
}

pe_status pe_graph_param(pe_graph *g, const char *name, pe_param *out, pe_error *err) {
  const pe_weight *w = pe_weights_find(g->weights, name);
  if (!w) return pe_fail(err, PE_ENOTFOUND, "missing tensor %s", name);
  int32_t count = w->rank == 3 ? (int32_t)w->shape[0] : 1;
  if (count < 1) return pe_fail(err, PE_ESHAPE, "tensor %s is empty", name);
  if (w->rank == 3 && w->shape[0] > INT32_MAX / 2) count = 0;
  if (!count || w->rows / count > INT32_MAX / 2 || w->cols > INT32_MAX / 2)
    return pe_fail(err, PE_ESHAPE, "tensor %s is too large: a dimension exceeds %d", name,
                   INT32_MAX / 2);
  pe_status rc = pe_graph_add_param(g, name, w, count, out, err);
  if (rc) return rc;
  g->used[w - g->weights->list] = true;
  pe_param_info *p = &g->param[*out];
  p->rows = w->rows / count, p->cols = w->cols;
  pe_quant_matrix whole = pe_weight_matrix(w);
  cut(p, &whole);
  return PE_OK;
}

pe_status pe_graph_rows(pe_graph *g, pe_param from_param, int64_t from, int64_t count, int64_t step,
                        pe_param *out, pe_error *err) {
  pe_param_info src = g->param[from_param];
  if (from < 0 || count < 1 || step < 1 || from >= src.rows ||
      count - 1 > (src.rows - 1 - from) / step)
    return pe_fail(
        err, PE_ESHAPE,
        "%s: %lld rows from row %lld in steps of %lld do not fit: the matrix has %lld rows",
        src.name, (long long)count, (long long)(from < INT64_MAX ? from + 1 : from),
        (long long)step, (long long)src.rows);
  pe_status rc = pe_graph_add_param(g, src.name, src.weight, src.count, out, err);
  if (rc) return rc;
  pe_param_info *p = &g->param[*out];
  p->rows = count, p->cols = src.cols;
  for (int32_t i = 0; i < src.count; i++) {
    pe_quant_matrix *m = &p->mat[i];
    *m = src.mat[i];
    m->rows = count;
    m->data += (uint64_t)from * m->row_bytes, m->row_bytes *= (uint64_t)step;
    if (m->scales) m->scales += (uint64_t)from * m->scale_bytes;
    if (m->biases) m->biases += (uint64_t)from * m->scale_bytes;
    m->scale_bytes *= (uint64_t)step;
  }
  return PE_OK;
}

pe_status pe_graph_split(pe_graph *g, pe_param from_param, int64_t count, pe_param *out,
                         pe_error *err) {
  pe_param_info src = g->param[from_param];
  if (src.count != 1 || count < 1 || src.rows % count)
    return pe_fail(err, PE_ESHAPE, "%s: %lld rows cannot be split into %lld equal parts", src.name,
                   (long long)src.rows, (long long)count);
  pe_status rc = pe_graph_add_param(g, src.name, src.weight, (int32_t)count, out, err);
  if (rc) return rc;
  pe_param_info *p = &g->param[*out];
  p->rows = src.rows / count, p->cols = src.cols;
  cut(p, &src.mat[0]);
  return PE_OK;
}

pe_status pe_graph_stack(pe_graph *g, const pe_param *list, int32_t count, pe_param *out,
                         pe_error *err) {
  pe_param_info first = g->param[list[0]];
  pe_status rc = pe_graph_add_param(g, first.name, first.weight, count, out, err);
  if (rc) return rc;
  pe_param_info *p = &g->param[*out];
  p->rows = first.rows, p->cols = first.cols;
  for (int32_t i = 0; i < count; i++) {
    const pe_param_info *x = &g->param[list[i]];
    if (x->count != 1 || x->rows != first.rows || x->cols != first.cols)
      return pe_fail(err, PE_ESHAPE, "%s is [%lld, %lld], but %s is [%lld, %lld]", x->name,
                     (long long)x->rows, (long long)x->cols, first.name, (long long)first.rows,
                     (long long)first.cols);
    p->mat[i] = x->mat[0];
  }
  return PE_OK;
}

pe_status pe_graph_vector(pe_graph *g, pe_param param, const float **out, pe_error *err) {
  pe_param_info *p = &g->param[param];
  if (!p->vec) {
    uint64_t n = (uint64_t)p->count * (uint64_t)p->rows * (uint64_t)p->cols;
    float *v = pe_arena_calloc(&g->arena, n, sizeof *v);
    if (!v) return pe_nomem(err, p->name);
    for (int32_t i = 0; i < p->count; i++)
      for (int64_t r = 0; r < p->rows; r++)
        pe_quant_row(&p->mat[i], r, 0, p->cols, v + ((int64_t)i * p->rows + r) * p->cols);
    p->vec = v;
  }
  *out = p->vec;
  return PE_OK;
}

pe_status pe_graph_numbers(pe_graph *g, const float *numbers, size_t count, const float **out,
                           pe_error *err) {
  float *v = pe_arena_calloc(&g->arena, count + 1, sizeof *v);
  if (!v) return pe_nomem(err, "graph numbers");
  memcpy(v, numbers, count * sizeof *v);
  *out = v;
  return PE_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

pe_node *pe_graph_node(const pe_graph *g, pe_value v) {
  return v >= 0 && (size_t)v < g->node_count ? &g->node[v] : NULL;
}

const char *pe_node_op_name(const pe_node *n) {
  if (n->op == PE_NODE_VIEW) return "view";
  return n->op == PE_NODE_CONSTANT ? "constant" : pe_op_name((pe_op)n->op);
}

void pe_graph_shape_text(const pe_graph *g, pe_value v, char *out, size_t size) {
  const pe_node *n = pe_graph_node(g, v);
  size_t at = 0;
  if (!n) {
    snprintf(out, size, "nothing");
    return;
  }
  for (int i = 0; i < n->rank && at < size; i++)
    at += (size_t)snprintf(out + at, size - at, "%s%d", i ? ", " : "[", n->dim[i]);
  if (at < size) snprintf(out + at, size - at, "]");
}

/* A line of 2^28 floats is 1 GiB. The limit keeps width and every offset within a line far below
 * INT32_MAX; the widest values of real models are logits, 2^18. */
enum { MAX_WIDTH = 1 << 28 };

/* Reads lines for rows and has one for each output. */
static bool makes_outputs(int op) { return op == PE_OP_OUTPUT || op == PE_OP_MERGE; }

/* Works along the rows of a sequence, so it needs all of them. */
static bool needs_all_rows(int op) {
  return op == PE_OP_STORE || op == PE_OP_ATTENTION || op == PE_OP_CONV || op == PE_OP_DELTA ||
         op == PE_OP_SSM || op == PE_OP_REGION_ATTENTION || makes_outputs(op);
}

/* The only op that may depend on a store, which has no value. */
static bool orders(const pe_node *n, int i) { return n->op == PE_OP_ATTENTION && i == 1; }

/* Maps read constants as vectors; all other ops read lines, which a constant does not have. */
static pe_status check_input(const pe_graph *g, const pe_node *n, int i, pe_error *err) {
  const pe_node *in = pe_graph_node(g, n->in[i]);
  const char *op = pe_node_op_name(n);
  if (!in) return pe_fail(err, PE_EARG, "%s: input %d does not exist", op, i + 1);
  if ((in->op == PE_OP_STORE) != orders(n, i))
    return pe_fail(err, PE_EARG, "%s: input %d, %s, is a cache store, which has no value", op,
                   i + 1, in->name);
  if (in->rows == PE_EXTENT_CONST) {
    if (n->op == PE_OP_MAP) return PE_OK;
    return pe_fail(err, PE_EARG, "%s: %s is a constant: only elementwise operations read those", op,
                   in->name);
  }
  if (needs_all_rows(n->op) && in->rows != PE_EXTENT_ALL)
    return pe_fail(err, PE_ESHAPE,
                   "%s: %s has lines for output rows only, but this needs all rows of a sequence",
                   op, in->name);
  if (!makes_outputs(n->op) && in->rows != n->rows)
    return pe_fail(err, PE_ESHAPE,
                   "%s: %s has a line for %s, other inputs have one for %s: move the output op", op,
                   in->name, in->rows == PE_EXTENT_ALL ? "every row" : "output rows only",
                   n->rows == PE_EXTENT_ALL ? "every row" : "output rows only");
  return PE_OK;
}

static pe_status check_inputs(const pe_graph *g, const pe_node *n, pe_error *err) {
  pe_status rc = PE_OK;
  for (int i = 0; !rc && i < n->inputs; i++) rc = check_input(g, n, i, err);
  return rc;
}

pe_status pe_graph_add(pe_graph *g, const pe_node *node, pe_value *out, pe_error *err) {
  pe_status rc = check_inputs(g, node, err);
  if (!rc) rc = pe_grow(&g->node, &g->node_cap, g->node_count + 1, sizeof *g->node, err);
  if (rc) return rc;
  pe_node *n = &g->node[g->node_count];
  *n = *node;
  int64_t width = 1;
  for (int i = 0; i < n->rank; i++) {
    if (n->dim[i] < 1)
      return pe_fail(err, PE_ESHAPE, "dimension %d of a value must be at least 1, got %d", i + 1,
                     n->dim[i]);
    if ((width *= n->dim[i]) > MAX_WIDTH)
      return pe_fail(err, PE_ESHAPE, "a value can have %d floats per row, got %lld or more",
                     MAX_WIDTH, (long long)width);
  }
  n->width = (int32_t)width;
  if (!n->name) {
    char name[64];
    snprintf(name, sizeof name, "%s.%zu", pe_node_op_name(n), g->node_count);
    if (!(n->name = pe_arena_dup(&g->arena, name, strlen(name))))
      return pe_nomem(err, "value name");
  }
  *out = (pe_value)g->node_count++;
  return PE_OK;
}

pe_status pe_graph_name(pe_graph *g, pe_value v, const char *name, pe_error *err) {
  pe_node *n = pe_graph_node(g, v);
  if (!n) return pe_fail(err, PE_EARG, "there is no value %d", v);
  char *copy = pe_arena_dup(&g->arena, name, strlen(name));
  if (!copy) return pe_nomem(err, "value name");
  n->name = copy;
  return PE_OK;
}

pe_node pe_graph_draft(const pe_graph *g, int op, pe_value x, int32_t width) {
  const pe_node *in = pe_graph_node(g, x);
  pe_node n;
  memset(&n, 0, sizeof n); /* all of the union args: identities hash its bytes */
  n.op = op, n.rows = in ? in->rows : PE_EXTENT_ALL;
  n.rank = 1, n.dim[0] = width, n.inputs = in ? 1 : 0, n.in[0] = x;
  for (int i = 1; i < PE_NODE_INPUTS; i++) n.in[i] = -1;
  n.mat = n.mat2 = n.cache = -1, n.state_at = -1;
  return n;
}

pe_status pe_graph_sized_vector(pe_graph *g, pe_param p, int64_t want, const float **out,
                                pe_error *err) {
  if (p < 0) {
    *out = NULL;
    return PE_OK;
  }
  const pe_param_info *i = &g->param[p];
  int64_t have = (int64_t)i->count * i->rows * i->cols;
  if (have != want)
    return pe_fail(err, PE_ESHAPE, "tensor %s has %lld values, expected %lld", i->name,
                   (long long)have, (long long)want);
  return pe_graph_vector(g, p, out, err);
}

pe_status pe_graph_embed(pe_graph *g, pe_param table, float scale, pe_value *out, pe_error *err) {
  pe_node n = pe_graph_draft(g, PE_OP_EMBED, -1, (int32_t)g->param[table].cols);
  n.mat = table, n.args.embed.scale = scale;
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_embed_instead(pe_graph *g, pe_param table, float scale, int32_t instead,
                                 pe_value *out, pe_error *err) {
  const pe_param_info *p = &g->param[table];
  if (instead < 0 || instead >= p->rows)
    return pe_fail(err, PE_EARG, "tensor %s has no row %d for pictures: it has %lld rows", p->name,
                   instead, (long long)p->rows);
  pe_node n = pe_graph_draft(g, PE_OP_EMBED, -1, (int32_t)p->cols);
  n.mat = table, n.args.embed = (pe_embed_args){scale, instead + 1};
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_deepstack(pe_graph *g, pe_value x, int32_t plane, pe_value *out, pe_error *err) {
  if (plane < 1 || plane >= PE_FEATURE_PLANES)
    return pe_fail(err, PE_EARG, "a plane of features must be between 1 and %d, got %d",
                   PE_FEATURE_PLANES - 1, plane);
  const pe_node *in = &g->node[x];
  pe_node n = pe_graph_draft(g, PE_OP_DEEPSTACK, x, in->width);
  n.args.deepstack = (pe_deepstack_args){in->width, plane};
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_linear(pe_graph *g, pe_value x, pe_param weight, pe_param bias, pe_value *out,
                          pe_error *err) {
  const pe_param_info *p = &g->param[weight];
  int32_t width = g->node[x].width;
  if (p->count != 1 || p->cols != width) {
    char shape[64];
    pe_graph_shape_text(g, x, shape, sizeof shape);
    return pe_fail(err, PE_ESHAPE,
                   "tensor %s is [%lld, %lld], but its input %s is %s: expected [%lld, %d]",
                   p->name, (long long)p->rows, (long long)p->cols, g->node[x].name, shape,
                   (long long)p->rows, width);
  }
  pe_node n = pe_graph_draft(g, PE_OP_LINEAR, x, (int32_t)p->rows);
  n.mat = weight, n.args.linear.in = width, n.args.linear.out = (int32_t)p->rows;
  pe_status rc = pe_graph_sized_vector(g, bias, p->rows, &n.vec[0], err);
  return rc ? rc : pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_head_linear(pe_graph *g, pe_value x, pe_param weight, bool transposed,
                               pe_value *out, pe_error *err) {
  const pe_param_info *p = &g->param[weight];
  const pe_node *in = &g->node[x];
  int64_t from = transposed ? p->rows : p->cols, to = transposed ? p->cols : p->rows;
  if (in->rank != 2 || in->dim[0] != p->count || in->dim[1] != from)
    return pe_fail(err, PE_ESHAPE,
                   "tensor %s is %d matrices of %lld inputs, but its input %s is [%d, %d]", p->name,
                   p->count, (long long)from, in->name, in->dim[0], in->dim[1]);
  pe_node n = pe_graph_draft(g, PE_OP_HEAD_LINEAR, x, 0);
  n.rank = 2, n.dim[0] = p->count, n.dim[1] = (int32_t)to, n.mat = weight;
  n.args.head = (pe_head_args){p->count, (int32_t)from, (int32_t)to, transposed};
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_expert_linear(pe_graph *g, pe_value x, const pe_expert_spec *s, pe_value *out,
                                 pe_error *err) {
  const pe_param_info *p = &g->param[s->weight];
  const pe_node *in = &g->node[x], *r = &g->node[s->route];
  if (r->op != PE_OP_ROUTE) return pe_fail(err, PE_EARG, "%s is not a route", r->name);
  int32_t chosen = r->args.route.chosen, last = in->dim[in->rank - 1];
  int64_t from = s->transposed ? p->rows : p->cols, to = s->transposed ? p->cols : p->rows;
  bool spread = in->rank == 2 && in->dim[0] == chosen;
  if (p->count != r->args.route.experts || from != last || (in->rank != 1 && !spread))
    return pe_fail(
        err, PE_ESHAPE,
        "tensor %s is [%d, %lld, %lld], expected %d matrices with %d inputs (the %s number)",
        p->name, p->count, (long long)p->rows, (long long)p->cols, r->args.route.experts, last,
        s->transposed ? "second" : "third");
  if (s->transposed && p->mat[0].quant.kind != PE_QUANT_NONE)
    return pe_fail(
        err, PE_ESHAPE,
        "tensor %s is stored as [in, out] and quantised: perigee reads only one of the two",
        p->name);
  pe_node n = pe_graph_draft(g, PE_OP_EXPERT_LINEAR, x, 0);
  n.inputs = 2, n.in[1] = s->route, n.mat = s->weight;
  n.rank = 2, n.dim[0] = chosen, n.dim[1] = (int32_t)to;
  n.args.expert = (pe_expert_args){last, (int32_t)to, p->count, chosen, spread, s->transposed};
  pe_status rc = pe_graph_sized_vector(g, s->bias, to * p->count, &n.vec[0], err);
  return rc ? rc : pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_norm(pe_graph *g, pe_value x, pe_param weight, const pe_norm_args *args,
                        pe_value *out, pe_error *err) {
  pe_node n = g->node[x];
  pe_norm_args a = *args;
  if (!a.width) a.width = n.dim[n.rank - 1];
  if (a.width < 1 || n.width % a.width)
    return pe_fail(err, PE_ESHAPE, "norm: the width %d does not divide the %d values of %s",
                   a.width, n.width, n.name);
  a.count = n.width / a.width;
  pe_node made = pe_graph_draft(g, PE_OP_NORM, x, 0);
  made.rank = n.rank;
  memcpy(made.dim, n.dim, sizeof n.dim);
  if (weight >= 0) {
    const pe_param_info *p = &g->param[weight];
    int64_t have = (int64_t)p->count * p->rows * p->cols;
    a.weights = (int32_t)(have == n.width ? n.width : a.width);
    pe_status rc = pe_graph_sized_vector(g, weight, a.weights, &made.vec[0], err);
    if (rc) return rc;
  }
  made.args.norm = a;
  return pe_graph_add(g, &made, out, err);
}

pe_status pe_graph_layer_norm(pe_graph *g, pe_value x, pe_param weight, pe_param bias, float eps,
                              pe_value *out, pe_error *err) {
  const pe_norm_args a = {.eps = eps, .scale = 1, .layer = 1};
  const pe_node *in = &g->node[x];
  const float *b = NULL;
  pe_status rc = pe_graph_sized_vector(g, bias, in->dim[in->rank - 1], &b, err);
  if (!rc) rc = pe_graph_norm(g, x, weight, &a, out, err);
  if (!rc) g->node[*out].vec[1] = b;
  return rc;
}

pe_status pe_graph_constant(pe_graph *g, pe_param p, pe_value *out, pe_error *err) {
  const pe_param_info *i = &g->param[p];
  int64_t values = (int64_t)i->count * i->rows * i->cols;
  if (values > MAX_WIDTH)
    return pe_fail(err, PE_ESHAPE, "tensor %s has %lld values, a constant can have %d", i->name,
                   (long long)values, MAX_WIDTH);
  pe_node n = pe_graph_draft(g, PE_NODE_CONSTANT, -1, (int32_t)values);
  n.rows = PE_EXTENT_CONST;
  pe_status rc = pe_graph_vector(g, p, &n.vec[0], err);
  return rc ? rc : pe_graph_add(g, &n, out, err);
}

static pe_node map_node(const pe_graph *g, pe_value shape_of, int steps) {
  const pe_node *s = &g->node[shape_of];
  pe_node n = pe_graph_draft(g, PE_OP_MAP, shape_of, 0);
  n.rank = s->rank;
  memcpy(n.dim, s->dim, sizeof s->dim);
  n.args.map = (pe_map_args){.width = s->width, .steps = steps};
  return n;
}

/* Input i of a map that works on lines of `width`. */
static void map_input(const pe_graph *g, pe_node *n, int i, pe_value v, int32_t repeat) {
  const pe_node *in = &g->node[v];
  n->in[i] = v, n->inputs = i + 1, n->args.map.inputs = i + 1;
  n->args.map.input[i].width = in->width;
  n->args.map.input[i].repeat = repeat;
  n->args.map.input[i].fixed = in->rows == PE_EXTENT_CONST;
  n->vec[i] = in->rows == PE_EXTENT_CONST ? in->vec[0] : NULL;
}

/* A map of constants is a constant, computed here by the same kernel that a step would run. */
static pe_status add_map(pe_graph *g, const pe_node *n, pe_value *out, pe_error *err) {
  if (n->rows != PE_EXTENT_CONST) return pe_graph_add(g, n, out, err);
  pe_node made = pe_graph_draft(g, PE_NODE_CONSTANT, -1, 0);
  float *v = pe_arena_calloc(&g->arena, (size_t)n->args.map.width, sizeof *v);
  if (!v) return pe_nomem(err, "constant");
  pe_host_map(&n->args.map, n->vec, v);
  made.rows = PE_EXTENT_CONST, made.rank = n->rank, made.vec[0] = v;
  memcpy(made.dim, n->dim, sizeof n->dim);
  return pe_graph_add(g, &made, out, err);
}

pe_status pe_graph_unary(pe_graph *g, pe_map_op op, pe_value x, pe_value *out, pe_error *err) {
  pe_node n = map_node(g, x, 1);
  map_input(g, &n, 0, x, 1);
  n.args.map.step[0] = (pe_map_step){op, 0, 0, 1};
  n.args.map.result = 1;
  return add_map(g, &n, out, err);
}

pe_status pe_graph_binary_number(pe_graph *g, pe_map_op op, pe_value a, float b, bool swapped,
                                 pe_value *out, pe_error *err) {
  pe_node n = map_node(g, a, 1);
  map_input(g, &n, 0, a, 1);
  n.args.map.step[0] = swapped ? (pe_map_step){op, pe_map_constant(0), 0, 1}
                               : (pe_map_step){op, 0, pe_map_constant(0), 1};
  n.args.map.value[0] = b, n.args.map.result = 1;
  return add_map(g, &n, out, err);
}

/* How the small operand repeats to match the large one: 1 not at all, r > 1 every value r times in
 * a row, 0 the whole operand over and over; -1: the shapes do not match. */
static int32_t repeats(const pe_node *large, const pe_node *small) {
  if (large->width == small->width) return 1;
  if (small->width == 1) return large->width;
  if (large->rank > small->rank && large->dim[0] == small->dim[0] && small->width == small->dim[0])
    return large->width / small->width;
  if (large->dim[large->rank - 1] == small->width) return 0;
  if (small->rank == large->rank && small->dim[small->rank - 1] == 1 &&
      large->width / large->dim[large->rank - 1] == small->width)
    return large->dim[large->rank - 1];
  return -1;
}

pe_status pe_graph_binary(pe_graph *g, pe_map_op op, pe_value a, pe_value b, pe_value *out,
                          pe_error *err) {
  const pe_node *x = &g->node[a], *z = &g->node[b];
  bool a_leads = x->width > z->width || (x->width == z->width && x->rows != PE_EXTENT_CONST);
  const pe_node *large = a_leads ? x : z, *small = a_leads ? z : x;
  int32_t repeat = repeats(large, small);
  if (repeat < 0 || (small->rows != PE_EXTENT_CONST && small->rows != large->rows)) {
    char left[64], right[64];
    pe_graph_shape_text(g, a, left, sizeof left), pe_graph_shape_text(g, b, right, sizeof right);
    return pe_fail(err, PE_ESHAPE, "%s %s and %s %s do not fit together", x->name, left, z->name,
                   right);
  }
  pe_node n = map_node(g, a_leads ? a : b, 1);
  map_input(g, &n, 0, a, a_leads ? 1 : repeat);
  map_input(g, &n, 1, b, a_leads ? repeat : 1);
  n.args.map.step[0] = (pe_map_step){op, 0, 1, 2};
  n.args.map.result = 2;
  return add_map(g, &n, out, err);
}

/* A view of a constant becomes a constant itself. */
static void see_through(const pe_graph *g, pe_value x, pe_node *n) {
  if (n->rows != PE_EXTENT_CONST) return;
  n->op = PE_NODE_CONSTANT, n->inputs = 0, n->in[0] = -1;
  n->vec[0] = g->node[x].vec[0] + n->offset;
  n->offset = 0;
}

/* The name of a value in errors: for a view, that of the value it shows, which the script knows. */
static const char *known_as(const pe_graph *g, pe_value v) {
  while (g->node[v].op == PE_NODE_VIEW) v = g->node[v].in[0];
  return g->node[v].name;
}

pe_status pe_graph_reshape(pe_graph *g, pe_value x, int rank, const int32_t *dim, pe_value *out,
                           pe_error *err) {
  pe_node n = pe_graph_draft(g, PE_NODE_VIEW, x, 0);
  int64_t width = 1;
  n.rank = rank;
  for (int i = 0; i < rank; i++) {
    n.dim[i] = dim[i];
    width = dim[i] < 1 || width > MAX_WIDTH ? -1 : width * dim[i];
    if (width < 0) break;
  }
  if (width != g->node[x].width)
    return pe_fail(err, PE_ESHAPE, "%s has %d values per row and cannot be reshaped to %lld",
                   known_as(g, x), g->node[x].width, (long long)width);
  see_through(g, x, &n);
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_slice(pe_graph *g, pe_value x, bool last, int32_t from, int32_t count,
                         pe_value *out, pe_error *err) {
  pe_node in = g->node[x];
  int axis = last ? in.rank - 1 : 0;
  if (from < 0 || count < 1 || from > in.dim[axis] - count)
    return pe_fail(err, PE_ESHAPE,
                   "%s: a slice of %d from position %d does not fit: the dimension is %d",
                   known_as(g, x), count, from + 1, in.dim[axis]);
  pe_node n = pe_graph_draft(g, axis ? PE_OP_SLICE : PE_NODE_VIEW, x, 0);
  n.rank = in.rank;
  memcpy(n.dim, in.dim, sizeof in.dim);
  n.dim[axis] = count;
  if (axis && n.rows == PE_EXTENT_CONST)
    return pe_fail(err, PE_EARG, "%s is a constant: only its first dimension can be sliced",
                   in.name);
  if (axis) {
    n.args.slice = (pe_slice_args){in.width / in.dim[axis], in.dim[axis], from, count};
  } else {
    n.offset = (int64_t)from * (in.width / in.dim[0]);
    see_through(g, x, &n);
  }
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_concat(pe_graph *g, const pe_value *list, int32_t count, pe_value *out,
                          pe_error *err) {
  if (count < 1 || count > PE_NODE_INPUTS)
    return pe_fail(err, PE_EARG, "concat takes between 1 and %d values, got %d", PE_NODE_INPUTS,
                   count);
  pe_node n = pe_graph_draft(g, PE_OP_CONCAT, list[0], 0);
  pe_concat_args a = {.inputs = count, .heads = 1};
  int32_t width = 0;
  for (int i = 0; i < count; i++) {
    const pe_node *x = &g->node[list[i]];
    int32_t heads = x->rank > 1 ? x->width / x->dim[x->rank - 1] : 1;
    if (heads > a.heads) a.heads = heads;
  }
  for (int i = 0; i < count; i++) {
    const pe_node *x = &g->node[list[i]];
    int32_t heads = x->rank > 1 ? x->width / x->dim[x->rank - 1] : 1;
    if (heads != a.heads && heads != 1)
      return pe_fail(err, PE_ESHAPE, "concat: %s has %d heads, expected %d or 1", x->name, heads,
                     a.heads);
    a.width[i] = x->dim[x->rank - 1], a.shared[i] = heads != a.heads;
    n.in[i] = list[i], width += a.width[i];
  }
  n.inputs = count, n.args.concat = a;
  n.rank = a.heads > 1 ? 2 : 1;
  n.dim[0] = a.heads > 1 ? a.heads : width, n.dim[1] = width;
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_output(pe_graph *g, pe_value x, pe_value *out, pe_error *err) {
  pe_node n = pe_graph_draft(g, PE_OP_OUTPUT, x, g->node[x].width);
  n.rows = PE_EXTENT_OUTPUT, n.args.output.width = n.dim[0];
  return pe_graph_add(g, &n, out, err);
}
