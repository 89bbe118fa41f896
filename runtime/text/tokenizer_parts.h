/* tokenizer_parts.h - the parts of a tokenizer, for the files that build one (tokenizer_json.c,
 * tokenizer_gguf.c, tokenizer_open.c) and for the detokenizer. All others use tokenizer.h. */
#ifndef PE_TOKENIZER_PARTS_H
#define PE_TOKENIZER_PARTS_H

#include "runtime/text/added.h"
#include "runtime/text/bpe.h"
#include "runtime/text/decoder.h"
#include "runtime/text/postprocessor.h"
#include "runtime/text/pretokenizer.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/unigram.h"
#include "runtime/text/wordpiece.h"

typedef enum pe_tokenizer_kind {
  PE_TOKENIZER_BPE,
  PE_TOKENIZER_UNIGRAM,
  PE_TOKENIZER_WORDPIECE
} pe_tokenizer_kind;

struct pe_tokenizer {
  int refs;
  pe_arena arena; /* texts that the models borrow */
  pe_vocab vocab; /* the model's own tokens */
  pe_tokenizer_kind kind;
  pe_bpe bpe;
  pe_unigram unigram;
  pe_wordpiece wordpiece;
  pe_normalizer *normalizer;
  pe_pretokenizer *pretokenizer;
  bool asks_first; /* the pre-tokenizer treats text at offset 0 differently */
  bool mapped;     /* byte-level pieces that the model must see in the byte alphabet */
  pe_added added;
  pe_postprocessor post;
  pe_decoder *decoder;
  int32_t special[PE_SPECIALS];
};

pe_status pe_tokenizer_new(pe_tokenizer **out, pe_error *err); /* gives an empty one */
/* A copy in the tokenizer's arena. */
pe_status pe_tokenizer_keep(pe_tokenizer *t, pe_str s, pe_str *out, pe_error *err);

/* The normalizer, pre-tokenizer, post-processor and decoder of a JSON object; all are optional. */
pe_status pe_tokenizer_read_pipeline(pe_tokenizer *t, const pe_json_value *v, pe_error *err);

/* The text of a token that the decoder reads; .at is NULL: no such id. */
pe_str pe_tokenizer_decoded(const pe_tokenizer *t, int32_t id, bool *special);

#endif
