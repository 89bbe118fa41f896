/* seal.h - text that clients keep for the server, without being able to read or change it: the
 * reasoning of an earlier turn, in an API whose server keeps nothing.
 *
 * A sealed text is a nonce, the text XORed with a keystream (block i of it is the SHA-256 of a key,
 * the nonce and i, which are of one length always), and the HMAC-SHA256 of both under another key.
 * Both keys come from the server's secret. The nonce must be random: two texts under one nonce
 * would tell their difference.
 *
 * Nothing here has memory of its own. Any thread. */
#ifndef PE_SEAL_H
#define PE_SEAL_H

#include "runtime/base.h"

/* A nonce of 12 bytes makes the input of a keystream block fit one block of SHA-256; after 2^32
 * texts two have the same one with a chance of 2^-33. MORE: bytes that a sealed text is longer. */
enum { PE_SEAL_SECRET = 32, PE_SEAL_NONCE = 12, PE_SEAL_TAG = 32, PE_SEAL_MORE = 12 + 32 };

/* HMAC-SHA256 (RFC 2104). */
void pe_seal_hmac(const void *key, size_t key_n, const void *bytes, size_t n,
                  uint8_t out[PE_SEAL_TAG]);

/* Writes n + PE_SEAL_MORE bytes. */
void pe_seal(const uint8_t secret[PE_SEAL_SECRET], const uint8_t nonce[PE_SEAL_NONCE],
             const void *text, size_t n, uint8_t *out);

/* Writes n - PE_SEAL_MORE bytes; false, and writes nothing: this was not sealed with the secret.
 * The time it takes does not depend on where it differs. */
bool pe_seal_open(const uint8_t secret[PE_SEAL_SECRET], const void *sealed, size_t n, uint8_t *out);

#endif
