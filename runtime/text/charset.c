/* charset.c - see charset.h. */
#include "runtime/text/charset.h"
#include "runtime/text/unicode.h"

#include <string.h>

void pe_charset_free(pe_charset *s) {
  pe_free(s->at);
  *s = (pe_charset){0};
}

static pe_status push(pe_charset *s, int32_t at, pe_error *err) {
  if (s->n && s->at[s->n - 1] == at) { /* out and in again at one place cancel */
    s->n--;
    return PE_OK;
  }
  pe_status rc = pe_grow(&s->at, &s->cap, s->n + 1, sizeof *s->at, err);
  if (!rc) s->at[s->n++] = at;
  return rc;
}

/* Merges two sets: the result has the characters that at least `need` of the two have. */
static pe_status merge(pe_charset *s, const pe_charset *with, int need, pe_error *err) {
  pe_charset out = {0};
  size_t i = 0, j = 0;
  bool in = false;
  pe_status rc = PE_OK;
  while (!rc && (i < s->n || j < with->n)) {
    int32_t a = i < s->n ? s->at[i] : PE_CHARSET_TOP,
            b = j < with->n ? with->at[j] : PE_CHARSET_TOP;
    int32_t at = a < b ? a : b;
    if (i < s->n && a == at) i++;
    if (j < with->n && b == at) j++;
    bool now = (int)(i & 1) + (int)(j & 1) >= need;
    if (now != in) rc = push(&out, at, err);
    in = now;
  }
  pe_charset_free(rc ? &out : s);
  if (!rc) *s = out;
  return rc;
}

pe_status pe_charset_unite(pe_charset *s, const pe_charset *with, pe_error *err) {
  return merge(s, with, 1, err);
}

pe_status pe_charset_intersect(pe_charset *s, const pe_charset *with, pe_error *err) {
  return merge(s, with, 2, err);
}

pe_status pe_charset_add(pe_charset *s, int32_t from, int32_t to, pe_error *err) {
  if (s->n && s->at[s->n - 1] > from) {
    int32_t one[2] = {from, to + 1};
    pe_charset range = {one, 2, 2};
    return merge(s, &range, 1, err);
  }
  pe_status rc = push(s, from, err);
  return rc ? rc : push(s, to + 1, err);
}

pe_status pe_charset_negate(pe_charset *s, pe_error *err) {
  bool drop_first = s->n && s->at[0] == 0, drop_last = s->n && s->at[s->n - 1] == PE_CHARSET_TOP;
  if (drop_first)
    memmove(s->at, s->at + 1, --s->n * sizeof *s->at);
  else {
    pe_status rc = pe_grow(&s->at, &s->cap, s->n + 1, sizeof *s->at, err);
    if (rc) return rc;
    if (s->n) memmove(s->at + 1, s->at, s->n * sizeof *s->at);
    s->at[0] = 0, s->n++;
  }
  if (drop_last) {
    s->n--;
    return PE_OK;
  }
  return push(s, PE_CHARSET_TOP, err);
}

bool pe_charset_has(const pe_charset *s, int32_t cp) {
  size_t lo = 0, hi = s->n; /* lo becomes the number of changes at or before cp */
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (s->at[mid] <= cp)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo & 1;
}

bool pe_charset_same(const pe_charset *a, const pe_charset *b) {
  return a->n == b->n && (!a->n || !memcmp(a->at, b->at, a->n * sizeof *a->at));
}

/* Two passes over the folds: find the groups that the set touches, then add all their members. */
pe_status pe_charset_fold(pe_charset *s, pe_error *err) {
  size_t count;
  const pe_unicode_shift *f = pe_unicode_folds(&count);
  pe_charset least = {0}, more = {0};
  pe_status rc = PE_OK;
  for (int pass = 0; pass < 2; pass++)
    for (size_t i = 0; i < count; i++)
      for (int k = 0; k < f[i].count && !rc; k++) {
        int32_t cp = f[i].start + k * f[i].step, to = cp + f[i].delta;
        if (pass == 0 && (pe_charset_has(s, cp) || pe_charset_has(s, to)) &&
            !pe_charset_has(&least, to))
          rc = pe_charset_add(&least, to, to, err);
        if (pass == 1 && pe_charset_has(&least, to)) rc = pe_charset_add(&more, cp, cp, err);
      }
  if (!rc) rc = pe_charset_unite(s, &least, err);
  if (!rc) rc = pe_charset_unite(s, &more, err);
  pe_charset_free(&least);
  pe_charset_free(&more);
  return rc;
}

/* ---- properties ---------------------------------------------------------------------------- */

#define CAT(c) (1u << (c))
enum {
  L_ = CAT(PE_LU) | CAT(PE_LL) | CAT(PE_LT) | CAT(PE_LM) | CAT(PE_LO),
  M_ = CAT(PE_MN) | CAT(PE_MC) | CAT(PE_ME),
  N_ = CAT(PE_ND) | CAT(PE_NL) | CAT(PE_NO),
  P_ = CAT(PE_PC) | CAT(PE_PD) | CAT(PE_PE) | CAT(PE_PF) | CAT(PE_PI) | CAT(PE_PO) | CAT(PE_PS),
  S_ = CAT(PE_SC) | CAT(PE_SK) | CAT(PE_SM) | CAT(PE_SO),
  Z_ = CAT(PE_ZL) | CAT(PE_ZP) | CAT(PE_ZS),
  C_ = CAT(PE_CC) | CAT(PE_CF) | CAT(PE_CN) | CAT(PE_CO) | CAT(PE_CS),
  ALL_ = L_ | M_ | N_ | P_ | S_ | Z_ | C_
};

/* A property: the characters of some categories, with some flag, or in one of a few ranges. */
typedef struct property {
  const char *name;
  uint32_t categories, flags;
  int32_t ranges[8]; /* from, to, from, to, ...; a `to` of 0 ends them */
} property;

static const property properties[] = {
    {"l", L_, 0, {0}},
    {"letter", L_, 0, {0}},
    {"m", M_, 0, {0}},
    {"mark", M_, 0, {0}},
    {"combiningmark", M_, 0, {0}},
    {"n", N_, 0, {0}},
    {"number", N_, 0, {0}},
    {"p", P_, 0, {0}},
    {"punctuation", P_, 0, {0}},
    {"punct", P_, 0, {0}},
    {"s", S_, 0, {0}},
    {"symbol", S_, 0, {0}},
    {"z", Z_, 0, {0}},
    {"separator", Z_, 0, {0}},
    {"c", C_, 0, {0}},
    {"other", C_, 0, {0}},
    {"lc", CAT(PE_LU) | CAT(PE_LL) | CAT(PE_LT), 0, {0}},
    {"casedletter", CAT(PE_LU) | CAT(PE_LL) | CAT(PE_LT), 0, {0}},
    {"any", ALL_, 0, {0}},
    {"assigned", ALL_ & ~CAT(PE_CN), 0, {0}},
    {"ascii", 0, 0, {0, 0x7f}},
    {"alphabetic", 0, PE_U_ALPHABETIC, {0}},
    {"alpha", 0, PE_U_ALPHABETIC, {0}},
    {"uppercase", 0, PE_U_UPPERCASE, {0}},
    {"upper", 0, PE_U_UPPERCASE, {0}},
    {"lowercase", 0, PE_U_LOWERCASE, {0}},
    {"lower", 0, PE_U_LOWERCASE, {0}},
    {"alnum", CAT(PE_ND), PE_U_ALPHABETIC, {0}},
    {"digit", CAT(PE_ND), 0, {0}},
    {"word", M_ | CAT(PE_ND) | CAT(PE_PC), PE_U_ALPHABETIC, {0}},
    {"space", Z_, 0, {9, 13, 0x85, 0x85}},
    {"whitespace", Z_, 0, {9, 13, 0x85, 0x85}},
    {"blank", CAT(PE_ZS), 0, {9, 9}},
    {"cntrl", CAT(PE_CC), 0, {0}},
    {"xdigit", 0, 0, {'0', '9', 'A', 'F', 'a', 'f'}},
    {"graph", ALL_ & ~(Z_ | CAT(PE_CC) | CAT(PE_CN) | CAT(PE_CS)), 0, {0}},
    {"print", (ALL_ & ~(Z_ | CAT(PE_CC) | CAT(PE_CN) | CAT(PE_CS))) | CAT(PE_ZS), 0, {0}},
    {"emoji", 0, PE_U_EMOJI, {0}},
    {"cn", CAT(PE_CN), 0, {0}},
    {"unassigned", CAT(PE_CN), 0, {0}},
    {"cc", CAT(PE_CC), 0, {0}},
    {"control", CAT(PE_CC), 0, {0}},
    {"cf", CAT(PE_CF), 0, {0}},
    {"format", CAT(PE_CF), 0, {0}},
    {"co", CAT(PE_CO), 0, {0}},
    {"privateuse", CAT(PE_CO), 0, {0}},
    {"cs", CAT(PE_CS), 0, {0xd800, 0xdfff}},
    {"surrogate", CAT(PE_CS), 0, {0xd800, 0xdfff}},
    {"ll", CAT(PE_LL), 0, {0}},
    {"lowercaseletter", CAT(PE_LL), 0, {0}},
    {"lm", CAT(PE_LM), 0, {0}},
    {"modifierletter", CAT(PE_LM), 0, {0}},
    {"lo", CAT(PE_LO), 0, {0}},
    {"otherletter", CAT(PE_LO), 0, {0}},
    {"lt", CAT(PE_LT), 0, {0}},
    {"titlecaseletter", CAT(PE_LT), 0, {0}},
    {"lu", CAT(PE_LU), 0, {0}},
    {"uppercaseletter", CAT(PE_LU), 0, {0}},
    {"mc", CAT(PE_MC), 0, {0}},
    {"spacingmark", CAT(PE_MC), 0, {0}},
    {"me", CAT(PE_ME), 0, {0}},
    {"enclosingmark", CAT(PE_ME), 0, {0}},
    {"mn", CAT(PE_MN), 0, {0}},
    {"nonspacingmark", CAT(PE_MN), 0, {0}},
    {"nd", CAT(PE_ND), 0, {0}},
    {"decimalnumber", CAT(PE_ND), 0, {0}},
    {"nl", CAT(PE_NL), 0, {0}},
    {"letternumber", CAT(PE_NL), 0, {0}},
    {"no", CAT(PE_NO), 0, {0}},
    {"othernumber", CAT(PE_NO), 0, {0}},
    {"pc", CAT(PE_PC), 0, {0}},
    {"connectorpunctuation", CAT(PE_PC), 0, {0}},
    {"pd", CAT(PE_PD), 0, {0}},
    {"dashpunctuation", CAT(PE_PD), 0, {0}},
    {"pe", CAT(PE_PE), 0, {0}},
    {"closepunctuation", CAT(PE_PE), 0, {0}},
    {"pf", CAT(PE_PF), 0, {0}},
    {"finalpunctuation", CAT(PE_PF), 0, {0}},
    {"pi", CAT(PE_PI), 0, {0}},
    {"initialpunctuation", CAT(PE_PI), 0, {0}},
    {"po", CAT(PE_PO), 0, {0}},
    {"otherpunctuation", CAT(PE_PO), 0, {0}},
    {"ps", CAT(PE_PS), 0, {0}},
    {"openpunctuation", CAT(PE_PS), 0, {0}},
    {"sc", CAT(PE_SC), 0, {0}},
    {"currencysymbol", CAT(PE_SC), 0, {0}},
    {"sk", CAT(PE_SK), 0, {0}},
    {"modifiersymbol", CAT(PE_SK), 0, {0}},
    {"sm", CAT(PE_SM), 0, {0}},
    {"mathsymbol", CAT(PE_SM), 0, {0}},
    {"so", CAT(PE_SO), 0, {0}},
    {"othersymbol", CAT(PE_SO), 0, {0}},
    {"zl", CAT(PE_ZL), 0, {0}},
    {"lineseparator", CAT(PE_ZL), 0, {0}},
    {"zp", CAT(PE_ZP), 0, {0}},
    {"paragraphseparator", CAT(PE_ZP), 0, {0}},
    {"zs", CAT(PE_ZS), 0, {0}},
    {"spaceseparator", CAT(PE_ZS), 0, {0}},
};

static pe_status add_property(pe_charset *s, const property *p, pe_error *err) {
  pe_charset own = {0};
  int32_t from, to;
  uint32_t w;
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && pe_unicode_run(i, &from, &to, &w); i++)
    if ((p->categories >> pe_unicode_category(w) & 1) || (w & p->flags))
      rc = pe_charset_add(&own, from, to, err);
  for (int i = 0; !rc && i < 8 && p->ranges[i + 1]; i += 2)
    rc = pe_charset_add(&own, p->ranges[i], p->ranges[i + 1], err);
  if (!rc) rc = pe_charset_unite(s, &own, err);
  pe_charset_free(&own);
  return rc;
}

static pe_status add_script(pe_charset *s, int script, pe_error *err) {
  pe_charset own = {0};
  int32_t from, to;
  int of;
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && pe_unicode_script_run(i, &from, &to, &of); i++)
    if (of == script) rc = pe_charset_add(&own, from, to, err);
  if (!rc) rc = pe_charset_unite(s, &own, err);
  pe_charset_free(&own);
  return rc;
}

pe_status pe_charset_property(pe_charset *s, pe_str name, pe_error *err) {
  char plain[40];
  size_t n = 0;
  for (size_t i = 0; i < name.len; i++) {
    char c = name.at[i];
    if (c == ' ' || c == '_' || c == '-') continue;
    if (c >= 'A' && c <= 'Z') c = (char)(c + 32);
    if (n + 1 == sizeof plain || c < 'a' || c > 'z') return PE_ENOTFOUND;
    plain[n++] = c;
  }
  plain[n] = 0;
  for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
    if (!strcmp(properties[i].name, plain)) return add_property(s, &properties[i], err);
  int script = n ? pe_unicode_script(plain) : 0;
  return script ? add_script(s, script, err) : PE_ENOTFOUND;
}

pe_status pe_charset_posix(pe_charset *s, pe_str name, pe_error *err) {
  static const char *const names[] = {"alnum", "alpha", "ascii", "blank", "cntrl",
                                      "digit", "graph", "lower", "print", "punct",
                                      "space", "upper", "word",  "xdigit"};
  static const property punct = {"punct", P_ | S_, 0, {0}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (pe_str_eq(name, names[i]))
      return pe_str_eq(name, "punct") ? add_property(s, &punct, err)
                                      : pe_charset_property(s, name, err);
  return PE_ENOTFOUND;
}
