/* job.h - C work on libuv's threads; a Lua callback gets the result on the loop.
 *
 *   int callback = pe_job_callback(L, 4);   may raise, so it comes first
 *   thing *data = …;                        nothing raises from here on
 *   if (pe_job_start(L, callback, &kind, data, &err)) return pe_bind_error(L, &err);
 *
 * `run` must not use Lua. It may touch only its data, which owns copies of or references to all it
 * needs, because the script may close everything else meanwhile. `push` and the callback run on the
 * loop thread through pe_call; then the data is freed. The loop does not end while a job runs. */
#ifndef PE_JOB_H
#define PE_JOB_H

#include <lua.h>

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

/* Takes the callback and the data, also when it fails. Does not raise. */
pe_status pe_job_start(lua_State *L, int callback, const pe_job_kind *kind, void *data,
                       pe_error *err);

#endif
