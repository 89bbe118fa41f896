/* base64.c - see base64.h. */
#include "runtime/base64.h"

enum { SPACE = 64, PADDING, BAD };

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void fill_digits(uint8_t digit[256]) {
  for (int i = 0; i < 256; i++) digit[i] = BAD;
  for (uint8_t i = 0; i < 64; i++) digit[(uint8_t)alphabet[i]] = i;
  digit['-'] = 62, digit['_'] = 63, digit['='] = PADDING;
  digit[' '] = digit['\t'] = digit['\r'] = digit['\n'] = SPACE;
}

static pe_status too_many(uint64_t bytes, uint64_t most, pe_error *err) {
  return pe_fail(err, PE_ELIMIT, "%llu bytes are more than the limit of %llu",
                 (unsigned long long)bytes, (unsigned long long)most);
}

/* Whole groups of digits, the last one with its padding, which is what clients send: four at a
 * time. Returns false, with nothing said about why, for anything else. */
static bool decode_plain(const uint8_t *from, uint64_t n, int padding, const uint8_t digit[256],
                         uint8_t *to) {
  uint32_t seen = 0;
  for (; n > 4; n -= 4, from += 4, to += 3) {
    uint32_t a = digit[from[0]], b = digit[from[1]], c = digit[from[2]], d = digit[from[3]];
    uint32_t v = a << 18 | b << 12 | c << 6 | d;
    seen |= a | b | c | d;
    to[0] = (uint8_t)(v >> 16), to[1] = (uint8_t)(v >> 8), to[2] = (uint8_t)v;
  }
  uint32_t v = 0;
  for (int i = 0; i < 4; i++) {
    uint32_t d = i < 4 - padding ? digit[from[i]] : 0;
    seen |= d, v = v << 6 | d;
  }
  for (int i = 0; i < 3 - padding; i++) to[i] = (uint8_t)(v >> (16 - 8 * i));
  return seen < 64;
}

/* Anything: white space, missing padding, and errors with their position. */
static pe_status decode_any(pe_str text, const uint8_t digit[256], uint64_t most, pe_buffer **out,
                            pe_error *err) {
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
  if (bytes > most) return too_many(bytes, most, err);
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

pe_status pe_base64_decode(pe_str text, uint64_t most, pe_buffer **out, pe_error *err) {
  uint8_t digit[256];
  fill_digits(digit);
  if (text.len % 4 || !text.len) return decode_any(text, digit, most, out, err);
  int padding = text.at[text.len - 1] != '=' ? 0 : text.at[text.len - 2] != '=' ? 1 : 2;
  uint64_t bytes = text.len / 4 * 3 - (uint64_t)padding;
  if (bytes > most) return decode_any(text, digit, most, out, err);
  pe_buffer *b;
  pe_status rc = pe_buffer_alloc(bytes, &b, err);
  if (rc) return rc;
  if (decode_plain((const uint8_t *)text.at, text.len, padding, digit, b->data)) {
    *out = b;
    return PE_OK;
  }
  pe_buffer_release(b);
  return decode_any(text, digit, most, out, err);
}

void pe_base64_encode(const void *bytes, size_t n, char *out) {
  const uint8_t *from = bytes;
  for (size_t at = 0; at < n; at += 3, out += 4) {
    size_t left = n - at;
    uint32_t v = (uint32_t)from[at] << 16;
    if (left > 1) v |= (uint32_t)from[at + 1] << 8;
    if (left > 2) v |= from[at + 2];
    for (int i = 0; i < 4; i++) out[i] = alphabet[v >> (18 - 6 * i) & 63];
    if (left < 3) out[3] = '=';
    if (left < 2) out[2] = '=';
  }
}
