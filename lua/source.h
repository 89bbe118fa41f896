/* source.h - scripts by name: embedded in the program, or files of the folder that replaces them.
 *
 * Names are paths below scripts/ ("cmd/run.lua"). With --scripts DIR the folder stands for all of them:
 * nothing embedded is found any more. Chunks are text only; a precompiled chunk can break the machine that
 * runs it. */
#ifndef PE_SOURCE_H
#define PE_SOURCE_H

#include <lua.h>

/* [] -> [text] and 1, or [] and 0 when there is no such script. May raise. */
int pe_source_push(lua_State *L, const char *name);

/* [] -> [names]: a sorted list of all scripts. May raise. */
void pe_source_push_names(lua_State *L);

/* Sets package.searchers: preload, the scripts, package.path. Nothing is loaded from C libraries. */
void pe_source_open(lua_State *L);

/* load, loadfile and dofile that refuse precompiled chunks. */
void pe_source_open_load(lua_State *L);

#endif
