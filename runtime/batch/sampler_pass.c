/* sampler_pass.c - see sampler_pass.h. */
#include "runtime/batch/sampler_pass.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* What a pass does with the `n` values from `from` on. */
typedef void piece_fn(const void *pass, int32_t from, int32_t n);

typedef struct pieces {
  piece_fn *fn;
  const void *pass;
  int32_t n;
} pieces;

static void run_piece(void *ctx, int task, int tasks) {
  const pieces *p = ctx;
  const int32_t from = task * PE_PASS_PIECE, left = p->n - from;
  (void)tasks;
  p->fn(p->pass, from, left < PE_PASS_PIECE ? left : PE_PASS_PIECE);
}

static void run(pe_pool *pool, int32_t n, piece_fn *fn, const void *pass) {
  pieces p = {fn, pass, n};
  const int32_t tasks = pe_pass_pieces(n);
  if (pool)
    pe_pool_run(pool, run_piece, &p, tasks);
  else
    for (int32_t i = 0; i < tasks; i++) run_piece(&p, i, tasks);
}

/* ---- peaks --------------------------------------------------------------------------------- */

typedef struct peaks {
  const pe_scan *scan;
  const float *x;
  float *peak, *copy;
  atomic_bool *nan;
} peaks;

static void find_peaks(const void *pass, int32_t from, int32_t n) {
  const peaks *p = pass;
  const float top = p->scan->peaks(p->x + from, n, p->peak + from / PE_SCAN_PEAK,
                                   p->copy ? p->copy + from : NULL);
  if (top != top) atomic_store(p->nan, true);
}

float pe_pass_peaks(pe_pass p, const float *x, int32_t n, float *peak, float *copy) {
  atomic_bool nan = false;
  float lowest;
  run(p.pool, n, find_peaks, &(peaks){p.scan, x, peak, copy, &nan});
  return nan ? NAN : p.scan->range(peak, (n + PE_SCAN_PEAK - 1) / PE_SCAN_PEAK, &lowest);
}

/* ---- masks --------------------------------------------------------------------------------- */

typedef struct mask {
  const pe_scan *scan;
  const float *x;
  const uint32_t *bits;
  float *copy;
} mask;

static void apply_mask(const void *pass, int32_t from, int32_t n) {
  const mask *m = pass;
  m->scan->allow(m->x + from, n, m->bits + from / 32, m->copy + from);
}

void pe_pass_allow(pe_pass p, const float *x, int32_t n, const uint32_t *bits, float *copy) {
  run(p.pool, n, apply_mask, &(mask){p.scan, x, bits, copy});
}

/* ---- sums ---------------------------------------------------------------------------------- */

typedef struct weighing {
  const pe_scan *scan;
  const float *x;
  pe_scan_span span;
  float top, scale;
  float *weight, *sum;
} weighing;

static void weigh(const void *pass, int32_t from, int32_t n) {
  const weighing *w = pass;
  w->scan->weigh(w->x + from, n, w->span, w->top, w->scale, w->weight ? w->weight + from : NULL,
                 w->sum + from / PE_SCAN_BLOCK);
}

void pe_pass_weigh(pe_pass p, const float *x, int32_t n, pe_scan_span span, float top, float scale,
                   float *weight, float *sum) {
  run(p.pool, n, weigh, &(weighing){p.scan, x, span, top, scale, weight, sum});
}

/* ---- queries ------------------------------------------------------------------------------- */

typedef struct tally {
  const pe_scan *scan;
  const float *x;
  const pe_scan_query *q;
  pe_scan_sums *sums;
  int32_t base;
  const pe_pass_found *found;
} tally;

/* A piece has room for all its values, so that its places are its own. They are unpacked while they
 * are in the first-level cache. */
static void answer(const void *pass, int32_t from, int32_t n) {
  const tally *t = pass;
  uint16_t bits[2][PE_PASS_PIECE / PE_SCAN_LANES];
  pe_scan_query q = *t->q;
  q.bits[0] = bits[0], q.bits[1] = bits[1];
  t->scan->tally(t->x + from, n, &q, t->sums + from / PE_SCAN_BLOCK);
  for (int i = 0; t->found && i < q.bands; i++) {
    const pe_pass_found *f = &t->found[i];
    f->count[from / PE_PASS_PIECE] = (int32_t)t->scan->unpack(
        bits[i], t->x + from, n, from + t->base, f->index + from, f->value + from);
  }
}

void pe_pass_tally(pe_pass p, const float *x, int32_t n, const pe_scan_query *q, pe_scan_sums *sums,
                   int32_t base, const pe_pass_found found[2]) {
  run(p.pool, n, answer, &(tally){p.scan, x, q, sums, base, found});
}

int32_t pe_pass_join(const pe_pass_found *found, int32_t n, int32_t *index, float *value) {
  int32_t total = 0;
  for (int32_t i = 0, from = 0; i < pe_pass_pieces(n); i++, from += PE_PASS_PIECE) {
    const size_t bytes = (size_t)found->count[i] * 4;
    memcpy(index + total, found->index + from, bytes);
    memcpy(value + total, found->value + from, bytes);
    total += found->count[i];
  }
  return total;
}
