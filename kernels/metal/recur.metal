// recur.metal - layers with a state per sequence: short convolutions, the gated delta rule,
// Mamba 2.
//
// The rows of a segment are taken strictly in order and the state is updated in place, so a prompt
// may be split anywhere. A thread has a channel of a convolution. A simdgroup has one row of a
// head's state, in registers while it walks the rows of the segment: value i is in lane i % 32.
#include "kernels/metal/common.metal"

enum { STATE_LANES = PE_STATE_WIDTH / 32 };  // values of a row of a state in each lane

METAL_FUNC size_t state_at(constant pe_metal_call &call, device const pe_segment &segment) {
  return (size_t)segment.slot * (size_t)call.state_step;
}

// ---- conv ---------------------------------------------------------------------------------------

// at.x: the channel, at.y: the segment.
kernel void conv(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                 constant pe_conv_args &args [[buffer(PE_SLOT_ARGS)]],
                 device float *out [[buffer(PE_SLOT_OUT)]],
                 device const float *in [[buffer(PE_SLOT_IN0)]],
                 device const float *weight [[buffer(PE_SLOT_VEC0)]],
                 device const float *bias [[buffer(PE_SLOT_VEC1)]],
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
    out[line_at(r, call.out_step) + at.x] = args.activation >= 0 ? unary(args.activation, y) : y;
    for (int t = 0; t < before; t++) past[t] = past[t + 1];
  }
  for (int t = 0; t < before; t++) state[t] = past[t];
}

// ---- delta --------------------------------------------------------------------------------------

// group.x: the row of the state, group.y: the head, group.z: the segment.
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
                  uint lane [[thread_index_in_simdgroup]]) {
  device const pe_segment &segment = segment_at(words, (int)group.z);
  const uint n = (uint)args.key, head = group.y, row = head * (uint)args.value + group.x;
  const uint key_head = head / (uint)(args.heads / args.key_heads) * n;
  device float *state = states + state_at(call, segment) + (size_t)row * (size_t)n;
  float s[STATE_LANES];
  for (uint i = 0; i < STATE_LANES; i++)
    s[i] = i * 32u + lane < n ? state[i * 32u + lane] : 0.0f;
  for (int r = segment.first; r < segment.first + segment.count; r++) {
    device const float *q = queries + line_at(r, call.in_step[0]) + key_head;
    device const float *k = keys + line_at(r, call.in_step[1]) + key_head;
    device const float *decay =
        decays + line_at(r, call.in_step[3]) + (args.channel != 0 ? head * n : head);
    float seen = 0.0f;
    for (uint i = 0; i < STATE_LANES; i++) {
      const uint j = i * 32u + lane;
      if (j >= n) continue;
      s[i] *= decay[args.channel != 0 ? j : 0u];
      seen = fma(s[i], k[j], seen);
    }
    seen = lanes_sum(seen);
    const float change = (values[line_at(r, call.in_step[2]) + row] - seen) *
                         betas[line_at(r, call.in_step[4]) + head];
    float y = 0.0f;
    for (uint i = 0; i < STATE_LANES; i++) {
      const uint j = i * 32u + lane;
      if (j >= n) continue;
      s[i] = fma(change, k[j], s[i]);
      y = fma(s[i], q[j], y);
    }
    y = lanes_sum(y);
    if (lane == 0u) out[line_at(r, call.out_step) + row] = y;
  }
  for (uint i = 0; i < STATE_LANES; i++)
    if (i * 32u + lane < n) state[i * 32u + lane] = s[i];
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
                device float *states [[buffer(PE_SLOT_STATE)]],
                device const int *words [[buffer(PE_SLOT_STEP)]],
                uint3 group [[threadgroup_position_in_grid]],
                uint lane [[thread_index_in_simdgroup]]) {
  device const pe_segment &segment = segment_at(words, (int)group.z);
  const uint n = (uint)args.state, head = group.y, row = head * (uint)args.dim + group.x;
  const uint at = head / (uint)(args.heads / args.groups) * n;
  device float *state = states + state_at(call, segment) + (size_t)row * (size_t)n;
  float s[STATE_LANES];
  for (uint i = 0; i < STATE_LANES; i++)
    s[i] = i * 32u + lane < n ? state[i * 32u + lane] : 0.0f;
  for (int r = segment.first; r < segment.first + segment.count; r++) {
    device const float *b = writes + line_at(r, call.in_step[1]) + at;
    device const float *c = reads + line_at(r, call.in_step[2]) + at;
    const float x = in[line_at(r, call.in_step[0]) + row];
    float dt = times[line_at(r, call.in_step[3]) + head];
    if (has_vec(call, 1)) dt += time_bias[head];
    dt = min(max(unary(PE_MAP_SOFTPLUS, dt), args.dt_min), args.dt_max);
    const float decay = precise::exp(-precise::exp(log_a[head]) * dt);
    float y = 0.0f;
    for (uint i = 0; i < STATE_LANES; i++) {
      const uint j = i * 32u + lane;
      if (j >= n) continue;
      s[i] = fma(dt * x, b[j], s[i] * decay);
      y = fma(s[i], c[j], y);
    }
    y = lanes_sum(y);
    if (has_vec(call, 2)) y = fma(skip[head], x, y);
    if (lane == 0u) out[line_at(r, call.out_step) + row] = y;
  }
  for (uint i = 0; i < STATE_LANES; i++)
    if (i * 32u + lane < n) state[i * 32u + lane] = s[i];
}
