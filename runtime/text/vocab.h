/* vocab.h - a vocabulary: token texts and their ids, both ways; and pe_ids, the growing list of ids that encoding fills.
 *
 * Texts lie back to back in one block and are found through an open-addressing table keyed by XXH3, so loading a
 * 150,000-token vocabulary costs one pass and no allocation per token. Two texts may share an id (the later one is
 * what the id reads as); of two equal texts the later one's id counts. Ids may have holes, but not wildly: an id
 * beyond 4 * entries + 65,536 is refused, so nothing is ever allocated by the size of an id alone.
 *
 * Life: add texts, then pe_vocab_finish once; after that only look-ups, from any number of threads. */
#ifndef PE_VOCAB_H
#define PE_VOCAB_H

#include "runtime/base.h"

typedef struct pe_vocab_entry {
  uint32_t at, len; /* text: bytes [at, at + len) of the block */
  int32_t id;       /* -1: overruled by a later entry of the same text */
} pe_vocab_entry;

typedef struct pe_vocab_slot { /* all that a look-up needs but the text itself */
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

pe_status pe_vocab_add(pe_vocab *v, pe_str text, int64_t id,
                       pe_error *err); /* refuses ids outside 0..2^31-2 */
pe_status pe_vocab_finish(pe_vocab *v, pe_error *err);
void pe_vocab_free(pe_vocab *v);

int32_t pe_vocab_id(const pe_vocab *v, pe_str text); /* -1: not there */
pe_str pe_vocab_text(const pe_vocab *v, int32_t id); /* .at is NULL: no such id */

/* Reads "<0xAB>" as 0xAB; -1 for anything else. */
int pe_vocab_byte_token(pe_str text);

/* ---- ids ----------------------------------------------------------------------------------------------------- */

typedef struct pe_ids {
  int32_t *id;
  uint32_t *at; /* with offsets: where the token begins, a byte offset */
  size_t count, cap, at_cap;
  bool offsets; /* set before use: fill `at`, too */
} pe_ids;       /* {0} is an empty list */

/* Makes room for n more; then put needs no check. */
pe_status pe_ids_reserve(pe_ids *l, size_t n, pe_error *err);
static inline void pe_ids_put(pe_ids *l, int32_t id, size_t at) {
  if (l->offsets) l->at[l->count] = (uint32_t)at;
  l->id[l->count++] = id;
}
void pe_ids_free(pe_ids *l);

#endif
