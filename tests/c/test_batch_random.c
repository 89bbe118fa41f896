/* test_batch_random.c - thousands of random operations on small batches, against an oracle that
 * computes every token of every sequence alone, from nothing: blocks of 2 tokens, steps of few
 * tokens, pools that are too small.
 *
 * Some requests are constrained: then the twin asks a constraint that takes all its tokens from the
 * beginning, each time.
 *
 * Each sequence has a twin here that knows its request and its tokens. Every token, every reason to
 * end and every piece of text is compared; after each case all blocks and slots must be free. A
 * second run lets allocations fail: then a command fails, or a sequence ends with an error,
 * and everything else goes on as if nothing had been.
 *
 * BATCH_CASES=N sets the number of cases, BATCH_SEED=N the first seed. */
#include "batch_help.h"
#include "fake_backend.h"

#include <unistd.h>

enum { CONTEXT = 24, TWINS = 400, OPS = 60, GRAMMARS = 5 };

typedef struct twin {
  pe_seq_id id;
  bool alive, cancelled, keep, trimmed, held;
  int32_t token[CONTEXT + 1], count, limit;
  pe_request q; /* points into this twin */
  pe_logit_bias bias[2];
  int32_t stop_id, bad[2][2], boundary[2];
  pe_ids_view bad_view[2];
  pe_str stop[2];
  int32_t forced[4], forced_at, forced_count;
  pe_phase phase[2];
  int32_t run[CONTEXT], run_at, run_count; /* tokens that must come without a step */
  pe_buf text;
} twin;

typedef struct game {
  model m;
  oracle o;
  pe_batch *b;
  twin *t;
  int twins, alive;
  const pe_backend *backend;
  pe_grammar *grammar[GRAMMARS], *own[GRAMMARS]; /* of the batch, and the same of the twins */
  bool failing;                                  /* allocations are made to fail now and then */
  bool failed; /* one may have failed in the operation that just ran */
  int64_t tokens, holds, errors, refusals, preempted, hits, masked, runs,
      misfits; /* of all cases: what the test has seen */
} game;

static const int32_t end_ids[] = {END, 4000};
static char save_path[64];

/* ---- requests ------------------------------------------------------------------------------ */

static void random_sampling(twin *t) {
  pe_sampling *s = &t->q.sampling;
  *s = pe_sampling_defaults();
  s->temperature = chance(3) ? (float)chance(20) / 10 : 0;
  s->top_k = chance(3) ? 0 : 1 + chance(VOCAB);
  s->top_p = chance(3) ? 1 : .5f + (float)chance(50) / 100;
  s->min_p = chance(4) ? 0 : (float)chance(30) / 100;
  s->repetition_penalty = chance(3) ? 1 : 1.3f;
  s->presence_penalty = chance(4) ? 0 : .5f;
  s->frequency_penalty = chance(4) ? 0 : .3f;
  s->penalty_window = chance(2) ? 0 : 4;
  s->seed = (uint64_t)chance(1000);
  s->top_logprobs = chance(3) - 1;
  if (!chance(4)) {
    for (int i = 0; i < 2; i++) t->bias[i] = (pe_logit_bias){chance(VOCAB), (float)chance(7) - 3};
    s->bias = t->bias, s->bias_count = 2;
  }
}

static void random_lists(twin *t) {
  pe_request *q = &t->q;
  static const char *const strings[] = {"ab", "bc", "dad", "a", "cde", "fa", "x", "abab"};
  if (!chance(3)) t->stop_id = chance(VOCAB), q->stop_ids = (pe_ids_view){&t->stop_id, 1};
  if (!chance(3) && !q->min_tokens) {
    for (int i = 0; i < 2; i++) t->stop[i] = pe_str_c(strings[chance(8)]);
    q->stop = t->stop, q->stop_count = 1 + chance(2);
  }
  if (!chance(3)) {
    for (int i = 0; i < 2; i++) {
      t->bad[i][0] = chance(VOCAB), t->bad[i][1] = chance(VOCAB);
      t->bad_view[i] = (pe_ids_view){t->bad[i], 1 + i};
    }
    q->bad_words = t->bad_view, q->bad_count = 2;
  }
  if (chance(2)) {
    for (int i = 0; i < 2; i++) t->boundary[i] = chance(q->prompt.count + 1);
    q->boundary = (pe_ids_view){t->boundary, 2};
  }
}

/* Half of the requests: a grammar, or one after a mark, once or again and again. */
static void random_phases(const game *g, twin *t) {
  static const pe_str marks[] = {{"ab", 2}, {"d", 1}};
  static const int32_t mark_id = 20;
  const pe_phase grammar = {.grammar = g->grammar[chance(GRAMMARS)], .gap = chance(2)};
  if (chance(2)) return;
  t->q.phase = t->phase, t->q.phase_count = 1 + chance(2), t->q.fast_forward = chance(4) > 0;
  if (chance(3)) t->q.sampling.top_logprobs = -1, t->q.bad_count = 0; /* else there are no runs */
  t->phase[0] = grammar;
  if (t->q.phase_count == 1) return;
  t->phase[0] = (pe_phase){.mark = marks, .marks = 2, .mark_id = &mark_id, .mark_ids = 1};
  t->phase[1] = grammar;
  t->phase[0].ends = chance(2), t->phase[1].back = chance(3);
}

/* Prompts begin alike, so that the prefix cache has something to find. */
static void random_request(const game *g, twin *t) {
  *t = (twin){.count = 1 + chance(16)};
  int family = chance(3), same = chance(t->count + 1);
  for (int i = 0; i < t->count; i++)
    t->token[i] = i < same ? (family * 7 + i * 5) % (VOCAB - 1) : chance(VOCAB - 1);
  t->q.prompt = (pe_ids_view){t->token, t->count};
  t->q.max_tokens = chance(5) ? chance(9) : -1;
  t->q.min_tokens = t->q.max_tokens > 2 && !chance(4) ? 2 : 0;
  t->q.ignore_eos = !chance(4), t->q.skip_special = chance(4) > 0;
  t->q.n = chance(5) ? chance(2) : 2 + chance(3);
  t->q.hold = !chance(4);
  t->q.no_cache = !chance(5), t->q.salt = (uint64_t)!chance(5);
  random_sampling(t);
  random_lists(t);
  random_phases(g, t);
}

/* ---- twins --------------------------------------------------------------------------------- */

/* The pointers of a copied twin must be its own. */
static void settle_twin(twin *t, const twin *from) {
  pe_request *q = &t->q;
  if (q->sampling.bias == from->bias) q->sampling.bias = t->bias;
  if (q->stop_ids.count) q->stop_ids.id = &t->stop_id;
  for (int i = 0; i < 2; i++) t->bad_view[i].id = t->bad[i];
  q->bad_words = t->bad_view, q->stop = t->stop, q->prompt.id = t->token;
  q->phase = t->phase;
}

static twin *find_twin(game *g, pe_seq_id id) {
  for (int i = 0; i < g->twins; i++)
    if (g->t[i].id == id) return &g->t[i];
  return NULL;
}

static twin *some_twin(game *g) { /* a living one, most often */
  twin *t = g->twins ? &g->t[chance(g->twins)] : NULL;
  for (int i = 0; t && !t->alive && i < 8; i++) t = &g->t[chance(g->twins)];
  return t && t->alive ? t : NULL;
}

static twin *add_twin(game *g, const twin *from, pe_seq_id id) {
  twin *t = &g->t[g->twins++];
  *t = *from;
  settle_twin(t, from);
  t->id = id, t->alive = true, t->text = (pe_buf){0};
  if (from->text.len) pe_buf_put(&t->text, from->text.data, from->text.len, NULL);
  g->alive++;
  return t;
}

/* ---- what must happen ---------------------------------------------------------------------- */

static bool is_end(const twin *t, int32_t id) {
  return (!t->q.ignore_eos && id == END) || (t->q.stop_ids.count && id == t->stop_id);
}

/* One that has taken the tokens of the twin; NULL: it has none, or they do not fit. phase: room
 * that it borrows. */
static pe_constraint *constraint_of(const game *g, const twin *t, pe_phase phase[2]) {
  memcpy(phase, t->phase, sizeof t->phase);
  for (int i = 0; i < 2 * GRAMMARS; i++)
    if (phase[i % 2].grammar == g->grammar[i / 2]) phase[i % 2].grammar = g->own[i / 2];
  const pe_constraint_options o = {.tokenizer = g->m.tokenizer,
                                   .tokens = g->b->tokens,
                                   .vocabulary = VOCAB,
                                   .phase = phase,
                                   .phases = t->q.phase_count,
                                   .stop_id = t->q.stop_ids.id,
                                   .stop_ids = t->q.stop_ids.count,
                                   .ignore_end = t->q.ignore_eos};
  pe_constraint *c = NULL;
  pe_error err = {0};
  if (!t->q.phase_count) return NULL;
  CHECK_OK(pe_constraint_open(&o, &c, &err), err);
  for (int32_t i = t->q.prompt.count; c && i < t->count; i++) {
    bool ok;
    CHECK_OK(pe_constraint_take(c, t->token[i], &ok, &err), err);
    if (ok) continue;
    pe_constraint_close(c);
    return NULL;
  }
  return c;
}

static bool is_over(const game *g, const twin *t) {
  pe_phase phase[2];
  pe_constraint *c = constraint_of(g, t, phase);
  bool over = c && pe_constraint_over(c);
  pe_constraint_close(c);
  return over;
}

static int wanted_bans(const twin *t, const pe_constraint *c, int32_t *ban) {
  int n = 0, made = t->count - t->q.prompt.count;
  if (made < t->q.min_tokens || (c && pe_constraint_bans_ends(c))) {
    if (!t->q.ignore_eos) ban[n++] = END;
    if (t->q.stop_ids.count) ban[n++] = t->stop_id;
  }
  for (int i = 0; i < t->q.bad_count; i++)
    if (i == 0 || (made >= 1 && t->token[t->count - 1] == t->bad[i][0])) ban[n++] = t->bad[i][i];
  return n;
}

/* What must come after the token that was drawn last. */
static void wanted_run(game *g, twin *t, pe_constraint *c) {
  pe_tokenizer_scratch *scratch = NULL;
  pe_ids run = {0};
  pe_error err = {0};
  int32_t made = t->count - t->q.prompt.count, n = made < 4 ? made : 4;
  t->run_at = t->run_count = 0;
  if (!c || !t->q.fast_forward || t->q.sampling.top_logprobs >= 0 || t->q.bad_count ||
      t->forced_at < t->forced_count)
    return;
  CHECK_OK(pe_tokenizer_scratch_new(g->m.tokenizer, &scratch, &err), err);
  CHECK_OK(pe_constraint_run(c, scratch, t->token + t->count - n, n, t->limit - made, &run, &err),
           err);
  if (run.count) memcpy(t->run, run.id, run.count * sizeof *run.id);
  t->run_count = (int32_t)run.count, g->runs += t->run_count;
  pe_ids_free(&run), pe_tokenizer_scratch_free(scratch);
}

/* *c is -1: nothing fits. */
static void wanted_choice(game *g, twin *t, const float *logits, pe_choice *c) {
  pe_phase phase[2];
  pe_constraint *limits = constraint_of(g, t, phase);
  int32_t ban[8], bans = wanted_bans(t, limits, ban);
  pe_sampling s = t->q.sampling;
  pe_error err;
  bool fits = true;
  if (limits) CHECK_OK(pe_constraint_mask(limits, &s.allow, &err), err);
  pe_status rc = pe_sampler_pick(g->o.sampler, &s, logits,
                                 &(pe_history){t->token, t->count, t->q.prompt.count}, t->count,
                                 ban, bans, c, &err);
  if (t->forced_at < t->forced_count)
    c->id = t->forced[t->forced_at++], c->top_count = -1;
  else if (limits && rc == PE_ENOTOKEN)
    c->id = -1;
  else
    CHECK_OK(rc, err);
  if (limits && c->id >= 0) CHECK_OK(pe_constraint_take(limits, c->id, &fits, &err), err);
  if (!fits) c->id = -1;
  g->masked += s.allow != NULL, g->misfits += c->id < 0;
  pe_constraint_close(limits);
}

/* The whole text so far, and where the first stop string ends it; -1: nowhere. */
static long whole_text(const game *g, const twin *t, pe_buf *out) {
  int32_t made = t->count - t->q.prompt.count;
  pe_error err;
  if (made && is_end(t, t->token[t->count - 1])) made--;
  out->len = 0;
  CHECK_OK(pe_tokenizer_decode(g->m.tokenizer, t->token + t->q.prompt.count, (size_t)made,
                               t->q.skip_special, out, &err),
           err);
  for (size_t end = 1; end <= out->len; end++)
    for (int i = 0; i < t->q.stop_count; i++)
      if (t->stop[i].len <= end &&
          !memcmp(out->data + end - t->stop[i].len, t->stop[i].at, t->stop[i].len)) {
        size_t at = end - t->stop[i].len; /* the longest of those that end here begins first */
        for (int k = 0; k < t->q.stop_count; k++)
          if (t->stop[k].len <= end && end - t->stop[k].len < at &&
              !memcmp(out->data + end - t->stop[k].len, t->stop[k].at, t->stop[k].len))
            at = end - t->stop[k].len;
        return (long)at;
      }
  return -1;
}

static void check_text(const twin *t, const pe_event *e, const pe_buf *whole, long cut) {
  size_t most = cut >= 0 ? (size_t)cut : whole->len;
  bool begins =
      t->text.len <= most && (!t->text.len || !memcmp(t->text.data, whole->data, t->text.len));
  if (!begins || (e->finish && t->text.len != most)) {
    check_failures++;
    printf("    sequence %lld: text \"%.*s\" of \"%.*s\", cut at %ld\n", (long long)t->id,
           (int)t->text.len, t->text.data, (int)whole->len, whole->data, cut);
  }
}

static void check_token(game *g, twin *t, const pe_event *e) {
  const float *logits = oracle_logits(&g->o, t->token, t->count, t->q.prompt.count),
              *kept = pe_batch_logits(g->b, t->id);
  pe_choice want;
  if (t->run_at < t->run_count) {
    CHECK(e->forced);
    CHECK_INT(e->choice.id, t->run[t->run_at++]);
    t->token[t->count++] = e->choice.id;
    g->tokens++;
    return;
  }
  CHECK(!e->forced);
  if (t->keep || t->q.hold) CHECK(kept && !memcmp(kept, logits, VOCAB * sizeof *kept));
  wanted_choice(g, t, logits, &want);
  CHECK_INT(e->choice.id, want.id);
  if (want.top_count >= 0)
    CHECK(e->choice.logprob == want.logprob && e->choice.top_count == want.top_count);
  CHECK(!t->q.hold || t->held ||
        want.top_count < 0); /* with hold, only forced tokens come without sample */
  t->token[t->count++] = e->choice.id, t->held = false;
  g->tokens++;
  pe_phase phase[2];
  pe_constraint *c = constraint_of(g, t, phase);
  CHECK(!t->q.phase_count || c);
  wanted_run(g, t, c);
  pe_constraint_close(c);
}

/* A sequence that ends with an error because nothing fits. */
static bool is_misfit(game *g, twin *t) {
  const float *logits = oracle_logits(&g->o, t->token, t->count, t->q.prompt.count);
  pe_choice want;
  if (!t->q.phase_count || t->run_at < t->run_count) return false;
  wanted_choice(g, t, logits, &want);
  return want.id < 0;
}

static void check_held(game *g, twin *t, const pe_event *e) {
  const float *logits = oracle_logits(&g->o, t->token, t->count, t->q.prompt.count),
              *kept = pe_batch_logits(g->b, t->id);
  pe_seq_info info;
  CHECK(t->q.hold && !t->held && !e->token && !e->text.len && !e->finish);
  CHECK(kept && !memcmp(kept, logits, VOCAB * sizeof *kept));
  CHECK(pe_batch_info(g->b, t->id, &info) && info.state == PE_SEQ_HELD && info.left == 0);
  t->held = true;
  g->holds++;
}

static void check_finish(game *g, twin *t, const pe_event *e) {
  pe_buf whole = {0};
  long cut = whole_text(g, t, &whole);
  int32_t made = t->count - t->q.prompt.count;
  bool full = made >= t->limit;
  pe_finish want = is_over(g, t)                                             ? PE_FINISH_STOP
                   : made && (is_end(t, t->token[t->count - 1]) || cut >= 0) ? PE_FINISH_STOP
                   : full                                                    ? PE_FINISH_LENGTH
                                                                             : PE_FINISH_NONE;
  bool worn = e->error && strstr(e->error->text, "states of a grammar"); /* it lacked memory once */
  if (e->finish == PE_FINISH_ERROR && (g->failed || (g->failing && worn)))
    g->errors++;
  else if (e->finish == PE_FINISH_ERROR && !e->token && is_misfit(g, t))
    CHECK(e->error && (strstr(e->error->text, "does not fit") || strstr(e->error->text, "mask")));
  else if (e->finish != want)
    check_failures++,
        printf("    sequence %lld ends with %s, not %s (%s)\n", (long long)t->id,
               pe_finish_name(e->finish), pe_finish_name(want), e->error ? e->error->text : "");
  else if (!t->trimmed)
    check_text(t, e, &whole, cut);
  pe_buf_free(&whole);
}

static void end_twin(game *g, twin *t, const pe_event *e) {
  pe_seq_info info;
  t->alive = false, g->alive--;
  CHECK_INT(e->prompt, t->q.prompt.count);
  if (!g->failed) CHECK_INT(e->generated, t->count - t->q.prompt.count);
  CHECK(pe_batch_info(g->b, t->id, &info) && info.state == PE_SEQ_DONE);
  CHECK((e->finish == PE_FINISH_ERROR) == (e->error != NULL));
}

static void check_event(game *g, const pe_event *e) {
  twin *t = find_twin(g, e->seq);
  CHECK(t && t->alive);
  if (!t || !t->alive) return;
  if (e->held) {
    check_held(g, t, e);
    return;
  }
  if (e->text.len) pe_buf_put(&t->text, e->text.at, e->text.len, NULL);
  if (e->token) check_token(g, t, e);
  check_finish(g, t, e);
  if (e->finish) end_twin(g, t, e);
}

static void check_events(game *g) {
  const pe_event *e;
  int32_t count = pe_batch_events(g->b, &e);
  for (int32_t i = 0; i < count; i++) check_event(g, &e[i]);
}

/* ---- operations ---------------------------------------------------------------------------- */

/* From here to settled(), an allocation may fail. */
static void unsettled(game *g) {
  if (g->failing && !chance(2)) pe_alloc_fail_at(1 + chance(chance(4) ? 12 : 60));
}

static pe_status settled(game *g, pe_status rc) {
  g->failed = g->failing;
  pe_alloc_fail_at(0);
  if (rc == PE_ENOMEM && g->failing) g->refusals++;
  return rc;
}

static bool fails(const game *g, pe_status rc) { return g->failing && rc == PE_ENOMEM; }

static int64_t room_of(const game *g) {
  int64_t size = g->b->kv->block, room = g->b->kv->blocks * size;
  for (int i = 0; i < g->m.graph->group_count; i++)
    if (!g->m.graph->group[i].window) return room;
  return CONTEXT; /* windows of 5 tokens need 3 blocks of 2, and every pool has those */
}

static void op_add(game *g) {
  twin t;
  pe_error err = {0};
  pe_seq_id first = 0;
  random_request(g, &t);
  int64_t room = room_of(g), made = t.q.max_tokens < 0 ? room - t.count + 1 : t.q.max_tokens;
  if (made > CONTEXT - t.count) made = CONTEXT - t.count;
  int n = t.q.n ? t.q.n : 1;
  if (g->twins + n > TWINS - 20) return;
  bool fit = t.count + (made > 1 ? made - 1 : 0) <= room;
  unsettled(g);
  pe_status rc = settled(g, batch_add(g->b, &t.q, &first, &err));
  if (fails(g, rc)) return;
  if (!fit) {
    CHECK_FAILS(rc, PE_ELIMIT, err, "tokens");
    return;
  }
  CHECK_OK(rc, err);
  if (rc) return;
  t.limit = (int32_t)made, t.keep = chance(2);
  for (int i = 0; i < n; i++) {
    twin *own = add_twin(g, &t, first + i);
    own->q.sampling.seed += (uint64_t)i;
    pe_batch_do(g->b, &(pe_command){PE_DO_KEEP_LOGITS, own->id, .on = own->keep}, NULL, NULL);
  }
}

static void op_bad_add(game *g) {
  twin t;
  pe_error err = {0};
  pe_seq_id first = 0;
  random_request(g, &t);
  int32_t beyond = VOCAB, before = pe_batch_sequences(g->b, NULL, 0);
  switch (chance(8)) {
  case 0: t.q.prompt.count = 0; break;
  case 1: t.token[0] = VOCAB; break;
  case 2: t.q.n = 129; break;
  case 3: t.q.sampling.temperature = -1; break;
  case 4: t.q.stop_ids = (pe_ids_view){&beyond, 1}; break;
  case 5: t.q.max_tokens = 2, t.q.min_tokens = 3; break;
  case 6:
    t.bad_view[0] = (pe_ids_view){&beyond, 0}, t.q.bad_words = t.bad_view, t.q.bad_count = 1;
    break;
  default: t.q.boundary = (pe_ids_view){&beyond, 1};
  }
  CHECK_FAILS(batch_add(g->b, &t.q, &first, &err), PE_EARG, err, "");
  CHECK_INT(pe_batch_sequences(g->b, NULL, 0), before);
}

static int random_grants(game *g, pe_grant *grant, int most) {
  pe_seq_info info[TWINS];
  int32_t living = pe_batch_sequences(g->b, info, TWINS), n = 0;
  CHECK_INT(living, g->alive);
  bool all = chance(2);
  for (int32_t i = 0; i < living && n < most; i++)
    if (all || chance(2))
      grant[n++] = (pe_grant){info[chance(4) ? i : chance(living)].id, chance(6)   ? 1 + chance(8)
                                                                       : chance(2) ? INT32_MAX
                                                                                   : chance(4) - 3};
  if (!chance(6) && n < most) grant[n++] = (pe_grant){chance(1000) - 5, 3};
  return n;
}

/* Is there a grant that must lead to something? */
static bool must_run(const game *g, const pe_grant *grant, int n) {
  for (int i = 0; i < n; i++) {
    pe_seq_info info;
    if (grant[i].tokens > 0 && pe_batch_info(g->b, grant[i].seq, &info) &&
        info.state < PE_SEQ_HELD && !info.follows)
      return true;
  }
  return false;
}

static void op_step(game *g) {
  pe_grant grant[64];
  const pe_event *e;
  pe_error err = {0};
  int32_t ran = 0;
  int n = random_grants(g, grant, 64);
  bool must = must_run(g, grant, n);
  unsettled(g);
  pe_status rc = settled(g, pe_batch_step(g->b, grant, n, &ran, &err));
  if (!fails(g, rc)) {
    CHECK_OK(rc, err);
    CHECK((ran > 0 || pe_batch_events(g->b, &e) > 0) >= must);
  }
  check_events(g);
}

/* Cancels between two steps come as events after those of the step; here the step's are checked
 * already. */
static void op_cancel(game *g) {
  twin *t = some_twin(g);
  const pe_event *e;
  if (!t) return;
  unsettled(g);
  pe_batch_do(g->b, &(pe_command){.verb = PE_DO_CANCEL, .seq = t->id}, NULL, NULL);
  settled(g, PE_OK);
  int32_t n = pe_batch_events(g->b, &e);
  CHECK(n > 0 && e[n - 1].seq == t->id && e[n - 1].finish == PE_FINISH_CANCEL && !e[n - 1].token);
  CHECK_INT(e[n - 1].generated, t->count - t->q.prompt.count);
  t->alive = false, g->alive--;
}

static void op_preempt(game *g) {
  twin *t = some_twin(g);
  pe_seq_info info;
  if (!t) return;
  unsettled(g);
  pe_batch_do(g->b, &(pe_command){.verb = PE_DO_PREEMPT, .seq = t->id}, NULL, NULL);
  settled(g, PE_OK);
  CHECK(pe_batch_info(g->b, t->id, &info) &&
        info.state == (t->held ? PE_SEQ_HELD : PE_SEQ_WAITING) && info.past == 0 &&
        info.bytes == 0);
}

static void op_fork(game *g) {
  twin *t = some_twin(g);
  pe_seq_info info;
  pe_error err = {0};
  pe_seq_id id = 0;
  if (!t || g->twins + 20 > TWINS || !pe_batch_info(g->b, t->id, &info)) return;
  bool full =
      info.past &&
      g->b->running >= g->b->o.sequences; /* a held sequence without caches needs no place */
  uint64_t seed = (uint64_t)chance(100);
  unsettled(g);
  pe_status rc = settled(g, batch_fork(g->b, t->id, seed, &id, &err));
  if (fails(g, rc)) return;
  if (info.state != PE_SEQ_DECODE && info.state != PE_SEQ_HELD)
    CHECK_INT(rc, PE_EARG);
  else if (full)
    CHECK_INT(rc, PE_ELIMIT);
  else
    CHECK_OK(rc, err);
  if (rc) return;
  t = add_twin(g, t, id);
  t->q.sampling.seed = seed, t->keep = false;
}

static void op_trim(game *g) {
  twin *t = some_twin(g);
  pe_error err = {0};
  if (!t) return;
  int32_t to = t->q.prompt.count - 1 + chance(t->count - t->q.prompt.count + 2);
  unsettled(g);
  pe_status rc =
      settled(g, pe_batch_do(g->b, &(pe_command){PE_DO_TRIM, t->id, .tokens = to}, NULL, &err));
  if (fails(g, rc)) return;
  if (to < t->q.prompt.count) {
    CHECK_FAILS(rc, PE_EARG, err, "can keep between");
    return;
  }
  CHECK_OK(rc, err);
  t->trimmed |= to < t->count;
  t->held &= to == t->count;
  t->count = to, t->forced_at = t->forced_count = 0;
}

static void op_force(game *g) {
  twin *t = some_twin(g);
  pe_error err = {0};
  int32_t id[2] = {chance(VOCAB), chance(VOCAB)};
  if (!t || t->forced_at < t->forced_count) return;
  unsettled(g);
  pe_status rc =
      settled(g, pe_batch_do(g->b, &(pe_command){PE_DO_FORCE, t->id, .ids = {id, 2}}, NULL, &err));
  if (fails(g, rc)) return;
  CHECK_OK(rc, err);
  memcpy(t->forced, id, sizeof id), t->forced_at = 0, t->forced_count = 2;
}

static void op_bias(game *g) {
  twin *t = some_twin(g);
  pe_error err = {0};
  pe_logit_bias bias[2] = {{chance(VOCAB), 2}, {chance(VOCAB), -2}};
  if (!t) return;
  unsettled(g);
  pe_status rc = settled(
      g, pe_batch_do(g->b, &(pe_command){PE_DO_BIAS, t->id, .bias = {bias, 2}}, NULL, &err));
  if (fails(g, rc)) return;
  CHECK_OK(rc, err);
  memcpy(t->bias, bias, sizeof bias), t->q.sampling.bias = t->bias, t->q.sampling.bias_count = 2;
}

/* A draw with what it was given; the twin's parameters are those of this draw while its event is
 * checked. */
static void draw(game *g, twin *t, const pe_draw *d) {
  pe_logit_bias bias[4];
  pe_error err = {0};
  const pe_event *e;
  pe_sampling own = t->q.sampling;
  int32_t before = pe_batch_events(g->b, &e);
  unsettled(g);
  pe_status rc =
      settled(g, pe_batch_do(g->b, &(pe_command){PE_DO_SAMPLE, t->id, .draw = *d}, NULL, &err));
  if (fails(g, rc)) return;
  CHECK_OK(rc, err);
  if (rc) return;
  if (own.bias_count) memcpy(bias, own.bias, (size_t)own.bias_count * sizeof *bias);
  if (d->bias.count)
    memcpy(bias + own.bias_count, d->bias.bias, (size_t)d->bias.count * sizeof *bias);
  t->q.sampling.bias = bias, t->q.sampling.bias_count += d->bias.count;
  t->q.sampling.banned = d->banned.id, t->q.sampling.banned_count = d->banned.count;
  if (d->forced.count)
    memcpy(t->forced, d->forced.id, 4 * (size_t)d->forced.count), t->forced_at = 0,
                                                                  t->forced_count = d->forced.count;
  int32_t n = pe_batch_events(g->b, &e);
  CHECK(n > before && e[before].seq == t->id);
  for (int32_t i = before; i < n; i++) check_event(g, &e[i]);
  t->q.sampling = own;
}

static void op_sample(game *g, twin *t) {
  pe_error err = {0};
  pe_logit_bias bias[2] = {{chance(VOCAB), 3}, {chance(VOCAB), -3}};
  int32_t banned = chance(VOCAB), id[2] = {chance(VOCAB), chance(VOCAB)};
  if (!t) return;
  if (!t->held) {
    CHECK_FAILS(pe_batch_do(g->b, &(pe_command){.verb = PE_DO_SAMPLE, .seq = t->id}, NULL, &err),
                PE_EARG, err, "is not held");
    return;
  }
  pe_draw d = {0};
  if (!chance(3)) d.bias = (pe_bias_view){bias, 2};
  if (!chance(3)) d.banned = (pe_ids_view){&banned, 1};
  if (!chance(6) && t->forced_at == t->forced_count) d.forced = (pe_ids_view){id, 1 + chance(2)};
  draw(g, t, &d);
}

static void op_save(game *g) {
  twin *t = some_twin(g);
  pe_seq_info info;
  pe_error err = {0};
  if (!t || !pe_batch_info(g->b, t->id, &info)) return;
  unsettled(g);
  pe_status rc = settled(
      g, pe_batch_do(g->b, &(pe_command){PE_DO_SAVE, t->id, .path = save_path}, NULL, &err));
  if (fails(g, rc)) return;
  if (info.past)
    CHECK_OK(rc, err);
  else
    CHECK_FAILS(rc, PE_EARG, err, "nothing");
  if (rc) return;
  unsettled(g);
  rc = settled(g, pe_batch_do(g->b, &(pe_command){PE_DO_LOAD, .path = save_path}, NULL, &err));
  if (!g->b->caching)
    CHECK_FAILS(rc, PE_EUNSUPPORTED, err, "prefix cache");
  else if (!fails(g, rc) && rc != PE_ELIMIT)
    CHECK_OK(rc, err); /* the pool may be full of running sequences */
}

static void op_clear(game *g) {
  chance(2) ? (void)pe_prefix_evict(g->b->prefix, 0, 1 + chance(4)) : pe_prefix_clear(g->b->prefix);
}

/* ---- cases --------------------------------------------------------------------------------- */

static void finish_all(game *g) {
  for (int i = 0; g->alive && i < 4000; i++) {
    if (!chance(40)) op_cancel(g);
    for (int k = 0; k < g->twins; k++)
      if (g->t[k].alive && g->t[k].held && chance(2)) op_sample(g, &g->t[k]);
    op_step(g);
  }
  CHECK_INT(g->alive, 0);
}

static void check_empty(game *g) {
  pe_error err;
  int32_t ran;
  CHECK_OK(pe_batch_step(g->b, NULL, 0, &ran, &err), err);
  pe_prefix_clear(g->b->prefix);
  for (int i = 0; i < g->m.graph->group_count; i++) CHECK_INT(g->b->kv->used[i], 0);
  CHECK_INT(g->b->recur->free_count, g->b->recur->slots);
  CHECK_INT(g->b->seq_count, 0);
  CHECK_INT(g->b->running, 0);
}

static void play(game *g, int op) {
  g->failed = false;
  if (op < 20)
    op_add(g);
  else if (op < 22)
    op_bad_add(g);
  else if (op < 26)
    op_cancel(g);
  else if (op < 31)
    op_preempt(g);
  else if (op < 37)
    op_fork(g);
  else if (op < 42)
    op_trim(g);
  else if (op < 46)
    op_force(g);
  else if (op < 49)
    op_bias(g);
  else if (op < 51)
    op_save(g);
  else if (op < 54)
    op_clear(g);
  else if (op < 64)
    op_sample(g, some_twin(g));
  else
    op_step(g);
}

static void run_case(game *g, bool cache) {
  pe_error err;
  pe_batch_options o = {
      .backend = g->backend,
      .tokenizer = g->m.tokenizer,
      .sequences = 1 + chance(6),
      .step_tokens = chance(2) ? 3 : 1 + chance(12),
      .context = CONTEXT,
      .cache_tokens = 2 + 2 * chance(30),
      .kv_block = 2,
      .stride = 3,
      .end_ids = end_ids,
      .end_count = 2,
      .prefix = {.budget = cache ? chance(3) ? 1 << 20 : 6000 : 0, .identity = {1, 2, 3}}};
  int before = check_failures;
  g->twins = g->alive = 0, g->failed = false;
  CHECK_OK(pe_batch_open(g->m.plan, g->m.pool, &o, &g->b, &err), err);
  if (!g->b) return;
  static const char *const pattern[GRAMMARS] = {"(ab|cd)+e?", "[a-f]{3,5}", "[a-f]zyzyzy",
                                                "[c-e]*zyzy(a|b)", "(abe|[b-e]*f)"};
  for (int i = 0; i < GRAMMARS; i++)
    for (int own = 0; own < 2; own++)
      CHECK_OK(pe_grammar_regex(pe_str_c(pattern[i]), own ? &g->own[i] : &g->grammar[i], &err),
               err);
  for (int i = 0; i < OPS && check_failures == before; i++) play(g, chance(100));
  if (check_failures == before) finish_all(g), check_empty(g);
  pe_batch_stats s;
  pe_batch_stat(g->b, &s);
  g->preempted += (int64_t)s.preempted, g->hits += (int64_t)s.prefix.hits;
  for (int i = 0; i < g->twins; i++) pe_buf_free(&g->t[i].text);
  pe_batch_close(g->b);
  for (int i = 0; i < GRAMMARS; i++)
    pe_grammar_release(g->grammar[i]), pe_grammar_release(g->own[i]);
}

static int64_t setting(const char *name, int64_t otherwise) {
  const char *s = getenv(name);
  return s ? strtoll(s, NULL, 10) : otherwise;
}

static void run_cases(kind k, const pe_backend *backend, bool cache, bool failing, int threads) {
  static twin twins[TWINS];
  game g = {.t = twins, .backend = backend, .failing = failing};
  int64_t cases = setting("BATCH_CASES", 60), seed = setting("BATCH_SEED", 1);
  snprintf(save_path, sizeof save_path, "/tmp/perigee-batch-%d", (int)getpid());
  if (model_open(&g.m, k, threads)) {
    oracle_open(&g.o, &g.m);
    oracle_logits(&g.o, (int32_t[CONTEXT]){0}, CONTEXT, 1); /* its memory is there now */
    for (int64_t i = 0; i < cases && !check_failures; i++) {
      int64_t live = pe_alloc_live();
      chance_state = (uint64_t)(seed + i) * 0x2545f4914f6cdd1du;
      run_case(&g, cache);
      CHECK_INT(pe_alloc_live(), live);
      if (check_failures)
        printf("    %s, cache %d, failing %d: BATCH_SEED=%" PRId64 " BATCH_CASES=1\n", kind_name[k],
               cache, failing, seed + i);
    }
    if (!check_failures && cases >= 40)
      CHECK(g.tokens > 5 * cases && g.holds > cases && g.preempted > cases && g.masked > cases &&
            g.runs > (failing ? 0 : cases) && (failing || g.misfits > 0) &&
            (!cache || g.hits > cases) && (!failing || (g.errors > 0 && g.refusals > 0)));
    if (getenv("BATCH_CASES"))
      printf("    %s: %" PRId64 " tokens, %" PRId64 " preempted, %" PRId64 " hits, %" PRId64
             " errors, %" PRId64 " refusals, %" PRId64 " masks, %" PRId64 " forced, %" PRId64
             " that did not fit\n",
             kind_name[k], g.tokens, g.preempted, g.hits, g.errors, g.refusals, g.masked, g.runs,
             g.misfits);
    oracle_close(&g.o);
  }
  model_close(&g.m);
  unlink(save_path);
}

static void test_cold(void) {
  for (kind k = DENSE; k < KINDS; k++) run_cases(k, NULL, false, false, 1);
}

static void test_cached(void) {
  for (kind k = DENSE; k < KINDS; k++) run_cases(k, NULL, true, false, 1);
}

static void test_threads(void) { run_cases(HYBRID, NULL, true, false, 2); }

static void test_failing(void) {
  for (kind k = DENSE; k < KINDS; k++) run_cases(k, NULL, true, true, 1);
}

/* On a backend that computes when it is waited for. */
static void test_late(void) {
  for (kind k = DENSE; k < KINDS; k++) run_cases(k, fake_backend(), true, k % 2, 1);
  CHECK(fake_calls > 0);
  CHECK_INT(fake_changes, 0);
}

static const check_test tests[] = {
    {"without a prefix cache", test_cold},
    {"with a prefix cache", test_cached},
    {"two threads", test_threads},
    {"allocations that fail", test_failing},
    {"a backend that computes late", test_late},
};
CHECK_MAIN("batch_random", tests)
