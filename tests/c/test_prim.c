/* test_prim.c - the inner loops: the scalar version against their definition, every other version
 * against the scalar one, bit for bit, with odd sizes, unaligned addresses and special numbers. */
#include "check.h"
#include "kernels/cpu/prim.h"

#include <sys/mman.h>
#include <unistd.h>

static uint64_t random_state = 88172645463325252ull;
static uint32_t random32(void) {
  random_state ^= random_state << 13, random_state ^= random_state >> 7,
      random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 16);
}
static float uniform(void) { return (float)(random32() >> 8) * 0x1p-23f - 1; }

/* Ordinary numbers; `wild`: also zeros, subnormals, the largest numbers, infinities and NaN. */
static float number(int wild) {
  static const float odd[] = {0,       -0.f,     1e-45f,   -1e-40f,   1.17549435e-38f,
                              3.4e38f, -3.4e38f, INFINITY, -INFINITY, NAN};
  if (wild && random32() % 8 == 0) return odd[random32() % (wild > 1 ? 10 : 7)];
  return uniform() * (wild ? ldexpf(1, (int)(random32() % 60) - 30) : 1);
}
static void numbers(float *p, int64_t n, int wild) {
  for (int64_t i = 0; i < n; i++) p[i] = number(wild);
}

static int same(float a, float b) { return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b)); }

static void check_same(const char *what, const char *isa, int64_t n, const float *got,
                       const float *want, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (!same(got[i], want[i])) {
      check_failures++;
      printf("    %s of %s, n = %lld: value %lld is %a, not %a\n", what, isa, (long long)n,
             (long long)i, got[i], want[i]);
      return;
    }
}

enum { ROOM = 1 << 15 };
static float xs[ROOM], ws[ROOM], got[ROOM], want[ROOM], zs[ROOM];
static char shifted[2 * ROOM * sizeof(float)];

/* The same numbers at an unaligned address. */
static const float *askew(const float *p, int64_t n, int half) {
  char *at = shifted + half * (int)sizeof shifted / 2 + 1;
  memcpy(at, p, (size_t)n * sizeof *p);
  return (const float *)(void *)at;
}

static const int64_t sizes[] = {1,  2,  3,  4,  5,  7,   8,   9,   15,  16,  17,  24,  31, 32,
                                33, 48, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 500};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* ---- the definition -------------------------------------------------------------------------- */

static float tree(const float *lanes) {
  float t[16];
  memcpy(t, lanes, sizeof t);
  for (int step = 8; step; step /= 2)
    for (int j = 0; j < step; j++) t[j] += t[j + step];
  return t[0];
}

static float dot(const float *a, const float *b, int64_t n) {
  float lanes[16] = {0};
  for (int64_t i = 0; i < (n + 15) / 16 * 16; i++)
    lanes[i % 16] = fmaf(i < n ? a[i] : 0, i < n ? b[i] : 0, lanes[i % 16]);
  return tree(lanes);
}

static float plain_sum(const float *a, int64_t n) {
  float lanes[16] = {0};
  for (int64_t i = 0; i < (n + 15) / 16 * 16; i++) lanes[i % 16] += i < n ? a[i] : 0;
  return tree(lanes);
}

static void test_sums_as_defined(void) {
  const pe_prim *p = &pe_prim_scalar;
  for (int wild = 0; wild < 3; wild++)
    for (int s = 0; s < SIZES; s++) {
      int64_t n = sizes[s];
      numbers(xs, 4 * n, wild), numbers(ws, 4 * n, wild);
      p->dots(xs, n, 3, ws, n, 4, n, got, 5);
      for (int r = 0; r < 3; r++)
        for (int c = 0; c < 4; c++) want[r * 5 + c] = dot(xs + r * n, ws + c * n, n);
      for (int r = 0; r < 3; r++) check_same("dots", "scalar", n, got + r * 5, want + r * 5, 4);
      *got = p->sum(xs, n), *want = plain_sum(xs, n);
      check_same("sum", "scalar", n, got, want, 1);
      *got = p->sum_squares(xs, n), *want = dot(xs, xs, n);
      check_same("sum_squares", "scalar", n, got, want, 1);
      p->rescale(xs, 0.3f, ws, 0.7f, n, got), p->rescale(xs, 0.3f, NULL, 0, n, got + n);
      for (int64_t i = 0; i < n; i++)
        want[i] = xs[i] * 0.3f * (ws[i] + 0.7f), want[n + i] = xs[i] * 0.3f;
      check_same("rescale", "scalar", n, got, want, 2 * n);
      p->combine(xs, 0.3f, ws, 0.7f, n, got), p->combine(xs, 0.3f, NULL, 0, n, got + n);
      for (int64_t i = 0; i < n; i++)
        want[i] = xs[i] * 0.3f + ws[i] * 0.7f, want[n + i] = xs[i] * 0.3f + 0.f;
      check_same("combine", "scalar", n, got, want, 2 * n);
    }
}

static void test_mix_and_recur_as_defined(void) {
  const pe_prim *p = &pe_prim_scalar;
  for (int s = 0; s < SIZES; s++) {
    int64_t n = sizes[s];
    numbers(xs, 100, 0), numbers(ws, 5 * n, 0), numbers(got, 3 * n, 0),
        memcpy(want, got, 3 * (size_t)n * 4);
    p->mix(xs, 7, 3, ws, n, 5, n, got, n);
    for (int r = 0; r < 3; r++)
      for (int c = 0; c < 5; c++)
        for (int64_t i = 0; i < n; i++)
          want[r * n + i] = fmaf(xs[r * 7 + c], ws[c * n + i], want[r * n + i]);
    check_same("mix", "scalar", n, got, want, 3 * n);

    numbers(got, 3 * n, 0), memcpy(want, got, 3 * (size_t)n * 4), numbers(ws, 3 * n, 0);
    float y[3], expected[3];
    p->recur(got, 3, n, ws, xs, ws + n, ws + 2 * n, y);
    for (int r = 0; r < 3; r++) {
      for (int64_t i = 0; i < n; i++)
        want[r * n + i] = fmaf(xs[r], ws[n + i], want[r * n + i] * ws[i]);
      expected[r] = dot(want + r * n, ws + 2 * n, n);
    }
    check_same("recur's state", "scalar", n, got, want, 3 * n);
    check_same("recur", "scalar", n, y, expected, 3);
  }
}

static double silu(double x) { return x / (1 + exp(-x)); }
static double gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }
static double gelu_tanh(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return log1p(exp(x)); }

static void test_functions_are_close(void) {
  static const struct {
    pe_map_op op;
    double (*f)(double);
    double low, high, relative, absolute;
  } cases[] = {{PE_MAP_EXP, exp, -87, 88, 2e-7, 0},
               {PE_MAP_EXP, exp, -103, -87, 0, 1.5e-45},
               {PE_MAP_SIGMOID, sigmoid, -80, 80, 3e-7, 0},
               {PE_MAP_SILU, silu, -80, 80, 3e-7, 0},
               {PE_MAP_TANH, tanh, -20, 20, 3e-7, 0},
               {PE_MAP_TANH, tanh, -1e-3, 1e-3, 2e-7, 0},
               {PE_MAP_GELU, gelu, -8, 8, 3e-7, 3e-7},
               {PE_MAP_GELU_TANH, gelu_tanh, -8, 8, 3e-7, 3e-7},
               {PE_MAP_SOFTPLUS, softplus, -50, 50, 3e-7, 0},
               {PE_MAP_SQRT, sqrt, 0, 100, 1e-7, 0},
               {PE_MAP_LOG, log, 1e-3, 100, 2e-7, 0},
               {PE_MAP_LOG, log, 0.9, 1.1, 2e-7, 0},
               {PE_MAP_LOG, log, 1e-45, 1e-37, 2e-7, 0},
               {PE_MAP_LOG, log, 1e10, 3e38, 2e-7, 0}};
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
    for (int i = 0; i < 20000; i++) {
      float x = (float)(cases[k].low + (cases[k].high - cases[k].low) * i / 20000), y;
      double exact = cases[k].f(x);
      pe_prim_scalar.unary(cases[k].op, &x, 1, &y);
      if (fabs(y - exact) > cases[k].relative * fabs(exact) + cases[k].absolute) {
        check_failures++,
            printf("    function %d of %.9g is %.9g, not %.9g\n", cases[k].op, x, y, exact);
        break;
      }
    }
  float odd[] = {INFINITY, -INFINITY, NAN, 1000, -1000, 89.5f, 0};
  pe_prim_scalar.unary(PE_MAP_EXP, odd, 7, got);
  CHECK(got[0] == INFINITY && got[1] == 0 && isnan(got[2]) && got[3] == INFINITY && got[4] == 0 &&
        got[5] == INFINITY && got[6] == 1);
  pe_prim_scalar.unary(PE_MAP_TANH, odd, 7, got);
  CHECK(got[0] == 1 && got[1] == -1 && isnan(got[2]) && got[6] == 0);
  pe_prim_scalar.unary(PE_MAP_LOG, odd, 7, got);
  CHECK(got[0] == INFINITY && isnan(got[1]) && isnan(got[2]) && isnan(got[4]) &&
        got[6] == -INFINITY);
  pe_prim_scalar.unary(PE_MAP_SOFTPLUS, odd, 7, got);
  CHECK(got[0] == INFINITY && got[1] == 0 && isnan(got[2]) && got[3] == 1000 && got[4] == 0);
  pe_prim_scalar.unary(PE_MAP_GELU, odd, 7, got);
  CHECK(got[0] == INFINITY && isnan(got[2]) && got[3] == 1000 && got[4] == 0 && got[6] == 0);
}

/* ---- versions against the scalar one --------------------------------------------------------- */

static void compare_products(const pe_prim *p, int wild) {
  static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 13}, cols[] = {1, 2, 3, 4, 5, 8, 11};
  for (int s = 0; s < SIZES; s++)
    for (int i = 0; i < 8; i++)
      for (int j = 0; j < 7; j++) {
        int64_t n = sizes[s];
        int r = rows[i], c = cols[j];
        numbers(xs, r * (n + 3), wild), numbers(ws, c * (n + 1), wild);
        const float *x = askew(xs, r * (n + 3), 0), *w = askew(ws, c * (n + 1), 1);
        memset(got, 0, sizeof got), memset(want, 0, sizeof want);
        p->dots(x, n + 3, r, w, n + 1, c, n, got, c + 2);
        pe_prim_scalar.dots(xs, n + 3, r, ws, n + 1, c, n, want, c + 2);
        check_same("dots", p->name, n, got, want,
                   (r + 1) * (c + 2)); /* and the gaps are untouched */
        numbers(got, r * (n + 1), wild), memcpy(want, got, sizeof got);
        int mixed = c <= n + 3 ? c : 1;
        p->mix(x, n + 3, r, w, n + 1, mixed, n, got, n + 1);
        pe_prim_scalar.mix(xs, n + 3, r, ws, n + 1, mixed, n, want, n + 1);
        check_same("mix", p->name, n, got, want, (r + 1) * (n + 1));
      }
}

static void compare_sums(const pe_prim *p, int wild) {
  for (int s = 0; s < SIZES; s++) {
    int64_t n = sizes[s];
    numbers(xs, n, wild), numbers(ws, 8 * n, wild), numbers(zs, 8 * n, wild);
    const float *x = askew(xs, n, 0);
    float a[4] = {p->sum(x, n), p->sum_squares(x, n), wild < 2 ? p->max(x, n) : 0, 0};
    float b[4] = {pe_prim_scalar.sum(xs, n), pe_prim_scalar.sum_squares(xs, n),
                  wild < 2 ? pe_prim_scalar.max(xs, n) : 0, 0};
    check_same("sums", p->name, n, a, b, 3);
    memcpy(got, ws, sizeof got), memcpy(want, ws, sizeof want);
    *a = p->exp_sum(got, xs[0], n), *b = pe_prim_scalar.exp_sum(want, xs[0], n);
    check_same("exp_sum", p->name, n, got, want, n + 1);
    check_same("exp_sum's sum", p->name, n, a, b, 1);
    memcpy(got, xs, sizeof got), memcpy(want, xs, sizeof want);
    p->rescale(got, ws[0], askew(ws, n, 1), 1, n, got);
    pe_prim_scalar.rescale(want, ws[0], ws, 1, n, want);
    p->rescale(x, ws[0], NULL, 0, n, got + n),
        pe_prim_scalar.rescale(xs, ws[0], NULL, 0, n, want + n);
    check_same("rescale", p->name, n, got, want, 2 * n + 1);
    p->combine(got, ws[0], askew(ws, n, 1), ws[1], n, got);
    pe_prim_scalar.combine(want, ws[0], ws, ws[1], n, want);
    p->combine(x, ws[0], NULL, 0, n, got + n),
        pe_prim_scalar.combine(xs, ws[0], NULL, 0, n, want + n);
    check_same("combine", p->name, n, got, want, 2 * n + 1);
    for (int rows = 1; rows <= 4; rows++) {
      memcpy(got, ws, sizeof got), memcpy(want, ws, sizeof want);
      p->recur(got, rows, n, zs, zs + n, x, zs + 4 * n, got + 4 * n);
      pe_prim_scalar.recur(want, rows, n, zs, zs + n, xs, zs + 4 * n, want + 4 * n);
      check_same("recur", p->name, n, got, want, 5 * n);
    }
  }
}

static void compare_maps(const pe_prim *p, int wild) {
  for (int s = 0; s < SIZES; s++) {
    int64_t n = sizes[s];
    numbers(xs, n, wild), numbers(zs, n, wild);
    for (int op = 0; op < PE_MAP_COUNT; op++) {
      memset(got, 0, sizeof got), memset(want, 0, sizeof want);
      if (op < PE_MAP_ADD)
        p->unary((pe_map_op)op, askew(xs, n, 0), n, got),
            pe_prim_scalar.unary((pe_map_op)op, xs, n, want);
      else
        p->binary((pe_map_op)op, askew(xs, n, 0), askew(zs, n, 1), n, got),
            pe_prim_scalar.binary((pe_map_op)op, xs, zs, n, want);
      check_same("map", p->name, op * 1000 + n, got, want, n + 1);
    }
  }
}

/* ---- weights --------------------------------------------------------------------------------- */

static int layouts(pe_quant_matrix *m) {
  static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
  static const pe_dtype scales[] = {PE_F16, PE_BF16, PE_F32};
  int n = 0;
  for (int d = 0; d < PE_DTYPE_COUNT; d++) m[n++] = (pe_quant_matrix){.dtype = (pe_dtype)d};
  for (int b = 0; b < 6; b++)
    for (int g = 0; g < 3; g++)
      for (int s = 0; s < 3; s++)
        m[n++] = (pe_quant_matrix){.quant = {PE_QUANT_AFFINE, bits[b], groups[g], scales[s]}};
  m[n++] = (pe_quant_matrix){.quant = {PE_QUANT_MXFP4, 4, 32, PE_U8}};
  m[n++] = (pe_quant_matrix){.quant = {PE_QUANT_MXFP8, 8, 32, PE_U8}};
  m[n++] = (pe_quant_matrix){.quant = {PE_QUANT_NVFP4, 4, 16, PE_U8}, .global = 0.37f};
  for (int k = PE_QUANT_Q4_0; k < PE_QUANT_COUNT; k++)
    m[n++] = (pe_quant_matrix){.quant = {.kind = (pe_quant_kind)k}};
  return n;
}

static int unit(const pe_quant_matrix *m) { /* the number of columns is a multiple of this */
  if (m->quant.kind == PE_QUANT_NONE) return 1;
  return m->quant.group ? m->quant.group : pe_quant_block_values(m->quant.kind);
}

/* Random bytes give scales of every kind, including infinities, NaN and subnormals. The allocations
 * have the exact size, so that sanitizers find reads past the end. */
static void compare_decoding(const pe_prim *p) {
  pe_quant_matrix all[128];
  int n = layouts(all);
  CHECK(n < 128);
  for (int i = 0; i < n; i++)
    for (int times = 1; times <= 37; times += times < 6 ? 1 : 31) {
      pe_quant_matrix *m = &all[i];
      m->rows = 3, m->cols = (int64_t)unit(m) * times;
      m->row_bytes = pe_quant_row_bytes(&m->quant, m->dtype, m->cols);
      m->scale_bytes = pe_quant_scale_bytes(&m->quant, m->cols);
      size_t bytes = 3 * m->row_bytes, scale_bytes = 3 * m->scale_bytes;
      uint8_t *data = malloc(bytes + 2 * scale_bytes + 1), *at = data + 1;
      for (size_t b = 0; b < bytes + 2 * scale_bytes; b++) at[b] = (uint8_t)random32();
      m->scales = at, m->biases = at + scale_bytes, m->data = at + 2 * scale_bytes;
      for (int row = 0; row < 3; row++) {
        got[m->cols] = 12345;
        p->decode(m, row, got);
        pe_quant_row(m, row, 0, m->cols, want);
        check_same(m->quant.kind ? pe_quant_name(m->quant.kind) : pe_dtype_name(m->dtype), p->name,
                   m->cols, got, want, m->cols);
        CHECK(got[m->cols] == 12345);
      }
      free(data);
    }
}

/* ---- passes of the sampler ------------------------------------------------------------------- */

static int32_t got_index[ROOM], want_index[ROOM];

static void compare_gather(const pe_prim *p, const float *x, int64_t n, float low, float high) {
  int64_t want_count = 0;
  for (int64_t i = 0; i < n; i++)
    if (xs[i] >= low && xs[i] <= high)
      want[want_count] = xs[i], want_index[want_count++] = (int32_t)i + 7;
  const pe_scan_span span[2] = {{low, high}, {INFINITY, -INFINITY}};
  CHECK_INT(p->scan->gather(x, n, span, 7, got_index, got), want_count);
  check_same("gather", p->name, n, got, want, want_count);
  CHECK(!memcmp(got_index, want_index, (size_t)want_count * sizeof *got_index));
  memcpy(zs, xs, (size_t)n * sizeof *zs);
  CHECK_INT(p->scan->gather(zs, n, span, 7, got_index, zs), want_count); /* in place */
  check_same("gather in place", p->name, n, zs, want, want_count);
}

/* Two spans give what one over both gives, less the values between. */
static void compare_gather_two(const pe_prim *p, const float *x, int64_t n) {
  const pe_scan_span span[2] = {{-INFINITY, -0.25f}, {0.25f, 1}};
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++)
    if (xs[i] <= -0.25f || (xs[i] >= 0.25f && xs[i] <= 1))
      want[count] = xs[i], want_index[count++] = (int32_t)i;
  CHECK_INT(p->scan->gather(x, n, span, 0, got_index, got), count);
  check_same("gather of two spans", p->name, n, got, want, count);
  CHECK(!memcmp(got_index, want_index, (size_t)count * sizeof *got_index));
}

/* Bit i of the band's words is set just for the values in it. */
static void check_band(const pe_prim *p, const pe_scan_query *q, const float *x, int64_t n, int j) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    float key = q->centred ? -fabsf(xs[i] - q->centre) : xs[i];
    bool in = xs[i] >= q->span.low && xs[i] <= q->span.high;
    if (!in || key < q->band[j].low || key >= q->band[j].high) continue;
    want[count] = xs[i], want_index[count++] = (int32_t)i + 3;
  }
  CHECK_INT(p->scan->unpack(q->bits[j], x, n, 3, got_index, got), count);
  check_same("unpacked", p->name, n, got, want, count);
  CHECK(!memcmp(got_index, want_index, (size_t)count * sizeof *got_index));
}

static void compare_tally(const pe_prim *p, const float *x, int64_t n, pe_scan_query q) {
  static uint16_t bits[2][ROOM / PE_SCAN_LANES + 1];
  static pe_scan_sums sums[ROOM / PE_SCAN_BLOCK + 1], want_sums[ROOM / PE_SCAN_BLOCK + 1];
  pe_scan_tally a = {{{0}, 0}, {{0}, 0}}, sum = a;
  bool twice = q.kind == PE_SCAN_TWICE;
  q.bits[0] = bits[0], q.bits[1] = bits[1];
  pe_prim_scalar.scan->tally(xs, n, &q, want_sums);
  memset(bits, 255, sizeof bits);
  p->scan->tally(x, n, &q, sums);
  CHECK(!memcmp(sums, want_sums, (size_t)pe_scan_blocks(n) * sizeof *sums));
  pe_scan_add(sums, pe_scan_blocks(n), &a);
  for (int64_t i = 0; i < n; i++) {
    if (!(xs[i] >= q.span.low && xs[i] <= q.span.high)) continue;
    double y = ((double)xs[i] - (double)q.top) * (double)q.scale;
    double w = q.kind == PE_SCAN_COUNT ? 1 : exp(y), v = w * y;
    float key = q.centred ? -fabsf(xs[i] - q.centre) : xs[i];
    if (twice) v = exp(((double)xs[i] - (double)q.top) * (double)q.other);
    sum.first.all += w, sum.second.all += v;
    for (int j = 0; j < 2; j++)
      if (key >= q.band[j].high) sum.first.above[j] += w, sum.second.above[j] += v;
  }
  double exact = q.kind == PE_SCAN_COUNT ? 0 : 3e-6;
  CHECK_NEAR(a.first.all, sum.first.all, exact * sum.first.all);
  if (q.kind >= PE_SCAN_MOMENT)
    CHECK_NEAR(a.second.all, sum.second.all, 5e-6 * fabs(sum.second.all));
  for (int j = 0; j < q.bands; j++) {
    check_band(p, &q, x, n, j);
    if (!twice || j == 0)
      CHECK_NEAR(a.first.above[j], sum.first.above[j], exact * sum.first.above[j]);
    if (q.kind >= PE_SCAN_MOMENT)
      CHECK_NEAR(a.second.above[j], sum.second.above[j], 5e-6 * fabs(sum.second.above[j]));
  }
}

static void compare_tallies(const pe_prim *p, const float *x, int64_t n) {
  static const pe_scan_span spans[] = {{-3.4e38f, INFINITY}, {-0.5f, INFINITY}, {-3, 0.75f}};
  static const struct {
    pe_scan_kind kind;
    int bands;
  } forms[] = {{PE_SCAN_COUNT, 1},  {PE_SCAN_WEIGHT, 1}, {PE_SCAN_WEIGHT, 2},
               {PE_SCAN_MOMENT, 0}, {PE_SCAN_MOMENT, 1}, {PE_SCAN_TWICE, 2}};
  for (int i = 0; i < 3 * 2 * 6; i++) {
    pe_scan_query q = {.kind = forms[i % 6].kind,
                       .bands = forms[i % 6].bands,
                       .span = spans[i / 12],
                       .top = 1,
                       .scale = 1,
                       .other = 1.5f,
                       .centred = i / 6 % 2,
                       .centre = 0.125f,
                       .band = {{0, 0.5f}, {-0.75f, -0.25f}}};
    if (q.centred) q.band[0] = (pe_scan_band){-0.3f, -0.01f};
    compare_tally(p, x, n, q);
  }
}

/* The highest of each stretch, copied values, and NaN if there is one. */
static void compare_peaks(const pe_prim *p, const float *x, int64_t n, bool bad, float high) {
  int64_t count = (n + PE_SCAN_PEAK - 1) / PE_SCAN_PEAK;
  want[n] = 12345;
  for (int copies = 0; copies < 2; copies++) {
    float top = p->scan->peaks(x, n, got, copies ? want : NULL);
    CHECK(bad ? isnan(top) : top == high);
    for (int64_t i = 0; i < count && !bad; i++) {
      float most = -INFINITY;
      for (int64_t k = i * PE_SCAN_PEAK; k < n && k < (i + 1) * PE_SCAN_PEAK; k++)
        most = xs[k] > most ? xs[k] : most;
      CHECK(got[i] == most);
    }
  }
  CHECK(!memcmp(want, x, (size_t)n * sizeof *want) && want[n] == 12345);
}

static void compare_weights(const pe_prim *p, const float *x, int64_t n, float top, float scale) {
  const pe_scan_span all = {-INFINITY, INFINITY}, some = {-0.5f, 0.5f};
  float a[16], b[16], c[16], d[16] = {0};
  int64_t blocks = (n + PE_SCAN_BLOCK - 1) / PE_SCAN_BLOCK;
  CHECK(blocks <= 16);
  got[n] = want[n] = 12345;
  p->scan->weigh(x, n, some, top, scale, got, a);
  pe_prim_scalar.scan->weigh(xs, n, some, top, scale, want, c);
  check_same("weigh in a span", p->name, n, got, want, n + 1);
  for (int64_t i = 0; i < n; i++) CHECK(got[i] == 0 || fabsf(xs[i]) <= 0.5f);
  p->scan->weigh(x, n, all, top, scale, got, a);
  pe_prim_scalar.scan->weigh(xs, n, all, top, scale, want, c);
  check_same("weigh", p->name, n, got, want, n + 1);
  check_same("weigh's sums", p->name, n, a, c, blocks);
  for (int64_t i = 0; i < blocks; i++) {
    int64_t from = i * PE_SCAN_BLOCK, rest = n - from;
    d[i] = plain_sum(got + from, rest < PE_SCAN_BLOCK ? rest : PE_SCAN_BLOCK);
  }
  check_same("weigh's sums as defined", p->name, n, a, d, blocks);
  p->scan->weigh(x, n, all, top, scale, NULL, b);
  check_same("weigh's sums alone", p->name, n, b, a, blocks);
  for (int64_t i = 0; i < n; i++) {
    double y = ((double)xs[i] - (double)top) * (double)scale, e = y < -86.9 ? 0 : exp(y);
    if (fabs((double)got[i] - e) > 2e-7 * e * (1 - y) + 2e-38) {
      check_failures++;
      printf("    weight of %g is %.9g, not %.9g\n", (double)xs[i], (double)got[i], e);
      return;
    }
  }
}

static void compare_mass(const pe_prim *p, const float *x, int64_t n) {
  const float least[PE_SCAN_STEPS] = {0.5f, 0, -0.25f, -3.4e38f};
  double a[PE_SCAN_STEPS], b[PE_SCAN_STEPS];
  for (int64_t i = 0; i < n; i++) ws[i] = fabsf(uniform());
  for (int counts = 0; counts < 2; counts++) {
    const float *w = counts ? NULL : askew(ws, n, 1);
    p->scan->mass(x, w, n, least, a);
    pe_prim_scalar.scan->mass(xs, counts ? NULL : ws, n, least, b);
    CHECK(!memcmp(a, b, sizeof a));
    for (int j = 0; j < PE_SCAN_STEPS; j++) {
      double sum = 0;
      for (int64_t i = 0; i < n; i++)
        if (xs[i] >= least[j]) sum += counts ? 1 : (double)ws[i];
      CHECK_NEAR(a[j], sum, counts ? 0 : 1e-5 * (double)n);
    }
  }
}

static void compare_scans(const pe_prim *p, int wild) {
  static const int64_t more[] = {511, 512, 513, 1000, 3000};
  for (int s = 0; s < SIZES + 5; s++) {
    int64_t n = s < SIZES ? sizes[s] : more[s - SIZES];
    numbers(xs, n, wild);
    const float *x = askew(xs, n, 0);
    float high = -INFINITY, low = INFINITY, lowest, far;
    bool bad = false;
    for (int64_t i = 0; i < n; i++) {
      bad |= isnan(xs[i]);
      high = xs[i] > high ? xs[i] : high;
      low = xs[i] < low ? xs[i] : low;
    }
    compare_peaks(p, x, n, bad, high);
    if (!bad) CHECK(p->scan->range(x, n, &lowest) == high && lowest == low);
    for (int k = 0; k < 8; k++) {
      float least = number(wild < 2 ? wild : 1);
      int64_t first = 0;
      while (first < n && !(xs[first] >= least)) first++;
      CHECK_INT(p->scan->find(x, n, least), first);
      far = number(0);
      compare_gather(p, x, n, least, k % 2 ? INFINITY : far);
      p->scan->nearness(x, n, far, got);
      for (int64_t i = 0; i < n; i++) want[i] = -fabsf(xs[i] - far);
      check_same("nearness", p->name, n, got, want, n);
    }
    compare_gather(p, x, n, -INFINITY, INFINITY);
    compare_gather_two(p, x, n);
    if (!bad) compare_mass(p, x, n);
    if (wild) continue;
    for (int64_t i = 0; i < n; i++)
      if (random32() % 8 == 0) xs[i] = random32() % 2 ? -INFINITY : -100 * fabsf(xs[i]);
    x = askew(xs, n, 0);
    compare_tallies(p, x, n);
    compare_weights(p, x, n, 1, 1);
    compare_weights(p, x, n, 1, 17.5f);
    compare_weights(p, x, n, 1, 1e30f);
    compare_weights(p, x, n, 1, 1e-30f);
  }
}

static void test_scalar_scans(void) {
  for (int wild = 0; wild < 3; wild++) compare_scans(&pe_prim_scalar, wild);
}

static void compare(const pe_prim *p) {
  for (int wild = 0; wild < 3; wild++) {
    compare_products(p, wild), compare_sums(p, wild), compare_maps(p, wild);
    compare_scans(p, wild);
  }
  compare_decoding(p);
}

static void test_scalar_decoding(void) { compare_decoding(&pe_prim_scalar); }

static void test_version(const char *name) {
  const pe_prim *p = pe_prim_named(name);
  if (!p) CHECK_SKIP("this machine lacks it");
  CHECK_STR(p->name, name);
  compare(p);
}
static void test_avx2(void) { test_version("avx2"); }
static void test_avx512(void) { test_version("avx512"); }
static void test_neon(void) { test_version("neon"); }

static void test_choice(void) {
  CHECK(pe_prim_named("scalar") == &pe_prim_scalar);
  CHECK(pe_prim_named("mmx") == NULL);
  setenv("PERIGEE_ISA", "scalar", 1);
  CHECK_STR(pe_prim_best()->name, "scalar");
  setenv("PERIGEE_ISA", "mmx", 1); /* unknown, or not on this machine: the best version */
  CHECK(pe_prim_best() != NULL && pe_prim_named(pe_prim_best()->name) == pe_prim_best());
  unsetenv("PERIGEE_ISA");
  CHECK(pe_prim_named(pe_prim_best()->name) == pe_prim_best());
}

/* Every second row of a tensor whose last byte is the last one of a page: decoding reads nothing
 * after it. */
static void test_strided_views_end_with_their_codes(void) {
  enum { ROWS = 16, COLS = 64 };
  static const int bits[] = {2, 3, 4, 5, 6, 8};
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *at = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  CHECK(at != MAP_FAILED && !mprotect(at + page, page, PROT_NONE));
  uint16_t scales[ROWS] = {0}, biases[ROWS] = {0};
  float out[COLS];
  for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
    uint64_t row = (uint64_t)COLS * (uint64_t)bits[i] / 8;
    pe_quant_matrix m = {.quant = {PE_QUANT_AFFINE, bits[i], 64, PE_F16},
                         .rows = ROWS / 2,
                         .cols = COLS,
                         .data = at + page - (ROWS - 1) * row,
                         .scales = (uint8_t *)scales,
                         .biases = (uint8_t *)biases,
                         .row_bytes = 2 * row,
                         .scale_bytes = 4,
                         .global = 1};
    for (int64_t r = 0; r < m.rows; r++) pe_prim_best()->decode(&m, r, out);
    CHECK(out[COLS - 1] == 0);
  }
  CHECK_INT(munmap(at, 2 * page), 0);
}

static const check_test tests[] = {{"strided views", test_strided_views_end_with_their_codes},
                                   {"sums_as_defined", test_sums_as_defined},
                                   {"mix_and_recur_as_defined", test_mix_and_recur_as_defined},
                                   {"functions_are_close", test_functions_are_close},
                                   {"scalar_decoding", test_scalar_decoding},
                                   {"scalar_scans", test_scalar_scans},
                                   {"avx2", test_avx2},
                                   {"avx512", test_avx512},
                                   {"neon", test_neon},
                                   {"choice", test_choice}};
CHECK_MAIN("prim", tests)
