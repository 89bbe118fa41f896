/* l_string.c - see l_string.h. */
#include "lua/l_string.h"

#include <lualib.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "lua/l_pattern.h"
#include "lua/state.h"

/* ---- compiled patterns ----------------------------------------------------------------------- */

/* Patterns are few and short, and used again and again: most are compiled once. */
enum { CACHED = 256, CACHED_LENGTH = 48 };

/* Upvalue 1 of every function. Its user values are the compiled patterns: what is replaced here
 * lives on while a match that uses it has it on its stack. */
typedef struct cache {
  struct {
    uint8_t length; /* 0: nothing here */
    char source[CACHED_LENGTH];
  } entry[CACHED];
} cache;

static uint32_t hash(const char *text, size_t length) {
  uint32_t h = (uint32_t)length;
  for (size_t i = 0; i < length; i++) h = (h ^ (unsigned char)text[i]) * UINT32_C(16777619);
  return h ^ h >> 15;
}

/* [] -> [userdata]: the compiled pattern. */
static const pe_pattern *pattern_of(lua_State *L, const char *source, size_t length) {
  if (length == 0 || length > CACHED_LENGTH) return pe_pattern_compile(L, source, length);
  cache *c = lua_touserdata(L, lua_upvalueindex(1));
  int i = (int)(hash(source, length) % CACHED);
  if (c->entry[i].length == length && !memcmp(c->entry[i].source, source, length)) {
    lua_getiuservalue(L, lua_upvalueindex(1), i + 1);
    return lua_touserdata(L, -1);
  }
  const pe_pattern *p = pe_pattern_compile(L, source, length);
  lua_pushvalue(L, -1);
  lua_setiuservalue(L, lua_upvalueindex(1), i + 1);
  c->entry[i].length = (uint8_t)length;
  memcpy(c->entry[i].source, source, length);
  return p;
}

/* ---- captures -------------------------------------------------------------------------------- */

/* [] -> [value]: capture i; of a pattern without captures the whole match. */
static void push_capture(const pe_pattern_match *m, int i, const unsigned char *from,
                         const unsigned char *to) {
  if (m->pattern->captures == 0)
    lua_pushlstring(m->L, (const char *)from, (size_t)(to - from));
  else if (m->pattern->capture_is_place[i])
    lua_pushinteger(m->L, m->from[i] - m->text + 1);
  else
    lua_pushlstring(m->L, (const char *)m->from[i], (size_t)(m->to[i] - m->from[i]));
}

/* [] -> [values]: all captures, or the whole match where there are none and `from` is given. */
static int push_captures(const pe_pattern_match *m, const unsigned char *from,
                         const unsigned char *to) {
  int n = m->pattern->captures == 0 && from ? 1 : m->pattern->captures;
  luaL_checkstack(m->L, n, "too many captures");
  for (int i = 0; i < n; i++) push_capture(m, i, from, to);
  return n;
}

static pe_pattern_match match_of(lua_State *L, const pe_pattern *p, const char *text,
                                 size_t length) {
  const unsigned char *at = (const void *)text;
  return (pe_pattern_match){.L = L, .pattern = p, .text = at, .end = at + length};
}

/* ---- find and match -------------------------------------------------------------------------- */

static size_t start_of(lua_State *L, int arg, size_t length) {
  lua_Integer at = luaL_optinteger(L, arg, 1);
  if (at > 0) return (size_t)at - 1;
  if (at == 0 || at < -(lua_Integer)length) return 0;
  return length - (size_t)-at;
}

static bool is_plain(const char *pattern, size_t length) {
  for (size_t at = 0; at <= length; at += strlen(pattern + at) + 1) /* it may contain zeros */
    if (strpbrk(pattern + at, "^$*+?.([%-")) return false;
  return true;
}

/* Long texts that agree for long are quadratic, so comparisons count. */
static const char *find_plain(pe_pattern_match *m, const char *text, const char *what, size_t n) {
  enum { SOME_STEPS = 1 << 12 }; /* counting each comparison costs a tenth */
  size_t steps = 0;
  if (n == 0) return text;
  for (const char *end = (const char *)m->end; (size_t)(end - text) >= n; text++) {
    text = memchr(text, what[0], (size_t)(end - text) - n + 1);
    if (!text) return NULL;
    if (!memcmp(text, what, n)) return text;
    if ((steps += n) < SOME_STEPS) continue;
    pe_pattern_count(m, steps);
    steps = 0;
  }
  return NULL;
}

static int push_plain(lua_State *L, const char *text, size_t length, size_t start, const char *what,
                      size_t n) {
  pe_pattern_match m = match_of(L, NULL, text, length);
  const char *found = find_plain(&m, text + start, what, n);
  if (!found) {
    luaL_pushfail(L);
    return 1;
  }
  lua_pushinteger(L, found - text + 1);
  lua_pushinteger(L, found - text + (lua_Integer)n);
  return 2;
}

static int find(lua_State *L, bool positions) {
  size_t length, n;
  const char *text = luaL_checklstring(L, 1, &length), *source = luaL_checklstring(L, 2, &n);
  size_t start = start_of(L, 3, length);
  if (start > length) {
    luaL_pushfail(L);
    return 1;
  }
  if (positions && (lua_toboolean(L, 4) || is_plain(source, n)))
    return push_plain(L, text, length, start, source, n);
  bool anchored = n > 0 && source[0] == '^';
  const pe_pattern *p = pattern_of(L, source + anchored, n - anchored);
  pe_pattern_match m = match_of(L, p, text, length);
  const unsigned char *from = m.text + start, *to;
  to = anchored ? pe_pattern_at(&m, from) : pe_pattern_search(&m, from, &from);
  if (!to) {
    luaL_pushfail(L);
    return 1;
  }
  if (!positions) return push_captures(&m, from, to);
  lua_pushinteger(L, from - m.text + 1);
  lua_pushinteger(L, to - m.text);
  return push_captures(&m, NULL, NULL) + 2;
}

static int l_find(lua_State *L) { return find(L, true); }
static int l_match(lua_State *L) { return find(L, false); }

/* ---- gmatch ---------------------------------------------------------------------------------- */

typedef struct walk {
  const unsigned char *at, *last; /* the next place to look; the end of the last match */
} walk;

static int gmatch_next(lua_State *L) { /* upvalues: text, pattern, walk */
  walk *w = lua_touserdata(L, lua_upvalueindex(3));
  size_t length;
  const char *text = lua_tolstring(L, lua_upvalueindex(1), &length);
  pe_pattern_match m = match_of(L, lua_touserdata(L, lua_upvalueindex(2)), text, length);
  while (w->at <= m.end) {
    const unsigned char *from = w->at, *to = pe_pattern_search(&m, from, &from);
    if (!to) break;
    if (to == w->last) { /* an empty match where the last one ended is not another one */
      w->at = from + 1;
      continue;
    }
    w->at = w->last = to;
    return push_captures(&m, from, to);
  }
  w->at = m.end + 1;
  return 0;
}

static int l_gmatch(lua_State *L) {
  size_t length, n;
  const char *text = luaL_checklstring(L, 1, &length), *source = luaL_checklstring(L, 2, &n);
  size_t start = start_of(L, 3, length);
  lua_settop(L, 2);
  pattern_of(L, source, n);
  lua_replace(L, 2);
  walk *w = lua_newuserdatauv(L, sizeof *w, 0);
  w->at = (const unsigned char *)text + (start > length ? length + 1 : start);
  w->last = NULL;
  lua_pushcclosure(L, gmatch_next, 3);
  return 1;
}

/* ---- gsub ------------------------------------------------------------------------------------ */

typedef struct change {
  pe_pattern_match m;
  int kind; /* the Lua type of the replacement, argument 3 */
  luaL_Buffer out;
} change;

static void add_template(change *c, const unsigned char *from, const unsigned char *to) {
  lua_State *L = c->m.L;
  size_t n;
  const char *text = lua_tolstring(L, 3, &n), *end = text + n;
  pe_pattern_count(&c->m, n);
  while (text < end) {
    const char *mark = memchr(text, '%', (size_t)(end - text));
    luaL_addlstring(&c->out, text, (size_t)((mark ? mark : end) - text));
    if (!mark) return;
    int digit = mark + 1 < end ? (unsigned char)mark[1] : 0, i = digit - '1';
    text = mark + 2;
    if (digit == '%') {
      luaL_addchar(&c->out, '%');
    } else if (digit == '0') {
      luaL_addlstring(&c->out, (const char *)from, (size_t)(to - from));
    } else if (i < 0 || i > 8) {
      luaL_error(L, "invalid use of '%%' in replacement string");
    } else if (i > 0 && i >= c->m.pattern->captures) { /* %1 without captures is the match */
      luaL_error(L, "invalid capture index %%%d in replacement string", i + 1);
    } else {
      push_capture(&c->m, i, from, to);
      luaL_tolstring(L, -1, NULL); /* a place is a number */
      lua_remove(L, -2);
      luaL_addvalue(&c->out);
    }
  }
}

/* Adds what a match becomes; false: it stays as it is. */
static bool add_replaced(change *c, const unsigned char *from, const unsigned char *to) {
  lua_State *L = c->m.L;
  if (c->kind == LUA_TSTRING || c->kind == LUA_TNUMBER) {
    add_template(c, from, to);
    return true;
  }
  if (c->kind == LUA_TFUNCTION) {
    lua_pushvalue(L, 3);
    int n = push_captures(&c->m, from, to);
    lua_call(L, n, 1);
  } else {
    push_capture(&c->m, 0, from, to);
    lua_gettable(L, 3);
  }
  if (!lua_toboolean(L, -1)) {
    lua_pop(L, 1);
    luaL_addlstring(&c->out, (const char *)from, (size_t)(to - from));
    return false;
  }
  if (!lua_isstring(L, -1)) luaL_error(L, "invalid replacement value (a %s)", luaL_typename(L, -1));
  luaL_addvalue(&c->out);
  return true;
}

static int l_gsub(lua_State *L) {
  size_t length, n;
  const char *text = luaL_checklstring(L, 1, &length), *source = luaL_checklstring(L, 2, &n);
  change c = {.kind = lua_type(L, 3)};
  bool fine = c.kind == LUA_TNUMBER || c.kind == LUA_TSTRING || c.kind == LUA_TFUNCTION ||
              c.kind == LUA_TTABLE;
  if (!fine) luaL_typeerror(L, 3, "string/function/table");
  lua_Integer most = luaL_optinteger(L, 4, (lua_Integer)length + 1), made = 0;
  bool anchored = n > 0 && source[0] == '^', changed = false;
  lua_settop(L, 3);
  c.m = match_of(L, pattern_of(L, source + anchored, n - anchored), text, length);
  const unsigned char *at = c.m.text, *last = NULL;
  luaL_buffinit(L, &c.out);
  while (made < most) {
    const unsigned char *from = at, *to;
    to = anchored ? pe_pattern_at(&c.m, from) : pe_pattern_search(&c.m, from, &from);
    if (!to) break;
    luaL_addlstring(&c.out, (const char *)at, (size_t)(from - at));
    at = from;
    if (to != last) {
      made++;
      if (add_replaced(&c, from, to)) changed = true;
      at = last = to;
    } else if (at < c.m.end) { /* an empty match where the last one ended */
      luaL_addchar(&c.out, (char)*at++);
    } else {
      break;
    }
    if (anchored) break;
  }
  if (changed) {
    luaL_addlstring(&c.out, (const char *)at, (size_t)(c.m.end - at));
    luaL_pushresult(&c.out);
  } else {
    lua_pushvalue(L, 1);
  }
  lua_pushinteger(L, made);
  return 2;
}

/* ---- rep ------------------------------------------------------------------------------------- */

static int l_rep(lua_State *L) {
  size_t length, gap;
  const char *text = luaL_checklstring(L, 1, &length);
  lua_Integer n = luaL_checkinteger(L, 2);
  const char *between = luaL_optlstring(L, 3, "", &gap);
  if (n <= 0 || length + gap == 0) { /* Lua's own would loop n times over nothing */
    lua_pushliteral(L, "");
    return 1;
  }
  if (length + gap < length || length + gap > (size_t)LUA_MAXINTEGER / (size_t)n)
    return luaL_error(L, "resulting string too large");
  luaL_Buffer out;
  size_t total = (size_t)n * length + (size_t)(n - 1) * gap;
  /* Lua copies the buffer: what cannot be there twice is refused before it is filled. */
  const pe_state *s = pe_state_of(L);
  if (s->heap_cap != SIZE_MAX &&
      (s->heap_used >= s->heap_cap || total > (s->heap_cap - s->heap_used) / 2)) {
    lua_pushliteral(L, "not enough memory"); /* as Lua itself says it */
    return lua_error(L);
  }
  char *to = luaL_buffinitsize(L, &out, total);
  size_t done = length + gap < total ? length + gap : total;
  memcpy(to, text, length);
  memcpy(to + length, between, done - length);
  while (done < total) { /* twice as much each time */
    size_t more = done < total - done ? done : total - done;
    memcpy(to + done, to, more);
    done += more;
  }
  luaL_pushresultsize(&out, total);
  return 1;
}

/* ---- pack ------------------------------------------------------------------------------------ */

/* Upvalue: Lua's own. A size that is far larger than any value would be filled byte by byte. */
static int l_pack(lua_State *L) {
  enum { DIGITS = 6 };
  int digits = 0;
  for (const char *at = luaL_checkstring(L, 1); *at; at++) {
    digits = *at >= '0' && *at <= '9' ? digits + 1 : 0;
    if (digits > DIGITS) return luaL_error(L, "size in format has more than %d digits", DIGITS);
  }
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

void pe_string_install(lua_State *L) {
  static const luaL_Reg functions[] = {{"find", l_find}, {"match", l_match}, {"gmatch", l_gmatch},
                                       {"gsub", l_gsub}, {"rep", l_rep},     {NULL, NULL}};
  lua_getglobal(L, LUA_STRLIBNAME);
  cache *c = lua_newuserdatauv(L, sizeof *c, CACHED);
  memset(c, 0, sizeof *c);
  luaL_setfuncs(L, functions, 1);
  lua_getfield(L, -1, "pack");
  lua_pushcclosure(L, l_pack, 1);
  lua_setfield(L, -2, "pack");
  lua_pop(L, 1);
}
