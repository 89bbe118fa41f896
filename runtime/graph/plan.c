/* plan.c - see plan.h. */
#include "runtime/graph/plan_parts.h"

#include <string.h>

/* ---- liveness -------------------------------------------------------------------------------- */

/* Marks the values that the output and the taps depend on, and counts their readers. */
static void count_uses(pe_planner *s, const pe_plan_options *o) {
  s->live[s->g->output] = true, s->uses[s->g->output]++;
  for (size_t i = 0; i < o->tap_count; i++) s->live[o->taps[i]] = true, s->uses[o->taps[i]] += 2;
  for (size_t i = s->n; i-- > 0;) {
    if (!s->live[i]) continue;
    for (int j = 0; j < s->node[i].inputs; j++)
      if (s->node[i].in[j] >= 0) s->live[s->node[i].in[j]] = true, s->uses[s->node[i].in[j]]++;
  }
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Free pieces of an area are kept in a list and given out best fit first. */
typedef struct hole {
  int64_t at, size;
} hole;

typedef struct area {
  hole *holes;
  size_t count, cap;
  int64_t top;
} area;

/* Places are multiples of 16 floats, 64 bytes: lines of different values share no cache line. */
static int64_t padded(int32_t width) { return ((int64_t)width + 15) & ~(int64_t)15; }

static int64_t take(area *a, int64_t size) {
  size_t best = SIZE_MAX;
  for (size_t i = 0; i < a->count; i++)
    if (a->holes[i].size >= size && (best == SIZE_MAX || a->holes[i].size < a->holes[best].size))
      best = i;
  if (best == SIZE_MAX) {
    a->top += size;
    return a->top - size;
  }
  int64_t at = a->holes[best].at;
  a->holes[best].at += size;
  if (!(a->holes[best].size -= size)) a->holes[best] = a->holes[--a->count];
  return at;
}

/* Frees a place and joins it with the holes it touches. */
static pe_status give(area *a, int64_t at, int64_t size, pe_error *err) {
  for (size_t i = 0; i < a->count;) {
    hole h = a->holes[i];
    if (h.at + h.size != at && at + size != h.at) {
      i++;
      continue;
    }
    if (h.at < at) at = h.at;
    size += h.size;
    a->holes[i] = a->holes[--a->count];
    i = 0;
  }
  pe_status rc = pe_grow(&a->holes, &a->cap, a->count + 1, sizeof *a->holes, err);
  if (!rc) a->holes[a->count++] = (hole){at, size};
  return rc;
}

enum { TO_THE_END = INT32_MAX };

/* The memory and the instruction of a node. `first` and `next` link the nodes that die with the
 * same reader: spot[reader].first is one of them, spot[it].next another, -1 ends the list. */
struct pe_spot {
  int64_t at;   /* place in its area, floats per row */
  int32_t last; /* last reader, or TO_THE_END */
  int32_t first, next;
  int32_t instr; /* its instruction */
  int32_t fused; /* nodes that were fused into it */
};

pe_value pe_plan_root(const pe_planner *s, pe_value v) {
  while (s->node[v].op == PE_NODE_VIEW) v = s->node[v].in[0];
  return v;
}

static pe_place place_of(const pe_planner *s, pe_value v) {
  int64_t offset = 0;
  for (; s->node[v].op == PE_NODE_VIEW; v = s->node[v].in[0]) offset += s->node[v].offset;
  return (pe_place){s->node[v].rows, s->spot[v].at, offset, s->node[v].width};
}

static bool computes(const pe_node *n) {
  return n->op != PE_NODE_VIEW && n->op != PE_NODE_CONSTANT;
}

/* A store writes to the cache and has no value. */
static bool has_place(const pe_node *n) { return computes(n) && n->op != PE_OP_STORE; }

static bool is_product(const pe_node *n) {
  return n->op == PE_OP_LINEAR || n->op == PE_OP_GATED || n->op == PE_OP_EXPERT_LINEAR ||
         n->op == PE_OP_EXPERT_GATED;
}

/* May a device compute v where r reads it? Norms and copies are computed by each of their readers,
 * others if there is only one. */
static bool may_pull(const pe_planner *s, const pe_node *r, pe_value v) {
  const pe_node *n = &s->node[v];
  switch (n->op) {
  case PE_OP_NORM:
    return is_product(r) || r->op == PE_OP_MAP || r->op == PE_OP_DELTA || r->op == PE_OP_CONCAT ||
           r->op == PE_OP_STORE;
  case PE_OP_SLICE: return true;
  case PE_OP_CONCAT: return r->op == PE_OP_CONV || r->op == PE_OP_STORE;
  case PE_OP_ROPE:
  case PE_OP_HEAD_LINEAR: return r->op == PE_OP_CONCAT;
  case PE_OP_MAP:
    return s->uses[v] == 1 && (r->op == PE_OP_DELTA || (r->op == PE_OP_MAP && n->inputs == 1));
  case PE_OP_EXPERT_LINEAR:
    return r->op == PE_OP_EXPERT_SUM || (s->uses[v] == 1 && r->op == PE_OP_MAP);
  case PE_OP_LINEAR:
  case PE_OP_EXPERT_SUM:
  case PE_OP_ATTENTION:
  case PE_OP_CONV:
  case PE_OP_SSM: return s->uses[v] == 1 && r->op == PE_OP_MAP;
  default: return false;
  }
}

/* What a value is made of stays until the value is read, where a device may compute it only then
 * (metal_units.h). */
static void keep_for(pe_planner *s, pe_value reader, const pe_node *r, pe_value in) {
  const pe_value v = pe_plan_root(s, in);
  const pe_node *n = &s->node[v];
  if (!may_pull(s, r, v)) return;
  for (int j = 0; j < n->inputs; j++) {
    if (n->in[j] < 0) continue;
    s->spot[pe_plan_root(s, n->in[j])].last = reader;
    keep_for(s, reader, n, n->in[j]);
  }
}

static void find_lifetimes(pe_planner *s, const pe_plan_options *o) {
  pe_spot *spot = s->spot;
  for (size_t i = 0; i < s->n + s->picks; i++) {
    spot[i].first = spot[i].next = -1;
    spot[i].last = (int32_t)i; /* without readers it dies at once */
  }
  for (size_t k = 0; k < s->count; k++) {
    const pe_node *n = &s->node[s->order[k]];
    if (n->op == PE_NODE_VIEW) continue;
    for (int j = 0; j < n->inputs; j++) {
      if (n->in[j] < 0) continue;
      spot[pe_plan_root(s, n->in[j])].last = s->order[k];
      keep_for(s, s->order[k], n, n->in[j]);
    }
  }
  spot[pe_plan_root(s, s->g->output)].last = TO_THE_END;
  for (size_t i = 0; i < o->tap_count; i++) spot[pe_plan_root(s, o->taps[i])].last = TO_THE_END;
  for (size_t k = 0; k < s->count; k++) {
    const pe_value v = s->order[k];
    if (!has_place(&s->node[v]) || spot[v].last == TO_THE_END) continue;
    pe_spot *end = &spot[spot[v].last];
    spot[v].next = end->first, end->first = v;
  }
}

/* Inputs are freed after the output got its place, so an instruction never overwrites its
 * inputs. */
static pe_status place_values(pe_planner *s, pe_error *err) {
  area areas[2] = {{0}};
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < s->count; i++) {
    const pe_node *n = &s->node[s->order[i]];
    pe_spot *spot = &s->spot[s->order[i]];
    if (has_place(n)) {
      spot->at = take(&areas[n->rows == PE_EXTENT_OUTPUT], padded(n->width));
      s->p->unshared_floats += padded(n->width);
    }
    for (int32_t k = spot->first; !rc && k >= 0; k = s->spot[k].next)
      rc = give(&areas[s->node[k].rows == PE_EXTENT_OUTPUT], s->spot[k].at,
                padded(s->node[k].width), err);
  }
  s->p->row_floats = areas[0].top, s->p->output_floats = areas[1].top;
  pe_free(areas[0].holes), pe_free(areas[1].holes);
  return rc;
}

/* ---- instructions ---------------------------------------------------------------------------- */

static pe_instr instr_of(const pe_planner *s, pe_value v) {
  const pe_node *n = &s->node[v];
  pe_instr x = {.op = (pe_op)n->op,
                .value = (size_t)v < s->n ? v : n->in[0],
                .rows = n->rows,
                .outputs_only = s->skipped[v],
                .cache = n->cache,
                .state_at = n->state_at,
                .args = n->args};
  x.out = has_place(n) ? place_of(s, v) : (pe_place){.rows = PE_EXTENT_CONST};
  for (int j = 0; j < PE_NODE_INPUTS; j++) {
    bool real = j < n->inputs && n->in[j] >= 0 && s->node[n->in[j]].op != PE_OP_STORE &&
                s->node[n->in[j]].op != PE_NODE_CONSTANT;
    x.in[j] = real ? place_of(s, n->in[j]) : (pe_place){.rows = PE_EXTENT_CONST};
  }
  memcpy(x.vec, n->vec, sizeof n->vec);
  if (n->mat >= 0) x.mat = s->g->param[n->mat].mat;
  if (n->mat2 >= 0) x.mat2 = s->g->param[n->mat2].mat;
  return x;
}

/* The head may be wider than the embedding, and a second table (Gemma 4) shorter than the first. */
static void limit_tokens(pe_plan *p, const pe_param_info *table) {
  int32_t rows = table->rows < INT32_MAX ? (int32_t)table->rows : INT32_MAX;
  if (!p->tokens || rows < p->tokens) p->tokens = rows;
}

static void note_rope(pe_plan *p, const pe_rope_table_args *a) {
  int32_t *at = a->dynamic ? &p->rope_scales : a->variants > 1 ? &p->rope_varies : NULL;
  if (at && a->threshold < *at) *at = a->threshold;
}

static void note_features(pe_plan *p, const pe_node *n) {
  const bool embeds = n->op == PE_OP_EMBED && !n->args.embed.instead;
  if (embeds || n->op == PE_OP_DEEPSTACK) {
    const int32_t planes = embeds ? 1 : n->args.deepstack.plane + 1;
    if (!p->feature_planes) p->feature_width = n->width;
    if (p->feature_width != n->width) p->feature_width = 0; /* no feature fits both */
    if (planes > p->feature_planes) p->feature_planes = planes;
  }
  p->spans |= n->op == PE_OP_ATTENTION && n->args.attention.spans;
}

/* The node that v was fused into at last; -1: v was not fused. */
static pe_value went_into(const pe_planner *s, pe_value v) {
  pe_value to = s->into[v];
  while (to >= 0 && s->into[to] >= 0) to = s->into[to];
  return to;
}

static pe_status note_fusions(pe_planner *s, pe_error *err) {
  for (size_t i = 0; i < s->n; i++)
    if (s->into[i] >= 0) s->spot[went_into(s, (pe_value)i)].fused++;
  for (size_t i = 0; i < s->n; i++) {
    const size_t many = (size_t)s->spot[i].fused;
    pe_value *list = many ? pe_arena_calloc(&s->p->arena, many, sizeof *list) : NULL;
    if (many && !list) return pe_nomem(err, "plan");
    if (many) s->p->instr[s->spot[i].instr].fused = list;
  }
  for (size_t i = 0; i < s->n; i++) {
    if (s->into[i] < 0) continue;
    pe_instr *x = &s->p->instr[s->spot[went_into(s, (pe_value)i)].instr];
    x->fused[x->fused_count++] = (pe_value)i;
  }
  return PE_OK;
}

static pe_status write_instructions(pe_planner *s, const pe_plan_options *o, pe_error *err) {
  pe_plan *p = s->p;
  p->instr = pe_arena_calloc(&p->arena, s->count, sizeof *p->instr);
  p->tap = pe_arena_calloc(&p->arena, o->tap_count + 1, sizeof *p->tap);
  p->tap_value = pe_arena_calloc(&p->arena, o->tap_count + 1, sizeof *p->tap_value);
  if (!p->instr || !p->tap || !p->tap_value) return pe_nomem(err, "plan");
  find_lifetimes(s, o);
  pe_status rc = place_values(s, err);
  if (rc) return rc;
  p->rope_varies = p->rope_scales = INT32_MAX;
  for (size_t i = 0; i < s->count; i++) {
    const pe_node *n = &s->node[s->order[i]];
    if (!computes(n)) continue;
    s->spot[s->order[i]].instr = (int32_t)p->count;
    p->instr[p->count++] = instr_of(s, s->order[i]);
    if (n->op == PE_OP_EMBED) limit_tokens(p, &s->g->param[n->mat]);
    note_features(p, n);
    if (n->op == PE_OP_ROPE_TABLE) note_rope(p, &n->args.rope_table);
  }
  p->logits = place_of(s, s->g->output), p->vocabulary = s->node[s->g->output].width;
  if (!p->tokens) p->tokens = p->vocabulary; /* no table: nothing limits the ids */
  p->drawable = p->tokens < p->vocabulary ? p->tokens : p->vocabulary;
  for (size_t i = 0; i < o->tap_count; i++) {
    p->tap[i] = place_of(s, o->taps[i]);
    p->tap_value[i] = o->taps[i];
  }
  p->tap_count = o->tap_count;
  return note_fusions(s, err);
}

static pe_status check(const pe_graph *g, const pe_plan_options *o, pe_error *err) {
  const pe_node *output = pe_graph_node(g, g->output);
  if (!output) return pe_fail(err, PE_EARG, "the graph has no output");
  if (output->op == PE_NODE_CONSTANT || output->op == PE_OP_STORE)
    return pe_fail(err, PE_EARG, "the output of the graph, %s, is a constant or a cache store",
                   output->name);
  for (size_t i = 0; i < o->tap_count; i++)
    if (!pe_graph_node(g, o->taps[i]) || g->node[o->taps[i]].op == PE_NODE_CONSTANT ||
        g->node[o->taps[i]].op == PE_OP_STORE)
      return pe_fail(err, PE_EARG,
                     "value %d cannot be tapped: it is a constant, a cache store or does not exist",
                     o->taps[i]);
  return PE_OK;
}

static pe_status open_planner(pe_planner *s, pe_error *err) {
  const size_t room = 2 * s->n;
  s->node = pe_calloc(room, sizeof *s->node);
  s->uses = pe_calloc(room, sizeof *s->uses);
  s->live = pe_calloc(room, sizeof *s->live);
  s->into = pe_calloc(room, sizeof *s->into);
  s->skipped = pe_calloc(room, sizeof *s->skipped);
  s->order = pe_calloc(room, sizeof *s->order);
  s->spot = pe_calloc(room, sizeof *s->spot);
  if (!s->node || !s->uses || !s->live || !s->into || !s->skipped || !s->order || !s->spot)
    return pe_nomem(err, "plan");
  memcpy(s->node, s->g->node, s->n * sizeof *s->node);
  for (size_t i = 0; i < room; i++) s->into[i] = -1;
  return PE_OK;
}

static void close_planner(pe_planner *s) {
  pe_free(s->node), pe_free(s->uses), pe_free(s->live), pe_free(s->into);
  pe_free(s->skipped), pe_free(s->order), pe_free(s->spot);
}

pe_status pe_plan_open(pe_graph *g, const pe_plan_options *options, pe_plan **out, pe_error *err) {
  const pe_plan_options o = options ? *options : (pe_plan_options){0};
  pe_status rc = check(g, &o, err);
  if (rc) return rc;
  pe_graph *frozen = NULL;
  pe_plan *p = pe_calloc(1, sizeof *p);
  if (!p) return pe_nomem(err, "plan");
  if ((rc = pe_graph_freeze(g, &frozen, err))) {
    pe_free(p);
    return rc;
  }
  p->graph = frozen, p->apart = o.apart;
  pe_planner s = {.g = frozen, .p = p, .n = frozen->node_count};
  rc = open_planner(&s, err);
  if (!rc) {
    count_uses(&s, &o);
    rc = pe_plan_fuse(&s, !o.apart, err);
  }
  if (!rc) rc = pe_plan_move_output(&s, &o, err);
  if (!rc) rc = write_instructions(&s, &o, err);
  close_planner(&s);
  if (rc)
    pe_plan_close(p);
  else
    *out = p;
  return rc;
}

void pe_plan_close(pe_plan *p) {
  if (!p) return;
  pe_graph_release((pe_graph *)p->graph);
  pe_arena_free(&p->arena);
  pe_free(p);
}
