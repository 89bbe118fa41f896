/* device.c - see device.h. */
#include "runtime/device/device.h"

#include <string.h>

struct pe_device {
  const pe_plan *plan;
  pe_pool *pool;
  pe_kv *kv;
  pe_recur *recur;
  const pe_prim *prim; /* asked for once: to ask costs more than a small instruction */
  pe_buffer *rows, *outputs, *scratch; /* the two areas; what tasks work in */
  int32_t row_cap, output_cap;
  pe_step step;
  pe_buf token, position, segment_of, segment, output, tables; /* the arrays of `step` */
  int32_t table_size[PE_GRAPH_GROUPS];
};

pe_status pe_device_open(const pe_plan *plan, pe_pool *pool, pe_kv *kv, pe_recur *recur,
                         pe_device **out, pe_error *err) {
  pe_device *e = pe_calloc(1, sizeof *e);
  if (!e) return pe_nomem(err, "exec");
  e->plan = plan, e->pool = pool, e->kv = kv, e->recur = recur, e->prim = pe_prim_best();
  *out = e;
  return PE_OK;
}

void pe_device_close(pe_device *e) {
  if (!e) return;
  pe_buf *bufs[] = {&e->token, &e->position, &e->segment_of, &e->segment, &e->output, &e->tables};
  for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) pe_buf_free(bufs[i]);
  pe_buffer_release(e->rows), pe_buffer_release(e->outputs), pe_buffer_release(e->scratch);
  pe_free(e);
}

/* ---- the rows of a step -------------------------------------------------------------------------------------- */

static pe_status put_int(pe_buf *b, int32_t v, pe_error *err) {
  return pe_buf_put(b, &v, sizeof v, err);
}

static pe_status put_tables(pe_device *e, const pe_run *r, pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t g = 0; !rc && g < e->plan->graph->group_count; g++) {
    int32_t have = r->kv->count[g];
    rc = pe_buf_put(&e->tables, r->kv->table[g], (size_t)have * 4, err);
    for (; !rc && have < e->table_size[g]; have++) rc = put_int(&e->tables, -1, err);
  }
  return rc;
}

static pe_status put_run(pe_device *e, const pe_run *r, int32_t index, pe_error *err) {
  pe_segment s = {.first = e->step.rows,
                  .count = r->count,
                  .past = r->past,
                  .slot = r->slot,
                  .rope_length = r->rope_length,
                  .table = (int32_t)(e->tables.len / 4)};
  pe_status rc = pe_buf_put(&e->segment, &s, sizeof s, err);
  if (!rc) rc = pe_buf_put(&e->token, r->token, (size_t)r->count * 4, err);
  for (int32_t i = 0; !rc && i < r->count; i++) rc = put_int(&e->segment_of, index, err);
  for (int32_t i = r->count - r->outputs; !rc && i < r->count; i++)
    rc = put_int(&e->output, s.first + i, err);
  if (!rc) rc = put_tables(e, r, err);
  e->step.rows += r->count, e->step.outputs += r->outputs;
  return rc;
}

static pe_status put_positions(pe_device *e, const pe_run *runs, int32_t count, pe_error *err) {
  pe_status rc = PE_OK;
  for (int axis = 0; axis < 3; axis++)
    for (int32_t k = 0; k < count; k++)
      for (int32_t i = 0; !rc && i < runs[k].count; i++)
        rc = put_int(&e->position, runs[k].past + i, err);
  return rc;
}

static pe_status check_run(const pe_device *e, const pe_run *r, int32_t index, pe_error *err) {
  const pe_graph *g = e->plan->graph;
  if (r->count < 1 || r->outputs < 0 || r->outputs > r->count || r->past < 0)
    return pe_fail(err, PE_EARG, "sequence %d of the step: %d tokens after %d, logits of %d", index,
                   r->count, r->past, r->outputs);
  const int64_t block = e->kv->block, end = (int64_t)r->past + r->count;
  for (int32_t i = 0; i < g->group_count; i++) {
    if (r->kv->count[i] * block < end)
      return pe_fail(err, PE_EARG,
                     "sequence %d of the step: tables for %lld tokens, %lld are needed", index,
                     (long long)(r->kv->count[i] * block), (long long)end);
    for (int64_t b = r->past / block; b * block < end; b++)
      if (r->kv->table[i][b] < 0)
        return pe_fail(err, PE_EARG, "sequence %d of the step: no block for token %lld", index,
                       (long long)(b * block));
  }
  return PE_OK;
}

static pe_status lay_out(pe_device *e, const pe_run *runs, int32_t count, pe_error *err) {
  pe_buf *bufs[] = {&e->token, &e->position, &e->segment_of, &e->segment, &e->output, &e->tables};
  for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) bufs[i]->len = 0;
  memset(&e->step, 0, sizeof e->step), memset(e->table_size, 0, sizeof e->table_size);
  pe_status rc = PE_OK;
  for (int32_t k = 0; !rc && k < count; k++) {
    rc = check_run(e, &runs[k], k, err);
    for (int32_t g = 0; g < e->plan->graph->group_count; g++)
      if (runs[k].kv->count[g] > e->table_size[g]) e->table_size[g] = runs[k].kv->count[g];
  }
  for (int32_t k = 0; !rc && k < count; k++) rc = put_run(e, &runs[k], k, err);
  if (!rc) rc = put_positions(e, runs, count, err);
  pe_step *s = &e->step;
  s->segments = count, s->groups = e->plan->graph->group_count;
  s->token = (const int32_t *)(void *)e->token.data,
  s->position = (const int32_t *)(void *)e->position.data;
  s->segment_of = (const int32_t *)(void *)e->segment_of.data,
  s->segment = (const pe_segment *)(void *)e->segment.data;
  s->output = (const int32_t *)(void *)e->output.data,
  s->tables = (const int32_t *)(void *)e->tables.data;
  s->table_size = e->table_size;
  return rc;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static pe_status room(pe_buffer **b, int32_t *cap, int32_t rows, int64_t floats_per_row,
                      pe_error *err) {
  if (*b && rows <= *cap) return PE_OK;
  int32_t want = rows < 16 ? 16 : rows;
  pe_buffer_release(*b);
  *b = NULL, *cap = 0;
  uint64_t bytes;
  if (!pe_mul_size((uint64_t)want * 4, (uint64_t)floats_per_row, &bytes))
    return pe_fail(err, PE_ELIMIT, "a step of %d rows", rows);
  pe_status rc = pe_buffer_reserve(bytes, b, err);
  if (!rc) *cap = want;
  return rc;
}

static pe_status scratch_for(pe_device *e, int64_t floats, pe_error *err) {
  uint64_t bytes = (uint64_t)floats * 4;
  if (e->scratch && e->scratch->size >= bytes) return PE_OK;
  pe_buffer_release(e->scratch);
  e->scratch = NULL;
  return pe_buffer_reserve(bytes + bytes / 2, &e->scratch, err);
}

static pe_cpu_view view_of(const pe_device *e, const pe_place *p) {
  if (p->rows == PE_EXTENT_CONST) return (pe_cpu_view){0};
  bool out = p->rows == PE_EXTENT_OUTPUT;
  float *area = (float *)(void *)(out ? e->outputs : e->rows)->data;
  return (pe_cpu_view){area + p->at * (out ? e->output_cap : e->row_cap) + p->offset, p->step};
}

/* ---- running ------------------------------------------------------------------------------------------------- */

static pe_cpu_call call_of(const pe_device *e, const pe_instr *x) {
  pe_cpu_call c = {.step = &e->step,
                   .prim = e->prim,
                   .rows = x->rows == PE_EXTENT_OUTPUT ? e->step.outputs : e->step.rows,
                   .mat = x->mat,
                   .mat2 = x->mat2,
                   .args = x->args};
  c.out = view_of(e, &x->out);
  for (int i = 0; i < PE_NODE_INPUTS; i++) c.in[i] = view_of(e, &x->in[i]);
  memcpy(c.vec, x->vec, sizeof c.vec);
  if (x->cache >= 0) {
    c.cache[0] = e->kv->layer[x->cache].keys, c.cache[1] = e->kv->layer[x->cache].values;
    pe_cache_args *a = x->op == PE_OP_STORE ? &c.args.store.cache : &c.args.attention.cache;
    a->block = e->kv->block, a->type = (int32_t)e->kv->type;
  }
  if (x->state_at >= 0)
    c.state = e->recur->data + x->state_at, c.state_step = e->recur->slot_floats;
  return c;
}

typedef struct job {
  pe_op op;
  const pe_cpu_call *call;
} job;

static void run_task(void *ctx, int task, int tasks) {
  const job *j = ctx;
  pe_cpu_run(j->op, j->call, task, tasks);
}

static pe_status run_instr(pe_device *e, const pe_instr *x, pe_error *err) {
  pe_cpu_call c = call_of(e, x);
  if (!c.rows) return PE_OK;
  int tasks = pe_cpu_tasks(x->op, &c, pe_pool_threads(e->pool) * 4);
  c.scratch_step = (pe_cpu_scratch(x->op, &c) + 15) & ~(int64_t)15;
  pe_status rc = scratch_for(e, c.scratch_step * tasks, err);
  if (rc) return rc;
  c.scratch = (float *)(void *)e->scratch->data;
  job j = {x->op, &c};
  pe_pool_run(e->pool, run_task, &j, tasks);
  return PE_OK;
}

pe_status pe_device_step(pe_device *e, const pe_run *runs, int32_t count, pe_error *err) {
  pe_status rc = lay_out(e, runs, count, err);
  if (!rc) rc = room(&e->rows, &e->row_cap, e->step.rows, e->plan->row_floats, err);
  if (!rc) rc = room(&e->outputs, &e->output_cap, e->step.outputs, e->plan->output_floats, err);
  for (size_t i = 0; !rc && i < e->plan->count; i++) rc = run_instr(e, &e->plan->instr[i], err);
  return rc;
}

static const float *line(const pe_device *e, const pe_place *p, int32_t i) {
  pe_cpu_view v = view_of(e, p);
  return v.at + (int64_t)i * v.step;
}

const float *pe_device_logits(const pe_device *e, int32_t i) {
  return line(e, &e->plan->logits, i);
}
const float *pe_device_tap(const pe_device *e, size_t t, int32_t i) {
  return line(e, &e->plan->tap[t], i);
}
