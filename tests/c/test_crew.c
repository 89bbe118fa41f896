/* test_crew.c - turns on the engine thread: in round robin, one at a time, while seats are taken
 * and left. */
#include "check.h"
#include "runtime/batch/crew.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { SEATS = 3, LOG = 256 };

typedef struct player {
  pe_crew_seat seat;
  int number;
  _Atomic int turns, left; /* had; still wanted */
  _Atomic bool slow, patient;
} player;

static _Atomic int at_work, overlaps, logged;
static _Atomic int log_of[LOG];

static void pause_ns(long ns) { nanosleep(&(struct timespec){0, ns}, NULL); }

static pe_crew_rest play(void *ctx) {
  player *p = ctx;
  if (atomic_fetch_add(&at_work, 1)) atomic_fetch_add(&overlaps, 1);
  int at = atomic_fetch_add(&logged, 1);
  if (at < LOG) atomic_store(&log_of[at], p->number);
  pause_ns(20000);
  while (atomic_load(&p->slow)) pause_ns(20000);
  atomic_fetch_add(&p->turns, 1);
  bool more = atomic_fetch_sub(&p->left, 1) > 1;
  atomic_fetch_sub(&at_work, 1);
  return !more ? PE_CREW_NONE : p->patient ? PE_CREW_SPARE : PE_CREW_MORE;
}

static void join(pe_crew *c, player *p, int number) {
  pe_error err = {0};
  *p = (player){.number = number};
  CHECK_OK(pe_crew_join(c, &p->seat, play, p, &err), err);
}

static void wait_for(_Atomic int *what, int n) {
  for (int i = 0; atomic_load(what) < n && i < 100000; i++) pause_ns(50000);
  CHECK_INT(atomic_load(what), n);
}

static void reset(void) { at_work = overlaps = logged = 0; }

/* Three seats with equal work get their turns in order. */
static void test_round_robin(void) {
  pe_crew *c = NULL;
  pe_error err = {0};
  static player p[SEATS];
  reset();
  CHECK_OK(pe_crew_open(1, &c, &err), err);
  for (int i = 0; i < SEATS; i++) join(c, &p[i], i);
  p[0].left = 1;
  p[0].slow = true; /* keeps the thread until all have called */
  pe_crew_call(&p[0].seat);
  wait_for(&logged, 1);
  for (int i = 0; i < SEATS; i++) {
    p[i].left += 20;
    pe_crew_call(&p[i].seat);
    CHECK_INT(pe_crew_wanted(&p[0].seat), i > 0); /* by another seat than itself */
  }
  p[0].slow = false;
  for (int i = 0; i < SEATS; i++) wait_for(&p[i].turns, i ? 20 : 21);
  for (int i = 0; i < 60; i++) CHECK_INT(log_of[i], i % SEATS);
  CHECK_INT(overlaps, 0);
  for (int i = 0; i < SEATS; i++) pe_crew_leave(&p[i].seat);
  pe_crew_release(c);
}

/* What can wait does, while somebody has work. */
static void test_spare(void) {
  pe_crew *c = NULL;
  pe_error err = {0};
  static player p[2];
  reset();
  CHECK_OK(pe_crew_open(1, &c, &err), err);
  for (int i = 0; i < 2; i++) join(c, &p[i], i);
  p[0].left = 5;
  p[0].patient = p[0].slow = true;
  pe_crew_call(&p[0].seat);
  wait_for(&logged, 1);
  p[1].left = 10;
  pe_crew_call(&p[1].seat);
  p[0].slow = false;
  wait_for(&p[0].turns, 5);
  for (int i = 0; i < 15; i++) CHECK_INT(log_of[i], i > 0 && i < 11);
  for (int i = 0; i < 2; i++) pe_crew_leave(&p[i].seat);
  pe_crew_release(c);
}

/* Leaving waits for a turn of its seat, not for one of another seat. */
static void test_leaving(void) {
  pe_crew *c = NULL;
  pe_error err = {0};
  static player p[2];
  reset();
  CHECK_OK(pe_crew_open(1, &c, &err), err);
  pe_crew *other = pe_crew_retain(c);
  CHECK(other == c && pe_crew_pool(c) && pe_pool_threads(pe_crew_pool(c)) == 1);
  for (int i = 0; i < 2; i++) join(c, &p[i], i);
  p[0].left = 1;
  p[0].slow = true;
  pe_crew_call(&p[0].seat);
  wait_for(&logged, 1);
  p[1].left = 1;
  pe_crew_call(&p[1].seat);
  pe_crew_leave(&p[1].seat); /* while the first one is at work; its turn never comes */
  p[0].slow = false;
  pe_crew_leave(&p[0].seat);
  CHECK_INT(p[0].turns, 1);
  CHECK_INT(p[1].turns, 0);
  pe_crew_leave(&p[0].seat); /* once more does nothing */
  pe_crew_release(c);
  join(other, &p[1], 1); /* the other share keeps it going */
  p[1].left = 1;
  pe_crew_call(&p[1].seat);
  wait_for(&p[1].turns, 1);
  pe_crew_leave(&p[1].seat);
  pe_crew_release(other);
  pe_crew_release(NULL);
}

/* Many threads join, call and leave all the time. */
static void *visitor(void *arg) {
  pe_crew *c = arg;
  for (int i = 0; i < 40; i++) {
    player p;
    join(c, &p, i);
    p.left = 1 + i % 3;
    pe_crew_call(&p.seat);
    if (i % 2) wait_for(&p.turns, 1 + i % 3);
    pe_crew_leave(&p.seat);
    int had = p.turns;
    pause_ns(1000);
    CHECK_INT(p.turns, had);
  }
  pe_crew_release(c);
  return NULL;
}

static void test_visitors(void) {
  pe_crew *c = NULL;
  pe_error err = {0};
  pthread_t thread[4];
  reset();
  CHECK_OK(pe_crew_open(2, &c, &err), err);
  for (int i = 0; i < 4; i++)
    CHECK_INT(pthread_create(&thread[i], NULL, visitor, pe_crew_retain(c)), 0);
  pe_crew_release(c);
  for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
  CHECK_INT(overlaps, 0);
}

static void test_no_memory(void) {
  for (int64_t n = 1; n < 4; n++) {
    pe_crew *c = NULL;
    pe_error err = {0};
    pe_alloc_fail_at(n);
    pe_status rc = pe_crew_open(1, &c, &err);
    pe_alloc_fail_at(0);
    if (rc) CHECK_INT(rc, PE_ENOMEM);
    CHECK_INT(rc != PE_OK, n < 3);
    pe_crew_release(c);
  }
  pe_crew *c = NULL;
  pe_error err = {0};
  CHECK_FAILS(pe_crew_open(-1, &c, &err), PE_EARG, err, "got -1");
}

static const check_test tests[] = {
    {"round robin", test_round_robin}, {"what can wait", test_spare}, {"leaving", test_leaving},
    {"visitors", test_visitors},       {"no memory", test_no_memory},
};
CHECK_MAIN("crew", tests)
