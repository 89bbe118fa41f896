/* metal_pull.c - see metal_pull.h.
 *
 * A code is pulled if every reader can compute it, and if what it reads is still there when the
 * last of them runs: others may have taken the memory, which is not the value's own any more
 * (plan.h). */
#include "runtime/device/metal_pull.h"

#include "kernels/metal/args.h"

static const pe_instr *instr_of(const pe_metal_maker *m, int32_t code) {
  return pe_metal_instr(m, code);
}

/* How many inputs of a code are this value. */
static int inputs_of(const pe_metal_maker *m, int32_t code, const pe_place *place) {
  int count = 0;
  for (int i = 0; i < PE_NODE_INPUTS; i++)
    count += pe_program_overlap(&instr_of(m, code)->in[i], place);
  return count;
}

static bool pulls_nothing(const pe_metal_maker *m, int32_t code) {
  for (int i = 0; i < PE_NODE_INPUTS; i++)
    if (m->order->pulled[code][i] >= 0) return false;
  return true;
}

/* ---- into products --------------------------------------------------------------------------- */

/* Can the product y normalize its lines as x does? */
static bool takes_norm(const pe_instr *y, const pe_instr *x) {
  const bool plain = y->op == PE_OP_LINEAR || y->op == PE_OP_GATED;
  const bool experts = y->op == PE_OP_EXPERT_LINEAR || y->op == PE_OP_EXPERT_GATED;
  if ((!plain && !experts) || x->args.norm.layer || x->args.norm.count != 1) return false;
  if (experts && (y->args.expert.spread || y->args.expert.transposed)) return false;
  return y->mat->cols == x->args.norm.width;
}

/* ---- into maps ------------------------------------------------------------------------------- */

/* Is input i of a map as wide as the map, each column read by its own? */
static bool is_whole(const pe_map_args *a, int i) {
  return a->input[i].width == a->width && a->input[i].repeat <= 1 && !a->input[i].fixed;
}

static bool has_fixed(const pe_map_args *a) {
  for (int i = 0; i < a->inputs; i++)
    if (a->input[i].fixed) return true;
  return false;
}

/* Is there a sibling before (by -1) or after (by 1) a code? */
static bool has_sibling(const pe_metal_maker *m, int32_t code, int by) {
  const pe_place *in = &instr_of(m, code)->in[0];
  for (int32_t i = code + by, k = 0; i >= 0 && i < m->program->count && k < PE_METAL_AHEAD;
       i += by) {
    if (pe_metal_are_siblings(m, code, i)) return true;
    if (pe_metal_code_writes(m, i, in)) return false;
    k++;
  }
  return false;
}

/* Does the kernel of this op do a map of its result? */
static bool can_map(const pe_metal_maker *m, int32_t code) {
  switch (instr_of(m, code)->op) {
  case PE_OP_NORM:
  case PE_OP_ATTENTION:
  case PE_OP_CONV:
  case PE_OP_SSM: return true;
  case PE_OP_EXPERT_LINEAR:
    return !instr_of(m, code)->args.expert.spread && !instr_of(m, code)->args.expert.transposed;
  case PE_OP_LINEAR: /* siblings are joined instead */
    return !has_sibling(m, code, -1) && !has_sibling(m, code, 1);
  case PE_OP_EXPERT_SUM: return m->order->pulled[code][0] >= 0;
  default: return false;
  }
}

/* The instruction whose result a map takes as it comes; NULL: none yet. */
static const pe_instr *self_of(const pe_metal_maker *m, int32_t map) {
  const int32_t self = m->order->self[map];
  return self < 0 ? NULL : instr_of(m, m->order->pulled[map][self]);
}

static bool has_product(const pe_metal_maker *m, int32_t map) {
  for (int i = 0; i < PE_NODE_INPUTS; i++) {
    const int32_t from = m->order->pulled[map][i];
    if (i != m->order->self[map] && from >= 0 && instr_of(m, from)->op == PE_OP_LINEAR) return true;
  }
  return false;
}

/* Beside the sum of experts a map may have one more product: that of a shared expert. */
static bool takes_product(const pe_metal_maker *m, int32_t map, int32_t code) {
  const pe_instr *x = instr_of(m, code), *self = self_of(m, map);
  return self && self->op == PE_OP_EXPERT_SUM && !has_product(m, map) && pulls_nothing(m, code) &&
         !x->args.linear.residual && x->mat->rows == self->args.expert_sum.width;
}

/* A function of one value, which may stand for several columns of the map. */
static bool takes_function(const pe_metal_maker *m, int32_t map, int32_t code) {
  const pe_map_args *a = &instr_of(m, code)->args.map;
  return self_of(m, map) && pulls_nothing(m, code) && a->inputs == 1 && a->steps == 1 &&
         pe_map_is_unary(a->step[0].op) && is_whole(a, 0);
}

static bool map_takes(const pe_metal_maker *m, int32_t map, int i, int32_t code) {
  const pe_instr *x = instr_of(m, code), *y = instr_of(m, map);
  const pe_map_args *a = &y->args.map;
  if (x->op == PE_OP_MAP) return !a->input[i].fixed && takes_function(m, map, code);
  if (!is_whole(a, i) || inputs_of(m, map, &x->out) > 1) return false;
  if (x->op == PE_OP_LINEAR && self_of(m, map)) return takes_product(m, map, code);
  return !self_of(m, map) && x->out.step == a->width && can_map(m, code);
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* Values of input i that lie next to each other wherever a kernel reads several at once; 0: it
 * takes no parts. */
static int32_t together(const pe_instr *y, int i) {
  const pe_op_args *a = &y->args;
  switch (y->op) {
  case PE_OP_MAP: return !a->map.input[i].fixed;
  case PE_OP_CONCAT: return 1;
  case PE_OP_CONV: return i == 0;
  case PE_OP_NORM: return a->norm.width;
  case PE_OP_ROPE: return i == 0 ? a->rope.dim : 0;
  case PE_OP_HEAD_LINEAR: return a->head.in;
  case PE_OP_DELTA: return i < 2 ? a->delta.key : 1;
  default: return 0;
  }
}

static bool takes_slice(const pe_instr *y, int i, const pe_instr *x) {
  const int32_t n = together(y, i);
  return n > 0 && x->args.slice.count % n == 0;
}

/* ---- into others ----------------------------------------------------------------------------- */

static bool takes_experts(const pe_instr *y, int i, const pe_instr *x) {
  return i == 0 && x->args.expert.spread && !x->args.expert.transposed &&
         pe_program_same(&y->in[1], &x->in[1]);
}

/* Queries and keys are normalized, decays and betas mapped by the delta rule itself. */
static bool delta_takes(const pe_metal_maker *m, const pe_delta_args *d, int i, int32_t code) {
  const pe_instr *x = instr_of(m, code);
  const pe_norm_args *norm = &x->args.norm;
  const pe_map_args *map = &x->args.map;
  int lines = 0;
  if (x->op == PE_OP_NORM)
    return i < 2 && !norm->layer && !norm->weights && norm->width == d->key &&
           norm->count == d->key_heads && pulls_nothing(m, code);
  if (x->op != PE_OP_MAP || i < 3 || self_of(m, code)) return false;
  for (int k = 0; k < map->inputs; k++) lines += !map->input[k].fixed;
  return lines == 1 && (i == 3 || !has_fixed(map));
}

/* A norm of each head of a delta rule; its groups have a whole head then. */
static bool norm_takes(const pe_norm_args *norm, const pe_instr *x) {
  const pe_delta_args *d = &x->args.delta;
  return x->op == PE_OP_DELTA && !norm->layer && norm->width == d->value &&
         norm->count == d->heads && d->value <= PE_STATE_WIDTH;
}

/* Is a code a norm that a delta rule does? Then it has one reader, and only a map can take it. */
static bool is_of_delta(const pe_metal_maker *m, int32_t code) {
  const int32_t from = m->order->pulled[code][0];
  return instr_of(m, code)->op == PE_OP_NORM && from >= 0 && instr_of(m, from)->op == PE_OP_DELTA;
}

/* A store normalizes the heads of its values. */
static bool takes_values(const pe_instr *y, const pe_instr *x) {
  const pe_norm_args *a = &x->args.norm;
  return x->op == PE_OP_NORM && !a->layer && a->weights <= a->width &&
         a->width == y->args.store.cache.value;
}

/* Can `reader` compute `code`, which is its input i? */
static bool takes(const pe_metal_maker *m, int32_t reader, int i, int32_t code) {
  const pe_instr *x = instr_of(m, code), *y = instr_of(m, reader);
  if (x->rows != y->rows || !pe_program_same(&y->in[i], &x->out)) return false;
  const bool few = m->level == PE_METAL_NORMS;
  if (x->op == PE_OP_SLICE) return takes_slice(y, i, x);
  if (y->op == PE_OP_MAP) return map_takes(m, reader, i, code);
  if (is_of_delta(m, code)) return false;
  if (y->op == PE_OP_NORM) return few && norm_takes(&y->args.norm, x);
  if (y->op == PE_OP_STORE) return i == 1 && takes_values(y, x);
  if (y->op == PE_OP_DELTA) return delta_takes(m, &y->args.delta, i, code);
  if (x->op == PE_OP_CONCAT) return y->op == PE_OP_CONV;
  if (x->op == PE_OP_NORM && i == 0) return few && takes_norm(y, x);
  if (x->op == PE_OP_EXPERT_LINEAR && y->op == PE_OP_EXPERT_SUM)
    return few && takes_experts(y, i, x);
  return false;
}

/* ---- pulling --------------------------------------------------------------------------------- */

/* Does somebody outside of the program read it? */
static bool is_result(const pe_plan *plan, const pe_place *place) {
  for (size_t i = 0; i < plan->tap_count; i++)
    if (pe_program_overlap(&plan->tap[i], place)) return true;
  return pe_program_overlap(&plan->logits, place);
}

/* May only one reader compute it? Others are cheap, or no reader sees what another computes. */
static bool is_single(const pe_metal_maker *m, int32_t code) {
  const pe_op op = instr_of(m, code)->op;
  if (op == PE_OP_NORM) return is_of_delta(m, code);
  return op != PE_OP_SLICE && op != PE_OP_CONCAT;
}

static bool takes_all(const pe_metal_maker *m, int32_t reader, int32_t code) {
  const pe_instr *y = instr_of(m, reader);
  for (int i = 0; i < PE_NODE_INPUTS; i++)
    if (pe_program_overlap(&y->in[i], &instr_of(m, code)->out) && !takes(m, reader, i, code))
      return false;
  return true;
}

/* Can all readers of a code compute it? */
static bool is_pulled(const pe_metal_maker *m, int32_t code, int32_t *readers) {
  const pe_instr *x = instr_of(m, code);
  bool there = true;
  *readers = 0;
  if (x->op == PE_OP_STORE || pe_metal_code_reads(m, code, &x->out)) return false;
  for (int32_t i = code + 1; i < m->program->count; i++) {
    const pe_instr *y = instr_of(m, i);
    const bool changes = y->op != PE_OP_STORE && pe_metal_code_reads(m, code, &y->out);
    const int inputs = inputs_of(m, i, &x->out);
    if (inputs) {
      if (!there || changes || !takes_all(m, i, code)) return false;
      *readers += inputs;
    }
    there = there && !changes && !pe_program_share(x, y);
    if (pe_metal_code_writes(m, i, &x->out)) /* results may come here later */
      return *readers > 0 && (*readers == 1 || !is_single(m, code));
  }
  return *readers > 0 && (*readers == 1 || !is_single(m, code)) &&
         !is_result(m->program->plan, &x->out);
}

/* ---- concat ---------------------------------------------------------------------------------- */

/* The code that made a value that `reader` reads; -1: it has another place, or others read it. */
static int32_t maker_of(const pe_metal_maker *m, int32_t reader, const pe_place *place) {
  int32_t code = reader - 1;
  while (code >= 0 && !pe_metal_code_writes(m, code, place)) code--;
  if (code < 0 || m->gone[code] || !pe_program_same(&instr_of(m, code)->out, place)) return -1;
  for (int32_t i = code + 1; i < m->program->count; i++) {
    if (i != reader && inputs_of(m, i, place)) return -1;
    if (pe_metal_code_writes(m, i, place)) return code;
  }
  return is_result(m->program->plan, place) ? -1 : code;
}

/* Is what a code reads still there when `last` runs? */
static bool stays(const pe_metal_maker *m, int32_t code, int32_t last) {
  for (int32_t i = code + 1; i < last; i++)
    if (instr_of(m, i)->op != PE_OP_STORE && pe_metal_code_reads(m, code, &instr_of(m, i)->out))
      return false;
  return true;
}

/* Keys of latent attention: [norm of a latent | what follows it in the same line, maybe turned]. */
static void pull_latent(pe_metal_maker *m, int32_t store) {
  const pe_instr *x = instr_of(m, store);
  if (x->op != PE_OP_STORE || x->args.store.rope.dim || x->args.store.cache.heads != 1) return;
  const int32_t concat = maker_of(m, store, &x->in[0]);
  if (concat < 0 || instr_of(m, concat)->op != PE_OP_CONCAT) return;
  const pe_instr *c = instr_of(m, concat);
  const pe_concat_args *a = &c->args.concat;
  const int32_t norm = maker_of(m, concat, &c->in[0]), made = maker_of(m, concat, &c->in[1]);
  if (a->heads != 1 || a->inputs != 2 || norm < 0 || instr_of(m, norm)->op != PE_OP_NORM) return;
  const int32_t rope = made >= 0 && instr_of(m, made)->op == PE_OP_ROPE ? made : -1;
  const pe_instr *n = instr_of(m, norm), *r = rope < 0 ? NULL : instr_of(m, rope);
  const pe_place *rest = r ? &r->in[0] : &c->in[1], *latent = &n->in[0];
  if (n->args.norm.layer || n->args.norm.count != 1 || n->args.norm.width != a->width[0] ||
      (r && (r->args.rope.heads != 1 || r->args.rope.norm.width)))
    return;
  if (rest->rows != latent->rows || rest->at != latent->at || rest->step != latent->step ||
      rest->offset != latent->offset + a->width[0])
    return;
  if (!stays(m, concat, store) || !stays(m, norm, store) || (r && !stays(m, rope, store))) return;
  m->order->pulled[store][0] = concat, m->order->pulled[concat][0] = norm;
  m->order->pulled[concat][1] = rope, m->gone[concat] = m->gone[norm] = true;
  if (r) m->gone[rope] = true;
}

/* Can a code write its heads where a concat would put them? */
static bool writes_part(const pe_metal_maker *m, int32_t code, const pe_concat_args *a, int i) {
  const pe_op_args *b = &instr_of(m, code)->args;
  switch (instr_of(m, code)->op) {
  case PE_OP_ROPE: return b->rope.heads == a->heads && b->rope.dim == a->width[i];
  case PE_OP_HEAD_LINEAR: return b->head.heads == a->heads && b->head.out == a->width[i];
  default: return false;
  }
}

/* All inputs of a concat are written where it would put them, if nothing else is there since the
 * first of them. */
static void push_concat(pe_metal_maker *m, int32_t concat) {
  const pe_instr *x = instr_of(m, concat);
  const pe_concat_args *a = &x->args.concat;
  int32_t maker[PE_NODE_INPUTS], first = concat;
  if (x->op != PE_OP_CONCAT || m->gone[concat]) return;
  for (int i = 0; i < a->inputs; i++) {
    maker[i] = maker_of(m, concat, &x->in[i]);
    if (maker[i] < 0 || a->shared[i] || instr_of(m, maker[i])->rows != x->rows ||
        !writes_part(m, maker[i], a, i))
      return;
    if (maker[i] < first) first = maker[i];
  }
  for (int32_t i = first; i < concat; i++)
    if (!m->gone[i] && (pe_metal_code_reads(m, i, &x->out) || pe_metal_code_writes(m, i, &x->out)))
      return;
  for (int i = 0; i < a->inputs; i++) m->order->into[maker[i]] = concat;
  m->gone[concat] = true;
}

void pe_metal_pull(pe_metal_maker *m) {
  for (int32_t code = 0; code < m->program->count; code++) pull_latent(m, code);
  for (int32_t code = 0; code < m->program->count; code++) {
    const pe_place *out = &instr_of(m, code)->out;
    int32_t left;
    if (m->gone[code] || !is_pulled(m, code, &left)) continue;
    for (int32_t i = code + 1; left > 0; i++)
      for (int k = 0; k < PE_NODE_INPUTS; k++) {
        if (!pe_program_overlap(&instr_of(m, i)->in[k], out)) continue;
        if (instr_of(m, i)->op == PE_OP_MAP && m->order->self[i] < 0 && can_map(m, code))
          m->order->self[i] = k;
        m->order->pulled[i][k] = code, left--;
      }
    m->gone[code] = true;
  }
  for (int32_t code = 0; code < m->program->count; code++) push_concat(m, code);
}
