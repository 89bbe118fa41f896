/* test_fast_attention.c - attention of `fast` over long sequences: several stretches of keys,
 * joined by one task or by a second op. Any chunks, any company and any number of tasks give the
 * same bits, which are close to a simple implementation in double precision. */
#include "check.h"
#include "kernels.h"
#include "kernels/cpu/cpu.h"

enum { BLOCK = 32, MOST = 1400, TABLE = (MOST + BLOCK - 1) / BLOCK };

typedef struct world { /* one layer and two sequences */
  int heads, key_heads, key, value, window, length[2];
  bool sinks;
  pe_kv_type type;
  pe_cpu_call call;
  float *q[2], *k[2], *v[2], *y[2]; /* [length][heads * width] */
  uint8_t *cache;
  int64_t bytes[2]; /* keys and values of a block */
} world;

static float *random_lines(int64_t n) {
  float *x = malloc((size_t)n * sizeof *x);
  for (int64_t i = 0; i < n; i++) x[i] = uniform();
  return x;
}

static const float sink_of[4] = {0.5f, -1, 2, 0};

static void world_open(world *w) {
  const int64_t rows = BLOCK * w->key_heads;
  w->bytes[0] = rows * pe_kv_row_bytes(w->type, w->key);
  w->bytes[1] = rows * pe_kv_row_bytes(w->type, w->value);
  w->cache = malloc((size_t)(2 * TABLE * (w->bytes[0] + w->bytes[1])));
  for (int s = 0; s < 2; s++) {
    w->q[s] = random_lines((int64_t)w->length[s] * w->heads * w->key);
    w->k[s] = random_lines((int64_t)w->length[s] * w->key_heads * w->key);
    w->v[s] = random_lines((int64_t)w->length[s] * w->key_heads * w->value);
    w->y[s] = calloc((size_t)w->length[s] * (size_t)(w->heads * w->value), sizeof(float));
  }
  const pe_cache_args cache = {0, w->key_heads, w->key, w->value, BLOCK, (int32_t)w->type};
  w->call.args.attention = (pe_attention_args){cache, w->heads, w->value, w->window, 0, 0.9f, 0};
  if (w->sinks) w->call.vec[0] = sink_of;
  w->call.cache[0] = w->cache, w->call.cache[1] = w->cache + w->bytes[0];
  w->call.cache_step = w->bytes[0] + w->bytes[1];
}

static void world_close(world *w) {
  for (int s = 0; s < 2; s++) free(w->q[s]), free(w->k[s]), free(w->v[s]), free(w->y[s]);
  free(w->cache);
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
  int32_t tables[2 * TABLE], table_at[2] = {0, TABLE}, segment_of[2 * MOST];
  pe_segment segment[2];
  pe_step step = {.groups = 1,
                  .segment = segment,
                  .segment_of = segment_of,
                  .tables = tables,
                  .table_at = table_at};
  for (int i = 0; i < 2 * TABLE; i++) tables[i] = (i * 37 + 5) % (2 * TABLE); /* mixed */
  for (int s = 0; s < 2; s++) {
    if (!count[s]) continue;
    segment[step.segments] =
        (pe_segment){.first = step.rows, .count = count[s], .past = done[s], .table = s};
    for (int t = 0; t < count[s]; t++) segment_of[step.rows++] = step.segments;
    step.segments++;
  }
  pe_cpu_call c = w->call, store = w->call;
  c.step = store.step = &step, c.rows = store.rows = step.rows;
  store.args.store = (pe_store_args){.cache = w->call.args.attention.cache};
  store.in[0] = lines_of(w->k, done, count, w->key_heads * w->key);
  store.in[1] = lines_of(w->v, done, count, w->key_heads * w->value);
  c.in[0] = lines_of(w->q, done, count, w->heads * w->key);
  c.out = view_new(step.rows, w->heads * w->value);
  run_op(PE_OP_STORE, &store, prim, 1);
  run_kernel(&pe_cpu_fast_attention, &c, prim, tasks);
  for (int s = 0, r = 0; s < 2; done[s] += count[s], s++)
    for (int t = done[s]; t < done[s] + count[s]; t++, r++)
      memcpy(w->y[s] + (int64_t)t * w->heads * w->value, pe_cpu_row(&c.out, r),
             (size_t)(w->heads * w->value) * sizeof(float));
  view_free(&store.in[0]), view_free(&store.in[1]), view_free(&c.in[0]), view_free(&c.out);
}

/* Both sequences in chunks of at most `chunk` rows; 0: random sizes. */
static void world_run(world *w, int chunk, const pe_prim *prim, int tasks) {
  int done[2] = {0};
  memset(w->cache, 0xff, (size_t)(2 * TABLE * (w->bytes[0] + w->bytes[1])));
  while (done[0] < w->length[0] || done[1] < w->length[1]) {
    int count[2];
    for (int s = 0; s < 2; s++) {
      int left = w->length[s] - done[s], most = chunk ? chunk : (int)(random32() % 300);
      count[s] = left < most ? left : most;
    }
    if (count[0] + count[1]) world_step(w, done, count, prim, tasks);
  }
}

static double stored(const world *w, float x) { /* as the cache rounds it */
  return w->type == PE_KV_F16 ? pe_f16_to_f32(pe_f32_to_f16(x)) : x;
}

static void check_token(const world *w, int s, int t, int h) {
  const int kh = h / (w->heads / w->key_heads);
  const int low = w->window && t >= w->window ? t - w->window + 1 : 0;
  double score[MOST], most = w->sinks ? sink_of[h] : -1e30, sum = 0;
  for (int j = low; j <= t; j++) {
    score[j] = 0;
    for (int i = 0; i < w->key; i++)
      score[j] += 0.9 * w->q[s][(t * w->heads + h) * w->key + i] *
                  stored(w, w->k[s][(j * w->key_heads + kh) * w->key + i]);
    most = fmax(most, score[j]);
  }
  if (w->sinks) sum = exp(sink_of[h] - most);
  for (int j = low; j <= t; j++) sum += score[j] = exp(score[j] - most);
  for (int i = 0; i < w->value; i++) {
    double want = 0;
    for (int j = low; j <= t; j++)
      want += score[j] / sum * stored(w, w->v[s][(j * w->key_heads + kh) * w->value + i]);
    CHECK_NEAR(w->y[s][(t * w->heads + h) * w->value + i], want, 4e-6);
  }
}

static void check_world(world w) {
  static const int chunks[] = {MOST, 1, 64, 0, 0};
  world_open(&w);
  float *want[2];
  world_run(&w, 100, &pe_prim_scalar, 1);
  for (int s = 0; s < 2; s++) {
    const size_t n = (size_t)(w.length[s] * w.heads * w.value);
    want[s] = malloc(n * sizeof(float) + 1);
    memcpy(want[s], w.y[s], n * sizeof(float));
    for (int t = 0; t < w.length[s]; t += 1 + w.length[s] / 17)
      for (int h = 0; h < w.heads; h++) check_token(&w, s, t, h);
  }
  for (int i = 0; i < 5; i++) {
    world_run(&w, chunks[i], pe_prim_best(), 1 + 2 * i);
    for (int s = 0; s < 2; s++)
      check_bits("attention", w.y[s], want[s], (int64_t)w.length[s] * w.heads * w.value);
  }
  free(want[0]), free(want[1]);
  world_close(&w);
}

static void test_stretches(void) {
  for (pe_kv_type type = PE_KV_F32; type <= PE_KV_F16; type++)
    check_world((world){
        .heads = 4, .key_heads = 2, .key = 16, .value = 16, .length = {1300, 520}, .type = type});
  check_world((world){
      .heads = 2, .key_heads = 1, .key = 33, .value = 20, .length = {1024, 1}, .type = PE_KV_F16});
}

static void test_windows(void) {
  static const int windows[] = {1, 100, 511, 512, 513, 700};
  for (int i = 0; i < 6; i++)
    check_world((world){.heads = 4,
                        .key_heads = 4,
                        .key = 16,
                        .value = 8,
                        .length = {1200, 600},
                        .window = windows[i],
                        .sinks = i % 2,
                        .type = PE_KV_F16});
}

static void test_sinks(void) {
  check_world((world){.heads = 4,
                      .key_heads = 1,
                      .key = 8,
                      .value = 8,
                      .length = {1100, 30},
                      .sinks = true,
                      .type = PE_KV_F16});
}

static const check_test tests[] = {
    {"stretches", test_stretches}, {"windows", test_windows}, {"sinks", test_sinks}};
CHECK_MAIN("fast_attention", tests)
