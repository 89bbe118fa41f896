/* l_host.c - the table `perigee`: guard, errors, live objects, and open for models. */
#include <lauxlib.h>
#include <lua.h>
#include <math.h>

#include "lua/bind.h"
#include "lua/call.h"
#include "lua/open.h"
#include "lua/state.h"

#ifndef PE_VERSION
#define PE_VERSION "0.1.0"
#endif

/* guard(fn, options) -> true, results... or nil, err */
static int host_guard(lua_State *L) {
  static const char *const keys[] = {"deadline_ms", "memory", "interruptible", NULL};
  luaL_checktype(L, 1, LUA_TFUNCTION);
  pe_bind_options(L, 2, keys);
  double ms = pe_bind_number(L, 2, "deadline_ms", 0);
  luaL_argcheck(L, ms >= 0 && ms < 1e12, 2, "option 'deadline_ms' must be between 0 and 1e12");
  pe_limits limits = {
      .deadline_ns = (int64_t)ceil(ms * 1e6),
      .memory = (size_t)pe_bind_integer(L, 2, "memory", 0, INT64_MAX, 0),
      .interruptible = pe_bind_boolean(L, 2, "interruptible", false),
  };
  lua_settop(L, 1);
  lua_pushboolean(L, 1);
  lua_insert(L, 1);
  if (pe_call(L, 0, LUA_MULTRET, &limits)) return lua_gettop(L);
  lua_pushnil(L);
  lua_replace(L, 1);
  return 2;
}

/* live() -> counts by class, bytes, allocations */
static int host_live(lua_State *L) {
  uint64_t bytes = pe_bind_push_live(L);
  lua_pushinteger(L, (lua_Integer)bytes);
  lua_pushinteger(L, pe_alloc_live());
  return 3;
}

static int host_classes(lua_State *L) {
  pe_bind_push_classes(L);
  return 1;
}

/* error(code, message, {field}) -> err */
static int host_error(lua_State *L) {
  static const char *const keys[] = {"field", NULL};
  pe_bind_options(L, 3, keys);
  const char *field = pe_bind_string(L, 3, "field", NULL, NULL);
  pe_bind_push_error(L, luaL_checkstring(L, 1), field, luaL_checkstring(L, 2));
  return 1;
}

/* heap() -> used, cap */
static int host_heap(lua_State *L) {
  const pe_state *s = pe_state_of(L);
  lua_pushinteger(L, (lua_Integer)s->heap_used);
  lua_pushinteger(L, s->heap_cap > INT64_MAX ? 0 : (lua_Integer)s->heap_cap);
  return 2;
}

static int finish_open(lua_State *L, int status, lua_KContext context) {
  (void)status;
  (void)context;
  return lua_gettop(L);
}

/* open(path, options) -> model, or nil, err. The script that does it is loaded by the first call,
 * since it requires perigee itself. */
static int host_open(lua_State *L) {
  lua_settop(L, 2);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "engine.model");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "open");
  lua_replace(L, -2);
  lua_insert(L, 1);
  lua_callk(L, 2, LUA_MULTRET, 0, finish_open); /* so that a task may wait in it */
  return finish_open(L, LUA_OK, 0);
}

int pe_open_host(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"guard", host_guard}, {"live", host_live}, {"classes", host_classes},
      {"error", host_error}, {"heap", host_heap}, {"open", host_open},
      {NULL, NULL}};
  luaL_newlib(L, functions);
  lua_pushliteral(L, PE_VERSION);
  lua_setfield(L, -2, "version");
  return 1;
}
