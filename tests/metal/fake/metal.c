/* metal.c - device, memory, library and pipelines of the fake Metal; see metal.h. */
#include "tests/metal/fake/metal.h"

#include "tests/metal/fake/fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned long most_bytes;
static int macos = 15;
void fake_set_most_bytes(unsigned long bytes) { most_bytes = bytes; }
void fake_set_macos(int version) { macos = version; }

/* Limits for programs that cannot call fake_set_most_bytes. */
static NSUInteger asked(const char *variable, NSUInteger otherwise) {
  const char *text = getenv(variable);
  return text ? strtoul(text, NULL, 10) : otherwise;
}
static NSUInteger limit(void) {
  return most_bytes ? most_bytes : asked("FAKE_METAL_MOST_BYTES", (NSUInteger)1 << 36);
}

/* Methods and classes, and the system that they came with. */
bool fake_hides(const char *name) {
  static const struct {
    const char *name;
    int macos;
  } since[] = {{"newResidencySetWithDescriptor:error:", 15},
               {"setMathMode:", 15},
               {"MTLTensorDescriptor", 26}};
  for (size_t i = 0; i < sizeof since / sizeof *since; i++)
    if (!strcmp(name, since[i].name)) return macos < since[i].macos;
  return false;
}

/* ---- strings and errors ---------------------------------------------------------------------- */

static void text_free(id o) { free(((fake_text *)o)->text); }
static const char *text_utf8(fake_text *t, SEL s) { return (void)s, t->text; }
static id string_class_make(id c, SEL s, const char *text) {
  fake_text *t = (fake_text *)fake_new((const fake_class *)(void *)c);
  (void)s, t->text = strdup(text);
  return fake_autorelease(&t->o);
}
static id url_class_make(id c, SEL s, fake_text *path) {
  return string_class_make(c, s, path->text);
}
static const fake_method string_methods[] = {FAKE_METHOD("UTF8String", text_utf8, "r*16@0:8"), {0}};
static const fake_method string_class[] = {
    FAKE_METHOD("stringWithUTF8String:", string_class_make, "@24@0:8r*16"), {0}};
static const fake_method url_class[] = {
    FAKE_METHOD("fileURLWithPath:", url_class_make, "@24@0:8@16"), {0}};
FAKE_CLASS(class_string, "NSString", fake_text, text_free, string_methods, string_class)
FAKE_CLASS(class_url, "NSURL", fake_text, text_free, NULL, url_class)

id fake_string(const char *text) {
  return string_class_make((id)(uintptr_t)&class_string, NULL, text);
}

static void array_free(id o) { fake_release(((fake_array *)o)->one); }
static id array_class_make(id c, SEL s, id one) {
  fake_array *a = (fake_array *)fake_new((const fake_class *)(void *)c);
  (void)s, a->one = fake_retain(one);
  return fake_autorelease(&a->o);
}
static const fake_method array_class[] = {
    FAKE_METHOD("arrayWithObject:", array_class_make, "@24@0:8@16"), {0}};
FAKE_CLASS(class_array, "NSArray", fake_array, array_free, NULL, array_class)

static void error_free(id o) { free(((fake_error *)o)->text); }
static id error_text(fake_error *e, SEL s) { return (void)s, fake_string(e->text); }
static NSInteger error_code(fake_error *e, SEL s) { return (void)s, e->code; }
static const fake_method error_methods[] = {
    FAKE_METHOD("localizedDescription", error_text, "@16@0:8"),
    FAKE_METHOD("code", error_code, "q16@0:8"),
    {0}};
FAKE_CLASS(fake_class_error, "NSError", fake_error, error_free, error_methods, NULL)

id fake_error_new(NSInteger code, const char *text) {
  fake_error *e = (fake_error *)fake_new(&fake_class_error);
  e->code = code, e->text = strdup(text);
  return &e->o;
}

id fake_fail(id *error, const char *format, ...) {
  char text[300];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (error) *error = fake_autorelease(fake_error_new(1, text));
  return NULL;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static void buffer_free(id o) {
  fake_buffer *b = (fake_buffer *)o;
  if (b->own) memset(b->data, 0xdd, b->size), free(b->data);
}
static void *buffer_contents(fake_buffer *b, SEL s) { return (void)s, b->data; }
static NSUInteger buffer_length(fake_buffer *b, SEL s) { return (void)s, b->size; }
static const fake_method buffer_methods[] = {FAKE_METHOD("contents", buffer_contents, "^v16@0:8"),
                                             FAKE_METHOD("length", buffer_length, "Q16@0:8"),
                                             {0}};
FAKE_CLASS(fake_class_buffer, "MTLBuffer", fake_buffer, buffer_free, buffer_methods, NULL)

/* MTLDevice maxBufferLength: "the largest amount of memory, in bytes, that a GPU device can
 * allocate to a buffer". A refused one is nil. */
static bool fits(NSUInteger size) {
  if (size && size <= limit()) return true;
  fake_complain("a buffer of %lu bytes; a device takes 1 to %lu", size, limit());
  return false;
}

static id device_buffer(id d, SEL s, NSUInteger size, NSUInteger options) {
  (void)d, (void)s;
  if (options) fake_complain("a buffer with options %#lx; all of ours are shared", options);
  if (!fits(size) || fake_refuses()) return NULL;
  fake_buffer *b = (fake_buffer *)fake_new(&fake_class_buffer);
  b->own = true, b->size = size, b->data = aligned_alloc(256, (size + 255) / 256 * 256);
  if (!b->data) abort();
  memset(b->data, 0xcd, size);
  return &b->o;
}

/* newBufferWithBytesNoCopy:length:options:deallocator: "a page-aligned starting memory address",
 * and a length that "results in a page-aligned region". */
static id device_wrap(id d, SEL s, void *at, NSUInteger size, NSUInteger options, void *block) {
  const NSUInteger page = (NSUInteger)sysconf(_SC_PAGESIZE);
  (void)d, (void)s, (void)options, (void)block;
  if ((uintptr_t)at % page || size % page) {
    fake_complain("newBufferWithBytesNoCopy: %p, %lu bytes: not whole pages", at, size);
    return NULL;
  }
  if (!fits(size) || fake_refuses()) return NULL;
  fake_buffer *b = (fake_buffer *)fake_new(&fake_class_buffer);
  b->data = at, b->size = size;
  return &b->o;
}

/* ---- residency sets -------------------------------------------------------------------------- */

static void residency_free(id o) {
  fake_residency *r = (fake_residency *)o;
  if (r->count) fake_complain("a residency set is released with %zu buffers in it", r->count);
  for (size_t i = 0; i < r->count; i++) fake_release(r->list[i]);
  free(r->list);
}

static void residency_add(fake_residency *r, SEL s, id buffer) {
  (void)s;
  for (size_t i = 0; i < r->count; i++)
    if (r->list[i] == buffer) fake_complain("a buffer is added to a residency set twice");
  if (r->count == r->cap) r->list = realloc(r->list, (r->cap = r->cap * 2 + 16) * sizeof(id));
  r->list[r->count++] = fake_retain(buffer), r->pending = true;
}

static void residency_remove(fake_residency *r, SEL s, id buffer) {
  size_t i = 0;
  (void)s;
  while (i < r->count && r->list[i] != buffer) i++;
  if (i == r->count) {
    fake_complain("a buffer is removed from a residency set that does not have it");
    return;
  }
  fake_release(r->list[i]), r->list[i] = r->list[--r->count], r->pending = true;
}

static void residency_commit(fake_residency *r, SEL s) { (void)s, r->pending = false; }
/* "Simplifying GPU resource management with residency sets": additions and removals take effect
 * with commit. */
static void residency_request(fake_residency *r, SEL s) {
  (void)s;
  if (r->pending) fake_complain("requestResidency with changes that are not committed");
}
static void residency_end(fake_residency *r, SEL s) { (void)r, (void)s; }
static const fake_method residency_methods[] = {
    FAKE_METHOD("addAllocation:", residency_add, "v24@0:8@16"),
    FAKE_METHOD("removeAllocation:", residency_remove, "v24@0:8@16"),
    FAKE_METHOD("commit", residency_commit, "v16@0:8"),
    FAKE_METHOD("requestResidency", residency_request, "v16@0:8"),
    FAKE_METHOD("endResidency", residency_end, "v16@0:8"),
    {0}};
FAKE_CLASS(class_residency, "MTLResidencySet", fake_residency, residency_free, residency_methods,
           NULL)
FAKE_CLASS(class_residency_descriptor, "MTLResidencySetDescriptor", fake_plain, NULL, NULL, NULL)

FAKE_CLASS(class_tensor_descriptor, "MTLTensorDescriptor", fake_plain, NULL, NULL, NULL)

static id device_residency(id d, SEL s, id descriptor, id *error) {
  (void)d, (void)s;
  if (!descriptor || fake_refuses()) return fake_fail(error, "residency set refused");
  return fake_new(&class_residency);
}

/* ---- the library ----------------------------------------------------------------------------- */

static id options_init(fake_options *o, SEL s) { return (void)s, &o->o; } /* fast is the default */
static void options_math(fake_options *o, SEL s, NSInteger mode) { (void)s, o->safe = mode == 0; }
static void options_fast(fake_options *o, SEL s, bool fast) { (void)s, o->safe = !fast; }
static void options_language(fake_options *o, SEL s, NSUInteger version) {
  (void)o, (void)s;
  if (version != (3 << 16) + 1) fake_complain("language version %lu; bfloat needs 3.1", version);
}
static const fake_method options_methods[] = {
    FAKE_METHOD("init", options_init, "@16@0:8"),
    FAKE_METHOD("setMathMode:", options_math, "v24@0:8q16"),
    FAKE_METHOD("setFastMathEnabled:", options_fast, "v20@0:8B16"),
    FAKE_METHOD("setLanguageVersion:", options_language, "v24@0:8Q16"),
    {0}};
FAKE_CLASS(class_options, "MTLCompileOptions", fake_options, NULL, options_methods, NULL)

extern const char pe_metal_source[];

/* "setConstantValue:type:atIndex:"; all our constants are uint, MTLDataType 33. */
static void values_set(fake_values *v, SEL s, const uint32_t *value, NSUInteger type,
                       NSUInteger index) {
  (void)s;
  if (type != 33 || index >= FAKE_CONSTANTS) {
    fake_complain("function constant %lu of type %lu; ours are uint, below %d", index, type,
                  FAKE_CONSTANTS);
    return;
  }
  v->set |= 1u << index, v->value[index] = *value;
}
static const fake_method values_methods[] = {
    FAKE_METHOD("setConstantValue:type:atIndex:", values_set, "v40@0:8r^v16Q24Q32"), {0}};
FAKE_CLASS(class_values, "MTLFunctionConstantValues", fake_values, NULL, values_methods, NULL)
FAKE_CLASS(class_function, "MTLFunction", fake_function, NULL, NULL, NULL)

static uint32_t constants_of(const msl_kernel *k) {
  uint32_t bits = 0;
  for (const msl_constant *c = k->constants; c->index >= 0; c++) bits |= 1u << c->index;
  return bits;
}

/* newFunctionWithName:constantValues:error: needs a value for every constant that the function
 * uses. The executor knows those of its file; one without a value is nonsense when it runs. */
static id library_function(id library, SEL s, const fake_text *name, const fake_values *v,
                           id *error) {
  (void)library, (void)s;
  if (fake_refuses()) return fake_fail(error, "function refused");
  const msl_kernel *k = msl_find(name->text);
  if (!k) return fake_fail(error, "no function %s in the library", name->text);
  const uint32_t has = constants_of(k), set = v ? v->set : 0;
  if (set & ~has) fake_complain("%s: constants %#x do not exist", name->text, set & ~has);
  fake_function *f = (fake_function *)fake_new(&class_function);
  f->kernel = k, f->constants = set;
  if (v) memcpy(f->value, v->value, sizeof f->value);
  return &f->o;
}
static const fake_method library_methods[] = {
    FAKE_METHOD("newFunctionWithName:constantValues:error:", library_function,
                "@40@0:8@16@24o^@32"),
    {0}};
FAKE_CLASS(class_library, "MTLLibrary", fake_plain, NULL, library_methods, NULL)

/* In the shared object with the checker. */
__attribute__((weak)) void msl_check_install(void);

/* The kernels are compiled into the shared object: the text must be theirs. */
static id library_of(id *error, const fake_text *source, const fake_options *options) {
  if (strcmp(source->text, pe_metal_source)) return fake_fail(error, "the source does not compile");
  if (!options || !options->safe)
    fake_complain("a library without safe mathematics: NaN and infinity may be lost");
  if (!msl_at(0)) {
    msl_init_all();
    if (msl_check_install) msl_check_install();
  }
  return fake_new(&class_library);
}

static id device_library(id d, SEL s, const fake_text *source, const fake_options *o, id *error) {
  (void)d, (void)s;
  return fake_refuses() ? fake_fail(error, "library refused") : library_of(error, source, o);
}

/* ---- pipelines and archives ------------------------------------------------------------------ */

static void descriptor_free(id o) {
  fake_descriptor *d = (fake_descriptor *)o;
  fake_release(d->function), fake_release(d->archives), fake_release(d->url);
}
static void put(id *at, id value) { fake_retain(value), fake_release(*at), *at = value; }
static void descriptor_function(fake_descriptor *d, SEL s, id f) { (void)s, put(&d->function, f); }
static void descriptor_archives(fake_descriptor *d, SEL s, id a) { (void)s, put(&d->archives, a); }
static void descriptor_url(fake_descriptor *d, SEL s, id u) { (void)s, put(&d->url, u); }
static const fake_method pipeline_descriptor_methods[] = {
    FAKE_METHOD("setComputeFunction:", descriptor_function, "v24@0:8@16"),
    FAKE_METHOD("setBinaryArchives:", descriptor_archives, "v24@0:8@16"),
    {0}};
static const fake_method archive_descriptor_methods[] = {
    FAKE_METHOD("setUrl:", descriptor_url, "v24@0:8@16"), {0}};
FAKE_CLASS(class_pipeline_descriptor, "MTLComputePipelineDescriptor", fake_descriptor,
           descriptor_free, pipeline_descriptor_methods, NULL)
FAKE_CLASS(class_archive_descriptor, "MTLBinaryArchiveDescriptor", fake_descriptor, descriptor_free,
           archive_descriptor_methods, NULL)

static NSUInteger pipeline_threads(id p, SEL s) { return (void)p, (void)s, MSL_GROUP_THREADS; }
static NSUInteger pipeline_width(id p, SEL s) { return (void)p, (void)s, 32; }
static const fake_method pipeline_methods[] = {
    FAKE_METHOD("maxTotalThreadsPerThreadgroup", pipeline_threads, "Q16@0:8"),
    FAKE_METHOD("threadExecutionWidth", pipeline_width, "Q16@0:8"),
    {0}};
FAKE_CLASS(fake_class_pipeline, "MTLComputePipelineState", fake_function, NULL, pipeline_methods,
           NULL)

static id device_pipeline(id device, SEL s, const fake_descriptor *d, NSUInteger options,
                          id *reflection, id *error) {
  (void)device, (void)s, (void)reflection;
  const fake_function *from = (const fake_function *)d->function;
  if (options) fake_complain("a pipeline with options %#lx", options);
  if (!from || fake_refuses()) return fake_fail(error, "pipeline refused");
  fake_function *p = (fake_function *)fake_new(&fake_class_pipeline);
  p->kernel = from->kernel, p->constants = from->constants;
  memcpy(p->value, from->value, sizeof p->value);
  return &p->o;
}

static bool archive_add(id a, SEL s, const fake_descriptor *d, id *error) {
  (void)a, (void)s;
  if (!d->function || fake_refuses()) return fake_fail(error, "not archived"), false;
  return true;
}
static const char archived[] = "an archive of the fake Metal\n";
static bool archive_save(id a, SEL s, const fake_text *url, id *error) {
  (void)a, (void)s;
  FILE *f = fake_refuses() ? NULL : fopen(url->text, "w");
  if (!f) return fake_fail(error, "%s cannot be written", url->text), false;
  fputs(archived, f), fclose(f);
  return true;
}
static const fake_method archive_methods[] = {
    FAKE_METHOD("addComputePipelineFunctionsWithDescriptor:error:", archive_add, "B32@0:8@16o^@24"),
    FAKE_METHOD("serializeToURL:error:", archive_save, "B32@0:8@16o^@24"),
    {0}};
FAKE_CLASS(class_archive, "MTLBinaryArchive", fake_plain, NULL, archive_methods, NULL)

static id device_archive(id device, SEL s, const fake_descriptor *d, id *error) {
  char text[sizeof archived] = "";
  (void)device, (void)s;
  if (!d || fake_refuses()) return fake_fail(error, "archive refused");
  if (d->url) {
    FILE *f = fopen(((fake_text *)d->url)->text, "r");
    if (f && !fgets(text, sizeof text, f)) *text = '\0';
    if (f) fclose(f);
    if (strcmp(text, archived)) return fake_fail(error, "not an archive");
  }
  return fake_new(&class_archive);
}

/* ---- the device ------------------------------------------------------------------------------ */

static id device_name(id d, SEL s) { return (void)d, (void)s, fake_string("Fake M1"); }
static bool device_family(id d, SEL s, NSInteger family) {
  (void)d, (void)s;
  if (family == 5002) return macos >= 26;
  return family == 5001 || (family > 1000 && family <= 1007);
}
static bool device_unified(id d, SEL s) { return (void)d, (void)s, true; }
static NSUInteger device_working_set(id d, SEL s) {
  return (void)d, (void)s, asked("FAKE_METAL_WORKING_SET", (NSUInteger)1 << 37);
}
static NSUInteger device_most_bytes(id d, SEL s) { return (void)d, (void)s, limit(); }
static NSUInteger device_group_bytes(id d, SEL s) { return (void)d, (void)s, MSL_GROUP_MEMORY; }
static id device_queue(id d, SEL s) {
  return (void)d, (void)s, fake_refuses() ? NULL : fake_new(&fake_class_queue);
}
static id device_event(id d, SEL s) {
  return (void)d, (void)s, fake_refuses() ? NULL : fake_new(&fake_class_event);
}
static const fake_method device_methods[] = {
    FAKE_METHOD("name", device_name, "@16@0:8"),
    FAKE_METHOD("supportsFamily:", device_family, "B24@0:8q16"),
    FAKE_METHOD("hasUnifiedMemory", device_unified, "B16@0:8"),
    FAKE_METHOD("recommendedMaxWorkingSetSize", device_working_set, "Q16@0:8"),
    FAKE_METHOD("maxBufferLength", device_most_bytes, "Q16@0:8"),
    FAKE_METHOD("maxThreadgroupMemoryLength", device_group_bytes, "Q16@0:8"),
    FAKE_METHOD("newCommandQueue", device_queue, "@16@0:8"),
    FAKE_METHOD("newSharedEvent", device_event, "@16@0:8"),
    FAKE_METHOD("newBufferWithLength:options:", device_buffer, "@32@0:8Q16Q24"),
    FAKE_METHOD("newBufferWithBytesNoCopy:length:options:deallocator:", device_wrap,
                "@48@0:8^v16Q24Q32@?40"),
    FAKE_METHOD("newLibraryWithSource:options:error:", device_library, "@40@0:8@16@24o^@32"),
    FAKE_METHOD("newComputePipelineStateWithDescriptor:options:reflection:error:", device_pipeline,
                "@48@0:8@16Q24o^@32o^@40"),
    FAKE_METHOD("newBinaryArchiveWithDescriptor:error:", device_archive, "@32@0:8@16o^@24"),
    FAKE_METHOD("newResidencySetWithDescriptor:error:", device_residency, "@32@0:8@16o^@24"),
    {0}};
FAKE_CLASS(class_device, "MTLDevice", fake_plain, NULL, device_methods, NULL)
FAKE_CLASS(class_object, "NSObject", fake_plain, NULL, NULL, NULL)

const fake_class *const fake_classes[] = {&class_object,
                                          &class_string,
                                          &class_url,
                                          &class_array,
                                          &fake_class_error,
                                          &class_options,
                                          &class_values,
                                          &class_pipeline_descriptor,
                                          &class_archive_descriptor,
                                          &class_residency_descriptor,
                                          &class_tensor_descriptor,
                                          NULL};

id MTLCreateSystemDefaultDevice(void);
id MTLCreateSystemDefaultDevice(void) {
  if (!fake_living()) fake_fail_as_asked();
  return fake_refuses() ? NULL : fake_new(&class_device);
}
