/* little_metal.h - the model of little.h on a backend of choice. Two sequences share a cache of 128
 * tokens. */
#ifndef LITTLE_METAL_H
#define LITTLE_METAL_H

#include "little.h"

static int32_t kv_bits; /* of models that are opened from now on; 0: 32 */

static inline pe_status open_on(little *l, const pe_backend *backend, pe_error *err) {
  const pe_kv_options o = {.tokens = 128, .sequences = 2, .block = 8, .bits = kv_bits};
  return little_open_on(l, EVERYTHING, &o, backend, err);
}

#endif
