/* tensor_block.c - see tensor_block.h. */
#include "runtime/tensor/tensor_block.h"

#include <math.h>
#include <string.h>

/* ---- dtypes and kinds ---------------------------------------------------------------------------------- */

bool pe_dtype_is_f8(pe_dtype t) { return t == PE_F8_E4M3 || t == PE_F8_E5M2 || t == PE_F8_E8M0; }
bool pe_dtype_is_float(pe_dtype t) {
  return t == PE_F64 || t == PE_F32 || t == PE_F16 || t == PE_BF16;
}

pe_kind pe_kind_of(pe_dtype t) {
  if (t == PE_F64) return PE_KF64;
  if (pe_dtype_is_float(t) || pe_dtype_is_f8(t)) return PE_KF32;
  return t == PE_U64 ? PE_KU64 : PE_KI64;
}

size_t pe_kind_size(pe_kind k) { return k == PE_KF32 ? 4 : 8; }

void pe_dtype_range(pe_dtype t, int64_t *low, uint64_t *high) {
  bool is_signed = t == PE_I64 || t == PE_I32 || t == PE_I16 || t == PE_I8;
  int bits = t == PE_BOOL ? 1 : (int)pe_dtype_size(t) * 8;
  *high = UINT64_MAX >> (64 - bits + is_signed);
  *low = is_signed ? -(int64_t)*high - 1 : 0;
}

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

/* ---- load, store, convert ------------------------------------------------------------------------------ */

/* Elements through memcpy, as they need not be aligned; stride 1 is a loop of its own so that it can be
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

/* n elements behind the first `at` of the block, in the dtype's own kind. */
static void load(pe_block *b, int at, const uint8_t *p, pe_dtype dtype, int64_t stride, int n) {
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

void pe_block_load(pe_block *b, pe_kind kind, const uint8_t *p, pe_dtype dtype, int64_t stride,
                   int n) {
  load(b, 0, p, dtype, stride, n);
  pe_block_convert(b, pe_kind_of(dtype), kind, n);
}

#define STORE(T, expr)                                                                             \
  for (int i = 0; i < n; i++) {                                                                    \
    T v = (T)(expr);                                                                               \
    memcpy(p + i * stride * (int64_t)sizeof v, &v, sizeof v);                                      \
  }                                                                                                \
  break

void pe_block_store(const pe_block *b, uint8_t *p, pe_dtype dtype, int64_t stride, int n) {
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
  default: break; /* nothing computes F8 */
  }
}
#undef STORE

#define CONVERT(from, to, expr)                                                                    \
  for (int i = 0; i < n; i++) b->to[i] = expr;                                                     \
  break
#define PAIR(from, to) (from * PE_KIND_COUNT + to)

void pe_block_convert(pe_block *b, pe_kind from, pe_kind to, int n) {
  if (from == to) return;
  pe_block s;
  memcpy(&s, b, (size_t)n * pe_kind_size(from));
  switch (PAIR(from, to)) {
  case PAIR(PE_KF32, PE_KF64): CONVERT(f, d, s.f[i]);
  case PAIR(PE_KF32, PE_KI64): CONVERT(f, i, i64_of(s.f[i]));
  case PAIR(PE_KF32, PE_KU64): CONVERT(f, u, u64_of(s.f[i]));
  case PAIR(PE_KF64, PE_KF32): CONVERT(d, f, (float)s.d[i]);
  case PAIR(PE_KF64, PE_KI64): CONVERT(d, i, i64_of(s.d[i]));
  case PAIR(PE_KF64, PE_KU64): CONVERT(d, u, u64_of(s.d[i]));
  case PAIR(PE_KI64, PE_KF32): CONVERT(i, f, (float)s.i[i]);
  case PAIR(PE_KI64, PE_KF64): CONVERT(i, d, (double)s.i[i]);
  case PAIR(PE_KI64, PE_KU64): CONVERT(i, u, s.i[i] < 0 ? 0 : (uint64_t)s.i[i]);
  case PAIR(PE_KU64, PE_KF32): CONVERT(u, f, (float)s.u[i]);
  case PAIR(PE_KU64, PE_KF64): CONVERT(u, d, (double)s.u[i]);
  case PAIR(PE_KU64, PE_KI64): CONVERT(u, i, s.u[i] > INT64_MAX ? INT64_MAX : (int64_t)s.u[i]);
  default: break;
  }
}
#undef CONVERT
#undef PAIR

void pe_block_saturate(pe_block *b, pe_dtype dtype, int n) {
  if (pe_kind_of(dtype) != PE_KI64 || dtype == PE_I64 || dtype == PE_BOOL) return;
  int64_t low;
  uint64_t high;
  pe_dtype_range(dtype, &low, &high);
  for (int i = 0; i < n; i++)
    b->i[i] = b->i[i] < low ? low : b->i[i] > (int64_t)high ? (int64_t)high : b->i[i];
}

void pe_block_truth(pe_block *b, pe_kind kind, int n) {
  if (kind == PE_KF32) pe_block_convert(b, kind, PE_KF64, n);
  if (kind == PE_KI64 || kind == PE_KU64)
    for (int i = 0; i < n; i++) b->i[i] = b->i[i] != 0;
  else
    for (int i = 0; i < n; i++) b->i[i] = b->d[i] != 0;
}

/* ---- walking ------------------------------------------------------------------------------------------- */

uint8_t *pe_tensor_at(const pe_tensor *t, int64_t element_offset) {
  return t->buffer->data + ((int64_t)t->offset + element_offset * (int64_t)pe_dtype_size(t->dtype));
}

/* Dimensions of 1 are dropped and neighbours that continue one another become one, so that inner runs are
 * long. */
void pe_reader_open(pe_reader *r, const pe_tensor *t, int rank, const int64_t *shape) {
  *r = (pe_reader){.base = pe_tensor_data(t), .dtype = t->dtype};
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

static void reader_carry(pe_reader *r) {
  for (int d = r->rank - 1; d > 0 && r->index[d] == r->shape[d]; d--) {
    r->offset += r->strides[d - 1] - r->strides[d] * r->shape[d];
    r->index[d] = 0, r->index[d - 1]++;
  }
}

void pe_reader_next(pe_reader *r, pe_block *b, pe_kind kind, int n) {
  int last = r->rank - 1, size = (int)pe_dtype_size(r->dtype);
  for (int done = 0; done < n;) {
    int64_t left = r->shape[last] - r->index[last];
    int run = left < n - done ? (int)left : n - done;
    load(b, done, r->base + r->offset * size, r->dtype, r->strides[last], run);
    r->index[last] += run, r->offset += run * r->strides[last], done += run;
    reader_carry(r);
  }
  pe_block_convert(b, pe_kind_of(r->dtype), kind, n);
}

bool pe_rows_next(pe_rows *r) {
  for (int d = r->t->rank - 1; d >= 0; d--) {
    if (d == r->axis) continue;
    r->offset += r->t->strides[d];
    if (++r->index[d] < r->t->shape[d]) return true;
    r->offset -= r->t->strides[d] * r->t->shape[d];
    r->index[d] = 0;
  }
  return false;
}

/* ---- checks that many operations share ----------------------------------------------------------------- */

pe_status pe_tensor_broadcast(const char *what, int rank_a, const int64_t *a, int rank_b,
                              const int64_t *b, int *rank, int64_t *shape, pe_error *err) {
  int n = rank_a > rank_b ? rank_a : rank_b;
  int64_t common[PE_TENSOR_RANK]; /* `shape` may be one of the two */
  for (int i = 0; i < n; i++) {
    int64_t x = i < n - rank_a ? 1 : a[i - (n - rank_a)],
            y = i < n - rank_b ? 1 : b[i - (n - rank_b)];
    if (x != y && x != 1 && y != 1) {
      char s[PE_SHAPE_TEXT], t[PE_SHAPE_TEXT];
      return pe_fail(err, PE_ESHAPE,
                     "%s: shapes %s and %s do not broadcast (axis %d: %lld and %lld)", what,
                     pe_shape_text(rank_a, a, s), pe_shape_text(rank_b, b, t), i + 1, (long long)x,
                     (long long)y);
    }
    common[i] = x == 1 ? y : x;
  }
  memcpy(shape, common, (size_t)n * sizeof *shape);
  *rank = n;
  return PE_OK;
}

pe_status pe_tensor_axis(const char *what, const pe_tensor *t, int axis, pe_error *err) {
  if (axis >= 0 && axis < t->rank) return PE_OK;
  return pe_fail(err, PE_EARG, "%s: axis %d of a tensor of rank %d", what, axis + 1, t->rank);
}

pe_status pe_tensor_no_f8(const char *what, const pe_tensor *t, pe_error *err) {
  if (!pe_dtype_is_f8(t->dtype)) return PE_OK;
  return pe_fail(err, PE_EUNSUPPORTED, "%s: %s has no arithmetic, cast it first", what,
                 pe_dtype_name(t->dtype));
}
