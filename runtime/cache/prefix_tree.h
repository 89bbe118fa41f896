/* prefix_tree.h - the tree behind prefix.h: nodes, what they hold, which of them is oldest, and the search.
 *
 * Below the top stands one node per key (tenant and rope), and below those the blocks of tokens. A node's label is its
 * words: the tokens of its block, fewer in a partly filled one, or the words of a key. The children of a node are sorted
 * by label, and no label begins a sibling's: where one would, the two are one node. So one binary search finds the child
 * that continues a prompt, whole or in part, and it compares the tokens themselves: nothing can collide. The chained
 * hash of a node only names its file.
 *
 * What a node has may be in memory, on disk, or both. `fill` counts the tokens that are valid in its block of a group in
 * memory, `disk` those in its file. They can be fewer than the label has: a windowed group may have given its block back
 * by the time a longer sequence came along, and then the shorter block is worth keeping.
 *
 * Always true:
 *   - the tree has one reference to a KV block per node and group that names it; `held` counts them by block
 *   - a resident node's parent is resident (or a key); a pinned node's ancestors are pinned
 *   - `ages` lists resident nodes that are not pinned and snapshots in memory that are not, oldest first; a node is older than its
 *     parent and a snapshot older than its node, so the oldest entry can always go
 *   - in a model with states, a resident leaf has a snapshot in memory or is pinned: without one it would be of no use
 *
 * Threads: one at a time. */
#ifndef PE_PREFIX_TREE_H
#define PE_PREFIX_TREE_H

#include "runtime/cache/prefix.h"

enum { PE_TREE_SLOTS = 4, PE_TREE_KEY_WORDS = 3 };

typedef struct pe_tree_hash {
  uint64_t low, high;
} pe_tree_hash;

typedef struct
    pe_tree_age { /* an entry of a list; a list's own entry stands before the oldest and behind the newest */
  struct pe_tree_age *older, *newer; /* NULL: in no list */
  struct pe_tree_node *node;
  int32_t slot; /* -1: the node itself */
} pe_tree_age;

typedef struct pe_tree_slot { /* a snapshot */
  int32_t position;           /* 0: none */
  int32_t pins;
  bool disk;          /* the file has it */
  pe_snapshot *state; /* NULL: on disk only */
  uint64_t used;      /* when, by the tree's clock */
  pe_tree_age age;
} pe_tree_slot;

typedef struct pe_tree_node {
  struct pe_tree_node *parent, **child; /* sorted */
  size_t child_cap;
  int32_t child_count, live; /* children in all; resident ones */
  int32_t depth, count;      /* which block of the path, -1: a key; words of the label */
  int32_t pins;
  bool resident;
  bool fresh;          /* something came that was not offered to the disk yet */
  uint64_t file_bytes; /* 0: no file */
  pe_tree_hash hash;   /* of the path to here */
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
  int64_t freed[PE_GRAPH_GROUPS]; /* blocks that became free when the tree let go of them */
  uint64_t bytes, nodes, snapshots, clock;
  uint64_t seed;      /* of all hashes: the model's */
  uint64_t hash_mask; /* all ones; a test makes hashes collide */
} pe_tree;

typedef struct pe_tree_hit {
  pe_tree_node *node;
  int32_t position, slot; /* slot -1: the model has no states */
} pe_tree_hit;

pe_status pe_tree_open(pe_tree *t, pe_kv *kv, pe_recur *recur, uint64_t seed, pe_error *err);
void pe_tree_close(pe_tree *t);
pe_tree *pe_prefix_tree(pe_prefix *p); /* for tests, which check what always holds */

/* ---- shape --------------------------------------------------------------------------------------------------- */

pe_tree_hash pe_tree_hash_of(const pe_tree *t, pe_tree_hash parent, const int32_t *word,
                             int32_t count);
/* The node of a key; NULL: there is none yet. */
pe_tree_node *pe_tree_key(const pe_tree *t, const pe_prefix_key *key);
pe_status pe_tree_make_key(pe_tree *t, const pe_prefix_key *key, pe_tree_node **out, pe_error *err);
/* The child whose label begins with these words, or whose label they begin with; NULL: none. */
pe_tree_node *pe_tree_child(const pe_tree_node *n, const int32_t *word, int32_t count);
/* pe_tree_child must have found none. */
pe_status pe_tree_add(pe_tree *t, pe_tree_node *parent, const int32_t *word, int32_t count,
                      pe_tree_node **out, pe_error *err);
void pe_tree_extend(pe_tree *t, pe_tree_node *n, const int32_t *word,
                    int32_t count); /* a label that its own begins; it has no file */
/* After something was dropped at n: nodes from there up that are of no use go. n may be gone afterwards. */
void pe_tree_settle(pe_tree *t, pe_tree_node *n);

/* ---- contents ------------------------------------------------------------------------------------------------ */

void pe_tree_admit(pe_tree *t, pe_tree_node *n); /* resident from now on */
void pe_tree_vacate(pe_tree *t,
                    pe_tree_node *n); /* nothing of it stays in memory; has no resident children */
void pe_tree_put_block(pe_tree *t, pe_tree_node *n, int32_t group, int32_t block,
                       int32_t fill); /* one more reference; replaces */
void pe_tree_drop_block(pe_tree *t, pe_tree_node *n, int32_t group);
/* Gives a snapshot its place and returns it, or -1 where all are pinned. One more reference. */
int32_t pe_tree_put_state(pe_tree *t, pe_tree_node *n, pe_snapshot *state);
void pe_tree_drop_state(pe_tree *t, pe_tree_node *n,
                        int32_t slot); /* from memory; forgotten when no file has it */

/* ---- ages ---------------------------------------------------------------------------------------------------- */

void pe_tree_push(pe_tree_age *list, pe_tree_age *a);          /* newest now, wherever it was */
void pe_tree_pull(pe_tree_age *a);                             /* in no list any more */
void pe_tree_touch(pe_tree *t, pe_tree_node *n, int32_t slot); /* the whole path */
void pe_tree_pin(pe_tree *t, pe_tree_node *n, int32_t slot, int32_t by);

/* ---- search -------------------------------------------------------------------------------------------------- */

/* The first block of a group that a sequence needs to go on after `position` tokens. */
int32_t pe_tree_first_block(const pe_tree *t, int32_t group, int32_t position);
/* The longest prefix of at most `limit` tokens where a sequence can go on; with what is on disk, or in memory only. */
bool pe_tree_find(const pe_tree *t, const pe_prefix_key *key, const int32_t *token, int32_t limit,
                  bool disk, pe_tree_hit *hit);

#endif
