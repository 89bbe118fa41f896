/* charset.h - sets of characters, for patterns.
 *
 * A set is a sorted list of places where membership changes: at[0] is in, at[1] is out again, and so on; so negation
 * is a change at 0. All characters are 0..10FFFF. {0} is the empty set; release with pe_charset_free.
 *
 * Properties come from unicode.h's tables, named as the reference's pattern language names them: general categories,
 * scripts, POSIX names and a few more; case, spaces, '_' and '-' in names do not matter. */
#ifndef PE_CHARSET_H
#define PE_CHARSET_H

#include "runtime/base.h"

enum { PE_CHARSET_TOP = 0x110000 };

typedef struct pe_charset {
  int32_t *at;
  size_t n, cap;
} pe_charset;

void pe_charset_free(pe_charset *s);
pe_status pe_charset_add(pe_charset *s, int32_t from, int32_t to,
                         pe_error *err); /* inclusive; cheap when in order */
pe_status pe_charset_negate(pe_charset *s, pe_error *err);
pe_status pe_charset_unite(pe_charset *s, const pe_charset *with, pe_error *err);
pe_status pe_charset_intersect(pe_charset *s, const pe_charset *with, pe_error *err);
pe_status
pe_charset_fold(pe_charset *s,
                pe_error *err); /* adds what (?i:) takes for the same, one character each */
pe_status pe_charset_copy(pe_charset *s, const pe_charset *from, pe_error *err);
bool pe_charset_has(const pe_charset *s, int32_t cp);
bool pe_charset_same(const pe_charset *a, const pe_charset *b);

/* Adds the characters of a property; PE_ENOTFOUND (and no error text) when the name is unknown. */
pe_status pe_charset_property(pe_charset *s, pe_str name, pe_error *err);
/* The same for what stands between [: and :], where "punct" also holds symbols. */
pe_status pe_charset_posix(pe_charset *s, pe_str name, pe_error *err);

#endif
