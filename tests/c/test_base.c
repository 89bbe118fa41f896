/* test_base.c - errors, allocation failure, arenas, growing bytes, UTF-8, dtypes, buffers. */
#include "check.h"
#include "guard.h"
#include "kernels/dtype.h"
#include "runtime/buffer.h"
#include "runtime/utf8.h"

#include <unistd.h>

static void errors_name_the_thing(void) {
  pe_error err;
  CHECK_INT(pe_fail(&err, PE_ESHAPE, "rows %d of %d", 3, 2), PE_ESHAPE);
  CHECK_STR(err.text, "rows 3 of 2");
  CHECK_INT(pe_error_prefix(&err, "file %s", "a"), PE_ESHAPE);
  CHECK_STR(err.text, "file a: rows 3 of 2");
  CHECK(!err.field);
  CHECK_INT(pe_fail_field(&err, PE_EARG, "top_p", "must be at most %d", 1), PE_EARG);
  CHECK_STR(err.field, "top_p");
  CHECK_INT(pe_error_prefix(&err, "request"), PE_EARG);
  CHECK_STR(err.field, "top_p");
  CHECK_STR(err.text, "request: must be at most 1");
  CHECK_STR(pe_status_name(PE_OK), "ok");
  CHECK_STR(pe_status_name(PE_ECANCEL), "cancelled");
  CHECK_STR(pe_status_name(PE_ENOTOKEN), "no_token");
  CHECK_STR(pe_status_name(PE_EUNSATISFIABLE), "unsatisfiable");
  CHECK_STR(pe_status_name((pe_status)1), "unknown");
  CHECK_STR(pe_status_name((pe_status)(PE_EUNSATISFIABLE - 1)), "unknown");
  CHECK_INT(pe_fail(NULL, PE_EIO, "no error wanted"), PE_EIO);
}

static void nth_allocation_fails_once(void) {
  pe_alloc_fail_at(2);
  void *a = pe_alloc(1), *b = pe_alloc(1), *c = pe_alloc(1);
  CHECK(a && !b && c);
  pe_alloc_fail_at(0);
  pe_free(a), pe_free(c);
}

static void arena_aligns_and_copies(void) {
  pe_arena a = {0};
  for (int i = 0; i < 1000; i++) {
    char *p = pe_arena_alloc(&a, (size_t)i);
    CHECK(p && (uintptr_t)p % 16 == 0);
    memset(p, i, (size_t)i);
  }
  CHECK_STR(pe_arena_dup(&a, "xyz", 2), "xy");
  CHECK(!pe_arena_alloc(&a, SIZE_MAX));
  CHECK(!pe_arena_calloc(&a, SIZE_MAX / 2, 4));
  pe_arena_free(&a);
}

static void bytes_grow(void) {
  pe_buf b = {0};
  pe_error err;
  for (int i = 0; i < 500; i++) CHECK_OK(pe_buf_printf(&b, &err, "%d,", i), err);
  CHECK_INT(b.len, 10 * 2 + 90 * 3 + 400 * 4);
  CHECK(!memcmp(b.data, "0,1,2,", 6));
  CHECK_INT(pe_buf_reserve(&b, SIZE_MAX / 2, &err), PE_ENOMEM);
  pe_buf_free(&b);
}

static void utf8_is_strict(void) {
  static const struct {
    const char *bytes;
    int len, cp, take;
  } cases[] = {{"a", 1, 'a', 1},
               {"\xc3\xa9", 2, 0xe9, 2},
               {"\xe2\x82\xac", 3, 0x20ac, 3},
               {"\xf0\x9f\x8c\x99", 4, 0x1f319, 4},
               {"\x80", 1, PE_UTF8_BROKEN, 1},
               {"\xc0\x80", 2, PE_UTF8_BROKEN, 1},
               {"\xed\xa0\x80", 3, PE_UTF8_BROKEN, 1},
               {"\xf4\x90\x80\x80", 4, PE_UTF8_BROKEN, 1},
               {"\xe2\x82", 2, PE_UTF8_CUT, 2},
               {"\xf0\x9f\x8c", 3, PE_UTF8_CUT, 3},
               {"\xf0\x9f\x41", 3, PE_UTF8_BROKEN, 2},
               {"\xff", 1, PE_UTF8_BROKEN, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int32_t cp;
    CHECK_INT(pe_utf8_next(cases[i].bytes, cases[i].bytes + cases[i].len, &cp), cases[i].take);
    CHECK_INT(cp, cases[i].cp);
  }
  for (int32_t cp = 0; cp <= 0x10ffff; cp++) {
    if (cp >= 0xd800 && cp <= 0xdfff) continue;
    char out[4];
    int32_t back;
    int n = pe_utf8_put(out, cp);
    if (pe_utf8_next(out, out + n, &back) != n || back != cp) {
      CHECK_INT(back, cp);
      break;
    }
  }
  CHECK_INT(pe_utf8_valid("0123456789abcdef\xffzz", 19), 16);
  CHECK_INT(pe_utf8_valid("0123456789\xf0\x9f\x8c\x99", 14), 14);
}

static void halves_round_trip(void) {
  for (uint32_t h = 0; h < 65536; h++) {
    float f = pe_f16_to_f32((uint16_t)h), b = pe_bf16_to_f32((uint16_t)h);
    if (f == f && pe_f32_to_f16(f) != h) {
      CHECK_INT(pe_f32_to_f16(f), h);
      break;
    }
    if (b == b && pe_f32_to_bf16(b) != h) {
      CHECK_INT(pe_f32_to_bf16(b), h);
      break;
    }
  }
  CHECK_INT(pe_f32_to_f16(65520.f), 0x7c00);
  CHECK_INT(pe_f32_to_f16(65519.f), 0x7bff);
  CHECK_INT(pe_f32_to_f16(1 + 0x1p-11f), 0x3c00); /* tie to even */
  CHECK_INT(pe_f32_to_f16(1 + 3 * 0x1p-11f), 0x3c02);
  CHECK_INT(pe_f32_to_f16(0x1p-25f), 0);
  CHECK_INT(pe_f32_to_bf16(1 + 0x1p-8f), 0x3f80);
  CHECK(isnan(pe_f16_to_f32(pe_f32_to_f16(NAN))));
  CHECK_INT(pe_dtype_find("BF16", 4), PE_BF16);
  CHECK_INT(pe_dtype_find("q9", 2), -1);
}

static void buffers_map_files(void) {
  pe_error err;
  pe_buffer *b;
  CHECK_FAILS(pe_buffer_map("/nowhere/at all", &b, &err), PE_EIO, err,
              "/nowhere/at all: No such file");
  CHECK_FAILS(pe_buffer_map("/", &b, &err), PE_EIO, err, "not a regular file");
  char path[] = "/tmp/perigee-test-XXXXXX";
  int fd = mkstemp(path);
  CHECK_OK(pe_buffer_map(path, &b, &err), err);
  CHECK_INT(b->size, 0);
  pe_buffer_release(b);
  CHECK(write(fd, "hello", 5) == 5);
  CHECK_OK(pe_buffer_map(path, &b, &err), err);
  CHECK(b->size == 5 && !memcmp(b->data, "hello", 5));
  pe_buffer_release(pe_buffer_retain(b));
  pe_buffer_release(b);
  close(fd), unlink(path);
}

enum { PAGES = 8 };

/* The pages that hold nothing but `mark`, as bits. */
static unsigned marked_pages(const pe_buffer *b, size_t page, uint8_t mark) {
  unsigned bits = 0;
  for (unsigned i = 0; i < PAGES; i++) {
    size_t k = 0;
    while (k < page && b->data[i * page + k] == mark) k++;
    bits |= (unsigned)(k == page) << i;
  }
  return bits;
}

/* Only whole pages of reserved memory are given back. Of other buffers nothing is lost. */
static void buffers_give_pages_back(void) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const struct {
    size_t at, size;
    unsigned zeros;
  } ways[] = {{page, page, 2},
              {page / 2, 3 * page, 6},
              {1, page, 0},
              {page + 1, page - 1, 0},
              {page, page - 1, 0},
              {page, 2 * page - 1, 2},
              {page - 1, page + 1, 2},
              {0, PAGES * page, 255},
              {3 * page, 0, 0},
              {page + 1, 2 * page - 1, 4}};
  pe_error err;
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
    for (int kind = 0; kind < 2; kind++) {
      pe_buffer *b = NULL;
      CHECK_OK((kind ? pe_buffer_alloc : pe_buffer_reserve)(PAGES * page, &b, &err), err);
      CHECK_INT(marked_pages(b, page, 0), 255);
      pe_buffer_large_pages(b);
      memset(b->data, 0x5a, PAGES * page);
      pe_buffer_forget(b, ways[i].at, ways[i].size); /* not of a file */
      pe_buffer_large_pages(b);
      CHECK_INT(marked_pages(b, page, 0x5a), 255);
      pe_buffer_discard(b, ways[i].at, ways[i].size);
#if defined(__linux__)
      CHECK_INT(marked_pages(b, page, 0), kind ? 0 : ways[i].zeros);
      CHECK_INT(marked_pages(b, page, 0x5a), kind ? 255 : 255 & ~ways[i].zeros);
#endif
      pe_buffer_release(b);
    }
}

/* Touching reads no byte after the range. */
static void buffers_are_touched_to_their_end(void) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), sizes[] = {1, page - 1, page, 2 * page + 1};
  for (int i = 0; i < 4; i++) {
    const pe_buffer b = {.data = guard_new(sizes[i], 1), .size = sizes[i]};
    pe_buffer_touch(&b, 0, sizes[i]), pe_buffer_touch(&b, sizes[i] / 2, sizes[i] - sizes[i] / 2);
    pe_buffer_touch(&b, sizes[i] + 2 * page, 0);
    guard_free(b.data);
  }
}

static const check_test tests[] = {
    {"errors_name_the_thing", errors_name_the_thing},
    {"nth_allocation_fails_once", nth_allocation_fails_once},
    {"arena_aligns_and_copies", arena_aligns_and_copies},
    {"bytes_grow", bytes_grow},
    {"utf8_is_strict", utf8_is_strict},
    {"halves_round_trip", halves_round_trip},
    {"buffers_map_files", buffers_map_files},
    {"buffers_give_pages_back", buffers_give_pages_back},
    {"buffers_are_touched_to_their_end", buffers_are_touched_to_their_end}};
CHECK_MAIN("base", tests)
