/* Random ids through small tokenizers of each decoder: pieces are UTF-8 and join to the whole. */
#include <stdlib.h>
#include <string.h>

#include "runtime/text/detokenizer.h"
#include "runtime/utf8.h"

static const char *const names[] = {
    "bpe-qwen2",       "spm-llama",   "metaspace-first", "wordpiece-bert",
    "bpe-word-suffix", "decoder-ctc", "decoder-none",    "decoder-strip-replace"};
enum { COUNT = sizeof names / sizeof *names };
static pe_tokenizer *tokenizers[COUNT];

/* Before the first input, so that the driver does not report leaks. */
__attribute__((constructor)) static void open_all(void) {
  for (int i = 0; i < COUNT; i++) {
    char path[100] = "tests/tokenizers/";
    strcat(path, names[i]);
    if (pe_tokenizer_open(path, &tokenizers[i], NULL)) abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size) return 0;
  pe_tokenizer *t = tokenizers[data[0] % COUNT];
  bool skip = data[0] & 0x80;
  size_t n = (size - 1) / 2;
  int32_t *id = calloc(n + 1, sizeof *id);
  for (size_t i = 0; i < n; i++) id[i] = (data[1 + 2 * i] | data[2 + 2 * i] << 8) % 1500 - 2;
  pe_buf whole = {0}, joined = {0};
  pe_detokenizer *d = NULL;
  if (pe_tokenizer_decode(t, id, n, skip, &whole, NULL) || pe_detokenizer_new(t, skip, &d, NULL))
    abort();
  for (size_t i = 0; i <= n; i++) {
    size_t before = joined.len;
    if (i < n ? pe_detokenizer_push(d, id[i], &joined, NULL)
              : pe_detokenizer_finish(d, &joined, NULL))
      abort();
    if (joined.len > before &&
        pe_utf8_valid(joined.data + before, joined.len - before) != joined.len - before)
      abort();
  }
  if (whole.len != joined.len || (whole.len && memcmp(whole.data, joined.data, whole.len))) abort();
  pe_detokenizer_free(d);
  pe_buf_free(&whole), pe_buf_free(&joined);
  free(id);
  return 0;
}
