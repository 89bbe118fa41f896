/* l_grammar.c - perigee.grammar: grammars, the tokens of a vocabulary, and matchers. */
#include "lua/l_grammar.h"

#include <string.h>

#include "lua/job.h"
#include "lua/l_graph.h"
#include "runtime/grammar/matcher.h"

typedef struct grammar {
  pe_grammar *g;
} grammar;

static void grammar_close(void *self) { pe_grammar_release(((grammar *)self)->g); }

typedef struct token_mask {
  pe_tokmask *m;
} token_mask;

static void mask_close(void *self) { pe_tokmask_release(((token_mask *)self)->m); }

typedef struct matcher {
  pe_matcher *m;
  uint32_t *allow; /* the last mask, or NULL */
  size_t words;
  pe_buf text;
} matcher;

static void matcher_close(void *self) {
  matcher *m = self;
  pe_matcher_close(m->m);
  pe_free(m->allow);
  pe_buf_free(&m->text);
}

static int l_matcher(lua_State *L);
static int l_rules(lua_State *L);
static int l_lexemes(lua_State *L);
static int l_grammar_memory(lua_State *L);
static int l_worn(lua_State *L);
static const luaL_Reg grammar_methods[] = {{"matcher", l_matcher}, {NULL, NULL}};
static const luaL_Reg grammar_fields[] = {{"rules", l_rules},
                                          {"lexemes", l_lexemes},
                                          {"memory", l_grammar_memory},
                                          {"worn", l_worn},
                                          {NULL, NULL}};
static const pe_class grammar_class = {
    "perigee.Grammar", grammar_methods, grammar_fields, NULL, NULL, grammar_close};

static int l_mask_build(lua_State *L);
static int l_mask_size(lua_State *L);
static int l_mask_memory(lua_State *L);
static const luaL_Reg mask_methods[] = {{"build", l_mask_build}, {NULL, NULL}};
static const luaL_Reg mask_fields[] = {
    {"size", l_mask_size}, {"memory", l_mask_memory}, {NULL, NULL}};
static const pe_class mask_class = {"perigee.TokenMask", mask_methods, mask_fields, NULL, NULL,
                                    mask_close};

#define METHODS(X)                                                                                 \
  X(feed) X(take) X(mask) X(bitmap) X(allows) X(nth) X(forced) X(over) X(trim) X(fork)
METHODS(PE_BIND_DECLARE)
static const luaL_Reg matcher_methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static int l_complete(lua_State *L);
static int l_length(lua_State *L);
static int l_matcher_memory(lua_State *L);
static const luaL_Reg matcher_fields[] = {
    {"complete", l_complete}, {"length", l_length}, {"memory", l_matcher_memory}, {NULL, NULL}};
static const pe_class matcher_class = {
    "perigee.Matcher", matcher_methods, matcher_fields, NULL, NULL, matcher_close};

/* ---- grammars -------------------------------------------------------------------------------- */

int pe_grammar_push(lua_State *L, pe_status rc, pe_grammar **g, const pe_error *err) {
  if (rc) return pe_bind_error(L, err);
  grammar *self = pe_bind_new(L, &grammar_class, sizeof *self, 0);
  self->g = *g, *g = NULL;
  pe_bind_opened(L, self, pe_grammar_bytes(self->g));
  return 1;
}

pe_grammar *pe_bind_grammar(lua_State *L, int arg) {
  return ((grammar *)pe_bind_check(L, arg, &grammar_class))->g;
}

static pe_grammar *check_grammar(lua_State *L) { return pe_bind_grammar(L, 1); }

static int l_rules(lua_State *L) {
  lua_pushinteger(L, pe_grammar_rules(check_grammar(L)));
  return 1;
}

static int l_lexemes(lua_State *L) {
  lua_pushinteger(L, pe_grammar_lexemes(check_grammar(L)));
  return 1;
}

static int l_grammar_memory(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)pe_grammar_bytes(check_grammar(L)));
  return 1;
}

static int l_worn(lua_State *L) {
  lua_pushboolean(L, pe_grammar_worn(check_grammar(L)));
  return 1;
}

/* ---- reading grammars ------------------------------------------------------------------------ */

typedef pe_status text_reader(pe_str text, pe_grammar **out, pe_error *err);

typedef struct reading { /* on the heap for a job, with a copy of the text */
  text_reader *read;
  pe_str text;
  pe_buf copy;
  pe_grammar *g;
  pe_status rc;
  pe_error err;
} reading;

static void read_run(void *data) {
  reading *r = data;
  r->rc = r->read(r->text, &r->g, &r->err);
}

static int read_push(lua_State *L, void *data) {
  reading *r = data;
  return pe_grammar_push(L, r->rc, &r->g, &r->err);
}

static void read_free(void *data) {
  reading *r = data;
  pe_grammar_release(r->g);
  pe_buf_free(&r->copy);
  pe_free(r);
}

static reading *copy_reading(const reading *from) { /* NULL: out of memory */
  reading *r = pe_alloc(sizeof *r);
  if (!r) return NULL;
  *r = *from;
  if (pe_buf_put(&r->copy, from->text.at, from->text.len, NULL)) {
    read_free(r);
    return NULL;
  }
  r->text = pe_buf_str(&r->copy);
  return r;
}

static int start_reading(lua_State *L, const reading *from) {
  static const pe_job_kind kind = {read_run, read_push, read_free};
  const int callback = pe_job_callback(L, 2);
  return pe_job_start(L, callback, &kind, copy_reading(from));
}

/* [text, callback] -> [grammar], or [true] with a callback, or [nil, err] */
static int read_text(lua_State *L, text_reader *read) {
  reading r = {.read = read};
  r.text.at = luaL_checklstring(L, 1, &r.text.len);
  if (!lua_isnoneornil(L, 2)) return start_reading(L, &r);
  read_run(&r);
  return read_push(L, &r);
}

static int l_regex(lua_State *L) { return read_text(L, pe_grammar_regex); }
static int l_gbnf(lua_State *L) { return read_text(L, pe_grammar_gbnf); }
static int l_lark(lua_State *L) { return read_text(L, pe_grammar_lark); }

static int l_choice(lua_State *L) { /* [{text, …}] -> [grammar] or [nil, err] */
  luaL_checktype(L, 1, LUA_TTABLE);
  const size_t n = lua_rawlen(L, 1);
  pe_str *list = lua_newuserdatauv(L, (n + 1) * sizeof *list, 0);
  for (size_t i = 0; i < n; i++) { /* the table keeps the strings */
    if (lua_rawgeti(L, 1, (lua_Integer)i + 1) != LUA_TSTRING)
      return luaL_error(L, "choice[%d] must be a string", (int)i + 1);
    list[i].at = lua_tolstring(L, -1, &list[i].len);
    lua_pop(L, 1);
  }
  pe_grammar *g = NULL;
  pe_error err;
  pe_status rc = pe_grammar_choice(list, n, &g, &err);
  return pe_grammar_push(L, rc, &g, &err);
}

/* ---- the tokens of a vocabulary -------------------------------------------------------------- */

static int l_tokens(lua_State *L) { /* [tokenizer, {id, …}] -> [mask] or [nil, err] */
  pe_tokenizer *t = pe_bind_tokenizer(L, 1);
  const size_t n = lua_isnoneornil(L, 2) ? 0 : (luaL_checktype(L, 2, LUA_TTABLE), lua_rawlen(L, 2));
  int32_t *end = lua_newuserdatauv(L, (n + 1) * sizeof *end, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    const lua_Integer id = lua_tointeger(L, -1);
    if (!lua_isinteger(L, -1) || id < 0 || id > INT32_MAX)
      return luaL_error(L, "ends[%d] must be a token id", (int)i + 1);
    end[i] = (int32_t)id;
    lua_pop(L, 1);
  }
  token_mask *self = pe_bind_new(L, &mask_class, sizeof *self, 0);
  pe_error err;
  if (pe_tokmask_open(t, end, n, &self->m, &err)) return pe_bind_error(L, &err);
  pe_bind_opened(L, self, 0);
  if (pe_tokmask_build(self->m, &err)) return pe_bind_error(L, &err);
  pe_bind_resized(L, self, pe_tokmask_bytes(self->m));
  return 1;
}

int pe_tokmask_push(lua_State *L, pe_tokmask *m) {
  token_mask *self = pe_bind_new(L, &mask_class, sizeof *self, 0);
  self->m = pe_tokmask_retain(m);
  pe_bind_opened(L, self, 0); /* somebody else has them, too */
  return 1;
}

static pe_tokmask *check_mask(lua_State *L, int arg) {
  return ((token_mask *)pe_bind_check(L, arg, &mask_class))->m;
}

typedef struct building { /* a job */
  pe_tokmask *m;
  pe_status rc;
  pe_error err;
} building;

static void build_run(void *data) {
  building *b = data;
  b->rc = pe_tokmask_build(b->m, &b->err);
}

static int build_push(lua_State *L, void *data) {
  const building *b = data;
  if (b->rc) return pe_bind_error(L, &b->err);
  lua_pushboolean(L, 1);
  return 1;
}

static void build_free(void *data) {
  building *b = data;
  pe_tokmask_release(b->m);
  pe_free(b);
}

static int l_mask_build(lua_State *L) { /* [self, callback] -> [true] or [nil, err] */
  static const pe_job_kind kind = {build_run, build_push, build_free};
  pe_tokmask *m = check_mask(L, 1);
  const int callback = pe_job_callback(L, 2);
  building *b = pe_calloc(1, sizeof *b);
  if (b) b->m = pe_tokmask_retain(m);
  return pe_job_start(L, callback, &kind, b);
}

static int l_mask_size(lua_State *L) {
  lua_pushinteger(L, pe_tokmask_size(check_mask(L, 1)));
  return 1;
}

static int l_mask_memory(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)pe_tokmask_bytes(check_mask(L, 1)));
  return 1;
}

/* ---- matchers -------------------------------------------------------------------------------- */

static matcher *check(lua_State *L) { return pe_bind_check(L, 1, &matcher_class); }

static int l_matcher(lua_State *L) { /* [self, mask] -> [matcher] or [nil, err] */
  pe_grammar *g = check_grammar(L);
  pe_tokmask *mask = lua_isnoneornil(L, 2) ? NULL : check_mask(L, 2);
  matcher *self = pe_bind_new(L, &matcher_class, sizeof *self, 0);
  pe_error err;
  pe_status rc = pe_matcher_open(g, mask, &self->m, &err);
  if (rc) return pe_bind_error(L, &err);
  self->words = mask ? pe_tokmask_words(mask) : 0;
  pe_bind_opened(L, self, pe_matcher_bytes(self->m));
  return 1;
}

static int l_fork(lua_State *L) { /* [self] -> [matcher] or [nil, err] */
  const matcher *from = check(L);
  matcher *self = pe_bind_new(L, &matcher_class, sizeof *self, 0);
  pe_error err;
  if (pe_matcher_fork(from->m, &self->m, &err)) return pe_bind_error(L, &err);
  self->words = from->words;
  pe_bind_opened(L, self, pe_matcher_bytes(self->m));
  return 1;
}

static int l_feed(lua_State *L) { /* [self, bytes] -> [taken] or [nil, err] */
  matcher *m = check(L);
  pe_str s;
  s.at = luaL_checklstring(L, 2, &s.len);
  size_t taken;
  pe_error err;
  if (pe_matcher_feed(m->m, s, &taken, &err)) return pe_bind_error(L, &err);
  pe_bind_resized(L, m, pe_matcher_bytes(m->m));
  lua_pushinteger(L, (lua_Integer)taken);
  return 1;
}

static int l_take(lua_State *L) { /* [self, id] -> [boolean] or [nil, err] */
  matcher *m = check(L);
  const lua_Integer id = luaL_checkinteger(L, 2);
  bool ok;
  pe_error err;
  if (pe_matcher_take(m->m, id < 0 || id > INT32_MAX ? -1 : (int32_t)id, &ok, &err))
    return pe_bind_error(L, &err);
  lua_pushboolean(L, ok);
  return 1;
}

static size_t count_bits(const uint32_t *allow, size_t words) {
  size_t n = 0;
  for (size_t i = 0; i < words; i++) n += (size_t)__builtin_popcount(allow[i]);
  return n;
}

static int l_mask(lua_State *L) { /* [self] -> [count, nanoseconds] or [nil, err] */
  matcher *m = check(L);
  pe_error err;
  if (!m->allow && !(m->allow = pe_calloc(m->words + 1, sizeof *m->allow))) {
    pe_nomem(&err, "a mask");
    return pe_bind_error(L, &err);
  }
  const int64_t from = pe_clock_ns();
  if (pe_matcher_mask(m->m, m->allow, &err)) return pe_bind_error(L, &err);
  const int64_t to = pe_clock_ns();
  pe_bind_resized(L, m, pe_matcher_bytes(m->m));
  lua_pushinteger(L, (lua_Integer)count_bits(m->allow, m->words));
  lua_pushinteger(L, to - from);
  return 2;
}

static const matcher *check_masked(lua_State *L) {
  const matcher *m = check(L);
  luaL_argcheck(L, m->allow, 1, "no mask was made");
  return m;
}

static int l_bitmap(lua_State *L) { /* [self] -> [bytes] */
  const matcher *m = check_masked(L);
  luaL_Buffer b;
  uint8_t *to = (uint8_t *)luaL_buffinitsize(L, &b, m->words * 4 + 1);
  for (size_t i = 0; i < m->words * 4; i++) to[i] = (uint8_t)(m->allow[i / 4] >> 8 * (i % 4));
  luaL_pushresultsize(&b, m->words * 4);
  return 1;
}

static int l_allows(lua_State *L) { /* [self, id] -> [boolean] */
  const matcher *m = check_masked(L);
  const lua_Integer id = luaL_checkinteger(L, 2);
  lua_pushboolean(L, id >= 0 && (size_t)id < m->words * 32 && m->allow[id / 32] >> id % 32 & 1);
  return 1;
}

static int l_nth(lua_State *L) { /* [self, n] -> [id] or [nil]: the n-th allowed id, from 1 */
  const matcher *m = check_masked(L);
  lua_Integer n = luaL_checkinteger(L, 2);
  for (size_t i = 0; n > 0 && i < m->words; i++) {
    const int here = __builtin_popcount(m->allow[i]);
    if (n > here) {
      n -= here;
      continue;
    }
    uint32_t bits = m->allow[i];
    while (--n > 0) bits &= bits - 1;
    lua_pushinteger(L, (lua_Integer)(i * 32 + (size_t)__builtin_ctz(bits)));
    return 1;
  }
  luaL_pushfail(L);
  return 1;
}

static int l_forced(lua_State *L) { /* [self, most] -> [bytes] or [nil, err] */
  matcher *m = check(L);
  const lua_Integer most = luaL_optinteger(L, 2, 4096);
  luaL_argcheck(L, most >= 0, 2, "must be at least 0");
  pe_error err;
  m->text.len = 0;
  if (pe_matcher_forced(m->m, (size_t)most, &m->text, &err)) return pe_bind_error(L, &err);
  lua_pushlstring(L, pe_buf_str(&m->text).at, m->text.len);
  return 1;
}

static int l_over(lua_State *L) { /* [self] -> [boolean] or [nil, err] */
  matcher *m = check(L);
  bool over;
  pe_error err;
  if (pe_matcher_is_over(m->m, &over, &err)) return pe_bind_error(L, &err);
  lua_pushboolean(L, over);
  return 1;
}

static int l_trim(lua_State *L) { /* [self, length] -> [] */
  matcher *m = check(L);
  const lua_Integer n = luaL_checkinteger(L, 2), length = (lua_Integer)pe_matcher_length(m->m);
  luaL_argcheck(L, n >= 0 && n <= length, 2, "must be between 0 and the length");
  pe_matcher_trim(m->m, (size_t)n);
  return 0;
}

static int l_complete(lua_State *L) {
  lua_pushboolean(L, pe_matcher_complete(check(L)->m));
  return 1;
}

static int l_length(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)pe_matcher_length(check(L)->m));
  return 1;
}

static int l_matcher_memory(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)pe_matcher_bytes(check(L)->m));
  return 1;
}

int pe_open_grammar(lua_State *L);
int pe_open_grammar(lua_State *L) {
  static const luaL_Reg functions[] = {{"builder", pe_rules_l_builder},
                                       {"regex", l_regex},
                                       {"choice", l_choice},
                                       {"gbnf", l_gbnf},
                                       {"lark", l_lark},
                                       {"tokens", l_tokens},
                                       {NULL, NULL}};
  pe_bind_class(L, &grammar_class);
  pe_bind_class(L, &mask_class);
  pe_bind_class(L, &matcher_class);
  pe_rules_class(L);
  luaL_newlib(L, functions);
  return 1;
}
