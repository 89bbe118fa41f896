/* vector_impl.h - vectors of floats, their sum and the exponential function: what prim_impl.h and
 * the tiles of attention have in common. The files that include it define
 *
 *   PE_WIDTH, PE_FMA(a, b, c)
 *
 * and may define PE_HIGHER, PE_LOWER and PE_TIMES_2, as in prim_impl.h. */
#include <stdint.h>
#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))

enum { W = PE_WIDTH, LANES = 16, PARTS = LANES / W };
typedef float vf __attribute__((vector_size(4 * PE_WIDTH)));
typedef int32_t vi __attribute__((vector_size(4 * PE_WIDTH)));
typedef uint32_t vu __attribute__((vector_size(4 * PE_WIDTH)));
typedef float v4 __attribute__((vector_size(16)));

ALWAYS vf load(const float *p) {
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
}
ALWAYS void store(float *p, vf v) { memcpy(p, &v, sizeof v); }
ALWAYS vf splat(float x) { return x - (vf){0}; } /* not x + 0: that would turn -0 into 0 */
ALWAYS vf fma_(vf a, vf b, vf c) { return PE_FMA(a, b, c); }
ALWAYS vf select_(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

ALWAYS vf higher(vf a, vf b) {
#ifdef PE_HIGHER
  return PE_HIGHER(a, b);
#else
  return select_(a > b, a, b);
#endif
}

ALWAYS vf lower(vf a, vf b) {
#ifdef PE_LOWER
  return PE_LOWER(a, b);
#else
  return select_(a < b, a, b);
#endif
}

/* ---- adding lanes ---------------------------------------------------------------------------- */

/* Lane i with i+8, then with i+4. */
ALWAYS v4 fold(const vf *a) {
#if PE_WIDTH == 4
  return (a[0] + a[2]) + (a[1] + a[3]);
#else
  typedef float v8 __attribute__((vector_size(32)));
#if PE_WIDTH == 8
  v8 s = a[0] + a[1];
#else
  v8 s = __builtin_shufflevector(a[0], a[0], 0, 1, 2, 3, 4, 5, 6, 7) +
         __builtin_shufflevector(a[0], a[0], 8, 9, 10, 11, 12, 13, 14, 15);
#endif
  return __builtin_shufflevector(s, s, 0, 1, 2, 3) + __builtin_shufflevector(s, s, 4, 5, 6, 7);
#endif
}

ALWAYS float lanes_sum(const vf *a) {
  v4 s = fold(a);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

/* ---- exp ------------------------------------------------------------------------------------- */

/* p * 2^n, in two steps so that subnormals are rounded once. */
ALWAYS vf times_2(vf p, vf n) {
#ifdef PE_TIMES_2
  return PE_TIMES_2(p, n);
#else
  vi whole = __builtin_convertvector(n, vi), half = whole >> 1, rest = whole - half;
  p = p * (vf)((vu)(half + 127) << 23);
  return p * (vf)((vu)(rest + 127) << 23);
#endif
}

/* e^x for finite x: x = n ln2 + r, |r| <= ln2/2, a polynomial in r, times 2^n. In three steps, for
 * those who have other things to do in between. */
typedef struct exp_parts {
  vf n, r;
} exp_parts;
ALWAYS exp_parts exp_begin(vf x) {
  const vf magic = splat(12582912.f);
  vf n = fma_(x, splat(1.44269504f), magic) - magic;
  vf r = fma_(n, splat(-0.693359375f), x);
  return (exp_parts){n, fma_(n, splat(2.12194440e-4f), r)};
}
ALWAYS exp_parts exp_middle(exp_parts e) {
  vf p = splat(1.9875691500e-4f), r = e.r;
  p = fma_(p, r, splat(1.3981999507e-3f));
  p = fma_(p, r, splat(8.3334519073e-3f));
  p = fma_(p, r, splat(4.1665795894e-2f));
  p = fma_(p, r, splat(1.6666665459e-1f));
  p = fma_(p, r, splat(5.0000001201e-1f));
  return (exp_parts){e.n, fma_(p, r * r, r)};
}
ALWAYS vf exp_end(exp_parts e) { return times_2(e.r + splat(1.f), e.n); }

/* The first limit also keeps NaN away from the conversion to integers. */
ALWAYS vf exp_(vf x) {
  const vf y = lower(higher(x, splat(-104.f)), splat(89.f));
  return select_(x == x, exp_end(exp_middle(exp_begin(y))), x);
}
