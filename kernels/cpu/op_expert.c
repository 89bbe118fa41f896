/* op_expert.c - products with the weights of experts: expert_linear and expert_gated. */
#include "kernels/cpu/experts.h"

/* Columns per share are a multiple of it. */
static int64_t unit_of(const pe_cpu_call *c) {
  return pe_cpu_product_unit(c->mat, (int64_t)c->rows * c->args.expert.chosen);
}

/* Columns from .. to - 1 of the product of n gathered rows with one matrix of an expert. */
static void expert_product(const pe_cpu_call *c, const pe_quant_matrix *m, const float *bias,
                           const float *x, int64_t n, int64_t from, int64_t to, float *y,
                           float *rest) {
  const pe_expert_args *a = &c->args.expert;
  pe_cpu_product p = {.prim = c->prim,
                      .m = m,
                      .fast = c->fast,
                      .bias = bias,
                      .x = {(float *)x, a->in},
                      .out = {y, to - from},
                      .rows = n};
  if (!a->transposed) {
    pe_cpu_product_run(&p, from, to, rest);
    return;
  }
  pe_quant_matrix columns = *m; /* plain values, so columns can be addressed */
  columns.cols = to - from, columns.data += (uint64_t)from * pe_dtype_size(columns.dtype);
  if (bias) p.bias += from;
  p.m = &columns;
  pe_cpu_product_transposed(&p, rest);
}

/* Gated if there is a second matrix. */
static void expert_pairs(const pe_cpu_call *c, int32_t expert, const int32_t *pairs, int64_t n,
                         int64_t from, int64_t to, float *room) {
  const pe_expert_args *a = &c->args.expert;
  const int64_t width = to - from;
  float *x = room, *y = x + (int64_t)PE_EXPERT_ROWS * a->in, *rest = y + PE_EXPERT_ROWS * width;
  for (int64_t i = 0; i < n; i++)
    memcpy(x + i * a->in, pe_expert_row(c, pairs[i]), (size_t)a->in * sizeof *x);
  expert_product(c, c->mat + expert, pe_expert_bias(c, 0, expert), x, n, from, to, y, rest);
  if (c->mat2) {
    float *up = rest;
    expert_product(c, c->mat2 + expert, pe_expert_bias(c, 1, expert), x, n, from, to, up,
                   rest + PE_EXPERT_ROWS * width);
    pe_expert_gate(c, y, up, n * width);
  }
  pe_expert_scatter(c, pairs, n, y, from, width);
}

static void expert_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  pe_expert_each(c, share, unit_of(c), expert_pairs);
}

static pe_cpu_work expert_work(const pe_cpu_call *c) {
  const pe_expert_args *a = &c->args.expert;
  const int64_t unit = unit_of(c), units = (a->out + unit - 1) / unit;
  return (pe_cpu_work){c->rows * a->chosen * units,
                       (c->mat2 ? 2.0 : 1.0) * c->rows * a->chosen * a->in * a->out};
}

static int64_t expert_scratch(const pe_cpu_call *c) {
  const pe_expert_args *a = &c->args.expert;
  int64_t product = a->transposed ? pe_cpu_transposed_scratch(a->out)
                                  : pe_cpu_product_scratch(c->mat, PE_EXPERT_ROWS);
  if (c->mat2 && !a->transposed) {
    const int64_t second = pe_cpu_product_scratch(c->mat2, PE_EXPERT_ROWS);
    if (second > product) product = second;
  }
  return (int64_t)PE_EXPERT_ROWS * (a->in + (c->mat2 ? 2 : 1) * (a->out + unit_of(c))) + product;
}

static const pe_cpu_op expert_products = {
    .run = expert_run, .work = expert_work, .scratch = expert_scratch};
const pe_cpu_op pe_cpu_expert = {.run = pe_expert_sort,
                                 .work = pe_expert_sort_work,
                                 .shared = pe_expert_shared,
                                 .then = &expert_products};
