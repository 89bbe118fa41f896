/* metal_count.c - see metal_count.h. */
#include "runtime/device/metal_count.h"

#include "runtime/device/metal_walk.h"

#include <string.h>

typedef struct counter {
  const pe_program *program;
  pe_metal_cost *out;
} counter;

/* Bytes of the lines that a code reads and writes; what is pulled is neither written nor read. */
static double line_bytes(const pe_metal_dispatch *d, int32_t code, const pe_instr *x, bool writes) {
  double floats = writes && x->op != PE_OP_STORE ? x->out.step : 0;
  for (int i = 0; i < PE_OP_VIEWS; i++)
    if (d->order->pulled[code][i] < 0) floats += x->in[i].step;
  return floats * d->call.rows * (double)sizeof(float);
}

/* A code of the dispatch, and those that it pulls. */
static void count_code(const counter *c, const pe_metal_dispatch *d, int32_t code, bool writes) {
  const pe_instr *x = c->program->code[code].instr;
  pe_metal_cost *out = &c->out[x - c->program->plan->instr];
  const pe_cpu_call call = {.step = d->job.step,
                            .rows = d->call.rows,
                            .mat = x->mat,
                            .mat2 = x->mat2,
                            .args = x->cache >= 0 ? d->args.op : x->args};
  out->cost = pe_profile_cost(x->op, &call);
  out->once = out->cost.weights + out->cost.cache;
  out->cost.weights *= x->op == d->job.op ? pe_metal_reads(&d->job) : d->call.rows;
  out->cost.values = line_bytes(d, code, x, writes);
  for (int i = 0; i < PE_NODE_INPUTS; i++)
    if (d->order->pulled[code][i] >= 0) count_code(c, d, d->order->pulled[code][i], false);
}

static pe_status count(void *ctx, const pe_metal_dispatch *d, pe_error *err) {
  const counter *c = ctx;
  pe_metal_cost *out = &c->out[d->main - c->program->plan->instr];
  (void)err;
  out->barriers += d->barrier;
  if (out->dispatches++) return PE_OK; /* the first pass has it all */
  for (int i = 0; i < d->unit->count; i++) count_code(c, d, d->unit->code[i], true);
  return PE_OK;
}

/* The segments of the step. */
static pe_status lay_out(const pe_metal_load *load, pe_step *step, pe_segment **list,
                         pe_error *err) {
  if (!(*list = pe_calloc((size_t)load->sequences, sizeof **list))) return pe_nomem(err, "step");
  for (int32_t i = 0; i < load->sequences; i++)
    (*list)[i] =
        (pe_segment){.first = i * load->rows, .count = load->rows, .past = load->past, .slot = i};
  *step = (pe_step){.rows = load->sequences * load->rows,
                    .segments = load->sequences,
                    .outputs = load->sequences,
                    .segment = *list};
  return PE_OK;
}

pe_status pe_metal_count(const pe_plan *plan, const pe_metal_load *load, pe_metal_cost *out,
                         pe_error *err) {
  pe_program *program = NULL;
  pe_metal_units units = {0};
  pe_segment *segments = NULL;
  pe_step step;
  memset(out, 0, plan->count * sizeof *out);
  pe_status rc = lay_out(load, &step, &segments, err);
  if (!rc) rc = pe_program_open(plan, PE_EXACT, NULL, NULL, &program, err);
  if (!rc) rc = pe_metal_units_open(&units, program, err);
  const pe_metal_walk walk = {.units = &units,
                              .step = &step,
                              .tiles = load->tiles,
                              .kv_type = load->kv_type,
                              .kv_block = load->kv_block};
  counter c = {program, out};
  if (!rc) rc = pe_metal_walk_run(&walk, count, &c, err);
  pe_metal_units_close(&units);
  pe_program_close(program);
  pe_free(segments);
  return rc;
}
