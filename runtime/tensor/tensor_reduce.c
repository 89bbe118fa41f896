/* tensor_reduce.c - reductions over an axis or over all elements; see tensor.h.
 *
 * A reduction is an entry of a table: a step that adds a block of elements to states, and a finish.
 * It walks memory in one of two ways, with the same order of elements for each result: one result
 * at a time along the axis, or, if the axis is not the innermost in memory, up to PE_TENSOR_BLOCK
 * results side by side. */
#include "runtime/tensor/tensor_block.h"

#include <math.h>

typedef struct states {
  pe_tensor_block v, w;        /* the running value, and a second one for the variance */
  int64_t at[PE_TENSOR_BLOCK]; /* positions, for argmax and argmin */
} states;

/* Adds element k of x to state k * lane; its position along the axis is at + k * along. One of lane
 * and along is 1, the other 0. */
typedef void step_fn(states *s, int lane, const pe_tensor_block *x, int n, int64_t at, int along);

#define STEP(name, T, m, body)                                                                     \
  static void name(states *s, int lane, const pe_tensor_block *b, int n, int64_t at, int along) {  \
    for (int k = 0; k < n; k++) {                                                                  \
      T x = b->m[k], *v = &s->v.m[k * lane];                                                       \
      int64_t i = at + k * along;                                                                  \
      body;                                                                                        \
    }                                                                                              \
  }
#define STEP_ALL(name, body)                                                                       \
  STEP(name##_d, double, d, body)                                                                  \
  STEP(name##_i, int64_t, i, body)                                                                 \
  STEP(name##_u, uint64_t, u, body)

STEP(sum_d, double, d, *v = (i ? *v : 0) + x)
STEP(sum_u, uint64_t, u, *v = (i ? *v : 0) + x)
STEP(prod_d, double, d, *v = (i ? *v : 1) * x)
STEP(prod_u, uint64_t, u, *v = (i ? *v : 1) * x)
STEP(norm_d, double, d, *v = (i ? *v : 0) + x * x)
STEP_ALL(max, if (i == 0 || x > *v || x != x) *v = x)
STEP_ALL(min, if (i == 0 || x < *v || x != x) *v = x)
STEP_ALL(
    argmax, if (i == 0 || x > *v || (x != x && *v == *v)) {
      *v = x;
      s->at[k * lane] = i;
    })
STEP_ALL(
    argmin, if (i == 0 || x < *v || (x != x && *v == *v)) {
      *v = x;
      s->at[k * lane] = i;
    })
STEP(any_d, double, d, *v = (i && *v != 0) || x != 0)
STEP(any_u, uint64_t, u, *v = (i && *v != 0) || x != 0)
STEP(all_d, double, d, *v = (!i || *v != 0) && x != 0)
STEP(all_u, uint64_t, u, *v = (!i || *v != 0) && x != 0)

/* Welford's algorithm: v is the mean so far, w the sum of squared distances from it. */
static void var_d(states *s, int lane, const pe_tensor_block *b, int n, int64_t at, int along) {
  for (int k = 0; k < n; k++) {
    double *mean = &s->v.d[k * lane], *squares = &s->w.d[k * lane];
    int64_t i = at + k * along;
    if (i == 0) *mean = *squares = 0;
    double d = b->d[k] - *mean;
    *mean += d / (double)(i + 1);
    *squares += d * (b->d[k] - *mean);
  }
}

typedef enum result { SAME, TOTAL, FLOAT, TRUTH, POSITION } result;
enum { REAL, INTEGER, NATURAL }; /* columns of the table: f64, i64, u64 */

static const struct {
  const char *name;
  result result;
  bool needs_elements; /* an empty axis is an error */
  double empty;        /* else its result */
  step_fn *step[3];
} ops[PE_REDUCE_COUNT] = {
    [PE_SUM] = {"sum", TOTAL, false, 0, {sum_d, sum_u, sum_u}},
    [PE_MEAN] = {"mean", FLOAT, false, NAN, {sum_d}},
    [PE_PROD] = {"prod", TOTAL, false, 1, {prod_d, prod_u, prod_u}},
    [PE_MAX] = {"max", SAME, true, 0, {max_d, max_i, max_u}},
    [PE_MIN] = {"min", SAME, true, 0, {min_d, min_i, min_u}},
    [PE_ANY] = {"any", TRUTH, false, 0, {any_d, any_u, any_u}},
    [PE_ALL] = {"all", TRUTH, false, 1, {all_d, all_u, all_u}},
    [PE_ARGMAX] = {"argmax", POSITION, true, 0, {argmax_d, argmax_i, argmax_u}},
    [PE_ARGMIN] = {"argmin", POSITION, true, 0, {argmin_d, argmin_i, argmin_u}},
    [PE_VAR] = {"var", FLOAT, false, NAN, {var_d}},
    [PE_STD] = {"std", FLOAT, false, NAN, {var_d}},
    [PE_NORM] = {"norm", FLOAT, false, 0, {norm_d}},
};

typedef struct job {
  pe_reduce op;
  pe_reduce_options o;
  pe_tensor_kind kind; /* of the states: f64, i64 or u64 */
  step_fn *step;
  int64_t count; /* elements per result */
  pe_tensor *out;
  int64_t done; /* results stored */
} job;

static pe_dtype result_dtype(result r, pe_dtype t) {
  switch (r) {
  case TOTAL: return pe_dtype_is_float(t) || t == PE_U64 ? t : PE_I64;
  case FLOAT: return pe_dtype_is_float(t) ? t : PE_F32;
  case TRUTH: return PE_BOOL;
  case POSITION: return PE_I64;
  default: return t;
  }
}

static double finished(const job *j, double v, double w) {
  double n = (double)j->count, d = (double)(j->count - j->o.ddof);
  switch (j->op) {
  case PE_MEAN: return v / n;
  case PE_VAR: return d > 0 ? w / d : NAN;
  case PE_STD: return d > 0 ? sqrt(w / d) : NAN;
  case PE_NORM: return sqrt(v);
  default: return v;
  }
}

/* Stores the next n results. */
static void finish(job *j, states *s, int n) {
  pe_tensor_kind kind = j->kind;
  for (int k = 0; k < n && kind == PE_TENSOR_F64; k++)
    s->v.d[k] = finished(j, s->v.d[k], s->w.d[k]);
  if (ops[j->op].result == POSITION) {
    kind = PE_TENSOR_I64;
    for (int k = 0; k < n; k++) s->v.i[k] = s->at[k] + j->o.first;
  }
  pe_tensor_block_convert(&s->v, kind, pe_tensor_kind_of(j->out->dtype), n);
  pe_tensor_block_store(&s->v, pe_tensor_at(j->out, j->done), j->out->dtype, 1, n);
  j->done += n;
}

static void reduce_all(job *j, const pe_tensor *t) {
  states s = {.w.d = {0}};
  pe_tensor_reader r;
  pe_tensor_reader_open(&r, t, t->rank, t->shape);
  for (int64_t done = 0; done < j->count; done += PE_TENSOR_BLOCK) {
    pe_tensor_block b;
    int n = pe_tensor_block_length(j->count - done);
    pe_tensor_reader_next(&r, &b, j->kind, n);
    j->step(&s, 0, &b, n, done, 1);
  }
  finish(j, &s, 1);
}

/* One result at a time; `rest` is t without the axis. */
static void reduce_along(job *j, const pe_tensor *t, const pe_tensor *rest, int64_t stride) {
  states s = {.w.d = {0}};
  pe_tensor_rows rows = {.t = rest, .axis = -1};
  do {
    for (int64_t i = 0; i < j->count; i += PE_TENSOR_BLOCK) {
      pe_tensor_block b;
      int n = pe_tensor_block_length(j->count - i);
      pe_tensor_block_load(&b, j->kind, pe_tensor_at(t, rows.offset + i * stride), t->dtype, stride,
                           n);
      j->step(&s, 0, &b, n, i, 1);
    }
    finish(j, &s, 1);
  } while (pe_tensor_rows_next(&rows));
}

/* Results along the last remaining dimension, side by side. */
static void reduce_across(job *j, const pe_tensor *t, const pe_tensor *rest, int64_t stride) {
  states s = {.w.d = {0}};
  int last = rest->rank - 1;
  pe_tensor_rows rows = {.t = rest, .axis = last};
  do {
    for (int64_t lane = 0; lane < rest->shape[last]; lane += PE_TENSOR_BLOCK) {
      int n = pe_tensor_block_length(rest->shape[last] - lane);
      for (int64_t i = 0; i < j->count; i++) {
        pe_tensor_block b;
        const uint8_t *p = pe_tensor_at(t, rows.offset + lane * rest->strides[last] + i * stride);
        pe_tensor_block_load(&b, j->kind, p, t->dtype, rest->strides[last], n);
        j->step(&s, 1, &b, n, i, 0);
      }
      finish(j, &s, n);
    }
  } while (pe_tensor_rows_next(&rows));
}

static void reduce_axis(job *j, const pe_tensor *t) {
  pe_tensor rest = *t;
  int64_t stride = t->strides[j->o.axis];
  rest.rank--;
  for (int i = j->o.axis; i < rest.rank; i++)
    rest.shape[i] = rest.shape[i + 1], rest.strides[i] = rest.strides[i + 1];
  /* Side by side pays off only with enough lanes: below 16 the loads are too short. */
  bool innermost = stride == 1 || stride == -1 || rest.rank == 0 || rest.shape[rest.rank - 1] < 16;
  if (innermost)
    reduce_along(j, t, &rest, stride);
  else
    reduce_across(j, t, &rest, stride);
}

/* The shape of the result: without the axis, or with 1 in its place. Returns the rank. */
static int result_shape(const pe_tensor *t, pe_reduce_options o, int64_t *shape) {
  int rank = 0;
  for (int i = 0; i < t->rank; i++) {
    bool reduced = o.axis == PE_TENSOR_ALL || o.axis == i;
    if (!reduced)
      shape[rank++] = t->shape[i];
    else if (o.keep)
      shape[rank++] = 1;
  }
  return rank;
}

pe_status pe_tensor_reduce(pe_reduce op, const pe_tensor *t, pe_reduce_options o, pe_tensor *out,
                           pe_error *err) {
  char s[PE_SHAPE_TEXT];
  int64_t shape[PE_TENSOR_RANK];
  pe_status rc = pe_tensor_no_f8(ops[op].name, t, err);
  if (!rc && o.axis != PE_TENSOR_ALL) rc = pe_tensor_axis(ops[op].name, t, o.axis, err);
  if (rc) return rc;
  int64_t count = o.axis == PE_TENSOR_ALL ? pe_tensor_size(t) : t->shape[o.axis];
  int rank = result_shape(t, o, shape);
  pe_tensor made;
  if ((rc = pe_tensor_new(result_dtype(ops[op].result, t->dtype), rank, shape, &made, err)))
    return rc;
  job j = {.op = op, .o = o, .count = count, .out = &made};
  pe_tensor_kind kind = pe_tensor_kind_of(t->dtype);
  int column = kind == PE_TENSOR_I64 ? INTEGER : kind == PE_TENSOR_U64 ? NATURAL : REAL;
  if (!ops[op].step[column]) column = REAL;
  j.kind = column == INTEGER ? PE_TENSOR_I64 : column == NATURAL ? PE_TENSOR_U64 : PE_TENSOR_F64;
  j.step = ops[op].step[column];
  if (count == 0 && ops[op].needs_elements && pe_tensor_size(&made) > 0)
    rc = pe_fail(err, PE_ESHAPE, "%s: the reduced axis of shape %s is empty", ops[op].name,
                 pe_shape_text(t->rank, t->shape, s));
  else if (count == 0)
    rc = pe_tensor_fill(&made, pe_number_float(ops[op].empty), err);
  else if (o.axis == PE_TENSOR_ALL)
    reduce_all(&j, t);
  else if (pe_tensor_size(&made) > 0)
    reduce_axis(&j, t);
  if (rc)
    pe_tensor_close(&made);
  else
    *out = made;
  return rc;
}
