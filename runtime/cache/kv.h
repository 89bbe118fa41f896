/* kv.h - the KV cache: a pool of counted blocks, and per sequence a block table.
 *
 * A cache group is the layers with the same window and row shape (graph.h). A block holds `block`
 * tokens of every layer of its group; its number is the same in all of them, so a sequence needs
 * one table per group:
 *
 *     table of a group     [ 7 | 2 | -1 | 5 ]         entry i: tokens i*block .. i*block+block-1
 *                            |   |
 *     blocks of the group  block 0 | block 1 | block 2 | ... | block 7 | ...
 *                                              |
 *     block 2              layer 0: keys | values | layer 1: keys | values | ...
 *                                     |
 *     keys                 head 0 | head 1 | ...
 *                            |
 *     head 0               row of token 0 | token 1 | ... | token block-1     (kernels/kv_row.h)
 *
 * A block is one piece of memory: it is copied, written to a file and given back to the system as a
 * whole. The pool reserves address space for all blocks at once; memory is used when a block is
 * first written. All groups store rows as one type.
 *
 * Blocks are shared copy-on-write: several sequences and the prefix cache may hold the same block,
 * and a block is copied before it is written to unless the writer is its only holder.
 *
 * A group with a window gives blocks back as they fall out of it (pe_kv_retire); their table
 * entries become -1. A sequence can therefore be trimmed to n tokens only if every group still has
 * the blocks that it needs to continue from there (pe_kv_can_trim).
 *
 * Invariants: the references of a block are the entries of tables and of the prefix cache; a block
 * on the free list has none; only the last block of a table is partly filled.
 * Threads: one at a time, the engine's. While a step is submitted (device.h) the blocks are the
 * kernels': tables may change, but nothing here may touch the memory, and asserts that. */
#ifndef PE_KV_H
#define PE_KV_H

#include "runtime/cache/names.h"
#include "runtime/graph/graph.h"

typedef struct pe_kv_layer {
  uint8_t *keys, *values; /* in block 0; values: NULL if they are a part of the keys */
  uint64_t step;          /* bytes from one block to the next */
} pe_kv_layer;

typedef struct pe_kv_options {
  const char *backend;    /* what computes the numbers, a static string; NULL: "cpu" */
  pe_precision precision; /* of what is stored: both are part of the identity of saved caches */
  int32_t bits;           /* 32, 16, 8, 4; 0: 32 in exact, 16 in fast */
  int32_t block;          /* tokens of a block, a power of two; 0: 32 in exact, 64 in fast */
  int64_t
      tokens; /* capacity of every group, and one block more per sequence, because the last block
                     of a sequence may be partly filled */
  int32_t sequences;
} pe_kv_options;

typedef struct pe_kv {
  const pe_graph *graph;
  pe_precision precision;
  pe_kv_type type;
  int32_t block, blocks;                 /* tokens of a block; blocks of each group */
  pe_kv_layer *layer;                    /* parallel to graph->layer */
  pe_names *names;                       /* of pictures in the tokens of its sequences */
  int64_t used[PE_GRAPH_GROUPS];         /* blocks in use */
  uint64_t block_bytes[PE_GRAPH_GROUPS]; /* of one block, all layers of the group */
  const char *backend;                   /* that computes what is stored */
  pe_buffer *memory;                     /* all blocks, from the start of a page */
  bool busy;                             /* a step is submitted; set by the device */
  /* ---- private ---- */
  uint64_t at[PE_GRAPH_GROUPS];   /* where the blocks of a group begin in memory */
  uint64_t step[PE_GRAPH_GROUPS]; /* bytes from one of them to the next */
  int32_t *free_list[PE_GRAPH_GROUPS], free_count[PE_GRAPH_GROUPS];
  int32_t *refs[PE_GRAPH_GROUPS];
  uint8_t *warm[PE_GRAPH_GROUPS]; /* by block: it was taken since its memory was given back */
} pe_kv;

typedef struct pe_kv_seq {         /* the tables of a sequence; {0} is empty */
  int32_t *table[PE_GRAPH_GROUPS]; /* -1: fell out of the window */
  int32_t count[PE_GRAPH_GROUPS];
  size_t cap[PE_GRAPH_GROUPS];
  int32_t gone[PE_GRAPH_GROUPS]; /* leading entries known to be -1 */
  int32_t tokens; /* valid tokens: set by pe_kv_prepare, pe_kv_trim, pe_kv_set_tokens */
} pe_kv_seq;

/* Gives. Borrows the graph. */
pe_status pe_kv_open(const pe_graph *g, const pe_kv_options *o, pe_kv **out, pe_error *err);
void pe_kv_close(pe_kv *kv);

/* The type for a number of bits per value: 32, 16, 8 or 4; PE_EARG otherwise. */
pe_status pe_kv_type_of_bits(int32_t bits, pe_kv_type *out, pe_error *err);
int32_t pe_kv_bits(pe_kv_type type);
/* Bytes of one token in all layers, before any cache is open. */
uint64_t pe_kv_token_bytes(const pe_graph *g, pe_kv_type type);
/* Bytes of a sequence of this many tokens; layers with a window keep no more than the window. */
uint64_t pe_kv_bytes(const pe_graph *g, pe_kv_type type, int64_t tokens);
/* Bytes of one token in all layers of a group. */
uint64_t pe_kv_group_token_bytes(const pe_kv *kv, int32_t group);
/* Bytes of the blocks that a sequence holds, including shared ones. */
uint64_t pe_kv_seq_bytes(const pe_kv *kv, const pe_kv_seq *s);

/* The blocks of a group in `memory`, one after another. */
uint8_t *pe_kv_blocks(const pe_kv *kv, int32_t group, uint64_t *bytes);

/* Makes tokens [from, to) writable: adds blocks, and copies a shared one (at most the first, since
 * tokens are appended). Changes nothing if it fails; PE_ELIMIT if blocks run out. */
pe_status pe_kv_prepare(pe_kv *kv, pe_kv_seq *s, int32_t from, int32_t to, pe_error *err);
/* The number of blocks of a group that pe_kv_prepare would take. */
int32_t pe_kv_needed(const pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to);
/* Releases the blocks that no token from `next` on can see. */
void pe_kv_retire(pe_kv *kv, pe_kv_seq *s, int32_t next);
/* Shares all blocks of the parent with the child, which must be empty. */
pe_status pe_kv_fork(pe_kv *kv, const pe_kv_seq *parent, pe_kv_seq *child, pe_error *err);
bool pe_kv_can_trim(const pe_kv *kv, const pe_kv_seq *s, int32_t tokens);
void pe_kv_trim(pe_kv *kv, pe_kv_seq *s, int32_t tokens); /* pe_kv_can_trim must hold */
void pe_kv_release(pe_kv *kv, pe_kv_seq *s);              /* leaves it empty */

/* Gives the memory of blocks that nobody holds back to the system; they take it again when they are
 * used. Returns the number of blocks that had memory. */
int64_t pe_kv_discard(pe_kv *kv);

/* Single blocks, for the prefix cache. */
void pe_kv_retain_block(pe_kv *kv, int32_t group, int32_t block);
void pe_kv_release_block(pe_kv *kv, int32_t group, int32_t block);
int32_t pe_kv_block_refs(const pe_kv *kv, int32_t group, int32_t block);
/* Appends a reference to a block (-1: none) to a table that is empty or ends with a full block. */
pe_status pe_kv_share(pe_kv *kv, pe_kv_seq *s, int32_t group, int32_t block, pe_error *err);
void pe_kv_set_tokens(pe_kv_seq *s, int32_t tokens); /* the valid tokens, after pe_kv_share */

/* Copies the rows of tokens [from, to) of a group as they are stored to or from a flat buffer of
 * (to - from) * pe_kv_group_token_bytes bytes: per layer the keys, then the values, head by head,
 * for any block size. The blocks must exist and, for pe_kv_copy_in, not be shared. */
void pe_kv_copy_out(const pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to,
                    uint8_t *out);
void pe_kv_copy_in(pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to,
                   const uint8_t *in);

#endif
