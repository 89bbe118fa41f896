/* cpu.h - the CPU backend: a call of an op with its operands as pointers, and its split into tasks.
 *
 * The device resolves an instruction to a pe_cpu_call for one step; nothing keeps a pointer across
 * steps. A kernel is a function of (call, task, tasks): it does its share of the work, takes no
 * locks and never sees the thread pool. Shares are ranges or strides of items whose results do not
 * depend on each other, so any number of tasks gives the same bits.
 *
 * Each op is three functions in the file of its family (op_*.c): `run` does share `task` of
 * `tasks`, `work` returns the amount of work (in multiply-adds or values moved) and the largest
 * number of shares, `scratch` the floats that a task needs in addition to its operands. */
#ifndef PE_CPU_H
#define PE_CPU_H

#include "kernels/cpu/prim.h"
#include "kernels/kv_row.h"
#include "kernels/op.h"

#include <string.h>

/* ---- calls ----------------------------------------------------------------------------------- */

/* Rows and scratch that start on a cache line are fastest; nothing else depends on it. */
typedef struct pe_cpu_view { /* row r starts at at + r * step */
  float *at;
  int64_t step;
} pe_cpu_view;

typedef struct pe_cpu_call {
  const pe_step *step;
  const pe_prim *prim;
  int32_t rows; /* of out */
  pe_cpu_view out, in[PE_OP_VIEWS];
  const float *vec[PE_OP_VECS];
  const pe_quant_matrix *mat, *mat2; /* weights, arrays for experts and heads; mat2: gated ops */
  uint8_t *cache[2];                 /* of this layer: keys, values */
  float *state;                      /* of this layer: slot s starts at state + s * state_step */
  int64_t state_step;
  pe_op_args args;
  float *scratch; /* task t owns scratch + t * scratch_step, pe_cpu_scratch floats */
  int64_t scratch_step;
} pe_cpu_call;

void pe_cpu_run(pe_op op, const pe_cpu_call *c, int task, int tasks);
/* The number of tasks, 1 .. most, that this call is worth splitting into. */
int pe_cpu_tasks(pe_op op, const pe_cpu_call *c, int most);
/* Floats of scratch that one task of this call needs. */
int64_t pe_cpu_scratch(pe_op op, const pe_cpu_call *c);

/* ---- ops ------------------------------------------------------------------------------------- */

typedef struct pe_cpu_work {
  int64_t items; /* the largest useful number of tasks */
  double cost;
} pe_cpu_work;

typedef struct pe_cpu_op {
  void (*run)(const pe_cpu_call *c, int task, int tasks);
  pe_cpu_work (*work)(const pe_cpu_call *c);
  int64_t (*scratch)(const pe_cpu_call *c); /* NULL: none */
} pe_cpu_op;

extern const pe_cpu_op pe_cpu_patches, pe_cpu_lookup, pe_cpu_merge, pe_cpu_region_attention;
extern const pe_cpu_op pe_cpu_embed, pe_cpu_linear, pe_cpu_gated, pe_cpu_expert_linear,
    pe_cpu_expert_gated, pe_cpu_head_linear, pe_cpu_norm, pe_cpu_map, pe_cpu_rope_table,
    pe_cpu_rope, pe_cpu_store, pe_cpu_attention, pe_cpu_route, pe_cpu_expert_sum, pe_cpu_conv,
    pe_cpu_delta, pe_cpu_ssm, pe_cpu_concat, pe_cpu_slice, pe_cpu_output, pe_cpu_deepstack;

/* ---- shared by the ops ----------------------------------------------------------------------- */

/* The items *from .. *to - 1 belong to this task. */
static inline void pe_cpu_share(int64_t items, int task, int tasks, int64_t *from, int64_t *to) {
  int64_t each = items / tasks, rest = items % tasks;
  *from = each * task + (task < rest ? task : rest);
  *to = *from + each + (task < rest);
}

static inline float *pe_cpu_row(const pe_cpu_view *v, int64_t row) { return v->at + row * v->step; }
static inline float *pe_cpu_scratch_of(const pe_cpu_call *c, int task) {
  return c->scratch + task * c->scratch_step;
}
/* The plane of a row's feature; NULL: the row is a token. */
static inline const float *pe_cpu_feature(const pe_step *s, int64_t row, int32_t plane) {
  if (!s->features || s->feature[row] < 0) return NULL;
  return s->features + ((int64_t)s->feature[row] * s->feature_planes + plane) * s->feature_width;
}
static inline int64_t pe_cpu_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* out[r][j - from] = x[r] . row j of m + bias[j] + residual[r][j - from], for from <= j < to, added
 * in this order. out may be the residual. Needs pe_cpu_product_scratch(rows, in) floats. */
typedef struct pe_cpu_product {
  const pe_prim *prim;
  const pe_quant_matrix *m;
  const float *bias;            /* or NULL */
  pe_cpu_view x, out, residual; /* residual.at: or NULL */
  int64_t rows;
} pe_cpu_product;
void pe_cpu_product_run(const pe_cpu_product *p, int64_t from, int64_t to, float *scratch);
int64_t pe_cpu_product_scratch(int64_t rows, int64_t in);
int64_t pe_cpu_product_rows(int64_t rows, int64_t in); /* rows that share one pass over m */

/* Rotates one head; see pe_rope_args. y may be x. */
void pe_cpu_rotate(const pe_rope_args *a, const float *table, const float *x, float *y);

/* Rows of the KV cache, adjacent. A decoded row takes pe_kv_row_values floats. */
void pe_cpu_kv_encode(const pe_prim *prim, pe_kv_type type, const float *x, int64_t width,
                      uint8_t *out);
void pe_cpu_kv_decode(const pe_prim *prim, pe_kv_type type, const uint8_t *data, int64_t rows,
                      int64_t width, float *out);

#endif
