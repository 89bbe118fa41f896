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

/* The second product of one input, and the third. */
static void join_products(pe_metal_dispatch *d) {
  const pe_instr *second = d->instr[1], *third = d->instr[2];
  d->job.joined = d->unit->count;
  d->job.mat2 = second->mat, d->call.mat2 = mat_of(second->mat);
  d->call.out2_step = second->out.step, d->call.vecs |= second->vec[0] ? 2u : 0;
  if (!third) return;
  d->job.mat3 = third->mat, d->call.mat3 = mat_of(third->mat);
  d->call.out3_step = third->out.step, d->call.vecs |= third->vec[0] ? 4u : 0;
}

/* The dispatch is the store's. */
static void join_rope(pe_metal_dispatch *d) {
  const pe_instr *rope = d->instr[0];
  d->args.rope_store.rope = rope->args.rope, d->job.rope = &d->args.rope_store.rope;
  d->call.out_step = rope->out.step, d->call.in_step[3] = rope->in[0].step;
}

/* The result and the inputs are the map's; without one, the sum's. */
static void join_experts(pe_metal_dispatch *d) {
  const pe_instr *sum = d->instr[1], *map = d->instr[2];
  pe_expert_total_args *a = &d->args.expert_total;
  d->job.total = true;
  d->call.out_step = (map ? map : sum)->out.step;
  a->map = map ? map->args.map : (pe_map_args){.inputs = 1}, a->sum = 0;
  for (int i = 0; map && i < a->map.inputs; i++) {
    d->call.in_step[2 + i] = map->in[i].step;
    if (pe_program_same(&map->in[i], &sum->out)) a->sum = i;
  }
}

static bool has_experts(const pe_metal_dispatch *d) {
  return d->unit->count > 1 && d->instr[0]->op == PE_OP_EXPERT_LINEAR;
}

static bool has_rope(const pe_metal_dispatch *d) {
  return d->unit->count > 1 && d->instr[0]->op == PE_OP_ROPE;
}

static void set_dispatch(const pe_metal_walk *w, const pe_metal_unit *u, pe_metal_dispatch *d) {
  const pe_code *code = w->units->program->code;
  *d = (pe_metal_dispatch){.unit = u};
  for (int i = 0; i < u->count; i++) d->instr[i] = code[u->code[i]].instr;
  if (u->norm >= 0) d->norm = code[u->norm].instr;
  const pe_instr *x = d->instr[has_rope(d)];
  set_call(w, x, &d->call);
  d->args.op = x->args;
  if (x->cache >= 0) {
    pe_cache_args *a = x->op == PE_OP_STORE ? &d->args.op.store.cache : &d->args.op.attention.cache;
    a->block = w->kv_block, a->type = (int32_t)w->kv_type;
  }
  d->job = (pe_metal_job){
      .op = x->op, .step = w->step, .mat = x->mat, .mat2 = x->mat2, .tiles = w->tiles};
  d->job.call = &d->call, d->job.args = &d->args.op;
  if (has_rope(d))
    join_rope(d);
  else if (has_experts(d))
    join_experts(d);
  else if (u->count > 1)
    join_products(d);
  if (d->norm) d->call.norm = d->norm->args.norm, d->call.in_step[0] = d->norm->in[0].step;
}

const pe_instr *pe_metal_owner(const pe_metal_dispatch *d, int *slot) {
  const int s = *slot;
  if (d->norm && s == PE_SLOT_IN0) return d->norm;
  if (d->norm && s == PE_SLOT_VEC3) return *slot = PE_SLOT_VEC0, d->norm;
  if (d->unit->count == 1) return d->instr[0];
  if (has_rope(d)) {
    if (s == PE_SLOT_IN3) return *slot = PE_SLOT_IN0, d->instr[0];
    if (s == PE_SLOT_VEC1) return *slot = PE_SLOT_VEC0, d->instr[0];
    return d->instr[s == PE_SLOT_OUT ? 0 : 1];
  }
  if (has_experts(d)) {
    if (s == PE_SLOT_OUT) return d->instr[d->unit->count - 1];
    if (s < PE_SLOT_IN2 || s > PE_SLOT_IN5) return d->instr[0];
    return *slot = PE_SLOT_IN0 + s - PE_SLOT_IN2, d->instr[2];
  }
  if (s >= PE_SLOT_DATA2 && s < PE_SLOT_DATA2 + 3)
    return *slot = PE_SLOT_DATA + s - PE_SLOT_DATA2, d->instr[1];
  if (s >= PE_SLOT_DATA3 && s < PE_SLOT_DATA3 + 3)
    return *slot = PE_SLOT_DATA + s - PE_SLOT_DATA3, d->instr[2];
  if (s == PE_SLOT_OUT2 || s == PE_SLOT_OUT3)
    return *slot = PE_SLOT_OUT, d->instr[1 + s - PE_SLOT_OUT2];
  if (s >= PE_SLOT_VEC0 && s < PE_SLOT_VEC3)
    return *slot = PE_SLOT_VEC0, d->instr[s - PE_SLOT_VEC0];
  return s == PE_SLOT_VEC3 ? NULL : d->instr[0];
}

static pe_status first_pass(const pe_metal_walk *w, pe_metal_dispatch *d, pe_error *err) {
  const char *why = "";
  d->pass = pe_metal_pass_of(&d->job, &why);
  if (d->pass) return PE_OK;
  const pe_node *n = pe_graph_node(w->units->program->plan->graph, d->instr[0]->value);
  return pe_fail(err, PE_EUNSUPPORTED, "device metal has no kernel for %s (%s): %s", n->name,
                 pe_op_name(d->instr[0]->op), why);
}

/* A step without outputs joins nothing, so a unit is one code then. */
static bool skipped(const pe_metal_walk *w, const pe_metal_dispatch *d) {
  return !d->call.rows ||
         (w->units->program->code[d->unit->code[0]].outputs_only && !w->step->outputs);
}

/* ---- walking --------------------------------------------------------------------------------- */

static const pe_metal_order *order_of(const pe_metal_walk *w) {
  const int32_t rows = w->step->outputs ? w->step->rows : INT32_MAX;
  if (rows > w->tiles->join_rows) return &w->units->level[PE_METAL_PLAIN];
  return &w->units->level[rows > w->tiles->norm_rows ? PE_METAL_JOINS : PE_METAL_NORMS];
}

typedef struct hazards {
  int32_t ordered; /* the last barrier is after all units before this one */
  bool scratch;    /* a unit since then uses it */
} hazards;

static pe_status walk_unit(const pe_metal_walk *w, const pe_metal_order *o, int32_t i, hazards *h,
                           pe_metal_visit visit, void *ctx, pe_error *err) {
  pe_metal_dispatch d;
  set_dispatch(w, &o->unit[i], &d);
  if (skipped(w, &d)) return PE_OK;
  pe_status rc = first_pass(w, &d, err);
  const bool scratch = !rc && pe_metal_scratch(&d.job) > 0;
  d.barrier = o->unit[i].after > h->ordered || (scratch && h->scratch);
  for (; !rc && d.pass; d.pass = d.pass->then, d.barrier = true) {
    d.pass->grid(&d.job, &d.grid);
    if (!d.grid.groups[0] || !d.grid.groups[1] || !d.grid.groups[2]) continue;
    if (d.barrier) *h = (hazards){.ordered = i};
    rc = visit(ctx, &d, err);
  }
  h->scratch |= scratch;
  return rc;
}

pe_status pe_metal_walk_run(const pe_metal_walk *w, pe_metal_visit visit, void *ctx,
                            pe_error *err) {
  const pe_metal_order *o = order_of(w);
  pe_status rc = PE_OK;
  hazards h = {0};
  for (int32_t i = 0; !rc && i < o->count; i++) rc = walk_unit(w, o, i, &h, visit, ctx, err);
  return rc;
}

pe_status pe_metal_walk_all(const pe_metal_walk *w, pe_metal_visit visit, void *ctx,
                            pe_error *err) {
  const pe_metal_order *o = order_of(w);
  pe_status rc = PE_OK;
  for (int32_t i = 0; !rc && i < o->count; i++) {
    pe_metal_dispatch d;
    set_dispatch(w, &o->unit[i], &d);
    for (rc = first_pass(w, &d, err); !rc && d.pass; d.pass = d.pass->then)
      rc = visit(ctx, &d, err);
  }
  return rc;
}

uint64_t pe_metal_walk_scratch(const pe_metal_walk *w) {
  const pe_metal_order *o = order_of(w);
  uint64_t most = 0;
  for (int32_t i = 0; i < o->count; i++) {
    pe_metal_dispatch d;
    set_dispatch(w, &o->unit[i], &d);
    const uint64_t bytes = skipped(w, &d) ? 0 : pe_metal_scratch(&d.job);
    if (bytes > most) most = bytes;
  }
  return most;
}
