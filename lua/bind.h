/* bind.h - how C nouns become Lua values: classes, errors, option tables.
 *
 * A class is a static description (pe_class) that pe_bind_class turns into a metatable once per Lua
 * state. An object is a userdata whose payload is the noun's own struct:
 *
 *   thing *t = pe_bind_new(L, &thing_class, sizeof *t, 0);   pushed, zeroed, not open yet
 *   if (pe_thing_load(&t->x, path, &err)) return pe_bind_error(L, &err);
 *   pe_bind_opened(L, t, bytes);                             open: it will be closed once
 *   return 1;
 *
 * The collector owns the payload from the first line on, so no path leaks, even if a Lua function
 * raises in between. close, __close and __gc are one function; it calls the class's close once, and
 * only on an object that was opened. Methods get their self from pe_bind_check, which refuses a
 * closed object.
 *
 * Errors. The environment failed (a missing or broken file): `return pe_bind_error(L, &err)`, which
 * returns nil and a perigee.Error. The program is wrong (a bad argument, a closed object): raise,
 * with luaL_argerror or pe_bind_raise. All functions here may raise unless noted.
 *
 * Memory. The collector cannot see what an object owns outside Lua's heap. pe_bind_opened reports
 * these bytes, and the collector is stepped as if Lua had allocated them. perigee.live() lists open
 * objects and their bytes; tests use it to find leaks.
 *
 * Loop thread only. */
#ifndef PE_BIND_H
#define PE_BIND_H

#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base.h"

/* ---- classes --------------------------------------------------------------------------------- */

/* All lists end with {NULL, NULL} and may be NULL. */
typedef struct pe_class {
  const char *name;        /* "perigee.Tensor": used in messages, and the key of the metatable */
  const luaL_Reg *methods; /* `close` is added */
  const luaL_Reg *fields;  /* getters: t.shape calls shape(t) */
  const luaL_Reg *meta; /* __add, __len, __tostring …; __gc, __close, __index, __name are added */
  lua_CFunction index;  /* [self, key] -> [value] for other keys; may be NULL */
  void (*close)(void *self);
} pe_class;

/* For a list METHODS(X) of names: the declarations of l_NAME, and the entries of a luaL_Reg. */
#define PE_BIND_DECLARE(n) static int l_##n(lua_State *L);
#define PE_BIND_ENTRY(n) {#n, l_##n},

/* Creates the metatable, if it does not exist yet. */
void pe_bind_class(lua_State *L, const pe_class *class_);

/* [] -> [object]: zeroed and not open. Returns its payload, aligned to 8 bytes. */
void *pe_bind_new(lua_State *L, const pe_class *class_, size_t size, int user_values);

/* The object is complete and owns `bytes` outside Lua's heap. Does not raise. */
void pe_bind_opened(lua_State *L, void *self, uint64_t bytes);

/* The open object now owns `bytes` outside Lua's heap. Does not raise. */
void pe_bind_resized(lua_State *L, void *self, uint64_t bytes);

/* The payload of an open object of this class; pe_bind_check raises if it is not one, pe_bind_test
 * returns NULL. */
void *pe_bind_check(lua_State *L, int arg, const pe_class *class_);
void *pe_bind_test(lua_State *L, int arg, const pe_class *class_);

/* [] -> [slot]: zeroed memory for a value of C while it becomes tables, which may raise. The
 * collector calls `release` with the slot at 1. `name` must be unique. */
void *pe_bind_slot(lua_State *L, size_t size, const char *name, lua_CFunction release);

/* Steps the collector for bytes outside Lua's heap that belong to no object (a scratch buffer). */
void pe_bind_account(lua_State *L, uint64_t bytes);

/* [] -> [table]: class name -> number of open objects, if any. Returns the bytes of all of them. */
uint64_t pe_bind_push_live(lua_State *L);

/* [] -> [table]: class name -> { methods = {name, …}, fields = {…}, meta = {…} }. */
void pe_bind_push_classes(lua_State *L);

/* ---- errors ---------------------------------------------------------------------------------- */

/* [] -> [err]: a perigee.Error, a table with code, message and field (the argument that is wrong,
 * such as "top_p"; NULL: none). It prints and concatenates as its message. */
void pe_bind_push_error(lua_State *L, const char *code, const char *field, const char *message);

int pe_bind_error(lua_State *L, const pe_error *err); /* [] -> [nil, err]; returns 2 */
/* Raises the text of err, with the position of the script. */
int pe_bind_raise(lua_State *L, const pe_error *err);

/* ---- option tables --------------------------------------------------------------------------- */

/* The argument must be a table whose keys are all in `keys` (NULL-terminated), or nil or none: then
 * every reader below returns its default. Raises for an unknown key, and suggests the nearest known
 * one. */
void pe_bind_options(lua_State *L, int arg, const char *const *keys);

/* [] -> [value] and true, or [] and false when the key is absent. Calls no metamethods. */
bool pe_bind_option(lua_State *L, int arg, const char *key);

/* Read one key. A wrong type or range raises "option 'key': integer expected, got string". */
int64_t pe_bind_integer(lua_State *L, int arg, const char *key, int64_t min, int64_t max,
                        int64_t absent);
double pe_bind_number(lua_State *L, int arg, const char *key, double absent);
bool pe_bind_boolean(lua_State *L, int arg, const char *key, bool absent);
/* Borrowed: valid while the table holds it. `len` may be NULL. */
const char *pe_bind_string(lua_State *L, int arg, const char *key, size_t *len, const char *absent);
/* The index of the string in names (NULL-terminated), or `absent`. */
int pe_bind_choice(lua_State *L, int arg, const char *key, const char *const *names, int absent);

#endif
