/* op_recur.c - layers with a state per sequence: short convolutions, the gated delta rule, Mamba 2.
 *
 * The rows of a segment are processed strictly in order and the state is updated in place, so a
 * prompt may be split anywhere. Work is shared by (segment, head) or (segment, channels), which are
 * independent. The runtime clears the slot of a new sequence. */
#include "kernels/cpu/cpu.h"

#include <math.h>

static float *slot_of(const pe_cpu_call *c, const pe_segment *segment) {
  return c->state + segment->slot * c->state_step;
}

/* ---- conv ------------------------------------------------------------------------------------ */

enum { CHANNELS = 64 }; /* of an item: four cache lines of a row, so that tasks share none */

/* Scratch: weights [taps][CHANNELS], then the past [taps - 1][CHANNELS], oldest first. */
static void conv_channels(const pe_cpu_call *c, const pe_segment *segment, int64_t from, int64_t n,
                          float *room) {
  const pe_conv_args *a = &c->args.conv;
  const int64_t before = a->taps - 1;
  float *weight = room, *past = room + (int64_t)a->taps * CHANNELS,
        *state = slot_of(c, segment) + from * before;
  for (int64_t i = 0; i < n; i++) {
    for (int64_t t = 0; t < a->taps; t++)
      weight[t * CHANNELS + i] = c->vec[0][(from + i) * a->taps + t];
    for (int64_t t = 0; t < before; t++) past[t * CHANNELS + i] = state[i * before + t];
  }
  for (int64_t r = 0; r < segment->count; r++) {
    float *y = pe_cpu_row(&c->out, segment->first + r) + from;
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t t = 0; t < a->taps; t++) {
      int64_t at = r - before + t; /* the row that this tap sees */
      const float *x = at < 0 ? past + (at + before) * CHANNELS
                              : pe_cpu_row(&c->in[0], segment->first + at) + from;
      const float *w = weight + t * CHANNELS;
      for (int64_t i = 0; i < n; i++) y[i] += w[i] * x[i];
    }
    if (c->vec[1])
      for (int64_t i = 0; i < n; i++) y[i] += c->vec[1][from + i];
    if (a->activation >= 0) c->prim->unary((pe_map_op)a->activation, y, n, y);
  }
  for (int64_t t = 0; t < before; t++) {
    int64_t at = segment->count - before + t;
    const float *x = at < 0 ? past + (at + before) * CHANNELS
                            : pe_cpu_row(&c->in[0], segment->first + at) + from;
    for (int64_t i = 0; i < n; i++) state[i * before + t] = x[i];
  }
}

static int64_t pieces_of(const pe_conv_args *a) { return (a->channels + CHANNELS - 1) / CHANNELS; }

static void conv_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_conv_args *a = &c->args.conv;
  const int64_t pieces = pieces_of(a);
  for (int64_t i = share->task; i < c->step->segments * pieces; i += share->tasks) {
    int64_t from = i % pieces * CHANNELS;
    conv_channels(c, &c->step->segment[i / pieces], from,
                  pe_cpu_least(CHANNELS, a->channels - from), share->scratch);
  }
}

static pe_cpu_work conv_work(const pe_cpu_call *c) {
  const pe_conv_args *a = &c->args.conv;
  return (pe_cpu_work){c->step->segments * pieces_of(a),
                       (double)c->rows * a->channels * (a->taps + 4)};
}

static int64_t conv_scratch(const pe_cpu_call *c) {
  return (2 * (int64_t)c->args.conv.taps - 1) * CHANNELS;
}

const pe_cpu_op pe_cpu_conv = {.run = conv_run, .work = conv_work, .scratch = conv_scratch};

/* ---- states per head ------------------------------------------------------------------------- */

typedef void head_row(const pe_cpu_call *c, int64_t row, int64_t head, float *state,
                      float *scratch);

/* Runs all rows of a segment in order, for this task's share of (segment, head). */
static void each_head(const pe_cpu_call *c, const pe_cpu_share *share, int64_t heads,
                      int64_t state_floats, head_row *run) {
  for (int64_t i = share->task; i < c->step->segments * heads; i += share->tasks) {
    const pe_segment *segment = &c->step->segment[i / heads];
    const int64_t head = i % heads;
    float *state = slot_of(c, segment) + head * state_floats;
    for (int64_t r = 0; r < segment->count; r++)
      run(c, segment->first + r, head, state, share->scratch);
  }
}

/* ---- delta ----------------------------------------------------------------------------------- */

/* The state is decayed only while it is updated: (S g) k is S (g k). */
static void delta_row(const pe_cpu_call *c, int64_t row, int64_t head, float *state, float *room) {
  const pe_delta_args *a = &c->args.delta;
  const int64_t n = a->key, at = head / (a->heads / a->key_heads) * n;
  const float *q = pe_cpu_row(&c->in[0], row) + at, *k = pe_cpu_row(&c->in[1], row) + at;
  const float *v = pe_cpu_row(&c->in[2], row) + head * a->value;
  const float *decay = pe_cpu_row(&c->in[3], row) + (a->channel ? head * n : head);
  const float beta = pe_cpu_row(&c->in[4], row)[head];
  float *g = room, *gk = room + n, *d = room + 2 * n;
  for (int64_t i = 0; i < n; i++) g[i] = a->channel ? decay[i] : *decay, gk[i] = g[i] * k[i];
  c->prim->dots(gk, n, 1, state, n, a->value, n, d, a->value);
  for (int64_t j = 0; j < a->value; j++) d[j] = (v[j] - d[j]) * beta;
  c->prim->recur(state, a->value, n, g, d, k, q, pe_cpu_row(&c->out, row) + head * a->value);
}

static void delta_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_delta_args *a = &c->args.delta;
  each_head(c, share, a->heads, (int64_t)a->value * a->key, delta_row);
}

static pe_cpu_work delta_work(const pe_cpu_call *c) {
  const pe_delta_args *a = &c->args.delta;
  return (pe_cpu_work){(int64_t)c->step->segments * a->heads,
                       4.0 * c->rows * a->heads * a->value * a->key};
}

static int64_t delta_scratch(const pe_cpu_call *c) {
  return 2 * (int64_t)c->args.delta.key + c->args.delta.value;
}

const pe_cpu_op pe_cpu_delta = {.run = delta_run, .work = delta_work, .scratch = delta_scratch};

/* ---- ssm ------------------------------------------------------------------------------------- */

static float time_step(const pe_cpu_call *c, int64_t row, int64_t head) {
  const pe_ssm_args *a = &c->args.ssm;
  float dt = pe_cpu_row(&c->in[3], row)[head] + (c->vec[1] ? c->vec[1][head] : 0);
  c->prim->unary(PE_MAP_SOFTPLUS, &dt, 1, &dt);
  dt = dt < a->dt_min ? a->dt_min : dt;
  return dt > a->dt_max ? a->dt_max : dt;
}

static void ssm_row(const pe_cpu_call *c, int64_t row, int64_t head, float *state, float *room) {
  const pe_ssm_args *a = &c->args.ssm;
  const int64_t n = a->state, at = head / (a->heads / a->groups) * n;
  const float *x = pe_cpu_row(&c->in[0], row) + head * a->dim;
  const float *b = pe_cpu_row(&c->in[1], row) + at, *read = pe_cpu_row(&c->in[2], row) + at;
  float *y = pe_cpu_row(&c->out, row) + head * a->dim, *g = room, *d = room + n;
  const float dt = time_step(c, row, head), decay = expf(-expf(c->vec[0][head]) * dt);
  for (int64_t i = 0; i < n; i++) g[i] = decay;
  for (int64_t j = 0; j < a->dim; j++) d[j] = dt * x[j];
  c->prim->recur(state, a->dim, n, g, d, b, read, y);
  if (c->vec[2])
    for (int64_t j = 0; j < a->dim; j++) y[j] += c->vec[2][head] * x[j];
}

static void ssm_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_ssm_args *a = &c->args.ssm;
  each_head(c, share, a->heads, (int64_t)a->dim * a->state, ssm_row);
}

static pe_cpu_work ssm_work(const pe_cpu_call *c) {
  const pe_ssm_args *a = &c->args.ssm;
  return (pe_cpu_work){(int64_t)c->step->segments * a->heads,
                       3.0 * c->rows * a->heads * a->dim * a->state};
}

static int64_t ssm_scratch(const pe_cpu_call *c) {
  return (int64_t)c->args.ssm.state + c->args.ssm.dim;
}

const pe_cpu_op pe_cpu_ssm = {.run = ssm_run, .work = ssm_work, .scratch = ssm_scratch};
