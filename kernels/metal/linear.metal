// linear.metal - linear, gated and head_linear: kernels over product.metal.
//
// Grids have groups of columns along x and of rows along y. Where the input is normalized (NORM),
// every group does it for its rows.
#include "kernels/metal/product.metal"

// The R lines from `row` on; those after the last are the last one again, and are not stored.
template <int R>
METAL_FUNC void lines_from(constant pe_metal_call &call, device const float *in,
                           device const float *weight, int row, uint lane,
                           thread product_input<R> &input) {
  plain_input<R>(in, input);
  for (int r = 0; r < R; r++)
    input.x[r] = in + line_at(min(row + r, call.rows - 1), call.in_step[0]);
  if (NORM != 0u) norm_input<R>(call.norm, weight, lane, input);
}

// ---- linear -------------------------------------------------------------------------------------

struct linear_out {  // one result: width, lines, and what is added
  int width, step;
  device float *out;
  bool biased, added;
  device const float *bias;
  device const float *residual;
  int residual_step;
};

METAL_FUNC float linear_value(linear_out to, int row, uint column, float y) {
  if (to.biased) y += to.bias[column];
  if (to.added) y += to.residual[line_at(row, to.residual_step) + column];
  return y;
}

// Stores R * C sums, from line `row` and column `first` on.
template <int R, int C>
METAL_FUNC void linear_store(linear_out to, int rows, int row, uint first, uint part,
                             thread const float *sums) {
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const uint column = first + (uint)c;
      if (!stores(r * C + c, part) || row + r >= rows || column >= (uint)to.width) continue;
      to.out[line_at(row + r, to.step) + column] =
          linear_value(to, row + r, column, sums[r * C + c]);
    }
}

// The same with a map before each store.
template <int R, int C>
METAL_FUNC void linear_map_store(linear_out to, constant pe_metal_after &after,
                                 device const float *map0, device const float *map1,
                                 device const float *map2, device const float *map3, int rows,
                                 int row, uint first, uint part, thread const float *sums) {
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const uint column = first + (uint)c;
      if (!stores(r * C + c, part) || row + r >= rows || column >= (uint)to.width) continue;
      to.out[line_at(row + r, to.step) + column] =
          mapped(after, map0, map1, map2, map3, row + r, (int)column,
                 linear_value(to, row + r, column, sums[r * C + c]), 0.0f);
    }
}

METAL_FUNC linear_out linear_to(constant pe_metal_call &call, constant pe_linear_args &args,
                                device float *out, device const float *bias,
                                device const float *residual) {
  return linear_out{args.out, call.out_step, out,      has_vec(call, 0), args.residual != 0,
                    bias,     residual,      call.in_step[1]};
}

template <int R, int C>
kernel void linear(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                   constant pe_linear_args &args [[buffer(PE_SLOT_ARGS)]],
                   device float *out [[buffer(PE_SLOT_OUT)]],
                   device const float *in [[buffer(PE_SLOT_IN0)]],
                   device const float *residual [[buffer(PE_SLOT_IN1)]],
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
                   uint2 group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint simdgroups [[simdgroups_per_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  product_input<R> input;
  uint columns[C];
  uint first = 0;
  float sums[R * C];
  columns_of<C>(group.x, simdgroups, simdgroup, lane, (uint)args.out, columns, first);
  lines_from<R>(call, in, weight, (int)group.y * R, lane, input);
  product<R, C>(format_1(), call.mat, weight_matrix{data, scales, biases}, columns, input,
                lane % PARTS, sums);
  linear_map_store<R, C>(linear_to(call, args, out, bias, residual), after, map0, map1, map2, map3,
                         call.rows, (int)group.y * R, first, lane % PARTS, sums);
}
template [[host_name("linear_1")]] kernel decltype(linear<1, 2>) linear<1, 2>;
template [[host_name("linear_2")]] kernel decltype(linear<2, 2>) linear<2, 2>;
template [[host_name("linear_4")]] kernel decltype(linear<4, 2>) linear<4, 2>;
template [[host_name("linear_8")]] kernel decltype(linear<8, 4>) linear<8, 4>;

// The first row and column of a simdgroup's set.
METAL_FUNC void wide_place(uint2 group, uint simdgroup, uint simdgroups, uint lane, thread int &row,
                           thread uint &first) {
  row = (int)((group.y * simdgroups + simdgroup) * (uint)PE_WIDE_ROWS);
  first = (group.x * PE_PRODUCT_SETS + lane / PARTS) * PE_WIDE_COLUMNS;
}

kernel void linear_wide(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                        constant pe_linear_args &args [[buffer(PE_SLOT_ARGS)]],
                        device float *out [[buffer(PE_SLOT_OUT)]],
                        device const float *in [[buffer(PE_SLOT_IN0)]],
                        device const float *residual [[buffer(PE_SLOT_IN1)]],
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
                        uint2 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float stages[2 * WIDE_STAGE];
  product_input<PE_WIDE_ROWS> input;
  int row = 0;
  uint first = 0;
  float sums[PE_WIDE_ROWS * PE_WIDE_COLUMNS];
  wide_place(group, simdgroup, simdgroups, lane, row, first);
  lines_from<PE_WIDE_ROWS>(call, in, weight, row, lane, input);
  wide_product(format_1(), call.mat, weight_matrix{data, scales, biases},
               group.x * PE_PRODUCT_SETS * PE_WIDE_COLUMNS, input, thread_index, simdgroups * 32u,
               lane, stages, sums);
  linear_map_store<PE_WIDE_ROWS, PE_WIDE_COLUMNS>(
      linear_to(call, args, out, bias, residual), after, map0, map1, map2, map3, call.rows, row,
      first, lane % PARTS, sums);
}

// ---- products of one input ----------------------------------------------------------------------

// One of them, from group `group` of its columns on.
template <int R, int C>
METAL_FUNC void joined_part(weight_format f, constant pe_metal_mat &m, weight_matrix at,
                            linear_out to, thread const product_input<R> &input, int rows, int row,
                            uint group, uint simdgroups, uint simdgroup, uint lane) {
  uint columns[C];
  uint first = 0;
  float sums[R * C];
  columns_of<C>(group, simdgroups, simdgroup, lane, (uint)m.rows, columns, first);
  product<R, C>(f, m, at, columns, input, lane % PARTS, sums);
  linear_store<R, C>(to, rows, row, first, lane % PARTS, sums);
}

METAL_FUNC linear_out joined_to(constant pe_metal_call &call, uint i, device float *out, int width,
                                int step, device const float *bias) {
  return linear_out{width, step, out, has_vec(call, i), false, bias, bias, 0};
}

// group.x: the groups of columns of the first matrix, then of the second, the third, the fourth.
template <int R, int C>
kernel void joined(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                   device float *out [[buffer(PE_SLOT_OUT)]],
                   device float *out2 [[buffer(PE_SLOT_OUT2)]],
                   device float *out3 [[buffer(PE_SLOT_OUT3)]],
                   device float *out4 [[buffer(PE_SLOT_OUT4)]],
                   device const float *in [[buffer(PE_SLOT_IN0)]],
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
                   device const float *bias3 [[buffer(PE_SLOT_VEC2)]],
                   device const float *weight [[buffer(PE_SLOT_VEC3)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint simdgroups [[simdgroups_per_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  product_input<R> input;
  const int row = (int)group.y * R;
  const uint width = simdgroups * PE_PRODUCT_SETS * C;
  const uint second = ((uint)call.mat.rows + width - 1u) / width;
  const uint third = second + ((uint)call.mat2.rows + width - 1u) / width;
  const uint fourth = third + ((uint)call.mat3.rows + width - 1u) / width;
  lines_from<R>(call, in, weight, row, lane, input);
  if (group.x < second) {
    joined_part<R, C>(format_1(), call.mat, weight_matrix{data, scales, biases},
                      joined_to(call, 0u, out, call.mat.rows, call.out_step, bias), input,
                      call.rows, row, group.x, simdgroups, simdgroup, lane);
  } else if (group.x < third) {
    joined_part<R, C>(format_2(), call.mat2, weight_matrix{data2, scales2, biases2},
                      joined_to(call, 1u, out2, call.mat2.rows, call.out2_step, bias2), input,
                      call.rows, row, group.x - second, simdgroups, simdgroup, lane);
  } else if (group.x < fourth) {
    joined_part<R, C>(format_3(), call.mat3, weight_matrix{data3, scales3, biases3},
                      joined_to(call, 2u, out3, call.mat3.rows, call.out3_step, bias3), input,
                      call.rows, row, group.x - third, simdgroups, simdgroup, lane);
  } else {
    const linear_out to =
        linear_out{call.mat4.rows, call.out4_step, out4, false, false, bias, bias, 0};
    joined_part<R, C>(format_4(), call.mat4, weight_matrix{data4, scales4, biases4}, to, input,
                      call.rows, row, group.x - fourth, simdgroups, simdgroup, lane);
  }
}
template [[host_name("joined_1")]] kernel decltype(joined<1, 2>) joined<1, 2>;
template [[host_name("joined_2")]] kernel decltype(joined<2, 2>) joined<2, 2>;
template [[host_name("joined_4")]] kernel decltype(joined<4, 2>) joined<4, 2>;
template [[host_name("joined_8")]] kernel decltype(joined<8, 4>) joined<8, 4>;

// ---- gated --------------------------------------------------------------------------------------

METAL_FUNC float gated_value(constant pe_metal_call &call, float gate, float up,
                             device const float *bias, device const float *bias2, uint column) {
  if (has_vec(call, 0)) gate += bias[column];
  if (has_vec(call, 1)) up += bias2[column];
  return unary((int)GATE, gate) * up;
}

template <int R, int C>
kernel void gated(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                  constant pe_gated_args &args [[buffer(PE_SLOT_ARGS)]],
                  device float *out [[buffer(PE_SLOT_OUT)]],
                  device const float *in [[buffer(PE_SLOT_IN0)]],
                  device const uchar *data [[buffer(PE_SLOT_DATA)]],
                  device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                  device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                  device const uchar *data2 [[buffer(PE_SLOT_DATA2)]],
                  device const uchar *scales2 [[buffer(PE_SLOT_SCALES2)]],
                  device const uchar *biases2 [[buffer(PE_SLOT_BIASES2)]],
                  device const float *bias [[buffer(PE_SLOT_VEC0)]],
                  device const float *bias2 [[buffer(PE_SLOT_VEC1)]],
                  device const float *weight [[buffer(PE_SLOT_VEC3)]],
                  uint2 group [[threadgroup_position_in_grid]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint simdgroups [[simdgroups_per_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
  product_input<R> input;
  uint columns[C];
  uint first = 0;
  float gate[R * C], up[R * C];
  columns_of<C>(group.x, simdgroups, simdgroup, lane, (uint)args.out, columns, first);
  lines_from<R>(call, in, weight, (int)group.y * R, lane, input);
  product<R, C>(format_1(), call.mat, weight_matrix{data, scales, biases}, columns, input,
                lane % PARTS, gate);
  product<R, C>(format_2(), call.mat2, weight_matrix{data2, scales2, biases2}, columns, input,
                lane % PARTS, up);
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const int row = (int)group.y * R + r;
      const uint column = first + (uint)c;
      if (!stores(r * C + c, lane % PARTS) || row >= call.rows || column >= (uint)args.out)
        continue;
      out[line_at(row, call.out_step) + column] =
          gated_value(call, gate[r * C + c], up[r * C + c], bias, bias2, column);
    }
}
template [[host_name("gated_1")]] kernel decltype(gated<1, 1>) gated<1, 1>;
template [[host_name("gated_2")]] kernel decltype(gated<2, 1>) gated<2, 1>;
template [[host_name("gated_4")]] kernel decltype(gated<4, 1>) gated<4, 1>;
template [[host_name("gated_8")]] kernel decltype(gated<8, 2>) gated<8, 2>;

// Of the gates a lane keeps those that it stores, so that two products need the registers of one.
kernel void gated_wide(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                       constant pe_gated_args &args [[buffer(PE_SLOT_ARGS)]],
                       device float *out [[buffer(PE_SLOT_OUT)]],
                       device const float *in [[buffer(PE_SLOT_IN0)]],
                       device const uchar *data [[buffer(PE_SLOT_DATA)]],
                       device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                       device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                       device const uchar *data2 [[buffer(PE_SLOT_DATA2)]],
                       device const uchar *scales2 [[buffer(PE_SLOT_SCALES2)]],
                       device const uchar *biases2 [[buffer(PE_SLOT_BIASES2)]],
                       device const float *bias [[buffer(PE_SLOT_VEC0)]],
                       device const float *bias2 [[buffer(PE_SLOT_VEC1)]],
                       device const float *weight [[buffer(PE_SLOT_VEC3)]],
                       uint2 group [[threadgroup_position_in_grid]],
                       uint thread_index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float stages[2 * WIDE_STAGE];
  product_input<PE_WIDE_ROWS> input;
  const uint columns = group.x * PE_PRODUCT_SETS * PE_WIDE_COLUMNS, part = lane % PARTS;
  int row = 0;
  uint first = 0;
  float sums[PE_WIDE_ROWS * PE_WIDE_COLUMNS], gate[PE_WIDE_ROWS * PE_WIDE_COLUMNS / PARTS];
  wide_place(group, simdgroup, simdgroups, lane, row, first);
  lines_from<PE_WIDE_ROWS>(call, in, weight, row, lane, input);
  wide_product(format_1(), call.mat, weight_matrix{data, scales, biases}, columns, input,
               thread_index, simdgroups * 32u, lane, stages, sums);
  for (int i = 0; i < PE_WIDE_ROWS * PE_WIDE_COLUMNS; i++)
    if (stores(i, part)) gate[i / PARTS] = sums[i];
  wide_product(format_2(), call.mat2, weight_matrix{data2, scales2, biases2}, columns, input,
               thread_index, simdgroups * 32u, lane, stages, sums);
  for (int i = 0; i < PE_WIDE_ROWS * PE_WIDE_COLUMNS; i++) {
    const int line = row + i / PE_WIDE_COLUMNS;
    const uint column = first + (uint)(i % PE_WIDE_COLUMNS);
    if (!stores(i, part) || line >= call.rows || column >= (uint)args.out) continue;
    out[line_at(line, call.out_step) + column] =
        gated_value(call, gate[i / PARTS], sums[i], bias, bias2, column);
  }
}

// ---- heads --------------------------------------------------------------------------------------

// group.z: the head.
template <int R, int C>
kernel void head_linear(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                        constant pe_head_args &args [[buffer(PE_SLOT_ARGS)]],
                        device float *out [[buffer(PE_SLOT_OUT)]],
                        device const float *in [[buffer(PE_SLOT_IN0)]],
                        device const uchar *data [[buffer(PE_SLOT_DATA)]],
                        device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                        device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                        device const ulong *offsets [[buffer(PE_SLOT_EXPERTS)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  product_input<R> input;
  uint columns[C];
  uint first = 0;
  float sums[R * C];
  columns_of<C>(group.x, simdgroups, simdgroup, lane, (uint)args.out, columns, first);
  plain_input<R>(in, input);
  for (int r = 0; r < R; r++)
    input.x[r] = in + line_at(min((int)group.y * R + r, call.rows - 1), call.in_step[0]) +
                 part_at(call.part[0], (int)group.z * args.in);
  product<R, C>(format_1(), call.mat,
                matrix_at(weight_matrix{data, scales, biases}, offsets, group.z), columns, input,
                lane % PARTS, sums);
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const int row = (int)group.y * R + r;
      const uint column = first + (uint)c;
      if (!stores(r * C + c, lane % PARTS) || row >= call.rows || column >= (uint)args.out)
        continue;
      out[line_at(row, call.out_step) + part_at(call.out_part, (int)group.z * args.out) + column] =
          sums[r * C + c];
    }
}
template [[host_name("head_linear_1")]] kernel decltype(head_linear<1, 2>) head_linear<1, 2>;
template [[host_name("head_linear_8")]] kernel decltype(head_linear<8, 2>) head_linear<8, 2>;

// Matrices [in, out]: a thread for eight columns, which adds in order of the input. at.z: the head.
kernel void head_transposed(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                            constant pe_head_args &args [[buffer(PE_SLOT_ARGS)]],
                            device float *out [[buffer(PE_SLOT_OUT)]],
                            device const float *in [[buffer(PE_SLOT_IN0)]],
                            device const uchar *data [[buffer(PE_SLOT_DATA)]],
                            device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                            device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                            device const ulong *offsets [[buffer(PE_SLOT_EXPERTS)]],
                            uint3 at [[thread_position_in_grid]]) {
  const uint k = at.x * 8u, width = (uint)args.out;
  if (k >= width) return;
  device const float *x = in + line_at((int)at.y, call.in_step[0]) +
                          part_at(call.part[0], (int)at.z * args.in);
  const weight_matrix w = matrix_at(weight_matrix{data, scales, biases}, offsets, at.z);
  float sum[8];
  for (uint j = 0; j < 8u; j++) sum[j] = 0.0f;
  for (uint i = 0; i < (uint)args.in; i++) {
    weight_piece piece;
    weight_piece_at(format_1(), weight_row_at(call.mat, w.data, w.scales, w.biases, i), k, piece);
    for (uint j = 0; j < 8u; j++) sum[j] = fma(x[i], decoded(piece, j), sum[j]);
  }
  device float *y = out + line_at((int)at.y, call.out_step) +
                    part_at(call.out_part, (int)at.z * args.out) + k;
  for (uint j = 0; j < min(8u, width - k); j++) y[j] = sum[j];
}
