/* lexer.h - the automaton of a grammar's lexemes, built where somebody walks.
 *
 * At a place in a text, several lexemes may be under way. A state is the set of them, each with the
 * term of what is still to come; by a byte every term becomes its derivative, and lexemes that
 * cannot go on drop out. Equal sets are one state.
 *
 *   { NUMBER: -?[0-9]+   "null": null }  --n-->  { "null": ull }
 *
 * State 0 is the empty set. A lexeme may end in a state if its term has the empty word.
 *
 * Threads: as pe_rex, one at a time; a grammar has a mutex for it. Failures are those of pe_rex:
 * walking gives state 0, and whoever walks asks for pe_lexer_status. They stay until
 * pe_lexer_resume: a failure of one row does not reach the next one. */
#ifndef PE_LEXER_H
#define PE_LEXER_H

#include "runtime/grammar/rex.h"

typedef struct pe_lexer pe_lexer;

enum {
  PE_LEXER_STATES = 100000,
  PE_LEXER_BYTES = 32 << 20, /* of states, without their terms */
  PE_LEXER_STEPS = 200000    /* derivatives for one byte */
};

/* Takes the terms, which are frozen, also if it fails; term: by lexeme. Gives. */
pe_status pe_lexer_open(pe_rex *rex, const pe_term *term, size_t lexemes, pe_lexer **out,
                        pe_error *err);
void pe_lexer_close(pe_lexer *l); /* takes; NULL is fine */
pe_status pe_lexer_status(const pe_lexer *l, pe_error *err);
void pe_lexer_resume(pe_lexer *l);

uint32_t pe_lexer_start(pe_lexer *l, const uint32_t *lexeme, size_t n); /* in ascending order */
uint32_t pe_lexer_next(pe_lexer *l, uint32_t state, uint32_t class_index);
/* The lexemes that may end here, in ascending order. Borrowed until the lexer is walked again. */
const uint32_t *pe_lexer_ends(const pe_lexer *l, uint32_t state, size_t *n);
/* Some lexeme may go on. */
bool pe_lexer_goes_on(const pe_lexer *l, uint32_t state);

/* How many plain characters (tokmask.h) may follow in a row, whatever they are: at least `least`,
 * and, if `exact`, not one more. But texts that begin a word of `except`, which may be `none`, are
 * not promised. */
typedef struct pe_lexer_run {
  uint32_t least;
  pe_term except;
  bool exact;
} pe_lexer_run;
pe_lexer_run pe_lexer_plain(pe_lexer *l, uint32_t state);
/* pe_rex_step of one of its terms. */
pe_term pe_lexer_term_next(pe_lexer *l, pe_term t, uint32_t class_index);

const uint8_t *pe_lexer_class_of(const pe_lexer *l); /* by byte */
uint32_t pe_lexer_classes(const pe_lexer *l);
bool pe_lexer_worn(const pe_lexer *l);
uint64_t pe_lexer_bytes(const pe_lexer *l);

#endif
