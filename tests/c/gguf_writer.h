/* gguf_writer.h - writes small GGUF files for tests, valid or not. */
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include "runtime/weights/gguf.h"

#include <string.h>

typedef struct writer {
  uint8_t data[4096];
  size_t len;
} writer;

static inline void put(writer *w, uint64_t v, int bytes) {
  for (int i = 0; i < bytes; i++) w->data[w->len++] = (uint8_t)(v >> 8 * i);
}

static inline void put_str(writer *w, const char *s) {
  put(w, strlen(s), 8);
  memcpy(w->data + w->len, s, strlen(s));
  w->len += strlen(s);
}

static inline void put_key(writer *w, const char *key, pe_gguf_type type) {
  put_str(w, key), put(w, type, 4);
}

static inline void put_header(writer *w, uint32_t version, uint64_t tensors, uint64_t keys) {
  w->len = 0;
  memcpy(w->data, "GGUF", w->len = 4);
  put(w, version, 4), put(w, tensors, 8), put(w, keys, 8);
}

static inline void put_tensor(writer *w, const char *name, int rank, const uint64_t *dims,
                              uint32_t type, uint64_t offset) {
  put_str(w, name), put(w, (uint64_t)rank, 4);
  for (int i = 0; i < rank; i++) put(w, dims[i], 8);
  put(w, type, 4), put(w, offset, 8);
}

static inline void put_data(writer *w, size_t alignment, size_t bytes) {
  while (w->len % alignment) put(w, 0, 1);
  for (size_t i = 0; i < bytes; i++) put(w, i, 1);
}

#endif
