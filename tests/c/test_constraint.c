/* test_constraint.c - phases of an answer, token by token, on a vocabulary made for it: marks that
 * tokens split in every way, gaps, grammars that come again, runs of forced text. Then random
 * histories: whatever was taken, trimmed and forked, the masks are those of a constraint that took
 * the same tokens from the beginning, and an id is in the mask exactly if it can be taken. */
#include "check.h"

#include "runtime/batch/constraint.h"

/* ---- a vocabulary -------------------------------------------------------------------------- */

/* clang-format off */
enum {
  A, B, C, X, LESS, SLASH, T, MORE, LINE, OPEN, CLOSE, QUOTE, COLON, LINES, MORE_LINE,
  MORE_LINE_OPEN, MORE_A, T_MORE, AB, ABC, OPEN_QUOTE, LINE_OPEN, WHOLE_X, END, MARK, ONE, TWO,
  COLON_ONE, COLON_THREE, LINE_A, WHOLE, HALF1, HALF2, ACCENT, VOCABULARY
};
/* clang-format on */

static const char *const word[VOCABULARY] = {"a",        "b",
                                             "c",        "x",
                                             "<",        "/",
                                             "t",        ">",
                                             "\\u010a",  "{",
                                             "}",        "\\\"",
                                             ":",        "\\u010a\\u010a",
                                             ">\\u010a", ">\\u010a{",
                                             ">a",       "t>",
                                             "ab",       "abc",
                                             "{\\\"",    "\\u010a{",
                                             "</t>x",    "<end>",
                                             "<mark>",   "1",
                                             "2",        ":1",
                                             ":3",       "\\u010aa",
                                             "</t>",     "\\u00c3",
                                             "\\u00a9",  "\\u00c3\\u00a9"};

static const char *const merges[] = {"\"a\",\"b\"", "\"ab\",\"c\"", "\"{\",\"\\\"\"",
                                     "\"\\u010a\",\"\\u010a\"", "\"\\u00c3\",\"\\u00a9\""};

static void put_added(pe_buf *json, int id, const char *text, bool special) {
  pe_buf_printf(json, NULL,
                "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                "\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                special ? "" : ",", id, text, special ? "true" : "false");
}

static pe_tokenizer *open_tokenizer(void) {
  pe_buf json = {0};
  pe_error err = {0};
  pe_tokenizer *t = NULL;
  pe_buf_printf(&json, &err, "{\"version\":\"1.0\",\"added_tokens\":[");
  put_added(&json, END, "<end>", true);
  put_added(&json, MARK, "<mark>", false);
  pe_buf_printf(
      &json, &err,
      "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
      "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
      "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
      "true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\","
      "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
      "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
  for (int i = 0; i < VOCABULARY; i++)
    pe_buf_printf(&json, &err, "%s\"%s\":%d", i ? "," : "", word[i], i);
  pe_buf_printf(&json, &err, "},\"merges\":[");
  for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
    pe_buf_printf(&json, &err, "%s[%s]", i ? "," : "", merges[i]);
  pe_buf_printf(&json, &err, "]}}");
  CHECK_OK(pe_tokenizer_read_json(json.data, json.len, &t, &err), err);
  pe_buf_free(&json);
  return t;
}

/* ---- what all tests use -------------------------------------------------------------------- */

static pe_tokenizer *tokenizer;
static pe_tokmask *tokens;

static bool set_up(void) {
  pe_error err = {0};
  if (!(tokenizer = open_tokenizer())) return false;
  CHECK_OK(pe_tokmask_open(tokenizer, (int32_t[]){END}, 1, &tokens, &err), err);
  return tokens && pe_tokmask_build(tokens, &err) == PE_OK;
}

static void tear_down(void) { pe_tokmask_release(tokens), pe_tokenizer_release(tokenizer); }

static pe_grammar *regex(const char *pattern) {
  pe_grammar *g = NULL;
  pe_error err = {0};
  CHECK_OK(pe_grammar_regex(pe_str_c(pattern), &g, &err), err);
  return g;
}

static pe_constraint_options options(const pe_phase *phase, int32_t phases) {
  return (pe_constraint_options){.tokenizer = tokenizer,
                                 .tokens = tokens,
                                 .vocabulary = VOCABULARY,
                                 .phase = phase,
                                 .phases = phases};
}

static pe_constraint *open_with(const pe_constraint_options *o) {
  pe_constraint *c = NULL;
  pe_error err = {0};
  CHECK_OK(pe_constraint_open(o, &c, &err), err);
  return c;
}

static pe_constraint *open_phases(const pe_phase *phase, int32_t phases) {
  const pe_constraint_options o = options(phase, phases);
  return open_with(&o);
}

static bool take(pe_constraint *c, int32_t id) {
  pe_error err = {0};
  bool ok;
  CHECK_OK(pe_constraint_take(c, id, &ok, &err), err);
  return ok;
}

static bool allows(pe_constraint *c, int32_t id) {
  const uint32_t *allow;
  pe_error err = {0};
  CHECK_OK(pe_constraint_mask(c, &allow, &err), err);
  if (pe_constraint_bans_ends(c) && id == END) return false;
  return !allow || allow[id / 32] >> id % 32 & 1;
}

/* The ids of the mask, separated by spaces; "all". */
static void expect_mask(pe_constraint *c, const char *want, int line) {
  const uint32_t *allow;
  pe_error err = {0};
  char got[400] = "all";
  CHECK_OK(pe_constraint_mask(c, &allow, &err), err);
  if (allow) *got = 0;
  for (int32_t i = 0, n = 0; allow && i < VOCABULARY; i++)
    if (allow[i / 32] >> i % 32 & 1)
      n += snprintf(got + n, sizeof got - (size_t)n, "%s%d", n ? " " : "", i);
  if (strcmp(got, want))
    check_failures++, printf("    line %d: the mask is %s, not %s\n", line, got, want);
}
#define EXPECT_MASK(c, want) expect_mask(c, want, __LINE__)
#define LIST(...) (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static bool take_all(pe_constraint *c, const int32_t *id, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!take(c, id[i])) return false;
  return true;
}

/* All but </t>x, which does not fit after the mark </t>. */
static const char *const but_whole_x =
    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 23 24 "
    "25 26 27 28 29 30 31 32 33";

/* ---- phases -------------------------------------------------------------------------------- */

static void test_a_grammar_alone(void) {
  pe_grammar *g = regex("a+b?");
  const pe_phase phase = {.grammar = g};
  pe_constraint *c = open_phases(&phase, 1);
  EXPECT_MASK(c, "0 18"); /* a ab */
  CHECK(!pe_constraint_complete(c) && !pe_constraint_bans_ends(c));
  CHECK(!take(c, B) && !take(c, END) && !take(c, MARK));
  CHECK(take(c, A));
  EXPECT_MASK(c, "0 1 18 23"); /* a b ab <end> */
  CHECK(pe_constraint_complete(c) && !pe_constraint_over(c));
  CHECK(take(c, B));
  CHECK(pe_constraint_over(c) && pe_constraint_complete(c));
  EXPECT_MASK(c, "");
  CHECK(!take(c, A) && !take(c, END));
  pe_constraint_trim(c, 1);
  EXPECT_MASK(c, "0 1 18 23");
  CHECK(take(c, END) && pe_constraint_over(c));
  CHECK_INT(pe_constraint_count(c), 2);
  pe_constraint_close(c), pe_grammar_release(g);
}

static void test_ends(void) {
  pe_grammar *g = regex("a+x?");
  const pe_phase phase = {.grammar = g};
  pe_constraint_options o = options(&phase, 1);
  o.stop_id = (int32_t[]){C, A}, o.stop_ids = 2; /* one that fits, and one that does not */
  pe_constraint *c = open_with(&o);
  EXPECT_MASK(c, ""); /* an a would end the answer before it is complete */
  pe_constraint_close(c);
  o.stop_ids = 1;
  c = open_with(&o);
  EXPECT_MASK(c, "0");
  CHECK(!take(c, C) && take(c, A));
  EXPECT_MASK(c, "0 2 3 23"); /* a c x <end> */
  CHECK(take(c, C) && pe_constraint_over(c));
  pe_constraint_close(c);
  o.ignore_end = true;
  c = open_with(&o);
  CHECK(take(c, A));
  EXPECT_MASK(c, "0 2 3");
  CHECK(!take(c, END));
  pe_constraint_close(c), pe_grammar_release(g);
}

static void test_marks_by_id(void) {
  pe_grammar *g = regex("a+b");
  const int32_t mark = MARK;
  const pe_phase phase[] = {{.mark_id = &mark, .mark_ids = 1}, {.grammar = g}};
  pe_constraint *c = open_phases(phase, 2);
  EXPECT_MASK(c, "all");
  CHECK(pe_constraint_bans_ends(c) && !pe_constraint_complete(c));
  CHECK(take(c, LESS) && take(c, X) && take(c, MARK));
  EXPECT_MASK(c, "0 18");
  CHECK(!pe_constraint_bans_ends(c));
  CHECK(take(c, AB) && pe_constraint_over(c));
  pe_constraint_trim(c, 2);
  EXPECT_MASK(c, "all");
  pe_constraint_close(c), pe_grammar_release(g);
}

/* Every way to split </t>, with every rest. */
static void test_marks_by_bytes(void) {
  pe_grammar *g = regex("a+b");
  const pe_str mark = pe_str_c("</t>");
  const pe_phase phase[] = {{.mark = &mark, .marks = 1}, {.grammar = g}};
  pe_constraint *c = open_phases(phase, 2);
  CHECK(!allows(c, WHOLE_X) && allows(c, WHOLE) && allows(c, MORE_A) && allows(c, MORE_LINE));
  CHECK(take_all(c, LIST(LESS, SLASH, T)));
  CHECK(allows(c, MORE) && allows(c, MORE_A) && !allows(c, MORE_LINE) &&
        !allows(c, MORE_LINE_OPEN));
  CHECK(allows(c, X) && allows(c, LESS) && !allows(c, WHOLE_X));
  CHECK(!take(c, MORE_LINE) && !take(c, WHOLE_X));
  CHECK(take(c, MORE_A));
  EXPECT_MASK(c, "0 1 18");
  pe_constraint_trim(c, 2);
  CHECK(take(c, T_MORE));
  EXPECT_MASK(c, "0 18");
  pe_constraint_trim(c, 1); /* "<" begins another mark: "<</t>" */
  CHECK(take_all(c, LIST(LESS, SLASH, T, MORE)));
  EXPECT_MASK(c, "0 18");
  pe_constraint_trim(c, 0);
  CHECK(take_all(c, LIST(LESS, SLASH, T, END + 1, MORE))); /* <mark> is text between them */
  EXPECT_MASK(c, but_whole_x);
  pe_constraint_close(c), pe_grammar_release(g);
}

static void test_marks_stop_at_special_tokens(void) {
  pe_grammar *g = regex("a+b");
  const pe_str mark = pe_str_c("</t>");
  const pe_phase phase[] = {{.mark = &mark, .marks = 1, .ends = true}, {.grammar = g}};
  pe_constraint_options o = options(phase, 2);
  o.ignore_end = true; /* then <end> is a special token like others */
  pe_constraint *c = open_with(&o);
  CHECK(!pe_constraint_bans_ends(c) && pe_constraint_complete(c));
  CHECK(take_all(c, LIST(LESS, SLASH, T, END, MORE)));
  EXPECT_MASK(c, but_whole_x);
  CHECK(take(c, WHOLE));
  EXPECT_MASK(c, "0 18");
  pe_constraint_close(c), pe_grammar_release(g);
}

static void test_an_end_in_a_free_phase(void) {
  const pe_phase phase = {.ends = true};
  pe_constraint *c = open_phases(&phase, 1);
  EXPECT_MASK(c, "all");
  CHECK(take(c, X) && !pe_constraint_over(c) && take(c, END) && pe_constraint_over(c));
  pe_constraint_close(c);
}

static void test_gap(void) {
  pe_grammar *g = regex("\\{a+");
  const pe_str mark = pe_str_c("</t>");
  const pe_phase phase[] = {{.mark = &mark, .marks = 1}, {.grammar = g, .gap = true}};
  pe_constraint *c = open_phases(phase, 2);
  CHECK(take_all(c, LIST(LESS, SLASH, T)));
  CHECK(allows(c, MORE_LINE) && allows(c, MORE_LINE_OPEN) && !allows(c, MORE_A));
  CHECK(take(c, MORE));
  EXPECT_MASK(c, "8 9 13 21"); /* line, {, two lines, line { */
  CHECK(take(c, LINE));
  EXPECT_MASK(c, "8 9 21");
  CHECK(!take(c, LINES) && take(c, LINE));
  EXPECT_MASK(c, "9");
  pe_constraint_trim(c, 4);
  CHECK(take(c, LINES));
  EXPECT_MASK(c, "9");
  CHECK(take(c, OPEN));
  EXPECT_MASK(c, "0"); /* no gap inside */
  pe_constraint_trim(c, 4);
  CHECK(take(c, LINE_OPEN));
  EXPECT_MASK(c, "0");
  pe_constraint_trim(c, 3);
  CHECK(take(c, MORE_LINE_OPEN));
  EXPECT_MASK(c, "0");
  pe_constraint_close(c), pe_grammar_release(g);
}

/* Free text, a call, free text, a call ... */
static void test_back(void) {
  pe_grammar *g = regex("a+b");
  const int32_t mark = MARK;
  const pe_phase phase[] = {{.mark_id = &mark, .mark_ids = 1, .ends = true},
                            {.grammar = g, .back = 1}};
  pe_constraint *c = open_phases(phase, 2);
  for (int i = 0; i < 3; i++) {
    CHECK(take(c, X) && take(c, MARK));
    EXPECT_MASK(c, "0 18");
    CHECK(take(c, A));
    EXPECT_MASK(c, "0 1 18");
    CHECK(take(c, AB));
    EXPECT_MASK(c, "all");
    CHECK(!pe_constraint_over(c) && pe_constraint_complete(c));
  }
  pe_constraint_trim(c, 7); /* into the second call */
  EXPECT_MASK(c, "0 1 18");
  pe_constraint_trim(c, 2);
  EXPECT_MASK(c, "0 18");
  CHECK(take(c, A) && take(c, B) && take(c, MARK));
  EXPECT_MASK(c, "0 18");
  pe_constraint_close(c), pe_grammar_release(g);
}

static void test_empty_texts(void) {
  pe_grammar *g = regex(""), *h = regex("a");
  const pe_phase phase[] = {{.grammar = g, .back = 2}, {.grammar = g, .back = 1}};
  pe_constraint *c = open_phases(phase, 2);
  CHECK(pe_constraint_over(c)); /* a circle */
  pe_constraint_close(c);
  const pe_phase other[] = {{.grammar = g, .back = 2}, {.grammar = h}};
  c = open_phases(other, 2);
  EXPECT_MASK(c, "0");
  CHECK(take(c, A) && pe_constraint_over(c));
  pe_constraint_close(c), pe_grammar_release(g), pe_grammar_release(h);
}

static void test_checks(void) {
  pe_grammar *g = regex("a");
  pe_error err = {0};
  const pe_str empty = {"", 0};
  CHECK_OK(pe_phases_check(NULL, 0, &err), err);
  CHECK_FAILS(pe_phases_check(&(pe_phase){.grammar = g, .ends = true}, 1, &err), PE_EARG, err,
              "phases[1] has a grammar");
  CHECK_FAILS(pe_phases_check(&(pe_phase){.gap = true}, 1, &err), PE_EARG, err, "no grammar");
  CHECK_FAILS(pe_phases_check(&(pe_phase){.grammar = g, .back = 2}, 1, &err), PE_EARG, err,
              "between 1 and 1, got 2");
  CHECK_FAILS(pe_phases_check(&(pe_phase){.mark = &empty, .marks = 1}, 1, &err), PE_EARG, err,
              "1 to 64 bytes, got 0");
  CHECK_FAILS(pe_phases_check(NULL, PE_PHASES + 1, &err), PE_ELIMIT, err, "limit is 16");
  CHECK_STR(err.field, "phases");
  pe_grammar_release(g);
}

/* ---- runs ---------------------------------------------------------------------------------- */

static pe_ids run_of(pe_constraint *c, const int32_t *made, size_t n, int32_t most) {
  pe_tokenizer_scratch *scratch = NULL;
  pe_ids run = {0};
  pe_error err = {0};
  CHECK_OK(pe_tokenizer_scratch_new(tokenizer, &scratch, &err), err);
  CHECK_OK(pe_constraint_run(c, scratch, made, (int32_t)n, most, &run, &err), err);
  pe_tokenizer_scratch_free(scratch);
  return run;
}

/* Takes the tokens; the ids of the run after them. */
static void expect_run(const char *pattern, const int32_t *made, size_t n, int32_t most,
                       const char *want, int line) {
  pe_grammar *g = regex(pattern);
  const pe_phase phase = {.grammar = g};
  pe_constraint *c = open_phases(&phase, 1);
  char got[200] = "";
  CHECK(take_all(c, made, n));
  size_t last = n < PE_CONSTRAINT_LOOKBACK ? n : PE_CONSTRAINT_LOOKBACK;
  pe_ids run = run_of(c, made + n - last, last, most);
  for (size_t i = 0, k = 0; i < run.count; i++)
    k += (size_t)snprintf(got + k, sizeof got - k, "%s%d", i ? " " : "", run.id[i]);
  if (strcmp(got, want))
    check_failures++, printf("    line %d: the run is %s, not %s\n", line, got, want);
  CHECK_INT(pe_constraint_count(c), n); /* nothing is taken */
  CHECK(take_all(c, run.id, run.count));
  pe_ids_free(&run), pe_constraint_close(c), pe_grammar_release(g);
}
#define EXPECT_RUN(pattern, most, want, ...)                                                       \
  expect_run(pattern, LIST(__VA_ARGS__), most, want, __LINE__)

static void test_runs(void) {
  EXPECT_RUN("\\{\"abc\":(2|\")\\}", 99, "19 11 12", OPEN_QUOTE); /* abc " : */
  EXPECT_RUN("\\{\"abc\":(2|\")\\}", 2, "19 11", OPEN_QUOTE);
  EXPECT_RUN("\\{\"abc\":(1|2)\\}", 99, "19 11", OPEN_QUOTE); /* :1 could come */
  EXPECT_RUN("\\{\"abc\":(3|2)\\}", 99, "19 11", OPEN_QUOTE); /* :3 could come */
  EXPECT_RUN("\\{\"abc\":(1|2)\\}", 99, "", OPEN);            /* the tokenizer writes {" */
  EXPECT_RUN("\\{\"abc\":(2|\")\\}", 99, "10", OPEN_QUOTE, ABC, QUOTE, COLON, TWO);
  EXPECT_RUN("xa(b|x)", 99, "", X);   /* ab could come */
  EXPECT_RUN("xa(c|x)", 99, "0", X);  /* ab could not */
  EXPECT_RUN("x(ab|x)", 99, "", X);   /* nothing must come */
  EXPECT_RUN("xé(a|x)", 99, "33", X); /* a whole character */
  EXPECT_RUN("x(é|è)", 99, "", X);    /* half of one */
  EXPECT_RUN("xa*", 99, "", X);       /* it may end */
}

static void test_no_run_in_a_gap(void) {
  pe_grammar *g = regex("\\{\"abc\"");
  const int32_t mark = MARK;
  const pe_phase phase[] = {{.mark_id = &mark, .mark_ids = 1}, {.grammar = g, .gap = true}};
  pe_constraint *c = open_phases(phase, 2);
  pe_ids run = run_of(c, NULL, 0, 9);
  CHECK_INT(run.count, 0);
  CHECK(take(c, MARK));
  run = run_of(c, LIST(MARK), 9);
  CHECK_INT(run.count, 0);
  CHECK(take(c, LINE) && take(c, LINE)); /* the gap is full */
  run = run_of(c, LIST(MARK, LINE, LINE), 9);
  CHECK_INT(run.count, 3); /* {" abc " */
  pe_ids_free(&run), pe_constraint_close(c), pe_grammar_release(g);
}

static void test_no_run_of_stop_ids(void) {
  pe_grammar *g = regex("xabc(a|x)");
  const pe_phase phase = {.grammar = g};
  const int32_t stop = ABC;
  pe_constraint_options o = options(&phase, 1);
  o.stop_id = &stop, o.stop_ids = 1;
  pe_constraint *c = open_with(&o);
  CHECK(take(c, X));
  pe_ids run = run_of(c, LIST(X), 9);
  CHECK_INT(run.count, 0);
  pe_ids_free(&run), pe_constraint_close(c), pe_grammar_release(g);
}

/* ---- random histories ---------------------------------------------------------------------- */

static uint64_t state = 1;
static int chance(int n) {
  uint64_t x = state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (int)((x ^ x >> 31) % (uint64_t)n);
}

enum { LONGEST = 64, GRAMMARS = 5 };

typedef struct history {
  pe_constraint *c;
  int32_t id[LONGEST], count;
} history;

/* Against a constraint that took the same tokens from the beginning. */
static void check_history(const pe_constraint_options *o, history *h) {
  pe_constraint *fresh = open_with(o);
  CHECK(take_all(fresh, h->id, (size_t)h->count));
  CHECK_INT(pe_constraint_count(h->c), h->count);
  CHECK_INT(pe_constraint_over(h->c), pe_constraint_over(fresh));
  CHECK_INT(pe_constraint_complete(h->c), pe_constraint_complete(fresh));
  for (int32_t id = 0; id < VOCABULARY; id++) {
    bool ok = take(fresh, id);
    if (ok) pe_constraint_trim(fresh, h->count);
    if (ok && id == END && pe_constraint_bans_ends(h->c)) ok = false; /* a ban, not a refusal */
    if (allows(h->c, id) != ok)
      check_failures++, printf("    token %d after %d tokens: %s\n", id, h->count,
                               ok ? "not in the mask" : "in the mask and refused");
  }
  pe_constraint_close(fresh);
}

static void random_take(history *h) {
  int32_t id = chance(VOCABULARY);
  for (int i = 0; i < 200 && !allows(h->c, id); i++) id = chance(VOCABULARY);
  if (h->count < LONGEST && take(h->c, id)) h->id[h->count++] = id;
}

static void fork_from(history *h, const history *from) {
  pe_constraint *c = NULL;
  pe_error err = {0};
  CHECK_OK(pe_constraint_fork(from->c, &c, &err), err);
  pe_constraint_close(h->c);
  *h = *from;
  h->c = c;
}

static void random_case(pe_grammar *const *g) {
  const pe_str mark[2] = {pe_str_c("</t>"), pe_str_c(">a")};
  const int32_t mark_id = MARK, stop = C;
  pe_phase phase[3];
  int32_t phases = 1 + chance(3);
  for (int32_t i = 0; i < phases; i++) {
    if (chance(2))
      phase[i] =
          (pe_phase){.grammar = g[chance(GRAMMARS)], .gap = chance(2), .back = chance(phases + 1)};
    else
      phase[i] = (pe_phase){.mark = mark,
                            .marks = chance(3),
                            .mark_id = &mark_id,
                            .mark_ids = chance(2),
                            .ends = chance(2)};
  }
  pe_constraint_options o = options(phase, phases);
  o.stop_id = &stop, o.stop_ids = chance(2), o.ignore_end = !chance(3);
  history h[2] = {{.c = open_with(&o)}, {.c = open_with(&o)}};
  for (int i = 0; i < 30; i++) {
    history *one = &h[chance(2)];
    int what = chance(8);
    if (what == 0)
      one->count = chance(one->count + 1), pe_constraint_trim(one->c, one->count);
    else if (what == 1)
      fork_from(one, &h[one == h]);
    else
      random_take(one);
    if (!chance(4)) check_history(&o, one);
  }
  for (int i = 0; i < 2; i++) check_history(&o, &h[i]), pe_constraint_close(h[i].c);
}

static void test_random_histories(void) {
  static const char *const pattern[GRAMMARS] = {"a+b?", "(ab|x)*c", "\\{\"(abc|a)\":[12]\\}", "",
                                                "\n?a"};
  pe_grammar *g[GRAMMARS];
  for (int i = 0; i < GRAMMARS; i++) g[i] = regex(pattern[i]);
  for (int i = 0; i < 300 && !check_failures; i++) random_case(g);
  for (int i = 0; i < GRAMMARS; i++) pe_grammar_release(g[i]);
}

/* One token with everything that comes with it; the `at`-th allocation fails. */
static pe_status step_failing(pe_constraint *c, int32_t id, int at) {
  pe_tokenizer_scratch *scratch = NULL;
  pe_constraint *fork = NULL;
  pe_ids run = {0};
  pe_error err = {0};
  const uint32_t *allow;
  bool ok = false;
  CHECK_OK(pe_tokenizer_scratch_new(tokenizer, &scratch, &err), err);
  pe_alloc_fail_at(at);
  pe_status rc = pe_constraint_mask(c, &allow, &err);
  if (!rc) rc = pe_constraint_fork(c, &fork, &err);
  if (!rc) rc = pe_constraint_run(c, scratch, NULL, 0, 9, &run, &err);
  if (!rc) rc = pe_constraint_take(c, id, &ok, &err);
  pe_alloc_fail_at(0);
  CHECK(rc == PE_ENOMEM || ok);
  pe_ids_free(&run), pe_constraint_close(fork), pe_tokenizer_scratch_free(scratch);
  return rc;
}

/* An allocation that fails ends the call with an error, and nothing was taken. */
static void test_failures(void) {
  static const int32_t text[] = {X,     LESS,  SLASH, T,   MORE_LINE, OPEN_QUOTE, ABC,
                                 QUOTE, COLON, ONE,   TWO, CLOSE,     X};
  enum { TEXT = sizeof text / sizeof *text };
  const pe_str mark = pe_str_c("</t>");
  int failed = 0;
  for (int i = 0; i < TEXT; i++)
    for (int at = 1; at < 40 && !check_failures; at++) {
      pe_grammar *g = regex("\\{\"(abc|a)\":[12]+\\}");
      const pe_phase phase[] = {{.mark = &mark, .marks = 1},
                                {.grammar = g, .gap = true, .back = 1}};
      pe_constraint *c = open_phases(phase, 2);
      CHECK(take_all(c, text, (size_t)i));
      pe_status rc = step_failing(c, text[i], at);
      failed += rc != PE_OK;
      CHECK_INT(pe_constraint_count(c), rc ? i : i + 1);
      pe_constraint_close(c), pe_grammar_release(g);
    }
  CHECK(failed > 100);
}

static const check_test tests[] = {
    {"a_grammar_alone", test_a_grammar_alone},
    {"ends", test_ends},
    {"marks_by_id", test_marks_by_id},
    {"marks_by_bytes", test_marks_by_bytes},
    {"marks_stop_at_special_tokens", test_marks_stop_at_special_tokens},
    {"an_end_in_a_free_phase", test_an_end_in_a_free_phase},
    {"gap", test_gap},
    {"back", test_back},
    {"empty_texts", test_empty_texts},
    {"checks", test_checks},
    {"runs", test_runs},
    {"no_run_in_a_gap", test_no_run_in_a_gap},
    {"no_run_of_stop_ids", test_no_run_of_stop_ids},
    {"random_histories", test_random_histories},
    {"failures", test_failures},
};

int main(int argc, char **argv) {
  int failed = 1;
  if (set_up())
    failed = check_main("constraint", tests, (int)(sizeof tests / sizeof *tests), argc, argv);
  tear_down();
  return failed;
}
