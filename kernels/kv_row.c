/* kv_row.c - see kv_row.h. */
#include "kernels/kv_row.h"

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
