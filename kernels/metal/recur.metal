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

// at.x: the channel, at.y: the segment.
kernel void conv(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                 constant pe_conv_args &args [[buffer(PE_SLOT_ARGS)]],
                 device float *out [[buffer(PE_SLOT_OUT)]],
                 device const float *in [[buffer(PE_SLOT_IN0)]],
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
  float past[PE_CONV_TAPS];  // the last taps inputs, oldest first
  for (int t = 0; t < before; t++) past[t] = state[t];
  for (int r = segment.first; r < segment.first + segment.count; r++) {
    past[before] = in[line_at(r, call.in_step[0]) + at.x];
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

// group.x: rows of the state, group.y: the head, group.z: the segment.
kernel void delta(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                  constant pe_delta_args &args [[buffer(PE_SLOT_ARGS)]],
                  device float *out [[buffer(PE_SLOT_OUT)]],
                  device const float *queries [[buffer(PE_SLOT_IN0)]],
                  device const float *keys [[buffer(PE_SLOT_IN1)]],
                  device const float *values [[buffer(PE_SLOT_IN2)]],
                  device const float *decays [[buffer(PE_SLOT_IN3)]],
                  device const float *betas [[buffer(PE_SLOT_IN4)]],
                  device float *states [[buffer(PE_SLOT_STATE)]],
                  device const int *words [[buffer(PE_SLOT_STEP)]],
                  uint3 group [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint simdgroups [[simdgroups_per_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float chunk_q[PE_STATE_CHUNK * PE_STATE_WIDTH];
  threadgroup float chunk_k[PE_STATE_CHUNK * PE_STATE_WIDTH];
  threadgroup float chunk_decay[PE_STATE_CHUNK * PE_STATE_WIDTH];
  device const pe_segment &segment = segment_at(words, (int)group.z);
  const bool channel = args.channel != 0;
  const uint n = (uint)args.key, head = group.y, factors = channel ? n : 1u;
  const uint key_head = head / (uint)(args.heads / args.key_heads) * n;
  const uint of_head = group.x * simdgroups + simdgroup, threads = simdgroups * 32u;
  const bool active = of_head < (uint)args.value;
  const uint row = head * (uint)args.value + (active ? of_head : 0u);
  device float *state = states + state_at(call, segment) + (size_t)row * (size_t)n;
  float s[STATE_LANES];
  state_load(state, active ? n : 0u, lane, s);  // inactive: zeros, since row 0 is another's
  const int end = segment.first + segment.count;
  for (int first = segment.first; first < end; first += PE_STATE_CHUNK) {
    const uint rows = (uint)min((int)PE_STATE_CHUNK, end - first);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the chunk before has been read
    chunk_copy(queries + key_head, call.in_step[0], first, rows, n, thread_index, threads, chunk_q);
    chunk_copy(keys + key_head, call.in_step[1], first, rows, n, thread_index, threads, chunk_k);
    chunk_copy(decays + head * factors, call.in_step[3], first, rows, factors, thread_index,
               threads, chunk_decay);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < rows && active; i++) {
      const int r = first + (int)i;
      const float y = delta_row(chunk_q + i * n, chunk_k + i * n, chunk_decay + i * factors,
                                channel, n, values[line_at(r, call.in_step[2]) + row],
                                betas[line_at(r, call.in_step[4]) + head], lane, s);
      if (lane == 0u) out[line_at(r, call.out_step) + row] = y;
    }
  }
  if (active) state_store(state, n, lane, s);
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
