/* op_route.c - choosing experts, and the weighted sum of their results. */
#include "kernels/cpu/cpu.h"

#include <math.h>

/* ---- route ----------------------------------------------------------------------------------- */

/* The numbers of the best n of `count` scores, best first, ties to the lowest number, NaN last.
 * They are distinct for any scores. */
static void take_best(float *score, int32_t count, int32_t n, int32_t *best, bool *taken) {
  memset(taken, 0, (size_t)count * sizeof *taken);
  for (int32_t k = 0; k < n; k++) {
    int32_t found = -1;
    for (int32_t i = 0; i < count; i++)
      if (!taken[i] &&
          (found < 0 || score[i] > score[found] || (isnan(score[found]) && !isnan(score[i]))))
        found = i;
    taken[found] = true;
    best[k] = found;
  }
}

static float group_score(const float *score, int32_t n, bool best_only) {
  float first = -INFINITY, second = -INFINITY;
  for (int32_t i = 0; i < n; i++)
    if (score[i] > first)
      second = first, first = score[i];
    else if (score[i] > second)
      second = score[i];
  return best_only || n < 2 ? first : first + second;
}

/* Sets the scores of experts outside the best groups to -infinity. */
static void drop_groups(const pe_route_args *a, float *choice, float *room, bool *taken) {
  const int32_t each = a->experts / a->groups;
  int32_t *kept = (int32_t *)(void *)(room + a->groups);
  for (int32_t g = 0; g < a->groups; g++)
    room[g] = group_score(choice + (int64_t)g * each, each, a->group_max);
  take_best(room, a->groups, (int32_t)pe_cpu_least(a->groups_kept, a->groups), kept, taken);
  for (int32_t g = 0; g < a->groups; g++)
    for (int32_t i = 0; !taken[g] && i < each; i++) choice[(int64_t)g * each + i] = -INFINITY;
}

static void softmax(const pe_prim *prim, float *x, int64_t n) {
  float sum = prim->exp_sum(x, prim->max(x, n), n);
  for (int64_t i = 0; i < n; i++) x[i] /= sum;
}

static void route_row(const pe_cpu_call *c, int64_t row, float *room) {
  const pe_route_args *a = &c->args.route;
  const int64_t n = a->experts;
  float *score = room, *choice = room + n;
  bool *taken = (bool *)(void *)(room + 2 * n);
  int32_t *number = (int32_t *)(void *)pe_cpu_row(&c->out, row);
  float *weight = pe_cpu_row(&c->out, row) + a->chosen, sum = a->eps;
  memcpy(score, pe_cpu_row(&c->in[0], row), (size_t)n * sizeof *score);
  if (a->kind == PE_ROUTE_SIGMOID)
    c->prim->unary(PE_MAP_SIGMOID, score, n, score);
  else if (a->kind != PE_ROUTE_TOPK)
    softmax(c->prim, score, n);
  memcpy(choice, score, (size_t)n * sizeof *score);
  if (c->vec[0] && (a->kind == PE_ROUTE_SIGMOID || a->kind == PE_ROUTE_SOFTMAX_BIASED))
    for (int64_t i = 0; i < n; i++) choice[i] += c->vec[0][i];
  if (a->groups > 1) drop_groups(a, choice, room + 3 * n, taken);
  take_best(choice, a->experts, a->chosen, number, taken);
  for (int32_t k = 0; k < a->chosen; k++) weight[k] = score[number[k]];
  if (a->kind == PE_ROUTE_TOPK) softmax(c->prim, weight, a->chosen);
  for (int32_t k = 0; k < a->chosen; k++) sum += weight[k];
  for (int32_t k = 0; k < a->chosen; k++) {
    if (a->normalize) weight[k] /= sum;
    weight[k] *= a->scale;
    if (c->vec[1]) weight[k] *= c->vec[1][number[k]];
  }
}

static void route_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t r = from; r < to; r++) route_row(c, r, share->scratch);
}

static pe_cpu_work route_work(const pe_cpu_call *c) {
  const pe_route_args *a = &c->args.route;
  return (pe_cpu_work){c->rows, (double)c->rows * a->experts * (a->chosen + 8)};
}

static int64_t route_scratch(const pe_cpu_call *c) {
  return 3 * (int64_t)c->args.route.experts + 2 * (int64_t)c->args.route.groups;
}

const pe_cpu_op pe_cpu_route = {.run = route_run, .work = route_work, .scratch = route_scratch};

/* ---- expert_sum ------------------------------------------------------------------------------ */

static void sum_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_expert_sum_args *a = &c->args.expert_sum;
  int64_t from, to;
  pe_cpu_range(share, c->rows, &from, &to);
  for (int64_t r = from; r < to; r++) {
    float *out = pe_cpu_row(&c->out, r);
    memset(out, 0, (size_t)a->width * sizeof *out);
    c->prim->mix(pe_cpu_row(&c->in[1], r) + a->chosen, 0, 1, pe_cpu_row(&c->in[0], r), a->width,
                 a->chosen, a->width, out, 0);
  }
}

static pe_cpu_work sum_work(const pe_cpu_call *c) {
  const pe_expert_sum_args *a = &c->args.expert_sum;
  return (pe_cpu_work){c->rows, (double)c->rows * a->chosen * a->width};
}

const pe_cpu_op pe_cpu_expert_sum = {.run = sum_run, .work = sum_work};
