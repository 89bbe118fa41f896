/* worker.h - a batch on the engine thread.
 *
 * The loop thread hands over requests, cancels and the grants of the next step; the engine thread (crew.h), which may serve
 * several workers, runs steps. Everything crosses through one bounded queue under one lock, held for copying only, so nobody
 * ever waits for a step. Commands are applied between steps, in the order in which they came; when no step runs, at once.
 *
 *     submit grants --> step computes --> wake (on the engine thread: it only wakes the loop) --> loop drains
 *
 * While a step computes, the loop thread may prepare the next grants from the last published view of the rows: grants to
 * rows that have finished meanwhile are dropped. Events are copied out of the batch at the end of each step, and those of
 * commands (cancels, draws of held rows) before it begins; drains give them in order, each once. Logits that rows keep are
 * copied before the events that tell of them.
 *
 * Ids are given when a request is queued. What can be checked without the batch's state is checked then; what fails
 * later (memory) comes as an event: of an add or fork a FINISH with the error, of the other commands an event that has
 * nothing but the error, and the row goes on. Commands for rows that are gone are dropped, but files are always answered for:
 * a save or load gets a ticket, and an event with that ticket has the error, or none.
 *
 * Ownership: takes the batch, until pe_worker_detach gives it back; keeps a share of the crew, whose pool the batch should
 * compute with. Threads: every function may be called from any thread, but close and release by one, when no other uses the
 * worker any more. The callback runs on the engine thread, or on the one that halts. */
#ifndef PE_WORKER_H
#define PE_WORKER_H

#include "runtime/batch/batch.h"
#include "runtime/batch/crew.h"

typedef struct pe_worker pe_worker;
typedef void pe_worker_wake(void *ctx); /* must not block */

enum {
  PE_WORKER_QUEUE = 4096,  /* commands that wait */
  PE_WORKER_EVENTS = 65536 /* events that wait to be drained; more, and steps are refused */
};

pe_status pe_worker_open(pe_crew *crew, pe_batch *batch, pe_worker_wake *wake, void *ctx,
                         pe_worker **out, pe_error *err); /* gives; takes batch */
void pe_worker_close(pe_worker *w); /* waits for its own step, if one runs; takes; NULL is fine */
/* Leaves the engine thread after the step that runs and what is queued (a step that waits is dropped). What was published
 * can still be drained and read; commands and steps are refused. */
void pe_worker_halt(pe_worker *w);
pe_batch *pe_worker_detach(
    pe_worker *w); /* halts; gives the batch back; takes the worker; undrained events are lost */

/* Commands. PE_ELIMIT: the queue is full, with the numbers. */
pe_status pe_worker_add(pe_worker *w, const pe_request *r, pe_seq_id *first, pe_error *err);
pe_status pe_worker_cancel(pe_worker *w, pe_seq_id row, pe_error *err);
pe_status pe_worker_preempt(pe_worker *w, pe_seq_id row, pe_error *err);
pe_status pe_worker_force(pe_worker *w, pe_seq_id row, const int32_t *id, int32_t count,
                          pe_error *err);
pe_status pe_worker_bias(pe_worker *w, pe_seq_id row, const pe_logit_bias *bias, int32_t count,
                         pe_error *err);
pe_status pe_worker_trim(pe_worker *w, pe_seq_id row, int32_t tokens, pe_error *err);
pe_status pe_worker_fork(pe_worker *w, pe_seq_id row, uint64_t seed, pe_seq_id *out, pe_error *err);
pe_status pe_worker_sample(pe_worker *w, pe_seq_id row, const pe_draw *d, pe_error *err);
pe_status pe_worker_keep_logits(pe_worker *w, pe_seq_id row, bool keep, pe_error *err);
pe_status pe_worker_pin(pe_worker *w, pe_ids_view prompt, uint64_t salt, bool pin, pe_error *err);
pe_status pe_worker_save(pe_worker *w, pe_seq_id row, const char *path, uint64_t *ticket,
                         pe_error *err);
pe_status pe_worker_load(pe_worker *w, const char *path, uint64_t *ticket, pe_error *err);
/* The next step; at most one waits while one computes. PE_ELIMIT when one waits already. */
pe_status pe_worker_step(pe_worker *w, const pe_grant *grants, int32_t count, pe_error *err);

bool pe_worker_busy(pe_worker *w);    /* a step computes or waits, or a command does */
bool pe_worker_pending(pe_worker *w); /* a step waits: another would be refused */
uint64_t pe_worker_completed(
    pe_worker *w); /* steps that are done and in the view, those in which nothing ran too */
/* Events since the last drain: gives copies; free with pe_worker_free_events. The status is that of a step that failed as
 * a whole since then; the events are given all the same. */
typedef struct pe_worker_events {
  pe_event *event;
  int32_t count;
  pe_arena text;
} pe_worker_events;
pe_status pe_worker_drain(pe_worker *w, pe_worker_events *out, pe_error *err);
void pe_worker_free_events(pe_worker_events *e);
/* The rows as they were after the last step, with what was queued since. Returns how many there are. */
int32_t pe_worker_rows(pe_worker *w, pe_seq_info *out, int32_t most);
/* Copies the logits that the row kept last, a vocabulary of them; false: it keeps none. */
bool pe_worker_logits(pe_worker *w, pe_seq_id row, float *out);
void pe_worker_stat(pe_worker *w, pe_batch_stats *out);
int32_t pe_worker_trace(pe_worker *w, pe_trace *out,
                        int32_t most); /* the last steps, oldest first */
void pe_worker_room(pe_worker *w, int64_t *free_tokens, int64_t *all_tokens);

#endif
