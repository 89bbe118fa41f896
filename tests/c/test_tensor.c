/* Tensors: creating, views, conversions, joining, statistics, printing, misuse, failing
 * allocations. */
#include "tensor_help.h"

#include <unistd.h>

/* ---- creating and properties ----------------------------------------------------------------- */

static void made_as_asked(void) {
  pe_tensor t = {0};
  CHECK_OK(pe_tensor_new(PE_F16, 2, (int64_t[]){2, 3}, &t, &err), err);
  CHECK_INT(pe_tensor_size(&t), 6);
  CHECK_INT(pe_tensor_bytes(&t), 12);
  CHECK_INT(t.strides[0], 3);
  CHECK_NEAR(nth(&t, 5), 0, 0);
  pe_tensor_close(&t);
  pe_tensor_close(&t); /* a second time is fine */
  CHECK_OK(pe_tensor_full(PE_I8, 1, (int64_t[]){4}, pe_number_int(-300), &t, &err), err);
  CHECK_NEAR(nth(&t, 3), -128, 0);
  pe_tensor_close(&t);
  CHECK_OK(pe_tensor_range(PE_F32, pe_number_float(1), pe_number_float(-0.25), 1000, &t, &err),
           err);
  CHECK_NEAR(nth(&t, 999), 1 - 0.25 * 999, 0);
  pe_tensor_close(&t);
  CHECK_OK(pe_tensor_range(PE_U8, pe_number_int(250), pe_number_int(1), 10, &t, &err), err);
  CHECK_NEAR(nth(&t, 9), 255, 0); /* saturates */
  pe_tensor_close(&t);
  CHECK_OK(pe_tensor_eye(PE_BF16, 3, &t, &err), err);
  for (int i = 0; i < 9; i++) CHECK_NEAR(nth(&t, i), i % 4 == 0, 0);
  pe_tensor_close(&t);
  CHECK_OK(pe_tensor_new(PE_F64, 2, (int64_t[]){0, 5}, &t, &err), err);
  CHECK_INT(pe_tensor_size(&t), 0);
  CHECK(pe_tensor_is_contiguous(&t));
  pe_tensor_close(&t);
}

/* A vector over bytes of a buffer; takes the reference. */
static pe_tensor three_floats(pe_buffer *b, uint64_t offset) {
  return (pe_tensor){
      .dtype = PE_F32, .rank = 1, .shape = {3}, .strides = {1}, .buffer = b, .offset = offset};
}

static void made_of_bytes_anywhere(void) {
  pe_buffer *b = NULL;
  pe_tensor u = {0};
  CHECK_OK(pe_buffer_alloc(64, &b, &err), err);
  float values[] = {1.5f, -2, 3};
  memcpy(b->data + 7, values, sizeof values); /* not aligned */
  pe_tensor t = three_floats(b, 7);
  CHECK_NEAR(nth(&t, 2), 3, 0);
  CHECK_OK(pe_tensor_matmul(&t, &t, &u, &err), err);
  CHECK_NEAR(nth(&u, 0), 1.5 * 1.5 + 4 + 9, 0);
  pe_tensor_close(&u);
  pe_tensor_close(&t);
  CHECK_FAILS(pe_tensor_from_bytes(PE_F32, 1, (int64_t[]){3}, values, 11, &u, &err), PE_ESHAPE, err,
              "12 bytes, got 11");
}

static void mapped_files_are_read_only(void) {
  char path[] = "/tmp/perigee-tensor-XXXXXX";
  int fd = mkstemp(path);
  float values[] = {1, 2, 3, 4};
  CHECK_INT(write(fd, values, sizeof values), sizeof values);
  close(fd);
  pe_buffer *b = NULL;
  pe_tensor u = {0};
  CHECK_OK(pe_buffer_map(path, &b, &err), err);
  pe_tensor t = three_floats(b, 4);
  CHECK_FAILS(pe_tensor_fill(&t, pe_number_int(0), &err), PE_EARG, err, "mapped");
  CHECK_FAILS(pe_tensor_write(&t, &t, &err), PE_EARG, err, "mapped");
  CHECK_OK(pe_tensor_copy(&t, &u, &err), err);
  CHECK_OK(pe_tensor_fill(&u, pe_number_int(7), &err), err);
  CHECK_NEAR(nth(&t, 0), 2, 0);
  CHECK_NEAR(nth(&u, 0), 7, 0);
  pe_tensor_close(&u);
  pe_tensor_close(&t);
  unlink(path);
}

static void promotion_has_a_table(void) {
  static const struct {
    pe_dtype a, b, want;
  } rows[] = {{PE_F32, PE_F32, PE_F32},    {PE_F16, PE_BF16, PE_F32},   {PE_F16, PE_F32, PE_F32},
              {PE_BF16, PE_F64, PE_F64},   {PE_I64, PE_F16, PE_F16},    {PE_U8, PE_I8, PE_I16},
              {PE_U8, PE_I16, PE_I16},     {PE_U16, PE_I16, PE_I32},    {PE_U32, PE_I32, PE_I64},
              {PE_U64, PE_I8, PE_I64},     {PE_U64, PE_U8, PE_U64},     {PE_BOOL, PE_I8, PE_I8},
              {PE_BOOL, PE_BOOL, PE_BOOL}, {PE_BOOL, PE_BF16, PE_BF16}, {PE_I32, PE_I64, PE_I64}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    CHECK_STR(pe_dtype_name(pe_tensor_promote(rows[i].a, rows[i].b)), pe_dtype_name(rows[i].want));
    CHECK_STR(pe_dtype_name(pe_tensor_promote(rows[i].b, rows[i].a)), pe_dtype_name(rows[i].want));
  }
  static const struct {
    pe_number n;
    pe_dtype like, want;
  } scalars[] = {{{.kind = PE_NUMBER_INT, .i = 5}, PE_I8, PE_I8},
                 {{.kind = PE_NUMBER_INT, .i = 200}, PE_I8, PE_I64},
                 {{.kind = PE_NUMBER_INT, .i = -1}, PE_U8, PE_I64},
                 {{.kind = PE_NUMBER_INT, .i = 5}, PE_F16, PE_F16},
                 {{.kind = PE_NUMBER_FLOAT, .f = .5}, PE_I32, PE_F32},
                 {{.kind = PE_NUMBER_FLOAT, .f = .5}, PE_F16, PE_F16},
                 {{.kind = PE_NUMBER_INT, .i = 1}, PE_BOOL, PE_I64}};
  for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
    pe_tensor t = {0};
    CHECK_OK(pe_tensor_scalar(scalars[i].n, scalars[i].like, &t, &err), err);
    CHECK_STR(pe_dtype_name(t.dtype), pe_dtype_name(scalars[i].want));
    pe_tensor_close(&t);
  }
}

/* ---- views ----------------------------------------------------------------------------------- */

static void views_agree_with_index_arithmetic(void) {
  for (int round = 0; round < 300; round++) {
    pe_tensor t = random_view(random_tensor(PE_I32, 1 + dice(4), 6)), v = {0};
    int axis = dice(t.rank), other = dice(t.rank), wrong = 0;
    int64_t len = t.shape[axis], from = dice((int)len), step = 1 + dice(2),
            count = (len - 1 - from) / step + 1;
    int64_t index[PE_TENSOR_RANK] = {0}, at[PE_TENSOR_RANK];
    CHECK_OK(pe_tensor_slice(&t, axis, from, count, step, &v, &err), err);
    do {
      memcpy(at, index, sizeof at);
      at[axis] = from + index[axis] * step;
      wrong += value(&v, index) != value(&t, at);
    } while (next_index(&v, index));
    pe_tensor_close(&v);
    CHECK_OK(pe_tensor_swap(&t, axis, other, &v, &err), err);
    do {
      memcpy(at, index, sizeof at);
      at[axis] = index[other], at[other] = index[axis];
      wrong += value(&v, index) != value(&t, at);
    } while (next_index(&v, index));
    pe_tensor_close(&v);
    CHECK_OK(pe_tensor_select(&t, axis, from, &v, &err), err);
    do {
      for (int i = 0; i < t.rank; i++) at[i] = i == axis ? from : index[i > axis ? i - 1 : i];
      wrong += value(&v, index) != value(&t, at);
    } while (next_index(&v, index));
    pe_tensor_close(&v);
    int64_t flat[] = {-1}, pair[] = {t.shape[0], -1};
    CHECK_OK(pe_tensor_reshape(&t, 1, flat, &v, &err), err);
    for (int64_t i = 0; i < v.shape[0]; i++) wrong += nth(&v, i) != nth(&t, i);
    pe_tensor_close(&v);
    CHECK_OK(pe_tensor_reshape(&t, 2, pair, &v, &err), err);
    for (int64_t i = 0; i < pe_tensor_size(&v); i++) wrong += nth(&v, i) != nth(&t, i);
    pe_tensor_close(&v);
    if (!pe_tensor_view_as(&t, 2, pair, &v, &err)) {
      CHECK(v.buffer == t.buffer);
      for (int64_t i = 0; i < pe_tensor_size(&v); i++) wrong += nth(&v, i) != nth(&t, i);
      pe_tensor_close(&v);
    } else
      CHECK_INT(err.code, PE_ESHAPE);
    CHECK_OK(pe_tensor_contiguous(&t, &v, &err), err);
    CHECK(pe_tensor_is_contiguous(&v) && pe_tensor_equal(&t, &v));
    pe_tensor_close(&v);
    CHECK_INT(wrong, 0);
    pe_tensor_close(&t);
  }
}

static void views_share_memory(void) {
  pe_tensor t = {0}, row = {0}, wide = {0}, split = {0};
  CHECK_OK(pe_tensor_new(PE_F32, 2, (int64_t[]){3, 4}, &t, &err), err);
  CHECK_OK(pe_tensor_select(&t, 0, 1, &row, &err), err);
  CHECK_OK(pe_tensor_fill(&row, pe_number_float(2.5), &err), err);
  CHECK_NEAR(nth(&t, 4), 2.5, 0);
  CHECK_NEAR(nth(&t, 8), 0, 0);
  CHECK_OK(pe_tensor_expand(&row, 2, (int64_t[]){5, 4}, &wide, &err), err);
  CHECK_NEAR(nth(&wide, 19), 2.5, 0);
  CHECK_FAILS(pe_tensor_fill(&wide, pe_number_int(0), &err), PE_EARG, err,
              "elements of axis 1 share memory");
  CHECK_OK(pe_tensor_view_as(&t, 3, (int64_t[]){3, 2, -1}, &split, &err), err);
  CHECK_NEAR(value(&split, (int64_t[]){1, 1, 1}), 2.5, 0);
  pe_tensor_close(&split);
  pe_tensor_swap(&t, 0, 1, &split, &err);
  pe_tensor none = {0};
  CHECK_FAILS(pe_tensor_view_as(&split, 1, (int64_t[]){12}, &none, &err), PE_ESHAPE, err, "[4, 3]");
  CHECK(!none.buffer);
  pe_tensor_close(&split), pe_tensor_close(&wide), pe_tensor_close(&row), pe_tensor_close(&t);
}

static void overlapping_writes_are_copies(void) {
  pe_tensor t = FLOATS(1, 2, 3, 4, 5), back = {0}, to = {0}, from = {0};
  pe_tensor_slice(&t, 0, 4, 5, -1, &back, &err);
  CHECK_OK(pe_tensor_write(&t, &back, &err), err);
  for (int i = 0; i < 5; i++) CHECK_NEAR(nth(&t, i), 5 - i, 0);
  pe_tensor_slice(&t, 0, 1, 4, 1, &to, &err);
  pe_tensor_slice(&t, 0, 0, 4, 1, &from, &err);
  CHECK_OK(pe_tensor_write(&to, &from, &err), err);
  CHECK_NEAR(nth(&t, 4), 2, 0);
  pe_tensor_close(&to), pe_tensor_close(&from), pe_tensor_close(&back), pe_tensor_close(&t);
}

/* ---- conversions ----------------------------------------------------------------------------- */

static void casts_saturate(void) {
  pe_tensor t = FLOATS(1e10f, -1e10f, NAN, 300.7f, -3.9f, INFINITY, -INFINITY, 0.5f), u = {0};
  static const struct {
    pe_dtype to;
    double want[8];
  } rows[] = {{PE_I8, {127, -128, 0, 127, -3, 127, -128, 0}},
              {PE_U8, {255, 0, 0, 255, 0, 255, 0, 0}},
              {PE_I16, {32767, -32768, 0, 300, -3, 32767, -32768, 0}},
              {PE_U16, {65535, 0, 0, 300, 0, 65535, 0, 0}},
              {PE_I32, {2147483647, -2147483648.0, 0, 300, -3, 2147483647, -2147483648.0, 0}},
              {PE_U32, {4294967295, 0, 0, 300, 0, 4294967295, 0, 0}},
              {PE_I64, {1e10, -1e10, 0, 300, -3, 9223372036854775807.0, -9223372036854775808.0, 0}},
              {PE_U64, {1e10, 0, 0, 300, 0, 18446744073709551615.0, 0, 0}},
              {PE_F16, {INFINITY, -INFINITY, NAN, 300.75, -3.900390625, INFINITY, -INFINITY, 0.5}}};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    CHECK_OK(pe_tensor_cast(&t, rows[r].to, &u, &err), err);
    for (int i = 0; i < 8; i++)
      if (!alike(nth(&u, i), rows[r].want[i], 0)) CHECK_NEAR(nth(&u, i), rows[r].want[i], 0);
    pe_tensor_close(&u);
  }
  CHECK_OK(pe_tensor_cast(&t, PE_BOOL, &u, &err), err);
  for (int i = 0; i < 8; i++) CHECK_INT(nth(&u, i), 1); /* 0.5 and NaN are not zero */
  pe_tensor_close(&u), pe_tensor_close(&t);
  CHECK_OK(pe_tensor_full(PE_U64, 0, NULL, (pe_number){.kind = PE_NUMBER_UINT, .u = UINT64_MAX}, &t,
                          &err),
           err);
  CHECK(pe_tensor_get(&t, NULL).u == UINT64_MAX);
  CHECK_OK(pe_tensor_cast(&t, PE_I64, &u, &err), err);
  CHECK_INT(pe_tensor_get(&u, NULL).i, INT64_MAX);
  pe_tensor_close(&u), pe_tensor_close(&t);
}

static void eight_bit_floats_are_read(void) {
  uint8_t bytes[] = {0x00, 0x01, 0x38, 0x7e, 0xfe, 0x7f, 0x08};
  static const double e4m3[] = {0, 0x1p-9, 1, 448, -448, NAN, 0x1p-6},
                      e5m2[] = {0, 0x1p-16, 0.5, NAN, NAN, NAN, 0x1p-13};
  pe_tensor t = {0}, u = {0};
  CHECK_OK(pe_tensor_from_bytes(PE_F8_E4M3, 1, (int64_t[]){7}, bytes, 7, &t, &err), err);
  for (int i = 0; i < 7; i++) CHECK(alike(nth(&t, i), e4m3[i], 0));
  CHECK_OK(pe_tensor_cast(&t, PE_F16, &u, &err), err);
  CHECK_NEAR(nth(&u, 3), 448, 0);
  pe_tensor_close(&u);
  CHECK_FAILS(pe_tensor_unary(PE_NEG, &t, &u, &err), PE_EUNSUPPORTED, err,
              "neg: f8_e4m3 has no arithmetic");
  CHECK_FAILS(pe_tensor_cast(&t, PE_F8_E5M2, &u, &err), PE_EUNSUPPORTED, err, "f8_e5m2");
  pe_tensor f = {0}, yes = {0};
  CHECK_OK(pe_tensor_cast(&t, PE_F32, &f, &err), err);
  CHECK_OK(pe_tensor_cast(&t, PE_BOOL, &yes, &err), err);
  const pe_tensor *const pair[][2] = {{&t, &f}, {&f, &t}};
  for (int i = 0; i < 2; i++) { /* on either side */
    const pe_tensor *a = pair[i][0], *b = pair[i][1];
    CHECK_FAILS(pe_tensor_binary(PE_ADD, a, b, &u, &err), PE_EUNSUPPORTED, err, "f8_e4m3 has no");
    CHECK_FAILS(pe_tensor_where(&yes, a, b, &u, &err), PE_EUNSUPPORTED, err, "f8_e4m3 has no");
    CHECK_FAILS(pe_tensor_matmul(a, b, &u, &err), PE_EUNSUPPORTED, err, "f8_e4m3 has no");
  }
  CHECK_FAILS(pe_tensor_reduce(PE_SUM, &t, (pe_reduce_options){.axis = 0}, &u, &err),
              PE_EUNSUPPORTED, err, "f8_e4m3 has no");
  CHECK_FAILS(pe_tensor_softmax(&t, 0, false, &u, &err), PE_EUNSUPPORTED, err, "f8_e4m3 has no");
  pe_tensor_close(&f), pe_tensor_close(&yes);
  CHECK_OK(pe_tensor_copy(&t, &u, &err), err);
  CHECK(!memcmp(pe_tensor_data(&u), bytes, 7));
  pe_tensor_close(&u), pe_tensor_close(&t);
  CHECK_OK(pe_tensor_from_bytes(PE_F8_E5M2, 1, (int64_t[]){7}, bytes, 7, &t, &err), err);
  for (int i = 0; i < 7; i++) CHECK(alike(nth(&t, i), e5m2[i], 0));
  pe_tensor_close(&t);
  CHECK_OK(pe_tensor_from_bytes(PE_F8_E8M0, 1, (int64_t[]){3}, "\x7f\x00\xff", 3, &t, &err), err);
  CHECK_NEAR(nth(&t, 0), 1, 0);
  CHECK_NEAR(nth(&t, 1), 0x1p-127, 0); /* subnormal in f32 */
  CHECK(nth(&t, 2) != nth(&t, 2));
  pe_tensor_close(&t);
}

/* ---- putting together, looking --------------------------------------------------------------- */

static void joined_and_taken(void) {
  pe_tensor a = floats(2, (int64_t[]){2, 2}, (float[]){1, 2, 3, 4}), b = {0}, o = {0},
            positions = {0};
  CHECK_OK(pe_tensor_full(PE_I32, 2, (int64_t[]){2, 1}, pe_number_int(9), &b, &err), err);
  const pe_tensor *both[] = {&a, &b}, *twice[] = {&a, &a};
  CHECK_OK(pe_tensor_concat(both, 2, 1, &o, &err), err);
  CHECK_STR(pe_dtype_name(o.dtype), "f32");
  expect(o, (double[]){1, 2, 9, 3, 4, 9}, 0);
  CHECK_FAILS(pe_tensor_concat(both, 2, 0, &o, &err), PE_ESHAPE, err,
              "[2, 2] and [2, 1] (part 2) differ in more than axis 1");
  CHECK_OK(pe_tensor_stack(twice, 2, 2, &o, &err), err);
  CHECK_INT(o.rank, 3);
  expect(o, (double[]){1, 1, 2, 2, 3, 3, 4, 4}, 0);
  CHECK_OK(pe_tensor_from_bytes(PE_I8, 2, (int64_t[]){1, 3}, "\2\1\xff", 3, &positions, &err), err);
  CHECK_OK(pe_tensor_take(&a, 0, &positions, 1, &o, &err), err);
  CHECK_INT(o.rank, 3);
  expect(o, (double[]){3, 4, 1, 2, 3, 4}, 0);
  CHECK_OK(pe_tensor_take(&a, 1, &positions, 1, &o, &err), err);
  expect(o, (double[]){2, 1, 2, 4, 3, 4}, 0);
  CHECK_FAILS(pe_tensor_take(&a, 1, &positions, 0, &o, &err), PE_EARG, err,
              "take: position 2 is out of range: axis 2 has 2");
  CHECK_FAILS(pe_tensor_take(&a, 0, &a, 0, &o, &err), PE_EARG, err,
              "positions must be integers, got f32");
  pe_tensor_close(&positions), pe_tensor_close(&b), pe_tensor_close(&a);
}

static void statistics(void) {
  pe_tensor t = FLOATS(1, 2, 3, 4, NAN, INFINITY, 0, -INFINITY), big = {0}, o = {0};
  pe_tensor_summary s;
  pe_tensor_stats(&t, &s);
  CHECK_INT(s.count, 8);
  CHECK_INT(s.nan, 1);
  CHECK_INT(s.inf, 2);
  CHECK_INT(s.zero, 1);
  CHECK_NEAR(s.min, 0, 0);
  CHECK_NEAR(s.max, 4, 0);
  CHECK_NEAR(s.mean, 2, 1e-15);
  CHECK_NEAR(s.std, sqrt(2), 1e-15);
  int64_t counts[4];
  CHECK_OK(pe_tensor_histogram(&t, 0, 4, counts, 4, &err), err);
  CHECK_INT(counts[0], 1);
  CHECK_INT(counts[3], 2); /* the last part includes its end */
  CHECK_FAILS(pe_tensor_histogram(&t, 1, 0, counts, 4, &err), PE_EARG, err, "got 1 and 0");
  CHECK_FAILS(pe_tensor_histogram(&t, 0, NAN, counts, 4, &err), PE_EARG, err, "histogram");
  pe_tensor_close(&t);
  CHECK_OK(pe_tensor_normal(PE_F64, 2, (int64_t[]){100, 1000}, 1e6, 2, 42, &big, &err), err);
  pe_tensor_stats(&big, &s);
  CHECK_NEAR(s.mean, 1e6, 0.03);
  CHECK_NEAR(s.std, 2, 0.02);
  CHECK_OK(pe_tensor_reduce(PE_STD, &big, (pe_reduce_options){.axis = PE_TENSOR_ALL}, &o, &err),
           err);
  CHECK_NEAR(nth(&o, 0), s.std, 1e-9);
  pe_tensor_close(&o), pe_tensor_close(&big);
  double huge[] = {1e308, 1e308, -1e308, 1e308};
  CHECK_OK(pe_tensor_from_bytes(PE_F64, 1, (int64_t[]){4}, huge, 32, &t, &err), err);
  pe_tensor_stats(&t, &s);
  CHECK_NEAR(s.mean / 1e308, 0.5, 1e-12);
  CHECK_OK(pe_tensor_histogram(&t, s.min, s.max, counts, 2, &err), err);
  CHECK_INT(counts[1], 3);
  pe_tensor_close(&t);
}

static void random_numbers_follow_the_seed(void) {
  pe_tensor a = {0}, b = {0}, c = {0};
  CHECK_OK(pe_tensor_uniform(PE_F32, 2, (int64_t[]){10, 100}, -1, 1, 7, &a, &err), err);
  CHECK_OK(pe_tensor_uniform(PE_F32, 1, (int64_t[]){1000}, -1, 1, 7, &b, &err), err);
  CHECK_OK(pe_tensor_uniform(PE_F32, 1, (int64_t[]){1000}, -1, 1, 8, &c, &err), err);
  int same = 0, other = 0;
  for (int i = 0; i < 1000; i++)
    same += nth(&a, i) == nth(&b, i), other += nth(&b, i) == nth(&c, i);
  CHECK_INT(same, 1000);
  CHECK(other < 3);
  pe_tensor_close(&c), pe_tensor_close(&b), pe_tensor_close(&a);
  CHECK_OK(pe_tensor_uniform(PE_I8, 1, (int64_t[]){6000}, -3, 3, 1, &a, &err), err);
  int64_t counts[6];
  CHECK_OK(pe_tensor_histogram(&a, -3, 3, counts, 6, &err), err);
  for (int i = 0; i < 6; i++) CHECK(counts[i] > 850 && counts[i] < 1150);
  pe_tensor_close(&a);
  CHECK_FAILS(pe_tensor_uniform(PE_F32, 0, NULL, 1, 0, 1, &a, &err), PE_EARG, err, "got 1 and 0");
  CHECK_FAILS(pe_tensor_normal(PE_F32, 0, NULL, 0, -1, 1, &a, &err), PE_EARG, err, "got 0 and -1");
}

static void check_print(pe_tensor t, pe_print_options o, const char *want) { /* takes t */
  pe_buf b = {0};
  CHECK_OK(pe_tensor_print(&t, &o, &b, &err), err);
  CHECK_OK(pe_buf_byte(&b, 0, &err), err);
  CHECK_STR(b.data, want);
  pe_buf_free(&b);
  pe_tensor_close(&t);
}

static void printed_for_people(void) {
  pe_tensor t = {0};
  check_print(FLOATS(1, -2.5f, 3), (pe_print_options){0}, "[ 1.0, -2.5,  3.0]");
  check_print(FLOATS(1e-6f, 1, NAN), (pe_print_options){.digits = 2},
              "[1.00e-06, 1.00e+00,      nan]");
  check_print(floats(2, (int64_t[]){2, 1}, (float[]){INFINITY, 0.12345f}), (pe_print_options){0},
              "[[   inf],\n [0.1235]]");
  pe_tensor_range(PE_I64, pe_number_int(1), pe_number_int(1), 100, &t, &err);
  check_print(t, (pe_print_options){.width = 30}, "[  1,   2, …,  99, 100]");
  pe_tensor_range(PE_I64, pe_number_int(1), pe_number_int(1), 100, &t, &err);
  check_print(t, (pe_print_options){.threshold = 10, .edge = 1, .ascii = true}, "[  1, ..., 100]");
  pe_tensor_new(PE_BOOL, 3, (int64_t[]){2, 1, 2}, &t, &err);
  check_print(t, (pe_print_options){0}, "[[[false, false]],\n\n [[false, false]]]");
  pe_tensor_full(PE_U64, 0, NULL, (pe_number){.kind = PE_NUMBER_UINT, .u = UINT64_MAX}, &t, &err);
  check_print(t, (pe_print_options){0}, "18446744073709551615");
  pe_tensor_new(PE_F32, 2, (int64_t[]){0, 3}, &t, &err);
  check_print(t, (pe_print_options){0}, "[]");
  pe_tensor_full(PE_F64, 1, (int64_t[]){1}, pe_number_float(1.7e308), &t, &err);
  check_print(t, (pe_print_options){0}, "[1.7000e+308]");
  int64_t many[] = {9, 9, 9, 9, 9, 9, 9, 9};
  pe_buf b = {0};
  pe_tensor one = {0};
  pe_tensor_new(PE_F32, 0, NULL, &one, &err);
  CHECK_OK(pe_tensor_expand(&one, 8, many, &t, &err), err);
  CHECK_OK(pe_tensor_print(&t, NULL, &b, &err), err);
  CHECK(b.len < 8000); /* eight axes do not flood the terminal */
  pe_buf_free(&b);
  pe_tensor_close(&t), pe_tensor_close(&one);
  t = FLOATS(0, 1, 1, 2, NAN);
  CHECK_OK(pe_tensor_print_line(&t, &(pe_print_options){.ascii = true}, &b, &err), err);
  CHECK_OK(pe_buf_byte(&b, 0, &err), err);
  CHECK_STR(b.data, "tensor f32 [5]  20 B   0 =_______#______= 2   mean 1  std 0.707  nan 1");
  pe_buf_free(&b);
  pe_tensor_close(&t);
}

/* ---- misuse and failure ---------------------------------------------------------------------- */

static void misuse_is_named(void) {
  pe_tensor t = floats(2, (int64_t[]){2, 3}, (float[6]){0}),
            u = floats(2, (int64_t[]){4, 3}, (float[12]){0}), o = {0};
  int64_t huge[] = {INT64_MAX, 4}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1},
          empty_huge[] = {0, INT64_MAX, INT64_MAX};
  CHECK_FAILS(pe_tensor_binary(PE_ADD, &t, &u, &o, &err), PE_ESHAPE, err,
              "add: shapes [2, 3] and [4, 3] do not broadcast (axis 1: 2 and 4)");
  CHECK_FAILS(pe_tensor_new(PE_F32, 2, huge, &o, &err), PE_ELIMIT, err, "2^63");
  CHECK_FAILS(pe_tensor_new(PE_F32, 3, empty_huge, &o, &err), PE_ELIMIT, err, "2^63");
  CHECK_FAILS(pe_tensor_new(PE_F32, 1, (int64_t[]){(int64_t)1 << 50}, &o, &err), PE_ELIMIT, err,
              "needs 4503599627370496 bytes, this machine has");
  CHECK_FAILS(pe_tensor_new(PE_F32, 9, nine, &o, &err), PE_EARG, err,
              "at most 8 dimensions, got 9");
  CHECK_FAILS(pe_tensor_new(PE_F32, 1, (int64_t[]){-1}, &o, &err), PE_EARG, err,
              "dimension 1 of shape [-1] is negative");
  CHECK_FAILS(pe_tensor_slice(&t, 1, 1, 3, 1, &o, &err), PE_EARG, err,
              "3 elements from position 2 in steps of 1 do not fit: axis 2 has 3");
  CHECK_FAILS(pe_tensor_slice(&t, 1, 0, 2, INT64_MAX, &o, &err), PE_EARG, err, "slice");
  CHECK_FAILS(pe_tensor_slice(&t, 1, 0, 1, 0, &o, &err), PE_EARG, err, "step must not be 0");
  CHECK_FAILS(pe_tensor_slice(&t, 2, 0, 1, 1, &o, &err), PE_EARG, err,
              "there is no axis 3, the tensor has rank 2");
  CHECK_FAILS(pe_tensor_select(&t, 0, 2, &o, &err), PE_EARG, err,
              "position 3 is out of range: axis 1 has 2");
  CHECK_FAILS(pe_tensor_permute(&t, (int[]){0, 0}, &o, &err), PE_EARG, err, "axis 1 occurs twice");
  CHECK_FAILS(pe_tensor_expand(&t, 2, (int64_t[]){2, 4}, &o, &err), PE_ESHAPE, err,
              "[2, 3] cannot become [2, 4] (axis 2: 3 and 4)");
  CHECK_FAILS(pe_tensor_expand(&t, 4, (int64_t[]){INT64_MAX, 4, 2, 3}, &o, &err), PE_ELIMIT, err,
              "too many");
  CHECK_FAILS(pe_tensor_reshape(&t, 2, (int64_t[]){4, -1}, &o, &err), PE_ESHAPE, err,
              "[2, 3] (6 elements) cannot become [4, -1]");
  CHECK_FAILS(pe_tensor_reshape(&t, 2, (int64_t[]){-1, -1}, &o, &err), PE_ESHAPE, err,
              "cannot become");
  CHECK_FAILS(pe_tensor_reshape(&t, 3, (int64_t[]){INT64_MAX, INT64_MAX, 6}, &o, &err), PE_ESHAPE,
              err, "cannot become");
  CHECK_FAILS(pe_tensor_write(&t, &u, &err), PE_ESHAPE, err,
              "write: expand: shape [4, 3] cannot become [2, 3]");
  CHECK_FAILS(pe_tensor_reduce(PE_SUM, &t, (pe_reduce_options){.axis = 5}, &o, &err), PE_EARG, err,
              "sum: there is no axis 6");
  bool close;
  CHECK_FAILS(pe_tensor_close_to(&t, &u, 0, 0, &close, NULL, &err), PE_ESHAPE, err,
              "[2, 3] and [4, 3]");
  CHECK(!o.buffer);
  pe_tensor_close(&u), pe_tensor_close(&t);
}

/* A few operations with many allocations. */
static pe_status much_work(pe_error *e) {
  pe_tensor a = {0}, b = {0}, t = {0}, c = {0}, d = {0}, v = {0}, p = {0}, s = {0};
  pe_buf text = {0};
  pe_status rc = pe_tensor_uniform(PE_F32, 2, (int64_t[]){4, 5}, -1, 1, 3, &a, e);
  if (!rc) rc = pe_tensor_swap(&a, 0, 1, &t, e);
  if (!rc) rc = pe_tensor_matmul(&a, &t, &b, e);
  if (!rc) rc = pe_tensor_binary(PE_ADD, &b, &b, &c, e);
  if (!rc) rc = pe_tensor_topk(&c, 0, 2, false, 0, &v, &p, e);
  if (!rc) rc = pe_tensor_take(&c, 0, &p, 0, &d, e);
  const pe_tensor *parts[] = {&c, &b};
  if (!rc) rc = pe_tensor_stack(parts, 2, 0, &s, e);
  pe_tensor_close(&d);
  if (!rc) rc = pe_tensor_softmax(&s, 1, true, &d, e);
  if (!rc) rc = pe_tensor_write(&b, &b, e);
  if (!rc) rc = pe_tensor_print(&d, NULL, &text, e);
  pe_buf_free(&text);
  pe_tensor *all[] = {&a, &b, &t, &c, &d, &v, &p, &s};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) pe_tensor_close(all[i]);
  return rc;
}

static void every_allocation_may_fail(void) {
  pe_alloc_fail_at(0);
  CHECK_OK(much_work(&err), err);
  int64_t count = pe_alloc_count(), live = pe_alloc_live();
  CHECK(count > 20);
  for (int64_t n = 1; n <= count; n++) {
    pe_alloc_fail_at(n);
    CHECK_INT(much_work(&err), PE_ENOMEM);
    CHECK_INT(pe_alloc_live(), live);
  }
  pe_alloc_fail_at(0);
}

static const check_test tests[] = {
    {"made_as_asked", made_as_asked},
    {"made_of_bytes_anywhere", made_of_bytes_anywhere},
    {"mapped_files_are_read_only", mapped_files_are_read_only},
    {"promotion_has_a_table", promotion_has_a_table},
    {"views_agree_with_index_arithmetic", views_agree_with_index_arithmetic},
    {"views_share_memory", views_share_memory},
    {"overlapping_writes_are_copies", overlapping_writes_are_copies},
    {"casts_saturate", casts_saturate},
    {"eight_bit_floats_are_read", eight_bit_floats_are_read},
    {"joined_and_taken", joined_and_taken},
    {"statistics", statistics},
    {"random_numbers_follow_the_seed", random_numbers_follow_the_seed},
    {"printed_for_people", printed_for_people},
    {"misuse_is_named", misuse_is_named},
    {"every_allocation_may_fail", every_allocation_may_fail},
};
CHECK_MAIN("tensor", tests)
