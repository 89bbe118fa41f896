/* test_worker_view.c - the published view of a worker: always what the batch is, although only
 * changes are published; and a step costs the same next to a queue of any length. */
#include "small_model.h"

#include "runtime/batch/worker_parts.h"

#include <unistd.h>

enum { MOST = 5000 };

static small_model model;
static pe_crew *crew;
static pe_seq_info view[MOST], truth[MOST];

static void wake(void *ctx) { (void)ctx; }

static pe_worker *open_all(void) {
  pe_error err = {0};
  pe_batch *b = NULL;
  pe_worker *w = NULL;
  pe_batch_options o = {.sequences = 4,
                        .step_tokens = 24,
                        .context = 64,
                        .cache_tokens = 160,
                        .kv_block = 4,
                        .prefix = {.budget = 1 << 16}};
  model = small_open(1);
  CHECK_OK(pe_crew_open(1, &crew, &err), err);
  CHECK_OK(pe_batch_open(model.plan, pe_crew_pool(crew), &o, &b, &err), err);
  CHECK_OK(pe_worker_open(crew, b, wake, NULL, &w, &err), err);
  return w;
}

static void close_all(pe_worker *w) {
  pe_worker_close(w);
  pe_crew_release(crew);
  small_close(&model);
}

static uint32_t state = 1;

static int below(int n) {
  state = state * 1664525u + 1013904223u;
  return (int)((state >> 8) % (uint32_t)n);
}

/* Nothing is left to do, and the engine thread is not in a turn. */
static void wait_idle(pe_worker *w) {
  bool idle = false;
  for (int i = 0; i < 20000 && !idle; i++) {
    if (i) usleep(100);
    pthread_mutex_lock(&w->lock);
    idle = !w->working && !w->queued && !w->has_step;
    pthread_mutex_unlock(&w->lock);
  }
  CHECK(idle);
}

static void drain(pe_worker *w) {
  pe_worker_events e;
  pe_error err = {0};
  CHECK_OK(pe_worker_drain(w, &e, &err), err);
  pe_worker_free_events(&e);
}

static void add(pe_worker *w, int32_t length, int32_t tokens, int32_t n, bool hold) {
  int32_t prompt[64];
  for (int32_t i = 0; i < length; i++) prompt[i] = i < 6 ? i : below(SMALL_VOCAB);
  pe_request r = pe_request_defaults();
  r.prompt = (pe_ids_view){prompt, length}, r.max_tokens = tokens, r.n = n, r.hold = hold;
  CHECK(!pe_worker_do(w, &(pe_command){PE_DO_ADD, .request = &r}, NULL, NULL));
}

/* ---- the view is the batch ------------------------------------------------------------------- */

static bool same(const pe_seq_info *a, const pe_seq_info *b) {
  return a->id == b->id && a->state == b->state && a->prompt == b->prompt && a->past == b->past &&
         a->generated == b->generated && a->left == b->left && a->choice == b->choice &&
         a->follows == b->follows && a->cancelled == b->cancelled && a->bytes == b->bytes &&
         a->added_ns == b->added_ns && (a->state == PE_SEQ_WAITING || a->cached == b->cached);
}

static void compare(pe_worker *w, int round) {
  wait_idle(w);
  int32_t n = pe_worker_sequences(w, view, MOST), m = pe_batch_sequences(w->batch, truth, MOST);
  CHECK_INT(n, m);
  for (int32_t i = 0; i < n && i < m; i++)
    if (!same(&view[i], &truth[i])) {
      printf("    round %d: sequence %lld is shown in state %d, is %lld in state %d\n", round,
             (long long)view[i].id, view[i].state, (long long)truth[i].id, truth[i].state);
      check_failures++;
    }
}

static void some_command(pe_worker *w, int32_t n) {
  pe_seq_id id = n ? view[below(n)].id : 1;
  pe_command c = {.verb = PE_DO_CANCEL, .seq = id};
  switch (below(8)) {
  case 0:
  case 1: add(w, 1 + below(40), 1 + below(12), 1 + below(3), below(3) == 0); return;
  case 2: c.verb = PE_DO_PREEMPT; break;
  case 3: c.verb = PE_DO_FORK, c.seed = 3; break;
  case 4: c.verb = PE_DO_TRIM, c.tokens = 5 + below(30); break;
  case 5: c.verb = PE_DO_SAMPLE; break;
  case 6: c.verb = PE_DO_SAMPLE; break;
  default:
    if (below(3)) return;
  }
  (void)pe_worker_do(w, &c, NULL, NULL);
}

static void test_random(void) {
  pe_worker *w = open_all();
  for (int round = 0; round < 1500 && !check_failures; round++) {
    pe_grant grants[16];
    int32_t n = pe_worker_sequences(w, view, MOST), count = 0;
    for (int i = below(4); i > 0; i--) some_command(w, n);
    for (int32_t i = 0; i < n && count < 16; i++)
      if (below(4)) grants[count++] = (pe_grant){view[i].id, 1 + below(9)};
    if (below(5)) (void)pe_worker_submit(w, grants, count, NULL);
    if (n > 30)
      for (int32_t i = 0; i < n; i++)
        (void)pe_worker_do(w, &(pe_command){.verb = PE_DO_CANCEL, .seq = view[i].id}, NULL, NULL);
    if (below(3) == 0) compare(w, round);
    drain(w);
  }
  compare(w, -1);
  close_all(w);
}

/* Sequences that were there before the worker, and a worker that leaves and comes again. */
static void test_again(void) {
  pe_worker *w = open_all();
  pe_error err = {0};
  for (int i = 0; i < 5; i++) add(w, 8, 20, 1, false);
  for (int i = 0; i < 4; i++) {
    CHECK_OK(pe_worker_submit(w, &(pe_grant){1 + i % 2, 8}, 1, &err), err);
    compare(w, i);
    pe_batch *b = pe_worker_detach(w, NULL);
    int32_t ran;
    CHECK_OK(pe_batch_step(b, &(pe_grant){1, 8}, 1, &ran, &err), err);
    CHECK_OK(pe_worker_open(crew, b, wake, NULL, &w, &err), err);
    compare(w, i);
  }
  close_all(w);
}

/* ---- what a step costs ----------------------------------------------------------------------- */

/* Sequences that are looked at in each of 50 steps of one, next to a queue. */
static double visits(int32_t waiting) {
  enum { STEPS = 50 };
  pe_worker *w = open_all();
  pe_error err = {0};
  add(w, 4, 55, 1, false);
  for (int32_t i = 0; i < waiting; i++) {
    add(w, 9, 4, 1, false);
    if (i % 1000 == 999) wait_idle(w);
  }
  wait_idle(w);
  for (int i = 0; i < 2; i++) { /* what the new ones cost once */
    CHECK_OK(pe_worker_submit(w, &(pe_grant){1, 4}, 1, &err), err);
    wait_idle(w);
  }
  uint64_t before = w->batch->visits;
  for (int i = 0; i < STEPS; i++) {
    CHECK_OK(pe_worker_submit(w, &(pe_grant){1, 1}, 1, &err), err);
    wait_idle(w);
  }
  CHECK_INT(pe_worker_sequences(w, view, MOST), waiting + 1);
  double each = (double)(w->batch->visits - before) / STEPS;
  close_all(w);
  return each;
}

static void test_cost(void) {
  double few = visits(10), many = visits(4000);
  CHECK(few >= 1 && few < 20);
  CHECK(many <=
        few + 3 * 64); /* 64 lookups of prompts in the prefix cache, in turn, and their news */
}

static const check_test tests[] = {
    {"random", test_random},
    {"again", test_again},
    {"cost", test_cost},
};
CHECK_MAIN("worker view", tests)
