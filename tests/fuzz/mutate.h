/* mutate.h - the corpus of driver.c and the mutations that make new inputs of it. */
#ifndef MUTATE_H
#define MUTATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEEDS = 4096, INPUT_ROOM = 1 << 20 };

typedef struct {
  uint8_t *data;
  size_t size;
} fuzz_seed;

static fuzz_seed seeds[MAX_SEEDS];
static int seed_count;
static uint8_t input[INPUT_ROOM];
static size_t input_size;
static uint64_t rng;

/* Words of the formats that targets read: JSON, tokenizer.json, safetensors, GGUF. */
static const char *const words[] = {"{}",
                                    "[]",
                                    "null",
                                    "true",
                                    "false",
                                    "\"\"",
                                    "\\u0000",
                                    "\\ud83d\\ude00",
                                    "\\ud800",
                                    "1e999",
                                    "-0",
                                    "\"dtype\":\"F32\"",
                                    "\"BF16\"",
                                    "\"F16\"",
                                    "\"I64\"",
                                    "\"shape\":[",
                                    "\"data_offsets\":[",
                                    "__metadata__",
                                    "\"model\":",
                                    "\"vocab\":{",
                                    "\"merges\":[",
                                    "\"type\":\"BPE\"",
                                    "\"Unigram\"",
                                    "\"WordPiece\"",
                                    "\"added_tokens\":[",
                                    "\"special\":true",
                                    "\"normalizer\":",
                                    "\"NFKC\"",
                                    "\"pre_tokenizer\":",
                                    "\"ByteLevel\"",
                                    "\"Metaspace\"",
                                    "\"Split\"",
                                    "\"Regex\":\"",
                                    "\"post_processor\":",
                                    "\"TemplateProcessing\"",
                                    "\"decoder\":",
                                    "\"Sequence\"",
                                    "\"byte_fallback\":true",
                                    "\"unk_id\":",
                                    "<0x41>",
                                    "\xe2\x96\x81",
                                    "\xc4\xa0",
                                    "GGUF",
                                    "general.alignment",
                                    "tokenizer.ggml.tokens",
                                    "tokenizer.ggml.merges",
                                    "tokenizer.ggml.scores",
                                    "(?:a|b)*",
                                    "\\p{L}+",
                                    "[^\\s]",
                                    "(?i:'s)",
                                    "\xf0\x9f\x8c\x8a",
                                    "\xed\xa0\x80"};
static const uint64_t edge_numbers[] = {0,          1,          2,          4,           7,
                                        8,          0x7f,       0x80,       0xff,        0x100,
                                        0x7fff,     0xffff,     0x7fffffff, 0x80000000,  0xffffffff,
                                        1ull << 32, INT64_MAX,  UINT64_MAX, 1ull << 63,  1ull << 62,
                                        1ull << 61, 1ull << 40, 0xfffffff8, ~0ull - 0x7f};
static const char marks[] = "{}[]\",:\\u0-.eE\xc3\xed\xf0\x80\xbf\xff\xe2\x96\x81 \n";

static inline uint32_t below(size_t n) {
  rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
  return n ? (uint32_t)((rng >> 16) % n) : 0;
}

static inline bool add_seed(void) {
  if (seed_count == MAX_SEEDS) return false;
  fuzz_seed *s = &seeds[seed_count++];
  s->data = malloc(input_size ? input_size : 1);
  s->size = input_size;
  memcpy(s->data, input, input_size);
  return true;
}

static inline void free_seeds(void) {
  for (int i = 0; i < seed_count; i++) free(seeds[i].data);
}

/* Replaces `old` bytes at `at` by `size` others, which must not lie in the input. */
static inline void replace(size_t at, size_t old, const void *bytes, size_t size) {
  if (at > input_size) at = input_size;
  if (old > input_size - at) old = input_size - at;
  if (input_size - old + size > INPUT_ROOM) return;
  memmove(input + at + size, input + at + old, input_size - at - old);
  if (size) memcpy(input + at, bytes, size);
  input_size += size - old;
}

/* Repeats a part, a few times or very often. */
static inline void repeat(size_t at) {
  uint8_t part[64];
  size_t n = 1 + below(sizeof part), times = below(8) ? 1 + below(4) : 1 + below(300);
  if (n > input_size - at) n = input_size - at;
  memcpy(part, input + at, n);
  while (times--) replace(at, 0, part, n);
}

/* A decimal number becomes another. */
static inline void renumber(size_t at) {
  char text[24];
  while (at < input_size && (input[at] < '0' || input[at] > '9')) at++;
  size_t end = at;
  while (end < input_size && input[end] >= '0' && input[end] <= '9') end++;
  uint64_t n = edge_numbers[below(sizeof edge_numbers / sizeof *edge_numbers)];
  int size = 0;
  do text[size++] = (char)('0' + n % 10), n /= 10;
  while (n);
  for (int i = 0; i < size / 2; i++) {
    char c = text[i];
    text[i] = text[size - 1 - i];
    text[size - 1 - i] = c;
  }
  if (end > at) replace(at, end - at, text, (size_t)size);
}

/* The end, or a part, of another member of the corpus. */
static inline void splice(size_t at, bool whole) {
  const fuzz_seed *s = &seeds[below((size_t)seed_count)];
  size_t from = below(s->size), n = s->size - from;
  if (!whole && n > 64) n = 1 + below(64);
  replace(at, whole ? input_size : 0, s->data + from, n);
}

static inline void change(void) {
  size_t at = below(input_size + 1), room = input_size - at, n = 1 + below(16);
  uint64_t edge = edge_numbers[below(sizeof edge_numbers / sizeof *edge_numbers)];
  const char *word = words[below(sizeof words / sizeof *words)];
  uint8_t bytes[16];
  switch (below(13)) {
  case 0:
    if (room) input[at] ^= (uint8_t)(1u << below(8));
    break;
  case 1:
    if (room) input[at] = (uint8_t)below(256);
    break;
  case 2:
    if (room) input[at] = (uint8_t)marks[below(sizeof marks - 1)];
    break;
  case 3: memcpy(input + at, &edge, room < 8 ? room : below(2) ? 8 : 4); break;
  case 4: /* a small step of a length */
    if (room) input[at] = (uint8_t)(input[at] + below(33) - 16);
    break;
  case 5: input_size = at; break;
  case 6: replace(at, 1 + below(below(input_size) + 1), NULL, 0); break;
  case 7:
    for (size_t i = 0; i < n; i++)
      bytes[i] = (uint8_t)(below(2) ? marks[below(sizeof marks - 1)] : (char)below(256));
    replace(at, 0, bytes, n);
    break;
  case 8: repeat(at); break;
  case 9: renumber(at); break;
  case 10: replace(at, below(2) ? strlen(word) : 0, word, strlen(word)); break;
  default: splice(at, below(4) == 0);
  }
}

/* A member of the corpus with one to eight changes. */
static inline void mutate(void) {
  const fuzz_seed *s = &seeds[below((size_t)seed_count)];
  memcpy(input, s->data, input_size = s->size);
  for (uint32_t n = 1 + below(below(2) ? 2 : 8); n--;) change();
}

#endif
