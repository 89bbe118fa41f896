/* check.h - the C test harness: a test is a static function, a suite a list of them, and a failure
 * prints both values.
 *
 * After each test the number of living runtime allocations must be the same as before: a leak is a
 * failure. tests/run.sh adds up the closing lines "N passed, N failed, N skipped". */
#ifndef CHECK_H
#define CHECK_H

#include "runtime/base.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_failures; /* of the current test */
static const char *check_skipped;

#define CHECK(cond)                                                                                \
  do {                                                                                             \
    if (!(cond)) check_failures++, printf("    %s:%d: %s\n", __FILE__, __LINE__, #cond);           \
  } while (0)
#define CHECK_INT(got, want)                                                                       \
  do {                                                                                             \
    long long g_ = (long long)(got), w_ = (long long)(want);                                       \
    if (g_ != w_)                                                                                  \
      check_failures++,                                                                            \
          printf("    %s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, g_, w_);           \
  } while (0)
#define CHECK_NEAR(got, want, tol)                                                                 \
  do {                                                                                             \
    double g_ = (got), w_ = (want);                                                                \
    if (!(fabs(g_ - w_) <= (tol)))                                                                 \
      check_failures++,                                                                            \
          printf("    %s:%d: %s is %.9g, not %.9g\n", __FILE__, __LINE__, #got, g_, w_);           \
  } while (0)
#define CHECK_STR(got, want)                                                                       \
  do {                                                                                             \
    const char *g_ = (got), *w_ = (want);                                                          \
    if (strcmp(g_, w_))                                                                            \
      check_failures++,                                                                            \
          printf("    %s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__, #got, g_, w_);       \
  } while (0)
/* A status that must be PE_OK; prints the error's text. */
#define CHECK_OK(rc, err)                                                                          \
  do {                                                                                             \
    pe_status r_ = (rc);                                                                           \
    if (r_)                                                                                        \
      check_failures++, printf("    %s:%d: %s failed (%s): %s\n", __FILE__, __LINE__, #rc,         \
                               pe_status_name(r_), (err).text);                                    \
  } while (0)
/* A status that must be this failure, with this part in its text of one line. */
#define CHECK_FAILS(rc, want, err, part)                                                           \
  do {                                                                                             \
    pe_status r_ = (rc);                                                                           \
    if (r_ != (want))                                                                              \
      check_failures++, printf("    %s:%d: %s is %s, not %s\n", __FILE__, __LINE__, #rc,           \
                               pe_status_name(r_), pe_status_name(want));                          \
    else if (!strstr((err).text, part) || strchr((err).text, '\n'))                                \
      check_failures++,                                                                            \
          printf("    %s:%d: error \"%s\" lacks \"%s\"\n", __FILE__, __LINE__, (err).text, part);  \
  } while (0)
/* Returns from the test, which counts as skipped for this reason. */
#define CHECK_SKIP(why)                                                                            \
  do {                                                                                             \
    check_skipped = (why);                                                                         \
    return;                                                                                        \
  } while (0)

typedef struct check_test {
  const char *name;
  void (*run)(void);
} check_test;

static inline int check_main(const char *suite, const check_test *tests, int count, int argc,
                             char **argv) {
  int passed = 0, failed = 0, skipped = 0;
  for (int i = 0; i < count; i++) {
    if (argc > 1 && !strstr(tests[i].name, argv[1])) continue;
    int64_t live = pe_alloc_live();
    check_failures = 0, check_skipped = NULL;
    tests[i].run();
    if (pe_alloc_live() != live)
      check_failures++,
          printf("    %s: %" PRId64 " allocations leaked\n", tests[i].name, pe_alloc_live() - live);
    if (check_failures)
      failed++, printf("FAIL %s/%s\n", suite, tests[i].name);
    else if (check_skipped)
      skipped++, printf("skip %s/%s: %s\n", suite, tests[i].name, check_skipped);
    else
      passed++;
    fflush(stdout);
  }
  printf("%s: %d passed, %d failed, %d skipped\n", suite, passed, failed, skipped);
  return failed != 0;
}
#define CHECK_MAIN(suite, tests)                                                                   \
  int main(int argc, char **argv) {                                                                \
    return check_main(suite, tests, (int)(sizeof(tests) / sizeof *(tests)), argc, argv);           \
  }

#endif
