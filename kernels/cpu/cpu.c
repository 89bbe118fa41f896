/* cpu.c - the op table of the CPU backend. */
#include "kernels/cpu/cpu.h"

static const pe_cpu_op *const ops[PE_OP_COUNT] = {
    [PE_OP_EMBED] = &pe_cpu_embed,
    [PE_OP_DEEPSTACK] = &pe_cpu_deepstack,
    [PE_OP_LINEAR] = &pe_cpu_linear,
    [PE_OP_GATED] = &pe_cpu_gated,
    [PE_OP_EXPERT_LINEAR] = &pe_cpu_expert,
    [PE_OP_EXPERT_GATED] = &pe_cpu_expert,
    [PE_OP_HEAD_LINEAR] = &pe_cpu_head_linear,
    [PE_OP_NORM] = &pe_cpu_norm,
    [PE_OP_MAP] = &pe_cpu_map,
    [PE_OP_ROPE_TABLE] = &pe_cpu_rope_table,
    [PE_OP_ROPE] = &pe_cpu_rope,
    [PE_OP_STORE] = &pe_cpu_store,
    [PE_OP_ATTENTION] = &pe_cpu_attention,
    [PE_OP_ROUTE] = &pe_cpu_route,
    [PE_OP_EXPERT_SUM] = &pe_cpu_expert_sum,
    [PE_OP_CONV] = &pe_cpu_conv,
    [PE_OP_DELTA] = &pe_cpu_delta,
    [PE_OP_SSM] = &pe_cpu_ssm,
    [PE_OP_CONCAT] = &pe_cpu_concat,
    [PE_OP_SLICE] = &pe_cpu_slice,
    [PE_OP_OUTPUT] = &pe_cpu_output,
    [PE_OP_PATCHES] = &pe_cpu_patches,
    [PE_OP_LOOKUP] = &pe_cpu_lookup,
    [PE_OP_MERGE] = &pe_cpu_merge,
    [PE_OP_REGION_ATTENTION] = &pe_cpu_region_attention,
};

/* Ops that compute otherwise in `fast`. */
static const pe_cpu_op *const fast_ops[PE_OP_COUNT] = {
    [PE_OP_ATTENTION] = &pe_cpu_fast_attention,
    [PE_OP_CONV] = &pe_cpu_fast_conv,
    [PE_OP_DELTA] = &pe_cpu_fast_delta,
    [PE_OP_SSM] = &pe_cpu_fast_ssm,
    [PE_OP_REGION_ATTENTION] = &pe_cpu_fast_region_attention,
};

static const pe_cpu_op *const packed_ops[PE_OP_COUNT] = {
    [PE_OP_LINEAR] = &pe_cpu_packed_linear,
    [PE_OP_GATED] = &pe_cpu_packed_gated,
    [PE_OP_EXPERT_LINEAR] = &pe_cpu_packed_expert,
    [PE_OP_EXPERT_GATED] = &pe_cpu_packed_expert,
};

const pe_cpu_op *pe_cpu_packed_op_of(pe_op op) { return packed_ops[op]; }

const pe_cpu_op *pe_cpu_op_of(pe_op op, pe_precision precision) {
  return precision == PE_FAST && fast_ops[op] ? fast_ops[op] : ops[op];
}

/* The least cost per task. Handing one out takes about a microsecond; smaller tasks would take
 * longer to hand out than to run. */
static const double LEAST_COST = PE_CPU_US;

enum {
  TASKS = 4, /* per thread: one that starts late costs a quarter of its share at most */
  /* Bytes of weights per task, and of the smallest one. A core that reads 16 KB in a row gets 65 %
   * of what memory gives, 74 KB 80 %, 295 KB 94 %. */
  PIECE = 256 << 10,
  LEAST_PIECE = 16 << 10,
  PIECES = 32, /* per thread: then pieces grow */
  MANY = 4     /* threads: one of them is likely to be slower than the others */
};

typedef struct split {
  int tasks, large;
} split;

/* A large task for each thread, half of its share, and then small ones, of which fast threads take
 * more: if all tasks were as large, they would wait for the slowest core, whose other thread may
 * work for somebody else. With 16 threads, 4 of which were slower by a third, the other 12 waited
 * for 11 of the 29 us of an MLP. */
enum { SMALL = PE_CPU_LARGE };

static bool split_unevenly(const pe_cpu_work *w, int threads, split *s) {
  if (threads < MANY || w->items < (int64_t)SMALL * threads) return false;
  *s = (split){(1 + SMALL) * threads, threads};
  return true;
}

/* A product that reads `bytes` of weights: as many tasks for each thread, because one piece more
 * for some of them would let the others wait for as long as it takes. */
static split split_reading(const pe_cpu_work *w, double bytes, int threads) {
  const double each = bytes / PIECE / threads;
  split s;
  if (each < 2 && bytes >= (double)LEAST_PIECE * (double)w->items && split_unevenly(w, threads, &s))
    return s;
  return (split){threads * (each < 1 ? 1 : each > PIECES ? PIECES : (int)each), 0};
}

int pe_cpu_tasks(const pe_cpu_op *op, const pe_cpu_call *c, int threads, int *large) {
  const pe_cpu_work w = op->work(c);
  const double bytes = op->reads ? op->reads(c) : 0;
  split s = {threads * TASKS, 0};
  if (bytes > 0)
    s = split_reading(&w, bytes, threads);
  else if (op->reads)
    split_unevenly(&w, threads, &s);
  double n = w.cost / LEAST_COST;
  *large = n < s.tasks ? 0 : s.large;
  if (n < 1) n = 1;
  if (n > (double)w.items && !*large) n = (double)w.items;
  return n > s.tasks ? s.tasks : (int)n;
}

int64_t pe_cpu_scratch(const pe_cpu_op *op, const pe_cpu_call *c) {
  return op->scratch ? op->scratch(c) : 0;
}

int64_t pe_cpu_shared(const pe_cpu_op *op, const pe_cpu_call *c) {
  return op->shared ? op->shared(c) : 0;
}
