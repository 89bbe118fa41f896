/* safetensors.h - the safetensors container: a JSON directory, then the bytes of the tensors.
 *
 * Reads the directory of a single file; weights_safetensors.c combines shards. The header is read
 * token by token and never becomes a tree, so its size bounds the memory used.
 *
 * Always true after opening: names are distinct; every tensor lies inside the file, is as long as
 * its shape requires and overlaps no other. Gaps between tensors are allowed. Offsets need not be
 * aligned.
 *
 * Ownership: owns a reference to the mapping. Threads: immutable after opening. */
#ifndef PE_SAFETENSORS_H
#define PE_SAFETENSORS_H

#include "runtime/buffer.h"
#include "kernels/dtype.h"

/* The header limit is that of the reference implementation (safetensors, in Rust). */
enum { PE_SAFETENSORS_MAX_RANK = 8, PE_SAFETENSORS_MAX_HEADER = 100000000 };

typedef struct pe_safetensor {
  pe_str name; /* NUL-terminated */
  pe_dtype dtype;
  int rank;
  int64_t shape[PE_SAFETENSORS_MAX_RANK]; /* outermost first */
  uint64_t at, bytes;                     /* absolute offset in the mapping */
} pe_safetensor;

typedef struct pe_safetensors {
  pe_buffer *buf; /* owned reference to the mapping */
  size_t count;
  pe_safetensor *tensor; /* in the order of the header */
  /* ---- private ------------------------------------------------------------------------------- */
  size_t cap;
  pe_arena arena;
} pe_safetensors;

/* gives; errors name the path */
pe_status pe_safetensors_open(const char *path, pe_safetensors **out, pe_error *err);
/* gives; reads from memory and retains buf */
pe_status pe_safetensors_read(pe_buffer *buf, pe_safetensors **out, pe_error *err);
void pe_safetensors_close(pe_safetensors *s); /* takes; NULL is fine */

/* ---- writing: safetensors_write.c ------------------------------------------------------------ */

typedef struct pe_safetensors_item { /* one tensor to write; contiguous */
  const char *name;
  pe_dtype dtype;
  int rank;
  int64_t shape[PE_SAFETENSORS_MAX_RANK];
  const void *data;
} pe_safetensors_item;

/* Writes a temporary file next to `path` and renames it, so no reader sees half a file. */
pe_status pe_safetensors_write(const char *path, const pe_safetensors_item *items, size_t count,
                               pe_error *err);

#endif
