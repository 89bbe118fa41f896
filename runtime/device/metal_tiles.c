/* metal_tiles.c - see metal_tiles.h. */
#include "runtime/device/metal_tiles.h"

#include <string.h>

static pe_metal_tiles tiles;
static bool changed; /* false: the defaults */

const pe_metal_tiles *pe_metal_tiles_now(void) {
  return changed ? &tiles : &pe_metal_tiles_default;
}

pe_status pe_metal_tiles_set(const char *name, int64_t value, pe_error *err) {
  for (int i = 0; i < pe_metal_tile_count; i++) {
    const pe_metal_tile *t = &pe_metal_tile_list[i];
    if (strcmp(t->name, name)) continue;
    if (value < t->least || value > t->most)
      return pe_fail(err, PE_EARG, "tile %s is %lld; it must be between %d and %d", name,
                     (long long)value, t->least, t->most);
    if (!changed) tiles = pe_metal_tiles_default, changed = true;
    const int32_t number = (int32_t)value;
    memcpy((char *)&tiles + t->offset, &number, sizeof number);
    return PE_OK;
  }
  return pe_fail(err, PE_EARG, "there is no tile '%s' (%s ... %s)", name,
                 pe_metal_tile_list[0].name, pe_metal_tile_list[pe_metal_tile_count - 1].name);
}
