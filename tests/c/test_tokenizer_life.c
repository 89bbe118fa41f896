/* test_tokenizer_life.c - tokenizers under stress: failing allocations, long words, many threads,
 * shared references. */
#include <pthread.h>

#include "check.h"
#include "runtime/buffer.h"
#include "runtime/text/detokenizer.h"

/* Loads, encodes and decodes while the n-th allocation fails. True if nothing failed. */
static bool survive(const pe_buffer *file, int64_t n) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  pe_tokenizer_scratch *s = NULL;
  pe_ids ids = {.offsets = n & 1};
  pe_buf text = {0};
  pe_encode_options o = {.add_special = true, .parse_special = true};
  pe_alloc_fail_at(n);
  pe_status rc = pe_tokenizer_read_json((const char *)file->data, file->size, &t, &err);
  if (!rc) rc = pe_tokenizer_scratch_new(t, &s, &err);
  if (!rc)
    rc = pe_tokenizer_encode(t, s,
                             pe_str_c("The Caf\xc3\xa9 counted 31 waves, \xe6\xb5\xb7\xe6\xb5\xaa "
                                      "<s>and</s> more \xf0\x9f\x8c\x8a."),
                             &o, &ids, &err);
  if (!rc) rc = pe_tokenizer_decode(t, ids.id, ids.count, false, &text, &err);
  pe_alloc_fail_at(0);
  if (rc && (rc != PE_ENOMEM || !err.text[0]))
    check_failures++, printf("    allocation %" PRId64 ": %s \"%s\", not nomem\n", n,
                             pe_status_name(rc), err.text);
  pe_ids_free(&ids);
  pe_buf_free(&text);
  pe_tokenizer_scratch_free(s);
  pe_tokenizer_release(t);
  return !rc;
}

static void test_out_of_memory(void) {
  static const char *const name[] = {"bpe-qwen2",      "spm-llama",         "unigram-precompiled",
                                     "wordpiece-bert", "added-token-flags", "decoder-strip-replace",
                                     "decoder-ctc",    "bpe-word-suffix"};
  for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
    char path[200];
    pe_error err = {0};
    pe_buffer *file = NULL;
    snprintf(path, sizeof path, "tests/tokenizers/%s/tokenizer.json", name[i]);
    CHECK_OK(pe_buffer_map(path, &file, &err), err);
    if (!file) continue;
    int64_t live = pe_alloc_live(), n = 1;
    for (; n < 20000 && !survive(file, n); n++)
      if (pe_alloc_live() != live) {
        check_failures++, printf("    %s, allocation %" PRId64 ": %" PRId64 " leaked\n", name[i], n,
                                 pe_alloc_live() - live);
        break;
      }
    CHECK(n > 20 && n < 20000);
    pe_buffer_release(file);
  }
}

static void check_long(const char *folder, const char *unit, size_t size) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  pe_tokenizer_scratch *s = NULL;
  pe_ids ids = {0};
  pe_buf text = {0}, back = {0};
  pe_encode_options o = {.parse_special = true};
  while (text.len < size) pe_buf_put(&text, unit, strlen(unit), NULL);
  CHECK_OK(pe_tokenizer_open(folder, &t, &err), err);
  if (t && !pe_tokenizer_scratch_new(t, &s, &err)) {
    CHECK_OK(pe_tokenizer_encode(t, s, pe_str_of(text.data, text.len), &o, &ids, &err), err);
    CHECK_OK(pe_tokenizer_decode(t, ids.id, ids.count, false, &back, &err), err);
    CHECK_INT(back.len, text.len);
    CHECK(back.len == text.len && !memcmp(back.data, text.data, text.len));
  }
  pe_buf_free(&text), pe_buf_free(&back);
  pe_ids_free(&ids);
  pe_tokenizer_scratch_free(s);
  pe_tokenizer_release(t);
}

static void test_long_words(void) {
  check_long("tests/tokenizers/bpe-qwen2", "thecountedwaves", 1 << 20);
  check_long("tests/tokenizers/bpe-qwen2", "a", 1 << 20);
  check_long("tests/tokenizers/bpe-gpt2", "\xe6\xb5\xb7", 1 << 19);
  check_long("tests/tokenizers/spm-gemma", "counting", 1 << 20);
  check_long("tests/tokenizers/spm-gemma", " ", 1 << 18);
}

/* merge_short and merge_long agree: on a word alone, and on a long text that is cut the same
 * way. */
static void test_short_and_long_agree(void) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  pe_tokenizer_scratch *s = NULL;
  pe_encode_options o = {.parse_special = true};
  CHECK_OK(pe_tokenizer_open("tests/tokenizers/spm-gemma", &t, &err), err);
  if (!t) return;
  CHECK_OK(pe_tokenizer_scratch_new(t, &s, &err), err);
  pe_ids one = {0}, many = {0};
  pe_str word = pe_str_c(" the keeper counted waves"); /* pieces begin at the spaces */
  pe_buf text = {0};
  for (int i = 0; i < 50; i++) pe_buf_put(&text, word.at, word.len, NULL);
  CHECK_OK(pe_tokenizer_encode(t, s, word, &o, &one, &err), err);
  CHECK_OK(pe_tokenizer_encode(t, s, pe_str_of(text.data, text.len), &o, &many, &err), err);
  CHECK_INT(many.count, one.count * 50);
  for (size_t i = 0; i < many.count && one.count; i++) CHECK(many.id[i] == one.id[i % one.count]);
  pe_ids_free(&one), pe_ids_free(&many);
  pe_buf_free(&text);
  pe_tokenizer_scratch_free(s);
  pe_tokenizer_release(t);
}

typedef struct work {
  const pe_tokenizer *t;
  size_t count;
  pe_status rc;
} work;

static void *encode_many(void *context) {
  work *w = context;
  pe_error err = {0};
  pe_tokenizer_scratch *s = NULL;
  pe_ids ids = {0};
  pe_encode_options o = {.parse_special = true};
  w->rc = pe_tokenizer_scratch_new(w->t, &s, &err);
  for (int i = 0; !w->rc && i < 200; i++)
    w->rc = pe_tokenizer_encode(w->t, s, pe_str_c("The keeper counted 31 waves at caf\xc3\xa9."),
                                &o, &ids, &err);
  w->count = ids.count;
  pe_ids_free(&ids);
  pe_tokenizer_scratch_free(s);
  return NULL;
}

static void test_threads(void) {
  static const char *const name[] = {"bpe-qwen2", "unigram-byte-fallback", "wordpiece-bert"};
  for (int k = 0; k < 3; k++) {
    char path[200];
    pe_error err = {0};
    pe_tokenizer *t = NULL;
    pthread_t thread[4];
    work w[4];
    snprintf(path, sizeof path, "tests/tokenizers/%s", name[k]);
    CHECK_OK(pe_tokenizer_open(path, &t, &err), err);
    for (int i = 0; i < 4; i++)
      w[i] = (work){.t = t}, pthread_create(&thread[i], NULL, encode_many, &w[i]);
    for (int i = 0; i < 4; i++) {
      pthread_join(thread[i], NULL);
      CHECK_INT(w[i].rc, 0);
      CHECK_INT(w[i].count, w[0].count);
    }
    CHECK(w[0].count > 0);
    pe_tokenizer_release(t);
  }
}

/* A detokenizer keeps its tokenizer alive. */
static void test_references(void) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  pe_detokenizer *d = NULL;
  pe_buf text = {0};
  CHECK(!pe_tokenizer_retain(NULL));
  pe_tokenizer_release(NULL);
  CHECK_OK(pe_tokenizer_open("tests/tokenizers/bpe-qwen2", &t, &err), err);
  if (!t) return;
  int32_t id = pe_tokenizer_id(t, pe_str_c("a"));
  pe_tokenizer_release(pe_tokenizer_retain(t));
  CHECK_OK(pe_detokenizer_new(t, false, &d, &err), err);
  pe_tokenizer_release(t);
  CHECK_OK(pe_detokenizer_push(d, id, &text, &err), err);
  CHECK(text.len == 1 && text.data[0] == 'a');
  pe_buf_free(&text);
  pe_detokenizer_free(d);
}

static const check_test tests[] = {{"out_of_memory", test_out_of_memory},
                                   {"long_words", test_long_words},
                                   {"short_and_long_agree", test_short_and_long_agree},
                                   {"threads", test_threads},
                                   {"references", test_references}};
CHECK_MAIN("tokenizer_life", tests)
