/* wire.c - see wire.h. */
#include "runtime/image/wire.h"

bool pe_wire_bytes(const pe_target *target, uint32_t count, uint64_t *out) {
  uint64_t all = 0, one;
  for (uint32_t i = 0; i < count; i++)
    if (!pe_filter_name((pe_filter)target[i].filter) ||
        !pe_image_bytes(target[i].width, target[i].height, &one) || !pe_add_size(all, one, &all) ||
        all > SIZE_MAX / 2)
      return false;
  *out = all;
  return true;
}

bool pe_wire_check_request(const pe_wire_request *r, int descriptors) {
  uint64_t bytes;
  if (r->magic != PE_WIRE_MAGIC || r->end != PE_WIRE_MAGIC || r->op >= PE_WIRE_OPS) return false;
  if (r->size < 1 || r->size > SIZE_MAX / 2 || r->count > PE_WIRE_TARGETS) return false;
  bool decodes = r->op == PE_WIRE_DECODE;
  return (r->count > 0) == decodes && descriptors == (decodes ? 2 : 1) &&
         pe_wire_bytes(r->target, r->count, &bytes);
}

static bool known_status(int32_t status) { return status <= PE_OK && status >= PE_EUNSATISFIABLE; }

bool pe_wire_check_reply(const pe_wire_request *request, pe_wire_reply *r) {
  if (r->magic != PE_WIRE_MAGIC || r->end != PE_WIRE_MAGIC || r->job != request->job) return false;
  if (!known_status(r->status)) return false;
  r->text[PE_WIRE_TEXT - 1] = 0;
  for (char *p = r->text; *p; p++)
    if (*p < ' ' || *p > '~') *p = '?';
  if (r->status || request->op == PE_WIRE_ESCAPE) return true;
  if (!pe_image_format_name((pe_image_format)r->format)) return false;
  if (r->orientation < 1 || r->orientation > 8 || r->alpha < 0 || r->alpha > 1) return false;
  return r->width > 0 && r->height > 0 &&
         (uint64_t)r->width * (uint64_t)r->height <= request->pixels;
}
