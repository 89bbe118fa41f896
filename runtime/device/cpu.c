/* cpu.c - the CPU as a backend; see backend.h.
 *
 * A step is one run of the pool: its workers begin when the step is submitted, and the caller joins
 * them when it waits. Each of these threads walks the jobs of the program in order and takes tasks
 * of each one, so a thread that comes late, or is taken away by the system, costs what it did not
 * do and no more. Nobody waits for threads, only for tasks: a job begins when the jobs that it
 * depends on are done.
 *
 *     of a job:  taken   tasks that a thread has taken
 *                done    tasks that are finished
 *                ready   all of them are: what waiting threads look at
 *
 * Each thread has tasks of its own, those with its number and every multiple of the threads after
 * it, and takes others, the last ones first, when these are taken. So a core has in its caches what
 * its tasks of the job before have left, such as the keys of the same heads, and a product can ask
 * memory for the weights of the next one before that begins.
 *
 * A line of memory that one core writes and others read takes about 0.1 us to each of them, and
 * there are a dozen jobs in a layer. So threads count in lines that no waiting thread looks at, and
 * in a step like the last one nothing is written that has not changed: counters have the number of
 * their step with them instead of being reset, and calls are resolved to addresses when memory
 * moves. */
#include "kernels/cpu/cpu.h"
#include "runtime/device/backend.h"
#include "runtime/device/profile.h"
#include "runtime/device/program.h"
#include "runtime/thread.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum {
  LEAST_ROWS = 16, /* of an area, so that a few more sequences do not allocate again */
  WORD_TASKS = 32,
  OWN_TASKS = 256, /* of a job at most, if each thread has its own: as many bits as a cache line has
                      beside the number of the step in each word */
  SPINS = 500      /* looks at a mark, about 25 us, before a waiting thread gives up its core */
};

typedef struct area { /* values of a step: place `at` starts at at * cap floats */
  pe_buffer *memory;
  int32_t cap; /* rows it has room for */
} area;

/* An op of a code, ready to run. A code whose op has a second one (pe_cpu_op.then) is two jobs with
 * one call. */
typedef struct job {
  const pe_cpu_op *op;
  pe_cpu_call *call;
  pe_extent rows;
  bool outputs_only; /* skipped in a step without outputs */
  int32_t after;     /* all jobs before this number must be done */
  int32_t product;   /* the next job that reads packed weights in order; the count: none */
  int tasks, large;  /* in this step, as those of a pe_cpu_share */
} job;

/* A counter in a cache line of its own: the number of the step * 2^32 + the count in that step. */
typedef struct counter {
  _Alignas(64) _Atomic uint64_t at;
} counter;

typedef struct mark {
  /* Tasks that are taken, WORD_TASKS of them in a word with the number of the step as in a counter;
   * of more than OWN_TASKS tasks, the first that is not taken. */
  union {
    _Alignas(64) _Atomic uint64_t taken[OWN_TASKS / WORD_TASKS];
    counter next;
  };
  counter done;
} mark;

typedef struct cpu {
  pe_device base;
  const pe_prim *prim; /* chosen once: the lookup costs more than a small instruction */
  pe_program *program;
  const pe_step *step; /* the one that the calls are resolved for */
  area rows, outputs;
  pe_buffer *scratch, *shared, *codes;
  const pe_int16 *int16;
  pe_int16_rows *rounded;  /* parallel to those of the program, */
  pe_amx16_rows *arranged; /* each one in the form of its kind */
  int32_t *rounds_most;    /* the same: up to this many rows, readers round it, and no job does */
  uint64_t *slot_at;       /* of each slot in `codes` */
  int32_t placed_rows, placed_outputs; /* of the step that they were placed for */
  int64_t scratch_step;                /* floats of one thread */
  pe_cpu_call *call;                   /* parallel to the codes of the program */
  job *job;
  mark *mark;              /* parallel to job */
  _Atomic uint32_t *ready; /* the same: the last step in which all its tasks were done. Together:
                              a thread that waits for several jobs looks at one cache line */
  uint32_t number;         /* of the step */
  int32_t job_count;
  int32_t first;            /* all jobs before it are done */
  _Atomic int64_t until_ns; /* when threads stop taking tasks */
  _Atomic bool stopped;     /* one of them has, or all must */
  bool started;             /* the pool runs `walk` since the step was submitted */
  int64_t from_ns;          /* that was then, with a profile */
} cpu;

/* ---- opening --------------------------------------------------------------------------------- */

static const pe_cpu_op *op_of(const pe_program *p, const pe_code *c) {
  if (c->round >= 0)
    return p->rounded[c->round].kind == PE_ROUND_TILES ? &pe_cpu_arrange : &pe_cpu_round;
  if (!c->pack && c->reads[0] >= 0)
    return c->instr->op == PE_OP_GATED ? &pe_cpu_tiles_gated : &pe_cpu_tiles_linear;
  return c->pack ? pe_cpu_packed_op_of(c->instr->op) : pe_cpu_op_of(c->instr->op, p->precision);
}

/* How many lines a code computes. */
static pe_extent rows_of(const pe_code *c) {
  return c->round >= 0 ? c->instr->in[0].rows : c->instr->rows;
}

/* Jobs that use shared memory use the same one, so each waits for the one before it. */
static void make_jobs(cpu *d, int32_t *first_job) {
  int32_t n = 0, shared = 0;
  for (int32_t i = 0; i < d->program->count; i++) {
    const pe_code *c = &d->program->code[i];
    const pe_cpu_op *op = op_of(d->program, c);
    const bool shares = op->shared;
    int32_t after = first_job[c->after];
    if (shares && shared > after) after = shared;
    first_job[i] = n;
    for (; op; op = op->then, after = ++n)
      d->job[n] = (job){op, &d->call[i], rows_of(c), c->outputs_only, after, 0, 0, 0};
    if (shares) shared = n;
    first_job[i + 1] = n;
  }
  d->job_count = n;
  for (int32_t i = n, product = n; i-- > 0;) {
    d->job[i].product = product;
    if (d->job[i].op == &pe_cpu_packed_linear || d->job[i].op == &pe_cpu_packed_gated) product = i;
  }
}

/* A value may be rounded by its readers if this suits all of them, and if what computes it does not
 * round it. Products that read two rounded values are rare: their weights have different groups. */
static void limit_rounds(cpu *d) {
  const int threads = pe_pool_threads(d->base.pool);
  for (int32_t i = 0; i < d->program->rounded_count; i++) d->rounds_most[i] = INT32_MAX;
  for (int32_t i = 0; i < d->program->count; i++) {
    const pe_code *c = &d->program->code[i];
    const pe_pack *pack[2] = {c->pack, c->pack2};
    if (c->writes >= 0) d->rounds_most[c->writes] = 0;
    for (int k = 0; k < 2; k++) {
      if (c->reads[k] < 0) continue;
      const bool two = c->reads[1] >= 0 && c->reads[1] != c->reads[0];
      const int32_t rows = two || !pack[k] ? 0 : pe_cpu_rounds_most(pack[k], threads);
      if (rows < d->rounds_most[c->reads[k]]) d->rounds_most[c->reads[k]] = rows;
    }
  }
}

static pe_status open_jobs(cpu *d, pe_error *err) {
  const size_t codes = (size_t)d->program->count + 1;
  size_t jobs = 1;
  for (int32_t i = 0; i < d->program->count; i++)
    for (const pe_cpu_op *op = op_of(d->program, &d->program->code[i]); op; op = op->then) jobs++;
  int32_t *first_job = pe_calloc(codes, sizeof *first_job);
  d->call = pe_calloc(codes, sizeof *d->call);
  d->job = pe_calloc(jobs, sizeof *d->job);
  d->mark = pe_alloc_aligned(jobs * sizeof *d->mark, _Alignof(mark));
  if (d->mark) memset(d->mark, 0, jobs * sizeof *d->mark);
  d->ready = pe_calloc(jobs, sizeof *d->ready);
  d->rounded = pe_calloc((size_t)d->program->rounded_count + 1, sizeof *d->rounded);
  d->arranged = pe_calloc((size_t)d->program->rounded_count + 1, sizeof *d->arranged);
  d->rounds_most = pe_calloc((size_t)d->program->rounded_count + 1, sizeof *d->rounds_most);
  d->slot_at = pe_calloc((size_t)d->program->slots + 1, sizeof *d->slot_at);
  const bool ok = first_job && d->call && d->job && d->mark && d->ready && d->rounded &&
                  d->arranged && d->rounds_most && d->slot_at;
  if (ok) make_jobs(d, first_job), limit_rounds(d);
  pe_free(first_job);
  return ok ? PE_OK : pe_nomem(err, "device");
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Half as much again, so that steps that grow row by row do not map and fault pages each time. Rows
 * that are not used take no memory. *moved: addresses have changed. */
static pe_status grow_area(area *a, int32_t rows, int64_t floats_per_row, bool *moved,
                           pe_error *err) {
  if (a->memory && rows <= a->cap) return PE_OK;
  int32_t cap = a->cap && rows < INT32_MAX / 2 ? rows + rows / 2 : rows;
  if (cap < LEAST_ROWS) cap = LEAST_ROWS;
  pe_buffer_release(a->memory);
  *a = (area){0};
  *moved = true;
  uint64_t bytes;
  if (!pe_mul_size((uint64_t)cap * sizeof(float), (uint64_t)floats_per_row, &bytes))
    return pe_fail(err, PE_ELIMIT, "a step of %d rows of %lld floats does not fit into memory",
                   rows, (long long)floats_per_row);
  pe_status rc = pe_buffer_reserve(bytes, &a->memory, err);
  if (!rc) a->cap = cap;
  return rc;
}

/* Half as much again, because attention needs a little more with every token. */
static pe_status grow_buffer(pe_buffer **b, int64_t floats, pe_error *err) {
  uint64_t bytes = (uint64_t)floats * sizeof(float);
  if (*b && (*b)->size >= bytes) return PE_OK;
  pe_buffer_release(*b);
  *b = NULL;
  return pe_buffer_reserve(bytes + bytes / 2, b, err);
}

static float *floats_of(const pe_buffer *b) { return (float *)(void *)b->data; }

static pe_cpu_view view_of(const cpu *d, const pe_place *p) {
  if (p->rows == PE_EXTENT_CONST) return (pe_cpu_view){0};
  const area *a = p->rows == PE_EXTENT_OUTPUT ? &d->outputs : &d->rows;
  return (pe_cpu_view){floats_of(a->memory) + p->at * a->cap + p->offset, p->step};
}

static int32_t lines_of(const cpu *d, pe_extent rows) {
  return rows == PE_EXTENT_OUTPUT ? d->step->outputs : d->step->rows;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static pe_cpu_call call_of(const cpu *d, const pe_instr *x) {
  pe_cpu_call c = {
      .step = d->step, .prim = d->prim, .mat = x->mat, .mat2 = x->mat2, .args = x->args};
  c.fast = d->program->precision == PE_FAST;
  c.out = view_of(d, &x->out);
  for (int i = 0; i < PE_NODE_INPUTS; i++) c.in[i] = view_of(d, &x->in[i]);
  memcpy(c.vec, x->vec, sizeof c.vec);
  if (x->cache >= 0) {
    const pe_kv_layer *l = &d->base.kv->layer[x->cache];
    c.cache[0] = l->keys, c.cache[1] = l->values, c.cache_step = (int64_t)l->step;
    pe_cache_args *a = x->op == PE_OP_STORE ? &c.args.store.cache : &c.args.attention.cache;
    a->block = d->base.kv->block, a->type = (int32_t)d->base.kv->type;
  }
  if (x->state_at >= 0)
    c.state = d->base.recur->data + x->state_at, c.state_step = d->base.recur->slot_floats;
  return c;
}

static void resolve_calls(cpu *d) {
  for (int32_t i = 0; i < d->program->count; i++) {
    const pe_code *c = &d->program->code[i];
    pe_cpu_call *call = &d->call[i];
    *call = call_of(d, c->instr);
    call->pack = c->pack, call->pack2 = c->pack2, call->int16 = d->int16;
    if (c->round >= 0) call->rounded[0] = &d->rounded[c->round];
    for (int k = 0; k < 2; k++)
      if (c->reads[k] >= 0) call->rounded[k] = &d->rounded[c->reads[k]];
    const int32_t rounded = c->round >= 0 ? c->round : c->reads[0];
    const int32_t norm = rounded >= 0 ? d->program->rounded[rounded].norm : -1;
    if (norm >= 0) call->norm = &d->call[norm];
    if (c->writes >= 0) call->result = &d->rounded[c->writes];
    if (call->rounded[0]) call->arranged = &d->arranged[call->rounded[0] - d->rounded];
  }
}

/* Places the rounded values of this step: a slot is as large as the largest of its values. */
static pe_status place_rounded(cpu *d, pe_error *err) {
  const pe_program *p = d->program;
  uint64_t size = PE_PACK_ALIGN;
  if (d->codes && d->placed_rows == d->step->rows && d->placed_outputs == d->step->outputs)
    return PE_OK;
  memset(d->slot_at, 0, (size_t)p->slots * sizeof *d->slot_at);
  for (int32_t i = 0; i < p->rounded_count; i++) {
    const pe_rounded *r = &p->rounded[i];
    const int32_t lines = lines_of(d, r->rows);
    uint64_t bytes = r->kind == PE_ROUND_TILES ? pe_amx16_bytes(lines, r->cols)
                                               : pe_int16_bytes(lines, r->cols, r->act);
    if (bytes > d->slot_at[r->slot]) d->slot_at[r->slot] = bytes;
  }
  for (int32_t i = 0; i < p->slots; i++) {
    const uint64_t at = size;
    size += (d->slot_at[i] + PE_PACK_ALIGN - 1) / PE_PACK_ALIGN * PE_PACK_ALIGN;
    d->slot_at[i] = at; /* where it begins from here on */
  }
  pe_status rc = grow_buffer(&d->codes, (int64_t)(size / sizeof(float)), err);
  d->placed_rows = d->step->rows, d->placed_outputs = d->step->outputs;
  for (int32_t i = 0; !rc && i < p->rounded_count; i++) {
    const pe_rounded *r = &p->rounded[i];
    const int32_t lines = lines_of(d, r->rows);
    uint8_t *at = d->codes->data + d->slot_at[r->slot];
    if (r->kind == PE_ROUND_TILES)
      d->arranged[i] = (pe_amx16_rows){lines, r->cols, at};
    else
      pe_int16_place(d->int16, lines, r->cols, r->act, at, &d->rounded[i]);
  }
  return rc;
}

/* Do its readers round this value in this step? */
static bool rounded_late(const cpu *d, int32_t rounded) {
  return lines_of(d, d->program->rounded[rounded].rows) <= d->rounds_most[rounded];
}

/* The tasks of a job in this step. */
static int tasks_of(const cpu *d, const job *j, int *large) {
  const pe_code *c = &d->program->code[j->call - d->call];
  if (!j->call->rows || (j->outputs_only && !d->step->outputs)) return 0;
  if (c->joined || (c->round >= 0 && rounded_late(d, c->round))) return 0;
  return pe_cpu_tasks(j->op, j->call, pe_pool_threads(d->base.pool), large);
}

/* How often a thread may have to wait for others in this step. */
static int32_t count_waits(const cpu *d) {
  int32_t waits = 0, done = 0;
  for (int32_t i = 0; i < d->job_count; i++) {
    if (!d->job[i].tasks) continue;
    bool wait = false;
    for (; done < d->job[i].after; done++) wait |= d->job[done].tasks > 0;
    waits += wait;
  }
  return waits;
}

/* Splits every job into tasks for the rows of this step, and provides the memory that they need in
 * addition to their operands. */
static pe_status split_jobs(cpu *d, pe_error *err) {
  const int threads = pe_pool_threads(d->base.pool);
  pe_status rc = place_rounded(d, err);
  if (rc) return rc;
  int64_t scratch = 16, shared = 16; /* a buffer cannot be empty */
  for (int32_t i = 0; i < d->job_count; i++) {
    job *j = &d->job[i];
    const pe_code *c = &d->program->code[j->call - d->call];
    const int32_t rows = lines_of(d, j->rows);
    const bool rounds = c->reads[0] >= 0 && rounded_late(d, c->reads[0]);
    if (j->call->rows != rows) j->call->rows = rows;
    if (j->call->rounds != rounds) j->call->rounds = rounds;
    int large = 0;
    const int tasks = tasks_of(d, j, &large);
    if (j->tasks != tasks || j->large != large) j->tasks = tasks, j->large = large;
    if (!j->tasks) continue;
    if (d->base.profile) pe_profile_count(d->base.profile, i, j->call);
    int64_t own = pe_cpu_scratch(j->op, j->call), all = pe_cpu_shared(j->op, j->call);
    if (own > scratch) scratch = own;
    if (all > shared) shared = all;
  }
  if (d->base.profile) d->base.profile->waits += count_waits(d);
  d->scratch_step = (scratch + 15) & ~(int64_t)15; /* whole cache lines */
  rc = grow_buffer(&d->scratch, d->scratch_step * threads, err);
  if (!rc) rc = grow_buffer(&d->shared, shared, err);
  for (int32_t i = 0; !rc && i < d->program->count; i++)
    if (d->call[i].shared != floats_of(d->shared)) d->call[i].shared = floats_of(d->shared);
  return rc;
}

/* ---- counting and waiting -------------------------------------------------------------------- */

static bool is_done(const cpu *d, int32_t i) {
  return !d->job[i].tasks || atomic_load_explicit(&d->ready[i], memory_order_acquire) == d->number;
}

/* The count of this step. */
static int32_t count_of(const cpu *d, uint64_t at) {
  return at >> 32 == d->number ? (int32_t)at : 0;
}

/* Adds n and returns the count before it. */
static int32_t count_up(const cpu *d, counter *c, int32_t n) {
  const uint64_t step = (uint64_t)d->number << 32;
  uint64_t old = atomic_load_explicit(&c->at, memory_order_relaxed);
  while (old >> 32 != d->number)
    if (atomic_compare_exchange_weak_explicit(&c->at, &old, step | (uint32_t)n,
                                              memory_order_acq_rel, memory_order_relaxed))
      return 0;
  return (int32_t)atomic_fetch_add_explicit(&c->at, (uint64_t)n, memory_order_acq_rel);
}

/* Waits for job i. False: threads have stopped, so it may never be done. */
static bool wait_for(const cpu *d, int32_t i) {
  const int spins = pe_pool_crowded(d->base.pool) ? 0 : SPINS;
  for (int n = 0; !is_done(d, i); n++) {
    if (atomic_load_explicit(&d->stopped, memory_order_relaxed)) return false;
    if (n < spins)
      pe_thread_relax();
    else
      sched_yield();
  }
  return true;
}

static bool late(cpu *d) {
  const int64_t until_ns = atomic_load_explicit(&d->until_ns, memory_order_relaxed);
  if (until_ns != INT64_MAX && pe_clock_ns() >= until_ns) atomic_store(&d->stopped, true);
  return atomic_load_explicit(&d->stopped, memory_order_relaxed);
}

/* ---- taking tasks ---------------------------------------------------------------------------- */

/* Tasks that are taken, of the word for `task` and its neighbours. */
static uint32_t taken_of(const cpu *d, uint64_t word) {
  return word >> 32 == d->number ? (uint32_t)word : 0;
}

/* False: another thread has taken it. */
static bool take_one(const cpu *d, mark *m, int task) {
  _Atomic uint64_t *word = &m->taken[task / WORD_TASKS];
  const uint64_t bit = 1u << task % WORD_TASKS;
  uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
  while (!(taken_of(d, old) & bit))
    if (atomic_compare_exchange_weak_explicit(word, &old,
                                              (uint64_t)d->number << 32 | taken_of(d, old) | bit,
                                              memory_order_acq_rel, memory_order_relaxed))
      return true;
  return false;
}

/* The last task that nobody has taken; `tasks`: none is left. */
static int take_last(const cpu *d, mark *m, int tasks) {
  for (int task = tasks; task-- > 0;) {
    const uint64_t word = atomic_load_explicit(&m->taken[task / WORD_TASKS], memory_order_relaxed);
    const uint32_t rest = UINT32_MAX >> (WORD_TASKS - 1 - task % WORD_TASKS);
    if ((taken_of(d, word) & rest) == rest)
      task -= task % WORD_TASKS; /* all of this word */
    else if (take_one(d, m, task))
      return task;
  }
  return tasks;
}

/* The next task of j for a thread; j->tasks: none is left. *own: the next one of its own. */
static int take(const cpu *d, const job *j, mark *m, int *own, int threads) {
  if (j->tasks > OWN_TASKS) {
    const uint64_t at = atomic_load_explicit(&m->next.at, memory_order_relaxed);
    return count_of(d, at) < j->tasks ? count_up(d, &m->next, 1) : j->tasks;
  }
  while (*own < j->tasks) {
    const int task = *own;
    *own += threads;
    if (take_one(d, m, task)) return task;
  }
  return take_last(d, m, j->tasks);
}

/* What a thread will probably take after its task of job i. */
static void foresee(const cpu *d, int32_t i, int thread, int own, pe_cpu_share *share) {
  int32_t next = own < d->job[i].tasks ? i : d->job[i].product;
  while (next < d->job_count && !d->job[next].tasks) next = d->job[next].product;
  const job *j = &d->job[next];
  const int task = next == i ? own : thread;
  share->then = NULL;
  if (next == d->job_count || j->tasks > OWN_TASKS || task >= j->tasks) return;
  share->then = j->call;
  share->then_task = task, share->then_tasks = j->tasks, share->then_large = j->large;
}

/* What this call leaves rounded in the scratch of a thread; NULL: nothing. */
static const pe_int16_rows *leaves(const pe_cpu_call *c) {
  return c->rounds ? c->rounded[0] : NULL;
}

/* Takes tasks of job i until none is left. *left: what the thread has rounded last, if it is still
 * in its scratch. False: it is late. */
static bool work_on(cpu *d, int32_t i, int thread, pe_cpu_share *share,
                    const pe_int16_rows **left) {
  const job *j = &d->job[i];
  mark *m = &d->mark[i];
  int32_t done = 0;
  int own = thread;
  bool stop = false;
  share->tasks = j->tasks, share->large = j->large;
  share->again = *left && *left == leaves(j->call);
  while (!stop) {
    share->task = take(d, j, m, &own, pe_pool_threads(d->base.pool));
    if (share->task >= j->tasks) break;
    if (j->op->reads) foresee(d, i, thread, own, share);
    j->op->run(j->call, share);
    *left = leaves(j->call), share->again = *left != NULL, done++;
    stop = late(d);
  }
  if (done && count_up(d, &m->done, done) + done == j->tasks)
    atomic_store_explicit(&d->ready[i], d->number, memory_order_release);
  return !stop;
}

/* ---- walking the jobs ------------------------------------------------------------------------ */

static void walk(void *ctx, int task, int tasks) {
  (void)tasks;
  cpu *d = ctx;
  pe_cpu_share share = {.scratch = floats_of(d->scratch) + task * d->scratch_step};
  pe_profile_clock clock = pe_profile_start(d->base.profile, task);
  const pe_int16_rows *left = NULL;
  int32_t done = d->first; /* all jobs before this one are */
  for (int32_t i = d->first; i < d->job_count; i++) {
    if (!d->job[i].tasks) continue;
    for (; done < d->job[i].after; done++)
      if (!wait_for(d, done)) return;
    pe_profile_waited(&clock, i);
    if (!work_on(d, i, task, &share, &left)) return;
    pe_profile_worked(&clock, i);
  }
}

/* The workers begin; the caller comes to them in finish_jobs. */
static void start_jobs(cpu *d) {
  atomic_store(&d->until_ns, INT64_MAX);
  atomic_store(&d->stopped, false);
  d->from_ns = d->base.profile ? pe_clock_ns() : 0;
  pe_pool_start(d->base.pool, walk, d, pe_pool_threads(d->base.pool));
  d->started = true;
}

static void finish_jobs(cpu *d) {
  pe_profile *p = d->base.profile;
  pe_pool_finish(d->base.pool);
  d->started = false;
  if (p) p->wall_ns += pe_clock_ns() - d->from_ns, p->steps++;
  while (d->first < d->job_count && is_done(d, d->first)) d->first++;
}

/* Ends a run whose result is not needed. */
static void drop_jobs(cpu *d) {
  if (!d->started) return;
  atomic_store(&d->stopped, true);
  finish_jobs(d);
}

/* ---- the backend ----------------------------------------------------------------------------- */

static pe_status cpu_available(pe_error *err) {
  (void)err;
  return PE_OK;
}

static pe_status cpu_open(pe_device *base, pe_error *err) {
  cpu *d = (cpu *)base;
  d->prim = pe_prim_best(), d->int16 = pe_int16_best();
  pe_status rc =
      pe_program_open(base->plan, base->precision, base->pool, base->progress, &d->program, err);
  return rc ? rc : open_jobs(d, err);
}

static void cpu_rest(pe_device *base) {
  cpu *d = (cpu *)base;
  drop_jobs(d);
  pe_buffer_release(d->rows.memory), pe_buffer_release(d->outputs.memory);
  pe_buffer_release(d->scratch), pe_buffer_release(d->shared), pe_buffer_release(d->codes);
  d->rows = d->outputs = (area){0};
  d->scratch = d->shared = d->codes = NULL;
}

static void cpu_close(pe_device *base) {
  cpu *d = (cpu *)base;
  cpu_rest(base);
  pe_program_close(d->program);
  pe_free(d->call), pe_free(d->job), pe_free(d->mark), pe_free(d->ready);
  pe_free(d->rounded), pe_free(d->arranged), pe_free(d->rounds_most), pe_free(d->slot_at);
}

static pe_status cpu_profile(pe_device *base, pe_error *err) {
  cpu *d = (cpu *)base;
  pe_status rc = pe_profile_open(pe_pool_threads(base->pool), d->job_count, &base->profile, err);
  for (int32_t i = 0; !rc && i < d->job_count; i++) {
    const job *j = &d->job[i];
    const pe_code *c = &d->program->code[j->call - d->call];
    base->profile->job[i] = (pe_profile_job){.instr = c->instr,
                                             .rounds = c->round >= 0,
                                             .packed = c->pack != NULL,
                                             .part = i > 0 && d->job[i - 1].call == j->call};
  }
  return rc;
}

static pe_status cpu_submit(pe_device *base, pe_error *err) {
  cpu *d = (cpu *)base;
  const pe_step *step = base->step;
  bool moved = step != d->step;
  drop_jobs(d);
  d->step = step, d->first = 0, d->number++;
  pe_status rc = grow_area(&d->rows, step->rows, base->plan->row_floats, &moved, err);
  if (!rc) rc = grow_area(&d->outputs, step->outputs, base->plan->output_floats, &moved, err);
  if (rc) {
    d->step = NULL; /* so that the next step resolves its calls */
    return rc;
  }
  if (moved) resolve_calls(d);
  rc = split_jobs(d, err);
  if (!rc) start_jobs(d);
  return rc;
}

static pe_status cpu_wait(pe_device *base, int64_t until_ns, bool *done, pe_error *err) {
  (void)err;
  cpu *d = (cpu *)base;
  if (!d->started) start_jobs(d); /* what the last wait has left */
  atomic_store_explicit(&d->until_ns, until_ns, memory_order_relaxed);
  finish_jobs(d);
  *done = d->first == d->job_count;
  return PE_OK;
}

static float *cpu_line(const pe_device *base, const pe_place *p, int32_t i) {
  pe_cpu_view v = view_of((const cpu *)base, p);
  return pe_cpu_row(&v, i);
}

const pe_backend pe_backend_cpu = {.name = "cpu",
                                   .size = sizeof(cpu),
                                   .available = cpu_available,
                                   .open = cpu_open,
                                   .close = cpu_close,
                                   .submit = cpu_submit,
                                   .wait = cpu_wait,
                                   .rest = cpu_rest,
                                   .line = cpu_line,
                                   .profile = cpu_profile};
