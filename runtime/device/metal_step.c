/* metal_step.c - see metal_step.h. */
#include "runtime/device/metal_step.h"

#include "kernels/metal/args.h"
#include "runtime/device/metal_store.h"

#include <string.h>

pe_status pe_metal_room(pe_gpu *gpu, pe_gpu_buffer *b, uint64_t bytes, pe_error *err) {
  pe_metal_error e = {0};
  if (b->size >= bytes) return PE_OK;
  const uint64_t most = pe_gpu_facts_of(gpu)->most_bytes;
  const uint64_t more = b->size && bytes + bytes / 2 <= most ? bytes + bytes / 2 : bytes;
  pe_gpu_free(gpu, b);
  return pe_gpu_allocate(gpu, more, b, &e) ? PE_OK : pe_metal_status(&e, err);
}

typedef struct array { /* of the step */
  int32_t *offset;     /* where its place goes; -1 if it has none */
  const void *from;    /* NULL: the step has no such array */
  int64_t words;
} array;

enum { ARRAYS = 14 + PE_REGIONS };

static int64_t lookups_of(const pe_step *s) {
  return s->tower.lookup.at ? s->tower.lookup.at[s->rows] : 0;
}

static void list_arrays(const pe_step *s, pe_metal_step *h, array out[ARRAYS]) {
  const int64_t rows = s->rows, tables = (int64_t)s->segments * s->groups;
  const pe_tower_step *t = &s->tower;
  const array all[ARRAYS] = {
      {&h->token, s->token, rows},
      {&h->position, s->position, 3 * rows},
      {&h->segment_of, s->segment_of, rows},
      {&h->segment, s->segment, (int64_t)s->segments * (int64_t)(sizeof(pe_segment) / 4)},
      {&h->output, s->output, s->outputs},
      {&h->wanted, s->wanted, s->outputs * (int64_t)(sizeof(pe_wanted) / 4)},
      {&h->tables, s->tables, s->table_count},
      {&h->table_at, s->table_at, tables},
      {&h->feature, s->feature, rows},
      {&h->last, s->last, rows},
      {&h->lookup_at, t->lookup.at, rows + 1},
      {&h->lookup_index, t->lookup.index, lookups_of(s)},
      {&h->lookup_weight, t->lookup.weight, lookups_of(s)},
      {&h->merge, t->merge, (int64_t)s->outputs * t->merge_count},
      {&h->region[0], t->region[0].list, (int64_t)t->region[0].count * 2},
      {&h->region[1], t->region[1].list, (int64_t)t->region[1].count * 2}};
  memcpy(out, all, sizeof all);
}

static pe_metal_step head_of(const pe_step *s) {
  pe_metal_step h = {.rows = s->rows,
                     .segments = s->segments,
                     .outputs = s->outputs,
                     .groups = s->groups,
                     .ahead = s->ahead,
                     .feature_planes = s->feature_planes,
                     .feature_width = s->feature_width,
                     .patch_width = s->tower.patch_width,
                     .merge_count = s->tower.merge_count};
  for (int i = 0; i < PE_REGIONS; i++)
    h.region_count[i] = s->tower.region[i].count, h.region_longest[i] = s->tower.region[i].longest;
  return h;
}

/* Sixteen bytes, so that kernels may read four words of any array at once. */
static int64_t aligned(int64_t words) { return (words + 3) / 4 * 4; }

static pe_status fill_words(pe_metal_arrays *a, pe_gpu *gpu, const pe_step *step, pe_error *err) {
  pe_metal_step head = head_of(step);
  array list[ARRAYS];
  list_arrays(step, &head, list);
  int64_t words = aligned(sizeof head / sizeof(int32_t));
  for (int i = 0; i < ARRAYS; i++) {
    *list[i].offset = list[i].from && list[i].words ? (int32_t)words : -1;
    if (list[i].from) words += aligned(list[i].words);
  }
  if (words > INT32_MAX)
    return pe_fail(err, PE_ELIMIT, "a step of %lld words; a GPU addresses %d", (long long)words,
                   INT32_MAX);
  pe_status rc = pe_metal_room(gpu, &a->words, (uint64_t)words * sizeof(int32_t), err);
  if (rc) return rc;
  int32_t *at = (int32_t *)(void *)a->words.data;
  memcpy(at, &head, sizeof head);
  for (int i = 0; i < ARRAYS; i++)
    if (*list[i].offset >= 0)
      memcpy(at + *list[i].offset, list[i].from, (size_t)list[i].words * sizeof(int32_t));
  return PE_OK;
}

/* Floats of the lines of a step: features, or patches; a step has one of the two. */
static uint64_t line_floats(const pe_step *s, const float **from) {
  int64_t lines = 0;
  if (s->tower.patch) {
    *from = s->tower.patch;
    return (uint64_t)s->rows * (uint64_t)s->tower.patch_width;
  }
  for (int32_t i = 0; s->feature && i < s->rows; i++) lines += s->feature[i] >= 0;
  *from = s->features;
  return (uint64_t)lines * (uint64_t)s->feature_planes * (uint64_t)s->feature_width;
}

pe_status pe_metal_arrays_fill(pe_metal_arrays *a, pe_gpu *gpu, const pe_step *step,
                               pe_error *err) {
  const float *from;
  const uint64_t bytes = line_floats(step, &from) * sizeof(float);
  pe_status rc = fill_words(a, gpu, step, err);
  if (!rc && bytes) rc = pe_metal_room(gpu, &a->lines, bytes, err);
  if (!rc && bytes) memcpy(a->lines.data, from, bytes);
  return rc;
}

pe_wanted pe_metal_arrays_wanted(const pe_metal_arrays *a, int32_t i) {
  const int32_t *words = (const int32_t *)(const void *)a->words.data;
  const int32_t at = ((const pe_metal_step *)(const void *)words)->wanted;
  return at < 0 ? (pe_wanted){0} : ((const pe_wanted *)(const void *)(words + at))[i];
}

void pe_metal_arrays_free(pe_metal_arrays *a, pe_gpu *gpu) {
  pe_gpu_free(gpu, &a->words), pe_gpu_free(gpu, &a->lines);
}
