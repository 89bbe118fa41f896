/* probe.c - see probe.h. */
#include "runtime/image/probe.h"

#include <string.h>
#include <webp/decode.h>

/* The bytes that are left to read. Reading past the end is an error of the caller, who checks
 * `left` first. */
typedef struct reader {
  const uint8_t *at;
  uint64_t left;
} reader;

static uint32_t big(const uint8_t *p, int bytes) {
  uint32_t v = 0;
  for (int i = 0; i < bytes; i++) v = v << 8 | p[i];
  return v;
}

static uint32_t little(const uint8_t *p, int bytes) {
  uint32_t v = 0;
  for (int i = bytes; i-- > 0;) v = v << 8 | p[i];
  return v;
}

static void skip(reader *r, uint64_t n) { r->at += n, r->left -= n; }

const char *pe_image_format_name(pe_image_format format) {
  static const char *const names[] = {"jpeg", "png", "webp"};
  return (unsigned)format < PE_IMAGE_FORMATS ? names[format] : NULL;
}

/* ---- EXIF ------------------------------------------------------------------------------------ */

/* The orientation in a TIFF structure; 1 if there is none or it makes no sense: a picture with odd
 * metadata is still a picture. */
static int32_t orientation_of(reader tiff) {
  enum { ORIENTATION = 0x0112, SHORT = 3, ENTRY = 12 };
  if (tiff.left >= 6 && !memcmp(tiff.at, "Exif\0", 6)) skip(&tiff, 6);
  if (tiff.left < 8) return 1;
  bool is_big = !memcmp(tiff.at, "MM\0*", 4);
  if (!is_big && memcmp(tiff.at, "II*\0", 4)) return 1;
  uint32_t (*number)(const uint8_t *, int) = is_big ? big : little;
  uint64_t at = number(tiff.at + 4, 4);
  if (at > tiff.left - 2) return 1;
  uint32_t entries = number(tiff.at + at, 2);
  at += 2;
  for (; entries > 0 && tiff.left - at >= ENTRY; entries--, at += ENTRY) {
    const uint8_t *e = tiff.at + at;
    if (number(e, 2) != ORIENTATION || number(e + 2, 2) != SHORT) continue;
    uint32_t value = number(e + 8, 2);
    return value >= 1 && value <= 8 ? (int32_t)value : 1;
  }
  return 1;
}

/* ---- JPEG ------------------------------------------------------------------------------------ */

static pe_status cut_short(pe_error *err, const char *format) {
  return pe_fail(err, PE_EFORMAT, "the %s file ends in the middle of the picture", format);
}

static pe_status frame_header(const uint8_t *p, uint64_t n, int marker, pe_image_info *out,
                              pe_error *err) {
  bool baseline = marker == 0xc0 || marker == 0xc1, progressive = marker == 0xc2;
  if (!baseline && !progressive)
    return pe_fail(err, PE_EUNSUPPORTED, "lossless and arithmetic JPEG files are not supported");
  if (n < 6) return pe_fail(err, PE_EFORMAT, "the JPEG frame header has %d bytes", (int)n);
  if (p[0] != 8)
    return pe_fail(err, PE_EUNSUPPORTED, "JPEG files of %d bits are not supported, only 8", p[0]);
  out->stored_height = (int32_t)big(p + 1, 2), out->stored_width = (int32_t)big(p + 3, 2);
  /* Planes, the interleaved picture, and for progressive files two bytes per coefficient; sides are
   * rounded up to 32 for small pictures with subsampling. */
  uint64_t w = (uint64_t)out->stored_width + 32, h = (uint64_t)out->stored_height + 32;
  uint64_t parts = p[5] > 4 ? 4 : p[5];
  out->memory = w * h * (parts * (progressive ? 3 : 1) + 8) + (1 << 20);
  return PE_OK;
}

/* stb_image 2.27 writes past its table for a code with more than 256 words. */
static bool sane_codes(reader r) {
  while (r.left > 0) {
    uint64_t words = 0;
    for (int i = 1; r.left >= 17 && i <= 16; i++) words += r.at[i];
    if (r.left < 17 || words > 256 || words > r.left - 17) return false;
    skip(&r, 17 + words);
  }
  return true;
}

/* Skips compressed data up to the next marker. */
static void skip_scan(reader *r) {
  while (r->left >= 2) {
    const uint8_t *mark = memchr(r->at, 0xff, r->left - 1);
    if (!mark) break;
    skip(r, (uint64_t)(mark - r->at));
    bool data = r->at[1] == 0 || (r->at[1] >= 0xd0 && r->at[1] <= 0xd7);
    if (!data && r->at[1] != 0xff) return;
    skip(r, data ? 2 : 1);
  }
  skip(r, r->left);
}

static pe_status probe_jpeg(reader r, pe_image_info *out, pe_error *err) {
  enum { CODES = 0xc4, EXIF = 0xe1, SCAN = 0xda, END = 0xd9 };
  skip(&r, 2);
  for (;;) {
    while (r.left >= 2 && r.at[0] == 0xff && r.at[1] == 0xff) skip(&r, 1); /* fill bytes */
    if (r.left < 2) return cut_short(err, "JPEG");
    if (r.at[0] != 0xff) return pe_fail(err, PE_EFORMAT, "the JPEG file has data without a marker");
    int marker = r.at[1];
    skip(&r, 2);
    if (marker == END) break;
    if (marker == 1 || (marker >= 0xd0 && marker <= 0xd8)) continue; /* no length */
    uint64_t n = r.left >= 2 ? big(r.at, 2) : 0;
    if (r.left < 2 || n > r.left) return cut_short(err, "JPEG");
    if (n < 2) return pe_fail(err, PE_EFORMAT, "a JPEG segment has the length %d", (int)n);
    reader body = {r.at + 2, n - 2};
    if (marker == CODES && !sane_codes(body))
      return pe_fail(err, PE_EFORMAT, "the JPEG file is damaged: a code table is too long");
    bool frame =
        marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (frame && out->stored_width)
      return pe_fail(err, PE_EUNSUPPORTED, "JPEG files with several frames are not supported");
    pe_status rc = frame ? frame_header(body.at, body.left, marker, out, err) : PE_OK;
    if (rc) return rc;
    if (marker == EXIF && body.left >= 6 && !memcmp(body.at, "Exif\0", 6) && out->orientation == 1)
      out->orientation = orientation_of(body);
    skip(&r, n);
    if (marker == SCAN) skip_scan(&r);
  }
  if (!out->stored_width) return pe_fail(err, PE_EFORMAT, "the JPEG file has no frame header");
  return PE_OK;
}

/* ---- PNG ------------------------------------------------------------------------------------- */

static uint32_t crc32_of(const uint8_t *p, uint64_t n) {
  uint32_t table[256], crc = 0xffffffffu;
  for (uint32_t i = 0; i < 256; i++) {
    table[i] = i;
    for (int k = 0; k < 8; k++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
  }
  for (uint64_t i = 0; i < n; i++) crc = crc >> 8 ^ table[(crc ^ p[i]) & 255];
  return ~crc;
}

static pe_status png_header(const uint8_t *p, uint64_t n, pe_image_info *out, pe_error *err) {
  if (n != 13) return pe_fail(err, PE_EFORMAT, "the PNG header has %d bytes, not 13", (int)n);
  uint32_t width = big(p, 4), height = big(p + 4, 4), bits = p[8], kind = p[9];
  if (width > INT32_MAX || height > INT32_MAX)
    return pe_fail(err, PE_EFORMAT, "the PNG header has sides of %u and %u pixels", width, height);
  static const uint8_t channels[] = {1, 0, 3, 1, 2, 0, 4}; /* by kind; 3: a palette */
  if (kind > 6 || !channels[kind] || bits > 16 || !bits)
    return pe_fail(err, PE_EFORMAT, "the PNG header has color type %u with %u bits", kind, bits);
  out->stored_width = (int32_t)width, out->stored_height = (int32_t)height;
  out->alpha = kind == 4 || kind == 6;
  /* The decompressed bytes (their buffer doubles when it grows), the unfiltered picture, and two
   * copies of up to four channels while it is converted. */
  uint64_t each = (uint64_t)channels[kind] * (bits == 16 ? 2 : 1), area = (uint64_t)width * height;
  if (!pe_mul_size(area, each * 3 + 8 + (bits == 16 ? 8 : 0), &out->memory))
    out->memory = UINT64_MAX;
  return PE_OK;
}

static pe_status probe_png(reader r, pe_image_info *out, pe_error *err) {
  bool first = true, data = false;
  skip(&r, 8);
  for (;;) {
    if (r.left < 12) return cut_short(err, "PNG");
    uint64_t n = big(r.at, 4);
    const uint8_t *type = r.at + 4, *body = r.at + 8;
    if (n > r.left - 12) return cut_short(err, "PNG");
    if (crc32_of(type, n + 4) != big(body + n, 4))
      return pe_fail(err, PE_EFORMAT, "the PNG file is damaged: a checksum is wrong");
    if (first != !memcmp(type, "IHDR", 4))
      return pe_fail(err, PE_EFORMAT, "the PNG file does not begin with one header");
    pe_status rc = first ? png_header(body, n, out, err) : PE_OK;
    if (rc) return rc;
    first = false;
    if (!memcmp(type, "IDAT", 4)) data = true;
    if (!memcmp(type, "tRNS", 4)) out->alpha = true;
    if (!memcmp(type, "eXIf", 4)) out->orientation = orientation_of((reader){body, n});
    if (!memcmp(type, "IEND", 4)) break;
    skip(&r, n + 12);
  }
  return data ? PE_OK : pe_fail(err, PE_EFORMAT, "the PNG file has no picture data");
}

/* ---- WebP ------------------------------------------------------------------------------------ */

static pe_status probe_webp(reader r, pe_image_info *out, pe_error *err) {
  WebPBitstreamFeatures f;
  VP8StatusCode rc = WebPGetFeatures(r.at, r.left, &f);
  if (rc == VP8_STATUS_NOT_ENOUGH_DATA || (uint64_t)little(r.at + 4, 4) + 8 > r.left)
    return cut_short(err, "WebP");
  if (rc != VP8_STATUS_OK) return pe_fail(err, PE_EFORMAT, "the WebP file is damaged");
  if (f.has_animation)
    return pe_fail(err, PE_EUNSUPPORTED, "animated WebP files are not supported");
  out->stored_width = f.width, out->stored_height = f.height, out->alpha = f.has_alpha;
  out->memory = (uint64_t)f.width * (uint64_t)f.height * 12 + (4 << 20);
  for (skip(&r, 12); r.left >= 8;) {
    uint64_t n = little(r.at + 4, 4), padded = 8 + n + (n & 1);
    if (8 + n > r.left) break;
    if (!memcmp(r.at, "EXIF", 4)) out->orientation = orientation_of((reader){r.at + 8, n});
    skip(&r, padded < r.left ? padded : r.left);
  }
  return PE_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static pe_status probe_any(reader r, pe_image_info *out, pe_error *err) {
  if (r.left >= 4 && !memcmp(r.at, "\xff\xd8\xff", 3)) {
    out->format = PE_IMAGE_JPEG;
    return probe_jpeg(r, out, err);
  }
  if (r.left >= 8 && !memcmp(r.at, "\x89PNG\r\n\x1a\n", 8)) {
    out->format = PE_IMAGE_PNG;
    return probe_png(r, out, err);
  }
  if (r.left >= 12 && !memcmp(r.at, "RIFF", 4) && !memcmp(r.at + 8, "WEBP", 4)) {
    out->format = PE_IMAGE_WEBP;
    return probe_webp(r, out, err);
  }
  static const struct {
    const char *start, *name;
  } others[] = {{"GIF8", "GIF"}, {"BM", "BMP"}, {"II*", "TIFF"}, {"MM", "TIFF"}, {"<svg", "SVG"}};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (r.left >= 4 && !memcmp(r.at, others[i].start, strlen(others[i].start)))
      return pe_fail(err, PE_EUNSUPPORTED, "%s files are not supported, only JPEG, PNG and WebP",
                     others[i].name);
  return pe_fail(err, PE_EFORMAT, "not a JPEG, PNG or WebP file");
}

pe_status pe_image_probe(const uint8_t *bytes, uint64_t size, const pe_image_limits *limits,
                         pe_image_info *out, pe_error *err) {
  pe_image_info info = {.orientation = 1};
  pe_status rc = probe_any((reader){bytes, size}, &info, err);
  if (rc) return rc;
  uint64_t w = (uint64_t)info.stored_width, h = (uint64_t)info.stored_height, pixels;
  if (!w || !h)
    return pe_fail(err, PE_EFORMAT, "the picture has %d x %d pixels", info.stored_width,
                   info.stored_height);
  if (!pe_mul_size(w, h, &pixels) || pixels > limits->pixels)
    return pe_fail(err, PE_ELIMIT, "the picture has %d x %d pixels, more than the limit of %llu",
                   info.stored_width, info.stored_height, (unsigned long long)limits->pixels);
  if (info.memory > limits->memory)
    return pe_fail(err, PE_ELIMIT, "decoding %d x %d pixels needs %llu bytes, the limit is %llu",
                   info.stored_width, info.stored_height, (unsigned long long)info.memory,
                   (unsigned long long)limits->memory);
  bool turned = info.orientation >= 5;
  info.width = turned ? info.stored_height : info.stored_width;
  info.height = turned ? info.stored_width : info.stored_height;
  *out = info;
  return PE_OK;
}
