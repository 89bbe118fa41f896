/* Mapped files that are truncated or overwritten: reads go on, the loss is known, and a SIGBUS that
 * has nothing to do with them ends the process as before. */
#include "check.h"
#include "runtime/buffer.h"
#include "runtime/image/confine.h"
#include "runtime/pool.h"
#include "runtime/weights/weights.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };
static char path[64];

static void write_file(size_t size, int value) {
  FILE *f = fopen(path, "wb");
  if (!f) abort();
  for (size_t i = 0; i < size; i++) fputc(value, f);
  fclose(f);
}

static void make_file(void) {
  snprintf(path, sizeof path, "/tmp/perigee-fault-XXXXXX");
  int fd = mkstemp(path);
  if (fd < 0) abort();
  close(fd);
  write_file(SIZE, 7);
}

static pe_buffer *map(void) {
  pe_error err = {0};
  pe_buffer *b = NULL;
  CHECK_OK(pe_buffer_map(path, &b, &err), err);
  return b;
}

static int64_t sum(const pe_buffer *b) {
  int64_t total = 0;
  for (uint64_t i = 0; i < b->size; i += 512) total += b->data[i];
  return total;
}

static void test_truncated(void) {
  make_file();
  pe_buffer *b = map(), *whole = map();
  CHECK_INT(sum(b), SIZE / 512 * 7);
  CHECK(!pe_buffer_lost(b) && pe_buffer_check(b, path));
  CHECK_INT(truncate(path, 100000), 0);
  CHECK_INT(whole->data[99999], 7);
  CHECK(!pe_buffer_lost(b)); /* nobody has read or looked */
  CHECK_INT(b->data[SIZE - 1], 0);
  CHECK(pe_buffer_lost(b) && !pe_buffer_lost(whole));
  CHECK_INT(sum(b), 0); /* all of it, in one piece */
  CHECK(!pe_buffer_check(whole, path) && pe_buffer_lost(whole));
  pe_buffer_release(b), pe_buffer_release(whole);
  write_file(SIZE, 3);
  b = map();
  CHECK(!pe_buffer_lost(b)); /* the range is used again, without the mark */
  CHECK_INT(sum(b), SIZE / 512 * 3);
  pe_buffer_release(b);
  unlink(path);
}

static void test_overwritten(void) {
  make_file();
  pe_buffer *b = map();
  usleep(20000); /* longer than the file system's clock ticks */
  FILE *f = fopen(path, "r+b");
  fputs("other", f), fclose(f);
  CHECK(!pe_buffer_lost(b) && !pe_buffer_check(b, path) && pe_buffer_lost(b));
  pe_buffer_release(b);
  unlink(path);
}

/* The old file stays mapped: nothing is lost. */
static void test_replaced(void) {
  char other[80];
  make_file();
  pe_buffer *b = map();
  snprintf(other, sizeof other, "%s.old", path);
  rename(path, other);
  write_file(1000, 9);
  CHECK(pe_buffer_check(b, path) && !pe_buffer_lost(b));
  unlink(path);
  CHECK(pe_buffer_check(b, path));
  CHECK_INT(sum(b), SIZE / 512 * 7);
  pe_buffer_release(b);
  unlink(other);
}

static void read_task(void *ctx, int task, int tasks) {
  const pe_buffer *b = ctx;
  volatile uint8_t last = b->data[(uint64_t)task * (b->size / (uint64_t)tasks)];
  (void)last;
}

/* Threads of the pool block signals, but not this one; and they fault at the same time. */
static void test_threads(void) {
  pe_error err = {0};
  pe_pool *pool = NULL;
  CHECK_OK(pe_pool_open(4, false, &pool, &err), err);
  for (int round = 0; round < 20; round++) {
    make_file();
    pe_buffer *b = map();
    CHECK_INT(truncate(path, 4096), 0);
    pe_pool_run(pool, read_task, b, 64);
    CHECK(pe_buffer_lost(b));
    pe_buffer_release(b);
    unlink(path);
  }
  pe_pool_close(pool);
}

/* Others map and unmap files while this one faults. */
static int stop;

static void *come_and_go(void *arg) {
  (void)arg;
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    pe_buffer *b = NULL;
    if (!pe_buffer_map("/proc/self/exe", &b, NULL)) pe_buffer_release(b);
  }
  return NULL;
}

static void test_comings_and_goings(void) {
  pthread_t thread[2];
  __atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, come_and_go, NULL);
  for (int round = 0; round < 50; round++) {
    make_file();
    pe_buffer *b = map();
    CHECK_INT(truncate(path, 0), 0);
    CHECK_INT(sum(b), 0);
    CHECK(pe_buffer_lost(b));
    pe_buffer_release(b);
    unlink(path);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
}

/* ---- faults of others ------------------------------------------------------------------------ */

static int fault_outside(void) {
  FILE *f = fopen(path, "rb");
  volatile char *p = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fileno(f), 0);
  if (p == MAP_FAILED || truncate(path, 0)) return 0;
  return p[SIZE / 2] != 1;
}

static int send_signal(void) { return kill(getpid(), SIGBUS); }

/* How a child ends that has a watched file and does this: its signal, else its status. */
static int end_of(int (*act)(void)) {
  make_file();
  fflush(stdout);
  pid_t child = fork();
  if (!child) {
    if (!freopen("/dev/null", "w", stderr)) _exit(3); /* a sanitizer's report */
    pe_buffer *b = NULL;
    if (pe_buffer_map(path, &b, NULL)) _exit(2);
    act();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  unlink(path);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_others(void) {
  pe_buffer *b = NULL;
  make_file(), b = map(); /* the handler is there before the fork */
  pe_buffer_release(b), unlink(path);
  if (PE_SANITIZED) { /* its handler ends the process */
    CHECK(end_of(fault_outside) != 0 && end_of(send_signal) != 0);
    return;
  }
  CHECK_INT(end_of(fault_outside), SIGBUS);
  CHECK_INT(end_of(send_signal), SIGBUS);
}

/* ---- weights --------------------------------------------------------------------------------- */

static void test_weights(void) {
  static uint16_t values[SIZE / 2];
  pe_error err = {0};
  pe_weights *w = NULL;
  float row[512];
  make_file();
  char file[80];
  snprintf(file, sizeof file, "%s.safetensors", path);
  pe_safetensors_item item = {
      .name = "x", .dtype = PE_BF16, .rank = 2, .shape = {1024, 512}, .data = values};
  CHECK_OK(pe_safetensors_write(file, &item, 1, &err), err);
  CHECK_OK(pe_weights_open(file, &w, &err), err);
  const pe_weight *x = pe_weights_find(w, "x");
  CHECK_OK(pe_weight_dequant(x, 1023, 1, row, &err), err);
  CHECK_OK(pe_weights_intact(w, &err), err);
  CHECK_OK(pe_weights_check(w, &err), err);
  CHECK_INT(truncate(file, 8192), 0);
  CHECK_OK(pe_weights_intact(w, &err), err);
  CHECK_FAILS(pe_weight_dequant(x, 1023, 1, row, &err), PE_EIO, err, "tensor 'x' was truncated");
  CHECK_FAILS(pe_weights_intact(w, &err), PE_EIO, err, strrchr(file, '/') + 1);
  CHECK(!strstr(err.text, "/tmp")); /* clients read this */
  pe_weights_release(w);
  CHECK_OK(pe_safetensors_write(file, &item, 1, &err), err);
  CHECK_OK(pe_weights_open(file, &w, &err), err);
  CHECK_INT(truncate(file, 8192), 0);
  CHECK_FAILS(pe_weights_check(w, &err), PE_EIO, err, "must be loaded again");
  CHECK_FAILS(pe_weights_intact(w, &err), PE_EIO, err, "must be loaded again");
  pe_weights_release(w);
  unlink(file), unlink(path);
}

static const check_test tests[] = {
    {"truncated", test_truncated},
    {"overwritten", test_overwritten},
    {"replaced", test_replaced},
    {"threads", test_threads},
    {"files come and go", test_comings_and_goings},
    {"faults of others", test_others},
    {"weights", test_weights},
};
CHECK_MAIN("fault", tests)
