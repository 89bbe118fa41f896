/* pattern_class.c - see pattern_parts.h: escapes, brackets, and how characters are spelled. */
#include <string.h>

#include "runtime/grammar/pattern_parts.h"
#include "runtime/utf8.h"

/* ---- spelling -------------------------------------------------------------------------------- */

/* Adds the UTF-8 of the characters of s between two code points. */
static pe_term plain_chars(pe_rex *r, const pe_charset *s, int32_t low, int32_t high) {
  enum { SOME = 128 };
  pe_code_range range[SOME];
  pe_term sum = PE_TERM_NONE;
  size_t n = 0;
  for (size_t i = 0; i < s->n; i += 2) {
    const int32_t to = i + 1 < s->n ? s->at[i + 1] - 1 : PE_CHARSET_TOP - 1;
    if (to < low || s->at[i] > high) continue;
    range[n++] = (pe_code_range){(uint32_t)(s->at[i] < low ? low : s->at[i]),
                                 (uint32_t)(to > high ? high : to)};
    if (n == SOME || i + 2 >= s->n) {
      const pe_term both[2] = {sum, pe_rex_chars(r, range, n)};
      sum = pe_rex_or(r, both, 2), n = 0;
    }
  }
  const pe_term both[2] = {sum, n ? pe_rex_chars(r, range, n) : PE_TERM_NONE};
  return pe_rex_or(r, both, 2);
}

/* How JSON writes a character that may not stand for itself: `\n`, or four digits of any case. */
static pe_term escaped(pe_rex *r, int32_t cp) {
  static const char short_form[][2] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                       {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
  char text[8] = "\\u00";
  for (size_t i = 0; i < sizeof short_form / sizeof *short_form; i++)
    if (cp == short_form[i][0]) {
      text[1] = short_form[i][1];
      return pe_rex_word(r, pe_str_of(text, 2));
    }
  text[4] = (char)('0' + (cp >> 4)), text[5] = "0123456789abcdef"[cp & 15];
  const pe_term small = pe_rex_word(r, pe_str_of(text, 6));
  if ((cp & 15) < 10) return small;
  text[5] = "0123456789ABCDEF"[cp & 15];
  const pe_term both[2] = {small, pe_rex_word(r, pe_str_of(text, 6))};
  return pe_rex_or(r, both, 2);
}

pe_term pe_pattern_chars(pe_rex *r, const pe_charset *s, bool json) {
  const int32_t last = PE_CHARSET_TOP - 1;
  if (!json) return plain_chars(r, s, 0, last);
  pe_term part[40];
  size_t n = 0;
  for (int32_t cp = 0; cp <= '\\'; cp++)
    if ((cp < ' ' || cp == '"' || cp == '\\') && pe_charset_has(s, cp)) part[n++] = escaped(r, cp);
  part[n++] = plain_chars(r, s, ' ', '"' - 1);
  part[n++] = plain_chars(r, s, '"' + 1, '\\' - 1);
  part[n++] = plain_chars(r, s, '\\' + 1, last);
  return pe_rex_or(r, part, n);
}

/* ---- escapes --------------------------------------------------------------------------------- */

static int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c |= 32;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Exactly n hexadecimal digits at `at`, or -1. */
static int32_t hex(const char *at, const char *end, int n) {
  int32_t v = 0;
  if (end - at < n) return -1;
  for (int i = 0; i < n; i++) {
    const int d = digit_of(at[i]);
    if (d < 0) return -1;
    v = v << 4 | d;
  }
  return v;
}

/* \u0041, \u{1F600} and pairs of surrogates; p->at is after the 'u'. */
static pe_status unicode_escape(pe_pattern_reader *p, const char *from, int32_t *cp) {
  if (p->at < p->end && *p->at == '{') {
    const char *q = ++p->at;
    int32_t v = 0;
    while (q < p->end && digit_of(*q) >= 0 && v < PE_CHARSET_TOP) v = v << 4 | digit_of(*q++);
    if (q == p->at || q == p->end || *q != '}' || v >= PE_CHARSET_TOP)
      return pe_pattern_refuse(p, PE_EFORMAT, from, "this is not a code point");
    p->at = q + 1, *cp = v;
    return PE_OK;
  }
  int32_t v = hex(p->at, p->end, 4);
  if (v < 0) return pe_pattern_refuse(p, PE_EFORMAT, from, "\\u needs four hexadecimal digits");
  p->at += 4;
  if (v >= 0xd800 && v < 0xdc00 && p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u') {
    const int32_t low = hex(p->at + 2, p->end, 4);
    if (low >= 0xdc00 && low < 0xe000)
      v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00), p->at += 6;
  }
  *cp = v;
  return PE_OK;
}

/* The letters of a set of ASCII in the other case. */
static pe_status fold_ascii(pe_charset *s, pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t small = 'a'; !rc && small <= 'z'; small++) {
    const bool has_small = pe_charset_has(s, small), has_large = pe_charset_has(s, small - 32);
    const int32_t other = has_small ? small - 32 : small;
    if (has_small != has_large) rc = pe_charset_add(s, other, other, err);
  }
  return rc;
}

pe_status pe_pattern_fold(pe_rex *r, pe_charset *s, pe_error *err) {
  enum { LONG_S = 0x17f, KELVIN = 0x212a, WORK = 50 };
  static const int32_t strange[] = {LONG_S, KELVIN};
  if (!s->n || s->at[s->n - 1] <= 0x80) return fold_ascii(s, err);
  pe_charset drop = {0};
  pe_status rc = pe_rex_spend(r, WORK + 2 * s->n, err);
  for (size_t i = 0; !rc && i < sizeof strange / sizeof *strange; i++)
    if (!pe_charset_has(s, strange[i])) rc = pe_charset_add(&drop, strange[i], strange[i], err);
  if (!rc) rc = pe_charset_negate(&drop, err);
  if (!rc) rc = pe_charset_fold(s, err);
  if (!rc) rc = pe_charset_intersect(s, &drop, err);
  pe_charset_free(&drop);
  return rc;
}

static pe_status add_range(pe_pattern_reader *p, pe_charset *s, int32_t from, int32_t to) {
  return pe_charset_add(s, from, to, p->err);
}

/* \d, \w or \s, or the complement for the capital letter. */
static pe_status class_letter(pe_pattern_reader *p, char c, pe_charset *s) {
  static const int32_t digits[] = {'0', '9'}, word[] = {'0', '9', 'A', 'Z', '_', '_', 'a', 'z'},
                       space[] = {'\t',   '\r',   ' ',    ' ',    0xa0,   0xa0,   0x1680,
                                  0x1680, 0x2000, 0x200a, 0x2028, 0x2029, 0x202f, 0x202f,
                                  0x205f, 0x205f, 0x3000, 0x3000, 0xfeff, 0xfeff};
  const char small = (char)(c | 32);
  const int32_t *list = small == 'd' ? digits : small == 'w' ? word : space;
  /* Python's \s of ASCII, or ECMA's */
  const size_t spaces = p->options.ecma ? sizeof space : 4 * sizeof *space;
  const size_t n = (small == 'd'   ? sizeof digits
                    : small == 'w' ? sizeof word
                                   : spaces) /
                   sizeof *list;
  pe_charset own = {0};
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < n; i += 2) rc = add_range(p, &own, list[i], list[i + 1]);
  if (!rc && c != small) rc = pe_charset_negate(&own, p->err);
  if (!rc) rc = pe_charset_unite(s, &own, p->err);
  pe_charset_free(&own);
  return rc;
}

/* \p{Name} or \P{Name}; p->at is after the letter. */
static pe_status property(pe_pattern_reader *p, const char *from, bool negate, pe_charset *s) {
  enum { WORK = 100 };
  const char *close =
      p->at < p->end && *p->at == '{' ? memchr(p->at, '}', (size_t)(p->end - p->at)) : NULL;
  if (!close) return pe_pattern_refuse(p, PE_EFORMAT, from, "\\p needs a name in braces");
  pe_str name = pe_str_of(p->at + 1, (size_t)(close - p->at - 1));
  const char *is = memchr(name.at, '=', name.len); /* Script=Greek, General_Category=Lu */
  if (is) name = pe_str_of(is + 1, (size_t)(close - is - 1));
  pe_charset own = {0};
  pe_status rc = pe_rex_spend(p->r, WORK, p->err);
  if (!rc) rc = pe_charset_property(&own, name, p->err);
  if (rc == PE_ENOTFOUND)
    rc = pe_pattern_refuse(p, PE_EUNSUPPORTED, from, "a property with this name is not known");
  if (!rc && negate) rc = pe_charset_negate(&own, p->err);
  if (!rc) rc = pe_charset_unite(s, &own, p->err);
  pe_charset_free(&own);
  p->at = close + 1;
  return rc;
}

static bool is_one_of(char c, const char *list) { return c && strchr(list, c); }

/* An escape; p->at is at the backslash. A class is added to s and *cp is -1; a character is *cp. */
static pe_status escape(pe_pattern_reader *p, bool inside, pe_charset *s, int32_t *cp) {
  static const char control[][2] = {{'t', '\t'}, {'n', '\n'}, {'r', '\r'},
                                    {'f', '\f'}, {'v', '\v'}, {'0', '\0'}};
  const char *from = p->at++;
  if (p->at == p->end) return pe_pattern_refuse(p, PE_EFORMAT, from, "it ends with a backslash");
  const char c = *p->at++;
  *cp = -1;
  if (is_one_of(c, "dDwWsS")) return class_letter(p, c, s);
  if (c == 'p' || c == 'P') return property(p, from, c == 'P', s);
  if (c == 'u') return unicode_escape(p, from, cp);
  for (size_t i = 0; i < sizeof control / sizeof *control; i++)
    if (c == control[i][0]) return *cp = control[i][1], PE_OK;
  if (c == 'b' && inside) return *cp = '\b', PE_OK;
  if (c == 'x') {
    if ((*cp = hex(p->at, p->end, 2)) < 0)
      return pe_pattern_refuse(p, PE_EFORMAT, from, "\\x needs two hexadecimal digits");
    p->at += 2;
    return PE_OK;
  }
  if (c == 'c' && p->at < p->end && (unsigned char)((*p->at | 32) - 'a') < 26)
    return *cp = *p->at++ & 31, PE_OK;
  if (c >= '1' && c <= '9')
    return pe_pattern_refuse(p, PE_EUNSUPPORTED, from, "back references are not regular");
  if (is_one_of(c, "bBAZzGkK"))
    return pe_pattern_refuse(p, PE_EUNSUPPORTED, from, "this escape is not supported");
  if ((unsigned char)((c | 32) - 'a') < 26)
    return pe_pattern_refuse(p, PE_EFORMAT, from, "there is no such escape");
  p->at--;
  p->at += pe_utf8_next(p->at, p->end, cp);
  return PE_OK;
}

/* ---- brackets -------------------------------------------------------------------------------- */

/* A character or a class inside brackets; *cp is -1 for a class, which s has then. */
static pe_status bracket_item(pe_pattern_reader *p, pe_charset *s, int32_t *cp) {
  if (*p->at == '\\') return escape(p, true, s, cp);
  p->at += pe_utf8_next(p->at, p->end, cp);
  return PE_OK;
}

static pe_status bracket_range(pe_pattern_reader *p, pe_charset *s) {
  const char *from = p->at;
  int32_t low, high;
  pe_status rc = pe_rex_spend(p->r, s->n / 256, p->err); /* a range may be put between others */
  if (!rc) rc = bracket_item(p, s, &low);
  if (rc) return rc;
  if (p->end - p->at < 2 || p->at[0] != '-' || p->at[1] == ']')
    return low < 0 ? PE_OK : add_range(p, s, low, low);
  p->at++;
  if ((rc = bracket_item(p, s, &high))) return rc;
  if (low < 0 || high < 0)
    return pe_pattern_refuse(p, PE_EFORMAT, from, "a range needs a character at both ends");
  if (low > high) return pe_pattern_refuse(p, PE_EFORMAT, from, "the range is out of order");
  return add_range(p, s, low, high);
}

/* [...]; p->at is after the opening bracket. A first ']' is a character, as in Python. */
static pe_status bracket(pe_pattern_reader *p, pe_charset *s) {
  const char *from = p->at - 1;
  const bool negate = p->at < p->end && *p->at == '^';
  pe_status rc = PE_OK;
  if (negate) p->at++;
  for (bool first = true; !rc && p->at < p->end && (first || *p->at != ']'); first = false)
    rc = bracket_range(p, s);
  if (rc) return rc;
  if (p->at == p->end) return pe_pattern_refuse(p, PE_EFORMAT, from, "the bracket is not closed");
  p->at++;
  if (p->ignore_case && (rc = pe_pattern_fold(p->r, s, p->err))) return rc;
  return negate ? pe_charset_negate(s, p->err) : PE_OK;
}

static pe_status any_char(pe_pattern_reader *p, pe_charset *s) {
  if (p->dot_all) return add_range(p, s, 0, PE_CHARSET_TOP - 1);
  pe_status rc = add_range(p, s, '\n', '\n');
  if (!rc && p->options.ecma) rc = add_range(p, s, '\r', '\r');
  if (!rc && p->options.ecma) rc = add_range(p, s, 0x2028, 0x2029);
  return rc ? rc : pe_charset_negate(s, p->err);
}

pe_status pe_pattern_class(pe_pattern_reader *p, pe_charset *s) {
  int32_t cp;
  if (*p->at == '[') return p->at++, bracket(p, s);
  if (*p->at == '.') return p->at++, any_char(p, s);
  if (*p->at == '\\') {
    pe_status rc = escape(p, false, s, &cp);
    if (rc || cp < 0) return rc;
  } else {
    p->at += pe_utf8_next(p->at, p->end, &cp);
  }
  pe_status rc = add_range(p, s, cp, cp);
  return !rc && p->ignore_case ? pe_pattern_fold(p->r, s, p->err) : rc;
}
