/* cuda.c - launches on an NVIDIA GPU: the kernels as PTX (tests/metal/cuda.sh), through the driver,
 * which is opened when it is asked for; see exec.h.
 *
 * Every buffer of a launch becomes an allocation of its size on the GPU and is copied there and
 * back, so that tools like compute-sanitizer know its bounds. Slots with the same memory share
 * one. */
#include "tests/metal/exec/cuda.h"

#include "tests/metal/exec/exec.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 512, NAME = 128, PATH = 512 };
typedef uint64_t address;

static struct {
  int (*init)(unsigned flags);
  int (*device)(int *out, int number);
  int (*context)(void **out, unsigned flags, int device);
  int (*load)(void **out, const void *ptx);
  int (*function)(void **out, void *module, const char *name);
  int (*global)(address *out, size_t *bytes, void *module, const char *name);
  int (*alloc)(address *out, size_t bytes);
  int (*release)(address at);
  int (*give)(address to, const void *from, size_t bytes);
  int (*take)(void *to, address from, size_t bytes);
  int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned x, unsigned y,
                unsigned z, unsigned shared, void *stream, void **arguments, void **extra);
  int (*wait)(void);
  int (*name)(int error, const char **out);
  int (*attribute)(int *out, int which, int device);
  int (*event)(void **out, unsigned flags);
  int (*record)(void *event, void *stream);
  int (*elapsed)(float *milliseconds, void *from, void *to);
} cu;

static struct {
  char name[NAME];
  void *module;
} kernels[KERNELS];
static int kernel_count;

static struct {
  int repeats; /* 0: launches are not timed */
  void *event[2];
  double seconds;
} timing;

static bool open_driver(const char **why) {
  static const struct {
    const char *name;
    void *at;
  } entry[] = {{"cuInit", &cu.init},
               {"cuDeviceGet", &cu.device},
               {"cuCtxCreate_v2", &cu.context},
               {"cuModuleLoadData", &cu.load},
               {"cuModuleGetFunction", &cu.function},
               {"cuModuleGetGlobal_v2", &cu.global},
               {"cuMemAlloc_v2", &cu.alloc},
               {"cuMemFree_v2", &cu.release},
               {"cuMemcpyHtoD_v2", &cu.give},
               {"cuMemcpyDtoH_v2", &cu.take},
               {"cuLaunchKernel", &cu.launch},
               {"cuCtxSynchronize", &cu.wait},
               {"cuGetErrorName", &cu.name},
               {"cuDeviceGetAttribute", &cu.attribute},
               {"cuEventCreate", &cu.event},
               {"cuEventRecord", &cu.record},
               {"cuEventElapsedTime", &cu.elapsed}};
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  *why = "no driver of CUDA (libcuda.so.1)";
  for (size_t i = 0; driver && i < sizeof entry / sizeof *entry; i++) {
    void *function = dlsym(driver, entry[i].name);
    if (!function) *why = entry[i].name;
    if (!function) return false;
    memcpy(entry[i].at, &function, sizeof function);
  }
  return driver != NULL;
}

static bool succeeded(int error, const char *what) {
  const char *name = "?";
  if (!error) return true;
  cu.name(error, &name);
  msl_fault("%s: %s", what, name);
  return false;
}

/* ---- modules --------------------------------------------------------------------------------- */

static char *read_text(const char *path) {
  FILE *f = fopen(path, "r");
  if (!f) return NULL;
  fseek(f, 0, SEEK_END);
  const long size = ftell(f);
  rewind(f);
  char *text = calloc(1, (size_t)size + 1);
  if (!text || fread(text, 1, (size_t)size, f) != (size_t)size) text = NULL;
  fclose(f);
  return text;
}

static bool load_module(const char *folder, const char *file, void **module) {
  char path[PATH];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  char *code = read_text(path);
  const bool ok = code && !cu.load(module, code);
  free(code);
  return ok;
}

/* modules.txt of the folder has the name of a file and of a kernel of it in every line. */
static bool load_modules(const char *folder) {
  char path[PATH], file[64], last[64] = "";
  void *module = NULL;
  snprintf(path, sizeof path, "%s/modules.txt", folder);
  FILE *list = fopen(path, "r");
  bool ok = list != NULL;
  while (ok && kernel_count < KERNELS &&
         fscanf(list, "%63s %127s", file, kernels[kernel_count].name) == 2) {
    if (strcmp(file, last)) ok = load_module(folder, strcpy(last, file), &module);
    kernels[kernel_count++].module = module;
  }
  if (list) fclose(list);
  return ok && kernel_count;
}

/* The driver is not asked for kernels that a module lacks: its memcheck reports that. */
static void *function_of(const msl_kernel *kernel, void **module) {
  char name[NAME];
  void *function = NULL;
  snprintf(name, sizeof name, "msl_%s", kernel->name);
  int i = 0;
  while (i < kernel_count && strcmp(kernels[i].name, name)) i++;
  if (i == kernel_count || cu.function(&function, kernels[i].module, name)) return NULL;
  *module = kernels[i].module;
  return function;
}

/* ---- launches -------------------------------------------------------------------------------- */

static bool set_constants(const msl_launch *l, void *module) {
  for (const msl_constant *c = l->kernel->constants; c->index >= 0; c++) {
    address at;
    size_t bytes;
    if (!(l->constants >> c->index & 1)) continue;
    if (cu.global(&at, &bytes, module, c->name)) continue; /* no kernel of the module reads it */
    if (!succeeded(cu.give(at, &l->constant[c->index], 4), c->name)) return false;
  }
  return true;
}

/* The first slot with the same memory. */
static int owner_of(const msl_launch *l, int slot) {
  int i = 0;
  while (l->buffer[i].at != l->buffer[slot].at) i++;
  return i;
}

static bool give_buffers(const msl_launch *l, msl_cuda_arguments *a) {
  for (int i = 0; i < MSL_SLOTS; i++) {
    if (!l->buffer[i].at) continue;
    const int owner = owner_of(l, i);
    if (owner < i) {
      a->buffer[i] = a->buffer[owner];
      continue;
    }
    if (!succeeded(cu.alloc(&a->buffer[i], l->buffer[i].bytes), "cuMemAlloc") ||
        !succeeded(cu.give(a->buffer[i], l->buffer[i].at, l->buffer[i].bytes), "cuMemcpyHtoD"))
      return false;
  }
  return true;
}

static void take_buffers(const msl_launch *l, const msl_cuda_arguments *a, bool ok) {
  for (const msl_argument *g = l->kernel->arguments; ok && g->index >= 0; g++)
    if (g->writes && a->buffer[g->index])
      ok =
          succeeded(cu.take(l->buffer[g->index].at, a->buffer[g->index], l->buffer[g->index].bytes),
                    "cuMemcpyDtoH");
  for (int i = 0; i < MSL_SLOTS; i++)
    if (a->buffer[i] && owner_of(l, i) == i) cu.release(a->buffer[i]);
}

static bool launch_once(const msl_launch *l, void *function, msl_cuda_arguments *a) {
  void *arguments[] = {a};
  return succeeded(cu.launch(function, l->groups[0], l->groups[1], l->groups[2], l->threads, 1, 1,
                             0, NULL, arguments, NULL),
                   l->kernel->name);
}

/* Again and again between two events, after the launch that is not counted. */
static bool time_launches(const msl_launch *l, void *function, msl_cuda_arguments *a) {
  float milliseconds = 0;
  bool ok = succeeded(cu.record(timing.event[0], NULL), "cuEventRecord");
  for (int i = 0; ok && i < timing.repeats; i++) ok = launch_once(l, function, a);
  if (ok) ok = succeeded(cu.record(timing.event[1], NULL), "cuEventRecord");
  if (ok) ok = succeeded(cu.wait(), l->kernel->name);
  if (ok)
    ok = succeeded(cu.elapsed(&milliseconds, timing.event[0], timing.event[1]),
                   "cuEventElapsedTime");
  timing.seconds += (double)milliseconds * 1e-3 / timing.repeats;
  return ok;
}

void msl_cuda_repeat(int times) {
  timing.repeats = times;
  for (int i = 0; i < 2; i++) succeeded(cu.event(&timing.event[i], 0), "cuEventCreate");
}

double msl_cuda_seconds(void) {
  const double seconds = timing.seconds;
  timing.seconds = 0;
  return seconds;
}

double msl_cuda_bandwidth(void) {
  enum { MEMORY_KHZ = 36, MEMORY_BITS = 37 }; /* as cuda.h numbers them */
  int device = 0, khz = 0, bits = 0;
  cu.device(&device, 0), cu.attribute(&khz, MEMORY_KHZ, device);
  cu.attribute(&bits, MEMORY_BITS, device);
  return 2e3 * khz * bits / 8; /* two transfers in a clock */
}

static void run_launch(const msl_launch *l) {
  msl_cuda_arguments a = {{0}};
  void *module = NULL, *function = function_of(l->kernel, &module);
  if (!function) {
    msl_fault("%s: not in the PTX", l->kernel->name);
    return;
  }
  bool ok = give_buffers(l, &a) && set_constants(l, module);
  ok = ok && launch_once(l, function, &a) && succeeded(cu.wait(), l->kernel->name);
  if (ok && timing.repeats) ok = time_launches(l, function, &a);
  take_buffers(l, &a, ok);
}

msl_cuda msl_cuda_install(const char *folder, const char **why) {
  int device;
  void *context;
  if (!open_driver(why)) return MSL_CUDA_NONE;
  *why = "no NVIDIA GPU";
  if (cu.init(0) || cu.device(&device, 0)) return MSL_CUDA_NONE;
  *why = "the GPU gives no context";
  if (cu.context(&context, 0, device)) return MSL_CUDA_BROKEN;
  *why = "the PTX cannot be loaded";
  if (!load_modules(folder)) return MSL_CUDA_BROKEN;
  msl_elsewhere = run_launch;
  return MSL_CUDA_READY;
}
