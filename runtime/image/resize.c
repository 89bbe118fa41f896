/* resize.c - see resize.h.
 *
 * One kernel does both passes: the weighted sum of several rows of bytes. The vertical pass gives
 * it rows of the picture. The horizontal pass takes LINES rows at a time and turns them, so that
 * pixels of one column lie next to each other: then columns are the rows of the kernel.
 *
 *   picture  r0 g0 b0 r1 g1 b1 …      turned   r0 g0 b0 of all lines   column 0
 *            (LINES lines)                     r1 g1 b1 of all lines   column 1
 *
 * A weight has 24 bits with its sign, more than a 16-bit multiply takes, so the kernel splits it
 * into hi * 2^11 + lo and adds up both parts. On x86-64 one multiply-add does two rows at once. */
#include "runtime/image/resize.h"

#include <math.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum {
  FRACTION = 22,      /* bits of a weight after the point */
  LOW = 11,           /* bits of its lower part; the upper has 13 with the sign */
  LINES = 16,         /* rows that the horizontal pass turns at once: one vector of bytes */
  COLUMN = LINES * 3, /* bytes of a turned column */
  VECTOR = 16,        /* bytes that the kernel computes at once */
  STRIP = 4096        /* columns of a result that are kept turned: 192 KB, within the cache */
};

static const double PI = 3.14159265358979323846;

const char *pe_filter_name(pe_filter filter) {
  static const char *const names[] = {"bilinear", "bicubic", "lanczos"};
  return (unsigned)filter < PE_FILTERS ? names[filter] : NULL;
}

/* ---- weights --------------------------------------------------------------------------------- */

static double bilinear(double x) {
  x = fabs(x);
  return x < 1 ? 1 - x : 0;
}

static double bicubic(double x) {
  const double a = -0.5;
  x = fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

static double sinc(double x) {
  if (x == 0) return 1;
  x *= PI;
  return sin(x) / x;
}

static double lanczos(double x) { return -3 <= x && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

typedef struct taps {
  int32_t *first; /* per output position: its first input position, and how many there are */
  int32_t *count;
  int16_t *hi, *lo; /* `most` per output position, zero after `count` */
  double *exact;    /* of one output position */
  int32_t most;     /* even: the kernel takes two at a time */
} taps;

static void taps_free(taps *t) {
  pe_free(t->first), pe_free(t->count), pe_free(t->hi), pe_free(t->lo), pe_free(t->exact);
  *t = (taps){0};
}

static pe_status taps_alloc(taps *t, int32_t out, int64_t most, pe_error *err) {
  *t = (taps){.most = (int32_t)most};
  size_t n = (size_t)out, all = n * (size_t)most;
  t->first = pe_alloc(n * sizeof *t->first), t->count = pe_alloc(n * sizeof *t->count);
  t->hi = pe_calloc(all, sizeof *t->hi), t->lo = pe_calloc(all, sizeof *t->lo);
  t->exact = pe_alloc((size_t)most * sizeof *t->exact);
  if (t->first && t->count && t->hi && t->lo && t->exact) return PE_OK;
  taps_free(t);
  return pe_nomem(err, "weights of a filter");
}

/* The operations and their order are Pillow's: another order rounds differently. */
static pe_status taps_compute(int32_t in, int32_t out, pe_filter filter, taps *t, pe_error *err) {
  static double (*const shapes[])(double) = {bilinear, bicubic, lanczos};
  static const double supports[] = {1, 2, 3};
  double scale = (double)in / out, wide = scale < 1 ? 1 : scale;
  double support = supports[filter] * wide, inverse = 1 / wide;
  int64_t most = ((int64_t)ceil(support) * 2 + 2) & ~(int64_t)1;
  pe_status rc = taps_alloc(t, out, most, err);
  for (int32_t i = 0; !rc && i < out; i++) {
    double center = (i + 0.5) * scale, sum = 0;
    int64_t from = (int64_t)(center - support + 0.5), to = (int64_t)(center + support + 0.5);
    if (from < 0) from = 0;
    if (to > in) to = in;
    t->first[i] = (int32_t)from, t->count[i] = (int32_t)(to - from);
    for (int64_t x = from; x < to; x++) {
      double w = shapes[filter](((double)x - center + 0.5) * inverse);
      t->exact[x - from] = w, sum += w;
    }
    for (int32_t k = 0; k < t->count[i]; k++) {
      double w = (sum != 0 ? t->exact[k] / sum : t->exact[k]) * (1 << FRACTION);
      int32_t whole = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
      t->hi[i * most + k] = (int16_t)(whole >> LOW);
      t->lo[i * most + k] = (int16_t)(whole & ((1 << LOW) - 1));
    }
  }
  return rc;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static uint8_t finish(int32_t sum) {
  sum = (sum + (1 << (FRACTION - 1))) >> FRACTION;
  return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void weigh_plain(const uint8_t *from, int64_t stride, int32_t count, const int16_t *hi,
                        const int16_t *lo, uint8_t *to, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i++) {
    int32_t high = 0, low = 0;
    for (int32_t k = 0; k < count; k++) {
      high += hi[k] * from[k * stride + i];
      low += lo[k] * from[k * stride + i];
    }
    to[i] = finish((int32_t)((uint32_t)high << LOW) + low);
  }
}

#if defined(__SSE2__)
/* Two rows interleaved, low or high half: each 32-bit lane holds the same byte of both. */
static inline void add_pair(__m128i both, __m128i hi, __m128i lo, __m128i *high, __m128i *low) {
  const __m128i zero = _mm_setzero_si128();
  __m128i a = _mm_unpacklo_epi8(both, zero), b = _mm_unpackhi_epi8(both, zero);
  high[0] = _mm_add_epi32(high[0], _mm_madd_epi16(a, hi));
  high[1] = _mm_add_epi32(high[1], _mm_madd_epi16(b, hi));
  low[0] = _mm_add_epi32(low[0], _mm_madd_epi16(a, lo));
  low[1] = _mm_add_epi32(low[1], _mm_madd_epi16(b, lo));
}

static inline __m128i whole(__m128i high, __m128i low) {
  __m128i sum = _mm_add_epi32(_mm_slli_epi32(high, LOW), low);
  return _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(1 << (FRACTION - 1))), FRACTION);
}

static void weigh_vector(const uint8_t *from, int64_t stride, int32_t count, const int16_t *hi,
                         const int16_t *lo, uint8_t *to) {
  __m128i high[4] = {{0}}, low[4] = {{0}};
  for (int32_t k = 0; k < count; k += 2) { /* an odd count ends with a weight of 0 */
    const uint8_t *second = from + (k + 1 < count ? k + 1 : k) * stride;
    __m128i a = _mm_loadu_si128((const __m128i *)(from + k * stride));
    __m128i b = _mm_loadu_si128((const __m128i *)second);
    int32_t two_hi, two_lo;
    memcpy(&two_hi, hi + k, 4), memcpy(&two_lo, lo + k, 4);
    __m128i h = _mm_set1_epi32(two_hi), l = _mm_set1_epi32(two_lo);
    add_pair(_mm_unpacklo_epi8(a, b), h, l, high, low);
    add_pair(_mm_unpackhi_epi8(a, b), h, l, high + 2, low + 2);
  }
  __m128i first = _mm_packs_epi32(whole(high[0], low[0]), whole(high[1], low[1]));
  __m128i last = _mm_packs_epi32(whole(high[2], low[2]), whole(high[3], low[3]));
  _mm_storeu_si128((__m128i *)to, _mm_packus_epi16(first, last));
}
#elif defined(__aarch64__)
static inline uint16x4_t whole(int32x4_t sum) {
  sum = vaddq_s32(sum, vdupq_n_s32(1 << (FRACTION - 1)));
  return vqmovun_s32(vshrq_n_s32(sum, FRACTION));
}

static void weigh_vector(const uint8_t *from, int64_t stride, int32_t count, const int16_t *hi,
                         const int16_t *lo, uint8_t *to) {
  int32x4_t sum[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
  for (int32_t k = 0; k < count; k++) {
    uint8x16_t row = vld1q_u8(from + k * stride);
    int32_t w = hi[k] * (1 << LOW) + lo[k];
    uint16x8_t a = vmovl_u8(vget_low_u8(row)), b = vmovl_u8(vget_high_u8(row));
    sum[0] = vmlaq_n_s32(sum[0], vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(a))), w);
    sum[1] = vmlaq_n_s32(sum[1], vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(a))), w);
    sum[2] = vmlaq_n_s32(sum[2], vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(b))), w);
    sum[3] = vmlaq_n_s32(sum[3], vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(b))), w);
  }
  uint16x8_t first = vcombine_u16(whole(sum[0]), whole(sum[1]));
  uint16x8_t last = vcombine_u16(whole(sum[2]), whole(sum[3]));
  vst1q_u8(to, vcombine_u8(vqmovn_u16(first), vqmovn_u16(last)));
}
#else
static void weigh_vector(const uint8_t *from, int64_t stride, int32_t count, const int16_t *hi,
                         const int16_t *lo, uint8_t *to) {
  weigh_plain(from, stride, count, hi, lo, to, VECTOR);
}
#endif

/* The weighted sum of `count` rows that lie `stride` bytes apart. */
static void weigh(const uint8_t *from, int64_t stride, int32_t count, const int16_t *hi,
                  const int16_t *lo, uint8_t *to, int64_t bytes) {
  int64_t i = 0;
  for (; i + VECTOR <= bytes; i += VECTOR) weigh_vector(from + i, stride, count, hi, lo, to + i);
  weigh_plain(from + i, stride, count, hi, lo, to + i, bytes - i);
}

/* ---- passes ---------------------------------------------------------------------------------- */

static void vertical(const pe_image *in, const taps *t, const pe_image *out) {
  const int64_t row = (int64_t)in->width * 3;
  for (int64_t y = 0; y < out->height; y++)
    weigh(in->rgb + t->first[y] * row, row, t->count[y], t->hi + y * t->most, t->lo + y * t->most,
          out->rgb + y * row, row);
}

/* `lines` rows of `columns` pixels, `stride` bytes apart, become columns; and back. */
static void turn(const uint8_t *from, int64_t stride, int lines, int64_t columns, uint8_t *to) {
  for (int line = 0; line < lines; line++) {
    const uint8_t *p = from + line * stride;
    uint8_t *q = to + line * 3;
    for (int64_t x = 0; x < columns; x++, p += 3, q += COLUMN)
      q[0] = p[0], q[1] = p[1], q[2] = p[2];
  }
}

static void turn_back(const uint8_t *from, int64_t columns, int lines, int64_t stride,
                      uint8_t *to) {
  for (int line = 0; line < lines; line++) {
    const uint8_t *p = from + line * 3;
    uint8_t *q = to + line * stride;
    for (int64_t x = 0; x < columns; x++, p += COLUMN, q += 3)
      q[0] = p[0], q[1] = p[1], q[2] = p[2];
  }
}

static pe_status horizontal(const pe_image *in, const taps *t, const pe_image *out, pe_error *err) {
  int64_t strip = out->width < STRIP ? out->width : STRIP;
  uint8_t *turned = pe_calloc((size_t)in->width + (size_t)strip, COLUMN);
  if (!turned) return pe_nomem(err, "columns of a picture");
  uint8_t *result = turned + (int64_t)in->width * COLUMN;
  for (int64_t y = 0; y < in->height; y += LINES) {
    int lines = in->height - y < LINES ? (int)(in->height - y) : LINES;
    turn(in->rgb + y * in->width * 3, (int64_t)in->width * 3, lines, in->width, turned);
    for (int64_t from = 0; from < out->width; from += strip) {
      int64_t n = out->width - from < strip ? out->width - from : strip;
      for (int64_t x = 0; x < n; x++) {
        int64_t i = from + x;
        weigh(turned + (int64_t)t->first[i] * COLUMN, COLUMN, t->count[i], t->hi + i * t->most,
              t->lo + i * t->most, result + x * COLUMN, COLUMN);
      }
      turn_back(result, n, lines, (int64_t)out->width * 3, out->rgb + (y * out->width + from) * 3);
    }
  }
  pe_free(turned);
  return PE_OK;
}

static pe_status pass(const pe_image *in, pe_filter filter, bool across, const pe_image *out,
                      pe_error *err) {
  taps t;
  pe_status rc = across ? taps_compute(in->width, out->width, filter, &t, err)
                        : taps_compute(in->height, out->height, filter, &t, err);
  if (rc) return rc;
  if (across)
    rc = horizontal(in, &t, out, err);
  else
    vertical(in, &t, out);
  taps_free(&t);
  return rc;
}

pe_status pe_resize(const pe_image *in, pe_filter filter, const pe_image *out, pe_error *err) {
  uint64_t bytes;
  if (!pe_filter_name(filter)) return pe_fail(err, PE_EARG, "no filter has number %d", filter);
  if (!pe_image_bytes(in->width, in->height, &bytes) ||
      !pe_image_bytes(out->width, out->height, &bytes))
    return pe_fail(err, PE_EARG, "cannot resize %d x %d pixels to %d x %d", in->width, in->height,
                   out->width, out->height);
  bool across = in->width != out->width, down = in->height != out->height;
  if (!across && !down) memcpy(out->rgb, in->rgb, bytes);
  if (!across || !down) return across || down ? pass(in, filter, across, out, err) : PE_OK;
  pe_image half;
  pe_status rc = pe_image_new(out->width, in->height, &half, err);
  if (rc) return rc;
  rc = pass(in, filter, true, &half, err);
  if (!rc) rc = pass(&half, filter, false, out, err);
  pe_image_free(&half);
  return rc;
}
