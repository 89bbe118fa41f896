/* decoder.c - see decoder.h. */
#include "runtime/image/decoder.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "runtime/image/decoder_child.h"
#include "runtime/machine.h"

typedef struct job {
  struct job *next;
  pe_wire_request request;
  pe_buffer *bytes; /* one reference */
  bool dropped;
  pe_decoded result;
} job;

typedef struct list {
  job *first, **end;
  uint64_t count;
} list;

typedef struct server { /* a thread and its child */
  pthread_t thread;
  pe_decoder *decoder;
  pe_decoder_child child; /* its pid changes under the lock */
  job *running;
} server;

struct pe_decoder {
  pe_decoder_options options;
  pthread_mutex_t lock;
  pthread_cond_t work, done;
  bool closing;
  uint64_t last; /* job number */
  list waiting, finished;
  pe_decoder_stats stats; /* the counters */
  int32_t count;          /* servers */
  server server[PE_DECODER_CHILDREN];
};

/* ---- jobs ------------------------------------------------------------------------------------ */

static void list_open(list *l) { *l = (list){.end = &l->first}; }

static void list_put(list *l, job *j) {
  j->next = NULL;
  *l->end = j, l->end = &j->next, l->count++;
}

static job *list_take_at(list *l, job **at) {
  job *j = *at;
  *at = j->next;
  if (!j->next) l->end = at;
  l->count--;
  return j;
}

static job **list_find(list *l, uint64_t number) {
  for (job **at = &l->first; *at; at = &(*at)->next)
    if ((*at)->request.job == number) return at;
  return NULL;
}

void pe_decoded_free(pe_decoded *r) {
  pe_buffer_release(r->pixels);
  *r = (pe_decoded){0};
}

static void job_free(job *j) {
  pe_buffer_release(j->bytes);
  pe_decoded_free(&j->result);
  pe_free(j);
}

/* ---- one job, on the thread of a server ------------------------------------------------------ */

/* Mappings of the program itself, of the file and of the results come on top of the budget. */
static uint64_t addresses(const pe_decoder *d) {
  return d->options.limits.memory + 2 * d->options.bytes + ((uint64_t)1 << 30);
}

static pe_status start(server *s, pe_error *err) {
  pe_decoder_child child = {0};
  pe_status rc = pe_decoder_child_start(&child, addresses(s->decoder), err);
  pthread_mutex_lock(&s->decoder->lock);
  s->child = child;
  pthread_mutex_unlock(&s->decoder->lock);
  return rc;
}

static bool stop(server *s) {
  pthread_mutex_lock(&s->decoder->lock);
  pe_decoder_child child = s->child;
  s->child = (pe_decoder_child){0}; /* nobody kills this number from now on */
  pthread_mutex_unlock(&s->decoder->lock);
  return pe_decoder_child_stop(&child);
}

static bool is_closing(pe_decoder *d) {
  pthread_mutex_lock(&d->lock);
  bool closing = d->closing;
  pthread_mutex_unlock(&d->lock);
  return closing;
}

static void count_end(pe_decoder *d, pe_exchange end) {
  pthread_mutex_lock(&d->lock);
  d->stats.died += end == PE_EXCHANGE_DIED;
  d->stats.late += end == PE_EXCHANGE_LATE;
  pthread_mutex_unlock(&d->lock);
}

static pe_status no_child(const pe_decoder *d, pe_exchange end, pe_error *err) {
  if (end == PE_EXCHANGE_LATE)
    return pe_fail(err, PE_ELIMIT, "decoding the picture took longer than %g s",
                   (double)d->options.job_ns / 1e9);
  return pe_fail(err, PE_EFORMAT, "the picture could not be decoded");
}

/* Asks the child, and once more a new one if it dies. */
static pe_status ask(server *s, const pe_wire_request *request, const int fd[2],
                     pe_wire_reply *reply, pe_error *err) {
  pe_decoder *d = s->decoder;
  pe_exchange end = PE_EXCHANGE_DIED;
  for (int tries = 0; end == PE_EXCHANGE_DIED && tries < 2 && !is_closing(d); tries++) {
    if (s->child.jobs >= PE_DECODER_LIFE) stop(s);
    pe_status rc = s->child.pid ? PE_OK : start(s, err);
    if (rc) return rc;
    end = pe_decoder_child_ask(&s->child, request, fd, pe_clock_ns() + d->options.job_ns, reply);
    if (end == PE_EXCHANGE_DONE) return PE_OK;
    bool unconfined = stop(s);
    count_end(d, end);
    if (unconfined)
      return pe_fail(err, PE_EUNSUPPORTED,
                     "the picture decoder cannot be confined on this system and does not start");
  }
  return no_child(d, end, err);
}

static void take_reply(job *j, const pe_wire_reply *reply, pe_buffer *pixels) {
  pe_decoded *r = &j->result;
  if (reply->status) {
    pe_fail(&r->err, (pe_status)reply->status, "%s", reply->text);
    return;
  }
  r->info = (pe_image_info){.format = (pe_image_format)reply->format,
                            .width = reply->width,
                            .height = reply->height,
                            .orientation = reply->orientation,
                            .alpha = reply->alpha};
  memcpy(r->hash, reply->hash, sizeof r->hash);
  r->count = j->request.count;
  uint64_t at = 0;
  for (uint32_t i = 0; i < r->count; i++) {
    const pe_target *t = &j->request.target[i];
    r->image[i] = (pe_image){t->width, t->height, pixels->data + at};
    at += (uint64_t)t->width * (uint64_t)t->height * 3;
  }
  if (pixels) r->pixels = pe_buffer_retain(pixels);
}

static void run(server *s, job *j) {
  pe_error *err = &j->result.err;
  pe_buffer *in = NULL, *out = NULL;
  int fd[2] = {-1, -1};
  uint64_t bytes = 0;
  pe_wire_reply reply;
  pe_status rc = pe_buffer_share(j->request.size, &in, &fd[0], err);
  if (!rc && j->bytes) memcpy(in->data, j->bytes->data, j->request.size);
  if (!rc && pe_wire_bytes(j->request.target, j->request.count, &bytes) && bytes)
    rc = pe_buffer_share(bytes, &out, &fd[1], err);
  pe_buffer_release(j->bytes); /* the copy is enough */
  j->bytes = NULL;
  if (!rc) rc = ask(s, &j->request, fd, &reply, err);
  if (!rc) take_reply(j, &reply, out);
  pe_buffer_release(in), pe_buffer_release(out);
  for (int i = 0; i < 2; i++)
    if (fd[i] >= 0) close(fd[i]);
}

/* With the lock held, which it lets go of while it computes. */
static void serve_one(server *s) {
  pe_decoder *d = s->decoder;
  job *j = s->running = list_take_at(&d->waiting, &d->waiting.first);
  pthread_mutex_unlock(&d->lock);
  run(s, j);
  pthread_mutex_lock(&d->lock);
  s->running = NULL;
  d->stats.jobs++, d->stats.failed += j->result.err.code != PE_OK;
  if (j->dropped) {
    job_free(j);
    return;
  }
  list_put(&d->finished, j);
  pthread_cond_broadcast(&d->done);
  if (d->options.wake) d->options.wake(d->options.ctx);
}

static void *serve(void *self) {
  server *s = self;
  pe_decoder *d = s->decoder;
  pthread_mutex_lock(&d->lock);
  while (!d->closing) {
    if (d->waiting.first)
      serve_one(s);
    else
      pthread_cond_wait(&d->work, &d->lock);
  }
  pthread_mutex_unlock(&d->lock);
  stop(s);
  return NULL;
}

/* ---- opening and closing --------------------------------------------------------------------- */

pe_decoder_options pe_decoder_defaults(void) {
  int cores = pe_machine_cores();
  return (pe_decoder_options){.children = cores < 2 ? cores : 2,
                              .limits = {.pixels = 50000000, .memory = (uint64_t)1 << 30},
                              .bytes = 32 << 20,
                              .job_ns = 10000000000};
}

/* Its threads take no signals: those are the loop's. */
static pe_status start_thread(pe_decoder *d, server *s, pe_error *err) {
  sigset_t all, old;
  s->decoder = d;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = pthread_create(&s->thread, NULL, serve, s);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return rc ? pe_fail(err, PE_EIO, "cannot start a thread: %s", strerror(rc)) : PE_OK;
}

pe_status pe_decoder_open(const pe_decoder_options *options, pe_decoder **out, pe_error *err) {
  if (options->children < 1 || options->children > PE_DECODER_CHILDREN)
    return pe_fail_field(err, PE_EARG, "children", "children must be between 1 and %d, got %d",
                         PE_DECODER_CHILDREN, options->children);
  pe_decoder *d = pe_calloc(1, sizeof *d);
  if (!d) return pe_nomem(err, "picture decoder");
  d->options = *options;
  list_open(&d->waiting), list_open(&d->finished);
  pthread_mutex_init(&d->lock, NULL);
  pthread_cond_init(&d->work, NULL), pthread_cond_init(&d->done, NULL);
  pe_status rc = PE_OK;
  for (; !rc && d->count < options->children; d->count += !rc)
    rc = start_thread(d, &d->server[d->count], err);
  if (rc) {
    pe_decoder_close(d);
    return rc;
  }
  *out = d;
  return PE_OK;
}

void pe_decoder_close(pe_decoder *d) {
  if (!d) return;
  pthread_mutex_lock(&d->lock);
  d->closing = true;
  for (int32_t i = 0; i < d->count; i++)
    if (d->server[i].child.pid) kill(d->server[i].child.pid, SIGKILL); /* ends its exchange */
  pthread_cond_broadcast(&d->work);
  pthread_mutex_unlock(&d->lock);
  for (int32_t i = 0; i < d->count; i++) pthread_join(d->server[i].thread, NULL);
  while (d->waiting.first) job_free(list_take_at(&d->waiting, &d->waiting.first));
  while (d->finished.first) job_free(list_take_at(&d->finished, &d->finished.first));
  pthread_cond_destroy(&d->work), pthread_cond_destroy(&d->done);
  pthread_mutex_destroy(&d->lock);
  pe_free(d);
}

/* ---- any thread ------------------------------------------------------------------------------ */

static pe_status queue(pe_decoder *d, const pe_wire_request *request, pe_buffer *bytes,
                       uint64_t *number, pe_error *err) {
  job *j = pe_calloc(1, sizeof *j);
  if (!j) return pe_nomem(err, "picture");
  j->request = *request;
  j->request.magic = j->request.end = PE_WIRE_MAGIC;
  j->request.pixels = d->options.limits.pixels, j->request.memory = d->options.limits.memory;
  pthread_mutex_lock(&d->lock);
  uint64_t held = d->waiting.count + d->finished.count;
  if (held < PE_DECODER_QUEUE) {
    *number = j->request.job = j->result.job = ++d->last;
    d->stats.bytes += request->size;
    if (bytes) j->bytes = pe_buffer_retain(bytes);
    list_put(&d->waiting, j);
    pthread_cond_signal(&d->work);
    j = NULL;
  }
  pthread_mutex_unlock(&d->lock);
  if (!j) return PE_OK;
  pe_free(j);
  return pe_fail(err, PE_ELIMIT, "%d pictures are waiting to be decoded already", PE_DECODER_QUEUE);
}

pe_status pe_decoder_submit(pe_decoder *d, pe_buffer *bytes, const pe_target *target,
                            uint32_t count, uint64_t *number, pe_error *err) {
  pe_wire_request r = {
      .op = count ? PE_WIRE_DECODE : PE_WIRE_PROBE, .size = bytes->size, .count = count};
  uint64_t pixels;
  if (!bytes->size) return pe_fail(err, PE_EFORMAT, "the picture is empty");
  if (bytes->size > d->options.bytes)
    return pe_fail(err, PE_ELIMIT, "the picture has %llu bytes, more than the limit of %llu",
                   (unsigned long long)bytes->size, (unsigned long long)d->options.bytes);
  if (count > PE_WIRE_TARGETS)
    return pe_fail(err, PE_EARG, "a picture has at most %d targets, got %u", PE_WIRE_TARGETS,
                   count);
  if (count) memcpy(r.target, target, count * sizeof *target);
  if (!pe_wire_bytes(r.target, count, &pixels))
    return pe_fail(err, PE_EARG, "a target has no valid size or filter");
  if (pixels / 3 > d->options.limits.pixels)
    return pe_fail(err, PE_ELIMIT, "targets of %llu pixels are more than the limit of %llu",
                   (unsigned long long)pixels / 3, (unsigned long long)d->options.limits.pixels);
  return queue(d, &r, bytes, number, err);
}

pe_status pe_decoder_try(pe_decoder *d, uint64_t *number, pe_error *err) {
  pe_wire_request r = {.op = PE_WIRE_ESCAPE, .size = 1};
  return queue(d, &r, NULL, number, err);
}

/* Takes a finished job out of the list and its result out of the job. */
static void give(pe_decoder *d, job **at, pe_decoded *out) {
  job *j = list_take_at(&d->finished, at);
  *out = j->result;
  j->result = (pe_decoded){0};
  job_free(j);
}

bool pe_decoder_next(pe_decoder *d, pe_decoded *out) {
  pthread_mutex_lock(&d->lock);
  bool found = d->finished.first != NULL;
  if (found) give(d, &d->finished.first, out);
  pthread_mutex_unlock(&d->lock);
  return found;
}

static job *running(pe_decoder *d, uint64_t number) {
  for (int32_t i = 0; i < d->count; i++)
    if (d->server[i].running && d->server[i].running->request.job == number)
      return d->server[i].running;
  return NULL;
}

pe_status pe_decoder_wait(pe_decoder *d, uint64_t number, pe_decoded *out, pe_error *err) {
  pthread_mutex_lock(&d->lock);
  job **at;
  while (!(at = list_find(&d->finished, number)) &&
         (running(d, number) || list_find(&d->waiting, number)))
    pthread_cond_wait(&d->done, &d->lock);
  if (at) give(d, at, out);
  pthread_mutex_unlock(&d->lock);
  if (at) return PE_OK;
  return pe_fail(err, PE_ENOTFOUND, "no picture has job number %llu", (unsigned long long)number);
}

void pe_decoder_drop(pe_decoder *d, uint64_t number) {
  pthread_mutex_lock(&d->lock);
  job **at, *j = running(d, number);
  if (j) j->dropped = true;
  if ((at = list_find(&d->waiting, number))) job_free(list_take_at(&d->waiting, at));
  if ((at = list_find(&d->finished, number))) job_free(list_take_at(&d->finished, at));
  pthread_mutex_unlock(&d->lock);
}

void pe_decoder_read_stats(pe_decoder *d, pe_decoder_stats *out) {
  pthread_mutex_lock(&d->lock);
  *out = d->stats;
  out->waiting = d->waiting.count, out->finished = d->finished.count;
  for (int32_t i = 0; i < d->count; i++) {
    if (d->server[i].child.pid) out->pid[out->children++] = (int32_t)d->server[i].child.pid;
    out->running += d->server[i].running != NULL;
  }
  pthread_mutex_unlock(&d->lock);
}
