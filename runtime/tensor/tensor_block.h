/* tensor_block.h - private to tensor*.c: elements in blocks of one arithmetic type.
 *
 * There are sixteen dtypes and any strides, but arithmetic in four types only: f32, f64, i64, u64.
 * A reader walks a tensor in the order of its elements and returns blocks of at most
 * PE_TENSOR_BLOCK of them, converted, so that operations are plain loops over arrays.
 * pe_tensor_block_store writes results back. */
#ifndef PE_TENSOR_BLOCK_H
#define PE_TENSOR_BLOCK_H

#include "runtime/tensor/tensor.h"

/* Blocks live on the stack: 256 elements are 2 KiB, so the three of a binary operation stay in the
 * L1 cache, and the cost of a reader call is spread over enough elements. */
enum { PE_TENSOR_BLOCK = 256 };

typedef enum pe_tensor_kind {
  PE_TENSOR_F32,
  PE_TENSOR_F64,
  PE_TENSOR_I64,
  PE_TENSOR_U64,
  PE_TENSOR_KINDS
} pe_tensor_kind;

typedef union pe_tensor_block {
  float f[PE_TENSOR_BLOCK];
  double d[PE_TENSOR_BLOCK];
  int64_t i[PE_TENSOR_BLOCK];
  uint64_t u[PE_TENSOR_BLOCK];
} pe_tensor_block;

/* Length of the next block when `left` elements are left. */
static inline int pe_tensor_block_length(int64_t left) {
  return left < PE_TENSOR_BLOCK ? (int)left : PE_TENSOR_BLOCK;
}

pe_tensor_kind pe_tensor_kind_of(pe_dtype t); /* the kind that represents every value of a dtype */
size_t pe_tensor_kind_size(pe_tensor_kind k);

/* Loads n <= PE_TENSOR_BLOCK elements from p, `stride` elements apart, as `kind`. Conversions
 * saturate. */
void pe_tensor_block_load(pe_tensor_block *b, pe_tensor_kind kind, const uint8_t *p, pe_dtype dtype,
                          int64_t stride, int n);
/* Stores n elements of kind pe_tensor_kind_of(dtype) at p. Integers wrap at the dtype's width; to
 * saturate, call pe_tensor_block_saturate first. */
void pe_tensor_block_store(const pe_tensor_block *b, uint8_t *p, pe_dtype dtype, int64_t stride,
                           int n);
/* Converts in place between kinds, saturating. */
void pe_tensor_block_convert(pe_tensor_block *b, pe_tensor_kind from, pe_tensor_kind to, int n);
/* Clamps elements of kind pe_tensor_kind_of(dtype) to the range of dtype; the store handles
 * bool. */
void pe_tensor_block_saturate(pe_tensor_block *b, pe_dtype dtype, int n);
/* Turns elements of `kind` into i64: 1 if not zero, else 0. */
void pe_tensor_block_truth(pe_tensor_block *b, pe_tensor_kind kind, int n);

typedef struct pe_tensor_reader {
  const uint8_t *base;
  pe_dtype dtype;
  int rank;
  int64_t shape[PE_TENSOR_RANK], strides[PE_TENSOR_RANK], index[PE_TENSOR_RANK];
  int64_t offset; /* of the current element, in elements */
} pe_tensor_reader;

/* Reads t as if expanded to this shape, which it must broadcast to. */
void pe_tensor_reader_open(pe_tensor_reader *r, const pe_tensor *t, int rank, const int64_t *shape);
/* The next n elements; the caller makes sure that they exist. */
void pe_tensor_reader_next(pe_tensor_reader *r, pe_tensor_block *b, pe_tensor_kind kind, int n);

/* Walks the rows of an axis (-1: every element): `offset` is that of a row's first element, in
 * elements. Starts at the first row with index and offset 0. */
typedef struct pe_tensor_rows {
  const pe_tensor *t;
  int axis;
  int64_t index[PE_TENSOR_RANK];
  int64_t offset;
} pe_tensor_rows;

bool pe_tensor_rows_next(pe_tensor_rows *r); /* moves to the next row; false after the last */

/* ---- tensor_shape.c and tensor_view.c -------------------------------------------------------- */

uint8_t *pe_tensor_at(const pe_tensor *t, int64_t element_offset);
/* The common shape of two; `shape` may be one of them. */
pe_status pe_tensor_broadcast(const char *what, int rank_a, const int64_t *a, int rank_b,
                              const int64_t *b, int *rank, int64_t *shape, pe_error *err);
void pe_dtype_range(pe_dtype t, int64_t *low, uint64_t *high); /* of an integer dtype or bool */
/* Checks that the axis exists, and that the dtype has arithmetic. */
pe_status pe_tensor_axis(const char *what, const pe_tensor *t, int axis, pe_error *err);
pe_status pe_tensor_no_f8(const char *what, const pe_tensor *t, pe_error *err);
/* `full` is shape with its -1 replaced; PE_ESHAPE if t has another number of elements. */
pe_status pe_tensor_resolve(const pe_tensor *t, int rank, const int64_t *shape, int64_t *full,
                            pe_error *err);

#endif
