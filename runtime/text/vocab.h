/* vocab.h - a vocabulary: token texts and their ids, in both directions.
 *
 * Texts lie back to back in one block and are found through an open-addressing table keyed by XXH3,
 * so loading 150,000 tokens is one pass without an allocation per token. Two texts may share an id:
 * the id then reads as the later one. Two equal texts may have different ids: the later id counts.
 * Ids may have holes, but an id above 4 * entries + 65,536 is refused, so that a bad id in a small
 * file cannot cause a large allocation.
 *
 * Life: add texts, then call pe_vocab_finish once; after that any number of threads may look up. */
#ifndef PE_VOCAB_H
#define PE_VOCAB_H

#include "runtime/base.h"

typedef struct pe_vocab_entry {
  uint32_t at, len; /* text: bytes [at, at + len) of the block */
  int32_t id;       /* -1: a later entry has the same text */
} pe_vocab_entry;

typedef struct pe_vocab_slot { /* a look-up reads this and the text, nothing else */
  uint32_t tag, at, len;
  int32_t next_id; /* id + 1; 0 is free */
} pe_vocab_slot;

typedef struct pe_vocab {
  pe_buf text;
  pe_vocab_entry *entry;
  size_t count, cap;
  /* ---- after finish ---- */
  pe_vocab_slot *slot;
  uint32_t mask;
  pe_vocab_entry *by_id; /* the text of each id; id -1 is a hole */
  int32_t size;          /* highest id + 1 */
} pe_vocab;              /* {0} is an empty vocabulary */

/* Refuses ids outside 0..2^31-2. */
pe_status pe_vocab_add(pe_vocab *v, pe_str text, int64_t id, pe_error *err);
pe_status pe_vocab_finish(pe_vocab *v, pe_error *err);
void pe_vocab_free(pe_vocab *v);

int32_t pe_vocab_id(const pe_vocab *v, pe_str text); /* -1: not found */
pe_str pe_vocab_text(const pe_vocab *v, int32_t id); /* .at is NULL: no such id */

/* Reads "<0xAB>" as 0xAB; -1 for any other text. */
int pe_vocab_byte_token(pe_str text);

#endif
