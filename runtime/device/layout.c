/* layout.c - see layout.h. */
#include "runtime/device/layout.h"

#include <string.h>

enum { ARRAYS = 7 };

static void arrays_of(pe_layout *l, pe_buf *out[ARRAYS]) {
  pe_buf *const all[ARRAYS] = {&l->token,  &l->position, &l->segment_of, &l->segment,
                               &l->output, &l->tables,   &l->table_at};
  memcpy(out, all, sizeof all);
}

void pe_layout_free(pe_layout *l) {
  pe_buf *arrays[ARRAYS];
  arrays_of(l, arrays);
  for (int i = 0; i < ARRAYS; i++) pe_buf_free(arrays[i]);
}

static pe_status put_int(pe_buf *b, int32_t v, pe_error *err) {
  return pe_buf_put(b, &v, sizeof v, err);
}

static pe_status put_tables(pe_layout *l, int32_t groups, const pe_run *r, pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t g = 0; !rc && g < groups; g++) {
    if ((rc = put_int(&l->table_at, (int32_t)(l->tables.len / sizeof(int32_t)), err))) break;
    rc = pe_buf_put(&l->tables, r->kv->table[g], (size_t)r->kv->count[g] * sizeof(int32_t), err);
  }
  return rc;
}

static pe_status put_run(pe_layout *l, int32_t groups, const pe_run *r, int32_t index,
                         pe_error *err) {
  pe_segment s = {.first = l->step.rows,
                  .count = r->count,
                  .past = r->past,
                  .slot = r->slot,
                  .rope_length = r->rope_length,
                  .table = index * groups};
  pe_status rc = pe_buf_put(&l->segment, &s, sizeof s, err);
  if (!rc) rc = pe_buf_put(&l->token, r->token, (size_t)r->count * sizeof(int32_t), err);
  for (int32_t i = 0; !rc && i < r->count; i++) rc = put_int(&l->segment_of, index, err);
  for (int32_t i = r->count - r->outputs; !rc && i < r->count; i++)
    rc = put_int(&l->output, s.first + i, err);
  if (!rc) rc = put_tables(l, groups, r, err);
  l->step.rows += r->count, l->step.outputs += r->outputs;
  return rc;
}

static pe_status put_positions(pe_layout *l, const pe_run *runs, int32_t count, pe_error *err) {
  pe_status rc = PE_OK;
  for (int axis = 0; axis < 3; axis++)
    for (int32_t k = 0; k < count; k++)
      for (int32_t i = 0; !rc && i < runs[k].count; i++)
        rc = put_int(&l->position, runs[k].past + i, err);
  return rc;
}

static pe_status check_run(const pe_kv *kv, const pe_run *r, int32_t index, pe_error *err) {
  if (r->count < 1 || r->outputs < 0 || r->outputs > r->count || r->past < 0)
    return pe_fail(err, PE_EARG, "sequence %d of the step has %d tokens after %d, logits for %d",
                   index, r->count, r->past, r->outputs);
  const int64_t block = kv->block, end = (int64_t)r->past + r->count;
  for (int32_t g = 0; g < kv->graph->group_count; g++) {
    if (r->kv->count[g] * block < end)
      return pe_fail(err, PE_EARG,
                     "sequence %d of the step needs block tables for %lld tokens, got %lld", index,
                     (long long)end, (long long)(r->kv->count[g] * block));
    for (int64_t b = r->past / block; b * block < end; b++)
      if (r->kv->table[g][b] < 0)
        return pe_fail(err, PE_EARG, "sequence %d of the step has no block for token %lld", index,
                       (long long)(b * block));
  }
  return PE_OK;
}

/* The arrays may have moved while they grew, so the pointers of the step are set last. */
static void point_step(pe_layout *l) {
  pe_step *s = &l->step;
  s->token = (const int32_t *)(void *)l->token.data;
  s->position = (const int32_t *)(void *)l->position.data;
  s->segment_of = (const int32_t *)(void *)l->segment_of.data;
  s->segment = (const pe_segment *)(void *)l->segment.data;
  s->output = (const int32_t *)(void *)l->output.data;
  s->tables = (const int32_t *)(void *)l->tables.data;
  s->table_at = (const int32_t *)(void *)l->table_at.data;
}

pe_status pe_layout_step(pe_layout *l, const pe_kv *kv, const pe_run *runs, int32_t count,
                         pe_error *err) {
  const int32_t groups = kv->graph->group_count;
  pe_buf *arrays[ARRAYS];
  arrays_of(l, arrays);
  for (int i = 0; i < ARRAYS; i++) arrays[i]->len = 0;
  l->step = (pe_step){.segments = count, .groups = groups};
  pe_status rc = PE_OK;
  for (int32_t k = 0; !rc && k < count; k++) rc = check_run(kv, &runs[k], k, err);
  for (int32_t k = 0; !rc && k < count; k++) rc = put_run(l, groups, &runs[k], k, err);
  if (!rc) rc = put_positions(l, runs, count, err);
  point_step(l);
  return rc;
}
