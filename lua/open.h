/* open.h - everything a script can require from C. */
#ifndef PE_OPEN_H
#define PE_OPEN_H

#include <lua.h>

/* Opens the standard library as scripts may have it, luv ("luv", "uv"), cjson, and perigee. May raise. */
void pe_open(lua_State *L);

int pe_open_host(lua_State *L); /* [] -> [perigee], the table that the nouns go into */

#endif
