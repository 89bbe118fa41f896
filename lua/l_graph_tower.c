/* l_graph_tower.c - the methods of perigee.Graph that vision towers use; see l_graph.c. */
#include "lua/l_graph.h"

static int give(lua_State *L, pe_status rc, const int32_t *id, const pe_error *err) {
  if (rc) {
    pe_bind_push_error(L, pe_status_name(err->code), err->field, err->text);
    return lua_error(L);
  }
  lua_pushinteger(L, *id);
  return 1;
}

static int32_t id_at(lua_State *L, int arg, size_t count, const char *what) {
  lua_Integer v = luaL_checkinteger(L, arg);
  if (v < 0 || (size_t)v >= count) luaL_argerror(L, arg, what);
  return (int32_t)v;
}

static pe_value value_at(lua_State *L, int arg, const pe_graph *g) {
  return id_at(L, arg, g->node_count, "no such value");
}

static pe_param param_at(lua_State *L, int arg, const pe_graph *g) {
  return id_at(L, arg, g->param_count, "no such param");
}

enum { MOST_DIMS = 5 };

/* [..., options] -> the list of integers in an option; returns its length. */
static int integers(lua_State *L, int arg, const char *key, int64_t out[MOST_DIMS]) {
  if (!pe_bind_option(L, arg, key) || !lua_istable(L, -1))
    return luaL_error(L, "option '%s': list of integers expected", key);
  lua_Unsigned n = lua_rawlen(L, -1);
  if (n > MOST_DIMS) luaL_error(L, "option '%s': at most %d integers", key, MOST_DIMS);
  for (lua_Unsigned i = 0; i < n; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    out[i] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return (int)n;
}

/* [self, param, {shape, order}] -> [param]; order counts from 1 */
int pe_graph_l_permute(lua_State *L) {
  static const char *const keys[] = {"shape", "order", NULL};
  pe_graph *g = pe_bind_graph(L, 1);
  pe_param p = param_at(L, 2, g), out = -1;
  pe_bind_options(L, 3, keys);
  int64_t dim[MOST_DIMS] = {0}, at[MOST_DIMS] = {0};
  int rank = integers(L, 3, "shape", dim), order[MOST_DIMS];
  if (integers(L, 3, "order", at) != rank)
    return luaL_error(L, "option 'order' must name %d dimensions", rank);
  for (int i = 0; i < rank; i++) order[i] = at[i] < 1 || at[i] > rank ? -1 : (int)at[i] - 1;
  pe_error err;
  return give(L, pe_graph_permute(g, p, rank, dim, order, &out, &err), &out, &err);
}

int pe_graph_l_layer_norm(lua_State *L) { /* [self, value, {weight, bias, eps}] -> [value] */
  static const char *const keys[] = {"weight", "bias", "eps", NULL};
  pe_graph *g = pe_bind_graph(L, 1);
  pe_value x = value_at(L, 2, g), v = -1;
  pe_bind_options(L, 3, keys);
  int64_t most = (int64_t)g->param_count - 1;
  pe_param weight = (pe_param)pe_bind_integer(L, 3, "weight", 0, most, -1),
           bias = (pe_param)pe_bind_integer(L, 3, "bias", 0, most, -1);
  float eps = (float)pe_bind_number(L, 3, "eps", 1e-6);
  pe_error err;
  return give(L, pe_graph_layer_norm(g, x, weight, bias, eps, &v, &err), &v, &err);
}

int pe_graph_l_patches(lua_State *L) { /* [self, width] -> [value] */
  pe_graph *g = pe_bind_graph(L, 1);
  lua_Integer width = luaL_checkinteger(L, 2);
  luaL_argcheck(L, width >= 1 && width <= INT32_MAX, 2, "a number of values expected");
  pe_value v = -1;
  pe_error err;
  return give(L, pe_graph_patches(g, (int32_t)width, &v, &err), &v, &err);
}

int pe_graph_l_lookup(lua_State *L) { /* [self, param] -> [value] */
  pe_graph *g = pe_bind_graph(L, 1);
  pe_value v = -1;
  pe_error err;
  return give(L, pe_graph_lookup(g, param_at(L, 2, g), &v, &err), &v, &err);
}

int pe_graph_l_merge(lua_State *L) { /* [self, value, {count, mean}] -> [value] */
  static const char *const keys[] = {"count", "mean", NULL};
  pe_graph *g = pe_bind_graph(L, 1);
  pe_value x = value_at(L, 2, g), v = -1;
  pe_bind_options(L, 3, keys);
  int32_t count = (int32_t)pe_bind_integer(L, 3, "count", 1, 1 << 16, 1);
  pe_error err;
  return give(L, pe_graph_merge(g, x, count, pe_bind_boolean(L, 3, "mean", false), &v, &err), &v,
              &err);
}

/* [self, {q, k, v, regions, scale}] -> [value] */
int pe_graph_l_region_attention(lua_State *L) {
  static const char *const keys[] = {"q", "k", "v", "regions", "scale", NULL};
  static const char *const regions[] = {"frame", "window", NULL}; /* as the PE_REGION_ constants */
  pe_graph *g = pe_bind_graph(L, 1);
  pe_bind_options(L, 2, keys);
  pe_value qkv[3], v = -1;
  for (int i = 0; i < 3; i++) {
    int64_t id = pe_bind_integer(L, 2, keys[i], 0, (int64_t)g->node_count - 1, -1);
    if (id < 0) return luaL_error(L, "option '%s' is required", keys[i]);
    qkv[i] = (pe_value)id;
  }
  int kind = pe_bind_choice(L, 2, "regions", regions, PE_REGION_FRAME);
  float scale = (float)pe_bind_number(L, 2, "scale", 1);
  pe_error err;
  return give(L, pe_graph_region_attention(g, qkv, kind, scale, &v, &err), &v, &err);
}
