/* state.h - the Lua state of the program with its event loop, its heap and its watchdog.
 *
 * The loop thread opens, uses and closes it. We own the loop and lend it to luv. Every lua_State
 * finds its pe_state through the extra space that Lua keeps in front of it.
 *
 * All of Lua's memory goes through one allocator, which counts it and refuses to grow past
 * heap_cap. Lua then runs a full collection and, if that does not help, raises "not enough memory".
 * That collection takes a millisecond per megabyte and cannot be stopped, so code with limits is
 * stopped by the watchdog when it passes heap_mark, before that. So is code whose stack grows at
 * DEEP_CALLS (state.c). Tensors and other C memory are not counted. */
#ifndef PE_STATE_H
#define PE_STATE_H

#include <lua.h>
#include <uv.h>

#include "lua/watchdog.h"
#include "runtime/base.h"

typedef struct pe_state {
  lua_State *L;
  uv_loop_t *loop;
  pe_watchdog *watchdog;
  size_t heap_used, heap_cap; /* bytes; SIZE_MAX: no cap */
  size_t heap_mark;           /* more stops the running scope; SIZE_MAX: no mark */
  bool closing;               /* no new jobs: the loop will run for a second at most */
  const char *scripts;        /* borrowed: the folder that replaces the embedded scripts, or NULL */
} pe_state;

typedef struct pe_state_options {
  lua_CFunction open;  /* opens the libraries (pe_open) */
  const char *scripts; /* borrowed, may be NULL */
  size_t heap_cap;     /* 0: no cap */
} pe_state_options;

/* Gives a state in which `open` has run. */
pe_status pe_state_open(pe_state *s, const pe_state_options *options, pe_error *err);

/* Runs the loop until no handle or request is active. */
void pe_state_run(pe_state *s);

/* Closes every handle, then Lua, the watchdog and the loop. Returns false when a request does not
 * end within a second (a thread of libuv that reads from a pipe without a writer). That request and
 * all it uses are leaked, and the process must end with _Exit: exit() would wait for the thread. */
bool pe_state_close(pe_state *s);

static inline pe_state *pe_state_of(lua_State *L) { return *(pe_state **)lua_getextraspace(L); }

#endif
