/* int16_layout.h - what the versions of int16.h keep in scratch: weights of a few panels, unpacked
 * for one block of columns. */
#ifndef PE_INT16_LAYOUT_H
#define PE_INT16_LAYOUT_H

#include "kernels/cpu/int16.h"

enum {
  PE_INT16_PANELS = 2,                  /* at most, of a tile */
  PE_INT16_COLS = PE_PACK_CHUNK,        /* of a block; a multiple of every chunk */
  PE_INT16_GROUPS = PE_INT16_COLS / 16, /* at most */
  PE_INT16_LANES = PE_PACK_ROWS,
  PE_INT16_PAIRS = PE_INT16_COLS / 2 * PE_PACK_ROWS /* of a panel */
};

/* Two panels of pairs are 16 KB, half of a small first-level cache; the rest is for activations. */
typedef struct pe_int16_block {
  int32_t pairs[PE_INT16_PANELS][PE_INT16_PAIRS]; /* two 16-bit values of one row each */
  float s[PE_INT16_PANELS][PE_INT16_GROUPS * PE_INT16_LANES];
  float b[PE_INT16_PANELS][PE_INT16_GROUPS * PE_INT16_LANES];
} pe_int16_block;

#endif
