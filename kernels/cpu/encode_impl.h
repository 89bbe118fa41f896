/* encode_impl.h - rows of the KV cache to 16, 8 or 4 bits, a part of prim_impl.h.
 *
 * Every operation is exact or rounded once (extremes are found as integers), so every instruction
 * set writes the same bytes. A group that contains an infinity or NaN decodes to NaN, so that it
 * cannot pass for numbers. */

enum { GROUP = PE_QUANT_Q8_0_VALUES };
_Static_assert(PE_QUANT_Q8_0_VALUES == PE_QUANT_Q4_1_VALUES, "8 and 4 bits share encode_groups");

ALWAYS uint32_t float_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}
ALWAYS float bits_float(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

/* pe_f32_to_f16 without branches, so that loops over it vectorize. */
ALWAYS uint32_t half_bits(float f) {
  uint32_t u = float_bits(f), a = u & 0x7fffffff;
  uint32_t small = float_bits(bits_float(a) + 0.5f) - 0x3f000000;
  uint32_t normal = (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13;
  uint32_t h = a < 0x38800000 ? small : normal;
  h = a >= 0x477ff000 ? 0x7c00 : h;
  h = a > 0x7f800000 ? 0x7e00 : h;
  return h | (u >> 16 & 0x8000);
}

static void encode_halves(const float *restrict x, int64_t n, uint8_t *restrict out) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t h = (uint16_t)half_bits(x[i]);
    memcpy(out + 2 * i, &h, sizeof h);
  }
}

/* To the nearest integer, ties to even; |x| < 2^22. */
ALWAYS float whole(float x) { return (x + 12582912.f) - 12582912.f; }
ALWAYS float within(float x, float low, float high) {
  x = x > low ? x : low;
  return x < high ? x : high;
}
ALWAYS void put_half(uint8_t *out, uint32_t bits) {
  uint16_t h = (uint16_t)bits;
  memcpy(out, &h, sizeof h);
}

/* A scale and 32 signed bytes (Q8_0). */
static void encode_q8(const float *restrict x, uint8_t *restrict out) {
  int32_t most = 0;
  for (int i = 0; i < GROUP; i++) {
    int32_t a = (int32_t)(float_bits(x[i]) & 0x7fffffff);
    most = a > most ? a : most;
  }
  uint32_t scale = most >= 0x7f800000
                       ? 0x7e00
                       : half_bits(within(bits_float((uint32_t)most) / 127.f, 0, 65504.f));
  float by = scale == 0 || scale == 0x7e00 ? 0 : 1.f / pe_f16_to_f32((uint16_t)scale);
  put_half(out, scale);
  for (int i = 0; i < GROUP; i++) {
    float q = by == 0 ? 0 : x[i];
    out[2 + i] = (uint8_t)(int32_t)whole(within(q * by, -127.f, 127.f));
  }
}

/* Maps the bits of floats to integers in the same order; its own inverse. */
ALWAYS int32_t ordered(int32_t i) { return i ^ (i >> 31 & 0x7fffffff); }

/* A scale, a minimum and 32 codes of four bits; value i shares a byte with value i + 16 (Q4_1). */
static void encode_q4(const float *restrict x, uint8_t *restrict out) {
  int32_t low = INT32_MAX, high = INT32_MIN;
  for (int i = 0; i < GROUP; i++) {
    int32_t v = ordered((int32_t)float_bits(x[i]));
    low = v < low ? v : low, high = v > high ? v : high;
  }
  /* infinities, and NaN beyond them on either side */
  bool odd = high >= 0x7f800000 || low <= INT32_MIN + 0x7fffff;
  float least = odd ? 0 : within(bits_float((uint32_t)ordered(low)), -65504.f, 65504.f);
  float most = odd ? 0 : bits_float((uint32_t)ordered(high));
  uint32_t minimum = half_bits(least);
  least = pe_f16_to_f32((uint16_t)minimum);
  uint32_t scale = odd ? 0x7e00 : half_bits(within((most - least) / 15.f, 0, 65504.f));
  float by = odd || scale == 0 ? 0 : 1.f / pe_f16_to_f32((uint16_t)scale);
  put_half(out, scale), put_half(out + 2, minimum);
  uint8_t code[GROUP];
  for (int i = 0; i < GROUP; i++) {
    float q = by == 0 ? 0 : x[i] - least;
    code[i] = (uint8_t)(int32_t)whole(within(q * by, 0, 15.f));
  }
  for (int i = 0; i < GROUP / 2; i++) out[4 + i] = (uint8_t)(code[i] | code[i + GROUP / 2] << 4);
}

/* A short last group is filled with its last value, which does not widen its range. */
ALWAYS void encode_groups(const float *x, int64_t n, uint8_t *out,
                          void (*group)(const float *restrict, uint8_t *restrict),
                          const int bytes) {
  int64_t i = 0;
  for (; i + GROUP <= n; i += GROUP, out += bytes) group(x + i, out);
  if (i == n) return;
  float tail[GROUP];
  for (int64_t j = 0; j < GROUP; j++) tail[j] = x[i + j < n ? i + j : n - 1];
  group(tail, out);
}

static void encode(pe_quant_kind kind, const float *x, int64_t n, uint8_t *out) {
  if (kind == PE_QUANT_Q8_0)
    encode_groups(x, n, out, encode_q8, PE_QUANT_Q8_0_BYTES);
  else if (kind == PE_QUANT_Q4_1)
    encode_groups(x, n, out, encode_q4, PE_QUANT_Q4_1_BYTES);
  else
    encode_halves(x, n, out);
}
