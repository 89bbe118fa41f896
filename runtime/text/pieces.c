/* pieces.c - see pieces.h. */
#include "runtime/text/pieces.h"

pe_status pe_piece_push(pe_piece_list *list, size_t from, size_t to, pe_error *err) {
  if (from >= to) return PE_OK;
  if (list->n == list->cap) {
    pe_status rc = pe_grow(&list->at, &list->cap, list->n + 1, sizeof *list->at, err);
    if (rc) return rc;
  }
  list->at[list->n++] = (pe_piece){(uint32_t)from, (uint32_t)to};
  return PE_OK;
}

void pe_pieces_free(pe_pieces *p) {
  pe_free(p->list.at);
  pe_free(p->spare_list.at);
  pe_buf_free(&p->own);
  pe_buf_free(&p->spare_text);
  pe_regex_scan_free(&p->scan);
  *p = (pe_pieces){0};
}
