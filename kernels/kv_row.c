/* kv_row.c - see kv_row.h. */
#include "kernels/kv_row.h"

#include <string.h>

static const struct {
  pe_quant_kind kind;
  pe_dtype dtype;
} types[PE_KV_TYPES] = {[PE_KV_F32] = {PE_QUANT_NONE, PE_F32},
                        [PE_KV_F16] = {PE_QUANT_NONE, PE_F16},
                        [PE_KV_Q8] = {PE_QUANT_Q8_0, PE_U8},
                        [PE_KV_Q4] = {PE_QUANT_Q4_1, PE_U8}};

pe_quant_kind pe_kv_row_kind(pe_kv_type type) { return types[type].kind; }
pe_dtype pe_kv_row_dtype(pe_kv_type type) { return types[type].dtype; }

int64_t pe_kv_row_values(pe_kv_type type, int64_t width) {
  int64_t group = pe_quant_block_values(types[type].kind);
  return (width + group - 1) / group * group;
}

int32_t pe_kv_row_bytes(pe_kv_type type, int32_t width) {
  const pe_quant_kind kind = types[type].kind;
  if (kind == PE_QUANT_NONE) return width * (int32_t)pe_dtype_size(types[type].dtype);
  int32_t group = pe_quant_block_values(kind);
  return (width + group - 1) / group * pe_quant_block_bytes(kind);
}

/* ---- keys ------------------------------------------------------------------------------------ */

int32_t pe_kv_panel(const pe_cache_args *a) {
  if (a->type != PE_KV_F16 || !a->value) return 0;
  return a->block < PE_KV_PANEL ? a->block : PE_KV_PANEL;
}

/* The first value of the key of token t; the next ones follow `panel` values apart. */
static uint16_t *across(const pe_cache_args *a, uint8_t *head, int32_t panel, int32_t t) {
  return (uint16_t *)(void *)head + (int64_t)(t / panel) * panel * a->key + t % panel;
}

void pe_kv_get_keys(const pe_cache_args *a, const uint8_t *head, int32_t from, int32_t n,
                    uint8_t *rows) {
  const int32_t panel = pe_kv_panel(a), bytes = pe_kv_row_bytes((pe_kv_type)a->type, a->key);
  if (!panel) {
    memcpy(rows, head + (int64_t)from * bytes, (size_t)n * (size_t)bytes);
    return;
  }
  for (int32_t t = from; t < from + n; t++, rows += bytes) {
    const uint16_t *x = across(a, (uint8_t *)(uintptr_t)head, panel, t);
    for (int32_t i = 0; i < a->key; i++) memcpy(rows + 2 * i, x + (int64_t)i * panel, 2);
  }
}

void pe_kv_put_keys(const pe_cache_args *a, uint8_t *head, int32_t from, int32_t n,
                    const uint8_t *rows) {
  const int32_t panel = pe_kv_panel(a), bytes = pe_kv_row_bytes((pe_kv_type)a->type, a->key);
  if (!panel) {
    memcpy(head + (int64_t)from * bytes, rows, (size_t)n * (size_t)bytes);
    return;
  }
  for (int32_t t = from; t < from + n; t++, rows += bytes) {
    uint16_t *x = across(a, head, panel, t);
    for (int32_t i = 0; i < a->key; i++) memcpy(x + (int64_t)i * panel, rows + 2 * i, 2);
  }
}
