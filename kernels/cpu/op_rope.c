/* op_rope.c - rotary positions: the table of a step, and the rotation of heads. */
#include "kernels/cpu/cpu.h"

#include <math.h>

/* ---- the table ------------------------------------------------------------------------------- */

/* The axis of the position that rotation i follows. */
static int axis_of(const pe_rope_table_args *a, int i) {
  const int32_t *s = a->section;
  if (s[0] + s[1] + s[2] == 0) return 0;
  if (a->interleaved_axes) return i % 3 && i < 3 * s[i % 3] ? i % 3 : 0;
  return i < s[0] ? 0 : i < s[0] + s[1] ? 1 : 2;
}

/* The base of a dynamic rope at this length. */
static float grown_base(const pe_rope_table_args *a, int32_t length) {
  double grown = (double)a->factor * length / a->threshold - ((double)a->factor - 1);
  return (float)(a->theta * pow(grown, (double)a->dims / (a->dims - 2)));
}

/* The factor of queries at this position. */
static float grown(const pe_cpu_call *c, int64_t row) {
  const pe_rope_table_args *a = &c->args.rope_table;
  if (!(a->growth > 0)) return 1;
  return 1 + a->growth * logf(1 + (float)(c->step->position[row] / a->every));
}

static void table_row(const pe_cpu_call *c, int64_t row) {
  const pe_rope_table_args *a = &c->args.rope_table;
  const pe_step *step = c->step;
  const int32_t length = step->segment[step->segment_of[row]].rope_length;
  const bool beyond = length > a->threshold;
  const int variant = a->variants > 1 && beyond;
  const float *frequencies = c->vec[0] + (int64_t)variant * a->turns;
  const float scale = (c->vec[1] ? a->scale * c->vec[1][variant] : a->scale) * grown(c, row);
  const float base = a->dynamic && beyond ? grown_base(a, length) : 0;
  float *out = pe_cpu_row(&c->out, row);
  for (int i = 0; i < a->turns; i++) {
    float frequency = base > 0 ? 1.f / powf(base, (float)(2 * i) / (float)a->dims) : frequencies[i];
    float angle = (float)step->position[(int64_t)axis_of(a, i) * step->rows + row] * frequency;
    out[i] = cosf(angle) * scale;
    out[a->turns + i] = sinf(angle) * scale;
  }
}

static void table_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t r = from; r < to; r++) table_row(c, r);
}

static pe_cpu_work table_work(const pe_cpu_call *c) {
  /* a cosine and a sine cost about a hundred multiply-adds */
  return (pe_cpu_work){c->rows, (double)c->rows * c->args.rope_table.turns * 100};
}

const pe_cpu_op pe_cpu_rope_table = {.run = table_run, .work = table_work};

/* ---- the rotation ---------------------------------------------------------------------------- */

void pe_cpu_rotate(const pe_rope_args *a, const float *table, const float *x, float *y) {
  const int half = a->turns, apart = a->pairs ? 1 : half, stride = a->pairs ? 2 : 1;
  const float *cosine = table, *sine = table + half;
  if (y != x) memcpy(y, x, (size_t)a->dim * sizeof *y);
  y += a->skip;
  for (int i = 0; i < half; i++) {
    float *first = y + i * stride, *second = first + apart, u = *first, v = *second;
    *first = u * cosine[i] - v * sine[i];
    *second = v * cosine[i] + u * sine[i];
  }
}

void pe_cpu_head(const pe_prim *prim, const pe_rope_args *a, const float *w, const float *table,
                 const float *x, float *y) {
  if (a->norm.width) {
    pe_cpu_normalize(prim, &a->norm, x, w, NULL, y);
    x = y;
  }
  pe_cpu_rotate(a, table, x, y);
}

static void rope_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_rope_args *a = &c->args.rope;
  int64_t from, to;
  pe_cpu_range(share, (int64_t)c->rows * a->heads, &from, &to);
  for (int64_t i = from; i < to; i++) {
    int64_t row = i / a->heads, at = i % a->heads * a->dim;
    pe_cpu_head(c->prim, a, c->vec[0], pe_cpu_row(&c->in[1], row), pe_cpu_row(&c->in[0], row) + at,
                pe_cpu_row(&c->out, row) + at);
  }
}

static pe_cpu_work rope_work(const pe_cpu_call *c) {
  int64_t heads = (int64_t)c->rows * c->args.rope.heads;
  const double passes = c->args.rope.norm.width ? 4 : 2;
  return (pe_cpu_work){heads, passes * (double)heads * c->args.rope.dim};
}

const pe_cpu_op pe_cpu_rope = {.run = rope_run, .work = rope_work};
