/* lexer_plain.c - see lexer.h: how many plain characters may follow in a row.
 *
 * A term that begins with x{m,n}, where x has every plain character, lets n of them follow: what
 * comes after the repetition can then still come. Whether x has them all is asked of its
 * automaton, along that of UTF-8. If x has nothing longer that begins with one, and what comes
 * after the repetition does not begin with one either, then n of them may follow, and not one
 * more. */
#include "runtime/grammar/rex_parts.h"
#include "runtime/grammar/lexer_parts.h"

enum { WHOLE = 255 }; /* a character is complete */

/* The bytes of plain characters: by state, ranges and the state after them. */
static const struct edge {
  uint8_t state, from, to, next;
} edges[] = {{0, 0x20, 0x21, WHOLE}, {0, 0x23, 0x5b, WHOLE}, {0, 0x5d, 0x7f, WHOLE},
             {0, 0xc2, 0xdf, 1},     {0, 0xe0, 0xe0, 2},     {0, 0xe1, 0xec, 3},
             {0, 0xed, 0xed, 4},     {0, 0xee, 0xef, 3},     {0, 0xf0, 0xf0, 5},
             {0, 0xf1, 0xf3, 6},     {0, 0xf4, 0xf4, 7},     {1, 0x80, 0xbf, WHOLE},
             {2, 0xa0, 0xbf, 1},     {3, 0x80, 0xbf, 1},     {4, 0x80, 0x9f, 1},
             {5, 0x90, 0xbf, 3},     {6, 0x80, 0xbf, 3},     {7, 0x80, 0x8f, 3}};

typedef struct covering {
  pe_rex *rex;
  struct {
    pe_term term;
    uint8_t state;
  } known[32]; /* that were looked at: a class of characters has few */
  size_t knowns;
  bool exact; /* so far nothing follows a plain character */
} covering;

static bool covers(covering *c, pe_term x, uint8_t state);

static bool covers_edge(covering *c, pe_term x, const struct edge *e) {
  const uint8_t *class_of = pe_rex_class_of(c->rex);
  int last = -1;
  for (int b = e->from; b <= e->to; b++) {
    if (class_of[b] == last) continue;
    last = class_of[b];
    const pe_term y = pe_rex_step(c->rex, x, class_of[b]);
    if (y == PE_TERM_NONE) return false;
    if (e->next == WHOLE ? !pe_rex_nullable(c->rex, y) : !covers(c, y, e->next)) return false;
    c->exact &= e->next != WHOLE || y == PE_TERM_EMPTY;
  }
  return true;
}

/* Four levels deep: a character has at most four bytes. */
static bool covers(covering *c, pe_term x, uint8_t state) {
  for (size_t i = 0; i < c->knowns; i++)
    if (c->known[i].term == x && c->known[i].state == state) return true;
  for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
    if (edges[i].state == state && !covers_edge(c, x, &edges[i])) return false;
  if (c->knowns < sizeof c->known / sizeof *c->known) {
    c->known[c->knowns].term = x;
    c->known[c->knowns++].state = state;
  }
  return true;
}

/* Whether x has every plain character; *exact: and nothing else that begins with one. The last
 * answers are kept. */
static bool has_plain(pe_lexer *l, pe_term x, bool *exact) {
  enum { KEPT = sizeof l->asked / sizeof *l->asked };
  for (size_t i = 0; i < KEPT; i++)
    if (l->asked[i].term == x) return *exact = l->asked[i].exact, l->asked[i].has;
  covering c = {.rex = l->rex, .exact = true};
  const bool has = covers(&c, x, 0);
  *exact = has && c.exact;
  if (pe_rex_status(l->rex, NULL) != PE_OK) return false;
  l->asked[l->next_asked].term = x, l->asked[l->next_asked].has = has;
  l->asked[l->next_asked].exact = *exact;
  l->next_asked = (l->next_asked + 1) % KEPT;
  return has;
}

/* Whether no word of y, of which there are some, is empty or begins with a plain character. */
static bool begins_otherwise(pe_lexer *l, pe_term y) {
  const uint8_t *class_of = pe_rex_class_of(l->rex);
  if (pe_rex_nullable(l->rex, y)) return false;
  for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
    int last = -1;
    for (int b = edges[i].from; edges[i].state == 0 && b <= edges[i].to; b++) {
      if (class_of[b] == last) continue;
      last = class_of[b];
      if (pe_rex_step(l->rex, y, class_of[b]) != PE_TERM_NONE) return false;
    }
  }
  return true;
}

/* x{m,n}, or x{m,n} y */
static pe_lexer_run plain_repeat(pe_lexer *l, pe_term t) {
  const pe_term_node whole = l->rex->node[t];
  const bool is_cat = whole.kind == PE_TERM_IS_CAT;
  const pe_term_node n = is_cat ? l->rex->node[whole.a] : whole;
  pe_lexer_run run = {.except = PE_TERM_NONE};
  bool exact;
  if (n.kind != PE_TERM_IS_REP || !has_plain(l, n.a, &exact)) return run;
  run.least = n.c == PE_LEXER_UNKNOWN ? n.c - 1 : n.c; /* without end */
  run.exact = exact && n.c != PE_REX_FOREVER && is_cat && begins_otherwise(l, whole.b);
  return run;
}

/* Of x & not y the text is that of x as soon as it begins no word of y. */
static pe_lexer_run plain_and(pe_lexer *l, pe_term_node n) {
  pe_term rest = PE_TERM_NONE, except = PE_TERM_NONE;
  for (uint32_t i = 0; i < n.b; i++) {
    const pe_term operand = l->rex->arg[n.a + i];
    const pe_term_node *o = &l->rex->node[operand];
    if (o->kind != PE_TERM_IS_NOT) {
      if (rest != PE_TERM_NONE) return (pe_lexer_run){0}; /* two may exclude each other */
      rest = operand;
      continue;
    }
    const pe_term both[2] = {except, o->a};
    except = pe_rex_or(l->rex, both, 2);
  }
  pe_lexer_run run = rest == PE_TERM_NONE ? (pe_lexer_run){0} : plain_repeat(l, rest);
  run.except = except, run.exact = false;
  return run;
}

static pe_lexer_run plain_of(pe_lexer *l, pe_term t) {
  const pe_term_node n = l->rex->node[t];
  const pe_term_node first = n.kind == PE_TERM_IS_CAT ? l->rex->node[n.a] : n;
  return first.kind == PE_TERM_IS_AND ? plain_and(l, first) : plain_repeat(l, t);
}

static void find_plain(pe_lexer *l, uint32_t at) {
  const uint32_t pairs = l->state[at].pairs;
  pe_lexer_run most = {.except = PE_TERM_NONE};
  pe_rex_allow(l->rex, PE_LEXER_STEPS);
  for (uint32_t i = 0; i < pairs; i++) {
    const pe_lexer_run run = plain_of(l, l->pair[l->state[at].first + i].term);
    if (run.least > most.least) most = run;
  }
  most.exact &= pairs == 1;
  if (pe_rex_status(l->rex, NULL) == PE_OK) l->state[at].plain = most;
}

pe_lexer_run pe_lexer_plain(pe_lexer *l, uint32_t at) {
  if (l->state[at].plain.least == PE_LEXER_UNKNOWN) find_plain(l, at);
  return pe_rex_status(l->rex, NULL) == PE_OK ? l->state[at].plain : (pe_lexer_run){0};
}

pe_term pe_lexer_term_next(pe_lexer *l, pe_term t, uint32_t class_index) {
  pe_rex_allow(l->rex, PE_LEXER_STEPS);
  return pe_rex_step(l->rex, t, class_index);
}
