/* decoder_stages.h - the stages of a decoder, for the file that reads them (decoder.c) and the one
 * that runs them (decoding.c). */
#ifndef PE_DECODER_STAGES_H
#define PE_DECODER_STAGES_H

#include "runtime/text/decoder.h"
#include "runtime/text/normalizer.h"

typedef enum pe_decoder_kind {
  PE_DECODER_JOIN, /* no decoder: a space between tokens */
  PE_DECODER_BYTE_LEVEL,
  PE_DECODER_METASPACE,
  PE_DECODER_WORDPIECE,
  PE_DECODER_BPE,
  PE_DECODER_CTC,
  PE_DECODER_BYTE_FALLBACK,
  PE_DECODER_FUSE,
  PE_DECODER_STRIP,
  PE_DECODER_REPLACE,
  PE_DECODER_REPLACE_REGEX
} pe_decoder_kind;

typedef struct pe_decoder_stage {
  pe_decoder_kind kind;
  pe_str text;          /* pattern, prefix, suffix, pad token or character */
  pe_str with;          /* Replace: its replacement; CTC: the word delimiter */
  int64_t start, stop;  /* Strip: at most this many characters at each end */
  bool first_dropped;   /* Metaspace: in the first token, remove it instead of writing a space */
  bool clean_up;        /* WordPiece, CTC */
  bool fused;           /* ByteFallback: Fuse is next */
  pe_normalizer *regex; /* Replace with a pattern: the same rule as a normalizer's */
} pe_decoder_stage;

enum { PE_DECODER_MAX_STAGES = 64 };

struct pe_decoder {
  pe_arena arena; /* texts of the stages */
  pe_decoder_stage stage[PE_DECODER_MAX_STAGES];
  int count;
};

#endif
