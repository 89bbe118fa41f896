/* wordpiece.h - models that look up words: WordPiece (longest token first, parts after the first
 * one carry a prefix) and WordLevel (the word is a token or unknown).
 *
 * Threads: immutable after finish; the scratch buffer belongs to one thread. */
#ifndef PE_WORDPIECE_H
#define PE_WORDPIECE_H

#include "runtime/text/ids.h"
#include "runtime/text/vocab.h"

typedef struct pe_wordpiece {
  const pe_vocab *vocab; /* borrowed */
  pe_str unk;            /* borrowed; looked up when a word needs it */
  bool whole;            /* WordLevel */
  pe_str prefix;         /* continuing_subword_prefix; borrowed */
  int64_t max_chars;     /* longer words are unknown */
  size_t longest;        /* bytes of the longest token; set by finish */
} pe_wordpiece;

void pe_wordpiece_finish(pe_wordpiece *m);

/* Appends the ids of one piece. Offsets are counted from base. A missing unk token is an error once
 * a word needs it. */
pe_status pe_wordpiece_encode(const pe_wordpiece *m, pe_buf *scratch, pe_str piece, size_t base,
                              pe_ids *out, pe_error *err);

#endif
