/* pattern.h - reads regular expressions as people write them into terms (rex.h).
 *
 * The language is what ECMA-262 and Python agree on: alternatives, groups (named or not), classes,
 * \d \w \s (ASCII, but for \s of ECMA), \p{..}, quantifiers (greedy and lazy ones mean the same
 * set), anchors, (?i) and (?s), and look-ahead outside of groups. What is not regular or not read
 * (back references, look-behind, \b, atomic groups, possessive quantifiers) is PE_EUNSUPPORTED;
 * what is wrong is PE_EFORMAT. Both messages show where.
 *
 * An anchor may stand anywhere. Every part of a pattern is therefore four terms: what it matches
 * anywhere, only where the text begins, only where it ends, only where it does both. In a sequence,
 * what precedes a part that must begin the text has to be empty, and so on; the whole is then put
 * together for the text's two ends:
 *
 *   (^a|b)c$    part (^a|b): b anywhere, a at the beginning; the whole: "ac", and "bc" after
 *               anything if the pattern may match inside the text (search)
 *
 * Threads: as the pe_rex. Nothing is kept of the text. */
#ifndef PE_PATTERN_H
#define PE_PATTERN_H

#include "runtime/grammar/rex.h"
#include "runtime/text/charset.h"

enum { PE_PATTERN_BYTES = 64 << 10 }; /* of the longest pattern */

typedef struct pe_pattern_options {
  bool search; /* it may match anywhere in the text, as in JSON schema; else the whole text */
  bool json;   /* the text is the inside of a JSON string: `\n` is two bytes */
  bool ecma;   /* `.`, \s and {,n} are ECMA-262's, as in JSON schema; else Python's, with \A \Z */
} pe_pattern_options;

pe_status pe_pattern_read(pe_rex *r, pe_str text, pe_pattern_options o, pe_term *out,
                          pe_error *err);

/* One character of s, as it is spelled in the text, or in JSON. */
pe_term pe_pattern_chars(pe_rex *r, const pe_charset *s, bool json);
/* Adds what (?i) treats as equal. ASCII letters get no other than ASCII ones: nobody who writes
 * (?i:ok) expects the sign of the Kelvin. */
pe_status pe_pattern_fold(pe_rex *r, pe_charset *s, pe_error *err);

#endif
