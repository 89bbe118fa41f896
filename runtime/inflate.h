/* inflate.h - compressed bodies of requests to bytes: gzip (RFC 1952) and zstd (RFC 8878).
 *
 * The output goes to memory that the caller has reserved, and never beyond it: a small text that
 * would become a large one is an error as soon as it exceeds the limit. Several members or frames
 * in a row are one text. Any thread. */
#ifndef PE_INFLATE_H
#define PE_INFLATE_H

#include "runtime/buffer.h"

typedef enum pe_packing { PE_PACKING_GZIP, PE_PACKING_ZSTD } pe_packing;

/* Gives a reserved buffer whose first *len bytes are the text, at most `most`; PE_ELIMIT: there are
 * more. */
pe_status pe_inflate(pe_packing kind, pe_str packed, uint64_t most, pe_buffer **out, uint64_t *len,
                     pe_error *err);

#endif
