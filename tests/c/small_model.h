/* small_model.h - a one-layer model made by hand, for tests that need a plan but no file. */
#ifndef SMALL_MODEL_H
#define SMALL_MODEL_H

#include "check.h"
#include "runtime/graph/plan.h"
#include "runtime/pool.h"

enum { SMALL_VOCAB = 64, SMALL_WIDTH = 32, SMALL_HEADS = 2 };

typedef struct small_model {
  pe_weights *weights;
  pe_graph *graph;
  pe_plan *plan;
  pe_pool *pool;
} small_model;

static inline pe_value small_linear(pe_graph *g, pe_value x, const char *name) {
  pe_error err = {0};
  pe_param p = -1;
  pe_value v = -1;
  CHECK_OK(pe_graph_param(g, name, &p, &err), err);
  CHECK_OK(pe_graph_linear(g, x, p, -1, &v, &err), err);
  return v;
}

static inline void small_build(pe_graph *g) {
  pe_error err = {0};
  pe_param table = -1;
  pe_value x = -1, q, k, v, a = -1, y = -1;
  int32_t layer, heads[2] = {SMALL_HEADS, SMALL_WIDTH / SMALL_HEADS};
  CHECK_OK(pe_graph_param(g, "embed", &table, &err), err);
  CHECK_OK(pe_graph_embed(g, table, 1, &x, &err), err);
  q = small_linear(g, x, "q"), k = small_linear(g, x, "k"), v = small_linear(g, x, "v");
  pe_value *all[] = {&q, &k, &v};
  for (int i = 0; i < 3; i++) CHECK_OK(pe_graph_reshape(g, *all[i], 2, heads, all[i], &err), err);
  pe_attention_spec s = {.q = q,
                         .k = k,
                         .v = v,
                         .sinks = -1,
                         .value = SMALL_WIDTH / SMALL_HEADS,
                         .scale = 0.25f,
                         .share = -1};
  CHECK_OK(pe_graph_attention(g, &s, &a, &layer, &err), err);
  CHECK_OK(pe_graph_reshape(g, a, 1, (int32_t[]){SMALL_WIDTH}, &a, &err), err);
  a = small_linear(g, a, "o");
  CHECK_OK(pe_graph_binary(g, PE_MAP_ADD, x, a, &y, &err), err);
  CHECK_OK(pe_graph_output(g, y, &y, &err), err);
  y = small_linear(g, y, "head");
  CHECK_OK(pe_graph_binary_number(g, PE_MAP_MUL, y, 3, false, &y, &err), err);
  g->output = y;
}

static inline small_model small_open(int threads) {
  small_model m = {0};
  pe_error err = {0};
  pe_weight_shape list[6];
  const char *names[] = {"embed", "q", "k", "v", "o", "head"};
  for (int i = 0; i < 6; i++)
    list[i] = (pe_weight_shape){.name = names[i],
                                .rank = 2,
                                .shape = {i % 5 ? SMALL_WIDTH : SMALL_VOCAB, SMALL_WIDTH},
                                .dtype = PE_F32};
  CHECK_OK(pe_weights_synthetic(list, 6, 5, &m.weights, &err), err);
  CHECK_OK(pe_graph_open(m.weights, &m.graph, &err), err);
  small_build(m.graph);
  CHECK_OK(pe_plan_open(m.graph, NULL, &m.plan, &err), err);
  CHECK_OK(pe_pool_open(threads, false, &m.pool, &err), err);
  return m;
}

static inline void small_close(small_model *m) {
  pe_pool_close(m->pool), pe_plan_close(m->plan), pe_graph_release(m->graph),
      pe_weights_release(m->weights);
}

#endif
