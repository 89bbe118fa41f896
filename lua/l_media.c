/* l_media.c - see l_media.h. */
#include <string.h>

#include "lua/l_media.h"
#include "lua/l_tensor.h"

/* ---- positions ------------------------------------------------------------------------------- */

/* [...] -> [..., userdata]: three lists of `tokens` integers. */
static const int32_t *read_positions(lua_State *L, int arg, int32_t tokens) {
  if (!pe_bind_option(L, arg, "positions")) return NULL;
  int lists = lua_gettop(L);
  if (!lua_istable(L, lists) || lua_rawlen(L, lists) != 3)
    luaL_error(L, "positions must be three lists of integers, got %s", luaL_typename(L, lists));
  int32_t *out = lua_newuserdatauv(L, 3 * (size_t)tokens * sizeof *out + 1, 0);
  for (int axis = 0; axis < 3; axis++) {
    lua_rawgeti(L, lists, axis + 1);
    if (!lua_istable(L, -1))
      luaL_error(L, "positions[%d] must be a list of integers, got %s", axis + 1,
                 luaL_typename(L, -1));
    if ((lua_Integer)lua_rawlen(L, -1) != tokens)
      luaL_error(L, "positions[%d] has %d entries, the prompt has %d tokens", axis + 1,
                 (int)lua_rawlen(L, -1), (int)tokens);
    for (int32_t i = 0; i < tokens; i++) {
      int integer;
      lua_rawgeti(L, -1, i + 1);
      lua_Integer v = lua_tointegerx(L, -1, &integer);
      if (!integer || v < INT32_MIN || v > INT32_MAX)
        luaL_error(L, "positions[%d][%d] must be an integer, got %s", axis + 1, (int)i + 1,
                   luaL_tolstring(L, -1, NULL));
      out[(int64_t)axis * tokens + i] = (int32_t)v;
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
  }
  return out;
}

/* ---- items ----------------------------------------------------------------------------------- */

/* The tensor on top of the stack as a plane of item i. The table of the request keeps it alive. */
static void read_plane(lua_State *L, int i, const char *what, const pe_media_item *m, int32_t width,
                       pe_media_plane *out) {
  if (!pe_bind_test(L, -1, &pe_tensor_class))
    luaL_error(L, "media[%d]: %s must be a tensor, got %s", i, what, luaL_typename(L, -1));
  const pe_tensor *t = pe_tensor_arg(L, lua_gettop(L));
  char shape[PE_SHAPE_TEXT];
  if (t->dtype != PE_F32 || t->rank != 2 || !pe_tensor_is_contiguous(t))
    luaL_error(L, "media[%d]: %s must be a contiguous f32 matrix, got %s", i, what,
               pe_shape_text(t->rank, t->shape, shape));
  if (t->shape[0] != m->tokens || t->shape[1] != width)
    luaL_error(L,
               "media[%d]: %s are %s, expected [%d, %d]: the item's tokens and the model's width",
               i, what, pe_shape_text(t->rank, t->shape, shape), (int)m->tokens, (int)width);
  *out = (pe_media_plane){t->buffer, t->offset};
}

static void read_deepstack(lua_State *L, int item, int i, int32_t width, pe_media_item *m) {
  if (!pe_bind_option(L, item, "deepstack")) return;
  if (!lua_istable(L, -1) || lua_rawlen(L, -1) >= PE_FEATURE_PLANES)
    luaL_error(L, "media[%d]: deepstack must be a list of at most %d tensors, got %s", i,
               PE_FEATURE_PLANES - 1, luaL_typename(L, -1));
  for (int k = 1, n = (int)lua_rawlen(L, -1); k <= n; k++, m->planes++) {
    lua_rawgeti(L, -1, k);
    read_plane(L, i, "deepstack", m, width, &m->plane[m->planes]);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* The item on top of the stack, number i. */
static void read_item(lua_State *L, int i, const pe_plan *plan, pe_media_item *m) {
  const int item = lua_gettop(L);
  size_t size = 0;
  if (!lua_istable(L, item))
    luaL_error(L, "media[%d] must be a table, got %s", i, luaL_typename(L, item));
  m->at = (int32_t)pe_bind_integer(L, item, "at", 1, INT32_MAX, 1) - 1;
  m->tokens = (int32_t)pe_bind_integer(L, item, "tokens", 1, INT32_MAX / 4, 1);
  m->whole = pe_bind_boolean(L, item, "bidirectional", plan->spans) && plan->spans;
  const char *hash = pe_bind_string(L, item, "hash", &size, NULL);
  if (!hash || size != sizeof m->hash)
    luaL_error(L, "media[%d]: hash must have %d bytes, got %d", i, (int)sizeof m->hash, (int)size);
  memcpy(m->hash, hash, sizeof m->hash);
  if (!pe_bind_option(L, item, "features")) lua_pushnil(L);
  read_plane(L, i, "features", m, plan->feature_width, &m->plane[0]);
  lua_pop(L, 1);
  m->planes = 1;
  read_deepstack(L, item, i, plan->feature_width, m);
  if (m->planes != plan->feature_planes)
    luaL_error(L, "media[%d] has %d deepstack tensors, the model takes %d", i, (int)m->planes - 1,
               (int)plan->feature_planes - 1);
}

pe_status pe_l_media(lua_State *L, int arg, const pe_plan *plan, const int32_t *prompt,
                     int32_t tokens, pe_media **out, pe_error *err) {
  *out = NULL;
  luaL_checkstack(L, 20, "media");
  bool given = pe_bind_option(L, arg, "media");
  int list = given ? lua_gettop(L) : 0;
  if (given && !lua_istable(L, list))
    luaL_error(L, "media must be a list of items, got %s", luaL_typename(L, list));
  size_t n = given ? lua_rawlen(L, list) : 0;
  if (n > INT32_MAX / 4) luaL_error(L, "media has too many items");
  if (n && plan->feature_width < 1) luaL_error(L, "media: the model takes no pictures");
  pe_media_item *item = lua_newuserdatauv(L, (n + 1) * sizeof *item, 0);
  memset(item, 0, (n + 1) * sizeof *item);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, list, (lua_Integer)i + 1);
    read_item(L, (int)i + 1, plan, &item[i]);
    lua_pop(L, 1);
  }
  pe_media_spec s = {.prompt = prompt,
                     .tokens = tokens,
                     .item = item,
                     .items = (int32_t)n,
                     .width = plan->feature_width,
                     .position = read_positions(L, arg, tokens)};
  s.delta = (int32_t)pe_bind_integer(L, arg, "rope_delta", INT32_MIN, INT32_MAX, 0);
  if (!n && !s.position) return PE_OK;
  return pe_media_open(&s, out, err);
}
