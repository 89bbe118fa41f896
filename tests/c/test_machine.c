/* test_machine.c - processor, memory and limits of this machine. */
#include "check.h"

#include "kernels/cpu/features.h"
#include "kernels/cpu/int16.h"
#include "kernels/cpu/prim.h"
#include "runtime/machine.h"

#include <sys/stat.h>
#include <unistd.h>

static void test_machine(void) {
  pe_machine m;
  pe_machine_read(&m);
  CHECK(m.system[0]);
  CHECK(m.cores >= 1 && m.cores <= m.cores_online);
  CHECK(m.page_size >= 4096 && (m.page_size & (m.page_size - 1)) == 0);
  CHECK(m.open_files > 0);
#if defined(__linux__) || defined(__APPLE__)
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

#if defined(__x86_64__) && defined(__linux__)
/* Is it one of the words of a line? */
static bool has_word(const char *line, const char *word) {
  const size_t n = strlen(word);
  for (const char *at = line; (at = strstr(at, word)); at += n)
    if (at > line && at[-1] == ' ' && strchr(" \n", at[n])) return true;
  return false;
}

/* The flags of Linux are the features by the same names. Those of AMX are granted to a process on
 * request, so a kernel may list them and refuse. */
static void test_features_of_the_kernel(void) {
  static char line[1 << 14];
  FILE *f = fopen("/proc/cpuinfo", "r");
  bool found = false;
  while (f && !found && fgets(line, sizeof line, f)) found = !strncmp(line, "flags", 5);
  if (f) fclose(f);
  if (!found) CHECK_SKIP("no flags in /proc/cpuinfo");
  for (int i = 0; found && i < PE_CPU_NEON; i++) {
    const char *name = pe_cpu_feature_name((pe_cpu_feature)i);
    const bool listed = has_word(line, i == PE_CPU_SSE42 ? "sse4_2" : name);
    const bool granted = i < PE_CPU_AMX_TILE || i > PE_CPU_AMX_BF16;
    if (pe_cpu_has((pe_cpu_feature)i) == listed || (listed && !granted)) continue;
    printf("    %s: the kernel says %d\n", name, listed);
    check_failures++;
  }
}
#endif

/* The versions of the kernels, the best first; those of prim.h are among them. */
static void test_kernels(void) {
  static const char *const prims[] = {"avx512", "avx2", "neon", "scalar"};
  const char *name, *last = "";
  int count = 0, found = 0, runs = 0;
  for (int at = 0; (name = pe_machine_next_kernels(&at)); last = name, count++) {
    CHECK(pe_int16_named(name) != NULL);
    if (!count) CHECK_STR(name, pe_int16_best()->name);
    for (size_t i = 0; i < sizeof prims / sizeof *prims; i++)
      found += !strcmp(name, prims[i]) && pe_prim_named(name);
  }
  for (size_t i = 0; i < sizeof prims / sizeof *prims; i++) runs += pe_prim_named(prims[i]) != NULL;
  CHECK_STR(last, "scalar");
  CHECK_INT(found, runs);
}

static void test_raise_files(void) {
  uint64_t files = 0;
  pe_machine m;
  pe_error err = {0};
  CHECK_OK(pe_machine_raise_files(&files, &err), err);
  pe_machine_read(&m);
  CHECK(files > 0 && m.open_files == files);
}

#if defined(__linux__)
/* CPU quotas of control groups, both versions. */
static char folder[200];

static void put(const char *name, const char *text) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "w");
  CHECK(f != NULL);
  if (!f) return;
  fputs(text, f);
  fclose(f);
}

static void drop(const char *name) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  CHECK_INT(remove(path), 0);
}

static void make(const char *name) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  CHECK_INT(mkdir(path, 0700), 0);
}

static int quota(void) {
  char groups[300];
  snprintf(groups, sizeof groups, "%s/groups", folder);
  return pe_machine_quota(folder, groups);
}

static void open_folder(void) {
  const char *tmp = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/perigee-cgroup-XXXXXX", tmp ? tmp : "/tmp");
  CHECK(mkdtemp(folder) != NULL);
}

/* A container sees its own group as the root. */
static void test_quota(void) {
  open_folder();
  CHECK_INT(quota(), 0);
  put("cpu.max", "200000 100000\n");
  CHECK_INT(quota(), 2);
  put("cpu.max", "150000 100000\n"); /* a core and a half keeps two threads busy */
  CHECK_INT(quota(), 2);
  put("cpu.max", "max 100000\n");
  CHECK_INT(quota(), 0);
  put("cpu.max", "nonsense");
  CHECK_INT(quota(), 0);
  drop("cpu.max");
  make("cpu");
  put("cpu/cpu.cfs_quota_us", "400000\n"), put("cpu/cpu.cfs_period_us", "100000\n");
  CHECK_INT(quota(), 4);
  put("cpu/cpu.cfs_quota_us", "-1\n");
  CHECK_INT(quota(), 0);
  drop("cpu/cpu.cfs_quota_us"), drop("cpu/cpu.cfs_period_us"), drop("cpu");
  CHECK_INT(rmdir(folder), 0);
}

/* Groups in groups, as those of services: the least of all quotas around the process counts. */
static void test_nested_quota(void) {
  open_folder();
  make("a"), make("a/b"), make("cpu"), make("cpu/c"), make("unified"), make("unified/a");
  put("groups", "0::/a/b\n");
  CHECK_INT(quota(), 0);
  put("a/b/cpu.max", "600000 100000\n");
  CHECK_INT(quota(), 6);
  put("a/cpu.max", "500000 100000\n");
  CHECK_INT(quota(), 5);
  put("a/cpu.max", "max 100000\n");
  CHECK_INT(quota(), 6);
  put("unified/a/cpu.max", "300000 100000\n"); /* where both versions are mounted */
  CHECK_INT(quota(), 3);
  put("cpu/c/cpu.cfs_quota_us", "200000\n"), put("cpu/c/cpu.cfs_period_us", "100000\n");
  CHECK_INT(quota(), 3);
  put("groups", "4:cpuset:/c\n3:cpuacct,cpu:/c\n0::/a/b\n");
  CHECK_INT(quota(), 2);
  put("groups", "4:cpuset:/c\n3:cpuacct:/c\n0::/elsewhere/b\n");
  CHECK_INT(quota(), 0);
  put("groups", "0::/a/../a/b\n0:\n:\n\n0::a\n");
  CHECK_INT(quota(), 3);
  drop("groups"), drop("a/b/cpu.max"), drop("a/cpu.max"), drop("unified/a/cpu.max");
  drop("cpu/c/cpu.cfs_quota_us"), drop("cpu/c/cpu.cfs_period_us");
  drop("a/b"), drop("a"), drop("cpu/c"), drop("cpu"), drop("unified/a"), drop("unified");
  CHECK_INT(rmdir(folder), 0);
}
#endif

static const check_test tests[] = {{"machine", test_machine},
                                   {"feature_names", test_feature_names},
                                   {"features_agree", test_features_agree},
                                   {"kernels", test_kernels},
#if defined(__linux__)
                                   {"quota", test_quota},
                                   {"nested quota", test_nested_quota},
#endif
#if defined(__x86_64__) && defined(__linux__)
                                   {"features_of_the_kernel", test_features_of_the_kernel},
#endif
                                   {"raise_files", test_raise_files}};
CHECK_MAIN("machine", tests)
