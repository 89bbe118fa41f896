/* gpu.c - the device and its memory; see gpu.h. */
#include "kernels/metal/gpu_parts.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- opening --------------------------------------------------------------------------------- */

static void learn_facts(pe_gpu *g) {
  pe_gpu_facts *f = &g->facts;
  const char *name = pe_mtl_text(pe_mtl_device_name(g->device));
  snprintf(f->name, sizeof f->name, "%s", name ? name : "?");
  f->metal3 = pe_mtl_device_family(g->device, PE_MTL_FAMILY_METAL3);
  f->apple7 = pe_mtl_device_family(g->device, PE_MTL_FAMILY_APPLE7);
  f->working_set = pe_mtl_device_working_set(g->device);
  f->most_bytes = pe_mtl_device_most_bytes(g->device);
  f->tensors = pe_mtl.get_class("MTLTensorDescriptor") &&
               pe_mtl_device_family(g->device, PE_MTL_FAMILY_METAL4);
  f->residency = pe_mtl_has(g->device, PE_MTL_M_device_residency);
}

/* Weights are mapped files: a GPU with memory of its own would need copies of them. Families are
 * reported but not asked for, because virtual Macs say less than they can. */
static bool check_device(pe_id device, pe_metal_error *e) {
  if (!device) return pe_metal_fail(e, "Metal has no default device");
  if (pe_mtl_device_unified(device)) return true;
  return pe_metal_fail(e, "%s has no unified memory", pe_mtl_text(pe_mtl_device_name(device)));
}

bool pe_gpu_available(pe_metal_error *e) {
  const pe_objc *objc = pe_objc_open(e);
  if (!objc) return false;
  void *pool = objc->push();
  pe_id device = objc->default_device();
  const bool ok = check_device(device, e);
  pe_mtl_release(device);
  objc->pop(pool);
  return ok;
}

/* Safe mathematics: the other modes may drop tests for infinity and NaN, and reorder sums. */
static bool open_library(pe_gpu *g, const char *source, pe_metal_error *e) {
  pe_id options = pe_mtl_new("MTLCompileOptions"), error = NULL;
  if (!options) return pe_metal_fail(e, "Metal gave no compile options");
  if (pe_mtl_has(options, PE_MTL_M_options_math))
    pe_mtl_options_math(options, PE_MTL_MATH_SAFE);
  else
    pe_mtl_options_fast(options, false); /* before macOS 15 */
  pe_mtl_options_language(options, PE_MTL_LANGUAGE_3_1);
  g->library = pe_mtl_device_library(g->device, pe_mtl_string_of(source), options, &error);
  pe_mtl_release(options);
  return g->library ? true : pe_mtl_failed(e, "the kernels do not compile", error);
}

static bool open_residency(pe_gpu *g, pe_metal_error *e) {
  if (!g->facts.residency) return true;
  pe_id descriptor = pe_mtl_new("MTLResidencySetDescriptor"), error = NULL;
  g->residency = pe_mtl_device_residency(g->device, descriptor, &error);
  pe_mtl_release(descriptor);
  if (!g->residency) return pe_mtl_failed(e, "no residency set", error);
  pe_mtl_residency_commit(g->residency);
  pe_mtl_queue_residency(g->queue, g->residency);
  return true;
}

static bool open_parts(pe_gpu *g, const pe_gpu_options *o, pe_metal_error *e) {
  g->device = g->objc->default_device();
  if (!check_device(g->device, e)) return false;
  learn_facts(g);
  g->queue = pe_mtl_device_queue(g->device);
  if (!g->queue) return pe_metal_fail(e, "%s gave no command queue", g->facts.name);
  g->event = pe_mtl_device_event(g->device);
  if (!g->event) return pe_metal_fail(e, "%s gave no shared event", g->facts.name);
  if (!open_residency(g, e) || !open_library(g, o->source, e)) return false;
  if (o->archive) pe_gpu_archive_open(g, o->archive);
  return true;
}

static void close_parts(pe_gpu *g) {
  void *pool = g->objc->push();
  pe_gpu_archive_close(g);
  pe_gpu_pipelines_close(g);
  pe_id all[] = {g->residency, g->library, g->event, g->queue, g->device};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) pe_mtl_release(all[i]);
  g->objc->pop(pool);
}

/* The device of the process: a machine has one, and compiling its library takes seconds. */
static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;
static pe_gpu shared;

bool pe_gpu_take(const pe_gpu_options *o, pe_gpu **out, pe_metal_error *e) {
  const pe_objc *objc = pe_objc_open(e);
  if (!objc) return false;
  pthread_mutex_lock(&taking);
  bool ok = true;
  if (!shared.refs) {
    shared = (pe_gpu){.objc = objc, .lock = PTHREAD_MUTEX_INITIALIZER};
    void *pool = objc->push();
    ok = open_parts(&shared, o, e);
    objc->pop(pool);
    if (!ok) close_parts(&shared);
  }
  shared.refs += ok;
  *out = ok ? &shared : NULL;
  pthread_mutex_unlock(&taking);
  return ok;
}

void pe_gpu_give(pe_gpu *g) {
  if (!g) return;
  pthread_mutex_lock(&taking);
  if (!--g->refs) close_parts(g);
  pthread_mutex_unlock(&taking);
}

const pe_gpu_facts *pe_gpu_facts_of(const pe_gpu *g) { return &g->facts; }

/* ---- memory ---------------------------------------------------------------------------------- */

uint64_t pe_gpu_page(void) { return (uint64_t)sysconf(_SC_PAGESIZE); }

/* Additions to a residency set count once they are committed. */
static void make_resident(pe_gpu *g, pe_id buffer, bool resident) {
  if (!g->residency) return;
  pthread_mutex_lock(&g->lock);
  if (resident)
    pe_mtl_residency_add(g->residency, buffer);
  else
    pe_mtl_residency_remove(g->residency, buffer);
  pe_mtl_residency_commit(g->residency);
  if (resident) pe_mtl_residency_request(g->residency);
  pthread_mutex_unlock(&g->lock);
}

static bool check_size(const pe_gpu *g, uint64_t size, pe_metal_error *e) {
  if (size <= g->facts.most_bytes) return true;
  e->room = true;
  return pe_metal_fail(e, "a buffer of %llu bytes; %s takes %llu", (unsigned long long)size,
                       g->facts.name, (unsigned long long)g->facts.most_bytes);
}

static bool made_buffer(pe_gpu *g, pe_id object, uint64_t size, pe_gpu_buffer *out,
                        pe_metal_error *e) {
  if (!object) {
    e->room = true;
    return pe_metal_fail(e, "%s has no room for a buffer of %llu bytes", g->facts.name,
                         (unsigned long long)size);
  }
  *out = (pe_gpu_buffer){object, pe_mtl_buffer_contents(object), size};
  make_resident(g, object, true);
  return true;
}

bool pe_gpu_allocate(pe_gpu *g, uint64_t size, pe_gpu_buffer *out, pe_metal_error *e) {
  if (!check_size(g, size, e)) return false;
  void *pool = g->objc->push();
  pe_id object = pe_mtl_device_buffer(g->device, size, PE_MTL_STORAGE_SHARED);
  bool ok = made_buffer(g, object, size, out, e);
  g->objc->pop(pool);
  return ok;
}

bool pe_gpu_wrap(pe_gpu *g, const void *at, uint64_t size, pe_gpu_buffer *out, pe_metal_error *e) {
  if (!check_size(g, size, e)) return false;
  void *pool = g->objc->push();
  pe_id object =
      pe_mtl_device_wrap(g->device, (void *)(uintptr_t)at, size, PE_MTL_STORAGE_SHARED, NULL);
  bool ok = made_buffer(g, object, size, out, e);
  g->objc->pop(pool);
  return ok;
}

void pe_gpu_free(pe_gpu *g, pe_gpu_buffer *b) {
  if (!b->object) return;
  void *pool = g->objc->push();
  make_resident(g, b->object, false);
  pe_mtl_release(b->object);
  g->objc->pop(pool);
  *b = (pe_gpu_buffer){0};
}

/* ---- commands -------------------------------------------------------------------------------- */

bool pe_gpu_begin(pe_gpu *g, pe_commands *c, pe_metal_error *e) {
  *c = (pe_commands){0};
  if (g->lost) {
    e->lost = true;
    return pe_metal_fail(e, "%s is lost", g->facts.name);
  }
  c->pool = g->objc->push();
  c->buffer = pe_mtl_retain(pe_mtl_queue_commands(g->queue));
  c->encoder = pe_mtl_commands_encoder(c->buffer, PE_MTL_DISPATCH_CONCURRENT);
  if (c->encoder) return true;
  pe_gpu_drop(g, c);
  return pe_metal_fail(e, "%s gave no command buffer", g->facts.name);
}

void pe_commands_use(pe_commands *c, pe_id pipeline) {
  pe_mtl_encoder_pipeline(c->encoder, pipeline);
}

void pe_commands_bind(pe_commands *c, int slot, const pe_gpu_buffer *b, uint64_t at) {
  pe_mtl_encoder_buffer(c->encoder, b->object, at, (pe_nsuint)slot);
}

void pe_commands_bytes(pe_commands *c, int slot, const void *bytes, size_t size) {
  pe_mtl_encoder_bytes(c->encoder, bytes, size, (pe_nsuint)slot);
}

void pe_commands_dispatch(pe_commands *c, const uint32_t groups[3], uint32_t threads) {
  pe_mtl_encoder_dispatch(c->encoder, (pe_size3){groups[0], groups[1], groups[2]},
                          (pe_size3){threads, 1, 1});
}

void pe_commands_barrier(pe_commands *c) {
  pe_mtl_encoder_barrier(c->encoder, PE_MTL_BARRIER_BUFFERS);
}

void pe_commands_end(pe_gpu *g, pe_commands *c) {
  pe_mtl_encoder_end(c->encoder);
  g->objc->pop(c->pool);
  *c = (pe_commands){.buffer = c->buffer};
}

/* Numbers are in the order of commits, which is that of the GPU. */
void pe_gpu_commit(pe_gpu *g, pe_commands *c) {
  void *pool = g->objc->push();
  pthread_mutex_lock(&g->lock);
  c->number = ++g->numbered;
  pe_mtl_commands_signal(c->buffer, g->event, c->number);
  pe_mtl_commands_commit(c->buffer);
  pthread_mutex_unlock(&g->lock);
  g->objc->pop(pool);
}

void pe_gpu_drop(pe_gpu *g, pe_commands *c) {
  pe_mtl_encoder_end(c->encoder); /* an encoder must be ended before it goes */
  pe_mtl_release(c->buffer);
  if (c->pool) g->objc->pop(c->pool);
  *c = (pe_commands){0};
}

static bool failed_commands(pe_gpu *g, pe_id error, pe_metal_error *e) {
  const pe_nsint code = pe_mtl_error_code(error);
  e->room = code == PE_MTL_ERROR_MEMORY;
  e->lost = code == PE_MTL_ERROR_REVOKED || code == PE_MTL_ERROR_REMOVED;
  g->lost |= e->lost;
  return pe_mtl_failed(e, g->facts.name, error);
}

/* A command buffer that fails does not reach its signal: the status is looked at now and then, so
 * that a failure is noticed within WATCH_MS. */
static bool wait_for(const pe_gpu *g, const pe_commands *c, uint64_t most_ms) {
  enum { WATCH_MS = 100 };
  for (;;) {
    const uint64_t ms = most_ms < WATCH_MS ? most_ms : WATCH_MS;
    if (pe_mtl_event_wait(g->event, c->number, ms)) return true;
    if (pe_mtl_commands_status(c->buffer) >= PE_MTL_STATUS_COMPLETED) return true;
    if (most_ms <= WATCH_MS) return false;
    if (most_ms != UINT64_MAX) most_ms -= WATCH_MS;
  }
}

/* The event is signalled a moment before the status changes. If a later one has signalled as well,
 * the value does not say whether this one did. */
static bool went_well(const pe_gpu *g, const pe_commands *c) {
  pe_nsuint status = pe_mtl_commands_status(c->buffer);
  if (status < PE_MTL_STATUS_COMPLETED) {
    if (pe_mtl_event_value(g->event) == c->number) return true;
    pe_mtl_commands_wait(c->buffer);
    status = pe_mtl_commands_status(c->buffer);
  }
  return status == PE_MTL_STATUS_COMPLETED;
}

bool pe_gpu_finish(pe_gpu *g, pe_commands *c, uint64_t most_ms, bool *done, pe_metal_error *e) {
  void *pool = g->objc->push();
  bool ok = true;
  *done = wait_for(g, c, most_ms);
  if (*done) {
    ok = went_well(g, c);
    if (!ok) failed_commands(g, pe_mtl_commands_error(c->buffer), e);
    pe_mtl_release(c->buffer);
    *c = (pe_commands){0};
  }
  g->objc->pop(pool);
  return ok;
}

/* ---- the self-test --------------------------------------------------------------------------- */

/* Classes whose objects a program makes itself. */
static const char *const plain[] = {"MTLCompileOptions", "MTLFunctionConstantValues",
                                    "MTLComputePipelineDescriptor", "MTLBinaryArchiveDescriptor"};
/* Class methods; the object is the class. */
static const char *const classes[] = {"+NSObject", "+NSString", "+NSURL", "+NSArray"};

static int check_classes(const pe_objc *o, void (*report)(void *, const char *), void *ctx) {
  int wrong = 0;
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
    pe_id object = pe_mtl_new(plain[i]);
    wrong += pe_mtl_check(o, object, plain[i], report, ctx);
    pe_mtl_release(object);
  }
  for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
    wrong += pe_mtl_check(o, o->get_class(classes[i] + 1), classes[i], report, ctx);
  return wrong;
}

int pe_gpu_check(pe_gpu *g, void (*report)(void *ctx, const char *line), void *ctx) {
  pe_metal_error e = {0};
  pe_gpu_buffer b = {0};
  pe_commands c = {0};
  void *pool = g->objc->push();
  int wrong = check_classes(g->objc, report, ctx);
  pe_id error = NULL; /* a library of nonsense gives an NSError */
  pe_mtl_release(pe_mtl_device_library(g->device, pe_mtl_string_of("nonsense"), NULL, &error));
  if (!pe_gpu_allocate(g, pe_gpu_page(), &b, &e) || !pe_gpu_begin(g, &c, &e))
    report(ctx, e.text), wrong++;
  const struct {
    pe_id object;
    const char *owner;
  } living[] = {{g->device, "NSObject"},
                {pe_mtl_string_of(""), "NSString"},
                {error, "NSError"},
                {g->device, "MTLDevice"},
                {g->library, "MTLLibrary"},
                {g->queue, "MTLCommandQueue"},
                {g->event, "MTLSharedEvent"},
                {g->residency, "MTLResidencySet"},
                {g->entries ? g->entry[0].pipeline : NULL, "MTLComputePipelineState"},
                {g->archive, "MTLBinaryArchive"},
                {c.buffer, "MTLCommandBuffer"},
                {c.encoder, "MTLComputeCommandEncoder"},
                {b.object, "MTLBuffer"}};
  for (size_t i = 0; i < sizeof living / sizeof *living; i++)
    if (living[i].object)
      wrong += pe_mtl_check(g->objc, living[i].object, living[i].owner, report, ctx);
  pe_gpu_drop(g, &c);
  pe_gpu_free(g, &b);
  g->objc->pop(pool);
  return wrong;
}
