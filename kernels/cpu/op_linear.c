/* op_linear.c - products with weights: embed, linear, expert_linear, expert_gated, head_linear.
 *
 * Weights are decoded a few rows at a time into scratch and used for a block of activation rows
 * that stays in the second-level cache; the model is never expanded. */
#include "kernels/cpu/cpu.h"

/* A strip of COLS decoded weight rows is used for a block of BLOCK_FLOATS activations, 1 MB.
 * Measured on a core with 1 MB of second-level cache, 4096 x 1024 in 4 bits, 512 rows (57 GFLOP/s):
 * strips of 4 rows lose 12 %, since activations are read twice as often, and strips of 16 gain 7 %
 * but halve the number of shares; blocks of 1 << 20 no longer fit and lose 14 %, 1 << 16 gains 8 %.
 * One row alone is bound by decoding: 12 GFLOP/s with strips of 8 and more, 10 with 4. */
enum { COLS = 8, BLOCK_FLOATS = 1 << 18 };

/* ---- the common product ---------------------------------------------------------------------- */

int64_t pe_cpu_product_rows(int64_t rows, int64_t in) {
  int64_t fit = BLOCK_FLOATS / (in > 0 ? in : 1);
  return pe_cpu_least(rows, fit < 16 ? 16 : fit);
}

int64_t pe_cpu_product_scratch(int64_t rows, int64_t in) {
  return COLS * in + COLS * pe_cpu_product_rows(rows, in);
}

/* Weight rows from .. from + n - 1 as floats, *step apart; in place if they are float32. */
static const float *weight_rows(const pe_prim *prim, const pe_quant_matrix *m, int64_t from,
                                int64_t n, float *room, int64_t *step) {
  if (m->quant.kind == PE_QUANT_NONE && m->dtype == PE_F32 && m->row_bytes % sizeof(float) == 0) {
    *step = (int64_t)(m->row_bytes / sizeof(float));
    return (const float *)(const void *)(m->data + (uint64_t)from * m->row_bytes);
  }
  for (int64_t j = 0; j < n; j++) prim->decode(m, from + j, room + j * m->cols);
  *step = m->cols;
  return room;
}

void pe_cpu_product_run(const pe_cpu_product *p, int64_t from, int64_t to, float *scratch) {
  const int64_t in = p->m->cols, block = pe_cpu_product_rows(p->rows, in);
  float *weights = scratch, *sums = scratch + COLS * in;
  for (int64_t r0 = 0; r0 < p->rows; r0 += block) {
    int64_t rows = pe_cpu_least(block, p->rows - r0);
    for (int64_t col = from; col < to; col += COLS) {
      int64_t cols = pe_cpu_least(COLS, to - col), step;
      const float *w = weight_rows(p->prim, p->m, col, cols, weights, &step);
      p->prim->dots(pe_cpu_row(&p->x, r0), p->x.step, (int)rows, w, step, (int)cols, in, sums,
                    COLS);
      for (int64_t r = 0; r < rows; r++) {
        float *s = sums + r * COLS, *out = pe_cpu_row(&p->out, r0 + r) + (col - from);
        if (p->bias)
          for (int64_t j = 0; j < cols; j++) s[j] += p->bias[col + j];
        if (p->residual.at) {
          const float *more = pe_cpu_row(&p->residual, r0 + r) + (col - from);
          for (int64_t j = 0; j < cols; j++) s[j] += more[j];
        }
        memcpy(out, s, (size_t)cols * sizeof *out);
      }
    }
  }
}

/* The product with a transposed matrix: out[r] = bias + the sum over i of x[r][i] * row i, in order
 * of i. Needs COLS lines of scratch. */
static void product_transposed(const pe_cpu_product *p, float *scratch) {
  const int64_t in = p->m->rows, out = p->m->cols;
  for (int64_t r = 0; r < p->rows; r++) {
    if (p->bias)
      memcpy(pe_cpu_row(&p->out, r), p->bias, (size_t)out * sizeof(float));
    else
      memset(pe_cpu_row(&p->out, r), 0, (size_t)out * sizeof(float));
  }
  for (int64_t i = 0; i < in; i += COLS) {
    int64_t n = pe_cpu_least(COLS, in - i), step;
    const float *w = weight_rows(p->prim, p->m, i, n, scratch, &step);
    p->prim->mix(p->x.at + i, p->x.step, (int)p->rows, w, step, (int)n, out, p->out.at,
                 p->out.step);
  }
}

/* Columns are shared in units of COLS, so that no task decodes part of a strip. */
static void share_columns(int64_t out, int task, int tasks, int64_t *from, int64_t *to) {
  pe_cpu_share((out + COLS - 1) / COLS, task, tasks, from, to);
  *from *= COLS, *to = pe_cpu_least(*to * COLS, out);
}

/* ---- embed ----------------------------------------------------------------------------------- */

static void embed_run(const pe_cpu_call *c, int task, int tasks) {
  const pe_embed_args *a = &c->args.embed;
  int64_t from, to;
  pe_cpu_share(c->rows, task, tasks, &from, &to);
  for (int64_t r = from; r < to; r++) {
    float *out = pe_cpu_row(&c->out, r);
    const float *feature = pe_cpu_feature(c->step, r, 0);
    if (feature && !a->instead) {
      memcpy(out, feature, (size_t)c->mat->cols * sizeof *out);
      continue;
    }
    c->prim->decode(c->mat, feature ? a->instead - 1 : c->step->token[r], out);
    for (int64_t i = 0; i < c->mat->cols; i++) out[i] *= a->scale;
  }
}

static pe_cpu_work embed_work(const pe_cpu_call *c) {
  return (pe_cpu_work){c->rows, (double)c->rows * (double)c->mat->cols};
}

const pe_cpu_op pe_cpu_embed = {embed_run, embed_work, NULL};

/* ---- linear ---------------------------------------------------------------------------------- */

static void linear_run(const pe_cpu_call *c, int task, int tasks) {
  const pe_linear_args *a = &c->args.linear;
  pe_cpu_product p = {
      .prim = c->prim, .m = c->mat, .bias = c->vec[0], .x = c->in[0], .rows = c->rows};
  int64_t from, to;
  share_columns(a->out, task, tasks, &from, &to);
  p.out = (pe_cpu_view){c->out.at + from, c->out.step};
  if (a->residual) p.residual = (pe_cpu_view){c->in[1].at + from, c->in[1].step};
  pe_cpu_product_run(&p, from, to, pe_cpu_scratch_of(c, task));
}

static pe_cpu_work linear_work(const pe_cpu_call *c) {
  const pe_linear_args *a = &c->args.linear;
  return (pe_cpu_work){(a->out + COLS - 1) / COLS, (double)c->rows * a->in * a->out};
}

static int64_t linear_scratch(const pe_cpu_call *c) {
  return pe_cpu_product_scratch(c->rows, c->args.linear.in);
}

const pe_cpu_op pe_cpu_linear = {linear_run, linear_work, linear_scratch};

/* ---- expert_linear and expert_gated ---------------------------------------------------------- */

/* Rows of one expert that are gathered and computed together. Each batch decodes the expert's
 * weights once; 64 rows of 4096 values are 1 MB, the block of a product (BLOCK_FLOATS). */
enum { GATHERED = 64 };

/* Sorts the pairs (row, rank) by expert, by counting: those of expert e are pairs[start[e]] ..
 * pairs[start[e + 1] - 1]. */
static void sort_pairs(const pe_cpu_call *c, int32_t *start, int32_t *pairs) {
  const pe_expert_args *a = &c->args.expert;
  memset(start, 0, ((size_t)a->experts + 2) * sizeof *start);
  for (int32_t r = 0; r < c->rows; r++) {
    const int32_t *chosen = (const int32_t *)(const void *)pe_cpu_row(&c->in[1], r);
    for (int32_t k = 0; k < a->chosen; k++) start[chosen[k] + 2]++;
  }
  for (int32_t e = 2; e <= a->experts; e++) start[e] += start[e - 1];
  /* start[e + 1] moves from the first pair of e to its end */
  for (int32_t r = 0; r < c->rows; r++) {
    const int32_t *chosen = (const int32_t *)(const void *)pe_cpu_row(&c->in[1], r);
    for (int32_t k = 0; k < a->chosen; k++) pairs[start[chosen[k] + 1]++] = r * a->chosen + k;
  }
}

/* Columns from .. to - 1 of the product of n gathered rows with one matrix of an expert. */
static void expert_product(const pe_cpu_call *c, const pe_quant_matrix *m, const float *bias,
                           const float *x, int64_t n, int64_t from, int64_t to, float *y,
                           float *rest) {
  const pe_expert_args *a = &c->args.expert;
  pe_cpu_product p = {.prim = c->prim,
                      .m = m,
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
  product_transposed(&p, rest);
}

static const float *bias_of(const pe_cpu_call *c, int which, int32_t expert) {
  return c->vec[which] ? c->vec[which] + (int64_t)expert * c->args.expert.out : NULL;
}

/* Columns from .. to - 1 of n pairs of one expert; gated if there is a second matrix. */
static void expert_pairs(const pe_cpu_call *c, int32_t expert, const int32_t *pairs, int64_t n,
                         int64_t from, int64_t to, float *room) {
  const pe_expert_args *a = &c->args.expert;
  const int64_t width = to - from;
  float *x = room, *y = x + (int64_t)GATHERED * a->in, *rest = y + GATHERED * width;
  for (int64_t i = 0; i < n; i++) {
    int32_t row = pairs[i] / a->chosen, rank = pairs[i] % a->chosen;
    memcpy(x + i * a->in, pe_cpu_row(&c->in[0], row) + (a->spread ? (int64_t)rank * a->in : 0),
           (size_t)a->in * sizeof *x);
  }
  expert_product(c, c->mat + expert, bias_of(c, 0, expert), x, n, from, to, y, rest);
  if (c->mat2) {
    float *up = rest;
    expert_product(c, c->mat2 + expert, bias_of(c, 1, expert), x, n, from, to, up,
                   rest + GATHERED * width);
    c->prim->unary((pe_map_op)c->args.expert_gated.activation, y, n * width, y);
    for (int64_t i = 0; i < n * width; i++) y[i] *= up[i];
  }
  for (int64_t i = 0; i < n; i++) {
    int32_t row = pairs[i] / a->chosen, rank = pairs[i] % a->chosen;
    memcpy(pe_cpu_row(&c->out, row) + (int64_t)rank * a->out + from, y + i * width,
           (size_t)width * sizeof *y);
  }
}

/* Work is shared by (batch of pairs of an expert, part of the columns). Every part gathers its rows
 * again, so there are only as many parts as give each task about four items. */
static void expert_run(const pe_cpu_call *c, int task, int tasks) {
  const pe_expert_args *a = &c->args.expert;
  int32_t *start = (int32_t *)(void *)pe_cpu_scratch_of(c, task), *pairs = start + a->experts + 2;
  float *room = (float *)(void *)(pairs + (int64_t)c->rows * a->chosen);
  int64_t batches = 0, units = (a->out + COLS - 1) / COLS, item = 0, from, to;
  sort_pairs(c, start, pairs);
  for (int32_t e = 0; e < a->experts; e++)
    batches += (start[e + 1] - start[e] + GATHERED - 1) / GATHERED;
  const int parts = batches ? (int)pe_cpu_least((4 * tasks + batches - 1) / batches, units) : 1;
  for (int32_t e = 0; e < a->experts; e++)
    for (int64_t i = start[e]; i < start[e + 1]; i += GATHERED)
      for (int part = 0; part < parts; part++) {
        if (item++ % tasks != task) continue;
        share_columns(a->out, part, parts, &from, &to);
        expert_pairs(c, e, pairs + i, pe_cpu_least(GATHERED, start[e + 1] - i), from, to, room);
      }
}

static pe_cpu_work expert_work(const pe_cpu_call *c) {
  const pe_expert_args *a = &c->args.expert;
  int64_t units = (a->out + COLS - 1) / COLS;
  return (pe_cpu_work){c->rows * a->chosen * units,
                       (c->mat2 ? 2.0 : 1.0) * c->rows * a->chosen * a->in * a->out};
}

static int64_t expert_scratch(const pe_cpu_call *c) {
  const pe_expert_args *a = &c->args.expert;
  int64_t product =
      a->transposed ? (int64_t)COLS * a->out : pe_cpu_product_scratch(GATHERED, a->in);
  return a->experts + 2 + (int64_t)c->rows * a->chosen +
         (int64_t)GATHERED * (a->in + (c->mat2 ? 2 : 1) * (a->out + COLS)) + product;
}

const pe_cpu_op pe_cpu_expert_linear = {expert_run, expert_work, expert_scratch};
const pe_cpu_op pe_cpu_expert_gated = {expert_run, expert_work, expert_scratch};

/* ---- head_linear ----------------------------------------------------------------------------- */

static void head_run(const pe_cpu_call *c, int task, int tasks) {
  const pe_head_args *a = &c->args.head;
  float *room = pe_cpu_scratch_of(c, task);
  int64_t from, to;
  pe_cpu_share(a->heads, task, tasks, &from, &to);
  for (int64_t h = from; h < to; h++) {
    pe_cpu_product p = {.prim = c->prim, .m = c->mat + h, .rows = c->rows};
    p.x = (pe_cpu_view){c->in[0].at + h * a->in, c->in[0].step};
    p.out = (pe_cpu_view){c->out.at + h * a->out, c->out.step};
    if (a->transposed)
      product_transposed(&p, room);
    else
      pe_cpu_product_run(&p, 0, a->out, room);
  }
}

static pe_cpu_work head_work(const pe_cpu_call *c) {
  const pe_head_args *a = &c->args.head;
  return (pe_cpu_work){a->heads, (double)c->rows * a->heads * a->in * a->out};
}

static int64_t head_scratch(const pe_cpu_call *c) {
  const pe_head_args *a = &c->args.head;
  return a->transposed ? (int64_t)COLS * a->out : pe_cpu_product_scratch(c->rows, a->in);
}

const pe_cpu_op pe_cpu_head_linear = {head_run, head_work, head_scratch};
