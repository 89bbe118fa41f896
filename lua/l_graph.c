/* l_graph.c - perigee.graph: the vocabulary of architecture scripts. Values and params are numbers
 * here; the graph module of scripts/models wraps them in objects with operators. Errors are raised
 * as a perigee.Error that names the tensor or value, what was expected and what was found. */
#include "lua/l_graph.h"
#include "runtime/graph/rope.h"

#include <string.h>

typedef struct graph {
  pe_graph *g;
} graph;

static void graph_close(void *self) { pe_graph_release(((graph *)self)->g); }

/* clang-format off */
#define METHODS(X)                                                                                 \
  X(param) X(param_shape) X(rows) X(split) X(stack) X(shape) X(name) X(embed) X(deepstack)         \
  X(linear) X(expert_linear) X(head_linear) X(norm) X(unary) X(binary) X(constant) X(reshape)      \
  X(slice) X(concat) X(rope_table) X(rope) X(attention) X(route) X(expert_sum) X(conv) X(delta)    \
  X(ssm) X(output) X(finish) X(values) X(unused) X(caches)
/* clang-format on */
METHODS(PE_BIND_DECLARE)
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){"plan", pe_graph_l_plan},
                                   {"permute", pe_graph_l_permute},
                                   {"layer_norm", pe_graph_l_layer_norm},
                                   {"patches", pe_graph_l_patches},
                                   {"lookup", pe_graph_l_lookup},
                                   {"merge", pe_graph_l_merge},
                                   {"region_attention", pe_graph_l_region_attention},
                                   {NULL, NULL}};
static const pe_class graph_class = {"perigee.Graph", methods, NULL, NULL, NULL, graph_close};

pe_precision pe_bind_precision(lua_State *L, int arg) {
  const char *name = pe_bind_string(L, arg, "precision", NULL, "exact");
  if (!strcmp(name, "exact")) return PE_EXACT;
  if (strcmp(name, "fast"))
    luaL_argerror(
        L, arg,
        lua_pushfstring(L, "option 'precision' must be \"exact\" or \"fast\", got \"%s\"", name));
  return PE_FAST;
}

pe_status pe_bind_device(lua_State *L, int arg, const pe_backend **out, pe_error *err) {
  return pe_backend_named(pe_bind_string(L, arg, "device", NULL, "auto"), out, err);
}

pe_graph *pe_bind_graph(lua_State *L, int arg) {
  return ((graph *)pe_bind_check(L, arg, &graph_class))->g;
}
static pe_graph *check(lua_State *L) { return pe_bind_graph(L, 1); }

static int l_open(lua_State *L) { /* [weights] -> [graph] */
  pe_weights *w = pe_bind_weights(L, 1);
  graph *self = pe_bind_new(L, &graph_class, sizeof *self, 1);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1); /* keeps the weights alive */
  pe_error err;
  if (pe_graph_open(w, &self->g, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, self, 0);
  return 1;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static int fail(lua_State *L, const pe_error *err) {
  pe_bind_push_error(L, pe_status_name(err->code), err->field, err->text);
  return lua_error(L);
}

/* id is a pointer because C evaluates the arguments of a call in any order: its value may be set by
 * the call that gives rc. */
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

/* A value or param in an option table; -1 if absent. */
static int32_t option_id(lua_State *L, int arg, const char *key, size_t count, bool needed) {
  int64_t id = pe_bind_integer(L, arg, key, 0, (int64_t)count - 1, -1);
  if (id < 0 && needed) luaL_error(L, "option '%s' is required", key);
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

/* Reads a list of 1 to `most` integers; returns its length. */
static int int_list(lua_State *L, int arg, int32_t *out, int most) {
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_Integer n = (lua_Integer)lua_rawlen(L, arg);
  if (n < 1 || n > most)
    luaL_argerror(
        L, arg,
        lua_pushfstring(L, "list of 1 to %d integers expected, got %I", most, (LUAI_UACINT)n));
  for (int i = 0; i < (int)n; i++) {
    lua_rawgeti(L, arg, i + 1);
    int ok;
    lua_Integer v = lua_tointegerx(L, -1, &ok);
    if (!ok || v < INT32_MIN || v > INT32_MAX) luaL_argerror(L, arg, "list of integers expected");
    out[i] = (int32_t)v;
    lua_pop(L, 1);
  }
  return (int)n;
}

/* ---- params ---------------------------------------------------------------------------------- */

static int l_param(lua_State *L) { /* [self, name] -> [param]; [nil] if there is no such tensor */
  pe_graph *g = check(L);
  pe_param p;
  pe_error err;
  pe_status rc = pe_graph_param(g, luaL_checkstring(L, 2), &p, &err);
  if (rc == PE_ENOTFOUND) {
    luaL_pushfail(L);
    return 1;
  }
  return done(L, rc, &p, &err);
}

static int l_param_shape(lua_State *L) { /* [self, param] -> [matrices, rows, cols, quantised] */
  pe_graph *g = check(L);
  const pe_param_info *p = &g->param[param_at(L, 2, g)];
  lua_pushinteger(L, p->count), lua_pushinteger(L, p->rows), lua_pushinteger(L, p->cols);
  lua_pushboolean(L, p->mat[0].quant.kind != PE_QUANT_NONE);
  return 4;
}

/* [self, param, {from, count, step}] -> [param]; from counts from 1 */
static int l_rows(lua_State *L) {
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

/* ---- values ---------------------------------------------------------------------------------- */

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

static int l_embed(lua_State *L) { /* [self, param, {scale, media}] -> [value] */
  static const char *const keys[] = {"scale", "media", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 3, keys);
  pe_value v = -1;
  pe_error err;
  pe_param table = param_at(L, 2, g);
  const float scale = option_float(L, 3, "scale", 1);
  if (!pe_bind_option(L, 3, "media"))
    return done(L, pe_graph_embed(g, table, scale, &v, &err), &v, &err);
  const int32_t instead = option_int(L, 3, "media", 0);
  return done(L, pe_graph_embed_instead(g, table, scale, instead, &v, &err), &v, &err);
}

static int l_deepstack(lua_State *L) { /* [self, value, plane] -> [value] */
  pe_graph *g = check(L);
  pe_value v = -1, x = value_at(L, 2, g);
  lua_Integer plane = luaL_checkinteger(L, 3);
  luaL_argcheck(L, plane >= 1 && plane < PE_FEATURE_PLANES, 3, "no such plane of features");
  pe_error err;
  return done(L, pe_graph_deepstack(g, x, (int32_t)plane, &v, &err), &v, &err);
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

/* [self, value, {route, weight, bias, transposed}] -> [value] */
static int l_expert_linear(lua_State *L) {
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
  luaL_argcheck(L, pe_map_is_unary(op), 2, "this op takes two operands");
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_unary(g, (pe_map_op)op, value_at(L, 3, g), &v, &err), &v, &err);
}

/* [self, op, {a, b, number}] -> [value]; `number` takes the place of a or b */
static int l_binary(lua_State *L) {
  static const char *const keys[] = {"a", "b", "number", NULL};
  pe_graph *g = check(L);
  int op = luaL_checkoption(L, 2, NULL, map_names);
  luaL_argcheck(L, !pe_map_is_unary(op), 2, "this op takes one operand");
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

/* [self, value, {from, count, last}] -> [value]; from counts from 1 */
static int l_slice(lua_State *L) {
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

/* ---- rope and attention ---------------------------------------------------------------------- */

/* Reads a list of `want` numbers in an option table into a userdata, which it leaves on the stack.
 * If the option is absent, returns NULL and pushes nothing. */
static const double *number_list(lua_State *L, int arg, const char *key, int32_t want) {
  if (!pe_bind_option(L, arg, key)) return NULL;
  luaL_argcheck(L, lua_istable(L, -1) && (int64_t)lua_rawlen(L, -1) == want, arg,
                lua_pushfstring(L, "option '%s': list of %d numbers expected", key, want));
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
  /* clang-format off */
  static const char *const keys[] = {
      "kind", "dims", "turning", "theta", "factor", "original", "low_freq_factor",
      "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
      "attention_factor", "max_position", "short_factor", "long_factor", "divisor", "sections",
      "interleaved", "growth", NULL};
  /* clang-format on */
  pe_graph *g = check(L);
  pe_bind_options(L, 2, keys);
  const char *name = pe_bind_string(L, 2, "kind", NULL, "default");
  int kind = pe_rope_find(name);
  pe_error err;
  if (kind < 0) {
    pe_fail(&err, PE_EARG, "unknown rope type '%s'", name);
    return fail(L, &err);
  }
  pe_rope_spec s = {.kind = (pe_rope_kind)kind,
                    .dims = option_int(L, 2, "dims", 0),
                    .turning = option_int(L, 2, "turning", 0)};
  s.theta = pe_bind_number(L, 2, "theta", 10000);
  s.factor = pe_bind_number(L, 2, "factor", 1);
  s.original = pe_bind_number(L, 2, "original", 0);
  s.max_position = pe_bind_number(L, 2, "max_position", 0);
  s.low_freq_factor = pe_bind_number(L, 2, "low_freq_factor", 1);
  s.high_freq_factor = pe_bind_number(L, 2, "high_freq_factor", 4);
  s.beta_fast = pe_bind_number(L, 2, "beta_fast", 32);
  s.beta_slow = pe_bind_number(L, 2, "beta_slow", 1);
  s.mscale = pe_bind_number(L, 2, "mscale", 0);
  s.mscale_all_dim = pe_bind_number(L, 2, "mscale_all_dim", 0);
  s.truncate = pe_bind_boolean(L, 2, "truncate", true);
  s.attention_factor = pe_bind_number(L, 2, "attention_factor", 0);
  s.short_factor = number_list(L, 2, "short_factor", s.dims / 2);
  s.long_factor = number_list(L, 2, "long_factor", s.dims / 2);
  s.divisor = number_list(L, 2, "divisor", s.dims / 2);
  const double *section = number_list(L, 2, "sections", 3);
  for (int i = 0; section && i < 3; i++) s.section[i] = (int32_t)section[i];
  s.interleaved_axes = pe_bind_boolean(L, 2, "interleaved", false);
  s.growth = pe_bind_number(L, 2, "growth", 0);
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
  static const char *const keys[] = {"q",     "k",       "v",     "sinks", "window", "value",
                                     "scale", "softcap", "share", "spans", NULL};
  pe_graph *g = check(L);
  pe_bind_options(L, 2, keys);
  pe_attention_spec s = {.q = option_value(L, 2, "q", g), .share = option_int(L, 2, "share", -1)};
  s.k = option_id(L, 2, "k", g->node_count, s.share < 0);
  s.v = option_id(L, 2, "v", g->node_count, false);
  s.sinks = option_param(L, 2, "sinks", g, false);
  s.window = option_int(L, 2, "window", 0);
  s.value = option_int(L, 2, "value", 0);
  s.spans = pe_bind_boolean(L, 2, "spans", false);
  s.scale = option_float(L, 2, "scale", 1);
  s.softcap = option_float(L, 2, "softcap", 0);
  pe_value v = -1;
  int32_t layer = -1;
  pe_error err;
  done(L, pe_graph_attention(g, &s, &v, &layer, &err), &v, &err);
  lua_pushinteger(L, layer);
  return 2;
}

/* ---- experts and recurrences ----------------------------------------------------------------- */

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

/* ---- output and description ------------------------------------------------------------------ */

static int l_output(lua_State *L) { /* [self, value] -> [value] */
  pe_graph *g = check(L);
  pe_value v = -1;
  pe_error err;
  return done(L, pe_graph_output(g, value_at(L, 2, g), &v, &err), &v, &err);
}

static int l_finish(lua_State *L) { /* [self, value] -> []; declares the logits */
  pe_graph *g = check(L);
  g->output = value_at(L, 2, g);
  return 0;
}

void pe_graph_set_steps(lua_State *L, const pe_map_args *m) {
  lua_createtable(L, m->steps, 0);
  for (int i = 0; i < m->steps; i++)
    lua_pushstring(L, pe_map_name((pe_map_op)m->step[i].op)), lua_rawseti(L, -2, i + 1);
  lua_setfield(L, -2, "steps");
}

void pe_graph_push_value(lua_State *L, const pe_graph *g, pe_value v) {
  const pe_node *n = &g->node[v];
  lua_createtable(L, 0, 8);
  lua_pushstring(L, n->name), lua_setfield(L, -2, "name");
  lua_pushstring(L, pe_node_op_name(n)), lua_setfield(L, -2, "op");
  if (n->mat >= 0) lua_pushstring(L, g->param[n->mat].name), lua_setfield(L, -2, "weight");
  lua_createtable(L, n->rank, 0);
  for (int i = 0; i < n->rank; i++) lua_pushinteger(L, n->dim[i]), lua_rawseti(L, -2, i + 1);
  lua_setfield(L, -2, "shape");
  if (n->op == PE_OP_MAP) pe_graph_set_steps(L, &n->args.map);
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
    pe_graph_push_value(L, g, (pe_value)i);
    lua_newtable(L);
    for (int j = 0; j < n->inputs; j++)
      if (n->in[j] >= 0) {
        lua_pushstring(L, g->node[n->in[j]].name);
        lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
      }
    lua_setfield(L, -2, "inputs");
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static int l_unused(lua_State *L) { /* [self] -> [names of tensors that no param refers to] */
  pe_graph *g = check(L);
  lua_newtable(L);
  for (size_t i = 0; i < g->weights->count; i++)
    if (!g->used[i]) {
      lua_pushstring(L, g->weights->list[i].name.at);
      lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
    }
  return 1;
}

static int l_caches(lua_State *L) { /* [self] -> [{groups = list, state_floats =}] */
  pe_graph *g = check(L);
  lua_createtable(L, 0, 2);
  lua_createtable(L, g->group_count, 0);
  for (int32_t i = 0; i < g->group_count; i++) {
    const pe_cache_group *c = &g->group[i];
    lua_createtable(L, 0, 5);
    set_integer(L, "layers", c->layers);
    set_integer(L, "window", c->window);
    set_integer(L, "heads", c->heads);
    set_integer(L, "key", c->key);
    set_integer(L, "value", c->value);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "groups");
  set_integer(L, "state_floats", g->state_floats);
  return 1;
}

int pe_open_graph(lua_State *L) {
  static const luaL_Reg functions[] = {{"open", l_open}, {NULL, NULL}};
  pe_bind_class(L, &graph_class);
  pe_bind_class(L, &pe_plan_class);
  luaL_newlib(L, functions);
  return 1;
}
