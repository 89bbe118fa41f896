/* l_weights.c - perigee.weights: the tensors of a model's files. Descriptions become tables; values
 * stay in the mapping and are decoded for one range of rows at a time. */
#include <stdio.h>
#include <string.h>

#include "lua/job.h"
#include "lua/l_graph.h"
#include "runtime/utf8.h"

typedef struct weights {
  pe_weights *w;
} weights;

static void weights_close(void *self) { pe_weights_release(((weights *)self)->w); }

static int l_names(lua_State *L);
static int l_find(lua_State *L);
static int l_rows(lua_State *L);
static int l_metadata(lua_State *L);
static int l_summary(lua_State *L);
static int l_files(lua_State *L);
static int l_touch(lua_State *L);
static int l_check(lua_State *L);
static int l_count(lua_State *L);
static int l_bytes(lua_State *L);
static int l_path(lua_State *L);

static const luaL_Reg methods[] = {
    {"names", l_names},       {"find", l_find},       {"rows", l_rows},
    {"metadata", l_metadata}, {"summary", l_summary}, {"files", l_files},
    {"touch", l_touch},       {"check", l_check},     {NULL, NULL}};
static const luaL_Reg fields[] = {
    {"count", l_count}, {"bytes", l_bytes}, {"path", l_path}, {NULL, NULL}};
static const pe_class weights_class = {"perigee.Weights", methods, fields, NULL, NULL,
                                       weights_close};

static pe_weights *check(lua_State *L) {
  return ((weights *)pe_bind_check(L, 1, &weights_class))->w;
}

pe_weights *pe_bind_weights(lua_State *L, int arg) {
  return ((weights *)pe_bind_check(L, arg, &weights_class))->w;
}

static int l_open(lua_State *L) { /* [path] -> [weights] or [nil, err] */
  const char *path = luaL_checkstring(L, 1);
  weights *self = pe_bind_new(L, &weights_class, sizeof *self, 0);
  pe_error err;
  if (pe_weights_open(path, &self->w, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, self, 0); /* mapped files are not memory that the collector could free */
  return 1;
}

static int l_count(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check(L)->count);
  return 1;
}

static int l_bytes(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check(L)->bytes);
  return 1;
}

static int l_path(lua_State *L) {
  lua_pushstring(L, check(L)->path);
  return 1;
}

static int l_names(lua_State *L) { /* [self] -> [list], in the order of the files */
  pe_weights *w = check(L);
  lua_createtable(L, (int)w->count, 0);
  for (size_t i = 0; i < w->count; i++) {
    lua_pushlstring(L, w->list[i].name.at, w->list[i].name.len);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static void set_integer(lua_State *L, const char *key, int64_t n) {
  lua_pushinteger(L, n);
  lua_setfield(L, -2, key);
}

static int l_find(lua_State *L) { /* [self, name] -> [description] or [nil] */
  pe_weights *w = check(L);
  const pe_weight *x = pe_weights_find(w, luaL_checkstring(L, 2));
  if (!x) {
    luaL_pushfail(L);
    return 1;
  }
  char label[PE_WEIGHT_LABEL];
  pe_weight_label(x, label);
  lua_newtable(L);
  lua_pushlstring(L, x->name.at, x->name.len);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, label);
  lua_setfield(L, -2, "kind");
  lua_createtable(L, x->rank, 0);
  for (int i = 0; i < x->rank; i++) {
    lua_pushinteger(L, x->shape[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "shape");
  set_integer(L, "bytes", (int64_t)x->bytes);
  set_integer(L, "rows", x->rows);
  set_integer(L, "cols", x->cols);
  set_integer(L, "file", x->file + 1);
  set_integer(L, "parts", x->part_count);
  return 1;
}

static int l_files(lua_State *L) { /* [self] -> [list of paths] */
  pe_weights *w = check(L);
  lua_newtable(L);
  for (size_t i = 0; i < w->file_count; i++) {
    lua_pushstring(L, w->files[i].path);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* [self] -> [list of {kind, count, values, bytes}] or [nil, err] */
static int l_summary(lua_State *L) {
  pe_weights *w = check(L);
  pe_weights_kind *kinds = NULL, copy[64];
  size_t count = 0;
  pe_error err;
  if (pe_weights_summary(w, &kinds, &count, &err)) return pe_bind_error(L, &err);
  if (count > 64) count = 64; /* copied, because making tables may raise and `kinds` would leak */
  if (count) memcpy(copy, kinds, count * sizeof *copy);
  pe_free(kinds);
  lua_newtable(L);
  for (size_t i = 0; i < count; i++) {
    lua_newtable(L);
    lua_pushstring(L, copy[i].label);
    lua_setfield(L, -2, "kind");
    set_integer(L, "count", (int64_t)copy[i].count);
    set_integer(L, "values", copy[i].values);
    set_integer(L, "bytes", (int64_t)copy[i].bytes);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* A table of 2^24 numbers takes 256 MB. */
enum { MOST_VALUES = 1 << 24 };

static int l_rows(lua_State *L) { /* [self, name, options] -> [list of numbers] or [nil, err] */
  static const char *const keys[] = {"from", "count", NULL};
  pe_weights *w = check(L);
  const pe_weight *x = pe_weights_find(w, luaL_checkstring(L, 2));
  if (!x) return luaL_argerror(L, 2, "no such tensor");
  pe_bind_options(L, 3, keys);
  int64_t from = pe_bind_integer(L, 3, "from", 1, x->rows > 0 ? x->rows : 1, 1);
  int64_t count = pe_bind_integer(L, 3, "count", 0, x->rows - from + 1, 1);
  int64_t values = count * x->cols;
  if (values > MOST_VALUES)
    return luaL_error(L, "%I values do not fit in a table (at most %d): ask for fewer rows",
                      (LUAI_UACINT)values, MOST_VALUES);
  float *out = lua_newuserdatauv(L, (size_t)(values + 1) * sizeof *out, 0);
  pe_error err;
  if (pe_weight_dequant(x, from - 1, count, out, &err)) return pe_bind_error(L, &err);
  lua_createtable(L, (int)values, 0);
  for (int64_t i = 0; i < values; i++) {
    lua_pushnumber(L, (lua_Number)out[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* ---- metadata -------------------------------------------------------------------------------- */

/* Pushes text of a file. The format promises UTF-8 and callers write it as JSON: one U+FFFD stands
 * for each broken part. */
static void push_text(lua_State *L, pe_str s) {
  if (!s.len || pe_utf8_valid(s.at, s.len) == s.len) {
    lua_pushlstring(L, s.at, s.len);
    return;
  }
  luaL_Buffer out;
  luaL_buffinit(L, &out);
  for (const char *at = s.at, *end = at + s.len; at < end;) {
    char one[4];
    int32_t cp;
    at += pe_utf8_next(at, end, &cp);
    luaL_addlstring(&out, one, (size_t)pe_utf8_put(one, cp));
  }
  luaL_pushresult(&out);
}

/* Pushes element i of a GGUF value; a string is read at *at, which moves on. */
static void push_element(lua_State *L, const pe_gguf_meta *m, pe_gguf_type type, uint64_t i,
                         const uint8_t **at) {
  if (type == PE_GGUF_STRING) {
    push_text(L, pe_gguf_str_next(at));
  } else if (type == PE_GGUF_BOOL) {
    lua_pushboolean(L, pe_gguf_int_at(m, i) != 0);
  } else if (type == PE_GGUF_F32 || type == PE_GGUF_F64) {
    lua_pushnumber(L, pe_gguf_float_at(m, i));
  } else {
    lua_pushinteger(L, pe_gguf_int_at(m, i));
  }
}

static void push_meta(lua_State *L, const pe_gguf_meta *m, lua_Integer most) {
  const uint8_t *at = m->data;
  if (m->type != PE_GGUF_ARRAY) {
    push_element(L, m, m->type, 0, &at);
    return;
  }
  uint64_t n = m->count < (uint64_t)most ? m->count : (uint64_t)most;
  lua_createtable(L, (int)n, 1);
  for (uint64_t i = 0; i < n; i++) {
    push_element(L, m, m->element, i, &at);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  set_integer(L, "n", (int64_t)m->count);
}

/* [self, options] -> [list of {key, value}] of a GGUF file, in its order. Arrays have at most
 * `most` elements, and their full length as n. For other files the list is empty. */
static int l_metadata(lua_State *L) {
  static const char *const keys[] = {"most", NULL};
  pe_weights *w = check(L);
  pe_bind_options(L, 2, keys);
  lua_Integer most = pe_bind_integer(L, 2, "most", 0, INT32_MAX, INT32_MAX);
  const pe_gguf *g = pe_weights_gguf(w);
  lua_newtable(L);
  for (size_t i = 0; g && i < g->meta_count; i++) {
    lua_createtable(L, 2, 0);
    push_text(L, g->meta[i].key);
    lua_rawseti(L, -2, 1);
    push_meta(L, &g->meta[i], most);
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

typedef struct reading { /* a job */
  pe_weights *w;         /* retained */
  const pe_weight *one;  /* to touch; NULL: all files are checked */
  pe_status status;
  pe_error err;
} reading;

static void run_reading(void *data) {
  reading *r = data;
  if (r->one) pe_weight_touch(r->one);
  r->status = (r->one ? pe_weights_intact : pe_weights_check)(r->w, &r->err);
}

static int push_read(lua_State *L, void *data) {
  const reading *r = data;
  if (r->status) return pe_bind_error(L, &r->err);
  if (r->one)
    lua_pushinteger(L, (lua_Integer)r->one->bytes);
  else
    lua_pushboolean(L, 1);
  return 1;
}

static void free_reading(void *data) {
  pe_weights_release(((reading *)data)->w);
  pe_free(data);
}

static int read_in_job(lua_State *L, int arg, pe_weights *w, const pe_weight *one) {
  static const pe_job_kind kind = {run_reading, push_read, free_reading};
  int callback = pe_job_callback(L, arg);
  reading *r = pe_calloc(1, sizeof *r);
  if (r) r->w = pe_weights_retain(w), r->one = one;
  return pe_job_start(L, callback, &kind, r);
}

/* At once, or with a function at arg in a job. */
static int read_weights(lua_State *L, int arg, pe_weights *w, const pe_weight *one) {
  if (!lua_isnoneornil(L, arg)) return read_in_job(L, arg, w, one);
  reading r = {.w = w, .one = one};
  run_reading(&r);
  return push_read(L, &r);
}

/* [self, index] -> [bytes] of the weight, once its pages are in memory, or [nil, err]; with a
 * callback [true] or [nil, err], and the callback gets the others */
static int l_touch(lua_State *L) {
  pe_weights *w = check(L);
  lua_Integer i = luaL_checkinteger(L, 2);
  luaL_argcheck(L, i >= 1 && (uint64_t)i <= w->count, 2, "no such weight");
  return read_weights(L, 3, w, &w->list[i - 1]);
}

/* [self] -> [true] or [nil, err]: are the files as they were? With a callback as touch. */
static int l_check(lua_State *L) { return read_weights(L, 2, check(L), NULL); }

/* ---- writing --------------------------------------------------------------------------------- */

/* Reads {name, dtype, shape, bytes} at the top of the stack. Its strings stay alive in the caller's
 * list. */
static void read_item(lua_State *L, pe_safetensors_item *x) {
  int t = lua_gettop(L);
  luaL_checktype(L, t, LUA_TTABLE);
  lua_getfield(L, t, "name"), x->name = luaL_checkstring(L, -1);
  lua_getfield(L, t, "dtype");
  const char *dtype = luaL_checkstring(L, -1);
  int found = pe_dtype_find(dtype, strlen(dtype));
  if (found < 0) luaL_error(L, "unknown dtype '%s'", dtype);
  x->dtype = (pe_dtype)found;
  lua_getfield(L, t, "shape");
  luaL_checktype(L, -1, LUA_TTABLE);
  x->rank = (int)lua_rawlen(L, -1);
  if (x->rank > PE_SAFETENSORS_MAX_RANK)
    luaL_error(L, "%s: at most %d dimensions, got %d", x->name, PE_SAFETENSORS_MAX_RANK, x->rank);
  uint64_t want = pe_dtype_size(x->dtype);
  for (int i = 0; i < x->rank; i++) {
    lua_rawgeti(L, -1, i + 1);
    x->shape[i] = luaL_checkinteger(L, -1);
    if (x->shape[i] < 0 || !pe_mul_size(want, (uint64_t)x->shape[i], &want))
      luaL_error(L, "%s: dimension %d is negative or too large", x->name, i + 1);
    lua_pop(L, 1);
  }
  lua_getfield(L, t, "bytes");
  size_t have;
  x->data = luaL_checklstring(L, -1, &have);
  if (have != want)
    luaL_error(L, "%s: the shape needs %I bytes, got %I", x->name, (LUAI_UACINT)want,
               (LUAI_UACINT)have);
  lua_settop(L, t);
}

/* [path, list of {name, dtype, shape, bytes}] -> [true] or [nil, err] */
static int l_save(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  size_t n = lua_rawlen(L, 2);
  pe_safetensors_item *items = lua_newuserdatauv(L, (n + 1) * sizeof *items, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    read_item(L, &items[i]);
    lua_pop(L, 1);
  }
  pe_error err;
  if (pe_safetensors_write(path, items, n, &err)) return pe_bind_error(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

/* ---- synthetic ------------------------------------------------------------------------------- */

/* Reads a kind of storage: "affine4g64", "mxfp4", "q4_0", "bf16" ... */
static void read_kind(lua_State *L, const char *name, pe_weight_shape *s) {
  int bits, group, end = 0;
  char upper[16] = "";
  for (size_t i = 0; name[i] && i + 1 < sizeof upper; i++)
    upper[i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 32 : name[i]);
  int dtype = pe_dtype_find(name, strlen(name)), kind = pe_quant_find(name, strlen(name));
  if (kind < 0) kind = pe_quant_find(upper, strlen(upper));
  if (sscanf(name, "affine%dg%d%n", &bits, &group, &end) == 2 && !name[end]) {
    s->quant = (pe_quant){PE_QUANT_AFFINE, bits, group, PE_BF16};
  } else if (dtype == PE_F32 || dtype == PE_F16 || dtype == PE_BF16) {
    s->dtype = (pe_dtype)dtype;
  } else if (kind == PE_QUANT_MXFP4 || kind == PE_QUANT_MXFP8 || kind == PE_QUANT_NVFP4) {
    s->quant = (pe_quant){(pe_quant_kind)kind, kind == PE_QUANT_MXFP8 ? 8 : 4,
                          kind == PE_QUANT_NVFP4 ? 16 : 32, PE_U8};
  } else if (kind > PE_QUANT_NVFP4) {
    s->quant.kind = (pe_quant_kind)kind;
  } else {
    luaL_error(L,
               "unknown kind of storage '%s' (known are bf16, affine4g64, mxfp4, q4_0 and others)",
               name);
  }
  if (s->quant.kind != PE_QUANT_NONE && !pe_quant_valid(&s->quant))
    luaL_error(L, "there is no quantisation '%s'", name);
}

/* [list of {name, kind, shape}] -> [weights] or [nil, err] */
static int l_synthetic(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  size_t n = lua_rawlen(L, 1);
  pe_weight_shape *list = lua_newuserdatauv(L, (n + 1) * sizeof *list, 0);
  memset(list, 0, (n + 1) * sizeof *list);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 1, (lua_Integer)i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    lua_getfield(L, -1, "name"),
        list[i].name = luaL_checkstring(L, -1); /* stays alive in the list */
    lua_getfield(L, -2, "kind"), read_kind(L, luaL_checkstring(L, -1), &list[i]);
    lua_getfield(L, -3, "shape");
    luaL_checktype(L, -1, LUA_TTABLE);
    list[i].rank = (int)lua_rawlen(L, -1);
    if (list[i].rank < 1 || list[i].rank > PE_WEIGHT_MAX_RANK)
      return luaL_error(L, "%s: between 1 and %d dimensions, got %d", list[i].name,
                        PE_WEIGHT_MAX_RANK, list[i].rank);
    for (int d = 0; d < list[i].rank; d++) {
      lua_rawgeti(L, -1, d + 1);
      list[i].shape[d] = luaL_checkinteger(L, -1);
      lua_pop(L, 1);
    }
    lua_settop(L, 2);
  }
  weights *self = pe_bind_new(L, &weights_class, sizeof *self, 0);
  pe_error err;
  if (pe_weights_synthetic(list, n, 1, &self->w, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, self, self->w->bytes);
  return 1;
}

int pe_open_weights(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"open", l_open}, {"save", l_save}, {"synthetic", l_synthetic}, {NULL, NULL}};
  pe_bind_class(L, &weights_class);
  luaL_newlib(L, functions);
  return 1;
}
