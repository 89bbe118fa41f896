/* check.c - finds races and accesses out of bounds in Metal kernels.
 *
 * The kernels are compiled with -fsanitize=thread, but that sanitizer's library is not linked: the
 * functions that the compiler calls before each access are here, and judge by Metal's memory model:
 *
 * - threads of a threadgroup are ordered only by a barrier that names the memory in question;
 * - threads of a simdgroup also by a barrier of the simdgroup;
 * - threadgroups of a launch are never ordered, and launches of one batch neither;
 * - an access lies within a buffer of the launch, memory of the threadgroup that was written
 *   before, the thread's own stack, or (reading) the constants of the program.
 *
 * Every byte of a buffer has a record of its last writer and last reader. One reader is enough:
 * every kernel also runs in reverse order. Reads of what nothing writes cannot race, and leave no
 * record; in a batch every read does, since another launch of it may write. */
#define _GNU_SOURCE
#include "tests/metal/exec/exec.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct stamp { /* which thread and when; launch 0: none */
  uint32_t launch, group;
  uint16_t thread, epoch, simd_epoch;
} stamp;
typedef struct record {
  stamp write, read;
} record;
typedef struct region { /* the bytes of a buffer that was bound */
  uintptr_t from, to;
  record *records;
  struct region *next;
} region;

typedef struct bound { /* an argument of the launch */
  uintptr_t from, to;
  region *region;
  bool writes, only_read; /* itself; by all arguments of a launch without a batch */
} bound;

enum { DEVICE = 1, GROUP = 2 }; /* mem_flags */

static struct {
  const msl_launch *launch;
  uint32_t launches, batch_first, batch;
  uint32_t group, thread;
  uint16_t epoch_device, epoch_group, simd_epoch[MSL_GROUP_THREADS / MSL_LANES];
  uintptr_t own, own_end, memory;
  record group_records[MSL_GROUP_MEMORY];
  region *regions;
  bound bound[MSL_SLOTS], *last; /* of a slot each; the one of the last access */
  int bounds;
} check;

/* ---- regions --------------------------------------------------------------------------------- */

static region *region_of(uintptr_t a) {
  for (region *r = check.regions; r; r = r->next)
    if (a >= r->from && a < r->to) return r;
  return NULL;
}

/* Memory that was freed and is used again begins without history. */
static void region_forget(uintptr_t from, uintptr_t to) {
  for (region **p = &check.regions; *p;) {
    region *r = *p;
    if (r->from >= to || from >= r->to) {
      p = &r->next;
      continue;
    }
    *p = r->next;
    munmap(r->records, (r->to - r->from) * sizeof *r->records);
    free(r);
  }
}

static void region_add(uintptr_t from, size_t bytes) {
  region *r = region_of(from);
  if (!bytes || (r && from + bytes <= r->to)) return;
  region_forget(from, from + bytes);
  r = calloc(1, sizeof *r);
  if (!r) abort();
  *r = (region){.from = from, .to = from + bytes, .next = check.regions};
  r->records = mmap(NULL, bytes * sizeof *r->records, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (r->records == MAP_FAILED) abort();
  check.regions = r;
}

/* ---- hooks ----------------------------------------------------------------------------------- */

static void bind(const msl_launch *l) {
  check.bounds = 0, check.last = check.bound;
  for (const msl_argument *g = l->kernel->arguments; g->index >= 0; g++) {
    const uintptr_t from = (uintptr_t)l->buffer[g->index].at;
    check.bound[check.bounds++] = (bound){.from = from,
                                          .to = from + l->buffer[g->index].bytes,
                                          .region = region_of(from),
                                          .writes = g->writes,
                                          .only_read = l->batch == 0};
  }
  for (int i = 0; i < check.bounds; i++)
    for (int j = 0; j < check.bounds; j++)
      if (check.bound[j].writes && check.bound[i].from < check.bound[j].to &&
          check.bound[j].from < check.bound[i].to)
        check.bound[i].only_read = false;
}

static void on_launch(const msl_launch *l) {
  check.launch = l;
  if (!l) return;
  check.launches++;
  if (l->batch == 0 || l->batch != check.batch)
    check.batch_first = check.launches, check.batch = l->batch;
  for (int i = 0; i < MSL_SLOTS; i++)
    if (l->buffer[i].at) region_add((uintptr_t)l->buffer[i].at, l->buffer[i].bytes);
  bind(l);
}

static void on_group(uint32_t number, const uint8_t *memory) {
  check.group = number, check.memory = (uintptr_t)memory;
  check.epoch_device = check.epoch_group = 1;
  memset(check.simd_epoch, 0, sizeof check.simd_epoch);
}

static void on_resume(uint32_t thread, const uint8_t *own, size_t own_bytes) {
  check.thread = thread, check.own = (uintptr_t)own, check.own_end = check.own + own_bytes;
}

static void on_barrier(uint32_t flags) {
  if (flags & GROUP) check.epoch_group++;
  if (flags & DEVICE) check.epoch_device++;
}

static void on_simdgroup_barrier(uint32_t simdgroup, uint32_t flags) {
  if (flags & (GROUP | DEVICE)) check.simd_epoch[simdgroup]++;
}

/* ---- reports --------------------------------------------------------------------------------- */

/* The name of the buffer that `a` is in or closest to, and its distance. */
static void describe(uintptr_t a, char *out, size_t n) {
  uintptr_t best = UINTPTR_MAX;
  if (a >= check.memory && a < check.memory + MSL_GROUP_MEMORY) {
    snprintf(out, n, "byte %zu of threadgroup memory", (size_t)(a - check.memory));
    return;
  }
  for (const msl_argument *g = check.launch->kernel->arguments; g->index >= 0; g++) {
    const uintptr_t from = (uintptr_t)check.launch->buffer[g->index].at,
                    to = from + check.launch->buffer[g->index].bytes;
    const uintptr_t away = a < from ? from - a : a >= to ? a - to + 1 : 0;
    if (away >= best) continue;
    best = away;
    if (a < from)
      snprintf(out, n, "%s, %zu bytes before it", g->name, (size_t)(from - a));
    else if (a >= to)
      snprintf(out, n, "%s, %zu bytes after its %zu", g->name, (size_t)(a - to),
               (size_t)(to - from));
    else
      snprintf(out, n, "byte %zu of %s", (size_t)(a - from), g->name);
  }
}

/* file:line of an address in the code, from the debugging information. */
static void line_of(const void *code, char *out, size_t n) {
  Dl_info info;
  char command[600];
  snprintf(out, n, "%p", code);
  if (!dladdr(code, &info) || !info.dli_fname) return;
  snprintf(command, sizeof command, "addr2line -e '%s' 0x%zx 2>/dev/null", info.dli_fname,
           (size_t)((const char *)code - (const char *)info.dli_fbase) - 1);
  FILE *f = popen(command, "r");
  if (!f) return;
  if (fgets(out, (int)n, f)) out[strcspn(out, " \n")] = 0;
  pclose(f);
}

static void accuse(const char *what, uintptr_t a, const stamp *other, const void *code) {
  if (msl_faults()) {
    msl_fault("%s", what); /* only the first is told in full */
    return;
  }
  char place[160] = "", line[256], more[120] = "";
  describe(a, place, sizeof place);
  line_of(code, line, sizeof line);
  if (other)
    snprintf(more, sizeof more, "; before: thread %u of group %u%s", other->thread, other->group,
             other->launch == check.launches ? "" : " of an earlier launch without a barrier");
  msl_fault("%s: %s: %s by thread %u of group %u%s", line, what, place, check.thread, check.group,
            more);
}

/* ---- accesses -------------------------------------------------------------------------------- */

static inline bool ordered(const stamp *s, uint16_t epoch) {
  if (!s->launch) return true;
  if (s->launch != check.launches) return s->launch < check.batch_first;
  if (s->group != check.group) return false;
  if (s->thread == check.thread || s->epoch != epoch) return true;
  const uint32_t mine = check.thread / MSL_LANES;
  return s->thread / MSL_LANES == mine && s->simd_epoch != check.simd_epoch[mine];
}

static bool holds(const bound *b, uintptr_t a, size_t n, bool write) {
  return a >= b->from && a + n <= b->to && (!write || b->writes);
}

/* The argument that an access is in; NULL: none. */
static const bound *bound_of(uintptr_t a, size_t n, bool write) {
  if (holds(check.last, a, n, write)) return check.last;
  for (int i = 0; i < check.bounds; i++)
    if (holds(&check.bound[i], a, n, write)) return check.last = &check.bound[i];
  return NULL;
}

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[];
static bool within_program(uintptr_t a) {
  return a >= (uintptr_t)__ehdr_start && a < (uintptr_t)_end;
}

/* The records of n bytes at a; NULL: none are kept, or the access was a fault. */
static record *records_of(uintptr_t a, size_t n, bool write, const void *code) {
  const bound *b = bound_of(a, n, write);
  if (!b) {
    if (write || !within_program(a)) accuse("out of bounds", a, NULL, code);
    return NULL;
  }
  return b->only_read || !b->region ? NULL : b->region->records + (a - b->region->from);
}

/* Memory of a threadgroup is new to each: what another one did there does not count. */
static record *group_records_of(uintptr_t a, size_t n) {
  record *r = check.group_records + (a - check.memory);
  for (size_t i = 0; i < n; i++) {
    stamp *w = &r[i].write, *d = &r[i].read;
    if (w->launch != check.launches || w->group != check.group) w->launch = 0;
    if (d->launch != check.launches || d->group != check.group) d->launch = 0;
  }
  return r;
}

static void touch(const void *at, size_t n, bool write, const void *code) {
  const uintptr_t a = (uintptr_t)at;
  if (!check.launch || (a >= check.own && a < check.own_end)) return;
  const bool shared = a >= check.memory && a + n <= check.memory + MSL_GROUP_MEMORY;
  record *r = shared ? group_records_of(a, n) : records_of(a, n, write, code);
  if (!r) return;
  const uint16_t epoch = shared ? check.epoch_group : check.epoch_device;
  const stamp me = {check.launches, check.group, (uint16_t)check.thread, epoch,
                    check.simd_epoch[check.thread / MSL_LANES]};
  for (size_t i = 0; i < n; i++) {
    if (!write && shared && !r[i].write.launch) {
      accuse("read before it was written", a + i, NULL, code);
      return;
    }
    if (!ordered(&r[i].write, epoch)) {
      accuse(write ? "a race of writes" : "a race: read after a write", a + i, &r[i].write, code);
      return;
    }
    if (write && !ordered(&r[i].read, epoch)) {
      accuse("a race: write after a read", a + i, &r[i].read, code);
      return;
    }
    *(write ? &r[i].write : &r[i].read) = me;
  }
}

static const msl_hooks hooks = {on_launch, on_group, on_resume, on_barrier, on_simdgroup_barrier};
void msl_check_install(void) { msl_hook = &hooks; }

/* ---- the functions that the compiler calls --------------------------------------------------- */

#define CODE __builtin_return_address(0)
#define ACCESS(n)                                                                                  \
  void __tsan_read##n(void *p);                                                                    \
  void __tsan_write##n(void *p);                                                                   \
  void __tsan_unaligned_read##n(void *p);                                                          \
  void __tsan_unaligned_write##n(void *p);                                                         \
  void __tsan_read_write##n(void *p);                                                              \
  void __tsan_read##n(void *p) { touch(p, n, false, CODE); }                                       \
  void __tsan_write##n(void *p) { touch(p, n, true, CODE); }                                       \
  void __tsan_unaligned_read##n(void *p) { touch(p, n, false, CODE); }                             \
  void __tsan_unaligned_write##n(void *p) { touch(p, n, true, CODE); }                             \
  void __tsan_read_write##n(void *p) { touch(p, n, false, CODE), touch(p, n, true, CODE); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_init(void);
void __tsan_func_entry(void *p);
void __tsan_func_exit(void);
void __tsan_read_range(void *p, size_t n);
void __tsan_write_range(void *p, size_t n);
void *__tsan_memcpy(void *to, const void *from, size_t n);
void *__tsan_memset(void *to, int byte, size_t n);
void __tsan_init(void) {}
void __tsan_func_entry(void *p) { (void)p; }
void __tsan_func_exit(void) {}
void __tsan_read_range(void *p, size_t n) { touch(p, n, false, CODE); }
void __tsan_write_range(void *p, size_t n) { touch(p, n, true, CODE); }
void *__tsan_memcpy(void *to, const void *from, size_t n) {
  touch(from, n, false, CODE), touch(to, n, true, CODE);
  return memcpy(to, from, n);
}
void *__tsan_memset(void *to, int byte, size_t n) {
  touch(to, n, true, CODE);
  return memset(to, byte, n);
}
