/* int16_impl.h - the one source of the products of int16.h. int16_<isa>.c defines these macros and
 * includes it:
 *
 *   PE_ISA, PE_ISA_NAME    name of the version
 *   PE_WIDTH               32-bit lanes of a register: 4, 8 or 16
 *   PE_FMA(a, b, c)        a * b + c of registers of floats, rounded once
 *   PE_DOT(acc, w, x)      acc + products of the pairs of 16-bit values of each lane, in 32 bits
 *   PE_HALVES(p)           PE_WIDTH halves as floats
 *   PE_SHORTS(p)           PE_WIDTH values of 16 bits as unsigned 32-bit integers
 *   PE_BYTES(p)            the same of 8 bits
 *   PE_LOOKUP(table, v)    each byte (0 to 15) of v replaced by its entry of 16
 *   PE_TILE, PE_PANELS     rows and panels of a tile: 8 and 2, or 4 and 1
 *   PE_FUSED               rows up to which `fused` is used: 2, or 0
 *
 * One or two rows are bound by memory: `fused` unpacks weights in registers and reads four panels
 * at a time, since one address stream does not fill the buffers of outstanding cache lines. For
 * more rows `blocks` unpacks two panels of 256 columns into the first-level cache and runs tiles of
 * rows over them. */
#include "kernels/cpu/int16_layout.h"

#include <math.h>
#include <string.h>

#define PE_PASTE2(a, b) a##b
#define PE_PASTE(a, b) PE_PASTE2(a, b)
#define ALWAYS static inline __attribute__((always_inline))
#define NEVER __attribute__((noinline))

enum { W = PE_WIDTH, LANES = PE_INT16_LANES, PARTS = LANES / W, P = PE_PANELS };
typedef float vf __attribute__((vector_size(4 * PE_WIDTH)));
typedef int32_t vi __attribute__((vector_size(4 * PE_WIDTH)));
typedef uint32_t vu __attribute__((vector_size(4 * PE_WIDTH)));
typedef uint16_t vh __attribute__((vector_size(4 * PE_WIDTH)));

ALWAYS vf load(const float *p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}
ALWAYS vu load_words(const void *p) {
  vu v;
  memcpy(&v, p, sizeof v);
  return v;
}
ALWAYS void store(void *p, vf v) { memcpy(p, &v, sizeof v); }
ALWAYS vf splat(float x) { return x - (vf){0}; } /* not x + 0: that would turn -0 into 0 */
ALWAYS vi splat_int(int32_t x) { return x + (vi){0}; }
ALWAYS vi splat_pair(const int16_t *p) {
  int32_t x;
  memcpy(&x, p, sizeof x);
  return splat_int(x);
}
ALWAYS vf fma_(vf a, vf b, vf c) { return PE_FMA(a, b, c); }
ALWAYS vf select_(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* ---- activations ----------------------------------------------------------------------------- */

enum { UNIT = 64 }; /* columns that are quantized together */

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

typedef enum reduction { SUM, MOST } reduction;
#define REDUCE(how, a, b) ((how) == SUM ? (a) + (b) : (((a) > (b)) & (a)) | (((a) <= (b)) & (b)))
/* Sixteen columns to four lanes. */
ALWAYS i4 fold(const vi *v, const reduction how) {
#if PE_WIDTH == 4
  i4 a = REDUCE(how, v[0], v[1]), b = REDUCE(how, v[2], v[3]);
#else
#if PE_WIDTH == 8
  vi s = REDUCE(how, v[0], v[1]);
#else
  typedef int32_t i8 __attribute__((vector_size(32)));
  i8 low = __builtin_shufflevector(v[0], v[0], 0, 1, 2, 3, 4, 5, 6, 7);
  i8 high = __builtin_shufflevector(v[0], v[0], 8, 9, 10, 11, 12, 13, 14, 15);
  i8 s = REDUCE(how, low, high);
#endif
  i4 a = __builtin_shufflevector(s, s, 0, 1, 2, 3), b = __builtin_shufflevector(s, s, 4, 5, 6, 7);
#endif
  return REDUCE(how, a, b);
}

/* 64 columns to four lanes, one per 16 columns, and then to one result per group, in every lane of
 * the group. */
ALWAYS i4 fold_groups(const vi *v, int act, const reduction how) {
  i4 a = fold(v, how), b = fold(v + PARTS, how);
  i4 c = fold(v + 2 * PARTS, how), d = fold(v + 3 * PARTS, how);
  i4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5),
     ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  i4 cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5),
     cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  i4 ab = REDUCE(how, ab0, ab1), cd = REDUCE(how, cd0, cd1);
  i4 even = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
  i4 odd = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  i4 all = REDUCE(how, even, odd);
  if (act >= 32) {
    i4 other = __builtin_shufflevector(all, all, 1, 0, 3, 2);
    all = REDUCE(how, all, other);
  }
  if (act >= 64) {
    i4 other = __builtin_shufflevector(all, all, 2, 3, 0, 1);
    all = REDUCE(how, all, other);
  }
  return all;
}

/* Magnitudes as bits have the order of their values, and those of infinity and NaN are above all
 * others. 2^-96: 32767 / it is far from infinity, and products with it are far from subnormal. */
enum { LEAST = (127 - 96) << 23, INFINITE = 0x7f800000 };

typedef struct group_scales {
  f4 scale, factor;
  i4 live; /* mask: neither zeros only, nor infinity or NaN */
} group_scales;

ALWAYS group_scales scales_of_tops(i4 bits) {
  i4 small = bits < LEAST, live = (bits > 0) & (bits < INFINITE);
  f4 top = (f4)((small & LEAST) | (~small & bits));
  f4 scale = top / 32767.f,
     rest = (f4)((bits > 0) & (i4){0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000});
  return (group_scales){(f4)((live & (i4)scale) | (~live & (i4)rest)), 32767.f / top, live};
}

/* Codes of W values: adding 1.5 * 2^23 rounds to an integer, which then is in the low bits. */
ALWAYS vi round_codes(vf x, float factor, int32_t live) {
  const vf magic = splat(12582912.f);
  return ((vi)(x * splat(factor) + magic) - (vi)magic) & splat_int(live);
}

/* Pairs of columns k and k + 4 of blocks of eight, from the codes a, b of 2 W columns. */
ALWAYS vi pair_codes(vi a, vi b) {
#if PE_WIDTH == 4
  vi low = a, high = b;
#elif PE_WIDTH == 8
  vi low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  vi high = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
#else
  vi low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  vi high =
      __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
#endif
  return (low & 0xffff) | (vi)((vu)high << 16);
}

/* 64 columns of a row that is one of n of its tile. */
ALWAYS void quantize_unit(const float *x, int act, int groups, int n, int16_t *codes, float *scale,
                          float *scaled, int32_t *sum) {
  vi v[UNIT / W];
  for (int i = 0; i < UNIT / W; i++) v[i] = (vi)load(x + W * i) & 0x7fffffff;
  const group_scales s = scales_of_tops(fold_groups(v, act, MOST));
  for (int i = 0; i < UNIT / W; i++)
    v[i] = round_codes(load(x + W * i), s.factor[W * i / 16], s.live[W * i / 16]);
  for (int i = 0; i < UNIT / W; i += 2) {
    vi pairs = pair_codes(v[i], v[i + 1]);
    for (int k = 0; k < W / 4; k++)
      memcpy(codes + (i / 2 * (W / 4) + k) * n * 8, (const int32_t *)&pairs + 4 * k, 16);
  }
  const i4 sums = fold_groups(v, act, SUM);
  const f4 products = s.scale * __builtin_convertvector(sums, f4);
  for (int g = 0; g < groups; g++) {
    scale[g * n] = s.scale[g * act / 16], scaled[g * n] = products[g * act / 16];
    sum[g * n] = sums[g * act / 16];
  }
}

static void quantize_row(const pe_int16_rows *out, const float *x, pe_int16_tile t, int32_t r) {
  const int n = t.rows, per = UNIT / out->act;
  const int64_t at = t.from * out->groups + r;
  int16_t *codes = out->codes + t.from * out->step + (int64_t)r * 8;
  for (int64_t col = 0, g = 0; col < out->cols; col += UNIT, g += per) {
    const float *from = x + col;
    float padded[UNIT];
    int groups = per;
    if (out->cols - col < UNIT) {
      memset(padded, 0, sizeof padded);
      memcpy(padded, from, (size_t)(out->cols - col) * sizeof *x);
      from = padded, groups = (int)(out->cols - col) / out->act;
    }
    quantize_unit(from, out->act, groups, n, codes + col * n, out->scale + at + g * n,
                  out->scaled + at + g * n, out->sum + at + g * n);
  }
}

static void quantize(const pe_int16_rows *out, const float *x, int64_t x_step, int32_t from,
                     int32_t to) {
  for (int32_t tile = 0; tile < out->tiles; tile++) {
    const pe_int16_tile t = pe_int16_tile_at(out, tile);
    for (int32_t r = 0; r < t.rows; r++)
      if (t.from + r >= from && t.from + r < to) quantize_row(out, x + (t.from + r) * x_step, t, r);
  }
}

#include "kernels/cpu/int16_unpack.h"

#include "kernels/cpu/int16_tile.h"

const pe_int16 PE_PASTE(pe_int16_, PE_ISA) = {PE_ISA_NAME, PE_TILE, quantize, product};
