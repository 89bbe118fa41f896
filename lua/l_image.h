/* l_image.h - perigee.image: shared by its files.
 *
 * The file of a picture is a perigee.Bytes (l_bytes.h): a client's picture never becomes a Lua
 * string. perigee.Pixels is a decoded and resized picture, in the memory that its decoder child
 * has written. l_image.c has them and the functions of the module, l_decoder.c the decoder. */
#ifndef PE_L_IMAGE_H
#define PE_L_IMAGE_H

#include "lua/bind.h"
#include "runtime/buffer.h"
#include "runtime/image/image.h"

/* The buffer of Bytes; a string or a slice is replaced on the stack by Bytes with its copy.
 * Borrowed. */
pe_buffer *pe_bind_bytes(lua_State *L, int arg);

/* [] -> [pixels]: a picture inside `buffer`, of which it gets one more reference. */
void pe_bind_push_pixels(lua_State *L, pe_buffer *buffer, const pe_image *image,
                         const uint8_t hash[PE_SHA256_BYTES]);

void pe_decoder_l_class(lua_State *L); /* registers perigee.Decoder */
int pe_decoder_l_open(lua_State *L);   /* perigee.image.decoder(options) */

#endif
