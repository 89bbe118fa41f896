/* recur.c - layers with a state per sequence (kernels/cpu/fast_recur.c): microseconds of CPU time
 * of one layer, in `exact` and in `fast`, and how many times faster `fast` is.
 *
 *   recur [WINDOWS] [LAYER, from 0]
 *
 * One thread; each figure is the best of WINDOWS runs (default 20), the precisions taking turns.
 * States of 96 MB take turns, so no cache holds them when a run begins, as in a model whose
 * weights pass between two steps. GB/s: of the state of `fast`, read and written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"

enum { INPUTS = 5 };

typedef struct layer {
  const char *name;
  pe_op op;
  pe_op_args args;
  int64_t width[INPUTS], out, state, vec[3]; /* floats */
} layer;

static const layer layers[] = {
    {"delta, 16 heads of 128 x 128 (Qwen3.5 0.8B)",
     PE_OP_DELTA,
     {.delta = {16, 16, 128, 128, 0}},
     {2048, 2048, 2048, 16, 16},
     2048,
     16 * 128 * 128,
     {0}},
    {"delta by channel, 16 heads of 128 x 128",
     PE_OP_DELTA,
     {.delta = {16, 16, 128, 128, 1}},
     {2048, 2048, 2048, 2048, 16},
     2048,
     16 * 128 * 128,
     {0}},
    {"ssm, 48 heads of 64 x 128 (Granite 4 H)",
     PE_OP_SSM,
     {.ssm = {48, 64, 1, 128, 0, 1e9f}},
     {3072, 128, 128, 48},
     3072,
     48 * 64 * 128,
     {48, 48, 48}},
    {"conv, 6144 channels, 4 taps, silu (Qwen3.5 0.8B)",
     PE_OP_CONV,
     {.conv = {6144, 4, PE_MAP_SILU}},
     {6144},
     6144,
     3 * 6144,
     {4 * 6144}},
    {"conv, 1024 channels, 3 taps (LFM2 350M)",
     PE_OP_CONV,
     {.conv = {1024, 3, -1}},
     {1024},
     1024,
     2 * 1024,
     {3 * 1024}},
};

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint32_t noise = 1;
static float *random_floats(int64_t n) { /* on a cache line, as in the runtime */
  float *x = aligned_alloc(64, (size_t)(n + 16) / 16 * 64);
  for (int64_t i = 0; i < n; i++) {
    noise ^= noise << 13, noise ^= noise >> 17, noise ^= noise << 5;
    x[i] = (float)(noise >> 8) * 0x1p-24f * 0.1f;
  }
  return x;
}

static double run(const pe_cpu_op *op, pe_cpu_call *c, pe_segment *s, int32_t slots) {
  pe_cpu_share share = {.tasks = 1};
  share.scratch = aligned_alloc(64, (size_t)(pe_cpu_scratch(op, c) + 16) / 16 * 64);
  s->slot = (s->slot + 1) % slots;
  const double from = seconds();
  op->run(c, &share);
  const double took = seconds() - from;
  free(share.scratch);
  return took;
}

static void measure(const layer *l, int32_t rows, int windows) {
  const int32_t slots = (int32_t)((96 << 20) / (l->state * (int64_t)sizeof(float))) + 1;
  pe_segment segment = {.count = rows};
  const pe_step step = {.rows = rows, .segments = 1, .segment = &segment};
  pe_cpu_call c = {.step = &step, .prim = pe_prim_best(), .rows = rows, .args = l->args};
  for (int i = 0; i < INPUTS; i++)
    c.in[i] = (pe_cpu_view){random_floats(l->width[i] * rows), l->width[i]};
  for (int i = 0; i < 3; i++) c.vec[i] = l->vec[i] ? random_floats(l->vec[i]) : NULL;
  c.out = (pe_cpu_view){random_floats(l->out * rows), l->out};
  c.state = random_floats(slots * l->state), c.state_step = l->state;
  double best[2] = {1e9, 1e9};
  for (int w = 0; w < windows; w++)
    for (int p = PE_EXACT; p <= PE_FAST; p++) {
      const double took = run(pe_cpu_op_of(l->op, (pe_precision)p), &c, &segment, slots);
      if (took < best[p]) best[p] = took;
    }
  printf("%-50s %5d %10.1f %10.1f %7.2f %7.1f\n", l->name, rows, best[0] * 1e6, best[1] * 1e6,
         best[0] / best[1], 2e-9 * (double)l->state * sizeof(float) / best[1]);
  for (int i = 0; i < INPUTS; i++) free(c.in[i].at);
  for (int i = 0; i < 3; i++) free((void *)(uintptr_t)c.vec[i]);
  free(c.out.at), free(c.state);
}

int main(int argc, char **argv) {
  static const int32_t rows[] = {1, 8, 64, 512};
  const int windows = argc > 1 ? atoi(argv[1]) : 20, only = argc > 2 ? atoi(argv[2]) : -1;
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("%-50s %5s %10s %10s %7s %7s\n", "layer", "rows", "exact us", "fast us", "times", "GB/s");
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
      if (only < 0 || (size_t)only == i) measure(&layers[i], rows[r], windows);
  return 0;
}
