/* machine.c - see machine.h. */
#if defined(__linux__)
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "runtime/machine.h"

#include <errno.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

#include "kernels/cpu/features.h"
#include "kernels/cpu/int16.h"

#if defined(__linux__)

/* Finds the first line of a file that starts with `key`; out is the value after the colon. */
static bool find_line(const char *path, const char *key, char *out, size_t size) {
  FILE *f = fopen(path, "r");
  if (!f) return false;
  char line[512];
  bool found = false;
  while (!found && fgets(line, sizeof line, f)) {
    if (strncmp(line, key, strlen(key))) continue;
    const char *s = line + strlen(key);
    s += strspn(s, " \t:");
    snprintf(out, size, "%.*s", (int)strcspn(s, "\n"), s);
    found = true;
  }
  fclose(f);
  return found;
}

/* ---- control groups -------------------------------------------------------------------------- */

/* A limit that a group sets, in its folder; 0: none. Files of version 2 and of version 1. */
typedef uint64_t group_limit(const char *group);

static bool read_limit(const char *group, const char *file, char *out, size_t size) {
  char path[1200];
  snprintf(path, sizeof path, "%s/%s", group, file);
  return find_line(path, "", out, size);
}

/* Cores, rounded up. Version 2 has "quota period" or "max period" in one file, version 1 two files
 * and -1. */
static uint64_t cores_of(const char *group) {
  char text[64], per[64];
  long long quota = 0, period = 0;
  if (read_limit(group, "cpu.max", text, sizeof text)) {
    if (sscanf(text, "%lld %lld", &quota, &period) != 2) return 0;
  } else if (read_limit(group, "cpu.cfs_quota_us", text, sizeof text) &&
             read_limit(group, "cpu.cfs_period_us", per, sizeof per)) {
    quota = strtoll(text, NULL, 10), period = strtoll(per, NULL, 10);
  }
  if (quota <= 0 || period <= 0) return 0;
  return (uint64_t)(quota / period + (quota % period != 0));
}

static uint64_t bytes_of(const char *group) {
  char text[64];
  if (!read_limit(group, "memory.max", text, sizeof text) &&
      !read_limit(group, "memory.limit_in_bytes", text, sizeof text))
    return 0;
  return strtoull(text, NULL, 10); /* "max" reads as 0 */
}

static uint64_t least(uint64_t a, uint64_t b) { return !a || (b && b < a) ? b : a; }

/* The least limit of a group and of those around it, up to the root. */
static uint64_t climb(const char *root, const char *group, group_limit *limit) {
  char at[1100];
  const size_t end = strlen(root);
  uint64_t found = 0;
  if (*group != '/' || snprintf(at, sizeof at, "%s%s", root, group) >= (int)sizeof at) return 0;
  for (;; *strrchr(at, '/') = 0) {
    found = least(found, limit(at));
    if (strlen(at) <= end) return found;
  }
}

/* Is a word in a list with commas? */
static bool lists(const char *list, const char *word) {
  const size_t n = strlen(word);
  for (; *list; list += strcspn(list, ","), list += *list == ',')
    if (strcspn(list, ",") == n && !strncmp(list, word, n)) return true;
  return false;
}

/* Groups are mounted in `folder`: of version 2 there or in `unified`, of version 1 in a folder for
 * each controller. Those of this process are in the file `groups`, in lines of
 * "number:controllers:path"; version 2 names no controllers. A container may see paths that are
 * not mounted there, and its own group as the root. */
static uint64_t limit_by(const char *folder, const char *groups, const char *controller,
                         group_limit *limit) {
  char unified[300], own[300], line[1100];
  snprintf(unified, sizeof unified, "%s/unified", folder);
  snprintf(own, sizeof own, "%s/%s", folder, controller);
  uint64_t found = least(limit(folder), least(limit(unified), limit(own)));
  FILE *f = fopen(groups, "r");
  while (f && fgets(line, sizeof line, f)) {
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path) continue;
    *path++ = 0, path[strcspn(path, "\n")] = 0, list++;
    if (!*list)
      found = least(found, least(climb(folder, path, limit), climb(unified, path, limit)));
    else if (lists(list, controller))
      found = least(found, climb(own, path, limit));
  }
  if (f) fclose(f);
  return found;
}

static const char *const CGROUPS = "/sys/fs/cgroup", *const OWN_GROUPS = "/proc/self/cgroup";

int pe_machine_quota(const char *folder, const char *groups) {
  const uint64_t cores = limit_by(folder, groups, "cpu", cores_of);
  return cores < INT_MAX ? (int)cores : 0;
}

/* ---- the system ------------------------------------------------------------------------------ */

static uint64_t kilobytes(const char *key) {
  char text[64];
  return find_line("/proc/meminfo", key, text, sizeof text) ? strtoull(text, NULL, 10) * 1024 : 0;
}

static void ask_system(pe_machine *m) {
  if (!find_line("/proc/cpuinfo", "model name", m->cpu, sizeof m->cpu))
    find_line("/proc/cpuinfo", "CPU part", m->cpu, sizeof m->cpu);
  m->memory = kilobytes("MemTotal");
  m->memory_available = kilobytes("MemAvailable");
  const uint64_t limit = limit_by(CGROUPS, OWN_GROUPS, "memory", bytes_of);
  if (limit < m->memory) m->memory_limit = limit;
}

#elif defined(__APPLE__)

/* Bytes that programs and the system itself hold. The rest is free, a cache of files, or marked as
 * purgeable by its owner. */
static uint64_t memory_held(void) {
  vm_statistics64_data_t pages;
  mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
  mach_port_t host = mach_host_self();
  kern_return_t rc = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&pages, &n);
  mach_port_deallocate(mach_task_self(), host);
  if (rc) return UINT64_MAX;
  uint64_t held = (uint64_t)pages.internal_page_count + pages.wire_count +
                  pages.compressor_page_count - pages.purgeable_count;
  return held * vm_kernel_page_size;
}

static void ask_system(pe_machine *m) {
  size_t size = sizeof m->cpu;
  if (sysctlbyname("machdep.cpu.brand_string", m->cpu, &size, NULL, 0)) m->cpu[0] = 0;
  size = sizeof m->memory;
  if (sysctlbyname("hw.memsize", &m->memory, &size, NULL, 0)) m->memory = 0;
  uint64_t held = memory_held();
  if (held < m->memory) m->memory_available = m->memory - held;
}

#else
static void ask_system(pe_machine *m) { (void)m; }
#endif

static int cores_online(void) {
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

int pe_machine_cores(void) {
  int cores = cores_online(), quota = 0;
#if defined(__linux__)
  cpu_set_t set;
  quota = pe_machine_quota(CGROUPS, OWN_GROUPS);
  if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) > 0) cores = CPU_COUNT(&set);
#endif
  return quota && quota < cores ? quota : cores;
}

static uint64_t limit_of(int resource) {
  struct rlimit r;
  if (getrlimit(resource, &r)) return 0;
  return r.rlim_cur == RLIM_INFINITY ? UINT64_MAX : r.rlim_cur;
}

void pe_machine_read(pe_machine *out) {
  *out = (pe_machine){0};
  struct utsname name;
  if (uname(&name) >= 0)
    snprintf(out->system, sizeof out->system, "%.20s %.30s %.20s", name.sysname, name.release,
             name.machine);
  out->cores_online = cores_online();
  out->cores = pe_machine_cores();
  long n = sysconf(_SC_PAGESIZE);
  out->page_size = n > 0 ? (uint64_t)n : 0;
  out->open_files = limit_of(RLIMIT_NOFILE);
  out->locked_memory = limit_of(RLIMIT_MEMLOCK);
  ask_system(out);
}

pe_status pe_machine_raise_files(uint64_t *files, pe_error *err) {
  struct rlimit limit;
  int rc = getrlimit(RLIMIT_NOFILE, &limit);
  rlim_t most = rc ? 0 : limit.rlim_max;
#if defined(__APPLE__)
  if (most > OPEN_MAX) most = OPEN_MAX; /* setrlimit refuses more, even below the hard limit */
#endif
  if (!rc && limit.rlim_cur < most) {
    limit.rlim_cur = most;
    rc = setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (rc)
    return pe_fail(err, PE_EIO, "cannot raise the limit of open files to %llu: %s",
                   (unsigned long long)most, strerror(errno));
  *files = limit_of(RLIMIT_NOFILE);
  return PE_OK;
}

const char *pe_machine_next_feature(int *at) {
  while (*at < PE_CPU_FEATURE_COUNT) {
    pe_cpu_feature f = (pe_cpu_feature)(*at)++;
    if (pe_cpu_has(f)) return pe_cpu_feature_name(f);
  }
  return NULL;
}

const char *pe_machine_next_kernels(int *at) {
  const pe_int16 *version = pe_int16_next(at);
  return version ? version->name : NULL;
}
