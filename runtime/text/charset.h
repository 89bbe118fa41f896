/* charset.h - sets of characters, for patterns.
 *
 * A set is a sorted list of the places where membership changes: at[0] is in, at[1] is out again,
 * and so on. Negation therefore only toggles a change at 0. All characters are 0..10FFFF. {0} is
 * the empty set; free it with pe_charset_free.
 *
 * Properties come from the tables of unicode.h, under the names of the library's pattern language:
 * general categories, scripts, POSIX names and a few more. Case, spaces, '_' and '-' in names are
 * ignored. */
#ifndef PE_CHARSET_H
#define PE_CHARSET_H

#include "runtime/base.h"

enum { PE_CHARSET_TOP = 0x110000 };

typedef struct pe_charset {
  int32_t *at;
  size_t n, cap;
} pe_charset;

void pe_charset_free(pe_charset *s);
/* Adds from..to inclusive; cheap if ranges are added in order. */
pe_status pe_charset_add(pe_charset *s, int32_t from, int32_t to, pe_error *err);
pe_status pe_charset_negate(pe_charset *s, pe_error *err);
pe_status pe_charset_unite(pe_charset *s, const pe_charset *with, pe_error *err);
pe_status pe_charset_intersect(pe_charset *s, const pe_charset *with, pe_error *err);
/* Adds the single characters that (?i:) treats as equal. */
pe_status pe_charset_fold(pe_charset *s, pe_error *err);
bool pe_charset_has(const pe_charset *s, int32_t cp);
bool pe_charset_same(const pe_charset *a, const pe_charset *b);

/* Adds the characters of a property; PE_ENOTFOUND, without an error text, if the name is
 * unknown. */
pe_status pe_charset_property(pe_charset *s, pe_str name, pe_error *err);
/* The same for a name between [: and :], where "punct" includes symbols. */
pe_status pe_charset_posix(pe_charset *s, pe_str name, pe_error *err);

#endif
