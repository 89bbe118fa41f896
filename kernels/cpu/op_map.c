/* op_map.c - chains of elementwise operations, a block of columns at a time; see pe_map_args. */
#include "kernels/cpu/cpu.h"

enum { BLOCK = 256 }; /* all registers and constants together are 20 KB: the first cache */

typedef struct registers {
  const float *at[PE_MAP_REGISTERS]; /* the block of each register: in `room` or in an input */
  float room[PE_MAP_REGISTERS][BLOCK];
  float value[PE_MAP_STEPS][BLOCK]; /* the constants that are used */
} registers;

static void fill_constant(const pe_map_args *a, int32_t operand, registers *regs) {
  int32_t k = pe_map_constant_index(operand);
  for (int i = 0; i < BLOCK; i++) regs->value[k][i] = a->value[k];
}

static void fill_constants(const pe_map_args *a, registers *regs) {
  for (int s = 0; s < a->steps; s++) {
    const pe_map_step *step = &a->step[s];
    if (pe_map_is_constant(step->a)) fill_constant(a, step->a, regs);
    if (!pe_map_is_unary(step->op) && pe_map_is_constant(step->b)) fill_constant(a, step->b, regs);
  }
}

/* Columns from .. from + n - 1 of input i of a row. */
static void load_input(const pe_cpu_call *c, int i, int64_t row, int64_t from, int64_t n,
                       registers *regs) {
  const pe_map_args *a = &c->args.map;
  const float *x = a->input[i].fixed ? c->vec[i] : pe_cpu_row(&c->in[i], row);
  const int64_t width = a->input[i].width, repeat = a->input[i].repeat > 1 ? a->input[i].repeat : 1;
  float *room = regs->room[i];
  regs->at[i] = room;
  if (repeat == 1 && width >= a->width) {
    regs->at[i] = x + from;
    return;
  }
  int64_t at = from / repeat % width, within = from % repeat;
  for (int64_t j = 0; j < n; j++) {
    room[j] = x[at];
    if (++within == repeat) {
      within = 0;
      if (++at == width) at = 0;
    }
  }
}

static const float *operand(const registers *regs, int32_t r) {
  return pe_map_is_constant(r) ? regs->value[pe_map_constant_index(r)] : regs->at[r];
}

static void map_block(const pe_cpu_call *c, int64_t row, int64_t from, int64_t n, registers *regs) {
  const pe_map_args *a = &c->args.map;
  for (int i = 0; i < a->inputs; i++) load_input(c, i, row, from, n, regs);
  for (int s = 0; s < a->steps; s++) {
    const pe_map_step *step = &a->step[s];
    const float *x = operand(regs, step->a);
    float *y = regs->room[step->to];
    if (pe_map_is_unary(step->op))
      c->prim->unary((pe_map_op)step->op, x, n, y);
    else
      c->prim->binary((pe_map_op)step->op, x, operand(regs, step->b), n, y);
    regs->at[step->to] = y;
  }
  memmove(pe_cpu_row(&c->out, row) + from, regs->at[a->result], (size_t)n * sizeof(float));
}

static int64_t blocks_of(const pe_map_args *a) { return (a->width + BLOCK - 1) / BLOCK; }

static void map_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_map_args *a = &c->args.map;
  const int64_t blocks = blocks_of(a);
  registers regs;
  int64_t from, to;
  fill_constants(a, &regs);
  pe_cpu_range(share, c->rows * blocks, &from, &to);
  for (int64_t i = from; i < to; i++) {
    int64_t at = i % blocks * BLOCK;
    map_block(c, i / blocks, at, pe_cpu_least(BLOCK, a->width - at), &regs);
  }
}

static pe_cpu_work map_work(const pe_cpu_call *c) {
  const pe_map_args *a = &c->args.map;
  return (pe_cpu_work){c->rows * blocks_of(a), (double)c->rows * a->width * (a->steps + 1)};
}

const pe_cpu_op pe_cpu_map = {.run = map_run, .work = map_work};
