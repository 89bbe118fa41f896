/* test_stop.c - stop strings: every way to cut a text into pieces gives the same output. */
#include "check.h"

#include "runtime/text/stop.h"

typedef struct outcome {
  pe_buf text;
  int hit;
} outcome;

static pe_stop *open_stop(const char *const *strings, size_t count) {
  pe_str list[16];
  for (size_t i = 0; i < count; i++) list[i] = pe_str_c(strings[i]);
  pe_stop *s = NULL;
  pe_error err = {0};
  CHECK_OK(pe_stop_open(list, count, &s, &err), err);
  return s;
}

/* Cuts the text where a bit of cuts is set. */
static outcome feed(const char *const *strings, size_t count, const char *text, uint32_t cuts) {
  pe_stop *s = open_stop(strings, count);
  outcome o = {.hit = -1};
  pe_error err = {0};
  size_t len = strlen(text), from = 0;
  for (size_t i = 1; i <= len; i++) {
    if (i < len && !(cuts >> (i - 1) & 1)) continue;
    int hit;
    CHECK_OK(pe_stop_push(s, pe_str_of(text + from, i - from), &o.text, &hit, &err), err);
    if (hit >= 0) o.hit = hit;
    from = i;
  }
  CHECK_OK(pe_stop_finish(s, &o.text, &err), err);
  pe_stop_close(s);
  return o;
}

/* The definition, tried by brute force. */
static int naive(const char *const *strings, size_t count, const char *text, size_t *end) {
  size_t len = strlen(text);
  for (size_t stop = 1; stop <= len; stop++)
    for (size_t from = 0; from < stop; from++)
      for (size_t i = 0; i < count; i++)
        if (strlen(strings[i]) == stop - from && !memcmp(strings[i], text + from, stop - from)) {
          *end = from;
          return (int)i;
        }
  *end = len;
  return -1;
}

static void check_all_cuts(const char *const *strings, size_t count, const char *text) {
  size_t end, len = strlen(text);
  int want = naive(strings, count, text, &end);
  for (uint32_t cuts = 0; cuts < 1u << (len ? len - 1 : 0); cuts++) {
    outcome o = feed(strings, count, text, cuts);
    if (o.hit != want || o.text.len != end || memcmp(o.text.data ? o.text.data : "", text, end))
      check_failures++, printf("    '%s' cut %x: hit %d, not %d; '%.*s', not '%.*s'\n", text, cuts,
                               o.hit, want, (int)o.text.len, o.text.data, (int)end, text);
    pe_buf_free(&o.text);
    if (check_failures) return;
  }
}

#define ALL_CUTS(text, ...)                                                                        \
  do {                                                                                             \
    const char *list_[] = {__VA_ARGS__};                                                           \
    check_all_cuts(list_, sizeof list_ / sizeof *list_, text);                                     \
  } while (0)

static void every_cut(void) {
  ALL_CUTS("hello END more", "END");
  ALL_CUTS("hello EN", "END");
  ALL_CUTS("EEEND", "END");
  ALL_CUTS("ababac", "abac", "bab");
  ALL_CUTS("abcd", "bc", "abcd", "abc"); /* complete at the same byte: abc began first */
  ALL_CUTS("abcd", "abcd", "b", "c");
  ALL_CUTS("aaaaaab", "aaab", "aab");
  ALL_CUTS("xyxyxz", "xyxz");
  ALL_CUTS("", "a");
  ALL_CUTS("x", "x", "x");
  ALL_CUTS("na\xc3\xafve \xe2\x82\xac", "\xe2\x82\xac", "\xc3\xaa");
  ALL_CUTS("\xe2\x82\xac\xe2\x82\xad", "\xe2\x82\xad");
  ALL_CUTS("\n\nUser:", "\nUser:", "\n\nUser");
}

static uint32_t state = 1;
static uint32_t next(uint32_t below) {
  state = state * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)state * below >> 32);
}

static void random_texts(void) {
  for (int round = 0; round < 4000 && !check_failures; round++) {
    char words[4][6], text[20];
    const char *list[4];
    size_t count = 1 + next(4), len = next(19);
    for (size_t i = 0; i < count; i++) {
      size_t n = 1 + next(5);
      for (size_t j = 0; j < n; j++) words[i][j] = (char)('a' + next(2));
      words[i][n] = 0, list[i] = words[i];
    }
    for (size_t j = 0; j < len; j++) text[j] = (char)('a' + next(2 + next(2)));
    text[len] = 0;
    size_t end;
    int want = naive(list, count, text, &end);
    outcome o = feed(list, count, text, next(UINT32_MAX));
    CHECK_INT(o.hit, want);
    CHECK_INT(o.text.len, end);
    CHECK(!end || !memcmp(o.text.data, text, end));
    pe_buf_free(&o.text);
  }
}

/* Nothing is held back that cannot become a stop string. */
static void prompt(void) {
  const char *list[] = {"END"};
  pe_stop *s = open_stop(list, 1);
  pe_buf out = {0};
  pe_error err = {0};
  int hit;
  CHECK_OK(pe_stop_push(s, pe_str_c("plain"), &out, &hit, &err), err);
  CHECK_INT(out.len, 5);
  CHECK_OK(pe_stop_push(s, pe_str_c(" E"), &out, &hit, &err), err);
  CHECK_INT(out.len, 6);
  CHECK_OK(pe_stop_push(s, pe_str_c("N"), &out, &hit, &err), err);
  CHECK_INT(out.len, 6);
  CHECK_OK(pe_stop_push(s, pe_str_c("E"), &out, &hit, &err), err);
  CHECK_INT(out.len, 8);
  CHECK_OK(pe_stop_push(s, pe_str_c("ND and"), &out, &hit, &err), err);
  CHECK_INT(hit, 0);
  CHECK_INT(out.len, 8);
  CHECK_OK(pe_stop_push(s, pe_str_c("more"), &out, &hit, &err), err);
  CHECK_INT(hit, -1);
  CHECK_OK(pe_stop_finish(s, &out, &err), err);
  CHECK_INT(out.len, 8);
  pe_buf_free(&out);
  pe_stop_close(s);
}

/* What was held back is no part of a stop string with the text after `finish`. */
static void begins_anew(void) {
  const char *list[] = {"END"};
  pe_stop *s = open_stop(list, 1);
  pe_buf out = {0};
  pe_error err = {0};
  int hit;
  CHECK_OK(pe_stop_push(s, pe_str_c("EN"), &out, &hit, &err), err);
  CHECK_INT(out.len, 0);
  CHECK_OK(pe_stop_finish(s, &out, &err), err);
  CHECK_INT(out.len, 2);
  CHECK_OK(pe_stop_push(s, pe_str_c("D END"), &out, &hit, &err), err);
  CHECK_INT(hit, 0);
  CHECK_INT(out.len, 4);
  CHECK_OK(pe_stop_finish(s, &out, &err), err);
  CHECK_INT(out.len, 4);
  pe_buf_free(&out);
  pe_stop_close(s);
}

/* Two texts with the same strings know nothing of each other, and either may be closed first. */
static void forks(void) {
  const char *list[] = {"END"};
  for (int first = 0; first < 2; first++) {
    pe_stop *s[2] = {open_stop(list, 1)};
    pe_buf out = {0};
    pe_error err = {0};
    int hit;
    CHECK_OK(pe_stop_push(s[0], pe_str_c("EN"), &out, &hit, &err), err);
    CHECK_OK(pe_stop_fork(s[0], &s[1], &err), err);
    CHECK_OK(pe_stop_push(s[1], pe_str_c("D"), &out, &hit, &err), err);
    CHECK_INT(hit, -1);
    CHECK_INT(out.len, 1);
    CHECK_OK(pe_stop_push(s[0], pe_str_c("D"), &out, &hit, &err), err);
    CHECK_INT(hit, 0);
    pe_stop_close(s[first]);
    if (first) {
      pe_stop_close(s[0]);
    } else {
      CHECK_OK(pe_stop_push(s[1], pe_str_c("END"), &out, &hit, &err), err);
      CHECK_INT(hit, 0);
      pe_stop_close(s[1]);
    }
    pe_buf_free(&out);
  }
}

static void none_and_empty(void) {
  pe_error err = {0};
  pe_stop *s = NULL;
  int hit;
  pe_buf out = {0};
  CHECK_OK(pe_stop_open(NULL, 0, &s, &err), err);
  CHECK_OK(pe_stop_push(s, pe_str_c("all at once"), &out, &hit, &err), err);
  CHECK_INT(out.len, 11);
  CHECK_OK(pe_stop_finish(s, &out, &err), err);
  CHECK_INT(out.len, 11);
  pe_buf_free(&out);
  pe_stop_close(s);
  pe_str list[] = {pe_str_c("a"), pe_str_c("")};
  CHECK_FAILS(pe_stop_open(list, 2, &s, &err), PE_EARG, err,
              "stop string 2 of 2 must not be empty");
  CHECK(s == NULL);
}

static void memory_runs_out(void) {
  const char *list[] = {
      "a long stop string, longer than the first table of the trie has room for edges, really",
      "b"};
  pe_str strings[] = {pe_str_c(list[0]), pe_str_c(list[1])};
  for (int64_t n = 1; n < 100; n++) {
    pe_alloc_fail_at(n);
    pe_stop *s = NULL;
    pe_error err = {0};
    pe_buf out = {0};
    int hit;
    pe_status rc = pe_stop_open(strings, 2, &s, &err);
    if (!rc) rc = pe_stop_push(s, pe_str_c("a long stop, not b"), &out, &hit, &err);
    pe_alloc_fail_at(0);
    pe_stop_close(s);
    pe_buf_free(&out);
    if (!rc) {
      CHECK(n > 5);
      return;
    }
    CHECK_INT(rc, PE_ENOMEM);
  }
  CHECK(!"no run succeeded");
}

static const check_test tests[] = {
    {"every_cut", every_cut},
    {"random_texts", random_texts},
    {"prompt", prompt},
    {"begins_anew", begins_anew},
    {"forks", forks},
    {"none_and_empty", none_and_empty},
    {"memory_runs_out", memory_runs_out},
};
CHECK_MAIN("stop", tests)
