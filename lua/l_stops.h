/* l_stops.h - perigee.stops: stop strings on text that Lua has, and how Lua writes them down. */
#ifndef PE_L_STOPS_H
#define PE_L_STOPS_H

#include <lua.h>

#include "runtime/base.h"

/* [] -> [list]: the stop strings of the value at `at`, a string or a list of strings. They are
 * borrowed from it. `at` is absolute. Raises for anything else. */
const pe_str *pe_l_stops_read(lua_State *L, int at, size_t *count);

#endif
