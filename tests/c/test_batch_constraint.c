/* test_batch_constraint.c - constrained sequences in batches: what they share with free ones, when
 * they end, and who keeps their grammars. test_batch_random.c has the random histories. */
#include "batch_run.h"

#include "runtime/batch/constraint_parts.h"
#include "runtime/batch/worker.h"

enum { GRAMMARS = 4 };
static const char *const patterns[GRAMMARS] = {"(ab|cd)+e?", "[a-f]{3,5}", "[a-f]zyzyzy",
                                               "(abe|[b-e]*f)"};
static pe_grammar *grammar[GRAMMARS];
static pe_phase phase[GRAMMARS];

static bool set_up(int threads) {
  pe_error err = {0};
  bool ok = model_open(&m, DENSE, threads);
  for (int i = 0; i < GRAMMARS; i++) {
    CHECK_OK(pe_grammar_regex(pe_str_c(patterns[i]), &grammar[i], &err), err);
    phase[i] = (pe_phase){.grammar = grammar[i]};
  }
  return ok;
}

static void tear_down(void) {
  for (int i = 0; i < GRAMMARS; i++) pe_grammar_release(grammar[i]);
  model_close(&m);
}

/* Two of three are constrained, of these every other one without fast_forward. */
static pe_request mixed_request(int i) {
  pe_request r = kind_of_request(i);
  if (i % 3 == 0) return r;
  r.phase = &phase[i % GRAMMARS], r.phase_count = 1, r.fast_forward = i % 2;
  r.max_tokens = 12;
  return r;
}

static bool fits(pe_grammar *g, const answer *a) {
  pe_matcher *matcher = NULL;
  pe_error err = {0};
  size_t taken = 0;
  CHECK_OK(pe_matcher_open(g, NULL, &matcher, &err), err);
  if (a->text.len)
    CHECK_OK(pe_matcher_feed(matcher, pe_str_of(a->text.data, a->text.len), &taken, &err), err);
  bool ok = taken == a->text.len && (a->finish != PE_FINISH_STOP || pe_matcher_complete(matcher));
  pe_matcher_close(matcher);
  return ok;
}

/* Free and constrained rows in one step are what each is alone. */
static void test_mixed(void) {
  enum { N = 30 };
  answer want[N];
  int complete = 0;
  if (!set_up(2)) return;
  pe_batch_options o = options();
  for (int i = 0; i < N; i++) {
    pe_request r = mixed_request(i);
    want[i] = alone(&r, &o);
    if (r.phase_count) CHECK(fits(r.phase->grammar, &want[i]));
    complete += r.phase_count && want[i].finish == PE_FINISH_STOP;
  }
  CHECK(complete > N / 3);
  for (int tokens = 1; tokens < 8; tokens += 3) {
    if (!batch_open(&o)) break;
    pe_seq_id first = 0;
    for (int i = 0; i < N; i++) {
      pe_request r = mixed_request(i);
      pe_seq_id id = add(&r);
      if (!i) first = id;
    }
    finish(tokens);
    for (int i = 0; i < N; i++) check_answer("mixed", &answers[first + i], &want[i]);
    batch_close();
  }
  for (int i = 0; i < N; i++) pe_buf_free(&want[i].text);
  tear_down();
}

static void test_the_end(void) {
  pe_error err = {0};
  pe_grammar *empty = NULL;
  if (!set_up(1)) return;
  CHECK_OK(pe_grammar_regex(pe_str_c(""), &empty, &err), err);
  const pe_phase nothing = {.grammar = empty};
  pe_batch_options o = options();
  pe_request r = request(4, 20);
  r.phase = &nothing, r.phase_count = 1;
  answer a = alone(&r, &o); /* the empty text: no token */
  CHECK_INT(a.finish, PE_FINISH_STOP);
  CHECK_INT(a.generated, 0);
  pe_buf_free(&a.text);
  r.phase = &phase[2], r.ignore_eos = false; /* nothing can follow: no end token */
  a = alone(&r, &o);
  CHECK_INT(a.finish, PE_FINISH_STOP);
  CHECK(a.count && a.token[a.count - 1] != END && a.text.len == 7);
  pe_buf_free(&a.text);
  r.max_tokens = 2; /* half of a text */
  a = alone(&r, &o);
  CHECK_INT(a.finish, PE_FINISH_LENGTH);
  pe_buf_free(&a.text);
  pe_grammar_release(empty);
  tear_down();
}

/* The run after the first token is one chunk: one grant of one token computes it all. */
static void test_runs(void) {
  pe_batch_stats s;
  if (!set_up(1)) return;
  pe_batch_options o = options();
  if (batch_open(&o)) {
    pe_request r = request(3, 20);
    r.phase = &phase[2], r.phase_count = 1, r.fast_forward = true;
    pe_seq_id id = add(&r);
    step(INT32_MAX, false); /* the prompt, and a letter: after it z must come, but not as a run */
    for (int i = 0; i < 3 && !answers[id].finish; i++) step(1, false);
    pe_batch_stat(b, &s);
    CHECK_INT(answers[id].finish, PE_FINISH_STOP);
    CHECK(s.forced_tokens >= 5 && s.forced_tokens < s.decode_tokens);
    CHECK_INT(answers[id].count, answers[id].generated);
    CHECK(fits(grammar[2], &answers[id]));
    batch_close();
  }
  tear_down();
}

/* A token by hand is taken if it fits, and ends the sequence if it does not. */
static void test_force(void) {
  pe_error err = {0};
  if (!set_up(1)) return;
  pe_batch_options o = options();
  if (batch_open(&o)) {
    pe_request r = request(3, 20);
    r.phase = &phase[1], r.phase_count = 1;
    pe_seq_id id = add(&r), other = add(&r);
    const int32_t good[] = {2, 3}, bad[] = {2, 11}; /* c d; c y */
    CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_FORCE, id, .ids = {good, 2}}, NULL, &err), err);
    CHECK_OK(pe_batch_do(b, &(pe_command){PE_DO_FORCE, other, .ids = {bad, 2}}, NULL, &err), err);
    finish(INT32_MAX);
    CHECK_INT(answers[id].finish, PE_FINISH_STOP);
    CHECK(fits(grammar[1], &answers[id]) && answers[id].token[1] == 3);
    CHECK_INT(answers[other].finish, PE_FINISH_ERROR);
    CHECK_INT(answers[other].count, 1);
    CHECK(strstr(answers[other].error.text, "token 11 at position 4 does not fit the grammar"));
    batch_close();
  }
  tear_down();
}

/* The mask of a draw is there before the step is done. */
static void test_masks_are_made_meanwhile(void) {
  pe_error err = {0};
  int32_t ran;
  if (!set_up(2)) return;
  pe_batch_options o = options();
  if (batch_open(&o)) {
    pe_request r = request(3, 20);
    r.phase = &phase[1], r.phase_count = 1;
    pe_seq_id id = add(&r);
    CHECK_OK(pe_batch_submit(b, &(pe_grant){id, 99}, 1, &err), err);
    const pe_constraint *c = pe_batch_find(b, id)->constraint;
    CHECK(!c->masked);
    pe_batch_make_masks(b); /* as the wait does first of all */
    CHECK(c->masked && b->submitted);
    CHECK_OK(pe_batch_wait(b, &ran, &err), err);
    CHECK_INT(pe_constraint_count(c), 1);
    finish(1);
    batch_close();
  }
  tear_down();
}

static void test_refusals(void) {
  pe_error err = {0};
  pe_seq_id id;
  if (!set_up(1)) return;
  pe_batch_options o = options();
  o.tokenizer = NULL;
  if (batch_open(&o)) {
    pe_request r = request(3, 20);
    r.phase = &phase[1], r.phase_count = 1;
    CHECK_FAILS(batch_add(b, &r, &id, &err), PE_EARG, err, "phases need a tokenizer");
    batch_close();
  }
  o = options();
  if (batch_open(&o)) {
    const int32_t beyond = VOCAB;
    const pe_phase far = {.mark_id = &beyond, .mark_ids = 1};
    pe_request r = request(3, 20);
    r.phase = &far, r.phase_count = 1;
    CHECK_FAILS(batch_add(b, &r, &id, &err), PE_EARG, err, "phases: token id must be between");
    batch_close();
  }
  tear_down();
}

static void no_wake(void *ctx) { (void)ctx; }

/* A queued request has references of its own; a command that finds no memory leaves none. */
static void test_queued_requests(void) {
  pe_error err = {0};
  pe_worker *w = NULL;
  pe_crew *crew = NULL;
  pe_batch *own = NULL;
  if (!set_up(1)) return;
  pe_batch_options o = options();
  CHECK_OK(pe_crew_open(1, &crew, &err), err);
  CHECK_OK(pe_batch_open(m.plan, pe_crew_pool(crew), &o, &own, &err), err);
  CHECK_OK(pe_worker_open(crew, own, no_wake, NULL, &w, &err), err);
  const pe_str mark = pe_str_c("ab");
  const int32_t id = 20;
  int refused = 0;
  for (int at = 1; at < 30; at++) {
    pe_phase own_phase[] = {{.mark = &mark, .marks = 1, .mark_id = &id, .mark_ids = 1},
                            {.grammar = grammar[1], .back = 1}};
    pe_request r = request(3, 4);
    r.phase = own_phase, r.phase_count = 2;
    pe_alloc_fail_at(at);
    pe_status rc = pe_worker_do(w, &(pe_command){PE_DO_ADD, .request = &r}, NULL, &err);
    pe_alloc_fail_at(0);
    CHECK(!rc || rc == PE_ENOMEM);
    refused += rc != PE_OK;
    memset(own_phase, 0, sizeof own_phase);
  }
  CHECK(refused > 2 && refused < 29); /* the first ones: its arena, its events, the queue */
  pe_worker_close(w), pe_crew_release(crew);
  tear_down();
}

static const check_test tests[] = {
    {"mixed", test_mixed},
    {"the_end", test_the_end},
    {"runs", test_runs},
    {"force", test_force},
    {"masks_are_made_meanwhile", test_masks_are_made_meanwhile},
    {"refusals", test_refusals},
    {"queued_requests", test_queued_requests},
};
CHECK_MAIN("batch_constraint", tests)
