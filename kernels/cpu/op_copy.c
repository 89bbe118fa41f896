/* op_copy.c - concat, slice, output and deepstack. Values are copied as bytes, so integers pass
 * unchanged. */
#include "kernels/cpu/cpu.h"

static int32_t head_width(const pe_concat_args *a) {
  int32_t width = 0;
  for (int i = 0; i < a->inputs; i++) width += a->width[i];
  return width;
}

static void concat_row(const pe_cpu_call *c, int64_t r) {
  const pe_concat_args *a = &c->args.concat;
  float *out = pe_cpu_row(&c->out, r);
  for (int h = 0; h < a->heads; h++)
    for (int i = 0; i < a->inputs; out += a->width[i], i++)
      memcpy(out, pe_cpu_row(&c->in[i], r) + (a->shared[i] ? 0 : (int64_t)h * a->width[i]),
             (size_t)a->width[i] * sizeof *out);
}

static void concat_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t r = from; r < to; r++) concat_row(c, r);
}

static pe_cpu_work concat_work(const pe_cpu_call *c) {
  return (pe_cpu_work){c->rows,
                       (double)c->rows * c->args.concat.heads * head_width(&c->args.concat)};
}

const pe_cpu_op pe_cpu_concat = {.run = concat_run, .work = concat_work};

static void output_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t r = from; r < to; r++)
    memcpy(pe_cpu_row(&c->out, r), pe_cpu_row(&c->in[0], c->step->output[r]),
           (size_t)c->args.output.width * sizeof(float));
}

static pe_cpu_work output_work(const pe_cpu_call *c) {
  return (pe_cpu_work){c->rows, (double)c->rows * c->args.output.width};
}

const pe_cpu_op pe_cpu_output = {.run = output_run, .work = output_work};

static void slice_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_slice_args *a = &c->args.slice;
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t r = from; r < to; r++) {
    const float *in = pe_cpu_row(&c->in[0], r) + a->from;
    float *out = pe_cpu_row(&c->out, r);
    for (int h = 0; h < a->heads; h++, in += a->dim, out += a->count)
      memcpy(out, in, (size_t)a->count * sizeof *out);
  }
}

static pe_cpu_work slice_work(const pe_cpu_call *c) {
  return (pe_cpu_work){c->rows, (double)c->rows * c->args.slice.heads * c->args.slice.count};
}

const pe_cpu_op pe_cpu_slice = {.run = slice_run, .work = slice_work};

static void deepstack_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_deepstack_args *a = &c->args.deepstack;
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t r = from; r < to; r++) {
    const float *in = pe_cpu_row(&c->in[0], r), *feature = pe_cpu_feature(c->step, r, a->plane);
    float *out = pe_cpu_row(&c->out, r);
    if (!feature)
      memcpy(out, in, (size_t)a->width * sizeof *out);
    else
      for (int64_t i = 0; i < a->width; i++) out[i] = in[i] + feature[i];
  }
}

static pe_cpu_work deepstack_work(const pe_cpu_call *c) {
  return (pe_cpu_work){c->rows, (double)c->rows * c->args.deepstack.width};
}

const pe_cpu_op pe_cpu_deepstack = {.run = deepstack_run, .work = deepstack_work};
