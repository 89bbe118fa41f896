/* op_gated.c - the two products of a gated MLP and its activation, a strip of columns at a time, so
 * that the intermediate values stay in the cache. The bits are those of the separate ops. */
#include "kernels/cpu/cpu.h"

enum {
  UNIT = 8,   /* columns per share, a multiple of: COLS of op_linear.c */
  STRIP = 32, /* columns of both products before they are joined: a few decoded strips of weights,
                 and for 100 rows the second product takes 13 KB */
};

/* Columns col .. col + n - 1 of `rows` rows, starting with r0. */
static void gated_strip(const pe_cpu_call *c, int64_t r0, int64_t rows, int64_t col, int64_t n,
                        float *room) {
  float *up = room, *rest = room + rows * STRIP;
  pe_cpu_product p = {.prim = c->prim, .m = c->mat, .bias = c->vec[0], .rows = rows};
  p.x = (pe_cpu_view){pe_cpu_row(&c->in[0], r0), c->in[0].step};
  p.out = (pe_cpu_view){pe_cpu_row(&c->out, r0) + col, c->out.step};
  pe_cpu_product_run(&p, col, col + n, rest);
  p.m = c->mat2, p.bias = c->vec[1], p.out = (pe_cpu_view){up, STRIP};
  pe_cpu_product_run(&p, col, col + n, rest);
  for (int64_t r = 0; r < rows; r++) {
    float *y = pe_cpu_row(&c->out, r0 + r) + col;
    c->prim->unary((pe_map_op)c->args.gated.activation, y, n, y);
    for (int64_t j = 0; j < n; j++) y[j] *= up[r * STRIP + j];
  }
}

static void gated_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_gated_args *a = &c->args.gated;
  const int64_t block = pe_cpu_product_rows(c->rows, a->in);
  int64_t from, to;
  pe_cpu_range(share, (a->out + UNIT - 1) / UNIT, &from, &to);
  from *= UNIT, to = pe_cpu_least(to * UNIT, a->out);
  for (int64_t r = 0; r < c->rows; r += block)
    for (int64_t col = from; col < to; col += STRIP)
      gated_strip(c, r, pe_cpu_least(block, c->rows - r), col, pe_cpu_least(STRIP, to - col),
                  share->scratch);
}

static pe_cpu_work gated_work(const pe_cpu_call *c) {
  const pe_gated_args *a = &c->args.gated;
  return (pe_cpu_work){(a->out + UNIT - 1) / UNIT, 2.0 * c->rows * a->in * a->out};
}

static int64_t gated_scratch(const pe_cpu_call *c) {
  const int64_t in = c->args.gated.in;
  return pe_cpu_product_rows(c->rows, in) * STRIP + pe_cpu_product_scratch(c->rows, in);
}

const pe_cpu_op pe_cpu_gated = {.run = gated_run, .work = gated_work, .scratch = gated_scratch};
