/* guard.h - memory that ends at a page that nobody may touch: a read or a write past the end of an
 * operand stops the test, also without a sanitizer. */
#ifndef GUARD_H
#define GUARD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct guard_map {
  uint8_t *at;
  size_t bytes; /* of which the last page is the guard */
} guard_map;

/* Mappings that were freed: a new one costs a fault for each of its pages. Memory lies at the end
 * of its mapping, so a larger one will do. */
enum { GUARD_MAPS = 16 };
static guard_map guard_free_maps[GUARD_MAPS];

static inline guard_map guard_map_new(size_t bytes, size_t page) {
  for (int i = 0; i < GUARD_MAPS; i++)
    if (guard_free_maps[i].bytes >= bytes) {
      const guard_map found = guard_free_maps[i];
      guard_free_maps[i].bytes = 0;
      return found;
    }
  guard_map m = {mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0), bytes};
  if (m.at == MAP_FAILED || mprotect(m.at + bytes - page, page, PROT_NONE)) {
    perror("guard_new");
    exit(1);
  }
  return m;
}

/* Aligned to `align`, a power of two; at most align - 1 bytes lie between its end and the page. Its
 * bytes are 0xff: NaN as floats, so reading what nobody wrote shows. */
static inline void *guard_new(size_t bytes, size_t align) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = bytes + sizeof(guard_map) + align;
  const guard_map m = guard_map_new((used / page + 2) * page, page);
  uint8_t *at = m.at + m.bytes - page - (bytes + align - 1) / align * align;
  memcpy(at - sizeof m, &m, sizeof m); /* for guard_free */
  return memset(at, 0xff, bytes);
}

static inline float *guard_floats(int64_t n) { return guard_new((size_t)n * sizeof(float), 4); }

static inline void guard_free(void *p) {
  static int next;
  guard_map m;
  if (!p) return;
  memcpy(&m, (uint8_t *)p - sizeof m, sizeof m);
  guard_map *old = &guard_free_maps[next++ % GUARD_MAPS];
  if (old->bytes) munmap(old->at, old->bytes);
  *old = m;
}

#endif
