/* little.h - a small model built by hand, for tests of caches: any of full, windowed and latent
 * attention and a recurrence, in this order, with random weights; with caches, and a function that
 * feeds a sequence. */
#ifndef TEST_LITTLE_H
#define TEST_LITTLE_H

#include "check.h"
#include "runtime/cache/seq.h"
#include "runtime/device/device.h"

enum { DENSE = 1, WINDOWED = 2, LATENT = 4, RECURRENT = 8, EVERYTHING = 15, KINDS = 6 };
enum { VOCABULARY = 29, WIDTH = 24, WINDOW = 5 };
static const int little_kinds[KINDS] = {DENSE,     WINDOWED,         LATENT,
                                        RECURRENT, DENSE | WINDOWED, EVERYTHING};

typedef struct little {
  pe_weights *weights;
  pe_graph *graph;
  pe_plan *plan;
  pe_pool *pool;
  pe_kv *kv;
  pe_recur *recur;
  pe_device *device;
} little;

static inline pe_status little_linear(pe_graph *g, pe_value x, const char *name, int32_t heads,
                                      pe_value *out, pe_error *err) {
  pe_param p = -1;
  pe_status rc = pe_graph_param(g, name, &p, err);
  if (!rc) rc = pe_graph_linear(g, x, p, -1, out, err);
  if (!rc)
    rc = pe_graph_binary_number(g, PE_MAP_MUL, *out, 12, false, out,
                                err); /* the weights are small */
  if (!rc && heads)
    rc = pe_graph_reshape(g, *out, 2, (int32_t[]){heads, g->node[*out].width / heads}, out, err);
  return rc;
}

static inline pe_status little_attention(pe_graph *g, int kind, pe_value x, pe_value *out,
                                         pe_error *err) {
  pe_attention_spec s = {
      .v = -1, .sinks = -1, .window = kind == WINDOWED ? WINDOW : 0, .scale = 0.7f, .share = -1};
  int32_t layer, wide = kind == LATENT ? 1 : 2;
  pe_status rc = little_linear(g, x, kind == LATENT ? "q.latent" : "q", 4, &s.q, err);
  if (!rc) rc = little_linear(g, x, "k", wide, &s.k, err);
  if (kind == LATENT)
    s.value = 9;
  else if (!rc)
    rc = little_linear(g, x, "v", wide, &s.v, err);
  if (!rc) rc = pe_graph_attention(g, &s, out, &layer, err);
  if (!rc) rc = pe_graph_reshape(g, *out, 1, &g->node[*out].width, out, err);
  return rc ? rc : little_linear(g, *out, kind == LATENT ? "o.latent" : "o", 0, out, err);
}

static inline pe_status little_recurrence(pe_graph *g, pe_value x, pe_value *out, pe_error *err) {
  pe_value in[5], mixed;
  pe_param taps = -1;
  pe_status rc = pe_graph_param(g, "taps", &taps, err);
  if (!rc) rc = pe_graph_conv(g, x, taps, -1, PE_MAP_SILU, &mixed, err);
  if (!rc) rc = pe_graph_binary(g, PE_MAP_ADD, mixed, x, &mixed, err);
  const char *const name[] = {"q", "k", "v", "gate", "gate"};
  for (int i = 0; !rc && i < 5; i++)
    rc = little_linear(g, mixed, name[i], i < 3 ? 2 : 0, &in[i], err);
  if (!rc) rc = pe_graph_slice(g, in[0], true, 3, 7, &in[0], err);
  for (int i = 0; !rc && i < 2; i++)
    rc = pe_graph_norm(g, in[i], -1, &(pe_norm_args){.width = 7, .eps = 1e-6f, .scale = 1, .l2 = 1},
                       &in[i], err);
  for (int i = 3; !rc && i < 5; i++) rc = pe_graph_unary(g, PE_MAP_SIGMOID, in[i], &in[i], err);
  if (!rc) rc = pe_graph_delta(g, in, out, err);
  if (!rc) rc = pe_graph_reshape(g, *out, 1, &g->node[*out].width, out, err);
  return rc ? rc : little_linear(g, *out, "o.recurrent", 0, out, err);
}

static inline pe_status little_graph(pe_graph *g, int kinds, pe_error *err) {
  pe_param table = -1;
  pe_value x = -1, y = -1;
  pe_status rc = pe_graph_param(g, "table", &table, err);
  if (!rc) rc = pe_graph_embed(g, table, 30, &x, err);
  for (int kind = 1; !rc && kind < EVERYTHING; kind *= 2) {
    if (!(kinds & kind)) continue;
    for (int twice = 0; !rc && twice < 2; twice++) {
      rc = pe_graph_norm(g, x, -1, &(pe_norm_args){.eps = 1e-6f, .scale = 1}, &y, err);
      if (!rc)
        rc = kind == RECURRENT ? little_recurrence(g, y, &y, err)
                               : little_attention(g, kind, y, &y, err);
      if (!rc) rc = pe_graph_binary(g, PE_MAP_ADD, x, y, &x, err);
    }
  }
  if (!rc) rc = pe_graph_output(g, x, &x, err);
  if (!rc) rc = pe_graph_linear(g, x, table, -1, &g->output, err);
  return rc;
}

static inline void little_close(little *l) {
  pe_device_close(l->device), pe_recur_close(l->recur), pe_kv_close(l->kv), pe_plan_close(l->plan),
      pe_pool_close(l->pool);
  pe_graph_release(l->graph), pe_weights_release(l->weights);
  *l = (little){0};
}

static inline pe_status little_weights(uint64_t seed, pe_weights **out, pe_error *err) {
  const struct {
    const char *name;
    int64_t rows, cols;
  } list[] = {{"table", VOCABULARY, WIDTH},
              {"q", 28, WIDTH},
              {"k", 14, WIDTH},
              {"v", 10, WIDTH},
              {"o", WIDTH, 20},
              {"q.latent", 56, WIDTH},
              {"o.latent", WIDTH, 36},
              {"o.recurrent", WIDTH, 10},
              {"taps", WIDTH, 3},
              {"gate", 2, WIDTH}};
  pe_weight_shape shape[10];
  for (int i = 0; i < 10; i++)
    shape[i] = (pe_weight_shape){
        .name = list[i].name, .rank = 2, .shape = {list[i].rows, list[i].cols}, .dtype = PE_F32};
  return pe_weights_synthetic(shape, 10, seed, out, err);
}

static inline pe_status little_open_on(little *l, int kinds, const pe_kv_options *o,
                                       const pe_backend *backend, pe_error *err) {
  *l = (little){0};
  pe_status rc = little_weights(7, &l->weights, err);
  if (!rc) rc = pe_graph_open(l->weights, &l->graph, err);
  if (!rc) rc = little_graph(l->graph, kinds, err);
  if (!rc) rc = pe_plan_open(l->graph, NULL, &l->plan, err);
  if (!rc) rc = pe_pool_open(1, false, &l->pool, err);
  if (!rc) rc = pe_kv_open(l->graph, o, &l->kv, err);
  if (!rc) rc = pe_recur_open(l->graph, o->sequences, &l->recur, err);
  if (!rc)
    rc = pe_device_open(
        &(pe_device_options){
            .backend = backend, .plan = l->plan, .pool = l->pool, .kv = l->kv, .recur = l->recur},
        &l->device, err);
  if (rc) little_close(l);
  return rc;
}
/* The same on the default backend. */
static inline pe_status little_open(little *l, int kinds, const pe_kv_options *o, pe_error *err) {
  return little_open_on(l, kinds, o, NULL, err);
}

/* Computes the next count tokens of s, which are in `token`; out: count * VOCABULARY logits. */
static inline pe_status little_run(little *l, pe_seq *s, int32_t count, float *out, pe_error *err) {
  pe_run run;
  pe_status rc = pe_seq_run(s, count, count, &run, err);
  if (!rc) rc = pe_device_step(l->device, &run, 1, err);
  if (rc) return rc;
  pe_seq_advance(s, count);
  for (int32_t i = 0; out && i < count; i++)
    memcpy(out + i * VOCABULARY, pe_device_logits(l->device, i), VOCABULARY * sizeof *out);
  return PE_OK;
}

static inline pe_status little_feed(little *l, pe_seq *s, const int32_t *ids, int32_t count,
                                    float *out, pe_error *err) {
  pe_status rc = pe_seq_append(s, ids, count, err);
  return rc ? rc : little_run(l, s, count, out, err);
}

static inline int64_t little_used(const little *l) {
  int64_t used = 0;
  for (int32_t g = 0; g < l->graph->group_count; g++) used += l->kv->used[g];
  return used;
}

#endif
