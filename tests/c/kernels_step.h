/* kernels_step.h - a step of seven rows for tests of the CPU ops, and running a call in every
 * way. */
#ifndef PE_TEST_KERNELS_STEP_H
#define PE_TEST_KERNELS_STEP_H

#include "check.h"
#include "kernels.h"

enum { ROWS = 7 };

static int32_t token[ROWS], position[3 * ROWS], segment_of[ROWS], output[ROWS];
static const pe_segment segments[2] = {{.first = 0, .count = 3, .rope_length = 10},
                                       {.first = 3, .count = 4, .rope_length = 50}};
static const pe_step all_rows = {.rows = ROWS,
                                 .segments = 2,
                                 .token = token,
                                 .position = position,
                                 .segment_of = segment_of,
                                 .segment = segments,
                                 .outputs = 4,
                                 .output = output};

static inline void fill_step(void) {
  for (int r = 0; r < ROWS; r++) {
    token[r] = (int32_t)(random32() % 11), segment_of[r] = r >= 3, output[r] = (r * 5 + 2) % ROWS;
    for (int axis = 0; axis < 3; axis++) position[axis * ROWS + r] = r * 13 + axis * 100;
  }
}

/* Runs the call with every instruction set and several numbers of tasks and compares with scalar
 * code in one task; `alone`: also row by row. The result is left in c->out, which is `width` wide
 * and must not be an input. */
static inline void check_every_way(pe_op op, pe_cpu_call *c, int64_t width, bool alone) {
  const int64_t n = c->rows * c->out.step + 1;
  float *want = calloc((size_t)n, sizeof *want), *got = calloc((size_t)n, sizeof *got),
        *result = c->out.at;
  c->out.at = want;
  run_op(op, c, &pe_prim_scalar, 1);
  c->out.at = got;
  for (int tasks = 1; tasks <= 9; tasks += tasks < 3 ? 1 : 3) {
    memset(got, 0, (size_t)n * sizeof *got);
    run_op(op, c, pe_prim_best(), tasks);
    check_bits(pe_op_name(op), got, want, n);
  }
  if (alone) {
    pe_step one = *c->step;
    pe_cpu_call row = *c;
    int32_t at[3];
    row.rows = one.rows = 1, one.position = at, row.step = &one;
    memset(got, 0, (size_t)n * sizeof *got);
    for (int64_t r = 0; r < c->rows; r++) {
      for (int axis = 0; axis < 3; axis++) at[axis] = position[axis * ROWS + r];
      one.token = token + r, one.segment_of = segment_of + r;
      row.out.at = got + r * c->out.step;
      for (int i = 0; i < PE_OP_VIEWS; i++)
        row.in[i].at = c->in[i].at ? c->in[i].at + r * c->in[i].step : NULL;
      run_op(op, &row, pe_prim_best(), 2);
    }
    check_bits("a row alone", got, want, n);
  }
  c->out.at = result;
  for (int64_t r = 0; r < c->rows; r++)
    memcpy(result + r * c->out.step, want + r * c->out.step, (size_t)width * sizeof *want);
  free(want), free(got);
}

static inline pe_cpu_call call_of(int rows, int64_t width) {
  return (pe_cpu_call){.step = &all_rows, .rows = rows, .out = view_new(rows, width)};
}

#endif
