/* watchdog.c - see watchdog.h. */
#include "lua/watchdog.h"

#include <errno.h>
#include <lauxlib.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#if defined(__APPLE__)
#include <mach/mach.h>
#endif

#include "lua/state.h"

enum {
  SETTLE_NS = 100 * 1000,          /* enough for every core to see `hooking` (stop_running) */
  AGAIN_NS = 2 * 1000 * 1000,      /* set the hook again until it fires: setting it may race */
  INTERRUPT_NS = 20 * 1000 * 1000, /* between two looks for Ctrl-C: nobody notices the delay */
};
#define FOREVER INT64_MAX

struct pe_watchdog {
  atomic_bool hooking; /* the thread is inside lua_sethook */
#if defined(__APPLE__)
  mach_port_t clock;
#else
  clockid_t clock; /* CPU time of the loop thread */
#endif
  pthread_t thread;
  bool started;
  /* guarded by the lock */
  pthread_mutex_t lock;
  pthread_cond_t wake;
  bool ending;
  lua_State *running;
  int64_t deadline; /* CPU time; FOREVER: none */
  bool interruptible;
  pe_cause cause;   /* why the current scope must end */
  bool fired;       /* the hook has raised in it */
  int64_t wakes_at; /* when the thread looks next, monotonic */
};

static const char TRACE = 0; /* registry key */

/* ---- interrupts ------------------------------------------------------------------------------ */

static atomic_int interrupted;
static int listeners; /* open interruptible scopes; loop thread */
static struct sigaction before;

/* A signal handler may do no more than set a flag. */
static void on_interrupt(int signal_number) {
  (void)signal_number;
  atomic_store(&interrupted, 1);
}

static void listen_interrupts(void) {
  if (listeners++) return;
  struct sigaction act = {.sa_handler = on_interrupt};
  sigemptyset(&act.sa_mask);
  atomic_store(&interrupted, 0);
  sigaction(SIGINT, &act, &before);
}

static void ignore_interrupts(void) {
  if (--listeners == 0) sigaction(SIGINT, &before, NULL);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static struct timespec timespec_of(int64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

#if defined(__APPLE__)
static bool clock_open(pe_watchdog *w) {
  w->clock = pthread_mach_thread_np(pthread_self());
  return !pthread_cond_init(&w->wake, NULL);
}

int64_t pe_watchdog_cpu_ns(const pe_watchdog *w) {
  thread_basic_info_data_t info;
  mach_msg_type_number_t n = THREAD_BASIC_INFO_COUNT;
  if (thread_info(w->clock, THREAD_BASIC_INFO, (thread_info_t)&info, &n)) return 0;
  int64_t s = (int64_t)info.user_time.seconds + info.system_time.seconds;
  return s * 1000000000 +
         ((int64_t)info.user_time.microseconds + info.system_time.microseconds) * 1000;
}

static void wait_ns(pe_watchdog *w, int64_t ns) {
  struct timespec t = timespec_of(ns);
  pthread_cond_timedwait_relative_np(&w->wake, &w->lock, &t);
}
#else
static int64_t ns_of(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

static bool clock_open(pe_watchdog *w) {
  pthread_condattr_t attr;
  if (pthread_getcpuclockid(pthread_self(), &w->clock) || pthread_condattr_init(&attr))
    return false;
  bool good =
      !pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) && !pthread_cond_init(&w->wake, &attr);
  pthread_condattr_destroy(&attr);
  return good;
}

int64_t pe_watchdog_cpu_ns(const pe_watchdog *w) {
  struct timespec t;
  return clock_gettime(w->clock, &t) ? 0 : ns_of(t);
}

static void wait_ns(pe_watchdog *w, int64_t ns) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  struct timespec until = timespec_of(ns_of(now) + ns);
  pthread_cond_timedwait(&w->wake, &w->lock, &until);
}
#endif

/* ---- the hook -------------------------------------------------------------------------------- */

const char *pe_watchdog_text(pe_cause cause) {
  switch (cause) {
  case PE_CAUSE_DEADLINE: return "deadline exceeded";
  case PE_CAUSE_MEMORY: return "not enough memory";
  default: return "interrupted";
  }
}

static int raise_cause(lua_State *L, pe_cause cause, int level) {
  luaL_where(L, level);
  lua_pushstring(L, pe_watchdog_text(cause));
  lua_concat(L, 2);
  return lua_error(L);
}

static void on_hook(lua_State *L, lua_Debug *ar);
static void set_hook(lua_State *L) { lua_sethook(L, on_hook, LUA_MASKCOUNT, 1); }

static void clear_hook(lua_State *L) {
  if (lua_gethook(L) == on_hook) lua_sethook(L, NULL, 0, 0);
}

void pe_traceback(lua_State *L, int level) {
  enum { DEEP = 1000, SHOWN = 20 };
  lua_Debug ar;
  if (!lua_getstack(L, DEEP, &ar)) {
    luaL_traceback(L, L, NULL, level);
    return;
  }
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  luaL_addstring(&b, "stack traceback:");
  for (int i = level; i < level + SHOWN && lua_getstack(L, i, &ar); i++) {
    lua_getinfo(L, "Sln", &ar);
    lua_pushfstring(L, "\n\t%s:%d: in %s '%s'", ar.short_src, ar.currentline,
                    *ar.namewhat ? ar.namewhat : "function", ar.name ? ar.name : "?");
    luaL_addvalue(&b);
  }
  luaL_addstring(&b, "\n\t...");
  luaL_pushresult(&b);
}

/* Notes that Lua has been stopped and, the first time, where. Returns the cause. */
static pe_cause note_stop(pe_watchdog *w, lua_State *L) {
  pthread_mutex_lock(&w->lock);
  pe_cause cause = w->cause;
  bool first = cause && !w->fired;
  if (cause) w->fired = true;
  pthread_mutex_unlock(&w->lock);
  if (first) {
    pe_traceback(L, 0);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &TRACE);
  }
  return cause;
}

static void on_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  pe_cause cause = note_stop(pe_state_of(L)->watchdog, L);
  if (cause)
    raise_cause(L, cause, 0);
  else
    clear_hook(L); /* left over from a scope that has ended */
}

int pe_watchdog_raise(pe_watchdog *w, lua_State *L) {
  set_hook(L);
  return raise_cause(L, note_stop(w, L), 1);
}

void pe_watchdog_push_trace(lua_State *L) { lua_rawgetp(L, LUA_REGISTRYINDEX, &TRACE); }

/* ---- the thread ------------------------------------------------------------------------------ */

/* On the watchdog thread, under the lock. A free() on the loop thread that read `hooking` as false
 * may still be running; the pause lets it finish and its writes arrive. Later ones wait for the
 * lock. */
static void stop_running(pe_watchdog *w) {
  atomic_store(&w->hooking, true);
  struct timespec pause = {.tv_nsec = SETTLE_NS};
  nanosleep(&pause, NULL);
  set_hook(w->running);
  atomic_store(&w->hooking, false);
}

/* Under the lock: stops the running state if it must be, and returns how long to sleep. */
static int64_t look(pe_watchdog *w) {
  int64_t nap = FOREVER;
  if (!w->running || w->fired) return nap;
  if (!w->cause && w->interruptible) {
    if (atomic_exchange(&interrupted, 0)) w->cause = PE_CAUSE_INTERRUPT;
    nap = INTERRUPT_NS;
  }
  if (!w->cause && w->deadline != FOREVER) {
    int64_t left = w->deadline - pe_watchdog_cpu_ns(w);
    if (left <= 0)
      w->cause = PE_CAUSE_DEADLINE;
    else if (left < nap)
      nap = left;
  }
  if (!w->cause) return nap;
  stop_running(w);
  return AGAIN_NS;
}

static void *watch(void *arg) {
  pe_watchdog *w = arg;
  pthread_mutex_lock(&w->lock);
  while (!w->ending) {
    int64_t nap = look(w);
    w->wakes_at = nap == FOREVER ? FOREVER : pe_clock_ns() + nap;
    if (nap == FOREVER)
      pthread_cond_wait(&w->wake, &w->lock);
    else
      wait_ns(w, nap);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static bool start(pe_watchdog *w) {
  if (!w->started) w->started = !pthread_create(&w->thread, NULL, watch, w);
  return w->started;
}

pe_watchdog *pe_watchdog_open(void) {
  pe_watchdog *w = pe_calloc(1, sizeof *w);
  if (!w) return NULL;
  w->deadline = w->wakes_at = FOREVER;
  if (pthread_mutex_init(&w->lock, NULL)) goto no_lock;
  if (!clock_open(w)) goto no_clock;
  return w;
no_clock:
  pthread_mutex_destroy(&w->lock);
no_lock:
  pe_free(w);
  return NULL;
}

void pe_watchdog_close(pe_watchdog *w) {
  if (!w) return;
  if (w->started) {
    pthread_mutex_lock(&w->lock);
    w->ending = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
  }
  pthread_cond_destroy(&w->wake);
  pthread_mutex_destroy(&w->lock);
  pe_free(w);
}

void pe_watchdog_settle(pe_watchdog *w) {
  if (!atomic_load_explicit(&w->hooking, memory_order_relaxed)) return;
  pthread_mutex_lock(&w->lock);
  pthread_mutex_unlock(&w->lock);
}

/* ---- scopes ---------------------------------------------------------------------------------- */

bool pe_watchdog_enter(pe_watchdog *w, pe_scope *scope, lua_State *L, int64_t cpu_ns,
                       bool interruptible) {
  bool watched = cpu_ns > 0 || interruptible;
  if (watched && !start(w)) return false;
  int64_t now = cpu_ns > 0 ? pe_watchdog_cpu_ns(w) : 0;
  int64_t deadline = cpu_ns > 0 && cpu_ns < FOREVER - now ? now + cpu_ns : FOREVER;
  if (interruptible) listen_interrupts();
  int64_t first_look = pe_clock_ns() + (interruptible ? INTERRUPT_NS : cpu_ns);
  pthread_mutex_lock(&w->lock);
  *scope = (pe_scope){.deadline = w->deadline,
                      .running = w->running,
                      .cause = w->cause,
                      .fired = w->fired,
                      .interruptible = w->interruptible,
                      .listens = interruptible};
  w->running = L;
  if (deadline < w->deadline) w->deadline = deadline;
  if (interruptible) w->interruptible = true;
  if (!w->cause) w->fired = false;
  bool stopped = w->cause;
  /* Wake the thread only if it would sleep past this deadline: a burst of calls costs no
   * switches. */
  if (watched && first_look < w->wakes_at) pthread_cond_signal(&w->wake);
  pthread_mutex_unlock(&w->lock);
  if (stopped) set_hook(L); /* the surrounding scope has been stopped */
  return true;
}

pe_cause pe_watchdog_leave(pe_watchdog *w, pe_scope *scope, lua_State *L) {
  pthread_mutex_lock(&w->lock);
  pe_cause cause = w->cause, struck = w->fired ? cause : PE_CAUSE_NONE;
  w->running = scope->running;
  w->deadline = scope->deadline;
  w->interruptible = scope->interruptible;
  w->fired = scope->fired;
  w->cause = scope->cause;
  if (!w->cause) { /* is the surrounding scope stopped for the same cause? */
    bool late = cause == PE_CAUSE_DEADLINE && w->deadline != FOREVER &&
                w->deadline <= pe_watchdog_cpu_ns(w);
    bool interrupted_too = cause == PE_CAUSE_INTERRUPT && !scope->listens && w->interruptible;
    if (late || interrupted_too) w->cause = cause;
  }
  bool goes_on = !w->cause;
  lua_State *outer = w->running;
  if (cause) pthread_cond_signal(&w->wake); /* it sleeps without a timeout after the hook fired */
  pthread_mutex_unlock(&w->lock);
  if (cause && goes_on) clear_hook(L);
  if (outer && !goes_on) set_hook(outer);
  if (scope->listens) ignore_interrupts();
  return struck;
}

void pe_watchdog_stop(pe_watchdog *w, pe_cause cause) {
  pthread_mutex_lock(&w->lock);
  if (w->running && !w->cause) {
    w->cause = cause;
    set_hook(w->running);
  }
  pthread_mutex_unlock(&w->lock);
}

bool pe_watchdog_is_deep(pe_watchdog *w, int calls) {
  lua_Debug ar;
  lua_State *L = w->running; /* only this thread changes it */
  return L && lua_getstack(L, calls, &ar);
}

bool pe_watchdog_stopped(pe_watchdog *w) {
  pthread_mutex_lock(&w->lock);
  bool stopped = w->cause != PE_CAUSE_NONE;
  pthread_mutex_unlock(&w->lock);
  return stopped;
}

lua_State *pe_watchdog_publish(pe_watchdog *w, lua_State *L, pe_cause *cause) {
  pthread_mutex_lock(&w->lock);
  lua_State *was = w->running;
  w->running = L;
  *cause = w->cause;
  pthread_mutex_unlock(&w->lock);
  return was;
}
