/* test_kernels.c - Metal's kernels against the CPU's exact ones: weights, rows, experts, towers. */
#include "kernels_step.h"
#include "metal_main.h"
#include "metal_run.h"

/* The allowed error of a sum of n products of numbers around 1. */
static double slack(int64_t n) { return 1e-6 * (double)(n + 8); }

static pe_step rows_step(int32_t rows) {
  pe_step s = all_rows;
  s.rows = rows;
  return s;
}

/* ---- weights --------------------------------------------------------------------------------- */

static void test_embed(void) {
  for (int i = 0; i < METAL_LAYOUTS; i++) {
    const metal_layout *l = &metal_layouts[i];
    const int64_t width = l->unit == 1 ? 37 : 3 * l->unit;
    pe_quant_matrix m;
    metal_matrix(l, 11, width, &m);
    pe_cpu_call c = call_of(ROWS, width);
    c.mat = &m, c.args.embed = (pe_embed_args){.scale = 3.5f};
    metal_check(&(metal_case){.op = PE_OP_EMBED, .c = &c, .width = width}, 1e-6);
    metal_matrix_free(&m), view_free(&c.out);
  }
}

static void test_features(void) {
  enum { WIDTH = 33, PLANES = 3 };
  static const int32_t line[ROWS] = {-1, 1, 0, -1, -1, 2, 3};
  float features[4 * PLANES * WIDTH];
  for (int i = 0; i < 4 * PLANES * WIDTH; i++) features[i] = uniform();
  pe_step step = all_rows;
  step.features = features, step.feature = line;
  step.feature_planes = PLANES, step.feature_width = WIDTH;
  pe_quant_matrix m;
  metal_matrix(&metal_layouts[0], 11, WIDTH, &m);
  for (int op = 0; op < 3; op++) {
    pe_cpu_call c = call_of(ROWS, WIDTH);
    c.step = &step;
    if (op < 2) {
      c.mat = &m, c.args.embed = (pe_embed_args){3.5f, op ? 8 : 0};
    } else {
      c.in[0] = view_new(ROWS, WIDTH), view_fill(&c.in[0], ROWS, WIDTH);
      c.args.deepstack = (pe_deepstack_args){WIDTH, 2};
    }
    metal_check(
        &(metal_case){.op = op < 2 ? PE_OP_EMBED : PE_OP_DEEPSTACK, .c = &c, .width = WIDTH}, 0);
    if (op == 2) view_free(&c.in[0]);
    view_free(&c.out);
  }
  metal_matrix_free(&m);
}

/* Tiles that make every number of rows use one kernel. */
static pe_metal_tiles rows_at_once(int rows) {
  pe_metal_tiles t = pe_metal_tiles_default;
  t.linear_rows_2 = rows >= 2 ? 1 : 1 << 30, t.linear_rows_4 = rows >= 4 ? 1 : 1 << 30;
  t.linear_rows_8 = rows >= 8 ? 1 : 1 << 30;
  t.linear_rows_wide = rows > 8 ? 1 : 1 << 30;
  return t;
}

static void check_every_tile(const metal_case *k, const metal_buffers *b) {
  for (int rows = 1; rows <= 16; rows *= 2) {
    pe_metal_tiles t = rows_at_once(rows);
    metal_check_tiles(k, &t, b);
    t.linear_simdgroups = 1, metal_check_tiles(k, &t, b);
  }
}

static void check_linear(const metal_layout *l, int32_t in, int32_t out, int32_t rows, int with) {
  const pe_step step = rows_step(rows);
  pe_quant_matrix m;
  metal_matrix(l, out, in, &m);
  pe_cpu_call c = call_of(rows, out);
  float *bias = calloc((size_t)out, sizeof *bias);
  for (int i = 0; i < out; i++) bias[i] = uniform();
  c.step = &step, c.mat = &m, c.in[0] = view_new(rows, in), view_fill(&c.in[0], rows, in);
  if (with & 1) c.vec[0] = bias;
  if (with & 2) c.in[1] = view_new(rows, out), view_fill(&c.in[1], rows, out);
  c.args.linear = (pe_linear_args){in, out, with >> 1 & 1};
  const metal_case k = {.op = PE_OP_LINEAR, .c = &c, .width = out, .vec = {out}};
  metal_buffers b;
  metal_check_into(&k, slack(in), &b);
  check_every_tile(&k, &b);
  metal_free(&b), metal_matrix_free(&m), free(bias), view_free(&c.in[0]), view_free(&c.out);
  if (with & 2) view_free(&c.in[1]);
}

static void test_linear(void) {
  for (int i = 0; i < METAL_LAYOUTS; i++) {
    const metal_layout *l = &metal_layouts[i];
    const int32_t unit = l->unit;
    check_linear(l, unit == 1 ? 37 : unit, 19, 7, i % 4);
    check_linear(l, unit == 1 ? 300 : unit < 256 ? 9 * unit : 3 * unit, 33, i % 9 + 1, 3 - i % 4);
    if (i % 4 == 3) check_linear(l, 2 * unit, 18, 41, 3); /* 32 rows at once, and the rest */
  }
}

/* The result may overwrite the residual. */
static void test_linear_in_place(void) {
  const int32_t in = 64, out = 21, rows = 5;
  const pe_step step = rows_step(rows);
  pe_quant_matrix m;
  metal_matrix(&metal_layouts[3], out, in, &m);
  pe_cpu_call c = call_of(rows, out);
  c.step = &step, c.mat = &m, c.in[0] = view_new(rows, in), view_fill(&c.in[0], rows, in);
  view_fill(&c.out, rows, out), c.in[1] = c.out;
  c.args.linear = (pe_linear_args){in, out, 1};
  metal_check(&(metal_case){.op = PE_OP_LINEAR, .c = &c, .width = out}, slack(in));
  metal_matrix_free(&m), view_free(&c.in[0]), view_free(&c.out);
}

/* A row alone and among this many others has the same bits. */
static void check_linear_rows(int32_t rows) {
  enum { IN = 320, OUT = 18 };
  const pe_step step = rows_step(rows), one_row = rows_step(1);
  for (int i = 0; i < METAL_LAYOUTS; i += 3) {
    pe_quant_matrix m;
    const int32_t in = metal_layouts[i].unit == 256 ? 512 : metal_layouts[i].unit == 128 ? 384 : IN;
    metal_matrix(&metal_layouts[i], OUT, in, &m);
    pe_cpu_call c = call_of(rows, OUT);
    c.step = &step, c.mat = &m, c.in[0] = view_new(rows, in), view_fill(&c.in[0], rows, in);
    c.args.linear = (pe_linear_args){in, OUT, 0};
    metal_buffers all, alone;
    msl_forget(), msl_schedule(0);
    metal_run(&(metal_case){.op = PE_OP_LINEAR, .c = &c, .width = OUT}, &all);
    for (int r = 0; r < rows; r += 5) {
      pe_cpu_call one = c;
      one.rows = 1, one.step = &one_row, one.in[0].at += r * one.in[0].step;
      metal_run(&(metal_case){.op = PE_OP_LINEAR, .c = &one, .width = OUT}, &alone);
      check_bits("a row alone", alone.owned[PE_SLOT_OUT],
                 (const float *)all.owned[PE_SLOT_OUT] + r * c.out.step, OUT);
      metal_free(&alone);
    }
    CHECK_INT(msl_faults(), 0);
    metal_free(&all), metal_matrix_free(&m), view_free(&c.in[0]), view_free(&c.out);
  }
}

static void test_linear_rows(void) {
  static const int32_t rows[] = {2, 4, 13, 41}; /* enough that each kernel takes its turn */
  for (int i = 0; i < 4; i++) check_linear_rows(rows[i]);
}

static void test_gated(void) {
  static const int activations[] = {PE_MAP_SILU, PE_MAP_GELU, PE_MAP_GELU_TANH, PE_MAP_RELU2};
  for (int i = 0; i < METAL_LAYOUTS; i++) {
    const metal_layout *l = &metal_layouts[i], *l2 = l->unit == 1 ? &metal_layouts[i + 3] : l;
    const int32_t in = l2->unit == 1 ? 45 : l2->unit * 2, out = 21, rows = i % 9 + (i % 8 ? 1 : 17);
    const pe_step step = rows_step(rows);
    pe_quant_matrix m, m2;
    float bias[2][21];
    for (int j = 0; j < 21; j++) bias[0][j] = uniform(), bias[1][j] = uniform();
    metal_matrix(l, out, in, &m), metal_matrix(l2, out, in, &m2);
    pe_cpu_call c = call_of(rows, out);
    c.step = &step, c.mat = &m, c.mat2 = &m2;
    c.in[0] = view_new(rows, in), view_fill(&c.in[0], rows, in);
    if (i % 2) c.vec[0] = bias[0];
    if (i % 3) c.vec[1] = bias[1];
    c.args.gated = (pe_gated_args){in, out, activations[i % 4]};
    const metal_case k = {.op = PE_OP_GATED, .c = &c, .width = out, .vec = {out, out}};
    metal_buffers b;
    metal_check_into(&k, 3 * slack(in), &b);
    check_every_tile(&k, &b);
    metal_free(&b), metal_matrix_free(&m), metal_matrix_free(&m2);
    view_free(&c.in[0]), view_free(&c.out);
  }
}

/* ---- experts and heads ----------------------------------------------------------------------- */

enum { EXPERTS = 5, CHOSEN = 3 };

static void choose_experts(pe_cpu_view *v, int32_t rows) {
  for (int32_t r = 0; r < rows; r++)
    for (int32_t k = 0; k < CHOSEN; k++) {
      const int32_t e = (int32_t)((random32() % 2 + 2 * (uint32_t)k) % EXPERTS);
      memcpy(v->at + r * v->step + k, &e, 4);
    }
}

static void check_expert(const metal_layout *l, int32_t rows, bool gated, bool spread,
                         bool transposed) {
  const int32_t in = l->unit == 1 ? 37 : 2 * l->unit, out = 22;
  const pe_step step = rows_step(rows);
  pe_quant_matrix m[EXPERTS], m2[EXPERTS];
  float bias[2][EXPERTS * 22];
  for (int i = 0; i < EXPERTS * 22; i++) bias[0][i] = uniform(), bias[1][i] = uniform();
  for (int e = 0; e < EXPERTS; e++) {
    metal_matrix(l, transposed ? in : out, transposed ? out : in, &m[e]);
    metal_matrix(l, transposed ? in : out, transposed ? out : in, &m2[e]);
  }
  pe_cpu_call c = call_of(rows, CHOSEN * out);
  c.step = &step, c.mat = m, c.mat2 = gated ? m2 : NULL;
  c.in[0] = view_new(rows, spread ? CHOSEN * in : in);
  view_fill(&c.in[0], rows, spread ? CHOSEN * in : in);
  c.in[1] = view_new(rows, CHOSEN), choose_experts(&c.in[1], rows);
  c.vec[0] = bias[0], c.vec[1] = gated ? bias[1] : NULL;
  c.args.expert_gated =
      (pe_expert_gated_args){{in, out, EXPERTS, CHOSEN, spread, transposed}, PE_MAP_SILU};
  const metal_case k = {.op = gated ? PE_OP_EXPERT_GATED : PE_OP_EXPERT_LINEAR,
                        .c = &c,
                        .width = CHOSEN * out,
                        .vec = {EXPERTS * out, EXPERTS * out},
                        .mats = EXPERTS};
  metal_buffers b;
  metal_check_into(&k, 3 * slack(in), &b);
  pe_metal_tiles t = pe_metal_tiles_default;
  t.expert_sort_pairs = 1, metal_check_tiles(&k, &t, &b);
  t.expert_sort_pairs = 1 << 30, metal_check_tiles(&k, &t, &b);
  metal_free(&b), view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out);
  for (int e = 0; e < EXPERTS; e++) metal_matrix_free(&m[e]), metal_matrix_free(&m2[e]);
}

static void test_experts(void) {
  for (int i = 0; i < METAL_LAYOUTS; i++) {
    check_expert(&metal_layouts[i], 1, i % 2, i % 3 == 0, false);
    check_expert(&metal_layouts[i], 13, i % 2 == 0, i % 3 == 1, false);
  }
  for (int i = 0; i < 3; i++)
    for (int gated = 0; gated < 2; gated++) check_expert(&metal_layouts[i], 3, gated, i == 1, true);
}

static void test_heads(void) {
  enum { HEADS = 3, FEW = 10 };
  for (int i = 0; i < 2 * METAL_LAYOUTS; i++) {
    const bool transposed = i >= METAL_LAYOUTS;
    const metal_layout *l = &metal_layouts[i % METAL_LAYOUTS];
    const int32_t unit = l->unit == 1 ? 21 : l->unit, rows = i % 2 ? 9 : 2;
    const int32_t in = transposed ? FEW : unit, out = transposed ? unit : FEW;
    const pe_step step = rows_step(rows);
    pe_quant_matrix m[HEADS];
    for (int h = 0; h < HEADS; h++) metal_matrix(l, FEW, unit, &m[h]);
    pe_cpu_call c = call_of(rows, HEADS * out);
    c.step = &step, c.mat = m;
    c.in[0] = view_new(rows, HEADS * in), view_fill(&c.in[0], rows, HEADS * in);
    c.args.head = (pe_head_args){HEADS, in, out, transposed};
    const metal_case k = {.op = PE_OP_HEAD_LINEAR, .c = &c, .width = HEADS * out, .mats = HEADS};
    metal_buffers b;
    metal_check_into(&k, slack(in), &b);
    check_every_tile(&k, &b);
    metal_check_part(&k, 0, HEADS, in), metal_check_out_part(&k, HEADS, out);
    metal_free(&b), view_free(&c.in[0]), view_free(&c.out);
    for (int h = 0; h < HEADS; h++) metal_matrix_free(&m[h]);
  }
}

static void check_route(pe_route_args a, bool biased) {
  pe_cpu_call c = call_of(ROWS, 2 * a.chosen);
  float bias[96], factor[96];
  for (int i = 0; i < 96; i++) bias[i] = 0.2f * uniform(), factor[i] = 1 + uniform();
  c.in[0] = view_new(ROWS, a.experts), view_fill(&c.in[0], ROWS, a.experts);
  c.in[0].at[3] = c.in[0].at[5] = 0.7f; /* a tie */
  c.args.route = a;
  if (biased) c.vec[0] = bias, c.vec[1] = factor;
  metal_case k = {.op = PE_OP_ROUTE, .c = &c, .width = 2 * a.chosen};
  k.vec[0] = k.vec[1] = a.experts;
  metal_buffers b;
  metal_check_into(&k, 1e-5, &b);
  for (int r = 0; r < ROWS; r++) /* the numbers of experts are integers: equal, not close */
    check_bits("experts", (const float *)b.owned[PE_SLOT_OUT] + r * c.out.step,
               c.out.at + r * c.out.step, a.chosen);
  metal_free(&b), view_free(&c.in[0]), view_free(&c.out);
}

static void test_route(void) {
  for (int kind = PE_ROUTE_SOFTMAX; kind <= PE_ROUTE_SOFTMAX_BIASED; kind++)
    for (int biased = 0; biased < 2; biased++) {
      pe_route_args a = {.kind = kind, .experts = 40, .chosen = 6, .groups = 1, .scale = 1.5f};
      a.normalize = biased, a.eps = 1e-6f;
      check_route(a, biased);
      a.groups = 8, a.groups_kept = 3, a.group_max = biased, check_route(a, biased);
      a.experts = 96, a.chosen = 8, a.groups = 1, check_route(a, !biased);
    }
}

static void test_expert_sum(void) {
  pe_cpu_call c = call_of(ROWS, 150);
  c.in[0] = view_new(ROWS, 4 * 150), c.in[1] = view_new(ROWS, 8);
  view_fill(&c.in[0], ROWS, 4 * 150), view_fill(&c.in[1], ROWS, 8);
  c.args.expert_sum = (pe_expert_sum_args){4, 150};
  metal_check(&(metal_case){.op = PE_OP_EXPERT_SUM, .c = &c, .width = 150}, 1e-6);
  view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void check_norm(pe_norm_args a, bool bias, bool in_place) {
  const int32_t width = a.width * a.count;
  pe_cpu_call c = call_of(ROWS, width);
  float *w = calloc(2 * (size_t)width, sizeof *w);
  for (int i = 0; i < 2 * width; i++) w[i] = uniform();
  if (in_place)
    view_fill(&c.out, ROWS, width), c.in[0] = c.out;
  else
    c.in[0] = view_new(ROWS, width), view_fill(&c.in[0], ROWS, width);
  if (a.weights) c.vec[0] = w;
  if (bias) c.vec[1] = w + width;
  c.args.norm = a;
  const metal_case k = {.op = PE_OP_NORM,
                        .c = &c,
                        .width = width,
                        .vec = {a.weights, a.weights ? a.weights : a.width}};
  metal_check(&k, 3e-5);
  if (!in_place) metal_check_part(&k, 0, a.count, a.width);
  if (!in_place) view_free(&c.in[0]);
  view_free(&c.out), free(w);
}

static void test_norm(void) {
  static const int widths[] = {1, 31, 32, 100, 257, 1500};
  for (int i = 0; i < 6; i++) {
    const int32_t n = widths[i];
    check_norm((pe_norm_args){.width = n, .count = 1, .weights = n, .eps = 1e-5f, .scale = 1},
               false, i % 2);
    check_norm((pe_norm_args){n, 3, 3 * n, 1e-6f, 1, 0.5f, i % 2, 0}, false, !(i % 2));
    check_norm((pe_norm_args){n, 2, n, 1e-5f, 0, 2, 0, 1}, true, i % 2);
    check_norm((pe_norm_args){n, 2, 0, 1e-5f, 0, 1, 1, 0}, false, false);
  }
}

/* Every operation once, with constants, repeated and fixed inputs. */
static void test_map(void) {
  enum { WIDTH = 150 };
  float fixed[WIDTH];
  for (int i = 0; i < WIDTH; i++) fixed[i] = uniform();
  for (int op = 0; op < PE_MAP_COUNT; op++) {
    pe_cpu_call c = call_of(ROWS, WIDTH);
    c.in[0] = view_new(ROWS, WIDTH), c.in[1] = view_new(ROWS, 30), c.vec[2] = fixed;
    view_fill(&c.in[0], ROWS, WIDTH), view_fill(&c.in[1], ROWS, 30);
    for (int64_t i = 0; i < c.in[0].step * ROWS; i++) c.in[0].at[i] *= 4;
    const bool positive = op == PE_MAP_SQRT || op == PE_MAP_RSQRT || op == PE_MAP_LOG;
    c.args.map =
        (pe_map_args){.width = WIDTH,
                      .inputs = 3,
                      .input = {{WIDTH, 1, 0}, {30, op % 2 ? 5 : 1, 0}, {WIDTH, 1, 1}},
                      .steps = 4,
                      .result = 5,
                      .value = {0.25f, 3},
                      .step = {{positive ? PE_MAP_ABS : PE_MAP_MUL, 0, pe_map_constant(0), 4},
                               {positive ? PE_MAP_ADD : PE_MAP_SUB, 4, pe_map_constant(1), 6},
                               {op, positive ? 6 : 4, 1, 5},
                               {PE_MAP_ADD, 5, 2, 5}}};
    const metal_case k = {.op = PE_OP_MAP, .c = &c, .width = WIDTH, .vec = {0, 0, WIDTH}};
    metal_check(&k, 2e-6);
    metal_check_part(&k, 0, 6, 25), metal_check_part(&k, 1, 6, 5);
    view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out);
  }
}

static void test_rope_table(void) {
  float frequency[64], factor[2] = {1.5f, 0.75f};
  for (int i = 0; i < 64; i++) frequency[i] = powf(10000, -(float)(i % 32) / 32);
  static const pe_rope_table_args cases[] = {
      {.turns = 32, .variants = 1, .scale = 1},
      {.turns = 32, .variants = 2, .threshold = 20, .scale = 1.25f},
      {.turns = 32, .variants = 1, .section = {8, 12, 12}, .scale = 1},
      {.turns = 32, .variants = 1, .section = {12, 10, 10}, .interleaved_axes = 1, .scale = 1},
      {.turns = 32, .variants = 1, .growth = 0.1f, .every = 16, .scale = 1},
      {.turns = 32,
       .variants = 1,
       .threshold = 20,
       .dynamic = 1,
       .dims = 64,
       .theta = 10000,
       .factor = 4,
       .scale = 1}};
  for (int i = 0; i < 6; i++) {
    pe_cpu_call c = call_of(ROWS, 64);
    c.vec[0] = frequency, c.vec[1] = i == 1 ? factor : NULL, c.args.rope_table = cases[i];
    metal_check(&(metal_case){.op = PE_OP_ROPE_TABLE, .c = &c, .width = 64, .vec = {64, 2}}, 1e-4);
    view_free(&c.out);
  }
}

static void test_rope(void) {
  enum { HEADS = 3, DIM = 72, TURNS = 20 };
  float weight[DIM];
  for (int i = 0; i < DIM; i++) weight[i] = uniform();
  for (int i = 0; i < 16; i++) {
    pe_cpu_call c = call_of(ROWS, HEADS * DIM);
    c.in[1] = view_new(ROWS, 2 * TURNS), view_fill(&c.in[1], ROWS, 2 * TURNS);
    if (i & 4)
      view_fill(&c.out, ROWS, HEADS * DIM), c.in[0] = c.out;
    else
      c.in[0] = view_new(ROWS, HEADS * DIM), view_fill(&c.in[0], ROWS, HEADS * DIM);
    c.args.rope = (pe_rope_args){HEADS, DIM, TURNS, i & 1, i & 2 ? 11 : 0, {0}};
    if (i & 8) {
      c.args.rope.norm = (pe_norm_args){DIM, 1, i & 1 ? DIM : 0, 1e-6f, 1, 0.5f, i & 2, 0};
      c.vec[0] = i & 1 ? weight : NULL;
    }
    const metal_case k = {.op = PE_OP_ROPE, .c = &c, .width = HEADS * DIM, .vec = {DIM}};
    metal_check(&k, 1e-5);
    if (!(i & 4)) metal_check_part(&k, 0, HEADS, DIM), metal_check_out_part(&k, HEADS, DIM);
    if (!(i & 4)) view_free(&c.in[0]);
    view_free(&c.in[1]), view_free(&c.out);
  }
}

static void test_copies(void) {
  pe_cpu_call c = call_of(ROWS, 3 * (7 + 4 + 9));
  for (int i = 0; i < 3; i++) c.in[i] = view_new(ROWS, 30), view_fill(&c.in[i], ROWS, 30);
  c.args.concat = (pe_concat_args){3, 3, {7, 4, 9}, {0, 1, 0}};
  const metal_case joined = {.op = PE_OP_CONCAT, .c = &c, .width = 60};
  metal_check(&joined, 0);
  metal_check_part(&joined, 0, 3, 7), metal_check_part(&joined, 1, 2, 2);
  metal_check_part(&joined, 2, 9, 3);
  c.args.slice = (pe_slice_args){3, 10, 4, 5};
  metal_check(&(metal_case){.op = PE_OP_SLICE, .c = &c, .width = 15}, 0);
  c.rows = 4, c.args.output = (pe_output_args){30};
  metal_check(&(metal_case){.op = PE_OP_OUTPUT, .c = &c, .width = 30}, 0);
  for (int i = 0; i < 3; i++) view_free(&c.in[i]);
  view_free(&c.out);
}

/* ---- towers ---------------------------------------------------------------------------------- */

static void test_tower_rows(void) {
  static const int32_t at[ROWS + 1] = {0, 1, 3, 3, 6, 7, 9, 10};
  static const int32_t index[10] = {4, 0, 3, 1, 2, 2, 4, 0, 1, 3};
  static const int32_t merge[6] = {5, 0, 1, 6, 3, 3};
  float weight[10], patch[ROWS * 20];
  for (int i = 0; i < 10; i++) weight[i] = uniform();
  for (int i = 0; i < ROWS * 20; i++) patch[i] = uniform();
  pe_step step = {.rows = ROWS, .outputs = 3};
  step.tower = (pe_tower_step){.patch = patch, .patch_width = 20, .lookup = {at, index, weight}};
  step.tower.merge = merge, step.tower.merge_count = 2;
  pe_cpu_call c = call_of(ROWS, 60);
  c.step = &step, c.args.patches = (pe_patches_args){20};
  metal_check(&(metal_case){.op = PE_OP_PATCHES, .c = &c, .width = 20}, 0);
  for (int i = 0; i < METAL_LAYOUTS; i += 2) {
    pe_quant_matrix m;
    const int32_t width = metal_layouts[i].unit == 1 ? 53 : metal_layouts[i].unit;
    view_free(&c.out), c.out = view_new(ROWS, width);
    metal_matrix(&metal_layouts[i], 5, width, &m);
    c.mat = &m;
    metal_check(&(metal_case){.op = PE_OP_LOOKUP, .c = &c, .width = width}, 1e-5);
    metal_matrix_free(&m);
  }
  view_free(&c.out), c.out = view_new(3, 42);
  c.mat = NULL, c.rows = 3, c.in[0] = view_new(ROWS, 21), view_fill(&c.in[0], ROWS, 21);
  for (int mean = 0; mean < 2; mean++) {
    c.args.merge = (pe_merge_args){21, 2, mean};
    metal_check(&(metal_case){.op = PE_OP_MERGE, .c = &c, .width = mean ? 21 : 42}, 1e-6);
  }
  view_free(&c.in[0]), view_free(&c.out);
}

static void check_region_attention(int32_t heads, int32_t key_heads, int32_t key, int32_t value) {
  enum { PATCHES = 190 };
  static const pe_region frames[] = {{0, 150}, {150, 40}},
                         windows[] = {{0, 3}, {3, 147}, {150, 40}};
  pe_step step = {.rows = PATCHES};
  step.tower.region[PE_REGION_FRAME] = (pe_regions){frames, 2, 150};
  step.tower.region[PE_REGION_WINDOW] = (pe_regions){windows, 3, 147};
  for (int regions = 0; regions < PE_REGIONS; regions++) {
    pe_cpu_call c = call_of(PATCHES, heads * value);
    c.step = &step;
    const int32_t width[] = {heads * key, key_heads * key, key_heads * value};
    for (int i = 0; i < 3; i++)
      c.in[i] = view_new(PATCHES, width[i]), view_fill(&c.in[i], PATCHES, width[i]);
    c.args.region_attention =
        (pe_region_attention_args){heads, key_heads, key, value, regions, 0.3f};
    metal_check(&(metal_case){.op = PE_OP_REGION_ATTENTION, .c = &c, .width = heads * value}, 2e-5);
    for (int i = 0; i < 3; i++) view_free(&c.in[i]);
    view_free(&c.out);
  }
}

static void test_region_attention(void) {
  check_region_attention(2, 2, 20, 36);
  check_region_attention(6, 2, 130, 40);
}

static void test_all_ran(void) { metal_check_all_ran(METAL_KERNELS); }

static const check_test tests[] = {
    {"embed", test_embed},
    {"features", test_features},
    {"linear", test_linear},
    {"linear in place", test_linear_in_place},
    {"rows of linear", test_linear_rows},
    {"gated", test_gated},
    {"experts", test_experts},
    {"heads", test_heads},
    {"route", test_route},
    {"expert_sum", test_expert_sum},
    {"norm", test_norm},
    {"map", test_map},
    {"rope_table", test_rope_table},
    {"rope", test_rope},
    {"copies", test_copies},
    {"tower rows", test_tower_rows},
    {"region attention", test_region_attention},
    {"all have run", test_all_ran},
};

int main(int argc, char **argv) {
  fill_step();
  return metal_main("metal kernels", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
