/* added.h - added tokens: texts that are cut out before anything else sees the text.
 *
 * There are two kinds, each with its own trie: `normalized: false` is searched in the raw text,
 * `normalized: true` in the normalized text, by its normalized content (which is also what it
 * decodes to). Ids are assigned as the `tokenizers` library does: a content that the model knows
 * has the model's id, others count up from the size of the vocabulary. The ids in the file are not
 * used.
 *
 * The search is one pass of leftmost-longest matches that do not overlap. A match is skipped if
 * it is special (or one of the caller's marks) and special tokens are not allowed there, or if
 * it is `single_word` and touches a word character; a shorter token is then not tried. `lstrip`
 * and `rstrip` swallow white space. White space swallowed by `rstrip` is searched again, so a
 * later match may begin in it, as in the library.
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
  pe_str decoded; /* what it decodes to: the normalized content of a normalized token */
  int32_t id;     /* -1: an earlier token has the same content */
  bool special, normalized, single_word, lstrip, rstrip;
} pe_added_token;

typedef struct pe_added_search {
  pe_trie trie; /* values are indices of tokens */
  bool first[256];
  int firsts;   /* number of bytes that can begin a token */
  uint8_t only; /* that byte, if there is one */
  bool special; /* contains a special token */
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

/* Adds a token without its id; copies the content. Among equal contents the first counts, and it is
 * special if any of them is. */
pe_status pe_added_put(pe_added *a, pe_added_token token, pe_error *err);
/* The `added_tokens` of a tokenizer.json. Empty contents are skipped, as in the library. */
pe_status pe_added_read(pe_added *a, const pe_json_value *list, pe_error *err);
/* Assigns the ids and builds the searches; borrows nothing afterwards. */
pe_status pe_added_finish(pe_added *a, const pe_vocab *vocab, const pe_normalizer *n,
                          pe_error *err);
void pe_added_free(pe_added *a);

const pe_added_token *pe_added_by_id(const pe_added *a, int32_t id); /* NULL: not an added token */
const pe_added_token *pe_added_by_text(const pe_added *a, pe_str text);

/* ---- search ---------------------------------------------------------------------------------- */

/* Is a special token allowed at [from, to) of the text? If not, the search resumes at *resume;
 * it must be greater than from. */
typedef bool pe_added_allow(void *context, size_t from, size_t to, size_t *resume);

typedef struct pe_added_part {
  size_t from, to;
  int32_t id; /* -1: plain text */
} pe_added_part;

typedef struct pe_added_scan {
  const pe_added *added;
  const pe_added_search *search;
  pe_str text;
  pe_added_allow *allow;
  void *context;
  const int32_t *mark; /* ids in ascending order that need `allow` as if they were special */
  size_t marks;
  /* ---- private, zero ---- */
  size_t at, done;
  pe_added_part pending; /* the token after the plain text that was just returned */
  bool has_pending;
} pe_added_scan;

/* The next part of the text, never empty; false: no more. */
bool pe_added_next(pe_added_scan *s, pe_added_part *out);

/* Where the text of a token of several characters that is special or a mark begins, at `at` or
 * later; text.len: nowhere. Of the scan only added, text, mark and marks are used. */
size_t pe_added_guarded(const pe_added_scan *s, size_t at);

#endif
