/* buffer.h - counted bytes: a heap block, reserved pages or a mapped file.
 *
 * Tensors and weights are views on buffers: a buffer is what is owned, a view is an offset into it. A weight's buffer
 * is the whole mapping of its file, so a device that wants page-aligned memory can wrap it without copying.
 *
 * Always true: data and size never change after creation; mapped buffers are read-only; heap buffers are 64-byte
 * aligned. The count is atomic, so buffers may be shared between threads. */
#ifndef PE_BUFFER_H
#define PE_BUFFER_H

#include "runtime/base.h"

typedef struct pe_buffer {
  uint8_t *data;
  uint64_t size;
  bool mapped; /* read-only pages of a file */
  /* ---- private ---- */
  bool pages; /* to be unmapped, not freed */
  int refs;
} pe_buffer;

pe_status pe_buffer_alloc(uint64_t size, pe_buffer **out,
                          pe_error *err); /* gives; zeroed heap bytes */
pe_status pe_buffer_reserve(uint64_t size, pe_buffer **out,
                            pe_error *err); /* gives; zero pages that cost memory once touched */
pe_status pe_buffer_map(const char *path, pe_buffer **out,
                        pe_error *err); /* gives; a whole file; errors name the path */
void pe_buffer_touch(const pe_buffer *b, uint64_t at,
                     uint64_t size);       /* until these pages are in memory */
pe_buffer *pe_buffer_retain(pe_buffer *b); /* gives one more reference */
void pe_buffer_release(pe_buffer *b);      /* takes; NULL is fine */

#endif
