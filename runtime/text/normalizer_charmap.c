/* normalizer_charmap.c - SentencePiece's precompiled character maps, as the `tokenizers` library
 * applies them.
 *
 *     u32 n | double-array trie, n bytes of 32-bit units | strings, each NUL-terminated
 *
 * The trie's values are offsets into the strings. For a grapheme cluster below six bytes the
 * library looks up the *shortest* key that matches and replaces the whole cluster by its string.
 * Longer clusters, and those without a match, are mapped character by character.
 *
 * Origins. The library adds the characters that a key removes to the character written before. At
 * the start there is none, so what is removed there is not counted: the first character of the
 * result always comes from the start of the text, and Metaspace's "first" sees it as first. */
#include "runtime/text/normalizer_parts.h"
#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

#include <string.h>

struct pe_charmap {
  uint32_t *unit;
  size_t units;
  const char *strings; /* NUL-terminated as a whole */
  size_t len;
  pe_buf blob;
};

static int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static pe_status decode(pe_str text, pe_buf *out, pe_error *err) {
  while (text.len && text.at[text.len - 1] == '=') text.len--;
  pe_status rc = pe_buf_reserve(out, text.len / 4 * 3 + 4, err);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.len && !rc; i++) {
    int d = base64_digit(text.at[i]);
    if (d < 0) return pe_fail(err, PE_EFORMAT, "precompiled_charsmap: byte %zu is not base64", i);
    bits = bits << 6 | (uint32_t)d;
    if (i % 4) rc = pe_buf_byte(out, (char)(bits >> (6 - i % 4 * 2)), err);
  }
  return rc;
}

static uint32_t little(const char *p) {
  const uint8_t *b = (const uint8_t *)p;
  return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static pe_status open_map(pe_charmap *m, pe_error *err) {
  if (m->blob.len < 4)
    return pe_fail(err, PE_EFORMAT, "precompiled_charsmap has %zu bytes, expected at least 4",
                   m->blob.len);
  size_t trie = little(m->blob.data);
  if (trie > m->blob.len - 4 || trie % 4)
    return pe_fail(err, PE_EFORMAT,
                   "precompiled_charsmap: a trie of %zu bytes does not fit in %zu bytes", trie,
                   m->blob.len - 4);
  m->units = trie / 4;
  if (!(m->unit = pe_alloc(trie + 4))) return pe_nomem(err, "precompiled_charsmap");
  for (size_t i = 0; i < m->units; i++) m->unit[i] = little(m->blob.data + 4 + i * 4);
  m->strings = m->blob.data + 4 + trie;
  m->len = m->blob.len - 4 - trie;
  if (pe_utf8_valid(m->strings, m->len) != m->len)
    return pe_fail(err, PE_EFORMAT, "precompiled_charsmap: byte %zu of its strings is not UTF-8",
                   pe_utf8_valid(m->strings, m->len));
  return pe_buf_byte(&m->blob, 0, err); /* terminates the last string */
}

pe_status pe_charmap_read(pe_str base64, pe_charmap **out, pe_error *err) {
  *out = NULL;
  pe_charmap *m = pe_calloc(1, sizeof *m);
  if (!m) return pe_nomem(err, "precompiled_charsmap");
  pe_status rc = decode(base64, &m->blob, err);
  if (!rc) rc = open_map(m, err);
  if (!rc) m->strings = m->blob.data + 4 + m->units * 4; /* the terminator may have moved it */
  if (rc)
    pe_charmap_free(m);
  else
    *out = m;
  return rc;
}

void pe_charmap_free(pe_charmap *m) {
  if (!m) return;
  pe_free(m->unit);
  pe_buf_free(&m->blob);
  pe_free(m);
}

/* A unit of the double array: bits 0-7 label (bit 31: a value), bit 8 "a key ends here", bits 9-30
 * the offset of its children. */
static size_t offset_of(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 512) >> 6); }

/* The string for the shortest key that the text begins with, or NULL. */
static const char *find(const pe_charmap *m, const char *text, size_t n) {
  if (!m->units) return NULL;
  size_t at = offset_of(m->unit[0]);
  for (size_t i = 0; i < n; i++) {
    uint8_t c = (uint8_t)text[i];
    if (!c) return NULL;
    at ^= c;
    if (at >= m->units) return NULL;
    uint32_t unit = m->unit[at];
    if ((unit & (0x80000000u | 0xff)) != c) return NULL;
    at ^= offset_of(unit);
    if (!(unit & 256)) continue;
    if (at >= m->units) return NULL;
    uint32_t value = m->unit[at] & 0x7fffffff;
    if (value > m->len || (value < m->len && ((uint8_t)m->strings[value] & 0xc0) == 0x80))
      return NULL;
    return m->strings + value;
  }
  return NULL;
}

static pe_status put(pe_sink *s, const char *text, size_t len, size_t from, bool *wrote) {
  if (!len) return PE_OK;
  size_t origin = *wrote ? from : 0;
  *wrote = true;
  return pe_sink_put(s, text, len, origin);
}

pe_status pe_charmap_apply(const pe_charmap *m, pe_str text, pe_sink *s) {
  enum { WHOLE_BELOW = 6 };
  const char *end = text.at + text.len, *next;
  pe_status rc = PE_OK;
  bool wrote = false;
  for (const char *at = text.at; at < end && !rc; at = next) {
    next = pe_unicode_grapheme(at, end);
    size_t n = (size_t)(next - at), from = (size_t)(at - text.at);
    const char *to = n < WHOLE_BELOW ? find(m, at, n) : NULL;
    if (to) {
      rc = put(s, to, strlen(to), from, &wrote);
      continue;
    }
    for (const char *c = at; c < next && !rc;) {
      int32_t cp;
      size_t len = (size_t)pe_utf8_next(c, end, &cp);
      size_t place = (size_t)(c - text.at);
      to = find(m, c, len);
      rc = to ? put(s, to, strlen(to), place, &wrote) : put(s, c, len, place, &wrote);
      c += len;
    }
  }
  return rc;
}
