/* constraint_parts.h - between the constraint*.c files: what a constraint is made of.
 *
 * Each phase with a grammar has one matcher, opened when the phase begins first; when it begins
 * again the matcher restarts, as a step of its own, so trimming crosses that too. After each token
 * a step notes the phase, and the length of every matcher. Text of FREE phases is kept in one
 * buffer: marks are looked for at its end. */
#ifndef PE_CONSTRAINT_PARTS_H
#define PE_CONSTRAINT_PARTS_H

#include "runtime/batch/constraint.h"

enum { PE_GAP = 2, PE_PHASE_OVER = -1 };

typedef struct pe_constraint_step {
  int32_t phase;          /* or PE_PHASE_OVER */
  int32_t gap;            /* line feeds that may still come before the grammar */
  size_t text, text_from; /* length of the FREE text; where marks may begin in it */
} pe_constraint_step;

struct pe_constraint {
  pe_constraint_options o;
  pe_matcher **matcher;     /* by phase; NULL: it has not begun yet, or is FREE */
  pe_constraint_step *step; /* [0] is the beginning */
  uint32_t *length;         /* by step and phase: of the matchers */
  size_t step_cap, length_cap;
  int32_t steps; /* the last one */
  pe_buf text;
  pe_buf piece;    /* the bytes of the token that is being taken */
  int32_t *inside; /* tokens that may have a mark and more inside, of the phase `inside_of` */
  size_t inside_count, inside_cap;
  int32_t inside_of; /* -1: none was searched */
  uint32_t *allow;   /* the mask, of `words` words, */
  size_t words;
  bool masked, allow_all; /* of the last step */
};

static inline const pe_constraint_step *pe_constraint_at(const pe_constraint *c) {
  return &c->step[c->steps];
}

/* NULL: the answer is over. */
static inline const pe_phase *pe_constraint_phase(const pe_constraint *c) {
  const int32_t phase = pe_constraint_at(c)->phase;
  return phase == PE_PHASE_OVER ? NULL : &c->o.phase[phase];
}

/* That of the phase, which has a grammar. */
static inline pe_matcher *pe_constraint_matcher(const pe_constraint *c) {
  return c->matcher[pe_constraint_at(c)->phase];
}

static inline bool pe_constraint_has(const int32_t *list, int32_t count, int32_t id) {
  for (int32_t i = 0; i < count; i++)
    if (list[i] == id) return true;
  return false;
}

/* Of the nodes of all tokens: the one at the end of this path, and all below it. */
typedef struct pe_constraint_subtree {
  const pe_tok_node *node;
  size_t from, to; /* equal: no token begins so */
} pe_constraint_subtree;
pe_constraint_subtree pe_constraint_below(const pe_constraint *c, pe_str path);

/* The bytes of a token as the marks of a FREE phase see them; special ones have none. Borrowed
 * until the next call. */
pe_status pe_constraint_bytes(pe_constraint *c, int32_t id, pe_str *out, pe_error *err);

#endif
