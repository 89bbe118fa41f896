/* fault.c - see fault.h.
 *
 * Ranges are in a table that never moves, so the handler can walk it without a lock. A range that
 * is being changed has an odd version. The handler skips it, as it skips one whose version changed
 * while it was read: the range in which its own thread reads is watched as long as that thread uses
 * it. */
#include "runtime/fault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

enum { RANGES = 4096 }; /* mapped files at once; the largest models have a few hundred */

struct pe_fault_range {
  unsigned version;
  uintptr_t at, end; /* 0, 0: free */
  int marked;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of changes to the table */
static pe_fault_range ranges[RANGES];
static int used; /* those after this many were never watched */
static struct sigaction before;

/* ---- the handler ----------------------------------------------------------------------------- */

static bool is_in(const pe_fault_range *r, uintptr_t address, uintptr_t *at, uintptr_t *end) {
  unsigned version = __atomic_load_n(&r->version, __ATOMIC_ACQUIRE);
  *at = __atomic_load_n(&r->at, __ATOMIC_ACQUIRE);
  *end = __atomic_load_n(&r->end, __ATOMIC_ACQUIRE);
  bool same = version == __atomic_load_n(&r->version, __ATOMIC_RELAXED);
  return same && !(version & 1) && address >= *at && address < *end;
}

/* All of it at once: page by page there could be more mappings than the system allows. */
static bool replace(void *address) {
  uintptr_t at = 0, end = 0;
  int i = 0, n = __atomic_load_n(&used, __ATOMIC_ACQUIRE);
  while (i < n && !is_in(&ranges[i], (uintptr_t)address, &at, &end)) i++;
  if (i == n) return false;
  pe_fault_mark(&ranges[i]);
  int flags = MAP_PRIVATE | MAP_ANON | MAP_FIXED;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  return mmap((void *)at, end - at, PROT_READ, flags, -1, 0) != MAP_FAILED;
}

/* Without a handler before ours the signal comes again, now with its default action: at once if
 * the thread caused it, since the read is repeated; else it is sent again. */
static void pass_on(int number, siginfo_t *info, void *context) {
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else if (before.sa_handler == SIG_DFL || info->si_code > 0) {
    signal(number, SIG_DFL);
    if (info->si_code <= 0) raise(number);
  }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
  int saved = errno;
  if (info->si_code <= 0 || !replace(info->si_addr)) pass_on(number, info, context);
  errno = saved;
}

static void install(void) {
  struct sigaction ours;
  memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, NULL, &before); /* before ours can be called */
  sigaction(SIGBUS, &ours, NULL);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static void set(pe_fault_range *r, uintptr_t at, uintptr_t end) {
  __atomic_fetch_add(&r->version, 1, __ATOMIC_ACQ_REL);
  __atomic_store_n(&r->at, at, __ATOMIC_RELAXED);
  __atomic_store_n(&r->end, end, __ATOMIC_RELAXED);
  __atomic_store_n(&r->marked, 0, __ATOMIC_RELAXED);
  __atomic_fetch_add(&r->version, 1, __ATOMIC_ACQ_REL);
}

pe_fault_range *pe_fault_watch(void *at, uint64_t size) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < used && ranges[i].end) i++;
  if (i < RANGES) set(&ranges[i], (uintptr_t)at, (uintptr_t)at + (uintptr_t)size);
  if (i == used && i < RANGES) __atomic_store_n(&used, used + 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  return i < RANGES ? &ranges[i] : NULL;
}

void pe_fault_unwatch(pe_fault_range *r) {
  if (!r) return;
  pthread_mutex_lock(&lock);
  set(r, 0, 0);
  pthread_mutex_unlock(&lock);
}

void pe_fault_mark(pe_fault_range *r) { __atomic_store_n(&r->marked, 1, __ATOMIC_RELEASE); }

bool pe_fault_marked(const pe_fault_range *r) {
  return r && __atomic_load_n(&r->marked, __ATOMIC_ACQUIRE);
}
