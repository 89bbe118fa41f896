/* plain_layout.h - what the versions of plain.h keep in scratch. */
#ifndef PE_PLAIN_LAYOUT_H
#define PE_PLAIN_LAYOUT_H

#include "kernels/cpu/plain.h"

enum {
  PE_PLAIN_LANES = 16,
  /* Columns of a block: a panel is 128 KB, a part of a second-level cache of 1 MB. */
  PE_PLAIN_COLS = 1024,
  PE_PLAIN_TILE = 14, /* rows of a tile, at most */
  /* Floats between the parts of lanes, so that they do not meet in the same lines of a cache */
  PE_PLAIN_GAP = 16
};

/* Blocks of columns, all as wide as the first but the last one. */
static inline int64_t pe_plain_blocks(int64_t cols) {
  return (cols + PE_PLAIN_COLS - 1) / PE_PLAIN_COLS;
}
/* Columns of the first block in units of 16. */
static inline int64_t pe_plain_steps(int64_t cols) {
  const int64_t blocks = pe_plain_blocks(cols), units = (cols + 15) / 16;
  return (units + blocks - 1) / blocks;
}

#endif
