/* job.h - C work on libuv's threads; a Lua callback gets the result on the loop.
 *
 *   int callback = pe_job_callback(L, 4);   may raise, so it comes first
 *   thing *data = …;                        nothing raises from here on; NULL: out of memory
 *   return pe_job_start(L, callback, &kind, data);
 *
 * `run` must not use Lua. It may touch only its data, which owns copies of or references to all it
 * needs, because the script may close everything else meanwhile. `push` and the callback run on the
 * loop thread through pe_call; then the data is freed. The loop does not end while a job runs.
 *
 * A script stops a job by a perigee.Stop that it gave along (the option "stop"): the data retains
 * its flag, and `run` looks at it now and then and ends with PE_ECANCEL. */
#ifndef PE_JOB_H
#define PE_JOB_H

#include <lua.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/base.h"

typedef struct pe_job_kind {
  void (*run)(void *data);
  /* [] -> [arguments of the callback]; returns their number; may raise. */
  int (*push)(lua_State *L, void *data);
  void (*free)(void *data);
} pe_job_kind;

/* References the function at arg for pe_job_start. Raises if it is not a function, or if the state
 * is being closed. */
int pe_job_callback(lua_State *L, int arg);

/* [] -> [true] or [nil, err]; data NULL: out of memory. Takes the callback and the data, also when
 * it fails. */
int pe_job_start(lua_State *L, int callback, const pe_job_kind *kind, void *data);

/* ---- stopping -------------------------------------------------------------------------------- */

typedef struct pe_stop {
  atomic_bool set;
  atomic_int refs;
} pe_stop;

/* The perigee.Stop that is option `key` of the table at arg, not retained; NULL: none. Raises. */
pe_stop *pe_stop_option(lua_State *L, int arg, const char *key);

/* Any thread; NULL is fine. */
pe_stop *pe_stop_retain(pe_stop *s);
void pe_stop_release(pe_stop *s);

#endif
