/* stop.h - stop strings on streamed text: found across pieces, never emitted in part.
 *
 * Text goes in as the detokenizer gives it; what comes out is the text that can no longer be the beginning of a stop
 * string. When one is complete, everything before it comes out and the rest is dropped. The one that is complete first
 * counts, of those complete at the same byte the one that began first (the longest), of equal ones the first of the list:
 * so the result does not depend on how the text was cut into pieces. Matching is by bytes and linear (Aho-Corasick over
 * all strings of a request); a string that is UTF-8 never cuts a character. Threads: one. */
#ifndef PE_STOP_H
#define PE_STOP_H

#include "runtime/base.h"

typedef struct pe_stop pe_stop;

/* Strings are copied; empty ones are refused. count 0 gives a stop that lets everything through at once. */
pe_status pe_stop_open(const pe_str *strings, size_t count, pe_stop **out,
                       pe_error *err); /* gives */
void pe_stop_close(pe_stop *s);

/* Appends what is certain to out. *hit is the index of the string that was completed, or -1; after a hit nothing more comes. */
pe_status pe_stop_push(pe_stop *s, pe_str piece, pe_buf *out, int *hit, pe_error *err);
pe_status pe_stop_finish(pe_stop *s, pe_buf *out, pe_error *err); /* what was held back */

#endif
