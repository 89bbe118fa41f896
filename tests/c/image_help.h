/* image_help.h - pictures for tests: tensors of tests/images as pe_image. */
#ifndef IMAGE_HELP_H
#define IMAGE_HELP_H

#include "check.h"
#include "runtime/image/image.h"
#include "runtime/weights/safetensors.h"

/* The tensor of this name, or NULL. */
static inline const pe_safetensor *find_tensor(const pe_safetensors *s, const char *name) {
  for (size_t i = 0; i < s->count; i++)
    if (pe_str_eq(s->tensor[i].name, name)) return &s->tensor[i];
  return NULL;
}

/* The pixels of a tensor [height, width, 3]; borrowed from the mapping, so they are read-only. */
static inline pe_image image_of(const pe_safetensors *s, const pe_safetensor *t) {
  return (pe_image){(int32_t)t->shape[1], (int32_t)t->shape[0], s->buf->data + t->at};
}

/* A picture whose bytes are a function of the seed. */
static inline pe_image noise(int32_t width, int32_t height, uint32_t seed) {
  pe_image image;
  pe_error err;
  if (pe_image_new(width, height, &image, &err)) abort();
  for (int64_t i = 0; i < (int64_t)width * height * 3; i++) {
    seed = seed * 1664525 + 1013904223;
    image.rgb[i] = (uint8_t)(seed >> 24);
  }
  return image;
}

/* The number of bytes that differ, and the largest difference. */
static inline int64_t image_differs(const pe_image *a, const pe_image *b, int *largest) {
  int64_t n = 0;
  *largest = 0;
  if (a->width != b->width || a->height != b->height) return -1;
  for (int64_t i = 0; i < (int64_t)a->width * a->height * 3; i++) {
    int d = abs(a->rgb[i] - b->rgb[i]);
    n += d > 0;
    if (d > *largest) *largest = d;
  }
  return n;
}

/* A whole file; the caller releases it. */
static inline pe_buffer *file_bytes(const char *path) {
  pe_buffer *b = NULL;
  pe_error err;
  if (pe_buffer_map(path, &b, &err)) printf("    %s\n", err.text);
  return b;
}

#endif
