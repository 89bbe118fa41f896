/* device.h - runs the instructions of a plan over one step after another, on one backend.
 *
 *     open         binds a plan and the caches
 *     submit       takes one pe_run per sequence and starts to compute all of their rows
 *     wait         until they are computed
 *     logits, tap  read results back; they stay valid until the next submit
 *     begin, proceed  the same for a step that is laid out already, in parts (towers, tower.h)
 *     close
 *
 *     runs -> layout.c: one flat pe_step -> backend: cpu.c or metal.c -> logits, taps
 *
 * What is the same for all backends is here: laying out a step (layout.h), one step at a time, and
 * whether the weights were intact. Everything else is the backend's (backend.h). Both
 * lower the plan to a program (program.h): all threads of the pool work on its codes in one run per
 * step (cpu.c), or they become the dispatches of one command buffer (metal.c).
 *
 * Between submit and wait the host does not touch the memory of the caches, and does not change the
 * sequences of the step (run.h); everything else it may do. Both pools assert it.
 *
 * Ownership: borrows plan, pool and caches, which must outlive it. Memory of steps grows to the
 * largest one seen. Threads: one caller at a time. */
#ifndef PE_DEVICE_H
#define PE_DEVICE_H

#include "runtime/device/backend.h"

typedef struct pe_device_options {
  const pe_backend *backend; /* NULL: the CPU */
  const pe_plan *plan;
  pe_pool *pool;
  pe_kv *kv; /* NULL, like the next one: the plan has no caches */
  pe_recur *recur;
  pe_precision precision;
  const pe_progress *progress; /* of packing weights; NULL: nobody asks */
} pe_device_options;

pe_status pe_device_open(const pe_device_options *o, pe_device **out, pe_error *err); /* gives */
void pe_device_close(pe_device *d); /* takes; ends a step that runs; NULL is fine */

/* After a failure nothing runs. What the runs borrow is borrowed until the wait. */
pe_status pe_device_submit(pe_device *d, const pe_run *runs, int32_t count, pe_error *err);
/* Of a submitted step. Whatever it returns, nothing runs any more. PE_EIO: a file of the weights
 * was lost (pe_weights_intact); the results are worth nothing. */
pe_status pe_device_wait(pe_device *d, pe_error *err);
/* Both. */
pe_status pe_device_step(pe_device *d, const pe_run *runs, int32_t count, pe_error *err);

/* Line i of the logits, plan->vocabulary floats: the output rows of all runs in order. The caller
 * may change them. */
float *pe_device_logits(const pe_device *d, int32_t i);
/* What the run of output i wanted of its line, if the backend found it. False: read the line. Valid
 * as long. */
bool pe_device_shortlist(const pe_device *d, int32_t i, pe_shortlist *out);
/* Whether it makes such lists at all. */
bool pe_device_lists(const pe_device *d);
/* Row i of tap t, in the shape it has in the graph. */
const float *pe_device_tap(const pe_device *d, size_t t, int32_t i);

/* A step that the caller has laid out, of a plan without caches, in as many parts as the caller
 * likes: `begin` submits it, `proceed` waits until the clock passes until_ns, to the end of what
 * runs then, and sets *done after the last part. The step is borrowed until then. Stopping early
 * costs nothing: the next `begin` starts over. */
pe_status pe_device_begin(pe_device *d, const pe_step *step, pe_error *err);
pe_status pe_device_proceed(pe_device *d, int64_t until_ns, bool *done, pe_error *err);
/* Gives the memory of steps back; a step that was begun is dropped. */
void pe_device_rest(pe_device *d);

/* Counts the time, bytes and multiply-adds of the jobs of all steps from now on (profile.h).
 * PE_EUNSUPPORTED: the backend cannot. */
pe_status pe_device_profile(pe_device *d, pe_error *err);
/* Their sums so far. NULL: it was never switched on. borrows */
struct pe_profile *pe_device_profiled(pe_device *d);

#endif
