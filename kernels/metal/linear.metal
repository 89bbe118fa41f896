// linear.metal - linear, gated and head_linear: kernels over product.metal.
#include "kernels/metal/product.metal"

// ---- linear -------------------------------------------------------------------------------------

template <int R, int C>
kernel void linear(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                   constant pe_linear_args &args [[buffer(PE_SLOT_ARGS)]],
                   device float *out [[buffer(PE_SLOT_OUT)]],
                   device const float *in [[buffer(PE_SLOT_IN0)]],
                   device const float *residual [[buffer(PE_SLOT_IN1)]],
                   device const uchar *data [[buffer(PE_SLOT_DATA)]],
                   device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                   device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                   device const float *bias [[buffer(PE_SLOT_VEC0)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint simdgroups [[simdgroups_per_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  device const float *x[R];
  uint columns[C];
  uint first = 0;
  float sums[R * C];
  columns_of<C>(group.x, simdgroups, simdgroup, lane, (uint)args.out, columns, first);
  for (int r = 0; r < R; r++)
    x[r] = in + line_at(min((int)group.y * R + r, call.rows - 1), call.in_step[0]);
  product<R, C>(format_1(), call.mat, weight_matrix{data, scales, biases}, columns, x,
                lane % PARTS, sums);
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const int row = (int)group.y * R + r;
      const uint column = first + (uint)c;
      if (!stores(r * C + c, lane % PARTS) || row >= call.rows || column >= (uint)args.out)
        continue;
      float y = sums[r * C + c];
      if (has_vec(call, 0)) y += bias[column];
      if (args.residual != 0) y += residual[line_at(row, call.in_step[1]) + column];
      out[line_at(row, call.out_step) + column] = y;
    }
}
template [[host_name("linear_1")]] kernel decltype(linear<1, 2>) linear<1, 2>;
template [[host_name("linear_2")]] kernel decltype(linear<2, 2>) linear<2, 2>;
template [[host_name("linear_4")]] kernel decltype(linear<4, 2>) linear<4, 2>;
template [[host_name("linear_8")]] kernel decltype(linear<8, 4>) linear<8, 4>;

// ---- gated --------------------------------------------------------------------------------------

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
                  uint2 group [[threadgroup_position_in_grid]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]],
                  uint simdgroups [[simdgroups_per_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
  device const float *x[R];
  uint columns[C];
  uint first = 0;
  float gate[R * C], up[R * C];
  columns_of<C>(group.x, simdgroups, simdgroup, lane, (uint)args.out, columns, first);
  for (int r = 0; r < R; r++)
    x[r] = in + line_at(min((int)group.y * R + r, call.rows - 1), call.in_step[0]);
  product<R, C>(format_1(), call.mat, weight_matrix{data, scales, biases}, columns, x,
                lane % PARTS, gate);
  product<R, C>(format_2(), call.mat2, weight_matrix{data2, scales2, biases2}, columns, x,
                lane % PARTS, up);
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const int row = (int)group.y * R + r;
      const uint column = first + (uint)c;
      if (!stores(r * C + c, lane % PARTS) || row >= call.rows || column >= (uint)args.out)
        continue;
      float g = gate[r * C + c], u = up[r * C + c];
      if (has_vec(call, 0)) g += bias[column];
      if (has_vec(call, 1)) u += bias2[column];
      out[line_at(row, call.out_step) + column] = unary((int)GATE, g) * u;
    }
}
template [[host_name("gated_1")]] kernel decltype(gated<1, 1>) gated<1, 1>;
template [[host_name("gated_2")]] kernel decltype(gated<2, 1>) gated<2, 1>;
template [[host_name("gated_4")]] kernel decltype(gated<4, 1>) gated<4, 1>;
template [[host_name("gated_8")]] kernel decltype(gated<8, 2>) gated<8, 2>;

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
  device const float *x[R];
  uint columns[C];
  uint first = 0;
  float sums[R * C];
  columns_of<C>(group.x, simdgroups, simdgroup, lane, (uint)args.out, columns, first);
  for (int r = 0; r < R; r++)
    x[r] = in + line_at(min((int)group.y * R + r, call.rows - 1), call.in_step[0]) +
           group.z * (uint)args.in;
  product<R, C>(format_1(), call.mat,
                matrix_at(weight_matrix{data, scales, biases}, offsets, group.z), columns, x,
                lane % PARTS, sums);
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const int row = (int)group.y * R + r;
      const uint column = first + (uint)c;
      if (!stores(r * C + c, lane % PARTS) || row >= call.rows || column >= (uint)args.out)
        continue;
      out[line_at(row, call.out_step) + group.z * (uint)args.out + column] = sums[r * C + c];
    }
}
template [[host_name("head_linear_1")]] kernel decltype(head_linear<1, 2>) head_linear<1, 2>;
template [[host_name("head_linear_8")]] kernel decltype(head_linear<8, 2>) head_linear<8, 2>;

kernel void head_transposed(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                            constant pe_head_args &args [[buffer(PE_SLOT_ARGS)]],
                            device float *out [[buffer(PE_SLOT_OUT)]],
                            device const float *in [[buffer(PE_SLOT_IN0)]],
                            device const uchar *data [[buffer(PE_SLOT_DATA)]],
                            device const ulong *offsets [[buffer(PE_SLOT_EXPERTS)]],
                            uint3 at [[thread_position_in_grid]]) {
  if (at.x >= (uint)args.out) return;
  device const float *x = in + line_at((int)at.y, call.in_step[0]) + at.z * (uint)args.in;
  out[line_at((int)at.y, call.out_step) + at.z * (uint)args.out + at.x] =
      transposed_column(call.mat, data + offsets[3u * at.z], x, at.x, 0.0f, DTYPE);
}
