/* rex_words.c - see rex.h: one of many words, as a term that shares their beginnings.
 *
 * The words are sorted. A stack has a level for every byte of the current word; at each level there
 * are the terms of the branches that are done. The next word keeps the levels of the bytes that
 * both have, and closes the others from the deepest on:
 *
 *   "car" "cat" "do"     c . a . (r | t) | d . o */
#include <stdlib.h>
#include <string.h>

#include "runtime/grammar/rex_parts.h"

typedef struct level {
  size_t first; /* of its branches on the stack */
  uint8_t byte; /* that leads to it */
} level;

typedef struct words {
  pe_rex *r;
  level *level;
  size_t levels, level_cap;
  pe_term *branch;
  size_t branches, branch_cap;
} words;

static bool push_branch(words *w, pe_term t) {
  if (pe_grow(&w->branch, &w->branch_cap, w->branches + 1, sizeof t, NULL) != PE_OK) return false;
  w->branch[w->branches++] = t;
  return true;
}

static bool push_level(words *w, uint8_t byte) {
  if (pe_grow(&w->level, &w->level_cap, w->levels + 1, sizeof *w->level, NULL) != PE_OK)
    return false;
  w->level[w->levels++] = (level){w->branches, byte};
  return true;
}

/* The term of the deepest level, which goes. */
static pe_term close_level(words *w) {
  const level *l = &w->level[--w->levels];
  const pe_term *first = w->branch ? w->branch + l->first : NULL; /* nothing was pushed yet */
  const pe_term t = pe_rex_or(w->r, first, w->branches - l->first);
  w->branches = l->first;
  return t;
}

static bool close_levels(words *w, size_t keep) {
  while (w->levels > keep) {
    const uint8_t byte = w->level[w->levels - 1].byte;
    const pe_term t = close_level(w);
    if (!push_branch(w, pe_rex_cat(w->r, pe_rex_word(w->r, pe_str_of((char[]){(char)byte}, 1)), t)))
      return false;
  }
  return true;
}

static bool add_word(words *w, pe_str before, pe_str word) {
  size_t same = 0;
  while (same < before.len && same < word.len && before.at[same] == word.at[same]) same++;
  if (!close_levels(w, 1 + same)) return false;
  for (size_t i = same; i < word.len; i++)
    if (!push_level(w, (uint8_t)word.at[i])) return false;
  return push_branch(w, PE_TERM_EMPTY);
}

static int by_bytes(const void *a, const void *b) {
  const pe_str x = *(const pe_str *)a, y = *(const pe_str *)b;
  const size_t n = x.len < y.len ? x.len : y.len;
  const int c = n ? memcmp(x.at, y.at, n) : 0;
  return c ? c : (x.len > y.len) - (x.len < y.len);
}

pe_term pe_rex_words(pe_rex *r, const pe_str *word, size_t n) {
  words w = {.r = r};
  pe_term out = PE_TERM_NONE;
  pe_str *sorted = pe_alloc((n + 1) * sizeof *sorted), before = {"", 0};
  bool good = sorted && push_level(&w, 0);
  if (good && n) memcpy(sorted, word, n * sizeof *sorted);
  if (good) qsort(sorted, n, sizeof *sorted, by_bytes);
  for (size_t i = 0; good && r->status == PE_OK && i < n; i++) {
    good = add_word(&w, before, sorted[i]);
    before = sorted[i];
  }
  if (good) good = close_levels(&w, 1);
  if (good) out = close_level(&w);
  pe_free(sorted), pe_free(w.level), pe_free(w.branch);
  return good ? out : pe_rex_fail(r, PE_ENOMEM, "out of memory: words of a grammar");
}
