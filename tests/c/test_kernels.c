/* test_kernels.c - the CPU ops: each against an obvious implementation in double precision, and their promises bit for bit:
 * scalar or vector code, any number of tasks, rows together or alone. What needs a sequence's past is in test_memory.c. */
#include "check.h"
#include "kernels.h"

/* ---- harness ------------------------------------------------------------------------------------------------------- */

enum { ROWS = 7 };

static int32_t token[ROWS], position[3 * ROWS], segment_of[ROWS], output[ROWS];
static const pe_segment segments[2] = {{.first = 0, .count = 3, .rope_length = 10},
                                       {.first = 3, .count = 4, .rope_length = 50}};
static const pe_step all_rows = {.rows = ROWS,
                                 .segments = 2,
                                 .token = token,
                                 .position = position,
                                 .segment_of = segment_of,
                                 .segment = segments,
                                 .outputs = 4,
                                 .output = output};

static void fill_step(void) {
  for (int r = 0; r < ROWS; r++) {
    token[r] = (int32_t)(random32() % 11), segment_of[r] = r >= 3, output[r] = (r * 5 + 2) % ROWS;
    for (int axis = 0; axis < 3; axis++) position[axis * ROWS + r] = r * 13 + axis * 100;
  }
}

/* Runs the call in every way there is and compares with scalar code in one task; `alone`: also row by row. The result is
 * left in c->out, which is `width` wide and must not be an input. */
static void check_every_way(pe_op op, pe_cpu_call *c, int64_t width, bool alone) {
  const int64_t n = c->rows * c->out.step + 1;
  float *want = calloc((size_t)n, sizeof *want), *got = calloc((size_t)n, sizeof *got),
        *result = c->out.at;
  c->out.at = want;
  run_op(op, c, &pe_prim_scalar, 1);
  c->out.at = got;
  for (int tasks = 1; tasks <= 9; tasks += tasks < 3 ? 1 : 3) {
    memset(got, 0, (size_t)n * sizeof *got);
    run_op(op, c, pe_prim_best(), tasks);
    check_bits(pe_op_name(op), got, want, n);
  }
  if (alone) {
    pe_step one = *c->step;
    pe_cpu_call row = *c;
    int32_t at[3];
    row.rows = one.rows = 1, one.position = at, row.step = &one;
    memset(got, 0, (size_t)n * sizeof *got);
    for (int64_t r = 0; r < c->rows; r++) {
      for (int axis = 0; axis < 3; axis++) at[axis] = position[axis * ROWS + r];
      one.token = token + r, one.segment_of = segment_of + r;
      row.out.at = got + r * c->out.step;
      for (int i = 0; i < PE_OP_VIEWS; i++)
        row.in[i].at = c->in[i].at ? c->in[i].at + r * c->in[i].step : NULL;
      run_op(op, &row, pe_prim_best(), 2);
    }
    check_bits("a row alone", got, want, n);
  }
  c->out.at = result;
  for (int64_t r = 0; r < c->rows; r++)
    memcpy(result + r * c->out.step, want + r * c->out.step, (size_t)width * sizeof *want);
  free(want), free(got);
}

static pe_cpu_call call_of(int rows, int64_t width) {
  return (pe_cpu_call){.step = &all_rows, .rows = rows, .out = view_new(rows, width)};
}

/* ---- products ------------------------------------------------------------------------------------------------------ */

static const struct {
  pe_quant quant;
  pe_dtype dtype;
  int unit;
} weight_kinds[] = {{{0}, PE_F32, 1},
                    {{0}, PE_BF16, 1},
                    {{PE_QUANT_AFFINE, 4, 32, PE_F16}, PE_F32, 32},
                    {{PE_QUANT_AFFINE, 3, 32, PE_BF16}, PE_F32, 32},
                    {{.kind = PE_QUANT_Q8_0}, PE_F32, 32}};
enum { WEIGHT_KINDS = sizeof weight_kinds / sizeof *weight_kinds };

static void random_matrix(int kind, int64_t rows, int64_t cols, pe_quant_matrix *m) {
  matrix_new(weight_kinds[kind].quant, weight_kinds[kind].dtype, rows, cols, m);
}

static void test_embed(void) {
  for (int k = 0; k < WEIGHT_KINDS; k++) {
    const int64_t width = 3 * weight_kinds[k].unit;
    pe_quant_matrix m;
    random_matrix(k, 11, width, &m);
    pe_cpu_call c = call_of(ROWS, width);
    c.mat = &m, c.args.embed = (pe_embed_args){3.5f};
    check_every_way(PE_OP_EMBED, &c, width, true);
    for (int r = 0; r < ROWS; r++)
      for (int64_t i = 0; i < width; i++) {
        float v;
        pe_quant_row(&m, token[r], i, 1, &v);
        CHECK_NEAR(c.out.at[r * c.out.step + i], v * 3.5f, 0);
      }
    matrix_free(&m), view_free(&c.out);
  }
}

/* |difference| allowed for a sum of n products of numbers around 1 */
static double slack(int64_t n) { return 3e-7 * (double)(n + 4); }

static double exact_dot(const float *x, const pe_quant_matrix *m, int64_t row) {
  float *w = malloc((size_t)m->cols * sizeof *w);
  double s = 0;
  pe_quant_row(m, row, 0, m->cols, w);
  for (int64_t i = 0; i < m->cols; i++) s += (double)x[i] * w[i];
  free(w);
  return s;
}

static void test_linear(void) {
  static const int outs[] = {1, 3, 8, 9, 29, 64};
  for (int k = 0; k < WEIGHT_KINDS; k++)
    for (int o = 0; o < 6; o++)
      for (int with = 0; with < 4; with++) {
        const int32_t in = (weight_kinds[k].unit == 1 ? 37 : 32) * (o % 2 + 1), out = outs[o];
        pe_quant_matrix m;
        random_matrix(k, out, in, &m);
        pe_cpu_call c = call_of(with == 3 ? 1 : ROWS, out);
        c.in[0] = view_new(ROWS, in), c.in[1] = view_new(ROWS, out), c.mat = &m;
        view_fill(&c.in[0], ROWS, in), view_fill(&c.in[1], ROWS, out);
        float bias[64];
        for (int i = 0; i < 64; i++) bias[i] = uniform();
        if (with & 1) c.vec[0] = bias;
        c.args.linear = (pe_linear_args){in, out, with >> 1};
        check_every_way(PE_OP_LINEAR, &c, out, true);
        for (int r = 0; r < c.rows; r++)
          for (int j = 0; j < out; j++) {
            double s = exact_dot(c.in[0].at + r * c.in[0].step, &m, j);
            if (with & 1) s += bias[j];
            if (with >> 1) s += c.in[1].at[r * c.in[1].step + j];
            CHECK_NEAR(c.out.at[r * c.out.step + j], s, slack(in));
          }
        matrix_free(&m), view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out);
      }
}

/* Enough rows for several blocks, no rows at all, and a result that overwrites the residual. */
static void test_linear_many_rows(void) {
  const int32_t in = 1030, out = 10, rows = 600;
  pe_quant_matrix m;
  random_matrix(1, out, in, &m);
  pe_cpu_call c = call_of(rows, out), one;
  c.in[0] = view_new(rows, in), c.mat = &m, c.args.linear = (pe_linear_args){in, out, 0};
  view_fill(&c.in[0], rows, in);
  check_every_way(PE_OP_LINEAR, &c, out, false);
  one = c, one.rows = 1, one.out = view_new(1, out);
  for (int r = 0; r < rows; r += 100 - (r == 500)) {
    one.in[0].at = c.in[0].at + r * c.in[0].step;
    run_op(PE_OP_LINEAR, &one, pe_prim_best(), 1);
    check_bits("a row of many", one.out.at, c.out.at + r * c.out.step, out);
  }
  c.rows = 0;
  run_op(PE_OP_LINEAR, &c, pe_prim_best(), 3);
  c.rows = 5, c.args.linear.residual = 1, c.in[1] = view_new(5, out);
  view_fill(&c.in[1], 5, out);
  check_every_way(PE_OP_LINEAR, &c, out, false);
  view_free(&one.out), one = c, one.out = one.in[1];
  run_op(PE_OP_LINEAR, &one, pe_prim_best(), 2);
  for (int r = 0; r < 5; r++)
    check_bits("in place", one.out.at + r * one.out.step, c.out.at + r * c.out.step, out);
  matrix_free(&m), view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out);
}

static void test_expert_linear(void) {
  enum { EXPERTS = 5, CHOSEN = 2, OUT = 19 };
  for (int k = 0; k < WEIGHT_KINDS; k++)
    for (int spread = 0; spread < 2; spread++) {
      const int32_t in = weight_kinds[k].unit == 1 ? 21 : 32;
      pe_quant_matrix m[EXPERTS];
      float bias[EXPERTS * OUT];
      for (int e = 0; e < EXPERTS; e++) random_matrix(k, OUT, in, &m[e]);
      for (int i = 0; i < EXPERTS * OUT; i++) bias[i] = uniform();
      pe_cpu_call c = call_of(ROWS, CHOSEN * OUT);
      c.in[0] = view_new(ROWS, CHOSEN * in), c.in[1] = view_new(ROWS, CHOSEN), c.mat = m;
      view_fill(&c.in[0], ROWS, CHOSEN * in);
      if (k & 1) c.vec[0] = bias;
      int32_t *chosen[ROWS];
      for (int r = 0; r < ROWS; r++) {
        chosen[r] = (int32_t *)(void *)(c.in[1].at + r * c.in[1].step);
        chosen[r][0] = r % 3 == 0 ? 4 : r % 2,
        chosen[r][1] = r % 3 == 0 ? 1 : 4; /* expert 4 often, 2 and 3 never */
      }
      c.args.expert = (pe_expert_args){in, OUT, EXPERTS, CHOSEN, spread, 0};
      check_every_way(PE_OP_EXPERT_LINEAR, &c, CHOSEN * OUT, true);
      for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < CHOSEN * OUT; j++) {
          int e = chosen[r][j / OUT];
          double s = exact_dot(c.in[0].at + r * c.in[0].step + (spread ? j / OUT * in : 0), &m[e],
                               j % OUT);
          if (c.vec[0]) s += bias[e * OUT + j % OUT];
          CHECK_NEAR(c.out.at[r * c.out.step + j], s, slack(in));
        }
      for (int e = 0; e < EXPERTS; e++) matrix_free(&m[e]);
      view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out);
    }
}

/* Matrices as [in, out], more columns than one task takes, more rows of an expert than are gathered at once. */
static void test_expert_linear_transposed(void) {
  enum { MANY = 70, IN = 21, OUT = 45, EXPERTS = 2 };
  for (int k = 0; k < WEIGHT_KINDS; k++) {
    if (weight_kinds[k].unit != 1) continue;
    pe_quant_matrix m[EXPERTS];
    float bias[EXPERTS * OUT];
    for (int e = 0; e < EXPERTS; e++) random_matrix(k, IN, OUT, &m[e]);
    for (int i = 0; i < EXPERTS * OUT; i++) bias[i] = uniform();
    pe_cpu_call c = call_of(MANY, OUT);
    c.in[0] = view_new(MANY, IN), c.in[1] = view_new(MANY, 1), c.mat = m, c.vec[0] = bias;
    view_fill(&c.in[0], MANY, IN);
    for (int r = 0; r < MANY; r++)
      *(int32_t *)(void *)(c.in[1].at + r * c.in[1].step) = r % 50 == 0;
    c.args.expert = (pe_expert_args){IN, OUT, EXPERTS, 1, 0, 1};
    check_every_way(PE_OP_EXPERT_LINEAR, &c, OUT, false);
    for (int r = 0; r < MANY; r++)
      for (int j = 0; j < OUT; j++) {
        int e = r % 50 == 0;
        double s = bias[e * OUT + j];
        for (int i = 0; i < IN; i++) {
          float w;
          pe_quant_row(&m[e], i, j, 1, &w);
          s += (double)c.in[0].at[r * c.in[0].step + i] * w;
        }
        CHECK_NEAR(c.out.at[r * c.out.step + j], s, slack(IN));
      }
    for (int e = 0; e < EXPERTS; e++) matrix_free(&m[e]);
    view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out);
  }
}

/* More rows of one expert than are gathered at once. */
static void test_expert_linear_many_rows(void) {
  enum { MANY = 150, IN = 24, OUT = 9 };
  pe_quant_matrix m[2];
  random_matrix(0, OUT, IN, &m[0]), random_matrix(0, OUT, IN, &m[1]);
  pe_cpu_call c = call_of(MANY, OUT);
  c.in[0] = view_new(MANY, IN), c.in[1] = view_new(MANY, 1), c.mat = m;
  view_fill(&c.in[0], MANY, IN);
  for (int r = 0; r < MANY; r++) *(int32_t *)(void *)(c.in[1].at + r * c.in[1].step) = r % 5 == 0;
  c.args.expert = (pe_expert_args){IN, OUT, 2, 1, 0, 0};
  check_every_way(PE_OP_EXPERT_LINEAR, &c, OUT, false);
  for (int r = 0; r < MANY; r++)
    for (int j = 0; j < OUT; j++)
      CHECK_NEAR(c.out.at[r * c.out.step + j],
                 exact_dot(c.in[0].at + r * c.in[0].step, &m[r % 5 == 0], j), slack(IN));
  matrix_free(&m[0]), matrix_free(&m[1]), view_free(&c.in[0]), view_free(&c.in[1]),
      view_free(&c.out);
}

static void test_head_linear(void) {
  enum { HEADS = 3 };
  for (int k = 0; k < WEIGHT_KINDS; k++)
    for (int transposed = 0; transposed < 2; transposed++) {
      const int32_t wide = weight_kinds[k].unit == 1 ? 35 : 64, narrow = 13;
      const int32_t in = transposed ? narrow : wide, out = transposed ? wide : narrow;
      pe_quant_matrix m[HEADS];
      for (int h = 0; h < HEADS; h++) random_matrix(k, narrow, wide, &m[h]);
      pe_cpu_call c = call_of(ROWS, HEADS * out);
      c.in[0] = view_new(ROWS, HEADS * in), c.mat = m;
      view_fill(&c.in[0], ROWS, HEADS * in);
      c.args.head = (pe_head_args){HEADS, in, out, transposed};
      check_every_way(PE_OP_HEAD_LINEAR, &c, HEADS * out, true);
      for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < HEADS; h++)
          for (int j = 0; j < out; j++) {
            const float *x = c.in[0].at + r * c.in[0].step + h * in;
            double s = 0;
            for (int i = 0; i < in; i++) {
              float w;
              pe_quant_row(&m[h], transposed ? i : j, transposed ? j : i, 1, &w);
              s += (double)x[i] * w;
            }
            CHECK_NEAR(c.out.at[r * c.out.step + h * out + j], s, slack(in));
          }
      for (int h = 0; h < HEADS; h++) matrix_free(&m[h]);
      view_free(&c.in[0]), view_free(&c.out);
    }
}

/* ---- norms, maps, ropes -------------------------------------------------------------------------------------------- */

static void check_norm(const pe_norm_args *a, bool bias) {
  const int64_t width = (int64_t)a->width * a->count;
  float w[512], b[512];
  for (int i = 0; i < 512; i++) w[i] = uniform(), b[i] = uniform();
  pe_cpu_call c = call_of(ROWS, width);
  c.in[0] = view_new(ROWS, width), c.vec[0] = a->weights ? w : NULL, c.vec[1] = bias ? b : NULL,
  c.args.norm = *a;
  view_fill(&c.in[0], ROWS, width);
  check_every_way(PE_OP_NORM, &c, width, true);
  for (int r = 0; r < ROWS; r++)
    for (int g = 0; g < a->count; g++) {
      const float *x = c.in[0].at + r * c.in[0].step + g * a->width;
      double mean = 0, squares = 0;
      for (int i = 0; i < a->width; i++) mean += a->layer ? x[i] / (double)a->width : 0;
      for (int i = 0; i < a->width; i++) squares += (x[i] - mean) * (x[i] - mean);
      double by = 1 / sqrt((a->l2 ? squares : squares / a->width) + (double)a->eps);
      for (int i = 0; i < a->width; i++) {
        int at = (a->weights > a->width ? g * a->width : 0) + i;
        double y = (x[i] - mean) * by * (a->weights ? (double)w[at] + a->offset : 1);
        if (bias) y += b[at];
        CHECK_NEAR(c.out.at[r * c.out.step + g * a->width + i], y * a->scale, 1e-5);
      }
    }
  pe_cpu_call same = c; /* in place */
  same.out = same.in[0];
  run_op(PE_OP_NORM, &same, pe_prim_best(), 2);
  for (int r = 0; r < ROWS; r++)
    check_bits("norm in place", same.out.at + r * same.out.step, c.out.at + r * c.out.step, width);
  view_free(&c.in[0]), view_free(&c.out);
}

static void test_norm(void) {
  check_norm(&(pe_norm_args){.width = 67, .count = 1, .weights = 67, .eps = 1e-6f, .scale = 1},
             false);
  check_norm(&(pe_norm_args){.width = 1, .count = 1, .weights = 1, .eps = 1e-6f, .scale = 1},
             false);
  check_norm(
      &(pe_norm_args){
          .width = 64, .count = 3, .weights = 64, .eps = 1e-5f, .offset = 1, .scale = 1},
      false);
  check_norm(&(pe_norm_args){.width = 33, .count = 4, .weights = 132, .eps = 1e-5f, .scale = 1},
             false);
  check_norm(&(pe_norm_args){.width = 40, .count = 2, .eps = 1e-6f, .l2 = 1, .scale = 0.25f},
             false);
  check_norm(
      &(pe_norm_args){.width = 50, .count = 1, .weights = 50, .eps = 1e-5f, .layer = 1, .scale = 1},
      true);
  check_norm(
      &(pe_norm_args){
          .width = 50, .count = 2, .weights = 100, .eps = 1e-5f, .layer = 1, .scale = 2},
      false);
}

/* silu(a) * b + 0.5, with every form of input: whole, one value for several neighbours, repeated as a whole, a vector. */
static void test_map(void) {
  static const int widths[] = {1, 30, 256, 258, 600};
  for (int k = 0; k < 5; k++) {
    const int32_t width = widths[k], part = width % 6 ? width : width / 6;
    pe_cpu_call c = call_of(ROWS, width);
    float vector[600];
    for (int i = 0; i < 600; i++) vector[i] = uniform();
    for (int i = 0; i < 3; i++) c.in[i] = view_new(ROWS, width), view_fill(&c.in[i], ROWS, width);
    c.vec[3] = vector;
    c.args.map = (pe_map_args){
        .width = width,
        .inputs = 4,
        .steps = 6,
        .result = 5,
        .input = {{width, 1, 0}, {part, width / part, 0}, {part, 1, 0}, {width, 1, 1}},
        .step = {{PE_MAP_SILU, 0, 0, 4},
                 {PE_MAP_MUL, 4, 1, 4},
                 {PE_MAP_MAX, 4, 2, 5},
                 {PE_MAP_ADD, 5, 3, 5},
                 {PE_MAP_SUB, 5, -1, 5},
                 {PE_MAP_MUL, -2, 5, 5}},
        .value = {0.5f, 3.f}};
    check_every_way(PE_OP_MAP, &c, width, true);
    for (int r = 0; r < ROWS; r++)
      for (int i = 0; i < width; i++) {
        double a = c.in[0].at[r * c.in[0].step + i],
               b = c.in[1].at[r * c.in[1].step + i / (width / part)];
        double y = a / (1 + exp(-a)) * b, d = c.in[2].at[r * c.in[2].step + i % part];
        CHECK_NEAR(c.out.at[r * c.out.step + i], 3 * ((y > d ? y : d) + vector[i] - 0.5), 1e-5);
      }
    pe_cpu_call same = c; /* the result over the first input */
    same.out = same.in[0];
    run_op(PE_OP_MAP, &same, pe_prim_best(), 2);
    for (int r = 0; r < ROWS; r++)
      check_bits("map in place", same.out.at + r * same.out.step, c.out.at + r * c.out.step, width);
    for (int i = 0; i < 3; i++) view_free(&c.in[i]);
    view_free(&c.out);
  }
}

static void test_map_copies(void) { /* no steps at all */
  pe_cpu_call c = call_of(ROWS, 20);
  c.in[0] = view_new(ROWS, 5), view_fill(&c.in[0], ROWS, 5);
  c.args.map = (pe_map_args){.width = 20, .inputs = 1, .result = 0, .input = {{5, 4, 0}}};
  check_every_way(PE_OP_MAP, &c, 20, true);
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < 20; i++)
      CHECK_NEAR(c.out.at[r * c.out.step + i], c.in[0].at[r * c.in[0].step + i / 4], 0);
  view_free(&c.in[0]), view_free(&c.out);
}

enum { HALF = 12 };

static pe_cpu_call rope_table(pe_rope_table_args a, const float *frequencies,
                              const float *factors) {
  pe_cpu_call c = call_of(ROWS, 2 * HALF);
  a.half = HALF, c.vec[0] = frequencies, c.vec[1] = factors, c.args.rope_table = a;
  check_every_way(PE_OP_ROPE_TABLE, &c, 2 * HALF, true);
  return c;
}

static void check_angle(const pe_cpu_call *c, int row, int i, double position_, double frequency,
                        double scale) {
  const float *t = c->out.at + row * c->out.step;
  CHECK_NEAR(t[i], cos(position_ * frequency) * scale, 1e-4);
  CHECK_NEAR(t[HALF + i], sin(position_ * frequency) * scale, 1e-4);
}

static void test_rope_table(void) {
  float f[2 * HALF];
  for (int i = 0; i < 2 * HALF; i++) f[i] = (float)pow(10000, -i / (double)HALF);
  pe_cpu_call c = rope_table((pe_rope_table_args){.scale = 1.5f}, f, NULL);
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < HALF; i++) check_angle(&c, r, i, position[r], f[i], 1.5);
  view_free(&c.out);

  c = rope_table((pe_rope_table_args){.scale = 1, .section = {4, 3, 5}}, f,
                 NULL); /* one axis after the other */
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < HALF; i++)
      check_angle(&c, r, i, position[(i < 4 ? 0 : i < 7 ? 1 : 2) * ROWS + r], f[i], 1);
  view_free(&c.out);

  c = rope_table((pe_rope_table_args){.scale = 1, .section = {6, 3, 3}, .interleaved_axes = 1}, f,
                 NULL);
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < HALF; i++)
      check_angle(&c, r, i, position[(i < 9 ? i % 3 : 0) * ROWS + r], f[i], 1);
  view_free(&c.out);

  c = rope_table((pe_rope_table_args){.scale = 2, .variants = 2, .threshold = 20}, f,
                 (const float[]){1, 3}); /* longrope */
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < HALF; i++)
      check_angle(&c, r, i, position[r], f[r < 3 ? i : HALF + i], r < 3 ? 2 : 6);
  view_free(&c.out);

  c = rope_table(
      (pe_rope_table_args){
          .scale = 1, .dynamic = 1, .threshold = 20, .dims = 24, .theta = 1e4f, .factor = 2},
      f, NULL);
  double base = 1e4 * pow(2.0 * 50 / 20 - 1, 24 / 22.0);
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < HALF; i++)
      check_angle(&c, r, i, position[r], r < 3 ? f[i] : pow(base, -2 * i / 24.0), 1);
  view_free(&c.out);
}

static void test_rope(void) {
  enum { HEADS = 3, DIM = 29 };
  for (int pairs = 0; pairs < 2; pairs++)
    for (int skip = 0; skip < 6; skip += 5) {
      pe_cpu_call c = call_of(ROWS, HEADS * DIM);
      c.in[0] = view_new(ROWS, HEADS * DIM), c.in[1] = view_new(ROWS, 2 * HALF);
      view_fill(&c.in[0], ROWS, HEADS * DIM), view_fill(&c.in[1], ROWS, 2 * HALF);
      c.args.rope = (pe_rope_args){HEADS, DIM, HALF, pairs, skip};
      check_every_way(PE_OP_ROPE, &c, HEADS * DIM, true);
      for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < HEADS; h++) {
          const float *x = c.in[0].at + r * c.in[0].step + h * DIM,
                      *y = c.out.at + r * c.out.step + h * DIM;
          const float *t = c.in[1].at + r * c.in[1].step;
          double want[DIM];
          for (int i = 0; i < DIM; i++) want[i] = x[i];
          for (int i = 0; i < HALF; i++) {
            int a = skip + (pairs ? 2 * i : i), b = skip + (pairs ? 2 * i + 1 : i + HALF);
            want[a] = (double)x[a] * t[i] - (double)x[b] * t[HALF + i];
            want[b] = (double)x[b] * t[i] + (double)x[a] * t[HALF + i];
          }
          for (int i = 0; i < DIM; i++) CHECK_NEAR(y[i], want[i], 3e-7);
        }
      view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out);
    }
}

/* ---- routes -------------------------------------------------------------------------------------------------------- */

typedef struct route_case {
  pe_route_args args;
  bool bias, factor;
} route_case;

/* The obvious way: sort all, look at positions. */
static void exact_route(const pe_route_args *a, const float *logits, const float *bias,
                        const float *factor, int *number, double *weight) {
  double score[64], choice[64], sum = 0, most = -INFINITY;
  const int n = a->experts, each = a->groups > 1 ? n / a->groups : n;
  for (int i = 0; i < n; i++) most = fmax(most, logits[i]);
  for (int i = 0; i < n; i++) sum += exp(logits[i] - most);
  for (int i = 0; i < n; i++) {
    score[i] = a->kind == PE_ROUTE_TOPK      ? logits[i]
               : a->kind == PE_ROUTE_SIGMOID ? 1 / (1 + exp(-logits[i]))
                                             : exp(logits[i] - most) / sum;
    choice[i] = score[i] + (bias ? bias[i] : 0);
  }
  if (a->groups > 1) {
    double best[16];
    for (int g = 0; g < a->groups; g++) {
      double first = -INFINITY, second = -INFINITY;
      for (int i = g * each; i < (g + 1) * each; i++)
        if (choice[i] > first)
          second = first, first = choice[i];
        else if (choice[i] > second)
          second = choice[i];
      best[g] = a->group_max ? first : first + second;
    }
    for (int g = 0; g < a->groups; g++) {
      int better = 0;
      for (int o = 0; o < a->groups; o++)
        better += best[o] > best[g] || (best[o] == best[g] && o < g);
      for (int i = g * each; better >= a->groups_kept && i < (g + 1) * each; i++)
        choice[i] = -INFINITY;
    }
  }
  for (int i = 0; i < n; i++) {
    int rank = 0;
    for (int o = 0; o < n; o++) rank += choice[o] > choice[i] || (choice[o] == choice[i] && o < i);
    if (rank < a->chosen) number[rank] = i;
  }
  sum = 0;
  for (int k = 0; k < a->chosen; k++)
    weight[k] =
        a->kind == PE_ROUTE_TOPK ? exp(score[number[k]] - score[number[0]]) : score[number[k]];
  for (int k = 0; k < a->chosen; k++) sum += weight[k];
  for (int k = 0; k < a->chosen; k++) {
    if (a->normalize || a->kind == PE_ROUTE_TOPK)
      weight[k] /= sum + (a->kind == PE_ROUTE_TOPK ? 0 : a->eps);
    weight[k] *= a->scale * (factor ? factor[number[k]] : 1);
  }
}

static void test_route(void) {
  static const route_case cases[] = {
      {{PE_ROUTE_SOFTMAX, 13, 3, 1, 1, 0, 1, 1, 0}, false, false},
      {{PE_ROUTE_SOFTMAX, 13, 3, 0, 0, 0, 0, 2.5f, 0}, false, true},
      {{PE_ROUTE_TOPK, 32, 4, 1, 1, 0, 0, 1, 0}, false, false},
      {{PE_ROUTE_SIGMOID, 16, 4, 4, 2, 0, 1, 1.5f, 1e-20f}, true, false},
      {{PE_ROUTE_SIGMOID, 16, 4, 4, 2, 1, 1, 1, 1e-20f}, false, false},
      {{PE_ROUTE_SIGMOID, 20, 20, 1, 1, 0, 0, 1, 0}, true, true},
      {{PE_ROUTE_SOFTMAX_BIASED, 24, 5, 1, 1, 0, 1, 1, 1e-9f}, true, false},
  };
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    const pe_route_args *a = &cases[k].args;
    float bias[64], factor[64];
    for (int i = 0; i < 64; i++) bias[i] = uniform() - 0.7f, factor[i] = uniform();
    pe_cpu_call c = call_of(ROWS, 2 * a->chosen);
    c.in[0] = view_new(ROWS, a->experts), view_fill(&c.in[0], ROWS, a->experts);
    for (int i = 0; i < a->experts; i++)
      c.in[0].at[i] = (float)(i % 4); /* the first row is full of ties */
    c.vec[0] = cases[k].bias ? bias : NULL, c.vec[1] = cases[k].factor ? factor : NULL,
    c.args.route = *a;
    check_every_way(PE_OP_ROUTE, &c, 2 * a->chosen, true);
    for (int r = 0; r < ROWS; r++) {
      int number[64];
      double weight[64];
      const float *out = c.out.at + r * c.out.step;
      exact_route(a, c.in[0].at + r * c.in[0].step, c.vec[0], c.vec[1], number, weight);
      for (int i = 0; i < a->chosen; i++) {
        int32_t got;
        memcpy(&got, out + i, sizeof got);
        CHECK_INT(got, number[i]);
        CHECK_NEAR(out[a->chosen + i], weight[i], 2e-6);
      }
    }
    view_free(&c.in[0]), view_free(&c.out);
  }
}

/* Whatever comes in, the numbers that come out are different and exist. */
static void test_route_of_nonsense(void) {
  static const float odd[] = {NAN, INFINITY, -INFINITY, 0, -0.f, 3e38f};
  for (int kind = 0; kind < 4; kind++)
    for (int groups = 1; groups <= 4; groups += 3) {
      pe_cpu_call c = call_of(1, 8);
      c.in[0] = view_new(1, 8);
      c.args.route = (pe_route_args){kind, 8, 4, groups, 2, 0, 1, 1, 0};
      for (int i = 0; i < 400; i++) {
        for (int e = 0; e < 8; e++) c.in[0].at[e] = i == 0 ? NAN : odd[random32() % 6];
        run_op(PE_OP_ROUTE, &c, pe_prim_best(), 1);
        unsigned seen = 0;
        for (int k = 0; k < 4; k++) {
          int32_t number;
          memcpy(&number, c.out.at + k, sizeof number);
          CHECK(number >= 0 && number < 8 && !(seen >> number & 1));
          seen |= 1u << (number & 7);
        }
      }
      view_free(&c.in[0]), view_free(&c.out);
    }
}

static void test_expert_sum(void) {
  enum { CHOSEN = 3, WIDTH = 21 };
  pe_cpu_call c = call_of(ROWS, WIDTH);
  c.in[0] = view_new(ROWS, CHOSEN * WIDTH), c.in[1] = view_new(ROWS, 2 * CHOSEN);
  view_fill(&c.in[0], ROWS, CHOSEN * WIDTH), view_fill(&c.in[1], ROWS, 2 * CHOSEN);
  c.args.expert_sum = (pe_expert_sum_args){CHOSEN, WIDTH};
  check_every_way(PE_OP_EXPERT_SUM, &c, WIDTH, true);
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < WIDTH; i++) {
      double s = 0;
      for (int k = 0; k < CHOSEN; k++)
        s += (double)c.in[1].at[r * c.in[1].step + CHOSEN + k] *
             c.in[0].at[r * c.in[0].step + k * WIDTH + i];
      CHECK_NEAR(c.out.at[r * c.out.step + i], s, 5e-7);
    }
  view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out);
}

/* ---- copies -------------------------------------------------------------------------------------------------------- */

static void test_concat_and_output(void) {
  pe_cpu_call c = call_of(ROWS, 12);
  for (int i = 0; i < 3; i++) c.in[i] = view_new(ROWS, 3 + i), view_fill(&c.in[i], ROWS, 3 + i);
  c.args.concat = (pe_concat_args){.inputs = 3, .heads = 1, .width = {3, 4, 5}};
  check_every_way(PE_OP_CONCAT, &c, 12, true);
  for (int r = 0; r < ROWS; r++)
    for (int i = 0, from = 0; i < 3; from += 3 + i, i++)
      check_bits("concat", c.out.at + r * c.out.step + from, c.in[i].at + r * c.in[i].step, 3 + i);
  pe_cpu_call o = call_of(4, 5);
  o.in[0] = c.in[2], o.args.output = (pe_output_args){5};
  check_every_way(PE_OP_OUTPUT, &o, 5, false);
  for (int r = 0; r < 4; r++)
    check_bits("output", o.out.at + r * o.out.step, o.in[0].at + output[r] * o.in[0].step, 5);
  o.rows = 0;
  run_op(PE_OP_OUTPUT, &o, pe_prim_best(), 2);
  for (int i = 0; i < 3; i++) view_free(&c.in[i]);
  view_free(&c.out), view_free(&o.out);
}

/* Heads of 3 and 2 values joined, the second given to all; and the parts taken out again. */
static void test_heads_joined_and_cut(void) {
  enum { HEADS = 4, WIDE = 3, SHARED = 2, BOTH = WIDE + SHARED };
  pe_cpu_call c = call_of(ROWS, HEADS * BOTH), s = call_of(ROWS, HEADS * SHARED);
  c.in[0] = view_new(ROWS, HEADS * WIDE), c.in[1] = view_new(ROWS, SHARED);
  view_fill(&c.in[0], ROWS, HEADS * WIDE), view_fill(&c.in[1], ROWS, SHARED);
  c.args.concat =
      (pe_concat_args){.inputs = 2, .heads = HEADS, .width = {WIDE, SHARED}, .shared = {0, 1}};
  check_every_way(PE_OP_CONCAT, &c, HEADS * BOTH, true);
  s.in[0] = c.out, s.args.slice = (pe_slice_args){HEADS, BOTH, WIDE, SHARED};
  check_every_way(PE_OP_SLICE, &s, HEADS * SHARED, true);
  for (int r = 0; r < ROWS; r++)
    for (int h = 0; h < HEADS; h++) {
      check_bits("head", c.out.at + r * c.out.step + h * BOTH,
                 c.in[0].at + r * c.in[0].step + h * WIDE, WIDE);
      check_bits("shared head", c.out.at + r * c.out.step + h * BOTH + WIDE,
                 c.in[1].at + r * c.in[1].step, SHARED);
      check_bits("slice", s.out.at + r * s.out.step + h * SHARED, c.in[1].at + r * c.in[1].step,
                 SHARED);
    }
  view_free(&c.in[0]), view_free(&c.in[1]), view_free(&c.out), view_free(&s.out);
}

static void test_names_and_tasks(void) {
  for (int op = 0; op < PE_OP_COUNT; op++) CHECK(pe_op_name((pe_op)op) && *pe_op_name((pe_op)op));
  CHECK_STR(pe_op_name(PE_OP_LINEAR), "linear");
  pe_quant_matrix m = {.cols = 4096, .rows = 4096};
  pe_cpu_call c = {.step = &all_rows, .rows = 1, .mat = &m, .args.linear = {4096, 4096, 0}};
  CHECK_INT(pe_cpu_tasks(PE_OP_LINEAR, &c, 8), 8);
  c.args.linear.out = 8; /* one unit of columns */
  CHECK_INT(pe_cpu_tasks(PE_OP_LINEAR, &c, 8), 1);
  c.rows = 0;
  CHECK_INT(pe_cpu_tasks(PE_OP_LINEAR, &c, 8), 1);
}

static const check_test tests[] = {{"embed", test_embed},
                                   {"linear", test_linear},
                                   {"linear_many_rows", test_linear_many_rows},
                                   {"expert_linear", test_expert_linear},
                                   {"expert_linear_many_rows", test_expert_linear_many_rows},
                                   {"expert_linear_transposed", test_expert_linear_transposed},
                                   {"head_linear", test_head_linear},
                                   {"norm", test_norm},
                                   {"map", test_map},
                                   {"map_copies", test_map_copies},
                                   {"rope_table", test_rope_table},
                                   {"rope", test_rope},
                                   {"route", test_route},
                                   {"route_of_nonsense", test_route_of_nonsense},
                                   {"expert_sum", test_expert_sum},
                                   {"concat_and_output", test_concat_and_output},
                                   {"heads_joined_and_cut", test_heads_joined_and_cut},
                                   {"names_and_tasks", test_names_and_tasks}};

int main(int argc, char **argv) {
  fill_step();
  return check_main("kernels", tests, sizeof tests / sizeof *tests, argc, argv);
}
