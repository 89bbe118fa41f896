/* sha256.h - SHA-256 for tests that compare digests. */
#ifndef SHA256_H
#define SHA256_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static inline uint32_t sha256_turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* The first 32 bits of the fractional part of the p-th root (2 or 3) of a prime, by search on
 * integers: mid^3 is compared without its lowest 40 bits. */
static inline uint32_t sha256_root(uint32_t prime, int cube) {
  unsigned __int128 lo = 0, hi = (unsigned __int128)1 << 40, mid; /* root * 2^32, below 2^40 */
  while (hi - lo > 1) {
    mid = (lo + hi) / 2;
    unsigned __int128 square = mid * mid; /* below 2^80 */
    unsigned __int128 half =
        (square >> 40) * mid + ((square & (((unsigned __int128)1 << 40) - 1)) * mid >> 40);
    bool below =
        cube ? half < (unsigned __int128)prime << 56 : square < (unsigned __int128)prime << 64;
    if (below)
      lo = mid;
    else
      hi = mid;
  }
  return (uint32_t)lo;
}

static inline void sha256_block(uint32_t h[8], const uint32_t k[64], const uint8_t *p) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (sha256_turn(a, 7) ^ sha256_turn(a, 18) ^ a >> 3) + w[i - 7] +
           (sha256_turn(b, 17) ^ sha256_turn(b, 19) ^ b >> 10);
  }
  memcpy(v, h, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t e = v[4], a = v[0];
    uint32_t t = v[7] + (sha256_turn(e, 6) ^ sha256_turn(e, 11) ^ sha256_turn(e, 25)) +
                 ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
    uint32_t u = (sha256_turn(a, 2) ^ sha256_turn(a, 13) ^ sha256_turn(a, 22)) +
                 ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t, v[0] = t + u;
  }
  for (int i = 0; i < 8; i++) h[i] += v[i];
}

static inline void sha256(const void *data, size_t len, char out[65]) {
  uint32_t h[8], k[64];
  int found = 0;
  for (uint32_t n = 2; found < 64; n++) { /* the constants are roots of the first primes */
    uint32_t d = 2;
    while (d * d <= n && n % d) d++;
    if (d * d <= n) continue;
    if (found < 8) h[found] = sha256_root(n, 0);
    k[found++] = sha256_root(n, 1);
  }
  const uint8_t *p = data;
  size_t left = len;
  for (; left >= 64; p += 64, left -= 64) sha256_block(h, k, p);
  uint8_t tail[128] = {0};
  size_t size = left < 56 ? 64 : 128;
  if (left) memcpy(tail, p, left);
  tail[left] = 0x80;
  for (int i = 0; i < 8; i++) tail[size - 1 - (size_t)i] = (uint8_t)((uint64_t)len * 8 >> (8 * i));
  for (size_t i = 0; i < size; i += 64) sha256_block(h, k, tail + i);
  for (int i = 0; i < 8; i++) snprintf(out + 8 * i, 9, "%08x", h[i]);
}

#endif
