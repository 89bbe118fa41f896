/* fake_help.h - how a C test talks to the fake Metal: the shared object of PERIGEE_METAL, or the
 * one that make builds. */
#ifndef FAKE_HELP_H
#define FAKE_HELP_H

#include "check.h"
#include "tests/metal/fake/fake.h"

#include <dlfcn.h>

typedef struct fake_control {
  void (*fail_at)(long n, fake_failure how);
  long (*calls)(void), (*complaints)(void), (*living)(void), (*dispatches)(void), (*barriers)(void);
  long (*in_flight)(void), (*forgive)(void), (*encoded)(void);
  void (*set_late)(long waits);
  void (*set_macos)(int version);
  void (*set_most_bytes)(unsigned long bytes);
} fake_control;

static inline bool fake_open(fake_control *out) {
  const char *build = getenv("BUILD");
  char path[512];
  snprintf(path, sizeof path, "%s/tests/fake-metal.so", build ? build : "build");
  setenv("PERIGEE_METAL", path, 0);
  void *so = dlopen(getenv("PERIGEE_METAL"), RTLD_NOW | RTLD_LOCAL);
  const struct {
    const char *name;
    void *out;
  } list[] = {{"fake_fail_at", &out->fail_at},       {"fake_calls", &out->calls},
              {"fake_complaints", &out->complaints}, {"fake_living", &out->living},
              {"fake_dispatches", &out->dispatches}, {"fake_barriers", &out->barriers},
              {"fake_in_flight", &out->in_flight},   {"fake_set_late", &out->set_late},
              {"fake_forgive", &out->forgive},       {"fake_encoded", &out->encoded},
              {"fake_set_macos", &out->set_macos},   {"fake_set_most_bytes", &out->set_most_bytes}};
  if (!so) printf("    %s\n", dlerror());
  for (size_t i = 0; so && i < sizeof list / sizeof *list; i++) {
    void *symbol = dlsym(so, list[i].name);
    if (!symbol) return false;
    memcpy(list[i].out, &symbol, sizeof symbol);
  }
  return so != NULL;
}

/* The tests of a suite, for which there must be a fake. */
static inline int fake_main(fake_control *fake, const char *suite, const check_test *tests,
                            int count, int argc, char **argv) {
  if (fake_open(fake)) return check_main(suite, tests, count, argc, argv);
  printf("FAIL %s: no fake Metal\n%s: 0 passed, 1 failed, 0 skipped\n", suite, suite);
  return 1;
}

#endif
