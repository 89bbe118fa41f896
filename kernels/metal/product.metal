// product.metal - the product of rows with weights, shared by linear, gated, experts and heads.
//
// One order of sums for any number of rows. The columns of a weight are cut into blocks of 32, and
// the blocks go around to eight lanes:
//
//     columns    0..31  32..63  64..95  ...  224..255  256..287  ...
//     lane         0       1       2    ...      7         0
//
// A lane takes its blocks in order, eight values at a time (a piece): code * x is summed over the
// piece, multiplied by the scale and added to the lane's sum, then bias times the sum of x. Plain
// weights skip the scale. At the end the eight lanes are added by a butterfly. So the order depends
// on the number of columns and the layout alone, and all kernels share it: they differ in how
// many rows R of x and columns C of the result a lane computes at once. R = 1 reads weights as fast
// as memory gives them; R = 8 decodes each weight once for eight rows. For prompts the simdgroups
// of a group have the same columns and eight rows each, and decode weights for each other
// (wide_product). Matrix instructions are not used: on the chips of today they have the rate of
// fma, and their order of sums is not ours.
//
// A simdgroup has four such sets of eight lanes, each with C columns of the result:
//
//     lane = 8 * set + part,  column = 4 C * simdgroup + C * set + c
#ifndef PE_METAL_PRODUCT
#define PE_METAL_PRODUCT

#include "kernels/metal/weight.metal"

enum { PARTS = 8, BLOCK = 32 };

struct weight_matrix {  // one matrix: where its rows are
  device const uchar *data;
  device const uchar *scales;
  device const uchar *biases;
};

METAL_FUNC weight_row row_of(constant pe_metal_mat &m, weight_matrix at, uint row) {
  return weight_row_at(m, at.data, at.scales, at.biases, row);
}

// Matrix i of several; the offsets of one matrix are three numbers.
METAL_FUNC weight_matrix matrix_at(weight_matrix first, device const ulong *offsets, uint i) {
  weight_matrix w;
  w.data = first.data + offsets[3u * i];
  w.scales = first.scales + offsets[3u * i + 1u];
  w.biases = first.biases + offsets[3u * i + 2u];
  return w;
}

// The lines that are multiplied: as they are, or normalized as the op norm would.
template <int R>
struct product_input {
  device const float *x[R];
  bool norm;
  float factor[R];  // of a norm
  device const float *weight;
  bool weighted;
  float offset, scale;
};

// Lines that others set next; the weight is not read.
template <int R>
METAL_FUNC void plain_input(device const float *in, thread product_input<R> &input) {
  for (int r = 0; r < R; r++) input.x[r] = in, input.factor[r] = 1.0f;
  input.norm = false, input.weighted = false;
  input.weight = in, input.offset = 0.0f, input.scale = 1.0f;
}

// After x is set.
template <int R>
METAL_FUNC void norm_input(constant pe_norm_args &norm, device const float *weight, uint lane,
                           thread product_input<R> &input) {
  input.norm = true;
  input.weight = weight, input.weighted = norm.weights != 0;
  input.offset = norm.offset, input.scale = norm.scale;
  for (int r = 0; r < R; r++) input.factor[r] = norm_factor(norm, norm.width, input.x[r], lane);
}

// Values k .. k + 7 of line r; those after the last are 0.
template <int R>
METAL_FUNC void input_piece(thread const product_input<R> &input, int r, uint k, uint in,
                            thread float *v) {
  if (k + 8u <= in) {
    for (uint i = 0; i < 8u; i++) v[i] = input.x[r][k + i];
  } else {
    for (uint i = 0; i < 8u; i++) v[i] = k + i < in ? input.x[r][k + i] : 0.0f;
  }
  if (!input.norm) return;
  for (uint i = 0; i < min(8u, in - k); i++) {
    v[i] *= input.factor[r];
    if (input.weighted) v[i] *= input.weight[k + i] + input.offset;
    v[i] *= input.scale;
  }
}

// Adds one piece of C columns of the result to the sums of R rows.
template <int R, int C>
METAL_FUNC void add_piece(weight_format f, thread const weight_piece *w, thread const float *x,
                          thread float *sums) {
  float total = 0.0f;
  if (has_bias(f))
    for (int i = 0; i < 8; i++) total += x[i];
  for (int c = 0; c < C; c++) {
    if (f.kind == PE_QUANT_NONE) {
      for (int i = 0; i < 8; i++) sums[c] = fma(w[c].code[i], x[i], sums[c]);
      continue;
    }
    float dot = 0.0f;
    for (int i = 0; i < 8; i++) dot = fma(w[c].code[i], x[i], dot);
    sums[c] = fma(w[c].scale, dot, sums[c]);
    if (has_bias(f)) sums[c] = fma(w[c].bias, total, sums[c]);
  }
}

// Adds the sums of the eight lanes of a set.
template <int N>
METAL_FUNC void add_parts(thread float *sums) {
  for (int i = 0; i < N; i++)
    for (ushort d = 1; d < PARTS; d *= 2) sums[i] += simd_shuffle_xor(sums[i], d);
}

// sums[r * C + c] = line r . row columns[c] of the matrix, the same in all eight lanes.
template <int R, int C>
METAL_FUNC void product(weight_format f, constant pe_metal_mat &m, weight_matrix at,
                        thread const uint *columns, thread const product_input<R> &input, uint part,
                        thread float *sums) {
  const uint in = (uint)m.cols;
  weight_row rows[C];
  for (int c = 0; c < C; c++) rows[c] = row_of(m, at, columns[c]);
  for (int i = 0; i < R * C; i++) sums[i] = 0.0f;
  for (uint block = part; block * BLOCK < in; block += PARTS) {
    for (uint k = block * BLOCK; k < min(in, (block + 1u) * BLOCK); k += 8u) {
      weight_piece piece[C];
      for (int c = 0; c < C; c++) weight_piece_at(f, rows[c], k, piece[c]);
      for (int r = 0; r < R; r++) {
        float v[8];
        input_piece<R>(input, r, k, in, v);
        add_piece<R, C>(f, piece, v, sums + r * C);
      }
    }
  }
  add_parts<R * C>(sums);
}

// ---- many rows ----------------------------------------------------------------------------------

// Floats of a stage: one piece for each of the C columns of each lane. Numbers of one kind are
// together, a lane beside the next, so that a simdgroup reads them in one go:
//
//     [code 0 .. 7, scale, bias][c][lane]
enum { WIDE_STAGE = 10 * PE_WIDE_COLUMNS * 32 };

// Step `s` of a part of a product: which eight columns of the weights.
METAL_FUNC uint wide_column(uint s, uint part) {
  return (s / 4u * PARTS + part) * BLOCK + s % 4u * 8u;
}

// Decodes the pieces of a step for all lanes of a simdgroup; threads take one after another.
METAL_FUNC void wide_stage(weight_format f, constant pe_metal_mat &m, weight_matrix at, uint first,
                           uint s, uint thread_index, uint threads, threadgroup float *stage) {
  for (uint i = thread_index; i < PE_WIDE_COLUMNS * 32u; i += threads) {
    const uint c = i / 32u, lane = i % 32u, k = wide_column(s, lane % PARTS);
    const uint column = first + lane / PARTS * PE_WIDE_COLUMNS + c;
    weight_piece piece;
    if (k >= (uint)m.cols) continue;
    weight_piece_at(f, row_of(m, at, min(column, (uint)m.rows - 1u)), k, piece);
    for (uint j = 0; j < 8u; j++) stage[(j * PE_WIDE_COLUMNS + c) * 32u + lane] = piece.code[j];
    stage[(8u * PE_WIDE_COLUMNS + c) * 32u + lane] = piece.scale;
    stage[(9u * PE_WIDE_COLUMNS + c) * 32u + lane] = piece.bias;
  }
}

// Adds the pieces of a stage to the sums of the lines.
METAL_FUNC void wide_add(weight_format f, threadgroup const float *stage,
                         thread const product_input<PE_WIDE_ROWS> &input, uint k, uint in,
                         uint lane, thread float *sums) {
  weight_piece piece[PE_WIDE_COLUMNS];
  for (uint c = 0; c < PE_WIDE_COLUMNS; c++) {
    for (uint j = 0; j < 8u; j++) piece[c].code[j] = stage[(j * PE_WIDE_COLUMNS + c) * 32u + lane];
    piece[c].scale = stage[(8u * PE_WIDE_COLUMNS + c) * 32u + lane];
    piece[c].bias = stage[(9u * PE_WIDE_COLUMNS + c) * 32u + lane];
  }
  for (int r = 0; r < PE_WIDE_ROWS; r++) {
    float v[8];
    input_piece<PE_WIDE_ROWS>(input, r, k, in, v);
    add_piece<PE_WIDE_ROWS, PE_WIDE_COLUMNS>(f, piece, v, sums + r * PE_WIDE_COLUMNS);
  }
}

// As product, for the columns from `first` on and the rows of this simdgroup; all simdgroups call
// it with the same columns. `stages` has room for two: one is filled while the other is read.
METAL_FUNC void wide_product(weight_format f, constant pe_metal_mat &m, weight_matrix at,
                             uint first, thread const product_input<PE_WIDE_ROWS> &input,
                             uint thread_index, uint threads, uint lane,
                             threadgroup float *stages, thread float *sums) {
  const uint in = (uint)m.cols, steps = (in + PARTS * BLOCK - 1u) / (PARTS * BLOCK) * 4u;
  for (int i = 0; i < PE_WIDE_ROWS * PE_WIDE_COLUMNS; i++) sums[i] = 0.0f;
  // Steps are even: at its end an earlier product reads the second stage, and the first is free.
  wide_stage(f, m, at, first, 0u, thread_index, threads, stages);
  for (uint s = 0; s < steps; s++) {
    const uint k = wide_column(s, lane % PARTS);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (s + 1u < steps)
      wide_stage(f, m, at, first, s + 1u, thread_index, threads,
                 stages + (s + 1u) % 2u * WIDE_STAGE);
    if (k < in) wide_add(f, stages + s % 2u * WIDE_STAGE, input, k, in, lane, sums);
  }
  add_parts<PE_WIDE_ROWS * PE_WIDE_COLUMNS>(sums);
}

// ---- results ------------------------------------------------------------------------------------

// The columns of a set; those after the last compute it again and are not stored.
template <int C>
METAL_FUNC void columns_of(uint group, uint simdgroups, uint simdgroup, uint lane, uint out,
                           thread uint *columns, thread uint &first) {
  first = ((group * simdgroups + simdgroup) * PE_PRODUCT_SETS + lane / PARTS) * C;
  for (int c = 0; c < C; c++) columns[c] = min(first + (uint)c, out - 1u);
}

// Which lane of a set stores result i: each has its share.
METAL_FUNC bool stores(int i, uint part) { return ((uint)i & (PARTS - 1u)) == part; }

// A matrix of plain elements [in, out]: a thread for each column of the result, which adds in order
// of the input.
METAL_FUNC float transposed_column(constant pe_metal_mat &m, device const uchar *data,
                                   device const float *x, uint column, float first, uint dtype) {
  float sum = first;
  for (int i = 0; i < m.rows; i++)
    sum = fma(x[i], element_at(data + (size_t)i * (size_t)m.row_bytes, dtype, column), sum);
  return sum;
}

#endif
