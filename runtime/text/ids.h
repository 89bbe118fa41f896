/* ids.h - a growing list of token ids, with the offset of each in the text when asked for.
 *
 * Belongs to one thread. */
#ifndef PE_IDS_H
#define PE_IDS_H

#include "runtime/base.h"

typedef struct pe_ids {
  int32_t *id;
  uint32_t *at; /* with offsets: the byte of the text where the token begins */
  size_t count, cap, at_cap;
  bool offsets; /* set before use: fill `at` also */
} pe_ids;       /* {0} is an empty list */

/* Makes room for n more ids, so that pe_ids_put cannot fail. */
pe_status pe_ids_reserve(pe_ids *l, size_t n, pe_error *err);
static inline void pe_ids_put(pe_ids *l, int32_t id, size_t at) {
  if (l->offsets) l->at[l->count] = (uint32_t)at;
  l->id[l->count++] = id;
}
void pe_ids_free(pe_ids *l);

#endif
