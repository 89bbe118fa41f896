/* l_json.h - how perigee.json's values look, for the two files that build them: l_json.c from a
 * short text in one call, l_json_read.c from a long one that a job has read. All may raise. */
#ifndef PE_L_JSON_H
#define PE_L_JSON_H

#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>

#include "runtime/base.h"

/* Writing values recurses in C, so values must not be nested deeper. Lua's own limit
 * (LUAI_MAXCCALLS) is also 200. */
enum { PE_L_JSON_DEPTH = 200 };

void pe_l_json_new_object(lua_State *L); /* [] -> [object] */
void pe_l_json_new_array(lua_State *L);  /* [] -> [array] */

/* [value] -> []: object[key] = value. The last of equal keys wins. */
void pe_l_json_set(lua_State *L, int object, pe_str key);

/* [] -> [number]; with `digits` an integer beyond 64 bits is a value that keeps its text. */
void pe_l_json_push_float(lua_State *L, double number, pe_str text, bool digits);

void pe_l_json_open_read(lua_State *L); /* [json] -> [json]: adds json.read */

#endif
