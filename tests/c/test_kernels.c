/* test_kernels.c - the CPU ops with weights and experts: each against a simple implementation in
 * double precision, and equal bit for bit in scalar and vector code, with any number of tasks, rows
 * together or alone. Ops on single rows are in test_kernels_row.c, ops that need the past of a
 * sequence in test_memory.c. */
#include "kernels_step.h"

/* ---- products -------------------------------------------------------------------------------- */

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
    c.mat = &m, c.args.embed = (pe_embed_args){.scale = 3.5f};
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

/* Rows with a feature: its first plane, or a row of the table for all of them; deepstack adds
 * another plane. */
static void test_features(void) {
  enum { WIDTH = 33, PLANES = 3 };
  static const int32_t line[ROWS] = {-1, 1, 0, -1, -1, 2, 3};
  float features[4 * PLANES * WIDTH];
  for (int i = 0; i < 4 * PLANES * WIDTH; i++) features[i] = uniform();
  pe_step step = all_rows;
  step.features = features, step.feature = line;
  step.feature_planes = PLANES, step.feature_width = WIDTH;
  pe_quant_matrix m;
  random_matrix(0, 11, WIDTH, &m);
  for (int op = 0; op < 3; op++) {
    pe_cpu_call c = call_of(ROWS, WIDTH);
    c.step = &step, c.mat = &m, c.in[0] = view_new(ROWS, WIDTH);
    view_fill(&c.in[0], ROWS, WIDTH);
    if (op < 2)
      c.args.embed = (pe_embed_args){3.5f, op ? 8 : 0};
    else
      c.args.deepstack = (pe_deepstack_args){WIDTH, 2};
    check_every_way(op < 2 ? PE_OP_EMBED : PE_OP_DEEPSTACK, &c, WIDTH, false);
    for (int r = 0; r < ROWS; r++)
      for (int64_t i = 0; i < WIDTH; i++) {
        const float *feature = line[r] < 0 ? NULL : features + line[r] * PLANES * WIDTH + i;
        float want;
        pe_quant_row(&m, feature ? 7 : token[r], i, 1, &want);
        want *= 3.5f;
        if (op == 0 && feature) want = *feature;
        if (op == 2) want = c.in[0].at[r * c.in[0].step + i] + (feature ? feature[2 * WIDTH] : 0);
        CHECK_NEAR(c.out.at[r * c.out.step + i], want, 0);
      }
    view_free(&c.in[0]), view_free(&c.out);
  }
  matrix_free(&m);
}

/* The allowed error of a sum of n products of numbers around 1. */
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

/* Matrices as [in, out], more columns than one task takes, more rows per expert than GATHERED. */
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

/* More rows of one expert than GATHERED. */
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

/* ---- routes ---------------------------------------------------------------------------------- */

typedef struct route_case {
  pe_route_args args;
  bool bias, factor;
} route_case;

/* The simple way: sort all scores. */
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

/* The chosen numbers are distinct and valid for any input, including NaN. */
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

static void test_names_and_tasks(void) {
  for (int op = 0; op < PE_OP_COUNT; op++) CHECK(pe_op_name((pe_op)op) && *pe_op_name((pe_op)op));
  CHECK_STR(pe_op_name(PE_OP_LINEAR), "linear");
  CHECK_STR(pe_map_name(PE_MAP_GELU_TANH), "gelu_tanh");
  CHECK_STR(pe_map_name(PE_MAP_MAX), "max");
  for (int op = 0; op < PE_MAP_COUNT; op++) CHECK_INT(pe_map_is_unary(op), op < PE_MAP_ADD);
  pe_quant_matrix m = {.cols = 4096, .rows = 4096};
  pe_cpu_call c = {.step = &all_rows, .rows = 1, .mat = &m, .args.linear = {4096, 4096, 0}};
  const pe_cpu_op *linear = pe_cpu_op_of(PE_OP_LINEAR, PE_EXACT);
  int large = 5;
  CHECK_INT(pe_cpu_tasks(linear, &c, 2, &large), 8);
  CHECK_INT(large, 0);
  c.args.linear.out = 8; /* one unit of columns */
  CHECK_INT(pe_cpu_tasks(linear, &c, 8, &large), 1);
  c.rows = 0;
  CHECK_INT(pe_cpu_tasks(linear, &c, 8, &large), 1);
}

/* Pieces of weights: as many for each thread, 256 KB or more. If there would be one for each of
 * many threads, a large one and four small ones, unless these would have less than 16 KB. */
static void test_pieces(void) {
  static const struct {
    int64_t rows, cols;
    int threads, tasks, large;
  } cases[] = {{1024, 1024, 2, 2, 0},   {2048, 1024, 2, 4, 0},     {3072, 1024, 2, 6, 0},
               {3072, 1024, 16, 16, 0}, {2048, 1024, 16, 16, 0},   {64, 1024, 16, 2, 0},
               {1024, 3072, 2, 6, 0},   {1024, 3072, 16, 80, 16},  {1024, 3072, 4, 20, 4},
               {1024, 3072, 3, 6, 0},   {240, 3072, 4, 4, 0},      {151936, 1024, 2, 64, 0},
               {3072, 1024, 1, 6, 0},   {151936, 1024, 16, 320, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_quant_matrix m = {.quant = {PE_QUANT_AFFINE, 4, 64, PE_BF16},
                         .dtype = PE_BF16,
                         .rows = cases[i].rows,
                         .cols = cases[i].cols};
    pe_pack pack;
    pe_pack_describe(&m, &pack);
    pe_int16_rows x;
    void *room = malloc(pe_int16_bytes(512, m.cols, pack.act));
    pe_int16_place(pe_int16_best(), 1, m.cols, pack.act, room, &x);
    pe_cpu_call c = {.rows = 1, .pack = &pack, .rounded = {&x}};
    int large = -1;
    CHECK_INT(pe_cpu_tasks(&pe_cpu_packed_linear, &c, cases[i].threads, &large), cases[i].tasks);
    CHECK_INT(large, cases[i].large);
    c.rows = 512; /* it multiplies longer than it reads */
    pe_int16_place(pe_int16_best(), 512, m.cols, pack.act, room, &x);
    const int tasks = pe_cpu_tasks(&pe_cpu_packed_linear, &c, cases[i].threads, &large);
    CHECK(large == 0 || large == cases[i].threads);
    CHECK(tasks <= (large ? 5 : 4) * cases[i].threads);
    free(room);
  }
}

/* Tasks cover all items, those of a thread one after the other, and large ones take four times as
 * many. */
static void test_large_tasks(void) {
  for (int threads = 1; threads <= 17; threads++)
    for (int64_t items = 0; items <= 300; items += 7) {
      int64_t next = 0, from, to;
      for (int i = 0; i < 5 * threads; i++, next = to) {
        const int task = i / 5 + i % 5 * threads;
        const pe_cpu_share s = {.task = task, .tasks = 5 * threads, .large = threads};
        pe_cpu_range(&s, items, &from, &to);
        CHECK_INT(from, next);
        const double fair = (double)items / threads * (task < threads ? 4 : 1) / 8;
        CHECK((double)(to - from) > fair - 1 && (double)(to - from) < fair + 1);
      }
      CHECK_INT(next, items);
    }
}

/* All tasks with one scratch, as a thread runs them. */
static void run_alone(const pe_cpu_op *op, const pe_cpu_call *c, int tasks) {
  const size_t bytes = (size_t)(pe_cpu_scratch(op, c) + 16) * sizeof(float);
  pe_cpu_share share = {.tasks = tasks, .scratch = pe_alloc_aligned(bytes, 64)};
  memset(share.scratch, 0xff, bytes);
  for (share.task = 0; share.task < tasks; share.task++, share.again = true) op->run(c, &share);
  pe_free(share.scratch);
}

/* Products whose threads round the input themselves give the same bits as those of a rounded
 * input. */
static void test_rounds(void) {
  enum { IN = 192, OUT = 100, MOST = 3 };
  const pe_quant q4 = {PE_QUANT_AFFINE, 4, 64, PE_BF16}, other = {PE_QUANT_AFFINE, 4, 32, PE_BF16};
  for (int two = 0; two < 2; two++) { /* gate and up with groups of the same size, or not */
    pe_quant_matrix m[2];
    pe_pack pack[2];
    pe_int16_rows x[2];
    uint8_t *room[2];
    pe_cpu_call c = {.rows = MOST, .prim = pe_prim_best(), .int16 = pe_int16_best()};
    c.in[0] = view_new(MOST, IN), c.out = view_new(MOST, OUT);
    view_fill(&c.in[0], MOST, IN);
    pe_cpu_view want = view_new(MOST, OUT);
    for (int i = 0; i < 2; i++) {
      matrix_new(two && i ? other : q4, PE_BF16, OUT, IN, &m[i]);
      pe_pack_describe(&m[i], &pack[i]);
      pack[i].data = pe_alloc_aligned(pe_pack_bytes(&m[i]), PE_PACK_ALIGN);
      pe_pack_fill(&pack[i], &m[i], 0, pe_pack_panels(&pack[i]));
      room[i] = pe_alloc_aligned(pe_int16_bytes(MOST, IN, pack[i].act), PE_PACK_ALIGN);
      pe_int16_place(c.int16, MOST, IN, pack[i].act, room[i], &x[i]);
      c.int16->quantize(&x[i], c.in[0].at, c.in[0].step, pe_int16_whole(&x[i], 0, MOST));
    }
    c.pack = &pack[0], c.pack2 = &pack[1], c.rounded[0] = &x[0], c.rounded[1] = &x[two];
    c.args.gated = (pe_gated_args){IN, OUT, PE_MAP_SILU};
    pe_cpu_call rounds = c;
    rounds.rounds = true, c.out = want;
    run_alone(&pe_cpu_packed_gated, &c, 1);
    for (int i = 0; i < 2; i++) memset(room[i], 0, pe_int16_bytes(MOST, IN, pack[i].act));
    for (int tasks = 1; tasks < 5; tasks += 3) {
      run_alone(&pe_cpu_packed_gated, &rounds, tasks);
      for (int r = 0; r < MOST; r++)
        check_bits("gated", rounds.out.at + r * rounds.out.step, want.at + r * want.step, OUT);
    }
    for (int i = 0; i < 2; i++) pe_free(pack[i].data), pe_free(room[i]), matrix_free(&m[i]);
    view_free(&c.in[0]), view_free(&rounds.out), view_free(&want);
  }
}

/* Results that are rounded where they are computed are those that are rounded afterwards, for few
 * rows and for several tiles; the last unit of columns is not a whole one. */
static void test_rounded_results(void) {
  enum { IN = 128, OUT = 352 };
  const pe_quant q4 = {PE_QUANT_AFFINE, 4, 64, PE_BF16};
  static const int counts[] = {1, 3, 16, 75};
  pe_quant_matrix m[2];
  pe_pack pack[2];
  for (int i = 0; i < 2; i++) {
    matrix_new(q4, PE_BF16, OUT, IN, &m[i]);
    pe_pack_describe(&m[i], &pack[i]);
    pack[i].data = pe_alloc_aligned(pe_pack_bytes(&m[i]), PE_PACK_ALIGN);
    pe_pack_fill(&pack[i], &m[i], 0, pe_pack_panels(&pack[i]));
  }
  for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
    const int rows = counts[k];
    pe_cpu_call c = {.rows = rows, .int16 = pe_int16_best(), .pack = &pack[0], .pack2 = &pack[1]};
    c.args.gated = (pe_gated_args){IN, OUT, PE_MAP_SILU};
    c.in[0] = view_new(rows, IN), c.out = view_new(rows, OUT);
    view_fill(&c.in[0], rows, IN);
    uint8_t *room = pe_alloc_aligned(pe_int16_bytes(rows, IN, 64), PE_PACK_ALIGN);
    pe_int16_rows x;
    pe_int16_place(c.int16, rows, IN, 64, room, &x);
    c.int16->quantize(&x, c.in[0].at, c.in[0].step, pe_int16_whole(&x, 0, rows));
    c.rounded[0] = c.rounded[1] = &x;
    for (int tasks = 1; tasks < 8; tasks += 3) {
      run_kernel(&pe_cpu_packed_gated, &c, pe_prim_best(), tasks);
      check_rounded(&pe_cpu_packed_gated, &c, pe_prim_best(), tasks, OUT, 32);
      check_rounded(&pe_cpu_packed_gated, &c, pe_prim_best(), tasks, OUT, 16);
    }
    view_free(&c.in[0]), view_free(&c.out), pe_free(room);
  }
  for (int i = 0; i < 2; i++) pe_free(pack[i].data), matrix_free(&m[i]);
}

static const check_test tests[] = {{"embed", test_embed},
                                   {"features", test_features},
                                   {"linear", test_linear},
                                   {"linear_many_rows", test_linear_many_rows},
                                   {"expert_linear", test_expert_linear},
                                   {"expert_linear_transposed", test_expert_linear_transposed},
                                   {"expert_linear_many_rows", test_expert_linear_many_rows},
                                   {"head_linear", test_head_linear},
                                   {"route", test_route},
                                   {"route_of_nonsense", test_route_of_nonsense},
                                   {"expert_sum", test_expert_sum},
                                   {"names_and_tasks", test_names_and_tasks},
                                   {"pieces", test_pieces},
                                   {"large tasks", test_large_tasks},
                                   {"rounds", test_rounds},
                                   {"rounded results", test_rounded_results}};

int main(int argc, char **argv) {
  fill_step();
  return check_main("kernels", tests, sizeof tests / sizeof *tests, argc, argv);
}
