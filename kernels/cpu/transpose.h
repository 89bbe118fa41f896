/* transpose.h - sixteen registers of sixteen words, transposed in 64 shuffles. */
#ifndef PE_TRANSPOSE_H
#define PE_TRANSPOSE_H

typedef float pe_vec16 __attribute__((vector_size(64)));

/* Sixteen lines of sixteen floats or words: column l becomes line l. */
#define PAIR(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
static inline __attribute__((always_inline)) void pe_transpose16(pe_vec16 v[16]) {
  pe_vec16 t[16];
  for (int i = 0; i < 16; i += 2) { /* 1x1 blocks of 2x2 */
    t[i] = PAIR(v[i], v[i + 1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    t[i + 1] = PAIR(v[i], v[i + 1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
  for (int i = 0; i < 16; i++) /* 2x2 blocks of 4x4 */
    if (!(i & 2)) {
      v[i] = PAIR(t[i], t[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      v[i + 2] = PAIR(t[i], t[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  for (int i = 0; i < 16; i++)
    if (!(i & 4)) {
      t[i] = PAIR(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
      t[i + 4] = PAIR(v[i], v[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    }
  for (int i = 0; i < 8; i++) {
    v[i] = PAIR(t[i], t[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    v[i + 8] = PAIR(t[i], t[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
}
#undef PAIR

#endif
