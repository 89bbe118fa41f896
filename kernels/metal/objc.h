/* objc.h - the little of the Objective-C runtime that a C program needs to talk to Metal.
 *
 * Nothing of Apple's is included or linked. libobjc, Foundation, CoreGraphics and Metal are opened
 * when the first device is, so one executable starts on systems without them, and the same sources
 * build everywhere. CoreGraphics is opened because a command-line tool gets no default device
 * without it.
 *
 * On other systems there is no Metal. Tests name a shared object with the same entry points in
 * PERIGEE_METAL (tests/metal/fake); it is opened in place of the frameworks. Without the variable,
 * opening fails. On macOS the variable is not looked at.
 *
 * Ownership follows Cocoa: an object from a method whose name begins with `new` or `alloc` belongs
 * to the caller, who releases it; all others belong to the innermost pool of the thread. Every
 * entry point of kernels/metal that makes such objects pushes and pops a pool.
 *
 * Threads: opened once, by any thread; the table is constant afterwards. */
#ifndef PE_METAL_OBJC_H
#define PE_METAL_OBJC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pe_objc_object *pe_id; /* `id`; NULL is nil */
typedef struct pe_objc_selector *pe_sel;
typedef struct pe_objc_method *pe_method;
typedef unsigned long pe_nsuint; /* NSUInteger and NSInteger of 64-bit systems */
typedef long pe_nsint;
typedef struct pe_size3 { /* MTLSize */
  pe_nsuint width, height, depth;
} pe_size3;

/* What went wrong, for people: one line without a final stop. {0}: nothing did. */
typedef struct pe_metal_error {
  bool lost; /* the device is gone or refuses all further work */
  bool room; /* memory ran out */
  char text[240];
} pe_metal_error;

/* Fills e and returns false: `return pe_metal_fail(e, "...")`. */
bool pe_metal_fail(pe_metal_error *e, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The entry points. A method is called through `send`, cast to the type of that method: a variable,
 * because gcc turns a direct call through a foreign type into a trap. */
typedef struct pe_objc {
  void (*send)(void); /* objc_msgSend */
  pe_id (*get_class)(const char *name);
  pe_id (*class_of)(pe_id object); /* object_getClass */
  pe_sel (*selector)(const char *name);
  pe_method (*method)(pe_id class, pe_sel selector); /* class_getInstanceMethod */
  const char *(*encoding)(pe_method method);         /* method_getTypeEncoding */
  void *(*push)(void);                               /* objc_autoreleasePoolPush */
  void (*pop)(void *pool);
  pe_id (*default_device)(void); /* MTLCreateSystemDefaultDevice */
} pe_objc;

/* The entry points, opened by the first call; NULL: Metal cannot be opened, and e says why. */
const pe_objc *pe_objc_open(pe_metal_error *e);

#endif
