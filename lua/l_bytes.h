/* l_bytes.h - perigee.bytes: long byte strings outside Lua's heap.
 *
 * A perigee.Bytes is a range of a counted buffer. One made by perigee.bytes.new grows at its end,
 * up to the size that was reserved for it; slices share the buffer and never change. Bodies of
 * requests and long strings in them are such objects: as Lua strings they would be copied on the
 * loop thread, and kept until the next collection.
 *
 * Loop thread only, but the buffers may be given to jobs. */
#ifndef PE_L_BYTES_H
#define PE_L_BYTES_H

#include <lua.h>

#include "runtime/base.h"
#include "runtime/buffer.h"

typedef struct pe_bytes {
  pe_buffer *buffer;
  size_t from, len;
  bool grows;
} pe_bytes;

/* [] -> [bytes]: a range of the buffer, which it retains. May raise. */
void pe_bytes_push(lua_State *L, pe_buffer *buffer, size_t from, size_t len);

/* The argument as Bytes; raises if it is not. pe_bytes_test returns NULL instead. */
pe_bytes *pe_bytes_check(lua_State *L, int arg);
pe_bytes *pe_bytes_test(lua_State *L, int arg);

static inline pe_str pe_bytes_str(const pe_bytes *b) {
  return pe_str_of((const char *)b->buffer->data + b->from, b->len);
}

#endif
