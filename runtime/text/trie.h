/* trie.h - a byte trie: which keys begin at this place of a text?
 *
 * All edges lie in one open-addressing table keyed by (node, byte), so building needs no sorting and walking one byte
 * costs one probe. Node 0 is the root. Serves the added tokens and the Unigram model.
 *
 * Threads: immutable after the last add. */
#ifndef PE_TRIE_H
#define PE_TRIE_H

#include "runtime/hash.h"
#include "runtime/base.h"

typedef struct pe_trie_edge {
  uint32_t node, byte_child;
} pe_trie_edge; /* byte << 24 | child; child 0: free */

typedef struct pe_trie {
  pe_trie_edge *edge;
  uint32_t mask, nodes;
  int32_t *value; /* by node; -1: no key ends here */
  size_t value_cap;
} pe_trie; /* {0} is an empty trie */

enum { PE_TRIE_MAX_NODES = 1 << 24 };

pe_status pe_trie_add(pe_trie *t, pe_str key, int32_t value,
                      pe_error *err); /* the last value of a key counts */
void pe_trie_free(pe_trie *t);

/* The child of node along byte; 0: none. */
static inline uint32_t pe_trie_step(const pe_trie *t, uint32_t node, uint8_t byte) {
  for (uint32_t i = (uint32_t)pe_hash_u64((uint64_t)node << 8 | byte) & t->mask;;
       i = (i + 1) & t->mask) {
    const pe_trie_edge *e = &t->edge[i];
    if (!e->byte_child) return 0;
    if (e->node == node && e->byte_child >> 24 == byte) return e->byte_child & 0xffffff;
  }
}

#endif
