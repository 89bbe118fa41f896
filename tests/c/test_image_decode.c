/* Decoding: every kind of file in tests/images, EXIF, limits, damaged files. */
#include "image_help.h"
#include "runtime/image/decode.h"

enum { JPEG_LEVELS = 3 };

static const pe_image_limits roomy = {.pixels = 50000000, .memory = (uint64_t)1 << 30};

static pe_status decode(const pe_buffer *b, uint64_t size, const pe_image_limits *limits,
                        pe_image_info *info, pe_image *out, pe_error *err) {
  /* A copy of exactly this size, so that a sanitizer sees every byte read too many. */
  uint8_t *copy = malloc(size ? size : 1);
  memcpy(copy, b->data, size);
  pe_image_info probed;
  pe_error other;
  pe_status rc = pe_image_decode(copy, size, limits, info, out, err);
  pe_status first = pe_image_probe(copy, size, limits, &probed, &other);
  if (!rc) { /* the probe promises what decoding gives */
    CHECK_OK(first, other);
    CHECK_INT(probed.width, out->width);
    CHECK_INT(probed.height, out->height);
  }
  free(copy);
  return rc;
}

static bool load(const char *name, pe_image_info *info, pe_image *out) {
  char path[200];
  pe_error err;
  snprintf(path, sizeof path, "tests/images/%s", name);
  pe_buffer *b = file_bytes(path);
  if (!b) return ++check_failures, false;
  pe_status rc = decode(b, b->size, &roomy, info, out, &err);
  if (rc) printf("    %s: %s\n", name, err.text), check_failures++;
  pe_buffer_release(b);
  return !rc;
}

/* ---- against Pillow -------------------------------------------------------------------------- */

/* PNG is exact. JPEG leaves the rounding of the transform and of chroma upsampling to the decoder:
 * libjpeg-turbo, which Pillow uses, and stb_image differ by a few levels. */
static void like_pillow(void) {
  pe_safetensors *s;
  pe_error err;
  CHECK_OK(pe_safetensors_open("tests/images/decode.safetensors", &s, &err), err);
  if (check_failures) return;
  int files = 0;
  for (size_t i = 0; i < s->count; i++) {
    const char *name = s->tensor[i].name.at, *file = strchr(name, '.') + 1;
    char white[100];
    snprintf(white, sizeof white, "white.%s", file);
    if (!strncmp(name, "rgb.", 4) && find_tensor(s, white)) continue; /* its alpha is dropped */
    if (!strncmp(file, "video", 5)) continue;
    pe_image want = image_of(s, &s->tensor[i]), got;
    pe_image_info info;
    if (!load(file, &info, &got)) continue;
    int largest = 0, most = strstr(file, ".jpg") ? JPEG_LEVELS : 0;
    int64_t differ = image_differs(&got, &want, &largest);
    if (differ < 0 || largest > most)
      printf("    %s: %lld bytes differ, by up to %d\n", name, (long long)differ, largest),
          check_failures++;
    CHECK_INT(info.alpha, !strncmp(name, "white.", 6));
    files++;
    pe_image_free(&got);
  }
  CHECK_INT(files, 20);
  pe_safetensors_close(s);
}

/* ---- our own pictures ------------------------------------------------------------------------ */

static int value(int x, int y, int c) { return (x * 31 + y * 17 + c * 73) % 256; }

static int on_white(int v, int alpha) { return (v * alpha + 255 * (255 - alpha) + 127) / 255; }

enum { RGB, RGBA, GRAY, KEY, TURNED };

/* A picture of 7 x 5 pixels (5 x 7 if turned), as tests/gen/pictures.py writes it. */
static void expect(const char *name, int kind) {
  pe_image_info info;
  pe_image image;
  if (!load(name, &info, &image)) return;
  CHECK_INT(image.width, kind == TURNED ? 5 : 7);
  CHECK_INT(image.height, kind == TURNED ? 7 : 5);
  CHECK_INT(info.orientation, kind == TURNED ? 6 : 1);
  CHECK_INT(info.alpha, kind == RGBA || kind == KEY);
  int wrong = 0;
  for (int y = 0; y < 5; y++)
    for (int x = 0; x < 7; x++)
      for (int c = 0; c < 3; c++) {
        int want = value(x, y, kind == GRAY ? 0 : c);
        if (kind == RGBA) want = on_white(want, value(x, y, 3));
        if (kind == KEY && x == 3 && y == 2) want = 255;
        int at = kind == TURNED ? x * 5 + (4 - y) : y * 7 + x;
        wrong += image.rgb[3 * at + c] != want;
      }
  if (wrong) printf("    %s: %d values are wrong\n", name, wrong), check_failures++;
  pe_image_free(&image);
}

static void kinds(void) {
  expect("own_rgb8.png", RGB);
  expect("own_rgb16.png", RGB);
  expect("own_rgba16.png", RGBA);
  expect("own_gray16.png", GRAY);
  expect("own_key.png", KEY);
  expect("own_interlaced.png", RGB);
  expect("own_turned.png", TURNED);
  expect("own_lossless.webp", RGB);
  expect("own_alpha.webp", RGBA);
}

static void bits_and_sides(void) {
  static const char *const lines[] = {"101001011111", "000011110101"};
  pe_image_info info;
  pe_image image;
  if (load("own_gray1.png", &info, &image)) {
    for (int i = 0; i < 24; i++)
      CHECK_INT(image.rgb[3 * i], lines[i / 12][i % 12] == '1' ? 255 : 0);
    pe_image_free(&image);
  }
  if (load("own_1x1.png", &info, &image)) {
    CHECK(image.width == 1 && image.height == 1 && image.rgb[0] == 10 && image.rgb[2] == 30);
    pe_image_free(&image);
  }
  if (load("own_tall.png", &info, &image)) {
    CHECK(image.width == 1 && image.height == 10000 && image.rgb[3 * 9999] == 9999 % 251);
    pe_image_free(&image);
  }
  if (load("own_lossy.webp", &info, &image)) {
    CHECK_INT(info.format, PE_IMAGE_WEBP);
    pe_image_free(&image);
  }
}

/* ---- limits ---------------------------------------------------------------------------------- */

static pe_status decode_file(const char *name, const pe_image_limits *limits, pe_error *err) {
  char path[200];
  pe_image_info info;
  pe_image image;
  snprintf(path, sizeof path, "tests/images/%s", name);
  pe_buffer *b = file_bytes(path);
  pe_status rc = decode(b, b->size, limits, &info, &image, err);
  if (!rc) pe_image_free(&image);
  pe_buffer_release(b);
  return rc;
}

static void limits(void) {
  pe_error err;
  CHECK_FAILS(decode_file("own_huge.png", &roomy, &err), PE_ELIMIT, err,
              "60000 x 60000 pixels, more than the limit of 50000000");
  pe_image_limits few = {.pixels = 6149, .memory = (uint64_t)1 << 30}; /* shapes has 26600 */
  CHECK_FAILS(decode_file("shapes.png", &few, &err), PE_ELIMIT, err, "200 x 133 pixels");
  pe_image_limits small = {.pixels = 50000000, .memory = 100000};
  CHECK_FAILS(decode_file("shapes.png", &small, &err), PE_ELIMIT, err, "needs");
  CHECK_FAILS(decode_file("jpeg_420.jpg", &small, &err), PE_ELIMIT, err, "needs");
}

/* What the header promises must be enough for every file that does not lie. */
static void memory_is_promised(void) {
  static const char *const names[] = {"shapes.png",           "rgba.png",      "pal.png",
                                      "own_rgba16.png",       "own_key.png",   "own_tall.png",
                                      "jpeg_420.jpg",         "exif_6.jpg",    "own_interlaced.png",
                                      "jpeg_progressive.jpg", "jpeg_gray.jpg", "own_gray1.png"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[200];
    pe_image_info info;
    pe_error err;
    snprintf(path, sizeof path, "tests/images/%s", names[i]);
    pe_buffer *b = file_bytes(path);
    CHECK_OK(pe_image_probe(b->data, b->size, &roomy, &info, &err), err);
    pe_image_limits exact = {.pixels = roomy.pixels, .memory = info.memory + 20000};
    CHECK_OK(decode_file(names[i], &exact, &err), err);
    pe_buffer_release(b);
  }
}

static uint32_t crc_of(const uint8_t *p, size_t n) {
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

static uint8_t *put_chunk(uint8_t *p, const char *kind, const uint8_t *body, size_t n) {
  uint8_t *start = p + 4;
  for (int i = 0; i < 4; i++) p[i] = (uint8_t)(n >> (24 - 8 * i));
  memcpy(p + 4, kind, 4), memcpy(p + 8, body, n);
  uint32_t crc = crc_of(start, n + 4);
  for (int i = 0; i < 4; i++) p[8 + n + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
  return p + 12 + n;
}

/* A PNG of 16 x 16 by its header, whose data decompresses to 300 MB: fixed codes, one zero, then
 * matches of 258 bytes at distance 1, of 13 bits each. */
static void bomb_of_data(void) {
  enum { MATCHES = 1200000, BODY = 2 + (3 + 8 + MATCHES * 13) / 8 + 8 };
  uint8_t *file = malloc(BODY + 100), *body = calloc(1, BODY), *p = file;
  static const uint8_t head[13] = {0, 0, 0, 16, 0, 0, 0, 16, 8, 2};
  body[0] = 0x78, body[1] = 0x01;
  uint64_t at = 16;
  uint32_t first = 1 | 1 << 1 | 0x0c << 3; /* last block, fixed codes; 00110000 reversed: zero */
  for (int i = 0; i < 11; i++, at++) body[at / 8] |= (uint8_t)((first >> i & 1) << at % 8);
  for (int m = 0; m < MATCHES; m++, at += 13) /* 11000101 reversed, then five zeros */
    for (int i = 0; i < 8; i++)
      body[(at + (uint64_t)i) / 8] |= (uint8_t)((0xa3 >> i & 1) << (at + (uint64_t)i) % 8);
  memcpy(p, "\x89PNG\r\n\x1a\n", 8);
  p = put_chunk(p + 8, "IHDR", head, 13);
  p = put_chunk(p, "IDAT", body, BODY);
  p = put_chunk(p, "IEND", body, 0);
  pe_image_limits small = {.pixels = 1000, .memory = 1 << 24};
  pe_image_info info;
  pe_image image;
  pe_error err;
  CHECK_FAILS(pe_image_decode(file, (uint64_t)(p - file), &small, &info, &image, &err), PE_ELIMIT,
              err, "more than 16777216 bytes");
  free(file), free(body);
}

/* ---- damaged files --------------------------------------------------------------------------- */

static void truncated(void) {
  static const char *const names[] = {"own_rgb8.png",  "own_turned.png",       "jpeg_420.jpg",
                                      "exif_6.jpg",    "jpeg_progressive.jpg", "own_lossy.webp",
                                      "own_alpha.webp"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[200];
    snprintf(path, sizeof path, "tests/images/%s", names[i]);
    pe_buffer *b = file_bytes(path);
    for (uint64_t n = 0; n < b->size; n++) {
      pe_image_info info;
      pe_image image;
      pe_error err;
      if (decode(b, n, &roomy, &info, &image, &err)) continue;
      pe_image_free(&image);
      printf("    %s is decoded from its first %d bytes\n", names[i], (int)n), check_failures++;
    }
    pe_buffer_release(b);
  }
}

/* Any number of bytes 0xff may stand before a marker, also after the data. */
static void filled(void) {
  pe_buffer *b = file_bytes("tests/images/jpeg_420.jpg");
  const size_t n = b->size;
  uint8_t *longer = malloc(n + 1);
  CHECK(n > 2 && b->data[n - 2] == 0xff && b->data[n - 1] == 0xd9);
  memcpy(longer, b->data, n - 1), longer[n - 1] = 0xff, longer[n] = 0xd9;
  pe_image_info info;
  pe_error err;
  CHECK_OK(pe_image_probe(longer, n + 1, &roomy, &info, &err), err);
  free(longer), pe_buffer_release(b);
}

static void no_pictures(void) {
  static const struct {
    const char *bytes;
    pe_status code;
    const char *part;
  } cases[] = {{"", PE_EFORMAT, "not a JPEG, PNG or WebP file"},
               {"hello, this is a text called x.png", PE_EFORMAT, "not a JPEG"},
               {"GIF89a......", PE_EUNSUPPORTED, "GIF files are not supported"},
               {"<svg xmlns=\"\"/>", PE_EUNSUPPORTED, "SVG"},
               {"BM..............", PE_EUNSUPPORTED, "BMP"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_image_info info;
    pe_image image;
    pe_error err;
    CHECK_FAILS(pe_image_decode((const uint8_t *)cases[i].bytes, strlen(cases[i].bytes), &roomy,
                                &info, &image, &err),
                cases[i].code, err, cases[i].part);
  }
}

/* Every byte of small files changed, in several ways: an error or a picture, never a crash or a
 * leak. A PNG's checksums find every one. */
static void flipped(void) {
  static const char *const names[] = {"own_rgb8.png",         "own_turned.png", "exif_6.jpg",
                                      "jpeg_progressive.jpg", "own_alpha.webp", "own_lossy.webp"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[200];
    snprintf(path, sizeof path, "tests/images/%s", names[i]);
    pe_buffer *b = file_bytes(path), *changed;
    pe_error err;
    if (pe_buffer_alloc(b->size, &changed, &err)) abort();
    for (uint64_t at = 0; at < b->size; at++)
      for (int bit = 0; bit < 8; bit += 3) {
        memcpy(changed->data, b->data, b->size);
        changed->data[at] ^= (uint8_t)(1 << bit);
        pe_image_limits tight = {.pixels = 100000, .memory = 1 << 24};
        pe_image_info info;
        pe_image image;
        if (decode(changed, changed->size, &tight, &info, &image, &err)) continue;
        pe_image_free(&image);
        if (strstr(names[i], ".png"))
          printf("    %s with byte %d changed is decoded\n", names[i], (int)at), check_failures++;
      }
    pe_buffer_release(b), pe_buffer_release(changed);
  }
}

/* The same picture in three formats has one hash. */
static void one_hash(void) {
  static const char *const names[] = {"own_rgb8.png", "own_rgb16.png", "own_interlaced.png",
                                      "own_lossless.webp"};
  uint8_t first[PE_SHA256_BYTES], hash[PE_SHA256_BYTES];
  for (int i = 0; i < 4; i++) {
    pe_image_info info;
    pe_image image;
    if (!load(names[i], &info, &image)) return;
    pe_image_hash(&image, i ? hash : first);
    if (i) CHECK(!memcmp(first, hash, sizeof hash));
    pe_image_free(&image);
  }
}

static const check_test tests[] = {
    {"decodes like Pillow", like_pillow},
    {"kinds of PNG and WebP", kinds},
    {"one bit, one pixel, one column", bits_and_sides},
    {"limits", limits},
    {"the header promises enough memory", memory_is_promised},
    {"a bomb behind a small header", bomb_of_data},
    {"truncated files are errors", truncated},
    {"fill bytes", filled},
    {"files that are not pictures", no_pictures},
    {"changed bytes", flipped},
    {"one hash in every lossless format", one_hash},
};

CHECK_MAIN("test_image_decode", tests)
