/* disk_thread.h - a thread that reads, writes and removes the files of the disk tier.
 *
 *   engine thread   put --> [ write a | remove b | read c | ... ] --> files
 *                   take <-- contents of c           `- notify
 *
 * Jobs are done in order, so a file that is written and then read has its contents. Writes that
 * wait are bounded by their bytes: above the bound a write is refused, and its block is lost, which
 * costs a computation later; the engine never waits. Reads are taken by the hash of their node.
 *
 * Ownership: takes jobs, gives those that are taken. Threads: any. `notify` is called on this
 * thread after a read, and when all jobs are done; it must not block. */
#ifndef PE_DISK_THREAD_H
#define PE_DISK_THREAD_H

#include "runtime/cache/prefix_file.h"

typedef struct pe_disk_thread pe_disk_thread;
typedef void pe_disk_notify(void *ctx);

typedef enum pe_disk_verb { PE_DISK_WRITE, PE_DISK_READ, PE_DISK_REMOVE } pe_disk_verb;

typedef struct pe_disk_job {
  struct pe_disk_job *next;
  pe_disk_verb verb;
  pe_tree_hash hash;
  uint64_t size; /* read: bytes of the file; write: of the old file, if parts of it are kept */
  pe_buf bytes;  /* write: the new file, not sealed; read: what was read */
  pe_prefix_image parts;         /* write: places in `bytes` */
  uint32_t old_rows, old_states; /* write: bits of groups and slots that only the old file has */
  uint64_t ticket;               /* read: its number */
  pe_status status;              /* of a read */
  char path[];
} pe_disk_job;

/* Does the job, on any thread. False: a write failed. */
bool pe_disk_work(const pe_prefix_spec *spec, pe_disk_job *job);
pe_disk_job *pe_disk_job_new(pe_disk_verb verb, const char *path); /* gives; NULL: no memory */
void pe_disk_job_free(pe_disk_job *job);

pe_status pe_disk_thread_open(const pe_prefix_spec *spec, pe_disk_notify *notify, void *ctx,
                              pe_disk_thread **out, pe_error *err); /* gives */
void pe_disk_thread_mute(pe_disk_thread *t);                        /* no notify from now on */
void pe_disk_thread_close(pe_disk_thread *t); /* finishes all jobs; takes; NULL is fine */

/* Takes the job, also when it refuses. Returns its number; 0: too many bytes wait. */
uint64_t pe_disk_thread_put(pe_disk_thread *t, pe_disk_job *job);
bool pe_disk_thread_busy(pe_disk_thread *t);                  /* jobs wait */
bool pe_disk_thread_done(pe_disk_thread *t, uint64_t ticket); /* this job and all before it */
uint64_t pe_disk_thread_completed(pe_disk_thread *t);         /* number of the last one done */
uint64_t pe_disk_thread_last(pe_disk_thread *t);              /* number of the last job put */
pe_disk_job *pe_disk_thread_take(pe_disk_thread *t, pe_tree_hash hash); /* gives a read, or NULL */
void pe_disk_thread_drop(pe_disk_thread *t);                            /* reads that nobody took */
uint64_t pe_disk_thread_failed(pe_disk_thread *t);                      /* writes */

#endif
