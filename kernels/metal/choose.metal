// choose.metal - which experts a row takes, and their weights; see pe_route_args. Shared by route
// and by products of experts that choose for themselves.
//
// One simdgroup chooses. Scores lie in memory of the group, where lanes take every 32nd; a lane
// remembers in a bit of its own which of them are taken, so PE_ROUTE_EXPERTS is at most 32 * 32.
#ifndef PE_METAL_CHOOSE
#define PE_METAL_CHOOSE

#include "kernels/metal/common.metal"

struct candidates {  // scores to choose from
  threadgroup const float *score;
  int count;
  bool biased;
  device const float *bias;
  int each;    // scores of a group; 0: no group is dropped
  ulong kept;  // a bit for each group
};

METAL_FUNC float choice_of(candidates c, int i) {
  if (c.each > 0 && (c.kept >> (ulong)(i / c.each) & 1ul) == 0ul) return -INFINITY;
  return c.biased ? c.score[i] + c.bias[i] : c.score[i];
}

// Whether score a of number i ranks before score b of number j: NaN last, ties to the lowest.
METAL_FUNC bool ranks_before(float a, int i, float b, int j) {
  if (j < 0) return i >= 0;
  if (i < 0) return false;
  if (isnan(a) != isnan(b)) return isnan(b);
  return a > b || (!(a < b) && i < j);
}

// The number of the best that is not taken yet, in all lanes.
METAL_FUNC int take_best(candidates c, uint lane, thread uint &taken) {
  int best = -1;
  float most = 0.0f;
  for (int i = (int)lane, bit = 0; i < c.count; i += 32, bit++) {
    const float score = choice_of(c, i);
    if ((taken >> (uint)bit & 1u) == 0u && ranks_before(score, i, most, best))
      best = i, most = score;
  }
  for (ushort d = 1; d < 32; d *= 2) {
    const int other = simd_shuffle_xor(best, d);
    const float value = simd_shuffle_xor(most, d);
    if (ranks_before(value, other, most, best)) best = other, most = value;
  }
  if (best % 32 == (int)lane) taken |= 1u << (uint)(best / 32);
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
METAL_FUNC float group_score(candidates c, int from, int n, bool best_only) {
  float first = -INFINITY, second = -INFINITY;
  for (int i = from; i < from + n; i++) {
    const float score = choice_of(c, i);
    if (score > first) {
      second = first, first = score;
    } else if (score > second) {
      second = score;
    }
  }
  return best_only || n < 2 ? first : first + second;
}

METAL_FUNC void drop_groups(constant pe_route_args &args, threadgroup float *scores, uint lane,
                            thread candidates &c) {
  const int each = args.experts / args.groups;
  uint taken = 0u;
  ulong kept = 0ul;
  for (int g = (int)lane; g < args.groups; g += 32)
    scores[g] = group_score(c, g * each, each, args.group_max != 0);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const candidates groups = candidates{scores, args.groups, false, c.bias, 0, 0ul};
  for (int k = 0; k < min(args.groups_kept, args.groups); k++)
    kept |= 1ul << (ulong)take_best(groups, lane, taken);
  c.each = each, c.kept = kept;
}

// Chooses by the logits x. `score` has room for all experts, `scores` for all groups; number and
// weight get the chosen.
METAL_FUNC void choose(constant pe_route_args &args, device const float *x, bool has_bias,
                       device const float *bias, uint lane, threadgroup float *score,
                       threadgroup float *scores, threadgroup int *number,
                       threadgroup float *weight) {
  for (int i = (int)lane; i < args.experts; i += 32)
    score[i] = args.kind == PE_ROUTE_SIGMOID ? sigmoid(x[i]) : x[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (args.kind == PE_ROUTE_SOFTMAX || args.kind == PE_ROUTE_SOFTMAX_BIASED)
    soften(score, args.experts, lane);
  const bool biased =
      has_bias && (args.kind == PE_ROUTE_SIGMOID || args.kind == PE_ROUTE_SOFTMAX_BIASED);
  candidates c = candidates{score, args.experts, biased, bias, 0, 0ul};
  if (args.groups > 1) drop_groups(args, scores, lane, c);
  uint taken = 0u;
  for (int k = 0; k < args.chosen; k++) {
    const int best = take_best(c, lane, taken);
    if (lane == 0u) number[k] = best, weight[k] = score[best];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (args.kind == PE_ROUTE_TOPK) soften(weight, args.chosen, lane);
}

// The factor of chosen expert k, after `choose`.
METAL_FUNC float chosen_weight(constant pe_route_args &args, threadgroup const float *weight,
                               int k) {
  float sum = args.eps;
  for (int i = 0; i < args.chosen; i++) sum += weight[i];
  return (args.normalize != 0 ? weight[k] / sum : weight[k]) * args.scale;
}

#endif
