/* prefix.h - the prefix cache: a radix tree of cached prompt prefixes.
 *
 * An edge is one block of tokens; the path from the root spells the start of a prompt. A node holds
 * one reference to a KV block per cache group, and a few snapshots of the recurrent state:
 *
 *     top
 *      |  key: salt of the tenant, rope variant
 *      +-- [tokens 0..31]    blocks g0:7  g1:-1   (-1: a window had already released it)
 *           +-- [32..63]     blocks g0:2  g1:4    snapshot at 48
 *           |    +-- [64..70] blocks g0:9 g1:5    snapshot at 71   (partly filled: it grows when a
 *           |                                      longer path has the same tokens)
 *           +-- [32..63]'    blocks g0:3  g1:6    another continuation of the first 32 tokens
 *
 * Children are found by comparing tokens, so hashes cannot collide (prefix_tree.h).
 *
 * A prefix ends only where every cache can resume: groups without a window have all blocks up to
 * there, groups with one have the blocks of the window, and a model with recurrent layers has a
 * snapshot at that very position. A match takes the longest such prefix of at most n - 1 tokens,
 * because the last token must be computed for its logits: an exact repeat recomputes one token.
 *
 * Blocks are shared, not copied. A block that is used in part is copied when the sequence first
 * writes to it. Since that costs a block, a block is used in part only if this completes the prompt
 * or covers all tokens of the node; in a model with windows also anywhere else, because the start
 * of the block may need rows that are gone.
 *
 * Above the budget, in bytes of blocks and snapshots, the least recently used leaves are evicted;
 * pinned ones never. A block that a running sequence also holds costs nothing to keep, and evicting
 * it frees nothing: pe_prefix_evict, which is called when blocks run out, looks for those that
 * become free.
 *
 * The optional disk tier (prefix_disk.h) keeps evicted nodes as files and reads them back on a
 * match. pe_prefix_write writes the others while the engine is idle, so that they survive the
 * process. A file that cannot be written or read is counted and costs a computation, nothing else.
 *
 * Threads: one at a time, the engine's. */
#ifndef PE_PREFIX_H
#define PE_PREFIX_H

#include "runtime/cache/seq.h"

typedef struct pe_prefix pe_prefix;

typedef struct pe_prefix_options {
  uint64_t budget;      /* bytes; 0: the cache is off, every match is empty */
  const char *folder;   /* disk tier; NULL: none */
  uint64_t disk_budget; /* bytes of files; 0: no limit */
  uint8_t identity[16]; /* of model, precision and KV type: pe_seq_identity */
} pe_prefix_options;

typedef struct pe_prefix_key { /* only sequences with equal keys share prefixes */
  uint64_t salt;               /* of a tenant; 0: none */
  int32_t rope_variant;        /* of a rope that depends on the length of the prompt */
} pe_prefix_key;

typedef struct pe_prefix_stats {
  uint64_t bytes, disk_bytes, nodes, snapshots;
  uint64_t lookups, hits, hit_tokens, asked_tokens, evictions, disk_reads, disk_writes, disk_errors;
  uint64_t disk_dropped;  /* files that were not written: too many bytes waited */
  uint64_t copied_states; /* snapshots taken: none where the tree had one */
} pe_prefix_stats;

pe_status pe_prefix_open(pe_kv *kv, pe_recur *recur, const pe_prefix_options *o, pe_prefix **out,
                         pe_error *err); /* gives */
void pe_prefix_close(pe_prefix *p);

/* Fills an open, empty sequence with the longest usable prefix of the n tokens: its tokens, its
 * caches and `past`. *found: the number of tokens. */
pe_status pe_prefix_match(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n,
                          pe_seq *s, int32_t *found, pe_error *err);
/* Takes the counts of a match back that was not used: its sequence was not admitted. */
void pe_prefix_unmatch(pe_prefix *p, int32_t n, int32_t found);
/* Between these two, a thread reads and writes the files. notify is called on that thread when a
 * read is done and when it has no more work. mute: not any more; foreground: waits for all of
 * it. */
typedef void pe_prefix_notify(void *ctx);
pe_status pe_prefix_background(pe_prefix *p, pe_prefix_notify *notify, void *ctx, pe_error *err);
void pe_prefix_mute(pe_prefix *p);
void pe_prefix_foreground(pe_prefix *p);
/* Starts reading what a match would need from disk. Returns 0 if that is nothing; otherwise the
 * match should wait until pe_prefix_fetched, since it only uses what has been read, and
 * pe_prefix_fetch_end must be called after it, or instead. */
uint64_t pe_prefix_fetch(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n);
bool pe_prefix_fetched(const pe_prefix *p, uint64_t fetch);
/* Copies what was read into blocks, a number of bytes at a time: the first use of their memory is
 * slow. True: all of it, or as much as was possible. */
bool pe_prefix_bring(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n,
                     uint64_t bytes);
void pe_prefix_fetch_end(pe_prefix *p);
bool pe_prefix_arrived(pe_prefix *p); /* reads were done since it was last asked */

/* The number of tokens that a match would find now; changes nothing. For admission and cache-aware
 * policies. */
int32_t pe_prefix_probe(const pe_prefix *p, const pe_prefix_key *key, const int32_t *token,
                        int32_t n);
uint64_t pe_prefix_changes(const pe_prefix *p); /* while this is unchanged, so is every probe */
/* Caches the first s->past tokens of a sequence: full blocks, the partly filled last one, and for
 * models with recurrent layers a snapshot at s->past. Call it where a later request may resume: at
 * message boundaries, before the last token of a prompt, at the end of an answer, at a stride. */
pe_status pe_prefix_insert(pe_prefix *p, const pe_prefix_key *key, const pe_seq *s, pe_error *err);
/* Pins the part of the n tokens that is in memory, *found tokens, so that it is not evicted; or
 * removes the pin that was set with the same n tokens. */
pe_status pe_prefix_pin(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n,
                        bool set, int32_t *found, pe_error *err);
/* Marks the pinned blocks of a group, one byte per block; returns the number newly marked. */
int32_t pe_prefix_pinned(const pe_prefix *p, int32_t group, uint8_t *mark);

/* Frees at least `blocks` blocks of a group if possible, least recently used first; returns the
 * number freed. */
int32_t pe_prefix_evict(pe_prefix *p, int32_t group, int32_t blocks);
/* Evicts everything not pinned: the disk tier keeps it. */
void pe_prefix_vacate(pe_prefix *p);
/* Writes one node with unsaved contents to the disk tier, pinned ones first, then the most recently
 * used. False: none is left, or there is no disk tier. */
bool pe_prefix_write(pe_prefix *p);
void pe_prefix_clear(pe_prefix *p); /* drops everything not pinned, and all files */
/* Its contents can no longer be trusted: drops all of it from memory, pins too, and is off from now
 * on. Nothing more is written to disk; files stay. */
void pe_prefix_abandon(pe_prefix *p);
void pe_prefix_stat(const pe_prefix *p, pe_prefix_stats *out);

#endif
