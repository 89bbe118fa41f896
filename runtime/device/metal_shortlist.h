/* metal_shortlist.h - the last two dispatches of a step: the best logits of the outputs that asked
 * for them (pe_step, shortlist.metal), so that the host reads a few hundred words of an output
 * instead of its line.
 *
 * Ownership: borrows the device of Metal. Threads: one at a time. */
#ifndef PE_METAL_SHORTLIST_H
#define PE_METAL_SHORTLIST_H

#include "runtime/device/backend.h"
#include "runtime/device/metal_store.h"

typedef struct pe_metal_shortlists { /* {0} is empty */
  pe_gpu_buffer peaks, lists;
  pe_id pipeline[2];
} pe_metal_shortlists;

/* Compiles both kernels. */
pe_status pe_metal_shortlists_open(pe_metal_shortlists *l, pe_gpu *gpu, pe_error *err);
void pe_metal_shortlists_free(pe_metal_shortlists *l,
                              pe_gpu *gpu); /* the memory; the next step takes more */

bool pe_metal_shortlists_asked(const pe_step *step);
pe_status pe_metal_shortlists_provide(pe_metal_shortlists *l, pe_gpu *gpu, const pe_plan *plan,
                                      const pe_step *step, pe_error *err);
/* logits: line 0; words: the arrays of the step (metal_step.h). */
void pe_metal_shortlists_encode(const pe_metal_shortlists *l, pe_commands *c, const pe_plan *plan,
                                const pe_step *step, pe_metal_operand logits,
                                const pe_gpu_buffer *words);
/* Of output i of a step that is done, which asked for `best` logits of it. False: there are too
 * many in its list, or its best logit is not a number. */
bool pe_metal_shortlists_get(const pe_metal_shortlists *l, int32_t i, int32_t best,
                             pe_shortlist *out);

#endif
