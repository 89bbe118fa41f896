/* regex.h - patterns of tokenizers, matched by PCRE2 but understood by us.
 *
 * The language is Oniguruma's with Ruby syntax, which the reference uses. A pattern is parsed here (regex_parse.c),
 * every set of characters it mentions is collected, and all characters that no set tells apart become one byte: ASCII
 * keeps its own bytes, the rest of Unicode falls into at most 128 classes from byte 80 on. The pattern is rewritten
 * in those bytes and compiled by PCRE2 as plain 8-bit, with its JIT where there is one. So matching is fast, `.` is one
 * byte, and neither the Unicode version nor the options of the installed PCRE2 can change a result.
 *
 * Case-insensitive parts are expanded to sets by the reference's folding ((?i:'s) also takes U+017F; "ss" takes a sharp
 * s). What is not read (back-references, conditions, absent operators, ...) is an error that names the part.
 *
 * Limits: one attempt at a match may backtrack 100,000 times and 8 times more per character of text; beyond that it
 * is an error. A search tries every place in turn, so a pattern that reads far ahead at each of them (x*[yz]) costs
 * the square of the text's length, as it does in the reference. Text should be valid UTF-8; of broken text nothing is
 * promised but that nothing breaks.
 *
 * Threads: a pe_regex is immutable; a pe_regex_scan belongs to one thread and may be used for many texts and patterns
 * one after another. */
#ifndef PE_REGEX_H
#define PE_REGEX_H

#include "runtime/base.h"

typedef struct pe_regex pe_regex;

pe_status pe_regex_compile(pe_str pattern, pe_regex **out, pe_error *err); /* gives */
void pe_regex_free(pe_regex *re);                                          /* takes; NULL is fine */

typedef struct pe_regex_scan {
  /* ---- private ---- */
  const pe_regex *re;
  pe_str text;
  const uint8_t *subject; /* one byte a character: own.data, or the text itself when it is ASCII */
  size_t chars;
  size_t at, last_end; /* in characters: where to search on; the end of the last match */
  size_t seen,
      seen_byte; /* a character and its byte offset, at or before all that is still to come */
  bool ascii, matched, done;
  uint64_t limit_set;
  pe_buf own;
  void *data, *context; /* PCRE2's */
} pe_regex_scan;        /* {0} is ready */

/* Starts over on a text (borrowed while scanning). */
pe_status pe_regex_begin(pe_regex_scan *s, const pe_regex *re, pe_str text, pe_error *err);
/* The next match, leftmost first, not overlapping; an empty one never right behind the last match. */
pe_status pe_regex_next(pe_regex_scan *s, bool *found, size_t *from, size_t *to, pe_error *err);
void pe_regex_scan_free(pe_regex_scan *s);

#endif
