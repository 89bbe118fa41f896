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
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(1, 9, 5, 13, 0, 8, 4, 12, 0, 0, 0, 0, 0, 0, 0, 0));
  /* these of the first four columns of a block and of the other four, in turns */
  const __m512i turns = _mm512_castsi256_si512(
      _mm256_setr_epi16(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27));
  for (int i = 0; i < UNIT / W; i++) {
    /* a low byte from 128 on stands for one less 256 */
    const vi both = (v[i] & 0xff) | ((v[i] + 128) & 0xff00);
    const __m512i all = _mm512_permutexvar_epi16(turns, _mm512_shuffle_epi8((__m512i)both, order));
    const __m256i blocks = _mm512_castsi512_si256(all);
    memcpy(codes + 2 * i * n * 8, &blocks, 16);
    memcpy(codes + (2 * i + 1) * n * 8, (const uint8_t *)&blocks + 16, 16);
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
