/* state.c - see state.h. */
#include "lua/state.h"

#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- heap ------------------------------------------------------------------------------------ */

/* Most calls of code with limits. Setting a hook, unwinding and collecting all walk the list of
 * calls: that takes 50 ms for the 200,000 that Lua allows, 1 ms for these. Their stack has at least
 * DEEP_BYTES, so the calls are counted only when a block of that size is allocated. */
enum { DEEP_CALLS = 20000, DEEP_BYTES = 512 << 10 };

/* A block has grown to `size`: stops the code with limits that took too much. */
static void check_growth(pe_state *s, size_t size) {
  if (s->heap_mark == SIZE_MAX) return;
  bool deep = size >= DEEP_BYTES && pe_watchdog_is_deep(s->watchdog, DEEP_CALLS);
  if (!deep && s->heap_used <= s->heap_mark) return;
  s->heap_mark = SIZE_MAX; /* once */
  pe_watchdog_stop(s->watchdog, PE_CAUSE_MEMORY);
}

static void *heap_alloc(void *ud, void *p, size_t old, size_t size) {
  pe_state *s = ud;
  if (!p)
    old = 0; /* for a new object Lua passes its type here */
  else if (s->watchdog)
    pe_watchdog_settle(s->watchdog);
  if (size == 0) {
    free(p);
    s->heap_used -= old;
    return NULL;
  }
  if (size > old && (s->heap_used > s->heap_cap || size - old > s->heap_cap - s->heap_used))
    return NULL;
  void *moved = realloc(p, size);
  if (!moved) return NULL;
  s->heap_used = s->heap_used - old + size;
  if (size > old) check_growth(s, size);
  return moved;
}

/* All Lua runs inside a protected call, so this is a bug: print it before Lua calls abort(). */
static int on_panic(lua_State *L) {
  const char *text = "error object is not a string";
  if (lua_type(L, -1) == LUA_TSTRING) text = lua_tostring(L, -1);
  fprintf(stderr, "perigee: unprotected error: %s\n", text);
  return 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static pe_status open_loop(pe_state *s, pe_error *err) {
  if (!(s->loop = pe_calloc(1, sizeof *s->loop))) return pe_nomem(err, "event loop");
  int rc = uv_loop_init(s->loop);
  if (!rc) return PE_OK;
  pe_free(s->loop);
  s->loop = NULL;
  return pe_fail(err, PE_EIO, "cannot open the event loop: %s", uv_strerror(rc));
}

pe_status pe_state_open(pe_state *s, const pe_state_options *options, pe_error *err) {
  *s = (pe_state){.scripts = options->scripts, .heap_cap = SIZE_MAX, .heap_mark = SIZE_MAX};
  pe_status rc = open_loop(s, err);
  if (rc) return rc;
  if (!(s->watchdog = pe_watchdog_open())) {
    rc = pe_nomem(err, "watchdog");
    goto fail;
  }
  if (!(s->L = lua_newstate(heap_alloc, s))) {
    rc = pe_nomem(err, "Lua state");
    goto fail;
  }
  *(pe_state **)lua_getextraspace(s->L) = s;
  lua_atpanic(s->L, on_panic);
  lua_pushcfunction(s->L, options->open);
  if (lua_pcall(s->L, 0, 0, 0)) {
    const char *text = luaL_tolstring(s->L, -1, NULL);
    rc = pe_fail(err, PE_EFORMAT, "cannot open the Lua libraries: %s", text);
    goto fail;
  }
  if (options->heap_cap) s->heap_cap = options->heap_cap;
  return PE_OK;
fail:
  pe_state_close(s);
  return rc;
}

void pe_state_run(pe_state *s) { uv_run(s->loop, UV_RUN_DEFAULT); }

/* Handles are closed through luv, because luv frees their memory in its own close callback. */
static int close_handles(lua_State *L) {
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_getfield(L, -1, "luv");
  lua_getfield(L, -1, "walk");
  luaL_loadstring(L, "local h = ... if not h:is_closing() then h:close() end");
  lua_call(L, 1, 0);
  return 0;
}

/* Runs the loop for a second at most; false: something in it is still active. */
static bool run_out(uv_loop_t *loop) {
  enum { TRIES = 1000 };
  for (int i = 0; i < TRIES; i++) {
    if (!uv_run(loop, UV_RUN_NOWAIT)) return true;
    uv_sleep(1);
  }
  return false;
}

bool pe_state_close(pe_state *s) {
  if (s->L) {
    lua_settop(s->L, 0);
    s->heap_cap = s->heap_mark = SIZE_MAX;
    lua_pushcfunction(s->L, close_handles);
    if (lua_pcall(s->L, 0, 0, 0)) lua_settop(s->L, 0);
    if (!run_out(s->loop)) return false;
    s->closing = true;
    lua_close(s->L);
  }
  pe_watchdog_close(s->watchdog);
  if (s->loop) {
    if (!run_out(s->loop)) return false; /* handles that finalizers closed */
    uv_loop_close(s->loop);
    pe_free(s->loop);
  }
  *s = (pe_state){0};
  return true;
}
