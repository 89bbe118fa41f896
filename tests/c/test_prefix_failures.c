/* test_prefix_failures.c - the disk tier of the prefix cache under colliding hashes, failing
 * allocations, a full pool, a folder that cannot be written to, and kill -9. */
#include "prefix_folder.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

/* ---- collisions ------------------------------------------------------------------------------ */

/* With hashes of a few bits, files overwrite each other all the time; no match is ever wrong. */
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

/* A block with the same tokens after two different prefixes, in one file by collision: neither is
 * used for the other. */
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

/* ---- failures -------------------------------------------------------------------------------- */

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

/* No block is free for reading a file: other cached blocks are evicted, those of sequences not. */
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

/* The folder is not writable: errors are counted and the cache keeps working. */
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

/* ---- kill -9 --------------------------------------------------------------------------------- */

static void scribble(uint64_t seed) { /* until killed */
  world w;
  rng_state = seed * 2862933555777941757u + 3037000493u;
  world_open(&w, &shapes[5], 4, 200, 1500, folder);
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
    world_open(&w, &shapes[5], 4, 400, 1 << 20, folder);
    CHECK_INT(stats_of(&w).disk_errors, 0); /* every renamed file is complete */
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
    {"collisions", test_collisions},
    {"same ending", test_same_ending},
    {"failing allocations", test_allocation_failures},
    {"no room", test_no_room},
    {"unwritable", test_unwritable},
    {"killed", test_killed},
};
CHECK_MAIN("prefix_failures", tests)
