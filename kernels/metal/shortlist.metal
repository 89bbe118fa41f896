// shortlist.metal - the best logits of an output, so that the host need not read them all.
//
// The line is cut into stretches, and the first kernel finds the highest logit of each: its peak.
// The second one takes the k-th highest peak, where k is how many logits are asked for, and lists
// all logits from it on, in the order of ids. So the list has the k best, and some more where
// several of them are neighbours. Nothing is rounded: the list is a part of the line, and a sampler
// that keeps k tokens at most finds the same ones in both.
//
//     line    ..2.7..|.1..1...|.9..8..3|.....4..|      k = 2: the peaks are 7 1 9 4, the second
//     list    7, 9, 8                                  highest is 7
//
// The third kernel sums up the weights e^((x - top) * scale) of each block of logits; top is the
// highest peak. It computes them as the host's passes do (kernels/cpu/scan_impl.h), and its sums
// have the same bits: so logprobs and draws need no more of the line than one block.
#include "kernels/metal/common.metal"

// The order of floats as integers; both zeros are equal.
METAL_FUNC int rank_of(float x) {
  const int i = as_type<int>(x);
  return i < 0 ? (int)0x80000000u - i : i;
}
METAL_FUNC float of_rank(int i) { return as_type<float>(i < 0 ? (int)0x80000000u - i : i); }

METAL_FUNC device const pe_wanted &wanted_at(device const int *words, int output) {
  return ((device const pe_wanted *)(words + step_head(words).wanted))[output];
}

// A simdgroup for each stretch; group.y: the output. A stretch with NaN has the peak infinity: both
// make the line one that the host has to look at.
kernel void shortlist_peaks(constant pe_metal_shortlist_args &args [[buffer(PE_SLOT_ARGS)]],
                            device float *peaks [[buffer(PE_SLOT_SCRATCH)]],
                            device const float *logits [[buffer(PE_SLOT_IN0)]],
                            device const int *words [[buffer(PE_SLOT_STEP)]],
                            uint2 group [[threadgroup_position_in_grid]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]],
                            uint simdgroups [[simdgroups_per_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
  const int stretch = (int)(group.x * simdgroups + simdgroup);
  if (stretch >= args.stretches || wanted_at(words, (int)group.y).best == 0) return;
  device const float *x = logits + line_at((int)group.y, args.step);
  const int end = min((stretch + 1) * PE_SHORTLIST_STRETCH, args.vocabulary);
  float most = -INFINITY;
  for (int i = stretch * PE_SHORTLIST_STRETCH + (int)lane; i < end; i += 32)
    most = isnan(x[i]) ? INFINITY : max(most, x[i]);
  most = lanes_max(most);
  if (lane == 0u) peaks[line_at((int)group.y, args.stretches) + (size_t)stretch] = most;
}

struct member { // of a threadgroup
  uint number, simdgroup, lane;
};

// The sum over a threadgroup, in all threads.
METAL_FUNC int group_sum(int v, threadgroup int *part, member me) {
  for (ushort d = 1; d < 32; d *= 2) v += simd_shuffle_xor(v, d);
  if (me.lane == 0u) part[me.simdgroup] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int sum = 0;
  for (int i = 0; i < PE_SHORTLIST_STRETCH / 32; i++) sum += part[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return sum;
}

METAL_FUNC float group_max(float v, threadgroup float *part, member me) {
  v = lanes_max(v);
  if (me.lane == 0u) part[me.simdgroup] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = 0; i < PE_SHORTLIST_STRETCH / 32; i++) v = max(v, part[i]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return v;
}

// How many threads before this one are `in`; *all: how many of the group are.
METAL_FUNC int place_of(bool in, threadgroup int *part, member me, thread int *all) {
  int v = in ? 1 : 0;
  for (ushort d = 1; d < 32; d *= 2) {
    const int before = simd_shuffle(v, (ushort)((me.lane - d) & 31u));
    v += me.lane >= d ? before : 0;
  }
  if (me.lane == 31u) part[me.simdgroup] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int place = v - (in ? 1 : 0), sum = 0;
  for (int i = 0; i < PE_SHORTLIST_STRETCH / 32; i++) {
    place += i < (int)me.simdgroup ? part[i] : 0;
    sum += part[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  *all = sum;
  return place;
}

// The k-th highest of n peaks, the highest of which is `top`: bit after bit of its rank.
METAL_FUNC float nth_peak(device const float *peak, int n, int k, float top, threadgroup int *part,
                          member me) {
  int low = rank_of(-INFINITY), high = rank_of(top);
  while (low < high) {
    const int middle = low + (int)(((uint)high - (uint)low) / 2u + 1u);
    int count = 0;
    for (int i = (int)me.number; i < n; i += PE_SHORTLIST_STRETCH)
      count += rank_of(peak[i]) >= middle ? 1 : 0;
    if (group_sum(count, part, me) >= k)
      low = middle;
    else
      high = middle - 1;
  }
  return of_rank(low);
}

// A threadgroup for each output.
kernel void shortlist(constant pe_metal_shortlist_args &args [[buffer(PE_SLOT_ARGS)]],
                      device int *out [[buffer(PE_SLOT_OUT)]],
                      device const float *peaks [[buffer(PE_SLOT_SCRATCH)]],
                      device const float *logits [[buffer(PE_SLOT_IN0)]],
                      device const int *words [[buffer(PE_SLOT_STEP)]],
                      uint row [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]]) {
  threadgroup int part[PE_SHORTLIST_STRETCH / 32];
  threadgroup float part_max[PE_SHORTLIST_STRETCH / 32];
  threadgroup int found[PE_WANTED_ROOM];
  const member me = {thread_index, simdgroup, lane};
  const int best = wanted_at(words, (int)row).best;
  if (best == 0) return;
  device const float *x = logits + line_at((int)row, args.step);
  device const float *peak = peaks + line_at((int)row, args.stretches);
  device int *list = out + line_at((int)row, PE_SHORTLIST_WORDS);
  float top = -INFINITY;
  for (int i = (int)me.number; i < args.stretches; i += PE_SHORTLIST_STRETCH)
    top = max(top, peak[i]);
  top = group_max(top, part_max, me);
  if (!(top > -INFINITY && top < INFINITY)) {
    if (me.number == 0u) list[0] = -1;
    return;
  }
  float from = -3.4028234664e38f; // of finite logits
  if (best == 1)
    from = top;
  else if (best <= args.stretches)
    from = max(from, nth_peak(peak, args.stretches, best, top, part, me));
  int stretches = 0, count = 0, more = 0; // those with such logits, in order
  for (int i = 0; i < args.stretches; i += PE_SHORTLIST_STRETCH) {
    const int s = i + (int)me.number;
    const bool in = s < args.stretches && peak[min(s, args.stretches - 1)] >= from;
    const int at = stretches + place_of(in, part, me, &more);
    if (in && at < PE_WANTED_ROOM) found[at] = s;
    stretches += more;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int j = 0; j < min(stretches, (int)PE_WANTED_ROOM); j++) {
    const int i = found[j] * PE_SHORTLIST_STRETCH + (int)me.number;
    const float v = x[min(i, args.vocabulary - 1)];
    const bool in = i < args.vocabulary && v >= from;
    const int at = count + place_of(in, part, me, &more);
    if (in && at < PE_WANTED_ROOM)
      list[1 + at] = i, list[1 + PE_WANTED_ROOM + at] = as_type<int>(v);
    count += more;
  }
  if (me.number == 0u) list[0] = stretches > PE_WANTED_ROOM ? -1 : count;
}

// The lowest logit that is not more than `far` below the top; `rest` is what rounding took from the
// difference.
METAL_FUNC float lowest_within(float top, float far) {
  const float low = top - far, part = low - top;
  const float rest = (top - (low - part)) + (-far - part);
  return max(rest > 0.0f ? of_rank(rank_of(low) + 1) : low, -3.4028234664e38f);
}

// 2^(d * factor) for powers between -126 and 0.
METAL_FUNC float power(float d, float factor) {
  const float magic = 12582912.0f;  // leaves the nearest whole number in the low bits
  const float shifted = fma(d, factor, magic);
  const float f = fma(d, factor, magic - shifted);
  float p = fma(1.32647267e-3f, f, 9.67151268e-3f);
  p = fma(p, f, 5.55073375e-2f);
  p = fma(p, f, 2.40222421e-1f);
  p = fma(p, f, 6.93146978e-1f);
  p = fma(p, f, 1.0f);
  return as_type<float>(as_type<uint>(p) + (as_type<uint>(shifted) << 23));
}

// Sixteen lanes for each block, lane j taking the logits j, j + 16, ... of it; group.y: the output,
// group.z: the scale.
kernel void shortlist_sums(constant pe_metal_shortlist_args &args [[buffer(PE_SLOT_ARGS)]],
                           device float *sums [[buffer(PE_SLOT_OUT)]],
                           device const float *peaks [[buffer(PE_SLOT_SCRATCH)]],
                           device const float *logits [[buffer(PE_SLOT_IN0)]],
                           device const int *words [[buffer(PE_SLOT_STEP)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  const int row = (int)group.y, first = 2 * (int)(group.x * simdgroups + simdgroup);
  device const pe_scan_scale &scale = wanted_at(words, row).sums[group.z];
  if (first >= args.blocks || scale.scale == 0.0f) return;
  device const float *x = logits + line_at(row, args.step);
  device const float *peak = peaks + line_at(row, args.stretches);
  float top = -INFINITY;
  for (int i = (int)lane; i < args.stretches; i += 32) top = max(top, peak[i]);
  top = lanes_max(top);
  const int block = first + (int)(lane / 16u);
  const float low = lowest_within(top, scale.far);
  float sum = 0.0f;
  for (int i = (int)(lane % 16u); i < PE_SHORTLIST_BLOCK; i += 16) {
    const int at = block * PE_SHORTLIST_BLOCK + i;
    const float v = x[min(at, args.vocabulary - 1)];
    sum += at < args.vocabulary && v >= low ? power(v - top, scale.factor) : 0.0f;
  }
  for (ushort d = 8; d > 0; d /= 2) sum += simd_shuffle_xor(sum, d);
  if (lane % 16u == 0u && block < args.blocks)
    sums[line_at(row * 2 + (int)group.z, args.blocks) + (size_t)block] = sum;
}
