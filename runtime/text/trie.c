/* trie.c - see trie.h. */
#include "runtime/text/trie.h"

#include <string.h>

static void place(pe_trie *t, pe_trie_edge e) {
  uint32_t i = (uint32_t)pe_hash_u64((uint64_t)e.node << 8 | e.byte_child >> 24) & t->mask;
  while (t->edge[i].byte_child) i = (i + 1) & t->mask;
  t->edge[i] = e;
}

/* Makes room for one more node. At most half of the edges are used, so a probe is short. */
static pe_status make_room(pe_trie *t, pe_error *err) {
  pe_status rc = pe_grow(&t->value, &t->value_cap, (size_t)t->nodes + 2, sizeof *t->value, err);
  if (rc) return rc;
  if (!t->nodes) t->value[t->nodes++] = -1; /* the root */
  if (t->nodes >= PE_TRIE_MAX_NODES)
    return pe_fail(err, PE_ELIMIT, "trie has more than %d nodes", PE_TRIE_MAX_NODES);
  if (t->edge && t->nodes * 2 <= t->mask) return PE_OK;
  uint32_t old = t->edge ? t->mask + 1 : 0;
  pe_trie_edge *from = t->edge, *fresh = pe_calloc(old ? (size_t)old * 2 : 64, sizeof *fresh);
  if (!fresh) return pe_nomem(err, "trie");
  t->edge = fresh, t->mask = old ? old * 2 - 1 : 63;
  for (uint32_t i = 0; i < old; i++)
    if (from[i].byte_child) place(t, from[i]);
  pe_free(from);
  return PE_OK;
}

pe_status pe_trie_add(pe_trie *t, pe_str key, int32_t value, pe_error *err) {
  uint32_t node = 0;
  pe_status rc = make_room(t, err);
  for (size_t i = 0; !rc && i < key.len; i++) {
    uint8_t byte = (uint8_t)key.at[i];
    uint32_t child = pe_trie_child(t, node, byte);
    if (!child) {
      if ((rc = make_room(t, err))) break;
      child = t->nodes++;
      t->value[child] = -1;
      place(t, (pe_trie_edge){node, (uint32_t)byte << 24 | child});
    }
    node = child;
  }
  if (!rc) t->value[node] = value;
  return rc;
}

void pe_trie_free(pe_trie *t) {
  pe_free(t->edge);
  pe_free(t->value);
  *t = (pe_trie){0};
}
