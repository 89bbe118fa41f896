/* worker_parts.h - between the worker*.c files.
 *
 *   worker -> worker_command -> worker_file -> worker_events
 *
 * The batch belongs to the engine thread; everything that others see is under the lock. These files
 * look into the batch (batch_seq.h) for three things only: the next id, so that ids can be given
 * before a command reaches the batch; checks, which read what never changes; and which logits are
 * new. */
#ifndef PE_WORKER_PARTS_H
#define PE_WORKER_PARTS_H

#include "runtime/batch/batch_seq.h"
#include "runtime/batch/worker.h"

#include <pthread.h>

typedef struct pe_worker_chunk { /* events that were published together */
  struct pe_worker_chunk *next;
  pe_worker_events events;
} pe_worker_chunk;

typedef struct pe_worker_command {
  pe_command c;   /* what it borrows is in the arena */
  pe_arena arena; /* also the request of an add */
  pe_reply reply; /* promised ids and ticket */
  int64_t at_ns;
  pe_worker_chunk *events; /* room for the events that its failure needs */
  pe_error *error;         /* in there */
  pe_request *request;     /* of an add: it has references to media and grammars */
  pe_media *media;         /* of a pin: a reference */
} pe_worker_command;

typedef struct pe_worker_file pe_worker_file; /* a save or load on its way (worker_file.c) */

typedef struct pe_worker_kept {
  pe_seq_id seq;
  float *logits;
} pe_worker_kept;

struct pe_worker {
  pe_batch *batch;   /* the engine thread's, like the next five */
  int32_t published; /* events of the batch that were copied */
  bool unshown;      /* a step is done, and the loop does not know it yet */
  pe_seq_info *seen; /* sequences on their way into the view */
  size_t seen_cap;
  float *spare; /* logits on their way into the view */
  bool filing;  /* there is a thread for files */
  pthread_t file_thread;
  pe_crew *crew; /* a share */
  pe_crew_seat seat;
  pe_worker_wake *wake;
  void *ctx;
  pthread_mutex_t lock; /* of everything below */
  bool stop, working, has_step;
  bool blocked; /* events could not be copied: no step before they are */
  pe_worker_command *queue;
  size_t queued, queue_cap;
  pe_worker_file *files, *arrived; /* to be written or read; that were read */
  uint64_t file_bytes;             /* to be written */
  bool files_end;
  pthread_cond_t file_called;
  pe_grant *grant;
  size_t grant_cap;
  int32_t grant_count;
  pe_seq_id next;
  uint64_t tickets;
  pe_worker_chunk *first, **last;
  int32_t undrained;
  pe_error failure; /* of a step, or code 0 */
  pe_seq_info *view;
  size_t view_count, view_cap;
  size_t view_gone;     /* entries of sequences that are done */
  pe_worker_kept *kept; /* logits of sequences that keep them */
  size_t kept_count, kept_cap;
  pe_batch_stats stats;
  int64_t free_tokens, all_tokens;
  pe_trace trace[PE_TRACE_STEPS];
  uint64_t traced, completed;
};

/* ---- events (worker_events.c) -------------------------------------------------------------- */

pe_worker_chunk *pe_worker_chunk_new(int32_t events);                        /* NULL: no memory */
pe_worker_chunk *pe_worker_chunk_copy(const pe_event *event, int32_t count); /* NULL: no memory */
void pe_worker_chunk_free(pe_worker_chunk *c);
void pe_worker_chunk_publish(pe_worker *w, pe_worker_chunk *c); /* takes */

/* ---- commands (worker_command.c) ----------------------------------------------------------- */

/* Under the lock: this is what a sequence is now; DONE: it is gone. */
void pe_worker_show_sequence(pe_worker *w, const pe_seq_info *info);
/* Under the lock: the view as if the command were done. It has room for the new sequences. Harmless
 * twice. */
void pe_worker_show(pe_worker *w, const pe_worker_command *q);
void pe_worker_apply(pe_worker *w, pe_worker_command *q); /* on the engine thread; takes */
void pe_worker_command_free(pe_worker_command *q);
/* Answers in the events that were reserved: one for each promised sequence, else one. rc: PE_OK, or
 * that of q->error. Any thread. */
void pe_worker_answer(pe_worker *w, pe_worker_command *q, pe_status rc);

/* ---- files (worker_file.c) ----------------------------------------------------------------- */

/* On the engine thread: a save or load. Takes. */
void pe_worker_file_begin(pe_worker *w, pe_worker_command *q);
/* On the engine thread: fills caches from files that were read. Takes. */
void pe_worker_file_arrived(pe_worker *w, pe_worker_file *list);
void pe_worker_file_end(pe_worker *w); /* waits for all files */

#endif
