/* regex_parse.h - inside of regex: pattern text to PCRE2 text with holes for sets.
 *
 * `code` is a PCRE2 pattern in which the byte 1 and two more (low, high) stand for "one character of set n"; all other
 * bytes are plain ASCII syntax. regex.c fills the holes once it knows the byte of every class. */
#ifndef PE_REGEX_PARSE_H
#define PE_REGEX_PARSE_H

#include "runtime/text/charset.h"

enum { PE_REGEX_HOLE = 1, PE_REGEX_MAX_SETS = 2048 };

typedef struct pe_regex_parsed {
  pe_buf code;
  pe_charset *set; /* different from each other */
  size_t sets, cap;
} pe_regex_parsed; /* {0} before; release with pe_regex_parsed_free also after an error */

pe_status pe_regex_parse(pe_str pattern, pe_regex_parsed *out, pe_error *err);
void pe_regex_parsed_free(pe_regex_parsed *p);

#endif
