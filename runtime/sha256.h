/* sha256.h - SHA-256 (FIPS 180-4), for keys that a client must not be able to collide: the content
 * of pictures. Tables in memory use hash.h, which is ten times faster.
 *
 * A pe_sha256 is a value without memory of its own. Any thread. */
#ifndef PE_SHA256_H
#define PE_SHA256_H

#include "runtime/base.h"

enum { PE_SHA256_BYTES = 32 };

typedef struct pe_sha256 {
  uint32_t h[8];
  uint64_t length; /* bytes so far */
  uint8_t block[64];
} pe_sha256;

void pe_sha256_begin(pe_sha256 *s);
void pe_sha256_add(pe_sha256 *s, const void *bytes, size_t n);
void pe_sha256_end(pe_sha256 *s, uint8_t out[PE_SHA256_BYTES]);

/* All three at once. */
void pe_sha256_of(const void *bytes, size_t n, uint8_t out[PE_SHA256_BYTES]);

#endif
