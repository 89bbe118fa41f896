/* round_trip.h - for targets that read a tokenizer from random bytes: encodes some texts and
 * decodes them, streamed and as a whole. */
#ifndef ROUND_TRIP_H
#define ROUND_TRIP_H

#include <stdlib.h>
#include <string.h>

#include "runtime/text/detokenizer.h"
#include "runtime/utf8.h"

static const char *const texts[] = {
    "", "The keeper counted 31 waves.", " a  b\n\tc<s></s>",
    "caf\xc3\xa9 \xe6\xb5\xb7\xe6\xb5\xaa \xf0\x9f\x8c\x8a\xe2\x96\x81x",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

static inline void round_trip(pe_tokenizer *t, pe_tokenizer_scratch *s, const char *text) {
  pe_span span[] = {{0, strlen(text) / 2, true}};
  pe_encode_options o = {.add_special = true, .parse_special = true, .span = span, .spans = 1};
  pe_ids ids = {.offsets = true};
  pe_buf whole = {0}, joined = {0};
  pe_detokenizer *d = NULL;
  pe_status rc = pe_tokenizer_encode(t, s, pe_str_c(text), &o, &ids, NULL);
  for (size_t i = 0; !rc && i < ids.count; i++)
    if (ids.at[i] > strlen(text)) abort();
  if (!rc) rc = pe_detokenizer_new(t, false, &d, NULL);
  for (size_t i = 0; !rc && i < ids.count; i++)
    rc = pe_detokenizer_push(d, ids.id[i], &joined, NULL);
  if (!rc) rc = pe_detokenizer_finish(d, &joined, NULL);
  if (!rc)
    rc = pe_tokenizer_decode(t, ids.id, ids.count, false, &whole, NULL); /* a limit may be hit */
  if (!rc && (whole.len != joined.len || (whole.len && memcmp(whole.data, joined.data, whole.len))))
    abort();
  if (!rc && whole.len && pe_utf8_valid(whole.data, whole.len) != whole.len) abort();
  pe_detokenizer_free(d);
  pe_buf_free(&whole), pe_buf_free(&joined);
  pe_ids_free(&ids);
}

static inline void round_trips(pe_tokenizer *t) {
  pe_tokenizer_scratch *s = NULL;
  if (!pe_tokenizer_scratch_new(t, &s, NULL))
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) round_trip(t, s, texts[i]);
  pe_tokenizer_scratch_free(s);
}

#endif
