/* test_worker_files.c - save and load beside the engine thread: a disk that hangs delays no
 * token. */
#include "small_model.h"

#include "runtime/batch/worker_parts.h"

#include <stdatomic.h>
#include <unistd.h>

/* ---- a disk that hangs ----------------------------------------------------------------------- */

static _Atomic bool hangs;
static _Atomic int hanging;

/* Instead of the C library's: saved sequences are synced before they are renamed. */
int fsync(int fd) {
  (void)fd;
  atomic_fetch_add(&hanging, 1);
  while (atomic_load(&hangs)) usleep(1000);
  return 0;
}

/* ---- a worker -------------------------------------------------------------------------------- */

static small_model model;
static pe_crew *crew;
static char folder[64];

static void wake(void *ctx) { (void)ctx; }

static pe_worker *open_worker(void) {
  pe_error err = {0};
  pe_batch *b = NULL;
  pe_worker *w = NULL;
  pe_batch_options o = {.sequences = 4,
                        .step_tokens = 24,
                        .context = 400,
                        .cache_tokens = 1024,
                        .kv_block = 4,
                        .prefix = {.budget = 1 << 20}};
  CHECK_OK(pe_batch_open(model.plan, pe_crew_pool(crew), &o, &b, &err), err);
  CHECK_OK(pe_worker_open(crew, b, wake, NULL, &w, &err), err);
  return w;
}

static void open_all(void) {
  pe_error err = {0};
  model = small_open(1);
  CHECK_OK(pe_crew_open(1, &crew, &err), err);
  snprintf(folder, sizeof folder, "/tmp/perigee-files-XXXXXX");
  if (!mkdtemp(folder)) abort();
}

static void close_all(void) {
  pe_crew_release(crew);
  small_close(&model);
  rmdir(folder);
}

static pe_seq_id add(pe_worker *w, int32_t max_tokens) {
  pe_error err = {0};
  pe_reply reply = {0};
  pe_request r = pe_request_defaults();
  r.prompt = (pe_ids_view){(int32_t[]){1, 2, 3, 4, 5, 6, 7, 8}, 8}, r.max_tokens = max_tokens;
  CHECK_OK(pe_worker_do(w, &(pe_command){PE_DO_ADD, .request = &r}, &reply, &err), err);
  return reply.first;
}

static uint64_t file(pe_worker *w, pe_seq_id seq, const char *path) { /* 0: loads */
  pe_error err = {0};
  pe_reply reply = {0};
  pe_command c = {seq ? PE_DO_SAVE : PE_DO_LOAD, seq, .path = path};
  CHECK_OK(pe_worker_do(w, &c, &reply, &err), err);
  return reply.ticket;
}

typedef struct news {
  int tokens, answers, failures;
  uint64_t first, last; /* tickets */
  bool done;
} news;

static void drain(pe_worker *w, news *n) {
  pe_error err = {0};
  pe_worker_events e;
  CHECK_OK(pe_worker_drain(w, &e, &err), err);
  for (int32_t i = 0; i < e.count; i++) {
    n->tokens += e.event[i].token, n->done |= e.event[i].finish != PE_FINISH_NONE;
    if (!e.event[i].ticket) continue;
    n->answers++, n->last = e.event[i].ticket, n->failures += e.event[i].error != NULL;
    if (!n->first) n->first = n->last;
  }
  pe_worker_free_events(&e);
}

/* One more step, with everything that comes of it. */
static void step(pe_worker *w, pe_seq_id seq, news *n) {
  pe_error err = {0};
  uint64_t before = pe_worker_completed(w);
  CHECK_OK(pe_worker_submit(w, &(pe_grant){seq, 24}, 1, &err), err);
  for (int i = 0; i < 10000 && pe_worker_completed(w) == before; i++) usleep(100);
  CHECK(pe_worker_completed(w) > before);
  drain(w, n);
}

static void wait_answers(pe_worker *w, news *n, int answers) {
  for (int i = 0; i < 10000 && n->answers < answers; i++) {
    drain(w, n);
    usleep(100);
  }
  CHECK_INT(n->answers, answers);
}

static void wait_hanging(void) {
  for (int i = 0; i < 10000 && !atomic_load(&hanging); i++) usleep(100);
  CHECK(atomic_load(&hanging) > 0);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_slow_disk(void) {
  char path[80];
  open_all();
  snprintf(path, sizeof path, "%s/seq", folder);
  pe_worker *w = open_worker();
  news n = {0};
  pe_seq_id seq = add(w, 300);
  step(w, seq, &n);
  CHECK_INT(n.tokens, 1);
  atomic_store(&hangs, true);
  uint64_t saved = file(w, seq, path), loaded = file(w, 0, path);
  wait_hanging();
  for (int i = 0; i < 50; i++) step(w, seq, &n); /* streams go on */
  CHECK_INT(n.tokens, 51);
  CHECK_INT(n.answers, 0);
  atomic_store(&hangs, false);
  wait_answers(w, &n, 2); /* without a step */
  CHECK_INT(n.first, saved);
  CHECK_INT(n.last, loaded);
  CHECK_INT(n.failures, 0); /* it was read after it was written */
  pe_worker_close(w);
  unlink(path);
  close_all();
}

/* What a disk that hangs has not written is bounded: a save that does not fit is refused. */
static void test_bound(void) {
  char path[80];
  const uint64_t most = 256 << 20;
  open_all();
  snprintf(path, sizeof path, "%s/seq", folder);
  pe_worker *w = open_worker();
  news n = {0};
  pe_seq_id seq = add(w, 300);
  step(w, seq, &n);
  atomic_store(&hanging, 0), atomic_store(&hangs, true);
  file(w, seq, path);
  wait_hanging();
  pthread_mutex_lock(&w->lock);
  const uint64_t one = w->file_bytes;
  w->file_bytes = most - one; /* as if much more were waiting */
  pthread_mutex_unlock(&w->lock);
  CHECK(one > 0);
  file(w, seq, path); /* fits exactly */
  uint64_t refused = file(w, seq, path);
  wait_answers(w, &n, 1);
  CHECK_INT(n.last, refused);
  CHECK_INT(n.failures, 1);
  pthread_mutex_lock(&w->lock);
  CHECK_INT(w->file_bytes, most);
  w->file_bytes = 2 * one;
  pthread_mutex_unlock(&w->lock);
  atomic_store(&hangs, false);
  wait_answers(w, &n, 3);
  file(w, seq, path); /* there is room again */
  wait_answers(w, &n, 4);
  CHECK_INT(n.failures, 1);
  CHECK_INT(w->file_bytes, 0);
  pe_worker_close(w);
  unlink(path);
  close_all();
}

/* What was begun is finished before the worker ends, and answered. */
static void test_halt(void) {
  char path[80];
  open_all();
  snprintf(path, sizeof path, "%s/seq", folder);
  pe_worker *w = open_worker();
  news n = {0};
  pe_seq_id seq = add(w, 300);
  step(w, seq, &n);
  file(w, seq, path), file(w, 0, path), file(w, 0, "/tmp/no/such/file"), file(w, 77, path);
  pe_worker_halt(w);
  drain(w, &n);
  CHECK_INT(n.answers, 4);
  CHECK_INT(n.failures, 2);
  CHECK_INT(access(path, R_OK), 0);
  pe_worker_close(w);
  unlink(path);
  close_all();
}

/* Whatever allocation fails, each command has its answer. */
static void test_no_memory(void) {
  char path[80];
  open_all();
  snprintf(path, sizeof path, "%s/seq", folder);
  pe_worker *w = open_worker();
  news n = {0};
  pe_seq_id seq = add(w, 300);
  step(w, seq, &n);
  for (int64_t at = 1; at < 40; at++) {
    pe_command c = {at % 2 ? PE_DO_SAVE : PE_DO_LOAD, at % 2 ? seq : 0, .path = path};
    int before = n.answers;
    pe_alloc_fail_at(at / 2 + 1);
    pe_status rc = pe_worker_do(w, &c, NULL, NULL);
    if (!rc) {
      for (int i = 0; i < 20000 && n.answers == before; i++) {
        pe_worker_events e = {0};
        if (!pe_worker_drain(w, &e, NULL))
          for (int32_t k = 0; k < e.count; k++) n.answers += e.event[k].ticket != 0;
        pe_worker_free_events(&e);
        usleep(50);
      }
      CHECK_INT(n.answers, before + 1);
    }
    pe_alloc_fail_at(0);
  }
  pe_worker_close(w);
  unlink(path);
  close_all();
}

static const check_test tests[] = {
    {"slow disk", test_slow_disk},
    {"bound", test_bound},
    {"halt", test_halt},
    {"no memory", test_no_memory},
};
CHECK_MAIN("worker files", tests)
