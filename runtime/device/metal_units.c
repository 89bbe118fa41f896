/* metal_units.c - see metal_units.h. */
#include "runtime/device/metal_units.h"

/* While an order is made. */
typedef struct maker {
  const pe_program *program;
  pe_metal_level level;
  int32_t *norm;          /* by code: the norm that it does; -1: none */
  int32_t *experts, *sum; /* by code: products of experts that run with it, and their sum */
  bool *gone;             /* by code: in a unit already, or a norm that others do */
  bool *waits;            /* by code: it runs with a later one, and is in no unit until then */
} maker;

static const pe_instr *instr_of(const maker *m, int32_t code) {
  return m->program->code[code].instr;
}

/* ---- what codes touch ------------------------------------------------------------------------ */

static bool writes(const maker *m, int32_t code, const pe_place *place) {
  const pe_instr *x = instr_of(m, code);
  return x->op != PE_OP_STORE && pe_program_overlap(&x->out, place);
}

static bool reads(const maker *m, int32_t code, const pe_place *place) {
  const pe_instr *x = instr_of(m, code);
  const int32_t norm = m->norm[code];
  if (norm >= 0 && pe_program_overlap(&instr_of(m, norm)->in[0], place)) return true;
  for (int i = norm >= 0 ? 1 : 0; i < PE_NODE_INPUTS; i++)
    if (pe_program_overlap(&x->in[i], place)) return true;
  return false;
}

/* Must one of the two codes wait for the other? */
static bool conflict(const maker *m, int32_t a, int32_t b) {
  const pe_instr *x = instr_of(m, a), *y = instr_of(m, b);
  if (pe_program_share(x, y)) return true;
  if (x->op != PE_OP_STORE && (reads(m, b, &x->out) || writes(m, b, &x->out))) return true;
  return y->op != PE_OP_STORE && reads(m, a, &y->out);
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* Does somebody outside of the program read it? */
static bool is_result(const pe_plan *plan, const pe_place *place) {
  for (size_t i = 0; i < plan->tap_count; i++)
    if (pe_program_overlap(&plan->tap[i], place)) return true;
  return pe_program_overlap(&plan->logits, place);
}

/* Is code a product of the lines of norm x and of nothing else that shares their memory? */
static bool multiplies(const maker *m, int32_t code, const pe_instr *x) {
  const pe_instr *y = instr_of(m, code);
  const bool plain = y->op == PE_OP_LINEAR || y->op == PE_OP_GATED;
  const bool experts = y->op == PE_OP_EXPERT_LINEAR || y->op == PE_OP_EXPERT_GATED;
  if ((!plain && !experts) || y->rows != x->rows) return false;
  if (experts && (y->args.expert.spread || y->args.expert.transposed)) return false;
  if (!pe_program_same(&y->in[0], &x->out) || y->mat->cols != x->args.norm.width) return false;
  for (int i = 1; i < PE_NODE_INPUTS; i++)
    if (pe_program_overlap(&y->in[i], &x->out)) return false;
  return true;
}

/* Can all readers of a norm do it themselves? Its input must be there until the last of them. */
static bool is_absorbed(const maker *m, int32_t code, int32_t *readers) {
  const pe_instr *x = instr_of(m, code);
  if (x->op != PE_OP_NORM || x->args.norm.layer || x->args.norm.count != 1) return false;
  if (is_result(m->program->plan, &x->out) || pe_program_overlap(&x->out, &x->in[0])) return false;
  bool there = true;
  *readers = 0;
  for (int32_t i = code + 1; i < m->program->count; i++) {
    const bool overwrites = writes(m, i, &x->in[0]);
    if (reads(m, i, &x->out)) {
      if (!there || overwrites || !multiplies(m, i, x)) return false;
      ++*readers;
    }
    there = there && !overwrites;
    if (writes(m, i, &x->out)) break;
  }
  return *readers > 0;
}

static void absorb_norms(maker *m) {
  for (int32_t code = 0; code < m->program->count; code++) {
    const pe_instr *x = instr_of(m, code);
    int32_t left;
    if (!is_absorbed(m, code, &left)) continue;
    for (int32_t i = code + 1; left > 0; i++)
      if (reads(m, i, &x->out)) m->norm[i] = code, left--;
    m->gone[code] = true;
  }
}

/* ---- joining --------------------------------------------------------------------------------- */

/* Can a later code run with the unit? */
static bool can_move(const maker *m, const pe_metal_unit *u, int32_t code) {
  for (int i = 0; i < u->count; i++)
    if (conflict(m, u->code[i], code)) return false;
  for (int32_t i = u->code[0]; i < code; i++)
    if (!m->gone[i] && conflict(m, i, code)) return false;
  return true;
}

static bool are_siblings(const maker *m, int32_t a, int32_t b) {
  const pe_instr *x = instr_of(m, a), *y = instr_of(m, b);
  return x->op == PE_OP_LINEAR && y->op == PE_OP_LINEAR && !x->args.linear.residual &&
         !y->args.linear.residual && x->rows == y->rows && m->norm[a] == m->norm[b] &&
         pe_program_same(&x->in[0], &y->in[0]);
}

static bool are_rope_and_store(const maker *m, int32_t a, int32_t b) {
  const pe_instr *x = instr_of(m, a), *y = instr_of(m, b);
  return x->op == PE_OP_ROPE && y->op == PE_OP_STORE && y->args.store.rope.turns > 0 &&
         x->rows == y->rows && pe_program_same(&x->in[1], &y->in[2]);
}

/* The plan has put siblings next to each other, and a store soon after the rope. */
static void join(maker *m, pe_metal_unit *u) {
  enum { AHEAD = 4 };
  const int32_t first = u->code[0], end = first + AHEAD;
  for (int32_t i = first + 1; i <= end && i < m->program->count; i++) {
    if (m->gone[i] || u->count == PE_METAL_JOINED) continue;
    const bool pair = u->count == 1 && are_rope_and_store(m, first, i);
    if ((!pair && !are_siblings(m, first, i)) || !can_move(m, u, i)) continue;
    u->code[u->count++] = i, m->gone[i] = true;
    if (pair) return;
  }
}

static bool units_conflict(const maker *m, const pe_metal_unit *u, const pe_metal_unit *v) {
  for (int i = 0; i < u->count; i++)
    for (int k = 0; k < v->count; k++)
      if (conflict(m, u->code[i], v->code[k])) return true;
  return false;
}

static void find_hazards(const maker *m, pe_metal_order *o) {
  for (int32_t i = 0; i < o->count; i++) {
    int32_t after = i;
    while (after > 0 && !units_conflict(m, &o->unit[after - 1], &o->unit[i])) after--;
    o->unit[i].after = after;
  }
}

/* ---- experts --------------------------------------------------------------------------------- */

/* The code that alone reads what `from` writes; -1: there are several, or it is a result. */
static int32_t only_reader(const maker *m, int32_t from) {
  const pe_place *place = &instr_of(m, from)->out;
  int32_t found = -1;
  for (int32_t i = from + 1; i < m->program->count; i++) {
    const bool other = reads(m, i, place);
    if (other && found >= 0) return -1;
    if (other) found = i;
    if (writes(m, i, place)) return found; /* results may come here later */
  }
  return is_result(m->program->plan, place) ? -1 : found;
}

/* Can a map be computed where the sum of the experts is, column by column? */
static bool maps_sum(const pe_instr *x, const pe_instr *sum) {
  const pe_map_args *a = &x->args.map;
  int found = 0;
  if (x->op != PE_OP_MAP || x->rows != sum->rows || a->width != sum->args.expert_sum.width)
    return false;
  for (int i = 0; i < a->inputs; i++) {
    const bool whole = a->input[i].width == a->width && a->input[i].repeat <= 1;
    if (a->input[i].fixed) return false;
    if (pe_program_same(&x->in[i], &sum->out)) found += whole ? 1 : 2;
  }
  return found == 1;
}

/* Can `code` wait until `last`, whose result is not what the experts read? */
static bool can_wait(const maker *m, const pe_instr *experts, int32_t code, int32_t sum,
                     int32_t last) {
  const pe_place *out = &instr_of(m, last)->out;
  for (int i = 0; i < 2; i++)
    if (pe_program_overlap(out, &experts->in[i])) return false;
  for (int32_t i = code + 1; i < last; i++)
    if (i != sum && !m->gone[i] && conflict(m, i, code)) return false;
  return true;
}

/* Products of the chosen experts, their weighted sum, and a map of it run where the last is. */
static void join_experts(maker *m, int32_t code) {
  const pe_instr *x = instr_of(m, code);
  if (x->op != PE_OP_EXPERT_LINEAR || !x->args.expert.spread || x->args.expert.transposed) return;
  const int32_t sum = only_reader(m, code);
  if (sum < 0) return;
  const pe_instr *y = instr_of(m, sum);
  if (y->op != PE_OP_EXPERT_SUM || y->rows != x->rows || !pe_program_same(&y->in[0], &x->out) ||
      !pe_program_same(&y->in[1], &x->in[1]) || !can_wait(m, x, code, sum, sum))
    return;
  const int32_t map = only_reader(m, sum);
  const bool maps = map >= 0 && maps_sum(instr_of(m, map), y) && can_wait(m, x, code, sum, map) &&
                    can_wait(m, x, sum, sum, map);
  m->experts[maps ? map : sum] = code, m->waits[code] = true;
  if (maps) m->sum[map] = sum, m->waits[sum] = true;
}

/* ---- orders ---------------------------------------------------------------------------------- */

static pe_metal_unit unit_of(const maker *m, int32_t code) {
  pe_metal_unit u = {.code = {code}, .count = 1, .norm = m->norm[code]};
  if (m->experts[code] < 0) return u;
  u = (pe_metal_unit){.code = {m->experts[code], code}, .count = 2, .norm = -1};
  if (m->sum[code] >= 0) u.code[1] = m->sum[code], u.code[2] = code, u.count = 3;
  return u;
}

static void make_order(maker *m, pe_metal_order *o) {
  for (int32_t i = 0; i < m->program->count; i++)
    m->norm[i] = m->experts[i] = m->sum[i] = -1, m->gone[i] = m->waits[i] = false;
  if (m->level == PE_METAL_NORMS) {
    absorb_norms(m);
    for (int32_t i = 0; i < m->program->count; i++) join_experts(m, i);
  }
  for (int32_t i = 0; i < m->program->count; i++) {
    if (m->gone[i] || m->waits[i]) continue;
    pe_metal_unit *u = &o->unit[o->count++];
    *u = unit_of(m, i);
    for (int k = 0; k < u->count; k++) m->gone[u->code[k]] = true;
    if (m->level != PE_METAL_PLAIN && u->count == 1) join(m, u);
  }
  find_hazards(m, o);
}

pe_status pe_metal_units_open(pe_metal_units *u, const pe_program *program, pe_error *err) {
  const size_t codes = (size_t)program->count + 1;
  maker m = {.program = program};
  m.norm = pe_calloc(3 * codes, sizeof *m.norm), m.gone = pe_calloc(2 * codes, sizeof *m.gone);
  bool ok = m.norm && m.gone;
  if (ok) m.experts = m.norm + codes, m.sum = m.experts + codes, m.waits = m.gone + codes;
  u->program = program;
  for (int i = 0; ok && i < PE_METAL_LEVELS; i++) {
    if (!(u->level[i].unit = pe_calloc(codes, sizeof *u->level[i].unit))) ok = false;
    m.level = program->plan->apart ? PE_METAL_PLAIN : (pe_metal_level)i;
    if (ok) make_order(&m, &u->level[i]);
  }
  pe_free(m.norm), pe_free(m.gone);
  return ok ? PE_OK : pe_nomem(err, "device");
}

void pe_metal_units_close(pe_metal_units *u) {
  for (int i = 0; i < PE_METAL_LEVELS; i++) pe_free(u->level[i].unit);
  *u = (pe_metal_units){0};
}
