/* op_norm.c - norms over groups of a row; see pe_norm_args. */
#include "kernels/cpu/cpu.h"

#include <math.h>

void pe_cpu_normalize(const pe_prim *prim, const pe_norm_args *a, const float *x, const float *w,
                      const float *b, float *y) {
  const int64_t n = a->width;
  if (a->layer) {
    float mean = prim->sum(x, n) / (float)n;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - mean;
    x = y;
  }
  float squares = prim->sum_squares(x, n);
  float by = 1.f / sqrtf((a->l2 ? squares : squares / (float)n) + a->eps);
  prim->rescale(x, by, w, a->offset, n, y);
  if (b)
    for (int64_t i = 0; i < n; i++) y[i] += b[i];
  if (a->scale != 1.f) prim->rescale(y, a->scale, NULL, 0, n, y);
}

/* The group of a row that begins at `at`. */
static void norm_group(const pe_cpu_call *c, int64_t row, int64_t at, float *y) {
  const pe_norm_args *a = &c->args.norm;
  const bool apart = a->weights > a->width; /* one weight per value of the row, not of a group */
  const int64_t w = apart ? at : 0;
  pe_cpu_normalize(c->prim, a, pe_cpu_row(&c->in[0], row) + at, a->weights ? c->vec[0] + w : NULL,
                   a->layer && c->vec[1] ? c->vec[1] + w : NULL, y);
}

void pe_cpu_norm_row(const pe_cpu_call *c, int64_t row, float *y) {
  const pe_norm_args *a = &c->args.norm;
  for (int64_t i = 0; i < a->count; i++) norm_group(c, row, i * a->width, y + i * a->width);
}

static void norm_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_norm_args *a = &c->args.norm;
  int64_t from, to;
  pe_cpu_range(share, (int64_t)c->rows * a->count, &from, &to);
  for (int64_t i = from; i < to; i++) {
    const int64_t row = i / a->count, at = i % a->count * a->width;
    norm_group(c, row, at, pe_cpu_row(&c->out, row) + at);
  }
}

static pe_cpu_work norm_work(const pe_cpu_call *c) {
  const pe_norm_args *a = &c->args.norm;
  int64_t groups = (int64_t)c->rows * a->count;
  return (pe_cpu_work){groups, 2.0 * (double)groups * a->width};
}

const pe_cpu_op pe_cpu_norm = {.run = norm_run, .work = norm_work};
