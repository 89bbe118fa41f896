/* tensor_view.c - views: other shapes and strides over the same bytes; see tensor.h. */
#include "runtime/tensor/tensor_block.h"

static pe_status give(pe_tensor t, pe_tensor *out) {
  pe_buffer_retain(t.buffer);
  *out = t;
  return PE_OK;
}

/* t without one dimension. */
static pe_tensor without(pe_tensor t, int axis) {
  t.rank--;
  for (int i = axis; i < t.rank; i++) t.shape[i] = t.shape[i + 1], t.strides[i] = t.strides[i + 1];
  return t;
}

static uint64_t moved(const pe_tensor *t, int64_t elements) {
  return (uint64_t)((int64_t)t->offset + elements * (int64_t)pe_dtype_size(t->dtype));
}

pe_status pe_tensor_same(const pe_tensor *t, pe_tensor *out) { return give(*t, out); }

pe_status pe_tensor_slice(const pe_tensor *t, int axis, int64_t from, int64_t count, int64_t step,
                          pe_tensor *out, pe_error *err) {
  pe_status rc = pe_tensor_axis("slice", t, axis, err);
  if (rc) return rc;
  int64_t len = t->shape[axis];
  if (step == 0 || step == INT64_MIN)
    return pe_fail(err, PE_EARG, "slice: the step must not be %lld", (long long)step);
  int64_t reach = step > 0 ? (len - 1 - from) / step : from / -step; /* steps that stay inside */
  if (count < 0 || from < 0 || from > len || (count > 0 && (from >= len || count - 1 > reach)))
    return pe_fail(
        err, PE_EARG,
        "slice: %lld elements from position %lld in steps of %lld do not fit: axis %d has %lld",
        (long long)count, (long long)from + 1, (long long)step, axis + 1, (long long)len);
  pe_tensor v = *t;
  v.shape[axis] = count;
  if (count > 1) v.strides[axis] *= step;
  if (count > 0) v.offset = moved(t, from * t->strides[axis]);
  return give(v, out);
}

pe_status pe_tensor_select(const pe_tensor *t, int axis, int64_t index, pe_tensor *out,
                           pe_error *err) {
  pe_status rc = pe_tensor_axis("select", t, axis, err);
  if (rc) return rc;
  if (index < 0 || index >= t->shape[axis])
    return pe_fail(err, PE_EARG, "select: position %lld is out of range: axis %d has %lld",
                   (long long)index + 1, axis + 1, (long long)t->shape[axis]);
  pe_tensor v = without(*t, axis);
  v.offset = moved(t, index * t->strides[axis]);
  return give(v, out);
}

pe_status pe_tensor_permute(const pe_tensor *t, const int *order, pe_tensor *out, pe_error *err) {
  pe_tensor v = *t;
  unsigned seen = 0;
  for (int i = 0; i < t->rank; i++) {
    pe_status rc = pe_tensor_axis("permute", t, order[i], err);
    if (rc) return rc;
    if (seen & 1u << order[i])
      return pe_fail(err, PE_EARG, "permute: axis %d occurs twice", order[i] + 1);
    seen |= 1u << order[i];
    v.shape[i] = t->shape[order[i]], v.strides[i] = t->strides[order[i]];
  }
  return give(v, out);
}

pe_status pe_tensor_swap(const pe_tensor *t, int a, int b, pe_tensor *out, pe_error *err) {
  int order[PE_TENSOR_RANK];
  for (int i = 0; i < t->rank; i++) order[i] = i == a ? b : i == b ? a : i;
  pe_status rc = pe_tensor_axis("transpose", t, a, err);
  if (!rc) rc = pe_tensor_axis("transpose", t, b, err);
  return rc ? rc : pe_tensor_permute(t, order, out, err);
}

pe_status pe_tensor_insert(const pe_tensor *t, int axis, pe_tensor *out, pe_error *err) {
  if (t->rank == PE_TENSOR_RANK)
    return pe_fail(err, PE_EARG, "insert: the tensor already has %d dimensions, the maximum",
                   t->rank);
  if (axis < 0 || axis > t->rank)
    return pe_fail(err, PE_EARG, "insert: there is no axis %d, the tensor has rank %d", axis + 1,
                   t->rank);
  pe_tensor v = *t;
  for (int i = v.rank++; i > axis; i--)
    v.shape[i] = v.shape[i - 1], v.strides[i] = v.strides[i - 1];
  v.shape[axis] = 1, v.strides[axis] = 1;
  return give(v, out);
}

pe_status pe_tensor_expand(const pe_tensor *t, int rank, const int64_t *shape, pe_tensor *out,
                           pe_error *err) {
  char s[PE_SHAPE_TEXT], w[PE_SHAPE_TEXT];
  pe_tensor v = *t;
  int64_t size = 1;
  if (rank < t->rank || rank > PE_TENSOR_RANK)
    return pe_fail(err, PE_ESHAPE, "expand: shape %s cannot become a shape of %d dimensions",
                   pe_shape_text(t->rank, t->shape, s), rank);
  v.rank = rank;
  for (int i = 0; i < rank; i++) {
    int own = i - (rank - t->rank);
    int64_t have = own < 0 ? 1 : t->shape[own];
    if (have != shape[i] && (have != 1 || shape[i] < 0))
      return pe_fail(err, PE_ESHAPE, "expand: shape %s cannot become %s (axis %d: %lld and %lld)",
                     pe_shape_text(t->rank, t->shape, s), pe_shape_text(rank, shape, w), i + 1,
                     (long long)have, (long long)shape[i]);
    v.shape[i] = shape[i];
    v.strides[i] = have == 1 && shape[i] != 1 ? 0 : own < 0 ? 1 : t->strides[own];
    if (__builtin_mul_overflow(size, shape[i] ? shape[i] : 1, &size) || size > INT64_MAX / 16)
      return pe_fail(err, PE_ELIMIT, "expand: shape %s has too many elements",
                     pe_shape_text(rank, shape, w));
  }
  return give(v, out);
}

/* ---- reshape --------------------------------------------------------------------------------- */

pe_status pe_tensor_resolve(const pe_tensor *t, int rank, const int64_t *shape, int64_t *full,
                            pe_error *err) {
  char s[PE_SHAPE_TEXT], w[PE_SHAPE_TEXT];
  int64_t size = pe_tensor_size(t), known = 1;
  int open = -1;
  if (rank < 0 || rank > PE_TENSOR_RANK)
    return pe_fail(err, PE_EARG, "reshape: at most %d dimensions, got %d", PE_TENSOR_RANK, rank);
  bool fits = true, empty = false;
  for (int i = 0; i < rank; i++) {
    full[i] = shape[i];
    if (shape[i] == -1 && open < 0)
      open = i;
    else if (shape[i] < 0 || __builtin_mul_overflow(known, shape[i] ? shape[i] : 1, &known))
      fits = false;
    else
      empty |= shape[i] == 0;
  }
  if (empty) known = 0;
  if (fits && open >= 0 && known > 0 && size % known == 0)
    full[open] = size / known;
  else if (!fits || open >= 0 || known != size)
    return pe_fail(err, PE_ESHAPE, "reshape: shape %s (%lld elements) cannot become %s",
                   pe_shape_text(t->rank, t->shape, s), (long long)size,
                   pe_shape_text(rank, shape, w));
  return PE_OK;
}

/* Finds strides for the new shape; false if there are none. Dimensions of both shapes are grouped
 * from the left into runs of equal size; within a run the old dimensions must be contiguous. */
static bool restride(const pe_tensor *t, int rank, const int64_t *shape, int64_t *strides) {
  int64_t old_shape[PE_TENSOR_RANK], old_strides[PE_TENSOR_RANK];
  int n = 0;
  for (int i = 0; i < t->rank; i++)
    if (t->shape[i] != 1) old_shape[n] = t->shape[i], old_strides[n++] = t->strides[i];
  int i = 0, j = 0;
  while (i < n) {
    int64_t a = old_shape[i], b = 1;
    int first = i++, start = j;
    while (j < rank && (b < a || shape[j] == 1)) {
      b *= shape[j++];
      while (a < b && i < n) a *= old_shape[i++];
    }
    if (a != b) return false;
    for (int k = first; k + 1 < i; k++)
      if (old_strides[k] != old_strides[k + 1] * old_shape[k + 1]) return false;
    int64_t stride = old_strides[i - 1];
    for (int k = j - 1; k >= start; k--) strides[k] = stride, stride *= shape[k];
  }
  for (; j < rank; j++) strides[j] = 1; /* dimensions of 1 */
  return true;
}

pe_status pe_tensor_view_as(const pe_tensor *t, int rank, const int64_t *shape, pe_tensor *out,
                            pe_error *err) {
  char s[PE_SHAPE_TEXT], w[PE_SHAPE_TEXT];
  int64_t full[PE_TENSOR_RANK];
  pe_status rc = pe_tensor_resolve(t, rank, shape, full, err);
  if (rc) return rc;
  pe_tensor v = *t;
  v.rank = rank;
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; i--)
    v.shape[i] = full[i], v.strides[i] = stride, stride *= full[i] ? full[i] : 1;
  if (pe_tensor_size(t) > 0 && !restride(t, rank, full, v.strides))
    return pe_fail(err, PE_ESHAPE,
                   "view: shape %s with these strides cannot become %s without a copy: use reshape",
                   pe_shape_text(t->rank, t->shape, s), pe_shape_text(rank, full, w));
  return give(v, out);
}
