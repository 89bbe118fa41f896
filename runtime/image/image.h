/* image.h - a picture in memory: RGB bytes, three per pixel, rows without padding, top row first.
 *
 *   bytes of a file ── decode.h ──► pe_image ── resize.h ──► pe_image ── patches.h ──► float32 rows
 *
 * A pe_image is a small value. It owns nothing unless a function says that it gives one: then
 * pe_image_free takes it. The content hash is SHA-256 over width, height (both as 4 little-endian
 * bytes) and the pixels, so that the same picture under another name or in another lossless format
 * has the same hash, and no client can craft two pictures with one hash. Any thread. */
#ifndef PE_IMAGE_H
#define PE_IMAGE_H

#include "runtime/base.h"
#include "runtime/sha256.h"

typedef struct pe_image {
  int32_t width, height;
  uint8_t *rgb;
} pe_image;

/* Bytes of the pixels; false if a side is below 1 or the product does not fit. */
bool pe_image_bytes(int64_t width, int64_t height, uint64_t *out);

pe_status pe_image_new(int32_t width, int32_t height, pe_image *out, pe_error *err); /* gives */
void pe_image_free(pe_image *image); /* takes; {0} is fine */

void pe_image_hash(const pe_image *image, uint8_t out[PE_SHA256_BYTES]);

/* The picture as it must be shown, for one of the EXIF orientations 1 … 8 (1: as it is). Gives. */
pe_status pe_image_orient(const pe_image *image, int orientation, pe_image *out, pe_error *err);

/* `pixels` pixels of four bytes (the last one is alpha) become three bytes each, composited on
 * white. In place if rgb == rgba. */
void pe_image_composite(const uint8_t *rgba, uint64_t pixels, uint8_t *rgb);

#endif
