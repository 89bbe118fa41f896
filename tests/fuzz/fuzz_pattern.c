/* Patterns: the first byte is the options, the rest the pattern. Whatever it is, reading it ends
 * with a term or an error of one line, and a walk that follows any byte that can follow reaches
 * the end of a word or goes on: it is never stuck. */
#include <stdlib.h>
#include <string.h>

#include "runtime/grammar/pattern.h"

enum { STEPS = 200 };

static void walk(pe_rex *r, pe_term t, uint32_t turn) {
  for (int i = 0; i < STEPS; i++) {
    const uint32_t classes = pe_rex_classes(r);
    pe_term next = PE_TERM_NONE;
    for (uint32_t c = 0; c < classes && next == PE_TERM_NONE; c++)
      next = pe_rex_step(r, t, (c + turn) % classes);
    if (pe_rex_status(r, NULL) != PE_OK) return;
    if (next == PE_TERM_NONE && !pe_rex_nullable(r, t)) abort();
    if (next == PE_TERM_NONE) return;
    t = next, turn = turn * 1664525 + 1013904223;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_rex *r;
  pe_term t;
  pe_error err;
  if (size < 1 || size > 400) return 0; /* longer ones reach nothing else, only slower */
  if (pe_rex_open((pe_rex_limits){20000, 200000}, &r, &err)) return 0;
  const pe_pattern_options o = {data[0] & 1, data[0] & 2, data[0] & 4};
  if (pe_pattern_read(r, pe_str_of((const char *)data + 1, size - 1), o, &t, &err)) {
    if (!err.text[0] || strchr(err.text, '\n')) abort();
  } else {
    pe_rex_freeze(r);
    if (pe_rex_has_word(r, t)) walk(r, t, data[0]);
  }
  pe_rex_close(r);
  return 0;
}
