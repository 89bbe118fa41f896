/* main.c - the program: opens the state, passes the command line to scripts/main.lua and runs the
 * loop.
 *
 * main.lua returns a function. It takes the list of arguments and returns the exit status. If the
 * loop must run before the program ends, it also returns true, or a function that returns the final
 * exit status. */
#include <errno.h>
#include <lauxlib.h>
#include <lua.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "lua/call.h"
#include "lua/open.h"
#include "lua/state.h"
#include "runtime/image/child.h"
#include "runtime/machine.h"

enum { WORK_FAILED = 1, WRONG_USE = 2 };

/* Sets *folder to the value of --scripts, NULL without one. It decides which scripts run, so it is
 * read here, before the first of them. Arguments after `--` and after the FILE of `run FILE` belong
 * to the script. Returns false when the option has no value. */
static bool find_scripts(int argc, char **argv, const char **folder) {
  static const char option[] = "--scripts";
  const size_t n = sizeof option - 1;
  bool run = false;
  *folder = NULL;
  for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
    if (!strcmp(argv[i], option)) {
      if (++i >= argc) return false;
      *folder = argv[i];
    } else if (!strncmp(argv[i], option, n) && argv[i][n] == '=') {
      *folder = argv[i] + n + 1;
    } else if (!strncmp(argv[i], "--", 2)) {
      bool has_value =
          strchr(argv[i], '=') || !strcmp(argv[i], "--help") || !strcmp(argv[i], "--version");
      if (run && !has_value) i++; /* all other common options take a value */
    } else if (argv[i][0] != '-') {
      if (run) break;
      run = !strcmp(argv[i], "run");
    }
  }
  return !*folder || **folder;
}

/* [argc, argv] -> [status, wait] */
static int start(lua_State *L) {
  int argc = (int)lua_tointeger(L, 1);
  char **argv = lua_touserdata(L, 2);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "main");
  lua_call(L, 1, 1);
  lua_createtable(L, argc, 1);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i);
  }
  lua_call(L, 1, 2);
  return 2;
}

/* [f, args...] -> [results...]: calls f and returns the exit status, its first result. */
static int status_of(lua_State *L, int n_args, int n_results) {
  if (!pe_call(L, n_args, n_results, NULL)) {
    pe_call_report(L, "main");
    return WORK_FAILED;
  }
  int is_integer;
  int status = (int)lua_tointegerx(L, -n_results, &is_integer);
  return is_integer ? status : 0;
}

static int run_program(pe_state *s, int argc, char **argv) {
  lua_State *L = s->L;
  lua_settop(L, 0);
  lua_pushcfunction(L, start);
  lua_pushinteger(L, argc);
  lua_pushlightuserdata(L, argv);
  int status = status_of(L, 2, 2);
  if (lua_gettop(L) == 2 && lua_toboolean(L, 2)) {
    bool asks = lua_isfunction(L, 2);
    pe_state_run(s);
    if (asks) status = status_of(L, 0, 1);
  }
  return status;
}

/* Half of the memory: a script that grows without bound fails before weights and caches are swapped
 * out. */
static size_t heap_cap(void) {
  pe_machine m;
  pe_machine_read(&m);
  uint64_t memory = m.memory_limit ? m.memory_limit : m.memory;
  return memory && memory / 2 < SIZE_MAX ? (size_t)(memory / 2) : 0;
}

/* glibc's allocator is tuned for short programs. Large blocks must go back to the system when they
 * are freed: by default the threshold rises with each of them, up to 32 MB, and the memory stays in
 * the heap. Small ones must not be collected in lists that the next larger request joins all at
 * once: after a cycle of Lua's collector that held the loop for 20 ms. Jobs share a few arenas, so
 * that not each of their threads keeps its own. */
static void tune_allocator(void) {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
  mallopt(M_MXFAST, 0);
  mallopt(M_ARENA_MAX, 2);
#endif
}

/* A script may end the program while the terminal is in raw mode. */
static void reset_terminal(void) { uv_tty_reset_mode(); }

int main(int argc, char **argv) {
  pe_state s;
  pe_error err;
  const char *scripts;
  if (pe_child_is_meant(argc, argv)) return pe_child_main(argc, argv);
  tune_allocator();
  signal(SIGPIPE, SIG_IGN);
  atexit(reset_terminal);
  if (!find_scripts(argc, argv, &scripts)) {
    fprintf(stderr, "perigee: --scripts: needs a folder\n");
    return WRONG_USE;
  }
  pe_state_options options = {.open = pe_open, .scripts = scripts, .heap_cap = heap_cap()};
  if (pe_state_open(&s, &options, &err)) {
    fprintf(stderr, "perigee: start: %s\n", err.text);
    return WORK_FAILED;
  }
  int status = run_program(&s, argc, argv);
  bool closed = pe_state_close(&s);
  if (fflush(stdout) && errno != EPIPE) {
    fprintf(stderr, "perigee: stdout: %s\n", strerror(errno));
    if (!status) status = WORK_FAILED;
  }
  if (closed) return status;
  fflush(NULL);
  _Exit(status);
}
