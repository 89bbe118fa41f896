/* l_batch_push.c - see l_batch.h: events, sequences and counters as tables. */
#include "lua/l_batch.h"

static void set_integer(lua_State *L, const char *key, lua_Integer v) {
  lua_pushinteger(L, v);
  lua_setfield(L, -2, key);
}

static void set_number(lua_State *L, const char *key, double v) {
  lua_pushnumber(L, v);
  lua_setfield(L, -2, key);
}

static void set_boolean(lua_State *L, const char *key, bool v) {
  lua_pushboolean(L, v);
  lua_setfield(L, -2, key);
}

static void set_string(lua_State *L, const char *key, const char *v) {
  lua_pushstring(L, v);
  lua_setfield(L, -2, key);
}

static void set_seconds(lua_State *L, const char *key, int64_t ns) {
  set_number(L, key, (double)ns * 1e-9);
}

/* ---- events -------------------------------------------------------------------------------- */

static void push_token(lua_State *L, const pe_choice *c) {
  set_integer(L, "id", c->id);
  set_number(L, "logprob", (double)c->logprob);
  if (!c->top_count) return;
  lua_createtable(L, c->top_count, 0);
  for (int32_t i = 0; i < c->top_count; i++) {
    lua_createtable(L, 0, 2);
    set_integer(L, "id", c->top_id[i]);
    set_number(L, "logprob", (double)c->top_logprob[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "top");
}

static void push_event(lua_State *L, const pe_event *e) {
  lua_createtable(L, 0, e->finish ? 9 : 4);
  set_integer(L, "seq", e->seq);
  if (e->token) push_token(L, &e->choice);
  lua_pushlstring(L, e->text.len ? e->text.at : "", e->text.len);
  lua_setfield(L, -2, "text");
  if (e->held) set_boolean(L, "held", true);
  if (e->forced) set_boolean(L, "forced", true);
  if (e->ticket) set_integer(L, "ticket", (lua_Integer)e->ticket);
  if (e->error) {
    pe_bind_push_error(L, pe_status_name(e->error->code), e->error->field, e->error->text);
    lua_setfield(L, -2, "error");
  }
  if (!e->finish) return;
  set_string(L, "finish", pe_finish_name(e->finish));
  if (e->stop_index >= 0) set_integer(L, "stop", e->stop_index + 1);
  set_integer(L, "prompt_tokens", e->prompt);
  set_integer(L, "completion_tokens", e->generated);
  set_integer(L, "cached_tokens", e->cached);
  set_integer(L, "forced_tokens", e->forced_tokens);
}

void pe_l_batch_append_events(lua_State *L, const pe_event *event, int32_t count) {
  lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
  for (int32_t i = 0; i < count; i++) {
    push_event(L, &event[i]);
    lua_rawseti(L, -2, n + i + 1);
  }
}

/* ---- sequences ----------------------------------------------------------------------------- */

/* [table] -> [table] */
static void fill_sequence(lua_State *L, const pe_seq_info *seq) {
  static const char *const states[] = {"waiting", "prefill", "decode", "held", "done"};
  set_integer(L, "id", seq->id);
  set_string(L, "state", states[seq->state]);
  set_integer(L, "prompt", seq->prompt);
  set_integer(L, "past", seq->past);
  set_integer(L, "generated", seq->generated);
  set_integer(L, "cached", seq->cached);
  set_integer(L, "left", seq->left);
  set_integer(L, "choice", seq->choice);
  set_boolean(L, "follows", seq->follows);
  set_seconds(L, "age", seq->age_ns);
  set_integer(L, "bytes", (lua_Integer)seq->bytes);
}

void pe_l_batch_push_sequences(lua_State *L, const pe_seq_info *seq, int32_t count) {
  lua_createtable(L, count, 0);
  for (int32_t i = 0; i < count; i++) {
    lua_createtable(L, 0, 11);
    fill_sequence(L, &seq[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

void pe_l_batch_refill_sequences(lua_State *L, int tables, const pe_seq_info *seq, int32_t count) {
  lua_Integer n = 0;
  lua_createtable(L, count, 0);
  for (int32_t i = 0; i < count; i++) {
    if (lua_rawgeti(L, tables, seq[i].id) != LUA_TTABLE) {
      lua_pop(L, 1);
      continue;
    }
    lua_pushnil(L);
    lua_setmetatable(L, -2); /* a policy had it, and may have set one */
    fill_sequence(L, &seq[i]);
    lua_rawseti(L, -2, ++n);
  }
}

/* ---- counters ------------------------------------------------------------------------------ */

typedef struct counter {
  const char *key;
  uint64_t value;
} counter;

static void set_counters(lua_State *L, const counter *c) {
  for (; c->key; c++) set_integer(L, c->key, (lua_Integer)c->value);
}

void pe_l_batch_push_stats(lua_State *L, const pe_batch_stats *s) {
  const pe_prefix_stats *p = &s->prefix;
  const counter batch[] = {{"steps", s->steps},
                           {"prefill_tokens", s->prefill_tokens},
                           {"decode_tokens", s->decode_tokens},
                           {"cached_tokens", s->cached_tokens},
                           {"listed_tokens", s->listed_tokens},
                           {"forced_tokens", s->forced_tokens},
                           {"added", s->added},
                           {"finished", s->finished},
                           {"cancelled", s->cancelled},
                           {"failed", s->failed},
                           {"preempted", s->preempted},
                           {"running", (uint64_t)s->running},
                           {"waiting", (uint64_t)s->waiting},
                           {"media_bytes", s->media_bytes},
                           {NULL, 0}};
  const counter prefix[] = {{"bytes", p->bytes},
                            {"disk_bytes", p->disk_bytes},
                            {"nodes", p->nodes},
                            {"snapshots", p->snapshots},
                            {"lookups", p->lookups},
                            {"hits", p->hits},
                            {"hit_tokens", p->hit_tokens},
                            {"asked_tokens", p->asked_tokens},
                            {"evictions", p->evictions},
                            {"disk_reads", p->disk_reads},
                            {"disk_writes", p->disk_writes},
                            {"disk_errors", p->disk_errors},
                            {NULL, 0}};
  lua_createtable(L, 0, 16);
  set_counters(L, batch);
  set_seconds(L, "schedule", (int64_t)s->schedule_ns);
  set_seconds(L, "compute", (int64_t)s->compute_ns);
  set_seconds(L, "sample", (int64_t)s->sample_ns);
  lua_createtable(L, 0, 12);
  set_counters(L, prefix);
  lua_setfield(L, -2, "prefix");
}

void pe_l_batch_push_trace(lua_State *L, const pe_trace *trace, int32_t count) {
  lua_createtable(L, count, 0);
  for (int32_t i = 0; i < count; i++) {
    const pe_trace *t = &trace[i];
    lua_createtable(L, 0, 7);
    set_seconds(L, "at", t->at_ns);
    set_integer(L, "tokens", t->rows);
    set_integer(L, "prefill", t->prefill);
    set_integer(L, "decode", t->decode);
    set_seconds(L, "schedule", t->schedule_ns);
    set_seconds(L, "compute", t->compute_ns);
    set_seconds(L, "sample", t->sample_ns);
    lua_rawseti(L, -2, i + 1);
  }
}
