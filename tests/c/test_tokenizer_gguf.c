/* test_tokenizer_gguf.c - tokenizers in GGUF files written here: every family of patterns, Gemma 4,
 * bad files. */
#include <unistd.h>

#include "check.h"
#include "tokenizer_help.h"
#include "runtime/text/unicode.h"
#include "runtime/utf8.h"

typedef struct gguf {
  pe_buf b;
  uint64_t pairs;
} gguf; /* the pairs; the header is written last */

static void put_u32(pe_buf *b, uint32_t v) {
  for (int i = 0; i < 4; i++) pe_buf_byte(b, (char)(v >> 8 * i), NULL);
}
static void put_u64(pe_buf *b, uint64_t v) {
  put_u32(b, (uint32_t)v), put_u32(b, (uint32_t)(v >> 32));
}
static void put_str(pe_buf *b, const char *s) {
  put_u64(b, strlen(s)), pe_buf_put(b, s, strlen(s), NULL);
}
static void put_key(gguf *g, const char *key, uint32_t type) {
  g->pairs++, put_str(&g->b, key), put_u32(&g->b, type);
}
static void put_text(gguf *g, const char *key, const char *value) {
  put_key(g, key, 8), put_str(&g->b, value);
}
static void put_number(gguf *g, const char *key, uint32_t value) {
  put_key(g, key, 4), put_u32(&g->b, value);
}
static void put_array(gguf *g, const char *key, uint32_t element, uint64_t count) {
  put_key(g, key, 9), put_u32(&g->b, element), put_u64(&g->b, count);
}

/* Writes the file, opens it as a tokenizer, removes it. */
static pe_status open_written(gguf *g, pe_tokenizer **t, pe_error *err) {
  char path[] = "/tmp/perigee-test-XXXXXX";
  int fd = mkstemp(path);
  FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
  CHECK(f != NULL);
  if (!f) return PE_EIO;
  pe_buf head = {0};
  pe_buf_put(&head, "GGUF", 4, NULL), put_u32(&head, 3), put_u64(&head, 0),
      put_u64(&head, g->pairs);
  fwrite(head.data, 1, head.len, f), fwrite(g->b.data, 1, g->b.len, f);
  fclose(f);
  pe_status rc = pe_tokenizer_open(path, t, err);
  remove(path);
  pe_buf_free(&head), pe_buf_free(&g->b);
  *g = (gguf){0};
  return rc;
}

/* The bytes as tokens, "he" and one merge. */
static void put_bytes(gguf *g, const char *pre) {
  put_text(g, "tokenizer.ggml.model", "gpt2");
  if (pre) put_text(g, "tokenizer.ggml.pre", pre);
  put_array(g, "tokenizer.ggml.tokens", 8, 257);
  for (int i = 0; i < 256; i++) {
    char c[5] = {0};
    pe_utf8_put(c, pe_unicode_byte_char((uint8_t)i));
    put_str(&g->b, c);
  }
  put_str(&g->b, "he");
  put_array(g, "tokenizer.ggml.merges", 8, 1);
  put_str(&g->b, "h e");
}

static void test_gguf_families(void) {
  static const char *const name[] = {
      NULL,          "default",      "gpt-2",          "phi-2",      "mpt",
      "olmo",        "jais",         "llama3",         "llama-v3",   "llama-bpe",
      "falcon3",     "lfm2",         "dbrx",           "smaug-bpe",  "chatglm-bpe",
      "glm4",        "qwen2",        "stablelm2",      "hunyuan",    "qwen35",
      "deepseek-v3", "deepseek-llm", "deepseek-coder", "falcon",     "starcoder",
      "refact",      "command-r",    "smollm",         "codeshell",  "exaone",
      "minerva-7b",  "gpt-4o",       "llama4",         "tekken",     "poro-chat",
      "bloom",       "gpt3-finnish", "viking",         "bailingmoe", "seed-coder",
      "kimi-k2",     "exaone-moe",   "jais-2",         "laguna",     "minicpm5",
      "ufakzeka",    "grok-2",       "minimax-m2",     "trillion"};
  static const char text[] = "It's  2024, the na\xc3\xafve caf\xc3\xa9\n\n  "
                             "\xe6\xb5\xb7\xe6\xb5\xaa\xe3\x81\xae 12345! x=1;\t\xf0\x9f\x8c\x8a ";
  for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
    pe_error err = {0};
    pe_tokenizer *t = NULL;
    pe_tokenizer_scratch *s = NULL;
    pe_ids ids = {0};
    pe_buf back = {0};
    gguf g = {0};
    put_bytes(&g, name[i]);
    put_number(&g, "tokenizer.ggml.bos_token_id", 0); /* some families add it */
    CHECK_OK(open_written(&g, &t, &err), err);
    if (t && !pe_tokenizer_scratch_new(t, &s, &err)) {
      pe_encode_options o = {.parse_special = true};
      CHECK_OK(pe_tokenizer_encode(t, s, pe_str_c(text), &o, &ids, &err), err);
      CHECK_OK(pe_tokenizer_decode(t, ids.id, ids.count, false, &back, &err), err);
      pe_buf_byte(&back, 0, NULL);
      CHECK_STR(back.data, text);
      CHECK_INT(ids.count, sizeof text - 2); /* one merge: "the" */
    }
    if (check_failures) printf("    (family %s)\n", name[i] ? name[i] : "none");
    pe_ids_free(&ids);
    pe_buf_free(&back);
    pe_tokenizer_scratch_free(s);
    pe_tokenizer_release(t);
  }
}

static void put_gemma4(gguf *g) {
  static const char *const token[] = {"<bos>",  "a",      "\xe2\x96\x81", "\342\226\201a", "\n",
                                      "\n\n\n", "<0xC3>", "<0xA9>",       "<turn|>"};
  put_text(g, "tokenizer.ggml.model", "gemma4");
  put_array(g, "tokenizer.ggml.tokens", 8, 9);
  for (int i = 0; i < 9; i++) put_str(&g->b, token[i]);
  put_array(g, "tokenizer.ggml.token_type", 5, 9);
  for (int i = 0; i < 9; i++) put_u32(&g->b, i ? 1 : 3);
  put_array(g, "tokenizer.ggml.merges", 8, 1);
  put_str(&g->b, "\xe2\x96\x81 a");
  put_number(g, "tokenizer.ggml.bos_token_id", 0);
}

static void test_gguf_gemma4(void) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  gguf g = {0};
  put_gemma4(&g);
  CHECK_OK(open_written(&g, &t, &err), err);
  if (!t) return;
  EXPECT_IDS(t, "a a  a", NULL, 0, "1 3 2 3");
  EXPECT_IDS(t, "a\n\n\na\n\n", NULL, 0,
             "1 5 1 4 4"); /* a run of line feeds that is a token, and one that is not */
  EXPECT_IDS(t,
             "\xc3\xa9"
             "a",
             NULL, 0, "6 7 1");
  EXPECT_IDS(t, "<bos>a<turn|>", NULL, 0, "0 1 8");
  pe_span user[] = {{0, 7, false}};
  EXPECT_IDS(t, "<turn|>", user, 1, ""); /* not special here, and its characters are not tokens */
  pe_tokenizer_release(t);
}

/* A byte without a token may be written by the character of the same number only in ASCII: U+0080
 * is two other bytes. */
static void test_gguf_bytes_as_characters(void) {
  static const char *const token[] = {"<unk>", "\xc2\x80", "<0xC3>", "\x7f"};
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  gguf g = {0};
  put_text(&g, "tokenizer.ggml.model", "llama");
  put_array(&g, "tokenizer.ggml.tokens", 8, 4);
  for (int i = 0; i < 4; i++) put_str(&g.b, token[i]);
  put_array(&g, "tokenizer.ggml.scores", 6, 4);
  for (int i = 0; i < 4; i++) put_u32(&g.b, 0);
  put_array(&g, "tokenizer.ggml.token_type", 5, 4);
  for (int i = 0; i < 4; i++) put_u32(&g.b, i == 0 ? 2 : i == 2 ? 6 : 1);
  put_number(&g, "tokenizer.ggml.unknown_token_id", 0);
  put_key(&g, "tokenizer.ggml.add_space_prefix", 7), pe_buf_byte(&g.b, 0, NULL);
  put_key(&g, "tokenizer.ggml.add_bos_token", 7), pe_buf_byte(&g.b, 0, NULL);
  CHECK_OK(open_written(&g, &t, &err), err);
  if (!t) return;
  EXPECT_IDS(t, "\xc2\x80\x7f", NULL, 0, "1 3");
  EXPECT_IDS(t, "\xc3\x80", NULL, 0, "2 0");
  pe_tokenizer_release(t);
}

/* Plain tokens that end a turn are special; those that only look like it are not. */
static void test_gguf_end_marks(void) {
  static const char *const mark[] = {
      "</s>",
      "<|im_end|>",
      "[EOS]",
      "_<EOT>",
      "<end_of_utterance>",
      "<\xef\xbd\x9c\145nd\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"};
  static const char *const text[] = {"a",
                                     "</s",
                                     "</s>>",
                                     "<|im_end|",
                                     "<|im_end|>>",
                                     "[EOT",
                                     "<end_of_utterance_of_somebody_else>"};
  enum { MARKS = sizeof mark / sizeof *mark, ALL = MARKS + sizeof text / sizeof *text };
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  gguf g = {0};
  put_text(&g, "tokenizer.ggml.model", "gpt2"), put_text(&g, "tokenizer.ggml.pre", "gpt-2");
  put_array(&g, "tokenizer.ggml.tokens", 8, ALL);
  for (int i = 0; i < ALL; i++) put_str(&g.b, i < MARKS ? mark[i] : text[i - MARKS]);
  put_array(&g, "tokenizer.ggml.token_type", 5, ALL);
  for (int i = 0; i < ALL; i++) put_u32(&g.b, 1);
  put_array(&g, "tokenizer.ggml.merges", 8, 0);
  CHECK_OK(open_written(&g, &t, &err), err);
  for (int32_t id = 0; t && id < ALL; id++) {
    pe_buf seen = {0};
    CHECK_OK(pe_tokenizer_decode(t, &id, 1, true, &seen, &err), err);
    pe_buf_byte(&seen, 0, NULL);
    CHECK_STR(seen.data, id < MARKS ? "" : text[id - MARKS]);
    pe_buf_free(&seen);
  }
  pe_tokenizer_release(t);
}

/* Phi-3 drops white space after its special tokens; its name says that it is one. */
static void test_gguf_phi3(void) {
  static const struct {
    const char *name, *want;
  } cases[] = {{"Phi-3", "2 0"},      {"my phi3", "2 0"}, {"PHI-3.5 mini", "2 0"}, {"phi", "2 3"},
               {"phi-2", "2 3"},      {"Phi-", "2 3"},    {"3 phi", "2 3"},        {"pho-3", "2 3"},
               {"alphi3-mix", "2 0"}, {"", "2 3"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    static const char *const token[] = {"a", "\304\240", "<|end|>", "\304\240a"};
    pe_error err = {0};
    pe_tokenizer *t = NULL;
    gguf g = {0};
    put_text(&g, "general.name", cases[i].name);
    put_text(&g, "tokenizer.ggml.model", "gpt2");
    put_array(&g, "tokenizer.ggml.tokens", 8, 4);
    for (int k = 0; k < 4; k++) put_str(&g.b, token[k]);
    put_array(&g, "tokenizer.ggml.token_type", 5, 4);
    for (int k = 0; k < 4; k++) put_u32(&g.b, k == 2 ? 3 : 1);
    put_array(&g, "tokenizer.ggml.merges", 8, 1), put_str(&g.b, "\xc4\xa0 a");
    CHECK_OK(open_written(&g, &t, &err), err);
    if (!t) continue;
    EXPECT_IDS(t, "<|end|> a", NULL, 0, cases[i].want);
    pe_tokenizer_release(t);
  }
}

static void test_gguf_bad(void) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  gguf g = {0};
  put_text(&g, "general.name", "x");
  CHECK_FAILS(open_written(&g, &t, &err), PE_ENOTFOUND, err, "no tokenizer");
  put_text(&g, "tokenizer.ggml.model", "rwkv");
  CHECK_FAILS(open_written(&g, &t, &err), PE_EUNSUPPORTED, err, "'rwkv'");
  put_bytes(&g, "no-such-pre");
  CHECK_FAILS(open_written(&g, &t, &err), PE_EUNSUPPORTED, err, "'no-such-pre'");
  put_text(&g, "tokenizer.ggml.model", "gpt2");
  CHECK_FAILS(open_written(&g, &t, &err), PE_EFORMAT, err, "tokenizer.ggml.tokens");
  put_bytes(&g, "gpt-2"), put_number(&g, "tokenizer.ggml.bos_token_id", 257);
  CHECK_FAILS(open_written(&g, &t, &err), PE_EFORMAT, err,
              "is 257, but the vocabulary has 257 tokens");
  put_bytes(&g, "llama-bpe");
  CHECK_FAILS(open_written(&g, &t, &err), PE_EFORMAT, err, "begin token");
  put_bytes(&g, "gpt-2"), put_array(&g, "tokenizer.ggml.token_type", 5, 1), put_u32(&g.b, 1);
  CHECK_FAILS(open_written(&g, &t, &err), PE_EFORMAT, err,
              "1 elements, but the vocabulary has 257 tokens");
  put_text(&g, "tokenizer.ggml.model", "llama"), put_array(&g, "tokenizer.ggml.tokens", 8, 1),
      put_str(&g.b, "a");
  CHECK_FAILS(open_written(&g, &t, &err), PE_EFORMAT, err, "tokenizer.ggml.scores");
  put_text(&g, "tokenizer.ggml.model", "gpt2"), put_array(&g, "tokenizer.ggml.tokens", 8, 1),
      put_str(&g.b, "a");
  put_array(&g, "tokenizer.ggml.merges", 8, 1), put_str(&g.b, "a q");
  CHECK_FAILS(open_written(&g, &t, &err), PE_EFORMAT, err, "'a q'");
  put_text(&g, "tokenizer.ggml.model", "gpt2"), put_array(&g, "tokenizer.ggml.tokens", 8, 2),
      put_str(&g.b, ""), put_str(&g.b, "<s\xff>");
  CHECK_FAILS(open_written(&g, &t, &err), PE_EFORMAT, err,
              "token 1 is not UTF-8: byte 0xff at offset 2 of 4");
  put_text(&g, "tokenizer.ggml.model", "gpt2"), put_array(&g, "tokenizer.ggml.tokens", 5, 1),
      put_u32(&g.b, 1);
  CHECK_FAILS(open_written(&g, &t, &err), PE_EFORMAT, err, "must be an array of strings");
  CHECK(!t);
}

static const check_test tests[] = {{"families", test_gguf_families},
                                   {"gemma4", test_gguf_gemma4},
                                   {"bytes as characters", test_gguf_bytes_as_characters},
                                   {"end marks", test_gguf_end_marks},
                                   {"phi3", test_gguf_phi3},
                                   {"bad", test_gguf_bad}};
CHECK_MAIN("tokenizer_gguf", tests)
