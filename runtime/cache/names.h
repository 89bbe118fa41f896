/* names.h - words that stand for pictures in the tokens of a cache.
 *
 * The rows of a picture have no tokens of their own: the ids at their places are the same for every
 * picture. Caches therefore store a word instead, a negative number that stands for the content of
 * the picture (a cryptographic hash) and for how it was laid out. Everything that compares tokens
 * (the prefix cache, its files, saved sequences) then compares pictures as well, and nothing in the
 * tree of prefixes knows about them.
 *
 *     tokens     5  17  150   W   W   W   W  151   9        W = -2^31 | whole << 30 | 30 bits
 *
 * A word has 30 bits of the hash, so most pictures get the same word in every process. This table
 * knows the whole name behind each word in use and gives another word to a name whose own is taken:
 * equal words are equal pictures within one table, whatever a client makes up. Files carry the
 * names of their words (pe_names_claim).
 *
 * A word lives while somebody holds it: a request, a sequence, a node of the prefix cache.
 * Threads: one at a time, the engine's. */
#ifndef PE_NAMES_H
#define PE_NAMES_H

#include "runtime/base.h"

typedef struct pe_name { /* compared as bytes */
  uint8_t hash[32];      /* of the content and of everything done to it before the tower */
  uint8_t layout[16];    /* hash of its positions, relative to its first row */
  int32_t tokens;        /* rows */
  int32_t whole;         /* 1: its rows see each other, so no prefix ends inside */
} pe_name;

enum { PE_NAME_BYTES = 60 }; /* in a file: the word, then the name, little-endian */

typedef struct pe_names pe_names;

pe_status pe_names_open(pe_names **out, pe_error *err); /* gives */
void pe_names_close(pe_names *t);                       /* takes; NULL is fine */
size_t pe_names_count(const pe_names *t);               /* words in use */

/* Gives a reference to the word of a name. */
pe_status pe_names_put(pe_names *t, const pe_name *name, int32_t *word, pe_error *err);
/* The same for a word that was read from a file. PE_ENOTFOUND: here it stands for another name. */
pe_status pe_names_claim(pe_names *t, int32_t word, const pe_name *name, pe_error *err);
const pe_name *pe_names_find(const pe_names *t, int32_t word); /* NULL: not in use */
void pe_names_release(pe_names *t, int32_t word);

/* One more reference, or one fewer, for every run of equal words in a list. The words must be in
 * use. */
void pe_names_retain_all(pe_names *t, const int32_t *word, int32_t count);
void pe_names_release_all(pe_names *t, const int32_t *word, int32_t count);

void pe_name_write(int32_t word, const pe_name *name, uint8_t out[PE_NAME_BYTES]);
int32_t pe_name_read(const uint8_t bytes[PE_NAME_BYTES], pe_name *out); /* returns the word */

/* Tokens are ids or words. */
static inline bool pe_word_is_name(int32_t word) { return word < 0; }
/* Position n is inside a picture that must stay whole: no cache resumes there. */
static inline bool pe_word_joined(const int32_t *word, int32_t n) {
  return n > 0 && word[n] < 0 && word[n] == word[n - 1] && ((uint32_t)word[n] & 1u << 30);
}

#endif
