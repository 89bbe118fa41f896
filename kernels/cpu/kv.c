/* kv.c - rows of the KV cache, written and read by the CPU; see kernels/kv_row.h. */
#include "kernels/cpu/cpu.h"

void pe_cpu_kv_encode(const pe_prim *prim, pe_kv_type type, const float *x, int64_t width,
                      uint8_t *out) {
  if (type == PE_KV_F32)
    memcpy(out, x, (size_t)width * sizeof *x);
  else
    prim->encode(pe_kv_row_kind(type), x, width, out);
}

void pe_cpu_kv_decode(const pe_prim *prim, pe_kv_type type, const uint8_t *data, int64_t rows,
                      int64_t width, float *out) {
  pe_quant_matrix m = {.quant = {.kind = pe_kv_row_kind(type)},
                       .dtype = pe_kv_row_dtype(type),
                       .rows = 1,
                       .data = data,
                       .global = 1};
  m.cols = rows * pe_kv_row_values(type, width); /* rows are adjacent: one long row */
  m.row_bytes = (uint64_t)(rows * pe_kv_row_bytes(type, (int32_t)width));
  prim->decode(&m, 0, out);
}

/* ---- heads and rows -------------------------------------------------------------------------- */

static int32_t width_of(const pe_cache_args *a, int which) {
  return which == PE_CPU_VALUES ? a->value : a->key;
}

uint8_t *pe_cpu_kv_block(const pe_cpu_kv *kv, int which, int64_t t) {
  const pe_cache_args *a = kv->args;
  const int64_t bytes = pe_kv_row_bytes((pe_kv_type)a->type, width_of(a, which));
  return kv->call->cache[which] + kv->table[t / a->block] * kv->call->cache_step +
         kv->head * a->block * bytes;
}

int64_t pe_cpu_kv_rows(const pe_cpu_kv *kv, int which, int64_t t, int64_t most, float *room,
                       const float **lines, int64_t *step) {
  const pe_cache_args *a = kv->args;
  const pe_kv_type type = (pe_kv_type)a->type;
  const int32_t width = width_of(a, which), bytes = pe_kv_row_bytes(type, width);
  const int64_t within = t % a->block;
  const uint8_t *block = pe_cpu_kv_block(kv, which, t), *rows = block + within * bytes;
  int64_t n = pe_cpu_least(most, a->block - within);
  if (type == PE_KV_F32) {
    *lines = (const float *)(const void *)rows, *step = width;
    return n;
  }
  n = pe_cpu_least(n, PE_CPU_KV_ROWS);
  *lines = room, *step = pe_kv_row_values(type, width);
  if (which == PE_CPU_KEYS && pe_kv_panel(a)) {
    uint8_t *copy = (uint8_t *)(void *)(room + PE_CPU_KV_ROWS * *step);
    pe_kv_get_keys(a, block, (int32_t)within, (int32_t)n, copy);
    rows = copy;
  }
  pe_cpu_kv_decode(kv->call->prim, type, rows, n, width, room);
  return n;
}

int64_t pe_cpu_kv_room(const pe_cache_args *a) {
  if (a->type == PE_KV_F32) return 0;
  int64_t width = pe_kv_row_values((pe_kv_type)a->type, a->key > a->value ? a->key : a->value);
  return PE_CPU_KV_ROWS * (width + (pe_kv_panel(a) ? (a->key + 1) / 2 : 0));
}
