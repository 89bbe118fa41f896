/* metal_tiles.h - how the kernels of this process cut their work (kernels/metal/table.h).
 *
 * There is one GPU and one person who tunes it, so there is one set for the process: the defaults
 * of scripts/engine/tiles.lua until somebody sets others, at start. A device copies them when it is
 * opened. Threads: set by the main thread before the first device is opened. */
#ifndef PE_METAL_TILES_H
#define PE_METAL_TILES_H

#include "kernels/metal/table.h"
#include "runtime/base.h"

/* PE_EARG: there is no such tile, or the value is not in its range. */
pe_status pe_metal_tiles_set(const char *name, int64_t value, pe_error *err);
const pe_metal_tiles *pe_metal_tiles_now(void);

#endif
