/* metal_walk.c - see metal_walk.h. */
#include "runtime/device/metal_walk.h"

/* ---- jobs ------------------------------------------------------------------------------------ */

static pe_metal_mat mat_of(const pe_quant_matrix *m) {
  if (!m) return (pe_metal_mat){0};
  return (pe_metal_mat){(int32_t)m->rows, (int32_t)m->cols, (uint32_t)m->row_bytes,
                        (uint32_t)m->scale_bytes, m->global};
}

static void set_call(const pe_metal_walk *w, const pe_instr *x, pe_metal_call *out) {
  *out = (pe_metal_call){.rows = x->rows == PE_EXTENT_OUTPUT ? w->step->outputs : w->step->rows,
                         .out_step = x->out.step,
                         .mat = mat_of(x->mat),
                         .mat2 = mat_of(x->mat2)};
  for (int i = 0; i < PE_OP_VIEWS; i++) out->in_step[i] = x->in[i].step;
  for (int i = 0; i < PE_OP_VECS; i++) out->vecs |= x->vec[i] ? 1u << i : 0;
  if (x->cache >= 0 && w->kv) out->cache_step = (uint32_t)w->kv->layer[x->cache].step;
  if (x->state_at >= 0 && w->recur) out->state_step = (uint32_t)w->recur->slot_floats;
}

static void set_dispatch(const pe_metal_walk *w, int32_t code, pe_metal_dispatch *d) {
  const pe_instr *x = w->program->code[code].instr;
  *d = (pe_metal_dispatch){.args = x->args, .instr = x, .code = code};
  set_call(w, x, &d->call);
  if (x->cache >= 0) {
    pe_cache_args *a = x->op == PE_OP_STORE ? &d->args.store.cache : &d->args.attention.cache;
    a->block = w->kv_block, a->type = (int32_t)w->kv_type;
  }
  d->job = (pe_metal_job){.op = x->op, .step = w->step, .mat = x->mat, .mat2 = x->mat2};
  d->job.call = &d->call, d->job.args = &d->args;
}

static pe_status first_pass(const pe_metal_walk *w, pe_metal_dispatch *d, pe_error *err) {
  const char *why = "";
  d->pass = pe_metal_pass_of(&d->job, &why);
  if (d->pass) return PE_OK;
  const pe_node *n = pe_graph_node(w->program->plan->graph, d->instr->value);
  return pe_fail(err, PE_EUNSUPPORTED, "device metal has no kernel for %s (%s): %s", n->name,
                 pe_op_name(d->instr->op), why);
}

static bool skipped(const pe_metal_walk *w, const pe_metal_dispatch *d) {
  return !d->call.rows || (w->program->code[d->code].outputs_only && !w->step->outputs);
}

/* ---- walking --------------------------------------------------------------------------------- */

typedef struct hazards {
  int32_t ordered; /* the last barrier is after all codes before this one */
  bool scratch;    /* a code since then uses it */
} hazards;

static pe_status walk_code(const pe_metal_walk *w, int32_t code, hazards *h, pe_metal_visit visit,
                           void *ctx, pe_error *err) {
  pe_metal_dispatch d;
  set_dispatch(w, code, &d);
  if (skipped(w, &d)) return PE_OK;
  pe_status rc = first_pass(w, &d, err);
  const bool scratch = !rc && pe_metal_scratch(&d.job) > 0;
  d.barrier = w->program->code[code].after > h->ordered || (scratch && h->scratch);
  for (; !rc && d.pass; d.pass = d.pass->then, d.barrier = true) {
    d.pass->grid(&d.job, &d.grid);
    if (!d.grid.groups[0] || !d.grid.groups[1] || !d.grid.groups[2]) continue;
    if (d.barrier) *h = (hazards){.ordered = code};
    rc = visit(ctx, &d, err);
  }
  h->scratch |= scratch;
  return rc;
}

pe_status pe_metal_walk_run(const pe_metal_walk *w, pe_metal_visit visit, void *ctx,
                            pe_error *err) {
  pe_status rc = PE_OK;
  hazards h = {0};
  for (int32_t i = 0; !rc && i < w->program->count; i++) rc = walk_code(w, i, &h, visit, ctx, err);
  return rc;
}

pe_status pe_metal_walk_all(const pe_metal_walk *w, pe_metal_visit visit, void *ctx,
                            pe_error *err) {
  pe_status rc = PE_OK;
  for (int32_t i = 0; !rc && i < w->program->count; i++) {
    pe_metal_dispatch d;
    set_dispatch(w, i, &d);
    for (rc = first_pass(w, &d, err); !rc && d.pass; d.pass = d.pass->then)
      rc = visit(ctx, &d, err);
  }
  return rc;
}

uint64_t pe_metal_walk_scratch(const pe_metal_walk *w) {
  uint64_t most = 0;
  for (int32_t i = 0; i < w->program->count; i++) {
    pe_metal_dispatch d;
    set_dispatch(w, i, &d);
    const uint64_t bytes = skipped(w, &d) ? 0 : pe_metal_scratch(&d.job);
    if (bytes > most) most = bytes;
  }
  return most;
}
