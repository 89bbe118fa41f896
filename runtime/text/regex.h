/* regex.h - the patterns of tokenizers: parsed by us, matched by PCRE2.
 *
 * The language is Oniguruma's with Ruby syntax, which the `tokenizers` library uses. A pattern is
 * parsed here (regex_parse.c) and every set of characters in it is collected. All characters that
 * no set tells apart become one byte: ASCII keeps its bytes, the rest of Unicode falls into at most
 * 128 classes, bytes 0x80 to 0xff. The pattern is rewritten in these bytes and compiled by PCRE2 as
 * plain 8-bit, with its JIT where available.
 *
 *     [^\p{L}]+  --parse-->  set 0, "(set 0)+"  --classes-->  "[\x00-\x40...\x81]+"  -->  PCRE2
 *     text       --one byte per character, its class-->  subject
 *
 * So matching is fast, `.` is one byte, and neither the Unicode version nor the build options of
 * the installed PCRE2 can change a result.
 *
 * Case-insensitive parts are expanded to sets by the library's folding: (?i:'s) also matches
 * U+017F, and "ss" a sharp s. Unsupported syntax (back-references, conditions, absent operators,
 * ...) is an error that names the part.
 *
 * Limits. One attempt at a match may backtrack 100,000 times plus 8 times per character of the
 * text; more is an error. A search tries every position, so a pattern that reads far ahead at each
 * of them (x*[yz]) is quadratic in the text, as in the library. Text should be valid UTF-8; matches
 * in broken text are unspecified but safe.
 *
 * Threads: a pe_regex is immutable; a pe_regex_scan belongs to one thread and can be reused for
 * other texts and patterns. */
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
  const uint8_t *subject; /* one byte per character: own.data, or the text itself if it is ASCII */
  size_t chars;
  size_t at, last_end;    /* characters: where the search resumes, the end of the last match */
  size_t seen, seen_byte; /* a character not after the next match, and its byte offset */
  bool ascii, matched, done;
  uint64_t limit_set;
  pe_buf own;
  void *data, *context; /* PCRE2's */
} pe_regex_scan;        /* {0} is ready */

/* Starts on a text, which is borrowed while scanning. */
pe_status pe_regex_begin(pe_regex_scan *s, const pe_regex *re, pe_str text, pe_error *err);
/* The next match: leftmost, not overlapping; an empty match never directly follows another
 * match. */
pe_status pe_regex_next(pe_regex_scan *s, bool *found, size_t *from, size_t *to, pe_error *err);
void pe_regex_scan_free(pe_regex_scan *s);

#endif
