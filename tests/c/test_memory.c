/* test_memory.c - the CPU ops that see the past of a sequence: attention, convolution, delta rule,
 * Mamba 2.
 *
 * Three sequences are run through an op in several schedules: whole, one at a time, in chunks,
 * token by token, mixed; with scalar and vector code and several numbers of tasks. Results and
 * final states must be equal bit for bit, and close to a simple implementation in double
 * precision. */
#include "check.h"
#include "kernels.h"
#include "kernels/cpu/cpu.h"

enum { SEQUENCES = 3, TOKENS = 63, INPUTS = 5, GROUPS = 2, GROUP = 1, BLOCK = 4, TABLE = 10 };
static const int lengths[SEQUENCES] = {1, 39, 23}, begins[SEQUENCES] = {0, 1, 40};

/* One op over all tokens of the sequences. */
typedef struct world {
  pe_op op;
  pe_precision precision;
  pe_cpu_call call;                 /* arguments, vectors */
  int64_t width[INPUTS], out_width; /* width 0: no such input */
  float *x[INPUTS], *y;             /* [TOKENS][width] */
  int64_t state_floats;
  int64_t block_bytes[2]; /* keys and values of a block, which are next to each other */
  float *state;
  uint8_t *cache;
  const pe_store_args *store; /* run before the op, from inputs 1 .. 3 */
  int window;                 /* blocks entirely outside of it are released */
  bool spans;                 /* tokens of a span see all of it, and are run together */
} world;

/* The end of the span that a token belongs to, otherwise the token itself. */
static int last_seen(const world *w, int s, int t) {
  static const struct {
    int s, first, last;
  } spans[] = {{0, 0, 0}, {1, 7, 19}, {1, 20, 24}, {2, 0, 4}, {2, 15, 22}};
  for (int i = 0; w->spans && i < 5; i++)
    if (spans[i].s == s && t >= spans[i].first && t <= spans[i].last) return spans[i].last;
  return t;
}

static size_t cache_size(const world *w) {
  return (size_t)(SEQUENCES * TABLE * (w->block_bytes[0] + w->block_bytes[1]));
}

static void world_init(world *w) {
  for (int i = 0; i < INPUTS; i++) {
    w->x[i] = malloc((size_t)(TOKENS * w->width[i]) * sizeof(float) + 1);
    for (int64_t k = 0; k < TOKENS * w->width[i]; k++) w->x[i][k] = uniform();
  }
  w->y = malloc((size_t)(TOKENS * w->out_width) * sizeof(float));
  w->state = guard_floats(SEQUENCES * w->state_floats);
  w->cache = guard_new(cache_size(w), 64);
}

static void world_free(world *w) {
  for (int i = 0; i < INPUTS; i++) free(w->x[i]);
  free(w->y), guard_free(w->state), guard_free(w->cache);
}

/* Blocks of the sequences are mixed in the pool; the tables of group 0 are invalid. */
static void fill_tables(int32_t *tables) {
  for (int s = 0; s < SEQUENCES; s++)
    for (int i = 0; i < GROUPS * TABLE; i++)
      tables[s * GROUPS * TABLE + i] =
          i < TABLE ? 1 << 20 : (i - TABLE) * SEQUENCES + (s + i) % SEQUENCES;
}

static void drop_blocks(int32_t *tables, int window, const int *done) {
  for (int s = 0; s < SEQUENCES; s++)
    for (int b = 0; window && (b + 1) * BLOCK <= done[s] - window + 1; b++)
      tables[(s * GROUPS + GROUP) * TABLE + b] = -1;
}

/* Runs count[s] more tokens of each sequence, after done[s]. */
static void world_step(world *w, const int *order, const int *count, int *done, const pe_prim *prim,
                       int tasks) {
  int32_t table_at[SEQUENCES * GROUPS];
  int32_t tables[SEQUENCES * GROUPS * TABLE], segment_of[TOKENS], last[TOKENS];
  pe_segment segments[SEQUENCES];
  pe_step step = {.groups = GROUPS,
                  .segment_of = segment_of,
                  .segment = segments,
                  .tables = tables,
                  .table_at = table_at};
  pe_cpu_call c = w->call;
  int rows[TOKENS]; /* the token of each row */
  for (int i = 0; i < SEQUENCES * GROUPS; i++) table_at[i] = i * TABLE;
  fill_tables(tables);
  drop_blocks(tables, w->window, done);
  for (int i = 0; i < SEQUENCES; i++) {
    int s = order[i];
    if (!count[s]) continue;
    segments[step.segments] = (pe_segment){
        .first = step.rows, .count = count[s], .past = done[s], .slot = 2 - s, .table = s * GROUPS};
    for (int t = 0; t < count[s]; t++) {
      int ahead = last_seen(w, s, done[s] + t) - (done[s] + t);
      last[step.rows] = done[s] + t + ahead;
      if (ahead > step.ahead) step.ahead = ahead;
      segment_of[step.rows] = step.segments, rows[step.rows++] = begins[s] + done[s] + t;
    }
    step.segments++, done[s] += count[s];
  }
  if (w->spans) step.last = last;
  c.step = &step, c.rows = step.rows, c.state = w->state, c.state_step = w->state_floats,
  c.cache[0] = w->cache, c.cache[1] = w->cache + w->block_bytes[0],
  c.cache_step = w->block_bytes[0] + w->block_bytes[1];
  c.out = view_new(c.rows, w->out_width);
  for (int i = 0; i < INPUTS; i++) {
    if (!w->width[i]) continue;
    c.in[i] = view_new(c.rows, w->width[i]);
    for (int r = 0; r < c.rows; r++)
      memcpy(c.in[i].at + r * c.in[i].step, w->x[i] + rows[r] * w->width[i],
             (size_t)w->width[i] * sizeof(float));
  }
  if (w->store) {
    pe_cpu_call before = c;
    for (int i = 0; i < 3; i++) before.in[i] = c.in[i + 1];
    before.args.store = *w->store;
    run_op(PE_OP_STORE, &before, prim, tasks);
  }
  run_kernel(pe_cpu_op_of(w->op, w->precision), &c, prim, tasks);
  for (int r = 0; r < c.rows; r++)
    memcpy(w->y + rows[r] * w->out_width, c.out.at + r * c.out.step,
           (size_t)w->out_width * sizeof(float));
  for (int i = 0; i < INPUTS; i++) view_free(&c.in[i]);
  view_free(&c.out);
}

enum { WHOLE, ONE_AT_A_TIME, SINGLE_TOKENS, MIXED, SCHEDULES };

static void world_run(world *w, int schedule, const pe_prim *prim, int tasks) {
  static const int orders[2][SEQUENCES] = {{0, 1, 2}, {2, 0, 1}};
  int done[SEQUENCES] = {0}, left = TOKENS;
  memset(w->y, 0xff, (size_t)(TOKENS * w->out_width) * sizeof(float));
  memset(w->state, 0, (size_t)(SEQUENCES * w->state_floats) * sizeof(float));
  memset(w->cache, 0xff, cache_size(w)); /* NaN: never read */
  for (int step = 0; left > 0; step++) {
    int count[SEQUENCES] = {0}, n = 0;
    for (int s = 0; s < SEQUENCES; s++) {
      int more = schedule == WHOLE           ? lengths[s]
                 : schedule == ONE_AT_A_TIME ? (step == s) * lengths[s]
                 : schedule == SINGLE_TOKENS ? 1
                                             : (int)(random32() % 8);
      count[s] = more < lengths[s] - done[s] ? more : lengths[s] - done[s];
      if (count[s]) count[s] = last_seen(w, s, done[s] + count[s] - 1) + 1 - done[s];
      n += count[s];
    }
    if (!n) continue;
    world_step(w, orders[step % 2], count, done, prim, tasks);
    left -= n;
  }
}

/* Leaves the results in w->y. */
static void check_schedules(world *w) {
  size_t y = (size_t)(TOKENS * w->out_width), state = (size_t)(SEQUENCES * w->state_floats);
  float *want = malloc((y + state) * sizeof *want);
  world_run(w, WHOLE, &pe_prim_scalar, 1);
  memcpy(want, w->y, y * sizeof *want), memcpy(want + y, w->state, state * sizeof *want);
  for (int schedule = 0; schedule < SCHEDULES; schedule++)
    for (int tasks = 1; tasks <= 7; tasks += 3) {
      world_run(w, schedule, pe_prim_best(), tasks);
      check_bits(pe_op_name(w->op), w->y, want, (int64_t)y);
      check_bits("its state", w->state, want + y, (int64_t)state);
    }
  free(want);
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct attention_case {
  int heads, key_heads, key, value, window;
  float softcap;
  bool sinks, rope, spans, latent; /* latent: values are the first part of the keys */
  pe_kv_type type;
} attention_case;

static void exact_attention(const world *w, const attention_case *k, const float *keys,
                            const float *values, int s, int t, int h, double *out) {
  const pe_attention_args *a = &w->call.args.attention;
  int kh = h / (k->heads / k->key_heads), low = k->window && t >= k->window ? t - k->window + 1 : 0;
  double score[TOKENS], most = k->sinks ? w->call.vec[0][h] : -INFINITY, sum = 0;
  const int last = last_seen(w, s, t);
  for (int j = low; j <= last; j++) {
    score[j] = 0;
    for (int i = 0; i < k->key; i++)
      score[j] += (double)w->x[0][(begins[s] + t) * w->width[0] + h * k->key + i] *
                  keys[((begins[s] + j) * k->key_heads + kh) * k->key + i];
    score[j] *= a->scale;
    if (k->softcap > 0) score[j] = k->softcap * tanh(score[j] / k->softcap);
    most = fmax(most, score[j]);
  }
  if (k->sinks) sum = exp(w->call.vec[0][h] - most);
  for (int j = low; j <= last; j++) sum += score[j] = exp(score[j] - most);
  for (int i = 0; i < k->value; i++) out[i] = 0;
  for (int j = low; j <= last; j++)
    for (int i = 0; i < k->value; i++)
      out[i] += score[j] / sum *
                (k->latent ? keys[((begins[s] + j) * k->key_heads + kh) * k->key + i]
                           : values[(begins[s] + j) * w->width[2] + kh * k->value + i]);
}

/* Rows as a cache of this type stores them. */
static float *remembered(pe_kv_type type, const float *x, int64_t rows, int32_t width) {
  float *out = malloc((size_t)(rows * width) * sizeof *out + 1),
        *row = malloc((size_t)(width + 32) * sizeof *row);
  uint8_t *stored = malloc((size_t)pe_kv_row_bytes(type, width) + 1);
  for (int64_t r = 0; r < rows; r++) {
    pe_cpu_kv_encode(&pe_prim_scalar, type, x + r * width, width, stored);
    pe_cpu_kv_decode(&pe_prim_scalar, type, stored, 1, width, row);
    memcpy(out + r * width, row, (size_t)width * sizeof *row);
  }
  free(row), free(stored);
  return out;
}

static void rotate_keys(const world *w, const attention_case *k, float *keys) {
  const int half = k->rope ? k->key / 2 : 0;
  for (int t = 0; t < TOKENS; t++)
    for (int h = 0; h < k->key_heads; h++)
      for (int i = 0; i < half; i++) {
        float *x = keys + (t * k->key_heads + h) * k->key, u = x[i], v = x[half + i];
        const float *table = w->x[3] + t * w->width[3];
        x[i] = u * table[i] - v * table[half + i], x[half + i] = v * table[i] + u * table[half + i];
      }
}

static void check_exact(const world *w, const attention_case *k) {
  float *turned = malloc((size_t)(TOKENS * w->width[1]) * sizeof *turned);
  memcpy(turned, w->x[1], (size_t)(TOKENS * w->width[1]) * sizeof *turned);
  rotate_keys(w, k, turned);
  float *keys = remembered(k->type, turned, TOKENS * k->key_heads, k->key), *values = NULL;
  if (!k->latent) values = remembered(k->type, w->x[2], TOKENS * k->key_heads, k->value);
  for (int s = 0; s < SEQUENCES; s++)
    for (int t = 0; t < lengths[s]; t++)
      for (int h = 0; h < k->heads; h++) {
        const double near = w->precision == PE_FAST ? 2e-5 : 4e-6; /* bf16 pairs on AMX */
        double want[256];
        exact_attention(w, k, keys, values, s, t, h, want);
        for (int i = 0; i < k->value; i++)
          CHECK_NEAR(w->y[(begins[s] + t) * w->out_width + h * k->value + i], want[i], near);
      }
  free(turned), free(keys), free(values);
}

static void check_attention(const attention_case *k) {
  const int half = k->rope ? k->key / 2 : 0;
  const pe_cache_args cache = {GROUP, k->key_heads,    k->key, k->latent ? 0 : k->value,
                               BLOCK, (int32_t)k->type};
  const pe_store_args store = {cache, {k->key_heads, k->key, half, 0, 0, {0}}};
  const int64_t rows = BLOCK * k->key_heads;
  float sinks[32];
  for (int i = 0; i < 32; i++) sinks[i] = 2 * uniform();
  world w = {.op = PE_OP_ATTENTION,
             .store = &store,
             .out_width = k->heads * k->value,
             .window = k->window,
             .spans = k->spans};
  w.width[0] = k->heads * k->key, w.width[1] = k->key_heads * k->key,
  w.width[2] = k->latent ? 0 : k->key_heads * k->value, w.width[3] = 2 * half;
  w.block_bytes[0] = (rows * pe_kv_row_bytes(k->type, k->key) + 3) / 4 * 4;
  w.block_bytes[1] = (rows * pe_kv_row_bytes(k->type, cache.value) + 3) / 4 * 4;
  w.call.args.attention =
      (pe_attention_args){cache, k->heads, k->value, k->window, k->spans, 0.4f, k->softcap};
  if (k->sinks) w.call.vec[0] = sinks;
  world_init(&w);
  for (w.precision = PE_EXACT; w.precision <= PE_FAST; w.precision++) {
    check_schedules(&w);
    check_exact(&w, k);
  }
  world_free(&w);
}

static void test_attention(void) {
  check_attention(
      &(attention_case){.heads = 4, .key_heads = 2, .key = 16, .value = 16, .rope = true});
  check_attention(&(attention_case){.heads = 3, .key_heads = 3, .key = 10, .value = 7});
  check_attention(&(attention_case){.heads = 1, .key_heads = 1, .key = 1, .value = 1});
  check_attention(
      &(attention_case){.heads = 5, .key_heads = 1, .key = 33, .value = 20, .rope = true});
}
static void test_attention_window(void) {
  static const int windows[] = {1, 2, 3, 7, 16, 38, 39, 40, 100};
  for (int i = 0; i < 9; i++)
    check_attention(&(attention_case){
        .heads = 6, .key_heads = 2, .key = 12, .value = 12, .window = windows[i]});
}
static void test_attention_spans(void) {
  static const int windows[] = {0, 1, 2, 7, 13, 14, 16, 29, 100};
  for (int i = 0; i < 9; i++)
    for (pe_kv_type type = PE_KV_F32; type <= PE_KV_Q8; type++)
      check_attention(&(attention_case){.heads = 6,
                                        .key_heads = 2,
                                        .key = 12,
                                        .value = 12,
                                        .window = windows[i],
                                        .spans = true,
                                        .type = type});
  check_attention(&(attention_case){
      .heads = 21, .key_heads = 1, .key = 16, .value = 8, .spans = true, .sinks = true});
}
static void test_attention_sinks(void) {
  check_attention(
      &(attention_case){.heads = 4, .key_heads = 2, .key = 16, .value = 8, .sinks = true});
  check_attention(&(attention_case){
      .heads = 8, .key_heads = 1, .key = 16, .value = 8, .sinks = true, .window = 5});
}
static void test_attention_softcap(void) {
  check_attention(
      &(attention_case){.heads = 2, .key_heads = 1, .key = 24, .value = 24, .softcap = 1.5f});
}
static void test_attention_latent(void) { /* more query heads than QUERIES */
  check_attention(
      &(attention_case){.heads = 21, .key_heads = 1, .key = 40, .value = 32, .latent = true});
}

static void test_attention_types(void) { /* 80 and 97: partly filled groups */
  static const int keys[] = {16, 40, 64, 80, 97, 128};
  for (pe_kv_type type = PE_KV_F16; type <= PE_KV_Q4; type++) {
    for (int i = 0; i < 6; i++)
      check_attention(&(attention_case){.heads = 4,
                                        .key_heads = 2,
                                        .key = keys[i],
                                        .value = keys[5 - i],
                                        .rope = i != 4,
                                        .type = type});
    check_attention(&(attention_case){.heads = 6,
                                      .key_heads = 2,
                                      .key = 32,
                                      .value = 24,
                                      .window = 5,
                                      .sinks = true,
                                      .type = type});
    check_attention(&(attention_case){
        .heads = 2, .key_heads = 1, .key = 192, .value = 128, .sinks = true, .type = type});
    check_attention(&(attention_case){.heads = 2,
                                      .key_heads = 2,
                                      .key = 256,
                                      .value = 256,
                                      .sinks = true,
                                      .window = 5,
                                      .rope = true,
                                      .type = type});
    check_attention(&(attention_case){
        .heads = 21, .key_heads = 1, .key = 72, .value = 64, .latent = true, .type = type});
    check_attention(&(attention_case){.heads = 2,
                                      .key_heads = 1,
                                      .key = 24,
                                      .value = 24,
                                      .softcap = 1.5f,
                                      .window = 1,
                                      .type = type});
  }
}

/* ---- convolution ----------------------------------------------------------------------------- */

static void check_conv(pe_precision precision, int channels, int taps, bool bias, int activation) {
  float *weight = guard_floats(channels * taps), *add = guard_floats(channels);
  for (int i = 0; i < channels * taps; i++) weight[i] = uniform();
  for (int i = 0; i < channels; i++) add[i] = uniform();
  world w = {.op = PE_OP_CONV,
             .precision = precision,
             .width = {channels},
             .out_width = channels,
             .state_floats = channels * (taps - 1)};
  w.call.args.conv = (pe_conv_args){channels, taps, activation};
  w.call.vec[0] = weight, w.call.vec[1] = bias ? add : NULL;
  world_init(&w);
  check_schedules(&w);
  for (int s = 0; s < SEQUENCES; s++)
    for (int c = 0; c < channels; c++) {
      for (int t = 0; t < lengths[s]; t++) {
        double y = bias ? add[c] : 0;
        for (int k = 0; k < taps; k++)
          if (t - taps + 1 + k >= 0)
            y += (double)weight[c * taps + k] *
                 w.x[0][(begins[s] + t - taps + 1 + k) * channels + c];
        if (activation == PE_MAP_SILU) y = y / (1 + exp(-y));
        if (activation == PE_MAP_TANH) y = tanh(y);
        CHECK_NEAR(w.y[(begins[s] + t) * channels + c], y, 1e-6);
      }
      for (int k = 0; k < taps - 1; k++) { /* the state: the last inputs, oldest first */
        const int t = lengths[s] - taps + 1 + k,
                  at = precision == PE_FAST ? k * channels + c : c * (taps - 1) + k;
        CHECK_NEAR(w.state[(2 - s) * w.state_floats + at],
                   t < 0 ? 0 : w.x[0][(begins[s] + t) * channels + c], 0);
      }
    }
  guard_free(weight), guard_free(add), world_free(&w);
}

static void test_conv(void) {
  for (pe_precision p = PE_EXACT; p <= PE_FAST; p++) {
    check_conv(p, 64, 4, false, PE_MAP_SILU);
    check_conv(p, 131, 3, true, -1);
    check_conv(p, 1, 2, true, PE_MAP_SILU);
    check_conv(p, 10, 1, false, -1);
    check_conv(p, 5, 40, false, -1); /* longer than the sequences */
    check_conv(p, 1207, 4, true, PE_MAP_TANH);
  }
}

/* ---- recurrences ----------------------------------------------------------------------------- */

/* Where the state of a head has value j of key i (fast_recur.c). */
static int64_t state_at(pe_precision precision, int key, int value, int j, int i) {
  const int first = j / PE_PASS_LANES * PE_PASS_LANES,
            lanes = value - first < PE_PASS_LANES ? value - first : PE_PASS_LANES;
  return precision == PE_FAST ? first * key + i * lanes + j - first : j * key + i;
}

static void check_delta(pe_precision precision, int heads, int key_heads, int key, int value,
                        bool channel) {
  world w = {.op = PE_OP_DELTA,
             .precision = precision,
             .out_width = heads * value,
             .state_floats = (int64_t)heads * value * key};
  const int64_t widths[INPUTS] = {key_heads * key, key_heads * key, heads * value,
                                  channel ? heads * key : heads, heads};
  memcpy(w.width, widths, sizeof widths);
  w.call.args.delta = (pe_delta_args){heads, key_heads, key, value, channel};
  world_init(&w);
  for (int64_t i = 0; i < TOKENS * w.width[1]; i++)
    w.x[1][i] /= sqrtf((float)key); /* keys of length about 1 */
  for (int64_t i = 0; i < TOKENS * w.width[3]; i++) w.x[3][i] = fabsf(w.x[3][i]);
  for (int64_t i = 0; i < TOKENS * w.width[4]; i++) w.x[4][i] = fabsf(w.x[4][i]);
  check_schedules(&w);
  double *state = malloc((size_t)(value * key) * sizeof *state);
  for (int s = 0; s < SEQUENCES; s++)
    for (int h = 0; h < heads; h++) {
      memset(state, 0, (size_t)(value * key) * sizeof *state);
      for (int t = 0; t < lengths[s]; t++) {
        const int64_t at = begins[s] + t, kh = h / (heads / key_heads);
        const float *q = w.x[0] + at * w.width[0] + kh * key,
                    *k = w.x[1] + at * w.width[1] + kh * key;
        for (int j = 0; j < value; j++) {
          double seen = 0, y = 0, *line = state + j * key;
          for (int i = 0; i < key; i++)
            line[i] *= w.x[3][at * w.width[3] + (channel ? h * key + i : h)],
                seen += line[i] * k[i];
          double d = (w.x[2][at * w.width[2] + h * value + j] - seen) * w.x[4][at * heads + h];
          for (int i = 0; i < key; i++) line[i] += d * k[i], y += line[i] * q[i];
          CHECK_NEAR(w.y[at * w.out_width + h * value + j], y, 1e-5);
        }
      }
      const float *got = w.state + (2 - s) * w.state_floats + (int64_t)h * value * key;
      for (int i = 0; i < value * key; i++)
        CHECK_NEAR(got[state_at(precision, key, value, i / key, i % key)], state[i], 1e-5);
    }
  free(state), world_free(&w);
}

static void test_delta(void) {
  for (pe_precision p = PE_EXACT; p <= PE_FAST; p++) {
    check_delta(p, 4, 2, 16, 8, false);
    check_delta(p, 3, 3, 13, 21, false);
    check_delta(p, 2, 1, 32, 5, true);
    check_delta(p, 1, 1, 1, 1, true);
    check_delta(p, 3, 1, 24, 112, false);
    check_delta(p, 2, 2, 17, 70, true);
  }
}

static void check_ssm(pe_precision precision, int heads, int dim, int groups, int state, float low,
                      float high, bool skip) {
  float a_log[16], bias[16], through[16];
  for (int i = 0; i < 16; i++) a_log[i] = uniform(), bias[i] = uniform(), through[i] = uniform();
  world w = {.op = PE_OP_SSM,
             .precision = precision,
             .out_width = heads * dim,
             .state_floats = (int64_t)heads * dim * state};
  w.width[0] = heads * dim, w.width[1] = w.width[2] = groups * state, w.width[3] = heads;
  w.call.args.ssm = (pe_ssm_args){heads, dim, groups, state, low, high};
  w.call.vec[0] = a_log, w.call.vec[1] = bias, w.call.vec[2] = skip ? through : NULL;
  world_init(&w);
  check_schedules(&w);
  double *memory = malloc((size_t)(dim * state) * sizeof *memory);
  for (int s = 0; s < SEQUENCES; s++)
    for (int h = 0; h < heads; h++) {
      memset(memory, 0, (size_t)(dim * state) * sizeof *memory);
      for (int t = 0; t < lengths[s]; t++) {
        const int64_t at = begins[s] + t, g = h / (heads / groups);
        const float *b = w.x[1] + at * w.width[1] + g * state,
                    *c = w.x[2] + at * w.width[2] + g * state;
        double dt = log1p(exp((double)w.x[3][at * heads + h] + bias[h]));
        dt = fmin(fmax(dt, low), high);
        for (int j = 0; j < dim; j++) {
          double x = w.x[0][at * w.width[0] + h * dim + j], y = skip ? through[h] * x : 0;
          for (int i = 0; i < state; i++) {
            double *m = memory + j * state + i;
            *m = exp(-exp(a_log[h]) * dt) * *m + dt * x * b[i];
            y += *m * c[i];
          }
          CHECK_NEAR(w.y[at * w.out_width + h * dim + j], y, 1e-5);
        }
      }
    }
  free(memory), world_free(&w);
}

static void test_ssm(void) {
  for (pe_precision p = PE_EXACT; p <= PE_FAST; p++) {
    check_ssm(p, 4, 8, 2, 16, 0, INFINITY, true);
    check_ssm(p, 3, 5, 1, 13, 0.5f, 0.9f, false);
    check_ssm(p, 1, 1, 1, 1, 0, INFINITY, true);
    check_ssm(p, 2, 80, 1, 48, 0, INFINITY, true);
  }
}

static const check_test tests[] = {{"attention", test_attention},
                                   {"attention_window", test_attention_window},
                                   {"attention_spans", test_attention_spans},
                                   {"attention_sinks", test_attention_sinks},
                                   {"attention_softcap", test_attention_softcap},
                                   {"attention_latent", test_attention_latent},
                                   {"attention_types", test_attention_types},
                                   {"conv", test_conv},
                                   {"delta", test_delta},
                                   {"ssm", test_ssm}};
CHECK_MAIN("memory", tests)
