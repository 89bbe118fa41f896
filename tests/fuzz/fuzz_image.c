/* fuzz_image.c - any bytes as a picture: refused, or a picture of the announced size whose every
 * pixel can be read. PNG files are tried again with correct checksums, or nothing behind them would
 * ever be reached. */
#include <stdlib.h>
#include <string.h>

#include "runtime/image/decode.h"
#include "runtime/image/resize.h"

static const pe_image_limits limits = {.pixels = 1 << 16, .memory = 8 << 20};

static void try_bytes(const uint8_t *data, size_t size) {
  pe_image_info probed, info;
  pe_image image, small;
  pe_error err;
  int64_t live = pe_alloc_live();
  pe_status first = pe_image_probe(data, size, &limits, &probed, &err);
  pe_status rc = pe_image_decode(data, size, &limits, &info, &image, &err);
  if (first && !rc) abort();
  if (!rc) {
    uint8_t hash[PE_SHA256_BYTES], out[5 * 7 * 3];
    if (image.width != probed.width || image.height != probed.height) abort();
    pe_image_hash(&image, hash);
    small = (pe_image){5, 7, out};
    if (pe_resize(&image, (pe_filter)(hash[0] % PE_FILTERS), &small, &err)) abort();
    pe_image_free(&image);
  }
  if (pe_alloc_live() != live) abort();
}

static uint32_t crc_of(const uint8_t *p, size_t n) {
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

static void seal_png(uint8_t *p, size_t size) {
  for (size_t at = 8; size - at >= 12;) {
    size_t n = (size_t)p[at] << 24 | (size_t)p[at + 1] << 16 | (size_t)p[at + 2] << 8 | p[at + 3];
    if (n > size - at - 12) return;
    uint32_t crc = crc_of(p + at + 4, n + 4);
    for (int i = 0; i < 4; i++) p[at + 8 + n + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
    at += 12 + n;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try_bytes(data, size);
  if (size < 20 || memcmp(data, "\x89PNG", 4)) return 0;
  uint8_t *sealed = malloc(size);
  memcpy(sealed, data, size);
  seal_png(sealed, size);
  try_bytes(sealed, size);
  free(sealed);
  return 0;
}
