/* Sealed texts: HMAC against RFC 4231, a text sealed by another program, and that nothing else
 * opens; base64 back and forth. */
#include <stdlib.h>

#include "check.h"
#include "runtime/base64.h"
#include "runtime/seal.h"

static void hex_of(const uint8_t *bytes, size_t n, char *out) {
  for (size_t i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static void hmac_vectors(void) { /* cases 1, 2 and 6 of RFC 4231 */
  uint8_t ones[20], many[131], tag[PE_SEAL_TAG];
  char got[2 * PE_SEAL_TAG + 1];
  memset(ones, 0x0b, sizeof ones), memset(many, 0xaa, sizeof many);
  pe_seal_hmac(ones, sizeof ones, "Hi There", 8, tag);
  hex_of(tag, sizeof tag, got);
  CHECK_STR(got, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  pe_seal_hmac("Jefe", 4, "what do ya want for nothing?", 28, tag);
  hex_of(tag, sizeof tag, got);
  CHECK_STR(got, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  pe_seal_hmac(many, sizeof many, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
               tag);
  hex_of(tag, sizeof tag, got);
  CHECK_STR(got, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

enum { LONGEST = 200 };

static void number_from(uint8_t *to, int n, int first) {
  for (int i = 0; i < n; i++) to[i] = (uint8_t)(first + i);
}

static void known_text(void) { /* sealed by Python's hmac and hashlib */
  static const char text[] = "The model thought about this for more than a block of the keystream.";
  static const char want[] =
      "6465666768696a6b6c6d6e6f18f044365d74b40d8c295bdbe4bd696710a9ed473846cf86faaf3b90"
      "28da7609d3bda3f66e680c02b6e7f00147356e2dec0dd8c7b48cb1737d8091dfff25aaadb8687646"
      "875ea4735386155e5629856f24e54fde27aac49da5ec6ccb7951ba12ca1d8011";
  uint8_t secret[PE_SEAL_SECRET], nonce[PE_SEAL_NONCE], sealed[LONGEST];
  char got[2 * LONGEST + 1];
  number_from(secret, PE_SEAL_SECRET, 0), number_from(nonce, PE_SEAL_NONCE, 100);
  pe_seal(secret, nonce, text, strlen(text), sealed);
  hex_of(sealed, strlen(text) + PE_SEAL_MORE, got);
  CHECK_STR(got, want);
}

static void
every_length(void) { /* opens as it was; with any bit changed, or shorter, it does not */
  uint8_t secret[PE_SEAL_SECRET], other[PE_SEAL_SECRET], nonce[PE_SEAL_NONCE];
  uint8_t text[LONGEST], sealed[LONGEST + PE_SEAL_MORE], opened[LONGEST];
  number_from(secret, PE_SEAL_SECRET, 7), number_from(other, PE_SEAL_SECRET, 8);
  number_from(nonce, PE_SEAL_NONCE, 50), number_from(text, LONGEST, 1);
  for (size_t n = 0; n < LONGEST; n += 1 + n / 40) {
    size_t size = n + PE_SEAL_MORE;
    pe_seal(secret, nonce, text, n, sealed);
    CHECK(pe_seal_open(secret, sealed, size, opened) && memcmp(text, opened, n) == 0);
    CHECK(!pe_seal_open(other, sealed, size, opened));
    CHECK(!pe_seal_open(secret, sealed, size - 1, opened));
    for (size_t at = 0; at < size; at++) {
      sealed[at] ^= (uint8_t)(1 << at % 8);
      CHECK(!pe_seal_open(secret, sealed, size, opened));
      sealed[at] ^= (uint8_t)(1 << at % 8);
    }
  }
  for (size_t n = 0; n < PE_SEAL_MORE; n++) CHECK(!pe_seal_open(secret, sealed, n, opened));
}

static void base64_back(void) { /* RFC 4648's examples, and every length back */
  static const char *const known[] = {"",         "Zg==",     "Zm8=",    "Zm9v",
                                      "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  char digits[300];
  for (size_t n = 0; n <= 6; n++) {
    pe_base64_encode("foobar", n, digits);
    CHECK(pe_base64_size(n) == strlen(known[n]) && !memcmp(digits, known[n], strlen(known[n])));
  }
  uint8_t bytes[LONGEST];
  number_from(bytes, LONGEST, 90);
  for (size_t n = 0; n < LONGEST; n++) {
    pe_buffer *b;
    pe_error err;
    pe_base64_encode(bytes, n, digits);
    CHECK(!pe_base64_decode(pe_str_of(digits, pe_base64_size(n)), LONGEST, &b, &err));
    CHECK(b->size == n && memcmp(b->data, bytes, n) == 0);
    pe_buffer_release(b);
  }
}

static const check_test tests[] = {
    {"HMAC-SHA256", hmac_vectors},
    {"a text sealed elsewhere", known_text},
    {"every length opens, nothing else does", every_length},
    {"base64 and back", base64_back},
};

CHECK_MAIN("test_seal", tests)
