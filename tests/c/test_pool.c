/* test_pool.c - the compute pool: every task once, results visible, nested and concurrent runs, any
 * number of threads. */
#if defined(__linux__)
#define _GNU_SOURCE /* affinity */
#endif
#include "check.h"
#include "runtime/machine.h"
#include "runtime/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum { MANY = 1000 };

typedef struct tally {
  int count[MANY]; /* not atomic, because each belongs to one task */
  int wrong_total;
} tally;

static void tick(void *ctx, int task, int tasks) {
  tally *t = ctx;
  t->count[task]++;
  if (tasks > MANY) t->wrong_total = 1;
}

static void every_task_runs_once(void) {
  static const int threads[] = {1, 2, 3, 8, 0};
  static const int tasks[] = {0, 1, 2, 3, 7, MANY};
  for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
    pe_error err;
    pe_pool *p = NULL;
    CHECK_OK(pe_pool_open(threads[i], false, &p, &err), err);
    CHECK_INT(pe_pool_threads(p), threads[i] ? threads[i] : pe_machine_cores());
    for (int round = 0; round < 20; round++)
      for (size_t j = 0; j < sizeof tasks / sizeof *tasks; j++) {
        tally t = {0};
        pe_pool_run(p, tick, &t, tasks[j]);
        int bad = t.wrong_total;
        for (int k = 0; k < MANY; k++) bad += t.count[k] != (k < tasks[j]);
        CHECK_INT(bad, 0);
      }
    pe_pool_close(p);
  }
}

/* Short runs in quick succession: a late worker must not touch the next run. */
static void add_run(void *ctx, int task, int tasks) {
  atomic_int *sum = ctx;
  atomic_fetch_add(sum, task + tasks);
}

static void many_short_runs(void) {
  pe_error err;
  pe_pool *p;
  CHECK_OK(pe_pool_open(4, false, &p, &err), err);
  int wrong = 0;
  for (int i = 0; i < 20000; i++) {
    int tasks = i % 5;
    atomic_int sum = 0;
    pe_pool_run(p, add_run, &sum, tasks);
    wrong += sum != tasks * (tasks - 1) / 2 + tasks * tasks;
  }
  CHECK_INT(wrong, 0);
  pe_pool_close(p);
}

static void parked_workers_wake(void) {
  pe_error err;
  pe_pool *p;
  CHECK_OK(pe_pool_open(2, false, &p, &err), err);
  for (int i = 0; i < 50; i++) {
    nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL); /* longer than a worker spins */
    tally t = {0};
    pe_pool_run(p, tick, &t, 4);
    CHECK_INT(t.count[0] + t.count[1] + t.count[2] + t.count[3], 4);
  }
  pe_pool_close(p);
}

/* As many tasks as threads meet, which they can only if each has its thread. */
typedef struct meeting {
  atomic_int here, late, bound, signals;
} meeting;

static void meet(void *ctx, int task, int tasks) {
  meeting *m = ctx;
  sigset_t blocked;
  time_t end = time(NULL) + 30;
  (void)task;
  pthread_sigmask(SIG_BLOCK, NULL, &blocked);
  atomic_fetch_add(&m->signals, !sigismember(&blocked, SIGTERM));
#if defined(__linux__)
  cpu_set_t set;
  if (!pthread_getaffinity_np(pthread_self(), sizeof set, &set))
    atomic_fetch_add(&m->bound, CPU_COUNT(&set) == 1);
#endif
  atomic_fetch_add(&m->here, 1);
  while (atomic_load(&m->here) < tasks && !atomic_load(&m->late)) {
    sched_yield();
    if (time(NULL) > end) atomic_store(&m->late, 1);
  }
}

/* Also when all workers are parked, or more of them than there are tasks. Signals reach the caller
 * alone. */
static void threads_meet(void) {
  pe_error err;
  for (int threads = 2; threads < 6; threads++) {
    pe_pool *p = NULL;
    CHECK_OK(pe_pool_open(threads, false, &p, &err), err);
    CHECK_INT(pe_pool_crowded(p), threads > pe_machine_cores());
    for (int tasks = threads; tasks > 1; tasks--) {
      meeting m = {0};
      nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
      pe_pool_run(p, meet, &m, tasks);
      CHECK(!m.late);
      CHECK_INT(m.here, tasks);
      CHECK_INT(m.signals, 1);
    }
    pe_pool_close(p);
  }
}

typedef struct nest {
  pe_pool *pool;
  tally inner[8];
} nest;

static void nest_task(void *ctx, int task, int tasks) {
  nest *n = ctx;
  (void)tasks;
  pe_pool_run(n->pool, tick, &n->inner[task], 5);
}

static void nested_runs_are_inline(void) {
  pe_error err;
  static nest n;
  CHECK_OK(pe_pool_open(3, false, &n.pool, &err), err);
  memset(n.inner, 0, sizeof n.inner);
  pe_pool_run(n.pool, nest_task, &n, 8);
  for (int i = 0; i < 8; i++)
    for (int k = 0; k < 6; k++) CHECK_INT(n.inner[i].count[k], k < 5);
  pe_pool_close(n.pool);
}

static void *caller(void *arg) {
  pe_pool *p = arg;
  intptr_t wrong = 0;
  for (int i = 0; i < 500; i++) {
    tally t = {0};
    pe_pool_run(p, tick, &t, 6);
    for (int k = 0; k < 6; k++) wrong += t.count[k] != 1;
  }
  return (void *)wrong;
}

static void callers_take_turns(void) {
  pe_error err;
  pe_pool *p;
  pthread_t other;
  void *wrong = NULL;
  CHECK_OK(pe_pool_open(2, false, &p, &err), err);
  CHECK_INT(pthread_create(&other, NULL, caller, p), 0);
  CHECK_INT((intptr_t)caller(p), 0);
  pthread_join(other, &wrong);
  CHECK_INT((intptr_t)wrong, 0);
  pe_pool_close(p);
}

static void affinity_is_harmless(void) {
  pe_error err;
  pe_pool *p;
  tally t = {0};
  int cores = pe_machine_cores();
  CHECK_OK(pe_pool_open(cores + 1, true, &p, &err), err);
  pe_pool_run(p, tick, &t, 64);
  int sum = 0;
  for (int i = 0; i < 64; i++) sum += t.count[i];
  CHECK_INT(sum, 64);
  CHECK_INT(pe_machine_cores(), cores); /* the caller is not bound */
  meeting m = {0};
  pe_pool_run(p, meet, &m, cores + 1);
  CHECK(!m.late);
#if defined(__linux__)
  if (cores > 1) CHECK_INT(m.bound, cores); /* all workers are */
#endif
  pe_pool_close(p);
}

static void misuse_and_no_memory(void) {
  pe_error err;
  pe_pool *p = NULL;
  CHECK_FAILS(pe_pool_open(-1, false, &p, &err), PE_EARG, err, "got -1");
  CHECK_FAILS(pe_pool_open(PE_POOL_MAX + 1, false, &p, &err), PE_EARG, err, "1024");
  pe_alloc_fail_at(1);
  CHECK_FAILS(pe_pool_open(2, false, &p, &err), PE_ENOMEM, err, "compute pool");
  pe_alloc_fail_at(0);
  CHECK(!p);
  pe_pool_close(NULL);
}

static void count_task(void *ctx, int task, int tasks) {
  (void)task, (void)tasks;
  atomic_fetch_add((atomic_int *)ctx, 1);
}

/* Workers begin before the caller comes back; without workers the caller does it all. */
static void in_two_parts(void) {
  pe_error err;
  for (int threads = 1; threads < 4; threads++) {
    pe_pool *p = NULL;
    CHECK_OK(pe_pool_open(threads, false, &p, &err), err);
    for (int i = 0; i < 50; i++) {
      atomic_int count = 0;
      tally inner = {0};
      time_t end = time(NULL) + 30;
      pe_pool_start(p, count_task, &count, 4);
      while (threads > 1 && !atomic_load(&count) && time(NULL) < end) sched_yield();
      CHECK_INT(atomic_load(&count) > 0, threads > 1);
      pe_pool_run(p, tick, &inner, 3); /* by this thread, while the pool is busy */
      CHECK_INT(inner.count[0] + inner.count[1] + inner.count[2], 3);
      pe_pool_finish(p);
      CHECK_INT(count, 4);
    }
    tally t = {0};
    pe_pool_run(p, tick, &t, 4); /* it is free again */
    CHECK_INT(t.count[3], 1);
    pe_pool_close(p);
  }
}

static const check_test tests[] = {
    {"every_task_runs_once", every_task_runs_once},
    {"many_short_runs", many_short_runs},
    {"parked_workers_wake", parked_workers_wake},
    {"threads_meet", threads_meet},
    {"nested_runs_are_inline", nested_runs_are_inline},
    {"callers_take_turns", callers_take_turns},
    {"in_two_parts", in_two_parts},
    {"affinity_is_harmless", affinity_is_harmless},
    {"misuse_and_no_memory", misuse_and_no_memory},
};
CHECK_MAIN("pool", tests)
