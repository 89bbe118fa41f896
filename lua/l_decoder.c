/* l_decoder.c - perigee.image.decoder: pictures decoded in confined child processes.
 *
 * submit gives a job number. When jobs finish, the descriptor `fd` becomes readable; next() then
 * returns them one by one (scripts/engine/media.lua watches it). wait(job) blocks instead. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "lua/l_image.h"
#include "lua/wakeup.h"
#include "runtime/image/decoder.h"

typedef struct decoder {
  pe_decoder *d;
  int pipe[2];
} decoder;

static void decoder_close(void *self) {
  decoder *s = self;
  pe_decoder_close(s->d); /* no thread writes to the pipe any more */
  pe_wakeup_close(s->pipe);
}

#define METHODS(X) X(submit) X(wait) X(next) X(drop) X(escape) X(stats)
METHODS(PE_BIND_DECLARE)
static int l_fd(lua_State *L);
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static const luaL_Reg fields[] = {{"fd", l_fd}, {NULL, NULL}};
static const pe_class decoder_class = {"perigee.Decoder", methods, fields, NULL, NULL,
                                       decoder_close};

static decoder *check(lua_State *L) { return pe_bind_check(L, 1, &decoder_class); }

void pe_decoder_l_class(lua_State *L) { pe_bind_class(L, &decoder_class); }

/* decoder(options) -> Decoder or nil, err */
int pe_decoder_l_open(lua_State *L) {
  static const char *const keys[] = {"children", "pixels", "memory", "bytes", "seconds", NULL};
  pe_bind_options(L, 1, keys);
  pe_decoder_options o = pe_decoder_defaults();
  o.children = (int32_t)pe_bind_integer(L, 1, "children", 1, PE_DECODER_CHILDREN, o.children);
  o.limits.pixels =
      (uint64_t)pe_bind_integer(L, 1, "pixels", 1, INT32_MAX, (int64_t)o.limits.pixels);
  o.limits.memory = (uint64_t)pe_bind_integer(L, 1, "memory", 1 << 20, (int64_t)1 << 40,
                                              (int64_t)o.limits.memory);
  o.bytes = (uint64_t)pe_bind_integer(L, 1, "bytes", 1, INT32_MAX, (int64_t)o.bytes);
  double seconds = pe_bind_number(L, 1, "seconds", (double)o.job_ns / 1e9);
  if (!(seconds > 0 && seconds <= 3600))
    return luaL_error(L, "option 'seconds' must be above 0 and at most 3600");
  o.job_ns = (int64_t)(seconds * 1e9);
  decoder *s = pe_bind_new(L, &decoder_class, sizeof *s, 0);
  pe_error err;
  if (!pe_wakeup_open(s->pipe)) {
    pe_fail(&err, PE_EIO, "cannot open a pipe: %s", strerror(errno));
    return pe_bind_error(L, &err);
  }
  o.wake = pe_wakeup, o.ctx = &s->pipe[1];
  if (pe_decoder_open(&o, &s->d, &err)) {
    pe_wakeup_close(s->pipe);
    return pe_bind_error(L, &err);
  }
  pe_bind_opened(L, s, 0);
  return 1;
}

static int l_fd(lua_State *L) {
  lua_pushinteger(L, check(L)->pipe[0]);
  return 1;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static int32_t integer_field(lua_State *L, const char *key, int64_t n) {
  int is_integer;
  lua_getfield(L, -1, key);
  lua_Integer v = lua_tointegerx(L, -1, &is_integer);
  if (!is_integer || v < 1 || v > INT32_MAX)
    luaL_error(L, "targets[%d].%s must be a positive integer", (int)n, key);
  lua_pop(L, 1);
  return (int32_t)v;
}

static int32_t filter_field(lua_State *L, int64_t n) {
  lua_getfield(L, -1, "filter");
  const char *name = lua_isnil(L, -1) ? "bicubic" : lua_tostring(L, -1);
  for (int f = 0; name && f < PE_FILTERS; f++)
    if (!strcmp(name, pe_filter_name((pe_filter)f))) {
      lua_pop(L, 1);
      return f;
    }
  luaL_error(L, "targets[%d].filter must be bilinear, bicubic or lanczos", (int)n);
  return 0;
}

/* [self, bytes, targets?] -> [job] or [nil, err] */
static int l_submit(lua_State *L) {
  pe_target target[PE_WIRE_TARGETS];
  lua_settop(L, 3);
  uint32_t count = 0;
  if (!lua_isnil(L, 3)) {
    luaL_checktype(L, 3, LUA_TTABLE);
    lua_Integer n = (lua_Integer)lua_rawlen(L, 3);
    luaL_argcheck(L, n >= 1 && n <= PE_WIRE_TARGETS, 3, "between 1 and 8 targets are needed");
    for (; count < (uint32_t)n; count++, lua_pop(L, 1)) {
      if (lua_rawgeti(L, 3, (lua_Integer)count + 1) != LUA_TTABLE)
        return luaL_error(L, "targets[%d] must be a table", (int)count + 1);
      target[count].width = integer_field(L, "width", count + 1);
      target[count].height = integer_field(L, "height", count + 1);
      target[count].filter = filter_field(L, count + 1);
    }
  }
  pe_bind_bytes(L, 2);
  decoder *s = check(L);
  uint64_t job;
  pe_error err;
  if (pe_decoder_submit(s->d, pe_bind_bytes(L, 2), target, count, &job, &err))
    return pe_bind_error(L, &err);
  lua_pushinteger(L, (lua_Integer)job);
  return 1;
}

static int l_escape(lua_State *L) { /* [self] -> [job] or [nil, err] */
  uint64_t job;
  pe_error err;
  if (pe_decoder_try(check(L)->d, &job, &err)) return pe_bind_error(L, &err);
  lua_pushinteger(L, (lua_Integer)job);
  return 1;
}

/* ---- results --------------------------------------------------------------------------------- */

static int free_result(lua_State *L) {
  pe_decoded_free(lua_touserdata(L, 1));
  return 0;
}

static pe_decoded *push_slot(lua_State *L) { /* [] -> [slot] */
  return pe_bind_slot(L, sizeof(pe_decoded), "perigee.decoder.result", free_result);
}

static void set_integer(lua_State *L, const char *key, int64_t n) {
  lua_pushinteger(L, n);
  lua_setfield(L, -2, key);
}

/* [] -> [info] or [nil, err]: what `r` holds, which is freed. */
static int push_result(lua_State *L, pe_decoded *r) {
  if (r->err.code) return pe_bind_error(L, &r->err);
  lua_createtable(L, 0, 7);
  lua_pushstring(L, pe_image_format_name(r->info.format));
  lua_setfield(L, -2, "format");
  set_integer(L, "width", r->info.width), set_integer(L, "height", r->info.height);
  set_integer(L, "orientation", r->info.orientation);
  lua_pushboolean(L, r->info.alpha);
  lua_setfield(L, -2, "alpha");
  if (r->pixels) {
    lua_pushlstring(L, (const char *)r->hash, PE_SHA256_BYTES);
    lua_setfield(L, -2, "hash");
    lua_createtable(L, (int)r->count, 0);
    for (uint32_t i = 0; i < r->count; i++) {
      pe_bind_push_pixels(L, r->pixels, &r->image[i], r->hash);
      lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_setfield(L, -2, "pixels");
  }
  pe_decoded_free(r);
  return 1;
}

static uint64_t job_arg(lua_State *L) { return (uint64_t)luaL_checkinteger(L, 2); }

static int l_wait(lua_State *L) { /* [self, job] -> [info] or [nil, err] */
  uint64_t job = job_arg(L);
  pe_decoded *r = push_slot(L);
  pe_error err;
  if (pe_decoder_wait(check(L)->d, job, r, &err)) return pe_bind_error(L, &err);
  return push_result(L, r);
}

static int l_next(lua_State *L) { /* [self] -> [job, info] or [job, nil, err] or [nil] */
  pe_decoded *r = push_slot(L);
  decoder *s = check(L);
  char bytes[64];
  while (read(s->pipe[0], bytes, sizeof bytes) > 0) {}
  if (!pe_decoder_next(s->d, r)) {
    lua_pushnil(L);
    return 1;
  }
  lua_pushinteger(L, (lua_Integer)r->job);
  return 1 + push_result(L, r);
}

static int l_drop(lua_State *L) { /* [self, job] -> [] */
  uint64_t job = job_arg(L);
  pe_decoder_drop(check(L)->d, job);
  return 0;
}

static int l_stats(lua_State *L) { /* [self] -> [table] */
  pe_decoder_stats st;
  pe_decoder_read_stats(check(L)->d, &st);
  lua_createtable(L, 0, 9);
  set_integer(L, "waiting", (int64_t)st.waiting), set_integer(L, "running", (int64_t)st.running);
  set_integer(L, "finished", (int64_t)st.finished), set_integer(L, "jobs", (int64_t)st.jobs);
  set_integer(L, "failed", (int64_t)st.failed), set_integer(L, "died", (int64_t)st.died);
  set_integer(L, "late", (int64_t)st.late), set_integer(L, "bytes", (int64_t)st.bytes);
  lua_createtable(L, st.children, 0);
  for (int32_t i = 0; i < st.children; i++) {
    lua_pushinteger(L, st.pid[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "children");
  return 1;
}
