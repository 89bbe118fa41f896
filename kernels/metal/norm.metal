// norm.metal - norms over groups of a row, and a map of the result; see pe_norm_args.
//
// A threadgroup for each group. Its number of threads depends on the width alone (table.c), so the
// order of the sums does too: threads take every n-th value, then lanes, then simdgroups in order.
#include "kernels/metal/common.metal"

METAL_FUNC float group_sum(float v, threadgroup float *parts, uint simdgroup, uint simdgroups,
                           uint lane) {
  v = lanes_sum(v);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the parts of an earlier sum have been read
  if (lane == 0u) parts[simdgroup] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = 0; i < simdgroups; i++) sum += parts[i];
  return sum;
}

kernel void norm(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                 constant pe_norm_args &args [[buffer(PE_SLOT_ARGS)]],
                 device float *out [[buffer(PE_SLOT_OUT)]],
                 device const float *in [[buffer(PE_SLOT_IN0)]],
                 device const float *weight [[buffer(PE_SLOT_VEC0)]],
                 device const float *bias [[buffer(PE_SLOT_VEC1)]],
                 device const float *map0 [[buffer(PE_SLOT_IN2)]],
                 device const float *map1 [[buffer(PE_SLOT_IN3)]],
                 device const float *map2 [[buffer(PE_SLOT_IN4)]],
                 device const float *map3 [[buffer(PE_SLOT_IN5)]],
                 constant pe_metal_after &after [[buffer(PE_SLOT_AFTER)]],
                 uint2 group [[threadgroup_position_in_grid]],
                 uint first [[thread_index_in_threadgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]],
                 uint simdgroups [[simdgroups_per_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[PE_NORM_SIMDGROUPS];
  const uint width = (uint)args.width, by = simdgroups * 32u, at = group.x * width;
  device const float *x =
      in + line_at((int)group.y, call.in_step[0]) + part_at(call.part[0], (int)at);
  device float *y = out + line_at((int)group.y, call.out_step) + at;
  const uint w = args.weights > args.width ? at : 0u;
  float mean = 0.0f, squares = 0.0f;
  if (args.layer != 0) {
    float sum = 0.0f;
    for (uint i = first; i < width; i += by) sum += x[i];
    mean = group_sum(sum, parts, simdgroup, simdgroups, lane) / (float)width;
  }
  for (uint i = first; i < width; i += by) squares = fma(x[i] - mean, x[i] - mean, squares);
  squares = group_sum(squares, parts, simdgroup, simdgroups, lane);
  const float scale =
      1.0f / precise::sqrt((args.l2 != 0 ? squares : squares / (float)width) + args.eps);
  for (uint i = first; i < width; i += by) {
    float v = (x[i] - mean) * scale;
    if (args.weights != 0) v *= weight[w + i] + args.offset;
    if (args.layer != 0 && has_vec(call, 1)) v += bias[w + i];
    y[i] = mapped(after, map0, map1, map2, map3, (int)group.y, (int)(at + i), v * args.scale, 0.0f);
  }
}
