/* experts.c - see experts.h. */
#include "kernels/cpu/experts.h"

/* In shared memory: those of expert e are pairs[start[e]] .. pairs[start[e + 1] - 1]. */
static int32_t *start_of(const pe_cpu_call *c) { return (int32_t *)(void *)c->shared; }
static int32_t *pairs_of(const pe_cpu_call *c) { return start_of(c) + c->args.expert.experts + 2; }

/* ---- sorting --------------------------------------------------------------------------------- */

/* By counting. */
void pe_expert_sort(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_expert_args *a = &c->args.expert;
  int32_t *start = start_of(c), *pairs = pairs_of(c);
  if (share->task) return;
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

pe_cpu_work pe_expert_sort_work(const pe_cpu_call *c) {
  return (pe_cpu_work){1, (double)c->rows * c->args.expert.chosen};
}

int64_t pe_expert_shared(const pe_cpu_call *c) {
  return c->args.expert.experts + 2 + (int64_t)c->rows * c->args.expert.chosen;
}

/* ---- sharing the work ------------------------------------------------------------------------ */

void pe_expert_each(const pe_cpu_call *c, const pe_cpu_share *share, int64_t unit,
                    pe_expert_fn *run) {
  const pe_expert_args *a = &c->args.expert;
  const int32_t *start = start_of(c), *pairs = pairs_of(c);
  int64_t batches = 0, units = (a->out + unit - 1) / unit, item = 0, from, to;
  for (int32_t e = 0; e < a->experts; e++)
    batches += (start[e + 1] - start[e] + PE_EXPERT_ROWS - 1) / PE_EXPERT_ROWS;
  /* batches of one row are alike; others are cut into smaller parts, so that tasks come out even */
  const int64_t items = start[a->experts] <= batches ? share->tasks : 4 * share->tasks;
  const int parts = batches ? (int)pe_cpu_least((items + batches - 1) / batches, units) : 1;
  for (int32_t e = 0; e < a->experts; e++)
    for (int64_t i = start[e]; i < start[e + 1]; i += PE_EXPERT_ROWS)
      for (int part = 0; part < parts; part++) {
        if (item++ % share->tasks != share->task) continue;
        pe_cpu_range(&(pe_cpu_share){.task = part, .tasks = parts}, units, &from, &to);
        run(c, e, pairs + i, pe_cpu_least(PE_EXPERT_ROWS, start[e + 1] - i), from * unit,
            pe_cpu_least(to * unit, a->out), share->scratch);
      }
}

/* ---- pairs ----------------------------------------------------------------------------------- */

const float *pe_expert_row(const pe_cpu_call *c, int32_t pair) {
  const pe_expert_args *a = &c->args.expert;
  const float *row = pe_cpu_row(&c->in[0], pair / a->chosen);
  return a->spread ? row + (int64_t)(pair % a->chosen) * a->in : row;
}

const float *pe_expert_bias(const pe_cpu_call *c, int which, int32_t expert) {
  return c->vec[which] ? c->vec[which] + (int64_t)expert * c->args.expert.out : NULL;
}

void pe_expert_gate(const pe_cpu_call *c, float *y, const float *up, int64_t n) {
  c->prim->unary((pe_map_op)c->args.expert_gated.activation, y, n, y);
  for (int64_t i = 0; i < n; i++) y[i] *= up[i];
}

void pe_expert_scatter(const pe_cpu_call *c, const int32_t *pairs, int64_t n, const float *y,
                       int64_t from, int64_t width) {
  const pe_expert_args *a = &c->args.expert;
  for (int64_t i = 0; i < n; i++) {
    const int64_t row = pairs[i] / a->chosen, rank = pairs[i] % a->chosen;
    memcpy(pe_cpu_row(&c->out, row) + rank * a->out + from, y + i * width,
           (size_t)width * sizeof *y);
  }
}
