/* trie.h - a byte trie: which keys begin at this place of a text? Used by added tokens, stop
 * strings and the Unigram model.
 *
 * All edges lie in one open-addressing table keyed by (node, byte), so building needs no sorting
 * and following a byte is one probe. Node 0 is the root.
 *
 * Threads: immutable after the last add. */
#ifndef PE_TRIE_H
#define PE_TRIE_H

#include "runtime/base.h"
#include "runtime/hash.h"

typedef struct pe_trie_edge {
  uint32_t node;
  uint32_t byte_child; /* byte << 24 | child; child 0: free */
} pe_trie_edge;

typedef struct pe_trie {
  pe_trie_edge *edge;
  uint32_t mask, nodes;
  int32_t *value; /* by node; -1: no key ends here */
  size_t value_cap;
} pe_trie; /* {0} is an empty trie */

enum { PE_TRIE_MAX_NODES = 1 << 24 }; /* a child has 24 bits in an edge */

/* If a key is added twice, its last value counts. */
pe_status pe_trie_add(pe_trie *t, pe_str key, int32_t value, pe_error *err);
void pe_trie_free(pe_trie *t);

/* The child of node along byte; 0: none. The trie must have at least one key. */
static inline uint32_t pe_trie_child(const pe_trie *t, uint32_t node, uint8_t byte) {
  for (uint32_t i = (uint32_t)pe_hash_u64((uint64_t)node << 8 | byte) & t->mask;;
       i = (i + 1) & t->mask) {
    const pe_trie_edge *e = &t->edge[i];
    if (!e->byte_child) return 0;
    if (e->node == node && e->byte_child >> 24 == byte) return e->byte_child & 0xffffff;
  }
}

#endif
