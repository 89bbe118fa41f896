/* progress.h - a function of Lua that hears how far long work is: the option `progress` of what
 * packs weights when it is opened.
 *
 * It is called with the bytes that are done and their total, by the thread that opens (the loop
 * thread), and cannot yield. One that raises is reported and not called again; the work goes on. */
#ifndef PE_LUA_PROGRESS_H
#define PE_LUA_PROGRESS_H

#include <lua.h>

#include "runtime/base.h"

typedef struct pe_bind_listener {
  pe_progress progress;
  lua_State *L;
  int at; /* of the function on the stack; 0: it has failed */
} pe_bind_listener;

/* [] -> [function], for as long as the result is used, or [] and NULL if the options at arg have
 * none. Raises if it is something else. borrows `out` */
const pe_progress *pe_bind_progress(lua_State *L, int arg, pe_bind_listener *out);

#endif
