/* test_int16.c - packs against the decoder, and products of packed weights with 16-bit codes
 * against their definition, bit for bit, in every version that this machine runs. */
#include "int16_help.h"

static const char *const names[] = {"scalar", "avx2", "avx512",  "avx512_vnni",
                                    "amx",    "neon", "dotprod", "i8mm"};
enum { NAMES = sizeof names / sizeof *names };

static int same(float a, float b) { return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b)); }

static void kind_name(const pe_quant *q, char *out, size_t len) {
  snprintf(out, len, "%s %d bits, group %d, %s", pe_quant_name(q->kind), q->bits, q->group,
           pe_dtype_name(q->scale_dtype));
}

/* ---- packs ----------------------------------------------------------------------------------- */

static void check_round_trip(pe_quant q, int64_t rows, int64_t cols, uint64_t gap, bool tame) {
  help_matrix h = help_open(q, rows, cols, gap, tame);
  float *want = malloc((size_t)cols * sizeof *want), *got = malloc((size_t)cols * sizeof *got);
  char name[64];
  kind_name(&q, name, sizeof name);
  for (int64_t r = 0; r < rows; r++) {
    pe_quant_row(&h.m, r, 0, cols, want);
    pe_pack_row(&h.pack, r, got);
    for (int64_t i = 0; i < cols; i++)
      if (!same(got[i], want[i]) && !(got[i] == 0 && want[i] == 0)) {
        check_failures++;
        printf("    %s, %d x %d: value %d of row %d is %a, not %a\n", name, (int)rows, (int)cols,
               (int)i, (int)r, got[i], want[i]);
        r = rows;
        break;
      }
  }
  CHECK(h.pack.panel_bytes % PE_PACK_ALIGN == 0 && h.pack.chunk_bytes % PE_PACK_ALIGN == 0);
  /* whole panels and chunks: at most 3 % more than stored, but for Q3_K, where scales of six bits
   * become bytes and a chunk ends in the middle of a cache line */
  if (rows % 16 == 0 && cols % h.pack.chunk == 0)
    CHECK((double)pe_pack_bytes(&h.m) <=
          (q.kind == PE_QUANT_Q3_K ? 1.06 : 1.03) *
              (double)((uint64_t)rows * (h.m.row_bytes - gap + 2 * h.m.scale_bytes)));
  help_close(&h);
  free(want), free(got);
}

static void test_packs_hold_what_was_stored(void) {
  pe_quant kinds[HELP_KINDS];
  static const int64_t outs[] = {1, 15, 16, 17, 48, 83};
  int n = help_kinds(kinds);
  for (int k = 0; k < n; k++)
    for (int i = 0; i < 6; i++) {
      int64_t unit = help_unit(&kinds[k]), times = 1 + (i + k) % 5;
      check_round_trip(kinds[k], outs[i], unit * times, i % 2 ? 0 : 24, i % 3 != 0);
      check_round_trip(kinds[k], 16, unit * 8, 0, i % 2);
    }
}

static void test_kinds(void) {
  pe_quant_matrix m = {.quant = {.kind = PE_QUANT_NONE}, .dtype = PE_F16, .rows = 16, .cols = 64};
  CHECK(!pe_pack_supported(&m));
  m.quant = (pe_quant){PE_QUANT_MXFP8, 8, 32, PE_U8};
  CHECK(!pe_pack_supported(&m));
  m.quant = (pe_quant){PE_QUANT_AFFINE, 7, 32, PE_F16};
  CHECK(!pe_pack_supported(&m));
  m.quant = (pe_quant){PE_QUANT_AFFINE, 4, 64, PE_BF16};
  CHECK(pe_pack_supported(&m));
  CHECK_INT(pe_pack_bytes(&m), 576);
  m.rows = 17, m.cols = 128;
  CHECK_INT(pe_pack_bytes(&m), 4 * 576);
}

/* ---- activations ----------------------------------------------------------------------------- */

typedef struct inputs { /* a reference that shares no code with the kernels */
  int rows, cols, act;
  float *x, *scale, *scaled; /* rows x cols; rows x groups */
  int32_t *code, *sum;
} inputs;

/* Rows of ordinary numbers, outliers, tiny and huge ones, zeros, and (wild) NaN and infinity. */
static float number(int row, int col, bool wild) {
  float f = help_uniform();
  switch (row % 8) {
  case 1: return col % 97 == 5 ? f * 100 : f;
  case 2: return f * 1e-30f;
  case 3: return f * 3e38f;
  case 4: return col / 64 % 2 ? 0 : f;
  case 5: return f * ldexpf(1, (int)(help_random() % 250) - 149);
  case 6: return wild && help_random() % 100 == 0 ? NAN : f * 1e-44f;
  case 7: return wild && help_random() % 100 == 0 ? -INFINITY : f;
  default: return f;
  }
}

static inputs open_inputs(int rows, int cols, int act, bool wild) {
  inputs in = {rows, cols, act, NULL, NULL, NULL, NULL, NULL};
  size_t values = (size_t)rows * (size_t)cols, groups = values / (size_t)act;
  in.x = guard_floats((int64_t)values), in.code = malloc(values * 4);
  in.scale = malloc(groups * 4), in.scaled = malloc(groups * 4), in.sum = malloc(groups * 4);
  for (size_t i = 0; i < values; i++)
    in.x[i] = number((int)(i / (size_t)cols), (int)(i % (size_t)cols), wild);
  for (size_t g = 0; g < groups; g++) {
    const float *x = in.x + g * (size_t)act;
    float top = 0;
    bool finite = true;
    for (int i = 0; i < act; i++) {
      finite = finite && isfinite(x[i]);
      top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    }
    float low = top < 0x1p-96f ? 0x1p-96f : top;
    in.scale[g] = !finite ? NAN : top == 0 ? 0 : low / (float)PE_INT16_MOST;
    in.sum[g] = 0;
    for (int i = 0; i < act; i++) {
      float scaled = x[i] * ((float)PE_INT16_MOST / low);
      int32_t code = finite && top != 0 ? (int32_t)nearbyintf(scaled) : 0;
      in.code[g * (size_t)act + (size_t)i] = code, in.sum[g] += code;
    }
    in.scaled[g] = in.scale[g] * (float)in.sum[g];
  }
  return in;
}

static void close_inputs(inputs *in) {
  guard_free(in->x), free(in->code), free(in->scale), free(in->scaled), free(in->sum);
}

static pe_int16_rows quantized(const pe_int16 *isa, const inputs *in, void **room) {
  size_t bytes = pe_int16_bytes(in->rows, in->cols, in->act);
  pe_int16_rows x;
  *room = guard_new(bytes, 64);
  pe_int16_place(isa, in->rows, in->cols, in->act, *room, &x);
  CHECK((uint8_t *)(x.sum + (int64_t)in->rows * x.groups) <= (uint8_t *)*room + bytes);
  int half = in->rows / 2;
  isa->quantize(&x, in->x, in->cols, pe_int16_whole(&x, half, in->rows));
  /* the other rows in two parts */
  int64_t cut = in->cols / 2 / PE_INT16_UNIT * PE_INT16_UNIT;
  isa->quantize(&x, in->x, in->cols, (pe_int16_part){0, half, cut, in->cols});
  isa->quantize(&x, in->x, in->cols, (pe_int16_part){0, half, 0, cut});
  return x;
}

static void check_codes(const pe_int16 *isa, const inputs *in) {
  void *room;
  const pe_int16_rows x = quantized(isa, in, &room);
  int bad = 0;
  for (int32_t tile = 0; tile < x.tiles; tile++) {
    pe_int16_tile t = pe_int16_tile_at(&x, tile);
    CHECK(t.rows >= 1 && t.rows <= isa->tile);
    for (int32_t r = 0; r < t.rows; r++) {
      for (int64_t c = 0; c < in->cols; c++)
        bad += pe_int16_code(&x, t.from + r, c) != in->code[(t.from + r) * in->cols + c];
      for (int64_t g = 0; g < x.groups; g++) {
        int64_t at = t.from * x.groups + g * t.rows + r, want = (t.from + r) * x.groups + g;
        bad += !same(x.scale[at], in->scale[want]) + !same(x.scaled[at], in->scaled[want]) +
               (x.sum[at] != in->sum[want]);
      }
    }
  }
  if (bad) printf("    %s: %d x %d of %d\n", isa->name, in->rows, in->cols, in->act);
  CHECK_INT(bad, 0);
  guard_free(room);
}

static void test_codes_as_defined(void) {
  static const int rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33}, acts[] = {16, 32, 64};
  for (int v = 0; v < NAMES; v++) {
    const pe_int16 *isa = pe_int16_named(names[v]);
    for (int i = 0; isa && i < 12; i++)
      for (int a = 0; a < 3; a++)
        for (int times = 1; times < 20; times += 6) {
          inputs in = open_inputs(rows[i], acts[a] * times, acts[a], times > 1);
          check_codes(isa, &in);
          close_inputs(&in);
        }
  }
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct weights { /* integers and floats of a pack, by the reader of packs */
  int16_t *c;
  float *s, *b;
} weights;

static weights open_weights(const pe_pack *p) {
  const int64_t groups = p->cols / p->group;
  weights w = {malloc((size_t)(p->rows * p->cols) * 2), malloc((size_t)(p->rows * groups) * 4),
               malloc((size_t)(p->rows * groups) * 4)};
  for (int64_t r = 0; r < p->rows; r++)
    for (int64_t g = 0; g < groups; g++)
      pe_pack_group(p, r, g, w.c + r * p->cols + g * p->group, &w.s[r * groups + g],
                    &w.b[r * groups + g]);
  return w;
}

static void close_weights(weights *w) { free(w->c), free(w->s), free(w->b); }

static float reference(const pe_pack *p, const weights *w, const inputs *in, int64_t row,
                       int64_t j) {
  const int64_t groups = p->cols / p->group, xgroups = p->cols / p->act;
  float acc = 0, b = 0;
  for (int64_t g = 0; g < xgroups; g++) {
    const int64_t wg = j * groups + g * p->act / p->group, xg = row * xgroups + g;
    int64_t dot = 0;
    for (int64_t i = g * p->act; i < (g + 1) * p->act; i++)
      dot += (int64_t)in->code[row * p->cols + i] * w->c[j * p->cols + i];
    if (dot < INT32_MIN || dot > INT32_MAX) check_failures++;
    acc = fmaf(w->s[wg] * in->scale[xg], (float)(int32_t)dot, acc);
    if (p->bias) b = fmaf(w->b[wg], in->scaled[xg], b);
  }
  return p->bias ? acc + b : acc;
}

/* The result in double, and a bound of the difference: half a code in each activation, and the
 * rounding of the sums. */
static void check_close(const help_matrix *h, const inputs *in, const float *want) {
  const int64_t cols = h->m.cols, outs = h->m.rows;
  float *w = malloc((size_t)cols * sizeof *w);
  for (int64_t j = 0; j < outs; j++) {
    pe_quant_row(&h->m, j, 0, cols, w);
    for (int64_t r = 0; r < in->rows; r++) {
      if (r % 8 == 2 || r % 8 == 3 || r % 8 == 5 || r % 8 == 6) continue; /* over-, underflow */
      double y = 0, bound = 0, most = 0;
      for (int64_t i = 0; i < cols; i++) {
        double step = in->scale[(r * cols + i) / in->act];
        y += (double)w[i] * in->x[r * cols + i];
        bound += fabs(w[i]) * 0.51 * step, most += step * PE_INT16_MOST;
      }
      /* s * c and b are larger than their sum: the integers reach 255 */
      bound += most * 3e-6 * 16;
      if (!(fabs(want[r * outs + j] - y) <= bound)) {
        check_failures++;
        printf("    row %d, result %d: %g is not within %g of %g\n", (int)r, (int)j,
               (double)want[r * outs + j], bound, y);
        free(w);
        return;
      }
    }
  }
  free(w);
}

typedef struct extras {
  bool bias, residual, in_place, split;
} extras;

static void check_version(const pe_int16 *isa, const help_matrix *h, const inputs *in,
                          const float *want, extras e) {
  const int64_t outs = h->m.rows, step = outs + 3, size = in->rows * step;
  void *room, *scratch = guard_new(pe_int16_scratch(&h->pack, in->rows), 64);
  float *out = guard_floats(size), *more = guard_floats(size), *bias = guard_floats(outs);
  const pe_int16_rows x = quantized(isa, in, &room);
  for (int64_t i = 0; i < size; i++) more[i] = help_uniform(), out[i] = e.in_place ? more[i] : 77;
  for (int64_t j = 0; j < outs; j++) bias[j] = help_uniform();
  pe_int16_product p = {
      .w = &h->pack, .x = &x, .bias = e.bias ? bias : NULL, .out = out, .out_step = step};
  p.residual_step = step;
  if (e.residual) p.residual = e.in_place ? out : more;
  int64_t cut = e.split ? outs / 2 / 16 * 16 : 0;
  if (cut) p.next = (pe_int16_columns){&h->pack, 0, cut};
  isa->product(&p, cut, outs, scratch);
  if (cut && x.tiles > 1) { /* the rest by tiles of rows */
    p.from_tile = x.tiles / 2, p.to_tile = x.tiles;
    isa->product(&p, 0, cut, scratch);
    p.from_tile = 0, p.to_tile = x.tiles / 2;
  }
  if (cut) isa->product(&p, 0, cut, scratch);
  for (int64_t r = 0; r < in->rows; r++)
    for (int64_t j = 0; j < step; j++) {
      float y = e.in_place ? more[r * step + j] : 77;
      if (j < outs) {
        y = want[r * outs + j];
        if (e.bias) y += bias[j];
        if (e.residual) y += more[r * step + j];
      }
      if (same(out[r * step + j], y)) continue;
      char name[64];
      kind_name(&h->m.quant, name, sizeof name);
      check_failures++;
      printf("    %s: %s, %d rows, %d x %d: row %d, result %d is %a, not %a\n", isa->name, name,
             in->rows, (int)outs, (int)h->m.cols, (int)r, (int)j, out[r * step + j], y);
      r = in->rows;
      break;
    }
  guard_free(room), guard_free(scratch), guard_free(out), guard_free(more), guard_free(bias);
}

static void check_product(pe_quant q, int rows, int64_t outs, int64_t cols, bool wild, int turn) {
  help_matrix h = help_open(q, outs, cols, 0, !wild);
  inputs in = open_inputs(rows, (int)cols, h.pack.act, wild);
  weights w = open_weights(&h.pack);
  float *want = malloc((size_t)(rows * outs) * sizeof *want);
  for (int r = 0; r < rows; r++)
    for (int64_t j = 0; j < outs; j++) want[r * outs + j] = reference(&h.pack, &w, &in, r, j);
  if (!wild) check_close(&h, &in, want);
  extras e = {turn % 2, turn % 3 != 0, turn % 3 == 2, turn % 4 > 1};
  for (int v = 0; v < NAMES; v++)
    if (pe_int16_named(names[v])) check_version(pe_int16_named(names[v]), &h, &in, want, e);
  free(want);
  close_weights(&w), close_inputs(&in), help_close(&h);
}

static const int rows_list[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 33, 64, 129};
static const int64_t outs_list[] = {1, 15, 16, 17, 83, 208};
static const int64_t cols_list[] = {64, 128, 192, 320, 512, 704, 1088};

/* Every kind with every number of rows; outputs, columns and extras take turns. */
static void test_products_as_defined(void) {
  pe_quant kinds[HELP_KINDS];
  int n = help_kinds(kinds), turn = 0;
  for (int k = 0; k < n; k++)
    for (int i = 0; i < 13; i++, turn++) {
      int64_t unit = help_unit(&kinds[k]), cols = cols_list[turn % 7];
      int64_t outs = outs_list[turn / 2 % (rows_list[i] > 33 ? 4 : 6)];
      cols = (cols + unit - 1) / unit * unit;
      check_product(kinds[k], rows_list[i], outs, cols, turn % 5 == 4, turn);
    }
}

/* One or two kinds of each form with all shapes. */
static void test_shapes(void) {
  static const pe_quant kinds[] = {{PE_QUANT_AFFINE, 4, 64, PE_BF16},
                                   {PE_QUANT_AFFINE, 3, 128, PE_F16},
                                   {PE_QUANT_Q6_K, 0, 0, PE_F64},
                                   {PE_QUANT_NVFP4, 4, 16, PE_U8}};
  int turn = 0;
  for (int k = 0; k < 4; k++)
    for (int o = 0; o < 6; o++)
      for (int c = 0; c < 7; c++, turn++) {
        int64_t unit = help_unit(&kinds[k]);
        check_product(kinds[k], rows_list[turn % 11], outs_list[o],
                      (cols_list[c] + unit - 1) / unit * unit, turn % 3 == 1, turn);
      }
  /* columns that end inside a chunk */
  for (int i = 0; i < 13; i++) {
    check_product((pe_quant){PE_QUANT_NVFP4, 4, 16, PE_U8}, rows_list[i], 33, 16 * (i + 1), false,
                  i);
    check_product((pe_quant){.kind = PE_QUANT_Q5_1}, rows_list[i], 33, 32 * (i + 1), false, i);
    check_product((pe_quant){PE_QUANT_MXFP4, 4, 32, PE_U8}, rows_list[i], 33, 32 * (i + 1), true,
                  i);
  }
}

/* More rows than the second-level cache holds: several passes over the weights. */
static void test_many_rows(void) {
  check_product((pe_quant){PE_QUANT_AFFINE, 4, 64, PE_F16}, 300, 48, 2048, false, 1);
  check_product((pe_quant){.kind = PE_QUANT_Q8_0}, 512, 33, 1024, false, 2);
}

/* Says which versions of this family of machines were not tested. */
static void test_versions(void) {
  static char missing[128] = "not on this machine:";
#if defined __x86_64__
  static const char *const own[] = {"avx2", "avx512", "avx512_vnni", "amx"};
#elif defined __aarch64__
  static const char *const own[] = {"neon", "dotprod", "i8mm", "neon"};
#else
  static const char *const own[] = {"scalar", "scalar", "scalar", "scalar"};
#endif
  int n = 0;
  for (int i = 0; i < 4; i++) {
    if (pe_int16_named(own[i])) continue;
    strcat(strcat(missing, " "), own[i]), n++;
  }
  if (n) CHECK_SKIP(missing);
}

static void test_choice(void) {
  CHECK(pe_int16_named("scalar") == &pe_int16_scalar);
  CHECK(pe_int16_named("mmx") == NULL);
  setenv("PERIGEE_ISA", "scalar", 1);
  CHECK_STR(pe_int16_best()->name, "scalar");
  setenv("PERIGEE_ISA", "mmx", 1); /* unknown, or not on this machine: the best version */
  CHECK(pe_int16_named(pe_int16_best()->name) == pe_int16_best());
  unsetenv("PERIGEE_ISA");
  CHECK(pe_int16_named(pe_int16_best()->name) == pe_int16_best());
}

static const check_test tests[] = {{"versions", test_versions},
                                   {"kinds", test_kinds},
                                   {"packs_hold_what_was_stored", test_packs_hold_what_was_stored},
                                   {"codes_as_defined", test_codes_as_defined},
                                   {"products_as_defined", test_products_as_defined},
                                   {"shapes", test_shapes},
                                   {"many_rows", test_many_rows},
                                   {"choice", test_choice}};
CHECK_MAIN("int16", tests)
