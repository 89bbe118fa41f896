/* test_kv.c - the KV cache: sizes and limits; random operations on sequences against a model that
 * copies everything; preparing all or nothing; windows; the precision of stored rows. */
#include "little.h"
#include "kernels.h"
#include "kernels/cpu/cpu.h"

static void open_kv(little *l, int kinds, const pe_kv_options *o) {
  pe_error err;
  if (little_open(l, kinds, o, &err)) {
    printf("    no little model: %s\n", err.text);
    exit(1);
  }
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static void test_row_bytes(void) {
  static const struct {
    int32_t width, f32, f16, q8, q4;
  } rows[] = {{0, 0, 0, 0, 0},         {1, 4, 2, 34, 20},        {32, 128, 64, 34, 20},
              {80, 320, 160, 102, 60}, {128, 512, 256, 136, 80}, {576, 2304, 1152, 612, 360}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    CHECK_INT(pe_kv_row_bytes(PE_KV_F32, rows[i].width), rows[i].f32);
    CHECK_INT(pe_kv_row_bytes(PE_KV_F16, rows[i].width), rows[i].f16);
    CHECK_INT(pe_kv_row_bytes(PE_KV_Q8, rows[i].width), rows[i].q8);
    CHECK_INT(pe_kv_row_bytes(PE_KV_Q4, rows[i].width), rows[i].q4);
  }
}

static void test_open(void) {
  static const struct {
    pe_kv_options o;
    pe_status rc;
    const char *part;
  } bad[] = {{{.bits = 5, .tokens = 10, .sequences = 1}, PE_EARG, "got 5"},
             {{.block = 3, .tokens = 10, .sequences = 1}, PE_EARG, "got 3"},
             {{.block = -2, .tokens = 10, .sequences = 1}, PE_EARG, "got -2"},
             {{.block = 8192, .tokens = 10, .sequences = 1}, PE_EARG, "at most 4096, got 8192"},
             {{.tokens = -1, .sequences = 1}, PE_ELIMIT, "-1 tokens"},
             {{.tokens = 1, .sequences = 0}, PE_ELIMIT, "0 sequences"},
             {{.block = 1, .tokens = INT32_MAX, .sequences = 1}, PE_ELIMIT, "blocks"},
             {{.tokens = INT64_MAX, .sequences = 1}, PE_ELIMIT, "tokens"}};
  little l;
  pe_error err;
  open_kv(&l, DENSE | LATENT, &(pe_kv_options){.tokens = 100, .sequences = 3});
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    pe_kv *kv = NULL;
    CHECK_FAILS(pe_kv_open(l.graph, &bad[i].o, &kv, &err), bad[i].rc, err, bad[i].part);
  }
  for (int32_t block = 1; block <= 4096; block *= 2) {
    pe_kv *kv = NULL;
    CHECK_OK(pe_kv_open(l.graph, &(pe_kv_options){.block = block, .sequences = 1}, &kv, &err), err);
    CHECK_INT(kv->block, block);
    CHECK_INT(kv->blocks, 1);
    pe_kv_close(kv);
  }
  for (pe_kv_type type = PE_KV_F32; type < PE_KV_TYPES; type++) {
    pe_kv_type found = PE_KV_TYPES;
    CHECK_OK(pe_kv_type_of_bits(pe_kv_bits(type), &found, &err), err);
    CHECK_INT(found, type);
  }
  CHECK_INT(l.kv->block, 32);
  CHECK_INT(l.kv->blocks, 4 + 3);
  CHECK_INT(l.kv->type, PE_KV_F32);
  CHECK_INT(pe_kv_token_bytes(l.graph, PE_KV_F32), 2 * 4 * (2 * (7 + 5)) + 2 * 4 * 14);
  CHECK_INT(pe_kv_token_bytes(l.graph, PE_KV_F16), pe_kv_token_bytes(l.graph, PE_KV_F32) / 2);
  CHECK_INT(l.kv->block_bytes[0] + l.kv->block_bytes[1],
            32 * pe_kv_token_bytes(l.graph, PE_KV_F32));
  CHECK(l.kv->layer[0].values != NULL &&
        l.kv->layer[2].values == NULL); /* latent attention has keys only */
  little_close(&l);
}

/* What `fast` keeps, and where layers are: all parts of all layers of all blocks begin on cache
 * lines, lie in the memory, and do not overlap. */
static void test_places(void) {
  static const int kinds[] = {DENSE, LATENT, DENSE | LATENT, DENSE | WINDOWED};
  for (int i = 0; i < 8; i++) {
    const pe_kv_options o = {
        .precision = i % 2 ? PE_FAST : PE_EXACT, .tokens = 100, .sequences = 1};
    little l;
    open_kv(&l, kinds[i / 2], &o);
    CHECK_INT(l.kv->precision, o.precision);
    CHECK_INT(l.kv->block, i % 2 ? 64 : 32);
    CHECK_INT(l.kv->type, i % 2 ? PE_KV_F16 : PE_KV_F32);
    uint8_t *taken = calloc(1, l.kv->memory->size / 64 + 1);
    int twice = 0;
    for (size_t k = 0; k < l.graph->layer_count; k++) {
      const pe_kv_layer *at = &l.kv->layer[k];
      const pe_cache_group *g = &l.graph->group[l.graph->layer[k].group];
      for (int part = 0; part < (at->values ? 2 : 1); part++) {
        const uint64_t row = (uint64_t)pe_kv_row_bytes(l.kv->type, part ? g->value : g->key);
        const uint64_t bytes = (uint64_t)(g->heads * l.kv->block) * row;
        for (int32_t b = 0; b < l.kv->blocks; b++) {
          const uint8_t *from = (part ? at->values : at->keys) + (uint64_t)b * at->step;
          const uint64_t first = (uint64_t)(from - l.kv->memory->data);
          CHECK((uintptr_t)from % 64 == 0 && first + bytes <= l.kv->memory->size);
          for (uint64_t line = first / 64; line < (first + bytes + 63) / 64; line++)
            twice += taken[line]++;
        }
      }
    }
    CHECK_INT(twice, 0);
    free(taken);
    little_close(&l);
  }
}

/* ---- random operations ----------------------------------------------------------------------- */

enum { SEQUENCES = 5, MOST = 60 };

typedef struct life {
  pe_kv_seq kv;
  bool open;
  int tokens;
  uint8_t stamp[MOST]; /* the byte that the rows of each token are filled with */
} life;

static void stamp_rows(little *l, life *s, int from, int to, uint8_t stamp) {
  static uint8_t flat[1 << 16];
  for (int32_t g = 0; g < l->graph->group_count; g++) {
    size_t each = pe_kv_group_token_bytes(l->kv, g);
    for (int t = from; t < to; t++) {
      memset(flat, stamp + t, each);
      s->stamp[t] = (uint8_t)(stamp + t);
      pe_kv_copy_in(l->kv, &s->kv, g, t, t + 1, flat);
    }
  }
}

/* Every token that is still visible has its bytes. */
static void check_rows(const little *l, const life *s) {
  static uint8_t flat[1 << 16];
  for (int32_t g = 0; g < l->graph->group_count; g++) {
    size_t each = pe_kv_group_token_bytes(l->kv, g);
    int window = l->graph->group[g].window;
    for (int t = window && s->tokens >= window ? s->tokens - window + 1 : 0; t < s->tokens; t++) {
      pe_kv_copy_out(l->kv, &s->kv, g, t, t + 1, flat);
      for (size_t i = 0; i < each; i++)
        if (flat[i] != s->stamp[t]) {
          CHECK_INT(flat[i], s->stamp[t]);
          return;
        }
    }
  }
}

/* The references of a block are its table entries, and a block without references is free. */
static void check_counts(const little *l, const life *lives) {
  for (int32_t g = 0; g < l->graph->group_count; g++) {
    int64_t entries = 0, refs = 0, used = 0;
    for (int i = 0; i < SEQUENCES; i++)
      for (int32_t b = 0; b < lives[i].kv.count[g]; b++) entries += lives[i].kv.table[g][b] >= 0;
    for (int32_t b = 0; b < l->kv->blocks; b++)
      refs += pe_kv_block_refs(l->kv, g, b), used += pe_kv_block_refs(l->kv, g, b) > 0;
    CHECK_INT(refs, entries);
    CHECK_INT(l->kv->used[g], used);
    CHECK_INT(l->kv->free_count[g], l->kv->blocks - used);
    for (int32_t i = 0; i < l->kv->free_count[g]; i++)
      CHECK_INT(pe_kv_block_refs(l->kv, g, l->kv->free_list[g][i]), 0);
  }
}

static void grow_life(little *l, life *s) {
  pe_error err;
  int to = s->tokens + 1 + (int)(random32() % 9);
  if (to > MOST) return;
  pe_kv_seq before = s->kv;
  int32_t needed[PE_GRAPH_GROUPS], free_before[PE_GRAPH_GROUPS], enough = 1;
  for (int32_t g = 0; g < l->graph->group_count; g++) {
    needed[g] = pe_kv_needed(l->kv, &s->kv, g, s->tokens, to),
    free_before[g] = l->kv->free_count[g];
    enough &= needed[g] <= free_before[g];
  }
  pe_status rc = pe_kv_prepare(l->kv, &s->kv, s->tokens, to, &err);
  CHECK_INT(rc, enough ? PE_OK : PE_ELIMIT);
  for (int32_t g = 0; g < l->graph->group_count; g++) {
    CHECK_INT(l->kv->free_count[g], free_before[g] - (rc ? 0 : needed[g]));
    if (rc) CHECK_INT(s->kv.count[g], before.count[g]);
  }
  if (rc) return;
  stamp_rows(l, s, s->tokens, to, (uint8_t)random32());
  s->tokens = to;
  pe_kv_retire(l->kv, &s->kv, to);
}

static void fork_life(little *l, life *lives, const life *parent) {
  pe_error err;
  for (int i = 0; i < SEQUENCES; i++) {
    if (lives[i].open) continue;
    lives[i] = *parent, lives[i].kv = (pe_kv_seq){0};
    CHECK_OK(pe_kv_fork(l->kv, &parent->kv, &lives[i].kv, &err), err);
    return;
  }
}

/* Trimming to n is possible if every block from the first that token n sees exists. */
static void trim_life(little *l, life *s) {
  int n = (int)(random32() % (uint32_t)(s->tokens + 1));
  bool can = true;
  for (int32_t g = 0; g < l->graph->group_count; g++) {
    int window = l->graph->group[g].window, from = window && n >= window ? n - window + 1 : 0;
    for (int t = from; t < n; t++) can &= s->kv.table[g][t / l->kv->block] >= 0;
  }
  CHECK_INT(pe_kv_can_trim(l->kv, &s->kv, n), can);
  CHECK(!pe_kv_can_trim(l->kv, &s->kv, s->tokens + 1));
  if (can) pe_kv_trim(l->kv, &s->kv, n), s->tokens = n;
}

static void live(int kinds, int block) {
  little l;
  life lives[SEQUENCES] = {0};
  open_kv(&l, kinds, &(pe_kv_options){.bits = 8, .block = block, .tokens = 100, .sequences = 2});
  for (int step = 0; step < 1500; step++) {
    life *s = &lives[random32() % SEQUENCES];
    uint32_t what = random32() % 16;
    if (!s->open)
      s->open = true;
    else if (what < 9)
      grow_life(&l, s);
    else if (what < 11)
      fork_life(&l, lives, s);
    else if (what < 14)
      trim_life(&l, s);
    else
      pe_kv_release(l.kv, &s->kv), *s = (life){0};
    check_counts(&l, lives);
    for (int i = 0; i < SEQUENCES; i++) check_rows(&l, &lives[i]);
    if (check_failures) return;
  }
  for (int i = 0; i < SEQUENCES; i++) pe_kv_release(l.kv, &lives[i].kv), lives[i] = (life){0};
  check_counts(&l, lives);
  CHECK_INT(little_used(&l), 0);
  little_close(&l);
}

static void test_random_lives(void) {
  for (int block = 1; block <= 8; block *= 2)
    live(DENSE, block), live(DENSE | WINDOWED, block), live(DENSE | WINDOWED | LATENT, block);
}

/* ---- particular cases ------------------------------------------------------------------------ */

/* A fork that continues inside a block copies it; one that continues at its end copies nothing. */
static void test_copies(void) {
  little l;
  pe_error err;
  open_kv(&l, DENSE, &(pe_kv_options){.block = 8, .tokens = 100, .sequences = 2});
  pe_kv_seq a = {0}, b = {0};
  CHECK_OK(pe_kv_prepare(l.kv, &a, 0, 20, &err), err);
  CHECK_INT(l.kv->used[0], 3);
  CHECK_OK(pe_kv_fork(l.kv, &a, &b, &err), err);
  CHECK_INT(l.kv->used[0], 3);
  CHECK_INT(pe_kv_needed(l.kv, &b, 0, 20, 25), 2);
  CHECK_OK(pe_kv_prepare(l.kv, &b, 20, 25, &err), err);
  CHECK_INT(l.kv->used[0], 5);
  CHECK(a.table[0][1] == b.table[0][1] && a.table[0][2] != b.table[0][2]);
  CHECK_INT(pe_kv_needed(l.kv, &a, 0, 20, 24), 0); /* it has no other holder left */
  CHECK_INT(pe_kv_seq_bytes(l.kv, &b), 4 * l.kv->block_bytes[0]);
  pe_kv_trim(l.kv, &b, 16);
  CHECK_INT(pe_kv_needed(l.kv, &b, 0, 16, 17), 1);
  pe_kv_release(l.kv, &a), pe_kv_release(l.kv, &b);
  CHECK_INT(l.kv->used[0], 0);
  little_close(&l);
}

/* A group without enough blocks is found before another group has given any. */
static void test_all_or_nothing(void) {
  little l;
  pe_error err;
  open_kv(&l, DENSE | WINDOWED,
          &(pe_kv_options){.block = 2, .tokens = 20, .sequences = 1}); /* 11 blocks each */
  pe_kv_seq a = {0}, b = {0};
  CHECK_OK(pe_kv_prepare(l.kv, &a, 0, 16, &err), err);
  pe_kv_retire(l.kv, &a, 16);
  CHECK_INT(l.kv->used[0] + l.kv->used[1], 8 + 2);
  int32_t full = l.graph->group[0].window ? 1 : 0;
  CHECK_FAILS(pe_kv_prepare(l.kv, &b, 0, 8, &err), PE_ELIMIT, err,
              "4 blocks of 2 tokens are needed, 3 are free");
  CHECK_INT(l.kv->used[full], 8);
  CHECK_INT(l.kv->used[!full], 2);
  CHECK_INT(b.count[0] + b.count[1] + b.tokens, 0);
  CHECK_FAILS(pe_kv_prepare(l.kv, &a, 16, INT32_MAX, &err), PE_ELIMIT, err, "are needed");
  CHECK_FAILS(pe_kv_prepare(l.kv, &a, 16, 15, &err), PE_EARG, err, "16 to 15");
  CHECK_OK(pe_kv_prepare(l.kv, &b, 0, 6, &err), err);
  CHECK_FAILS(pe_kv_prepare(l.kv, &a, 16, 17, &err), PE_ELIMIT, err, "0 are free");
  pe_kv_release(l.kv, &b);
  CHECK_OK(pe_kv_prepare(l.kv, &a, 16, 22, &err), err);
  pe_kv_release(l.kv, &a);
  CHECK_INT(little_used(&l), 0);
  little_close(&l);
}

/* A sequence that starts with shared blocks, with a hole left by a window: they are retained once
 * and released once. */
static void test_shared_blocks(void) {
  little l;
  pe_error err;
  open_kv(&l, DENSE | WINDOWED, &(pe_kv_options){.block = 4, .tokens = 100, .sequences = 2});
  pe_kv_seq a = {0}, b = {0};
  CHECK_OK(pe_kv_prepare(l.kv, &a, 0, 16, &err), err);
  for (int32_t g = 0; g < 2; g++)
    for (int32_t i = 0; i < 4; i++) {
      int32_t block = l.graph->group[g].window && (i == 1 || i == 2) ? -1 : a.table[g][i];
      CHECK_OK(pe_kv_share(l.kv, &b, g, block, &err), err);
      CHECK_INT(pe_kv_block_refs(l.kv, g, block), block < 0 ? 0 : 2);
    }
  pe_kv_set_tokens(&b, 16);
  CHECK_INT(pe_kv_can_trim(l.kv, &b, 16), true);
  CHECK_INT(pe_kv_can_trim(l.kv, &b, 15), false);
  CHECK_INT(pe_kv_can_trim(l.kv, &b, 3), true);
  pe_kv_retain_block(l.kv, 0, a.table[0][0]);
  int32_t kept = a.table[0][0];
  pe_kv_release(l.kv, &a);
  CHECK_INT(pe_kv_block_refs(l.kv, 0, kept), 2);
  pe_kv_retire(l.kv, &b, 16); /* also the blocks before the hole */
  for (int32_t g = 0; g < 2; g++) CHECK_INT(l.kv->used[g], l.graph->group[g].window ? 1 : 4);
  pe_kv_release(l.kv, &b);
  CHECK_INT(little_used(&l), 1);
  pe_kv_release_block(l.kv, 0, kept);
  CHECK_INT(little_used(&l), 0);
  little_close(&l);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const pe_prim *version(int i) {
  static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
  return pe_prim_named(names[i]);
}

/* Numbers of many magnitudes; wild: any bits. */
static void random_row(float *x, int width, bool wild) {
  for (int i = 0; i < width; i++) {
    uint32_t u = random32();
    if (wild)
      memcpy(x + i, &u, sizeof u);
    else
      x[i] = uniform() * (u % 5 == 0 ? 0 : u % 7 == 0 ? 30.f : 1.f);
  }
}

/* Every instruction set writes the same bytes, reads the same numbers and touches nothing else. */
static void test_rows_on_every_machine(void) {
  float x[200], row[256], first[256];
  uint8_t want[1024], got[1024];
  for (int round = 0; round < 300; round++)
    for (pe_kv_type type = PE_KV_F32; type <= PE_KV_Q4; type++) {
      int width = 1 + (int)(random32() % 199);
      int32_t bytes = pe_kv_row_bytes(type, width);
      random_row(x, width, round % 3 == 2);
      pe_cpu_kv_encode(&pe_prim_scalar, type, x, width, want);
      pe_cpu_kv_decode(&pe_prim_scalar, type, want, 1, width, first);
      for (int v = 0; v < 4; v++) {
        if (!version(v)) continue;
        memset(got, 0xa5, sizeof got);
        pe_cpu_kv_encode(version(v), type, x, width, got);
        CHECK(!memcmp(got, want, (size_t)bytes));
        CHECK_INT(got[bytes], 0xa5);
        row[pe_kv_row_values(type, width)] = 12345;
        pe_cpu_kv_decode(version(v), type, got, 1, width, row);
        CHECK(!memcmp(row, first, (size_t)width * sizeof *row));
        CHECK(row[pe_kv_row_values(type, width)] == 12345);
      }
    }
}

/* float32 is exact, float16 rounded to nearest, 8 bits within half a step of 254, 4 bits within
 * half a step of 15. */
static void test_rows_are_near(void) {
  float x[128], row[256];
  uint8_t bytes[1024];
  for (int round = 0; round < 500; round++) {
    int width = 1 + (int)(random32() % 128);
    random_row(x, width, false);
    for (pe_kv_type type = PE_KV_F32; type <= PE_KV_Q4; type++) {
      pe_cpu_kv_encode(&pe_prim_scalar, type, x, width, bytes);
      pe_cpu_kv_decode(&pe_prim_scalar, type, bytes, 1, width, row);
      for (int i = 0; i < width; i++) {
        float low = INFINITY, high = -INFINITY;
        for (int j = i / 32 * 32; j < width && j < i / 32 * 32 + 32; j++)
          low = fminf(low, x[j]), high = fmaxf(high, x[j]);
        float most = fmaxf(fabsf(low), fabsf(high));
        if (type == PE_KV_F32) CHECK_NEAR(row[i], x[i], 0);
        if (type == PE_KV_F16) CHECK_NEAR(row[i], pe_f16_to_f32(pe_f32_to_f16(x[i])), 0);
        if (type == PE_KV_Q8) CHECK_NEAR(row[i], x[i], most * 1.07 / 254 + 1e-6);
        if (type == PE_KV_Q4) CHECK_NEAR(row[i], x[i], (high - low) / 29 + most * 1e-3 + 1e-6);
      }
    }
  }
}

/* NaN and infinity do not become numbers; zero and constants are exact; halves are those of
 * pe_f32_to_f16. */
static void test_rows_of_nonsense(void) {
  static const float odd[] = {NAN, INFINITY, -INFINITY, -NAN};
  float x[40], row[64];
  uint8_t bytes[256];
  for (int k = 0; k < 4; k++)
    for (pe_kv_type type = PE_KV_Q8; type <= PE_KV_Q4; type++) {
      for (int i = 0; i < 40; i++) x[i] = 1;
      x[3] = odd[k];
      pe_cpu_kv_encode(pe_prim_best(), type, x, 40, bytes);
      pe_cpu_kv_decode(pe_prim_best(), type, bytes, 1, 40, row);
      for (int i = 0; i < 40; i++) CHECK(i < 32 ? isnan(row[i]) : fabsf(row[i] - 1) < 1e-3f);
    }
  for (pe_kv_type type = PE_KV_F32; type <= PE_KV_Q4; type++) {
    for (int i = 0; i < 40; i++) x[i] = 0;
    pe_cpu_kv_encode(pe_prim_best(), type, x, 40, bytes);
    pe_cpu_kv_decode(pe_prim_best(), type, bytes, 1, 40, row);
    for (int i = 0; i < 40; i++) CHECK_NEAR(row[i], 0, 0);
    for (int i = 0; i < 40; i++)
      x[i] = 3.4e38f * (i % 2 ? 1 : -1); /* too large for the scales: large, but not an error */
    pe_cpu_kv_encode(pe_prim_best(), type, x, 40, bytes);
    pe_cpu_kv_decode(pe_prim_best(), type, bytes, 1, 40, row);
    for (int i = 0; i < 40; i++) CHECK(i % 2 ? row[i] > 60000 : row[i] < -60000);
  }
  for (uint32_t u = 0; u < 0xffff0000u; u += 0x3fff) {
    float f;
    uint16_t h;
    memcpy(&f, &u, sizeof f);
    pe_cpu_kv_encode(pe_prim_best(), PE_KV_F16, &f, 1, bytes);
    memcpy(&h, bytes, sizeof h);
    if (h != pe_f32_to_f16(f)) CHECK_INT(h, pe_f32_to_f16(f));
  }
}

/* Memory is given back of blocks that were used and are free, and of no others. */
static void test_discard(void) {
  enum { TOKENS = 1024, KEYS = TOKENS * 2 * 7 * 4, VALUES = TOKENS * 2 * 5 * 4, STAMP = 0x5a };
  little l;
  pe_error err;
  open_kv(&l, DENSE, &(pe_kv_options){.block = TOKENS, .tokens = 7 * TOKENS, .sequences = 1});
  CHECK_INT(l.kv->block_bytes[0], 2 * (KEYS + VALUES));
  pe_kv_seq s[3] = {0};
  bool gone[8] = {0};
  for (int i = 0; i < 3; i++) CHECK_OK(pe_kv_prepare(l.kv, &s[i], 0, 2 * TOKENS, &err), err);
  memset(l.kv->memory->data, STAMP, l.kv->memory->size);
  CHECK_INT(pe_kv_discard(l.kv), 0);
  for (int i = 0; i < 2; i++) gone[s[1].table[0][i]] = true;
  pe_kv_release(l.kv, &s[1]);
  CHECK_INT(pe_kv_discard(l.kv), 2);
  CHECK_INT(pe_kv_discard(l.kv), 0);
  for (int layer = 0; layer < 2; layer++)
    for (int b = 0; b < 8; b++) {
      const uint64_t at = (uint64_t)b * l.kv->layer[layer].step;
      const uint8_t *keys = l.kv->layer[layer].keys + at;
      const uint8_t *values = l.kv->layer[layer].values + at;
      int kept = 0;
      for (int i = 0; i < KEYS; i++) kept += keys[i] == STAMP;
      for (int i = 0; i < VALUES; i++) kept += values[i] == STAMP;
      if (!gone[b]) CHECK_INT(kept, KEYS + VALUES);
#ifdef __linux__
      if (gone[b]) CHECK(kept < (KEYS + VALUES) / 2); /* pages that end in another block stay */
#endif
    }
  /* A block is warm again when it was taken. */
  CHECK_OK(pe_kv_prepare(l.kv, &s[1], 0, TOKENS, &err), err);
  pe_kv_release(l.kv, &s[1]);
  CHECK_INT(pe_kv_discard(l.kv), 1);
  pe_kv_release(l.kv, &s[0]), pe_kv_release(l.kv, &s[2]);
  CHECK_INT(pe_kv_discard(l.kv), 4);
  CHECK_OK(pe_kv_prepare(l.kv, &s[0], 0, 8 * TOKENS, &err), err); /* up to the last block */
  pe_kv_release(l.kv, &s[0]);
  CHECK_INT(pe_kv_discard(l.kv), 8);
  little_close(&l);
}

static const check_test tests[] = {{"row_bytes", test_row_bytes},
                                   {"places", test_places},
                                   {"open", test_open},
                                   {"random_lives", test_random_lives},
                                   {"copies", test_copies},
                                   {"all_or_nothing", test_all_or_nothing},
                                   {"shared_blocks", test_shared_blocks},
                                   {"rows_on_every_machine", test_rows_on_every_machine},
                                   {"rows_are_near", test_rows_are_near},
                                   {"rows_of_nonsense", test_rows_of_nonsense},
                                   {"discard", test_discard}};
CHECK_MAIN("kv", tests)
