/* packs.h - the weights of a model packed for the matrix instructions (kernels/pack.h).
 *
 * A pack is made when the first program asks for it, by the threads of its pool, and is shared by
 * all programs of the model. It lives until the last of them gives it back. The pages of the file
 * that it was made of are dropped, so a weight is in memory once; whoever reads them again gets
 * them from the file.
 *
 * Ownership: the packs belong to their weights. Threads: any; packs are made one at a time. */
#ifndef PE_PACKS_H
#define PE_PACKS_H

#include "kernels/pack.h"
#include "runtime/pool.h"
#include "runtime/weights/weights.h"

/* The packs of `count` matrices of these weights, adjacent: experts have one each. All must be
 * supported (pe_pack_supported). gives; pe_packs_give */
pe_status pe_packs_take(pe_weights *w, const pe_quant_matrix *m, int32_t count, pe_pool *pool,
                        const pe_pack **out, pe_error *err);
void pe_packs_give(pe_weights *w, const pe_pack *p); /* takes; NULL is fine */
uint64_t pe_packs_bytes(pe_weights *w);              /* of all packs in memory */

void pe_packs_close(pe_weights *w); /* by pe_weights_release: nobody may hold a pack any more */

#endif
