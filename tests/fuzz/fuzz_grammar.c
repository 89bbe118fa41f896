/* Grammars: the first byte chooses GBNF or Lark, the rest is the grammar. Reading any of them
 * ends with a grammar or an error of one line, and a walk that follows any byte that can follow
 * reaches the end of a text or goes on: it is never stuck. Going back leads to the same place. */
#include <stdlib.h>
#include <string.h>

#include "runtime/grammar/matcher.h"

enum { STEPS = 60 };

/* Takes one byte that can come, from some byte on; false: none can, or a limit was hit. */
static bool take_byte(pe_matcher *m, uint32_t turn, bool *limit) {
  for (uint32_t i = 0; i < 256; i++) {
    const char byte = (char)(i + turn);
    size_t taken;
    pe_error err;
    *limit = pe_matcher_feed(m, pe_str_of(&byte, 1), &taken, &err) != PE_OK;
    if (*limit || taken) return taken == 1;
  }
  return false;
}

static void walk(pe_matcher *m, uint32_t turn) {
  bool limit = false;
  for (int i = 0; i < STEPS && !limit; i++, turn = turn * 1664525 + 1013904223) {
    const bool complete = pe_matcher_complete(m);
    const size_t length = pe_matcher_length(m);
    const bool taken = take_byte(m, turn >> 16, &limit);
    if (!taken && !limit && !complete) abort();
    if (!taken) return;
    if (turn >> 29) continue;
    pe_matcher_trim(m, length); /* one step back, and the same one again */
    if (pe_matcher_complete(m) != complete) abort();
    if (!take_byte(m, turn >> 16, &limit) && !limit) abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pe_grammar *g = NULL;
  pe_matcher *m = NULL;
  pe_error err = {0};
  if (size < 1 || size > 400) return 0; /* longer ones reach nothing else, only slower */
  const pe_str text = pe_str_of((const char *)data + 1, size - 1);
  pe_status rc = data[0] & 1 ? pe_grammar_lark(text, &g, &err) : pe_grammar_gbnf(text, &g, &err);
  if (!rc) rc = pe_matcher_open(g, NULL, &m, &err);
  if (rc && (!err.text[0] || strchr(err.text, '\n'))) abort();
  if (!rc) walk(m, data[0]);
  pe_matcher_close(m);
  pe_grammar_release(g);
  return 0;
}
