/* fast_attention_tiles.h - the products of attention on the tiles of AMX with bf16.
 *
 * Every number becomes two bf16 numbers, hi = x to the nearest (ties away from zero) and lo, the
 * same of x - hi. For keys and values in float16 that is exact (11 bits are 8 and 3); for queries,
 * weights, and keys and values of 8 and 4 bits it is x to 2^-17. A sum runs over blocks of 32
 * values of a key, or of 32 tokens from a multiple of 32 on:
 *
 *   for blocks in order, for (a, b) = (lo, hi), (hi, hi), (hi, lo):
 *     e = fma(a[2 i], b[2 i], e), o = fma(a[2 i + 1], b[2 i + 1], o), i = 0 .. 15, from 0
 *     sum = sum + (e + o)
 *
 * The fourth product, lo by lo, is below 2^-18 of the numbers and is left out. Results differ from
 * those in double precision as those of float32 sums do; test_fast_attention.c has the bound.
 *
 * Queries and weights are left operands, as many rows of a tile as there are queries: rows of a
 * tile do not influence each other. Keys and values of a stretch are unpacked once for all queries
 * of a gathering, in the order that the right operand has: words of two neighbouring lines, which
 * are numbers 2 i and 2 i + 1 of all keys, or tokens 2 i and 2 i + 1.
 *
 *   left    | block 0 of a line: hi, lo | block 1: hi, lo | ...       in place of the floats
 *   right   | block 0: columns 0 .. 15: hi, lo | columns 16 .. 31: hi, lo | ... | block 1: ...
 *
 * The same source is compiled with the instructions and with an emulation in plain C. */
#ifndef PE_FAST_ATTENTION_TILES_H
#define PE_FAST_ATTENTION_TILES_H

#include "kernels/cpu/fast_attention.h"

extern const pe_attention_version pe_attention_tiles, pe_attention_tiles_emulated;

#endif
