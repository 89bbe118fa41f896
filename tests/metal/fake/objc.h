/* objc.h - an Objective-C runtime of one page, for tests of the Metal host on systems without one.
 *
 * Names and signatures of the exported functions are those of Apple's objc/runtime.h. Objects are
 * counted. One whose count reaches zero is kept as a zombie, so that a later message to it is
 * noticed. Complaints are printed to stderr as they come; what is left at the end of the process is
 * reported then, and the process ends with status 70 if there was anything to say.
 *
 * Threads: counts are atomic and pools belong to threads; the framework above has one lock. */
#ifndef FAKE_OBJC_H
#define FAKE_OBJC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fake_class fake_class;
typedef struct fake_object { /* begins every object */
  const fake_class *isa;
  _Atomic int refs;
} fake_object;
typedef fake_object *id;
typedef const char *SEL; /* unique: compared by address */
typedef void (*IMP)(void);

typedef struct fake_method {
  const char *selector;
  IMP run;
  const char *encoding; /* as the Objective-C compiler writes it */
} fake_method;

struct fake_class {
  const fake_class *isa; /* its metaclass; a metaclass has NULL */
  const char *name;
  const fake_method *methods; /* ends with {0} */
  size_t size;
  void (*free)(id object); /* NULL: nothing to free */
};

/* The classes of the framework, ended by NULL (metal.c). */
extern const fake_class *const fake_classes[];

#define FAKE_METHOD(selector, function, encoding)                                                  \
  { selector, (IMP)(void (*)(void))function, encoding }

/* A class and its metaclass. own: methods of objects; class_own: of the class itself. */
#define FAKE_CLASS(id, text, type, free, own, class_own)                                           \
  static const fake_class id##_meta = {NULL, text, class_own, 0, NULL};                            \
  const fake_class id = {&id##_meta, text, own, sizeof(type), free};

id fake_new(const fake_class *c); /* count 1, zeroed */
id fake_retain(id o);
void fake_release(id o);
id fake_autorelease(id o);
bool fake_is(id o, const fake_class *c);

/* One line about a broken rule. */
void fake_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool fake_hides(const char *name); /* metal.c: a method or class that the system does not have */
/* Counts a call that may fail; true: this one must (fake.h). */
bool fake_refuses(void);

#endif
