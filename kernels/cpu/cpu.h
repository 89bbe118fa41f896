/* cpu.h - the CPU backend: a call of an op with its operands as pointers, and its split into tasks.
 *
 * The device resolves an instruction to a pe_cpu_call when its memory moves; a step changes only
 * the number of rows. A kernel is a function of a call and a share: it does its share of the work,
 * takes no locks and never sees the thread pool. Shares are ranges or strides of items whose
 * results do not depend on each other, so any number of tasks gives the same bits.
 *
 * Each op is three functions in the file of its family (op_*.c): `run` does a share of the work,
 * `work` returns the amount of work (in multiply-adds or values moved) and the largest number of
 * shares, `scratch` the floats that a task needs in addition to its operands. Some have a second op
 * (`then`), which runs on the same call when all tasks of the first are done; `shared` is the
 * memory between the two. Ops whose time goes into reading weights say how many bytes they read
 * (`reads`): a piece of weights must be long for memory to deliver it at full speed. */
#ifndef PE_CPU_H
#define PE_CPU_H

#include "kernels/cpu/amx16.h"
#include "kernels/cpu/int16.h"
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

typedef struct pe_cpu_call pe_cpu_call;
struct pe_cpu_call {
  const pe_step *step;
  const pe_prim *prim;
  bool fast;    /* the precision */
  int32_t rows; /* of out */
  pe_cpu_view out, in[PE_OP_VIEWS];
  const float *vec[PE_OP_VECS];
  const pe_quant_matrix *mat, *mat2; /* weights, arrays for experts and heads; mat2: gated ops */
  const pe_pack *pack, *pack2;       /* the same, packed */
  const pe_int16 *int16;             /* of ops with packed weights */
  const pe_int16_rows *rounded[2];   /* the input for pack and pack2; of `round`: the result */
  const pe_amx16_rows *arranged;     /* the input for mat and mat2; of `arrange`: the result */
  bool rounds;                       /* `rounded` is not filled in: every thread rounds in[0] */
  const pe_int16_rows *result;       /* its result as codes, and not in out; NULL: in out */
  const pe_cpu_call *norm;           /* computes in[0] where that is rounded; NULL: it is there */
  uint8_t *cache[2];                 /* of this layer in block 0: keys, values */
  int64_t cache_step;                /* bytes from one block to the next */
  float *state;                      /* of this layer: slot s starts at state + s * state_step */
  int64_t state_step;
  pe_op_args args;
  float *shared; /* pe_cpu_shared floats for all tasks */
};

/* Task `task` of `tasks`. By pe_cpu_range, each of the first `large` ones takes PE_CPU_LARGE times
 * the work of a later one; ops that share their work otherwise have tasks of one size. */
enum { PE_CPU_LARGE = 4 };
typedef struct pe_cpu_share {
  int task, tasks, large;
  float *scratch; /* pe_cpu_scratch floats that no other thread uses meanwhile */
  bool again;     /* scratch is as a task has left it that has rounded the same values */
  /* The task after it that reads packed weights, probably, of this call or of a later one; `then`
   * NULL: unknown */
  const pe_cpu_call *then;
  int then_task, then_tasks, then_large;
} pe_cpu_share;

/* ---- ops ------------------------------------------------------------------------------------- */

enum { PE_CPU_US = 32768 }; /* multiply-adds of a core in about a microsecond */
typedef struct pe_cpu_work {
  int64_t items; /* the largest useful number of tasks */
  double cost;   /* in multiply-adds */
} pe_cpu_work;

typedef struct pe_cpu_op {
  void (*run)(const pe_cpu_call *c, const pe_cpu_share *share);
  pe_cpu_work (*work)(const pe_cpu_call *c);
  double (*reads)(const pe_cpu_call *c);    /* NULL, or 0: it computes longer than it reads */
  int64_t (*scratch)(const pe_cpu_call *c); /* NULL: none */
  int64_t (*shared)(const pe_cpu_call *c);  /* NULL: none */
  const struct pe_cpu_op *then;             /* NULL: nothing */
} pe_cpu_op;

/* The tables of ops: in this precision, and of products with packed weights. */
const pe_cpu_op *pe_cpu_op_of(pe_op op, pe_precision precision);
const pe_cpu_op *pe_cpu_packed_op_of(pe_op op);
/* The number of tasks that this call is worth splitting into, for so many threads; 0: no work.
 * *large: how many of them are large, 0 if all are equal. */
int pe_cpu_tasks(const pe_cpu_op *op, const pe_cpu_call *c, int threads, int *large);
/* The most rows that every thread may round for itself before products with this pack. */
int32_t pe_cpu_rounds_most(const pe_pack *w, int threads);
/* Floats of scratch that one task of this call needs, and of memory that all of them share. */
int64_t pe_cpu_scratch(const pe_cpu_op *op, const pe_cpu_call *c);
int64_t pe_cpu_shared(const pe_cpu_op *op, const pe_cpu_call *c);

extern const pe_cpu_op pe_cpu_patches, pe_cpu_lookup, pe_cpu_merge, pe_cpu_region_attention;
extern const pe_cpu_op pe_cpu_embed, pe_cpu_linear, pe_cpu_gated, pe_cpu_expert, pe_cpu_head_linear,
    pe_cpu_norm, pe_cpu_map, pe_cpu_rope_table, pe_cpu_rope, pe_cpu_store, pe_cpu_attention,
    pe_cpu_route, pe_cpu_expert_sum, pe_cpu_conv, pe_cpu_delta, pe_cpu_ssm, pe_cpu_concat,
    pe_cpu_slice, pe_cpu_output, pe_cpu_deepstack;
extern const pe_cpu_op pe_cpu_fast_attention, pe_cpu_fast_conv, pe_cpu_fast_delta, pe_cpu_fast_ssm,
    pe_cpu_fast_region_attention;
extern const pe_cpu_op pe_cpu_round, pe_cpu_packed_linear, pe_cpu_packed_gated,
    pe_cpu_packed_expert;
extern const pe_cpu_op pe_cpu_arrange, pe_cpu_tiles_linear, pe_cpu_tiles_gated;

/* ---- shared by the ops ----------------------------------------------------------------------- */

static inline int64_t pe_cpu_least(int64_t a, int64_t b) { return a < b ? a : b; }
/* Of `items` items, *from .. *to - 1 belong to this share. Task t, t + large, t + 2 * large and so
 * on, which a thread takes one after the other if it can, are neighbours: they read the same
 * activations.
 *
 *   tasks   | 0 (large)     | 2 | 4 | 6 | 8 | 1 (large)     | 3 | 5 | 7 | 9 |     of two threads */
static inline void pe_cpu_range(const pe_cpu_share *s, int64_t items, int64_t *from, int64_t *to) {
  if (s->large) {
    const int64_t part = s->task % s->large, piece = s->task / s->large;
    const int64_t each = PE_CPU_LARGE + s->tasks / s->large - 1, all = each * s->large;
    const int64_t first = part * each + (piece ? PE_CPU_LARGE + piece - 1 : 0);
    *from = items * first / all;
    *to = items * (first + (piece ? 1 : PE_CPU_LARGE)) / all;
    return;
  }
  int64_t each = items / s->tasks, rest = items % s->tasks;
  *from = each * s->task + (s->task < rest ? s->task : rest);
  *to = *from + each + (s->task < rest);
}

/* Does this share take the item? Items go to tasks forwards and backwards in turn: where later ones
 * take longer, a task that has taken a short one takes a long one next. Ops that go through the
 * same items in the same order take each of them on the same core, where its data still is. */
static inline bool pe_cpu_takes(const pe_cpu_share *s, int64_t item) {
  const int64_t at = item % s->tasks;
  return (item / s->tasks % 2 ? s->tasks - 1 - at : at) == s->task;
}

static inline float *pe_cpu_row(const pe_cpu_view *v, int64_t row) { return v->at + row * v->step; }
/* The plane of a row's feature; NULL: the row is a token. */
static inline const float *pe_cpu_feature(const pe_step *s, int64_t row, int32_t plane) {
  if (!s->features || s->feature[row] < 0) return NULL;
  return s->features + ((int64_t)s->feature[row] * s->feature_planes + plane) * s->feature_width;
}

/* out[r][j - from] = x[r] . row j of m + bias[j] + residual[r][j - from], for from <= j < to, added
 * in this order. out may be the residual. Needs pe_cpu_product_scratch floats. */
typedef struct pe_cpu_product {
  const pe_prim *prim;
  const pe_quant_matrix *m;
  const float *bias;            /* or NULL */
  pe_cpu_view x, out, residual; /* residual.at: or NULL */
  int64_t rows;
  bool fast;     /* may use another arithmetic (amx16.h) */
  bool arranged; /* x is in scratch, by pe_cpu_product_arrange */
} pe_cpu_product;
void pe_cpu_product_run(const pe_cpu_product *p, int64_t from, int64_t to, float *scratch);
int64_t pe_cpu_product_scratch(const pe_quant_matrix *m, int64_t rows);
/* Rows that share one pass over m. */
int64_t pe_cpu_product_rows(const pe_quant_matrix *m, int64_t rows);
/* Columns of m that a task takes a multiple of. */
int64_t pe_cpu_product_unit(const pe_quant_matrix *m, int64_t rows);
/* For several runs with the same x and weights of one type, of at most pe_cpu_product_rows rows. */
void pe_cpu_product_arrange(const pe_cpu_product *p, float *scratch);
/* The product with a transposed matrix: out[r] = bias + the sum over i of x[r][i] * row i, in order
 * of i. Needs pe_cpu_transposed_scratch floats; out: its width. */
void pe_cpu_product_transposed(const pe_cpu_product *p, float *scratch);
int64_t pe_cpu_transposed_scratch(int64_t out);

/* One group of a norm. w, b: its weights and biases, or NULL. y may be x. */
void pe_cpu_normalize(const pe_prim *prim, const pe_norm_args *a, const float *x, const float *w,
                      const float *b, float *y);
/* A row of the result of a norm. */
void pe_cpu_norm_row(const pe_cpu_call *c, int64_t row, float *y);
/* Rotates one head, and normalizes it first; see pe_rope_args. w: weights of the norm, or NULL. y
 * may be x. */
void pe_cpu_head(const pe_prim *prim, const pe_rope_args *a, const float *w, const float *table,
                 const float *x, float *y);
/* The rotation alone. */
void pe_cpu_rotate(const pe_rope_args *a, const float *table, const float *x, float *y);

/* ---- the KV cache ---------------------------------------------------------------------------- */

/* One head of one layer in the KV cache of a segment. */
typedef struct pe_cpu_kv {
  const pe_cpu_call *call;
  const pe_cache_args *args;
  const int32_t *table;
  int64_t head;
} pe_cpu_kv;
enum { PE_CPU_KEYS, PE_CPU_VALUES };

static inline pe_cpu_kv pe_cpu_kv_of(const pe_cpu_call *c, const pe_cache_args *a,
                                     const pe_segment *segment) {
  return (pe_cpu_kv){c, a, c->step->tables + c->step->table_at[segment->table + a->group], 0};
}
/* The head in the block of token t; which: PE_CPU_KEYS or PE_CPU_VALUES. */
uint8_t *pe_cpu_kv_block(const pe_cpu_kv *kv, int which, int64_t t);
/* Up to `most` rows from token t on, within a block, as float32 lines *step apart: in place if they
 * are stored so, else decoded to room. Returns the number of rows. */
enum { PE_CPU_KV_ROWS = 32 }; /* of 128 values are 16 KB as floats: they stay in the first cache */
int64_t pe_cpu_kv_rows(const pe_cpu_kv *kv, int which, int64_t t, int64_t most, float *room,
                       const float **lines, int64_t *step);
int64_t pe_cpu_kv_room(const pe_cache_args *a); /* floats of `room` */

/* Rows of the KV cache, adjacent. A decoded row takes pe_kv_row_values floats. */
void pe_cpu_kv_encode(const pe_prim *prim, pe_kv_type type, const float *x, int64_t width,
                      uint8_t *out);
void pe_cpu_kv_decode(const pe_prim *prim, pe_kv_type type, const uint8_t *data, int64_t rows,
                      int64_t width, float *out);

#endif
