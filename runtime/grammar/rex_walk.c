/* rex_walk.c - see rex.h: classes of bytes, derivatives, and the search for words. */
#include <string.h>

#include "runtime/grammar/rex_parts.h"

/* Terms inside terms: readers allow 200, and a derivative is not deeper than what it is made of by
 * more than a few. The bound protects the stack. */
enum { MOST_DEEP = 1000 };

static pe_term no_memory(pe_rex *r) {
  return pe_rex_fail(r, PE_ENOMEM, "out of memory: states of a grammar");
}

/* ---- classes --------------------------------------------------------------------------------- */

/* Makes the classes of all sets so far. */
static void classify(pe_rex *r) {
  if (r->frozen || (r->classes && r->class_sets == r->sets)) return;
  r->classes = 1, r->class_sets = r->sets;
  memset(r->class_of, 0, sizeof r->class_of);
  for (size_t s = 0; s < r->sets; s++) {
    int inside[256]; /* class -> the new class of its bytes in the set, or -1 */
    bool outside[256] = {false};
    for (int c = 0; c < 256; c++) inside[c] = -1;
    for (int b = 0; b < 256; b++)
      if (!(r->set[s].bits[b / 64] >> b % 64 & 1)) outside[r->class_of[b]] = true;
    for (int b = 0; b < 256; b++) {
      const uint8_t c = r->class_of[b];
      if (!(r->set[s].bits[b / 64] >> b % 64 & 1) || !outside[c]) continue;
      if (inside[c] < 0) inside[c] = (int)r->classes++;
      r->class_of[b] = (uint8_t)inside[c];
    }
  }
  for (int b = 255; b >= 0; b--) r->byte_of[r->class_of[b]] = (uint8_t)b;
}

void pe_rex_freeze(pe_rex *r) {
  classify(r);
  r->frozen = true;
}

uint32_t pe_rex_classes(const pe_rex *r) { return r->classes; }
const uint8_t *pe_rex_class_of(const pe_rex *r) { return r->class_of; }

/* ---- derivatives ----------------------------------------------------------------------------- */

static pe_term derive(pe_rex *r, pe_term t, uint8_t byte, int depth);

static pe_term derive_set(const pe_rex *r, const pe_term_node *n, uint8_t byte) {
  return r->set[n->a].bits[byte / 64] >> byte % 64 & 1 ? PE_TERM_EMPTY : PE_TERM_NONE;
}

/* x y: what follows in x, then y; and what follows in y if x may be empty. A loop, since a sequence
 * of optional parts may be long. */
static pe_term derive_cat(pe_rex *r, pe_term t, uint8_t byte, int depth) {
  pe_term sum = PE_TERM_NONE;
  for (;;) {
    const pe_term_node n = r->node[t];
    const bool is_cat = n.kind == PE_TERM_IS_CAT;
    pe_term d = derive(r, is_cat ? n.a : t, byte, depth + 1);
    if (is_cat) d = pe_rex_cat(r, d, n.b);
    const pe_term both[2] = {sum, d};
    sum = sum == PE_TERM_NONE ? d : d == PE_TERM_NONE ? sum : pe_rex_or(r, both, 2);
    if (!is_cat || !pe_rex_nullable(r, n.a)) return sum;
    t = n.b;
  }
}

static pe_term derive_operands(pe_rex *r, pe_term_node n, uint8_t byte, int depth) {
  const bool is_or = n.kind == PE_TERM_IS_OR;
  pe_term few[32], *list = few;
  size_t kept = 0;
  if (n.b > sizeof few / sizeof *few && !(list = pe_alloc(n.b * sizeof *list))) return no_memory(r);
  for (uint32_t i = 0; i < n.b; i++) {
    const pe_term d = derive(r, r->arg[n.a + i], byte, depth + 1);
    if (d != PE_TERM_NONE) {
      list[kept++] = d;
    } else if (!is_or) {
      kept = 0;
      break;
    }
  }
  const pe_term out = !kept ? PE_TERM_NONE : (is_or ? pe_rex_or : pe_rex_and)(r, list, kept);
  if (list != few) pe_free(list);
  return out;
}

static pe_term derive_rep(pe_rex *r, pe_term_node n, uint8_t byte, int depth) {
  const pe_term first = derive(r, n.a, byte, depth + 1);
  if (first == PE_TERM_NONE) return PE_TERM_NONE;
  const uint32_t most = n.c == PE_REX_FOREVER ? n.c : n.c - 1;
  return pe_rex_cat(r, first, pe_rex_repeat(r, n.a, n.b ? n.b - 1 : 0, most));
}

static pe_term derive_rem(pe_rex *r, pe_term_node n, uint8_t byte) {
  if (n.c == 0 || byte < '0' || byte > '9') return PE_TERM_NONE;
  const uint32_t rest = (uint32_t)((n.b * UINT64_C(10) + byte - '0') % n.a);
  return pe_rex_remainder(r, n.a, rest, n.c == PE_REX_FOREVER ? n.c : n.c - 1);
}

static pe_term derive(pe_rex *r, pe_term t, uint8_t byte, int depth) {
  if (r->status != PE_OK) return PE_TERM_NONE;
  if (depth > MOST_DEEP)
    return pe_rex_fail(r, PE_ELIMIT, "terms are nested more than %d deep", MOST_DEEP);
  if (++r->steps > r->limits.steps)
    return pe_rex_fail(r, PE_ELIMIT, "the grammar needs more than %llu steps",
                       (unsigned long long)r->limits.steps);
  const pe_term_node n = r->node[t]; /* a copy: makers move the nodes */
  if (!pe_rex_may_begin(r, &n, byte)) return PE_TERM_NONE;
  switch ((pe_term_kind)n.kind) {
  case PE_TERM_IS_SET: return derive_set(r, &n, byte);
  case PE_TERM_IS_CAT: return derive_cat(r, t, byte, depth);
  case PE_TERM_IS_OR:
  case PE_TERM_IS_AND: return derive_operands(r, n, byte, depth);
  case PE_TERM_IS_NOT: return pe_rex_not(r, derive(r, n.a, byte, depth + 1));
  case PE_TERM_IS_REP: return derive_rep(r, n, byte, depth);
  case PE_TERM_IS_REM: return derive_rem(r, n, byte);
  default: return PE_TERM_NONE;
  }
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Whether a term has a word. Only & and `not` have to be searched for one: of x y both must have
 * some, of x | y one, of x{m,n} x. */
typedef enum answer { NO, YES, UNKNOWN_YET } answer;

static bool search_word(pe_rex *r, pe_term start);

static answer remember(pe_rex *r, pe_term t, answer a) {
  if (a != UNKNOWN_YET) r->node[t].flags |= a == YES ? PE_TERM_ALIVE : PE_TERM_DEAD;
  return a;
}

static answer decide(pe_rex *r, pe_term t, bool search, int depth);

static answer decide_cat(pe_rex *r, pe_term t, bool search, int depth) {
  answer all = YES;
  for (bool more = true; more && all != NO;) {
    const pe_term_node n = r->node[t];
    more = n.kind == PE_TERM_IS_CAT;
    const answer a = decide(r, more ? n.a : t, search, depth + 1);
    if (a != YES) all = a;
    t = n.b;
  }
  return all;
}

static answer decide_or(pe_rex *r, pe_term_node n, bool search, int depth) {
  answer any = NO;
  for (uint32_t i = 0; i < n.b && any != YES; i++) {
    const answer a = decide(r, r->arg[n.a + i], search, depth + 1);
    if (a != NO) any = a;
  }
  return any;
}

/* search: the answer is never UNKNOWN_YET, unless the search fails. */
static answer decide(pe_rex *r, pe_term t, bool search, int depth) {
  const pe_term_node n = r->node[t];
  if (t == PE_TERM_NONE || (n.flags & PE_TERM_DEAD)) return NO;
  if (!(n.flags & PE_TERM_HARD) || (n.flags & (PE_TERM_ALIVE | PE_TERM_NULLABLE))) return YES;
  if (depth < MOST_DEEP && n.kind == PE_TERM_IS_CAT)
    return remember(r, t, decide_cat(r, t, search, depth));
  if (depth < MOST_DEEP && n.kind == PE_TERM_IS_OR)
    return remember(r, t, decide_or(r, n, search, depth));
  if (depth < MOST_DEEP && n.kind == PE_TERM_IS_REP)
    return remember(r, t, decide(r, n.a, search, depth + 1));
  if (!search) return UNKNOWN_YET;
  return search_word(r, t) ? YES : r->status == PE_OK ? NO : UNKNOWN_YET;
}

static bool visit(pe_rex *r, size_t *visits, pe_term t, size_t parent) {
  if (pe_grow(&r->visit, &r->visit_cap, *visits + 1, sizeof *r->visit, NULL) != PE_OK) {
    no_memory(r);
    return false;
  }
  const size_t before = r->seen_cap;
  if (pe_grow(&r->seen, &r->seen_cap, r->nodes, sizeof *r->seen, NULL) != PE_OK) {
    no_memory(r);
    return false;
  }
  if (r->seen_cap > before) memset(r->seen + before, 0, (r->seen_cap - before) * sizeof *r->seen);
  if (r->seen[t] == r->search) return true;
  r->seen[t] = r->search;
  r->visit[(*visits)++] = (pe_rex_visit){t, (uint32_t)parent};
  return true;
}

/* Breadth first, so that the shortest word is found; all terms on its way are alive. If there is
 * none, no term that was met has one. */
static bool search_word(pe_rex *r, pe_term start) {
  size_t visits = 0;
  r->search++;
  if (!visit(r, &visits, start, 0)) return false;
  for (size_t i = 0; i < visits; i++) {
    for (uint32_t c = 0; c < r->classes; c++) {
      const pe_term d = derive(r, r->visit[i].term, r->byte_of[c], 0);
      if (r->status != PE_OK) return false;
      const answer has = decide(r, d, false, 0);
      if (has == NO) continue;
      if (has == YES) {
        for (size_t k = i;; k = r->visit[k].parent) {
          r->node[r->visit[k].term].flags |= PE_TERM_ALIVE;
          if (k == 0) return true;
        }
      }
      if (!visit(r, &visits, d, i)) return false;
    }
  }
  for (size_t i = 0; i < visits; i++) r->node[r->visit[i].term].flags |= PE_TERM_DEAD;
  return false;
}

void pe_rex_resume(pe_rex *r) {
  if (r->frozen) r->status = PE_OK;
}

void pe_rex_allow(pe_rex *r, uint64_t steps) { r->limits.steps = steps, r->steps = 0; }

bool pe_rex_has_word(pe_rex *r, pe_term t) {
  if (r->status != PE_OK) return false;
  const answer has = decide(r, t, false, 0);
  if (has != UNKNOWN_YET) return has == YES;
  classify(r);
  return decide(r, t, true, 0) == YES;
}

bool pe_rex_has_word_soon(pe_rex *r, pe_term t, uint64_t steps, bool *known) {
  const uint64_t all = r->limits.steps, soon = r->steps + steps;
  const bool working = r->status == PE_OK;
  if (soon < all) r->limits.steps = soon;
  const bool has = pe_rex_has_word(r, t);
  *known = !(working && soon < all && r->steps > soon);
  r->limits.steps = all;
  if (!*known) r->status = PE_OK;
  return has;
}

bool pe_rex_matches(pe_rex *r, pe_term t, pe_str word) {
  for (size_t i = 0; i < word.len && t != PE_TERM_NONE; i++)
    t = derive(r, t, (uint8_t)word.at[i], 0);
  return pe_rex_nullable(r, t);
}

/* ---- automaton ------------------------------------------------------------------------------- */

#define UNKNOWN UINT32_MAX /* a successor that nobody has asked for */

/* The row of t, made if there is none; NULL: no memory. */
static pe_term *row_at(pe_rex *r, pe_term t) {
  if (t < r->row_of_cap && r->row_of[t]) return r->row + (size_t)(r->row_of[t] - 1) * r->classes;
  const size_t before = r->row_of_cap;
  if (pe_grow(&r->row_of, &r->row_of_cap, r->nodes, sizeof *r->row_of, NULL) != PE_OK) return NULL;
  if (r->row_of_cap > before)
    memset(r->row_of + before, 0, (r->row_of_cap - before) * sizeof *r->row_of);
  if (r->row_of[t]) return r->row + (size_t)(r->row_of[t] - 1) * r->classes;
  const size_t need = (r->rows + 1) * r->classes;
  if (pe_grow(&r->row, &r->row_cap, need, sizeof *r->row, NULL) != PE_OK) return NULL;
  pe_term *row = r->row + r->rows * r->classes;
  for (uint32_t c = 0; c < r->classes; c++) row[c] = UNKNOWN;
  r->row_of[t] = (uint32_t)++r->rows;
  return row;
}

pe_term pe_rex_derive(pe_rex *r, pe_term t, uint32_t class_index) {
  if (t == PE_TERM_NONE || r->status != PE_OK) return PE_TERM_NONE;
  const pe_term d = derive(r, t, r->byte_of[class_index], 0);
  return pe_rex_has_word(r, d) ? d : PE_TERM_NONE; /* has_word is false after a failure */
}

pe_term pe_rex_step(pe_rex *r, pe_term t, uint32_t class_index) {
  if (t == PE_TERM_NONE || r->status != PE_OK) return PE_TERM_NONE;
  const pe_term *row = row_at(r, t);
  if (!row) return no_memory(r);
  if (row[class_index] != UNKNOWN) return row[class_index];
  const pe_term d = pe_rex_derive(r, t, class_index);
  if (r->status != PE_OK) return PE_TERM_NONE;
  row_at(r, t)[class_index] = d;
  return d;
}

pe_term pe_rex_next(pe_rex *r, pe_term t, uint8_t byte) {
  return pe_rex_step(r, t, r->class_of[byte]);
}
