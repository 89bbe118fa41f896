/* base.h - what every file of the runtime stands on: status and error text, memory, slices, the clock.
 *
 * Errors. A function that can fail returns pe_status (0 or negative) and takes `pe_error *err` last. The text is for a
 * person: it names the thing and both numbers that disagree, in one line, without a final stop. `err` may be NULL.
 * Nothing in runtime/ prints, exits or jumps.
 *
 * Memory. All heap memory of runtime/ goes through pe_alloc and its siblings, so that a test can let the N-th
 * allocation fail and count what is still alive. They return NULL when memory is out; the caller turns that into
 * pe_nomem(err, "what"). An arena is for things that die together; a pe_buf is a growing string of bytes.
 *
 * Ownership words, used in prototypes everywhere: *borrows* (you keep it alive for me), *gives* (you must release it),
 * *takes* (it is mine now, also when I fail).
 *
 * Threads: everything here may be called from any thread; a pe_buf or pe_arena belongs to one thread at a time. */
#ifndef PE_BASE_H
#define PE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PE_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define PE_PRINTF(a, b)
#endif

/* ---- status and error ---------------------------------------------------------------------------------------- */

typedef enum pe_status {
  PE_OK = 0,
  PE_ENOMEM = -1,       /* an allocation failed */
  PE_EIO = -2,          /* the operating system said no: missing file, read error */
  PE_EFORMAT = -3,      /* bytes that are not what they claim to be */
  PE_EUNSUPPORTED = -4, /* well-formed, but not something perigee reads or does */
  PE_ESHAPE = -5,       /* shapes or dtypes that disagree */
  PE_EARG = -6,         /* the caller asked for something that makes no sense */
  PE_ENOTFOUND = -7,    /* a name that is not there */
  PE_ELIMIT = -8,       /* a stated limit would be exceeded */
  PE_ECANCEL = -9,      /* stopped on request */
  PE_ENOTOKEN = -10     /* bias, bans and penalties leave no token to sample */
} pe_status;

typedef struct pe_error {
  pe_status code;
  const char *field; /* the caller's field that is to blame (a static string), or NULL */
  char text[512];
} pe_error;

/* Fills err (if any) and returns code, so that `return pe_fail(err, PE_ESHAPE, "...")` reads well. */
pe_status pe_fail(pe_error *err, pe_status code, const char *format, ...) PE_PRINTF(3, 4);

/* The same, blaming a field of the caller's: a static string such as "top_p". */
pe_status pe_fail_field(pe_error *err, pe_status code, const char *field, const char *format, ...)
    PE_PRINTF(4, 5);

/* The same for PE_ENOMEM: "out of memory: WHAT". */
pe_status pe_nomem(pe_error *err, const char *what);

/* Puts "PREFIX: " before the text of an error on its way up (a path, a tensor name). Returns err->code. */
pe_status pe_error_prefix(pe_error *err, const char *format, ...) PE_PRINTF(2, 3);

/* "format", "io", ...: the code as a word, for scripts. */
const char *pe_status_name(pe_status code);

/* ---- memory -------------------------------------------------------------------------------------------------- */

void *pe_alloc(size_t size);                /* gives; size 0 gives a valid pointer */
void *pe_calloc(size_t count, size_t size); /* gives; zeroed; NULL when count * size overflows */
void *pe_realloc(void *p, size_t size);     /* gives; p stays valid when it fails */
void *pe_alloc_aligned(size_t size,
                       size_t alignment); /* gives; release with pe_free; cannot be realloc'ed */
void pe_free(void *p);                    /* takes; NULL is fine */

/* For tests: how many allocations are alive; let the n-th from now fail (once; 0 switches it off); how many were asked
 * for since. Atomic, so threads may allocate meanwhile. */
int64_t pe_alloc_live(void);
void pe_alloc_fail_at(int64_t n);
int64_t pe_alloc_count(void);

/* Makes room for at least `need` elements in *array (gives a moved array, growing by half). */
pe_status pe_grow(void *array, size_t *cap, size_t need, size_t element_size, pe_error *err);

/* a * b and a + b, or false when the result does not fit. */
static inline bool pe_mul_size(uint64_t a, uint64_t b, uint64_t *out) {
  return !__builtin_mul_overflow(a, b, out);
}
static inline bool pe_add_size(uint64_t a, uint64_t b, uint64_t *out) {
  return !__builtin_add_overflow(a, b, out);
}

/* ---- arena: things that die together ------------------------------------------------------------------------- */

typedef struct pe_arena {
  struct pe_arena_chunk *head;
  size_t bytes; /* reserved in all chunks */
} pe_arena;     /* {0} is an empty arena */

void *pe_arena_alloc(pe_arena *a,
                     size_t size); /* 16-byte aligned, not zeroed; NULL: out of memory */
void *pe_arena_calloc(pe_arena *a, size_t count, size_t size);   /* zeroed */
char *pe_arena_dup(pe_arena *a, const void *bytes, size_t size); /* a copy with a NUL behind it */
void pe_arena_free(pe_arena *a);                                 /* empty again */

/* ---- slices and growing bytes -------------------------------------------------------------------------------- */

typedef struct pe_str {
  const char *at; /* not NUL-terminated; may hold NUL */
  size_t len;
} pe_str;

static inline pe_str pe_str_of(const char *at, size_t len) { return (pe_str){at, len}; }
pe_str pe_str_c(const char *text);          /* of a C string */
bool pe_str_eq(pe_str s, const char *text); /* equal to a C string */
bool pe_str_same(pe_str a, pe_str b);
/* For "%.*s" of foreign text in error messages: at most 80 bytes. */
static inline int pe_str_clip(pe_str s) { return s.len > 80 ? 80 : (int)s.len; }

typedef struct pe_buf {
  char *data;
  size_t len, cap;
} pe_buf; /* {0} is an empty buffer */

pe_status pe_buf_reserve(pe_buf *b, size_t more,
                         pe_error *err); /* room for `more` bytes behind len */
pe_status pe_buf_put(pe_buf *b, const void *bytes, size_t n, pe_error *err);
pe_status pe_buf_byte(pe_buf *b, char c, pe_error *err);
pe_status pe_buf_printf(pe_buf *b, pe_error *err, const char *format, ...) PE_PRINTF(3, 4);
void pe_buf_free(pe_buf *b);

/* ---- clock --------------------------------------------------------------------------------------------------- */

int64_t pe_clock_ns(void); /* monotonic */

#endif
