/* l_string.h - the functions of `string` that would loop in C, in a form that a deadline can stop:
 * find, match, gmatch, gsub (l_pattern.h) and rep. They replace Lua's in the whole state, so
 * sandboxes and the methods of strings get them also. */
#ifndef PE_L_STRING_H
#define PE_L_STRING_H

#include <lauxlib.h>

void pe_string_install(lua_State *L); /* into the global `string` */

#endif
