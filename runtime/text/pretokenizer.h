/* pretokenizer.h - the `pre_tokenizer` of a tokenizer.json: splits normalized text into pieces,
 * which the model then encodes one by one.
 *
 * All kinds of the `tokenizers` library are read: Split (string or regex, five behaviours, invert),
 * ByteLevel, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer, Punctuation, Digits,
 * CharDelimiterSplit, UnicodeScripts, FixedLength, Sequence. An unknown kind is an error that names
 * it.
 *
 * Byte level. The library maps every byte to a printable character before the model sees it. Here
 * pieces stay raw bytes, and pe_pretokenizer_byte_level tells the model to read its vocabulary
 * through the byte alphabet instead, which saves mapping every character of every text. Stages that
 * follow ByteLevel in a Sequence do see the mapped text, as in the library; the pieces are mapped
 * back at the end.
 *
 * Threads: immutable after reading. */
#ifndef PE_PRETOKENIZER_H
#define PE_PRETOKENIZER_H

#include "runtime/json.h"
#include "runtime/text/pieces.h"

typedef struct pe_pretokenizer pe_pretokenizer;

/* v NULL or JSON null: gives NULL, which splits every text into one piece. */
pe_status pe_pretokenizer_read(const pe_json_value *v, pe_pretokenizer **out, pe_error *err);
void pe_pretokenizer_free(pe_pretokenizer *p); /* takes; NULL is fine */
bool pe_pretokenizer_byte_level(const pe_pretokenizer *p);

/* Splits text (under 4 GiB; an empty text has no pieces) and replaces the contents of out. `first`:
 * the text begins at offset 0 of the whole input, which matters to Metaspace's scheme "first".
 * Borrows text for as long as out is used. */
pe_status pe_pretokenizer_split(const pe_pretokenizer *p, pe_str text, bool first, pe_pieces *out,
                                pe_error *err);

#endif
