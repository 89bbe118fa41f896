/* driver.c - runs a fuzz target (LLVMFuzzerTestOneInput) without libFuzzer: the seeds in
 * tests/fuzz/corpus/NAME, then random mutations of them. Runs with the same seed are identical.
 *
 *   fuzz_NAME [rounds] [seed]     20,000 rounds, but at most FUZZ_SECONDS (default 3)
 *   fuzz_NAME FILE                this input alone, to examine a finding
 *
 * An input that hangs for ten seconds, leaks, or makes the process grow beyond 2 GiB counts as a
 * crash and is saved in build/fuzz-NAME.crash. */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SEEDS = 256, INPUT_ROOM = 1 << 20 };
static struct {
  uint8_t *data;
  size_t size;
} seeds[MAX_SEEDS];
static int seed_count;
static uint8_t input[INPUT_ROOM];
static size_t input_size;
static char crash_path[256];
static uint64_t rng;

static uint32_t below(uint32_t n) {
  rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
  return n ? (uint32_t)((rng >> 16) % n) : 0;
}

static void save_input(int sig) {
  FILE *f = fopen(crash_path, "wb");
  if (f) fwrite(input, 1, input_size, f), fclose(f);
  fprintf(stderr, "signal %d; input saved in %s\n", sig, crash_path);
  signal(sig, SIG_DFL);
  raise(sig == SIGALRM ? SIGKILL : sig);
}

static void add_seed(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) return;
  if (seed_count == MAX_SEEDS) {
    fclose(f);
    return;
  }
  uint8_t *data = malloc(INPUT_ROOM);
  size_t n = fread(data, 1, INPUT_ROOM, f);
  fclose(f);
  seeds[seed_count].data = data, seeds[seed_count++].size = n;
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static void load_seeds(const char *name) {
  char folder[200], *names[MAX_SEEDS];
  int n = 0;
  snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", name);
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d)) && n < MAX_SEEDS;)
    if (e->d_name[0] != '.') {
      char path[600];
      snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
      names[n++] = strdup(path);
    }
  if (d) closedir(d);
  qsort(names, (size_t)n, sizeof *names, by_name);
  for (int i = 0; i < n; i++) add_seed(names[i]), free(names[i]);
  if (!seed_count) seeds[seed_count++].data = calloc(1, 1);
}

/* One to four changes. Favours lengths at the edges of integers, JSON's punctuation and leading
 * bytes of UTF-8. */
static void mutate(void) {
  static const uint64_t edges[] = {0,
                                   1,
                                   0x7f,
                                   0x80,
                                   0xff,
                                   0x7fff,
                                   0xffff,
                                   0x7fffffff,
                                   0xffffffff,
                                   0x7fffffffffffffff,
                                   UINT64_MAX,
                                   0x8000000000000000,
                                   0x4000000000000000};
  static const char marks[] = "{}[]\",:\\u0-.eE\xc3\xed\xf0\x80\xbf\xff\xe2\x96\x81 \n";
  int changes = 1 + (int)below(4);
  while (changes--) {
    uint32_t at = below((uint32_t)input_size), n = 1 + below(16), to = below((uint32_t)input_size);
    uint64_t edge = edges[below(sizeof edges / sizeof *edges)];
    size_t room = input_size - at;
    switch (below(8)) {
    case 0:
      if (room) input[at] ^= (uint8_t)(1u << below(8));
      break;
    case 1:
      if (room) input[at] = (uint8_t)below(256);
      break;
    case 2:
      if (room) input[at] = (uint8_t)marks[below(sizeof marks - 1)];
      break;
    case 3: memcpy(input + at, &edge, room < 8 ? room : below(2) ? 8 : 4 < room ? 4 : room); break;
    case 4: input_size = at; break;
    case 5:
      if (room > n) memmove(input + at, input + at + n, room - n), input_size -= n;
      break;
    case 6:
      if (input_size + n < INPUT_ROOM) {
        memmove(input + at + n, input + at, room), input_size += n;
        for (uint32_t i = 0; i < n; i++)
          input[at + i] = (uint8_t)(below(2) ? marks[below(sizeof marks - 1)] : (char)below(256));
      }
      break;
    default:
      if (room > n && input_size - to > n) memmove(input + at, input + to, n);
    }
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The first input may allocate what a target keeps for all inputs. */
static void one(void) {
  static bool warm;
  int64_t live = pe_alloc_live();
  alarm(10);
  /* an exact copy, so that a sanitizer sees reads past the end */
  uint8_t *exact = malloc(input_size ? input_size : 1);
  memcpy(exact, input, input_size);
  LLVMFuzzerTestOneInput(exact, input_size);
  free(exact);
  if (warm && pe_alloc_live() != live)
    fprintf(stderr, "leaked %lld allocations\n", (long long)(pe_alloc_live() - live)), abort();
  warm = true;
}

int main(int argc, char **argv) {
  const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
  name = strncmp(name, "fuzz_", 5) ? name : name + 5;
  snprintf(crash_path, sizeof crash_path, "build/fuzz-%s.crash", name);
  static const int fatal[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM};
  for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) signal(fatal[i], save_input);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__linux__) &&       \
    !defined(__clang__)
  struct rlimit most = {(rlim_t)2 << 30, (rlim_t)2 << 30};
  setrlimit(RLIMIT_AS, &most);
#endif
  if (argc > 1 && access(argv[1], R_OK) == 0) {
    add_seed(argv[1]);
    memcpy(input, seeds[0].data, input_size = seeds[0].size), one();
    free(seeds[0].data);
    return 0;
  }
  long rounds = argc > 1 ? atol(argv[1]) : 20000, done = 0;
  rng = 0x9e3779b97f4a7c15u ^ (argc > 2 ? strtoull(argv[2], NULL, 10) : 0);
  double stop = now() + (getenv("FUZZ_SECONDS") ? atof(getenv("FUZZ_SECONDS")) : 3);
  load_seeds(name);
  for (int i = 0; i < seed_count; i++)
    memcpy(input, seeds[i].data, input_size = seeds[i].size), one(), done++;
  while (done < rounds && now() < stop) {
    int s = (int)below((uint32_t)seed_count);
    memcpy(input, seeds[s].data, input_size = seeds[s].size);
    mutate(), one(), done++;
  }
  for (int i = 0; i < seed_count; i++) free(seeds[i].data);
  printf("fuzz_%s (%ld inputs): 1 passed, 0 failed, 0 skipped\n", name, done);
  return 0;
}
