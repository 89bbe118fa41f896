/* bind.h - how C nouns become Lua values: classes, errors, option tables, bytes the collector cannot see.
 *
 * A class is a static description (pe_class) that pe_bind_class turns into a metatable once per Lua state. An
 * object is a userdata whose payload is the noun's own struct. Life of an object:
 *
 *   thing *t = pe_bind_new(L, &thing_class, sizeof *t, 0);   pushed, zeroed, not yet open: __gc does nothing
 *   if (pe_thing_load(&t->x, path, &err)) return pe_bind_error(L, &err);
 *   pe_bind_opened(L, t, bytes);                             from here on it is alive and will be closed once
 *   return 1;
 *
 * so nothing can leak on any path, and nothing raw is held across a call that may raise. close, __close and
 * __gc are one function: it calls the class's close exactly once, and only on an object that was opened.
 * Every method gets its self through pe_bind_check, which refuses a closed object with a sentence.
 *
 * Failures take two roads. The world failed (a missing file, a broken one): `return pe_bind_error(L, &err)`
 * gives `nil, err` with err.code, err.text and a __tostring. The program is wrong (a bad argument, a closed
 * object): raise, with luaL_argerror or pe_bind_raise. Everything named pe_bind_* here may raise unless it
 * says otherwise.
 *
 * Bytes: an object that owns memory outside Lua's heap says so in pe_bind_opened; the collector is stepped as
 * if it had allocated them. perigee.live() shows the objects that are open and their bytes; tests use it to
 * prove that nothing leaked.
 *
 * Threads: the loop thread only, as everything that touches a lua_State. */
#ifndef PE_BIND_H
#define PE_BIND_H

#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base.h"

/* ---- classes ------------------------------------------------------------------------------------------- */

/* All lists end with {NULL, NULL} and may be NULL. */
typedef struct pe_class {
  const char *name;        /* "perigee.Tensor": shows in messages and is the key of the metatable */
  const luaL_Reg *methods; /* `close` is added */
  const luaL_Reg *fields;  /* getters: t.shape calls shape(t) */
  const luaL_Reg *meta; /* __add, __len, __tostring ...; __gc, __close, __index, __name are added */
  lua_CFunction
      index; /* [self, key] -> [value] of keys that are neither method nor field; may be NULL */
  void (*close)(void *self);
} pe_class;

/* A list METHODS(X) of names as declarations, and as entries of a list of methods: encode is l_encode. */
#define PE_BIND_DECLARE(n) static int l_##n(lua_State *L);
#define PE_BIND_ENTRY(n) {#n, l_##n},

/* Makes the metatable; harmless when it is there already. */
void pe_bind_class(lua_State *L, const pe_class *class_);

/* Pushes a new, zeroed, not yet open object with so many user values; returns its payload, aligned to 8. */
void *pe_bind_new(lua_State *L, const pe_class *class_, size_t size, int user_values);

/* The object is complete: counts as alive and owns `bytes` outside Lua's heap. Does not raise. */
void pe_bind_opened(lua_State *L, void *self, uint64_t bytes);

/* Tells that an open object now owns so many bytes. Does not raise. */
void pe_bind_resized(lua_State *L, void *self, uint64_t bytes);

void *pe_bind_check(lua_State *L, int arg,
                    const pe_class *class_); /* an open object of this class, or raises */
void *pe_bind_test(lua_State *L, int arg,
                   const pe_class *class_); /* the same or NULL; does not raise */

/* Steps the collector for bytes that it cannot see and that belong to no object (a scratch buffer). */
void pe_bind_account(lua_State *L, uint64_t bytes);

/* [] -> [table]: class name -> how many are open (only those above zero). Returns all their bytes. */
uint64_t pe_bind_push_live(lua_State *L);

/* [] -> [table]: class name -> { methods = {name, ...}, fields = {...}, meta = {...} }, in no order. */
void pe_bind_push_classes(lua_State *L);

/* ---- errors -------------------------------------------------------------------------------------------- */

/* [] -> [err]: a perigee.Error, a table with code, message and, where a field of the caller is to blame, field (NULL: none).
 * It prints and concatenates as its message. */
void pe_bind_push_error(lua_State *L, const char *code, const char *field, const char *message);

int pe_bind_error(lua_State *L, const pe_error *err); /* [] -> [nil, err]; returns 2 */
int pe_bind_raise(lua_State *L,
                  const pe_error *err); /* raises err's text with the script's position */
int pe_bind_argerror(lua_State *L, int arg,
                     const pe_error *err); /* raises "bad argument #arg to 'f' (text)" */

/* ---- option tables ------------------------------------------------------------------------------------- */

/* The argument is a table whose keys are all in `keys` (NULL-terminated), or absent (nil, none): then every
 * reader below gives its default. Raises naming the key it does not know and the nearest one it does. */
void pe_bind_options(lua_State *L, int arg, const char *const *keys);

/* [] -> [value] and true, or [] and false when the key is absent. No metamethods are called. */
bool pe_bind_option(lua_State *L, int arg, const char *key);

/* Readers of one key; the wrong type or range raises "option 'key': integer expected, got string". */
int64_t pe_bind_integer(lua_State *L, int arg, const char *key, int64_t min, int64_t max,
                        int64_t absent);
double pe_bind_number(lua_State *L, int arg, const char *key, double absent);
bool pe_bind_boolean(lua_State *L, int arg, const char *key, bool absent);
/* Borrowed from the table: valid while the table holds it. `len` may be NULL. */
const char *pe_bind_string(lua_State *L, int arg, const char *key, size_t *len, const char *absent);
/* The index of the string in names (NULL-terminated), or `absent`. */
int pe_bind_choice(lua_State *L, int arg, const char *key, const char *const *names, int absent);

#endif
