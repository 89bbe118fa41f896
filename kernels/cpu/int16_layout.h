/* int16_layout.h - what the versions of int16.h keep in scratch: weights of a few panels, unpacked
 * for one block of columns, and after them, of products of many rows,
 *
 *   | sums of all rows | sums of biases of a tile | biases of all groups, panel by panel | */
#ifndef PE_INT16_LAYOUT_H
#define PE_INT16_LAYOUT_H

#include "kernels/cpu/int16.h"

enum {
  PE_INT16_PANELS = 2, /* at most, of a tile */
  PE_INT16_TILE = 16,  /* rows of a tile at most */
  PE_INT16_COLS = 512, /* at most, of a block; blocks are a multiple of every chunk */
  PE_INT16_GROUPS = PE_INT16_COLS / 16,
  PE_INT16_LANES = PE_PACK_ROWS,
  /* words of a panel: pairs of 16-bit values of 256 columns, or bytes of 512 */
  PE_INT16_CODES = PE_INT16_COLS / 4 * PE_PACK_ROWS
};

/* Two panels of codes are 16 KB, half of a small first-level cache; the rest is for activations. */
typedef struct pe_int16_block {
  int32_t codes[PE_INT16_PANELS][PE_INT16_CODES];
  float s[PE_INT16_PANELS][PE_INT16_GROUPS * PE_INT16_LANES];
  float b[PE_INT16_PANELS][PE_INT16_GROUPS * PE_INT16_LANES];
  /* sums of the codes of a group, for the versions that need them */
  int32_t total[PE_INT16_PANELS][PE_INT16_GROUPS * PE_INT16_LANES];
} pe_int16_block;

#endif
