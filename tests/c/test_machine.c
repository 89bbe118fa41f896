/* test_machine.c - processor, memory and limits of this machine. */
#include "check.h"

#include "kernels/cpu/features.h"
#include "runtime/machine.h"

static void test_machine(void) {
  pe_machine m;
  pe_machine_read(&m);
  CHECK(m.system[0]);
  CHECK(m.cores >= 1 && m.cores <= m.cores_online);
  CHECK(m.page_size >= 4096 && (m.page_size & (m.page_size - 1)) == 0);
  CHECK(m.open_files > 0);
#if defined(__linux__)
  CHECK(m.memory > 0);
  CHECK(m.memory_available > 0 && m.memory_available <= m.memory);
  CHECK(m.memory_limit < m.memory);
#endif
}

static void test_feature_names(void) {
  for (int i = 0; i < PE_CPU_FEATURE_COUNT; i++) {
    const char *a = pe_cpu_feature_name((pe_cpu_feature)i);
    CHECK(a[0] && !strchr(a, ' '));
    for (int j = 0; j < i; j++)
      if (!strcmp(a, pe_cpu_feature_name((pe_cpu_feature)j))) {
        printf("    '%s' is the name of features %d and %d\n", a, j, i);
        check_failures++;
      }
  }
  CHECK_STR(pe_cpu_feature_name(PE_CPU_FEATURE_COUNT), "unknown");
}

static void test_features_agree(void) {
  CHECK(pe_cpu_features() == pe_cpu_features());
  CHECK(pe_cpu_features() >> PE_CPU_FEATURE_COUNT == 0);
  static const struct {
    pe_cpu_feature has, needs;
  } rules[] = {{PE_CPU_AVX2, PE_CPU_AVX},         {PE_CPU_AVX512F, PE_CPU_AVX2},
               {PE_CPU_AVX512BW, PE_CPU_AVX512F}, {PE_CPU_AMX_INT8, PE_CPU_AMX_TILE},
               {PE_CPU_AVX, PE_CPU_SSE42},        {PE_CPU_SVE2, PE_CPU_SVE}};
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (pe_cpu_has(rules[i].has) && !pe_cpu_has(rules[i].needs)) {
      printf("    %s without %s\n", pe_cpu_feature_name(rules[i].has),
             pe_cpu_feature_name(rules[i].needs));
      check_failures++;
    }
  int at = 0, n = 0;
  while (pe_machine_next_feature(&at)) n++;
  CHECK_INT(n, __builtin_popcountll(pe_cpu_features()));
#if defined(__aarch64__)
  CHECK(pe_cpu_has(PE_CPU_NEON));
  CHECK(!pe_cpu_has(PE_CPU_AVX));
#elif defined(__x86_64__)
  CHECK(!pe_cpu_has(PE_CPU_NEON));
#endif
}

static void test_raise_files(void) {
  uint64_t files = 0;
  pe_machine m;
  pe_error err = {0};
  CHECK_OK(pe_machine_raise_files(&files, &err), err);
  pe_machine_read(&m);
  CHECK(files > 0 && m.open_files == files);
}

static const check_test tests[] = {{"machine", test_machine},
                                   {"feature_names", test_feature_names},
                                   {"features_agree", test_features_agree},
                                   {"raise_files", test_raise_files}};
CHECK_MAIN("machine", tests)
