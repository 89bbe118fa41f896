/* test_batch.c - the batch generator, one property at a time: sequences together, memory, the
 * prefix cache, refusals, counters (test_batch_seqs.c has what happens to one sequence,
 * test_batch_random.c mixes it all). */
#include "batch_run.h"

#include <unistd.h>

/* ---- sequences together -------------------------------------------------------------------- */

/* Different requests join at different steps, with every grant size; each answer is what it is
 * alone. */
static void test_mixture(void) {
  for (kind k = DENSE; k < KINDS; k++)
    for (int32_t tokens = 1; tokens < 20; tokens += 6) {
      pe_seq_id id[12];
      if (!model_open(&m, k, 1 + k % 2)) return;
      pe_batch_options o = options();
      o.prefix.budget = tokens > 1 ? 1 << 20 : 0;
      if (!batch_open(&o)) return;
      for (int i = 0; i < 12; i++) {
        pe_request r = kind_of_request(i);
        id[i] = add(&r);
        if (i % 3) step(tokens, i % 2);
      }
      finish(tokens);
      for (int i = 0; i < 12; i++) {
        pe_request r = kind_of_request(i);
        pe_batch_options cold = options();
        answer want = alone(&r, &cold);
        check_answer(kind_name[k], &answers[id[i]], &want);
        pe_buf_free(&want.text);
      }
      batch_close(), model_close(&m);
    }
}

static void test_choices(void) {
  for (kind k = DENSE; k < KINDS; k++) {
    if (!model_open(&m, k, 1)) return;
    pe_batch_options o = options();
    pe_batch_stats s;
    pe_request r = request(17, 6);
    r.n = 12, r.sampling.temperature = 1.5f,
    r.sampling.seed = 40; /* more choices than sequences can run */
    if (!batch_open(&o)) return;
    pe_seq_id id = add(&r);
    pe_seq_info info;
    CHECK(pe_batch_info(b, id + 3, &info) && info.follows && info.choice == 3 && info.left == 0);
    finish(100);
    pe_batch_stat(b, &s);
    CHECK_INT(s.prefill_tokens,
              17 * 5); /* by the first, for eight; and by the four that found no place */
    CHECK_INT(s.finished, 12);
    for (int i = 0; i < 12; i++) {
      pe_request one = request(17, 6);
      one.sampling = r.sampling, one.sampling.seed = 40 + (uint64_t)i;
      answer want = alone(&one, &o);
      check_answer(kind_name[k], &answers[id + i], &want);
      pe_buf_free(&want.text);
    }
    CHECK(!same_answer(&answers[id], &answers[id + 1]) ||
          !same_answer(&answers[id], &answers[id + 2]));
    batch_close(), model_close(&m);
  }
}

/* The first choice is cancelled before its prompt is read: the next one reads for the others. */
static void test_first_choice_leaves(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_seq_info info;
  pe_request r = request(12, 3);
  r.n = 3;
  if (!batch_open(&o)) return;
  pe_seq_id id = add(&r);
  step(5, false);
  pe_batch_do(b, &(pe_command){.verb = PE_DO_CANCEL, .seq = id}, NULL, NULL);
  pe_batch_do(b, &(pe_command){.verb = PE_DO_CANCEL, .seq = id}, NULL, NULL); /* twice is once */
  collect();
  CHECK_INT(answers[id].finish, PE_FINISH_CANCEL);
  CHECK(pe_batch_info(b, id, &info) && info.state == PE_SEQ_DONE && info.bytes == 0);
  CHECK(pe_batch_info(b, id + 1, &info) && !info.follows && info.left == 12);
  CHECK(pe_batch_info(b, id + 2, &info) && info.follows);
  finish(100);
  CHECK_INT(answers[id].count, 0);
  for (int i = 1; i < 3; i++) CHECK_INT(answers[id + i].finish, PE_FINISH_LENGTH);
  CHECK(!pe_batch_info(b, id, &info)); /* gone with the next step */
  batch_close(), model_close(&m);
}

/* ---- memory -------------------------------------------------------------------------------- */

/* Two sequences do not fit together: the younger is preempted, and its answer does not change. */
static void test_preemption(void) {
  for (kind k = DENSE; k < KINDS; k++)
    for (int cache = 0; cache < 2; cache++) {
      if (!model_open(&m, k, 1)) return;
      pe_batch_options o = options(), large = options();
      pe_batch_stats s;
      o.sequences = 2, o.cache_tokens = 28, o.prefix.budget = cache ? 1 << 20 : 0;
      pe_request r[2] = {request(10, 25), request(8, 25)};
      r[0].sampling.temperature = r[1].sampling.temperature = 1.2f, r[1].sampling.seed = 5;
      if (!batch_open(&o)) return;
      pe_seq_id id[2] = {add(&r[0]), add(&r[1])};
      finish(100);
      pe_batch_stat(b, &s);
      if (k != WINDOWS_ONLY) CHECK(s.preempted > 0);
      for (int i = 0; i < 2; i++) {
        answer want = alone(&r[i], &large);
        check_answer(kind_name[k], &answers[id[i]], &want);
        pe_buf_free(&want.text);
      }
      batch_close(), model_close(&m);
    }
}

static void test_preempt_by_hand(void) {
  for (kind k = DENSE; k < KINDS; k++) {
    if (!model_open(&m, k, 1)) return;
    pe_batch_options o = options();
    pe_seq_info info;
    pe_request r = request(12, 10);
    r.sampling.temperature = 1;
    if (!batch_open(&o)) return;
    pe_seq_id id = add(&r);
    for (int i = 0; i < 6; i++) {
      step(7, false);
      pe_batch_do(b, &(pe_command){.verb = PE_DO_PREEMPT, .seq = id}, NULL, NULL),
          pe_batch_do(b, &(pe_command){.verb = PE_DO_PREEMPT, .seq = id}, NULL, NULL),
          pe_batch_do(b, &(pe_command){.verb = PE_DO_PREEMPT, .seq = 1000}, NULL, NULL);
      CHECK(pe_batch_info(b, id, &info) && info.state == PE_SEQ_WAITING && info.past == 0);
      CHECK_INT(info.left, info.prompt + info.generated);
      CHECK_INT(b->kv->used[0], 0);
      step(100, false);
    }
    finish(3);
    answer want = alone(&r, &o);
    check_answer(kind_name[k], &answers[id], &want);
    pe_buf_free(&want.text);
    batch_close(), model_close(&m);
  }
}

/* Memory for one sequence at a time: a second one that would not fit is not admitted. */
static void test_admission(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  int64_t room, all;
  pe_seq_info info;
  pe_error err;
  pe_seq_id none = 0;
  o.sequences = 2, o.cache_tokens = 12; /* and one block for each sequence: 24 tokens */
  pe_request r = request(16, 4), large = request(16, 12);
  if (!batch_open(&o)) return;
  pe_batch_room(b, &room, &all);
  CHECK_INT(all, 24);
  CHECK_INT(room, 24);
  CHECK_FAILS(batch_add(b, &large, &none, &err), PE_ELIMIT, err,
              "needs a KV cache of 27 tokens, the whole cache has 24");
  pe_seq_id first = add(&r), second = add(&r);
  step(100, false);
  pe_batch_room(b, &room, &all);
  CHECK_INT(room, 8);
  CHECK(pe_batch_info(b, second, &info) && info.state == PE_SEQ_WAITING);
  finish(100);
  CHECK(same_answer(&answers[first], &answers[second]));
  CHECK_INT(answers[first].count, 4);
  batch_close(), model_close(&m);
}

/* Pinned blocks cannot be evicted, so they are not room, whether a sequence shares them or not. */
static void test_pinned_room(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  int64_t room, all;
  o.sequences = 2, o.cache_tokens = 24, o.prefix.budget = 1 << 20; /* 36 tokens in blocks of 4 */
  pe_request r = request(12, 1), again = request(12, 4);
  if (!batch_open(&o)) return;
  add(&r);
  finish(100);
  pe_batch_room(b, &room, &all);
  CHECK_INT(room, all);
  CHECK_INT(batch_pin(b, r.prompt, 0, true), 12);
  pe_batch_room(b, &room, &all);
  CHECK_INT(room, all - 12);
  add(&again);
  step(100, false); /* its last block is a copy, which the cache takes in place of its own */
  pe_batch_room(b, &room, &all);
  CHECK_INT(room, all - 12);
  finish(100);
  CHECK_INT(batch_pin(b, r.prompt, 1, false), 0); /* of another tenant */
  CHECK_INT(batch_pin(b, r.prompt, 0, false), 12);
  pe_batch_room(b, &room, &all);
  CHECK_INT(room, all);
  batch_close(), model_close(&m);
}

/* Pinned blocks of the prefix cache cannot be evicted: the sequence ends with an error. */
static void test_no_room_alone(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  o.sequences = 1, o.cache_tokens = 16, o.prefix.budget = 1 << 20; /* 24 tokens */
  pe_request r = request(12, 1), other = request(16, 1), small = request(6, 2);
  if (!batch_open(&o)) return;
  add(&r);
  finish(100);
  CHECK(batch_pin(b, r.prompt, 0, true) >= 11);
  other.prompt.id = prompt_ids + 3, small.prompt.id = prompt_ids + 2;
  pe_seq_id id = add(&other), next = add(&small);
  finish(100);
  CHECK_INT(answers[id].finish, PE_FINISH_ERROR);
  if (!strstr(answers[id].error.text, "no room for token"))
    check_failures++, printf("    error is \"%s\"\n", answers[id].error.text);
  CHECK_INT(answers[next].finish, PE_FINISH_LENGTH);
  batch_close(), model_close(&m);
}

/* ---- the prefix cache ---------------------------------------------------------------------- */

/* The second time all but one token is found; a longer prompt resumes at the boundary or the end;
 * nothing else changes. */
static void test_warm(void) {
  for (kind k = DENSE; k < KINDS; k++) {
    if (!model_open(&m, k, 1)) return;
    pe_batch_options o = options();
    pe_batch_stats s;
    int32_t boundary = 10;
    o.prefix.budget = 1 << 20;
    pe_request r = request(14, 6), turn = request(20, 5), salted = request(14, 6);
    r.sampling.temperature = salted.sampling.temperature = 1,
    r.boundary = (pe_ids_view){&boundary, 1}, salted.salt = 9;
    int32_t half[16];
    memcpy(half, prompt_ids, 10 * sizeof *half), memcpy(half + 10, prompt_ids, 6 * sizeof *half);
    if (!batch_open(&o)) return;
    pe_seq_id cold = add(&r);
    finish(100);
    CHECK_INT(answers[cold].cached, 0);
    pe_seq_id warm = add(&r), apart = add(&salted);
    finish(100);
    CHECK_INT(answers[warm].cached, 13);
    CHECK_INT(answers[apart].cached, 0);
    check_answer(kind_name[k], &answers[warm], &answers[cold]);
    check_answer(kind_name[k], &answers[apart], &answers[cold]);
    pe_seq_id id = add(&turn);
    turn.prompt = (pe_ids_view){half, 16};
    pe_seq_id other = add(&turn);
    finish(100);
    CHECK(answers[id].cached >= 12);
    CHECK(answers[other].cached >= 8);
    pe_batch_stat(b, &s);
    CHECK_INT(s.cached_tokens, answers[warm].cached + answers[id].cached + answers[other].cached);
    CHECK(s.prefix.hits >= 2);
    answer want = alone(&turn, &o);
    check_answer(kind_name[k], &answers[other], &want);
    pe_buf_free(&want.text);
    batch_close(), model_close(&m);
  }
}

/* The next turn of a conversation begins with the last prompt and its answer, whose last token was
 * never computed. */
static void test_turns(void) {
  for (kind k = DENSE; k < KINDS; k++) {
    if (!model_open(&m, k, 1)) return;
    pe_batch_options o = options();
    o.prefix.budget = 1 << 20;
    pe_request r = request(13, 6);
    int32_t talk[22];
    if (!batch_open(&o)) return;
    pe_seq_id id = add(&r);
    finish(100);
    memcpy(talk, prompt_ids, sizeof talk), memcpy(talk + 13, answers[id].token, 6 * sizeof *talk);
    r.prompt = (pe_ids_view){talk, 22};
    id = add(&r);
    finish(100);
    CHECK(answers[id].cached == 18 || (k != HYBRID && answers[id].cached >= 16));
    answer want = alone(&r, &o);
    check_answer(kind_name[k], &answers[id], &want);
    pe_buf_free(&want.text);
    batch_close(), model_close(&m);
  }
}

static void test_save_and_load(void) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/perigee-test-batch-%d", (int)getpid());
  for (kind k = DENSE; k < KINDS; k++) {
    if (!model_open(&m, k, 1)) return;
    pe_batch_options o = options();
    pe_error err;
    o.prefix.budget = 1 << 20;
    pe_request r = request(14, 8);
    if (!batch_open(&o)) return;
    pe_seq_id id = add(&r);
    CHECK_FAILS(pe_batch_do(b, &(pe_command){PE_DO_SAVE, id, .path = path}, NULL, &err), PE_EARG,
                err, "has computed nothing yet");
    step(9, false);
    CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_SAVE, id, .path = path}, NULL, &err), err);
    pe_seq_info info;
    CHECK(pe_batch_info(b, id, &info));
    finish(100);
    answer want = answers[id];
    answers[id] = (answer){0};
    batch_close();
    if (!batch_open(&o)) return;
    CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_LOAD, .path = path}, NULL, &err), err);
    id = add(&r);
    finish(100);
    CHECK_INT(answers[id].cached, info.past);
    check_answer(kind_name[k], &answers[id], &want);
    pe_buf_free(&want.text);
    batch_close();
    o.prefix.identity[0]++;
    if (!batch_open(&o)) return;
    CHECK(pe_batch_do(b, &(pe_command){PE_DO_LOAD, .path = path}, NULL, &err) < 0);
    CHECK_INT(b->kv->used[0], 0);
    batch_close(), model_close(&m);
  }
  unlink(path);
}

/* Cached blocks make room for those of a file. */
static void test_load_into_a_full_pool(void) {
  char path[64];
  int32_t other[20];
  pe_error err;
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  o.prefix.budget = 1 << 20, o.cache_tokens = o.context;
  pe_request r = request(20, 8), q = request(20, 1);
  snprintf(path, sizeof path, "/tmp/perigee-test-full-%d", (int)getpid());
  if (!batch_open(&o)) return;
  pe_seq_id id = add(&r);
  step(16, false);
  CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_SAVE, id, .path = path}, NULL, &err), err);
  batch_close();
  if (!batch_open(&o)) return;
  memcpy(other, prompt_ids, sizeof other), q.prompt.id = other;
  for (other[0] = 2; other[0] < 9; other[0]++) add(&q), finish(100);
  CHECK(b->kv->blocks - b->kv->used[0] < 4);
  CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_LOAD, .path = path}, NULL, &err), err);
  id = add(&r);
  finish(100);
  CHECK_INT(answers[id].cached, 16);
  batch_close(), model_close(&m);
  unlink(path);
}

/* A window keeps a saved sequence from the middle of a block on; a sequence that shares the block
 * must find all of it. */
static void test_loaded_window(void) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/perigee-test-window-%d", (int)getpid());
  for (kind k = DENSE; k < KINDS; k++) {
    if (!model_open(&m, k, 1)) return;
    pe_batch_options o = options(), cold = options();
    pe_error err;
    int32_t boundary = 8, left[11], both[15];
    o.prefix.budget = 1 << 20;
    pe_request r = request(15, 4);
    if (!batch_open(&o)) return;
    pe_seq_id id = add(&r);
    step(14, false);
    CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_SAVE, id, .path = path}, NULL, &err),
             err); /* 14 tokens; a window of 6 needs those from 9 on, a block begins at 8 */
    batch_close();
    if (!batch_open(&o)) return;
    CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_LOAD, .path = path}, NULL, &err), err);
    memcpy(left, prompt_ids, sizeof left), memcpy(both, prompt_ids, sizeof both);
    left[8] = left[9] = left[10] = both[12] = both[13] = both[14] = 21;
    r.prompt = (pe_ids_view){left, 11}, r.boundary = (pe_ids_view){&boundary, 1};
    add(&r);
    finish(100);
    r.prompt = (pe_ids_view){both, 15};
    id = add(&r);
    finish(100);
    if (k != HYBRID) CHECK_INT(answers[id].cached, 12);
    answer want = alone(&r, &cold);
    check_answer(kind_name[k], &answers[id], &want);
    pe_buf_free(&want.text);
    batch_close(), model_close(&m);
  }
  unlink(path);
}

/* ---- refusals and counters ----------------------------------------------------------------- */

typedef struct refusal {
  pe_status want;
  const char *part;
  pe_request r;
} refusal;

static void test_refusals(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  int32_t wrong = -1, far = 9;
  pe_str empty = pe_str_of("", 0), word = pe_str_c("x");
  pe_ids_view none = {&wrong, 0};
  refusal list[] = {
      {PE_EARG, "prompt is empty", request(0, 1)},
      {PE_EARG, "got -1", request(1, 1)},
      {PE_EARG, "n must be between 1 and 128, got -1", request(4, 1)},
      {PE_EARG, "n must be between 1 and 128, got 129", request(4, 1)},
      {PE_EARG, "min_tokens must be 0 or more, got -2", request(4, 1)},
      {PE_EARG, "min_tokens must not exceed max_tokens, got 2 and 1", request(4, 1)},
      {PE_EARG, "temperature", request(4, 1)},
      {PE_EARG, "boundaries[1] must be between 0 and the prompt's 4 tokens, got 9", request(4, 1)},
      {PE_EARG, "stop[1] is empty", request(4, 1)},
      {PE_EARG, "bad_words[1] is empty", request(4, 1)},
      {PE_ELIMIT, "context is 10", request(10, 1)},
      {PE_EARG, "stop_ids: token id must be between 0 and 23, got -1", request(4, 1)},
      {PE_EARG, "need a tokenizer", request(4, 1)}};
  list[1].r.prompt.id = &wrong, list[2].r.n = -1, list[3].r.n = 129, list[4].r.min_tokens = -2,
  list[5].r.min_tokens = 2;
  list[6].r.sampling.temperature = NAN, list[7].r.boundary = (pe_ids_view){&far, 1},
  list[8].r.stop = &empty, list[8].r.stop_count = 1;
  list[9].r.bad_words = &none, list[9].r.bad_count = 1,
  list[11].r.stop_ids = (pe_ids_view){&wrong, 1}, list[12].r.stop = &word,
  list[12].r.stop_count = 1;
  o.context = 10;
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    pe_error err;
    pe_seq_id id = -7;
    if (i == 12) o.tokenizer = NULL;
    if (!batch_open(&o)) return;
    CHECK_FAILS(batch_add(b, &list[i].r, &id, &err), list[i].want, err, list[i].part);
    CHECK_INT(id, -7);
    CHECK_INT(pe_batch_sequences(b, NULL, 0), 0);
    batch_close();
  }
  pe_error err;
  o.sequences = -1;
  CHECK_FAILS(pe_batch_open(m.plan, m.pool, &o, &b, &err), PE_EARG, err,
              "sequences must be between 1 and 65536, got -1");
  o.sequences = 1, o.kv_bits = 5;
  CHECK_FAILS(pe_batch_open(m.plan, m.pool, &o, &b, &err), PE_EARG, err,
              "kv_bits must be 32, 16, 8 or 4, got 5");
  model_close(&m);
}

static void test_counters(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_batch_stats s;
  pe_trace t[PE_TRACE_STEPS + 1];
  pe_request r = request(9, 30);
  if (!batch_open(&o)) return;
  for (int i = 0; i < 4; i++) add(&r);
  pe_batch_do(b, &(pe_command){.verb = PE_DO_CANCEL, .seq = 2}, NULL, NULL);
  pe_batch_stat(b, &s);
  CHECK_INT(s.waiting, 3);
  step(100, false); /* 16 tokens: all of the first prompt, 7 of the next */
  pe_batch_stat(b, &s);
  CHECK_INT(s.running, 2);
  CHECK_INT(s.prefill_tokens, 16);
  CHECK_INT(s.decode_tokens, 1);
  CHECK_INT(pe_batch_trace(b, t, 10), 1);
  CHECK_INT(t[0].rows, 16);
  CHECK_INT(t[0].prefill, 2);
  CHECK(t[0].compute_ns > 0 && t[0].schedule_ns >= 0 && t[0].sample_ns >= 0);
  CHECK_INT(s.compute_ns, t[0].compute_ns);
  CHECK_INT(s.schedule_ns, t[0].schedule_ns);
  CHECK_INT(s.sample_ns, t[0].sample_ns);
  finish(100);
  for (int i = 0; i < 10; i++) add(&r), finish(100);
  pe_batch_stat(b, &s);
  CHECK_INT(s.added, 14);
  CHECK_INT(s.finished, 13);
  CHECK_INT(s.cancelled, 1);
  CHECK_INT(s.failed, 0);
  CHECK_INT(s.decode_tokens, 13 * 30);
  CHECK_INT(s.running + s.waiting, 0);
  CHECK_INT(s.steps > 256, 1);
  CHECK_INT(pe_batch_trace(b, t, PE_TRACE_STEPS + 1), PE_TRACE_STEPS);
  for (int i = 1; i < PE_TRACE_STEPS; i++) CHECK(t[i].at_ns >= t[i - 1].at_ns);
  batch_close(), model_close(&m);
}

/* Every allocation of opening, adding and running fails once: an error or an ended sequence, never
 * a leak or a crash. */
static void test_allocations(void) {
  if (!model_open(&m, HYBRID, 1)) return;
  pe_str stop = pe_str_c("abab");
  int32_t ended = 0, n = 1;
  for (bool more = true; more && n < 2000; n++) {
    pe_batch_options o = options();
    pe_error err = {0};
    pe_seq_id id;
    pe_request r = request(12, 4);
    int32_t ran;
    r.n = 2, r.stop = &stop, r.stop_count = 1, o.prefix.budget = 1 << 20;
    int64_t live = pe_alloc_live();
    b = NULL;
    pe_alloc_fail_at(n);
    pe_status rc = pe_batch_open(m.plan, m.pool, &o, &b, &err);
    if (!rc) rc = batch_add(b, &r, &id, &err);
    for (int i = 0; !rc && i < 12; i++) {
      pe_grant grant[2] = {{id, 100}, {id + 1, 100}};
      rc = pe_batch_step(b, grant, 2, &ran, &err), collect();
    }
    more = rc || (b && b->stats.failed) || pe_alloc_count() >= n;
    pe_alloc_fail_at(0);
    ended += b && b->stats.failed;
    if (rc) CHECK_FAILS(rc, PE_ENOMEM, err, "memory");
    batch_close();
    CHECK_INT(pe_alloc_live(), live);
  }
  CHECK(n > 50 && n < 2000 && ended > 0);
  model_close(&m);
}

/* A step that fails counts its sequences as preempted: they start again from their tokens. */
static void test_failed_step(void) {
  if (!model_open(&m, HYBRID, 1)) return;
  pe_batch_options o = options();
  pe_request r = request(12, 4);
  int32_t ran, failed = 0;
  for (int32_t n = 1; n < 12; n++) {
    pe_error err = {0};
    pe_seq_id id = 0;
    CHECK_OK(pe_batch_open(m.plan, m.pool, &o, &b, &err), err);
    CHECK_OK(batch_add(b, &r, &id, &err), err);
    pe_grant grant = {id, 100};
    pe_alloc_fail_at(n);
    pe_status rc = pe_batch_step(b, &grant, 1, &ran, &err);
    pe_alloc_fail_at(0);
    CHECK_INT(b->stats.preempted, rc != PE_OK);
    failed += rc != PE_OK;
    CHECK_OK(pe_batch_step(b, &grant, 1, &ran, &err), err);
    if (rc) CHECK_INT(ran, 1);
    batch_close();
  }
  CHECK(failed > 0);
  model_close(&m);
}

/* The same allocation fails in every step: sequences end, one way or the other, and then the batch
 * works again. */
static void test_steps_that_keep_failing(void) {
  int64_t failed = 0;
  if (!model_open(&m, HYBRID, 1)) return;
  for (int32_t n = 1; n < 40; n++) {
    pe_batch_options o = options();
    pe_request r = request(12, 4);
    pe_batch_stats s;
    if (!batch_open(&o)) return;
    pe_seq_id first = add(&r);
    add(&r), add(&r);
    for (int i = 0; i < 40; i++) {
      pe_grant grant[3] = {{first, 100}, {first + 1, 100}, {first + 2, 100}};
      pe_error err = {0};
      int32_t ran;
      pe_alloc_fail_at(n);
      (void)pe_batch_step(b, grant, 3, &ran, &err);
      pe_alloc_fail_at(0);
      collect();
    }
    pe_batch_stat(b, &s);
    CHECK_INT(s.finished + s.failed, 3);
    failed += (int64_t)s.failed;
    add(&r), finish(100);
    pe_batch_stat(b, &s);
    CHECK_INT(s.finished + s.failed, 4);
    batch_close();
  }
  CHECK(failed > 0);
  model_close(&m);
}

static const check_test tests[] = {
    {"a mixture of sequences", test_mixture},
    {"choices", test_choices},
    {"the first choice leaves", test_first_choice_leaves},
    {"preemption", test_preemption},
    {"preempted by hand", test_preempt_by_hand},
    {"admission", test_admission},
    {"pinned blocks are no room", test_pinned_room},
    {"no room, even alone", test_no_room_alone},
    {"warm is cold", test_warm},
    {"turns", test_turns},
    {"save and load", test_save_and_load},
    {"load into a full pool", test_load_into_a_full_pool},
    {"a loaded window", test_loaded_window},
    {"refusals", test_refusals},
    {"counters", test_counters},
    {"allocations that fail", test_allocations},
    {"a step that fails", test_failed_step},
    {"steps that keep failing", test_steps_that_keep_failing},
};
CHECK_MAIN("batch", tests)
