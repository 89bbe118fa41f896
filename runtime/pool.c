/* pool.c - see pool.h.
 *
 *     state:  | number of the run, 32 bits | next task, 32 bits |
 *
 * A thread claims a task by a compare-and-swap of `state` to its successor. Before the function,
 * context and count of the next run are written, the word is closed: its task is above any count. A
 * late worker, which holds an old word or fields of two runs, therefore fails the swap and drops
 * them. So a run never waits for workers that have not noticed it yet. */
#if defined(__linux__)
#define _GNU_SOURCE /* affinity */
#include <sched.h>
#endif
#include "runtime/pool.h"
#include "runtime/machine.h"
#include "runtime/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* How long an idle worker spins before it parks. A run whose worker is parked starts 33 us late,
 * one whose worker spins 0.2 us, so spinning about as long as a wake-up costs is at most twice the
 * best choice. Within a step the next run comes in a few microseconds; the gap between two steps is
 * 25 to 73 us, so most steps still begin with parked workers. A larger value would cover that gap,
 * but spin on cores that the loop thread could use, which runs Lua in it. */
enum { SPIN_NS = 30000 };
/* Looks at the state between two readings of the clock: 0.1 to 1.5 us, by the length of the
 * processor's pause. */
enum { SPIN_CHECKS = 32 };

typedef struct worker {
  pe_pool *pool;
  pthread_t thread;
  int number;
} worker;

struct pe_pool {
  _Alignas(64) _Atomic uint64_t state; /* run << 32 | next task */
  _Alignas(64) _Atomic int done;       /* finished tasks of this run */
  _Alignas(64) _Atomic(pe_task_fn *) fn;
  _Atomic(void *) ctx;
  _Atomic int tasks;
  _Atomic int parked; /* workers in the kernel */
  _Atomic bool waiting, stop;
  pthread_mutex_t run_lock, lock;
  const pe_pool *outer;          /* `inside` of the thread that has run_lock, before its run */
  pthread_cond_t work, finished; /* both with `lock` */
  int threads, spin_ns;
  bool affinity;
  worker workers[];
};

static _Thread_local const pe_pool *inside; /* the pool whose task this thread is running */

static uint32_t run_of(uint64_t state) { return (uint32_t)(state >> 32); }
static uint32_t task_of(uint64_t state) { return (uint32_t)state; }

/* Binds the calling worker to the n-th core that this process may use; failure is ignored. */
static void bind_core(int n) {
#if defined(__linux__)
  cpu_set_t set, one;
  if (sched_getaffinity(0, sizeof set, &set) || CPU_COUNT(&set) == 0) return;
  n %= CPU_COUNT(&set);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &set) || n-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
#else
  (void)n;
#endif
}

/* ---- running tasks ------------------------------------------------------------------------- */

static void count_done(pe_pool *p, int tasks) {
  if (atomic_fetch_add(&p->done, 1) + 1 < tasks || !atomic_load(&p->waiting)) return;
  pthread_mutex_lock(&p->lock);
  pthread_cond_signal(&p->finished);
  pthread_mutex_unlock(&p->lock);
}

/* Claims and runs tasks of the current run until none is left. */
static void work_on(pe_pool *p) {
  uint64_t state = atomic_load(&p->state);
  for (;;) {
    pe_task_fn *fn = atomic_load(&p->fn);
    void *ctx = atomic_load(&p->ctx);
    int tasks = atomic_load(&p->tasks);
    if (task_of(state) >= (uint32_t)tasks) return;
    if (!atomic_compare_exchange_weak(&p->state, &state, state + 1)) continue;
    fn(ctx, (int)task_of(state), tasks);
    count_done(p, tasks);
    state = atomic_load(&p->state);
  }
}

static void wait_for_work(pe_pool *p, uint32_t seen) {
  for (int64_t end = p->spin_ns ? pe_clock_ns() + p->spin_ns : 0; end && pe_clock_ns() < end;)
    for (int i = 0; i < SPIN_CHECKS; i++) {
      if (run_of(atomic_load(&p->state)) != seen || atomic_load(&p->stop)) return;
      pe_thread_relax();
    }
  pthread_mutex_lock(&p->lock);
  atomic_fetch_add(&p->parked, 1); /* before the last look at `state`: see wake() */
  while (run_of(atomic_load(&p->state)) == seen && !atomic_load(&p->stop))
    pthread_cond_wait(&p->work, &p->lock);
  atomic_fetch_sub(&p->parked, 1);
  pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg) {
  worker *w = arg;
  pe_pool *p = w->pool;
  if (p->affinity) bind_core(w->number);
  inside = p;
  for (uint32_t seen = 0; !atomic_load(&p->stop);) {
    wait_for_work(p, seen);
    seen = run_of(atomic_load(&p->state));
    work_on(p);
  }
  return NULL;
}

/* The caller stores `state` and then reads `parked`; a worker increments `parked` and then reads
 * `state`. So at least one of them sees the other, and no worker sleeps through a run. */
static void wake(pe_pool *p, int tasks) {
  if (!atomic_load(&p->parked)) return;
  pthread_mutex_lock(&p->lock);
  if (tasks > atomic_load(&p->parked))
    pthread_cond_broadcast(&p->work);
  else
    for (int i = 1; i < tasks; i++) pthread_cond_signal(&p->work);
  pthread_mutex_unlock(&p->lock);
}

static void wait_for_tasks(pe_pool *p, int tasks) {
  for (int64_t end = p->spin_ns ? pe_clock_ns() + p->spin_ns : 0; end && pe_clock_ns() < end;)
    for (int i = 0; i < SPIN_CHECKS; i++) {
      if (atomic_load(&p->done) == tasks) return;
      pe_thread_relax();
    }
  pthread_mutex_lock(&p->lock);
  atomic_store(&p->waiting, true);
  while (atomic_load(&p->done) != tasks) pthread_cond_wait(&p->finished, &p->lock);
  atomic_store(&p->waiting, false);
  pthread_mutex_unlock(&p->lock);
}

void pe_pool_start(pe_pool *p, pe_task_fn *fn, void *ctx, int tasks) {
  pthread_mutex_lock(&p->run_lock);
  p->outer = inside;
  inside = p;
  uint64_t run = run_of(atomic_load(&p->state));
  atomic_store(&p->state, run << 32 | UINT32_MAX);
  atomic_store(&p->fn, fn);
  atomic_store(&p->ctx, ctx);
  atomic_store(&p->tasks, tasks);
  atomic_store(&p->done, 0);
  atomic_store(&p->state, (run + 1) << 32);
  wake(p, tasks);
}

void pe_pool_finish(pe_pool *p) {
  work_on(p);
  wait_for_tasks(p, atomic_load(&p->tasks));
  inside = p->outer;
  pthread_mutex_unlock(&p->run_lock);
}

void pe_pool_run(pe_pool *p, pe_task_fn *fn, void *ctx, int tasks) {
  if (tasks <= 1 || p->threads == 1 || inside == p) {
    for (int i = 0; i < tasks; i++) fn(ctx, i, tasks);
    return;
  }
  pe_pool_start(p, fn, ctx, tasks);
  pe_pool_finish(p);
}

int pe_pool_threads(const pe_pool *p) { return p->threads; }

bool pe_pool_crowded(const pe_pool *p) { return !p->spin_ns; }

/* ---- opening and closing ------------------------------------------------------------------- */

/* Starts the workers with all signals blocked, so that signals reach the threads that handle
 * them. */
static pe_status start(pe_pool *p, int threads, pe_error *err) {
  int rc = 0;
  for (p->threads = 1; p->threads < threads && !rc;) {
    worker *w = &p->workers[p->threads - 1];
    *w = (worker){.pool = p, .number = p->threads};
    if (!(rc = pe_thread_start(&w->thread, worker_main, w))) p->threads++;
  }
  return rc ? pe_fail(err, PE_EIO, "pool: cannot start thread %d of %d: %s", p->threads + 1,
                      threads, strerror(rc))
            : PE_OK;
}

pe_status pe_pool_open(int threads, bool affinity, pe_pool **out, pe_error *err) {
  if (threads < 0 || threads > PE_POOL_MAX)
    return pe_fail(err, PE_EARG, "threads must be between 0 (one per core) and %d, got %d",
                   PE_POOL_MAX, threads);
  int cores = pe_machine_cores();
  if (!threads) threads = cores < PE_POOL_MAX ? cores : PE_POOL_MAX;
  size_t size = sizeof(pe_pool) + (size_t)threads * sizeof(worker);
  pe_pool *p = pe_alloc_aligned(size, 64);
  if (!p) return pe_nomem(err, "compute pool");
  memset(p, 0, size);
  p->affinity = affinity;
  p->spin_ns = threads <= cores ? SPIN_NS : 0;
  pthread_mutex_init(&p->run_lock, NULL);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->work, NULL);
  pthread_cond_init(&p->finished, NULL);
  pe_status rc = start(p, threads, err);
  if (rc)
    pe_pool_close(p);
  else
    *out = p;
  return rc;
}

void pe_pool_close(pe_pool *p) {
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  atomic_store(&p->stop, true);
  pthread_cond_broadcast(&p->work);
  pthread_mutex_unlock(&p->lock);
  for (int i = 0; i + 1 < p->threads; i++) pthread_join(p->workers[i].thread, NULL);
  pthread_cond_destroy(&p->finished);
  pthread_cond_destroy(&p->work);
  pthread_mutex_destroy(&p->lock);
  pthread_mutex_destroy(&p->run_lock);
  pe_free(p);
}
