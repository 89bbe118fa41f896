/* unigram.h - the Unigram model: among all ways to cut a piece into tokens, the one with the
 * highest sum of scores.
 *
 * One pass from left to right over a trie of the vocabulary (Viterbi), so the time is linear in the
 * text. A character that is not a token by itself is unknown and costs ten less than the lowest
 * score. Neighbouring unknowns are joined and become their bytes (byte_fallback, all or none) or
 * unk, as in the `tokenizers` library.
 *
 * Threads: immutable after finish; a pe_unigram_scratch belongs to one thread. */
#ifndef PE_UNIGRAM_H
#define PE_UNIGRAM_H

#include "runtime/text/ids.h"
#include "runtime/text/trie.h"
#include "runtime/text/vocab.h"

typedef struct pe_unigram {
  const pe_vocab *vocab; /* borrowed */
  int32_t unk;           /* -1: none, an unknown character is then an error */
  bool byte_fallback;
  /* ---- private ---- */
  pe_trie trie;
  double *score; /* by id */
  double unk_score;
  int32_t byte_id[256];
} pe_unigram;

typedef struct pe_unigram_scratch {
  struct pe_unigram_node *node;
  size_t node_cap;
  pe_ids back;        /* the path is found from its end */
} pe_unigram_scratch; /* {0} is empty */

/* Fill the public fields first. Takes the scores, one per id, also if it fails. */
pe_status pe_unigram_finish(pe_unigram *m, double *score, pe_error *err);
void pe_unigram_free(pe_unigram *m);

/* Appends the ids of one piece. Offsets are counted from base. */
pe_status pe_unigram_encode(const pe_unigram *m, pe_unigram_scratch *s, pe_str piece, size_t base,
                            pe_ids *out, pe_error *err);
void pe_unigram_scratch_free(pe_unigram_scratch *s);

#endif
