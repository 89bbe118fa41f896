/* prefix.h - what was computed before, found again: a tree of cached beginnings.
 *
 * An edge of the tree is one block of tokens; the path from the root spells the beginning of a prompt. A node holds
 * references to the KV blocks of its tokens, one per cache group (-1 where a window had given it back already), and
 * perhaps a few snapshots of the recurrent state at positions inside it. The last node of a path may be partly filled; it
 * grows when a longer path comes through the same tokens.
 *
 * Children are found by comparing the tokens themselves, so nothing can collide (prefix_tree.h). The first edge of every
 * path is its key: whatever else decides the numbers, the salt of a tenant and the kind of rope where it depends on length.
 *
 * A prefix may end only where every group can resume: every group without a window has all blocks up to there, every
 * group with one has the blocks of its window, and a model with states has a snapshot at that very position. A match
 * takes the longest such prefix of at most n - 1 tokens, because the logits of the last one are needed: so an exact
 * repeat recomputes one token. Whole blocks are shared; a block that is taken in part is shared too and copied when
 * the sequence first writes to it. Nothing else is copied. Since that copy costs a block, a block is taken in part only
 * where it completes the prompt or all that is known of it; in a model with windows wherever it can be, since the beginning of the
 * block may need rows that are gone.
 *
 * Memory is counted in bytes of blocks and snapshots; above the budget the least recently used leaves go, pinned ones
 * never. A block that a running sequence holds too costs nothing to keep, and evicting it frees nothing: eviction for
 * want of blocks (pe_prefix_evict) looks for those that really become free.
 *
 * Disk tier (optional): what is evicted is written to a folder, one file per node with those of its ancestors that are not
 * there yet, and read back on a match. What is not evicted is written too, while the engine has nothing else to do
 * (pe_prefix_write), so that it outlives the process. Files carry a version, the model's identity and checksums, and are written beside and
 * renamed, so a process killed at any time leaves no half file that is ever believed; a file of another model is
 * refused. A file that cannot be written or read is counted, and costs a computation (prefix_disk.h).
 *
 * Threads: one at a time (the engine's). */
#ifndef PE_PREFIX_H
#define PE_PREFIX_H

#include "runtime/cache/seq.h"

typedef struct pe_prefix pe_prefix;

typedef struct pe_prefix_options {
  uint64_t budget;      /* bytes; 0: the cache is off, every match is empty */
  const char *folder;   /* disk tier; NULL: none */
  uint64_t disk_budget; /* bytes of files; 0: no limit */
  uint8_t identity[16]; /* of the model, its mode and the type of its caches */
} pe_prefix_options;

typedef struct pe_prefix_key { /* decides with the tokens what may be shared */
  uint64_t salt;               /* of a tenant; 0: none */
  int32_t rope_variant;        /* where the rope depends on the length of the prompt */
} pe_prefix_key;

typedef struct pe_prefix_stats {
  uint64_t bytes, disk_bytes, nodes, snapshots;
  uint64_t lookups, hits, hit_tokens, asked_tokens, evictions, disk_reads, disk_writes, disk_errors;
} pe_prefix_stats;

pe_status pe_prefix_open(pe_kv *kv, pe_recur *recur, const pe_prefix_options *o, pe_prefix **out,
                         pe_error *err); /* gives */
void pe_prefix_close(pe_prefix *p);

/* Fills an open, empty sequence (no tokens, past 0) with the caches of the longest usable prefix of the n tokens, and sets its past; the
 * sequence's `token` gets those tokens. *found is how many. */
pe_status pe_prefix_match(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n,
                          pe_seq *s, int32_t *found, pe_error *err);
/* How many tokens a match would give now; touches nothing (for admission and cache-aware policies). */
int32_t pe_prefix_probe(const pe_prefix *p, const pe_prefix_key *key, const int32_t *token,
                        int32_t n);
uint64_t pe_prefix_changes(const pe_prefix *p); /* while it stays the same, so does every probe */
/* Remembers the first s->past tokens of a sequence: whole blocks, the partly filled last one, and (models with states) a
 * snapshot at s->past. Call it wherever a later request may want to resume: before the last token of a prompt, at
 * message boundaries, at the end of an answer, at a stride. */
pe_status pe_prefix_insert(pe_prefix *p, const pe_prefix_key *key, const pe_seq *s, pe_error *err);
/* The first *found of the n tokens, which are those that are in memory, are never evicted (or may be again: the same n tokens). */
void pe_prefix_pin(pe_prefix *p, const pe_prefix_key *key, const int32_t *token, int32_t n,
                   bool pin, int32_t *found);
/* Marks the blocks of a group that pins keep (mark has a byte for every block); returns how many were not marked before. */
int32_t pe_prefix_pinned(const pe_prefix *p, int32_t group, uint8_t *mark);

/* Gives back at least `blocks` blocks of a group, least recently used first; returns how many became free. */
int32_t pe_prefix_evict(pe_prefix *p, int32_t group, int32_t blocks);
/* Writes one more node to the disk tier, of those that came since they were last written, the most recently used first.
 * False: there is none left (or no disk tier). */
bool pe_prefix_write(pe_prefix *p);
void pe_prefix_clear(pe_prefix *p); /* everything that is not pinned, and all files */
void pe_prefix_stat(const pe_prefix *p, pe_prefix_stats *out);

#endif
