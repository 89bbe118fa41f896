/* sampler_help.h - what the suites of the sampler share: numbers that are the same in every run,
 * and a sampler. */
#ifndef SAMPLER_HELP_H
#define SAMPLER_HELP_H

#include "check.h"
#include "runtime/batch/sampler.h"

static uint64_t state = 7;
static inline double unit(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (double)(state >> 11) * 0x1p-53;
}
static inline int32_t below(int32_t n) { return (int32_t)(unit() * n); }

static inline pe_sampler *open_sampler(int32_t n) {
  pe_sampler *s = NULL;
  pe_error err = {0};
  CHECK_OK(pe_sampler_open(n, &s, &err), err);
  return s;
}

#endif
