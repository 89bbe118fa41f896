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
