/* source.c - see source.h. */
#include "lua/source.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "lua/embed/embed.h"
#include "lua/state.h"

enum {
  MAX_SCRIPT = 64 << 20, /* bytes: refuse a file that was surely not meant as a script */
  MAX_DEPTH = 8,         /* of folders: a loop of symbolic links ends here */
};

static int by_name(const void *name, const void *file) {
  return strcmp(name, ((const pe_embed *)file)->name);
}

/* Reads up to `size` bytes into `out` and returns how many, or -1. With `out` NULL: the size of the
 * file. Does not raise. */
static long read_file(const char *path, char *out, long size) {
  FILE *in = fopen(path, "rb");
  if (!in) return -1;
  long n = -1;
  if (out)
    n = (long)fread(out, 1, (size_t)size, in);
  else if (!fseek(in, 0, SEEK_END))
    n = ftell(in);
  if (ferror(in)) n = -1;
  fclose(in);
  return n;
}

/* [] -> [text] and true, or [] and false */
static bool push_file(lua_State *L, const char *folder, const char *name) {
  const char *path = lua_pushfstring(L, "%s/%s", folder, name);
  long size = read_file(path, NULL, 0);
  if (size < 0 || size > MAX_SCRIPT) {
    lua_pop(L, 1);
    return false;
  }
  char *bytes = lua_newuserdatauv(L, (size_t)size + 1, 0); /* [path, bytes] */
  size = read_file(path, bytes, size);
  if (size >= 0) {
    lua_pushlstring(L, bytes, (size_t)size);
    lua_insert(L, -3);
  }
  lua_pop(L, 2);
  return size >= 0;
}

bool pe_source_push(lua_State *L, const char *name) {
  luaL_checkstack(L, 5, name);
  const char *folder = pe_state_of(L)->scripts;
  if (folder) return !strstr(name, "..") && push_file(L, folder, name);
  const pe_embed *f = bsearch(name, pe_embed_files, pe_embed_count, sizeof *f, by_name);
  if (f) lua_pushlstring(L, f->text, f->size);
  return f != NULL;
}

/* [list] -> [list]: appends the name of every file below folder/below. */
static void list_folder(lua_State *L, const char *folder, const char *below, int depth) {
  luaL_checkstack(L, 4, folder);
  const char *path = lua_pushfstring(L, "%s/%s", folder, below); /* [list, path] */
  uv_fs_t req;
  uv_dirent_t e;
  if (uv_fs_scandir(NULL, &req, path, 0, NULL) >= 0) {
    lua_newtable(L); /* [list, path, folders]: req is freed before the recursion, which may raise */
    while (uv_fs_scandir_next(&req, &e) != UV_EOF) {
      lua_pushfstring(L, "%s%s%s", below, *below ? "/" : "", e.name);
      int list = e.type == UV_DIRENT_DIR ? -2 : -4;
      if (e.name[0] == '.')
        lua_pop(L, 1);
      else
        lua_rawseti(L, list, (lua_Integer)lua_rawlen(L, list) + 1);
    }
    uv_fs_req_cleanup(&req);
    lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
    lua_insert(L, -3); /* [folders, list, path] */
    lua_pop(L, 1);
    for (lua_Integer i = 1; i <= n && depth > 0; i++) {
      lua_rawgeti(L, -2, i);
      lua_insert(L, -2); /* [folders, name, list] */
      list_folder(L, folder, lua_tostring(L, -2), depth - 1);
      lua_remove(L, -2);
    }
    lua_remove(L, -2);
  } else {
    uv_fs_req_cleanup(&req);
    lua_pop(L, 1);
  }
}

void pe_source_push_names(lua_State *L) {
  lua_newtable(L);
  const char *folder = pe_state_of(L)->scripts;
  if (folder)
    list_folder(L, folder, "", MAX_DEPTH);
  else
    for (size_t i = 0; i < pe_embed_count; i++) {
      lua_pushstring(L, pe_embed_files[i].name);
      lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
}

/* ---- searchers ------------------------------------------------------------------------------- */

/* [] -> [chunk] and true, or [] and false when there is no such script. Raises if it does not
 * compile. */
static bool load_script(lua_State *L, const char *name) {
  if (!pe_source_push(L, name)) return false;
  size_t size;
  const char *text = lua_tolstring(L, -1, &size);
  const char *folder = pe_state_of(L)->scripts;
  const char *chunk = lua_pushfstring(L, "@%s/%s", folder ? folder : "scripts", name);
  if (luaL_loadbufferx(L, text, size, chunk, "t")) lua_error(L);
  lua_replace(L, -3);
  lua_pop(L, 1);
  return true;
}

/* require "cmd.run" -> cmd/run.lua or cmd/run/init.lua */
static int search_scripts(lua_State *L) {
  const char *module = luaL_checkstring(L, 1);
  const char *path = luaL_gsub(L, module, ".", "/");
  static const char *const forms[] = {"%s.lua", "%s/init.lua"};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    const char *name = lua_pushfstring(L, forms[i], path);
    if (!load_script(L, name)) continue;
    lua_pushvalue(L, -2);
    return 2;
  }
  lua_pushfstring(L, "no script '%s.lua'", path);
  return 1;
}

/* Lua's search along package.path, for text only. Upvalue: the package table. */
static int search_path(lua_State *L) {
  luaL_checkstring(L, 1);
  lua_getfield(L, lua_upvalueindex(1), "searchpath");
  lua_pushvalue(L, 1);
  lua_getfield(L, lua_upvalueindex(1), "path");
  lua_call(L, 2, 2);
  if (lua_isnil(L, -2)) return 1; /* the list of the files that were tried */
  const char *file = lua_tostring(L, -2);
  if (luaL_loadfilex(L, file, "t")) return lua_error(L);
  lua_pushstring(L, file);
  return 2;
}

void pe_source_open(lua_State *L) {
  lua_getglobal(L, LUA_LOADLIBNAME);
  lua_getfield(L, -1, "searchers"); /* [package, searchers] */
  lua_pushcfunction(L, search_scripts);
  lua_rawseti(L, -2, 2);
  lua_pushvalue(L, -2);
  lua_pushcclosure(L, search_path, 1);
  lua_rawseti(L, -2, 3);
  lua_pushnil(L);
  lua_rawseti(L, -2, 4);
  lua_pop(L, 1);
  static const char *const empty[] = {"path", "cpath"};
  for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
    lua_pushliteral(L, "");
    lua_setfield(L, -2, empty[i]);
  }
  lua_pushnil(L);
  lua_setfield(L, -2, "loadlib");
  lua_pop(L, 1);
}

/* ---- load ------------------------------------------------------------------------------------ */

/* Calls Lua's own function (upvalue 1) with the mode, argument `at`, set to "t". */
static int call_text_mode(lua_State *L, int at) {
  if (lua_gettop(L) < at) lua_settop(L, at);
  if (lua_isnil(L, at)) {
    lua_pushliteral(L, "t");
    lua_replace(L, at);
  }
  const char *mode = luaL_checkstring(L, at);
  if (!strchr(mode, 't')) return luaL_argerror(L, at, "only text chunks are loaded");
  lua_pushliteral(L, "t");
  lua_replace(L, at);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

static int load_text(lua_State *L) { return call_text_mode(L, 3); }
static int loadfile_text(lua_State *L) { return call_text_mode(L, 2); }

static int dofile_text(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  lua_settop(L, 1);
  if (luaL_loadfilex(L, path, "t")) return lua_error(L);
  lua_call(L, 0, LUA_MULTRET);
  return lua_gettop(L) - 1;
}

void pe_source_open_load(lua_State *L) {
  static const luaL_Reg wrapped[] = {
      {"load", load_text}, {"loadfile", loadfile_text}, {NULL, NULL}};
  lua_pushglobaltable(L);
  for (const luaL_Reg *r = wrapped; r->name; r++) {
    lua_getfield(L, -1, r->name);
    lua_pushcclosure(L, r->func, 1);
    lua_setfield(L, -2, r->name);
  }
  lua_pushcfunction(L, dofile_text);
  lua_setfield(L, -2, "dofile");
  lua_pop(L, 1);
}
