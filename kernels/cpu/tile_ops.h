/* tile_ops.h - the instructions of AMX as functions. tile_emulated.h has
 * those that multiply bf16 in plain C.
 *
 * Not the compilers' intrinsics: gcc 12 believes that its tile loads read no memory and that a
 * configuration is 8 bytes long, and that its stores write all of memory, so that sums cannot stay
 * in registers. Tiles are numbered by constants. */
#ifndef PE_TILE_OPS_H
#define PE_TILE_OPS_H

#include <stdint.h>

#define TILE_OP static inline __attribute__((always_inline))

typedef struct tile_memory {
  uint8_t bytes[1024];
} tile_memory;
typedef struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_config;

TILE_OP void tile_configure(const tile_config *c) { __asm__ volatile("ldtilecfg %0" ::"m"(*c)); }
TILE_OP void tile_release(void) { __asm__ volatile("tilerelease"); }
/* `step` bytes from row to row. Memory that is written shortly before must be within 1 KB. */
TILE_OP void tile_load(const int tile, const void *p, int64_t step) {
  __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(tile), "r"(p), "r"(step),
                   "m"(*(const tile_memory *)p));
}
TILE_OP void tile_clear(const int tile) { __asm__ volatile("tilezero %%tmm%c0" ::"i"(tile)); }
TILE_OP void tile_store(const int tile, void *p, int64_t step) {
  __asm__ volatile("tilestored %%tmm%c1, (%2,%3,1)"
                   : "=m"(*(tile_memory *)p)
                   : "i"(tile), "r"(p), "r"(step));
}
/* to += a . b, pairs of bf16 */
TILE_OP void tile_dot(const int to, const int a, const int b) {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(to), "i"(a), "i"(b));
}
/* to += a . b, fours of bytes; a is signed, b is or is not */
TILE_OP void tile_dot_ss(const int to, const int a, const int b) {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(to), "i"(a), "i"(b));
}
TILE_OP void tile_dot_su(const int to, const int a, const int b) {
  __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(to), "i"(a), "i"(b));
}

#endif
