/* passes_impl.h - passes over states and rows of convolutions, a part of prim_impl.h; see passes.h.
 */
#include "kernels/cpu/passes.h"

/* ---- states ---------------------------------------------------------------------------------- */

/* Two sums each of y and `seen` for STATE_VECS registers, so that no multiply-add waits for the one
 * before it; they take 8 of 16 registers (AVX2) or 16 of 32 (NEON). */
enum { STATE_VECS = W == 4 ? 4 : 2 };

/* What a pass does: constants after inlining. */
typedef struct state_kind {
  int changes, looks, each, fetches;
} state_kind;

typedef struct state_sums {
  vf d[MOST], y[2][MOST], seen[2][MOST];
} state_sums;

/* Line i, whose first values are at s. */
ALWAYS void state_line(const pe_panel_pass p, int64_t i, float *s, vf same, state_sums *sums,
                       const int half, const int V, const state_kind kind) {
  vf g = same, k = same, q = same, next = same;
  if (kind.each) g = splat(load1(p.decay + i));
  if (kind.changes) k = splat(load1(p.k + i)), q = splat(load1(p.q + i));
  if (kind.looks) next = splat(load1(p.next + i));
  for (int v = 0; v < V; v++, s += W) {
    if (kind.fetches) __builtin_prefetch(p.ahead + (s - p.s), 1);
    vf t = load(s);
    if (kind.changes) {
      t = fma_(sums->d[v], k, t * g);
      store(s, t);
      sums->y[half][v] = fma_(t, q, sums->y[half][v]);
    }
    if (kind.looks) sums->seen[half][v] = fma_(t, next, sums->seen[half][v]);
  }
}

ALWAYS vf state_change_of(const pe_panel_pass p, int64_t at) {
  vf v = load(p.v + at);
  if (p.common != 0) v = v - splat(p.common) * load(p.seen + at);
  return v * splat(p.beta);
}

ALWAYS void state_lanes(const pe_panel_pass p, int64_t at, const int V, const state_kind kind) {
  const vf same = kind.changes && !kind.each ? splat(load1(p.decay)) : (vf){0};
  float *s = p.s + at;
  state_sums sums;
  for (int v = 0; v < V; v++) {
    if (kind.changes) sums.d[v] = state_change_of(p, at + v * W);
    for (int h = 0; h < 2; h++) sums.y[h][v] = sums.seen[h][v] = (vf){0};
  }
  int64_t i = 0;
  for (; i + 2 <= p.lines; i += 2, s += 2 * p.lanes) {
    state_line(p, i, s, same, &sums, 0, V, kind);
    state_line(p, i + 1, s + p.lanes, same, &sums, 1, V, kind);
  }
  if (i < p.lines) state_line(p, i, s, same, &sums, 0, V, kind);
  for (int v = 0; v < V; v++) {
    if (kind.changes) store(p.y + at + v * W, sums.y[0][v] + sums.y[1][v]);
    if (kind.looks) store(p.seen + at + v * W, sums.seen[0][v] + sums.seen[1][v]);
  }
}

/* p is a copy, so that its fields stay in registers while the state is written. */
ALWAYS void state_all(const pe_panel_pass p, const state_kind kind) {
  int64_t at = 0;
  for (; at + STATE_VECS * W <= p.lanes; at += STATE_VECS * W) state_lanes(p, at, STATE_VECS, kind);
  for (; at < p.lanes; at += W) state_lanes(p, at, 1, kind);
}

ALWAYS void state_change(const pe_panel_pass *p, const int each) {
  if (p->next)
    state_all(*p, (state_kind){.changes = 1, .each = each, .looks = 1});
  else if (p->ahead)
    state_all(*p, (state_kind){.changes = 1, .each = each, .fetches = 1});
  else
    state_all(*p, (state_kind){.changes = 1, .each = each});
}

static void state_pass(const pe_panel_pass *p) {
  if (!p->v)
    state_all(*p, (state_kind){.looks = 1});
  else if (p->each)
    state_change(p, 1);
  else
    state_change(p, 0);
}

/* ---- convolutions ---------------------------------------------------------------------------- */

ALWAYS vf conv_sum(const pe_conv_pass *p, const float *const *x, int64_t taps, int64_t i) {
  vf y = load(p->w + i) * load(x[0] + i);
  for (int64_t t = 1; t < taps; t++) y = fma_(load(p->w + t * p->step + i), load(x[t] + i), y);
  return p->bias ? y + load(p->bias + i) : y;
}

static inline float conv_sum1(const pe_conv_pass *p, int64_t i) {
  float y = load1(p->w + i) * load1(p->x[0] + i);
  for (int64_t t = 1; t < p->taps; t++)
    y = fmaf(load1(p->w + t * p->step + i), load1(p->x[t] + i), y);
  return p->bias ? y + load1(p->bias + i) : y;
}

/* Whole registers of channels; returns how many channels. Pointers that are copies cannot change
 * when results are stored, so they stay in registers. */
ALWAYS int64_t conv_whole(const pe_conv_pass p, const float *const *x, int64_t taps,
                          const bool silu) {
  int64_t i = 0;
  for (; i + W <= p.n; i += W) {
    const vf y = conv_sum(&p, x, taps, i);
    store(p.y + i, silu ? unary1(PE_MAP_SILU, y) : y);
  }
  return i;
}

static void conv_pass(const pe_conv_pass *p) {
  const bool silu = p->activation == PE_MAP_SILU;
  int64_t i;
  if (p->taps == 4 && silu) { /* the common case */
    const float *const x[4] = {p->x[0], p->x[1], p->x[2], p->x[3]};
    i = conv_whole(*p, x, 4, true);
  } else {
    i = conv_whole(*p, p->x, p->taps, silu);
  }
  if (silu && i < p->n) {
    float t[LANES] = {0};
    for (int64_t j = i; j < p->n; j++) t[j - i] = conv_sum1(p, j);
    store(t, unary1(PE_MAP_SILU, load(t)));
    memcpy(p->y + i, t, (size_t)(p->n - i) * sizeof *t);
  }
  for (; !silu && i < p->n; i++) {
    const float y = conv_sum1(p, i);
    memcpy(p->y + i, &y, sizeof y);
  }
  if (p->activation >= 0 && !silu) unary((pe_map_op)p->activation, p->y, p->n, p->y);
}

ALWAYS v4 load4(const float *p) {
  v4 v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* Four taps are the common number: 4 x 4 values at a time. */
static void conv_turn(const float *w, int64_t taps, int64_t n, float *out, int64_t step) {
  int64_t i = 0;
  for (; taps == 4 && i + 4 <= n; i += 4) {
    const v4 a = load4(w + 4 * i), b = load4(w + 4 * i + 4), c = load4(w + 4 * i + 8),
             d = load4(w + 4 * i + 12);
    const v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5),
             cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const v4 ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7),
             cd2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    const v4 line[4] = {__builtin_shufflevector(ab, cd, 0, 1, 4, 5),
                        __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
                        __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5),
                        __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7)};
    for (int t = 0; t < 4; t++) memcpy(out + t * step + i, &line[t], sizeof line[t]);
  }
  for (; i < n; i++)
    for (int64_t t = 0; t < taps; t++) memcpy(out + t * step + i, w + i * taps + t, sizeof *out);
}

static const pe_passes passes = {.pass = state_pass, .conv = conv_pass, .turn = conv_turn};
