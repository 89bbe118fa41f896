/* tensor_matmul.c - products of matrices; see tensor.h.
 *
 * The right operand is packed into panels of columns, 32 bytes wide, which also removes its strides
 * and dtype. Four rows of the left operand are multiplied with a panel at a time. Each element of
 * the result is one sum in the order of k. */
#include "runtime/tensor/tensor_block.h"

#include <string.h>

/* A panel row is one AVX register; four accumulators hide the latency of the additions. */
enum { ROWS = 4, PANEL_BYTES = 32 };

/* One row of a panel; the compiler splits it if registers are narrower. */
typedef float f32_lanes __attribute__((vector_size(PANEL_BYTES)));
typedef double f64_lanes __attribute__((vector_size(PANEL_BYTES)));
typedef uint64_t u64_lanes __attribute__((vector_size(PANEL_BYTES)));

/* Multiplies ROWS rows of length k with one panel. */
#define TILE(name, T, V)                                                                           \
  static void name(const void *const rows[ROWS], const void *panel, int64_t k, void *tile) {       \
    const T *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];                                \
    const V *p = panel;                                                                            \
    V s[ROWS] = {{0}, {0}, {0}, {0}};                                                              \
    for (int64_t i = 0; i < k; i++) {                                                              \
      s[0] += a[i] * p[i];                                                                         \
      s[1] += b[i] * p[i];                                                                         \
      s[2] += c[i] * p[i];                                                                         \
      s[3] += d[i] * p[i];                                                                         \
    }                                                                                              \
    memcpy(tile, s, sizeof s);                                                                     \
  }
TILE(tile_f32, float, f32_lanes)
TILE(tile_f64, double, f64_lanes)
TILE(tile_u64, uint64_t, u64_lanes) /* also i64: the low 64 bits of a product are the same */

typedef void tile_fn(const void *const rows[ROWS], const void *panel, int64_t k, void *tile);
static tile_fn *const tiles[PE_TENSOR_KINDS] = {tile_f32, tile_f64, tile_u64, tile_u64};
static const pe_dtype wide_dtype[PE_TENSOR_KINDS] = {PE_F32, PE_F64, PE_I64, PE_U64};

/* t converted to `dtype`, contiguous and aligned. */
static pe_status widened(const pe_tensor *t, pe_dtype dtype, pe_tensor *out, pe_error *err) {
  if (t->dtype == dtype && (uintptr_t)pe_tensor_data(t) % pe_dtype_size(dtype) == 0)
    return pe_tensor_contiguous(t, out, err);
  return pe_tensor_cast(t, dtype, out, err);
}

/* Packs the k x n matrix at `offset` of b into panels [n / width][k][width]; columns beyond n stay
 * zero. */
static void pack(const pe_tensor *b, int64_t offset, pe_tensor_kind kind, const pe_tensor *panels) {
  int64_t k = b->shape[b->rank - 2], n = b->shape[b->rank - 1], ks = b->strides[b->rank - 2],
          ns = b->strides[b->rank - 1];
  int64_t width = panels->shape[2];
  uint8_t *to = panels->buffer->data;
  for (int64_t j = 0; j < n; j += width)
    for (int64_t i = 0; i < k; i++, to += PANEL_BYTES) {
      pe_tensor_block row;
      int take = n - j < width ? (int)(n - j) : (int)width;
      pe_tensor_block_load(&row, kind, pe_tensor_at(b, offset + i * ks + j * ns), b->dtype, ns,
                           take);
      memcpy(to, &row, (size_t)take * pe_tensor_kind_size(kind));
    }
}

/* Multiplies one matrix: `a` has m rows of length k, `o` is where the result goes. */
static void multiply(const uint8_t *a, int64_t m, const pe_tensor *panels, int64_t n,
                     pe_tensor_kind kind, uint8_t *o, pe_dtype dtype) {
  int64_t k = panels->shape[1], width = panels->shape[2],
          line = k * (int64_t)pe_tensor_kind_size(kind);
  int64_t size = (int64_t)pe_dtype_size(dtype);
  for (int64_t j = 0; j < n; j += width) {
    const uint8_t *panel = panels->buffer->data + j / width * k * PANEL_BYTES;
    int take = n - j < width ? (int)(n - j) : (int)width;
    for (int64_t i = 0; i < m; i += ROWS) {
      _Alignas(PANEL_BYTES) uint8_t tile[ROWS][PANEL_BYTES];
      const void *rows[ROWS];
      for (int r = 0; r < ROWS; r++)
        rows[r] = a + (i + r < m ? i + r : i) * line; /* past the last row: any row */
      tiles[kind](rows, panel, k, tile);
      for (int r = 0; r < ROWS && i + r < m; r++) {
        pe_tensor_block b;
        memcpy(&b, tile[r], PANEL_BYTES);
        pe_tensor_block_store(&b, o + ((i + r) * n + j) * size, dtype, 1, take);
      }
    }
  }
}

/* a: [batch..., m, k], contiguous and converted; b: [batch..., k, n] as given; both expanded to the
 * batch dimensions of out. */
static pe_status multiply_all(const pe_tensor *a, const pe_tensor *b, pe_tensor *out,
                              pe_error *err) {
  pe_tensor_kind kind = pe_tensor_kind_of(a->dtype);
  int64_t m = out->shape[out->rank - 2], n = out->shape[out->rank - 1], k = a->shape[a->rank - 1];
  int64_t width = PANEL_BYTES / (int64_t)pe_tensor_kind_size(kind);
  pe_tensor panels;
  pe_status rc =
      pe_tensor_new(a->dtype, 3, (int64_t[]){(n + width - 1) / width, k, width}, &panels, err);
  if (rc) return rc;
  pe_tensor batch_a = *a, batch_b = *b; /* only the batch dimensions */
  batch_a.rank -= 2, batch_b.rank -= 2;
  pe_tensor_rows ra = {.t = &batch_a, .axis = -1}, rb = {.t = &batch_b, .axis = -1};
  int64_t packed = -1, done = 0;
  for (int64_t size = pe_tensor_size(out); done < size;
       done += m * n, pe_tensor_rows_next(&ra), pe_tensor_rows_next(&rb)) {
    if (packed != rb.offset || done == 0) pack(b, packed = rb.offset, kind, &panels);
    multiply(pe_tensor_at(a, ra.offset), m, &panels, n, kind, pe_tensor_at(out, done), out->dtype);
  }
  pe_tensor_close(&panels);
  return PE_OK;
}

/* Both operands have rank >= 2. */
static pe_status matmul(const pe_tensor *a, const pe_tensor *b, pe_tensor *out, pe_error *err) {
  char s[PE_SHAPE_TEXT], t[PE_SHAPE_TEXT];
  int64_t k = a->shape[a->rank - 1], shape[PE_TENSOR_RANK], side[PE_TENSOR_RANK];
  int rank;
  if (k != b->shape[b->rank - 2])
    return pe_fail(err, PE_ESHAPE,
                   "matmul: shapes %s and %s do not match (%lld columns, %lld rows)",
                   pe_shape_text(a->rank, a->shape, s), pe_shape_text(b->rank, b->shape, t),
                   (long long)k, (long long)b->shape[b->rank - 2]);
  pe_status rc = pe_tensor_broadcast("matmul", a->rank - 2, a->shape, b->rank - 2, b->shape, &rank,
                                     shape, err);
  if (rc) return rc;
  pe_dtype dtype = pe_tensor_promote(a->dtype, b->dtype);
  if (dtype == PE_BOOL) dtype = PE_I64;
  pe_tensor made = {0}, wide = {0}, left = {0}, right = {0};
  shape[rank] = a->shape[a->rank - 2], shape[rank + 1] = b->shape[b->rank - 1];
  memcpy(side, shape, sizeof side);
  rc = pe_tensor_new(dtype, rank + 2, shape, &made, err);
  if (!rc) rc = widened(a, wide_dtype[pe_tensor_kind_of(dtype)], &wide, err);
  side[rank + 1] = k;
  if (!rc) rc = pe_tensor_expand(&wide, rank + 2, side, &left, err);
  side[rank] = k, side[rank + 1] = shape[rank + 1];
  if (!rc) rc = pe_tensor_expand(b, rank + 2, side, &right, err);
  if (!rc) rc = multiply_all(&left, &right, &made, err);
  pe_tensor_close(&right);
  pe_tensor_close(&left);
  pe_tensor_close(&wide);
  if (rc)
    pe_tensor_close(&made);
  else
    *out = made;
  return rc;
}

pe_status pe_tensor_matmul(const pe_tensor *a, const pe_tensor *b, pe_tensor *out, pe_error *err) {
  char s[PE_SHAPE_TEXT], t[PE_SHAPE_TEXT];
  pe_status rc = pe_tensor_no_f8("matmul", a, err);
  if (!rc) rc = pe_tensor_no_f8("matmul", b, err);
  if (rc) return rc;
  if (a->rank == 0 || b->rank == 0)
    return pe_fail(
        err, PE_ESHAPE,
        "matmul: shapes %s and %s: a tensor of rank 0 is not a matrix, multiply with * instead",
        pe_shape_text(a->rank, a->shape, s), pe_shape_text(b->rank, b->shape, t));
  pe_tensor left, right, made;
  pe_tensor_same(a, &left);
  pe_tensor_same(b, &right);
  if (a->rank == 1)
    left.rank = 2, left.shape[1] = left.shape[0], left.strides[1] = left.strides[0],
    left.shape[0] = 1, left.strides[0] = 1;
  if (b->rank == 1) right.rank = 2, right.shape[1] = 1, right.strides[1] = 1;
  if (!(rc = matmul(&left, &right, &made, err))) {
    int last = made.rank - 1;
    if (b->rank == 1) made.rank = last--; /* remove the column's 1 */
    if (a->rank == 1) {                   /* remove the row's 1 */
      int row = b->rank == 1 ? last : last - 1;
      for (int i = row; i + 1 < made.rank; i++)
        made.shape[i] = made.shape[i + 1], made.strides[i] = made.strides[i + 1];
      made.rank--;
    }
    *out = made;
  }
  pe_tensor_close(&right);
  pe_tensor_close(&left);
  return rc;
}
