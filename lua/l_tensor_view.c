/* l_tensor_view.c - perigee.tensor: views, copies and picking; see l_tensor.h. */
#include "lua/l_tensor.h"

/* ---- parts of an axis ------------------------------------------------------------------------ */

/* from and to as in string.sub: both included, negative ones count from the end, and they are
 * clamped. */
static void part(int64_t len, int64_t from, int64_t to, int64_t step, int64_t *start,
                 int64_t *count) {
  if (from < 0) from += len + 1;
  if (to < 0) to += len + 1;
  int64_t low = step > 0 ? from : to, high = step > 0 ? to : from;
  if (low < 1) low = 1;
  if (high > len) high = len;
  *count = low > high ? 0 : (high - low) / (step > 0 ? step : -step) + 1;
  *start = *count == 0 ? 0 : (step > 0 ? low : high) - 1;
}

/* t:rows(from, to) */
int pe_tensor_l_rows(lua_State *L) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  lua_Integer from = luaL_checkinteger(L, 2), to = luaL_optinteger(L, 3, -1);
  if (t->rank == 0) return luaL_error(L, "rows: a tensor of rank 0 has no rows");
  int64_t start, count;
  part(t->shape[0], from, to, 1, &start, &count);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give_view(L, slot, pe_tensor_slice(t, 0, start, count, 1, slot, &err), &err);
}

/* Element i of the part {from, to, step} on top of the stack. */
static int64_t bound(lua_State *L, int i, int64_t absent) {
  int whole = 0;
  int type = lua_rawgeti(L, -1, i);
  int64_t n = lua_tointegerx(L, -1, &whole);
  lua_pop(L, 1);
  if (type == LUA_TNIL) return absent;
  if (type != LUA_TNUMBER || !whole)
    luaL_argerror(L, 2, "a part must be {from, to, step}, all integers");
  return n;
}

/* Applies the part or position on top of the stack to the tensor at `view`. Returns 1 if the axis
 * disappeared. */
static int narrow(lua_State *L, int view, int axis) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, view);
  if (lua_isboolean(L, -1) && lua_toboolean(L, -1)) return 0;
  if (axis >= t->rank)
    luaL_argerror(L, 2, lua_pushfstring(L, "more parts than the tensor has axes (%d)", t->rank));
  bool single = lua_isinteger(L, -1);
  if (!single && !lua_istable(L, -1))
    luaL_argerror(L, 2, "a part must be a position, {from, to, step} or true");
  int64_t len = t->shape[axis], start = 0, count = 0, step = 1;
  if (single) {
    lua_Integer given = lua_tointeger(L, -1);
    start = pe_tensor_position(L, 2, given, len, lua_pushfstring(L, "axis %d", axis + 1));
  } else {
    step = bound(L, 3, 1);
    if (step == 0 || step == INT64_MIN) luaL_argerror(L, 2, "the step must not be 0");
    int64_t from = bound(L, 1, step > 0 ? 1 : -1), to = bound(L, 2, step > 0 ? -1 : 1);
    part(len, from, to, step, &start, &count);
  }
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, view);
  pe_status rc = single ? pe_tensor_select(t, axis, start, slot, &err)
                        : pe_tensor_slice(t, axis, start, count, step, slot, &err);
  pe_tensor_give_view(L, slot, rc, &err);
  lua_replace(L, view);
  return single;
}

/* t:slice { {1, 10}, true, 3 } */
int pe_tensor_l_slice(lua_State *L) {
  pe_tensor_arg(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  pe_tensor *whole = pe_tensor_slot(L);
  pe_tensor_give_view(L, whole, pe_tensor_same(pe_tensor_arg(L, 1), whole), NULL);
  lua_Unsigned n = lua_rawlen(L, 2);
  for (int i = 0, lost = 0; i < (int)n && i < 64; i++) {
    lua_rawgeti(L, 2, i + 1);
    lost += narrow(L, 3, i - lost);
    lua_settop(L, 3);
  }
  return 1;
}

/* t:select(axis, position) */
int pe_tensor_l_select(lua_State *L) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  luaL_checkinteger(L, 2);
  int axis = pe_tensor_axis_arg(L, 2, t->rank, 0);
  int64_t at = pe_tensor_position(L, 3, luaL_checkinteger(L, 3), t->shape[axis],
                                  lua_pushfstring(L, "axis %d", axis + 1));
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give_view(L, slot, pe_tensor_select(t, axis, at, slot, &err), &err);
}

/* ---- other shapes ---------------------------------------------------------------------------- */

int pe_tensor_l_view(lua_State *L) {
  pe_error err;
  int64_t shape[PE_TENSOR_RANK];
  pe_tensor *t = pe_tensor_arg(L, 1);
  int rank = pe_tensor_shape_arg(L, 2, shape);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give_view(L, slot, pe_tensor_view_as(t, rank, shape, slot, &err), &err);
}

/* A result that shares the bytes of t or owns new ones. */
static int give_either(lua_State *L, const pe_tensor *t, pe_tensor *slot, pe_status rc,
                       const pe_error *err) {
  if (!rc && slot->buffer == t->buffer) return pe_tensor_give_view(L, slot, rc, err);
  return pe_tensor_give(L, slot, rc, err);
}

int pe_tensor_l_reshape(lua_State *L) {
  pe_error err;
  int64_t shape[PE_TENSOR_RANK];
  pe_tensor *t = pe_tensor_arg(L, 1);
  int rank = pe_tensor_shape_arg(L, 2, shape);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return give_either(L, t, slot, pe_tensor_reshape(t, rank, shape, slot, &err), &err);
}

int pe_tensor_l_flatten(lua_State *L) {
  pe_error err;
  pe_tensor *slot = pe_tensor_slot(L), *t = pe_tensor_arg(L, 1);
  int64_t size = pe_tensor_size(t);
  return give_either(L, t, slot, pe_tensor_reshape(t, 1, &size, slot, &err), &err);
}

/* t:t() swaps the last two axes; a vector stays as it is. */
int pe_tensor_l_t(lua_State *L) {
  pe_error err;
  pe_tensor *slot = pe_tensor_slot(L), *t = pe_tensor_arg(L, 1);
  pe_status rc = t->rank < 2 ? pe_tensor_same(t, slot)
                             : pe_tensor_swap(t, t->rank - 2, t->rank - 1, slot, &err);
  return pe_tensor_give_view(L, slot, rc, &err);
}

int pe_tensor_l_swap(lua_State *L) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  luaL_checkinteger(L, 2), luaL_checkinteger(L, 3);
  int a = pe_tensor_axis_arg(L, 2, t->rank, 0), b = pe_tensor_axis_arg(L, 3, t->rank, 0);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give_view(L, slot, pe_tensor_swap(t, a, b, slot, &err), &err);
}

int pe_tensor_l_permute(lua_State *L) {
  pe_error err;
  int64_t given[PE_TENSOR_RANK];
  int order[PE_TENSOR_RANK];
  pe_tensor *t = pe_tensor_arg(L, 1);
  int rank = pe_tensor_shape_arg(L, 2, given);
  if (rank != t->rank)
    return luaL_error(L, "permute: %d axes given, the tensor has rank %d", rank, t->rank);
  for (int i = 0; i < rank; i++) {
    lua_pushinteger(L, given[i]);
    lua_replace(L, 2);
    order[i] = pe_tensor_axis_arg(L, 2, rank, 0);
  }
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give_view(L, slot, pe_tensor_permute(t, order, slot, &err), &err);
}

int pe_tensor_l_expand(lua_State *L) {
  pe_error err;
  int64_t shape[PE_TENSOR_RANK];
  pe_tensor *t = pe_tensor_arg(L, 1);
  int rank = pe_tensor_shape_arg(L, 2, shape);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give_view(L, slot, pe_tensor_expand(t, rank, shape, slot, &err), &err);
}

/* t:squeeze(axis) removes an axis of 1; without an argument, all of them. */
int pe_tensor_l_squeeze(lua_State *L) {
  pe_tensor *t = pe_tensor_arg(L, 1);
  int only = pe_tensor_axis_arg(L, 2, t->rank, -1);
  if (only >= 0 && t->shape[only] != 1)
    return luaL_error(L, "squeeze: axis %d must be 1, it is %I", only + 1,
                      (LUAI_UACINT)t->shape[only]);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  pe_tensor_same(t, slot);
  slot->rank = 0;
  for (int i = 0; i < t->rank; i++) {
    if (t->shape[i] == 1 && (only < 0 || only == i)) continue;
    slot->shape[slot->rank] = t->shape[i], slot->strides[slot->rank++] = t->strides[i];
  }
  return pe_tensor_give_view(L, slot, PE_OK, NULL);
}

int pe_tensor_l_unsqueeze(lua_State *L) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  luaL_checkinteger(L, 2);
  int axis = pe_tensor_axis_arg(L, 2, t->rank + 1, 0); /* an axis of the result */
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give_view(L, slot, pe_tensor_insert(t, axis, slot, &err), &err);
}

/* ---- copies ---------------------------------------------------------------------------------- */

int pe_tensor_l_contiguous(lua_State *L) {
  pe_error err;
  pe_tensor *slot = pe_tensor_slot(L), *t = pe_tensor_arg(L, 1);
  return give_either(L, t, slot, pe_tensor_contiguous(t, slot, &err), &err);
}

int pe_tensor_l_copy(lua_State *L) {
  pe_error err;
  pe_tensor *slot = pe_tensor_slot(L), *t = pe_tensor_arg(L, 1);
  return pe_tensor_give(L, slot, pe_tensor_copy(t, slot, &err), &err);
}

int pe_tensor_l_to(lua_State *L) {
  pe_error err;
  size_t len;
  pe_tensor *t = pe_tensor_arg(L, 1);
  const char *name = luaL_checklstring(L, 2, &len);
  pe_dtype dtype = pe_tensor_dtype_arg(L, 2, name, len);
  pe_tensor *slot = pe_tensor_slot(L);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give(L, slot, pe_tensor_cast(t, dtype, slot, &err), &err);
}

/* ---- writing; both return the tensor itself -------------------------------------------------- */

int pe_tensor_l_fill(lua_State *L) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  if (pe_tensor_fill(t, pe_tensor_number_arg(L, 2), &err)) return pe_bind_raise(L, &err);
  lua_settop(L, 1);
  return 1;
}

int pe_tensor_l_write(lua_State *L) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1), *from = pe_tensor_arg(L, 2);
  if (pe_tensor_write(t, from, &err)) return pe_bind_raise(L, &err);
  lua_settop(L, 1);
  return 1;
}

/* ---- picking and joining --------------------------------------------------------------------- */

/* t:take(positions, axis) */
int pe_tensor_l_take(lua_State *L) {
  pe_error err;
  pe_tensor *t = pe_tensor_arg(L, 1);
  int axis = pe_tensor_axis_arg(L, 3, t->rank, 0);
  lua_settop(L, 2);
  pe_tensor_positions_arg(L, 2);
  pe_tensor *slot = pe_tensor_slot(L), *positions = pe_tensor_arg(L, 2);
  t = pe_tensor_arg(L, 1);
  return pe_tensor_give(L, slot, pe_tensor_take(t, axis, positions, 1, slot, &err), &err);
}

typedef pe_status join_fn(const pe_tensor *const *parts, int count, int axis, pe_tensor *out,
                          pe_error *err);

/* [parts, axis] -> [tensor]; more: axes that the result has in addition. The table keeps the parts
 * alive. */
static int join(lua_State *L, join_fn *fn, int more) {
  pe_error err;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 2);
  lua_Unsigned n = lua_rawlen(L, 1);
  luaL_argcheck(L, n >= 1 && n < 1 << 24, 1, "list of tensors expected");
  pe_tensor *slot = pe_tensor_slot(L);
  const pe_tensor **parts = lua_newuserdatauv(L, (size_t)n * sizeof *parts, 0);
  for (int i = 0; i < (int)n; i++) {
    lua_rawgeti(L, 1, i + 1);
    if (!(parts[i] = pe_bind_test(L, -1, &pe_tensor_class)))
      luaL_argerror(
          L, 1,
          lua_pushfstring(L, "part %d: open tensor expected, got %s", i + 1, luaL_typename(L, -1)));
    lua_pop(L, 1);
  }
  int axis = pe_tensor_axis_arg(L, 2, parts[0]->rank + more, 0);
  lua_pushvalue(L, 3);
  return pe_tensor_give(L, slot, fn(parts, (int)n, axis, slot, &err), &err);
}

int pe_tensor_l_concat(lua_State *L) { return join(L, pe_tensor_concat, 0); }
int pe_tensor_l_stack(lua_State *L) { return join(L, pe_tensor_stack, 1); }
