/* stop.h - stop strings on streamed text: found across pieces, never emitted in part.
 *
 * Text goes in as the detokenizer emits it; out comes the text that can no longer begin a stop
 * string. Once a stop string is complete, the text before it comes out and the rest is dropped. The
 * string that is complete first wins; among those complete at the same byte the longest; among
 * equal strings the first of the list. So the result does not depend on how the text was cut into
 * pieces.
 *
 * Matching is by bytes and linear (Aho-Corasick over all strings of a request). A string that is
 * valid UTF-8 never cuts a character. Belongs to one thread. */
#ifndef PE_STOP_H
#define PE_STOP_H

#include "runtime/base.h"

typedef struct pe_stop pe_stop;

/* Gives. Copies the strings; refuses empty ones. With count 0 all text passes at once. */
pe_status pe_stop_open(const pe_str *list, size_t count, pe_stop **out, pe_error *err);
/* Gives: for another text with the same strings, without building them again. It belongs to the
 * same thread. */
pe_status pe_stop_fork(const pe_stop *s, pe_stop **out, pe_error *err);
void pe_stop_close(pe_stop *s); /* takes; NULL is fine */

/* Appends the text that is certain. *hit is the index of the completed string, or -1. After a hit
 * nothing more is appended. */
pe_status pe_stop_push(pe_stop *s, pe_str piece, pe_buf *out, int *hit, pe_error *err);
/* Appends what was held back. Text pushed afterwards begins anew, unless there was a hit. */
pe_status pe_stop_finish(pe_stop *s, pe_buf *out, pe_error *err);

#endif
