/* quant_mlx.c - the layouts of MLX: a stream of codes and, stored separately, one scale per group.
 *
 * Infinite and NaN scales decode to the result of the multiplication, as in MLX. MLX reads an E8M0
 * scale of 255 as infinity, where the definition of the format has NaN. */
#include "kernels/quant.h"

#include <math.h>

uint32_t pe_quant_code(const uint8_t *stream, int bits, uint64_t i) {
  uint64_t bit = i * (uint64_t)bits;
  const uint8_t *p = stream + bit / 8;
  int shift = (int)(bit % 8);
  uint32_t v = p[0];
  /* only then: the last code of a matrix may be followed by no byte */
  if (shift + bits > 8) v |= (uint32_t)p[1] << 8;
  return v >> shift & ((1u << bits) - 1);
}

float pe_e2m1_to_f32(uint8_t code) {
  static const float values[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                   -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  return values[code & 15];
}

static float mx_scale(uint8_t code) { return code == 255 ? INFINITY : pe_e8m0_to_f32(code); }

/* `count` values of one group, starting at value `from` of the row. */
static void group_values(const pe_quant_matrix *m, int64_t row, int64_t from, int64_t count,
                         float *out) {
  const pe_quant *q = &m->quant;
  const uint8_t *codes = m->data + (uint64_t)row * m->row_bytes;
  uint64_t at =
      (uint64_t)row * m->scale_bytes + (uint64_t)(from / q->group) * pe_dtype_size(q->scale_dtype);
  if (q->kind == PE_QUANT_AFFINE) {
    float scale, bias;
    pe_quant_plain(q->scale_dtype, m->scales + at, 1, &scale);
    pe_quant_plain(q->scale_dtype, m->biases + at, 1, &bias);
    for (int64_t i = 0; i < count; i++)
      out[i] = scale * (float)pe_quant_code(codes, q->bits, (uint64_t)(from + i)) + bias;
    return;
  }
  float scale = q->kind == PE_QUANT_NVFP4 ? pe_e4m3_to_f32(m->scales[at]) * m->global
                                          : mx_scale(m->scales[at]);
  for (int64_t i = 0; i < count; i++) {
    uint8_t code = (uint8_t)pe_quant_code(codes, q->bits, (uint64_t)(from + i));
    out[i] = (q->kind == PE_QUANT_MXFP8 ? pe_e4m3_to_f32(code) : pe_e2m1_to_f32(code)) * scale;
  }
}

void pe_quant_mlx_row(const pe_quant_matrix *m, int64_t row, int64_t from, int64_t count,
                      float *out) {
  int64_t group = m->quant.group;
  while (count > 0) {
    int64_t n = group - from % group;
    if (n > count) n = count;
    group_values(m, row, from, n, out);
    from += n, count -= n, out += n;
  }
}
