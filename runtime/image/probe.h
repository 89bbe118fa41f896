/* probe.h - what a picture is, from the structure of its file: format, size, orientation, alpha.
 * Nothing is decompressed, so this is the check before memory is spent.
 *
 * The bytes are hostile. Every length is checked against the end of the file. A file that ends
 * before its end marker, a PNG chunk with a wrong checksum, a size above the limits are errors:
 * the decoders would fill the rest of such a picture with grey and report success. Any thread. */
#ifndef PE_PROBE_H
#define PE_PROBE_H

#include "runtime/base.h"

typedef enum pe_image_format {
  PE_IMAGE_JPEG,
  PE_IMAGE_PNG,
  PE_IMAGE_WEBP,
  PE_IMAGE_FORMATS
} pe_image_format;

const char *pe_image_format_name(pe_image_format format); /* "jpeg", …; NULL: no such format */

typedef struct pe_image_limits {
  uint64_t pixels; /* width * height */
  uint64_t memory; /* bytes that decoding may use, the result included */
} pe_image_limits;

typedef struct pe_image_info {
  pe_image_format format;
  int32_t stored_width, stored_height; /* in the file */
  int32_t width, height;               /* as shown: the orientation may swap the sides */
  int32_t orientation;                 /* EXIF: 1 … 8 */
  bool alpha;
  uint64_t memory; /* bytes that decoding needs at most, unless the file lies */
} pe_image_info;

/* PE_EFORMAT: not a picture, or a damaged one. PE_EUNSUPPORTED: a kind that is not read (animated
 * WebP, arithmetic JPEG, GIF, …). PE_ELIMIT: too large. */
pe_status pe_image_probe(const uint8_t *bytes, uint64_t size, const pe_image_limits *limits,
                         pe_image_info *out, pe_error *err);

#endif
