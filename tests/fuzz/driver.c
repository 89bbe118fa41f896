/* driver.c - runs a fuzz target (LLVMFuzzerTestOneInput); the counterpart of driver.lua, with the
 * same options.
 *
 *   fuzz_NAME [--seconds N] [--inputs N] [--seed N] [--keep FOLDER] [--out FOLDER] [FILE...]
 *
 * Without a FILE: every input of tests/fuzz/corpus/NAME and of the keep folder, then mutations of
 * them for that many seconds (1). With FILEs: these inputs alone. An input that crashes, leaks,
 * takes 5 s of CPU time or 60 s in all, or makes the process grow beyond 2 GiB is a failure. It is
 * saved as OUT/fuzz-NAME.crash; OUT is build.
 *
 * Compiled by clang with -fsanitize-coverage=trace-pc-guard (make fuzz), inputs that reach edges of
 * the runtime which no other input reached join the corpus, and are written to the keep folder.
 * Without it (gcc) the mutations are blind. Runs with the same seed and corpus try the same inputs,
 * up to their end. */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base.h"
#include "tests/fuzz/mutate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LATE_S = 5, LATE_WALL_S = 60 };
static struct {
  double seconds;
  long inputs;
  uint64_t seed;
  const char *keep, *out;
} options = {.seconds = 1, .inputs = 1L << 62, .seed = 1, .out = "build"};
static const char *name;
static char crash_path[256], command[256];
static long done, kept;

/* ---- coverage -------------------------------------------------------------------------------- */

static uint32_t edges; /* edges of the program */
static bool fresh;     /* the running input reached one that no other input reached */

void __sanitizer_cov_trace_pc_guard_init(uint32_t *start, uint32_t *stop);
void __sanitizer_cov_trace_pc_guard(uint32_t *guard);

void __sanitizer_cov_trace_pc_guard_init(uint32_t *start, uint32_t *stop) {
  if (start == stop || *start) return;
  for (uint32_t *x = start; x < stop; x++) *x = ++edges;
}

/* A guard that is 0 has been seen. Targets may use threads; a lost race keeps an input too many. */
void __sanitizer_cov_trace_pc_guard(uint32_t *guard) {
  if (!*guard) return;
  *guard = 0;
  fresh = true;
}

/* ---- failures -------------------------------------------------------------------------------- */

static void save_input(void) {
  static bool saved;
  if (saved) return;
  saved = true;
  FILE *f = fopen(crash_path, "wb");
  if (f) fwrite(input, 1, input_size, f), fclose(f);
  fprintf(stderr, "input saved in %s; replay: %s %s\n", crash_path, command, crash_path);
  fflush(stderr);
}

static void on_signal(int sig) {
  bool late = sig == SIGALRM || sig == SIGPROF;
  fprintf(stderr, late ? "hangs: over %d s\n" : "signal %d\n", late ? LATE_S : sig);
  save_input();
  signal(sig, SIG_DFL);
  raise(late ? SIGKILL : sig);
}

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(WITH_ASAN)
/* Called by sanitizers before they end the process. */
void __sanitizer_set_death_callback(void (*callback)(void));
#endif

static void set_up_failures(void) {
  static const int fatal[] = {SIGABRT, SIGALRM, SIGPROF, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
#if defined(WITH_ASAN)
  __sanitizer_set_death_callback(save_input);
  int n = 3; /* the sanitizer reports the others */
#else
  int n = sizeof fatal / sizeof *fatal;
#endif
  for (int i = 0; i < n; i++) signal(fatal[i], on_signal);
#if !defined(WITH_ASAN) && !defined(__SANITIZE_THREAD__) && defined(__linux__) &&                  \
    !defined(__clang__)
  struct rlimit most = {(rlim_t)2 << 30, (rlim_t)2 << 30};
  setrlimit(RLIMIT_AS, &most);
#endif
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* The first input may allocate what a target keeps for all inputs. */
static void one(void) {
  static bool warm;
  int64_t live = pe_alloc_live();
  struct itimerval cpu = {.it_value = {LATE_S, 0}};
  setitimer(ITIMER_PROF, &cpu, NULL);
  alarm(LATE_WALL_S);
  fresh = false;
  /* An exact copy, so that a sanitizer sees reads past the end; NULL as from an empty file. */
  uint8_t *exact = input_size ? malloc(input_size) : NULL;
  if (input_size) memcpy(exact, input, input_size);
  LLVMFuzzerTestOneInput(exact, input_size);
  free(exact);
  done++;
  if (warm && pe_alloc_live() != live)
    fprintf(stderr, "leaked %lld allocations\n", (long long)(pe_alloc_live() - live)), abort();
  warm = true;
}

static bool load(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) return false;
  input_size = fread(input, 1, INPUT_ROOM, f);
  fclose(f);
  return true;
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Runs the files of a folder in the order of their names, and adds them to the corpus. */
static void replay_folder(const char *folder) {
  char *names[MAX_SEEDS];
  int n = 0;
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d)) && n < MAX_SEEDS;)
    if (e->d_name[0] != '.') {
      char path[600];
      snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
      names[n++] = strdup(path);
    }
  if (d) closedir(d);
  qsort(names, (size_t)n, sizeof *names, by_name);
  for (int i = 0; i < n; i++) {
    if (load(names[i])) add_seed(), one();
    free(names[i]);
  }
}

static void keep(void) {
  if (!add_seed()) return;
  kept++;
  if (!options.keep) return;
  char path[600];
  uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a: equal inputs have one file */
  for (size_t i = 0; i < input_size; i++) hash = (hash ^ input[i]) * 0x100000001b3u;
  snprintf(path, sizeof path, "%s/%016llx", options.keep, (unsigned long long)hash);
  FILE *f = fopen(path, "wb");
  if (f) fwrite(input, 1, input_size, f), fclose(f);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fuzz(void) {
  char folder[200];
  snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
  one(); /* the empty input */
  replay_folder(folder);
  if (options.keep) mkdir(options.keep, 0755), replay_folder(options.keep);
  if (!seed_count) input_size = 0, add_seed();
  rng = 0x9e3779b97f4a7c15u ^ (options.seed * 0x2545f4914f6cdd1du + 1);
  double stop = now() + options.seconds;
  while (done < options.inputs && now() < stop) {
    mutate();
    one();
    if (fresh) keep();
  }
}

/* ---- options --------------------------------------------------------------------------------- */

/* Sets the option at argv[i], if it is one. */
static bool option(char **argv, int i) {
  const char *value = argv[i + 1];
  if (strncmp(argv[i], "--", 2)) return false;
  if (!value) {
    fprintf(stderr, "%s needs a value\n", argv[i]);
    exit(2);
  }
  if (!strcmp(argv[i], "--seconds"))
    options.seconds = atof(value);
  else if (!strcmp(argv[i], "--inputs"))
    options.inputs = atol(value);
  else if (!strcmp(argv[i], "--seed"))
    options.seed = strtoull(value, NULL, 10);
  else if (!strcmp(argv[i], "--keep"))
    options.keep = value;
  else if (!strcmp(argv[i], "--out"))
    options.out = value;
  else {
    fprintf(stderr, "unknown option %s\n", argv[i]);
    exit(2);
  }
  return true;
}

int main(int argc, char **argv) {
  name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
  name = strncmp(name, "fuzz_", 5) ? name : name + 5;
  snprintf(command, sizeof command, "%s", argv[0]);
  int first = 1;
  while (first < argc && option(argv, first)) first += 2;
  mkdir(options.out, 0755);
  snprintf(crash_path, sizeof crash_path, "%s/fuzz-%s.crash", options.out, name);
  set_up_failures();
  if (first == argc) fuzz();
  for (int i = first; i < argc; i++) {
    if (!load(argv[i])) {
      fprintf(stderr, "%s: cannot be read\n", argv[i]);
      return 2;
    }
    one();
  }
  printf("fuzz_%s (%ld inputs, corpus %d, %ld kept): 1 passed, 0 failed, 0 skipped\n", name, done,
         seed_count, kept);
  free_seeds();
  return 0;
}
