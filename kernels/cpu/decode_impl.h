/* decode_impl.h - rows of weights to float32, a part of prim_impl.h.
 *
 * Values are those of pe_quant_row, bit for bit: the same multiplication and the same addition, not
 * fused; only the unpacking of codes is arranged for vectors. Plain elements other than f32, f16
 * and bf16 are left to pe_quant_plain.
 *
 * Codes are unpacked to registers of sixteen bytes, then converted to floats. An instruction set
 * must define:
 *
 *   PE_HALF(h), PE_HALVES(p)   one half (its bits), W halves at p, to floats
 *   PE_LOOKUP(table, index)    sixteen bytes chosen from sixteen
 *   PE_WIDEN(bytes, part)      bytes part * W .. to W integers; PE_WIDEN_SIGNED: signed bytes
 *   PE_SPREAD(bytes, index)    4 * W bytes chosen from sixteen by those at index; from 128 on: 0
 *   PE_CHOOSE(table, index)    W is 16: sixteen floats chosen from sixteen by the low four bits */
#if !defined PE_HALF || !defined PE_HALVES || !defined PE_LOOKUP || !defined PE_WIDEN ||           \
    !defined PE_WIDEN_SIGNED || !defined PE_SPREAD
#error "decode_impl.h: an instruction set must define PE_HALF, PE_HALVES, PE_LOOKUP, PE_WIDEN, ..."
#endif
#if PE_WIDTH == 16 && !defined PE_CHOOSE
#error "decode_impl.h: an instruction set with sixteen lanes must define PE_CHOOSE"
#endif

typedef uint8_t v16b __attribute__((vector_size(16)));
typedef int8_t v16s __attribute__((vector_size(16)));
typedef uint64_t v2q __attribute__((vector_size(16)));
typedef uint16_t v8h __attribute__((vector_size(16)));

ALWAYS uint32_t word_at(const uint8_t *p) {
  uint32_t w;
  memcpy(&w, p, sizeof w);
  return w;
}
ALWAYS float half_at(const uint8_t *p) {
  uint16_t h;
  memcpy(&h, p, sizeof h);
  return PE_HALF(h);
}
ALWAYS v16b bytes16(const uint8_t *p) {
  v16b v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* Shifts of all bytes. Machines shift pairs of bytes only, so bits of a neighbour come in: `down`
 * must be followed by a mask, and bits shifted `up` must not leave their byte. */
ALWAYS v16b down(v16b v, int n) { return (v16b)((v8h)v >> (uint16_t)n); }
ALWAYS v16b up(v16b v, int n) { return (v16b)((v8h)v << (uint16_t)n); }

/* ---- plain elements -------------------------------------------------------------------------- */

static void halves(const uint8_t *p, int64_t n, float *out) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, PE_HALVES(p + 2 * i));
  for (; i < n; i++) out[i] = half_at(p + 2 * i);
}

static void brains(const uint8_t *restrict p, int64_t n, float *restrict out) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t h;
    memcpy(&h, p + 2 * i, sizeof h);
    uint32_t bits = (uint32_t)h << 16;
    memcpy(out + i, &bits, sizeof bits);
  }
}

static void plain(pe_dtype dtype, const uint8_t *p, int64_t n, float *out) {
  if (dtype == PE_BF16)
    brains(p, n, out);
  else if (dtype == PE_F16)
    halves(p, n, out);
  else
    pe_quant_plain(dtype, p, n, out);
}

/* ---- sixteen codes to values ----------------------------------------------------------------- */

ALWAYS void linear16(v16b codes, float scale, float bias, float *out) { /* scale * code + bias */
  for (int p = 0; p < PARTS; p++)
    store(out + p * W,
          splat(scale) * __builtin_convertvector(PE_WIDEN(codes, p), vf) + splat(bias));
}
ALWAYS void signed16(v16b codes, float scale, float *out) { /* scale * code */
  for (int p = 0; p < PARTS; p++)
    store(out + p * W, splat(scale) * __builtin_convertvector(PE_WIDEN_SIGNED(codes, p), vf));
}

/* Byte i of eight holds the codes 2i (low) and 2i+1. */
ALWAYS v16b neighbours16(const uint8_t *p) {
  const v16b odd = {0, 255, 0, 255, 0, 255, 0, 255, 0, 255, 0, 255, 0, 255, 0, 255};
  uint64_t eight;
  memcpy(&eight, p, sizeof eight);
  v16b v = (v16b)(v2q){eight, 0},
       twice = __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return ((twice & ~odd) | (down(twice, 4) & odd)) & 15;
}

#if PE_WIDTH == 16
/* n codes of four bits choose from the sixteen values of a table. */
ALWAYS void choose4(const uint8_t *p, int64_t n, vf table, float *out) {
  const vu shifts = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
  for (int64_t i = 0; i < n; i += 16, p += 8) {
    vu low = word_at(p) - (vu){0}, high = word_at(p + 4) - (vu){0};
    vu w = __builtin_shufflevector(low, high, 0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16,
                                   16) >>
           shifts;
    store(out + i, PE_CHOOSE(table, w));
  }
}
#endif

/* ---- MLX layouts ----------------------------------------------------------------------------- */

/* The codes of sixteen values in their stream: value i is in two bytes, from bit shift[i] on. */
typedef struct stream {
  uint8_t index[4 * LANES];
  uint32_t shift[LANES];
} stream;

ALWAYS stream stream_of(const int bits) {
  stream s;
  for (int i = 0; i < LANES; i++) {
    s.index[4 * i] = (uint8_t)(i * bits / 8), s.index[4 * i + 1] = (uint8_t)(i * bits / 8 + 1);
    s.index[4 * i + 2] = s.index[4 * i + 3] = 128;
    s.shift[i] = (uint32_t)(i * bits % 8);
  }
  return s;
}

ALWAYS void stream16(v16b bytes, const stream *s, const int bits, float scale, float bias,
                     float *out) {
  for (int p = 0; p < PARTS; p++) {
    vu shift, w = PE_SPREAD(bytes, s->index + 4 * W * p);
    memcpy(&shift, s->shift + W * p, sizeof shift);
    vi codes = (vi)(w >> shift & ((1u << bits) - 1));
    store(out + p * W, splat(scale) * __builtin_convertvector(codes, vf) + splat(bias));
  }
}

/* One group. `beyond`: it is safe to read sixteen bytes at any code, past the end of the group. */
ALWAYS void affine_group(const uint8_t *p, const stream *s, const int bits, int64_t n, float scale,
                         float bias, bool beyond, float *out) {
#if PE_WIDTH == 16
  if (bits == 4) {
    const vf codes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vf table = splat(scale) * codes + splat(bias);
    if (n == 64) /* the usual group: a constant unrolls the loop */
      choose4(p, 64, table, out);
    else
      choose4(p, n, table, out);
    return;
  }
#endif
  if (bits == 8)
    for (int64_t i = 0; i < n; i += 16) linear16(bytes16(p + i), scale, bias, out + i);
  else if (beyond)
    for (int64_t i = 0; i < n; i += 16, p += 2 * bits)
      stream16(bytes16(p), s, bits, scale, bias, out + i);
  else
    for (int64_t i = 0; i < n; i += 16, p += 2 * bits) {
      v16b some = {0};
      memcpy(&some, p, 2 * (size_t)bits);
      stream16(some, s, bits, scale, bias, out + i);
    }
}

enum { GROUPS_AT_ONCE = 32 }; /* enough to amortize the vector loop that widens the scales */

/* Scales and biases of some groups are widened together, then the groups are decoded. Rows of a
 * view may be further apart than they are long: the last one ends with its codes. */
ALWAYS void affine_row(const pe_quant_matrix *m, int64_t row, float *out, const int bits) {
  /* A group is a power of two (pe_quant_valid); a division took a fifth of the time of a row. */
  const int64_t group = m->quant.group, groups = m->cols >> __builtin_ctz((unsigned)group),
                bytes = group * bits / 8;
  const uint8_t *codes = m->data + (uint64_t)row * m->row_bytes,
                *end = m->data + (uint64_t)(m->rows - 1) * m->row_bytes + groups * bytes;
  const uint8_t *scales = m->scales + (uint64_t)row * m->scale_bytes,
                *biases = m->biases + (uint64_t)row * m->scale_bytes;
  const int64_t size = (int64_t)pe_dtype_size(m->quant.scale_dtype);
  const stream s = stream_of(bits);
  float scale[GROUPS_AT_ONCE], bias[GROUPS_AT_ONCE];
  for (int64_t at = 0; at < groups; at += GROUPS_AT_ONCE) {
    int64_t n = groups - at < GROUPS_AT_ONCE ? groups - at : GROUPS_AT_ONCE;
    plain(m->quant.scale_dtype, scales + at * size, n, scale);
    plain(m->quant.scale_dtype, biases + at * size, n, bias);
    for (int64_t g = 0; g < n; g++, codes += bytes, out += group)
      affine_group(codes, &s, bits, group, scale[g], bias[g], end - codes >= bytes + 16, out);
  }
}

static void affine(const pe_quant_matrix *m, int64_t row, float *out) {
  switch (m->quant.bits) {
  case 2: affine_row(m, row, out, 2); break;
  case 3: affine_row(m, row, out, 3); break;
  case 4: affine_row(m, row, out, 4); break;
  case 5: affine_row(m, row, out, 5); break;
  case 6: affine_row(m, row, out, 6); break;
  default: affine_row(m, row, out, 8);
  }
}

/* n E2M1 codes: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives, including -0. */
ALWAYS void e2m1_codes(const uint8_t *p, int64_t n, float scale, float *out) {
#if PE_WIDTH == 16
  const vf values = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  choose4(p, n, values * splat(scale), out);
#else
  /* the two upper bytes of the float, each through a table */
  const v16b first = {0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                      0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
  const v16b second = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0,
                       0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
  for (int64_t i = 0; i < n; i += 16, p += 8) {
    v16b codes = neighbours16(p), high = PE_LOOKUP(first, codes), low = PE_LOOKUP(second, codes);
    for (int k = 0; k < PARTS; k++)
      store(out + i + k * W,
            (vf)((vu)PE_WIDEN(high, k) << 24 | (vu)PE_WIDEN(low, k) << 16) * splat(scale));
  }
#endif
}

/* Sixteen E4M3 codes. Subnormals get the smallest exponent, and the surplus 2^-6 is subtracted. */
ALWAYS void e4m3_codes(v16b codes, float scale, float *out) {
  for (int p = 0; p < PARTS; p++) {
    vi c = PE_WIDEN(codes, p), plus = c & 0x7f, small = plus < 8;
    vf f = (vf)((plus << 20) + (120 << 23) + (small & 1 << 23)) - (vf)(small & 121 << 23);
    f = select_(plus == 0x7f, splat(NAN), f);
    store(out + p * W, (vf)((vi)f | (vi)((vu)(c & 0x80) << 24)) * splat(scale));
  }
}

/* As MLX reads it: 255 is infinity. */
static float e8m0(uint8_t code) {
  uint32_t bits = code ? (uint32_t)code << 23 : 0x00400000;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static void mxfp4(const pe_quant_matrix *m, int64_t row, float *out) {
  const uint8_t *codes = m->data + (uint64_t)row * m->row_bytes,
                *scales = m->scales + (uint64_t)row * m->scale_bytes;
  const int group = PE_QUANT_MXFP4_VALUES;
  for (int64_t g = 0; g < m->cols / group; g++, codes += group / 2, out += group)
    e2m1_codes(codes, group, e8m0(scales[g]), out);
}

static void mxfp8(const pe_quant_matrix *m, int64_t row, float *out) {
  const uint8_t *codes = m->data + (uint64_t)row * m->row_bytes,
                *scales = m->scales + (uint64_t)row * m->scale_bytes;
  _Static_assert(PE_QUANT_MXFP8_VALUES == 32, "a group is two times sixteen codes");
  for (int64_t g = 0; g < m->cols / 32; g++, codes += 32, out += 32) {
    e4m3_codes(bytes16(codes), e8m0(scales[g]), out);
    e4m3_codes(bytes16(codes + 16), e8m0(scales[g]), out + 16);
  }
}

static void nvfp4(const pe_quant_matrix *m, int64_t row, float *out) {
  const uint8_t *codes = m->data + (uint64_t)row * m->row_bytes,
                *scales = m->scales + (uint64_t)row * m->scale_bytes;
  _Static_assert(PE_QUANT_NVFP4_VALUES == 16, "a group is sixteen codes");
  const int64_t groups = m->cols / 16;
  for (int64_t at = 0; at < groups; at += 16) {
    int64_t n = groups - at < 16 ? groups - at : 16;
    v16b some = {0};
    float scale[16];
    memcpy(&some, scales + at, (size_t)n);
    e4m3_codes(some, m->global, scale);
    for (int64_t g = 0; g < n; g++, codes += 8, out += 16) e2m1_codes(codes, 16, scale[g], out);
  }
}

/* ---- GGUF blocks of 32 ----------------------------------------------------------------------- */

/* Byte i of sixteen holds the codes i (low) and i + 16. */
ALWAYS void q4_0(const uint8_t *b, float *out) {
  v16b q = bytes16(b + 2);
  float d = half_at(b);
  signed16((q & 15) - 8, d, out);
  signed16((down(q, 4) & 15) - 8, d, out + 16);
}

ALWAYS void q4_1(const uint8_t *b, float *out) {
  v16b q = bytes16(b + 4);
  float d = half_at(b), m = half_at(b + 2);
  linear16(q & 15, d, m, out);
  linear16(down(q, 4) & 15, d, m, out + 16);
}

/* Sixteen bits as bytes of 16 or 0. */
ALWAYS v16b fifth_bits(const uint8_t *p) {
  const v16b bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  uint16_t two;
  memcpy(&two, p, sizeof two);
  v16b b = (v16b)(two - (v8h){0});
  b = __builtin_shufflevector(b, b, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  return (v16b)((b & bit) == bit) & 16;
}

ALWAYS void q5_0(const uint8_t *b, float *out) {
  v16b q = bytes16(b + 6);
  float d = half_at(b);
  signed16(((q & 15) | fifth_bits(b + 2)) - 16, d, out);
  signed16(((down(q, 4) & 15) | fifth_bits(b + 4)) - 16, d, out + 16);
}

ALWAYS void q5_1(const uint8_t *b, float *out) {
  v16b q = bytes16(b + 8);
  float d = half_at(b), m = half_at(b + 2);
  linear16((q & 15) | fifth_bits(b + 4), d, m, out);
  linear16((down(q, 4) & 15) | fifth_bits(b + 6), d, m, out + 16);
}

ALWAYS void q8_0(const uint8_t *b, float *out) {
  float d = half_at(b);
  signed16(bytes16(b + 2), d, out);
  signed16(bytes16(b + 18), d, out + 16);
}

static const v16s nonlinear_levels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const v16s doubled_e2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

ALWAYS void table_nibbles(v16s table, const uint8_t *qs, float scale, float *out) {
  v16b q = bytes16(qs);
  signed16(PE_LOOKUP(table, q & 15), scale, out);
  signed16(PE_LOOKUP(table, down(q, 4) & 15), scale, out + 16);
}

ALWAYS void iq4_nl(const uint8_t *b, float *out) {
  table_nibbles(nonlinear_levels, b + 2, half_at(b), out);
}

ALWAYS void gguf_mxfp4(const uint8_t *b, float *out) {
  /* d = 2^(exponent - 128), since the levels are doubled */
  uint32_t half = b[0] < 2 ? UINT32_C(0x00200000) << b[0] : (uint32_t)(b[0] - 1) << 23;
  float d;
  memcpy(&d, &half, sizeof d);
  table_nibbles(doubled_e2m1, b + 1, d, out);
}

/* ---- GGUF blocks of 256 ---------------------------------------------------------------------- */

ALWAYS void iq4_xs(const uint8_t *b, float *out) {
  float d = half_at(b);
  int high = b[2] | b[3] << 8;
  for (int g = 0; g < 8; g++) {
    int scale = (b[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4;
    table_nibbles(nonlinear_levels, b + 8 + g * 16, d * (float)(scale - 32), out + g * 32);
  }
}

/* Two-bit planes: 128 values in 32 bytes, plane j (32 values) in bits 2j and 2j+1. */
ALWAYS void q2_k(const uint8_t *b, float *out) {
  v16b s = bytes16(b);
  float scale[16], low[16];
  signed16(s & 15, half_at(b + 80), scale);
  signed16(down(s, 4) & 15, -half_at(b + 82), low);
  for (int g = 0; g < 16; g++)
    linear16(down(bytes16(b + 16 + g / 8 * 32 + g % 2 * 16), g % 8 / 2 * 2) & 3, scale[g], low[g],
             out + g * 16);
}

ALWAYS void q3_k(const uint8_t *b, float *out) {
  uint32_t s0 = word_at(b + 96), s1 = word_at(b + 100), s2 = word_at(b + 104);
  uint32_t words[4] = {(s0 & 0x0f0f0f0f) | (s2 & 0x03030303) << 4,
                       (s1 & 0x0f0f0f0f) | (s2 >> 2 & 0x03030303) << 4,
                       (s0 >> 4 & 0x0f0f0f0f) | (s2 >> 4 & 0x03030303) << 4,
                       (s1 >> 4 & 0x0f0f0f0f) | (s2 >> 6 & 0x03030303) << 4};
  float scale[16];
  signed16(bytes16((const uint8_t *)words) - 32, half_at(b + 108), scale);
  for (int g = 0; g < 16; g++) {
    v16b q = down(bytes16(b + 32 + g / 8 * 32 + g % 2 * 16), g % 8 / 2 * 2) & 3;
    v16b high = down(bytes16(b + g % 2 * 16), g / 2) & 1; /* a clear bit means minus four */
    signed16(q + up(high, 2) - 4, scale[g], out + g * 16);
  }
}

/* Scales 0 to 7 of Q4_K and Q5_K, then the negated minima; quant_gguf.c describes the packing. */
ALWAYS void k_scales(const uint8_t *b, float *scale) {
  uint32_t s0 = word_at(b + 4), s1 = word_at(b + 8), s2 = word_at(b + 12);
  uint32_t words[4] = {s0 & 0x3f3f3f3f, (s2 & 0x0f0f0f0f) | (s0 >> 6 & 0x03030303) << 4,
                       s1 & 0x3f3f3f3f, (s2 >> 4 & 0x0f0f0f0f) | (s1 >> 6 & 0x03030303) << 4};
  float d = half_at(b), dmin = -half_at(b + 2), code[16];
  signed16(bytes16((const uint8_t *)words), 1, code);
  for (int g = 0; g < 8; g++) scale[g] = d * code[g], scale[8 + g] = dmin * code[8 + g];
}

ALWAYS void q4_k(const uint8_t *b, float *out) {
  float scale[16];
  k_scales(b, scale);
  for (int g = 0; g < 8; g++)
    for (int i = 0; i < 32; i += 16) {
      v16b q = bytes16(b + 16 + g / 2 * 32 + i);
      linear16(down(q, g % 2 * 4) & 15, scale[g], scale[8 + g], out + g * 32 + i);
    }
}

ALWAYS void q5_k(const uint8_t *b, float *out) {
  float scale[16];
  k_scales(b, scale);
  for (int g = 0; g < 8; g++)
    for (int i = 0; i < 32; i += 16) {
      v16b q = bytes16(b + 48 + g / 2 * 32 + i), high = down(bytes16(b + 16 + i), g) & 1;
      linear16((down(q, g % 2 * 4) & 15) | up(high, 4), scale[g], scale[8 + g], out + g * 32 + i);
    }
}

ALWAYS void q6_k(const uint8_t *b, float *out) {
  float scale[16];
  signed16(bytes16(b + 192), half_at(b + 208), scale);
  for (int g = 0; g < 16; g++) {
    v16b q = bytes16(b + g / 8 * 64 + g % 4 * 16),
         high = bytes16(b + 128 + g / 8 * 32 + g % 2 * 16);
    v16b low = down(q, g % 8 / 4 * 4) & 15;
    signed16((low | up(down(high, g % 8 / 2 * 2) & 3, 4)) - 32, scale[g], out + g * 16);
  }
}

ALWAYS void blocks(const pe_quant_matrix *m, int64_t row, float *out,
                   void (*block)(const uint8_t *, float *), const int values, const int bytes) {
  const uint8_t *p = m->data + (uint64_t)row * m->row_bytes;
  for (int64_t n = m->cols / values; n > 0; n--, p += bytes, out += values) block(p, out);
}

/* ---- a row ----------------------------------------------------------------------------------- */

static void decode(const pe_quant_matrix *m, int64_t row, float *out) {
  switch (m->quant.kind) {
  case PE_QUANT_NONE: plain(m->dtype, m->data + (uint64_t)row * m->row_bytes, m->cols, out); break;
  case PE_QUANT_AFFINE: affine(m, row, out); break;
  case PE_QUANT_MXFP4: mxfp4(m, row, out); break;
  case PE_QUANT_MXFP8: mxfp8(m, row, out); break;
  case PE_QUANT_NVFP4: nvfp4(m, row, out); break;
#define BLOCKS(id, block)                                                                          \
  case PE_QUANT_##id:                                                                              \
    blocks(m, row, out, block, PE_QUANT_##id##_VALUES, PE_QUANT_##id##_BYTES);                     \
    break;
    BLOCKS(Q4_0, q4_0)
    BLOCKS(Q4_1, q4_1)
    BLOCKS(Q5_0, q5_0)
    BLOCKS(Q5_1, q5_1)
    BLOCKS(Q8_0, q8_0)
    BLOCKS(Q2_K, q2_k)
    BLOCKS(Q3_K, q3_k)
    BLOCKS(Q4_K, q4_k)
    BLOCKS(Q5_K, q5_k)
    BLOCKS(Q6_K, q6_k)
    BLOCKS(IQ4_NL, iq4_nl)
    BLOCKS(IQ4_XS, iq4_xs)
    BLOCKS(GGUF_MXFP4, gguf_mxfp4)
#undef BLOCKS
  default: pe_quant_row(m, row, 0, m->cols, out);
  }
}
