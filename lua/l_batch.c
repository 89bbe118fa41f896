/* l_batch.c - perigee.batch: the batch for scripts, in the foreground or on the engine thread.
 *
 * In the foreground `step` runs one step and returns its events. After `start`, steps run on the
 * engine thread: `submit` queues the grants of the next one, and whenever something has happened
 * one byte is written to a pipe, whose reading end `start` returns, so that a script's loop can
 * poll it; `drain` then returns the events. It is a pipe and not a handle of the loop because the
 * engine thread may outlive every handle. `stop` brings the batch back to the foreground. Batches
 * that were opened with `share` have one engine thread and one compute pool (crew.h) between them.
 *
 * Sequences are numbers here; scripts/engine/batch.lua makes objects of them. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "lua/job.h"
#include "lua/l_batch.h"
#include "lua/l_grammar.h"
#include "lua/l_graph.h"
#include "lua/l_media.h"
#include "lua/l_tensor.h"
#include "lua/progress.h"
#include "lua/wakeup.h"

typedef struct batch {
  pe_plan *plan;
  pe_crew *crew; /* a share */
  pe_batch *b;   /* in the foreground, else NULL */
  pe_worker *w;  /* on the engine thread, else NULL */
  int *pipe;     /* two ends, while there is a worker: its own memory, since the worker uses it */
  pe_tokmask *tokens; /* of the batch, or NULL */
  int32_t step_tokens, vocabulary;
  int32_t told; /* events of the batch that the script has */
  int64_t context;
} batch;

static void close_pipe(batch *s) {
  pe_wakeup_close(s->pipe);
  pe_free(s->pipe);
  s->pipe = NULL;
}

static void batch_close(void *self) {
  batch *s = self;
  if (s->w) {
    pe_worker_close(s->w);
    close_pipe(s);
  }
  pe_batch_close(s->b);
  pe_plan_close(s->plan);
  pe_crew_release(s->crew);
  pe_tokmask_release(s->tokens);
  s->b = NULL, s->w = NULL, s->plan = NULL, s->crew = NULL, s->tokens = NULL;
}

#define METHODS(X)                                                                                 \
  X(command)                                                                                       \
  X(logits)                                                                                        \
  X(sequences)                                                                                     \
  X(room)                                                                                          \
  X(stats)                                                                                         \
  X(trace)                                                                                         \
  X(step)                                                                                          \
  X(start)                                                                                         \
  X(submit)                                                                                        \
  X(drain)                                                                                         \
  X(stop)                                                                                          \
  X(retire)                                                                                        \
  X(pending)                                                                                       \
  X(completed)
#define FIELDS(X) X(running) X(threads) X(step_tokens) X(context) X(vocabulary) X(tokens)
METHODS(PE_BIND_DECLARE)
FIELDS(PE_BIND_DECLARE)
static const luaL_Reg methods[] = {METHODS(PE_BIND_ENTRY){NULL, NULL}};
static const luaL_Reg fields[] = {FIELDS(PE_BIND_ENTRY){NULL, NULL}};
static const pe_class batch_class = {"perigee.BatchCore", methods, fields, NULL, NULL, batch_close};

static batch *check(lua_State *L) {
  batch *s = pe_bind_check(L, 1, &batch_class);
  if (!s->plan) luaL_error(L, "the batch was retired");
  if (!s->b && !s->w) luaL_error(L, "the batch was lost: its engine thread could not be started");
  return s;
}

pe_crew *pe_l_batch_crew(lua_State *L, int arg) {
  const batch *s = pe_bind_test(L, arg, &batch_class);
  return s ? s->crew : NULL;
}

static batch *check_foreground(lua_State *L) {
  batch *s = check(L);
  if (s->w) luaL_error(L, "the batch runs on the engine thread: stop it first");
  return s;
}

static batch *check_background(lua_State *L) {
  batch *s = check(L);
  if (!s->w) luaL_error(L, "the batch does not run on the engine thread: start it first");
  return s;
}

static int l_running(lua_State *L) {
  lua_pushboolean(L, check(L)->w != NULL);
  return 1;
}

static int l_threads(lua_State *L) {
  lua_pushinteger(L, pe_pool_threads(pe_crew_pool(check(L)->crew)));
  return 1;
}

static int l_tokens(lua_State *L) {
  pe_tokmask *tokens = check(L)->tokens;
  if (tokens) return pe_tokmask_push(L, tokens);
  lua_pushnil(L);
  return 1;
}

static int l_step_tokens(lua_State *L) {
  lua_pushinteger(L, check(L)->step_tokens);
  return 1;
}

static int l_context(lua_State *L) {
  lua_pushinteger(L, check(L)->context);
  return 1;
}

static int l_vocabulary(lua_State *L) {
  lua_pushinteger(L, check(L)->vocabulary);
  return 1;
}

/* ---- opening ------------------------------------------------------------------------------- */

static pe_batch_options read_options(lua_State *L, int arg) {
  static const char *const keys[] = {
      "tokenizer",    "threads",          "sequences", "step_tokens", "context",
      "cache_tokens", "kv_bits",          "kv_block",  "stride",      "cache_bytes",
      "cache_folder", "cache_disk_bytes", "end_ids",   "share",       "media_bytes",
      "precision",    "device",           "progress",  NULL};
  pe_bind_options(L, arg, keys);
  pe_batch_options o = {
      .sequences = (int32_t)pe_bind_integer(L, arg, "sequences", 1, 1 << 16, 64),
      .step_tokens = (int32_t)pe_bind_integer(L, arg, "step_tokens", 1, 1 << 20, 512),
      .context = pe_bind_integer(L, arg, "context", 2, INT32_MAX / 2, 4096),
      .cache_tokens = pe_bind_integer(L, arg, "cache_tokens", 1, INT64_C(1) << 40, 0),
      .precision = pe_bind_precision(L, arg),
      .kv_bits = (int32_t)pe_bind_integer(L, arg, "kv_bits", 4, 32, 0),
      .kv_block = (int32_t)pe_bind_integer(L, arg, "kv_block", 1, 4096, 0),
      .stride = (int32_t)pe_bind_integer(L, arg, "stride", 1, INT32_MAX, 512),
      .media_bytes = (uint64_t)pe_bind_integer(L, arg, "media_bytes", 0, INT64_MAX, 0),
  };
  o.prefix.budget =
      (uint64_t)pe_bind_integer(L, arg, "cache_bytes", 0, INT64_MAX, INT64_C(1) << 30);
  o.prefix.folder = pe_bind_string(L, arg, "cache_folder", NULL, NULL);
  o.prefix.disk_budget = (uint64_t)pe_bind_integer(L, arg, "cache_disk_bytes", 0, INT64_MAX, 0);
  return o;
}

/* The crew of the batch in the option `share`, or a new one. */
static pe_status open_crew(lua_State *L, int arg, batch *s, pe_error *err) {
  if (!pe_bind_option(L, arg, "share"))
    return pe_crew_open((int)pe_bind_integer(L, arg, "threads", 0, PE_POOL_MAX, 0), &s->crew, err);
  const batch *other = pe_bind_test(L, -1, &batch_class);
  if (!other) luaL_error(L, "option 'share' must be an open batch, got %s", luaL_typename(L, -1));
  if (pe_bind_option(L, arg, "threads"))
    luaL_error(
        L,
        "option 'threads' must be absent with 'share': the threads are those of the other batch");
  s->crew = pe_crew_retain(other->crew);
  return PE_OK;
}

static int l_open(lua_State *L) { /* [graph, options] -> [batch] or [nil, err] */
  lua_settop(L, 2);
  pe_graph *g = pe_bind_graph(L, 1);
  pe_batch_options o = read_options(L, 2);
  batch *s = pe_bind_new(L, &batch_class, sizeof *s, 2);
  int self = lua_gettop(L);
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, self, 1);
  if (pe_bind_option(L, 2, "tokenizer")) {
    o.tokenizer = pe_bind_tokenizer(L, -1);
    lua_setiuservalue(L, self, 2);
  }
  if (pe_bind_option(L, 2, "end_ids")) {
    pe_ids_view ids = pe_l_batch_ids(L, -1, "end_ids");
    o.end_ids = ids.id, o.end_count = ids.count;
  }
  pe_bind_listener listener;
  o.progress = pe_bind_progress(L, 2, &listener);
  pe_error err;
  pe_status rc = pe_bind_device(L, 2, &o.backend, &err);
  if (!rc) rc = open_crew(L, 2, s, &err);
  if (!rc) rc = pe_plan_open(g, NULL, &s->plan, &err);
  if (!rc) rc = pe_batch_open(s->plan, pe_crew_pool(s->crew), &o, &s->b, &err);
  if (rc) {
    batch_close(s);
    return pe_bind_error(L, &err);
  }
  if (pe_batch_tokens(s->b)) s->tokens = pe_tokmask_retain(pe_batch_tokens(s->b));
  s->step_tokens = o.step_tokens, s->context = o.context, s->vocabulary = s->plan->vocabulary;
  lua_settop(L, self);
  pe_bind_opened(L, s, 0);
  return 1;
}

/* ---- commands ------------------------------------------------------------------------------ */

/* [name, seq, options]; gives pin->media */
static pe_status read_pin(lua_State *L, int arg, const pe_plan *plan, pe_pin *pin, pe_error *err) {
  static const char *const keys[] = {"prompt",    "off",        "salt", "media",
                                     "positions", "rope_delta", NULL};
  pe_bind_options(L, arg, keys);
  *pin = (pe_pin){.off = pe_bind_boolean(L, arg, "off", false),
                  .salt = (uint64_t)pe_bind_integer(L, arg, "salt", INT64_MIN, INT64_MAX, 0)};
  if (!pe_bind_option(L, arg, "prompt")) lua_pushnil(L);
  pin->prompt = pe_l_batch_ids(L, -1, "pin");
  return pe_l_media(L, arg, plan, pin->prompt.id, pin->prompt.count, &pin->media, err);
}

/* Reads the argument of a verb. Lists live in userdata on the stack; `request` must outlive c. */
static pe_status read_argument(lua_State *L, int arg, const pe_plan *plan, pe_command *c,
                               pe_request *request, pe_error *err) {
  const pe_verb_info *verb = pe_verb_describe(c->verb);
  lua_Integer n;
  switch (verb->argument) {
  case PE_ARG_NONE: break;
  case PE_ARG_REQUEST: c->request = request; return pe_l_batch_request(L, arg, plan, request, err);
  case PE_ARG_SEED: c->seed = (uint64_t)luaL_optinteger(L, arg, 0); break;
  case PE_ARG_IDS: c->ids = pe_l_batch_ids(L, arg, verb->name); break;
  case PE_ARG_BIAS: c->bias = pe_l_batch_bias(L, arg); break;
  case PE_ARG_TOKENS:
    n = luaL_checkinteger(L, arg);
    luaL_argcheck(L, n >= 0 && n <= INT32_MAX, arg, "a number of tokens expected");
    c->tokens = (int32_t)n;
    break;
  case PE_ARG_DRAW: c->draw = pe_l_batch_draw(L, arg); break;
  case PE_ARG_ON: c->on = lua_isnoneornil(L, arg) || lua_toboolean(L, arg); break;
  case PE_ARG_PIN: return read_pin(L, arg, plan, &c->pin, err);
  case PE_ARG_PATH: c->path = luaL_checkstring(L, arg); break;
  }
  return PE_OK;
}

/* [self, verb, (seq,) argument] -> [result] or [nil, err]; the result: the first new sequence and
 * how many there are; the ticket of a file on the engine thread; the tokens of a pin; else true. */
static int l_command(lua_State *L) {
  batch *s = check(L);
  const char *name = luaL_checkstring(L, 2);
  pe_command c = {.verb = pe_verb_named(name)};
  if (c.verb == PE_VERBS) return luaL_error(L, "unknown command '%s'", name);
  bool on_batch = pe_verb_describe(c.verb)->subject == PE_ON_BATCH;
  if (!on_batch) c.seq = luaL_checkinteger(L, 3);
  lua_settop(L, 4);
  pe_request request = {0};
  pe_reply reply;
  pe_error err;
  pe_status rc = read_argument(L, on_batch ? 3 : 4, s->plan, &c, &request, &err);
  if (!rc) rc = s->w ? pe_worker_do(s->w, &c, &reply, &err) : pe_batch_do(s->b, &c, &reply, &err);
  pe_media_release(c.verb == PE_DO_PIN ? c.pin.media : request.media);
  if (rc) return pe_bind_error(L, &err);
  if (reply.count) {
    lua_pushinteger(L, reply.first);
    lua_pushinteger(L, reply.count);
    return 2;
  }
  if (reply.ticket)
    lua_pushinteger(L, (lua_Integer)reply.ticket);
  else if (c.verb == PE_DO_PIN && !s->w)
    lua_pushinteger(L, reply.found);
  else
    lua_pushboolean(L, 1);
  return 1;
}

static int l_commands(lua_State *L) { /* [] -> [list] of {name =, sequence =} */
  lua_createtable(L, PE_VERBS, 0);
  for (int i = 0; i < PE_VERBS; i++) {
    const pe_verb_info *verb = pe_verb_describe((pe_verb)i);
    lua_createtable(L, 0, 2);
    lua_pushstring(L, verb->name);
    lua_setfield(L, -2, "name");
    lua_pushboolean(L, verb->subject != PE_ON_BATCH);
    lua_setfield(L, -2, "sequence");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* ---- state --------------------------------------------------------------------------------- */

static bool copy_logits(const batch *s, pe_seq_id seq, float *out) {
  if (s->w) return pe_worker_logits(s->w, seq, out);
  const float *logits = pe_batch_logits(s->b, seq);
  if (logits) memcpy(out, logits, (size_t)s->vocabulary * sizeof *out);
  return logits != NULL;
}

static int l_logits(lua_State *L) { /* [self, seq] -> [tensor] or [nil]: none were kept */
  check(L);
  pe_seq_id seq = luaL_checkinteger(L, 2);
  pe_tensor *t = pe_tensor_slot(L);
  batch *s = check(L); /* a finalizer may have closed it */
  pe_error err;
  pe_status rc = pe_tensor_new(PE_F32, 1, (int64_t[]){s->vocabulary}, t, &err);
  if (!rc && !copy_logits(s, seq, (float *)(void *)t->buffer->data)) {
    pe_tensor_close(t);
    lua_pushnil(L);
    return 1;
  }
  return pe_tensor_give(L, t, rc, &err);
}

static int32_t copy_sequences(const batch *s, pe_seq_info *out, int32_t most) {
  return s->w ? pe_worker_sequences(s->w, out, most) : pe_batch_sequences(s->b, out, most);
}

static int l_sequences(lua_State *L) { /* [self, tables] -> [list], oldest first */
  lua_settop(L, 2);
  int32_t n = copy_sequences(check(L), NULL, 0);
  pe_seq_info *sequences = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *sequences, 0);
  int32_t now = copy_sequences(check(L), sequences, n);
  if (now > n) now = n;
  if (lua_istable(L, 2))
    pe_l_batch_refill_sequences(L, 2, sequences, now);
  else
    pe_l_batch_push_sequences(L, sequences, now);
  return 1;
}

static int l_room(lua_State *L) { /* [self] -> [free tokens, all tokens] */
  batch *s = check(L);
  int64_t room, all;
  if (s->w)
    pe_worker_room(s->w, &room, &all);
  else
    pe_batch_room(s->b, &room, &all);
  lua_pushinteger(L, room);
  lua_pushinteger(L, all);
  return 2;
}

static int l_stats(lua_State *L) { /* [self] -> [table] */
  batch *s = check(L);
  pe_batch_stats stats;
  if (s->w)
    pe_worker_stat(s->w, &stats);
  else
    pe_batch_stat(s->b, &stats);
  pe_l_batch_push_stats(L, &stats);
  return 1;
}

static int l_trace(lua_State *L) { /* [self, most, since] -> [list], oldest first */
  batch *s = check(L);
  lua_Integer most = luaL_optinteger(L, 2, PE_TRACE_STEPS);
  luaL_argcheck(L, most >= 0, 2, "a number of steps expected");
  lua_Number since = luaL_optnumber(L, 3, -1);
  if (most > PE_TRACE_STEPS) most = PE_TRACE_STEPS;
  pe_trace trace[PE_TRACE_STEPS];
  int32_t want = (int32_t)most, old = 0;
  int32_t n = s->w ? pe_worker_trace(s->w, trace, want) : pe_batch_trace(s->b, trace, want);
  while (old < n && (double)trace[old].at_ns * 1e-9 <= since) old++;
  pe_l_batch_push_trace(L, trace + old, n - old);
  return 1;
}

/* ---- steps --------------------------------------------------------------------------------- */

/* [... grants at arg] -> [..., userdata]: a list of {seq, tokens}. */
static const pe_grant *read_grants(lua_State *L, int arg, int32_t *count) {
  luaL_checktype(L, arg, LUA_TTABLE);
  size_t n = lua_rawlen(L, arg);
  luaL_argcheck(L, n < INT32_MAX / 64, arg, "too many grants");
  pe_grant *grants = lua_newuserdatauv(L, (n + 1) * sizeof *grants, 0);
  for (size_t i = 0; i < n; i++) {
    if (lua_rawgeti(L, arg, (lua_Integer)i + 1) != LUA_TTABLE)
      luaL_error(L, "grants[%d] must be {sequence, tokens}, got %s", (int)i + 1,
                 luaL_typename(L, -1));
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    if (!lua_isinteger(L, -2) || !lua_isinteger(L, -1))
      luaL_error(L, "grants[%d] must be {sequence, tokens}, two integers", (int)i + 1);
    lua_Integer tokens = lua_tointeger(L, -1);
    grants[i] = (pe_grant){lua_tointeger(L, -2), tokens > INT32_MAX ? INT32_MAX
                                                 : tokens < 0       ? 0
                                                                    : (int32_t)tokens};
    lua_pop(L, 3);
  }
  *count = (int32_t)n;
  return grants;
}

/* [list] -> [list]: appends the events that the script does not have yet. */
static void append_events(lua_State *L, batch *s) {
  const pe_event *event;
  int32_t count = pe_batch_events(s->b, &event);
  if (count == s->told) return; /* before the first step `event` is NULL */
  pe_l_batch_append_events(L, event + s->told, count - s->told);
  s->told = count;
}

/* [self, grants] -> [events, sequences that ran] or [nil, err, events] */
static int l_step(lua_State *L) {
  int32_t n, ran;
  const pe_grant *grants = read_grants(L, 2, &n);
  batch *s = check_foreground(L);
  pe_error err;
  lua_createtable(L, n, 0);
  append_events(L, s);
  pe_status rc = pe_batch_step(s->b, grants, n, &ran, &err);
  s->told = 0;
  append_events(L, s);
  if (rc) {
    pe_bind_error(L, &err);
    lua_pushvalue(L, -3);
    return 3;
  }
  lua_pushinteger(L, ran);
  return 2;
}

static int l_start(lua_State *L) { /* [self] -> [file descriptor] or [nil, err] */
  batch *s = check_foreground(L);
  pe_error err;
  if (!(s->pipe = pe_alloc(2 * sizeof *s->pipe)) || !pe_wakeup_open(s->pipe)) {
    pe_fail(&err, PE_EIO, "cannot open a pipe: %s", strerror(errno));
    pe_free(s->pipe);
    s->pipe = NULL;
    return pe_bind_error(L, &err);
  }
  pe_batch *b = s->b;
  s->b = NULL;
  if (pe_worker_open(s->crew, b, pe_wakeup, &s->pipe[1], &s->w, &err)) {
    close_pipe(s);
    return pe_bind_error(L, &err);
  }
  lua_pushinteger(L, s->pipe[0]);
  return 1;
}

static int l_submit(lua_State *L) { /* [self, grants] -> [true] or [nil, err] */
  int32_t n;
  const pe_grant *grants = read_grants(L, 2, &n);
  batch *s = check_background(L);
  pe_error err;
  if (pe_worker_submit(s->w, grants, n, &err)) return pe_bind_error(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static int free_events(lua_State *L) {
  pe_worker_free_events(lua_touserdata(L, 1));
  return 0;
}

static pe_worker_events *push_events_slot(lua_State *L) {
  return pe_bind_slot(L, sizeof(pe_worker_events), "perigee.batch.events", free_events);
}

static int give_events(lua_State *L, pe_worker_events *e, pe_status rc, const pe_error *err) {
  lua_createtable(L, e->count, 0);
  pe_l_batch_append_events(L, e->event, e->count);
  pe_worker_free_events(e);
  if (!rc) return 1;
  pe_bind_push_error(L, pe_status_name(err->code), err->field, err->text);
  return 2;
}

/* [self] -> [events], [completed steps] and the error of a step that failed. The steps are counted
 * after the pipe was emptied: whatever is completed later wakes the loop again. */
static int l_drain(lua_State *L) {
  if (!check(L)->w) { /* of commands since the last step */
    lua_newtable(L);
    append_events(L, check_foreground(L));
    return 1;
  }
  pe_worker_events *e = push_events_slot(L);
  batch *s = check_background(L);
  char bytes[64];
  while (read(s->pipe[0], bytes, sizeof bytes) > 0) {}
  const lua_Integer completed = (lua_Integer)pe_worker_completed(s->w);
  pe_error err;
  pe_status rc = pe_worker_drain(s->w, e, &err);
  const int n = give_events(L, e, rc, &err);
  lua_pushinteger(L, completed);
  if (n == 2) lua_insert(L, -2);
  return n + 1;
}

static int l_stop(lua_State *L) { /* [self] -> [events]: those that were not drained yet */
  pe_worker_events *e = push_events_slot(L);
  batch *s = check_background(L);
  pe_error err;
  pe_worker_halt(s->w);
  pe_status rc = pe_worker_drain(s->w, e, &err);
  s->b = pe_worker_detach(s->w, &s->told);
  s->w = NULL;
  close_pipe(s);
  return give_events(L, e, rc, &err);
}

static void run_retired(void *data) { batch_close(data); }

static void free_retired(void *data) { /* closes it here if the job could not be started */
  batch_close(data);
  pe_free(data);
}

static int push_retired(lua_State *L, void *data) {
  (void)data;
  lua_pushboolean(L, 1);
  return 1;
}

/* [self, callback] -> [true] or [nil, err]: closes without waiting. The running step ends, unsaved
 * prefixes are written and memory is freed on another thread; then the callback is called. */
static int l_retire(lua_State *L) {
  static const pe_job_kind kind = {run_retired, push_retired, free_retired};
  batch *s = check(L);
  int callback = pe_job_callback(L, 2);
  batch *all = pe_alloc(sizeof *all);
  if (all) {
    *all = *s;
    *s = (batch){0};
  }
  return pe_job_start(L, callback, &kind, all);
}

static int l_pending(lua_State *L) {
  lua_pushboolean(L, pe_worker_pending(check_background(L)->w));
  return 1;
}

static int l_completed(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)pe_worker_completed(check_background(L)->w));
  return 1;
}

/* [graph, tokens, kv_bits] -> [bytes]: of the KV cache of one sequence */
static int l_kv_bytes(lua_State *L) {
  pe_graph *g = pe_bind_graph(L, 1);
  lua_Integer tokens = luaL_checkinteger(L, 2), bits = luaL_optinteger(L, 3, 32);
  pe_kv_type type = PE_KV_F32;
  pe_error err;
  luaL_argcheck(L, tokens >= 0, 2, "tokens must be 0 or more");
  luaL_argcheck(L, bits >= 0 && bits <= 64, 3, "kv_bits must be 32, 16, 8 or 4");
  if (pe_kv_type_of_bits((int32_t)bits, &type, &err)) return pe_bind_raise(L, &err);
  lua_pushinteger(L, (lua_Integer)pe_kv_bytes(g, type, tokens));
  return 1;
}

int pe_open_batch(lua_State *L) {
  static const luaL_Reg functions[] = {{"open", l_open},
                                       {"fields", pe_l_batch_fields},
                                       {"commands", l_commands},
                                       {"kv_bytes", l_kv_bytes},
                                       {NULL, NULL}};
  pe_bind_class(L, &batch_class);
  luaL_newlib(L, functions);
  return 1;
}
