/* test_program.c - programs: what is rounded and when, which codes may overlap, and packs that are
 * shared by programs and returned. */
#include "builder.h"
#include "check.h"
#include "kernels/cpu/int16.h"
#include "runtime/device/program.h"

enum { WIDTH = 64, INNER = 128, HEADS = 2, TOKENS = 50, TAPS = 3, LAYERS = 2 };

typedef struct model {
  pe_weights *weights;
  pe_graph *graph;
  pe_plan *plan;
  pe_pool *pool;
} model;

static void model_close(model *m) {
  pe_pool_close(m->pool);
  pe_plan_close(m->plan);
  pe_graph_release(m->graph);
  pe_weights_release(m->weights);
  *m = (model){0};
}

/* ---- a transformer layer --------------------------------------------------------------------- */

static pe_value normed(builder *b, pe_value x) { return norm(b, x, "norm", 1e-5f); }

/* The result of n heads. */
static pe_value attended(builder *b, pe_value h, int n) {
  pe_attention_spec s = {.v = -1, .sinks = -1, .scale = 0.2f, .share = -1};
  int32_t layer;
  pe_value v = -1;
  s.q = heads(b, linear(b, h, "q"), n);
  s.k = heads(b, linear(b, h, "k"), n);
  s.v = heads(b, linear(b, h, "v"), n);
  if (!b->rc) b->rc = pe_graph_attention(b->g, &s, &v, &layer, b->err);
  if (!b->rc) b->rc = pe_graph_reshape(b->g, v, 1, (int32_t[]){WIDTH}, &v, b->err);
  return v;
}

static pe_value attention(builder *b, pe_value h) { return linear(b, attended(b, h, HEADS), "o"); }

static pe_value gated(builder *b, pe_value h) {
  pe_value gate = linear(b, h, "gate"), up = linear(b, h, "up");
  if (!b->rc) b->rc = pe_graph_unary(b->g, PE_MAP_SILU, gate, &gate, b->err);
  return both(b, PE_MAP_MUL, gate, up);
}

static pe_value mlp(builder *b, pe_value h) { return linear(b, gated(b, h), "down"); }

/* Two convolutions of one value: each has its own state, so neither waits for the other. */
static pe_value convolutions(builder *b, pe_value h) {
  pe_param w = weight(b, "conv");
  pe_value first = -1, second = -1;
  if (!b->rc) b->rc = pe_graph_conv(b->g, h, w, -1, PE_MAP_SILU, &first, b->err);
  if (!b->rc) b->rc = pe_graph_conv(b->g, h, w, -1, PE_MAP_SILU, &second, b->err);
  return both(b, PE_MAP_ADD, first, second);
}

static pe_status build(pe_graph *g, pe_error *err) {
  builder b = {g, err, PE_OK};
  pe_param table = weight(&b, "embed");
  pe_value x = -1;
  if (!b.rc) b.rc = pe_graph_embed(g, table, 1, &x, err);
  for (int layer = 0; layer < LAYERS; layer++) {
    x = both(&b, PE_MAP_ADD, x, convolutions(&b, normed(&b, x)));
    x = both(&b, PE_MAP_ADD, x, attention(&b, normed(&b, x)));
    x = both(&b, PE_MAP_ADD, x, mlp(&b, normed(&b, x)));
  }
  if (!b.rc) b.rc = pe_graph_output(g, x, &x, err);
  g->output = linear(&b, x, "head");
  return b.rc;
}

/* up: the weights of `up`; q4: all others. */
static pe_status model_open_as(model *m, pe_quant q4, pe_quant up, pe_error *err) {
  const pe_quant plain = {0};
  const pe_weight_shape shapes[] = {
      {"embed", 2, {TOKENS, WIDTH}, plain, PE_BF16}, {"norm", 1, {WIDTH}, plain, PE_F32},
      {"q", 2, {WIDTH, WIDTH}, q4, PE_BF16},         {"k", 2, {WIDTH, WIDTH}, q4, PE_BF16},
      {"v", 2, {WIDTH, WIDTH}, q4, PE_BF16},         {"o", 2, {WIDTH, WIDTH}, q4, PE_BF16},
      {"gate", 2, {INNER, WIDTH}, q4, PE_BF16},      {"up", 2, {INNER, WIDTH}, up, PE_BF16},
      {"down", 2, {WIDTH, INNER}, q4, PE_BF16},      {"head", 2, {TOKENS, WIDTH}, q4, PE_BF16},
      {"conv", 2, {WIDTH, TAPS}, plain, PE_F32},
  };
  *m = (model){0};
  pe_status rc = pe_weights_synthetic(shapes, sizeof shapes / sizeof *shapes, 7, &m->weights, err);
  if (!rc) rc = pe_graph_open(m->weights, &m->graph, err);
  if (!rc) rc = build(m->graph, err);
  if (!rc) rc = pe_plan_open(m->graph, NULL, &m->plan, err);
  if (!rc) rc = pe_pool_open(2, false, &m->pool, err);
  return rc;
}

static const pe_quant q32 = {PE_QUANT_AFFINE, 4, 32, PE_BF16};
static const pe_quant q64 = {PE_QUANT_AFFINE, 4, 64, PE_BF16};

static pe_status model_open(model *m, pe_error *err) { return model_open_as(m, q32, q32, err); }

static pe_program *program_of(const model *m, pe_precision precision) {
  pe_program *p = NULL;
  pe_error err = {0};
  CHECK_OK(pe_program_open(m->plan, precision, m->pool, NULL, &p, &err), err);
  return p;
}

/* ---- codes ----------------------------------------------------------------------------------- */

static void exact_is_the_plan(void) {
  model m;
  pe_error err = {0};
  CHECK_OK(model_open(&m, &err), err);
  pe_program *p = program_of(&m, PE_EXACT);
  CHECK_INT(p->count, (int64_t)m.plan->count);
  CHECK_INT(p->rounded_count, 0);
  for (int32_t i = 0; i < p->count; i++) {
    CHECK(p->code[i].instr == &m.plan->instr[i]);
    CHECK(p->code[i].round < 0 && !p->code[i].pack);
  }
  CHECK_INT((int64_t)pe_packs_bytes(m.weights), 0);
  pe_program_close(p);
  model_close(&m);
}

/* Rounded values are written before they are read, and no other value has their memory meanwhile.
 * A code that rounds is skipped without outputs if all its readers are. Returns the products. */
static int32_t check_rounds(const pe_program *p) {
  int32_t rounds = 0, products = 0;
  for (int32_t i = 0; i < p->count; i++) {
    const pe_code *c = &p->code[i];
    if (c->round >= 0) CHECK_INT(p->rounded[c->round].first, i);
    rounds += c->round >= 0, products += c->reads[0] >= 0;
    for (int k = 0; k < 2; k++)
      if (c->reads[k] >= 0)
        CHECK(p->rounded[c->reads[k]].from < i && i <= p->rounded[c->reads[k]].last);
  }
  CHECK_INT(rounds, p->rounded_count);
  for (int32_t i = 0; i < p->rounded_count; i++) {
    const pe_rounded *r = &p->rounded[i];
    bool skipped = true, last = false;
    for (int32_t k = 0; k < i; k++) {
      const pe_rounded *other = &p->rounded[k];
      CHECK(other->last < r->from || r->last < other->from || other->slot != r->slot);
    }
    for (int32_t k = 0; k < p->count; k++) {
      const pe_code *c = &p->code[k];
      if (c->reads[0] != i && c->reads[1] != i) continue;
      skipped = skipped && c->outputs_only, last = k == r->last;
      CHECK_INT(r->cols, c->instr->mat->cols);
      CHECK_INT(r->rows, c->instr->in[0].rows);
      CHECK(r->of.at == c->instr->in[0].at && r->of.offset == c->instr->in[0].offset);
    }
    CHECK(last);
    CHECK_INT(p->code[r->first].outputs_only, skipped);
  }
  return products;
}

/* Four inputs of seven products in a layer: that of q, k and v, of o, of gate and up, of down; and
 * that of the head. Layers use the same memory, so a value is not what was rounded there before. */
static void rounds_once(void) {
  model m;
  pe_error err = {0};
  CHECK_OK(model_open(&m, &err), err);
  pe_program *p = program_of(&m, PE_FAST);
  CHECK_INT(check_rounds(p), 6 * LAYERS + 1); /* gate and up are one */
  CHECK_INT(p->rounded_count, 4 * LAYERS + 1);
  CHECK_INT(p->slots, 2); /* gated reads one and writes the other */
  pe_program_close(p);
  model_close(&m);
}

/* Weights whose groups differ in size need a value rounded in two ways at a time. */
static void rounds_twice(void) {
  model m;
  pe_error err = {0};
  CHECK_OK(model_open_as(&m, q32, q64, &err), err);
  pe_program *p = program_of(&m, PE_FAST);
  CHECK_INT(check_rounds(p), 6 * LAYERS + 1);
  CHECK_INT(p->rounded_count, 5 * LAYERS + 1);
  CHECK_INT(p->slots, 3);
  for (int32_t i = 0; i < p->count; i++) {
    const pe_code *c = &p->code[i];
    if (c->reads[0] < 0) continue;
    CHECK_INT(p->rounded[c->reads[0]].act, 32);
    if (c->instr->op == PE_OP_GATED) CHECK_INT(p->rounded[c->reads[1]].act, 64);
    CHECK_INT(c->reads[1] >= 0, c->instr->op == PE_OP_GATED);
  }
  pe_program_close(p);
  model_close(&m);
}

/* The same with bf16 weights on tiles, which are not packed. A product of a packed and a stored
 * matrix is neither. */
static void arranges_once(void) {
  model m;
  pe_error err = {0};
  setenv("PERIGEE_ISA", "emulated", 1);
  for (int mixed = 0; mixed < 2; mixed++) {
    CHECK_OK(model_open_as(&m, (pe_quant){0}, mixed ? q32 : (pe_quant){0}, &err), err);
    pe_program *p = program_of(&m, PE_FAST);
    CHECK_INT(check_rounds(p), (6 - mixed) * LAYERS + 1);
    CHECK_INT(p->rounded_count, (4 - mixed) * LAYERS + 1);
    for (int32_t i = 0; i < p->count; i++) CHECK(!p->code[i].pack);
    for (int32_t i = 0; i < p->rounded_count; i++) CHECK(p->rounded[i].kind == PE_ROUND_TILES);
    pe_program_close(p);
    pe_program *exact = program_of(&m, PE_EXACT);
    CHECK_INT(exact->rounded_count, 0);
    pe_program_close(exact);
    model_close(&m);
  }
  unsetenv("PERIGEE_ISA");
}

/* ---- joining --------------------------------------------------------------------------------- */

/* Norms that are joined: what rounds their results finds what they read. */
static int32_t check_norms(const pe_program *p) {
  int32_t norms = 0;
  for (int32_t i = 0; i < p->count; i++) {
    const pe_code *c = &p->code[i];
    const pe_rounded *r = p->rounded;
    if (!c->joined || c->round >= 0) continue;
    while (r->norm != i) r++;
    CHECK_INT(c->instr->op, PE_OP_NORM);
    CHECK(pe_program_same(&c->instr->out, &r->of));
    for (int32_t k = i + 1; k <= r->last; k++)
      if (p->code[k].round < 0)
        CHECK(!pe_program_overlap(&p->code[k].instr->out, &c->instr->in[0]));
    norms++;
  }
  for (int32_t i = 0; i < p->rounded_count; i++)
    CHECK(p->rounded[i].norm < 0 || p->code[p->rounded[i].norm].joined);
  return norms;
}

/* Those of attention and of the MLP; that of the convolutions is read as it is. */
static void norms_of_products(void) {
  model m;
  pe_error err = {0};
  for (int two = 0; two < 2; two++) { /* gate and up round it differently: it stays a code */
    CHECK_OK(model_open_as(&m, q32, two ? q64 : q32, &err), err);
    pe_program *fast = program_of(&m, PE_FAST), *exact = program_of(&m, PE_EXACT);
    CHECK_INT(check_norms(fast), (2 - two) * LAYERS);
    CHECK_INT(check_norms(exact), 0);
    pe_program_close(fast), pe_program_close(exact);
    model_close(&m);
  }
}

/* The program of a model whose outputs are made of x, and somebody may tap a value. */
static pe_program *program_to(model *m, builder *b, pe_value x, pe_value value, bool tapped) {
  pe_error *err = b->err;
  if (!b->rc) b->rc = pe_graph_output(b->g, x, &x, err);
  b->g->output = linear(b, x, "head");
  CHECK_OK(b->rc, *err);
  pe_plan_close(m->plan);
  const pe_plan_options options = {.taps = &value, .tap_count = tapped};
  CHECK_OK(pe_plan_open(m->graph, &options, &m->plan, err), *err);
  return program_of(m, PE_FAST);
}

/* A norm that somebody else reads, too: the sum after the MLP, or who has tapped it. */
static void norms_of_others(void) {
  enum { PLAIN, SUM, TAP };
  for (int way = PLAIN; way <= TAP; way++) {
    model m;
    pe_error err = {0};
    CHECK_OK(model_open(&m, &err), err);
    builder b = {m.graph, &err, PE_OK};
    pe_value x = -1;
    b.rc = pe_graph_embed(b.g, weight(&b, "embed"), 1, &x, &err);
    const pe_value h = normed(&b, x);
    x = both(&b, PE_MAP_ADD, way == SUM ? h : x, mlp(&b, h));
    pe_program *p = program_to(&m, &b, x, h, way == TAP);
    CHECK_INT(check_norms(p), way == PLAIN);
    check_rounds(p);
    pe_program_close(p);
    model_close(&m);
  }
}

/* Codes that round their results; the ones that would do it do not run. */
static int32_t check_results(const pe_program *p) {
  int32_t results = 0;
  for (int32_t i = 0; i < p->count; i++) {
    const pe_code *c = &p->code[i];
    if (c->writes < 0) continue;
    const pe_rounded *r = &p->rounded[c->writes];
    CHECK(!c->joined && c->round < 0 && r->from == i && r->first > i);
    CHECK(p->code[r->first].joined && p->code[r->first].round == c->writes);
    CHECK(pe_program_same(&c->instr->out, &r->of));
    results++;
  }
  for (int32_t i = 0; i < p->rounded_count; i++) {
    const pe_rounded *r = &p->rounded[i];
    CHECK_INT(p->code[r->first].joined, r->from < r->first);
    CHECK(r->from == r->first || p->code[r->from].writes == i);
  }
  return results;
}

/* That of the MLP, and of attention with heads of whole units; not one that a sum reads, too, or
 * who has tapped it, or if another code stands between. */
static void results_rounded(void) {
  enum { PLAIN, SUM, TAP, MAP, WAYS };
  for (int way = 0; way < 2 * WAYS; way++) {
    const int kind = way % WAYS;
    model m;
    pe_error err = {0};
    CHECK_OK(model_open(&m, &err), err);
    builder b = {m.graph, &err, PE_OK};
    pe_value x = -1;
    b.rc = pe_graph_embed(b.g, weight(&b, "embed"), 1, &x, &err);
    const pe_value h = normed(&b, x);
    const pe_value v = way < WAYS ? gated(&b, h) : attended(&b, h, WIDTH / PE_INT16_UNIT);
    const char *next = way < WAYS ? "down" : "o";
    pe_value other = v;
    if ((kind == MAP || kind == SUM) && !b.rc)
      b.rc = pe_graph_unary(b.g, PE_MAP_TANH, v, &other, &err);
    pe_value y = linear(&b, other, next);
    if (kind == SUM) y = both(&b, PE_MAP_ADD, linear(&b, v, next), y);
    if (way >= WAYS) y = attention(&b, y); /* or outputs would be chosen before the product */
    pe_program *p = program_to(&m, &b, y, v, kind == TAP);
    CHECK_INT(check_results(p), kind == PLAIN);
    check_rounds(p);
    pe_program_close(p);
    model_close(&m);
  }
}

/* ---- hazards --------------------------------------------------------------------------------- */

/* What a code touches: floats of two areas, slots, caches and states, one byte each. */
enum { AREA = 4096, SLOTS = 2 * AREA, CACHES = SLOTS + 64, STATES = CACHES + 8, ALL = STATES + 8 };

typedef struct touched {
  uint8_t reads[ALL], writes[ALL];
} touched;

static void mark_place(uint8_t *set, const pe_place *p) {
  if (p->rows == PE_EXTENT_CONST) return;
  uint8_t *area = set + (p->rows == PE_EXTENT_OUTPUT ? AREA : 0);
  CHECK(p->at + p->step <= AREA);
  memset(area + p->at, 1, (size_t)p->step);
}

static void touch(const pe_program *p, const pe_code *c, touched *t) {
  memset(t, 0, sizeof *t);
  if (c->joined) return;
  const int32_t rounded[3] = {c->round, c->reads[0], c->reads[1]};
  for (int i = 0; i < 3; i++) {
    const int32_t norm = rounded[i] < 0 ? -1 : p->rounded[rounded[i]].norm;
    if (norm >= 0) mark_place(t->reads, &p->code[norm].instr->in[0]);
  }
  if (c->round >= 0) {
    mark_place(t->reads, &c->instr->in[0]);
    t->writes[SLOTS + p->rounded[c->round].slot] = 1;
    return;
  }
  for (int i = 0; i < PE_NODE_INPUTS; i++) mark_place(t->reads, &c->instr->in[i]);
  for (int i = 0; i < 2; i++)
    if (c->reads[i] >= 0) t->reads[SLOTS + p->rounded[c->reads[i]].slot] = 1;
  if (c->instr->cache >= 0) {
    uint8_t *set = c->instr->op == PE_OP_STORE ? t->writes : t->reads;
    set[CACHES + c->instr->cache] = 1;
  }
  if (c->instr->state_at >= 0) t->writes[STATES + c->instr->state_at / (WIDTH * (TAPS - 1))] = 1;
  if (c->instr->op != PE_OP_STORE) mark_place(t->writes, &c->instr->out);
  if (c->writes >= 0) t->writes[SLOTS + p->rounded[c->writes].slot] = 1;
}

static bool conflict(const touched *x, const touched *y) {
  for (int i = 0; i < ALL; i++)
    if ((x->writes[i] && (y->reads[i] || y->writes[i])) || (x->reads[i] && y->writes[i]))
      return true;
  return false;
}

/* A code waits for the last code with which it conflicts, and for no later one. */
static void check_hazards(const pe_program *p) {
  static touched x, y;
  for (int32_t i = 0; i < p->count; i++) {
    int32_t last = 0;
    touch(p, &p->code[i], &y);
    for (int32_t k = 0; k < i; k++) {
      touch(p, &p->code[k], &x);
      if (conflict(&x, &y)) last = k + 1;
    }
    CHECK_INT(p->code[i].after, last);
  }
}

static void waits_for_what_it_needs(void) {
  model m;
  pe_error err = {0};
  CHECK_OK(model_open(&m, &err), err);
  for (int fast = 0; fast < 2; fast++) {
    pe_program *p = program_of(&m, fast ? PE_FAST : PE_EXACT);
    check_hazards(p);
    int32_t beside = 0; /* codes that need not wait for the one before */
    for (int32_t i = 1; i < p->count; i++) beside += p->code[i].after < i;
    CHECK(beside >= 2);
    pe_program_close(p);
  }
  model_close(&m);
}

/* ---- packs ----------------------------------------------------------------------------------- */

static void packs_are_shared(void) {
  model m;
  pe_error err = {0};
  CHECK_OK(model_open(&m, &err), err);
  pe_program *a = program_of(&m, PE_FAST);
  const uint64_t bytes = pe_packs_bytes(m.weights);
  CHECK(bytes > 0);
  pe_program *b = program_of(&m, PE_FAST);
  CHECK_INT((int64_t)pe_packs_bytes(m.weights), (int64_t)bytes);
  for (int32_t i = 0; i < a->count; i++) CHECK(a->code[i].pack == b->code[i].pack);
  pe_program_close(a);
  CHECK_INT((int64_t)pe_packs_bytes(m.weights), (int64_t)bytes);
  pe_program_close(b);
  CHECK_INT((int64_t)pe_packs_bytes(m.weights), 0);
  model_close(&m);
}

/* The rows of a pack are those of its matrix. */
static void check_pack(const pe_pack *p, const pe_quant_matrix *m) {
  float got[INNER], want[INNER];
  CHECK(p->rows == m->rows && p->cols == m->cols);
  CHECK_INT((int64_t)((uintptr_t)p->data % PE_PACK_ALIGN), 0);
  for (int64_t r = 0; r < m->rows; r++) {
    pe_pack_row(p, r, got);
    pe_quant_row(m, r, 0, m->cols, want);
    CHECK(!memcmp(got, want, (size_t)m->cols * sizeof *got));
  }
}

/* Every product has the pack of its own weights, and packs do not overlap. */
static void packs_hold_their_weights(void) {
  model m;
  pe_error err = {0};
  const pe_pack *seen[64];
  int n = 0;
  CHECK_OK(model_open_as(&m, q32, q64, &err), err);
  pe_program *p = program_of(&m, PE_FAST);
  for (int32_t i = 0; i < p->count; i++) {
    const pe_code *c = &p->code[i];
    if (c->round >= 0) continue;
    if (c->pack) check_pack(seen[n++] = c->pack, c->instr->mat);
    if (c->pack2) check_pack(seen[n++] = c->pack2, c->instr->mat2);
    CHECK_INT(c->pack2 != NULL, c->instr->op == PE_OP_GATED);
  }
  CHECK_INT(n, 7 * LAYERS + 1);
  uint64_t bytes = 0;
  for (int i = 0; i < n; i++) {
    const uint64_t size = (uint64_t)pe_pack_panels(seen[i]) * seen[i]->panel_bytes;
    bool first = true;
    for (int k = 0; k < n; k++) {
      first = first && (k >= i || seen[k] != seen[i]);
      CHECK(seen[k]->data <= seen[i]->data || seen[k]->data >= seen[i]->data + size);
    }
    bytes += first ? size : 0; /* layers share their weights */
  }
  CHECK_INT((int64_t)pe_packs_bytes(m.weights), (int64_t)bytes);
  pe_program_close(p);
  model_close(&m);
}

/* Arrays of matrices, as experts have them, are one pack; parts of a matrix are not the matrix. */
static void packs_of_arrays(void) {
  enum { COUNT = 4, ROWS = INNER / COUNT };
  model m;
  pe_error err = {0};
  pe_param up;
  const pe_pack *pack[4] = {NULL}, *again = NULL;
  pe_quant_matrix part[COUNT];
  CHECK_OK(model_open(&m, &err), err);
  CHECK_OK(pe_graph_param(m.graph, "up", &up, &err), err);
  const pe_quant_matrix *whole = m.graph->param[up].mat;
  for (int i = 0; i < COUNT; i++) {
    part[i] = *whole, part[i].rows = ROWS;
    part[i].data += (uint64_t)(i * ROWS) * whole->row_bytes;
    part[i].scales += (uint64_t)(i * ROWS) * whole->scale_bytes;
    part[i].biases += (uint64_t)(i * ROWS) * whole->scale_bytes;
  }
  CHECK_OK(pe_packs_take(m.weights, whole, 1, m.pool, &pack[0], &err), err);
  CHECK_OK(pe_packs_take(m.weights, part, COUNT, m.pool, &pack[1], &err), err);
  CHECK_OK(pe_packs_take(m.weights, part, 1, m.pool, &pack[2], &err), err);
  CHECK_OK(pe_packs_take(m.weights, part + 1, COUNT - 1, m.pool, &pack[3], &err), err);
  const uint64_t one = pe_pack_bytes(part), all = pe_pack_bytes(whole);
  CHECK_INT((int64_t)pe_packs_bytes(m.weights), (int64_t)(all + 2 * COUNT * one));
  CHECK_OK(pe_packs_take(m.weights, part, COUNT, m.pool, &again, &err), err);
  CHECK(again == pack[1]);
  check_pack(pack[0], whole), check_pack(pack[2], &part[0]);
  for (int i = 0; i < COUNT; i++) check_pack(&pack[1][i], &part[i]);
  for (int i = 1; i < COUNT; i++) check_pack(&pack[3][i - 1], &part[i]);
  pe_packs_give(m.weights, pack[0]), pe_packs_give(m.weights, NULL);
  pe_packs_give(m.weights, again);
  CHECK_INT((int64_t)pe_packs_bytes(m.weights), (int64_t)(2 * COUNT * one));
  for (int i = 0; i < COUNT; i++) check_pack(&pack[1][i], &part[i]);
  CHECK_OK(pe_packs_take(m.weights, whole, 1, m.pool, &pack[0], &err), err);
  check_pack(pack[0], whole);
  for (int i = 3; i >= 0; i--) pe_packs_give(m.weights, pack[i]);
  CHECK_INT((int64_t)pe_packs_bytes(m.weights), 0);
  model_close(&m);
}

/* Packs that do not fit into what is left of a buffer, and one that is larger than any. */
static void packs_of_many_bytes(void) {
  enum { COLS = 1 << 15, MOST = 2200 };
  static const int64_t rows[] = {1280, 1280, 16, MOST, 16};
  const pe_quant q8 = {PE_QUANT_AFFINE, 8, 128, PE_F16};
  const uint64_t row_bytes = COLS, scale_bytes = COLS / 128 * 2;
  uint8_t *data = calloc(MOST, row_bytes), *scales = calloc(MOST, scale_bytes);
  const pe_pack *pack[5] = {NULL};
  model m;
  pe_error err = {0};
  CHECK_OK(model_open(&m, &err), err);
  for (int i = 0; i < 5; i++) {
    pe_quant_matrix w = {.quant = q8, .rows = rows[i], .cols = COLS, .global = (float)i};
    w.row_bytes = row_bytes, w.scale_bytes = scale_bytes;
    w.data = data, w.scales = w.biases = scales;
    CHECK_OK(pe_packs_take(m.weights, &w, 1, m.pool, &pack[i], &err), err);
    for (int k = 0; k < i; k++) {
      const uint64_t bytes = (uint64_t)pe_pack_panels(pack[k]) * pack[k]->panel_bytes;
      CHECK(pack[i]->data < pack[k]->data || pack[i]->data >= pack[k]->data + bytes);
    }
  }
  for (int i = 0; i < 5; i++) pe_packs_give(m.weights, pack[i]);
  CHECK_INT((int64_t)pe_packs_bytes(m.weights), 0);
  free(data), free(scales);
  model_close(&m);
}

typedef struct heard {
  int times;
  uint64_t done, total;
} heard;

static void hear(void *ctx, uint64_t done, uint64_t total) {
  heard *h = ctx;
  CHECK(done > h->done && done <= total && (!h->times || total == h->total));
  *h = (heard){h->times + 1, done, total};
}

/* Who opens a program hears of every product that is packed, and of nothing in exact. */
static void packing_is_told(void) {
  model m;
  heard h = {0};
  const pe_progress progress = {hear, &h};
  pe_error err = {0};
  pe_program *p = NULL;
  CHECK_OK(model_open(&m, &err), err);
  CHECK_OK(pe_program_open(m.plan, PE_FAST, m.pool, &progress, &p, &err), err);
  int packed = 0;
  uint64_t bytes = 0; /* some products share their weights */
  for (int32_t i = 0; p && i < p->count; i++) {
    const pe_code *c = &p->code[i];
    packed += c->pack != NULL;
    if (c->pack) bytes += pe_pack_bytes(c->instr->mat);
    if (c->pack2) bytes += pe_pack_bytes(c->instr->mat2);
  }
  CHECK_INT(h.times, packed);
  CHECK_INT((int64_t)h.done, (int64_t)bytes);
  CHECK_INT((int64_t)h.total, (int64_t)h.done);
  pe_program_close(p);
  h = (heard){0};
  CHECK_OK(pe_program_open(m.plan, PE_EXACT, m.pool, &progress, &p, &err), err);
  CHECK_INT(h.times, 0);
  pe_program_close(p);
  model_close(&m);
}

/* Every allocation of opening a program fails once: an error, and no pack stays. */
static void without_memory(void) {
  pe_status rc = PE_ENOMEM;
  int64_t n = 0;
  while (rc) {
    model m;
    pe_error err = {0};
    pe_program *p = NULL;
    CHECK_OK(model_open(&m, &err), err);
    pe_alloc_fail_at(++n);
    heard h = {0};
    const pe_progress progress = {hear, &h};
    rc = pe_program_open(m.plan, PE_FAST, m.pool, &progress, &p, &err);
    pe_alloc_fail_at(0);
    CHECK_INT((int64_t)h.done, (int64_t)h.total); /* a bar is removed after a failure also */
    CHECK(rc == PE_OK || rc == PE_ENOMEM);
    CHECK_INT(p != NULL, rc == PE_OK);
    pe_program_close(p);
    CHECK_INT((int64_t)pe_packs_bytes(m.weights), 0);
    model_close(&m);
  }
  CHECK(n > 16);
}

static const check_test tests[] = {
    {"exact is the plan", exact_is_the_plan},
    {"a value is rounded once for all products that read it", rounds_once},
    {"a value is rounded for every size of groups", rounds_twice},
    {"values for bf16 weights are arranged once", arranges_once},
    {"norms that are joined", norms_of_products},
    {"norms that others read", norms_of_others},
    {"results that are rounded", results_rounded},
    {"a code waits for what it needs and nothing else", waits_for_what_it_needs},
    {"programs share packs", packs_are_shared},
    {"packs hold their weights", packs_hold_their_weights},
    {"packs of arrays", packs_of_arrays},
    {"packs of many bytes", packs_of_many_bytes},
    {"packing is told", packing_is_told},
    {"any allocation may fail", without_memory},
};
CHECK_MAIN("program", tests)
