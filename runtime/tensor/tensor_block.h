/* tensor_block.h - private to tensor*.c: elements in blocks of one arithmetic type.
 *
 * Sixteen dtypes and any strides meet arithmetic that knows four types: f32, f64, i64, u64. A reader walks a
 * tensor in the order of its elements and hands out blocks of at most PE_BLOCK of them, converted; the loops
 * over a block are then plain loops over arrays. Results go the other way through pe_block_store into
 * contiguous memory. */
#ifndef PE_TENSOR_BLOCK_H
#define PE_TENSOR_BLOCK_H

#include "runtime/tensor/tensor.h"

enum { PE_BLOCK = 256 };

typedef enum pe_kind { PE_KF32, PE_KF64, PE_KI64, PE_KU64, PE_KIND_COUNT } pe_kind;

typedef union pe_block {
  float f[PE_BLOCK];
  double d[PE_BLOCK];
  int64_t i[PE_BLOCK];
  uint64_t u[PE_BLOCK];
} pe_block;

pe_kind pe_kind_of(pe_dtype t); /* the arithmetic in which a dtype is exact */
size_t pe_kind_size(pe_kind k);

/* n elements from p, `stride` elements apart, as `kind` (conversions saturate). n <= PE_BLOCK. */
void pe_block_load(pe_block *b, pe_kind kind, const uint8_t *p, pe_dtype dtype, int64_t stride,
                   int n);
/* n elements of kind pe_kind_of(dtype) to p. Integers are cut to the dtype's width; saturate first where
 * wanted. */
void pe_block_store(const pe_block *b, uint8_t *p, pe_dtype dtype, int64_t stride, int n);
/* Converts in place between kinds, saturating. */
void pe_block_convert(pe_block *b, pe_kind from, pe_kind to, int n);
/* Clamps elements of kind pe_kind_of(dtype) to what dtype holds; bool is left to the store. */
void pe_block_saturate(pe_block *b, pe_dtype dtype, int n);
/* Elements of `kind` become i64: 1 where they are not zero, else 0. */
void pe_block_truth(pe_block *b, pe_kind kind, int n);

typedef struct pe_reader {
  const uint8_t *base;
  pe_dtype dtype;
  int rank;
  int64_t shape[PE_TENSOR_RANK], strides[PE_TENSOR_RANK], index[PE_TENSOR_RANK];
  int64_t offset; /* of the current element, in elements */
} pe_reader;

/* t as if expanded to the shape, which it must broadcast to. */
void pe_reader_open(pe_reader *r, const pe_tensor *t, int rank, const int64_t *shape);
void pe_reader_next(pe_reader *r, pe_block *b, pe_kind kind,
                    int n); /* the next n elements, which must be there */

/* Positions along the rows of an axis: visits each with the place of its first element in t. {0} index to
 * start. */
typedef struct pe_rows {
  const pe_tensor *t;
  int axis;
  int64_t index[PE_TENSOR_RANK];
  int64_t offset;
} pe_rows;

bool pe_rows_next(pe_rows *r); /* to the next row; false after the last */

uint8_t *pe_tensor_at(const pe_tensor *t, int64_t element_offset);
pe_status pe_tensor_broadcast(const char *what, int rank_a, const int64_t *a, int rank_b,
                              const int64_t *b, int *rank, int64_t *shape, pe_error *err);
void pe_dtype_range(pe_dtype t, int64_t *low, uint64_t *high); /* of an integer dtype or bool */
pe_status pe_tensor_axis(const char *what, const pe_tensor *t, int axis, pe_error *err);
pe_status pe_tensor_no_f8(const char *what, const pe_tensor *t, pe_error *err);

#endif
