/* base64.h - base64 (RFC 4648) to bytes, as in data URIs.
 *
 * White space is skipped; the padding at the end may be missing; the alphabet is the standard one
 * (+ and /) or the one for URLs (- and _). Anything else is an error that names its position. Any
 * thread. */
#ifndef PE_BASE64_H
#define PE_BASE64_H

#include "runtime/buffer.h"

/* Gives at most `most` bytes; PE_ELIMIT: there are more. */
pe_status pe_base64_decode(pe_str text, uint64_t most, pe_buffer **out, pe_error *err);

#endif
