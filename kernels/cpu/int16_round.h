/* int16_round.h - a part of int16_impl.h: activations. */

/* ---- activations ----------------------------------------------------------------------------- */

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

/* 64 columns of one group to a result in every lane. */
ALWAYS i4 fold_unit(const vi *v, const reduction how) {
  vi part[PARTS];
  for (int p = 0; p < PARTS; p++) part[p] = v[p];
  for (int i = PARTS; i < UNIT / W; i++) part[i % PARTS] = REDUCE(how, part[i % PARTS], v[i]);
  i4 all = fold(part, how), other = __builtin_shufflevector(all, all, 1, 0, 3, 2);
  all = REDUCE(how, all, other);
  other = __builtin_shufflevector(all, all, 2, 3, 0, 1);
  return REDUCE(how, all, other);
}

/* 64 columns to four lanes, one per 16 columns, and then to one result per group, in every lane of
 * the group. */
ALWAYS i4 fold_groups(const vi *v, int act, const reduction how) {
  if (act == UNIT) return fold_unit(v, how);
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
  return all;
}

/* Magnitudes as bits have the order of their values, and those of infinity and NaN are above all
 * others. 2^-96: the largest code / it is far from infinity, and products with it are far from
 * subnormal. */
enum { LEAST = (127 - 96) << 23, INFINITE = 0x7f800000 };

typedef struct group_scales {
  f4 scale, factor;
  i4 live; /* mask: neither zeros only, nor infinity or NaN */
} group_scales;

ALWAYS group_scales scales_of_tops(i4 bits) {
  i4 small = bits < LEAST, live = (bits > 0) & (bits < INFINITE);
  f4 top = (f4)((small & LEAST) | (~small & bits));
  f4 scale = top / (float)PE_INT16_MOST,
     rest = (f4)((bits > 0) & (i4){0x7fc00000, 0x7fc00000, 0x7fc00000, 0x7fc00000});
  return (group_scales){(f4)((live & (i4)scale) | (~live & (i4)rest)), (float)PE_INT16_MOST / top,
                        live};
}

/* Codes of W values: adding 1.5 * 2^23 rounds to an integer, which then is in the low bits. */
ALWAYS vi round_codes(vf x, float factor, int32_t live) {
  const vf magic = splat(12582912.f);
  return ((vi)(x * splat(factor) + magic) - (vi)magic) & splat_int(live);
}

/* 64 columns of a row that is one of n of its tile. */
ALWAYS void quantize_unit(const float *x, int act, int groups, int n, int16_t *codes, float *scale,
                          float *scaled, int32_t *sum) {
  vi v[UNIT / W];
  for (int i = 0; i < UNIT / W; i++) v[i] = (vi)load(x + W * i) & 0x7fffffff;
  const group_scales s = scales_of_tops(fold_groups(v, act, MOST));
  for (int i = 0; i < UNIT / W; i++)
    v[i] = round_codes(load(x + W * i), s.factor[W * i / 16], s.live[W * i / 16]);
  put_unit(v, n, codes);
  const i4 sums = fold_groups(v, act, SUM);
  const f4 products = s.scale * __builtin_convertvector(sums, f4);
  for (int g = 0; g < groups; g++) {
    scale[g * n] = s.scale[g * act / 16], scaled[g * n] = products[g * act / 16];
    sum[g * n] = sums[g * act / 16];
  }
}

/* Rows first .. end - 1 of a tile, one after the other: the core fetches the rest of a row that it
 * reads in order, from memory or from the core that has computed it. */
static void quantize_tile(const pe_int16_rows *out, const float *x, int64_t x_step, pe_int16_tile t,
                          int32_t first, int32_t end) {
  const int n = t.rows, per = UNIT / out->act;
  const int64_t at = t.from * out->groups;
  int16_t *codes = out->codes + t.from * out->step;
  for (int32_t r = first; r < end; r++) {
    for (int64_t col = 0, g = 0; col < out->cols; col += UNIT, g += per) {
      const bool whole = out->cols - col >= UNIT;
      const int groups = whole ? per : (int)(out->cols - col) / out->act;
      const float *from = x + (t.from + r) * x_step + col;
      const int64_t to = at + g * n + r;
      float padded[UNIT];
      if (!whole) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, from, (size_t)(out->cols - col) * sizeof *x), from = padded;
      }
      int16_t *put = codes + col * n + r * ROW_CODES;
      float *scale = out->scale + to, *scaled = out->scaled + to;
      if (out->act == UNIT) /* the usual group, as a constant */
        quantize_unit(from, UNIT, 1, n, put, scale, scaled, out->sum + to);
      else
        quantize_unit(from, out->act, groups, n, put, scale, scaled, out->sum + to);
    }
  }
}

static void quantize(const pe_int16_rows *out, const float *x, int64_t x_step, int32_t from,
                     int32_t to) {
#ifdef PE_LEAST
  if (out->rows < PE_LEAST) {
    (PE_FEWER)->quantize(out, x, x_step, from, to);
    return;
  }
#endif
  for (int32_t tile = 0; tile < out->tiles; tile++) {
    const pe_int16_tile t = pe_int16_tile_at(out, tile);
    const int32_t first = from > t.from ? from - t.from : 0;
    const int32_t end = to < t.from + t.rows ? to - t.from : t.rows;
    if (first < end) quantize_tile(out, x, x_step, t, first, end);
  }
}
