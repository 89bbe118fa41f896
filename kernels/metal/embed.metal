// embed.metal - rows of a table: embeddings, and the sums of rows that towers look up.
#include "kernels/metal/weight.metal"

// A thread for eight values; at.y: the row.
kernel void embed(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                  constant pe_embed_args &args [[buffer(PE_SLOT_ARGS)]],
                  device float *out [[buffer(PE_SLOT_OUT)]],
                  device const uchar *data [[buffer(PE_SLOT_DATA)]],
                  device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                  device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                  device const int *words [[buffer(PE_SLOT_STEP)]],
                  device const float *features [[buffer(PE_SLOT_FEATURES)]],
                  uint2 at [[thread_position_in_grid]]) {
  const uint k = at.x * 8u, cols = (uint)call.mat.cols;
  if (k >= cols) return;
  const int row = (int)at.y, line = feature_of(words, row);
  device float *y = out + line_at(row, call.out_step);
  if (line >= 0 && args.instead == 0) {
    device const float *feature = feature_line(words, features, line, 0);
    for (uint i = k; i < min(k + 8u, cols); i++) y[i] = feature[i];
    return;
  }
  const int token = line >= 0 ? args.instead - 1 : words[step_head(words).token + row];
  weight_piece piece;
  weight_piece_at(format_1(), weight_row_at(call.mat, data, scales, biases, (uint)token), k, piece);
  for (uint i = 0; i < min(8u, cols - k); i++) y[k + i] = decoded(piece, i) * args.scale;
}

kernel void lookup(constant pe_metal_call &call [[buffer(PE_SLOT_CALL)]],
                   device float *out [[buffer(PE_SLOT_OUT)]],
                   device const uchar *data [[buffer(PE_SLOT_DATA)]],
                   device const uchar *scales [[buffer(PE_SLOT_SCALES)]],
                   device const uchar *biases [[buffer(PE_SLOT_BIASES)]],
                   device const int *words [[buffer(PE_SLOT_STEP)]],
                   uint2 at [[thread_position_in_grid]]) {
  const uint k = at.x * 8u, cols = (uint)call.mat.cols;
  if (k >= cols) return;
  device const pe_metal_step &head = step_head(words);
  device const int *from = words + head.lookup_at + at.y;
  float sum[8];
  for (uint i = 0; i < 8u; i++) sum[i] = 0.0f;
  for (int j = from[0]; j < from[1]; j++) {
    const float weight = as_type<float>(words[head.lookup_weight + j]);
    const uint row = (uint)words[head.lookup_index + j];
    weight_piece piece;
    weight_piece_at(format_1(), weight_row_at(call.mat, data, scales, biases, row), k, piece);
    for (uint i = 0; i < 8u; i++) sum[i] = fma(weight, decoded(piece, i), sum[i]);
  }
  for (uint i = 0; i < min(8u, cols - k); i++)
    out[line_at((int)at.y, call.out_step) + k + i] = sum[i];
}
