/* kv_row.c - how rows of a cache are stored: the types of op.h as layouts of quant.h. */
#include "kernels/cpu/cpu.h"

static const pe_quant_kind kinds[] = {[PE_KV_F32] = PE_QUANT_NONE,
                                      [PE_KV_F16] = PE_QUANT_NONE,
                                      [PE_KV_Q8] = PE_QUANT_Q8_0,
                                      [PE_KV_Q4] = PE_QUANT_Q4_1};

int64_t pe_cpu_kv_floats(pe_kv_type type, int64_t width) {
  int64_t group = pe_quant_block_values(kinds[type]);
  return (width + group - 1) / group * group;
}

int32_t pe_kv_row_bytes(pe_kv_type type, int32_t width) {
  if (type == PE_KV_F32 || type == PE_KV_F16) return width * (type == PE_KV_F32 ? 4 : 2);
  return (int32_t)(pe_cpu_kv_floats(type, width) / pe_quant_block_values(kinds[type])) *
         pe_quant_block_bytes(kinds[type]);
}

void pe_cpu_kv_encode(const pe_prim *prim, pe_kv_type type, const float *x, int64_t width,
                      uint8_t *out) {
  if (type == PE_KV_F32)
    memcpy(out, x, (size_t)width * sizeof *x);
  else
    prim->encode(kinds[type], x, width, out);
}

void pe_cpu_kv_decode(const pe_prim *prim, pe_kv_type type, const uint8_t *data, int64_t rows,
                      int64_t width, float *out) {
  pe_quant_matrix m = {.quant = {.kind = kinds[type]},
                       .dtype = type == PE_KV_F32 ? PE_F32 : PE_F16,
                       .rows = 1,
                       .data = data,
                       .global = 1};
  m.cols = rows * pe_cpu_kv_floats(type, width); /* rows follow each other: one long row */
  m.row_bytes = (uint64_t)(rows * pe_kv_row_bytes(type, (int32_t)width));
  prim->decode(&m, 0, out);
}
