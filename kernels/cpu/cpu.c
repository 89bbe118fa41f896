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

/* The least cost per task. Handing one out takes about a microsecond, in which a core does about
 * this many multiply-adds; smaller tasks would take longer to hand out than to run. */
static const double LEAST_COST = 32768;

enum {
  TASKS = 4, /* per thread: one that starts late costs a quarter of its share at most */
  /* Bytes of weights per task. A core that reads 16 KB in a row gets 65 % of what memory gives, 74
   * KB 80 %, 295 KB 94 %. */
  PIECE = 256 << 10,
  PIECES = 32 /* per thread: then pieces grow */
};

/* Tasks of a product that reads `bytes` of weights: as many for each thread, because one piece more
 * for some of them would let the others wait for as long as it takes. With a single round of pieces
 * all wait for the slowest core, whose other thread may work for somebody else. If there are many
 * threads, each takes a large piece then, and the fast ones take more of the small ones after it.
 * Measured with 16 threads, 4 of them slower by a third: 22 us instead of 29. */
enum { MANY = 4, SMALL = 2, LEAST_ITEMS = (PE_CPU_LARGE + SMALL) * 2 }; /* per thread, but MANY */

static int pieces_of(const pe_cpu_work *w, double bytes, int threads, int *large) {
  const double each = bytes / PIECE / threads;
  if (each < 2 && threads >= MANY && w->items >= (int64_t)LEAST_ITEMS * threads) {
    *large = threads;
    return (1 + SMALL) * threads;
  }
  return threads * (each < 1 ? 1 : each > PIECES ? PIECES : (int)each);
}

int pe_cpu_tasks(const pe_cpu_op *op, const pe_cpu_call *c, int threads, int *large) {
  const pe_cpu_work w = op->work(c);
  const double bytes = op->reads ? op->reads(c) : 0;
  *large = 0;
  const int most = bytes > 0 ? pieces_of(&w, bytes, threads, large) : threads * TASKS;
  double n = w.cost / LEAST_COST;
  if (n < 1) n = 1;
  if (n > (double)w.items) n = (double)w.items;
  if (n < most) *large = 0;
  return n > most ? most : (int)n;
}

int64_t pe_cpu_scratch(const pe_cpu_op *op, const pe_cpu_call *c) {
  return op->scratch ? op->scratch(c) : 0;
}

int64_t pe_cpu_shared(const pe_cpu_op *op, const pe_cpu_call *c) {
  return op->shared ? op->shared(c) : 0;
}
