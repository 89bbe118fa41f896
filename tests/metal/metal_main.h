/* metal_main.h - the main function of the suites of kernels: on the executor, with CHECKED under
 * the checker, with CUDA on an NVIDIA GPU. */
#ifndef METAL_MAIN_H
#define METAL_MAIN_H

#include "check.h"
#include "tests/metal/exec/exec.h"

#ifdef CUDA
/* False: the suite ends with *status. */
static inline bool metal_install(const char *suite, int count, int *status) {
  const char *build = getenv("BUILD"), *why = "";
  char folder[512];
  snprintf(folder, sizeof folder, "%s/cuda", build ? build : "build");
  const msl_cuda is = msl_cuda_install(folder, &why);
  *status = is == MSL_CUDA_BROKEN;
  if (is == MSL_CUDA_READY) return true;
  printf("%s %s: %s\n", *status ? "FAIL" : "skip", suite, why);
  printf("%s: 0 passed, %d failed, %d skipped\n", suite, *status, *status ? 0 : count);
  return false;
}
#else
static inline bool metal_install(const char *suite, int count, int *status) {
  (void)suite, (void)count, (void)status;
#ifdef CHECKED
  msl_check_install();
#endif
  return true;
}
#endif

static inline int metal_main(const char *suite, const check_test *tests, int count, int argc,
                             char **argv) {
  int status;
  msl_init_all();
  return metal_install(suite, count, &status) ? check_main(suite, tests, count, argc, argv)
                                              : status;
}

#endif
