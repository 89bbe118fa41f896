/* l_batch_request.c - see l_batch.h: a request as a script writes it. Its scalar fields come from
 * the tables of the runtime (runtime/batch/field.h). */
#include <math.h>
#include <string.h>

#include "lua/l_batch.h"
#include "lua/l_grammar.h"
#include "lua/l_media.h"
#include "lua/l_stops.h"

pe_ids_view pe_l_batch_ids(lua_State *L, int list, const char *what) {
  list = lua_absindex(L, list);
  if (!lua_istable(L, list))
    luaL_error(L, "%s must be a list of token ids, got %s", what, luaL_typename(L, list));
  luaL_checkstack(L, 4, what);
  size_t n = lua_rawlen(L, list);
  if (n > INT32_MAX / 4)
    luaL_error(L, "%s has %I ids, the limit is %d", what, (LUAI_UACINT)n, INT32_MAX / 4);
  int32_t *id = lua_newuserdatauv(L, (n + 1) * sizeof *id, 0);
  for (size_t i = 0; i < n; i++) {
    int is_integer;
    lua_rawgeti(L, list, (lua_Integer)i + 1);
    lua_Integer v = lua_tointegerx(L, -1, &is_integer);
    if (!is_integer || lua_type(L, -1) != LUA_TNUMBER)
      luaL_error(L, "%s[%d] must be a token id, got %s", what, (int)i + 1,
                 luaL_tolstring(L, -1, NULL));
    if (v < INT32_MIN || v > INT32_MAX)
      luaL_error(L, "%s[%d]: token id %I is out of range", what, (int)i + 1, (LUAI_UACINT)v);
    id[i] = (int32_t)v;
    lua_pop(L, 1);
  }
  return (pe_ids_view){id, (int32_t)n};
}

/* The option `key`; leaves its userdata on the stack. */
static pe_ids_view ids_option(lua_State *L, int arg, const char *key) {
  if (!pe_bind_option(L, arg, key)) return (pe_ids_view){NULL, 0};
  return pe_l_batch_ids(L, -1, key);
}

pe_bias_view pe_l_batch_bias(lua_State *L, int arg) {
  arg = lua_absindex(L, arg);
  if (!lua_istable(L, arg))
    luaL_error(L, "logit_bias must be a table {[token id] = number}, got %s",
               luaL_typename(L, arg));
  size_t n = 0;
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) n++;
  pe_logit_bias *bias = lua_newuserdatauv(L, (n + 1) * sizeof *bias, 0);
  n = 0;
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
    if (!lua_isinteger(L, -2) || lua_type(L, -1) != LUA_TNUMBER) {
      const char *key = luaL_tolstring(L, -2, NULL);   /* in two statements: each pushes, and C */
      const char *value = luaL_tolstring(L, -2, NULL); /* evaluates arguments in any order */
      luaL_error(L, "logit_bias must map token ids to numbers, got [%s] = %s", key, value);
    }
    lua_Integer id = lua_tointeger(L, -2);
    if (id < 0 || id > INT32_MAX)
      luaL_error(L, "logit_bias: token id %I is out of range", (LUAI_UACINT)id);
    bias[n++] = (pe_logit_bias){(int32_t)id, (float)lua_tonumber(L, -1)};
  }
  return (pe_bias_view){bias, (int32_t)n};
}

pe_draw pe_l_batch_draw(lua_State *L, int arg) {
  static const char *const keys[] = {"bias", "banned", "force", NULL};
  pe_bind_options(L, arg, keys);
  pe_draw d = {0};
  if (pe_bind_option(L, arg, "bias")) d.bias = pe_l_batch_bias(L, -1);
  d.banned = ids_option(L, arg, "banned");
  d.forced = ids_option(L, arg, "force");
  return d;
}

static void read_stop(lua_State *L, int arg, pe_request *r) {
  if (!pe_bind_option(L, arg, "stop")) return;
  size_t n; /* the table of the request keeps the strings alive */
  r->stop = pe_l_stops_read(L, lua_gettop(L), &n);
  r->stop_count = (int32_t)n;
}

static void read_bad_words(lua_State *L, int arg, pe_request *r) {
  if (!pe_bind_option(L, arg, "bad_words")) return;
  int at = lua_gettop(L);
  if (!lua_istable(L, at))
    luaL_error(L, "bad_words must be a list of lists of token ids, got %s", luaL_typename(L, at));
  size_t n = lua_rawlen(L, at);
  luaL_argcheck(L, n < 100000, arg, "bad_words must have fewer than 100000 entries");
  pe_ids_view *list = lua_newuserdatauv(L, (n + 1) * sizeof *list, 0);
  lua_createtable(L, (int)n, 0); /* keeps the ids alive */
  int keep = lua_gettop(L);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, at, (lua_Integer)i + 1);
    list[i] = pe_l_batch_ids(L, -1, "bad_words");
    lua_rawseti(L, keep, (lua_Integer)i + 1);
    lua_pop(L, 1);
  }
  r->bad_words = list, r->bad_count = (int32_t)n;
}

/* ---- phases -------------------------------------------------------------------------------- */

/* [list of marks] -> [list of marks, ids, texts]: the list keeps the strings alive. */
static void read_marks(lua_State *L, int number, pe_phase *p) {
  int at = lua_gettop(L);
  if (!lua_istable(L, at))
    luaL_error(L, "phases[%d].marks must be a list of token ids and strings, got %s", number,
               luaL_typename(L, at));
  size_t n = lua_rawlen(L, at);
  if (n > PE_MARKS)
    luaL_error(L, "phases[%d] has %d marks, the limit is %d", number, (int)n, PE_MARKS);
  int32_t *id = lua_newuserdatauv(L, (n + 1) * sizeof *id, 0);
  pe_str *text = lua_newuserdatauv(L, (n + 1) * sizeof *text, 0);
  for (size_t i = 0; i < n; i++) {
    int type = lua_rawgeti(L, at, (lua_Integer)i + 1);
    lua_Integer v = lua_tointeger(L, -1);
    if (type == LUA_TSTRING)
      text[p->marks].at = lua_tolstring(L, -1, &text[p->marks].len), p->marks++;
    else if (lua_isinteger(L, -1) && v >= 0 && v <= INT32_MAX)
      id[p->mark_ids++] = (int32_t)v;
    else
      luaL_error(L, "phases[%d].marks[%d] must be a token id or a string, got %s", number,
                 (int)i + 1, luaL_tolstring(L, -1, NULL));
    lua_pop(L, 1);
  }
  p->mark_id = id, p->mark = text;
}

/* [phase] -> [phase, lists] */
static void read_phase(lua_State *L, int number, pe_phase *p) {
  static const char *const keys[] = {"marks", "ends", "grammar", "gap", "back", NULL};
  int at = lua_gettop(L);
  if (!lua_istable(L, at))
    luaL_error(L, "phases[%d] must be a table, got %s", number, luaL_typename(L, at));
  luaL_checkstack(L, 8, "phases");
  pe_bind_options(L, at, keys);
  *p = (pe_phase){.ends = pe_bind_boolean(L, at, "ends", false),
                  .gap = pe_bind_boolean(L, at, "gap", false),
                  .back = (int32_t)pe_bind_integer(L, at, "back", 1, PE_PHASES, 0)};
  if (pe_bind_option(L, at, "grammar")) p->grammar = pe_bind_grammar(L, -1);
  if (pe_bind_option(L, at, "marks")) read_marks(L, number, p);
}

static void read_phases(lua_State *L, int arg, pe_request *r) {
  if (!pe_bind_option(L, arg, "phases")) return;
  int list = lua_gettop(L);
  if (!lua_istable(L, list))
    luaL_error(L, "phases must be a list of phases, got %s", luaL_typename(L, list));
  size_t n = lua_rawlen(L, list);
  if (n > PE_PHASES) luaL_error(L, "phases has %d entries, the limit is %d", (int)n, PE_PHASES);
  pe_phase *phase = lua_newuserdatauv(L, (n + 1) * sizeof *phase, 0);
  lua_createtable(L, (int)n, 0); /* keeps the lists alive */
  int keep = lua_gettop(L);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, list, (lua_Integer)i + 1);
    read_phase(L, (int)i + 1, &phase[i]);
    while (lua_gettop(L) > keep) luaL_ref(L, keep);
  }
  r->phase = phase, r->phase_count = (int32_t)n;
}

/* ---- scalar fields ------------------------------------------------------------------------- */

/* A wrong type raises, a value out of range is an error. */
static pe_status read_field(lua_State *L, int arg, const pe_field *f, void *at, pe_error *err) {
  double number;
  int64_t integer;
  if (!pe_bind_option(L, arg, f->name)) return PE_OK;
  lua_pop(L, 1);
  switch (f->type) {
  case PE_FIELD_NUMBER:
    number = pe_bind_number(L, arg, f->name, 0);
    memcpy(at, &(float){(float)number}, sizeof(float));
    return pe_field_check(f, number, err);
  case PE_FIELD_INTEGER:
    integer = pe_bind_integer(L, arg, f->name, INT64_MIN, INT64_MAX, 0);
    if (integer > INT32_MAX)
      return pe_fail_field(err, PE_EARG, f->name, "%s must be at most %d, got %lld", f->name,
                           INT32_MAX, (long long)integer);
    memcpy(at, &(int32_t){(int32_t)integer}, sizeof(int32_t));
    return pe_field_check(f, (double)integer, err);
  case PE_FIELD_LONG:
    integer = pe_bind_integer(L, arg, f->name, INT64_MIN, INT64_MAX, 0);
    memcpy(at, &integer, sizeof integer);
    break;
  case PE_FIELD_BOOLEAN:
    memcpy(at, &(bool){pe_bind_boolean(L, arg, f->name, false)}, sizeof(bool));
    break;
  }
  return PE_OK;
}

static pe_status read_fields(lua_State *L, int arg, pe_field_list list, void *self, pe_error *err) {
  pe_status rc = PE_OK;
  for (size_t i = 0; !rc && i < list.count; i++)
    rc = read_field(L, arg, &list.field[i], (char *)self + list.field[i].offset, err);
  return rc;
}

/* [table] -> [table]: table[key] = value, of the field's type; an infinite one is left out. */
static void set_value(lua_State *L, const pe_field *f, const char *key, double value) {
  if (!isfinite(value)) return;
  if (f->type == PE_FIELD_BOOLEAN)
    lua_pushboolean(L, value != 0);
  else if (f->type == PE_FIELD_NUMBER)
    lua_pushnumber(L, value);
  else
    lua_pushinteger(L, (lua_Integer)value);
  lua_setfield(L, -2, key);
}

/* [] -> [table] */
static void push_field(lua_State *L, const pe_field *f) {
  bool ranged = f->type == PE_FIELD_NUMBER || f->type == PE_FIELD_INTEGER;
  lua_createtable(L, 0, 7);
  lua_pushstring(L, f->name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, pe_field_type_name(f->type));
  lua_setfield(L, -2, "type");
  lua_pushstring(L, f->help);
  lua_setfield(L, -2, "help");
  if (ranged) {
    set_value(L, f, "min", f->min);
    set_value(L, f, "max", f->max);
  }
  if (f->above) {
    lua_pushboolean(L, 1);
    lua_setfield(L, -2, "above");
  }
  if (f->absent >= f->min) set_value(L, f, "default", f->absent); /* below: nothing by default */
}

/* [list] -> [list]: with a table for each field. */
static void append_fields(lua_State *L, pe_field_list list) {
  lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
  for (size_t i = 0; i < list.count; i++) {
    push_field(L, &list.field[i]);
    lua_rawseti(L, -2, n + (lua_Integer)i + 1);
  }
}

int pe_l_batch_fields(lua_State *L) { /* [] -> [list] */
  lua_newtable(L);
  append_fields(L, pe_request_fields());
  append_fields(L, pe_sampling_fields());
  return 1;
}

/* ---- the whole request --------------------------------------------------------------------- */

/* Raises when the table has a key that is neither a list nor in a table of fields. */
static void check_keys(lua_State *L, int arg) {
  static const char *const lists[] = {"prompt",   "logit_bias", "banned",     "stop",
                                      "stop_ids", "bad_words",  "boundaries", "keep_special",
                                      "media",    "positions",  "rope_delta", "phases"};
  enum { LISTS = sizeof lists / sizeof *lists, MOST = 64 };
  const char *keys[MOST + 1];
  size_t n = 0;
  const pe_field_list tables[] = {pe_request_fields(), pe_sampling_fields()};
  for (; n < LISTS; n++) keys[n] = lists[n];
  for (int t = 0; t < 2; t++)
    for (size_t i = 0; i < tables[t].count && n < MOST; i++) keys[n++] = tables[t].field[i].name;
  keys[n] = NULL;
  luaL_checktype(L, arg, LUA_TTABLE);
  pe_bind_options(L, arg, keys);
}

pe_status pe_l_batch_request(lua_State *L, int arg, const pe_plan *plan, pe_request *r,
                             pe_error *err) {
  *r = pe_request_defaults();
  check_keys(L, arg);
  luaL_checkstack(L, 40, "request");
  pe_status rc = read_fields(L, arg, pe_request_fields(), r, err);
  if (!rc) rc = read_fields(L, arg, pe_sampling_fields(), &r->sampling, err);
  if (rc) return rc;
  r->prompt = ids_option(L, arg, "prompt");
  if (pe_bind_option(L, arg, "logit_bias")) {
    pe_bias_view bias = pe_l_batch_bias(L, -1);
    r->sampling.bias = bias.bias, r->sampling.bias_count = bias.count;
  }
  pe_ids_view banned = ids_option(L, arg, "banned");
  r->sampling.banned = banned.id, r->sampling.banned_count = banned.count;
  read_stop(L, arg, r);
  r->stop_ids = ids_option(L, arg, "stop_ids");
  read_bad_words(L, arg, r);
  r->boundary = ids_option(L, arg, "boundaries");
  r->keep_special = ids_option(L, arg, "keep_special");
  read_phases(L, arg, r);
  return pe_l_media(L, arg, plan, r->prompt.id, r->prompt.count, &r->media, err);
}
