/* tensor_block.c - see tensor_block.h. */
#include "runtime/tensor/tensor_block.h"

#include <math.h>
#include <string.h>

/* ---- dtypes and kinds ------------------------------------------------------------------------ */

pe_tensor_kind pe_tensor_kind_of(pe_dtype t) {
  if (t == PE_F64) return PE_TENSOR_F64;
  if (pe_dtype_is_float(t) || pe_dtype_is_f8(t)) return PE_TENSOR_F32;
  return t == PE_U64 ? PE_TENSOR_U64 : PE_TENSOR_I64;
}

size_t pe_tensor_kind_size(pe_tensor_kind k) { return k == PE_TENSOR_F32 ? 4 : 8; }

static float f8_e4m3_to_f32(uint8_t v) {
  int e = v >> 3 & 15, m = v & 7;
  float f = e == 15 && m == 7 ? NAN : e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
  return v & 0x80 ? -f : f;
}

static float f8_e8m0_to_f32(uint8_t v) { return v == 255 ? NAN : ldexpf(1.0f, v - 127); }

static int64_t i64_of(double d) {
  if (!(d == d)) return 0;
  return d >= 0x1p63 ? INT64_MAX : d <= -0x1p63 ? INT64_MIN : (int64_t)d;
}

static uint64_t u64_of(double d) { return !(d > 0) ? 0 : d >= 0x1p64 ? UINT64_MAX : (uint64_t)d; }

/* ---- load, store, convert -------------------------------------------------------------------- */

/* memcpy because elements need not be aligned. Stride 1 has its own loop so that it is
 * vectorised. */
#define LOAD(T, member, expr)                                                                      \
  do {                                                                                             \
    if (stride == 1) {                                                                             \
      for (int i = 0; i < n; i++) {                                                                \
        T v;                                                                                       \
        memcpy(&v, p + (size_t)i * sizeof v, sizeof v);                                            \
        b->member[at + i] = expr;                                                                  \
      }                                                                                            \
    } else {                                                                                       \
      for (int i = 0; i < n; i++) {                                                                \
        T v;                                                                                       \
        memcpy(&v, p + i * stride * (int64_t)sizeof v, sizeof v);                                  \
        b->member[at + i] = expr;                                                                  \
      }                                                                                            \
    }                                                                                              \
  } while (0)

/* Loads n elements in the dtype's own kind, from element `at` of the block on. */
static void load(pe_tensor_block *b, int at, const uint8_t *p, pe_dtype dtype, int64_t stride,
                 int n) {
  switch (dtype) {
  case PE_F64: LOAD(double, d, v); break;
  case PE_F32: LOAD(float, f, v); break;
  case PE_F16: LOAD(uint16_t, f, pe_f16_to_f32(v)); break;
  case PE_BF16: LOAD(uint16_t, f, pe_bf16_to_f32(v)); break;
  case PE_I64: LOAD(int64_t, i, v); break;
  case PE_I32: LOAD(int32_t, i, v); break;
  case PE_I16: LOAD(int16_t, i, v); break;
  case PE_I8: LOAD(int8_t, i, v); break;
  case PE_U64: LOAD(uint64_t, u, v); break;
  case PE_U32: LOAD(uint32_t, i, v); break;
  case PE_U16: LOAD(uint16_t, i, v); break;
  case PE_U8: LOAD(uint8_t, i, v); break;
  case PE_BOOL: LOAD(uint8_t, i, v != 0); break;
  case PE_F8_E4M3: LOAD(uint8_t, f, f8_e4m3_to_f32(v)); break;
  case PE_F8_E5M2: LOAD(uint8_t, f, pe_f16_to_f32((uint16_t)(v << 8))); break;
  case PE_F8_E8M0: LOAD(uint8_t, f, f8_e8m0_to_f32(v)); break;
  case PE_DTYPE_COUNT: break;
  }
}
#undef LOAD

void pe_tensor_block_load(pe_tensor_block *b, pe_tensor_kind kind, const uint8_t *p, pe_dtype dtype,
                          int64_t stride, int n) {
  load(b, 0, p, dtype, stride, n);
  pe_tensor_block_convert(b, pe_tensor_kind_of(dtype), kind, n);
}

#define STORE(T, expr)                                                                             \
  for (int i = 0; i < n; i++) {                                                                    \
    T v = (T)(expr);                                                                               \
    memcpy(p + i * stride * (int64_t)sizeof v, &v, sizeof v);                                      \
  }                                                                                                \
  break

void pe_tensor_block_store(const pe_tensor_block *b, uint8_t *p, pe_dtype dtype, int64_t stride,
                           int n) {
  switch (dtype) {
  case PE_F64: STORE(double, b->d[i]);
  case PE_F32: STORE(float, b->f[i]);
  case PE_F16: STORE(uint16_t, pe_f32_to_f16(b->f[i]));
  case PE_BF16: STORE(uint16_t, pe_f32_to_bf16(b->f[i]));
  case PE_I64:
  case PE_U64: STORE(uint64_t, b->u[i]);
  case PE_I32:
  case PE_U32: STORE(uint32_t, b->u[i]);
  case PE_I16:
  case PE_U16: STORE(uint16_t, b->u[i]);
  case PE_I8:
  case PE_U8: STORE(uint8_t, b->u[i]);
  case PE_BOOL: STORE(uint8_t, b->i[i] != 0);
  default: break; /* F8 is never computed */
  }
}
#undef STORE

#define CONVERT(from, to, expr)                                                                    \
  for (int i = 0; i < n; i++) b->to[i] = expr;                                                     \
  break
#define PAIR(from, to) (from * PE_TENSOR_KINDS + to)

void pe_tensor_block_convert(pe_tensor_block *b, pe_tensor_kind from, pe_tensor_kind to, int n) {
  if (from == to) return;
  pe_tensor_block s;
  memcpy(&s, b, (size_t)n * pe_tensor_kind_size(from));
  switch (PAIR(from, to)) {
  case PAIR(PE_TENSOR_F32, PE_TENSOR_F64): CONVERT(f, d, s.f[i]);
  case PAIR(PE_TENSOR_F32, PE_TENSOR_I64): CONVERT(f, i, i64_of(s.f[i]));
  case PAIR(PE_TENSOR_F32, PE_TENSOR_U64): CONVERT(f, u, u64_of(s.f[i]));
  case PAIR(PE_TENSOR_F64, PE_TENSOR_F32): CONVERT(d, f, (float)s.d[i]);
  case PAIR(PE_TENSOR_F64, PE_TENSOR_I64): CONVERT(d, i, i64_of(s.d[i]));
  case PAIR(PE_TENSOR_F64, PE_TENSOR_U64): CONVERT(d, u, u64_of(s.d[i]));
  case PAIR(PE_TENSOR_I64, PE_TENSOR_F32): CONVERT(i, f, (float)s.i[i]);
  case PAIR(PE_TENSOR_I64, PE_TENSOR_F64): CONVERT(i, d, (double)s.i[i]);
  case PAIR(PE_TENSOR_I64, PE_TENSOR_U64): CONVERT(i, u, s.i[i] < 0 ? 0 : (uint64_t)s.i[i]);
  case PAIR(PE_TENSOR_U64, PE_TENSOR_F32): CONVERT(u, f, (float)s.u[i]);
  case PAIR(PE_TENSOR_U64, PE_TENSOR_F64): CONVERT(u, d, (double)s.u[i]);
  case PAIR(PE_TENSOR_U64, PE_TENSOR_I64):
    CONVERT(u, i, s.u[i] > INT64_MAX ? INT64_MAX : (int64_t)s.u[i]);
  default: break;
  }
}
#undef CONVERT
#undef PAIR

void pe_tensor_block_saturate(pe_tensor_block *b, pe_dtype dtype, int n) {
  if (pe_tensor_kind_of(dtype) != PE_TENSOR_I64 || dtype == PE_I64 || dtype == PE_BOOL) return;
  int64_t low;
  uint64_t high;
  pe_dtype_range(dtype, &low, &high);
  for (int i = 0; i < n; i++)
    b->i[i] = b->i[i] < low ? low : b->i[i] > (int64_t)high ? (int64_t)high : b->i[i];
}

void pe_tensor_block_truth(pe_tensor_block *b, pe_tensor_kind kind, int n) {
  if (kind == PE_TENSOR_F32) pe_tensor_block_convert(b, kind, PE_TENSOR_F64, n);
  if (kind == PE_TENSOR_I64 || kind == PE_TENSOR_U64)
    for (int i = 0; i < n; i++) b->i[i] = b->i[i] != 0;
  else
    for (int i = 0; i < n; i++) b->i[i] = b->d[i] != 0;
}

/* ---- walking --------------------------------------------------------------------------------- */

/* Drops dimensions of 1 and merges adjacent dimensions that are contiguous, so that inner runs are
 * long. */
void pe_tensor_reader_open(pe_tensor_reader *r, const pe_tensor *t, int rank,
                           const int64_t *shape) {
  *r = (pe_tensor_reader){.base = pe_tensor_data(t), .dtype = t->dtype};
  for (int i = 0; i < rank; i++) {
    int own = i - (rank - t->rank);
    int64_t stride = own >= 0 && t->shape[own] != 1 ? t->strides[own] : 0;
    if (shape[i] == 1) continue;
    if (r->rank && r->strides[r->rank - 1] == stride * shape[i])
      r->shape[r->rank - 1] *= shape[i], r->strides[r->rank - 1] = stride;
    else
      r->shape[r->rank] = shape[i], r->strides[r->rank++] = stride;
  }
  if (!r->rank) r->shape[r->rank++] = 1;
}

static void reader_carry(pe_tensor_reader *r) {
  for (int d = r->rank - 1; d > 0 && r->index[d] == r->shape[d]; d--) {
    r->offset += r->strides[d - 1] - r->strides[d] * r->shape[d];
    r->index[d] = 0, r->index[d - 1]++;
  }
}

void pe_tensor_reader_next(pe_tensor_reader *r, pe_tensor_block *b, pe_tensor_kind kind, int n) {
  int last = r->rank - 1, size = (int)pe_dtype_size(r->dtype);
  for (int done = 0; done < n;) {
    int64_t left = r->shape[last] - r->index[last];
    int run = left < n - done ? (int)left : n - done;
    load(b, done, r->base + r->offset * size, r->dtype, r->strides[last], run);
    r->index[last] += run, r->offset += run * r->strides[last], done += run;
    reader_carry(r);
  }
  pe_tensor_block_convert(b, pe_tensor_kind_of(r->dtype), kind, n);
}

bool pe_tensor_rows_next(pe_tensor_rows *r) {
  for (int d = r->t->rank - 1; d >= 0; d--) {
    if (d == r->axis) continue;
    r->offset += r->t->strides[d];
    if (++r->index[d] < r->t->shape[d]) return true;
    r->offset -= r->t->strides[d] * r->t->shape[d];
    r->index[d] = 0;
  }
  return false;
}
