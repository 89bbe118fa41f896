/* test_detokenizer.c - streamed decoding: whole characters, nothing held back too long, pieces that
 * join to the whole. */
#include <sys/stat.h>

#include "check.h"
#include "runtime/buffer.h"
#include "runtime/text/detokenizer.h"
#include "runtime/json.h"
#include "runtime/utf8.h"

typedef struct steps {
  int all, late, broken, wrong;
} steps;

/* One stream of stream.json; `safe` is the number of bytes that are certain after each id. */
static void check_stream(pe_tokenizer *t, const pe_json_value *c, steps *n) {
  pe_error err = {0};
  pe_detokenizer *d = NULL;
  pe_buf text = {0};
  const pe_json_value *id = pe_json_get(c, "ids")->child, *safe = pe_json_get(c, "safe")->child;
  const pe_json_value *other = pe_json_get(c, "text_utf8"),
                      *want = other ? other : pe_json_get(c, "text");
  CHECK_OK(pe_detokenizer_new(t, pe_json_bool(pe_json_get(c, "skip_special"), false), &d, &err),
           err);
  for (; d && id && safe; id = id->next, safe = safe->next) {
    size_t before = text.len;
    CHECK_OK(pe_detokenizer_push(d, (int32_t)id->integer, &text, &err), err);
    n->all++;
    n->broken +=
        pe_utf8_valid(text.data ? text.data + before : "", text.len - before) != text.len - before;
    /* with text_utf8, `safe` counts bytes of the library's reading */
    n->late += !other && (int64_t)text.len < safe->integer;
    n->wrong +=
        text.len > want->str.len || (text.len && memcmp(text.data, want->str.at, text.len) != 0);
  }
  if (d) CHECK_OK(pe_detokenizer_finish(d, &text, &err), err);
  n->wrong += !pe_str_same(pe_str_of(text.data, text.len), want->str);
  pe_buf_free(&text);
  pe_detokenizer_free(d);
}

static void check_file(const char *folder, steps *n) {
  char path[300];
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  pe_buffer *file = NULL;
  pe_arena a = {0};
  pe_json_value *v = NULL;
  snprintf(path, sizeof path, "%s/stream.json", folder);
  CHECK_OK(pe_tokenizer_open(folder, &t, &err), err);
  CHECK_OK(pe_buffer_map(path, &file, &err), err);
  if (t && file) CHECK_OK(pe_json_parse((const char *)file->data, file->size, &a, &v, &err), err);
  for (const pe_json_value *c = v ? v->child : NULL; c; c = c->next) check_stream(t, c, n);
  pe_arena_free(&a);
  pe_buffer_release(file);
  pe_tokenizer_release(t);
}

static void check_steps(const steps *n, int least) {
  CHECK(n->all >= least);
  CHECK_INT(n->late, 0);
  CHECK_INT(n->broken, 0);
  CHECK_INT(n->wrong, 0);
}

static void test_streams(void) {
  static const char *const name[] = {"bpe-qwen2", "metaspace-first", "spm-llama",
                                     "unigram-byte-fallback", "wordpiece-bert"};
  steps n = {0};
  for (int i = 0; i < 5; i++) {
    char folder[200];
    snprintf(folder, sizeof folder, "tests/tokenizers/%s", name[i]);
    check_file(folder, &n);
  }
  check_steps(&n, 2000);
}

static void test_shared_streams(void) {
  static const char *const name[] = {"all_minilm", "deepseek_v3", "gemma2",
                                     "llama3",     "mistral_v3",  "qwen3"};
  struct stat st;
  if (stat("../shared/cases/tokenizers", &st))
    CHECK_SKIP("../shared/cases/tokenizers is missing (6 vocabularies with streams)");
  steps n = {0};
  for (int i = 0; i < 6; i++) {
    char folder[200];
    snprintf(folder, sizeof folder, "../shared/cases/tokenizers/%s", name[i]);
    check_file(folder, &n);
  }
  check_steps(&n, 2000);
}

/* ---- single decoders ----------------------------------------------------------------------- */

/* A vocabulary of these tokens, ids 0, 1, 2, ...; expects the pieces after each id, separated by
 * '|'. */
static void expect_pieces(const char *decoder, const char *tokens, const char *want, int line) {
  pe_error err = {0};
  pe_buf json = {0}, got = {0};
  pe_tokenizer *t = NULL;
  pe_detokenizer *d = NULL;
  int n = 0;
  pe_buf_printf(&json, NULL, "{\"decoder\":%s,\"model\":{\"type\":\"Unigram\",\"vocab\":[",
                decoder);
  for (const char *at = tokens; *at; n++) {
    size_t len = strcspn(at, ",");
    pe_buf_printf(&json, NULL, "%s[\"%.*s\",0]", n ? "," : "", (int)len, at);
    at += len + (at[len] == ',');
  }
  pe_buf_printf(&json, NULL, "]}}");
  CHECK_OK(pe_tokenizer_read_json(json.data, json.len, &t, &err), err);
  if (t) CHECK_OK(pe_detokenizer_new(t, false, &d, &err), err);
  for (int round = 0; d && round < 2; round++) { /* the second time with a used detokenizer */
    got.len = 0;
    for (int i = 0; i < n; i++) {
      CHECK_OK(pe_detokenizer_push(d, i, &got, &err), err);
      CHECK_OK(pe_detokenizer_push(d, i + 1000, &got, &err), err); /* unknown */
      pe_buf_byte(&got, '|', NULL);
    }
    CHECK_OK(pe_detokenizer_finish(d, &got, &err), err);
    pe_buf_byte(&got, 0, NULL);
    if (strcmp(got.data, want))
      check_failures++,
          printf("    line %d: pieces are \"%s\", not \"%s\"\n", line, got.data, want);
  }
  pe_buf_free(&json), pe_buf_free(&got);
  pe_detokenizer_free(d);
  pe_tokenizer_release(t);
}
#define EXPECT_PIECES(decoder, tokens, want) expect_pieces(decoder, tokens, want, __LINE__)

static void test_decoders(void) {
  EXPECT_PIECES("null", "a,b,c", "a| b| c|");
  EXPECT_PIECES("{\"type\":\"Fuse\"}", "a,b", "a|b|");
  EXPECT_PIECES("{\"type\":\"ByteLevel\"}",
                "a,\xc4\xa0"
                "b,\xc3\xa3,\xc4\xb2,\xc4\xac",
                "a| b|||\xe3\x90\x8a|");
  EXPECT_PIECES("{\"type\":\"ByteLevel\"}", "\xc3\xa3,a,\xc3\xa3",
                "|\xef\xbf\xbd"
                "a||\xef\xbf\xbd");
  EXPECT_PIECES("{\"type\":\"ByteFallback\"}", "<0xE3>,<0x81>,<0x82>,a,<0xE3>,b",
                "|||\xe3\x81\x82"
                "a||\xef\xbf\xbd"
                "b|");
  EXPECT_PIECES("{\"type\":\"ByteFallback\"}", "<0x41>,<0xFF>,<0x41>,<0x41>",
                "|\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd|\xef\xbf\xbd|");
  EXPECT_PIECES(
      "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}",
      "<0xE3>,<0x81>,<0x82>,<0xE3>,<0x41>,b",
      "||\xe3\x81\x82||\xef\xbf\xbd"
      "A|b|");
  EXPECT_PIECES("{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}", "lo,w</w>,tide</w>",
                "lo|w| tide|");
  EXPECT_PIECES("{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}", "do,##n,',t,.",
                "do|n| '| t|.|");
  EXPECT_PIECES(
      "{\"type\":\"CTC\",\"pad_token\":\"_\",\"word_delimiter_token\":\"/\",\"cleanup\":true}",
      "h,h1,_,/,l", "h|h1|| |l|");
  EXPECT_PIECES(
      "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}",
      "\xe2\x96\x81"
      "a,\xe2\x96\x81"
      "b",
      "a| b|");
  EXPECT_PIECES(
      "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"never\"}",
      "\xe2\x96\x81"
      "a",
      " a|");
}

static void test_chains(void) {
  EXPECT_PIECES("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\","
                "\"content\":\" \",\"start\":1,\"stop\":2}]}",
                " , a, , , , b, ", "| a||| |   b||"); /* two spaces at the end are held back */
  EXPECT_PIECES("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\","
                "\"pattern\":{\"String\":\"aab\"},\"content\":\"X\"}]}",
                "a,a,a,b,a", "||a|X||a"); /* half a match is held back */
  EXPECT_PIECES("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"Regex\":"
                "\"x+\"},\"content\":\"-\"},{\"type\":\"Fuse\"}]}",
                "axxb,xc", "a-b|-c|");
  EXPECT_PIECES(
      "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":"
      "true},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" b\"},\"content\":\"_\"}]}",
      "a,b,##c", "a|_|c|");
}

static const check_test tests[] = {{"streams", test_streams},
                                   {"shared_streams", test_shared_streams},
                                   {"decoders", test_decoders},
                                   {"chains", test_chains}};
CHECK_MAIN("detokenizer", tests)
