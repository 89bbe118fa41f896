/* regex_class.h - part of regex: reads the classes of characters in a pattern, that is escapes and
 * brackets; and the state of the parser. */
#ifndef PE_REGEX_CLASS_H
#define PE_REGEX_CLASS_H

#include <string.h>

#include "runtime/text/regex_parse.h"
#include "runtime/utf8.h"

enum { PE_REGEX_MAX_DEPTH = 100 }; /* of groups and brackets: bounds the recursion */

typedef struct pe_regex_flags {
  bool i, m, x; /* ignore case; dot matches newlines; blanks and comments are skipped */
} pe_regex_flags;

typedef struct pe_regex_parser {
  const char *start, *at, *end;
  int depth;
  pe_regex_parsed *out;
  pe_error *err;
} pe_regex_parser;

/* An error that shows the pattern from `from` on. */
pe_status pe_regex_refuse(pe_regex_parser *p, const char *from, const char *why);

static inline bool pe_regex_peek(const pe_regex_parser *p, const char *text) {
  size_t n = strlen(text);
  return (size_t)(p->end - p->at) >= n && !memcmp(p->at, text, n);
}

static inline bool pe_regex_accept(pe_regex_parser *p, const char *text) {
  if (!pe_regex_peek(p, text)) return false;
  p->at += strlen(text);
  return true;
}

static inline int32_t pe_regex_next_char(pe_regex_parser *p) {
  int32_t cp;
  p->at += pe_utf8_next(p->at, p->end, &cp);
  return cp;
}

/* An escape for one character. *cp is -1, and p->at does not move, if it is some other escape. */
pe_status pe_regex_char_escape(pe_regex_parser *p, int32_t *cp);
/* Classes of one letter: the name of the property, or NULL; the capital letter negates it. */
const char *pe_regex_class_letter(char c, bool *negate);
/* Adds \p{..} or \P{..} to s; p->at is at the backslash. bare: outside brackets. */
pe_status pe_regex_property(pe_regex_parser *p, pe_charset *s, bool bare);
/* Adds [...] to s; p->at is at the opening bracket. */
pe_status pe_regex_bracket(pe_regex_parser *p, pe_regex_flags f, pe_charset *s);
/* Outside brackets the library also counts six Latin-1 numbers as word characters: adds them. */
pe_status pe_regex_add_bare_word(pe_regex_parser *p, pe_charset *s);

#endif
