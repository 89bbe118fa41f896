/* watchdog.h - stops Lua that runs too long: a thread that sleeps until a deadline passes.
 *
 * What it does at the deadline is lua_sethook on the Lua state that is running, with a hook that raises
 * before every instruction; before the deadline it does nothing, so code under a deadline runs at full speed.
 * Which state is running is published by the door (call.c) and by our coroutine functions, because a hook on
 * one state does not fire in another.
 *
 * Limits are scopes. A scope narrows what surrounds it: the earlier deadline holds, an interrupt unwinds to
 * the nearest scope that asked for interrupts. Once a scope is stopped it stays stopped until it is left:
 * every instruction raises again, so pcall cannot swallow it. Not stoppable, since Lua switches hooks off or
 * never comes back to its loop: a finalizer written in Lua, a debug hook, one long call into C (a
 * backtracking string.find).
 *
 * Time is the CPU time of the loop thread: a machine under load, or a script that waits, is not late.
 *
 * Threads. All functions are for the loop thread. What both threads touch is behind one mutex, also while the
 * hook is being set, so that a state cannot be left, closed or collected meanwhile. lua_sethook walks the
 * running state's list of calls; the collector may free entries of it, so the allocator calls
 * pe_watchdog_settle before it moves or frees. The thread is started by the first deadline or interruptible
 * scope, and sleeps without a timeout when there is none. */
#ifndef PE_WATCHDOG_H
#define PE_WATCHDOG_H

#include <lua.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base.h"

typedef enum pe_cause { PE_CAUSE_NONE, PE_CAUSE_DEADLINE, PE_CAUSE_INTERRUPT } pe_cause;

typedef struct pe_watchdog pe_watchdog;

/* What a scope keeps of the one around it; lives on the C stack of the call. */
typedef struct pe_scope {
  int64_t deadline;
  lua_State *running;
  pe_cause stop;
  bool fired, interruptible; /* of the surrounding scope */
  bool mine;                 /* this scope asked for interrupts itself */
} pe_scope;

pe_watchdog *pe_watchdog_open(void);    /* gives; NULL: out of memory */
void pe_watchdog_close(pe_watchdog *w); /* takes; ends the thread; NULL is fine */

/* Enters a scope on L: at most cpu_ns from now (0: no deadline of its own). False when the thread cannot be
 * started. */
bool pe_watchdog_enter(pe_watchdog *w, pe_scope *scope, lua_State *L, int64_t cpu_ns,
                       bool interruptible);

/* Leaves it. Returns why it was stopped, if Lua code has been stopped; the surrounding scope goes on, or is
 * stopped as well when its own deadline has passed. */
pe_cause pe_watchdog_leave(pe_watchdog *w, pe_scope *scope, lua_State *L);

/* From now on `L` runs. Returns the state that ran before; *stop tells whether the scope has been stopped. */
lua_State *pe_watchdog_publish(pe_watchdog *w, lua_State *L, pe_cause *stop);

bool pe_watchdog_stopped(pe_watchdog *w); /* has the present scope been stopped? */

/* Raises in L because the scope was stopped (after pe_watchdog_publish said so), and keeps raising. */
int pe_watchdog_raise(pe_watchdog *w, lua_State *L);

/* [] -> [traceback or nil] of the place where the last stop struck first. */
void pe_watchdog_push_trace(lua_State *L);

/* Waits while the hook is being set; costs one relaxed load otherwise. */
void pe_watchdog_settle(pe_watchdog *w);

/* CPU time of the loop thread. */
int64_t pe_watchdog_cpu_ns(const pe_watchdog *w);

#endif
