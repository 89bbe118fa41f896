// expert.metal - products with the weights of experts, in the arithmetic of product.metal.
//
// A pair is a row and one of its chosen experts: pair = row * chosen + rank. For a few pairs every
// pair is a product of its own. For many, expert_sort first lists the pairs by expert, in order
// within each, and cuts the list into tiles of eight pairs, so that a weight is decoded once for a
// tile. The pairs of a single row are added in one dispatch (expert_total). Scratch, as ints:
//
//     [0] tiles   [1 ..] three for each tile: expert, first pair in the list, pairs   then the list
#include "kernels/metal/choose.metal"
#include "kernels/metal/product.metal"

METAL_FUNC int expert_of(constant pe_metal_call &call, constant pe_expert_args &args,
                         device const int *chosen, int pair) {
  return chosen[line_at(pair / args.chosen, call.in_step[1]) + (size_t)(pair % args.chosen)];
}
METAL_FUNC device const float *pair_input(constant pe_metal_call &call,
                                          constant pe_expert_args &args, device const float *in,
                                          int pair) {
  return in + line_at(pair / args.chosen, call.in_step[0]) +
         (args.spread != 0 ? (uint)(pair % args.chosen * args.in) : 0u);
}
// The lines of R pairs, normalized where NORM says so.
template <int R>
METAL_FUNC void pair_lines(constant pe_metal_call &call, constant pe_expert_args &args,
                           device const float *in, device const float *weight,
                           thread const int *pairs, uint lane, thread product_input<R> &input) {
  plain_input<R>(in, input);
  for (int r = 0; r < R; r++) input.x[r] = pair_input(call, args, in, pairs[r]);
  if (NORM != 0u) norm_input<R>(call.norm, weight, lane, input);
}
METAL_FUNC device float *pair_output(constant pe_metal_call &call, constant pe_expert_args &args,
                                     device float *out, int pair) {
  return out + line_at(pair / args.chosen, call.out_step) +
         (uint)(pair % args.chosen * args.out);
}
// Where the list begins, for the most tiles that there can be.
METAL_FUNC int list_at(constant pe_metal_call &call, constant pe_expert_args &args) {
  const int pairs = call.rows * args.chosen;
  return 1 + 3 * min(pairs, pairs / PE_EXPERT_TILE + args.experts);
}

kernel void expert_sort(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                        constant pe_expert_args &args [[buffer(PE_SLOT_ARGS)]],
                        device const int *chosen [[buffer(PE_SLOT_IN1)]],
                        device int *scratch [[buffer(PE_SLOT_SCRATCH)]],
                        uint thread_index [[thread_index_in_threadgroup]]) {
  threadgroup int first[PE_SORT_EXPERTS];
  threadgroup int tile[PE_SORT_EXPERTS];
  const int pairs = call.rows * args.chosen, list = list_at(call, args);
  for (int e = (int)thread_index; e < args.experts; e += PE_SORT_THREADS) {
    int count = 0;
    for (int p = 0; p < pairs; p++) count += expert_of(call, args, chosen, p) == e ? 1 : 0;
    first[e] = count;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index == 0u) {
    int at = 0, tiles = 0;
    for (int e = 0; e < args.experts; e++) {
      const int count = first[e];
      first[e] = at, tile[e] = tiles;
      at += count, tiles += (count + PE_EXPERT_TILE - 1) / PE_EXPERT_TILE;
    }
    scratch[0] = tiles;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int e = (int)thread_index; e < args.experts; e += PE_SORT_THREADS) {
    int count = 0;
    for (int p = 0; p < pairs; p++) {
      if (expert_of(call, args, chosen, p) != e) continue;
      scratch[list + first[e] + count] = p;
      count++;
    }
    for (int t = 0; t * PE_EXPERT_TILE < count; t++) {
      device int *entry = scratch + 1 + 3 * (tile[e] + t);
      entry[0] = e, entry[1] = first[e] + t * PE_EXPERT_TILE;
      entry[2] = min((int)PE_EXPERT_TILE, count - t * PE_EXPERT_TILE);
    }
  }
}

// The expert and the pairs of tile `number`; R = 1: a tile is a pair. False: there is no such tile.
template <int R>
METAL_FUNC bool tile_pairs(constant pe_metal_call &call, constant pe_expert_args &args,
                           device const int *chosen, device const int *scratch, uint number,
                           thread int *pairs, thread int &count, thread uint &expert) {
  if (R == 1) {
    pairs[0] = (int)number, count = 1;
    expert = (uint)expert_of(call, args, chosen, (int)number);
    return true;
  }
  if ((int)number >= scratch[0]) return false;
  device const int *entry = scratch + 1u + 3u * number;
  device const int *list = scratch + list_at(call, args) + entry[1];
  expert = (uint)entry[0], count = entry[2];
  for (int r = 0; r < R; r++) pairs[r] = list[min(r, count - 1)];
  return true;
}

template <int R, int C>
kernel void expert_linear(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                          constant pe_expert_args &args [[buffer(PE_SLOT_ARGS)]],
                          device float *out [[buffer(PE_SLOT_OUT)]],
                          device const float *in [[buffer(PE_SLOT_IN0)]],
                          device const int *chosen [[buffer(PE_SLOT_IN1)]],
                          device const float *map0 [[buffer(PE_SLOT_IN2)]],
                          device const float *map1 [[buffer(PE_SLOT_IN3)]],
                          device const float *map2 [[buffer(PE_SLOT_IN4)]],
                          device const float *map3 [[buffer(PE_SLOT_IN5)]],
                          constant pe_metal_after &after [[buffer(PE_SLOT_AFTER)]],
                          device const uchar *data [[buffer(PE_SLOT_DATA)]],
                          device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                          device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                          device const float *bias [[buffer(PE_SLOT_VEC0)]],
                          device const float *weight [[buffer(PE_SLOT_VEC3)]],
                          device const ulong *offsets [[buffer(PE_SLOT_EXPERTS)]],
                          device const int *scratch [[buffer(PE_SLOT_SCRATCH)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint simdgroups [[simdgroups_per_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  product_input<R> input;
  uint columns[C];
  int pairs[R];
  int count = 0;
  uint first = 0, expert = 0;
  float sums[R * C];
  if (!tile_pairs<R>(call, args, chosen, scratch, group.y, pairs, count, expert)) return;
  columns_of<C>(group.x, simdgroups, simdgroup, lane, (uint)args.out, columns, first);
  pair_lines<R>(call, args, in, weight, pairs, lane, input);
  product<R, C>(format_1(), call.mat,
                matrix_at(weight_matrix{data, scales, biases}, offsets, expert), columns, input,
                lane % PARTS, sums);
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const uint column = first + (uint)c;
      if (!stores(r * C + c, lane % PARTS) || r >= count || column >= (uint)args.out) continue;
      float y = sums[r * C + c];
      if (has_vec(call, 0)) y += bias[(size_t)expert * (size_t)args.out + column];
      const int row = pairs[r] / args.chosen, at = pairs[r] % args.chosen * args.out;
      pair_output(call, args, out, pairs[r])[column] =
          mapped(after, map0, map1, map2, map3, row, at + (int)column, y, 0.0f);
    }
}
template [[host_name("expert_linear_1")]] kernel decltype(expert_linear<1, 2>) expert_linear<1, 2>;
template [[host_name("expert_linear_8")]] kernel decltype(expert_linear<8, 2>) expert_linear<8, 2>;

// The products of a row with its experts, their weighted sum as the op expert_sum has it, and what
// a map makes of that: with its input number after.product times mat2, if there is one. Groups of
// columns along x, rows along y.
kernel void expert_total(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                         constant pe_expert_args &args [[buffer(PE_SLOT_ARGS)]],
                         device float *out [[buffer(PE_SLOT_OUT)]],
                         device const float *in [[buffer(PE_SLOT_IN0)]],
                         device const int *chosen [[buffer(PE_SLOT_IN1)]],
                         device const float *map0 [[buffer(PE_SLOT_IN2)]],
                         device const float *map1 [[buffer(PE_SLOT_IN3)]],
                         device const float *map2 [[buffer(PE_SLOT_IN4)]],
                         device const float *map3 [[buffer(PE_SLOT_IN5)]],
                         constant pe_metal_after &after [[buffer(PE_SLOT_AFTER)]],
                         device const uchar *data [[buffer(PE_SLOT_DATA)]],
                         device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                         device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                         device const uchar *data2 [[buffer(PE_SLOT_DATA2)]],
                         device const uchar *scales2 [[buffer(PE_SLOT_SCALES2)]],
                         device const uchar *biases2 [[buffer(PE_SLOT_BIASES2)]],
                         device const float *bias [[buffer(PE_SLOT_VEC0)]],
                         device const float *bias2 [[buffer(PE_SLOT_VEC1)]],
                         device const ulong *offsets [[buffer(PE_SLOT_EXPERTS)]],
                         uint2 group [[threadgroup_position_in_grid]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
  const int row = (int)group.y;
  device const int *weights = chosen + line_at(row, call.in_step[1]) + (size_t)args.chosen;
  product_input<1> input;
  uint columns[2];
  uint first = 0;
  float sums[2], total[2];
  total[0] = total[1] = 0.0f;
  columns_of<2>(group.x, simdgroups, simdgroup, lane, (uint)args.out, columns, first);
  plain_input<1>(in, input);
  for (int k = 0; k < args.chosen; k++) {
    const int pair = row * args.chosen + k;
    const uint expert = (uint)expert_of(call, args, chosen, pair);
    input.x[0] = pair_input(call, args, in, pair);
    product<1, 2>(format_1(), call.mat,
                  matrix_at(weight_matrix{data, scales, biases}, offsets, expert), columns, input,
                  lane % PARTS, sums);
    for (int c = 0; c < 2; c++) {
      if (has_vec(call, 0)) sums[c] += bias[line_at((int)expert, args.out) + columns[c]];
      total[c] = fma(as_type<float>(weights[k]), sums[c], total[c]);
    }
  }
  sums[0] = sums[1] = 0.0f;
  if (after.map.inputs > 0 && after.product >= 0) {
    const int i = after.product;
    device const float *from = i == 0 ? map0 : i == 1 ? map1 : i == 2 ? map2 : map3;
    input.x[0] = from + line_at(row, after.step[i]);
    product<1, 2>(format_2(), call.mat2, weight_matrix{data2, scales2, biases2}, columns, input,
                  lane % PARTS, sums);
    for (int c = 0; c < 2; c++)
      if (has_vec(call, 1)) sums[c] += bias2[columns[c]];
  }
  for (int c = 0; c < 2; c++) {
    const uint column = first + (uint)c;
    if (!stores(c, lane % PARTS) || column >= (uint)args.out) continue;
    out[line_at(row, call.out_step) + column] =
        mapped(after, map0, map1, map2, map3, row, (int)column, total[c], sums[c]);
  }
}

template <int R, int C>
kernel void expert_gated(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                         constant pe_expert_gated_args &gated_args [[buffer(PE_SLOT_ARGS)]],
                         device float *out [[buffer(PE_SLOT_OUT)]],
                         device const float *in [[buffer(PE_SLOT_IN0)]],
                         device const int *chosen [[buffer(PE_SLOT_IN1)]],
                         device const uchar *data [[buffer(PE_SLOT_DATA)]],
                         device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                         device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                         device const uchar *data2 [[buffer(PE_SLOT_DATA2)]],
                         device const uchar *scales2 [[buffer(PE_SLOT_SCALES2)]],
                         device const uchar *biases2 [[buffer(PE_SLOT_BIASES2)]],
                         device const float *bias [[buffer(PE_SLOT_VEC0)]],
                         device const float *bias2 [[buffer(PE_SLOT_VEC1)]],
                         device const float *weight [[buffer(PE_SLOT_VEC3)]],
                         device const ulong *offsets [[buffer(PE_SLOT_EXPERTS)]],
                         device const int *scratch [[buffer(PE_SLOT_SCRATCH)]],
                         uint2 group [[threadgroup_position_in_grid]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
  constant pe_expert_args &args = gated_args.expert;
  product_input<R> input;
  uint columns[C];
  int pairs[R];
  int count = 0;
  uint first = 0, expert = 0;
  float gate[R * C], up[R * C];
  if (!tile_pairs<R>(call, args, chosen, scratch, group.y, pairs, count, expert)) return;
  columns_of<C>(group.x, simdgroups, simdgroup, lane, (uint)args.out, columns, first);
  pair_lines<R>(call, args, in, weight, pairs, lane, input);
  product<R, C>(format_1(), call.mat,
                matrix_at(weight_matrix{data, scales, biases}, offsets, expert), columns, input,
                lane % PARTS, gate);
  product<R, C>(format_2(), call.mat2,
                matrix_at(weight_matrix{data2, scales2, biases2},
                          offsets + 3 * args.experts, expert),
                columns, input, lane % PARTS, up);
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const uint column = first + (uint)c;
      if (!stores(r * C + c, lane % PARTS) || r >= count || column >= (uint)args.out) continue;
      const size_t at = (size_t)expert * (size_t)args.out + column;
      float g = gate[r * C + c], u = up[r * C + c];
      if (has_vec(call, 0)) g += bias[at];
      if (has_vec(call, 1)) u += bias2[at];
      pair_output(call, args, out, pairs[r])[column] = unary((int)GATE, g) * u;
    }
}
template [[host_name("expert_gated_1")]] kernel decltype(expert_gated<1, 1>) expert_gated<1, 1>;
template [[host_name("expert_gated_8")]] kernel decltype(expert_gated<8, 1>) expert_gated<8, 1>;

// The same for a few rows, and for the matrices of a shared expert, mat3 and mat4, without biases.
// group.y: for each row its chosen experts, then the shared one, if there is one. ROUTE: every
// group chooses the experts of its row, which takes as long as the op route and saves its dispatch;
// the first one writes what the op would.
kernel void expert_gated_few(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                             constant pe_expert_routed_args &routed [[buffer(PE_SLOT_ARGS)]],
                             device float *out [[buffer(PE_SLOT_OUT)]],
                             device float *out2 [[buffer(PE_SLOT_OUT2)]],
                             device float *route_out [[buffer(PE_SLOT_OUT4)]],
                             device const float *in [[buffer(PE_SLOT_IN0)]],
                             device const int *chosen [[buffer(PE_SLOT_IN1)]],
                             device const float *logits [[buffer(PE_SLOT_IN2)]],
                             device const uchar *data [[buffer(PE_SLOT_DATA)]],
                             device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                             device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                             device const uchar *data2 [[buffer(PE_SLOT_DATA2)]],
                             device const uchar *scales2 [[buffer(PE_SLOT_SCALES2)]],
                             device const uchar *biases2 [[buffer(PE_SLOT_BIASES2)]],
                             device const uchar *data3 [[buffer(PE_SLOT_DATA3)]],
                             device const uchar *scales3 [[buffer(PE_SLOT_SCALES3)]],
                             device const uchar *biases3 [[buffer(PE_SLOT_BIASES3)]],
                             device const uchar *data4 [[buffer(PE_SLOT_DATA4)]],
                             device const uchar *scales4 [[buffer(PE_SLOT_DATA4 + 1)]],
                             device const uchar *biases4 [[buffer(PE_SLOT_DATA4 + 2)]],
                             device const float *bias [[buffer(PE_SLOT_VEC0)]],
                             device const float *bias2 [[buffer(PE_SLOT_VEC1)]],
                             device const float *route_bias [[buffer(PE_SLOT_VEC2)]],
                             device const float *weight [[buffer(PE_SLOT_VEC3)]],
                             device const ulong *offsets [[buffer(PE_SLOT_EXPERTS)]],
                             uint2 group [[threadgroup_position_in_grid]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint simdgroups [[simdgroups_per_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float score[PE_ROUTE_FEW];
  threadgroup float scores[PE_ROUTE_GROUPS];
  threadgroup float factor[PE_ROUTE_CHOSEN];
  threadgroup int number[PE_ROUTE_CHOSEN];
  constant pe_expert_args &args = routed.gated.expert;
  const int each = args.chosen + (call.mat3.rows > 0 ? 1 : 0);
  const int row = (int)group.y / each, rank = (int)group.y % each;
  const bool shared = rank == args.chosen;
  const int width = shared ? call.mat3.rows : args.out;
  if (group.x * simdgroups * PE_PRODUCT_SETS >= (uint)width) return;  // the other is wider
  if (ROUTE != 0u && !shared) {
    if (simdgroup == 0u)
      choose(routed.route, logits + line_at(row, call.in_step[2]), has_vec(call, 2), route_bias,
             lane, score, scores, number, factor);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device float *chose = route_out + line_at(row, call.out4_step);
    for (int k = (int)lane; group.x == 0u && rank == 0 && simdgroup == 0u && k < args.chosen;
         k += 32) {
      chose[k] = as_type<float>(number[k]);
      chose[args.chosen + k] = chosen_weight(routed.route, factor, k);
    }
  }
  product_input<1> input;
  uint column[1];
  uint first = 0;
  float gate[1], up[1];
  columns_of<1>(group.x, simdgroups, simdgroup, lane, (uint)width, column, first);
  plain_input<1>(in, input);
  input.x[0] = in + line_at(row, call.in_step[0]);
  if (NORM != 0u) norm_input<1>(call.norm, weight, lane, input);
  device float *y = shared ? out2 + line_at(row, call.out2_step)
                           : pair_output(call, args, out, row * args.chosen + rank);
  if (shared) {
    product<1, 1>(format_3(), call.mat3, weight_matrix{data3, scales3, biases3}, column, input,
                  lane % PARTS, gate);
    product<1, 1>(format_4(), call.mat4, weight_matrix{data4, scales4, biases4}, column, input,
                  lane % PARTS, up);
  } else {
    const int expert =
        ROUTE != 0u ? number[rank] : expert_of(call, args, chosen, row * args.chosen + rank);
    const size_t at = line_at(expert, args.out) + column[0];
    product<1, 1>(format_1(), call.mat,
                  matrix_at(weight_matrix{data, scales, biases}, offsets, (uint)expert), column,
                  input, lane % PARTS, gate);
    product<1, 1>(format_2(), call.mat2,
                  matrix_at(weight_matrix{data2, scales2, biases2}, offsets + 3 * args.experts,
                            (uint)expert),
                  column, input, lane % PARTS, up);
    if (has_vec(call, 0)) gate[0] += bias[at];
    if (has_vec(call, 1)) up[0] += bias2[at];
  }
  if (lane % PARTS == 0u && first < (uint)width) y[first] = unary((int)GATE, gate[0]) * up[0];
}

// ---- matrices [in, out] -------------------------------------------------------------------------

// One column of a pair and expert; at.y: the pair.
METAL_FUNC float transposed_pair(constant pe_metal_call &call, constant pe_expert_args &args,
                                 constant pe_metal_mat &m, device const uchar *data,
                                 device const ulong *offsets, device const float *bias, uint vec,
                                 device const float *x, int expert, uint column, uint dtype) {
  const float first = has_vec(call, vec) ? bias[line_at(expert, args.out) + column] : 0.0f;
  return transposed_column(m, data + offsets[3 * expert], x, column, first, dtype);
}

kernel void expert_transposed(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                              constant pe_expert_args &args [[buffer(PE_SLOT_ARGS)]],
                              device float *out [[buffer(PE_SLOT_OUT)]],
                              device const float *in [[buffer(PE_SLOT_IN0)]],
                              device const int *chosen [[buffer(PE_SLOT_IN1)]],
                              device const uchar *data [[buffer(PE_SLOT_DATA)]],
                              device const float *bias [[buffer(PE_SLOT_VEC0)]],
                              device const ulong *offsets [[buffer(PE_SLOT_EXPERTS)]],
                              uint2 at [[thread_position_in_grid]]) {
  if (at.x >= (uint)args.out) return;
  const int pair = (int)at.y, expert = expert_of(call, args, chosen, pair);
  pair_output(call, args, out, pair)[at.x] =
      transposed_pair(call, args, call.mat, data, offsets, bias, 0,
                      pair_input(call, args, in, pair), expert, at.x, DTYPE);
}

kernel void expert_gated_transposed(
    constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
    constant pe_expert_gated_args &gated_args [[buffer(PE_SLOT_ARGS)]],
    device float *out [[buffer(PE_SLOT_OUT)]], device const float *in [[buffer(PE_SLOT_IN0)]],
    device const int *chosen [[buffer(PE_SLOT_IN1)]],
    device const uchar *data [[buffer(PE_SLOT_DATA)]],
    device const uchar *data2 [[buffer(PE_SLOT_DATA2)]],
    device const float *bias [[buffer(PE_SLOT_VEC0)]],
    device const float *bias2 [[buffer(PE_SLOT_VEC1)]],
    device const ulong *offsets [[buffer(PE_SLOT_EXPERTS)]],
    uint2 at [[thread_position_in_grid]]) {
  constant pe_expert_args &args = gated_args.expert;
  if (at.x >= (uint)args.out) return;
  const int pair = (int)at.y, expert = expert_of(call, args, chosen, pair);
  device const float *x = pair_input(call, args, in, pair);
  const float gate =
      transposed_pair(call, args, call.mat, data, offsets, bias, 0, x, expert, at.x, DTYPE);
  const float up = transposed_pair(call, args, call.mat2, data2, offsets + 3 * args.experts, bias2,
                                   1, x, expert, at.x, DTYPE2);
  pair_output(call, args, out, pair)[at.x] = unary((int)GATE, gate) * up;
}
