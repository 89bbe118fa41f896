/* prim_impl.h - the one source of the inner loops of prim.h. prim_<isa>.c defines these macros and
 * includes it; decode_impl.h has a few more for every version but the scalar one:
 *
 *   PE_ISA, PE_ISA_NAME    name of the version
 *   PE_WIDTH               floats in a register: 4, 8 or 16
 *   PE_FMA(a, b, c)        a * b + c of registers, rounded once
 *   PE_TILE_ROWS, _COLS    sums of a tile of `dots`, at most 4 rows
 *   PE_ROW_COLS            columns of a tile when there is a single row
 *   PE_MIX_ROWS, _VECS     rows and registers of a tile of `mix`
 *   PE_MIX_MANY, _WIDE     the same where there are as many rows
 *   PE_SCALAR              defined: rows of weights are decoded by pe_quant_row
 *
 * and may define shorter ways to the same results:
 *
 *   PE_HIGHER(a, b)        a > b ? a : b, and PE_LOWER(a, b) a < b ? a : b
 *   PE_TIMES_2(p, n)       p * 2^n for whole n, rounded once
 *
 * The shape of a tile changes the speed, never a result. Only PE_FMA fuses: these files are
 * compiled with -ffp-contract=off like all others. */
#if !defined PE_ISA || !defined PE_ISA_NAME || !defined PE_WIDTH || !defined PE_FMA
#error "prim_impl.h: an instruction set must define PE_ISA, PE_ISA_NAME, PE_WIDTH and PE_FMA"
#endif
#if !defined PE_TILE_ROWS || !defined PE_TILE_COLS || !defined PE_ROW_COLS ||                      \
    !defined PE_MIX_ROWS || !defined PE_MIX_VECS || !defined PE_MIX_MANY || !defined PE_MIX_WIDE
#error "prim_impl.h: an instruction set must define the tiles of dots and mix"
#endif
#if PE_TILE_ROWS < 2 || PE_TILE_ROWS > 4
#error "prim_impl.h: dots handles tiles of 2 to 4 rows"
#endif

#include "kernels/cpu/prim.h"

#include <math.h>
#include <string.h>

#define PE_PASTE2(a, b) a##b
#define PE_PASTE(a, b) PE_PASTE2(a, b)

#include "kernels/cpu/vector_impl.h"

ALWAYS float load1(const float *p) {
  float x;
  memcpy(&x, p, sizeof x);
  return x;
}

/* The last n < LANES values, and zeros. */
static inline void load_tail(const float *p, int64_t n, float *lanes) {
  memset(lanes, 0, LANES * sizeof *lanes);
  memcpy(lanes, p, (size_t)n * sizeof *lanes);
}

/* ---- adding lanes ---------------------------------------------------------------------------- */

/* The rest of the tree, i with i+2 and then i+1, for four sums at once. */
ALWAYS v4 finish4(v4 a, v4 b, v4 c, v4 d) {
  v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  v4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

#if PE_WIDTH == 16
/* The same for four registers: four lanes of each next to each other; finish16 turns four results
 * of this into sixteen sums. */
ALWAYS vf fold4(vf a, vf b, vf c, vf d) {
  vf ab =
      __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
      __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  vf cd =
      __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
      __builtin_shufflevector(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  return __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30,
                                 31);
}

ALWAYS vf finish16(vf a, vf b, vf c, vf d) {
  vf ab = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
          __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  vf cd = __builtin_shufflevector(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
          __builtin_shufflevector(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  return __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30,
                                 31);
}
#endif

/* ---- products -------------------------------------------------------------------------------- */

enum { MOST = 8 }; /* the largest side of a tile */

/* The next sixteen values of R rows and C columns. R and C are constants after inlining, so the
 * accumulators stay in registers. */
ALWAYS void tile_lanes(const float *x, int64_t xs, const float *w, int64_t ws,
                       vf acc[MOST][MOST][PARTS], const int R, const int C) {
  for (int p = 0; p < PARTS; p++) {
    vf b[MOST];
    for (int c = 0; c < C; c++) b[c] = load(w + c * ws + p * W);
    for (int r = 0; r < R; r++) {
      vf a = load(x + r * xs + p * W);
      for (int c = 0; c < C; c++) acc[r][c][p] = fma_(a, b[c], acc[r][c][p]);
    }
  }
}

/* Adds the lanes of all accumulators with as few shuffles as possible. */
ALWAYS void tile_sums(vf acc[MOST][MOST][PARTS], float *out, int64_t os, const int R, const int C) {
#if PE_WIDTH == 16
  if (R == 4 && C == 4) {
    vf q[4];
    for (int c = 0; c < 4; c++)
      q[c] = fold4(acc[0][c][0], acc[1][c][0], acc[2][c][0], acc[3][c][0]);
    vf sums = finish16(q[0], q[1], q[2], q[3]);
    for (int r = 0; r < 4; r++) memcpy(out + r * os, (const float *)&sums + 4 * r, 4 * sizeof *out);
    return;
  }
#endif
  v4 folded[MOST * MOST + 3], sums[(MOST * MOST + 3) / 4];
  for (int i = 0; i < R * C + 3; i++) folded[i] = i < R * C ? fold(acc[i / C][i % C]) : (v4){0};
  for (int i = 0; i < R * C; i += 4)
    sums[i / 4] = finish4(folded[i], folded[i + 1], folded[i + 2], folded[i + 3]);
  for (int i = 0; i < R * C; i++) out[i / C * os + i % C] = sums[i / 4][i % 4];
}

ALWAYS void tile(const float *x, int64_t xs, const float *w, int64_t ws, int64_t n, float *out,
                 int64_t os, const int R, const int C) {
  vf acc[MOST][MOST][PARTS];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++)
      for (int p = 0; p < PARTS; p++) acc[r][c][p] = (vf){0};
  int64_t k = 0;
  for (; k + LANES <= n; k += LANES) tile_lanes(x + k, xs, w + k, ws, acc, R, C);
  if (k < n) {
    float a[MOST * LANES], b[MOST * LANES];
    for (int r = 0; r < R; r++) load_tail(x + r * xs + k, n - k, a + r * LANES);
    for (int c = 0; c < C; c++) load_tail(w + c * ws + k, n - k, b + c * LANES);
    tile_lanes(a, LANES, b, LANES, acc, R, C);
  }
  tile_sums(acc, out, os, R, C);
}

ALWAYS void row_tiles(const float *x, int64_t xs, const float *w, int64_t ws, int cols, int64_t n,
                      float *out, int64_t os, const int R, const int C) {
  int c = 0;
  for (; c + C <= cols; c += C) tile(x, xs, w + c * ws, ws, n, out + c, os, R, C);
  for (; c < cols; c++) tile(x, xs, w + c * ws, ws, n, out + c, os, R, 1);
}

static void dots(const float *x, int64_t xs, int rows, const float *w, int64_t ws, int cols,
                 int64_t n, float *out, int64_t os) {
  int r = 0;
  for (; r + PE_TILE_ROWS <= rows; r += PE_TILE_ROWS)
    row_tiles(x + r * xs, xs, w, ws, cols, n, out + r * os, os, PE_TILE_ROWS, PE_TILE_COLS);
  x += r * xs, out += r * os;
  switch (rows - r) {
#if PE_TILE_ROWS > 3
  case 3: row_tiles(x, xs, w, ws, cols, n, out, os, 3, PE_TILE_COLS); break;
#endif
  case 2: row_tiles(x, xs, w, ws, cols, n, out, os, 2, PE_TILE_COLS); break;
  case 1: row_tiles(x, xs, w, ws, cols, n, out, os, 1, PE_ROW_COLS); break;
  default: break;
  }
}

/* Lines of float32 or, with H, of float16; `at` counts values. */
ALWAYS vf load_line(const void *v, int64_t at, const int H) {
  if (!H) return load((const float *)v + at);
#ifdef PE_SCALAR
  vf x;
  for (int j = 0; j < W; j++) x[j] = pe_f16_to_f32(((const uint16_t *)v)[at + j]);
  return x;
#else
  return PE_HALVES((const uint16_t *)v + at);
#endif
}
ALWAYS float load_line1(const void *v, int64_t at, const int H) {
  return H ? pe_f16_to_f32(((const uint16_t *)v)[at]) : load1((const float *)v + at);
}

/* Keeps V registers of each of R rows of y while it goes over all `cols` lines of v, from value k
 * of each. There is at least one: around a loop that may not run at all gcc passes sums through the
 * stack. */
ALWAYS void mix_tile(const float *a, int64_t as, const void *v, int64_t vs, int64_t k, int cols,
                     float *y, int64_t ys, const int R, const int V, const int H) {
  vf acc[MOST][MOST];
  for (int r = 0; r < R; r++)
    for (int i = 0; i < V; i++) acc[r][i] = load(y + r * ys + i * W);
  int c = 0;
  do {
    vf line[MOST];
    for (int i = 0; i < V; i++) line[i] = load_line(v, c * vs + k + i * W, H);
    for (int r = 0; r < R; r++) {
      vf f = splat(load1(a + r * as + c));
      for (int i = 0; i < V; i++) acc[r][i] = fma_(f, line[i], acc[r][i]);
    }
  } while (++c < cols);
  for (int r = 0; r < R; r++)
    for (int i = 0; i < V; i++) store(y + r * ys + i * W, acc[r][i]);
}

ALWAYS void mix_rows(const float *a, int64_t as, const void *v, int64_t vs, int cols, int64_t n,
                     float *y, int64_t ys, const int R, const int V, const int H) {
  int64_t k = 0;
  for (; k + V * W <= n; k += V * W) mix_tile(a, as, v, vs, k, cols, y + k, ys, R, V, H);
  for (; k + W <= n; k += W) mix_tile(a, as, v, vs, k, cols, y + k, ys, R, 1, H);
  for (; k < n; k++)
    for (int r = 0; r < R; r++) {
      float s = load1(y + r * ys + k);
      for (int c = 0; c < cols; c++)
        s = fmaf(load1(a + r * as + c), load_line1(v, c * vs + k, H), s);
      memcpy(y + r * ys + k, &s, sizeof s);
    }
}

ALWAYS void mix_all(const float *a, int64_t as, int rows, const void *v, int64_t vs, int cols,
                    int64_t n, float *y, int64_t ys, const int H) {
  int r = 0;
  if (cols <= 0) return;
  for (; r + PE_MIX_MANY <= rows; r += PE_MIX_MANY)
    mix_rows(a + r * as, as, v, vs, cols, n, y + r * ys, ys, PE_MIX_MANY, PE_MIX_WIDE, H);
  for (; r + PE_MIX_ROWS <= rows; r += PE_MIX_ROWS)
    mix_rows(a + r * as, as, v, vs, cols, n, y + r * ys, ys, PE_MIX_ROWS, PE_MIX_VECS, H);
  for (; PE_MIX_ROWS > 2 && r + 2 <= rows; r += 2)
    mix_rows(a + r * as, as, v, vs, cols, n, y + r * ys, ys, 2, PE_MIX_VECS, H);
  for (; r < rows; r++) mix_rows(a + r * as, as, v, vs, cols, n, y + r * ys, ys, 1, PE_MIX_VECS, H);
}

static void mix(const float *a, int64_t as, int rows, const float *v, int64_t vs, int cols,
                int64_t n, float *y, int64_t ys) {
  mix_all(a, as, rows, v, vs, cols, n, y, ys, 0);
}

static void mix_halves(const float *a, int64_t as, int rows, const uint16_t *v, int64_t vs,
                       int cols, int64_t n, float *y, int64_t ys) {
  mix_all(a, as, rows, v, vs, cols, n, y, ys, 1);
}

/* One step of a linear recurrence for R lines of the state. */
ALWAYS void recur_lines(float *s, int64_t n, const float *g, const float *d, const float *k,
                        const float *q, float *y, const int R) {
  vf acc[MOST][PARTS], by[MOST];
  for (int r = 0; r < R; r++) {
    by[r] = splat(load1(d + r));
    for (int p = 0; p < PARTS; p++) acc[r][p] = (vf){0};
  }
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int p = 0; p < PARTS; p++) {
      int64_t at = i + p * W;
      vf vg = load(g + at), vk = load(k + at), vq = load(q + at);
      for (int r = 0; r < R; r++) {
        vf t = fma_(by[r], vk, load(s + r * n + at) * vg);
        store(s + r * n + at, t);
        acc[r][p] = fma_(t, vq, acc[r][p]);
      }
    }
  if (i < n)
    for (int r = 0; r < R; r++) {
      float t[LANES], u[LANES];
      load_tail(s + r * n + i, n - i, t);
      for (int64_t j = 0; j < n - i; j++)
        t[j] = fmaf(load1(d + r), load1(k + i + j), t[j] * load1(g + i + j));
      memcpy(s + r * n + i, t, (size_t)(n - i) * sizeof *t);
      load_tail(q + i, n - i, u);
      for (int p = 0; p < PARTS; p++) acc[r][p] = fma_(load(t + p * W), load(u + p * W), acc[r][p]);
    }
  for (int r = 0; r < R; r++) y[r] = lanes_sum(acc[r]);
}

static void recur(float *s, int rows, int64_t n, const float *g, const float *d, const float *k,
                  const float *q, float *y) {
  int r = 0;
  for (; r + 2 <= rows; r += 2) recur_lines(s + r * n, n, g, d + r, k, q, y + r, 2);
  if (r < rows) recur_lines(s + r * n, n, g, d + r, k, q, y + r, 1);
}

/* ---- sums ------------------------------------------------------------------------------------ */

typedef enum reduction { SUM, SUM_SQUARES, MAXIMUM } reduction;

ALWAYS vf reduce1(const reduction how, vf acc, vf v) {
  switch (how) {
  case SUM: return acc + v;
  case SUM_SQUARES: return fma_(v, v, acc);
  default: return higher(v, acc);
  }
}

/* Visits n values sixteen lanes at a time; a tail is padded with zeros. */
ALWAYS void reduce(const reduction how, const float *x, int64_t n, vf acc[PARTS]) {
  int64_t k = 0;
  for (; k + LANES <= n; k += LANES)
    for (int p = 0; p < PARTS; p++) acc[p] = reduce1(how, acc[p], load(x + k + p * W));
  if (k < n) {
    float tail[LANES];
    load_tail(x + k, n - k, tail);
    for (int p = 0; p < PARTS; p++) acc[p] = reduce1(how, acc[p], load(tail + p * W));
  }
}

static float sum(const float *x, int64_t n) {
  vf acc[PARTS] = {{0}};
  reduce(SUM, x, n, acc);
  return lanes_sum(acc);
}

static float sum_squares(const float *x, int64_t n) {
  vf acc[PARTS] = {{0}};
  reduce(SUM_SQUARES, x, n, acc);
  return lanes_sum(acc);
}

static void rescale(const float *x, float by, const float *w, float offset, int64_t n, float *y) {
  const vf factor = splat(by), more = splat(offset);
  int64_t k = 0;
  for (; w && k + W <= n; k += W) store(y + k, load(x + k) * factor * (load(w + k) + more));
  for (; !w && k + W <= n; k += W) store(y + k, load(x + k) * factor);
  for (; k < n; k++) {
    const float v = load1(x + k) * by;
    y[k] = w ? v * (load1(w + k) + offset) : v;
  }
}

static void combine(const float *x, float a, const float *z, float b, int64_t n, float *y) {
  const vf va = splat(a), vb = splat(b);
  int64_t k = 0;
  for (; z && k + W <= n; k += W) store(y + k, load(x + k) * va + load(z + k) * vb);
  for (; !z && k + W <= n; k += W) store(y + k, load(x + k) * va + splat(0.f));
  for (; k < n; k++) y[k] = load1(x + k) * a + (z ? load1(z + k) * b : 0.f);
}

static float max_(const float *x, int64_t n) {
  enum { CHAINS = 4 }; /* independent ones hide the latency of a comparison */
  float best[LANES], m;
  vf acc[CHAINS][PARTS];
  int64_t k = 0, whole = n - n % LANES;
  for (int i = 0; i < CHAINS * PARTS; i++) acc[i / PARTS][i % PARTS] = splat(load1(x));
  for (; k + CHAINS * LANES <= n; k += CHAINS * LANES)
    for (int i = 0; i < CHAINS; i++) reduce(MAXIMUM, x + k + i * LANES, LANES, acc[i]);
  for (int i = 1; i < CHAINS; i++)
    for (int p = 0; p < PARTS; p++) acc[0][p] = higher(acc[i][p], acc[0][p]);
  reduce(MAXIMUM, x + k, whole - k, acc[0]); /* without a tail: its zeros could win */
  memcpy(best, acc[0], sizeof best);
  for (int half = LANES / 2; half; half /= 2)
    for (int j = 0; j < half; j++) best[j] = best[j + half] > best[j] ? best[j + half] : best[j];
  m = best[0];
  for (k = whole; k < n; k++) m = load1(x + k) > m ? load1(x + k) : m;
  return m;
}

/* ---- exp and friends ------------------------------------------------------------------------- */

ALWAYS vf abs_(vf x) { return (vf)((vi)x & 0x7fffffff); }
ALWAYS vf sigmoid_(vf x) { return splat(1.f) / (splat(1.f) + exp_(-x)); }

/* Near zero 1 - 2/(1 + e^2x) would lose all digits, so small x use x + x^3 P(x^2). */
ALWAYS vf tanh_(vf x) {
  vf z = x * x, p = splat(-5.70498872745e-3f);
  p = fma_(p, z, splat(2.06390887954e-2f));
  p = fma_(p, z, splat(-5.37397155531e-2f));
  p = fma_(p, z, splat(1.33314422036e-1f));
  p = fma_(p, z, splat(-3.33332819422e-1f));
  p = fma_(p * z, x, x);
  vf far = splat(1.f) - splat(2.f) / (splat(1.f) + exp_(x + x));
  return select_(abs_(x) < splat(0.625f), p, far);
}

ALWAYS vf gelu_tanh_(vf x) {
  vf inner = x * splat(0.7978845608f), cubic = fma_(x * x, splat(0.044715f), splat(1.f));
  return splat(0.5f) * x * (splat(1.f) + tanh_(inner * cubic));
}

/* ln x: x = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), then f - f^2/2 + f^3 P(f). */
ALWAYS vf log_(vf x) {
  vi small = x < splat(0x1p-126f);
  vi bits = (vi)select_(small, x * splat(0x1p23f), x), e = (vi)((vu)bits - 0x3f3504f3u) >> 23;
  vf n = __builtin_convertvector(e - (small & 23), vf),
     f = (vf)((vu)bits - ((vu)e << 23)) - splat(1.f), z = f * f;
  vf p = splat(-7.63443783e-2f);
  p = fma_(p, f, splat(1.27615631e-1f));
  p = fma_(p, f, splat(-1.31601974e-1f));
  p = fma_(p, f, splat(1.42017603e-1f));
  p = fma_(p, f, splat(-1.66233554e-1f));
  p = fma_(p, f, splat(2.00012267e-1f));
  p = fma_(p, f, splat(-2.50008225e-1f));
  p = fma_(p, f, splat(3.33333313e-1f));
  p = fma_(n, splat(-2.12194440e-4f), f * z * p);
  p = fma_(z, splat(-0.5f), p);
  p = fma_(n, splat(0.693359375f), f + p);
  p = select_(x < splat(INFINITY), p, x); /* infinity and NaN */
  p = select_(x == splat(0.f), splat(-INFINITY), p);
  return select_(x < splat(0.f), splat(NAN), p);
}

/* ln(1 + e^x): the factor t / (u - 1) undoes the rounding of u = 1 + t. */
ALWAYS vf softplus_(vf x) {
  vf t = exp_(-abs_(x)), u = t + splat(1.f), l = log_(u) * (t / (u - splat(1.f)));
  return select_(x > splat(0.f), x, splat(0.f)) + select_(u == splat(1.f), t, l);
}

/* x P(x^2) below 1, 1 - e^Q(|x|) above; from 4 on the result is 1. */
ALWAYS vf erf_(vf x) {
  vf z = x * x, a = abs_(x), p = splat(7.85383818e-5f), q = splat(-2.16868502e-5f);
  p = fma_(p, z, splat(-8.01018672e-4f));
  p = fma_(p, z, splat(5.18832682e-3f));
  p = fma_(p, z, splat(-2.68538110e-2f));
  p = fma_(p, z, splat(1.12835854e-1f));
  p = fma_(p, z, splat(-3.76126260e-1f));
  p = fma_(p, z, splat(1.12837911f)) * x;
  vf b = select_(a < splat(4.f), a, splat(4.f));
  q = fma_(q, b, splat(4.41336364e-4f));
  q = fma_(q, b, splat(-4.20456193e-3f));
  q = fma_(q, b, splat(2.52082571e-2f));
  q = fma_(q, b, splat(-1.08418576e-1f));
  q = fma_(q, b, splat(-6.33219898e-1f));
  q = fma_(q, b, splat(-1.12957847f));
  q = fma_(q, b, splat(1.88040227e-4f));
  vf far = (vf)((vi)(splat(1.f) - exp_(q)) | ((vi)x & (vi)splat(-0.f)));
  return select_(a < splat(1.f), p, far);
}

ALWAYS vf gelu_(vf x) { return splat(0.5f) * x * (splat(1.f) + erf_(x * splat(0.70710678f))); }

static float exp_sum(float *x, float minus, int64_t n) {
  vf acc[PARTS] = {{0}}, m = splat(minus);
  float t[LANES];
  int64_t k = 0;
  for (; k + LANES <= n; k += LANES)
    for (int p = 0; p < PARTS; p++) {
      vf e = exp_(load(x + k + p * W) - m);
      store(x + k + p * W, e);
      acc[p] = acc[p] + e;
    }
  if (k < n) {
    load_tail(x + k, n - k, t);
    for (int p = 0; p < PARTS; p++) store(t + p * W, exp_(load(t + p * W) - m));
    memcpy(x + k, t, (size_t)(n - k) * sizeof *t);
    load_tail(x + k, n - k, t);
    for (int p = 0; p < PARTS; p++) acc[p] = acc[p] + load(t + p * W);
  }
  return lanes_sum(acc);
}

/* ---- elementwise ----------------------------------------------------------------------------- */

ALWAYS vf sqrt_(vf x) {
  for (int j = 0; j < W; j++) x[j] = sqrtf(x[j]);
  return x;
}

ALWAYS vf unary1(const pe_map_op op, vf x) {
  switch (op) {
  case PE_MAP_NEG: return -x;
  case PE_MAP_ABS: return abs_(x);
  case PE_MAP_EXP: return exp_(x);
  case PE_MAP_SIGMOID: return sigmoid_(x);
  case PE_MAP_SILU: return x / (splat(1.f) + exp_(-x));
  case PE_MAP_TANH: return tanh_(x);
  case PE_MAP_RELU: return select_(x > splat(0.f), x, splat(0.f));
  case PE_MAP_RELU2: x = select_(x > splat(0.f), x, splat(0.f)); return x * x;
  case PE_MAP_GELU: return gelu_(x);
  case PE_MAP_GELU_TANH: return gelu_tanh_(x);
  case PE_MAP_SOFTPLUS: return softplus_(x);
  case PE_MAP_SQRT: return sqrt_(x);
  case PE_MAP_RSQRT: return splat(1.f) / sqrt_(x);
  default: return log_(x);
  }
}

ALWAYS vf binary1(const pe_map_op op, vf x, vf z) {
  switch (op) {
  case PE_MAP_ADD: return x + z;
  case PE_MAP_SUB: return x - z;
  case PE_MAP_MUL: return x * z;
  case PE_MAP_DIV: return x / z;
  case PE_MAP_MIN: return select_(z < x, z, x);
  default: return select_(z > x, z, x);
  }
}

ALWAYS void run_unary(const pe_map_op op, const float *x, int64_t n, float *y) {
  int64_t k = 0;
  for (; k + W <= n; k += W) store(y + k, unary1(op, load(x + k)));
  if (k < n) {
    float t[LANES];
    load_tail(x + k, n - k, t);
    store(t, unary1(op, load(t)));
    memcpy(y + k, t, (size_t)(n - k) * sizeof *t);
  }
}

ALWAYS void run_binary(const pe_map_op op, const float *x, const float *z, int64_t n, float *y) {
  int64_t k = 0;
  for (; k + W <= n; k += W) store(y + k, binary1(op, load(x + k), load(z + k)));
  if (k < n) {
    float t[LANES], u[LANES];
    load_tail(x + k, n - k, t);
    load_tail(z + k, n - k, u);
    store(t, binary1(op, load(t), load(u)));
    memcpy(y + k, t, (size_t)(n - k) * sizeof *t);
  }
}

/* One loop per operation, with the switch outside of it. */
static void unary(pe_map_op op, const float *x, int64_t n, float *y) {
  switch (op) {
#define PE_MAP_CASE(id, name)                                                                      \
  case PE_MAP_##id: run_unary(PE_MAP_##id, x, n, y); return;
    PE_MAP_UNARY(PE_MAP_CASE)
#undef PE_MAP_CASE
  default: return;
  }
}

static void binary(pe_map_op op, const float *x, const float *z, int64_t n, float *y) {
  switch (op) {
#define PE_MAP_CASE(id, name)                                                                      \
  case PE_MAP_##id: run_binary(PE_MAP_##id, x, z, n, y); return;
    PE_MAP_BINARY(PE_MAP_CASE)
#undef PE_MAP_CASE
  default: return;
  }
}

#ifdef PE_SCALAR
static void decode(const pe_quant_matrix *m, int64_t row, float *out) {
  pe_quant_row(m, row, 0, m->cols, out);
}
#else
#include "kernels/cpu/decode_impl.h"
#endif

#include "kernels/cpu/encode_impl.h"
#include "kernels/cpu/plain_impl.h"
#include "kernels/cpu/scan_impl.h"
#include "kernels/cpu/passes_impl.h"

const pe_prim PE_PASTE(pe_prim_, PE_ISA) = {.name = PE_ISA_NAME,
                                            .dots = dots,
                                            .mix = mix,
                                            .mix_halves = mix_halves,
                                            .recur = recur,
                                            .sum = sum,
                                            .sum_squares = sum_squares,
                                            .rescale = rescale,
                                            .combine = combine,
                                            .max = max_,
                                            .exp_sum = exp_sum,
                                            .unary = unary,
                                            .binary = binary,
                                            .decode = decode,
                                            .encode = encode,
                                            .plain = &plain_versions,
                                            .scan = &scan,
                                            .passes = &passes};
