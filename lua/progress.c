/* progress.c - see progress.h. */
#include "lua/progress.h"

#include <lauxlib.h>

#include "lua/bind.h"
#include "lua/call.h"

static void tell(void *ctx, uint64_t done, uint64_t total) {
  pe_bind_listener *l = ctx;
  if (!l->at || !lua_checkstack(l->L, 3)) return;
  lua_pushvalue(l->L, l->at);
  lua_pushinteger(l->L, (lua_Integer)done);
  lua_pushinteger(l->L, (lua_Integer)total);
  if (pe_call(l->L, 2, 0, NULL)) return;
  pe_call_report(l->L, "progress");
  l->at = 0;
}

const pe_progress *pe_bind_progress(lua_State *L, int arg, pe_bind_listener *out) {
  if (!pe_bind_option(L, arg, "progress")) return NULL;
  if (!lua_isfunction(L, -1))
    luaL_error(L, "option 'progress' must be a function, got %s", luaL_typename(L, -1));
  *out = (pe_bind_listener){.progress = {tell, out}, .L = L, .at = lua_gettop(L)};
  return &out->progress;
}
