/* prefix_tree.h - the tree of prefix.h: nodes, their contents, their ages, and the search.
 *
 * Below the top is one node per key (tenant and rope), and below those the blocks of tokens. The
 * label of a node is its words: the tokens of its block, fewer in a partly filled one, or the words
 * of a key. Children are sorted by label, and no label is a prefix of a sibling's: those two would
 * be one node. So one binary search finds the child that continues a prompt, in full or in part, by
 * comparing the tokens themselves. The chained hash of a node only names its file.
 *
 * The contents of a node may be in memory, on disk, or both. `fill` counts the valid tokens in its
 * block of a group in memory, `disk` those in its file. They can be fewer than the label has: a
 * windowed group may have released its block by the time a longer sequence was inserted, and then
 * the shorter block is worth keeping.
 *
 * Invariants:
 *   - the tree has one reference to a KV block per node and group that names it; `held` counts them
 *     by block
 *   - the parent of a resident node is resident or a key; the ancestors of a pinned node are pinned
 *   - `ages` lists the resident nodes and the snapshots in memory that are not pinned, oldest
 *     first; a node is older than its parent and a snapshot older than its node, so the oldest
 *     entry can always be evicted
 *   - in a model with recurrent layers, a resident leaf is pinned or has a snapshot in memory;
 *     without one it would be useless
 *
 * Threads: one at a time. */
#ifndef PE_PREFIX_TREE_H
#define PE_PREFIX_TREE_H

#include "runtime/cache/prefix.h"

enum {
  PE_TREE_SLOTS = 4,    /* snapshots per node; 32 tokens rarely contain more places to resume */
  PE_TREE_KEY_WORDS = 3 /* the salt takes two */
};
enum { PE_TREE_DEPTH_TOP = -2, PE_TREE_DEPTH_KEY = -1 }; /* blocks start at 0 */

typedef struct pe_tree_hash {
  uint64_t low, high;
} pe_tree_hash;

/* An entry of a ring; the head of the ring is before the oldest and after the newest entry. */
typedef struct pe_tree_age {
  struct pe_tree_age *older, *newer; /* NULL: not in a list */
  struct pe_tree_node *node;
  int32_t slot; /* -1: the node itself */
} pe_tree_age;

typedef struct pe_tree_slot { /* a snapshot */
  int32_t position;           /* 0: none */
  int32_t pins;
  bool disk;          /* the file has it */
  pe_snapshot *state; /* NULL: on disk only */
  uint64_t used;      /* the last use, by the clock of the tree */
  pe_tree_age age;
} pe_tree_slot;

typedef struct pe_tree_node {
  struct pe_tree_node *parent, **child; /* sorted */
  size_t child_cap;
  int32_t child_count, live; /* all children; resident ones */
  int32_t depth, count;      /* index of the block or PE_TREE_DEPTH_...; words of the label */
  int32_t pins;
  bool resident;
  bool fresh;          /* has contents that were not offered to the disk yet */
  uint64_t file_bytes; /* 0: no file */
  uint64_t reading;    /* the job that reads its file ahead; 0: none */
  pe_tree_hash hash;   /* of the path from the top */
  pe_tree_age age, file_age;
  pe_tree_slot slot[PE_TREE_SLOTS];
  int32_t *block, *fill, *disk; /* by group; block -1: not in memory */
  int32_t *word;
  int32_t data[];
} pe_tree_node;

typedef struct pe_tree {
  pe_kv *kv; /* borrowed */
  pe_recur *recur;
  int32_t groups, size; /* cache groups; tokens of a block */
  bool windowed;        /* some group has a window */
  pe_tree_node *top;
  pe_tree_age ages, files; /* resident nodes and snapshots; nodes with a file */
  int32_t *held[PE_GRAPH_GROUPS];
  int64_t freed[PE_GRAPH_GROUPS]; /* blocks that the tree was the last to hold */
  uint64_t bytes, nodes, snapshots, clock;
  uint64_t seed;      /* of all hashes; depends on the model */
  uint64_t hash_mask; /* all ones; tests change it to make hashes collide */
} pe_tree;

typedef struct pe_tree_hit {
  pe_tree_node *node;
  int32_t position, slot; /* slot -1: the model has no recurrent layers */
} pe_tree_hit;

pe_status pe_tree_open(pe_tree *t, pe_kv *kv, pe_recur *recur, uint64_t seed, pe_error *err);
void pe_tree_close(pe_tree *t);
pe_tree *pe_prefix_tree(pe_prefix *p); /* for tests, which check the invariants */

/* ---- shape ----------------------------------------------------------------------------------- */

pe_tree_hash pe_tree_hash_of(const pe_tree *t, pe_tree_hash parent, const int32_t *word,
                             int32_t count);
/* The node of a key, or NULL. */
pe_tree_node *pe_tree_key(const pe_tree *t, const pe_prefix_key *key);
pe_status pe_tree_make_key(pe_tree *t, const pe_prefix_key *key, pe_tree_node **out, pe_error *err);
/* The child whose label is a prefix of these words, or the reverse; NULL: none. */
pe_tree_node *pe_tree_child(const pe_tree_node *n, const int32_t *word, int32_t count);
/* Adds a child; pe_tree_child must have returned NULL. */
pe_status pe_tree_add(pe_tree *t, pe_tree_node *parent, const int32_t *word, int32_t count,
                      pe_tree_node **out, pe_error *err);
/* Gives n a longer label that starts with its own; n must not have a file. */
void pe_tree_extend(pe_tree *t, pe_tree_node *n, const int32_t *word, int32_t count);
/* After n lost contents: removes useless nodes from n upwards. n may be freed. */
void pe_tree_settle(pe_tree *t, pe_tree_node *n);

/* ---- contents -------------------------------------------------------------------------------- */

void pe_tree_admit(pe_tree *t, pe_tree_node *n); /* makes it resident */
/* Drops all contents from memory; n must have no resident children. */
void pe_tree_vacate(pe_tree *t, pe_tree_node *n);
/* Retains the block and replaces the old one. */
void pe_tree_put_block(pe_tree *t, pe_tree_node *n, int32_t group, int32_t block, int32_t fill);
void pe_tree_drop_block(pe_tree *t, pe_tree_node *n, int32_t group);
/* Retains the snapshot; returns its slot, or -1 if all slots are pinned. */
int32_t pe_tree_put_state(pe_tree *t, pe_tree_node *n, pe_snapshot *state);
/* Drops a snapshot from memory; it stays known if the file has it. */
void pe_tree_drop_state(pe_tree *t, pe_tree_node *n, int32_t slot);

/* ---- ages ------------------------------------------------------------------------------------ */

void pe_tree_push(pe_tree_age *list, pe_tree_age *a);          /* makes it the newest */
void pe_tree_pull(pe_tree_age *a);                             /* removes it from its list */
void pe_tree_touch(pe_tree *t, pe_tree_node *n, int32_t slot); /* the whole path is newest */
void pe_tree_pin(pe_tree *t, pe_tree_node *n, int32_t slot, int32_t by);

/* ---- search ---------------------------------------------------------------------------------- */

/* The first block of a group that a sequence needs to resume after `position` tokens. */
int32_t pe_tree_first_block(const pe_tree *t, int32_t group, int32_t position);
typedef struct pe_tree_ask {
  const int32_t *token; /* `count` of them */
  int32_t count, limit; /* at most `limit` are wanted */
} pe_tree_ask;
/* The longest prefix where a sequence can resume; disk: contents of files count as well. */
bool pe_tree_find(const pe_tree *t, const pe_prefix_key *key, pe_tree_ask ask, bool disk,
                  pe_tree_hit *hit);

#endif
