/* pattern_parts.h - what pattern.c (structure) and pattern_class.c (characters) share. */
#ifndef PE_PATTERN_PARTS_H
#define PE_PATTERN_PARTS_H

#include "runtime/grammar/pattern.h"

/* Terms by where they may match: index 1 needs the beginning of the text, 2 its end, 3 both. */
enum { PE_AT_BEGIN = 1, PE_AT_END = 2, PE_PLACES = 4 };
typedef struct pe_pattern_part {
  pe_term at[PE_PLACES];
  bool ahead; /* look-ahead: at[0] is what the rest of the text must be */
} pe_pattern_part;

typedef struct pe_pattern_reader {
  pe_rex *r;
  const char *start, *at, *end;
  pe_pattern_options options;
  bool ignore_case, dot_all;
  pe_term text; /* any text: what may stand before and after a match */
  int depth;
  pe_pattern_part *part; /* a stack of parts of open sequences */
  size_t parts, part_cap;
  pe_error *err;
} pe_pattern_reader;

/* An error that shows the pattern from `from` on. */
pe_status pe_pattern_refuse(pe_pattern_reader *p, pe_status code, const char *from,
                            const char *why);

/* The class or character at p->at ('.', '[', '\\' or itself); adds to s, which is empty. */
pe_status pe_pattern_class(pe_pattern_reader *p, pe_charset *s);

#endif
