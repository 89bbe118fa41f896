/* quant.c - see quant.h: the table of layouts, plain elements, and rows of any layout. */
#include "kernels/quant.h"

#include <math.h>
#include <string.h>

static const struct {
  const char *name;
  int values, bytes;
} layouts[] = {
#define PE_QUANT_ROW(id, name, values, bytes) {name, values, bytes},
    PE_QUANTS(PE_QUANT_ROW)
#undef PE_QUANT_ROW
};

const char *pe_quant_name(pe_quant_kind kind) { return layouts[kind].name; }
int pe_quant_block_values(pe_quant_kind kind) { return layouts[kind].values; }
int pe_quant_block_bytes(pe_quant_kind kind) { return layouts[kind].bytes; }

int pe_quant_find(const char *name, size_t len) {
  for (int i = 0; i < PE_QUANT_COUNT; i++)
    if (strlen(layouts[i].name) == len && !memcmp(layouts[i].name, name, len)) return i;
  return -1;
}

bool pe_quant_valid(const pe_quant *q) {
  switch (q->kind) {
  case PE_QUANT_AFFINE:
    return q->bits >= 2 && q->bits <= 8 && q->bits != 7 &&
           (q->group == 32 || q->group == 64 || q->group == 128) &&
           (q->scale_dtype == PE_F16 || q->scale_dtype == PE_BF16 || q->scale_dtype == PE_F32);
  case PE_QUANT_MXFP4:
  case PE_QUANT_NVFP4:
    return q->bits == 4 && q->group == layouts[q->kind].values && q->scale_dtype == PE_U8;
  case PE_QUANT_MXFP8:
    return q->bits == 8 && q->group == layouts[q->kind].values && q->scale_dtype == PE_U8;
  default: return q->kind >= 0 && q->kind < PE_QUANT_COUNT;
  }
}

/* Bytes of cols values, of which each `values` take `bytes`; 0: not a whole number, or overflow. */
static uint64_t whole(int64_t cols, int values, uint64_t bytes) {
  uint64_t out;
  if (cols < 0 || cols % values) return 0;
  return __builtin_mul_overflow((uint64_t)cols / (uint64_t)values, bytes, &out) ? 0 : out;
}

uint64_t pe_quant_row_bytes(const pe_quant *q, pe_dtype dtype, int64_t cols) {
  if (q->kind == PE_QUANT_NONE) return whole(cols, 1, pe_dtype_size(dtype));
  if (layouts[q->kind].bytes)
    return whole(cols, layouts[q->kind].values, (uint64_t)layouts[q->kind].bytes);
  /* groups have at least 16 values, so they fill whole bytes */
  return whole(cols, q->group, (uint64_t)(q->group * q->bits / 8));
}

uint64_t pe_quant_scale_bytes(const pe_quant *q, int64_t cols) {
  return q->group ? whole(cols, q->group, pe_dtype_size(q->scale_dtype)) : 0;
}

/* ---- plain elements -------------------------------------------------------------------------- */

float pe_e4m3_to_f32(uint8_t code) {
  int e = code >> 3 & 15, m = code & 7;
  float f = e == 15 && m == 7 ? NAN : e ? ldexpf((float)(8 + m), e - 10) : (float)m * 0x1p-9f;
  return code & 0x80 ? -f : f;
}

/* E5M2 is the upper byte of a half. */
float pe_e5m2_to_f32(uint8_t code) { return pe_f16_to_f32((uint16_t)(code << 8)); }

float pe_e8m0_to_f32(uint8_t code) { return code == 255 ? NAN : ldexpf(1, code - 127); }

#define LOAD(T)                                                                                    \
  T v;                                                                                             \
  memcpy(&v, p, sizeof v);                                                                         \
  return (float)v
static float load_f64(const uint8_t *p) { LOAD(double); }
static float load_f32(const uint8_t *p) { LOAD(float); }
static float load_i64(const uint8_t *p) { LOAD(int64_t); }
static float load_i32(const uint8_t *p) { LOAD(int32_t); }
static float load_i16(const uint8_t *p) { LOAD(int16_t); }
static float load_u64(const uint8_t *p) { LOAD(uint64_t); }
static float load_u32(const uint8_t *p) { LOAD(uint32_t); }
static float load_u16(const uint8_t *p) { LOAD(uint16_t); }
#undef LOAD
static float load_i8(const uint8_t *p) { return (float)(int8_t)*p; }
static float load_u8(const uint8_t *p) { return (float)*p; }
static float load_bool(const uint8_t *p) { return *p ? 1.0f : 0.0f; }
static float load_f16(const uint8_t *p) { return pe_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }
static float load_bf16(const uint8_t *p) { return pe_bf16_to_f32((uint16_t)(p[0] | p[1] << 8)); }
static float load_e4m3(const uint8_t *p) { return pe_e4m3_to_f32(*p); }
static float load_e5m2(const uint8_t *p) { return pe_e5m2_to_f32(*p); }
static float load_e8m0(const uint8_t *p) { return pe_e8m0_to_f32(*p); }

void pe_quant_plain(pe_dtype dtype, const uint8_t *data, int64_t count, float *out) {
  static float (*const load[PE_DTYPE_COUNT])(const uint8_t *) = {
      [PE_F64] = load_f64,     [PE_F32] = load_f32,      [PE_F16] = load_f16,
      [PE_BF16] = load_bf16,   [PE_I64] = load_i64,      [PE_I32] = load_i32,
      [PE_I16] = load_i16,     [PE_I8] = load_i8,        [PE_U64] = load_u64,
      [PE_U32] = load_u32,     [PE_U16] = load_u16,      [PE_U8] = load_u8,
      [PE_BOOL] = load_bool,   [PE_F8_E4M3] = load_e4m3, [PE_F8_E5M2] = load_e5m2,
      [PE_F8_E8M0] = load_e8m0};
  size_t size = pe_dtype_size(dtype);
  if (dtype == PE_F32)
    memcpy(out, data, (size_t)count * size);
  else
    for (int64_t i = 0; i < count; i++) out[i] = load[dtype](data + (size_t)i * size);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Whole blocks are decoded into out; a block of which only a part is wanted goes through a copy. */
static void block_row(pe_quant_kind kind, const uint8_t *data, int64_t from, int64_t count,
                      float *out) {
  float whole_block[PE_QUANT_MAX_BLOCK];
  int values = layouts[kind].values;
  while (count > 0) {
    int64_t skip = from % values, n = values - skip < count ? values - skip : count;
    const uint8_t *block = data + (uint64_t)(from / values) * (uint64_t)layouts[kind].bytes;
    if (n == values)
      pe_quant_block(kind, block, out);
    else {
      pe_quant_block(kind, block, whole_block);
      memcpy(out, whole_block + skip, (size_t)n * sizeof *out);
    }
    from += n, count -= n, out += n;
  }
}

void pe_quant_row(const pe_quant_matrix *m, int64_t row, int64_t from, int64_t count, float *out) {
  const uint8_t *data = m->data + (uint64_t)row * m->row_bytes;
  if (count <= 0) return;
  if (m->quant.kind == PE_QUANT_NONE)
    pe_quant_plain(m->dtype, data + (uint64_t)from * pe_dtype_size(m->dtype), count, out);
  else if (layouts[m->quant.kind].bytes)
    block_row(m->quant.kind, data, from, count, out);
  else
    pe_quant_mlx_row(m, row, from, count, out);
}

void pe_quant_rows(const pe_quant_matrix *m, int64_t from, int64_t count, float *out) {
  for (int64_t r = 0; r < count; r++) pe_quant_row(m, from + r, 0, m->cols, out + r * m->cols);
}
