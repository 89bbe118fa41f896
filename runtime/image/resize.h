/* resize.h - resampling pictures exactly as Pillow does (up to version 12), byte for byte, because
 * vision models were trained on its pictures: one grey level moves logits by 0.01 to 2.
 *
 * Two passes, horizontal first; a side that does not change gets no pass. The weights of an output
 * position are computed in double over the filter's support (bilinear 1, bicubic 2 with a = -0.5,
 * Lanczos 3; times max(1, in/out)), normalised, and rounded to 22 fractional bits, half away from
 * zero. A pixel is (sum + 2^21) >> 22, clipped to 0 … 255, after each of the two passes.
 *
 * Sums are exact in 32 bits, so vector and plain code give the same bytes in any order. Any
 * thread. */
#ifndef PE_RESIZE_H
#define PE_RESIZE_H

#include "runtime/image/image.h"

typedef enum pe_filter { PE_BILINEAR, PE_BICUBIC, PE_LANCZOS, PE_FILTERS } pe_filter;

const char *pe_filter_name(pe_filter filter); /* "bilinear", …; NULL: no such filter */

/* Fills `out`, whose width, height and pixels are given, from `in`. They must not overlap. */
pe_status pe_resize(const pe_image *in, pe_filter filter, const pe_image *out, pe_error *err);

#endif
