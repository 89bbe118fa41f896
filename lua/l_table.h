/* l_table.h - the functions of `table` that loop in C, in a form that a deadline can stop. They
 * replace Lua's in the whole state. table.sort is not among them: it calls its comparison, and
 * sandboxes always give it one in Lua (hooks/sandbox.lua). */
#ifndef PE_L_TABLE_H
#define PE_L_TABLE_H

#include <lauxlib.h>

void pe_table_install(lua_State *L); /* into the global `table` */

#endif
