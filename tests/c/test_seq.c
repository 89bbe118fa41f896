/* test_seq.c - sequences over caches of every kind and type: a sequence that was forked, trimmed,
 * saved or loaded continues with the bits of one that was not. */
#include "little.h"
#include "runtime/hash.h"

#include <unistd.h>

enum { N = 40, CUT = 22 };
static const int bits[] = {32, 16, 8, 4};

static int32_t ids[N];
static float want[N * VOCABULARY], got[N * VOCABULARY];
static const uint8_t me[16] = "a little model.", other[16] = "another model..";

static void fill_ids(void) {
  for (int i = 0; i < N; i++) ids[i] = (i * 7 + i * i) % VOCABULARY;
}

static void check_logits(const char *what, int kinds, int from, int to) {
  for (int i = from; i < to; i++)
    if (memcmp(got + i * VOCABULARY, want + i * VOCABULARY, VOCABULARY * sizeof *got)) {
      check_failures++;
      printf("    %s (kinds %d): token %d differs: %a, not %a\n", what, kinds, i,
             got[i * VOCABULARY], want[i * VOCABULARY]);
      return;
    }
}

typedef struct setting {
  int kinds, bits, block;
} setting;

static void open_model(little *l, const setting *k) {
  pe_error err;
  if (little_open(
          l, k->kinds,
          &(pe_kv_options){.bits = k->bits, .block = k->block, .tokens = 512, .sequences = 4},
          &err)) {
    printf("    no little model: %s\n", err.text);
    exit(1);
  }
}

/* The reference, in `want`: one token per step. */
static void run_plainly(little *l) {
  pe_error err;
  pe_seq s;
  CHECK_OK(pe_seq_open(&s, l->kv, l->recur, &err), err);
  for (int i = 0; i < N; i++)
    CHECK_OK(little_feed(l, &s, ids + i, 1, want + i * VOCABULARY, &err), err);
  pe_seq_close(&s);
  CHECK_INT(little_used(l), 0);
}

static void every_setting(void (*check)(little *l, const setting *k)) {
  fill_ids();
  for (int kind = 0; kind < KINDS; kind++)
    for (int b = 0; b < 4; b++)
      for (int block = 2; block <= 32; block *= 4) {
        setting k = {little_kinds[kind], bits[b], block};
        little l;
        open_model(&l, &k);
        run_plainly(&l);
        check(&l, &k);
        CHECK_INT(little_used(&l), 0);
        CHECK_INT(l.recur->free_count, l.recur->slots);
        little_close(&l);
      }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void check_chunks(little *l, const setting *k) {
  static const int chunks[] = {N, 3, 11};
  pe_error err;
  for (int c = 0; c < 3; c++) {
    pe_seq s;
    CHECK_OK(pe_seq_open(&s, l->kv, l->recur, &err), err);
    CHECK_OK(pe_seq_append(&s, ids, N, &err), err);
    for (int i = 0; i < N; i += chunks[c])
      CHECK_OK(little_run(l, &s, N - i < chunks[c] ? N - i : chunks[c], got + i * VOCABULARY, &err),
               err);
    check_logits("chunks", k->kinds, 0, N);
    /* A group with a window holds the blocks it sees and at most one more. */
    for (int32_t g = 0; g < l->graph->group_count; g++) {
      int64_t most = l->graph->group[g].window ? (WINDOW + k->block - 2) / k->block + 1
                                               : (N + k->block - 1) / k->block;
      if (l->kv->used[g] > most) CHECK_INT(l->kv->used[g], most);
    }
    pe_seq_close(&s);
  }
}
static void test_chunks(void) { every_setting(check_chunks); }

static void test_blocks_leave_no_trace(void) {
  fill_ids();
  for (int kind = 0; kind < KINDS; kind++)
    for (int b = 0; b < 4; b++) {
      static float first[N * VOCABULARY];
      for (int block = 1; block <= 64; block *= 4) {
        little l;
        open_model(&l, &(setting){little_kinds[kind], bits[b], block});
        run_plainly(&l);
        if (block == 1) memcpy(first, want, sizeof want);
        memcpy(got, first, sizeof got);
        check_logits("blocks", little_kinds[kind], 0, N);
        little_close(&l);
      }
    }
}

/* The largest difference between got and want; NaN if either has one, which fmax would hide. */
static double farthest(void) {
  double far = 0;
  for (int i = 0; i < N * VOCABULARY; i++) {
    double d = fabs((double)want[i] - got[i]);
    if (isnan(d)) return d;
    if (d > far) far = d;
  }
  return far;
}

/* Types with more bits are closer to float32, and none is equal to it. */
static void test_types_are_near(void) {
  static const double bound[] = {0, 1e-2, 0.3, 4};
  fill_ids();
  for (int kind = 0; kind < KINDS; kind++) {
    double before = 0;
    for (int b = 0; b < 4; b++) {
      little l;
      open_model(&l, &(setting){little_kinds[kind], bits[b], 8});
      run_plainly(&l);
      if (!b) memcpy(got, want, sizeof want);
      double far = farthest();
      if (!(far <= bound[b])) CHECK_NEAR(far, 0, bound[b]);
      if (l.graph->group_count && b) CHECK(far > before);
      before = far;
      little_close(&l);
    }
  }
}

/* ---- fork and trim --------------------------------------------------------------------------- */

static void check_fork(little *l, const setting *k) {
  pe_error err;
  pe_seq parent, child, twin;
  CHECK_OK(pe_seq_open(&parent, l->kv, l->recur, &err), err);
  CHECK_OK(little_feed(l, &parent, ids, CUT, got, &err), err);
  int64_t used = little_used(l);
  CHECK_OK(pe_seq_fork(&parent, &child, &err), err);
  CHECK_OK(pe_seq_fork(&parent, &twin, &err), err);
  CHECK_INT(little_used(l), used); /* no block is copied */
  CHECK_INT(child.past, CUT);
  CHECK_INT(pe_seq_bytes(&child), pe_seq_bytes(&parent));
  static const int32_t elsewhere[] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
  CHECK_OK(little_feed(l, &child, elsewhere, 9, NULL, &err), err);
  CHECK_OK(little_feed(l, &parent, ids + CUT, N - CUT, got + CUT * VOCABULARY, &err), err);
  check_logits("a parent", k->kinds, 0, N);
  pe_seq_close(&parent);
  memset(got + CUT * VOCABULARY, 0, (N - CUT) * VOCABULARY * sizeof *got);
  CHECK_OK(little_feed(l, &child, elsewhere, 2, NULL, &err), err);
  CHECK_OK(little_feed(l, &twin, ids + CUT, N - CUT, got + CUT * VOCABULARY, &err), err);
  check_logits("a twin", k->kinds, 0, N);
  pe_seq_close(&child), pe_seq_close(&twin);
}
static void test_fork(void) { every_setting(check_fork); }

static void check_trim(little *l, const setting *k) {
  pe_error err;
  pe_seq s;
  pe_snapshot *at_cut = NULL;
  const bool states = k->kinds & RECURRENT,
             window = k->kinds & WINDOWED && k->block < 32; /* it has released a block */
  CHECK_OK(pe_seq_open(&s, l->kv, l->recur, &err), err);
  CHECK_OK(little_feed(l, &s, ids, CUT, got, &err), err);
  CHECK_OK(pe_seq_snapshot(&s, &at_cut, &err), err);
  CHECK(!at_cut == !states);
  CHECK_OK(little_feed(l, &s, (int32_t[]){8}, 1, NULL, &err), err);
  CHECK_OK(pe_seq_append(&s, ids, 3, &err), err);
  CHECK_INT(pe_seq_can_trim(&s, CUT, NULL), !states);
  CHECK_INT(pe_seq_can_trim(&s, CUT + 2, at_cut), false);
  CHECK_FAILS(pe_seq_trim(&s, CUT + 2, at_cut, &err), PE_EARG, err, "24");
  if (states) CHECK_FAILS(pe_seq_trim(&s, CUT, NULL, &err), PE_EUNSUPPORTED, err, "snapshot");
  if (window) CHECK_FAILS(pe_seq_trim(&s, 1, at_cut, &err), PE_EUNSUPPORTED, err, "window");
  CHECK_INT(s.past, CUT + 1);
  CHECK_OK(pe_seq_trim(&s, CUT, at_cut, &err), err);
  CHECK_INT(s.past, CUT);
  CHECK_INT(s.count, CUT);
  CHECK_OK(little_feed(l, &s, ids + CUT, N - CUT, got + CUT * VOCABULARY, &err), err);
  check_logits("after a trim", k->kinds, 0, N);
  if (!states && !(k->kinds & WINDOWED)) { /* far back */
    CHECK_OK(pe_seq_trim(&s, 4, NULL, &err), err);
    CHECK_OK(little_feed(l, &s, ids + 4, N - 4, got + 4 * VOCABULARY, &err), err);
    check_logits("after a long trim", k->kinds, 0, N);
  }
  CHECK_OK(pe_seq_trim(&s, 0, NULL, &err), err);
  CHECK_OK(little_feed(l, &s, ids, N, got, &err), err);
  check_logits("after a trim to nothing", k->kinds, 0, N);
  CHECK_OK(pe_seq_trim(&s, 0, NULL, &err), err);
  CHECK_INT(s.past, 0);
  CHECK_INT(little_used(l), 0);
  CHECK_OK(pe_seq_append(&s, ids, N, &err), err);
  CHECK_OK(little_run(l, &s, 30, got, &err), err);
  CHECK_OK(little_run(l, &s, N - 30, got + 30 * VOCABULARY, &err), err);
  check_logits("recomputed in chunks", k->kinds, 0, N);
  pe_snapshot_release(at_cut);
  pe_seq_close(&s);
}
static void test_trim(void) { every_setting(check_trim); }

/* The names of pictures are released with their sequence. */
static void test_names(void) {
  static const int32_t prompt[] = {1, 2, 2, 3, 4};
  const setting k = {little_kinds[0], 32, 8};
  little l;
  pe_seq s;
  pe_media *m = NULL;
  pe_media_item item[2] = {{.at = 1, .tokens = 2, .planes = 1},
                           {.at = 4, .tokens = 1, .planes = 1}};
  pe_error err;
  open_model(&l, &k);
  for (int i = 0; i < 2; i++)
    CHECK_OK(pe_buffer_alloc(2 * sizeof(float), &item[i].plane[0].buffer, &err), err);
  pe_media_spec spec = {.prompt = prompt, .tokens = 5, .item = item, .items = 2, .width = 1};
  CHECK_OK(pe_media_open(&spec, &m, &err), err);
  for (int i = 0; i < 2; i++) pe_buffer_release(item[i].plane[0].buffer);
  CHECK_OK(pe_seq_open(&s, l.kv, l.recur, &err), err);
  CHECK_OK(pe_seq_set_media(&s, m, &err), err);
  pe_media_release(m);
  CHECK_INT(pe_names_count(l.kv->names), 2);
  pe_seq_close(&s);
  CHECK_INT(pe_names_count(l.kv->names), 0);
  little_close(&l);
}

/* Several sequences in one step, one of them a fork of another. */
static void check_company(little *l, const setting *k) {
  pe_error err;
  pe_seq a, b, c;
  CHECK_OK(pe_seq_open(&a, l->kv, l->recur, &err), err);
  CHECK_OK(little_feed(l, &a, ids, 9, got, &err), err);
  CHECK_OK(pe_seq_fork(&a, &b, &err), err);
  CHECK_OK(pe_seq_open(&c, l->kv, l->recur, &err), err);
  for (int at = 9; at < N;) {
    int n = at % 4 + 1 < N - at ? at % 4 + 1 : N - at;
    pe_run runs[3];
    CHECK_OK(pe_seq_append(&a, ids + at, n, &err), err);
    CHECK_OK(pe_seq_append(&b, (int32_t[]){at % 5}, 1, &err), err);
    CHECK_OK(pe_seq_append(&c, ids + at, 1, &err), err);
    CHECK_OK(pe_seq_run(&b, 1, 1, &runs[0], &err), err);
    CHECK_OK(pe_seq_run(&a, n, n, &runs[1], &err), err);
    CHECK_OK(pe_seq_run(&c, 1, 0, &runs[2], &err), err);
    CHECK_OK(pe_device_step(l->device, runs, 3, &err), err);
    for (int i = 0; i < n; i++)
      memcpy(got + (at + i) * VOCABULARY, pe_device_logits(l->device, 1 + i),
             VOCABULARY * sizeof *got);
    pe_seq_advance(&a, n), pe_seq_advance(&b, 1), pe_seq_advance(&c, 1);
    at += n;
  }
  check_logits("in company", k->kinds, 0, N);
  pe_seq_close(&a), pe_seq_close(&b), pe_seq_close(&c);
}
static void test_company(void) { every_setting(check_company); }

/* ---- saving ---------------------------------------------------------------------------------- */

static void check_save(little *l, const setting *k) {
  pe_error err;
  pe_seq s, t;
  pe_buf saved = {0};
  CHECK_OK(pe_seq_open(&s, l->kv, l->recur, &err), err);
  CHECK_OK(little_feed(l, &s, ids, CUT, got, &err), err);
  CHECK_OK(pe_seq_append(&s, ids + CUT, 4, &err), err); /* not computed yet, but saved as well */
  s.rope_length = 99;
  CHECK_OK(pe_seq_save(&s, me, &saved, &err), err);
  pe_seq_close(&s);
  little m;
  open_model(&m, &(setting){k->kinds, k->bits, k->block == 2 ? 16 : 2});
  CHECK_OK(pe_seq_open(&t, m.kv, m.recur, &err), err);
  CHECK_OK(pe_seq_load(&t, me, saved.data, saved.len, &err), err);
  CHECK_INT(t.past, CUT);
  CHECK_INT(t.count, CUT + 4);
  CHECK_INT(t.rope_length, 99);
  CHECK(!memcmp(t.token, ids, (CUT + 4) * sizeof *ids));
  CHECK_OK(pe_seq_append(&t, ids + CUT + 4, N - CUT - 4, &err), err);
  CHECK_OK(little_run(&m, &t, N - CUT, got + CUT * VOCABULARY, &err), err);
  check_logits("saved and loaded", k->kinds, 0, N);
  CHECK_FAILS(pe_seq_load(&t, me, saved.data, saved.len, &err), PE_EARG, err, "must be empty");
  pe_seq_close(&t);
  CHECK_INT(little_used(&m), 0);
  little_close(&m), pe_buf_free(&saved);
}
static void test_save(void) { every_setting(check_save); }

/* Every changed byte and every truncation is detected. */
static void test_damaged(void) {
  fill_ids();
  little l;
  pe_error err;
  pe_seq s, t;
  pe_buf saved = {0};
  open_model(&l, &(setting){EVERYTHING, 8, 4});
  CHECK_OK(pe_seq_open(&s, l.kv, l.recur, &err), err);
  CHECK_OK(pe_seq_open(&t, l.kv, l.recur, &err), err);
  CHECK_OK(little_feed(&l, &s, ids, 9, NULL, &err), err);
  CHECK_OK(pe_seq_save(&s, me, &saved, &err), err);
  int64_t used = little_used(&l);
  for (size_t i = 0; i < saved.len; i++) {
    saved.data[i] = (char)(saved.data[i] ^ (1 << i % 8));
    CHECK_INT(pe_seq_load(&t, me, saved.data, saved.len, &err), PE_EFORMAT);
    saved.data[i] = (char)(saved.data[i] ^ (1 << i % 8));
    char *cut = malloc(i + 1); /* so that sanitizers find reads past the end */
    memcpy(cut, saved.data, i);
    CHECK_INT(pe_seq_load(&t, me, cut, i, &err), PE_EFORMAT);
    free(cut);
  }
  CHECK_INT(t.past, 0);
  CHECK_INT(t.count, 0);
  CHECK_INT(little_used(&l), used);
  CHECK_FAILS(pe_seq_load(&t, other, saved.data, saved.len, &err), PE_EUNSUPPORTED, err,
              ": 61206c6974746c65206d6f64656c2e00, ");
  CHECK(strstr(err.text, " 616e6f74686572206d6f64656c2e2e00") != NULL);
  CHECK_OK(pe_seq_load(&t, me, saved.data, saved.len, &err), err);
  pe_seq_close(&s), pe_seq_close(&t);
  little_close(&l), pe_buf_free(&saved);
}

/* Another type, another shape, or too long for the pool: refused, and the sequence stays empty. */
static void test_refused(void) {
  fill_ids();
  static const struct {
    setting k;
    int64_t tokens;
    pe_status rc;
    const char *part;
  } cases[] = {{{DENSE, 32, 8}, 512, PE_EUNSUPPORTED, "16 bits, this cache has 32"},
               {{RECURRENT, 16, 8}, 512, PE_EUNSUPPORTED, "cache groups"},
               {{WINDOWED, 16, 8}, 512, PE_EUNSUPPORTED, "window of 0"},
               {{LATENT, 16, 8}, 512, PE_EUNSUPPORTED, "bytes per token"},
               {{DENSE, 16, 8}, 8, PE_ELIMIT, "blocks"}};
  pe_error err;
  pe_buf saved = {0};
  little l;
  pe_seq s;
  open_model(&l, &(setting){DENSE, 16, 8});
  CHECK_OK(pe_seq_open(&s, l.kv, l.recur, &err), err);
  CHECK_OK(little_feed(&l, &s, ids, N, NULL, &err), err);
  CHECK_OK(pe_seq_save(&s, me, &saved, &err), err);
  pe_seq_close(&s), little_close(&l);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const setting *k = &cases[i].k;
    CHECK_OK(little_open(
                 &l, k->kinds,
                 &(pe_kv_options){
                     .bits = k->bits, .block = k->block, .tokens = cases[i].tokens, .sequences = 1},
                 &err),
             err);
    CHECK_OK(pe_seq_open(&s, l.kv, l.recur, &err), err);
    CHECK_FAILS(pe_seq_load(&s, me, saved.data, saved.len, &err), cases[i].rc, err, cases[i].part);
    CHECK_INT(s.count, 0);
    CHECK_INT(little_used(&l), 0);
    pe_seq_close(&s), little_close(&l);
  }
  pe_buf_free(&saved);
}

/* A window that was loaded from smaller blocks starts inside a block: the sequence can be trimmed
 * after the tokens it was loaded with, but not before them, where it would read rows that do not
 * exist. */
static void test_trim_loaded_window(void) {
  fill_ids();
  pe_error err;
  little l, m;
  pe_seq s, t;
  pe_buf saved = {0};
  open_model(&l, &(setting){DENSE | WINDOWED, 32, 2}),
      open_model(&m, &(setting){DENSE | WINDOWED, 32, 16});
  run_plainly(&m);
  CHECK_OK(pe_seq_open(&s, l.kv, l.recur, &err), err);
  CHECK_OK(pe_seq_open(&t, m.kv, m.recur, &err), err);
  CHECK_OK(little_feed(&l, &s, ids, CUT, NULL, &err), err);
  CHECK_OK(pe_seq_save(&s, me, &saved, &err), err);
  CHECK_OK(pe_seq_load(&t, me, saved.data, saved.len, &err), err);
  CHECK_FAILS(pe_seq_trim(&t, CUT - 1, NULL, &err), PE_EUNSUPPORTED, err, "window");
  CHECK_OK(little_feed(&m, &t, (int32_t[]){8, 9, 3}, 3, NULL, &err), err);
  CHECK_INT(pe_seq_can_trim(&t, CUT - 1, NULL), false);
  CHECK_OK(pe_seq_trim(&t, CUT, NULL, &err), err);
  CHECK_OK(little_feed(&m, &t, ids + CUT, N - CUT, got + CUT * VOCABULARY, &err), err);
  check_logits("a loaded window, trimmed", DENSE | WINDOWED, CUT, N);
  CHECK_OK(pe_seq_trim(&t, 0, NULL, &err), err); /* nothing of the loaded tokens is left */
  CHECK_OK(little_feed(&m, &t, ids, CUT, got, &err), err);
  CHECK_OK(pe_seq_trim(&t, CUT - 2, NULL, &err), err);
  CHECK_OK(little_feed(&m, &t, ids + CUT - 2, N - CUT + 2, got + (CUT - 2) * VOCABULARY, &err),
           err);
  check_logits("and from the beginning", DENSE | WINDOWED, 0, N);
  pe_seq_close(&s), pe_seq_close(&t), little_close(&l), little_close(&m), pe_buf_free(&saved);
}

/* Intact files of an older and a newer version. */
static void test_other_version(void) {
  fill_ids();
  pe_error err;
  little l;
  pe_seq s, t;
  pe_buf saved = {0};
  open_model(&l, &(setting){EVERYTHING, 32, 4});
  CHECK_OK(pe_seq_open(&s, l.kv, l.recur, &err), err);
  CHECK_OK(pe_seq_open(&t, l.kv, l.recur, &err), err);
  CHECK_OK(little_feed(&l, &s, ids, 9, NULL, &err), err);
  CHECK_OK(pe_seq_save(&s, me, &saved, &err), err);
  for (uint32_t version = 2; version <= 4; version += 2) {
    char text[64];
    snprintf(text, sizeof text, "version %u, version 3 is supported", version);
    memcpy(saved.data + 8, &version, sizeof version);
    pe_hash_128(saved.data, saved.len - 16, 0, (uint8_t *)saved.data + saved.len - 16);
    CHECK_FAILS(pe_seq_load(&t, me, saved.data, saved.len, &err), PE_EUNSUPPORTED, err, text);
    CHECK_INT(t.count, 0);
  }
  pe_seq_close(&s), pe_seq_close(&t), little_close(&l), pe_buf_free(&saved);
}

/* An intact file with a token outside the vocabulary, or with a picture that it does not name. */
static void test_unknown_token(void) {
  static const int32_t strange[] = {VOCABULARY, -1};
  static const char *const why[] = {"ends at 29", "no name for its token 0"};
  for (int i = 0; i < 2; i++) {
    little l;
    pe_error err;
    pe_seq s, t;
    pe_buf saved = {0};
    open_model(&l, &(setting){DENSE, 32, 8});
    CHECK_OK(pe_seq_open(&s, l.kv, l.recur, &err), err);
    CHECK_OK(pe_seq_open(&t, l.kv, l.recur, &err), err);
    CHECK_OK(pe_seq_append(&s, strange + i, 1, &err), err);
    CHECK_OK(pe_seq_save(&s, me, &saved, &err), err);
    CHECK_FAILS(pe_seq_load(&t, me, saved.data, saved.len, &err), PE_EFORMAT, err, why[i]);
    CHECK_INT(t.count, 0);
    pe_seq_close(&s), pe_seq_close(&t), little_close(&l), pe_buf_free(&saved);
  }
}

static void test_file(void) {
  fill_ids();
  char folder[] = "/tmp/perigee-seq-XXXXXX", path[64], missing[80];
  pe_error err;
  little l;
  pe_seq s, t;
  CHECK(mkdtemp(folder) != NULL);
  snprintf(path, sizeof path, "%s/saved", folder),
      snprintf(missing, sizeof missing, "%s/no/where", folder);
  open_model(&l, &(setting){EVERYTHING, 32, 4});
  run_plainly(&l);
  CHECK_OK(pe_seq_open(&s, l.kv, l.recur, &err), err);
  CHECK_OK(pe_seq_open(&t, l.kv, l.recur, &err), err);
  CHECK_OK(little_feed(&l, &s, ids, 3, got, &err), err);
  CHECK_OK(pe_seq_save_file(&s, me, path, &err), err);
  CHECK_OK(little_feed(&l, &s, ids + 3, CUT - 3, got + 3 * VOCABULARY, &err), err);
  CHECK_OK(pe_seq_save_file(&s, me, path, &err), err); /* replaces the first one */
  CHECK_OK(pe_seq_load_file(&t, me, path, &err), err);
  CHECK_OK(little_feed(&l, &t, ids + CUT, N - CUT, got + CUT * VOCABULARY, &err), err);
  check_logits("from a file", EVERYTHING, 0, N);
  pe_seq_close(&t);
  CHECK_OK(pe_seq_open(&t, l.kv, l.recur, &err), err);
  CHECK_FAILS(pe_seq_load_file(&t, other, path, &err), PE_EUNSUPPORTED, err, path);
  CHECK_FAILS(pe_seq_load_file(&t, me, missing, &err), PE_EIO, err, missing);
  CHECK_FAILS(pe_seq_save_file(&s, me, missing, &err), PE_EIO, err, missing);
  pe_seq_close(&s), pe_seq_close(&t), little_close(&l);
  CHECK_INT(unlink(path), 0);
  CHECK_INT(rmdir(folder), 0); /* it left no other file */
}

/* Equal models have equal identities, different models different ones. */
static void test_identity(void) {
  uint8_t id[4][16];
  static const setting k[] = {{DENSE, 32, 8}, {DENSE, 32, 2}, {DENSE, 16, 8}, {WINDOWED, 32, 8}};
  for (int i = 0; i < 4; i++) {
    little l;
    open_model(&l, &k[i]);
    pe_seq_identity(l.kv, id[i]);
    little_close(&l);
  }
  CHECK(!memcmp(id[0], id[1], 16));
  CHECK(memcmp(id[0], id[2], 16));
  CHECK(memcmp(id[0], id[3], 16));
  pe_error err;
  little l;
  open_model(&l, &k[0]);
  pe_weights *w = NULL;
  CHECK_OK(little_weights(8, &w, &err), err);
  pe_graph another = *l.graph;
  pe_kv kv = *l.kv;
  another.weights = w, kv.graph = &another;
  pe_seq_identity(&kv, id[1]);
  CHECK(memcmp(id[0], id[1], 16)); /* same shapes, different weights */
  kv = *l.kv, kv.precision = PE_FAST;
  pe_seq_identity(&kv, id[1]);
  CHECK(memcmp(id[0], id[1], 16)); /* numbers of another precision */
  pe_weights_release(w), little_close(&l);
}

/* Whatever changes the numbers of a cache gives another identity. */
static void test_identity_parts(void) {
  uint8_t id[16], now[16];
  little l;
  open_model(&l, &(setting){DENSE, 32, 8});
  pe_param_info *p = &l.graph->param[1];
  pe_node *n = &l.graph->node[2];
  pe_weight *w = (pe_weight *)p->weight;
  const struct {
    const char *name;
    void *at;
  } parts[] = {{"count", &p->count},
               {"rows", &p->rows},
               {"columns", &p->cols},
               {"bytes of a row", &p->mat->row_bytes},
               {"op", &n->op},
               {"lines", &n->rows},
               {"width", &n->width},
               {"inputs", &n->inputs},
               {"param", &n->mat},
               {"layer", &n->cache},
               {"offset", &n->offset},
               {"input", &n->in[0]},
               {"argument", &n->args},
               {"shape", &w->shape[0]},
               {"global scale", &w->global}};
  pe_seq_identity(l.kv, id);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    *(uint8_t *)parts[i].at ^= 1;
    pe_seq_identity(l.kv, now);
    *(uint8_t *)parts[i].at ^= 1;
    if (!memcmp(id, now, 16))
      check_failures++, printf("    another %s does not count\n", parts[i].name);
  }
  pe_kv kv = *l.kv;
  kv.backend = "metal";
  pe_seq_identity(&kv, now);
  CHECK(memcmp(id, now, 16));
  const char *name = p->name;
  p->name = "another";
  pe_seq_identity(l.kv, now);
  p->name = name;
  CHECK(memcmp(id, now, 16));
  pe_seq_identity(l.kv, now);
  CHECK(!memcmp(id, now, 16));
  little_close(&l);
}

/* ---- failing allocations --------------------------------------------------------------------- */

/* Uses everything; stops at the first failure. */
static pe_status whole_life(little *l, pe_error *err) {
  pe_seq s = {0}, t = {0}, u = {0};
  pe_snapshot *snapshot = NULL;
  pe_buf saved = {0};
  pe_status rc = little_open(
      l, EVERYTHING, &(pe_kv_options){.bits = 8, .block = 2, .tokens = 256, .sequences = 3}, err);
  if (rc) return rc;
  rc = pe_seq_open(&s, l->kv, l->recur, err);
  if (!rc) rc = little_feed(l, &s, ids, 8, NULL, err);
  if (!rc) rc = pe_seq_snapshot(&s, &snapshot, err);
  if (!rc) rc = pe_seq_fork(&s, &t, err);
  if (!rc) rc = little_feed(l, &t, ids, 6, NULL, err);
  if (!rc) rc = little_feed(l, &s, ids + 8, 1, NULL, err);
  if (!rc) rc = pe_seq_trim(&s, 8, snapshot, err);
  if (!rc) rc = pe_seq_save(&s, me, &saved, err);
  if (!rc) rc = pe_seq_open(&u, l->kv, l->recur, err);
  if (!rc) rc = pe_seq_load(&u, me, saved.data, saved.len, err);
  if (!rc) rc = little_feed(l, &u, ids + 7, 9, NULL, err);
  pe_seq_close(&s), pe_seq_close(&t), pe_seq_close(&u);
  pe_snapshot_release(snapshot), pe_buf_free(&saved);
  if (rc) CHECK_INT(little_used(l), 0);
  return rc;
}

static void test_no_memory(void) {
  fill_ids();
  int64_t failed = 0;
  for (int64_t n = 1; n < 10000; n++) {
    little l;
    pe_error err = {0};
    pe_alloc_fail_at(n);
    pe_status rc = whole_life(&l, &err);
    pe_alloc_fail_at(0);
    little_close(&l);
    if (!rc) break;
    CHECK_INT(rc, PE_ENOMEM);
    failed++;
  }
  CHECK(failed > 50 && failed < 9999);
}

static const check_test tests[] = {{"chunks", test_chunks},
                                   {"blocks_leave_no_trace", test_blocks_leave_no_trace},
                                   {"types_are_near", test_types_are_near},
                                   {"names", test_names},
                                   {"fork", test_fork},
                                   {"trim", test_trim},
                                   {"company", test_company},
                                   {"save", test_save},
                                   {"damaged", test_damaged},
                                   {"refused", test_refused},
                                   {"trim_loaded_window", test_trim_loaded_window},
                                   {"other_version", test_other_version},
                                   {"unknown_token", test_unknown_token},
                                   {"file", test_file},
                                   {"identity", test_identity},
                                   {"identity_parts", test_identity_parts},
                                   {"no_memory", test_no_memory}};
CHECK_MAIN("seq", tests)
