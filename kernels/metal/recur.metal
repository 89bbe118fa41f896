// recur.metal - layers with a state per sequence: short convolutions, the gated delta rule,
// Mamba 2.
//
// The rows of a segment are taken strictly in order and the state is updated in place, so a prompt
// may be split anywhere. A thread has a channel of a convolution. A simdgroup has one row of a
// head's state, in registers while it walks the rows of the segment: value i is in lane i % 32.
//
// The simdgroups of a group have rows of one head. What they all read, they copy to memory of the
// group first, a few rows of the segment (a chunk) at a time, so that a prompt reads its keys once
// for PE_STATE_ROWS rows of the state. The forms that turn a chunk into products of matrices are
// not used: they add in another order than a single row does.
#include "kernels/metal/common.metal"

enum { STATE_LANES = PE_STATE_WIDTH / 32 };  // values of a row of a state in each lane

METAL_FUNC size_t state_at(constant pe_metal_call &call, device const pe_segment &segment) {
  return (size_t)segment.slot * (size_t)call.state_step;
}

METAL_FUNC void state_load(device const float *state, uint n, uint lane, thread float *s) {
  for (uint i = 0; i < STATE_LANES; i++)
    s[i] = i * 32u + lane < n ? state[i * 32u + lane] : 0.0f;
}
METAL_FUNC void state_store(device float *state, uint n, uint lane, thread const float *s) {
  for (uint i = 0; i < STATE_LANES; i++)
    if (i * 32u + lane < n) state[i * 32u + lane] = s[i];
}

// Copies `width` values of `rows` lines from line `first` on; all threads of the group take part.
METAL_FUNC void chunk_copy(device const float *lines, int step, int first, uint rows, uint width,
                           uint thread_index, uint threads, threadgroup float *room) {
  for (uint i = thread_index; i < rows * width; i += threads)
    room[i] = lines[line_at(first + (int)(i / width), step) + i % width];
}

// ---- conv ---------------------------------------------------------------------------------------

// at.x: the channel, at.y: the segment. The channels may come from several inputs.
kernel void conv(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                 constant pe_conv_args &args [[buffer(PE_SLOT_ARGS)]],
                 device float *out [[buffer(PE_SLOT_OUT)]],
                 device const float *in0 [[buffer(PE_SLOT_IN0)]],
                 device const float *in1 [[buffer(PE_SLOT_IN1)]],
                 device const float *in2 [[buffer(PE_SLOT_IN2)]],
                 device const float *in3 [[buffer(PE_SLOT_IN3)]],
                 device const float *in4 [[buffer(PE_SLOT_IN4)]],
                 device const float *in5 [[buffer(PE_SLOT_IN5)]],
                 constant pe_concat_args &from [[buffer(PE_SLOT_BEFORE)]],
                 device const float *weight [[buffer(PE_SLOT_VEC0)]],
                 device const float *bias [[buffer(PE_SLOT_VEC1)]],
                 device const float *map0 [[buffer(PE_SLOT_DATA)]],
                 device const float *map1 [[buffer(PE_SLOT_SCALES)]],
                 device const float *map2 [[buffer(PE_SLOT_BIASES)]],
                 device const float *map3 [[buffer(PE_SLOT_DATA2)]],
                 constant pe_metal_after &after [[buffer(PE_SLOT_AFTER)]],
                 device float *states [[buffer(PE_SLOT_STATE)]],
                 device const int *words [[buffer(PE_SLOT_STEP)]],
                 uint2 at [[thread_position_in_grid]]) {
  if ((int)at.x >= args.channels) return;
  device const pe_segment &segment = segment_at(words, (int)at.y);
  const int before = args.taps - 1;
  device float *state = states + state_at(call, segment) + at.x * (uint)before;
  concat_place p;
  p.input = 0, p.at = (int)at.x;
  if (from.inputs > 0) p = concat_at(from, (int)at.x);
  device const float *in = p.input == 0   ? in0
                           : p.input == 1 ? in1
                           : p.input == 2 ? in2
                           : p.input == 3 ? in3
                           : p.input == 4 ? in4
                                          : in5;
  in += part_at(call.part[p.input], p.at);
  float past[PE_CONV_TAPS];  // the last taps inputs, oldest first
  for (int t = 0; t < before; t++) past[t] = state[t];
  for (int r = segment.first; r < segment.first + segment.count; r++) {
    past[before] = in[line_at(r, call.in_step[p.input])];
    float y = 0.0f;
    for (int t = 0; t < args.taps; t++)
      y = fma(weight[at.x * (uint)args.taps + (uint)t], past[t], y);
    if (has_vec(call, 1)) y += bias[at.x];
    if (args.activation >= 0) y = unary(args.activation, y);
    out[line_at(r, call.out_step) + at.x] =
        mapped(after, map0, map1, map2, map3, r, (int)at.x, y, 0.0f);
    for (int t = 0; t < before; t++) past[t] = past[t + 1];
  }
  for (int t = 0; t < before; t++) state[t] = past[t];
}

// ---- delta --------------------------------------------------------------------------------------

// One row of a segment: S *= decay; S += ((v - S k) beta) k'. Returns S q.
METAL_FUNC float delta_row(threadgroup const float *q, threadgroup const float *k,
                           threadgroup const float *decay, bool channel, uint n, float value,
                           float beta, uint lane, thread float *s) {
  float seen = 0.0f;
  for (uint i = 0; i < STATE_LANES; i++) {
    const uint j = i * 32u + lane;
    if (j >= n) continue;
    s[i] *= decay[channel ? j : 0u];
    seen = fma(s[i], k[j], seen);
  }
  seen = lanes_sum(seen);
  const float change = (value - seen) * beta;
  float y = 0.0f;
  for (uint i = 0; i < STATE_LANES; i++) {
    const uint j = i * 32u + lane;
    if (j >= n) continue;
    s[i] = fma(change, k[j], s[i]);
    y = fma(s[i], q[j], y);
  }
  return lanes_sum(y);
}

// A value of a map of which one input is a line, x, and the others are vectors.
METAL_FUNC float value_before(constant pe_map_args &map, constant pe_metal_part &part,
                              device const float *x, device const float *vec0,
                              device const float *vec1, device const float *vec2,
                              device const float *vec3, int column) {
  float registers[PE_MAP_REGISTERS];
  for (int i = 0; i < map.inputs; i++) {
    device const float *vec = i == 0 ? vec0 : i == 1 ? vec1 : i == 2 ? vec2 : vec3;
    const int at = map_column(map, i, column);
    registers[i] = map.input[i].fixed != 0 ? vec[at] : x[part_at(part, at)];
  }
  return map_result(map, registers);
}

// Normalizes a line of a chunk: each lane has its own values. See norm.metal.
METAL_FUNC void norm_before(constant pe_norm_args &norm, threadgroup float *x, uint n, uint lane) {
  const float factor = norm_factor(norm, (int)n, (threadgroup const float *)x, lane);
  for (uint i = lane; i < n; i += 32u) x[i] = x[i] * factor * norm.scale;
}

struct delta_lines {  // what a delta rule reads
  device const float *queries;
  device const float *keys;
  device const float *values;
  device const float *decays;
  device const float *betas;
  device const float *vec0;
  device const float *vec1;
  device const float *vec2;
  device const float *vec3;
};

// Queries, keys and decays of a head, `rows` lines from `first` on; all threads of the group take
// part.
METAL_FUNC void delta_chunk(constant pe_metal_call &call, constant pe_delta_args &args,
                            constant pe_metal_before &before, delta_lines in, uint head, int first,
                            uint rows, uint simdgroup, uint simdgroups, uint lane,
                            threadgroup float *q, threadgroup float *k, threadgroup float *decay) {
  const uint n = (uint)args.key, factors = args.channel != 0 ? n : 1u;
  const uint key_head = head / (uint)(args.heads / args.key_heads) * n;
  const uint thread_index = simdgroup * 32u + lane, threads = simdgroups * 32u;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the chunk before has been read
  chunk_copy(in.queries + part_at(call.part[0], (int)key_head), call.in_step[0], first, rows, n,
             thread_index, threads, q);
  chunk_copy(in.keys + part_at(call.part[1], (int)key_head), call.in_step[1], first, rows, n,
             thread_index, threads, k);
  for (uint i = thread_index; i < rows * factors; i += threads) {
    device const float *x = in.decays + line_at(first + (int)(i / factors), call.in_step[3]);
    const int column = (int)(head * factors + i % factors);
    decay[i] = before.maps[0] != 0 ? value_before(before.map[0], call.part[3], x, in.vec0, in.vec1,
                                                  in.vec2, in.vec3, column)
                                   : x[part_at(call.part[3], column)];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (before.norms[0] == 0 && before.norms[1] == 0) return;
  for (uint i = simdgroup; i < 2u * rows; i += simdgroups) {
    threadgroup float *x = (i < rows ? q : k) + i % rows * n;
    if (before.norms[i / rows] != 0) norm_before(before.norm[i / rows], x, n, lane);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

METAL_FUNC float delta_beta(constant pe_metal_call &call, constant pe_metal_before &before,
                            delta_lines in, int r, uint head) {
  device const float *b = in.betas + line_at(r, call.in_step[4]);
  return before.maps[1] != 0 ? value_before(before.map[1], call.part[4], b, in.vec0, in.vec1,
                                            in.vec2, in.vec3, (int)head)
                             : b[part_at(call.part[4], (int)head)];
}

METAL_FUNC float delta_value(constant pe_metal_call &call, delta_lines in, int r, uint row) {
  return in.values[line_at(r, call.in_step[2]) + part_at(call.part[2], (int)row)];
}

// group.x: rows of the state, group.y: the head, group.z: the segment.
kernel void delta(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                  constant pe_delta_args &args [[buffer(PE_SLOT_ARGS)]],
                  device float *out [[buffer(PE_SLOT_OUT)]],
                  device const float *queries [[buffer(PE_SLOT_IN0)]],
                  device const float *keys [[buffer(PE_SLOT_IN1)]],
                  device const float *values [[buffer(PE_SLOT_IN2)]],
                  device const float *decays [[buffer(PE_SLOT_IN3)]],
                  device const float *betas [[buffer(PE_SLOT_IN4)]],
                  constant pe_metal_before &before [[buffer(PE_SLOT_BEFORE)]],
                  device const float *vec0 [[buffer(PE_SLOT_VEC0)]],
                  device const float *vec1 [[buffer(PE_SLOT_VEC1)]],
                  device const float *vec2 [[buffer(PE_SLOT_VEC2)]],
                  device const float *vec3 [[buffer(PE_SLOT_VEC3)]],
                  device float *states [[buffer(PE_SLOT_STATE)]],
                  device const int *words [[buffer(PE_SLOT_STEP)]],
                  uint3 group [[threadgroup_position_in_grid]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint simdgroups [[simdgroups_per_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float chunk_q[PE_STATE_CHUNK * PE_STATE_WIDTH];
  threadgroup float chunk_k[PE_STATE_CHUNK * PE_STATE_WIDTH];
  threadgroup float chunk_decay[PE_STATE_CHUNK * PE_STATE_WIDTH];
  const delta_lines in =
      delta_lines{queries, keys, values, decays, betas, vec0, vec1, vec2, vec3};
  device const pe_segment &segment = segment_at(words, (int)group.z);
  const bool channel = args.channel != 0;
  const uint n = (uint)args.key, head = group.y, factors = channel ? n : 1u;
  const uint of_head = group.x * simdgroups + simdgroup;
  const bool active = of_head < (uint)args.value;
  const uint row = head * (uint)args.value + (active ? of_head : 0u);
  device float *state = states + state_at(call, segment) + (size_t)row * (size_t)n;
  float s[STATE_LANES];
  state_load(state, active ? n : 0u, lane, s);  // inactive: zeros, since row 0 is another's
  const int end = segment.first + segment.count;
  for (int first = segment.first; first < end; first += PE_STATE_CHUNK) {
    const uint rows = (uint)min((int)PE_STATE_CHUNK, end - first);
    delta_chunk(call, args, before, in, head, first, rows, simdgroup, simdgroups, lane, chunk_q,
                chunk_k, chunk_decay);
    for (uint i = 0; i < rows && active; i++) {
      const int r = first + (int)i;
      const float y =
          delta_row(chunk_q + i * n, chunk_k + i * n, chunk_decay + i * factors, channel, n,
                    delta_value(call, in, r, row), delta_beta(call, before, in, r, head), lane, s);
      if (lane == 0u) out[line_at(r, call.out_step) + row] = y;
    }
  }
  if (active) state_store(state, n, lane, s);
}

// The same for a few rows, with the norm of each head and a map after it: a group has a whole head.
// group.x: the head, group.y: the segment.
kernel void delta_norm(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                       constant pe_delta_args &args [[buffer(PE_SLOT_ARGS)]],
                       device float *out [[buffer(PE_SLOT_OUT)]],
                       device const float *queries [[buffer(PE_SLOT_IN0)]],
                       device const float *keys [[buffer(PE_SLOT_IN1)]],
                       device const float *values [[buffer(PE_SLOT_IN2)]],
                       device const float *decays [[buffer(PE_SLOT_IN3)]],
                       device const float *betas [[buffer(PE_SLOT_IN4)]],
                       constant pe_metal_before &before [[buffer(PE_SLOT_BEFORE)]],
                       device const float *vec0 [[buffer(PE_SLOT_VEC0)]],
                       device const float *vec1 [[buffer(PE_SLOT_VEC1)]],
                       device const float *vec2 [[buffer(PE_SLOT_VEC2)]],
                       device const float *vec3 [[buffer(PE_SLOT_VEC3)]],
                       device const float *map0 [[buffer(PE_SLOT_DATA)]],
                       device const float *map1 [[buffer(PE_SLOT_SCALES)]],
                       device const float *map2 [[buffer(PE_SLOT_BIASES)]],
                       device const float *map3 [[buffer(PE_SLOT_DATA2)]],
                       device const float *weight [[buffer(PE_SLOT_SCALES2)]],
                       constant pe_metal_after &after [[buffer(PE_SLOT_AFTER)]],
                       device float *states [[buffer(PE_SLOT_STATE)]],
                       device const int *words [[buffer(PE_SLOT_STEP)]],
                       uint2 group [[threadgroup_position_in_grid]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float chunk_q[PE_STATE_CHUNK * PE_STATE_WIDTH];
  threadgroup float chunk_k[PE_STATE_CHUNK * PE_STATE_WIDTH];
  threadgroup float chunk_decay[PE_STATE_CHUNK * PE_STATE_WIDTH];
  threadgroup float chunk_y[PE_STATE_CHUNK * PE_STATE_WIDTH];
  const delta_lines in =
      delta_lines{queries, keys, values, decays, betas, vec0, vec1, vec2, vec3};
  device const pe_segment &segment = segment_at(words, (int)group.y);
  const bool channel = args.channel != 0;
  const uint n = (uint)args.key, width = (uint)args.value, head = group.x;
  const uint factors = channel ? n : 1u, w = call.norm.weights > args.value ? head * width : 0u;
  device float *state = states + state_at(call, segment) + (size_t)(head * width) * (size_t)n;
  const int end = segment.first + segment.count;
  for (int first = segment.first; first < end; first += PE_STATE_CHUNK) {
    const uint rows = (uint)min((int)PE_STATE_CHUNK, end - first);
    delta_chunk(call, args, before, in, head, first, rows, simdgroup, simdgroups, lane, chunk_q,
                chunk_k, chunk_decay);
    for (uint v = simdgroup; v < width; v += simdgroups) {
      float s[STATE_LANES];
      state_load(state + (size_t)v * (size_t)n, n, lane, s);
      for (uint i = 0; i < rows; i++) {
        const int r = first + (int)i;
        const float y = delta_row(chunk_q + i * n, chunk_k + i * n, chunk_decay + i * factors,
                                  channel, n, delta_value(call, in, r, head * width + v),
                                  delta_beta(call, before, in, r, head), lane, s);
        if (lane == 0u) chunk_y[i * width + v] = y;
      }
      state_store(state + (size_t)v * (size_t)n, n, lane, s);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = simdgroup; i < rows; i += simdgroups) {
      const int r = first + (int)i;
      threadgroup const float *y = chunk_y + i * width;
      const float factor = norm_factor(call.norm, args.value, y, lane);
      for (uint j = lane; j < width; j += 32u) {
        float x = y[j] * factor;
        if (call.norm.weights != 0) x *= weight[w + j] + call.norm.offset;
        out[line_at(r, call.out_step) + head * width + j] =
            mapped(after, map0, map1, map2, map3, r, (int)(head * width + j), x * call.norm.scale,
                   0.0f);
      }
    }
  }
}

// ---- ssm ----------------------------------------------------------------------------------------

kernel void ssm(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                constant pe_ssm_args &args [[buffer(PE_SLOT_ARGS)]],
                device float *out [[buffer(PE_SLOT_OUT)]],
                device const float *in [[buffer(PE_SLOT_IN0)]],
                device const float *writes [[buffer(PE_SLOT_IN1)]],
                device const float *reads [[buffer(PE_SLOT_IN2)]],
                device const float *times [[buffer(PE_SLOT_IN3)]],
                device const float *log_a [[buffer(PE_SLOT_VEC0)]],
                device const float *time_bias [[buffer(PE_SLOT_VEC1)]],
                device const float *skip [[buffer(PE_SLOT_VEC2)]],
                device const float *map0 [[buffer(PE_SLOT_DATA)]],
                device const float *map1 [[buffer(PE_SLOT_SCALES)]],
                device const float *map2 [[buffer(PE_SLOT_BIASES)]],
                device const float *map3 [[buffer(PE_SLOT_DATA2)]],
                constant pe_metal_after &after [[buffer(PE_SLOT_AFTER)]],
                device float *states [[buffer(PE_SLOT_STATE)]],
                device const int *words [[buffer(PE_SLOT_STEP)]],
                uint3 group [[threadgroup_position_in_grid]],
                uint thread_index [[thread_index_in_threadgroup]],
                uint simdgroup [[simdgroup_index_in_threadgroup]],
                uint simdgroups [[simdgroups_per_threadgroup]],
                uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float chunk_b[PE_STATE_CHUNK * PE_STATE_WIDTH];
  threadgroup float chunk_c[PE_STATE_CHUNK * PE_STATE_WIDTH];
  threadgroup float chunk_dt[PE_STATE_CHUNK];
  threadgroup float chunk_decay[PE_STATE_CHUNK];
  device const pe_segment &segment = segment_at(words, (int)group.z);
  const uint n = (uint)args.state, head = group.y;
  const uint at = head / (uint)(args.heads / args.groups) * n;
  const uint of_head = group.x * simdgroups + simdgroup, threads = simdgroups * 32u;
  const bool active = of_head < (uint)args.dim;
  const uint row = head * (uint)args.dim + (active ? of_head : 0u);
  device float *state = states + state_at(call, segment) + (size_t)row * (size_t)n;
  float s[STATE_LANES];
  state_load(state, active ? n : 0u, lane, s);  // inactive: zeros, since row 0 is another's
  const int end = segment.first + segment.count;
  for (int first = segment.first; first < end; first += PE_STATE_CHUNK) {
    const uint rows = (uint)min((int)PE_STATE_CHUNK, end - first);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the chunk before has been read
    chunk_copy(writes + at, call.in_step[1], first, rows, n, thread_index, threads, chunk_b);
    chunk_copy(reads + at, call.in_step[2], first, rows, n, thread_index, threads, chunk_c);
    if (thread_index < rows) {
      float dt = times[line_at(first + (int)thread_index, call.in_step[3]) + head];
      if (has_vec(call, 1)) dt += time_bias[head];
      dt = min(max(unary(PE_MAP_SOFTPLUS, dt), args.dt_min), args.dt_max);
      chunk_dt[thread_index] = dt;
      chunk_decay[thread_index] = precise::exp(-precise::exp(log_a[head]) * dt);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < rows && active; i++) {
      const int r = first + (int)i;
      const float x = in[line_at(r, call.in_step[0]) + row], dt = chunk_dt[i];
      float y = 0.0f;
      for (uint l = 0; l < STATE_LANES; l++) {
        const uint j = l * 32u + lane;
        if (j >= n) continue;
        s[l] = fma(dt * x, chunk_b[i * n + j], s[l] * chunk_decay[i]);
        y = fma(s[l], chunk_c[i * n + j], y);
      }
      y = lanes_sum(y);
      if (has_vec(call, 2)) y = fma(skip[head], x, y);
      if (lane == 0u)
        out[line_at(r, call.out_step) + row] =
            mapped(after, map0, map1, map2, map3, r, (int)row, y, 0.0f);
    }
  }
  if (active) state_store(state, n, lane, s);
}
