/* tokenizer.h - text to token ids and back, as the model's own tokenizer does it.
 *
 * Read from a tokenizer.json (with the behaviour of the `tokenizers` library), from a model directory that holds one,
 * or from the metadata of a GGUF file (with the behaviour of llama.cpp). The path of a text:
 *
 *     added tokens cut out -> normalizer -> added tokens of normalized text cut out -> pre-tokenizer -> model -> ids
 *
 * with the post-processor's ids around them when special tokens are asked for. Truncation and padding in the file are
 * ignored. A part that is not known is an error that names it.
 *
 * Trust. A prompt is one string with spans: what the template wrote is trusted, what users wrote is not. The whole
 * string is tokenized at once, so merges are what they are for the whole text, but special tokens are recognised only
 * where the match lies wholly inside trusted spans. Added tokens that are not special are ordinary text and match
 * everywhere. Where a special token would begin in untrusted text and reach into trusted text, the search starts again
 * at the trusted part, so that no user text can swallow a mark of the template.
 *
 * Ids are int32_t; the vocabulary may have holes. Added tokens keep the id of the model's token of the same text.
 *
 * Threads: a pe_tokenizer is immutable after opening and may be shared; each thread encodes with a scratch of its own,
 * which also carries the word cache from text to text. */
#ifndef PE_TOKENIZER_H
#define PE_TOKENIZER_H

#include "runtime/weights/gguf.h"
#include "runtime/text/vocab.h"

typedef struct pe_tokenizer pe_tokenizer;
typedef struct pe_tokenizer_scratch pe_tokenizer_scratch;

/* ---- opening ------------------------------------------------------------------------------------------------- */

/* path: tokenizer.json, a directory that holds one, or a GGUF file. Gives. Errors name the path. */
pe_status pe_tokenizer_open(const char *path, pe_tokenizer **out, pe_error *err);
/* A tokenizer.json in memory. Gives; the text may be freed afterwards. */
pe_status pe_tokenizer_read(const char *text, size_t len, pe_tokenizer **out, pe_error *err);
/* The vocabulary in a GGUF file's metadata. Gives; the file may be closed afterwards. */
pe_status pe_tokenizer_read_gguf(const pe_gguf *g, pe_tokenizer **out, pe_error *err);
/* Gives one more reference, for whoever may outlive the opener (any thread). NULL: NULL. */
const pe_tokenizer *pe_tokenizer_retain(const pe_tokenizer *t);
void pe_tokenizer_release(const pe_tokenizer *t); /* takes a reference; NULL is fine */

pe_status pe_tokenizer_scratch_new(const pe_tokenizer *t, pe_tokenizer_scratch **out,
                                   pe_error *err);       /* gives; borrows t */
void pe_tokenizer_scratch_free(pe_tokenizer_scratch *s); /* takes; NULL is fine */

/* ---- encoding ------------------------------------------------------------------------------------------------ */

typedef struct pe_span {
  size_t from, to; /* bytes of the text; spans are in order and do not overlap */
  bool trusted;
} pe_span;

typedef struct pe_encode_options {
  bool add_special;    /* put the post-processor's ids around the text */
  bool parse_special;  /* recognise special tokens written in the text, where it is trusted */
  const pe_span *span; /* NULL: all of it is trusted; else text in no span is not */
  size_t spans;
} pe_encode_options;

/* Appends the ids of text, which must be UTF-8, to out. With out->offsets, out->at tells for each id the byte of text
 * where it begins: exactly for tokens of pieces that the pre-tokenizer left as they were, else (Metaspace as
 * pre-tokenizer) where the text between two added tokens began. On failure out keeps what it held before. */
pe_status pe_tokenizer_encode(const pe_tokenizer *t, pe_tokenizer_scratch *s, pe_str text,
                              const pe_encode_options *o, pe_ids *out, pe_error *err);

/* Of ids that one encode with offsets made of a text of len bytes: how many of them lie wholly in its first offset[i]
 * bytes, for n offsets in ascending order. A token ends where the next one begins, so text that makes no token belongs to
 * the one before it; tokens that begin at the same byte end together. */
void pe_tokenizer_positions(const pe_tokenizer *t, const pe_encode_options *o, const pe_ids *ids,
                            size_t len, const size_t *offset, size_t n, size_t *out);

/* ---- decoding (streamed: detokenizer.h) ---------------------------------------------------------------------- */

/* Appends the text of ids to out, always UTF-8. Ids that do not exist are dropped. */
pe_status pe_tokenizer_decode(const pe_tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                              pe_buf *out, pe_error *err);

/* ---- vocabulary ---------------------------------------------------------------------------------------------- */

typedef enum pe_special { PE_BOS, PE_EOS, PE_UNK, PE_PAD, PE_SPECIALS } pe_special;

int32_t pe_tokenizer_size(const pe_tokenizer *t); /* highest id + 1, added tokens included */
pe_str pe_tokenizer_text(const pe_tokenizer *t,
                         int32_t id); /* as written in the vocabulary; .at NULL: no such id */
int32_t pe_tokenizer_id(const pe_tokenizer *t, pe_str text); /* -1: no such token */
bool pe_tokenizer_is_special(const pe_tokenizer *t, int32_t id);
int32_t pe_tokenizer_special(const pe_tokenizer *t, pe_special which); /* -1: not known */

#endif
