/* prim_scalar.c - the reference: baseline instructions only, every product through fmaf. */
#define PE_SCALAR
#define PE_ISA scalar
#define PE_ISA_NAME "scalar"
#define PE_WIDTH 4
#define PE_FMA(a, b, c) lanes_apart(a, b, c)
/* Small tiles: without vector multiply-adds the calls of fmaf dominate, not the loads. */
#define PE_TILE_ROWS 2
#define PE_TILE_COLS 2
#define PE_ROW_COLS 4
#define PE_MIX_ROWS 2
#define PE_MIX_VECS 2
#define PE_MIX_MANY 2
#define PE_MIX_WIDE 2
#define PE_FEW 3
#define PE_FEW_ROWS 1
#define PE_PANEL_ROWS 6
#define PE_PANEL_PARTS 1

#include <math.h>

typedef float lanes4 __attribute__((vector_size(16)));
static inline lanes4 lanes_apart(lanes4 a, lanes4 b, lanes4 c) {
  for (int j = 0; j < 4; j++) c[j] = fmaf(a[j], b[j], c[j]);
  return c;
}

#include "kernels/cpu/prim_impl.h"
