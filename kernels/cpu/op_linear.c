/* op_linear.c - products with weights: embed, linear, head_linear.
 *
 * Plain weights and mxfp8 are used where they are stored (plain.h). Others are decoded a few rows
 * at a time into scratch and used for a block of activation rows that stays in the second-level
 * cache; the model is never expanded. */
#include "kernels/cpu/cpu.h"

/* A strip of COLS decoded weight rows is used for a block of BLOCK_FLOATS activations, 1 MB.
 * Measured on a core with 1 MB of second-level cache, 4096 x 1024 in 4 bits, 512 rows (57 GFLOP/s):
 * strips of 4 rows lose 12 %, since activations are read twice as often, and strips of 16 gain 7 %
 * but halve the number of shares; blocks of 1 << 20 no longer fit and lose 14 %, 1 << 16 gains 8 %.
 * One row alone is bound by decoding: 12 GFLOP/s with strips of 8 and more, 10 with 4. */
enum { COLS = 8, BLOCK_FLOATS = 1 << 18 };

/* ---- the common product ---------------------------------------------------------------------- */

int64_t pe_cpu_product_rows(const pe_quant_matrix *m, int64_t rows) {
  if (pe_plain_supported(m)) return pe_cpu_least(rows, PE_PLAIN_ROWS);
  int64_t fit = BLOCK_FLOATS / (m->cols > 0 ? m->cols : 1);
  return pe_cpu_least(rows, fit < 16 ? 16 : fit);
}

/* The tiles of AMX for these weights in `fast`, or NULL. */
static const pe_plain *tiles_of(const pe_quant_matrix *m) {
  return pe_amx16_takes(m) ? &pe_amx16_best()->plain : NULL;
}

static const pe_plain *plain_version(const pe_cpu_product *p) {
  const pe_plain *tiles = p->fast ? tiles_of(p->m) : NULL;
  return tiles ? tiles : p->prim->plain;
}

int64_t pe_cpu_product_scratch(const pe_quant_matrix *m, int64_t rows) {
  const int64_t block = pe_cpu_product_rows(m, rows);
  if (!pe_plain_supported(m)) return COLS * (m->cols + block);
  const int64_t need = pe_plain_scratch(block, m->cols);
  const int64_t tiles = tiles_of(m) ? pe_amx16_scratch(block, m->cols) : 0;
  return need > tiles ? need : tiles;
}

int64_t pe_cpu_product_unit(const pe_quant_matrix *m, int64_t rows) {
  return pe_plain_supported(m) && (rows > COLS || tiles_of(m)) ? PE_PLAIN_PANEL : COLS;
}

/* Rows r0 .. r0 + rows - 1 of a product with weights as they are stored. A product whose rows are
 * only arranged has no output. */
static pe_plain_product plain_of(const pe_cpu_product *p, int64_t r0, int64_t rows, int64_t from) {
  pe_plain_product o = {.w = p->m, .bias = p->bias, .rows = rows};
  o.x = pe_cpu_row(&p->x, r0), o.x_step = p->x.step;
  if (p->out.at) o.out = pe_cpu_row(&p->out, r0) - from, o.out_step = p->out.step;
  if (p->residual.at)
    o.residual = pe_cpu_row(&p->residual, r0) - from, o.residual_step = p->residual.step;
  return o;
}

void pe_cpu_product_arrange(const pe_cpu_product *p, float *scratch) {
  const pe_plain_product o = plain_of(p, 0, p->rows, 0);
  if (pe_plain_supported(p->m)) plain_version(p)->arrange(&o, scratch);
}

static void plain_run(const pe_cpu_product *p, int64_t from, int64_t to, float *scratch) {
  const int64_t passes = (p->rows + PE_PLAIN_ROWS - 1) / PE_PLAIN_ROWS;
  const pe_plain *plain = plain_version(p);
  for (int64_t i = 0; i < passes; i++) {
    const int64_t r0 = p->rows * i / passes, rows = p->rows * (i + 1) / passes - r0;
    const pe_plain_product o = plain_of(p, r0, rows, from);
    if (!p->arranged) plain->arrange(&o, scratch);
    plain->product(&o, from, to, scratch);
  }
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
  if (pe_plain_supported(p->m)) {
    plain_run(p, from, to, scratch);
    return;
  }
  const int64_t in = p->m->cols, block = pe_cpu_product_rows(p->m, p->rows);
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

int64_t pe_cpu_transposed_scratch(int64_t out) { return COLS * out; }

void pe_cpu_product_transposed(const pe_cpu_product *p, float *scratch) {
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

/* ---- embed ----------------------------------------------------------------------------------- */

static void embed_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_embed_args *a = &c->args.embed;
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
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

const pe_cpu_op pe_cpu_embed = {.run = embed_run, .work = embed_work};

/* ---- linear ---------------------------------------------------------------------------------- */

static void linear_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_linear_args *a = &c->args.linear;
  pe_cpu_product p = {
      .prim = c->prim, .m = c->mat, .bias = c->vec[0], .x = c->in[0], .rows = c->rows};
  p.fast = c->fast;
  const int64_t unit = pe_cpu_product_unit(c->mat, c->rows); /* no task decodes part of a strip */
  int64_t from, to;
  pe_cpu_range(share, (a->out + unit - 1) / unit, &from, &to);
  from *= unit, to = pe_cpu_least(to * unit, a->out);
  p.out = (pe_cpu_view){c->out.at + from, c->out.step};
  if (a->residual) p.residual = (pe_cpu_view){c->in[1].at + from, c->in[1].step};
  pe_cpu_product_run(&p, from, to, share->scratch);
}

static pe_cpu_work linear_work(const pe_cpu_call *c) {
  const pe_linear_args *a = &c->args.linear;
  const int64_t unit = pe_cpu_product_unit(c->mat, c->rows);
  return (pe_cpu_work){(a->out + unit - 1) / unit, (double)c->rows * a->in * a->out};
}

static int64_t linear_scratch(const pe_cpu_call *c) {
  return pe_cpu_product_scratch(c->mat, c->rows);
}

const pe_cpu_op pe_cpu_linear = {.run = linear_run, .work = linear_work, .scratch = linear_scratch};

/* ---- head_linear ----------------------------------------------------------------------------- */

static void head_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_head_args *a = &c->args.head;
  float *room = share->scratch;
  int64_t from, to;
  pe_cpu_range(share, a->heads, &from, &to);
  for (int64_t h = from; h < to; h++) {
    pe_cpu_product p = {.prim = c->prim, .m = c->mat + h, .rows = c->rows, .fast = c->fast};
    p.x = (pe_cpu_view){c->in[0].at + h * a->in, c->in[0].step};
    p.out = (pe_cpu_view){c->out.at + h * a->out, c->out.step};
    if (a->transposed)
      pe_cpu_product_transposed(&p, room);
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
  return a->transposed ? pe_cpu_transposed_scratch(a->out)
                       : pe_cpu_product_scratch(c->mat, c->rows);
}

const pe_cpu_op pe_cpu_head_linear = {.run = head_run, .work = head_work, .scratch = head_scratch};
