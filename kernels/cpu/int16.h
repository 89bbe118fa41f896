/* int16.h - products of packed weights with activations rounded to 16-bit codes.
 *
 * Activations: each group of `act` values of a row (pe_pack.act) becomes 16-bit codes with one
 * float32 scale, its largest magnitude / PE_INT16_MOST:
 *
 *   top   = the largest magnitude, but at least 2^-96 so that MOST / top is finite
 *   code  = x * (MOST / top), to nearest, ties to even;   scale = top / MOST
 *   sum   = the sum of the codes;                         scaled = scale * (float)sum
 *
 * A group of zeros has scale 0. A group with NaN or infinity has codes 0 and scale NaN, so every
 * product with it is NaN.
 *
 * Products: with the integers c and the floats s and b of the weight (pack.h), for groups in order
 *
 *   dot = sum of code * c, exact in 32 bits (at most 64 * MOST * 255)
 *   acc = fma(s * scale, (float)dot, acc)
 *   B   = fma(b, scaled, B)                  only kinds that have b
 *   y   = acc + B, then + bias, then + residual; each one rounding
 *
 * There is one source, int16_impl.h, compiled per instruction set like that of prim.h. Every
 * version, number of rows, and range of columns gives the same bits. Versions with dot products of
 * bytes split a code into two planes, code = 256 * high + low, and sum them apart. They have
 * their own layout of the codes: only quantize and product of the same version see it. A version
 * may leave few rows to another one; int16_vnni_row.c has no other use, and so cannot be chosen.
 *
 * Nothing here allocates, fails or knows about tasks: callers give ranges of rows and columns. */
#ifndef PE_INT16_H
#define PE_INT16_H

#include "kernels/pack.h"

/* ---- activations ----------------------------------------------------------------------------- */

/* 127 * 256: both bytes of a code can be signed. */
enum { PE_INT16_MOST = 32512 };

/* Rows are kept in tiles, the numbers of rows of which differ by at most one. A tile of n rows is
 * contiguous: its codes, and for each group its n scales. The codes of a tile: */
typedef enum pe_int16_layout {
  PE_INT16_PAIRS,  /* blocks of 8 columns of n rows: codes in the order 0 4 1 5 2 6 3 7 */
  PE_INT16_PLANES, /* the same blocks: high bytes, low bytes; each in the order 0 2 4 6 1 3 5 7 */
  PE_INT16_BIASED, /* the same with 128 added to high bytes, so that they are not negative */
  PE_INT16_SIGNED, /* the same as planes, with low bytes from -128 to 127 */
  PE_INT16_TILES   /* blocks of 64 columns: high bytes of n rows, low bytes of n rows from -128 to
                    * 127; each eight in the order 0 2 4 6 1 3 5 7 */
} pe_int16_layout;

/* Columns that are rounded together: groups of PE_INT16_UNIT / act. */
enum { PE_INT16_UNIT = 64 };

typedef struct pe_int16_rows {
  int32_t rows, tiles, act;
  pe_int16_layout layout;
  int64_t cols, step, groups; /* step: columns rounded up to 64 */
  int16_t *codes;
  float *scale, *scaled;
  int32_t *sum;
} pe_int16_rows;

typedef struct pe_int16_tile { /* rows from .. from + rows - 1 */
  int32_t from, rows;
} pe_int16_tile;
static inline pe_int16_tile pe_int16_tile_at(const pe_int16_rows *x, int32_t tile) {
  int32_t each = x->rows / x->tiles, more = x->rows % x->tiles;
  return (pe_int16_tile){each * tile + (tile < more ? tile : more), each + (tile < more)};
}

/* The tile of a row. */
static inline int32_t pe_int16_tile_of(const pe_int16_rows *x, int32_t row) {
  const int32_t each = x->rows / x->tiles, more = x->rows % x->tiles, large = more * (each + 1);
  return row < large ? row / (each + 1) : more + (row - large) / each;
}

/* Rows row .. end_row - 1, columns col .. end_col - 1. Both are multiples of PE_INT16_UNIT, or
 * end_col is the last one. */
typedef struct pe_int16_part {
  int32_t row, end_row;
  int64_t col, end_col;
} pe_int16_part;

static inline pe_int16_part pe_int16_whole(const pe_int16_rows *x, int32_t row, int32_t end_row) {
  return (pe_int16_part){row, end_row, 0, x->cols};
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct pe_int16_columns { /* results from .. to - 1 of w */
  const pe_pack *w;
  int64_t from, to;
} pe_int16_columns;

typedef struct pe_int16_product { /* out[r * out_step + j] for 0 <= r < x->rows */
  const pe_pack *w;
  const pe_int16_rows *x; /* of w->cols columns, quantized with w->act */
  const float *bias;      /* w->rows values, or NULL */
  const float *residual;  /* row r, result j at r * residual_step + j; or NULL; may be out */
  float *out;
  int64_t out_step, residual_step;
  int32_t from_tile, to_tile; /* only these tiles of rows; 0 and 0: all */
  /* What this thread will probably multiply after it, or w NULL. With one or two rows its first
   * bytes are requested at the end of this one, or memory would pause between them. */
  pe_int16_columns next;
} pe_int16_product;

typedef struct pe_int16 {
  const char
      *name;    /* "scalar", "avx2", "avx512", "avx512_vnni", "amx", "neon", "dotprod", "i8mm" */
  int32_t tile; /* rows of a tile at most */
  pe_int16_layout layout;
  int32_t least; /* fewer rows than this are left to another version; 0: none */
  const struct pe_int16 *fewer;
  /* Fills a part of out. Row r, column j is x[r * x_step + j]. */
  void (*quantize)(const pe_int16_rows *out, const float *x, int64_t x_step, pe_int16_part part);
  /* Results from .. to - 1; from is a multiple of 16, and so is to unless it is w->rows. Scratch:
   * pe_int16_scratch bytes, aligned to 64. */
  void (*product)(const pe_int16_product *p, int64_t from, int64_t to, void *scratch);
} pe_int16;

/* Only the scalar version and those of this machine's family are built. */
extern const pe_int16 pe_int16_scalar, pe_int16_avx2, pe_int16_avx512, pe_int16_vnni,
    pe_int16_vnni_row, pe_int16_amx, pe_int16_neon, pe_int16_dotprod, pe_int16_i8mm;

/* The best version for this machine, or the one of PERIGEE_ISA, as in prim.h. */
const pe_int16 *pe_int16_best(void);
const pe_int16 *pe_int16_named(const char *name); /* NULL: not built, or cannot run here */
/* Iterates over the versions that can run here, the best first; start with *at = 0. NULL: no more.
 * Every version of prim.h has the name of one of them. */
const pe_int16 *pe_int16_next(int *at);

/* Bytes of the codes and scales of this many rows, and where they are in room (aligned to 64). */
uint64_t pe_int16_bytes(int32_t rows, int64_t cols, int32_t act);
void pe_int16_place(const pe_int16 *isa, int32_t rows, int64_t cols, int32_t act, void *room,
                    pe_int16_rows *out);
uint64_t pe_int16_scratch(const pe_pack *w, int32_t rows); /* of a product */

/* Tiles whose codes stay in a cache: a product goes through all its columns with them before it
 * takes the next ones. Callers that ask for a few columns at a time do the same with from_tile and
 * to_tile. */
int32_t pe_int16_cached(const pe_int16_rows *x);

int32_t pe_int16_code(const pe_int16_rows *x, int32_t row, int64_t col); /* for tests */

#endif
