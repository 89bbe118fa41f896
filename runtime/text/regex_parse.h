/* regex_parse.h - part of regex: turns a pattern into PCRE2 syntax with holes for sets.
 *
 * In `code`, the byte 1 and two more (low, high) stand for "one character of set n"; all other
 * bytes are ASCII syntax. regex.c fills the holes once it knows the byte of every class. */
#ifndef PE_REGEX_PARSE_H
#define PE_REGEX_PARSE_H

#include "runtime/text/charset.h"

enum { PE_REGEX_HOLE = 1, PE_REGEX_MAX_SETS = 2048 };

typedef struct pe_regex_parsed {
  pe_buf code;
  pe_charset *set; /* all different */
  size_t sets, cap;
} pe_regex_parsed; /* {0} before; free it even after an error */

pe_status pe_regex_parse(pe_str pattern, pe_regex_parsed *out, pe_error *err);
void pe_regex_parse_free(pe_regex_parsed *p);

#endif
