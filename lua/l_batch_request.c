/* l_batch_request.c - see l_batch.h: a request as a script writes it. */
#include <string.h>

#include "lua/l_batch.h"

pe_ids_view pe_l_batch_ids(lua_State *L, int list, const char *what) {
  list = lua_absindex(L, list);
  if (!lua_istable(L, list))
    luaL_error(L, "%s: a list of token ids expected, got %s", what, luaL_typename(L, list));
  luaL_checkstack(L, 4, what);
  size_t n = lua_rawlen(L, list);
  if (n > INT32_MAX / 4) luaL_error(L, "%s: a list of %I ids", what, (LUAI_UACINT)n);
  int32_t *id = lua_newuserdatauv(L, (n + 1) * sizeof *id, 0);
  for (size_t i = 0; i < n; i++) {
    int is_integer;
    lua_rawgeti(L, list, (lua_Integer)i + 1);
    lua_Integer v = lua_tointegerx(L, -1, &is_integer);
    if (!is_integer || lua_type(L, -1) != LUA_TNUMBER)
      luaL_error(L, "%s: entry %d is %s, no token id", what, (int)i + 1,
                 luaL_tolstring(L, -1, NULL));
    if (v < INT32_MIN || v > INT32_MAX)
      luaL_error(L, "%s: id %I is out of range", what, (LUAI_UACINT)v);
    id[i] = (int32_t)v;
    lua_pop(L, 1);
  }
  return (pe_ids_view){id, (int32_t)n};
}

/* The option `key`; leaves what it needs on the stack. */
static pe_ids_view ids_option(lua_State *L, int arg, const char *key) {
  if (!pe_bind_option(L, arg, key)) return (pe_ids_view){NULL, 0};
  return pe_l_batch_ids(L, -1, key);
}

const pe_logit_bias *pe_l_batch_bias(lua_State *L, int arg, int32_t *count) {
  arg = lua_absindex(L, arg);
  if (!lua_istable(L, arg))
    luaL_error(L, "logit_bias: a table of token ids and numbers expected, got %s",
               luaL_typename(L, arg));
  size_t n = 0;
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) n++;
  pe_logit_bias *bias = lua_newuserdatauv(L, (n + 1) * sizeof *bias, 0);
  n = 0;
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
    if (!lua_isinteger(L, -2) || lua_type(L, -1) != LUA_TNUMBER)
      luaL_error(L, "logit_bias: [%s] = %s, a token id and a number expected",
                 luaL_tolstring(L, -2, NULL), luaL_tolstring(L, -2, NULL));
    lua_Integer id = lua_tointeger(L, -2);
    if (id < 0 || id > INT32_MAX)
      luaL_error(L, "logit_bias: id %I is out of range", (LUAI_UACINT)id);
    bias[n++] = (pe_logit_bias){(int32_t)id, (float)lua_tonumber(L, -1)};
  }
  *count = (int32_t)n;
  return bias;
}

pe_draw pe_l_batch_draw(lua_State *L, int arg) {
  static const char *const keys[] = {"bias", "banned", "force", NULL};
  pe_bind_options(L, arg, keys);
  pe_draw d = {0};
  if (pe_bind_option(L, arg, "bias")) d.bias = pe_l_batch_bias(L, -1, &d.bias_count);
  d.banned = ids_option(L, arg, "banned");
  d.forced = ids_option(L, arg, "force");
  return d;
}

static void read_stop(lua_State *L, int arg, pe_request *r) {
  if (!pe_bind_option(L, arg, "stop")) return;
  int at = lua_gettop(L);
  bool one = lua_type(L, at) == LUA_TSTRING;
  if (!one && !lua_istable(L, at))
    luaL_error(L, "stop: text or a list of texts expected, got %s", luaL_typename(L, at));
  size_t n = one ? 1 : lua_rawlen(L, at);
  pe_str *list = lua_newuserdatauv(L, (n + 1) * sizeof *list, 0);
  for (size_t i = 0; i < n; i++) { /* the table of the request keeps the strings alive */
    if (one)
      lua_pushvalue(L, at);
    else
      lua_rawgeti(L, at, (lua_Integer)i + 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      luaL_error(L, "stop: entry %d is no text but a %s", (int)i + 1, luaL_typename(L, -1));
    list[i].at = lua_tolstring(L, -1, &list[i].len);
    lua_pop(L, 1);
  }
  r->stop = list, r->stop_count = (int32_t)n;
}

static void read_bad_words(lua_State *L, int arg, pe_request *r) {
  if (!pe_bind_option(L, arg, "bad_words")) return;
  int at = lua_gettop(L);
  if (!lua_istable(L, at))
    luaL_error(L, "bad_words: a list of lists of ids expected, got %s", luaL_typename(L, at));
  size_t n = lua_rawlen(L, at);
  luaL_argcheck(L, n < 100000, arg, "bad_words: too many of them");
  pe_ids_view *list = lua_newuserdatauv(L, (n + 1) * sizeof *list, (int)0);
  lua_createtable(L, (int)n, 0); /* keeps the ids alive */
  int keep = lua_gettop(L);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, at, (lua_Integer)i + 1);
    list[i] = pe_l_batch_ids(L, -1, "bad_words");
    lua_rawseti(L, keep, (lua_Integer)i + 1);
    lua_pop(L, 1);
  }
  r->bad_words = list, r->bad_count = (int32_t)n;
}

static void read_sampling(lua_State *L, int arg, pe_sampling *p) {
  *p = pe_sampling_defaults();
  const struct {
    const char *key;
    float *value;
  } numbers[] = {
      {"temperature", &p->temperature},
      {"top_p", &p->top_p},
      {"min_p", &p->min_p},
      {"typical_p", &p->typical_p},
      {"xtc_probability", &p->xtc_probability},
      {"xtc_threshold", &p->xtc_threshold},
      {"repetition_penalty", &p->repetition_penalty},
      {"presence_penalty", &p->presence_penalty},
      {"frequency_penalty", &p->frequency_penalty},
  };
  const struct {
    const char *key;
    int32_t *value;
  } integers[] = {
      {"top_k", &p->top_k},
      {"penalty_window", &p->penalty_window},
      {"top_logprobs", &p->top_logprobs},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    *numbers[i].value = (float)pe_bind_number(L, arg, numbers[i].key, (double)*numbers[i].value);
  for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
    *integers[i].value =
        (int32_t)pe_bind_integer(L, arg, integers[i].key, INT32_MIN, INT32_MAX, *integers[i].value);
  p->seed = (uint64_t)pe_bind_integer(L, arg, "seed", INT64_MIN, INT64_MAX, 0);
  if (pe_bind_option(L, arg, "logit_bias")) p->bias = pe_l_batch_bias(L, -1, &p->bias_count);
  pe_ids_view banned = ids_option(L, arg, "banned");
  p->banned = banned.id, p->banned_count = banned.count;
}

pe_request pe_l_batch_request(lua_State *L, int arg) {
  static const char *const keys[] = {"prompt",
                                     "max_tokens",
                                     "min_tokens",
                                     "n",
                                     "temperature",
                                     "top_p",
                                     "top_k",
                                     "min_p",
                                     "typical_p",
                                     "xtc_probability",
                                     "xtc_threshold",
                                     "repetition_penalty",
                                     "presence_penalty",
                                     "frequency_penalty",
                                     "penalty_window",
                                     "seed",
                                     "top_logprobs",
                                     "logit_bias",
                                     "banned",
                                     "stop",
                                     "stop_ids",
                                     "bad_words",
                                     "boundaries",
                                     "ignore_eos",
                                     "skip_special",
                                     "keep_special",
                                     "no_cache",
                                     "salt",
                                     "hold",
                                     "keep_logits",
                                     NULL};
  pe_request r = {.max_tokens = -1};
  luaL_checktype(L, arg, LUA_TTABLE);
  pe_bind_options(L, arg, keys);
  luaL_checkstack(L, 40, "request");
  r.prompt = ids_option(L, arg, "prompt");
  read_sampling(L, arg, &r.sampling);
  r.max_tokens = (int32_t)pe_bind_integer(L, arg, "max_tokens", 0, INT32_MAX, -1);
  r.min_tokens = (int32_t)pe_bind_integer(L, arg, "min_tokens", 0, INT32_MAX, 0);
  r.n = (int32_t)pe_bind_integer(L, arg, "n", 1, INT32_MAX, 1);
  read_stop(L, arg, &r);
  r.stop_ids = ids_option(L, arg, "stop_ids");
  read_bad_words(L, arg, &r);
  r.boundary = ids_option(L, arg, "boundaries");
  r.ignore_eos = pe_bind_boolean(L, arg, "ignore_eos", false);
  r.skip_special = pe_bind_boolean(L, arg, "skip_special", true);
  r.keep_special = ids_option(L, arg, "keep_special");
  r.no_cache = pe_bind_boolean(L, arg, "no_cache", false);
  r.hold = pe_bind_boolean(L, arg, "hold", false);
  r.keep_logits = pe_bind_boolean(L, arg, "keep_logits", false);
  r.salt = (uint64_t)pe_bind_integer(L, arg, "salt", INT64_MIN, INT64_MAX, 0);
  return r;
}
