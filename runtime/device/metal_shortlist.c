/* metal_shortlist.c - see metal_shortlist.h. */
#include "runtime/device/metal_shortlist.h"

#include "kernels/metal/args.h"
#include "runtime/device/metal_step.h"

enum { PEAK_SIMDGROUPS = 8 }; /* of a group of the first kernel */

pe_status pe_metal_shortlists_open(pe_metal_shortlists *l, pe_gpu *gpu, pe_error *err) {
  static const char *const name[2] = {"shortlist_peaks", "shortlist"};
  pe_metal_error e = {0};
  for (int i = 0; i < 2; i++)
    if (!pe_gpu_pipeline(gpu, &(pe_gpu_kernel){.name = name[i]}, &l->pipeline[i], &e))
      return pe_metal_status(&e, err);
  return PE_OK;
}

void pe_metal_shortlists_free(pe_metal_shortlists *l, pe_gpu *gpu) {
  pe_gpu_free(gpu, &l->peaks), pe_gpu_free(gpu, &l->lists);
}

bool pe_metal_shortlists_asked(const pe_step *step) {
  for (int32_t i = 0; step->best && i < step->outputs; i++)
    if (step->best[i]) return true;
  return false;
}

static int32_t stretches_of(const pe_plan *plan) {
  return (plan->drawable + PE_SHORTLIST_STRETCH - 1) / PE_SHORTLIST_STRETCH;
}

pe_status pe_metal_shortlists_provide(pe_metal_shortlists *l, pe_gpu *gpu, const pe_plan *plan,
                                      const pe_step *step, pe_error *err) {
  const uint64_t outputs = (uint64_t)step->outputs;
  if (!pe_metal_shortlists_asked(step)) return PE_OK;
  const uint64_t peaks = outputs * (uint64_t)stretches_of(plan) * sizeof(float);
  pe_status rc = pe_metal_room(gpu, &l->peaks, peaks, err);
  const uint64_t bytes = outputs * PE_SHORTLIST_WORDS * sizeof(int32_t);
  return rc ? rc : pe_metal_room(gpu, &l->lists, bytes, err);
}

void pe_metal_shortlists_encode(const pe_metal_shortlists *l, pe_commands *c, const pe_plan *plan,
                                const pe_step *step, pe_metal_operand logits,
                                const pe_gpu_buffer *words) {
  const int32_t stretches = stretches_of(plan);
  const pe_metal_shortlist_args args = {plan->drawable, plan->logits.step, stretches};
  const uint32_t groups[2][3] = {
      {(uint32_t)(stretches + PEAK_SIMDGROUPS - 1) / PEAK_SIMDGROUPS, (uint32_t)step->outputs, 1},
      {(uint32_t)step->outputs, 1, 1}};
  const uint32_t threads[2] = {PEAK_SIMDGROUPS * 32, PE_SHORTLIST_STRETCH};
  for (int i = 0; i < 2; i++) {
    pe_commands_barrier(c);
    pe_commands_use(c, l->pipeline[i]);
    pe_commands_bytes(c, PE_SLOT_ARGS, &args, sizeof args);
    if (i) pe_commands_bind(c, PE_SLOT_OUT, &l->lists, 0);
    pe_commands_bind(c, PE_SLOT_SCRATCH, &l->peaks, 0);
    pe_commands_bind(c, PE_SLOT_IN0, logits.buffer, logits.at);
    pe_commands_bind(c, PE_SLOT_STEP, words, 0);
    pe_commands_dispatch(c, groups[i], threads[i]);
  }
}

bool pe_metal_shortlists_get(const pe_metal_shortlists *l, int32_t i, int32_t best,
                             pe_shortlist *out) {
  const int32_t *at =
      (const int32_t *)(const void *)l->lists.data + (int64_t)i * PE_SHORTLIST_WORDS;
  if (at[0] < 1 || at[0] > PE_SHORTLIST_ROOM) return false;
  *out = (pe_shortlist){.id = at + 1,
                        .logit = (const float *)(const void *)(at + 1 + PE_SHORTLIST_ROOM),
                        .count = at[0],
                        .best = best};
  return true;
}
