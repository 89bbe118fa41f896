/* test_device.c - a small model built by hand, from the graph to a step: any chunking gives the
 * same bits, errors at limits leave everything usable, and every allocation may fail. */
#include "builder.h"
#include "check.h"
#include "fake_backend.h"
#include "runtime/cache/seq.h"

enum { TOKENS = 40, TAPS = 1 };
static const pe_backend *backend; /* of the machines that are opened */
static const float EPS = 0.004f;

typedef struct machine {
  pe_weights *weights;
  pe_graph *graph;
  pe_plan *plan;
  pe_kv *kv;
  pe_recur *recur;
  pe_pool *pool;
  pe_device *device;
  pe_value tap;
} machine;

static void machine_close(machine *m) {
  pe_device_close(m->device);
  pe_pool_close(m->pool);
  pe_recur_close(m->recur);
  pe_kv_close(m->kv);
  pe_plan_close(m->plan);
  pe_graph_release(m->graph);
  pe_weights_release(m->weights);
  *m = (machine){0};
}

/* ---- the model: a short convolution and an attention of tests/golden/lfm2 -------------------- */

static pe_value third(builder *b, pe_value x, int32_t which) {
  pe_value all = heads(b, x, 3), v = -1;
  if (!b->rc) b->rc = pe_graph_slice(b->g, all, false, which, 1, &v, b->err);
  return v;
}

static pe_value convolution(builder *b, pe_value h) {
  pe_value in = linear(b, h, "model.layers.0.conv.in_proj.weight"), v = -1;
  pe_value x = both(b, PE_MAP_MUL, third(b, in, 0), third(b, in, 2));
  pe_param w = weight(b, "model.layers.0.conv.conv.weight");
  if (!b->rc) b->rc = pe_graph_conv(b->g, x, w, -1, 0, &v, b->err);
  return linear(b, both(b, PE_MAP_MUL, third(b, in, 1), v), "model.layers.0.conv.out_proj.weight");
}

static pe_value rotated(builder *b, pe_value x, pe_value table) {
  pe_value v = -1;
  if (!b->rc) b->rc = pe_graph_rope(b->g, x, table, false, 0, &v, b->err);
  return v;
}

static pe_value attention(builder *b, pe_value h) {
  static const float frequencies[8] = {1, 0.5f, 0.25f, 0.1f, 0.05f, 0.01f, 0.005f, 0.001f};
  const float *kept = NULL;
  pe_value table = -1, v = -1;
  pe_rope_table_args args = {.turns = 8, .variants = 1, .scale = 1};
  if (!b->rc) b->rc = pe_graph_numbers(b->g, frequencies, 8, &kept, b->err);
  if (!b->rc) b->rc = pe_graph_rope_table(b->g, kept, NULL, &args, &table, b->err);
  pe_attention_spec s = {.sinks = -1, .scale = 0.25f, .share = -1};
  s.q = rotated(b, heads(b, linear(b, h, "model.layers.1.self_attn.q_proj.weight"), 4), table);
  s.k = rotated(b, heads(b, linear(b, h, "model.layers.1.self_attn.k_proj.weight"), 2), table);
  s.v = heads(b, linear(b, h, "model.layers.1.self_attn.v_proj.weight"), 2);
  int32_t layer;
  if (!b->rc) b->rc = pe_graph_attention(b->g, &s, &v, &layer, b->err);
  return linear(b, v, "model.layers.1.self_attn.out_proj.weight");
}

static pe_status build(machine *m, pe_error *err) {
  builder b = {m->graph, err, PE_OK};
  pe_param table = weight(&b, "model.embed_tokens.weight");
  pe_value x = -1, out = -1;
  if (!b.rc) b.rc = pe_graph_embed(b.g, table, 1, &x, err);
  x = both(&b, PE_MAP_ADD, x,
           convolution(&b, norm(&b, x, "model.layers.0.operator_norm.weight", EPS)));
  if (!b.rc) b.rc = pe_graph_name(b.g, m->tap = x, "between", err);
  x = both(&b, PE_MAP_ADD, x,
           attention(&b, norm(&b, x, "model.layers.1.operator_norm.weight", EPS)));
  if (!b.rc) b.rc = pe_graph_output(b.g, x, &out, err);
  x = linear(&b, norm(&b, out, "model.embedding_norm.weight", EPS), "model.embed_tokens.weight");
  m->graph->output = x;
  return b.rc;
}

static pe_status machine_open(machine *m, int64_t tokens, pe_error *err) {
  *m = (machine){0};
  pe_status rc = pe_weights_open("tests/golden/lfm2", &m->weights, err);
  if (!rc) rc = pe_graph_open(m->weights, &m->graph, err);
  if (!rc) rc = build(m, err);
  if (!rc)
    rc = pe_plan_open(m->graph, &(pe_plan_options){.taps = &m->tap, .tap_count = TAPS}, &m->plan,
                      err);
  if (!rc)
    rc = pe_kv_open(m->graph, &(pe_kv_options){.tokens = tokens, .sequences = 2}, &m->kv, err);
  if (!rc) rc = pe_recur_open(m->graph, 2, &m->recur, err);
  if (!rc) rc = pe_pool_open(2, false, &m->pool, err);
  if (!rc)
    rc = pe_device_open(
        &(pe_device_options){
            .backend = backend, .plan = m->plan, .pool = m->pool, .kv = m->kv, .recur = m->recur},
        &m->device, err);
  return rc;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int32_t token_of(int i) { return (i * 37 + 5) % 128; }

static pe_status feed(machine *m, pe_seq *s, int32_t count, pe_error *err) {
  int32_t token[TOKENS];
  for (int32_t i = 0; i < count; i++) token[i] = token_of(s->past + i);
  pe_run run;
  pe_status rc = pe_seq_append(s, token, count, err);
  if (!rc) rc = pe_seq_run(s, count, 1, &run, err);
  if (!rc) rc = pe_device_step(m->device, &run, 1, err);
  if (!rc) pe_seq_advance(s, count);
  return rc;
}

/* The logits after TOKENS tokens, in chunks of `chunk`. */
static pe_status logits(machine *m, int32_t chunk, float *out, pe_error *err) {
  pe_seq s = {0};
  pe_status rc = pe_seq_open(&s, m->kv, m->recur, err);
  while (!rc && s.past < TOKENS)
    rc = feed(m, &s, chunk < TOKENS - s.past ? chunk : TOKENS - s.past, err);
  if (!rc) memcpy(out, pe_device_logits(m->device, 0), (size_t)m->plan->vocabulary * sizeof *out);
  pe_seq_close(&s);
  return rc;
}

static void chunks(void) {
  machine m;
  pe_error err = {0};
  float whole[128], part[128];
  CHECK_OK(machine_open(&m, 64, &err), err);
  if (m.device) {
    CHECK_INT(m.plan->vocabulary, 128);
    CHECK_OK(logits(&m, TOKENS, whole, &err), err);
    for (int i = 0; i < 128; i++) CHECK(isfinite(whole[i]));
    for (int32_t chunk = 1; chunk < TOKENS; chunk += 6) {
      CHECK_OK(logits(&m, chunk, part, &err), err);
      CHECK_INT(memcmp(part, whole, sizeof whole), 0);
    }
  }
  machine_close(&m);
}

/* Steps that grow row by row: every line of every step is right, and the areas are mapped anew for
 * few of them (at 17, 26 and 40 rows: half as much again, 16 at least). */
static void growth(void) {
  machine m;
  pe_error err = {0};
  static float want[TOKENS][128];
  const float *place = NULL;
  int moves = 0;
  CHECK_OK(machine_open(&m, 64, &err), err);
  pe_seq s = {0};
  CHECK_OK(pe_seq_open(&s, m.kv, m.recur, &err), err);
  for (int i = 0; m.device && i < TOKENS; i++) {
    CHECK_OK(feed(&m, &s, 1, &err), err);
    memcpy(want[i], pe_device_logits(m.device, 0), sizeof want[i]);
  }
  pe_seq_close(&s);
  for (int32_t rows = 1; m.device && rows <= TOKENS; rows++) {
    int32_t token[TOKENS];
    pe_run run;
    for (int32_t i = 0; i < rows; i++) token[i] = token_of(i);
    CHECK_OK(pe_seq_open(&s, m.kv, m.recur, &err), err);
    CHECK_OK(pe_seq_append(&s, token, rows, &err), err);
    CHECK_OK(pe_seq_run(&s, rows, rows, &run, &err), err);
    CHECK_OK(pe_device_step(m.device, &run, 1, &err), err);
    for (int32_t i = 0; i < rows; i++)
      CHECK_INT(memcmp(pe_device_logits(m.device, i), want[i], sizeof want[i]), 0);
    moves += pe_device_logits(m.device, 0) != place;
    place = pe_device_logits(m.device, 0);
    pe_seq_close(&s);
  }
  CHECK(moves <= 4);
  machine_close(&m);
}

/* No block or no slot: an error with both numbers; the sequence continues once there is room. */
static void limits(void) {
  machine m;
  pe_error err = {0};
  CHECK_OK(machine_open(&m, 32, &err), err);
  if (m.device) {
    pe_seq s[3] = {{0}};
    for (int i = 0; i < 2; i++) CHECK_OK(pe_seq_open(&s[i], m.kv, m.recur, &err), err);
    CHECK_FAILS(pe_seq_open(&s[2], m.kv, m.recur, &err), PE_ELIMIT, err, "2");
    for (int i = 0; i < 3; i++) CHECK_OK(feed(&m, &s[0], 30, &err), err);
    CHECK_OK(feed(&m, &s[0], 6, &err), err);
    CHECK_FAILS(feed(&m, &s[1], 1, &err), PE_ELIMIT, err, "block");
    pe_seq_close(&s[0]);
    CHECK_OK(feed(&m, &s[1], 1, &err), err);
    for (int i = 0; i < 3; i++) pe_seq_close(&s[i]);
  }
  machine_close(&m);
}

/* Any failure while a model is opened leaks nothing. */
static void opening_without_memory(void) {
  for (int64_t n = 1;; n++) {
    machine m;
    pe_error err = {0};
    int64_t live = pe_alloc_live();
    pe_alloc_fail_at(n);
    pe_status rc = machine_open(&m, 64, &err);
    int64_t asked = pe_alloc_count();
    pe_alloc_fail_at(0);
    machine_close(&m);
    CHECK_INT(pe_alloc_live(), live);
    if (!rc) {
      CHECK(asked < n && n > 20);
      break;
    }
    CHECK_FAILS(rc, PE_ENOMEM, err, "out of memory");
    if (rc != PE_ENOMEM) break;
  }
}

/* A failure affects that step only: the same step again gives the right result. */
static void steps_without_memory(void) {
  machine m;
  pe_error err = {0};
  float want[128], got[128];
  CHECK_OK(machine_open(&m, 64, &err), err);
  if (m.device) CHECK_OK(logits(&m, 20, want, &err), err);
  machine_close(&m);
  for (int64_t n = 1, asked = n; n <= asked; n++) {
    CHECK_OK(machine_open(&m, 64, &err), err);
    if (!m.device) break;
    pe_alloc_fail_at(n);
    pe_status rc = logits(&m, 20, got, &err);
    asked = pe_alloc_count();
    pe_alloc_fail_at(0);
    CHECK_INT(rc, n <= asked ? PE_ENOMEM : PE_OK);
    CHECK_OK(logits(&m, 20, got, &err), err);
    CHECK_INT(memcmp(got, want, sizeof want), 0);
    machine_close(&m);
  }
}

/* The same on a backend that computes when it is waited for. */
static void late(void) {
  backend = fake_backend();
  chunks(), growth(), limits();
  CHECK(fake_calls > 0 && !fake_changes);
  backend = NULL;
}

static const check_test tests[] = {{"chunks", chunks},
                                   {"late", late},
                                   {"growth", growth},
                                   {"limits", limits},
                                   {"opening without memory", opening_without_memory},
                                   {"steps without memory", steps_without_memory}};
CHECK_MAIN("device", tests)
