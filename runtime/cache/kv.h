/* kv.h - keys and values of attention: a pool of counted blocks, and per sequence a table of block numbers.
 *
 * A cache group is the layers with the same window and row shape (graph.h). A block holds `block` tokens of every layer of
 * its group; its number is the same in all of them, so a sequence has one table per group. Blocks are counted and shared
 * copy-on-write: several sequences and the prefix cache may hold the same block, and whoever wants to write to a block
 * that others hold gets a copy first. A layer's keys are one long array, block b beginning at row b * block, and so are
 * its values. The pool reserves address space for all blocks at once; memory is spent when a block is first written.
 *
 * Rows are stored as float32, float16, or quantised to 8 or 4 bits, per token and head (the layout is the kernels':
 * op.h). All groups use one type.
 *
 * A group with a window gives blocks back as they fall out of it (pe_kv_retire); their entries in the table become -1.
 * So a sequence can be trimmed to n tokens only where every group still has the blocks it needs to go on from there:
 * pe_kv_can_trim asks them all.
 *
 * What always holds: the sum of all references equals the tables' and the prefix cache's entries; a block on the free
 * list has none; only the last block of a table is partly filled.
 * Threads: one at a time (the engine's); kernels read and write blocks during a step only. */
#ifndef PE_KV_H
#define PE_KV_H

#include "runtime/graph/graph.h"

typedef struct pe_kv_layer {
  uint8_t *keys, *values;
} pe_kv_layer;

typedef struct pe_kv_options {
  int32_t bits;   /* 32, 16, 8, 4; 0: 32 */
  int32_t block;  /* tokens of a block, a power of two; 0: 32 */
  int64_t tokens; /* room for so many tokens in every group ... */
  int32_t
      sequences; /* ... and for so many sequences, each of which may leave its last block partly filled */
} pe_kv_options;

typedef struct pe_kv {
  const pe_graph *graph;
  pe_kv_type type;
  int32_t block, blocks;                 /* tokens of a block; blocks of each group */
  pe_kv_layer *layer;                    /* as graph->layer */
  int64_t used[PE_GRAPH_GROUPS];         /* blocks in use */
  uint64_t block_bytes[PE_GRAPH_GROUPS]; /* of one block, all layers of the group */
  /* ---- private ---- */
  pe_buffer *memory;
  int32_t *free_list[PE_GRAPH_GROUPS], free_count[PE_GRAPH_GROUPS];
  int32_t *refs[PE_GRAPH_GROUPS];
} pe_kv;

typedef struct pe_kv_seq {         /* a sequence's tables; {0} is empty */
  int32_t *table[PE_GRAPH_GROUPS]; /* -1: given back, it fell out of the window */
  int32_t count[PE_GRAPH_GROUPS];
  size_t cap[PE_GRAPH_GROUPS];
  int32_t gone[PE_GRAPH_GROUPS]; /* so many entries from the beginning are known to be -1 */
  int32_t
      tokens; /* that the tables have room for and that are valid: set by pe_kv_prepare, pe_kv_trim, pe_kv_share */
} pe_kv_seq;

pe_status pe_kv_open(const pe_graph *g, const pe_kv_options *o, pe_kv **out,
                     pe_error *err); /* gives */
void pe_kv_close(pe_kv *kv);

/* Makes tokens [from, to) writable: blocks are added, and those that others hold are copied (the first one at most, since
 * writing goes on at the end). Nothing has changed when it fails: PE_ELIMIT with both numbers when blocks run out. */
pe_status pe_kv_prepare(pe_kv *kv, pe_kv_seq *s, int32_t from, int32_t to, pe_error *err);
/* How many blocks of a group pe_kv_prepare would take. */
int32_t pe_kv_needed(const pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to);
/* Gives back what no token from `next` on can see any more. */
void pe_kv_retire(pe_kv *kv, pe_kv_seq *s, int32_t next);
/* The child holds everything the parent holds. The child must be empty. */
pe_status pe_kv_fork(pe_kv *kv, const pe_kv_seq *parent, pe_kv_seq *child, pe_error *err);
bool pe_kv_can_trim(const pe_kv *kv, const pe_kv_seq *s, int32_t tokens);
void pe_kv_trim(pe_kv *kv, pe_kv_seq *s, int32_t tokens); /* pe_kv_can_trim must hold */
void pe_kv_release(pe_kv *kv, pe_kv_seq *s);              /* empty again */

/* Single blocks, for the prefix cache. */
void pe_kv_retain_block(pe_kv *kv, int32_t group, int32_t block);
void pe_kv_release_block(pe_kv *kv, int32_t group, int32_t block);
int32_t pe_kv_block_refs(const pe_kv *kv, int32_t group, int32_t block);
/* Appends a reference to a block (-1: none) to an empty or whole-block table: a sequence that begins with cached blocks. */
pe_status pe_kv_share(pe_kv *kv, pe_kv_seq *s, int32_t group, int32_t block, pe_error *err);
void pe_kv_set_tokens(pe_kv_seq *s, int32_t tokens); /* after sharing: how many tokens are valid */

/* Bytes. */
uint64_t pe_kv_token_bytes(const pe_graph *g, pe_kv_type type); /* of one token in all layers */
uint64_t pe_kv_seq_bytes(const pe_kv *kv,
                         const pe_kv_seq *s); /* of the blocks it holds, shared ones too */
/* The rows of tokens [from, to) of a group, all layers, as they are stored: to and from a flat buffer of
 * (to - from) * pe_kv_group_token_bytes bytes, per layer the keys and then the values, head by head, whatever the size of a
 * block. Blocks must be there (and, for writing, not shared). */
uint64_t pe_kv_group_token_bytes(const pe_kv *kv, int32_t group);
void pe_kv_copy_out(const pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to,
                    uint8_t *out);
void pe_kv_copy_in(pe_kv *kv, const pe_kv_seq *s, int32_t group, int32_t from, int32_t to,
                   const uint8_t *in);

#endif
