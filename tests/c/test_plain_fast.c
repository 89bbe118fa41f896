/* test_plain_fast.c - products with weights as they are stored, against their definition, bit for
 * bit, in every version that this machine runs. */
#include "check.h"
#include "guard.h"
#include "kernels/cpu/amx16.h"
#include "kernels/cpu/prim.h"

static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
enum { NAMES = sizeof names / sizeof *names };

typedef struct kind {
  const char *name;
  pe_quant quant;
  pe_dtype dtype;
  int unit; /* columns are a multiple */
} kind;
static const kind kinds[] = {{"f32", {.kind = PE_QUANT_NONE}, PE_F32, 1},
                             {"f16", {.kind = PE_QUANT_NONE}, PE_F16, 1},
                             {"bf16", {.kind = PE_QUANT_NONE}, PE_BF16, 1},
                             {"mxfp8", {PE_QUANT_MXFP8, 8, 32, PE_U8}, PE_U8, 32}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static uint32_t state = 1;
static uint32_t random_bits(void) {
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return state;
}
static float uniform(void) { return (float)(int32_t)random_bits() * 0x1p-31f; }

static bool same(float a, float b) { return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b)); }

/* ---- operands -------------------------------------------------------------------------------- */

typedef struct operands {
  const kind *kind;
  pe_quant_matrix m;
  uint8_t *bytes;
  float *x, *w, *want; /* activations; weights by the decoder; sums by the definition */
  int64_t rows, x_step;
} operands;

/* Rows of ordinary numbers, outliers, tiny ones, zeros of both signs, and (wild) NaN and infinity
 * and numbers whose sums overflow. */
static float number(int64_t row, int64_t col, bool wild) {
  const float f = uniform();
  switch (row % 7) {
  case 1: return col % 97 == 5 ? f * 1000 : f;
  case 2: return f * 1e-38f;
  case 3: return col % 3 ? -0.f : 0;
  case 4: return f * ldexpf(1, (int)(random_bits() % 60) - 30);
  case 5: return wild && random_bits() % 50 == 0 ? NAN : f;
  case 6: return wild ? (random_bits() % 90 == 0 ? -INFINITY : f * 3e38f) : f;
  default: return f;
  }
}

static void put(uint8_t *p, pe_dtype type, float f) {
  const uint16_t h = type == PE_F16 ? pe_f32_to_f16(f) : pe_f32_to_bf16(f);
  if (type == PE_F32)
    memcpy(p, &f, 4);
  else
    memcpy(p, &h, 2);
}

/* Allocations end with the data; rows are `gap` bytes further apart than they are long. */
static void open_weights(operands *o, int64_t outs, int64_t cols, uint64_t gap, bool wild) {
  pe_quant_matrix *m = &o->m;
  *m = (pe_quant_matrix){.quant = o->kind->quant, .dtype = o->kind->dtype, .rows = outs};
  m->cols = cols, m->global = 1;
  m->row_bytes = pe_quant_row_bytes(&m->quant, m->dtype, cols) + gap;
  m->scale_bytes = pe_quant_scale_bytes(&m->quant, cols);
  const uint64_t len = (uint64_t)outs * m->row_bytes - gap,
                 scales = (uint64_t)outs * m->scale_bytes;
  uint8_t *at = o->bytes = guard_new(len + scales + 1, 1); /* unaligned */
  for (uint64_t i = 0; i < len + scales; i++) at[i] = (uint8_t)(random_bits() >> 11);
  m->scales = at, m->data = at + scales;
  if (wild) return;
  for (uint64_t i = 0; i < scales; i++) at[i] = (uint8_t)(110 + random_bits() % 20);
  for (int64_t j = 0; j < outs; j++)
    for (int64_t i = 0; i < cols; i++) {
      uint8_t *row = at + scales + (uint64_t)j * m->row_bytes;
      if (o->kind->unit == 1)
        put(row + (size_t)i * pe_dtype_size(m->dtype), m->dtype, uniform());
      else if ((row[i] & 0x7f) == 0x7f)
        row[i] = 0; /* no NaN */
    }
}

/* Sixteen lanes by column modulo 16, added as a tree. */
static float definition(const float *x, const float *w, int64_t n) {
  float s[16] = {0};
  for (int64_t i = 0; i < (n + 15) / 16 * 16; i++)
    s[i % 16] = fmaf(i < n ? x[i] : 0, i < n ? w[i] : 0, s[i % 16]);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) s[i] = s[i] + s[i + half];
  return s[0];
}

static operands open_operands(const kind *k, int64_t rows, int64_t outs, int64_t cols, bool wild) {
  operands o = {.kind = k, .rows = rows, .x_step = cols + 5};
  open_weights(&o, outs, cols, wild ? 24 : 0, wild);
  o.x = guard_floats(rows * o.x_step - 5), o.w = malloc((size_t)(outs * cols) * 4);
  o.want = malloc((size_t)(rows * outs) * 4);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < cols; i++) o.x[r * o.x_step + i] = number(r, i, wild);
  pe_quant_rows(&o.m, 0, outs, o.w);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < outs; j++)
      o.want[r * outs + j] = definition(o.x + r * o.x_step, o.w + j * cols, cols);
  return o;
}

static void close_operands(operands *o) {
  guard_free(o->bytes), guard_free(o->x), free(o->w), free(o->want);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct extras {
  bool bias, residual, in_place, split;
} extras;

typedef struct version {
  const char *name;
  const pe_plain *plain;
  int64_t (*scratch)(int64_t rows, int64_t cols);
} version;

static void check_version(const version *v, const operands *o, extras e) {
  const int64_t outs = o->m.rows, step = outs + 3, size = o->rows * step;
  float *out = guard_floats(size), *more = guard_floats(size), *bias = guard_floats(outs);
  float *scratch = guard_floats(v->scratch(o->rows, o->m.cols));
  for (int64_t i = 0; i < size; i++) more[i] = uniform(), out[i] = e.in_place ? more[i] : 77;
  for (int64_t j = 0; j < outs; j++) bias[j] = uniform();
  pe_plain_product p = {.w = &o->m, .x = o->x, .x_step = o->x_step, .rows = o->rows};
  p.bias = e.bias ? bias : NULL, p.out = out, p.out_step = p.residual_step = step;
  if (e.residual) p.residual = e.in_place ? out : more;
  const int64_t cut = e.split ? outs / 3 : 0;
  v->plain->arrange(&p, scratch);
  v->plain->product(&p, cut, outs, scratch);
  if (cut) v->plain->product(&p, 0, cut, scratch);
  int bad = 0;
  for (int64_t i = 0; i < size && !bad; i++) {
    const int64_t r = i / step, j = i % step;
    float y = e.in_place ? more[i] : 77;
    if (j < outs) {
      y = o->want[r * outs + j];
      if (e.bias) y += bias[j];
      if (e.residual) y += more[i];
    }
    if (same(out[i], y)) continue;
    bad++;
    printf("    %s: %s, %d rows, %d x %d: row %d, result %d is %a, not %a\n", v->name,
           o->kind->name, (int)o->rows, (int)outs, (int)o->m.cols, (int)r, (int)j, (double)out[i],
           (double)y);
  }
  CHECK_INT(bad, 0);
  guard_free(out), guard_free(more), guard_free(bias), guard_free(scratch);
}

static void check_product(const kind *k, int64_t rows, int64_t outs, int64_t cols, int turn) {
  operands o =
      open_operands(k, rows, outs, (cols + k->unit - 1) / k->unit * k->unit, turn % 3 == 2);
  const extras e = {turn % 2, turn % 3 != 0, turn % 5 == 2, turn % 4 > 1};
  for (int i = 0; i < NAMES; i++)
    if (pe_prim_named(names[i])) {
      const version v = {names[i], pe_prim_named(names[i])->plain, pe_plain_scratch};
      check_version(&v, &o, e);
    }
  close_operands(&o);
}

static const int64_t rows_list[] = {1, 2, 3, 4, 5, 7, 8, 11, 13, 14, 15, 17, 29, 43, 64, 129};
static const int64_t outs_list[] = {1, 3, 15, 16, 31, 32, 33, 83};
static const int64_t cols_list[] = {1, 15, 16, 17, 48, 63, 64, 333, 1024, 1040};
enum { ROWS = 16, OUTS = 8, COLS = 10 };

/* Every number of rows with every number of columns; outputs and extras take turns. */
static void test_products_as_defined(void) {
  int turn = 0;
  for (int k = 0; k < KINDS; k++)
    for (int r = 0; r < ROWS; r++)
      for (int c = 0; c < COLS; c++, turn++)
        check_product(&kinds[k], rows_list[r], outs_list[turn % (rows_list[r] > 17 ? 4 : OUTS)],
                      cols_list[c], turn);
}

/* Several blocks of columns; the most rows. */
static void test_large(void) {
  for (int k = 0; k < KINDS; k++) {
    check_product(&kinds[k], 19, 40, 2085, k);
    check_product(&kinds[k], 2, 9, 3000, k + 1);
  }
  check_product(&kinds[2], 256, 33, 1100, 0);
  check_product(&kinds[2], 255, 32, 96, 1);
}

/* The bits of a row do not depend on the rows with it. */
static void test_rows_alone(void) {
  const pe_prim *prim = pe_prim_best();
  enum { R = 40, N = 33, K = 200 };
  float *scratch = malloc((size_t)pe_plain_scratch(R, K) * 4), all[R * N], one[N];
  for (int k = 0; k < KINDS; k++) {
    operands o = open_operands(&kinds[k], R, N, (K + 31) / 32 * 32, false);
    pe_plain_product p = {.w = &o.m, .x = o.x, .x_step = o.x_step, .rows = R};
    p.out = all, p.out_step = N;
    prim->plain->arrange(&p, scratch);
    prim->plain->product(&p, 0, N, scratch);
    for (int r = 0; r < R; r++) {
      p.x = o.x + r * o.x_step, p.rows = 1, p.out = one;
      prim->plain->product(&p, 0, N, scratch);
      CHECK(!memcmp(one, all + r * N, sizeof one));
    }
    close_operands(&o);
  }
  free(scratch);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

static float flushed(float f) { return fpclassify(f) == FP_SUBNORMAL ? copysignf(0, f) : f; }

/* The definition of amx16.h. */
static float tile_definition(const float *x, const float *w, int64_t n) {
  float sum = 0;
  for (int64_t k = 0; k < n; k += 32)
    for (int plane = 0; plane < 2; plane++) {
      float chain[2] = {0, 0};
      for (int64_t i = k; i < k + 32; i++) {
        const float hi = i < n ? pe_bf16_to_f32(pe_f32_to_bf16(x[i])) : 0;
        const float lo = i < n ? pe_bf16_to_f32(pe_f32_to_bf16(x[i] - hi)) : 0;
        const float a = flushed(plane ? lo : hi), b = i < n ? flushed(w[i]) : 0;
        chain[i % 2] = flushed(fmaf(b, a, chain[i % 2]));
      }
      sum = flushed(sum + flushed(chain[0] + chain[1]));
    }
  return sum;
}

static void check_tiles(int64_t rows, int64_t outs, int64_t cols, int turn) {
  operands o = open_operands(&kinds[2], rows, outs, cols, turn % 3 == 2);
  const extras e = {turn % 2, turn % 3 != 0, turn % 5 == 2, turn % 4 > 1};
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < outs; j++) {
      float *want = o.want + r * outs + j, exact = *want;
      *want = tile_definition(o.x + r * o.x_step, o.w + j * cols, cols);
      if (turn % 3 != 2 && (r % 7 == 0 || r % 7 == 5)) /* ordinary numbers */
        CHECK_NEAR(*want, exact, 1e-5 * sqrt((double)cols) + 1e-6);
    }
  const version emulated = {"amx16_emulated", &pe_amx16_emulated.plain, pe_amx16_scratch};
  check_version(&emulated, &o, e);
  if (pe_amx16_best()) {
    const version tiles = {"amx16", &pe_amx16_best()->plain, pe_amx16_scratch};
    check_version(&tiles, &o, e);
  }
  close_operands(&o);
}

static void test_tiles_as_defined(void) {
  int turn = 0;
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < COLS - 3; c++, turn++)
      check_tiles(rows_list[r], outs_list[turn % (rows_list[r] > 17 ? 4 : OUTS)], cols_list[c],
                  turn);
  check_tiles(37, 83, 333, 1);
  check_tiles(70, 600, 40, 3); /* two strips */
}

static void add_rows(const void *ctx, float *y, const float *other, int64_t n) {
  (void)ctx;
  for (int64_t i = 0; i < n; i++) y[i] -= other[i];
}

/* Two matrices with values that are arranged in parts: the difference of their products. */
static void check_joined(const pe_amx16_version *v, int64_t rows, int64_t outs, int64_t cols) {
  operands a = open_operands(&kinds[2], rows, outs, cols, false);
  operands b = open_operands(&kinds[2], rows, outs, cols, false);
  uint8_t *planes = guard_new(pe_amx16_bytes(rows, cols), 64);
  float *out = guard_floats(rows * outs), *bias = guard_floats(outs);
  float *scratch = guard_floats(pe_amx16_room(cols));
  const pe_amx16_rows x = {rows, cols, planes};
  const pe_amx16_product p = {.w = {&a.m, &b.m},
                              .bias = {NULL, bias},
                              .x = &x,
                              .out = out,
                              .out_step = outs,
                              .join = add_rows};
  for (int64_t j = 0; j < outs; j++) bias[j] = uniform();
  const int64_t parts = pe_amx16_parts(rows, cols);
  v->arrange(&x, a.x, a.x_step, parts / 2, parts);
  v->arrange(&x, a.x, a.x_step, 0, parts / 2);
  v->product(&p, 0, outs, scratch);
  int bad = 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < outs; j++) {
      const float *at = a.x + r * a.x_step;
      const float first = tile_definition(at, a.w + j * cols, cols);
      const float second = tile_definition(at, b.w + j * cols, cols) + bias[j];
      if (!same(out[r * outs + j], first - second)) bad++;
    }
  CHECK_INT(bad, 0);
  close_operands(&a), close_operands(&b);
  guard_free(planes), guard_free(out), guard_free(bias), guard_free(scratch);
}

static void test_tiles_joined(void) {
  static const int64_t shapes[][3] = {{1, 64, 64}, {7, 48, 40}, {33, 300, 64}, {50, 40, 96}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    check_joined(&pe_amx16_emulated, shapes[i][0], shapes[i][1], shapes[i][2]);
    if (pe_amx16_best()) check_joined(pe_amx16_best(), shapes[i][0], shapes[i][1], shapes[i][2]);
  }
}

static void test_tiles_of_this_machine(void) {
  if (!pe_amx16_best()) CHECK_SKIP("this machine lacks AMX with bf16");
}

static void test_kinds(void) {
  pe_quant_matrix m = {.quant = {.kind = PE_QUANT_NONE}, .dtype = PE_BF16};
  CHECK(pe_plain_supported(&m));
  m.dtype = PE_I32;
  CHECK(!pe_plain_supported(&m));
  m.quant.kind = PE_QUANT_MXFP8;
  CHECK(pe_plain_supported(&m));
  m.quant.kind = PE_QUANT_Q4_0;
  CHECK(!pe_plain_supported(&m));
}

static const check_test tests[] = {{"kinds", test_kinds},
                                   {"products_as_defined", test_products_as_defined},
                                   {"large", test_large},
                                   {"rows_alone", test_rows_alone},
                                   {"tiles_as_defined", test_tiles_as_defined},
                                   {"tiles_joined", test_tiles_joined},
                                   {"tiles_of_this_machine", test_tiles_of_this_machine}};
CHECK_MAIN("plain_fast", tests)
