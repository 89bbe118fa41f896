/* exec.c - see exec.h. A threadgroup is run to its end before the next one starts. Lanes wait in an
 * exchange until all lanes of their simdgroup that have not returned are there. Values go through
 * two slots in turn, so that a fast lane cannot overwrite what a slow one still reads; the mask of
 * present lanes must alternate with them. */
#include "tests/metal/exec/exec.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- context switch: saves the registers that a function must keep, and the stack ------------ */

void msl_switch(void **save, void *to);
#if defined(__aarch64__)
__asm__(".text\n.globl msl_switch\n.hidden msl_switch\n"
        "msl_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
        "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n  ret\n");
enum { FRAME_WORDS = 20, FRAME_RETURN = 11 };
#elif defined(__x86_64__)
__asm__(".text\n.globl msl_switch\n.hidden msl_switch\n"
        "msl_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n");
enum { FRAME_WORDS = 8, FRAME_RETURN = 6 }; /* the word above the return address keeps alignment */
#else
#error "exec.c: no context switch for this machine"
#endif

static void *frame_new(uint8_t *top, void (*run)(void)) {
  uint64_t *frame = (uint64_t *)(void *)top - FRAME_WORDS;
  memset(frame, 0, FRAME_WORDS * sizeof *frame);
  frame[FRAME_RETURN] = (uint64_t)(uintptr_t)run;
  return frame;
}

/* ---- state ----------------------------------------------------------------------------------- */

typedef enum fibre_state { NEW, READY, EXCHANGING, AT_BARRIER, DONE } fibre_state;
typedef struct fibre {
  msl_place place;
  void *stack;
  fibre_state state;
  uint32_t phase; /* exchanges so far */
} fibre;

enum { VALUE_BYTES = 16, ARRAYS = 64, STACK_BYTES = 64 * 1024 };
typedef struct simdgroup {
  uint32_t arrived, live, op, mask[2];
  _Alignas(16) uint8_t value[2][MSL_LANES * VALUE_BYTES];
} simdgroup;

/* What kernels read without being accused: stacks, values in exchange, places, the launch. */
typedef struct own_memory {
  uint8_t stack[MSL_GROUP_THREADS][STACK_BYTES];
  simdgroup simdgroup[MSL_GROUP_THREADS / MSL_LANES];
  fibre fibre[MSL_GROUP_THREADS];
  msl_launch launch;
} own_memory;

static struct {
  own_memory *own;
  fibre *now;
  void *scheduler; /* its stack */
  uint32_t threads, live, arrived, flags, done, memory_used;
  uint32_t array_at[ARRAYS];
  uint32_t random;
  uint32_t order[MSL_GROUP_THREADS], at; /* the turns of the fibres, and whose it is */
  _Alignas(64) uint8_t memory[MSL_GROUP_MEMORY];
} run;

msl_options msl_option;
const msl_hooks *msl_hook;

void msl_schedule(int i) {
  msl_option.order = i < MSL_RANDOM ? (msl_order)i : MSL_RANDOM;
  msl_option.seed = (uint32_t)i;
}

/* ---- kernels and faults ---------------------------------------------------------------------- */

enum { KERNELS = 256 };
static const msl_kernel *kernels[KERNELS + 1];
static int kernel_count;

void msl_register(const msl_kernel *kernel) {
  if (kernel_count < KERNELS)
    kernels[kernel_count++] = kernel;
  else
    msl_fault("more than %d kernels", KERNELS);
}
const msl_kernel *msl_at(int i) { return i < kernel_count ? kernels[i] : NULL; }
const msl_kernel *msl_find(const char *name) {
  for (int i = 0; i < kernel_count; i++)
    if (!strcmp(kernels[i]->name, name)) return kernels[i];
  return NULL;
}

static int faults;
static char fault_text[512];

void msl_fault(const char *format, ...) {
  if (faults++) return;
  int n = 0;
  if (run.own && run.own->launch.kernel)
    n = snprintf(fault_text, sizeof fault_text, "%s: ", run.own->launch.kernel->name);
  va_list list;
  va_start(list, format);
  vsnprintf(fault_text + n, sizeof fault_text - (size_t)n, format, list);
  va_end(list);
}
int msl_faults(void) { return faults; }
const char *msl_fault_text(void) { return fault_text; }
void msl_forget(void) { faults = 0, fault_text[0] = 0; }

/* ---- called by kernels ----------------------------------------------------------------------- */

const msl_place *msl_here(void) { return &run.now->place; }
const msl_launch *msl_launched(void) { return &run.own->launch; }

static uint32_t number_of(const fibre *f) { return f->place.thread; }
static simdgroup *simdgroup_of(const fibre *f) {
  return &run.own->simdgroup[number_of(f) / MSL_LANES];
}
static void fibre_main(void);

/* Makes the next fibre that can go on, from turn `at` on, the current one. False: none can. */
static bool next_fibre(uint32_t at) {
  fibre *f = NULL;
  while (at < run.threads && (f = &run.own->fibre[run.order[at]])->state > READY) at++;
  if (at >= run.threads) return false;
  if (f->state == NEW)
    f->stack = frame_new(run.own->stack[number_of(f)] + STACK_BYTES - 64, fibre_main);
  f->state = READY, run.now = f, run.at = at;
  if (msl_hook) msl_hook->resume(number_of(f), (const uint8_t *)run.own, sizeof *run.own);
  return true;
}

/* Straight to the next fibre: a way through the scheduler would cost twice as much. */
static void pause_fibre(fibre *f) {
  msl_switch(&f->stack, next_fibre(run.at + 1) ? run.now->stack : run.scheduler);
}

void *msl_group_array(uint32_t id, uint32_t bytes) {
  if (id >= ARRAYS) {
    msl_fault("more than %d arrays of threadgroups", ARRAYS);
    abort();
  }
  if (run.array_at[id] != UINT32_MAX) return run.memory + run.array_at[id];
  const uint32_t at = (run.memory_used + 15) & ~15u;
  if (at + bytes > MSL_GROUP_MEMORY) {
    msl_fault("%u bytes of threadgroup memory, Metal has %d", at + bytes, MSL_GROUP_MEMORY);
    if (bytes > MSL_GROUP_MEMORY) abort(); /* there is nothing to go on with */
    return run.memory;
  }
  run.array_at[id] = at, run.memory_used = at + bytes;
  return run.memory + at;
}

static void release_barrier(void) {
  if (run.live != run.threads)
    msl_fault("a barrier that %u of %u threads reach: the others have returned", run.live,
              run.threads);
  run.arrived = 0;
  for (uint32_t i = 0; i < run.threads; i++)
    if (run.own->fibre[i].state == AT_BARRIER) run.own->fibre[i].state = READY;
  if (msl_hook) msl_hook->barrier(run.flags);
}

void msl_barrier(uint32_t flags) {
  fibre *f = run.now;
  if (run.arrived == 0)
    run.flags = flags;
  else if (run.flags != flags)
    msl_fault("threads of one threadgroup are at different barriers");
  f->state = AT_BARRIER;
  if (++run.arrived == run.live) release_barrier();
  pause_fibre(f);
}

static void release_simdgroup(const fibre *f) {
  const uint32_t first = number_of(f) / MSL_LANES * MSL_LANES;
  simdgroup_of(f)->arrived = 0;
  for (uint32_t i = first; i < first + MSL_LANES && i < run.threads; i++)
    if (run.own->fibre[i].state == EXCHANGING) run.own->fibre[i].state = READY;
}

/* Waits for the other lanes; true for the lane that comes last. */
static bool meet(fibre *f, uint32_t op) {
  simdgroup *g = simdgroup_of(f);
  uint32_t *mask = &g->mask[f->phase % 2];
  if (g->live != MSL_LANES)
    msl_fault("an exchange in a simdgroup of which %u lanes have returned", MSL_LANES - g->live);
  if (g->arrived == 0)
    g->op = op, *mask = 0;
  else if (g->op != op)
    msl_fault("lanes of one simdgroup exchange different things");
  *mask |= 1u << number_of(f) % MSL_LANES;
  f->state = EXCHANGING;
  if (++g->arrived == g->live) {
    release_simdgroup(f);
    return true;
  }
  pause_fibre(f);
  return false;
}

void msl_simdgroup_barrier(uint32_t flags) {
  fibre *f = run.now;
  if (meet(f, 1u << 31 | flags) && msl_hook)
    msl_hook->simdgroup_barrier(number_of(f) / MSL_LANES, flags);
  f->phase++;
}

const void *msl_exchange(uint32_t op, const void *value, uint32_t bytes, uint32_t *mask) {
  fibre *f = run.now;
  simdgroup *g = simdgroup_of(f);
  const uint32_t slot = f->phase % 2;
  memcpy(g->value[slot] + number_of(f) % MSL_LANES * bytes, value, bytes);
  meet(f, op << 8 | bytes);
  f->phase++, *mask = g->mask[slot];
  return g->value[slot];
}

/* ---- scheduler ------------------------------------------------------------------------------- */

static void fibre_main(void) {
  fibre *f = run.now;
  run.own->launch.kernel->run();
  f->state = DONE, run.done++, run.live--;
  simdgroup *g = simdgroup_of(f);
  g->live--;
  if (g->live && g->arrived == g->live) {
    msl_fault("lanes exchange values when others of their simdgroup have returned");
    release_simdgroup(f);
  }
  if (run.live && run.arrived == run.live) release_barrier();
  pause_fibre(f);
}

static uint32_t random_below(uint32_t n) {
  run.random = run.random * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)run.random * n >> 32);
}

static void order_fibres(void) {
  for (uint32_t i = 0; i < run.threads; i++)
    run.order[i] = msl_option.order == MSL_REVERSE ? run.threads - 1 - i : i;
  for (uint32_t i = run.threads; msl_option.order == MSL_RANDOM && i > 1; i--) {
    const uint32_t j = random_below(i), other = run.order[i - 1];
    run.order[i - 1] = run.order[j], run.order[j] = other;
  }
}

static void say_stuck(void) {
  uint32_t exchanging = 0, waiting = 0;
  for (uint32_t i = 0; i < run.threads; i++) {
    exchanging += run.own->fibre[i].state == EXCHANGING;
    waiting += run.own->fibre[i].state == AT_BARRIER;
  }
  msl_fault("stuck: %u threads wait in an exchange and %u at a barrier", exchanging, waiting);
}

static void group_new(const uint32_t group[3]) {
  run.live = run.threads, run.arrived = run.done = run.memory_used = 0;
  for (uint32_t i = 0; i < run.threads; i++) {
    run.own->fibre[i] = (fibre){.place = {.thread = i}};
    memcpy(run.own->fibre[i].place.group, group, sizeof run.own->fibre[i].place.group);
  }
  for (uint32_t i = 0; i < (run.threads + MSL_LANES - 1) / MSL_LANES; i++)
    run.own->simdgroup[i].arrived = 0, run.own->simdgroup[i].live = MSL_LANES;
  memset(run.array_at, 0xff, sizeof run.array_at);
  memset(run.memory, 0xff, sizeof run.memory); /* NaN */
  order_fibres();
}

static void run_group(uint32_t number) {
  const uint32_t *n = run.own->launch.groups;
  const uint32_t group[3] = {number % n[0], number / n[0] % n[1], number / n[0] / n[1]};
  group_new(group);
  if (msl_hook) msl_hook->group(number, run.memory);
  while (run.done < run.threads) {
    if (!next_fibre(0)) {
      say_stuck();
      return;
    }
    msl_switch(&run.scheduler, run.now->stack);
  }
}

/* ---- launches -------------------------------------------------------------------------------- */

static bool launch_is_valid(const msl_launch *l) {
  if (l->threads == 0 || l->threads % MSL_LANES || l->threads > MSL_GROUP_THREADS) {
    msl_fault("%s: %u threads in a group", l->kernel->name, l->threads);
    return false;
  }
  for (const msl_argument *a = l->kernel->arguments; a->index >= 0; a++)
    if (!l->buffer[a->index].at) {
      msl_fault("%s: nothing is bound to %s, slot %d", l->kernel->name, a->name, a->index);
      return false;
    }
  return true;
}

static void set_constants(const msl_launch *l) {
  for (const msl_constant *c = l->kernel->constants; c->index >= 0; c++)
    *c->at = l->constants >> c->index & 1 ? l->constant[c->index] : 0xdeadbeef;
}

void (*msl_elsewhere)(const msl_launch *launch);

int msl_run(const msl_launch *l) {
  const int before = faults;
  if (!launch_is_valid(l)) return faults - before;
  if (msl_elsewhere) {
    msl_elsewhere(l);
    return faults - before;
  }
  if (!run.own) {
    void *own = mmap(NULL, sizeof *run.own, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (own == MAP_FAILED) {
      msl_fault("no memory for fibres");
      return faults - before;
    }
    run.own = own;
  }
  run.own->launch = *l, run.threads = l->threads, run.random = msl_option.seed * 2654435761u;
  set_constants(l);
  if (msl_hook) msl_hook->launch(l);
  const uint32_t total = l->groups[0] * l->groups[1] * l->groups[2];
  const uint32_t turn = msl_option.order == MSL_RANDOM && total ? random_below(total) : 0;
  for (uint32_t i = 0; i < total; i++)
    run_group(msl_option.order == MSL_REVERSE ? total - 1 - i : (i + turn) % total);
  if (msl_hook) msl_hook->launch(NULL);
  run.own->launch.kernel = NULL;
  return faults - before;
}
