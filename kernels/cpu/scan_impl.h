/* scan_impl.h - the one source of the passes of scan.h; a part of prim_impl.h. An instruction set
 * may define shorter ways to the same results:
 *
 *   PE_BITS(mask)                  one bit per lane of a comparison
 *   PE_HIGHEST(v)                  the highest lane
 *   PE_PACK(v, bits)               the lanes of v with a set bit, next to each other from lane 0
 *   PE_MASK                        the type of a comparison's result, with
 *     PE_EITHER_NAN(a, b)          a or b is NaN
 *     PE_AT_LEAST(a, b)            a >= b
 *     PE_ALSO(mask, a, b)          mask and a >= b
 *     PE_MASKED(mask, v)           v where the mask is set, else 0
 *     PE_SUM_MASKED(mask, a, b)    a + b as integers where the mask is set, else 0
 *     PE_ADD_MASKED(mask, sum, w)  sum + w where the mask is set, else sum; sum is not -0 */

#ifdef PE_MASK
typedef PE_MASK mask_;
ALWAYS mask_ either_nan(vf a, vf b) { return PE_EITHER_NAN(a, b); }
ALWAYS mask_ at_least(vf a, vf b) { return PE_AT_LEAST(a, b); }
ALWAYS mask_ also(mask_ m, vf a, vf b) { return PE_ALSO(m, a, b); }
ALWAYS vf masked(mask_ m, vf v) { return PE_MASKED(m, v); }
ALWAYS vf sum_masked(mask_ m, vu a, vu b) { return PE_SUM_MASKED(m, a, b); }
ALWAYS vf add_masked(mask_ m, vf sum, vf w) { return PE_ADD_MASKED(m, sum, w); }
#else
typedef vi mask_;
ALWAYS mask_ either_nan(vf a, vf b) { return (a != a) | (b != b); }
ALWAYS mask_ at_least(vf a, vf b) { return a >= b; }
ALWAYS mask_ also(mask_ m, vf a, vf b) { return m & (a >= b); }
ALWAYS vf masked(mask_ m, vf v) { return (vf)(m & (vi)v); }
ALWAYS vf sum_masked(mask_ m, vu a, vu b) { return masked(m, (vf)(a + b)); }
ALWAYS vf add_masked(mask_ m, vf sum, vf w) { return sum + masked(m, w); }
#endif

#include <float.h>

ALWAYS bool any(vi mask) {
#ifdef PE_BITS
  return PE_BITS(mask) != 0;
#else
  uint64_t part[W / 2], all = 0;
  memcpy(part, &mask, sizeof part);
  for (int j = 0; j < W / 2; j++) all |= part[j];
  return all != 0;
#endif
}

ALWAYS bool some(mask_ m) {
#ifdef PE_MASK
  return m != 0;
#else
  return any(m);
#endif
}

/* The masks of all lanes as bits. */
ALWAYS uint16_t word(const mask_ m[PARTS]) {
#ifdef PE_MASK
  return m[0];
#else
  uint32_t bits = 0;
  for (int p = 0; p < PARTS; p++)
#ifdef PE_BITS
    bits |= (uint32_t)PE_BITS(m[p]) << p * W;
#else
    for (int j = 0; j < W; j++) bits |= (uint32_t)(m[p][j] & 1) << (p * W + j);
#endif
  return (uint16_t)bits;
#endif
}

enum { CHAINS = 4 * PARTS }; /* independent chains hide the latency of a comparison */

static float range(const float *x, int64_t n, float *lowest) {
  vf high[CHAINS], low[CHAINS];
  int64_t k = 0;
  for (int p = 0; p < CHAINS; p++) high[p] = splat(-INFINITY), low[p] = splat(INFINITY);
  for (; k + CHAINS * W <= n; k += CHAINS * W)
    for (int p = 0; p < CHAINS; p++) {
      vf v = load(x + k + p * W);
      high[p] = higher(v, high[p]);
      low[p] = lower(v, low[p]);
    }
  float h[CHAINS * W], l[CHAINS * W], most = -INFINITY, least = INFINITY;
  memcpy(h, high, sizeof h), memcpy(l, low, sizeof l);
  for (int j = 0; j < CHAINS * W; j++) {
    most = h[j] > most ? h[j] : most;
    least = l[j] < least ? l[j] : least;
  }
  for (; k < n; k++) {
    float v = load1(x + k);
    most = v > most ? v : most;
    least = v < least ? v : least;
  }
  *lowest = least;
  return most;
}

ALWAYS float highest_lane(vf v) {
#ifdef PE_HIGHEST
  return PE_HIGHEST(v);
#else
  float most = v[0];
  for (int j = 1; j < W; j++) most = v[j] > most ? v[j] : most;
  return most;
#endif
}

ALWAYS float peaks_of(const float *x, int64_t n, float *peak, float *copy) {
  float most = -INFINITY;
  bool bad = false;
  for (int64_t from = 0; from < n; from += PE_SCAN_PEAK) {
    int64_t k = from, end = n - from < PE_SCAN_PEAK ? n : from + PE_SCAN_PEAK;
    vf high[4] = {splat(-INFINITY), splat(-INFINITY), splat(-INFINITY), splat(-INFINITY)};
    mask_ odd = (mask_){0};
    for (; k + 4 * W <= end; k += 4 * W) {
      vf v[4];
      for (int p = 0; p < 4; p++) {
        v[p] = load(x + k + p * W);
        if (copy) store(copy + k + p * W, v[p]);
        high[p] = higher(v[p], high[p]);
      }
      odd |= either_nan(v[0], v[1]) | either_nan(v[2], v[3]);
    }
    float here = highest_lane(higher(higher(high[0], high[1]), higher(high[2], high[3])));
    bad |= some(odd);
    for (; k < end; k++) {
      float v = load1(x + k);
      if (copy) copy[k] = v;
      bad |= v != v;
      here = v > here ? v : here;
    }
    *peak++ = here;
    most = here > most ? here : most;
  }
  return bad ? NAN : most;
}

static float peaks(const float *x, int64_t n, float *peak, float *copy) {
  return copy ? peaks_of(x, n, peak, copy) : peaks_of(x, n, peak, NULL);
}

static int64_t find(const float *x, int64_t n, float least) {
  vf t = splat(least);
  int64_t k = 0;
  for (; k + CHAINS * W <= n; k += CHAINS * W) {
    vi found = {0};
    for (int p = 0; p < CHAINS; p++) found |= load(x + k + p * W) >= t;
    if (!any(found)) continue;
#ifdef PE_BITS
    for (;; k += W) {
      uint32_t bits = (uint32_t)PE_BITS(load(x + k) >= t);
      if (bits) return k + __builtin_ctz(bits);
    }
#else
    break;
#endif
  }
  while (k < n && !(load1(x + k) >= least)) k++;
  return k;
}

ALWAYS mask_ inside(vf v, const vf low[2], const vf high[2], const int spans) {
  mask_ m = also(at_least(v, low[0]), high[0], v);
  return spans == 1 ? m : m | also(at_least(v, low[1]), high[1], v);
}

#ifdef PE_PACK
/* The lanes of v in the spans, and their indices. Stores whole registers: they end at or before the
 * last value read. */
ALWAYS int64_t pack(vf v, vi at, mask_ in, int32_t *index, float *value) {
  at = (vi)PE_PACK(at, in);
  store(value, (vf)PE_PACK(v, in));
  memcpy(index, &at, sizeof at);
  return __builtin_popcount(in);
}
#else
ALWAYS int64_t pack(vf v, vi at, mask_ in, int32_t *index, float *value) {
  int64_t count = 0;
#ifdef PE_BITS
  for (uint32_t bits = (uint32_t)PE_BITS(in); bits; bits &= bits - 1, count++) {
    int j = __builtin_ctz(bits);
    value[count] = v[j], index[count] = at[j];
  }
#else
  for (int j = 0; j < W; j++) {
    value[count] = v[j], index[count] = at[j];
    count += in[j] & 1;
  }
#endif
  return count;
}
#endif

ALWAYS int64_t gather_spans(const float *x, int64_t n, const pe_scan_span span[2], int32_t base,
                            int32_t *index, float *value, const int spans) {
  vf low[2] = {splat(span[0].low), splat(span[1].low)};
  vf high[2] = {splat(span[0].high), splat(span[1].high)};
  vi lane;
  int64_t k = 0, count = 0;
  for (int j = 0; j < W; j++) lane[j] = j + base;
  for (; k + 4 * W <= n; k += 4 * W) {
    vf v[4];
    mask_ in[4];
    for (int i = 0; i < 4; i++) {
      v[i] = load(x + k + i * W);
      in[i] = inside(v[i], low, high, spans);
    }
    if (!some(in[0] | in[1] | in[2] | in[3])) continue;
    for (int i = 0; i < 4; i++)
      count += pack(v[i], lane + (int32_t)(k + i * W), in[i], index + count, value + count);
  }
  for (; k < n; k++) {
    float v = load1(x + k);
    value[count] = v, index[count] = (int32_t)k + base;
    count += (v >= span[0].low && v <= span[0].high) || (v >= span[1].low && v <= span[1].high);
  }
  return count;
}

static int64_t gather(const float *x, int64_t n, const pe_scan_span span[2], int32_t base,
                      int32_t *index, float *value) {
  if (span[1].low > span[1].high) return gather_spans(x, n, span, base, index, value, 1);
  return gather_spans(x, n, span, base, index, value, 2);
}

/* A pass holds as many registers at once: the steps of `power` wait for each other, and with one
 * register at a time a core's window is too short to find other work. */
enum { AT_ONCE = 4 };
_Static_assert(AT_ONCE % PARTS == 0 && PE_SCAN_BLOCK % (AT_ONCE * W) == 0, "whole lanes, no tail");

/* 2^(d * factor) where the mask is set, for powers between -126 and 0; else 0. With the nearest
 * whole number n, 2^n is added to the exponent of 2^(d * factor - n), a polynomial that is off by
 * 1e-7 at most. No result is subnormal: each would cost a trap. */
ALWAYS void power(const int count, const mask_ *in, const vf *d, vf factor, vf *out) {
  static const float c[] = {9.67151268e-3f, 5.55073375e-2f, 2.40222421e-1f, 6.93146978e-1f, 1.f};
  const vf magic = splat(12582912.f); /* leaves n in the low bits */
  vf shifted[AT_ONCE], f[AT_ONCE], p[AT_ONCE];
  for (int i = 0; i < count; i++) shifted[i] = fma_(d[i], factor, magic);
  for (int i = 0; i < count; i++) f[i] = fma_(d[i], factor, magic - shifted[i]);
  for (int i = 0; i < count; i++) p[i] = fma_(splat(1.32647267e-3f), f[i], splat(c[0]));
  for (int k = 1; k < 5; k++)
    for (int i = 0; i < count; i++) p[i] = fma_(p[i], f[i], splat(c[k]));
  for (int i = 0; i < count; i++) out[i] = sum_masked(in[i], (vu)p[i], (vu)shifted[i] << 23);
}

typedef struct weighing { /* e^((x - top) * scale) is 2^((x - top) * factor) */
  vf low, high, top, factor;
} weighing;

/* The lowest value that is not more than `far` below the top, whose distance a float then can hold.
 * Also computed by shortlist.metal, so all in floats: `rest` is what rounding took from the
 * difference. */
static float lowest_within(float top, float far) {
  const float low = top - far, part = low - top, rest = (top - (low - part)) + (-far - part);
  return rest > 0 ? nextafterf(low, INFINITY) : low;
}

/* Values without weight are below the span: one comparison finds both. */
static weighing weighing_of(pe_scan_span span, float top, float scale) {
  const pe_scan_scale s = pe_scan_scale_of(scale);
  const float low = lowest_within(top, s.far);
  return (weighing){splat(low > span.low ? low : span.low), splat(span.high), splat(top),
                    splat(s.factor)};
}

/* open: no value is above the span. */
ALWAYS mask_ counts(const weighing *w, vf v, const bool open) {
  mask_ in = at_least(v, w->low);
  return open ? in : also(in, w->high, v);
}

/* count: registers, AT_ONCE or PARTS. */
ALWAYS void weigh_lanes(const weighing *w, const int count, const float *x, float *weight,
                        vf sum[PARTS]) {
  vf d[AT_ONCE], e[AT_ONCE];
  mask_ in[AT_ONCE];
  for (int i = 0; i < count; i++) {
    vf v = load(x + i * W);
    in[i] = counts(w, v, false), d[i] = v - w->top;
  }
  power(count, in, d, w->factor, e);
  for (int i = 0; i < count; i++) {
    if (weight) store(weight + i * W, e[i]);
    sum[i % PARTS] = sum[i % PARTS] + e[i];
  }
}

ALWAYS void weigh_blocks(const weighing *w, const float *x, int64_t n, float *weight, float *sum) {
  for (int64_t from = 0; from < n; from += PE_SCAN_BLOCK) {
    int64_t k = from, end = n - from < PE_SCAN_BLOCK ? n : from + PE_SCAN_BLOCK;
    vf s[PARTS] = {{0}};
    for (; k + AT_ONCE * W <= end; k += AT_ONCE * W)
      weigh_lanes(w, AT_ONCE, x + k, weight ? weight + k : NULL, s);
    for (; k + LANES <= end; k += LANES)
      weigh_lanes(w, PARTS, x + k, weight ? weight + k : NULL, s);
    if (k < end) {
      float t[LANES], e[LANES];
      for (int j = 0; j < LANES; j++) t[j] = -INFINITY;
      memcpy(t, x + k, (size_t)(end - k) * sizeof *t);
      weigh_lanes(w, PARTS, t, e, s);
      if (weight) memcpy(weight + k, e, (size_t)(end - k) * sizeof *e);
    }
    *sum++ = lanes_sum(s);
  }
}

static void weigh(const float *x, int64_t n, pe_scan_span span, float top, float scale,
                  float *weight, float *sum) {
  weighing w = weighing_of(span, top, scale);
  if (weight)
    weigh_blocks(&w, x, n, weight, sum);
  else
    weigh_blocks(&w, x, n, NULL, sum);
}

ALWAYS void mass_lanes(const float *key, const float *weight, const vf least[PE_SCAN_STEPS],
                       vf sum[PE_SCAN_STEPS][PARTS]) {
  for (int p = 0; p < PARTS; p++) {
    vf v = load(key + p * W), w = weight ? load(weight + p * W) : splat(1.f);
    for (int j = 0; j < PE_SCAN_STEPS; j++)
      sum[j][p] = add_masked(at_least(v, least[j]), sum[j][p], w);
  }
}

ALWAYS void mass_blocks(const float *key, const float *weight, int64_t n,
                        const float at[PE_SCAN_STEPS], double mass[PE_SCAN_STEPS]) {
  vf least[PE_SCAN_STEPS];
  for (int j = 0; j < PE_SCAN_STEPS; j++) least[j] = splat(at[j]), mass[j] = 0;
  for (int64_t from = 0; from < n; from += PE_SCAN_BLOCK) {
    int64_t k = from, end = n - from < PE_SCAN_BLOCK ? n : from + PE_SCAN_BLOCK;
    vf sum[PE_SCAN_STEPS][PARTS];
    for (int j = 0; j < PE_SCAN_STEPS; j++)
      for (int p = 0; p < PARTS; p++) sum[j][p] = (vf){0};
    for (; k + LANES <= end; k += LANES)
      mass_lanes(key + k, weight ? weight + k : NULL, least, sum);
    if (k < end) {
      float t[LANES], w[LANES];
      for (int j = 0; j < LANES; j++) t[j] = NAN; /* not at or above anything */
      memcpy(t, key + k, (size_t)(end - k) * sizeof *t);
      if (weight) load_tail(weight + k, end - k, w);
      mass_lanes(t, weight ? w : NULL, least, sum);
    }
    v4 s = finish4(fold(sum[0]), fold(sum[1]), fold(sum[2]), fold(sum[3]));
    for (int j = 0; j < PE_SCAN_STEPS; j++) mass[j] += (double)s[j];
  }
}

static void mass(const float *key, const float *weight, int64_t n, const float least[PE_SCAN_STEPS],
                 double out[PE_SCAN_STEPS]) {
  if (weight)
    mass_blocks(key, weight, n, least, out);
  else
    mass_blocks(key, NULL, n, least, out);
}

typedef struct tallying {
  weighing w, other;
  vf centre, low[2], high[2];
} tallying;

typedef struct form { /* of a tally; constant after inlining */
  pe_scan_kind kind;
  bool centred, open;
  int bands;
} form;

enum { ALL = 2, SUMS }; /* sums above two bands, and of all */

ALWAYS vf nearness_of(vf v, vf centre) { return (vf)((vi)(v - centre) | INT32_MIN); }

/* count: registers, AT_ONCE or PARTS. */
ALWAYS void tally_lanes(const form f, const tallying *q, const int count, const float *x,
                        uint16_t *const bits[2], int64_t at, vf first[SUMS][PARTS],
                        vf second[SUMS][PARTS]) {
  const bool twice = f.kind == PE_SCAN_TWICE, pairs = twice || f.kind == PE_SCAN_MOMENT;
  vf v[AT_ONCE], d[AT_ONCE], e[AT_ONCE], g[AT_ONCE];
  mask_ in[AT_ONCE], other[AT_ONCE], inner[2][PARTS];
  for (int i = 0; i < count; i++) {
    v[i] = load(x + i * W), d[i] = v[i] - q->w.top;
    in[i] = counts(&q->w, v[i], f.open);
    if (twice) other[i] = counts(&q->other, v[i], f.open);
    if (f.kind == PE_SCAN_COUNT) e[i] = masked(in[i], splat(1.f));
  }
  if (f.kind != PE_SCAN_COUNT) power(count, in, d, q->w.factor, e);
  if (twice) power(count, other, d, q->other.factor, g);
  for (int i = 0; i < count; i++) {
    const int p = i % PARTS;
    vf key = f.centred ? nearness_of(v[i], q->centre) : v[i];
    if (f.kind == PE_SCAN_MOMENT) g[i] = masked(in[i], e[i] * d[i]);
    for (int j = 0; j < f.bands; j++) {
      mask_ above = at_least(key, q->high[j]);
      inner[j][p] = also(in[i], key, q->low[j]) & ~above;
      if (!twice || j == 0) first[j][p] = add_masked(above, first[j][p], e[i]);
      if (pairs) second[j][p] = add_masked(above, second[j][p], g[i]);
      if (p == PARTS - 1) bits[j][at / LANES + i / PARTS] = word(inner[j]);
    }
    first[ALL][p] = first[ALL][p] + e[i];
    if (pairs) second[ALL][p] = second[ALL][p] + g[i];
  }
}

ALWAYS void store_sums(vf sum[SUMS][PARTS], float above[2], float *all) {
  v4 s = finish4(fold(sum[0]), fold(sum[1]), fold(sum[ALL]), fold(sum[ALL]));
  above[0] = s[0], above[1] = s[1], *all = s[ALL];
}

ALWAYS void tally_blocks(const form f, const tallying *q, const float *x, int64_t n,
                         uint16_t *const bits[2], pe_scan_sums *sums) {
  for (int64_t from = 0; from < n; from += PE_SCAN_BLOCK) {
    int64_t k = from, end = n - from < PE_SCAN_BLOCK ? n : from + PE_SCAN_BLOCK;
    vf first[SUMS][PARTS], second[SUMS][PARTS];
    for (int j = 0; j < SUMS; j++)
      for (int p = 0; p < PARTS; p++) first[j][p] = second[j][p] = (vf){0};
    for (; k + AT_ONCE * W <= end; k += AT_ONCE * W)
      tally_lanes(f, q, AT_ONCE, x + k, bits, k, first, second);
    for (; k + LANES <= end; k += LANES) tally_lanes(f, q, PARTS, x + k, bits, k, first, second);
    if (k < end) {
      float t[LANES];
      for (int j = 0; j < LANES; j++) t[j] = NAN; /* in no span */
      memcpy(t, x + k, (size_t)(end - k) * sizeof *t);
      tally_lanes(f, q, PARTS, t, bits, k, first, second);
    }
    *sums = (pe_scan_sums){{{0}, 0}, {{0}, 0}};
    store_sums(first, sums->first.above, &sums->first.all);
    if (f.kind >= PE_SCAN_MOMENT) store_sums(second, sums->second.above, &sums->second.all);
    sums++;
  }
}

ALWAYS void tally_kinds(const bool centred, const bool open, const pe_scan_query *q,
                        const tallying *t, const float *x, int64_t n, pe_scan_sums *sums) {
  switch (q->kind) {
  case PE_SCAN_COUNT:
    tally_blocks((form){PE_SCAN_COUNT, centred, open, 1}, t, x, n, q->bits, sums);
    break;
  case PE_SCAN_WEIGHT:
    if (q->bands == 1)
      tally_blocks((form){PE_SCAN_WEIGHT, centred, open, 1}, t, x, n, q->bits, sums);
    else
      tally_blocks((form){PE_SCAN_WEIGHT, centred, open, 2}, t, x, n, q->bits, sums);
    break;
  case PE_SCAN_MOMENT:
    if (q->bands == 0)
      tally_blocks((form){PE_SCAN_MOMENT, centred, open, 0}, t, x, n, q->bits, sums);
    else
      tally_blocks((form){PE_SCAN_MOMENT, centred, open, 1}, t, x, n, q->bits, sums);
    break;
  case PE_SCAN_TWICE:
    tally_blocks((form){PE_SCAN_TWICE, centred, open, 2}, t, x, n, q->bits, sums);
    break;
  }
}

static void tally(const float *x, int64_t n, const pe_scan_query *q, pe_scan_sums *sums) {
  tallying t = {.w = weighing_of(q->span, q->top, q->scale),
                .other = weighing_of(q->span, q->top, q->other),
                .centre = splat(q->centre)};
  bool open = q->span.high == INFINITY;
  for (int j = 0; j < 2; j++) t.low[j] = splat(q->band[j].low), t.high[j] = splat(q->band[j].high);
  if (q->kind == PE_SCAN_COUNT) t.w.low = splat(q->span.low);
  if (q->centred && open)
    tally_kinds(true, true, q, &t, x, n, sums);
  else if (q->centred)
    tally_kinds(true, false, q, &t, x, n, sums);
  else if (open)
    tally_kinds(false, true, q, &t, x, n, sums);
  else
    tally_kinds(false, false, q, &t, x, n, sums);
}

/* Branches that depend on the bits would be predicted badly, so places are written without a look
 * at how many there are: at most as many as values were read, so whole registers stay within the
 * room. */
#ifdef PE_PACK
enum { WORDS = 256 }; /* at a time */
typedef uint16_t words_ __attribute__((vector_size(2 * LANES)));

/* Which of some words are not 0; in a band of a few percent of the values most are. Whole registers
 * are stored. Returns their number. */
ALWAYS int32_t live_words(const uint16_t *bits, int32_t words, int32_t *live) {
  int32_t w = 0, count = 0;
  vi lane;
  words_ v;
  for (int j = 0; j < W; j++) lane[j] = j;
  for (; w + LANES <= words; w += LANES) {
    memcpy(&v, bits + w, sizeof v);
    const mask_ some = at_least(__builtin_convertvector(v, vf), splat(1));
    const vi at = (vi)PE_PACK(lane + w, some);
    memcpy(live + count, &at, sizeof at);
    count += __builtin_popcount(some);
  }
  for (; w < words; w++) live[count] = w, count += bits[w] != 0;
  return count;
}

static int64_t unpack(const uint16_t *bits, const float *x, int64_t n, int32_t base, int32_t *index,
                      float *value) {
  const int64_t whole = n / LANES;
  int64_t count = 0;
  vi lane;
  for (int j = 0; j < W; j++) lane[j] = j + base;
  for (int64_t from = 0; from < whole; from += WORDS) {
    int32_t live[WORDS + LANES];
    const int32_t words = (int32_t)(whole - from < WORDS ? whole - from : WORDS);
    const int32_t lives = live_words(bits + from, words, live);
    for (int32_t i = 0; i < lives; i++) {
      const int64_t w = from + live[i];
      count += pack(load(x + w * LANES), lane + (int32_t)w * LANES, bits[w], index + count,
                    value + count);
    }
  }
  for (int64_t k = whole * LANES; k < n; k++)
    if (bits[whole] >> k % LANES & 1)
      value[count] = load1(x + k), index[count++] = (int32_t)k + base;
  return count;
}
#else
static int64_t unpack(const uint16_t *bits, const float *x, int64_t n, int32_t base, int32_t *index,
                      float *value) {
  enum { MOST_BITS = 6 }; /* more are rare in a word */
  int64_t count = 0;
  for (int64_t k = 0; k < n; k += LANES) {
    uint32_t rest = bits[k / LANES];
    const int bits_set = __builtin_popcount(rest);
    int j = 0;
    for (; j < MOST_BITS; j++, rest &= rest - 1)
      index[count + j] = (int32_t)k + __builtin_ctz(rest | 0x80000000u);
    for (; j < bits_set; j++, rest &= rest - 1) index[count + j] = (int32_t)k + __builtin_ctz(rest);
    count += bits_set;
  }
  for (int64_t i = 0; i < count; i++) value[i] = load1(x + index[i]), index[i] += base;
  return count;
}
#endif

static void allow(const float *x, int64_t n, const uint32_t *bits, float *copy) {
  vu lane;
  int64_t k = 0;
  for (int j = 0; j < W; j++) lane[j] = UINT32_C(1) << j;
  for (; k + 32 <= n; k += 32)
    for (int p = 0; p < 32 / W; p++) {
      const vi in = (vi)(((bits[k / 32] >> p * W) & lane) != 0);
      const vf v = load(x + k + p * W);
      store(copy + k + p * W, (vf)((in & (vi)v) | (~in & (vi)splat(-INFINITY))));
    }
  for (; k < n; k++) copy[k] = bits[k / 32] >> k % 32 & 1 ? load1(x + k) : -INFINITY;
}

static void nearness(const float *x, int64_t n, float centre, float *key) {
  int64_t k = 0;
  for (; k + W <= n; k += W) store(key + k, nearness_of(load(x + k), splat(centre)));
  for (; k < n; k++) key[k] = -fabsf(load1(x + k) - centre);
}

static const pe_scan scan = {.range = range,
                             .peaks = peaks,
                             .find = find,
                             .gather = gather,
                             .weigh = weigh,
                             .mass = mass,
                             .tally = tally,
                             .unpack = unpack,
                             .allow = allow,
                             .nearness = nearness};
