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

static uint64_t kilobytes(const char *key) {
  char text[64];
  return find_line("/proc/meminfo", key, text, sizeof text) ? strtoull(text, NULL, 10) * 1024 : 0;
}

static void ask_system(pe_machine *m) {
  if (!find_line("/proc/cpuinfo", "model name", m->cpu, sizeof m->cpu))
    find_line("/proc/cpuinfo", "CPU part", m->cpu, sizeof m->cpu);
  m->memory = kilobytes("MemTotal");
  m->memory_available = kilobytes("MemAvailable");
  char text[64];
  if (find_line("/sys/fs/cgroup/memory.max", "", text, sizeof text) ||
      find_line("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", text, sizeof text)) {
    uint64_t limit = strtoull(text, NULL, 10); /* "max" reads as 0 */
    if (limit < m->memory) m->memory_limit = limit;
  }
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

#if defined(__linux__)
/* CPUs that a quota of the control group allows, rounded up; 0: no limit. Version 2 has "quota
 * period" or "max period" in one file, version 1 two files and -1. */
int pe_machine_quota(const char *folder) {
  char path[512], text[64];
  long long quota = 0, period = 0;
  snprintf(path, sizeof path, "%s/cpu.max", folder);
  if (find_line(path, "", text, sizeof text)) {
    if (sscanf(text, "%lld %lld", &quota, &period) != 2) return 0;
  } else {
    snprintf(path, sizeof path, "%s/cpu/cpu.cfs_quota_us", folder);
    if (!find_line(path, "", text, sizeof text)) return 0;
    quota = strtoll(text, NULL, 10);
    snprintf(path, sizeof path, "%s/cpu/cpu.cfs_period_us", folder);
    if (!find_line(path, "", text, sizeof text)) return 0;
    period = strtoll(text, NULL, 10);
  }
  if (quota <= 0 || period <= 0) return 0;
  long long cores = quota / period + (quota % period != 0);
  return cores < INT_MAX ? (int)cores : 0;
}
#else
int pe_machine_quota(const char *folder) {
  (void)folder;
  return 0;
}
#endif

static int cores_online(void) {
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

int pe_machine_cores(void) {
  int cores = cores_online(), quota = pe_machine_quota("/sys/fs/cgroup");
#if defined(__linux__)
  cpu_set_t set;
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
