/* normalizer_sink.c - where the stages of a normalizer write; see normalizer_parts.h. */
#include "runtime/text/normalizer_parts.h"
#include "runtime/utf8.h"

#include <string.h>

static pe_status put_origins(pe_sink *s, size_t n, size_t from) {
  pe_status rc = pe_buf_reserve(s->origin, n * sizeof(uint32_t), s->err);
  uint32_t o = (uint32_t)from;
  for (size_t i = 0; i < n && !rc; i++, s->origin->len += sizeof o)
    memcpy(s->origin->data + s->origin->len, &o, sizeof o);
  return rc;
}

pe_status pe_sink_put(pe_sink *s, const char *bytes, size_t n, size_t from) {
  pe_status rc = pe_buf_put(s->out, bytes, n, s->err);
  return rc || !s->origin ? rc : put_origins(s, n, from);
}

pe_status pe_sink_char(pe_sink *s, int32_t cp, size_t from) {
  char bytes[4];
  int n = pe_utf8_put(bytes, cp);
  return pe_sink_put(s, bytes, (size_t)n, from);
}

pe_status pe_sink_copy(pe_sink *s, pe_str text, size_t from, size_t to) {
  if (from >= to) return PE_OK;
  pe_status rc = pe_buf_put(s->out, text.at + from, to - from, s->err);
  while (!rc && s->origin && from < to) {
    int32_t cp;
    size_t n = (size_t)pe_utf8_next(text.at + from, text.at + to, &cp);
    rc = put_origins(s, n, from);
    from += n;
  }
  return rc;
}
