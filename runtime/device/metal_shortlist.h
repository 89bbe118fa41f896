/* metal_shortlist.h - the last dispatches of a step: two find the best logits of the outputs that
 * asked for them, and a third one sums up the weights of their blocks, if some output wants that
 * (pe_step, shortlist.metal). So the host reads a few hundred words of an output instead of its
 * line. The third one runs beside the second.
 *
 * Ownership: borrows the device of Metal. Threads: one at a time. */
#ifndef PE_METAL_SHORTLIST_H
#define PE_METAL_SHORTLIST_H

#include "runtime/device/backend.h"
#include "runtime/device/metal_store.h"

typedef struct pe_metal_shortlists { /* {0} is empty */
  pe_gpu_buffer peaks, lists, sums;
  pe_id pipeline[3];
} pe_metal_shortlists;

/* Compiles the kernels. */
pe_status pe_metal_shortlists_open(pe_metal_shortlists *l, pe_gpu *gpu, pe_error *err);
void pe_metal_shortlists_free(pe_metal_shortlists *l,
                              pe_gpu *gpu); /* the memory; the next step takes more */

int32_t pe_metal_shortlists_asked(const pe_step *step); /* how many of the kernels it needs */
pe_status pe_metal_shortlists_provide(pe_metal_shortlists *l, pe_gpu *gpu, const pe_plan *plan,
                                      const pe_step *step, pe_error *err);
/* logits: line 0; words: the arrays of the step (metal_step.h). */
void pe_metal_shortlists_encode(const pe_metal_shortlists *l, pe_commands *c, const pe_plan *plan,
                                const pe_step *step, pe_metal_operand logits,
                                const pe_gpu_buffer *words);
/* Of output i of a step that is done, which wanted this of it. False: there are too many logits in
 * its list, or its best logit is not a number. */
bool pe_metal_shortlists_get(const pe_metal_shortlists *l, const pe_plan *plan, int32_t i,
                             const pe_wanted *wanted, pe_shortlist *out);

#endif
