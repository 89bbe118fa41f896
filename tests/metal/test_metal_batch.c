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

/* Tokens that a list of the best decides: of requests without penalties and with a greedy draw, or
 * with top_k. */
static uint64_t listed_of(void) {
  uint64_t sum = 0;
  for (int i = 0; i < REQUESTS; i++) {
    const pe_sampling p = kind_of_request(i).sampling;
    const bool penal = p.repetition_penalty != 1 || p.frequency_penalty != 0;
    if (!penal && (p.temperature == 0 || p.top_k)) sum += (uint64_t)answers[1 + i].count;
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

/* Whole rows are read where somebody wants them: kept logits, logprobs, forced tokens, bans. */
static void test_whole_rows(void) {
  const int32_t forced[] = {4, 9, 2};
  pe_batch_stats s;
  if (!model_open(&m, DENSE, 1)) return;
  const pe_batch_options o = on(&pe_backend_metal);
  for (int i = 0; i < 5; i++) {
    pe_request r = request(5, 3);
    r.sampling.temperature = 0;
    r.keep_logits = i == 1, r.sampling.top_logprobs = i == 2 ? 3 : -1;
    r.min_tokens = i == 3 ? 3 : 0, r.ignore_eos = i != 3;
    if (!batch_open(&o)) return;
    pe_seq_id id = add(&r);
    const pe_command force = {.verb = PE_DO_FORCE, .seq = id, .ids = {forced, 3}};
    if (i == 4) CHECK(!pe_batch_do(b, &force, NULL, NULL));
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
                                   {"whole_rows", test_whole_rows},
                                   {"internal_errors", test_internal_errors},
                                   {"memory_errors", test_memory_errors},
                                   {"lost_device", test_lost_device}};

int main(int argc, char **argv) {
  if (!fake_open(&fake)) {
    printf("FAIL metal_batch: no fake Metal\nmetal_batch: 0 passed, 1 failed, 0 skipped\n");
    return 1;
  }
  return check_main("metal_batch", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
}
