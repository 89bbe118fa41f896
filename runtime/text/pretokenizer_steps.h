/* pretokenizer_steps.h - inside of pretokenizer: finding matches, and what becomes of them.
 *
 * A matcher cuts a stretch of text into matches and the gaps between them; a behaviour turns those into pieces.
 * pretokenizer.c owns both lists and decides on which text they work. */
#ifndef PE_PRETOKENIZER_STEPS_H
#define PE_PRETOKENIZER_STEPS_H

#include "runtime/text/pretokenizer.h"
#include "runtime/text/regex.h"

typedef struct pe_piece_list {
  pe_piece *at;
  size_t n, cap;
} pe_piece_list;

/* Appends text[from, to) unless it is empty. */
pe_status pe_piece_push(pe_piece_list *list, size_t from, size_t to, pe_error *err);

typedef enum pe_behaviour {
  PE_REMOVED,
  PE_ISOLATED,
  PE_MERGED_PREVIOUS,
  PE_MERGED_NEXT,
  PE_CONTIGUOUS
} pe_behaviour;

/* One of regex, test and literal is set. */
typedef struct pe_matcher {
  pe_regex *regex;
  bool (*test)(int32_t cp); /* each character by itself */
  char *literal;
  size_t literal_len;
  pe_behaviour behaviour;
  bool invert;
} pe_matcher;

/* Splits text[from, to), which the matcher sees alone, into the list. */
pe_status pe_matcher_split(const pe_matcher *m, const char *text, size_t from, size_t to,
                           pe_regex_scan *scan, pe_piece_list *list, pe_error *err);
void pe_matcher_free(pe_matcher *m);

#endif
