/* test_disk_thread.c - the thread of the disk tier: writes that wait are bounded by their bytes. */
#include "check.h"
#include "runtime/cache/disk_thread.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 200 << 20, MORE = 100 << 20 }; /* together above the bound, 256 MiB */
enum { HEAD = 4096 };                         /* the smallest file; a seal has room in it */

static pe_disk_job *job_of(pe_disk_verb verb, const char *path, size_t bytes) {
  pe_disk_job *job = pe_disk_job_new(verb, path);
  CHECK(job);
  if (!job || !bytes) return job;
  job->bytes = (pe_buf){pe_calloc(bytes, 1), bytes, bytes};
  job->parts.head.head_bytes = HEAD;
  CHECK(job->bytes.data);
  return job;
}

static void wait_for(pe_disk_thread *t) {
  while (pe_disk_thread_busy(t)) nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static pe_disk_thread *open_thread(void) {
  static const pe_prefix_spec spec;
  pe_disk_thread *t = NULL;
  pe_error err;
  CHECK_OK(pe_disk_thread_open(&spec, NULL, NULL, &t, &err), err);
  return t;
}

/* Done or failed, a write no longer waits, and a read never did. */
static void test_room(void) {
  pe_disk_thread *t = open_thread();
  for (uint64_t i = 1; i <= 3; i++) {
    CHECK_INT(pe_disk_thread_put(t, job_of(PE_DISK_WRITE, "/nonexistent/a", LARGE)), 2 * i - 1);
    wait_for(t);
    CHECK_INT(pe_disk_thread_failed(t), i);
    CHECK_INT(pe_disk_thread_put(t, job_of(PE_DISK_READ, "/nonexistent/a", 0)), 2 * i);
    wait_for(t);
  }
  CHECK_INT(pe_disk_thread_completed(t), 6);
  CHECK_INT(pe_disk_thread_failed(t), 3);
  pe_disk_thread_close(t);
}

/* While the thread waits for a reader of a pipe, a write is refused that is too much together with
 * those that wait; later jobs with fewer bytes, or none, are not. */
static void test_bound(void) {
  char path[100], part[140];
  snprintf(path, sizeof path, "/tmp/perigee-disk-%ld", (long)getpid());
  snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid());
  CHECK_INT(mkfifo(part, 0600), 0);
  pe_disk_thread *t = open_thread();
  CHECK_INT(pe_disk_thread_put(t, job_of(PE_DISK_WRITE, path, HEAD)), 1);
  CHECK_INT(pe_disk_thread_put(t, job_of(PE_DISK_WRITE, "/nonexistent/a", LARGE)), 2);
  CHECK_INT(pe_disk_thread_put(t, job_of(PE_DISK_WRITE, "/nonexistent/b", MORE)), 0);
  CHECK_INT(pe_disk_thread_put(t, job_of(PE_DISK_WRITE, "/nonexistent/c", HEAD)), 3);
  CHECK_INT(pe_disk_thread_put(t, job_of(PE_DISK_REMOVE, path, 0)), 4);
  CHECK_INT(pe_disk_thread_last(t), 4);
  CHECK_INT(pe_disk_thread_completed(t), 0);
  int fd = open(part, O_RDONLY);
  CHECK(fd >= 0);
  wait_for(t);
  if (fd >= 0) close(fd);
  CHECK_INT(pe_disk_thread_failed(t), 2);
  CHECK(access(path, F_OK) && access(part, F_OK)); /* renamed, then removed */
  CHECK_INT(pe_disk_thread_put(t, job_of(PE_DISK_WRITE, "/nonexistent/b", MORE)), 5);
  pe_disk_thread_close(t);
}

static const check_test tests[] = {
    {"room of writes that are done", test_room},
    {"bytes that may wait", test_bound},
};
CHECK_MAIN("disk_thread", tests)
