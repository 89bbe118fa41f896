/* test_pretokenizer.c - every kind of pre-tokenizer against the library's results, and bad
 * input. */
#include "check.h"

#include "runtime/text/pretokenizer.h"
#include "runtime/text/unicode.h"

/* The pieces joined by '|'; bytes that the library maps are mapped back. */
static const struct {
  const char *json, *text, *want;
  bool byte_level;
} cases[] = {
    {"{\042type\042:\042Sequence\042,\042pretokenizers\042:[{\042type\042:\042Split\042,\042pattern"
     "\042:{\042Regex\042:\042(\077i:'s|'t|'re|'ve|'m|'ll|'d)|[^\134\134r\134\134n\134\134p{L}"
     "\134\134"
     "p{N}]\077\134\134p{L}+|\134\134p{N}{1,3}| \077[^\134\134s\134\134p{L}\134\134p{N}]+[\134\134r"
     "\134\134n]*|\134\134s*[\134\134r\134\134n]+|\134\134s+(\077!\134\134S)|\134\134s+\042},"
     "\042behav"
     "ior\042:\042Isolated\042,\042invert\042:false},{\042type\042:\042ByteLevel\042,\042add_"
     "prefix_sp"
     "ace\042:false,\042trim_offsets\042:true,\042use_regex\042:false}]}",
     "I'm  12345 caf\303\251s, \344\275\240\345\245\275!!\015\012\015\012  x",
     "I|'m| | |123|45| caf\303\251s|,| \344\275\240\345\245\275|!!\015\012\015\012| | x", true},
    {"{\042type\042:\042ByteLevel\042,\042add_prefix_space\042:false,\042trim_offsets\042:true,"
     "\042use"
     "_regex\042:true}",
     "I'm  12345 caf\303\251s,\012\012 x ", "I|'m| | 12345| caf\303\251s|,|\012\012| x| ", true},
    {"{\042type\042:\042ByteLevel\042,\042add_prefix_space\042:true,\042trim_offsets\042:true,"
     "\042use_"
     "regex\042:true}",
     "a b", " a| b", true},
    {"{\042type\042:\042ByteLevel\042,\042add_prefix_space\042:true,\042trim_offsets\042:true,"
     "\042use_"
     "regex\042:true}",
     " a", " a", true},
    {"{\042type\042:\042ByteLevel\042,\042add_prefix_space\042:true,\042trim_offsets\042:true,"
     "\042use_"
     "regex\042:false}",
     "a b", " a b", true},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042Removed\042,\042invert\042:false}",
     "-a--b c-", "a|b|c", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042Removed\042,\042invert\042:true}",
     "-a--b c-", "-|-|-| |-", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042x*\042},\042behavior\042:"
     "\042Remo"
     "ved\042,\042invert\042:false}",
     "axxb", "a|b", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042String\042:\042--\042},\042behavior\042:"
     "\042Rem"
     "oved\042,\042invert\042:false}",
     "a-----b--", "a|-b", false},
    {"{\042type\042:\042Punctuation\042,\042behavior\042:\042Removed\042}",
     "a,b!!$\302\277 \342\200\246c", "a|b| |c", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042Isolated\042,\042invert\042:false}",
     "-a--b c-", "-|a|-|-|b| |c|-", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042Isolated\042,\042invert\042:true}",
     "-a--b c-", "-|a|-|-|b| |c|-", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042x*\042},\042behavior\042:"
     "\042Isol"
     "ated\042,\042invert\042:false}",
     "axxb", "a|xx|b", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042String\042:\042--\042},\042behavior\042:"
     "\042Iso"
     "lated\042,\042invert\042:false}",
     "a-----b--", "a|--|--|-b|--", false},
    {"{\042type\042:\042Punctuation\042,\042behavior\042:\042Isolated\042}",
     "a,b!!$\302\277 \342\200\246c", "a|,|b|!|!|$|\302\277| |\342\200\246|c", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042MergedWithPrevious\042,\042invert\042:false}",
     "-a--b c-", "-|a-|-|b |c-", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042MergedWithPrevious\042,\042invert\042:true}",
     "-a--b c-", "-a|-|-b| c|-", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042x*\042},\042behavior\042:"
     "\042Merg"
     "edWithPrevious\042,\042invert\042:false}",
     "axxb", "axx|b", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042String\042:\042--\042},\042behavior\042:"
     "\042Mer"
     "gedWithPrevious\042,\042invert\042:false}",
     "a-----b--", "a--|--|-b--", false},
    {"{\042type\042:\042Punctuation\042,\042behavior\042:\042MergedWithPrevious\042}",
     "a,b!!$\302\277 \342\200\246c", "a,|b!|!|$|\302\277| \342\200\246|c", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042MergedWithNext\042,\042invert\042:false}",
     "-a--b c-", "-a|-|-b| c|-", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042MergedWithNext\042,\042invert\042:true}",
     "-a--b c-", "-|a-|-|b |c-", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042x*\042},\042behavior\042:"
     "\042Merg"
     "edWithNext\042,\042invert\042:false}",
     "axxb", "a|xxb", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042String\042:\042--\042},\042behavior\042:"
     "\042Mer"
     "gedWithNext\042,\042invert\042:false}",
     "a-----b--", "a|--|---b|--", false},
    {"{\042type\042:\042Punctuation\042,\042behavior\042:\042MergedWithNext\042}",
     "a,b!!$\302\277 \342\200\246c", "a|,b|!|!|$|\302\277 |\342\200\246c", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042Contiguous\042,\042invert\042:false}",
     "-a--b c-", "-|a|--|b| |c|-", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[-\134\134s]\042},\042behavior"
     "\042:\042Contiguous\042,\042invert\042:true}",
     "-a--b c-", "-|a|--|b| |c|-", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042x*\042},\042behavior\042:"
     "\042Cont"
     "iguous\042,\042invert\042:false}",
     "axxb", "a|xx|b", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042String\042:\042--\042},\042behavior\042:"
     "\042Con"
     "tiguous\042,\042invert\042:false}",
     "a-----b--", "a|----|-b|--", false},
    {"{\042type\042:\042Punctuation\042,\042behavior\042:\042Contiguous\042}",
     "a,b!!$\302\277 \342\200\246c", "a|,|b|!!$\302\277| |\342\200\246|c", false},
    {"{\042type\042:\042Split\042,\042pattern\042:{\042String\042:\042\042},\042behavior\042:"
     "\042Isola"
     "ted\042,\042invert\042:false}",
     "a\303\251", "a|\303\251", false},
    {"{\042type\042:\042Metaspace\042,\042replacement\042:\042\342\226\201\042,\042prepend_"
     "scheme\042:"
     "\042always\042,\042split\042:true}",
     "a b  c", "\342\226\201a|\342\226\201b|\342\226\201|\342\226\201c", false},
    {"{\042type\042:\042Metaspace\042,\042replacement\042:\042\342\226\201\042,\042prepend_"
     "scheme\042:"
     "\042always\042,\042split\042:true}",
     " a", "\342\226\201a", false},
    {"{\042type\042:\042Metaspace\042,\042replacement\042:\042\342\226\201\042,\042prepend_"
     "scheme\042:"
     "\042always\042,\042split\042:true}",
     " ", "\342\226\201", false},
    {"{\042type\042:\042Metaspace\042,\042replacement\042:\042\342\226\201\042,\042prepend_"
     "scheme\042:"
     "\042first\042,\042split\042:true}",
     "a b", "\342\226\201a|\342\226\201b", false},
    {"{\042type\042:\042Metaspace\042,\042replacement\042:\042\342\226\201\042,\042prepend_"
     "scheme\042:"
     "\042never\042,\042split\042:true}",
     "a b", "a|\342\226\201b", false},
    {"{\042type\042:\042Metaspace\042,\042replacement\042:\042\342\226\201\042,\042prepend_"
     "scheme\042:"
     "\042always\042,\042split\042:false}",
     "a b", "\342\226\201a\342\226\201b", false},
    {"{\042type\042:\042Metaspace\042,\042replacement\042:\042_\042,\042prepend_scheme\042:"
     "\042always"
     "\042,\042split\042:true}",
     "_a b_c", "_a|_b|_c", false},
    {"{\042type\042:\042Metaspace\042,\042replacement\042:\042\342\226\201\042,\042str_rep\042:\042"
     "\342\226\201\042,\042add_prefix_space\042:true}",
     "a b", "\342\226\201a|\342\226\201b", false},
    {"{\042type\042:\042Whitespace\042}", "a_b\302\262 c!\342\200\215\077 \303\251",
     "a_b|\302\262|c|!|\342\200\215|\077|\303\251", false},
    {"{\042type\042:\042WhitespaceSplit\042}", "a\343\200\200 b\341\240\216c\302\205d",
     "a|b\341\240\216c|d", false},
    {"{\042type\042:\042BertPreTokenizer\042}", "a,b \302\277c$", "a|,|b|\302\277|c|$", false},
    {"{\042type\042:\042Digits\042,\042individual_digits\042:true}", "a12\302\275b3",
     "a|1|2|\302\275|b|3", false},
    {"{\042type\042:\042Digits\042,\042individual_digits\042:false}", "a12\302\275b3",
     "a|12\302\275|b|3", false},
    {"{\042type\042:\042CharDelimiterSplit\042,\042delimiter\042:\042-\042}", "a--b-", "a|b",
     false},
    {"{\042type\042:\042UnicodeScripts\042}",
     " a b\343\201\202\344\270\255\343\203\274 \320\226. x",
     "a b|\343\201\202\344\270\255\343\203\274 |\320\226|. |x", false},
    {"{\042type\042:\042FixedLength\042,\042length\042:2}", "a\303\251b\344\270\255c",
     "a\303\251|b\344\270\255|c", false},
    {"{\042type\042:\042Sequence\042,\042pretokenizers\042:[{\042type\042:\042WhitespaceSplit\042},"
     "{"
     "\042type\042:\042Metaspace\042,\042replacement\042:\042\342\226\201\042,\042prepend_"
     "scheme\042:"
     "\042first\042,\042split\042:true}]}",
     " a b", "a|b", false},
    {"{\042type\042:\042Sequence\042,\042pretokenizers\042:[{\042type\042:\042Punctuation\042,"
     "\042beha"
     "vior\042:\042Isolated\042},{\042type\042:\042Metaspace\042,\042replacement\042:"
     "\042\342\226\201"
     "\042,\042prepend_scheme\042:\042first\042,\042split\042:true},{\042type\042:\042Digits\042,"
     "\042i"
     "ndividual_digits\042:true}]}",
     "a,b 12", "\342\226\201a|,|b|\342\226\201|1|2", false},
    {"{\042type\042:\042Sequence\042,\042pretokenizers\042:[{\042type\042:\042ByteLevel\042,"
     "\042add_pr"
     "efix_space\042:false,\042trim_offsets\042:true,\042use_regex\042:true},{\042type\042:"
     "\042Split"
     "\042,\042pattern\042:{\042Regex\042:\042\304\240\042},\042behavior\042:\042Isolated\042,"
     "\042inve"
     "rt\042:false}]}",
     "a b\303\251 c", "a| |b\303\251| |c", true},
    {"{\042type\042:\042Sequence\042,\042pretokenizers\042:[{\042type\042:\042ByteLevel\042,"
     "\042add_pr"
     "efix_space\042:false,\042trim_offsets\042:true,\042use_regex\042:true},{\042type\042:"
     "\042ByteLev"
     "el\042,\042add_prefix_space\042:false,\042trim_offsets\042:true,\042use_regex\042:false}]}",
     "\303\251 a", "\303\203\302\251|\304\240a", true},
    {"{\042type\042:\042Sequence\042,\042pretokenizers\042:[{\042type\042:\042Metaspace\042,"
     "\042replac"
     "ement\042:\042\342\226\201\042,\042prepend_scheme\042:\042always\042,\042split\042:false},{"
     "\042t"
     "ype\042:\042Split\042,\042pattern\042:{\042Regex\042:\042\342\226\201+\042},\042behavior\042:"
     "\042MergedWithNext\042,\042invert\042:false},{\042type\042:\042ByteLevel\042,\042add_prefix_"
     "spac"
     "e\042:false,\042trim_offsets\042:true,\042use_regex\042:false}]}",
     "a  b", "\342\226\201a|\342\226\201\342\226\201b", true},
    {"{\042type\042:\042Sequence\042,\042pretokenizers\042:[{\042type\042:\042Split\042,\042pattern"
     "\042:{\042Regex\042:\042\134\134p{N}{1,3}\042},\042behavior\042:\042Isolated\042,"
     "\042invert\042:"
     "false},{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[\344\270\200-"
     "\351\276\245"
     "\343\201\200-\343\202\237\343\202\240-\343\203\277]+\042},\042behavior\042:\042Isolated\042,"
     "\042"
     "invert\042:false},{\042type\042:\042Split\042,\042pattern\042:{\042Regex\042:\042[!\134\042#$"
     "%&'"
     "()*+,\134\134-./"
     ":;<=>\077@\134\134[\134\134\134\134\134\134]^_`{|}~][A-Za-z]+|[^\134r\134n\134"
     "\134p{L}\134\134p{P}\134\134p{S}]\077[\134\134p{L}\134\134p{M}]+| "
     "\077[\134\134p{P}\134\134p{S}]"
     "+[\134r\134n]*|\134\134s*[\134r\134n]+|\134\134s+(\077!\134\134S)|\134\134s+\042},"
     "\042behavior"
     "\042:\042Isolated\042,\042invert\042:false},{\042type\042:\042ByteLevel\042,\042add_prefix_"
     "space"
     "\042:false,\042trim_offsets\042:true,\042use_regex\042:false}]}",
     "x=1234; \346\235\261\344\272\254\343\201\247 go.ok\012\012 caf\303\251",
     "x|=|123|4|;| |\346\235\261\344\272\254\343\201\247| go|.ok|\012\012| caf\303\251", true},
};

static pe_status read_json(const char *json, pe_pretokenizer **p, pe_error *err) {
  pe_arena a = {0};
  pe_json_value *v = NULL;
  *p = NULL;
  pe_status rc = pe_json_parse(json, strlen(json), &a, &v, err);
  if (!rc) rc = pe_pretokenizer_read(v, p, err);
  pe_arena_free(&a);
  return rc;
}

static void join(const pe_pieces *p, pe_buf *out) {
  for (size_t i = 0; i < p->list.n; i++) {
    pe_piece piece = p->list.at[i];
    CHECK(piece.from < piece.to && piece.to <= p->text.len);
    if (i) pe_buf_byte(out, '|', NULL);
    pe_buf_put(out, p->text.at + piece.from, piece.to - piece.from, NULL);
  }
  pe_buf_byte(out, 0, NULL);
}

static void kinds(void) {
  pe_pieces pieces = {0}; /* one for all calls: leftovers must not matter */
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pe_pretokenizer *p;
    pe_error err = {0};
    pe_buf out = {0};
    CHECK_OK(read_json(cases[i].json, &p, &err), err);
    for (int twice = 0; twice < 2; twice++) {
      out.len = 0;
      CHECK_OK(pe_pretokenizer_split(p, pe_str_c(cases[i].text), true, &pieces, &err), err);
      join(&pieces, &out);
      if (strcmp(out.data, cases[i].want)) printf("    %.100s\n", cases[i].json);
      CHECK_STR(out.data, cases[i].want);
    }
    CHECK_INT(pe_pretokenizer_byte_level(p), cases[i].byte_level);
    CHECK_OK(pe_pretokenizer_split(p, pe_str_c(""), true, &pieces, &err), err);
    CHECK_INT(pieces.list.n, 0);
    pe_buf_free(&out);
    pe_pretokenizer_free(p);
  }
  pe_pieces_free(&pieces);
}

static void nothing(void) {
  pe_pretokenizer *p;
  pe_error err = {0};
  pe_pieces pieces = {0};
  CHECK_OK(read_json("null", &p, &err), err);
  CHECK(!p && !pe_pretokenizer_byte_level(p));
  CHECK_OK(pe_pretokenizer_split(p, pe_str_c("a b"), true, &pieces, &err), err);
  CHECK_INT(pieces.list.n, 1);
  CHECK_INT(pieces.list.at[0].to, 3);
  pe_pieces_free(&pieces);
}

/* "first" asks where the text begins in the whole input. */
static void first(void) {
  pe_pretokenizer *p;
  pe_error err = {0};
  pe_pieces pieces = {0};
  CHECK_OK(read_json("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\"}",
                     &p, &err),
           err);
  for (int is = 0; is < 2; is++) {
    pe_buf out = {0};
    CHECK_OK(pe_pretokenizer_split(p, pe_str_c("a b"), is, &pieces, &err), err);
    join(&pieces, &out);
    CHECK_STR(out.data, is ? "_a|_b" : "a|_b");
    pe_buf_free(&out);
  }
  pe_pieces_free(&pieces);
  pe_pretokenizer_free(p);
}

static void bad_input(void) {
  static const struct {
    const char *json;
    pe_status code;
    const char *part;
  } bad[] = {
      {"{\"type\":\"Foo\"}", PE_EUNSUPPORTED, "unknown type 'Foo'"},
      {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"Bar\"}]}",
       PE_EUNSUPPORTED, "'Bar'"},
      {"{\"type\":\"Sequence\",\"pretokenizers\":[null]}", PE_EFORMAT, "must be an object"},
      {"{\"type\":\"Sequence\"}", PE_EFORMAT, "pretokenizers"},
      {"{\"type\":\"Split\"}", PE_EFORMAT, "Split: \"pattern\""},
      {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\"}}", PE_EUNSUPPORTED,
       "Split: pattern, offset 0"},
      {"{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Foo\"}", PE_EUNSUPPORTED,
       "behavior 'Foo'"},
      {"{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", PE_EFORMAT, "one character, got 'ab'"},
      {"{\"type\":\"Metaspace\"}", PE_EFORMAT, "replacement"},
      {"{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"x\"}", PE_EUNSUPPORTED,
       "prepend_scheme 'x'"},
      {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Metaspace\","
       "\"replacement\":\"_\"}]}",
       PE_EUNSUPPORTED, "must come before ByteLevel"},
      {"{\"type\":\"CharDelimiterSplit\"}", PE_EFORMAT, "delimiter"},
      {"{\"type\":\"FixedLength\",\"length\":0}", PE_EFORMAT, "got 0"},
      {"[]", PE_EFORMAT, "must be an object"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    pe_pretokenizer *p;
    pe_error err = {0};
    CHECK_FAILS(read_json(bad[i].json, &p, &err), bad[i].code, err, bad[i].part);
    CHECK(!p);
  }
}

/* A pattern that fails on one text still works on the next. */
static void hostile(void) {
  pe_pretokenizer *p;
  pe_error err = {0};
  pe_pieces pieces = {0};
  CHECK_OK(read_json("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a+)+b\"}}", &p, &err), err);
  pe_str bad = pe_str_c("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!b");
  CHECK_FAILS(pe_pretokenizer_split(p, bad, true, &pieces, &err), PE_ELIMIT, err, "limit");
  CHECK_INT(pieces.list.n, 0);
  CHECK_OK(pe_pretokenizer_split(p, pe_str_c("xaab"), true, &pieces, &err), err);
  CHECK_INT(pieces.list.n, 2);
  pe_pieces_free(&pieces);
  pe_pretokenizer_free(p);
}

/* Fail each allocation in turn: an error, no leak, and the same pe_pieces still works. */
static void out_of_memory(void) {
  static const char json[] =
      "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[-"
      "x\\u00e9]+\"},"
      "\"behavior\":\"MergedWithNext\"},{\"type\":\"Split\",\"pattern\":{\"String\":\"q\"}},"
      "{\"type\":\"Metaspace\",\"replacement\":\"_\"},{\"type\":\"UnicodeScripts\"},{\"type\":"
      "\"BertPreTokenizer\"},"
      "{\"type\":\"ByteLevel\",\"use_regex\":false},{\"type\":\"Digits\"}]}";
  pe_pieces pieces = {0};
  for (int64_t k = 1;; k++) {
    pe_pretokenizer *p = NULL;
    pe_error err = {0};
    pe_alloc_fail_at(k);
    pe_status rc = read_json(json, &p, &err);
    if (!rc) rc = pe_pretokenizer_split(p, pe_str_c("a b-\xc3\xa9 12, qw"), true, &pieces, &err);
    bool all = pe_alloc_count() < k;
    pe_alloc_fail_at(0);
    if (rc) CHECK_FAILS(rc, PE_ENOMEM, err, "memory");
    pe_pretokenizer_free(p);
    if (all) break;
  }
  CHECK_INT(pieces.list.n, 16);
  pe_pieces_free(&pieces);
}

/* A sequence of n entries. */
static pe_status read_many(const char *entry, int n, pe_error *err) {
  char json[4096] = "{\"type\":\"Sequence\",\"pretokenizers\":[";
  pe_pretokenizer *p = NULL;
  for (int i = 0; i < n; i++) {
    if (i) strcat(json, ",");
    strcat(json, entry);
  }
  strcat(json, "]}");
  pe_status rc = read_json(json, &p, err);
  pe_pretokenizer_free(p);
  return rc;
}

static void many_stages(void) {
  static const char *const digits = "{\"type\":\"Digits\"}";
  pe_error err = {0};
  CHECK_OK(read_many(digits, 64, &err), err);
  CHECK_FAILS(read_many(digits, 65, &err), PE_ELIMIT, err,
              "stage 65 is one too many, at most 64 are possible");
}

static const check_test tests[] = {
    {"kinds", kinds},     {"nothing", nothing},      {"first", first},      {"bad", bad_input},
    {"hostile", hostile}, {"memory", out_of_memory}, {"many", many_stages},
};
CHECK_MAIN("pretokenizer", tests)
