/* pretokenizer_matcher.h - part of the pre-tokenizer: finds matches and turns them into pieces.
 *
 * A matcher cuts a range of text into matches and the gaps between them; its behaviour says which
 * of them become pieces, and which are joined to a neighbour. */
#ifndef PE_PRETOKENIZER_MATCHER_H
#define PE_PRETOKENIZER_MATCHER_H

#include "runtime/text/pieces.h"

typedef enum pe_behaviour {
  PE_REMOVED,
  PE_ISOLATED,
  PE_MERGED_PREVIOUS,
  PE_MERGED_NEXT,
  PE_CONTIGUOUS
} pe_behaviour;

/* Exactly one of regex, test and literal is set. */
typedef struct pe_matcher {
  pe_regex *regex;
  bool (*test)(int32_t cp); /* asked of each character */
  char *literal;
  size_t literal_len;
  pe_behaviour behaviour;
  bool invert;
} pe_matcher;

/* Splits text[from, to) into the list. The matcher sees nothing outside the range. */
pe_status pe_matcher_split(const pe_matcher *m, const char *text, size_t from, size_t to,
                           pe_regex_scan *scan, pe_piece_list *list, pe_error *err);
void pe_matcher_free(pe_matcher *m);

#endif
