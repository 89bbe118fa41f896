/* objc.c - classes, selectors, counts, pools and objc_msgSend; see objc.h. */
#include "tests/metal/fake/objc.h"

#include "tests/metal/fake/fake.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- complaints and failures ----------------------------------------------------------------- */

static _Atomic long complaints, living, calls, fail_at;

void fake_complain(const char *format, ...) {
  va_list args;
  va_start(args, format);
  atomic_fetch_add(&complaints, 1);
  fputs("fake metal: ", stderr), vfprintf(stderr, format, args), fputc('\n', stderr);
  va_end(args);
}

long fake_complaints(void) { return complaints; }
long fake_forgive(void) { return atomic_exchange(&complaints, 0); }
long fake_living(void) { return living; }
long fake_calls(void) { return calls; }

void fake_arm(long n); /* called by fake_fail_at in commands.c, which knows the device */
void fake_arm(long n) {
  calls = 0;
  fail_at = n;
}

bool fake_refuses(void) { return atomic_fetch_add(&calls, 1) + 1 == fail_at; }

/* ---- selectors and classes ------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

SEL sel_registerName(const char *name) {
  static const char *known[256];
  static int count;
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < count && strcmp(known[i], name)) i++;
  if (i == count && count < 256) known[count++] = strdup(name);
  SEL s = i < count ? known[i] : NULL;
  pthread_mutex_unlock(&lock);
  if (!s) fake_complain("more than 256 selectors");
  return s;
}

const fake_class *objc_getClass(const char *name);
const fake_class *objc_getClass(const char *name) {
  for (int i = 0; fake_classes[i] && !fake_hides(name); i++)
    if (!strcmp(fake_classes[i]->name, name)) return fake_classes[i];
  return NULL;
}

const fake_class *object_getClass(id o);
const fake_class *object_getClass(id o) { return o ? o->isa : NULL; }

bool fake_is(id o, const fake_class *c) { return o && o->isa == c; }

/* ---- objects --------------------------------------------------------------------------------- */

static const fake_method none[] = {{0}};
static const fake_class zombie = {NULL, "zombie", none, 0, NULL};

id fake_new(const fake_class *c) {
  id o = calloc(1, c->size);
  if (!o) abort();
  o->isa = c, o->refs = 1;
  atomic_fetch_add(&living, 1);
  return o;
}

id fake_retain(id o) {
  if (o) atomic_fetch_add(&o->refs, 1);
  return o;
}

/* Classes are objects that live for ever. */
static bool is_class(id o) { return o->isa && !o->isa->isa; }

/* Kept, so that a later message is noticed; in a list, so that no tool takes them for lost. */
static void bury(id o) {
  static id *graves;
  static size_t count;
  pthread_mutex_lock(&lock);
  if ((count & (count - 1)) == 0) graves = realloc(graves, (2 * count + 1) * sizeof *graves);
  if (!graves) abort();
  graves[count++] = o, o->isa = &zombie;
  pthread_mutex_unlock(&lock);
}

void fake_release(id o) {
  if (o && o->isa == &zombie) fake_complain("an object is released once too often");
  if (!o || is_class(o) || atomic_fetch_sub(&o->refs, 1) != 1) return;
  if (o->isa->free) o->isa->free(o);
  bury(o);
  atomic_fetch_sub(&living, 1);
}

/* ---- pools ----------------------------------------------------------------------------------- */

enum { POOLED = 65536 };
static _Thread_local id pooled[POOLED];
static _Thread_local long pool_count, pool_depth;

/* Without a pool the object would never be released ("Using Autorelease Pool Blocks"). */
id fake_autorelease(id o) {
  if (!pool_depth) fake_complain("an object of %s is autoreleased without a pool", o->isa->name);
  if (pool_count == POOLED) fake_complain("more than %d objects in a pool", POOLED);
  if (pool_depth && pool_count < POOLED) pooled[pool_count++] = o;
  return o;
}

void *objc_autoreleasePoolPush(void);
void *objc_autoreleasePoolPush(void) {
  pool_depth++;
  return (void *)(uintptr_t)(pool_count + 1);
}

void objc_autoreleasePoolPop(void *pool);
void objc_autoreleasePoolPop(void *pool) {
  const long to = (long)(uintptr_t)pool - 1;
  if (!pool_depth || to > pool_count) fake_complain("a pool is popped that is not the innermost");
  if (pool_depth) pool_depth--;
  while (pool_count > to) fake_release(pooled[--pool_count]);
}

/* ---- methods of all objects ------------------------------------------------------------------ */

static const fake_method *find(const fake_class *c, SEL s);

static id o_retain(id o, SEL s) { return (void)s, fake_retain(o); }
static void o_release(id o, SEL s) { (void)s, fake_release(o); }
static id o_init(id o, SEL s) { return (void)s, o; }
static bool o_responds(id o, SEL s, SEL which) { return (void)s, find(o->isa, which) != NULL; }
static id c_alloc(id c, SEL s) {
  return (void)s, fake_refuses() ? NULL : fake_new((const fake_class *)(void *)c);
}

static const fake_method object_methods[] = {
    FAKE_METHOD("retain", o_retain, "@16@0:8"),
    FAKE_METHOD("release", o_release, "v16@0:8"),
    FAKE_METHOD("init", o_init, "@16@0:8"),
    FAKE_METHOD("respondsToSelector:", o_responds, "B24@0:8:16"),
    {0}};
static const fake_method class_methods[] = {FAKE_METHOD("alloc", c_alloc, "@16@0:8"), {0}};

static const fake_method *look(const fake_method *m, SEL s) {
  for (; m && m->selector; m++)
    if (!strcmp(m->selector, s)) return m;
  return NULL;
}

static const fake_method *find(const fake_class *c, SEL s) {
  if (fake_hides(s)) return NULL;
  const fake_method *m = look(c->methods, s);
  if (!m && !c->isa && c != &zombie) m = look(class_methods, s);
  return m ? m : look(object_methods, s);
}

const fake_method *class_getInstanceMethod(const fake_class *c, SEL s);
const fake_method *class_getInstanceMethod(const fake_class *c, SEL s) {
  return c ? find(c, s) : NULL;
}
const char *method_getTypeEncoding(const fake_method *m);
const char *method_getTypeEncoding(const fake_method *m) { return m->encoding; }

/* ---- objc_msgSend ---------------------------------------------------------------------------- */

static long nothing(void) { return 0; }

/* What a message runs. Messages to nil return 0. */
__attribute__((used, visibility("hidden"))) IMP fake_lookup(id o, SEL s) {
  if (!o) return (IMP)nothing;
  if (o->isa == &zombie) {
    fake_complain("message %s to an object that was released for good", s);
    return (IMP)nothing;
  }
  const fake_method *m = find(o->isa, s);
  if (m) return m->run;
  fake_complain("%s has no method %s", o->isa->name, s);
  return (IMP)nothing;
}

/* Keeps every register that may hold an argument, asks fake_lookup and jumps there. */
#if defined(__aarch64__)
__asm__(".text\n.globl objc_msgSend\n.type objc_msgSend,%function\nobjc_msgSend:\n"
        "stp x29, x30, [sp, #-224]!\nmov x29, sp\n"
        "stp x0, x1, [sp, #16]\nstp x2, x3, [sp, #32]\nstp x4, x5, [sp, #48]\n"
        "stp x6, x7, [sp, #64]\nstr x8, [sp, #80]\n"
        "stp q0, q1, [sp, #96]\nstp q2, q3, [sp, #128]\nstp q4, q5, [sp, #160]\n"
        "stp q6, q7, [sp, #192]\nbl fake_lookup\nmov x17, x0\n"
        "ldp x0, x1, [sp, #16]\nldp x2, x3, [sp, #32]\nldp x4, x5, [sp, #48]\n"
        "ldp x6, x7, [sp, #64]\nldr x8, [sp, #80]\n"
        "ldp q0, q1, [sp, #96]\nldp q2, q3, [sp, #128]\nldp q4, q5, [sp, #160]\n"
        "ldp q6, q7, [sp, #192]\nldp x29, x30, [sp], #224\nbr x17\n");
#elif defined(__x86_64__)
__asm__(".text\n.globl objc_msgSend\n.type objc_msgSend,@function\nobjc_msgSend:\n"
        "pushq %rbp\nmovq %rsp, %rbp\nsubq $176, %rsp\n"
        "movq %rdi, -8(%rbp)\nmovq %rsi, -16(%rbp)\nmovq %rdx, -24(%rbp)\n"
        "movq %rcx, -32(%rbp)\nmovq %r8, -40(%rbp)\nmovq %r9, -48(%rbp)\n"
        "movups %xmm0, -64(%rbp)\nmovups %xmm1, -80(%rbp)\nmovups %xmm2, -96(%rbp)\n"
        "movups %xmm3, -112(%rbp)\ncallq fake_lookup\nmovq %rax, %r11\n"
        "movq -8(%rbp), %rdi\nmovq -16(%rbp), %rsi\nmovq -24(%rbp), %rdx\n"
        "movq -32(%rbp), %rcx\nmovq -40(%rbp), %r8\nmovq -48(%rbp), %r9\n"
        "movups -64(%rbp), %xmm0\nmovups -80(%rbp), %xmm1\nmovups -96(%rbp), %xmm2\n"
        "movups -112(%rbp), %xmm3\nleave\njmpq *%r11\n");
#endif

/* ---- the end --------------------------------------------------------------------------------- */

/* A test that forgets to ask cannot pass: what is left becomes the status of the process. */
__attribute__((destructor)) static void report(void) {
  if (living) fake_complain("%ld objects were never released", (long)living);
  if (complaints && !getenv("FAKE_METAL_QUIET")) {
    fflush(NULL);
    _exit(70);
  }
}
