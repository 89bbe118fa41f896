/* device.h - runs the instructions of a plan over one step, on the CPU.
 *
 * The caller describes the step: for each sequence its new tokens, how many came before, and where its caches are. exec
 * lays the rows out flat, resolves every instruction's places to pointers for this run, and lets the pool work through
 * them one by one; between two instructions all threads meet. Results (logits, tapped values) stay valid until the next
 * run.
 *
 * Ownership: borrows plan, pool, caches; owns the areas and the scratch, which grow to the largest step seen. Threads: one
 * caller at a time. */
#ifndef PE_DEVICE_H
#define PE_DEVICE_H

#include "runtime/cache/kv.h"
#include "runtime/cache/run.h"
#include "runtime/graph/plan.h"
#include "runtime/cache/recur.h"
#include "runtime/pool.h"

typedef struct pe_device pe_device;

pe_status pe_device_open(const pe_plan *plan, pe_pool *pool, pe_kv *kv, pe_recur *recur,
                         pe_device **out, pe_error *err); /* gives */
void pe_device_close(pe_device *e);

pe_status pe_device_step(pe_device *e, const pe_run *runs, int32_t count, pe_error *err);

/* Line i of the logits (outputs of all runs, one after another), plan->vocabulary floats; borrowed until the next step. */
const float *pe_device_logits(const pe_device *e, int32_t i);
/* Row i of tap t, as it was laid out in the graph. */
const float *pe_device_tap(const pe_device *e, size_t t, int32_t i);

#endif
