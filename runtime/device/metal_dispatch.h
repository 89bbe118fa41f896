/* metal_dispatch.h - one unit as a dispatch: which kernel with which arguments and operands; see
 * metal_walk.h. */
#ifndef PE_METAL_DISPATCH_H
#define PE_METAL_DISPATCH_H

#include "runtime/device/metal_walk.h"

/* Of unit i of an order. Pass, grid and barrier are left to the walk. */
void pe_metal_dispatch_set(const pe_metal_walk *w, const pe_metal_order *o, int32_t i,
                           pe_metal_dispatch *out);

#endif
