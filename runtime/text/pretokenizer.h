/* pretokenizer.h - the `pre_tokenizer` of a tokenizer.json: normalized text to pieces, each of which the model
 * tokenizes alone.
 *
 * All kinds of the `tokenizers` library: Split (string or regex, five behaviours, invert), ByteLevel, Metaspace,
 * Whitespace, WhitespaceSplit, BertPreTokenizer, Punctuation, Digits, CharDelimiterSplit, UnicodeScripts, FixedLength,
 * Sequence. An unknown kind is an error that names it.
 *
 * Byte level. The library maps bytes to printable characters and lets the model work on those. Here pieces are always
 * the raw bytes, and pe_pretokenizer_byte_level tells the model to read its vocabulary through the byte alphabet
 * instead: nothing is mapped per character. (Steps that follow ByteLevel inside a Sequence see the mapped text, as in
 * the library, and the pieces are mapped back at the end.)
 *
 * Threads: immutable after reading; a pe_pieces belongs to one thread. */
#ifndef PE_PRETOKENIZER_H
#define PE_PRETOKENIZER_H

#include "runtime/json.h"

typedef struct pe_pretokenizer pe_pretokenizer;

typedef struct pe_piece {
  uint32_t from, to;
} pe_piece; /* bytes [from, to) of the text of its pe_pieces */

typedef struct pe_pieces {
  pe_str text; /* the input itself, or own.data where a step changed it (Metaspace, prefix space) */
  pe_buf own;
  pe_piece *piece; /* in order, never empty */
  size_t count, cap;
  /* ---- private: scratch kept between calls ---- */
  void *scratch;
} pe_pieces; /* {0} is empty; reused from call to call */

/* v NULL or JSON null: gives NULL; splitting with NULL gives one piece, the whole text. */
pe_status pe_pretokenizer_read(const pe_json_value *v, pe_pretokenizer **out, pe_error *err);
void pe_pretokenizer_free(pe_pretokenizer *p); /* takes; NULL is fine */
bool pe_pretokenizer_byte_level(const pe_pretokenizer *p);

/* Splits text (under 4 GiB; empty text gives no piece) into out, replacing what it held. `first`: the text begins at
 * offset 0 of the whole input (what Metaspace's "first" asks). Borrows text until out is used no more. */
pe_status pe_pretokenizer_split(const pe_pretokenizer *p, pe_str text, bool first, pe_pieces *out,
                                pe_error *err);
void pe_pieces_free(pe_pieces *p);

#endif
