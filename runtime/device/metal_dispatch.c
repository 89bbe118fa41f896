/* metal_dispatch.c - see metal_dispatch.h.
 *
 * The kernel of a unit is that of its first instruction, but a map may leave it to the kernel of
 * what it maps, a sum of experts to that of their products, a norm to that of a delta rule. Its
 * operands are in the slots that they would have alone; args.h says where others are. */
#include "runtime/device/metal_dispatch.h"

typedef struct setting { /* while a dispatch is set */
  const pe_metal_walk *walk;
  const pe_metal_order *order;
  pe_metal_dispatch *d;
} setting;

static const pe_instr *instr_of(const setting *s, int32_t code) {
  return s->walk->units->program->code[code].instr;
}

static pe_metal_part part_of(const pe_instr *slice) {
  const pe_slice_args *a = &slice->args.slice;
  return (pe_metal_part){a->from, a->count, a->dim};
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

/* Input `slot` of the dispatch is input i of a code, maybe a part of another value. */
static void bind_input(const setting *s, int slot, int32_t code, int i) {
  pe_metal_dispatch *d = s->d;
  const int32_t from = s->order->pulled[code][i];
  const bool sliced = from >= 0 && instr_of(s, from)->op == PE_OP_SLICE;
  const pe_instr *x = instr_of(s, sliced ? from : code);
  const int own = sliced ? 0 : i;
  d->bound[PE_SLOT_IN0 + slot] = (pe_metal_bound){x, PE_SLOT_IN0 + own};
  d->call.in_step[slot] = x->in[own].step;
  d->call.part[slot] = sliced ? part_of(x) : (pe_metal_part){0};
}

/* The result of a code, maybe a part of what a concat would make. */
static void bind_out(const setting *s, int32_t code) {
  pe_metal_dispatch *d = s->d;
  const int32_t into = s->order->into[code];
  const pe_instr *x = instr_of(s, code), *to = instr_of(s, into < 0 ? code : into);
  d->bound[PE_SLOT_OUT] = (pe_metal_bound){to, PE_SLOT_OUT};
  d->call.out_step = to->out.step;
  if (into < 0) return;
  const pe_concat_args *a = &to->args.concat;
  for (int i = 0; i < a->inputs; i++) {
    if (pe_program_same(&to->in[i], &x->out))
      d->call.out_part.from = d->call.out_part.dim, d->call.out_part.count = a->width[i];
    d->call.out_part.dim += a->width[i];
  }
}

/* ---- joined ---------------------------------------------------------------------------------- */

static void bind_mat(pe_metal_dispatch *d, int slot, const pe_instr *x) {
  for (int part = 0; part < 3; part++)
    d->bound[slot + part] = (pe_metal_bound){x, PE_SLOT_DATA + part};
}

/* A third matrix and a fourth. */
static void set_mat3(pe_metal_dispatch *d, const pe_instr *x) {
  d->job.mat3 = x->mat, d->call.mat3 = mat_of(x->mat);
  bind_mat(d, PE_SLOT_DATA3, x);
}
static void set_mat4(pe_metal_dispatch *d, const pe_quant_matrix *mat) {
  d->job.mat4 = mat, d->call.mat4 = mat_of(mat);
}

/* The second product of one input, the third and the fourth. */
static void join_products(pe_metal_dispatch *d) {
  const pe_instr *second = d->instr[1], *third = d->instr[2], *fourth = d->instr[3];
  d->job.joined = d->unit->count;
  d->job.mat2 = second->mat, d->call.mat2 = mat_of(second->mat);
  d->call.out2_step = second->out.step, d->call.vecs |= second->vec[0] ? 2u : 0;
  bind_mat(d, PE_SLOT_DATA2, second);
  d->bound[PE_SLOT_OUT2] = (pe_metal_bound){second, PE_SLOT_OUT};
  d->bound[PE_SLOT_VEC1] = (pe_metal_bound){second, PE_SLOT_VEC0};
  if (!third) return;
  set_mat3(d, third);
  d->call.out3_step = third->out.step, d->call.vecs |= third->vec[0] ? 4u : 0;
  d->bound[PE_SLOT_OUT3] = (pe_metal_bound){third, PE_SLOT_OUT};
  d->bound[PE_SLOT_VEC2] = (pe_metal_bound){third, PE_SLOT_VEC0};
  if (!fourth) return;
  set_mat4(d, fourth->mat), bind_mat(d, PE_SLOT_DATA4, fourth);
  d->call.out4_step = fourth->out.step;
  d->bound[PE_SLOT_OUT4] = (pe_metal_bound){fourth, PE_SLOT_OUT};
}

/* The gate and up projections of a shared expert. */
static void join_shared(pe_metal_dispatch *d, const pe_instr *x) {
  set_mat3(d, x), set_mat4(d, x->mat2);
  for (int part = 0; part < 3; part++)
    d->bound[PE_SLOT_DATA4 + part] = (pe_metal_bound){x, PE_SLOT_DATA2 + part};
  d->call.out2_step = x->out.step;
  d->bound[PE_SLOT_OUT2] = (pe_metal_bound){x, PE_SLOT_OUT};
}

/* The dispatch is that of the experts. */
static void join_route(const setting *s) {
  pe_metal_dispatch *d = s->d;
  const pe_instr *x = d->instr[0];
  d->args.routed.route = x->args.route, d->job.route = true;
  bind_input(s, 2, d->unit->code[0], 0);
  d->call.vecs |= x->vec[0] ? 4u : 0;
  d->bound[PE_SLOT_VEC2] = (pe_metal_bound){x, PE_SLOT_VEC0};
  d->call.out4_step = x->out.step;
  d->bound[PE_SLOT_OUT4] = (pe_metal_bound){x, PE_SLOT_OUT};
}

/* The dispatch is the store's. */
static void join_rope(const setting *s) {
  pe_metal_dispatch *d = s->d;
  const pe_instr *rope = d->instr[0];
  d->args.rope_store.rope = rope->args.rope, d->job.rope = &d->args.rope_store.rope;
  bind_out(s, d->unit->code[0]);
  bind_input(s, 3, d->unit->code[0], 0);
  d->bound[PE_SLOT_VEC1] = (pe_metal_bound){rope, PE_SLOT_VEC0};
}

/* ---- pulled ---------------------------------------------------------------------------------- */

/* The norm of input i: of a product, or the values of a store. */
static void pull_norm(const setting *s, int i, int32_t from) {
  const pe_instr *norm = instr_of(s, from);
  s->d->call.norm = norm->args.norm;
  bind_input(s, i, from, 0);
  s->d->bound[PE_SLOT_VEC3] = (pe_metal_bound){norm, PE_SLOT_VEC0};
}

/* Input i of a delta rule. */
static void pull_before(const setting *s, int i, int32_t from) {
  const pe_instr *x = instr_of(s, from);
  pe_metal_before *b = &s->d->before.delta;
  if (x->op == PE_OP_NORM) {
    b->norms[i] = 1, b->norm[i] = x->args.norm;
    bind_input(s, i, from, 0);
    return;
  }
  b->maps[i - 3] = 1, b->map[i - 3] = x->args.map;
  for (int k = 0; k < x->args.map.inputs; k++) {
    if (!x->args.map.input[k].fixed) bind_input(s, i, from, k);
    if (i == 3) s->d->bound[PE_SLOT_VEC0 + k] = (pe_metal_bound){x, PE_SLOT_VEC0 + k};
  }
}

/* The norm after a delta rule. */
static void pull_after(const setting *s, const pe_instr *norm) {
  s->d->call.norm = norm->args.norm;
  s->d->bound[PE_SLOT_SCALES2] = (pe_metal_bound){norm, PE_SLOT_VEC0};
}

/* Keys whose first values are normalized, and others turned. */
static void pull_latent(const setting *s, int32_t concat) {
  pe_metal_dispatch *d = s->d;
  const int32_t *from = s->order->pulled[concat];
  const pe_instr *norm = instr_of(s, from[0]);
  pe_store_args *a = &d->args.op.store;
  a->rope = (pe_rope_args){.heads = 1, .dim = a->cache.key, .norm = norm->args.norm};
  a->rope.skip = norm->args.norm.width;
  bind_input(s, 0, from[0], 0);
  d->bound[PE_SLOT_VEC0] = (pe_metal_bound){norm, PE_SLOT_VEC0};
  if (from[1] < 0) return;
  const pe_rope_args *rope = &instr_of(s, from[1])->args.rope;
  a->rope.turns = rope->turns, a->rope.pairs = rope->pairs, a->rope.skip += rope->skip;
  bind_input(s, 2, from[1], 1);
}

/* What the instruction that has the kernel pulls. */
static void pull_inputs(const setting *s, int32_t code) {
  for (int i = 0; i < PE_NODE_INPUTS; i++) {
    const int32_t from = s->order->pulled[code][i];
    const pe_op op = from < 0 ? PE_OP_COUNT : instr_of(s, from)->op;
    if (op == PE_OP_SLICE) {
      bind_input(s, i, code, i);
    } else if (op == PE_OP_CONCAT && s->d->job.op == PE_OP_STORE) {
      pull_latent(s, from);
    } else if (op == PE_OP_CONCAT) {
      s->d->before.concat = instr_of(s, from)->args.concat;
      for (int k = 0; k < s->d->before.concat.inputs; k++) bind_input(s, k, from, k);
    } else if (from >= 0 && s->d->job.op == PE_OP_DELTA) {
      pull_before(s, i, from);
    } else if (op == PE_OP_NORM) {
      pull_norm(s, i, from);
    }
  }
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
  return op == PE_OP_SSM || op == PE_OP_CONV || op == PE_OP_DELTA ? PE_SLOT_DATA : PE_SLOT_IN2;
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
    if (y && y->op == PE_OP_SLICE) a->part[i] = part_of(y);
    const int own = a->map.input[i].fixed ? PE_SLOT_VEC0 + i : PE_SLOT_IN0 + i;
    a->step[i] = y ? y->in[0].step : a->map.input[i].fixed ? 0 : x->in[i].step;
    s->d->bound[first + i] = (pe_metal_bound){y ? y : x, y ? PE_SLOT_IN0 : own};
  }
}

void pe_metal_dispatch_set(const pe_metal_walk *w, const pe_metal_order *o, int32_t i,
                           pe_metal_dispatch *out) {
  const pe_metal_unit *u = &o->unit[i];
  const setting s = {w, o, out};
  *out = (pe_metal_dispatch){.order = o, .unit = u};
  for (int k = 0; k < u->count; k++) out->instr[k] = instr_of(&s, u->code[k]);
  const bool has_rope = u->count > 1 && out->instr[0]->op == PE_OP_ROPE;
  const bool has_route = u->count > 1 && out->instr[0]->op == PE_OP_ROUTE;
  const int32_t code = u->code[has_rope || has_route], self = o->self[code];
  int32_t main = self < 0 ? code : o->pulled[code][self];
  const pe_instr *last = instr_of(&s, main); /* which may be done by the kernel of its input */
  const int32_t from = o->pulled[main][0];
  const bool total = last->op == PE_OP_EXPERT_SUM && from >= 0;
  const bool normed = last->op == PE_OP_NORM && from >= 0 && instr_of(&s, from)->op == PE_OP_DELTA;
  if (total || normed) main = from;
  set_alone(w, instr_of(&s, main), out);
  if (normed) pull_after(&s, last);
  out->job.total = total, out->main = instr_of(&s, has_rope ? u->code[0] : main);
  bind_out(&s, code);
  if (self >= 0) pull_map(&s, code);
  pull_inputs(&s, main);
  if (has_rope) join_rope(&s);
  if (has_route) join_route(&s);
  if (out->job.op == PE_OP_EXPERT_GATED && u->count > 1 + has_route)
    join_shared(out, out->instr[1 + has_route]);
  if (out->job.op == PE_OP_LINEAR && u->count > 1) join_products(out);
}
