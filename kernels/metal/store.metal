// store.metal - writes the rows of a step to the KV cache; see pe_store_args.
//
// A simdgroup for each head; group.y: the row. Keys are rotated into threadgroup memory first,
// since types with groups need all values of a group. The bytes are those of the CPU's
// (kernels/cpu/encode_impl.h).
#include "kernels/metal/kv.metal"
#include "kernels/metal/rope.metal"

METAL_FUNC void put_half(device uchar *p, float x) {
  const uint bits = as_type<ushort>(half(x));
  p[0] = (uchar)(bits & 255u), p[1] = (uchar)(bits >> 8);
}
METAL_FUNC void put_nan(device uchar *p) { p[0] = 0, p[1] = 0x7e; }
METAL_FUNC float rounded_half(float x) { return (float)half(x); }
METAL_FUNC float within(float x, float low, float high) { return min(max(x, low), high); }

// 32 values of a group, one in each lane: a scale and signed bytes.
METAL_FUNC void put_q8(float x, uint lane, device uchar *out) {
  const int most = lanes_max((int)(as_type<uint>(x) & 0x7fffffffu));
  const bool odd = most >= 0x7f800000;  // an infinity or NaN: the group decodes to NaN
  const float scale =
      odd ? 0.0f : rounded_half(within(as_type<float>(most) / 127.0f, 0.0f, 65504.0f));
  const float by = scale == 0.0f ? 0.0f : 1.0f / scale;
  if (lane == 0u && odd) put_nan(out);
  if (lane == 0u && !odd) put_half(out, scale);
  const float q = by == 0.0f ? 0.0f : rint(within(x * by, -127.0f, 127.0f));
  out[2u + lane] = (uchar)((uint)(int)q & 255u);
}

// Maps the bits of floats to integers in the same order; its own inverse.
METAL_FUNC int ordered_bits(int i) { return i ^ (i >> 31 & 0x7fffffff); }

// A scale, a minimum and codes of four bits; value i shares a byte with value i + 16.
METAL_FUNC void put_q4(float x, uint lane, device uchar *out) {
  const int v = ordered_bits(as_type<int>(x)), low = lanes_min(v), high = lanes_max(v);
  const bool odd = high >= 0x7f800000 || low <= ordered_bits(as_type<int>(0xff800000u));
  const float least =
      odd ? 0.0f : rounded_half(within(as_type<float>(ordered_bits(low)), -65504.0f, 65504.0f));
  const float most = odd ? 0.0f : as_type<float>(ordered_bits(high));
  const float scale = odd ? 0.0f : rounded_half(within((most - least) / 15.0f, 0.0f, 65504.0f));
  const float by = scale == 0.0f ? 0.0f : 1.0f / scale;
  if (lane == 0u) {
    if (odd)
      put_nan(out);
    else
      put_half(out, scale);
    put_half(out + 2, least);
  }
  const uint code = by == 0.0f ? 0u : (uint)rint(within((x - least) * by, 0.0f, 15.0f));
  const uint other = simd_shuffle_xor(code, 16);
  if (lane < 16u) out[4u + lane] = (uchar)(code | other << 4);
}

// Encodes `width` values; `apart`: between the values of a panel.
METAL_FUNC void put_row(threadgroup const float *x, uint width, uint lane, device uchar *out,
                        uint apart) {
  const uint groups = (width + KV_GROUP - 1u) / KV_GROUP;
  for (uint g = 0; g < groups; g++) {
    const uint i = g * KV_GROUP + lane;
    const float v = x[min(i, width - 1u)];  // a short last group repeats its last value
    if (KV == PE_KV_Q8) {
      put_q8(v, lane, out + g * PE_QUANT_Q8_0_BYTES);
    } else if (KV == PE_KV_Q4) {
      put_q4(v, lane, out + g * PE_QUANT_Q4_1_BYTES);
    } else if (i < width) {
      if (KV == PE_KV_F32)
        ((device float *)out)[i] = v;
      else
        ((device ushort *)out)[i * apart] = as_type<ushort>(half(v));
    }
  }
}

struct store_lines {  // keys, values and the rope table of a row; the weight of a norm of values
  device const float *keys;
  device const float *values;
  device const float *table;
  device const float *weight;
};

// One head of a row; `room` has PE_STORE_WIDTH values.
METAL_FUNC void store_head(constant pe_metal_call &call, constant pe_store_args &args,
                           store_lines from, device const float *weight, device uchar *keys,
                           device uchar *values, device const int *words, int row, uint head,
                           threadgroup float *room, uint lane) {
  constant pe_cache_args &cache = args.cache;
  device const pe_segment &segment = segment_of_row(words, row);
  const int t = segment.past + row - segment.first;
  const size_t block = kv_block(call, cache, words, segment, t);
  const uint key = (uint)cache.key, value = (uint)cache.value;
  device const float *x = from.keys + head * key;
  if (args.rope.dim > 0) {
    const float scale = head_scale(args.rope, x, lane);
    for (int i = (int)lane; i < head_parts(args.rope); i += 32) {
      const head_part p = head_part_at(args.rope, i);
      float first = 0.0f, second = 0.0f;
      head_rotate(args.rope, x, weight, from.table, scale, p, i, first, second);
      room[p.first] = first;
      if (p.second >= 0) room[p.second] = second;
    }
  } else {
    for (uint i = lane; i < key; i += 32u) room[i] = x[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint apart = 1u;
  const size_t at = kv_key_offset(cache, t, apart);
  put_row(room, key, lane, keys + block + kv_head_offset(cache, head, key) + at, apart);
  if (value == 0u) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x = from.values + head * value;
  if (call.norm.width > 0) {
    const float factor = norm_factor(call.norm, (int)value, x, lane);
    for (uint i = lane; i < value; i += 32u) {
      float v = x[i] * factor;
      if (call.norm.weights != 0) v *= from.weight[i] + call.norm.offset;
      room[i] = v * call.norm.scale;
    }
  } else {
    for (uint i = lane; i < value; i += 32u) room[i] = x[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  put_row(room, value, lane,
          values + block + kv_head_offset(cache, head, value) +
              (size_t)((uint)(t % cache.block) * kv_row_bytes(value)),
          1u);
}

kernel void store(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                  constant pe_store_args &args [[buffer(PE_SLOT_ARGS)]],
                  device const float *in_keys [[buffer(PE_SLOT_IN0)]],
                  device const float *in_values [[buffer(PE_SLOT_IN1)]],
                  device const float *table [[buffer(PE_SLOT_IN2)]],
                  device const float *weight [[buffer(PE_SLOT_VEC0)]],
                  device const float *value_weight [[buffer(PE_SLOT_VEC3)]],
                  device uchar *keys [[buffer(PE_SLOT_KEYS)]],
                  device uchar *values [[buffer(PE_SLOT_VALUES)]],
                  device const int *words [[buffer(PE_SLOT_STEP)]],
                  uint2 group [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float room[PE_STORE_WIDTH];
  const int row = (int)group.y;
  store_lines from;
  from.keys = in_keys + line_at(row, call.in_step[0]);
  from.values = in_values + line_at(row, call.in_step[1]);
  from.table = table + line_at(row, call.in_step[2]);
  from.weight = value_weight;
  store_head(call, args, from, weight, keys, values, words, row, group.x, room, lane);
}

// The rope of queries and the store: group.x counts the heads of the queries, then those of keys.
kernel void rope_store(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                       constant pe_rope_store_args &args [[buffer(PE_SLOT_ARGS)]],
                       device float *out [[buffer(PE_SLOT_OUT)]],
                       device const float *in_keys [[buffer(PE_SLOT_IN0)]],
                       device const float *in_values [[buffer(PE_SLOT_IN1)]],
                       device const float *table [[buffer(PE_SLOT_IN2)]],
                       device const float *queries [[buffer(PE_SLOT_IN3)]],
                       device const float *weight [[buffer(PE_SLOT_VEC0)]],
                       device const float *query_weight [[buffer(PE_SLOT_VEC1)]],
                       device const float *value_weight [[buffer(PE_SLOT_VEC3)]],
                       device uchar *keys [[buffer(PE_SLOT_KEYS)]],
                       device uchar *values [[buffer(PE_SLOT_VALUES)]],
                       device const int *words [[buffer(PE_SLOT_STEP)]],
                       uint2 group [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float room[PE_STORE_WIDTH];
  const int row = (int)group.y;
  const uint heads = (uint)args.rope.heads;
  store_lines from;
  from.keys = in_keys + line_at(row, call.in_step[0]);
  from.values = in_values + line_at(row, call.in_step[1]);
  from.table = table + line_at(row, call.in_step[2]);
  from.weight = value_weight;
  if (group.x < heads) {
    const int at = (int)group.x * args.rope.dim;
    head_turn(args.rope, queries + line_at(row, call.in_step[3]) + part_at(call.part[3], at),
              query_weight, from.table,
              out + line_at(row, call.out_step) + part_at(call.out_part, at), lane);
  } else {
    store_head(call, args.store, from, weight, keys, values, words, row, group.x - heads, room,
               lane);
  }
}
