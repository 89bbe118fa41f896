/* ids.c - see ids.h. */
#include "runtime/text/ids.h"

pe_status pe_ids_reserve(pe_ids *l, size_t n, pe_error *err) {
  if (n > SIZE_MAX / 16) return pe_nomem(err, "list of ids");
  pe_status rc =
      l->cap - l->count < n ? pe_grow(&l->id, &l->cap, l->count + n, sizeof *l->id, err) : PE_OK;
  if (!rc && l->offsets) rc = pe_grow(&l->at, &l->at_cap, l->count + n, sizeof *l->at, err);
  return rc;
}

void pe_ids_free(pe_ids *l) {
  pe_free(l->id);
  pe_free(l->at);
  *l = (pe_ids){0};
}
