// route.metal - choosing experts, and the weighted sum of their results; see pe_route_args.
//
// A simdgroup for each row. Experts lie in threadgroup memory; lanes take every 32nd.
#include "kernels/metal/common.metal"

// Whether score a of number i ranks before score b of number j: NaN last, ties to the lowest.
METAL_FUNC bool ranks_before(float a, int i, float b, int j) {
  if (j < 0) return i >= 0;
  if (i < 0) return false;
  if (isnan(a) != isnan(b)) return isnan(b);
  return a > b || (!(a < b) && i < j);
}

// The number of the best of `count` scores that is not taken yet, in all lanes.
METAL_FUNC int take_best(threadgroup const float *score, threadgroup int *taken, int count,
                         uint lane) {
  int best = -1;
  float most = 0.0f;
  for (int i = (int)lane; i < count; i += 32)
    if (taken[i] == 0 && ranks_before(score[i], i, most, best)) best = i, most = score[i];
  for (ushort d = 1; d < 32; d *= 2) {
    const int other = simd_shuffle_xor(best, d);
    const float value = simd_shuffle_xor(most, d);
    if (ranks_before(value, other, most, best)) best = other, most = value;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0u) taken[best] = 1;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  return best;
}

// Softmax of `count` values, in place.
METAL_FUNC void soften(threadgroup float *x, int count, uint lane) {
  float most = LOWEST, sum = 0.0f;
  for (int i = (int)lane; i < count; i += 32) most = max(most, x[i]);
  most = lanes_max(most);
  for (int i = (int)lane; i < count; i += 32) {
    x[i] = precise::exp(x[i] - most);
    sum += x[i];
  }
  sum = lanes_sum(sum);
  for (int i = (int)lane; i < count; i += 32) x[i] /= sum;
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

// The best score of a group, or the sum of its best two.
METAL_FUNC float group_score(threadgroup const float *score, int n, bool best_only) {
  float first = -INFINITY, second = -INFINITY;
  for (int i = 0; i < n; i++) {
    if (score[i] > first) {
      second = first, first = score[i];
    } else if (score[i] > second) {
      second = score[i];
    }
  }
  return best_only || n < 2 ? first : first + second;
}

METAL_FUNC void drop_groups(constant pe_route_args &args, threadgroup float *choice,
                            threadgroup float *scores, threadgroup int *taken, uint lane) {
  const int each = args.experts / args.groups;
  for (int g = (int)lane; g < args.groups; g += 32)
    scores[g] = group_score(choice + g * each, each, args.group_max != 0), taken[g] = 0;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int k = 0; k < min(args.groups_kept, args.groups); k++)
    take_best(scores, taken, args.groups, lane);
  for (int i = (int)lane; i < args.experts; i += 32)
    if (taken[i / each] == 0) choice[i] = -INFINITY;
  simdgroup_barrier(mem_flags::mem_threadgroup);
}

kernel void route(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                  constant pe_route_args &args [[buffer(PE_SLOT_ARGS)]],
                  device float *out [[buffer(PE_SLOT_OUT)]],
                  device const float *in [[buffer(PE_SLOT_IN0)]],
                  device const float *bias [[buffer(PE_SLOT_VEC0)]],
                  device const float *factor [[buffer(PE_SLOT_VEC1)]],
                  uint row [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float score[PE_ROUTE_EXPERTS];
  threadgroup float choice[PE_ROUTE_EXPERTS];
  threadgroup int taken[PE_ROUTE_EXPERTS];
  threadgroup float group_scores[PE_ROUTE_GROUPS];
  threadgroup float weight[PE_ROUTE_CHOSEN];
  threadgroup int number[PE_ROUTE_CHOSEN];
  device const float *x = in + line_at((int)row, call.in_step[0]);
  device float *y = out + line_at((int)row, call.out_step);
  for (int i = (int)lane; i < args.experts; i += 32)
    score[i] = args.kind == PE_ROUTE_SIGMOID ? sigmoid(x[i]) : x[i];
  if (args.kind == PE_ROUTE_SOFTMAX || args.kind == PE_ROUTE_SOFTMAX_BIASED)
    soften(score, args.experts, lane);
  const bool biased = has_vec(call, 0) &&
                      (args.kind == PE_ROUTE_SIGMOID || args.kind == PE_ROUTE_SOFTMAX_BIASED);
  for (int i = (int)lane; i < args.experts; i += 32)
    choice[i] = biased ? score[i] + bias[i] : score[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (args.groups > 1) drop_groups(args, choice, group_scores, taken, lane);
  for (int i = (int)lane; i < args.experts; i += 32) taken[i] = 0;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int k = 0; k < args.chosen; k++) {
    const int best = take_best(choice, taken, args.experts, lane);
    if (lane == 0u) number[k] = best, weight[k] = score[best];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (args.kind == PE_ROUTE_TOPK) soften(weight, args.chosen, lane);
  float sum = args.eps;
  for (int k = 0; k < args.chosen; k++) sum += weight[k];
  for (int k = (int)lane; k < args.chosen; k += 32) {
    float w = args.normalize != 0 ? weight[k] / sum : weight[k];
    w *= args.scale;
    if (has_vec(call, 1)) w *= factor[number[k]];
    y[k] = as_type<float>(number[k]);
    y[args.chosen + k] = w;
  }
}

// A thread for each value; at.y: the row.
kernel void expert_sum(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                       constant pe_expert_sum_args &args [[buffer(PE_SLOT_ARGS)]],
                       device float *out [[buffer(PE_SLOT_OUT)]],
                       device const float *in [[buffer(PE_SLOT_IN0)]],
                       device const float *routed [[buffer(PE_SLOT_IN1)]],
                       uint2 at [[thread_position_in_grid]]) {
  if ((int)at.x >= args.width) return;
  device const float *x = in + line_at((int)at.y, call.in_step[0]) + at.x;
  device const float *weight = routed + line_at((int)at.y, call.in_step[1]) + (size_t)args.chosen;
  float sum = 0.0f;
  for (int k = 0; k < args.chosen; k++) sum = fma(weight[k], x[k * args.width], sum);
  out[line_at((int)at.y, call.out_step) + at.x] = sum;
}
