/* pool.h - the compute pool: a fixed set of threads that run one function over a number of tasks.
 *
 * pe_pool_run hands out task numbers 0 ... tasks-1 through one atomic counter to the workers and to
 * the calling thread, and returns when the last task is done; everything the tasks wrote is then
 * visible to the caller. Which thread runs which task is not fixed, so a task must write only what
 * belongs to its number: then the result does not depend on the number of threads.
 *
 * A run in two parts (start, finish) lets the caller do something else while the workers begin; it
 * takes its tasks when it comes back.
 *
 * An idle worker spins for tens of microseconds, because the next run of a step usually comes that
 * soon, and then parks in the kernel. A pool with more threads than cores never spins. A run does
 * not wait for workers that wake up too late to take a task.
 *
 * Ownership and threads. The pool belongs to its opener, who closes it when no thread runs on it
 * any more. Any thread may call pe_pool_run; runs of two threads on one pool are serialized. A run
 * from inside a task of the same pool is executed inline by that thread, in order. A task gets its
 * number and the count, never the pool, and must not block on another task. Workers block all
 * signals. */
#ifndef PE_POOL_H
#define PE_POOL_H

#include "runtime/base.h"

typedef struct pe_pool pe_pool;
typedef void pe_task_fn(void *ctx, int task, int tasks);

enum { PE_POOL_MAX = 1024 }; /* threads of one pool */

/* Gives a pool of `threads` threads, including the caller (0: one per usable core). With
 * `affinity` each worker is bound to one core, if the system supports it (Linux); the caller is
 * never bound. */
pe_status pe_pool_open(int threads, bool affinity, pe_pool **out, pe_error *err);
void pe_pool_close(pe_pool *pool); /* takes; joins the workers; NULL is fine */

void pe_pool_run(pe_pool *pool, pe_task_fn *fn, void *ctx, int tasks);
/* The same in two parts, by one thread, not inside a task. Runs of that thread in between are
 * executed inline; runs of others wait. */
void pe_pool_start(pe_pool *pool, pe_task_fn *fn, void *ctx, int tasks);
void pe_pool_finish(pe_pool *pool);
int pe_pool_threads(const pe_pool *pool);
bool pe_pool_crowded(const pe_pool *pool); /* more threads than cores: waiting must not spin */

#endif
