/* sha256.c - see sha256.h. */
#include "runtime/sha256.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__ARM_FEATURE_SHA2)
#include <arm_neon.h>
#endif

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline uint32_t big_endian(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void compress_plain(uint32_t h[8], const uint8_t *p) {
  uint32_t w[64];
  for (int i = 0; i < 16; i++) w[i] = big_endian(p + 4 * i);
  for (int i = 16; i < 64; i++) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] +
           (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
  }
  uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], z = h[7];
  for (int i = 0; i < 64; i++) {
    uint32_t t = z + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
    uint32_t u = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    z = g, g = f, f = e, e = d + t;
    d = c, c = b, b = a, a = t + u;
  }
  h[0] += a, h[1] += b, h[2] += c, h[3] += d;
  h[4] += e, h[5] += f, h[6] += g, h[7] += z;
}

/* ---- the processor's own instructions -------------------------------------------------------- */

#if defined(__x86_64__)
/* One step of four rounds: w holds the next four words, the schedule of later ones follows. The
 * instructions want the state as ABEF and CDGH. */
__attribute__((target("sha,sse4.1"))) static void compress_sha(uint32_t h[8], const uint8_t *p,
                                                               size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i abcd = _mm_loadu_si128((const __m128i *)h);
  __m128i efgh = _mm_loadu_si128((const __m128i *)(h + 4));
  abcd = _mm_shuffle_epi32(abcd, 0xb1), efgh = _mm_shuffle_epi32(efgh, 0x1b);
  __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);
  for (; blocks; blocks--, p += 64) {
    __m128i w[4], first = abef, second = cdgh;
    for (int i = 0; i < 4; i++)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), swap);
    for (int i = 0; i < 16; i++) {
      __m128i k = _mm_add_epi32(w[i % 4], _mm_loadu_si128((const __m128i *)(K + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
      if (i >= 12) continue;
      __m128i last = w[(i + 3) % 4];
      __m128i next = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]),
                                   _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
      w[i % 4] = _mm_sha256msg2_epu32(next, last);
    }
    abef = _mm_add_epi32(abef, first), cdgh = _mm_add_epi32(cdgh, second);
  }
  abcd = _mm_shuffle_epi32(abef, 0x1b), efgh = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128((__m128i *)h, _mm_blend_epi16(abcd, efgh, 0xf0));
  _mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(efgh, abcd, 8));
}

static bool has_sha(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}
#elif defined(__ARM_FEATURE_SHA2)
static void compress_sha(uint32_t h[8], const uint8_t *p, size_t blocks) {
  uint32x4_t abcd = vld1q_u32(h), efgh = vld1q_u32(h + 4);
  for (; blocks; blocks--, p += 64) {
    uint32x4_t w[4], first = abcd, second = efgh;
    for (int i = 0; i < 4; i++) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p + 16 * i)));
    for (int i = 0; i < 16; i++) {
      uint32x4_t k = vaddq_u32(w[i % 4], vld1q_u32(K + 4 * i)), before = abcd;
      abcd = vsha256hq_u32(abcd, efgh, k);
      efgh = vsha256h2q_u32(efgh, before, k);
      if (i < 12)
        w[i % 4] = vsha256su1q_u32(vsha256su0q_u32(w[i % 4], w[(i + 1) % 4]), w[(i + 2) % 4],
                                   w[(i + 3) % 4]);
    }
    abcd = vaddq_u32(abcd, first), efgh = vaddq_u32(efgh, second);
  }
  vst1q_u32(h, abcd), vst1q_u32(h + 4, efgh);
}

static bool has_sha(void) { return true; }
#else
static void compress_sha(uint32_t h[8], const uint8_t *p, size_t blocks) {
  (void)h, (void)p, (void)blocks;
}

static bool has_sha(void) { return false; }
#endif

static void compress(uint32_t h[8], const uint8_t *p, size_t blocks) {
  if (has_sha())
    compress_sha(h, p, blocks);
  else
    for (; blocks; blocks--, p += 64) compress_plain(h, p);
}

void pe_sha256_begin(pe_sha256 *s) {
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(s->h, first, sizeof first);
  s->length = 0;
}

void pe_sha256_add(pe_sha256 *s, const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  size_t held = s->length % 64;
  s->length += n;
  if (held) {
    size_t part = n < 64 - held ? n : 64 - held;
    memcpy(s->block + held, p, part);
    p += part, n -= part;
    if (held + part < 64) return;
    compress(s->h, s->block, 1);
  }
  compress(s->h, p, n / 64);
  p += n / 64 * 64, n %= 64;
  if (n) memcpy(s->block, p, n);
}

void pe_sha256_end(pe_sha256 *s, uint8_t out[PE_SHA256_BYTES]) {
  uint64_t bits = s->length * 8;
  uint8_t tail[72] = {0x80}; /* 0x80, zeros up to 8 bytes before the end of a block, the length */
  size_t zeros = (119 - s->length % 64) % 64;
  for (int i = 0; i < 8; i++) tail[1 + zeros + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
  pe_sha256_add(s, tail, zeros + 9);
  for (int i = 0; i < 32; i++) out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void pe_sha256_of(const void *bytes, size_t n, uint8_t out[PE_SHA256_BYTES]) {
  pe_sha256 s;
  pe_sha256_begin(&s);
  pe_sha256_add(&s, bytes, n);
  pe_sha256_end(&s, out);
}
