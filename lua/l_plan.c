/* l_plan.c - perigee.Plan: the instructions of a graph as tables, for inspect. */
#include <string.h>

#include "lua/l_graph.h"
#include "runtime/device/metal_count.h"
#include "runtime/device/metal_tiles.h"
#include "runtime/graph/plan.h"

typedef struct plan {
  pe_plan *p;
} plan;

static void plan_close(void *self) { pe_plan_close(((plan *)self)->p); }

static const pe_plan *check(lua_State *L) {
  return ((plan *)pe_bind_check(L, 1, &pe_plan_class))->p;
}

static int get_row_floats(lua_State *L) {
  lua_pushinteger(L, check(L)->row_floats);
  return 1;
}

static int get_output_floats(lua_State *L) {
  lua_pushinteger(L, check(L)->output_floats);
  return 1;
}

static int get_unshared_floats(lua_State *L) {
  lua_pushinteger(L, check(L)->unshared_floats);
  return 1;
}

/* [] -> [table] */
static void push_instruction(lua_State *L, const pe_plan *p, const pe_instr *x) {
  pe_graph_push_value(L, p->graph, x->value);
  lua_pushstring(L, pe_op_name(x->op));
  lua_setfield(L, -2, "op");
  if (x->op == PE_OP_MAP) {
    pe_graph_set_steps(L, &x->args.map);
  } else {
    lua_pushnil(L);
    lua_setfield(L, -2, "steps");
  }
  lua_createtable(L, x->fused_count, 0);
  for (int32_t i = 0; i < x->fused_count; i++) {
    pe_graph_push_value(L, p->graph, x->fused[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "fused");
  if (x->out.rows == PE_EXTENT_CONST) return;
  lua_pushinteger(L, x->out.at);
  lua_setfield(L, -2, "place");
}

static int l_instructions(lua_State *L) { /* [self] -> [list] */
  const pe_plan *p = check(L);
  lua_createtable(L, (int)p->count, 0);
  for (size_t i = 0; i < p->count; i++) {
    push_instruction(L, p, &p->instr[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* [] -> [table] */
static void push_cost(lua_State *L, const pe_plan *p, size_t i, const pe_metal_cost *c) {
  const struct {
    const char *name;
    double value;
  } numbers[] = {{"weights", c->cost.weights},
                 {"cache", c->cost.cache},
                 {"values", c->cost.values},
                 {"macs", c->cost.macs},
                 {"once", c->once}};
  lua_createtable(L, 0, 8);
  lua_pushstring(L, pe_op_name(p->instr[i].op));
  lua_setfield(L, -2, "op");
  lua_pushinteger(L, c->dispatches);
  lua_setfield(L, -2, "dispatches");
  lua_pushinteger(L, c->barriers);
  lua_setfield(L, -2, "barriers");
  for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
    lua_pushnumber(L, numbers[k].value);
    lua_setfield(L, -2, numbers[k].name);
  }
}

static int l_count(lua_State *L) { /* [self, {rows, ...}] -> [list] or [nil, err] */
  static const char *const keys[] = {"rows", "past", "sequences", "kv_bits", "kv_block", NULL};
  const pe_plan *p = check(L);
  pe_bind_options(L, 2, keys);
  pe_metal_load load = {
      .rows = (int32_t)pe_bind_integer(L, 2, "rows", 1, 1 << 20, 1),
      .past = (int32_t)pe_bind_integer(L, 2, "past", 0, 1 << 30, 0),
      .sequences = (int32_t)pe_bind_integer(L, 2, "sequences", 1, 1 << 10, 1),
      .kv_block = (int32_t)pe_bind_integer(L, 2, "kv_block", 1, 4096, 64),
      .tiles = pe_metal_tiles_now(),
  };
  pe_error err;
  if (pe_kv_type_of_bits((int32_t)pe_bind_integer(L, 2, "kv_bits", 4, 32, 16), &load.kv_type, &err))
    return pe_bind_error(L, &err);
  pe_metal_cost *costs = lua_newuserdatauv(L, (p->count + 1) * sizeof *costs, 0);
  if (pe_metal_count(p, &load, costs, &err)) return pe_bind_error(L, &err);
  lua_createtable(L, (int)p->count, 0);
  for (size_t i = 0; i < p->count; i++) {
    push_cost(L, p, i, &costs[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

int pe_bind_taps(lua_State *L, int arg, const pe_graph *g, pe_value *out, int most) {
  if (!pe_bind_option(L, arg, "taps")) return 0;
  luaL_argcheck(L, lua_istable(L, -1), arg, "option 'taps' must be a list of names");
  int n = (int)lua_rawlen(L, -1);
  if (n > most) luaL_error(L, "at most %d taps, got %d", most, n);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, -1, i + 1);
    const char *name = luaL_checkstring(L, -1);
    out[i] = -1;
    for (size_t k = 0; k < g->node_count; k++)
      if (!strcmp(g->node[k].name, name)) out[i] = (pe_value)k;
    if (out[i] < 0) luaL_error(L, "no value is named '%s'", name);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return n;
}

int pe_graph_l_plan(lua_State *L) { /* [graph, {fusion}] -> [plan] or [nil, err] */
  static const char *const keys[] = {"fusion", NULL};
  pe_graph *g = pe_bind_graph(L, 1);
  pe_bind_options(L, 2, keys);
  pe_plan_options o = {.apart = !pe_bind_boolean(L, 2, "fusion", true)};
  plan *self = pe_bind_new(L, &pe_plan_class, sizeof *self, 1);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1); /* keeps the graph alive */
  pe_error err;
  if (pe_plan_open(g, &o, &self->p, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, self, 0);
  return 1;
}

static const luaL_Reg methods[] = {
    {"instructions", l_instructions}, {"count", l_count}, {NULL, NULL}};
static const luaL_Reg fields[] = {{"row_floats", get_row_floats},
                                  {"output_floats", get_output_floats},
                                  {"unshared_floats", get_unshared_floats},
                                  {NULL, NULL}};
const pe_class pe_plan_class = {"perigee.Plan", methods, fields, NULL, NULL, plan_close};
