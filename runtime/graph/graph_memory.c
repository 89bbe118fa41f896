/* graph_memory.c - the ops of graph.h that deal with positions, caches, states and experts. */
#include <string.h>

#include "runtime/graph/graph.h"

/* ---- rope and attention ---------------------------------------------------------------------- */

pe_status pe_graph_rope_table(pe_graph *g, const float *frequencies, const float *factors,
                              const pe_rope_table_args *args, pe_value *out, pe_error *err) {
  if (args->turns < 1 || args->turns > INT32_MAX / 4)
    return pe_fail(err, PE_ESHAPE, "a rope table cannot rotate %d pairs", args->turns);
  size_t count = (size_t)args->turns * (size_t)(args->variants > 1 ? 2 : 1);
  /* Layers with the same numbers share one table. */
  for (size_t i = 0; i < g->node_count; i++) {
    const pe_node *n = &g->node[i];
    if (n->op == PE_OP_ROPE_TABLE && !memcmp(&n->args.rope_table, args, sizeof *args) &&
        !memcmp(n->vec[0], frequencies, count * 4) &&
        (args->variants < 2 || !memcmp(n->vec[1], factors, 8))) {
      *out = (pe_value)i;
      return PE_OK;
    }
  }
  pe_node n = pe_graph_draft(g, PE_OP_ROPE_TABLE, -1, 2 * args->turns);
  n.args.rope_table = *args;
  pe_status rc = pe_graph_numbers(g, frequencies, count, &n.vec[0], err);
  if (!rc && args->variants > 1) rc = pe_graph_numbers(g, factors, 2, &n.vec[1], err);
  return rc ? rc : pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_rope(pe_graph *g, pe_value x, pe_value table, bool pairs, int32_t skip,
                        pe_value *out, pe_error *err) {
  const pe_node *in = &g->node[x], *t = &g->node[table];
  if (t->op != PE_OP_ROPE_TABLE) return pe_fail(err, PE_EARG, "%s is not a rope table", t->name);
  int32_t dim = in->dim[in->rank - 1], half = t->args.rope_table.turns;
  if (skip < 0 || skip > dim - 2 * half)
    return pe_fail(err, PE_ESHAPE,
                   "rope rotates %d values of a head after the first %d, but a head of %s has %d",
                   2 * half, skip, in->name, dim);
  pe_node n = pe_graph_draft(g, PE_OP_ROPE, x, 0);
  n.rank = in->rank;
  memcpy(n.dim, in->dim, sizeof in->dim);
  n.inputs = 2, n.in[1] = table;
  n.args.rope = (pe_rope_args){
      .heads = in->width / dim, .dim = dim, .turns = half, .pairs = pairs, .skip = skip};
  return pe_graph_add(g, &n, out, err);
}

static pe_status find_group(pe_graph *g, int32_t window, int32_t heads, int32_t key, int32_t value,
                            int32_t *out, pe_error *err) {
  for (int32_t i = 0; i < g->group_count; i++) {
    const pe_cache_group *c = &g->group[i];
    if (c->window == window && c->heads == heads && c->key == key && c->value == value) {
      *out = i;
      return PE_OK;
    }
  }
  if (g->group_count == PE_GRAPH_GROUPS)
    return pe_fail(err, PE_ELIMIT, "the model needs more than %d KV cache groups", PE_GRAPH_GROUPS);
  g->group[g->group_count] = (pe_cache_group){window, heads, key, value, 0};
  *out = g->group_count++;
  return PE_OK;
}

/* Stores the keys and values of this layer. Nothing reads the node's value: it only orders the
 * attention after the store. */
static pe_status add_store(pe_graph *g, const pe_attention_spec *s, int32_t *layer, pe_value *out,
                           pe_error *err) {
  const pe_node *k = &g->node[s->k], *v = pe_graph_node(g, s->v);
  int32_t heads = k->rank > 1 ? k->dim[0] : 1, key = k->width / heads,
          value = v ? v->width / heads : 0, group = 0;
  if (v && v->width % heads)
    return pe_fail(err, PE_ESHAPE, "%s has %d values, not a multiple of the %d key heads", v->name,
                   v->width, heads);
  pe_status rc = find_group(g, s->window, heads, key, value, &group, err);
  if (!rc) rc = pe_grow(&g->layer, &g->layer_cap, g->layer_count + 1, sizeof *g->layer, err);
  if (rc) return rc;
  *layer = (int32_t)g->layer_count;
  pe_node n = pe_graph_draft(g, PE_OP_STORE, s->k, 1);
  n.cache = *layer;
  if (v) n.inputs = 2, n.in[1] = s->v;
  n.args.store.cache = (pe_cache_args){.group = group, .heads = heads, .key = key, .value = value};
  if ((rc = pe_graph_add(g, &n, out, err))) return rc;
  g->layer[g->layer_count++] = (pe_cache_layer){group, g->group[group].layers++, *out};
  return PE_OK;
}

pe_status pe_graph_attention(pe_graph *g, const pe_attention_spec *s, pe_value *out, int32_t *layer,
                             pe_error *err) {
  pe_value store = -1;
  pe_status rc = PE_OK;
  if (s->window < 0)
    return pe_fail(err, PE_EARG, "an attention window must be 0 or more tokens, got %d", s->window);
  if (!pe_graph_node(g, s->q)) return pe_fail(err, PE_EARG, "attention: the queries do not exist");
  if (s->share >= 0) {
    if ((size_t)s->share >= g->layer_count)
      return pe_fail(err, PE_EARG, "there is no cache layer %d to share", s->share);
    *layer = s->share, store = g->layer[s->share].store;
  } else if ((rc = add_store(g, s, layer, &store, err))) {
    return rc;
  }
  const pe_cache_group *c = &g->group[g->layer[*layer].group];
  if (c->window && (s->window == 0 || s->window > c->window))
    return pe_fail(err, PE_EARG, "attention window %d exceeds the window of the shared cache, %d",
                   s->window, c->window);
  const pe_node *q = &g->node[s->q];
  int32_t heads = q->width / c->key, value = c->value ? c->value : s->value;
  if (q->width % c->key || heads % c->heads)
    return pe_fail(err, PE_ESHAPE,
                   "queries %s have %d values per row, not a multiple of %d key heads of %d",
                   q->name, q->width, c->heads, c->key);
  if (value < 1 || (!c->value && value > c->key))
    return pe_fail(err, PE_ESHAPE,
                   "attention values are the first %d of the %d floats of a key: there must be "
                   "between 1 and %d",
                   value, c->key, c->key);
  pe_node n = pe_graph_draft(g, PE_OP_ATTENTION, s->q, 0);
  n.rank = 2, n.dim[0] = heads, n.dim[1] = value;
  n.cache = *layer;
  n.inputs = 2, n.in[1] = store; /* keeps the store alive, and before the attention */
  n.args.attention = (pe_attention_args){
      {.group = g->layer[*layer].group, .heads = c->heads, .key = c->key, .value = c->value},
      heads,
      value,
      s->window,
      s->spans,
      s->scale,
      s->softcap};
  rc = pe_graph_sized_vector(g, s->sinks, heads, &n.vec[0], err);
  return rc ? rc : pe_graph_add(g, &n, out, err);
}

/* ---- experts --------------------------------------------------------------------------------- */

pe_status pe_graph_route(pe_graph *g, pe_value logits, pe_param bias, pe_param factor,
                         const pe_route_args *args, pe_value *out, pe_error *err) {
  pe_route_args a = *args;
  a.experts = g->node[logits].width;
  if (a.groups < 1) a.groups = 1;
  if (a.groups_kept < 1) a.groups_kept = a.groups;
  if (a.chosen < 1 || a.chosen > a.experts || a.experts % a.groups || a.groups_kept > a.groups ||
      a.chosen > a.experts / a.groups * a.groups_kept)
    return pe_fail(err, PE_ESHAPE, "route: cannot choose %d of %d experts from %d of %d groups",
                   a.chosen, a.experts, a.groups_kept, a.groups);
  pe_node n = pe_graph_draft(g, PE_OP_ROUTE, logits, 2 * a.chosen);
  n.args.route = a;
  pe_status rc = pe_graph_sized_vector(g, bias, a.experts, &n.vec[0], err);
  if (!rc) rc = pe_graph_sized_vector(g, factor, a.experts, &n.vec[1], err);
  return rc ? rc : pe_graph_add(g, &n, out, err);
}

pe_status pe_graph_expert_sum(pe_graph *g, pe_value x, pe_value route, pe_value *out,
                              pe_error *err) {
  const pe_node *in = &g->node[x], *r = &g->node[route];
  if (r->op != PE_OP_ROUTE) return pe_fail(err, PE_EARG, "%s is not a route", r->name);
  if (in->rank != 2 || in->dim[0] != r->args.route.chosen)
    return pe_fail(err, PE_ESHAPE,
                   "expert sum: the first of %d dimensions of %s is %d, but %s chooses %d experts",
                   in->rank, in->name, in->dim[0], r->name, r->args.route.chosen);
  pe_node n = pe_graph_draft(g, PE_OP_EXPERT_SUM, x, in->dim[1]);
  n.inputs = 2, n.in[1] = route;
  n.args.expert_sum = (pe_expert_sum_args){in->dim[0], in->dim[1]};
  return pe_graph_add(g, &n, out, err);
}

/* ---- recurrences ----------------------------------------------------------------------------- */

/* Adds a node and, if that succeeds, its floats to the slots. Rounded up to 16 floats, a cache
 * line, so that states of different layers share none. */
static pe_status add_with_state(pe_graph *g, pe_node *n, int64_t floats, pe_value *out,
                                pe_error *err) {
  n->state_at = g->state_floats;
  pe_status rc = pe_graph_add(g, n, out, err);
  if (!rc) g->state_floats += (floats + 15) & ~(int64_t)15;
  return rc;
}

pe_status pe_graph_conv(pe_graph *g, pe_value x, pe_param weight, pe_param bias, int32_t activation,
                        pe_value *out, pe_error *err) {
  const pe_node *in = &g->node[x];
  const pe_param_info *p = &g->param[weight];
  int64_t values = (int64_t)p->count * p->rows * p->cols,
          taps = values / in->width; /* [C, 1, K] or [C, K, 1] */
  if (taps < 2 || taps * in->width != values)
    return pe_fail(err, PE_ESHAPE,
                   "tensor %s has %lld values, expected at least 2 for each of %d channels",
                   p->name, (long long)values, in->width);
  pe_node n = pe_graph_draft(g, PE_OP_CONV, x, in->width);
  n.args.conv = (pe_conv_args){in->width, (int32_t)taps, activation};
  pe_status rc = pe_graph_sized_vector(g, weight, values, &n.vec[0], err);
  if (!rc) rc = pe_graph_sized_vector(g, bias, in->width, &n.vec[1], err);
  if (rc) return rc;
  return add_with_state(g, &n, (taps - 1) * in->width, out, err);
}

static pe_status heads_of(const pe_graph *g, pe_value v, const char *what, int32_t *heads,
                          int32_t *dim, pe_error *err) {
  const pe_node *n = pe_graph_node(g, v);
  if (!n || n->rank != 2)
    return pe_fail(err, PE_ESHAPE, "%s must have two dimensions, heads and width", what);
  *heads = n->dim[0], *dim = n->dim[1];
  return PE_OK;
}

pe_status pe_graph_delta(pe_graph *g, const pe_value in[5], pe_value *out, pe_error *err) {
  int32_t kh = 0, kd = 0, qh = 0, qd = 0, vh = 0, vd = 0;
  pe_status rc;
  if ((rc = heads_of(g, in[0], "delta rule: queries", &qh, &qd, err)) ||
      (rc = heads_of(g, in[1], "delta rule: keys", &kh, &kd, err)) ||
      (rc = heads_of(g, in[2], "delta rule: values", &vh, &vd, err)))
    return rc;
  int32_t decay = g->node[in[3]].width, beta = g->node[in[4]].width;
  if (qh != kh || qd != kd || vh % kh || beta != vh || (decay != vh && decay != vh * kd))
    return pe_fail(err, PE_ESHAPE,
                   "delta rule: shapes do not fit: queries [%d, %d], keys [%d, %d], values [%d, "
                   "%d], decay %d, "
                   "beta %d",
                   qh, qd, kh, kd, vh, vd, decay, beta);
  pe_node n = pe_graph_draft(g, PE_OP_DELTA, in[0], 0);
  n.rank = 2, n.dim[0] = vh, n.dim[1] = vd, n.inputs = 5;
  memcpy(n.in, in, 5 * sizeof *in);
  n.args.delta = (pe_delta_args){vh, kh, kd, vd, decay != vh};
  return add_with_state(g, &n, (int64_t)vh * vd * kd, out, err);
}

pe_status pe_graph_ssm(pe_graph *g, const pe_value in[4], const pe_param vec[3], float dt_min,
                       float dt_max, pe_value *out, pe_error *err) {
  int32_t heads = 0, dim = 0, groups = 0, state = 0, cg = 0, cs = 0;
  pe_status rc;
  if ((rc = heads_of(g, in[0], "ssm: x", &heads, &dim, err)) ||
      (rc = heads_of(g, in[1], "ssm: B", &groups, &state, err)) ||
      (rc = heads_of(g, in[2], "ssm: C", &cg, &cs, err)))
    return rc;
  if (cg != groups || cs != state || heads % groups || g->node[in[3]].width != heads)
    return pe_fail(err, PE_ESHAPE,
                   "ssm: shapes do not fit: x [%d, %d], B [%d, %d], C [%d, %d], dt %d", heads, dim,
                   groups, state, cg, cs, g->node[in[3]].width);
  pe_node n = pe_graph_draft(g, PE_OP_SSM, in[0], 0);
  n.rank = 2, n.dim[0] = heads, n.dim[1] = dim, n.inputs = 4;
  memcpy(n.in, in, 4 * sizeof *in);
  n.args.ssm = (pe_ssm_args){heads, dim, groups, state, dt_min, dt_max};
  for (int i = 0; !rc && i < 3; i++) rc = pe_graph_sized_vector(g, vec[i], heads, &n.vec[i], err);
  if (rc) return rc;
  return add_with_state(g, &n, (int64_t)heads * dim * state, out, err);
}
