/* tensor_help.h - shared by the tensor tests: dice, random tensors and views, slow element
 * access. */
#ifndef TENSOR_HELP_H
#define TENSOR_HELP_H

#include "check.h"
#include "runtime/tensor/tensor.h"

static pe_error err;

static uint32_t seed_state = 1;
static inline int dice(int n) { /* 0 … n-1 */
  seed_state = seed_state * 1664525u + 1013904223u;
  return (int)((uint64_t)(seed_state >> 8) * (uint64_t)n >> 24);
}

static inline pe_tensor floats(int rank, const int64_t *shape, const float *values) {
  pe_tensor t = {0};
  int64_t n = 1;
  for (int i = 0; i < rank; i++) n *= shape[i];
  CHECK_OK(pe_tensor_from_bytes(PE_F32, rank, shape, values, (uint64_t)n * 4, &t, &err), err);
  return t;
}
#define FLOATS(...)                                                                                \
  floats(1, (int64_t[]){sizeof((float[]){__VA_ARGS__}) / 4}, (float[]){__VA_ARGS__})

static inline bool next_index(const pe_tensor *t, int64_t *index) {
  for (int d = t->rank - 1; d >= 0; d--) {
    if (++index[d] < t->shape[d]) return true;
    index[d] = 0;
  }
  return false;
}

static inline double value(const pe_tensor *t, const int64_t *index) {
  return pe_number_as_float(pe_tensor_get(t, index));
}

/* The i-th element, in order. */
static inline double nth(const pe_tensor *t, int64_t i) {
  int64_t index[PE_TENSOR_RANK];
  for (int d = t->rank - 1; d >= 0; d--) index[d] = i % t->shape[d], i /= t->shape[d];
  return value(t, index);
}

static inline bool alike(double a, double b, double rtol) {
  return a == b || (a != a && b != b) || fabs(a - b) <= rtol * (fabs(a) + fabs(b));
}

static inline pe_tensor random_tensor(pe_dtype dtype, int rank, int most) {
  int64_t shape[PE_TENSOR_RANK];
  for (int i = 0; i < rank; i++) shape[i] = 1 + dice(most);
  pe_tensor t = {0};
  bool is_float = pe_dtype_is_float(dtype);
  CHECK_OK(pe_tensor_uniform(dtype, rank, shape,
                             is_float           ? -4
                             : dtype == PE_BOOL ? 0
                             : dtype >= PE_U64  ? 0
                                                : -9,
                             is_float           ? 4
                             : dtype == PE_BOOL ? 2
                                                : 10,
                             seed_state, &t, &err),
           err);
  return t;
}

/* A random view of t; takes t. */
static inline pe_tensor random_view(pe_tensor t) {
  for (int step = dice(3); step > 0 && t.rank > 0; step--) {
    pe_tensor v = {0};
    int axis = dice(t.rank);
    int64_t len = t.shape[axis];
    if (dice(2))
      CHECK_OK(pe_tensor_swap(&t, axis, dice(t.rank), &v, &err), err);
    else if (dice(2))
      CHECK_OK(pe_tensor_slice(&t, axis, len - 1, (len + 1) / 2, len > 2 ? -2 : -1, &v, &err), err);
    else
      CHECK_OK(pe_tensor_slice(&t, axis, len / 3, len - len / 3, 1, &v, &err), err);
    pe_tensor_close(&t);
    t = v;
  }
  return t;
}

static const pe_dtype arithmetic[] = {PE_F64, PE_F32, PE_F16, PE_BF16, PE_I64, PE_I32, PE_I16,
                                      PE_I8,  PE_U64, PE_U32, PE_U16,  PE_U8,  PE_BOOL};
enum { ARITHMETIC = sizeof arithmetic / sizeof *arithmetic };

static inline double tolerance(pe_dtype t) {
  return t == PE_F64 ? 1e-14 : t == PE_F32 ? 1e-6 : t == PE_F16 ? 1e-3 : t == PE_BF16 ? 8e-3 : 0;
}

/* Compares the elements of got; takes got. */
static inline void expect(pe_tensor got, const double *want, double tol) {
  for (int64_t i = 0; i < pe_tensor_size(&got); i++)
    if (!alike(nth(&got, i), want[i], 0)) CHECK_NEAR(nth(&got, i), want[i], tol);
  pe_tensor_close(&got);
}

#endif
