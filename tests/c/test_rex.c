/* Terms of regular languages: random ones against languages as sets of short words, exact answers
 * to "can this go on", characters, remainders, limits and failing memory. */
#include <stdlib.h>

#include "check.h"
#include "languages.h"
#include "runtime/grammar/rex.h"
#include "runtime/utf8.h"

static const pe_rex_limits plenty = {1u << 20, 1u << 24};

static pe_rex *open_rex(pe_rex_limits limits) {
  pe_rex *r = NULL;
  CHECK(pe_rex_open(limits, &r, NULL) == PE_OK);
  return r;
}

static uint32_t state = 1;
static uint32_t below(uint32_t n) {
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return state % n;
}

/* ---- languages as sets ----------------------------------------------------------------------- */

static const uint64_t EVERY = UINT64_MAX << 1; /* bit 0 is no word */

/* A random term and, in *words, what it should mean. */
static pe_term random_term(pe_rex *r, int depth, uint64_t *words) {
  pe_term part[4];
  uint64_t mean[4];
  const uint32_t kind = depth ? below(9) : 7 + below(2), n = 2 + below(2);
  if (kind >= 7) {
    static const char *const few[] = {"", "a", "b", "ab", "bba", "aa"};
    const char *text = few[below(6)];
    int word = 1;
    for (const char *p = text; *p; p++) word = word << 1 | (*p == 'b');
    *words = UINT64_C(1) << word;
    return pe_rex_word(r, pe_str_c(text));
  }
  for (uint32_t i = 0; i < n; i++) part[i] = random_term(r, depth - 1, &mean[i]);
  *words = mean[0];
  if (kind < 2) { /* | */
    for (uint32_t i = 1; i < n; i++) *words |= mean[i];
    return pe_rex_or(r, part, n);
  }
  if (kind == 2) { /* & */
    for (uint32_t i = 1; i < n; i++) *words &= mean[i];
    return pe_rex_and(r, part, n);
  }
  if (kind == 3) return *words = EVERY & ~mean[0], pe_rex_not(r, part[0]);
  if (kind == 4) {
    const uint32_t least = below(3), most = below(3) ? least + below(3) : PE_REX_FOREVER;
    *words = repeated(mean[0], least, most);
    return pe_rex_repeat(r, part[0], least, most);
  }
  *words = joined(mean[0], mean[1]);
  return pe_rex_cat(r, part[0], part[1]);
}

static pe_term walk(pe_rex *r, pe_term t, const char *word, size_t n) {
  for (size_t i = 0; i < n; i++) t = pe_rex_next(r, t, (uint8_t)word[i]);
  return t;
}

/* Whether a nullable state can be reached, by a search of its own. */
static bool can_end(pe_rex *r, pe_term from) {
  enum { MOST = 4096 };
  static pe_term queue[MOST];
  int n = 0;
  queue[n++] = from;
  for (int i = 0; i < n; i++) {
    if (pe_rex_nullable(r, queue[i])) return true;
    for (uint32_t c = 0; c < pe_rex_classes(r) && n < MOST; c++) {
      const pe_term t = pe_rex_step(r, queue[i], c);
      int k = 0;
      while (k < n && queue[k] != t) k++;
      if (k == n && t != PE_TERM_NONE) queue[n++] = t;
    }
  }
  return false;
}

static void random_terms(void) {
  int wrong = 0, stuck = 0, blind = 0;
  for (int round = 0; round < 4000; round++) {
    pe_rex *r = open_rex(plenty);
    uint64_t words;
    const pe_term t = random_term(r, 1 + (int)below(4), &words);
    pe_rex_word(r, pe_str_c("ab")); /* both letters are classes */
    pe_rex_freeze(r);
    for (int word = 1; word < WORDS; word++) {
      char text[LONGEST];
      const int n = length_of(word);
      for (int i = 0; i < n; i++) text[i] = word >> (n - 1 - i) & 1 ? 'b' : 'a';
      const pe_term end = pe_rex_has_word(r, t) ? walk(r, t, text, (size_t)n) : PE_TERM_NONE;
      if (pe_rex_nullable(r, end) != (words >> word & 1)) wrong++;
      if (end != PE_TERM_NONE && !can_end(r, end)) stuck++;
      if (end == PE_TERM_NONE) /* nothing that begins like this may be a word */
        for (int more = 1; more < WORDS; more++)
          if (length_of(more) >= n && more >> (length_of(more) - n) == word && words >> more & 1)
            blind++;
    }
    CHECK(pe_rex_status(r, NULL) == PE_OK);
    pe_rex_close(r);
  }
  CHECK_INT(wrong, 0);
  CHECK_INT(stuck, 0);
  CHECK_INT(blind, 0);
}

/* ---- what is cheap --------------------------------------------------------------------------- */

static pe_term letter_between(pe_rex *r, uint32_t from, uint32_t to) {
  return pe_rex_chars(r, &(pe_code_range){from, to}, 1);
}

static void counters_are_symbols(void) {
  pe_rex *r = open_rex((pe_rex_limits){200000, 1u << 24});
  const pe_term x = letter_between(r, 0x20, 0x10ffff);
  pe_term t = pe_rex_repeat(r, x, 3, 2000000000);
  pe_rex_freeze(r);
  const uint32_t before = pe_rex_terms(r);
  CHECK(before < 60);
  for (int i = 0; i < 1000; i++) t = walk(r, t, "\xc3\xa4", 2);
  CHECK(pe_rex_nullable(r, t));
  CHECK(pe_rex_terms(r) - before < 4200);
  pe_rex_close(r);
  /* the automaton of (a|b)*a(a|b){200} has 2^200 states: only those on the way are made */
  r = open_rex((pe_rex_limits){200000, 1u << 24});
  const pe_term any = letter_between(r, 'a', 'b');
  t = pe_rex_cat(r, pe_rex_repeat(r, any, 0, PE_REX_FOREVER),
                 pe_rex_cat(r, pe_rex_word(r, pe_str_c("a")), pe_rex_repeat(r, any, 200, 200)));
  pe_rex_freeze(r);
  for (int i = 0; i < 300; i++) t = walk(r, t, i % 7 ? "b" : "a", 1);
  CHECK(pe_rex_status(r, NULL) == PE_OK);
  CHECK(!pe_rex_nullable(r, t) == (bool)((300 - 201) % 7));
  pe_rex_close(r);
}

static void characters(void) {
  pe_rex *r = open_rex(plenty);
  const pe_code_range range[] = {{0x250, 0x2af}, {'a', 'f'}, {0xd000, 0xe100}, {0x1f600, 0x1f64f}};
  const pe_term t = pe_rex_chars(r, range, 4);
  pe_rex_freeze(r);
  int wrong = 0;
  for (uint32_t code = 0; code < 0x20000; code++) {
    char text[8];
    const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
    bool in = false;
    for (int i = 0; i < 4; i++) in |= code >= range[i].from && code <= range[i].to;
    const size_t n = (size_t)pe_utf8_put(text, (int32_t)code);
    wrong += pe_rex_nullable(r, walk(r, t, text, n)) != (in && !is_surrogate);
  }
  CHECK_INT(wrong, 0);
  CHECK(walk(r, t, "\xed\xa0\x80", 3) == PE_TERM_NONE); /* a surrogate's bytes */
  pe_rex_close(r);
}

static void remainders(void) {
  pe_rex *r = open_rex(plenty);
  const pe_term t = pe_rex_remainder(r, 12, 0, PE_REX_FOREVER);
  pe_rex_freeze(r);
  int wrong = 0;
  for (int i = 0; i < 3000; i++) {
    char text[16];
    const int n = snprintf(text, sizeof text, "%d", i);
    wrong += pe_rex_nullable(r, walk(r, t, text, (size_t)n)) != (i % 12 == 0);
  }
  CHECK_INT(wrong, 0);
  CHECK(pe_rex_next(r, t, 'a') == PE_TERM_NONE);
  pe_rex_close(r);
}

/* The beginnings of multiples of at most four digits are those that some multiple begins with. */
static void counted_remainders(void) {
  enum { DIGITS = 4, NUMBERS = 10000 };
  static const uint32_t divisors[] = {1, 7, 12, 97, 500, 1234, 9999, 1000000};
  for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++) {
    pe_rex *r = open_rex(plenty);
    const uint32_t d = divisors[i];
    const pe_term t = pe_rex_remainder(r, d, 0, DIGITS);
    pe_rex_freeze(r);
    int wrong = 0;
    uint32_t count = 1; /* of numbers with so many digits */
    for (int digits = 0; digits <= DIGITS + 1; digits++, count *= 10)
      for (uint32_t n = 0; n < count; n++) {
        char text[16];
        snprintf(text, sizeof text, "%0*u", digits, n);
        bool goes_on = false;
        for (uint32_t more = 1; more * count <= NUMBERS; more *= 10)
          goes_on |= (n * more + more - 1) / d * d >= n * more;
        const pe_term at = walk(r, t, text, (size_t)digits);
        wrong += (at != PE_TERM_NONE) != goes_on;
        wrong += pe_rex_nullable(r, at) != (goes_on && n % d == 0);
      }
    CHECK_INT(wrong, 0);
    pe_rex_close(r);
  }
}

static void empty_intersections(void) {
  pe_rex *r = open_rex(plenty);
  const pe_term a = pe_rex_word(r, pe_str_c("a")), b = pe_rex_word(r, pe_str_c("b"));
  const pe_term both[2] = {pe_rex_repeat(r, pe_rex_cat(r, a, a), 0, PE_REX_FOREVER),
                           pe_rex_cat(r, a, pe_rex_repeat(r, pe_rex_cat(r, a, a), 0, 9))};
  const pe_term none = pe_rex_and(r, both, 2); /* even and odd */
  const pe_term maybe[2] = {pe_rex_cat(r, a, none), pe_rex_cat(r, b, a)};
  const pe_term t = pe_rex_or(r, maybe, 2);
  pe_rex_freeze(r);
  CHECK(!pe_rex_has_word(r, none));
  CHECK(pe_rex_next(r, t, 'a') == PE_TERM_NONE); /* a cannot be continued to a word */
  CHECK(pe_rex_next(r, t, 'b') == a);
  pe_rex_close(r);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void limits(void) {
  pe_error err;
  pe_rex *r = open_rex((pe_rex_limits){100, 1000});
  for (int i = 0; i < 200; i++)
    pe_rex_repeat(r, pe_rex_word(r, pe_str_c("ab")), 2, 3 + (uint32_t)i);
  CHECK(pe_rex_status(r, &err) == PE_ELIMIT);
  CHECK_STR(err.text, "the grammar needs 101 terms or more, the limit is 100");
  CHECK(pe_rex_not(r, PE_TERM_NONE) == PE_TERM_NONE); /* nothing is everything after a failure */
  pe_rex_close(r);
  r = open_rex((pe_rex_limits){100000, 50});
  pe_term t = pe_rex_repeat(r, pe_rex_word(r, pe_str_c("ab")), 2, 3000);
  pe_rex_freeze(r);
  for (int i = 0; i < 40; i++) t = walk(r, t, "ab", 2);
  CHECK(pe_rex_status(r, &err) == PE_ELIMIT);
  CHECK_STR(err.text, "the grammar needs more than 50 steps");
  CHECK(t == PE_TERM_NONE);
  pe_rex_close(r);
}

static void memory(void) {
  const int64_t live = pe_alloc_live();
  for (int64_t n = 1;; n++) {
    pe_rex *r = NULL;
    uint64_t words;
    pe_alloc_fail_at(n);
    if (pe_rex_open(plenty, &r, NULL) == PE_OK) {
      state = 77;
      const pe_term t = random_term(r, 4, &words);
      pe_rex_freeze(r);
      if (pe_rex_has_word(r, t)) walk(r, t, "abab", 4);
    }
    const bool failed = pe_alloc_count() >= n;
    pe_alloc_fail_at(0);
    CHECK(!failed || !r || pe_rex_status(r, NULL) == PE_ENOMEM);
    pe_rex_close(r);
    CHECK_INT(pe_alloc_live(), live);
    if (!failed) break;
  }
}

static const check_test tests[] = {
    {"random terms mean what sets of words say", random_terms},
    {"counters are symbols, and only visited states are made", counters_are_symbols},
    {"characters are their UTF-8", characters},
    {"remainders of decimal numbers", remainders},
    {"remainders of numbers with few digits", counted_remainders},
    {"an intersection without words is a dead end", empty_intersections},
    {"limits", limits},
    {"failing memory", memory},
};

CHECK_MAIN("test_rex", tests)
