/* int16_help.h - random quantized matrices of every kind that can be packed, and their packs. */
#ifndef INT16_HELP_H
#define INT16_HELP_H

#include "check.h"
#include "guard.h"
#include "kernels/cpu/int16.h"

static uint32_t help_state = 1;
static inline uint32_t help_random(void) {
  help_state ^= help_state << 13, help_state ^= help_state >> 17, help_state ^= help_state << 5;
  return help_state;
}
static inline float help_uniform(void) { /* -1 to 1 */
  return (float)(int32_t)help_random() * 0x1p-31f;
}

/* Every combination that pe_pack_supported accepts; returns their number. */
static inline int help_kinds(pe_quant *out) {
  static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
  static const pe_dtype types[] = {PE_F16, PE_BF16, PE_F32};
  int n = 0;
  for (int b = 0; b < 6; b++)
    for (int g = 0; g < 3; g++)
      for (int t = 0; t < 3; t++)
        out[n++] = (pe_quant){PE_QUANT_AFFINE, bits[b], groups[g], types[t]};
  out[n++] = (pe_quant){PE_QUANT_MXFP4, 4, 32, PE_U8};
  out[n++] = (pe_quant){PE_QUANT_NVFP4, 4, 16, PE_U8};
  for (int k = PE_QUANT_Q4_0; k < PE_QUANT_COUNT; k++)
    out[n++] = (pe_quant){.kind = (pe_quant_kind)k};
  return n;
}
enum { HELP_KINDS = 80 };

static inline int help_unit(const pe_quant *q) {
  return q->group ? q->group : pe_quant_block_values(q->kind);
}

typedef struct help_matrix {
  pe_quant_matrix m;
  pe_pack pack;
  uint8_t *bytes;
} help_matrix;

/* Where a block has its halves; -1: nowhere. */
static inline void help_halves(pe_quant_kind kind, int *first, int *second) {
  *first = 0, *second = -1;
  switch (kind) {
  case PE_QUANT_Q4_1:
  case PE_QUANT_Q5_1:
  case PE_QUANT_Q4_K:
  case PE_QUANT_Q5_K: *second = 2; break;
  case PE_QUANT_Q2_K: *first = 80, *second = 82; break;
  case PE_QUANT_Q3_K: *first = 108; break;
  case PE_QUANT_Q6_K: *first = 208; break;
  case PE_QUANT_GGUF_MXFP4: *first = -1; break;
  default: break;
  }
}

static inline void help_put(uint8_t *p, pe_dtype type, float f) {
  uint16_t h = type == PE_F16 ? pe_f32_to_f16(f) : pe_f32_to_bf16(f);
  if (type == PE_F32)
    memcpy(p, &f, 4);
  else
    memcpy(p, &h, 2);
}

/* Scales of ordinary size instead of random bytes. */
static inline void help_tame(pe_quant_matrix *m, uint8_t *data, uint8_t *scales,
                             uint64_t scales_len) {
  const int values = pe_quant_block_values(m->quant.kind);
  const int bytes = pe_quant_block_bytes(m->quant.kind),
            size = (int)pe_dtype_size(m->quant.scale_dtype);
  int first, second;
  help_halves(m->quant.kind, &first, &second);
  if (m->quant.kind == PE_QUANT_AFFINE) {
    for (uint64_t i = 0; i < 2 * scales_len; i += (uint64_t)size)
      help_put(scales + i, m->quant.scale_dtype, help_uniform() * 0.1f);
  } else if (!bytes) {
    for (uint64_t i = 0; i < scales_len; i++) scales[i] = (uint8_t)(60 + help_random() % 60);
  } else {
    for (int64_t r = 0; r < m->rows; r++)
      for (int64_t b = 0; b < m->cols / values; b++) {
        uint8_t *block = data + (uint64_t)r * m->row_bytes + (uint64_t)b * (uint64_t)bytes;
        if (first < 0) block[0] = (uint8_t)(110 + help_random() % 20);
        if (first >= 0) help_put(block + first, PE_F16, help_uniform() * 0.1f);
        if (second >= 0) help_put(block + second, PE_F16, help_uniform() * 0.1f);
      }
  }
}

/* A matrix of random bytes; tame: with ordinary scales. Rows are `gap` bytes apart. Allocations end
 * with the data. */
static inline help_matrix help_open(pe_quant q, int64_t rows, int64_t cols, uint64_t gap,
                                    bool tame) {
  help_matrix h = {.m = {.quant = q, .rows = rows, .cols = cols, .global = 0.37f}};
  pe_quant_matrix *m = &h.m;
  m->row_bytes = pe_quant_row_bytes(&q, PE_U8, cols) + gap;
  m->scale_bytes = pe_quant_scale_bytes(&q, cols);
  const uint64_t len = (uint64_t)rows * m->row_bytes - gap;
  const uint64_t scales = (uint64_t)rows * m->scale_bytes;
  uint8_t *at = h.bytes = guard_new(len + 2 * scales + 1, 1); /* unaligned */
  for (uint64_t i = 0; i < len + 2 * scales; i++) at[i] = (uint8_t)(help_random() >> 11);
  if (tame) help_tame(m, at + 2 * scales, at, scales);
  m->scales = at, m->biases = at + scales, m->data = at + 2 * scales;
  CHECK(pe_pack_supported(m));
  pe_pack_describe(m, &h.pack);
  CHECK_INT((uint64_t)pe_pack_panels(&h.pack) * h.pack.panel_bytes, pe_pack_bytes(m));
  h.pack.data = guard_new(pe_pack_bytes(m), 64);
  memset(h.pack.data, 0xa5, pe_pack_bytes(m));
  int64_t panels = pe_pack_panels(&h.pack), half = panels / 2;
  pe_pack_fill(&h.pack, m, half, panels);
  pe_pack_fill(&h.pack, m, 0, half);
  return h;
}

static inline void help_close(help_matrix *h) { guard_free(h->bytes), guard_free(h->pack.data); }

#endif
