/* rex.h - regular languages over bytes as terms, and their automaton by derivatives.
 *
 * A term is a number. Equal terms are one term, found by a table when it is made, so terms that
 * were written alike are compared by their numbers:
 *
 *   none        no word                     not x         the words that x does not have
 *   empty       the empty word              x{m,n}        m to n words of x, one after the other
 *   set         one byte of a set           rem(d, r, n)  at most n decimal digits that, written
 *   x y         a word of x, one of y                     after a number with the remainder r,
 *   x | y, x & y                                          make one that d divides
 *
 * The derivative of a term by a byte is the term of what may follow that byte. A term is therefore
 * a state of an automaton, and the automaton is built only where somebody walks: (a|b)*a(a|b){200}
 * costs what is visited, and x{0,20000} is one state per x that was read, never 20,000 copies.
 *
 *   "ab"|"ac"  --a-->  "b"|"c"  --c-->  empty, which is nullable: the word may end
 *
 * pe_rex_next gives `none` exactly when no word can continue this way. Without & and `not` a term
 * other than `none` always has a word; with them the automaton is searched for one, and each answer
 * is remembered for all terms on the way.
 *
 * Making terms: nothing fails visibly. The first failure (memory, a limit) is kept, later terms are
 * `none`, and pe_rex_status tells; so whoever makes terms asks once, at the end. The same holds for
 * walking: a walk that hits a limit sees `none` and has to ask. pe_rex_freeze ends the making of
 * new sets: bytes that no set tells apart become one class, and a state has a successor per class.
 *
 * Threads: a pe_rex belongs to one thread at a time; walking writes to it, too. */
#ifndef PE_REX_H
#define PE_REX_H

#include "runtime/base.h"

typedef struct pe_rex pe_rex;
typedef uint32_t pe_term;

enum { PE_TERM_NONE = 0, PE_TERM_EMPTY = 1, PE_TERM_ALL = 2 }; /* all: not none */
#define PE_REX_FOREVER UINT32_MAX                              /* no upper bound of x{m,n} */

typedef struct pe_rex_limits {
  uint32_t terms; /* 16 bytes each, and as much for looking them up */
  uint64_t steps; /* derivatives, searches for words included, until pe_rex_allow */
} pe_rex_limits;

pe_status pe_rex_open(pe_rex_limits limits, pe_rex **out, pe_error *err); /* gives */
void pe_rex_close(pe_rex *r);                                             /* takes; NULL is fine */
/* PE_OK, or the first failure, which stays. */
pe_status pe_rex_status(const pe_rex *r, pe_error *err);
/* Counts work before terms are made, in units of about a microsecond: a few bytes of a pattern can
 * name thousands of characters. PE_REX_WORK of it is a failure. */
enum { PE_REX_WORK = 500000 };
pe_status pe_rex_spend(pe_rex *r, uint64_t work, pe_error *err);

/* ---- making ---------------------------------------------------------------------------------- */

typedef struct pe_byte_set {
  uint64_t bits[4]; /* byte b is bit b % 64 of word b / 64 */
} pe_byte_set;

pe_term pe_rex_set(pe_rex *r, const pe_byte_set *set);
pe_term pe_rex_word(pe_rex *r, pe_str word);
/* One of these words; their beginnings are shared. */
pe_term pe_rex_words(pe_rex *r, const pe_str *word, size_t n);
pe_term pe_rex_cat(pe_rex *r, pe_term a, pe_term b);
pe_term pe_rex_or(pe_rex *r, const pe_term *list, size_t n);
pe_term pe_rex_and(pe_rex *r, const pe_term *list, size_t n);
pe_term pe_rex_not(pe_rex *r, pe_term a);
pe_term pe_rex_repeat(pe_rex *r, pe_term a, uint32_t least, uint32_t most);
/* The divisor is 1 to 10^6; PE_REX_FOREVER: any number of digits. */
pe_term pe_rex_remainder(pe_rex *r, uint32_t divisor, uint32_t rest, uint32_t most);

typedef struct pe_code_range {
  uint32_t from, to; /* code points, both included */
} pe_code_range;
/* The UTF-8 of one character of the ranges, which may overlap. Surrogates have no UTF-8. */
pe_term pe_rex_chars(pe_rex *r, const pe_code_range *range, size_t n);

/* Whether a term that was made, not walked to, has a word at all; whether this is one. */
bool pe_rex_has_word(pe_rex *r, pe_term t);
bool pe_rex_matches(pe_rex *r, pe_term t, pe_str word);
/* As pe_rex_has_word, but *known is false, and nothing has failed, if it takes more than `steps`
 * derivatives. */
bool pe_rex_has_word_soon(pe_rex *r, pe_term t, uint64_t steps, bool *known);

void pe_rex_freeze(pe_rex *r);

/* ---- walking --------------------------------------------------------------------------------- */

bool pe_rex_nullable(const pe_rex *r, pe_term t); /* the empty word belongs to it */
pe_term pe_rex_next(pe_rex *r, pe_term t, uint8_t byte);
/* From now on `steps` more derivatives may be made. */
void pe_rex_allow(pe_rex *r, uint64_t steps);
/* Forgets a failure of walking, which wrote nothing down: another walk may have what it needs. */
void pe_rex_resume(pe_rex *r);
uint32_t pe_rex_classes(const pe_rex *r);
const uint8_t *pe_rex_class_of(const pe_rex *r); /* by byte */
/* As pe_rex_next, by the class of a byte. */
pe_term pe_rex_step(pe_rex *r, pe_term t, uint32_t class_index);
/* The same, for whoever keeps the answers: nothing is remembered here. */
pe_term pe_rex_derive(pe_rex *r, pe_term t, uint32_t class_index);

uint32_t pe_rex_terms(const pe_rex *r); /* made so far */
uint64_t pe_rex_bytes(const pe_rex *r); /* of memory */

#endif
