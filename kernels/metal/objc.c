/* objc.c - see objc.h. */
#include "kernels/metal/objc.h"

#include "kernels/metal/mtl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool pe_metal_fail(pe_metal_error *e, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(e->text, sizeof e->text, format, args);
  va_end(args);
  for (char *c = e->text; *c; c++) /* Apple's descriptions have several lines */
    if (*c == '\n') *c = ' ';
  return false;
}

enum { LIBRARIES = 4 };

#ifdef __APPLE__
static bool libraries(const char *path[LIBRARIES], pe_metal_error *e) {
  (void)e;
  path[0] = "/usr/lib/libobjc.A.dylib";
  path[1] = "/System/Library/Frameworks/Foundation.framework/Foundation";
  path[2] = "/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics";
  path[3] = "/System/Library/Frameworks/Metal.framework/Metal";
  return true;
}
#else
static bool libraries(const char *path[LIBRARIES], pe_metal_error *e) {
  path[0] = getenv("PERIGEE_METAL");
  return path[0] ? true : pe_metal_fail(e, "there is no Metal on this system");
}
#endif

/* Never closed: classes and selectors live as long as the process. */
static bool open_libraries(void *handle[LIBRARIES], pe_metal_error *e) {
  const char *path[LIBRARIES] = {0};
  if (!libraries(path, e)) return false;
  for (int i = 0; i < LIBRARIES && path[i]; i++)
    if (!(handle[i] = dlopen(path[i], RTLD_NOW | RTLD_LOCAL)))
      return pe_metal_fail(e, "%s", dlerror());
  return true;
}

static bool find(void *const handle[LIBRARIES], const char *name, void *out, pe_metal_error *e) {
  void *symbol = NULL;
  for (int i = 0; i < LIBRARIES && handle[i] && !symbol; i++) symbol = dlsym(handle[i], name);
  memcpy(out, &symbol, sizeof symbol); /* C has no cast from an object to a function pointer */
  return symbol ? true : pe_metal_fail(e, "Metal on this system has no %s", name);
}

static bool find_all(void *const handle[LIBRARIES], pe_objc *o, pe_metal_error *e) {
  const struct {
    const char *name;
    void *out;
  } entry[] = {{"objc_msgSend", &o->send},
               {"objc_getClass", &o->get_class},
               {"object_getClass", &o->class_of},
               {"sel_registerName", &o->selector},
               {"class_getInstanceMethod", &o->method},
               {"method_getTypeEncoding", &o->encoding},
               {"objc_autoreleasePoolPush", &o->push},
               {"objc_autoreleasePoolPop", &o->pop},
               {"MTLCreateSystemDefaultDevice", &o->default_device}};
  for (size_t i = 0; i < sizeof entry / sizeof *entry; i++)
    if (!find(handle, entry[i].name, entry[i].out, e)) return false;
  return true;
}

static struct {
  pthread_once_t once;
  pe_objc table;
  bool open;
  pe_metal_error error;
} runtime = {.once = PTHREAD_ONCE_INIT};

static void open_once(void) {
  void *handle[LIBRARIES] = {0};
  runtime.open =
      open_libraries(handle, &runtime.error) && find_all(handle, &runtime.table, &runtime.error);
  if (runtime.open) pe_mtl_open(&runtime.table);
}

const pe_objc *pe_objc_open(pe_metal_error *e) {
  pthread_once(&runtime.once, open_once);
  if (runtime.open) return &runtime.table;
  *e = runtime.error;
  return NULL;
}
