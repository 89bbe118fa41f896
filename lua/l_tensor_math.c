/* l_tensor_math.c - perigee.tensor: arithmetic, reductions, sorting; see l_tensor.h. */
#include "lua/l_tensor.h"

/* ---- element by element ---------------------------------------------------------------------- */

static int unary(lua_State *L, pe_unary op) {
  pe_error err;
  pe_tensor *slot = pe_tensor_slot(L), *t = pe_tensor_arg(L, 1);
  return pe_tensor_give(L, slot, pe_tensor_unary(op, t, slot, &err), &err);
}

/* One operand is a tensor, the other may be a number. */
static int binary(lua_State *L, pe_binary op) {
  pe_error err;
  lua_settop(L, 2);
  if (lua_isuserdata(L, 1))
    pe_tensor_operand(L, 2, pe_tensor_arg(L, 1)->dtype);
  else
    pe_tensor_operand(L, 1, pe_tensor_arg(L, 2)->dtype);
  pe_tensor *slot = pe_tensor_slot(L), *a = pe_tensor_arg(L, 1), *b = pe_tensor_arg(L, 2);
  return pe_tensor_give(L, slot, pe_tensor_binary(op, a, b, slot, &err), &err);
}

#define UNARY_METHOD(name, op)                                                                     \
  int pe_tensor_l_##name(lua_State *L) { return unary(L, op); }
#define BINARY_METHOD(name, op)                                                                    \
  int pe_tensor_l_##name(lua_State *L) { return binary(L, op); }
PE_TENSOR_UNARY_METHODS(UNARY_METHOD)
PE_TENSOR_BINARY_METHODS(BINARY_METHOD)

/* t:clamp(low, high): either may be nil. */
int pe_tensor_l_clamp(lua_State *L) {
  static const pe_binary ops[] = {PE_MAXIMUM, PE_MINIMUM};
  pe_error err;
  pe_tensor_arg(L, 1);
  lua_settop(L, 3);
  if (lua_isnil(L, 2) && lua_isnil(L, 3)) return luaL_error(L, "clamp: low or high is required");
  for (int i = 0; i < 2; i++) {
    if (lua_isnil(L, i + 2)) continue;
    pe_tensor_operand(L, i + 2, pe_tensor_arg(L, 1)->dtype);
    pe_tensor *slot = pe_tensor_slot(L), *t = pe_tensor_arg(L, 1), *limit = pe_tensor_arg(L, i + 2);
    pe_tensor_give(L, slot, pe_tensor_binary(ops[i], t, limit, slot, &err), &err);
    lua_replace(L, 1);
  }
  lua_settop(L, 1);
  return 1;
}

/* condition:where(a, b) */
int pe_tensor_l_where(lua_State *L) {
  pe_error err;
  pe_tensor_arg(L, 1);
  lua_settop(L, 3);
  /* The operand whose dtype the other one takes if it is a number. */
  int leads = lua_isuserdata(L, 2) || !lua_isuserdata(L, 3) ? 2 : 3;
  const pe_tensor *first = pe_tensor_operand(L, leads, PE_F32);
  pe_tensor_operand(L, 5 - leads, first->dtype);
  pe_tensor *slot = pe_tensor_slot(L), *c = pe_tensor_arg(L, 1), *a = pe_tensor_arg(L, 2),
            *b = pe_tensor_arg(L, 3);
  return pe_tensor_give(L, slot, pe_tensor_where(c, a, b, slot, &err), &err);
}

int pe_tensor_l_equal(lua_State *L) {
  lua_pushboolean(L, pe_tensor_equal(pe_tensor_arg(L, 1), pe_tensor_arg(L, 2)));
  return 1;
}

int pe_tensor_l_close_to(lua_State *L) {
  static const char *const keys[] = {"atol", "rtol", NULL};
  pe_error err;
  bool close;
  double worst;
  pe_tensor *a = pe_tensor_arg(L, 1), *b = pe_tensor_arg(L, 2);
  pe_bind_options(L, 3, keys);
  double atol = pe_bind_number(L, 3, "atol", 1e-6), rtol = pe_bind_number(L, 3, "rtol", 1e-5);
  if (pe_tensor_close_to(a, b, atol, rtol, &close, &worst, &err)) return pe_bind_raise(L, &err);
  lua_pushboolean(L, close);
  lua_pushnumber(L, worst);
  return 2;
}

int pe_tensor_l_matmul(lua_State *L) {
  pe_error err;
  lua_settop(L, 2);
  pe_tensor *slot = pe_tensor_slot(L), *a = pe_tensor_arg(L, 1), *b = pe_tensor_arg(L, 2);
  return pe_tensor_give(L, slot, pe_tensor_matmul(a, b, slot, &err), &err);
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* t:sum() is a number, t:sum(axis, {keep = true}) a tensor. */
static int reduce(lua_State *L, pe_reduce op) {
  static const char *const keys[] = {"keep", NULL};
  static const char *const spread_keys[] = {"keep", "ddof", NULL};
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  bool spread = op == PE_VAR || op == PE_STD;
  pe_bind_options(L, 3, spread ? spread_keys : keys);
  pe_reduce_options o = {.axis = pe_tensor_axis_arg(L, 2, t->rank, PE_TENSOR_ALL),
                         .keep = pe_bind_boolean(L, 3, "keep", false),
                         .ddof = spread ? pe_bind_integer(L, 3, "ddof", 0, 1 << 20, 0) : 0,
                         .first = 1};
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  pe_tensor_give(L, slot, pe_tensor_reduce(op, t, o, slot, &err), &err);
  if (o.axis == PE_TENSOR_ALL && !o.keep)
    pe_tensor_push_number(L, pe_tensor_get(slot, NULL), slot->dtype);
  return 1;
}

#define REDUCE_METHOD(name, op)                                                                    \
  int pe_tensor_l_##name(lua_State *L) { return reduce(L, op); }
PE_TENSOR_REDUCE_METHODS(REDUCE_METHOD)

/* ---- rows of an axis, by default the last ---------------------------------------------------- */

static int row_axis(lua_State *L, const pe_tensor *t) {
  return pe_tensor_axis_arg(L, 2, t->rank, t->rank ? t->rank - 1 : 0);
}

static int softmax(lua_State *L, bool log) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  int axis = row_axis(L, t);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give(L, slot, pe_tensor_softmax(t, axis, log, slot, &err), &err);
}

int pe_tensor_l_softmax(lua_State *L) { return softmax(L, false); }
int pe_tensor_l_log_softmax(lua_State *L) { return softmax(L, true); }

int pe_tensor_l_cumsum(lua_State *L) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  int axis = row_axis(L, t);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give(L, slot, pe_tensor_cumsum(t, axis, slot, &err), &err);
}

static bool descending_option(lua_State *L, int arg) {
  static const char *const keys[] = {"descending", NULL};
  pe_bind_options(L, arg, keys);
  return pe_bind_boolean(L, arg, "descending", false);
}

static int give_sorted(lua_State *L, bool places) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  int axis = row_axis(L, t);
  bool descending = descending_option(L, 3);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  pe_status rc = places ? pe_tensor_argsort(t, axis, descending, 1, slot, &err)
                        : pe_tensor_sort(t, axis, descending, slot, &err);
  return pe_tensor_give(L, slot, rc, &err);
}

int pe_tensor_l_sort(lua_State *L) { return give_sorted(L, false); }
int pe_tensor_l_argsort(lua_State *L) { return give_sorted(L, true); }

/* t:topk(k, {axis, smallest}) -> values, positions */
int pe_tensor_l_topk(lua_State *L) {
  static const char *const keys[] = {"axis", "smallest", NULL};
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  lua_Integer k = luaL_checkinteger(L, 2);
  lua_settop(L, 3);
  pe_bind_options(L, 3, keys);
  bool smallest = pe_bind_boolean(L, 3, "smallest", false);
  int axis = t->rank ? t->rank - 1 : 0;
  if (pe_bind_option(L, 3, "axis")) axis = pe_tensor_axis_arg(L, 4, t->rank, axis);
  pe_tensor *values = pe_tensor_slot(L), *positions = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  pe_status rc = pe_tensor_topk(t, axis, k, smallest, 1, values, positions, &err);
  /* Opened before anything can raise, since both are filled. */
  if (!rc) pe_bind_opened(L, values, pe_tensor_bytes(values));
  pe_tensor_give(L, positions, rc, &err);
  return 2;
}
