/* fast_recur.c - layers with a state per sequence in `fast` precision: short convolutions, the
 * gated delta rule, Mamba 2.
 *
 * Rows are processed in order, as in `exact`, so any splitting of a prompt gives the same bits.
 * What differs is the order of the work: the state of a head is cut into panels (passes.h), which
 * are independent of each other, and many rows of a segment pass over a panel while it is in the
 * first cache. So a state is read from memory and written once per step, however many rows the step
 * has. A row reads a panel once: the pass that applies row r also computes what the delta rule
 * needs of row r + 1, the product of the new state with its key.
 *
 * The chunked forms (WY, SSD) would replace most of this by matrix products. They are not used: a
 * row in an unfinished chunk would have to give the same bits as later in the finished one, so
 * slots would hold inputs in addition to states. With multiply-adds of float32 they do not save
 * work either: in chunks of 64 rows with keys and values of 128, the delta rule takes 3 operations
 * per element of the state and row, and 1.2 more inside of a chunk; the recurrent form takes 4.
 *
 * Measured with tests/bench/recur: over 512 rows the delta rule and Mamba 2 are 2.7 and 2.1 times
 * as fast as `exact`; at one row they move 13 to 16 GB/s of states that no cache holds, 1.2 times
 * `exact`; convolutions are 4 to 5 times as fast. A pass over a panel in the first cache does 4.2e9
 * operations of sixteen floats per second where registers alone do 4.8e9; over rows of a step it is
 * half of that, the rest is gathering and misses.
 *
 * Layout of the states (op.h has that of `exact`):
 *   conv    [taps - 1][channels], oldest first
 *   delta   [heads][panel][key][lanes], lanes: 32 values, in the last panel the rest
 *   ssm     [heads][panel][state][lanes], lanes: 32 of dim, in the last panel the rest */
#include "kernels/cpu/cpu.h"

static float *slot_of(const pe_cpu_call *c, const pe_segment *segment) {
  return c->state + segment->slot * c->state_step;
}

/* A task takes a part of every segment, so long and short ones do not matter; segments with less
 * items than tasks begin with different tasks. */
static void range_of(const pe_cpu_share *share, int32_t segment, int64_t items, int64_t *from,
                     int64_t *to) {
  const pe_cpu_share turned = {.task = (share->task + segment) % share->tasks,
                               .tasks = share->tasks};
  pe_cpu_range(&turned, items, from, to);
}

/* ---- conv ------------------------------------------------------------------------------------ */

enum {
  CHANNELS = 64, /* of an item: four cache lines of a row, so that tasks share none */
  /* Channels that go through all rows together: 2 KB of a row, so that few pages are touched, and
   * the rows that taps see stay in the first cache. */
  STRETCH = 512,
  POINTER = 2 /* floats of a pointer, at least */
};

static const float *conv_line(const pe_cpu_call *c, const pe_segment *segment, int64_t row,
                              int64_t from) {
  const pe_conv_args *a = &c->args.conv;
  return row < 0 ? slot_of(c, segment) + (row + a->taps - 1) * a->channels + from
                 : pe_cpu_row(&c->in[0], segment->first + row) + from;
}

/* The past is moved forward line by line, so no line is overwritten before it is read. */
static void conv_keep(const pe_cpu_call *c, const pe_segment *segment, int64_t from, int64_t n) {
  const pe_conv_args *a = &c->args.conv;
  const int64_t before = a->taps - 1;
  for (int64_t t = 0; t < before; t++)
    memcpy(slot_of(c, segment) + t * a->channels + from,
           conv_line(c, segment, segment->count - before + t, from), (size_t)n * sizeof(float));
}

/* Channels from .. from + n - 1 of a segment. room: weights [taps][STRETCH], turned; then pointers
 * [taps]. */
static void conv_channels(const pe_cpu_call *c, const pe_segment *segment, int64_t from, int64_t n,
                          float *room) {
  const pe_conv_args *a = &c->args.conv;
  const float **x = (const float **)(void *)(room + (int64_t)a->taps * STRETCH);
  pe_conv_pass p = {.x = x, .w = room, .taps = a->taps, .n = n, .step = STRETCH};
  p.activation = a->activation;
  if (c->vec[1]) p.bias = c->vec[1] + from;
  for (int64_t r = 0; r < segment->count; r++) {
    for (int32_t t = 0; t < a->taps; t++) x[t] = conv_line(c, segment, r - a->taps + 1 + t, from);
    p.y = pe_cpu_row(&c->out, segment->first + r) + from;
    c->prim->passes->conv(&p);
  }
  conv_keep(c, segment, from, n);
}

static int64_t units_of(const pe_conv_args *a) { return (a->channels + CHANNELS - 1) / CHANNELS; }

/* The weights of a stretch are turned once for all segments: in decode each has only one row. */
static void conv_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_conv_args *a = &c->args.conv;
  int64_t from, to;
  pe_cpu_range(share, units_of(a), &from, &to);
  to = pe_cpu_least(to * CHANNELS, a->channels);
  for (from *= CHANNELS; from < to; from += STRETCH) {
    const int64_t n = pe_cpu_least(STRETCH, to - from);
    c->prim->passes->turn(c->vec[0] + from * a->taps, a->taps, n, share->scratch, STRETCH);
    for (int32_t i = 0; i < c->step->segments; i++)
      conv_channels(c, &c->step->segment[i], from, n, share->scratch);
  }
}

/* An activation costs as much as 20 multiply-adds. */
static pe_cpu_work conv_work(const pe_cpu_call *c) {
  const pe_conv_args *a = &c->args.conv;
  return (pe_cpu_work){units_of(a), (double)c->rows * a->channels * (a->taps + 20)};
}

static int64_t conv_scratch(const pe_cpu_call *c) {
  return (int64_t)c->args.conv.taps * (STRETCH + POINTER);
}

const pe_cpu_op pe_cpu_fast_conv = {.run = conv_run, .work = conv_work, .scratch = conv_scratch};

/* ---- panels ---------------------------------------------------------------------------------- */

/* Rows that pass over all panels of a head in turn. What a head reads of them is gathered first,
 * once for all panels, and its results are scattered in the end: in the step rows are kilobytes
 * apart, so each one is a miss in the first cache, and a pass that waits for it does nothing else.
 * 32 rows of 128 values are 16 KB each of keys, queries and values. */
enum { ROWS = 32 };

typedef struct panel {
  const pe_cpu_call *c;
  int64_t head, width; /* of a head */
  int64_t row, rows;   /* of the step */
  float *state;        /* of the head */
  const float *after;  /* the state that this task takes next, or NULL */
  int64_t from, lanes; /* the values of the head in this panel */
  pe_panel_pass pass;  /* s, lines, lanes, each, ahead */
  float *room;         /* for a panel */
  float *line[4];      /* [rows][lines]: gathered for the passes */
  float *value;        /* [rows][width]: inputs, then results */
  float one[2][ROWS];  /* numbers of the head */
} panel;

typedef void gather_rows(panel *p);
typedef void panel_rows(const panel *p);

static int64_t panels_of(int64_t width) { return (width + PE_PASS_LANES - 1) / PE_PASS_LANES; }

/* Lines of a width that vectors do not divide are copied to wider ones. */
static void enter(panel *p) {
  float *home = p->state + p->from * p->pass.lines;
  p->lanes = pe_cpu_least(PE_PASS_LANES, p->width - p->from);
  p->pass.lanes = (p->lanes + PE_PASS_UNIT - 1) / PE_PASS_UNIT * PE_PASS_UNIT;
  p->pass.s = p->pass.lanes == p->lanes ? home : p->room;
  if (p->pass.s == home) return;
  memset(p->room, 0, (size_t)(p->pass.lines * p->pass.lanes) * sizeof *p->room);
  for (int64_t i = 0; i < p->pass.lines; i++)
    memcpy(p->room + i * p->pass.lanes, home + i * p->lanes, (size_t)p->lanes * sizeof *home);
}

static void leave(const panel *p) {
  float *home = p->state + p->from * p->pass.lines;
  for (int64_t i = 0; p->pass.s != home && i < p->pass.lines; i++)
    memcpy(home + i * p->lanes, p->pass.s + i * p->pass.lanes, (size_t)p->lanes * sizeof *home);
}

/* n values of each row of input i, from `at` on. */
static void gather_input(const panel *p, int i, int64_t at, int64_t n, float *to) {
  for (int64_t r = 0; r < p->rows; r++)
    memcpy(to + r * n, pe_cpu_row(&p->c->in[i], p->row + r) + at, (size_t)n * sizeof *to);
}

/* Values from .. to - 1 of the head. */
static void scatter_results(const panel *p, int64_t from, int64_t to) {
  to = pe_cpu_least(to, p->width);
  for (int64_t r = 0; r < p->rows; r++)
    memcpy(pe_cpu_row(&p->c->out, p->row + r) + p->head * p->width + from,
           p->value + r * p->width + from, (size_t)(to - from) * sizeof *p->value);
}

/* The rows of a segment over panels from .. to - 1 of the head. A single row leaves a panel as soon
 * as it has read it: the next panel is fetched meanwhile. */
static void run_head(panel *p, const pe_segment *segment, int64_t from, int64_t to,
                     gather_rows *gather, panel_rows *run) {
  for (int64_t r = 0; r < segment->count; r += ROWS) {
    p->row = segment->first + r, p->rows = pe_cpu_least(ROWS, segment->count - r);
    gather(p);
    for (int64_t i = from; i < to; i++) {
      p->from = i * PE_PASS_LANES;
      p->pass.ahead = i + 1 < to ? p->state + (i + 1) * PE_PASS_LANES * p->pass.lines : p->after;
      if (p->rows > 1) p->pass.ahead = NULL;
      enter(p);
      run(p);
      leave(p);
    }
    scatter_results(p, from * PE_PASS_LANES, to * PE_PASS_LANES);
  }
}

/* The first panel of this task in a segment; NULL: it has none there, or there is no segment. */
static const float *first_state(const pe_cpu_call *c, const pe_cpu_share *share, int32_t segment,
                                int64_t heads, int64_t width, int64_t lines) {
  const int64_t panels = panels_of(width);
  int64_t from, to;
  if (segment == c->step->segments) return NULL;
  range_of(share, segment, heads * panels, &from, &to);
  if (from == to) return NULL;
  return slot_of(c, &c->step->segment[segment]) + from / panels * width * lines +
         from % panels * PE_PASS_LANES * lines;
}

/* This task's panels of all segments; width: of a head, lines: of a panel. */
static void each_head(const pe_cpu_call *c, const pe_cpu_share *share, int64_t heads, int64_t width,
                      int64_t lines, gather_rows *gather, panel_rows *run) {
  const int64_t panels = panels_of(width);
  panel p = {.c = c, .width = width, .pass = {.lines = lines}, .room = share->scratch};
  for (int i = 0; i < 4; i++) p.line[i] = p.room + lines * (PE_PASS_LANES + i * ROWS);
  p.value = p.room + lines * (PE_PASS_LANES + 4 * ROWS);
  for (int32_t i = 0; i < c->step->segments; i++) {
    const pe_segment *segment = &c->step->segment[i];
    int64_t from, to, end;
    range_of(share, i, heads * panels, &from, &to);
    for (; from < to; from = end) {
      p.head = from / panels, end = pe_cpu_least(to, (p.head + 1) * panels);
      p.state = slot_of(c, segment) + p.head * width * lines;
      p.after =
          end < to ? p.state + width * lines : first_state(c, share, i + 1, heads, width, lines);
      run_head(&p, segment, from - p.head * panels, end - p.head * panels, gather, run);
    }
  }
}

static pe_cpu_work head_work(const pe_cpu_call *c, int64_t heads, int64_t width, int64_t lines) {
  return (pe_cpu_work){(int64_t)c->step->segments * heads * panels_of(width),
                       4.0 * (double)c->rows * (double)(heads * width * lines)};
}

static int64_t head_scratch(int64_t width, int64_t lines) {
  return lines * (PE_PASS_LANES + 4 * ROWS) + width * ROWS;
}

/* ---- delta ----------------------------------------------------------------------------------- */

enum { QUERY, KEY, DECAYED, DECAY, BETA = 0, COMMON = 1 }; /* lines, numbers */

/* DECAYED is what the state is multiplied with before a row: its key, decayed if every line decays
 * alone. A common decay is a factor of the product. */
static void delta_gather(panel *p) {
  const pe_delta_args *a = &p->c->args.delta;
  const int64_t at = p->head / (a->heads / a->key_heads) * a->key;
  gather_input(p, 0, at, a->key, p->line[QUERY]);
  gather_input(p, 1, at, a->key, p->line[KEY]);
  gather_input(p, 2, p->head * a->value, a->value, p->value);
  gather_input(p, 4, p->head, 1, p->one[BETA]);
  p->pass.each = a->channel;
  if (!a->channel) {
    gather_input(p, 3, p->head, 1, p->one[COMMON]);
    return;
  }
  gather_input(p, 3, p->head * a->key, a->key, p->line[DECAY]);
  p->c->prim->binary(PE_MAP_MUL, p->line[DECAY], p->line[KEY], p->rows * a->key, p->line[DECAYED]);
}

static void delta_rows(const panel *p) {
  const bool each = p->pass.each;
  const int64_t n = p->pass.lines;
  const float *next = p->line[each ? DECAYED : KEY];
  float v[PE_PASS_LANES] = {0}, y[PE_PASS_LANES], seen[PE_PASS_LANES];
  pe_panel_pass pass = p->pass;
  pass.y = y, pass.seen = seen, pass.next = next;
  p->c->prim->passes->pass(&pass);
  for (int64_t r = 0; r < p->rows; r++) {
    float *value = p->value + r * p->width + p->from;
    pass.v = p->lanes == p->pass.lanes ? value : memcpy(v, value, (size_t)p->lanes * sizeof *v);
    pass.beta = p->one[BETA][r], pass.common = each ? 1 : p->one[COMMON][r];
    pass.decay = each ? p->line[DECAY] + r * n : &p->one[COMMON][r];
    pass.k = p->line[KEY] + r * n, pass.q = p->line[QUERY] + r * n;
    pass.next = r + 1 < p->rows ? next + (r + 1) * n : NULL;
    p->c->prim->passes->pass(&pass);
    memcpy(value, y, (size_t)p->lanes * sizeof *y);
  }
}

static void delta_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_delta_args *a = &c->args.delta;
  each_head(c, share, a->heads, a->value, a->key, delta_gather, delta_rows);
}

static pe_cpu_work delta_work(const pe_cpu_call *c) {
  const pe_delta_args *a = &c->args.delta;
  return head_work(c, a->heads, a->value, a->key);
}

static int64_t delta_scratch(const pe_cpu_call *c) {
  return head_scratch(c->args.delta.value, c->args.delta.key);
}

const pe_cpu_op pe_cpu_fast_delta = {
    .run = delta_run, .work = delta_work, .scratch = delta_scratch};

/* ---- ssm ------------------------------------------------------------------------------------- */

enum { WRITE, READ, TIME = 0, FACTOR = 1 }; /* lines, numbers: the time step and the decay */

static void ssm_times(panel *p) {
  const pe_ssm_args *a = &p->c->args.ssm;
  const pe_prim *prim = p->c->prim;
  const float bias = p->c->vec[1] ? p->c->vec[1][p->head] : 0;
  float rate, *dt = p->one[TIME], *decay = p->one[FACTOR];
  prim->unary(PE_MAP_EXP, p->c->vec[0] + p->head, 1, &rate);
  gather_input(p, 3, p->head, 1, dt);
  for (int64_t r = 0; r < p->rows; r++) dt[r] += bias;
  prim->unary(PE_MAP_SOFTPLUS, dt, p->rows, dt);
  for (int64_t r = 0; r < p->rows; r++) {
    dt[r] = dt[r] < a->dt_min ? a->dt_min : dt[r];
    dt[r] = dt[r] > a->dt_max ? a->dt_max : dt[r];
    decay[r] = -rate * dt[r];
  }
  prim->unary(PE_MAP_EXP, decay, p->rows, decay);
}

static void ssm_gather(panel *p) {
  const pe_ssm_args *a = &p->c->args.ssm;
  const int64_t at = p->head / (a->heads / a->groups) * a->state;
  gather_input(p, 0, p->head * a->dim, a->dim, p->value);
  gather_input(p, 1, at, a->state, p->line[WRITE]);
  gather_input(p, 2, at, a->state, p->line[READ]);
  ssm_times(p);
}

static void ssm_rows(const panel *p) {
  const float *through = p->c->vec[2];
  float x[PE_PASS_LANES] = {0}, y[PE_PASS_LANES] = {0};
  pe_panel_pass pass = p->pass;
  pass.y = y;
  for (int64_t r = 0; r < p->rows; r++) {
    float *value = p->value + r * p->width + p->from;
    memcpy(x, value, (size_t)p->lanes * sizeof *x);
    pass.v = p->lanes == p->pass.lanes ? value : x;
    pass.beta = p->one[TIME][r], pass.decay = &p->one[FACTOR][r];
    pass.k = p->line[WRITE] + r * p->pass.lines, pass.q = p->line[READ] + r * p->pass.lines;
    p->c->prim->passes->pass(&pass);
    const float factor = through ? through[p->head] : 0;
    for (int i = 0; through && i < PE_PASS_LANES; i++) y[i] += factor * x[i];
    memcpy(value, y, (size_t)p->lanes * sizeof *y);
  }
}

static void ssm_run(const pe_cpu_call *c, const pe_cpu_share *share) {
  const pe_ssm_args *a = &c->args.ssm;
  each_head(c, share, a->heads, a->dim, a->state, ssm_gather, ssm_rows);
}

static pe_cpu_work ssm_work(const pe_cpu_call *c) {
  const pe_ssm_args *a = &c->args.ssm;
  return head_work(c, a->heads, a->dim, a->state);
}

static int64_t ssm_scratch(const pe_cpu_call *c) {
  return head_scratch(c->args.ssm.dim, c->args.ssm.state);
}

const pe_cpu_op pe_cpu_fast_ssm = {.run = ssm_run, .work = ssm_work, .scratch = ssm_scratch};
