/* Regular expressions as people write them: what they match, where they may begin and end, how
 * their characters are spelled in JSON, and what is refused with which words. */
#include "check.h"
#include "runtime/grammar/pattern.h"

typedef enum want { WHOLE, PART, DEAD } want; /* a match; the beginning of one; neither */

static const pe_pattern_options whole = {0}, search = {.search = true}, json = {true, true, true};

static want verdict(const char *pattern, pe_pattern_options o, const char *text) {
  pe_rex *r = NULL;
  pe_error err;
  pe_term t = PE_TERM_NONE;
  CHECK_OK(pe_rex_open((pe_rex_limits){100000, 1000000}, &r, &err), err);
  CHECK_OK(pe_pattern_read(r, pe_str_c(pattern), o, &t, &err), err);
  pe_rex_freeze(r);
  if (!pe_rex_has_word(r, t)) t = PE_TERM_NONE;
  for (const char *p = text; *p; p++) t = pe_rex_next(r, t, (uint8_t)*p);
  const want out = t == PE_TERM_NONE ? DEAD : pe_rex_nullable(r, t) ? WHOLE : PART;
  CHECK_OK(pe_rex_status(r, &err), err);
  pe_rex_close(r);
  return out;
}

typedef struct known {
  const char *pattern, *text;
  want want;
} known;

static void compare(const known *list, size_t n, pe_pattern_options o) {
  for (size_t i = 0; i < n; i++) {
    const want got = verdict(list[i].pattern, o, list[i].text);
    if (got != list[i].want) printf("    '%s' of '%s'\n", list[i].text, list[i].pattern);
    CHECK_INT(got, list[i].want);
  }
}

#define COMPARE(list, o) compare(list, sizeof(list) / sizeof *(list), o)

static void texts(void) {
  static const known list[] = {{"a|bc", "a", WHOLE},
                               {"a|bc", "b", PART},
                               {"a|bc", "ab", DEAD},
                               {"(ab)+?c", "ababc", WHOLE},
                               {"a{2,3}", "a", PART},
                               {"a{2,3}", "aaaa", DEAD},
                               {"a{2,}", "aaaaa", WHOLE},
                               {"a{2}{", "aa{", WHOLE},
                               {"x{a}", "x{a}", WHOLE},
                               {"x{,2}y", "y", WHOLE},
                               {"x{,2}", "xxx", DEAD},
                               {"x{,}", "xxx", WHOLE},
                               {"x{}", "x{}", WHOLE},
                               {"x{,a", "x{,a", WHOLE},
                               {"[]a]+", "]a]", WHOLE},
                               {"[^]a]", "]", DEAD},
                               {"[a\\-z]", "-", WHOLE},
                               {"[a\\-z]", "b", DEAD},
                               {"[-a]", "-", WHOLE},
                               {"[a-]", "-", WHOLE},
                               {"[\\d.]+", "1.5", WHOLE},
                               {"\\w", "\xc3\xa9", DEAD},
                               {"\\W", "\xc3\xa9", WHOLE},
                               {"\\s", "\xe3\x80\x80", DEAD},
                               {"\\S", "\xe3\x80\x80", WHOLE},
                               {"\\s+", "\t\n\v\f\r ", WHOLE},
                               {"(?i)s", "S", WHOLE},
                               {"(?i)s", "\xc5\xbf", DEAD},
                               {"(?i)\xc5\xbf", "\xc5\xbf", WHOLE},
                               {"(?i)[j-l]", "\xe2\x84\xaa", DEAD},
                               {"(?i)\xc3\xa9", "\xc3\x89", WHOLE},
                               {"\\x41\\u0042", "AB", WHOLE},
                               {"\\u{1F600}", "\xf0\x9f\x98\x80", WHOLE},
                               {"\\ud83d\\ude00", "\xf0\x9f\x98\x80", WHOLE},
                               {"\\p{Lu}\\P{Lu}", "Aa", WHOLE},
                               {"\\p{Script=Greek}", "\xce\xb1", WHOLE},
                               {".", "\n", DEAD},
                               {"(?s).", "\n", WHOLE},
                               {"(?s:.).", "\n\n", DEAD},
                               {"(?i)straw", "STRAW", WHOLE},
                               {"(?i:a)b", "AB", DEAD},
                               {"(?i)[a-c]", "B", WHOLE},
                               {"(?<y>a)(?P<z>b)", "ab", WHOLE},
                               {"\\.\\/\\$", "./$", WHOLE},
                               {"\\cA", "\x01", WHOLE},
                               {"", "", WHOLE},
                               {"(|a)b", "b", WHOLE},
                               {"(a*)*", "aaa", WHOLE}};
  COMPARE(list, whole);
  static const known ecma[] = {{"x{,2}", "x{,2}", WHOLE}, {"x{,2}", "xx", DEAD}};
  COMPARE(ecma, (pe_pattern_options){.ecma = true});
}

static void anchors(void) {
  static const known ends[] = {{"^ab$", "ab", WHOLE},   {"(^a|b)c$", "bc", WHOLE},
                               {"a$b", "a", DEAD},      {"a^b", "ab", DEAD},
                               {"(^|a)b", "ab", WHOLE}, {"(^|a)b", "b", WHOLE},
                               {"a($|b)", "a", WHOLE},  {"\\Aab\\Z", "ab", WHOLE},
                               {"a\\Ab", "ab", DEAD},   {"a(\\Z|b)", "a", WHOLE}};
  COMPARE(ends, whole);
  static const known inside[] = {
      {"b", "abc", WHOLE},           {"b", "ac", PART},          {"^b", "ab", DEAD},
      {"^b", "bc", WHOLE},           {"b$", "bc", PART},         {"b$", "bcb", WHOLE},
      {"(^a|b)c$", "xbc", WHOLE},    {"(^a|b)c$", "xac", PART},  {"^a|b$", "ax", WHOLE},
      {"^a|b$", "xb", WHOLE},        {"^$", "", WHOLE},          {"^$", "a", DEAD},
      {"(^|,)x(,|$)", "a,x", WHOLE}, {"(^|,)x(,|$)", "ax", PART}};
  COMPARE(inside, search);
}

static void look_ahead(void) {
  static const known list[] = {{"(?=.*\\d)[a-z\\d]{3}", "a1b", WHOLE},
                               {"(?=.*\\d)[a-z\\d]{3}", "abc", DEAD},
                               {"(?=.*\\d)[a-z\\d]{3}", "ab", PART},
                               {"(?!no$)[a-z]+", "no", PART},
                               {"(?!no$)[a-z]+", "now", WHOLE},
                               {"(?!no)[a-z]+", "no", DEAD},
                               {"a(?=b)c", "a", DEAD}};
  COMPARE(list, whole);
  static const known inside[] = {{"^(?!.*x)", "ab", WHOLE}, {"^(?!.*x)", "abx", DEAD}};
  COMPARE(inside, search);
}

static void spelled_in_json(void) {
  static const known list[] = {{"^\\s$", "\xe3\x80\x80", WHOLE},
                               {"^\\S$", "\xe3\x80\x80", DEAD},
                               {"^\"$", "\\\"", WHOLE},
                               {"^\"$", "\"", DEAD},
                               {"^\\\\$", "\\\\", WHOLE},
                               {"^\\n$", "\\n", WHOLE},
                               {"^\\n$", "\n", DEAD},
                               {"^\\x1f$", "\\u001f", WHOLE},
                               {"^\\x1f$", "\\u001F", WHOLE},
                               {"^\\x1f$", "\\u001", PART},
                               {"^.$", "\\n", DEAD},
                               {"^.$", "\\t", WHOLE},
                               {"^.{2}$", "\\t\\t", WHOLE},
                               {"^[^a]$", "\\\"", WHOLE},
                               {"^[^a]$", "\\u0061", DEAD},
                               {"^\\/$", "/", WHOLE},
                               {"b", "\\\\b", WHOLE}};
  COMPARE(list, json);
}

static void refusals(void) {
  static const struct {
    const char *pattern;
    pe_status code;
    const char *why;
  } list[] = {{"a(", PE_EFORMAT, "pattern: byte 1, '(': the group is not closed"},
              {"a)", PE_EFORMAT, "pattern: byte 1, ')': nothing is open that this could close"},
              {"(?", PE_EFORMAT, "the group is not closed"},
              {"(?<>a)", PE_EFORMAT, "name is not closed"},
              {"*a", PE_EFORMAT, "'*a': a quantifier has nothing to repeat"},
              {"a**", PE_EFORMAT, "byte 2, '*': a quantifier has nothing to repeat"},
              {"a{2,1}", PE_EFORMAT, "the upper bound is below the lower one"},
              {"[a", PE_EFORMAT, "the bracket is not closed"},
              {"[b-a]", PE_EFORMAT, "the range is out of order"},
              {"[\\d-a]", PE_EFORMAT, "a range needs a character at both ends"},
              {"\\", PE_EFORMAT, "it ends with a backslash"},
              {"\\u12", PE_EFORMAT, "four hexadecimal digits"},
              {"\\u{110000}", PE_EFORMAT, "not a code point"},
              {"\\xg0", PE_EFORMAT, "two hexadecimal digits"},
              {"\\y", PE_EFORMAT, "there is no such escape"},
              {"\xff", PE_EFORMAT, "pattern: byte 0 of 1 is not UTF-8"},
              {"(a)\\1", PE_EUNSUPPORTED, "back references are not regular"},
              {"\\ba", PE_EUNSUPPORTED, "this escape is not supported"},
              {"(?<=a)b", PE_EUNSUPPORTED, "this group is not supported"},
              {"(?>a)b", PE_EUNSUPPORTED, "this group is not supported"},
              {"((?=a)a)", PE_EUNSUPPORTED, "look-ahead in a group is not supported"},
              {"a(?=^b)", PE_EUNSUPPORTED, "^ in look-ahead is not supported"},
              {"a++", PE_EUNSUPPORTED, "possessive quantifiers are not supported"},
              {"(^a)*", PE_EUNSUPPORTED, "an anchor cannot be repeated"},
              {"\\p{Nonsense}", PE_EUNSUPPORTED, "a property with this name is not known"},
              {"a{2147483648}", PE_ELIMIT, "the count exceeds 2147483647"}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    pe_rex *r = NULL;
    pe_error err;
    pe_term t;
    CHECK_OK(pe_rex_open((pe_rex_limits){100000, 1000000}, &r, &err), err);
    CHECK_FAILS(pe_pattern_read(r, pe_str_c(list[i].pattern), whole, &t, &err), list[i].code, err,
                list[i].why);
    pe_rex_close(r);
  }
}

static void limits(void) {
  static char text[PE_PATTERN_BYTES + 2];
  pe_rex *r = NULL;
  pe_error err;
  pe_term t;
  CHECK_OK(pe_rex_open((pe_rex_limits){1 << 20, 1 << 20}, &r, &err), err);
  memset(text, '(', 300);
  CHECK_FAILS(pe_pattern_read(r, pe_str_c(text), whole, &t, &err), PE_ELIMIT, err, "200 deep");
  memset(text, 'a', PE_PATTERN_BYTES + 1);
  CHECK_FAILS(pe_pattern_read(r, pe_str_c(text), whole, &t, &err), PE_ELIMIT, err,
              "65537 bytes, the limit is 65536");
  text[PE_PATTERN_BYTES] = 0;
  CHECK_OK(pe_pattern_read(r, pe_str_c(text), whole, &t, &err), err);
  pe_rex_close(r);
  /* classes with thousands of characters in few bytes */
  static const char *const classes[] = {"\\p{L}", "(?i:[\\p{L}\\p{N}])", "(?i:\xce\xb1)"};
  for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
    const size_t n = strlen(classes[i]);
    CHECK_OK(pe_rex_open((pe_rex_limits){1 << 20, 1 << 20}, &r, &err), err);
    for (size_t at = 0; at + n < sizeof text; at += n) strcpy(text + at, classes[i]);
    CHECK_OK(pe_pattern_read(r, pe_str_of(text, 10 * n), whole, &t, &err), err);
    CHECK_FAILS(pe_pattern_read(r, pe_str_c(text), whole, &t, &err), PE_ELIMIT, err,
                "more than 500000 units of work");
    pe_rex_close(r);
  }
}

static void memory(void) {
  const int64_t live = pe_alloc_live();
  for (int64_t n = 1;; n++) {
    pe_rex *r = NULL;
    pe_term t;
    pe_alloc_fail_at(n);
    pe_status rc = pe_rex_open((pe_rex_limits){100000, 1000000}, &r, NULL);
    if (!rc) rc = pe_pattern_read(r, pe_str_c("^(\\p{Lu}+|[a-z]{2,9})(?i)x$"), json, &t, NULL);
    const bool failed = pe_alloc_count() >= n;
    pe_alloc_fail_at(0);
    CHECK_INT(rc, failed ? PE_ENOMEM : PE_OK);
    pe_rex_close(r);
    CHECK_INT(pe_alloc_live(), live);
    if (!failed) break;
  }
}

static const check_test tests[] = {
    {"whole texts", texts},     {"anchors", anchors},
    {"look-ahead", look_ahead}, {"JSON's spelling", spelled_in_json},
    {"refusals", refusals},     {"limits", limits},
    {"failing memory", memory},
};

CHECK_MAIN("test_pattern", tests)
