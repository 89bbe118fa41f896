// route.metal - choosing experts, and the weighted sum of their results; see pe_route_args.
//
// A simdgroup for each row.
#include "kernels/metal/choose.metal"

kernel void route(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                  constant pe_route_args &args [[buffer(PE_SLOT_ARGS)]],
                  device float *out [[buffer(PE_SLOT_OUT)]],
                  device const float *in [[buffer(PE_SLOT_IN0)]],
                  device const float *bias [[buffer(PE_SLOT_VEC0)]],
                  device const float *factor [[buffer(PE_SLOT_VEC1)]],
                  uint row [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float score[PE_ROUTE_EXPERTS];
  threadgroup float scores[PE_ROUTE_GROUPS];
  threadgroup float weight[PE_ROUTE_CHOSEN];
  threadgroup int number[PE_ROUTE_CHOSEN];
  device float *y = out + line_at((int)row, call.out_step);
  choose(args, in + line_at((int)row, call.in_step[0]), has_vec(call, 0), bias, lane, score, scores,
         number, weight);
  for (int k = (int)lane; k < args.chosen; k += 32) {
    float w = chosen_weight(args, weight, k);
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
