// rope.metal - rotary positions: the table of a step, and the rotation of a head, which the KV
// cache's store shares.
#ifndef PE_METAL_ROPE
#define PE_METAL_ROPE

#include "kernels/metal/common.metal"

// One value of a head as a lane sees it: a pair that is rotated, or a value that is only copied.
// A head has `turns` pairs, then dim - 2 * turns other values. Each is written by one lane, so the
// result may replace the input.
struct head_part {
  int first, second;  // places in the head; second is -1: not rotated
};

METAL_FUNC int head_parts(constant pe_rope_args &args) { return args.dim - args.turns; }

METAL_FUNC head_part head_part_at(constant pe_rope_args &args, int i) {
  head_part p;
  if (i < args.turns) {
    p.first = args.skip + (args.pairs != 0 ? 2 * i : i);
    p.second = p.first + (args.pairs != 0 ? 1 : args.turns);
  } else {
    const int rest = i - args.turns;
    p.first = rest < args.skip ? rest : rest + 2 * args.turns, p.second = -1;
  }
  return p;
}

METAL_FUNC float norm_weight(constant pe_rope_args &args, device const float *weight, int i) {
  return args.norm.weights != 0 ? weight[i] + args.norm.offset : 1.0f;
}

// The factor of a head's values before their weights; all 32 lanes call this. After it the head may
// be overwritten.
METAL_FUNC float head_scale(constant pe_rope_args &args, device const float *x, uint lane) {
  if (args.norm.width == 0) return 1.0f;
  const float factor = norm_factor(args.norm, args.norm.width, x, lane);
  simdgroup_barrier(mem_flags::mem_device);
  return factor;
}

// Part i of a head, normalized and rotated. The norm may be of the first values only: then the rest
// is rotated, as keys of latent attention are.
METAL_FUNC void head_rotate(constant pe_rope_args &args, device const float *x,
                            device const float *weight, device const float *table, float scale,
                            head_part p, int i, thread float &first, thread float &second) {
  float u = x[p.first], v = p.second >= 0 ? x[p.second] : 0.0f;
  if (p.first < args.norm.width)
    u = u * scale * norm_weight(args, weight, p.first) * args.norm.scale;
  if (p.second >= 0 && p.second < args.norm.width)
    v = v * scale * norm_weight(args, weight, p.second) * args.norm.scale;
  first = u, second = v;
  if (p.second >= 0) {
    const float cosine = table[i], sine = table[args.turns + i];
    first = fma(u, cosine, -(v * sine)), second = fma(v, cosine, u * sine);
  }
}

// Normalizes and rotates a head.
METAL_FUNC void head_turn(constant pe_rope_args &args, device const float *x,
                          device const float *weight, device const float *table, device float *y,
                          uint lane) {
  const float scale = head_scale(args, x, lane);
  for (int i = (int)lane; i < head_parts(args); i += 32) {
    const head_part p = head_part_at(args, i);
    float first = 0.0f, second = 0.0f;
    head_rotate(args, x, weight, table, scale, p, i, first, second);
    y[p.first] = first;
    if (p.second >= 0) y[p.second] = second;
  }
}

#endif
