/* l_stops.c - see l_stops.h. The batch looks for stop strings in all that a sequence writes. What
 * is parsed first has its stop strings found here, in what is left of it for the client. */
#include "lua/l_stops.h"

#include "lua/bind.h"
#include "runtime/text/stop.h"

typedef struct stops {
  pe_stop *s;
  pe_buf text;
} stops;

static void stops_close(void *self) {
  stops *s = self;
  pe_stop_close(s->s);
  pe_buf_free(&s->text);
}

#define METHODS(X) X(push) X(finish) X(fork)
METHODS(PE_BIND_DECLARE)
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static const pe_class stops_class = {"perigee.Stops", methods, NULL, NULL, NULL, stops_close};

static stops *check(lua_State *L) { return pe_bind_check(L, 1, &stops_class); }

const pe_str *pe_l_stops_read(lua_State *L, int at, size_t *count) {
  bool one = lua_type(L, at) == LUA_TSTRING;
  if (!one && !lua_istable(L, at))
    luaL_error(L, "stop must be a string or a list of strings, got %s", luaL_typename(L, at));
  *count = one ? 1 : lua_rawlen(L, at);
  pe_str *list = lua_newuserdatauv(L, (*count + 1) * sizeof *list, 0);
  for (size_t i = 0; i < *count; i++) {
    if (one)
      lua_pushvalue(L, at);
    else
      lua_rawgeti(L, at, (lua_Integer)i + 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      luaL_error(L, "stop[%d] must be a string, got %s", (int)i + 1, luaL_typename(L, -1));
    list[i].at = lua_tolstring(L, -1, &list[i].len);
    lua_pop(L, 1);
  }
  return list;
}

static int l_open(lua_State *L) { /* [strings] -> [stops] or [nil, err] */
  size_t count;
  const pe_str *list = pe_l_stops_read(L, 1, &count);
  stops *s = pe_bind_new(L, &stops_class, sizeof *s, 0);
  pe_error err;
  if (pe_stop_open(list, count, &s->s, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, s, 0);
  return 1;
}

static int l_push(lua_State *L) { /* [self, text] -> [text] or [text, index] or [nil, err] */
  stops *s = check(L);
  pe_str piece;
  piece.at = luaL_checklstring(L, 2, &piece.len);
  pe_error err;
  int hit;
  s->text.len = 0;
  if (pe_stop_push(s->s, piece, &s->text, &hit, &err)) return pe_bind_error(L, &err);
  lua_pushlstring(L, s->text.data, s->text.len);
  if (hit < 0) return 1;
  lua_pushinteger(L, hit + 1);
  return 2;
}

static int l_finish(lua_State *L) { /* [self] -> [text] or [nil, err] */
  stops *s = check(L);
  pe_error err;
  s->text.len = 0;
  if (pe_stop_finish(s->s, &s->text, &err)) return pe_bind_error(L, &err);
  lua_pushlstring(L, s->text.data, s->text.len);
  return 1;
}

static int l_fork(lua_State *L) { /* [self] -> [stops] or [nil, err] */
  const stops *from = check(L);
  stops *s = pe_bind_new(L, &stops_class, sizeof *s, 0);
  pe_error err;
  if (pe_stop_fork(from->s, &s->s, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, s, 0);
  return 1;
}

int pe_open_stops(lua_State *L) {
  static const luaL_Reg functions[] = {{"open", l_open}, {NULL, NULL}};
  pe_bind_class(L, &stops_class);
  luaL_newlib(L, functions);
  return 1;
}
