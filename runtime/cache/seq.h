/* seq.h - one sequence: its tokens, how many of them are in the caches, and where those are.
 *
 * `past` tokens have been computed: their keys and values are in the tables and the recurrent state has seen exactly them.
 * `token` holds those and whatever comes next (the rest of a prompt, the token that was just sampled).
 *
 * One interface over everything a model remembers: fork, trim, snapshot, restore, save, load, bytes. "Can trim" is asked
 * of every cache group and of the states. A trim that the states cannot follow needs a snapshot at that very position.
 *
 * Ownership: a sequence owns its tokens, its references to blocks, and its slot. Borrows the pools, which outlive it.
 * Threads: one at a time (the engine's). */
#ifndef PE_SEQ_H
#define PE_SEQ_H

#include "runtime/cache/recur.h"
#include "runtime/cache/run.h"

typedef struct pe_seq {
  pe_kv *kv; /* borrowed; NULL: not open */
  pe_recur *recur;
  pe_kv_seq tables;
  int32_t slot; /* of its state */
  int32_t *token;
  int32_t count, past;
  size_t cap;
  int32_t rope_length; /* 0: not chosen yet */
  int32_t
      ragged; /* loaded from smaller blocks with so many tokens computed, else 0: the first block that a window has
                        * holds less than it seems to, and what stands before these tokens cannot be gone back to */
} pe_seq;

pe_status pe_seq_open(pe_seq *s, pe_kv *kv, pe_recur *recur, pe_error *err);
void pe_seq_close(pe_seq *s);

pe_status pe_seq_append(pe_seq *s, const int32_t *token, int32_t count,
                        pe_error *err); /* to `token`; nothing is computed */

/* Makes room in the caches for the next `count` tokens and describes them for a step. PE_ELIMIT: blocks ran out, and
 * nothing has changed. */
pe_status pe_seq_run(pe_seq *s, int32_t count, int32_t outputs, pe_run *out, pe_error *err);
void pe_seq_advance(pe_seq *s,
                    int32_t count); /* the step is done; gives back what fell out of the windows */

pe_status pe_seq_fork(const pe_seq *parent, pe_seq *child,
                      pe_error *err); /* opens child; shares blocks, copies the state */
/* Forgets everything behind the first n tokens of the caches (n <= past) and of `token`. PE_EUNSUPPORTED, with the
 * reason, where some layer cannot: then nothing has changed. `snapshot` (may be NULL) must stand at n. */
bool pe_seq_can_trim(const pe_seq *s, int32_t n, const pe_snapshot *snapshot);
pe_status pe_seq_trim(pe_seq *s, int32_t n, const pe_snapshot *snapshot, pe_error *err);
pe_status pe_seq_snapshot(const pe_seq *s, pe_snapshot **out,
                          pe_error *err); /* at past; gives; NULL for models without states */
/* Gives all caches back; the tokens stay, past is 0: what preemption does. */
void pe_seq_forget(pe_seq *s);

uint64_t pe_seq_bytes(const pe_seq *s);

/* What decides the numbers in a cache: the weights (names, shapes, layouts and samples of their bytes), the graph, the
 * instruction set and the type of the cache. */
void pe_seq_identity(const pe_kv *kv, uint8_t out[16]);

/* A sequence as one block of bytes: tokens, keys and values, state. Versioned, with a checksum and the identity of the
 * model; loading refuses anything else (PE_EFORMAT for bytes that are damaged, PE_EUNSUPPORTED for those of another model,
 * version or type) and leaves s as it was. Of a group with a window only what it still sees is kept. The size of blocks may
 * be another one when it is loaded. */
pe_status pe_seq_save(const pe_seq *s, const uint8_t identity[16], pe_buf *out, pe_error *err);
pe_status pe_seq_load(pe_seq *s, const uint8_t identity[16], const void *bytes, size_t size,
                      pe_error *err); /* s open and empty */
pe_status pe_seq_save_file(const pe_seq *s, const uint8_t identity[16], const char *path,
                           pe_error *err); /* beside, then renamed */
pe_status pe_seq_load_file(pe_seq *s, const uint8_t identity[16], const char *path, pe_error *err);

#endif
