/* regex_parse.c - see regex_parse.h. Recursive descent over Oniguruma's Ruby syntax, which writes
 * PCRE2 syntax while it reads. */
#include "runtime/text/regex_parse.h"
#include "runtime/text/regex_class.h"
#include "runtime/text/unicode.h"

typedef pe_regex_parser parser;
typedef pe_regex_flags flags;

enum {
  MAX_REPEAT = 65535, /* PCRE2's own limit */
  RUN = 64            /* literal characters folded together */
};

static pe_status alternatives(parser *p, flags *f);

/* ---- writing ------------------------------------------------------------------------------- */

static pe_status put(parser *p, const char *text) {
  return pe_buf_put(&p->out->code, text, strlen(text), p->err);
}

/* Writes "one character of this set". Takes the set, also if it fails. */
static pe_status put_set(parser *p, pe_charset *s) {
  pe_regex_parsed *o = p->out;
  size_t i = 0;
  while (i < o->sets && !pe_charset_same(&o->set[i], s)) i++;
  pe_status rc = PE_OK;
  if (i < o->sets) {
    pe_charset_free(s);
  } else if (o->sets == PE_REGEX_MAX_SETS) {
    pe_charset_free(s);
    return pe_fail(p->err, PE_ELIMIT, "pattern has more than %d different sets of characters",
                   PE_REGEX_MAX_SETS);
  } else {
    if ((rc = pe_grow(&o->set, &o->cap, o->sets + 1, sizeof *o->set, p->err))) {
      pe_charset_free(s);
      return rc;
    }
    o->set[o->sets++] = *s;
  }
  char hole[3] = {PE_REGEX_HOLE, (char)(i & 255), (char)(i >> 8)};
  return pe_buf_put(&o->code, hole, 3, p->err);
}

/* One character of a property. */
static pe_status put_property(parser *p, const char *name, bool negate, bool bare_word) {
  pe_charset s = {0};
  pe_status rc = pe_charset_property(&s, pe_str_c(name), p->err);
  if (!rc && bare_word) rc = pe_regex_add_bare_word(p, &s);
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

/* ---- literals ------------------------------------------------------------------------------ */

static pe_status put_folded(parser *p, int32_t fold) { return put_char(p, fold, true); }

/* Writes a run of characters without regard to case. If two or three of them equal one other
 * character, or one equals several, both are written as alternatives. */
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
    } else {
      rc = put_folded(p, f[i]);
    }
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

/* A literal character; if case is ignored, also the literal characters after it, for folds of
 * several characters. A quantifier belongs to the last character alone. */
static pe_status literal(parser *p, flags f, int32_t cp) {
  if (!f.i) return put_char(p, cp, false);
  int32_t run[RUN] = {cp};
  int n = 1;
  while (n < RUN && p->at < p->end && !at_quantifier(p) && !strchr("\\[](){}|^$.*+?", *p->at) &&
         !f.x) {
    const char *back = p->at;
    int32_t next = pe_regex_next_char(p);
    if (next < 0 || at_quantifier(p)) {
      p->at = back;
      break;
    }
    run[n++] = next;
  }
  return put_run(p, run, n);
}

/* ---- atoms --------------------------------------------------------------------------------- */

static pe_status word_test(parser *p, bool boundary) {
  /* \b is (?<=W)(?!W)|(?<!W)(?=W) and \B is (?<=W)(?=W)|(?<!W)(?!W) */
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
  const char *name = pe_regex_class_letter(c, &negate);
  if (name) {
    p->at += 2;
    return put_property(p, name, negate, name[0] == 'w');
  }
  if (c == 'p' || c == 'P') {
    pe_charset s = {0};
    pe_status rc = pe_regex_property(p, &s, true);
    if (!rc) return put_set(p, &s);
    pe_charset_free(&s);
    return rc;
  }
  if (c == 'b' || c == 'B') {
    p->at += 2;
    return word_test(p, c == 'b');
  }
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
    if (c == fixed[i].letter) {
      p->at += 2;
      return put(p, fixed[i].code);
    }
  if (c == 'R') {
    static const int32_t ends[][2] = {{10, 13}, {0x85, 0x85}, {0x2028, 0x2029}};
    pe_charset s = {0};
    pe_status rc = put(p, "(?>\\x0d\\x0a|");
    for (int i = 0; i < 3 && !rc; i++) rc = pe_charset_add(&s, ends[i][0], ends[i][1], p->err);
    p->at += 2;
    if (rc) {
      pe_charset_free(&s);
      return rc;
    }
    rc = put_set(p, &s);
    return rc ? rc : put(p, ")");
  }
  int32_t cp;
  pe_status rc = pe_regex_char_escape(p, &cp);
  if (rc) return rc;
  return cp < 0 ? pe_regex_refuse(p, from, "unknown escape") : literal(p, f, cp);
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

/* The letters of (?imx-imx: or (?imx-imx); p->at is after "(?". */
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
      return pe_regex_refuse(p, from, "unknown group");
  }
  return p->at < p->end ? PE_OK : pe_regex_refuse(p, from, "a group is not closed");
}

static pe_status group(parser *p, flags *outer) {
  static const char *const kinds[] = {"?:", "?=", "?!", "?>", "?<=", "?<!"};
  const char *from = p->at++;
  flags f = *outer;
  pe_status rc = PE_OK;
  if (++p->depth > PE_REGEX_MAX_DEPTH) return pe_regex_refuse(p, from, "nested too deep");
  size_t k = 0;
  while (k < 6 && !pe_regex_peek(p, kinds[k])) k++;
  if (k < 6) {
    if (!(rc = put(p, "("))) rc = put(p, kinds[k]);
    p->at += strlen(kinds[k]);
  } else if (pe_regex_accept(p, "?#")) {
    while (p->at < p->end && *p->at != ')') p->at++;
    p->depth--;
    return pe_regex_accept(p, ")") ? PE_OK : pe_regex_refuse(p, from, "a comment is not closed");
  } else if (pe_regex_accept(p, "?<")) {
    while (p->at < p->end && *p->at != '>') p->at++;
    if (!pe_regex_accept(p, ">")) return pe_regex_refuse(p, from, "a group's name is not closed");
    rc = put(p, "(?:");
  } else if (pe_regex_accept(p, "?")) {
    if ((rc = options(p, from, &f))) return rc;
    rc = put(p, "(?:");
    if (!rc && pe_regex_accept(p, ")")) { /* (?i) holds to the end of the enclosing group */
      rc = alternatives(p, &f);
      p->depth--;
      return rc ? rc : put(p, ")");
    }
    p->at++;
  } else {
    rc = put(p, "(?:");
  }
  if (!rc) rc = alternatives(p, &f);
  if (!rc && !pe_regex_accept(p, ")")) rc = pe_regex_refuse(p, from, "a group is not closed");
  p->depth--;
  return rc ? rc : put(p, ")");
}

static pe_status atom(parser *p, flags *f) {
  switch (*p->at) {
  case '(': return group(p, f);
  case '\\': return escape(p, *f);
  case '.': p->at++; return dot(p, f->m);
  case '^': p->at++; return put(p, "(?:\\A|(?<=\\x0a)(?!\\z))");
  case '$': p->at++; return put(p, "(?=\\x0a|\\z)");
  case '[': {
    pe_charset s = {0};
    pe_status rc = pe_regex_bracket(p, *f, &s);
    if (!rc) return put_set(p, &s);
    pe_charset_free(&s);
    return rc;
  }
  case '*':
  case '+':
  case '?': return pe_regex_refuse(p, p->at, "nothing to repeat");
  default: {
    if (at_quantifier(p)) return pe_regex_refuse(p, p->at, "nothing to repeat");
    const char *from = p->at;
    int32_t cp = pe_regex_next_char(p);
    return cp < 0 ? pe_regex_refuse(p, from, "broken UTF-8") : literal(p, *f, cp);
  }
  }
}

/* ---- repetition ---------------------------------------------------------------------------- */

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
      return pe_regex_refuse(p, from, "repeated more than 65535 times");
  }
  p->at++;
  if (comma && upper && high < low)
    return pe_regex_refuse(p, from, "the upper bound is below the lower one");
  if (!comma) return pe_buf_printf(&p->out->code, p->err, "{%d}", (int)low);
  if (!upper) return pe_buf_printf(&p->out->code, p->err, "{%d,}", (int)low);
  return pe_buf_printf(&p->out->code, p->err, "{%d,%d}", (int)low, (int)high);
}

/* All quantifiers after an atom. A `?` after one makes it lazy, a `+` possessive. But in this
 * syntax an interval has no possessive form, and {n}? is an optional {n}: the quantifier that
 * follows repeats the repetition. */
static pe_status quantifiers(parser *p, size_t start) {
  pe_status rc = PE_OK;
  for (int nth = 0; !rc && at_quantifier(p); nth++) {
    if (nth >= PE_REGEX_MAX_DEPTH)
      return pe_regex_refuse(p, p->at, "too many repetitions of repetitions");
    if (nth && (rc = wrap(p, start))) return rc;
    if (*p->at == '{') {
      const char *from = p->at;
      if ((rc = interval(p))) return rc;
      bool fixed = !memchr(from, ',', (size_t)(p->at - from));
      if (!fixed && pe_regex_accept(p, "?")) rc = put(p, "?");
      continue;
    }
    if ((rc = pe_buf_byte(&p->out->code, *p->at++, p->err))) return rc;
    if (pe_regex_accept(p, "?"))
      rc = put(p, "?");
    else if (pe_regex_accept(p, "+"))
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
    if (pe_regex_accept(p, "|")) {
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
    return pe_fail(err, PE_ELIMIT, "pattern of %zu bytes is too long, the limit is %d", pattern.len,
                   LONGEST);
  if (!pattern.len) return PE_OK;
  parser p = {pattern.at, pattern.at, pattern.at + pattern.len, 0, out, err};
  flags f = {0};
  pe_status rc = alternatives(&p, &f);
  if (!rc && p.at < p.end)
    rc = pe_regex_refuse(&p, p.at, "a closing parenthesis without an opening one");
  return rc;
}

void pe_regex_parse_free(pe_regex_parsed *p) {
  for (size_t i = 0; i < p->sets; i++) pe_charset_free(&p->set[i]);
  pe_free(p->set);
  pe_buf_free(&p->code);
  *p = (pe_regex_parsed){0};
}
