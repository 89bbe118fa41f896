/* wire.h - what the program and its decoder child say to each other over their socket.
 *
 *   program ── pe_wire_request, 1 or 2 descriptors ──► child
 *           ◄── pe_wire_reply ───────────────────────
 *
 * Both are structs of fixed size, one request at a time. The first descriptor is shared memory with
 * the bytes of the file, the second one takes the pixels of all targets, in order. Neither side
 * trusts the other: pe_wire_check_* look at every number, and the sizes of mappings come from
 * checked numbers only. A side that gets anything else ends the conversation. */
#ifndef PE_WIRE_H
#define PE_WIRE_H

#include "runtime/image/decode.h"
#include "runtime/image/resize.h"

enum {
  PE_WIRE_MAGIC = 0x50456931,
  PE_WIRE_TARGETS = 8, /* a picture, its thumbnail; more is room for other processors */
  PE_WIRE_TEXT = 160
};

/* PE_WIRE_ESCAPE: the child tries to leave its confinement and reports how far it got. */
typedef enum pe_wire_op { PE_WIRE_PROBE, PE_WIRE_DECODE, PE_WIRE_ESCAPE, PE_WIRE_OPS } pe_wire_op;

typedef struct pe_target { /* the picture in one of the sizes that are wanted */
  int32_t width, height;
  int32_t filter; /* pe_filter */
} pe_target;

typedef struct pe_wire_request {
  uint32_t magic, op;
  uint64_t job;
  uint64_t size;           /* bytes of the file, 1 or more */
  uint64_t pixels, memory; /* limits */
  uint32_t count;          /* of targets; 0 unless PE_WIRE_DECODE */
  pe_target target[PE_WIRE_TARGETS];
  uint32_t end;
} pe_wire_request;

typedef struct pe_wire_reply {
  uint32_t magic;
  int32_t status; /* pe_status */
  uint64_t job;
  int32_t format, width, height, orientation, alpha;
  uint8_t hash[PE_SHA256_BYTES]; /* of the decoded picture, before resizing */
  char text[PE_WIRE_TEXT];       /* of an error */
  uint32_t end;
} pe_wire_reply;

/* Bytes of the pixels of all targets; false if one has no valid size or filter. */
bool pe_wire_bytes(const pe_target *target, uint32_t count, uint64_t *out);

bool pe_wire_check_request(const pe_wire_request *r, int descriptors);

/* Does this reply answer the request? Then its text ends with a NUL and is printable ASCII. */
bool pe_wire_check_reply(const pe_wire_request *request, pe_wire_reply *reply);

#endif
