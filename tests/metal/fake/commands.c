/* commands.c - queues, command buffers and encoders of the fake Metal; see metal.h. */
#include "tests/metal/fake/metal.h"

#include "tests/metal/fake/fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
  bool lost;
  fake_failure how;
  long dispatches, barriers, encoded, committed, completed, late, sums;
  uint32_t batch, shuffle;
} gpu = {.shuffle = 1};

/* One GPU: waiting threads take turns. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void fake_arm(long n);
void fake_fail_at(long n, fake_failure how) {
  fake_arm(n);
  gpu.lost = false, gpu.how = how;
}
void fake_fail_as_asked(void) {
  const char *n = getenv("FAKE_METAL_FAIL_AT");
  if (n) fake_fail_at(strtol(n, NULL, 10), FAKE_FAIL_INTERNAL);
}
long fake_dispatches(void) { return gpu.dispatches; }
long fake_barriers(void) { return gpu.barriers; }
long fake_encoded(void) { return gpu.encoded; }
long fake_in_flight(void) { return gpu.committed - gpu.completed; }
void fake_set_late(long waits) { gpu.late = waits; }

/* ---- running --------------------------------------------------------------------------------- */

/* Of memory that both sides see and no kernel writes. */
static uint64_t sum_of(fake_buffer *b) {
  uint64_t sum = 1469598103934665603u;
  if (!b || !b->own || b->written) return 0;
  if (b->summed == gpu.sums) return b->sum; /* many dispatches have the same */
  for (NSUInteger i = 0; i + 4 <= b->size; i += 4) {
    uint32_t word;
    memcpy(&word, b->data + i, 4);
    sum = (sum ^ word) * 1099511628211u;
  }
  b->summed = gpu.sums, b->sum = sum | 1;
  return b->sum;
}

/* "Synchronizing CPU and GPU work": the CPU must not change what a committed command buffer reads
 * before it is completed. */
static void check_unchanged(const fake_dispatch *d) {
  for (int i = 0; i < FAKE_SLOTS; i++)
    if (d->sum[i] && d->sum[i] != sum_of(d->bound[i]))
      fake_complain("%s: buffer %d was changed after the commit", d->pipeline->kernel->name, i);
}

static void run_dispatch(fake_dispatch *d) {
  check_unchanged(d);
  for (int i = 0; i < FAKE_SLOTS; i++)
    if (d->bound[i] && !fake_is(&d->bound[i]->o, &fake_class_buffer))
      fake_complain("%s: buffer %d was released before the GPU ran", d->pipeline->kernel->name, i);
  gpu.dispatches++;
  if (msl_run(&d->launch)) fake_complain("%s", msl_fault_text());
  msl_forget();
}

static uint32_t random_below(uint32_t n) {
  gpu.shuffle = gpu.shuffle * 1664525u + 1013904223u;
  return (gpu.shuffle >> 8) % n;
}

/* The dispatches of a batch in any order. */
static void run_batch(fake_dispatch **list, int count) {
  for (int i = count; i > 1; i--) {
    const uint32_t j = random_below((uint32_t)i);
    fake_dispatch *swap = list[i - 1];
    list[i - 1] = list[j], list[j] = swap;
  }
  for (int i = 0; i < count; i++) run_dispatch(list[i]);
}

/* most: a command buffer that fails has done a part of its work. */
static void run_dispatches(const fake_commands *c, int most) {
  fake_dispatch **batch = calloc((size_t)c->count + 1, sizeof *batch), *d = c->first;
  if (!batch) abort();
  for (int done = 0; d && done < most;) {
    int n = 0;
    const uint32_t number = d->launch.batch;
    for (; d && d->launch.batch == number && done < most; d = d->next, done++) batch[n++] = d;
    run_batch(batch, n);
  }
  free(batch);
}

static void fail(fake_commands *c, NSInteger code, const char *text) {
  c->status = FAKE_STATUS_ERROR, c->error = fake_error_new(code, text);
}

static void run_commands(fake_commands *c) {
  gpu.sums++;
  if (!gpu.lost && fake_refuses()) {
    run_dispatches(c, c->count / 2);
    gpu.lost = gpu.how == FAKE_FAIL_REMOVED;
    if (!gpu.lost)
      fail(c, gpu.how, gpu.how == FAKE_FAIL_MEMORY ? "Insufficient Memory" : "Internal Error");
  } else if (!gpu.lost) {
    run_dispatches(c, c->count);
    c->status = FAKE_STATUS_COMPLETED;
    if (c->event) c->event->value = c->value; /* one that fails does not come to its signal */
  }
  if (gpu.lost) fail(c, FAKE_FAIL_REMOVED, "Device Removed");
}

/* Everything that was committed up to c. */
static void drain(fake_queue *q, const fake_commands *c) {
  pthread_mutex_lock(&lock);
  while (q->first && c->status < FAKE_STATUS_COMPLETED) {
    fake_commands *next = q->first;
    q->first = next->next;
    if (!q->first) q->last = NULL;
    run_commands(next);
    q->open--, gpu.completed++;
    fake_release(&next->o);
  }
  pthread_mutex_unlock(&lock);
}

/* ---- queues ---------------------------------------------------------------------------------- */

static void queue_free(id o) {
  fake_queue *q = (fake_queue *)o;
  if (q->first) fake_complain("a command queue is released before its work was waited for");
  fake_release((id)q->residency);
}

/* newCommandQueue: "up to 64 uncompleted command buffers"; the next commandBuffer call blocks. */
static id queue_commands(fake_queue *q, SEL s) {
  (void)s;
  if (fake_refuses()) return NULL;
  if (q->open >= 64) fake_complain("more than 64 command buffers are not completed");
  fake_commands *c = (fake_commands *)fake_new(&fake_class_commands);
  c->queue = (fake_queue *)fake_retain(&q->o), q->open++;
  return fake_autorelease(&c->o);
}

static void queue_residency(fake_queue *q, SEL s, fake_residency *r) {
  (void)s;
  if (q->residency) fake_complain("a queue gets a second residency set");
  q->residency = (fake_residency *)fake_retain(&r->o);
}
static const fake_method queue_methods[] = {
    FAKE_METHOD("commandBuffer", queue_commands, "@16@0:8"),
    FAKE_METHOD("addResidencySet:", queue_residency, "v24@0:8@16"),
    {0}};
FAKE_CLASS(fake_class_queue, "MTLCommandQueue", fake_queue, queue_free, queue_methods, NULL)

/* ---- command buffers ------------------------------------------------------------------------- */

static void dispatch_free(fake_dispatch *d) {
  fake_release(&d->pipeline->o);
  for (int i = 0; i < FAKE_SLOTS; i++)
    if (d->bound[i])
      fake_release(&d->bound[i]->o);
    else
      free(d->launch.buffer[i].at);
  free(d);
}

static void commands_free(id o) {
  fake_commands *c = (fake_commands *)o;
  if (c->status < FAKE_STATUS_COMMITTED) c->queue->open--;
  for (fake_dispatch *d = c->first, *next; d; d = next) next = d->next, dispatch_free(d);
  fake_release(c->error), fake_release(&c->queue->o);
  if (c->event) fake_release(&c->event->o);
}

static id commands_encoder(fake_commands *c, SEL s, NSUInteger type) {
  (void)s;
  if (fake_refuses()) return NULL;
  /* "A command buffer can have only one active command encoder at a time." */
  if (c->encoding) fake_complain("a second encoder on a command buffer");
  if (c->status) fake_complain("an encoder on a command buffer that was committed");
  fake_encoder *e = (fake_encoder *)fake_new(&fake_class_encoder);
  e->commands = (fake_commands *)fake_retain(&c->o);
  e->concurrent = type == 1, e->batch = ++gpu.batch, c->encoding = true;
  return fake_autorelease(&e->o);
}

/* commit: once, after endEncoding. */
static void commands_commit(fake_commands *c, SEL s) {
  (void)s;
  fake_queue *q = c->queue;
  if (c->encoding) fake_complain("commit before endEncoding");
  if (q->residency && q->residency->pending)
    fake_complain("commit while a residency set has changes that are not committed");
  if (c->status) {
    fake_complain("a command buffer is committed twice");
    return;
  }
  pthread_mutex_lock(&lock);
  gpu.sums++;
  for (fake_dispatch *d = c->first; d; d = d->next)
    for (const msl_argument *a = d->launch.kernel->arguments; a->index >= 0; a++)
      if (a->writes && d->bound[a->index]) d->bound[a->index]->written = true;
  for (fake_dispatch *d = c->first; d; d = d->next)
    for (int i = 0; i < FAKE_SLOTS; i++) d->sum[i] = sum_of(d->bound[i]);
  gpu.committed++;
  c->status = FAKE_STATUS_COMMITTED;
  fake_retain(&c->o);
  if (q->last)
    q->last->next = c;
  else
    q->first = c;
  q->last = c;
  pthread_mutex_unlock(&lock);
}

static void commands_wait(fake_commands *c, SEL s) {
  (void)s;
  if (c->status < FAKE_STATUS_COMMITTED)
    fake_complain("waitUntilCompleted before commit: it would never return");
  else
    drain(c->queue, c);
}
/* encodeSignalEvent:value: between encoders; values grow. */
static void commands_signal(fake_commands *c, SEL s, fake_event *e, NSUInteger value) {
  (void)s;
  if (c->encoding || c->status) fake_complain("a signal inside of an encoder, or after the commit");
  if (!e || c->event || value <= e->value) {
    fake_complain("a signal of value %lu after %lu", value, e ? e->value : 0);
    return;
  }
  c->event = (fake_event *)fake_retain(&e->o), c->value = value, e->queue = c->queue;
}

static NSUInteger commands_status(fake_commands *c, SEL s) { return (void)s, c->status; }
static id commands_error(fake_commands *c, SEL s) { return (void)s, c->error; }
static const fake_method commands_methods[] = {
    FAKE_METHOD("computeCommandEncoderWithDispatchType:", commands_encoder, "@24@0:8Q16"),
    FAKE_METHOD("commit", commands_commit, "v16@0:8"),
    FAKE_METHOD("waitUntilCompleted", commands_wait, "v16@0:8"),
    FAKE_METHOD("status", commands_status, "Q16@0:8"),
    FAKE_METHOD("error", commands_error, "@16@0:8"),
    FAKE_METHOD("encodeSignalEvent:value:", commands_signal, "v32@0:8@16Q24"),
    {0}};
FAKE_CLASS(fake_class_commands, "MTLCommandBuffer", fake_commands, commands_free, commands_methods,
           NULL)

/* ---- shared events --------------------------------------------------------------------------- */

static NSUInteger event_value(fake_event *e, SEL s) { return (void)s, e->value; }

/* The command buffer that will signal this value or a later one. NULL: none is committed. */
static fake_commands *signaller(const fake_event *e, NSUInteger value) {
  fake_commands *c = e->queue ? e->queue->first : NULL;
  while (c && (c->event != e || c->value < value)) c = c->next;
  return c;
}

/* waitUntilSignaledValue:timeoutMS: false after the time. A late GPU has not done it by then. */
static bool event_wait(fake_event *e, SEL s, NSUInteger value, NSUInteger ms) {
  (void)s, (void)ms;
  if (e->value >= value) return true;
  if (gpu.late > 0) {
    gpu.late--;
    return false;
  }
  pthread_mutex_lock(&lock);
  fake_commands *c = signaller(e, value);
  if (c) fake_retain(&c->o);
  pthread_mutex_unlock(&lock);
  if (c) drain(c->queue, c), fake_release(&c->o);
  return e->value >= value;
}
static const fake_method event_methods[] = {
    FAKE_METHOD("signaledValue", event_value, "Q16@0:8"),
    FAKE_METHOD("waitUntilSignaledValue:timeoutMS:", event_wait, "B32@0:8Q16Q24"),
    {0}};
FAKE_CLASS(fake_class_event, "MTLSharedEvent", fake_event, NULL, event_methods, NULL)

/* ---- encoders -------------------------------------------------------------------------------- */

static void forget(fake_encoder *e) {
  for (int i = 0; i < FAKE_SLOTS; i++) free(e->slot[i].bytes);
  memset(e->slot, 0, sizeof e->slot);
}

/* endEncoding: "must be called before the encoder is released". */
static void encoder_free(id o) {
  fake_encoder *e = (fake_encoder *)o;
  if (!e->ended) fake_complain("an encoder is released before endEncoding");
  forget(e);
  fake_release(&e->commands->o);
}

static bool usable(const fake_encoder *e, const char *what) {
  if (e->ended) fake_complain("%s after endEncoding", what);
  return !e->ended;
}

static void encoder_pipeline(fake_encoder *e, SEL s, fake_function *p) {
  (void)s;
  if (!fake_is(&p->o, &fake_class_pipeline))
    fake_complain("setComputePipelineState: not a pipeline");
  if (usable(e, "setComputePipelineState:")) e->pipeline = p;
}

/* 31 buffers ("Metal feature set tables"), and an offset inside of the buffer. */
static void encoder_buffer(fake_encoder *e, SEL s, fake_buffer *b, NSUInteger at, NSUInteger i) {
  (void)s;
  if (!usable(e, "setBuffer:offset:atIndex:")) return;
  if (i >= FAKE_SLOTS || !b || at >= b->size) {
    fake_complain("setBuffer: index %lu, offset %lu of a buffer of %lu bytes", i, at,
                  b ? b->size : 0);
    return;
  }
  free(e->slot[i].bytes);
  e->slot[i].buffer = b, e->slot[i].bytes = NULL, e->slot[i].at = at;
}

/* setBytes:length:atIndex: "for data smaller than 4 KB". */
static void encoder_bytes(fake_encoder *e, SEL s, const void *bytes, NSUInteger size,
                          NSUInteger i) {
  (void)s;
  if (!usable(e, "setBytes:length:atIndex:")) return;
  if (i >= FAKE_SLOTS || !size || size > 4096) {
    fake_complain("setBytes: index %lu, %lu bytes; 1 to 4096 are allowed", i, size);
    return;
  }
  free(e->slot[i].bytes);
  e->slot[i].buffer = NULL, e->slot[i].size = size;
  e->slot[i].bytes = memcpy(malloc(size), bytes, size);
}

static void encoder_barrier(fake_encoder *e, SEL s, NSUInteger scope) {
  (void)s;
  if (scope != 1) fake_complain("memoryBarrierWithScope: %lu; ours are of buffers", scope);
  if (usable(e, "memoryBarrierWithScope:")) e->batch = ++gpu.batch, gpu.barriers++;
}

static void encoder_end(fake_encoder *e, SEL s) {
  (void)s;
  if (usable(e, "endEncoding")) e->ended = true, e->commands->encoding = false;
}

/* Every argument of the kernel is bound: to enough bytes for one element, at an offset that its
 * type allows (setBuffer:offset:atIndex: "align the offset to the data type"), and to a buffer if
 * the kernel writes to it. */
static bool check_arguments(const fake_encoder *e) {
  const msl_kernel *k = e->pipeline->kernel;
  bool ok = true;
  for (const msl_argument *a = k->arguments; a->index >= 0; a++) {
    const fake_buffer *b = e->slot[a->index].buffer;
    const char *why = NULL;
    if (!b && !e->slot[a->index].bytes)
      why = "is not bound";
    else if (!b && a->writes)
      why = "is written to, and bound to bytes";
    else if (b && a->align && e->slot[a->index].at % a->align)
      why = "is bound at an offset that its type does not allow";
    else if (a->bytes && (b ? b->size - e->slot[a->index].at : e->slot[a->index].size) < a->bytes)
      why = "is bound to less than one element";
    if (why) fake_complain("%s: argument %s (%d) %s", k->name, a->name, a->index, why), ok = false;
  }
  return ok;
}

/* dispatchThreadgroups:threadsPerThreadgroup: at most maxTotalThreadsPerThreadgroup threads; ours
 * are whole simdgroups in one dimension, because the kernels reduce over them. */
static bool check_grid(const fake_encoder *e, MTLSize groups, MTLSize threads) {
  const NSUInteger n = threads.height == 1 && threads.depth == 1 ? threads.width : 0;
  const char *name = e->pipeline->kernel->name;
  if (!groups.width || !groups.height || !groups.depth) fake_complain("%s: an empty grid", name);
  if (!n || n > MSL_GROUP_THREADS || n % 32)
    fake_complain("%s: %lu threads a group; whole simdgroups up to %d", name, n, MSL_GROUP_THREADS);
  return groups.width && groups.height && groups.depth && n && n <= MSL_GROUP_THREADS &&
         n % 32 == 0;
}

static void fill(fake_encoder *e, fake_dispatch *d) {
  d->pipeline = (fake_function *)fake_retain(&e->pipeline->o);
  d->launch.kernel = e->pipeline->kernel;
  d->launch.batch = e->batch;
  d->launch.constants = e->pipeline->constants;
  memcpy(d->launch.constant, e->pipeline->value, sizeof d->launch.constant);
  for (int i = 0; i < FAKE_SLOTS; i++) {
    fake_buffer *b = e->slot[i].buffer;
    if (b) {
      d->bound[i] = (fake_buffer *)fake_retain(&b->o);
      d->launch.buffer[i].at = b->data + e->slot[i].at;
      d->launch.buffer[i].bytes = b->size - e->slot[i].at;
    } else if (e->slot[i].bytes) {
      d->launch.buffer[i].at = e->slot[i].bytes, d->launch.buffer[i].bytes = e->slot[i].size;
      e->slot[i].bytes = NULL; /* moved */
    }
  }
}

static void encoder_dispatch(fake_encoder *e, SEL s, MTLSize groups, MTLSize threads) {
  (void)s;
  if (!usable(e, "dispatchThreadgroups:")) return;
  if (!e->pipeline) {
    fake_complain("a dispatch without a pipeline");
    return;
  }
  if (check_grid(e, groups, threads) && check_arguments(e)) {
    fake_dispatch *d = calloc(1, sizeof *d);
    if (!d) abort();
    fill(e, d);
    d->launch.groups[0] = (uint32_t)groups.width, d->launch.groups[1] = (uint32_t)groups.height;
    d->launch.groups[2] = (uint32_t)groups.depth, d->launch.threads = (uint32_t)threads.width;
    fake_commands *c = e->commands;
    if (c->last)
      c->last->next = d;
    else
      c->first = d;
    c->last = d, c->count++, gpu.encoded++;
  }
  forget(e);
  if (!e->concurrent) e->batch = ++gpu.batch;
}
static const fake_method encoder_methods[] = {
    FAKE_METHOD("setComputePipelineState:", encoder_pipeline, "v24@0:8@16"),
    FAKE_METHOD("setBuffer:offset:atIndex:", encoder_buffer, "v40@0:8@16Q24Q32"),
    FAKE_METHOD("setBytes:length:atIndex:", encoder_bytes, "v40@0:8r^v16Q24Q32"),
    FAKE_METHOD("dispatchThreadgroups:threadsPerThreadgroup:", encoder_dispatch,
                "v64@0:8{MTLSize=QQQ}16{MTLSize=QQQ}40"),
    FAKE_METHOD("memoryBarrierWithScope:", encoder_barrier, "v24@0:8Q16"),
    FAKE_METHOD("endEncoding", encoder_end, "v16@0:8"),
    {0}};
FAKE_CLASS(fake_class_encoder, "MTLComputeCommandEncoder", fake_encoder, encoder_free,
           encoder_methods, NULL)
