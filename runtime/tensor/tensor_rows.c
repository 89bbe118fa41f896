/* tensor_rows.c - operations on whole rows of an axis: softmax, cumsum, sort, topk; see
 * tensor.h. */
#include "runtime/tensor/tensor_block.h"

#include <math.h>
#include <string.h>

/* ---- loading and storing rows ---------------------------------------------------------------- */

static pe_status scratch(int64_t n, size_t size, void *out, pe_error *err) {
  void *p = pe_calloc((size_t)n, size);
  if (!p)
    return pe_fail(err, PE_ENOMEM, "out of memory: scratch for a row of %lld elements",
                   (long long)n);
  memcpy(out, &p, sizeof p);
  return PE_OK;
}

/* Loads a row as an array of `kind`. */
static void row_load(const pe_tensor *t, int64_t offset, int axis, pe_tensor_kind kind, void *to) {
  int64_t len = t->shape[axis], stride = t->strides[axis];
  for (int64_t i = 0; i < len; i += PE_TENSOR_BLOCK) {
    pe_tensor_block b;
    int n = pe_tensor_block_length(len - i);
    pe_tensor_block_load(&b, kind, pe_tensor_at(t, offset + i * stride), t->dtype, stride, n);
    memcpy((uint8_t *)to + (size_t)i * pe_tensor_kind_size(kind), &b,
           (size_t)n * pe_tensor_kind_size(kind));
  }
}

static void row_store(const pe_tensor *t, int64_t offset, int axis, pe_tensor_kind kind,
                      const void *from) {
  int64_t len = t->shape[axis], stride = t->strides[axis];
  for (int64_t i = 0; i < len; i += PE_TENSOR_BLOCK) {
    pe_tensor_block b;
    int n = pe_tensor_block_length(len - i);
    memcpy(&b, (const uint8_t *)from + (size_t)i * pe_tensor_kind_size(kind),
           (size_t)n * pe_tensor_kind_size(kind));
    pe_tensor_block_convert(&b, kind, pe_tensor_kind_of(t->dtype), n);
    pe_tensor_block_store(&b, pe_tensor_at(t, offset + i * stride), t->dtype, stride, n);
  }
}

/* Checks the axis. A tensor of rank 0 becomes a row of one element. */
static pe_status prepare(const char *what, const pe_tensor *t, int axis, pe_tensor *view, int *at,
                         pe_error *err) {
  pe_status rc = pe_tensor_no_f8(what, t, err);
  if (rc) return rc;
  *view = *t, *at = axis;
  if (t->rank == 0 && axis == 0)
    view->rank = 1, view->shape[0] = 1, view->strides[0] = 1;
  else if (t->rank == 0)
    return pe_fail(err, PE_EARG, "%s: axis %d of a tensor of rank 0", what, axis + 1);
  return pe_tensor_axis(what, view, axis, err);
}

/* ---- softmax and cumsum ---------------------------------------------------------------------- */

typedef void row_fn(void *row, int64_t n);

static void softmax_f32(void *row, int64_t n) {
  float *x = row, top = -INFINITY;
  double sum = 0;
  for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
  for (int64_t i = 0; i < n; i++) sum += x[i] = expf(x[i] - top);
  for (int64_t i = 0; i < n; i++) x[i] = (float)(x[i] / sum);
}

static void softmax_f64(void *row, int64_t n) {
  double *x = row, top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
  for (int64_t i = 0; i < n; i++) sum += x[i] = exp(x[i] - top);
  for (int64_t i = 0; i < n; i++) x[i] /= sum;
}

static void log_softmax_f32(void *row, int64_t n) {
  float *x = row, top = -INFINITY;
  double sum = 0;
  for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
  for (int64_t i = 0; i < n; i++) sum += expf(x[i] - top);
  double rest = log(sum);
  for (int64_t i = 0; i < n; i++) x[i] = (float)((double)x[i] - top - rest);
}

static void log_softmax_f64(void *row, int64_t n) {
  double *x = row, top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
  for (int64_t i = 0; i < n; i++) sum += exp(x[i] - top);
  double rest = log(sum);
  for (int64_t i = 0; i < n; i++) x[i] = x[i] - top - rest;
}

static void cumsum_f64(void *row, int64_t n) {
  double *x = row;
  for (int64_t i = 1; i < n; i++) x[i] += x[i - 1];
}

static void cumsum_u64(void *row, int64_t n) {
  uint64_t *x = row;
  for (int64_t i = 1; i < n; i++) x[i] += x[i - 1];
}

static pe_status map_rows(const char *what, const pe_tensor *t, int axis, pe_dtype dtype,
                          pe_tensor_kind kind, row_fn *fn, pe_tensor *out, pe_error *err) {
  pe_tensor in, made, to;
  void *row = NULL;
  pe_status rc = prepare(what, t, axis, &in, &axis, err);
  if (!rc) rc = pe_tensor_new(dtype, t->rank, t->shape, &made, err);
  if (rc) return rc;
  if ((rc = scratch(in.shape[axis], pe_tensor_kind_size(kind), &row, err))) {
    pe_tensor_close(&made);
    return rc;
  }
  to = made, to.rank = in.rank;
  if (t->rank == 0) to.shape[0] = to.strides[0] = 1;
  pe_tensor_rows from = {.t = &in, .axis = axis}, into = {.t = &to, .axis = axis};
  bool more = pe_tensor_size(&in) > 0;
  while (more) {
    row_load(&in, from.offset, axis, kind, row);
    fn(row, in.shape[axis]);
    row_store(&to, into.offset, axis, kind, row);
    more = pe_tensor_rows_next(&from) && pe_tensor_rows_next(&into);
  }
  pe_free(row);
  *out = made;
  return PE_OK;
}

pe_status pe_tensor_softmax(const pe_tensor *t, int axis, bool log, pe_tensor *out, pe_error *err) {
  pe_dtype dtype = pe_dtype_is_float(t->dtype) ? t->dtype : PE_F32;
  bool wide = dtype == PE_F64;
  row_fn *fn = log ? (wide ? log_softmax_f64 : log_softmax_f32) : wide ? softmax_f64 : softmax_f32;
  return map_rows(log ? "log_softmax" : "softmax", t, axis, dtype,
                  wide ? PE_TENSOR_F64 : PE_TENSOR_F32, fn, out, err);
}

pe_status pe_tensor_cumsum(const pe_tensor *t, int axis, pe_tensor *out, pe_error *err) {
  bool real = pe_dtype_is_float(t->dtype);
  pe_dtype dtype = real || t->dtype == PE_U64 ? t->dtype : PE_I64;
  return map_rows("cumsum", t, axis, dtype, real ? PE_TENSOR_F64 : pe_tensor_kind_of(dtype),
                  real ? cumsum_f64 : cumsum_u64, out, err);
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* An element as an unsigned key with the same order, and its position. */
typedef struct entry {
  uint64_t key;
  int64_t at;
} entry;

static uint64_t key_of(const void *row, pe_tensor_kind kind, int64_t i) {
  if (kind == PE_TENSOR_U64) return ((const uint64_t *)row)[i];
  if (kind == PE_TENSOR_I64) return ((const uint64_t *)row)[i] ^ (uint64_t)1 << 63;
  double d = ((const double *)row)[i] + 0.0; /* -0 becomes 0 */
  uint64_t bits;
  if (d != d) return UINT64_MAX;
  memcpy(&bits, &d, 8);
  return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

static bool before(entry a, entry b) { return a.key < b.key || (a.key == b.key && a.at < b.at); }

/* Bottom-up merge sort; the result is in e. */
static void sort_entries(entry *e, entry *spare, int64_t n) {
  entry *from = e, *to = spare;
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t start = 0; start < n; start += 2 * width) {
      int64_t mid = start + width < n ? start + width : n, end = mid + width < n ? mid + width : n,
              a = start, b = mid;
      for (int64_t k = start; k < end; k++)
        to[k] = b >= end || (a < mid && !before(from[b], from[a])) ? from[a++] : from[b++];
    }
    entry *swap = from;
    from = to, to = swap;
  }
  if (from != e) memcpy(e, from, (size_t)n * sizeof *e);
}

/* Sifts e[i] down in a heap whose root comes last in order. */
static void sift(entry *e, int64_t n, int64_t i) {
  for (int64_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && before(e[child], e[child + 1])) child++;
    if (!before(e[i], e[child])) return;
    entry swap = e[i];
    e[i] = e[child], e[child] = swap;
  }
}

/* Moves the first k of n entries, in order, to the front of e. */
static void first_entries(entry *e, entry *spare, int64_t n, int64_t k) {
  if (k < n && k > 0) {
    for (int64_t i = k / 2 - 1; i >= 0; i--) sift(e, k, i);
    for (int64_t i = k; i < n; i++)
      if (before(e[i], e[0])) e[0] = e[i], sift(e, k, 0);
  }
  sort_entries(e, spare, k);
}

typedef struct order {
  bool descending;
  int64_t k, first;
  pe_tensor *values, *positions; /* [..., k, ...]; either may be NULL */
} order;

static pe_status order_rows(const pe_tensor *in, int axis, const order *o, pe_error *err) {
  pe_tensor_kind kind =
      pe_tensor_kind_of(in->dtype) == PE_TENSOR_F32 ? PE_TENSOR_F64 : pe_tensor_kind_of(in->dtype);
  int64_t n = in->shape[axis];
  void *row = NULL;
  entry *e = NULL;
  pe_status rc = scratch(n, 2 * sizeof *e, &e, err); /* entries, and room to merge them */
  if (!rc) rc = scratch(2 * n, 8, &row, err);        /* the row, and its result */
  uint64_t *sorted = rc ? NULL : (uint64_t *)row + n;
  pe_tensor v = o->values ? *o->values : *o->positions,
            p = o->positions ? *o->positions : *o->values;
  if (v.rank == 0) v.rank = p.rank = 1, v.shape[0] = p.shape[0] = v.strides[0] = p.strides[0] = 1;
  pe_tensor_rows from = {.t = in, .axis = axis}, into = {.t = &v, .axis = axis};
  bool more = !rc && pe_tensor_size(in) > 0;
  while (more) {
    row_load(in, from.offset, axis, kind, row);
    for (int64_t i = 0; i < n; i++) {
      uint64_t key = key_of(row, kind, i);
      e[i] = (entry){o->descending ? ~key : key, i};
    }
    first_entries(e, e + n, n, o->k);
    if (o->values) {
      for (int64_t i = 0; i < o->k; i++) sorted[i] = ((uint64_t *)row)[e[i].at];
      row_store(&v, into.offset, axis, kind, sorted);
    }
    if (o->positions) {
      for (int64_t i = 0; i < o->k; i++) sorted[i] = (uint64_t)(e[i].at + o->first);
      row_store(&p, into.offset, axis, PE_TENSOR_I64, sorted);
    }
    more = pe_tensor_rows_next(&from) && pe_tensor_rows_next(&into);
  }
  pe_free(row);
  pe_free(e);
  return rc;
}

/* Creates the results, with k in place of the axis, and fills them. */
static pe_status ordered(const char *what, const pe_tensor *t, int axis, int64_t k, order o,
                         pe_error *err) {
  pe_tensor in, values = {0}, positions = {0};
  int64_t shape[PE_TENSOR_RANK];
  pe_status rc = prepare(what, t, axis, &in, &axis, err);
  if (rc) return rc;
  if (k < 0) k = in.shape[axis];
  if (k > in.shape[axis])
    return pe_fail(err, PE_EARG, "%s: k is %lld, but axis %d has %lld elements", what, (long long)k,
                   axis + 1, (long long)in.shape[axis]);
  memcpy(shape, t->shape, sizeof shape);
  if (t->rank) shape[axis] = k;
  int rank = t->rank == 0 && k == 0 ? 1 : t->rank;
  if (rank > t->rank) shape[0] = 0;
  order filled = {.descending = o.descending, .k = k, .first = o.first};
  if (o.values) rc = pe_tensor_new(t->dtype, rank, shape, filled.values = &values, err);
  if (!rc && o.positions)
    rc = pe_tensor_new(PE_I64, rank, shape, filled.positions = &positions, err);
  if (!rc && k > 0) rc = order_rows(&in, axis, &filled, err);
  if (rc) {
    pe_tensor_close(&values);
    pe_tensor_close(&positions);
    return rc;
  }
  if (o.values) *o.values = values;
  if (o.positions) *o.positions = positions;
  return PE_OK;
}

pe_status pe_tensor_sort(const pe_tensor *t, int axis, bool descending, pe_tensor *out,
                         pe_error *err) {
  return ordered("sort", t, axis, -1, (order){.descending = descending, .values = out}, err);
}

pe_status pe_tensor_argsort(const pe_tensor *t, int axis, bool descending, int64_t first,
                            pe_tensor *out, pe_error *err) {
  return ordered("argsort", t, axis, -1,
                 (order){.descending = descending, .first = first, .positions = out}, err);
}

pe_status pe_tensor_topk(const pe_tensor *t, int axis, int64_t k, bool smallest, int64_t first,
                         pe_tensor *values, pe_tensor *positions, pe_error *err) {
  if (k < 0) return pe_fail(err, PE_EARG, "topk: k must not be negative, got %lld", (long long)k);
  return ordered(
      "topk", t, axis, k,
      (order){.descending = !smallest, .first = first, .values = values, .positions = positions},
      err);
}
