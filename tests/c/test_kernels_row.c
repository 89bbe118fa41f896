/* test_kernels_row.c - norms, maps, ropes and copies, as in test_kernels.c. */
#include "kernels_step.h"

/* ---- norms, maps, ropes ---------------------------------------------------------------------- */

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

/* silu(a) * b + 0.5, with every form of input: full width, each value repeated, the whole input
 * repeated, a vector. */
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

static void test_map_copies(void) { /* a map without steps */
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
  a.turns = HALF, c.vec[0] = frequencies, c.vec[1] = factors, c.args.rope_table = a;
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
      c.args.rope =
          (pe_rope_args){.heads = HEADS, .dim = DIM, .turns = HALF, .pairs = pairs, .skip = skip};
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

/* A norm in front of the rotation gives the bits of the two ops. */
static void test_rope_normalizes(void) {
  enum { HEADS = 3, DIM = 32 };
  float weight[DIM];
  for (int i = 0; i < DIM; i++) weight[i] = uniform();
  for (int weights = 0; weights <= DIM; weights += DIM) {
    pe_cpu_call n = call_of(ROWS, HEADS * DIM), c = call_of(ROWS, HEADS * DIM);
    n.in[0] = view_new(ROWS, HEADS * DIM), c.in[1] = view_new(ROWS, 2 * HALF);
    view_fill(&n.in[0], ROWS, HEADS * DIM), view_fill(&c.in[1], ROWS, 2 * HALF);
    n.args.norm = (pe_norm_args){
        .width = DIM, .count = HEADS, .weights = weights, .eps = 1e-6f, .offset = 1, .scale = 2};
    n.vec[0] = weights ? weight : NULL;
    c.args.rope = (pe_rope_args){.heads = HEADS, .dim = DIM, .turns = HALF};
    c.in[0] = n.out;
    run_op(PE_OP_NORM, &n, pe_prim_best(), 1);
    run_op(PE_OP_ROPE, &c, pe_prim_best(), 1);
    pe_cpu_call one = c;
    one.out = view_new(ROWS, HEADS * DIM), one.in[0] = n.in[0], one.vec[0] = n.vec[0];
    one.args.rope.norm = n.args.norm;
    run_op(PE_OP_ROPE, &one, pe_prim_best(), 2);
    for (int r = 0; r < ROWS; r++)
      check_bits("a row", one.out.at + r * one.out.step, c.out.at + r * c.out.step, HEADS * DIM);
    view_free(&n.in[0]), view_free(&n.out), view_free(&c.in[1]);
    view_free(&c.out), view_free(&one.out);
  }
}

/* ---- copies ---------------------------------------------------------------------------------- */

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

/* Joins heads of 3 and 2 values, the second shared by all, and slices the parts out again. */
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

/* As many inputs as an op may have, all shared by two heads. */
static void test_concat_of_six(void) {
  pe_cpu_call c = call_of(ROWS, 2 * PE_OP_VIEWS);
  c.args.concat = (pe_concat_args){.inputs = PE_OP_VIEWS, .heads = 2};
  for (int i = 0; i < PE_OP_VIEWS; i++) {
    c.in[i] = view_new(ROWS, 1), view_fill(&c.in[i], ROWS, 1);
    c.args.concat.width[i] = c.args.concat.shared[i] = 1;
  }
  check_every_way(PE_OP_CONCAT, &c, 2 * PE_OP_VIEWS, true);
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < 2 * PE_OP_VIEWS; i++)
      check_bits("input", c.out.at + r * c.out.step + i,
                 c.in[i % PE_OP_VIEWS].at + r * c.in[i % PE_OP_VIEWS].step, 1);
  for (int i = 0; i < PE_OP_VIEWS; i++) view_free(&c.in[i]);
  view_free(&c.out);
}

/* Keys of a block, written and read in parts: where each number lies, and that nothing else is
 * touched. */
static void check_keys(int32_t key, int32_t value, int32_t block, pe_kv_type type, int32_t from,
                       int32_t n) {
  const pe_cache_args a = {0, 1, key, value, block, (int32_t)type};
  const int32_t bytes = pe_kv_row_bytes(type, key), size = bytes / key, panel = pe_kv_panel(&a);
  const bool turned = type == PE_KV_F16 && value;
  uint8_t *head = guard_new((size_t)(block * bytes), 2), *rows = guard_new((size_t)(n * bytes), 1);
  uint8_t *back = guard_new((size_t)(n * bytes), 1);
  CHECK_INT(panel, !turned ? 0 : block < 64 ? block : 64);
  for (int32_t i = 0; i < n * bytes; i++) rows[i] = (uint8_t)(random32() % 255);
  pe_kv_put_keys(&a, head, from, n, rows);
  pe_kv_get_keys(&a, head, from, n, back);
  CHECK(!memcmp(back, rows, (size_t)(n * bytes)));
  for (int32_t t = 0; t < block; t++)
    for (int32_t i = 0; i < key; i++) {
      const int32_t at = turned ? t / panel * panel * key + i * panel + t % panel : t * key + i;
      uint8_t none[4] = {0xff, 0xff, 0xff, 0xff};
      const uint8_t *want = t >= from && t < from + n ? rows + (t - from) * bytes + i * size : none;
      if (!memcmp(head + at * size, want, (size_t)size)) continue;
      check_failures++;
      printf("    %d of %d keys of %d: number %d of token %d\n", n, block, key, i, t);
      t = block;
      break;
    }
  guard_free(head), guard_free(rows), guard_free(back);
}

static void test_keys(void) {
  static const int32_t blocks[] = {4, 8, 20, 32, 64, 128}, keys[] = {1, 7, 8, 17};
  for (int b = 0; b < 6; b++)
    for (int k = 0; k < 4; k++)
      for (int32_t from = 0; from < blocks[b]; from += 1 + blocks[b] / 9)
        for (int32_t n = 1; from + n <= blocks[b]; n += n < 9 ? 1 : 11) {
          check_keys(keys[k], 8, blocks[b], PE_KV_F16, from, n);
          if (from == n) check_keys(keys[k], 0, blocks[b], PE_KV_F16, from, n);
          if (from == n) check_keys(keys[k], 8, blocks[b], PE_KV_F32, from, n);
        }
}

static const check_test tests[] = {{"norm", test_norm},
                                   {"keys", test_keys},
                                   {"map", test_map},
                                   {"map_copies", test_map_copies},
                                   {"rope_table", test_rope_table},
                                   {"rope", test_rope},
                                   {"rope_normalizes", test_rope_normalizes},
                                   {"concat_and_output", test_concat_and_output},
                                   {"concat_of_six", test_concat_of_six},
                                   {"heads_joined_and_cut", test_heads_joined_and_cut}};

int main(int argc, char **argv) {
  fill_step();
  return check_main("kernels_row", tests, sizeof tests / sizeof *tests, argc, argv);
}
