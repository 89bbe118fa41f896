/* added.h - added tokens: texts that are cut out before anything else looks at the text.
 *
 * Two kinds, each with a trie of its own: `normalized: false` is searched in the text as it came, `normalized: true` in
 * the normalized text, by its normalized content (which is also what it decodes to, as in the library). Ids are given as the `tokenizers` library gives them: a content that
 * the model knows keeps the model's id, others count on from the vocabulary's size; the ids in the file are not asked.
 *
 * Searching is one pass of leftmost-longest matches that do not overlap. A match is passed over when it is special and
 * stands where special tokens are not wanted, or is `single_word` and touches a word character; it is then not retried
 * with a shorter token. `lstrip` and `rstrip` swallow white space, and what `rstrip` swallowed is looked at again where
 * a later match begins in it, as in the library.
 *
 * Threads: immutable after finish; a pe_added_scan belongs to one thread. */
#ifndef PE_ADDED_H
#define PE_ADDED_H

#include "runtime/json.h"
#include "runtime/text/normalizer.h"
#include "runtime/text/trie.h"
#include "runtime/text/vocab.h"

typedef struct pe_added_token {
  pe_str content; /* as written in the file */
  pe_str decoded; /* what decoding makes of it: the normalized content, for a normalized token */
  int32_t id;     /* -1: the same content came before */
  bool special, normalized, single_word, lstrip, rstrip;
} pe_added_token;

typedef struct pe_added_search {
  pe_trie trie; /* values are indices of tokens */
  bool first[256];
  int firsts;   /* how many bytes can begin a token */
  uint8_t only; /* that byte, when there is one */
  bool special; /* holds a special token */
} pe_added_search;

typedef struct pe_added {
  pe_arena arena;
  pe_added_token *token;
  size_t count, cap;
  pe_vocab texts; /* content -> index of its first token */
  int32_t *by_id; /* index + 1 */
  int32_t ids;    /* length of by_id */
  pe_added_search raw, normal;
} pe_added; /* {0} is empty */

/* Adds one token, without its id; copies the content. Of equal contents the first counts, but is special if any is. */
pe_status pe_added_put(pe_added *a, pe_added_token token, pe_error *err);
/* The `added_tokens` of a tokenizer.json; contents that are empty are passed over, as in the library. */
pe_status pe_added_read(pe_added *a, const pe_json_value *list, pe_error *err);
/* Gives out the ids and builds the searches; borrows nothing afterwards. */
pe_status pe_added_finish(pe_added *a, const pe_vocab *vocab, const pe_normalizer *n,
                          pe_error *err);
void pe_added_free(pe_added *a);

const pe_added_token *pe_added_by_id(const pe_added *a, int32_t id); /* NULL: not an added token */
const pe_added_token *pe_added_by_text(const pe_added *a, pe_str text);

/* ---- search -------------------------------------------------------------------------------------------------- */

/* May a special token stand at [from, to) of the text? If not, *resume says where to look on (past from). */
typedef bool pe_added_allow(void *context, size_t from, size_t to, size_t *resume);

typedef struct pe_added_scan {
  const pe_added *added;
  const pe_added_search *search;
  pe_str text;
  pe_added_allow *allow; /* NULL: everywhere */
  void *context;
  /* ---- private, zero ---- */
  size_t at, done;
  struct pe_added_part {
    size_t from, to;
    int32_t id;
  } waits;
  bool waiting;
} pe_added_scan;

typedef struct pe_added_part pe_added_part; /* id -1: plain text */

/* The next part of the text, never empty; false: no more. */
bool pe_added_next(pe_added_scan *s, pe_added_part *out);

#endif
