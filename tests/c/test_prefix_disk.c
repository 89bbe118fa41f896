/* test_prefix_disk.c - the disk tier of the prefix cache: a file is read correctly or not at all.
 *
 * Files are truncated at every length, changed in every byte, swapped, orphaned, left half written
 * by a dead process, and mixed with those of another model. The rows reveal a wrong match. */
#include "prefix_folder.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

/* ---- write and read -------------------------------------------------------------------------- */

static void no_notify(void *ctx) { (void)ctx; }

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
    CHECK_INT(stats_of(&w).disk_writes, 7); /* it was on disk already */
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

/* Nodes written while idle survive a process that ends without closing the cache. */
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
    CHECK_INT(stats_of(&w).nodes, 5); /* and they are still in memory */
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

/* With a thread, a match uses only what was read ahead; the other files stay for a later one. */
static void check_read_ahead(world *w) {
  pe_error err;
  CHECK_OK(pe_prefix_background(w->p, no_notify, NULL, &err), err);
  CHECK_INT(recall(w, &plain, text, 20), 0);
  CHECK_INT(pe_prefix_probe(w->p, &plain, text, 20), 18);
  const uint64_t fetch = pe_prefix_fetch(w->p, &plain, text, 20);
  CHECK(fetch > 0);
  CHECK_INT(pe_prefix_fetch(w->p, &plain, text, 20), fetch); /* they are read once for both */
  for (int i = 0; i < 10000 && !pe_prefix_fetched(w->p, fetch); i++) usleep(1000);
  CHECK(pe_prefix_arrived(w->p));
  CHECK(!pe_prefix_arrived(w->p));
  pe_prefix_fetch_end(w->p);
  CHECK_INT(recall(w, &plain, text, 20), 18);
  pe_prefix_fetch_end(w->p);
  pe_prefix_foreground(w->p);
}

static void test_read_ahead(void) {
  make_folder();
  for (int k = 0; k < SHAPES; k++) {
    if (!shapes[k].groups) continue;
    world w;
    world_open(&w, &shapes[k], 4, 400, 1 << 20, folder);
    remember(&w, &plain, text, 18);
    push_out(&w);
    const int count = count_files();
    for (int i = 0; i < 3; i++) { /* each with a thread of its own */
      check_read_ahead(&w);
      push_out(&w);
    }
    CHECK_INT(stats_of(&w).disk_errors, 0);
    CHECK_INT(count_files(), count);
    pe_prefix_clear(w.p);
    world_close(&w);
  }
  remove_folder();
}

/* What was read is brought a number of bytes at a time, at least one block. */
static void test_bring(void) {
  world w;
  pe_error err;
  make_folder();
  world_open(&w, &shapes[0], 4, 400, 1 << 20, folder);
  remember(&w, &plain, text, 18);
  push_out(&w);
  CHECK(pe_prefix_bring(w.p, &plain, text, 20, 1)); /* without a thread there is nothing to do */
  CHECK_INT(stats_of(&w).disk_reads, 0);
  CHECK_OK(pe_prefix_background(w.p, no_notify, NULL, &err), err);
  const uint64_t fetch = pe_prefix_fetch(w.p, &plain, text, 20);
  for (int i = 0; i < 10000 && !pe_prefix_fetched(w.p, fetch); i++) usleep(1000);
  for (int i = 1; i <= 5; i++) {
    CHECK_INT(pe_prefix_bring(w.p, &plain, text, 20, 1), i == 5);
    CHECK_INT(stats_of(&w).nodes, i);
    CHECK_INT(stats_of(&w).disk_reads, i);
    check_tree(&w);
  }
  CHECK(pe_prefix_bring(w.p, &plain, text, 20, 1));
  pe_prefix_fetch_end(w.p);
  CHECK(pe_prefix_bring(w.p, &plain, text, 20, 1 << 20));
  CHECK_INT(recall(&w, &plain, text, 20), 18);
  CHECK_INT(stats_of(&w).disk_reads, 5);
  pe_prefix_foreground(w.p);
  pe_prefix_clear(w.p);
  world_close(&w);
  remove_folder();
}

/* The folder is made if it is not there. */
static void test_new_folder(void) {
  world w;
  make_folder();
  CHECK_INT(rmdir(folder), 0);
  errno = 0; /* not that of an earlier folder */
  world_open(&w, &shapes[0], 4, 400, 1 << 20, folder);
  remember(&w, &plain, text, 18);
  push_out(&w);
  reopen(&w); /* now it is there */
  CHECK_INT(recall(&w, &plain, text, 20), 18);
  world_close(&w);
  remove_folder();
}

/* With a small disk budget idle writing still comes to an end. */
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

/* A snapshot is evicted while the blocks stay, and is read back alone. */
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

/* With enough room on disk nothing is lost: matches are those of the oracle, with a few blocks of
 * memory. */
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

/* ---- damage ---------------------------------------------------------------------------------- */

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

/* The folder in its present state gives a correct match or none. */
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
        CHECK(access(files[i].path, F_OK) == 0); /* it may belong to another model */
    }
  world_close(&w);
  remove_folder();
}

/* Damage done while the cache is open is found on reading. */
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
                     : 0; /* by depth: snapshots are at 6 and 9, in blocks 1 and 2 */
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

/* Files with swapped names, and directory entries that are not regular files. */
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
  world_open(&w, damaged, 8, 400, 1 << 20, folder); /* another block size */
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

/* A file with a word that stands for another picture here is not used, and none of its names stays
 * in use. */
static void test_foreign_names(void) {
  enum { NAMES = 3 };
  static const pe_name other = {.hash = {9}, .tokens = 1};
  world w;
  pe_error err;
  make_folder();
  for (int taken = 0; taken < NAMES; taken++) {
    int32_t token[6] = {5, 0, 0, 0, 6, 7};
    world_open(&w, &shapes[0], 4, 400, 1 << 20, folder);
    pe_names *names = w.kv->names;
    for (int i = 0; i < NAMES; i++) {
      const pe_name name = {.hash = {(uint8_t)i}, .tokens = 1};
      CHECK_OK(pe_names_put(names, &name, &token[1 + i], &err), err);
    }
    remember(&w, &plain, token, 6);
    push_out(&w);
    pe_prefix_close(w.p);
    for (int i = 0; i < NAMES; i++) pe_names_release(names, token[1 + i]);
    CHECK_INT(pe_names_count(names), 0);
    world_open_prefix(&w);
    CHECK_INT(recall(&w, &plain, token, 6), 5);
    pe_prefix_close(w.p);
    CHECK_INT(pe_names_count(names), 0);
    CHECK_OK(pe_names_claim(names, token[1 + taken], &other, &err), err);
    world_open_prefix(&w);
    CHECK_INT(pe_prefix_probe(w.p, &plain, token, 6), 0);
    CHECK_INT(pe_names_count(names), 1);
    CHECK(pe_names_find(names, token[1 + taken]) != NULL);
    world_close(&w);
    empty_folder();
  }
  remove_folder();
}

/* Temporary files of dead processes are removed, those of live ones stay; a node without its parent
 * is removed. */
static void test_stale_files(void) {
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
              "between 1 and 2999 bytes, got 3999");
  world_close(&w);
  remove_folder();
}

static const check_test tests[] = {
    {"round trip", test_round_trip},
    {"written early", test_written_early},
    {"read ahead", test_read_ahead},
    {"bring", test_bring},
    {"new folder", test_new_folder},
    {"written early without room", test_written_early_without_room},
    {"states", test_states},
    {"disk budget", test_disk_budget},
    {"against the oracle", test_oracle},
    {"cut files", test_cut},
    {"changed bytes", test_changed},
    {"changed later", test_changed_later},
    {"foreign files", test_foreign},
    {"foreign names", test_foreign_names},
    {"stale files", test_stale_files},
    {"refusals", test_refusals},
};
CHECK_MAIN("prefix_disk", tests)
