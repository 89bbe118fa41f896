/* recur.h - the state of recurrent layers (short convolutions, delta rules, state space models).
 *
 * A slot holds the states of all such layers of one sequence, in the order of the graph. A new slot
 * is zero, the initial state of every recurrence. A state cannot be trimmed; instead a snapshot, an
 * immutable counted copy of a slot at a known position, is restored into any slot later.
 *
 * A model without such layers has slots of size 0; their snapshots are NULL and always succeed.
 * Threads: one at a time, the engine's. While a step is submitted (device.h) the slots are the
 * kernels': nothing here may touch their memory, and asserts that. */
#ifndef PE_RECUR_H
#define PE_RECUR_H

#include "runtime/graph/graph.h"

typedef struct pe_recur {
  float *data;         /* slot s starts at s * slot_floats */
  int64_t slot_floats; /* 0: the model has no such layer */
  int32_t slots;
  pe_buffer *memory; /* all slots, from the start of a page */
  bool busy;         /* a step is submitted; set by the device */
  /* ---- private ---- */
  int32_t *free_list, free_count;
} pe_recur;

typedef struct pe_snapshot { /* counted; NULL if slots have size 0 */
  int32_t refs;
  int32_t position; /* tokens that the state has processed */
  float data[];
} pe_snapshot;

pe_status pe_recur_open(const pe_graph *g, int32_t slots, pe_recur **out,
                        pe_error *err); /* gives */
void pe_recur_close(pe_recur *r);
/* A zero slot; PE_ELIMIT if none is left. */
pe_status pe_recur_take(pe_recur *r, int32_t *slot, pe_error *err);
void pe_recur_give(pe_recur *r, int32_t slot);
/* The state in a slot, slot_floats numbers, for the host. */
float *pe_recur_slot(const pe_recur *r, int32_t slot);
void pe_recur_zero(pe_recur *r, int32_t slot);
void pe_recur_copy(pe_recur *r, int32_t from, int32_t to);

/* Gives. */
pe_status pe_recur_snapshot(const pe_recur *r, int32_t slot, int32_t position, pe_snapshot **out,
                            pe_error *err);
/* s may be NULL if slots have size 0. */
void pe_recur_restore(pe_recur *r, int32_t slot, const pe_snapshot *s);
pe_snapshot *pe_snapshot_retain(pe_snapshot *s); /* returns s, which may be NULL */
void pe_snapshot_release(pe_snapshot *s);
uint64_t pe_recur_bytes(const pe_recur *r); /* of one slot or snapshot */

#endif
