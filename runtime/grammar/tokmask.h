/* tokmask.h - the tokens of a vocabulary as a tree of bytes, for the masks of matchers.
 *
 * The tree is one array of nodes in depth-first order: a node, then all nodes below it. Whoever
 * walks it looks at the byte of a node, and skips the subtree if that byte cannot come:
 *
 *   a(3) b(0) c(0) b(0)        tokens "a" "ab" "ac" "b"; in brackets the nodes below
 *
 * Tokens with the same bytes are chained. Added tokens, special or not, are not in the tree: they
 * may come only where a grammar names them, and end ids where a text may end.
 *
 * Most of a mask inside of a JSON string is always the same: tokens of up to PE_TOKMASK_RUN plain
 * characters (all but quotes, backslashes and control characters). They are kept as masks of their
 * own, one for each number of characters, and all other tokens as a second, much smaller tree: a
 * matcher that knows how many plain characters may follow copies a mask and walks the small tree.
 *
 * Building takes 50 ms for a vocabulary of 150,000, so it is a step of its own, on first use.
 *
 * Threads: shared by reference count. Any thread may build; the first one does, others wait for it,
 * and then nothing changes any more. */
#ifndef PE_TOKMASK_H
#define PE_TOKMASK_H

#include "runtime/text/tokenizer.h"

typedef struct pe_tokmask pe_tokmask;

enum {
  PE_TOKMASK_RUN = 16,      /* 690 of Qwen3's 145,450 plain tokens are longer */
  PE_TOKMASK_LONGEST = 511, /* bytes: longer tokens are in no mask */
  PE_TOKMASK_NO_ID = (1 << 22) - 1
};

typedef struct pe_tok_node {
  uint32_t byte : 8, below : 24;             /* nodes below */
  uint32_t id : 22, has_same : 1, depth : 9; /* NO_ID: no token ends here; depth from 0 on */
} pe_tok_node;

typedef struct pe_tok_tree {
  pe_tok_node *node;
  size_t nodes;
  uint32_t
      first[257]; /* by byte: the nodes of tokens that begin with it; the next one's end them */
} pe_tok_tree;

/* Retains the tokenizer. end: ids that end a text, of n. Gives. */
pe_status pe_tokmask_open(pe_tokenizer *t, const int32_t *end, size_t n, pe_tokmask **out,
                          pe_error *err);
/* Before all that tells of tokens: pe_matcher_open and pe_constraint_open see to it. After a
 * failure it may be tried again. */
pe_status pe_tokmask_build(pe_tokmask *m, pe_error *err);
pe_tokmask *pe_tokmask_retain(pe_tokmask *m); /* gives one more reference */
void pe_tokmask_release(pe_tokmask *m);       /* takes a reference; NULL is fine */

int32_t pe_tokmask_size(const pe_tokmask *m);   /* highest id + 1 */
size_t pe_tokmask_words(const pe_tokmask *m);   /* of 32 bits, of a mask */
uint64_t pe_tokmask_bytes(const pe_tokmask *m); /* of memory */

/* The bytes of a token in the tree; .at is NULL: it is not there. */
pe_str pe_tokmask_text(const pe_tokmask *m, int32_t id);
bool pe_tokmask_is_end(const pe_tokmask *m, int32_t id);
const int32_t *pe_tokmask_ends(const pe_tokmask *m, size_t *n);
/* The next token with the same bytes, or -1. */
int32_t pe_tokmask_same(const pe_tokmask *m, int32_t id);

const pe_tok_tree *pe_tokmask_all(const pe_tokmask *m);
/* Tokens of 1 to n plain characters, n up to PE_TOKMASK_RUN, and the tree of all tokens that are
 * not of 1 to PE_TOKMASK_RUN of them. */
const uint32_t *pe_tokmask_plain(const pe_tokmask *m, uint32_t n);
const pe_tok_tree *pe_tokmask_other(const pe_tokmask *m);

#endif
