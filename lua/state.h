/* state.h - the Lua state of the program and what belongs to it: the loop, the heap with its cap, the
 * watchdog.
 *
 * One thread, the loop thread, opens, uses and closes it. The loop is ours, luv borrows it; scripts get luv
 * without its threads, its work queue and the right to close the loop. The state is reachable from every Lua
 * thread of it through the extra space that Lua keeps in front of a lua_State.
 *
 * The heap: every byte of Lua's goes through one allocator that counts and refuses to grow past heap_cap,
 * which Lua turns into its "not enough memory" after a full collection. Tensors and other C memory are not in
 * it. */
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
  bool closing;               /* no more jobs: the loop does not run for long */
  const char *scripts;        /* borrowed: a folder that replaces the embedded scripts, or NULL */
} pe_state;

/* Gives a state with all libraries open. `scripts` is borrowed and may be NULL; heap_cap 0: no cap. */
pe_status pe_state_open(pe_state *s, const char *scripts, size_t heap_cap, pe_error *err);

/* Runs the loop until nothing is left to wait for. */
void pe_state_run(pe_state *s);

/* Closes every handle, then Lua, the watchdog and the loop. What the loop cannot end within a moment (a read
 * of a pipe that nobody writes to, on a thread of libuv's) is left, with all that it holds: then it returns
 * false, and the process should end without exit(), which would wait for that thread. */
bool pe_state_close(pe_state *s);

static inline pe_state *pe_state_of(lua_State *L) { return *(pe_state **)lua_getextraspace(L); }

#endif
