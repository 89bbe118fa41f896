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

#ifdef PE_HIGHER
ALWAYS i4 highest(const vi *v) {
  vi most = v[0];
  for (int i = 1; i < UNIT / W; i++) most = PE_HIGHER(most, v[i]);
  const int32_t top = PE_HIGHEST(most);
  return (i4){top, top, top, top};
}
#endif

/* 64 columns of one group to a result in every lane. */
ALWAYS i4 fold_unit(const vi *v, const reduction how) {
#ifdef PE_HIGHER
  if (how == MOST) return highest(v);
#endif
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

/* Where the codes of a row that is one of n of its tile go, and what belongs to its groups. */
typedef struct row_place {
  int n;
  int16_t *codes;
  float *scale, *scaled;
  int32_t *sum;
} row_place;

/* The place of the columns that follow these. */
ALWAYS row_place next_place(row_place p, int cols, int act) {
  const int groups = cols / act * p.n;
  return (row_place){p.n, p.codes + cols * p.n, p.scale + groups, p.scaled + groups,
                     p.sum + groups};
}

/* 64 columns, U times. Each step is made for all of them before the next one: a step waits for the
 * one before it, and a core does not see much further than one time. 0.7 of the time of one by one.
 */
enum { UNITS = 2 };
ALWAYS void quantize_units(const float *x, int act, int groups, row_place to, const int U) {
  vi v[UNITS][UNIT / W];
  group_scales s[UNITS];
  i4 sums[UNITS];
  for (int u = 0; u < U; u++)
    for (int i = 0; i < UNIT / W; i++) v[u][i] = (vi)load(x + u * UNIT + W * i) & 0x7fffffff;
  for (int u = 0; u < U; u++) s[u] = scales_of_tops(fold_groups(v[u], act, MOST));
  for (int u = 0; u < U; u++)
    for (int i = 0; i < UNIT / W; i++) {
      /* one group has the same in all lanes, which compilers do not see */
      const int lane = act == UNIT ? 0 : W * i / 16;
      v[u][i] = round_codes(load(x + u * UNIT + W * i), s[u].factor[lane], s[u].live[lane]);
    }
  for (int u = 0; u < U; u++) put_unit(v[u], to.n, to.codes + u * UNIT * to.n);
  for (int u = 0; u < U; u++) sums[u] = fold_groups(v[u], act, SUM);
  for (int u = 0; u < U; u++) {
    const f4 products = s[u].scale * __builtin_convertvector(sums[u], f4);
    for (int g = 0; g < groups; g++) {
      const int at = (u * groups + g) * to.n, lane = g * act / 16;
      to.scale[at] = s[u].scale[lane], to.scaled[at] = products[lane];
      to.sum[at] = sums[u][lane];
    }
  }
}

/* The last columns of a row, 64 at most. */
static NEVER void quantize_rest(const float *x, int64_t cols, int act, row_place to) {
  float padded[UNIT] = {0};
  memcpy(padded, x, (size_t)cols * sizeof *x);
  quantize_units(padded, act, (int)cols / act, to, 1);
}

/* Rows of a tile (counted from its first), one after the other: the core fetches the rest of a row
 * that it reads in order, from memory or from the core that has computed it. act: out->act, as a
 * constant. */
ALWAYS void quantize_rows(const pe_int16_rows *out, const float *x, int64_t x_step, pe_int16_tile t,
                          pe_int16_part part, const int act) {
  enum { SOME = UNITS * UNIT };
  for (int32_t r = part.row; r < part.end_row; r++) {
    const float *from = x + (t.from + r) * x_step + part.col;
    const int64_t at = t.from * out->groups + r;
    row_place to = {t.rows, out->codes + t.from * out->step + r * ROW_CODES, out->scale + at,
                    out->scaled + at, out->sum + at};
    to = next_place(to, (int)part.col, act);
    int64_t left = part.end_col - part.col;
    for (; left >= SOME; left -= SOME, from += SOME) {
      quantize_units(from, act, UNIT / act, to, UNITS);
      to = next_place(to, SOME, act);
    }
    for (int64_t cols; left > 0; left -= cols, from += cols) {
      cols = left < UNIT ? left : UNIT;
      quantize_rest(from, cols, act, to);
      to = next_place(to, UNIT, act);
    }
  }
}

static void quantize_tile(const pe_int16_rows *out, const float *x, int64_t x_step, pe_int16_tile t,
                          pe_int16_part part) {
  if (out->act == UNIT)
    quantize_rows(out, x, x_step, t, part, UNIT);
  else if (out->act == UNIT / 2)
    quantize_rows(out, x, x_step, t, part, UNIT / 2);
  else
    quantize_rows(out, x, x_step, t, part, UNIT / 4);
}

static void quantize(const pe_int16_rows *out, const float *x, int64_t x_step, pe_int16_part part) {
#ifdef PE_LEAST
  if (out->rows < PE_LEAST) {
    (PE_FEWER)->quantize(out, x, x_step, part);
    return;
  }
#endif
  for (int32_t row = part.row; row < part.end_row;) {
    const pe_int16_tile t = pe_int16_tile_at(out, pe_int16_tile_of(out, row));
    pe_int16_part of = part;
    of.row = row - t.from;
    of.end_row = part.end_row < t.from + t.rows ? part.end_row - t.from : t.rows;
    quantize_tile(out, x, x_step, t, of);
    row = t.from + t.rows;
  }
}
