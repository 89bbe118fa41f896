/* languages.h - languages of short words as sets, to compare terms and grammars with.
 *
 * Words have up to five letters a and b: word i has the letters of i after its highest bit. A
 * language is a set of them, bit by bit; bit 0 belongs to no word. */
#ifndef TEST_LANGUAGES_H
#define TEST_LANGUAGES_H

#include <stdint.h>

enum { LONGEST = 5, WORDS = 1 << (LONGEST + 1) };

static int length_of(int word) { return 31 - __builtin_clz((unsigned)word); }

static uint64_t joined(uint64_t x, uint64_t y) {
  uint64_t out = 0;
  for (int i = 1; i < WORDS; i++)
    for (int j = 1; x >> i & 1 && j < WORDS; j++) {
      const int n = length_of(j);
      if (y >> j & 1 && length_of(i) + n <= LONGEST) out |= UINT64_C(1) << (i << n | (j ^ 1 << n));
    }
  return out;
}

static uint64_t repeated(uint64_t x, uint32_t least, uint32_t most) {
  uint64_t out = 0, power = 2;
  for (uint32_t i = 0; i <= most && i <= least + LONGEST; i++, power = joined(power, x))
    if (i >= least) out |= power;
  return out;
}

#endif
