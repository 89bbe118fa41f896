/* pattern.c - see pattern.h: alternatives, sequences, groups, quantifiers and anchors. */
#include "runtime/grammar/pattern.h"

#include <string.h>

#include "runtime/grammar/pattern_parts.h"
#include "runtime/utf8.h"

enum { MOST_DEEP = 200 }; /* groups in groups: bounds the recursion */

static pe_status read_alternatives(pe_pattern_reader *p, pe_pattern_part *out);

pe_status pe_pattern_refuse(pe_pattern_reader *p, pe_status code, const char *from,
                            const char *why) {
  const pe_str rest = pe_str_of(from, (size_t)(p->end - from));
  return pe_fail(p->err, code, "pattern: byte %zu, '%.*s': %s", (size_t)(from - p->start),
                 pe_str_clip(rest), rest.at, why);
}

/* ---- parts ----------------------------------------------------------------------------------- */

static const pe_pattern_part nothing = {{PE_TERM_NONE}, false}; /* `none` is 0 */

static pe_pattern_part anywhere(pe_term t) {
  pe_pattern_part out = nothing;
  out.at[0] = t;
  return out;
}

static void add(pe_rex *r, pe_term *to, pe_term t) {
  const pe_term both[2] = {*to, t};
  if (t != PE_TERM_NONE) *to = *to == PE_TERM_NONE ? t : pe_rex_or(r, both, 2);
}

/* x, then y. What comes before a beginning and after an end is empty. */
static pe_pattern_part sequence(pe_rex *r, const pe_pattern_part *x, const pe_pattern_part *y) {
  pe_pattern_part out = nothing;
  for (int i = 0; i < PE_PLACES; i++)
    for (int j = 0; j < PE_PLACES; j++) {
      const pe_term a = x->at[i], b = y->at[j];
      if (a == PE_TERM_NONE || b == PE_TERM_NONE) continue;
      const bool x_ends = i & PE_AT_END, y_begins = j & PE_AT_BEGIN;
      if ((x_ends && !pe_rex_nullable(r, b)) || (y_begins && !pe_rex_nullable(r, a))) continue;
      const pe_term t = x_ends     ? (y_begins ? PE_TERM_EMPTY : a)
                        : y_begins ? b
                                   : pe_rex_cat(r, a, b);
      add(r, &out.at[i | j], t);
    }
  return out;
}

static bool is_anchored(const pe_pattern_part *x) {
  return x->at[1] != PE_TERM_NONE || x->at[2] != PE_TERM_NONE || x->at[3] != PE_TERM_NONE;
}

/* ---- quantifiers ----------------------------------------------------------------------------- */

/* A number; false: there is none. Larger ones than 2^31 - 1 are cut to 2^31. */
static bool read_count(const char **at, const char *end, uint32_t *out) {
  const char *from = *at;
  uint64_t v = 0;
  for (; *at < end && **at >= '0' && **at <= '9'; (*at)++)
    if ((v = v * 10 + (uint64_t)(**at - '0')) > 1u << 31) v = 1u << 31;
  *out = (uint32_t)v;
  return *at > from;
}

/* {m}, {m,} or {m,n}, and in Python {,n} and {,}; false, and p->at stays: braces that are
 * characters. */
static bool read_braces(pe_pattern_reader *p, uint32_t *least, uint32_t *most) {
  const char *q = p->at + 1;
  const bool counts = read_count(&q, p->end, least);
  if (!counts && (p->options.ecma || q == p->end || *q != ',')) return false;
  *most = *least;
  if (q < p->end && *q == ',') {
    q++;
    if (!read_count(&q, p->end, most)) *most = PE_REX_FOREVER;
  }
  if (q == p->end || *q != '}') return false;
  p->at = q + 1;
  return true;
}

/* Whether a quantifier stands at p->at, which moves over it. */
static bool read_times(pe_pattern_reader *p, uint32_t *least, uint32_t *most) {
  if (p->at == p->end) return false;
  const char c = *p->at;
  if (c == '{') return read_braces(p, least, most);
  if (c != '*' && c != '+' && c != '?') return false;
  *least = c == '+', *most = c == '?' ? 1 : PE_REX_FOREVER;
  p->at++;
  return true;
}

static pe_status quantify(pe_pattern_reader *p, pe_pattern_part *x) {
  const char *from = p->at;
  uint32_t least, most;
  if (!read_times(p, &least, &most)) return PE_OK;
  if (most < least)
    return pe_pattern_refuse(p, PE_EFORMAT, from, "the upper bound is below the lower one");
  if (least >= 1u << 31 || (most >= 1u << 31 && most != PE_REX_FOREVER))
    return pe_pattern_refuse(p, PE_ELIMIT, from, "the count exceeds 2147483647");
  if (p->at < p->end && *p->at == '+')
    return pe_pattern_refuse(p, PE_EUNSUPPORTED, from, "possessive quantifiers are not supported");
  if (p->at < p->end && *p->at == '?') p->at++; /* lazy: the same set of words */
  const char *again = p->at;
  if (read_times(p, &(uint32_t){0}, &(uint32_t){0}))
    return pe_pattern_refuse(p, PE_EFORMAT, again, "a quantifier has nothing to repeat");
  if (least == 0 && most == 1) {
    add(p->r, &x->at[0], PE_TERM_EMPTY);
    return PE_OK;
  }
  if (is_anchored(x))
    return pe_pattern_refuse(p, PE_EUNSUPPORTED, from, "an anchor cannot be repeated");
  x->at[0] = pe_rex_repeat(p->r, x->at[0], least, most);
  return PE_OK;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* (?i), (?s:, (?-i: ...; p->at is after the question mark. */
static pe_status read_flags(pe_pattern_reader *p, const char *from) {
  bool on = true;
  for (; p->at < p->end && *p->at != ')' && *p->at != ':'; p->at++) {
    switch (*p->at) {
    case '-': on = false; break;
    case 'i': p->ignore_case = on; break;
    case 's': p->dot_all = on; break;
    case 'u': break; /* Unicode is always on */
    default: return pe_pattern_refuse(p, PE_EUNSUPPORTED, from, "this group is not supported");
    }
  }
  return p->at < p->end ? PE_OK : pe_pattern_refuse(p, PE_EFORMAT, from, "the group is not closed");
}

/* What stands between "(" and the alternatives; *open is false for (?i), which has none. */
static pe_status read_head(pe_pattern_reader *p, const char *from, bool *open) {
  *open = true;
  if (p->at == p->end || *p->at != '?') return PE_OK;
  p->at++;
  const char *name = p->at < p->end && *p->at == 'P' ? p->at + 1 : p->at;
  if (p->end - name > 1 && *name == '<' && name[1] != '=' && name[1] != '!') {
    const char *close = memchr(name, '>', (size_t)(p->end - name));
    if (!close || close == name + 1)
      return pe_pattern_refuse(p, PE_EFORMAT, from, "the group's name is not closed");
    p->at = close + 1;
    return PE_OK;
  }
  if (p->at < p->end && *p->at == ':') return p->at++, PE_OK;
  pe_status rc = read_flags(p, from);
  if (rc) return rc;
  *open = *p->at == ':';
  if (*open) p->at++;
  return PE_OK;
}

static pe_status close_group(pe_pattern_reader *p, const char *from) {
  if (p->at == p->end) return pe_pattern_refuse(p, PE_EFORMAT, from, "the group is not closed");
  p->at++;
  return PE_OK;
}

/* ( ... ); p->at is at the parenthesis. Flags set inside end with it; those of (?i) stay. */
static pe_status read_group(pe_pattern_reader *p, pe_pattern_part *out) {
  const char *from = p->at++;
  const bool ignore_case = p->ignore_case, dot_all = p->dot_all;
  bool open;
  pe_status rc = read_head(p, from, &open);
  if (rc) return rc;
  *out = anywhere(PE_TERM_EMPTY);
  if (!open) return close_group(p, from);
  if (++p->depth > MOST_DEEP)
    return pe_pattern_refuse(p, PE_ELIMIT, from, "groups are nested more than 200 deep");
  if ((rc = read_alternatives(p, out)) || (rc = close_group(p, from))) return rc;
  p->depth--;
  p->ignore_case = ignore_case, p->dot_all = dot_all;
  return PE_OK;
}

/* ---- sequences ------------------------------------------------------------------------------- */

static pe_status push(pe_pattern_reader *p, pe_pattern_part part) {
  pe_status rc = pe_grow(&p->part, &p->part_cap, p->parts + 1, sizeof part, p->err);
  if (rc) return rc;
  p->part[p->parts++] = part;
  return PE_OK;
}

/* ^ or $, and in Python \A or \Z; the place it stands for, and p->at moves over it. 0: none. */
static int read_anchor(pe_pattern_reader *p) {
  const char c = *p->at;
  if (c == '^' || c == '$') return p->at++, c == '^' ? PE_AT_BEGIN : PE_AT_END;
  if (c != '\\' || p->options.ecma || p->end - p->at < 2) return 0;
  const char letter = p->at[1];
  if (letter != 'A' && letter != 'Z') return 0;
  p->at += 2;
  return letter == 'A' ? PE_AT_BEGIN : PE_AT_END;
}

static pe_status read_item(pe_pattern_reader *p, pe_pattern_part *out) {
  if (*p->at == '(') return read_group(p, out);
  const int place = read_anchor(p);
  if (place) {
    *out = nothing;
    out->at[place] = PE_TERM_EMPTY;
    return PE_OK;
  }
  const char *from = p->at;
  if (read_times(p, &(uint32_t){0}, &(uint32_t){0}))
    return pe_pattern_refuse(p, PE_EFORMAT, from, "a quantifier has nothing to repeat");
  pe_charset s = {0};
  pe_status rc = pe_pattern_class(p, &s);
  *out = anywhere(rc ? PE_TERM_NONE : pe_pattern_chars(p->r, &s, p->options.json));
  pe_charset_free(&s);
  return rc;
}

static bool is_ahead(const pe_pattern_reader *p) {
  return p->end - p->at > 2 && p->at[0] == '(' && p->at[1] == '?' &&
         (p->at[2] == '=' || p->at[2] == '!');
}

/* Where a sequence reaches the end of the text, look-ahead is an intersection with the rest. */
static pe_status read_ahead(pe_pattern_reader *p, pe_pattern_part *out) {
  const char *from = p->at;
  const bool negate = p->at[2] == '!';
  pe_pattern_part inner;
  if (p->depth)
    return pe_pattern_refuse(p, PE_EUNSUPPORTED, from, "look-ahead in a group is not supported");
  p->at += 3, p->depth++;
  pe_status rc = read_alternatives(p, &inner);
  if (rc || (rc = close_group(p, from))) return rc;
  p->depth--;
  if (inner.at[PE_AT_BEGIN] != PE_TERM_NONE || inner.at[3] != PE_TERM_NONE)
    return pe_pattern_refuse(p, PE_EUNSUPPORTED, from, "^ in look-ahead is not supported");
  pe_term seen = pe_rex_cat(p->r, inner.at[0], PE_TERM_ALL);
  add(p->r, &seen, inner.at[PE_AT_END]);
  *out = anywhere(negate ? pe_rex_not(p->r, seen) : seen);
  out->ahead = true;
  return PE_OK;
}

/* The parts from `first` on, put together from the last one: x y leans to the right. */
static pe_pattern_part join(pe_pattern_reader *p, size_t first) {
  pe_pattern_part all = anywhere(p->depth == 0 && p->options.search ? p->text : PE_TERM_EMPTY);
  for (size_t i = p->parts; i-- > first;) {
    const pe_pattern_part *x = &p->part[i];
    if (!x->ahead) {
      all = sequence(p->r, x, &all);
      continue;
    }
    for (int k = 0; k < PE_PLACES; k++) {
      const pe_term both[2] = {x->at[0], all.at[k]};
      all.at[k] = pe_rex_and(p->r, both, 2);
    }
  }
  p->parts = first;
  return all;
}

static pe_status read_sequence(pe_pattern_reader *p, pe_pattern_part *out) {
  const size_t first = p->parts;
  while (p->at < p->end && *p->at != '|' && *p->at != ')') {
    pe_pattern_part part;
    const bool ahead = is_ahead(p);
    pe_status rc = ahead ? read_ahead(p, &part) : read_item(p, &part);
    if (!rc && !ahead) rc = quantify(p, &part);
    if (!rc) rc = push(p, part);
    if (rc) return rc;
  }
  *out = join(p, first);
  return PE_OK;
}

static pe_status read_alternatives(pe_pattern_reader *p, pe_pattern_part *out) {
  *out = nothing;
  for (;;) {
    pe_pattern_part one;
    pe_status rc = read_sequence(p, &one);
    if (rc) return rc;
    for (int i = 0; i < PE_PLACES; i++) add(p->r, &out->at[i], one.at[i]);
    if (p->at == p->end || *p->at != '|') return PE_OK;
    p->at++;
  }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static pe_status check(pe_str text, pe_error *err) {
  if (text.len > PE_PATTERN_BYTES)
    return pe_fail(err, PE_ELIMIT, "pattern: %zu bytes, the limit is %d", text.len,
                   PE_PATTERN_BYTES);
  const size_t valid = pe_utf8_valid(text.at, text.len);
  if (valid < text.len)
    return pe_fail(err, PE_EFORMAT, "pattern: byte %zu of %zu is not UTF-8", valid, text.len);
  return PE_OK;
}

static pe_status any_text(pe_pattern_reader *p) {
  pe_charset all = {0};
  pe_status rc = pe_charset_add(&all, 0, PE_CHARSET_TOP - 1, p->err);
  if (!rc)
    p->text = pe_rex_repeat(p->r, pe_pattern_chars(p->r, &all, p->options.json), 0, PE_REX_FOREVER);
  pe_charset_free(&all);
  return rc;
}

pe_status pe_pattern_read(pe_rex *r, pe_str text, pe_pattern_options o, pe_term *out,
                          pe_error *err) {
  pe_pattern_reader p = {
      .r = r, .start = text.at, .at = text.at, .end = text.at + text.len, .options = o, .err = err};
  pe_pattern_part all = nothing;
  pe_status rc = check(text, err);
  if (!rc) rc = any_text(&p);
  if (!rc) rc = read_alternatives(&p, &all);
  if (!rc && p.at < p.end)
    rc = pe_pattern_refuse(&p, PE_EFORMAT, p.at, "nothing is open that this could close");
  pe_free(p.part);
  if (rc) return rc;
  *out = PE_TERM_NONE;
  for (int i = 0; i < PE_PLACES; i++) {
    const bool inside = o.search && !(i & PE_AT_BEGIN);
    add(r, out, inside ? pe_rex_cat(r, p.text, all.at[i]) : all.at[i]);
  }
  return pe_rex_status(r, err);
}
