/* experts.h - the rows of a step by expert, shared by the ops over experts.
 *
 * A first op sorts the pairs (row, rank) of a route by expert, once for all tasks; the second one
 * takes the pairs of an expert in batches of PE_EXPERT_ROWS. The work is shared by (batch, part of
 * the columns). Every part gathers its rows again, so there are only as many parts as give each
 * task about four items. */
#ifndef PE_EXPERTS_H
#define PE_EXPERTS_H

#include "kernels/cpu/cpu.h"

/* A batch reads the weights of its expert once; 64 rows of 4096 values are 1 MB, the block of a
 * product. */
enum { PE_EXPERT_ROWS = 64 };

/* The first op, but for `then`. */
void pe_expert_sort(const pe_cpu_call *c, const pe_cpu_share *share);
pe_cpu_work pe_expert_sort_work(const pe_cpu_call *c);
int64_t pe_expert_shared(const pe_cpu_call *c);

/* Columns from .. to - 1 of n pairs of an expert. */
typedef void pe_expert_fn(const pe_cpu_call *c, int32_t expert, const int32_t *pairs, int64_t n,
                          int64_t from, int64_t to, float *room);
/* Runs this share of the work; parts of columns begin at multiples of `unit`. */
void pe_expert_each(const pe_cpu_call *c, const pe_cpu_share *share, int64_t unit,
                    pe_expert_fn *run);
/* The input of a pair. */
const float *pe_expert_row(const pe_cpu_call *c, int32_t pair);
/* vec[which] of an expert, or NULL. */
const float *pe_expert_bias(const pe_cpu_call *c, int which, int32_t expert);
/* y = activation(y) * up, for expert_gated. */
void pe_expert_gate(const pe_cpu_call *c, float *y, const float *up, int64_t n);
/* Writes lines of `width` results to columns from `from` on of their pairs. */
void pe_expert_scatter(const pe_cpu_call *c, const int32_t *pairs, int64_t n, const float *y,
                       int64_t from, int64_t width);

#endif
