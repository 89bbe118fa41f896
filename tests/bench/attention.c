/* attention.c - attention of `fast` and the writing of its cache, over memory that no cache holds:
 * each call takes the next of layers that together exceed 256 MB.
 *
 *   attention [prefill|decode|store|all] [TOKENS|0] [HEAD SIZE|0] [GROUP|0] [BITS|0] [WINDOWS]
 *
 * Sixteen query heads share 16 / GROUP key heads. A prefill of TOKENS tokens has no past; a decode
 * is one row after TOKENS tokens; a store writes TOKENS rows. Columns: GFLOP/s of the products that
 * a causal mask leaves and GB/s of keys and values, on one and two threads. Each figure is the best
 * of WINDOWS windows of 30 ms. The limits in the first line are those of plain.c. PERIGEE_ISA
 * chooses the instruction set. With CPU=1 in the environment there is one thread only, and figures
 * are in its CPU time, for machines that have other things to do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "runtime/pool.h"

enum { THREADS = 2, HEADS = 16, BLOCK = 64 };
static const int64_t MEMORY = 256 << 20;

static double seconds(bool own) {
  struct timespec t;
  clock_gettime(own ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint32_t state = 1;
static float uniform(void) {
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return (float)(int32_t)state * 0x1p-31f;
}

/* ---- a layer and a step ---------------------------------------------------------------------- */

typedef enum work { PREFILL, DECODE, STORE, WORKS } work;
static const char *const names[WORKS] = {"prefill", "decode", "store"};
static const struct {
  int bits;
  pe_kv_type type;
} types[] = {{16, PE_KV_F16}, {8, PE_KV_Q8}, {4, PE_KV_Q4}, {32, PE_KV_F32}};

typedef struct bench {
  work work;
  int tokens, size, key_heads;
  const pe_cpu_op *op;
  pe_cpu_call call;
  pe_step step;
  pe_segment segment;
  int32_t *table, *segment_of, table_at[1];
  uint8_t *cache;
  int64_t layer, layers, next; /* bytes of a layer */
  float *shared, *scratch[THREADS];
} bench;

static void *room(int64_t bytes) {
  void *p = aligned_alloc(64, (size_t)((bytes + 127) / 64 * 64));
  if (!p) exit(1);
  return p;
}

static float *lines(int64_t n) {
  float *x = room(n * 4);
  for (int64_t i = 0; i < n; i++) x[i] = uniform();
  return x;
}

static void run_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  b->op->run(&b->call, &(pe_cpu_share){.task = task, .tasks = tasks, .scratch = b->scratch[task]});
}

static void run_all(bench *b, pe_pool *pool) {
  const pe_cpu_op *first = b->op;
  b->call.cache[0] = b->cache + b->next++ % b->layers * b->layer;
  b->call.cache[1] = b->call.cache[0] + b->call.cache_step / 2;
  for (; b->op; b->op = b->op->then) pe_pool_run(pool, run_task, b, pe_pool_threads(pool));
  b->op = first;
}

/* Fills every layer by a store of all its tokens. */
static void fill(bench *b) {
  const pe_cache_args cache = b->call.args.attention.cache;
  const int64_t width = (int64_t)cache.heads * cache.key;
  pe_cpu_call c = b->call;
  pe_step step = b->step;
  pe_segment segment = {.count = b->tokens};
  c.args.store = (pe_store_args){.cache = cache};
  c.step = &step, step.segment = &segment, step.rows = c.rows = b->tokens;
  c.in[0] = c.in[1] = (pe_cpu_view){lines(b->tokens * width), width};
  c.cache[0] = b->cache, c.cache[1] = b->cache + c.cache_step / 2;
  float *scratch = room(pe_cpu_scratch(&pe_cpu_store, &c) * 4);
  pe_cpu_store.run(&c, &(pe_cpu_share){.tasks = 1, .scratch = scratch});
  for (int64_t i = 1; i < b->layers; i++)
    memcpy(b->cache + i * b->layer, b->cache, (size_t)b->layer);
  free(c.in[0].at), free(scratch);
}

static void open_bench(bench *b, pe_kv_type type) {
  const pe_cache_args cache = {0, b->key_heads, b->size, b->size, BLOCK, (int32_t)type};
  const int64_t each = (int64_t)pe_kv_row_bytes(type, b->size) * b->key_heads * BLOCK;
  const int blocks = (b->tokens + BLOCK - 1) / BLOCK, rows = b->work == DECODE ? 1 : b->tokens;
  const int heads = b->work == STORE ? b->key_heads : HEADS;
  b->layer = 2 * each * blocks, b->layers = MEMORY / b->layer + 1;
  b->cache = room(b->layer * b->layers);
  b->table = room(blocks * 4), b->segment_of = room(b->tokens * 4);
  memset(b->segment_of, 0, (size_t)b->tokens * 4);
  for (int i = 0; i < blocks; i++) b->table[i] = (int32_t)((i * 7LL + 3) % blocks); /* mixed */
  if (blocks % 7 == 0)
    for (int i = 0; i < blocks; i++) b->table[i] = i;
  b->segment = (pe_segment){.count = rows, .past = b->tokens - rows};
  b->step = (pe_step){.rows = rows,
                      .segments = 1,
                      .groups = 1,
                      .segment_of = b->segment_of,
                      .segment = &b->segment,
                      .tables = b->table,
                      .table_at = b->table_at};
  pe_cpu_call *c = &b->call;
  *c = (pe_cpu_call){.step = &b->step, .prim = pe_prim_best(), .fast = true, .rows = rows};
  c->cache_step = 2 * each;
  const pe_attention_args args = {cache, HEADS, b->size, 0, 0, 0.1f, 0};
  c->args.attention = args;
  fill(b);
  if (b->work == STORE) c->args.store = (pe_store_args){.cache = cache};
  for (int i = 0; i < 2; i++) c->in[i] = (pe_cpu_view){lines(rows * heads * b->size), 0};
  c->in[0].step = c->in[1].step = heads * b->size;
  c->out = (pe_cpu_view){lines(rows * heads * b->size), heads * b->size};
  b->op = b->work == STORE ? &pe_cpu_store : pe_cpu_op_of(PE_OP_ATTENTION, PE_FAST);
  c->shared = b->shared = room(pe_cpu_shared(b->op, c) * 4);
  int64_t most = 0;
  for (const pe_cpu_op *op = b->op; op; op = op->then)
    if (pe_cpu_scratch(op, c) > most) most = pe_cpu_scratch(op, c);
  for (int t = 0; t < THREADS; t++) b->scratch[t] = room(most * 4);
}

static void close_bench(bench *b) {
  free(b->cache), free(b->table), free(b->segment_of), free(b->shared), free(b->call.out.at);
  free(b->call.in[0].at), free(b->call.in[1].at);
  for (int t = 0; t < THREADS; t++) free(b->scratch[t]);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static volatile uint64_t sink;
/* Four streams, requested 2 KB ahead: what one thread can get from memory. */
static void read_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  typedef uint64_t v8 __attribute__((vector_size(64)));
  const int64_t part = MEMORY / 16 / tasks / 256 * 64;
  const uint8_t *p = b->cache + b->next % 15 * (MEMORY / 16) + task * 4 * part;
  v8 sum = {0};
  for (int64_t i = 0; i < part; i += 64)
    for (int z = 0; z < 4; z++) {
      v8 v;
      __builtin_prefetch(p + z * part + i + 2048);
      memcpy(&v, p + z * part + i, sizeof v);
      sum ^= v;
    }
  sink += sum[0] + sum[7];
}

/* 4 x 4 sums over 512 columns, which stay in the first-level cache. */
enum { PEAK = 1000 };
static void peak_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  float sums[16];
  (void)tasks;
  for (int i = 0; i < PEAK; i++)
    b->call.prim->dots(b->call.in[0].at, 512, 4, b->call.out.at + 4096 * task, 512, 4, 512, sums,
                       4);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Seconds of one call: the mean over a window. fn NULL: the op. */
static double window(pe_pool *pool, pe_task_fn *fn, bench *b) {
  const bool own = pe_pool_threads(pool) == 1 && getenv("CPU");
  double start = seconds(own), took;
  int64_t calls = 0;
  do {
    if (fn) {
      pe_pool_run(pool, fn, b, pe_pool_threads(pool));
      b->next++;
    } else {
      run_all(b, pool);
    }
    took = seconds(own) - start;
    calls++;
  } while (took < 0.03);
  return took / (double)calls;
}

static double best_of(pe_pool *pool, pe_task_fn *fn, bench *b, int windows) {
  double best = 1e9;
  if (pe_pool_threads(pool) > 1 && getenv("CPU")) return best;
  for (int w = 0; w < windows; w++) {
    double took = window(pool, fn, b);
    if (took < best) best = took;
  }
  return best;
}

static void limits(pe_pool *const pool[THREADS], int windows) {
  bench b = {.work = PREFILL, .tokens = 1024, .size = 64, .key_heads = 2};
  open_bench(&b, PE_KV_F16);
  const double bytes = (double)(MEMORY / 16), flop = 2.0 * 16 * 512 * PEAK;
  printf("Attention: %s; a read gets %.1f and %.1f GB/s, multiply-adds %.0f and %.0f GFLOP/s\n",
         pe_prim_best()->name, bytes / best_of(pool[0], read_task, &b, windows) / 1e9,
         bytes / best_of(pool[1], read_task, &b, windows) / 1e9,
         flop / best_of(pool[0], peak_task, &b, windows) / 1e9,
         2 * flop / best_of(pool[1], peak_task, &b, windows) / 1e9);
  printf("%-8s %6s %5s %6s %5s %17s %15s\n", "work", "tokens", "size", "group", "bits",
         "GFLOP/s, 1 and 2", "GB/s, 1 and 2");
  close_bench(&b);
}

static void measure(bench *b, pe_kv_type type, pe_pool *const pool[THREADS], int windows) {
  open_bench(b, type);
  const double rows = b->call.rows, past = b->segment.past;
  const double pairs = rows * past + rows * (rows + 1) / 2;
  const double flop = b->work == STORE ? 0 : 4 * pairs * HEADS * b->size, bytes = (double)b->layer;
  double took[THREADS];
  for (int t = 0; t < THREADS; t++) took[t] = best_of(pool[t], NULL, b, windows);
  printf("%-8s %6d %5d %6d %5d %8.1f %8.1f %7.2f %7.2f\n", names[b->work], b->tokens, b->size,
         HEADS / b->key_heads, 8 * pe_kv_row_bytes(type, 64) / 64, flop / took[0] / 1e9,
         flop / took[1] / 1e9, bytes / took[0] / 1e9, bytes / took[1] / 1e9);
  fflush(stdout);
  close_bench(b);
}

static bool wanted(int argc, char **argv, int i, int value) {
  return argc <= i || !atoi(argv[i]) || atoi(argv[i]) == value;
}

int main(int argc, char **argv) {
  static const int tokens[WORKS][2] = {{512, 2048}, {2048, 16384}, {512, 2048}};
  static const int sizes[] = {64, 128, 256}, groups[] = {1, 2, 4, 8};
  const char *which = argc > 1 ? argv[1] : "all";
  const int windows = argc > 6 ? atoi(argv[6]) : 3;
  pe_pool *pool[THREADS];
  pe_error err;
  for (int t = 0; t < THREADS; t++)
    if (pe_pool_open(t + 1, false, &pool[t], &err)) return 1;
  limits(pool, windows);
  for (work w = 0; w < WORKS; w++)
    for (int i = 0; i < 2 * 3 * 4 * 4; i++) {
      const int n = tokens[w][i / 48], size = sizes[i / 16 % 3], group = groups[i / 4 % 4];
      const int t = i % 4;
      if (strcmp(which, "all") && strcmp(which, names[w])) continue;
      if (!wanted(argc, argv, 2, n) || !wanted(argc, argv, 3, size)) continue;
      if (!wanted(argc, argv, 4, group) || !wanted(argc, argv, 5, types[t].bits)) continue;
      if (argc <= 5 && types[t].bits != 16) continue;
      measure(&(bench){.work = w, .tokens = n, .size = size, .key_heads = HEADS / group},
              types[t].type, pool, windows);
    }
  for (int t = 0; t < THREADS; t++) pe_pool_close(pool[t]);
  return 0;
}
