/* crew.h - the engine thread and its compute pool, shared by all models.
 *
 *   seat A  [work]  -.
 *   seat B           |-> engine thread: one turn at a time, round robin over seats with work
 *   seat C  [spare] -'   (spare work only when no seat has other work)
 *
 * A worker takes a seat and calls when it has work. A turn is one call of the seat's function,
 * which runs one step, or more while no other seat waits, and returns whether there is more. So
 * steps of different models never compete for the cores, and none starves another.
 *
 * Seats are taken and left at any time. Leaving waits for a turn of that seat only; afterwards
 * there is none any more. The thread starts with the first seat and ends with the crew.
 *
 * Ownership: counted; when the last share is released, thread and pool end. A seat is a struct of
 * its owner, who leaves it before the crew may end. Threads: every function from any thread, but
 * leave and release not from a turn. */
#ifndef PE_CREW_H
#define PE_CREW_H

#include "runtime/pool.h"

typedef struct pe_crew pe_crew;
typedef enum pe_crew_rest { /* what a seat has left to do, by urgency */
                            PE_CREW_NONE,
                            PE_CREW_SPARE, /* it can wait until no seat has more */
                            PE_CREW_MORE
} pe_crew_rest;
typedef pe_crew_rest pe_crew_turn(void *ctx); /* on the engine thread */

typedef struct pe_crew_seat { /* filled by pe_crew_join; the crew's until it is left */
  pe_crew *crew;
  pe_crew_turn *turn;
  void *ctx;
  struct pe_crew_seat *next;
  pe_crew_rest rest;
} pe_crew_seat;

/* Gives. threads: of the pool, 0: one per core. */
pe_status pe_crew_open(int threads, pe_crew **out, pe_error *err);
pe_crew *pe_crew_retain(pe_crew *c); /* gives another share */
void pe_crew_release(pe_crew *c);    /* takes one share; NULL is fine */

pe_pool *pe_crew_pool(const pe_crew *c); /* borrowed from the crew */

pe_status pe_crew_join(pe_crew *c, pe_crew_seat *seat, pe_crew_turn *turn, void *ctx,
                       pe_error *err);
void pe_crew_call(pe_crew_seat *seat);         /* it has work: it gets a turn */
bool pe_crew_wanted(const pe_crew_seat *seat); /* another seat waits for its turn */
void pe_crew_leave(pe_crew_seat *seat);        /* waits for its turn to end; harmless twice */

#endif
