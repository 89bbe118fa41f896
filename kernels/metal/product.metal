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
// as memory gives them; R = 8 decodes each weight once for eight rows. Matrix instructions are not
// used: on the chips of today they have the rate of fma, and their order of sums is not ours.
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

// sums[r * C + c] = x[r] . row columns[c] of the matrix, the same in all eight lanes.
template <int R, int C>
METAL_FUNC void product(weight_format f, constant pe_metal_mat &m, weight_matrix at,
                        thread const uint *columns, device const float *thread *x, uint part,
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
        if (k + 8u <= in) {
          for (uint i = 0; i < 8u; i++) v[i] = x[r][k + i];
        } else {
          for (uint i = 0; i < 8u; i++) v[i] = k + i < in ? x[r][k + i] : 0.0f;
        }
        add_piece<R, C>(f, piece, v, sums + r * C);
      }
    }
  }
  for (int i = 0; i < R * C; i++)
    for (ushort d = 1; d < PARTS; d *= 2) sums[i] += simd_shuffle_xor(sums[i], d);
}

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
