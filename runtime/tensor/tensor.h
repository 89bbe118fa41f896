/* tensor.h - a shape and strides over counted bytes.
 *
 * A pe_tensor is a small value: dtype, up to 8 dimensions, strides in elements (0 repeats, negative runs
 * backwards) and a place in a pe_buffer, of which it holds one reference. Every function that fills `out`
 * gives such a reference: close it with pe_tensor_close. On failure `out` is not touched. Inputs are borrowed
 * for the call; `out` may not be an input.
 *
 * Views (slice, select, permute, expand, view_as, …) share the buffer and copy nothing. Everything else gives
 * a new contiguous tensor. Elements need not be aligned: a tensor may sit at any byte of a mapped file.
 * Mapped buffers cannot be written to; pe_tensor_write and pe_tensor_fill are the only functions that write
 * into a tensor somebody else sees.
 *
 * Dtypes. A result's dtype follows from the operands' (pe_tensor_promote):
 * - the same twice: that; float with integer: the float; f16 with bf16: f32; else the larger float;
 * - bool with integer: the integer; integers of one sign: the wider; of both: a wider signed one, at most
 *   i64.
 * Arithmetic on two bools counts (i64). `/` and the functions that make floats of integers give f32.
 * Comparisons and predicates give bool. A number that is not a tensor bends to the tensor (pe_tensor_scalar):
 * an integer takes the tensor's dtype where it fits, a float makes integers f32 and leaves floats as they
 * are.
 *
 * Numbers. f16 and bf16 are computed in f32 and rounded to nearest even once per operation. Sums, means and
 * the other reductions accumulate in f64 in the order of the elements; matmul accumulates in f32 (f64 for
 * f64, 64-bit integers for integers) in the order of k, whatever the other sizes are. Integer arithmetic
 * wraps at the dtype's width; dividing an integer by zero and raising it to a negative power are errors.
 * Conversions (cast, write, fill) saturate: what is too large becomes the largest, floats lose their fraction
 * toward zero, NaN becomes 0, and bool is "not zero"; f64 is rounded to f16 and bf16 by way of f32. F8 kinds
 * can be viewed, printed, indexed and cast away from, nothing else.
 *
 * NaN: min, max, minimum, maximum, clamp let it through; argmax and argmin find the first one; in sort,
 * argsort and topk it is greater than every number (ascending: last). Equal elements keep their order; -0
 * equals 0.
 *
 * Positions are counted from 0, and where positions are data (argmax, argsort, topk, take) the caller says
 * what the first one is called: `first` is 0 or 1. Axes are 0 … rank-1, PE_TENSOR_ALL means all elements.
 *
 * Random numbers are a function of seed and element number (splitmix64), so neither the number of threads nor
 * the shape matters. Threads: a tensor may be read by many; the functions here use the calling thread only. */
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

/* ---- making (tensor.c, tensor_random.c) ---------------------------------------------------------------- */

/* Zeros. */
pe_status pe_tensor_new(pe_dtype dtype, int rank, const int64_t *shape, pe_tensor *out,
                        pe_error *err);
pe_status pe_tensor_full(pe_dtype dtype, int rank, const int64_t *shape, pe_number value,
                         pe_tensor *out, pe_error *err);
pe_status pe_tensor_range(pe_dtype dtype, pe_number from, pe_number step, int64_t count,
                          pe_tensor *out, pe_error *err);
pe_status pe_tensor_eye(pe_dtype dtype, int64_t n, pe_tensor *out, pe_error *err);
/* Copies; the size must be exact. */
pe_status pe_tensor_from_bytes(pe_dtype dtype, int rank, const int64_t *shape, const void *bytes,
                               uint64_t size, pe_tensor *out, pe_error *err);
/* A view of a place in a buffer (retains it): weights. */
pe_status pe_tensor_from_buffer(pe_buffer *buffer, uint64_t offset, pe_dtype dtype, int rank,
                                const int64_t *shape, pe_tensor *out, pe_error *err);
/* A number as a tensor of rank 0 whose dtype suits an operation with `like` (see above). */
pe_status pe_tensor_scalar(pe_number value, pe_dtype like, pe_tensor *out, pe_error *err);
/* Floats: low <= x < high before rounding to the dtype. Integers: low <= x < high. */
pe_status pe_tensor_uniform(pe_dtype dtype, int rank, const int64_t *shape, double low, double high,
                            uint64_t seed, pe_tensor *out, pe_error *err);
pe_status pe_tensor_normal(pe_dtype dtype, int rank, const int64_t *shape, double mean, double std,
                           uint64_t seed, pe_tensor *out, pe_error *err);
void pe_tensor_close(pe_tensor *t); /* gives the reference back; a closed tensor or {0} is fine */

/* ---- asking -------------------------------------------------------------------------------------------- */

int64_t pe_tensor_size(const pe_tensor *t);   /* elements */
uint64_t pe_tensor_bytes(const pe_tensor *t); /* elements * element size, as if contiguous */
bool pe_tensor_is_contiguous(const pe_tensor *t);
const uint8_t *pe_tensor_data(const pe_tensor *t); /* borrowed; the first element */
pe_number pe_tensor_get(const pe_tensor *t,
                        const int64_t *index); /* one element; the index is trusted */
pe_dtype pe_tensor_promote(pe_dtype a, pe_dtype b);
bool pe_dtype_is_float(pe_dtype t); /* f64 f32 f16 bf16: what arithmetic takes as it is */
bool pe_dtype_is_f8(pe_dtype t);
/* "[2, 3]" into text (at least PE_SHAPE_TEXT bytes), for messages. Returns text. */
enum { PE_SHAPE_TEXT = 192 };
char *pe_shape_text(int rank, const int64_t *shape, char *text);

/* ---- views --------------------------------------------------------------------------------------------- */

pe_status pe_tensor_same(const pe_tensor *t,
                         pe_tensor *out); /* another view of all of it; always PE_OK */
/* `count` elements of an axis, from `from`, every step-th; a negative step runs backwards. */
pe_status pe_tensor_slice(const pe_tensor *t, int axis, int64_t from, int64_t count, int64_t step,
                          pe_tensor *out, pe_error *err);
/* One position of an axis, which goes. */
pe_status pe_tensor_select(const pe_tensor *t, int axis, int64_t index, pe_tensor *out,
                           pe_error *err);
pe_status pe_tensor_permute(const pe_tensor *t, const int *order, pe_tensor *out, pe_error *err);
/* Two axes change places. */
pe_status pe_tensor_swap(const pe_tensor *t, int a, int b, pe_tensor *out, pe_error *err);
pe_status pe_tensor_expand(const pe_tensor *t, int rank, const int64_t *shape, pe_tensor *out,
                           pe_error *err);
/* A dimension of 1. */
pe_status pe_tensor_insert(const pe_tensor *t, int axis, pe_tensor *out, pe_error *err);
/* Another shape for the same elements in the same order; one dimension may be -1. view_as fails with
 * PE_ESHAPE where the strides do not allow it, reshape copies then. */
pe_status pe_tensor_view_as(const pe_tensor *t, int rank, const int64_t *shape, pe_tensor *out,
                            pe_error *err);
pe_status pe_tensor_reshape(const pe_tensor *t, int rank, const int64_t *shape, pe_tensor *out,
                            pe_error *err);

/* ---- copies -------------------------------------------------------------------------------------------- */

/* A view where it is already. */
pe_status pe_tensor_contiguous(const pe_tensor *t, pe_tensor *out, pe_error *err);
pe_status pe_tensor_copy(const pe_tensor *t, pe_tensor *out, pe_error *err);
pe_status pe_tensor_cast(const pe_tensor *t, pe_dtype dtype, pe_tensor *out, pe_error *err);
/* Broadcasts and converts. */
pe_status pe_tensor_write(const pe_tensor *into, const pe_tensor *from, pe_error *err);
pe_status pe_tensor_fill(const pe_tensor *into, pe_number value, pe_error *err);

/* ---- element by element (tensor_math.c) ---------------------------------------------------------------- */

/* clang-format off */
typedef enum pe_unary {
  PE_NEG, PE_ABS, PE_SIGN, PE_SQUARE, PE_RELU, PE_FLOOR, PE_CEIL, PE_ROUND, /* keep integers */
  PE_EXP, PE_LOG, PE_SQRT, PE_RSQRT, PE_SIN, PE_COS, PE_TANH, PE_ERF, PE_SIGMOID, PE_SILU, PE_GELU, PE_GELU_TANH,
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

const char *pe_unary_name(pe_unary op);
const char *pe_binary_name(pe_binary op);
pe_status pe_tensor_unary(pe_unary op, const pe_tensor *t, pe_tensor *out, pe_error *err);
pe_status pe_tensor_binary(pe_binary op, const pe_tensor *a, const pe_tensor *b, pe_tensor *out,
                           pe_error *err);
pe_status pe_tensor_where(const pe_tensor *condition, const pe_tensor *a, const pe_tensor *b,
                          pe_tensor *out, pe_error *err);
bool pe_tensor_equal(const pe_tensor *a,
                     const pe_tensor *b); /* same shape and values; NaN equals nothing */
/* |a - b| <= atol + rtol * |b| everywhere, both NaN or the same infinity; *worst (if any) is the largest |a -
 * b|. */
pe_status pe_tensor_close_to(const pe_tensor *a, const pe_tensor *b, double atol, double rtol,
                             bool *close, double *worst, pe_error *err);

/* ---- matmul (tensor_matmul.c) -------------------------------------------------------------------------- */

/* [..., m, k] x [..., k, n], leading dimensions broadcast; a vector is a row on the left and a column on the
 * right and its dimension disappears. */
pe_status pe_tensor_matmul(const pe_tensor *a, const pe_tensor *b, pe_tensor *out, pe_error *err);

/* ---- reductions and rows (tensor_reduce.c, tensor_rows.c) ---------------------------------------------- */

/* clang-format off */
typedef enum pe_reduce {
  PE_SUM, PE_MEAN, PE_PROD, PE_MAX, PE_MIN, PE_ANY, PE_ALL, PE_ARGMAX, PE_ARGMIN, PE_VAR, PE_STD, PE_NORM,
  PE_REDUCE_COUNT
} pe_reduce;
/* clang-format on */

typedef struct pe_reduce_options {
  int axis;      /* or PE_TENSOR_ALL */
  bool keep;     /* leave the axis as a dimension of 1 */
  int64_t first; /* argmax, argmin: what the first position is called */
  int64_t ddof;  /* var, std: divide by n - ddof */
} pe_reduce_options;

const char *pe_reduce_name(pe_reduce op);
pe_status pe_tensor_reduce(pe_reduce op, const pe_tensor *t, pe_reduce_options o, pe_tensor *out,
                           pe_error *err);
pe_status pe_tensor_softmax(const pe_tensor *t, int axis, bool log, pe_tensor *out, pe_error *err);
pe_status pe_tensor_cumsum(const pe_tensor *t, int axis, pe_tensor *out, pe_error *err);
pe_status pe_tensor_sort(const pe_tensor *t, int axis, bool descending, pe_tensor *out,
                         pe_error *err);
pe_status pe_tensor_argsort(const pe_tensor *t, int axis, bool descending, int64_t first,
                            pe_tensor *out, pe_error *err);
/* The k largest (or smallest) of an axis in order, ties to the lowest position. Gives both or neither. */
pe_status pe_tensor_topk(const pe_tensor *t, int axis, int64_t k, bool smallest, int64_t first,
                         pe_tensor *values, pe_tensor *positions, pe_error *err);

/* ---- putting together and picking (tensor_index.c) ----------------------------------------------------- */

pe_status pe_tensor_concat(const pe_tensor *const *parts, int count, int axis, pe_tensor *out,
                           pe_error *err);
pe_status pe_tensor_stack(const pe_tensor *const *parts, int count, int axis, pe_tensor *out,
                          pe_error *err);
/* Rows of `axis` by an integer tensor of positions; its shape takes the place of the axis. */
pe_status pe_tensor_take(const pe_tensor *t, int axis, const pe_tensor *positions, int64_t first,
                         pe_tensor *out, pe_error *err);

/* ---- looking (tensor_stats.c, tensor_print.c) ---------------------------------------------------------- */

typedef struct pe_tensor_summary {
  int64_t count, nan, inf, zero;
  double min, max, mean,
      std; /* of the finite elements; NaN where there are none; std divides by n */
} pe_tensor_summary;

void pe_tensor_stats(const pe_tensor *t, pe_tensor_summary *out);
/* Counts of the finite elements in `bins` equal parts of low … high (both ends included, outside is not
 * counted). */
pe_status pe_tensor_histogram(const pe_tensor *t, double low, double high, int64_t *counts,
                              int bins, pe_error *err);

typedef struct pe_print_options {
  int width;     /* columns of the terminal; 0: 80 */
  int edge;      /* elements shown at each end of a long axis; 0: 3 */
  int threshold; /* more elements than this are shortened; 0: 1000 */
  int digits;    /* after the point; 0: 4 */
  bool ascii;    /* no block characters, "..." for "…" */
} pe_print_options;

/* "tensor f32 [2, 3]  24 B   -1.5 ▁▂▇█▂▁ 2.5   mean 0.1  std 0.9": one line. */
pe_status pe_tensor_print_line(const pe_tensor *t, const pe_print_options *o, pe_buf *out,
                               pe_error *err);
/* The numbers, aligned, shortened at the edges. */
pe_status pe_tensor_print(const pe_tensor *t, const pe_print_options *o, pe_buf *out,
                          pe_error *err);

#endif
