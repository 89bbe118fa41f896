/* safetensors.h - the safetensors container: a JSON directory, then the tensors' bytes.
 *
 * This is one file's directory alone; weights_safetensors.c puts shards together and joins what belongs to one
 * quantised module. The header is pulled token by token, never built as a tree, so its size bounds the memory it takes.
 *
 * Always true of what is returned: names are distinct; every tensor lies inside the file, is as long as its shape says
 * and overlaps no other. Bytes that no tensor covers are allowed. Offsets need not be aligned.
 *
 * Threads: immutable after opening. */
#ifndef PE_SAFETENSORS_H
#define PE_SAFETENSORS_H

#include "runtime/buffer.h"
#include "kernels/dtype.h"

enum { PE_SAFETENSORS_MAX_RANK = 8, PE_SAFETENSORS_MAX_HEADER = 100000000 };

typedef struct pe_safetensor {
  pe_str name; /* NUL-terminated */
  pe_dtype dtype;
  int rank;
  int64_t shape[PE_SAFETENSORS_MAX_RANK]; /* outermost first */
  uint64_t at, bytes;                     /* absolute offset in the mapping */
} pe_safetensor;

typedef struct pe_safetensors_meta {
  pe_str key, value; /* NUL-terminated */
} pe_safetensors_meta;

typedef struct pe_safetensors {
  pe_buffer *buf; /* owned reference to the mapping */
  size_t count, meta_count;
  pe_safetensor *tensor;     /* in the header's order */
  pe_safetensors_meta *meta; /* __metadata__ */
  /* ---- private ---- */
  size_t cap, meta_cap;
  pe_arena arena;
} pe_safetensors;

pe_status pe_safetensors_open(const char *path, pe_safetensors **out,
                              pe_error *err); /* gives; errors name the path */
pe_status pe_safetensors_read(pe_buffer *buf, pe_safetensors **out,
                              pe_error *err); /* gives; the same from memory; retains buf */
void pe_safetensors_close(pe_safetensors *s); /* takes; NULL is fine */

/* ---- writing: safetensors_write.c -------------------------------------------------------------------------------- */

typedef struct pe_safetensors_item { /* one tensor to write; contiguous */
  const char *name;
  pe_dtype dtype;
  int rank;
  int64_t shape[PE_SAFETENSORS_MAX_RANK];
  const void *data;
} pe_safetensors_item;

/* Writes beside `path` and renames into place, so that nobody sees half a file. */
pe_status pe_safetensors_write(const char *path, const pe_safetensors_item *items, size_t count,
                               pe_error *err);

#endif
