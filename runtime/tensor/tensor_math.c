/* tensor_math.c - element by element: unary and binary operations, where, comparisons of whole
 * tensors; see tensor.h.
 *
 * Every operation is an entry of a table: a name, the rule for the dtype of its result, and a loop
 * for each kind of arithmetic. */
#include "runtime/tensor/tensor_block.h"

#include <math.h>

typedef enum result_rule {
  SAME,   /* the operands' dtype; i64 for bools */
  EITHER, /* the operands' dtype, bool included */
  FLOAT,  /* integers become f32 */
  TRUTH   /* bool */
} result_rule;

/* ---- loops ----------------------------------------------------------------------------------- */

/* A loop returns the index of the first element it cannot compute, or -1. */
typedef int unary_fn(pe_tensor_block *o, const pe_tensor_block *a, int n);
typedef int binary_fn(pe_tensor_block *o, const pe_tensor_block *a, const pe_tensor_block *b,
                      int n);

#define UNARY(name, T, in, to, expr)                                                               \
  static int name(pe_tensor_block *o, const pe_tensor_block *a, int n) {                           \
    for (int k = 0; k < n; k++) {                                                                  \
      T x = a->in[k];                                                                              \
      o->to[k] = expr;                                                                             \
    }                                                                                              \
    return -1;                                                                                     \
  }
#define BINARY(name, T, in, to, expr)                                                              \
  static int name(pe_tensor_block *o, const pe_tensor_block *a, const pe_tensor_block *b, int n) { \
    for (int k = 0; k < n; k++) {                                                                  \
      T x = a->in[k], y = b->in[k];                                                                \
      o->to[k] = expr;                                                                             \
    }                                                                                              \
    return -1;                                                                                     \
  }
#define UNARY_FLOATS(name, expr_f, expr_d)                                                         \
  UNARY(name##_f, float, f, f, expr_f)                                                             \
  UNARY(name##_d, double, d, d, expr_d)
#define BINARY_FLOATS(name, expr_f, expr_d)                                                        \
  BINARY(name##_f, float, f, f, expr_f)                                                            \
  BINARY(name##_d, double, d, d, expr_d)
#define BINARY_ALL(name, expr)                                                                     \
  BINARY_FLOATS(name, expr, expr)                                                                  \
  BINARY(name##_i, int64_t, i, i, expr)                                                            \
  BINARY(name##_u, uint64_t, u, u, expr)
#define TRUTH_ALL(name, expr)                                                                      \
  BINARY(name##_f, float, f, i, expr)                                                              \
  BINARY(name##_d, double, d, i, expr)                                                             \
  BINARY(name##_i, int64_t, i, i, expr)                                                            \
  BINARY(name##_u, uint64_t, u, i, expr)

UNARY_FLOATS(neg, -x, -x)
UNARY_FLOATS(abs, fabsf(x), fabs(x))
UNARY_FLOATS(sign, x != x ? x : (float)((x > 0) - (x < 0)),
             x != x ? x : (double)((x > 0) - (x < 0)))
UNARY_FLOATS(square, x *x, x *x)
UNARY_FLOATS(relu, x < 0 ? 0 : x, x < 0 ? 0 : x)
UNARY_FLOATS(floor, floorf(x), floor(x))
UNARY_FLOATS(ceil, ceilf(x), ceil(x))
UNARY_FLOATS(round, rintf(x), rint(x))
UNARY_FLOATS(exp, expf(x), exp(x))
UNARY_FLOATS(log, logf(x), log(x))
UNARY_FLOATS(sqrt, sqrtf(x), sqrt(x))
UNARY_FLOATS(rsqrt, 1 / sqrtf(x), 1 / sqrt(x))
UNARY_FLOATS(sin, sinf(x), sin(x))
UNARY_FLOATS(cos, cosf(x), cos(x))
UNARY_FLOATS(tanh, tanhf(x), tanh(x))
UNARY_FLOATS(erf, erff(x), erf(x))
UNARY_FLOATS(sigmoid, 1 / (1 + expf(-x)), 1 / (1 + exp(-x)))
UNARY_FLOATS(silu, x / (1 + expf(-x)), x / (1 + exp(-x)))
UNARY_FLOATS(gelu, 0.5f * x * (1 + erff(x * 0.70710678118654752f)),
             0.5 * x * (1 + erf(x * 0.70710678118654752)))
UNARY_FLOATS(gelu_tanh, 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x))),
             0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))))
UNARY(neg_i, uint64_t, u, u, 0 - x)
UNARY(abs_i, uint64_t, u, u, (int64_t)x < 0 ? 0 - x : x)
UNARY(sign_i, int64_t, i, i, (x > 0) - (x < 0))
UNARY(sign_u, uint64_t, u, u, x > 0)
UNARY(square_i, uint64_t, u, u, x *x)
UNARY(relu_i, int64_t, i, i, x < 0 ? 0 : x)
UNARY(same_i, int64_t, i, i, x)
UNARY(not_f, float, f, i, x == 0)
UNARY(not_d, double, d, i, x == 0)
UNARY(not_i, int64_t, i, i, x == 0)
UNARY(isnan_f, float, f, i, x != x)
UNARY(isnan_d, double, d, i, x != x)
UNARY(isinf_f, float, f, i, isinf(x) != 0)
UNARY(isinf_d, double, d, i, isinf(x) != 0)
UNARY(isfinite_f, float, f, i, isfinite(x) != 0)
UNARY(isfinite_d, double, d, i, isfinite(x) != 0)
UNARY(never_i, int64_t, i, i, x & 0)
UNARY(always_i, int64_t, i, i, (x | 1) != 0)

/* The result has the sign of the divisor, as Lua's %. */
static float mod_float(float x, float y) {
  float m = fmodf(x, y);
  return (m < 0) != (y < 0) && m != 0 ? m + y : m;
}

static double mod_double(double x, double y) {
  double m = fmod(x, y);
  return (m < 0) != (y < 0) && m != 0 ? m + y : m;
}

static int64_t idiv_int(int64_t x, int64_t y) {
  if (y == -1) return (int64_t)(0 - (uint64_t)x); /* INT64_MIN wraps */
  return x / y - ((x % y != 0) && ((x < 0) != (y < 0)));
}

static int64_t mod_int(int64_t x, int64_t y) {
  if (y == -1) return 0;
  int64_t m = x % y;
  return m != 0 && (m < 0) != (y < 0) ? m + y : m;
}

static uint64_t pow_int(uint64_t x, uint64_t y) {
  uint64_t r = 1;
  for (; y; y >>= 1, x *= x)
    if (y & 1) r *= x;
  return r;
}

BINARY_FLOATS(add, x + y, x + y)
BINARY_FLOATS(sub, x - y, x - y)
BINARY_FLOATS(mul, x *y, x *y)
BINARY_FLOATS(div, x / y, x / y)
BINARY_FLOATS(idiv, floorf(x / y), floor(x / y))
BINARY_FLOATS(mod, mod_float(x, y), mod_double(x, y))
BINARY_FLOATS(pow, powf(x, y), pow(x, y))
BINARY(add_i, uint64_t, u, u, x + y)
BINARY(sub_i, uint64_t, u, u, x - y)
BINARY(mul_i, uint64_t, u, u, x *y)
BINARY_ALL(minimum, (x < y || x != x) ? x : y)
BINARY_ALL(maximum, (x > y || x != x) ? x : y)
TRUTH_ALL(eq, x == y)
TRUTH_ALL(ne, x != y)
TRUTH_ALL(lt, x < y)
TRUTH_ALL(le, x <= y)
TRUTH_ALL(gt, x > y)
TRUTH_ALL(ge, x >= y)
TRUTH_ALL(and, x != 0 && y != 0)
TRUTH_ALL(or, x != 0 || y != 0)

/* Loops that stop at an element they cannot compute. */
#define CHECKED(name, T, member, bad, expr)                                                        \
  static int name(pe_tensor_block *o, const pe_tensor_block *a, const pe_tensor_block *b, int n) { \
    for (int k = 0; k < n; k++) {                                                                  \
      T x = a->member[k], y = b->member[k];                                                        \
      if (bad) return k;                                                                           \
      o->member[k] = expr;                                                                         \
    }                                                                                              \
    return -1;                                                                                     \
  }
CHECKED(idiv_i, int64_t, i, y == 0, idiv_int(x, y))
CHECKED(idiv_u, uint64_t, u, y == 0, x / y)
CHECKED(mod_i, int64_t, i, y == 0, mod_int(x, y))
CHECKED(mod_u, uint64_t, u, y == 0, x % y)
CHECKED(pow_i, int64_t, i, y < 0, (int64_t)pow_int((uint64_t)x, (uint64_t)y))
BINARY(pow_u, uint64_t, u, u, pow_int(x, y))

/* ---- tables ---------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  result_rule rule;
  unary_fn *fn[PE_TENSOR_KINDS]; /* f32, f64, i64, u64 */
} unary_ops[PE_UNARY_COUNT] = {
    [PE_NEG] = {"neg", SAME, {neg_f, neg_d, neg_i, neg_i}},
    [PE_ABS] = {"abs", SAME, {abs_f, abs_d, abs_i, same_i}},
    [PE_SIGN] = {"sign", SAME, {sign_f, sign_d, sign_i, sign_u}},
    [PE_SQUARE] = {"square", SAME, {square_f, square_d, square_i, square_i}},
    [PE_RELU] = {"relu", SAME, {relu_f, relu_d, relu_i, same_i}},
    [PE_FLOOR] = {"floor", SAME, {floor_f, floor_d, same_i, same_i}},
    [PE_CEIL] = {"ceil", SAME, {ceil_f, ceil_d, same_i, same_i}},
    [PE_ROUND] = {"round", SAME, {round_f, round_d, same_i, same_i}},
    [PE_EXP] = {"exp", FLOAT, {exp_f, exp_d}},
    [PE_LOG] = {"log", FLOAT, {log_f, log_d}},
    [PE_SQRT] = {"sqrt", FLOAT, {sqrt_f, sqrt_d}},
    [PE_RSQRT] = {"rsqrt", FLOAT, {rsqrt_f, rsqrt_d}},
    [PE_SIN] = {"sin", FLOAT, {sin_f, sin_d}},
    [PE_COS] = {"cos", FLOAT, {cos_f, cos_d}},
    [PE_TANH] = {"tanh", FLOAT, {tanh_f, tanh_d}},
    [PE_ERF] = {"erf", FLOAT, {erf_f, erf_d}},
    [PE_SIGMOID] = {"sigmoid", FLOAT, {sigmoid_f, sigmoid_d}},
    [PE_SILU] = {"silu", FLOAT, {silu_f, silu_d}},
    [PE_GELU] = {"gelu", FLOAT, {gelu_f, gelu_d}},
    [PE_GELU_TANH] = {"gelu_tanh", FLOAT, {gelu_tanh_f, gelu_tanh_d}},
    [PE_NOT] = {"logical_not", TRUTH, {not_f, not_d, not_i, not_i}},
    [PE_ISNAN] = {"isnan", TRUTH, {isnan_f, isnan_d, never_i, never_i}},
    [PE_ISINF] = {"isinf", TRUTH, {isinf_f, isinf_d, never_i, never_i}},
    [PE_ISFINITE] = {"isfinite", TRUTH, {isfinite_f, isfinite_d, always_i, always_i}},
};

static const struct {
  const char *name;
  result_rule rule;
  binary_fn *fn[PE_TENSOR_KINDS];
  const char *cannot; /* why a loop stopped */
} binary_ops[PE_BINARY_COUNT] = {
    [PE_ADD] = {"add", SAME, {add_f, add_d, add_i, add_i}, NULL},
    [PE_SUB] = {"sub", SAME, {sub_f, sub_d, sub_i, sub_i}, NULL},
    [PE_MUL] = {"mul", SAME, {mul_f, mul_d, mul_i, mul_i}, NULL},
    [PE_DIV] = {"div", FLOAT, {div_f, div_d}, NULL},
    [PE_IDIV] = {"idiv", SAME, {idiv_f, idiv_d, idiv_i, idiv_u}, "integer division by zero"},
    [PE_MOD] = {"mod", SAME, {mod_f, mod_d, mod_i, mod_u}, "integer division by zero"},
    [PE_POW] = {"pow", SAME, {pow_f, pow_d, pow_i, pow_u}, "negative power of an integer"},
    [PE_MINIMUM] = {"minimum", EITHER, {minimum_f, minimum_d, minimum_i, minimum_u}, NULL},
    [PE_MAXIMUM] = {"maximum", EITHER, {maximum_f, maximum_d, maximum_i, maximum_u}, NULL},
    [PE_EQ] = {"eq", TRUTH, {eq_f, eq_d, eq_i, eq_u}, NULL},
    [PE_NE] = {"ne", TRUTH, {ne_f, ne_d, ne_i, ne_u}, NULL},
    [PE_LT] = {"lt", TRUTH, {lt_f, lt_d, lt_i, lt_u}, NULL},
    [PE_LE] = {"le", TRUTH, {le_f, le_d, le_i, le_u}, NULL},
    [PE_GT] = {"gt", TRUTH, {gt_f, gt_d, gt_i, gt_u}, NULL},
    [PE_GE] = {"ge", TRUTH, {ge_f, ge_d, ge_i, ge_u}, NULL},
    [PE_AND] = {"logical_and", TRUTH, {and_f, and_d, and_i, and_u}, NULL},
    [PE_OR] = {"logical_or", TRUTH, {or_f, or_d, or_i, or_u}, NULL},
};

/* The dtype of the computation, and of the result unless the rule is TRUTH. */
static pe_dtype compute_dtype(result_rule rule, pe_dtype t) {
  if (rule == SAME && t == PE_BOOL) return PE_I64;
  return rule == FLOAT && !pe_dtype_is_float(t) ? PE_F32 : t;
}

/* ---- operations ------------------------------------------------------------------------------ */

pe_status pe_tensor_unary(pe_unary op, const pe_tensor *t, pe_tensor *out, pe_error *err) {
  pe_tensor made;
  pe_dtype compute = compute_dtype(unary_ops[op].rule, t->dtype);
  pe_status rc = pe_tensor_no_f8(unary_ops[op].name, t, err);
  if (!rc)
    rc = pe_tensor_new(unary_ops[op].rule == TRUTH ? PE_BOOL : compute, t->rank, t->shape, &made,
                       err);
  if (rc) return rc;
  pe_tensor_kind kind = pe_tensor_kind_of(compute);
  unary_fn *fn = unary_ops[op].fn[kind];
  int64_t size = pe_tensor_size(t);
  pe_tensor_reader r;
  pe_tensor_reader_open(&r, t, t->rank, t->shape);
  for (int64_t done = 0; done < size; done += PE_TENSOR_BLOCK) {
    pe_tensor_block a, o;
    int n = pe_tensor_block_length(size - done);
    pe_tensor_reader_next(&r, &a, kind, n);
    fn(&o, &a, n);
    pe_tensor_block_store(&o, pe_tensor_at(&made, done), made.dtype, 1, n);
  }
  *out = made;
  return PE_OK;
}

static pe_status binary_loop(pe_binary op, pe_tensor_kind kind, const pe_tensor *a,
                             const pe_tensor *b, pe_tensor *o, pe_error *err) {
  binary_fn *fn = binary_ops[op].fn[kind];
  int64_t size = pe_tensor_size(o);
  pe_tensor_reader ra, rb;
  pe_tensor_reader_open(&ra, a, o->rank, o->shape);
  pe_tensor_reader_open(&rb, b, o->rank, o->shape);
  for (int64_t done = 0; done < size; done += PE_TENSOR_BLOCK) {
    pe_tensor_block x, y, z;
    int n = pe_tensor_block_length(size - done);
    pe_tensor_reader_next(&ra, &x, kind, n);
    pe_tensor_reader_next(&rb, &y, kind, n);
    int bad = fn(&z, &x, &y, n);
    if (bad >= 0)
      return pe_fail(err, PE_EARG, "%s: %s at element %lld", binary_ops[op].name,
                     binary_ops[op].cannot, (long long)done + bad + 1);
    pe_tensor_block_store(&z, pe_tensor_at(o, done), o->dtype, 1, n);
  }
  return PE_OK;
}

pe_status pe_tensor_binary(pe_binary op, const pe_tensor *a, const pe_tensor *b, pe_tensor *out,
                           pe_error *err) {
  const char *name = binary_ops[op].name;
  result_rule rule = binary_ops[op].rule;
  int rank;
  int64_t shape[PE_TENSOR_RANK];
  pe_tensor made;
  pe_status rc = pe_tensor_no_f8(name, a, err);
  if (!rc) rc = pe_tensor_no_f8(name, b, err);
  if (!rc) rc = pe_tensor_broadcast(name, a->rank, a->shape, b->rank, b->shape, &rank, shape, err);
  if (rc) return rc;
  pe_dtype compute = compute_dtype(rule, pe_tensor_promote(a->dtype, b->dtype));
  if ((rc = pe_tensor_new(rule == TRUTH ? PE_BOOL : compute, rank, shape, &made, err))) return rc;
  if ((rc = binary_loop(op, pe_tensor_kind_of(compute), a, b, &made, err)))
    pe_tensor_close(&made);
  else
    *out = made;
  return rc;
}

pe_status pe_tensor_where(const pe_tensor *condition, const pe_tensor *a, const pe_tensor *b,
                          pe_tensor *out, pe_error *err) {
  int rank;
  int64_t shape[PE_TENSOR_RANK];
  pe_tensor made;
  pe_status rc = pe_tensor_no_f8("where", a, err);
  if (!rc) rc = pe_tensor_no_f8("where", b, err);
  if (!rc && condition->dtype != PE_BOOL)
    rc = pe_fail(err, PE_EARG, "where: the condition must be bool, got %s",
                 pe_dtype_name(condition->dtype));
  if (!rc)
    rc = pe_tensor_broadcast("where", a->rank, a->shape, b->rank, b->shape, &rank, shape, err);
  if (!rc)
    rc = pe_tensor_broadcast("where", condition->rank, condition->shape, rank, shape, &rank, shape,
                             err);
  if (!rc) rc = pe_tensor_new(pe_tensor_promote(a->dtype, b->dtype), rank, shape, &made, err);
  if (rc) return rc;
  pe_tensor_kind kind = pe_tensor_kind_of(made.dtype);
  int64_t size = pe_tensor_size(&made);
  pe_tensor_reader rc_, ra, rb;
  pe_tensor_reader_open(&rc_, condition, rank, shape);
  pe_tensor_reader_open(&ra, a, rank, shape);
  pe_tensor_reader_open(&rb, b, rank, shape);
  for (int64_t done = 0; done < size; done += PE_TENSOR_BLOCK) {
    pe_tensor_block c, x, y;
    int n = pe_tensor_block_length(size - done);
    pe_tensor_reader_next(&rc_, &c, PE_TENSOR_I64, n);
    pe_tensor_reader_next(&ra, &x, kind, n);
    pe_tensor_reader_next(&rb, &y, kind, n);
    for (int k = 0; k < n; k++) {
      if (c.i[k]) continue;
      if (kind == PE_TENSOR_F32)
        x.f[k] = y.f[k];
      else
        x.u[k] = y.u[k];
    }
    pe_tensor_block_store(&x, pe_tensor_at(&made, done), made.dtype, 1, n);
  }
  *out = made;
  return PE_OK;
}

/* ---- whole tensors --------------------------------------------------------------------------- */

static bool same_shape(const pe_tensor *a, const pe_tensor *b) {
  if (a->rank != b->rank) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != b->shape[i]) return false;
  return true;
}

bool pe_tensor_equal(const pe_tensor *a, const pe_tensor *b) {
  if (!same_shape(a, b)) return false;
  bool f8 = pe_dtype_is_f8(a->dtype) || pe_dtype_is_f8(b->dtype);
  pe_tensor_kind kind =
      f8 ? PE_TENSOR_F32 : pe_tensor_kind_of(pe_tensor_promote(a->dtype, b->dtype));
  int64_t size = pe_tensor_size(a);
  pe_tensor_reader ra, rb;
  pe_tensor_reader_open(&ra, a, a->rank, a->shape);
  pe_tensor_reader_open(&rb, b, b->rank, b->shape);
  for (int64_t done = 0; done < size; done += PE_TENSOR_BLOCK) {
    pe_tensor_block x, y, z;
    int n = pe_tensor_block_length(size - done);
    pe_tensor_reader_next(&ra, &x, kind, n);
    pe_tensor_reader_next(&rb, &y, kind, n);
    binary_ops[PE_EQ].fn[kind](&z, &x, &y, n);
    for (int k = 0; k < n; k++)
      if (!z.i[k]) return false;
  }
  return true;
}

pe_status pe_tensor_close_to(const pe_tensor *a, const pe_tensor *b, double atol, double rtol,
                             bool *close, double *worst, pe_error *err) {
  char s[PE_SHAPE_TEXT], t[PE_SHAPE_TEXT];
  if (!same_shape(a, b))
    return pe_fail(err, PE_ESHAPE, "close_to: shapes %s and %s differ",
                   pe_shape_text(a->rank, a->shape, s), pe_shape_text(b->rank, b->shape, t));
  int64_t size = pe_tensor_size(a);
  double far = 0;
  bool all = true;
  pe_tensor_reader ra, rb;
  pe_tensor_reader_open(&ra, a, a->rank, a->shape);
  pe_tensor_reader_open(&rb, b, b->rank, b->shape);
  for (int64_t done = 0; done < size; done += PE_TENSOR_BLOCK) {
    pe_tensor_block x, y;
    int n = pe_tensor_block_length(size - done);
    pe_tensor_reader_next(&ra, &x, PE_TENSOR_F64, n);
    pe_tensor_reader_next(&rb, &y, PE_TENSOR_F64, n);
    for (int k = 0; k < n; k++) {
      double p = x.d[k], q = y.d[k];
      if (p == q || (p != p && q != q)) continue;
      double d = fabs(p - q);
      if (far == far && !(d <= far)) far = d; /* NaN stays */
      if (!(d <= atol + rtol * fabs(q)) || isinf(p) || isinf(q)) all = false;
    }
  }
  *close = all;
  if (worst) *worst = far;
  return PE_OK;
}
