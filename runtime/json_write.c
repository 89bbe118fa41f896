/* json_write.c - the writing half of json.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/json.h"
#include "runtime/utf8.h"

static pe_status put_unit(pe_buf *b, unsigned unit, pe_error *err) {
  return pe_buf_printf(b, err, "\\u%04x", unit);
}

static pe_status put_escaped(pe_buf *b, int32_t cp, pe_error *err) {
  static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
  const char *known = cp > 0 && cp < 0x80 ? memchr(from, cp, sizeof from - 1) : NULL;
  if (known) return pe_buf_put(b, (char[]){'\\', to[known - from]}, 2, err);
  if (cp < 0x10000) return put_unit(b, (unsigned)cp, err);
  pe_status rc = put_unit(b, 0xd800 + (unsigned)((cp - 0x10000) >> 10), err);
  return rc ? rc : put_unit(b, 0xdc00 + (unsigned)((cp - 0x10000) & 0x3ff), err);
}

pe_status pe_json_put_str(pe_buf *b, pe_str s, bool ascii, pe_error *err) {
  const char *at = s.at, *from = at, *end = at + s.len;
  pe_status rc = pe_buf_byte(b, '"', err);
  while (!rc && at < end) {
    unsigned char c = (unsigned char)*at;
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
      at++;
      continue;
    }
    int32_t cp;
    int n = pe_utf8_next(at, end, &cp);
    if (cp < 0)
      return pe_fail(err, PE_EFORMAT, "string is not UTF-8 at byte %zu (0x%02x)",
                     (size_t)(at - s.at) + 1, c);
    if (c >= 0x7f && !ascii) {
      at += n;
      continue;
    }
    if (!(rc = pe_buf_put(b, from, (size_t)(at - from), err))) rc = put_escaped(b, cp, err);
    from = at += n;
  }
  if (!rc) rc = pe_buf_put(b, from, (size_t)(end - from), err);
  return rc ? rc : pe_buf_byte(b, '"', err);
}

/* The shortest digits that read back as d (finite, positive): d = digits[0].digits[1]... e
 * exponent. Returns their number. */
static int shortest(double d, char digits[20], int *exponent) {
  char text[40];
  /* A double keeps any 15 digits, so for normal numbers fewer need not be tried: they come out of
   * the 15 as trailing zeros. */
  for (int precision = d < 2.3e-308 ? 0 : 14; precision <= 16; precision++) {
    snprintf(text, sizeof text, "%.*e", precision, d);
    if (strtod(text, NULL) == d) break;
  }
  int n = 0;
  const char *p = text;
  for (; *p != 'e'; p++)
    if (*p != '.') digits[n++] = *p;
  *exponent = atoi(p + 1);
  while (n > 1 && digits[n - 1] == '0') n--;
  return n;
}

pe_status pe_json_put_double(pe_buf *b, double d, pe_error *err) {
  if (isnan(d)) return pe_buf_put(b, "NaN", 3, err);
  if (isinf(d))
    return d < 0 ? pe_buf_put(b, "-Infinity", 9, err) : pe_buf_put(b, "Infinity", 8, err);
  pe_status rc = signbit(d) ? pe_buf_byte(b, '-', err) : PE_OK;
  if (rc || d == 0) return rc ? rc : pe_buf_put(b, "0.0", 3, err);
  char digits[20];
  int e, n = shortest(fabs(d), digits, &e);
  if (e < -4 || e >= 16)
    return n > 1 ? pe_buf_printf(b, err, "%c.%.*se%c%02d", digits[0], n - 1, digits + 1,
                                 e < 0 ? '-' : '+', abs(e))
                 : pe_buf_printf(b, err, "%ce%c%02d", digits[0], e < 0 ? '-' : '+', abs(e));
  if (e < 0) return pe_buf_printf(b, err, "0.%.*s%.*s", -e - 1, "0000", n, digits);
  if (n <= e + 1)
    return pe_buf_printf(b, err, "%.*s%.*s.0", n, digits, e + 1 - n, "0000000000000000");
  return pe_buf_printf(b, err, "%.*s.%.*s", e + 1, digits, n - e - 1, digits + e + 1);
}
