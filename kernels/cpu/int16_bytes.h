/* int16_bytes.h - a part of the version of int16.h (see int16_lanes.h) for one or two rows on
 * AVX-512 with VNNI: products of bytes, code = 256 * high + low, both of them signed.
 *
 * Weights stay bytes, so that unpacking takes half of the instructions of 16-bit pairs; products
 * are as many. 1.03 to 1.05 times the speed of pairs with 4 bits, 1.1 with a table of levels. */

enum { LAYOUT = PE_INT16_SIGNED, ROW_CODES = 8 };

/* ---- activations ----------------------------------------------------------------------------- */

/* The codes of 64 columns of a row that is one of n of its tile. */
ALWAYS void put_unit(const vi *v, int n, int16_t *codes) {
  /* of four columns: the bytes high 0 2, high 1 3, low 0 2, low 1 3 */
  const __m128i order = _mm_setr_epi8(1, 9, 5, 13, 0, 8, 4, 12, 0, 0, 0, 0, 0, 0, 0, 0);
  for (int i = 0; i < UNIT / W; i++) {
    /* a low byte from 128 on stands for one less 256 */
    const vi both = (v[i] & 0xff) | ((v[i] + 128) & 0xff00);
    for (int k = 0; k < 2; k++) {
      const __m128i *at = (const __m128i *)(const void *)&both + 2 * k;
      const __m128i a = _mm_shuffle_epi8(at[0], order), b = _mm_shuffle_epi8(at[1], order);
      const __m128i block = _mm_unpacklo_epi16(a, b);
      memcpy(codes + (2 * i + k) * n * 8, &block, sizeof block);
    }
  }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* By row: high bytes of even and of odd columns, then low bytes. Four sums hide the latency. */
typedef vi dots[PE_FUSED][4];

ALWAYS void fused_clear(dots d, const int R) {
  for (int r = 0; r < R; r++)
    for (int k = 0; k < 4; k++) d[r][k] = (vi){0};
}

/* Four weights of each lane times the four codes at p. */
ALWAYS vi dot_bytes(vi acc, vu w, const uint8_t *p) {
  typedef struct four {
    uint8_t code[4];
  } four;
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const four *)p));
  return acc;
}

/* Block i of eight columns, R rows. */
ALWAYS void fused_block(const uint8_t *base, const uint8_t *upper, vu levels, const int16_t *x,
                        dots d, const int i, const int R, const form f) {
  const vu even = bytes_of(base, upper, levels, i, 0, 0, f);
  const vu odd = bytes_of(base, upper, levels, i, 1, 0, f);
  for (int r = 0; r < R; r++) {
    const uint8_t *at = (const uint8_t *)(x + (i * R + r) * 8);
    d[r][0] = dot_bytes(d[r][0], even, at), d[r][1] = dot_bytes(d[r][1], odd, at + 4);
    d[r][2] = dot_bytes(d[r][2], even, at + 8), d[r][3] = dot_bytes(d[r][3], odd, at + 12);
  }
}

/* The sum of row r. */
ALWAYS vi fused_total(dots d, int r, int p, const int R) {
  (void)p, (void)R; /* a panel is one register */
  return (vi)((vu)(d[r][0] + d[r][1]) << 8) + (d[r][2] + d[r][3]);
}
