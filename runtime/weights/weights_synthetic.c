/* weights_synthetic.c - weights without a file: names, shapes and layouts of a model, random
 * values. */
#include <string.h>

#include "runtime/machine.h"
#include "runtime/weights/weights.h"

/* splitmix64 */
static uint64_t next(uint64_t *s) {
  uint64_t x = *s += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static void fill(uint8_t *p, uint64_t n, uint64_t mask, uint64_t *seed) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t x = next(seed) & mask;
    memcpy(p + i, &x, 8);
  }
  for (; i < n; i++) p[i] = (uint8_t)(next(seed) & mask);
}

/* Fills scales with `value`. */
static void fill_scales(uint8_t *p, uint64_t count, pe_dtype dtype, float value) {
  size_t size = pe_dtype_size(dtype);
  uint16_t half = dtype == PE_BF16 ? pe_f32_to_bf16(value) : pe_f32_to_f16(value);
  for (uint64_t i = 0; i < count; i++)
    memcpy(p + i * size, dtype == PE_F32 ? (const void *)&value : (const void *)&half, size);
}

/* Matrices: uniform between -1/32 and 1/32, about the size of trained weights, so that activations
 * neither vanish nor overflow. Vectors are mostly norms: 1. */
static void fill_plain(const pe_weight *w, uint8_t *p, uint64_t *seed) {
  size_t size = pe_dtype_size(w->dtype);
  uint64_t n = w->data.bytes / size;
  for (uint64_t i = 0; i < n; i++) {
    float v = w->rank == 1 ? 1.f : (float)(int64_t)(next(seed) >> 40) * 0x1p-28f - 0.03125f;
    uint16_t half = w->dtype == PE_BF16 ? pe_f32_to_bf16(v) : pe_f32_to_f16(v);
    memcpy(p + i * size, w->dtype == PE_F32 ? (const void *)&v : (const void *)&half, size);
  }
}

static void fill_weight(const pe_weight *w, uint64_t *seed) {
  uint8_t *data = w->data.buf->data + w->data.at;
  switch (w->quant.kind) {
  case PE_QUANT_NONE: fill_plain(w, data, seed); return;
  case PE_QUANT_AFFINE: {
    float scale = 0.06f / (float)(1 << w->quant.bits);
    uint64_t n = w->scales.bytes / pe_dtype_size(w->quant.scale_dtype);
    fill(data, w->data.bytes, UINT64_MAX, seed);
    fill_scales(w->scales.buf->data + w->scales.at, n, w->quant.scale_dtype, scale);
    fill_scales(w->biases.buf->data + w->biases.at, n, w->quant.scale_dtype, -0.03f);
    return;
  }
  case PE_QUANT_MXFP4:
  case PE_QUANT_MXFP8:
  case PE_QUANT_NVFP4:
    /* MXFP8: the mask leaves out the NaN of E4M3. */
    fill(data, w->data.bytes, w->quant.kind == PE_QUANT_MXFP8 ? 0xb7b7b7b7b7b7b7b7u : UINT64_MAX,
         seed);
    memset(w->scales.buf->data + w->scales.at, w->quant.kind == PE_QUANT_NVFP4 ? 0x08 : 0x78,
           w->scales.bytes);
    return;
  default:
    /* GGUF blocks contain half-precision scales: this mask keeps their exponents small. */
    fill(data, w->data.bytes, 0x2323232323232323u, seed);
  }
}

/* Reserves `bytes` at *at and moves *at to the next multiple of 64, a cache line. */
static void place(pe_weight_part *p, uint64_t bytes, uint64_t *at) {
  p->at = *at, p->bytes = bytes;
  *at = (*at + bytes + 63) & ~(uint64_t)63;
}

static pe_status add(pe_weights *w, const pe_weight_shape *s, uint64_t *at, pe_error *err) {
  pe_weight x = {.dtype = s->quant.kind == PE_QUANT_NONE ? s->dtype : PE_U32,
                 .rank = s->rank,
                 .quant = s->quant};
  int64_t rows = 1, cols = s->rank ? s->shape[s->rank - 1] : 1;
  for (int i = 0; i < s->rank; i++) {
    x.shape[i] = s->shape[i];
    if (s->shape[i] < 1 || (i + 1 < s->rank && (rows *= s->shape[i]) > INT64_MAX >> 24))
      return pe_fail(err, PE_ESHAPE,
                     "%s: dimension %d must be at least 1 and not too large, got %lld", s->name,
                     i + 1, (long long)s->shape[i]);
  }
  uint64_t row = pe_quant_row_bytes(&s->quant, x.dtype, cols),
           scale = s->quant.kind == PE_QUANT_NONE ? 0 : pe_quant_scale_bytes(&s->quant, cols);
  if (!row)
    return pe_fail(err, PE_ESHAPE, "%s: rows of %lld cannot be stored as %s", s->name,
                   (long long)cols, pe_quant_name(s->quant.kind));
  place(&x.data, row * (uint64_t)rows, at);
  if (scale) place(&x.scales, scale * (uint64_t)rows, at);
  if (scale && s->quant.kind == PE_QUANT_AFFINE) place(&x.biases, scale * (uint64_t)rows, at);
  x.name = pe_weights_printf(w, "%s", s->name);
  if (!x.name.at) return pe_nomem(err, "weight name");
  pe_status rc = pe_weights_add(w, &x, err);
  if (!rc) w->list[w->count - 1].bytes = x.data.bytes + x.scales.bytes + x.biases.bytes;
  return rc;
}

/* Every byte will be written, so running out of memory would get the process killed. */
static pe_status check_room(uint64_t bytes, pe_error *err) {
  pe_machine m;
  pe_machine_read(&m);
  uint64_t room =
      m.memory_limit && m.memory_limit < m.memory_available ? m.memory_limit : m.memory_available;
  if (!room || bytes <= room) return PE_OK;
  return pe_fail(err, PE_ENOMEM,
                 "not enough memory: the weights need %.1f GiB, %.1f GiB are available",
                 (double)bytes * 0x1p-30, (double)room * 0x1p-30);
}

pe_status pe_weights_synthetic(const pe_weight_shape *list, size_t count, uint64_t seed,
                               pe_weights **out, pe_error *err) {
  pe_weights *w;
  uint64_t at = 0;
  pe_status rc = pe_weights_new("synthetic", &w, err);
  if (rc) return rc;
  for (size_t i = 0; !rc && i < count; i++) rc = add(w, &list[i], &at, err);
  if (!rc) rc = check_room(at, err);
  if (!rc) rc = pe_buffer_reserve(at, &w->made, err);
  for (size_t i = 0; !rc && i < w->count; i++) {
    pe_weight *x = &w->list[i];
    x->data.buf = w->made;
    if (x->scales.bytes) x->scales.buf = w->made;
    if (x->biases.bytes) x->biases.buf = w->made;
    fill_weight(x, &seed);
  }
  if (!rc) rc = pe_weights_index(w, err);
  if (rc)
    pe_weights_release(w);
  else
    *out = w;
  return rc;
}
