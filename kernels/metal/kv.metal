// kv.metal - rows of the KV cache as kernels/kv_row.h stores them; the constant KV is their type.
#ifndef PE_METAL_KV
#define PE_METAL_KV

#include "kernels/metal/weight.metal"

enum { KV_GROUP = PE_QUANT_Q8_0_VALUES };  // values that share a scale

METAL_FUNC uint kv_row_bytes(uint width) {
  const uint groups = (width + KV_GROUP - 1u) / KV_GROUP;
  if (KV == PE_KV_F32) return 4u * width;
  if (KV == PE_KV_F16) return 2u * width;
  return groups * (KV == PE_KV_Q8 ? PE_QUANT_Q8_0_BYTES : PE_QUANT_Q4_1_BYTES);
}

// The tokens of a panel of keys; 0: keys are rows.
METAL_FUNC uint kv_panel(uint value, uint block) {
  return KV == PE_KV_F16 && value != 0u ? min(block, (uint)PE_KV_PANEL) : 0u;
}

// Values of a row: the first, and the distance to the next (1, or that of a panel). Types with
// groups have no distance: value i is in group i / KV_GROUP.
struct kv_row {
  device const uchar *at;
  uint apart;
};

struct kv_scale {
  float scale, least;
};

METAL_FUNC kv_scale kv_scale_at(kv_row r, uint group) {
  kv_scale s;
  s.scale = 1.0f, s.least = 0.0f;
  if (KV == PE_KV_Q8) {
    s.scale = half_at(r.at + group * PE_QUANT_Q8_0_BYTES);
  } else if (KV == PE_KV_Q4) {
    s.scale = half_at(r.at + group * PE_QUANT_Q4_1_BYTES);
    s.least = half_at(r.at + group * PE_QUANT_Q4_1_BYTES + 2);
  }
  return s;
}

// Value i, whose group has this scale.
METAL_FUNC float kv_value(kv_row r, kv_scale s, uint i) {
  if (KV == PE_KV_F32) return ((device const float *)r.at)[i];
  if (KV == PE_KV_F16) return half_number(((device const ushort *)r.at)[i * r.apart]);
  const uint group = i / KV_GROUP, within = i % KV_GROUP;
  if (KV == PE_KV_Q8)
    return (float)(int)as_type<int8_t>(r.at[group * PE_QUANT_Q8_0_BYTES + 2u + within]) * s.scale;
  return s.scale * (float)nibble(r.at + group * PE_QUANT_Q4_1_BYTES + 4u, within) + s.least;
}

// Byte offset of the block of token t in a pool.
METAL_FUNC size_t kv_block(constant pe_metal_call &call, constant pe_cache_args &cache,
                           device const int *words, device const pe_segment &segment, int t) {
  device const pe_metal_step &head = step_head(words);
  const int table = words[head.table_at + segment.table + cache.group];
  return (size_t)words[head.tables + table + t / cache.block] * (size_t)call.cache_step;
}

METAL_FUNC size_t kv_head_offset(constant pe_cache_args &cache, uint head, uint width) {
  return (size_t)head * (size_t)((uint)cache.block * kv_row_bytes(width));
}

// Bytes from the head in a block to the key of token t, and the distance of its values.
METAL_FUNC size_t kv_key_offset(constant pe_cache_args &cache, int t, thread uint &apart) {
  const uint panel = kv_panel((uint)cache.value, (uint)cache.block);
  const uint within = (uint)(t % cache.block);
  apart = panel == 0u ? 1u : panel;
  if (panel == 0u) return (size_t)(within * kv_row_bytes((uint)cache.key));
  return (size_t)(2u * (within / panel * panel * (uint)cache.key + within % panel));
}

#endif
