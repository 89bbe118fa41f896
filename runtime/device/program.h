/* program.h - a plan lowered for execution: codes in order, and which of them may overlap.
 *
 * In `exact` precision every instruction becomes one code. In `fast`, products with quantized
 * weights take packed weights (packs.h) and activations rounded to 16-bit numbers; a value is
 * rounded once, by a code of its own, for all products that read it:
 *
 *     h = norm x             0  h = norm x
 *     q = linear h           1  round h to slot 0
 *     k = linear h           2  q = product of slot 0        2, 3 and 4 may overlap
 *     v = linear h           3  k = product of slot 0
 *                            4  v = product of slot 0
 *
 * Slots are memory of the backend; values that are never needed at the same time share one. Here
 * nobody else reads h, so code 0 is `joined`: it does not run, and what rounds h computes the norm.
 * That is code 1, or, if a backend finds that better for few rows, each of 2, 3 and 4. All of them
 * count as readers of x.
 *
 * Gated MLPs and attention can round their results themselves, while these are in the cache. If
 * nobody else reads such a result, they write it to the slot, and the code that would round it is
 * joined:
 *
 *     m = gated h            5  m = gated slot 0, to slot 1
 *     y = linear m           6  round m to slot 1            joined
 *                            7  y = product of slot 1
 *
 * All threads of a device walk the codes in order and take tasks of each one as they come. A code
 * that reads what an earlier one writes, or writes what an earlier one reads or writes, must wait
 * for it; the others begin at once. `after` is how far back a code must look: it begins when all
 * codes before number `after` are done. Memory that values share (plan.h), the KV cache of a layer
 * and the state of a recurrence count as what an instruction reads and writes.
 *
 * Ownership: borrows the plan, which must outlive it; holds its packs. Threads: immutable. */
#ifndef PE_PROGRAM_H
#define PE_PROGRAM_H

#include "runtime/graph/plan.h"
#include "runtime/weights/packs.h"

typedef enum pe_round {
  PE_ROUND_CODES, /* for packed weights: int16.h */
  PE_ROUND_TILES  /* for bf16 weights on tiles: amx16.h; not packed */
} pe_round;

typedef struct pe_rounded { /* a value as 16-bit numbers */
  pe_round kind;
  pe_place of;
  pe_extent rows;
  int32_t cols, act;   /* act: values that share a scale; of tiles 0 */
  int32_t slot;        /* where it is kept, */
  int32_t first, last; /* from the code that rounds it to the last one that reads it */
  int32_t from;        /* the code that writes it: `first`, or the one whose result it is */
  int32_t norm;        /* the joined code whose result it is; -1: none */
} pe_rounded;

typedef struct pe_code {
  const pe_instr *instr; /* of a code that rounds: its first reader */
  int32_t round;         /* the value that it rounds; -1: it runs the instruction */
  int32_t reads[2];      /* the rounded inputs of both weights; -1: none */
  int32_t writes;        /* the rounded value that it writes instead of its result; -1: none */
  const pe_pack *pack, *pack2;
  int32_t after;
  bool joined;       /* it does not run: another code does its work */
  bool outputs_only; /* steps without outputs skip it: so do all its readers if it rounds */
} pe_code;

typedef struct pe_program {
  const pe_plan *plan;
  pe_precision precision;
  pe_code *code;
  int32_t count;
  pe_rounded *rounded;
  int32_t rounded_count, slots;
  /* ---- private ---- */
  size_t code_cap, rounded_cap;
} pe_program;

/* gives. The pool packs weights that no other program has packed; `progress` (NULL: nobody) hears
 * of their bytes, and in the end that all are done, also after a failure. */
pe_status pe_program_open(const pe_plan *plan, pe_precision precision, pe_pool *pool,
                          const pe_progress *progress, pe_program **out, pe_error *err);
void pe_program_close(pe_program *p); /* takes; NULL is fine */

/* Do two values share memory? A place is `step` floats per row, all lines of a value together. */
bool pe_program_overlap(const pe_place *a, const pe_place *b);
/* Are they the same lines? */
bool pe_program_same(const pe_place *a, const pe_place *b);
/* Do both use the KV cache of a layer, one of them to write, or the same state? */
bool pe_program_share(const pe_instr *x, const pe_instr *y);

#endif
