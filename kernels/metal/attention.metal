// attention.metal - attention over the KV cache, in one pass or two, and over regions of a tower.
//
// group.x: the tile of heads, group.y: the tile of rows. A tile has up to Q queries: all query
// heads of a key head (or Q of them), of one row or of neighbours. Where every segment has a single
// row (decode), a tile has one. Rows of a tile that belong to different segments are taken one
// segment after the other.
#include "kernels/metal/attend.metal"

struct query_tile {
  int heads, rows;         // of a whole tile
  int first_head, key_head;
  int head_count;          // heads in this tile
};

// Tiles along the heads: each key head has `heads / key_heads` query heads.
METAL_FUNC query_tile query_tile_at(int heads, int key_heads, int most, bool single, uint tile) {
  query_tile q;
  const int each = heads / key_heads;
  q.heads = min(each, most);
  q.rows = single ? 1 : most / q.heads;
  const int tiles = (each + q.heads - 1) / q.heads;
  q.key_head = (int)tile / tiles;
  const int from = (int)tile % tiles * q.heads;
  q.first_head = q.key_head * each + from;
  q.head_count = min(q.heads, each - from);
  return q;
}

METAL_FUNC int last_key(constant pe_attention_args &args, device const int *words, int row,
                        int index) {
  const int at = step_head(words).last;
  return args.spans != 0 && at >= 0 ? words[at + row] : index;
}
METAL_FUNC int first_key(constant pe_attention_args &args, int index) {
  return args.window > 0 && index >= args.window ? index - args.window + 1 : 0;
}

METAL_FUNC kv_source cache_source(constant pe_metal_call &call, constant pe_attention_args &args,
                                  device const uchar *keys, device const uchar *values,
                                  device const int *words, device const pe_segment &segment,
                                  uint key_head) {
  constant pe_cache_args &cache = args.cache;
  device const pe_metal_step &head = step_head(words);
  kv_source s;
  s.keys = keys, s.values = values;
  s.table = words + head.tables + words[head.table_at + segment.table + cache.group];
  s.block_bytes = (size_t)call.cache_step;
  s.key_head = kv_head_offset(cache, key_head, (uint)cache.key);
  s.value_head = kv_head_offset(cache, key_head, (uint)cache.value);
  s.key_line = 0, s.value_line = 0;
  s.block = (uint)cache.block, s.key = (uint)cache.key, s.value = (uint)cache.value;
  s.panel = kv_panel((uint)cache.value, (uint)cache.block);
  s.lines = false, s.values_in_keys = cache.value == 0;
  return s;
}

// Rows first .. first + rows - 1 of a segment. Query q is row q / heads, head q % heads; those that
// are missing see no key.
template <int Q>
METAL_FUNC void see_keys(constant pe_attention_args &args, device const int *words,
                         device const pe_segment &segment, query_tile tile, int first, int rows,
                         thread seen_keys<Q> &seen) {
  const int index = segment.past + first - segment.first;
  for (int q = 0; q < Q; q++) {
    const int r = q / tile.heads;
    const bool there = r < rows && q % tile.heads < tile.head_count;
    seen.low[q] = there ? first_key(args, index + r) : 1;
    seen.high[q] = there ? last_key(args, words, first + r, index + r) : 0;
  }
  seen.from = first_key(args, index);
  seen.to = last_key(args, words, first + rows - 1, index + rows - 1) + 1;
}

// The queries of a tile, scaled: [Q][key].
template <int Q>
METAL_FUNC void load_queries(device const float *in, int in_step, query_tile tile, int first,
                             int rows, uint key, float scale, uint lane,
                             threadgroup float *query) {
  simdgroup_barrier(mem_flags::mem_threadgroup);  // the queries of the last rows have been used
  for (int q = 0; q < Q; q++) {
    const int r = min(q / tile.heads, rows - 1), h = min(q % tile.heads, tile.head_count - 1);
    device const float *x =
        in + line_at(first + r, in_step) + (uint)(tile.first_head + h) * key;
    for (uint i = lane; i < key; i += 32u) query[(uint)q * key + i] = x[i] * scale;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// All parts of the keys that a tile sees, joined in order.
template <int Q, int N>
METAL_FUNC void attend_all(kv_source s, thread const seen_keys<Q> &seen,
                           threadgroup const float *query, threadgroup float *weights,
                           float softcap, uint width, uint lane, thread attended<Q, N> &all) {
  attended_clear<Q, N>(all);
  for (int part = seen.from / PE_ATTENTION_PART; part * PE_ATTENTION_PART < seen.to; part++) {
    attended<Q, N> one;
    attend_part<Q, N>(s, seen, query, weights, part, softcap, width, lane, one);
    for (int q = 0; q < Q; q++) {
      float factor = 0.0f;
      const float kept = join_factors(all.most[q], one.most[q], factor);
      all.sum[q] = join(all.sum[q], kept, one.sum[q], factor);
      for (int n = 0; n < N; n++)
        all.mixed[q * N + n] = join(all.mixed[q * N + n], kept, one.mixed[q * N + n], factor);
    }
  }
}

// ---- one pass -----------------------------------------------------------------------------------

// Q * K floats hold the queries: K is the longest key. N * 32 is the longest value.
template <int Q, int K, int N>
kernel void attention(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                      constant pe_attention_args &args [[buffer(PE_SLOT_ARGS)]],
                      device float *out [[buffer(PE_SLOT_OUT)]],
                      device const float *in [[buffer(PE_SLOT_IN0)]],
                      device const float *sinks [[buffer(PE_SLOT_VEC0)]],
                      device const float *map0 [[buffer(PE_SLOT_IN2)]],
                      device const float *map1 [[buffer(PE_SLOT_IN3)]],
                      device const float *map2 [[buffer(PE_SLOT_IN4)]],
                      device const float *map3 [[buffer(PE_SLOT_IN5)]],
                      constant pe_metal_after &after [[buffer(PE_SLOT_AFTER)]],
                      device const uchar *keys [[buffer(PE_SLOT_KEYS)]],
                      device const uchar *values [[buffer(PE_SLOT_VALUES)]],
                      device const int *words [[buffer(PE_SLOT_STEP)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float query[Q * K];
  threadgroup float weights[Q * 32];
  device const pe_metal_step &head = step_head(words);
  const query_tile tile =
      query_tile_at(args.heads, args.cache.heads, Q, head.segments == head.rows, group.x);
  const int end = min(((int)group.y + 1) * tile.rows, call.rows);
  for (int first = (int)group.y * tile.rows; first < end;) {
    device const pe_segment &segment = segment_of_row(words, first);
    const int rows = min(end, segment.first + segment.count) - first;
    const kv_source source =
        cache_source(call, args, keys, values, words, segment, (uint)tile.key_head);
    seen_keys<Q> seen;
    attended<Q, N> a;
    see_keys<Q>(args, words, segment, tile, first, rows, seen);
    load_queries<Q>(in, call.in_step[0], tile, first, rows, source.key, args.scale, lane, query);
    attend_all<Q, N>(source, seen, query, weights, args.softcap, (uint)args.value, lane, a);
    for (int q = 0; q < Q; q++) {
      const int r = q / tile.heads, h = q % tile.heads;
      if (r >= rows || h >= tile.head_count) continue;
      float kept = 1.0f;
      if (has_vec(call, 0)) kept = add_sink(a.most[q], a.sum[q], sinks[tile.first_head + h]);
      const int start = (tile.first_head + h) * args.value;
      device float *y = out + line_at(first + r, call.out_step);
      for (int n = 0; n < N; n++) {
        const int i = n * 32 + (int)lane;
        if (i >= args.value) continue;
        y[start + i] = mapped(after, map0, map1, map2, map3, first + r, start + i,
                              a.mixed[q * N + n] * kept / a.sum[q], 0.0f);
      }
    }
    first += rows;
  }
}
template [[host_name("attention_1_128")]] kernel
    decltype(attention<1, 128, 4>) attention<1, 128, 4>;
template [[host_name("attention_8_128")]] kernel
    decltype(attention<8, 128, 4>) attention<8, 128, 4>;
template [[host_name("attention_1_256")]] kernel
    decltype(attention<1, 256, 8>) attention<1, 256, 8>;
template [[host_name("attention_4_256")]] kernel
    decltype(attention<4, 256, 8>) attention<4, 256, 8>;
template [[host_name("attention_1_640")]] kernel
    decltype(attention<1, 640, 16>) attention<1, 640, 16>;
template [[host_name("attention_2_640")]] kernel
    decltype(attention<2, 640, 16>) attention<2, 640, 16>;

// ---- two passes ---------------------------------------------------------------------------------

// Scratch: for each row, head and part the maximum, the sum and the mixed values. parts: the most
// that a row has.
METAL_FUNC size_t part_at(constant pe_attention_args &args, int row, int head, int parts,
                          int part) {
  return (((size_t)row * (size_t)args.heads + (size_t)head) * (size_t)parts + (size_t)part) *
         (size_t)(args.value + 2);
}

// group.z: the part.
template <int Q, int K, int N>
kernel void attention_part(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                           constant pe_attention_args &args [[buffer(PE_SLOT_ARGS)]],
                           device const float *in [[buffer(PE_SLOT_IN0)]],
                           device const uchar *keys [[buffer(PE_SLOT_KEYS)]],
                           device const uchar *values [[buffer(PE_SLOT_VALUES)]],
                           device const int *words [[buffer(PE_SLOT_STEP)]],
                           device float *scratch [[buffer(PE_SLOT_SCRATCH)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint3 groups [[threadgroups_per_grid]],
                           uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float query[Q * K];
  threadgroup float weights[Q * 32];
  device const pe_metal_step &head = step_head(words);
  const query_tile tile =
      query_tile_at(args.heads, args.cache.heads, Q, head.segments == head.rows, group.x);
  const int end = min(((int)group.y + 1) * tile.rows, call.rows), part = (int)group.z;
  for (int first = (int)group.y * tile.rows; first < end;) {
    device const pe_segment &segment = segment_of_row(words, first);
    const int rows = min(end, segment.first + segment.count) - first;
    seen_keys<Q> seen;
    see_keys<Q>(args, words, segment, tile, first, rows, seen);
    if (part >= seen.from / PE_ATTENTION_PART && part * PE_ATTENTION_PART < seen.to) {
      const kv_source source =
          cache_source(call, args, keys, values, words, segment, (uint)tile.key_head);
      attended<Q, N> a;
      load_queries<Q>(in, call.in_step[0], tile, first, rows, source.key, args.scale, lane, query);
      attend_part<Q, N>(source, seen, query, weights, part, args.softcap, (uint)args.value, lane,
                        a);
      for (int q = 0; q < Q; q++) {
        const int r = q / tile.heads, h = q % tile.heads;
        if (r >= rows || h >= tile.head_count) continue;
        device float *y =
            scratch + part_at(args, first + r, tile.first_head + h, (int)groups.z, part);
        if (lane == 0u) y[0] = a.most[q], y[1] = a.sum[q];
        for (uint n = 0; n < (uint)N; n++)
          if (n * 32u + lane < (uint)args.value) y[2u + n * 32u + lane] = a.mixed[q * N + (int)n];
      }
    }
    first += rows;
  }
}
template [[host_name("attention_part_1_128")]] kernel
    decltype(attention_part<1, 128, 4>) attention_part<1, 128, 4>;
template [[host_name("attention_part_8_128")]] kernel
    decltype(attention_part<8, 128, 4>) attention_part<8, 128, 4>;
template [[host_name("attention_part_1_256")]] kernel
    decltype(attention_part<1, 256, 8>) attention_part<1, 256, 8>;
template [[host_name("attention_part_4_256")]] kernel
    decltype(attention_part<4, 256, 8>) attention_part<4, 256, 8>;
template [[host_name("attention_part_1_640")]] kernel
    decltype(attention_part<1, 640, 16>) attention_part<1, 640, 16>;
template [[host_name("attention_part_2_640")]] kernel
    decltype(attention_part<2, 640, 16>) attention_part<2, 640, 16>;

// group.x: the head, group.y: the row, group.z: which 32 values.
kernel void attention_join(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                           constant pe_attention_args &args [[buffer(PE_SLOT_ARGS)]],
                           device float *out [[buffer(PE_SLOT_OUT)]],
                           device const float *sinks [[buffer(PE_SLOT_VEC0)]],
                           device const float *map0 [[buffer(PE_SLOT_IN2)]],
                           device const float *map1 [[buffer(PE_SLOT_IN3)]],
                           device const float *map2 [[buffer(PE_SLOT_IN4)]],
                           device const float *map3 [[buffer(PE_SLOT_IN5)]],
                           constant pe_metal_after &after [[buffer(PE_SLOT_AFTER)]],
                           device const int *words [[buffer(PE_SLOT_STEP)]],
                           device const float *scratch [[buffer(PE_SLOT_SCRATCH)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]]) {
  const int row = (int)group.y, head = (int)group.x;
  const uint i = group.z * 32u + lane;
  if (i >= (uint)args.value) return;
  int parts = 0;  // of the longest segment, as in the grid of the first pass
  for (int s = 0; s < step_head(words).segments; s++) {
    device const pe_segment &one = segment_at(words, s);
    parts = max(parts, (one.past + one.count + PE_ATTENTION_PART - 1) / PE_ATTENTION_PART);
  }
  device const pe_segment &segment = segment_of_row(words, row);
  const int index = segment.past + row - segment.first;
  const int to = last_key(args, words, row, index) + 1;
  float most = LOWEST, sum = 0.0f, mixed = 0.0f;
  for (int part = first_key(args, index) / PE_ATTENTION_PART; part * PE_ATTENTION_PART < to;
       part++) {
    device const float *x = scratch + part_at(args, row, head, parts, part);
    float factor = 0.0f;
    const float kept = join_factors(most, x[0], factor);
    sum = join(sum, kept, x[1], factor), mixed = join(mixed, kept, x[2u + i], factor);
  }
  float kept = 1.0f;
  if (has_vec(call, 0)) kept = add_sink(most, sum, sinks[head]);
  const int column = head * args.value + (int)i;
  out[line_at(row, call.out_step) + (size_t)column] =
      mapped(after, map0, map1, map2, map3, row, column, mixed * kept / sum, 0.0f);
}

// ---- regions of a tower -------------------------------------------------------------------------

// The keys are lines of the step; the constant KV says float32. group.y: the tile of rows; a tile
// that spans regions takes them one after the other.
template <int Q, int K, int N>
kernel void region_attention(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                             constant pe_region_attention_args &args [[buffer(PE_SLOT_ARGS)]],
                             device float *out [[buffer(PE_SLOT_OUT)]],
                             device const float *in [[buffer(PE_SLOT_IN0)]],
                             device const float *keys [[buffer(PE_SLOT_IN1)]],
                             device const float *values [[buffer(PE_SLOT_IN2)]],
                             device const int *words [[buffer(PE_SLOT_STEP)]],
                             uint2 group [[threadgroup_position_in_grid]],
                             uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float query[Q * K];
  threadgroup float weights[Q * 32];
  device const pe_metal_step &head = step_head(words);
  device const pe_region *regions = (device const pe_region *)(words + head.region[args.regions]);
  const query_tile tile = query_tile_at(args.heads, args.key_heads, Q, false, group.x);
  const int end = min(((int)group.y + 1) * tile.rows, call.rows);
  for (int first = (int)group.y * tile.rows; first < end;) {
    int i = 0;
    while (regions[i].first + regions[i].count <= first || regions[i].first > first) i++;
    const int from = regions[i].first, count = regions[i].count;
    const int rows = min(end, from + count) - first;
    kv_source s;
    s.keys = (device const uchar *)(keys + line_at(from, call.in_step[1]) +
                                    (uint)(tile.key_head * args.key));
    s.values = (device const uchar *)(values + line_at(from, call.in_step[2]) +
                                      (uint)(tile.key_head * args.value));
    s.table = words, s.block_bytes = 0, s.key_head = 0, s.value_head = 0;
    s.key_line = (size_t)(4 * call.in_step[1]), s.value_line = (size_t)(4 * call.in_step[2]);
    s.block = 1u, s.key = (uint)args.key, s.value = (uint)args.value, s.panel = 0u;
    s.lines = true, s.values_in_keys = false;
    seen_keys<Q> seen;
    seen.from = 0, seen.to = count;
    for (int q = 0; q < Q; q++) {
      const bool there = q / tile.heads < rows && q % tile.heads < tile.head_count;
      seen.low[q] = there ? 0 : 1, seen.high[q] = there ? count - 1 : 0;
    }
    attended<Q, N> a;
    load_queries<Q>(in, call.in_step[0], tile, first, rows, s.key, args.scale, lane, query);
    attend_all<Q, N>(s, seen, query, weights, 0.0f, (uint)args.value, lane, a);
    for (int q = 0; q < Q; q++) {
      const int r = q / tile.heads, h = q % tile.heads;
      if (r >= rows || h >= tile.head_count) continue;
      device float *y = out + line_at(first + r, call.out_step) +
                        (uint)((tile.first_head + h) * args.value);
      for (uint n = 0; n < (uint)N; n++)
        if (n * 32u + lane < (uint)args.value)
          y[n * 32u + lane] = a.mixed[q * N + (int)n] / a.sum[q];
    }
    first += rows;
  }
}
template [[host_name("region_attention_128")]] kernel
    decltype(region_attention<8, 128, 4>) region_attention<8, 128, 4>;
template [[host_name("region_attention_256")]] kernel
    decltype(region_attention<4, 256, 8>) region_attention<4, 256, 8>;
