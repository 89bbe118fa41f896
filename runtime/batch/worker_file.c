/* worker_file.c - see worker.h: the files of save and load, on a thread of their own, so that the
 * engine thread never waits for a disk.
 *
 *   save   engine: copies the caches --> this thread: writes the file, answers
 *   load   this thread: reads the file --> engine, between two steps: fills caches, answers
 *
 * The thread starts with the first file and ends when the worker halts, after all files. Files are
 * written and read in the order of their commands. */
#include "runtime/batch/worker_parts.h"
#include "runtime/thread.h"

#include <string.h>

/* Bytes of copies that may wait for the disk: what it takes in about a second. A larger one waits
 * alone. */
enum { MOST_BYTES = 256 << 20 };

struct pe_worker_file {
  pe_worker_file *next;
  pe_worker_command q;
  pe_buf bytes;
  pe_status status; /* of a read */
};

static void free_file(pe_worker_file *f) {
  pe_buf_free(&f->bytes);
  pe_worker_command_free(&f->q);
  pe_free(f);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Takes. */
static void write_file(pe_worker *w, pe_worker_file *f) {
  pe_status rc = pe_seq_write_file(&f->bytes, f->q.c.path, f->q.error);
  pthread_mutex_lock(&w->lock);
  w->file_bytes -= f->bytes.len;
  pthread_mutex_unlock(&w->lock);
  pe_worker_answer(w, &f->q, rc);
  free_file(f);
  w->wake(w->ctx);
}

/* Takes: to the engine thread, or to the one that halts. */
static void read_file(pe_worker *w, pe_worker_file *f) {
  f->status = pe_seq_read_file(f->q.c.path, &f->bytes, f->q.error);
  pthread_mutex_lock(&w->lock);
  pe_worker_file **last = &w->arrived;
  while (*last) last = &(*last)->next;
  *last = f;
  if (!w->stop) pe_crew_call(&w->seat);
  pthread_mutex_unlock(&w->lock);
}

static void *serve(void *arg) {
  pe_worker *w = arg;
  pthread_mutex_lock(&w->lock);
  while (w->files || !w->files_end) {
    pe_worker_file *f = w->files;
    if (!f) {
      pthread_cond_wait(&w->file_called, &w->lock);
      continue;
    }
    w->files = f->next, f->next = NULL;
    pthread_mutex_unlock(&w->lock);
    (f->q.c.verb == PE_DO_SAVE ? write_file : read_file)(w, f);
    pthread_mutex_lock(&w->lock);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static pe_status start(pe_worker *w, pe_error *err) {
  if (w->filing) return PE_OK;
  int rc = pe_thread_start(&w->file_thread, serve, w);
  w->filing = !rc;
  return rc ? pe_fail(err, PE_EIO, "thread for files: %s", strerror(rc)) : PE_OK;
}

/* ---- from the engine thread ------------------------------------------------------------------ */

static pe_status queue(pe_worker *w, pe_worker_file *f, pe_error *err) {
  pe_status rc = start(w, err);
  if (rc) return rc;
  pthread_mutex_lock(&w->lock);
  if (w->file_bytes && w->file_bytes + f->bytes.len > MOST_BYTES) {
    rc = pe_fail(err, PE_ELIMIT, "%s: %llu bytes of saved sequences are waiting for the disk",
                 f->q.c.path, (unsigned long long)w->file_bytes);
  } else {
    pe_worker_file **last = &w->files;
    while (*last) last = &(*last)->next;
    *last = f, w->file_bytes += f->bytes.len;
    pthread_cond_signal(&w->file_called);
  }
  pthread_mutex_unlock(&w->lock);
  return rc;
}

void pe_worker_file_begin(pe_worker *w, pe_worker_command *q) {
  pe_error *err = q->error;
  pe_worker_file *f = pe_calloc(1, sizeof *f);
  pe_status rc = f ? PE_OK : pe_nomem(err, "file");
  if (f) f->q = *q;
  if (!rc && q->c.verb == PE_DO_SAVE) rc = pe_batch_save(w->batch, q->c.seq, &f->bytes, err);
  if (!rc) rc = queue(w, f, err);
  if (!rc) return;
  if (f) pe_buf_free(&f->bytes);
  pe_free(f);
  pe_worker_answer(w, q, rc);
  pe_worker_command_free(q);
}

void pe_worker_file_arrived(pe_worker *w, pe_worker_file *list) {
  for (pe_worker_file *next; list; list = next) {
    next = list->next;
    pe_worker_command *q = &list->q;
    pe_status rc = list->status;
    if (!rc) rc = pe_batch_load(w->batch, &list->bytes, q->c.path, q->error);
    pe_worker_answer(w, q, rc);
    free_file(list);
  }
}

void pe_worker_file_end(pe_worker *w) {
  if (!w->filing) return;
  pthread_mutex_lock(&w->lock);
  w->files_end = true;
  pthread_cond_signal(&w->file_called);
  pthread_mutex_unlock(&w->lock);
  pthread_join(w->file_thread, NULL);
  w->filing = false;
}
