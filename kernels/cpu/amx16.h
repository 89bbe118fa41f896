/* amx16.h - products with bf16 weights on the tiles of AMX, of `fast` precision.
 *
 * A tile product (TDPBF16PS) is defined as chains of fused multiply-adds over 32 columns, one for
 * the even and one for the odd ones, which are then added to the sum. Subnormal inputs and results
 * are zeros, rounding is to nearest. Activations are split into two bf16 numbers, so the result is
 * nearly that of float32 (2^-17 of each activation; one of them alone would be 2^-9):
 *
 *   hi = bf16(x), lo = bf16(x - hi), both to nearest, ties to even
 *   for blocks of 32 columns in order, for plane = hi, lo:
 *     e = fma(w[2 i], plane[2 i], e), o = fma(w[2 i + 1], plane[2 i + 1], o), i = 0 .. 15, from 0
 *     sum = sum + (e + o)
 *   y = sum, then + bias, then + residual
 *
 * The last block is filled with zeros. An activation that is infinite, NaN or beyond the largest
 * bf16 makes its row NaN. One source, amx16_impl.h, is compiled with the instructions and with an
 * emulation in plain C, which tests compare; they must give the same bits. A machine with AMX uses
 * this arithmetic for every number of rows, others that of plain.h.
 *
 * Weights are the left operand, so that their tiles are loaded where the rows are stored; 32 weight
 * rows at a time are used for all activations, which are pairs of columns by rows:
 *
 *   arranged   | tile of rows 0 | tile 1 | ...
 *   tile       | block 0: hi, lo | block 1: hi, lo | ...
 *   plane      | columns 0, 1 of rows 0 .. width - 1 | columns 2, 3 of rows 0 .. width - 1 | ...
 *
 * `width` is 4 or 8 for as few rows, else 16. */
#ifndef PE_AMX16_H
#define PE_AMX16_H

#include "kernels/cpu/plain.h"

extern const pe_plain pe_amx16, pe_amx16_emulated;

/* The version for bf16 weights on this machine, checked once against the emulation; NULL: none. */
const pe_plain *pe_amx16_best(void);
int64_t pe_amx16_scratch(int64_t rows, int64_t cols); /* floats */

#endif
