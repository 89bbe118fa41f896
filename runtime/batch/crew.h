/* crew.h - the engine thread and its compute pool, shared by all that run steps.
 *
 * One engine thread serves all models: whoever has steps to run (a worker) takes a seat, says when it has work, and gets its
 * turns on the engine thread, one seat at a time, those that have work in round robin. A turn is one call of the seat's
 * function, which does at most one step and tells whether there is more. So steps of different models never compete for the
 * cores, and none starves another. What can wait (PE_CREW_SPARE) gets a turn when nobody has work.
 *
 * Seats are taken and left at any time, while others have their turns; leaving waits for a turn of that seat only, and
 * afterwards there is none any more. The thread starts with the first seat and ends with the crew.
 *
 * Ownership: counted. pe_crew_open gives the first share, pe_crew_retain another; when the last one is closed, thread and pool
 * end. A seat is a struct of its owner, who leaves it before the crew may end. Threads: every function from any thread, but
 * leave and close not from a turn. */
#ifndef PE_CREW_H
#define PE_CREW_H

#include "runtime/pool.h"

typedef struct pe_crew pe_crew;
typedef enum pe_crew_rest {
  PE_CREW_NONE,
  PE_CREW_SPARE,
  PE_CREW_MORE
} pe_crew_rest;                               /* nothing to do; something that can wait; more */
typedef pe_crew_rest pe_crew_turn(void *ctx); /* on the engine thread; what is left to do */

typedef struct pe_crew_seat { /* filled by pe_crew_join; the crew's until it is left */
  pe_crew *crew;
  pe_crew_turn *turn;
  void *ctx;
  struct pe_crew_seat *next;
  pe_crew_rest rest; /* what it has to do */
} pe_crew_seat;

pe_status pe_crew_open(int threads, pe_crew **out,
                       pe_error *err); /* gives; threads of the pool, 0: one per core */
pe_crew *pe_crew_retain(pe_crew *c);   /* gives the same once more */
void pe_crew_release(pe_crew *c);      /* takes one share; NULL is fine */

pe_pool *pe_crew_pool(const pe_crew *c); /* borrowed from the crew */

pe_status pe_crew_join(pe_crew *c, pe_crew_seat *seat, pe_crew_turn *turn, void *ctx,
                       pe_error *err);
void pe_crew_call(pe_crew_seat *seat); /* it has work: it gets a turn */
void pe_crew_leave(
    pe_crew_seat *seat); /* waits while it has its turn; harmless when it was left or never taken */

#endif
