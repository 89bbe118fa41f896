/* bpe.h - byte pair encoding: a piece of text becomes symbols, and the best pair of neighbours is merged until none is
 * left.
 *
 * Two ways to say which pair is best. Merges: a list of pairs, the earlier the better (tokenizer.json, GGUF's "gpt2").
 * Scores: any two neighbours whose joined text is a token may merge, the highest score first (SentencePiece, GGUF's
 * "llama"). Ties go to the left. Both run on the same engine.
 *
 * The first symbols are characters; with `raw` they are bytes, and the vocabulary is read through the byte alphabet.
 * A character the vocabulary lacks becomes byte tokens (byte_fallback, all or none), unk, or vanishes, in the way of the
 * `tokenizers` library down to its order of pending unknowns.
 *
 * Speed. Short pieces are merged by scanning a small array; long ones (over 40 symbols) with a heap and a linked list,
 * so a megabyte without a space costs n log n. Results of short pieces are kept in a direct-mapped cache of fixed size
 * in the scratch. Where the model has no pre-tokenizer (SentencePiece), text is cut before each U+2581 that no token
 * could swallow together with the character on its left: no merge crosses there, so the ids are those of the whole.
 *
 * Threads: pe_bpe is immutable after finish; a pe_bpe_scratch belongs to one thread. */
#ifndef PE_BPE_H
#define PE_BPE_H

#include "runtime/text/vocab.h"

enum {
  PE_BPE_NO_UNK = -1,
  PE_BPE_LOST_UNK = -2
}; /* not asked for; asked for, but not in the vocabulary */

typedef struct pe_bpe_pair {
  int32_t left, right;
} pe_bpe_pair;

typedef struct pe_bpe {
  const pe_vocab *vocab; /* borrowed */
  pe_str prefix, suffix; /* continuing_subword_prefix, end_of_word_suffix; borrowed */
  int32_t unk;
  bool fuse_unk, byte_fallback, ignore_merges, raw;
  bool whole_newlines; /* like ignore_merges, for pieces of line feeds alone */
  /* ---- private ---- */
  struct pe_bpe_merge *merge; /* open addressing */
  uint32_t mask;
  struct pe_bpe_outcome *first; /* raw: what two bytes become, by both */
  uint32_t *rank;               /* by id, with scores */
  int32_t *single;              /* by code point below 65,536: the token of one character */
  int32_t byte_id[256];         /* raw: the token of a byte; else of "<0xAB>" */
  uint8_t
      *glued; /* bitmap by code point: may stand before U+2581 inside a token; NULL: never cut */
} pe_bpe;

/* Fill the public fields first. pairs are in order of rank; the merged text of each must be a token. */
pe_status pe_bpe_finish(pe_bpe *m, const pe_bpe_pair *pair, size_t pairs, pe_error *err);
/* Instead of merges: one score per id of the vocabulary. */
pe_status pe_bpe_finish_scores(pe_bpe *m, const float *score, pe_error *err);
void pe_bpe_free(pe_bpe *m);

typedef struct pe_bpe_scratch {
  struct pe_bpe_symbol *symbol;
  size_t symbol_cap;
  struct pe_bpe_link *link;
  size_t link_cap;
  uint64_t *heap;
  size_t heap_cap;
  pe_buf text;
  struct pe_bpe_word *cache; /* NULL until the first piece */
} pe_bpe_scratch;            /* {0} is empty; made for one pe_bpe */

/* Appends the ids of one piece; `at` counts from base, the piece's own offset. */
pe_status pe_bpe_encode(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, size_t base, pe_ids *out,
                        pe_error *err);
void pe_bpe_scratch_free(pe_bpe_scratch *s);

#endif
