/* pack_stored.c - see pack_stored.h. A model must be packed at the speed of memory, in code that
 * every machine can run: in vectors of 16 bytes, and without a byte per code on the way. */
#include "kernels/pack_stored.h"

#include <string.h>

typedef uint8_t v16b __attribute__((vector_size(16)));
typedef uint16_t v8h __attribute__((vector_size(16)));
typedef uint32_t v4w __attribute__((vector_size(16)));
typedef uint64_t v2d __attribute__((vector_size(16)));

static inline v8h get(const uint8_t *p) {
  v8h v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline void put(uint32_t *words, v16b v) { memcpy(words, &v, sizeof v); }

/* ---- planes ---------------------------------------------------------------------------------- */

/* The even bytes of a and b. */
static inline v16b even(v8h a, v8h b) {
  return __builtin_shufflevector((v16b)a, (v16b)b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24,
                                 26, 28, 30);
}

/* `bits` bits, from `shift` on, of each byte; two neighbours in an even byte. */
static inline v8h pairs(v8h v, const int bits, const int shift) {
  v = v >> shift & (uint16_t)(((1u << bits) - 1) * 0x0101u);
  return v | v >> (8 - bits);
}

/* The same of the bytes of 32 columns, without the odd bytes: four words of eight columns. */
static inline v16b join32(v8h a, v8h b, const int bits, const int shift) {
  return even(pairs(a, bits, shift), pairs(b, bits, shift));
}

/* Each even word of a and b with the next one `bits` bits above it. */
static inline v16b join_words(v16b a, v16b b, const int bits) {
  const v2d x = (v2d)a | (v2d)a >> (32 - bits), y = (v2d)b | (v2d)b >> (32 - bits);
  return (v16b)__builtin_shufflevector((v4w)x, (v4w)y, 0, 2, 4, 6);
}

/* Four words of a plane of 8 bits: 16 columns. */
static inline v16b split16(v8h v) {
  const v4w words = (v4w)even(v, v >> 8);
  return (v16b)__builtin_shufflevector(words, words, 0, 2, 1, 3);
}

/* A plane of 256 columns, each with its bits in a byte of its own. */
static inline void plane(const uint8_t *codes, const int bits, const int shift, uint32_t *words) {
  v16b part[8]; /* of 32 columns each */
  for (int i = 0; i < 8 && bits < 8; i++)
    part[i] = join32(get(codes + 32 * i), get(codes + 32 * i + 16), bits, shift);
  for (int i = 0; i < 4 && bits < 4; i++)
    part[i] = join_words(part[2 * i], part[2 * i + 1], 2 * bits);
  for (int i = 0; i < 2 && bits < 2; i++)
    part[i] = join_words(part[2 * i], part[2 * i + 1], 4 * bits);
  for (int i = 0; i < 2 * bits && bits < 8; i++) put(words + 4 * i, part[i]);
  for (int i = 0; i < 16 && bits == 8; i++) put(words + 4 * i, split16(get(codes + 16 * i)));
}

/* ---- streams --------------------------------------------------------------------------------- */

static inline void stream(const uint8_t *p, int count, const int bits, pe_stored *to) {
  const int base = bits == 8 ? 8 : bits < 4 ? 2 : 4;
  const uint64_t mask = (UINT64_C(1) << bits) - 1;
  uint8_t codes[256];
  if (count < 256) memset(codes, 0, sizeof codes);
  for (int i = 0; i < count; i += 8, p += bits) {
    uint64_t v = 0, out = 0;
    memcpy(&v, p, (size_t)bits); /* eight codes are `bits` bytes */
    for (int j = 0; j < 8; j++) out |= (v >> bits * j & mask) << 8 * j;
    memcpy(codes + i, &out, sizeof out);
  }
  plane(codes, base, 0, to->base);
  if (bits > base) plane(codes, bits - base, base, to->upper);
}

void pe_stored_stream(const uint8_t *p, int bits, int count, pe_stored *to) {
  switch (bits) {
  case 2: stream(p, count, 2, to); break;
  case 3: stream(p, count, 3, to); break;
  case 5: stream(p, count, 5, to); break;
  case 6: stream(p, count, 6, to); break;
  default: stream(p, count, 8, to); break;
  }
}

/* ---- pieces of blocks ------------------------------------------------------------------------ */

/* The low nibbles of n bytes, then the high ones. */
static inline void nibbles(const uint8_t *qs, const int n, uint32_t *words) {
  if (n == 16) put(words, even(pairs(get(qs), 4, 0), pairs(get(qs), 4, 4)));
  for (int i = 0; i + 32 <= n; i += 32) {
    const v8h a = get(qs + i), b = get(qs + i + 16);
    put(words + i / 8, join32(a, b, 4, 0));
    put(words + (n + i) / 8, join32(a, b, 4, 4));
  }
}

/* One bit of 32 columns as a word of a plane, in which columns 8 i + 2 b + h are at 8 b + 2 i + h:
 * a matrix of 4 x 4 pairs, transposed. */
static uint32_t one_bit(const uint8_t *qh) {
  uint32_t x, t;
  memcpy(&x, qh, sizeof x);
  t = (x ^ x >> 6) & 0x00cc00cc, x ^= t ^ t << 6;
  t = (x ^ x >> 12) & 0x0000f0f0, x ^= t ^ t << 12;
  return x;
}

/* Eight rows of 32 columns, one bit of each in a byte. */
static inline void eight_ones(const uint8_t *qh, uint32_t *words) {
  const v8h a = get(qh), b = get(qh + 16);
  for (int i = 0; i < 8; i += 4) {
    const v16b low = join_words(join32(a, b, 1, i), join32(a, b, 1, i + 1), 2);
    const v16b high = join_words(join32(a, b, 1, i + 2), join32(a, b, 1, i + 3), 2);
    put(words + i, join_words(low, high, 4));
  }
}

/* Twice four rows of 32 columns, two bits of each in a byte. */
static inline void four_twos(const uint8_t *qs, uint32_t *words) {
  for (int i = 0; i < 2; i++, qs += 32, words += 8) {
    const v8h a = get(qs), b = get(qs + 16);
    put(words, join_words(join32(a, b, 2, 0), join32(a, b, 2, 2), 4));
    put(words + 4, join_words(join32(a, b, 2, 4), join32(a, b, 2, 6), 4));
  }
}

/* Eight scales and eight minima of six bits in 12 bytes; see quant_gguf.c. */
static void six_bit_scales(const uint8_t *p, uint8_t *scales, uint8_t *lows) {
  for (int g = 0; g < 4; g++) {
    scales[g] = p[g] & 63, lows[g] = p[g + 4] & 63;
    scales[g + 4] = (uint8_t)((p[g + 8] & 15) | p[g] >> 6 << 4);
    lows[g + 4] = (uint8_t)(p[g + 8] >> 4 | p[g + 4] >> 6 << 4);
  }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* What a block has, from its place in a span on. */
typedef struct place {
  uint32_t *base, *upper;
  uint8_t *scales, *biases, *supers;
} place;

static inline void q4_0(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2);
  nibbles(b + 2, 16, to.base);
}

static inline void q4_1(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2), memcpy(to.biases, b + 2, 2);
  nibbles(b + 4, 16, to.base);
}

static inline void q5_0(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2);
  nibbles(b + 6, 16, to.base);
  *to.upper = one_bit(b + 2);
}

static inline void q5_1(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2), memcpy(to.biases, b + 2, 2);
  nibbles(b + 8, 16, to.base);
  *to.upper = one_bit(b + 4);
}

static inline void q8_0(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2);
  for (int i = 0; i < 2; i++) put(to.base + 4 * i, split16(get(b + 2 + 16 * i) ^ 0x8080));
}

static inline void mxfp4(const uint8_t *b, place to) {
  to.scales[0] = b[0];
  nibbles(b + 1, 16, to.base);
}

static inline void q2_k(const uint8_t *b, place to) {
  memcpy(to.scales, b, 16), memcpy(to.supers, b + 80, 4);
  four_twos(b + 16, to.base);
}

static inline void q3_k(const uint8_t *b, place to) {
  const uint8_t *p = b + 96;
  for (int g = 0; g < 16; g++) {
    int low = g < 8 ? p[g] & 15 : p[g - 8] >> 4, high = p[8 + g % 4] >> g / 4 * 2 & 3;
    to.scales[g] = (uint8_t)((low | high << 4) - 32);
  }
  memcpy(to.supers, b + 108, 2);
  four_twos(b + 32, to.base);
  eight_ones(b, to.upper);
}

static inline void q4_k(const uint8_t *b, place to) {
  memcpy(to.supers, b, 4);
  six_bit_scales(b + 4, to.scales, to.biases);
  for (int i = 0; i < 4; i++) nibbles(b + 16 + 32 * i, 32, to.base + 8 * i);
}

static inline void q5_k(const uint8_t *b, place to) {
  memcpy(to.supers, b, 4);
  six_bit_scales(b + 4, to.scales, to.biases);
  for (int i = 0; i < 4; i++) nibbles(b + 48 + 32 * i, 32, to.base + 8 * i);
  eight_ones(b + 16, to.upper);
}

static inline void q6_k(const uint8_t *b, place to) {
  memcpy(to.scales, b + 192, 16), memcpy(to.supers, b + 208, 2);
  for (int i = 0; i < 2; i++) nibbles(b + 64 * i, 64, to.base + 16 * i);
  four_twos(b + 128, to.upper);
}

static inline void iq4_xs(const uint8_t *b, place to) {
  int high = b[2] | b[3] << 8;
  memcpy(to.supers, b, 2);
  for (int g = 0; g < 8; g++) {
    int low = b[4 + g / 2] >> g % 2 * 4 & 15;
    to.scales[g] = (uint8_t)((low | (high >> 2 * g & 3) << 4) - 32);
    nibbles(b + 8 + 16 * g, 16, to.base + 4 * g);
  }
}

/* ---- spans ----------------------------------------------------------------------------------- */

/* Blocks of 32 columns: `words` words of the base plane each, one of the upper one, and one scale
 * of `size` bytes. */
static inline void each(void (*const take)(const uint8_t *, place), pe_quant_kind kind,
                        const int words, const int size, const uint8_t *block, int count,
                        pe_stored *to) {
  const int bytes = pe_quant_block_bytes(kind);
  for (int i = 0; i < count; i++, block += bytes)
    take(block, (place){to->base + i * words, to->upper + i, to->scales + i * size,
                        to->biases + i * size, to->supers});
}

void pe_stored_blocks(pe_quant_kind kind, const uint8_t *block, int count, pe_stored *to) {
  const place whole = {to->base, to->upper, to->scales, to->biases, to->supers};
  switch (kind) {
  case PE_QUANT_IQ4_NL:
  case PE_QUANT_Q4_0: each(q4_0, kind, 4, 2, block, count, to); break;
  case PE_QUANT_Q4_1: each(q4_1, kind, 4, 2, block, count, to); break;
  case PE_QUANT_Q5_0: each(q5_0, kind, 4, 2, block, count, to); break;
  case PE_QUANT_Q5_1: each(q5_1, kind, 4, 2, block, count, to); break;
  case PE_QUANT_Q8_0: each(q8_0, kind, 8, 2, block, count, to); break;
  case PE_QUANT_GGUF_MXFP4: each(mxfp4, kind, 4, 1, block, count, to); break;
  case PE_QUANT_Q2_K: q2_k(block, whole); break; /* a span is one block of these */
  case PE_QUANT_Q3_K: q3_k(block, whole); break;
  case PE_QUANT_Q4_K: q4_k(block, whole); break;
  case PE_QUANT_Q5_K: q5_k(block, whole); break;
  case PE_QUANT_Q6_K: q6_k(block, whole); break;
  default: iq4_xs(block, whole); break;
  }
}
