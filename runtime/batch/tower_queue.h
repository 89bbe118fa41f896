/* tower_queue.h - a vision tower on the engine thread.
 *
 *   loop thread       push --> queue --> [ part of a job ] --> finished jobs --> drain
 *   engine thread                        `- wake: tells the loop to drain
 *
 * The tower has its own seat (crew.h): its turns alternate with the steps of batches. A turn works
 * for PE_TOWER_TURN_NS at most, or for one instruction, so a large picture does not stall streams:
 * a step of a batch comes between two turns.
 *
 * Jobs are done in order. A job that is cancelled ends with PE_ECANCEL at the next turn. When none
 * is left, the memory of steps is given back: 270 MB for 4,096 patches and a tower of 768 values.
 *
 * Ownership: borrows the tower, which belongs to the engine thread until the queue is closed;
 * retains the crew, whose pool the tower should compute with, and the buffers of its jobs. Threads:
 * any; close when no other thread uses the queue any more. */
#ifndef PE_TOWER_QUEUE_H
#define PE_TOWER_QUEUE_H

#include "runtime/batch/crew.h"
#include "runtime/device/tower.h"

typedef struct pe_tower_queue pe_tower_queue;
typedef void pe_tower_wake(void *ctx); /* on the engine thread; must not block */

/* A step of a batch takes 10 to 50 ms where pictures are slow: with turns of this length streams
 * run at half their speed or better while a tower works. */
enum { PE_TOWER_TURN_NS = 20000000, PE_TOWER_QUEUED = 1024 /* jobs */ };

typedef struct pe_tower_job { /* a finished one */
  struct pe_tower_job *next;
  uint64_t ticket;
  pe_error error; /* code 0: none */
  size_t results;
  pe_tower_result *result; /* one per result of the tower */
  int64_t busy_ns;         /* time on the engine thread */
  /* ---- private ---- */
  pe_picture *picture;
  int32_t pictures;
  pe_buffer **buffer; /* retained */
  bool cancelled;
} pe_tower_job;

/* Gives. results: those of the tower's plan, 1 + its taps. */
pe_status pe_tower_queue_open(pe_crew *crew, pe_tower *tower, size_t results, pe_tower_wake *wake,
                              void *ctx, pe_tower_queue **out, pe_error *err);
void pe_tower_queue_close(pe_tower_queue *q); /* waits for its turn; drops all jobs; NULL is fine */

/* Queues pictures that have passed pe_tower_check; buffer[i] holds the patches of picture i and is
 * retained. PE_ELIMIT: the queue is full. */
pe_status pe_tower_queue_push(pe_tower_queue *q, const pe_picture *list, pe_buffer *const *buffer,
                              int32_t count, uint64_t *ticket, pe_error *err);
void pe_tower_queue_cancel(pe_tower_queue *q, uint64_t ticket);
pe_tower_job *pe_tower_queue_drain(pe_tower_queue *q); /* gives a list, oldest first */
void pe_tower_job_free(pe_tower_job *job);             /* takes one; NULL is fine */

#endif
