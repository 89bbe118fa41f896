/* test_unicode.c - the character tables, grapheme clusters and sets of characters. */
#include "check.h"

#include "runtime/text/charset.h"
#include "runtime/text/unicode.h"

#include <pthread.h>

static void spaces(void) {
  int count = 0;
  for (int32_t c = -5; c < 0x110005; c++) count += pe_unicode_space(c);
  CHECK_INT(count, 25);
  CHECK(pe_unicode_space(0x85) && pe_unicode_space(0x3000) && pe_unicode_space('\v'));
  CHECK(!pe_unicode_space(0x180e) && !pe_unicode_space(0x1c) && !pe_unicode_space(0x200b));
}

/* Totals over all characters, computed with the `tokenizers` library. */
static void totals(void) {
  int word = 0, numeric = 0, punct = 0, mark = 0, cleaned = 0;
  for (int32_t c = 0; c < 0x110000; c++) {
    if (c >= 0xd800 && c < 0xe000) continue;
    uint32_t w = pe_unicode_info(c);
    word += pe_unicode_word(c), numeric += pe_unicode_numeric(c), punct += pe_unicode_punct(c);
    mark += pe_unicode_mark(c), cleaned += (w & PE_U_CLEANED) != 0;
  }
  CHECK_INT(word, 144667);
  CHECK_INT(numeric, 1924);
  CHECK_INT(punct, 726);
  CHECK_INT(mark, 2097);
  CHECK_INT(cleaned, 137681);
  CHECK_INT(pe_unicode_info(-1), 0);
  CHECK_INT(pe_unicode_info(0x110000), 0);
  CHECK(!pe_unicode_word(-1) && !pe_unicode_word(0x110000));
}

static void lower_case(void) {
  static const int32_t pairs[][2] = {
      {'A', 'a'},    {'z', 'z'},         {0xc9, 0xe9},     {0x3a3, 0x3c3}, {0x1e9e, 0xdf},
      {0x212a, 'k'}, {0x10400, 0x10428}, {0x2160, 0x2170}, {0xdf, 0xdf},   {0x4e2d, 0x4e2d}};
  int32_t out[2];
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    CHECK_INT(pe_unicode_lower(pairs[i][0], out), 1);
    CHECK_INT(out[0], pairs[i][1]);
  }
  CHECK_INT(pe_unicode_lower(0x130, out), 2);
  CHECK_INT(out[0], 'i');
  CHECK_INT(out[1], 0x307);
  int changed = 0;
  for (int32_t c = 0; c < 0x110000; c++) changed += pe_unicode_lower(c, out) != 1 || out[0] != c;
  CHECK_INT(changed, 1488);
}

static void byte_alphabet(void) {
  bool seen[0x200] = {false};
  for (int b = 0; b < 256; b++) {
    int32_t c = pe_unicode_byte_char((uint8_t)b);
    CHECK(c > 0x20 && c < 0x144 && !seen[c]);
    seen[c] = true;
    CHECK_INT(pe_unicode_char_byte(c), b);
  }
  pe_buf out = {0};
  bool all = false;
  CHECK(!pe_unicode_put_bytes(&out,
                              pe_str_c("\xc4\xa0"
                                       "a\xc3\xb0"),
                              &all, NULL) &&
        all);
  CHECK(out.len == 3 && !memcmp(out.data, " a\xf0", 3));
  CHECK(!pe_unicode_put_bytes(&out, pe_str_c("a b"), &all, NULL) && !all && out.len == 3);
  pe_buf_free(&out);
  CHECK_INT(pe_unicode_byte_char(' '), 0x120);
  CHECK_INT(pe_unicode_byte_char('\n'), 0x10a);
  CHECK_INT(pe_unicode_byte_char(0xad), 0x143);
  CHECK_INT(pe_unicode_byte_char(0x7f), 0x121);
  CHECK_INT(pe_unicode_byte_char(0xa0), 0x142);
  static const int32_t none[] = {-1, 0, ' ', 0x7f, 0xa0, 0xad, 0x144, 0x2581, 0x110000};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++)
    CHECK_INT(pe_unicode_char_byte(none[i]), -1);
}

static void folding(void) {
  CHECK_INT(pe_unicode_fold('s'), pe_unicode_fold(0x17f));
  CHECK_INT(pe_unicode_fold('k'), pe_unicode_fold(0x212a));
  CHECK_INT(pe_unicode_fold(0xdf), pe_unicode_fold(0x1e9e));
  CHECK_INT(pe_unicode_fold(0x4e2d), 0x4e2d);
  int32_t s = pe_unicode_fold('s'), two[2] = {s, s}, out[3];
  CHECK_INT(pe_unicode_fold_contract(two, 2), pe_unicode_fold(0xdf));
  CHECK_INT(pe_unicode_fold_expand(pe_unicode_fold(0xdf), out), 2);
  CHECK_INT(out[0], s);
  CHECK_INT(pe_unicode_fold_expand('A', out), 0);
  two[1] = 'A';
  CHECK_INT(pe_unicode_fold_contract(two, 2), -1);
}

static void decompositions(void) {
  int32_t out[PE_DECOMPOSED_MAX];
  CHECK_INT(pe_unicode_decompose(0xe9, false, out), 2);
  CHECK(out[0] == 'e' && out[1] == 0x301);
  CHECK_INT(pe_unicode_decompose(0xac01, false, out), 3);
  CHECK(out[0] == 0x1100 && out[1] == 0x1161 && out[2] == 0x11a8);
  CHECK_INT(pe_unicode_decompose(0xfb01, false, out), 1);
  CHECK_INT(pe_unicode_decompose(0xfb01, true, out), 2);
  CHECK_INT(pe_unicode_decompose(0xfdfa, true, out), 18);
  CHECK_INT(pe_unicode_decompose(0x32ff, true, out), 1); /* newer than the library's tables */
  CHECK_INT(pe_unicode_compose('e', 0x301), 0xe9);
  CHECK_INT(pe_unicode_compose(0x1100, 0x1161), 0xac00);
  CHECK_INT(pe_unicode_compose(0xac00, 0x11a8), 0xac01);
  CHECK_INT(pe_unicode_compose(0xac01, 0x11a8), -1);
  CHECK_INT(pe_unicode_compose('e', 'e'), -1);
  CHECK_INT(pe_unicode_compose(0x915, 0x93c), -1); /* excluded from composition */
  CHECK_INT(pe_unicode_ccc(pe_unicode_info(0x301)), 230);
  CHECK_INT(pe_unicode_ccc(pe_unicode_info(0x10ec0 + 0x3b)), 0);
}

static void graphemes(void) {
  static const struct {
    const char *text;
    int first;
  } cases[] = {
      {"ab", 1},
      {"\r\nx", 2},
      {"\n\r", 1},
      {"a\xcc\x81\xcc\x81"
       "b",
       5},
      {"\xcc\x81"
       "a",
       2},
      {"a\xe2\x80\x8d"
       "b",
       4},
      {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8.", 9},            /* L V T */
      {"\xf0\x9f\x87\xa6\xf0\x9f\x87\xa7\xf0\x9f\x87\xa8", 8}, /* flags go in pairs */
      {"\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9!", 11},   /* pictographs around a joiner */
      {"\xe0\xa4\x95\xe0\xa5\x8d\xe0\xa4\xb7 ", 9},            /* a conjunct */
      {"\xd8\x80"
       "a",
       3},                             /* a prepended mark */
      {"\xe0\xa4\x95\xe0\xa4\xbe", 6}, /* a spacing mark */
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *t = cases[i].text;
    CHECK_INT(pe_unicode_grapheme(t, t + strlen(t)) - t, cases[i].first);
  }
}

static int size_of(const char *name) {
  pe_charset s = {0};
  int n = 0;
  if (pe_charset_property(&s, pe_str_c(name), NULL)) n = -1;
  for (size_t i = 0; i + 1 < s.n; i += 2) {
    n += s.at[i + 1] - s.at[i];
    if (s.at[i] <= 0xd800 && s.at[i + 1] >= 0xe000) n -= 0x800;
  }
  pe_charset_free(&s);
  return n;
}

static void properties(void) {
  static const struct {
    const char *name;
    int size;
  } cases[] = {
      /* sizes in Unicode 16, without surrogates */
      {"L", 141028},
      {"M", 2501},
      {"N", 1911},
      {"P", 855},
      {"S", 8514},
      {"Z", 19},
      {"C", 957236},
      {"Lu", 1858},
      {"Ll", 2258},
      {"Lt", 31},
      {"Lm", 404},
      {"Lo", 136477},
      {"Mn", 2020},
      {"Mc", 468},
      {"Me", 13},
      {"Nd", 760},
      {"Nl", 236},
      {"No", 915},
      {"Pc", 10},
      {"Pd", 27},
      {"Ps", 79},
      {"Pe", 77},
      {"Pi", 12},
      {"Pf", 10},
      {"Po", 640},
      {"Sm", 950},
      {"Sc", 63},
      {"Sk", 125},
      {"So", 7376},
      {"Zs", 17},
      {"Zl", 1},
      {"Zp", 1},
      {"Cc", 65},
      {"Cf", 170},
      {"Co", 137468},
      {"Cn", 819533},
      {"LC", 4147},
      {"Alphabetic", 142759},
      {"Uppercase", 1978},
      {"Lowercase", 2569},
      {"White_Space", 25},
      {"Alnum", 143519},
      {"Graph", 292447},
      {"Print", 292464},
      {"Blank", 18},
      {"Cntrl", 65},
      {"XDigit", 22},
      {"Punct", 855},
      {"Assigned", 292531},
      {"Emoji", 1431},
      {"Extended_Pictographic", -1},
      {"Han", 99030},
      {"Hiragana", 381},
      {"Katakana", 321},
      {"Hangul", 11739},
      {"Latin", 1487},
      {"Cyrillic", 508},
      {"Greek", 518},
      {"Arabic", 1373},
      {"Hebrew", 134},
      {"Thai", 86},
      {"Devanagari", 164},
      {"Common", 9053},
      {"Inherited", 657},
      {"Latn", 1487},
      {"Uppercase_Letter", 1858},
      {"decimal-number", 760},
      {"Any", 0x110000 - 0x800},
      {"ascii", 128},
      {"nonsense", -1},
      {"", -1},
      {"L1", -1},
      {"a name that is much longer than any property has", -1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int n = size_of(cases[i].name);
    if (n != cases[i].size) printf("    %s\n", cases[i].name);
    CHECK_INT(n, cases[i].size);
  }
}

static void sets(void) {
  pe_charset a = {0}, b = {0};
  pe_error err = {0};
  CHECK_OK(pe_charset_add(&a, 10, 20, &err), err);
  CHECK_OK(pe_charset_add(&a, 5, 7, &err), err);
  CHECK_OK(pe_charset_add(&a, 21, 30, &err), err); /* joins the first */
  CHECK_INT(a.n, 4);
  CHECK(pe_charset_has(&a, 5) && !pe_charset_has(&a, 8) && pe_charset_has(&a, 25) &&
        !pe_charset_has(&a, 31));
  CHECK_OK(pe_charset_unite(&b, &a, &err), err);
  CHECK(pe_charset_same(&a, &b));
  CHECK_OK(pe_charset_negate(&b, &err), err);
  CHECK(pe_charset_has(&b, 0) && !pe_charset_has(&b, 5) && pe_charset_has(&b, 0x10ffff));
  CHECK_OK(pe_charset_intersect(&b, &a, &err), err);
  CHECK_INT(b.n, 0);
  CHECK_OK(pe_charset_negate(&b, &err), err); /* everything */
  CHECK_OK(pe_charset_unite(&a, &b, &err), err);
  CHECK(pe_charset_same(&a, &b));
  CHECK_OK(pe_charset_negate(&b, &err), err);
  CHECK_INT(b.n, 0);
  CHECK_OK(pe_charset_add(&b, 's', 's', &err), err);
  CHECK_OK(pe_charset_fold(&b, &err), err);
  CHECK(pe_charset_has(&b, 'S') && pe_charset_has(&b, 0x17f) && !pe_charset_has(&b, 't'));
  pe_charset_free(&a);
  pe_charset_free(&b);
}

static void *ask(void *sum) {
  int *n = sum;
  for (int32_t c = 0; c < 0x3000; c++) *n += pe_unicode_word(c);
  return NULL;
}

/* The first caller builds the table. */
static void threads(void) {
  pthread_t t[4];
  int sum[4] = {0};
  for (int i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, ask, &sum[i]));
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  for (int i = 1; i < 4; i++) CHECK_INT(sum[i], sum[0]);
}

static const check_test tests[] = {
    {"threads", threads},
    {"spaces", spaces},
    {"totals", totals},
    {"lower", lower_case},
    {"bytes", byte_alphabet},
    {"folding", folding},
    {"decompositions", decompositions},
    {"graphemes", graphemes},
    {"properties", properties},
    {"sets", sets},
};
CHECK_MAIN("unicode", tests)
