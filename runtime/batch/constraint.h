/* constraint.h - what the tokens of one answer may be: phases, found and followed token by token.
 *
 *   FREE  --a mark was written-->  (gap) GRAMMAR  --complete, nothing can follow-->  the end
 *     ^                                    |
 *     '---------------- back --------------'
 *
 * A FREE phase takes any token, until one of its marks was written: a token id, or bytes, found
 * wherever tokens split them. Then the next phase begins. What a token has after the mark belongs
 * to the next phase already; a token whose rest does not fit there is out of the mask. The bytes of
 * special tokens are not looked at, so a mark never spans one. A FREE phase without a next one goes
 * on to the end.
 *
 * A GRAMMAR phase takes what its matcher takes (matcher.h). With a gap, up to two line feeds come
 * before it; line feeds count as the gap first. End ids and stop ids may come exactly where its
 * text is complete.
 *
 * A constraint is a pure function of the tokens that it took: trimming, forking and taking the same
 * tokens again lead to the same masks, so preemption and recomputation need nothing of it. What was
 * taken is a list of steps, one per token; trimming shortens it.
 *
 *   runtime/batch/constraint.c       phases and steps
 *   runtime/batch/constraint_mask.c  which tokens may come next
 *   runtime/batch/constraint_run.c   text that must come, as tokens
 *
 * Ownership: borrows everything that it is opened with, also for its forks. Threads: one at a time.
 * Failures (PE_ELIMIT, PE_ENOMEM) leave it as it was: they end the answer, not the batch. */
#ifndef PE_CONSTRAINT_H
#define PE_CONSTRAINT_H

#include "runtime/grammar/matcher.h"
#include "runtime/text/tokenizer.h"

enum {
  PE_PHASES = 16,     /* of one request */
  PE_MARKS = 64,      /* of one phase */
  PE_MARK_BYTES = 64, /* the longest mark of a page of ours has 31 */
  /* Made tokens that a run looks at: with two, llguidance found none that was split otherwise than
   * the whole text. */
  PE_CONSTRAINT_LOOKBACK = 4
};

typedef struct pe_phase {
  pe_grammar *grammar; /* NULL: FREE */
  const int32_t *mark_id;
  int32_t mark_ids;
  const pe_str *mark;
  int32_t marks;
  bool ends;    /* FREE: end ids may come; else they are banned */
  bool gap;     /* GRAMMAR, like the next one */
  int32_t back; /* the phase that begins again after it, from 1; 0: the answer ends */
} pe_phase;

/* The error names the field of a request and the place in it. */
pe_status pe_phases_check(const pe_phase *phase, int32_t count, pe_error *err);

typedef struct pe_constraint pe_constraint;

typedef struct pe_constraint_options {
  const pe_tokenizer *tokenizer;
  pe_tokmask *tokens; /* of this tokenizer, with the model's end ids */
  int32_t vocabulary; /* ids of a mask; those that the tokenizer does not have are in none */
  const pe_phase *phase;
  int32_t phases;
  const int32_t *stop_id; /* end the answer, as end ids do */
  int32_t stop_ids;
  bool ignore_end; /* the model's end ids do not end it */
} pe_constraint_options;

pe_status pe_constraint_open(const pe_constraint_options *o, pe_constraint **out,
                             pe_error *err); /* gives */
/* With the same past. Gives. */
pe_status pe_constraint_fork(const pe_constraint *c, pe_constraint **out, pe_error *err);
void pe_constraint_close(pe_constraint *c); /* takes; NULL is fine */

/* Takes a token; *ok is false, and nothing is taken, if it may not come. */
pe_status pe_constraint_take(pe_constraint *c, int32_t id, bool *ok, pe_error *err);
int32_t pe_constraint_count(const pe_constraint *c);       /* tokens taken */
void pe_constraint_trim(pe_constraint *c, int32_t tokens); /* keeps the first ones */

/* Which ids may come next, for the sampler; *allow is NULL: all. Made once per token, the second
 * call returns the first one's. Valid until the next take or trim. */
pe_status pe_constraint_mask(pe_constraint *c, const uint32_t **allow, pe_error *err);
bool pe_constraint_bans_ends(const pe_constraint *c); /* in addition to the mask */
bool pe_constraint_complete(const pe_constraint *c);  /* the answer may end here */
bool pe_constraint_over(const pe_constraint *c);      /* and nothing can follow */

/* Appends tokens that must come next, `most` at most: text of which only one continuation exists,
 * as the tokenizer writes it after the last tokens. A token at its end that a longer one could
 * replace is left to the model. made: the last tokens that were generated, PE_CONSTRAINT_LOOKBACK
 * of them unless there are fewer. Takes nothing. */
pe_status pe_constraint_run(pe_constraint *c, pe_tokenizer_scratch *s, const int32_t *made,
                            int32_t count, int32_t most, pe_ids *out, pe_error *err);

#endif
