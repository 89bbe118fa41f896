/* far.h - results that are written around the caches.
 *
 * Results larger than the second-level cache have left it when they are read. Written as usual,
 * each of their lines would first be read from memory: this took a quarter of the time of a product
 * of 512 rows. So versions that can (PE_STREAM) store whole lines of them directly.
 *
 *   PE_STREAM(p, v)   stores a register of 64 bytes around the caches; p is aligned to it
 *   PE_STREAMED       makes what was stored so visible to other threads */
#ifndef PE_FAR_H
#define PE_FAR_H

#include <stdbool.h>
#include <stdint.h>

enum { PE_FAR = 2 << 20 }; /* bytes, of a second-level cache of 1 or 2 MB */

/* Rows of `count` results, `step` apart, each of whole lines. */
static inline bool pe_far(int64_t rows, int64_t count, const float *out, int64_t step) {
#ifdef PE_STREAM
  return rows * count * (int64_t)sizeof *out >= PE_FAR && !((uintptr_t)out % 64) && !(step % 16);
#else
  (void)rows, (void)count, (void)out, (void)step;
  return false;
#endif
}

#endif
