/* op_tiles.c - products with bf16 weights on the tiles of AMX, of `fast` precision: arranging a
 * value, linear, gated. The arithmetic is in amx16.h.
 *
 * A value is arranged once for all products that read it. */
#include "kernels/cpu/cpu.h"

/* ---- arranging ------------------------------------------------------------------------------- */

static void arrange_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_amx16_rows *x = c->arranged;
  int64_t from, to;
  pe_cpu_range(share, pe_amx16_parts(x->rows, x->cols), &from, &to);
  pe_amx16_best()->arrange(x, c->in[0].at, c->in[0].step, from, to);
}

static pe_cpu_work arrange_work(const pe_cpu_call *c) {
  const pe_amx16_rows *x = c->arranged;
  return (pe_cpu_work){pe_amx16_parts(x->rows, x->cols), (double)x->rows * (double)x->cols * 2};
}

const pe_cpu_op pe_cpu_arrange = {.run = arrange_run, .work = arrange_work};

/* ---- products -------------------------------------------------------------------------------- */

/* Columns from .. to - 1 of this share, in whole panels. */
static void share_results(const pe_cpu_share *share, int64_t out, int64_t *from, int64_t *to) {
  pe_cpu_range(share, (out + PE_PLAIN_PANEL - 1) / PE_PLAIN_PANEL, from, to);
  *from *= PE_PLAIN_PANEL, *to = pe_cpu_least(*to * PE_PLAIN_PANEL, out);
}

/* A byte that is read takes as long as two multiply-adds of other ops, sixteen of tiles. */
static pe_cpu_work product_work(const pe_quant_matrix *w, int64_t rows) {
  const double values = (double)w->rows * (double)w->cols;
  const double read = 4 * values, multiply = (double)rows * values / 8;
  return (pe_cpu_work){(w->rows + PE_PLAIN_PANEL - 1) / PE_PLAIN_PANEL,
                       read > multiply ? read : multiply};
}

static int64_t product_scratch(const pe_cpu_call *c) { return pe_amx16_room(c->mat->cols); }

static void linear_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  pe_amx16_product p = {.w = {c->mat},
                        .bias = {c->vec[0]},
                        .x = c->arranged,
                        .out = c->out.at,
                        .out_step = c->out.step};
  int64_t from, to;
  if (c->args.linear.residual) p.residual = c->in[1].at, p.residual_step = c->in[1].step;
  share_results(share, c->mat->rows, &from, &to);
  if (from < to) pe_amx16_best()->product(&p, from, to, share->scratch);
}

static pe_cpu_work linear_work(const pe_cpu_call *c) { return product_work(c->mat, c->rows); }

const pe_cpu_op pe_cpu_tiles_linear = {
    .run = linear_run, .work = linear_work, .scratch = product_scratch};

/* Activates gate and multiplies it with up. */
static void join_gate(const void *ctx, float *y, const float *up, int64_t n) {
  const pe_cpu_call *c = ctx;
  c->prim->unary((pe_map_op)c->args.gated.activation, y, n, y);
  c->prim->binary(PE_MAP_MUL, y, up, n, y);
}

static void gated_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_amx16_product p = {.w = {c->mat, c->mat2},
                              .bias = {c->vec[0], c->vec[1]},
                              .x = c->arranged,
                              .out = c->out.at,
                              .out_step = c->out.step,
                              .join = join_gate,
                              .ctx = c};
  int64_t from, to;
  share_results(share, c->mat->rows, &from, &to);
  if (from < to) pe_amx16_best()->product(&p, from, to, share->scratch);
}

static pe_cpu_work gated_work(const pe_cpu_call *c) {
  pe_cpu_work w = product_work(c->mat, c->rows);
  w.cost *= 2;
  return w;
}

const pe_cpu_op pe_cpu_tiles_gated = {
    .run = gated_run, .work = gated_work, .scratch = product_scratch};
