/* op_gated.c - the two products of a gated MLP and its activation, a strip of columns at a time, so
 * that the intermediate values stay in the cache. The bits are those of the separate ops. */
#include "kernels/cpu/cpu.h"

enum {
  STRIP = 32, /* columns of both products before they are joined: a few decoded strips of weights,
                 and for 100 rows the second product takes 13 KB */
  PLAIN_STRIP = 128 /* of weights as they are stored: four streams of 64 KB and more */
};

static int64_t strip_of(const pe_cpu_call *c) {
  return pe_plain_supported(c->mat) ? PLAIN_STRIP : STRIP;
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Rows that share one pass over both matrices. */
static int64_t block_of(const pe_cpu_call *c) {
  return pe_cpu_least(pe_cpu_product_rows(c->mat, c->rows), pe_cpu_product_rows(c->mat2, c->rows));
}

/* Columns col .. col + n - 1 of `rows` rows, starting with r0. */
static void gated_strip(const pe_cpu_call *c, pe_cpu_product *p, int64_t r0, int64_t col, int64_t n,
                        float *up, float *rest) {
  const int64_t strip = strip_of(c);
  p->m = c->mat, p->bias = c->vec[0];
  p->out = (pe_cpu_view){pe_cpu_row(&c->out, r0) + col, c->out.step};
  pe_cpu_product_run(p, col, col + n, rest);
  p->m = c->mat2, p->bias = c->vec[1], p->out = (pe_cpu_view){up, strip};
  pe_cpu_product_run(p, col, col + n, rest);
  for (int64_t r = 0; r < p->rows; r++) {
    float *y = pe_cpu_row(&c->out, r0 + r) + col;
    c->prim->unary((pe_map_op)c->args.gated.activation, y, n, y);
    for (int64_t j = 0; j < n; j++) y[j] *= up[r * strip + j];
  }
}

static void gated_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const int64_t block = block_of(c), strip = strip_of(c), out = c->args.gated.out;
  const int64_t unit = pe_cpu_product_unit(c->mat, c->rows);
  float *up = share->scratch, *rest = up + block * strip;
  int64_t from, to;
  pe_cpu_range(share, (out + unit - 1) / unit, &from, &to);
  from *= unit, to = pe_cpu_least(to * unit, out);
  for (int64_t r = 0; r < c->rows && from < to; r += block) {
    pe_cpu_product p = {.prim = c->prim, .m = c->mat, .rows = pe_cpu_least(block, c->rows - r)};
    p.x = (pe_cpu_view){pe_cpu_row(&c->in[0], r), c->in[0].step};
    p.fast = c->fast;
    p.arranged = pe_plain_supported(c->mat) && c->mat->quant.kind == c->mat2->quant.kind &&
                 c->mat->dtype == c->mat2->dtype;
    if (p.arranged) pe_cpu_product_arrange(&p, rest);
    for (int64_t col = from; col < to; col += strip)
      gated_strip(c, &p, r, col, pe_cpu_least(strip, to - col), up, rest);
  }
}

static pe_cpu_work gated_work(const pe_cpu_call *c) {
  const pe_gated_args *a = &c->args.gated;
  const int64_t unit = pe_cpu_product_unit(c->mat, c->rows);
  return (pe_cpu_work){(a->out + unit - 1) / unit, 2.0 * c->rows * a->in * a->out};
}

static int64_t gated_scratch(const pe_cpu_call *c) {
  return block_of(c) * strip_of(c) +
         most(pe_cpu_product_scratch(c->mat, c->rows), pe_cpu_product_scratch(c->mat2, c->rows));
}

const pe_cpu_op pe_cpu_gated = {.run = gated_run, .work = gated_work, .scratch = gated_scratch};
