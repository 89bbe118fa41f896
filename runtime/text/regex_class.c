/* regex_class.c - see regex_class.h. */
#include "runtime/text/regex_class.h"

pe_status pe_regex_refuse(pe_regex_parser *p, const char *from, const char *why) {
  size_t len = (size_t)(p->end - from) < 24 ? (size_t)(p->end - from) : 24;
  while (len && from + len < p->end && ((uint8_t)from[len] & 0xc0) == 0x80) len--;
  for (size_t i = 0; i < len; i++)
    if (from[i] == '\n' || from[i] == '\r') len = i; /* errors are one line */
  return pe_fail(p->err, PE_EUNSUPPORTED, "pattern, offset %zu: %s: '%.*s'",
                 (size_t)(from - p->start), why, (int)len, from);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c |= 32;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

pe_status pe_regex_add_bare_word(pe_regex_parser *p, pe_charset *s) {
  static const int32_t extra[][2] = {{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}};
  pe_status rc = PE_OK;
  for (int i = 0; !rc && i < 3; i++) rc = pe_charset_add(s, extra[i][0], extra[i][1], p->err);
  return rc;
}

/* ---- escapes ------------------------------------------------------------------------------- */

/* Reads the digits of \x{..}, \xHH, \uHHHH and octal. */
static pe_status number(pe_regex_parser *p, const char *from, int base, int most, bool braces,
                        int32_t *cp) {
  int32_t v = 0;
  int n = 0;
  for (; p->at < p->end && n < most; n++, p->at++) {
    int d = hex_digit(*p->at);
    if (d < 0 || d >= base) break;
    v = v * base + d;
  }
  if (braces && !pe_regex_accept(p, "}")) return pe_regex_refuse(p, from, "not a code point");
  if (!n && base != 8) return pe_regex_refuse(p, from, "not a code point");
  if (v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
    return pe_regex_refuse(p, from, "not a code point");
  *cp = v;
  return PE_OK;
}

pe_status pe_regex_char_escape(pe_regex_parser *p, int32_t *cp) {
  static const char letters[] = "tnrfvae", codes[] = "\t\n\r\f\v\a\033";
  const char *from = p->at;
  p->at++;
  if (p->at == p->end) return pe_regex_refuse(p, from, "ends in a backslash");
  char c = *p->at;
  const char *known = c ? strchr(letters, c) : NULL;
  if (known) {
    p->at++;
    *cp = codes[known - letters];
    return PE_OK;
  }
  if (c == 'x') {
    p->at++;
    if (pe_regex_accept(p, "{")) return number(p, from, 16, 8, true, cp);
    pe_status rc = number(p, from, 16, 2, false, cp);
    return !rc && *cp > 0x7f
               ? pe_regex_refuse(p, from, "a raw byte is not a character, write \\x{..}")
               : rc;
  }
  if (c == 'u') {
    p->at++;
    pe_status rc = number(p, from, 16, 4, false, cp);
    return !rc && p->at - from != 6 ? pe_regex_refuse(p, from, "\\u needs four digits") : rc;
  }
  if (c == '0') {
    p->at++;
    return number(p, from, 8, 2, false, cp);
  }
  bool octal = c >= '1' && c <= '3' && p->end - p->at >= 3 && p->at[1] >= '0' && p->at[1] < '8' &&
               p->at[2] >= '0' && p->at[2] < '8';
  if (octal) {
    pe_status rc = number(p, from, 8, 3, false, cp);
    return !rc && *cp > 0x7f
               ? pe_regex_refuse(p, from, "a raw byte is not a character, write \\x{..}")
               : rc;
  }
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
    p->at = from;
    *cp = -1;
    return PE_OK;
  }
  *cp = pe_regex_next_char(p);
  return PE_OK;
}

const char *pe_regex_class_letter(char c, bool *negate) {
  *negate = c >= 'A' && c <= 'Z';
  switch (c | 32) {
  case 's': return "space";
  case 'd': return "digit";
  case 'w': return "word";
  case 'h': return "xdigit";
  default: return NULL;
  }
}

pe_status pe_regex_property(pe_regex_parser *p, pe_charset *s, bool bare) {
  const char *from = p->at;
  bool negate = p->at[1] == 'P';
  p->at += 2;
  if (!pe_regex_accept(p, "{")) return pe_regex_refuse(p, from, "a property needs braces");
  if (pe_regex_accept(p, "^")) negate = !negate;
  const char *name = p->at, *close = memchr(p->at, '}', (size_t)(p->end - p->at));
  if (!close) return pe_regex_refuse(p, from, "the closing brace of a property is missing");
  p->at = close + 1;
  pe_charset own = {0};
  pe_str n = pe_str_of(name, (size_t)(close - name));
  pe_status rc = pe_charset_property(&own, n, p->err);
  if (rc == PE_ENOTFOUND) rc = pe_regex_refuse(p, from, "unknown property");
  bool word = n.len == 4 && (n.at[0] | 32) == 'w' && (n.at[1] | 32) == 'o' && (n.at[2] | 32) == 'r';
  if (!rc && bare && word) rc = pe_regex_add_bare_word(p, &own);
  if (!rc && negate) rc = pe_charset_negate(&own, p->err);
  if (!rc) rc = pe_charset_unite(s, &own, p->err);
  pe_charset_free(&own);
  return rc;
}

/* ---- bracket classes ----------------------------------------------------------------------- */

static pe_status posix(pe_regex_parser *p, pe_charset *s, bool *was) {
  const char *from = p->at, *at = p->at + 2;
  bool negate = at < p->end && *at == '^';
  if (negate) at++;
  const char *name = at;
  while (at < p->end && ((*at | 32) >= 'a' && (*at | 32) <= 'z')) at++;
  *was = p->end - at >= 2 && at[0] == ':' && at[1] == ']';
  if (!*was) return PE_OK;
  p->at = at + 2;
  pe_charset own = {0};
  pe_status rc = pe_charset_posix(&own, pe_str_of(name, (size_t)(at - name)), p->err);
  if (rc == PE_ENOTFOUND) rc = pe_regex_refuse(p, from, "unknown class");
  if (!rc && negate) rc = pe_charset_negate(&own, p->err);
  if (!rc) rc = pe_charset_unite(s, &own, p->err);
  pe_charset_free(&own);
  return rc;
}

/* One item inside brackets: a set, added to s (*cp is -1), or a character that may begin a
 * range. */
static pe_status item(pe_regex_parser *p, pe_regex_flags f, pe_charset *s, int32_t *cp) {
  *cp = -1;
  if (*p->at == '[') {
    bool was = false;
    if (pe_regex_peek(p, "[:")) {
      pe_status rc = posix(p, s, &was);
      if (rc || was) return rc;
    }
    pe_charset own = {0};
    pe_status rc = pe_regex_bracket(p, f, &own);
    if (!rc) rc = pe_charset_unite(s, &own, p->err);
    pe_charset_free(&own);
    return rc;
  }
  const char *from = p->at;
  if (*from != '\\') {
    *cp = pe_regex_next_char(p);
    return *cp < 0 ? pe_regex_refuse(p, from, "broken UTF-8") : PE_OK;
  }
  char c = p->at + 1 < p->end ? p->at[1] : 0;
  bool negate;
  const char *name = pe_regex_class_letter(c, &negate);
  if (c == 'p' || c == 'P') return pe_regex_property(p, s, false);
  if (c == 'b') {
    p->at += 2;
    *cp = '\b';
    return PE_OK;
  }
  if (!name) {
    pe_status rc = pe_regex_char_escape(p, cp);
    return !rc && *cp < 0 ? pe_regex_refuse(p, from, "unknown escape") : rc;
  }
  p->at += 2;
  pe_charset own = {0};
  pe_status rc = pe_charset_property(&own, pe_str_c(name), p->err);
  if (!rc && negate) rc = pe_charset_negate(&own, p->err);
  if (!rc) rc = pe_charset_unite(s, &own, p->err);
  pe_charset_free(&own);
  return rc;
}

/* Everything up to `&&` or the closing bracket. */
static pe_status bracket_part(pe_regex_parser *p, pe_regex_flags f, pe_charset *s, const char *from,
                              bool first) {
  while (p->at < p->end && !pe_regex_peek(p, "&&") && (*p->at != ']' || first)) {
    int32_t low, high;
    first = false;
    pe_status rc = item(p, f, s, &low);
    if (rc) return rc;
    if (low < 0) continue;
    high = low;
    if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
      const char *dash = p->at++;
      if (pe_regex_peek(p, "&&") || *p->at == '[') {
        p->at = dash; /* "a-[b]": the dash is literal */
      } else {
        if ((rc = item(p, f, s, &high))) return rc;
        if (high < 0) { /* "a-\d": the dash is literal */
          high = low;
          if ((rc = pe_charset_add(s, '-', '-', p->err))) return rc;
        }
        if (high < low) return pe_regex_refuse(p, from, "a range that ends before it begins");
      }
    }
    if ((rc = pe_charset_add(s, low, high, p->err))) return rc;
  }
  return p->at < p->end ? PE_OK : pe_regex_refuse(p, from, "brackets are not closed");
}

pe_status pe_regex_bracket(pe_regex_parser *p, pe_regex_flags f, pe_charset *s) {
  const char *from = p->at++;
  if (++p->depth > PE_REGEX_MAX_DEPTH) return pe_regex_refuse(p, from, "nested too deep");
  bool negate = pe_regex_accept(p, "^");
  /* A leading ']' is literal if another one closes the class. */
  bool literal = pe_regex_peek(p, "]") && memchr(p->at + 1, ']', (size_t)(p->end - p->at - 1));
  pe_status rc = bracket_part(p, f, s, from, literal);
  if (!rc && f.i) rc = pe_charset_fold(s, p->err);
  while (!rc && pe_regex_accept(p, "&&")) {
    pe_charset other = {0};
    rc = bracket_part(p, f, &other, from, false);
    if (!rc && f.i) rc = pe_charset_fold(&other, p->err);
    if (!rc) rc = pe_charset_intersect(s, &other, p->err);
    pe_charset_free(&other);
  }
  if (!rc && p->at - from == 1 + negate) rc = pe_regex_refuse(p, from, "an empty class");
  if (!rc) p->at++;
  if (!rc && negate) rc = pe_charset_negate(s, p->err);
  p->depth--;
  return rc;
}
