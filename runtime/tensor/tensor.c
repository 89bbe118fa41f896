/* tensor.c - creating, reading and copying tensors; see tensor.h. */
#include "runtime/tensor/tensor.h"

#include "runtime/tensor/tensor_block.h"

#include <string.h>
#include <unistd.h>

/* ---- creating -------------------------------------------------------------------------------- */

/* Computes a contiguous layout. The product of the dimensions, with zeros counted as ones, must fit
 * in 63 bits, so that no stride can overflow. */
static pe_status layout(const char *what, pe_dtype dtype, int rank, const int64_t *shape,
                        pe_tensor *out, pe_error *err) {
  char s[PE_SHAPE_TEXT];
  if (rank < 0 || rank > PE_TENSOR_RANK)
    return pe_fail(err, PE_EARG, "%s: at most %d dimensions, got %d", what, PE_TENSOR_RANK, rank);
  pe_tensor t = {.dtype = dtype, .rank = rank};
  int64_t stride = 1, bytes;
  for (int i = rank - 1; i >= 0; i--) {
    if (shape[i] < 0)
      return pe_fail(err, PE_EARG, "%s: dimension %d of shape %s is negative", what, i + 1,
                     pe_shape_text(rank, shape, s));
    t.shape[i] = shape[i], t.strides[i] = stride;
    if (__builtin_mul_overflow(stride, shape[i] ? shape[i] : 1, &stride))
      return pe_fail(err, PE_ELIMIT, "%s: shape %s has more than 2^63 elements", what,
                     pe_shape_text(rank, shape, s));
  }
  if (__builtin_mul_overflow(stride, (int64_t)pe_dtype_size(dtype), &bytes))
    return pe_fail(err, PE_ELIMIT, "%s: shape %s of %s has more than 2^63 bytes", what,
                   pe_shape_text(rank, shape, s), pe_dtype_name(dtype));
  *out = t;
  return PE_OK;
}

/* An overcommitting system would grant any size and kill the process later. */
static uint64_t memory_limit(void) {
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : (uint64_t)1 << 40;
}

pe_status pe_tensor_new(pe_dtype dtype, int rank, const int64_t *shape, pe_tensor *out,
                        pe_error *err) {
  pe_tensor t;
  pe_status rc = layout("tensor", dtype, rank, shape, &t, err);
  if (rc) return rc;
  char s[PE_SHAPE_TEXT];
  uint64_t bytes = pe_tensor_bytes(&t), limit = memory_limit();
  if (bytes > limit)
    return pe_fail(err, PE_ELIMIT, "tensor: shape %s of %s needs %llu bytes, this machine has %llu",
                   pe_shape_text(rank, shape, s), pe_dtype_name(dtype), (unsigned long long)bytes,
                   (unsigned long long)limit);
  if ((rc = pe_buffer_alloc(bytes, &t.buffer, err))) return rc;
  *out = t;
  return PE_OK;
}

pe_status pe_tensor_full(pe_dtype dtype, int rank, const int64_t *shape, pe_number value,
                         pe_tensor *out, pe_error *err) {
  pe_tensor t;
  pe_status rc = pe_tensor_new(dtype, rank, shape, &t, err);
  if (!rc && (rc = pe_tensor_fill(&t, value, err))) pe_tensor_close(&t);
  if (!rc) *out = t;
  return rc;
}

pe_status pe_tensor_range(pe_dtype dtype, pe_number from, pe_number step, int64_t count,
                          pe_tensor *out, pe_error *err) {
  pe_tensor t;
  if (pe_dtype_is_f8(dtype))
    return pe_fail(err, PE_EUNSUPPORTED, "range: %s has no arithmetic", pe_dtype_name(dtype));
  pe_status rc = pe_tensor_new(dtype, 1, &count, &t, err);
  if (rc) return rc;
  bool whole = from.kind == PE_NUMBER_INT && step.kind == PE_NUMBER_INT;
  double f = pe_number_as_float(from), s = pe_number_as_float(step);
  for (int64_t done = 0; done < count; done += PE_TENSOR_BLOCK) {
    pe_tensor_block b;
    int n = pe_tensor_block_length(count - done);
    for (int i = 0; i < n; i++) {
      if (whole)
        b.u[i] = (uint64_t)from.i + (uint64_t)(done + i) * (uint64_t)step.i; /* wraps */
      else
        b.d[i] = f + (double)(done + i) * s;
    }
    pe_tensor_block_convert(&b, whole ? PE_TENSOR_I64 : PE_TENSOR_F64, pe_tensor_kind_of(dtype), n);
    pe_tensor_block_saturate(&b, dtype, n);
    pe_tensor_block_store(&b, pe_tensor_at(&t, done), dtype, 1, n);
  }
  *out = t;
  return PE_OK;
}

pe_status pe_tensor_eye(pe_dtype dtype, int64_t n, pe_tensor *out, pe_error *err) {
  pe_tensor t, diagonal;
  pe_status rc = pe_tensor_new(dtype, 2, (int64_t[]){n, n}, &t, err);
  if (rc) return rc;
  diagonal = t;
  diagonal.rank = 1, diagonal.strides[0] = n + 1;
  if ((rc = pe_tensor_fill(&diagonal, pe_number_int(1), err)))
    pe_tensor_close(&t);
  else
    *out = t;
  return rc;
}

pe_status pe_tensor_from_bytes(pe_dtype dtype, int rank, const int64_t *shape, const void *bytes,
                               uint64_t size, pe_tensor *out, pe_error *err) {
  pe_tensor t;
  char s[PE_SHAPE_TEXT];
  pe_status rc = layout("from_bytes", dtype, rank, shape, &t, err);
  if (rc) return rc;
  if (pe_tensor_bytes(&t) != size)
    return pe_fail(err, PE_ESHAPE, "from_bytes: shape %s of %s needs %llu bytes, got %llu",
                   pe_shape_text(rank, shape, s), pe_dtype_name(dtype),
                   (unsigned long long)pe_tensor_bytes(&t), (unsigned long long)size);
  if ((rc = pe_tensor_new(dtype, rank, shape, &t, err))) return rc;
  if (size) memcpy(t.buffer->data, bytes, size);
  *out = t;
  return PE_OK;
}

static pe_dtype scalar_dtype(pe_number v, pe_dtype like) {
  if (v.kind == PE_NUMBER_FLOAT) return pe_dtype_is_float(like) ? like : PE_F32;
  if (pe_dtype_is_float(like)) return like;
  if (v.kind == PE_NUMBER_UINT && v.u > INT64_MAX) return PE_U64;
  int64_t low;
  uint64_t high;
  pe_dtype_range(like, &low, &high);
  bool fits = v.i < 0 ? v.i >= low : (uint64_t)v.i <= high;
  return fits && like != PE_BOOL ? like : PE_I64;
}

pe_status pe_tensor_scalar(pe_number value, pe_dtype like, pe_tensor *out, pe_error *err) {
  return pe_tensor_full(scalar_dtype(value, like), 0, NULL, value, out, err);
}

void pe_tensor_close(pe_tensor *t) {
  pe_buffer_release(t->buffer);
  t->buffer = NULL;
}

/* ---- elements -------------------------------------------------------------------------------- */

pe_number pe_tensor_get(const pe_tensor *t, const int64_t *index) {
  int64_t at = 0;
  for (int i = 0; i < t->rank; i++) at += index[i] * t->strides[i];
  pe_tensor_block b;
  pe_tensor_kind kind = pe_tensor_kind_of(t->dtype);
  pe_tensor_block_load(&b, kind, pe_tensor_at(t, at), t->dtype, 1, 1);
  switch (kind) {
  case PE_TENSOR_F32: return pe_number_float(b.f[0]);
  case PE_TENSOR_F64: return pe_number_float(b.d[0]);
  case PE_TENSOR_U64: return (pe_number){.kind = PE_NUMBER_UINT, .u = b.u[0]};
  default: return pe_number_int(b.i[0]);
  }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static pe_status check_writable(const char *what, const pe_tensor *t, pe_error *err) {
  if (t->buffer->mapped)
    return pe_fail(err, PE_EARG, "%s: the tensor is a view of a mapped file, which is read-only",
                   what);
  for (int i = 0; i < t->rank; i++)
    if (t->shape[i] > 1 && t->strides[i] == 0)
      return pe_fail(err, PE_EARG,
                     "%s: the elements of axis %d share memory (expand): copy the tensor first",
                     what, i + 1);
  return PE_OK;
}

/* Elements of the same dtype are copied as bits, which keeps F8 and NaN payloads intact. */
static pe_dtype bits_of(pe_dtype t) {
  size_t n = pe_dtype_size(t);
  return n == 1 ? PE_U8 : n == 2 ? PE_U16 : n == 4 ? PE_U32 : PE_U64;
}

/* Copies the elements of `from`, broadcast to the shape of `into` and converted. The two must not
 * overlap. */
static void copy_elements(const pe_tensor *into, const pe_tensor *from) {
  pe_tensor to = *into, src = *from;
  if (to.dtype == src.dtype) to.dtype = src.dtype = bits_of(to.dtype);
  if (to.rank == 0) to.rank = 1, to.shape[0] = 1, to.strides[0] = 1;
  if (!pe_tensor_size(&to)) return;
  if (to.dtype == src.dtype && pe_tensor_is_contiguous(&to) && pe_tensor_is_contiguous(&src) &&
      pe_tensor_size(&to) == pe_tensor_size(&src)) {
    memcpy(pe_tensor_at(&to, 0), pe_tensor_data(&src), pe_tensor_bytes(&to));
    return;
  }
  pe_tensor_reader r;
  pe_tensor_reader_open(&r, &src, to.rank, to.shape);
  if (pe_tensor_is_contiguous(&to)) { /* one long row */
    to.shape[0] = pe_tensor_size(&to), to.strides[0] = 1, to.rank = 1;
  }
  int axis = to.rank - 1;
  pe_tensor_rows rows = {.t = &to, .axis = axis};
  do {
    for (int64_t done = 0; done < to.shape[axis]; done += PE_TENSOR_BLOCK) {
      pe_tensor_block b;
      int n = pe_tensor_block_length(to.shape[axis] - done);
      pe_tensor_reader_next(
          &r, &b, to.dtype == PE_BOOL ? pe_tensor_kind_of(src.dtype) : pe_tensor_kind_of(to.dtype),
          n);
      if (to.dtype == PE_BOOL)
        pe_tensor_block_truth(&b, pe_tensor_kind_of(src.dtype), n);
      else if (to.dtype != src.dtype)
        pe_tensor_block_saturate(&b, to.dtype, n);
      pe_tensor_block_store(&b, pe_tensor_at(&to, rows.offset + done * to.strides[axis]), to.dtype,
                            to.strides[axis], n);
    }
  } while (pe_tensor_rows_next(&rows));
}

pe_status pe_tensor_cast(const pe_tensor *t, pe_dtype dtype, pe_tensor *out, pe_error *err) {
  pe_tensor made;
  if (dtype != t->dtype && pe_dtype_is_f8(dtype))
    return pe_fail(err, PE_EUNSUPPORTED, "cast: cannot convert to %s (from %s)",
                   pe_dtype_name(dtype), pe_dtype_name(t->dtype));
  pe_status rc = pe_tensor_new(dtype, t->rank, t->shape, &made, err);
  if (rc) return rc;
  copy_elements(&made, t);
  *out = made;
  return PE_OK;
}

pe_status pe_tensor_copy(const pe_tensor *t, pe_tensor *out, pe_error *err) {
  return pe_tensor_cast(t, t->dtype, out, err);
}

pe_status pe_tensor_contiguous(const pe_tensor *t, pe_tensor *out, pe_error *err) {
  return pe_tensor_is_contiguous(t) ? pe_tensor_same(t, out) : pe_tensor_copy(t, out, err);
}

pe_status pe_tensor_write(const pe_tensor *into, const pe_tensor *from, pe_error *err) {
  pe_tensor src;
  pe_status rc = check_writable("write", into, err);
  if (rc) return rc;
  if (into->dtype != from->dtype && pe_dtype_is_f8(into->dtype))
    return pe_fail(err, PE_EUNSUPPORTED, "write: cannot convert to %s (from %s)",
                   pe_dtype_name(into->dtype), pe_dtype_name(from->dtype));
  if ((rc = pe_tensor_expand(from, into->rank, into->shape, &src, err))) {
    pe_error_prefix(err, "write");
    return rc;
  }
  if (from->buffer == into->buffer) { /* they may overlap */
    pe_tensor copy;
    rc = pe_tensor_copy(from, &copy, err);
    pe_tensor_close(&src);
    if (rc) return rc;
    src = copy;
  }
  copy_elements(into, &src);
  pe_tensor_close(&src);
  return PE_OK;
}

pe_status pe_tensor_fill(const pe_tensor *into, pe_number value, pe_error *err) {
  static const pe_dtype dtypes[] = {
      [PE_NUMBER_INT] = PE_I64, [PE_NUMBER_UINT] = PE_U64, [PE_NUMBER_FLOAT] = PE_F64};
  pe_status rc = check_writable("fill", into, err);
  if (rc) return rc;
  if (pe_dtype_is_f8(into->dtype))
    return pe_fail(err, PE_EUNSUPPORTED, "fill: cannot convert to %s", pe_dtype_name(into->dtype));
  /* A buffer on the stack: the tensor that uses it does not outlive this call. */
  pe_buffer raw = {.data = (uint8_t *)&value.u, .size = 8, .refs = 1};
  copy_elements(into, &(pe_tensor){.dtype = dtypes[value.kind], .buffer = &raw});
  return PE_OK;
}

pe_status pe_tensor_reshape(const pe_tensor *t, int rank, const int64_t *shape, pe_tensor *out,
                            pe_error *err) {
  int64_t full[PE_TENSOR_RANK];
  pe_error needs_copy;
  pe_tensor copy;
  pe_status rc = pe_tensor_resolve(t, rank, shape, full, err);
  if (rc || !pe_tensor_view_as(t, rank, full, out, &needs_copy)) return rc;
  if ((rc = pe_tensor_copy(t, &copy, err))) return rc;
  rc = pe_tensor_view_as(&copy, rank, full, out, err);
  pe_tensor_close(&copy);
  return rc;
}
