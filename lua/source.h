/* source.h - scripts by name: embedded in the program, or files of the folder that replaces them.
 *
 * Names are paths below scripts/ ("cmd/run.lua"). With --scripts DIR all of them come from that
 * folder and no embedded script is found. Chunks must be text: a crafted precompiled chunk can
 * crash the Lua VM. */
#ifndef PE_SOURCE_H
#define PE_SOURCE_H

#include <lua.h>
#include <stdbool.h>

/* [] -> [text] and true, or [] and false when there is no such script. May raise. */
bool pe_source_push(lua_State *L, const char *name);

/* [] -> [names]: all scripts, sorted when they are the embedded ones. May raise. */
void pe_source_push_names(lua_State *L);

/* Sets package.searchers: preload, the scripts, package.path. C libraries cannot be loaded. */
void pe_source_open(lua_State *L);

/* Replaces load, loadfile and dofile by versions that refuse precompiled chunks. */
void pe_source_open_load(lua_State *L);

#endif
