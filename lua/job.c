/* job.c - see job.h. */
#include "lua/job.h"

#include <lauxlib.h>
#include <uv.h>

#include "lua/bind.h"
#include "lua/call.h"
#include "lua/state.h"

typedef struct job {
  uv_work_t work;
  lua_State *L; /* the main state: the coroutine that started the job may be gone */
  int callback;
  const pe_job_kind *kind;
  void *data;
} job;

int pe_job_callback(lua_State *L, int arg) {
  luaL_checktype(L, arg, LUA_TFUNCTION);
  if (pe_state_of(L)->closing) luaL_error(L, "cannot start a job: the program is ending");
  lua_pushvalue(L, arg);
  return luaL_ref(L, LUA_REGISTRYINDEX);
}

static void free_job(job *j) {
  luaL_unref(j->L, LUA_REGISTRYINDEX, j->callback);
  j->kind->free(j->data);
  pe_free(j);
}

static void run(uv_work_t *work) {
  job *j = work->data;
  j->kind->run(j->data);
}

/* [job] -> []: called by pe_call, so that running out of memory in `push` is an error like any
 * other. */
static int deliver(lua_State *L) {
  job *j = lua_touserdata(L, 1);
  int n = j->kind->push(L, j->data);
  lua_rawgeti(L, LUA_REGISTRYINDEX, j->callback);
  lua_insert(L, -n - 1);
  lua_call(L, n, 0);
  return 0;
}

static void done(uv_work_t *work, int status) {
  (void)status; /* jobs are never cancelled */
  job *j = work->data;
  lua_State *L = j->L;
  if (lua_checkstack(L, 4)) {
    lua_pushcfunction(L, deliver);
    lua_pushlightuserdata(L, j);
    if (!pe_call(L, 1, 0, NULL)) pe_call_report(L, "callback");
  }
  free_job(j);
}

static pe_status queue(lua_State *L, int callback, const pe_job_kind *kind, void *data,
                       pe_error *err) {
  const pe_state *s = pe_state_of(L);
  job *j = data ? pe_alloc(sizeof *j) : NULL;
  if (!j) {
    luaL_unref(L, LUA_REGISTRYINDEX, callback);
    if (data) kind->free(data);
    return pe_nomem(err, "job");
  }
  *j = (job){.L = s->L, .callback = callback, .kind = kind, .data = data};
  j->work.data = j;
  int rc = uv_queue_work(s->loop, &j->work, run, done);
  if (!rc) return PE_OK;
  free_job(j);
  return pe_fail(err, PE_EIO, "cannot queue a job: %s", uv_strerror(rc));
}

int pe_job_start(lua_State *L, int callback, const pe_job_kind *kind, void *data) {
  pe_error err;
  if (queue(L, callback, kind, data, &err)) return pe_bind_error(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

/* ---- stopping -------------------------------------------------------------------------------- */

typedef struct stop {
  pe_stop *flag;
} stop;

pe_stop *pe_stop_retain(pe_stop *s) {
  if (s) atomic_fetch_add(&s->refs, 1);
  return s;
}

void pe_stop_release(pe_stop *s) {
  if (s && atomic_fetch_sub(&s->refs, 1) == 1) pe_free(s);
}

static void stop_close(void *self) { pe_stop_release(((stop *)self)->flag); }

static int l_set(lua_State *L);
static const luaL_Reg methods[] = {{"set", l_set}, {NULL, NULL}};
static const pe_class stop_class = {"perigee.Stop", methods, NULL, NULL, NULL, stop_close};

pe_stop *pe_stop_option(lua_State *L, int arg, const char *key) {
  if (!pe_bind_option(L, arg, key)) return NULL;
  stop *s = pe_bind_test(L, -1, &stop_class);
  if (!s) luaL_error(L, "option '%s' must be a perigee.Stop", key);
  lua_pop(L, 1); /* the table holds it */
  return s->flag;
}

static int l_set(lua_State *L) { /* [self] -> [] */
  stop *s = pe_bind_check(L, 1, &stop_class);
  atomic_store(&s->flag->set, true);
  return 0;
}

static int job_stop(lua_State *L) { /* [] -> [stop] */
  stop *s = pe_bind_new(L, &stop_class, sizeof *s, 0);
  pe_error err;
  if (!(s->flag = pe_calloc(1, sizeof *s->flag))) {
    pe_nomem(&err, "stop");
    return pe_bind_raise(L, &err);
  }
  atomic_init(&s->flag->refs, 1);
  pe_bind_opened(L, s, 0);
  return 1;
}

int pe_open_job(lua_State *L) {
  static const luaL_Reg functions[] = {{"stop", job_stop}, {NULL, NULL}};
  pe_bind_class(L, &stop_class);
  luaL_newlib(L, functions);
  return 1;
}
