/* l_tokenizer.c - perigee.tokenizer: text to ids and back, whole or streamed. */
#include <stdlib.h>
#include <string.h>

#include "lua/job.h"
#include "lua/l_graph.h"
#include "runtime/text/detokenizer.h"
#include "runtime/utf8.h"

typedef struct tokenizer {
  pe_tokenizer *t;
  pe_tokenizer_scratch *scratch; /* the loop thread's */
  pe_ids ids; /* of the last text: an error while its table is built must not leak them */
  pe_buf text;
} tokenizer;

static void tokenizer_close(void *self) {
  tokenizer *t = self;
  pe_ids_free(&t->ids);
  pe_buf_free(&t->text);
  pe_tokenizer_scratch_free(t->scratch);
  pe_tokenizer_release(t->t);
}

typedef struct stream {
  pe_detokenizer *d;
  pe_buf text;
} stream;

static void stream_close(void *self) {
  stream *s = self;
  pe_detokenizer_free(s->d);
  pe_buf_free(&s->text);
}

#define METHODS(X) X(encode) X(decode) X(stream) X(token) X(bytes) X(id) X(is_special) X(added)
METHODS(PE_BIND_DECLARE)
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static int l_size(lua_State *L);
static int l_bos(lua_State *L);
static int l_eos(lua_State *L);
static int l_unk(lua_State *L);
static int l_pad(lua_State *L);
static const luaL_Reg fields[] = {{"size", l_size}, {"bos", l_bos}, {"eos", l_eos},
                                  {"unk", l_unk},   {"pad", l_pad}, {NULL, NULL}};
static const pe_class tokenizer_class = {"perigee.Tokenizer", methods, fields, NULL, NULL,
                                         tokenizer_close};

static int l_push(lua_State *L);
static int l_finish(lua_State *L);
static const luaL_Reg stream_methods[] = {{"push", l_push}, {"finish", l_finish}, {NULL, NULL}};
static const pe_class stream_class = {"perigee.Detokenizer", stream_methods, NULL, NULL, NULL,
                                      stream_close};

pe_tokenizer *pe_bind_tokenizer(lua_State *L, int arg) {
  return ((tokenizer *)pe_bind_check(L, arg, &tokenizer_class))->t;
}
static tokenizer *check(lua_State *L) { return pe_bind_check(L, 1, &tokenizer_class); }

/* ---- opening ------------------------------------------------------------------------------- */

/* [self] -> [self] or [nil, err]; rc is the status of opening self->t. */
static int finish_open(lua_State *L, tokenizer *self, pe_status rc, pe_error *err) {
  if (!rc) rc = pe_tokenizer_scratch_new(self->t, &self->scratch, err);
  if (rc) {
    tokenizer_close(self);
    memset(self, 0, sizeof *self);
    return pe_bind_error(L, err);
  }
  enum { TOKEN_BYTES = 64 }; /* about what a token takes: text, two table entries, a merge */
  pe_bind_opened(L, self, (uint64_t)pe_tokenizer_size(self->t) * TOKEN_BYTES);
  return 1;
}

typedef struct opening { /* data of a job */
  pe_tokenizer *t;
  pe_status rc;
  pe_error err;
  char path[];
} opening;

static void run_opening(void *data) {
  opening *o = data;
  o->rc = pe_tokenizer_open(o->path, &o->t, &o->err);
}

static int push_opened(lua_State *L, void *data) {
  opening *o = data;
  tokenizer *self = pe_bind_new(L, &tokenizer_class, sizeof *self, 0);
  self->t = o->t, o->t = NULL;
  return finish_open(L, self, o->rc, &o->err);
}

static void free_opening(void *data) {
  pe_tokenizer_release(((opening *)data)->t);
  pe_free(data);
}

static int open_in_job(lua_State *L, const char *path) {
  static const pe_job_kind kind = {run_opening, push_opened, free_opening};
  size_t size = strlen(path) + 1;
  int callback = pe_job_callback(L, 2);
  opening *o = pe_calloc(1, sizeof *o + size);
  if (o) memcpy(o->path, path, size);
  return pe_job_start(L, callback, &kind, o);
}

/* [path] -> [tokenizer] or [nil, err]; [path, callback] -> [true] or [nil, err] */
static int l_open(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  if (!lua_isnoneornil(L, 2)) return open_in_job(L, path);
  tokenizer *self = pe_bind_new(L, &tokenizer_class, sizeof *self, 0);
  pe_error err;
  pe_status rc = pe_tokenizer_open(path, &self->t, &err);
  return finish_open(L, self, rc, &err);
}

/* Integers that are not 31-bit ids become -1, which no vocabulary has. */
static int32_t id_of(lua_Integer id) { return id < 0 || id > INT32_MAX ? -1 : (int32_t)id; }

/* ---- encoding ------------------------------------------------------------------------------ */

/* The option "spans": a list of {from, to, trusted}, 1-based and inclusive. Pushes a userdata that
 * holds the spans it returns; NULL: no such option. */
static const pe_span *push_spans(lua_State *L, int arg, size_t len, size_t *count) {
  *count = 0;
  if (!pe_bind_option(L, arg, "spans")) return NULL;
  luaL_argcheck(L, lua_istable(L, -1), arg, "option 'spans' must be a list of {from, to, trusted}");
  int list = lua_gettop(L);
  size_t n = lua_rawlen(L, list);
  pe_span *spans = lua_newuserdatauv(L, (n + 1) * sizeof *spans, 0);
  for (size_t i = 0; i < n; i++) {
    if (lua_rawgeti(L, list, (lua_Integer)i + 1) != LUA_TTABLE)
      luaL_error(L, "spans[%d] must be {from, to, trusted}", (int)i + 1);
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    lua_rawgeti(L, -3, 3);
    lua_Integer from = luaL_checkinteger(L, -3), to = luaL_checkinteger(L, -2);
    lua_Integer least = i ? (lua_Integer)spans[i - 1].to + 1 : 1;
    if (from < least || to < from - 1 || to > (lua_Integer)len)
      luaL_error(L, "spans[%d] must be between %I and %I, got %I to %I", (int)i + 1,
                 (LUAI_UACINT)least, (LUAI_UACINT)len, (LUAI_UACINT)from, (LUAI_UACINT)to);
    spans[i] = (pe_span){(size_t)from - 1, (size_t)to, lua_toboolean(L, -1)};
    lua_pop(L, 4);
  }
  *count = n;
  return spans;
}

static int push_list(lua_State *L, const int32_t *id, size_t n) {
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    lua_pushinteger(L, id[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* [] -> [integer] of a list option, `name`[i]; i counts from 0. */
static lua_Integer push_integer(lua_State *L, int list, size_t i, const char *name) {
  if (lua_rawgeti(L, list, (lua_Integer)i + 1) != LUA_TNUMBER || !lua_isinteger(L, -1))
    luaL_error(L, "%s[%d] must be an integer", name, (int)i + 1);
  return lua_tointeger(L, -1);
}

/* The option "positions": byte offsets of the text in ascending order. Pushes a userdata that holds
 * the offsets it returns; NULL: no such option. */
static const size_t *push_offsets(lua_State *L, int arg, size_t len, size_t *count) {
  *count = 0;
  if (!pe_bind_option(L, arg, "positions")) return NULL;
  luaL_argcheck(L, lua_istable(L, -1), arg, "option 'positions' must be a list of byte offsets");
  int list = lua_gettop(L);
  size_t n = lua_rawlen(L, list);
  size_t *offset = lua_newuserdatauv(L, (n + 1) * sizeof *offset, 0);
  for (size_t i = 0; i < n; i++) {
    lua_Integer at = push_integer(L, list, i, "positions");
    lua_Integer least = i ? (lua_Integer)offset[i - 1] : 0;
    if (at < least || at > (lua_Integer)len)
      luaL_error(L, "positions[%d] must be between %I and %I, got %I", (int)i + 1,
                 (LUAI_UACINT)least, (LUAI_UACINT)len, (LUAI_UACINT)at);
    offset[i] = (size_t)at;
    lua_pop(L, 1);
  }
  *count = n;
  return offset;
}

static int compare_ids(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

/* The option "marks": a list of ids. Pushes a userdata that holds the sorted ids it returns; NULL:
 * no such option. */
static const int32_t *push_marks(lua_State *L, int arg, size_t *count) {
  *count = 0;
  if (!pe_bind_option(L, arg, "marks")) return NULL;
  luaL_argcheck(L, lua_istable(L, -1), arg, "option 'marks' must be a list of ids");
  int list = lua_gettop(L);
  size_t n = lua_rawlen(L, list);
  int32_t *id = lua_newuserdatauv(L, (n + 1) * sizeof *id, 0);
  for (size_t i = 0; i < n; i++) {
    id[i] = id_of(push_integer(L, list, i, "marks"));
    lua_pop(L, 1);
  }
  qsort(id, n, sizeof *id, compare_ids);
  *count = n;
  return id;
}

/* A text to encode, and the result. Text and lists are borrowed from the Lua stack, or owned by the
 * job: os.exit may close the Lua state while it runs. */
typedef struct encoding {
  pe_tokenizer *t;
  pe_str text;
  pe_stop *stop;
  pe_encode_options o;
  size_t most;          /* limit on the number of ids */
  const size_t *offset; /* NULL: no positions are wanted */
  size_t offsets, *position;
  pe_ids ids;
  pe_status rc;
  pe_error err;
} encoding;

static pe_status encode(encoding *e, pe_tokenizer_scratch *scratch, pe_error *err) {
  size_t valid = pe_utf8_valid(e->text.at, e->text.len);
  if (valid < e->text.len)
    return pe_fail(err, PE_EFORMAT, "the text is not UTF-8 at byte %zu", valid + 1);
  e->ids.count = 0, e->ids.offsets = e->offset != NULL;
  pe_status rc = pe_tokenizer_encode(e->t, scratch, e->text, &e->o, &e->ids, err);
  if (!rc && e->ids.count > e->most)
    rc = pe_fail(err, PE_ELIMIT, "text has %zu tokens, the limit is %zu", e->ids.count, e->most);
  if (!rc && e->offset)
    pe_tokenizer_positions(e->t, &e->o, &e->ids, e->text.len, e->offset, e->offsets, e->position);
  return rc;
}

/* [] -> [ids] and, if wanted, [positions]; or [nil, err]; at the limit err.count is the number of
 * ids */
static int push_encoded(lua_State *L, const encoding *e, pe_status rc, pe_error *err) {
  if (rc) {
    int n = pe_bind_error(L, err);
    if (rc == PE_ELIMIT) { /* a job does not go on to learn how many there are */
      bool exact = e->ids.count > e->most;
      lua_pushinteger(L, (lua_Integer)(exact ? e->ids.count : e->most));
      lua_setfield(L, -2, exact ? "count" : "above");
    }
    return n;
  }
  push_list(L, e->ids.id, e->ids.count);
  if (!e->offset) return 1;
  lua_createtable(L, (int)e->offsets, 0);
  for (size_t i = 0; i < e->offsets; i++) {
    lua_pushinteger(L, (lua_Integer)e->position[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 2;
}

static void run_encoding(void *data) {
  encoding *e = data;
  pe_tokenizer_scratch *scratch = NULL;
  e->o.most = e->most;
  e->o.stop = e->stop ? &e->stop->set : NULL;
  e->rc = pe_tokenizer_scratch_new(e->t, &scratch, &e->err);
  if (!e->rc) e->rc = encode(e, scratch, &e->err);
  pe_tokenizer_scratch_free(scratch);
}

static int push_encoding(lua_State *L, void *data) {
  encoding *e = data;
  return push_encoded(L, e, e->rc, &e->err);
}

static void free_encoding(void *data) {
  encoding *e = data;
  pe_free((void *)e->text.at);
  pe_stop_release(e->stop);
  pe_free((void *)e->o.span);
  pe_free((void *)e->o.mark);
  pe_free((void *)e->offset);
  pe_free(e->position);
  pe_ids_free(&e->ids);
  pe_tokenizer_release(e->t);
  pe_free(e);
}

/* One byte longer, so that a copy of nothing is not NULL. */
static void *copy(const void *from, size_t bytes) {
  void *p = pe_alloc(bytes + 1);
  if (p && bytes) memcpy(p, from, bytes);
  return p;
}

/* A copy that owns its lists and its references; NULL: out of memory. */
static encoding *copy_encoding(const encoding *from) {
  encoding *e = pe_calloc(1, sizeof *e);
  if (!e) return NULL;
  *e = *from;
  e->t = pe_tokenizer_retain(from->t), e->ids = (pe_ids){0};
  e->stop = pe_stop_retain(from->stop);
  e->text.at = copy(from->text.at, from->text.len);
  e->o.span = from->o.span ? copy(from->o.span, from->o.spans * sizeof *from->o.span) : NULL;
  e->o.mark = from->o.mark ? copy(from->o.mark, from->o.marks * sizeof *from->o.mark) : NULL;
  e->offset = from->offset ? copy(from->offset, from->offsets * sizeof *from->offset) : NULL;
  e->position = pe_calloc(from->offsets + 1, sizeof *e->position);
  bool whole = !e->o.span == !from->o.span && !e->o.mark == !from->o.mark;
  if (e->text.at && whole && !e->offset == !from->offset && e->position) return e;
  free_encoding(e);
  return NULL;
}

static int encode_in_job(lua_State *L, const encoding *e) {
  static const pe_job_kind kind = {run_encoding, push_encoding, free_encoding};
  int callback = pe_job_callback(L, 4);
  return pe_job_start(L, callback, &kind, copy_encoding(e));
}

/* [self, text, options] -> [ids] and, if wanted, [positions]; or [nil, err];
 * [self, text, options, callback] -> [true] or [nil, err] */
static int l_encode(lua_State *L) {
  static const char *const keys[] = {"add_special", "parse_special", "spans", "marks",
                                     "positions",   "max_ids",       "stop",  NULL};
  tokenizer *t = check(L);
  encoding e = {.t = t->t};
  lua_settop(L, 4);
  e.text.at = luaL_checklstring(L, 2, &e.text.len);
  pe_bind_options(L, 3, keys);
  e.o.add_special = pe_bind_boolean(L, 3, "add_special", false);
  e.o.parse_special = pe_bind_boolean(L, 3, "parse_special", true);
  e.most = (size_t)pe_bind_integer(L, 3, "max_ids", 0, INT32_MAX, INT32_MAX);
  e.stop = pe_stop_option(L, 3, "stop");
  e.o.span = push_spans(L, 3, e.text.len, &e.o.spans);
  e.o.mark = push_marks(L, 3, &e.o.marks);
  e.offset = push_offsets(L, 3, e.text.len, &e.offsets);
  if (!lua_isnoneornil(L, 4)) return encode_in_job(L, &e);
  e.position = lua_newuserdatauv(L, (e.offsets + 1) * sizeof *e.position, 0);
  t = check(L); /* a finalizer may have run */
  pe_error err;
  e.ids = t->ids, t->ids = (pe_ids){0};
  pe_status rc = encode(&e, t->scratch, &err);
  t->ids = e.ids; /* owned by t again before Lua can raise */
  return push_encoded(L, &e, rc, &err);
}

/* ---- decoding ------------------------------------------------------------------------------ */

static int push_text(lua_State *L, const pe_buf *b) {
  lua_pushlstring(L, b->data ? b->data : "", b->len);
  return 1;
}

static int l_decode(lua_State *L) { /* [self, ids, {skip_special}] -> [text] or [nil, err] */
  static const char *const keys[] = {"skip_special", NULL};
  tokenizer *t = check(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  pe_bind_options(L, 3, keys);
  bool skip = pe_bind_boolean(L, 3, "skip_special", false);
  size_t n = lua_rawlen(L, 2);
  int32_t *id = lua_newuserdatauv(L, (n + 1) * sizeof *id, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    if (!lua_isinteger(L, -1)) return luaL_error(L, "ids[%d] must be an integer", (int)i + 1);
    id[i] = id_of(lua_tointeger(L, -1));
    lua_pop(L, 1);
  }
  pe_error err;
  t->text.len = 0;
  if (pe_tokenizer_decode(t->t, id, n, skip, &t->text, &err)) return pe_bind_error(L, &err);
  return push_text(L, &t->text);
}

static int l_stream(lua_State *L) { /* [self, {skip_special}] -> [detokenizer] or [nil, err] */
  static const char *const keys[] = {"skip_special", NULL};
  tokenizer *t = check(L);
  pe_bind_options(L, 2, keys);
  bool skip = pe_bind_boolean(L, 2, "skip_special", false);
  stream *s = pe_bind_new(L, &stream_class, sizeof *s, 1);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1); /* keeps the tokenizer open */
  pe_error err;
  if (pe_detokenizer_new(t->t, skip, &s->d, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, s, 0);
  return 1;
}

static int push_piece(lua_State *L, stream *s, pe_status rc, const pe_error *err) {
  if (rc) return pe_bind_error(L, err);
  return push_text(L, &s->text);
}

static int l_push(lua_State *L) { /* [self, id] -> [piece] or [nil, err] */
  stream *s = pe_bind_check(L, 1, &stream_class);
  pe_error err;
  s->text.len = 0;
  return push_piece(L, s, pe_detokenizer_push(s->d, id_of(luaL_checkinteger(L, 2)), &s->text, &err),
                    &err);
}

static int l_finish(lua_State *L) { /* [self] -> [piece] or [nil, err] */
  stream *s = pe_bind_check(L, 1, &stream_class);
  pe_error err;
  s->text.len = 0;
  return push_piece(L, s, pe_detokenizer_finish(s->d, &s->text, &err), &err);
}

/* ---- vocabulary ---------------------------------------------------------------------------- */

static int l_token(lua_State *L) { /* [self, id] -> [text] or [nil] */
  pe_str s = pe_tokenizer_text(check(L)->t, id_of(luaL_checkinteger(L, 2)));
  if (s.at)
    lua_pushlstring(L, s.at, s.len);
  else
    luaL_pushfail(L);
  return 1;
}

static int l_bytes(lua_State *L) { /* [self, id] -> [bytes] or [nil, err] */
  tokenizer *t = check(L);
  pe_error err;
  t->text.len = 0;
  if (pe_tokenizer_bytes(t->t, id_of(luaL_checkinteger(L, 2)), &t->text, &err))
    return pe_bind_error(L, &err);
  return push_text(L, &t->text);
}

static int l_id(lua_State *L) { /* [self, token] -> [id] or [nil] */
  tokenizer *t = check(L);
  pe_str s;
  s.at = luaL_checklstring(L, 2, &s.len);
  int32_t id = pe_tokenizer_id(t->t, s);
  if (id >= 0)
    lua_pushinteger(L, id);
  else
    luaL_pushfail(L);
  return 1;
}

static int l_is_special(lua_State *L) { /* [self, id] -> [boolean] */
  lua_pushboolean(L, pe_tokenizer_is_special(check(L)->t, id_of(luaL_checkinteger(L, 2))));
  return 1;
}

static int l_added(lua_State *L) { /* [self] -> [ids] */
  const pe_tokenizer *t = check(L)->t;
  lua_newtable(L);
  lua_Integer n = 0;
  for (int32_t id = 0; id < pe_tokenizer_size(t); id++) {
    if (!pe_tokenizer_is_added(t, id)) continue;
    lua_pushinteger(L, id);
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

static int push_special(lua_State *L, pe_special which) {
  int32_t id = pe_tokenizer_special(check(L)->t, which);
  if (id >= 0)
    lua_pushinteger(L, id);
  else
    lua_pushnil(L);
  return 1;
}

static int l_size(lua_State *L) {
  lua_pushinteger(L, pe_tokenizer_size(check(L)->t));
  return 1;
}
static int l_bos(lua_State *L) { return push_special(L, PE_BOS); }
static int l_eos(lua_State *L) { return push_special(L, PE_EOS); }
static int l_unk(lua_State *L) { return push_special(L, PE_UNK); }
static int l_pad(lua_State *L) { return push_special(L, PE_PAD); }

int pe_open_tokenizer(lua_State *L) {
  static const luaL_Reg functions[] = {{"open", l_open}, {NULL, NULL}};
  pe_bind_class(L, &tokenizer_class);
  pe_bind_class(L, &stream_class);
  luaL_newlib(L, functions);
  return 1;
}
