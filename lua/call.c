/* call.c - see call.h. */
#include "lua/call.h"

#include <lauxlib.h>
#include <lualib.h>
#include <luv/luv.h>
#include <stdio.h>
#include <string.h>

#include "lua/bind.h"
#include "lua/state.h"
#include "lua/watchdog.h"

static const char OUT_OF_MEMORY[] = "not enough memory"; /* Lua's own text */

/* ---- errors ---------------------------------------------------------------------------------- */

static bool is_perigee_error(lua_State *L, int index) {
  if (!lua_istable(L, index) || !lua_getmetatable(L, index)) return false;
  luaL_getmetatable(L, "perigee.Error");
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same;
}

/* [value] -> [err]: the message handler. An error with a traceback comes from an inner call and is
 * passed on unchanged. */
static int on_error(lua_State *L) {
  lua_settop(L, 1);
  if (is_perigee_error(L, 1)) {
    lua_getfield(L, 1, "traceback");
    bool traced = !lua_isnil(L, -1);
    lua_settop(L, 1);
    if (traced) return 1;
  }
  const char *text = luaL_tolstring(L, 1, NULL);
  const char *code = strcmp(text, OUT_OF_MEMORY) ? "error" : "memory";
  pe_bind_push_error(L, code, NULL, text); /* [value, text, err] */
  if (!lua_isstring(L, 1)) {
    lua_pushvalue(L, 1);
    lua_setfield(L, -2, "value");
  }
  pe_traceback(L, 1);
  lua_setfield(L, -2, "traceback");
  return 1;
}

/* [code, text, stopped] -> [err]: for errors that did not pass the message handler (out of memory),
 * or passed it as a plain string (a stop by the watchdog). */
static int make_error(lua_State *L) {
  bool stopped = lua_toboolean(L, 3);
  pe_bind_push_error(L, lua_tostring(L, 1), NULL, lua_tostring(L, 2));
  if (stopped)
    pe_watchdog_push_trace(L);
  else
    lua_pushliteral(L, "stack traceback: not available");
  lua_setfield(L, -2, "traceback");
  return 1;
}

/* [] -> [err], or a string when there is no memory. */
static void push_error(lua_State *L, const char *code, const char *text, bool stopped) {
  if (!lua_checkstack(L, 5)) {
    lua_pushnil(L);
    return;
  }
  lua_pushcfunction(L, make_error);
  lua_pushstring(L, code);
  lua_pushstring(L, text);
  lua_pushboolean(L, stopped);
  lua_pcall(L, 3, 1, 0);
}

static void push_field(lua_State *L, const char *key) {
  lua_pushstring(L, key);
  lua_rawget(L, -2);
}

void pe_call_report(lua_State *L, const char *who) {
  fflush(stdout);
  if (lua_istable(L, -1) && lua_checkstack(L, 3)) {
    push_field(L, "message");
    const char *text = lua_tostring(L, -1);
    fprintf(stderr, "perigee: %s: %s\n", who, text ? text : "error");
    lua_pop(L, 1);
    push_field(L, "traceback");
    if (lua_isstring(L, -1)) fprintf(stderr, "%s\n", lua_tostring(L, -1));
    lua_pop(L, 1);
  } else {
    fprintf(stderr, "perigee: %s: %s\n", who,
            lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : OUT_OF_MEMORY);
  }
  lua_pop(L, 1);
}

/* ---- the door -------------------------------------------------------------------------------- */

static const char *code_of(pe_cause cause) {
  switch (cause) {
  case PE_CAUSE_DEADLINE: return "deadline";
  case PE_CAUSE_MEMORY: return "memory";
  default: return "interrupt";
  }
}

/* More than `memory` bytes stop the call at its next instruction. One allocation may take as much
 * again before Lua's allocator refuses it. */
static void limit_heap(pe_state *s, size_t memory) {
  if (!memory || memory >= SIZE_MAX / 2 - s->heap_used) return;
  if (s->heap_used + memory < s->heap_mark) s->heap_mark = s->heap_used + memory;
  if (s->heap_used + 2 * memory < s->heap_cap) s->heap_cap = s->heap_used + 2 * memory;
}

bool pe_call(lua_State *L, int n_args, int n_results, const pe_limits *limits) {
  static const pe_limits none;
  if (!limits) limits = &none;
  pe_state *s = pe_state_of(L);
  int base = lua_gettop(L) - n_args; /* index of the function */
  pe_scope scope;
  if (!lua_checkstack(L, 2) ||
      !pe_watchdog_enter(s->watchdog, &scope, L, limits->deadline_ns, limits->interruptible)) {
    lua_settop(L, base - 1);
    push_error(L, "error", "cannot start the watchdog thread", false);
    return false;
  }
  size_t cap = s->heap_cap, mark = s->heap_mark;
  limit_heap(s, limits->memory);
  lua_pushcfunction(L, on_error);
  lua_insert(L, base);
  int rc = lua_pcall(L, n_args, n_results, base);
  s->heap_cap = cap;
  s->heap_mark = mark;
  pe_cause cause = pe_watchdog_leave(s->watchdog, &scope, L);
  lua_remove(L, base);
  if (!rc && !cause) return true;
  if (cause) {
    lua_settop(L, base - 1);
    push_error(L, code_of(cause), pe_watchdog_text(cause), true);
  } else if (!lua_istable(L, -1)) { /* out of memory, or an error while handling an error */
    lua_settop(L, base - 1);
    if (rc == LUA_ERRMEM)
      push_error(L, "memory", OUT_OF_MEMORY, false);
    else
      push_error(L, "error", "error in error handling", false);
  }
  return false;
}

int pe_call_from_luv(lua_State *L, int n_args, int n_results, int flags) {
  int base = lua_gettop(L) - n_args - 1;
  if (pe_call(L, n_args, n_results, NULL))
    return n_results == LUA_MULTRET ? lua_gettop(L) - base : n_results;
  if (flags & LUVF_CALLBACK_NOERRMSG)
    lua_pop(L, 1);
  else
    pe_call_report(L, "callback");
  return -LUA_ERRRUN;
}

/* ---- coroutines ------------------------------------------------------------------------------ */

static const char KILLED = 0; /* registry key of a weak table */

/* Lua leaves hooks disabled in a coroutine that died inside one, so its pending <close> variables
 * could not be stopped any more. Such a coroutine never runs again, not even to close them. */
static void mark_killed(lua_State *L, lua_State *co) {
  lua_pushthread(co);
  lua_xmove(co, L, 1);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &KILLED);
  lua_insert(L, -2);
  lua_pushboolean(L, 1);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

/* [co at 1] */
static bool was_killed(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &KILLED);
  lua_pushvalue(L, 1);
  bool killed = lua_rawget(L, -2) != LUA_TNIL;
  lua_pop(L, 2);
  return killed;
}

/* Runs `step` on co, published to the watchdog as the running state. Raises in L when the scope has
 * been stopped. */
static int run_published(lua_State *L, lua_State *co,
                         int (*step)(lua_State *co, lua_State *L, int n_args, int *n_results),
                         int n_args, int *n_results) {
  pe_watchdog *w = pe_state_of(L)->watchdog;
  pe_cause cause;
  lua_State *was = pe_watchdog_publish(w, co, &cause);
  int rc = LUA_OK;
  if (cause)
    *n_results = n_args; /* not run: drop the arguments from co's stack */
  else
    rc = step(co, L, n_args, n_results);
  pe_watchdog_publish(w, was, &cause);
  if (!cause) return rc;
  if (rc == LUA_OK || rc == LUA_YIELD)
    lua_pop(co, *n_results);
  else
    mark_killed(L, co);
  return pe_watchdog_raise(w, L);
}

static int step_resume(lua_State *co, lua_State *L, int n_args, int *n_results) {
  return lua_resume(co, L, n_args, n_results);
}

/* Closes the pending variables of co; an error value is left on co's stack. */
static int step_close(lua_State *co, lua_State *L, int n_args, int *n_results) {
  (void)L, (void)n_args;
  int rc = lua_resetthread(co);
  *n_results = rc != LUA_OK;
  return rc;
}

/* [..., args] -> [..., results] and true, or [..., error value] and false. */
static bool resume(lua_State *L, lua_State *co, int n_args, int *n_results) {
  *n_results = 1;
  if (!lua_checkstack(co, n_args)) {
    lua_pushliteral(L, "too many arguments to resume");
    return false;
  }
  lua_xmove(L, co, n_args);
  int rc = run_published(L, co, step_resume, n_args, n_results);
  bool good = rc == LUA_OK || rc == LUA_YIELD;
  if (!good) *n_results = 1;
  if (good && !lua_checkstack(L, *n_results + 1)) {
    lua_pop(co, *n_results);
    *n_results = 1;
    lua_pushliteral(L, "too many results to resume");
    return false;
  }
  lua_xmove(co, L, *n_results);
  return good;
}

static lua_State *check_coroutine(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTHREAD);
  return lua_tothread(L, 1);
}

static int coroutine_resume(lua_State *L) {
  lua_State *co = check_coroutine(L);
  int n;
  bool good = resume(L, co, lua_gettop(L) - 1, &n);
  lua_pushboolean(L, good);
  lua_insert(L, -(n + 1));
  return n + 1;
}

static int wrap_call(lua_State *L) {
  lua_State *co = lua_tothread(L, lua_upvalueindex(1));
  int n;
  if (resume(L, co, lua_gettop(L), &n)) return n;
  int rc = lua_status(co);
  bool died = rc != LUA_OK && rc != LUA_YIELD;
  if (died) { /* close its variables; their errors replace the first one */
    lua_xmove(L, co, 1);
    run_published(L, co, step_close, 0, &n);
    lua_xmove(co, L, 1);
  }
  if (lua_type(L, -1) == LUA_TSTRING && rc != LUA_ERRMEM) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

static int coroutine_wrap(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_State *co = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1);
  lua_pushcclosure(L, wrap_call, 1);
  return 1;
}

/* Only a suspended or dead coroutine may be closed. */
static bool is_closable(lua_State *L, lua_State *co) {
  lua_Debug ar;
  return co != L && (lua_status(co) != LUA_OK || !lua_getstack(co, 0, &ar));
}

static int coroutine_close(lua_State *L) {
  lua_State *co = check_coroutine(L);
  if (!is_closable(L, co))
    return luaL_error(L, "cannot close a %s coroutine", co == L ? "running" : "normal");
  if (was_killed(L)) {
    lua_pushboolean(L, 0);
    lua_pushliteral(L, "stopped coroutine cannot be closed");
    return 2;
  }
  int n;
  int rc = run_published(L, co, step_close, 0, &n);
  lua_pushboolean(L, rc == LUA_OK);
  if (rc == LUA_OK) return 1;
  lua_xmove(co, L, 1);
  return 2;
}

/* ---- xpcall ---------------------------------------------------------------------------------- */

/* [error] -> [result of the handler]; upvalue: the script's handler. The error of a stopped scope
 * is raised inside the hook, where no other hook fires and a handler could not be stopped: it is
 * skipped. */
static int handle_error(lua_State *L) {
  pe_watchdog *w = pe_state_of(L)->watchdog;
  lua_settop(L, 1);
  if (pe_watchdog_stopped(w)) return 1;
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, 1, 1);
  return 1;
}

/* After the call, also one that yielded: [f, handler, true, results...] or [..., error]. */
static int finish_xpcall(lua_State *L, int rc, lua_KContext context) {
  (void)context;
  if (rc == LUA_OK || rc == LUA_YIELD) return lua_gettop(L) - 2;
  lua_pushboolean(L, 0);
  lua_insert(L, -2);
  return 2;
}

static int call_with_handler(lua_State *L) {
  int n_args = lua_gettop(L) - 2;
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_pushvalue(L, 2);
  lua_pushcclosure(L, handle_error, 1);
  lua_replace(L, 2);
  lua_pushboolean(L, 1);
  lua_pushvalue(L, 1);
  lua_rotate(L, 3, 2); /* [f, handler, true, f, args...] */
  return finish_xpcall(L, lua_pcallk(L, n_args, LUA_MULTRET, 2, 0, finish_xpcall), 0);
}

void pe_call_open_library(lua_State *L) {
  static const luaL_Reg functions[] = {{"resume", coroutine_resume},
                                       {"wrap", coroutine_wrap},
                                       {"close", coroutine_close},
                                       {NULL, NULL}};
  lua_getglobal(L, LUA_COLIBNAME);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
  lua_pushcfunction(L, call_with_handler);
  lua_setglobal(L, "xpcall");
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &KILLED);
}
