/* lexer_parts.h - what lexer.c (states) and lexer_plain.c share. */
#ifndef PE_LEXER_PARTS_H
#define PE_LEXER_PARTS_H

#include "runtime/grammar/lexer.h"

#define PE_LEXER_UNKNOWN UINT32_MAX

typedef struct pe_lexer_pair { /* a lexeme under way */
  uint32_t lexeme;
  pe_term term;
} pe_lexer_pair;

typedef struct pe_lexer_state {
  uint32_t first, pairs; /* in ascending order of lexemes */
  uint32_t end, ends;    /* those that may end here */
  pe_lexer_run plain;    /* what pe_lexer_plain says; .least is PE_LEXER_UNKNOWN: nobody asked */
  bool goes_on;
} pe_lexer_state;

struct pe_lexer {
  pe_rex *rex;
  pe_term *start; /* by lexeme */
  size_t lexemes;
  pe_lexer_state *state;
  size_t states, state_cap;
  pe_lexer_pair *pair;
  size_t pairs, pair_cap;
  uint32_t *end;
  size_t ends, end_cap;
  uint32_t *next; /* `classes` of them for each state */
  size_t next_cap;
  uint32_t *slot; /* hash table: state + 1 */
  size_t slots;
  pe_lexer_pair *made; /* the state that is being made */
  size_t made_cap;
  struct {
    pe_term term;
    bool has, exact;
  } asked[8]; /* terms of one character that were asked for plain ones; `none` has not any */
  size_t next_asked;
};

#endif
