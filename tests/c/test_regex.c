/* test_regex.c - patterns: what matches, what is refused, and that none hangs. */
#include "check.h"

#include "runtime/text/regex.h"

/* Pattern, text, and the text with every match replaced by U+00A6, computed with the `tokenizers`
 * library. */
static const struct {
  const char *pattern, *text, *marked;
} cases[] = {
    {"(\077i:'s|'t|'re|'ve|'m|'ll|'d)|[^\134r\134n\134p{L}\134p{N}]\077\134p{L}+|\134p{N}{1,3}| "
     "\077[^\134s\134p{L}\134p{N}]+[\134r\134n]*|\134s*[\134r\134n]+|\134s+(\077!\134S)|\134s+",
     "I'm  12345 caf\303\251s'\305\277, \344\275\240\345\245\275!!\015\012\015\012  "
     "x\011\343\200\200 '\342\204\252",
     "\302\246\302\246\302\246\302\246\302\246\302\246\302\246\302\246\302\246\302\246\302\246\302"
     "\246\302\246\302\246\302\246\302\246"},
    {"(\077i:ss|k)", "Stra\303\237e SS \341\272\236 \342\204\252 K s\305\277",
     "Stra\302\246e \302\246 \302\246 \302\246 \302\246 \302\246"},
    {"(\077i:\134u00df)", "ss \303\237 Ss \341\272\236", "\302\246 \302\246 \302\246 \302\246"},
    {"(\077i:ss+)", "\303\237s ss", "\303\237s \302\246"},
    {"(\077i:[a-k])", "\342\204\252Az\305\277", "\302\246\302\246z\305\277"},
    {"(\077i:[^s])", "sS\305\277\303\237", "sS\305\277\302\246"},
    {"(\077i:\134p{Lu})", "aA", "a\302\246"},
    {"(\077i:[\134p{Lu}])", "aA", "\302\246\302\246"},
    {"x*", "axxb", "\302\246a\302\246b\302\246"},
    {"", "\303\251b", "\302\246\303\251\302\246b\302\246"},
    {"\134b", "ab \303\251c", "\302\246ab\302\246 \302\246\303\251c\302\246"},
    {"\134B", "ab \303\251c", "a\302\246b \303\251\302\246c"},
    {"^.", "ab\012cd\012", "\302\246b\012\302\246d\012"},
    {".$", "ab\012cd\012", "a\302\246\012c\302\246\012"},
    {"^", "a\012", "\302\246a\012"},
    {"$", "a\012b\012", "a\302\246\012b\302\246\012\302\246"},
    {".\134Z", "ab\012", "a\302\246\012"},
    {".\134z", "ab\012", "ab\012"},
    {"\134A.", "ab", "\302\246b"},
    {"(\077m:.+)", "a\012b", "\302\246"},
    {".+", "a\012b", "\302\246\012\302\246"},
    {"\134w+", "a\302\262b_1 \303\251\314\201", "\302\246 \302\246"},
    {"[\134w]+", "a\302\262b_1 \303\251\314\201", "\302\246\302\262\302\246 \302\246"},
    {"\134p{Word}", "\302\262", "\302\246"},
    {"[\134p{Word}]", "\302\262", "\302\262"},
    {"\134s", "\302\205\341\240\216\034\302\240", "\302\246\341\240\216\034\302\246"},
    {"\134d+", "1\331\243\302\275", "\302\246\302\275"},
    {"\134h+", "xAf09g", "x\302\246g"},
    {"[\134p{L}&&[^a-z]]+", "abCD\303\251f", "ab\302\246f"},
    {"[^\134p{L}&&[^a-e]]+", "abfg1", "\302\246fg\302\246"},
    {"[^a&&b]", "ab", "\302\246\302\246"},
    {"[]a]", "a]b", "\302\246\302\246b"},
    {"[a-]+", "a-b", "\302\246b"},
    {"[[:alpha:]]+|[[:^alpha:]]", "a1\303\251$", "\302\246\302\246\302\246\302\246"},
    {"[[:punct:]]", "$.\342\202\254", "\302\246\302\246\302\246"},
    {"\134p{Punct}", "$.", "$\302\246"},
    {"\134p{^L}+", "ab12", "ab\302\246"},
    {"\134P{^L}+", "ab12", "\302\24612"},
    {"\134p{Han}+", "\344\275\240a\343\201\202", "\302\246a\343\201\202"},
    {"\134P{Latin}+", "a\320\226b", "a\302\246b"},
    {"a{2}\077", "aaaa", "\302\246\302\246"},
    {"a{1,2}+", "aaaaa", "\302\246"},
    {"a{1,2}\077", "aaa", "\302\246\302\246\302\246"},
    {"a{,2}", "aaa", "\302\246\302\246"},
    {"a++b|a", "aab", "\302\246"},
    {"a**", "aab", "\302\246b\302\246"},
    {"x{a}", "x{a}", "\302\246"},
    {"{", "a{", "a\302\246"},
    {"(\077<=a)b", "ab bb", "a\302\246 bb"},
    {"(\077<!a)b", "ab bb", "ab \302\246\302\246"},
    {"(\077>a+)b|a", "aaab", "\302\246"},
    {"a(\077=b)", "abac", "\302\246bac"},
    {"a(\077!b)", "abac", "ab\302\246c"},
    {"a(\077i)b|c", "aB aC c", "\302\246 \302\246 c"},
    {"(\077x: a \134s b # c\012)", "a b", "\302\246"},
    {"(\077#no)a", "ba", "b\302\246"},
    {"(\077<n>a)(b)", "ab", "\302\246"},
    {"\134R", "\015\012\012\342\200\250", "\302\246\302\246\302\246"},
    {"\134x41|\134x{e9}|\134u0042|\134101|\134t", "A\303\251B\011",
     "\302\246\302\246\302\246\302\246"},
    {"a|ab|", "abb", "\302\246b\302\246b\302\246"},
    {"(\077:a|b)*\077c", "abcc", "\302\246\302\246"},
    {"\134u0001+", "\001\001a", "\302\246a"},
    {"(\077i:ffi)", "\357\254\203 FFI \357\254\200i", "\302\246 \302\246 \357\254\200i"},
    {"(\077i:'st)", "'\357\254\206 'ST", "\302\246 \302\246"},
};

static void mark(const pe_regex *re, pe_str text, pe_buf *out) {
  pe_regex_scan scan = {0};
  pe_error err = {0};
  size_t done = 0, from, to;
  bool found;
  CHECK_OK(pe_regex_begin(&scan, re, text, &err), err);
  while (!pe_regex_next(&scan, &found, &from, &to, &err) && found) {
    CHECK(from >= done && to >= from && to <= text.len);
    pe_buf_put(out, text.at + done, from - done, NULL);
    pe_buf_put(out, "\302\246", 2, NULL);
    done = to;
  }
  pe_buf_put(out, text.at + done, text.len - done, NULL);
  pe_buf_byte(out, 0, NULL);
  pe_regex_scan_free(&scan);
}

static void matches(void) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_regex *re;
    pe_error err = {0};
    pe_buf out = {0};
    CHECK_OK(pe_regex_compile(pe_str_c(cases[i].pattern), &re, &err), err);
    if (!re) continue;
    mark(re, pe_str_c(cases[i].text), &out);
    if (strcmp(out.data, cases[i].marked)) printf("    %s\n", cases[i].pattern);
    CHECK_STR(out.data, cases[i].marked);
    pe_buf_free(&out);
    pe_regex_free(re);
  }
}

static void refusals(void) {
  static const struct {
    const char *pattern, *part;
  } bad[] = {
      {"(", "not closed: '('"},
      {")", "without an opening"},
      {"a)b", "offset 1"},
      {"[a", "not closed"},
      {"[]", "empty class"},
      {"[z-a]", "ends before it begins"},
      {"*a", "nothing to repeat"},
      {"a|*", "nothing to repeat"},
      {"a{3,2}", "below the lower one"},
      {"a{70000}", "65535"},
      {"\\", "backslash"},
      {"\\p{Foo}", "unknown property: '\\p{Foo}'"},
      {"\\pL", "braces"},
      {"\\p{L", "closing brace"},
      {"(?z)", "unknown group"},
      {"(?i", "not closed"},
      {"\\1", "unknown escape"},
      {"\\k<a>", "unknown escape"},
      {"\\X", "unknown escape"},
      {"\\xff", "raw byte"},
      {"\\x{110000}", "not a code point"},
      {"\\ud800", "not a code point"},
      {"\\u12", "four digits"},
      {"[[:foo:]]", "unknown class"},
      {"(?<a", "name is not closed"},
      {"(?#", "comment"},
      {"(?~a)", "unknown group"},
      {"(?<=a+)b", "lookbehind"},
      {"\xff", "broken UTF-8"},
      {"[\xff]", "broken UTF-8"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    pe_regex *re;
    pe_error err = {0};
    CHECK_FAILS(pe_regex_compile(pe_str_c(bad[i].pattern), &re, &err), PE_EUNSUPPORTED, err,
                bad[i].part);
    CHECK(!re);
  }
}

static void repeat(pe_buf *b, const char *what, int n) {
  for (int i = 0; i < n; i++) pe_buf_put(b, what, strlen(what), NULL);
}

/* Deep, long and branching patterns fail quickly. */
static void hostile(void) {
  static const char *const units[] = {"(",    "[",   "(?i)", "(?:a", "[^[",
                                      "a{9}", "(?=", "a**",  "\\p{", "(?<="};
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    pe_buf b = {0};
    pe_regex *re;
    pe_error err = {0};
    repeat(&b, units[i], 5000);
    pe_status rc = pe_regex_compile(pe_str_of(b.data, b.len), &re, &err);
    CHECK(rc || re);
    if (rc) CHECK(err.text[0] && !strchr(err.text, '\n'));
    pe_regex_free(re);
    b.len = 0;
    repeat(&b, units[i], 100000);
    CHECK_FAILS(pe_regex_compile(pe_str_of(b.data, b.len), &re, &err), PE_ELIMIT, err, "bytes");
    pe_buf_free(&b);
  }
}

static void too_many_classes(void) {
  pe_buf b = {0};
  pe_regex *re;
  pe_error err = {0};
  char text[8];
  for (int i = 0; i < 129; i++)
    snprintf(text, sizeof text, "\\u%04x", 0x4e00 + 2 * i), repeat(&b, text, 1);
  CHECK_FAILS(pe_regex_compile(pe_str_of(b.data, b.len), &re, &err), PE_ELIMIT, err,
              "more than 128 kinds");
  b.len -= 12; /* 127 of them and one class for all others */
  CHECK_OK(pe_regex_compile(pe_str_of(b.data, b.len), &re, &err), err);
  pe_regex_free(re);
  pe_buf_free(&b);
}

/* Sets of two letters and more: n different ones. */
static void put_sets(pe_buf *b, int n) {
  for (int bits = 3; n; bits++) {
    if (!(bits & (bits - 1))) continue;
    repeat(b, "[", 1);
    for (int i = 0; i < 13; i++)
      if (bits >> i & 1) pe_buf_byte(b, (char)('a' + i), NULL);
    repeat(b, "]", 1);
    n--;
  }
}

/* Compiles open, inner and close, n times each; without any of them, n sets. */
static pe_status compile_of(const char *open, const char *inner, const char *close, int n,
                            pe_error *err) {
  pe_buf b = {0};
  pe_regex *re = NULL;
  repeat(&b, open, n), repeat(&b, inner, 1), repeat(&b, close, n);
  if (!b.len) put_sets(&b, n);
  pe_status rc = pe_regex_compile(pe_str_of(b.data, b.len), &re, err);
  pe_regex_free(re);
  pe_buf_free(&b);
  return rc;
}

/* The last size that is allowed, and the next. */
static void limits(void) {
  static const struct {
    const char *open, *inner, *close;
    int most;
    pe_status status;
    const char *part;
  } edge[] = {
      {"(", "a", ")", 100, PE_EUNSUPPORTED, "nested too deep"},
      {"[", "a", "]", 100, PE_EUNSUPPORTED, "nested too deep"},
      {"", "a", "{1}", 100, PE_EUNSUPPORTED, "too many repetitions"},
      {"", "a(?#", "x", (1 << 16) - 4, PE_ELIMIT, "pattern of 65537 bytes is too long"},
  };
  pe_error err = {0};
  for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) {
    bool comment = edge[i].close[0] == 'x'; /* one that is not closed, but for its length */
    pe_status rc = compile_of(edge[i].open, edge[i].inner, edge[i].close, edge[i].most, &err);
    if (comment)
      CHECK_FAILS(rc, PE_EUNSUPPORTED, err, "comment");
    else
      CHECK_OK(rc, err);
    CHECK_FAILS(compile_of(edge[i].open, edge[i].inner, edge[i].close, edge[i].most + 1, &err),
                edge[i].status, err, edge[i].part);
  }
  /* So many sets are more than the matcher takes. */
  CHECK_FAILS(compile_of("", "", "", 2048, &err), PE_EUNSUPPORTED, err, "too large");
  CHECK_FAILS(compile_of("", "", "", 2049, &err), PE_ELIMIT, err, "more than 2048 different sets");
  static const char *const formats[] = {"a{%d}", "a{%d,}", "a{0,%d}"};
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    char text[32];
    snprintf(text, sizeof text, formats[i], 65535);
    CHECK_OK(compile_of("", text, "", 1, &err), err);
    snprintf(text, sizeof text, formats[i], 65536);
    CHECK_FAILS(compile_of("", text, "", 1, &err), PE_EUNSUPPORTED, err, "65535");
  }
}

static void backtracking(void) {
  static const char *const patterns[] = {"(?:a+)+b", "(?:a|a)*b", "(?:a*)*c", "(?:a|aa)+$",
                                         "(?:\\p{L}|a)*\\d"};
  pe_buf text = {0};
  repeat(&text, "a", 60);
  repeat(&text, "\xc3\xa9!b1", 1);
  for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
    pe_regex *re;
    pe_error err = {0};
    pe_regex_scan scan = {0};
    bool found;
    size_t from, to;
    CHECK_OK(pe_regex_compile(pe_str_c(patterns[i]), &re, &err), err);
    CHECK_OK(pe_regex_begin(&scan, re, pe_str_of(text.data, text.len), &err), err);
    pe_status rc = pe_regex_next(&scan, &found, &from, &to, &err);
    if (rc)
      CHECK_FAILS(rc, PE_ELIMIT, err, "limit");
    else
      CHECK(!found);
    if (i < 2) CHECK_INT(rc, PE_ELIMIT);
    pe_regex_scan_free(&scan);
    pe_regex_free(re);
  }
  pe_buf_free(&text);
}

/* A long match does not need a deep stack, and broken text is safe. */
static void long_and_broken(void) {
  pe_buf text = {0};
  pe_regex *re;
  pe_error err = {0};
  pe_regex_scan scan = {0};
  bool found;
  size_t from, to;
  repeat(&text, "ab\xc3\xa9", 200000);
  CHECK_OK(pe_regex_compile(pe_str_c("(?:[ab]|\\u00e9)+"), &re, &err), err);
  CHECK_OK(pe_regex_begin(&scan, re, pe_str_of(text.data, text.len), &err), err);
  CHECK_OK(pe_regex_next(&scan, &found, &from, &to, &err), err);
  CHECK(found && from == 0);
  CHECK_INT(to, text.len);
  static const char *const broken[] = {"\xc3",     "a\xe2\x82", "\xff\xfe", "\xf4\xbf\xbf\xbf",
                                       "\x80\x80", "\xf0\x9f"};
  for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
    CHECK_OK(pe_regex_begin(&scan, re, pe_str_c(broken[i]), &err), err);
    while (!pe_regex_next(&scan, &found, &from, &to, &err) && found)
      CHECK(from <= to && to <= strlen(broken[i]));
  }
  pe_regex_scan_free(&scan);
  pe_regex_free(re);
  pe_buf_free(&text);
}

/* Fail each allocation in turn: an error (or no JIT), no leak. */
static void out_of_memory(void) {
  for (int64_t n = 1;; n++) {
    pe_regex *re = NULL;
    pe_error err = {0};
    pe_regex_scan scan = {0};
    bool found;
    size_t from, to;
    pe_alloc_fail_at(n);
    pe_status rc =
        pe_regex_compile(pe_str_c("(?i:'s)|[^\\p{L}&&\\p{N}]+(?=\\S)|(?<=x)é*"), &re, &err);
    if (!rc) rc = pe_regex_begin(&scan, re, pe_str_c("it's é x"), &err);
    while (!rc && !(rc = pe_regex_next(&scan, &found, &from, &to, &err)) && found) {}
    bool all = pe_alloc_count() < n;
    pe_alloc_fail_at(0);
    if (rc) CHECK_FAILS(rc, PE_ENOMEM, err, "memory");
    pe_regex_scan_free(&scan);
    pe_regex_free(re);
    if (all) break;
  }
}

static const check_test tests[] = {
    {"matches", matches},           {"refusals", refusals},
    {"hostile", hostile},           {"classes", too_many_classes},
    {"backtracking", backtracking}, {"long", long_and_broken},
    {"memory", out_of_memory},      {"limits", limits},
};
CHECK_MAIN("regex", tests)
