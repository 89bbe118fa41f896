/* base.c - see base.h. */
#include "runtime/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- status and error ---------------------------------------------------------------------- */

/* The text of an error is one line, but names from files may contain anything. */
static void one_line(char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

static void fill(pe_error *err, pe_status code, const char *field, const char *format, va_list ap) {
  if (!err) return;
  err->code = code;
  err->field = field;
  vsnprintf(err->text, sizeof err->text, format, ap);
  one_line(err->text);
}

pe_status pe_fail(pe_error *err, pe_status code, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  fill(err, code, NULL, format, ap);
  va_end(ap);
  return code;
}

pe_status pe_fail_field(pe_error *err, pe_status code, const char *field, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  fill(err, code, field, format, ap);
  va_end(ap);
  return code;
}

pe_status pe_nomem(pe_error *err, const char *what) {
  return pe_fail(err, PE_ENOMEM, "out of memory: %s", what);
}

pe_status pe_error_prefix(pe_error *err, const char *format, ...) {
  if (!err) return PE_EFORMAT;
  char text[sizeof err->text];
  va_list ap;
  va_start(ap, format);
  int n = vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  if (n < 0 || (size_t)n >= sizeof text - 3) return err->code; /* no room: the text matters more */
  size_t room = sizeof text - (size_t)n - 3, len = strlen(err->text);
  if (len > room) len = room;
  memcpy(text + n, ": ", 2);
  memcpy(text + n + 2, err->text, len);
  text[(size_t)n + 2 + len] = 0;
  one_line(text);
  memcpy(err->text, text, sizeof text);
  return err->code;
}

const char *pe_status_name(pe_status code) {
  static const char *const names[] = {"ok",          "memory",    "io",       "format",
                                      "unsupported", "shape",     "argument", "not_found",
                                      "limit",       "cancelled", "no_token", "unsatisfiable"};
  int i = -(int)code;
  return i >= 0 && i < (int)(sizeof names / sizeof *names) ? names[i] : "unknown";
}

/* ---- memory -------------------------------------------------------------------------------- */

static atomic_int_fast64_t live, asked, fail_at;

static bool may_alloc(void) {
  int_fast64_t n = atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed) + 1;
  int_fast64_t bad = atomic_load_explicit(&fail_at, memory_order_relaxed);
  return bad == 0 || n != bad;
}

static void *counted(void *p) {
  if (p) atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
  return p;
}

void *pe_alloc(size_t size) { return may_alloc() ? counted(malloc(size ? size : 1)) : NULL; }

void *pe_calloc(size_t count, size_t size) {
  return may_alloc() ? counted(calloc(count ? count : 1, size ? size : 1)) : NULL;
}

void *pe_realloc(void *p, size_t size) {
  if (!p) return pe_alloc(size);
  return may_alloc() ? realloc(p, size ? size : 1) : NULL;
}

void *pe_alloc_aligned(size_t size, size_t alignment) {
  void *p = NULL;
  if (!may_alloc() || posix_memalign(&p, alignment, size ? size : 1)) return NULL;
  return counted(p);
}

void pe_free(void *p) {
  if (!p) return;
  atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
  free(p);
}

int64_t pe_alloc_live(void) { return atomic_load_explicit(&live, memory_order_relaxed); }
int64_t pe_alloc_count(void) { return atomic_load_explicit(&asked, memory_order_relaxed); }

void pe_alloc_fail_at(int64_t n) {
  atomic_store_explicit(&asked, 0, memory_order_relaxed);
  atomic_store_explicit(&fail_at, n, memory_order_relaxed);
}

pe_status pe_grow(void *array, size_t *cap, size_t need, size_t element_size, pe_error *err) {
  if (need <= *cap) return PE_OK;
  size_t want = *cap + *cap / 2;
  if (want < need) want = need;
  if (want < 16) want = 16;
  uint64_t bytes;
  if (!pe_mul_size(want, element_size, &bytes) || bytes > SIZE_MAX / 2)
    return pe_nomem(err, "growing array");
  void *old, *moved;
  memcpy(&old, array, sizeof old); /* array is a T **: memcpy obeys the aliasing rules */
  if (!(moved = pe_realloc(old, bytes))) return pe_nomem(err, "growing array");
  memcpy(array, &moved, sizeof moved);
  *cap = want;
  return PE_OK;
}

/* ---- arena --------------------------------------------------------------------------------- */

struct pe_arena_chunk {
  struct pe_arena_chunk *next;
  size_t used, size;
  _Alignas(16) char bytes[];
};

/* Chunks double, so a small config takes one page and a large tree few allocations; above 1 MiB a
 * half-empty last chunk would waste more than it saves. */
enum { FIRST_CHUNK = 4096, LARGEST_CHUNK = 1 << 20 };

void *pe_arena_alloc(pe_arena *a, size_t size) {
  if (size > SIZE_MAX / 2) return NULL;
  size = (size + 15) & ~(size_t)15;
  struct pe_arena_chunk *c = a->head;
  if (!c || c->size - c->used < size) {
    size_t want = c ? c->size * 2 : FIRST_CHUNK;
    if (want > LARGEST_CHUNK) want = LARGEST_CHUNK;
    if (want < size) want = size;
    struct pe_arena_chunk *fresh = pe_alloc(sizeof *fresh + want);
    if (!fresh) return NULL;
    *fresh = (struct pe_arena_chunk){.next = c, .size = want};
    a->head = c = fresh;
  }
  void *p = c->bytes + c->used;
  c->used += size;
  return p;
}

void *pe_arena_calloc(pe_arena *a, size_t count, size_t size) {
  uint64_t bytes;
  if (!pe_mul_size(count, size, &bytes)) return NULL;
  void *p = pe_arena_alloc(a, bytes);
  return p ? memset(p, 0, bytes) : NULL;
}

char *pe_arena_dup(pe_arena *a, const void *bytes, size_t size) {
  char *p = size < SIZE_MAX ? pe_arena_alloc(a, size + 1) : NULL;
  if (!p) return NULL;
  if (size) memcpy(p, bytes, size);
  p[size] = 0;
  return p;
}

void pe_arena_free(pe_arena *a) {
  for (struct pe_arena_chunk *c = a->head, *next; c; c = next) {
    next = c->next;
    pe_free(c);
  }
  *a = (pe_arena){0};
}

/* ---- slices and growing bytes -------------------------------------------------------------- */

pe_str pe_str_c(const char *text) { return (pe_str){text, strlen(text)}; }
bool pe_str_eq(pe_str s, const char *text) { return pe_str_same(s, pe_str_c(text)); }
bool pe_str_same(pe_str a, pe_str b) {
  return a.len == b.len && (!a.len || !memcmp(a.at, b.at, a.len));
}

pe_status pe_buf_reserve(pe_buf *b, size_t more, pe_error *err) {
  if (b->cap - b->len >= more) return PE_OK;
  if (more > SIZE_MAX / 4) return pe_nomem(err, "growing bytes");
  return pe_grow(&b->data, &b->cap, b->len + more, 1, err);
}

pe_status pe_buf_put(pe_buf *b, const void *bytes, size_t n, pe_error *err) {
  if (b->cap - b->len < n) {
    pe_status rc = pe_buf_reserve(b, n, err);
    if (rc) return rc;
  }
  if (n) memcpy(b->data + b->len, bytes, n);
  b->len += n;
  return PE_OK;
}

pe_status pe_buf_byte(pe_buf *b, char c, pe_error *err) { return pe_buf_put(b, &c, 1, err); }

pe_status pe_buf_printf(pe_buf *b, pe_error *err, const char *format, ...) {
  va_list ap, again;
  va_start(ap, format);
  va_copy(again, ap);
  int n = vsnprintf(NULL, 0, format, ap);
  pe_status rc = n < 0 ? pe_fail(err, PE_EARG, "cannot format '%s'", format)
                       : pe_buf_reserve(b, (size_t)n + 1, err);
  if (!rc) {
    vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
    b->len += (size_t)n;
  }
  va_end(again);
  va_end(ap);
  return rc;
}

void pe_buf_free(pe_buf *b) {
  pe_free(b->data);
  *b = (pe_buf){0};
}

/* ---- clock --------------------------------------------------------------------------------- */

int64_t pe_clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
