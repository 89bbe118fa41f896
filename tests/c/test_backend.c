/* test_backend.c - batches over a backend that computes late and fails on demand: a step belongs to
 * the device from submit to wait, and a failure ends the requests that it hits, and no other. */
#include "batch_run.h"
#include "fake_backend.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 12 };

static void test_names(void) {
  const pe_backend *found = NULL;
  pe_error err = {0};
  CHECK_OK(pe_backend_named("cpu", &found, &err), err);
  CHECK(found == &pe_backend_cpu);
  CHECK_FAILS(pe_backend_named("abacus", &found, &err), PE_EUNSUPPORTED, err,
              "device abacus: this build has metal, cpu only");
  CHECK_STR(err.field, "device");
#ifndef __APPLE__
  found = NULL;
  CHECK_OK(pe_backend_named("auto", &found, &err), err);
  CHECK(found == &pe_backend_cpu);
  CHECK_FAILS(pe_backend_named("metal", &found, &err), PE_EUNSUPPORTED, err,
              "device metal: there is no Metal on this system");
  CHECK_STR(err.field, "device");
#endif
}

/* What one backend has computed is not another one's. */
static void test_identity(void) {
  uint8_t id[3][16];
  const pe_backend *const backends[3] = {NULL, &pe_backend_cpu, fake_backend()};
  if (!model_open(&m, DENSE, 1)) return;
  for (int i = 0; i < 3; i++) {
    pe_batch_options o = options();
    o.backend = backends[i];
    if (!batch_open(&o)) return;
    pe_seq_identity(b->kv, id[i]);
    batch_close();
  }
  CHECK(!memcmp(id[0], id[1], 16) && memcmp(id[0], id[2], 16));
  model_close(&m);
}

/* Answers on the CPU, each alone in its batch. */
static void expect(answer *want) {
  pe_batch_options o = options();
  for (int i = 0; i < MANY; i++) {
    pe_request r = kind_of_request(i);
    want[i] = alone(&r, &o);
  }
}

static void forget(answer *want) {
  for (int i = 0; i < MANY; i++) pe_buf_free(&want[i].text);
}

/* Many sequences with a prefix cache, some of which are preempted. */
static void test_late(void) {
  for (kind k = DENSE; k < KINDS; k++) {
    answer want[MANY];
    pe_seq_id id[MANY];
    if (!model_open(&m, k, 2)) return;
    expect(want);
    pe_batch_options o = options();
    o.backend = fake_backend(), o.prefix.budget = 1 << 20;
    if (!batch_open(&o)) return;
    for (int round = 0; round < 2; round++) {
      for (int i = 0; i < MANY; i++) {
        pe_request r = kind_of_request(i);
        id[i] = add(&r);
      }
      for (int i = 0; i < 99; i++) {
        pe_error err;
        step(5, i % 2);
        pe_batch_do(b, &(pe_command){.verb = PE_DO_PREEMPT, .seq = id[i % MANY]}, NULL, &err);
      }
      for (int i = 0; i < MANY; i++) check_answer(kind_name[k], &answers[id[i]], &want[i]);
    }
    CHECK(b->stats.preempted > 0 && b->stats.cached_tokens > 0 && fake_calls > 20);
    CHECK_INT(fake_changes, 0);
    batch_close(), forget(want), model_close(&m);
  }
}

/* Call n of submit and wait fails: the sequences of that step end with the error; those that wait
 * and those that are held are as they were; later ones get the same answers as ever. */
static void fail_at(int64_t n, const answer *want, int64_t *hit) {
  pe_batch_options o = options();
  pe_request r = kind_of_request(3), kept = kind_of_request(5), later = kind_of_request(6);
  pe_batch_stats s;
  o.backend = fake_backend(), o.prefix.budget = 1 << 20;
  if (!batch_open(&o)) return;
  kept.hold = true;
  pe_seq_id held = add(&kept);
  float logits[VOCAB];
  for (int i = 0; i < 9 && !pe_batch_logits(b, held); i++) step(INT32_MAX, false);
  memcpy(logits, pe_batch_logits(b, held), sizeof logits);
  fake_fail(n, 1);
  pe_seq_id a = add(&r), c = add(&r), waits = add(&later);
  for (int i = 0; i < 40 && !b->stats.failed; i++) {
    pe_grant grant[2] = {{a, 5}, {c, 3}};
    pe_error err = {0};
    int32_t ran = -1;
    CHECK_OK(pe_batch_step(b, grant, 2, &ran, &err), err);
    collect();
    if (b->stats.failed) CHECK_INT(ran, 0);
  }
  pe_batch_stat(b, &s);
  *hit += (int64_t)s.failed;
  for (pe_seq_id i = a; i <= c; i++) {
    if (answers[i].finish != PE_FINISH_ERROR) continue;
    CHECK(strstr(answers[i].error.text, "the device failed at call"));
    CHECK(answers[i].count <= want[3].count &&
          !memcmp(answers[i].token, want[3].token, (size_t)answers[i].count * 4));
  }
  CHECK_INT(answers[waits].finish, PE_FINISH_NONE);
  CHECK_INT(pe_batch_find(b, held)->state, PE_SEQ_HELD);
  CHECK_INT(memcmp(pe_batch_logits(b, held), logits, sizeof logits), 0);
  pe_seq_id again = add(&r);
  for (int i = 0; i < 99; i++) step(7, false);
  CHECK_INT(pe_batch_sequences(b, NULL, 0), 1); /* the held one */
  check_answer("again", &answers[again], &want[3]);
  check_answer("waited", &answers[waits], &want[6]);
  CHECK_INT(fake_changes, 0);
  batch_close();
}

static void test_failures(void) {
  for (kind k = DENSE; k < KINDS; k++) {
    answer want[MANY];
    int64_t hit = 0;
    if (!model_open(&m, k, 1)) return;
    expect(want);
    for (int64_t n = 1; n <= 16; n++) fail_at(n, want, &hit);
    CHECK(hit >= 16); /* one at least each time */
    forget(want), model_close(&m);
  }
}

/* A device that stays lost: every request gets its error, and none waits forever. */
static void test_lost(void) {
  if (!model_open(&m, HYBRID, 1)) return;
  pe_batch_options o = options(); /* has the model's tokenizer */
  o.backend = fake_backend();
  if (!batch_open(&o)) return;
  fake_fail(5, INT32_MAX);
  for (int i = 0; i < MANY; i++) {
    pe_request r = kind_of_request(i);
    add(&r);
  }
  finish(5);
  CHECK_INT(b->stats.failed, MANY);
  CHECK_INT(b->running, 0);
  batch_close(), model_close(&m);
}

/* ---- who may touch the caches ---------------------------------------------------------------- */

static pe_status submit(pe_seq *s, pe_error *err) {
  pe_run run;
  pe_status rc = pe_seq_append(s, prompt_ids, 6, err);
  if (!rc) rc = pe_seq_run(s, 6, 1, &run, err);
  return rc ? rc : pe_device_submit(b->device, &run, 1, err);
}

typedef enum change { NOTHING, DISCARDS, ZEROES, SNAPSHOT, SUBMITS, COMMANDS, CHANGES } change;

/* In a child process: what the change does while a step is submitted. */
static void change_caches(change what) {
  pe_error err;
  pe_seq s, fork;
  pe_snapshot *snapshot;
  pe_seq_open(&s, b->kv, b->recur, &err);
  if (submit(&s, &err)) _exit(1);
  if (what == DISCARDS) pe_kv_discard(b->kv);
  if (what == ZEROES) pe_seq_open(&fork, b->kv, b->recur, &err);
  if (what == SNAPSHOT) pe_seq_snapshot(&s, &snapshot, &err);
  if (what == SUBMITS) submit(&s, &err);
  if (what == COMMANDS) {
    pe_request r = request(3, 1);
    pe_device_wait(b->device, &err);
    pe_grant grant = {add(&r), 3};
    if (pe_batch_submit(b, &grant, 1, &err)) _exit(1);
    add(&r);
  }
  _exit(pe_device_wait(b->device, &err) ? 1 : 0);
}

static void test_busy(void) {
  if (!model_open(&m, HYBRID, 1)) return;
  pe_batch_options o = options(); /* has the model's tokenizer */
  o.backend = fake_backend();
  if (!batch_open(&o)) return;
  for (change what = NOTHING; what < CHANGES; what++) {
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
      if (freopen("/dev/null", "w", stderr)) change_caches(what); /* not the assertion's words */
      _exit(2);
    }
    waitpid(child, &status, 0);
    CHECK_INT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, what != NOTHING);
    if (!what) CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
  }
  batch_close(), model_close(&m);
}

/* ---- a step in two parts --------------------------------------------------------------------- */

/* While it computes, the state can be read, and what is read is the state before it. */
static void test_parts(void) {
  for (kind k = DENSE; k < KINDS; k++) {
    answer want[MANY];
    pe_seq_id id[MANY];
    if (!model_open(&m, k, 2)) return;
    expect(want);
    pe_batch_options o = options();
    o.backend = k % 2 ? fake_backend() : NULL, o.prefix.budget = 1 << 20;
    if (!batch_open(&o)) return;
    for (int i = 0; i < MANY; i++) {
      pe_request r = kind_of_request(i);
      id[i] = add(&r);
    }
    for (int i = 0; i < 200 && pe_batch_sequences(b, NULL, 0); i++) {
      pe_seq_info info[ANSWERS], now[ANSWERS];
      pe_grant grant[ANSWERS];
      pe_batch_stats s;
      pe_error err;
      int64_t room, all;
      int32_t ran, n = pe_batch_sequences(b, info, ANSWERS);
      for (int32_t j = 0; j < n; j++) grant[j] = (pe_grant){info[j].id, 5};
      CHECK_OK(pe_batch_submit(b, grant, n, &err), err);
      CHECK_INT(pe_batch_sequences(b, now, ANSWERS), n);
      for (int32_t j = 0; j < n; j++) CHECK_INT(now[j].generated, info[j].generated);
      pe_batch_stat(b, &s), pe_batch_room(b, &room, &all);
      CHECK_INT(s.steps, i);
      CHECK(room >= 0 && room <= all);
      CHECK_OK(pe_batch_wait(b, &ran, &err), err);
      CHECK(ran > 0);
      collect();
      CHECK_OK(pe_batch_wait(b, &ran, &err), err); /* none is submitted */
      CHECK_INT(ran, 0);
    }
    for (int i = 0; i < MANY; i++) check_answer(kind_name[k], &answers[id[i]], &want[i]);
    batch_close(), forget(want), model_close(&m);
  }
}

/* A device that is closed with a step on its way gives the caches back. */
static void test_closed(void) {
  pe_error err;
  pe_seq s;
  if (!model_open(&m, HYBRID, 2)) return;
  pe_batch_options o = options();
  if (!batch_open(&o)) return;
  CHECK_OK(pe_seq_open(&s, b->kv, b->recur, &err), err);
  CHECK_OK(submit(&s, &err), err);
  CHECK(b->kv->busy && b->recur->busy);
  pe_device_close(b->device);
  CHECK(!b->kv->busy && !b->recur->busy);
  b->device = NULL;
  pe_seq_close(&s);
  batch_close(), model_close(&m);
}

static const check_test tests[] = {
    {"names", test_names},
    {"identity", test_identity},
    {"computes late", test_late},
    {"a call that fails", test_failures},
    {"a device that stays lost", test_lost},
    {"caches of a submitted step", test_busy},
    {"a step in two parts", test_parts},
    {"closed with a step on its way", test_closed},
};
CHECK_MAIN("backend", tests)
