/* test_metal_batch.c - batches on the fake Metal: shortlists decide as whole rows do, and a failure
 * of any call ends the requests of its step and no other. */
#include "fake_help.h"

#include "batch_run.h"
#include "runtime/device/metal_store.h"

enum { REQUESTS = 12 };

static fake_control fake;

static pe_batch_options on(const pe_backend *backend) {
  pe_batch_options o = options();
  o.backend = backend, o.prefix.budget = 1 << 20;
  return o;
}

/* All requests together; answers[1 + i] is that of number i. */
static void run_all(const pe_backend *backend, pe_batch_stats *stats) {
  const pe_batch_options o = on(backend);
  if (!batch_open(&o)) return;
  for (int i = 0; i < REQUESTS; i++) {
    pe_request r = kind_of_request(i);
    add(&r);
    if (i % 3) step(5, i % 2);
  }
  finish(5);
  pe_batch_stat(b, stats);
}

/* Tokens that a list decides: all but those of requests with penalties whose draw is neither greedy
 * nor has top_k. */
static uint64_t listed_of(void) {
  uint64_t sum = 0;
  for (int i = 0; i < REQUESTS; i++) {
    const pe_sampling p = kind_of_request(i).sampling;
    const bool penal = p.repetition_penalty != 1 || p.frequency_penalty != 0;
    if (!penal || p.temperature == 0 || p.top_k) sum += (uint64_t)answers[1 + i].count;
  }
  return sum;
}

static void test_lists(void) {
  pe_backend rows = pe_backend_metal;
  rows.shortlist = NULL;
  for (kind k = DENSE; k < KINDS; k++) {
    static answer want[ANSWERS];
    pe_batch_stats stats;
    if (!model_open(&m, k, 1)) return;
    run_all(&rows, &stats);
    CHECK_INT(stats.listed_tokens, 0);
    for (int i = 1; i <= REQUESTS; i++) want[i] = answers[i], answers[i] = (answer){0};
    batch_close();
    run_all(&pe_backend_metal, &stats);
    for (int i = 1; i <= REQUESTS; i++) check_answer(kind_name[k], &answers[i], &want[i]);
    CHECK_INT(stats.listed_tokens, listed_of());
    CHECK(stats.listed_tokens > 0 && stats.listed_tokens < stats.decode_tokens);
    batch_close(), model_close(&m);
    for (int i = 1; i <= REQUESTS; i++) pe_buf_free(&want[i].text);
  }
  CHECK_INT(fake.complaints(), 0);
  CHECK_INT(fake.living(), 0);
}

/* ---- all parameters -------------------------------------------------------------------------- */

static const pe_logit_bias bias[] = {{3, 9}, {7, -20}, {11, 4}};
static const int32_t banned[] = {2, 5, 9, 16}, bad_ids[] = {4, 6, 8};
static const pe_ids_view bad[] = {{bad_ids, 1}, {bad_ids + 1, 2}};

/* The first LISTED are decided by lists. */
enum { VARIED = 20, LISTED = 14 };
static pe_request varied(int i) {
  static const struct {
    float temperature, top_p, min_p, typical_p, xtc;
    int32_t top_k, top_logprobs;
    float repetition, presence;
  } of[VARIED] = {
      {0, 1, 0, 1, 0, 0, 3, 1, 0},       {.8f, 1, 0, 1, 0, 0, -1, 1, 0},
      {1, 1, 0, 1, 0, 0, 0, 1, 0},       {.7f, 1, 0, 1, 0, 0, 5, 1, 0},
      {1, .8f, 0, 1, 0, 0, -1, 1, 0},    {.6f, .9f, 0, 1, 0, 0, 2, 1, 0},
      {1.2f, 1, .1f, 1, 0, 0, -1, 1, 0}, {1.3f, .95f, .05f, 1, 0, 0, 20, 1, 0},
      {0, 1, 0, 1, 0, 0, 4, 1, 0},       {.9f, .9f, 0, 1, 0, 5, 2, 1.3f, .5f},
      {1, 1, 0, 1, 0, 5, -1, 1, 0},      {0, 1, 0, 1, 0, 0, -1, 1, 0},
      {1, 1, .02f, 1, 0, 4, -1, 1, 0},   {0, 1, 0, 1, 0, 0, 1, 1.5f, .1f},
      {1, 1, 0, .9f, 0, 0, -1, 1, 0},    {1, 1, 0, 1, .5f, 0, -1, 1, 0},
      {.9f, .9f, 0, 1, 0, 0, 3, 1, .5f}, {1, 1, 0, 1, 0, 0, -1, 1.2f, 0},
      {1, .9f, 0, 1, 0, 0, -1, 1, 0},    {1.5f, 1, 0, 1, 0, 0, 1, 1, 0},
  };
  pe_request r = request(4 + i % 9, 10);
  pe_sampling *p = &r.sampling;
  p->temperature = of[i].temperature, p->top_p = of[i].top_p, p->min_p = of[i].min_p;
  p->typical_p = of[i].typical_p, p->xtc_probability = of[i].xtc, p->top_k = of[i].top_k;
  p->top_logprobs = of[i].top_logprobs, p->repetition_penalty = of[i].repetition;
  p->presence_penalty = of[i].presence, p->seed = (uint64_t)i * 31 + 5;
  if (i == 8) p->bias = bias, p->bias_count = 3;
  if (i == 10) p->banned = banned, p->banned_count = 4;
  r.min_tokens = i == 11 ? 6 : 0, r.ignore_eos = i != 11;
  if (i == 12 || i == 18) r.bad_words = bad, r.bad_count = 2;
  if (i == 19) r.min_tokens = 10, r.stop_ids = (pe_ids_view){banned, 4}, r.ignore_eos = false;
  return r;
}

/* Every kind of request, all at once; the last id is that of the last one. */
static void run_varied(const pe_backend *backend, pe_batch_stats *stats) {
  const pe_batch_options o = on(backend);
  if (!batch_open(&o)) return;
  for (int i = 0; i < VARIED; i++) {
    const pe_request r = varied(i);
    add(&r);
    if (i % 4 == 3) step(5, false);
  }
  finish(5);
  pe_batch_stat(b, stats);
}

static void test_parameters(void) {
  pe_backend rows = pe_backend_metal;
  rows.shortlist = NULL;
  for (kind k = DENSE; k < KINDS; k += HYBRID) {
    static answer want[ANSWERS];
    pe_batch_stats stats;
    uint64_t listed = 0;
    if (!model_open(&m, k, 1)) return;
    run_varied(&rows, &stats);
    CHECK_INT(stats.listed_tokens, 0);
    for (int i = 1; i <= VARIED; i++) want[i] = answers[i], answers[i] = (answer){0};
    batch_close();
    run_varied(&pe_backend_metal, &stats);
    for (int i = 1; i <= VARIED; i++) {
      check_answer(kind_name[k], &answers[i], &want[i]);
      if (i <= LISTED) listed += (uint64_t)answers[i].count;
    }
    CHECK_INT(stats.listed_tokens, listed);
    CHECK(listed > 0 && listed < stats.decode_tokens);
    batch_close(), model_close(&m);
    for (int i = 1; i <= VARIED; i++) pe_buf_free(&want[i].text);
  }
}

/* One request on Metal; held sequences draw at once, as they would have. *listed: tokens. */
static pe_seq_id run_one(const pe_request *r, uint64_t *listed) {
  const pe_batch_options o = on(&pe_backend_metal);
  pe_batch_stats s;
  if (!batch_open(&o)) return 0;
  const pe_seq_id first = add(r);
  for (int i = 0; i < 200 && pe_batch_sequences(b, NULL, 0); i++) {
    pe_seq_info info[ANSWERS];
    pe_grant grant[ANSWERS];
    int32_t ran, count = pe_batch_sequences(b, info, ANSWERS);
    for (int32_t k = 0; k < count; k++) grant[k] = (pe_grant){info[k].id, 3};
    CHECK(!pe_batch_step(b, grant, count, &ran, NULL));
    count = pe_batch_sequences(b, info, ANSWERS);
    for (int32_t k = 0; k < count; k++) {
      const pe_command sample = {.verb = PE_DO_SAMPLE, .seq = info[k].id};
      if (info[k].state == PE_SEQ_HELD) CHECK(!pe_batch_do(b, &sample, NULL, NULL));
    }
    collect();
  }
  pe_batch_stat(b, &s);
  *listed = s.listed_tokens;
  return first;
}

/* Where a row is read for another reason, or shared, the choice stays the same. */
static void test_read_rows(void) {
  if (!model_open(&m, DENSE, 1)) return;
  for (int i = 0; i < VARIED; i++) {
    uint64_t listed = 0;
    answer want[3];
    for (int c = 0; c < 3; c++) {
      pe_request r = varied(i);
      r.sampling.seed += (uint64_t)c;
      const pe_seq_id id = run_one(&r, &listed);
      want[c] = answers[id], answers[id] = (answer){0};
      CHECK_INT(listed, i < LISTED ? want[c].count : 0);
      batch_close();
    }
    for (int how = 0; how < 3; how++) {
      pe_request r = varied(i);
      r.keep_logits = how == 0, r.hold = how == 1, r.n = how == 2 ? 3 : 1;
      const pe_seq_id id = run_one(&r, &listed);
      for (int c = 0; c < r.n; c++) check_answer("read", &answers[id + c], &want[c]);
      CHECK((listed > 0) == (how == 2 && i < LISTED));
      batch_close();
    }
    for (int c = 0; c < 3; c++) pe_buf_free(&want[c].text);
  }
  model_close(&m);
}

/* Whole rows are read where somebody wants them: kept logits, forced tokens. */
static void test_whole_rows(void) {
  const int32_t forced[] = {4, 9, 2};
  pe_batch_stats s;
  if (!model_open(&m, DENSE, 1)) return;
  const pe_batch_options o = on(&pe_backend_metal);
  for (int i = 0; i < 3; i++) {
    pe_request r = request(5, 3);
    r.sampling.temperature = 0, r.keep_logits = i == 1;
    if (!batch_open(&o)) return;
    pe_seq_id id = add(&r);
    const pe_command force = {.verb = PE_DO_FORCE, .seq = id, .ids = {forced, 3}};
    if (i == 2) CHECK(!pe_batch_do(b, &force, NULL, NULL));
    finish(5);
    CHECK_INT(answers[id].count, 3);
    pe_batch_stat(b, &s);
    CHECK_INT(s.listed_tokens, i ? 0 : 3);
    batch_close();
  }
  model_close(&m);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Two requests at once with the n-th call failing after the batch is open: what is not finished has
 * an error of one line, and the next request is answered as ever. */
static void fails_at(long n, fake_failure how, const answer want[3]) {
  pe_seq_id id[3] = {0};
  const pe_batch_options o = on(&pe_backend_metal);
  pe_error err = {0};
  if (!batch_open(&o)) return;
  fake.fail_at(n, how);
  for (int i = 0; i < 3; i++) {
    pe_request r = kind_of_request(i * 2);
    if (i == 2 && how != FAKE_FAIL_REMOVED) fake.fail_at(0, how);
    id[i] = add(&r);
    for (int k = 0; i && k < 200 && pe_batch_sequences(b, NULL, 0); k++) {
      pe_grant grant[ANSWERS];
      pe_seq_info info[ANSWERS];
      int32_t ran, count = pe_batch_sequences(b, info, ANSWERS);
      for (int32_t g = 0; g < count; g++) grant[g] = (pe_grant){info[g].id, 5};
      pe_status rc = pe_batch_step(b, grant, count, &ran, &err); /* PE_ENOMEM: tried again */
      if (rc) CHECK_INT(rc, PE_ENOMEM);
      collect();
    }
    CHECK(!i || !pe_batch_sequences(b, NULL, 0));
  }
  for (int i = 0; i < 3; i++) {
    const answer *a = &answers[id[i]];
    if (a->finish == PE_FINISH_ERROR)
      CHECK(*a->error.text && !strchr(a->error.text, '\n') && (i < 2 || how == FAKE_FAIL_REMOVED));
    else
      check_answer("after a failure", a, &want[i]);
  }
  batch_close();
  fake.fail_at(0, how);
  CHECK_INT(fake.living(), 0);
}

static void fail_everywhere(fake_failure how) {
  answer want[3];
  if (!model_open(&m, HYBRID, 1)) return;
  const pe_batch_options o = on(&pe_backend_metal);
  fake.fail_at(0, how);
  if (!batch_open(&o)) return;
  fake.fail_at(0, how);
  for (int i = 0; i < 3; i++) {
    pe_request r = kind_of_request(i * 2);
    add(&r);
  }
  finish(5);
  const long calls = fake.calls();
  for (int i = 0; i < 3; i++) want[i] = answers[1 + i], answers[1 + i] = (answer){0};
  batch_close();
  CHECK(calls > 30);
  for (long n = 1; n <= calls + 1 && !check_failures; n++) fails_at(n, how, want);
  for (int i = 0; i < 3; i++) pe_buf_free(&want[i].text);
  model_close(&m);
  CHECK_INT(fake.complaints(), 0);
}

static void test_internal_errors(void) { fail_everywhere(FAKE_FAIL_INTERNAL); }
static void test_memory_errors(void) { fail_everywhere(FAKE_FAIL_MEMORY); }
static void test_lost_device(void) { fail_everywhere(FAKE_FAIL_REMOVED); }

static const check_test tests[] = {{"lists", test_lists},
                                   {"parameters", test_parameters},
                                   {"read_rows", test_read_rows},
                                   {"whole_rows", test_whole_rows},
                                   {"internal_errors", test_internal_errors},
                                   {"memory_errors", test_memory_errors},
                                   {"lost_device", test_lost_device}};

int main(int argc, char **argv) {
  return fake_main(&fake, "metal_batch", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
