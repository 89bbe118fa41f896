/* graph_tower.c - the ops and params of graph.h that vision towers need. */
#include <string.h>

#include "runtime/graph/graph.h"

/* ---- params ---------------------------------------------------------------------------------- */

enum { MAX_RANK = 5 }; /* the convolution of a patch of several frames */

/* Copies all values in the new order. Models are loaded on the loop thread, so the place of a value
 * in the old order is counted up, not divided out. */
static void copy_permuted(uint8_t *to, const uint8_t *from, uint64_t size, int rank,
                          const int64_t *dim, const int *order) {
  uint64_t stride[MAX_RANK], step[MAX_RANK]; /* in bytes, of the old and of the new dimensions */
  int64_t index[MAX_RANK] = {0}, last = dim[order[rank - 1]];
  uint64_t bytes = size;
  for (int i = rank - 1; i >= 0; i--) stride[i] = bytes, bytes *= (uint64_t)dim[i];
  for (int i = 0; i < rank; i++) step[i] = stride[order[i]];
  for (const uint8_t *end = to + bytes; to < end;) {
    const uint8_t *at = from;
    for (int i = 0; i < rank - 1; i++) at += (uint64_t)index[i] * step[i];
    for (int64_t i = 0; i < last; i++, to += size, at += step[rank - 1]) memcpy(to, at, size);
    for (int i = rank - 2; i >= 0 && ++index[i] == dim[order[i]]; i--) index[i] = 0;
  }
}

static bool keeps_order(int rank, const int *order) {
  for (int i = 0; i < rank; i++)
    if (order[i] != i) return false;
  return true;
}

/* A matrix whose rows follow each other without gaps, as [rows, cols]; PE_QUANT_NONE. */
static pe_quant_matrix plain_matrix(pe_dtype dtype, int64_t rows, int64_t cols,
                                    const uint8_t *data) {
  pe_quant_matrix m = {.dtype = dtype, .rows = rows, .cols = cols, .global = 1, .data = data};
  m.row_bytes = (uint64_t)cols * pe_dtype_size(dtype);
  return m;
}

static pe_status check_permute(const pe_param_info *p, int rank, const int64_t *dim,
                               const int *order, pe_error *err) {
  int64_t values = 1, have = (int64_t)p->count * p->rows * p->cols;
  unsigned seen = 0;
  for (int i = 0; i < rank && i < MAX_RANK; i++) {
    if (order[i] >= 0 && order[i] < rank) seen |= 1u << order[i];
    values = dim[i] < 1 || values > have ? 0 : values * dim[i];
  }
  if (rank < 2 || rank > MAX_RANK || seen != (1u << rank) - 1)
    return pe_fail(err, PE_EARG, "%s: an order of 2 to %d dimensions must name each of them once",
                   p->name, MAX_RANK);
  if (values != have)
    return pe_fail(err, PE_ESHAPE, "tensor %s has %lld values and cannot be seen as %lld", p->name,
                   (long long)have, (long long)values);
  return PE_OK;
}

/* All values of p in the file's order: where they are, or decoded to a new float32 array. */
static pe_status flat_values(pe_graph *g, pe_param param, pe_dtype *dtype, const uint8_t **out,
                             pe_error *err) {
  const pe_param_info *p = &g->param[param];
  const pe_quant_matrix *m = &p->mat[0];
  uint64_t size = pe_dtype_size(m->dtype), matrix = (uint64_t)p->rows * m->row_bytes;
  bool whole = m->quant.kind == PE_QUANT_NONE && m->row_bytes == (uint64_t)p->cols * size;
  for (int32_t i = 1; i < p->count; i++) whole = whole && p->mat[i].data == m->data + i * matrix;
  if (whole) {
    *dtype = m->dtype, *out = m->data;
    return PE_OK;
  }
  const float *v;
  pe_status rc = pe_graph_vector(g, param, &v, err);
  if (!rc) *dtype = PE_F32, *out = (const uint8_t *)(const void *)v;
  return rc;
}

pe_status pe_graph_permute(pe_graph *g, pe_param param, int rank, const int64_t *dim,
                           const int *order, pe_param *out, pe_error *err) {
  pe_param_info p = g->param[param];
  pe_status rc = check_permute(&p, rank, dim, order, err);
  if (rc) return rc;
  const int64_t values = (int64_t)p.count * p.rows * p.cols, rows = dim[order[0]],
                cols = values / rows;
  bool same = keeps_order(rank, order);
  if (same && p.count == 1 && p.rows == rows) { /* also if it is quantised */
    *out = param;
    return PE_OK;
  }
  pe_dtype dtype = PE_F32;
  const uint8_t *from = NULL;
  if ((rc = flat_values(g, param, &dtype, &from, err))) return rc;
  if (!same) {
    const uint64_t size = pe_dtype_size(dtype);
    uint8_t *to = pe_arena_calloc(&g->arena, (uint64_t)values, size);
    if (!to) return pe_nomem(err, p.name);
    copy_permuted(to, from, size, rank, dim, order);
    from = to;
  }
  if ((rc = pe_graph_add_param(g, p.name, p.weight, 1, out, err))) return rc;
  pe_param_info *made = &g->param[*out];
  made->rows = rows, made->cols = cols;
  made->mat[0] = plain_matrix(dtype, rows, cols, from);
  return PE_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

pe_status pe_graph_patches(pe_graph *g, int32_t width, pe_value *out, pe_error *err) {
  pe_node n = pe_graph_draft(g, PE_OP_PATCHES, -1, width);
  n.args.patches.width = width;
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_lookup(pe_graph *g, pe_param table, pe_value *out, pe_error *err) {
  const pe_param_info *p = &g->param[table];
  if (p->count != 1)
    return pe_fail(err, PE_ESHAPE, "tensor %s is %d matrices, a table must be one", p->name,
                   p->count);
  pe_node n = pe_graph_draft(g, PE_OP_LOOKUP, -1, (int32_t)p->cols);
  n.mat = table;
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_merge(pe_graph *g, pe_value x, int32_t count, bool mean, pe_value *out,
                         pe_error *err) {
  const int32_t width = g->node[x].width;
  if (count < 1 || count > INT32_MAX / width)
    return pe_fail(err, PE_ESHAPE, "merge: %d rows of %s, which has %d values, cannot become one",
                   count, g->node[x].name, width);
  pe_node n = pe_graph_draft(g, PE_OP_MERGE, x, mean ? width : count * width);
  n.rows = PE_EXTENT_OUTPUT;
  n.args.merge = (pe_merge_args){width, count, mean};
  return pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_region_attention(pe_graph *g, const pe_value qkv[3], int32_t regions,
                                    float scale, pe_value *out, pe_error *err) {
  const pe_node *n[3];
  for (int i = 0; i < 3; i++) {
    n[i] = pe_graph_node(g, qkv[i]);
    if (!n[i] || n[i]->rank != 2)
      return pe_fail(err, PE_ESHAPE, "attention: %s must have two dimensions, heads and width",
                     i == 0   ? "queries"
                     : i == 1 ? "keys"
                              : "values");
  }
  const int32_t heads = n[0]->dim[0], key_heads = n[1]->dim[0];
  if (heads % key_heads || n[0]->dim[1] != n[1]->dim[1] || n[2]->dim[0] != key_heads)
    return pe_fail(err, PE_ESHAPE,
                   "attention: shapes do not fit: queries [%d, %d], keys [%d, %d], values [%d, %d]",
                   heads, n[0]->dim[1], key_heads, n[1]->dim[1], n[2]->dim[0], n[2]->dim[1]);
  if (regions < 0 || regions >= PE_REGIONS)
    return pe_fail(err, PE_EARG, "attention: there are %d kinds of regions, got %d", PE_REGIONS,
                   regions);
  pe_node made = pe_graph_draft(g, PE_OP_REGION_ATTENTION, qkv[0], 0);
  made.rank = 2, made.dim[0] = heads, made.dim[1] = n[2]->dim[1], made.inputs = 3;
  memcpy(made.in, qkv, 3 * sizeof *qkv);
  made.args.region_attention =
      (pe_region_attention_args){heads, key_heads, n[0]->dim[1], n[2]->dim[1], regions, scale};
  return pe_graph_add(g, &made, out, err);
}
