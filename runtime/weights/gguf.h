/* gguf.h - the GGUF container: typed metadata and a directory of tensors; versions 2 and 3, little
 * endian.
 *
 * Only the file format is read here. weights_gguf.c turns the directory into weights,
 * tokenizer_gguf.c turns `tokenizer.ggml.*` into a tokenizer. Keys and values point into a copy of
 * that part of the file (of a buffer that is not mapped: into the buffer), so that they stay what
 * was checked even if somebody overwrites the file; tensors are places in the mapping. Every count,
 * length and offset is checked against the file's size before it is used or memory is allocated
 * for it.
 *
 * Ownership: owns a reference to the mapping. Threads: immutable after opening. */
#ifndef PE_GGUF_H
#define PE_GGUF_H

#include "runtime/buffer.h"

typedef enum pe_gguf_type { /* numbered as in the file */
                            PE_GGUF_U8,
                            PE_GGUF_I8,
                            PE_GGUF_U16,
                            PE_GGUF_I16,
                            PE_GGUF_U32,
                            PE_GGUF_I32,
                            PE_GGUF_F32,
                            PE_GGUF_BOOL,
                            PE_GGUF_STRING,
                            PE_GGUF_ARRAY,
                            PE_GGUF_U64,
                            PE_GGUF_I64,
                            PE_GGUF_F64
} pe_gguf_type;

typedef struct pe_gguf_meta {
  pe_str key;
  pe_gguf_type type;    /* of the value; ARRAY: see element */
  pe_gguf_type element; /* of an array's elements (nested arrays are refused) */
  uint64_t count;       /* elements of an array, else 1 */
  const uint8_t *data;  /* first value, unaligned; a string is a u64 length, then bytes */
} pe_gguf_meta;

typedef struct pe_gguf_tensor {
  pe_str name;
  uint32_t type; /* ggml type number */
  int rank;
  int64_t shape[4];   /* outermost first; the file has them innermost first */
  uint64_t at, bytes; /* absolute offset in the mapping */
} pe_gguf_tensor;

typedef struct pe_gguf {
  pe_buffer *buf; /* owned reference to the mapping */
  uint32_t version;
  uint64_t alignment;
  size_t meta_count, tensor_count;
  pe_gguf_meta *meta;
  pe_gguf_tensor *tensor;
  /* ---- private ------------------------------------------------------------------------------- */
  pe_buffer *head; /* the copy; NULL: none */
} pe_gguf;

/* gives; errors name the path */
pe_status pe_gguf_open(const char *path, pe_gguf **out, pe_error *err);
/* gives; reads from memory and retains buf */
pe_status pe_gguf_read(pe_buffer *buf, pe_gguf **out, pe_error *err);
void pe_gguf_close(pe_gguf *g);       /* takes; NULL is fine */
bool pe_gguf_magic(const char *path); /* does the file begin with "GGUF"? */

/* Metadata by key; NULL if absent. The typed readers return false if the key is absent or has
 * another type; pe_gguf_int takes integers of any width and bools. */
const pe_gguf_meta *pe_gguf_find(const pe_gguf *g, const char *key);
bool pe_gguf_int(const pe_gguf *g, const char *key, int64_t *out);
bool pe_gguf_bool(const pe_gguf *g, const char *key, bool *out);
bool pe_gguf_str(const pe_gguf *g, const char *key, pe_str *out);

/* Array elements. Strings vary in size, so they are read in order: start with *at = meta->data and
 * call pe_gguf_str_next `count` times. */
int64_t pe_gguf_int_at(const pe_gguf_meta *m, uint64_t index);
double pe_gguf_float_at(const pe_gguf_meta *m, uint64_t index);
pe_str pe_gguf_str_next(const uint8_t **at);

#endif
