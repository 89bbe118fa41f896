// copy.metal - ops that move values: concat, slice, output, deepstack, patches, merge. A thread for
// each value of the result; at.y is its row. Values are moved as words, so integers pass unchanged.
#include "kernels/metal/common.metal"

kernel void concat(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                   constant pe_concat_args &args [[buffer(PE_SLOT_ARGS)]],
                   device uint *out [[buffer(PE_SLOT_OUT)]],
                   device const uint *in0 [[buffer(PE_SLOT_IN0)]],
                   device const uint *in1 [[buffer(PE_SLOT_IN1)]],
                   device const uint *in2 [[buffer(PE_SLOT_IN2)]],
                   device const uint *in3 [[buffer(PE_SLOT_IN3)]],
                   device const uint *in4 [[buffer(PE_SLOT_IN4)]],
                   device const uint *in5 [[buffer(PE_SLOT_IN5)]],
                   uint2 at [[thread_position_in_grid]]) {
  if ((int)at.x >= concat_width(args) * args.heads) return;
  const concat_place p = concat_at(args, (int)at.x);
  device const uint *in = p.input == 0   ? in0
                          : p.input == 1 ? in1
                          : p.input == 2 ? in2
                          : p.input == 3 ? in3
                          : p.input == 4 ? in4
                                         : in5;
  out[line_at((int)at.y, call.out_step) + at.x] =
      in[line_at((int)at.y, call.in_step[p.input]) + part_at(call.part[p.input], p.at)];
}

kernel void slice(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                  constant pe_slice_args &args [[buffer(PE_SLOT_ARGS)]],
                  device uint *out [[buffer(PE_SLOT_OUT)]],
                  device const uint *in [[buffer(PE_SLOT_IN0)]],
                  uint2 at [[thread_position_in_grid]]) {
  if ((int)at.x >= args.heads * args.count) return;
  const int head = (int)at.x / args.count, i = (int)at.x % args.count;
  out[line_at((int)at.y, call.out_step) + at.x] =
      in[line_at((int)at.y, call.in_step[0]) + (size_t)(head * args.dim + args.from + i)];
}

kernel void output(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                   constant pe_output_args &args [[buffer(PE_SLOT_ARGS)]],
                   device uint *out [[buffer(PE_SLOT_OUT)]],
                   device const uint *in [[buffer(PE_SLOT_IN0)]],
                   device const int *words [[buffer(PE_SLOT_STEP)]],
                   uint2 at [[thread_position_in_grid]]) {
  if ((int)at.x >= args.width) return;
  const int row = words[step_head(words).output + (int)at.y];
  out[line_at((int)at.y, call.out_step) + at.x] = in[line_at(row, call.in_step[0]) + at.x];
}

kernel void deepstack(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                      constant pe_deepstack_args &args [[buffer(PE_SLOT_ARGS)]],
                      device float *out [[buffer(PE_SLOT_OUT)]],
                      device const float *in [[buffer(PE_SLOT_IN0)]],
                      device const int *words [[buffer(PE_SLOT_STEP)]],
                      device const float *features [[buffer(PE_SLOT_FEATURES)]],
                      uint2 at [[thread_position_in_grid]]) {
  if ((int)at.x >= args.width) return;
  const int line = feature_of(words, (int)at.y);
  float y = in[line_at((int)at.y, call.in_step[0]) + at.x];
  if (line >= 0) y += feature_line(words, features, line, args.plane)[at.x];
  out[line_at((int)at.y, call.out_step) + at.x] = y;
}

kernel void patches(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                    constant pe_patches_args &args [[buffer(PE_SLOT_ARGS)]],
                    device float *out [[buffer(PE_SLOT_OUT)]],
                    device const int *words [[buffer(PE_SLOT_STEP)]],
                    device const float *patch [[buffer(PE_SLOT_FEATURES)]],
                    uint2 at [[thread_position_in_grid]]) {
  if ((int)at.x >= args.width) return;
  out[line_at((int)at.y, call.out_step) + at.x] =
      patch[line_at((int)at.y, step_head(words).patch_width) + at.x];
}

kernel void merge(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                  constant pe_merge_args &args [[buffer(PE_SLOT_ARGS)]],
                  device float *out [[buffer(PE_SLOT_OUT)]],
                  device const float *in [[buffer(PE_SLOT_IN0)]],
                  device const int *words [[buffer(PE_SLOT_STEP)]],
                  uint2 at [[thread_position_in_grid]]) {
  if ((int)at.x >= args.width * (args.mean != 0 ? 1 : args.count)) return;
  device const int *rows = words + step_head(words).merge + (int)at.y * args.count;
  const size_t i = at.x % (uint)args.width;
  float y = in[line_at(rows[(int)at.x / args.width], call.in_step[0]) + i];
  if (args.mean != 0) {
    for (int j = 1; j < args.count; j++) y += in[line_at(rows[j], call.in_step[0]) + i];
    y /= (float)args.count;
  }
  out[line_at((int)at.y, call.out_step) + at.x] = y;
}
