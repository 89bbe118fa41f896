/* profile.c - see profile.h. */
#include "runtime/device/profile.h"
#include "kernels/cpu/probe.h"
#include "runtime/buffer.h"

#include <stdatomic.h>
#include <string.h>

pe_status pe_profile_open(int32_t threads, int32_t count, pe_profile **out, pe_error *err) {
  pe_profile *p = pe_calloc(1, sizeof *p);
  if (!p) return pe_nomem(err, "profile");
  p->threads = threads, p->count = count;
  p->job = pe_calloc((size_t)count + 1, sizeof *p->job);
  p->time = pe_calloc((size_t)threads * (size_t)count + 1, sizeof *p->time);
  if (!p->job || !p->time) {
    pe_profile_close(p);
    return pe_nomem(err, "profile");
  }
  *out = p;
  return PE_OK;
}

void pe_profile_close(pe_profile *p) {
  if (!p) return;
  pe_free(p->job), pe_free(p->time), pe_free(p);
}

void pe_profile_sum(pe_profile *p) {
  for (int32_t i = 0; i < p->count; i++) {
    pe_profile_time all = {0};
    for (int32_t t = 0; t < p->threads; t++) {
      const pe_profile_time *one = &p->time[(int64_t)t * p->count + i];
      all.busy_ns += one->busy_ns, all.wait_ns += one->wait_ns;
    }
    p->job[i].busy_ns = all.busy_ns, p->job[i].wait_ns = all.wait_ns;
  }
}

void pe_profile_reset(pe_profile *p) {
  p->steps = p->wall_ns = p->waits = 0;
  memset(p->time, 0, (size_t)p->threads * (size_t)p->count * sizeof *p->time);
  for (int32_t i = 0; i < p->count; i++) p->job[i].cost = (pe_cost){0};
}

/* ---- costs ----------------------------------------------------------------------------------- */

static double bytes_of(const pe_quant_matrix *m, const pe_pack *pack) {
  if (pack) return (double)pe_pack_panels(pack) * (double)pack->panel_bytes;
  if (!m) return 0;
  const double scales = (m->scales ? 1 : 0) + (m->biases ? 1 : 0);
  return (double)m->rows * ((double)m->row_bytes + scales * (double)m->scale_bytes);
}

static double row_bytes(const pe_cache_args *a) {
  return a->heads * ((double)pe_kv_row_bytes((pe_kv_type)a->type, a->key) +
                     (double)pe_kv_row_bytes((pe_kv_type)a->type, a->value));
}

/* Keys that the queries of a segment see, each query counted for itself; *tokens: those that any of
 * them sees. */
static double keys_seen(const pe_segment *s, int32_t window, double *tokens) {
  const double last = (double)s->past + s->count; /* keys of the last query */
  double full = window > 0 ? last - window : 0;   /* queries that see a whole window */
  if (full < 0) full = 0;
  if (full > s->count) full = s->count;
  const double rest = s->count - full, most = (double)window + s->count - 1;
  *tokens = full > 0 && most < last ? most : last;
  return full * window + rest * s->past + rest * (rest + 1) / 2;
}

static pe_cost attention_cost(const pe_cpu_call *c) {
  const pe_attention_args *a = &c->args.attention;
  pe_cost cost = {0};
  for (int32_t i = 0; i < c->step->segments; i++) {
    double tokens;
    const double seen = keys_seen(&c->step->segment[i], a->window, &tokens);
    cost.macs += seen * a->heads * (a->cache.key + a->value);
    cost.cache += tokens * row_bytes(&a->cache);
  }
  return cost;
}

static pe_cost region_cost(const pe_cpu_call *c) {
  const pe_region_attention_args *a = &c->args.region_attention;
  const pe_regions *all = &c->step->tower.region[a->regions];
  pe_cost cost = {0};
  for (int32_t i = 0; i < all->count; i++)
    cost.macs += (double)all->list[i].count * all->list[i].count * a->heads * (a->key + a->value);
  return cost;
}

static pe_cost expert_cost(const pe_cpu_call *c) {
  const pe_expert_args *a = &c->args.expert;
  const double pairs = (double)c->rows * a->chosen, used = pairs < a->experts ? pairs : a->experts;
  const double one = bytes_of(c->mat, NULL) + bytes_of(c->mat2, NULL);
  return (pe_cost){.weights = used * one, .macs = pairs * a->in * a->out * (c->mat2 ? 2 : 1)};
}

pe_cost pe_profile_cost(pe_op op, const pe_cpu_call *c) {
  const double rows = c->rows, states = 2.0 * sizeof(float) * c->step->segments;
  const double weights = bytes_of(c->mat, c->pack) + bytes_of(c->mat2, c->pack2);
  const pe_op_args *a = &c->args;
  switch (op) {
  case PE_OP_EMBED: return (pe_cost){.weights = rows * weights / (double)c->mat->rows};
  case PE_OP_LINEAR: return (pe_cost){weights, 0, 0, rows * a->linear.in * a->linear.out};
  case PE_OP_GATED: return (pe_cost){weights, 0, 0, 2 * rows * a->gated.in * a->gated.out};
  case PE_OP_EXPERT_LINEAR:
  case PE_OP_EXPERT_GATED: return expert_cost(c);
  case PE_OP_HEAD_LINEAR:
    return (pe_cost){a->head.heads * weights, 0, 0,
                     rows * a->head.heads * a->head.in * a->head.out};
  case PE_OP_STORE: return (pe_cost){.cache = rows * row_bytes(&a->store.cache)};
  case PE_OP_ATTENTION: return attention_cost(c);
  case PE_OP_REGION_ATTENTION: return region_cost(c);
  case PE_OP_CONV:
    return (pe_cost){0, states * a->conv.channels * (a->conv.taps - 1), 0,
                     rows * a->conv.channels * a->conv.taps};
  case PE_OP_DELTA: {
    const double state = (double)a->delta.heads * a->delta.key * a->delta.value;
    return (pe_cost){0, states * state, 0, 4 * rows * state};
  }
  case PE_OP_SSM: {
    const double state = (double)a->ssm.heads * a->ssm.dim * a->ssm.state;
    return (pe_cost){0, states * state, 0, 3 * rows * state};
  }
  default: return (pe_cost){0};
  }
}

/* Bytes of the lines that a call reads and writes, each counted once. */
static double lines_of(const pe_profile_job *j, const pe_cpu_call *c) {
  double bytes = 0;
  for (int i = 0; i < PE_OP_VIEWS; i++) {
    const bool rounded = i == 0 && c->rounded[0] && !j->rounds;
    if (c->in[i].at && !rounded) bytes += (double)c->rows * (double)c->in[i].step * sizeof(float);
  }
  if (c->arranged && c->arranged->cols)
    bytes += (double)pe_amx16_bytes(c->rows, c->arranged->cols);
  else if (c->rounded[0])
    bytes += (double)pe_int16_bytes(c->rows, c->rounded[0]->cols, c->rounded[0]->act);
  if (c->result)
    bytes += (double)pe_int16_bytes(c->rows, c->result->cols, c->result->act);
  else if (c->out.at && !j->rounds)
    bytes += (double)c->rows * (double)c->out.step * sizeof(float);
  return bytes;
}

void pe_profile_count(pe_profile *p, int32_t job, const pe_cpu_call *call) {
  pe_profile_job *j = &p->job[job];
  if (j->part) return; /* the first op of the code has it all */
  const pe_cost more = j->rounds ? (pe_cost){0} : pe_profile_cost(j->instr->op, call);
  j->cost.weights += more.weights, j->cost.cache += more.cache, j->cost.macs += more.macs;
  j->cost.values += lines_of(j, call);
}

/* ---- limits ---------------------------------------------------------------------------------- */

enum { PIECE = 4 << 20, PIECES = 64, ROUNDS = 20000, WINDOWS = 24 };

typedef struct window { /* one run of the pool */
  const pe_probe *probe;
  const uint8_t *data; /* NULL: compute */
  bool dots;
  int first;             /* piece, of task 0 */
  _Atomic uint64_t sink; /* so that nothing is optimized away */
} window;

static void run_window(void *ctx, int task, int tasks) {
  window *w = ctx;
  uint64_t got;
  if (w->data)
    got = w->probe->read(w->data + (uint64_t)((w->first + task) % PIECES) * PIECE, PIECE);
  else
    got = w->dots ? (uint64_t)w->probe->dot(ROUNDS) : (uint64_t)(w->probe->fma(ROUNDS) > 0);
  atomic_fetch_add_explicit(&w->sink, got, memory_order_relaxed);
  (void)tasks;
}

/* Runs one task per thread, in several windows; the best of them, with `amount` per task. */
static double best_rate(pe_pool *pool, window *w, double amount) {
  const int threads = pe_pool_threads(pool);
  double best = 0;
  for (int i = 0; i < WINDOWS; i++) {
    w->first = i * threads;
    const int64_t from = pe_clock_ns();
    pe_pool_run(pool, run_window, w, threads);
    const double rate = amount * threads / (double)(pe_clock_ns() - from + 1) * 1e9;
    if (rate > best) best = rate;
  }
  return best;
}

/* Loads along one cycle through the whole memory. It visits places STEP bytes apart, further than
 * what a processor fetches with a line, in random order. */
static double best_latency(uint8_t *data) {
  enum { STEP = 256, COUNT = PIECE / STEP * PIECES, LOADS = 1 << 15 };
  uint32_t *next = (uint32_t *)(void *)data, at = 0;
  const size_t step = STEP / sizeof *next;
  uint64_t random = 1;
  for (uint32_t i = 0; i < COUNT; i++) next[i * step] = i;
  for (uint32_t i = COUNT - 1; i > 0; i--) { /* swapping with an earlier place keeps one cycle */
    random = random * 6364136223846793005u + 1442695040888963407u;
    const uint32_t j = (uint32_t)(random >> 33) % i, was = next[i * step];
    next[i * step] = next[j * step], next[j * step] = was;
  }
  double best = 1;
  for (int w = 0; w < WINDOWS; w++) {
    const int64_t from = pe_clock_ns();
    for (int i = 0; i < LOADS; i++) at = next[at * step];
    const double each = (double)(pe_clock_ns() - from) * 1e-9 / LOADS;
    if (each < best && at < COUNT) best = each; /* `at` is used: the loop stays */
  }
  return best;
}

pe_status pe_limits_measure(pe_pool *pool, pe_limits *out, pe_error *err) {
  pe_buffer *memory = NULL;
  pe_status rc = pe_buffer_reserve((uint64_t)PIECE * PIECES, &memory, err);
  if (rc) return rc;
  memset(memory->data, 1, (size_t)PIECE * PIECES);
  window w = {.probe = pe_probe_best()};
  out->name = w.probe->name;
  out->fma = best_rate(pool, &w, w.probe->fmas * ROUNDS);
  w.dots = true;
  out->dot = best_rate(pool, &w, w.probe->dots * ROUNDS);
  w.data = memory->data;
  out->read = best_rate(pool, &w, PIECE);
  out->latency = best_latency(memory->data);
  pe_buffer_release(memory);
  return PE_OK;
}
