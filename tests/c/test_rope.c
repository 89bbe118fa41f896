/* test_rope.c - rotary frequencies of every kind, against values of the references' formulas, and
 * what is refused. All ropes here have theta 100 and four rotations. */
#include "check.h"
#include "runtime/graph/rope.h"

enum { HALF = 4 };
static const double short_factor[HALF] = {1, 2, 4, 8}, long_factor[HALF] = {2, 4, 8, 16},
                    divisor[HALF] = {1, 2, 1, 4};

static pe_rope_spec spec(pe_rope_kind kind) {
  return (pe_rope_spec){.kind = kind, .dims = 2 * HALF, .turning = HALF, .theta = 100, .factor = 2};
}

static pe_rope_spec yarn(double original, double fast, double slow, bool truncate) {
  pe_rope_spec s = spec(PE_ROPE_YARN);
  s.original = original, s.beta_fast = fast, s.beta_slow = slow, s.truncate = truncate;
  return s;
}

static void check_rope(const char *what, pe_rope_spec s, const double *want, double scale) {
  pe_rope rope;
  pe_error err;
  CHECK_OK(pe_rope_make(&s, &rope, &err), err);
  for (int i = 0; i < HALF; i++)
    if (fabs(rope.frequency[i] - want[i]) > 1e-6 * want[i])
      check_failures++, printf("    %s: frequency %d is %.9g, not %.9g\n", what, i,
                               (double)rope.frequency[i], want[i]);
  CHECK_NEAR((double)rope.args.scale, scale, 1e-6);
  CHECK_INT(rope.args.turns, HALF);
  CHECK_INT(rope.args.dims, 2 * HALF);
  CHECK_NEAR((double)rope.args.theta, 100, 0);
  CHECK_NEAR((double)rope.factor[0], 1, 0);
  CHECK_NEAR((double)rope.factor[1], 1, 0);
}

static void test_frequencies(void) {
  const double plain[] = {1, 0.316227766, 0.1, 0.0316227766},
               half[] = {0.5, 0.158113883, 0.05, 0.0158113883};
  check_rope("default", spec(PE_ROPE_DEFAULT), plain, 1);
  check_rope("dynamic", spec(PE_ROPE_DYNAMIC), plain, 1);
  check_rope("linear", spec(PE_ROPE_LINEAR), half, 1);
  check_rope("proportional", spec(PE_ROPE_PROPORTIONAL), (double[]){0.5, 0.158113883, 0, 0}, 1);
  pe_rope_spec s = spec(PE_ROPE_DEFAULT);
  s.divisor = divisor;
  check_rope("divisor", s, (double[]){1, 0.158113883, 0.1, 0.00790569415}, 1);
  s = spec(PE_ROPE_LLAMA3);
  s.original = 64, s.factor = 8, s.low_freq_factor = 1, s.high_freq_factor = 4;
  check_rope("llama3", s, (double[]){1, 0.244384599, 0.013042256, 0.00395284708}, 1);
  s = spec(PE_ROPE_GRID);
  s.section[0] = s.section[1] = HALF / 2;
  check_rope("grid", s, (double[]){1, 0.1, 1, 0.1}, 1);
  s.kind = PE_ROPE_GRID_TURNS;
  check_rope("grid_turns", s, (double[]){1, 0.1, 0.316227766, 0.0316227766}, 1);
}

static void test_yarn(void) {
  const double scale = 1.0693147180559945; /* 0.1 log 2 + 1 */
  const double truncated[] = {1, 0.316227766, 0.0875, 0.0237170825};
  check_rope("yarn", yarn(1000, 32, 1, true), truncated, scale);
  check_rope("not truncated", yarn(1000, 32, 1, false),
             (double[]){1, 0.316227766, 0.0899236006, 0.0231839098}, scale);
  check_rope("beyond the last dimension", yarn(1e6, 5e4, 5, true),
             (double[]){1, 0.316227766, 0.0916666667, 0.0263523138}, scale);
  check_rope("before the first", yarn(7, 32, 1, true),
             (double[]){1, 0.158113883, 0.05, 0.0158113883}, scale);
  pe_rope_spec s = yarn(1000, 32, 1, true);
  s.mscale = 3;
  check_rope("mscale alone", s, truncated, scale);
  s.mscale_all_dim = 2;
  check_rope("mscale", s, truncated, 1.060875571856529);
  s.attention_factor = 0.5;
  check_rope("attention_factor", s, truncated, 0.5);
  s = yarn(1000, 32, 1, true);
  s.factor = 1;
  check_rope("factor 1", s, (double[]){1, 0.316227766, 0.1, 0.0316227766}, 1);
}

static void test_variants(void) {
  pe_rope rope;
  pe_error err;
  pe_rope_spec s = spec(PE_ROPE_LONGROPE);
  s.original = 64, s.factor = 4, s.short_factor = short_factor, s.long_factor = long_factor;
  const double near[] = {1, 0.158113883, 0.025, 0.00395284708};
  check_rope("longrope", s, near, 1.1547005383792517);
  CHECK_OK(pe_rope_make(&s, &rope, &err), err);
  for (int i = 0; i < HALF; i++) CHECK_NEAR((double)rope.frequency[HALF + i], near[i] / 2, 1e-6);
  CHECK_INT(rope.args.variants, 2);
  CHECK_INT(rope.args.threshold, 64);
  CHECK_INT(rope.args.dynamic, 0);
  s.factor = 1;
  check_rope("longrope, factor 1", s, near, 1);
  s.attention_factor = 0.25;
  check_rope("longrope, attention_factor", s, near, 0.25);
  s = spec(PE_ROPE_DYNAMIC);
  s.max_position = 33;
  CHECK_OK(pe_rope_make(&s, &rope, &err), err);
  CHECK_INT(rope.args.variants, 1);
  CHECK_INT(rope.args.threshold, 33);
  CHECK_INT(rope.args.dynamic, 1);
  CHECK_NEAR((double)rope.args.factor, 2, 0);
  s = spec(PE_ROPE_DEFAULT);
  s.growth = 0.5, s.original = 10, s.interleaved_axes = true;
  s.section[0] = 2, s.section[1] = 1, s.section[2] = 1;
  CHECK_OK(pe_rope_make(&s, &rope, &err), err);
  CHECK_NEAR((double)rope.args.growth, 0.5, 0);
  CHECK_INT(rope.args.every, 10);
  CHECK_INT(rope.args.interleaved_axes, 1);
  CHECK_INT(rope.args.section[0] * 100 + rope.args.section[1] * 10 + rope.args.section[2], 211);
  s.growth = 0;
  CHECK_OK(pe_rope_make(&s, &rope, &err), err);
  CHECK_INT(rope.args.every, 0);
}

static void refused(pe_rope_spec s, pe_status code, const char *part) {
  pe_rope rope;
  pe_error err;
  CHECK_FAILS(pe_rope_make(&s, &rope, &err), code, err, part);
}

static void test_refused(void) {
  pe_rope rope;
  pe_error err;
  pe_rope_spec s = spec(PE_ROPE_DEFAULT);
  for (int dims = 2; dims <= PE_ROPE_MAX; dims += PE_ROPE_MAX - 2) {
    s.dims = dims;
    CHECK_OK(pe_rope_make(&s, &rope, &err), err);
  }
  const int wrong[] = {0, 1, 3, PE_ROPE_MAX + 2, -2};
  for (int i = 0; i < 5; i++)
    s.dims = wrong[i], refused(s, PE_ESHAPE, "must be even and between 2 and 1024, got");
  s = spec(PE_ROPE_DEFAULT);
  s.theta = 0, refused(s, PE_EARG, "theta must be positive and finite, got 0");
  s.theta = INFINITY, refused(s, PE_EARG, "theta must be positive and finite, got inf");
  const pe_rope_kind scaled[] = {PE_ROPE_LINEAR, PE_ROPE_LLAMA3, PE_ROPE_YARN, PE_ROPE_DYNAMIC,
                                 PE_ROPE_PROPORTIONAL};
  for (int i = 0; i < 5; i++) {
    s = spec(scaled[i]), s.factor = 0;
    refused(s, PE_EARG, "the factor must be positive, got 0");
  }
  const pe_rope_kind original[] = {PE_ROPE_LLAMA3, PE_ROPE_YARN, PE_ROPE_LONGROPE};
  for (int i = 0; i < 3; i++)
    refused(spec(original[i]), PE_EARG, "original_max_position_embeddings must be positive, got 0");
  s = spec(PE_ROPE_DEFAULT), s.growth = 1, s.original = 0.5;
  refused(s, PE_EARG, "original_max_position_embeddings must be 1 or more, got 0.5");
  s.original = 1;
  CHECK_OK(pe_rope_make(&s, &rope, &err), err);
  for (int i = 0; i < 3; i++) {
    s = spec(PE_ROPE_DEFAULT), s.section[i] = HALF;
    CHECK_OK(pe_rope_make(&s, &rope, &err), err);
    s.section[i] = HALF + 1, refused(s, PE_ESHAPE, "do not fit the 4 of a head");
    s.section[i] = -1, refused(s, PE_ESHAPE, "do not fit the 4 of a head");
  }
  for (int i = 0; i < 2; i++) {
    s = spec(i ? PE_ROPE_GRID : PE_ROPE_GRID_TURNS);
    s.section[0] = 2, s.section[1] = 1;
    refused(s, PE_EARG, "a grid of 8 values needs two sections of 2 rotations, got 2 and 1");
    s.section[0] = 1, s.section[1] = 2, refused(s, PE_EARG, "got 1 and 2");
    s.dims = 6, s.section[0] = s.section[1] = 1, refused(s, PE_EARG, "a grid of 6 values");
  }
  s = spec(PE_ROPE_LONGROPE), s.original = 1, s.short_factor = short_factor;
  refused(s, PE_EARG, "longrope needs short_factor and long_factor");
  s.short_factor = NULL, s.long_factor = long_factor;
  refused(s, PE_EARG, "longrope needs short_factor and long_factor");
}

static void test_names(void) {
  static const struct {
    const char *name;
    int kind;
  } want[] = {{"default", PE_ROPE_DEFAULT},
              {"linear", PE_ROPE_LINEAR},
              {"llama3", PE_ROPE_LLAMA3},
              {"yarn", PE_ROPE_YARN},
              {"dynamic", PE_ROPE_DYNAMIC},
              {"longrope", PE_ROPE_LONGROPE},
              {"su", PE_ROPE_LONGROPE},
              {"mrope", PE_ROPE_DEFAULT},
              {"grid", PE_ROPE_GRID},
              {"proportional", PE_ROPE_PROPORTIONAL},
              {"", -1},
              {"grid_turns", PE_ROPE_GRID_TURNS},
              {"Yarn", -1}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    CHECK_INT(pe_rope_find(want[i].name), want[i].kind);
}

static const check_test tests[] = {{"frequencies", test_frequencies},
                                   {"yarn", test_yarn},
                                   {"variants", test_variants},
                                   {"refused", test_refused},
                                   {"names", test_names}};
CHECK_MAIN("rope", tests)
