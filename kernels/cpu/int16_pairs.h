/* int16_pairs.h - a part of the versions of int16.h (see int16_lanes.h) that multiply pairs of
 * 16-bit values. In addition they define
 *
 *   PE_DOT(acc, w, x)      acc + products of the pairs of 16-bit values of each lane, in 32 bits
 *
 * or, if products are summed in another form than one register of 32-bit integers, PE_PARTIAL and
 * the type vacc with the functions vacc_dot and vacc_total.
 *
 *   PE_DOT_AT(acc, w, p)   the same with one pair at p for all lanes, if there is an instruction
 *   PE_PARTS               registers of a panel that a tile sums at a time; all if not defined
 *   PE_CHAINS              sums of a panel in `fused`: separate ones hide the latency */

#ifndef PE_PARTIAL
typedef vi vacc;
ALWAYS vacc vacc_dot(vacc acc, vi w, vi x) { return PE_DOT(acc, w, x); }
ALWAYS vi vacc_total(vacc acc) { return acc; }
#endif
#ifndef PE_DOT_AT
#define PE_DOT_AT(acc, w, p) vacc_dot(acc, w, splat_pair(p))
#endif
#ifndef PE_PARTS
#define PE_PARTS (16 / PE_WIDTH)
#endif

/* ---- activations ----------------------------------------------------------------------------- */

enum { LAYOUT = PE_INT16_PAIRS, ROW_CODES = 8 };

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

/* The codes of 64 columns of a row that is one of n of its tile. */
ALWAYS void put_unit(const vi *v, int n, int16_t *codes) {
  for (int i = 0; i < UNIT / W; i += 2) {
    vi pairs = pair_codes(v[i], v[i + 1]);
    for (int k = 0; k < W / 4; k++)
      memcpy(codes + (i / 2 * (W / 4) + k) * n * 8, (const int32_t *)&pairs + 4 * k, 16);
  }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* A line in a register: gcc would load it from memory for each shift, 1.07 times the time. */
ALWAYS vu held(vu v) {
#if PE_WIDTH == 16
  __asm__("" : "+v"(v));
#endif
  return v;
}

/* The pairs (0,4), (1,5), (2,6), (3,7) of block i of a chunk. */
ALWAYS void pairs_of(const uint8_t *chunk, const uint8_t *upper, vu levels, int i, int p, int late,
                     vi pairs[4], const form f) {
  if (f.base == 4 && !f.upper && !f.levels) { /* one operation less than in two steps */
    const vu v = held(load_words(chunk + i * 64 + p * 4 * W)), low = (vu)splat_int(0x000f000f);
    pairs[0] = (vi)(v & low), pairs[1] = (vi)(v >> 4 & low);
    pairs[2] = (vi)(v >> 8 & low), pairs[3] = (vi)((vh)v >> 12);
    return;
  }
  const vu even = late_bytes_of(chunk, upper, levels, i, 0, p, late, f);
  const vu odd = late_bytes_of(chunk, upper, levels, i, 1, p, late, f);
  pairs[0] = even_bytes(even), pairs[1] = even_bytes(odd);
  pairs[2] = odd_bytes(even), pairs[3] = odd_bytes(odd);
}

/* One chunk as pairs in order of columns, 16 lanes each, less their offset if there is one. */
ALWAYS void unpack(const pe_pack *w, const uint8_t *chunk, int32_t *out, const form f,
                   const bool less) {
  const vu levels = level_table(w);
  const vh offset = (vh)splat_int(w->offset * 0x10001);
  const uint8_t *upper = chunk + w->upper_at;
  for (int i = 0; i < w->chunk / 8; i += 4)
    for (int j = i; j < i + 4; j++)
      for (int p = 0; p < PARTS; p++) {
        int32_t *at = out + j * 4 * LANES + p * W;
        vi pairs[4];
        pairs_of(chunk, upper, levels, j, p, 0, pairs, f);
        for (int k = 0; k < 4; k++) {
          if (less) pairs[k] = (vi)((vh)pairs[k] - offset);
          memcpy(at + k * LANES, &pairs[k], sizeof pairs[k]);
        }
      }
}

#define DEFINE_UNPACK(name)                                                                        \
  static void unpack_##name(const pe_pack *w, const uint8_t *chunk, int32_t *out) {                \
    if (w->offset)                                                                                 \
      unpack(w, chunk, out, FORM_##name, true);                                                    \
    else                                                                                           \
      unpack(w, chunk, out, FORM_##name, false);                                                   \
  }
EACH_FORM(DEFINE_UNPACK)
#undef DEFINE_UNPACK

static void (*const unpackers[FORMS])(const pe_pack *, const uint8_t *, int32_t *) = {
#define UNPACKER(name) unpack_##name,
    EACH_FORM(UNPACKER)
#undef UNPACKER
};

/* Unpacks whole chunks of one panel. */
static void unpack_codes(const pe_pack *w, const uint8_t *chunk, int64_t cols,
                         pe_int16_block *block, int c) {
  void (*const unpack_chunk)(const pe_pack *, const uint8_t *, int32_t *) =
      unpackers[form_index(w)];
  int32_t *pairs = block->codes[c];
  for (int64_t k = 0; k < cols; k += w->chunk, chunk += w->chunk_bytes)
    unpack_chunk(w, chunk, pairs), pairs += w->chunk / 2 * LANES;
}

/* ---- one or two rows ------------------------------------------------------------------------- */

#if PE_FUSED
enum { CHAINS = PE_CHAINS };
typedef vacc dots[PE_FUSED][CHAINS][PARTS]; /* sums of one panel that are still integers */
ALWAYS int chains(const int R) { return R < CHAINS ? CHAINS / R : 1; }

ALWAYS void fused_clear(dots d, const int R) {
  for (int r = 0; r < R; r++)
    for (int k = 0; k < chains(R); k++)
      for (int p = 0; p < PARTS; p++) d[r][k][p] = (vacc){0};
}

/* Block i of eight columns, R rows. */
ALWAYS void fused_block(const uint8_t *base, const uint8_t *upper, vu levels, const int16_t *x,
                        dots d, const int i, const int R, const form f) {
  for (int p = 0; p < PARTS; p++) {
    vi pairs[4];
    pairs_of(base, upper, levels, i, p, 0, pairs, f);
    for (int r = 0; r < R; r++)
      for (int k = 0; k < 4; k++) {
        vacc *to = &d[r][k % chains(R)][p];
        *to = vacc_dot(*to, pairs[k], splat_pair(x + (i * R + r) * 8 + 2 * k));
      }
  }
}

/* The sum of row r, part p. */
ALWAYS vi fused_total(dots d, int r, int p, const int R) {
  vi t = vacc_total(d[r][0][p]);
  for (int k = 1; k < chains(R); k++) t += vacc_total(d[r][k][p]);
  return t;
}
#endif

/* ---- tiles ----------------------------------------------------------------------------------- */

typedef vacc tile_sums[MOST_ROWS][PE_INT16_PANELS][PE_PARTS];

/* The integers of one group, parts from q on. The codes of the next tile, which the third-level
 * cache may have, are requested meanwhile; those after the last one are not read. */
ALWAYS void tile_dots(const task *t, int g, int q, tile_sums d, const int R, const int C) {
  const int32_t *w = t->block->codes[0] + g * (t->act / 2) * LANES + q * W;
  const int16_t *x = t->x.codes + g * t->act * R;
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++)
      for (int p = 0; p < PE_PARTS; p++) d[r][c][p] = (vacc){0};
  int i = t->act / 8;
  do {
    for (int b = 0; b < R * 16; b += 64)
      __builtin_prefetch((const uint8_t *)(x + t->next_codes) + b, 0, 2);
    for (int k = 0; k < 4; k++) {
      vi pairs[PE_INT16_PANELS][PE_PARTS];
      for (int c = 0; c < C; c++)
        for (int p = 0; p < PE_PARTS; p++)
          pairs[c][p] = (vi)load_words(w + c * PE_INT16_CODES + k * LANES + p * W);
      for (int r = 0; r < R; r++) {
        const int16_t *at = x + r * 8 + 2 * k;
        for (int c = 0; c < C; c++)
          for (int p = 0; p < PE_PARTS; p++)
            d[r][c][p] = vacc_dot(d[r][c][p], pairs[c][p], splat_pair(at));
      }
    }
    w += 4 * LANES, x += 8 * R;
  } while (--i);
}

ALWAYS void tile(const task *t, const int R, const int C) {
  for (int g = 0; g < t->groups; g++) {
    prefetch_next(t, g, C);
    for (int q = 0; q < PARTS; q += PE_PARTS) {
      tile_sums d;
      tile_dots(t, g, q, d, R, C);
#ifdef PE_DOT_AT /* or gcc keeps the float sums in registers, and moves others to the stack */
      __asm__ volatile("" ::: "memory");
#endif
      for (int c = 0; c < C; c++)
        for (int p = 0; p < PE_PARTS; p++) {
          const vf s = scale_of(t, g, c, q + p);
          for (int r = 0; r < R; r++) add_group(t, g, s, vacc_total(d[r][c][p]), r, c, q + p, R, C);
        }
    }
  }
}
