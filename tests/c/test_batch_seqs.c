/* test_batch_seqs.c - one sequence of a batch: how it ends, what it may not generate, commands that
 * change it. */
#include "batch_run.h"

/* ---- how sequences end --------------------------------------------------------------------- */

static const answer *forced(pe_request *r, const int32_t *ids, int32_t count) {
  pe_error err;
  pe_seq_id id = add(r);
  CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_FORCE, id, .ids = {ids, count}}, NULL, &err), err);
  finish(100);
  return &answers[id];
}

static void check_text(const answer *a, const char *text, pe_finish why, int32_t stop_index,
                       int32_t tokens) {
  char got[200];
  snprintf(got, sizeof got, "%.*s", (int)a->text.len, a->text.data ? a->text.data : "");
  CHECK_STR(got, text);
  CHECK_STR(pe_finish_name(a->finish), pe_finish_name(why));
  CHECK_INT(a->stop_index, stop_index);
  CHECK_INT(a->count, tokens);
  CHECK_INT(a->generated, tokens);
}

static void test_stop_strings(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_str stop[] = {pe_str_c("zed"), pe_str_c("abc")};
  pe_request r = request(4, 6);
  r.stop = stop, r.stop_count = 2;
  if (!batch_open(&o)) return;
  check_text(forced(&r, (int32_t[]){3, 0, 1, 2, 4, 4}, 6), "d", PE_FINISH_STOP, 1, 4); /* d a b c */
  check_text(forced(&r, (int32_t[]){3, 0, 1, 0, 7, 4}, 6), "dab", PE_FINISH_STOP, 1,
             5); /* d a b a bc */
  check_text(forced(&r, (int32_t[]){12, 19, 0, 0, 0, 0}, 6), "", PE_FINISH_STOP, 0, 2); /* z ed */
  check_text(forced(&r, (int32_t[]){3, 12, 4, 12, 6, 0}, 6), "dzezaba", PE_FINISH_LENGTH, -1,
             6); /* what was held back comes in the end */
  check_text(forced(&r, (int32_t[]){13, 14, 13, 0, 13, 14}, 6),
             "\xc3\xa9\xef\xbf\xbd"
             "a\xc3\xa9",
             PE_FINISH_LENGTH, -1, 6); /* halves of a character */
  r.min_tokens = 4;
  check_text(forced(&r, (int32_t[]){9, 9, 0, 0, 9, 0}, 6), "abcabcaa", PE_FINISH_STOP, 1, 5);
  batch_close(), model_close(&m);
}

/* A cancelled sequence has said all that was certain; what may be the beginning of a stop string or
 * half a character never comes. */
static void test_cancelled_text(void) {
  static const struct {
    int32_t id[4], count;
    const char *text;
  } cases[] = {{{3, 0, 1}, 3, "d"},       /* d a b: perhaps abc */
               {{3, 0, 1, 3}, 4, "dabd"}, /* d a b d: it was not */
               {{3, 13}, 2, "d"},         /* half of a character */
               {{6, 13, 14}, 3, "ab\xc3\xa9"}};
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_error err;
  pe_str stop = pe_str_c("abc");
  pe_request r = request(4, 6);
  r.stop = &stop, r.stop_count = 1;
  if (!batch_open(&o)) return;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const pe_event *e;
    pe_seq_id id = add(&r);
    CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_FORCE, id, .ids = {cases[i].id, cases[i].count}},
                         NULL, &err),
             err);
    for (int32_t k = 0; k < cases[i].count; k++) step(100, false);
    int32_t before = pe_batch_events(b, &e);
    pe_batch_do(b, &(pe_command){.verb = PE_DO_CANCEL, .seq = id}, NULL, NULL);
    CHECK_INT(pe_batch_events(b, &e), before + 1);
    CHECK_INT(e[before].text.len, 0);
    answers[id].finish = e[before].finish, answers[id].generated = e[before].generated,
    answers[id].stop_index = e[before].stop_index;
    check_text(&answers[id], cases[i].text, PE_FINISH_CANCEL, -1, cases[i].count);
    CHECK_INT(step(100, false), 0);
  }
  batch_close(), model_close(&m);
}

static void test_ends(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  int32_t stop_id = 5;
  pe_request r = request(4, 5);
  if (!batch_open(&o)) return;
  check_text(forced(&r, (int32_t[]){0, END, 1, 2, 3}, 5), "abcd", PE_FINISH_LENGTH, -1,
             5); /* ignore_eos */
  r.ignore_eos = false;
  check_text(forced(&r, (int32_t[]){0, 1, END}, 3), "ab", PE_FINISH_STOP, -1, 3);
  r.stop_ids = (pe_ids_view){&stop_id, 1};
  check_text(forced(&r, (int32_t[]){0, 5}, 2), "a", PE_FINISH_STOP, -1, 2);
  r.max_tokens = 0;
  check_text(forced(&r, NULL, 0), "", PE_FINISH_LENGTH, -1, 0);
  r.max_tokens = -1, r.stop_ids.count = 0, r.ignore_eos = true;
  const answer *a = forced(&r, NULL, 0);
  CHECK_INT(a->count, 44); /* to the end of the context */
  CHECK_INT(a->finish, PE_FINISH_LENGTH);
  r.max_tokens = 1000;
  CHECK_INT(forced(&r, NULL, 0)->count, 44);
  batch_close(), model_close(&m);
}

/* END is special: it is in the text where it is asked for. */
static void test_keep_special(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_error err;
  pe_request r = request(4, 3);
  int32_t keep[2] = {3, END}, ids[3] = {0, END, 1};
  pe_seq_id id = 0;
  if (!batch_open(&o)) return;
  pe_str end = pe_tokenizer_text(m.tokenizer, END);
  char want[64];
  snprintf(want, sizeof want, "a%.*sb", (int)end.len, end.at);
  check_text(forced(&r, ids, 3), "ab", PE_FINISH_LENGTH, -1, 3);
  r.keep_special = (pe_ids_view){keep, 2};
  check_text(forced(&r, ids, 3), want, PE_FINISH_LENGTH, -1, 3);
  r.keep_special.count = 1;
  check_text(forced(&r, ids, 3), "ab", PE_FINISH_LENGTH, -1, 3);
  keep[0] = VOCAB; /* a mark that the model cannot generate is ignored */
  check_text(forced(&r, ids, 3), "ab", PE_FINISH_LENGTH, -1, 3);
  r.keep_special.count = -1;
  CHECK_FAILS(batch_add(b, &r, &id, &err), PE_EARG, err, "keep_special has -1 ids");
  batch_close(), model_close(&m);
}

/* Whatever the greedy answer is, each of its ids as end id ends it where it first comes, or not
 * before min_tokens. */
static void test_min_tokens(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_request r = request(6, 10);
  if (!batch_open(&o)) return;
  answer plain = *forced(&r, NULL, 0);
  for (int i = 0; i < plain.count; i++) {
    int first = 0;
    r = request(6, 10);
    r.stop_ids = (pe_ids_view){&plain.token[i], 1};
    while (plain.token[first] != plain.token[i]) first++;
    const answer *a = forced(&r, NULL, 0);
    CHECK_INT(a->count, first + 1);
    CHECK_INT(a->finish, PE_FINISH_STOP);
    r.min_tokens = 8;
    a = forced(&r, NULL, 0);
    CHECK(a->count > 8);
    for (int k = 0; k < 8; k++) CHECK(a->token[k] != plain.token[i]);
  }
  batch_close(), model_close(&m);
}

static void test_bad_words(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_request r = request(6, 12);
  if (!batch_open(&o)) return;
  answer plain = *forced(&r, NULL, 0);
  for (int32_t words = 1; words < 4; words++) {
    pe_ids_view bad = {plain.token + 2, words};
    r.bad_words = &bad, r.bad_count = 1;
    const answer *a = forced(&r, NULL, 0);
    for (int32_t i = 0; i + words <= a->count; i++)
      CHECK(memcmp(a->token + i, bad.id, (size_t)words * 4));
    CHECK(!memcmp(a->token, plain.token, 4 * (size_t)(words == 1 ? 0 : words + 1)));
  }
  batch_close(), model_close(&m);
}

/* NaN in the caches of one sequence ends that sequence alone. */
static void test_nan(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_request r = request(9, 8);
  if (!batch_open(&o)) return;
  pe_seq_id bad = add(&r), good = add(&r);
  step(100, false), step(100, false);
  int32_t block = pe_batch_find(b, bad)->cache.tables.table[0][0];
  const pe_kv_layer *layer = &b->kv->layer[0];
  *(float *)(void *)(layer->values + (uint64_t)block * layer->step) = NAN;
  finish(100);
  CHECK_INT(answers[bad].finish, PE_FINISH_ERROR);
  CHECK(strstr(answers[bad].error.text, "position"));
  CHECK_INT(answers[bad].count, 2);
  answer want = alone(&r, &o);
  check_answer("the other sequence", &answers[good], &want);
  pe_buf_free(&want.text);
  CHECK_INT(b->kv->used[0], 0);
  batch_close(), model_close(&m);
}

/* ---- sequences by hand --------------------------------------------------------------------- */

static void test_fork(void) {
  for (kind k = DENSE; k < KINDS; k++) {
    if (!model_open(&m, k, 1)) return;
    pe_batch_options o = options();
    pe_error err;
    pe_seq_id same = 0, other = 0;
    pe_request r = request(11, 12);
    r.sampling.temperature = 1.5f, r.sampling.seed = 3;
    if (!batch_open(&o)) return;
    pe_seq_id id = add(&r);
    CHECK_FAILS(batch_fork(b, id, 3, &same, &err), PE_EARG, err, "has not computed its prompt yet");
    for (int i = 0; i < 5; i++) step(100, false);
    CHECK_OK(batch_fork(b, id, 3, &same, &err), err);
    CHECK_OK(batch_fork(b, id, 4, &other, &err), err);
    CHECK_FAILS(batch_fork(b, 77, 4, &other, &err), PE_ENOTFOUND, err,
                "sequence 77 does not exist");
    finish(100);
    answer want = alone(&r, &o);
    check_answer(kind_name[k], &answers[id], &want);
    CHECK_INT(answers[same].count, 7);
    CHECK(!memcmp(answers[same].token, want.token + 5, 7 * 4));
    CHECK(memcmp(answers[other].token, want.token + 5, 7 * 4));
    CHECK_INT(answers[other].generated, 12);
    pe_buf_free(&want.text);
    batch_close(), model_close(&m);
  }
}

/* A trimmed sequence generates the same again, since the draw depends on the position. */
static void test_trim(void) {
  for (kind k = DENSE; k < KINDS; k++)
    for (int32_t keep = 0; keep < 6; keep++) {
      if (!model_open(&m, k, 1)) return;
      pe_batch_options o = options();
      pe_error err;
      pe_request r = request(9, 12);
      r.sampling.temperature = 1.2f;
      if (!batch_open(&o)) return;
      pe_seq_id id = add(&r);
      for (int i = 0; i < 6; i++) step(100, false);
      CHECK_INT(answers[id].count, 6);
      CHECK_FAILS(pe_batch_do(b, &(pe_command){PE_DO_TRIM, id, .tokens = 8}, NULL, &err), PE_EARG,
                  err, "can keep between 9 and 15 tokens, got 8");
      CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_TRIM, id, .tokens = 9 + keep}, NULL, &err), err);
      finish(100);
      answer want = alone(&r, &o);
      CHECK_INT(answers[id].count, 12 + 6 - keep);
      CHECK_INT(answers[id].generated, 12);
      CHECK(!memcmp(answers[id].token + 6, want.token + keep, 4 * (size_t)(12 - keep)));
      pe_buf_free(&want.text);
      batch_close(), model_close(&m);
    }
}

static void test_bias_and_logits(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_error err;
  oracle truth;
  pe_request r = request(9, 4);
  oracle_open(&truth, &m);
  if (!batch_open(&o)) return;
  pe_seq_id id = add(&r);
  CHECK(!pe_batch_logits(b, id));
  pe_batch_do(b, &(pe_command){PE_DO_KEEP_LOGITS, id, .on = true}, NULL, NULL);
  CHECK(!pe_batch_logits(b, id));
  CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_BIAS, id, .bias = {&(pe_logit_bias){17, 100}, 1}},
                       NULL, &err),
           err);
  CHECK_FAILS(pe_batch_do(b, &(pe_command){PE_DO_BIAS, id, .bias = {&(pe_logit_bias){17, NAN}, 1}},
                          NULL, &err),
              PE_EARG, err, "bias");
  CHECK_FAILS(pe_batch_do(b, &(pe_command){PE_DO_BIAS, id, .bias = {&(pe_logit_bias){VOCAB, 1}, 1}},
                          NULL, &err),
              PE_EARG, err, "24");
  CHECK_FAILS(
      pe_batch_do(b, &(pe_command){PE_DO_FORCE, id, .ids = {&(int32_t){VOCAB}, 1}}, NULL, &err),
      PE_EARG, err, "24");
  CHECK_FAILS(pe_batch_do(b, &(pe_command){PE_DO_FORCE, 99, .ids = {&(int32_t){1}, 1}}, NULL, &err),
              PE_ENOTFOUND, err, "sequence 99 does not exist");
  step(100, false);
  CHECK(pe_batch_logits(b, id) &&
        !memcmp(pe_batch_logits(b, id), oracle_logits(&truth, prompt_ids, 9, 9),
                VOCAB * sizeof(float)));
  CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_BIAS, id, .bias = {NULL, 0}}, NULL, &err), err);
  pe_batch_do(b, &(pe_command){PE_DO_KEEP_LOGITS, id, .on = false}, NULL, NULL);
  CHECK(!pe_batch_logits(b, id));
  finish(100);
  CHECK_INT(answers[id].token[0], 17);
  CHECK_INT(answers[id].count, 4);
  CHECK_FAILS(pe_batch_do(b, &(pe_command){PE_DO_FORCE, id, .ids = {&(int32_t){1}, 1}}, NULL, &err),
              PE_ENOTFOUND, err, "sequence 1 is done");
  oracle_close(&truth), batch_close(), model_close(&m);
}

/* ---- waiting sequences and the prefix cache ------------------------------------------------ */

static int32_t cached_now(pe_seq_id id) {
  pe_seq_info info[8];
  for (int32_t i = 0, n = pe_batch_sequences(b, info, 8); i < n && i < 8; i++)
    if (info[i].id == id) return info[i].cached;
  return -1;
}

/* What a waiting sequence would find is known before it is admitted, and known again when the cache
 * has changed. */
static void test_peek(void) {
  for (kind k = DENSE; k < KINDS; k++) {
    if (!model_open(&m, k, 1)) return;
    pe_batch_options o = options();
    pe_error err;
    pe_request r = request(11, 3), cold = r;
    cold.no_cache = true;
    o.prefix.budget = 1 << 20;
    if (!batch_open(&o)) return;
    pe_seq_id early = add(&r), first = add(&r), not_cached = add(&cold);
    CHECK_INT(cached_now(early), 0);
    for (int i = 0; i < 20 && !answers[first].finish; i++) { /* it alone runs */
      int32_t ran;
      CHECK_OK(pe_batch_step(b, &(pe_grant){first, 100}, 1, &ran, &err), err);
      collect();
    }
    CHECK_INT(cached_now(early), 10);
    CHECK_INT(cached_now(not_cached), 0);
    pe_seq_id late = add(&r);
    pe_seq_info info;
    CHECK(pe_batch_info(b, late, &info) && info.cached == 10); /* at once */
    pe_batch_stats before, after;
    pe_batch_stat(b, &before);
    pe_prefix_clear(b->prefix);
    CHECK_INT(cached_now(early), 0);
    CHECK_INT(cached_now(late), 0);
    pe_batch_stat(b, &after);
    CHECK_INT(after.prefix.lookups, before.prefix.lookups); /* a probe does not count as a lookup */
    finish(100);
    CHECK(answers[late].count == 3 && answers[early].count == 3);
    batch_close(), model_close(&m);
  }
}

/* A step looks for some of a long queue only, the next step for others. */
static void test_peek_many(void) {
  enum { WAITING = 70 }; /* more than one step looks for */
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  pe_error err;
  pe_request r = request(11, 3);
  pe_seq_info info[WAITING + 1];
  pe_seq_id first, last = 0;
  o.prefix.budget = 1 << 20;
  if (!batch_open(&o)) return;
  first = add(&r);
  for (int i = 0; i < WAITING; i++) last = add(&r);
  for (int i = 0; i < 20 && !answers[first].finish; i++) {
    int32_t ran;
    CHECK_OK(pe_batch_step(b, &(pe_grant){first, 100}, 1, &ran, &err), err);
    collect();
  }
  for (int i = 0; i < 2; i++) CHECK_INT(pe_batch_sequences(b, info, WAITING + 1), WAITING);
  CHECK_INT(info[WAITING - 1].id, last);
  for (int i = 0; i < WAITING; i++) CHECK_INT(info[i].cached, 10);
  batch_close(), model_close(&m);
}

/* Without memory nothing is pinned, and the command says why. */
static void test_pin_without_memory(void) {
  if (!model_open(&m, DENSE, 1)) return;
  pe_batch_options o = options();
  o.prefix.budget = 1 << 20;
  pe_request r = request(12, 1);
  if (!batch_open(&o)) return;
  add(&r), finish(100);
  pe_command c = {PE_DO_PIN, .pin = {.prompt = r.prompt}};
  pe_status rc = PE_ENOMEM;
  int32_t n = 1;
  for (; rc && n < 40; n++) {
    pe_reply reply = {0};
    pe_error err = {0};
    pe_alloc_fail_at(n);
    rc = pe_batch_do(b, &c, &reply, &err);
    const bool failed = pe_alloc_count() >= n;
    pe_alloc_fail_at(0);
    CHECK_INT(rc != PE_OK, failed);
    if (rc) CHECK_FAILS(rc, PE_ENOMEM, err, "memory");
    CHECK_INT(reply.found, rc ? 0 : 12);
  }
  CHECK(n > 3 && n < 40);
  batch_close(), model_close(&m);
}

static const check_test tests[] = {
    {"stop strings", test_stop_strings},
    {"cancelled text", test_cancelled_text},
    {"ends", test_ends},
    {"keep_special", test_keep_special},
    {"min_tokens", test_min_tokens},
    {"bad words", test_bad_words},
    {"NaN", test_nan},
    {"fork", test_fork},
    {"trim", test_trim},
    {"bias and logits", test_bias_and_logits},
    {"peek", test_peek},
    {"peek at a long queue", test_peek_many},
    {"pin without memory", test_pin_without_memory},
};
CHECK_MAIN("batch_seqs", tests)
