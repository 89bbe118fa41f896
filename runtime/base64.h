/* base64.h - base64 (RFC 4648) to bytes, as in data URIs, and bytes to base64.
 *
 * In what is decoded, white space is skipped; the padding at the end may be missing; the alphabet
 * is the standard one (+ and /) or the one for URLs (- and _). Anything else is an error that names
 * its position. Any thread. */
#ifndef PE_BASE64_H
#define PE_BASE64_H

#include "runtime/buffer.h"

/* Gives at most `most` bytes; PE_ELIMIT: there are more. */
pe_status pe_base64_decode(pe_str text, uint64_t most, pe_buffer **out, pe_error *err);

/* The digits that n bytes take, with padding. */
static inline size_t pe_base64_size(size_t n) { return (n + 2) / 3 * 4; }

/* Writes that many digits of the standard alphabet. */
void pe_base64_encode(const void *bytes, size_t n, char *out);

#endif
