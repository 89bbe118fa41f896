/* bind.c - see bind.h. */
#include "lua/bind.h"

#include <string.h>

#if LUA_VERSION_NUM != 504
#error "perigee needs Lua 5.4"
#endif

/* A class in one Lua state: a userdata without a metatable, kept in the registry, so that it
 * outlives every finalizer. */
typedef struct class_entry {
  const pe_class *class_;
  int64_t live;
  uint64_t bytes;
} class_entry;

/* In front of every payload. */
typedef struct object {
  class_entry *entry;
  uint64_t bytes;
  bool open;
} object;

_Static_assert(sizeof(object) % 8 == 0, "payloads are 8-byte aligned");

static const char CLASSES = 0; /* registry key of the table: class name -> class_entry */
static const char *const ERROR_CLASS = "perigee.Error";

static object *object_of(void *self) { return (object *)self - 1; }

/* ---- classes --------------------------------------------------------------------------------- */

/* [] -> [classes] */
static void push_registry(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &CLASSES) == LUA_TTABLE) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &CLASSES);
}

static class_entry *entry_of(lua_State *L, const pe_class *class_) {
  push_registry(L);
  lua_getfield(L, -1, class_->name);
  class_entry *e = lua_touserdata(L, -1);
  lua_pop(L, 2);
  return e;
}

static int object_close(lua_State *L) {
  class_entry *e = lua_touserdata(L, lua_upvalueindex(1));
  object *o = luaL_testudata(L, 1, e->class_->name);
  if (!o) return luaL_typeerror(L, 1, e->class_->name);
  if (!o->open) return 0;
  o->open = false;
  e->live--;
  e->bytes -= o->bytes;
  o->bytes = 0;
  if (e->class_->close) e->class_->close(o + 1);
  return 0;
}

/* [self, key] -> [value]; upvalues: methods, fields, the class's index or nil. */
static int object_index(lua_State *L) {
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(2)) == LUA_TNIL) lua_pushvalue(L, lua_upvalueindex(3));
  if (lua_isnil(L, -1)) return 1;
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 2);
  lua_call(L, 2, 1);
  return 1;
}

static int object_tostring(lua_State *L) {
  const char *name = luaL_checkstring(L, lua_upvalueindex(1));
  object *o = luaL_testudata(L, 1, name);
  lua_pushfstring(L, "%s%s", name, o && o->open ? "" : " (closed)");
  return 1;
}

/* [] -> [table of functions] */
static void push_functions(lua_State *L, const luaL_Reg *list) {
  lua_newtable(L);
  if (list) luaL_setfuncs(L, list, 0);
}

void pe_bind_class(lua_State *L, const pe_class *class_) {
  luaL_checkstack(L, 10, class_->name);
  if (!luaL_newmetatable(L, class_->name)) { /* [mt] */
    lua_pop(L, 1);
    return;
  }
  push_registry(L);
  class_entry *e = lua_newuserdatauv(L, sizeof *e, 0); /* [mt, registry, entry] */
  *e = (class_entry){.class_ = class_};
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, class_->name);
  lua_pushcclosure(L, object_close, 1);
  lua_remove(L, -2); /* [mt, close] */
  lua_pushstring(L, class_->name);
  lua_pushcclosure(L, object_tostring, 1);
  lua_setfield(L, -3, "__tostring");
  if (class_->meta) {
    lua_pushvalue(L, -2);
    luaL_setfuncs(L, class_->meta, 0);
    lua_pop(L, 1);
  }
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "__gc");
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "__close");
  push_functions(L, class_->methods); /* [mt, close, methods] */
  lua_insert(L, -2);
  lua_setfield(L, -2, "close"); /* [mt, methods] */
  if (class_->fields || class_->index) {
    push_functions(L, class_->fields);
    if (class_->index)
      lua_pushcfunction(L, class_->index);
    else
      lua_pushnil(L);
    lua_pushcclosure(L, object_index, 3);
  }
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

void *pe_bind_new(lua_State *L, const pe_class *class_, size_t size, int user_values) {
  class_entry *e = entry_of(L, class_);
  if (!e) luaL_error(L, "class %s is not defined", class_->name);
  if (size > SIZE_MAX - sizeof(object)) luaL_error(L, "%s: object too large", class_->name);
  object *o = lua_newuserdatauv(L, sizeof *o + size, user_values);
  memset(o, 0, sizeof *o + size);
  o->entry = e;
  luaL_setmetatable(L, class_->name);
  return o + 1;
}

void pe_bind_opened(lua_State *L, void *self, uint64_t bytes) {
  object *o = object_of(self);
  if (!o->open) o->entry->live++;
  o->open = true;
  pe_bind_resized(L, self, bytes);
}

void pe_bind_resized(lua_State *L, void *self, uint64_t bytes) {
  object *o = object_of(self);
  uint64_t before = o->bytes;
  o->entry->bytes += bytes - before;
  o->bytes = bytes;
  if (bytes > before) pe_bind_account(L, bytes - before);
}

void *pe_bind_test(lua_State *L, int arg, const pe_class *class_) {
  object *o = luaL_testudata(L, arg, class_->name);
  return o && o->open ? o + 1 : NULL;
}

void *pe_bind_check(lua_State *L, int arg, const pe_class *class_) {
  object *o = luaL_testudata(L, arg, class_->name);
  if (!o) luaL_typeerror(L, arg, class_->name);
  if (!o->open) luaL_argerror(L, arg, lua_pushfstring(L, "%s is closed", class_->name));
  return o + 1;
}

/* A step is capped at the work for one megabyte, so that a large object does not cause a long
 * pause. */
void *pe_bind_slot(lua_State *L, size_t size, const char *name, lua_CFunction release) {
  void *slot = memset(lua_newuserdatauv(L, size, 0), 0, size);
  if (luaL_newmetatable(L, name)) {
    lua_pushcfunction(L, release);
    lua_setfield(L, -2, "__gc");
  }
  lua_setmetatable(L, -2);
  return slot;
}

void pe_bind_account(lua_State *L, uint64_t bytes) {
  uint64_t kb = bytes >> 10;
  if (kb) lua_gc(L, LUA_GCSTEP, kb > 1024 ? 1024 : (int)kb);
}

uint64_t pe_bind_push_live(lua_State *L) {
  uint64_t bytes = 0;
  lua_newtable(L);
  push_registry(L); /* [out, registry] */
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
    class_entry *e = lua_touserdata(L, -1);
    bytes += e->bytes;
    if (!e->live) continue;
    lua_pushinteger(L, e->live);
    lua_setfield(L, -5, e->class_->name);
  }
  lua_pop(L, 1);
  return bytes;
}

/* [table] -> [table]: table[key] = list of the names, and `extra`. */
static void set_names(lua_State *L, const char *key, const luaL_Reg *list, const char *extra) {
  lua_newtable(L);
  lua_Integer n = 0;
  for (; list && list->name; list++) {
    lua_pushstring(L, list->name);
    lua_rawseti(L, -2, ++n);
  }
  if (extra) {
    lua_pushstring(L, extra);
    lua_rawseti(L, -2, ++n);
  }
  lua_setfield(L, -2, key);
}

void pe_bind_push_classes(lua_State *L) {
  lua_newtable(L);
  push_registry(L); /* [out, registry] */
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
    const pe_class *c = ((class_entry *)lua_touserdata(L, -1))->class_;
    lua_createtable(L, 0, 3);
    set_names(L, "methods", c->methods, "close");
    set_names(L, "fields", c->fields, NULL);
    set_names(L, "meta", c->meta, NULL);
    lua_setfield(L, -5, c->name);
  }
  lua_pop(L, 1);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static int error_tostring(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_getfield(L, 1, "message");
  if (!lua_isstring(L, -1)) lua_pushstring(L, ERROR_CLASS);
  return 1;
}

static int error_concat(lua_State *L) {
  luaL_tolstring(L, 1, NULL);
  luaL_tolstring(L, 2, NULL);
  lua_concat(L, 2);
  return 1;
}

void pe_bind_push_error(lua_State *L, const char *code, const char *field, const char *message) {
  static const luaL_Reg meta[] = {
      {"__tostring", error_tostring}, {"__concat", error_concat}, {NULL, NULL}};
  luaL_checkstack(L, 4, "error");
  lua_createtable(L, 0, 3);
  lua_pushstring(L, code);
  lua_setfield(L, -2, "code");
  lua_pushstring(L, message);
  lua_setfield(L, -2, "message");
  if (field) {
    lua_pushstring(L, field);
    lua_setfield(L, -2, "field");
  }
  if (luaL_newmetatable(L, ERROR_CLASS)) luaL_setfuncs(L, meta, 0);
  lua_setmetatable(L, -2);
}

int pe_bind_error(lua_State *L, const pe_error *err) {
  lua_pushnil(L);
  pe_bind_push_error(L, pe_status_name(err->code), err->field, err->text);
  return 2;
}

int pe_bind_raise(lua_State *L, const pe_error *err) { return luaL_error(L, "%s", err->text); }

/* ---- option tables --------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Edit distance of words of up to 31 characters; longer ones match nothing. */
static size_t distance(const char *a, const char *b) {
  size_t n = strlen(a), m = strlen(b), row[32];
  if (n > 31 || m > 31) return SIZE_MAX;
  for (size_t j = 0; j <= m; j++) row[j] = j;
  for (size_t i = 1; i <= n; i++) {
    size_t corner = row[0];
    row[0] = i;
    for (size_t j = 1; j <= m; j++) {
      size_t change = corner + (a[i - 1] != b[j - 1]);
      corner = row[j];
      row[j] = least(change, least(row[j], row[j - 1]) + 1);
    }
  }
  return row[m];
}

static int unknown_option(lua_State *L, int arg, const char *key, const char *const *keys) {
  const char *nearest = NULL;
  size_t best = strlen(key) / 2 + 1;
  for (; *keys; keys++) {
    size_t d = distance(key, *keys);
    if (d < best) {
      best = d;
      nearest = *keys;
    }
  }
  const char *text =
      nearest ? lua_pushfstring(L, "unknown option '%s', did you mean '%s'?", key, nearest)
              : lua_pushfstring(L, "unknown option '%s'", key);
  return luaL_argerror(L, arg, text);
}

void pe_bind_options(lua_State *L, int arg, const char *const *keys) {
  if (lua_isnoneornil(L, arg)) return;
  luaL_checktype(L, arg, LUA_TTABLE);
  luaL_checkstack(L, 4, "options");
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING)
      luaL_argerror(
          L, arg, lua_pushfstring(L, "option names must be strings, got %s", luaL_typename(L, -2)));
    const char *key = lua_tostring(L, -2);
    const char *const *known = keys;
    while (*known && strcmp(*known, key)) known++;
    if (!*known) unknown_option(L, arg, key, keys);
  }
}

bool pe_bind_option(lua_State *L, int arg, const char *key) {
  if (!lua_istable(L, arg)) return false;
  luaL_checkstack(L, 2, "options");
  arg = lua_absindex(L, arg);
  lua_pushstring(L, key);
  if (lua_rawget(L, arg) != LUA_TNIL) return true;
  lua_pop(L, 1);
  return false;
}

static void bad_option(lua_State *L, int arg, const char *key, const char *wanted) {
  luaL_argerror(
      L, arg,
      lua_pushfstring(L, "option '%s': %s expected, got %s", key, wanted, luaL_typename(L, -1)));
}

int64_t pe_bind_integer(lua_State *L, int arg, const char *key, int64_t min, int64_t max,
                        int64_t absent) {
  if (!pe_bind_option(L, arg, key)) return absent;
  int is_integer = 0;
  lua_Integer n = lua_type(L, -1) == LUA_TNUMBER ? lua_tointegerx(L, -1, &is_integer) : 0;
  if (!is_integer) bad_option(L, arg, key, "integer");
  if (n < min || n > max)
    luaL_argerror(L, arg,
                  lua_pushfstring(L, "option '%s' must be between %I and %I, got %I", key,
                                  (LUAI_UACINT)min, (LUAI_UACINT)max, (LUAI_UACINT)n));
  lua_pop(L, 1);
  return n;
}

double pe_bind_number(lua_State *L, int arg, const char *key, double absent) {
  if (!pe_bind_option(L, arg, key)) return absent;
  if (lua_type(L, -1) != LUA_TNUMBER) bad_option(L, arg, key, "number");
  double n = lua_tonumber(L, -1);
  lua_pop(L, 1);
  return n;
}

bool pe_bind_boolean(lua_State *L, int arg, const char *key, bool absent) {
  if (!pe_bind_option(L, arg, key)) return absent;
  if (lua_type(L, -1) != LUA_TBOOLEAN) bad_option(L, arg, key, "boolean");
  bool b = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return b;
}

const char *pe_bind_string(lua_State *L, int arg, const char *key, size_t *len,
                           const char *absent) {
  if (!pe_bind_option(L, arg, key)) {
    if (len) *len = absent ? strlen(absent) : 0;
    return absent;
  }
  if (lua_type(L, -1) != LUA_TSTRING) bad_option(L, arg, key, "string");
  const char *s = lua_tolstring(L, -1, len); /* the table keeps it alive */
  lua_pop(L, 1);
  return s;
}

int pe_bind_choice(lua_State *L, int arg, const char *key, const char *const *names, int absent) {
  const char *s = pe_bind_string(L, arg, key, NULL, NULL);
  if (!s) return absent;
  luaL_Buffer all;
  for (int i = 0; names[i]; i++)
    if (!strcmp(names[i], s)) return i;
  luaL_buffinit(L, &all);
  for (int i = 0; names[i]; i++) {
    if (i) luaL_addstring(&all, ", ");
    luaL_addstring(&all, names[i]);
  }
  luaL_pushresult(&all);
  return luaL_argerror(
      L, arg,
      lua_pushfstring(L, "option '%s' must be one of %s, got '%s'", key, lua_tostring(L, -1), s));
}
