/* Masks: every token against the verdict on its bytes, in vocabularies of byte pairs and of
 * sentencepiece; added and end tokens, token symbols, and tokens with the same bytes. */
#include <pthread.h>

#include "check.h"
#include "runtime/grammar/matcher.h"

static pe_tokenizer *tokenizer(const char *path) {
  pe_tokenizer *t = NULL;
  pe_error err;
  CHECK_OK(pe_tokenizer_open(path, &t, &err), err);
  return t;
}

static bool has(const uint32_t *allow, int32_t id) { return allow[id / 32] >> id % 32 & 1; }

/* ---- masks against bytes --------------------------------------------------------------------- */

typedef struct tally {
  int wrong, right, plain; /* plain: masks with more than half of the vocabulary */
} tally;

static void compare_mask(pe_matcher *m, const pe_tokenizer *t, const pe_tokmask *mask, tally *n) {
  uint32_t *allow = pe_calloc(pe_tokmask_words(mask), sizeof *allow);
  pe_error err;
  pe_buf bytes = {0};
  int in = 0;
  CHECK_OK(pe_matcher_mask(m, allow, &err), err);
  for (int32_t id = 0; id < pe_tokmask_size(mask); id++) {
    const size_t length = pe_matcher_length(m);
    size_t taken = 0;
    bytes.len = 0;
    CHECK_OK(pe_tokenizer_bytes(t, id, &bytes, &err), err);
    bool can = false;
    if (!pe_tokenizer_is_added(t, id) && bytes.len) {
      CHECK_OK(pe_matcher_feed(m, pe_buf_str(&bytes), &taken, &err), err);
      can = taken == bytes.len;
    }
    pe_matcher_trim(m, length);
    if (has(allow, id) != can && n->wrong++ < 5)
      printf("    token %d '%.*s' is %sin the mask\n", id, (int)bytes.len, bytes.data,
             can ? "not " : "");
    in += can;
  }
  n->right++, n->plain += 2 * in > pe_tokmask_size(mask);
  pe_buf_free(&bytes);
  pe_free(allow);
}

/* Every mask on the way of a text, byte by byte. */
static void compare_text(pe_grammar *g, const pe_tokenizer *t, pe_tokmask *mask, const char *text,
                         tally *n) {
  pe_matcher *m = NULL;
  pe_error err;
  size_t taken;
  CHECK_OK(pe_matcher_open(g, mask, &m, &err), err);
  compare_mask(m, t, mask, n);
  for (const char *p = text; *p; p++) {
    CHECK_OK(pe_matcher_feed(m, pe_str_of(p, 1), &taken, &err), err);
    CHECK_INT(taken, 1);
    compare_mask(m, t, mask, n);
  }
  pe_matcher_close(m);
}

/* Strings that end as JSON's do, and others of which a count of characters says less: */
typedef enum string_kind {
  USUAL,
  PAIRS, /* two characters count as one */
  TAIL   /* more plain characters come after those that count */
} string_kind;

/* A JSON string, all of it or but for some; of up to some characters. */
static pe_grammar *json_string(string_kind kind, const char *const *but, size_t buts,
                               uint32_t most) {
  pe_rules *r = NULL;
  pe_grammar *g = NULL;
  pe_rule root;
  pe_error err;
  CHECK(pe_rules_open(pe_rules_usual(), &r, NULL) == PE_OK);
  pe_rex *x = pe_rules_rex(r);
  const pe_code_range plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
  const pe_term any = pe_rex_chars(x, plain, 3);
  const pe_term one[3] = {any, pe_rex_word(x, pe_str_c("\\n")), pe_rex_repeat(x, any, 2, 2)};
  const pe_term quote = pe_rex_word(x, pe_str_c("\""));
  const pe_term end = kind == TAIL ? pe_rex_cat(x, pe_rex_repeat(x, any, 0, 2), quote) : quote;
  const pe_term all = pe_rex_or(x, one, kind == PAIRS ? 3 : 2);
  const pe_term body = pe_rex_cat(x, pe_rex_repeat(x, all, 0, most), end);
  pe_str word[4];
  for (size_t i = 0; i < buts; i++) word[i] = pe_str_c(but[i]);
  const pe_term both[2] = {body, pe_rex_not(x, pe_rex_words(x, word, buts))};
  const pe_term t = pe_rex_cat(x, quote, buts ? pe_rex_and(x, both, 2) : body);
  const pe_symbol s[2] = {{.kind = PE_SYMBOL_TERM, .index = t},
                          {.kind = PE_SYMBOL_TERM, .index = pe_rex_word(x, pe_str_c(":1"))}};
  CHECK(pe_rules_declare(r, pe_str_c("root"), &root, NULL) == PE_OK);
  CHECK(pe_rules_add(r, root, s, 2, NULL, 0, NULL) == PE_OK);
  CHECK_OK(pe_grammar_compile(r, root, (pe_grammar_options){0}, &g, &err), err);
  return g;
}

static void masks_are_verdicts(const char *path) {
  static const char *const but[] = {"name\"", "n\"", "\"", "the\""};
  static const char *const grammars[][2] = {
      {"root ::= [a-z]+ (\" \" [a-z]+)* \".\"", "the cat."},
      {"root ::= \"[\" (v (\", \" v)*)? \"]\"\nv ::= root | \"\\\"\" [^\"\\\\]* \"\\\"\" | [0-9]+",
       "[\"a b\", [12], []]"},
      {"root ::= .{0,20}", "\xc3\xa9\xe6\xbc\xa2x"},
      {"root ::= \"yes\" | \"no\"", "no"},
  };
  tally n = {0};
  pe_tokmask *mask = NULL;
  pe_error err;
  pe_tokenizer *t = tokenizer(path);
  CHECK_OK(pe_tokmask_open(t, NULL, 0, &mask, &err), err);
  for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
    pe_grammar *g = NULL;
    CHECK_OK(pe_grammar_gbnf(pe_str_c(grammars[i][0]), &g, &err), err);
    compare_text(g, t, mask, grammars[i][1], &n);
    pe_grammar_release(g);
  }
  static const uint32_t most[] = {PE_REX_FOREVER, 3, 15, 16, 17};
  for (size_t i = 0; i < sizeof most / sizeof *most; i++)
    for (size_t buts = 0; buts <= 4; buts += 4)
      for (string_kind kind = USUAL; kind <= TAIL; kind++) {
        pe_grammar *g = json_string(kind, but, buts, most[i]);
        compare_text(g, t, mask, "\"na\\n\":", &n);
        pe_grammar_release(g);
      }
  CHECK_INT(n.wrong, 0);
  CHECK(n.right > 100 && n.plain > 20);
  pe_tokmask_release(mask);
  pe_tokenizer_release(t);
}

static void byte_pairs(void) { masks_are_verdicts("tests/tokenizers/bpe-qwen2/tokenizer.json"); }
static void pieces(void) { masks_are_verdicts("tests/tokenizers/spm-gemma/tokenizer.json"); }

/* Characters at both ends of every range of first bytes in UTF-8, and a letter. */
static const char *const edges[] = {"a",
                                    "~",
                                    "\xc2\x80",
                                    "\xdf\xbf",
                                    "\xe0\xa0\x80",
                                    "\xe0\xbf\xbf",
                                    "\xe1\x80\x80",
                                    "\xec\xbf\xbf",
                                    "\xed\x80\x80",
                                    "\xed\x9f\xbf",
                                    "\xee\x80\x80",
                                    "\xef\xbf\xbf",
                                    "\xf0\x90\x80\x80",
                                    "\xf0\xbf\xbf\xbf",
                                    "\xf1\x80\x80\x80",
                                    "\xf3\xbf\xbf\xbf",
                                    "\xf4\x80\x80\x80",
                                    "\xf4\x8f\xbf\xbf"};
enum { EDGES = sizeof edges / sizeof *edges };

static pe_tokenizer *edge_letters(void) {
  pe_buf b = {0};
  pe_tokenizer *t = NULL;
  pe_error err;
  pe_buf_printf(&b, NULL, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
  for (int i = 0; i < EDGES; i++) pe_buf_printf(&b, NULL, "%s\"%s\":%d", i ? "," : "", edges[i], i);
  pe_buf_printf(&b, NULL, "}}}");
  CHECK_OK(pe_tokenizer_read_json(b.data, b.len, &t, &err), err);
  pe_buf_free(&b);
  return t;
}

/* All plain characters but one are not all of them, whatever its bytes. */
static void one_character_less(void) {
  pe_tokenizer *t = edge_letters();
  pe_tokmask *mask = NULL;
  pe_error err;
  tally n = {0};
  CHECK_OK(pe_tokmask_open(t, NULL, 0, &mask, &err), err);
  for (int i = -1; i < EDGES; i++) {
    char source[64];
    pe_grammar *g = NULL;
    snprintf(source, sizeof source, "root ::= [^\"\\\\%s]{0,20} \"\\n\"", i < 0 ? "" : edges[i]);
    CHECK_OK(pe_grammar_gbnf(pe_str_c(source), &g, &err), err);
    compare_text(g, t, mask, i ? "a" : "~", &n);
    pe_grammar_release(g);
  }
  CHECK_INT(n.wrong, 0);
  CHECK(n.plain > 0);
  pe_tokmask_release(mask);
  pe_tokenizer_release(t);
}

/* ---- masks that are kept --------------------------------------------------------------------- */

/* One to three of 16 letters, and digits: enough that a mask of letters takes long. */
static pe_tokenizer *letters(void) {
  pe_buf b = {0};
  pe_tokenizer *t = NULL;
  pe_error err;
  int id = 0;
  pe_buf_printf(&b, NULL, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
  for (int n = 0; n < 16 * 16 * 16; n++) {
    const char a = (char)('a' + n / 256), c = (char)('a' + n / 16 % 16), d = (char)('a' + n % 16);
    if (n % 256 == 0) pe_buf_printf(&b, NULL, "\"%c\":%d,", a, id++);
    if (n % 16 == 0) pe_buf_printf(&b, NULL, "\"%c%c\":%d,", a, c, id++);
    pe_buf_printf(&b, NULL, "\"%c%c%c\":%d,", a, c, d, id++);
  }
  for (int d = 1; d <= 6; d++) pe_buf_printf(&b, NULL, "\"%d\":%d%s", d, id++, d < 6 ? "," : "}}}");
  CHECK_OK(pe_tokenizer_read_json(b.data, b.len, &t, &err), err);
  pe_buf_free(&b);
  return t;
}

/* More places than masks are kept for, each of them met again and again. */
static void kept_masks(void) {
  pe_tokenizer *t = letters();
  pe_tokmask *mask = NULL;
  pe_grammar *g = NULL;
  pe_matcher *m = NULL;
  pe_error err;
  tally n = {0};
  CHECK_OK(pe_tokmask_open(t, NULL, 0, &mask, &err), err);
  CHECK_OK(pe_grammar_gbnf(pe_str_c("root ::= ([a-p]* \"1\" [a-o]* \"2\" [a-n]* \"3\" [a-m]* \"4\" "
                                    "[a-l]* \"5\" [a-k]* \"6\")*"),
                           &g, &err),
           err);
  compare_text(g, t, mask, "ab1ab2ab3ab4ab5ab6ab1aba2a3a4a5a6a1a", &n);
  CHECK_INT(n.wrong, 0);
  CHECK_OK(pe_matcher_open(g, mask, &m, &err), err);
  uint32_t *allow = pe_calloc(pe_tokmask_words(mask), sizeof *allow);
  const uint64_t before = pe_matcher_bytes(m);
  CHECK_OK(pe_matcher_mask(m, allow, &err), err);
  const uint64_t after = pe_matcher_bytes(m); /* what the walk made, and the mask */
  CHECK(after >= before + pe_tokmask_words(mask) * sizeof *allow);
  CHECK_OK(pe_matcher_mask(m, allow, &err), err);
  CHECK_INT(pe_matcher_bytes(m), after);
  pe_free(allow);
  pe_matcher_close(m), pe_grammar_release(g);
  pe_tokmask_release(mask), pe_tokenizer_release(t);
}

/* Positions that are dropped give their numbers to others, which have other masks. */
static void kept_masks_of_dropped_places(void) {
  enum { MANY = 90000 }; /* 32 bytes each: more than PE_MATCHER_SOME */
  pe_tokenizer *t = letters();
  pe_tokmask *mask = NULL;
  pe_grammar *g = NULL;
  pe_matcher *m = NULL;
  pe_error err;
  tally n = {0};
  size_t taken;
  char *text = pe_alloc(MANY);
  memset(text, 'a', MANY);
  CHECK_OK(pe_tokmask_open(t, NULL, 0, &mask, &err), err);
  CHECK_OK(pe_grammar_gbnf(pe_str_c("root ::= [a-p]{0,90001} \"1\""), &g, &err), err);
  CHECK_OK(pe_matcher_open(g, mask, &m, &err), err);
  CHECK_OK(pe_matcher_feed(m, pe_str_of(text, 1), &taken, &err), err);
  compare_mask(m, t, mask, &n); /* all letters */
  pe_matcher_trim(m, 0);
  CHECK_OK(pe_matcher_feed(m, pe_str_of(text, MANY), &taken, &err), err);
  CHECK_INT(taken, MANY);
  const uint64_t before = pe_matcher_bytes(m);
  compare_mask(m, t, mask, &n); /* one letter more */
  CHECK(before > PE_MATCHER_SOME && n.wrong == 0 && n.right == 2);
  pe_free(text);
  pe_matcher_close(m), pe_grammar_release(g);
  pe_tokmask_release(mask), pe_tokenizer_release(t);
}

/* ---- which tokens there are ------------------------------------------------------------------ */

#define FLAGS(special)                                                                             \
  ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"                 \
  "\"special\":" special "}"

/* "a" twice, once as a byte; 6 is special, 7 is added, 8 ends. */
static const char small[] =
    "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,"
    "\"<0x61>\":3,\"<0x62>\":4,\"<t>\":5},\"merges\":[[\"a\",\"b\"]]},"
    "\"added_tokens\":[{\"id\":6,\"content\":\"<s>\"" FLAGS(
        "true") ",{\"id\":7,\"content\":\"bb\"" FLAGS("false") ",{\"id\":8,\"content\":\"</"
                                                               "s>\"" FLAGS("true") "],"
                                                                                    "\"decoder\":{"
                                                                                    "\"type\":"
                                                                                    "\"Sequence\","
                                                                                    "\"decoders\":["
                                                                                    "{\"type\":"
                                                                                    "\"ByteFallback"
                                                                                    "\"}]}}";

static uint32_t mask_of(pe_matcher *m) {
  uint32_t allow[4] = {0};
  pe_error err;
  CHECK_OK(pe_matcher_mask(m, allow, &err), err);
  return allow[0];
}

static bool take(pe_matcher *m, int32_t id) {
  bool ok = false;
  pe_error err;
  CHECK_OK(pe_matcher_take(m, id, &ok, &err), err);
  return ok;
}

static void special_tokens(void) {
  pe_tokenizer *t = NULL;
  pe_tokmask *mask = NULL;
  pe_rules *r = NULL;
  pe_grammar *g = NULL;
  pe_matcher *m = NULL;
  pe_error err;
  pe_rule root;
  const int32_t ends[] = {8, 400, -1};
  CHECK_OK(pe_tokenizer_read_json(small, strlen(small), &t, &err), err);
  CHECK_OK(pe_tokmask_open(t, ends, 3, &mask, &err), err);
  CHECK_INT(pe_tokmask_size(mask), 9);
  const uint64_t before = pe_tokmask_bytes(mask);
  CHECK_OK(pe_tokmask_build(mask, &err), err);
  CHECK_OK(pe_tokmask_build(mask, &err), err); /* once is enough */
  CHECK(before > 0 && pe_tokmask_bytes(mask) > before && pe_tokmask_text(mask, 6).at == NULL);
  CHECK(pe_rules_open(pe_rules_usual(), &r, NULL) == PE_OK);
  CHECK(pe_rules_declare(r, pe_str_c("root"), &root, NULL) == PE_OK);
  const pe_term word = pe_rex_repeat(pe_rules_rex(r), pe_rex_word(pe_rules_rex(r), pe_str_c("ab")),
                                     1, PE_REX_FOREVER);
  const pe_symbol s[3] = {{.kind = PE_SYMBOL_TERM, .index = word},
                          {.kind = PE_SYMBOL_TOKEN, .index = 6},
                          {.kind = PE_SYMBOL_TERM, .index = PE_TERM_EMPTY}};
  const pe_symbol far = {.kind = PE_SYMBOL_TOKEN, .index = 1 << 20}; /* no such token */
  CHECK(pe_rules_add(r, root, s, 3, NULL, 0, NULL) == PE_OK);
  CHECK(pe_rules_add(r, root, s, 1, NULL, 0, NULL) == PE_OK);
  CHECK(pe_rules_add(r, root, &far, 1, NULL, 0, NULL) == PE_OK);
  CHECK_OK(pe_grammar_compile(r, root, (pe_grammar_options){0}, &g, &err), err);
  CHECK_OK(pe_matcher_open(g, mask, &m, &err), err);
  CHECK_INT(mask_of(m), 1 << 0 | 1 << 2 | 1 << 3); /* both "a", and "ab" */
  CHECK(!take(m, 6) && !take(m, 7) && !take(m, 8) && !take(m, -1));
  CHECK(take(m, 3));
  CHECK_INT(mask_of(m), 1 << 1 | 1 << 4);
  CHECK(take(m, 4));
  CHECK_INT(mask_of(m), 1 << 0 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 8); /* go on, or end */
  CHECK(take(m, 6));
  CHECK_INT(mask_of(m), 1 << 8);
  CHECK(take(m, 8));
  CHECK_INT(mask_of(m), 0);
  CHECK(!take(m, 0) && !pe_matcher_complete(m));
  CHECK_INT(pe_matcher_length(m), 4);
  pe_matcher_trim(m, 2);
  CHECK(take(m, 2) && pe_matcher_complete(m));
  pe_matcher_close(m);
  CHECK_OK(pe_matcher_open(g, NULL, &m, &err), err);
  CHECK_FAILS(pe_matcher_mask(m, (uint32_t[4]){0}, &err), PE_EARG, err, "no vocabulary");
  pe_matcher_close(m);
  pe_grammar_release(g);
  pe_tokmask_release(mask);
  pe_tokenizer_release(t);
}

/* Several threads build at once: one does, and all see the same. */
static void *build_one(void *arg) {
  pe_error err;
  return pe_tokmask_build(arg, &err) == PE_OK && pe_tokmask_text(arg, 0).at ? arg : NULL;
}

static void built_by_threads(void) {
  pe_tokenizer *t = tokenizer("tests/tokenizers/bpe-qwen2/tokenizer.json");
  pe_tokmask *mask = NULL;
  pthread_t thread[4];
  CHECK(pe_tokmask_open(t, NULL, 0, &mask, NULL) == PE_OK);
  pe_tokenizer_release(t); /* it has its own reference */
  for (int i = 0; i < 4; i++) CHECK_INT(pthread_create(&thread[i], NULL, build_one, mask), 0);
  for (int i = 0; i < 4; i++) {
    void *out = NULL;
    CHECK_INT(pthread_join(thread[i], &out), 0);
    CHECK(out == mask);
  }
  pe_tokmask_release(mask);
}

static void failing_memory(void) {
  pe_tokenizer *t = tokenizer("tests/tokenizers/bpe-qwen2/tokenizer.json");
  const int64_t live = pe_alloc_live();
  for (int64_t n = 1;; n++) {
    pe_tokmask *mask = NULL;
    pe_error err;
    pe_alloc_fail_at(n);
    pe_status rc = pe_tokmask_open(t, NULL, 0, &mask, &err);
    if (!rc) rc = pe_tokmask_build(mask, &err);
    const bool failed = pe_alloc_count() >= n;
    pe_alloc_fail_at(0);
    CHECK_INT(rc, failed ? PE_ENOMEM : PE_OK);
    if (rc && mask) CHECK_OK(pe_tokmask_build(mask, &err), err); /* it may be tried again */
    pe_tokmask_release(mask);
    CHECK_INT(pe_alloc_live(), live);
    if (!failed) break;
  }
  pe_tokenizer_release(t);
}

static const check_test tests[] = {
    {"masks are the verdicts on bytes: byte pairs", byte_pairs},
    {"masks are the verdicts on bytes: sentencepiece", pieces},
    {"all characters but one are not all", one_character_less},
    {"masks that are kept are those of their place", kept_masks},
    {"masks that are kept are forgotten with their place", kept_masks_of_dropped_places},
    {"added, end and equal tokens", special_tokens},
    {"built once, by any thread", built_by_threads},
    {"failing memory", failing_memory},
};

CHECK_MAIN("test_tokmask", tests)
