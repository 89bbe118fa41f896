/* kernels.h - shared by the tests of the CPU ops: random numbers, views, matrices, calls. */
#ifndef TEST_KERNELS_H
#define TEST_KERNELS_H

#include "check.h"
#include "guard.h"
#include "kernels/cpu/cpu.h"

static uint64_t random_state = 88172645463325252ull;
static inline uint32_t random32(void) {
  random_state ^= random_state << 13, random_state ^= random_state >> 7,
      random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 16);
}
static inline float uniform(void) { return (float)(random32() >> 8) * 0x1p-23f - 1; }

/* Rows are a little further apart than they are wide; the gaps must stay untouched. */
static inline pe_cpu_view view_new(int64_t rows, int64_t width) {
  const size_t bytes = (size_t)(rows * (width + 3)) * sizeof(float);
  return (pe_cpu_view){memset(guard_new(bytes, sizeof(float)), 0, bytes), width + 3};
}
static inline void view_free(pe_cpu_view *v) { guard_free(v->at); }
static inline void view_fill(pe_cpu_view *v, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < width; i++) v->at[r * v->step + i] = uniform();
}

/* Matrices of any layout with values around 1: random codes, small ordinary scales. */
static inline void matrix_new(pe_quant quant, pe_dtype dtype, int64_t rows, int64_t cols,
                              pe_quant_matrix *m) {
  *m = (pe_quant_matrix){.quant = quant, .dtype = dtype, .rows = rows, .cols = cols, .global = 1};
  m->row_bytes = pe_quant_row_bytes(&quant, dtype, cols),
  m->scale_bytes = pe_quant_scale_bytes(&quant, cols);
  size_t bytes = (size_t)rows * m->row_bytes, scale_bytes = (size_t)rows * m->scale_bytes;
  uint8_t *data = guard_new(bytes + 2 * scale_bytes, 4);
  m->data = data;
  if (quant.kind == PE_QUANT_NONE)
    for (int64_t i = 0; i < rows * cols; i++) {
      float f = uniform();
      uint16_t h = pe_f32_to_bf16(f);
      memcpy(data + (size_t)i * pe_dtype_size(dtype),
             dtype == PE_F32 ? (const void *)&f : (const void *)&h, pe_dtype_size(dtype));
    }
  else
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)random32();
  if (quant.kind == PE_QUANT_Q8_0)
    for (size_t i = 0; i < bytes; i += PE_QUANT_Q8_0_BYTES)
      data[i] = 0, data[i + 1] = 0x20; /* 2^-7 */
  if (scale_bytes) {
    m->scales = data + bytes, m->biases = data + bytes + scale_bytes;
    for (size_t i = 0; i < 2 * scale_bytes; i += 2) {
      uint16_t h = quant.scale_dtype == PE_F16 ? pe_f32_to_f16(uniform() * 0.2f)
                                               : pe_f32_to_bf16(uniform() * 0.2f);
      memcpy(data + bytes + i, &h, 2);
    }
  }
}
static inline void matrix_free(pe_quant_matrix *m) { guard_free((void *)(uintptr_t)m->data); }

/* Scratch of packed products is in cache lines (int16.h); that of others may begin anywhere. */
static inline void run_kernel(const pe_cpu_op *op, pe_cpu_call *c, const pe_prim *prim, int tasks) {
  c->prim = prim;
  c->shared = guard_floats(pe_cpu_shared(op, c));
  for (; op; op = op->then) {
    const size_t bytes = (size_t)pe_cpu_scratch(op, c) * sizeof(float);
    pe_cpu_share share = {.tasks = tasks, .scratch = guard_new(bytes, c->pack ? 64 : 4)};
    for (share.task = tasks - 1; share.task >= 0; share.task--) {
      memset(share.scratch, 0xff, bytes);
      op->run(c, &share);
    }
    guard_free(share.scratch);
  }
  guard_free(c->shared);
}
/* The op again, which rounds its results itself: are they the codes of c->out? */
static inline void check_rounded(const pe_cpu_op *op, const pe_cpu_call *c, const pe_prim *prim,
                                 int tasks, int64_t cols, int32_t act) {
  const pe_int16 *isa = pe_int16_best();
  const size_t bytes = (size_t)pe_int16_bytes(c->rows, cols, act);
  uint8_t *room[2];
  pe_int16_rows x[2];
  for (int i = 0; i < 2; i++) {
    memset(room[i] = guard_new(bytes, 64), 0, bytes);
    pe_int16_place(isa, c->rows, cols, act, room[i], &x[i]);
  }
  pe_cpu_call rounds = *c;
  rounds.out = (pe_cpu_view){0}, rounds.result = &x[0], rounds.int16 = isa;
  run_kernel(op, &rounds, prim, tasks);
  isa->quantize(&x[1], c->out.at, c->out.step, pe_int16_whole(&x[1], 0, c->rows));
  CHECK(!memcmp(room[0], room[1], bytes));
  guard_free(room[0]), guard_free(room[1]);
}

static inline void run_op(pe_op op, pe_cpu_call *c, const pe_prim *prim, int tasks) {
  run_kernel(pe_cpu_op_of(op, PE_EXACT), c, prim, tasks);
}

static inline void check_bits(const char *what, const float *got, const float *want, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp(got + i, want + i, sizeof *got)) {
      check_failures++;
      printf("    %s: value %lld is %a, not %a\n", what, (long long)i, got[i], want[i]);
      return;
    }
}

#endif
