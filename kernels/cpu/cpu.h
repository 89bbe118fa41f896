/* cpu.h - what the files of the CPU back end share: an entry of its table, and how work is cut into tasks.
 *
 * Each op is three functions in the file of its family: `run` does share `task` of `tasks`, `work` says how
 * much there is to do (in multiply-adds or values moved) and in how many pieces it can be cut at most,
 * `scratch` how many floats a task needs beside its views. Shares are ranges or strides of items whose
 * results do not depend on each other, so any number of tasks gives the same bits. */
#ifndef PE_CPU_H
#define PE_CPU_H

#include "kernels/op.h"

#include <string.h>

typedef struct pe_cpu_work {
  int64_t items; /* the most tasks there can be */
  double cost;
} pe_cpu_work;

typedef struct pe_cpu_op {
  void (*run)(const pe_cpu_call *c, int task, int tasks);
  pe_cpu_work (*work)(const pe_cpu_call *c);
  int64_t (*scratch)(const pe_cpu_call *c); /* NULL: none */
} pe_cpu_op;

extern const pe_cpu_op pe_cpu_embed, pe_cpu_linear, pe_cpu_gated, pe_cpu_expert_linear,
    pe_cpu_expert_gated, pe_cpu_head_linear, pe_cpu_norm, pe_cpu_map, pe_cpu_rope_table,
    pe_cpu_rope, pe_cpu_store, pe_cpu_attention, pe_cpu_route, pe_cpu_expert_sum, pe_cpu_conv,
    pe_cpu_delta, pe_cpu_ssm, pe_cpu_concat, pe_cpu_slice, pe_cpu_output;

/* The items from *from to before *to are this task's. */
static inline void pe_cpu_share(int64_t items, int task, int tasks, int64_t *from, int64_t *to) {
  int64_t each = items / tasks, rest = items % tasks;
  *from = each * task + (task < rest ? task : rest);
  *to = *from + each + (task < rest);
}

static inline float *pe_cpu_row(const pe_cpu_view *v, int64_t row) { return v->at + row * v->step; }
static inline float *pe_cpu_scratch_of(const pe_cpu_call *c, int task) {
  return c->scratch + task * c->scratch_step;
}
static inline int64_t pe_cpu_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* out[r][j - from] = x[r] . row j of m, for from <= j < to; then plus bias[j], then plus residual[r][j -
 * from]. out may be the residual. Uses pe_cpu_product_scratch(rows, in) floats. */
typedef struct pe_cpu_product {
  const pe_prim *prim;
  const pe_quant_matrix *m;
  const float *bias;            /* or NULL */
  pe_cpu_view x, out, residual; /* residual.at: or NULL */
  int64_t rows;
} pe_cpu_product;
void pe_cpu_product_run(const pe_cpu_product *p, int64_t from, int64_t to, float *scratch);
int64_t pe_cpu_product_scratch(int64_t rows, int64_t in);
int64_t pe_cpu_product_rows(int64_t rows, int64_t in); /* how many rows it goes over at a time */

/* Rotates the first 2*half values from `skip` on of one head; see pe_rope_args. y may be x. */
void pe_cpu_rotate(const pe_rope_args *a, const float *table, const float *x, float *y);

/* Rows of a cache, one behind the other. A decoded row takes pe_cpu_kv_floats(type, width) floats: groups are decoded whole. */
void pe_cpu_kv_encode(const pe_prim *prim, pe_kv_type type, const float *x, int64_t width,
                      uint8_t *out);
void pe_cpu_kv_decode(const pe_prim *prim, pe_kv_type type, const uint8_t *data, int64_t rows,
                      int64_t width, float *out);
int64_t pe_cpu_kv_floats(pe_kv_type type, int64_t width);

#endif
