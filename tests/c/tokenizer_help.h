/* tokenizer_help.h - for tests of tokenizers: a tokenizer.json in memory; compares the ids of a
 * text, written as one line. */
#ifndef TOKENIZER_HELP_H
#define TOKENIZER_HELP_H

#include "check.h"
#include "runtime/text/tokenizer.h"

static inline pe_status read_text(const char *json, pe_tokenizer **t, pe_error *err) {
  return pe_tokenizer_read_json(json, strlen(json), t, err);
}

#define MODEL                                                                                      \
  "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<\":3,\">\":4,\"x\":5},"      \
  "\"merges\":[[\"a\",\"b\"]]}"
#define TOKEN(content, special, normalized)                                                        \
  "{\"id\":9,\"content\":\"" content                                                               \
  "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":" normalized          \
  ",\"special\":" special "}"

/* The ids of `text` must be `want`, separated by spaces; special tokens are recognised in the spans
 * (NULL: everywhere). */
static inline void expect_ids(const pe_tokenizer *t, const char *text, const pe_span *span,
                              size_t spans, const char *want, int line) {
  pe_error err = {0};
  pe_tokenizer_scratch *s = NULL;
  pe_ids ids = {0};
  pe_encode_options o = {.parse_special = true, .span = span, .spans = spans};
  char got[400] = "";
  CHECK_OK(pe_tokenizer_scratch_new(t, &s, &err), err);
  CHECK_OK(pe_tokenizer_encode(t, s, pe_str_c(text), &o, &ids, &err), err);
  for (size_t i = 0, n = 0; i < ids.count && n < 380; i++)
    n += (size_t)snprintf(got + n, sizeof got - n, "%s%d", i ? " " : "", ids.id[i]);
  if (strcmp(got, want))
    check_failures++, printf("    line %d: ids of '%s' are %s, not %s\n", line, text, got, want);
  pe_ids_free(&ids);
  pe_tokenizer_scratch_free(s);
}

#define EXPECT_IDS(t, text, span, spans, want) expect_ids(t, text, span, spans, want, __LINE__)

#endif
