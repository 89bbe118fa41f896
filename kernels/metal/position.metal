// position.metal - rope_table and rope: kernels over rope.metal.
#include "kernels/metal/rope.metal"

// The axis of the position that rotation i follows.
METAL_FUNC int axis_of(constant pe_rope_table_args &args, int i) {
  if (args.section[0] + args.section[1] + args.section[2] == 0) return 0;
  if (args.interleaved_axes != 0)
    return i % 3 != 0 && i < 3 * args.section[i % 3] ? i % 3 : 0;
  return i < args.section[0] ? 0 : i < args.section[0] + args.section[1] ? 1 : 2;
}

// A thread for each rotation; at.y: the row.
kernel void rope_table(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                       constant pe_rope_table_args &args [[buffer(PE_SLOT_ARGS)]],
                       device float *out [[buffer(PE_SLOT_OUT)]],
                       device const float *frequencies [[buffer(PE_SLOT_VEC0)]],
                       device const float *factors [[buffer(PE_SLOT_VEC1)]],
                       device const int *words [[buffer(PE_SLOT_STEP)]],
                       uint2 at [[thread_position_in_grid]]) {
  const int row = (int)at.y, i = (int)at.x;
  if (i >= args.turns) return;
  device const pe_metal_step &head = step_head(words);
  const int length = segment_of_row(words, row).rope_length;
  const bool beyond = length > args.threshold;
  const int variant = args.variants > 1 && beyond ? 1 : 0;
  float scale = has_vec(call, 1) ? args.scale * factors[variant] : args.scale;
  if (args.growth > 0.0f) {
    const float turns = (float)(words[head.position + row] / args.every);
    scale *= 1.0f + args.growth * precise::log(1.0f + turns);
  }
  float frequency = frequencies[variant * args.turns + i];
  if (args.dynamic != 0 && beyond) {
    const float grown =
        args.factor * (float)length / (float)args.threshold - (args.factor - 1.0f);
    const float base =
        args.theta * precise::pow(grown, (float)args.dims / (float)(args.dims - 2));
    frequency = 1.0f / precise::pow(base, (float)(2 * i) / (float)args.dims);
  }
  const int position = words[head.position + axis_of(args, i) * head.rows + row];
  const float angle = (float)position * frequency;
  device float *y = out + line_at(row, call.out_step);
  y[i] = precise::cos(angle) * scale;
  y[args.turns + i] = precise::sin(angle) * scale;
}

// A simdgroup for each head; group.y: the row.
kernel void rope(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                 constant pe_rope_args &args [[buffer(PE_SLOT_ARGS)]],
                 device float *out [[buffer(PE_SLOT_OUT)]],
                 device const float *in [[buffer(PE_SLOT_IN0)]],
                 device const float *table [[buffer(PE_SLOT_IN1)]],
                 device const float *weight [[buffer(PE_SLOT_VEC0)]],
                 uint2 group [[threadgroup_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]]) {
  const int row = (int)group.y;
  const int at = (int)group.x * args.dim;
  head_turn(args, in + line_at(row, call.in_step[0]) + part_at(call.part[0], at), weight,
            table + line_at(row, call.in_step[1]),
            out + line_at(row, call.out_step) + part_at(call.out_part, at), lane);
}
