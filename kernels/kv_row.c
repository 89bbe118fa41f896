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

typedef uint16_t v8h __attribute__((vector_size(16)));

/* Eight numbers of eight rows: number i of all rows becomes line i. */
static void put_8x8(const uint8_t *rows, int64_t bytes, uint16_t *lines, int64_t step) {
  v8h v[8], t[8];
  for (int i = 0; i < 8; i++) memcpy(&v[i], rows + i * bytes, sizeof v[i]);
  for (int round = 0; round < 3; round++) { /* rows i and i + 4, number by number */
    for (int i = 0; i < 4; i++) {
      t[2 * i] = __builtin_shufflevector(v[i], v[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      t[2 * i + 1] = __builtin_shufflevector(v[i], v[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    memcpy(v, t, sizeof v);
  }
  for (int i = 0; i < 8; i++) memcpy(lines + i * step, &v[i], sizeof v[i]);
}

void pe_kv_put_keys(const pe_cache_args *a, uint8_t *head, int32_t from, int32_t n,
                    const uint8_t *rows) {
  const int32_t panel = pe_kv_panel(a), bytes = pe_kv_row_bytes((pe_kv_type)a->type, a->key);
  if (!panel) {
    memcpy(head + (int64_t)from * bytes, rows, (size_t)n * (size_t)bytes);
    return;
  }
  /* Eight tokens at a time where lines have room for them: registers instead of single numbers. */
  for (int32_t t = from, many; t < from + n; t += many, rows += many * bytes) {
    uint16_t *x = across(a, head, panel, t);
    many = t % 8 == 0 && from + n - t >= 8 && panel % 8 == 0 ? 8 : 1;
    int32_t i = 0;
    for (; many == 8 && i + 8 <= a->key; i += 8)
      put_8x8(rows + 2 * i, bytes, x + (int64_t)i * panel, panel);
    for (; i < a->key; i++)
      for (int32_t k = 0; k < many; k++)
        memcpy(x + (int64_t)i * panel + k, rows + k * bytes + 2 * i, 2);
  }
}
