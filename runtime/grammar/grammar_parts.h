/* grammar_parts.h - a compiled grammar from inside: what grammar*.c make, and what the parser and
 * the matcher read.
 *
 * All alternatives lie in one array of symbols, each with an END after it that names its rule. An
 * index of that array is a place: "in this alternative, before this symbol".
 *
 *   place   0     1    2         3     4     5        list -> item | list "," item
 *           item  END  list ...  list  ","   item ... */
#ifndef PE_GRAMMAR_PARTS_H
#define PE_GRAMMAR_PARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/grammar/grammar.h"
#include "runtime/grammar/lexer.h"

enum { PE_IS_LEXEME, PE_IS_RULE, PE_IS_TOKEN, PE_IS_END };
/* A symbol in 32 bits: its kind in the upper two, and the number of the lexeme, rule or token. */
typedef uint32_t pe_code;
static inline pe_code pe_code_of(uint32_t kind, uint32_t index) { return kind << 30 | index; }
static inline uint32_t pe_code_kind(pe_code c) { return c >> 30; }
static inline uint32_t pe_code_index(pe_code c) { return c & 0x3fffffff; }

typedef struct pe_grammar_alt {
  uint32_t place, test, tests;
} pe_grammar_alt;

typedef struct pe_grammar_change {
  uint32_t kind; /* pe_change */
  uint64_t mask, value;
} pe_grammar_change;

struct pe_grammar {
  atomic_int references;
  pe_code *code;    /* by place */
  uint32_t *change; /* by place: of a rule's number; 0 is "put 0" */
  size_t places;
  pe_grammar_change *changes;
  size_t change_count;
  uint32_t *first_alt; /* by rule; the next rule's first one ends them. Rule 0 is the root's */
  size_t rules;
  pe_grammar_alt *alt;
  size_t alts;
  pe_test *test;
  size_t tests;
  bool *nullable; /* by lexeme */
  size_t lexemes;
  pthread_mutex_t mutex; /* of the lexer */
  bool has_mutex;
  pe_lexer *lexer;
};

/* Around all that walks or makes states of the lexer; what failed before is forgotten. */
static inline pe_lexer *pe_grammar_lock(pe_grammar *g) {
  pthread_mutex_lock(&g->mutex);
  pe_lexer_resume(g->lexer);
  return g->lexer;
}
static inline void pe_grammar_unlock(pe_grammar *g) { pthread_mutex_unlock(&g->mutex); }

/* The number with which the rule at a place is used, from that of the rule around it. */
uint64_t pe_grammar_changed(const pe_grammar *g, uint32_t place, uint64_t number);
bool pe_grammar_is_open(const pe_grammar *g, const pe_grammar_alt *a, uint64_t number);

/* Fills an empty grammar from the rules, whose terms go to the lexer. */
pe_status pe_grammar_build(pe_grammar *g, pe_rules *rules, pe_rule root, pe_grammar_options o,
                           pe_error *err);
/* Makes terms of the rules that are regular: *term and *folded, by rule. Gives both. */
pe_status pe_grammar_fold(pe_rules *r, pe_term **term, bool **folded, pe_error *err);

#endif
