/* seal.c - see seal.h. */
#include "runtime/seal.h"

#include <string.h>

#include "runtime/sha256.h"

enum { BLOCK = 64 }; /* of SHA-256 */

static void hash_padded(const uint8_t key[BLOCK], uint8_t pad, const void *bytes, size_t n,
                        uint8_t out[PE_SEAL_TAG]) {
  uint8_t padded[BLOCK];
  pe_sha256 s;
  for (int i = 0; i < BLOCK; i++) padded[i] = key[i] ^ pad;
  pe_sha256_begin(&s);
  pe_sha256_add(&s, padded, BLOCK);
  pe_sha256_add(&s, bytes, n);
  pe_sha256_end(&s, out);
}

void pe_seal_hmac(const void *key, size_t key_n, const void *bytes, size_t n,
                  uint8_t out[PE_SEAL_TAG]) {
  uint8_t block[BLOCK] = {0}, inner[PE_SEAL_TAG];
  if (key_n > BLOCK)
    pe_sha256_of(key, key_n, block);
  else if (key_n)
    memcpy(block, key, key_n);
  hash_padded(block, 0x36, bytes, n, inner);
  hash_padded(block, 0x5c, inner, sizeof inner, out);
}

static void derive(const uint8_t secret[PE_SEAL_SECRET], const char *use, uint8_t out[32]) {
  pe_seal_hmac(secret, PE_SEAL_SECRET, use, strlen(use), out);
}

static void xor_stream(const uint8_t secret[PE_SEAL_SECRET], const uint8_t nonce[PE_SEAL_NONCE],
                       const uint8_t *from, size_t n, uint8_t *to) {
  uint8_t input[32 + PE_SEAL_NONCE + 8], stream[32];
  derive(secret, "encrypt", input);
  memcpy(input + 32, nonce, PE_SEAL_NONCE);
  for (size_t at = 0; at < n; at += 32) {
    uint64_t number = at / 32;
    for (int i = 0; i < 8; i++) input[32 + PE_SEAL_NONCE + i] = (uint8_t)(number >> (8 * i));
    pe_sha256_of(input, sizeof input, stream);
    for (size_t i = 0; i < 32 && at + i < n; i++) to[at + i] = from[at + i] ^ stream[i];
  }
}

static void tag_of(const uint8_t secret[PE_SEAL_SECRET], const uint8_t *bytes, size_t n,
                   uint8_t out[PE_SEAL_TAG]) {
  uint8_t key[32];
  derive(secret, "authenticate", key);
  pe_seal_hmac(key, sizeof key, bytes, n, out);
}

void pe_seal(const uint8_t secret[PE_SEAL_SECRET], const uint8_t nonce[PE_SEAL_NONCE],
             const void *text, size_t n, uint8_t *out) {
  memcpy(out, nonce, PE_SEAL_NONCE);
  xor_stream(secret, nonce, text, n, out + PE_SEAL_NONCE);
  tag_of(secret, out, PE_SEAL_NONCE + n, out + PE_SEAL_NONCE + n);
}

bool pe_seal_open(const uint8_t secret[PE_SEAL_SECRET], const void *sealed, size_t n,
                  uint8_t *out) {
  const uint8_t *bytes = sealed;
  if (n < PE_SEAL_MORE) return false;
  uint8_t tag[PE_SEAL_TAG];
  tag_of(secret, bytes, n - PE_SEAL_TAG, tag);
  volatile uint8_t differ = 0; /* volatile: the compiler must not stop early either */
  for (int i = 0; i < PE_SEAL_TAG; i++) differ |= (uint8_t)(tag[i] ^ bytes[n - PE_SEAL_TAG + i]);
  if (differ) return false;
  xor_stream(secret, bytes, bytes + PE_SEAL_NONCE, n - PE_SEAL_MORE, out);
  return true;
}
