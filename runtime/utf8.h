/* utf8.h - UTF-8 by the book: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef PE_UTF8_H
#define PE_UTF8_H

#include "runtime/base.h"

/* Decodes one character of valid or broken text; at < end. Returns the bytes it takes and puts the code point in *cp;
 * for a broken part *cp is -1 and the return value is the length of the maximal broken part (what one U+FFFD stands
 * for, as Unicode and Python's "replace" do it). When the text ends inside a character that could still become valid,
 * *cp is -2. */
int pe_utf8_next(const char *at, const char *end, int32_t *cp);

/* Writes a code point (1 to 4 bytes; surrogates and the rest of the impossible as U+FFFD); returns the length. */
int pe_utf8_put(char out[4], int32_t cp);

/* The offset of the first broken byte, or len. */
size_t pe_utf8_valid(const char *text, size_t len);

#endif
