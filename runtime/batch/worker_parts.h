/* worker_parts.h - between worker.c and worker_command.c: what a worker and its queue are made of.
 *
 * The batch belongs to the engine thread; everything that others see is under the lock. Both files look into the batch
 * (batch_seq.h) for three things only: the next row id, so that ids can be given before a request reaches the batch; the checks
 * and copies of requests, which read what never changes; and which rows have new logits. */
#ifndef PE_WORKER_PARTS_H
#define PE_WORKER_PARTS_H

#include "runtime/batch/batch_seq.h"
#include "runtime/batch/worker.h"

#include <pthread.h>

typedef enum pe_worker_verb {
  PE_WORKER_ADD,
  PE_WORKER_FORK,
  PE_WORKER_CANCEL,
  PE_WORKER_PREEMPT,
  PE_WORKER_FORCE,
  PE_WORKER_BIAS,
  PE_WORKER_TRIM,
  PE_WORKER_SAMPLE,
  PE_WORKER_KEEP,
  PE_WORKER_PIN,
  PE_WORKER_SAVE,
  PE_WORKER_LOAD
} pe_worker_verb;

typedef struct pe_worker_command {
  pe_worker_verb verb;
  pe_seq_id row, first; /* what it is about; the ids it was promised */
  pe_batch_request *request;
  pe_draw draw; /* of a held row, a bias, forced ids or a prompt to pin; the lists are owned */
  char *path;
  int32_t count; /* rows to add, tokens to keep */
  bool keep;
  uint64_t seed, ticket; /* seed: of a fork; the salt of a pin */
  int64_t at_ns;
} pe_worker_command;

typedef struct pe_worker_chunk { /* the events of one step */
  struct pe_worker_chunk *next;
  pe_worker_events events;
} pe_worker_chunk;

typedef struct pe_worker_kept {
  pe_seq_id row;
  float *logits;
} pe_worker_kept;

struct pe_worker {
  pe_batch *batch; /* the engine thread's */
  pe_crew *crew;   /* a share */
  pe_crew_seat seat;
  pe_worker_wake *wake;
  void *ctx;
  int32_t
      published; /* events of the batch that were copied; the engine thread's, as the next three */
  pe_seq_info *seen; /* rows on their way into the view */
  size_t seen_cap;
  float *spare; /* logits on their way into the view */
  pthread_mutex_t lock;
  bool stop, working, has_step;
  pe_worker_command *queue;
  size_t queued, queue_cap;
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
  pe_worker_kept *kept; /* logits of rows that keep them */
  size_t kept_count, kept_cap;
  pe_batch_stats stats;
  int64_t free_tokens, all_tokens;
  pe_trace trace[PE_TRACE_STEPS];
  uint64_t traced, completed;
};

/* ---- commands (worker_command.c) ----------------------------------------------------------------------------- */

int32_t pe_worker_new_rows(const pe_worker_command *c); /* that it will make */
void pe_worker_show(
    pe_worker *w,
    const pe_worker_command
        *c); /* in the view, as if it were done; under the lock, with room for its rows */
void pe_worker_apply(pe_worker *w, const pe_worker_command *c); /* on the engine thread */
void pe_worker_free_command(pe_worker_command *c);

/* ---- events (worker.c) --------------------------------------------------------------------------------------- */

void pe_worker_tell(pe_worker *w, const pe_event *e); /* an event of the worker itself; copied */

#endif
