/* l_tensor.c - perigee.tensor: the class, arguments, fields and printing; see l_tensor.h. */
#include "lua/l_tensor.h"

#include <string.h>

/* ---- objects --------------------------------------------------------------------------------- */

static void close_tensor(void *self) { pe_tensor_close(self); }

pe_tensor *pe_tensor_arg(lua_State *L, int arg) { return pe_bind_check(L, arg, &pe_tensor_class); }
pe_tensor *pe_tensor_slot(lua_State *L) {
  return pe_bind_new(L, &pe_tensor_class, sizeof(pe_tensor), 0);
}

enum { STEP_KB = 1024, MOST_STEPS = 64 };

/* bind.c steps the collector for the first megabyte of an object; this adds a step for each further
 * megabyte, so that dead tensors do not pile up before a cycle of a large Lua heap ends. MOST_STEPS
 * bounds the pause of one call. */
static void step_for_more(lua_State *L, uint64_t bytes) {
  uint64_t steps = bytes / (STEP_KB << 10);
  if (steps > MOST_STEPS) steps = MOST_STEPS;
  for (uint64_t i = 1; i < steps && !lua_gc(L, LUA_GCSTEP, STEP_KB); i++) continue;
}

int pe_tensor_give(lua_State *L, pe_tensor *slot, pe_status rc, const pe_error *err) {
  if (rc) return pe_bind_raise(L, err);
  uint64_t bytes = pe_tensor_bytes(slot);
  pe_bind_opened(L, slot, bytes);
  step_for_more(L, bytes);
  return 1;
}

int pe_tensor_give_view(lua_State *L, pe_tensor *slot, pe_status rc, const pe_error *err) {
  if (rc) return pe_bind_raise(L, err);
  pe_bind_opened(L, slot, 0);
  return 1;
}

/* ---- arguments ------------------------------------------------------------------------------- */

pe_number pe_tensor_number_arg(lua_State *L, int arg) {
  if (lua_isboolean(L, arg)) return pe_number_int(lua_toboolean(L, arg));
  if (lua_type(L, arg) != LUA_TNUMBER) luaL_typeerror(L, arg, "number");
  return lua_isinteger(L, arg) ? pe_number_int(lua_tointeger(L, arg))
                               : pe_number_float(lua_tonumber(L, arg));
}

const pe_tensor *pe_tensor_operand(lua_State *L, int arg, pe_dtype like) {
  if (lua_isuserdata(L, arg)) return pe_tensor_arg(L, arg);
  if (lua_type(L, arg) != LUA_TNUMBER && !lua_isboolean(L, arg))
    luaL_typeerror(L, arg, "tensor or number");
  pe_error err;
  pe_number n = pe_tensor_number_arg(L, arg);
  pe_tensor *slot = pe_tensor_slot(L);
  pe_tensor_give(L, slot, pe_tensor_scalar(n, like, slot, &err), &err);
  lua_replace(L, arg);
  return slot;
}

void pe_tensor_push_number(lua_State *L, pe_number n, pe_dtype dtype) {
  if (dtype == PE_BOOL)
    lua_pushboolean(L, n.i != 0);
  else if (n.kind == PE_NUMBER_INT || (n.kind == PE_NUMBER_UINT && n.u <= INT64_MAX))
    lua_pushinteger(L, n.i);
  else
    lua_pushnumber(L, pe_number_as_float(n));
}

int pe_tensor_axis_arg(lua_State *L, int arg, int rank, int absent) {
  if (lua_isnoneornil(L, arg)) return absent;
  lua_Integer given = luaL_checkinteger(L, arg);
  if (given == 0 || given > rank || given < -rank)
    luaL_argerror(L, arg,
                  lua_pushfstring(L, "there is no axis %I, the tensor has rank %d",
                                  (LUAI_UACINT)given, rank));
  return (int)(given < 0 ? given + rank : given - 1);
}

int64_t pe_tensor_position(lua_State *L, int arg, int64_t given, int64_t len, const char *what) {
  if (given == 0 || given > len || given < -len)
    luaL_argerror(L, arg,
                  lua_pushfstring(L, "position %I is out of range: %s has %I", (LUAI_UACINT)given,
                                  what, (LUAI_UACINT)len));
  return given < 0 ? given + len : given - 1;
}

int pe_tensor_shape_arg(lua_State *L, int arg, int64_t *shape) {
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_Unsigned n = lua_rawlen(L, arg);
  if (n > PE_TENSOR_RANK)
    luaL_argerror(
        L, arg,
        lua_pushfstring(L, "at most %d dimensions, got %I", PE_TENSOR_RANK, (LUAI_UACINT)n));
  for (int i = 0; i < (int)n; i++) {
    int whole = 0;
    if (lua_rawgeti(L, arg, i + 1) == LUA_TNUMBER) shape[i] = lua_tointegerx(L, -1, &whole);
    if (!whole)
      luaL_argerror(
          L, arg,
          lua_pushfstring(L, "dimension %d: integer expected, got %s", i + 1,
                          lua_type(L, -1) == LUA_TNUMBER ? "a fraction" : luaL_typename(L, -1)));
    lua_pop(L, 1);
  }
  return (int)n;
}

pe_dtype pe_tensor_dtype_arg(lua_State *L, int arg, const char *name, size_t len) {
  int dtype = pe_dtype_find(name, len);
  if (dtype < 0) luaL_argerror(L, arg, lua_pushfstring(L, "unknown dtype '%s'", name));
  return (pe_dtype)dtype;
}

/* ---- fields and elements --------------------------------------------------------------------- */

static int push_list(lua_State *L, int n, const int64_t *list) {
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushinteger(L, list[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int get_shape(lua_State *L) {
  pe_tensor *t = pe_tensor_arg(L, 1);
  return push_list(L, t->rank, t->shape);
}

static int get_strides(lua_State *L) {
  pe_tensor *t = pe_tensor_arg(L, 1);
  return push_list(L, t->rank, t->strides);
}

static int get_dtype(lua_State *L) {
  lua_pushstring(L, pe_dtype_name(pe_tensor_arg(L, 1)->dtype));
  return 1;
}

static int get_rank(lua_State *L) {
  lua_pushinteger(L, pe_tensor_arg(L, 1)->rank);
  return 1;
}

static int get_size(lua_State *L) {
  lua_pushinteger(L, pe_tensor_size(pe_tensor_arg(L, 1)));
  return 1;
}

static int get_nbytes(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)pe_tensor_bytes(pe_tensor_arg(L, 1)));
  return 1;
}

static int get_contiguous(lua_State *L) {
  lua_pushboolean(L, pe_tensor_is_contiguous(pe_tensor_arg(L, 1)));
  return 1;
}

static int tensor_len(lua_State *L) {
  pe_tensor *t = pe_tensor_arg(L, 1);
  if (t->rank == 0) return luaL_error(L, "#: a tensor of rank 0 has no first dimension");
  lua_pushinteger(L, t->shape[0]);
  return 1;
}

/* [self, key] -> t[i]: of a vector a number, else a view with one axis less; nil past the end, as
 * in a table. */
static int tensor_index(lua_State *L) {
  pe_error err;
  int whole;
  lua_Integer given = lua_type(L, 2) == LUA_TNUMBER ? lua_tointegerx(L, 2, &whole) : 0;
  if (lua_type(L, 2) != LUA_TNUMBER || !whole) {
    lua_pushnil(L);
    return 1;
  }
  pe_tensor *t = pe_tensor_arg(L, 1);
  if (t->rank == 0) return luaL_error(L, "index: a tensor of rank 0 has no positions");
  int64_t len = t->shape[0], at = given < 0 ? given + len : given - 1;
  if (given == 0 || at < 0 || at >= len) {
    lua_pushnil(L);
    return 1;
  }
  if (t->rank == 1) {
    pe_tensor_push_number(L, pe_tensor_get(t, &at), t->dtype);
    return 1;
  }
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give_view(L, slot, pe_tensor_select(t, 0, at, slot, &err), &err);
}

/* [self, key, value] -> []: writes a number or tensor to row i. */
static int tensor_newindex(lua_State *L) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  if (lua_type(L, 2) == LUA_TSTRING)
    return luaL_error(L, "a tensor has no field '%s' to set", lua_tostring(L, 2));
  if (!lua_isinteger(L, 2))
    return luaL_error(L, "a tensor is indexed by integers, got %s", luaL_typename(L, 2));
  if (t->rank == 0) return luaL_error(L, "index: a tensor of rank 0 has no positions");
  int64_t at = pe_tensor_position(L, 2, lua_tointeger(L, 2), t->shape[0], "axis 1");
  bool tensor = lua_isuserdata(L, 3);
  pe_number n = tensor ? pe_number_int(0) : pe_tensor_number_arg(L, 3);
  pe_tensor *place = pe_tensor_slot(L);
  pe_tensor_give_view(L, place, pe_tensor_select(pe_tensor_arg(L, 1), 0, at, place, &err), &err);
  if (tensor ? pe_tensor_write(place, pe_tensor_arg(L, 3), &err) : pe_tensor_fill(place, n, &err))
    return pe_bind_raise(L, &err);
  return 0;
}

static int tensor_item(lua_State *L) {
  char s[PE_SHAPE_TEXT];
  pe_tensor *t = pe_tensor_arg(L, 1);
  if (pe_tensor_size(t) != 1)
    return luaL_error(L, "item: the tensor must have one element, its shape is %s",
                      pe_shape_text(t->rank, t->shape, s));
  pe_tensor_push_number(L, pe_tensor_get(t, (int64_t[PE_TENSOR_RANK]){0}), t->dtype);
  return 1;
}

static void push_table(lua_State *L, const pe_tensor *t, int axis, int64_t *index) {
  if (axis == t->rank) {
    pe_tensor_push_number(L, pe_tensor_get(t, index), t->dtype);
    return;
  }
  lua_createtable(L, t->shape[axis] < 1 << 16 ? (int)t->shape[axis] : 1 << 16, 0);
  for (index[axis] = 0; index[axis] < t->shape[axis]; index[axis]++) {
    push_table(L, t, axis + 1, index);
    lua_rawseti(L, -2, index[axis] + 1);
  }
}

static int tensor_totable(lua_State *L) {
  int64_t index[PE_TENSOR_RANK];
  luaL_checkstack(L, PE_TENSOR_RANK + 4, "totable");
  pe_tensor *view =
      pe_tensor_slot(L); /* our own: no finalizer can close it while tables are created */
  pe_tensor_give_view(L, view, pe_tensor_same(pe_tensor_arg(L, 1), view), NULL);
  push_table(L, view, 0, index);
  return 1;
}

static int tensor_bytes(lua_State *L) {
  pe_error err;
  pe_tensor *flat = pe_tensor_slot(L), *t = pe_tensor_arg(L, 1);
  pe_tensor_give(L, flat, pe_tensor_contiguous(t, flat, &err), &err);
  lua_pushlstring(L, (const char *)pe_tensor_data(flat), (size_t)pe_tensor_bytes(flat));
  return 1;
}

static void set_number(lua_State *L, const char *key, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, key);
}

static void set_integer(lua_State *L, const char *key, int64_t value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, key);
}

static int tensor_stats(lua_State *L) {
  pe_tensor_summary s;
  pe_tensor_stats(pe_tensor_arg(L, 1), &s);
  lua_createtable(L, 0, 8);
  set_integer(L, "count", s.count);
  set_integer(L, "nan", s.nan);
  set_integer(L, "inf", s.inf);
  set_integer(L, "zero", s.zero);
  set_number(L, "min", s.min);
  set_number(L, "max", s.max);
  set_number(L, "mean", s.mean);
  set_number(L, "std", s.std);
  return 1;
}

enum { MAX_BINS = 1 << 20 };

/* [self, bins, {low, high}] -> [{counts, low, high}] */
static int tensor_histogram(lua_State *L) {
  static const char *const keys[] = {"low", "high", NULL};
  pe_error err;
  pe_tensor_summary s;
  pe_tensor *t = pe_tensor_arg(L, 1);
  lua_Integer bins = luaL_optinteger(L, 2, 16);
  luaL_argcheck(L, bins >= 1 && bins <= MAX_BINS, 2, "between 1 and 1048576 bins expected");
  pe_bind_options(L, 3, keys);
  pe_tensor_stats(t, &s);
  bool none = s.mean != s.mean; /* no element is finite */
  double low = pe_bind_number(L, 3, "low", none ? 0 : s.min),
         high = pe_bind_number(L, 3, "high", none ? 1 : s.max);
  int64_t *counts = lua_newuserdatauv(L, (size_t)bins * sizeof *counts, 0);
  t = pe_tensor_arg(L, 1);
  if (pe_tensor_histogram(t, low, high, counts, (int)bins, &err)) return pe_bind_raise(L, &err);
  lua_createtable(L, 0, 3);
  push_list(L, (int)bins, counts);
  lua_setfield(L, -2, "counts");
  set_number(L, "low", low);
  set_number(L, "high", high);
  return 1;
}

/* ---- printing -------------------------------------------------------------------------------- */

enum { SHOW_ALL = 256 }; /* a tensor with more elements prints as one line */

typedef pe_status print_fn(const pe_tensor *t, const pe_print_options *o, pe_buf *out,
                           pe_error *err);

/* [pe_buf] -> [string] */
static int push_text(lua_State *L) {
  const pe_buf *text = lua_touserdata(L, 1);
  lua_pushlstring(L, text->data, text->len);
  return 1;
}

/* [] -> [string], or raises; frees the text in both cases. */
static void push_printed(lua_State *L, const pe_tensor *t, const pe_print_options *o,
                         print_fn *fn) {
  pe_buf text = {0};
  pe_error err;
  luaL_checkstack(L, 4, "tensor");
  pe_status rc = fn(t, o, &text, &err);
  int failed = 0;
  if (!rc) {
    lua_pushcfunction(L, push_text);
    lua_pushlightuserdata(L, &text);
    failed = lua_pcall(L, 1, 1, 0);
  }
  pe_buf_free(&text);
  if (rc) pe_bind_raise(L, &err);
  if (failed) lua_error(L);
}

static pe_print_options print_options(lua_State *L, int arg) {
  static const char *const keys[] = {"width", "edge", "threshold", "digits", "ascii", NULL};
  pe_bind_options(L, arg, keys);
  return (pe_print_options){.width = (int)pe_bind_integer(L, arg, "width", 10, 10000, 80),
                            .edge = (int)pe_bind_integer(L, arg, "edge", 1, 1000, 3),
                            .threshold =
                                (int)pe_bind_integer(L, arg, "threshold", 1, 1000000, SHOW_ALL),
                            .digits = (int)pe_bind_integer(L, arg, "digits", 1, 17, 4),
                            .ascii = pe_bind_boolean(L, arg, "ascii", false)};
}

/* A short header, then the numbers. */
static pe_status print_numbers(const pe_tensor *t, const pe_print_options *o, pe_buf *out,
                               pe_error *err) {
  char s[PE_SHAPE_TEXT];
  pe_status rc = pe_buf_printf(out, err, "tensor %s %s%s", pe_dtype_name(t->dtype),
                               pe_shape_text(t->rank, t->shape, s), t->rank ? "\n" : " ");
  return rc ? rc : pe_tensor_print(t, o, out, err);
}

static int tensor_format(lua_State *L) {
  pe_tensor *t = pe_tensor_arg(L, 1);
  pe_print_options o = print_options(L, 2);
  push_printed(L, t, &o, print_numbers);
  return 1;
}

static int tensor_summary(lua_State *L) {
  pe_tensor *t = pe_tensor_arg(L, 1);
  pe_print_options o = print_options(L, 2);
  push_printed(L, t, &o, pe_tensor_print_line);
  return 1;
}

static int tensor_tostring(lua_State *L) {
  pe_tensor *t = pe_bind_test(L, 1, &pe_tensor_class);
  if (!t) {
    lua_pushliteral(L, "tensor (closed)");
    return 1;
  }
  pe_print_options o = {.threshold = SHOW_ALL};
  push_printed(L, t, &o, pe_tensor_size(t) > o.threshold ? pe_tensor_print_line : print_numbers);
  return 1;
}

/* ---- the class ------------------------------------------------------------------------------- */

#define METHOD(name, ...) {#name, pe_tensor_l_##name},
static const luaL_Reg methods[] = {
    {"item", tensor_item},
    {"totable", tensor_totable},
    {"bytes", tensor_bytes},
    {"stats", tensor_stats},
    {"histogram", tensor_histogram},
    {"format", tensor_format},
    {"summary", tensor_summary},
    PE_TENSOR_VIEW_METHODS(METHOD) PE_TENSOR_UNARY_METHODS(METHOD) PE_TENSOR_BINARY_METHODS(METHOD)
        PE_TENSOR_REDUCE_METHODS(METHOD) PE_TENSOR_OTHER_MATH(METHOD){NULL, NULL}};
#undef METHOD

static const luaL_Reg fields[] = {{"shape", get_shape},
                                  {"strides", get_strides},
                                  {"dtype", get_dtype},
                                  {"rank", get_rank},
                                  {"size", get_size},
                                  {"nbytes", get_nbytes},
                                  {"is_contiguous", get_contiguous},
                                  {NULL, NULL}};

static const luaL_Reg meta[] = {
    {"__add", pe_tensor_l_add},      {"__sub", pe_tensor_l_sub},      {"__mul", pe_tensor_l_mul},
    {"__div", pe_tensor_l_div},      {"__idiv", pe_tensor_l_idiv},    {"__mod", pe_tensor_l_mod},
    {"__pow", pe_tensor_l_pow},      {"__unm", pe_tensor_l_neg},      {"__len", tensor_len},
    {"__newindex", tensor_newindex}, {"__tostring", tensor_tostring}, {NULL, NULL}};

const pe_class pe_tensor_class = {.name = "perigee.Tensor",
                                  .methods = methods,
                                  .fields = fields,
                                  .meta = meta,
                                  .index = tensor_index,
                                  .close = close_tensor};

int pe_open_tensor(lua_State *L);

int pe_open_tensor(lua_State *L) {
  pe_bind_class(L, &pe_tensor_class);
  lua_newtable(L);
  luaL_setfuncs(L, pe_tensor_functions, 0);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, pe_tensor_l_call);
  lua_setfield(L, -2, "__call");
  lua_setmetatable(L, -2);
  return 1;
}
