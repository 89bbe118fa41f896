/* hash.h - one fast hash for tables: XXH3 of xxhash, compiled into its users.
 *
 * For tables in memory, never where a client could profit from a collision. pe_hash_128 gives the
 * same value on every machine and in every release: a checksum for files. */
#ifndef PE_HASH_H
#define PE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include <xxhash.h>

static inline uint64_t pe_hash(const void *bytes, size_t n) { return XXH3_64bits(bytes, n); }

static inline void pe_hash_128(const void *bytes, size_t n, uint64_t seed, uint8_t out[16]) {
  XXH128_canonical_t c;
  XXH128_canonicalFromHash(&c, XXH3_128bits_withSeed(bytes, n, (XXH64_hash_t)seed));
  memcpy(out, c.digest, 16);
}

/* Scatters an integer key, so that its low bits can index a table. */
static inline uint64_t pe_hash_u64(uint64_t key) {
  key *= 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio: Fibonacci hashing */
  return key ^ key >> 32;
}

#endif
