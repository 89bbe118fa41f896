/* decode.h - the bytes of a JPEG, PNG or WebP file become a picture: turned as its EXIF orientation
 * says, composited on white if it has alpha, grey and palette expanded, 16 bits cut to 8.
 *
 * Meant for the confined child (child.h): the decoders are large and read hostile bytes. Memory is
 * limited twice: by the header before decoding (probe.h), and by a budget on every allocation of
 * stb_image, because a PNG may decompress to more than its header announces. Any thread. */
#ifndef PE_DECODE_H
#define PE_DECODE_H

#include "runtime/image/image.h"
#include "runtime/image/probe.h"

/* Gives *out. Errors as pe_image_probe. */
pe_status pe_image_decode(const uint8_t *bytes, uint64_t size, const pe_image_limits *limits,
                          pe_image_info *info, pe_image *out, pe_error *err);

#endif
