/* int16_impl.h - the one source of the products of int16.h. int16_<isa>.c defines these macros and
 * includes it:
 *
 *   PE_ISA, PE_ISA_NAME    name of the version
 *   PE_WIDTH               32-bit lanes of a register: 4, 8 or 16
 *   PE_FMA(a, b, c)        a * b + c of registers of floats, rounded once
 *   PE_DOT(acc, w, x)      acc + products of the pairs of 16-bit values of each lane, in 32 bits
 *   PE_HALVES(p)           PE_WIDTH halves as floats
 *   PE_BYTES(p)            PE_WIDTH bytes as unsigned 32-bit integers
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

enum { UNIT = 64 }; /* columns that are quantized, and multiplied, together */

/* The largest magnitude of 16 values, as bits: their order is that of the magnitudes, and that of
 * infinity and NaN is above all others. */
ALWAYS int32_t top_bits(const float *x) {
  int32_t most[W], top = 0;
  vi m = {0};
  for (int p = 0; p < PARTS; p++) {
    vi v = (vi)load(x + p * W) & 0x7fffffff, more = v > m;
    m = (more & v) | (~more & m);
  }
  memcpy(most, &m, sizeof most);
  for (int i = 0; i < W; i++) top = most[i] > top ? most[i] : top;
  return top;
}

/* 2^-96: 32767 / it is far from infinity, and products with it are far from the subnormals. */
enum { LEAST = (127 - 96) << 23, INFINITE = 0x7f800000 };

/* The scale of a group and the factor of its codes. */
ALWAYS float group_scale(int32_t bits, float *factor) {
  float top;
  *factor = 0;
  if (!bits) return 0;
  if (bits >= INFINITE) return NAN;
  bits = bits < LEAST ? LEAST : bits;
  memcpy(&top, &bits, sizeof top);
  *factor = 32767.f / top;
  return top / 32767.f;
}

/* Codes of W values: adding 1.5 * 2^23 rounds to an integer, which then is in the low bits. Values
 * of a group with factor 0 may be NaN, and get code 0. */
ALWAYS vi round_codes(const float *x, float factor) {
  const vf magic = splat(12582912.f);
  vi code = (vi)(load(x) * splat(factor) + magic) - (vi)magic;
  return factor != 0 ? code : (vi){0};
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
  float factor[UNIT / 16];
  int32_t top[UNIT / 16], total[UNIT / 16];
  vi code[UNIT / W];
  for (int i = 0; i < UNIT / 16; i++) top[i] = top_bits(x + 16 * i);
  for (int i = 0, each = act / 16; i < UNIT / 16; i += each) {
    int32_t most = 0;
    for (int j = 0; j < each; j++) most = top[i + j] > most ? top[i + j] : most;
    float f, s = group_scale(most, &f);
    for (int j = 0; j < each; j++) factor[i + j] = f;
    if (i / each < groups) scale[i / each * n] = s;
  }
  for (int i = 0; i < UNIT / W; i++) code[i] = round_codes(x + W * i, factor[W * i / 16]);
  for (int i = 0; i < UNIT / W; i += 2) {
    vi pairs = pair_codes(code[i], code[i + 1]);
    for (int k = 0; k < W / 4; k++)
      memcpy(codes + (i / 2 * (W / 4) + k) * n * 8, (const int32_t *)&pairs + 4 * k, 16);
  }
  for (int i = 0; i < UNIT / 16; i++) {
    int32_t lanes[W];
    vi t = code[i * PARTS];
    for (int p = 1; p < PARTS; p++) t += code[i * PARTS + p];
    memcpy(lanes, &t, sizeof lanes);
    total[i] = 0;
    for (int j = 0; j < W; j++) total[i] += lanes[j];
  }
  for (int g = 0, each = act / 16; g < groups; g++) {
    int32_t t = 0;
    for (int j = 0; j < each; j++) t += total[g * each + j];
    sum[g * n] = t;
    scaled[g * n] = scale[g * n] * (float)t;
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
