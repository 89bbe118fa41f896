/* program.c - see program.h. */
#include "runtime/device/program.h"

#include "kernels/cpu/amx16.h"
#include "kernels/cpu/int16.h"

/* ---- what codes touch ------------------------------------------------------------------------ */

bool pe_program_overlap(const pe_place *a, const pe_place *b) {
  return a->rows == b->rows && a->rows != PE_EXTENT_CONST && a->at < b->at + b->step &&
         b->at < a->at + a->step;
}

bool pe_program_same(const pe_place *a, const pe_place *b) {
  return a->rows == b->rows && a->at == b->at && a->offset == b->offset && a->step == b->step;
}

static bool writes_place(const pe_code *c, const pe_place *place) {
  return c->round < 0 && c->instr->op != PE_OP_STORE && pe_program_overlap(&c->instr->out, place);
}

static bool takes_place(const pe_code *c, const pe_place *place) {
  for (int i = 0; i < (c->round < 0 ? PE_NODE_INPUTS : 1); i++)
    if (pe_program_overlap(&c->instr->in[i], place)) return true;
  return false;
}

/* Does a code read this place, itself or for a joined norm? */
static bool reads_place(const pe_program *p, const pe_code *c, const pe_place *place) {
  const int32_t rounded[3] = {c->round, c->reads[0], c->reads[1]};
  for (int i = 0; i < 3; i++) {
    const int32_t norm = rounded[i] < 0 ? -1 : p->rounded[rounded[i]].norm;
    if (norm >= 0 && pe_program_overlap(&p->code[norm].instr->in[0], place)) return true;
  }
  return takes_place(c, place);
}

/* The slots that a code reads, as bits. */
static uint64_t slots_read(const pe_program *p, const pe_code *c) {
  uint64_t bits = 0;
  for (int i = 0; i < 2; i++)
    if (c->reads[i] >= 0) bits |= 1ull << p->rounded[c->reads[i]].slot;
  return bits;
}
static uint64_t slot_written(const pe_program *p, const pe_code *c) {
  const int32_t written = c->round < 0 ? c->writes : c->round;
  return written < 0 ? 0 : 1ull << p->rounded[written].slot;
}

bool pe_program_share(const pe_instr *x, const pe_instr *y) {
  const bool stores = x->op == PE_OP_STORE || y->op == PE_OP_STORE;
  return (stores && x->cache >= 0 && x->cache == y->cache) ||
         (x->state_at >= 0 && x->state_at == y->state_at);
}

/* Must y, which comes later, wait for x? */
static bool conflict(const pe_program *p, const pe_code *x, const pe_code *y) {
  const uint64_t written = slot_written(p, x), writes = slot_written(p, y);
  if (x->joined || y->joined) return false;
  if ((written & (slots_read(p, y) | writes)) || (writes & slots_read(p, x))) return true;
  if (x->round < 0 && y->round < 0 && pe_program_share(x->instr, y->instr)) return true;
  if (x->round < 0 && x->instr->op != PE_OP_STORE &&
      (reads_place(p, y, &x->instr->out) || writes_place(y, &x->instr->out)))
    return true;
  return y->round < 0 && y->instr->op != PE_OP_STORE && reads_place(p, x, &y->instr->out);
}

static void find_hazards(pe_program *p) {
  for (int32_t i = 0; i < p->count; i++) {
    int32_t after = i;
    while (after > 0 && !conflict(p, &p->code[after - 1], &p->code[i])) after--;
    p->code[i].after = after;
  }
}

/* ---- lowering -------------------------------------------------------------------------------- */

static pe_status append(pe_program *p, pe_code code, pe_error *err) {
  pe_status rc = pe_grow(&p->code, &p->code_cap, (size_t)p->count + 1, sizeof *p->code, err);
  if (!rc) p->code[p->count++] = code;
  return rc;
}

/* Is a rounded value still what the place holds? */
static bool is_current(const pe_program *p, const pe_rounded *r) {
  for (int32_t i = r->first + 1; i < p->count; i++)
    if (writes_place(&p->code[i], &r->of)) return false;
  return true;
}

/* The number of in[0] of x rounded like this; adds a code that rounds it if there is none. */
static pe_status rounded_for(pe_program *p, const pe_instr *x, pe_round kind, int64_t cols,
                             int32_t act, int32_t *out, pe_error *err) {
  for (int32_t i = p->rounded_count - 1; i >= 0; i--) {
    const pe_rounded *r = &p->rounded[i];
    if (!pe_program_same(&r->of, &x->in[0]) || r->kind != kind || r->cols != cols || r->act != act)
      continue;
    if (!is_current(p, r)) break;
    p->code[r->first].outputs_only &= x->outputs_only;
    *out = i;
    return PE_OK;
  }
  pe_status rc =
      pe_grow(&p->rounded, &p->rounded_cap, (size_t)p->rounded_count + 1, sizeof *p->rounded, err);
  if (rc) return rc;
  p->rounded[p->rounded_count] = (pe_rounded){.kind = kind,
                                              .of = x->in[0],
                                              .rows = x->in[0].rows,
                                              .cols = (int32_t)cols,
                                              .act = act,
                                              .first = p->count,
                                              .from = p->count,
                                              .norm = -1};
  *out = p->rounded_count++;
  const pe_code code = {
      .instr = x, .round = *out, .reads = {-1, -1}, .writes = -1, .outputs_only = x->outputs_only};
  return append(p, code, err);
}

static bool has_experts(const pe_instr *x) {
  return x->op == PE_OP_EXPERT_LINEAR || x->op == PE_OP_EXPERT_GATED;
}

static bool can_pack(const pe_instr *x) {
  if (x->op != PE_OP_LINEAR && x->op != PE_OP_GATED && !has_experts(x)) return false;
  if (has_experts(x) && x->args.expert.transposed) return false;
  if (!pe_pack_supported(x->mat) || (x->mat2 && !pe_pack_supported(x->mat2))) return false;
  return true;
}

/* Adjacent matrices that are one pack. */
static int32_t matrices(const pe_instr *x) { return has_experts(x) ? x->args.expert.experts : 1; }

static uint64_t packed_bytes(const pe_instr *x) {
  const uint64_t each = pe_pack_bytes(x->mat) + (x->mat2 ? pe_pack_bytes(x->mat2) : 0);
  return each * (uint64_t)matrices(x);
}

/* Gives a product its packed weights and rounded inputs. Experts round the rows that they
 * gather. */
static pe_status pack_product(pe_program *p, const pe_instr *x, pe_pool *pool, pe_code *c,
                              pe_error *err) {
  pe_weights *w = p->plan->graph->weights;
  const bool expert = has_experts(x);
  const int32_t count = matrices(x);
  pe_status rc = pe_packs_take(w, x->mat, count, pool, &c->pack, err);
  if (!rc && x->mat2) rc = pe_packs_take(w, x->mat2, count, pool, &c->pack2, err);
  const pe_pack *packs[2] = {c->pack, c->pack2};
  for (int i = 0; !rc && !expert && i < (x->mat2 ? 2 : 1); i++)
    rc = rounded_for(p, x, PE_ROUND_CODES, packs[i]->cols, packs[i]->act, &c->reads[i], err);
  for (int i = 0; !rc && i < 2; i++)
    if (c->reads[i] >= 0) p->rounded[c->reads[i]].last = p->count;
  return rc;
}

/* Products on tiles: those of experts and heads arrange their values themselves. */
static bool on_tiles(const pe_instr *x) {
  if (x->op != PE_OP_LINEAR && x->op != PE_OP_GATED) return false;
  return pe_amx16_takes(x->mat) && (!x->mat2 || pe_amx16_takes(x->mat2));
}

static pe_status tiles_product(pe_program *p, const pe_instr *x, pe_code *c, pe_error *err) {
  pe_status rc = rounded_for(p, x, PE_ROUND_TILES, x->mat->cols, 0, &c->reads[0], err);
  if (!rc) p->rounded[c->reads[0]].last = p->count;
  return rc;
}

static void give_packs(const pe_program *p, const pe_code *c) {
  pe_packs_give(p->plan->graph->weights, c->pack);
  pe_packs_give(p->plan->graph->weights, c->pack2);
}

static pe_status lower(pe_program *p, pe_pool *pool, const pe_progress *progress, pe_error *err) {
  pe_status rc = PE_OK;
  uint64_t done = 0, total = 0;
  for (size_t i = 0; progress && p->precision == PE_FAST && i < p->plan->count; i++)
    if (can_pack(&p->plan->instr[i])) total += packed_bytes(&p->plan->instr[i]);
  for (size_t i = 0; !rc && i < p->plan->count; i++) {
    const pe_instr *x = &p->plan->instr[i];
    pe_code c = {
        .instr = x, .round = -1, .reads = {-1, -1}, .writes = -1, .outputs_only = x->outputs_only};
    const bool packs = p->precision == PE_FAST && can_pack(x);
    if (packs) rc = pack_product(p, x, pool, &c, err);
    if (!rc && p->precision == PE_FAST && on_tiles(x)) rc = tiles_product(p, x, &c, err);
    if (!rc) rc = append(p, c, err);
    if (rc) give_packs(p, &c);
    if (!rc && packs && progress && (done += packed_bytes(x)) < total)
      progress->tell(progress->ctx, done, total);
  }
  if (total) progress->tell(progress->ctx, total, total);
  return rc;
}

/* Gives every rounded value the first slot that is free while it is needed. */
static pe_status place_slots(pe_program *p, pe_error *err) {
  enum { MOST = 64 }; /* bits of slots_read; models need two or three */
  int32_t busy_until[MOST] = {0};
  for (int32_t i = 0; i < p->rounded_count; i++) {
    pe_rounded *r = &p->rounded[i];
    int32_t slot = 0;
    while (slot < p->slots && busy_until[slot] >= r->from) slot++;
    if (slot == MOST)
      return pe_fail(err, PE_ELIMIT, "more than %d products keep their inputs at a time", MOST);
    r->slot = slot, busy_until[slot] = r->last;
    if (slot == p->slots) p->slots++;
  }
  return PE_OK;
}

/* ---- joining --------------------------------------------------------------------------------- */

/* Is the place needed after the last code? */
static bool is_result(const pe_plan *plan, const pe_place *place) {
  bool found = pe_program_overlap(&plan->logits, place);
  for (size_t i = 0; i < plan->tap_count; i++) found |= pe_program_overlap(&plan->tap[i], place);
  return found;
}

/* Does this code read a place only as the rounded value, or not at all? */
static bool reads_rounded(const pe_code *c, int32_t rounded, const pe_place *place) {
  if (!takes_place(c, place) || c->round == rounded) return true;
  for (int i = 1; i < PE_NODE_INPUTS; i++)
    if (pe_program_overlap(&c->instr->in[i], place)) return false;
  return c->reads[0] == rounded && (c->reads[1] < 0 || c->reads[1] == rounded);
}

/* The code whose result a rounded value is, if it is read by nobody else; -1: it is needed as
 * floats, too. */
static int32_t only_source(const pe_program *p, int32_t rounded) {
  const pe_rounded *r = &p->rounded[rounded];
  int32_t source = r->first - 1;
  while (source >= 0 && !writes_place(&p->code[source], &r->of)) source--;
  if (source < 0 || r->kind != PE_ROUND_CODES) return -1;
  const pe_place *out = &p->code[source].instr->out;
  if (!pe_program_same(out, &r->of) || is_result(p->plan, out)) return -1;
  for (int32_t i = source + 1; i < p->count; i++) {
    if (!reads_rounded(&p->code[i], rounded, out)) return -1;
    if (writes_place(&p->code[i], out)) return i > r->last ? source : -1;
  }
  return source;
}

/* Is this a norm of whole rows, and what it reads not overwritten while the value is rounded? */
static bool is_norm(const pe_program *p, const pe_rounded *r, int32_t source) {
  const pe_instr *x = p->code[source].instr;
  if (x->op != PE_OP_NORM || x->in[0].rows != r->rows) return false;
  if ((int64_t)x->args.norm.width * x->args.norm.count != r->cols) return false;
  for (int32_t i = source + 1; i <= r->last; i++)
    if (writes_place(&p->code[i], &x->in[0])) return false;
  return true;
}

/* Can a code round its result? It computes whole units of columns. */
static bool can_round(const pe_code *c, const pe_rounded *r) {
  const pe_instr *x = c->instr;
  if (x->op == PE_OP_GATED) return c->pack && x->args.gated.out == r->cols;
  const pe_attention_args *a = &x->args.attention;
  return x->op == PE_OP_ATTENTION && a->value % PE_INT16_UNIT == 0 &&
         (int64_t)a->heads * a->value == r->cols;
}

static void join_codes(pe_program *p) {
  for (int32_t i = 0; i < p->rounded_count; i++) {
    pe_rounded *r = &p->rounded[i];
    const int32_t source = only_source(p, i);
    if (source < 0) continue;
    pe_code *c = &p->code[source];
    if (is_norm(p, r, source))
      r->norm = source, c->joined = true;
    else if (can_round(c, r))
      c->writes = i, r->from = source, p->code[r->first].joined = true;
  }
}

/* ---- opening --------------------------------------------------------------------------------- */

pe_status pe_program_open(const pe_plan *plan, pe_precision precision, pe_pool *pool,
                          const pe_progress *progress, pe_program **out, pe_error *err) {
  pe_program *p = pe_calloc(1, sizeof *p);
  if (!p) return pe_nomem(err, "program");
  p->plan = plan, p->precision = precision;
  pe_status rc = lower(p, pool, progress, err);
  if (!rc) join_codes(p), rc = place_slots(p, err);
  if (rc) {
    pe_program_close(p);
    return rc;
  }
  find_hazards(p);
  *out = p;
  return PE_OK;
}

void pe_program_close(pe_program *p) {
  if (!p) return;
  for (int32_t i = 0; i < p->count; i++) give_packs(p, &p->code[i]);
  pe_free(p->code), pe_free(p->rounded), pe_free(p);
}
