/* pieces.h - the pieces that the pre-tokenizer splits a text into, and the memory that splitting
 * reuses from call to call.
 *
 * Belongs to one thread. */
#ifndef PE_PIECES_H
#define PE_PIECES_H

#include "runtime/text/regex.h"

typedef struct pe_piece {
  uint32_t from, to; /* bytes [from, to) of the text */
} pe_piece;

typedef struct pe_piece_list {
  pe_piece *at;
  size_t n, cap;
} pe_piece_list; /* {0} is an empty list */

typedef struct pe_pieces {
  pe_str text; /* the input, or own.data if a stage changed it (Metaspace, prefix space) */
  pe_buf own;
  pe_piece_list list; /* in order, never empty pieces */
  /* ---- private: what the next call uses again ---- */
  pe_piece_list spare_list;
  pe_buf spare_text;
  pe_regex_scan scan;
} pe_pieces; /* {0} is empty */

/* Appends [from, to) unless it is empty. */
pe_status pe_piece_push(pe_piece_list *list, size_t from, size_t to, pe_error *err);
void pe_pieces_free(pe_pieces *p);

#endif
