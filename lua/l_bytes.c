/* l_bytes.c - see l_bytes.h. */
#include "lua/l_bytes.h"

#include <string.h>

#include "lua/bind.h"
#include "lua/job.h"
#include "runtime/inflate.h"

static const int64_t MOST_BYTES = (int64_t)1 << 30; /* of an inflated text, unless it is limited */

static void bytes_close(void *self) { pe_buffer_release(((pe_bytes *)self)->buffer); }

#define METHODS(X) X(put) X(len) X(sub) X(slice) X(text)
METHODS(PE_BIND_DECLARE)
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static const luaL_Reg meta[] = {{"__len", l_len}, {NULL, NULL}};
static const pe_class bytes_class = {"perigee.Bytes", methods, NULL, meta, NULL, bytes_close};

pe_bytes *pe_bytes_check(lua_State *L, int arg) { return pe_bind_check(L, arg, &bytes_class); }
pe_bytes *pe_bytes_test(lua_State *L, int arg) { return pe_bind_test(L, arg, &bytes_class); }

void pe_bytes_push(lua_State *L, pe_buffer *buffer, size_t from, size_t len) {
  pe_bytes *b = pe_bind_new(L, &bytes_class, sizeof *b, 0);
  *b = (pe_bytes){.buffer = pe_buffer_retain(buffer), .from = from, .len = len};
  pe_bind_opened(L, b, 0); /* the buffer is counted where it was made */
}

/* new(most) -> [bytes] or [nil, err]: empty; it may grow to `most` bytes, which take no memory
 * until they are there */
static int bytes_new(lua_State *L) {
  lua_Integer most = luaL_checkinteger(L, 1);
  luaL_argcheck(L, most >= 0, 1, "must not be negative");
  pe_bytes *b = pe_bind_new(L, &bytes_class, sizeof *b, 0);
  pe_error err;
  if (pe_buffer_reserve((uint64_t)most, &b->buffer, &err)) return pe_bind_error(L, &err);
  b->grows = true;
  pe_bind_opened(L, b, 0);
  return 1;
}

/* The range `arg` to `arg + 1` as string.sub has it, of n bytes. */
static void range(lua_State *L, int arg, size_t n, size_t *from, size_t *len) {
  lua_Integer i = luaL_checkinteger(L, arg), j = luaL_optinteger(L, arg + 1, -1);
  lua_Integer most = (lua_Integer)n;
  if (i < 0) i = i < -most ? 1 : most + i + 1;
  if (i == 0) i = 1;
  if (j < 0) j = j < -most ? 0 : most + j + 1;
  if (j > most) j = most;
  *from = i > j ? 0 : (size_t)i - 1;
  *len = i > j ? 0 : (size_t)(j - i) + 1;
}

/* [self, text, i, j] -> []: appends text:sub(i, j). Raises if it does not fit. */
static int l_put(lua_State *L) {
  pe_bytes *b = pe_bytes_check(L, 1);
  size_t n, from, len;
  const char *text = luaL_checklstring(L, 2, &n);
  lua_settop(L, 4);
  if (lua_isnil(L, 3)) {
    lua_pushinteger(L, 1);
    lua_replace(L, 3);
  }
  range(L, 3, n, &from, &len);
  if (!b->grows) return luaL_error(L, "put: a slice does not grow");
  if (len > b->buffer->size - b->len)
    return luaL_error(L, "put: %I bytes and %I more do not fit in %I", (LUAI_UACINT)b->len,
                      (LUAI_UACINT)len, (LUAI_UACINT)b->buffer->size);
  memcpy(b->buffer->data + b->len, text + from, len);
  b->len += len;
  pe_bind_resized(L, b, b->len);
  return 0;
}

static int l_len(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)pe_bytes_check(L, 1)->len);
  return 1;
}

static int l_sub(lua_State *L) { /* [self, i, j] -> [string] */
  pe_str s = pe_bytes_str(pe_bytes_check(L, 1));
  size_t from, len;
  range(L, 2, s.len, &from, &len);
  lua_pushlstring(L, s.at + from, len);
  return 1;
}

/* [self, i, j] -> [bytes]: shares the buffer. What is put into self later is not part of it. */
static int l_slice(lua_State *L) {
  const pe_bytes *b = pe_bytes_check(L, 1);
  size_t from, len;
  range(L, 2, b->len, &from, &len);
  pe_bytes_push(L, b->buffer, b->from + from, len);
  return 1;
}

static int l_text(lua_State *L) { /* [self] -> [string] */
  pe_str s = pe_bytes_str(pe_bytes_check(L, 1));
  lua_pushlstring(L, s.at, s.len);
  return 1;
}

/* ---- compressed ------------------------------------------------------------------------------ */

/* `source` is the buffer of the Bytes, which may be closed meanwhile. */
typedef struct inflate_job {
  pe_buffer *source;
  pe_str packed;
  pe_packing kind;
  uint64_t most, len;
  pe_buffer *out;
  pe_error err;
} inflate_job;

static void inflate_run(void *data) {
  inflate_job *j = data;
  pe_inflate(j->kind, j->packed, j->most, &j->out, &j->len, &j->err);
}

static int inflate_push(lua_State *L, void *data) {
  inflate_job *j = data;
  if (j->err.code) return pe_bind_error(L, &j->err);
  pe_bytes_push(L, j->out, 0, (size_t)j->len);
  pe_bind_resized(L, pe_bytes_test(L, -1), j->len);
  return 1;
}

static void inflate_free(void *data) {
  inflate_job *j = data;
  pe_buffer_release(j->source);
  pe_buffer_release(j->out);
  pe_free(j);
}

/* inflate(bytes, { packing, limit }, callback) -> [true] or [nil, err] */
static int bytes_inflate(lua_State *L) {
  static const char *const keys[] = {"packing", "limit", NULL};
  static const char *const packings[] = {"gzip", "zstd", NULL};
  static const pe_job_kind kind = {inflate_run, inflate_push, inflate_free};
  const pe_bytes *source = pe_bytes_check(L, 1);
  pe_bind_options(L, 2, keys);
  int packing = pe_bind_choice(L, 2, "packing", packings, 0);
  uint64_t most = (uint64_t)pe_bind_integer(L, 2, "limit", 0, MOST_BYTES, MOST_BYTES);
  int callback = pe_job_callback(L, 3);
  inflate_job *j = pe_calloc(1, sizeof *j);
  if (j)
    *j = (inflate_job){.source = pe_buffer_retain(source->buffer),
                       .packed = pe_bytes_str(source),
                       .kind = (pe_packing)packing,
                       .most = most};
  return pe_job_start(L, callback, &kind, j);
}

int pe_open_bytes(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"new", bytes_new}, {"inflate", bytes_inflate}, {NULL, NULL}};
  pe_bind_class(L, &bytes_class);
  luaL_newlib(L, functions);
  return 1;
}
