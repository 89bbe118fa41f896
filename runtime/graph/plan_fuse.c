/* plan_fuse.c - the fusions of plan.h. Each rewrites the last node involved and drops the
 * others. */
#include <string.h>

#include "runtime/graph/plan_parts.h"

/* Records that v was fused into node i. */
static void drop(pe_planner *s, pe_value v, size_t i) {
  s->live[v] = false, s->uses[v] = 0, s->into[v] = (pe_value)i;
}

/* Is n a map of this single step over two values of the same width? */
static bool plain_binary(const pe_node *n, pe_map_op op) {
  const pe_map_args *m = &n->args.map;
  return n->op == PE_OP_MAP && m->steps == 1 && m->step[0].op == (int32_t)op && m->inputs == 2 &&
         m->input[0].repeat == 1 && m->input[1].repeat == 1 && !m->input[0].fixed &&
         !m->input[1].fixed && m->input[0].width == m->input[1].width;
}

/* The sum of experts and a product that are added, maybe to more: one map for a device to do. */
static bool is_sum(const pe_planner *s, pe_value v) {
  return s->node[v].op == PE_OP_EXPERT_SUM && s->uses[v] == 1;
}

/* x + linear(y): the product adds x. */
static void fuse_residual(pe_planner *s, size_t i) {
  pe_node *n = &s->node[i];
  if (!plain_binary(n, PE_MAP_ADD)) return;
  for (int side = 1; side >= 0; side--) {
    pe_value from = n->in[side], other = n->in[1 - side];
    pe_node *lin = &s->node[from];
    if (lin->op != PE_OP_LINEAR || lin->args.linear.residual || s->uses[from] != 1 ||
        from == other || is_sum(s, other))
      continue;
    const char *name = n->name;
    pe_node made = *lin;
    made.name = name, made.rank = n->rank, made.inputs = 2, made.in[1] = other;
    memcpy(made.dim, n->dim, sizeof n->dim);
    made.args.linear.residual = 1;
    *n = made;
    drop(s, from, i);
    return;
  }
}

/* Is n a map of a single unary step over a value of its own width? */
static bool plain_unary(const pe_node *n) {
  const pe_map_args *m = &n->args.map;
  return n->op == PE_OP_MAP && m->steps == 1 && pe_map_is_unary(m->step[0].op) && m->inputs == 1 &&
         m->input[0].repeat == 1;
}

/* Are a and b products of the same input that have only one reader each? */
static bool twins(const pe_planner *s, pe_value a, pe_value b) {
  const pe_node *x = &s->node[a], *y = &s->node[b];
  if (a == b || x->op != y->op || s->uses[a] != 1 || s->uses[b] != 1 || x->in[0] != y->in[0])
    return false;
  if (x->op == PE_OP_LINEAR) return !x->args.linear.residual && !y->args.linear.residual;
  return x->op == PE_OP_EXPERT_LINEAR && x->in[1] == y->in[1] &&
         !memcmp(&x->args.expert, &y->args.expert, sizeof x->args.expert);
}

/* Turns n into the product of g's input with two matrices, g's and u's. */
static void make_gated(pe_node *n, const pe_node *g, const pe_node *u, int32_t activation) {
  pe_op_args args = {0};
  if (g->op == PE_OP_LINEAR) {
    n->op = PE_OP_GATED;
    args.gated = (pe_gated_args){g->args.linear.in, g->args.linear.out, activation};
  } else {
    n->op = PE_OP_EXPERT_GATED;
    args.expert_gated = (pe_expert_gated_args){g->args.expert, activation};
  }
  n->args = args, n->inputs = g->inputs;
  memcpy(n->in, g->in, sizeof n->in);
  n->mat = g->mat, n->mat2 = u->mat, n->vec[0] = g->vec[0], n->vec[1] = u->vec[0];
}

/* activation(linear(x)) * linear(x), also for experts: one pass over x. */
static void fuse_gated(pe_planner *s, size_t i) {
  pe_node *n = &s->node[i];
  if (!plain_binary(n, PE_MAP_MUL)) return;
  for (int side = 0; side < 2; side++) {
    pe_value act = n->in[side], up = n->in[1 - side], gate = s->node[act].in[0];
    if (!plain_unary(&s->node[act]) || s->uses[act] != 1 || !twins(s, gate, up)) continue;
    make_gated(n, &s->node[gate], &s->node[up], s->node[act].args.map.step[0].op);
    for (int j = 0; j < n->inputs; j++) s->uses[n->in[j]]--; /* gate and up both read them */
    drop(s, act, i), drop(s, gate, i), drop(s, up, i);
    return;
  }
}

/* rope(norm(x)) with one norm per head: the rotation normalizes. */
static void fuse_norm(pe_planner *s, size_t i) {
  pe_node *n = &s->node[i];
  if (n->op != PE_OP_ROPE) return;
  const pe_value v = n->in[0];
  const pe_node *norm = &s->node[v];
  const pe_norm_args *a = &norm->args.norm;
  if (norm->op != PE_OP_NORM || s->uses[v] != 1 || a->width != n->args.rope.dim ||
      a->weights > a->width || norm->vec[1])
    return;
  n->args.rope.norm = *a, n->vec[0] = norm->vec[0], n->in[0] = norm->in[0];
  drop(s, v, i);
}

/* rope(k) whose only reader is a store. */
static void fuse_rope(pe_planner *s, size_t i) {
  pe_node *n = &s->node[i];
  if (n->op != PE_OP_STORE) return;
  pe_value k = n->in[0];
  pe_node *rope = &s->node[k];
  if (rope->op != PE_OP_ROPE || s->uses[k] != 1) return;
  n->args.store.rope = rope->args.rope, n->vec[0] = rope->vec[0];
  n->in[0] = rope->in[0], n->in[2] = rope->in[1], n->inputs = 3;
  drop(s, k, i);
}

/* Makes input i of `from` an input of the map under construction; -1: it has PE_MAP_INPUTS
 * already. */
static int map_operand(pe_node *to, const pe_node *from, int i) {
  pe_map_args *m = &to->args.map;
  for (int j = 0; j < m->inputs; j++)
    if (to->in[j] == from->in[i] && m->input[j].repeat == from->args.map.input[i].repeat) return j;
  if (m->inputs == PE_MAP_INPUTS) return -1;
  to->in[m->inputs] = from->in[i], to->vec[m->inputs] = from->vec[i];
  m->input[m->inputs] = from->args.map.input[i];
  to->inputs = m->inputs + 1;
  return m->inputs++;
}

/* While maps are fused, registers below PE_MAP_INPUTS are inputs, and PE_MAP_INPUTS + i is the
 * result of step i, so that no register is written twice. */
static int32_t widen(const pe_map_args *m, int32_t r) {
  return r < m->inputs ? r : PE_MAP_INPUTS + r - m->inputs; /* constants stay as they are */
}

/* Appends the steps of `from` to `to`; reg maps the inputs of `from` to registers of `to`. Returns
 * the register of the result. A step has at most one constant, which gets the number of its
 * step. */
static int32_t append_steps(pe_map_args *to, const pe_map_args *from, const int32_t *reg) {
  int32_t base = to->steps;
  for (int i = 0; i < from->steps; i++) {
    pe_map_step st = from->step[i];
    int32_t *operand[2] = {&st.a, &st.b};
    for (int j = 0; j < 2; j++) {
      int32_t r = *operand[j];
      if (pe_map_is_constant(r)) {
        to->value[base + i] = from->value[pe_map_constant_index(r)];
        *operand[j] = pe_map_constant(base + i);
      } else {
        *operand[j] = r < PE_MAP_INPUTS ? reg[r] : r + base;
      }
    }
    st.to = PE_MAP_INPUTS + base + i;
    to->step[base + i] = st;
  }
  to->steps += from->steps;
  return PE_MAP_INPUTS + to->steps - 1;
}

static void widen_map(pe_node *n) {
  pe_map_args *m = &n->args.map;
  for (int i = 0; i < m->steps; i++) {
    pe_map_step *st = &m->step[i];
    st->a = widen(m, st->a), st->b = widen(m, st->b), st->to = widen(m, st->to);
  }
  m->result = widen(m, m->result);
}

/* Assigns real registers to the results of steps, reusing those that are not read again. False:
 * there are too few. */
static bool narrow_map(pe_node *n) {
  pe_map_args *m = &n->args.map;
  int32_t real[PE_MAP_INPUTS + PE_MAP_STEPS], last[PE_MAP_INPUTS + PE_MAP_STEPS] = {0};
  bool busy[PE_MAP_REGISTERS] = {0};
  for (int i = 0; i < m->steps; i++) {
    const pe_map_step *st = &m->step[i];
    if (!pe_map_is_constant(st->a)) last[st->a] = i;
    if (!pe_map_is_unary(st->op) && !pe_map_is_constant(st->b)) last[st->b] = i;
  }
  for (int i = 0; i < m->inputs; i++) real[i] = i, busy[i] = true;
  last[m->result] = m->steps;
  for (int i = 0; i < m->steps; i++) {
    pe_map_step *st = &m->step[i];
    int32_t a = st->a, b = st->b, to = 0;
    bool reads_a = !pe_map_is_constant(a);
    bool reads_b = !pe_map_is_unary(st->op) && !pe_map_is_constant(b);
    if (reads_a) st->a = real[a];
    st->b = reads_b ? real[b] : pe_map_is_unary(st->op) ? 0 : b;
    if (reads_a && last[a] == i) busy[real[a]] = false;
    if (reads_b && last[b] == i) busy[real[b]] = false;
    while (to < PE_MAP_REGISTERS && busy[to]) to++;
    if (to == PE_MAP_REGISTERS) return false;
    busy[to] = true;
    real[PE_MAP_INPUTS + i] = to;
    st->to = to;
  }
  m->result = real[m->result];
  return true;
}

static int32_t times(const pe_node *n, pe_value v) {
  int32_t count = 0;
  for (int i = 0; i < n->inputs; i++) count += n->in[i] == v;
  return count;
}

/* What both maps read, the one made of them reads once. */
static void forget_doubles(pe_planner *s, const pe_node *a, const pe_node *n, const pe_node *made) {
  for (int i = 0; i < made->inputs; i++) {
    const pe_value v = made->in[i];
    bool first = v >= 0;
    for (int k = 0; k < i; k++) first = first && made->in[k] != v;
    if (first) s->uses[v] -= times(a, v) + times(n, v) - times(made, v);
  }
}

/* If an input of map i is itself a map without other readers, prepends its steps, provided that the
 * inputs, steps and registers suffice. */
static bool fuse_map_once(pe_planner *s, size_t i) {
  pe_node *n = &s->node[i];
  for (int k = 0; k < n->inputs; k++) {
    pe_value v = n->in[k];
    const pe_node *a = &s->node[v];
    if (a->op != PE_OP_MAP || s->uses[v] != 1 || n->args.map.input[k].repeat != 1 ||
        a->rows != n->rows || a->width != n->width)
      continue;
    if (a->args.map.steps + n->args.map.steps > PE_MAP_STEPS) continue;
    pe_node made = *n;
    made.inputs = 0, memset(&made.args, 0, sizeof made.args), memset(made.vec, 0, sizeof made.vec);
    made.args.map.width = n->width;
    int32_t reg[PE_MAP_INPUTS] = {0}, inner[PE_MAP_INPUTS] = {0};
    bool fits = true;
    for (int j = 0; j < a->args.map.inputs; j++)
      fits = (inner[j] = map_operand(&made, a, j)) >= 0 && fits;
    for (int j = 0; j < n->args.map.inputs; j++)
      if (j != k) fits = (reg[j] = map_operand(&made, n, j)) >= 0 && fits;
    if (!fits) continue;
    reg[k] = append_steps(&made.args.map, &a->args.map, inner);
    made.args.map.result = append_steps(&made.args.map, &n->args.map, reg);
    pe_node test = made;
    if (!narrow_map(&test)) continue;
    forget_doubles(s, a, n, &made);
    *n = made;
    drop(s, v, i);
    return true;
  }
  return false;
}

pe_status pe_plan_fuse(pe_planner *s, bool fuse, pe_error *err) {
  for (size_t i = 0; fuse && i < s->n; i++)
    if (s->live[i]) fuse_residual(s, i), fuse_gated(s, i), fuse_norm(s, i), fuse_rope(s, i);
  for (size_t i = 0; i < s->n; i++)
    if (s->live[i] && s->node[i].op == PE_OP_MAP) widen_map(&s->node[i]);
  for (size_t i = 0; fuse && i < s->n; i++)
    while (s->live[i] && s->node[i].op == PE_OP_MAP && fuse_map_once(s, i)) {}
  for (size_t i = 0; i < s->n; i++)
    if (s->live[i] && s->node[i].op == PE_OP_MAP && !narrow_map(&s->node[i]))
      return pe_fail(err, PE_ELIMIT, "%s: a map needs more than %d registers", s->node[i].name,
                     PE_MAP_REGISTERS);
  return PE_OK;
}
