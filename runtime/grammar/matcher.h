/* matcher.h - follows a text along a grammar, token by token, and says which tokens may come next.
 *
 *   pe_matcher_open(g, mask, &m, &err);
 *   loop: pe_matcher_mask(m, allow, &err);      which ids may come: bit id % 32 of allow[id / 32]
 *         pe_matcher_take(m, id, &ok, &err);    the one that was drawn
 *
 * A prefix is taken exactly if it is the beginning of some text of the grammar, byte by byte; there
 * is neither greed nor look-ahead. An id is in the mask exactly if its bytes can be taken. Added
 * tokens are in it only where the grammar has a token symbol for them, and end ids exactly where
 * the text is complete. Ids above the vocabulary are never in it.
 *
 * A position in a text is a set of threads, each a row of the parser (chart.h) and a state of the
 * lexer (lexer.h). Positions are numbered and found again by their content, and each remembers
 * where the bytes lead from it; so the matcher is itself an automaton that is built where it is
 * walked, and the walk over all tokens for a mask is one look-up per node of their tree. The last
 * few masks that took long are kept, by position.
 *
 *   text   {  "  a  "  :           positions that were met before cost nothing:
 *   pos    1  2  3  3  4 ...       inside of a string, and in every element of a list
 *
 * What was taken is a list of numbers of positions. Trimming shortens it, forking copies it; both
 * give the same masks as taking the tokens one by one from the beginning, as all masks are a
 * function of the grammar and the bytes.
 *
 * Failures: PE_ELIMIT (bounds below) and PE_ENOMEM. The matcher stays at its last position, and
 * whoever drives it ends that row, not the batch.
 *
 * Threads: a matcher belongs to one thread at a time (the engine's, or a helper's while it makes a
 * mask). Matchers of one grammar may run at once: see grammar.h. No Lua anywhere. */
#ifndef PE_MATCHER_H
#define PE_MATCHER_H

#include "runtime/grammar/grammar.h"
#include "runtime/grammar/tokmask.h"

typedef struct pe_matcher pe_matcher;

enum {
  PE_MATCHER_BYTES = 64 << 20, /* of memory */
  PE_MATCHER_SOME = 2 << 20,   /* from here on, positions that are not in the past are dropped */
  PE_MATCHER_THREADS = 256     /* ways to split a text into lexemes that are alive at once */
};

/* Retains both; mask may be NULL if only bytes are taken. Gives. */
pe_status pe_matcher_open(pe_grammar *g, pe_tokmask *mask, pe_matcher **out, pe_error *err);
/* A matcher at the same position, with the same past. Gives. */
pe_status pe_matcher_fork(const pe_matcher *m, pe_matcher **out, pe_error *err);
void pe_matcher_close(pe_matcher *m); /* takes; NULL is fine */

/* Takes all bytes as one step, or nothing; *taken is how many of them can be taken. */
pe_status pe_matcher_feed(pe_matcher *m, pe_str bytes, size_t *taken, pe_error *err);
/* Takes a token as one step; *ok is false, and nothing is taken, if it is not in the mask. After an
 * end id nothing can be taken. */
pe_status pe_matcher_take(pe_matcher *m, int32_t id, bool *ok, pe_error *err);
/* The text begins anew, as one step: for the second call of a tool. What is known of the grammar's
 * positions is known still. */
pe_status pe_matcher_restart(pe_matcher *m, pe_error *err);
/* Fills pe_tokmask_words words. Takes nothing. */
pe_status pe_matcher_mask(pe_matcher *m, uint32_t *allow, pe_error *err);

bool pe_matcher_complete(const pe_matcher *m); /* the text may end here */
/* Appends the bytes that must come next, as far as exactly one can and the text may not end, but
 * `most` at most. Takes nothing. */
pe_status pe_matcher_forced(pe_matcher *m, size_t most, pe_buf *out, pe_error *err);
/* *over: the text is complete, and nothing can follow. */
pe_status pe_matcher_is_over(pe_matcher *m, bool *over, pe_error *err);

size_t pe_matcher_length(const pe_matcher *m);      /* steps taken */
void pe_matcher_trim(pe_matcher *m, size_t length); /* keeps the first ones */

uint64_t pe_matcher_bytes(const pe_matcher *m); /* of memory */

#endif
