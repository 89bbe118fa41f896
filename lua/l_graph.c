/* l_graph.c - perigee.graph: the words that architecture scripts are written in. Values and params are numbers here;
 * scripts/models/registry.lua wraps them in objects with operators. Whatever does not fit raises a perigee.Error whose text
 * names the tensor or value, what was expected and what was found. */
#include <string.h>

#include "lua/l_graph.h"
#include "runtime/graph/plan.h"
#include "runtime/graph/rope.h"

typedef struct graph {
  pe_graph *g;
} graph;

static void graph_close(void *self) { pe_graph_release(((graph *)self)->g); }

#define METHODS(X)                                                                                 \
  X(param)                                                                                         \
  X(param_shape)                                                                                   \
  X(rows) X(split) X(stack) X(shape) X(name) X(embed) X(linear) X(expert_linear) X(head_linear)    \
      X(norm) X(unary) X(binary) X(constant) X(reshape) X(slice) X(concat) X(rope_table) X(rope)   \
          X(attention) X(route) X(expert_sum) X(conv) X(delta) X(ssm) X(output) X(finish)          \
              X(values) X(unused) X(plan) X(caches)
METHODS(PE_BIND_DECLARE)
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static const pe_class graph_class = {"perigee.Graph", methods, NULL, NULL, NULL, graph_close};

pe_graph *pe_bind_graph(lua_State *L, int arg) {
  return ((graph *)pe_bind_check(L, arg, &graph_class))->g;
}
static pe_graph *check(lua_State *L) { return pe_bind_graph(L, 1); }

static int l_open(lua_State *L) { /* [weights] -> [graph] */
  const pe_weights *w = pe_bind_weights(L, 1);
  graph *self = pe_bind_new(L, &graph_class, sizeof *self, 1);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1); /* the weights live as long as the graph */
  pe_error err;
  if (pe_graph_open(w, &self->g, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, self, 0);
  return 1;
}

/* ---- arguments ----------------------------------------------------------------------------------------------- */

static int fail(lua_State *L, const pe_error *err) {
  pe_bind_push_error(L, pe_status_name(err->code), err->field, err->text);
  return lua_error(L);
}

/* By pointer: the arguments of a call are evaluated in any order. */
static int done(lua_State *L, pe_status rc, const int32_t *id, const pe_error *err) {
  if (rc) return fail(L, err);
  lua_pushinteger(L, *id);
  return 1;
}

static pe_value value_at(lua_State *L, int arg, const pe_graph *g) {
  lua_Integer v = luaL_checkinteger(L, arg);
  if (v < 0 || (size_t)v >= g->node_count) luaL_argerror(L, arg, "no such value");
  return (pe_value)v;
}

static pe_param param_at(lua_State *L, int arg, const pe_graph *g) {
  lua_Integer p = luaL_checkinteger(L, arg);
  if (p < 0 || (size_t)p >= g->param_count) luaL_argerror(L, arg, "no such param");
  return (pe_param)p;
}

/* Numbers in an option table: a value or param, -1 when absent. */
static int32_t option_id(lua_State *L, int arg, const char *key, size_t count, bool needed) {
  int64_t id = pe_bind_integer(L, arg, key, 0, (int64_t)count - 1, -1);
  if (id < 0 && needed) luaL_error(L, "option '%s' is missing", key);
  return (int32_t)id;
}
static pe_value option_value(lua_State *L, int arg, const char *key, const pe_graph *g) {
  return option_id(L, arg, key, g->node_count, true);
}
static pe_param option_param(lua_State *L, int arg, const char *key, const pe_graph *g,
                             bool needed) {
  return option_id(L, arg, key, g->param_count, needed);
}
static int32_t option_int(lua_State *L, int arg, const char *key, int32_t absent) {
  return (int32_t)pe_bind_integer(L, arg, key, INT32_MIN, INT32_MAX, absent);
}
static float option_float(lua_State *L, int arg, const char *key, double absent) {
  return (float)pe_bind_number(L, arg, key, absent);
}

/* A list of up to `most` integers; returns how many. */
static int int_list(lua_State *L, int arg, int32_t *out, int most) {
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_Integer n = (lua_Integer)lua_rawlen(L, arg);
  if (n < 1 || n > most) luaL_argerror(L, arg, "a list of the wrong length");
  for (int i = 0; i < (int)n; i++) {
    lua_rawgeti(L, arg, i + 1);
    int ok;
    lua_Integer v = lua_tointegerx(L, -1, &ok);
    if (!ok || v < INT32_MIN || v > INT32_MAX) luaL_argerror(L, arg, "a list of integers expected");
    out[i] = (int32_t)v;
    lua_pop(L, 1);
  }
  return (int)n;
}

/* ---- params -------------------------------------------------------------------------------------------------- */

static int
l_param(lua_State *L) { /* [self, name] -> [param] or [nil] when there is no such tensor */
  pe_graph *g = check(L);
  pe_param p;
  pe_error err;
  pe_status rc = pe_graph_param(g, luaL_checkstring(L, 2), &p, &err);
  if (rc == PE_ENOTFOUND) return luaL_pushfail(L), 1;
  return done(L, rc, &p, &err);
}

static int l_param_shape(lua_State *L) { /* [self, param] -> [matrices, rows, cols, quantised] */
  pe_graph *g = check(L);
  const pe_param_info *p = &g->param[param_at(L, 2, g)];
  lua_pushinteger(L, p->count), lua_pushinteger(L, p->rows), lua_pushinteger(L, p->cols);
  lua_pushboolean(L, p->mat[0].quant.kind != PE_QUANT_NONE);
  return 4;
}

static int
l_rows(lua_State *L) { /* [self, param, {from, count, step}] -> [param]; from counts from 1 */
  static const char *const keys[] = {"from", "count", "step", NULL};
  pe_graph *g = check(L);
  pe_param p = param_at(L, 2, g), out;
  pe_bind_options(L, 3, keys);
  pe_error err;
  int64_t from = pe_bind_integer(L, 3, "from", 1, INT64_MAX / 4, 1),
          step = pe_bind_integer(L, 3, "step", 1, 1 << 20, 1);
  int64_t count =
      pe_bind_integer(L, 3, "count", 1, INT64_MAX / 4, (g->param[p].rows - from) / step + 1);
  return done(L, pe_graph_rows(g, p, from - 1, count, step, &out, &err), &out, &err);
}

static int l_split(lua_State *L) { /* [self, param, count] -> [param] */
  pe_graph *g = check(L);
  pe_param p = param_at(L, 2, g), out = -1;
  pe_error err;
  return done(L, pe_graph_split(g, p, luaL_checkinteger(L, 3), &out, &err), &out, &err);
}

static int l_stack(lua_State *L) { /* [self, list of params] -> [param] */
  enum { MOST = 4096 };
  pe_graph *g = check(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  int32_t *list = lua_newuserdatauv(L, MOST * sizeof *list, 0);
  int n = int_list(L, 2, list, MOST);
  for (int i = 0; i < n; i++)
    luaL_argcheck(L, list[i] >= 0 && (size_t)list[i] < g->param_count, 2, "no such param");
  pe_param out = -1;
  pe_error err;
  return done(L, pe_graph_stack(g, list, n, &out, &err), &out, &err);
}

/* ---- values -------------------------------------------------------------------------------------------------- */

static int l_shape(lua_State *L) { /* [self, value] -> [list] */
  pe_graph *g = check(L);
  const pe_node *n = &g->node[value_at(L, 2, g)];
  lua_newtable(L);
  for (int i = 0; i < n->rank; i++) lua_pushinteger(L, n->dim[i]), lua_rawseti(L, -2, i + 1);
  return 1;
}

static int l_name(lua_State *L) { /* [self, value, name] -> [] */
  pe_graph *g = check(L);
  pe_error err;
  if (pe_graph_name(g, value_at(L, 2, g), luaL_checkstring(L, 3), &err)) return fail(L, &err);
  return 0;
}

static int l_embed(lua_State *L) { /* [self, param, {scale}] -> [value] */
  static const char *const keys[] = {"scale", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_embed(g, param_at(L, 2, g), option_float(L, 3, "scale", 1), &v, &err), &v,
              &err);
}

static int l_linear(lua_State *L) { /* [self, value, {weight, bias}] -> [value] */
  static const char *const keys[] = {"weight", "bias", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_value v = -1;
  pe_error err;
  pe_param w = option_param(L, 3, "weight", g, true), b = option_param(L, 3, "bias", g, false);
  return done(L, pe_graph_linear(g, value_at(L, 2, g), w, b, &v, &err), &v, &err);
}

static int
l_expert_linear(lua_State *L) { /* [self, value, {route, weight, bias, transposed}] -> [value] */
  static const char *const keys[] = {"route", "weight", "bias", "transposed", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_expert_spec s = {.route = option_value(L, 3, "route", g),
                      .weight = option_param(L, 3, "weight", g, true),
                      .bias = option_param(L, 3, "bias", g, false),
                      .transposed = pe_bind_boolean(L, 3, "transposed", false)};
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_expert_linear(g, value_at(L, 2, g), &s, &v, &err), &v, &err);
}

static int l_head_linear(lua_State *L) { /* [self, value, {weight, transposed}] -> [value] */
  static const char *const keys[] = {"weight", "transposed", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_value v = -1;
  pe_error err;
  pe_param w = option_param(L, 3, "weight", g, true);
  return done(L,
              pe_graph_head_linear(g, value_at(L, 2, g), w,
                                   pe_bind_boolean(L, 3, "transposed", false), &v, &err),
              &v, &err);
}

static int l_norm(lua_State *L) { /* [self, value, {weight, eps, ...}] -> [value] */
  static const char *const keys[] = {"weight", "eps", "offset", "scale",
                                     "width",  "l2",  "layer",  NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_norm_args a = {.width = option_int(L, 3, "width", 0),
                    .eps = option_float(L, 3, "eps", 1e-6),
                    .offset = option_float(L, 3, "offset", 0),
                    .scale = option_float(L, 3, "scale", 1),
                    .l2 = pe_bind_boolean(L, 3, "l2", false),
                    .layer = pe_bind_boolean(L, 3, "layer", false)};
  pe_value v = -1;
  pe_error err;
  return done(
      L, pe_graph_norm(g, value_at(L, 2, g), option_param(L, 3, "weight", g, false), &a, &v, &err),
      &v, &err);
}

static const char *const map_names[] = {
#define MAP_NAME(id, name) name,
    PE_MAP_UNARY(MAP_NAME) PE_MAP_BINARY(MAP_NAME)
#undef MAP_NAME
        NULL};

static int l_unary(lua_State *L) { /* [self, op, value] -> [value] */
  pe_graph *g = check(L);
  int op = luaL_checkoption(L, 2, NULL, map_names);
  luaL_argcheck(L, pe_map_is_unary(op), 2, "takes two operands");
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_unary(g, (pe_map_op)op, value_at(L, 3, g), &v, &err), &v, &err);
}

/* [self, op, {a, b}] -> [value]: of a and b, one may be a constant given as number = x */
static int l_binary(lua_State *L) {
  static const char *const keys[] = {"a", "b", "number", NULL};
  pe_graph *g = check(L);
  int op = luaL_checkoption(L, 2, NULL, map_names);
  luaL_argcheck(L, !pe_map_is_unary(op), 2, "takes one operand");
  pe_bind_options(L, 3, keys);
  pe_value v = -1, a = option_id(L, 3, "a", g->node_count, false),
           b = option_id(L, 3, "b", g->node_count, false);
  pe_error err;
  if (a >= 0 && b >= 0) return done(L, pe_graph_binary(g, (pe_map_op)op, a, b, &v, &err), &v, &err);
  if (a < 0 && b < 0) return luaL_error(L, "'a' or 'b' must be a value");
  float number = option_float(L, 3, "number", 0);
  return done(L, pe_graph_binary_number(g, (pe_map_op)op, a >= 0 ? a : b, number, a < 0, &v, &err),
              &v, &err);
}

static int l_constant(lua_State *L) { /* [self, param] -> [value] */
  pe_graph *g = check(L);
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_constant(g, param_at(L, 2, g), &v, &err), &v, &err);
}

static int l_reshape(lua_State *L) { /* [self, value, list] -> [value] */
  pe_graph *g = check(L);
  int32_t dim[PE_GRAPH_DIMS];
  int rank = int_list(L, 3, dim, PE_GRAPH_DIMS);
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_reshape(g, value_at(L, 2, g), rank, dim, &v, &err), &v, &err);
}

static int
l_slice(lua_State *L) { /* [self, value, {from, count, last}] -> [value]; from counts from 1 */
  static const char *const keys[] = {"from", "count", "last", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_value v = -1;
  pe_error err;
  return done(L,
              pe_graph_slice(g, value_at(L, 2, g), pe_bind_boolean(L, 3, "last", false),
                             option_int(L, 3, "from", 1) - 1, option_int(L, 3, "count", 0), &v,
                             &err),
              &v, &err);
}

static int l_concat(lua_State *L) { /* [self, list of values] -> [value] */
  pe_graph *g = check(L);
  int32_t list[PE_NODE_INPUTS];
  int n = int_list(L, 2, list, PE_NODE_INPUTS);
  for (int i = 0; i < n; i++)
    luaL_argcheck(L, list[i] >= 0 && (size_t)list[i] < g->node_count, 2, "no such value");
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_concat(g, list, n, &v, &err), &v, &err);
}

/* ---- rope and attention -------------------------------------------------------------------------------------- */

/* A list of numbers in an option table, kept in a userdata that is left on the stack; NULL and nothing when absent. */
static const double *number_list(lua_State *L, int arg, const char *key, int32_t want) {
  if (!pe_bind_option(L, arg, key)) return NULL;
  luaL_argcheck(L, lua_istable(L, -1) && (int64_t)lua_rawlen(L, -1) == want, arg,
                lua_pushfstring(L, "option '%s': a list of %d numbers expected", key, want));
  int list = lua_gettop(L);
  double *out = lua_newuserdatauv(L, (size_t)want * sizeof *out + 1, 0);
  for (int i = 0; i < want; i++) {
    lua_rawgeti(L, list, i + 1);
    out[i] = luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  return out;
}

static int l_rope_table(lua_State *L) { /* [self, spec] -> [value] */
  static const char *const keys[] = {"kind",
                                     "dims",
                                     "turning",
                                     "theta",
                                     "factor",
                                     "original",
                                     "low_freq_factor",
                                     "high_freq_factor",
                                     "beta_fast",
                                     "beta_slow",
                                     "mscale",
                                     "mscale_all_dim",
                                     "truncate",
                                     "attention_factor",
                                     "max_position",
                                     "short_factor",
                                     "long_factor",
                                     "divisor",
                                     "sections",
                                     "interleaved",
                                     NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 2, keys);
  const char *name = pe_bind_string(L, 2, "kind", NULL, "default");
  int kind = pe_rope_find(name);
  pe_error err;
  if (kind < 0) return pe_fail(&err, PE_EARG, "unknown rope type '%s'", name), fail(L, &err);
  pe_rope_spec s = {.kind = (pe_rope_kind)kind,
                    .dims = option_int(L, 2, "dims", 0),
                    .turning = option_int(L, 2, "turning", 0)};
  s.theta = pe_bind_number(L, 2, "theta", 10000), s.factor = pe_bind_number(L, 2, "factor", 1);
  s.original = pe_bind_number(L, 2, "original", 0),
  s.max_position = pe_bind_number(L, 2, "max_position", 0);
  s.low_freq_factor = pe_bind_number(L, 2, "low_freq_factor", 1),
  s.high_freq_factor = pe_bind_number(L, 2, "high_freq_factor", 4);
  s.beta_fast = pe_bind_number(L, 2, "beta_fast", 32),
  s.beta_slow = pe_bind_number(L, 2, "beta_slow", 1);
  s.mscale = pe_bind_number(L, 2, "mscale", 0),
  s.mscale_all_dim = pe_bind_number(L, 2, "mscale_all_dim", 0);
  s.truncate = pe_bind_boolean(L, 2, "truncate", true),
  s.attention_factor = pe_bind_number(L, 2, "attention_factor", 0);
  s.short_factor = number_list(L, 2, "short_factor", s.dims / 2),
  s.long_factor = number_list(L, 2, "long_factor", s.dims / 2);
  s.divisor = number_list(L, 2, "divisor", s.dims / 2);
  const double *section = number_list(L, 2, "sections", 3);
  for (int i = 0; section && i < 3; i++) s.section[i] = (int32_t)section[i];
  s.interleaved_axes = pe_bind_boolean(L, 2, "interleaved", false);
  pe_rope *made = lua_newuserdatauv(L, sizeof *made, 0);
  pe_value v = -1;
  pe_status rc = pe_rope_make(&s, made, &err);
  if (!rc) rc = pe_graph_rope_table(g, made->frequency, made->factor, &made->args, &v, &err);
  return done(L, rc, &v, &err);
}

static int l_rope(lua_State *L) { /* [self, value, {table, pairs, skip}] -> [value] */
  static const char *const keys[] = {"table", "pairs", "skip", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_value v = -1;
  pe_error err;
  return done(L,
              pe_graph_rope(g, value_at(L, 2, g), option_value(L, 3, "table", g),
                            pe_bind_boolean(L, 3, "pairs", false), option_int(L, 3, "skip", 0), &v,
                            &err),
              &v, &err);
}

static int l_attention(lua_State *L) { /* [self, {q, k, v, ...}] -> [value, cache layer] */
  static const char *const keys[] = {"q",     "k",     "v",       "sinks", "window",
                                     "value", "scale", "softcap", "share", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 2, keys);
  pe_attention_spec s = {.q = option_value(L, 2, "q", g), .share = option_int(L, 2, "share", -1)};
  s.k = option_id(L, 2, "k", g->node_count, s.share < 0),
  s.v = option_id(L, 2, "v", g->node_count, false);
  s.sinks = option_param(L, 2, "sinks", g, false), s.window = option_int(L, 2, "window", 0),
  s.value = option_int(L, 2, "value", 0);
  s.scale = option_float(L, 2, "scale", 1), s.softcap = option_float(L, 2, "softcap", 0);
  pe_value v = -1;
  int32_t layer = -1;
  pe_error err;
  done(L, pe_graph_attention(g, &s, &v, &layer, &err), &v, &err);
  lua_pushinteger(L, layer);
  return 2;
}

/* ---- experts and recurrences --------------------------------------------------------------------------------- */

static int l_route(lua_State *L) { /* [self, value, {kind, chosen, ...}] -> [value] */
  static const char *const keys[] = {"kind",      "chosen",    "groups", "groups_kept",
                                     "group_max", "normalize", "scale",  "eps",
                                     "bias",      "factor",    NULL};
  static const char *const kinds[] = {"softmax", "topk", "sigmoid", "softmax_biased", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_route_args a = {.kind = pe_bind_choice(L, 3, "kind", kinds, 0),
                     .chosen = option_int(L, 3, "chosen", 0),
                     .groups = option_int(L, 3, "groups", 1),
                     .groups_kept = option_int(L, 3, "groups_kept", 0),
                     .group_max = pe_bind_boolean(L, 3, "group_max", false),
                     .normalize = pe_bind_boolean(L, 3, "normalize", false),
                     .scale = option_float(L, 3, "scale", 1),
                     .eps = option_float(L, 3, "eps", 0)};
  pe_value v = -1;
  pe_error err;
  pe_param bias = option_param(L, 3, "bias", g, false),
           factor = option_param(L, 3, "factor", g, false);
  return done(L, pe_graph_route(g, value_at(L, 2, g), bias, factor, &a, &v, &err), &v, &err);
}

static int l_expert_sum(lua_State *L) { /* [self, value, route] -> [value] */
  pe_graph *g = check(L);
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_expert_sum(g, value_at(L, 2, g), value_at(L, 3, g), &v, &err), &v, &err);
}

static int l_conv(lua_State *L) { /* [self, value, {weight, bias, activation}] -> [value] */
  static const char *const keys[] = {"weight", "bias", "activation", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_value v = -1;
  pe_error err;
  pe_param w = option_param(L, 3, "weight", g, true), b = option_param(L, 3, "bias", g, false);
  return done(L,
              pe_graph_conv(g, value_at(L, 2, g), w, b,
                            pe_bind_choice(L, 3, "activation", map_names, -1), &v, &err),
              &v, &err);
}

static int l_delta(lua_State *L) { /* [self, {q, k, v, decay, beta}] -> [value] */
  static const char *const keys[] = {"q", "k", "v", "decay", "beta", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 2, keys);
  pe_value in[5], v = -1;
  for (int i = 0; i < 5; i++) in[i] = option_value(L, 2, keys[i], g);
  pe_error err;
  return done(L, pe_graph_delta(g, in, &v, &err), &v, &err);
}

static int l_ssm(lua_State *L) { /* [self, {x, b, c, dt, a_log, dt_bias, d, ...}] -> [value] */
  static const char *const keys[] = {"x",       "b", "c",      "dt",     "a_log",
                                     "dt_bias", "d", "dt_min", "dt_max", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 2, keys);
  pe_value in[4], v = -1;
  pe_param vec[3];
  for (int i = 0; i < 4; i++) in[i] = option_value(L, 2, keys[i], g);
  for (int i = 0; i < 3; i++) vec[i] = option_param(L, 2, keys[4 + i], g, true);
  pe_error err;
  pe_status rc = pe_graph_ssm(g, in, vec, option_float(L, 2, "dt_min", 0),
                              option_float(L, 2, "dt_max", 3.0e38), &v, &err);
  return done(L, rc, &v, &err);
}

/* ---- the end ------------------------------------------------------------------------------------------------- */

static int l_output(lua_State *L) { /* [self, value] -> [value] */
  pe_graph *g = check(L);
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_output(g, value_at(L, 2, g), &v, &err), &v, &err);
}

static int l_finish(lua_State *L) { /* [self, value] -> []: the logits */
  pe_graph *g = check(L);
  g->output = value_at(L, 2, g);
  return 0;
}

static const char *op_name(const pe_node *n) {
  return n->op >= 0 ? pe_op_name((pe_op)n->op) : n->op == -1 ? "view" : "constant";
}

/* [table] -> [table]: what a map does, step by step. */
static void set_steps(lua_State *L, const pe_map_args *m) {
  lua_createtable(L, m->steps, 0);
  for (int i = 0; i < m->steps; i++)
    lua_pushstring(L, pe_map_name((pe_map_op)m->step[i].op)), lua_rawseti(L, -2, i + 1);
  lua_setfield(L, -2, "steps");
}

/* [] -> [table]: name, op, shape and weight of a value; of a map its steps, of an attention its scale and window. */
static void push_value(lua_State *L, const pe_graph *g, pe_value v) {
  const pe_node *n = &g->node[v];
  lua_createtable(L, 0, 8);
  lua_pushstring(L, n->name), lua_setfield(L, -2, "name");
  lua_pushstring(L, op_name(n)), lua_setfield(L, -2, "op");
  if (n->mat >= 0) lua_pushstring(L, g->param[n->mat].name), lua_setfield(L, -2, "weight");
  lua_createtable(L, n->rank, 0);
  for (int i = 0; i < n->rank; i++) lua_pushinteger(L, n->dim[i]), lua_rawseti(L, -2, i + 1);
  lua_setfield(L, -2, "shape");
  if (n->op == PE_OP_MAP) set_steps(L, &n->args.map);
  if (n->op != PE_OP_ATTENTION) return;
  lua_pushnumber(L, (lua_Number)n->args.attention.scale), lua_setfield(L, -2, "scale");
  lua_pushinteger(L, n->args.attention.window), lua_setfield(L, -2, "window");
}

static void set_integer(lua_State *L, const char *key, int64_t value) {
  lua_pushinteger(L, value), lua_setfield(L, -2, key);
}

static int l_values(lua_State *L) { /* [self] -> [list of {name, op, shape, inputs}] */
  pe_graph *g = check(L);
  lua_newtable(L);
  for (size_t i = 0; i < g->node_count; i++) {
    const pe_node *n = &g->node[i];
    push_value(L, g, (pe_value)i);
    lua_newtable(L);
    for (int j = 0; j < n->inputs; j++)
      if (n->in[j] >= 0)
        lua_pushstring(L, g->node[n->in[j]].name),
            lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    lua_setfield(L, -2, "inputs");
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static int l_unused(lua_State *L) { /* [self] -> [list of tensor names that no param was made of] */
  pe_graph *g = check(L);
  lua_newtable(L);
  for (size_t i = 0; i < g->weights->count; i++)
    if (!g->used[i])
      lua_pushstring(L, g->weights->list[i].name.at),
          lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  return 1;
}

/* ---- plans --------------------------------------------------------------------------------------------------- */

static void push_instruction(lua_State *L, const pe_plan *p,
                             const pe_instr *x) { /* [] -> [table] */
  push_value(L, p->graph, x->value);
  lua_pushstring(L, pe_op_name(x->op)), lua_setfield(L, -2, "op");
  if (x->op == PE_OP_MAP)
    set_steps(L, &x->args.map);
  else
    lua_pushnil(L), lua_setfield(L, -2, "steps");
  lua_createtable(L, x->fused_count, 0);
  for (int32_t i = 0; i < x->fused_count; i++)
    push_value(L, p->graph, x->fused[i]), lua_rawseti(L, -2, i + 1);
  lua_setfield(L, -2, "fused");
  lua_pushboolean(L, x->folds), lua_setfield(L, -2, "folds");
  if (x->norm >= 0)
    lua_pushstring(L, p->graph->node[p->instr[x->norm].value].name), lua_setfield(L, -2, "norm");
  if (x->out.rows != PE_EXTENT_CONST) set_integer(L, "place", x->out.at);
}

typedef struct plan {
  pe_plan *p;
} plan;

static void plan_close(void *self) { pe_plan_close(((plan *)self)->p); }
static int l_instructions(lua_State *L);
static int l_row_floats(lua_State *L);
static int l_output_floats(lua_State *L);
static int l_unshared_floats(lua_State *L);
static const luaL_Reg plan_methods[] = {{"instructions", l_instructions}, {NULL, NULL}};
static const luaL_Reg plan_fields[] = {{"row_floats", l_row_floats},
                                       {"output_floats", l_output_floats},
                                       {"unshared_floats", l_unshared_floats},
                                       {NULL, NULL}};
static const pe_class plan_class = {"perigee.Plan", plan_methods, plan_fields,
                                    NULL,           NULL,         plan_close};

static const pe_plan *check_plan(lua_State *L) {
  return ((plan *)pe_bind_check(L, 1, &plan_class))->p;
}
static int l_row_floats(lua_State *L) { return lua_pushinteger(L, check_plan(L)->row_floats), 1; }
static int l_output_floats(lua_State *L) {
  return lua_pushinteger(L, check_plan(L)->output_floats), 1;
}
static int l_unshared_floats(lua_State *L) {
  return lua_pushinteger(L, check_plan(L)->unshared_floats), 1;
}

static int l_instructions(lua_State *L) { /* [self] -> [list] */
  const pe_plan *p = check_plan(L);
  lua_createtable(L, (int)p->count, 0);
  for (size_t i = 0; i < p->count; i++)
    push_instruction(L, p, &p->instr[i]), lua_rawseti(L, -2, (lua_Integer)i + 1);
  return 1;
}

static int l_plan(lua_State *L) { /* [self, {fusion}] -> [plan] or [nil, err] */
  static const char *const keys[] = {"fusion", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 2, keys);
  pe_plan_options o = {.apart = !pe_bind_boolean(L, 2, "fusion", true)};
  plan *self = pe_bind_new(L, &plan_class, sizeof *self, 1);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1); /* the graph lives as long as the plan */
  pe_error err;
  if (pe_plan_open(g, &o, &self->p, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, self, 0);
  return 1;
}

static int l_caches(lua_State *L) { /* [self] -> [{groups = list, state_floats =}] */
  pe_graph *g = check(L);
  lua_createtable(L, 0, 2);
  lua_createtable(L, g->group_count, 0);
  for (int32_t i = 0; i < g->group_count; i++) {
    const pe_cache_group *c = &g->group[i];
    lua_createtable(L, 0, 5);
    set_integer(L, "layers", c->layers), set_integer(L, "window", c->window),
        set_integer(L, "heads", c->heads);
    set_integer(L, "key", c->key), set_integer(L, "value", c->value);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "groups");
  set_integer(L, "state_floats", g->state_floats);
  return 1;
}

int pe_open_graph(lua_State *L) {
  static const luaL_Reg functions[] = {{"open", l_open}, {NULL, NULL}};
  pe_bind_class(L, &graph_class);
  pe_bind_class(L, &plan_class);
  luaL_newlib(L, functions);
  return 1;
}
