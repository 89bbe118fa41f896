/* int16_planes.h - a part of the versions of int16.h (see int16_lanes.h) that multiply bytes on
 * aarch64: codes are 256 * high + low, and weights are unsigned bytes.
 *
 * With dot products alone both operands are signed or both are not, so high bytes have 128 added
 * (PE_INT16_BIASED), and 128 times the sum of the weights is subtracted again. With PE_MATRIX there
 * are products of signed and unsigned bytes, and of 2 x 8 and 8 x 2 bytes. */

#ifdef PE_MATRIX
enum { LAYOUT = PE_INT16_PLANES, BIASED = 0 };
#else
enum { LAYOUT = PE_INT16_BIASED, BIASED = 1 };
#endif
enum { ROW_CODES = 8, HALF = PE_PARTS };
typedef uint8x16_t vb;

ALWAYS vb load_bytes(const void *p) { return vld1q_u8((const uint8_t *)p); }

/* ---- activations ----------------------------------------------------------------------------- */

/* The codes of 64 columns of a row that is one of n of its tile. */
ALWAYS void put_unit(const vi *v, int n, int16_t *codes) {
  /* of eight columns: the second bytes of codes 0 2 4 6 1 3 5 7, and the first ones */
  const vb order = {1, 9, 17, 25, 5, 13, 21, 29, 0, 8, 16, 24, 4, 12, 20, 28};
  const vb bias = vcombine_u8(vdup_n_u8(BIASED ? 128 : 0), vdup_n_u8(0));
  for (int i = 0; i < UNIT / 8; i++) {
    const uint8x16x2_t both = {{(vb)v[2 * i], (vb)v[2 * i + 1]}};
    vst1q_u8((uint8_t *)(codes + i * n * 8), vqtbl2q_u8(both, order) ^ bias);
  }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* One chunk: the even and the odd columns of each block of eight, 16 lanes each. For PE_MATRIX the
 * eight columns of a lane are adjacent, lane by lane. */
ALWAYS void unpack(const pe_pack *w, const uint8_t *chunk, uint8_t *out, const form f) {
  const vu levels = level_table(w);
  const uint8_t *upper = chunk + w->upper_at;
  for (int i = 0; i < w->chunk / 8; i += 4)
    for (int j = i; j < i + 4; j++)
      for (int p = 0; p < PARTS; p++) {
        const vu even = bytes_of(chunk, upper, levels, j, 0, p, f);
        const vu odd = bytes_of(chunk, upper, levels, j, 1, p, f);
#ifdef PE_MATRIX
        uint8_t *at = out + j * 8 * LANES + p * 32;
        vst1q_u8(at, (vb)vzip1q_u32((uint32x4_t)even, (uint32x4_t)odd));
        vst1q_u8(at + 16, (vb)vzip2q_u32((uint32x4_t)even, (uint32x4_t)odd));
#else
        uint8_t *at = out + j * 8 * LANES + p * 16;
        vst1q_u8(at, (vb)even);
        vst1q_u8(at + 4 * LANES, (vb)odd);
#endif
      }
}

#define DEFINE_UNPACK(name)                                                                        \
  static void unpack_##name(const pe_pack *w, const uint8_t *chunk, uint8_t *out) {                \
    unpack(w, chunk, out, FORM_##name);                                                            \
  }
EACH_FORM(DEFINE_UNPACK)
#undef DEFINE_UNPACK

static void (*const unpackers[FORMS])(const pe_pack *, const uint8_t *, uint8_t *) = {
#define UNPACKER(name) unpack_##name,
    EACH_FORM(UNPACKER)
#undef UNPACKER
};

#ifndef PE_MATRIX
/* Where the sums of high bytes begin: -128 times the sum of the weights of each group. */
static void sum_weights(const uint8_t *bytes, int groups, int act, int32_t *total) {
  for (int g = 0; g < groups; g++, total += LANES)
    for (int p = 0; p < PARTS; p++) {
      uint32x4_t sum = vdupq_n_u32(0);
      for (int i = 0; i < act / 4; i++)
        sum = vdotq_u32(sum, load_bytes(bytes + (g * act / 4 + i) * 64 + p * 16), vdupq_n_u8(1));
      vst1q_s32(total + p * W, vreinterpretq_s32_u32(sum) * -128);
    }
}
#endif

/* Unpacks whole chunks of one panel. */
static void unpack_codes(const pe_pack *w, const uint8_t *chunk, int64_t cols,
                         pe_int16_block *block, int c) {
  void (*const unpack_chunk)(const pe_pack *, const uint8_t *, uint8_t *) =
      unpackers[form_index(w)];
  uint8_t *bytes = (uint8_t *)block->codes[c];
  for (int64_t k = 0; k < cols; k += w->chunk, chunk += w->chunk_bytes)
    unpack_chunk(w, chunk, bytes + k * LANES);
#ifndef PE_MATRIX
  sum_weights(bytes, (int)cols / w->act, w->act, block->total[c]);
#endif
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Four weights of each of four lanes with four high bytes of an activation, word k of x. */
#ifdef PE_MATRIX
#define DOT_HIGH(acc, w, x, k) ((vi)vusdotq_laneq_s32((int32x4_t)(acc), w, (int8x16_t)(x), k))
#else
#define DOT_HIGH(acc, w, x, k) ((vi)vdotq_laneq_u32((uint32x4_t)(acc), w, x, k))
#endif
#define DOT_LOW(acc, w, x, k) ((vi)vdotq_laneq_u32((uint32x4_t)(acc), w, x, k))

ALWAYS vi both_planes(vi high, vi low) { return (vi)((vu)high << 8) + low; }

/* ---- one or two rows ------------------------------------------------------------------------- */

typedef struct plane_sums {
  vi high, low;
} plane_sums;
typedef struct fused_sums {
  plane_sums row[PE_FUSED][PARTS];
  vi weights[PARTS]; /* the sums of the weights, if BIASED */
} fused_sums;
typedef fused_sums dots[1];

ALWAYS void fused_clear(dots d, const int R) {
  for (int p = 0; p < PARTS; p++) {
    d->weights[p] = (vi){0};
    for (int r = 0; r < R; r++) d->row[r][p] = (plane_sums){{0}, {0}};
  }
}

/* Block i of eight columns, R rows. */
ALWAYS void fused_block(const uint8_t *base, const uint8_t *upper, vu levels, const int16_t *x,
                        dots d, const int i, const int R, const form f) {
  for (int p = 0; p < PARTS; p++) {
    const vb even = (vb)bytes_of(base, upper, levels, i, 0, p, f);
    const vb odd = (vb)bytes_of(base, upper, levels, i, 1, p, f);
    for (int r = 0; r < R; r++) {
      const vb v = load_bytes(x + (i * R + r) * 8);
      plane_sums *to = &d->row[r][p];
      to->high = DOT_HIGH(DOT_HIGH(to->high, even, v, 0), odd, v, 1);
      to->low = DOT_LOW(DOT_LOW(to->low, even, v, 2), odd, v, 3);
    }
    if (BIASED) {
      uint32x4_t sum = vdotq_u32((uint32x4_t)d->weights[p], even, vdupq_n_u8(1));
      d->weights[p] = (vi)vdotq_u32(sum, odd, vdupq_n_u8(1));
    }
  }
}

/* The sum of row r, part p. */
ALWAYS vi fused_total(dots d, int r, int p, const int R) {
  (void)R;
  const plane_sums *s = &d->row[r][p];
  return both_planes(BIASED ? s->high - d->weights[p] * 128 : s->high, s->low);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

#ifdef PE_MATRIX
/* Group g, parts q and q + 1: pairs of lanes times pairs of rows. */
ALWAYS void tile_dots(const task *t, int g, int q, vi d[PE_TILE][HALF], const int R) {
  const uint8_t *w = (const uint8_t *)t->block->codes[0] + g * t->act * LANES + q * 32;
  const int16_t *x = t->x.codes + g * t->act * R;
  const int pairs = (R + 1) / 2;
  int32x4_t high[PE_TILE / 2][2 * HALF];
  uint32x4_t low[PE_TILE / 2][2 * HALF];
  for (int r = 0; r < pairs; r++)
    for (int k = 0; k < 2 * HALF; k++) high[r][k] = vdupq_n_s32(0), low[r][k] = vdupq_n_u32(0);
  for (int i = 0; i < t->act / 8; i++, w += 8 * LANES, x += 8 * R) {
    vb lanes[2 * HALF];
    for (int k = 0; k < 2 * HALF; k++) lanes[k] = load_bytes(w + 16 * k);
    for (int r = 0; r < pairs; r++) {
      const uint64x2_t a = (uint64x2_t)load_bytes(x + 16 * r);
      const uint64x2_t b = 2 * r + 1 < R ? (uint64x2_t)load_bytes(x + 16 * r + 8) : vdupq_n_u64(0);
      const int8x16_t xh = (int8x16_t)vzip1q_u64(a, b);
      const vb xl = (vb)vzip2q_u64(a, b);
      for (int k = 0; k < 2 * HALF; k++) {
        high[r][k] = vusmmlaq_s32(high[r][k], lanes[k], xh);
        low[r][k] = vmmlaq_u32(low[r][k], lanes[k], xl);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < HALF; p++) {
      const int k = r / 2;
      const int32x4_t a = (int32x4_t)both_planes((vi)high[k][2 * p], (vi)low[k][2 * p]);
      const int32x4_t b = (int32x4_t)both_planes((vi)high[k][2 * p + 1], (vi)low[k][2 * p + 1]);
      d[r][p] = (vi)(r % 2 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b));
    }
}
#else
/* Group g, parts q and q + 1. */
ALWAYS void tile_dots(const task *t, int g, int q, vi d[PE_TILE][HALF], const int R) {
  const uint8_t *w = (const uint8_t *)t->block->codes[0] + g * t->act * LANES + q * 16;
  const int16_t *x = t->x.codes + g * t->act * R;
  plane_sums s[PE_TILE][HALF];
  for (int r = 0; r < R; r++)
    for (int p = 0; p < HALF; p++)
      s[r][p] = (plane_sums){(vi)vld1q_s32(t->block->total[0] + g * LANES + (q + p) * W), {0}};
  for (int i = 0; i < t->act / 8; i++, w += 8 * LANES, x += 8 * R) {
    vb even[HALF], odd[HALF];
    for (int p = 0; p < HALF; p++)
      even[p] = load_bytes(w + 16 * p), odd[p] = load_bytes(w + 4 * LANES + 16 * p);
    for (int r = 0; r < R; r++) {
      const vb v = load_bytes(x + 8 * r);
      for (int p = 0; p < HALF; p++) {
        s[r][p].high = DOT_HIGH(DOT_HIGH(s[r][p].high, even[p], v, 0), odd[p], v, 1);
        s[r][p].low = DOT_LOW(DOT_LOW(s[r][p].low, even[p], v, 2), odd[p], v, 3);
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < HALF; p++) d[r][p] = both_planes(s[r][p].high, s[r][p].low);
}
#endif

ALWAYS void tile(const task *t, const int R, const int C) {
  for (int g = 0; g < t->groups; g++) {
    prefetch_next(t, g, C);
    for (int q = 0; q < PARTS; q += HALF) {
      vi d[PE_TILE][HALF];
      tile_dots(t, g, q, d, R);
      for (int p = 0; p < HALF; p++) {
        const vf s = scale_of(t, g, 0, q + p);
        for (int r = 0; r < R; r++) {
          const vi start = splat_int(-t->offset * t->x.sum[g * R + r]);
          add_group(t, g, s, start + d[r][p], r, 0, q + p, R, C);
        }
      }
    }
  }
}
