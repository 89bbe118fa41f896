/* device.h - a backend: runs the instructions of a plan over one step.
 *
 *     open        binds a plan and the caches; afterwards nothing refers to hardware but the device
 *     step        takes one pe_run per sequence and computes all of their rows
 *     logits, tap read results back; they stay valid until the next step
 *     begin, proceed  the same in parts, for a step without caches (towers, tower.h)
 *     close
 *
 *     runs -> layout.c: one flat pe_step -> cpu.c: the codes of a program -> logits, taps
 *
 * Laying out a step (layout.h) is the same for every backend. A backend owns everything that
 * depends on the hardware: the areas that hold the values of a step, scratch, and how places in a
 * plan become addresses. The CPU (cpu.c) is the only one. It lowers the plan to a program
 * (program.h), whose codes all threads of the pool work on in one run per step.
 *
 * Ownership: borrows plan, pool and caches, which must outlive it. Areas and scratch grow to the
 * largest step seen. Threads: one caller at a time. */
#ifndef PE_DEVICE_H
#define PE_DEVICE_H

#include "runtime/cache/kv.h"
#include "runtime/cache/recur.h"
#include "runtime/cache/run.h"
#include "runtime/graph/plan.h"
#include "runtime/pool.h"

typedef struct pe_device pe_device;

pe_status pe_device_open(const pe_plan *plan, pe_pool *pool, pe_kv *kv, pe_recur *recur,
                         pe_precision precision, pe_device **out, pe_error *err); /* gives */
void pe_device_close(pe_device *d);

/* PE_EIO: a file of the weights was lost (pe_weights_intact); the results are worth nothing. */
pe_status pe_device_step(pe_device *d, const pe_run *runs, int32_t count, pe_error *err);

/* Line i of the logits, plan->vocabulary floats: the output rows of all runs in order. */
const float *pe_device_logits(const pe_device *d, int32_t i);
/* Row i of tap t, in the shape it has in the graph. */
const float *pe_device_tap(const pe_device *d, size_t t, int32_t i);

/* A step that the caller has laid out, of a plan without caches (kv and recur may be NULL), in as
 * many parts as the caller likes: `begin` provides the memory, `proceed` works until the clock
 * passes until_ns, to the end of the tasks that run then, and sets *done after the last. The step
 * is borrowed until then. Stopping early costs nothing: the next `begin` starts over. */
pe_status pe_device_begin(pe_device *d, const pe_step *step, pe_error *err);
pe_status pe_device_proceed(pe_device *d, int64_t until_ns, bool *done, pe_error *err);

/* Counts the time, bytes and multiply-adds of the jobs of all steps from now on (profile.h). */
pe_status pe_device_profile(pe_device *d, pe_error *err);
/* Their sums so far. NULL: it was never switched on. borrows */
struct pe_profile *pe_device_profiled(pe_device *d);

#endif
