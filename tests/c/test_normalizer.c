/* test_normalizer.c - every kind of normalizer against the library's results, origins, bad
 * input. */
#include "check.h"
#include "sha256.h"

#include "runtime/text/normalizer.h"
#include "runtime/utf8.h"

static const struct {
  const char *json, *text;
  size_t len;
  const char *want;
} cases[] = {
    {"{\042type\042:\042NFC\042}",
     "e\314\201a\314\243\314\202 \341\204\200\341\205\241\341\206\250 \342\204\253\315\204 \303\251"
     "\314\243 \340\245\230 \360\236\244\200",
     38,
     "\303\251\341\272\255 \352\260\201 \303\205\314\210\314\201 \341\272\271\314\201 "
     "\340\244\225\340"
     "\244\274 \360\236\244\200"},
    {"{\042type\042:\042NFD\042}", "\303\251\341\273\231\352\260\201\340\245\230 \314\210\314\243x",
     17,
     "e\314\201o\314\243\314\202\341\204\200\341\205\241\341\206\250\340\244\225\340\244\274 "
     "\314\243"
     "\314\210x"},
    {"{\042type\042:\042NFKC\042}",
     "\357\254\201\357\274\241\342\221\240\343\213\277 \302\275\357\267\272\343\200\200", 21,
     "fiA1\343\213\277 1\342\201\2042\330\265\331\204\331\211 \330\247\331\204\331\204\331\207 \330"
     "\271\331\204\331\212\331\207 \331\210\330\263\331\204\331\205 "},
    {"{\042type\042:\042NFKD\042}", "\357\254\201\341\272\233\314\243 \357\275\266\357\276\236", 15,
     "fis\314\243\314\207 \343\202\253\343\202\231"},
    {"{\042type\042:\042NFC\042}", "a\340\260\274\314\201\314\225\314\200\326\256b", 13,
     "a\340\260\274\326\256\314\201\314\200\314\225b"},
    {"{\042type\042:\042NFD\042}", "\360\226\204\241\360\221\216\203", 8,
     "\360\226\204\241\360\221\216\203"},
    {"{\042type\042:\042Lowercase\042}", "\304\260\316\243\303\211 \341\272\236Z", 11,
     "i\314\207\317\203\303\251 \303\237z"},
    {"{\042type\042:\042StripAccents\042}", "e\314\201\340\244\203\342\203\235\314\201", 11, "e"},
    {"{\042type\042:\042Strip\042,\042strip_left\042:true,\042strip_right\042:false}",
     "\343\200\200\011 a b \302\205", 11, "a b \302\205"},
    {"{\042type\042:\042Strip\042,\042strip_left\042:false,\042strip_right\042:true}",
     "\343\200\200\011 a b \302\205", 11, "\343\200\200\011 a b"},
    {"{\042type\042:\042Strip\042,\042strip_left\042:true,\042strip_right\042:true}", " \012 ", 3,
     ""},
    {"{\042type\042:\042Replace\042,\042pattern\042:{\042String\042:\042 \042},\042content\042:\042"
     "\342\226\201\042}",
     " a  b", 5, "\342\226\201a\342\226\201\342\226\201b"},
    {"{\042type\042:\042Replace\042,\042pattern\042:{\042Regex\042:\042\134\134s{2,}\042},"
     "\042content"
     "\042:\042 \042}",
     "a \011 b c", 7, "a b c"},
    {"{\042type\042:\042Replace\042,\042pattern\042:{\042String\042:\042\042},\042content\042:\042-"
     "\042}",
     "a\303\251", 3, "-a-\303\251-"},
    {"{\042type\042:\042Replace\042,\042pattern\042:{\042Regex\042:\042x*\042},\042content\042:"
     "\042-"
     "\042}",
     "axb", 3, "-a-b-"},
    {"{\042type\042:\042Replace\042,\042pattern\042:{\042String\042:\042aa\042},\042content\042:"
     "\042a"
     "\042}",
     "aaaaa", 5, "aaa"},
    {"{\042type\042:\042Prepend\042,\042prepend\042:\042\342\226\201\042}", "ab", 2,
     "\342\226\201ab"},
    {"{\042type\042:\042Prepend\042,\042prepend\042:\042\342\226\201\042}", "", 0, ""},
    {"{\042type\042:\042Nmt\042}", "a\001\011b\342\200\213\357\273\277\342\226\201\177c", 15,
     "a b   c"},
    {"{\042type\042:\042ByteLevel\042}", " \303\251\012", 4, "\304\240\303\203\302\251\304\212"},
    {"{\042type\042:\042BertNormalizer\042,\042clean_text\042:true,\042handle_chinese_chars\042:"
     "true,"
     "\042strip_accents\042:null,\042lowercase\042:true}",
     "H\303\251llo\000\011\344\270\255W\357\277\275\302\255\304\260", 19, "hello  \344\270\255 wi"},
    {"{\042type\042:\042BertNormalizer\042,\042clean_text\042:false,\042handle_chinese_chars\042:"
     "false"
     ",\042strip_accents\042:true,\042lowercase\042:false}",
     "H\303\251llo\011\344\270\255\340\244\203", 13, "Hello\011\344\270\255\340\244\203"},
    {"{\042type\042:\042BertNormalizer\042,\042clean_text\042:false,\042handle_chinese_chars\042:"
     "false"
     ",\042strip_accents\042:false,\042lowercase\042:true}",
     "H\303\211", 3, "h\303\251"},
    {"{\042type\042:\042Precompiled\042,\042precompiled_charsmap\042:"
     "\042AAQAAAAEAAAAAAAAAAAAgAIAAIAEA"
     "ACABQAAgAcAAIAJAACACi0AAAAAAAAAAAAAEwAAgA05AAAAAAAAAAAAABUAAIAAAAAAFwAAgAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACCVAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAGGVAQAAAAAAAAAAAAAAAABljQEAAAAAAAAAAABihQEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAACFYAIAhBwCAAAAAAAAAAAAAAAAAAAAAACABQIAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAJVRAgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAApJwCAAAAAAAAAAAAAAAAAKGBAgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAA4bQDAOCgAwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "AAA"
     "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
     "BSA"
     "E4AAFgAWQBFRUVFRUVFRUUAawBnAHYA\042}",
     "abc\015\012\015a\314\201 a\314\201\314\201\314\201e\340\244\225\340\245\215\340\244\225 "
     "\341\204"
     "\200\341\205\241\314\201",
     36, "XbcRRXX\314\201\314\201\314\201EEEEEEEEEk\340\245\215kgv\314\201"},
    {"{\042type\042:\042Sequence\042,\042normalizers\042:[{\042type\042:\042NFKC\042},{"
     "\042type\042:"
     "\042Strip\042,\042strip_left\042:true,\042strip_right\042:true},{\042type\042:"
     "\042Replace\042,"
     "\042pattern\042:{\042String\042:\042A\042},\042content\042:\042\303\211\303\211\042},{"
     "\042type"
     "\042:\042Prepend\042,\042prepend\042:\042X\042},{\042type\042:\042Lowercase\042}]}",
     " \357\274\241 ", 5, "x\303\251\303\251"},
    {"{\042type\042:\042Sequence\042,\042normalizers\042:[]}", "A", 1, "A"},
};

static pe_status read_json(const char *json, pe_normalizer **n, pe_error *err) {
  pe_arena a = {0};
  pe_json_value *v = NULL;
  *n = NULL;
  pe_status rc = pe_json_parse(json, strlen(json), &a, &v, err);
  if (!rc) rc = pe_normalizer_read(v, n, err);
  pe_arena_free(&a);
  return rc;
}

/* Origins are starts of characters, and the text is the same with and without them. */
static void check_origins(const pe_normalizer *n, pe_str text, const pe_buf *want) {
  pe_buf out = {0}, origin = {0};
  pe_error err = {0};
  CHECK_OK(pe_normalizer_apply(n, text, &out, &origin, &err), err);
  CHECK_INT(origin.len, out.len * sizeof(uint32_t));
  CHECK(out.len == want->len && (!out.len || !memcmp(out.data, want->data, out.len)));
  for (size_t i = 0; i < out.len; i++) {
    uint32_t o;
    memcpy(&o, origin.data + i * sizeof o, sizeof o);
    CHECK(o <= text.len && (o == text.len || ((uint8_t)text.at[o] & 0xc0) != 0x80));
  }
  pe_buf_free(&out);
  pe_buf_free(&origin);
}

static void kinds(void) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_normalizer *n;
    pe_error err = {0};
    pe_buf out = {0};
    pe_str text = pe_str_of(cases[i].text, cases[i].len);
    CHECK_OK(read_json(cases[i].json, &n, &err), err);
    CHECK_OK(pe_normalizer_apply(n, text, &out, NULL, &err), err);
    if (pe_normalizer_unchanged(n, text))
      CHECK(out.len == text.len && (!out.len || !memcmp(out.data, text.at, out.len)));
    check_origins(n, text, &out);
    pe_buf_byte(&out, 0, NULL);
    if (strcmp(out.data, cases[i].want)) printf("    %.100s\n", cases[i].json);
    CHECK_STR(out.data, cases[i].want);
    pe_buf_free(&out);
    pe_normalizer_free(n);
  }
}

static void origins(void) {
  static const struct {
    const char *json, *text;
    uint32_t want[16];
    int n;
  } table[] = {
      {"{\"type\":\"NFC\"}", "ae\xcc\x81z", {0, 1, 1, 4}, 4},
      {"{\"type\":\"NFD\"}", "\xc3\xa9z", {0, 0, 0, 2}, 4},
      {"{\"type\":\"Prepend\",\"prepend\":\"__\"}", "ab", {0, 0, 0, 1}, 4},
      {"{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", "  ab ", {2, 3}, 2},
      {"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}",
       "a b",
       {0, 1, 1, 1, 2},
       5},
      {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\"},{\"type\":\"Prepend\","
       "\"prepend\":\"x\"},"
       "{\"type\":\"NFD\"},{\"type\":\"Lowercase\"}]}",
       " \xc3\x89",
       {1, 1, 1, 1},
       4},
      {"null", "\xc3\xa9", {0, 0}, 2},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    pe_normalizer *n;
    pe_error err = {0};
    pe_buf out = {0}, origin = {0};
    CHECK_OK(read_json(table[i].json, &n, &err), err);
    CHECK_OK(pe_normalizer_apply(n, pe_str_c(table[i].text), &out, &origin, &err), err);
    CHECK_INT(origin.len / sizeof(uint32_t), table[i].n);
    for (int k = 0; k < table[i].n && (size_t)k < origin.len / sizeof(uint32_t); k++) {
      uint32_t o;
      memcpy(&o, origin.data + (size_t)k * sizeof o, sizeof o);
      CHECK_INT(o, table[i].want[k]);
    }
    pe_buf_free(&out);
    pe_buf_free(&origin);
    pe_normalizer_free(n);
  }
}

static void unchanged(void) {
  static const struct {
    const char *json, *text;
    bool want;
  } table[] = {
      {"null", "anything", true},
      {"{\"type\":\"NFC\"}", "caf\xc3\xa9 \xe4\xb8\xad\xea\xb0\x81", true},
      {"{\"type\":\"NFC\"}", "e\xcc\x81", false},
      {"{\"type\":\"NFKC\"}", "\xef\xac\x81", false},
      {"{\"type\":\"NFD\"}", "\xc3\xa9", false},
      {"{\"type\":\"Lowercase\"}", "abc", true},
      {"{\"type\":\"Lowercase\"}", "aBc", false},
      {"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}", "ab", true},
      {"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}", "a b", false},
      {"{\"type\":\"Prepend\",\"prepend\":\"x\"}", "", true},
      {"{\"type\":\"Strip\"}", "a b", true},
      {"{\"type\":\"Strip\"}", "a ", false},
      {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}",
       "abc", true},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    pe_normalizer *n;
    pe_error err = {0};
    CHECK_OK(read_json(table[i].json, &n, &err), err);
    CHECK_INT(pe_normalizer_unchanged(n, pe_str_c(table[i].text)), table[i].want);
    pe_normalizer_free(n);
  }
}

static void bad_input(void) {
  static const struct {
    const char *json;
    pe_status code;
    const char *part;
  } bad[] = {
      {"{\"type\":\"Foo\"}", PE_EUNSUPPORTED, "unknown type 'Foo'"},
      {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Bar\"}]}",
       PE_EUNSUPPORTED, "'Bar'"},
      {"{\"type\":\"Sequence\"}", PE_EFORMAT, "normalizers"},
      {"{\"type\":\"Prepend\"}", PE_EFORMAT, "\"prepend\""},
      {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}", PE_EFORMAT, "\"content\""},
      {"{\"type\":\"Replace\",\"content\":\"a\"}", PE_EFORMAT, "\"pattern\""},
      {"{\"type\":\"Replace\",\"content\":\"a\",\"pattern\":{\"Regex\":\"(\"}}", PE_EUNSUPPORTED,
       "Replace: pattern"},
      {"{\"type\":\"Replace\",\"content\":\"a\",\"pattern\":{\"Regex\":1}}", PE_EFORMAT,
       "must be a string"},
      {"{\"type\":\"Precompiled\"}", PE_EFORMAT, "precompiled_charsmap"},
      {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}", PE_EFORMAT, "0 bytes"},
      {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!!\"}", PE_EFORMAT, "base64"},
      {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}", PE_EFORMAT,
       "4294967295 bytes does not fit in 0 bytes"},
      {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAAAP8A\"}", PE_EFORMAT, "not UTF-8"},
      {"[]", PE_EFORMAT, "must be an object"},
      {"{}", PE_EUNSUPPORTED, "unknown type"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    pe_normalizer *n;
    pe_error err = {0};
    CHECK_FAILS(read_json(bad[i].json, &n, &err), bad[i].code, err, bad[i].part);
    CHECK(!n);
  }
}

/* Every character alone: how many change, and the digest of all results joined by newlines. */
static void every_character(void) {
  static const struct {
    const char *json;
    int changed;
    const char *digest;
  } table[] = {
      {"{\"type\":\"NFC\"}", 1120,
       "900f12a0fd5b368b56e972d9dcc9cc0584951930f9d9724d079e44f36f332796"},
      {"{\"type\":\"NFD\"}", 13232,
       "0f306678f8b597b273d752158cd1c5f40f6b07fe3372976bf381c423c09cad8a"},
      {"{\"type\":\"NFKC\"}", 4794,
       "7c9f53e49d0c962ea84af637125ab1a5707be0e11cf3da8b130bda9f1700e226"},
      {"{\"type\":\"NFKD\"}", 16894,
       "945876b4e2d7863d75cbcf08f08d9d1a6056d7d7bef4a99d9a76496298ca7221"},
      {"{\"type\":\"Lowercase\"}", 1488,
       "9dbe491e02df24162a6ab7a165198f7ac804161d6f563724d6a65ba82f734a0f"},
      {"{\"type\":\"Nmt\"}", 45,
       "ae8ed83d75c1a882444a8849e042ed2843444bb285c420bf85b5f63269bc5765"},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    pe_normalizer *n;
    pe_error err = {0};
    pe_buf out = {0};
    int changed = 0;
    char digest[65];
    CHECK_OK(read_json(table[i].json, &n, &err), err);
    for (int32_t cp = 0; cp < 0x110000; cp++) {
      char text[4];
      if (cp >= 0xd800 && cp < 0xe000) continue;
      if (cp) CHECK_OK(pe_buf_byte(&out, '\n', &err), err);
      size_t len = (size_t)pe_utf8_put(text, cp), at = out.len;
      CHECK_OK(pe_normalizer_apply(n, pe_str_of(text, len), &out, NULL, &err), err);
      changed += out.len - at != len || memcmp(out.data + at, text, len);
    }
    sha256(out.data, out.len, digest);
    CHECK_INT(changed, table[i].changed);
    CHECK_STR(digest, table[i].digest);
    pe_buf_free(&out);
    pe_normalizer_free(n);
  }
}

/* A trie with random offsets is walked without leaving it. */
static void wild_map(void) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  uint32_t seed = 1;
  for (int round = 0; round < 200; round++) {
    char json[512] = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"QAAA";
    size_t len = strlen(json);
    for (int i = 0; i < 100; i++)
      seed = seed * 1664525u + 1013904223u, json[len++] = digits[seed >> 26];
    memcpy(json + len, "\"}", 3);
    pe_normalizer *n;
    pe_error err = {0};
    pe_buf out = {0};
    if (read_json(json, &n, &err)) continue;
    for (int c = 1; c < 128; c++) {
      char text[3] = {(char)c, 'a', 0};
      CHECK_OK(pe_normalizer_apply(n, pe_str_c(text), &out, NULL, &err), err);
    }
    CHECK_INT(pe_utf8_valid(out.data, out.len), out.len);
    pe_buf_free(&out);
    pe_normalizer_free(n);
  }
}

/* A million marks in the worst order: sorted by counting. */
static void many_marks(void) {
  pe_normalizer *n;
  pe_error err = {0};
  pe_buf text = {0}, out = {0};
  enum { MARKS = 500000 };
  pe_buf_byte(&text, 'q', NULL);
  for (int i = 0; i < MARKS; i++)
    pe_buf_put(&text, i % 2 ? "\xcc\xa3" : "\xcc\x88", 2, NULL); /* 230, 220, ... */
  CHECK_OK(read_json("{\"type\":\"NFC\"}", &n, &err), err);
  CHECK_OK(pe_normalizer_apply(n, pe_str_of(text.data, text.len), &out, NULL, &err), err);
  CHECK_INT(out.len, text.len);
  CHECK(out.len == text.len && !memcmp(out.data + 1, "\xcc\xa3\xcc\xa3", 4) &&
        !memcmp(out.data + out.len - 2, "\xcc\x88", 2));
  pe_normalizer_free(n);
  pe_buf_free(&text);
  pe_buf_free(&out);
}

/* Fail each allocation in turn: an error, no leak. */
static void out_of_memory(void) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int64_t k = 1;; k++) {
      pe_normalizer *n = NULL;
      pe_error err = {0};
      pe_buf out = {0}, origin = {0};
      pe_alloc_fail_at(k);
      pe_status rc = read_json(cases[i].json, &n, &err);
      if (!rc)
        rc = pe_normalizer_apply(n, pe_str_of(cases[i].text, cases[i].len), &out, &origin, &err);
      bool all = pe_alloc_count() < k;
      pe_alloc_fail_at(0);
      if (rc) CHECK_FAILS(rc, PE_ENOMEM, err, "memory");
      pe_buf_free(&out);
      pe_buf_free(&origin);
      pe_normalizer_free(n);
      if (all) break;
    }
}

static pe_status read_many(int n, pe_error *err) {
  char json[4096] = "{\"type\":\"Sequence\",\"normalizers\":[";
  pe_normalizer *made = NULL;
  for (int i = 0; i < n; i++) strcat(json, i ? ",{\"type\":\"NFC\"}" : "{\"type\":\"NFC\"}");
  strcat(json, "]}");
  pe_status rc = read_json(json, &made, err);
  pe_normalizer_free(made);
  return rc;
}

static void many_parts(void) {
  pe_error err = {0};
  CHECK_OK(read_many(64, &err), err);
  CHECK_FAILS(read_many(65, &err), PE_ELIMIT, err,
              "\"normalizers\" has 65 entries, at most 64 are possible");
}

static const check_test tests[] = {
    {"kinds", kinds},
    {"origins", origins},
    {"unchanged", unchanged},
    {"bad", bad_input},
    {"every character", every_character},
    {"wild map", wild_map},
    {"marks", many_marks},
    {"memory", out_of_memory},
    {"many", many_parts},
};
CHECK_MAIN("normalizer", tests)
