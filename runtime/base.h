/* base.h - the ground of the runtime: status and errors, memory, slices, the clock.
 *
 * Errors. A function that can fail returns pe_status (0 or negative) and takes `pe_error *err`
 * last; err may be NULL. An error has a code for programs, a text for people, and the field to
 * blame:
 *   - text: one line without a final stop that names the thing and both numbers that disagree.
 *     Code never parses it.
 *   - field: the request field or option that caused it ("top_p"), or NULL. It is a static string,
 *     so the pointer may be copied and outlives the error. APIs report it to their clients.
 * Nothing in runtime/ prints, exits or jumps.
 *
 * Memory. All heap memory of runtime/ goes through pe_alloc and its siblings, so that a test can
 * make the N-th allocation fail and count those that are alive. They return NULL if memory is out,
 * and the caller returns pe_nomem(err, "what"). An arena is for things that are freed together; a
 * pe_buf is a growing string of bytes.
 *
 * Ownership words in prototypes: a function *borrows* (you keep it alive for me), *gives* (you must
 * free it) or *takes* (it is mine now, also if I fail). Objects with a reference count are shared:
 * `retain` gives one more reference, `release` takes one, and the last release frees. Counts are
 * atomic, so any thread may retain and release.
 *
 * Threads: any thread may call these functions; a pe_buf or pe_arena belongs to one thread at a
 * time. */
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

/* ---- status and error ------------------------------------------------------------------------ */

typedef enum pe_status {
  PE_OK = 0,
  PE_ENOMEM = -1,         /* an allocation failed */
  PE_EIO = -2,            /* the operating system refused: missing file, read error */
  PE_EFORMAT = -3,        /* bytes that are not what they claim to be */
  PE_EUNSUPPORTED = -4,   /* well-formed, but perigee cannot read or do it */
  PE_ESHAPE = -5,         /* shapes or dtypes that disagree */
  PE_EARG = -6,           /* a bad argument of the caller */
  PE_ENOTFOUND = -7,      /* no such name */
  PE_ELIMIT = -8,         /* a limit would be exceeded */
  PE_ECANCEL = -9,        /* stopped on request */
  PE_ENOTOKEN = -10,      /* bias, bans and penalties leave no token to sample */
  PE_EUNSATISFIABLE = -11 /* a grammar that no text fits */
} pe_status;

typedef struct pe_error {
  pe_status code;
  const char *field; /* a static string, or NULL */
  char text[512];
} pe_error;

/* Fills err, if there is one, and returns code: `return pe_fail(err, PE_ESHAPE, "...")`. */
pe_status pe_fail(pe_error *err, pe_status code, const char *format, ...) PE_PRINTF(3, 4);

/* The same with the field to blame. */
pe_status pe_fail_field(pe_error *err, pe_status code, const char *field, const char *format, ...)
    PE_PRINTF(4, 5);

/* The same with PE_ENOMEM and "out of memory: WHAT". */
pe_status pe_nomem(pe_error *err, const char *what);

/* Puts "PREFIX: " before the text of an error on its way up (a path, the name of a tensor). Returns
 * err->code. */
pe_status pe_error_prefix(pe_error *err, const char *format, ...) PE_PRINTF(2, 3);

/* The code as a word for scripts: "format", "io", ... */
const char *pe_status_name(pe_status code);

/* ---- memory ---------------------------------------------------------------------------------- */

void *pe_alloc(size_t size);                /* gives; size 0 gives a valid pointer */
void *pe_calloc(size_t count, size_t size); /* gives; zeroed; NULL if count * size overflows */
void *pe_realloc(void *p, size_t size);     /* gives; p stays valid if it fails */
void *pe_alloc_aligned(size_t size, size_t alignment); /* gives; cannot be reallocated */
void pe_free(void *p);                                 /* takes; NULL is fine */

/* For tests: the number of living allocations; make the n-th allocation from now fail, once (0:
 * none); the number of allocations since then. Atomic, so other threads may allocate meanwhile. */
int64_t pe_alloc_live(void);
void pe_alloc_fail_at(int64_t n);
int64_t pe_alloc_count(void);

/* Makes room for at least `need` elements in *array, which may move. Grows by half. */
pe_status pe_grow(void *array, size_t *cap, size_t need, size_t element_size, pe_error *err);

/* a * b and a + b; false if the result does not fit. */
static inline bool pe_mul_size(uint64_t a, uint64_t b, uint64_t *out) {
  return !__builtin_mul_overflow(a, b, out);
}
static inline bool pe_add_size(uint64_t a, uint64_t b, uint64_t *out) {
  return !__builtin_add_overflow(a, b, out);
}

/* ---- arena: things that are freed together --------------------------------------------------- */

typedef struct pe_arena {
  struct pe_arena_chunk *head;
} pe_arena; /* {0} is an empty arena */

void *pe_arena_alloc(pe_arena *a, size_t size); /* 16-byte aligned, not zeroed; NULL: no memory */
void *pe_arena_calloc(pe_arena *a, size_t count, size_t size);   /* zeroed */
char *pe_arena_dup(pe_arena *a, const void *bytes, size_t size); /* a copy, with a NUL after it */
void pe_arena_free(pe_arena *a);                                 /* empty again */

/* ---- slices and growing bytes ---------------------------------------------------------------- */

typedef struct pe_str {
  const char *at; /* not NUL-terminated; may contain NUL */
  size_t len;
} pe_str;

static inline pe_str pe_str_of(const char *at, size_t len) { return (pe_str){at, len}; }
pe_str pe_str_c(const char *text);          /* of a C string */
bool pe_str_eq(pe_str s, const char *text); /* equal to a C string */
bool pe_str_same(pe_str a, pe_str b);
/* The precision for "%.*s" of foreign text in an error: at most 80 bytes, so that both numbers and
 * the path still fit into its 512. */
static inline int pe_str_clip(pe_str s) { return s.len > 80 ? 80 : (int)s.len; }

typedef struct pe_buf {
  char *data;
  size_t len, cap;
} pe_buf; /* {0} is an empty buffer */

/* Its bytes, which have an address even if there are none. */
static inline pe_str pe_buf_str(const pe_buf *b) {
  return (pe_str){b->data ? b->data : "", b->len};
}
pe_status pe_buf_reserve(pe_buf *b, size_t more, pe_error *err); /* room for more bytes after len */
pe_status pe_buf_put(pe_buf *b, const void *bytes, size_t n, pe_error *err);
pe_status pe_buf_byte(pe_buf *b, char c, pe_error *err);
static inline pe_status pe_buf_int(pe_buf *b, int32_t v, pe_error *err) { /* four bytes */
  return pe_buf_put(b, &v, sizeof v, err);
}
pe_status pe_buf_printf(pe_buf *b, pe_error *err, const char *format, ...) PE_PRINTF(3, 4);
void pe_buf_free(pe_buf *b);

/* ---- long work ------------------------------------------------------------------------------- */

/* Who wants to know how much of it is done. Called by the thread that asked for the work. */
typedef struct pe_progress {
  void (*tell)(void *ctx, uint64_t done, uint64_t total);
  void *ctx;
} pe_progress;

/* ---- clock ----------------------------------------------------------------------------------- */

int64_t pe_clock_ns(void); /* monotonic */

#endif
