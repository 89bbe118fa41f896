/* test_metal_host.c - the host of Metal against the fake: objects, memory, pipelines, steps of a
 * small model, and a failure of every call that may fail. */
#include "fake_help.h"
#include "kernels/metal/gpu.h"
#include "kernels/metal/table.h"
#include "little_metal.h"
#include "runtime/device/metal_shortlist.h"

#include <unistd.h>

enum { STEPS = 10, PROMPT = 7 };
static const float NEAR = 2e-3f; /* of logits up to 10, computed in another order */

static fake_control fake;

/* Prints unexpected lines: those without the text in ctx. */
static void print_line(void *ctx, const char *line) {
  if (!ctx || !strstr(line, ctx)) printf("    %s\n", line);
}
static char missing[] = "has no method";

static pe_gpu *take(void) {
  pe_metal_error e = {0};
  pe_gpu *g = NULL;
  if (!pe_gpu_take(&(pe_gpu_options){.source = pe_metal_source}, &g, &e))
    printf("    %s\n", e.text);
  return g;
}

/* ---- the device ------------------------------------------------------------------------------ */

/* A kernel without constants, to have a pipeline. */
static bool some_pipeline(pe_gpu *g, pe_id *out, pe_metal_error *e) {
  return pe_gpu_pipeline(g, &(pe_gpu_kernel){.name = "output"}, out, e);
}

static void test_signatures(void) {
  static const int macos[] = {14, 26, 15}; /* the default last */
  for (int i = 0; i < 3; i++) {
    const bool old = macos[i] < 15;
    fake.set_macos(macos[i]);
    pe_gpu *g = take();
    pe_metal_error e = {0};
    pe_id pipeline;
    CHECK(g && some_pipeline(g, &pipeline, &e));
    if (!g) return;
    CHECK_INT(pe_gpu_facts_of(g)->residency, !old);
    CHECK_INT(pe_gpu_facts_of(g)->tensors, macos[i] >= 26);
    CHECK_INT(pe_gpu_check(g, print_line, old ? missing : NULL),
              old ? 2 : 0); /* two methods are new */
    pe_gpu_give(g);
  }
}

/* A wrong table is noticed: the methods of one owner are looked for in objects of another. */
static void test_signatures_differ(void) {
  pe_metal_error e = {0};
  const pe_objc *o = pe_objc_open(&e);
  pe_gpu *g = take();
  pe_gpu_buffer b = {0};
  if (!o || !g || !pe_gpu_allocate(g, 64, &b, &e)) {
    CHECK(!"opened");
    return;
  }
  CHECK_INT(pe_mtl_check(o, b.object, "MTLBuffer", print_line, NULL), 0);
  CHECK_INT(pe_mtl_check(o, b.object, "MTLCommandQueue", print_line, missing), 2);
  pe_gpu_free(g, &b), pe_gpu_give(g);
}

static void test_shared(void) {
  pe_gpu *a = take(), *b = take();
  const long living = fake.living();
  CHECK(a && a == b);
  pe_gpu_give(a);
  CHECK_INT(fake.living(), living);
  pe_gpu_give(b);
  CHECK_INT(fake.living(), 0);
}

static void test_memory(void) {
  pe_metal_error e = {0};
  pe_gpu_buffer b = {0};
  fake.set_most_bytes(1 << 20);
  pe_gpu *g = take();
  CHECK(g && !pe_gpu_allocate(g, (1 << 20) + 1, &b, &e) && e.room);
  CHECK_STR(e.text, "a buffer of 1048577 bytes; Fake M1 takes 1048576");
  CHECK(pe_gpu_allocate(g, 1 << 20, &b, &e) && b.data && b.size == 1 << 20);
  pe_gpu_free(g, &b);
  CHECK(!b.object && !b.data);
  pe_gpu_give(g);
  fake.set_most_bytes(0);
}

static void test_pipelines(void) {
  pe_metal_error e = {0};
  pe_id a = NULL, b = NULL;
  pe_gpu *g = take();
  CHECK(g && some_pipeline(g, &a, &e) && some_pipeline(g, &b, &e) && a == b);
  CHECK(!pe_gpu_pipeline(g, &(pe_gpu_kernel){.name = "nonsense"}, &a, &e));
  CHECK_STR(e.text, "nonsense: no function nonsense in the library");
  pe_gpu_give(g);
}

static void test_library(void) {
  pe_metal_error e = {0};
  pe_gpu *g = NULL;
  CHECK(!pe_gpu_take(&(pe_gpu_options){.source = "nonsense"}, &g, &e) && !g);
  CHECK_STR(e.text, "the kernels do not compile: the source does not compile");
  CHECK_INT(fake.living(), 0);
}

static void compile_with_archive(const char *path) {
  pe_metal_error e = {0};
  pe_gpu *g = NULL;
  pe_id pipeline;
  CHECK(pe_gpu_take(&(pe_gpu_options){pe_metal_source, path}, &g, &e));
  CHECK(some_pipeline(g, &pipeline, &e));
  pe_gpu_give(g);
}

/* Compiled pipelines are kept in a file; a file of another kind is replaced. */
static void test_archive(void) {
  char path[64];
  long size[3];
  snprintf(path, sizeof path, "/tmp/perigee-metal-%d", (int)getpid());
  for (int i = 0; i < 3; i++) {
    FILE *f = i < 2 ? fopen(path, i ? "w" : "r") : NULL; /* none, nonsense, what we wrote */
    if (i == 1 && f) fputs("nonsense", f);
    if (f) fclose(f);
    if (!i) remove(path);
    compile_with_archive(path);
    f = fopen(path, "r");
    CHECK(f);
    size[i] = f && !fseek(f, 0, SEEK_END) ? ftell(f) : -1;
    if (f) fclose(f);
  }
  CHECK(size[0] > 20 && size[1] == size[0] && size[2] == size[0]);
  remove(path);
}

/* A path that no file can have: pipelines are compiled and not kept. */
static void test_archive_path(void) {
  static char path[1 << 20]; /* longer than all that a device knows of itself */
  memset(path, 'a', sizeof path - 1);
  compile_with_archive(path);
  CHECK_INT(fake.living(), 0);
}

static void test_dropped_commands(void) {
  pe_metal_error e = {0};
  pe_commands c;
  pe_gpu *g = take();
  const long living = fake.living();
  CHECK(g && pe_gpu_begin(g, &c, &e));
  pe_gpu_drop(g, &c);
  CHECK_INT(fake.living(), living);
  pe_gpu_give(g);
}

/* ---- a model --------------------------------------------------------------------------------- */

typedef struct answer { /* logits of the prompt and of every step after it */
  float logit[(PROMPT + STEPS) * VOCABULARY];
} answer;

/* A prompt in chunks, then single tokens. */
static pe_status feed(little *l, pe_seq *s, int32_t chunk, answer *out, pe_error *err) {
  pe_status rc = PE_OK;
  int32_t ids[PROMPT + STEPS], done = 0;
  for (int32_t i = 0; i < PROMPT + STEPS; i++) ids[i] = (i * 11 + 3) % VOCABULARY;
  while (!rc && done < PROMPT + STEPS) {
    const int32_t left = PROMPT - done, n = left <= 0 ? 1 : left < chunk ? left : chunk;
    rc = little_feed(l, s, ids + done, n, out ? out->logit + done * VOCABULARY : NULL, err);
    done += n;
  }
  return rc;
}

static pe_status answer_of(little *l, int32_t chunk, answer *out, pe_error *err) {
  pe_seq s;
  pe_status rc = pe_seq_open(&s, l->kv, l->recur, err);
  if (rc) return rc;
  rc = feed(l, &s, chunk, out, err);
  pe_seq_close(&s);
  return rc;
}

static void compare_models(float near) {
  static answer want, got, parts;
  pe_error err;
  little cpu, gpu;
  CHECK_OK(open_on(&cpu, &pe_backend_cpu, &err), err);
  CHECK_OK(open_on(&gpu, &pe_backend_metal, &err), err);
  CHECK_OK(answer_of(&cpu, PROMPT, &want, &err), err);
  const long dispatches = fake.dispatches(), barriers = fake.barriers();
  CHECK_OK(answer_of(&gpu, PROMPT, &got, &err), err);
  const long did = fake.dispatches() - dispatches, waited = fake.barriers() - barriers;
  /* A dispatch computes up to three instructions and a norm; some overlap. */
  CHECK(did >= (long)gpu.plan->count * (STEPS + 1) / 4 && waited < did);
  CHECK_OK(answer_of(&gpu, 2, &parts, &err), err);
  for (int i = 0; i < (PROMPT + STEPS) * VOCABULARY; i++)
    CHECK_NEAR(got.logit[i], want.logit[i], near);
  CHECK(!memcmp(&got, &parts, sizeof got)); /* any chunking gives the same bits */
  little_close(&cpu), little_close(&gpu);
  CHECK_INT(fake.living(), 0);
  CHECK_INT(fake.complaints(), 0);
}

static void test_model(void) { compare_models(NEAR); }

/* Keys near the middle of two numbers of 16 bits may be rounded to either. */
static void test_model_half(void) {
  kv_bits = 16;
  compare_models(20 * NEAR);
  kv_bits = 0;
}

/* ---- steps that overlap ---------------------------------------------------------------------- */

/* The commands of a likely step are encoded while the one before it computes. */
static void test_encoded_ahead(void) {
  pe_error err;
  little l;
  pe_seq s;
  static answer want, got;
  CHECK_OK(open_on(&l, &pe_backend_metal, &err), err);
  CHECK_OK(answer_of(&l, PROMPT, &want, &err), err);
  CHECK_OK(pe_seq_open(&s, l.kv, l.recur, &err), err);
  int32_t ids[PROMPT + STEPS], ahead = 0;
  for (int32_t i = 0; i < PROMPT + STEPS; i++) ids[i] = (i * 11 + 3) % VOCABULARY;
  for (int32_t at = 0; at < PROMPT + STEPS; at += at ? 1 : PROMPT) {
    const int32_t n = at ? 1 : PROMPT;
    pe_run run;
    CHECK_OK(pe_seq_append(&s, ids + at, n, &err), err);
    CHECK_OK(pe_seq_run(&s, n, n, &run, &err), err);
    const long before = fake.encoded();
    CHECK_OK(pe_device_submit(l.device, &run, 1, &err), err);
    ahead += fake.encoded() == before;
    CHECK_INT(fake.in_flight(), 1);
    CHECK_OK(pe_device_wait(l.device, &err), err);
    pe_seq_advance(&s, n);
    for (int32_t i = 0; i < n; i++)
      memcpy(got.logit + (at + i) * VOCABULARY, pe_device_logits(l.device, i),
             VOCABULARY * sizeof(float));
  }
  CHECK(ahead >= STEPS - 3); /* not the first, nor where a block begins */
  CHECK(!memcmp(&got, &want, sizeof got));
  pe_seq_close(&s);
  little_close(&l);
  CHECK_INT(fake.living(), 0);
}

/* The fake notices a host that writes into the arrays of a step that the GPU has. */
static void test_overwritten(void) {
  pe_metal_error e = {0};
  pe_gpu_buffer words = {0}, logits = {0}, peaks = {0};
  pe_commands c;
  pe_id pipeline;
  bool done = false;
  const pe_metal_shortlist_args args = {256, 256, 1, 1};
  pe_gpu *g = take();
  CHECK(g && pe_gpu_pipeline(g, &(pe_gpu_kernel){.name = "shortlist_peaks"}, &pipeline, &e));
  CHECK(pe_gpu_allocate(g, 4096, &words, &e) && pe_gpu_allocate(g, 1024, &logits, &e));
  CHECK(pe_gpu_allocate(g, 4, &peaks, &e));
  memset(words.data, 0, 4096), memset(logits.data, 0, 1024);
  for (int write = 0; write < 2; write++) {
    CHECK(pe_gpu_begin(g, &c, &e));
    pe_commands_use(&c, pipeline);
    pe_commands_bytes(&c, PE_SLOT_ARGS, &args, sizeof args);
    pe_commands_bind(&c, PE_SLOT_SCRATCH, &peaks, 0);
    pe_commands_bind(&c, PE_SLOT_IN0, &logits, 0);
    pe_commands_bind(&c, PE_SLOT_STEP, &words, 0);
    pe_commands_dispatch(&c, (const uint32_t[]){1, 1, 1}, 32);
    pe_commands_end(g, &c);
    words.data[4000]++; /* until the commit it may */
    pe_gpu_commit(g, &c);
    words.data[4000] += (uint8_t)write;
    CHECK(pe_gpu_finish(g, &c, UINT64_MAX, &done, &e) && done);
    CHECK_INT(fake.forgive(), write);
  }
  pe_gpu_free(g, &words), pe_gpu_free(g, &logits), pe_gpu_free(g, &peaks);
  pe_gpu_give(g);
}

/* Which lists of the GPU are used: not those that say that the row must be looked at. */
static void test_lists(void) {
  static int32_t words[2 * PE_SHORTLIST_WORDS];
  const struct {
    int32_t count;
    bool used;
  } cases[] = {
      {-1, false}, {0, false}, {1, true}, {PE_WANTED_ROOM, true}, {PE_WANTED_ROOM + 1, false}};
  static float sums[2 * 2 * 3];
  const pe_metal_shortlists l = {.lists = {.data = (uint8_t *)words},
                                 .sums = {.data = (uint8_t *)sums}};
  const pe_plan plan = {.drawable = 1025}; /* three blocks */
  const pe_wanted wanted = {.best = 3, .sums[1] = {1, 1, 1}};
  int32_t *second = words + PE_SHORTLIST_WORDS;
  second[1] = 7, second[1 + PE_WANTED_ROOM] = 0x3f800000; /* 1.0f */
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_shortlist out = {0};
    second[0] = cases[i].count;
    CHECK_INT(pe_metal_shortlists_get(&l, &plan, 1, &wanted, &out), cases[i].used);
    if (!cases[i].used) continue;
    CHECK_INT(out.count, cases[i].count);
    CHECK_INT(out.wanted.best, 3);
    CHECK(!out.sum[0] && out.sum[1] == sums + 9);
    CHECK(out.id[0] == 7 && out.logit[0] == 1.0f);
  }
}

/* A step has the dispatch of the sums only if an output wants some. */
static void test_asked(void) {
  pe_wanted wanted[2] = {{0}, {0}};
  const pe_step step = {.outputs = 2, .wanted = wanted}, none = {.outputs = 2};
  CHECK_INT(pe_metal_shortlists_asked(&none), 0);
  CHECK_INT(pe_metal_shortlists_asked(&step), 0);
  wanted[1].best = 3;
  CHECK_INT(pe_metal_shortlists_asked(&step), 2);
  for (int i = 0; i < 2; i++) {
    wanted[0] = (pe_wanted){.best = 1};
    wanted[0].sums[i].scale = 1;
    CHECK_INT(pe_metal_shortlists_asked(&step), 3);
  }
}

/* ---- weights --------------------------------------------------------------------------------- */

enum { SIDE = 256, LAYERS = 5, MATRIX = SIDE * SIDE * (int)sizeof(float) };

/* A chain of square matrices, 256 KB each. */
static pe_status open_chain(pe_weights **w, pe_graph **g, pe_plan **plan, pe_error *err) {
  static const char *const name[LAYERS] = {"a", "b", "c", "d", "e"};
  pe_weight_shape shape[LAYERS];
  pe_value x = -1;
  for (int i = 0; i < LAYERS; i++)
    shape[i] =
        (pe_weight_shape){.name = name[i], .rank = 2, .shape = {SIDE, SIDE}, .dtype = PE_F32};
  pe_status rc = pe_weights_synthetic(shape, LAYERS, 1, w, err);
  if (!rc) rc = pe_graph_open(*w, g, err);
  for (int i = 0; !rc && i < LAYERS; i++) {
    pe_param p;
    rc = pe_graph_param(*g, name[i], &p, err);
    if (!rc && !i) rc = pe_graph_embed(*g, p, 1, &x, err);
    if (!rc && i) rc = pe_graph_linear(*g, x, p, -1, &x, err);
  }
  if (!rc) rc = pe_graph_output(*g, x, &(*g)->output, err);
  return rc ? rc : pe_plan_open(*g, NULL, plan, err);
}

/* Weights are wrapped where they are, in buffers as large as the device takes and no larger. */
static void test_weights(void) {
  pe_weights *w = NULL;
  pe_graph *g = NULL;
  pe_plan *plan = NULL;
  pe_error err;
  CHECK_OK(open_chain(&w, &g, &plan, &err), err);
  for (uint64_t fit = 1; fit <= LAYERS; fit++) { /* matrices in a buffer; none fits exactly */
    const uint64_t most = fit * MATRIX + MATRIX / 2;
    pe_metal_store s = {0};
    fake.set_most_bytes(most);
    pe_gpu *gpu = take();
    CHECK_OK(pe_metal_store_open(&s, gpu, plan, &err), err);
    CHECK_INT(s.ranges, (LAYERS + fit - 1) / fit);
    CHECK(s.copied < 1024 && s.wrapped >= LAYERS * MATRIX);
    for (size_t i = 0; i < s.ranges; i++) CHECK(s.range[i].buffer.size <= most);
    for (size_t i = 0; i < plan->count; i++) {
      const pe_metal_operand *o = &s.of[i].mat[0][0];
      if (plan->instr[i].mat) CHECK(o->buffer->data + o->at == plan->instr[i].mat->data);
    }
    pe_metal_store_close(&s), pe_gpu_give(gpu);
  }
  fake.set_most_bytes(MATRIX / 2);
  pe_gpu *gpu = take();
  pe_metal_store s = {0};
  CHECK_FAILS(pe_metal_store_open(&s, gpu, plan, &err), PE_ENOMEM, err, "takes 131072");
  pe_metal_store_close(&s), pe_gpu_give(gpu);
  fake.set_most_bytes(0);
  pe_plan_close(plan), pe_graph_release(g), pe_weights_release(w);
  CHECK_INT(fake.living(), 0);
}

/* Each group of the KV cache is a buffer; one that is larger than a buffer may be is refused. */
static void test_caches(void) {
  static answer want, got;
  pe_error err;
  little l;
  CHECK_OK(open_on(&l, &pe_backend_metal, &err), err);
  CHECK_OK(answer_of(&l, 3, &want, &err), err);
  uint64_t most = 0, bytes;
  CHECK(l.graph->group_count > 1);
  for (int32_t g = 0; g < l.graph->group_count; g++) {
    pe_kv_blocks(l.kv, g, &bytes);
    most = bytes > most ? bytes : most;
  }
  CHECK(most + 2 * pe_gpu_page() < l.kv->memory->size); /* so all of it would not fit */
  little_close(&l);
  fake.set_most_bytes(most + 2 * pe_gpu_page());
  CHECK_OK(open_on(&l, &pe_backend_metal, &err), err);
  CHECK_OK(answer_of(&l, 3, &got, &err), err);
  CHECK(!memcmp(&got, &want, sizeof got));
  little_close(&l);
  fake.set_most_bytes((most - 1) / pe_gpu_page() * pe_gpu_page());
  CHECK_FAILS(open_on(&l, &pe_backend_metal, &err), PE_ELIMIT, err,
              "a group of the KV cache takes");
  fake.set_most_bytes(0);
  CHECK_INT(fake.living(), 0);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Opens, answers, and closes, with the n-th call failing. True: it failed, and was reported. */
static bool fails_at(long n, fake_failure how, const answer *want) {
  static answer got;
  pe_error err = {0};
  little l;
  fake.fail_at(n, how);
  pe_status rc = open_on(&l, &pe_backend_metal, &err);
  const bool opened = !rc;
  if (opened) rc = answer_of(&l, 3, &got, &err);
  const bool reached = fake.calls() >= n;
  if (rc && (!*err.text || strchr(err.text, '\n'))) CHECK(!"an error of one line");
  const bool lost = strstr(err.text, "Device Removed");
  if (opened && rc && lost) /* every step fails until the device is opened again */
    CHECK_FAILS(answer_of(&l, 3, &got, &err), PE_EIO, err, "metal: Fake M1 is lost");
  else if (opened && rc) { /* the next request is as good as ever */
    CHECK_OK(answer_of(&l, 3, &got, &err), err);
    CHECK(!memcmp(&got, want, sizeof got));
  }
  if (!rc) CHECK(!memcmp(&got, want, sizeof got)); /* a call that may fail, as an archive's */
  if (opened) little_close(&l);
  fake.fail_at(0, how);
  CHECK_INT(fake.living(), 0);
  return reached;
}

static void fail_everywhere(fake_failure how) {
  static answer want;
  pe_error err;
  little l;
  CHECK_OK(open_on(&l, &pe_backend_metal, &err), err);
  CHECK_OK(answer_of(&l, 3, &want, &err), err);
  little_close(&l);
  long n = 1;
  while (n < 9999 && !check_failures && fails_at(n, how, &want)) n++;
  CHECK(n > 3 * STEPS && n < 9999); /* a step has three calls that may fail */
  CHECK_INT(fake.complaints(), 0);
}

static void test_internal_errors(void) { fail_everywhere(FAKE_FAIL_INTERNAL); }
static void test_memory_errors(void) { fail_everywhere(FAKE_FAIL_MEMORY); }
static void test_lost_device(void) { fail_everywhere(FAKE_FAIL_REMOVED); }

static void test_no_memory(void) {
  pe_error err;
  long n = 1;
  for (bool failed = true; failed && n < 9999; n++) {
    little l;
    const int64_t live = pe_alloc_live();
    pe_alloc_fail_at(n);
    pe_status rc = open_on(&l, &pe_backend_metal, &err);
    if (!rc) rc = answer_of(&l, 3, NULL, &err), little_close(&l);
    failed = pe_alloc_count() >= n; /* what is done ahead may go wrong unseen */
    pe_alloc_fail_at(0);
    CHECK_INT(pe_alloc_live(), live);
    CHECK_INT(fake.living(), 0);
  }
  CHECK(n > 50 && n < 9999);
}

static const check_test tests[] = {{"signatures", test_signatures},
                                   {"signatures_differ", test_signatures_differ},
                                   {"shared", test_shared},
                                   {"memory", test_memory},
                                   {"pipelines", test_pipelines},
                                   {"library", test_library},
                                   {"archive", test_archive},
                                   {"archive path", test_archive_path},
                                   {"dropped_commands", test_dropped_commands},
                                   {"model", test_model},
                                   {"model_half", test_model_half},
                                   {"encoded_ahead", test_encoded_ahead},
                                   {"overwritten", test_overwritten},
                                   {"lists", test_lists},
                                   {"asked", test_asked},
                                   {"weights", test_weights},
                                   {"caches", test_caches},
                                   {"internal_errors", test_internal_errors},
                                   {"memory_errors", test_memory_errors},
                                   {"lost_device", test_lost_device},
                                   {"no_memory", test_no_memory}};

int main(int argc, char **argv) {
  return fake_main(&fake, "metal_host", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
