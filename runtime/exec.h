/* exec.h - runs the instructions of a plan over one step, on the CPU.
 *
 * The caller describes the step: for each sequence its new tokens, how many came before, and where its caches are. exec
 * lays the rows out flat, resolves every instruction's places to pointers for this run, and lets the pool work through
 * them one by one; between two instructions all threads meet. Results (logits, tapped values) stay valid until the next
 * run.
 *
 * Ownership: borrows plan, pool, caches; owns the areas and the scratch, which grow to the largest step seen. Threads: one
 * caller at a time. */
#ifndef PE_EXEC_H
#define PE_EXEC_H

#include "runtime/kv.h"
#include "runtime/plan.h"
#include "runtime/recur.h"
#include "runtime/thread.h"

typedef struct pe_exec pe_exec;

typedef struct pe_run { /* one sequence of a step */
  const int32_t *token;
  int32_t count, past;
  int32_t outputs;     /* logits of so many last rows */
  int32_t slot;        /* of its recurrent state */
  int32_t rope_length; /* see op.h */
  const pe_kv_seq *kv; /* its tables reach past + count */
} pe_run;

pe_status pe_exec_open(const pe_plan *plan, pe_pool *pool, pe_kv *kv, pe_recur *recur, pe_exec **out, pe_error *err); /* gives */
void pe_exec_close(pe_exec *e);

pe_status pe_exec_step(pe_exec *e, const pe_run *runs, int32_t count, pe_error *err);

/* Line i of the logits (outputs of all runs, one after another), plan->vocabulary floats; borrowed until the next step. */
const float *pe_exec_logits(const pe_exec *e, int32_t i);
/* Row i of tap t, as it was laid out in the graph. */
const float *pe_exec_tap(const pe_exec *e, size_t t, int32_t i);

#endif
