/* Matchers: random grammars against languages as sets of short words, with and without folding;
 * parameters, recursion, trimming and forking, forced bytes, limits and failing memory. */
#include "check.h"
#include "languages.h"
#include "runtime/grammar/matcher.h"

static uint32_t state = 1;
static uint32_t below(uint32_t n) {
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return state % n;
}

static pe_rules *open_rules(void) {
  pe_rules *r = NULL;
  CHECK(pe_rules_open(pe_rules_usual(), &r, NULL) == PE_OK);
  return r;
}

static pe_symbol of_term(pe_term t) { return (pe_symbol){.kind = PE_SYMBOL_TERM, .index = t}; }
static pe_symbol of_rule(pe_rule r) { return (pe_symbol){.kind = PE_SYMBOL_RULE, .index = r}; }

static pe_rule declare(pe_rules *r, const char *name) {
  pe_rule rule = 0;
  CHECK(pe_rules_declare(r, pe_str_c(name), &rule, NULL) == PE_OK);
  return rule;
}

static void add(pe_rules *r, pe_rule rule, const pe_symbol *s, size_t n) {
  CHECK(pe_rules_add(r, rule, s, n, NULL, 0, NULL) == PE_OK);
}

static pe_symbol word(pe_rules *r, const char *text) {
  return of_term(pe_rex_word(pe_rules_rex(r), pe_str_c(text)));
}

static pe_matcher *matcher_of(pe_grammar *g) {
  pe_matcher *m = NULL;
  pe_error err;
  CHECK_OK(pe_matcher_open(g, NULL, &m, &err), err);
  return m;
}

static size_t feed(pe_matcher *m, const char *text) {
  size_t taken = 0;
  pe_error err;
  CHECK_OK(pe_matcher_feed(m, pe_str_c(text), &taken, &err), err);
  return taken;
}

/* What a grammar says of a text: "whole", "part", or the number of bytes that can be taken. */
static const char *verdict(pe_grammar *g, const char *text) {
  static char out[32];
  pe_matcher *m = matcher_of(g);
  const size_t taken = feed(m, text);
  snprintf(out, sizeof out, "%zu", taken);
  const bool complete = pe_matcher_complete(m);
  pe_matcher_close(m);
  return taken < strlen(text) ? out : complete ? "whole" : "part";
}

/* ---- languages as sets ----------------------------------------------------------------------- */

enum { RULES = 5 };

typedef struct part { /* of an alternative: a word, or a rule, least to most times */
  bool is_rule;
  uint32_t index, least, most;
  uint64_t words;
} part;

typedef struct plan {
  struct {
    part part[3];
    uint32_t parts;
  } alt[RULES][3];
  uint32_t alts[RULES];
} plan;

static void random_plan(plan *p) {
  for (int r = 0; r < RULES; r++) {
    p->alts[r] = 1 + below(3);
    for (uint32_t a = 0; a < p->alts[r]; a++) {
      p->alt[r][a].parts = below(4);
      for (uint32_t i = 0; i < p->alt[r][a].parts; i++) {
        part *x = &p->alt[r][a].part[i];
        *x = (part){.is_rule = below(2), .index = below(RULES), .least = 1, .most = 1};
        if (below(3) == 0) {
          x->least = below(3);
          x->most = below(2) ? PE_REX_FOREVER : x->least + below(3);
        }
      }
    }
  }
}

static const char *const letters[RULES] = {"a", "b", "ab", "", "ba"};

static uint64_t words_of(const char *text) {
  int w = 1;
  for (; *text; text++) w = w << 1 | (*text == 'b');
  return UINT64_C(1) << w;
}

/* What a rule means, as far as five letters show: its words, their beginnings, and whether it has
 * any word, however long. */
typedef struct meaning {
  uint64_t words, begins;
  bool has;
} meaning;

static meaning of_part(const part *x, const meaning *rule) {
  meaning one = {.has = true};
  if (x->is_rule) {
    one = rule[x->index];
  } else {
    one.words = words_of(letters[x->index]);
    for (int w = __builtin_ctzll(one.words); w > 0; w >>= 1) one.begins |= UINT64_C(1) << w;
  }
  meaning all = {repeated(one.words, x->least, x->most), 0, one.has || x->least == 0};
  if (all.has) all.begins = 2;
  for (uint32_t k = 0; one.has && k < x->most && k <= LONGEST + 2; k++)
    all.begins |= joined(repeated(one.words, k, k), one.begins);
  return all;
}

static meaning of_alt(const plan *p, int r, uint32_t a, const meaning *rule) {
  meaning all = {2, 2, true};
  for (uint32_t i = 0; i < p->alt[r][a].parts; i++) {
    const meaning x = of_part(&p->alt[r][a].part[i], rule);
    all.begins |= joined(all.words, x.begins);
    all.words = joined(all.words, x.words);
    all.has &= x.has;
  }
  return all.has ? all : (meaning){0};
}

/* A fixed point; beginnings count only where the whole has a word, so that is found first. */
static void meanings(const plan *p, meaning *rule) {
  bool more = true;
  memset(rule, 0, RULES * sizeof *rule);
  while (more) {
    more = false;
    for (int r = 0; r < RULES; r++)
      for (uint32_t a = 0; a < p->alts[r]; a++) {
        const meaning x = of_alt(p, r, a, rule), old = rule[r];
        rule[r] = (meaning){old.words | x.words, old.begins | x.begins, old.has || x.has};
        more |= memcmp(&old, &rule[r], sizeof old) != 0;
      }
  }
}

static pe_status compile_plan(const plan *p, bool keep, pe_grammar **g, pe_error *err) {
  pe_rules *r = open_rules();
  pe_rule rule[RULES];
  for (int i = 0; i < RULES; i++) rule[i] = declare(r, "rule");
  for (int i = 0; i < RULES; i++)
    for (uint32_t a = 0; a < p->alts[i]; a++) {
      pe_symbol s[3];
      for (uint32_t k = 0; k < p->alt[i][a].parts; k++) {
        const part *x = &p->alt[i][a].part[k];
        s[k] = x->is_rule ? of_rule(rule[x->index]) : word(r, letters[x->index]);
        if (x->least != 1 || x->most != 1) {
          pe_rule many = 0;
          CHECK(pe_rules_repeat(r, s[k], x->least, x->most, &many, NULL) == PE_OK);
          s[k] = of_rule(many);
        }
      }
      add(r, rule[i], s, p->alt[i][a].parts);
    }
  return pe_grammar_compile(r, rule[0], (pe_grammar_options){keep}, g, err);
}

/* Words that are taken wrongly, and those that end wrongly. */
static void compare(pe_grammar *g, meaning want, int *taken, int *ended) {
  pe_matcher *m = matcher_of(g);
  for (int w = 1; w < WORDS; w++) {
    char text[LONGEST + 1] = "";
    const int length = length_of(w);
    for (int i = 0; i < length; i++) text[i] = w >> (length - 1 - i) & 1 ? 'b' : 'a';
    const bool takes = feed(m, text) == (size_t)length;
    if ((takes && pe_matcher_complete(m)) != (bool)(want.words >> w & 1)) ++*ended;
    if (takes != (bool)(want.begins >> w & 1)) ++*taken;
    pe_matcher_trim(m, 0);
  }
  pe_matcher_close(m);
}

static void random_grammars(void) {
  int taken = 0, ended = 0, none = 0, some = 0;
  for (int round = 0; round < 2000; round++) {
    plan p;
    meaning rule[RULES];
    random_plan(&p);
    meanings(&p, rule);
    for (int keep = 0; keep < 2; keep++) {
      pe_grammar *g = NULL;
      pe_error err;
      pe_status rc = compile_plan(&p, keep, &g, &err);
      if (rc == PE_EUNSATISFIABLE) {
        none++;
        CHECK(!rule[0].has);
        continue;
      }
      CHECK_OK(rc, err);
      some++;
      compare(g, rule[0], &taken, &ended);
      pe_grammar_release(g);
    }
  }
  CHECK_INT(taken, 0);
  CHECK_INT(ended, 0);
  CHECK(none > 20 && some > 1000);
}

/* ---- recursion ------------------------------------------------------------------------------- */

static pe_grammar *gbnf(const char *text) {
  pe_grammar *g = NULL;
  pe_error err;
  CHECK_OK(pe_grammar_gbnf(pe_str_c(text), &g, &err), err);
  return g;
}

static void long_texts(void) {
  static const char *const same[] = {"root ::= \"a\" root | \"\"\n", "root ::= root \"a\" | \"\"\n",
                                     "root ::= \"a\" next | \"\"\nnext ::= root\n"};
  enum { LONG = 20000 };
  char *text = pe_calloc(LONG + 1, 1);
  memset(text, 'a', LONG);
  for (int i = 0; i < 3; i++) { /* quadratic ones would take minutes */
    pe_grammar *g = gbnf(same[i]);
    pe_matcher *m = matcher_of(g);
    CHECK_INT(feed(m, text), LONG);
    CHECK(pe_matcher_complete(m));
    if (i == 1) CHECK(pe_matcher_bytes(m) < 20000); /* all rows of a list are alike */
    pe_matcher_close(m);
    pe_grammar_release(g);
  }
  pe_free(text);
}

static void circles(void) {
  pe_grammar *g =
      gbnf("root ::= \"a\" root | next\nnext ::= root | other | \"\"\nother ::= next\n");
  CHECK_STR(verdict(g, "aaaaaaaa"), "whole");
  CHECK_STR(verdict(g, "aab"), "2");
  pe_grammar_release(g);
}

static void nested(void) {
  pe_grammar *g = gbnf("root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]+\n");
  CHECK_STR(verdict(g, "[1,[2,[]],33]"), "whole");
  CHECK_STR(verdict(g, "[[[[1"), "part");
  CHECK_STR(verdict(g, "[1,]"), "3");
  CHECK_STR(verdict(g, "12]"), "2");
  pe_grammar_release(g);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static void add_key(pe_rules *r, pe_rule rest, const char *key, uint64_t bit) {
  const pe_symbol s[2] = {word(r, key), {PE_SYMBOL_RULE, PE_CHANGE_SET, rest, 0, bit}};
  const pe_test absent = {bit, 0, 0, false};
  CHECK(pe_rules_add(r, rest, s, 2, &absent, 1, NULL) == PE_OK);
}

static void each_key_once(void) {
  pe_rules *r = open_rules();
  const pe_rule rest = declare(r, "rest");
  add_key(r, rest, "a", 1), add_key(r, rest, "b", 2), add_key(r, rest, "c", 4);
  const pe_symbol end = word(r, ".");
  const pe_test two = {7, 2, 3, true};
  CHECK(pe_rules_add(r, rest, &end, 1, &two, 1, NULL) == PE_OK);
  pe_grammar *g = NULL;
  CHECK(pe_grammar_compile(r, rest, (pe_grammar_options){0}, &g, NULL) == PE_OK);
  static const char *const want[][2] = {{"ab.", "whole"}, {"cb.", "whole"}, {"cab.", "whole"},
                                        {"aa", "1"},      {"a.", "1"},      {"abca", "3"},
                                        {"ca", "part"}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    CHECK_STR(verdict(g, want[i][0]), want[i][1]);
  pe_grammar_release(g);
}

static void fields_stop_at_their_top(void) {
  pe_rules *r = open_rules();
  const pe_rule more = declare(r, "more");
  const pe_symbol next[2] = {word(r, "x"), {PE_SYMBOL_RULE, PE_CHANGE_ADD, more, 0x30, 1}};
  const pe_symbol end = word(r, ".");
  const pe_test top = {0x30, 3, 3, false};
  add(r, more, next, 2);
  CHECK(pe_rules_add(r, more, &end, 1, &top, 1, NULL) == PE_OK);
  pe_grammar *g = NULL;
  CHECK(pe_grammar_compile(r, more, (pe_grammar_options){0}, &g, NULL) == PE_OK);
  CHECK_STR(verdict(g, "xx."), "2");
  CHECK_STR(verdict(g, "xxx."), "whole");
  CHECK_STR(verdict(g, "xxxxxxxx."), "whole");
  pe_grammar_release(g);
}

/* ---- going back, and forcing ----------------------------------------------------------------- */

static void trim_and_fork(void) {
  pe_grammar *g = gbnf("root ::= \"(\" root \")\" | \"x\" | \"yes\"\n");
  pe_matcher *m = matcher_of(g), *f = NULL;
  CHECK_INT(feed(m, "(("), 2);
  CHECK_INT(feed(m, "x"), 1);
  CHECK_INT(feed(m, "))"), 2);
  CHECK_INT(pe_matcher_length(m), 3);
  CHECK(pe_matcher_complete(m));
  CHECK_INT(feed(m, ")"), 0);
  CHECK_INT(pe_matcher_length(m), 3); /* what is refused leaves no trace */
  pe_matcher_trim(m, 1);
  CHECK(pe_matcher_fork(m, &f, NULL) == PE_OK);
  CHECK_INT(feed(m, "yes)"), 4);
  CHECK_INT(feed(f, "(x)))"), 5);
  CHECK(pe_matcher_complete(f) && !pe_matcher_complete(m));
  CHECK_INT(feed(m, ")"), 1);
  CHECK(pe_matcher_complete(m));
  bool over = false;
  CHECK(pe_matcher_is_over(m, &over, NULL) == PE_OK && over);
  pe_matcher_trim(m, 0);
  CHECK(pe_matcher_is_over(m, &over, NULL) == PE_OK && !over);
  pe_matcher_close(m), pe_matcher_close(f);
  pe_grammar_release(g);
}

static void forced_bytes(void) {
  pe_grammar *g =
      gbnf("root ::= \"{\\\"name\\\":\" [0-9]+ \",\\\"on\\\":\" (\"true\" | \"tree\") \"}\"\n");
  pe_matcher *m = matcher_of(g);
  pe_buf out = {0};
  CHECK(pe_matcher_forced(m, 100, &out, NULL) == PE_OK);
  CHECK(pe_str_eq(pe_buf_str(&out), "{\"name\":"));
  CHECK_INT(feed(m, "{\"name\":12"), 10);
  out.len = 0;
  CHECK(pe_matcher_forced(m, 100, &out, NULL) == PE_OK);
  CHECK_INT(out.len, 0);
  CHECK_INT(feed(m, ","), 1);
  CHECK(pe_matcher_forced(m, 4, &out, NULL) == PE_OK);
  CHECK(pe_str_eq(pe_buf_str(&out), "\"on\""));
  out.len = 0;
  CHECK(pe_matcher_forced(m, 100, &out, NULL) == PE_OK);
  CHECK(pe_str_eq(pe_buf_str(&out), "\"on\":tr"));
  CHECK_INT(feed(m, "\"on\":true}"), 10);
  out.len = 0;
  CHECK(pe_matcher_forced(m, 100, &out, NULL) == PE_OK);
  CHECK_INT(out.len, 0);
  pe_buf_free(&out);
  pe_matcher_close(m);
  pe_grammar_release(g);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

/* Every element of a list that must not end is a position of its own: old ones have to go. */
static void memory_is_given_back(void) {
  pe_grammar *g = gbnf("root ::= \"(\" root \")\" | \"<\" [a-z]{0,400} \">\" root | \"x\"\n");
  pe_matcher *m = matcher_of(g);
  uint64_t most = 0;
  char text[500];
  for (int i = 0; i < 1200; i++) { /* 400 states each time, in a row of its own */
    const size_t length = pe_matcher_length(m);
    memset(text, 'a' + i % 26, sizeof text);
    text[0] = '<', text[401] = '>', text[402] = '(', text[403] = 0;
    CHECK_INT(feed(m, text), 403);
    if (i % 50) {
      size_t taken;
      pe_matcher_trim(m, length);
      CHECK(pe_matcher_feed(m, pe_str_c("<a>("), &taken, NULL) == PE_OK && taken == 4);
    }
    if (pe_matcher_bytes(m) > most) most = pe_matcher_bytes(m);
  }
  CHECK(most < PE_MATCHER_BYTES);
  pe_matcher *fresh = matcher_of(g);
  CHECK_INT(feed(fresh, "<a>(<b>("), 8);
  pe_matcher_trim(m, 2);
  CHECK_INT(feed(m, "x))"), 3); /* the past is still there */
  CHECK(pe_matcher_complete(m));
  pe_matcher_close(m), pe_matcher_close(fresh);
  pe_grammar_release(g);
}

static void limits(void) {
  pe_error err;
  size_t taken;
  pe_grammar *g = gbnf("root ::= s\ns ::= s s | \"a\"\n"); /* cubic */
  pe_matcher *m = matcher_of(g);
  char text[3001];
  memset(text, 'a', 3000), text[3000] = 0;
  CHECK_FAILS(pe_matcher_feed(m, pe_str_c(text), &taken, &err), PE_ELIMIT, err,
              "more than 200000 items for one byte");
  CHECK(taken > 100 && pe_matcher_length(m) == 0);
  CHECK_INT(feed(m, "aaa"), 3); /* it is where it was */
  pe_matcher_close(m);
  pe_grammar_release(g);
  g = gbnf("root ::= e\ne ::= [a-z]+ | \"(\" e \")\" | e e\n");
  m = matcher_of(g);
  CHECK_FAILS(pe_matcher_feed(m, pe_str_c(text), &taken, &err), PE_ELIMIT, err,
              "lexemes in more than 256 ways");
  pe_matcher_close(m);
  pe_grammar_release(g);
}

static void failing_memory(void) {
  const int64_t live = pe_alloc_live();
  for (int64_t n = 1;; n++) {
    pe_grammar *g = NULL;
    pe_matcher *m = NULL, *f = NULL;
    pe_error err;
    size_t taken;
    pe_alloc_fail_at(n);
    pe_status rc = pe_grammar_gbnf(
        pe_str_c(
            "root ::= \"(\" root \")\" | [a-z]+ | w{2,3} root\nw ::= \"x\" | \"yy\" root \"!\"\n"),
        &g, &err);
    if (!rc) rc = pe_matcher_open(g, NULL, &m, &err);
    if (!rc) rc = pe_matcher_feed(m, pe_str_c("((yya!xabc"), &taken, &err);
    if (!rc) rc = pe_matcher_fork(m, &f, &err);
    if (!rc) rc = pe_matcher_feed(f, pe_str_c("d))"), &taken, &err);
    const bool failed = pe_alloc_count() >= n;
    pe_alloc_fail_at(0);
    CHECK(failed ? rc == PE_ENOMEM : rc == PE_OK && pe_matcher_complete(f));
    pe_matcher_close(m), pe_matcher_close(f);
    pe_grammar_release(g);
    CHECK_INT(pe_alloc_live(), live);
    if (!failed) break;
  }
}

/* What one matcher could not have, another one gets. */
static void failures_are_not_shared(void) {
  pe_grammar *g = gbnf("root ::= \"(\" root \")\" | [a-z]{2,300} | \"x\"{3} root\n");
  int failures = 0;
  for (int64_t n = 1; n < 60; n++) {
    pe_matcher *m = matcher_of(g);
    pe_error err;
    size_t taken;
    char text[80];
    memset(text, 'a' + n % 26, sizeof text);
    memcpy(text, "((", 2);
    pe_alloc_fail_at(n % 7 + 1);
    pe_status rc = pe_matcher_feed(m, pe_str_of(text, (size_t)n), &taken, &err);
    pe_alloc_fail_at(0);
    failures += rc == PE_ENOMEM;
    CHECK(rc == PE_OK || rc == PE_ENOMEM);
    if (rc) CHECK_OK(pe_matcher_feed(m, pe_str_of(text, (size_t)n), &taken, &err), err);
    CHECK_INT(taken, n);
    pe_matcher_close(m);
  }
  CHECK(failures > 5);
  pe_grammar_release(g);
}

static const check_test tests[] = {
    {"random grammars mean what sets of words say", random_grammars},
    {"long texts are linear, and lists take no memory", long_texts},
    {"rules in a circle", circles},
    {"nested texts", nested},
    {"parameters: each key once", each_key_once},
    {"parameters: a field stops at its top", fields_stop_at_their_top},
    {"trimming and forking", trim_and_fork},
    {"forced bytes", forced_bytes},
    {"memory is given back", memory_is_given_back},
    {"limits", limits},
    {"failing memory", failing_memory},
    {"failures are not shared", failures_are_not_shared},
};

CHECK_MAIN("test_matcher", tests)
