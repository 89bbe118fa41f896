/* profile.h - where the time of steps goes, job by job, and what this machine could do at most.
 *
 * A device with a profile notes for each of its threads how long it worked on a job and how long it
 * waited for the jobs that it depends on; the time that is left of a step a thread was not there
 * (it was parked, or the system ran something else). Bytes and multiply-adds are computed from the
 * operands:
 *
 *     thread 0   | embed | norm | round | q     | k  |..| attention |        busy
 *     thread 1           | wait         | q       | v   |wait| attention |   wait, and idle before
 *                |<---------------------- wall ------------------------->|
 *
 * Two readings of the clock per job and thread: below 1 % of a step. A device without a profile
 * pays for one comparison.
 *
 * Ownership: belongs to the device. Threads: each writes its own numbers during a step; they are
 * read between steps. */
#ifndef PE_PROFILE_H
#define PE_PROFILE_H

#include "kernels/cpu/cpu.h"
#include "runtime/graph/plan.h"
#include "runtime/pool.h"
#include "runtime/thread.h"

typedef struct pe_cost { /* of a job, summed over steps */
  double weights;        /* bytes: of experts those that are chosen at most */
  double cache;          /* bytes of the KV cache or of states */
  double values;         /* bytes of the lines that it reads and writes */
  double macs;           /* multiply-adds; 0: the op is not a product */
} pe_cost;

typedef struct pe_profile_job {
  const pe_instr *instr;
  bool rounds;              /* it rounds the input of the instruction */
  bool packed;              /* it multiplies integers */
  int32_t part;             /* 1: the second op of a code */
  int64_t busy_ns, wait_ns; /* of all threads; pe_profile_sum */
  pe_cost cost;
} pe_profile_job;

typedef struct pe_profile_time {
  int64_t busy_ns, wait_ns;
} pe_profile_time;

typedef struct pe_profile {
  int32_t threads, count; /* count: of jobs */
  pe_profile_job *job;
  int64_t steps, wall_ns;
  int64_t waits; /* places in all steps where threads need what others compute */
  /* ---- private ---- */
  pe_profile_time *time; /* [threads][count] */
} pe_profile;

pe_status pe_profile_open(int32_t threads, int32_t count, pe_profile **out,
                          pe_error *err); /* gives */
void pe_profile_close(pe_profile *p);     /* takes; NULL is fine */
/* What a call costs, without the lines of values. */
pe_cost pe_profile_cost(pe_op op, const pe_cpu_call *call);
/* Adds what one step costs this job. */
void pe_profile_count(pe_profile *p, int32_t job, const pe_cpu_call *call);
/* Fills busy_ns and wait_ns of all jobs. */
void pe_profile_sum(pe_profile *p);
void pe_profile_reset(pe_profile *p); /* counts from zero */

/* The clock of one thread during a step; profile NULL: there is none. */
typedef struct pe_profile_clock {
  pe_profile_time *time;
  int64_t last_ns;
} pe_profile_clock;

static inline pe_profile_clock pe_profile_start(const pe_profile *p, int thread) {
  if (!p) return (pe_profile_clock){0};
  return (pe_profile_clock){p->time + (int64_t)thread * p->count, pe_clock_ns()};
}
static inline int64_t pe_profile_lap(pe_profile_clock *c) {
  const int64_t before = c->last_ns;
  c->last_ns = pe_clock_ns();
  return c->last_ns - before;
}
static inline void pe_profile_waited(pe_profile_clock *c, int32_t job) {
  if (c->time) c->time[job].wait_ns += pe_profile_lap(c);
}
static inline void pe_profile_worked(pe_profile_clock *c, int32_t job) {
  if (c->time) c->time[job].busy_ns += pe_profile_lap(c);
}

/* ---- limits ---------------------------------------------------------------------------------- */

typedef struct pe_limits { /* of all threads of a pool together, per second */
  double read;             /* bytes from memory */
  double fma;              /* multiply-adds of float32 */
  double dot;              /* multiply-adds of 16-bit integers */
  double latency;          /* seconds of one load from memory that depends on the one before */
  const char *name;        /* of the instruction set */
} pe_limits;

/* Measures them with the loops of probe.h: the best of short windows, which other programs rarely
 * all disturb. Takes half a second and 256 MB. The latency includes misses of the page tables. */
pe_status pe_limits_measure(pe_pool *pool, pe_limits *out, pe_error *err);

#endif
