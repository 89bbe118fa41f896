/* tensor_shape.c - dtypes, shapes and the checks that operations share. Needs no other file of the
 * folder, so that all of them can use it. */
#include "runtime/tensor/tensor_block.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- dtypes and numbers ---------------------------------------------------------------------- */

bool pe_dtype_is_f8(pe_dtype t) { return t == PE_F8_E4M3 || t == PE_F8_E5M2 || t == PE_F8_E8M0; }
bool pe_dtype_is_float(pe_dtype t) {
  return t == PE_F64 || t == PE_F32 || t == PE_F16 || t == PE_BF16;
}

static bool is_signed(pe_dtype t) {
  return t == PE_I64 || t == PE_I32 || t == PE_I16 || t == PE_I8;
}

void pe_dtype_range(pe_dtype t, int64_t *low, uint64_t *high) {
  int bits = t == PE_BOOL ? 1 : (int)pe_dtype_size(t) * 8;
  *high = UINT64_MAX >> (64 - bits + is_signed(t));
  *low = is_signed(t) ? -(int64_t)*high - 1 : 0;
}

static pe_dtype signed_of(size_t bytes) {
  return bytes <= 1 ? PE_I8 : bytes == 2 ? PE_I16 : bytes == 4 ? PE_I32 : PE_I64;
}

pe_dtype pe_tensor_promote(pe_dtype a, pe_dtype b) {
  if (a == b) return a;
  bool fa = pe_dtype_is_float(a), fb = pe_dtype_is_float(b);
  size_t na = pe_dtype_size(a), nb = pe_dtype_size(b);
  if (fa && fb) return na == nb ? PE_F32 : na > nb ? a : b;
  if (fa || fb) return fa ? a : b;
  if (a == PE_BOOL || b == PE_BOOL) return a == PE_BOOL ? b : a;
  if (is_signed(a) == is_signed(b)) return na > nb ? a : b;
  size_t s = is_signed(a) ? na : nb, u = is_signed(a) ? nb : na;
  return signed_of(s > u ? s : 2 * u);
}

double pe_number_as_float(pe_number n) {
  return n.kind == PE_NUMBER_FLOAT ? n.f : n.kind == PE_NUMBER_UINT ? (double)n.u : (double)n.i;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

char *pe_shape_text(int rank, const int64_t *shape, char *text) {
  size_t at = 1;
  text[0] = '[';
  for (int i = 0; i < rank; i++)
    at += (size_t)snprintf(text + at, PE_SHAPE_TEXT - at, i ? ", %" PRId64 : "%" PRId64, shape[i]);
  snprintf(text + at, PE_SHAPE_TEXT - at, "]");
  return text;
}

int64_t pe_tensor_size(const pe_tensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->rank; i++) n *= t->shape[i];
  return n;
}

uint64_t pe_tensor_bytes(const pe_tensor *t) {
  return (uint64_t)pe_tensor_size(t) * pe_dtype_size(t->dtype);
}

bool pe_tensor_is_contiguous(const pe_tensor *t) {
  int64_t stride = 1;
  for (int i = t->rank - 1; i >= 0; i--) {
    if (t->shape[i] == 0) return true;
    if (t->shape[i] != 1 && t->strides[i] != stride) return false;
    stride *= t->shape[i];
  }
  return true;
}

const uint8_t *pe_tensor_data(const pe_tensor *t) { return t->buffer->data + t->offset; }

uint8_t *pe_tensor_at(const pe_tensor *t, int64_t element_offset) {
  return t->buffer->data + ((int64_t)t->offset + element_offset * (int64_t)pe_dtype_size(t->dtype));
}

/* ---- checks ---------------------------------------------------------------------------------- */

pe_status pe_tensor_broadcast(const char *what, int rank_a, const int64_t *a, int rank_b,
                              const int64_t *b, int *rank, int64_t *shape, pe_error *err) {
  int n = rank_a > rank_b ? rank_a : rank_b;
  int64_t common[PE_TENSOR_RANK];
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
  return pe_fail(err, PE_EARG, "%s: there is no axis %d, the tensor has rank %d", what, axis + 1,
                 t->rank);
}

pe_status pe_tensor_no_f8(const char *what, const pe_tensor *t, pe_error *err) {
  if (!pe_dtype_is_f8(t->dtype)) return PE_OK;
  return pe_fail(err, PE_EUNSUPPORTED, "%s: %s has no arithmetic, cast it first", what,
                 pe_dtype_name(t->dtype));
}
