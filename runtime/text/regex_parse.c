/* regex_parse.c - see regex_parse.h. A recursive descent over Oniguruma's Ruby syntax that writes as it reads. */
#include "runtime/text/regex_parse.h"
#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

#include <string.h>

enum { MAX_DEPTH = 100, MAX_REPEAT = 65535, RUN = 64 };

typedef struct flags {
  bool i, m, x; /* ignore case; dot takes newlines; blanks and comments */
} flags;

typedef struct parser {
  const char *start, *at, *end;
  int depth;
  pe_regex_parsed *out;
  pe_error *err;
} parser;

static pe_status alternatives(parser *p, flags *f);

/* ---- small helpers --------------------------------------------------------------------------------------------- */

static pe_status refuse(parser *p, const char *from, const char *why) {
  size_t len = (size_t)(p->end - from) < 24 ? (size_t)(p->end - from) : 24;
  while (len && from + len < p->end && ((uint8_t)from[len] & 0xc0) == 0x80) len--;
  for (size_t i = 0; i < len; i++)
    if (from[i] == '\n' || from[i] == '\r') len = i; /* errors are one line */
  return pe_fail(p->err, PE_EUNSUPPORTED, "pattern, offset %zu: %s: '%.*s'",
                 (size_t)(from - p->start), why, (int)len, from);
}

static pe_status put(parser *p, const char *text) {
  return pe_buf_put(&p->out->code, text, strlen(text), p->err);
}

static bool peek(const parser *p, const char *text) {
  size_t n = strlen(text);
  return (size_t)(p->end - p->at) >= n && !memcmp(p->at, text, n);
}

static bool accept(parser *p, const char *text) {
  if (!peek(p, text)) return false;
  p->at += strlen(text);
  return true;
}

static int32_t next_char(parser *p) {
  int32_t cp;
  p->at += pe_utf8_next(p->at, p->end, &cp);
  return cp;
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c |= 32;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Writes "one character of this set"; takes the set's memory, also when it fails. */
static pe_status put_set(parser *p, pe_charset *s) {
  pe_regex_parsed *o = p->out;
  size_t i = 0;
  while (i < o->sets && !pe_charset_same(&o->set[i], s)) i++;
  pe_status rc = PE_OK;
  if (i < o->sets)
    pe_charset_free(s);
  else if (o->sets == PE_REGEX_MAX_SETS) {
    pe_charset_free(s);
    return pe_fail(p->err, PE_ELIMIT, "pattern: more than %d different sets of characters",
                   PE_REGEX_MAX_SETS);
  } else {
    if ((rc = pe_grow(&o->set, &o->cap, o->sets + 1, sizeof *o->set, p->err)))
      return pe_charset_free(s), rc;
    o->set[o->sets++] = *s;
  }
  char hole[3] = {PE_REGEX_HOLE, (char)(i & 255), (char)(i >> 8)};
  return pe_buf_put(&o->code, hole, 3, p->err);
}

/* Outside of brackets the reference also counts six numbers of Latin-1 as word characters. */
static pe_status add_bare_word(parser *p, pe_charset *s) {
  static const int32_t extra[][2] = {{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}};
  pe_status rc = PE_OK;
  for (int i = 0; !rc && i < 3; i++) rc = pe_charset_add(s, extra[i][0], extra[i][1], p->err);
  return rc;
}

/* One character of a property. */
static pe_status put_property(parser *p, const char *name, bool negate, bool bare_word) {
  pe_charset s = {0};
  pe_status rc = pe_charset_property(&s, pe_str_c(name), p->err);
  if (!rc && bare_word) rc = add_bare_word(p, &s);
  if (!rc && negate) rc = pe_charset_negate(&s, p->err);
  if (!rc) return put_set(p, &s);
  pe_charset_free(&s);
  return rc;
}

static pe_status put_char(parser *p, int32_t cp, bool fold) {
  pe_charset s = {0};
  pe_status rc = pe_charset_add(&s, cp, cp, p->err);
  if (!rc && fold) rc = pe_charset_fold(&s, p->err);
  if (!rc) return put_set(p, &s);
  pe_charset_free(&s);
  return rc;
}

/* ---- escapes --------------------------------------------------------------------------------------------------- */

/* Reads \x{..}, \xHH, \uHHHH and octal; p->at is behind the letter. */
static pe_status number(parser *p, const char *from, int base, int most, bool braces, int32_t *cp) {
  int32_t v = 0;
  int n = 0;
  for (; p->at < p->end && n < most; n++, p->at++) {
    int d = hex_digit(*p->at);
    if (d < 0 || d >= base) break;
    v = v * base + d;
  }
  if (braces && !accept(p, "}")) return refuse(p, from, "not a code point");
  if (!n && base != 8) return refuse(p, from, "not a code point");
  if (v > 0x10ffff || (v >= 0xd800 && v < 0xe000)) return refuse(p, from, "not a code point");
  *cp = v;
  return PE_OK;
}

/* An escape that stands for one character; *cp is -1 when it stands for something else (p->at is then unmoved). */
static pe_status char_escape(parser *p, int32_t *cp) {
  static const char letters[] = "tnrfvae", codes[] = "\t\n\r\f\v\a\033";
  const char *from = p->at;
  p->at++;
  if (p->at == p->end) return refuse(p, from, "ends in a backslash");
  char c = *p->at;
  const char *known = c ? strchr(letters, c) : NULL;
  if (known) return p->at++, *cp = codes[known - letters], PE_OK;
  if (c == 'x') {
    p->at++;
    if (accept(p, "{")) return number(p, from, 16, 8, true, cp);
    pe_status rc = number(p, from, 16, 2, false, cp);
    return !rc && *cp > 0x7f ? refuse(p, from, "a raw byte is no character, write \\x{..}") : rc;
  }
  if (c == 'u') {
    p->at++;
    pe_status rc = number(p, from, 16, 4, false, cp);
    return !rc && p->at - from != 6 ? refuse(p, from, "\\u needs four digits") : rc;
  }
  if (c == '0') return p->at++, number(p, from, 8, 2, false, cp);
  bool octal = c >= '1' && c <= '3' && p->end - p->at >= 3 && p->at[1] >= '0' && p->at[1] < '8' &&
               p->at[2] >= '0' && p->at[2] < '8';
  if (octal) {
    pe_status rc = number(p, from, 8, 3, false, cp);
    return !rc && *cp > 0x7f ? refuse(p, from, "a raw byte is no character, write \\x{..}") : rc;
  }
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9'))
    return p->at = from, *cp = -1, PE_OK;
  *cp = next_char(p);
  return PE_OK;
}

/* Classes that are one letter: name of the property, and whether the capital letter is meant. */
static const char *class_letter(char c, bool *negate) {
  *negate = c >= 'A' && c <= 'Z';
  switch (c | 32) {
  case 's': return "space";
  case 'd': return "digit";
  case 'w': return "word";
  case 'h': return "xdigit";
  default: return NULL;
  }
}

/* \p{..} and \P{..}, with p->at at the backslash: adds to s. */
static pe_status property_escape(parser *p, pe_charset *s, bool bare) {
  const char *from = p->at;
  bool negate = p->at[1] == 'P';
  p->at += 2;
  if (!accept(p, "{")) return refuse(p, from, "a property needs braces");
  if (accept(p, "^")) negate = !negate;
  const char *name = p->at, *close = memchr(p->at, '}', (size_t)(p->end - p->at));
  if (!close) return refuse(p, from, "a property without its closing brace");
  p->at = close + 1;
  pe_charset own = {0};
  pe_str n = pe_str_of(name, (size_t)(close - name));
  pe_status rc = pe_charset_property(&own, n, p->err);
  if (rc == PE_ENOTFOUND) rc = refuse(p, from, "unknown property");
  bool word = n.len == 4 && (n.at[0] | 32) == 'w' && (n.at[1] | 32) == 'o' && (n.at[2] | 32) == 'r';
  if (!rc && bare && word) rc = add_bare_word(p, &own);
  if (!rc && negate) rc = pe_charset_negate(&own, p->err);
  if (!rc) rc = pe_charset_unite(s, &own, p->err);
  pe_charset_free(&own);
  return rc;
}

/* ---- bracket classes ------------------------------------------------------------------------------------------- */

static pe_status bracket(parser *p, flags f, pe_charset *s);

static pe_status posix(parser *p, pe_charset *s, bool *was) {
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
  if (rc == PE_ENOTFOUND) rc = refuse(p, from, "unknown class");
  if (!rc && negate) rc = pe_charset_negate(&own, p->err);
  if (!rc) rc = pe_charset_unite(s, &own, p->err);
  pe_charset_free(&own);
  return rc;
}

/* One thing inside brackets: a set (added to s, *cp is -1) or a character that may begin a range. */
static pe_status item(parser *p, flags f, pe_charset *s, int32_t *cp) {
  *cp = -1;
  if (*p->at == '[') {
    bool was = false;
    if (peek(p, "[:")) {
      pe_status rc = posix(p, s, &was);
      if (rc || was) return rc;
    }
    pe_charset own = {0};
    pe_status rc = bracket(p, f, &own);
    if (!rc) rc = pe_charset_unite(s, &own, p->err);
    pe_charset_free(&own);
    return rc;
  }
  if (*p->at != '\\') return *cp = next_char(p), *cp < 0 ? refuse(p, p->at, "broken UTF-8") : PE_OK;
  const char *from = p->at;
  char c = p->at + 1 < p->end ? p->at[1] : 0;
  bool negate;
  const char *name = class_letter(c, &negate);
  if (c == 'p' || c == 'P') return property_escape(p, s, false);
  if (c == 'b') return p->at += 2, *cp = '\b', PE_OK;
  if (!name) {
    pe_status rc = char_escape(p, cp);
    return !rc && *cp < 0 ? refuse(p, from, "unknown escape") : rc;
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
static pe_status bracket_part(parser *p, flags f, pe_charset *s, const char *from, bool first) {
  while (p->at < p->end && !peek(p, "&&") && (*p->at != ']' || first)) {
    int32_t low, high;
    first = false;
    pe_status rc = item(p, f, s, &low);
    if (rc) return rc;
    if (low < 0) continue;
    high = low;
    if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
      const char *dash = p->at++;
      if (peek(p, "&&"))
        p->at = dash;
      else if (*p->at == '[')
        p->at = dash; /* "a-[b]": the dash is itself */
      else {
        if ((rc = item(p, f, s, &high))) return rc;
        if (high < 0) high = low, rc = pe_charset_add(s, '-', '-', p->err); /* "a-\d" likewise */
        if (rc) return rc;
        if (high < low) return refuse(p, from, "a range that ends before it begins");
      }
    }
    if ((rc = pe_charset_add(s, low, high, p->err))) return rc;
  }
  return p->at < p->end ? PE_OK : refuse(p, from, "brackets are not closed");
}

static pe_status bracket(parser *p, flags f, pe_charset *s) {
  const char *from = p->at++;
  if (++p->depth > MAX_DEPTH) return refuse(p, from, "nested too deep");
  bool negate = accept(p, "^");
  /* A leading ']' is itself when another one closes the class. */
  bool literal = peek(p, "]") && memchr(p->at + 1, ']', (size_t)(p->end - p->at - 1));
  pe_status rc = bracket_part(p, f, s, from, literal);
  if (!rc && f.i) rc = pe_charset_fold(s, p->err);
  while (!rc && accept(p, "&&")) {
    pe_charset other = {0};
    rc = bracket_part(p, f, &other, from, false);
    if (!rc && f.i) rc = pe_charset_fold(&other, p->err);
    if (!rc) rc = pe_charset_intersect(s, &other, p->err);
    pe_charset_free(&other);
  }
  if (!rc && p->at - from == 1 + negate) rc = refuse(p, from, "an empty class");
  if (!rc) p->at++;
  if (!rc && negate) rc = pe_charset_negate(s, p->err);
  p->depth--;
  return rc;
}

/* ---- literals -------------------------------------------------------------------------------------------------- */

static pe_status put_folded(parser *p, int32_t fold) { return put_char(p, fold, true); }

/* A run of plain characters without regard to case. Where two or three of them equal one other character, or one of
 * them equals several, both ways are offered. */
static pe_status put_run(parser *p, const int32_t *run, int n) {
  int32_t f[RUN], wide[3];
  for (int i = 0; i < n; i++) f[i] = pe_unicode_fold(run[i]);
  pe_status rc = PE_OK;
  for (int i = 0; i < n && !rc;) {
    int take = n - i < 3 ? n - i : 3, parts;
    int32_t one = -1;
    while (take > 1 && (one = pe_unicode_fold_contract(f + i, take)) < 0) take--;
    if (one >= 0) {
      rc = put(p, "(?:");
      for (int k = 0; k < take && !rc; k++) rc = put_folded(p, f[i + k]);
      if (!rc) rc = put(p, "|");
      if (!rc) rc = put_folded(p, one);
      if (!rc) rc = put(p, ")");
    } else if ((parts = pe_unicode_fold_expand(f[i], wide))) {
      rc = put(p, "(?:");
      if (!rc) rc = put_folded(p, f[i]);
      if (!rc) rc = put(p, "|");
      for (int k = 0; k < parts && !rc; k++) rc = put_folded(p, wide[k]);
      if (!rc) rc = put(p, ")");
    } else
      rc = put_folded(p, f[i]);
    i += take;
  }
  return rc;
}

static bool at_quantifier(const parser *p) {
  if (p->at == p->end) return false;
  if (*p->at == '*' || *p->at == '+' || *p->at == '?') return true;
  if (*p->at != '{') return false;
  const char *q = p->at + 1; /* {n}, {n,}, {,m}, {n,m}; anything else is text */
  bool digits = false, comma = false;
  for (; q < p->end && *q != '}'; q++) {
    if (*q >= '0' && *q <= '9')
      digits = true;
    else if (*q == ',' && !comma)
      comma = true;
    else
      return false;
  }
  return q < p->end && digits;
}

/* A literal character, with more of them when case does not matter (for folds of several characters). A quantifier
 * belongs to the last one alone. */
static pe_status literal(parser *p, flags f, int32_t cp) {
  if (!f.i) return put_char(p, cp, false);
  int32_t run[RUN] = {cp};
  int n = 1;
  while (n < RUN && p->at < p->end && !at_quantifier(p) && !strchr("\\[](){}|^$.*+?", *p->at) &&
         !f.x) {
    const char *back = p->at;
    int32_t next = next_char(p);
    if (next < 0 || at_quantifier(p)) {
      p->at = back;
      break;
    }
    run[n++] = next;
  }
  return put_run(p, run, n);
}

/* ---- atoms ----------------------------------------------------------------------------------------------------- */

static pe_status word_test(parser *p, bool boundary) {
  /* (?<=W)(?!W)|(?<!W)(?=W) or, inside or outside of words, (?<=W)(?=W)|(?<!W)(?!W) */
  static const char *const tests[2][4] = {{"(?:(?<=", ")(?=", ")|(?<!", ")(?!"},
                                          {"(?:(?<=", ")(?!", ")|(?<!", ")(?="}};
  pe_status rc = PE_OK;
  for (int i = 0; i < 4 && !rc; i++)
    if (!(rc = put(p, tests[boundary][i]))) rc = put_property(p, "word", false, true);
  return rc ? rc : put(p, "))");
}

static pe_status escape(parser *p, flags f) {
  static const struct {
    char letter;
    const char *code;
  } fixed[] = {
      {'A', "\\A"},
      {'z', "\\z"},
      {'Z', "(?=\\x0a?\\z)"},
      {'G', "\\G"},
  };
  const char *from = p->at;
  char c = p->at + 1 < p->end ? p->at[1] : 0;
  bool negate;
  const char *name = class_letter(c, &negate);
  if (name) return p->at += 2, put_property(p, name, negate, name[0] == 'w');
  if (c == 'p' || c == 'P') {
    pe_charset s = {0};
    pe_status rc = property_escape(p, &s, true);
    if (!rc) return put_set(p, &s);
    pe_charset_free(&s);
    return rc;
  }
  if (c == 'b' || c == 'B') return p->at += 2, word_test(p, c == 'b');
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
    if (c == fixed[i].letter) return p->at += 2, put(p, fixed[i].code);
  if (c == 'R') {
    static const int32_t ends[][2] = {{10, 13}, {0x85, 0x85}, {0x2028, 0x2029}};
    pe_charset s = {0};
    pe_status rc = put(p, "(?>\\x0d\\x0a|");
    for (int i = 0; i < 3 && !rc; i++) rc = pe_charset_add(&s, ends[i][0], ends[i][1], p->err);
    p->at += 2;
    if (rc) return pe_charset_free(&s), rc;
    rc = put_set(p, &s);
    return rc ? rc : put(p, ")");
  }
  int32_t cp;
  pe_status rc = char_escape(p, &cp);
  if (rc) return rc;
  return cp < 0 ? refuse(p, from, "unknown escape") : literal(p, f, cp);
}

static pe_status dot(parser *p, bool all) {
  pe_charset s = {0};
  pe_status rc = PE_OK;
  if (!all) rc = pe_charset_add(&s, '\n', '\n', p->err);
  if (!rc) rc = pe_charset_negate(&s, p->err);
  if (!rc) return put_set(p, &s);
  pe_charset_free(&s);
  return rc;
}

/* The letters of (?imx-imx: or (?imx-imx); p->at is behind "(?". */
static pe_status options(parser *p, const char *from, flags *f) {
  bool on = true;
  for (; p->at < p->end && *p->at != ')' && *p->at != ':'; p->at++) {
    if (*p->at == '-')
      on = false;
    else if (*p->at == 'i')
      f->i = on;
    else if (*p->at == 'm')
      f->m = on;
    else if (*p->at == 'x')
      f->x = on;
    else
      return refuse(p, from, "unknown group");
  }
  return p->at < p->end ? PE_OK : refuse(p, from, "a group is not closed");
}

static pe_status group(parser *p, flags *outer) {
  static const char *const kinds[] = {"?:", "?=", "?!", "?>", "?<=", "?<!"};
  const char *from = p->at++;
  flags f = *outer;
  pe_status rc = PE_OK;
  if (++p->depth > MAX_DEPTH) return refuse(p, from, "nested too deep");
  size_t k = 0;
  while (k < 6 && !peek(p, kinds[k])) k++;
  if (k < 6)
    rc = put(p, "("), rc = rc ? rc : put(p, kinds[k]), p->at += strlen(kinds[k]);
  else if (accept(p, "?#")) {
    while (p->at < p->end && *p->at != ')') p->at++;
    p->depth--;
    return accept(p, ")") ? PE_OK : refuse(p, from, "a comment is not closed");
  } else if (accept(p, "?<")) {
    while (p->at < p->end && *p->at != '>') p->at++;
    if (!accept(p, ">")) return refuse(p, from, "a group's name is not closed");
    rc = put(p, "(?:");
  } else if (accept(p, "?")) {
    if ((rc = options(p, from, &f))) return rc;
    rc = put(p, "(?:");
    if (!rc &&
        accept(p, ")")) { /* (?i): to the end of the group around it, with its alternatives */
      rc = alternatives(p, &f);
      p->depth--;
      return rc ? rc : put(p, ")");
    }
    p->at++;
  } else
    rc = put(p, "(?:");
  if (!rc) rc = alternatives(p, &f);
  if (!rc && !accept(p, ")")) rc = refuse(p, from, "a group is not closed");
  p->depth--;
  return rc ? rc : put(p, ")");
}

static pe_status atom(parser *p, flags *f) {
  switch (*p->at) {
  case '(': return group(p, f);
  case '\\': return escape(p, *f);
  case '.': return p->at++, dot(p, f->m);
  case '^': return p->at++, put(p, "(?:\\A|(?<=\\x0a)(?!\\z))");
  case '$': return p->at++, put(p, "(?=\\x0a|\\z)");
  case '[': {
    pe_charset s = {0};
    pe_status rc = bracket(p, *f, &s);
    if (!rc) return put_set(p, &s);
    pe_charset_free(&s);
    return rc;
  }
  case '*':
  case '+':
  case '?': return refuse(p, p->at, "nothing to repeat");
  default: {
    if (at_quantifier(p)) return refuse(p, p->at, "nothing to repeat");
    const char *from = p->at;
    int32_t cp = next_char(p);
    return cp < 0 ? refuse(p, from, "broken UTF-8") : literal(p, *f, cp);
  }
  }
}

/* ---- repetition ------------------------------------------------------------------------------------------------ */

/* Puts (?: ) around what was written since `start`. */
static pe_status wrap(parser *p, size_t start) {
  pe_buf *b = &p->out->code;
  pe_status rc = pe_buf_reserve(b, 4, p->err);
  if (rc) return rc;
  memmove(b->data + start + 3, b->data + start, b->len - start);
  memcpy(b->data + start, "(?:", 3);
  b->len += 3;
  return put(p, ")");
}

static pe_status interval(parser *p) {
  const char *from = p->at++;
  int64_t low = 0, high = 0;
  bool comma = false, upper = false;
  for (; *p->at != '}'; p->at++) {
    if (*p->at == ',')
      comma = true;
    else if (comma)
      high = high * 10 + (*p->at - '0'), upper = true;
    else
      low = low * 10 + (*p->at - '0');
    if (low > MAX_REPEAT || high > MAX_REPEAT)
      return refuse(p, from, "repeated more than 65535 times");
  }
  p->at++;
  if (comma && upper && high < low) return refuse(p, from, "fewer at most than at least");
  if (!comma) return pe_buf_printf(&p->out->code, p->err, "{%d}", (int)low);
  if (!upper) return pe_buf_printf(&p->out->code, p->err, "{%d,}", (int)low);
  return pe_buf_printf(&p->out->code, p->err, "{%d,%d}", (int)low, (int)high);
}

/* All quantifiers behind an atom. `?` behind one makes it lazy and `+` possessive, but in this syntax an interval has
 * no possessive form, and {n}? is an optional {n}: what follows them repeats the repetition. */
static pe_status quantifiers(parser *p, size_t start) {
  pe_status rc = PE_OK;
  for (int nth = 0; !rc && at_quantifier(p); nth++) {
    if (nth >= MAX_DEPTH) return refuse(p, p->at, "too many repetitions of repetitions");
    if (nth && (rc = wrap(p, start))) return rc;
    if (*p->at == '{') {
      const char *from = p->at;
      if ((rc = interval(p))) return rc;
      bool fixed = !memchr(from, ',', (size_t)(p->at - from));
      if (!fixed && accept(p, "?")) rc = put(p, "?");
      continue;
    }
    if ((rc = pe_buf_byte(&p->out->code, *p->at++, p->err))) return rc;
    if (accept(p, "?"))
      rc = put(p, "?");
    else if (accept(p, "+"))
      rc = put(p, "+");
  }
  return rc;
}

static void skip_blanks(parser *p) {
  while (p->at < p->end) {
    if (strchr(" \t\n\r\f\v", *p->at) && *p->at)
      p->at++;
    else if (*p->at == '#')
      while (p->at < p->end && *p->at != '\n') p->at++;
    else
      return;
  }
}

static pe_status alternatives(parser *p, flags *f) {
  pe_status rc = PE_OK;
  while (!rc) {
    if (f->x) skip_blanks(p);
    if (p->at == p->end || *p->at == ')') return PE_OK;
    if (accept(p, "|")) {
      rc = put(p, "|");
      continue;
    }
    size_t start = p->out->code.len;
    rc = atom(p, f);
    if (f->x) skip_blanks(p);
    if (!rc && p->out->code.len > start) rc = quantifiers(p, start);
  }
  return rc;
}

pe_status pe_regex_parse(pe_str pattern, pe_regex_parsed *out, pe_error *err) {
  enum { LONGEST = 1 << 16 };
  if (pattern.len > LONGEST)
    return pe_fail(err, PE_ELIMIT, "pattern: %zu bytes, at most %d are read", pattern.len, LONGEST);
  if (!pattern.len) return PE_OK;
  parser p = {pattern.at, pattern.at, pattern.at + pattern.len, 0, out, err};
  flags f = {0};
  pe_status rc = alternatives(&p, &f);
  if (!rc && p.at < p.end) rc = refuse(&p, p.at, "a closing parenthesis without its opening one");
  return rc;
}

void pe_regex_parsed_free(pe_regex_parsed *p) {
  for (size_t i = 0; i < p->sets; i++) pe_charset_free(&p->set[i]);
  pe_free(p->set);
  pe_buf_free(&p->code);
  *p = (pe_regex_parsed){0};
}
