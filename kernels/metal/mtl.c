/* mtl.c - see mtl.h. */
#include "kernels/metal/mtl.h"

#include <stdio.h>
#include <string.h>

enum { ARGUMENTS = 4, ENCODING = 160 };

/* A method, with the types as Objective-C compilers encode them: result, then arguments. */
typedef struct signature {
  const char *owner, *selector, *result, *argument[ARGUMENTS];
} signature;

#define ENCODED(type)                                                                              \
  _Generic((type *)0, void *                                                                       \
           : "v", pe_id *                                                                          \
           : "@", bool *                                                                           \
           : "B", pe_nsuint *                                                                      \
           : "Q", pe_nsint *                                                                       \
           : "q", double *                                                                         \
           : "d", pe_sel *                                                                         \
           : ":", const char **                                                                    \
           : "*", pe_id **                                                                         \
           : "^@", pe_block *                                                                      \
           : "@?", pe_size3 *                                                                      \
           : "{QQQ}", void **                                                                      \
           : "^v", const void **                                                                   \
           : "^v")
#define SIGNATURE_0(owner, R, name, sel) {#owner, sel, ENCODED(R), {0}},
#define SIGNATURE_1(owner, R, name, sel, A) {#owner, sel, ENCODED(R), {ENCODED(A)}},
#define SIGNATURE_2(owner, R, name, sel, A, B) {#owner, sel, ENCODED(R), {ENCODED(A), ENCODED(B)}},
#define SIGNATURE_3(owner, R, name, sel, A, B, C)                                                  \
  {#owner, sel, ENCODED(R), {ENCODED(A), ENCODED(B), ENCODED(C)}},
#define SIGNATURE_4(owner, R, name, sel, A, B, C, D)                                               \
  {#owner, sel, ENCODED(R), {ENCODED(A), ENCODED(B), ENCODED(C), ENCODED(D)}},
static const signature signatures[PE_MTL_METHOD_COUNT] = {
    PE_MTL_METHODS(SIGNATURE_0, SIGNATURE_1, SIGNATURE_2, SIGNATURE_3, SIGNATURE_4)};

pe_mtl_table pe_mtl;

void pe_mtl_open(const pe_objc *o) {
  pe_mtl.send = o->send, pe_mtl.get_class = o->get_class;
  for (int i = 0; i < PE_MTL_METHOD_COUNT; i++) pe_mtl.sel[i] = o->selector(signatures[i].selector);
}

pe_id pe_mtl_new(const char *class_name) {
  return pe_mtl_init(pe_mtl_alloc(pe_mtl.get_class(class_name)));
}

pe_id pe_mtl_string_of(const char *text) {
  return pe_mtl_string(pe_mtl.get_class("NSString"), text);
}

bool pe_mtl_has(pe_id object, pe_mtl_method method) {
  return pe_mtl_responds(object, pe_mtl.sel[method]);
}

bool pe_mtl_failed(pe_metal_error *e, const char *what, pe_id error) {
  const char *text = pe_mtl_text(pe_mtl_error_text(error));
  return pe_metal_fail(e, "%s: %s", what, text ? text : "Metal does not say why");
}

/* ---- the self-test --------------------------------------------------------------------------- */

/* "v40@0:8r^v16Q24Q32" without the offsets, the qualifiers that do not change a call, and the names
 * of structures: "v@:^vQQ". */
static void strip(const char *in, char *out, size_t size) {
  char *const end = out + size - 1;
  for (; *in && out < end; in++) {
    if (strchr("0123456789rnNoORV", *in)) continue;
    *out++ = *in;
    if (*in == '{' && strchr(in, '=')) in = strchr(in, '=');
  }
  *out = '\0';
}

static bool check_one(const pe_objc *o, pe_id object, const signature *s, char line[ENCODING * 3]) {
  char want[ENCODING], have[ENCODING];
  pe_method method = o->method(o->class_of(object), o->selector(s->selector));
  int n = snprintf(want, sizeof want, "%s@:", s->result);
  for (int i = 0; i < ARGUMENTS && s->argument[i]; i++)
    n += snprintf(want + n, sizeof want - (size_t)n, "%s", s->argument[i]);
  if (!method) {
    snprintf(line, ENCODING * 3, "%s has no method %s", s->owner, s->selector);
    return false;
  }
  strip(o->encoding(method), have, sizeof have);
  snprintf(line, ENCODING * 3, "%s %s has the signature %s, we call it as %s", s->owner,
           s->selector, have, want);
  return !strcmp(want, have);
}

int pe_mtl_check(const pe_objc *o, pe_id object, const char *owner,
                 void (*report)(void *ctx, const char *line), void *ctx) {
  int wrong = 0;
  char line[ENCODING * 3];
  for (int i = 0; i < PE_MTL_METHOD_COUNT; i++)
    if (!strcmp(signatures[i].owner, owner) && !check_one(o, object, &signatures[i], line))
      wrong++, report(ctx, line);
  return wrong;
}
