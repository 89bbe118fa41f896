/* metal_shortlist.c - see metal_shortlist.h. */
#include "runtime/device/metal_shortlist.h"

#include "kernels/metal/args.h"
#include "kernels/scan.h"
#include "runtime/device/metal_step.h"

enum { PEAKS, LIST, SUMS, KERNELS };
enum { SIMDGROUPS = 8 }; /* of a group of PEAKS and SUMS */
enum { SUM_BLOCKS = 2 }; /* of a simdgroup */
_Static_assert((int)PE_SHORTLIST_STRETCH == (int)PE_SCAN_PEAK &&
                   (int)PE_SHORTLIST_BLOCK == (int)PE_SCAN_BLOCK,
               "as the sampler looks at a row");

pe_status pe_metal_shortlists_open(pe_metal_shortlists *l, pe_gpu *gpu, pe_error *err) {
  static const char *const name[KERNELS] = {"shortlist_peaks", "shortlist", "shortlist_sums"};
  pe_metal_error e = {0};
  for (int i = 0; i < KERNELS; i++)
    if (!pe_gpu_pipeline(gpu, &(pe_gpu_kernel){.name = name[i]}, &l->pipeline[i], &e))
      return pe_metal_status(&e, err);
  return PE_OK;
}

void pe_metal_shortlists_free(pe_metal_shortlists *l, pe_gpu *gpu) {
  pe_gpu_free(gpu, &l->peaks), pe_gpu_free(gpu, &l->lists), pe_gpu_free(gpu, &l->sums);
}

static bool wants_sums(const pe_wanted *w, int i) { return w->sums[i].scale > 0; }

int32_t pe_metal_shortlists_asked(const pe_step *step) {
  int32_t kernels = 0;
  for (int32_t i = 0; step->wanted && i < step->outputs; i++) {
    const pe_wanted *w = &step->wanted[i];
    if (!w->best) continue;
    const int32_t needs = wants_sums(w, 0) || wants_sums(w, 1) ? KERNELS : SUMS;
    if (needs > kernels) kernels = needs;
  }
  return kernels;
}

static int32_t parts_of(const pe_plan *plan, int32_t size) {
  return (plan->drawable + size - 1) / size;
}
static int32_t stretches_of(const pe_plan *plan) { return parts_of(plan, PE_SHORTLIST_STRETCH); }
static int32_t blocks_of(const pe_plan *plan) { return parts_of(plan, PE_SHORTLIST_BLOCK); }

pe_status pe_metal_shortlists_provide(pe_metal_shortlists *l, pe_gpu *gpu, const pe_plan *plan,
                                      const pe_step *step, pe_error *err) {
  const uint64_t outputs = (uint64_t)step->outputs;
  const int32_t kernels = pe_metal_shortlists_asked(step);
  if (!kernels) return PE_OK;
  const uint64_t peaks = outputs * (uint64_t)stretches_of(plan) * sizeof(float);
  pe_status rc = pe_metal_room(gpu, &l->peaks, peaks, err);
  const uint64_t bytes = outputs * PE_SHORTLIST_WORDS * sizeof(int32_t);
  if (!rc) rc = pe_metal_room(gpu, &l->lists, bytes, err);
  const uint64_t sums = outputs * 2 * (uint64_t)blocks_of(plan) * sizeof(float);
  return rc || kernels < KERNELS ? rc : pe_metal_room(gpu, &l->sums, sums, err);
}

void pe_metal_shortlists_encode(const pe_metal_shortlists *l, pe_commands *c, const pe_plan *plan,
                                const pe_step *step, pe_metal_operand logits,
                                const pe_gpu_buffer *words) {
  const int32_t kernels = pe_metal_shortlists_asked(step);
  const pe_metal_shortlist_args args = {plan->drawable, plan->logits.step, stretches_of(plan),
                                        blocks_of(plan)};
  const uint32_t outputs = (uint32_t)step->outputs;
  const uint32_t groups[KERNELS][3] = {
      [PEAKS] = {(uint32_t)parts_of(plan, PE_SHORTLIST_STRETCH * SIMDGROUPS), outputs, 1},
      [LIST] = {outputs, 1, 1},
      [SUMS] = {(uint32_t)parts_of(plan, PE_SHORTLIST_BLOCK * SUM_BLOCKS * SIMDGROUPS), outputs,
                2}};
  const uint32_t threads[KERNELS] = {SIMDGROUPS * 32, PE_SHORTLIST_STRETCH, SIMDGROUPS * 32};
  for (int i = 0; i < kernels; i++) {
    if (i != SUMS) pe_commands_barrier(c);
    pe_commands_use(c, l->pipeline[i]);
    pe_commands_bytes(c, PE_SLOT_ARGS, &args, sizeof args);
    if (i != PEAKS) pe_commands_bind(c, PE_SLOT_OUT, i == LIST ? &l->lists : &l->sums, 0);
    pe_commands_bind(c, PE_SLOT_SCRATCH, &l->peaks, 0);
    pe_commands_bind(c, PE_SLOT_IN0, logits.buffer, logits.at);
    pe_commands_bind(c, PE_SLOT_STEP, words, 0);
    pe_commands_dispatch(c, groups[i], threads[i]);
  }
}

bool pe_metal_shortlists_get(const pe_metal_shortlists *l, const pe_plan *plan, int32_t i,
                             const pe_wanted *wanted, pe_shortlist *out) {
  const int32_t *at =
      (const int32_t *)(const void *)l->lists.data + (int64_t)i * PE_SHORTLIST_WORDS;
  if (at[0] < 1 || at[0] > PE_WANTED_ROOM) return false;
  *out = (pe_shortlist){.wanted = *wanted,
                        .id = at + 1,
                        .logit = (const float *)(const void *)(at + 1 + PE_WANTED_ROOM),
                        .count = at[0]};
  const float *sums = (const float *)(const void *)l->sums.data;
  for (int k = 0; k < 2; k++)
    if (wants_sums(wanted, k)) out->sum[k] = sums + (2 * (int64_t)i + k) * blocks_of(plan);
  return true;
}
