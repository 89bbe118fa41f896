/* builder.h - graphs of small models, built by hand.
 *
 * The functions do nothing once something has failed, so that a model is one expression and rc is
 * looked at once, at its end. */
#ifndef PE_TEST_BUILDER_H
#define PE_TEST_BUILDER_H

#include "runtime/graph/graph.h"

typedef struct builder {
  pe_graph *g;
  pe_error *err;
  pe_status rc;
} builder;

static inline pe_param weight(builder *b, const char *name) {
  pe_param p = -1;
  if (!b->rc) b->rc = pe_graph_param(b->g, name, &p, b->err);
  return p;
}

static inline pe_value linear(builder *b, pe_value x, const char *name) {
  const pe_param w = weight(b, name);
  pe_value v = -1;
  if (!b->rc) b->rc = pe_graph_linear(b->g, x, w, -1, &v, b->err);
  return v;
}

static inline pe_value norm(builder *b, pe_value x, const char *name, float eps) {
  const pe_param w = weight(b, name);
  const pe_norm_args args = {.eps = eps, .scale = 1};
  pe_value v = -1;
  if (!b->rc) b->rc = pe_graph_norm(b->g, x, w, &args, &v, b->err);
  return v;
}

static inline pe_value both(builder *b, pe_map_op op, pe_value x, pe_value y) {
  pe_value v = -1;
  if (!b->rc) b->rc = pe_graph_binary(b->g, op, x, y, &v, b->err);
  return v;
}

static inline pe_value heads(builder *b, pe_value x, int32_t count) {
  pe_value v = -1;
  if (b->rc) return v;
  const int32_t dims[] = {count, pe_graph_node(b->g, x)->width / count};
  b->rc = pe_graph_reshape(b->g, x, 2, dims, &v, b->err);
  return v;
}

#endif
