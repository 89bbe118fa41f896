/* job.h - C work on libuv's threads, with a Lua function that gets the result on the loop.
 *
 *   int callback = pe_job_callback(L, 4);                    may raise, so it comes first
 *   thing *data = …;                                         nothing raises from here on
 *   if (pe_job_start(L, callback, &kind, data, &err)) return pe_bind_error(L, &err);
 *
 * `run` has no Lua and may touch nothing but its data, which owns copies of, or references to, all it needs: whatever the
 * script closes meanwhile, and also the whole state, may go. `push` and the callback run on the loop thread through the
 * guarded door (call.h). Then the data is freed, whatever happened. The loop waits for jobs; scripts never see the queue. */
#ifndef PE_JOB_H
#define PE_JOB_H

#include <lua.h>

#include "runtime/base.h"

typedef struct pe_job_kind {
  void (*run)(void *data);
  int (*push)(lua_State *L,
              void *data); /* [] -> [..., arguments of the callback]; returns how many; may raise */
  void (*free)(void *data);
} pe_job_kind;

/* The function at arg, kept for pe_job_start; raises when it is none, or while the state is being closed. */
int pe_job_callback(lua_State *L, int arg);
/* Takes the callback and the data, also when it fails. Does not raise. */
pe_status pe_job_start(lua_State *L, int callback, const pe_job_kind *kind, void *data,
                       pe_error *err);

#endif
