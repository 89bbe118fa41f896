/* call.h - the one guarded door into Lua.
 *
 * Every call from C into a script goes through pe_call: the main chunk, luv's callbacks, hooks and
 * policies. The call has a deadline in CPU time, a cap on the heap it may add, and a traceback.
 * Whatever the script does, pe_call returns and the Lua stack is balanced. Calls nest, and an inner
 * one can only narrow the limits.
 *
 * An error is a perigee.Error with code ("error", "deadline", "interrupt" or "memory"), message,
 * traceback and value (what the script raised, if that was not a string). If there is no memory
 * left for this table, the error is a plain string; pe_call_report prints both.
 *
 * Loop thread only. pe_call does not raise. */
#ifndef PE_CALL_H
#define PE_CALL_H

#include <lua.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero: no limit except those of the surrounding call. */
typedef struct pe_limits {
  int64_t deadline_ns; /* CPU time of the loop thread */
  size_t memory;       /* bytes that the call may add to the heap */
  bool interruptible;  /* SIGINT stops this call instead of the program */
} pe_limits;

/* [f, args...] -> [results...] and true, or [err] and false. `limits` may be NULL. */
bool pe_call(lua_State *L, int n_args, int n_results, const pe_limits *limits);

/* [err] -> []: "perigee: WHO: TEXT" and the traceback to stderr. Does not raise. */
void pe_call_report(lua_State *L, const char *who);

/* For luv_set_callback: reports errors in callbacks on stderr. */
int pe_call_from_luv(lua_State *L, int n_args, int n_results, int flags);

/* Replaces the library functions that would escape the limits: coroutine.resume, wrap and close
 * (ours publish the running coroutine to the watchdog) and xpcall (its handler could not be
 * stopped). */
void pe_call_open_library(lua_State *L);

#endif
