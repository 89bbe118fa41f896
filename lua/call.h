/* call.h - the one guarded door into Lua.
 *
 * Every call that C makes into a script goes through pe_call: the main chunk, luv's callbacks, hooks and
 * policies. The door has a deadline in CPU time, a cap on what the call may add to the scripts' heap, and a
 * traceback; whatever the script does, pe_call returns and the Lua stack is balanced. Doors nest: an inner
 * one can only narrow the limits.
 *
 * An error comes out as a perigee.Error: code ("error", "deadline", "interrupt", "memory"), text (one value
 * for people), traceback, and value (what the script raised, when it was no string). When memory is so short
 * that even this table cannot be made, it is a plain string; pe_call_report prints both.
 *
 * Loop thread only. pe_call does not raise. */
#ifndef PE_CALL_H
#define PE_CALL_H

#include <lua.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero means no limit beyond those of the surrounding call. */
typedef struct pe_limits {
  int64_t deadline_ns; /* CPU time of the loop thread */
  size_t memory;       /* bytes the call may add to the heap */
  bool interruptible;  /* SIGINT stops this call instead of the program */
} pe_limits;

/* [f, args...] -> [results...] and true, or [err] and false. `limits` may be NULL. */
bool pe_call(lua_State *L, int n_args, int n_results, const pe_limits *limits);

/* [err] -> []: "perigee: WHO: TEXT" and the traceback to stderr. Does not raise. */
void pe_call_report(lua_State *L, const char *who);

/* For luv_set_callback: errors in callbacks are reported and end there. */
int pe_call_from_luv(lua_State *L, int n_args, int n_results, int flags);

/* Replaces what Lua's library has but the door could not hold: coroutine.resume, wrap and close by ours,
 * which tell the watchdog who runs, and xpcall, whose handler would run unwatched. */
void pe_call_open_library(lua_State *L);

#endif
