/* plan_output.c - computes values for the rows whose logits are wanted, and no others, as far up
 * the graph as possible; see plan.h. */
#include "runtime/graph/plan_parts.h"

#include <string.h>

/* Does row r of the result depend on row r of the inputs and on nothing else? */
static bool is_rowwise(const pe_node *n) {
  switch (n->op) {
  case PE_NODE_VIEW:
  case PE_OP_LINEAR:
  case PE_OP_GATED:
  case PE_OP_EXPERT_LINEAR:
  case PE_OP_EXPERT_GATED:
  case PE_OP_HEAD_LINEAR:
  case PE_OP_NORM:
  case PE_OP_MAP:
  case PE_OP_ROPE:
  case PE_OP_ROUTE:
  case PE_OP_EXPERT_SUM:
  case PE_OP_CONCAT:
  case PE_OP_SLICE: return true;
  default: return false;
  }
}

/* Does it change a cache or a state? */
static bool has_effect(const pe_node *n) { return n->op == PE_OP_STORE || n->state_at >= 0; }

static void mark_inputs(const pe_node *n, bool *set) {
  for (int j = 0; j < n->inputs; j++)
    if (n->in[j] >= 0) set[n->in[j]] = true;
}

static void mark_results(const pe_planner *s, const pe_plan_options *o, bool *set) {
  set[s->g->output] = true;
  for (size_t i = 0; i < o->tap_count; i++) set[o->taps[i]] = true;
}

/* Does it read all rows of its inputs, given that it does not move? */
static bool reads_all(const pe_node *n, bool pinned) {
  if (n->op == PE_OP_OUTPUT) return pinned;
  return n->rows == PE_EXTENT_ALL || n->op == PE_OP_MERGE;
}

/* moves[v]: all readers of v are ops `output` or values that move themselves. A view moves with the
 * value that it shows; of a value that stays only the view is picked. */
static void find_moves(const pe_planner *s, const pe_plan_options *o, bool *moves, bool *all) {
  mark_results(s, o, all);
  for (size_t i = s->n; i-- > 0;) {
    const pe_node *n = &s->node[i];
    if (!s->live[i]) continue;
    moves[i] = !all[i] && n->rows == PE_EXTENT_ALL && is_rowwise(n);
    if (!moves[i] && reads_all(n, all[i])) mark_inputs(n, all);
  }
  for (size_t i = 0; i < s->n; i++)
    if (s->node[i].op == PE_NODE_VIEW && moves[i]) moves[i] = moves[s->node[i].in[0]];
}

/* The rows of v whose logits are wanted, as a value that is computed before node `at`. */
static pe_value pick(pe_planner *s, pe_value v, pe_value *picked) {
  if (picked[v] >= 0) return picked[v];
  const pe_value made = picked[v] = (pe_value)(s->n + s->picks++);
  pe_node n = {.name = s->node[v].name,
               .op = PE_OP_OUTPUT,
               .rows = PE_EXTENT_OUTPUT,
               .rank = s->node[v].rank,
               .width = s->node[v].width,
               .inputs = 1,
               .in = {v},
               .mat = -1,
               .mat2 = -1,
               .cache = -1,
               .state_at = -1,
               .args.output.width = s->node[v].width};
  for (int i = 0; i < PE_GRAPH_DIMS; i++) n.dim[i] = s->node[v].dim[i];
  s->node[made] = n, s->live[made] = true, s->order[s->count++] = made;
  return made;
}

/* An op `output` of a value that has moved is that value. */
static pe_value through(const pe_planner *s, pe_value v) {
  while (v >= 0 && !s->live[v] && s->node[v].op == PE_OP_OUTPUT) v = s->node[v].in[0];
  return v;
}

static void move_node(pe_planner *s, size_t i, const bool *moves, pe_value *picked) {
  pe_node *n = &s->node[i];
  for (int j = 0; j < n->inputs; j++) {
    n->in[j] = through(s, n->in[j]);
    if (moves[i] && n->in[j] >= 0 && s->node[n->in[j]].rows == PE_EXTENT_ALL)
      n->in[j] = pick(s, n->in[j], picked);
  }
  if (moves[i]) n->rows = PE_EXTENT_OUTPUT;
  if (n->op == PE_OP_OUTPUT && moves[n->in[0]])
    s->live[i] = false, s->into[i] = pe_plan_root(s, n->in[0]);
  else
    s->order[s->count++] = (pe_value)i;
}

/* What no row needs that has no logits: everything but stores, states and their inputs. */
static void find_skipped(pe_planner *s, const pe_plan_options *o, bool *needed) {
  mark_results(s, o, needed);
  for (size_t k = s->count; k-- > 0;) {
    const pe_value v = s->order[k];
    const pe_node *n = &s->node[v];
    s->skipped[v] = n->rows != PE_EXTENT_OUTPUT && !needed[v] && !has_effect(n);
    if (n->rows != PE_EXTENT_OUTPUT && !s->skipped[v]) mark_inputs(n, needed);
  }
}

/* Is m a product of the same rows of the same input as n? */
static bool same_input(const pe_node *n, const pe_node *m) {
  return n->op == PE_OP_LINEAR && m->op == PE_OP_LINEAR && !n->args.linear.residual &&
         !m->args.linear.residual && n->in[0] == m->in[0] && n->rows == m->rows;
}

/* Products of one input follow each other, so that none of them takes the memory of another. A
 * product needs nothing but its input: it may move up to its sibling. */
static void gather_products(pe_planner *s) {
  enum { AHEAD = 32 }; /* nodes: siblings are in one layer */
  for (size_t k = 0; k < s->count; k++) {
    size_t to = k + 1;
    for (size_t m = k + 1; m < s->count && m <= k + AHEAD; m++) {
      const pe_value v = s->order[m];
      if (!same_input(&s->node[s->order[k]], &s->node[v])) continue;
      memmove(&s->order[to + 1], &s->order[to], (m - to) * sizeof *s->order);
      s->order[to++] = v;
    }
    k = to - 1;
  }
}

pe_status pe_plan_move_output(pe_planner *s, const pe_plan_options *o, pe_error *err) {
  bool *moves = pe_calloc(2 * s->n, sizeof *moves), *set = pe_calloc(2 * s->n, sizeof *set);
  pe_value *picked = pe_calloc(s->n, sizeof *picked);
  const bool ok = moves && set && picked;
  if (ok) {
    for (size_t i = 0; i < s->n; i++) picked[i] = -1;
    if (!o->apart) find_moves(s, o, moves, set);
    for (size_t i = 0; i < s->n; i++)
      if (s->live[i]) move_node(s, i, moves, picked);
    if (!o->apart) gather_products(s);
    for (size_t i = 0; i < 2 * s->n; i++) set[i] = false;
    find_skipped(s, o, set);
  }
  pe_free(moves), pe_free(set), pe_free(picked);
  return ok ? PE_OK : pe_nomem(err, "plan");
}
