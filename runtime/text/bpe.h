/* bpe.h - byte pair encoding: a piece of text becomes symbols, and the best pair of neighbours is
 * merged until no pair is left.
 *
 * The best pair is defined by merges or by scores, on the same engine. Merges: a list of pairs, the
 * earlier the better (tokenizer.json, GGUF's "gpt2"). Scores: any two neighbours whose joined text
 * is a token may merge, the highest score first (SentencePiece, GGUF's "llama"). Ties go to the
 * left.
 *
 * The first symbols are characters; with `raw` they are bytes, and the vocabulary is read through
 * the byte alphabet. A character that is not in the vocabulary becomes byte tokens (byte_fallback,
 * all of its bytes or none), unk, or vanishes. The order in which unknowns are written is that of
 * the `tokenizers` library.
 *
 * Speed. Pieces of up to 40 symbols are merged by scanning a small array, longer ones with a heap
 * and a linked list, so a megabyte without a space costs n log n. Results of short pieces are
 * cached in the scratch. If the model has no pre-tokenizer (SentencePiece), text is cut before each
 * U+2581 that no token contains together with the character on its left: no merge crosses such a
 * cut, so the ids are those of the whole text.
 *
 * Threads: pe_bpe is immutable after finish; a pe_bpe_scratch belongs to one thread. */
#ifndef PE_BPE_H
#define PE_BPE_H

#include <stdatomic.h>

#include "runtime/text/ids.h"
#include "runtime/text/vocab.h"

enum {
  PE_BPE_NO_UNK = -1,  /* the model has no unk token */
  PE_BPE_LOST_UNK = -2 /* it names one that is not in the vocabulary */
};

typedef struct pe_bpe_pair {
  int32_t left, right;
} pe_bpe_pair;

typedef struct pe_bpe {
  const pe_vocab *vocab; /* borrowed */
  pe_str prefix, suffix; /* continuing_subword_prefix, end_of_word_suffix; borrowed */
  int32_t unk;
  bool fuse_unk, byte_fallback, ignore_merges, raw;
  bool whole_newlines; /* ignore_merges for pieces that are all line feeds */
  /* ---- private ---- */
  struct pe_bpe_merge *merge; /* open addressing */
  uint32_t mask;
  struct pe_bpe_outcome *first; /* raw: what two bytes become, by both */
  uint32_t *rank;               /* by id, with scores */
  int32_t *single;              /* by code point below 65,536: the token of one character */
  int32_t byte_id[256];         /* raw: the token of a byte; otherwise of "<0xAB>" */
  size_t longest;               /* bytes that a token covers at most; 0: unknown */
  uint8_t *glued;               /* bitmap of characters that precede U+2581 inside some token;
                                 * NULL: never cut */
} pe_bpe;

/* Fill the public fields first. Pairs are in order of rank; the merged text of each must be a
 * token. */
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
  const atomic_bool *stop;   /* NULL, or: long pieces end with PE_ECANCEL when it is set */
} pe_bpe_scratch;            /* {0} is empty; for one pe_bpe only, because of the cache */

/* Appends the ids of one piece. Offsets are counted from base, the offset of the piece itself. */
pe_status pe_bpe_encode(const pe_bpe *m, pe_bpe_scratch *s, pe_str piece, size_t base, pe_ids *out,
                        pe_error *err);
void pe_bpe_scratch_free(pe_bpe_scratch *s);

#endif
