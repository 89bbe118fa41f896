/* Special tokens and marks are recognised in trusted text only. */
#include "tokenizer_help.h"

#include <string.h>

static void test_trust(void) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  CHECK_OK(read_text("{\"added_tokens\":[" TOKEN("<x>", "true", "false") "," TOKEN(
                         "b<", "true", "false") "," TOKEN("xx", "false", "false") "]," MODEL "}",
                     &t, &err),
           err);
  if (!t) return;
  EXPECT_IDS(t, "a<x>b", NULL, 0, "0 6 1");
  pe_span none[] = {{0, 5, false}}, all[] = {{0, 5, true}}, split[] = {{0, 2, true}, {2, 5, true}},
          half[] = {{0, 2, true}, {2, 5, false}};
  EXPECT_IDS(t, "a<x>b", none, 1, "0 3 5 4 1");
  EXPECT_IDS(t, "a<x>b", all, 1, "0 6 1");
  EXPECT_IDS(t, "a<x>b", split, 2, "0 6 1"); /* neighbouring trusted spans count as one */
  EXPECT_IDS(t, "a<x>b", half, 2, "0 3 5 4 1");
  EXPECT_IDS(t, "a<x>b", none, 0, "0 3 5 4 1"); /* text outside spans is not trusted */
  /* A special token that begins in user text does not swallow the template's token after it. */
  pe_span reach[] = {{0, 1, false}, {1, 4, true}};
  EXPECT_IDS(t, "b<x>", NULL, 0, "7 5 4");
  EXPECT_IDS(t, "b<x>", reach, 2, "1 6");
  pe_span plain[] = {{0, 3, false}};
  EXPECT_IDS(t, "xxa", plain, 1, "8 0"); /* not special: found everywhere */
  /* Merges do not depend on the spans. */
  pe_span cut[] = {{0, 1, true}, {1, 2, false}};
  EXPECT_IDS(t, "ab", cut, 2, "2");
  pe_span bad[] = {{0, 9, true}};
  pe_tokenizer_scratch *s = NULL;
  pe_ids ids = {0};
  pe_encode_options o = {.parse_special = true, .span = bad, .spans = 1};
  CHECK_OK(pe_tokenizer_scratch_new(t, &s, &err), err);
  CHECK_FAILS(pe_tokenizer_encode(t, s, pe_str_c("ab"), &o, &ids, &err), PE_EARG, err,
              "span 0 (0 to 9) must begin at or after 0 and end within 2 bytes");
  /* A mark is recognised where special tokens are. */
  const int32_t mark[] = {3, 8};
  pe_span front[] = {{0, 2, true}, {2, 5, false}};
  o = (pe_encode_options){
      .parse_special = true, .span = front, .spans = 2, .mark = mark, .marks = 2};
  CHECK_OK(pe_tokenizer_encode(t, s, pe_str_c("xxxxa"), &o, &ids, &err), err);
  const int32_t want[] = {8, 5, 5, 0};
  CHECK(ids.count == 4 && !memcmp(ids.id, want, sizeof want));
  CHECK(pe_tokenizer_is_added(t, 8) && !pe_tokenizer_is_added(t, 5));
  ids.count = 0;
  o.span = NULL;
  CHECK_FAILS(pe_tokenizer_encode(t, s, pe_str_of("a\xff", 2), &o, &ids, &err), PE_EARG, err,
              "not UTF-8");
  pe_ids_free(&ids);
  pe_tokenizer_scratch_free(s);
  pe_tokenizer_release(t);
}

/* The model's own vocabulary has the texts of special tokens, too. */
static void test_trust_vocabulary(void) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  CHECK_OK(
      read_text("{\"added_tokens\":[" TOKEN(
                    "<s>", "true",
                    "false") "],\"model\":{\"type\":"
                             "\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"<s>\",0],[\"<\",-1],"
                             "[\"s\",-1],[\">\",-1],[\"s>\",-1],[\"a\",-1]]}}",
                &t, &err),
      err);
  if (!t) return;
  pe_span none[] = {{0, 5, false}}, front[] = {{0, 3, true}, {3, 6, false}};
  EXPECT_IDS(t, "a<s>a", NULL, 0, "6 1 6");
  EXPECT_IDS(t, "a<s>a", none, 1, "6 2 5 6");
  EXPECT_IDS(t, "<s><s>", front, 2, "1 2 5");
  pe_tokenizer_release(t);
}

static void test_trust_normalized(void) {
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  CHECK_OK(read_text("{\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":[" TOKEN(
                         "<X>", "true", "true") "]," MODEL "}",
                     &t, &err),
           err);
  if (!t) return;
  EXPECT_IDS(t, "A<X>b", NULL, 0, "0 6 1");
  EXPECT_IDS(t, "A<x>b", NULL, 0, "0 6 1");
  pe_span none[] = {{0, 5, false}}, part[] = {{0, 3, true}, {3, 5, false}},
          mark[] = {{0, 1, false}, {1, 4, true}, {4, 5, false}};
  EXPECT_IDS(t, "A<X>b", none, 1, "0 3 5 4 1");
  EXPECT_IDS(t, "A<X>b", part, 2, "0 3 5 4 1");
  EXPECT_IDS(t, "A<X>b", mark, 3, "0 6 1");
  pe_tokenizer_release(t);
  /* One that begins in user text does not swallow the template's token after it. */
  CHECK_OK(read_text("{\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":[" TOKEN(
                         "<x>", "true", "true") "," TOKEN("ab<", "true", "true") "]," MODEL "}",
                     &t, &err),
           err);
  pe_span reach[] = {{0, 2, false}, {2, 5, true}};
  EXPECT_IDS(t, "AB<X>b", NULL, 0, "7 5 4 1");
  EXPECT_IDS(t, "AB<X>b", reach, 2, "2 6 1");
  pe_tokenizer_release(t);
}

static const check_test tests[] = {{"spans", test_trust},
                                   {"vocabulary", test_trust_vocabulary},
                                   {"normalized", test_trust_normalized}};
CHECK_MAIN("tokenizer_trust", tests)
