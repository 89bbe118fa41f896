/* utf8.h - strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef PE_UTF8_H
#define PE_UTF8_H

#include "runtime/base.h"

enum {
  PE_UTF8_BROKEN = -1, /* not a character */
  PE_UTF8_CUT = -2     /* the text ends inside a character that more bytes could complete */
};

/* Decodes the character at `at` (at < end) into *cp and returns its length in bytes. For broken
 * text *cp is PE_UTF8_BROKEN or PE_UTF8_CUT, and the length is that of the maximal broken part:
 * what one U+FFFD stands for in Unicode's and Python's "replace". */
int pe_utf8_next(const char *at, const char *end, int32_t *cp);

/* Writes a code point and returns its length, 1 to 4; surrogates and values above U+10FFFF become
 * U+FFFD. */
int pe_utf8_put(char out[4], int32_t cp);

/* The offset of the first broken byte, or len if there is none. */
size_t pe_utf8_valid(const char *text, size_t len);

#endif
