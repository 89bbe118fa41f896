/* l_rules.c - the builder of perigee.grammar: terms and rules, written by scripts.
 *
 * A term is its number. A rule is a negative number, so that lists of symbols tell both apart. A
 * token and a rule with a parameter are tables that b:token and b:with make. */
#include <stdlib.h>
#include <string.h>

#include "lua/job.h"
#include "lua/l_grammar.h"
#include "runtime/grammar/pattern.h"
#include "runtime/grammar/rules.h"

/* The rules of a builder, which a job may use while the builder is closed. Counted on the loop
 * thread: jobs begin and end there. */
typedef struct held {
  pe_rules *r; /* NULL: compiled */
  int references;
  bool busy; /* a job uses them */
} held;

typedef struct builder {
  held *held;
} builder;

static void release(held *h) {
  if (--h->references > 0) return;
  pe_rules_close(h->r);
  pe_free(h);
}

static void builder_close(void *self) { release(((builder *)self)->held); }

#define METHODS(X)                                                                                 \
  X(text)                                                                                          \
  X(pattern)                                                                                       \
  X(chars)                                                                                         \
  X(bytes)                                                                                         \
  X(cat)                                                                                           \
  X(any)                                                                                           \
  X(both)                                                                                          \
  X(except)                                                                                        \
  X(times)                                                                                         \
  X(remainder)                                                                                     \
  X(words)                                                                                         \
  X(empty)                                                                                         \
  X(matches)                                                                                       \
  X(rule)                                                                                          \
  X(define)                                                                                        \
  X(token)                                                                                         \
  X(with)                                                                                          \
  X(list)                                                                                          \
  X(gbnf)                                                                                          \
  X(lark)                                                                                          \
  X(term)                                                                                          \
  X(compile)
METHODS(PE_BIND_DECLARE)
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static const pe_class builder_class = {
    "perigee.GrammarBuilder", methods, NULL, NULL, NULL, builder_close};

void pe_rules_class(lua_State *L) { pe_bind_class(L, &builder_class); }

static held *check(lua_State *L) {
  held *h = ((builder *)pe_bind_check(L, 1, &builder_class))->held;
  luaL_argcheck(L, !h->busy, 1, "a job uses the builder");
  luaL_argcheck(L, h->r, 1, "the grammar is compiled");
  return h;
}
static pe_rex *rex(lua_State *L) { return pe_rules_rex(check(L)->r); }

/* [{rules, symbols, terms, steps}] -> [builder] or [nil, err] */
int pe_rules_l_builder(lua_State *L) {
  static const char *const keys[] = {"rules", "symbols", "terms", "steps", NULL};
  pe_rules_limits most = pe_rules_usual();
  pe_bind_options(L, 1, keys);
  most.rules = (uint32_t)pe_bind_integer(L, 1, "rules", 1, most.rules, most.rules);
  most.symbols = (uint32_t)pe_bind_integer(L, 1, "symbols", 1, most.symbols, most.symbols);
  most.terms = (uint32_t)pe_bind_integer(L, 1, "terms", 3, most.terms, most.terms);
  most.steps =
      (uint64_t)pe_bind_integer(L, 1, "steps", 1, (int64_t)most.steps, (int64_t)most.steps);
  builder *b = pe_bind_new(L, &builder_class, sizeof *b, 0);
  pe_error err;
  held *h = pe_calloc(1, sizeof *h);
  pe_status rc = h ? pe_rules_open(most, &h->r, &err) : pe_nomem(&err, "a grammar");
  if (rc) {
    pe_free(h);
    return pe_bind_error(L, &err);
  }
  h->references = 1, b->held = h;
  pe_bind_opened(L, b, 0);
  return 1;
}

/* ---- terms ----------------------------------------------------------------------------------- */

static int push_term(lua_State *L, pe_term t) {
  lua_pushinteger(L, t);
  return 1;
}

static pe_term check_term(lua_State *L, int arg) {
  const lua_Integer t = luaL_checkinteger(L, arg);
  luaL_argcheck(L, t >= 0 && t < (lua_Integer)pe_rex_terms(rex(L)), arg, "not a term");
  return (pe_term)t;
}

static int l_text(lua_State *L) { /* [self, text] -> [term] */
  pe_str s;
  s.at = luaL_checklstring(L, 2, &s.len);
  return push_term(L, pe_rex_word(rex(L), s));
}

/* [] -> [userdata]: room for the elements of the list at `arg`, which is a table. */
static void *push_list(lua_State *L, int arg, size_t size, size_t *n) {
  luaL_checktype(L, arg, LUA_TTABLE);
  *n = lua_rawlen(L, arg);
  return lua_newuserdatauv(L, (*n + 1) * size, 0);
}

static uint32_t code_at(lua_State *L, int at, lua_Integer i) {
  lua_rawgeti(L, at, i);
  const lua_Integer v = lua_tointeger(L, -1);
  if (!lua_isinteger(L, -1) || v < 0 || v > 0x10ffff)
    luaL_error(L, "a range must be {from, to} of code points");
  lua_pop(L, 1);
  return (uint32_t)v;
}

static int l_chars(lua_State *L) { /* [self, {{from, to}, …}] -> [term] */
  size_t n;
  pe_code_range *range = push_list(L, 2, sizeof *range, &n);
  for (size_t i = 0; i < n; i++) {
    if (lua_rawgeti(L, 2, (lua_Integer)i + 1) != LUA_TTABLE)
      return luaL_error(L, "a range must be {from, to} of code points");
    range[i] = (pe_code_range){code_at(L, -1, 1), code_at(L, -1, 2)};
    lua_pop(L, 1);
  }
  return push_term(L, pe_rex_chars(rex(L), range, n));
}

static int l_bytes(lua_State *L) { /* [self, set] -> [term]: one of the bytes of a string */
  size_t n;
  const char *s = luaL_checklstring(L, 2, &n);
  pe_byte_set set = {{0}};
  for (size_t i = 0; i < n; i++) set.bits[(uint8_t)s[i] / 64] |= UINT64_C(1) << (uint8_t)s[i] % 64;
  return push_term(L, pe_rex_set(rex(L), &set));
}

/* [] -> [userdata]: the terms that are the arguments, or in the list that is the only one. */
static const pe_term *push_terms(lua_State *L, size_t *n) {
  if (lua_istable(L, 2)) {
    pe_term *list = push_list(L, 2, sizeof *list, n);
    for (size_t i = 0; i < *n; i++) {
      lua_rawgeti(L, 2, (lua_Integer)i + 1);
      list[i] = check_term(L, -1);
      lua_pop(L, 1);
    }
    return list;
  }
  *n = (size_t)lua_gettop(L) - 1;
  pe_term *list = lua_newuserdatauv(L, (*n + 1) * sizeof *list, 0);
  for (size_t i = 0; i < *n; i++) list[i] = check_term(L, (int)i + 2);
  return list;
}

static int l_cat(lua_State *L) { /* [self, term…] -> [term] */
  size_t n;
  const pe_term *list = push_terms(L, &n);
  pe_term t = PE_TERM_EMPTY;
  while (n-- > 0) t = pe_rex_cat(rex(L), list[n], t);
  return push_term(L, t);
}

static int l_any(lua_State *L) { /* [self, term…] -> [term] */
  size_t n;
  const pe_term *list = push_terms(L, &n);
  return push_term(L, pe_rex_or(rex(L), list, n));
}

static int l_both(lua_State *L) { /* [self, term…] -> [term] */
  size_t n;
  const pe_term *list = push_terms(L, &n);
  return push_term(L, pe_rex_and(rex(L), list, n));
}

static int l_except(lua_State *L) { /* [self, term] -> [term] */
  return push_term(L, pe_rex_not(rex(L), check_term(L, 2)));
}

/* A count; absent: without end. */
static uint32_t check_count(lua_State *L, int arg) {
  if (lua_isnoneornil(L, arg)) return PE_REX_FOREVER;
  const lua_Integer n = luaL_checkinteger(L, arg);
  luaL_argcheck(L, n >= 0 && n <= INT32_MAX, arg, "must be between 0 and 2147483647");
  return (uint32_t)n;
}

static int l_times(lua_State *L) { /* [self, term, least, most] -> [term] */
  const pe_term t = check_term(L, 2);
  luaL_checkinteger(L, 3);
  return push_term(L, pe_rex_repeat(rex(L), t, check_count(L, 3), check_count(L, 4)));
}

static int l_remainder(lua_State *L) { /* [self, divisor, rest, most?] -> [term] */
  enum { MOST = 1000000 };
  const lua_Integer d = luaL_checkinteger(L, 2), r = luaL_checkinteger(L, 3);
  luaL_argcheck(L, d >= 1 && d <= MOST, 2, "must be between 1 and 1000000");
  luaL_argcheck(L, r >= 0 && r < d, 3, "must be at least 0 and below the divisor");
  return push_term(L, pe_rex_remainder(rex(L), (uint32_t)d, (uint32_t)r, check_count(L, 4)));
}

static int l_words(lua_State *L) { /* [self, {text, …}] -> [term] */
  size_t n;
  pe_str *list = push_list(L, 2, sizeof *list, &n);
  for (size_t i = 0; i < n; i++) { /* the table keeps the strings */
    if (lua_rawgeti(L, 2, (lua_Integer)i + 1) != LUA_TSTRING)
      return luaL_error(L, "words[%d] must be a string", (int)i + 1);
    list[i].at = lua_tolstring(L, -1, &list[i].len);
    lua_pop(L, 1);
  }
  return push_term(L, pe_rex_words(rex(L), list, n));
}

typedef struct search { /* a job */
  held *held;
  pe_term term;
  bool has;
} search;

static void search_run(void *data) {
  search *s = data;
  s->has = pe_rex_has_word(pe_rules_rex(s->held->r), s->term);
}

static int push_empty(lua_State *L, const held *h, bool has) {
  pe_error err;
  if (pe_rex_status(pe_rules_rex(h->r), &err)) return pe_bind_error(L, &err);
  lua_pushboolean(L, !has);
  return 1;
}

static int search_push(lua_State *L, void *data) {
  search *s = data;
  s->held->busy = false;
  return push_empty(L, s->held, s->has);
}

static void search_free(void *data) {
  search *s = data;
  s->held->busy = false;
  release(s->held);
  pe_free(s);
}

static int start_search(lua_State *L, held *h, pe_term term) {
  static const pe_job_kind kind = {search_run, search_push, search_free};
  const int callback = pe_job_callback(L, 4);
  search *s = pe_calloc(1, sizeof *s);
  if (s) {
    *s = (search){.held = h, .term = term};
    h->references++, h->busy = true;
  }
  return pe_job_start(L, callback, &kind, s);
}

/* [self, term, {steps}, callback] -> [boolean] or [nil, err]: it has no word */
static int l_empty(lua_State *L) {
  static const char *const keys[] = {"steps", NULL};
  held *h = check(L);
  const pe_term term = check_term(L, 2);
  pe_bind_options(L, 3, keys);
  const int64_t steps = pe_bind_integer(L, 3, "steps", 1, INT64_MAX, 0);
  if (!lua_isnoneornil(L, 4)) return start_search(L, h, term);
  bool known = true;
  const bool has = steps ? pe_rex_has_word_soon(pe_rules_rex(h->r), term, (uint64_t)steps, &known)
                         : pe_rex_has_word(pe_rules_rex(h->r), term);
  if (known) return push_empty(L, h, has);
  pe_error err;
  pe_fail(&err, PE_ELIMIT, "the search for a word takes more than %lld steps", (long long)steps);
  return pe_bind_error(L, &err);
}

static int l_matches(lua_State *L) { /* [self, term, text] -> [boolean] or [nil, err] */
  const pe_term t = check_term(L, 2);
  pe_str s;
  s.at = luaL_checklstring(L, 3, &s.len);
  const bool matches = pe_rex_matches(rex(L), t, s);
  pe_error err;
  if (pe_rex_status(rex(L), &err)) return pe_bind_error(L, &err);
  lua_pushboolean(L, matches);
  return 1;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static int push_rule(lua_State *L, pe_rule rule) {
  lua_pushinteger(L, -(lua_Integer)rule - 1);
  return 1;
}

static int l_rule(lua_State *L) { /* [self, name] -> [rule] or [nil, err] */
  held *h = check(L);
  pe_str name;
  name.at = luaL_checklstring(L, 2, &name.len);
  pe_rule rule;
  pe_error err;
  if (pe_rules_declare(h->r, name, &rule, &err)) return pe_bind_error(L, &err);
  return push_rule(L, rule);
}

static pe_rule check_rule(lua_State *L, const held *h, int arg) {
  const lua_Integer v = luaL_checkinteger(L, arg);
  luaL_argcheck(L, v < 0 && -v <= (lua_Integer)pe_rules_count(h->r), arg, "not a rule");
  return (pe_rule)(-v - 1);
}

/* ---- texts of clients ------------------------------------------------------------------------ */

/* Reads a text into the builder, or makes a term of a rule. A client can make both long: then it is
 * a job. */
typedef struct reading {
  held *held;
  pe_status (*read)(struct reading *r, pe_error *err);
  pe_str text;
  pe_pattern_options options;
  pe_rule rule; /* given, or read */
  pe_term term;
  bool is_rule; /* the result is the rule */
  pe_status rc;
  pe_error err;
} reading;

static pe_status read_pattern(reading *r, pe_error *err) {
  return pe_pattern_read(pe_rules_rex(r->held->r), r->text, r->options, &r->term, err);
}
static pe_status read_gbnf(reading *r, pe_error *err) {
  return pe_grammar_read_gbnf(r->held->r, r->text, r->options.json, &r->rule, err);
}
static pe_status read_lark(reading *r, pe_error *err) {
  return pe_grammar_read_lark(r->held->r, r->text, r->options.json, &r->rule, err);
}
static pe_status read_term(reading *r, pe_error *err) {
  return pe_grammar_term(r->held->r, r->rule, &r->term, err);
}

static void reading_run(void *data) {
  reading *r = data;
  r->rc = r->read(r, &r->err);
}

static int reading_push(lua_State *L, void *data) {
  reading *r = data;
  r->held->busy = false;
  if (r->rc) return pe_bind_error(L, &r->err);
  return r->is_rule ? push_rule(L, r->rule) : push_term(L, r->term);
}

static void reading_free(void *data) {
  reading *r = data;
  r->held->busy = false;
  release(r->held);
  pe_free(r);
}

/* A copy with its text after it, which holds the builder's rules. */
static reading *keep_reading(const reading *given) {
  reading *r = pe_alloc(sizeof *r + given->text.len + 1);
  if (!r) return NULL;
  *r = *given;
  if (r->text.len) memcpy(r + 1, given->text.at, r->text.len);
  r->text.at = (const char *)(r + 1);
  r->held->references++, r->held->busy = true;
  return r;
}

/* [] -> [term or rule] or [nil, err]; with a callback at `arg`: as pe_job_start. */
static int start_reading(lua_State *L, int arg, reading *r) {
  static const pe_job_kind kind = {reading_run, reading_push, reading_free};
  r->held = check(L);
  if (!lua_isnoneornil(L, arg)) {
    const int callback = pe_job_callback(L, arg);
    return pe_job_start(L, callback, &kind, keep_reading(r));
  }
  reading_run(r);
  return reading_push(L, r);
}

static pe_str check_text(lua_State *L) {
  pe_str s;
  s.at = luaL_checklstring(L, 2, &s.len);
  return s;
}

/* [self, pattern, {search, json, ecma}, callback] -> [term] or [nil, err] */
static int l_pattern(lua_State *L) {
  static const char *const keys[] = {"search", "json", "ecma", NULL};
  pe_bind_options(L, 3, keys);
  reading r = {.read = read_pattern,
               .text = check_text(L),
               .options = {pe_bind_boolean(L, 3, "search", false),
                           pe_bind_boolean(L, 3, "json", false),
                           pe_bind_boolean(L, 3, "ecma", false)}};
  return start_reading(L, 4, &r);
}

/* [self, text, {json}, callback] -> [rule] or [nil, err] */
static int read_grammar(lua_State *L, pe_status (*read)(reading *, pe_error *)) {
  static const char *const keys[] = {"json", NULL};
  pe_bind_options(L, 3, keys);
  reading r = {.read = read,
               .text = check_text(L),
               .options = {.json = pe_bind_boolean(L, 3, "json", false)},
               .is_rule = true};
  return start_reading(L, 4, &r);
}

static int l_gbnf(lua_State *L) { return read_grammar(L, read_gbnf); }
static int l_lark(lua_State *L) { return read_grammar(L, read_lark); }

static int l_term(lua_State *L) { /* [self, rule, callback] -> [term] or [nil, err] */
  reading r = {.read = read_term, .rule = check_rule(L, check(L), 2)};
  return start_reading(L, 3, &r);
}

/* ---- symbols --------------------------------------------------------------------------------- */

static int l_token(lua_State *L) { /* [self, id] -> [symbol] */
  check(L);
  const lua_Integer id = luaL_checkinteger(L, 2);
  luaL_argcheck(L, id >= 0 && id < 1 << 30, 2, "must be between 0 and 2^30 - 1");
  lua_createtable(L, 0, 1);
  lua_pushvalue(L, 2);
  lua_setfield(L, -2, "token");
  return 1;
}

static int l_with(lua_State *L) { /* [self, rule, {put} | {set} | {add, mask}] -> [symbol] */
  static const char *const keys[] = {"put", "set", "add", "mask", NULL};
  check_rule(L, check(L), 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  pe_bind_options(L, 3, keys);
  lua_createtable(L, 0, 3);
  lua_pushvalue(L, 2);
  lua_setfield(L, -2, "rule");
  for (const char *const *k = keys; *k; k++) {
    if (!pe_bind_option(L, 3, *k)) continue;
    luaL_argcheck(L, lua_isinteger(L, -1), 3, "must have integers");
    lua_setfield(L, -2, *k);
  }
  return 1;
}

/* t[key] of the table on top; absent: `absent`. */
static uint64_t number_at(lua_State *L, const char *key, uint64_t absent) {
  lua_getfield(L, -1, key);
  if (!lua_isnil(L, -1)) absent = (uint64_t)luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return absent;
}

/* The changes by their keys in tables of b:with. */
static const char *const changes[] = {"put", "set", "add"};

/* [symbol] -> [symbol] */
static pe_symbol read_table(lua_State *L, const held *h) {
  pe_symbol s = {.kind = PE_SYMBOL_TOKEN};
  if (lua_getfield(L, -1, "token") != LUA_TNIL) {
    s.index = (uint32_t)luaL_checkinteger(L, -1);
    lua_pop(L, 1);
    return s;
  }
  lua_pop(L, 1);
  lua_getfield(L, -1, "rule");
  s.kind = PE_SYMBOL_RULE, s.index = check_rule(L, h, -1);
  lua_pop(L, 1);
  for (uint8_t c = 0; c < sizeof changes / sizeof *changes; c++)
    if (lua_getfield(L, -1, changes[c]) != LUA_TNIL) {
      s.change = c, s.value = (uint64_t)luaL_checkinteger(L, -1);
      lua_pop(L, 1);
      s.mask = number_at(L, "mask", UINT64_MAX);
      return s;
    } else {
      lua_pop(L, 1);
    }
  return s;
}

/* [symbol] -> [symbol] */
static pe_symbol read_symbol(lua_State *L, const held *h) {
  if (lua_istable(L, -1)) return read_table(L, h);
  if (lua_tointeger(L, -1) < 0)
    return (pe_symbol){.kind = PE_SYMBOL_RULE, .index = check_rule(L, h, -1)};
  return (pe_symbol){.kind = PE_SYMBOL_TERM, .index = check_term(L, -1)};
}

/* [alternative] -> [alternative]: its tests; pushes a userdata below it that holds them. */
static const pe_test *read_tests(lua_State *L, size_t *n) {
  *n = 0;
  if (lua_getfield(L, -1, "when") == LUA_TNIL) {
    lua_pop(L, 1);
    return NULL;
  }
  const int list = lua_gettop(L);
  pe_test *test = push_list(L, list, sizeof *test, n);
  for (size_t i = 0; i < *n; i++) {
    if (lua_rawgeti(L, list, (lua_Integer)i + 1) != LUA_TTABLE)
      luaL_error(L, "when[%d] must be a table", (int)i + 1);
    lua_getfield(L, -1, "count");
    test[i].count = lua_toboolean(L, -1);
    lua_pop(L, 1);
    test[i].mask = number_at(L, "mask", UINT64_MAX);
    test[i].least = number_at(L, "least", 0), test[i].most = number_at(L, "most", UINT64_MAX);
    lua_pop(L, 1);
  }
  lua_replace(L, list); /* the userdata takes the place of the list */
  lua_insert(L, -2);
  return test;
}

/* [alternative] -> [] */
static pe_status add_alternative(lua_State *L, held *h, pe_rule rule, pe_error *err) {
  const int top = lua_gettop(L);
  size_t symbols, tests;
  pe_symbol *symbol = push_list(L, top, sizeof *symbol, &symbols);
  for (size_t i = 0; i < symbols; i++) {
    lua_rawgeti(L, top, (lua_Integer)i + 1);
    symbol[i] = read_symbol(L, h);
    lua_pop(L, 1);
  }
  lua_pushvalue(L, top);
  const pe_test *test = read_tests(L, &tests);
  pe_status rc = pe_rules_add(h->r, rule, symbol, symbols, test, tests, err);
  lua_settop(L, top - 1);
  return rc;
}

static int l_define(lua_State *L) { /* [self, rule, {alternative, …}] -> [true] or [nil, err] */
  held *h = check(L);
  const pe_rule rule = check_rule(L, h, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  const size_t n = lua_rawlen(L, 3);
  pe_error err;
  pe_status rc = pe_rules_define(h->r, rule, &err);
  for (size_t i = 0; !rc && i < n; i++) {
    if (lua_rawgeti(L, 3, (lua_Integer)i + 1) != LUA_TTABLE)
      return luaL_error(L, "alternative %d must be a list of symbols", (int)i + 1);
    rc = add_alternative(L, h, rule, &err);
  }
  if (rc) return pe_bind_error(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static int l_list(lua_State *L) { /* [self, symbol, least, most] -> [rule] or [nil, err] */
  held *h = check(L);
  luaL_checkinteger(L, 3);
  const uint32_t least = check_count(L, 3), most = check_count(L, 4);
  lua_pushvalue(L, 2);
  const pe_symbol x = read_symbol(L, h);
  pe_rule rule;
  pe_error err;
  if (pe_rules_repeat(h->r, x, least, most, &rule, &err)) return pe_bind_error(L, &err);
  return push_rule(L, rule);
}

/* ---- compiling ------------------------------------------------------------------------------- */

typedef struct compiling { /* what is compiled, and what comes of it; on the heap for a job */
  pe_rules *r;
  pe_rule root;
  pe_grammar_options o;
  pe_grammar *g;
  pe_status rc;
  pe_error err;
} compiling;

static void compile_run(void *data) {
  compiling *c = data;
  c->rc = pe_grammar_compile(c->r, c->root, c->o, &c->g, &c->err);
  c->r = NULL;
}

static int compile_push(lua_State *L, void *data) {
  compiling *c = data;
  return pe_grammar_push(L, c->rc, &c->g, &c->err);
}

static void compile_free(void *data) {
  compiling *c = data;
  pe_rules_close(c->r);
  pe_grammar_release(c->g);
  pe_free(c);
}

static int start_compile(lua_State *L, const compiling *what, held *h) {
  static const pe_job_kind kind = {compile_run, compile_push, compile_free};
  const int callback = pe_job_callback(L, 4);
  compiling *c = pe_alloc(sizeof *c);
  if (c) *c = *what, h->r = NULL;
  return pe_job_start(L, callback, &kind, c);
}

/* [self, rule, {keep}, callback] -> [grammar], or [true] with a callback, or [nil, err]; the
 * builder is used up. */
static int l_compile(lua_State *L) {
  static const char *const keys[] = {"keep", NULL};
  held *h = check(L);
  pe_bind_options(L, 3, keys);
  compiling c = {
      .r = h->r, .root = check_rule(L, h, 2), .o = {pe_bind_boolean(L, 3, "keep", false)}};
  if (!lua_isnoneornil(L, 4)) return start_compile(L, &c, h);
  h->r = NULL;
  compile_run(&c);
  return compile_push(L, &c);
}
