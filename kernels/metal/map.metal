// map.metal - chains of elementwise operations; see pe_map_args. A thread for each value.
#include "kernels/metal/common.metal"

kernel void map(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                constant pe_map_args &args [[buffer(PE_SLOT_ARGS)]],
                device float *out [[buffer(PE_SLOT_OUT)]],
                device const float *in0 [[buffer(PE_SLOT_IN0)]],
                device const float *in1 [[buffer(PE_SLOT_IN1)]],
                device const float *in2 [[buffer(PE_SLOT_IN2)]],
                device const float *in3 [[buffer(PE_SLOT_IN3)]],
                device const float *vec0 [[buffer(PE_SLOT_VEC0)]],
                device const float *vec1 [[buffer(PE_SLOT_VEC1)]],
                device const float *vec2 [[buffer(PE_SLOT_VEC2)]],
                device const float *vec3 [[buffer(PE_SLOT_VEC3)]],
                uint2 at [[thread_position_in_grid]]) {
  const int row = (int)at.y, column = (int)at.x;
  if (column >= args.width) return;
  float registers[PE_MAP_REGISTERS];
  for (int i = 0; i < args.inputs; i++) {
    const bool fixed = args.input[i].fixed != 0;
    device const float *in = i == 0   ? (fixed ? vec0 : in0)
                             : i == 1 ? (fixed ? vec1 : in1)
                             : i == 2 ? (fixed ? vec2 : in2)
                                      : (fixed ? vec3 : in3);
    const int at_column = map_column(args, i, column);
    registers[i] = fixed ? in[at_column]
                         : in[line_at(row, call.in_step[i]) + part_at(call.part[i], at_column)];
  }
  out[line_at(row, call.out_step) + at.x] = map_result(args, registers);
}
