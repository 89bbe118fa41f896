/* tensor_index.c - joining tensors and picking rows; see tensor.h. */
#include "runtime/tensor/tensor_block.h"

#include <string.h>

/* ---- concat and stack ------------------------------------------------------------------------ */

static pe_status check_part(const pe_tensor *a, const pe_tensor *b, int number, int axis,
                            pe_error *err) {
  char s[PE_SHAPE_TEXT], t[PE_SHAPE_TEXT];
  bool fits = a->rank == b->rank;
  for (int i = 0; fits && i < a->rank; i++) fits = i == axis || a->shape[i] == b->shape[i];
  if (!fits)
    return pe_fail(err, PE_ESHAPE, "concat: shapes %s and %s (part %d) differ in more than axis %d",
                   pe_shape_text(a->rank, a->shape, s), pe_shape_text(b->rank, b->shape, t), number,
                   axis + 1);
  if (a->dtype != b->dtype && (pe_dtype_is_f8(a->dtype) || pe_dtype_is_f8(b->dtype)))
    return pe_fail(err, PE_EUNSUPPORTED, "concat: %s and %s (part %d) have no common dtype",
                   pe_dtype_name(a->dtype), pe_dtype_name(b->dtype), number);
  return PE_OK;
}

pe_status pe_tensor_concat(const pe_tensor *const *parts, int count, int axis, pe_tensor *out,
                           pe_error *err) {
  if (count < 1) return pe_fail(err, PE_EARG, "concat: no tensors");
  pe_status rc = pe_tensor_axis("concat", parts[0], axis, err);
  if (rc) return rc;
  int64_t shape[PE_TENSOR_RANK];
  pe_dtype dtype = parts[0]->dtype;
  memcpy(shape, parts[0]->shape, sizeof shape);
  for (int i = 1; i < count; i++) {
    if ((rc = check_part(parts[0], parts[i], i + 1, axis, err))) return rc;
    dtype = pe_tensor_promote(dtype, parts[i]->dtype);
    if (__builtin_add_overflow(shape[axis], parts[i]->shape[axis], &shape[axis]))
      return pe_fail(err, PE_ELIMIT, "concat: the length of axis %d overflows", axis + 1);
  }
  pe_tensor made, place;
  if ((rc = pe_tensor_new(dtype, parts[0]->rank, shape, &made, err))) return rc;
  int64_t at = 0;
  for (int i = 0; i < count && !rc; at += parts[i++]->shape[axis]) {
    if ((rc = pe_tensor_slice(&made, axis, at, parts[i]->shape[axis], 1, &place, err))) break;
    rc = pe_tensor_write(&place, parts[i], err);
    pe_tensor_close(&place);
  }
  if (rc)
    pe_tensor_close(&made);
  else
    *out = made;
  return rc;
}

pe_status pe_tensor_stack(const pe_tensor *const *parts, int count, int axis, pe_tensor *out,
                          pe_error *err) {
  if (count < 1) return pe_fail(err, PE_EARG, "stack: no tensors");
  pe_tensor *views = pe_calloc((size_t)count, sizeof *views);
  const pe_tensor **list = pe_calloc((size_t)count, sizeof *list);
  pe_status rc = views && list ? PE_OK : pe_nomem(err, "stack");
  int made = 0;
  for (; made < count && !rc; made++) {
    if ((rc = pe_tensor_insert(parts[made], axis, &views[made], err))) break;
    list[made] = &views[made];
  }
  if (!rc) rc = pe_tensor_concat(list, count, axis, out, err);
  while (made > 0) pe_tensor_close(&views[--made]);
  pe_free(list);
  pe_free(views);
  return rc;
}

/* ---- take ------------------------------------------------------------------------------------ */

/* Copies row `from` of t's axis to row `to` of out's. */
static pe_status take_row(const pe_tensor *t, int64_t from, const pe_tensor *out, int64_t to,
                          int axis, pe_error *err) {
  pe_tensor source, place;
  pe_status rc = pe_tensor_select(t, axis, from, &source, err);
  if (rc) return rc;
  if (!(rc = pe_tensor_select(out, axis, to, &place, err))) {
    rc = pe_tensor_write(&place, &source, err);
    pe_tensor_close(&place);
  }
  pe_tensor_close(&source);
  return rc;
}

static pe_status take_rows(const pe_tensor *t, int axis, const pe_tensor *positions, int64_t first,
                           const pe_tensor *rows, pe_error *err) {
  pe_status rc = PE_OK;
  int64_t count = pe_tensor_size(positions), len = t->shape[axis];
  pe_tensor_reader r;
  pe_tensor_reader_open(&r, positions, positions->rank, positions->shape);
  for (int64_t done = 0; done < count && !rc; done += PE_TENSOR_BLOCK) {
    pe_tensor_block b;
    int n = pe_tensor_block_length(count - done);
    pe_tensor_reader_next(&r, &b, PE_TENSOR_I64, n);
    for (int k = 0; k < n && !rc; k++) {
      int64_t given = b.i[k], at = given < 0 ? given + len : given - first;
      if (at < 0 || at >= len || (given >= 0 && given < first))
        rc = pe_fail(err, PE_EARG, "take: position %lld is out of range: axis %d has %lld",
                     (long long)given, axis + 1, (long long)len);
      else
        rc = take_row(t, at, rows, done + k, axis, err);
    }
  }
  return rc;
}

pe_status pe_tensor_take(const pe_tensor *t, int axis, const pe_tensor *positions, int64_t first,
                         pe_tensor *out, pe_error *err) {
  char s[PE_SHAPE_TEXT], p[PE_SHAPE_TEXT];
  pe_status rc = pe_tensor_axis("take", t, axis, err);
  if (rc) return rc;
  if (pe_dtype_is_float(positions->dtype) || pe_dtype_is_f8(positions->dtype) ||
      positions->dtype == PE_BOOL)
    return pe_fail(err, PE_EARG, "take: positions must be integers, got %s",
                   pe_dtype_name(positions->dtype));
  int rank = t->rank - 1 + positions->rank;
  if (rank > PE_TENSOR_RANK)
    return pe_fail(err, PE_ESHAPE,
                   "take: shape %s with positions %s has %d dimensions, at most %d are allowed",
                   pe_shape_text(t->rank, t->shape, s),
                   pe_shape_text(positions->rank, positions->shape, p), rank, PE_TENSOR_RANK);
  int64_t shape[PE_TENSOR_RANK], flat[PE_TENSOR_RANK];
  size_t before = (size_t)axis, after = (size_t)(t->rank - axis - 1),
         middle = (size_t)positions->rank;
  memcpy(shape, t->shape, before * sizeof *shape);
  memcpy(shape + before, positions->shape, middle * sizeof *shape);
  memcpy(shape + before + middle, t->shape + before + 1, after * sizeof *shape);
  memcpy(flat, t->shape, sizeof flat);
  flat[axis] = pe_tensor_size(positions);
  pe_tensor made, rows;
  if ((rc = pe_tensor_new(t->dtype, rank, shape, &made, err))) return rc;
  rc = pe_tensor_view_as(&made, t->rank, flat, &rows, err);
  if (!rc) {
    rc = take_rows(t, axis, positions, first, &rows, err);
    pe_tensor_close(&rows);
  }
  if (rc)
    pe_tensor_close(&made);
  else
    *out = made;
  return rc;
}
