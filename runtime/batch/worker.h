/* worker.h - a batch on the engine thread.
 *
 *   loop thread       do, submit --> queue --> [ commands, one step ] --> events, view --> drain
 *   engine thread                              `- wake: tells the loop to drain
 *
 * Commands and the grants of the next step cross through one bounded queue under one lock, which is
 * held for copying only, so the loop never waits for a step. Commands are applied between steps, in
 * order; when no step runs, at once. The engine thread (crew.h) may serve several workers.
 *
 * While a step computes, the loop schedules the next one from the last published view of the
 * sequences; grants to sequences that have finished meanwhile are dropped. If the next step is
 * there when one ends, it begins at once, and the events and the view of the last one are published
 * while it computes; otherwise immediately. Each event is drained once, in order. Kept logits are
 * copied before the events that announce them. If there is no memory for the copies, events stay in
 * the batch and the engine takes no step until the loop has drained.
 *
 * Sequences get their ids when the command is queued. Arguments are checked then; later failures
 * (memory, a sequence in the wrong state) are events: a FINISH with the error for the sequences of
 * an add or fork, otherwise an event with nothing but the error, and the sequence goes on. Commands
 * for sequences that are done are dropped. save and load get a ticket, and always an event with
 * that ticket: with the error, or without. Their files are written and read on another thread,
 * while steps go on: a save has the caches as they were when its turn came, and a load has an
 * effect from its event on.
 *
 * Ownership: takes the batch until pe_worker_detach gives it back; retains the crew, whose pool the
 * batch should compute with. Threads: any, but close and detach when no other thread uses the
 * worker any more. The callback runs on the engine thread, or on the one that halts. */
#ifndef PE_WORKER_H
#define PE_WORKER_H

#include "runtime/batch/batch.h"
#include "runtime/batch/crew.h"

typedef struct pe_worker pe_worker;
typedef void pe_worker_wake(void *ctx); /* must not block */

enum {
  PE_WORKER_QUEUE = 4096,  /* queued commands: more than sequences end or begin during one step */
  PE_WORKER_EVENTS = 65536 /* undrained events above which steps are refused: a loop that hangs must
                              not fill the memory */
};

pe_status pe_worker_open(pe_crew *crew, pe_batch *batch, pe_worker_wake *wake, void *ctx,
                         pe_worker **out, pe_error *err); /* gives; takes batch */
void pe_worker_close(pe_worker *w); /* waits for its step, if one runs; takes; NULL is fine */
/* Leaves the engine thread after the running step and the queued commands; a queued step is
 * dropped. Published events can still be drained; commands and steps are refused. */
void pe_worker_halt(pe_worker *w);
/* Halts; gives the batch back; takes the worker; undrained events are lost. *published (may be
 * NULL): how many of the batch's own events were drained or lost. */
pe_batch *pe_worker_detach(pe_worker *w, int32_t *published);

/* Queues a command. PE_ELIMIT: the queue is full. reply as in pe_batch_do, but `found` is not
 * known. */
pe_status pe_worker_do(pe_worker *w, const pe_command *c, pe_reply *reply, pe_error *err);
/* Queues the next step. PE_ELIMIT: one is queued already (pe_worker_pending), or nobody drains. */
pe_status pe_worker_submit(pe_worker *w, const pe_grant *grants, int32_t count, pe_error *err);
bool pe_worker_pending(pe_worker *w);
uint64_t pe_worker_completed(pe_worker *w); /* steps that the view shows, empty ones included */

typedef struct pe_worker_events {
  pe_event *event;
  int32_t count;
  pe_arena text; /* and errors */
} pe_worker_events;
/* Gives the events since the last drain. The status is that of a step that failed as a whole since
 * then; the events are valid even so. */
pe_status pe_worker_drain(pe_worker *w, pe_worker_events *out, pe_error *err);
void pe_worker_free_events(pe_worker_events *e);

/* The published view: as the batch's functions, after the last step and with the queued
 * commands. */
int32_t pe_worker_sequences(pe_worker *w, pe_seq_info *out, int32_t most);
void pe_worker_room(pe_worker *w, int64_t *free_tokens, int64_t *all_tokens);
bool pe_worker_logits(pe_worker *w, pe_seq_id id, float *out); /* copies; false: none were kept */
void pe_worker_stat(pe_worker *w, pe_batch_stats *out);
int32_t pe_worker_trace(pe_worker *w, pe_trace *out, int32_t most);

#endif
