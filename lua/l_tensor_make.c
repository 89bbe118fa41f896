/* l_tensor_make.c - perigee.tensor: creates tensors; see l_tensor.h. */
#include "lua/l_tensor.h"

#include <math.h>

/* ---- options --------------------------------------------------------------------------------- */

/* The option dtype of the table at arg. */
static pe_dtype dtype_option(lua_State *L, int arg, pe_dtype absent) {
  size_t len;
  const char *name = pe_bind_string(L, arg, "dtype", &len, NULL);
  return name ? pe_tensor_dtype_arg(L, arg, name, len) : absent;
}

/* {2, 3, dtype = "f16"}: the list part is the shape; the argument is replaced by a table of the
 * rest. */
static int shape_and_options(lua_State *L, int arg, int64_t *shape, const char *const *keys) {
  int rank = pe_tensor_shape_arg(L, arg, shape);
  lua_newtable(L);
  for (lua_pushnil(L); lua_next(L, arg);) {
    lua_Integer i = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : 0;
    lua_pushvalue(L, -2); /* [options, key, value, key] */
    lua_insert(L, -2);
    if (i >= 1 && i <= rank)
      lua_pop(L, 2);
    else
      lua_rawset(L, -4);
  }
  lua_replace(L, arg);
  pe_bind_options(L, arg, keys);
  return rank;
}

/* ---- from Lua values ------------------------------------------------------------------------- */

typedef struct literal {
  int rank;
  int64_t shape[PE_TENSOR_RANK];
  bool all_integers, all_booleans;
  bool whole; /* integers go to i, else floats to f */
  int64_t *i;
  double *f;
  int64_t done;
} literal;

/* Finds the shape of the value on top, following the first element of each table. */
static void measure(lua_State *L, literal *x) {
  luaL_checkstack(L, 2 * PE_TENSOR_RANK + 8, "tensor");
  int top = lua_gettop(L);
  while (lua_istable(L, -1)) {
    if (x->rank == PE_TENSOR_RANK)
      luaL_error(L, "tensor: tables are nested more than %d deep", PE_TENSOR_RANK);
    x->shape[x->rank++] = (int64_t)lua_rawlen(L, -1);
    lua_rawgeti(L, -1, 1);
  }
  lua_settop(L, top);
}

static void wrong_element(lua_State *L, const literal *x, const char *got) {
  char s[PE_SHAPE_TEXT];
  luaL_error(L, "tensor: element %I of shape %s is %s", (LUAI_UACINT)(x->done + 1),
             pe_shape_text(x->rank, x->shape, s), got);
}

static void visit_element(lua_State *L, literal *x, bool store) {
  bool boolean = lua_isboolean(L, -1);
  if (!boolean && lua_type(L, -1) != LUA_TNUMBER)
    wrong_element(L, x, lua_pushfstring(L, "a %s, expected a number", luaL_typename(L, -1)));
  bool integer = !boolean && lua_isinteger(L, -1);
  x->all_booleans &= boolean, x->all_integers &= integer || boolean;
  if (store && x->whole)
    x->i[x->done] = boolean ? lua_toboolean(L, -1) : lua_tointeger(L, -1);
  else if (store)
    x->f[x->done] = boolean ? lua_toboolean(L, -1) : lua_tonumber(L, -1);
  x->done++;
}

/* Visits the value on top, which must have the shape from `axis` on: once to check, once to
 * store. */
static void visit(lua_State *L, literal *x, int axis, bool store) {
  if (axis == x->rank) {
    visit_element(L, x, store);
    return;
  }
  if (!lua_istable(L, -1))
    wrong_element(L, x, lua_pushfstring(L, "a %s, expected a table", luaL_typename(L, -1)));
  if ((int64_t)lua_rawlen(L, -1) != x->shape[axis])
    luaL_error(L, "tensor: a table at axis %d has %I elements, but the first one has %I", axis + 1,
               (LUAI_UACINT)lua_rawlen(L, -1), (LUAI_UACINT)x->shape[axis]);
  for (int64_t i = 1; i <= x->shape[axis]; i++) {
    lua_rawgeti(L, -1, i);
    visit(L, x, axis + 1, store);
    lua_pop(L, 1);
  }
}

/* [] -> [tensor] of the value at arg. dtype < 0: chosen by the elements. */
static pe_tensor *from_value(lua_State *L, int arg, int dtype) {
  literal x = {.all_booleans = true, .all_integers = true};
  pe_error err;
  lua_pushvalue(L, arg);
  measure(L, &x);
  visit(L, &x, 0, false);
  if (dtype < 0)
    dtype = x.done == 0 ? PE_F32 : x.all_booleans ? PE_BOOL : x.all_integers ? PE_I64 : PE_F32;
  x.whole = x.all_integers, x.done = 0;
  pe_tensor *made = pe_tensor_slot(L), *staged;
  lua_insert(L, -2); /* [made, value] */
  staged = pe_tensor_slot(L);
  lua_insert(L, -2); /* [made, staged, value] */
  pe_tensor_give(L, staged, pe_tensor_new(x.whole ? PE_I64 : PE_F64, x.rank, x.shape, staged, &err),
                 &err);
  x.i = (int64_t *)(void *)staged->buffer->data, x.f = (double *)(void *)staged->buffer->data;
  visit(L, &x, 0, true);
  lua_pop(L, 1);
  pe_tensor_give(L, made, pe_tensor_cast(staged, (pe_dtype)dtype, made, &err), &err);
  lua_pop(L, 1);
  return made;
}

const pe_tensor *pe_tensor_positions_arg(lua_State *L, int arg) {
  if (!lua_istable(L, arg)) return pe_tensor_arg(L, arg);
  const pe_tensor *t = from_value(L, arg, lua_rawlen(L, arg) ? -1 : PE_I64);
  lua_replace(L, arg);
  return t;
}

/* ---- creating -------------------------------------------------------------------------------- */

static const char *const dtype_only[] = {"dtype", NULL};

/* perigee.tensor(value, options): [module, value, options] -> [tensor] */
int pe_tensor_l_call(lua_State *L) {
  pe_error err;
  lua_settop(L, 3);
  pe_bind_options(L, 3, dtype_only);
  if (pe_bind_test(L, 2, &pe_tensor_class)) {
    pe_tensor *slot = pe_tensor_slot(L), *t = pe_tensor_arg(L, 2);
    return pe_tensor_give(L, slot, pe_tensor_cast(t, dtype_option(L, 3, t->dtype), slot, &err),
                          &err);
  }
  if (!lua_istable(L, 2) && !lua_isnumber(L, 2) && !lua_isboolean(L, 2))
    return luaL_typeerror(L, 2, "table, number or tensor");
  from_value(L, 2, pe_bind_option(L, 3, "dtype") ? (int)dtype_option(L, 3, PE_F32) : -1);
  return 1;
}

static int make_full(lua_State *L, pe_number value) {
  int64_t shape[PE_TENSOR_RANK];
  pe_error err;
  int rank = shape_and_options(L, 1, shape, dtype_only);
  pe_dtype dtype = dtype_option(L, 1, PE_F32);
  pe_tensor *slot = pe_tensor_slot(L);
  /* New bytes are zero, so this works also for F8, which nothing converts to. */
  bool zero = value.kind == PE_NUMBER_INT && value.i == 0;
  pe_status rc = zero ? pe_tensor_new(dtype, rank, shape, slot, &err)
                      : pe_tensor_full(dtype, rank, shape, value, slot, &err);
  return pe_tensor_give(L, slot, rc, &err);
}

static int tensor_zeros(lua_State *L) { return make_full(L, pe_number_int(0)); }
static int tensor_ones(lua_State *L) { return make_full(L, pe_number_int(1)); }
static int tensor_full(lua_State *L) { return make_full(L, pe_tensor_number_arg(L, 2)); }

static int tensor_eye(lua_State *L) {
  pe_error err;
  lua_Integer n = luaL_checkinteger(L, 1);
  pe_bind_options(L, 2, dtype_only);
  pe_dtype dtype = dtype_option(L, 2, PE_F32);
  pe_tensor *slot = pe_tensor_slot(L);
  return pe_tensor_give(L, slot, pe_tensor_eye(dtype, n, slot, &err), &err);
}

/* Number of iterations of `for i = from, to, step`. */
static int64_t range_count(lua_State *L, pe_number from, pe_number to, pe_number step) {
  if (pe_number_as_float(step) == 0) luaL_argerror(L, 3, "option 'step' must not be 0");
  if (from.kind == PE_NUMBER_INT && to.kind == PE_NUMBER_INT && step.kind == PE_NUMBER_INT) {
    if (step.i > 0 ? from.i > to.i : from.i < to.i) return 0;
    uint64_t span =
        step.i > 0 ? (uint64_t)to.i - (uint64_t)from.i : (uint64_t)from.i - (uint64_t)to.i;
    uint64_t n = span / (step.i > 0 ? (uint64_t)step.i : 0 - (uint64_t)step.i);
    return n < INT64_MAX ? (int64_t)n + 1 : INT64_MAX;
  }
  double n =
      floor((pe_number_as_float(to) - pe_number_as_float(from)) / pe_number_as_float(step) + 1e-9) +
      1;
  if (n != n || n > 0x1p53)
    luaL_error(L, "range: from %f to %f in steps of %f gives NaN or more than 2^53 numbers",
               pe_number_as_float(from), pe_number_as_float(to), pe_number_as_float(step));
  return n > 0 ? (int64_t)n : 0;
}

/* [to] or [from, to, options] */
static int tensor_range(lua_State *L) {
  static const char *const keys[] = {"step", "dtype", NULL};
  pe_error err;
  if (lua_isnoneornil(L, 2)) {
    lua_settop(L, 3);
    lua_copy(L, 1, 2);
    lua_pushinteger(L, 1);
    lua_replace(L, 1);
  }
  pe_number from = pe_tensor_number_arg(L, 1), to = pe_tensor_number_arg(L, 2),
            step = pe_number_int(1);
  lua_settop(L, 3);
  pe_bind_options(L, 3, keys);
  if (pe_bind_option(L, 3, "step")) step = pe_tensor_number_arg(L, 4);
  lua_settop(L, 3);
  bool whole = from.kind == PE_NUMBER_INT && step.kind == PE_NUMBER_INT;
  int64_t count = range_count(L, from, to, step);
  pe_dtype dtype = dtype_option(L, 3, whole ? PE_I64 : PE_F32);
  pe_tensor *slot = pe_tensor_slot(L);
  return pe_tensor_give(L, slot, pe_tensor_range(dtype, from, step, count, slot, &err), &err);
}

typedef pe_status random_fn(pe_dtype dtype, int rank, const int64_t *shape, double a, double b,
                            uint64_t seed, pe_tensor *out, pe_error *err);

/* The first two keys are the parameters of the distribution; their defaults are 0 and 1. */
static int give_random(lua_State *L, const char *const *keys, random_fn *fill) {
  int64_t shape[PE_TENSOR_RANK];
  pe_error err;
  int rank = shape_and_options(L, 1, shape, keys);
  double a = pe_bind_number(L, 1, keys[0], 0), b = pe_bind_number(L, 1, keys[1], 1);
  uint64_t seed = (uint64_t)pe_bind_integer(L, 1, "seed", INT64_MIN, INT64_MAX, 0);
  pe_dtype dtype = dtype_option(L, 1, PE_F32);
  pe_tensor *slot = pe_tensor_slot(L);
  return pe_tensor_give(L, slot, fill(dtype, rank, shape, a, b, seed, slot, &err), &err);
}

static int tensor_uniform(lua_State *L) {
  static const char *const keys[] = {"low", "high", "seed", "dtype", NULL};
  return give_random(L, keys, pe_tensor_uniform);
}

static int tensor_normal(lua_State *L) {
  static const char *const keys[] = {"mean", "std", "seed", "dtype", NULL};
  return give_random(L, keys, pe_tensor_normal);
}

static int tensor_from_bytes(lua_State *L) {
  static const char *const keys[] = {"shape", "dtype", NULL};
  int64_t shape[PE_TENSOR_RANK];
  pe_error err;
  size_t size;
  const char *bytes = luaL_checklstring(L, 1, &size);
  luaL_checktype(L, 2, LUA_TTABLE);
  pe_bind_options(L, 2, keys);
  pe_dtype dtype = dtype_option(L, 2, PE_F32);
  int rank = 1;
  shape[0] = (int64_t)(size / pe_dtype_size(dtype));
  if (pe_bind_option(L, 2, "shape")) rank = pe_tensor_shape_arg(L, lua_gettop(L), shape);
  pe_tensor *slot = pe_tensor_slot(L);
  return pe_tensor_give(L, slot, pe_tensor_from_bytes(dtype, rank, shape, bytes, size, slot, &err),
                        &err);
}

static int tensor_is(lua_State *L) {
  lua_pushboolean(L, luaL_testudata(L, 1, pe_tensor_class.name) != NULL);
  return 1;
}

const luaL_Reg pe_tensor_functions[] = {{"zeros", tensor_zeros},
                                        {"ones", tensor_ones},
                                        {"full", tensor_full},
                                        {"eye", tensor_eye},
                                        {"range", tensor_range},
                                        {"uniform", tensor_uniform},
                                        {"normal", tensor_normal},
                                        {"from_bytes", tensor_from_bytes},
                                        {"is", tensor_is},
                                        {"concat", pe_tensor_l_concat},
                                        {"stack", pe_tensor_l_stack},
                                        {NULL, NULL}};
