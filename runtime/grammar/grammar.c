/* grammar.c - see grammar.h: life, parameters, and the grammars that are one term. */
#include "runtime/grammar/grammar.h"

#include "runtime/grammar/grammar_parts.h"
#include "runtime/grammar/pattern.h"

static void destroy(pe_grammar *g) {
  pe_lexer_close(g->lexer);
  if (g->has_mutex) pthread_mutex_destroy(&g->mutex);
  pe_free(g->code), pe_free(g->change), pe_free(g->changes), pe_free(g->first_alt);
  pe_free(g->alt), pe_free(g->test), pe_free(g->nullable);
  pe_free(g);
}

pe_status pe_grammar_compile(pe_rules *rules, pe_rule root, pe_grammar_options o, pe_grammar **out,
                             pe_error *err) {
  pe_grammar *g = pe_calloc(1, sizeof *g);
  pe_status rc = g ? PE_OK : pe_nomem(err, "a compiled grammar");
  if (!rc) {
    atomic_init(&g->references, 1);
    g->has_mutex = pthread_mutex_init(&g->mutex, NULL) == 0;
    rc = g->has_mutex ? pe_grammar_build(g, rules, root, o, err)
                      : pe_nomem(err, "the mutex of a grammar");
  }
  pe_rules_close(rules);
  if (rc && g) destroy(g);
  if (!rc) *out = g;
  return rc;
}

pe_grammar *pe_grammar_retain(pe_grammar *g) {
  atomic_fetch_add(&g->references, 1);
  return g;
}

void pe_grammar_release(pe_grammar *g) {
  if (g && atomic_fetch_sub(&g->references, 1) == 1) destroy(g);
}

uint32_t pe_grammar_rules(const pe_grammar *g) { return (uint32_t)g->rules; }
uint32_t pe_grammar_lexemes(const pe_grammar *g) { return (uint32_t)g->lexemes; }

bool pe_grammar_worn(pe_grammar *g) {
  pthread_mutex_lock(&g->mutex);
  const bool worn = pe_lexer_worn(g->lexer);
  pthread_mutex_unlock(&g->mutex);
  return worn;
}

uint64_t pe_grammar_bytes(pe_grammar *g) {
  pthread_mutex_lock(&g->mutex);
  const uint64_t lexer = pe_lexer_bytes(g->lexer);
  pthread_mutex_unlock(&g->mutex);
  return sizeof *g + lexer +
         g->places * (sizeof *g->code + sizeof *g->change + sizeof *g->changes) +
         g->rules * sizeof *g->first_alt + g->alts * sizeof *g->alt + g->tests * sizeof *g->test;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static uint64_t field_of(uint64_t number, uint64_t mask) {
  return mask ? (number & mask) >> __builtin_ctzll(mask) : 0;
}

uint64_t pe_grammar_changed(const pe_grammar *g, uint32_t place, uint64_t number) {
  if (!g->change[place]) return 0;
  const pe_grammar_change *c = &g->changes[g->change[place] - 1];
  if (c->kind == PE_CHANGE_PUT) return c->value;
  if (c->kind == PE_CHANGE_SET) return number | c->value;
  const uint64_t field = field_of(number, c->mask), top = field_of(c->mask, c->mask);
  const uint64_t sum = c->value > top - field ? top : field + c->value;
  return c->mask ? (number & ~c->mask) | sum << __builtin_ctzll(c->mask) : number;
}

bool pe_grammar_is_open(const pe_grammar *g, const pe_grammar_alt *a, uint64_t number) {
  for (uint32_t i = 0; i < a->tests; i++) {
    const pe_test *t = &g->test[a->test + i];
    const uint64_t v =
        t->count ? (uint64_t)__builtin_popcountll(number & t->mask) : field_of(number, t->mask);
    if (v < t->least || v > t->most) return false;
  }
  return true;
}

/* ---- one term -------------------------------------------------------------------------------- */

/* Takes the rules. */
static pe_status compile_term(pe_rules *r, pe_term t, pe_grammar **out, pe_error *err) {
  pe_rule root;
  const pe_symbol s = {.kind = PE_SYMBOL_TERM, .index = t};
  pe_status rc = pe_rules_declare(r, pe_str_c("root"), &root, err);
  if (!rc) rc = pe_rules_add(r, root, &s, 1, NULL, 0, err);
  if (!rc) return pe_grammar_compile(r, root, (pe_grammar_options){0}, out, err);
  pe_rules_close(r);
  return rc;
}

pe_status pe_grammar_regex(pe_str pattern, pe_grammar **out, pe_error *err) {
  pe_rules *r;
  pe_term t;
  pe_status rc = pe_rules_open(pe_rules_usual(), &r, err);
  if (rc) return rc;
  rc = pe_pattern_read(pe_rules_rex(r), pattern, (pe_pattern_options){0}, &t, err);
  if (!rc) return compile_term(r, t, out, err);
  pe_rules_close(r);
  return rc;
}

pe_status pe_grammar_choice(const pe_str *text, size_t n, pe_grammar **out, pe_error *err) {
  pe_rules *r;
  pe_status rc = pe_rules_open(pe_rules_usual(), &r, err);
  return rc ? rc : compile_term(r, pe_rex_words(pe_rules_rex(r), text, n), out, err);
}
