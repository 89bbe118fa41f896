/* Arithmetic of tensors, compared with slow, obvious loops over random shapes, strides, views and
 * dtypes, and with values from numpy; special numbers. */
#include "guard.h"
#include "tensor_help.h"

/* ---- element by element ---------------------------------------------------------------------- */

static double slow_binary(pe_binary op, double x, double y) {
  switch (op) {
  case PE_ADD: return x + y;
  case PE_SUB: return x - y;
  case PE_MUL: return x * y;
  case PE_DIV: return x / y;
  case PE_MINIMUM: return x < y ? x : y;
  case PE_MAXIMUM: return x > y ? x : y;
  case PE_EQ: return x == y;
  case PE_NE: return x != y;
  case PE_LT: return x < y;
  case PE_LE: return x <= y;
  case PE_GT: return x > y;
  case PE_GE: return x >= y;
  case PE_AND: return x != 0 && y != 0;
  default: return x != 0 || y != 0;
  }
}

static void binary_agrees_with_loops(void) {
  static const pe_binary ops[] = {PE_ADD, PE_SUB, PE_MUL, PE_DIV, PE_MINIMUM, PE_MAXIMUM, PE_EQ,
                                  PE_NE,  PE_LT,  PE_LE,  PE_GT,  PE_GE,      PE_AND,     PE_OR};
  for (int round = 0; round < 600; round++) {
    pe_tensor a = random_view(random_tensor(arithmetic[dice(ARITHMETIC)], dice(4), 7)), b = {0},
              o = {0}, other;
    /* b broadcasts to a: some dimensions are 1, leading ones may be missing */
    int skip = a.rank ? dice(a.rank + 1) : 0;
    int64_t shape[PE_TENSOR_RANK];
    for (int i = skip; i < a.rank; i++) shape[i - skip] = dice(3) ? a.shape[i] : 1;
    pe_dtype bt = arithmetic[dice(ARITHMETIC)];
    CHECK_OK(pe_tensor_uniform(bt, a.rank - skip, shape, pe_dtype_is_float(bt) ? -4 : 0, 4,
                               (uint64_t)round, &b, &err),
             err);
    pe_binary op = ops[dice(sizeof ops / sizeof *ops)];
    bool swapped = dice(2);
    CHECK_OK(pe_tensor_binary(op, swapped ? &b : &a, swapped ? &a : &b, &o, &err), err);
    CHECK_OK(pe_tensor_expand(&b, a.rank, a.shape, &other, &err), err);
    bool is_unsigned = o.dtype >= PE_U64 && o.dtype <= PE_U8;
    int wrong = o.rank != a.rank;
    int64_t index[PE_TENSOR_RANK] = {0};
    do {
      double x = value(&a, index), y = value(&other, index), got = value(&o, index);
      double want = swapped ? slow_binary(op, y, x) : slow_binary(op, x, y);
      if (is_unsigned && want < 0) want += ldexp(1, 8 * (int)pe_dtype_size(o.dtype)); /* wraps */
      /* a difference of rounded operands may be far from the exact one */
      if (!alike(got, want, 2 * tolerance(o.dtype)) &&
          !(fabs(got - want) <= 12 * tolerance(o.dtype == PE_BOOL ? PE_F64 : o.dtype)))
        wrong++;
    } while (next_index(&a, index));
    if (wrong)
      printf("    %s, %s, operation %d\n", pe_dtype_name(a.dtype), pe_dtype_name(b.dtype), op);
    CHECK_INT(wrong, 0);
    pe_tensor_close(&other), pe_tensor_close(&o), pe_tensor_close(&b), pe_tensor_close(&a);
  }
}

static void unary_agrees_with_libm(void) {
  static double (*const fns[])(double) = {
      [PE_ABS] = fabs, [PE_FLOOR] = floor, [PE_CEIL] = ceil, [PE_ROUND] = rint, [PE_EXP] = exp,
      [PE_SIN] = sin,  [PE_COS] = cos,     [PE_TANH] = tanh, [PE_ERF] = erf};
  for (size_t op = 0; op < sizeof fns / sizeof *fns; op++)
    for (int d = 0; d < ARITHMETIC && fns[op]; d++) {
      pe_tensor t = random_view(random_tensor(arithmetic[d], 3, 7)), o = {0};
      CHECK_OK(pe_tensor_unary((pe_unary)op, &t, &o, &err), err);
      int wrong = 0;
      for (int64_t i = 0; i < pe_tensor_size(&t); i++)
        wrong += !alike(nth(&o, i), fns[op](nth(&t, i)), 2 * tolerance(o.dtype) + 1e-15);
      if (wrong) printf("    operation %zu of %s\n", op, pe_dtype_name(arithmetic[d]));
      CHECK_INT(wrong, 0);
      pe_tensor_close(&o), pe_tensor_close(&t);
    }
}

/* a = [[.5, -1.25, 2], [3.5, 0, -.75]] in numpy. */
static void numpy_says(void) {
  pe_tensor a = floats(2, (int64_t[]){2, 3}, (float[]){0.5f, -1.25f, 2, 3.5f, 0, -0.75f}), b, c,
            o = {0};
  CHECK_OK(pe_tensor_unary(PE_GELU, &a, &o, &err), err);
  expect(o,
         (double[]){0.34573123063700656, -0.13206221708356913, 1.9544997361036416,
                    3.4991857982233756, 0, -0.16997051428265114},
         3e-7);
  CHECK_OK(pe_tensor_unary(PE_GELU_TANH, &a, &o, &err), err);
  expect(o,
         (double[]){0.34571400982514394, -0.13228579703028542, 1.954597694087775, 3.499383802344626,
                    0, -0.17003944483437972},
         3e-7);
  CHECK_OK(pe_tensor_unary(PE_SILU, &a, &o, &err), err);
  expect(o,
         (double[]){0.3112296656009273, -0.27837517353163604, 1.7615941559557646,
                    3.3974071923702525, 0, -0.24061597561845527},
         3e-7);
  CHECK_OK(pe_tensor_softmax(&a, 1, false, &o, &err), err);
  expect(o, (double[]){0.17682017, 0.03072674, 0.7924531, 0.9574311, 0.02891191, 0.01365702}, 1e-7);
  CHECK_OK(pe_tensor_softmax(&a, 1, true, &o, &err), err);
  expect(o, (double[]){-1.732622, -3.482622, -0.23262198, -0.04350154, -3.5435016, -4.2935014},
         5e-7);
  CHECK_OK(pe_tensor_cumsum(&a, 0, &o, &err), err);
  expect(o, (double[]){0.5, -1.25, 2, 4, -1.25, 1.25}, 0);
  CHECK_OK(
      pe_tensor_reduce(PE_VAR, &a, (pe_reduce_options){.axis = PE_TENSOR_ALL, .ddof = 1}, &o, &err),
      err);
  expect(o, (double[]){3.191666666666667}, 3e-7);
  CHECK_OK(pe_tensor_reduce(PE_STD, &a, (pe_reduce_options){.axis = 0}, &o, &err), err);
  expect(o, (double[]){1.5, 0.625, 1.375}, 1e-7);
  CHECK_OK(pe_tensor_reduce(PE_NORM, &a, (pe_reduce_options){.axis = PE_TENSOR_ALL}, &o, &err),
           err);
  expect(o, (double[]){4.315669125408017}, 5e-7);
  CHECK_OK(pe_tensor_range(PE_F32, pe_number_float(0), pe_number_float(0.125), 12, &c, &err), err);
  CHECK_OK(pe_tensor_view_as(&c, 2, (int64_t[]){3, 4}, &b, &err), err);
  CHECK_OK(pe_tensor_matmul(&a, &b, &o, &err), err);
  expect(o, (double[]){1.375, 1.53125, 1.6875, 1.84375, -0.75, -0.40625, -0.0625, 0.28125}, 0);
  pe_tensor_close(&b), pe_tensor_close(&c), pe_tensor_close(&a);
  /* half precision rounds once: 1024 + 0.7 is 1025 */
  CHECK_OK(pe_tensor_full(PE_F16, 0, NULL, pe_number_float(1024), &a, &err), err);
  CHECK_OK(pe_tensor_full(PE_F16, 0, NULL, pe_number_float(0.7), &b, &err), err);
  CHECK_OK(pe_tensor_binary(PE_ADD, &a, &b, &o, &err), err);
  expect(o, (double[]){1025}, 0);
  pe_tensor_close(&b), pe_tensor_close(&a);
}

static void integers_are_defined(void) {
  int8_t x[] = {-128, 127, -7, 7, -7, 7}, y[] = {-1, 1, 2, -2, -2, 2};
  pe_tensor a = {0}, b = {0}, o = {0};
  CHECK_OK(pe_tensor_from_bytes(PE_I8, 1, (int64_t[]){6}, x, 6, &a, &err), err);
  CHECK_OK(pe_tensor_from_bytes(PE_I8, 1, (int64_t[]){6}, y, 6, &b, &err), err);
  CHECK_OK(pe_tensor_binary(PE_ADD, &a, &b, &o, &err), err);
  expect(o, (double[]){127, -128, -5, 5, -9, 9}, 0);
  CHECK_OK(pe_tensor_binary(PE_IDIV, &a, &b, &o, &err), err);
  expect(o, (double[]){-128, 127, -4, -4, 3, 3}, 0); /* floors; -128 // -1 wraps */
  CHECK_OK(pe_tensor_binary(PE_MOD, &a, &b, &o, &err), err);
  expect(o, (double[]){0, 0, 1, -1, -1, 1}, 0);
  CHECK_OK(pe_tensor_unary(PE_ABS, &a, &o, &err), err);
  expect(o, (double[]){-128, 127, 7, 7, 7, 7}, 0);
  CHECK_FAILS(pe_tensor_binary(PE_POW, &a, &b, &o, &err), PE_EARG, err,
              "pow: negative power of an integer at element 1");
  pe_tensor_close(&b);
  CHECK_OK(pe_tensor_range(PE_I8, pe_number_int(0), pe_number_int(1), 6, &b, &err), err);
  CHECK_FAILS(pe_tensor_binary(PE_IDIV, &a, &b, &o, &err), PE_EARG, err,
              "integer division by zero at element 1");
  CHECK_FAILS(pe_tensor_binary(PE_MOD, &a, &b, &o, &err), PE_EARG, err,
              "mod: integer division by zero");
  pe_tensor_fill(&a, pe_number_int(7), &err);
  CHECK_OK(pe_tensor_binary(PE_POW, &a, &b, &o, &err), err);
  expect(o, (double[]){1, 7, 49, 87, 97, -89}, 0);
  CHECK_OK(pe_tensor_binary(PE_DIV, &a, &b, &o, &err), err);
  CHECK_STR(pe_dtype_name(o.dtype), "f32");
  CHECK(isinf(nth(&o, 0)));
  pe_tensor_close(&o), pe_tensor_close(&b), pe_tensor_close(&a);
  int64_t low = INT64_MIN, one = -1;
  CHECK_OK(pe_tensor_from_bytes(PE_I64, 0, NULL, &low, 8, &a, &err), err);
  CHECK_OK(pe_tensor_from_bytes(PE_I64, 0, NULL, &one, 8, &b, &err), err);
  static const pe_binary ops[] = {PE_IDIV, PE_MOD, PE_MUL, PE_ADD, PE_SUB};
  static const int64_t want[] = {INT64_MIN, 0, INT64_MIN, INT64_MAX, INT64_MIN + 1};
  for (int i = 0; i < 5; i++) {
    CHECK_OK(pe_tensor_binary(ops[i], &a, &b, &o, &err), err);
    CHECK_INT(pe_tensor_get(&o, NULL).i, want[i]);
    pe_tensor_close(&o);
  }
  pe_tensor_close(&b), pe_tensor_close(&a);
}

static void special_numbers(void) {
  float tiny = 0x1p-149f;
  pe_tensor a = FLOATS(NAN, 1, -INFINITY, tiny, -0.0f), b = FLOATS(1, NAN, INFINITY, tiny, 0),
            o = {0};
  CHECK_OK(pe_tensor_binary(PE_MINIMUM, &a, &b, &o, &err), err);
  expect(o, (double[]){NAN, NAN, -INFINITY, tiny, 0}, 0);
  CHECK_OK(pe_tensor_binary(PE_MAXIMUM, &a, &b, &o, &err), err);
  expect(o, (double[]){NAN, NAN, INFINITY, tiny, 0}, 0);
  CHECK_OK(pe_tensor_binary(PE_ADD, &a, &b, &o, &err), err);
  expect(o, (double[]){NAN, NAN, NAN, 2 * (double)tiny, 0}, 0);
  CHECK_OK(pe_tensor_unary(PE_ISFINITE, &a, &o, &err), err);
  expect(o, (double[]){0, 1, 0, 1, 1}, 0);
  CHECK_OK(pe_tensor_unary(PE_ISNAN, &a, &o, &err), err);
  expect(o, (double[]){1, 0, 0, 0, 0}, 0);
  CHECK_OK(pe_tensor_reduce(PE_MAX, &a, (pe_reduce_options){.axis = 0}, &o, &err), err);
  expect(o, (double[]){NAN}, 0);
  CHECK_OK(pe_tensor_reduce(PE_ARGMIN, &b, (pe_reduce_options){.axis = 0}, &o, &err), err);
  expect(o, (double[]){1}, 0);
  CHECK_OK(pe_tensor_sort(&a, 0, false, &o, &err), err);
  expect(o, (double[]){-INFINITY, 0, tiny, 1, NAN}, 0);
  bool close;
  double worst;
  CHECK(!pe_tensor_equal(&a, &a)); /* NaN */
  CHECK_OK(pe_tensor_close_to(&a, &a, 0, 0, &close, &worst, &err), err);
  CHECK(close && worst == 0);
  CHECK_OK(pe_tensor_close_to(&a, &b, 1e9, 0, &close, &worst, &err), err);
  CHECK(!close && worst != worst);
  pe_tensor_close(&b), pe_tensor_close(&a);
}

static void where_chooses(void) {
  pe_tensor a = FLOATS(1, 2, 3, 4), b = FLOATS(-1), c = {0}, o = {0};
  CHECK_OK(pe_tensor_binary(PE_GT, &a, &b, &c, &err), err);
  CHECK_OK(pe_tensor_where(&c, &a, &b, &o, &err), err);
  expect(o, (double[]){1, 2, 3, 4}, 0);
  CHECK_FAILS(pe_tensor_where(&a, &a, &b, &o, &err), PE_EARG, err, "must be bool, got f32");
  pe_tensor_close(&c);
  CHECK_OK(pe_tensor_from_bytes(PE_BOOL, 2, (int64_t[]){2, 1}, "\1\0", 2, &c, &err), err);
  CHECK_OK(pe_tensor_where(&c, &a, &b, &o, &err), err);
  expect(o, (double[]){1, 2, 3, 4, -1, -1, -1, -1}, 0);
  pe_tensor_close(&c), pe_tensor_close(&b), pe_tensor_close(&a);
}

/* ---- matmul ---------------------------------------------------------------------------------- */

/* One element, in the arithmetic that tensor.h promises. */
static double slow_dot(const pe_tensor *a, int64_t *ia, const pe_tensor *b, int64_t *ib,
                       pe_dtype dtype) {
  float f = 0;
  double d = 0;
  for (int64_t k = 0; k < a->shape[a->rank - 1]; k++) {
    ia[a->rank - 1] = k, ib[b->rank - 2] = k;
    d += value(a, ia) * value(b, ib);
    f += (float)value(a, ia) * (float)value(b, ib);
  }
  return dtype == PE_F16    ? pe_f16_to_f32(pe_f32_to_f16(f))
         : dtype == PE_BF16 ? pe_bf16_to_f32(pe_f32_to_bf16(f))
         : dtype == PE_F32  ? f
                            : d;
}

static void matmul_is_one_sum_per_element(void) {
  static const pe_dtype dtypes[] = {PE_F32, PE_F32, PE_F64, PE_F16, PE_BF16, PE_I32, PE_U8};
  for (int round = 0; round < 150; round++) {
    pe_dtype dtype = dtypes[dice(7)];
    int64_t m = dice(9), k = dice(20), n = dice(19), p = 1 + dice(3), q = 1 + dice(3);
    int batch = dice(3); /* none, on the left, on both with a 1 each */
    int64_t sa[] = {p, 1, m, k}, sb[] = {1, q, k, n};
    bool turned = dice(2);
    if (turned) sb[2] = n, sb[3] = k;
    pe_tensor a = {0}, b0 = {0}, b = {0}, o = {0};
    double low = dtype == PE_U8 ? 0 : -3;
    CHECK_OK(pe_tensor_uniform(dtype, batch ? 4 : 2, batch ? sa : sa + 2, low, 3, (uint64_t)round,
                               &a, &err),
             err);
    CHECK_OK(pe_tensor_uniform(dtype, batch == 2 ? 4 : 2, batch == 2 ? sb : sb + 2, low, 3,
                               (uint64_t)round + 999, &b0, &err),
             err);
    if (turned)
      pe_tensor_swap(&b0, b0.rank - 2, b0.rank - 1, &b, &err);
    else
      pe_tensor_same(&b0, &b);
    CHECK_OK(pe_tensor_matmul(&a, &b, &o, &err), err);
    int64_t index[PE_TENSOR_RANK] = {0}, ia[PE_TENSOR_RANK], ib[PE_TENSOR_RANK];
    int wrong = o.rank != a.rank || o.shape[o.rank - 2] != m || o.shape[o.rank - 1] != n;
    if (pe_tensor_size(&o)) do {
        for (int i = 0; i < a.rank; i++) ia[i] = a.shape[i] == 1 ? 0 : index[i];
        for (int i = 0; i < b.rank; i++) ib[i] = b.shape[i] == 1 ? 0 : index[i + o.rank - b.rank];
        double want = slow_dot(&a, ia, &b, ib, dtype);
        if (dtype == PE_U8) want = fmod(want, 256);
        wrong += value(&o, index) != want; /* bit for bit */
      } while (next_index(&o, index));
    CHECK_INT(wrong, 0);
    pe_tensor_close(&o), pe_tensor_close(&b), pe_tensor_close(&b0), pe_tensor_close(&a);
  }
}

static void matmul_of_vectors(void) {
  pe_tensor v = FLOATS(1, 2, 3), m = floats(2, (int64_t[]){3, 2}, (float[]){1, 2, 3, 4, 5, 6}),
            t = {0}, o = {0};
  pe_tensor_swap(&m, 0, 1, &t, &err);
  CHECK_OK(pe_tensor_matmul(&v, &v, &o, &err), err);
  CHECK_INT(o.rank, 0);
  expect(o, (double[]){14}, 0);
  CHECK_OK(pe_tensor_matmul(&v, &m, &o, &err), err);
  CHECK_INT(o.rank, 1);
  expect(o, (double[]){22, 28}, 0);
  CHECK_OK(pe_tensor_matmul(&t, &v, &o, &err), err);
  CHECK_INT(o.rank, 1);
  expect(o, (double[]){22, 28}, 0);
  CHECK_FAILS(pe_tensor_matmul(&m, &v, &o, &err), PE_ESHAPE, err,
              "shapes [3, 2] and [3, 1] do not match (2 columns, 3 rows)");
  pe_tensor_close(&t), pe_tensor_close(&m), pe_tensor_close(&v);
}

/* Operands whose last byte is the last one of a page: nothing after them is read. */
static void operands_end_with_their_data(void) {
  static const pe_dtype dtypes[] = {PE_F32, PE_F64, PE_F16, PE_I32, PE_U8};
  for (int i = 0; i < 5; i++)
    for (int64_t m = 1; m < 9; m++)
      for (int64_t k = 1; k < 40; k += 19) {
        const size_t bytes = (size_t)(m * k) * pe_dtype_size(dtypes[i]);
        pe_buffer last = {.data = guard_new(bytes, 1), .size = bytes, .refs = 100};
        pe_tensor a = {dtypes[i], 2, {m, k}, {k, 1}, &last, 0}, t = {0}, o = {0};
        memset(last.data, 0, bytes);
        CHECK_OK(pe_tensor_swap(&a, 0, 1, &t, &err), err);
        CHECK_OK(pe_tensor_matmul(&a, &t, &o, &err), err);
        pe_tensor_close(&o);
        CHECK_OK(pe_tensor_matmul(&t, &a, &o, &err), err);
        pe_tensor_close(&o);
        CHECK_OK(pe_tensor_binary(PE_ADD, &a, &a, &o, &err), err);
        CHECK_INT((int64_t)nth(&o, m * k - 1), 0);
        pe_tensor_close(&o);
        guard_free(last.data);
      }
}

/* ---- reductions and order -------------------------------------------------------------------- */

static double slow_reduce(pe_reduce op, const double *x, int64_t n) {
  double sum = 0, prod = 1, squares = 0, max = x[0], min = x[0];
  int64_t any = 0, all = 1, at_max = 0, at_min = 0;
  for (int64_t i = 0; i < n; i++) {
    sum += x[i], prod *= x[i], squares += x[i] * x[i], any |= x[i] != 0, all &= x[i] != 0;
    if (x[i] > max) max = x[i], at_max = i;
    if (x[i] < min) min = x[i], at_min = i;
  }
  double mean = sum / (double)n, var = 0;
  for (int64_t i = 0; i < n; i++) var += (x[i] - mean) * (x[i] - mean) / (double)n;
  switch (op) {
  case PE_SUM: return sum;
  case PE_MEAN: return mean;
  case PE_PROD: return prod;
  case PE_MAX: return max;
  case PE_MIN: return min;
  case PE_ANY: return (double)any;
  case PE_ALL: return (double)all;
  case PE_ARGMAX: return (double)at_max + 1;
  case PE_ARGMIN: return (double)at_min + 1;
  case PE_VAR: return var;
  case PE_STD: return sqrt(var);
  default: return sqrt(squares);
  }
}

static void reductions_agree_with_loops(void) {
  for (int round = 0; round < 500; round++) {
    pe_tensor t = random_view(
                  random_tensor(arithmetic[dice(ARITHMETIC)], 1 + dice(3), round % 10 ? 9 : 40)),
              o = {0};
    pe_reduce op = (pe_reduce)dice(PE_REDUCE_COUNT);
    pe_reduce_options how = {.axis = dice(t.rank + 1) - 1, .keep = dice(2), .first = 1};
    if (op == PE_PROD && t.dtype != PE_F64) op = PE_SUM; /* products overflow */
    CHECK_OK(pe_tensor_reduce(op, &t, how, &o, &err), err);
    int64_t n = how.axis < 0 ? pe_tensor_size(&t) : t.shape[how.axis], index[PE_TENSOR_RANK] = {0},
            results = pe_tensor_size(&o);
    double *x = pe_calloc((size_t)n, sizeof *x);
    int wrong = results * n != pe_tensor_size(&t) || o.rank != (how.keep       ? t.rank
                                                                : how.axis < 0 ? 0
                                                                               : t.rank - 1);
    for (int64_t r = 0; r < results && !wrong; r++) {
      for (int64_t i = 0; i < n; i++) {
        if (how.axis < 0)
          x[i] = nth(&t, i);
        else
          index[how.axis] = i, x[i] = value(&t, index);
      }
      double want = slow_reduce(op, x, n), got = nth(&o, r);
      if (!alike(got, want, 3 * tolerance(o.dtype)) && fabs(got - want) > 1e-6) wrong++;
      if (how.axis >= 0) { /* to the next row */
        pe_tensor rest = t;
        rest.shape[how.axis] = 1, index[how.axis] = 0;
        next_index(&rest, index);
      }
    }
    if (wrong) printf("    reduction %d of %s, axis %d\n", op, pe_dtype_name(t.dtype), how.axis);
    CHECK_INT(wrong, 0);
    pe_free(x);
    pe_tensor_close(&o), pe_tensor_close(&t);
  }
}

static void nothing_to_reduce(void) {
  pe_tensor t = {0}, o = {0};
  CHECK_OK(pe_tensor_new(PE_F32, 2, (int64_t[]){0, 3}, &t, &err), err);
  CHECK_OK(pe_tensor_reduce(PE_SUM, &t, (pe_reduce_options){.axis = 0}, &o, &err), err);
  expect(o, (double[]){0, 0, 0}, 0);
  CHECK_OK(pe_tensor_reduce(PE_MEAN, &t, (pe_reduce_options){.axis = PE_TENSOR_ALL}, &o, &err),
           err);
  expect(o, (double[]){NAN}, 0);
  CHECK_OK(pe_tensor_reduce(PE_ALL, &t, (pe_reduce_options){.axis = 0}, &o, &err), err);
  expect(o, (double[]){1, 1, 1}, 0);
  CHECK_FAILS(pe_tensor_reduce(PE_MAX, &t, (pe_reduce_options){.axis = 0}, &o, &err), PE_ESHAPE,
              err, "max: the reduced axis of shape [0, 3]");
  CHECK_OK(pe_tensor_reduce(PE_MAX, &t, (pe_reduce_options){.axis = 1}, &o, &err),
           err); /* no rows: not an error */
  CHECK_INT(pe_tensor_size(&o), 0);
  pe_tensor_close(&o);
  CHECK_OK(pe_tensor_softmax(&t, 0, false, &o, &err), err);
  pe_tensor_close(&o), pe_tensor_close(&t);
}

static bool comes_first(double a, double b, bool descending) { /* strictly; NaN is the greatest */
  bool less = a != a ? false : b != b ? true : a < b, more = b != b ? false : a != a ? true : b < a;
  return descending ? more : less;
}

static void order_is_stable_and_total(void) {
  for (int round = 0; round < 200; round++) {
    pe_tensor t = random_tensor(arithmetic[dice(ARITHMETIC)], 2, 30), sorted = {0}, at = {0},
              values = {0}, places = {0};
    if (t.dtype == PE_F32 && pe_tensor_size(&t) > 3)
      ((float *)(void *)t.buffer->data)[dice(3)] = NAN;
    t = random_view(t);
    bool down = dice(2);
    int axis = dice(2), wrong = 0;
    int64_t n = t.shape[axis], k = dice((int)n + 1);
    CHECK_OK(pe_tensor_sort(&t, axis, down, &sorted, &err), err);
    CHECK_OK(pe_tensor_argsort(&t, axis, down, 1, &at, &err), err);
    CHECK_OK(pe_tensor_topk(&t, axis, k, !down, 0, &values, &places, &err), err);
    for (int64_t row = 0; row < t.shape[1 - axis]; row++)
      for (int64_t i = 0; i < n; i++) {
        int64_t here[] = {axis ? row : i, axis ? i : row},
                next[] = {axis ? row : i + 1, axis ? i + 1 : row};
        int64_t from = pe_tensor_get(&at, here).i - 1,
                source[] = {axis ? row : from, axis ? from : row};
        wrong += !alike(value(&sorted, here), value(&t, source), 0);
        if (i + 1 < n) {
          int64_t after = pe_tensor_get(&at, next).i - 1;
          wrong += comes_first(value(&sorted, next), value(&sorted, here), down);
          wrong += !comes_first(value(&sorted, here), value(&sorted, next), down) && after < from;
        }
        if (i < k)
          wrong += !alike(value(&values, here), value(&sorted, here), 0) ||
                   pe_tensor_get(&places, here).i != from;
      }
    CHECK_INT(wrong, 0);
    pe_tensor_close(&places), pe_tensor_close(&values), pe_tensor_close(&at),
        pe_tensor_close(&sorted), pe_tensor_close(&t);
  }
  pe_tensor t = FLOATS(1, 2), v = {0}, p = {0};
  CHECK_FAILS(pe_tensor_topk(&t, 0, 3, false, 0, &v, &p, &err), PE_EARG, err,
              "topk: k is 3, but axis 1 has 2 elements");
  CHECK_FAILS(pe_tensor_topk(&t, 0, -1, false, 0, &v, &p, &err), PE_EARG, err,
              "k must not be negative, got -1");
  pe_tensor_close(&t);
}

static void rows_along_any_axis(void) {
  for (int round = 0; round < 60; round++) {
    pe_tensor t = random_view(random_tensor(dice(2) ? PE_F32 : PE_F64, 3, 6)), soft = {0},
              sum = {0}, ones = {0}, run = {0}, last = {0}, total = {0};
    int axis = dice(3);
    bool close;
    double worst;
    CHECK_OK(pe_tensor_softmax(&t, axis, false, &soft, &err), err);
    CHECK_OK(pe_tensor_reduce(PE_SUM, &soft, (pe_reduce_options){.axis = axis}, &sum, &err), err);
    CHECK_OK(pe_tensor_full(t.dtype, sum.rank, sum.shape, pe_number_int(1), &ones, &err), err);
    CHECK_OK(pe_tensor_close_to(&sum, &ones, 1e-6, 0, &close, &worst, &err), err);
    CHECK(close);
    CHECK_OK(pe_tensor_cumsum(&t, axis, &run, &err), err);
    CHECK_OK(pe_tensor_select(&run, axis, run.shape[axis] - 1, &last, &err), err);
    CHECK_OK(pe_tensor_reduce(PE_SUM, &t, (pe_reduce_options){.axis = axis}, &total, &err), err);
    CHECK(pe_tensor_equal(&last, &total));
    pe_tensor_close(&total), pe_tensor_close(&last), pe_tensor_close(&run), pe_tensor_close(&ones);
    pe_tensor_close(&sum), pe_tensor_close(&soft), pe_tensor_close(&t);
  }
}

static const check_test tests[] = {
    {"binary_agrees_with_loops", binary_agrees_with_loops},
    {"unary_agrees_with_libm", unary_agrees_with_libm},
    {"numpy_says", numpy_says},
    {"integers_are_defined", integers_are_defined},
    {"special_numbers", special_numbers},
    {"where_chooses", where_chooses},
    {"matmul_is_one_sum_per_element", matmul_is_one_sum_per_element},
    {"matmul_of_vectors", matmul_of_vectors},
    {"operands_end_with_their_data", operands_end_with_their_data},
    {"reductions_agree_with_loops", reductions_agree_with_loops},
    {"nothing_to_reduce", nothing_to_reduce},
    {"order_is_stable_and_total", order_is_stable_and_total},
    {"rows_along_any_axis", rows_along_any_axis},
};
CHECK_MAIN("tensor_math", tests)
