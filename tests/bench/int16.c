/* int16.c - products of packed weights with 16-bit codes (kernels/cpu/int16.h) on weights that no
 * cache holds: each product takes the next of copies that together exceed 1 GB.
 *
 *   int16 [KIND|all] [SHAPE, e.g. 1024x1024|all] [ROWS|0] [WINDOWS]
 *
 * Each version that this machine runs, and the exact product in float32 on the same weights: GB/s
 * of packed weights and GFLOP/s, by number of threads. Each figure is the best of WINDOWS windows
 * of 60 ms, the versions taking turns. A plain prefetched read gives the limit of memory.
 * VERSIONS="avx512_vnni amx" in the environment chooses versions; with CPU=1 figures for one thread
 * are in its CPU time, for machines that have other things to do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/int16.h"
#include "runtime/machine.h"
#include "runtime/pool.h"

enum { MOST_ROWS = 512, POOLS = 4, MOST_THREADS = 16 };
static const int threads[POOLS] = {1, 2, 8, MOST_THREADS};
static const int64_t POOL = 1100 << 20;

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

/* ---- the work of a window -------------------------------------------------------------------- */

typedef struct bench {
  const pe_int16 *isa;
  const pe_prim *prim;
  pe_quant_matrix m; /* of the first copy */
  pe_pack pack;
  uint64_t stored_bytes, packed_bytes;
  int64_t copies;
  uint8_t *stored, *packed; /* all copies */
  float *x, *out;
  void *codes, *scratch[MOST_THREADS];
  int rows;
  pe_int16_rows q;
  int64_t next; /* copy */
} bench;

static void share(int64_t items, int task, int tasks, int64_t *from, int64_t *to) {
  const pe_cpu_share s = {.task = task, .tasks = tasks};
  pe_cpu_range(&s, items, from, to);
}

static void packed_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  pe_pack w = b->pack;
  int64_t from, to;
  w.data = b->packed + (uint64_t)(b->next % b->copies) * b->packed_bytes;
  share(pe_pack_panels(&w), task, tasks, &from, &to);
  pe_int16_product p = {.w = &w, .x = &b->q, .out = b->out, .out_step = w.rows};
  b->isa->product(&p, from * 16, to * 16 < w.rows ? to * 16 : w.rows, b->scratch[task]);
}

static void exact_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  pe_quant_matrix m = b->m;
  int64_t from, to;
  const uint8_t *at = b->stored + (uint64_t)(b->next % b->copies) * b->stored_bytes;
  m.scales = at + (b->m.scales - b->stored), m.biases = at + (b->m.biases - b->stored);
  m.data = at + (b->m.data - b->stored);
  share(m.rows / 8, task, tasks, &from, &to);
  pe_cpu_product p = {.prim = b->prim,
                      .m = &m,
                      .x = {b->x, m.cols},
                      .out = {b->out + from * 8, m.rows},
                      .rows = b->rows};
  pe_cpu_product_run(&p, from * 8, to * 8, b->scratch[task]);
}

static void quantize_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  int64_t from, to;
  share(b->rows, task, tasks, &from, &to);
  b->isa->quantize(&b->q, b->x, b->m.cols, pe_int16_whole(&b->q, (int32_t)from, (int32_t)to));
}

static void fill_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  pe_pack w = b->pack;
  pe_quant_matrix m = b->m;
  int64_t from, to;
  const uint8_t *at = b->stored + (uint64_t)(b->next % b->copies) * b->stored_bytes;
  m.scales = at + (b->m.scales - b->stored), m.biases = at + (b->m.biases - b->stored);
  m.data = at + (b->m.data - b->stored);
  w.data = b->packed + (uint64_t)(b->next % b->copies) * b->packed_bytes;
  share(pe_pack_panels(&w), task, tasks, &from, &to);
  pe_pack_fill(&w, &m, from, to);
}

static volatile uint64_t sink;
/* Four streams, requested 2 KB ahead: what one thread can get from memory. */
static void read_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  typedef uint64_t v8 __attribute__((vector_size(64)));
  int64_t from, to;
  share((int64_t)(b->packed_bytes / 256), task, tasks, &from, &to);
  const uint8_t *p = b->packed + (uint64_t)(b->next % b->copies) * b->packed_bytes + from * 256;
  const int64_t part = (to - from) * 64;
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

/* Seconds of one call: the best of the batches of 2 ms in a window of 60 ms. Longer ones would show
 * what else the machine does. */
static double window(pe_pool *pool, pe_task_fn *fn, bench *b) {
  const bool own = pe_pool_threads(pool) == 1 && getenv("CPU");
  const double end = seconds(own) + 0.06;
  double best = 1e9, start;
  do {
    double took;
    int64_t calls = 0;
    start = seconds(own);
    do {
      pe_pool_run(pool, fn, b, pe_pool_threads(pool));
      b->next++, calls++;
      took = seconds(own) - start;
    } while (took < 0.002);
    if (took / (double)calls < best) best = took / (double)calls;
  } while (start < end);
  return best;
}

/* ---- weights --------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  pe_quant q;
} kinds[] = {{"affine", {PE_QUANT_AFFINE, 4, 64, PE_BF16}},
             {"Q4_0", {.kind = PE_QUANT_Q4_0}},
             {"Q4_K", {.kind = PE_QUANT_Q4_K}},
             {"Q6_K", {.kind = PE_QUANT_Q6_K}},
             {"Q8_0", {.kind = PE_QUANT_Q8_0}},
             {"mxfp4", {PE_QUANT_MXFP4, 4, 32, PE_U8}}};
static const int shapes[][2] = {{1024, 1024}, {3072, 1024}, {1024, 3072}, {2560, 9728}};

static bool open_bench(bench *b, pe_quant q, int64_t n, int64_t k) {
  pe_quant_matrix *m = &b->m;
  *m = (pe_quant_matrix){.quant = q, .rows = n, .cols = k, .global = 1};
  m->row_bytes = pe_quant_row_bytes(&q, PE_U8, k), m->scale_bytes = pe_quant_scale_bytes(&q, k);
  uint64_t data = (uint64_t)n * m->row_bytes, scales = (uint64_t)n * m->scale_bytes;
  b->stored_bytes = (data + 2 * scales + 63) / 64 * 64;
  pe_pack_describe(m, &b->pack);
  b->packed_bytes = pe_pack_bytes(m);
  b->copies = POOL / (int64_t)b->packed_bytes + 1;
  b->stored = aligned_alloc(4096, ((uint64_t)b->copies * b->stored_bytes + 4095) / 4096 * 4096);
  b->packed = aligned_alloc(4096, ((uint64_t)b->copies * b->packed_bytes + 4095) / 4096 * 4096);
  if (!b->stored || !b->packed) return false;
  for (uint64_t i = 0; i < b->stored_bytes; i++) /* small exponents in all scales */
    b->stored[i] = (uint8_t)((uniform() > 0 ? 0x2e : 0x2d) + i % 4);
  m->data = b->stored, m->scales = b->stored + data, m->biases = m->scales + scales;
  for (int64_t c = 1; c < b->copies; c++)
    memcpy(b->stored + (uint64_t)c * b->stored_bytes, b->stored, b->stored_bytes);
  memset(b->packed, 0, (uint64_t)b->copies * b->packed_bytes);
  b->x = malloc((size_t)(MOST_ROWS * k) * 4), b->out = malloc((size_t)(MOST_ROWS * n) * 4);
  for (int64_t i = 0; i < MOST_ROWS * k; i++) b->x[i] = uniform();
  b->codes = aligned_alloc(64, pe_int16_bytes(MOST_ROWS, k, 16));
  uint64_t room = pe_int16_scratch(&b->pack, MOST_ROWS),
           exact = (uint64_t)pe_cpu_product_scratch(m, MOST_ROWS) * 4;
  for (int t = 0; t < MOST_THREADS; t++)
    b->scratch[t] = aligned_alloc(64, ((room > exact ? room : exact) + 63) / 64 * 64);
  return true;
}

static void close_bench(bench *b) {
  free(b->stored), free(b->packed), free(b->x), free(b->out), free(b->codes);
  for (int t = 0; t < MOST_THREADS; t++) free(b->scratch[t]);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static const char *const names[] = {"exact", "avx2", "avx512",  "avx512_vnni",
                                    "amx",   "neon", "dotprod", "i8mm"};
enum { NAMES = sizeof names / sizeof *names };

/* A name is wanted if it is one of the words of VERSIONS, or if that is not set. */
static bool wanted(const char *name) {
  const char *at = getenv("VERSIONS");
  const size_t n = strlen(name);
  if (!at) return true;
  for (at += strspn(at, " "); *at; at += strspn(at, " ")) {
    const size_t word = strcspn(at, " ");
    if (word == n && !memcmp(at, name, n)) return true;
    at += word;
  }
  return false;
}

/* NULL: does not run here, or is not wanted. Of "exact": any. */
static const pe_int16 *version(int i) {
  if (!wanted(names[i])) return NULL;
  return i ? pe_int16_named(names[i]) : &pe_int16_scalar;
}

static void measure(bench *b, pe_pool *const pool[POOLS], int rows, int windows) {
  double best[NAMES][POOLS], codes[NAMES];
  const double bytes = (double)b->packed_bytes, flop = 2.0 * rows * (double)(b->m.rows * b->m.cols);
  b->rows = rows;
  for (int v = 0; v < NAMES; v++) {
    codes[v] = 1e9;
    for (int t = 0; t < POOLS; t++) best[v][t] = 1e9;
  }
  for (int w = 0; w < windows; w++)
    for (int v = 0; v < NAMES; v++) {
      if (!version(v)) continue;
      b->isa = version(v);
      pe_int16_place(b->isa, rows, b->m.cols, b->pack.act, b->codes, &b->q);
      double took = v ? window(pool[0], quantize_task, b) : 0;
      if (took < codes[v]) codes[v] = took;
      for (int t = 0; t < POOLS && pool[t]; t++) {
        took = window(pool[t], v ? packed_task : exact_task, b);
        if (took < best[v][t]) best[v][t] = took;
      }
    }
  for (int v = 0; v < NAMES; v++) {
    if (!version(v)) continue;
    printf("%6d %-12s", rows, names[v]);
    for (int t = 0; t < POOLS && pool[t]; t++) printf(" %7.1f", bytes / best[v][t] / 1e9);
    for (int t = 0; t < POOLS && pool[t]; t++) printf(" %9.1f", flop / best[v][t] / 1e9);
    printf(" %9.1f\n", codes[v] * 1e6);
  }
  fflush(stdout);
}

static void print_rate(bench *b, pe_pool *const pool[POOLS], pe_task_fn *fn, const char *what,
                       uint64_t bytes, int windows) {
  printf("%s, GB/s:", what);
  for (int t = 0; t < POOLS && pool[t]; t++) {
    double best = 1e9;
    for (int w = 0; w < windows; w++) {
      double took = window(pool[t], fn, b);
      if (took < best) best = took;
    }
    printf(" %.1f", (double)bytes / best / 1e9);
  }
  printf("\n");
}

static void print_head(pe_pool *const pool[POOLS]) {
  printf("%6s %-12s", "rows", "version");
  for (int t = 0; t < POOLS && pool[t]; t++) printf(" %2d GB/s", threads[t]);
  for (int t = 0; t < POOLS && pool[t]; t++) printf(" %2d GFLOPs", threads[t]);
  printf(" %9s\n", "codes us");
}

int main(int argc, char **argv) {
  static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  const char *kind = argc > 1 ? argv[1] : "all", *shape = argc > 2 ? argv[2] : "all";
  const int only = argc > 3 ? atoi(argv[3]) : 0, windows = argc > 4 ? atoi(argv[4]) : 3;
  pe_pool *pool[POOLS] = {NULL};
  pe_error err;
  for (int t = 0; t < POOLS && (!t || threads[t] <= pe_machine_cores()); t++)
    if (pe_pool_open(threads[t], false, &pool[t], &err)) return 1;
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
      char name[32];
      snprintf(name, sizeof name, "%dx%d", shapes[s][0], shapes[s][1]);
      if (strcmp(kind, "all") && strcmp(kind, kinds[k].name)) continue;
      if (strcmp(shape, "all") && strcmp(shape, name)) continue;
      bench b = {.prim = pe_prim_best()};
      if (!open_bench(&b, kinds[k].q, shapes[s][0], shapes[s][1])) return 1;
      printf("\n%s %s (results x columns)\n", kinds[k].name, name);
      print_rate(&b, pool, fill_task, "packing", b.stored_bytes, windows);
      b.next = 0;
      for (int64_t c = 0; c < b.copies; c++, b.next++) fill_task(&b, 0, 1);
      print_rate(&b, pool, read_task, "reading", b.packed_bytes, windows);
      print_head(pool);
      for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        if (!only || only == rows[r]) measure(&b, pool, rows[r], windows);
      close_bench(&b);
    }
  for (int t = 0; t < POOLS; t++)
    if (pool[t]) pe_pool_close(pool[t]);
  return 0;
}
