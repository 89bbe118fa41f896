/* tokenizer.c - the speed of loading and encoding with a tokenizer, on one thread.
 *
 *   tokenizer TOKENIZER TEXT [NAME]   one row: NAME, load ms, cold MB/s, warm MB/s, tokens
 *   tokenizer --text BYTES            writes mixed text: prose, code, CJK, Cyrillic, Arabic, emoji
 *    tokenizer --words TOKENIZER       time of one word of 1 KB … 1 MB: about tenfold with each
 * row */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/buffer.h"
#include "runtime/text/tokenizer.h"
#include "runtime/utf8.h"

static uint64_t state = 88172645463325252u;

static uint32_t draw(uint32_t n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)((state >> 32) * n >> 32);
}

/* Small numbers are more likely than large ones, like the ranks of words in a text. */
static uint32_t draw_rare(uint32_t n) { return draw(draw(draw(n) + 1) + 1); }

static void put_char(pe_buf *b, int32_t cp) {
  char c[4];
  pe_buf_put(b, c, (size_t)pe_utf8_put(c, cp), NULL);
}

static void put_word(pe_buf *b) {
  static const char *const head[] = {
      "the",  "of",    "to",    "and",   "in",     "was",    "keep", "water", "light",
      "hous", "count", "read",  "form",  "under",  "comput", "wave", "tide",  "moon",
      "writ", "trans", "inter", "order", "govern", "market", "anim", "nation"};
  static const char *const tail[] = {"",   "",     "",     "s",   "ed",   "ing",   "er",  "ation",
                                     "ly", "ment", "able", "ful", "ness", "ities", "ism", "ology"};
  const char *h = head[draw_rare(26)], *t = tail[draw_rare(16)];
  pe_buf_printf(b, NULL, "%s%s%s", draw(12) ? "" : "un", h, t);
}

static void put_prose(pe_buf *b) {
  for (uint32_t i = 0, n = 8 + draw(20); i < n; i++) {
    put_word(b);
    pe_buf_printf(b, NULL, "%s", i + 1 == n ? ".\n" : !draw(9) ? ", " : " ");
  }
}

static void put_code(pe_buf *b) {
  pe_buf_printf(
      b, NULL,
      "  for (int i%u = 0; i%u < n->count; i%u++) {\n\tif (table[i%u] != 0x%x) return -1; /* ",
      draw(9), draw(9), draw(9), draw(9), draw(65536));
  put_word(b);
  pe_buf_byte(b, '_', NULL);
  put_word(b);
  pe_buf_printf(b, NULL, " */\n  }\n");
}

static void put_script(pe_buf *b, int32_t from, uint32_t count, uint32_t word, const char *space,
                       const char *stop) {
  for (uint32_t i = 0, n = 4 + draw(12); i < n; i++) {
    for (uint32_t k = 0, m = 1 + draw(word); k < m; k++)
      put_char(b, from + (int32_t)draw_rare(count));
    pe_buf_printf(b, NULL, "%s", i + 1 == n ? stop : space);
  }
}

static void make_text(pe_buf *b, size_t size) {
  while (b->len < size) {
    switch (draw(10)) {
    case 0:
    case 1:
    case 2: put_prose(b); break;
    case 3:
    case 4: put_code(b); break;
    case 5: put_script(b, 0x4e00, 4000, 10, "\xef\xbc\x8c", "\xe3\x80\x82\n"); break;
    case 6: put_script(b, 0x430, 32, 9, " ", ".\n"); break;
    case 7: put_script(b, 0x627, 36, 7, " ", "\xd8\x9f\n"); break;
    case 8: put_script(b, 0x1f600, 80, 3, " ", "!\n"); break;
    default:
      pe_buf_printf(b, NULL, "%u.%02u, %u/%u-%04u;\n", draw(100000), draw(100), draw(32), draw(13),
                    draw(3000));
    }
  }
}

static double ms(int64_t from) { return (double)(pe_clock_ns() - from) / 1e6; }

static int fail(const pe_error *err) {
  fprintf(stderr, "tokenizer: %s\n", err->text);
  return 1;
}

static int bench(const char *path, const char *text, const char *name) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  pe_tokenizer_scratch *s = NULL;
  pe_buffer *file = NULL;
  pe_ids ids = {0};
  pe_encode_options o = {.parse_special = true};
  double load = 1e9, encode[3];
  for (int i = 0; i < 3; i++) { /* the best of three */
    pe_tokenizer_release(t);
    t = NULL;
    int64_t from = pe_clock_ns();
    if (pe_tokenizer_open(path, &t, &err)) return fail(&err);
    if (ms(from) < load) load = ms(from);
  }
  if (pe_buffer_map(text, &file, &err) || pe_tokenizer_scratch_new(t, &s, &err)) return fail(&err);
  for (int i = 0; i < 3; i++) {
    ids.count = 0;
    int64_t from = pe_clock_ns();
    if (pe_tokenizer_encode(t, s, pe_str_of((const char *)file->data, file->size), &o, &ids, &err))
      return fail(&err);
    encode[i] = (double)file->size / 1e3 / ms(from);
  }
  double warm = encode[1] > encode[2] ? encode[1] : encode[2];
  printf("%-14s %8.1f %10.1f %10.1f %10zu\n", name, load, encode[0], warm, ids.count);
  pe_ids_free(&ids);
  pe_buffer_release(file);
  pe_tokenizer_scratch_free(s);
  pe_tokenizer_release(t);
  return 0;
}

static int words(const char *path) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  pe_tokenizer_scratch *s = NULL;
  pe_encode_options o = {.parse_special = true};
  if (pe_tokenizer_open(path, &t, &err) || pe_tokenizer_scratch_new(t, &s, &err)) return fail(&err);
  for (size_t size = 1000; size <= 1000000; size *= 10) {
    pe_buf b = {0};
    pe_ids ids = {0};
    while (b.len < size) put_word(&b);
    int64_t from = pe_clock_ns();
    if (pe_tokenizer_encode(t, s, pe_str_of(b.data, size), &o, &ids, &err)) return fail(&err);
    printf("one word of %7zu bytes %10.2f ms %8zu tokens\n", size, ms(from), ids.count);
    pe_buf_free(&b);
    pe_ids_free(&ids);
  }
  pe_tokenizer_scratch_free(s);
  pe_tokenizer_release(t);
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "--text")) {
    pe_buf b = {0};
    make_text(&b, strtoull(argv[2], NULL, 10));
    fwrite(b.data, 1, b.len, stdout);
    pe_buf_free(&b);
    return 0;
  }
  if (argc == 3 && !strcmp(argv[1], "--words")) return words(argv[2]);
  if (argc == 3 || argc == 4) return bench(argv[1], argv[2], argc == 4 ? argv[3] : argv[1]);
  fprintf(stderr, "usage: tokenizer TOKENIZER TEXT [NAME] | --text BYTES | --words TOKENIZER\n");
  return 2;
}
