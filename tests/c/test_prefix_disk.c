/* test_prefix_disk.c - the disk tier of the prefix cache: what is written comes back right or not at all.
 *
 * Files are cut at every length, every byte of them is changed, they are swapped, orphaned, left half written by a killed
 * process, and put beside another model's; hashes are made to collide. The rows tell when something wrong was believed. */
#include "prefix.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const pe_prefix_key plain;
static const int32_t text[MOST_TOKENS] = {5, 6, 7, 8, 9, 1, 2, 3, 4, 5,
                                          6, 7, 1, 1, 2, 2, 3, 3, 4, 4};
static char folder[200];

/* ---- the folder -------------------------------------------------------------------------------------------------- */

enum { MOST_FILES = 64, FILE_ROOM = 4096 };
typedef struct file {
  char path[600];
  uint8_t bytes[FILE_ROOM];
  size_t size;
} file;
static file files[MOST_FILES];

static void make_folder(void) {
  const char *tmp = getenv("TMPDIR");
  if (!tmp)
    tmp = access("/dev/shm", W_OK) ? "/tmp"
                                   : "/dev/shm"; /* thousands of small files: memory is faster */
  snprintf(folder, sizeof folder, "%s/perigee-prefix-XXXXXX", tmp);
  CHECK(mkdtemp(folder) != NULL);
}

static int list_files(char path[][600], int most) {
  int n = 0;
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d)) && n < most;)
    if (e->d_name[0] != '.') snprintf(path[n++], 600, "%s/%s", folder, e->d_name);
  if (d) closedir(d);
  return n;
}

static void empty_folder(void) {
  static char path[1000][600];
  for (int n; (n = list_files(path, 1000)) > 0;)
    for (int i = 0; i < n; i++) remove(path[i]);
}

static void remove_folder(void) {
  empty_folder();
  CHECK_INT(rmdir(folder), 0);
}

static int count_files(void) {
  static char path[MOST_FILES][600];
  return list_files(path, MOST_FILES);
}

static int by_path(const void *a, const void *b) {
  return strcmp(((const file *)a)->path, ((const file *)b)->path);
}

static int read_files(void) {
  static char path[MOST_FILES][600];
  int n = list_files(path, MOST_FILES);
  for (int i = 0; i < n; i++) {
    FILE *f = fopen(path[i], "rb");
    memcpy(files[i].path, path[i], sizeof path[i]);
    files[i].size = f ? fread(files[i].bytes, 1, FILE_ROOM, f) : 0;
    if (f) fclose(f);
  }
  qsort(files, (size_t)n, sizeof *files, by_path);
  return n;
}

static void write_bytes(const char *path, const void *bytes, size_t size) {
  FILE *f = fopen(path, "wb");
  CHECK(f && fwrite(bytes, 1, size, f) == size);
  if (f) fclose(f);
}

static void restore_files(int n) {
  empty_folder();
  for (int i = 0; i < n; i++) write_bytes(files[i].path, files[i].bytes, files[i].size);
}

static pe_prefix_stats stats_of(const world *w) {
  pe_prefix_stats stats;
  pe_prefix_stat(w->p, &stats);
  return stats;
}

/* Everything leaves memory, by way of the disk. */
static void push_out(world *w) {
  for (int g = 0; g < w->graph.group_count; g++) pe_prefix_evict(w->p, g, 1 << 20);
  check_tree(w);
}

static void reopen(world *w) {
  pe_prefix_close(w->p);
  for (int g = 0; g < w->graph.group_count; g++) CHECK_INT(w->kv->used[g], 0);
  world_open_prefix(w);
  check_tree(w);
}

/* ---- there and back ---------------------------------------------------------------------------------------------- */

static void test_round_trip(void) {
  make_folder();
  for (int k = 0; k < SHAPES; k++) {
    if (!shapes[k].groups) continue;
    world w;
    world_open(&w, &shapes[k], 4, 400, 1 << 20, folder);
    const pe_prefix_key tenant = {.salt = (uint64_t)7 << 40, .rope_variant = 3};
    remember(&w, &plain, text, 10);
    remember(&w, &plain, text, 18);
    remember(&w, &tenant, text, 7);
    push_out(&w);
    CHECK_INT(stats_of(&w).nodes, 0);
    CHECK_INT(stats_of(&w).disk_writes, 7);
    CHECK_INT(pe_prefix_probe(w.p, &plain, text, 20), 18);
    CHECK_INT(recall(&w, &plain, text, 20), 18);
    CHECK_INT(recall(&w, &plain, text, 20), 18); /* from memory now */
    uint64_t reads = stats_of(&w).disk_reads;
    CHECK(reads > 0 && reads <= 5);
    push_out(&w);
    CHECK_INT(stats_of(&w).disk_writes, 7); /* it was there */
    reopen(&w);
    CHECK_INT(stats_of(&w).nodes, 0);
    CHECK_INT(recall(&w, &plain, text, 11), 10);
    CHECK_INT(recall(&w, &plain, text, 20), 18);
    CHECK_INT(recall(&w, &tenant, text, 20), 7);
    CHECK_INT(recall(&w, &(pe_prefix_key){.salt = 7}, text, 20), 0);
    CHECK_INT(stats_of(&w).disk_errors, 0);
    check_tree(&w);
    pe_prefix_clear(w.p);
    CHECK_INT(stats_of(&w).disk_bytes, 0);
    world_close(&w);
    CHECK_INT(read_files(), 0);
  }
  remove_folder();
}

/* What was written while there was nothing else to do is there after a process that ended without a word. */
static void test_written_early(void) {
  make_folder();
  for (int k = 0; k < SHAPES; k++) {
    if (!shapes[k].groups) continue;
    world w;
    world_open(&w, &shapes[k], 4, 400, 1 << 20, folder);
    CHECK(!pe_prefix_write(w.p));
    remember(&w, &plain, text, 10);
    remember(&w, &plain, text, 18);
    int rounds = 0;
    while (pe_prefix_write(w.p)) CHECK(++rounds <= 20);
    CHECK_INT(stats_of(&w).disk_writes, 5);
    CHECK_INT(stats_of(&w).nodes, 5); /* and memory has it still */
    remember(&w, &plain, text, 18);
    while (pe_prefix_write(w.p)) CHECK(++rounds <= 40);
    CHECK_INT(stats_of(&w).disk_writes, 5); /* nothing new */
    check_tree(&w);
    reopen(&w);
    CHECK_INT(recall(&w, &plain, text, 11), 10);
    CHECK_INT(recall(&w, &plain, text, 20), 18);
    CHECK_INT(stats_of(&w).disk_errors, 0);
    pe_prefix_clear(w.p);
    world_close(&w);
  }
  remove_folder();
}

/* A folder that has no room for everything does not make the engine write forever. */
static void test_written_early_without_room(void) {
  make_folder();
  world w;
  world_open(&w, &shapes[0], 4, 400, 1 << 20, folder);
  w.options.disk_budget = 1200;
  reopen(&w);
  remember(&w, &plain, text, 18);
  int rounds = 0;
  while (pe_prefix_write(w.p)) CHECK(++rounds <= 20);
  CHECK(stats_of(&w).disk_bytes <= 1200);
  check_tree(&w);
  pe_prefix_clear(w.p);
  world_close(&w);
  remove_folder();
}

/* A snapshot leaves memory while the blocks stay, and comes back alone. */
static void test_states(void) {
  make_folder();
  for (int k = 0; k < SHAPES; k++) {
    if (!shapes[k].states) continue;
    world w;
    world_open(&w, &shapes[k], 4, 400, 1 << 20, folder);
    for (int n = 4; n <= 16; n += 3) remember(&w, &plain, text, n);
    CHECK_INT(recall(&w, &plain, text, 17), 16);
    uint64_t all = stats_of(&w).bytes;
    world_close(&w);
    empty_folder();
    world_open(&w, &shapes[k], 4, 400, all - 3 * 4 * STATE_FLOATS, folder);
    for (int n = 4; n <= 16; n += 3) remember(&w, &plain, text, n);
    CHECK_INT(stats_of(&w).snapshots, 2);
    CHECK(stats_of(&w).disk_writes > 0);
    for (int n = 16; n >= 4; n -= 3) CHECK_INT(recall(&w, &plain, text, n + 1), n);
    CHECK(stats_of(&w).disk_reads >= 3);
    check_tree(&w);
    reopen(&w);
    world_close(&w);
    empty_folder();
  }
  remove_folder();
}

static void test_disk_budget(void) {
  make_folder();
  world w;
  int32_t other[MOST_TOKENS];
  world_open(&w, &shapes[2], 4, 400, 1 << 20, folder);
  remember(&w, &plain, text, 20);
  push_out(&w);
  uint64_t five = stats_of(&w).disk_bytes;
  pe_prefix_clear(w.p);
  pe_prefix_close(w.p);
  w.options.disk_budget = 2 * five;
  world_open_prefix(&w);
  for (int i = 0; i < 20; i++) {
    memcpy(other, text, sizeof other), other[3] = i;
    remember(&w, &plain, other, 20);
    push_out(&w);
    CHECK(stats_of(&w).disk_bytes <= 2 * five);
    CHECK_INT(pe_prefix_probe(w.p, &plain, other, 21), 20);
  }
  other[3] = 19;
  CHECK_INT(recall(&w, &plain, other, 21), 20);
  other[3] = 0;
  CHECK_INT(recall(&w, &plain, other, 21), 0);
  reopen(&w);
  other[3] = 19;
  CHECK_INT(recall(&w, &plain, other, 21), 20);
  check_tree(&w);
  world_close(&w);
  remove_folder();
}

/* With room on disk nothing is ever lost: the oracle's answer, through a memory of a few blocks. */
static void test_oracle(void) {
  make_folder();
  for (int k = 0; k < 2; k++)
    for (int block = 2; block <= 4; block *= 2) {
      world w;
      oracle o = {0};
      world_open(&w, &shapes[k], block, 120, (uint64_t)block * 200, folder);
      for (int i = 0; i < 60 && !check_failures; i++) {
        int32_t token[MOST_TOKENS], found;
        pe_seq s;
        pe_error err;
        int n = 1 + below(24), want;
        for (int j = 0; j < n; j++) token[j] = below(2);
        want = oracle_find(&o, &w, &plain, token, n);
        CHECK_INT(pe_prefix_probe(w.p, &plain, token, n), want);
        CHECK(begin(&w, &plain, token, n, &s, &found));
        CHECK_INT(found, want);
        CHECK(compute(&w, &plain, &s, n));
        CHECK_OK(pe_prefix_insert(w.p, &plain, &s, &err), err);
        oracle_insert(&o, &w, &plain, &s);
        pe_seq_close(&s);
        check_tree(&w);
        if (i == 40) push_out(&w), reopen(&w);
      }
      CHECK_INT(stats_of(&w).disk_errors, 0);
      CHECK(stats_of(&w).disk_reads > 0);
      pe_prefix_clear(w.p);
      world_close(&w);
      free(o.at);
    }
  remove_folder();
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static const shape *damaged = &shapes[5]; /* windows and states */

static int write_some(world *w) {
  world_open(w, damaged, 4, 400, 1 << 20, folder);
  remember(w, &plain, text, 6);
  remember(w, &plain, text, 9);
  push_out(w);
  int n = read_files();
  CHECK_INT(n, 3);
  return n;
}

/* The folder as it is now must give something that is right, or nothing. */
static void check_damage(world *w, int at, bool removed, const char *path) {
  reopen(w);
  int found = recall(w, &plain, text, 10);
  CHECK(found == 0 || found == 6 || found == 9);
  if (found == 9 && at >= 0) CHECK_INT(at, -1);
  if (at >= 0) CHECK(stats_of(w).disk_errors > 0 || !removed);
  if (removed) CHECK(access(path, F_OK) != 0);
  check_tree(w);
}

static void test_cut(void) {
  world w;
  make_folder();
  int n = write_some(&w);
  for (int i = 0; i < n; i++)
    for (size_t size = 0; size < files[i].size && !check_failures; size++) {
      restore_files(n);
      write_bytes(files[i].path, files[i].bytes, size);
      check_damage(&w, (int)size, true, files[i].path);
    }
  restore_files(n);
  reopen(&w);
  CHECK_INT(recall(&w, &plain, text, 10), 9);
  CHECK_INT(stats_of(&w).disk_errors, 0);
  world_close(&w);
  remove_folder();
}

static void test_changed(void) {
  world w;
  make_folder();
  int n = write_some(&w);
  for (int i = 0; i < n; i++)
    for (size_t at = 0; at < files[i].size && !check_failures; at++) {
      uint8_t old = files[i].bytes[at];
      restore_files(n);
      files[i].bytes[at] ^= (uint8_t)(1 << below(8));
      write_bytes(files[i].path, files[i].bytes, files[i].size);
      files[i].bytes[at] = old;
      check_damage(&w, (int)at, at >= PE_PREFIX_FILE_STAMP, files[i].path);
      if (at < PE_PREFIX_FILE_STAMP)
        CHECK(access(files[i].path, F_OK) == 0); /* may be another model's */
    }
  world_close(&w);
  remove_folder();
}

/* Damage that happens while the cache is open is found on reading. */
static void test_changed_later(void) {
  world w;
  make_folder();
  int n = write_some(&w);
  for (int i = 0; i < n; i++)
    for (size_t at = 0; at < files[i].size && !check_failures; at += 7) {
      restore_files(n);
      reopen(&w);
      files[i].bytes[at] ^= 0x10;
      if (at % 3 == 0)
        write_bytes(files[i].path, files[i].bytes, at);
      else if (at % 3 == 1)
        write_bytes(files[i].path, files[i].bytes, files[i].size);
      else
        unlink(files[i].path);
      files[i].bytes[at] ^= 0x10;
      int want = files[i].bytes[84] == 2
                     ? 6
                     : 0; /* by its depth: snapshots stand at 6 and 9, in blocks 1 and 2 */
      CHECK_INT(recall(&w, &plain, text, 10), want);
      CHECK_INT(pe_prefix_probe(w.p, &plain, text, 10), want);
      CHECK_INT(recall(&w, &plain, text, 10), want);
      CHECK_INT(stats_of(&w).disk_errors, 1);
      check_tree(&w);
      remember(&w, &plain, text, 9);
      CHECK_INT(recall(&w, &plain, text, 10), 9);
      pe_prefix_clear(w.p);
    }
  world_close(&w);
  remove_folder();
}

/* Files under each other's names, and things that are not files. */
static void test_foreign(void) {
  world w;
  char path[700];
  make_folder();
  int n = write_some(&w);
  empty_folder();
  for (int i = 0; i < n; i++)
    write_bytes(files[i].path, files[(i + 1) % n].bytes, files[(i + 1) % n].size);
  reopen(&w);
  CHECK_INT(recall(&w, &plain, text, 10), 0);
  CHECK_INT(stats_of(&w).disk_errors, 3);
  world_close(&w);
  restore_files(n);
  world_open(&w, damaged, 4, 400, 1 << 20, folder);
  pe_prefix_close(w.p);
  w.options.identity[15] ^= 1; /* another model in the same folder */
  world_open_prefix(&w);
  CHECK_INT(stats_of(&w).disk_errors, 3);
  CHECK_INT(recall(&w, &plain, text, 10), 0);
  remember(&w, &plain, text, 9);
  push_out(&w);
  CHECK_INT(recall(&w, &plain, text, 10), 9);
  world_close(&w);
  CHECK_INT(count_files(), 6);
  world_open(&w, damaged, 8, 400, 1 << 20, folder); /* other blocks */
  CHECK_INT(stats_of(&w).disk_errors, 6);
  world_close(&w);
  CHECK_INT(count_files(), 6);
  snprintf(path, sizeof path, "%s/notes.txt", folder), write_bytes(path, "mine", 4);
  snprintf(path, sizeof path, "%s/00000000000000000000000000000000.prefix", folder);
  CHECK_INT(mkdir(path, 0700), 0);
  snprintf(path, sizeof path, "%s/00000000000000000000000000000001.prefix", folder);
  CHECK_INT(mkfifo(path, 0600), 0);
  snprintf(path, sizeof path, "%s/00000000000000000000000000000002.prefix", folder);
  CHECK_INT(symlink("/dev/zero", path), 0);
  world_open(&w, damaged, 4, 400, 1 << 20, folder);
  CHECK_INT(stats_of(&w).disk_errors, 6);
  CHECK_INT(recall(&w, &plain, text, 10), 9);
  world_close(&w);
  CHECK_INT(count_files(), 10);
  remove_folder();
}

/* Half a file of a dead process goes, a living one's stays; a node without its parent goes. */
static void test_left_behind(void) {
  world w;
  char dead[700], living[700];
  make_folder();
  int n = write_some(&w);
  pid_t child = fork();
  if (!child) _exit(0);
  waitpid(child, NULL, 0);
  snprintf(dead, sizeof dead, "%s.%ld.part", files[0].path, (long)child),
      write_bytes(dead, "half", 4);
  snprintf(living, sizeof living, "%s.%ld.part", files[0].path, (long)getppid()),
      write_bytes(living, "half", 4);
  reopen(&w);
  CHECK(access(dead, F_OK) != 0);
  CHECK(access(living, F_OK) == 0);
  CHECK_INT(recall(&w, &plain, text, 10), 9);
  unlink(living);
  int kept = 0;
  for (int i = 0; i < n; i++) {
    restore_files(n);
    unlink(files[i].path);
    reopen(&w);
    kept += count_files();
    restore_files(0);
    world_close(&w);
    n = write_some(&w);
  }
  CHECK_INT(kept, 0 + 1 + 2);
  world_close(&w);
  remove_folder();
}

static void test_refusals(void) {
  world w;
  pe_prefix *p;
  pe_error err;
  char path[700], name[4000];
  make_folder();
  world_open(&w, damaged, 4, 400, 1 << 20, NULL);
  snprintf(path, sizeof path, "%s/file", folder), write_bytes(path, "x", 1);
  w.options.folder = path;
  CHECK_FAILS(pe_prefix_open(w.kv, w.recur, &w.options, &p, &err), PE_EIO, err,
              "file: Not a directory");
  snprintf(path, sizeof path, "%s/none/below", folder);
  CHECK_FAILS(pe_prefix_open(w.kv, w.recur, &w.options, &p, &err), PE_EIO, err, "none/below");
  memset(name, 'x', sizeof name), name[sizeof name - 1] = 0, w.options.folder = name;
  CHECK_FAILS(pe_prefix_open(w.kv, w.recur, &w.options, &p, &err), PE_EARG, err,
              "3999 bytes, at most 3000");
  world_close(&w);
  remove_folder();
}

/* ---- collisions -------------------------------------------------------------------------------------------------- */

/* With hashes of one or a few bits, files overwrite each other all the time; nothing wrong is ever given. */
static void test_collisions(void) {
  static const uint64_t masks[] = {0, 1, 3};
  int hits = 0;
  make_folder();
  for (int k = 0; k < SHAPES; k++)
    for (int m = 0; m < 3; m++) {
      world w;
      world_open(&w, &shapes[k], 2, 120, 400, folder);
      pe_prefix_tree(w.p)->hash_mask = masks[m];
      for (int i = 0; i < 60 && !check_failures; i++) {
        int32_t token[MOST_TOKENS];
        int n = 2 + below(12);
        for (int j = 0; j < n; j++) token[j] = below(2);
        const pe_prefix_key key = {.salt = (uint64_t)below(2)};
        hits += recall(&w, &key, token, n) > 0;
        remember(&w, &key, token, n);
        if (i % 4 == 0) push_out(&w);
        check_tree(&w);
      }
      world_close(&w);
      empty_folder();
    }
  CHECK(hits > 100);
  remove_folder();
}

/* One block of the same tokens behind two beginnings, in one file: the second one's is not the first one's. */
static void test_same_ending(void) {
  world w;
  int32_t other[MOST_TOKENS];
  make_folder();
  for (int k = 0; k < 2; k++) {
    const pe_prefix_key key = {.salt = (uint64_t)k};
    world_open(&w, &shapes[0], 4, 400, 1 << 20, folder);
    pe_prefix_tree(w.p)->hash_mask = 0;
    memcpy(other, text, sizeof other), other[1] = k ? text[1] : 99;
    remember(&w, &plain, text, 8);
    CHECK_INT(pe_prefix_evict(w.p, 0, 1), 1);
    remember(&w, &key, other, 8);
    CHECK_INT(recall(&w, &plain, text, 5), 4);
    CHECK_INT(pe_prefix_evict(w.p, 0, 1), 1);
    CHECK_INT(pe_prefix_probe(w.p, &plain, text, 9), 8);
    CHECK_INT(recall(&w, &plain, text, 9), 4);
    CHECK_INT(recall(&w, &key, other, 9), 8);
    check_tree(&w);
    world_close(&w);
    empty_folder();
  }
  remove_folder();
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

static void test_allocation_failures(void) {
  make_folder();
  for (int k = 0; k < SHAPES; k++) {
    if (!shapes[k].groups) continue;
    int64_t n = 1;
    for (bool more = true; more && !check_failures; n += 1 + n / 40) {
      world w;
      world_open(&w, &shapes[k], 4, 400, 1 << 20, folder);
      remember(&w, &plain, text, 6);
      remember(&w, &plain, text, 13);
      pe_alloc_fail_at(n);
      push_out(&w);
      pe_prefix *p = NULL;
      pe_error err;
      pe_seq s;
      int32_t found;
      pe_status rc = pe_prefix_open(w.kv, w.recur, &w.options, &p, &err);
      if (rc) CHECK_INT(rc, PE_ENOMEM);
      if (!rc && !pe_seq_open(&s, w.kv, w.recur, &err)) {
        rc = pe_prefix_match(p, &plain, text, 14, &s, &found, &err);
        if (rc) CHECK_INT(rc, PE_ENOMEM);
        check_content(&w, &plain, &s);
        pe_seq_close(&s);
      }
      more = pe_alloc_count() >= n;
      pe_alloc_fail_at(0);
      if (p) pe_prefix_close(p);
      check_tree(&w);
      if (!more) CHECK_INT(recall(&w, &plain, text, 14), 13);
      world_close(&w);
      empty_folder();
    }
    CHECK(n > 20);
  }
  remove_folder();
}

/* No block is free for what is on disk: what else the cache holds goes, but not what sequences hold. */
static void test_no_room(void) {
  world w;
  pe_seq s;
  pe_error err;
  int32_t found, other[MOST_TOKENS];
  make_folder();
  world_open(&w, &shapes[0], 4, 36, 1 << 20, folder); /* ten blocks */
  remember(&w, &plain, text, 16);
  push_out(&w);
  memcpy(other, text, sizeof other), other[0] = 1;
  CHECK_OK(pe_seq_open(&s, w.kv, w.recur, &err), err);
  CHECK_OK(pe_seq_append(&s, other, 28, &err), err);
  CHECK_OK(advance(&w, &plain, &s, 28, &err), err);
  CHECK_INT(recall(&w, &plain, text, 17), 12); /* three of four blocks find room */
  CHECK_INT(w.kv->used[0], 10);
  check_tree(&w);
  pe_seq_close(&s);
  CHECK_INT(recall(&w, &plain, text, 17), 16);
  remember(&w, &plain, other, 24);
  CHECK_INT(w.kv->used[0], 10);
  CHECK_INT(recall(&w, &plain, text, 17), 16);
  CHECK_INT(recall(&w, &plain, other, 25), 24);
  CHECK_INT(begin(&w, &plain, text, 17, &s, &found), true);
  pe_seq_close(&s);
  check_tree(&w);
  world_close(&w);
  remove_folder();
}

/* A folder that cannot be written to: errors are counted and the cache goes on. */
static void test_unwritable(void) {
  world w;
  make_folder();
  world_open(&w, &shapes[0], 4, 400, 1 << 20, folder);
  remember(&w, &plain, text, 16);
  remove_folder();
  push_out(&w);
  CHECK_INT(stats_of(&w).disk_errors, 4);
  CHECK_INT(recall(&w, &plain, text, 17), 0);
  CHECK_INT(stats_of(&w).nodes, 0);
  remember(&w, &plain, text, 16);
  CHECK_INT(recall(&w, &plain, text, 17), 16);
  world_close(&w);
}

/* ---- kill -9 ----------------------------------------------------------------------------------------------------- */

static void scribble(uint64_t seed) { /* until killed */
  world w;
  rng_state = seed * 2862933555777941757u + 3037000493u;
  world_open(&w, damaged, 4, 200, 1500, folder);
  for (;;) {
    int32_t token[MOST_TOKENS];
    int n = 2 + below(30);
    for (int j = 0; j < n; j++) token[j] = below(2);
    remember(&w, &plain, token, n);
    if (below(4) == 0) push_out(&w);
  }
}

static void test_killed(void) {
  make_folder();
  for (int i = 0; i < 25 && !check_failures; i++) {
    pid_t child = fork();
    if (!child) scribble((uint64_t)i + 1);
    nanosleep(&(struct timespec){.tv_nsec = 1000000 * (2 + below(30))}, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    world w;
    world_open(&w, damaged, 4, 400, 1 << 20, folder);
    CHECK_INT(stats_of(&w).disk_errors, 0); /* every file under its name is whole */
    for (int k = 0; k < 40; k++) {
      int32_t token[MOST_TOKENS];
      int n = 2 + below(30);
      for (int j = 0; j < n; j++) token[j] = below(2);
      recall(&w, &plain, token, n);
    }
    CHECK_INT(stats_of(&w).disk_errors, 0);
    check_tree(&w);
    world_close(&w);
  }
  remove_folder();
}

static const check_test tests[] = {
    {"there and back", test_round_trip},
    {"written early", test_written_early},
    {"written early without room", test_written_early_without_room},
    {"states", test_states},
    {"disk budget", test_disk_budget},
    {"against the oracle", test_oracle},
    {"cut files", test_cut},
    {"changed bytes", test_changed},
    {"changed later", test_changed_later},
    {"foreign files", test_foreign},
    {"left behind", test_left_behind},
    {"refusals", test_refusals},
    {"collisions", test_collisions},
    {"same ending", test_same_ending},
    {"failing allocations", test_allocation_failures},
    {"no room", test_no_room},
    {"unwritable", test_unwritable},
    {"killed", test_killed},
};
CHECK_MAIN("prefix_disk", tests)
