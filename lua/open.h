/* open.h - everything a script can require from C. */
#ifndef PE_OPEN_H
#define PE_OPEN_H

#include <lua.h>

/* [] -> []: opens the standard library (changed where noted in open.c), luv ("luv", "uv"), cjson
 * and perigee. A lua_CFunction; may raise. */
int pe_open(lua_State *L);

int pe_open_host(lua_State *L); /* [] -> [perigee], the table that holds the nouns */

#endif
