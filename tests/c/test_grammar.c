/* Grammars as people write them: GBNF, Lark, patterns and choices; what is folded, what has no
 * text, and what is refused with which words. */
#include "check.h"
#include "runtime/grammar/matcher.h"

typedef pe_status reader(pe_str, pe_grammar **, pe_error *);

typedef enum want { DEAD, PART, WHOLE } want;

static want verdict(pe_grammar *g, const char *text) {
  pe_matcher *m = NULL;
  pe_error err;
  size_t taken = 0;
  CHECK_OK(pe_matcher_open(g, NULL, &m, &err), err);
  CHECK_OK(pe_matcher_feed(m, pe_str_c(text), &taken, &err), err);
  const want w = taken < strlen(text) ? DEAD : pe_matcher_complete(m) ? WHOLE : PART;
  pe_matcher_close(m);
  return w;
}

typedef struct known {
  const char *grammar, *text;
  want want;
} known;

static void compare(const known *list, size_t n, reader *read) {
  for (size_t i = 0; i < n; i++) {
    pe_grammar *g = NULL;
    pe_error err;
    CHECK_OK(read(pe_str_c(list[i].grammar), &g, &err), err);
    if (!g) continue;
    const want got = verdict(g, list[i].text);
    if (got != list[i].want)
      check_failures++, printf("    %s on '%s' is %d, not %d\n", list[i].grammar, list[i].text, got,
                               list[i].want);
    pe_grammar_release(g);
  }
}
#define COMPARE(list, read) compare(list, sizeof list / sizeof *list, read)

static void gbnf(void) {
  static const known list[] = {
      {"root ::= \"a\\n\\x41\\u00e9\\U0001F600\\\"\"", "a\nA\xc3\xa9\xf0\x9f\x98\x80\"", WHOLE},
      {"root ::= [a-c\\]x-]+", "b]x-", WHOLE},
      {"root ::= \"\\t\\r\\f\\.\\_\\[\\\\\"", "\t\r\f._[\\", WHOLE},
      {"root ::= [a-c]", "d", DEAD},
      {"root ::= [^a-c]", "\xe6\xbc\xa2", WHOLE},
      {"root ::= [^a-c]", "a", DEAD},
      {"root ::= .", "\n", WHOLE},
      {"root ::= a-b # comment\na-b ::= \"x\"\n  | \"y\" # more", "y", WHOLE},
      {"root ::= (\"a\" | \"b\" \"c\")+", "abca", WHOLE},
      {"root ::= \"a\"{2}", "aaa", DEAD},
      {"root ::= \"a\"{2,}", "aaaa", WHOLE},
      {"root ::= \"a\"{ , 2 }", "aa", WHOLE},
      {"root ::= \"a\"{ 1 , 2 }", "aa", WHOLE},
      {"root ::= \"a\"{ 2 }", "aa", WHOLE},
      {"root ::= x{2,3}\nx ::= \"(\" x? \")\"", "()(())", WHOLE},
      {"root ::= x{2,3}\nx ::= \"(\" x? \")\"", "()()()(", DEAD},
      {"root ::= x{2,3}\nx ::= \"(\" x? \")\"", "()", PART},
      {"root ::=", "", WHOLE},
      {"root ::= \"a\" | | \"b\"", "", WHOLE},
      {"root ::= root \"a\" | \"b\"", "baa", WHOLE},
      {"root::=\"a\"?\"b\"", "b", WHOLE},
  };
  COMPARE(list, pe_grammar_gbnf);
}

static void lark(void) {
  static const known list[] = {
      {"start: \"a\" B \"c\"i\nB: /[0-9]+/", "a12C", WHOLE},
      {"start: \"a\" B\nB: /b.b/s", "ab\nb", WHOLE},
      {"start: \"a\" B\nB: /b.b/", "ab\nb", DEAD},
      {"start: \"0\"..\"9\" \"\xce\xb1\" .. \"\xcf\x89\"", "5\xce\xb2", WHOLE},
      {"start: X~2 Y ~ 1..2\nX: \"x\"\nY: \"y\"", "xxyy", WHOLE},
      {"start: X~2 Y ~ 1..2\nX: \"x\"\nY: \"y\"", "xyy", DEAD},
      {"start: [\"a\"] (\"b\" | \"c\")* -> name\n", "bcb", WHOLE},
      {"?start: item // comment\n!item.2: \"x\" | item \",\" item", "x,x", WHOLE},
      {"!?start: \"a\" item\n?!item.-2: \"b\" C\nC.-1: \"c\"", "abc", WHOLE},
      {"start: A \"b\"\nA: \"x\" \"y\"\n%ignore /[ ]+/", " xy  b ", WHOLE},
      {"start: A \"b\"\nA: \"x\" \"y\"\n%ignore /[ ]+/", "x y", DEAD},
      {"start: \"a\"*\n%ignore \" \"\n%ignore WS\nWS: \"\\t\"", "a \t a", WHOLE},
      {"start: /a\\/b/", "a/b", WHOLE},
      {"start: \"k\"i", "\xe2\x84\xaa", DEAD},
      {"start: \"a\" LF\n%import common.LF", "a\n", WHOLE},
      {"%import common (INT, WS -> BLANK)\n%ignore BLANK\nstart: INT+", " 12 \t3\n", WHOLE},
      {"%import common.NUMBER -> N // as\nstart: N N", "1.5e3.5", WHOLE},
  };
  COMPARE(list, pe_grammar_lark);
}

/* Lark's own terminals: a text that is one, and one that is not. */
static void imports(void) {
  static const struct {
    const char *name, *is, *is_not;
  } list[] = {
      {"DIGIT", "7", "77"},
      {"HEXDIGIT", "f", "g"},
      {"INT", "007", "-7"},
      {"SIGNED_INT", "-7", "7."},
      {"DECIMAL", "7.", "7"},
      {"DECIMAL", ".7", "."},
      {"FLOAT", "7e-1", "7"},
      {"FLOAT", ".5E+10", "5E"},
      {"SIGNED_FLOAT", "+7.5", "+7"},
      {"NUMBER", "7", "-7"},
      {"SIGNED_NUMBER", "-7.5", "--7"},
      {"ESCAPED_STRING", "\"a\\\"b\\\\\"", "\"a\"b\""},
      {"LCASE_LETTER", "a", "A"},
      {"UCASE_LETTER", "A", "a"},
      {"LETTER", "Z", "_"},
      {"WORD", "Ab", "a1"},
      {"CNAME", "_a1", "1a"},
      {"WS_INLINE", " \t", "\n"},
      {"WS", " \t\f\r\n", ""},
      {"CR", "\r", "\n"},
      {"LF", "\n", "\r"},
      {"NEWLINE", "\r\n\n", "\r"},
      {"SH_COMMENT", "# a", "# a\n"},
      {"CPP_COMMENT", "// a", "/ a"},
      {"C_COMMENT", "/* a\n **/", "/* */ */"},
      {"SQL_COMMENT", "-- a", "- a"},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    char text[80];
    pe_grammar *g = NULL;
    pe_error err;
    snprintf(text, sizeof text, "%%import common.%s\nstart: %s", list[i].name, list[i].name);
    CHECK_OK(pe_grammar_lark(pe_str_c(text), &g, &err), err);
    if (verdict(g, list[i].is) != WHOLE || verdict(g, list[i].is_not) == WHOLE)
      printf("    %s\n", list[i].name);
    CHECK_INT(verdict(g, list[i].is), WHOLE);
    CHECK(verdict(g, list[i].is_not) != WHOLE);
    pe_grammar_release(g);
  }
}

static void patterns_and_choices(void) {
  static const known list[] = {{"(a|b)*c", "abac", WHOLE}, {"(a|b)*c", "abb", PART}};
  COMPARE(list, pe_grammar_regex);
  const pe_str words[] = {{"car", 3}, {"cat", 3}, {"", 0}, {"care", 4}, {"cat", 3}, {"d\0g", 3}};
  pe_grammar *g = NULL;
  CHECK(pe_grammar_choice(words, 6, &g, NULL) == PE_OK);
  CHECK_INT(verdict(g, ""), WHOLE);
  CHECK_INT(verdict(g, "car"), WHOLE);
  CHECK_INT(verdict(g, "care"), WHOLE);
  CHECK_INT(verdict(g, "ca"), PART);
  CHECK_INT(verdict(g, "cats"), DEAD);
  CHECK_INT(verdict(g, "d"), PART);
  pe_grammar_release(g);
  pe_error err;
  CHECK_FAILS(pe_grammar_choice(words, 0, &g, &err), PE_EUNSATISFIABLE, err, "no text fits");
}

static void folding(void) {
  static const struct {
    const char *text;
    uint32_t rules, lexemes;
  } list[] = {
      {"root ::= a \"x\" | b+\na ::= [0-9] | b\nb ::= \"b\"{2,7}", 1, 1}, /* all of it is regular */
      {"root ::= \"(\" a b root? \")\"\na ::= [0-9]\nb ::= \"b\"", 3,
       2}, /* root, its `?`, and one */
      {"root ::= \"x\" | root root\nunused ::= unused \"y\"", 2, 1},
      {"root ::= \"x\" | bad | root root\nbad ::= \"y\" bad", 2, 1},
      {"root ::= \"[\" a{64} \"]\"\na ::= [0-9] \",\"", 1, 1},
      {"root ::= \"[\" a{65} \"]\"\na ::= [0-9] \",\"", 4, 3}, /* long, and not of one term */
      {"root ::= \"[\" [0-9]{65} \"]\"", 1, 1},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    pe_grammar *g = NULL;
    pe_error err;
    CHECK_OK(pe_grammar_gbnf(pe_str_c(list[i].text), &g, &err), err);
    CHECK_INT(pe_grammar_rules(g), list[i].rules);
    CHECK_INT(pe_grammar_lexemes(g), list[i].lexemes);
    CHECK(!pe_grammar_worn(g));
    pe_grammar_release(g);
  }
}

static void refused_as(reader *read, const char *text, pe_status code, const char *part) {
  pe_grammar *g = NULL;
  pe_error err = {0};
  CHECK_FAILS(read(pe_str_c(text), &g, &err), code, err, part);
  pe_grammar_release(g);
}

static void refused(void) {
  static const struct {
    const char *text;
    pe_status code;
    const char *part;
  } in_gbnf[] = {
      {"a ::= \"x\"", PE_EFORMAT, "it has no rule 'root'"},
      {"root ::= nothing", PE_EFORMAT, "rule 'nothing' is used, but not defined"},
      {"root ::= \"a\" root", PE_EUNSATISFIABLE, "no text fits"},
      {"root ::= [b-a]", PE_EFORMAT, "a range that ends before it begins"},
      {"root ::= []", PE_EUNSATISFIABLE, "no text fits"},
      {"root ::= [a-", PE_EFORMAT, "line 1, '[a-': the class is not closed"},
      {"root ::= \"a", PE_EFORMAT, "the string is not closed"},
      {"root ::= \"a\\", PE_EFORMAT, "an escape of nothing"},
      {"root ::= \"\\x4\"", PE_EFORMAT, "an escape needs"},
      {"root ::= [\\d]+", PE_EFORMAT, "line 1, '\\d]+': no such escape"},
      {"root ::= [\\w-]", PE_EFORMAT, "no such escape"},
      {"root ::= [a-\\z]", PE_EFORMAT, "no such escape"},
      {"root ::= \"\\0\"", PE_EFORMAT, "no such escape: write \\\\ for a backslash, [0-9] for \\d"},
      {"root ::= \"\\ud800\"", PE_EFORMAT, "does not name a character"},
      {"root ::= \"a\"\n  | ( \"b\"", PE_EFORMAT, "line 2, '': a group is not closed"},
      {"root ::= \"a\" )", PE_EFORMAT, "nothing is open that this could close"},
      {"root ::= * \"a\"", PE_EFORMAT, "there is nothing to repeat"},
      {"root ::= \"a\"{3,2}", PE_EFORMAT, "the upper bound is below the lower one"},
      {"root ::= \"a\"{}", PE_EFORMAT, "a count must be"},
      {"root ::= \"a\"{9999999999}", PE_ELIMIT, "the count exceeds 2147483647"},
      {"root ::= <think>", PE_EUNSUPPORTED, "tokens are not supported"},
      {"root = \"a\"", PE_EFORMAT, "a rule must begin with NAME ::="},
      {"root ::= a\na ::= \"b\"\n\na ::= \"c\"", PE_EFORMAT,
       "line 4: rule 'a' is defined in line 2, too"},
      {"root ::= \"a\" ; x", PE_EFORMAT, "no symbol begins like this"},
      {"root ::= \xff", PE_EFORMAT, "byte 9 of 10 is not UTF-8"},
  };
  for (size_t i = 0; i < sizeof in_gbnf / sizeof *in_gbnf; i++)
    refused_as(pe_grammar_gbnf, in_gbnf[i].text, in_gbnf[i].code, in_gbnf[i].part);
  refused_as(pe_grammar_lark, "x: \"a\"", PE_EFORMAT, "it has no rule 'start'");
  refused_as(pe_grammar_lark, "start: \"a\"\n?start: \"b\"", PE_EFORMAT,
             "line 2: rule 'start' is defined in line 1, too");
  refused_as(pe_grammar_lark, "start: LF\nLF: \"x\"\n%import common.LF", PE_EFORMAT,
             "line 3: rule 'LF' is defined in line 2, too");
  refused_as(pe_grammar_lark, "start: \"a\" |\n  )", PE_EFORMAT, "line 2, ')': nothing is open");
  refused_as(pe_grammar_lark, "start: /a", PE_EFORMAT, "the pattern is not closed");
  refused_as(pe_grammar_lark, "start: /a\\", PE_EFORMAT, "the pattern is not closed");
  refused_as(pe_grammar_lark, "start: /a/x", PE_EUNSUPPORTED, "of the flags i, s and u");
  refused_as(pe_grammar_lark, "start: /(/", PE_EFORMAT, "the group is not closed");
  refused_as(pe_grammar_lark, "start: \"\\b\"", PE_EFORMAT, "no such escape");
  refused_as(pe_grammar_lark, "start: \"ab\"..\"c\"", PE_EFORMAT, "single characters");
  refused_as(pe_grammar_lark, "start: \"c\"..\"a\"", PE_EFORMAT, "ends before it begins");
  refused_as(pe_grammar_lark, "start: \"a\" ~", PE_EFORMAT, "~ n or ~ n..m");
  refused_as(pe_grammar_lark, "start: x{y}", PE_EUNSUPPORTED, "templates are not supported");
  refused_as(pe_grammar_lark, "%declare X\nstart: \"a\"", PE_EUNSUPPORTED, "%ignore and %import");
  refused_as(pe_grammar_lark, "%import x.WS\nstart: \"a\"", PE_EUNSUPPORTED, "common can be");
  refused_as(pe_grammar_lark, "%import common.X\nstart: \"a\"", PE_EUNSUPPORTED, "no terminal of");
  refused_as(pe_grammar_lark, "%import common.WS -> ws\n", PE_EFORMAT, "is written large");
  refused_as(pe_grammar_lark, "%import common.WS ->\n", PE_EFORMAT, "is written large");
  refused_as(pe_grammar_lark, "%import common WS\n", PE_EFORMAT, "an import is common.NAME");
  refused_as(pe_grammar_lark, "%import common (WS\n", PE_EFORMAT, "the list of names is not");
  refused_as(pe_grammar_lark, "start: [\"a\" )", PE_EFORMAT, "nothing is open");
}

static void limits(void) {
  pe_buf b = {0};
  pe_error err;
  pe_grammar *g = NULL;
  for (int i = 0; i < PE_GRAMMAR_TEXT; i++) CHECK(pe_buf_byte(&b, ' ', NULL) == PE_OK);
  CHECK(pe_buf_put(&b, "x", 1, NULL) == PE_OK);
  CHECK_FAILS(pe_grammar_gbnf(pe_buf_str(&b), &g, &err), PE_ELIMIT, err,
              "524289 bytes, the limit is 524288");
  memcpy(b.data, "root ::= ", 9);
  memset(b.data + 9, '(', 60000);
  b.len = 60009;
  CHECK_FAILS(pe_grammar_gbnf(pe_buf_str(&b), &g, &err), PE_ELIMIT, err,
              "needs 50001 rules or more, the limit is 50000");
  pe_buf_free(&b);
  pe_rules *r = NULL;
  pe_rule rule;
  CHECK(pe_rules_open((pe_rules_limits){2, 3, 100, 1000}, &r, NULL) == PE_OK);
  CHECK(pe_rules_declare(r, pe_str_c("a"), &rule, NULL) == PE_OK);
  const pe_symbol s[4] = {{.kind = PE_SYMBOL_TERM, .index = PE_TERM_EMPTY}};
  CHECK_FAILS(pe_rules_add(r, rule, s, 4, NULL, 0, &err), PE_ELIMIT, err,
              "needs 4 symbols or more, the limit is 3");
  CHECK_FAILS(pe_rules_add(r, 7, s, 1, NULL, 0, &err), PE_EARG, err, "rule 7 of 1");
  const pe_symbol strange[3] = {{.kind = PE_SYMBOL_TERM, .index = 99},
                                {.kind = PE_SYMBOL_RULE, .index = 1},
                                {.kind = PE_SYMBOL_TOKEN, .index = UINT32_MAX}};
  for (int i = 0; i < 3; i++)
    CHECK(pe_rules_add(r, rule, &strange[i], 1, NULL, 0, &err) == PE_EARG);
  CHECK(pe_rules_declare(r, pe_str_c("b"), &rule, NULL) == PE_OK);
  CHECK_FAILS(pe_rules_declare(r, pe_str_c("c"), &rule, &err), PE_ELIMIT, err,
              "needs 3 rules or more, the limit is 2");
  pe_rules_close(r);
}

static void failing_memory(void) {
  static reader *const read[] = {pe_grammar_lark, pe_grammar_gbnf, pe_grammar_regex};
  static const char *const text[] = {
      "start: (A | \"x\"i | \"a\"..\"c\")~2 [pair]\npair: \"(\" pair \")\"\nA: /a/\n%ignore A\n",
      "root ::= (\"a\" [^b-z] | .){2,3} next*\nnext ::= \"(\" next \")\" | \"\"\n", "(a|b){2,}c"};
  const int64_t live = pe_alloc_live();
  for (int i = 0; i < 3; i++)
    for (int64_t n = 1;; n++) {
      pe_grammar *g = NULL;
      pe_error err;
      pe_alloc_fail_at(n);
      pe_status rc = read[i](pe_str_c(text[i]), &g, &err);
      const bool failed = pe_alloc_count() >= n;
      pe_alloc_fail_at(0);
      CHECK(rc == (failed ? PE_ENOMEM : PE_OK));
      pe_grammar_release(g);
      CHECK_INT(pe_alloc_live(), live);
      if (!failed) break;
    }
}

static const check_test tests[] = {
    {"GBNF", gbnf},
    {"Lark", lark},
    {"imports", imports},
    {"patterns and choices", patterns_and_choices},
    {"regular rules are folded, others only if they have a text", folding},
    {"what is refused", refused},
    {"limits", limits},
    {"failing memory", failing_memory},
};

CHECK_MAIN("test_grammar", tests)
