/* buffer.h - bytes with a reference count: a heap block, reserved or shared pages, or a
 * mapped file.
 *
 * Tensors and weights are views: an offset into a buffer, which they retain. The buffer of a weight
 * is the mapping of its whole file, so a device that needs page-aligned memory can wrap it without
 * copying.
 *
 * Always true: data and size never change after creation; mapped buffers are read-only; heap
 * buffers are 64-byte aligned (a cache line, and the widest vector). The count is atomic, so
 * threads may share a buffer.
 *
 * The bytes of a mapped file are the file's: if it is truncated, they become zeros and the buffer
 * is lost (fault.h). Readers ask pe_buffer_lost after they have read. */
#ifndef PE_BUFFER_H
#define PE_BUFFER_H

#include "runtime/base.h"
#include "runtime/fault.h"

typedef struct pe_buffer {
  uint8_t *data;
  uint64_t size;
  bool mapped;            /* read-only pages of a file */
  uint64_t device, inode; /* of the file when it was mapped, like the next two; else 0 */
  int64_t changed_ns;     /* when its contents last changed, */
  int64_t touched_ns;     /* and the last time that nobody can set: of contents or attributes */
  /* ---- private ---- */
  bool pages; /* unmap instead of free */
  pe_fault_range *watch;
  int refs;
} pe_buffer;

/* All four give. */
pe_status pe_buffer_alloc(uint64_t size, pe_buffer **out, pe_error *err); /* zeroed heap bytes */
/* Zeroed pages that take no memory until they are touched. */
pe_status pe_buffer_reserve(uint64_t size, pe_buffer **out, pe_error *err);
pe_status pe_buffer_map(const char *path, pe_buffer **out,
                        pe_error *err); /* errors name the path */

/* Zeroed pages that another process can map through *fd, which the caller closes. Where the system
 * can, their size is sealed: no process that has the descriptor can cut them off under a reader. */
pe_status pe_buffer_share(uint64_t size, pe_buffer **out, int *fd, pe_error *err);

pe_buffer *pe_buffer_retain(pe_buffer *b); /* gives one more reference */
void pe_buffer_release(pe_buffer *b);      /* takes; NULL is fine */

/* Mapped: it could not be read as it was when it was mapped. */
bool pe_buffer_lost(const pe_buffer *b);
/* Compares the file at `path` with the one that was mapped, and marks the buffer as lost if it is
 * the same file with another size or time. False: it is lost. A file that was replaced or removed
 * is still mapped, and whole. */
bool pe_buffer_check(const pe_buffer *b, const char *path);

/* Gives the whole pages within this range of a reserved buffer back to the system; their contents
 * are lost. Only a hint: where it is not possible, nothing happens. */
void pe_buffer_discard(const pe_buffer *b, uint64_t at, uint64_t size);
/* Takes the whole pages within this range of a mapped file out of memory; reading them brings them
 * back. A hint also. */
void pe_buffer_forget(const pe_buffer *b, uint64_t at, uint64_t size);
/* Asks for large pages under a reserved buffer, before it is touched: streams through weights, and
 * the short ones through keys and values of a head, then miss the page tables less often. A hint
 * also. */
void pe_buffer_large_pages(const pe_buffer *b);
/* Reads one byte of every page, so that they are in memory when this returns. */
void pe_buffer_touch(const pe_buffer *b, uint64_t at, uint64_t size);

#endif
