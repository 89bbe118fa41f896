/* test_memory.c - Metal's kernels with memory against the CPU's exact ones: store, attention, conv,
 * delta, ssm. Prompts may be cut anywhere, and rows may come alone: the bits stay. */
#include "metal_after.h"
#include "metal_before.h"
#include "metal_main.h"
#include "metal_run.h"

/* ---- a step over a cache --------------------------------------------------------------------- */

enum { SEGMENTS = 3, BLOCKS = 96, TABLE_ROOM = 64 };

/* Three sequences in two cache groups, of which the second is used. Their blocks are shuffled. */
typedef struct world {
  pe_step step;
  pe_segment segment[SEGMENTS];
  int32_t table_at[SEGMENTS * 2], tables[(SEGMENTS * 2 + 1) * TABLE_ROOM];
  int32_t segment_of[512], last[512], position[3 * 512];
} world;

static void world_tables(world *w) {
  int32_t free[BLOCKS];
  for (int32_t i = 0; i < BLOCKS; i++) free[i] = i;
  for (int32_t i = BLOCKS; i > 1; i--) {
    const uint32_t j = random32() % (uint32_t)i;
    const int32_t other = free[i - 1];
    free[i - 1] = free[j], free[j] = other;
  }
  memset(w->tables, 0xff, sizeof w->tables); /* blocks that no row sees */
  for (int32_t s = 0; s < SEGMENTS; s++)     /* of group 1 */
    for (int32_t i = 0; i < BLOCKS / SEGMENTS; i++)
      w->tables[(s * 2 + 1) * TABLE_ROOM + i] = free[s * (BLOCKS / SEGMENTS) + i];
}

/* Rows count[s] of sequence s after past[s] tokens; count 0: it has no rows. */
static void world_rows(world *w, const int32_t *past, const int32_t *count) {
  int32_t rows = 0, segments = 0;
  for (int32_t s = 0; s < SEGMENTS; s++) {
    if (!count[s]) continue;
    w->segment[segments] = (pe_segment){
        .first = rows, .count = count[s], .past = past[s], .slot = s, .table = segments * 2};
    for (int32_t g = 0; g < 2; g++) w->table_at[segments * 2 + g] = (s * 2 + g) * TABLE_ROOM;
    for (int32_t i = 0; i < count[s]; i++, rows++) {
      w->segment_of[rows] = segments;
      w->last[rows] = past[s] + (i / 4 + 1) * 4 - 1; /* pictures of four tokens */
      if (w->last[rows] >= past[s] + count[s]) w->last[rows] = past[s] + count[s] - 1;
    }
    segments++;
  }
  w->step = (pe_step){.rows = rows, .segments = segments, .groups = 2};
  w->step.position = w->position, w->step.segment_of = w->segment_of;
  w->step.segment = w->segment, w->step.tables = w->tables, w->step.table_at = w->table_at;
}

/* ---- store ----------------------------------------------------------------------------------- */

/* The pools of a cache. */
typedef struct pools {
  uint8_t *at[2];
  int64_t bytes, step;
} pools;

static pools pools_new(const pe_cache_args *a) {
  const int64_t row =
      pe_kv_row_bytes((pe_kv_type)a->type, a->key) + pe_kv_row_bytes((pe_kv_type)a->type, a->value);
  pools p = {.step = (a->heads * a->block * row + 31) / 16 * 16};
  p.bytes = p.step * BLOCKS;
  for (int i = 0; i < 2; i++) p.at[i] = memset(malloc((size_t)p.bytes), 0x11, (size_t)p.bytes);
  return p;
}
static void pools_free(pools *p) { free(p->at[0]), free(p->at[1]); }

static pe_cpu_call store_call(const world *w, const pools *p, const pe_store_args *a) {
  pe_cpu_call c = {.step = &w->step, .rows = w->step.rows};
  c.in[0] = view_new(c.rows, a->cache.heads * a->cache.key);
  view_fill(&c.in[0], c.rows, a->cache.heads * a->cache.key);
  if (a->cache.value) {
    c.in[1] = view_new(c.rows, a->cache.heads * a->cache.value);
    view_fill(&c.in[1], c.rows, a->cache.heads * a->cache.value);
  }
  c.cache[0] = p->at[0], c.cache[1] = a->cache.value ? p->at[1] : NULL, c.cache_step = p->step;
  c.args.store = *a;
  return c;
}
static void store_free(pe_cpu_call *c) {
  for (int i = 0; i < 3; i++)
    if (c->in[i].at) view_free(&c->in[i]);
}

/* Keys of one head of a block as floats: [block][key]. */
static void block_keys(const pe_cache_args *a, const uint8_t *head, float *out) {
  const int32_t bytes = pe_kv_row_bytes((pe_kv_type)a->type, a->key);
  uint8_t *rows = malloc((size_t)(a->block * bytes));
  pe_kv_get_keys(a, head, 0, a->block, rows);
  pe_cpu_kv_decode(pe_prim_best(), (pe_kv_type)a->type, rows, a->block, a->key, out);
  free(rows);
}

/* Rotated keys are rounded from slightly different numbers: compared as numbers. */
static void compare_keys(const pe_cache_args *a, const uint8_t *got, const uint8_t *want,
                         int64_t step) {
  static const double tolerance[PE_KV_TYPES] = {1e-5, 1e-3, 0.03, 0.3};
  const int64_t width = pe_kv_row_values((pe_kv_type)a->type, a->key), n = a->block * width;
  const int64_t head = (int64_t)a->block * pe_kv_row_bytes((pe_kv_type)a->type, a->key);
  float *x = calloc(2 * (size_t)n, sizeof *x);
  for (int64_t b = 0; b < BLOCKS; b++)
    for (int64_t h = 0; h < a->heads; h++) {
      if (!memcmp(got + b * step + h * head, want + b * step + h * head, (size_t)head)) continue;
      block_keys(a, got + b * step + h * head, x);
      block_keys(a, want + b * step + h * head, x + n);
      metal_compare("keys", x, x + n, n, tolerance[a->type]);
    }
  free(x);
}

static void check_store(pe_cache_args cache, bool turned, bool normalized) {
  static const int32_t past[] = {5, 0, 70}, count[] = {1, 37, 30};
  static world w;
  float weight[256];
  for (int i = 0; i < 256; i++) weight[i] = uniform();
  world_tables(&w), world_rows(&w, past, count);
  pools p = pools_new(&cache);
  pe_store_args a = {.cache = cache};
  if (turned) {
    a.rope = (pe_rope_args){cache.heads, cache.key, cache.key / 3, normalized, 2, {0}};
    if (normalized) a.rope.norm = (pe_norm_args){cache.key, 1, cache.key, 1e-6f, 0, 1, 0, 0};
  }
  pe_cpu_call c = store_call(&w, &p, &a);
  if (turned) {
    c.in[2] = view_new(c.rows, 2 * a.rope.turns), view_fill(&c.in[2], c.rows, 2 * a.rope.turns);
    if (normalized) c.vec[0] = weight;
  }
  metal_case k = {.op = PE_OP_STORE, .c = &c, .vec = {cache.key}};
  k.cache_bytes[0] = p.bytes, k.cache_bytes[1] = cache.value ? p.bytes : 0;
  metal_buffers b;
  metal_check_into(&k, 0, &b);
  if (!turned) CHECK(!memcmp(b.owned[PE_SLOT_KEYS], p.at[0], (size_t)p.bytes));
  compare_keys(&cache, b.owned[PE_SLOT_KEYS], p.at[0], p.step);
  if (cache.value) CHECK(!memcmp(b.owned[PE_SLOT_VALUES], p.at[1], (size_t)p.bytes));
  metal_free(&b), store_free(&c), pools_free(&p);
}

/* A rope and a store in one dispatch leave the bytes of both. */
static void check_rope_store(pe_cache_args cache, bool normalized) {
  enum { HEADS = 4 };
  static const int32_t past[] = {5, 0, 70}, count[] = {1, 3, 2};
  static world w;
  float weight[2][256];
  for (int i = 0; i < 256; i++) weight[0][i] = uniform(), weight[1][i] = uniform();
  world_tables(&w), world_rows(&w, past, count);
  pools p = pools_new(&cache);
  pe_rope_store_args a = {.store = {.cache = cache}};
  a.store.rope = (pe_rope_args){cache.heads, cache.key, cache.key / 3, 0, 2, {0}};
  if (normalized) a.store.rope.norm = (pe_norm_args){cache.key, 1, cache.key, 1e-6f, 0, 1, 0, 0};
  a.rope = a.store.rope, a.rope.heads = HEADS;
  pe_cpu_call c = store_call(&w, &p, &a.store), turn = {.step = &w.step, .rows = w.step.rows};
  c.in[2] = view_new(c.rows, 2 * a.rope.turns), view_fill(&c.in[2], c.rows, 2 * a.rope.turns);
  turn.in[0] = view_new(c.rows, HEADS * cache.key), turn.in[1] = c.in[2];
  view_fill(&turn.in[0], c.rows, HEADS * cache.key);
  turn.out = view_new(c.rows, HEADS * cache.key), turn.args.rope = a.rope;
  if (normalized) c.vec[0] = weight[0], turn.vec[0] = weight[1];
  metal_case stores = {.op = PE_OP_STORE, .c = &c, .vec = {cache.key}};
  stores.cache_bytes[0] = p.bytes, stores.cache_bytes[1] = cache.value ? p.bytes : 0;
  const metal_case turns = {
      .op = PE_OP_ROPE, .c = &turn, .width = HEADS * cache.key, .vec = {cache.key}};
  metal_buffers stored, turned;
  msl_forget(), msl_schedule(0), metal_run(&stores, &stored), metal_run(&turns, &turned);
  for (int i = 0; i < MSL_SCHEDULES; i++) {
    metal_buffers b = {0};
    pe_metal_call call = metal_call_of(&stores);
    call.out_step = (int32_t)turn.out.step, call.in_step[3] = (int32_t)turn.in[0].step;
    const pe_metal_job job = {.op = PE_OP_STORE,
                              .call = &call,
                              .args = (const pe_op_args *)(const void *)&a,
                              .step = &w.step,
                              .rope = &a.rope};
    metal_put_operands(&b, &stores), metal_put(&b, PE_SLOT_ARGS, &a, sizeof a);
    metal_put(&b, PE_SLOT_IN3, turn.in[0].at, (size_t)(c.rows * turn.in[0].step) * 4);
    if (normalized) metal_put(&b, PE_SLOT_VEC1, weight[1], (size_t)cache.key * 4);
    const size_t bytes = turned.launch.buffer[PE_SLOT_OUT].bytes;
    memset(metal_put(&b, PE_SLOT_OUT, NULL, bytes), 0xee, bytes);
    msl_schedule(i), metal_run_job(&b, &job);
    CHECK(metal_same(&b, &stored, PE_SLOT_KEYS) && metal_same(&b, &stored, PE_SLOT_VALUES));
    CHECK(metal_same(&b, &turned, PE_SLOT_OUT));
    metal_free(&b);
  }
  CHECK_INT(msl_faults(), 0);
  metal_free(&stored), metal_free(&turned), pools_free(&p), store_free(&c);
  view_free(&turn.in[0]), view_free(&turn.out);
}

/* Values that the store normalizes, with weights or without. */
static void check_values(pe_cache_args cache, int32_t weights) {
  static const int32_t past[] = {5, 0, 70}, count[] = {1, 3, 2};
  static world w;
  const pe_store_args a = {.cache = cache};
  float weight[256];
  for (int i = 0; i < 256; i++) weight[i] = uniform();
  world_tables(&w), world_rows(&w, past, count);
  pools p = pools_new(&cache);
  pe_cpu_call c = store_call(&w, &p, &a), apart = c;
  metal_case k = {.op = PE_OP_STORE, .c = &apart, .cache_bytes = {p.bytes, p.bytes}};
  metal_buffers normed, want;
  const pe_norm_args norm = {cache.value, cache.heads, weights, 1e-6f, 0.5f, 0.7f, 0, 0};
  const pe_cpu_call one = {.in = {c.in[1]}, .vec = {weight}, .args.norm = norm};
  msl_forget(), msl_schedule(0);
  apart.in[1] =
      metal_alone(&k, PE_OP_NORM, one, cache.heads * (int64_t)cache.value, cache.value, &normed);
  metal_run(&k, &want);
  c.vec[3] = weight, k.c = &c, k.vec[3] = cache.value, k.norm = norm;
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    metal_buffers b;
    msl_schedule(order), metal_run(&k, &b);
    CHECK(metal_same(&b, &want, PE_SLOT_KEYS) && metal_same(&b, &want, PE_SLOT_VALUES));
    metal_free(&b);
  }
  CHECK_INT(msl_faults(), 0);
  metal_free(&normed), metal_free(&want), pools_free(&p), store_free(&c);
}

static void test_values(void) {
  for (int32_t type = 0; type < PE_KV_TYPES; type++) {
    check_values((pe_cache_args){1, 2, 40, 44, 16, type}, 44);
    check_values((pe_cache_args){1, 3, 64, 150, 16, type}, 0);
  }
}

/* Keys of latent attention: the store normalizes the first `latent` values and turns the rest, or
 * leaves them as they are. */
static void check_latent(int32_t type, int32_t latent, int32_t turns, int32_t weights) {
  static const int32_t past[] = {5, 0, 70}, count[] = {1, 3, 2};
  static world w;
  const pe_cache_args cache = {1, 1, latent + 20, 0, 16, type};
  const pe_norm_args norm = {latent, 1, weights, 1e-6f, 0.5f, 0.7f, 0, 0};
  const pe_rope_args rope = {1, 20, turns, 1, 2, {0}};
  const pe_store_args plain = {.cache = cache};
  float weight[256];
  for (int i = 0; i < 256; i++) weight[i] = uniform();
  world_tables(&w), world_rows(&w, past, count);
  pools p = pools_new(&cache);
  pe_cpu_call c = store_call(&w, &p, &plain), joined = c;
  metal_case k = {.op = PE_OP_STORE, .c = &c, .cache_bytes = {p.bytes, 0}, .vec = {latent}};
  metal_buffers normed, turned, both, want;
  pe_cpu_view rest = {.at = c.in[0].at + latent, .step = c.in[0].step};
  pe_cpu_view table = view_new(c.rows, 2 * turns + 1);
  view_fill(&table, c.rows, 2 * turns + 1), msl_forget(), msl_schedule(0);
  pe_cpu_call one = {.in = {c.in[0]}, .vec = {weight}, .args.norm = norm};
  pe_cpu_call two = {.in = {view_new(c.rows, 20), table}, .args.rope = rope};
  for (int32_t r = 0; r < c.rows; r++)
    memcpy(two.in[0].at + r * two.in[0].step, rest.at + r * rest.step, 20 * 4);
  pe_cpu_call three = {.args.concat = {2, 1, {latent, 20}, {0}}};
  three.in[0] = metal_alone(&k, PE_OP_NORM, one, latent, latent, &normed);
  three.in[1] = metal_alone(&k, PE_OP_ROPE, two, 20, 0, &turned);
  joined.in[0] = metal_alone(&k, PE_OP_CONCAT, three, latent + 20, 0, &both);
  k.c = &joined, metal_run(&k, &want);
  c.args.store.rope = (pe_rope_args){1, cache.key, turns, 1, latent + 2, norm};
  c.in[2] = table, c.vec[0] = weight, k.c = &c;
  for (int order = 0; order < MSL_SCHEDULES; order++) {
    metal_buffers b;
    msl_schedule(order), metal_run(&k, &b);
    CHECK(metal_same(&b, &want, PE_SLOT_KEYS));
    metal_free(&b);
  }
  CHECK_INT(msl_faults(), 0);
  metal_free(&normed), metal_free(&turned), metal_free(&both), metal_free(&want);
  view_free(&two.in[0]), pools_free(&p), store_free(&c);
}

static void test_latent(void) {
  for (int32_t type = 0; type < PE_KV_TYPES; type++) {
    check_latent(type, 40, 8, 40), check_latent(type, 200, 5, 0), check_latent(type, 33, 0, 33);
  }
}

static void test_rope_store(void) {
  for (int32_t type = 0; type < PE_KV_TYPES; type++) {
    check_rope_store((pe_cache_args){1, 2, 40, 44, 16, type}, false);
    check_rope_store((pe_cache_args){1, 1, 96, 0, 16, type}, true);
    check_rope_store((pe_cache_args){1, 3, 160, 32, 8, type}, true);
  }
}

static void test_store(void) {
  for (int32_t type = 0; type < PE_KV_TYPES; type++) {
    check_store((pe_cache_args){1, 2, 40, 44, 16, type}, false, false);
    check_store((pe_cache_args){1, 1, 64, 70, 128, type}, true, false);
    check_store((pe_cache_args){1, 3, 33, 32, 8, type}, true, true);
    check_store((pe_cache_args){1, 1, 96, 0, 16, type}, true, false);
  }
}

/* Values that no scale can hold must not pass for numbers, and zeros stay zeros. */
static void test_store_of_nonsense(void) {
  static const int32_t past[] = {0, 0, 0}, count[] = {4, 0, 0};
  static world w;
  world_tables(&w), world_rows(&w, past, count);
  for (int32_t type = PE_KV_F16; type < PE_KV_TYPES; type++) {
    const pe_store_args a = {.cache = {1, 1, 32, 32, 16, type}};
    pools p = pools_new(&a.cache);
    pe_cpu_call c = store_call(&w, &p, &a);
    c.in[0].at[3] = INFINITY, c.in[1].at[40] = NAN, c.in[1].at[3] = 1e30f;
    for (int i = 0; i < 32; i++) c.in[0].at[2 * c.in[0].step + i] = 0;
    metal_case k = {.op = PE_OP_STORE, .c = &c, .cache_bytes = {p.bytes, p.bytes}};
    metal_buffers b;
    metal_check_into(&k, 0, &b);
    CHECK(!memcmp(b.owned[PE_SLOT_KEYS], p.at[0], (size_t)p.bytes));
    CHECK(!memcmp(b.owned[PE_SLOT_VALUES], p.at[1], (size_t)p.bytes));
    metal_free(&b), store_free(&c), pools_free(&p);
  }
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct attention_case {
  pe_cache_args cache;
  int32_t heads, value, window, spans;
  float softcap;
  bool sinks;
} attention_case;

/* Every token of every sequence is in the cache. */
static void fill_cache(world *w, const pools *p, const pe_cache_args *cache) {
  static const int32_t past[SEGMENTS] = {0}, count[SEGMENTS] = {165, 140, 200};
  world_tables(w), world_rows(w, past, count);
  const pe_store_args a = {.cache = *cache};
  pe_cpu_call c = store_call(w, p, &a);
  run_op(PE_OP_STORE, &c, pe_prim_best(), 1);
  store_free(&c);
}

/* Blocks that no row of the step sees are not in the tables. */
static void hide_blocks(const attention_case *a, world *w) {
  for (int32_t s = 0; s < w->step.segments; s++) {
    const pe_segment *segment = &w->segment[s];
    int32_t *table = w->tables + w->table_at[segment->table + 1];
    const int32_t end = segment->past + segment->count, block = a->cache.block;
    const int32_t from =
        a->window && segment->past >= a->window ? segment->past - a->window + 1 : 0;
    for (int32_t i = 0; i < TABLE_ROOM; i++)
      if ((i + 1) * block <= from || i * block >= end) table[i] = -1;
  }
}

static metal_case attention_metal(const attention_case *a, const world *w, const pools *p,
                                  const float *sinks, pe_cpu_call *c) {
  *c = (pe_cpu_call){.step = &w->step, .rows = w->step.rows};
  c->out = view_new(c->rows, a->heads * a->value);
  c->in[0] = view_new(c->rows, a->heads * a->cache.key);
  view_fill(&c->in[0], c->rows, a->heads * a->cache.key);
  c->cache[0] = p->at[0], c->cache[1] = a->cache.value ? p->at[1] : NULL, c->cache_step = p->step;
  if (a->sinks) c->vec[0] = sinks;
  c->args.attention = (pe_attention_args){.cache = a->cache,
                                          .heads = a->heads,
                                          .value = a->value,
                                          .window = a->window,
                                          .spans = a->spans,
                                          .scale = 0.4f,
                                          .softcap = a->softcap};
  metal_case k = {.op = PE_OP_ATTENTION, .c = c, .width = a->heads * a->value, .vec = {a->heads}};
  k.cache_bytes[0] = p->bytes, k.cache_bytes[1] = a->cache.value ? p->bytes : 0;
  return k;
}

/* Each row as a step of its own: the sequence up to it is its past. */
static void check_rows_alone(const attention_case *a, const metal_case *all, const metal_buffers *b,
                             const pools *p, const float *sinks, const world *from) {
  static world w;
  w = *from;
  for (int32_t r = 0; r < from->step.rows; r += 7) {
    const pe_segment *s = &from->segment[from->segment_of[r]];
    int32_t past[SEGMENTS] = {0}, count[SEGMENTS] = {0};
    past[s->slot] = s->past + r - s->first, count[s->slot] = 1;
    world_rows(&w, past, count);
    w.last[0] = from->last[r];
    if (from->step.last) w.step.last = w.last, w.step.ahead = 3;
    pe_cpu_call one;
    metal_case k = attention_metal(a, &w, p, sinks, &one);
    memcpy(one.in[0].at, all->c->in[0].at + r * all->c->in[0].step,
           (size_t)(a->heads * a->cache.key) * 4);
    metal_buffers o;
    metal_run(&k, &o);
    check_bits("a row alone", o.owned[PE_SLOT_OUT],
               (const float *)b->owned[PE_SLOT_OUT] + r * all->c->out.step, all->width);
    metal_free(&o), view_free(&one.in[0]), view_free(&one.out);
  }
}

static void check_attention(const attention_case *a, const int32_t *past, const int32_t *count) {
  static world w;
  float sinks[32];
  for (int i = 0; i < 32; i++) sinks[i] = 3 * uniform();
  pools p = pools_new(&a->cache);
  fill_cache(&w, &p, &a->cache);
  world_rows(&w, past, count);
  hide_blocks(a, &w);
  if (a->spans) w.step.last = w.last, w.step.ahead = 3;
  pe_cpu_call c;
  metal_case k = attention_metal(a, &w, &p, sinks, &c);
  metal_buffers b;
  metal_check_into(&k, 3e-5, &b);
  pe_metal_tiles t = pe_metal_tiles_default;
  metal_case other = k;
  other.tiles = &t;
  t.attention_split = 1, t.attention_tiles = 1 << 30, metal_check_tiles(&k, &t, &b);
  metal_check_after(&other, PE_SLOT_IN2);
  t.attention_split = 1 << 30, metal_check_tiles(&k, &t, &b);
  metal_check_after(&other, PE_SLOT_IN2);
  check_rows_alone(a, &k, &b, &p, sinks, &w);
  CHECK_INT(msl_faults(), 0);
  metal_free(&b), view_free(&c.in[0]), view_free(&c.out), pools_free(&p);
}

static const attention_case attention_cases[] = {
    {.cache = {1, 2, 24, 40, 16, PE_KV_F32}, .heads = 6, .value = 40},
    {.cache = {1, 2, 64, 64, 64, PE_KV_F16}, .heads = 2, .value = 64, .window = 50},
    {.cache = {1, 1, 48, 64, 128, PE_KV_F16}, .heads = 11, .value = 64, .sinks = true},
    {.cache = {1, 2, 33, 34, 16, PE_KV_Q8}, .heads = 4, .value = 34, .softcap = 2},
    {.cache = {1, 1, 40, 72, 32, PE_KV_Q4}, .heads = 3, .value = 72, .sinks = true, .window = 20},
    {.cache = {1, 2, 20, 20, 8, PE_KV_F32}, .heads = 4, .value = 20, .spans = 1},
    {.cache = {1, 1, 24, 24, 16, PE_KV_F16}, .heads = 2, .value = 24, .spans = 1, .window = 9},
    {.cache = {1, 1, 72, 0, 16, PE_KV_F16}, .heads = 5, .value = 64}, /* MLA */
    {.cache = {1, 1, 192, 130, 16, PE_KV_F16}, .heads = 3, .value = 130},
    {.cache = {1, 1, 300, 0, 16, PE_KV_Q8}, .heads = 3, .value = 260},
    {.cache = {1, 2, 136, 144, 16, PE_KV_F32}, .heads = 2, .value = 144},
    {.cache = {1, 1, 288, 0, 16, PE_KV_F16}, .heads = 1, .value = 256, .window = 70},
};
enum { ATTENTION_CASES = sizeof attention_cases / sizeof *attention_cases };

static void test_attention(void) {
  static const int32_t past[] = {120, 139, 3}, count[] = {26, 1, 19};
  for (int i = 0; i < ATTENTION_CASES; i++) check_attention(&attention_cases[i], past, count);
}

static void test_attention_of_decode(void) {
  static const int32_t past[] = {164, 0, 130}, count[] = {1, 1, 1};
  for (int i = 0; i < ATTENTION_CASES; i++) check_attention(&attention_cases[i], past, count);
}

/* ---- states ---------------------------------------------------------------------------------- */

typedef struct state_case {
  pe_op op;
  pe_op_args args;
  int32_t width[5], out; /* of the inputs and the result */
  int32_t vec[3], state; /* floats */
} state_case;

static pe_cpu_call state_call(const state_case *s, const world *w, float *const *vec,
                              float *state) {
  pe_cpu_call c = {.step = &w->step, .rows = w->step.rows, .args = s->args};
  c.out = view_new(c.rows, s->out);
  for (int i = 0; i < 5; i++)
    if (s->width[i]) c.in[i] = view_new(c.rows, s->width[i]);
  for (int i = 0; i < 3; i++)
    if (s->vec[i]) c.vec[i] = vec[i];
  c.state = state, c.state_step = s->state;
  return c;
}
/* Keys of the delta rule are normalized, or states would explode. */
static void state_fill(const state_case *s, pe_cpu_call *c) {
  for (int i = 0; i < 5; i++) {
    if (!s->width[i]) continue;
    view_fill(&c->in[i], c->rows, s->width[i]);
    for (int64_t j = 0; s->op == PE_OP_DELTA && i < 2 && j < c->rows * c->in[i].step; j++)
      c->in[i].at[j] *= 1 / sqrtf((float)s->args.delta.key);
  }
}
static void state_free(pe_cpu_call *c) {
  for (int i = 0; i < 5; i++)
    if (c->in[i].at) view_free(&c->in[i]);
  view_free(&c->out);
}

/* The rows of one sequence in two steps, cut after `cut` rows: the same bits. */
static void check_split(const state_case *s, float *const *vec, const float *before) {
  static world w;
  enum { ALL = 9 };
  const int64_t floats = (int64_t)SEGMENTS * s->state;
  int32_t past[SEGMENTS] = {0}, count[SEGMENTS] = {0, ALL, 0};
  float *state = malloc((size_t)floats * 4);
  metal_buffers whole, part;
  memcpy(state, before, (size_t)floats * 4);
  world_rows(&w, past, count);
  pe_cpu_call c = state_call(s, &w, vec, state);
  state_fill(s, &c);
  metal_case k = {.op = s->op, .c = &c, .width = s->out, .state_floats = floats};
  for (int i = 0; i < 3; i++) k.vec[i] = s->vec[i];
  msl_schedule(0), metal_run(&k, &whole);
  for (int32_t cut = 0, n = 1; cut < ALL; cut += n, n = 4) {
    static world w2;
    count[1] = n, world_rows(&w2, past, count);
    pe_cpu_call c2 = state_call(s, &w2, vec, state);
    for (int i = 0; i < 5; i++)
      if (s->width[i])
        memcpy(c2.in[i].at, c.in[i].at + cut * c.in[i].step, (size_t)(n * c.in[i].step) * 4);
    k.c = &c2, metal_run(&k, &part);
    memcpy(state, part.owned[PE_SLOT_STATE], (size_t)floats * 4);
    for (int32_t r = 0; r < n; r++)
      check_bits("rows in parts", (const float *)part.owned[PE_SLOT_OUT] + r * c2.out.step,
                 (const float *)whole.owned[PE_SLOT_OUT] + (cut + r) * c.out.step, s->out);
    metal_free(&part), state_free(&c2);
  }
  CHECK(!memcmp(state, whole.owned[PE_SLOT_STATE], (size_t)floats * 4));
  metal_free(&whole), state_free(&c), free(state);
}

/* With what stands around it in the same dispatch. */
static void check_pulled(const state_case *s, const metal_case *k) {
  const pe_delta_args *d = &s->args.delta;
  if (s->op != PE_OP_DELTA) metal_check_after(k, PE_SLOT_DATA);
  if (s->op == PE_OP_CONV) metal_check_conv_before(k), metal_check_part(k, 0, 10, 15);
  if (s->op != PE_OP_DELTA) return;
  for (unsigned i = 1; i < 16; i += i < 8 ? i : 7) metal_check_delta_before(k, i);
  for (int i = 0; i <= d->heads; i += i ? 3 : 1) metal_check_delta_norm(k, i * d->value);
  metal_check_part(k, 0, d->key_heads, d->key), metal_check_part(k, 1, d->key_heads, d->key);
  metal_check_part(k, 2, d->value, d->heads), metal_check_part(k, 4, 2, d->heads / 2);
  metal_check_part(k, 3, d->heads, d->channel ? d->key : 1);
}

static void check_state(const state_case *s, double tolerance) {
  static world w;
  static const int32_t past[] = {9, 0, 4}, count[] = {1, 6, 11};
  const int64_t floats = (int64_t)SEGMENTS * s->state;
  float *vec[3], *state = malloc((size_t)floats * 4), *before = malloc((size_t)floats * 4);
  for (int i = 0; i < 3; i++) {
    vec[i] = calloc((size_t)s->vec[i] + 1, 4);
    for (int j = 0; j < s->vec[i]; j++) vec[i][j] = uniform();
  }
  for (int64_t i = 0; i < floats; i++) before[i] = state[i] = uniform();
  world_rows(&w, past, count);
  pe_cpu_call c = state_call(s, &w, vec, state);
  state_fill(s, &c);
  metal_case k = {.op = s->op, .c = &c, .width = s->out, .state_floats = floats};
  for (int i = 0; i < 3; i++) k.vec[i] = s->vec[i];
  metal_buffers b;
  metal_check_into(&k, tolerance, &b);
  metal_compare("state", (const float *)b.owned[PE_SLOT_STATE], state, floats, tolerance);
  check_split(s, vec, before);
  check_pulled(s, &k);
  CHECK_INT(msl_faults(), 0);
  metal_free(&b), state_free(&c), free(state), free(before);
  for (int i = 0; i < 3; i++) free(vec[i]);
}

static void test_conv(void) {
  for (int taps = 1; taps <= 4; taps++)
    for (int with = 0; with < 2; with++)
      check_state(&(state_case){.op = PE_OP_CONV,
                                .args.conv = {150, taps, with ? PE_MAP_SILU : -1},
                                .width = {150},
                                .out = 150,
                                .vec = {150 * taps, with ? 150 : 0},
                                .state = 150 * (taps - 1) + 1},
                  1e-6);
}

static void test_delta(void) {
  for (int i = 0; i < 4; i++) {
    const int32_t heads = 4, key_heads = i % 2 ? 2 : 4, key = i < 2 ? 20 : 130, value = i ? 9 : 40;
    check_state(&(state_case){.op = PE_OP_DELTA,
                              .args.delta = {heads, key_heads, key, value, i / 2},
                              .width = {key_heads * key, key_heads * key, heads * value,
                                        i / 2 ? heads * key : heads, heads},
                              .out = heads * value,
                              .state = heads * value * key},
                1e-5);
  }
}

static void test_ssm(void) {
  for (int i = 0; i < 4; i++) {
    const int32_t heads = 4, groups = i % 2 ? 1 : 4, state = i < 2 ? 16 : 200, dim = i % 2 ? 7 : 11;
    check_state(&(state_case){.op = PE_OP_SSM,
                              .args.ssm = {heads, dim, groups, state, 0.01f, 0.5f},
                              .width = {heads * dim, groups * state, groups * state, heads},
                              .out = heads * dim,
                              .vec = {heads, i % 2 ? heads : 0, i < 2 ? heads : 0},
                              .state = heads * dim * state},
                1e-5);
  }
}

static void test_all_ran(void) { metal_check_all_ran(METAL_MEMORY); }

static const check_test tests[] = {
    {"store", test_store},
    {"store of nonsense", test_store_of_nonsense},
    {"rope and store", test_rope_store},
    {"latent", test_latent},
    {"norm of values", test_values},
    {"attention", test_attention},
    {"attention of decode", test_attention_of_decode},
    {"conv", test_conv},
    {"delta", test_delta},
    {"ssm", test_ssm},
    {"all have run", test_all_ran},
};

int main(int argc, char **argv) {
  return metal_main("metal memory", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
