/* cpu.c - the CPU as a device; see device.h. */
#include "kernels/cpu/cpu.h"
#include "runtime/device/device.h"
#include "runtime/device/layout.h"

#include <string.h>

enum {
  LEAST_ROWS = 16,     /* of an area, so that a few more sequences do not allocate again */
  TASKS_PER_THREAD = 4 /* so that a thread that starts late costs a quarter of its share at most */
};

typedef struct area { /* values of a step: place `at` starts at at * cap floats */
  pe_buffer *memory;
  int32_t cap; /* rows it has room for */
} area;

struct pe_device {
  const pe_plan *plan;
  pe_pool *pool;
  pe_kv *kv;
  pe_recur *recur;
  const pe_prim *prim; /* chosen once: the lookup costs more than a small instruction */
  pe_layout layout;
  const pe_step *step; /* the one that runs */
  size_t next;         /* its next instruction */
  area rows, outputs;
  pe_buffer *scratch;
};

pe_status pe_device_open(const pe_plan *plan, pe_pool *pool, pe_kv *kv, pe_recur *recur,
                         pe_device **out, pe_error *err) {
  pe_device *d = pe_calloc(1, sizeof *d);
  if (!d) return pe_nomem(err, "device");
  d->plan = plan, d->pool = pool, d->kv = kv, d->recur = recur, d->prim = pe_prim_best();
  *out = d;
  return PE_OK;
}

void pe_device_close(pe_device *d) {
  if (!d) return;
  pe_layout_free(&d->layout);
  pe_buffer_release(d->rows.memory), pe_buffer_release(d->outputs.memory);
  pe_buffer_release(d->scratch);
  pe_free(d);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Half as much again, so that steps that grow row by row do not map and fault pages each time. Rows
 * that are not used take no memory. */
static pe_status grow_area(area *a, int32_t rows, int64_t floats_per_row, pe_error *err) {
  if (a->memory && rows <= a->cap) return PE_OK;
  int32_t cap = a->cap && rows < INT32_MAX / 2 ? rows + rows / 2 : rows;
  if (cap < LEAST_ROWS) cap = LEAST_ROWS;
  pe_buffer_release(a->memory);
  *a = (area){0};
  uint64_t bytes;
  if (!pe_mul_size((uint64_t)cap * sizeof(float), (uint64_t)floats_per_row, &bytes))
    return pe_fail(err, PE_ELIMIT, "a step of %d rows of %lld floats does not fit into memory",
                   rows, (long long)floats_per_row);
  pe_status rc = pe_buffer_reserve(bytes, &a->memory, err);
  if (!rc) a->cap = cap;
  return rc;
}

/* Half as much again, because attention needs a little more with every token. */
static pe_status grow_scratch(pe_device *d, int64_t floats, pe_error *err) {
  uint64_t bytes = (uint64_t)floats * sizeof(float);
  if (d->scratch && d->scratch->size >= bytes) return PE_OK;
  pe_buffer_release(d->scratch);
  d->scratch = NULL;
  return pe_buffer_reserve(bytes + bytes / 2, &d->scratch, err);
}

static pe_cpu_view view_of(const pe_device *d, const pe_place *p) {
  if (p->rows == PE_EXTENT_CONST) return (pe_cpu_view){0};
  const area *a = p->rows == PE_EXTENT_OUTPUT ? &d->outputs : &d->rows;
  float *data = (float *)(void *)a->memory->data;
  return (pe_cpu_view){data + p->at * a->cap + p->offset, p->step};
}

/* ---- instructions ---------------------------------------------------------------------------- */

static pe_cpu_call call_of(const pe_device *d, const pe_instr *x) {
  const pe_step *step = d->step;
  pe_cpu_call c = {.step = step,
                   .prim = d->prim,
                   .rows = x->rows == PE_EXTENT_OUTPUT ? step->outputs : step->rows,
                   .mat = x->mat,
                   .mat2 = x->mat2,
                   .args = x->args};
  c.out = view_of(d, &x->out);
  for (int i = 0; i < PE_NODE_INPUTS; i++) c.in[i] = view_of(d, &x->in[i]);
  memcpy(c.vec, x->vec, sizeof c.vec);
  if (x->cache >= 0) {
    c.cache[0] = d->kv->layer[x->cache].keys, c.cache[1] = d->kv->layer[x->cache].values;
    pe_cache_args *a = x->op == PE_OP_STORE ? &c.args.store.cache : &c.args.attention.cache;
    a->block = d->kv->block, a->type = (int32_t)d->kv->type;
  }
  if (x->state_at >= 0)
    c.state = d->recur->data + x->state_at, c.state_step = d->recur->slot_floats;
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

static pe_status run_instr(pe_device *d, const pe_instr *x, pe_error *err) {
  pe_cpu_call c = call_of(d, x);
  if (!c.rows) return PE_OK;
  int tasks = pe_cpu_tasks(x->op, &c, pe_pool_threads(d->pool) * TASKS_PER_THREAD);
  c.scratch_step = (pe_cpu_scratch(x->op, &c) + 15) & ~(int64_t)15; /* whole cache lines */
  pe_status rc = grow_scratch(d, c.scratch_step * tasks, err);
  if (rc) return rc;
  c.scratch = (float *)(void *)d->scratch->data;
  job j = {x->op, &c};
  pe_pool_run(d->pool, run_task, &j, tasks);
  return PE_OK;
}

pe_status pe_device_begin(pe_device *d, const pe_step *step, pe_error *err) {
  d->step = step, d->next = 0;
  pe_status rc = grow_area(&d->rows, step->rows, d->plan->row_floats, err);
  if (!rc) rc = grow_area(&d->outputs, step->outputs, d->plan->output_floats, err);
  return rc;
}

pe_status pe_device_proceed(pe_device *d, int64_t until_ns, bool *done, pe_error *err) {
  pe_status rc = PE_OK;
  do {
    if (d->next < d->plan->count) rc = run_instr(d, &d->plan->instr[d->next++], err);
  } while (!rc && d->next < d->plan->count && pe_clock_ns() < until_ns);
  *done = d->next == d->plan->count;
  return rc;
}

pe_status pe_device_step(pe_device *d, const pe_run *runs, int32_t count, pe_error *err) {
  pe_status rc = pe_layout_step(&d->layout, d->kv, runs, count, err);
  if (!rc) rc = pe_device_begin(d, &d->layout.step, err);
  for (size_t i = 0; !rc && i < d->plan->count; i++) rc = run_instr(d, &d->plan->instr[i], err);
  return rc ? rc : pe_weights_intact(d->plan->graph->weights, err);
}

/* ---- results --------------------------------------------------------------------------------- */

static const float *line(const pe_device *d, const pe_place *p, int32_t i) {
  pe_cpu_view v = view_of(d, p);
  return pe_cpu_row(&v, i);
}

const float *pe_device_logits(const pe_device *d, int32_t i) {
  return line(d, &d->plan->logits, i);
}

const float *pe_device_tap(const pe_device *d, size_t t, int32_t i) {
  return line(d, &d->plan->tap[t], i);
}
