/* wordpiece.h - models that look words up: WordPiece (longest token first, parts after the first carry a prefix) and
 * WordLevel (the word is a token or unknown).
 *
 * Threads: immutable after it is filled; the buffer in the scratch belongs to one thread. */
#ifndef PE_WORDPIECE_H
#define PE_WORDPIECE_H

#include "runtime/text/vocab.h"

typedef struct pe_wordpiece {
  const pe_vocab *vocab; /* borrowed */
  pe_str unk;            /* borrowed; asked for in the vocabulary when it is needed */
  bool whole;            /* WordLevel */
  pe_str prefix;         /* continuing_subword_prefix; borrowed */
  int64_t max_chars;     /* longer words are unknown */
  size_t longest;        /* bytes of the longest token; filled by finish */
} pe_wordpiece;

void pe_wordpiece_finish(pe_wordpiece *m);

/* Appends the ids of one piece; `at` counts from base. A missing unk token is an error once a word needs it. */
pe_status pe_wordpiece_encode(const pe_wordpiece *m, pe_buf *scratch, pe_str piece, size_t base,
                              pe_ids *out, pe_error *err);

#endif
