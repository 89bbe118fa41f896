/* test_json.c - JSON: what is read, what is refused and where, the tree, allocation failure. */
#include "check.h"
#include "runtime/json.h"

/* Writes the tokens of a text as one line: {k"a"i1} ... or the error. */
static void tokens(const char *text, size_t len, char *out, size_t room) {
  pe_json r;
  pe_json_token t = {0};
  pe_error err;
  size_t n = 0;
  pe_json_open(&r, text, len, 0);
  for (;;) {
    if (pe_json_next(&r, &t, &err)) {
      snprintf(out + n, room - n, "!%s", err.text);
      break;
    }
    if (t.type == PE_JSON_END) break;
    switch (t.type) {
    case PE_JSON_OBJECT: n += (size_t)snprintf(out + n, room - n, "{"); break;
    case PE_JSON_OBJECT_END: n += (size_t)snprintf(out + n, room - n, "}"); break;
    case PE_JSON_ARRAY: n += (size_t)snprintf(out + n, room - n, "["); break;
    case PE_JSON_ARRAY_END: n += (size_t)snprintf(out + n, room - n, "]"); break;
    case PE_JSON_KEY:
      n += (size_t)snprintf(out + n, room - n, "k%.*s:", (int)t.str.len, t.str.at);
      break;
    case PE_JSON_STRING:
      n += (size_t)snprintf(out + n, room - n, "s%.*s,", (int)t.str.len, t.str.at);
      break;
    case PE_JSON_INT: n += (size_t)snprintf(out + n, room - n, "i%" PRId64 ",", t.integer); break;
    case PE_JSON_FLOAT: n += (size_t)snprintf(out + n, room - n, "f%g,", t.number); break;
    default: n += (size_t)snprintf(out + n, room - n, "%c", pe_json_type_name(t.type)[0]);
    }
    if (n + 100 > room) break;
    out[n] = 0;
  }
  if (!n && out[0] != '!') out[0] = 0;
  pe_json_close(&r);
}

static void reads_tokens(void) {
  static const char *const cases[][2] = {
      {"{\"b\": 1, \"a\": [true, false, null]}", "{kb:i1,ka:[tfn]}"},
      {" [ ] ", "[]"},
      {"{}", "{}"},
      {"\"\"", "s,"},
      {"-0", "i0,"},
      {"0.5e1", "f5,"},
      {"1E400", "finf,"},
      {"9223372036854775807", "i9223372036854775807,"},
      {"-9223372036854775808", "i-9223372036854775808,"},
      {"9223372036854775808", "f9.22337e+18,"},
      {"[NaN,Infinity,-Infinity]", "[fnan,finf,f-inf,]"},
      {"\"a\\n\\u00e9\\ud83c\\udf19\\/\"", "sa\n\xc3\xa9\xf0\x9f\x8c\x99/,"},
      {"\xef\xbb\xbf[1]", "[i1,]"},
      {"\"0123456789\\\"abcdefghij\xc3\xa9klmnopqrstuvwxyz\"",
       "s0123456789\"abcdefghij\xc3\xa9klmnopqrstuvwxyz,"},
      /* refused */
      {"", "!line 1, column 1: expected a value, got the end of the text"},
      {"[1,]", "[i1,!line 1, column 4: expected a value, got ']'"},
      {"{\"a\":1,}", "{ka:i1,!line 1, column 8: expected a key, got '}'"},
      {"{\"a\" 1}", "{!line 1, column 6: expected ':', got '1'"},
      {"[1 2]", "[i1,!line 1, column 4: expected ',' or ']', got '2'"},
      {"1 2", "i1,!line 1, column 3: expected the end, got '2'"},
      {"01", "!line 1, column 1: expected a number, got '0'"},
      {"1.", "!line 1, column 1: expected a number, got '1'"},
      {"-", "!line 1, column 1: expected a number, got '-'"},
      {"\"a\n\"", "!line 1, column 3: control character 0x0a in a string"},
      {"\"\\ud800\"", "!line 1, column 4: lone surrogate \\ud800"},
      {"\"\\ud800\\u0041\"", "!line 1, column 4: lone surrogate \\ud800"},
      {"\"\\udc00\"", "!line 1, column 4: lone surrogate \\udc00"},
      {"\"\\x\"", "!line 1, column 3: expected an escape, got 'x'"},
      {"\"\xff\"", "!line 1, column 2: broken UTF-8 (byte 0xff)"},
      {"\"abc", "!line 1, column 5: text ends inside a string"},
      {"[tru]", "[!line 1, column 2: expected a value, got 't'"},
      {"{\"a\":\n  \x01}", "{ka:!line 2, column 3: expected a value, got byte 0x01"},
      {"]", "!line 1, column 1: expected a value, got ']'"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char out[2000] = "";
    tokens(cases[i][0], strlen(cases[i][0]), out, sizeof out);
    CHECK_STR(out, cases[i][1]);
  }
}

/* Bytes after the end of a text do not belong to it: every beginning of a text reads as its copy
 * does, whatever follows. */
static void ends_where_it_ends(void) {
  static const char *const texts[] = {
      "-120.55e+123",   "[1,22,{\"a\":\"b\\u00e9\\ud83c\\udf19\"}]",
      "  truefalse",    "nullnull  ",
      "\"a\\n\\\\\"\"", "0123456789",
  };
  static const char after[] = {'0', '"', '}', ' ', '\\', 'e', '.'};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    for (size_t len = 0; len <= strlen(texts[i]); len++)
      for (size_t k = 0; k < sizeof after; k++) {
        char text[64], got[512] = "", want[512] = "";
        memset(text, after[k], sizeof text);
        memcpy(text, texts[i], len);
        tokens(text, len, got, sizeof got);
        memset(text + len, 0, sizeof text - len);
        tokens(text, len, want, sizeof want);
        CHECK_STR(got, want);
      }
}

static void takes_nul(void) {
  pe_arena a = {0};
  pe_json_value *v;
  pe_error err;
  CHECK_OK(pe_json_parse("{\"a\\u0000b\": \"\\u0000\"}", 22, &a, &v, &err), err);
  CHECK_INT(v->child->key.len, 3);
  CHECK(!memcmp(v->child->key.at, "a\0b", 3));
  CHECK_INT(v->child->str.len, 1);
  pe_arena_free(&a);
}

static void depth_is_limited(void) {
  char text[4096], out[8192] = "";
  memset(text, '[', sizeof text);
  tokens(text, sizeof text, out, sizeof out);
  CHECK(strstr(out, "nested deeper than 512 levels"));
  memset(text, '[', 512), memset(text + 512, ']', 512);
  pe_arena a = {0};
  pe_json_value *v;
  pe_error err;
  CHECK_OK(pe_json_parse(text, 1024, &a, &v, &err), err);
  pe_arena_free(&a);
  char number[6000];
  memset(number, '1', sizeof number);
  tokens(number, sizeof number, out, sizeof out);
  CHECK_STR(out, "!line 1, column 1: number of 6000 characters is too long, the limit is 4300");
}

static void size_is_limited(void) {
  pe_json r;
  pe_json_token t;
  pe_error err;
  pe_json_open(&r, "[1]", (size_t)PE_JSON_MAX_SIZE + 1, 0); /* refused before it is read */
  CHECK_FAILS(pe_json_next(&r, &t, &err), PE_ELIMIT, err,
              "text of 1073741825 bytes is too long, the limit is 1073741824");
  pe_json_close(&r);
}

static void trees_keep_order(void) {
  static const char text[] =
      "{\"z\": 1, \"a\": {\"x\": [10, 2.5, \"s\", true]}, \"z\": 3, \"n\": null}";
  pe_arena a = {0};
  pe_json_value *v;
  pe_error err;
  CHECK_OK(pe_json_parse(text, sizeof text - 1, &a, &v, &err), err);
  CHECK_INT(v->count, 4);
  CHECK(pe_str_eq(v->child->key, "z") && pe_str_eq(v->child->next->key, "a"));
  CHECK_INT(pe_json_int(pe_json_get(v, "z"), 0), 3);
  const pe_json_value *x = pe_json_get(pe_json_get(v, "a"), "x");
  CHECK_INT(x->count, 4);
  CHECK_INT(pe_json_int(pe_json_at(x, 0), 0), 10);
  CHECK_NEAR(pe_json_at(x, 1)->number, 2.5, 0);
  CHECK_STR(pe_json_str(pe_json_at(x, 2), "").at, "s");
  CHECK(pe_json_bool(pe_json_at(x, 3), false));
  CHECK(!pe_json_at(x, 4) && !pe_json_get(v, "q") && pe_json_int(pe_json_get(v, "n"), 7) == 7);
  pe_arena_free(&a);
}

static void skips_values(void) {
  pe_json r;
  pe_json_token t;
  pe_error err;
  static const char text[] = "{\"big\": [1, {\"x\": [[]]}, 2], \"want\": 5}";
  pe_json_open(&r, text, sizeof text - 1, 0);
  CHECK_OK(pe_json_expect(&r, PE_JSON_OBJECT, "file", &t, &err), err);
  CHECK_OK(pe_json_next(&r, &t, &err), err);
  CHECK_OK(pe_json_next(&r, &t, &err), err);
  CHECK_OK(pe_json_skip(&r, &t, &err), err);
  CHECK_OK(pe_json_expect(&r, PE_JSON_KEY, "key", &t, &err), err);
  CHECK(pe_str_eq(t.str, "want"));
  CHECK_FAILS(pe_json_expect(&r, PE_JSON_STRING, "want", &t, &err), PE_EFORMAT, err,
              "want must be string, got integer");
  pe_json_close(&r);
}

static void every_allocation_may_fail(void) {
  static const char text[] =
      "{\"a\\n\": [\"b\\t\", 1, {\"c\": null}], \"long\": "
      "\"\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\"}";
  for (int n = 1;; n++) {
    pe_arena a = {0};
    pe_json_value *v;
    pe_error err;
    int64_t live = pe_alloc_live();
    pe_alloc_fail_at(n);
    pe_status rc = pe_json_parse(text, sizeof text - 1, &a, &v, &err);
    pe_alloc_fail_at(0);
    pe_arena_free(&a);
    CHECK_INT(pe_alloc_live(), live);
    if (!rc) {
      CHECK(n > 2);
      break;
    }
    CHECK_INT(rc, PE_ENOMEM);
    if (n > 100) break;
  }
}

static void writes_as_python(void) {
  static const struct {
    double d;
    const char *text;
  } cases[] = {{0, "0.0"},
               {-0.0, "-0.0"},
               {1, "1.0"},
               {0.1, "0.1"},
               {-2.5, "-2.5"},
               {1e15, "1000000000000000.0"},
               {1e16, "1e+16"},
               {1.5e16, "1.5e+16"},
               {123456789012345680.0, "1.2345678901234568e+17"},
               {0.0001, "0.0001"},
               {0.00001, "1e-05"},
               {0.00012345, "0.00012345"},
               {5e-324, "5e-324"},
               {1.7976931348623157e308, "1.7976931348623157e+308"},
               {0.30000000000000004, "0.30000000000000004"},
               {2.0 / 3, "0.6666666666666666"},
               {100, "100.0"},
               {123.456, "123.456"},
               {INFINITY, "Infinity"},
               {-INFINITY, "-Infinity"},
               {NAN, "NaN"},
               {9007199254740993.0, "9007199254740992.0"}};
  pe_error err;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_buf b = {0};
    CHECK_OK(pe_json_put_double(&b, cases[i].d, &err), err);
    CHECK_OK(pe_buf_byte(&b, 0, &err), err);
    CHECK_STR(b.data, cases[i].text);
    pe_buf_free(&b);
  }
  pe_buf b = {0};
  CHECK_OK(
      pe_json_put_str(&b, pe_str_of("a\"\\\n\x01\x7f\xc3\xa9\xf0\x9f\x8c\x99/\0", 14), false, &err),
      err);
  CHECK_OK(pe_json_put_str(&b, pe_str_c("\x7f\xc3\xa9\xf0\x9f\x8c\x99"), true, &err), err);
  CHECK_OK(pe_buf_byte(&b, 0, &err), err);
  CHECK_STR(b.data, "\"a\\\"\\\\\\n\\u0001\x7f\xc3\xa9\xf0\x9f\x8c\x99/"
                    "\\u0000\"\"\\u007f\\u00e9\\ud83c\\udf19\"");
  CHECK_FAILS(pe_json_put_str(&b, pe_str_c("ab\xff"), false, &err), PE_EFORMAT, err,
              "not UTF-8 at byte 3 (0xff)");
  pe_buf_free(&b);
}

static const check_test tests[] = {{"reads_tokens", reads_tokens},
                                   {"ends_where_it_ends", ends_where_it_ends},
                                   {"takes_nul", takes_nul},
                                   {"depth_is_limited", depth_is_limited},
                                   {"size_is_limited", size_is_limited},
                                   {"trees_keep_order", trees_keep_order},
                                   {"skips_values", skips_values},
                                   {"writes_as_python", writes_as_python},
                                   {"every_allocation_may_fail", every_allocation_may_fail}};
CHECK_MAIN("json", tests)
