/* tokenizer.h - text to token ids and back, as the model's own tokenizer does it.
 *
 * Read from a tokenizer.json (with the behaviour of the `tokenizers` library), from a model
 * directory that contains one, or from the metadata of a GGUF file (with the behaviour of
 * llama.cpp):
 *
 *     text --> added tokens --> normalizer --> added tokens     --> pre-tokenizer --> model --> ids
 *              of raw text                     of normalized text
 *
 * With add_special the post-processor's ids are put around the result. Truncation and padding in
 * the file are ignored. An unknown part is an error that names it.
 *
 * Trust. A prompt is one string with spans: text of the template is trusted, text of users is
 * not. The string is tokenized as a whole, so merges do not depend on the spans, but special
 * tokens are recognised only if they lie completely inside trusted spans. Added tokens that are
 * not special are ordinary text and match everywhere, unless the caller names them as marks:
 * then they are treated like special ones (<tool_call> and <think> are often not special). If a
 * special token would begin in untrusted text and reach into trusted text, the search resumes at
 * the trusted part, so that user text cannot swallow a special token of the template.
 *
 * Ids are int32_t; the vocabulary may have holes. An added token has the id of the model's token
 * with the same text, if there is one.
 *
 * Threads: a pe_tokenizer is immutable after opening and shared by reference count; each thread
 * encodes with its own scratch, which also holds the word cache. */
#ifndef PE_TOKENIZER_H
#define PE_TOKENIZER_H

#include <stdatomic.h>

#include "runtime/text/ids.h"
#include "runtime/weights/gguf.h"

typedef struct pe_tokenizer pe_tokenizer;
typedef struct pe_tokenizer_scratch pe_tokenizer_scratch;

/* ---- opening --------------------------------------------------------------------------------- */

/* path: a tokenizer.json, a directory that contains one, or a GGUF file. Gives. Errors name the
 * path. */
pe_status pe_tokenizer_open(const char *path, pe_tokenizer **out, pe_error *err);
/* A tokenizer.json in memory. Gives; the text may be freed afterwards. */
pe_status pe_tokenizer_read_json(const char *text, size_t len, pe_tokenizer **out, pe_error *err);
/* The vocabulary in the metadata of a GGUF file. Gives; the file may be closed afterwards. */
pe_status pe_tokenizer_read_gguf(const pe_gguf *g, pe_tokenizer **out, pe_error *err);

/* Any thread may retain and release; NULL is fine. */
pe_tokenizer *pe_tokenizer_retain(pe_tokenizer *t); /* gives one more reference */
void pe_tokenizer_release(pe_tokenizer *t);         /* takes a reference; the last one frees */

/* Gives; borrows t. */
pe_status pe_tokenizer_scratch_new(const pe_tokenizer *t, pe_tokenizer_scratch **out,
                                   pe_error *err);
void pe_tokenizer_scratch_free(pe_tokenizer_scratch *s); /* takes; NULL is fine */

/* ---- encoding -------------------------------------------------------------------------------- */

typedef struct pe_span {
  size_t from, to; /* bytes of the text; spans are in order and do not overlap */
  bool trusted;
} pe_span;

typedef struct pe_encode_options {
  bool add_special;    /* put the post-processor's ids around the text */
  bool parse_special;  /* recognise special tokens written in trusted text */
  const pe_span *span; /* NULL: all text is trusted; otherwise text outside spans is not */
  size_t spans;
  const int32_t *mark; /* ids in ascending order: recognised where special tokens are */
  size_t marks;
  size_t most; /* more ids end it with PE_ELIMIT, as soon as that is sure; 0: no limit */
  const atomic_bool *stop; /* NULL, or: end with PE_ECANCEL when it is set */
} pe_encode_options;

/* Appends the ids of text, which must be UTF-8, to out. With out->offsets, out->at is the byte of
 * the text where each token begins. If the pre-tokenizer changed the text (Metaspace), it is where
 * the text since the last added token began. On failure out is unchanged. */
pe_status pe_tokenizer_encode(const pe_tokenizer *t, pe_tokenizer_scratch *s, pe_str text,
                              const pe_encode_options *o, pe_ids *out, pe_error *err);

/* For each of n byte offsets in ascending order, out[i] is the number of tokens that lie completely
 * before offset[i]. ids come from one encode with offsets of a text of len bytes. A token ends
 * where the next one begins, so text without a token belongs to the token before it; tokens that
 * begin at the same byte end together. */
void pe_tokenizer_positions(const pe_tokenizer *t, const pe_encode_options *o, const pe_ids *ids,
                            size_t len, const size_t *offset, size_t n, size_t *out);

/* ---- decoding (streamed: detokenizer.h) ------------------------------------------------------ */

/* Appends the text of ids to out, always UTF-8. Unknown ids are dropped. */
pe_status pe_tokenizer_decode(const pe_tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                              pe_buf *out, pe_error *err);

/* Appends the raw bytes of one token, which need not be UTF-8: GPT-2's byte alphabet and
 * byte-fallback tokens are decoded, U+2581 is a space, a leading space is kept. Special tokens are
 * their own text. Unknown ids have no bytes. */
pe_status pe_tokenizer_bytes(const pe_tokenizer *t, int32_t id, pe_buf *out, pe_error *err);

/* ---- vocabulary ------------------------------------------------------------------------------ */

typedef enum pe_special { PE_BOS, PE_EOS, PE_UNK, PE_PAD, PE_SPECIALS } pe_special;

int32_t pe_tokenizer_size(const pe_tokenizer *t); /* highest id + 1, added tokens included */
/* The token as written in the vocabulary; .at is NULL: no such id. */
pe_str pe_tokenizer_text(const pe_tokenizer *t, int32_t id);
int32_t pe_tokenizer_id(const pe_tokenizer *t, pe_str text); /* -1: no such token */
bool pe_tokenizer_is_special(const pe_tokenizer *t, int32_t id);
bool pe_tokenizer_is_added(const pe_tokenizer *t, int32_t id);         /* special or not */
int32_t pe_tokenizer_special(const pe_tokenizer *t, pe_special which); /* -1: not known */

#endif
