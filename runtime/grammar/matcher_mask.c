/* matcher_mask.c - see matcher.h: which tokens may come next. */
#include <string.h>

#include "runtime/grammar/matcher_parts.h"

static void set_bit(uint32_t *allow, int32_t id) { allow[id / 32] |= UINT32_C(1) << id % 32; }

static void set_node(const pe_tokmask *m, pe_tok_node n, uint32_t *allow) {
  set_bit(allow, (int32_t)n.id);
  for (int32_t id = (int32_t)n.id; n.has_same && id >= 0; id = pe_tokmask_same(m, id))
    set_bit(allow, id);
}

/* Sets the bits of the tokens between two nodes that can follow a position: those that begin with
 * one byte. `row` has, by depth, where the steps from the position above a node are in m->next. */
static pe_status walk_part(pe_matcher *m, uint32_t from, const pe_tok_tree *tree, size_t i,
                           size_t end, uint32_t *allow, pe_error *err) {
  size_t row[PE_TOKMASK_LONGEST + 1], walked = 0;
  const uint32_t *next = m->next;
  const uint8_t *class_of = m->class_of;
  row[0] = (size_t)from * m->classes;
  for (; i < end; i++, walked++) {
    const pe_tok_node n = tree->node[i];
    const uint32_t class_index = class_of[n.byte];
    uint32_t at = next[row[n.depth] + class_index];
    if (at == PE_MATCHER_UNKNOWN) {
      const uint32_t above = (uint32_t)(row[n.depth] / m->classes);
      pe_status rc = pe_matcher_make_step(m, above, class_index, &at, err);
      if (rc) return rc;
      next = m->next;
    }
    if (at == PE_MATCHER_DEAD) {
      i += n.below;
      continue;
    }
    if (n.id != PE_TOKMASK_NO_ID) set_node(m->mask, n, allow);
    row[n.depth + 1] = (size_t)at * m->classes;
  }
  m->walked += walked;
  return PE_OK;
}

/* Most bytes cannot come: their part of the tree, and of the cache, is not touched. */
static pe_status walk(pe_matcher *m, uint32_t from, const pe_tok_tree *tree, uint32_t *allow,
                      pe_error *err) {
  for (int b = 0; b < 256; b++) {
    uint32_t at;
    if (tree->first[b] == tree->first[b + 1]) continue;
    pe_status rc = pe_matcher_step(m, from, (uint8_t)b, &at, err);
    if (!rc && at != PE_MATCHER_DEAD)
      rc = walk_part(m, from, tree, tree->first[b], tree->first[b + 1], allow, err);
    if (rc) return rc;
  }
  return PE_OK;
}

typedef struct tokens {
  uint32_t *allow;
  int32_t size;
} tokens;

/* A grammar may name tokens that the vocabulary does not have. */
static void set_token(void *to, int32_t id) {
  const tokens *t = to;
  if (id < t->size) set_bit(t->allow, id);
}

static void set_tokens(const pe_matcher *m, uint32_t *allow) {
  const uint32_t here = m->position[pe_matcher_at(m)].here;
  size_t n;
  const int32_t *end = pe_tokmask_ends(m->mask, &n);
  if (here == PE_CHART_NONE) return;
  const pe_row *r = pe_chart_row(m->chart, here);
  tokens t = {allow, pe_tokmask_size(m->mask)};
  if (r->has_token) pe_chart_tokens(m->chart, here, set_token, &t);
  for (size_t i = 0; r->complete && i < n; i++) set_bit(allow, end[i]);
}

/* ---- plain tokens ---------------------------------------------------------------------------- */

/* Which plain tokens may follow a position: those of up to this many characters, but for beginnings
 * of *except, and none that is longer. 0: they must be walked. */
static uint32_t plain_run(pe_matcher *m, uint32_t at, pe_term *except) {
  const pe_matcher_position *p = &m->position[at];
  uint32_t most = 0;
  pe_grammar_lock(m->g);
  for (uint32_t i = 0; i < p->threads && !most; i++) {
    const pe_lexer_run run = pe_lexer_plain(m->g->lexer, m->thread[p->first + i].state);
    if (run.least >= PE_TOKMASK_RUN || (run.exact && p->threads == 1))
      most = run.least < PE_TOKMASK_RUN ? run.least : PE_TOKMASK_RUN, *except = run.except;
  }
  pe_grammar_unlock(m->g);
  return most;
}

enum { EXCEPTIONS = 4000 }; /* nodes; with more, walking the whole tree is as fast */

typedef struct exception {
  uint32_t at;
  pe_term term;
} exception;

static void set_exception(const pe_matcher *m, pe_tok_node n, bool alive, uint32_t *allow) {
  int32_t id = (int32_t)n.id;
  for (; id >= 0; id = n.has_same ? pe_tokmask_same(m->mask, id) : -1) {
    const uint32_t bit = UINT32_C(1) << id % 32;
    allow[id / 32] = alive ? allow[id / 32] | bit : allow[id / 32] & ~bit;
  }
}

static pe_status next_term(pe_matcher *m, pe_term t, uint8_t byte, pe_term *out, pe_error *err) {
  pe_lexer *l = pe_grammar_lock(m->g);
  *out = pe_lexer_term_next(l, t, m->class_of[byte]);
  pe_status rc = pe_lexer_status(l, err);
  pe_grammar_unlock(m->g);
  return rc;
}

/* Plain tokens that begin like a word of `except` are looked at one by one. *good is false: they
 * are too many. */
static pe_status walk_exceptions(pe_matcher *m, uint32_t from, pe_term except, uint32_t *allow,
                                 bool *good, pe_error *err) {
  const pe_tok_tree *tree = pe_tokmask_all(m->mask);
  exception above[PE_TOKMASK_LONGEST + 1];
  size_t seen = 0;
  above[0] = (exception){from, except};
  for (size_t i = 0; i < tree->nodes; i++) {
    const pe_tok_node n = tree->node[i];
    const exception e = above[n.depth];
    pe_term t;
    pe_status rc = next_term(m, e.term, (uint8_t)n.byte, &t, err);
    if (rc) return rc;
    if (t == PE_TERM_NONE) {
      i += n.below;
      continue;
    }
    uint32_t at = PE_MATCHER_DEAD;
    if (e.at != PE_MATCHER_DEAD) rc = pe_matcher_step(m, e.at, (uint8_t)n.byte, &at, err);
    if (rc || ++seen > EXCEPTIONS) return *good = false, rc;
    if (n.id != PE_TOKMASK_NO_ID) set_exception(m, n, at != PE_MATCHER_DEAD, allow);
    above[n.depth + 1] = (exception){at, t};
  }
  *good = true;
  return PE_OK;
}

static size_t mask_bytes(const pe_matcher *m) {
  return pe_tokmask_words(m->mask) * sizeof(uint32_t);
}

/* All tokens, if most of them are plain. *good is false: they must be walked. */
static pe_status set_plain(pe_matcher *m, uint32_t at, uint32_t *allow, bool *good, pe_error *err) {
  pe_term except = PE_TERM_NONE;
  const uint32_t run = plain_run(m, at, &except);
  *good = run > 0;
  if (!*good) return PE_OK;
  memcpy(allow, pe_tokmask_plain(m->mask, run), mask_bytes(m));
  pe_status rc = PE_OK;
  if (except != PE_TERM_NONE) rc = walk_exceptions(m, at, except, allow, good, err);
  return rc || !*good ? rc : walk(m, at, pe_tokmask_other(m->mask), allow, err);
}

/* ---- masks that are kept --------------------------------------------------------------------- */

static bool find_kept(const pe_matcher *m, uint32_t at, uint32_t *allow) {
  for (size_t i = 0; i < PE_MATCHER_MASKS; i++)
    if (m->kept[i].at == at) return memcpy(allow, m->kept[i].allow, mask_bytes(m)), true;
  return false;
}

/* Instead of the oldest one. */
static pe_status keep(pe_matcher *m, uint32_t at, const uint32_t *allow, pe_error *err) {
  pe_matcher_kept *k = &m->kept[m->next_kept];
  if (!k->allow && !(k->allow = pe_alloc(mask_bytes(m)))) return pe_nomem(err, "a mask");
  memcpy(k->allow, allow, mask_bytes(m));
  k->at = at;
  m->next_kept = (m->next_kept + 1) % PE_MATCHER_MASKS;
  return PE_OK;
}

pe_status pe_matcher_mask(pe_matcher *m, uint32_t *allow, pe_error *err) {
  bool done;
  if (!m->mask) return pe_fail(err, PE_EARG, "the matcher has no vocabulary");
  pe_status rc = pe_matcher_compact(m, err);
  if (rc) return rc;
  const uint32_t at = pe_matcher_at(m);
  if (find_kept(m, at, allow)) return PE_OK;
  m->walked = 0;
  rc = set_plain(m, at, allow, &done, err);
  if (!rc && !done) {
    memset(allow, 0, mask_bytes(m));
    rc = walk(m, at, pe_tokmask_all(m->mask), allow, err);
  }
  if (rc) return rc;
  set_tokens(m, allow);
  return m->walked > PE_MATCHER_COSTLY ? keep(m, at, allow, err) : PE_OK;
}
