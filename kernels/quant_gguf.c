/* quant_gguf.c - the block formats of GGUF: type numbers, and one decoder per format.
 *
 * All multi-byte fields are little endian. The order of the float operations is part of the format:
 * it makes the results equal bit for bit to those of the reference. */
#include "kernels/quant.h"

#include <string.h>

/* Types that we decode take their sizes from the table of quant.h. */
#define BLOCK(number, name, id)                                                                    \
  { number, name, id##_VALUES, id##_BYTES, id, PE_U8 }
#define OPAQUE(number, name, values, bytes)                                                        \
  { number, name, values, bytes, -1, PE_U8 }

static const pe_ggml_type types[] = {
    {0, "F32", 1, 4, PE_QUANT_NONE, PE_F32},
    {1, "F16", 1, 2, PE_QUANT_NONE, PE_F16},
    BLOCK(2, "Q4_0", PE_QUANT_Q4_0),
    BLOCK(3, "Q4_1", PE_QUANT_Q4_1),
    BLOCK(6, "Q5_0", PE_QUANT_Q5_0),
    BLOCK(7, "Q5_1", PE_QUANT_Q5_1),
    BLOCK(8, "Q8_0", PE_QUANT_Q8_0),
    OPAQUE(9, "Q8_1", 32, 40),
    BLOCK(10, "Q2_K", PE_QUANT_Q2_K),
    BLOCK(11, "Q3_K", PE_QUANT_Q3_K),
    BLOCK(12, "Q4_K", PE_QUANT_Q4_K),
    BLOCK(13, "Q5_K", PE_QUANT_Q5_K),
    BLOCK(14, "Q6_K", PE_QUANT_Q6_K),
    OPAQUE(15, "Q8_K", 256, 292),
    OPAQUE(16, "IQ2_XXS", 256, 66),
    OPAQUE(17, "IQ2_XS", 256, 74),
    OPAQUE(18, "IQ3_XXS", 256, 98),
    OPAQUE(19, "IQ1_S", 256, 50),
    BLOCK(20, "IQ4_NL", PE_QUANT_IQ4_NL),
    OPAQUE(21, "IQ3_S", 256, 110),
    OPAQUE(22, "IQ2_S", 256, 82),
    BLOCK(23, "IQ4_XS", PE_QUANT_IQ4_XS),
    {24, "I8", 1, 1, PE_QUANT_NONE, PE_I8},
    {25, "I16", 1, 2, PE_QUANT_NONE, PE_I16},
    {26, "I32", 1, 4, PE_QUANT_NONE, PE_I32},
    {27, "I64", 1, 8, PE_QUANT_NONE, PE_I64},
    {28, "F64", 1, 8, PE_QUANT_NONE, PE_F64},
    OPAQUE(29, "IQ1_M", 256, 56),
    {30, "BF16", 1, 2, PE_QUANT_NONE, PE_BF16},
    OPAQUE(34, "TQ1_0", 256, 54),
    OPAQUE(35, "TQ2_0", 256, 66),
    BLOCK(39, "MXFP4", PE_QUANT_GGUF_MXFP4),
    OPAQUE(40, "NVFP4", 64, 36),
    OPAQUE(41, "Q1_0", 128, 18),
};
#undef BLOCK
#undef OPAQUE

const pe_ggml_type *pe_ggml_type_find(uint32_t number) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (types[i].number == number) return &types[i];
  return NULL;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static float half_at(const uint8_t *p) { return pe_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

/* Nibble formats keep value i and value i + 16 of a run of 32 in one byte. */
static int nibble(const uint8_t *qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

/* ---- blocks of 32 ---------------------------------------------------------------------------- */

static void decode_q4_0(const uint8_t *b, float *out) {
  /* d, 16 bytes of nibbles */
  float d = half_at(b);
  for (int i = 0; i < 32; i++) out[i] = d * (float)(nibble(b + 2, i) - 8);
}

static void decode_q4_1(const uint8_t *b, float *out) {
  /* d, m, nibbles */
  float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < 32; i++) out[i] = d * (float)nibble(b + 4, i) + m;
}

static int fifth_bit(const uint8_t *qh, int i) { return (qh[i / 8] >> i % 8 & 1) << 4; }

static void decode_q5_0(const uint8_t *b, float *out) {
  /* d, 32 fifth bits, nibbles */
  float d = half_at(b);
  for (int i = 0; i < 32; i++) out[i] = d * (float)((nibble(b + 6, i) | fifth_bit(b + 2, i)) - 16);
}

static void decode_q5_1(const uint8_t *b, float *out) {
  /* d, m, fifth bits, nibbles */
  float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < 32; i++) out[i] = d * (float)(nibble(b + 8, i) | fifth_bit(b + 4, i)) + m;
}

static void decode_q8_0(const uint8_t *b, float *out) {
  /* d, 32 signed bytes */
  float d = half_at(b);
  for (int i = 0; i < 32; i++) out[i] = (float)(int8_t)b[2 + i] * d;
}

/* The sixteen levels of the non-linear 4-bit formats. */
static const int8_t nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

static void decode_iq4_nl(const uint8_t *b, float *out) {
  /* d, nibbles that index the levels */
  float d = half_at(b);
  for (int i = 0; i < 32; i++) out[i] = d * (float)nonlinear[nibble(b + 2, i)];
}

static void decode_mxfp4(const uint8_t *b, float *out) {
  /* exponent, E2M1 nibbles; unlike MLX, -0 is 0 */
  static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  /* d = 2^(exponent - 128), since the levels are doubled */
  uint32_t half = b[0] < 2 ? UINT32_C(0x00200000) << b[0] : (uint32_t)(b[0] - 1) << 23;
  float d;
  memcpy(&d, &half, sizeof d);
  for (int i = 0; i < 32; i++) out[i] = d * (float)doubled[nibble(b + 1, i)];
}

/* ---- blocks of 256 --------------------------------------------------------------------------- */

/* Two-bit codes: two halves of 128 values, each with four planes of 32 values in 32 bytes. */
static int two_bits(const uint8_t *qs, int i) {
  return qs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static void decode_q2_k(const uint8_t *b, float *out) {
  /* 16 scale|min nibbles, 64 bytes of codes, d, dmin */
  float d = half_at(b + 80), dmin = half_at(b + 82);
  for (int g = 0; g < 16; g++) {
    float scale = d * (float)(b[g] & 15), low = dmin * (float)(b[g] >> 4);
    for (int i = g * 16; i < g * 16 + 16; i++) out[i] = scale * (float)two_bits(b + 16, i) - low;
  }
}

/* Six-bit scales of Q3_K: 16 low nibbles in 8 bytes, then 16 pairs of high bits in 4 bytes. */
static int q3_scale(const uint8_t *s, int g) {
  int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4, high = s[8 + g % 4] >> g / 4 * 2 & 3;
  return (low | high << 4) - 32;
}

static void decode_q3_k(const uint8_t *b, float *out) {
  /* 32 bytes of high bits, 64 of low ones, 12 of scales, d */
  float d = half_at(b + 108);
  for (int g = 0; g < 16; g++) {
    float scale = d * (float)q3_scale(b + 96, g);
    for (int i = g * 16; i < g * 16 + 16; i++) {
      int high = b[i % 32] >> i / 32 & 1; /* a clear bit means minus four */
      out[i] = scale * (float)(two_bits(b + 32, i) - (high ? 0 : 4));
    }
  }
}

/* Eight six-bit scales and eight six-bit minima in 12 bytes: the first four of each are whole, and
 * the upper bits of their bytes hold the top two bits of the last four. */
static void k_scales(const uint8_t *s, int g, int *scale, int *low) {
  if (g < 4) {
    *scale = s[g] & 63, *low = s[g + 4] & 63;
  } else {
    *scale = (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    *low = s[g + 4] >> 4 | s[g] >> 6 << 4;
  }
}

/* Four-bit codes in runs of 64: the low nibbles of 32 bytes, then the high ones. */
static int run_nibble(const uint8_t *qs, int i) {
  return qs[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
}

static void decode_q4_k(const uint8_t *b, float *out) {
  /* d, dmin, 12 bytes of scales, 128 of nibbles */
  float d = half_at(b), dmin = half_at(b + 2);
  for (int g = 0; g < 8; g++) {
    int scale, low;
    k_scales(b + 4, g, &scale, &low);
    float s = d * (float)scale, m = dmin * (float)low;
    for (int i = g * 32; i < g * 32 + 32; i++) out[i] = s * (float)run_nibble(b + 16, i) - m;
  }
}

static void decode_q5_k(const uint8_t *b, float *out) {
  /* Q4_K with 32 bytes of fifth bits in addition, one plane per group */
  float d = half_at(b), dmin = half_at(b + 2);
  for (int g = 0; g < 8; g++) {
    int scale, low;
    k_scales(b + 4, g, &scale, &low);
    float s = d * (float)scale, m = dmin * (float)low;
    for (int i = g * 32; i < g * 32 + 32; i++) {
      int code = run_nibble(b + 48, i) | (b[16 + i % 32] >> g & 1) << 4;
      out[i] = s * (float)code - m;
    }
  }
}

static void decode_q6_k(const uint8_t *b, float *out) {
  /* 128 bytes of low nibbles, 64 of high bits, 16 scales, d */
  float d = half_at(b + 208);
  for (int g = 0; g < 16; g++) {
    float scale = d * (float)(int8_t)b[192 + g];
    for (int i = g * 16; i < g * 16 + 16; i++) {
      /* runs of 128: 64 low nibbles, 64 high ones */
      int low = b[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
      out[i] = scale * (float)((low | two_bits(b + 128, i) << 4) - 32);
    }
  }
}

static void decode_iq4_xs(const uint8_t *b, float *out) {
  /* d, 8 pairs of high scale bits, 8 low nibbles of scales, 128 bytes of codes */
  float d = half_at(b);
  int high = b[2] | b[3] << 8;
  for (int g = 0; g < 8; g++) {
    int scale = (b[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4;
    float s = d * (float)(scale - 32);
    for (int i = 0; i < 32; i++) out[g * 32 + i] = s * (float)nonlinear[nibble(b + 8 + g * 16, i)];
  }
}

void pe_quant_block(pe_quant_kind kind, const uint8_t *block, float *out) {
  static void (*const decode[PE_QUANT_COUNT])(const uint8_t *, float *) = {
      [PE_QUANT_Q4_0] = decode_q4_0,        [PE_QUANT_Q4_1] = decode_q4_1,
      [PE_QUANT_Q5_0] = decode_q5_0,        [PE_QUANT_Q5_1] = decode_q5_1,
      [PE_QUANT_Q8_0] = decode_q8_0,        [PE_QUANT_Q2_K] = decode_q2_k,
      [PE_QUANT_Q3_K] = decode_q3_k,        [PE_QUANT_Q4_K] = decode_q4_k,
      [PE_QUANT_Q5_K] = decode_q5_k,        [PE_QUANT_Q6_K] = decode_q6_k,
      [PE_QUANT_IQ4_NL] = decode_iq4_nl,    [PE_QUANT_IQ4_XS] = decode_iq4_xs,
      [PE_QUANT_GGUF_MXFP4] = decode_mxfp4,
  };
  decode[kind](block, out);
}
