/* test_worker.c - the engine thread: several clients at once, events in order and once, ids before
 * the batch knows them. */
#include "fake_backend.h"
#include "small_model.h"

#include "runtime/batch/worker_parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

static small_model model;
static pe_crew *crew; /* of the test that runs */
static const pe_backend *backend;

static void open_model(int threads) {
  pe_error err = {0};
  model = small_open(1);
  CHECK_OK(pe_crew_open(threads, &crew, &err), err);
}

static void close_model(void) {
  pe_crew_release(crew);
  small_close(&model);
}

static pe_batch *open_batch(void) {
  pe_batch *b = NULL;
  pe_error err = {0};
  pe_batch_options o = {.backend = backend,
                        .sequences = 6,
                        .step_tokens = 24,
                        .context = 128,
                        .cache_tokens = 512,
                        .kv_block = 4,
                        .prefix = {.budget = 1 << 20}};
  CHECK_OK(pe_batch_open(model.plan, pe_crew_pool(crew), &o, &b, &err), err);
  return b;
}

static pe_request request_of(uint32_t seed, int32_t *prompt) {
  int32_t n = 1 + (int32_t)(seed % 13);
  for (int32_t i = 0; i < n; i++)
    prompt[i] = (int32_t)((seed * 7 + (uint32_t)i * 11) % SMALL_VOCAB);
  pe_request r = {.prompt = {prompt, n},
                  .sampling = pe_sampling_defaults(),
                  .max_tokens = 3 + (int32_t)(seed % 9)};
  r.sampling.seed = seed, r.sampling.temperature = seed % 3 ? 1 : 0;
  return r;
}

static pe_status worker_add(pe_worker *w, const pe_request *r, pe_seq_id *first, pe_error *err) {
  pe_reply reply;
  pe_status rc = pe_worker_do(w, &(pe_command){PE_DO_ADD, .request = r}, &reply, err);
  if (!rc) *first = reply.first;
  return rc;
}

static pe_status worker_fork(pe_worker *w, pe_seq_id parent, uint64_t seed, pe_seq_id *out,
                             pe_error *err) {
  pe_reply reply;
  pe_status rc = pe_worker_do(w, &(pe_command){PE_DO_FORK, parent, .seed = seed}, &reply, err);
  if (!rc) *out = reply.first;
  return rc;
}

/* parent 0: loads. */
static pe_status worker_file(pe_worker *w, pe_seq_id parent, const char *path, uint64_t *ticket,
                             pe_error *err) {
  pe_reply reply;
  pe_command c = {parent ? PE_DO_SAVE : PE_DO_LOAD, parent, .path = path};
  pe_status rc = pe_worker_do(w, &c, &reply, err);
  if (!rc) *ticket = reply.ticket;
  return rc;
}

/* Grants for everything, as a simple policy gives them. */
static int32_t grants_of(const pe_seq_info *infos, int32_t n, pe_grant *out) {
  int32_t count = 0;
  for (int32_t i = 0; i < n; i++)
    if (!infos[i].follows)
      out[count++] = (pe_grant){infos[i].id, infos[i].state == PE_SEQ_DECODE ? 1 : 7};
  return count;
}

typedef struct answer {
  int32_t id[32], count;
  pe_finish finish;
  int finishes;
} answer;

static void take(answer *a, const pe_event *e) {
  if (e->token && a->count < 32) a->id[a->count++] = e->choice.id;
  if (e->finish) a->finish = e->finish, a->finishes++;
}

/* The same request alone, in the foreground. */
static answer alone(uint32_t seed) {
  int32_t prompt[16];
  pe_request r = request_of(seed, prompt);
  pe_batch *b = open_batch();
  pe_error err = {0};
  pe_seq_id seq = 0;
  answer a = {0};
  pe_reply reply = {0};
  CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_ADD, .request = &r}, &reply, &err), err);
  seq = reply.first;
  for (int i = 0; i < 64 && !a.finishes; i++) {
    int32_t ran;
    const pe_event *e;
    CHECK_OK(pe_batch_step(b, &(pe_grant){seq, 5}, 1, &ran, &err), err);
    for (int32_t k = 0, n = pe_batch_events(b, &e); k < n; k++) take(&a, &e[k]);
  }
  pe_batch_close(b);
  return a;
}

static void same(const answer *got, const answer *want, uint32_t seed) {
  bool equal = got->count == want->count &&
               !memcmp(got->id, want->id, sizeof *got->id * (size_t)want->count) &&
               got->finish == want->finish;
  if (!equal)
    check_failures++, printf("    request %u: %d tokens (finish %d), alone %d (finish %d)\n", seed,
                             got->count, got->finish, want->count, want->finish);
}

static void count_wake(void *ctx) { atomic_fetch_add((_Atomic int *)ctx, 1); }

static pe_worker *open_worker(_Atomic int *wakes) {
  pe_worker *w = NULL;
  pe_error err = {0};
  CHECK_OK(pe_worker_open(crew, open_batch(), count_wake, wakes, &w, &err), err);
  return w;
}

/* Steps and drains until infos [1, last] have finished. */
static void drive(pe_worker *w, answer *answers, int32_t last) {
  pe_error err = {0};
  int32_t done = 0;
  for (int spins = 0; done < last && spins < 200000; spins++) {
    pe_seq_info infos[512];
    pe_grant grants[512];
    pe_worker_events e;
    int32_t n = pe_worker_sequences(w, infos, 512);
    if (!pe_worker_pending(w))
      CHECK_OK(pe_worker_submit(w, grants, grants_of(infos, n < 512 ? n : 512, grants), &err), err);
    CHECK_OK(pe_worker_drain(w, &e, &err), err);
    for (int32_t i = 0; i < e.count; i++) {
      CHECK(e.event[i].seq >= 1 && e.event[i].seq <= last);
      take(&answers[e.event[i].seq], &e.event[i]);
      done += e.event[i].finish != PE_FINISH_NONE;
    }
    pe_worker_free_events(&e);
    nanosleep(&(struct timespec){0, 20000}, NULL);
  }
  CHECK_INT(done, last);
}

static void like_the_foreground(void) {
  open_model(1);
  _Atomic int wakes = 0;
  pe_worker *w = open_worker(&wakes);
  pe_error err = {0};
  answer answers[13] = {{.count = 0}};
  for (uint32_t seed = 1; seed <= 12; seed++) {
    int32_t prompt[16];
    pe_request r = request_of(seed, prompt);
    pe_seq_id seq = 0;
    CHECK_OK(worker_add(w, &r, &seq, &err), err);
    CHECK_INT(seq, seed);
  }
  drive(w, answers, 12);
  CHECK(wakes > 3);
  for (uint32_t seed = 1; seed <= 12; seed++) {
    answer want = alone(seed);
    same(&answers[seed], &want, seed);
  }
  pe_batch_stats stats;
  pe_trace trace[8];
  int64_t room, all;
  pe_worker_stat(w, &stats);
  CHECK_INT(stats.finished, 12);
  CHECK_INT(pe_worker_trace(w, trace, 8), 8);
  CHECK(trace[7].at_ns > trace[0].at_ns);
  pe_worker_room(w, &room, &all);
  CHECK_INT(room, all);
  pe_worker_close(w);
  close_model();
}

/* ---- 8 clients ----------------------------------------------------------------------------- */

enum { CLIENTS = 8, EACH = 12 };

typedef struct client {
  pthread_t thread;
  pe_worker *w;
  uint32_t number;
  uint32_t seed_of[CLIENTS * EACH + 1]; /* by seq; 0: not mine */
  bool cancelled[CLIENTS * EACH + 1];
  int refused;
} client;

static void *run_client(void *arg) {
  client *c = arg;
  for (uint32_t i = 0; i < EACH; i++) {
    uint32_t seed = 1 + c->number * EACH + i;
    int32_t prompt[16];
    pe_request r = request_of(seed, prompt);
    pe_error err = {0};
    pe_seq_id seq = 0;
    if (worker_add(c->w, &r, &seq, &err)) {
      c->refused++;
      continue;
    }
    c->seed_of[seq] = seed;
    if (seed % 4 == 0) nanosleep(&(struct timespec){0, (long)(seed % 7) * 100000}, NULL);
    if (seed % 3 == 0)
      c->cancelled[seq] =
          !pe_worker_do(c->w, &(pe_command){.verb = PE_DO_CANCEL, .seq = seq}, NULL, &err);
    if (seed % 5 == 0)
      pe_worker_do(c->w, &(pe_command){.verb = PE_DO_PREEMPT, .seq = seq}, NULL, &err);
    pe_seq_info infos[8];
    CHECK(pe_worker_sequences(c->w, infos, 8) >= 0);
    pe_batch_stats stats;
    pe_worker_stat(c->w, &stats);
  }
  return NULL;
}

static void eight_clients(void) {
  open_model(2);
  _Atomic int wakes = 0;
  pe_worker *w = open_worker(&wakes);
  static client clients[CLIENTS];
  static answer answers[CLIENTS * EACH + 1];
  memset(clients, 0, sizeof clients), memset(answers, 0, sizeof answers);
  for (uint32_t i = 0; i < CLIENTS; i++) {
    clients[i].w = w, clients[i].number = i;
    CHECK_INT(pthread_create(&clients[i].thread, NULL, run_client, &clients[i]), 0);
  }
  drive(w, answers, CLIENTS * EACH);
  for (int i = 0; i < CLIENTS; i++) {
    pthread_join(clients[i].thread, NULL);
    CHECK_INT(clients[i].refused, 0);
    for (int seq = 1; seq <= CLIENTS * EACH; seq++) {
      if (!clients[i].seed_of[seq]) continue;
      CHECK_INT(answers[seq].finishes, 1);
      answer want = alone(clients[i].seed_of[seq]);
      if (answers[seq].finish != PE_FINISH_CANCEL)
        same(&answers[seq], &want, clients[i].seed_of[seq]);
      else
        CHECK(clients[i].cancelled[seq] &&
              !memcmp(answers[seq].id, want.id, sizeof *want.id * (size_t)answers[seq].count));
    }
  }
  pe_batch_stats stats;
  pe_worker_stat(w, &stats);
  CHECK_INT(stats.running + stats.waiting, 0);
  pe_worker_close(w);
  close_model();
}

/* ---- commands ------------------------------------------------------------------------------ */

static void wait_idle(pe_worker *w) {
  for (bool busy = true; busy;) {
    nanosleep(&(struct timespec){0, 50000}, NULL);
    pthread_mutex_lock(&w->lock);
    busy = w->working || w->queued || (w->has_step && !w->blocked);
    pthread_mutex_unlock(&w->lock);
  }
}

static void step_once(pe_worker *w, answer *answers) {
  pe_error err = {0};
  pe_seq_info infos[16];
  pe_grant grants[16];
  pe_worker_events e;
  CHECK_OK(pe_worker_submit(w, grants, grants_of(infos, pe_worker_sequences(w, infos, 16), grants),
                            &err),
           err);
  wait_idle(w);
  CHECK_OK(pe_worker_drain(w, &e, &err), err);
  for (int32_t i = 0; i < e.count; i++) take(&answers[e.event[i].seq], &e.event[i]);
  pe_worker_free_events(&e);
}

static void commands(void) {
  open_model(1);
  _Atomic int wakes = 0;
  pe_worker *w = open_worker(&wakes);
  pe_error err = {0};
  answer a[8] = {{.count = 0}};
  int32_t prompt[16];
  pe_request r = request_of(12, prompt); /* greedy */
  r.max_tokens = 10;
  pe_seq_id seq = 0, child = 0;
  CHECK_OK(worker_add(w, &r, &seq, &err), err);
  CHECK_OK(pe_worker_do(w, &(pe_command){PE_DO_FORCE, seq, .ids = {(int32_t[]){5, 6, 7}, 3}}, NULL,
                        &err),
           err);
  for (int i = 0; i < 6; i++) step_once(w, a);
  CHECK_INT(a[1].id[0], 5);
  CHECK_INT(a[1].id[2], 7);
  CHECK_OK(worker_fork(w, seq, 99, &child, &err), err);
  CHECK_INT(child, 2);
  CHECK_OK(pe_worker_do(w,
                        &(pe_command){PE_DO_BIAS, child, .bias = {&(pe_logit_bias){33, 1000}, 1}},
                        NULL, &err),
           err);
  int32_t before = a[1].count;
  step_once(w, a);
  CHECK_INT(a[2].count, 1);
  CHECK_INT(a[2].id[0], 33);
  CHECK_INT(a[1].count, before + 1);
  CHECK(a[1].id[before] != 33);
  CHECK_OK(worker_fork(w, 55, 0, &child, &err), err); /* of a seq that is not there */
  pe_worker_events e;
  wait_idle(w);
  CHECK_OK(pe_worker_drain(w, &e, &err), err);
  CHECK_INT(e.count, 1);
  CHECK_INT(e.event[0].seq, child);
  CHECK_INT(e.event[0].finish, PE_FINISH_ERROR);
  CHECK(e.event[0].error && strstr(e.event[0].error->text, "55"));
  pe_worker_free_events(&e);
  CHECK_FAILS(
      pe_worker_do(w, &(pe_command){PE_DO_FORCE, seq, .ids = {(int32_t[]){5000}, 1}}, NULL, &err),
      PE_EARG, err, "force: token id must be between 0 and 63, got 5000");
  CHECK_STR(err.field, "force");
  CHECK_OK(pe_worker_do(w, &(pe_command){PE_DO_TRIM, seq, .tokens = 5000}, NULL, &err),
           err); /* more than it has: the sequence goes on */
  wait_idle(w);
  CHECK_OK(pe_worker_drain(w, &e, &err), err);
  CHECK_INT(e.count, 1);
  CHECK(e.count == 1 && e.event[0].seq == seq && e.event[0].finish == PE_FINISH_NONE &&
        e.event[0].error->code == PE_EARG && strstr(e.event[0].error->text, "5000") &&
        !strcmp(e.event[0].error->field, "tokens"));
  pe_worker_free_events(&e);
  CHECK_OK(worker_add(w, &r, &seq, &err), err); /* the failed fork's id is not used again */
  CHECK_INT(seq, child + 1);
  pe_worker_close(w);
  close_model();
}

static void refusals(void) {
  open_model(1);
  _Atomic int wakes = 0;
  pe_worker *w = open_worker(&wakes);
  pe_error err = {0};
  int32_t prompt[200] = {0};
  pe_seq_id seq = 77;
  pe_request r = {.prompt = {prompt, 200}, .sampling = pe_sampling_defaults()};
  CHECK_FAILS(worker_add(w, &r, &seq, &err), PE_ELIMIT, err, "200");
  r.prompt.count = 3, r.sampling.temperature = -1;
  CHECK_FAILS(worker_add(w, &r, &seq, &err), PE_EARG, err, "temperature must be 0 or more, got -1");
  r.sampling.temperature = 0, prompt[2] = SMALL_VOCAB;
  CHECK_FAILS(worker_add(w, &r, &seq, &err), PE_EARG, err, "64");
  CHECK_INT(seq, 77);
  CHECK_FAILS(pe_worker_submit(w, NULL, -1, &err), PE_EARG, err, "0 or more grants, got -1");
  pe_worker_halt(w);
  prompt[2] = 1;
  CHECK_FAILS(worker_add(w, &r, &seq, &err), PE_ECANCEL, err, "has ended");
  CHECK_FAILS(pe_worker_submit(w, NULL, 0, &err), PE_ECANCEL, err, "has ended");
  pe_batch *b = pe_worker_detach(w, NULL);
  pe_reply reply = {0};
  CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_ADD, .request = &r}, &reply, &err), err);
  seq = reply.first;
  CHECK_INT(seq, 1);
  pe_batch_close(b);
  close_model();
}

/* A batch goes to the engine thread and back; infos that run go on where they were. */
static void there_and_back(void) {
  open_model(1);
  int32_t prompt[16];
  pe_request r = request_of(12, prompt);
  pe_batch *b = open_batch();
  pe_error err = {0};
  pe_seq_id seq = 0;
  answer a[2] = {{.count = 0}}, want = alone(12);
  pe_reply reply = {0};
  CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_ADD, .request = &r}, &reply, &err), err);
  seq = reply.first;
  for (int round = 0; round < 20 && !a[1].finishes; round++) {
    int32_t ran;
    const pe_event *e;
    CHECK_OK(pe_batch_step(b, &(pe_grant){seq, 4}, 1, &ran, &err), err);
    for (int32_t k = 0, n = pe_batch_events(b, &e); k < n; k++) take(&a[1], &e[k]);
    _Atomic int wakes = 0;
    pe_worker *w;
    CHECK_OK(pe_worker_open(crew, b, count_wake, &wakes, &w, &err), err);
    if (!a[1].finishes) step_once(w, a);
    b = pe_worker_detach(w, NULL);
  }
  same(&a[1], &want, 12);
  pe_batch_close(b);
  close_model();
}

/* ---- held sequences, logits and files --------------------------------------------- */

/* When the held event arrives the logits are there, and what is drawn without changes is what was
 * drawn without holding. */
static void held_sequences(void) {
  open_model(1);
  _Atomic int wakes = 0;
  pe_worker *w = open_worker(&wakes);
  pe_error err = {0};
  answer a = {0}, want = alone(11);
  int32_t prompt[16], holds = 0;
  pe_request r = request_of(11, prompt);
  pe_seq_id seq = 0;
  r.hold = true;
  float logits[SMALL_VOCAB];
  CHECK(!pe_worker_logits(w, 1, logits));
  CHECK_OK(worker_add(w, &r, &seq, &err), err);
  for (int spins = 0; !a.finishes && spins < 20000; spins++) {
    pe_worker_events e;
    pe_seq_info info;
    wait_idle(w);
    CHECK_OK(pe_worker_drain(w, &e, &err), err);
    for (int32_t i = 0; i < e.count; i++) {
      take(&a, &e.event[i]);
      if (!e.event[i].held) continue;
      holds++;
      CHECK(pe_worker_logits(w, seq, logits));
      CHECK_FAILS(pe_worker_do(
                      w, &(pe_command){PE_DO_SAMPLE, seq, .draw = {.banned = {(int32_t[]){99}, 1}}},
                      NULL, &err),
                  PE_EARG, err, "banned: token id must be between 0 and 63, got 99");
      CHECK_OK(pe_worker_do(w, &(pe_command){.verb = PE_DO_SAMPLE, .seq = seq}, NULL, &err), err);
      if (pe_worker_sequences(w, &info, 1) == 1)
        CHECK(info.state == PE_SEQ_DECODE && info.left == 1); /* it can be granted at once */
    }
    pe_worker_free_events(&e);
    CHECK_OK(pe_worker_submit(w, &(pe_grant){seq, 9}, 1, &err), err);
  }
  CHECK_INT(holds, want.count);
  same(&a, &want, 11);
  pe_worker_close(w);
  close_model();
}

static void check_answer(pe_worker *w, uint64_t ticket, pe_status code) {
  pe_worker_events e = {0};
  pe_error err = {0};
  for (int i = 0; i < 20000 && !e.count; i++) { /* files take their time, on a thread of theirs */
    if (i) usleep(100);
    CHECK_OK(pe_worker_drain(w, &e, &err), err);
  }
  CHECK_INT(e.count, 1);
  if (e.count)
    CHECK(e.event[0].ticket == ticket && !e.event[0].error == !code && !e.event[0].finish &&
          (!code || e.event[0].error->code == code));
  pe_worker_free_events(&e);
}

static void files(void) {
  open_model(1);
  _Atomic int wakes = 0;
  pe_worker *w = open_worker(&wakes);
  pe_error err = {0};
  answer a[3] = {{.count = 0}};
  int32_t prompt[16];
  uint64_t ticket = 0;
  pe_request r = request_of(12, prompt);
  pe_seq_id seq = 0;
  char path[64];
  snprintf(path, sizeof path, "/tmp/perigee-worker-%d", (int)getpid());
  CHECK_OK(worker_add(w, &r, &seq, &err), err);
  for (int i = 0; i < 4; i++) step_once(w, a);
  CHECK_OK(worker_file(w, seq, path, &ticket, &err), err);
  CHECK_INT(ticket, 1);
  check_answer(w, 1, PE_OK);
  CHECK_OK(worker_file(w, 77, path, &ticket, &err), err); /* always an answer */
  check_answer(w, 2, PE_ENOTFOUND);
  CHECK_OK(worker_file(w, 0, path, &ticket, &err), err);
  check_answer(w, 3, PE_OK);
  CHECK_OK(worker_file(w, 0, "/nowhere/at/all", &ticket, &err), err);
  check_answer(w, 4, PE_EIO);
  unlink(path);
  pe_worker_close(w);
  close_model();
}

/* ---- one engine thread for several --------------------------------------------------------- */

enum { SHARING = 3, ROWS_EACH = 10 };

/* Three batches on one crew; each is fed and driven by its own thread, and the third is closed
 * in the middle. */
static void *run_sharer(void *arg) {
  client *c = arg;
  static answer answers[SHARING][ROWS_EACH + 1];
  answer *mine = answers[c->number];
  memset(mine, 0, sizeof answers[0]);
  for (uint32_t seed = 1; seed <= ROWS_EACH; seed++) {
    int32_t prompt[16];
    pe_request r = request_of(seed, prompt);
    pe_error err = {0};
    pe_seq_id seq = 0;
    CHECK_OK(worker_add(c->w, &r, &seq, &err), err);
    if (seed % 4 == 0)
      c->cancelled[seq] =
          !pe_worker_do(c->w, &(pe_command){.verb = PE_DO_CANCEL, .seq = seq}, NULL, &err);
  }
  if (c->number == 2)
    step_once(c->w, mine);
  else
    drive(c->w, mine, ROWS_EACH);
  pe_worker_close(c->w);
  for (uint32_t seed = 1; c->number != 2 && seed <= ROWS_EACH; seed++) {
    answer want = alone(seed);
    if (c->cancelled[seed])
      CHECK_INT(mine[seed].finish, PE_FINISH_CANCEL);
    else
      same(&mine[seed], &want, seed);
  }
  return NULL;
}

static void three_share(void) {
  open_model(2);
  static client clients[SHARING];
  _Atomic int wakes[SHARING] = {0};
  memset(clients, 0, sizeof clients);
  for (uint32_t i = 0; i < SHARING; i++) {
    clients[i].w = open_worker(&wakes[i]), clients[i].number = i;
    CHECK_INT(pthread_create(&clients[i].thread, NULL, run_sharer, &clients[i]), 0);
  }
  for (int i = 0; i < SHARING; i++) pthread_join(clients[i].thread, NULL);
  for (int i = 0; i < SHARING; i++) CHECK(wakes[i] > 0);
  close_model();
}

/* With nothing to do, what is cached is written to the disk. */
static void writes_when_idle(void) {
  open_model(1);
  char folder[64], command[80];
  snprintf(folder, sizeof folder, "/tmp/perigee-worker-%d-tier", (int)getpid());
  pe_batch_options o = {.sequences = 2,
                        .context = 128,
                        .cache_tokens = 512,
                        .kv_block = 4,
                        .prefix = {.budget = 1 << 20, .folder = folder}};
  pe_batch *b = NULL;
  pe_worker *w = NULL;
  pe_error err = {0};
  _Atomic int wakes = 0;
  answer a[2] = {{.count = 0}};
  int32_t prompt[16];
  pe_seq_id seq = 0;
  pe_request r = request_of(12, prompt);
  CHECK_OK(pe_batch_open(model.plan, pe_crew_pool(crew), &o, &b, &err), err);
  CHECK_OK(pe_worker_open(crew, b, count_wake, &wakes, &w, &err), err);
  CHECK_OK(worker_add(w, &r, &seq, &err), err);
  drive(w, a, 1);
  pe_batch_stats stats = {0};
  for (int i = 0; i < 20000 && !stats.prefix.disk_writes; i++)
    nanosleep(&(struct timespec){0, 50000}, NULL), pe_worker_stat(w, &stats);
  CHECK(stats.prefix.disk_writes > 0);
  pe_worker_close(w);
  snprintf(command, sizeof command, "rm -r %s", folder);
  CHECK_INT(system(command), 0);
  close_model();
}

/* Whatever allocation fails: an error or a finish with one, never a lost event, never a leak. */
static void memory_runs_out(void) {
  open_model(1);
  int completed = 0;
  for (int64_t n = 1; n < 120; n++) {
    _Atomic int wakes = 0;
    pe_worker *w = open_worker(&wakes);
    int32_t prompt[16];
    pe_request r = request_of(12, prompt);
    pe_error err = {0};
    pe_seq_id seq = 0;
    answer a = {0};
    pe_alloc_fail_at(n);
    pe_status rc = worker_add(w, &r, &seq, &err);
    if (rc) CHECK_INT(rc, PE_ENOMEM);
    for (int i = 0; i < 200 && !rc && !a.finishes; i++) {
      pe_worker_events e;
      pe_worker_submit(w, &(pe_grant){seq, 4}, 1, &err);
      wait_idle(w);
      pe_worker_drain(w, &e, &err);
      for (int32_t k = 0; k < e.count; k++) take(&a, &e.event[k]);
      pe_worker_free_events(&e);
    }
    pe_alloc_fail_at(0);
    if (!rc) CHECK_INT(a.finishes, 1);
    completed += a.finish == PE_FINISH_LENGTH || a.finish == PE_FINISH_STOP;
    pe_worker_close(w);
  }
  CHECK(completed > 20);
  close_model();
}

/* ---- steps on a slow backend, and on one that fails ------------------------------------------ */

/* Drains until `events` of the first sequence have come, or half a minute has passed. */
static void drain_some(pe_worker *w, answer *a, int32_t events) {
  for (time_t end = time(NULL) + 30; a->count < events && time(NULL) < end;) {
    pe_error err = {0};
    pe_worker_events e;
    CHECK_OK(pe_worker_drain(w, &e, &err), err);
    for (int32_t i = 0; i < e.count; i++) take(a, &e.event[i]);
    pe_worker_free_events(&e);
    nanosleep(&(struct timespec){0, 50000}, NULL);
  }
  CHECK_INT(a->count, events);
}

static void submit_one(pe_worker *w, pe_seq_id seq) {
  pe_error err = {0};
  for (time_t end = time(NULL) + 30; pe_worker_pending(w) && time(NULL) < end;) sched_yield();
  CHECK_OK(pe_worker_submit(w, &(pe_grant){seq, 24}, 1, &err), err);
}

/* The events and the view of a step come while the next one computes. */
static void told_meanwhile(void) {
  backend = fake_backend();
  open_model(1);
  _Atomic int wakes = 0;
  pe_worker *w = open_worker(&wakes);
  pe_error err = {0};
  int32_t prompt[16];
  pe_request r = request_of(12, prompt);
  answer a = {0};
  pe_seq_id seq = 0;
  r.max_tokens = 6;
  fake_permits = 0;
  CHECK_OK(worker_add(w, &r, &seq, &err), err);
  submit_one(w, seq);
  for (int32_t i = 1; i <= 5; i++) {
    submit_one(w, seq); /* as soon as step i computes */
    fake_permits = 1;   /* and now it is done, but the next one is not */
    drain_some(w, &a, i);
    pe_seq_info info;
    CHECK_INT(pe_worker_sequences(w, &info, 1), 1);
    CHECK_INT(info.generated, i);
    CHECK_INT(pe_worker_completed(w), i);
  }
  fake_permits = -1;
  drain_some(w, &a, 6);
  CHECK_INT(a.finishes, 1);
  pe_worker_close(w);
  close_model();
  backend = NULL;
}

/* The requests of a step that fails hear of it; those of others go on. */
static void steps_fail(void) {
  backend = fake_backend();
  open_model(1);
  _Atomic int wakes = 0;
  pe_worker *w = open_worker(&wakes);
  pe_error err = {0};
  answer a[4] = {{.count = 0}};
  int32_t prompt[16];
  pe_request r = request_of(12, prompt);
  pe_seq_id hit = 0, other = 0;
  CHECK_OK(worker_add(w, &r, &hit, &err), err);
  CHECK_OK(worker_add(w, &r, &other, &err), err);
  wait_idle(w);
  fake_fail(2, 1); /* the first wait */
  submit_one(w, hit);
  wait_idle(w);
  for (int i = 0; i < 40 && !a[other].finishes; i++) step_once(w, a);
  CHECK_INT(a[hit].finish, PE_FINISH_ERROR);
  CHECK_INT(a[hit].count, 0);
  backend = NULL;
  answer want = alone(12);
  same(&a[other], &want, 12);
  pe_worker_close(w);
  close_model();
}

static const check_test tests[] = {
    {"like_the_foreground", like_the_foreground},
    {"eight_clients", eight_clients},
    {"commands", commands},
    {"refusals", refusals},
    {"there_and_back", there_and_back},
    {"held_sequences", held_sequences},
    {"files", files},
    {"three_share", three_share},
    {"writes_when_idle", writes_when_idle},
    {"memory_runs_out", memory_runs_out},
    {"told_meanwhile", told_meanwhile},
    {"steps_fail", steps_fail},
};
CHECK_MAIN("worker", tests)
