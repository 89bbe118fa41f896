/* base64.c - see base64.h. */
#include "runtime/base64.h"

enum { SPACE = 64, PADDING, BAD };

static void fill_digits(uint8_t digit[256]) {
  static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int i = 0; i < 256; i++) digit[i] = BAD;
  for (uint8_t i = 0; i < 64; i++) digit[(uint8_t)alphabet[i]] = i;
  digit['-'] = 62, digit['_'] = 63, digit['='] = PADDING;
  digit[' '] = digit['\t'] = digit['\r'] = digit['\n'] = SPACE;
}

pe_status pe_base64_decode(pe_str text, uint64_t most, pe_buffer **out, pe_error *err) {
  uint8_t digit[256];
  fill_digits(digit);
  uint64_t digits = 0, padding = 0;
  for (size_t i = 0; i < text.len; i++) {
    uint8_t d = digit[(uint8_t)text.at[i]];
    if (d == BAD || (d < 64 && padding))
      return pe_fail(err, PE_EFORMAT, "byte %zu is not base64", i + 1);
    digits += d < 64, padding += d == PADDING;
  }
  uint64_t bytes = digits / 4 * 3 + (digits % 4 ? digits % 4 - 1 : 0);
  if (digits % 4 == 1 || padding > 2 || (padding && (digits + padding) % 4))
    return pe_fail(err, PE_EFORMAT, "the base64 text has %llu digits and is cut off",
                   (unsigned long long)digits);
  if (bytes > most)
    return pe_fail(err, PE_ELIMIT, "%llu bytes are more than the limit of %llu",
                   (unsigned long long)bytes, (unsigned long long)most);
  pe_status rc = pe_buffer_alloc(bytes, out, err);
  if (rc) return rc;
  uint8_t *to = (*out)->data;
  uint32_t held = 0;
  int bits = 0;
  for (size_t i = 0; i < text.len; i++) {
    uint8_t d = digit[(uint8_t)text.at[i]];
    if (d >= 64) continue;
    held = held << 6 | d, bits += 6;
    if (bits >= 8) bits -= 8, *to++ = (uint8_t)(held >> bits);
  }
  return PE_OK;
}
