/* l_table.c - table.move, insert, remove and concat, whose loops a deadline can stop: a table may
 * claim any length (`__len`), and a range may be any two numbers. */
#include "lua/l_table.h"

#include <stdint.h>

#include "lua/state.h"
#include "lua/watchdog.h"

/* As often as a pattern asks (l_pattern.c): a turn of these loops costs tens of nanoseconds. */
enum { TURNS_BETWEEN = 1 << 14 };

static void count(lua_State *L, uint32_t *turns) {
  if (++*turns < TURNS_BETWEEN) return;
  *turns = 0;
  pe_watchdog *w = pe_state_of(L)->watchdog;
  if (pe_watchdog_stopped(w)) pe_watchdog_raise(w, L);
}

/* Tables, and whatever has the metamethods that stand for one. */
static void check_table(lua_State *L, int arg, const char *first, const char *second) {
  if (lua_istable(L, arg)) return;
  const char *need[] = {first, second};
  for (int i = 0; i < 2; i++) {
    if (!need[i]) continue;
    if (luaL_getmetafield(L, arg, need[i]) == LUA_TNIL)
      luaL_checktype(L, arg, LUA_TTABLE);
    else
      lua_pop(L, 1);
  }
}

static lua_Integer length_of(lua_State *L, int arg, bool writes) {
  check_table(L, arg, "__index", writes ? "__newindex" : NULL);
  if (!lua_istable(L, arg)) check_table(L, arg, "__len", NULL);
  return luaL_len(L, arg);
}

static int l_move(lua_State *L) { /* move(from, first, last, at [, to]) -> to */
  lua_Integer first = luaL_checkinteger(L, 2), last = luaL_checkinteger(L, 3);
  lua_Integer at = luaL_checkinteger(L, 4);
  int to = lua_isnoneornil(L, 5) ? 1 : 5;
  check_table(L, 1, "__index", NULL);
  check_table(L, to, "__newindex", NULL);
  uint32_t turns = 0;
  if (last >= first) {
    luaL_argcheck(L, first > 0 || last < LUA_MAXINTEGER + first, 3, "too many elements to move");
    lua_Integer n = last - first + 1;
    luaL_argcheck(L, at <= LUA_MAXINTEGER - n + 1, 4, "destination wrap around");
    bool upwards = at > last || at <= first || (to != 1 && !lua_compare(L, 1, to, LUA_OPEQ));
    for (lua_Integer i = 0; i < n; i++, count(L, &turns)) {
      lua_Integer k = upwards ? i : n - 1 - i;
      lua_geti(L, 1, first + k);
      lua_seti(L, to, at + k);
    }
  }
  lua_pushvalue(L, to);
  return 1;
}

static int l_insert(lua_State *L) { /* insert(list [, position], value) */
  lua_Integer end = (lua_Integer)((lua_Unsigned)length_of(L, 1, true) + 1), at = end;
  uint32_t turns = 0;
  int given = lua_gettop(L);
  if (given == 3) {
    at = luaL_checkinteger(L, 2);
    luaL_argcheck(L, (lua_Unsigned)at - 1u < (lua_Unsigned)end, 2, "position out of bounds");
    for (lua_Integer i = end; i > at; i--, count(L, &turns)) {
      lua_geti(L, 1, i - 1);
      lua_seti(L, 1, i);
    }
  } else if (given != 2) {
    return luaL_error(L, "wrong number of arguments to 'insert'");
  }
  lua_seti(L, 1, at);
  return 0;
}

static int l_remove(lua_State *L) { /* remove(list [, position]) -> value */
  lua_Integer size = length_of(L, 1, true), at = luaL_optinteger(L, 2, size);
  uint32_t turns = 0;
  if (at != size) /* the place after the last one is fine */
    luaL_argcheck(L, (lua_Unsigned)at - 1u <= (lua_Unsigned)size, 2, "position out of bounds");
  lua_geti(L, 1, at);
  for (; at < size; at++, count(L, &turns)) {
    lua_geti(L, 1, at + 1);
    lua_seti(L, 1, at);
  }
  lua_pushnil(L);
  lua_seti(L, 1, at);
  return 1;
}

static int l_concat(lua_State *L) { /* concat(list [, separator [, first [, last]]]) -> text */
  lua_Integer size = length_of(L, 1, false);
  size_t gap;
  const char *between = luaL_optlstring(L, 2, "", &gap);
  lua_Integer i = luaL_optinteger(L, 3, 1), last = luaL_optinteger(L, 4, size);
  uint32_t turns = 0;
  luaL_Buffer out;
  luaL_buffinit(L, &out);
  for (; i <= last; i++, count(L, &turns)) {
    lua_geti(L, 1, i);
    if (!lua_isstring(L, -1))
      return luaL_error(L, "invalid value (%s) at index %I in table for 'concat'",
                        luaL_typename(L, -1), (LUAI_UACINT)i);
    luaL_addvalue(&out);
    if (i == last) break; /* also where i + 1 would overflow */
    luaL_addlstring(&out, between, gap);
  }
  luaL_pushresult(&out);
  return 1;
}

void pe_table_install(lua_State *L) {
  static const luaL_Reg functions[] = {{"move", l_move},
                                       {"insert", l_insert},
                                       {"remove", l_remove},
                                       {"concat", l_concat},
                                       {NULL, NULL}};
  lua_getglobal(L, "table");
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
