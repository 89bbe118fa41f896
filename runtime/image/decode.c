/* decode.c - see decode.h. */
#include "runtime/image/decode.h"

#include <limits.h>
#include <string.h>
#include <webp/decode.h>

/* ---- the budget of stb_image ----------------------------------------------------------------- */

enum { HEAD = 16 }; /* in front of each block: its size. 16 keeps the alignment. */

static _Thread_local uint64_t budget; /* bytes that may still be allocated */

static void *budget_alloc(size_t n) {
  if (n > budget || n > SIZE_MAX - HEAD) return NULL;
  char *p =
      pe_calloc(1, n + HEAD); /* zeroed: a file without code tables makes stb_image use them */
  if (!p) return NULL;
  memcpy(p, &n, sizeof n);
  budget -= n;
  return p + HEAD;
}

static void budget_free(void *p) {
  if (!p) return;
  size_t n;
  memcpy(&n, (char *)p - HEAD, sizeof n);
  budget += n;
  pe_free((char *)p - HEAD);
}

static void *budget_realloc(void *p, size_t n) {
  if (!p) return budget_alloc(n);
  size_t old;
  memcpy(&old, (char *)p - HEAD, sizeof old);
  if (n > SIZE_MAX - HEAD || (n > old && n - old > budget)) return NULL;
  char *moved = pe_realloc((char *)p - HEAD, n + HEAD);
  if (!moved) return NULL;
  memcpy(moved, &n, sizeof n);
  budget += old;
  budget -= n;
  return moved + HEAD;
}

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_HDR
#define STBI_MALLOC(n) budget_alloc(n)
#define STBI_REALLOC(p, n) budget_realloc(p, n)
#define STBI_FREE(p) budget_free(p)
#if defined(__aarch64__)
#define STBI_NEON
#endif
/* Not restored: these are reported at the end of the file. */
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <stb/stb_image.h>

/* ---- decoders -------------------------------------------------------------------------------- */

static pe_status differs(const pe_image_info *info, int width, int height, pe_error *err) {
  return pe_fail(err, PE_EFORMAT, "the file announces %d x %d pixels and has %d x %d",
                 info->stored_width, info->stored_height, width, height);
}

static pe_status decode_stb(const uint8_t *bytes, uint64_t size, const pe_image_limits *limits,
                            const pe_image_info *info, pe_image *out, pe_error *err) {
  if (size > INT_MAX) return pe_fail(err, PE_ELIMIT, "a file of 2 GB or more is not a picture");
  int width = 0, height = 0, stored = 0;
  pe_status rc = PE_OK;
  budget = limits->memory;
  uint8_t *all = stbi_load_from_memory(bytes, (int)size, &width, &height, &stored,
                                       info->alpha ? STBI_rgb_alpha : STBI_rgb);
  if (!all) {
    const char *why = stbi_failure_reason();
    if (why && !strcmp(why, "outofmem"))
      return pe_fail(err, PE_ELIMIT, "decoding needs more than %llu bytes",
                     (unsigned long long)limits->memory);
    return pe_fail(err, PE_EFORMAT, "the %s file is damaged: %s",
                   info->format == PE_IMAGE_PNG ? "PNG" : "JPEG", why ? why : "unknown reason");
  }
  if (width != info->stored_width || height != info->stored_height)
    rc = differs(info, width, height, err);
  if (!rc) rc = pe_image_new(width, height, out, err);
  if (!rc && info->alpha)
    pe_image_composite(all, (uint64_t)width * (uint64_t)height, out->rgb);
  else if (!rc)
    memcpy(out->rgb, all, (size_t)width * (size_t)height * 3);
  stbi_image_free(all);
  return rc;
}

static pe_status decode_webp(const uint8_t *bytes, uint64_t size, const pe_image_info *info,
                             pe_image *out, pe_error *err) {
  uint64_t pixels = (uint64_t)info->stored_width * (uint64_t)info->stored_height;
  int each = info->alpha ? 4 : 3;
  int64_t stride = (int64_t)info->stored_width * each; /* a side is at most 16383 */
  uint8_t *all = pe_alloc(pixels * (uint64_t)each);
  if (!all) return pe_nomem(err, "picture");
  uint8_t *done = info->alpha ? WebPDecodeRGBAInto(bytes, size, all, pixels * 4, (int)stride)
                              : WebPDecodeRGBInto(bytes, size, all, pixels * 3, (int)stride);
  if (!done) {
    pe_free(all);
    return pe_fail(err, PE_EFORMAT, "the WebP file is damaged");
  }
  if (info->alpha) pe_image_composite(all, pixels, all);
  *out = (pe_image){info->stored_width, info->stored_height, all};
  return PE_OK;
}

pe_status pe_image_decode(const uint8_t *bytes, uint64_t size, const pe_image_limits *limits,
                          pe_image_info *info, pe_image *out, pe_error *err) {
  pe_image stored = {0};
  pe_status rc = pe_image_probe(bytes, size, limits, info, err);
  if (!rc)
    rc = info->format == PE_IMAGE_WEBP ? decode_webp(bytes, size, info, &stored, err)
                                       : decode_stb(bytes, size, limits, info, &stored, err);
  if (rc) return rc;
  if (info->orientation == 1) {
    *out = stored;
    return PE_OK;
  }
  rc = pe_image_orient(&stored, info->orientation, out, err);
  pe_image_free(&stored);
  return rc;
}
