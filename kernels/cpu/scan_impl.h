/* scan_impl.h - the one source of the passes of scan.h; a part of prim_impl.h. An instruction set
 * may define shorter ways to the same results:
 *
 *   PE_BITS(mask)                  one bit per lane of a comparison
 *   PE_BETWEEN(v, low, high)       the bits of low <= v <= high
 *   PE_PACK(v, bits)               the lanes of v with a set bit, next to each other from lane 0
 *   PE_ADD_IF(sum, key, least, w)  key >= least ? sum + w : sum; sum is not -0 */

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

enum { CHAINS = 4 * PARTS }; /* independent chains hide the latency of a comparison */

ALWAYS float range_of(const float *x, int64_t n, float *lowest, float *copy) {
  vf high[CHAINS], low[CHAINS];
  vi odd[PARTS] = {{0}};
  int64_t k = 0;
  for (int p = 0; p < CHAINS; p++) high[p] = splat(-INFINITY), low[p] = splat(INFINITY);
  for (; k + CHAINS * W <= n; k += CHAINS * W)
    for (int p = 0; p < CHAINS; p++) {
      vf v = load(x + k + p * W);
      if (copy) store(copy + k + p * W, v);
      odd[p % PARTS] |= v != v;
      high[p] = higher(v, high[p]);
      low[p] = lower(v, low[p]);
    }
  float h[CHAINS * W], l[CHAINS * W], most = -INFINITY, least = INFINITY;
  memcpy(h, high, sizeof h), memcpy(l, low, sizeof l);
  bool bad = false;
  for (int p = 0; p < PARTS; p++) bad |= any(odd[p]);
  for (int j = 0; j < CHAINS * W; j++) {
    most = h[j] > most ? h[j] : most;
    least = l[j] < least ? l[j] : least;
  }
  for (; k < n; k++) {
    float v = load1(x + k);
    if (copy) copy[k] = v;
    bad |= v != v;
    most = v > most ? v : most;
    least = v < least ? v : least;
  }
  *lowest = least;
  return bad ? NAN : most;
}

static float range(const float *x, int64_t n, float *lowest, float *copy) {
  return copy ? range_of(x, n, lowest, copy) : range_of(x, n, lowest, NULL);
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

#ifdef PE_PACK
/* Stores whole registers: they end at or before the last value read. */
static int64_t gather(const float *x, int64_t n, float low, float high, int32_t base,
                      int32_t *index, float *value) {
  vf lo = splat(low), hi = splat(high);
  vi lane;
  int64_t k = 0, count = 0;
  for (int j = 0; j < W; j++) lane[j] = j + base;
  for (; k + 4 * W <= n; k += 4 * W) {
    vf v[4];
    uint32_t bits[4];
    for (int i = 0; i < 4; i++) v[i] = load(x + k + i * W), bits[i] = PE_BETWEEN(v[i], lo, hi);
    if (!(bits[0] | bits[1] | bits[2] | bits[3])) continue;
    for (int i = 0; i < 4; i++) {
      vi at = (vi)PE_PACK(lane + (int32_t)(k + i * W), bits[i]);
      store(value + count, (vf)PE_PACK(v[i], bits[i]));
      memcpy(index + count, &at, sizeof at);
      count += __builtin_popcount(bits[i]);
    }
  }
#else
static int64_t gather(const float *x, int64_t n, float low, float high, int32_t base,
                      int32_t *index, float *value) {
  vf lo = splat(low), hi = splat(high);
  int64_t k = 0, count = 0;
  for (; k + LANES <= n; k += LANES) {
    vf v[PARTS];
    vi in[PARTS], all = {0};
    for (int p = 0; p < PARTS; p++) {
      v[p] = load(x + k + p * W);
      in[p] = (v[p] >= lo) & (v[p] <= hi);
      all |= in[p];
    }
    if (!any(all)) continue;
    for (int p = 0; p < PARTS; p++)
      for (int j = 0; j < W; j++) {
        value[count] = v[p][j], index[count] = (int32_t)k + p * W + j + base;
        count += in[p][j] & 1;
      }
  }
#endif
  for (; k < n; k++) {
    float v = load1(x + k);
    value[count] = v, index[count] = (int32_t)k + base;
    count += v >= low && v <= high;
  }
  return count;
}

/* e^y for y <= 0, and 0 below -87, so that no result is subnormal: each would cost a trap. With t
 * the power of 2 and n the nearest whole number, 2^n is added to the exponent of 2^(t - n), a
 * polynomial that is off by 2e-9 at most. */
ALWAYS vf fading_exp(vf y) {
  const vf magic = splat(12582912.f); /* leaves n in the low bits */
  vf t = y * splat(1.44269504f), shifted = t + magic, f = t - (shifted - magic);
  vf p = splat(1.53458124e-4f);
  p = fma_(p, f, splat(1.33999309e-3f));
  p = fma_(p, f, splat(9.61848907e-3f));
  p = fma_(p, f, splat(5.55032864e-2f));
  p = fma_(p, f, splat(2.40226462e-1f));
  p = fma_(p, f, splat(6.93147182e-1f));
  p = fma_(p, f, splat(1.f));
  return (vf)((y >= splat(-87.f)) & (vi)((vu)p + ((vu)shifted << 23)));
}

ALWAYS void weigh_lanes(const bool stores, const bool moments, const float *x, vf top, vf scale,
                        float *weight, vf sum[PARTS], vf moment[PARTS]) {
  for (int p = 0; p < PARTS; p++) {
    vf y = (load(x + p * W) - top) * scale, e = fading_exp(y);
    if (stores) store(weight + p * W, e);
    if (moments) moment[p] = fma_(e, higher(y, splat(-87.f)), moment[p]);
    sum[p] = sum[p] + e;
  }
}

ALWAYS void weigh_blocks(const bool stores, const bool moments, const float *x, int64_t n,
                         float top, float scale, float *weight, float *sum, float *moment) {
  for (int64_t from = 0; from < n; from += PE_SCAN_BLOCK) {
    int64_t k = from, end = n - from < PE_SCAN_BLOCK ? n : from + PE_SCAN_BLOCK;
    vf s[PARTS] = {{0}}, m[PARTS] = {{0}};
    for (; k + LANES <= end; k += LANES)
      weigh_lanes(stores, moments, x + k, splat(top), splat(scale), stores ? weight + k : NULL, s,
                  m);
    if (k < end) {
      float t[LANES], w[LANES];
      for (int j = 0; j < LANES; j++) t[j] = -INFINITY;
      memcpy(t, x + k, (size_t)(end - k) * sizeof *t);
      weigh_lanes(stores, moments, t, splat(top), splat(scale), w, s, m);
      if (stores) memcpy(weight + k, w, (size_t)(end - k) * sizeof *w);
    }
    *sum++ = lanes_sum(s);
    if (moments) *moment++ = lanes_sum(m);
  }
}

static void weigh(const float *x, int64_t n, float top, float scale, float *weight, float *sum,
                  float *moment) {
  if (weight && moment)
    weigh_blocks(true, true, x, n, top, scale, weight, sum, moment);
  else if (weight)
    weigh_blocks(true, false, x, n, top, scale, weight, sum, moment);
  else
    weigh_blocks(false, false, x, n, top, scale, weight, sum, moment);
}

ALWAYS vf add_if(vf sum, vf key, vf least, vf w) {
#ifdef PE_ADD_IF
  return PE_ADD_IF(sum, key, least, w);
#else
  return sum + (vf)((key >= least) & (vi)w);
#endif
}

ALWAYS void mass_lanes(const float *key, const float *weight, const vf least[PE_SCAN_STEPS],
                       vf sum[PE_SCAN_STEPS][PARTS]) {
  for (int p = 0; p < PARTS; p++) {
    vf v = load(key + p * W), w = weight ? load(weight + p * W) : splat(1.f);
    for (int j = 0; j < PE_SCAN_STEPS; j++) sum[j][p] = add_if(sum[j][p], v, least[j], w);
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

static void nearness(const float *x, int64_t n, float centre, float *key) {
  int64_t k = 0;
  for (; k + W <= n; k += W) store(key + k, (vf)((vi)(load(x + k) - centre) | INT32_MIN));
  for (; k < n; k++) key[k] = -fabsf(load1(x + k) - centre);
}

static const pe_scan scan = {.range = range,
                             .find = find,
                             .gather = gather,
                             .weigh = weigh,
                             .mass = mass,
                             .nearness = nearness};
