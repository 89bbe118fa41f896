/* plain.c - see plain.h. */
#include "kernels/cpu/plain.h"

#include "kernels/cpu/plain_layout.h"

int64_t pe_plain_scratch(int64_t rows, int64_t cols) {
  const int64_t steps = pe_plain_steps(cols), blocks = pe_plain_blocks(cols);
  const int64_t panel = PE_PLAIN_LANES * (steps * PE_PLAIN_PANEL + PE_PLAIN_GAP);
  const int64_t waits = 5 * PE_PLAIN_TILE * PE_PLAIN_PANEL;
  const int64_t x = rows * blocks * PE_PLAIN_LANES * (steps + PE_PLAIN_GAP);
  const int64_t lanes = blocks > 1 ? rows * PE_PLAIN_PANEL * PE_PLAIN_LANES : 0;
  return rows > 1 ? panel + waits + x + lanes : 0; /* one row needs nothing */
}
