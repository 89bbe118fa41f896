/* kv_row.h - how a row of the KV cache (one token of one head) is stored, for every backend.
 *
 * A row is float32, float16, or groups of 32 values as the blocks of quant.h: PE_QUANT_Q8_0 for 8
 * bits (a scale) and PE_QUANT_Q4_1 for 4 bits (a scale and a minimum). The last group of a row may
 * be filled in part. A row carries its own scales, so it can be written and read alone.
 *
 * The rows of a head are adjacent, except keys of float16 in a cache that has values: those are in
 * panels of PE_KV_PANEL tokens (or the block, if it is smaller) that hold value 0 of all tokens,
 * then value 1, and so on. The scores of a query over a panel are a sum of its lines, without a sum
 * across registers for each key. Elsewhere (files, copies) keys are rows like all others. */
#ifndef PE_KV_ROW_H
#define PE_KV_ROW_H

#include "kernels/op.h"
#include "kernels/quant.h"

pe_quant_kind pe_kv_row_kind(pe_kv_type type); /* PE_QUANT_NONE: plain elements */
pe_dtype pe_kv_row_dtype(pe_kv_type type);     /* of plain elements */
/* Values that are stored for a row of `width` values: whole groups. */
int64_t pe_kv_row_values(pe_kv_type type, int64_t width);
int32_t pe_kv_row_bytes(pe_kv_type type, int32_t width);

/* The tokens of a panel of keys; 0: keys are rows. */
int32_t pe_kv_panel(const pe_cache_args *a);
/* Copies the keys of tokens from .. from + n - 1 of a block between one head and adjacent rows. */
void pe_kv_get_keys(const pe_cache_args *a, const uint8_t *head, int32_t from, int32_t n,
                    uint8_t *rows);
void pe_kv_put_keys(const pe_cache_args *a, uint8_t *head, int32_t from, int32_t n,
                    const uint8_t *rows);

#endif
