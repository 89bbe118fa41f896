/* rex_chars.c - see rex.h: characters as the bytes of their UTF-8.
 *
 * A range of code points is cut where the number of bytes changes, around the surrogates, and then
 * wherever the first bytes do not run through all of their continuation bytes:
 *
 *   U+0080..U+07FF   [C2-DF][80-BF]          U+0250..U+02AF   C9 [90-BF] | CA [80-AF] */
#include <string.h>

#include "runtime/grammar/rex_parts.h"

static pe_term bytes_between(pe_rex *r, uint8_t from, uint8_t to) {
  pe_byte_set s = {{0}};
  for (int b = from; b <= to; b++) s.bits[b / 64] |= UINT64_C(1) << b % 64;
  return pe_rex_set(r, &s);
}

static uint32_t put_utf8(uint32_t code, uint8_t out[4]) {
  if (code < 0x80) return out[0] = (uint8_t)code, 1;
  const uint32_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (uint32_t i = n - 1; i > 0; i--, code >>= 6) out[i] = (uint8_t)(0x80 | (code & 0x3f));
  out[0] = (uint8_t)(0xf00 >> n | code);
  return n;
}

/* All byte strings of n bytes between two of them in which the bytes after the first are
 * continuation bytes. */
static pe_term between(pe_rex *r, const uint8_t *from, const uint8_t *to, uint32_t n) {
  if (n == 1) return bytes_between(r, *from, *to);
  if (*from == *to)
    return pe_rex_cat(r, bytes_between(r, *from, *from), between(r, from + 1, to + 1, n - 1));
  static const uint8_t LOW[3] = {0x80, 0x80, 0x80}, HIGH[3] = {0xbf, 0xbf, 0xbf};
  pe_term part[3] = {PE_TERM_NONE, PE_TERM_NONE, PE_TERM_NONE};
  uint8_t first = *from, last = *to;
  if (memcmp(from + 1, LOW, n - 1)) {
    part[0] = pe_rex_cat(r, bytes_between(r, first, first), between(r, from + 1, HIGH, n - 1));
    first++;
  }
  if (memcmp(to + 1, HIGH, n - 1)) {
    part[2] = pe_rex_cat(r, bytes_between(r, last, last), between(r, LOW, to + 1, n - 1));
    last--;
  }
  if (first <= last)
    part[1] = pe_rex_cat(r, bytes_between(r, first, last), between(r, LOW, HIGH, n - 1));
  return pe_rex_or(r, part, 3);
}

pe_term pe_rex_chars(pe_rex *r, const pe_code_range *range, size_t n) {
  static const pe_code_range lengths[] = {
      {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
  enum { LENGTHS = sizeof lengths / sizeof *lengths, CHUNK = 64 };
  pe_term part[CHUNK + LENGTHS], sum = PE_TERM_NONE;
  size_t parts = 0;
  if (pe_rex_spend(r, n, NULL) != PE_OK) return PE_TERM_NONE;
  for (size_t i = 0; i <= n; i++) {
    if (parts > CHUNK - 1 || i == n) { /* a class of Unicode has hundreds of ranges */
      part[parts++] = sum;
      sum = pe_rex_or(r, part, parts);
      parts = 0;
    }
    for (int k = 0; i < n && k < LENGTHS; k++) {
      const uint32_t from = range[i].from > lengths[k].from ? range[i].from : lengths[k].from;
      const uint32_t to = range[i].to < lengths[k].to ? range[i].to : lengths[k].to;
      uint8_t a[4], b[4];
      if (from > to) continue;
      const uint32_t bytes = put_utf8(from, a);
      put_utf8(to, b);
      part[parts++] = between(r, a, b, bytes);
    }
  }
  return sum;
}
