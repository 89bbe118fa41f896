/* utf8.c - see utf8.h. */
#include "runtime/utf8.h"

#include <string.h>

/* The range of the second byte excludes overlong forms, surrogates and values above U+10FFFF. */
static uint8_t lowest_second(int32_t lead) {
  return lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
}
static uint8_t highest_second(int32_t lead) {
  return lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
}

int pe_utf8_next(const char *at, const char *end, int32_t *cp) {
  const uint8_t *s = (const uint8_t *)at;
  int32_t c = s[0];
  if (c < 0x80) {
    *cp = c;
    return 1;
  }
  if (c < 0xc2 || c > 0xf4) {
    *cp = PE_UTF8_BROKEN;
    return 1;
  }
  int need = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
  uint8_t lo = lowest_second(c), hi = highest_second(c);
  c &= 0x3f >> need;
  for (int i = 1; i <= need; i++) {
    if (at + i == end) {
      *cp = PE_UTF8_CUT;
      return i;
    }
    if (s[i] < lo || s[i] > hi) {
      *cp = PE_UTF8_BROKEN;
      return i;
    }
    c = c << 6 | (s[i] & 0x3f);
    lo = 0x80, hi = 0xbf;
  }
  *cp = c;
  return need + 1;
}

int pe_utf8_put(char out[4], int32_t cp) {
  if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) cp = 0xfffd;
  if (cp < 0x80) {
    out[0] = (char)cp;
    return 1;
  }
  int n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
  for (int i = n - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3f));
  out[0] = (char)((0xf00 >> n & 0xff) | cp);
  return n;
}

size_t pe_utf8_valid(const char *text, size_t len) {
  if (!len) return 0; /* text may be NULL */
  const char *at = text, *end = text + len;
  while (at < end) {
    uint64_t eight;
    while (end - at >= 8 && (memcpy(&eight, at, 8), !(eight & 0x8080808080808080u))) at += 8;
    if (at == end) break;
    int32_t cp;
    int n = pe_utf8_next(at, end, &cp);
    if (cp < 0) return (size_t)(at - text);
    at += n;
  }
  return len;
}
