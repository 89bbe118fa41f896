/* tensor.h - tensors for scripts: a shape and strides over counted bytes. Nothing else in runtime/
 * uses it.
 *
 * A pe_tensor is a small value: dtype, up to 8 dimensions, strides in elements (0 repeats, negative
 * runs backwards) and a position in a pe_buffer, of which it owns one reference. Every function
 * that fills `out` gives such a reference; pe_tensor_close takes it. On failure `out` is not
 * touched. Inputs are borrowed for the call; `out` must not be an input.
 *
 * Views (slice, select, permute, expand, view_as and others) share the buffer and copy nothing.
 * Everything else returns a new contiguous tensor. Elements need not be aligned. Mapped buffers
 * cannot be written; pe_tensor_write and pe_tensor_fill are the only functions that change existing
 * elements.
 *
 * Dtypes. The dtype of a result follows from the operands (pe_tensor_promote):
 * - equal dtypes: that dtype; float with integer: the float; f16 with bf16: f32; else the larger
 *   float;
 * - bool with integer: the integer; integers of the same sign: the wider; of different signs: a
 *   wider signed one, at most i64.
 * Arithmetic on two bools gives i64. `/` and functions such as exp turn integers into f32.
 * Comparisons and predicates give bool. A plain number adapts to the tensor (pe_tensor_scalar): an
 * integer takes the tensor's dtype if it fits; a float turns integer tensors into f32 and keeps
 * float dtypes.
 *
 * Numbers. f16 and bf16 are computed in f32 and rounded to nearest even once per operation.
 * Reductions accumulate in f64 in the order of the elements; matmul accumulates in f32 (f64 for
 * f64, 64-bit integers for integers) in the order of k. Integer arithmetic wraps at the dtype's
 * width; dividing an integer by zero or raising it to a negative power is an error. Conversions
 * (cast, write, fill) saturate: values out of range become the nearest limit, floats are truncated
 * toward zero, NaN becomes 0, and bool means "not zero"; f64 is rounded to f16 and bf16 by way of
 * f32. F8 dtypes can only be viewed, printed, indexed and cast from.
 *
 * NaN: min, max, minimum, maximum and clamp propagate it; argmax and argmin find the first one;
 * sort, argsort and topk order it above every number. Equal elements keep their order; -0 equals 0.
 *
 * Positions count from 0. Where positions are data (argmax, argsort, topk, take), `first` is the
 * number of the first one, 0 or 1. Axes are 0 … rank-1; PE_TENSOR_ALL means all elements.
 *
 * Random numbers are a function of the seed and the element's number (splitmix64), not of the
 * shape. Threads: many may read a tensor; every function runs on the calling thread. */
#ifndef PE_TENSOR_H
#define PE_TENSOR_H

#include "kernels/dtype.h"
#include "runtime/buffer.h"

enum { PE_TENSOR_RANK = 8, PE_TENSOR_ALL = -1 };

typedef struct pe_tensor {
  pe_dtype dtype;
  int rank;
  int64_t shape[PE_TENSOR_RANK], strides[PE_TENSOR_RANK]; /* strides in elements */
  pe_buffer *buffer; /* one reference; NULL in a closed tensor */
  uint64_t offset;   /* of the first element, in bytes */
} pe_tensor;

typedef struct pe_number { /* one element outside a tensor: integers stay exact */
  enum { PE_NUMBER_INT, PE_NUMBER_UINT, PE_NUMBER_FLOAT } kind;
  union {
    int64_t i;
    uint64_t u;
    double f;
  };
} pe_number;

static inline pe_number pe_number_int(int64_t i) {
  return (pe_number){.kind = PE_NUMBER_INT, .i = i};
}
static inline pe_number pe_number_float(double f) {
  return (pe_number){.kind = PE_NUMBER_FLOAT, .f = f};
}
double pe_number_as_float(pe_number n);

/* ---- creating (tensor.c, tensor_random.c) ---------------------------------------------------- */

/* Zeros. */
pe_status pe_tensor_new(pe_dtype dtype, int rank, const int64_t *shape, pe_tensor *out,
                        pe_error *err);
pe_status pe_tensor_full(pe_dtype dtype, int rank, const int64_t *shape, pe_number value,
                         pe_tensor *out, pe_error *err);
pe_status pe_tensor_range(pe_dtype dtype, pe_number from, pe_number step, int64_t count,
                          pe_tensor *out, pe_error *err);
pe_status pe_tensor_eye(pe_dtype dtype, int64_t n, pe_tensor *out, pe_error *err);
/* Copies the bytes; their size must be exact. */
pe_status pe_tensor_from_bytes(pe_dtype dtype, int rank, const int64_t *shape, const void *bytes,
                               uint64_t size, pe_tensor *out, pe_error *err);
/* A number as a tensor of rank 0, with the dtype for an operation with `like` (see above). */
pe_status pe_tensor_scalar(pe_number value, pe_dtype like, pe_tensor *out, pe_error *err);
/* Floats: low <= x < high before rounding to the dtype. Integers: low <= x < high. */
pe_status pe_tensor_uniform(pe_dtype dtype, int rank, const int64_t *shape, double low, double high,
                            uint64_t seed, pe_tensor *out, pe_error *err);
pe_status pe_tensor_normal(pe_dtype dtype, int rank, const int64_t *shape, double mean, double std,
                           uint64_t seed, pe_tensor *out, pe_error *err);
void pe_tensor_close(pe_tensor *t); /* takes the reference; a closed tensor or {0} is fine */

/* ---- properties ------------------------------------------------------------------------------ */

int64_t pe_tensor_size(const pe_tensor *t);   /* elements */
uint64_t pe_tensor_bytes(const pe_tensor *t); /* elements * element size */
bool pe_tensor_is_contiguous(const pe_tensor *t);
const uint8_t *pe_tensor_data(const pe_tensor *t); /* the first element; borrowed */
/* One element; the index is not checked. */
pe_number pe_tensor_get(const pe_tensor *t, const int64_t *index);
pe_dtype pe_tensor_promote(pe_dtype a, pe_dtype b);
bool pe_dtype_is_float(pe_dtype t); /* f64, f32, f16 or bf16 */
bool pe_dtype_is_f8(pe_dtype t);
/* Writes "[2, 3]" to text (PE_SHAPE_TEXT bytes), for messages. Returns text. */
enum { PE_SHAPE_TEXT = 192 };
char *pe_shape_text(int rank, const int64_t *shape, char *text);

/* ---- views ----------------------------------------------------------------------------------- */

pe_status pe_tensor_same(const pe_tensor *t, pe_tensor *out); /* the whole tensor; always PE_OK */
/* `count` elements of an axis from position `from` in steps of `step`, which may be negative. */
pe_status pe_tensor_slice(const pe_tensor *t, int axis, int64_t from, int64_t count, int64_t step,
                          pe_tensor *out, pe_error *err);
/* One position of an axis; the axis disappears. */
pe_status pe_tensor_select(const pe_tensor *t, int axis, int64_t index, pe_tensor *out,
                           pe_error *err);
pe_status pe_tensor_permute(const pe_tensor *t, const int *order, pe_tensor *out, pe_error *err);
/* Swaps two axes. */
pe_status pe_tensor_swap(const pe_tensor *t, int a, int b, pe_tensor *out, pe_error *err);
pe_status pe_tensor_expand(const pe_tensor *t, int rank, const int64_t *shape, pe_tensor *out,
                           pe_error *err);
/* Inserts a dimension of 1. */
pe_status pe_tensor_insert(const pe_tensor *t, int axis, pe_tensor *out, pe_error *err);
/* Another shape for the same elements in the same order; one dimension may be -1. If the strides do
 * not allow it, view_as fails with PE_ESHAPE and reshape copies. */
pe_status pe_tensor_view_as(const pe_tensor *t, int rank, const int64_t *shape, pe_tensor *out,
                            pe_error *err);
pe_status pe_tensor_reshape(const pe_tensor *t, int rank, const int64_t *shape, pe_tensor *out,
                            pe_error *err);

/* ---- copies ---------------------------------------------------------------------------------- */

/* A view if t is contiguous already, else a copy. */
pe_status pe_tensor_contiguous(const pe_tensor *t, pe_tensor *out, pe_error *err);
pe_status pe_tensor_copy(const pe_tensor *t, pe_tensor *out, pe_error *err);
pe_status pe_tensor_cast(const pe_tensor *t, pe_dtype dtype, pe_tensor *out, pe_error *err);
/* Copies elements, broadcasting and converting. */
pe_status pe_tensor_write(const pe_tensor *into, const pe_tensor *from, pe_error *err);
pe_status pe_tensor_fill(const pe_tensor *into, pe_number value, pe_error *err);

/* ---- element by element (tensor_math.c) ------------------------------------------------------ */

/* clang-format off */
typedef enum pe_unary {
  PE_NEG, PE_ABS, PE_SIGN, PE_SQUARE, PE_RELU, PE_FLOOR, PE_CEIL, PE_ROUND, /* keep integers */
  PE_EXP, PE_LOG, PE_SQRT, PE_RSQRT, PE_SIN, PE_COS, PE_TANH, PE_ERF, PE_SIGMOID, PE_SILU,
  PE_GELU, PE_GELU_TANH, /* turn integers into f32 */
  PE_NOT, PE_ISNAN, PE_ISINF, PE_ISFINITE, /* give bool */
  PE_UNARY_COUNT
} pe_unary;
/* clang-format on */

/* clang-format off */
typedef enum pe_binary {
  PE_ADD, PE_SUB, PE_MUL, PE_DIV, PE_IDIV, PE_MOD, PE_POW, PE_MINIMUM, PE_MAXIMUM,
  PE_EQ, PE_NE, PE_LT, PE_LE, PE_GT, PE_GE, PE_AND, PE_OR, /* give bool */
  PE_BINARY_COUNT
} pe_binary;
/* clang-format on */

pe_status pe_tensor_unary(pe_unary op, const pe_tensor *t, pe_tensor *out, pe_error *err);
pe_status pe_tensor_binary(pe_binary op, const pe_tensor *a, const pe_tensor *b, pe_tensor *out,
                           pe_error *err);
pe_status pe_tensor_where(const pe_tensor *condition, const pe_tensor *a, const pe_tensor *b,
                          pe_tensor *out, pe_error *err);
/* Same shape and values; NaN equals nothing. */
bool pe_tensor_equal(const pe_tensor *a, const pe_tensor *b);
/* *close: everywhere |a - b| <= atol + rtol * |b|, or both NaN, or the same infinity. *worst, which
 * may be NULL, is the largest |a - b|. */
pe_status pe_tensor_close_to(const pe_tensor *a, const pe_tensor *b, double atol, double rtol,
                             bool *close, double *worst, pe_error *err);

/* ---- matmul (tensor_matmul.c) ---------------------------------------------------------------- */

/* [..., m, k] x [..., k, n]; leading dimensions broadcast. A vector is a row on the left and a
 * column on the right, and its dimension of 1 is removed from the result. */
pe_status pe_tensor_matmul(const pe_tensor *a, const pe_tensor *b, pe_tensor *out, pe_error *err);

/* ---- reductions and rows (tensor_reduce.c, tensor_rows.c) ------------------------------------ */

/* clang-format off */
typedef enum pe_reduce {
  PE_SUM, PE_MEAN, PE_PROD, PE_MAX, PE_MIN, PE_ANY, PE_ALL, PE_ARGMAX, PE_ARGMIN, PE_VAR, PE_STD,
  PE_NORM,
  PE_REDUCE_COUNT
} pe_reduce;
/* clang-format on */

typedef struct pe_reduce_options {
  int axis;      /* or PE_TENSOR_ALL */
  bool keep;     /* keep the axis as a dimension of 1 */
  int64_t first; /* argmax, argmin: number of the first position */
  int64_t ddof;  /* var, std: divide by n - ddof */
} pe_reduce_options;

pe_status pe_tensor_reduce(pe_reduce op, const pe_tensor *t, pe_reduce_options o, pe_tensor *out,
                           pe_error *err);
pe_status pe_tensor_softmax(const pe_tensor *t, int axis, bool log, pe_tensor *out, pe_error *err);
pe_status pe_tensor_cumsum(const pe_tensor *t, int axis, pe_tensor *out, pe_error *err);
pe_status pe_tensor_sort(const pe_tensor *t, int axis, bool descending, pe_tensor *out,
                         pe_error *err);
pe_status pe_tensor_argsort(const pe_tensor *t, int axis, bool descending, int64_t first,
                            pe_tensor *out, pe_error *err);
/* The k largest (or smallest) of an axis, in order; ties go to the lowest position. gives both or
 * none */
pe_status pe_tensor_topk(const pe_tensor *t, int axis, int64_t k, bool smallest, int64_t first,
                         pe_tensor *values, pe_tensor *positions, pe_error *err);

/* ---- joining and picking (tensor_index.c) ---------------------------------------------------- */

pe_status pe_tensor_concat(const pe_tensor *const *parts, int count, int axis, pe_tensor *out,
                           pe_error *err);
pe_status pe_tensor_stack(const pe_tensor *const *parts, int count, int axis, pe_tensor *out,
                          pe_error *err);
/* Rows of `axis` at the positions of an integer tensor, whose shape replaces the axis. */
pe_status pe_tensor_take(const pe_tensor *t, int axis, const pe_tensor *positions, int64_t first,
                         pe_tensor *out, pe_error *err);

/* ---- statistics and printing (tensor_stats.c, tensor_print.c) -------------------------------- */

typedef struct pe_tensor_summary {
  int64_t count, nan, inf, zero;
  double min, max, mean, std; /* of the finite elements, NaN if there are none; std divides by n */
} pe_tensor_summary;

void pe_tensor_stats(const pe_tensor *t, pe_tensor_summary *out);
/* Counts the elements in `bins` equal parts of [low, high]; elements outside are not counted. */
pe_status pe_tensor_histogram(const pe_tensor *t, double low, double high, int64_t *counts,
                              int bins, pe_error *err);

typedef struct pe_print_options {
  int width;     /* columns of the terminal; 0: 80 */
  int edge;      /* elements shown at each end of a long axis; 0: 3 */
  int threshold; /* most elements that are shown in full; 0: 1000 */
  int digits;    /* after the decimal point; 0: 4 */
  bool ascii;    /* no block characters, and "..." instead of "…" */
} pe_print_options;

/* "tensor f32 [2, 3]  24 B   -1.5 ▁▂▇█▂▁ 2.5   mean 0.1  std 0.9": one line. */
pe_status pe_tensor_print_line(const pe_tensor *t, const pe_print_options *o, pe_buf *out,
                               pe_error *err);
/* The numbers, aligned; long axes are shortened in the middle. */
pe_status pe_tensor_print(const pe_tensor *t, const pe_print_options *o, pe_buf *out,
                          pe_error *err);

#endif
