/* fuzz_image_wire.c - any bytes as a request that a decoder child gets, and as the reply that the
 * program gets. A request is refused, or worked on within the mapping that its numbers promise; a
 * reply is refused, or its numbers are within the request's limits. */
#include <stdlib.h>
#include <string.h>

#include "runtime/image/child.h"

static void work(const pe_wire_request *r, const uint8_t *file, size_t size) {
  uint64_t bytes;
  if (!pe_wire_check_request(r, r->op == PE_WIRE_DECODE ? 2 : 1)) return;
  if (!pe_wire_bytes(r->target, r->count, &bytes)) abort();
  if (r->op == PE_WIRE_ESCAPE || r->size > size || bytes > 1 << 18) return;
  if (r->pixels > 1 << 16 || r->memory > 8 << 20) return;
  uint8_t *in = malloc(r->size), *out = malloc(bytes ? bytes : 1);
  memcpy(in, file, r->size);
  pe_wire_reply reply;
  pe_child_work(r, in, out, &reply);
  if (!pe_wire_check_reply(r, &reply)) abort(); /* an honest child is always believed */
  free(in), free(out);
}

static void believe(const pe_wire_request *r, pe_wire_reply *reply) {
  if (!pe_wire_check_reply(r, reply)) return;
  if (memchr(reply->text, 0, sizeof reply->text) == NULL) abort();
  for (const char *p = reply->text; *p; p++)
    if (*p < ' ' || *p > '~') abort();
  if (reply->status || r->op == PE_WIRE_ESCAPE) return;
  if (reply->width < 1 || reply->height < 1 ||
      !pe_image_format_name((pe_image_format)reply->format))
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_wire_request r;
  pe_wire_reply reply;
  if (size < sizeof r) return 0;
  memcpy(&r, data, sizeof r);
  data += sizeof r, size -= sizeof r;
  work(&r, data, size);
  r.magic = r.end = PE_WIRE_MAGIC; /* what lies behind the first check */
  if (r.op < PE_WIRE_OPS) r.count = r.op == PE_WIRE_DECODE ? 1 + r.count % 3 : 0;
  r.pixels &= 0xffff, r.memory &= 0x7fffff;
  work(&r, data, size);
  if (size < sizeof reply) return 0;
  memcpy(&reply, data, sizeof reply);
  believe(&r, &reply);
  reply.magic = reply.end = PE_WIRE_MAGIC, reply.job = r.job;
  believe(&r, &reply);
  return 0;
}
