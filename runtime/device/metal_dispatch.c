/* metal_dispatch.c - see metal_dispatch.h.
 *
 * The kernel of a unit is that of its first instruction, but a map may leave it to the kernel of
 * what it maps, and a sum of experts to that of their products. Its operands are in the slots that
 * they would have alone; args.h says where others are. */
#include "runtime/device/metal_dispatch.h"

typedef struct setting { /* while a dispatch is set */
  const pe_metal_walk *walk;
  const pe_metal_order *order;
  pe_metal_dispatch *d;
} setting;

static const pe_instr *instr_of(const setting *s, int32_t code) {
  return s->walk->units->program->code[code].instr;
}

/* ---- an instruction alone -------------------------------------------------------------------- */

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

static void set_alone(const pe_metal_walk *w, const pe_instr *x, pe_metal_dispatch *d) {
  set_call(w, x, &d->call);
  d->args.op = x->args;
  if (x->cache >= 0) {
    pe_cache_args *a = x->op == PE_OP_STORE ? &d->args.op.store.cache : &d->args.op.attention.cache;
    a->block = w->kv_block, a->type = (int32_t)w->kv_type;
  }
  d->job = (pe_metal_job){
      .op = x->op, .step = w->step, .mat = x->mat, .mat2 = x->mat2, .tiles = w->tiles};
  d->job.call = &d->call, d->job.args = &d->args.op;
  for (int slot = 0; slot < PE_SLOTS; slot++) d->bound[slot] = (pe_metal_bound){x, slot};
}

/* ---- joined ---------------------------------------------------------------------------------- */

static void bind_mat(pe_metal_dispatch *d, int slot, const pe_instr *x) {
  for (int part = 0; part < 3; part++)
    d->bound[slot + part] = (pe_metal_bound){x, PE_SLOT_DATA + part};
}

/* The second product of one input, and the third. */
static void join_products(pe_metal_dispatch *d) {
  const pe_instr *second = d->instr[1], *third = d->instr[2];
  d->job.joined = d->unit->count;
  d->job.mat2 = second->mat, d->call.mat2 = mat_of(second->mat);
  d->call.out2_step = second->out.step, d->call.vecs |= second->vec[0] ? 2u : 0;
  bind_mat(d, PE_SLOT_DATA2, second);
  d->bound[PE_SLOT_OUT2] = (pe_metal_bound){second, PE_SLOT_OUT};
  d->bound[PE_SLOT_VEC1] = (pe_metal_bound){second, PE_SLOT_VEC0};
  if (!third) return;
  d->job.mat3 = third->mat, d->call.mat3 = mat_of(third->mat);
  d->call.out3_step = third->out.step, d->call.vecs |= third->vec[0] ? 4u : 0;
  bind_mat(d, PE_SLOT_DATA3, third);
  d->bound[PE_SLOT_OUT3] = (pe_metal_bound){third, PE_SLOT_OUT};
  d->bound[PE_SLOT_VEC2] = (pe_metal_bound){third, PE_SLOT_VEC0};
}

/* The dispatch is the store's. */
static void join_rope(pe_metal_dispatch *d) {
  const pe_instr *rope = d->instr[0];
  d->args.rope_store.rope = rope->args.rope, d->job.rope = &d->args.rope_store.rope;
  d->call.out_step = rope->out.step, d->call.in_step[3] = rope->in[0].step;
  d->bound[PE_SLOT_OUT] = (pe_metal_bound){rope, PE_SLOT_OUT};
  d->bound[PE_SLOT_IN3] = (pe_metal_bound){rope, PE_SLOT_IN0};
  d->bound[PE_SLOT_VEC1] = (pe_metal_bound){rope, PE_SLOT_VEC0};
}

/* ---- pulled ---------------------------------------------------------------------------------- */

static void pull_norm(const setting *s, int32_t code) {
  pe_metal_dispatch *d = s->d;
  const int32_t from = s->order->pulled[code][0];
  if (from < 0 || instr_of(s, from)->op != PE_OP_NORM) return;
  const pe_instr *norm = instr_of(s, from);
  d->call.norm = norm->args.norm, d->call.in_step[0] = norm->in[0].step;
  d->bound[PE_SLOT_IN0] = (pe_metal_bound){norm, PE_SLOT_IN0};
  d->bound[PE_SLOT_VEC3] = (pe_metal_bound){norm, PE_SLOT_VEC0};
}

/* A product whose result is an input of the map. */
static void pull_product(pe_metal_dispatch *d, const pe_instr *x) {
  d->job.mat2 = x->mat, d->call.mat2 = mat_of(x->mat);
  d->call.vecs |= x->vec[0] ? 2u : 0;
  bind_mat(d, PE_SLOT_DATA2, x);
  d->bound[PE_SLOT_VEC1] = (pe_metal_bound){x, PE_SLOT_VEC0};
}

/* Where the inputs of the map after an op are: where the op has none itself. */
static int map_slot(pe_op op) {
  return op == PE_OP_SSM || op == PE_OP_CONV ? PE_SLOT_DATA : PE_SLOT_IN2;
}

/* The map `code`, done by the kernel of another instruction, whose result is input `self`. */
static void pull_map(const setting *s, int32_t code) {
  const pe_instr *x = instr_of(s, code);
  const int first = map_slot(s->d->job.op);
  pe_metal_after *a = &s->d->after;
  a->map = x->args.map, a->self = s->order->self[code], a->product = -1;
  for (int i = 0; i < a->map.inputs; i++) {
    const int32_t from = s->order->pulled[code][i];
    const pe_instr *y = from < 0 ? NULL : instr_of(s, from);
    a->function[i] = y && y->op == PE_OP_MAP ? y->args.map.step[0].op : -1;
    if (y && y->op == PE_OP_LINEAR && i != a->self) a->product = i, pull_product(s->d, y);
    a->step[i] = y ? y->in[0].step : x->in[i].step;
    s->d->bound[first + i] = (pe_metal_bound){y ? y : x, y ? PE_SLOT_IN0 : PE_SLOT_IN0 + i};
  }
}

void pe_metal_dispatch_set(const pe_metal_walk *w, const pe_metal_order *o, int32_t i,
                           pe_metal_dispatch *out) {
  const pe_metal_unit *u = &o->unit[i];
  const setting s = {w, o, out};
  *out = (pe_metal_dispatch){.order = o, .unit = u};
  for (int k = 0; k < u->count; k++) out->instr[k] = instr_of(&s, u->code[k]);
  const bool has_rope = u->count > 1 && out->instr[0]->op == PE_OP_ROPE;
  const int32_t code = u->code[has_rope], self = o->self[code];
  int32_t main = self < 0 ? code : o->pulled[code][self];
  const bool total = instr_of(&s, main)->op == PE_OP_EXPERT_SUM && o->pulled[main][0] >= 0;
  if (total) main = o->pulled[main][0];
  set_alone(w, instr_of(&s, main), out);
  out->job.total = total, out->main = instr_of(&s, has_rope ? u->code[0] : main);
  out->call.out_step = instr_of(&s, code)->out.step;
  out->bound[PE_SLOT_OUT].instr = instr_of(&s, code);
  if (self >= 0) pull_map(&s, code);
  pull_norm(&s, main);
  if (has_rope)
    join_rope(out);
  else if (u->count > 1)
    join_products(out);
}
