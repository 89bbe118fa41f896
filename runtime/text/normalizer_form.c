/* normalizer_form.c - the four normalization forms, with the tables of the library's older Unicode.
 *
 * Most text does not change and is copied in long spans. A character that might change opens a
 * cluster: it (and, when composing, the character before it) is decomposed into items, which are
 * put in canonical order, composed, and written once a character arrives that cannot join them.
 * Long runs of combining marks are sorted by counting, so their cost is linear. */
#include "runtime/text/normalizer_parts.h"
#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

#include <string.h>

typedef struct item {
  int32_t cp;
  uint32_t ccc;
  size_t from; /* offset of the character it came from */
} item;

typedef struct cluster {
  pe_form form;
  pe_sink *sink;
  item *at;
  size_t n, cap;
} cluster;

static bool inert(pe_form f, uint32_t w) {
  if (f.compat && (w & PE_U_COMPAT)) return false;
  return f.compose ? !(w & PE_U_NFC_MAYBE) : !(w & PE_U_CANONICAL) && !pe_unicode_ccc(w);
}

/* Sorts by combining class, stably. All classes are above 0. Insertion sort for the usual one to
 * three marks; it would be quadratic for a hostile text. */
static pe_status order(item *at, size_t n, pe_error *err) {
  enum { FEW = 12 };
  if (n <= FEW) {
    for (size_t i = 1; i < n; i++) {
      item x = at[i];
      size_t k = i;
      for (; k && at[k - 1].ccc > x.ccc; k--) at[k] = at[k - 1];
      at[k] = x;
    }
    return PE_OK;
  }
  size_t place[257] = {0};
  item *sorted = pe_alloc(n * sizeof *sorted);
  if (!sorted) return pe_nomem(err, "combining marks");
  for (size_t i = 0; i < n; i++) place[at[i].ccc + 1]++;
  for (int c = 0; c < 256; c++) place[c + 1] += place[c];
  for (size_t i = 0; i < n; i++) sorted[place[at[i].ccc]++] = at[i];
  memcpy(at, sorted, n * sizeof *at);
  pe_free(sorted);
  return PE_OK;
}

static void compose(cluster *c) {
  size_t out = 0, starter = 0;
  bool have = false; /* there is a starter to join */
  uint32_t last = 0; /* class of the last character after the starter; 0: none */
  for (size_t i = 0; i < c->n; i++) {
    item x = c->at[i];
    bool next_to = have && out == starter + 1;
    int32_t joined = have && (next_to || (last && last < x.ccc))
                         ? pe_unicode_compose(c->at[starter].cp, x.cp)
                         : -1;
    if (joined >= 0) {
      c->at[starter].cp = joined;
      continue;
    }
    if (!x.ccc)
      have = true, starter = out, last = 0;
    else
      last = x.ccc;
    c->at[out++] = x;
  }
  c->n = out;
}

/* The first character of the result comes from the start of the text, also where marks at the start
 * were reordered: the library counts the characters of the result against those of the text. */
static pe_status flush(cluster *c) {
  pe_status rc = PE_OK;
  bool first = c->n && !c->at[0].from;
  for (size_t i = 0, k; i < c->n && !rc; i = k) {
    for (k = i + 1; k < c->n && c->at[i].ccc && c->at[k].ccc;) k++;
    if (c->at[i].ccc) rc = order(c->at + i, k - i, c->sink->err);
  }
  if (!rc && c->form.compose) compose(c);
  if (first) c->at[0].from = 0;
  for (size_t i = 0; i < c->n && !rc; i++) rc = pe_sink_char(c->sink, c->at[i].cp, c->at[i].from);
  c->n = 0;
  return rc;
}

static pe_status add(cluster *c, int32_t cp, size_t from) {
  int32_t parts[PE_DECOMPOSED_MAX];
  int n = pe_unicode_decompose(cp, c->form.compat, parts);
  pe_status rc = PE_OK;
  for (int i = 0; i < n && !rc; i++) {
    uint32_t w = pe_unicode_info(parts[i]), ccc = (uint32_t)pe_unicode_ccc(w);
    if (!ccc && !(c->form.compose && (w & PE_U_NFC_MAYBE)))
      rc = flush(c); /* the items so far are final */
    if (!rc) rc = pe_grow(&c->at, &c->cap, c->n + 1, sizeof *c->at, c->sink->err);
    if (!rc) c->at[c->n++] = (item){parts[i], ccc, from};
  }
  return rc;
}

static size_t skip_ascii(pe_str t, size_t at) {
  uint64_t eight;
  while (t.len - at >= 8 && (memcpy(&eight, t.at + at, 8), !(eight & 0x8080808080808080u))) at += 8;
  while (at < t.len && (uint8_t)t.at[at] < 0x80) at++;
  return at;
}

bool pe_form_unchanged(pe_form f, pe_str text) {
  const char *end = text.at + text.len;
  for (size_t at = skip_ascii(text, 0); at < text.len; at = skip_ascii(text, at)) {
    int32_t cp;
    at += (size_t)pe_utf8_next(text.at + at, end, &cp);
    if (!inert(f, pe_unicode_info(cp))) return false;
  }
  return true;
}

pe_status pe_form_apply(pe_form f, pe_str text, pe_sink *s) {
  cluster c = {.form = f, .sink = s};
  const char *end = text.at + text.len;
  size_t span = 0; /* while the cluster is empty, text[span, at) is inert and not yet written */
  size_t before = 0;
  bool any_before = false, open = false;
  pe_status rc = PE_OK;
  for (size_t at = 0; at < text.len && !rc;) {
    if (!open && (uint8_t)text.at[at] < 0x80) {
      at = skip_ascii(text, at);
      before = at - 1, any_before = true;
      continue;
    }
    int32_t cp;
    size_t here = at;
    at += (size_t)pe_utf8_next(text.at + at, end, &cp);
    if (inert(f, pe_unicode_info(cp))) {
      if (open) {
        rc = flush(&c);
        open = false, span = here;
      }
      before = here, any_before = true;
      continue;
    }
    if (!open) {
      size_t stop = f.compose && any_before ? before : here;
      rc = pe_sink_copy(s, text, span, stop);
      if (!rc && stop < here) {
        int32_t last;
        pe_utf8_next(text.at + stop, end, &last);
        rc = add(&c, last, stop);
      }
      open = true;
    }
    any_before = false;
    if (!rc) rc = add(&c, cp, here);
  }
  if (!rc) rc = open ? flush(&c) : pe_sink_copy(s, text, span, text.len);
  pe_free(c.at);
  return rc;
}
