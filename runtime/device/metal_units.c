/* metal_units.c - see metal_units.h. */
#include "runtime/device/metal_units.h"

#include "kernels/metal/args.h"
#include "runtime/device/metal_pull.h"

/* ---- what codes touch ------------------------------------------------------------------------ */

const pe_place *pe_metal_code_out(const pe_metal_maker *m, int32_t code) {
  const int32_t into = m->order->into[code];
  return &pe_metal_instr(m, into < 0 ? code : into)->out;
}

bool pe_metal_code_writes(const pe_metal_maker *m, int32_t code, const pe_place *place) {
  return pe_metal_instr(m, code)->op != PE_OP_STORE &&
         pe_program_overlap(pe_metal_code_out(m, code), place);
}

bool pe_metal_code_reads(const pe_metal_maker *m, int32_t code, const pe_place *place) {
  const pe_instr *x = pe_metal_instr(m, code);
  for (int i = 0; i < PE_NODE_INPUTS; i++) {
    const int32_t from = m->order->pulled[code][i];
    if (from >= 0 ? pe_metal_code_reads(m, from, place) : pe_program_overlap(&x->in[i], place))
      return true;
  }
  return false;
}

/* Do a, or what it pulls, and b use the same cache or state? */
static bool shares(const pe_metal_maker *m, int32_t a, int32_t b) {
  if (pe_program_share(pe_metal_instr(m, a), pe_metal_instr(m, b))) return true;
  for (int i = 0; i < PE_NODE_INPUTS; i++) {
    const int32_t of_a = m->order->pulled[a][i], of_b = m->order->pulled[b][i];
    if ((of_a >= 0 && shares(m, of_a, b)) || (of_b >= 0 && shares(m, a, of_b))) return true;
  }
  return false;
}

bool pe_metal_conflict(const pe_metal_maker *m, int32_t a, int32_t b) {
  const pe_place *x = pe_metal_code_out(m, a), *y = pe_metal_code_out(m, b);
  if (shares(m, a, b)) return true;
  if (pe_metal_instr(m, a)->op != PE_OP_STORE &&
      (pe_metal_code_reads(m, b, x) || pe_metal_code_writes(m, b, x)))
    return true;
  return pe_metal_instr(m, b)->op != PE_OP_STORE && pe_metal_code_reads(m, a, y);
}

/* ---- joining --------------------------------------------------------------------------------- */

/* A route, and the first halves of its experts, which choose them: the logits must stay while they
 * are written. */
static bool are_route_and_experts(const pe_metal_maker *m, int32_t a, int32_t b) {
  const pe_instr *x = pe_metal_instr(m, a), *y = pe_metal_instr(m, b);
  if (m->level != PE_METAL_NORMS || x->op != PE_OP_ROUTE || y->op != PE_OP_EXPERT_GATED)
    return false;
  return !y->args.expert.spread && !y->args.expert.transposed && !x->vec[1] &&
         x->args.route.experts <= PE_ROUTE_FEW && x->rows == y->rows &&
         pe_program_same(&y->in[1], &x->out) && !pe_metal_code_reads(m, a, &y->out);
}

/* Can a later code run with the unit? */
static bool can_move(const pe_metal_maker *m, const pe_metal_unit *u, int32_t code) {
  for (int i = 0; i < u->count; i++)
    if (!are_route_and_experts(m, u->code[i], code) && pe_metal_conflict(m, u->code[i], code))
      return false;
  for (int32_t i = u->code[0]; i < code; i++)
    if (!m->gone[i] && pe_metal_conflict(m, i, code)) return false;
  return true;
}

bool pe_metal_are_siblings(const pe_metal_maker *m, int32_t a, int32_t b) {
  const pe_instr *x = pe_metal_instr(m, a), *y = pe_metal_instr(m, b);
  return x->op == PE_OP_LINEAR && y->op == PE_OP_LINEAR && !x->args.linear.residual &&
         !y->args.linear.residual && x->rows == y->rows &&
         m->order->pulled[a][0] == m->order->pulled[b][0] && pe_program_same(&x->in[0], &y->in[0]);
}

/* The rope of the keys that a store turns: its own, or one that it pulls; NULL: none. */
static const pe_place *table_of(const pe_metal_maker *m, int32_t store) {
  const pe_instr *x = pe_metal_instr(m, store);
  const int32_t concat = m->order->pulled[store][0];
  const int32_t rope = concat < 0 ? -1 : m->order->pulled[concat][1];
  if (rope >= 0) return &pe_metal_instr(m, rope)->in[1];
  return x->args.store.rope.turns > 0 ? &x->in[2] : NULL;
}

static bool are_rope_and_store(const pe_metal_maker *m, int32_t a, int32_t b) {
  const pe_instr *x = pe_metal_instr(m, a), *y = pe_metal_instr(m, b);
  if (x->op != PE_OP_ROPE || y->op != PE_OP_STORE || x->rows != y->rows) return false;
  const pe_place *table = table_of(m, b);
  return table && pe_program_same(&x->in[1], table);
}

/* The first halves of the experts of a route, and of one that all rows share. */
static bool are_experts(const pe_metal_maker *m, int32_t a, int32_t b) {
  const pe_instr *x = pe_metal_instr(m, a), *y = pe_metal_instr(m, b);
  if (m->level != PE_METAL_NORMS || x->op != PE_OP_EXPERT_GATED || y->op != PE_OP_GATED)
    return false;
  const pe_expert_gated_args *e = &x->args.expert_gated;
  return !e->expert.spread && !e->expert.transposed && e->activation == y->args.gated.activation &&
         !y->vec[0] && !y->vec[1] && x->rows == y->rows &&
         m->order->pulled[a][0] == m->order->pulled[b][0] && pe_program_same(&x->in[0], &y->in[0]);
}

/* The last of four has no slot for a bias. */
static bool has_room(const pe_metal_maker *m, const pe_metal_unit *u, int32_t code) {
  return u->count + 1 < PE_METAL_JOINED || !pe_metal_instr(m, code)->vec[0];
}

/* Does a code follow the last one of the unit in its kernel? */
static bool is_next(const pe_metal_maker *m, const pe_metal_unit *u, int32_t code) {
  const int32_t last = u->code[u->count - 1];
  if (are_experts(m, last, code)) return true;
  if (u->count > 1) return false;
  return are_rope_and_store(m, last, code) || are_route_and_experts(m, last, code);
}

/* The plan has put siblings next to each other, and a store soon after the rope. */
static void join(pe_metal_maker *m, pe_metal_unit *u) {
  const int32_t first = u->code[0], end = first + PE_METAL_AHEAD;
  for (int32_t i = first + 1; i <= end && i < m->program->count; i++) {
    if (m->gone[i] || u->count == PE_METAL_JOINED) continue;
    if (!is_next(m, u, i) && (!pe_metal_are_siblings(m, first, i) || !has_room(m, u, i))) continue;
    if (can_move(m, u, i)) u->code[u->count++] = i, m->gone[i] = true;
  }
}

/* ---- orders ---------------------------------------------------------------------------------- */

static bool units_conflict(const pe_metal_maker *m, const pe_metal_unit *u,
                           const pe_metal_unit *v) {
  for (int i = 0; i < u->count; i++)
    for (int k = 0; k < v->count; k++)
      if (pe_metal_conflict(m, u->code[i], v->code[k])) return true;
  return false;
}

static void find_hazards(const pe_metal_maker *m, pe_metal_order *o) {
  for (int32_t i = 0; i < o->count; i++) {
    int32_t after = i;
    while (after > 0 && !units_conflict(m, &o->unit[after - 1], &o->unit[i])) after--;
    o->unit[i].after = after;
  }
}

static void make_order(pe_metal_maker *m) {
  pe_metal_order *o = m->order;
  for (int32_t i = 0; i < m->program->count; i++) {
    for (int k = 0; k < PE_NODE_INPUTS; k++) o->pulled[i][k] = -1;
    o->self[i] = o->into[i] = -1, m->gone[i] = false;
  }
  if (m->level != PE_METAL_PLAIN) pe_metal_pull(m);
  for (int32_t i = 0; i < m->program->count; i++) {
    if (m->gone[i]) continue;
    pe_metal_unit *u = &o->unit[o->count++];
    *u = (pe_metal_unit){.code = {i}, .count = 1};
    m->gone[i] = true;
    if (m->level != PE_METAL_PLAIN) join(m, u);
  }
  find_hazards(m, o);
}

static bool open_order(pe_metal_order *o, size_t codes) {
  o->unit = pe_calloc(codes, sizeof *o->unit);
  o->pulled = pe_calloc(codes, sizeof *o->pulled);
  o->self = pe_calloc(codes, sizeof *o->self), o->into = pe_calloc(codes, sizeof *o->into);
  return o->unit && o->pulled && o->self && o->into;
}

pe_status pe_metal_units_open(pe_metal_units *u, const pe_program *program, pe_error *err) {
  const size_t codes = (size_t)program->count + 1;
  pe_metal_maker m = {.program = program, .gone = pe_calloc(codes, sizeof(bool))};
  bool ok = m.gone != NULL;
  u->program = program;
  for (int i = 0; ok && i < PE_METAL_LEVELS; i++) {
    ok = open_order(&u->level[i], codes);
    m.order = &u->level[i];
    m.level = program->plan->apart ? PE_METAL_PLAIN : (pe_metal_level)i;
    if (ok) make_order(&m);
  }
  pe_free(m.gone);
  return ok ? PE_OK : pe_nomem(err, "device");
}

void pe_metal_units_close(pe_metal_units *u) {
  for (int i = 0; i < PE_METAL_LEVELS; i++) {
    pe_free(u->level[i].unit), pe_free(u->level[i].pulled);
    pe_free(u->level[i].self), pe_free(u->level[i].into);
  }
  *u = (pe_metal_units){0};
}
