/* watchdog.h - stops Lua code that runs too long, takes too much memory or is interrupted.
 *
 * A thread sleeps until a deadline passes. Then it calls lua_sethook on the running Lua state, with
 * a hook that raises before every instruction. Before the deadline it does nothing, so code under a
 * deadline runs at full speed. A hook on one state does not fire in another, so call.c publishes
 * the running state whenever it changes (pe_call, coroutine.resume, wrap, close).
 *
 * Limits are scopes, and scopes nest:
 *
 *   A: 50 ms
 *     B: 10 ms, interruptible     the earlier deadline holds: C has at most 10 ms
 *       C: no limits              an interrupt in C unwinds to B, the nearest interruptible scope
 *
 * A stopped scope stays stopped until it is left: every instruction raises again, so pcall cannot
 * swallow the error. Three things cannot be stopped, because Lua disables hooks or does not return
 * to its loop: a finalizer written in Lua (scripts of a site cannot have one), a debug hook, a call
 * into C. Those that could be long ask pe_watchdog_stopped now and then (l_pattern.h, l_table.h).
 *
 * Time is the CPU time of the loop thread: waiting, or a busy machine, does not use up a deadline.
 *
 * Threads. All functions are for the loop thread. One mutex guards everything that both threads
 * use. The watchdog thread holds it while it sets the hook, so the state cannot be left, closed or
 * collected meanwhile. lua_sethook walks the list of calls of the running state and the collector
 * may free its entries, so the allocator calls pe_watchdog_settle before it moves or frees memory.
 * The first deadline or interruptible scope starts the thread. */
#ifndef PE_WATCHDOG_H
#define PE_WATCHDOG_H

#include <lua.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base.h"

/* Why a scope was stopped. */
typedef enum pe_cause {
  PE_CAUSE_NONE,
  PE_CAUSE_DEADLINE,
  PE_CAUSE_INTERRUPT,
  PE_CAUSE_MEMORY
} pe_cause;

typedef struct pe_watchdog pe_watchdog;

/* Saves the surrounding scope; lives on the C stack of the call. */
typedef struct pe_scope {
  int64_t deadline;
  lua_State *running;
  pe_cause cause;
  bool fired, interruptible;
  bool listens; /* the new scope itself is interruptible */
} pe_scope;

pe_watchdog *pe_watchdog_open(void);    /* gives; NULL: out of memory */
void pe_watchdog_close(pe_watchdog *w); /* takes; ends the thread; NULL is fine */

/* Enters a scope on L that ends cpu_ns from now (0: no new deadline). Returns false when the thread
 * cannot be started. */
bool pe_watchdog_enter(pe_watchdog *w, pe_scope *scope, lua_State *L, int64_t cpu_ns,
                       bool interruptible);

/* Leaves it. Returns the cause if Lua code was stopped in it. The surrounding scope goes on, unless
 * its own deadline has passed. */
pe_cause pe_watchdog_leave(pe_watchdog *w, pe_scope *scope, lua_State *L);

/* Publishes L as the running state (NULL: none). Returns the previous one; *cause: why the current
 * scope has been stopped, or PE_CAUSE_NONE. */
lua_State *pe_watchdog_publish(pe_watchdog *w, lua_State *L, pe_cause *cause);

/* Stops the current scope now, from inside the allocator, if nothing else has stopped it. */
void pe_watchdog_stop(pe_watchdog *w, pe_cause cause);

/* Is the running state at least `calls` deep? Takes a few nanoseconds per call. */
bool pe_watchdog_is_deep(pe_watchdog *w, int calls);

bool pe_watchdog_stopped(pe_watchdog *w); /* has the current scope been stopped? */

/* Raises in L, and at every later instruction, because pe_watchdog_publish returned a cause. */
int pe_watchdog_raise(pe_watchdog *w, lua_State *L);

const char *pe_watchdog_text(pe_cause cause); /* for people */

/* [] -> [traceback] of L from a level on. Of a deep stack only the first calls: Lua's own looks for
 * the last ones, call by call, which takes 300 ms of a stack that overflows. */
void pe_traceback(lua_State *L, int level);

/* [] -> [traceback or nil] of the place where Lua was last stopped. */
void pe_watchdog_push_trace(lua_State *L);

/* Waits while the hook is being set; otherwise costs one relaxed load. */
void pe_watchdog_settle(pe_watchdog *w);

/* CPU time of the loop thread. */
int64_t pe_watchdog_cpu_ns(const pe_watchdog *w);

#endif
