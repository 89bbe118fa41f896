/* rex_parts.h - what rex.c (making terms), rex_first.c (how they begin) and rex_walk.c
 * (derivatives) share. */
#ifndef PE_REX_PARTS_H
#define PE_REX_PARTS_H

#include "runtime/grammar/rex.h"

typedef enum pe_term_kind {
  PE_TERM_IS_NONE,
  PE_TERM_IS_EMPTY,
  PE_TERM_IS_SET, /* a: index of the set */
  PE_TERM_IS_CAT, /* a, b; a is not a CAT itself */
  PE_TERM_IS_OR,  /* b operands from args[a] on, in ascending order */
  PE_TERM_IS_AND, /* the same */
  PE_TERM_IS_NOT, /* a */
  PE_TERM_IS_REP, /* a, b to c times */
  PE_TERM_IS_REM  /* divisor a, remainder b, at most c digits */
} pe_term_kind;

enum {
  PE_TERM_NULLABLE = 1,
  PE_TERM_HARD = 2, /* has & or `not` inside: whether it has a word must be searched */
  PE_TERM_ALIVE = 4,
  PE_TERM_DEAD = 8 /* hard terms whose search has ended; neither: not searched yet */
};

typedef struct pe_term_node {
  uint32_t a, b, c;
  uint8_t kind, flags;
  uint16_t first; /* the set of bytes that words may begin with; 0: any */
} pe_term_node;

struct pe_rex {
  pe_rex_limits limits;
  pe_status status;
  pe_error failure;
  uint64_t seed, steps, work;
  pe_term_node *node;
  size_t nodes, node_cap;
  uint32_t *slot; /* hash table of terms; 0 is free, since `none` is never looked up */
  size_t slots;
  pe_term *arg; /* operands of OR and AND */
  size_t args, arg_cap;
  pe_byte_set *set;
  size_t sets, set_cap;
  uint32_t *set_slot; /* hash table of them: number + 1 */
  size_t set_slots;
  pe_byte_set *first; /* from 1 on */
  size_t firsts, first_cap;
  uint16_t *first_slot; /* hash table of them */
  /* the automaton: rows of `classes` successors; row_of[t] is the index + 1 */
  bool frozen;
  uint32_t classes;
  size_t class_sets;                   /* sets that the classes tell apart */
  uint8_t class_of[256], byte_of[256]; /* byte_of: one byte of each class */
  uint32_t *row_of;
  size_t row_of_cap;
  pe_term *row;
  size_t rows, row_cap;
  /* searches for a word */
  uint32_t *seen; /* by term: number of the last search that met it */
  size_t seen_cap;
  uint32_t search;
  struct pe_rex_visit *visit;
  size_t visit_cap;
};

typedef struct pe_rex_visit {
  pe_term term;
  uint32_t parent; /* index of a visit; the first one is its own parent */
} pe_rex_visit;

/* The first bytes of a term that is being made: their set's number. Operands as of OR and AND. */
uint16_t pe_rex_first(pe_rex *r, const pe_term_node *n, const pe_term *operand);
static inline bool pe_rex_may_begin(const pe_rex *r, const pe_term_node *n, uint8_t byte) {
  return !n->first || (r->first[n->first].bits[byte / 64] >> byte % 64 & 1);
}

/* Keeps the first failure; returns PE_TERM_NONE. */
pe_term pe_rex_fail(pe_rex *r, pe_status code, const char *format, ...) PE_PRINTF(3, 4);

#endif
