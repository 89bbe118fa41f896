/* test_fast_attention.c - attention of `fast` over long sequences: several stretches of keys,
 * joined by one task or by a second op. Any chunks, any company and any number of tasks give the
 * same bits, which are close to a simple implementation in double precision. */
#include "check.h"
#include "guard.h"
#include "kernels.h"
#include "kernels/cpu/amx16.h"
#include "kernels/cpu/fast_attention_tiles.h"

/* ---- a layer and two sequences --------------------------------------------------------------- */

enum { MOST = 1400 };

typedef struct world { /* one layer and two sequences */
  int heads, key_heads, key, value, window, length[2];
  bool sinks, shared; /* shared: values are a part of the keys */
  float softcap;
  int span; /* neighbours of so many tokens see each other; 0: none */
  int wild; /* of so many tokens one has values that are not finite; 0: none */
  int block;
  pe_kv_type type;
  pe_cpu_call call;
  float *q[2], *k[2], *v[2], *y[2]; /* [length][heads * width] */
  float *ks[2], *vs[2];             /* as the cache rounds them */
  uint8_t *cache;
  int64_t bytes[2]; /* keys and values of a block */
  int table;
} world;

static float *random_lines(int64_t n) {
  float *x = malloc((size_t)n * sizeof *x);
  for (int64_t i = 0; i < n; i++) x[i] = uniform();
  return x;
}

static const float sink_of[4] = {0.5f, -1, 2, 0};

/* Rows as they come back from the cache. */
static float *stored(const world *w, const float *x, int64_t rows, int width) {
  const int64_t values = pe_kv_row_values(w->type, width);
  float *out = malloc((size_t)(rows * width + values) * sizeof *out);
  float *padded = calloc((size_t)values, sizeof *padded), *back = malloc((size_t)values * 4);
  uint8_t *row = malloc((size_t)pe_kv_row_bytes(w->type, width));
  for (int64_t r = 0; r < rows; r++) {
    memcpy(padded, x + r * width, (size_t)width * sizeof *x);
    pe_cpu_kv_encode(&pe_prim_scalar, w->type, padded, width, row);
    if (w->type == PE_KV_F32)
      memcpy(back, padded, (size_t)width * 4);
    else
      pe_cpu_kv_decode(&pe_prim_scalar, w->type, row, 1, width, back);
    memcpy(out + r * width, back, (size_t)width * sizeof *x);
  }
  free(padded), free(back), free(row);
  return out;
}

static void world_open(world *w) {
  if (!w->block) w->block = 32;
  const int64_t rows = w->block * w->key_heads;
  const int cached = w->shared ? 0 : w->value;
  w->table = (MOST + w->block - 1) / w->block;
  w->bytes[0] = rows * pe_kv_row_bytes(w->type, w->key);
  w->bytes[1] = rows * pe_kv_row_bytes(w->type, cached);
  w->cache = guard_new((size_t)(2 * w->table * (w->bytes[0] + w->bytes[1])), 64);
  for (int s = 0; s < 2; s++) {
    const int64_t n = (int64_t)w->length[s] * w->key_heads;
    w->q[s] = random_lines((int64_t)w->length[s] * w->heads * w->key);
    w->k[s] = random_lines(n * w->key);
    w->v[s] = random_lines(n * w->value);
    for (int64_t t = w->wild - 1; w->wild && t < w->length[s]; t += w->wild)
      w->v[s][t * w->key_heads * w->value] = t % 3 ? INFINITY : NAN;
    w->ks[s] = stored(w, w->k[s], n, w->key), w->vs[s] = stored(w, w->v[s], n, w->value);
    w->y[s] = calloc((size_t)w->length[s] * (size_t)(w->heads * w->value), sizeof(float));
  }
  const pe_cache_args cache = {0, w->key_heads, w->key, cached, w->block, (int32_t)w->type};
  w->call.args.attention =
      (pe_attention_args){cache, w->heads, w->value, w->window, w->span > 0, 0.9f, w->softcap};
  if (w->sinks) w->call.vec[0] = sink_of;
  w->call.cache[0] = w->cache, w->call.cache[1] = w->cache + w->bytes[0];
  w->call.cache_step = w->bytes[0] + w->bytes[1];
}

static void world_close(world *w) {
  for (int s = 0; s < 2; s++) {
    free(w->q[s]), free(w->k[s]), free(w->v[s]), free(w->y[s]);
    free(w->ks[s]), free(w->vs[s]);
  }
  guard_free(w->cache);
}

/* The last token that token t sees. */
static int last_of(const world *w, int s, int t) {
  const int last = w->span ? t / w->span * w->span + w->span - 1 : t;
  return last < w->length[s] ? last : w->length[s] - 1;
}

/* A view of count[s] lines of each sequence after done[s]. */
static pe_cpu_view lines_of(float *const x[2], const int *done, const int *count, int width) {
  pe_cpu_view v = view_new(count[0] + count[1], width);
  for (int s = 0, r = 0; s < 2; s++)
    for (int t = done[s]; t < done[s] + count[s]; t++, r++)
      memcpy(pe_cpu_row(&v, r), x[s] + (int64_t)t * width, (size_t)width * sizeof(float));
  return v;
}

static void world_step(world *w, int *done, const int *count, const pe_prim *prim, int tasks) {
  const int blocks = 2 * w->table;
  int32_t *tables = malloc((size_t)blocks * sizeof *tables), table_at[2] = {0, w->table};
  int32_t segment_of[2 * MOST], last[2 * MOST];
  pe_segment segment[2];
  pe_step step = {.groups = 1,
                  .segment = segment,
                  .segment_of = segment_of,
                  .tables = tables,
                  .table_at = table_at};
  for (int i = 0; i < blocks; i++) tables[i] = (i + 5) % blocks; /* mixed */
  for (int s = 0; s < 2; s++) {
    if (!count[s]) continue;
    segment[step.segments] =
        (pe_segment){.first = step.rows, .count = count[s], .past = done[s], .table = s};
    for (int t = 0; t < count[s]; t++) {
      last[step.rows] = last_of(w, s, done[s] + t);
      segment_of[step.rows++] = step.segments;
    }
    step.segments++;
  }
  if (w->span) step.last = last, step.ahead = w->span;
  pe_cpu_call c = w->call, store = w->call;
  c.step = store.step = &step, c.rows = store.rows = step.rows;
  store.args.store = (pe_store_args){.cache = w->call.args.attention.cache};
  store.in[0] = lines_of(w->k, done, count, w->key_heads * w->key);
  store.in[1] = lines_of(w->v, done, count, w->key_heads * w->value);
  c.in[0] = lines_of(w->q, done, count, w->heads * w->key);
  c.out = view_new(step.rows, w->heads * w->value);
  run_op(PE_OP_STORE, &store, prim, 1 + tasks % 3);
  run_kernel(&pe_cpu_fast_attention, &c, prim, tasks);
  if (w->value % PE_INT16_UNIT == 0)
    check_rounded(&pe_cpu_fast_attention, &c, prim, tasks, w->heads * w->value, 32);
  for (int s = 0, r = 0; s < 2; done[s] += count[s], s++)
    for (int t = done[s]; t < done[s] + count[s]; t++, r++)
      memcpy(w->y[s] + (int64_t)t * w->heads * w->value, pe_cpu_row(&c.out, r),
             (size_t)(w->heads * w->value) * sizeof(float));
  view_free(&store.in[0]), view_free(&store.in[1]), view_free(&c.in[0]), view_free(&c.out);
  free(tables);
}

/* Both sequences in chunks of at most `chunk` rows; 0: random sizes. */
static void world_run(world *w, int chunk, const pe_prim *prim, int tasks) {
  int done[2] = {0};
  memset(w->cache, 0xff, (size_t)(2 * w->table * (w->bytes[0] + w->bytes[1])));
  while (done[0] < w->length[0] || done[1] < w->length[1]) {
    int count[2];
    for (int s = 0; s < 2; s++) {
      int left = w->length[s] - done[s], most = chunk ? chunk : (int)(random32() % 300);
      if (w->span) most = (most + w->span - 1) / w->span * w->span; /* spans are whole */
      count[s] = left < most ? left : most;
    }
    if (count[0] + count[1]) world_step(w, done, count, prim, tasks);
  }
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* The squares of errors and of values, for their ratio. */
typedef struct distance {
  double error, size;
} distance;

static void check_token(const world *w, int s, int t, int h, double near, distance *d) {
  const int kh = h / (w->heads / w->key_heads), last = last_of(w, s, t);
  const int low = w->window && t >= w->window ? t - w->window + 1 : 0;
  double score[MOST], most = w->sinks ? sink_of[h] : -1e30, sum = 0;
  for (int j = low; j <= last; j++) {
    score[j] = 0;
    for (int i = 0; i < w->key; i++)
      score[j] += 0.9 * w->q[s][(t * w->heads + h) * w->key + i] *
                  w->ks[s][(j * w->key_heads + kh) * w->key + i];
    if (w->softcap > 0) score[j] = w->softcap * tanh(score[j] / w->softcap);
    most = fmax(most, score[j]);
  }
  if (w->sinks) sum = exp(sink_of[h] - most);
  for (int j = low; j <= last; j++) sum += score[j] = exp(score[j] - most);
  for (int i = 0; i < w->value; i++) {
    const double got = w->y[s][(t * w->heads + h) * w->value + i];
    double want = 0;
    for (int j = low; j <= last; j++)
      want += score[j] / sum *
              (w->shared ? w->ks[s][(j * w->key_heads + kh) * w->key + i]
                         : w->vs[s][(j * w->key_heads + kh) * w->value + i]);
    if (w->wild && !isfinite(want)) {
      CHECK(!isfinite(got));
      continue;
    }
    CHECK_NEAR(got, want, near);
    d->error += (got - want) * (got - want), d->size += want * want;
  }
}

static void check_same(const char *what, const float *got, const float *want, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp(got + i, want + i, sizeof *got) && !(isnan(got[i]) && isnan(want[i]))) {
      check_failures++;
      printf("    %s: value %lld is %a, not %a\n", what, (long long)i, got[i], want[i]);
      return;
    }
}

/* Chunks, company and tasks make no difference; `first` of `chunks` gives the bits. */
static void check_version(world *w, const char *name, const pe_attention_version *first,
                          const pe_attention_version *version, double most, double near) {
  static const int chunks[] = {MOST, 1, 64, 0, 0};
  float *want[2];
  distance d = {0, 0};
  pe_attention_choose(first);
  world_run(w, 100, &pe_prim_scalar, 1);
  for (int s = 0; s < 2; s++) {
    const size_t n = (size_t)(w->length[s] * w->heads * w->value);
    want[s] = malloc(n * sizeof(float) + 1);
    memcpy(want[s], w->y[s], n * sizeof(float));
    for (int t = 0; t < w->length[s]; t += 1 + w->length[s] / 17)
      for (int h = 0; h < w->heads; h++) check_token(w, s, t, h, near, &d);
  }
  CHECK(sqrt(d.error / d.size) < most);
  if (getenv("DISTANCE")) printf("    %s: %.1e\n", name, sqrt(d.error / d.size));
  pe_attention_choose(version);
  for (int i = 0; i < 5; i++) {
    if (w->span && chunks[i] == 1) continue;
    if (version == &pe_attention_tiles_emulated && i > 1 && i < 4) continue; /* slow */
    world_run(w, chunks[i], pe_prim_best(), 1 + 2 * i);
    for (int s = 0; s < 2; s++)
      check_same(name, w->y[s], want[s], (int64_t)w->length[s] * w->heads * w->value);
  }
  pe_attention_choose(NULL);
  free(want[0]), free(want[1]);
}

static void check_vectors(world w) {
  world_open(&w);
  check_version(&w, "vectors", &pe_attention_vectors, &pe_attention_vectors, 2e-6, 4e-6);
  world_close(&w);
}

/* On a machine with AMX its instructions against the emulation, otherwise that alone. Queries and
 * weights are exact to 2^-17, 8e-6. */
static void check_tiles(world w) {
  world_open(&w);
  const pe_attention_version *version = &pe_attention_tiles_emulated;
#ifdef __x86_64__
  if (pe_amx16_best()) version = &pe_attention_tiles;
#endif
  check_version(&w, "tiles", &pe_attention_tiles_emulated, version, 8e-6, 3e-5);
  world_close(&w);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_stretches(void) {
  for (pe_kv_type type = PE_KV_F32; type <= PE_KV_F16; type++)
    check_vectors((world){
        .heads = 4, .key_heads = 2, .key = 16, .value = 16, .length = {1300, 520}, .type = type});
  check_vectors((world){
      .heads = 2, .key_heads = 1, .key = 33, .value = 20, .length = {1024, 1}, .type = PE_KV_F16});
  check_vectors((world){
      .heads = 2, .key_heads = 1, .key = 16, .value = 64, .length = {1100, 3}, .type = PE_KV_F16});
}

static void test_windows(void) {
  static const int windows[] = {1, 100, 511, 512, 513, 700};
  for (int i = 0; i < 6; i++)
    check_vectors((world){.heads = 4,
                          .key_heads = 4,
                          .key = 16,
                          .value = 8,
                          .length = {1200, 600},
                          .window = windows[i],
                          .sinks = i % 2,
                          .type = PE_KV_F16});
}

static void test_sinks(void) {
  check_vectors((world){.heads = 4,
                        .key_heads = 1,
                        .key = 8,
                        .value = 8,
                        .length = {1100, 30},
                        .sinks = true,
                        .type = PE_KV_F16});
}

/* All that differs between layers, for both versions; lengths end inside of blocks and tiles. */
static const world ragged[] = {
    {.heads = 4, .key_heads = 2, .key = 64, .value = 48, .length = {150, 77}, .block = 64},
    {.heads = 3, .key_heads = 1, .key = 33, .value = 20, .length = {170, 5}, .softcap = 3},
    {.heads = 2, .key_heads = 1, .key = 16, .value = 16, .length = {530, 0}, .sinks = true},
    {.heads = 2, .key_heads = 2, .key = 20, .value = 16, .length = {130, 65}, .window = 40},
    {.heads = 2, .key_heads = 1, .key = 32, .value = 32, .length = {100, 40}, .span = 10},
    {.heads = 2, .key_heads = 1, .key = 16, .value = 24, .length = {150, 90}, .wild = 60},
    {.heads = 2, .key_heads = 1, .key = 16, .value = 16, .length = {130, 9}, .block = 8},
    {.heads = 4, .key_heads = 1, .key = 40, .value = 24, .length = {140, 33}, .shared = true},
    /* weights between the products of other parts; too much to unpack keys and values at once */
    {.heads = 4, .key_heads = 1, .key = 64, .value = 64, .length = {300, 20}, .block = 64},
    {.heads = 2, .key_heads = 1, .key = 64, .value = 600, .length = {60, 40}, .block = 64}};
enum { RAGGED = sizeof ragged / sizeof *ragged };

static void test_ragged_vectors(void) {
  for (int i = 0; i < RAGGED; i++)
    for (pe_kv_type type = PE_KV_F32; type < PE_KV_TYPES; type++) {
      world w = ragged[i];
      w.type = type;
      check_vectors(w);
    }
}

static void test_ragged_tiles(void) {
  for (int i = 0; i < RAGGED; i++)
    for (pe_kv_type type = PE_KV_F16; type < PE_KV_TYPES; type++) {
      world w = ragged[i];
      w.type = type;
      if (type == PE_KV_F16 || i == 1 || w.shared) check_tiles(w);
    }
}

/* Head sizes of models: does the distance to double precision hold? */
static void test_distance(void) {
  const world w = {.heads = 2, .key_heads = 1, .key = 128, .value = 128, .type = PE_KV_F16};
  world v = w, t = w;
  v.length[0] = t.length[0] = 90, v.block = t.block = 64;
  check_vectors(v);
  check_tiles(t);
}

static const check_test tests[] = {{"stretches", test_stretches},
                                   {"windows", test_windows},
                                   {"sinks", test_sinks},
                                   {"ragged, vectors", test_ragged_vectors},
                                   {"ragged, tiles", test_ragged_tiles},
                                   {"distance", test_distance}};
CHECK_MAIN("fast_attention", tests)
