/* disk_thread.c - see disk_thread.h. */
#include "runtime/cache/disk_thread.h"
#include "runtime/thread.h"

#include <string.h>

/* Bytes of writes that may wait: what a disk takes in about a second. A job larger than this waits
 * alone. */
enum { MOST_BYTES = 256 << 20 };

struct pe_disk_thread {
  const pe_prefix_spec *spec; /* borrowed */
  pthread_t thread;
  pthread_mutex_t lock; /* of everything below */
  pthread_cond_t called;
  pe_disk_job *first, **last; /* jobs to do */
  pe_disk_job *read, **read_last;
  uint64_t bytes;                          /* of writes that wait */
  uint64_t tickets, done, failed, dropped; /* reads up to `dropped` are of no use any more */
  bool stop;
  pe_disk_notify *notify;
  void *ctx;
};

/* ---- jobs ------------------------------------------------------------------------------------ */

pe_disk_job *pe_disk_job_new(pe_disk_verb verb, const char *path) {
  size_t n = strlen(path) + 1;
  pe_disk_job *job = pe_calloc(1, sizeof *job + n);
  if (!job) return NULL;
  job->verb = verb;
  memcpy(job->path, path, n);
  return job;
}

void pe_disk_job_free(pe_disk_job *job) {
  if (!job) return;
  pe_buf_free(&job->bytes);
  pe_free(job);
}

static void free_all(pe_disk_job *job) {
  for (pe_disk_job *next; job; job = next) {
    next = job->next;
    pe_disk_job_free(job);
  }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static pe_disk_job *next_job(pe_disk_thread *t) {
  pe_disk_job *job = t->first;
  if (!(t->first = job->next)) t->last = &t->first;
  job->next = NULL;
  return job;
}

/* Under the lock: what is left of a job that was done. Returns it if nobody needs it. */
static pe_disk_job *file_away(pe_disk_thread *t, pe_disk_job *job, bool ok) {
  t->done = job->ticket;
  if (job->verb == PE_DISK_WRITE) {
    t->bytes -= job->bytes.len;
    t->failed += !ok;
  }
  if (job->verb != PE_DISK_READ || job->ticket <= t->dropped) return job;
  *t->read_last = job;
  t->read_last = &job->next;
  return NULL;
}

static void *serve(void *arg) {
  pe_disk_thread *t = arg;
  pthread_mutex_lock(&t->lock);
  while (t->first || !t->stop) {
    if (!t->first) {
      pthread_cond_wait(&t->called, &t->lock);
      continue;
    }
    pe_disk_job *job = next_job(t);
    pe_disk_verb verb = job->verb;
    pthread_mutex_unlock(&t->lock);
    bool ok = pe_disk_work(t->spec, job);
    pthread_mutex_lock(&t->lock);
    pe_disk_job *old = file_away(t, job, ok);
    if (t->notify && (verb == PE_DISK_READ || !t->first)) t->notify(t->ctx);
    pthread_mutex_unlock(&t->lock);
    pe_disk_job_free(old);
    pthread_mutex_lock(&t->lock);
  }
  pthread_mutex_unlock(&t->lock);
  return NULL;
}

pe_status pe_disk_thread_open(const pe_prefix_spec *spec, pe_disk_notify *notify, void *ctx,
                              pe_disk_thread **out, pe_error *err) {
  pe_disk_thread *t = pe_calloc(1, sizeof *t);
  if (!t) return pe_nomem(err, "disk thread");
  t->spec = spec, t->notify = notify, t->ctx = ctx;
  t->last = &t->first, t->read_last = &t->read;
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->called, NULL);
  int rc = pe_thread_start(&t->thread, serve, t);
  if (!rc) {
    *out = t;
    return PE_OK;
  }
  pthread_cond_destroy(&t->called);
  pthread_mutex_destroy(&t->lock);
  pe_free(t);
  return pe_fail(err, PE_EIO, "disk thread: %s", strerror(rc));
}

void pe_disk_thread_mute(pe_disk_thread *t) {
  pthread_mutex_lock(&t->lock);
  t->notify = NULL;
  pthread_mutex_unlock(&t->lock);
}

void pe_disk_thread_close(pe_disk_thread *t) {
  if (!t) return;
  pthread_mutex_lock(&t->lock);
  t->stop = true, t->notify = NULL;
  pthread_cond_signal(&t->called);
  pthread_mutex_unlock(&t->lock);
  pthread_join(t->thread, NULL);
  free_all(t->read);
  pthread_cond_destroy(&t->called);
  pthread_mutex_destroy(&t->lock);
  pe_free(t);
}

/* ---- from the engine thread ------------------------------------------------------------------ */

uint64_t pe_disk_thread_put(pe_disk_thread *t, pe_disk_job *job) {
  uint64_t bytes = job->verb == PE_DISK_WRITE ? job->bytes.len : 0, ticket = 0;
  pthread_mutex_lock(&t->lock);
  if (!bytes || !t->bytes || t->bytes + bytes <= MOST_BYTES) {
    ticket = job->ticket = ++t->tickets;
    t->bytes += bytes;
    *t->last = job;
    t->last = &job->next;
    pthread_cond_signal(&t->called);
  }
  pthread_mutex_unlock(&t->lock);
  if (!ticket) pe_disk_job_free(job);
  return ticket;
}

bool pe_disk_thread_busy(pe_disk_thread *t) { return !pe_disk_thread_done(t, UINT64_MAX); }

bool pe_disk_thread_done(pe_disk_thread *t, uint64_t ticket) {
  pthread_mutex_lock(&t->lock);
  bool done = t->done >= ticket || t->done == t->tickets;
  pthread_mutex_unlock(&t->lock);
  return done;
}

uint64_t pe_disk_thread_completed(pe_disk_thread *t) {
  pthread_mutex_lock(&t->lock);
  uint64_t done = t->done;
  pthread_mutex_unlock(&t->lock);
  return done;
}

uint64_t pe_disk_thread_last(pe_disk_thread *t) {
  pthread_mutex_lock(&t->lock);
  uint64_t last = t->tickets;
  pthread_mutex_unlock(&t->lock);
  return last;
}

pe_disk_job *pe_disk_thread_take(pe_disk_thread *t, pe_tree_hash hash) {
  pthread_mutex_lock(&t->lock);
  pe_disk_job **at = &t->read, *job;
  while (*at && ((*at)->hash.low != hash.low || (*at)->hash.high != hash.high)) at = &(*at)->next;
  if ((job = *at)) {
    *at = job->next;
    if (t->read_last == &job->next) t->read_last = at;
    job->next = NULL;
  }
  pthread_mutex_unlock(&t->lock);
  return job;
}

void pe_disk_thread_drop(pe_disk_thread *t) {
  pthread_mutex_lock(&t->lock);
  t->dropped = t->tickets;
  pe_disk_job *old = t->read;
  t->read = NULL, t->read_last = &t->read;
  pthread_mutex_unlock(&t->lock);
  free_all(old);
}

uint64_t pe_disk_thread_failed(pe_disk_thread *t) {
  pthread_mutex_lock(&t->lock);
  uint64_t failed = t->failed;
  pthread_mutex_unlock(&t->lock);
  return failed;
}
