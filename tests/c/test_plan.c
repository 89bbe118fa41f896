/* The planner: which ops are fused, which are computed for outputs only, that neither changes a
 * bit, and where values are placed. */
#include "check.h"
#include "runtime/cache/seq.h"
#include "runtime/device/device.h"
#include "runtime/device/profile.h"

enum { WIDTH = 64, INNER = 96, TOKENS = 100, LOGITS = 120, ROWS = 5, EXPERTS = 4, CHOSEN = 2 };
/* Products that are so wide that two threads round up to four rows for themselves, but not five. */
enum { WIDE = 448 };

static const pe_quant kinds[] = {
    {PE_QUANT_NONE, 0, 0, PE_F32},    {PE_QUANT_AFFINE, 4, 32, PE_BF16},
    {PE_QUANT_AFFINE, 3, 64, PE_F16}, {PE_QUANT_AFFINE, 8, 32, PE_F32},
    {PE_QUANT_MXFP4, 4, 32, PE_U8},   {PE_QUANT_MXFP8, 8, 32, PE_U8},
    {PE_QUANT_NVFP4, 4, 16, PE_U8},   {PE_QUANT_Q4_0, 0, 0, PE_F32},
    {PE_QUANT_Q8_0, 0, 0, PE_F32},    {PE_QUANT_IQ4_NL, 0, 0, PE_F32},
};

typedef struct model {
  pe_weights *weights;
  pe_graph *graph;
} model;

static void model_close(model *m) {
  pe_graph_release(m->graph), pe_weights_release(m->weights);
  *m = (model){0};
}

/* A gated MLP with biases, and a head that is wider than the embedding. */
static bool model_open(model *m, pe_quant quant) {
  const pe_weight_shape shapes[] = {
      {"embed", 2, {TOKENS, WIDTH}, {0}, PE_BF16},
      {"norm", 1, {WIDTH}, {0}, PE_F32},
      {"gate", 2, {INNER, WIDTH}, quant, PE_BF16},
      {"gate.bias", 1, {INNER}, {0}, PE_F32},
      {"up", 2, {INNER, WIDTH}, quant, PE_BF16},
      {"up.bias", 1, {INNER}, {0}, PE_F32},
      {"down", 2, {WIDTH, INNER}, {0}, PE_F16},
      {"head", 2, {LOGITS, WIDTH}, {0}, PE_F32},
      {"o", 2, {WIDTH, WIDTH}, quant, PE_BF16},
      {"wide.gate", 2, {WIDE, WIDTH}, quant, PE_BF16},
      {"wide.up", 2, {WIDE, WIDTH}, quant, PE_BF16},
      {"wide.down", 2, {WIDTH, WIDE}, quant, PE_BF16},
      {"router", 2, {EXPERTS, WIDTH}, {0}, PE_F32},
      {"experts.gate", 3, {EXPERTS, INNER, WIDTH}, quant, PE_BF16},
      {"experts.gate.bias", 2, {EXPERTS, INNER}, {0}, PE_F32},
      {"experts.up", 3, {EXPERTS, INNER, WIDTH}, quant, PE_BF16},
      {"experts.up.bias", 2, {EXPERTS, INNER}, {0}, PE_F32},
      {"experts.down", 3, {EXPERTS, WIDTH, INNER}, {0}, PE_F16},
  };
  pe_error err = {0};
  *m = (model){0};
  CHECK_OK(pe_weights_synthetic(shapes, sizeof shapes / sizeof *shapes, 7, &m->weights, &err), err);
  if (m->weights) CHECK_OK(pe_graph_open(m->weights, &m->graph, &err), err);
  return m->graph;
}

static pe_param param(model *m, const char *name) {
  pe_param p = -1;
  pe_error err = {0};
  CHECK_OK(pe_graph_param(m->graph, name, &p, &err), err);
  return p;
}

static pe_value linear(model *m, pe_value x, const char *name, const char *bias) {
  pe_value v = -1;
  pe_error err = {0};
  CHECK_OK(pe_graph_linear(m->graph, x, param(m, name), bias ? param(m, bias) : -1, &v, &err), err);
  return v;
}

static pe_value unary(model *m, pe_map_op op, pe_value x) {
  pe_value v = -1;
  pe_error err = {0};
  CHECK_OK(pe_graph_unary(m->graph, op, x, &v, &err), err);
  return v;
}

static pe_value binary(model *m, pe_map_op op, pe_value x, pe_value y) {
  pe_value v = -1;
  pe_error err = {0};
  CHECK_OK(pe_graph_binary(m->graph, op, x, y, &v, &err), err);
  return v;
}

static pe_value embedding(model *m) {
  pe_value v = -1;
  pe_error err = {0};
  CHECK_OK(pe_graph_embed(m->graph, param(m, "embed"), 1, &v, &err), err);
  return v;
}

static pe_value normalised(model *m, pe_value x) {
  pe_value v = -1;
  pe_error err = {0};
  CHECK_OK(pe_graph_norm(m->graph, x, param(m, "norm"), &(pe_norm_args){.eps = 1e-5f, .scale = 1},
                         &v, &err),
           err);
  return v;
}

static void finish(model *m, pe_value x) {
  pe_value out = -1;
  pe_error err = {0};
  CHECK_OK(pe_graph_output(m->graph, x, &out, &err), err);
  m->graph->output = linear(m, out, "head", NULL);
}

/* x + down(act(gate(norm x)) * up(norm x)); swapped: up before gate. */
static void gated_mlp(model *m, pe_map_op act, bool swapped) {
  pe_value x = embedding(m), h = normalised(m, x);
  pe_value gate = unary(m, act, linear(m, h, "gate", "gate.bias")),
           up = linear(m, h, "up", "up.bias");
  pe_value both = swapped ? binary(m, PE_MAP_MUL, up, gate) : binary(m, PE_MAP_MUL, gate, up);
  finish(m, binary(m, PE_MAP_ADD, x, linear(m, both, "down", NULL)));
}

static pe_value expert_linear(model *m, pe_value x, pe_value route, const char *name,
                              const char *bias) {
  pe_value v = -1;
  pe_error err = {0};
  pe_expert_spec s = {.route = route, .weight = param(m, name), .bias = bias ? param(m, bias) : -1};
  CHECK_OK(pe_graph_expert_linear(m->graph, x, &s, &v, &err), err);
  return v;
}

/* The same with experts. */
static void gated_experts(model *m, bool biased) {
  pe_value x = embedding(m), h = normalised(m, x), route = -1, sum = -1;
  pe_error err = {0};
  pe_route_args args = {.kind = PE_ROUTE_SOFTMAX, .chosen = CHOSEN, .scale = 1};
  CHECK_OK(pe_graph_route(m->graph, linear(m, h, "router", NULL), -1, -1, &args, &route, &err),
           err);
  pe_value gate = expert_linear(m, h, route, "experts.gate", biased ? "experts.gate.bias" : NULL);
  pe_value up = expert_linear(m, h, route, "experts.up", biased ? "experts.up.bias" : NULL);
  pe_value both = binary(m, PE_MAP_MUL, unary(m, PE_MAP_SILU, gate), up);
  CHECK_OK(pe_graph_expert_sum(m->graph, expert_linear(m, both, route, "experts.down", NULL), route,
                               &sum, &err),
           err);
  finish(m, binary(m, PE_MAP_ADD, x, sum));
}

static pe_plan *plan_of(const model *m, bool apart) {
  pe_plan *p = NULL;
  pe_error err = {0};
  CHECK_OK(pe_plan_open(m->graph, &(pe_plan_options){.apart = apart}, &p, &err), err);
  return p;
}

/* Computes the logits of a few tokens: of the last `outputs`, in one step, or in steps of `chunk`
 * rows of which only the last has outputs. */
typedef struct way {
  bool apart;
  pe_precision precision;
  int32_t outputs, chunk;
} way;

static void run(const model *m, way w, float *out) {
  static const int32_t token[ROWS] = {3, 99, 0, 41, 41};
  pe_plan *p = plan_of(m, w.apart);
  pe_pool *pool = NULL;
  pe_kv *kv = NULL;
  pe_recur *recur = NULL;
  pe_device *e = NULL;
  pe_error err = {0};
  pe_run r;
  pe_seq s = {0};
  CHECK_OK(pe_pool_open(2, false, &pool, &err), err);
  CHECK_OK(pe_kv_open(m->graph, &(pe_kv_options){.tokens = 32, .sequences = 1}, &kv, &err), err);
  CHECK_OK(pe_recur_open(m->graph, 1, &recur, &err), err);
  CHECK_OK(pe_device_open(
               &(pe_device_options){
                   .plan = p, .pool = pool, .kv = kv, .recur = recur, .precision = w.precision},
               &e, &err),
           err);
  CHECK_OK(pe_seq_open(&s, kv, recur, &err), err);
  CHECK_OK(pe_seq_append(&s, token, ROWS, &err), err);
  for (int32_t at = 0; at < ROWS; at += w.chunk) {
    const int32_t rows = at + w.chunk < ROWS ? w.chunk : ROWS - at;
    CHECK_OK(pe_seq_run(&s, rows, at + rows < ROWS ? 0 : w.outputs, &r, &err), err);
    CHECK_OK(pe_device_step(e, &r, 1, &err), err);
    pe_seq_advance(&s, rows);
  }
  for (int32_t i = 0; i < w.outputs; i++)
    memcpy(out + i * LOGITS, pe_device_logits(e, i), LOGITS * sizeof *out);
  pe_seq_close(&s);
  pe_device_close(e), pe_recur_close(recur), pe_kv_close(kv), pe_pool_close(pool), pe_plan_close(p);
}

/* Fused or not, in both precisions; `fast` is close to `exact`, also on emulated tiles. */
static void check_same_bits(const model *m) {
  static const char *const isas[] = {NULL, NULL, "emulated"};
  static float fused[ROWS * LOGITS], apart[ROWS * LOGITS], exact[ROWS * LOGITS];
  for (int i = 0; i < 3; i++) {
    const pe_precision precision = i ? PE_FAST : PE_EXACT;
    double error = 0, size = 0;
    if (isas[i]) setenv("PERIGEE_ISA", isas[i], 1);
    run(m, (way){false, precision, ROWS, ROWS}, fused);
    run(m, (way){true, precision, ROWS, ROWS}, apart);
    unsetenv("PERIGEE_ISA");
    CHECK_INT(memcmp(fused, apart, sizeof fused), 0);
    if (!i) memcpy(exact, fused, sizeof exact);
    for (int k = 0; k < ROWS * LOGITS; k++) {
      CHECK(isfinite(fused[k]));
      error += fabs((double)fused[k] - exact[k]), size += fabs(exact[k]);
    }
    CHECK(error <= 2e-4 * size);
  }
}

static int count(const pe_plan *p, pe_op op) {
  int n = 0;
  for (size_t i = 0; i < p->count; i++) n += p->instr[i].op == op;
  return n;
}

static const pe_instr *find(const pe_plan *p, pe_op op) {
  for (size_t i = 0; i < p->count; i++)
    if (p->instr[i].op == op) return &p->instr[i];
  return NULL;
}

static void test_gated(void) {
  static const pe_map_op acts[] = {PE_MAP_SILU, PE_MAP_GELU_TANH, PE_MAP_GELU, PE_MAP_SIGMOID};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    model m;
    if (!model_open(&m, kinds[k])) continue;
    gated_mlp(&m, acts[k % 4], k % 2);
    pe_plan *p = plan_of(&m, false), *apart = plan_of(&m, true);
    CHECK_INT(count(p, PE_OP_GATED), 1);
    CHECK_INT(count(p, PE_OP_MAP), 0);
    CHECK_INT(count(p, PE_OP_LINEAR), 2);
    CHECK_INT(count(apart, PE_OP_GATED), 0);
    CHECK_INT(count(apart, PE_OP_LINEAR), 4);
    CHECK_INT(count(apart, PE_OP_MAP), 3);
    const pe_instr *gated = find(p, PE_OP_GATED);
    CHECK_INT(gated ? gated->fused_count : -1, 3);
    CHECK(p->row_floats + p->output_floats < p->unshared_floats);
    pe_plan_close(p), pe_plan_close(apart);
    check_same_bits(&m);
    model_close(&m);
  }
}

static void test_gated_experts(void) {
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    model m;
    if (!model_open(&m, kinds[k])) continue;
    gated_experts(&m, k % 2);
    pe_plan *p = plan_of(&m, false);
    CHECK_INT(count(p, PE_OP_EXPERT_GATED), 1);
    CHECK_INT(count(p, PE_OP_EXPERT_LINEAR), 1);
    CHECK_INT(count(p, PE_OP_MAP), 1); /* x + the sum */
    pe_plan_close(p);
    check_same_bits(&m);
    model_close(&m);
  }
}

/* A tapped value is never fused away. */
static void test_needed_values_stay(void) {
  model m;
  pe_error err = {0};
  if (!model_open(&m, kinds[0])) return;
  gated_mlp(&m, PE_MAP_SILU, false);
  for (size_t v = 0; v < m.graph->node_count; v++) {
    const pe_node *n = &m.graph->node[v];
    if (n->op == PE_NODE_CONSTANT || n->op == PE_OP_STORE) continue;
    pe_value tap = (pe_value)v;
    pe_plan *p = NULL;
    CHECK_OK(pe_plan_open(m.graph, &(pe_plan_options){.taps = &tap, .tap_count = 1}, &p, &err),
             err);
    int found = 0;
    for (size_t i = 0; i < p->count; i++) {
      const bool picks = p->instr[i].op == PE_OP_OUTPUT && n->op != PE_OP_OUTPUT;
      found += p->instr[i].value == tap && !picks;
      for (int32_t f = 0; f < p->instr[i].fused_count; f++) CHECK(p->instr[i].fused[f] != tap);
    }
    CHECK_INT(found, 1);
    pe_plan_close(p);
  }
  model_close(&m);
}

static bool overlap(const pe_place *a, const pe_place *b) {
  return a->rows == b->rows && a->at < b->at + b->step && b->at < a->at + a->step;
}

static void check_place(const pe_instr *x, int64_t at, int32_t width) {
  CHECK(x && x->out.at == at && x->out.step == width);
}

/* The places that plan.h draws; and no instruction writes where it reads. */
static void test_places(void) {
  model m;
  if (!model_open(&m, kinds[0])) return;
  gated_mlp(&m, PE_MAP_SILU, false);
  pe_plan *p = plan_of(&m, false);
  CHECK_INT(p->count, 6);
  check_place(find(p, PE_OP_EMBED), 0, WIDTH);
  check_place(find(p, PE_OP_OUTPUT), 0, WIDTH);
  check_place(find(p, PE_OP_NORM), 64, WIDTH);
  check_place(find(p, PE_OP_GATED), 128, INNER);
  check_place(find(p, PE_OP_LINEAR), 64, WIDTH); /* the norm is dead */
  CHECK_INT(p->logits.at, 224);
  CHECK_INT(p->row_floats, 64);
  CHECK_INT(p->output_floats, 352);
  for (const pe_instr *x = p->instr; x < p->instr + p->count; x++)
    for (int i = 0; i < PE_NODE_INPUTS; i++)
      if (x->in[i].rows != PE_EXTENT_CONST) CHECK(!overlap(&x->out, &x->in[i]));
  pe_plan_close(p);
  model_close(&m);
}

/* A tree of maps that needs more registers than exist: fused as far as possible, with the same
 * result. */
static void test_wide_maps(void) {
  model m;
  if (!model_open(&m, kinds[0])) return;
  pe_value x = embedding(&m), level[16];
  for (int i = 0; i < 16; i++) level[i] = unary(&m, i % 2 ? PE_MAP_TANH : PE_MAP_SIGMOID, x);
  for (int n = 16; n > 1; n /= 2)
    for (int i = 0; i < n / 2; i++)
      level[i] = binary(&m, i % 2 ? PE_MAP_MUL : PE_MAP_ADD, level[2 * i], level[2 * i + 1]);
  finish(&m, level[0]);
  check_same_bits(&m);
  model_close(&m);
}

static void test_sizes(void) {
  model m;
  pe_error err = {0};
  if (!model_open(&m, kinds[0])) return;
  pe_plan *p = NULL;
  CHECK_FAILS(pe_plan_open(m.graph, NULL, &p, &err), PE_EARG, err, "no output");
  gated_mlp(&m, PE_MAP_SILU, false);
  p = plan_of(&m, false);
  CHECK_INT(p->vocabulary, LOGITS);
  CHECK_INT(p->tokens, TOKENS);
  pe_plan_close(p);
  model_close(&m);
}

/* A norm of heads, its rotation and its store are one instruction; so are those of a query. */
static void test_normalised_heads(void) {
  model m;
  pe_error err = {0};
  if (!model_open(&m, kinds[0])) return;
  pe_value x = embedding(&m), h = -1, table = -1, k = -1, q = -1, a = -1;
  int32_t cache = -1;
  static const float frequencies[8] = {1, 0.5f, 0.25f, 0.1f, 0.05f, 0.02f, 0.01f, 0.005f};
  const pe_rope_table_args args = {.turns = 8, .variants = 1, .scale = 1};
  const pe_norm_args norm = {.eps = 1e-5f, .scale = 1};
  CHECK_OK(pe_graph_rope_table(m.graph, frequencies, NULL, &args, &table, &err), err);
  CHECK_OK(pe_graph_reshape(m.graph, x, 2, (int32_t[]){4, WIDTH / 4}, &h, &err), err);
  CHECK_OK(pe_graph_norm(m.graph, h, -1, &norm, &q, &err), err);
  CHECK_OK(pe_graph_norm(m.graph, h, -1, &norm, &k, &err), err);
  CHECK_OK(pe_graph_rope(m.graph, q, table, false, 0, &q, &err), err);
  CHECK_OK(pe_graph_rope(m.graph, k, table, false, 0, &k, &err), err);
  const pe_attention_spec s = {
      .q = q, .k = k, .v = h, .sinks = -1, .value = WIDTH / 4, .scale = 0.2f, .share = -1};
  CHECK_OK(pe_graph_attention(m.graph, &s, &a, &cache, &err), err);
  CHECK_OK(pe_graph_reshape(m.graph, a, 1, (int32_t[]){WIDTH}, &a, &err), err);
  finish(&m, a);
  pe_plan *p = plan_of(&m, false), *apart = plan_of(&m, true);
  CHECK_INT(count(p, PE_OP_NORM), 0);
  CHECK_INT(count(p, PE_OP_ROPE), 1);
  CHECK_INT(count(apart, PE_OP_NORM), 2);
  CHECK_INT(count(apart, PE_OP_ROPE), 2);
  CHECK_INT(find(p, PE_OP_STORE)->fused_count, 2);
  pe_plan_close(p), pe_plan_close(apart);
  check_same_bits(&m);
  model_close(&m);
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* A layer with attention, without projections of q, k and v. Returns the value after attention. */
static pe_value layer_of(model *m, const char *gate_name, const char *up, const char *down) {
  pe_error err = {0};
  pe_value x = embedding(m), h = normalised(m, x), a = -1;
  int32_t cache = -1;
  CHECK_OK(pe_graph_reshape(m->graph, h, 2, (int32_t[]){2, WIDTH / 2}, &h, &err), err);
  const pe_attention_spec s = {
      .q = h, .k = h, .v = h, .sinks = -1, .value = WIDTH / 2, .scale = 0.2f, .share = -1};
  CHECK_OK(pe_graph_attention(m->graph, &s, &a, &cache, &err), err);
  CHECK_OK(pe_graph_reshape(m->graph, a, 1, (int32_t[]){WIDTH}, &a, &err), err);
  const pe_value y = binary(m, PE_MAP_ADD, x, linear(m, a, "o", NULL)), z = normalised(m, y);
  const pe_value gate = unary(m, PE_MAP_SILU, linear(m, z, gate_name, NULL));
  const pe_value both = binary(m, PE_MAP_MUL, gate, linear(m, z, up, NULL));
  finish(m, normalised(m, binary(m, PE_MAP_ADD, y, linear(m, both, down, NULL))));
  return y;
}

static pe_value layer(model *m) { return layer_of(m, "gate", "up", "down"); }

/* What follows attention has a line per output; a step without outputs only fills the cache. */
static void test_outputs(void) {
  model m;
  if (!model_open(&m, kinds[1])) return;
  layer(&m);
  pe_plan *p = plan_of(&m, false), *apart = plan_of(&m, true);
  bool below = false;
  CHECK_INT(count(p, PE_OP_OUTPUT), 2); /* of attention and of x */
  CHECK_INT(count(apart, PE_OP_OUTPUT), 1);
  for (size_t i = 0; i < p->count; i++) {
    const pe_instr *x = &p->instr[i];
    below = below || x->op == PE_OP_OUTPUT;
    CHECK_INT(x->rows, below ? PE_EXTENT_OUTPUT : PE_EXTENT_ALL);
    CHECK_INT(x->outputs_only, x->op == PE_OP_ATTENTION);
    for (int k = 0; below && k < PE_NODE_INPUTS; k++)
      CHECK(x->op == PE_OP_OUTPUT || x->in[k].rows != PE_EXTENT_ALL);
  }
  CHECK_INT(find(p, PE_OP_GATED)->rows, PE_EXTENT_OUTPUT);
  pe_plan_close(p), pe_plan_close(apart);
  model_close(&m);
}

/* A tapped value has all its lines, and only what follows it is computed for outputs. */
static void test_tapped_outputs(void) {
  model m;
  pe_plan *p = NULL;
  pe_error err = {0};
  if (!model_open(&m, kinds[1])) return;
  const pe_value y = layer(&m);
  CHECK_OK(pe_plan_open(m.graph, &(pe_plan_options){.taps = &y, .tap_count = 1}, &p, &err), err);
  CHECK_INT(count(p, PE_OP_OUTPUT), 1);
  CHECK_INT(p->tap[0].rows, PE_EXTENT_ALL);
  CHECK_INT(find(p, PE_OP_LINEAR)->rows, PE_EXTENT_ALL); /* o */
  CHECK_INT(find(p, PE_OP_GATED)->rows, PE_EXTENT_OUTPUT);
  for (size_t i = 0; i < p->count; i++) CHECK(!p->instr[i].outputs_only);
  pe_plan_close(p);
  model_close(&m);
}

static void check_outputs(const model *m, pe_precision precision) {
  static float all[ROWS * LOGITS], some[ROWS * LOGITS];
  run(m, (way){true, precision, ROWS, ROWS}, all);
  for (int32_t outputs = 1; outputs <= ROWS; outputs++) {
    run(m, (way){false, precision, outputs, ROWS}, some);
    CHECK(!memcmp(some, all + (ROWS - outputs) * LOGITS, (size_t)outputs * LOGITS * sizeof *some));
  }
  for (int32_t chunk = 1; chunk < ROWS; chunk++) {
    run(m, (way){false, precision, 1, chunk}, some);
    CHECK(!memcmp(some, all + (ROWS - 1) * LOGITS, LOGITS * sizeof *some));
  }
}

/* Wide products of three values, one after the other: one of two threads computes two of them. */
static void three_inputs(model *m) {
  const pe_value x = embedding(m), y = unary(m, PE_MAP_SILU, x), z = unary(m, PE_MAP_TANH, x);
  const pe_value a = linear(m, normalised(m, x), "wide.gate", NULL);
  const pe_value b = linear(m, normalised(m, y), "wide.up", NULL);
  const pe_value c = linear(m, normalised(m, z), "wide.gate", NULL);
  const pe_value sum = binary(m, PE_MAP_ADD, binary(m, PE_MAP_MUL, a, b), c);
  finish(m, linear(m, sum, "wide.down", NULL));
}

static void test_outputs_same_bits(void) {
  for (int i = 0; i < 3; i++) {
    model m;
    if (!model_open(&m, kinds[1])) return;
    if (i == 2)
      three_inputs(&m);
    else if (i == 1)
      layer_of(&m, "wide.gate", "wide.up", "wide.down");
    else
      layer(&m);
    check_outputs(&m, PE_EXACT), check_outputs(&m, PE_FAST);
    model_close(&m);
  }
}

/* What a step of `fast` costs, by job: one that fills the cache only, and one with outputs. The
 * norm before the MLP is computed where it is rounded. */
static void check_profile(bool wide) {
  static const int32_t token[ROWS] = {3, 99, 0, 41, 41};
  pe_pool *pool = NULL;
  pe_kv *kv = NULL;
  pe_recur *recur = NULL;
  pe_device *e = NULL;
  pe_seq s = {0};
  pe_run r;
  pe_error err = {0};
  model m;
  if (!model_open(&m, kinds[1])) return;
  if (wide)
    layer_of(&m, "wide.gate", "wide.up", "wide.down");
  else
    layer(&m);
  pe_plan *p = plan_of(&m, false);
  CHECK_OK(pe_pool_open(2, false, &pool, &err), err);
  CHECK_OK(pe_kv_open(m.graph, &(pe_kv_options){.tokens = 32, .sequences = 1}, &kv, &err), err);
  CHECK_OK(pe_recur_open(m.graph, 1, &recur, &err), err);
  CHECK_OK(pe_device_open(
               &(pe_device_options){
                   .plan = p, .pool = pool, .kv = kv, .recur = recur, .precision = PE_FAST},
               &e, &err),
           err);
  CHECK_OK(pe_seq_open(&s, kv, recur, &err), err);
  CHECK_OK(pe_seq_append(&s, token, ROWS, &err), err);
  CHECK(!pe_device_profiled(e));
  CHECK_OK(pe_device_profile(e, &err), err);
  for (int32_t step = 0; step < 2; step++) {
    const int32_t rows = step ? ROWS - 3 : 3, outputs = step ? 1 : 0;
    CHECK_OK(pe_seq_run(&s, rows, outputs, &r, &err), err);
    CHECK_OK(pe_device_step(e, &r, 1, &err), err);
    pe_seq_advance(&s, rows);
    CHECK_OK(pe_device_profile(e, &err), err); /* is on: the counts stay */
    pe_profile *seen = pe_device_profiled(e);
    int32_t rounds = 0, packed = 0, parts = 0, norms = 0;
    CHECK(seen->steps == 1 && seen->threads == 2);
    CHECK(seen->wall_ns > 0 && seen->waits > 0 && seen->waits < seen->count);
    for (int32_t i = 0; i < seen->count; i++) {
      const pe_profile_job *j = &seen->job[i];
      const bool product = j->instr->op == PE_OP_LINEAR || j->instr->op == PE_OP_GATED;
      const int32_t lines = j->instr->rows == PE_EXTENT_OUTPUT ? outputs : rows;
      rounds += j->rounds, packed += j->packed, parts += j->part;
      norms += j->instr->op == PE_OP_NORM && j->cost.values > 0;
      CHECK(!j->packed || product);
      CHECK_INT(j->part,
                j->instr->op == PE_OP_ATTENTION && i > 0 && seen->job[i - 1].instr == j->instr);
      if (product && !j->rounds)
        CHECK_NEAR(j->cost.macs,
                   (double)lines * (double)j->instr->mat->rows * (double)j->instr->mat->cols *
                       (j->instr->op == PE_OP_GATED ? 2 : 1),
                   0);
      if (j->instr->op == PE_OP_ATTENTION) CHECK_INT(j->cost.macs > 0, outputs > 0 && !j->part);
      if (j->instr->op == PE_OP_EMBED) CHECK_NEAR(j->cost.weights, rows * 2.0 * WIDTH, 0);
      CHECK(j->busy_ns + j->wait_ns <= 2 * seen->wall_ns);
    }
    CHECK_INT(rounds, 2 + wide); /* of attention, for gate and up, and for a down that is packed */
    CHECK_INT(packed, 2 + wide);
    CHECK_INT(norms, outputs ? 2 : 1);
    CHECK_INT(parts, 1);
    pe_profile_reset(seen);
  }
  pe_seq_close(&s);
  pe_device_close(e), pe_recur_close(recur), pe_kv_close(kv), pe_pool_close(pool), pe_plan_close(p);
  model_close(&m);
}

static void test_profile(void) { check_profile(false), check_profile(true); }

static const check_test tests[] = {
    {"gated products", test_gated},
    {"gated experts", test_gated_experts},
    {"tapped values stay", test_needed_values_stay},
    {"places of values", test_places},
    {"maps with too many registers", test_wide_maps},
    {"sizes", test_sizes},
    {"norms of heads", test_normalised_heads},
    {"what follows attention is for outputs", test_outputs},
    {"tapped values have all rows", test_tapped_outputs},
    {"outputs have the same bits", test_outputs_same_bits},
    {"costs of steps", test_profile},
};
CHECK_MAIN("plan", tests)
