/* Pictures after decoding: SHA-256, orientation, alpha, resizing (byte for byte against Pillow's
 * results in tests/images), patches. */
#include "image_help.h"
#include "runtime/base64.h"
#include "runtime/image/patches.h"
#include "runtime/image/resize.h"
#include "sha256.h"

/* ---- SHA-256 --------------------------------------------------------------------------------- */

static void hex_of(const void *bytes, size_t n, char out[65]) {
  uint8_t digest[PE_SHA256_BYTES];
  pe_sha256_of(bytes, n, digest);
  for (int i = 0; i < PE_SHA256_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

static void sha256_vectors(void) { /* of FIPS 180-4 and NIST's examples */
  static const struct {
    const char *text, *digest;
  } known[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
  };
  char got[65];
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    hex_of(known[i].text, strlen(known[i].text), got);
    CHECK_STR(got, known[i].digest);
  }
  char *million = malloc(1000000);
  memset(million, 'a', 1000000);
  hex_of(million, 1000000, got);
  CHECK_STR(got, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  free(million);
}

static void sha256_pieces(void) { /* every length around a block, in pieces of every size */
  uint8_t bytes[200], digest[PE_SHA256_BYTES], other[PE_SHA256_BYTES];
  char got[65], want[65];
  for (int i = 0; i < 200; i++) bytes[i] = (uint8_t)(i * 7);
  for (size_t n = 0; n <= 200; n++) {
    hex_of(bytes, n, got);
    sha256(bytes, n, want);
    CHECK_STR(got, want);
    pe_sha256_of(bytes, n, digest);
    for (size_t piece = 1; piece <= 70; piece += 23) {
      pe_sha256 s;
      pe_sha256_begin(&s);
      for (size_t at = 0; at < n; at += piece)
        pe_sha256_add(&s, bytes + at, n - at < piece ? n - at : piece);
      pe_sha256_end(&s, other);
      CHECK(!memcmp(digest, other, sizeof digest));
    }
  }
}

/* ---- base64 ---------------------------------------------------------------------------------- */

static pe_status base64(const char *text, uint64_t most, char *got, pe_error *err) {
  pe_buffer *b;
  pe_status rc = pe_base64_decode(pe_str_c(text), most, &b, err);
  if (rc) return rc;
  memcpy(got, b->data, b->size);
  got[b->size] = 0;
  pe_buffer_release(b);
  return PE_OK;
}

static void base64_texts(void) {
  static const struct {
    const char *text, *want;
  } good[] = {{"", ""},
              {"Zg==", "f"},
              {"Zm8=", "fo"},
              {"Zm9v", "foo"},
              {"Zm9vYg==", "foob"},
              {"Zm9vYmE=", "fooba"},
              {"Zm9vYmFy", "foobar"}, /* the vectors of RFC 4648 */
              {"Zm9vYg", "foob"},
              {"Zm9vYmE", "fooba"},
              {" Zm9v\r\nYmFy\t", "foobar"},
              {"Zm 9vYmE =", "fooba"},
              {"PT8-Pz_=", "=?>?\x3f"}};
  static const struct {
    const char *text, *part;
  } bad[] = {{"Zm9*", "byte 4 is not"}, {"Zg==Zg==", "byte 5 is not"}, {"Z", "cut off"},
             {"Zm9vY", "cut off"},      {"Zm9v=", "cut off"},          {"Zg=", "cut off"},
             {"Z===", "cut off"},       {"====", "cut off"},           {"Zm\x80v", "byte 3 is not"},
             {"=m9v", "byte 2 is not"}};
  char got[100];
  pe_error err;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    CHECK_OK(base64(good[i].text, 99, got, &err), err);
    CHECK_STR(got, good[i].want);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    CHECK_FAILS(base64(bad[i].text, 99, got, &err), PE_EFORMAT, err, bad[i].part);
  CHECK_OK(base64("Zm9vYg==", 4, got, &err), err);
  CHECK_FAILS(base64("Zm9vYg==", 3, got, &err), PE_ELIMIT, err,
              "4 bytes are more than the limit of 3");
}

/* ---- pictures -------------------------------------------------------------------------------- */

static void hash_is_of_content(void) {
  pe_image a = noise(6, 4, 1), b = noise(6, 4, 1);
  uint8_t x[PE_SHA256_BYTES], y[PE_SHA256_BYTES];
  pe_image_hash(&a, x), pe_image_hash(&b, y);
  CHECK(!memcmp(x, y, sizeof x));
  b.rgb[71] ^= 1;
  pe_image_hash(&b, y);
  CHECK(memcmp(x, y, sizeof x));
  pe_image turned = {4, 6, a.rgb}; /* the same bytes with other sides */
  pe_image_hash(&turned, y);
  CHECK(memcmp(x, y, sizeof x));
  pe_image_free(&a), pe_image_free(&b);
}

static void orients(void) {
  /* a b c    The first row of the result, for each orientation. */
  /* d e f */
  static const char *const rows[] = {"abcdef", "cbafed", "fedcba", "defabc",
                                     "adbecf", "daebfc", "fcebda", "cfbead"};
  uint8_t rgb[18];
  for (int i = 0; i < 18; i++) rgb[i] = (uint8_t)('a' + i / 3 + (i % 3) * 100);
  pe_image image = {3, 2, rgb}, out;
  pe_error err;
  for (int o = 1; o <= 8; o++) {
    CHECK_OK(pe_image_orient(&image, o, &out, &err), err);
    CHECK_INT(out.width, o < 5 ? 3 : 2);
    CHECK_INT(out.height, o < 5 ? 2 : 3);
    for (int i = 0; i < 6; i++)
      for (int c = 0; c < 3; c++)
        CHECK_INT(out.rgb[3 * i + c], (uint8_t)(rows[o - 1][i] + c * 100));
    pe_image_free(&out);
  }
  CHECK_FAILS(pe_image_orient(&image, 0, &out, &err), PE_EARG, err, "between 1 and 8, got 0");
  CHECK_FAILS(pe_image_orient(&image, 9, &out, &err), PE_EARG, err, "got 9");
}

static void composites(void) {
  for (int alpha = 0; alpha < 256; alpha++)
    for (int x = 0; x < 256; x++) {
      uint8_t p[4] = {(uint8_t)x, 0, 255, (uint8_t)alpha};
      pe_image_composite(p, 1, p); /* in place */
      int want = (x * alpha + 255 * (255 - alpha) + 127) / 255;
      if (p[0] != want || p[1] != 255 - alpha || p[2] != 255) {
        CHECK_INT(p[0], want);
        return;
      }
    }
}

static void sides_are_checked(void) {
  uint64_t bytes;
  pe_image image;
  pe_error err;
  CHECK(pe_image_bytes(2, 3, &bytes) && bytes == 18);
  CHECK(!pe_image_bytes(0, 3, &bytes) && !pe_image_bytes(3, -1, &bytes));
  CHECK(!pe_image_bytes((int64_t)1 << 31, 1, &bytes));
  CHECK(!pe_image_bytes(INT32_MAX, INT32_MAX, &bytes));
  CHECK_FAILS(pe_image_new(0, 4, &image, &err), PE_EARG, err, "0 x 4");
}

/* ---- resizing -------------------------------------------------------------------------------- */

/* The filter of the next case in resize.json. */
static pe_filter next_filter(const char **json) {
  *json = strstr(*json, "\"filter\"");
  CHECK(*json != NULL);
  for (int f = 0; *json && f < PE_FILTERS; f++) {
    const char *name = pe_filter_name((pe_filter)f), *value = strchr(*json, ':');
    value = value ? strchr(value, '"') : NULL;
    if (value && !strncmp(value + 1, name, strlen(name))) {
      *json = value;
      return (pe_filter)f;
    }
  }
  CHECK(!"a known filter");
  return PE_BICUBIC;
}

static void resizes_like_pillow(void) {
  pe_safetensors *s;
  pe_error err;
  static char text[20000];
  FILE *f = fopen("tests/images/resize.json", "rb");
  CHECK(f && fread(text, 1, sizeof text - 1, f) > 0);
  if (f) fclose(f);
  CHECK_OK(pe_safetensors_open("tests/images/resize.safetensors", &s, &err), err);
  if (check_failures) return;
  const char *json = text;
  int cases = 0;
  for (;; cases++) {
    char name[32];
    snprintf(name, sizeof name, "in.%d", cases);
    const pe_safetensor *in = find_tensor(s, name);
    snprintf(name, sizeof name, "out.%d", cases);
    const pe_safetensor *out = find_tensor(s, name);
    if (!in || !out) break;
    pe_image from = image_of(s, in), want = image_of(s, out), got;
    int largest;
    CHECK_OK(pe_image_new(want.width, want.height, &got, &err), err);
    CHECK_OK(pe_resize(&from, next_filter(&json), &got, &err), err);
    CHECK_INT(image_differs(&got, &want, &largest), 0);
    pe_image_free(&got);
  }
  CHECK_INT(cases, 29);
  pe_safetensors_close(s);
}

/* A plain program after the same rule, for sizes that are not in the table: every remainder of the
 * vector width, of LINES and of the number of weights. */
static double reference_weight(pe_filter f, double x) {
  x = fabs(x);
  if (f == PE_BILINEAR) return x < 1 ? 1 - x : 0;
  if (f == PE_BICUBIC) {
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
  }
  if (x == 0) return 1;
  double p = x * 3.14159265358979323846, q = x / 3 * 3.14159265358979323846;
  return x < 3 ? sin(p) / p * (sin(q) / q) : 0;
}

static void reference_line(const uint8_t *in, int n, int step, pe_filter f, uint8_t *out, int m,
                           int out_step) {
  double scale = (double)n / m, wide = scale < 1 ? 1 : scale, support = (f + 1) * wide;
  for (int i = 0; i < m; i++) {
    double center = (i + 0.5) * scale, sum = 0;
    int from = (int)(center - support + 0.5), to = (int)(center + support + 0.5);
    if (from < 0) from = 0;
    if (to > n) to = n;
    for (int x = from; x < to; x++) sum += reference_weight(f, (x - center + 0.5) * (1 / wide));
    int64_t total = 1 << 21;
    for (int x = from; x < to; x++) {
      double w = reference_weight(f, (x - center + 0.5) * (1 / wide)) / sum * (1 << 22);
      total += (int64_t)(w < 0 ? w - 0.5 : w + 0.5) * in[x * step];
    }
    total >>= 22;
    out[i * out_step] = (uint8_t)(total < 0 ? 0 : total > 255 ? 255 : total);
  }
}

static void reference_resize(const pe_image *in, pe_filter f, const pe_image *out) {
  pe_image half = noise(out->width, in->height, 0);
  for (int y = 0; y < in->height; y++)
    for (int c = 0; c < 3; c++) {
      if (in->width == out->width)
        memcpy(half.rgb + y * out->width * 3, in->rgb + y * in->width * 3, (size_t)in->width * 3);
      else
        reference_line(in->rgb + y * in->width * 3 + c, in->width, 3, f,
                       half.rgb + y * out->width * 3 + c, out->width, 3);
    }
  for (int x = 0; x < out->width * 3; x++) {
    if (in->height == out->height)
      for (int y = 0; y < in->height; y++)
        out->rgb[y * out->width * 3 + x] = half.rgb[y * out->width * 3 + x];
    else
      reference_line(half.rgb + x, in->height, out->width * 3, f, out->rgb + x, out->height,
                     out->width * 3);
  }
  pe_image_free(&half);
}

static void resizes_any_shape(void) {
  static const int sides[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 48, 65};
  const int n = (int)(sizeof sides / sizeof *sides);
  uint32_t seed = 7;
  for (int round = 0; round < 400; round++) {
    int pick[4];
    for (int k = 0; k < 4; k++) seed = seed * 1664525 + 1013904223, pick[k] = (int)(seed >> 20) % n;
    pe_image in = noise(sides[pick[0]], sides[pick[1]], seed);
    if (round % 3 == 0) /* hard black and white: sums below 0 and above 255 are clipped */
      for (int i = 0; i < in.width * in.height * 3; i++) in.rgb[i] = in.rgb[i] > 127 ? 255 : 0;
    pe_image got = noise(sides[pick[2]], sides[pick[3]], 1), want = noise(got.width, got.height, 2);
    pe_filter f = (pe_filter)(round % PE_FILTERS);
    pe_error err;
    int largest;
    CHECK_OK(pe_resize(&in, f, &got, &err), err);
    reference_resize(&in, f, &want);
    if (image_differs(&got, &want, &largest))
      printf("    %s %d x %d to %d x %d\n", pe_filter_name(f), in.width, in.height, got.width,
             got.height),
          check_failures++;
    pe_image_free(&in), pe_image_free(&got), pe_image_free(&want);
  }
}

static void resize_refuses(void) {
  pe_image in = noise(2, 2, 1), out = {0, 4, in.rgb};
  pe_error err;
  CHECK_FAILS(pe_resize(&in, PE_BICUBIC, &out, &err), PE_EARG, err, "2 x 2 pixels to 0 x 4");
  CHECK_FAILS(pe_resize(&in, PE_FILTERS, &in, &err), PE_EARG, err, "no filter has number 3");
  out = noise(5, 7, 2);
  int64_t live = pe_alloc_live();
  pe_alloc_fail_at(0);
  CHECK_OK(pe_resize(&in, PE_BICUBIC, &out, &err), err);
  int64_t all = pe_alloc_count();
  CHECK(all >= 8);
  for (int64_t i = 1; i <= all; i++) {
    pe_alloc_fail_at(i);
    CHECK_FAILS(pe_resize(&in, PE_BICUBIC, &out, &err), PE_ENOMEM, err, "out of memory");
    CHECK_INT(pe_alloc_live(), live);
  }
  pe_alloc_fail_at(0);
  pe_image_free(&in), pe_image_free(&out);
}

/* ---- patches --------------------------------------------------------------------------------- */

static float value_of(const pe_patch_layout *l, const pe_image *image, int64_t x, int64_t y,
                      int c) {
  float v = (float)(image->rgb[(y * image->width + x) * 3 + c] * l->scale);
  return (v - l->mean[c]) / l->std[c];
}

static const pe_patch_layout qwen = {.order = PE_PATCH_CYX,
                                     .patch_width = 2,
                                     .patch_height = 2,
                                     .merge = 2,
                                     .frames = 2,
                                     .scale = 1.0 / 255,
                                     .mean = {.4f, .5f, .6f},
                                     .std = {.2f, .3f, .4f}};

static void patches_of_qwen(void) {
  pe_image frames[3] = {noise(8, 4, 1), noise(8, 4, 2), noise(8, 4, 3)};
  pe_patch_grid g;
  pe_error err;
  CHECK_OK(pe_patches_grid(&qwen, 8, 4, 3, &g, &err), err);
  CHECK_INT(g.groups, 2);
  CHECK_INT(g.rows, 2);
  CHECK_INT(g.columns, 4);
  CHECK_INT(g.values, 24);
  float out[2 * 8 * 24], *p = out;
  CHECK_OK(pe_patches(&qwen, frames, 3, out, &err), err);
  for (int group = 0; group < 2; group++)
    for (int block = 0; block < 2; block++)
      for (int in_block = 0; in_block < 4; in_block++)
        for (int c = 0; c < 3; c++)
          for (int f = 0; f < 2; f++)
            for (int i = 0; i < 4; i++) {
              int x = block * 4 + in_block % 2 * 2 + i % 2, y = in_block / 2 * 2 + i / 2;
              int frame = group * 2 + f < 3 ? group * 2 + f : 2; /* the last one is repeated */
              CHECK(*p++ == value_of(&qwen, &frames[frame], x, y, c));
            }
  for (int i = 0; i < 3; i++) pe_image_free(&frames[i]);
}

static void patches_of_a_part(void) {
  pe_patch_layout l = {.order = PE_PATCH_YXC,
                       .patch_width = 3,
                       .patch_height = 2,
                       .merge = 1,
                       .frames = 1,
                       .scale = 1.0 / 255,
                       .std = {1, 1, 1},
                       .x = 1,
                       .y = 2,
                       .width = 6,
                       .height = 4};
  pe_image image = noise(9, 7, 5);
  float out[4 * 18], *p = out;
  pe_error err;
  CHECK_OK(pe_patches(&l, &image, 1, out, &err), err);
  for (int row = 0; row < 2; row++)
    for (int column = 0; column < 2; column++)
      for (int y = 0; y < 2; y++)
        for (int x = 0; x < 3; x++)
          for (int c = 0; c < 3; c++)
            CHECK(*p++ == value_of(&l, &image, 1 + column * 3 + x, 2 + row * 2 + y, c));
  l.x = 4;
  CHECK_FAILS(pe_patches(&l, &image, 1, out, &err), PE_EARG, err, "6 x 4 pixels at 4, 2");
  pe_image_free(&image);
}

static void patches_refuse(void) {
  pe_patch_grid g;
  pe_error err;
  CHECK_FAILS(pe_patches_grid(&qwen, 8, 6, 1, &g, &err), PE_ESHAPE, err,
              "no whole blocks of 4 x 4");
  CHECK_FAILS(pe_patches_grid(&qwen, 8, 4, 0, &g, &err), PE_EARG, err, "1 or more");
  pe_patch_layout l = qwen;
  l.order = PE_PATCH_YXC;
  CHECK_FAILS(pe_patches_grid(&l, 8, 4, 1, &g, &err), PE_EARG, err, "one frame");
  const pe_patch_layout pixel = {.patch_width = 1,
                                 .patch_height = 1,
                                 .merge = 1,
                                 .frames = 1,
                                 .x = 7,
                                 .y = 3,
                                 .width = 1,
                                 .height = 1};
  CHECK_OK(pe_patches_grid(&pixel, 8, 4, 1, &g, &err), err);
  CHECK(g.rows == 1 && g.columns == 1);
  pe_image frames[2] = {noise(8, 4, 1), noise(4, 4, 2)};
  float out[400];
  CHECK_FAILS(pe_patches(&qwen, frames, 2, out, &err), PE_ESHAPE, err, "frame 2 has 4 x 4");
  pe_image_free(&frames[0]), pe_image_free(&frames[1]);
}

static const check_test tests[] = {
    {"SHA-256: known vectors", sha256_vectors},
    {"SHA-256: lengths and pieces", sha256_pieces},
    {"base64", base64_texts},
    {"the hash is of the content", hash_is_of_content},
    {"eight orientations", orients},
    {"alpha on white", composites},
    {"sides are checked", sides_are_checked},
    {"resizing is Pillow's, byte for byte", resizes_like_pillow},
    {"resizing: any shape", resizes_any_shape},
    {"resizing refuses, and frees", resize_refuses},
    {"patches: merge blocks and frames", patches_of_qwen},
    {"patches: a part, channels last", patches_of_a_part},
    {"patches refuse", patches_refuse},
};

CHECK_MAIN("test_image", tests)
