/* open.c - see open.h. */
#include "lua/open.h"

#include <errno.h>
#include <lauxlib.h>
#include <lualib.h>
#include <luv/luv.h>
#include <stdio.h>
#include <stdlib.h>

#include "lua/call.h"
#include "lua/l_string.h"
#include "lua/l_table.h"
#include "lua/source.h"
#include "lua/state.h"
#include "lua/watchdog.h"

int luaopen_cjson(lua_State *L);

/* pe_open_NOUN(L) leaves one value, which becomes perigee.NOUN. */
#define NOUNS(X)                                                                                   \
  X(bytes)                                                                                         \
  X(job)                                                                                           \
  X(json)                                                                                          \
  X(tokenizer)                                                                                     \
  X(stops)                                                                                         \
  X(tensor)                                                                                        \
  X(weights)                                                                                       \
  X(graph)                                                                                         \
  X(tower)                                                                                         \
  X(engine)                                                                                        \
  X(batch)                                                                                         \
  X(image)                                                                                         \
  X(grammar)                                                                                       \
  X(sys)

#define DECLARE(noun) int pe_open_##noun(lua_State *L);
NOUNS(DECLARE)
#undef DECLARE

#define ENTRY(noun) {#noun, pe_open_##noun},
static const luaL_Reg nouns[] = {NOUNS(ENTRY){NULL, NULL}};
#undef ENTRY

static int open_perigee(lua_State *L) {
  lua_pushcfunction(L, pe_open_host);
  lua_call(L, 0, 1);
  for (const luaL_Reg *n = nouns; n->name; n++) {
    lua_pushcfunction(L, n->func);
    lua_call(L, 0, 1);
    lua_setfield(L, -2, n->name);
  }
  return 1;
}

/* ---- luv ------------------------------------------------------------------------------------- */

/* Lua runs on the loop thread only, so luv's threads and work queue are left out; so is the
 * function that would close our loop. */
static int open_luv(lua_State *L) {
  static const char *const withheld[] = {"new_thread",
                                         "thread_equal",
                                         "thread_self",
                                         "thread_join",
                                         "thread_getaffinity",
                                         "thread_setaffinity",
                                         "new_work",
                                         "queue_work",
                                         "thread_getpriority",
                                         "thread_setpriority",
                                         "thread_getcpu",
                                         "new_sem",
                                         "sem_post",
                                         "sem_wait",
                                         "sem_trywait",
                                         "loop_close",
                                         NULL};
  luv_set_loop(L, pe_state_of(L)->loop); /* both before luaopen_luv */
  luv_set_callback(L, pe_call_from_luv);
  lua_pushcfunction(L, luaopen_luv);
  lua_call(L, 0, 1);
  for (const char *const *name = withheld; *name; name++) {
    lua_pushnil(L);
    lua_setfield(L, -2, *name);
  }
  return 1;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Ends the program without a message when the reader of stdout has gone away (`perigee | head`).
 * _Exit, because the flush in exit() would fail again. */
static void end_if_unread(bool failed) {
  if (failed && errno == EPIPE) _Exit(1);
}

/* print, like Lua's own. */
static int quiet_print(lua_State *L) {
  int n = lua_gettop(L);
  bool good = true;
  for (int i = 1; i <= n; i++) {
    size_t len;
    const char *s = luaL_tolstring(L, i, &len);
    if (i > 1) good = good && putc('\t', stdout) != EOF;
    good = good && fwrite(s, 1, len, stdout) == len;
    lua_pop(L, 1);
  }
  good = good && putc('\n', stdout) != EOF && fflush(stdout) == 0;
  end_if_unread(!good);
  return 0;
}

/* io.write, file:write and file:flush; upvalue: Lua's own function. */
static int quiet_write(lua_State *L) {
  luaL_Stream *f = luaL_testudata(L, 1, LUA_FILEHANDLE);
  if (!f) { /* io.write: Lua keeps its default output in the registry */
    lua_getfield(L, LUA_REGISTRYINDEX, "_IO_output");
    f = lua_touserdata(L, -1);
    lua_pop(L, 1);
  }
  bool is_stdout = f && f->f == stdout;
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  errno = 0;
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  end_if_unread(is_stdout && lua_isnil(L, 1));
  return lua_gettop(L);
}

/* [table] -> [table]: table[name] becomes f, with the old function as its upvalue. */
static void wrap(lua_State *L, const char *name, lua_CFunction f) {
  lua_getfield(L, -1, name);
  lua_pushcclosure(L, f, 1);
  lua_setfield(L, -2, name);
}

static void open_output(lua_State *L) {
  lua_pushcfunction(L, quiet_print);
  lua_setglobal(L, "print");
  lua_getglobal(L, LUA_IOLIBNAME);
  wrap(L, "write", quiet_write);
  luaL_getmetatable(L, LUA_FILEHANDLE);
  lua_getfield(L, -1, "__index");
  wrap(L, "write", quiet_write);
  wrap(L, "flush", quiet_write);
  lua_pop(L, 3);
}

/* ---- os.exit --------------------------------------------------------------------------------- */

/* os.exit may close the state, so the watchdog must let go of it first. The argument is checked
 * before that: a script that goes on after a bad argument is still watched. */
static int exit_unwatched(lua_State *L) {
  if (!lua_isboolean(L, 1)) luaL_optinteger(L, 1, 0);
  pe_cause cause;
  pe_watchdog_publish(pe_state_of(L)->watchdog, NULL, &cause);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, 0);
  return 0;
}

static void open_exit(lua_State *L) {
  lua_getglobal(L, LUA_OSLIBNAME);
  wrap(L, "exit", exit_unwatched);
  lua_pop(L, 1);
}

/* ---- libraries that loop --------------------------------------------------------------------- */

/* Keeps Lua's own functions in the registry: tests compare ours with them. */
static void keep_own(lua_State *L, const char *library, const char *key) {
  lua_newtable(L);
  lua_getglobal(L, library);
  for (lua_pushnil(L); lua_next(L, -2);) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_rawset(L, -5);
  }
  lua_pop(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, key);
}

static void open_stoppable(lua_State *L) {
  keep_own(L, LUA_STRLIBNAME, "perigee.own_string");
  keep_own(L, LUA_TABLIBNAME, "perigee.own_table");
  pe_string_install(L);
  pe_table_install(L);
}

/* ---- all of it ------------------------------------------------------------------------------- */

int pe_open(lua_State *L) {
  static const luaL_Reg modules[] = {
      {"luv", open_luv}, {"cjson", luaopen_cjson}, {"perigee", open_perigee}, {NULL, NULL}};
  luaL_openlibs(L);
  open_stoppable(L);
  pe_call_open_library(L);
  pe_source_open(L);
  pe_source_open_load(L);
  open_output(L);
  open_exit(L);
  for (const luaL_Reg *m = modules; m->name; m++) {
    luaL_requiref(L, m->name, m->func, 0);
    lua_pop(L, 1);
  }
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_getfield(L, -1, "luv");
  lua_setfield(L, -2, "uv"); /* the same table under both names */
  lua_pop(L, 1);
  return 0;
}
