/* plain.c - products with weights as they are stored (kernels/cpu/plain.h) that no cache holds:
 * each product takes the next of copies that together exceed 512 MB.
 *
 *   plain [TYPE|all] [SHAPE, e.g. 1024x1024|all] [ROWS|0] [WINDOWS]
 *
 * Columns: GB/s of weights and GFLOP/s on one and two threads; the same of decoding eight weight
 * rows at a time and multiplying them (prim.h: dots), and how many times faster the first is. Each
 * figure is the best of WINDOWS windows of 60 ms, the programs taking turns. The limits in the
 * first line are a prefetched read of memory, and small products that stay in the first-level
 * cache. PERIGEE_ISA chooses the instruction set. With CPU=1 in the environment figures for one
 * thread are in its CPU time, for machines that have other things to do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "runtime/pool.h"

enum { MOST_ROWS = 512, THREADS = 2, UNIT = 8 };
static const int64_t POOL = 512 << 20;

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
  const pe_prim *prim;
  pe_quant_matrix m; /* of the first copy */
  uint64_t bytes;
  int64_t copies;
  uint8_t *stored; /* all copies */
  float *x, *out, *scratch[THREADS];
  int rows;
  int64_t next; /* copy */
} bench;

static pe_quant_matrix matrix(const bench *b) {
  pe_quant_matrix m = b->m;
  m.data += (uint64_t)(b->next % b->copies) * b->bytes;
  if (m.scales) m.scales += (uint64_t)(b->next % b->copies) * b->bytes;
  return m;
}

static void range(int64_t items, int task, int tasks, int64_t *from, int64_t *to) {
  pe_cpu_range(&(pe_cpu_share){.task = task, .tasks = tasks}, items, from, to);
}

static void plain_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  const pe_quant_matrix m = matrix(b);
  int64_t from, to;
  range(m.rows / PE_PLAIN_PANEL, task, tasks, &from, &to);
  const pe_cpu_product p = {.prim = b->prim,
                            .m = &m,
                            .x = {b->x, m.cols},
                            .out = {b->out + from * PE_PLAIN_PANEL, m.rows},
                            .rows = b->rows};
  pe_cpu_product_run(&p, from * PE_PLAIN_PANEL, to * PE_PLAIN_PANEL, b->scratch[task]);
}

static void decoded_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  const pe_quant_matrix m = matrix(b);
  float *w = b->scratch[task];
  int64_t from, to;
  range(m.rows / UNIT, task, tasks, &from, &to);
  for (int64_t j = from * UNIT; j < to * UNIT; j += UNIT) {
    for (int64_t i = 0; i < UNIT; i++) b->prim->decode(&m, j + i, w + i * m.cols);
    b->prim->dots(b->x, m.cols, b->rows, w, m.cols, UNIT, m.cols, b->out + j, m.rows);
  }
}

static volatile uint64_t sink;
/* Four streams, requested 2 KB ahead: what one thread can get from memory. */
static void read_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  typedef uint64_t v8 __attribute__((vector_size(64)));
  int64_t from, to;
  range((int64_t)(b->bytes / 256), task, tasks, &from, &to);
  const uint8_t *p = b->stored + (uint64_t)(b->next % b->copies) * b->bytes + from * 256;
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

/* 4 x 4 sums over 512 columns, which stay in the first-level cache. */
enum { PEAK = 1000 };
static void peak_task(void *ctx, int task, int tasks) {
  bench *b = ctx;
  float sums[16];
  (void)tasks;
  for (int i = 0; i < PEAK; i++)
    b->prim->dots(b->x, 512, 4, b->scratch[task], 512, 4, 512, sums, 4);
}

/* Seconds of one call on `threads` threads: the mean over a window. */
static double window(pe_pool *pool, pe_task_fn *fn, bench *b) {
  const bool own = pe_pool_threads(pool) == 1 && getenv("CPU");
  double start = seconds(own), took;
  int64_t calls = 0;
  do {
    pe_pool_run(pool, fn, b, pe_pool_threads(pool));
    b->next++, calls++;
    took = seconds(own) - start;
  } while (took < 0.06);
  return took / (double)calls;
}

/* ---- weights --------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  pe_quant q;
  pe_dtype dtype;
} types[] = {{"bf16", {.kind = PE_QUANT_NONE}, PE_BF16},
             {"f16", {.kind = PE_QUANT_NONE}, PE_F16},
             {"f32", {.kind = PE_QUANT_NONE}, PE_F32},
             {"mxfp8", {PE_QUANT_MXFP8, 8, 32, PE_U8}, PE_U8}};
static const int shapes[][2] = {{1024, 1024}, {3072, 1024}, {1024, 3072}, {2560, 9728}};

static bool open_bench(bench *b, pe_quant q, pe_dtype dtype, int64_t n, int64_t k) {
  pe_quant_matrix *m = &b->m;
  *m = (pe_quant_matrix){.quant = q, .dtype = dtype, .rows = n, .cols = k, .global = 1};
  m->row_bytes = pe_quant_row_bytes(&q, dtype, k), m->scale_bytes = pe_quant_scale_bytes(&q, k);
  const uint64_t data = (uint64_t)n * m->row_bytes, scales = (uint64_t)n * m->scale_bytes;
  b->bytes = (data + scales + 63) / 64 * 64;
  b->copies = POOL / (int64_t)b->bytes + 1;
  b->stored = aligned_alloc(4096, ((uint64_t)b->copies * b->bytes + 4095) / 4096 * 4096);
  if (!b->stored) return false;
  for (uint64_t i = 0; i < b->bytes; i++) /* numbers near 0.01; scales near 1 */
    b->stored[i] = i < data ? (uint8_t)((uniform() > 0 ? 0x2e : 0x2d) + i % 4) : 127;
  m->data = b->stored, m->scales = scales ? b->stored + data : NULL;
  for (int64_t c = 1; c < b->copies; c++)
    memcpy(b->stored + (uint64_t)c * b->bytes, b->stored, b->bytes);
  b->x = aligned_alloc(64, (size_t)(MOST_ROWS * k) * 4);
  b->out = aligned_alloc(64, (size_t)(MOST_ROWS * n) * 4);
  for (int64_t i = 0; i < MOST_ROWS * k; i++) b->x[i] = uniform();
  const uint64_t room = (uint64_t)(pe_cpu_product_scratch(m, MOST_ROWS) + UNIT * k) * 4;
  for (int t = 0; t < THREADS; t++) {
    b->scratch[t] = aligned_alloc(64, (room + 63) / 64 * 64);
    memset(b->scratch[t], 0, room);
  }
  return true;
}

static void close_bench(bench *b) {
  free(b->stored), free(b->x), free(b->out);
  for (int t = 0; t < THREADS; t++) free(b->scratch[t]);
}

/* ---- tables ---------------------------------------------------------------------------------- */

enum { PLAIN, DECODED, FIGURES };

static void measure(bench *b, pe_pool *const pool[THREADS], int rows, int windows) {
  static pe_task_fn *const fn[FIGURES] = {plain_task, decoded_task};
  double best[FIGURES][THREADS];
  b->rows = rows;
  for (int f = 0; f < FIGURES; f++)
    for (int t = 0; t < THREADS; t++) best[f][t] = 1e9;
  for (int w = 0; w < windows; w++)
    for (int f = 0; f < FIGURES; f++)
      for (int t = 0; t < THREADS; t++) {
        double took = window(pool[t], fn[f], b);
        if (took < best[f][t]) best[f][t] = took;
      }
  const double bytes = (double)b->bytes, flop = 2.0 * rows * (double)(b->m.rows * b->m.cols);
  printf("%6d %7.1f %7.1f %9.1f %9.1f %9.1f %9.1f %7.2f %7.2f\n", rows,
         bytes / best[PLAIN][0] / 1e9, bytes / best[PLAIN][1] / 1e9, flop / best[PLAIN][0] / 1e9,
         flop / best[PLAIN][1] / 1e9, flop / best[DECODED][0] / 1e9, flop / best[DECODED][1] / 1e9,
         best[DECODED][0] / best[PLAIN][0], best[DECODED][1] / best[PLAIN][1]);
  fflush(stdout);
}

static double rate(bench *b, pe_pool *pool, pe_task_fn *fn, double amount, int windows) {
  double best = 1e9;
  for (int w = 0; w < windows; w++) {
    double took = window(pool, fn, b);
    if (took < best) best = took;
  }
  return amount / best / 1e9;
}

int main(int argc, char **argv) {
  static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  const char *type = argc > 1 ? argv[1] : "all", *shape = argc > 2 ? argv[2] : "all";
  const int only = argc > 3 ? atoi(argv[3]) : 0, windows = argc > 4 ? atoi(argv[4]) : 3;
  pe_pool *pool[THREADS];
  pe_error err;
  for (int t = 0; t < THREADS; t++)
    if (pe_pool_open(t + 1, false, &pool[t], &err)) return 1;
  printf("Products with weights as they are stored: %s\n", pe_prim_best()->name);
  for (size_t k = 0; k < sizeof types / sizeof *types; k++)
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
      char name[32];
      snprintf(name, sizeof name, "%dx%d", shapes[s][0], shapes[s][1]);
      if (strcmp(type, "all") && strcmp(type, types[k].name)) continue;
      if (strcmp(shape, "all") && strcmp(shape, name)) continue;
      bench b = {.prim = pe_prim_best()};
      if (!open_bench(&b, types[k].q, types[k].dtype, shapes[s][0], shapes[s][1])) return 1;
      const double macs = 2.0 * 16 * 512 * PEAK;
      printf("\n%s %s (results x columns): a read gets %.1f and %.1f GB/s, multiply-adds %.0f "
             "and %.0f GFLOP/s\n",
             types[k].name, name, rate(&b, pool[0], read_task, (double)b.bytes, windows),
             rate(&b, pool[1], read_task, (double)b.bytes, windows),
             rate(&b, pool[0], peak_task, macs, windows),
             rate(&b, pool[1], peak_task, 2 * macs, windows));
      printf("%6s %15s %19s %19s %15s\n", "rows", "GB/s, 1 and 2", "GFLOP/s, 1 and 2",
             "decoded, 1 and 2", "times faster");
      for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        if (!only || only == rows[r]) measure(&b, pool, rows[r], windows);
      close_bench(&b);
    }
  for (int t = 0; t < THREADS; t++) pe_pool_close(pool[t]);
  return 0;
}
