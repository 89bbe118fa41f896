/* names.c - see names.h. */
#include "runtime/cache/names.h"

#include <string.h>

#include "runtime/hash.h"

typedef struct entry {
  struct entry *next; /* of the same bucket */
  pe_name name;
  int32_t word;
  int64_t refs;
} entry;

enum { BUCKETS = 1024 }; /* a chain has one entry until a thousand pictures are cached */

struct pe_names {
  size_t count;
  entry *bucket[BUCKETS];
};

pe_status pe_names_open(pe_names **out, pe_error *err) {
  *out = pe_calloc(1, sizeof **out);
  return *out ? PE_OK : pe_nomem(err, "names of pictures");
}

void pe_names_close(pe_names *t) {
  if (!t) return;
  for (int i = 0; i < BUCKETS; i++)
    for (entry *e = t->bucket[i], *next; e; e = next) {
      next = e->next;
      pe_free(e);
    }
  pe_free(t);
}

size_t pe_names_count(const pe_names *t) { return t->count; }

static entry **link_of(const pe_names *t, int32_t word) {
  entry **at = (entry **)&t->bucket[pe_hash_u64((uint32_t)word) % BUCKETS];
  while (*at && (*at)->word != word) at = &(*at)->next;
  return at;
}

const pe_name *pe_names_find(const pe_names *t, int32_t word) {
  const entry *e = *link_of(t, word);
  return e ? &e->name : NULL;
}

static bool equal(const pe_name *a, const pe_name *b) { return !memcmp(a, b, sizeof *a); }

/* Adds a reference. False: the word stands for another name. */
static bool take(pe_names *t, int32_t word, const pe_name *name, pe_status *rc, pe_error *err) {
  entry **at = link_of(t, word), *e = *at;
  if (e && !equal(&e->name, name)) return false;
  if (!e) {
    if (!(e = pe_calloc(1, sizeof *e))) {
      *rc = pe_nomem(err, "name of a picture");
      return true;
    }
    e->name = *name, e->word = word;
    *at = e, t->count++;
  }
  e->refs++;
  return true;
}

static int32_t word_of(const pe_name *name, uint32_t try) {
  uint32_t bits = 0;
  for (int i = 0; i < 4; i++)
    bits |= (uint32_t)(uint8_t)(name->hash[i] ^ name->layout[i]) << (8 * i);
  return (int32_t)(1u << 31 | (name->whole ? 1u << 30 : 0) | ((bits + try) & ((1u << 30) - 1)));
}

pe_status pe_names_put(pe_names *t, const pe_name *name, int32_t *word, pe_error *err) {
  pe_status rc = PE_OK;
  for (uint32_t try = 0;; try++)
    if (take(t, *word = word_of(name, try), name, &rc, err)) return rc;
}

pe_status pe_names_claim(pe_names *t, int32_t word, const pe_name *name, pe_error *err) {
  pe_status rc = PE_OK;
  bool whole = ((uint32_t)word & 1u << 30) != 0;
  if (word >= 0 || whole != (name->whole != 0) || !take(t, word, name, &rc, err))
    return pe_fail(err, PE_ENOTFOUND, "word %d stands for another picture", word);
  return rc;
}

static void release(pe_names *t, int32_t word) {
  entry **at = link_of(t, word), *e = *at;
  if (!e || --e->refs > 0) return;
  *at = e->next, t->count--;
  pe_free(e);
}

void pe_names_release(pe_names *t, int32_t word) { release(t, word); }

static bool starts(const int32_t *word, int32_t i) {
  return pe_word_is_name(word[i]) && (!i || word[i] != word[i - 1]);
}

void pe_names_retain_all(pe_names *t, const int32_t *word, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    if (starts(word, i)) (*link_of(t, word[i]))->refs++;
}

void pe_names_release_all(pe_names *t, const int32_t *word, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    if (starts(word, i)) release(t, word[i]);
}

/* ---- in files -------------------------------------------------------------------------------- */

static void put(uint8_t *at, uint32_t v) {
  for (int i = 0; i < 4; i++) at[i] = (uint8_t)(v >> (8 * i));
}

static int32_t get(const uint8_t *at) {
  uint32_t v = 0;
  for (int i = 0; i < 4; i++) v |= (uint32_t)at[i] << (8 * i);
  return (int32_t)v;
}

void pe_name_write(int32_t word, const pe_name *name, uint8_t out[PE_NAME_BYTES]) {
  put(out, (uint32_t)word);
  memcpy(out + 4, name->hash, 32), memcpy(out + 36, name->layout, 16);
  put(out + 52, (uint32_t)name->tokens), put(out + 56, (uint32_t)name->whole);
}

int32_t pe_name_read(const uint8_t bytes[PE_NAME_BYTES], pe_name *out) {
  memcpy(out->hash, bytes + 4, 32), memcpy(out->layout, bytes + 36, 16);
  out->tokens = get(bytes + 52), out->whole = get(bytes + 56);
  return get(bytes);
}
