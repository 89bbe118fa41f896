// weight.metal - weights of every layout of kernels/quant.h, eight values of a row at a time.
//
// Value i of a piece is scale * code[i] + bias, where codes are numbers already: a product may sum
// code * x first and multiply once. No scale changes within eight values that start at a multiple
// of eight. Plain elements have scale 1, bias 0.
#ifndef PE_METAL_WEIGHT
#define PE_METAL_WEIGHT

#include "kernels/metal/common.metal"

struct weight_format {
  uint kind, bits, group, dtype;
};
struct weight_row {
  device const uchar *data;
  device const uchar *scales;
  device const uchar *biases;
  uint cols;
  float global;
  bool words;  // it begins at a multiple of four bytes
};
struct weight_piece {
  float code[8];
  float scale, bias;
};

METAL_FUNC weight_format format_1() { return weight_format{KIND, BITS, GROUP_VALUES, DTYPE}; }
METAL_FUNC weight_format format_2() { return weight_format{KIND2, BITS2, GROUP_VALUES2, DTYPE2}; }
METAL_FUNC weight_format format_3() { return weight_format{KIND3, BITS3, GROUP_VALUES3, DTYPE3}; }
METAL_FUNC weight_format format_4() { return weight_format{KIND4, BITS4, GROUP_VALUES4, DTYPE4}; }

METAL_FUNC bool has_bias(weight_format f) {
  return f.kind == PE_QUANT_AFFINE || f.kind == PE_QUANT_Q4_1 || f.kind == PE_QUANT_Q5_1 ||
         f.kind == PE_QUANT_Q2_K || f.kind == PE_QUANT_Q4_K || f.kind == PE_QUANT_Q5_K;
}

// ---- numbers of few bits ------------------------------------------------------------------------

METAL_FUNC float half_number(uint bits) { return (float)as_type<half>((ushort)bits); }
METAL_FUNC float half_at(device const uchar *p) {
  return half_number((uint)p[0] | (uint)p[1] << 8);
}

constant float E2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
// The levels of the non-linear formats of GGUF.
constant float LEVELS[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f,
                             1.0f,    13.0f,   25.0f,  38.0f,  53.0f,  69.0f,  89.0f,  113.0f};

METAL_FUNC float e4m3(uint code) {
  const uint sign = (code & 0x80u) << 24, exponent = code >> 3 & 15u, fraction = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return as_type<float>(0x7fc00000u);
  if (exponent == 0u) return as_type<float>(sign | as_type<uint>((float)fraction * 1.953125e-3f));
  return as_type<float>(sign | (exponent + 120u) << 23 | fraction << 20);
}
METAL_FUNC float e8m0(uint code) {  // 255 is infinity, as MLX reads it
  return as_type<float>(code == 0u ? 0x00400000u : code << 23);
}

METAL_FUNC float element_at(device const uchar *p, uint dtype, uint i) {
  if (dtype == PE_F32) return ((device const float *)p)[i];
  const uint bits = ((device const ushort *)p)[i];
  return dtype == PE_F16 ? half_number(bits) : as_type<float>(bits << 16);
}

// Code i of eight that begin at p, `bits` each: a little-endian stream of bits bytes.
METAL_FUNC uint stream_code(device const uchar *p, uint bits, uint i) {
  const uint at = i * bits, shift = at & 7u;
  uint v = p[at >> 3];
  if (shift + bits > 8u) v |= (uint)p[(at >> 3) + 1u] << 8;
  return v >> shift & ((1u << bits) - 1u);
}

// ---- MLX layouts --------------------------------------------------------------------------------

METAL_FUNC void stream_codes(weight_row w, uint bits, uint k, thread uint *code) {
  device const uchar *p = w.data + (k >> 3) * bits;
  if (bits == 4u) {
    const uint word = *(device const uint *)p;
    for (uint i = 0; i < 8u; i++) code[i] = word >> 4u * i & 15u;
  } else if (bits == 8u) {
    device const uint *word = (device const uint *)p;
    for (uint i = 0; i < 8u; i++) code[i] = word[i / 4u] >> 8u * (i % 4u) & 255u;
  } else {
    for (uint i = 0; i < 8u; i++) code[i] = stream_code(p, bits, i);
  }
}

METAL_FUNC void mlx_piece(weight_format f, weight_row w, uint k, thread weight_piece &out) {
  uint code[8];
  const uint g = k / f.group;
  stream_codes(w, f.bits, k, code);
  out.bias = 0.0f;
  if (f.kind == PE_QUANT_AFFINE) {
    out.scale = element_at(w.scales, f.dtype, g), out.bias = element_at(w.biases, f.dtype, g);
    for (uint i = 0; i < 8u; i++) out.code[i] = (float)code[i];
    return;
  }
  out.scale = f.kind == PE_QUANT_NVFP4 ? e4m3(w.scales[g]) * w.global : e8m0(w.scales[g]);
  for (uint i = 0; i < 8u; i++)
    out.code[i] = f.kind == PE_QUANT_MXFP8 ? e4m3(code[i]) : E2M1[code[i]];
}

// ---- GGUF: blocks of 32 -------------------------------------------------------------------------

// Nibbles of values i and i + 16 share a byte.
METAL_FUNC uint nibble(device const uchar *p, uint i) {
  return i < 16u ? p[i] & 15u : (uint)p[i - 16u] >> 4;
}
METAL_FUNC uint fifth_bit(device const uchar *p, uint i) {
  return ((uint)p[i >> 3] >> (i & 7u) & 1u) << 4;
}

METAL_FUNC float small_code(uint kind, device const uchar *b, uint i) {
  switch (kind) {
    case PE_QUANT_Q4_0: return (float)nibble(b + 2, i) - 8.0f;
    case PE_QUANT_Q4_1: return (float)nibble(b + 4, i);
    case PE_QUANT_Q5_0: return (float)(nibble(b + 6, i) | fifth_bit(b + 2, i)) - 16.0f;
    case PE_QUANT_Q5_1: return (float)(nibble(b + 8, i) | fifth_bit(b + 4, i));
    case PE_QUANT_Q8_0: return (float)(int)as_type<int8_t>(b[2u + i]);
    case PE_QUANT_IQ4_NL: return LEVELS[nibble(b + 2, i)];
    default: return E2M1[nibble(b + 1, i)];
  }
}

METAL_FUNC uint small_bytes(uint kind) {
  switch (kind) {
    case PE_QUANT_Q4_0: return PE_QUANT_Q4_0_BYTES;
    case PE_QUANT_Q4_1: return PE_QUANT_Q4_1_BYTES;
    case PE_QUANT_Q5_0: return PE_QUANT_Q5_0_BYTES;
    case PE_QUANT_Q5_1: return PE_QUANT_Q5_1_BYTES;
    case PE_QUANT_Q8_0: return PE_QUANT_Q8_0_BYTES;
    case PE_QUANT_IQ4_NL: return PE_QUANT_IQ4_NL_BYTES;
    default: return PE_QUANT_GGUF_MXFP4_BYTES;
  }
}

METAL_FUNC void small_piece(uint kind, weight_row w, uint k, thread weight_piece &out) {
  device const uchar *b = w.data + (size_t)(k / 32u) * small_bytes(kind);
  const uint first = k % 32u;
  out.scale = kind == PE_QUANT_GGUF_MXFP4 ? e8m0(b[0]) : half_at(b);
  out.bias = kind == PE_QUANT_Q4_1 || kind == PE_QUANT_Q5_1 ? half_at(b + 2) : 0.0f;
  for (uint i = 0; i < 8u; i++) out.code[i] = small_code(kind, b, first + i);
}

// ---- GGUF: blocks of 256 ------------------------------------------------------------------------

METAL_FUNC uint two_bits(device const uchar *p, uint i) {
  return (uint)p[i / 128u * 32u + i % 32u] >> i % 128u / 32u * 2u & 3u;
}
METAL_FUNC uint run_nibble(device const uchar *p, uint i) {
  return (uint)p[i / 64u * 32u + i % 32u] >> i % 64u / 32u * 4u & 15u;
}
METAL_FUNC int q3_scale(device const uchar *s, uint g) {
  const uint low = g < 8u ? s[g] & 15u : (uint)s[g - 8u] >> 4;
  return (int)(low | ((uint)s[8u + g % 4u] >> g / 4u * 2u & 3u) << 4) - 32;
}
// Scale g of Q4_K and Q5_K, and minimum g.
METAL_FUNC uint k_scale(device const uchar *s, uint g) {
  return g < 4u ? s[g] & 63u : (s[g + 4u] & 15u) | (uint)s[g - 4u] >> 6 << 4;
}
METAL_FUNC uint k_minimum(device const uchar *s, uint g) {
  return g < 4u ? s[g + 4u] & 63u : (uint)s[g + 4u] >> 4 | (uint)s[g] >> 6 << 4;
}

METAL_FUNC void q2_piece(device const uchar *b, uint i, thread weight_piece &out) {
  const uint s = b[i / 16u];
  out.scale = half_at(b + 80) * (float)(s & 15u), out.bias = -(half_at(b + 82) * (float)(s >> 4));
  for (uint j = 0; j < 8u; j++) out.code[j] = (float)two_bits(b + 16, i + j);
}

METAL_FUNC void q3_piece(device const uchar *b, uint i, thread weight_piece &out) {
  out.scale = half_at(b + 108) * (float)q3_scale(b + 96, i / 16u), out.bias = 0.0f;
  for (uint j = 0; j < 8u; j++) {
    const uint high = (uint)b[(i + j) % 32u] >> (i + j) / 32u & 1u;
    out.code[j] = (float)two_bits(b + 32, i + j) - (high != 0u ? 0.0f : 4.0f);
  }
}

// `five`: Q5_K, with 32 bytes of fifth bits before the nibbles.
METAL_FUNC void q45_piece(device const uchar *b, bool five, uint i, thread weight_piece &out) {
  const uint g = i / 32u;
  out.scale = half_at(b) * (float)k_scale(b + 4, g);
  out.bias = -(half_at(b + 2) * (float)k_minimum(b + 4, g));
  for (uint j = 0; j < 8u; j++) {
    const uint fifth = five ? ((uint)b[16u + (i + j) % 32u] >> g & 1u) << 4 : 0u;
    out.code[j] = (float)(run_nibble(b + (five ? 48 : 16), i + j) | fifth);
  }
}

METAL_FUNC void q6_piece(device const uchar *b, uint i, thread weight_piece &out) {
  out.scale = half_at(b + 208) * (float)(int)as_type<int8_t>(b[192u + i / 16u]), out.bias = 0.0f;
  for (uint j = i; j < i + 8u; j++) {
    const uint low = (uint)b[j / 128u * 64u + j % 64u] >> j % 128u / 64u * 4u & 15u;
    out.code[j - i] = (float)(low | two_bits(b + 128, j) << 4) - 32.0f;
  }
}

METAL_FUNC void iq4_xs_piece(device const uchar *b, uint i, thread weight_piece &out) {
  const uint g = i / 32u, high = (uint)b[2] | (uint)b[3] << 8;
  const uint scale = ((uint)b[4u + g / 2u] >> g % 2u * 4u & 15u) | (high >> 2u * g & 3u) << 4;
  out.scale = half_at(b) * ((float)scale - 32.0f), out.bias = 0.0f;
  for (uint j = 0; j < 8u; j++) out.code[j] = LEVELS[nibble(b + 8u + g * 16u, i % 32u + j)];
}

METAL_FUNC void large_piece(uint kind, weight_row w, uint k, thread weight_piece &out) {
  const size_t block = k / 256u;
  const uint i = k % 256u;
  switch (kind) {
    case PE_QUANT_Q2_K: q2_piece(w.data + block * PE_QUANT_Q2_K_BYTES, i, out); return;
    case PE_QUANT_Q3_K: q3_piece(w.data + block * PE_QUANT_Q3_K_BYTES, i, out); return;
    case PE_QUANT_Q4_K: q45_piece(w.data + block * PE_QUANT_Q4_K_BYTES, false, i, out); return;
    case PE_QUANT_Q5_K: q45_piece(w.data + block * PE_QUANT_Q5_K_BYTES, true, i, out); return;
    case PE_QUANT_Q6_K: q6_piece(w.data + block * PE_QUANT_Q6_K_BYTES, i, out); return;
    default: iq4_xs_piece(w.data + block * PE_QUANT_IQ4_XS_BYTES, i, out); return;
  }
}

// ---- plain elements -----------------------------------------------------------------------------

METAL_FUNC void plain_piece(uint dtype, weight_row w, uint k, thread weight_piece &out) {
  out.scale = 1.0f, out.bias = 0.0f;
  if (k + 8u > w.cols) {  // the end of a row: zeros follow
    for (uint i = 0; i < 8u; i++)
      out.code[i] = k + i < w.cols ? element_at(w.data, dtype, k + i) : 0.0f;
  } else if (dtype == PE_F32 || !w.words) {
    for (uint i = 0; i < 8u; i++) out.code[i] = element_at(w.data, dtype, k + i);
  } else {
    for (uint i = 0; i < 4u; i++) {
      const uint pair = ((device const uint *)w.data)[k / 2u + i];
      const uint low = pair & 0xffffu, high = pair >> 16;
      out.code[2u * i] = dtype == PE_F16 ? half_number(low) : as_type<float>(low << 16);
      out.code[2u * i + 1u] = dtype == PE_F16 ? half_number(high) : as_type<float>(high << 16);
    }
  }
}

// ---- any layout ---------------------------------------------------------------------------------

// Columns k .. k + 7 of a row; k is a multiple of 8. Plain rows may end before.
METAL_FUNC void weight_piece_at(weight_format f, weight_row w, uint k, thread weight_piece &out) {
  if (f.kind == PE_QUANT_NONE) {
    plain_piece(f.dtype, w, k, out);
  } else if (f.kind <= PE_QUANT_NVFP4) {
    mlx_piece(f, w, k, out);
  } else if ((f.kind >= PE_QUANT_Q2_K && f.kind <= PE_QUANT_Q6_K) || f.kind == PE_QUANT_IQ4_XS) {
    large_piece(f.kind, w, k, out);
  } else {
    small_piece(f.kind, w, k, out);
  }
}

METAL_FUNC weight_row weight_row_at(constant pe_metal_mat &m, device const uchar *data,
                                    device const uchar *scales, device const uchar *biases,
                                    uint row) {
  weight_row w;
  w.data = data + (size_t)row * (size_t)m.row_bytes;
  w.scales = scales + (size_t)row * (size_t)m.scale_bytes;
  w.biases = biases + (size_t)row * (size_t)m.scale_bytes;
  w.cols = (uint)m.cols, w.global = m.global, w.words = (m.row_bytes & 3u) == 0u;
  return w;
}

METAL_FUNC float decoded(thread const weight_piece &p, uint i) {
  return p.scale * p.code[i] + p.bias;
}

#endif
