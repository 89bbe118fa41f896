/* image.c - see image.h. */
#include "runtime/image/image.h"

#include <string.h>

bool pe_image_bytes(int64_t width, int64_t height, uint64_t *out) {
  return width > 0 && height > 0 && width <= INT32_MAX && height <= INT32_MAX &&
         pe_mul_size((uint64_t)width * (uint64_t)height, 3, out) && *out < SIZE_MAX / 2;
}

pe_status pe_image_new(int32_t width, int32_t height, pe_image *out, pe_error *err) {
  uint64_t bytes;
  if (!pe_image_bytes(width, height, &bytes))
    return pe_fail(err, PE_EARG, "a picture cannot have %d x %d pixels", width, height);
  uint8_t *rgb = pe_alloc(bytes);
  if (!rgb) return pe_nomem(err, "picture");
  *out = (pe_image){width, height, rgb};
  return PE_OK;
}

void pe_image_free(pe_image *image) {
  pe_free(image->rgb);
  *image = (pe_image){0};
}

void pe_image_hash(const pe_image *image, uint8_t out[PE_SHA256_BYTES]) {
  uint8_t sides[8];
  for (int i = 0; i < 4; i++) {
    sides[i] = (uint8_t)((uint32_t)image->width >> 8 * i);
    sides[4 + i] = (uint8_t)((uint32_t)image->height >> 8 * i);
  }
  pe_sha256 s;
  pe_sha256_begin(&s);
  pe_sha256_add(&s, sides, sizeof sides);
  pe_sha256_add(&s, image->rgb, (size_t)image->width * (size_t)image->height * 3);
  pe_sha256_end(&s, out);
}

/* Each row of the result is a row or a column of the source, forwards or backwards: the position of
 * its first pixel, and the step to the next, in pixels. */
pe_status pe_image_orient(const pe_image *image, int orientation, pe_image *out, pe_error *err) {
  const int64_t w = image->width, h = image->height;
  if (orientation < 1 || orientation > 8)
    return pe_fail(err, PE_EARG, "orientation must be between 1 and 8, got %d", orientation);
  bool turned = orientation >= 5, from_right, from_bottom;
  from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  pe_status rc = turned ? pe_image_new(image->height, image->width, out, err)
                        : pe_image_new(image->width, image->height, out, err);
  if (rc) return rc;
  const int64_t across = from_right ? -1 : 1, down = from_bottom ? -w : w;
  const int64_t step = turned ? down : across, next_row = turned ? across : down;
  const uint8_t *row =
      image->rgb + 3 * ((from_right ? w - 1 : 0) + (from_bottom ? (h - 1) * w : 0));
  uint8_t *to = out->rgb;
  for (int64_t y = 0; y < out->height; y++) {
    const uint8_t *from = row + 3 * next_row * y;
    for (int64_t x = 0; x < out->width; x++, from += 3 * step, to += 3)
      to[0] = from[0], to[1] = from[1], to[2] = from[2];
  }
  return PE_OK;
}

/* Rounded a * b / 255 for the sum of two products, exact for sums up to 255 * 255. */
static inline uint8_t divide_255(uint32_t sum) {
  sum += 128;
  return (uint8_t)((sum + (sum >> 8)) >> 8);
}

void pe_image_composite(const uint8_t *rgba, uint64_t pixels, uint8_t *rgb) {
  for (uint64_t i = 0; i < pixels; i++, rgba += 4, rgb += 3) {
    uint32_t alpha = rgba[3], white = 255 * (255 - alpha);
    rgb[0] = divide_255(rgba[0] * alpha + white);
    rgb[1] = divide_255(rgba[1] * alpha + white);
    rgb[2] = divide_255(rgba[2] * alpha + white);
  }
}
