/* l_pattern.c - see l_pattern.h: compiling and matching. The functions of Lua are in l_string.c. */
#include "lua/l_pattern.h"

#include <ctype.h>
#include <string.h>

#include "lua/state.h"
#include "lua/watchdog.h"

enum kind { ANY, CHAR, SET, OPEN, PLACE, CLOSE, BALANCE, FRONTIER, BACK, END, DONE };
enum repeat { ONCE, STAR, PLUS, LAZY, MAYBE };

/* A step is a few nanoseconds and asking takes a lock: every 64 Ki steps is below 1 ms and free. */
enum { STEPS_BETWEEN = 1 << 16 };

/* ---- compiling ------------------------------------------------------------------------------- */

typedef struct compiler {
  lua_State *L;
  const unsigned char *at, *end;
  pe_pattern *out;
  int nodes, sets;
  uint8_t open[PE_PATTERN_CAPTURES]; /* captures that are not closed yet */
  int opened;
  bool closed[PE_PATTERN_CAPTURES];
  uint32_t steps; /* since the watchdog was asked */
} compiler;

static void count(lua_State *L, uint32_t *sum, size_t steps) {
  *sum += (uint32_t)(steps < STEPS_BETWEEN ? steps : STEPS_BETWEEN);
  if (*sum < STEPS_BETWEEN) return;
  *sum = 0;
  pe_watchdog *w = pe_state_of(L)->watchdog;
  if (pe_watchdog_stopped(w)) pe_watchdog_raise(w, L);
}

static bool has(const pe_pattern_set *set, unsigned c) { return set->bits[c >> 5] >> (c & 31) & 1; }
static void put(pe_pattern_set *set, unsigned c) { set->bits[c >> 5] |= UINT32_C(1) << (c & 31); }

static bool in_class(int c, int name) {
  switch (tolower(name)) {
  case 'a': return isalpha(c) != 0;
  case 'c': return iscntrl(c) != 0;
  case 'd': return isdigit(c) != 0;
  case 'g': return isgraph(c) != 0;
  case 'l': return islower(c) != 0;
  case 'p': return ispunct(c) != 0;
  case 's': return isspace(c) != 0;
  case 'u': return isupper(c) != 0;
  case 'w': return isalnum(c) != 0;
  case 'x': return isxdigit(c) != 0;
  default: return c == 0; /* 'z', which Lua still knows */
  }
}

static bool is_class(int name) { return name && strchr("acdglpsuwxz", tolower(name)) != NULL; }

/* What "%name" stands for, added to a set: a class, its complement, or the character itself. */
static void put_escaped(compiler *k, pe_pattern_set *set, int name) {
  if (!is_class(name)) {
    put(set, (unsigned)name);
    return;
  }
  count(k->L, &k->steps, 256);
  bool complement = isupper(name) != 0;
  for (int c = 0; c < 256; c++)
    if (in_class(c, name) != complement) put(set, (unsigned)c);
}

static pe_pattern_node *add(compiler *k, enum kind kind) {
  pe_pattern_node *n = &k->out->node[k->nodes++];
  *n = (pe_pattern_node){.kind = (uint8_t)kind};
  return n;
}

static pe_pattern_set *add_set(compiler *k, pe_pattern_node *n) {
  if (k->sets > UINT16_MAX) luaL_error(k->L, "pattern too complex");
  n->set = (uint16_t)k->sets++;
  pe_pattern_set *set = &k->out->sets[n->set];
  memset(set, 0, sizeof *set);
  return set;
}

/* The bracket that closes a set. The first character never does, nor one after a "%". */
static const unsigned char *set_end(compiler *k) {
  const unsigned char *p = k->at;
  do {
    if (p < k->end && *p++ == '%') p++;
    if (p >= k->end) luaL_error(k->L, "malformed pattern (missing ']')");
  } while (*p != ']');
  return p;
}

/* "[...]" with `at` after the bracket. */
static void read_set(compiler *k, pe_pattern_set *set) {
  bool complement = k->at < k->end && *k->at == '^';
  k->at += complement;
  const unsigned char *end = set_end(k), *p = k->at;
  while (p < end) {
    if (*p == '%') {
      put_escaped(k, set, p[1]);
      p += 2;
    } else if (p[1] == '-' && p + 2 < end) {
      for (int c = p[0]; c <= p[2]; c++) put(set, (unsigned)c);
      count(k->L, &k->steps, 256);
      p += 3;
    } else {
      put(set, *p++);
    }
  }
  if (complement)
    for (int i = 0; i < 8; i++) set->bits[i] = ~set->bits[i];
  k->at = end + 1;
}

static void read_repeat(compiler *k, pe_pattern_node *n) {
  static const char marks[] = "*+-?";
  const char *mark = k->at < k->end && *k->at ? strchr(marks, *k->at) : NULL;
  if (!mark) return;
  n->repeat = (uint8_t)(STAR + (mark - marks));
  k->at++;
}

static void open_capture(compiler *k) {
  int i = k->out->captures;
  if (i >= PE_PATTERN_CAPTURES) luaL_error(k->L, "too many captures");
  k->out->captures++;
  bool place = k->at < k->end && *k->at == ')';
  k->out->capture_is_place[i] = place;
  add(k, place ? PLACE : OPEN)->a = (uint8_t)i;
  if (place)
    k->at++;
  else
    k->open[k->opened++] = (uint8_t)i;
  k->closed[i] = place;
}

static void close_capture(compiler *k) {
  if (!k->opened) luaL_error(k->L, "invalid pattern capture");
  int i = k->open[--k->opened];
  k->closed[i] = true;
  add(k, CLOSE)->a = (uint8_t)i;
}

static void read_balance(compiler *k) {
  if (k->end - k->at < 2) luaL_error(k->L, "malformed pattern (missing arguments to '%%b')");
  pe_pattern_node *n = add(k, BALANCE);
  n->a = k->at[0], n->b = k->at[1];
  k->at += 2;
}

static void read_frontier(compiler *k) {
  if (k->at >= k->end || *k->at != '[') luaL_error(k->L, "missing '[' after '%%f' in pattern");
  k->at++;
  read_set(k, add_set(k, add(k, FRONTIER)));
}

static void read_back(compiler *k, int digit) {
  int i = digit - '1';
  if (i < 0 || i >= k->out->captures || !k->closed[i])
    luaL_error(k->L, "invalid capture index %%%d in pattern", i + 1);
  add(k, BACK)->a = (uint8_t)i;
}

static void read_escape(compiler *k) {
  if (k->at >= k->end) luaL_error(k->L, "malformed pattern (ends with '%%')");
  int c = *k->at++;
  if (c == 'b') {
    read_balance(k);
  } else if (c == 'f') {
    read_frontier(k);
  } else if (isdigit(c)) {
    read_back(k, c);
  } else {
    pe_pattern_node *n = add(k, is_class(c) ? SET : CHAR);
    n->a = (uint8_t)c;
    if (n->kind == SET) put_escaped(k, add_set(k, n), c);
    read_repeat(k, n);
  }
}

static void read_item(compiler *k) {
  int c = *k->at++;
  if (c == '(') {
    open_capture(k);
  } else if (c == ')') {
    close_capture(k);
  } else if (c == '%') {
    read_escape(k);
  } else if (c == '$' && k->at == k->end) {
    add(k, END);
  } else {
    pe_pattern_node *n = add(k, c == '.' ? ANY : c == '[' ? SET : CHAR);
    n->a = (uint8_t)c;
    if (c == '[') read_set(k, add_set(k, n));
    read_repeat(k, n);
  }
}

/* Only "[" and "%" make sets. */
static size_t most_sets(const char *source, size_t length) {
  size_t n = 0;
  for (size_t i = 0; i < length; i++) n += source[i] == '[' || source[i] == '%';
  return n;
}

pe_pattern *pe_pattern_compile(lua_State *L, const char *source, size_t length) {
  size_t sets = most_sets(source, length) * sizeof(pe_pattern_set);
  size_t nodes = (length + 1) * sizeof(pe_pattern_node); /* one for DONE */
  pe_pattern *out = lua_newuserdatauv(L, sizeof *out + sets + nodes, 0);
  *out = (pe_pattern){.sets = (void *)(out + 1)};
  out->node = (void *)((char *)out->sets + sets);
  const unsigned char *at = (const void *)source;
  compiler k = {.L = L, .at = at, .end = at + length, .out = out};
  while (k.at < k.end) {
    count(L, &k.steps, 1);
    read_item(&k);
  }
  if (k.opened) luaL_error(L, "unfinished capture");
  add(&k, DONE);
  return out;
}

/* ---- matching -------------------------------------------------------------------------------- */

void pe_pattern_count(pe_pattern_match *m, size_t steps) { count(m->L, &m->steps, steps); }

static inline bool fits(const pe_pattern_match *m, const pe_pattern_node *n,
                        const unsigned char *at) {
  if (at >= m->end) return false;
  if (n->kind == CHAR) return *at == n->a;
  return n->kind == ANY || has(&m->pattern->sets[n->set], *at);
}

static const unsigned char *run(pe_pattern_match *m, const pe_pattern_node *n,
                                const unsigned char *at);

static const unsigned char *greedy(pe_pattern_match *m, const pe_pattern_node *n,
                                   const unsigned char *at, const unsigned char *least) {
  const unsigned char *to = least;
  while (fits(m, n, to)) to++;
  pe_pattern_count(m, (size_t)(to - at) + 1);
  for (; to >= least; to--) {
    const unsigned char *end = run(m, n + 1, to);
    if (end) return end;
  }
  return NULL;
}

static const unsigned char *lazy(pe_pattern_match *m, const pe_pattern_node *n,
                                 const unsigned char *at) {
  for (;; at++) {
    const unsigned char *end = run(m, n + 1, at);
    if (end) return end;
    if (!fits(m, n, at)) return NULL;
    pe_pattern_count(m, 1);
  }
}

static const unsigned char *repeated(pe_pattern_match *m, const pe_pattern_node *n,
                                     const unsigned char *at) {
  switch (n->repeat) {
  case STAR: return greedy(m, n, at, at);
  case PLUS: return fits(m, n, at) ? greedy(m, n, at, at + 1) : NULL;
  default: return lazy(m, n, at);
  }
}

/* "%bxy": from an x to the y that closes it. */
static const unsigned char *balance(pe_pattern_match *m, const pe_pattern_node *n,
                                    const unsigned char *at) {
  if (at >= m->end || *at != n->a) return NULL;
  const unsigned char *from = at;
  int64_t depth = 1;
  while (++at < m->end) {
    if (*at == n->b) {
      if (!--depth) break;
    } else if (*at == n->a) {
      depth++;
    }
  }
  pe_pattern_count(m, (size_t)(at - from));
  return at < m->end ? at + 1 : NULL;
}

static bool frontier(const pe_pattern_match *m, const pe_pattern_node *n, const unsigned char *at) {
  const pe_pattern_set *set = &m->pattern->sets[n->set];
  unsigned before = at == m->text ? 0 : at[-1], after = at == m->end ? 0 : *at;
  return !has(set, before) && has(set, after);
}

static const unsigned char *back(pe_pattern_match *m, const pe_pattern_node *n,
                                 const unsigned char *at) {
  if (m->pattern->capture_is_place[n->a]) return NULL;
  size_t length = (size_t)(m->to[n->a] - m->from[n->a]);
  pe_pattern_count(m, length + 1);
  if ((size_t)(m->end - at) < length || memcmp(at, m->from[n->a], length) != 0) return NULL;
  return at + length;
}

/* A capture is set on the way in and put back when what follows does not match. */
static const unsigned char *capture(pe_pattern_match *m, const pe_pattern_node *n,
                                    const unsigned char *at) {
  const unsigned char **slot = n->kind == CLOSE ? &m->to[n->a] : &m->from[n->a];
  const unsigned char *old = *slot;
  *slot = at;
  const unsigned char *end = run(m, n + 1, at);
  if (!end) *slot = old;
  return end;
}

static const unsigned char *walk(pe_pattern_match *m, const pe_pattern_node *n,
                                 const unsigned char *at) {
  for (;; n++) {
    switch ((enum kind)n->kind) {
    case DONE: return at;
    case END:
      if (at != m->end) return NULL;
      continue;
    case OPEN:
    case PLACE:
    case CLOSE: return capture(m, n, at);
    case BALANCE:
      if (!(at = balance(m, n, at))) return NULL;
      continue;
    case BACK:
      if (!(at = back(m, n, at))) return NULL;
      continue;
    case FRONTIER:
      if (!frontier(m, n, at)) return NULL;
      continue;
    default:
      if (n->repeat == MAYBE) { /* without it: no deeper, as in Lua */
        const unsigned char *end = fits(m, n, at) ? run(m, n + 1, at + 1) : NULL;
        if (end) return end;
        continue;
      }
      if (n->repeat) return repeated(m, n, at);
      if (!fits(m, n, at)) return NULL;
      at++;
    }
  }
}

static const unsigned char *run(pe_pattern_match *m, const pe_pattern_node *n,
                                const unsigned char *at) {
  if (m->depth++ >= PE_PATTERN_DEPTH) luaL_error(m->L, "pattern too complex");
  pe_pattern_count(m, 1);
  const unsigned char *end = walk(m, n, at);
  m->depth--;
  return end;
}

const unsigned char *pe_pattern_at(pe_pattern_match *m, const unsigned char *at) {
  m->depth = 0;
  return run(m, m->pattern->node, at);
}

const unsigned char *pe_pattern_search(pe_pattern_match *m, const unsigned char *at,
                                       const unsigned char **start) {
  const pe_pattern_node *first = m->pattern->node;
  bool literal = first->kind == CHAR && (first->repeat == ONCE || first->repeat == PLUS);
  for (;; at++) {
    if (literal) { /* a match can only begin where that character is */
      const unsigned char *next = at < m->end ? memchr(at, first->a, (size_t)(m->end - at)) : NULL;
      if (!next) return NULL;
      pe_pattern_count(m, (size_t)(next - at) / 16);
      at = next;
    }
    const unsigned char *end = pe_pattern_at(m, at);
    if (end) {
      *start = at;
      return end;
    }
    if (at >= m->end) return NULL;
  }
}
