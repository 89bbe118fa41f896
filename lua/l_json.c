/* l_json.c - perigee.json: JSON without loss.
 *
 * Objects become tables that remember the order of their keys: obj.key reads and writes as usual,
 * pairs(obj) follows the order, a new key goes to the end, a key set to nil is removed. The order
 * is a list under a private key, so use pairs, not next. Arrays are plain sequences with a
 * metatable that marks them, which keeps [] and {} apart. null is the sentinel json.null (nil would
 * leave a hole). Integers stay integers. Integers beyond 64 bits become floats or, with the option
 * `digits`, values that keep their text: these can be written, compared for equality and shown,
 * nothing else.
 *
 * Writing is deterministic: ordered objects in their order, plain tables with string keys sorted,
 * sequences as arrays. An empty plain table is an object. */
#include <stdio.h>
#include <string.h>

#include "lua/bind.h"
#include "lua/l_bytes.h"
#include "lua/l_json.h"
#include "runtime/json_tape.h"

#define OBJECT "perigee.json.object"
#define ARRAY "perigee.json.array"
#define DIGITS "perigee.json.digits"

static const char order_key; /* its address is the private key of an object's list of keys */

/* ---- ordered objects ------------------------------------------------------------------------- */

static bool has_metatable(lua_State *L, int index, const char *name) {
  if (lua_type(L, index) != LUA_TTABLE || !lua_getmetatable(L, index)) return false;
  luaL_getmetatable(L, name);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same;
}

void pe_l_json_new_object(lua_State *L) {
  lua_newtable(L);
  lua_newtable(L);
  lua_rawsetp(L, -2, &order_key);
  luaL_setmetatable(L, OBJECT);
}

static void append_key(lua_State *L, int object, int key) {
  lua_rawgetp(L, object, &order_key);
  lua_pushvalue(L, key);
  lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  lua_pop(L, 1);
}

void pe_l_json_new_array(lua_State *L) {
  lua_newtable(L);
  luaL_setmetatable(L, ARRAY);
}

void pe_l_json_set(lua_State *L, int object, pe_str key) {
  lua_pushlstring(L, key.at, key.len); /* [value, key] */
  lua_pushvalue(L, -1);
  if (lua_rawget(L, object) == LUA_TNIL) append_key(L, object, lua_gettop(L) - 1);
  lua_pop(L, 1);
  lua_insert(L, -2);
  lua_rawset(L, object);
}

/* May the key at 2 still be in the list at 4, because its value was set to nil? A long list gets a
 * set of its keys, under the private key, so that an object built key by key takes linear time. */
static bool is_stale(lua_State *L, lua_Integer n) {
  enum { LONG = 16 };
  if (n < LONG) return true; /* perhaps; searching a short list is cheaper than a set */
  if (lua_rawgetp(L, 4, &order_key) == LUA_TNIL) {
    lua_createtable(L, 0, (int)n);
    for (lua_Integer i = 1; i <= n; i++) {
      lua_rawgeti(L, 4, i);
      lua_pushboolean(L, 1);
      lua_rawset(L, -3);
    }
    lua_pushvalue(L, -1);
    lua_rawsetp(L, 4, &order_key);
  }
  lua_replace(L, 5);
  lua_settop(L, 5);
  lua_pushvalue(L, 2);
  bool stale = lua_rawget(L, 5) != LUA_TNIL;
  lua_pushvalue(L, 2);
  lua_pushboolean(L, 1);
  lua_rawset(L, 5);
  return stale;
}

/* Removes the key at 2 from the list at 4; returns the new length. */
static lua_Integer remove_key(lua_State *L, lua_Integer n) {
  lua_Integer to = 1;
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, 4, i);
    bool same = lua_rawequal(L, -1, 2);
    if (same || to == i)
      lua_pop(L, 1);
    else
      lua_rawseti(L, 4, to);
    to += !same;
  }
  return to - 1;
}

/* [object, key, value]: called for absent keys only; a key that was removed before moves to the
 * end. */
static int object_newindex(lua_State *L) {
  luaL_argcheck(L, lua_type(L, 2) == LUA_TSTRING, 2, "keys of a JSON object must be strings");
  if (lua_isnil(L, 3)) return 0;
  lua_rawgetp(L, 1, &order_key);
  lua_Integer n = (lua_Integer)lua_rawlen(L, 4);
  if (is_stale(L, n)) n = remove_key(L, n);
  lua_pushvalue(L, 2);
  lua_rawseti(L, 4, n + 1);
  lua_settop(L, 3);
  lua_rawset(L, 1);
  return 0;
}

/* Iterator of pairs: upvalues are the list of keys and the place in it. */
static int object_next(lua_State *L) { /* [object, _] -> [key, value] or [nil] */
  lua_Integer i = lua_tointeger(L, lua_upvalueindex(2));
  for (;;) {
    if (lua_rawgeti(L, lua_upvalueindex(1), ++i) == LUA_TNIL) return 1;
    lua_pushvalue(L, -1);
    if (lua_rawget(L, 1) != LUA_TNIL) break;
    lua_pop(L, 2); /* the key has been removed */
  }
  lua_pushinteger(L, i);
  lua_replace(L, lua_upvalueindex(2));
  return 2;
}

static int object_pairs(lua_State *L) { /* [object] -> [next, object, nil] */
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_rawgetp(L, 1, &order_key);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, object_next, 2);
  lua_pushvalue(L, 1);
  lua_pushnil(L);
  return 3;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reading {
  pe_json r;
  bool digits; /* integers beyond 64 bits keep them */
  pe_error err;
  pe_status rc;
  pe_json_counter counter;
} reading;

static bool next_token(reading *d, pe_json_token *t) {
  d->rc = pe_json_next(&d->r, t, &d->err);
  if (!d->rc) d->rc = pe_json_count(&d->counter, &d->r, t, &d->err);
  return !d->rc;
}

/* Is a number that did not fit into 64 bits written as an integer? */
static bool is_digits(pe_str s) {
  for (size_t i = 0; i < s.len; i++)
    if (s.at[i] != '-' && (s.at[i] < '0' || s.at[i] > '9')) return false;
  return true;
}

void pe_l_json_push_float(lua_State *L, double number, pe_str text, bool digits) {
  if (!digits || !is_digits(text)) {
    lua_pushnumber(L, number);
    return;
  }
  pe_str *s = lua_newuserdatauv(L, sizeof *s + text.len, 0);
  s->at = (const char *)(s + 1);
  s->len = text.len;
  memcpy(s + 1, text.at, text.len);
  luaL_setmetatable(L, DIGITS);
}

/* [] -> [value], or [] and false with d->err set. */
static bool push_value(lua_State *L, reading *d, const pe_json_token *t) {
  pe_json_token inner;
  luaL_checkstack(L, 6, "JSON nesting");
  switch (t->type) {
  case PE_JSON_STRING: lua_pushlstring(L, t->str.at, t->str.len); return true;
  case PE_JSON_INT: lua_pushinteger(L, t->integer); return true;
  case PE_JSON_FLOAT: pe_l_json_push_float(L, t->number, t->str, d->digits); return true;
  case PE_JSON_TRUE: lua_pushboolean(L, 1); return true;
  case PE_JSON_FALSE: lua_pushboolean(L, 0); return true;
  case PE_JSON_NULL: lua_pushlightuserdata(L, NULL); return true;
  case PE_JSON_ARRAY:
    pe_l_json_new_array(L);
    for (lua_Integer i = 1; next_token(d, &inner); i++) {
      if (inner.type == PE_JSON_ARRAY_END) return true;
      if (!push_value(L, d, &inner)) return false;
      lua_rawseti(L, -2, i);
    }
    return false;
  default: break;
  }
  pe_l_json_new_object(L);
  int object = lua_gettop(L);
  while (next_token(d, &inner)) {
    if (inner.type == PE_JSON_OBJECT_END) return true;
    lua_pushlstring(L, inner.str.at, inner.str.len);
    lua_pushvalue(L, -1);
    if (lua_rawget(L, object) == LUA_TNIL)
      append_key(L, object, object + 1); /* the last of duplicate keys wins */
    lua_pop(L, 1);
    if (!next_token(d, &inner) || !push_value(L, d, &inner)) return false;
    lua_rawset(L, object);
  }
  return false;
}

/* [reading] -> [value] or []: called by lua_pcall, so that the reader is closed if Lua runs out of
 * memory. */
static int decode_body(lua_State *L) {
  reading *d = lua_touserdata(L, 1);
  pe_json_token t;
  if (!next_token(d, &t) || !push_value(L, d, &t)) return 0;
  return next_token(d, &t) ? 1 : 0; /* the end, or an error for text after the value */
}

static int decode(lua_State *L) { /* [text, options] -> [value] or [nil, err] */
  static const char *const keys[] = {"max_depth", "max_size", "max_values", "digits", NULL};
  size_t len;
  const char *text = luaL_checklstring(L, 1, &len);
  pe_bind_options(L, 2, keys);
  reading d = {.digits = pe_bind_boolean(L, 2, "digits", false)};
  size_t most = (size_t)pe_bind_integer(L, 2, "max_size", 0, PE_JSON_MAX_SIZE, PE_JSON_MAX_SIZE);
  if (len > most) {
    pe_fail(&d.err, PE_ELIMIT, "text of %zu bytes is too long: at most %zu", len, most);
    return pe_bind_error(L, &d.err);
  }
  d.counter.most = pe_bind_integer(L, 2, "max_values", 1, INT64_MAX, INT64_MAX);
  pe_json_open(&d.r, text, len,
               (int)pe_bind_integer(L, 2, "max_depth", 1, PE_L_JSON_DEPTH, PE_L_JSON_DEPTH));
  lua_pushcfunction(L, decode_body);
  lua_pushlightuserdata(L, &d);
  int rc = lua_pcall(L, 1, 1, 0);
  pe_json_close(&d.r);
  if (rc) return lua_error(L);
  return d.rc ? pe_bind_error(L, &d.err) : 1;
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct writing {
  pe_buf out;
  pe_error err;
  bool ascii, sort;
  int indent; /* -1: one line */
  pe_str comma, colon;
} writing;

static void put(lua_State *L, writing *w, const char *bytes, size_t n) {
  if (pe_buf_put(&w->out, bytes, n, &w->err)) pe_bind_raise(L, &w->err);
}

static void put_line(lua_State *L, writing *w, int depth) {
  if (w->indent < 0) return;
  put(L, w, "\n", 1);
  for (int i = 0; i < depth * w->indent; i++) put(L, w, " ", 1);
}

static void put_text(lua_State *L, writing *w, pe_str s) {
  if (pe_json_put_str(&w->out, s, w->ascii, &w->err)) pe_bind_raise(L, &w->err);
}

static void put_str(lua_State *L, writing *w, int index) {
  size_t n;
  const char *s = lua_tolstring(L, index, &n);
  put_text(L, w, pe_str_of(s, n));
}

static void put_value(lua_State *L, writing *w, int depth);

static void put_array(lua_State *L, writing *w, int depth) {
  int t = lua_gettop(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, t);
  put(L, w, "[", 1);
  for (lua_Integer i = 1; i <= n; i++) {
    if (i > 1) put(L, w, w->comma.at, w->comma.len);
    put_line(L, w, depth + 1);
    lua_rawgeti(L, t, i);
    put_value(L, w, depth + 1);
    lua_pop(L, 1);
  }
  if (n) put_line(L, w, depth);
  put(L, w, "]", 1);
}

static void sort_keys(lua_State *L) { /* [list] -> [list sorted] */
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_getfield(L, -1, "table");
  lua_getfield(L, -1, "sort");
  lua_pushvalue(L, -4);
  lua_call(L, 1, 0);
  lua_pop(L, 2);
}

/* [t] -> [t, list]: the keys in the order of writing. */
static void push_keys(lua_State *L, const writing *w) {
  int t = lua_gettop(L);
  lua_newtable(L);
  lua_Integer n = 0;
  bool ordered = lua_rawgetp(L, t, &order_key) == LUA_TTABLE;
  for (lua_Integer i = 1; ordered && lua_rawgeti(L, t + 2, i) != LUA_TNIL; i++)
    lua_rawseti(L, t + 1, ++n);
  lua_settop(L, t + 1);
  lua_pushnil(L);
  while (!ordered && lua_next(L, t)) {
    if (lua_type(L, -2) != LUA_TSTRING)
      luaL_error(L, "cannot encode a table with the key %s next to string keys or holes",
                 luaL_tolstring(L, -2, NULL));
    lua_pop(L, 1);
    lua_pushvalue(L, -1);
    lua_rawseti(L, t + 1, ++n);
  }
  lua_settop(L, t + 1);
  if (!ordered || w->sort) sort_keys(L);
}

static void put_object(lua_State *L, writing *w, int depth) {
  int t = lua_gettop(L);
  push_keys(L, w);
  bool some = false;
  put(L, w, "{", 1);
  for (lua_Integer i = 1; lua_rawgeti(L, t + 1, i) != LUA_TNIL; i++) {
    lua_pushvalue(L, -1);
    if (lua_rawget(L, t) != LUA_TNIL) {
      if (some) put(L, w, w->comma.at, w->comma.len);
      put_line(L, w, depth + 1);
      put_str(L, w, t + 2);
      put(L, w, w->colon.at, w->colon.len);
      put_value(L, w, depth + 1);
      some = true;
    }
    lua_settop(L, t + 1);
  }
  lua_settop(L, t);
  if (some) put_line(L, w, depth);
  put(L, w, "}", 1);
}

static bool is_array(lua_State *L, int index) {
  if (has_metatable(L, index, ARRAY)) return true;
  if (has_metatable(L, index, OBJECT)) return false;
  lua_Integer n = (lua_Integer)lua_rawlen(L, index), count = 0;
  if (!n) return false;
  index = lua_absindex(L, index);
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) count++;
  return count == n;
}

/* [value] -> [value]; raises for values that JSON does not have. */
static void put_value(lua_State *L, writing *w, int depth) {
  if (depth > PE_L_JSON_DEPTH)
    luaL_error(L, "cannot encode a table nested deeper than %d levels (a cycle?)", PE_L_JSON_DEPTH);
  luaL_checkstack(L, 8, "JSON nesting");
  char text[32];
  const pe_str *digits;
  const pe_bytes *bytes;
  switch (lua_type(L, -1)) {
  case LUA_TNIL: put(L, w, "null", 4); return;
  case LUA_TBOOLEAN: lua_toboolean(L, -1) ? put(L, w, "true", 4) : put(L, w, "false", 5); return;
  case LUA_TSTRING: put_str(L, w, -1); return;
  case LUA_TNUMBER:
    if (lua_isinteger(L, -1)) {
      put(L, w, text, (size_t)snprintf(text, sizeof text, LUA_INTEGER_FMT, lua_tointeger(L, -1)));
    } else if (pe_json_put_double(&w->out, lua_tonumber(L, -1), &w->err)) {
      pe_bind_raise(L, &w->err);
    }
    return;
  case LUA_TTABLE: is_array(L, -1) ? put_array(L, w, depth) : put_object(L, w, depth); return;
  default:
    if (lua_islightuserdata(L, -1) && !lua_touserdata(L, -1))
      put(L, w, "null", 4);
    else if ((digits = luaL_testudata(L, -1, DIGITS)))
      put(L, w, digits->at, digits->len);
    else if ((bytes = pe_bytes_test(L, -1)))
      put_text(L, w, pe_bytes_str(bytes));
    else
      luaL_error(L, "cannot encode a %s as JSON", luaL_typename(L, -1));
  }
}

static int encode_body(lua_State *L) { /* [writing, value] -> [text] */
  writing *w = lua_touserdata(L, 1);
  put_value(L, w, 0);
  lua_pushlstring(L, w->out.data ? w->out.data : "", w->out.len);
  return 1;
}

static int encode(lua_State *L) { /* [value, options] -> [text] */
  static const char *const keys[] = {"indent",         "ascii",         "sort_keys", "compact",
                                     "item_separator", "key_separator", NULL};
  luaL_checkany(L, 1);
  lua_settop(L, 2);
  pe_bind_options(L, 2, keys);
  writing w = {.indent = (int)pe_bind_integer(L, 2, "indent", 0, 64, -1),
               .ascii = pe_bind_boolean(L, 2, "ascii", false),
               .sort = pe_bind_boolean(L, 2, "sort_keys", false)};
  bool compact = pe_bind_boolean(L, 2, "compact", false);
  w.comma.at = pe_bind_string(L, 2, "item_separator", &w.comma.len, NULL);
  w.colon.at = pe_bind_string(L, 2, "key_separator", &w.colon.len, NULL);
  if (!w.comma.at) w.comma = pe_str_c(compact || w.indent >= 0 ? "," : ", ");
  if (!w.colon.at) w.colon = pe_str_c(compact ? ":" : ": ");
  lua_pushcfunction(L, encode_body);
  lua_pushlightuserdata(L, &w);
  lua_pushvalue(L, 1);
  int rc = lua_pcall(L, 2, 1, 0);
  pe_buf_free(&w.out);
  return rc ? lua_error(L) : 1;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static int array(lua_State *L) { /* [list] -> [list marked as an array] */
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  luaL_setmetatable(L, ARRAY);
  return 1;
}

static int object(lua_State *L) { /* [list of {key, value} pairs] -> [object] */
  lua_settop(L, 1);
  pe_l_json_new_object(L);
  if (lua_isnil(L, 1)) return 1;
  luaL_checktype(L, 1, LUA_TTABLE);
  for (lua_Integer i = 1; lua_rawgeti(L, 1, i) == LUA_TTABLE; i++) {
    lua_rawgeti(L, 3, 1);
    luaL_argcheck(L, lua_type(L, -1) == LUA_TSTRING, 1, "a list of {key, value} pairs expected");
    lua_rawgeti(L, 3, 2);
    lua_settable(L, 2);
    lua_settop(L, 2);
  }
  luaL_argcheck(L, lua_isnil(L, 3), 1, "a list of {key, value} pairs expected");
  lua_settop(L, 2);
  return 1;
}

static int l_is_array(lua_State *L) { /* [value] -> [boolean] */
  luaL_checkany(L, 1);
  lua_pushboolean(L, lua_istable(L, 1) && is_array(L, 1));
  return 1;
}

static int l_is_object(lua_State *L) { /* [value] -> [boolean] */
  luaL_checkany(L, 1);
  lua_pushboolean(L, lua_istable(L, 1) && !is_array(L, 1));
  return 1;
}

static int l_digits(lua_State *L) { /* [value] -> [text or nil] */
  luaL_checkany(L, 1);
  const pe_str *s = luaL_testudata(L, 1, DIGITS);
  if (s)
    lua_pushlstring(L, s->at, s->len);
  else
    lua_pushnil(L);
  return 1;
}

static int digits_eq(lua_State *L) { /* [a, b] -> [boolean] */
  const pe_str *a = luaL_testudata(L, 1, DIGITS), *b = luaL_testudata(L, 2, DIGITS);
  lua_pushboolean(L, a && b && a->len == b->len && !memcmp(a->at, b->at, a->len));
  return 1;
}

int pe_open_json(lua_State *L) {
  static const luaL_Reg functions[] = {{"decode", decode},       {"encode", encode},
                                       {"array", array},         {"object", object},
                                       {"is_array", l_is_array}, {"is_object", l_is_object},
                                       {"digits", l_digits},     {NULL, NULL}};
  static const luaL_Reg object_meta[] = {
      {"__newindex", object_newindex}, {"__pairs", object_pairs}, {NULL, NULL}};
  static const luaL_Reg digits_meta[] = {
      {"__tostring", l_digits}, {"__eq", digits_eq}, {NULL, NULL}};
  luaL_newmetatable(L, OBJECT);
  luaL_setfuncs(L, object_meta, 0);
  luaL_newmetatable(L, ARRAY);
  luaL_newmetatable(L, DIGITS);
  luaL_setfuncs(L, digits_meta, 0);
  lua_pop(L, 3);
  luaL_newlib(L, functions);
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "null");
  pe_l_json_open_read(L);
  return 1;
}
