/* seq.h - the cached state of one sequence: its tokens, and the caches of those already computed.
 *
 *     token   [ t0 t1 t2 t3 t4 | t5 t6 ]
 *                              past    count
 *
 * The first `past` tokens have been computed: their keys and values are in the block tables, and
 * the recurrent state has processed exactly these. The others come next: the rest of a prompt, or
 * the token that was just sampled.
 *
 * In the rows of a picture `token` has the word that names it (names.h).
 *
 * One interface over everything a model remembers: fork, trim, snapshot, save, load, bytes.
 * Trimming must be possible in every cache group; a recurrent state needs a snapshot at that very
 * position.
 *
 * Ownership: owns its tokens, its references to blocks and its slot; borrows the pools, which
 * outlive it. Threads: one at a time, the engine's. */
#ifndef PE_SEQ_H
#define PE_SEQ_H

#include "runtime/cache/recur.h"
#include "runtime/cache/run.h"

typedef struct pe_seq {
  pe_kv *kv; /* borrowed; NULL: closed */
  pe_recur *recur;
  pe_kv_seq tables;
  int32_t slot; /* of its state */
  int32_t *token;
  int32_t count, past;
  size_t cap;
  int32_t rope_length; /* 0: not chosen yet */
  pe_media *media;     /* pictures and positions of its prompt; retained; NULL: text */
  int32_t *name; /* words that it holds: of its pictures, or of those in the file it is from */
  int32_t names;
  int32_t ragged; /* loaded from smaller blocks: `past` at that time, otherwise 0. The first block
                          of a window is then partly filled, so trimming below is impossible */
} pe_seq;

pe_status pe_seq_open(pe_seq *s, pe_kv *kv, pe_recur *recur, pe_error *err);
void pe_seq_close(pe_seq *s);

/* Its prompt has these pictures. Before the first token; retains. */
pe_status pe_seq_set_media(pe_seq *s, pe_media *media, pe_error *err);
/* Appends to `token`, with the names of pictures in place of their placeholders; computes
 * nothing. */
pe_status pe_seq_append(pe_seq *s, const int32_t *token, int32_t count, pe_error *err);

/* Makes room in the caches for the next `count` tokens and describes them for a step. PE_ELIMIT:
 * blocks ran out and nothing has changed. */
pe_status pe_seq_run(pe_seq *s, int32_t count, int32_t outputs, pe_run *out, pe_error *err);
/* The step is done: moves `past`, and releases the blocks that fell out of the windows. */
void pe_seq_advance(pe_seq *s, int32_t count);

/* Opens child, shares the blocks and copies the state. */
pe_status pe_seq_fork(const pe_seq *parent, pe_seq *child, pe_error *err);
/* Drops everything after the first n tokens (n <= past) from the caches and from `token`.
 * PE_EUNSUPPORTED, with the reason, if some layer cannot; then nothing has changed. `snapshot` (or
 * NULL) must be at position n. */
bool pe_seq_can_trim(const pe_seq *s, int32_t n, const pe_snapshot *snapshot);
pe_status pe_seq_trim(pe_seq *s, int32_t n, const pe_snapshot *snapshot, pe_error *err);
/* Gives a snapshot at `past`, NULL for models without recurrent layers. */
pe_status pe_seq_snapshot(const pe_seq *s, pe_snapshot **out, pe_error *err);

uint64_t pe_seq_bytes(const pe_seq *s); /* of blocks, including shared ones, and the state */

/* A hash of everything that decides the numbers in a cache: the weights (names, shapes, layouts,
 * size, inode and time of change of their files), the graph with all numbers that its script gave,
 * the build, the backend, the instruction set, the precision and the KV type. Reads no weights. */
void pe_seq_identity(const pe_kv *kv, uint8_t out[16]);

/* A sequence as bytes: tokens, keys and values, state, with a version, a checksum and the identity
 * of the model. Only the part of a window that is still visible is saved. The block size may differ
 * when it is loaded. s must be open and empty for loading; PE_EFORMAT for damaged bytes,
 * PE_EUNSUPPORTED for those of another model, version or KV type, and s is unchanged. */
pe_status pe_seq_save(const pe_seq *s, const uint8_t identity[16], pe_buf *out, pe_error *err);
pe_status pe_seq_load(pe_seq *s, const uint8_t identity[16], const void *bytes, size_t size,
                      pe_error *err);
/* Bytes to a file: to a temporary one in the same folder, which is then renamed; and back. */
pe_status pe_seq_write_file(const pe_buf *bytes, const char *path, pe_error *err);
pe_status pe_seq_read_file(const char *path, pe_buf *out, pe_error *err);
/* Both at once. */
pe_status pe_seq_save_file(const pe_seq *s, const uint8_t identity[16], const char *path,
                           pe_error *err);
pe_status pe_seq_load_file(pe_seq *s, const uint8_t identity[16], const char *path, pe_error *err);

#endif
