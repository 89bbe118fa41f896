/* pack_stored.c - see pack_stored.h. Eight codes at a time in 64-bit integers: packing a model must
 * run at the speed of memory, in code that every machine can run. */
#include "kernels/pack_stored.h"

#include <string.h>

static uint64_t get8(const uint8_t *p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return v;
}
static void put8(uint8_t *p, uint64_t v) { memcpy(p, &v, sizeof v); }

#define BYTES(x) ((x)*UINT64_C(0x0101010101010101))

/* ---- streams --------------------------------------------------------------------------------- */

static inline void stream(const uint8_t *p, int count, uint8_t *codes, const int bits) {
  const uint64_t mask = (UINT64_C(1) << bits) - 1;
  for (int i = 0; i < count; i += 8, p += bits) {
    uint64_t v = 0, out = 0;
    memcpy(&v, p, (size_t)bits); /* eight codes are `bits` bytes */
    for (int j = 0; j < 8; j++) out |= (v >> bits * j & mask) << 8 * j;
    put8(codes + i, out);
  }
}

void pe_stored_stream(const uint8_t *p, int bits, int count, uint8_t *codes) {
  switch (bits) {
  case 2: stream(p, count, codes, 2); break;
  case 3: stream(p, count, codes, 3); break;
  case 4: stream(p, count, codes, 4); break;
  case 5: stream(p, count, codes, 5); break;
  case 6: stream(p, count, codes, 6); break;
  default: memcpy(codes, p, (size_t)count); break;
  }
}

/* ---- pieces of blocks ------------------------------------------------------------------------ */

/* The low nibbles of n bytes, then the high ones. */
static inline void nibbles(const uint8_t *qs, const int n, uint8_t *codes) {
  for (int i = 0; i < n; i += 8) {
    uint64_t v = get8(qs + i);
    put8(codes + i, v & BYTES(15));
    put8(codes + n + i, v >> 4 & BYTES(15));
  }
}

/* Bit j of `bits` as byte j, times 16. */
static uint64_t fifth_bits(uint8_t bits) {
  uint64_t v = BYTES((uint64_t)bits) & UINT64_C(0x8040201008040201);
  return (v + BYTES(0x7f)) >> 3 & BYTES(16);
}

static void add_fifth(const uint8_t *qh, uint8_t *codes) {
  for (int i = 0; i < 4; i++) put8(codes + 8 * i, get8(codes + 8 * i) | fifth_bits(qh[i]));
}

/* Two halves of 128 values, each four planes of two bits in 32 bytes; `add` keeps what is there
 * and puts the bits above four others. */
static inline void two_bits(const uint8_t *qs, uint8_t *codes, const bool add) {
  for (int i = 0; i < 256; i += 8) {
    uint64_t v = get8(qs + i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & BYTES(3);
    put8(codes + i, add ? get8(codes + i) | v << 4 : v);
  }
}

/* Eight planes of one bit in 32 bytes, put above `above` other bits. */
static inline void one_bit(const uint8_t *qh, uint8_t *codes, const int above) {
  for (int i = 0; i < 256; i += 8)
    put8(codes + i, get8(codes + i) | (get8(qh + i % 32) >> i / 32 & BYTES(1)) << above);
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
  uint8_t *codes, *scales, *biases, *supers;
} place;

static inline void q4_0(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2);
  nibbles(b + 2, 16, to.codes);
}

static inline void q4_1(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2), memcpy(to.biases, b + 2, 2);
  nibbles(b + 4, 16, to.codes);
}

static inline void q5_0(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2);
  nibbles(b + 6, 16, to.codes);
  add_fifth(b + 2, to.codes);
}

static inline void q5_1(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2), memcpy(to.biases, b + 2, 2);
  nibbles(b + 8, 16, to.codes);
  add_fifth(b + 4, to.codes);
}

static inline void q8_0(const uint8_t *b, place to) {
  memcpy(to.scales, b, 2);
  for (int i = 0; i < 32; i += 8) put8(to.codes + i, get8(b + 2 + i) ^ BYTES(128));
}

static inline void mxfp4(const uint8_t *b, place to) {
  to.scales[0] = b[0];
  nibbles(b + 1, 16, to.codes);
}

static inline void q2_k(const uint8_t *b, place to) {
  memcpy(to.scales, b, 16), memcpy(to.supers, b + 80, 4);
  two_bits(b + 16, to.codes, false);
}

static inline void q3_k(const uint8_t *b, place to) {
  const uint8_t *p = b + 96;
  for (int g = 0; g < 16; g++) {
    int low = g < 8 ? p[g] & 15 : p[g - 8] >> 4, high = p[8 + g % 4] >> g / 4 * 2 & 3;
    to.scales[g] = (uint8_t)((low | high << 4) - 32);
  }
  memcpy(to.supers, b + 108, 2);
  two_bits(b + 32, to.codes, false);
  one_bit(b, to.codes, 2);
}

static inline void q4_k(const uint8_t *b, place to) {
  memcpy(to.supers, b, 4);
  six_bit_scales(b + 4, to.scales, to.biases);
  for (int i = 0; i < 4; i++) nibbles(b + 16 + 32 * i, 32, to.codes + 64 * i);
}

static inline void q5_k(const uint8_t *b, place to) {
  memcpy(to.supers, b, 4);
  six_bit_scales(b + 4, to.scales, to.biases);
  for (int i = 0; i < 4; i++) nibbles(b + 48 + 32 * i, 32, to.codes + 64 * i);
  one_bit(b + 16, to.codes, 4);
}

static inline void q6_k(const uint8_t *b, place to) {
  memcpy(to.scales, b + 192, 16), memcpy(to.supers, b + 208, 2);
  for (int i = 0; i < 2; i++) nibbles(b + 64 * i, 64, to.codes + 128 * i);
  two_bits(b + 128, to.codes, true);
}

static inline void iq4_xs(const uint8_t *b, place to) {
  int high = b[2] | b[3] << 8;
  memcpy(to.supers, b, 2);
  for (int g = 0; g < 8; g++) {
    int low = b[4 + g / 2] >> g % 2 * 4 & 15;
    to.scales[g] = (uint8_t)((low | (high >> 2 * g & 3) << 4) - 32);
    nibbles(b + 8 + 16 * g, 16, to.codes + 32 * g);
  }
}

/* ---- spans ----------------------------------------------------------------------------------- */

static inline void span(void (*const take)(const uint8_t *, place), const pe_quant_kind kind,
                        const uint8_t *block, int count, pe_stored *to) {
  const int values = pe_quant_block_values(kind), bytes = pe_quant_block_bytes(kind);
  /* blocks of 32 have one scale, of one byte or two; a span has one larger block */
  const int step = values > 32 ? 0 : kind == PE_QUANT_GGUF_MXFP4 ? 1 : 2;
  for (int i = 0; i < count; i++, block += bytes)
    take(block,
         (place){to->codes + i * values, to->scales + i * step, to->biases + i * step, to->supers});
}

void pe_stored_blocks(pe_quant_kind kind, const uint8_t *block, int count, pe_stored *to) {
  switch (kind) {
  case PE_QUANT_IQ4_NL:
  case PE_QUANT_Q4_0: span(q4_0, kind, block, count, to); break;
  case PE_QUANT_Q4_1: span(q4_1, kind, block, count, to); break;
  case PE_QUANT_Q5_0: span(q5_0, kind, block, count, to); break;
  case PE_QUANT_Q5_1: span(q5_1, kind, block, count, to); break;
  case PE_QUANT_Q8_0: span(q8_0, kind, block, count, to); break;
  case PE_QUANT_GGUF_MXFP4: span(mxfp4, kind, block, count, to); break;
  case PE_QUANT_Q2_K: span(q2_k, kind, block, count, to); break;
  case PE_QUANT_Q3_K: span(q3_k, kind, block, count, to); break;
  case PE_QUANT_Q4_K: span(q4_k, kind, block, count, to); break;
  case PE_QUANT_Q5_K: span(q5_k, kind, block, count, to); break;
  case PE_QUANT_Q6_K: span(q6_k, kind, block, count, to); break;
  default: span(iq4_xs, kind, block, count, to); break;
  }
}
