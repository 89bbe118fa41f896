/* pretokenizer_matcher.c - see pretokenizer_matcher.h. */
#include "runtime/text/pretokenizer_matcher.h"
#include "runtime/utf8.h"

#include <string.h>

/* The piece that may still grow, and whether the last event was a match. Empty pieces are dropped
 * at the end, but count while they are open: the library treats empty matches this way. */
typedef struct joiner {
  const pe_matcher *m;
  pe_piece_list *list;
  size_t from, to;
  bool open, matched;
  pe_error *err;
} joiner;

static bool extends(const joiner *j, bool match) {
  switch (j->m->behaviour) {
  case PE_CONTIGUOUS: return match == j->matched;
  case PE_MERGED_PREVIOUS: return match && !j->matched;
  case PE_MERGED_NEXT: return !match && j->matched;
  default: return false;
  }
}

static pe_status event(joiner *j, size_t from, size_t to, bool match) {
  match ^= j->m->invert;
  if (j->m->behaviour <= PE_ISOLATED)
    return j->m->behaviour == PE_REMOVED && match ? PE_OK
                                                  : pe_piece_push(j->list, from, to, j->err);
  pe_status rc = PE_OK;
  if (j->open && extends(j, match)) {
    j->to = to;
  } else {
    if (j->open) rc = pe_piece_push(j->list, j->from, j->to, j->err);
    j->from = from, j->to = to, j->open = true;
  }
  j->matched = match;
  return rc;
}

static pe_status by_regex(joiner *j, const char *text, size_t from, size_t to,
                          pe_regex_scan *scan) {
  size_t done = from, a, b;
  bool found;
  pe_status rc = pe_regex_begin(scan, j->m->regex, pe_str_of(text + from, to - from), j->err);
  while (!rc && !(rc = pe_regex_next(scan, &found, &a, &b, j->err)) && found) {
    a += from, b += from;
    if (done < a) rc = event(j, done, a, false);
    if (!rc) rc = event(j, a, b, true);
    done = b;
  }
  return !rc && done < to ? event(j, done, to, false) : rc;
}

static pe_status by_test(joiner *j, const char *text, size_t from, size_t to) {
  size_t done = from;
  pe_status rc = PE_OK;
  for (size_t at = from, next; at < to && !rc; at = next) {
    int32_t cp;
    next = at + (size_t)pe_utf8_next(text + at, text + to, &cp);
    if (!j->m->test(cp)) continue;
    if (done < at) rc = event(j, done, at, false);
    if (!rc) rc = event(j, at, next, true);
    done = next;
  }
  return !rc && done < to ? event(j, done, to, false) : rc;
}

static pe_status by_literal(joiner *j, const char *text, size_t from, size_t to) {
  const pe_matcher *m = j->m;
  size_t done = from;
  pe_status rc = PE_OK;
  for (size_t at = from; !rc && to - at >= m->literal_len;) {
    const char *hit = memchr(text + at, m->literal[0], to - at - m->literal_len + 1);
    if (!hit) break;
    at = (size_t)(hit - text);
    if (memcmp(hit, m->literal, m->literal_len)) {
      at++;
      continue;
    }
    if (done < at) rc = event(j, done, at, false);
    if (!rc) rc = event(j, at, at + m->literal_len, true);
    done = at += m->literal_len;
  }
  return !rc && done < to ? event(j, done, to, false) : rc;
}

pe_status pe_matcher_split(const pe_matcher *m, const char *text, size_t from, size_t to,
                           pe_regex_scan *scan, pe_piece_list *list, pe_error *err) {
  joiner j = {.m = m, .list = list, .err = err};
  pe_status rc = m->regex  ? by_regex(&j, text, from, to, scan)
                 : m->test ? by_test(&j, text, from, to)
                           : by_literal(&j, text, from, to);
  return !rc && j.open ? pe_piece_push(list, j.from, j.to, err) : rc;
}

void pe_matcher_free(pe_matcher *m) {
  pe_regex_free(m->regex);
  pe_free(m->literal);
  *m = (pe_matcher){0};
}
